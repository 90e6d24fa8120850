"""The rates of a log of this project, held against what its devices can compute at their peak."""

from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_count
from compliance.rules import most_images_per_s, training_flop
from compliance.strict.measured import Fastest, Fault
from compliance.strict.own_log import own_log_rules
from compliance.strict.parts import TimedEvaluation
from compliance.strict.run_order import RunOrder
from runlog import schema, workloads
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.text import printable

_SIDE = "RECIPE.image_size"
_HEIGHT = "RECIPE.image_height"
_WIDTH = "RECIPE.image_width"
_FORWARD_SHARE = 1 / 3  # of the arithmetic of a training step; the backward pass takes twice as much


class _ImageSize(NamedTuple):
    """The size of a run's training images, as the settings in its log state it."""

    height_px: int
    width_px: int
    words: str  # for messages: "224 px" for square images, otherwise "128 x 64 px" (width x height)
    holds_in_evaluations: bool  # whether the images of evaluations have this size, too


class _Peak(NamedTuple):
    """A rate of training that the run's devices cannot exceed."""

    images_per_s: float
    words: str  # for messages: "its 8 cards cannot train more than 60000 images/s at 224 px"


def rates_beyond_peak(run: LoggedRun, order: RunOrder, nodes: list[JsonObject]) -> list[Fault]:
    """Return faults of a run that trained or evaluated faster than its devices can compute.

    The fastest window of training steps is checked and, for a recipe with RECIPE.image_size, the shortest evaluation.

    Args:
        run: The facts that the log states about the run, such as its settings.
        order: The fastest window and the shortest evaluation of the run.
        nodes: The nodes that the header of the log describes, with their GPUs and CPU cores.

    Returns:
        Faults such as "a window of 90000 images/s; its 8 cards cannot train more than 60000 images/s at 224 px". If the
        settings do not state the image size in whole pixels, the only fault says so, and no rate is checked. The list
        is empty if the rate that the devices can reach is not known.
    """
    workload = workloads.find(run.workload_name)
    # The FLOP of training on one image are known for the workloads of this project alone.
    if workload is None or workload.training_flop is None or not nodes:
        return []
    try:
        size = _image_size(run.settings, workload.name)
    except ValueError as error:  # such as "RECIPE.image_size is 224.0, no number of pixels"
        return [Fault(None, str(error))]
    peak = _peak_of(run, nodes, workload, size)
    if peak is None:
        return []
    faults = _faults_of_window(order.measured.fastest, peak)
    # True for rn50. The settings of hrnet state the size of training images alone, so its evaluations are not checked.
    if size.holds_in_evaluations:
        faults += _faults_of_evaluation(run, order.shortest_evaluation, peak)
    return faults


def _image_size(settings: JsonObject, workload: str) -> _ImageSize:
    """Return the size of a run's training images by the settings of its recipe.

    There are two kinds of recipes, by their settings:

        RECIPE.image_size                             as of rn50: square images, in training and in evaluations
        RECIPE.image_height and RECIPE.image_width    as of hrnet: images in training alone

    Args:
        settings: The settings that the log states, by name.
        workload: The name of the workload, such as "rn50".

    Returns:
        The size, with its words for messages. Its `holds_in_evaluations` is true for a recipe of the first kind.

    Raises:
        ValueError: A setting of the size is missing, or is not a whole number of pixels.
    """
    names_of_settings = own_log_rules().recipe_settings.get(workload, ())  # those that recipes of the workload have
    has_square_images = _SIDE in names_of_settings  # `_SIDE` is "RECIPE.image_size"
    if has_square_images:
        side_px = _pixels(settings, _SIDE)
        return _ImageSize(side_px, side_px, f"{side_px} px", holds_in_evaluations=True)
    height_px = _pixels(settings, _HEIGHT)
    width_px = _pixels(settings, _WIDTH)
    return _ImageSize(height_px, width_px, f"{width_px} x {height_px} px", holds_in_evaluations=False)


