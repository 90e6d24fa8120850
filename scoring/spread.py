"""Means, spreads and 95 % intervals of a few numbers; each says how it was made."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

CONFIDENCE = 0.95
RESAMPLES = 10_000


def t_quantile(freedom: float, probability: float = 0.5 + CONFIDENCE / 2) -> float:
    """Quantile of Student's t, `probability` over 0.5 (SciPy's takes 0.4 s to import)."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def t_cdf(t: float, freedom: float) -> float:
    """Distribution function of Student's t for t >= 0, by the continued fraction of the incomplete beta function."""
    square = t * t
    if square < 1:  # where the fraction converges slowly; the tail's complement otherwise
        a, b, x = 0.5, freedom / 2, square / (freedom + square)
    else:
        a, b, x = freedom / 2, 0.5, freedom / (freedom + square)
    if x == 0:
        return 0.5
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    # Lentz's evaluation (Numerical Recipes, 6.4)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        for coefficient in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + coefficient * d)
            c = 1 + coefficient / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    tail_or_middle = front * fraction
    return 0.5 + tail_or_middle / 2 if square < 1 else 1 - tail_or_middle / 2


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
