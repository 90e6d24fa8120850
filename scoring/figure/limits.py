"""How near a figure is to the limits of the machine: the cards' peak FLOP/s, and the energy of an image."""

import math
from collections.abc import Sequence

from runlog import workloads
from runlog.run import real
from scoring.published.table import Card, card_of
from scoring.record import Record, config_of, nodes_of


def utilization(records: Sequence[Record], images_per_s: float) -> float | None:
    """Return the share of the cards' peak FLOP/s that a throughput takes (MFU), between 0 and 1.

    `images_per_s` is that of all devices; the share is averaged over the runs. Returns None where a log lacks the
    model, the size of its images, the card or the number of devices.
    """
    shares = []
    for record in records:
        flop_of_an_image = _flop_of_an_image(record)
        card = _card(record)
        if not flop_of_an_image or card is None or not record.devices:
            return None
        is_tf32 = record.precision == "fp32" and record.math_mode == "tf32"
        peak = card.peak("tf32" if is_tf32 else record.precision)
        if not peak:
            return None
        shares.append(images_per_s * flop_of_an_image / (peak * record.devices))
    return math.fsum(shares) / len(shares) if shares else None


def _card(record: Record) -> Card | None:
    """Return the card that all GPUs of a run are; None where the log does not say, or the table lacks it."""
    cards = set()
    for node in nodes_of(record):
        gpus = node.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else []:
            if isinstance(gpu, dict):
                cards.add(card_of(str(gpu.get("name")), real(gpu.get("memory_gib"))))
    return cards.pop() if len(cards) == 1 else None


def _flop_of_an_image(record: Record) -> float | None:
    """Return the model's FLOP for an image of the configured size; None where the model or the size is unknown."""
    workload = workloads.of_model(record.model)
    if workload is None:
        return None
    return workload.flop_of(_image_side(record, "height"), _image_side(record, "width"))


def _image_side(record: Record, side: str) -> int:
    """Return the configured height or width of the images in pixels; 0 where the configuration says no size."""
    config = config_of(record)
    size = real(config.get("RECIPE.image_size", {}).get("value"))  # of square images
    pixels = size or real(config.get(f"RECIPE.image_{side}", {}).get("value"))
    return int(pixels or 0)


def images_per_joule(records: Sequence[Record]) -> float | None:
    """Return the images that a joule of the GPUs trains, from the first step to the end, evaluations included.

    Returns None where a log does not say its energy.
    """
    joules = [real(record.telemetry.get("joules_per_image")) or 0.0 for record in records]
    return len(joules) / math.fsum(joules) if joules and min(joules) > 0 else None
