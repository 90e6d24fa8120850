"""How near a figure is to its machine's limit: the share of the data sheet's FLOP/s, and images a joule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compliance.strict.machine import TRAINING_FLOP
from runlog.run import real
from scoring.published.table import Card, card_of
from scoring.record import Record, config_of, nodes_of

# FLOPs of an image in a step, two a multiply-add: products of the FP32 program, forward and backward, as
# program/count.py counts them; by model, height and width in pixels.
FLOPS = {("resnet50_v1.5", 224, 224): TRAINING_FLOP, ("fcn_hrnetw18", 512, 1024): 220_648_587_264}


def card(record: Record) -> Card | None:
    """The card that all GPUs of a run are; None where the log does not say, or the table lacks it."""
    named = {
        (str(gpu.get("name")), real(gpu.get("memory_gib")))
        for node in nodes_of(record)
        for gpu in (node["gpus"] if isinstance(node.get("gpus"), list) else ())
        if isinstance(gpu, dict)
    }
    found = {card_of(*name) for name in named}
    return found.pop() if len(found) == 1 else None


def flops_of_image(record: Record) -> int | None:
    """Of a training step of the record's model at its size; None where that is not in the table."""
    config = config_of(record)
    side, height, width = (
        real(config.get(f"RECIPE.image_{name}", {}).get("value")) for name in ("size", "height", "width")
    )
    return FLOPS.get((record.model or "", int(side or height or 0), int(side or width or 0)))


def utilization(records: Sequence[Record], images_per_s: float) -> float | None:
    """Model FLOP/s utilization (MFU) of all devices' images/s; None where a log lacks model, size, card or devices."""
    shares = []
    for record in records:
        of_card, flops = card(record), flops_of_image(record)
        tf32 = record.precision == "fp32" and record.math_mode == "tf32"
        peak = of_card and of_card.peak("tf32" if tf32 else record.precision)
        if not (peak and flops and record.devices):
            return None
        shares.append(images_per_s * flops / (peak * record.devices))
    return math.fsum(shares) / len(shares) if shares else None


def images_per_joule(records: Sequence[Record]) -> float | None:
    """Of the GPUs from the first step to the end, evaluations included; None where a log lacks the energy."""
    joules = [real(record.telemetry.get("joules_per_image")) or 0.0 for record in records]
    return len(joules) / math.fsum(joules) if joules and min(joules) > 0 else None


def in_words(share: float | None, per_joule: float | None) -> list[str]:
    """Those of the two that are known."""
    said = [] if share is None else [f"{share:.1%} of the cards' peak FLOP/s (MFU)"]
    return said if per_joule is None else [*said, f"{per_joule:.3g} images/J"]
