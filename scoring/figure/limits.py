"""How near a figure is to the limits of the machine: the cards' peak FLOP/s, and the energy of an image."""

import math
from collections.abc import Iterator, Mapping, Sequence

from runlog import workloads
from runlog.run import real
from scoring.published.table import Card, card_of
from scoring.record import Record, image_side, nodes_of


def utilization(records: Sequence[Record], images_per_s: float) -> float | None:
    """Return the share of the GPUs' peak FLOP/s that training takes (MFU), such as 0.35.

    Args:
        records: The runs as read from their logs. Several give the mean of their shares.
        images_per_s: The throughput of all devices together.

    Returns:
        The share. None without runs, or if some run's model, image size, GPU model, peak or number of devices is not
        known, or if the FLOPs of its model were not counted for its image size.
    """
    shares = []
    for record in records:
        flop_per_image = _flop_per_image(record)
        peak_of_one_gpu = _peak_flop_per_s(record)
        if not flop_per_image or not peak_of_one_gpu or not record.devices:
            return None
        shares.append(images_per_s * flop_per_image / (peak_of_one_gpu * record.devices))
    if not shares:
        return None
    return math.fsum(shares) / len(shares)


def _peak_flop_per_s(record: Record) -> float | None:
    """Return the peak FLOP/s of one GPU of a run at the precision that it computes in, by the GPU's data sheet.

    Args:
        record: The run as read from its log.

    Returns:
        The peak; None if the GPU model or its peak is not known.
    """
    card = _card_of_all_gpus(record)
    if card is None:
        return None
    computes_in_tf32 = record.precision == "fp32" and record.math_mode == "tf32"
    return card.peak("tf32" if computes_in_tf32 else record.precision)


def _card_of_all_gpus(record: Record) -> Card | None:
    """Return the row of the table `cards.csv` that fits every GPU of a run.

    A row (a `Card`) holds data-sheet figures, such as the peak FLOP/s, of one GPU model with one memory size.

    Args:
        record: The run as read from its log. The header of the log may describe the GPUs of each node by their name and
            their memory in GiB.

    Returns:
        The row. None if the log describes no GPUs, if a GPU fits no row, or if two GPUs fit different rows.
    """
    # The different rows: a single one for 8 equal GPUs. A GPU without a row in the table adds None to the set.
    cards = {card_of(str(gpu.get("name")), real(gpu.get("memory_gib"))) for gpu in _described_gpus(record)}
    if len(cards) != 1:
        return None
    [card] = cards  # the row of every GPU; None if no GPU has a row
    return card


def _described_gpus(record: Record) -> Iterator[Mapping[str, object]]:
    """Yield what the log says of each GPU on each node, such as {"name": "NVIDIA A100-SXM4-40GB", "memory_gib": 40}."""
    for node in nodes_of(record):
        gpus = node.get("gpus")
        if isinstance(gpus, list):
            yield from (gpu for gpu in gpus if isinstance(gpu, dict))


def _flop_per_image(record: Record) -> float | None:
    """Return the FLOP of training on one image of the configured size.

    Args:
        record: The run as read from its log.

    Returns:
        The number; None if the model or the size is not known, or if it was not counted for this size.
    """
    workload = workloads.of_model(record.model)
    if workload is None:
        return None
    return workload.flop_of(image_side(record, "height"), image_side(record, "width"))


def images_per_joule(records: Sequence[Record]) -> float | None:
    """Return how many images are trained for each joule that the GPUs take from the first step to the end.

    Several runs are averaged by their joules per image: 0.5 and 1.5 J per image give 1 image per joule.

    Args:
        records: The runs as read from their logs, which may have the energy in their telemetry.

    Returns:
        The images per joule; None without runs, or if a log does not give its energy.
    """
    joules_per_image = []
    for record in records:
        joules = real(record.telemetry.get("joules_per_image"))
        if joules is None or joules <= 0:
            return None
        joules_per_image.append(joules)
    if not joules_per_image:
        return None
    return len(joules_per_image) / math.fsum(joules_per_image)  # 1 / their mean
