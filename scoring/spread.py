"""Means, spreads and 95 % intervals of a few numbers; each says how it was made."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

CONFIDENCE = 0.95
RESAMPLES = 10_000


def t_quantile(freedom: float, probability: float = 0.5 + CONFIDENCE / 2) -> float:
    """Quantile of Student's t, by SciPy."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def sd(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None of fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean; None of fewer than two values."""
    deviation = sd(values)
    if deviation is None:
        return None
    mean = math.fsum(values) / len(values)
    half = t_quantile(len(values) - 1) * deviation / math.sqrt(len(values)) if deviation else 0.0
    return mean - half, mean + half


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float]
) -> tuple[float, float] | None:
    """95 % percentile interval of `statistic` over resamples (fixed seed); None of fewer than three values."""
    if len(values) < 3:
        return None
    draw = random.Random(0)
    resampled = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return resampled[round(tail * (RESAMPLES - 1))], resampled[round((1 - tail) * (RESAMPLES - 1))]


def olympic_mean(values: Sequence[float]) -> float:
    """Mean without the best and the worst. Needs three values."""
    assert len(values) >= 3
    return statistics.fmean(sorted(values)[1:-1])


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation, scaled to the standard deviation of a normal distribution."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median([abs(value - middle) for value in values])