def _pixels(settings: JsonObject, name: str) -> int:
    """Return the value of a setting that must be a whole number of pixels above 0.

    Args:
        settings: The settings that the log states, by name.
        name: The name of the setting, such as "RECIPE.image_size".

    Raises:
        ValueError: It is not, with a message such as "RECIPE.image_size is 224.0, no number of pixels".
    """
    value: Any = settings.get(name)
    if type(value) is int and is_count(value):  # `is_count` alone would also accept 224.0
        return value
    raise ValueError(f"{name} is {printable(value)}, no number of pixels")


def _peak_of(run: LoggedRun, nodes: list[JsonObject], workload: workloads.Workload, size: _ImageSize) -> _Peak | None:
    """Return the highest rate at which a run can train, in images/s, by its GPUs or, if it has none, its CPU cores.

    For instance, 8 GPUs of 3e14 FLOP/s each, of which a training reaches 0.6 at most, cannot train on more than
    8 * 3e14 * 0.6 / 2.4e10 = 60,000 images/s if an image takes 2.4e10 FLOP.

    Args:
        run: The facts that the log states of the run, with the kind of its devices.
        nodes: The nodes that the header describes.
        workload: The workload, such as ResNet-50. Its field `training_flop` must not be None.
        size: The size of a training image, with whose area the FLOP grow.

    Returns:
        The rate, with words for messages. None if the peak of a GPU is not known, or if there are 0 cores.
    """
    flop_per_image = training_flop(workload, size.height_px, size.width_px)
    assert flop_per_image is not None, "the caller has seen that the workload has its training_flop"
    cards = _cards_of(run, nodes)  # the names of the GPUs; empty for a run on CPUs, or if none is listed
    has_cards = len(cards) > 0
    cores = sum(node["cores"] for node in nodes)
    # By the peaks of the cards; by the cores only if there are no cards. None: a card is unknown, or there is neither.
    images_per_s = most_images_per_s(cards, cores, flop_per_image)
    if images_per_s is None:
        return None
    devices = counted(len(cards), "card") if has_cards else counted(cores, "core")
    words = f"its {devices} cannot train more than {six_digits(images_per_s)} images/s at {size.words}"
    return _Peak(images_per_s, words)


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


def _faults_of_window(fastest: Fastest, peak: _Peak) -> list[Fault]:
    """Return a fault if the fastest window of training steps has a rate above the peak; otherwise an empty list.

    Args:
        fastest: The window's rate and line. Its rate is 0 if the log has no window.
        peak: The rate of training that the devices cannot exceed.
    """
    if fastest.images_per_s <= peak.images_per_s:
        return []
    return [Fault(fastest.line, f"a window of {six_digits(fastest.images_per_s)} images/s; {peak.words}")]


def _faults_of_evaluation(run: LoggedRun, shortest: TimedEvaluation | None, peak: _Peak) -> list[Fault]:
    """Return a fault if a run's shortest evaluation was faster than the devices can compute; otherwise an empty list.

    An evaluation does only the forward pass, a third of the work of training on the same images. So devices that
    train on 60,000 images/s at most evaluate 180,000 samples/s at most: 3,600,000 samples take at least 20 s. If the
    log's clock shows 5 s for them, with a tolerance of 0.1 s, then 5.1 s are too few, and the fault is

        an evaluation of 3600000 samples in 5000 ms; its 8 cards cannot train more than 60000 images/s at 224 px

    Args:
        run: The facts that the log states of the run, with eval_samples and the tolerance of its clock.
        shortest: The time and the line of the shortest evaluation. None if the run has no evaluation.
        peak: The rate of training that the devices cannot exceed, with the words for the fault.
    """
    if shortest is None:
        return []
    samples = run.stated_count(schema.EVAL_SAMPLES)  # 0 if it is not stated
    least_ms = 1000 * samples * _FORWARD_SHARE / peak.images_per_s  # 1000 * 3,600,000 * (1 / 3) / 60,000 = 20,000
    # In favour of the run: two times of the log's clock may disagree with a duration by this tolerance.
    took_at_most_ms = shortest.took_ms + run.clock_tolerance_ms
    if took_at_most_ms >= least_ms:
        return []
    took = f"an evaluation of {samples} samples in {shortest.took_ms:.0f} ms"
    return [Fault(shortest.line, f"{took}; {peak.words}")]
