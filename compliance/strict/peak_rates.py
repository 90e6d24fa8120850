"""The rates of a log of this project, held against what its devices can compute at their peak."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_count
from compliance.rules import most_images_per_s, training_flop
from compliance.strict.measured import Fault
from compliance.strict.own_log import own_log_rules
from compliance.strict.run_order import RunOrder
from runlog import schema, workloads
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.text import printable

_SIDE = "RECIPE.image_size"
_HEIGHT_AND_WIDTH = ("RECIPE.image_height", "RECIPE.image_width")
_FORWARD_SHARE = 1 / 3  # of the arithmetic of a training step; the backward pass takes twice as much


class _Peak(NamedTuple):
    """A rate of training that the run's devices cannot exceed."""

    images_per_s: float
    words: str


def rates_beyond_peak(run: LoggedRun, order: RunOrder, nodes: list[JsonObject]) -> Iterator[Fault]:
    """Yield a fault if the fastest window of steps or the shortest evaluation is faster than the devices can compute.

    The limit in images/s is computed from the peak of the devices and the work per image, which depends on the size of
    the images. So the size is checked first. If a side in the settings is not a whole number of pixels, this is the
    only fault. Evaluations are only checked if one setting gives the size of the images in training and evaluation.

    Args:
        run: The facts that the log states about the run, such as its settings.
        order: The run's fastest window and shortest evaluation.
        nodes: The nodes that the header of the log describes, with their GPUs and CPU cores.

    Yields:
        At most two faults, such as "a window of 90000 images/s; the peak of its 8 cards is below 60000 at 224 px".
        Nothing is checked if there are no nodes, or if the workload or its work per image is not known. Only the size
        is checked if the peak of a device is not known.
    """
    workload = workloads.find(str(run.settings.get("WORKLOAD")))
    if not nodes or workload is None or workload.training_flop is None:
        return
    # RECIPE.image_size (of rn50) is the side of a square image, in training and in evaluation. RECIPE.image_height and
    # RECIPE.image_width (of hrnet) give the size in training only.
    has_one_size = _SIDE in own_log_rules().recipe_settings.get(workload.name, ())
    settings_of_sides = (_SIDE, _SIDE) if has_one_size else _HEIGHT_AND_WIDTH
    sides = []
    for name in settings_of_sides:
        pixels: Any = run.settings.get(name)
        is_number_of_pixels = type(pixels) is int and is_count(pixels)  # is_count alone would also accept 224.0
        if not is_number_of_pixels:
            yield Fault(None, f"{name} is {printable(pixels)}, no number of pixels")
            return
        sides.append(pixels)
    height, width = sides
    flop_per_image = training_flop(workload, height, width)
    assert flop_per_image is not None, "a workload without training_flop has returned above"
    shown_size = f"{height} px" if has_one_size else f"{width} x {height} px"
    peak = _peak_of(run, nodes, flop_per_image, shown_size)
    if peak is None:
        return
    fastest = order.measured.fastest
    if fastest.images_per_s > peak.images_per_s:
        yield Fault(fastest.line, f"a window of {six_digits(fastest.images_per_s)} images/s; {peak.words}")
    if has_one_size:
        yield from _evaluation_beyond_peak(run, order, peak)


def _peak_of(run: LoggedRun, nodes: list[JsonObject], flop_per_image: float, size: str) -> _Peak | None:
    """Return the peak of all GPUs of the nodes, or in a run on CPUs of all their cores; None if it is not known.

    Args:
        run: The facts that the log states of the run, with the kind of its devices.
        nodes: The nodes that the header describes.
        flop_per_image: The work of training on one image, in FLOP.
        size: How large an image is, for the message, such as "224 px".
    """
    cards = _cards_of(run, nodes)
    cores = sum(node["cores"] for node in nodes)  # which only count if there are no cards
    images_per_s = most_images_per_s(cards, cores, flop_per_image)
    if images_per_s is None:
        return None
    devices = f"{len(cards)} cards" if cards else f"{cores} cores"
    return _Peak(images_per_s, f"the peak of its {devices} is below {six_digits(images_per_s)} at {size}")


def _cards_of(run: LoggedRun, nodes: list[JsonObject]) -> list[str]:
    """Return the names of the GPUs of the nodes; empty for a run on CPUs.

    Args:
        run: The facts that the log states of the run, with the kind of its devices.
        nodes: The nodes that the header describes, each with its GPUs.
    """
    if run.header_section(schema.HARDWARE)["device"] != "gpu":
        return []
    cards: list[str] = []
    for node in nodes:
        cards += [str(gpu["name"]) for gpu in node["gpus"]]
    return cards


def _evaluation_beyond_peak(run: LoggedRun, order: RunOrder, peak: _Peak) -> Iterator[Fault]:
    """Yield a fault if the shortest evaluation took less time than eval_samples need at the devices' peak.

    An evaluation has the forward pass alone, which is a third of the work of training.

    Args:
        run: The facts that the log states of the run, with the number of samples of an evaluation.
        order: The run's evaluations, of which the shortest is checked; nothing is if there are none.
        peak: The rate of training that the devices cannot exceed.
    """
    samples = run.stated_count(schema.EVAL_SAMPLES)
    least_ms = 1000 * samples * _FORWARD_SHARE / peak.images_per_s
    shortest = order.shortest_evaluation
    if shortest is None:
        return
    took_at_most_ms = shortest.took_ms + run.clock_tolerance_ms
    if took_at_most_ms < least_ms:
        took = f"an evaluation of {samples} samples in {shortest.took_ms:.0f} ms"
        yield Fault(shortest.line, f"{took}; in training {peak.words}")
