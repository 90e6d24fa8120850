"""The most that a machine can train of ResNet-50, by the peak of its named devices: a bound, and no estimate."""

import functools
from collections.abc import Sequence

from compliance.rules import read_rules

# FLOPs of an image of 224 px in a step of training, two a multiply-add: products of the FP32 program, forward and
# backward, as program/count.py counts them
TRAINING_FLOP = 24_299_077_632
CORE_FLOP_PER_S = 384e9  # two AVX-512 multiply-adds of 16 numbers a cycle at 6 GHz: more than any core has
_SHARE = 0.6  # of the cards' peak: twice what any of 84 published submissions takes


@functools.cache
def peaks() -> dict[str, float]:
    """Dense peak in FP16 of each card that is known, in TFLOP/s."""
    return dict(read_rules("peaks.yaml"))


def most_images_per_s(cards: Sequence[str], cores: int, pixels: int = 224) -> float | None:
    """Images/s of ResNet-50 that these cards (without any: cores) cannot surpass; None for an unknown card."""
    flop = TRAINING_FLOP * (pixels / 224) ** 2
    if not cards:
        return cores * CORE_FLOP_PER_S / flop if cores else None
    found = [next((peak for name, peak in peaks().items() if name in card), None) for card in cards]
    return None if None in found else _SHARE * 1e12 * sum(peak or 0.0 for peak in found) / flop
