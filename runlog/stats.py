"""Statistics of a few runs that a score and the check of a submission share."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

CONFIDENCE = 0.95
_Run = TypeVar("_Run")


def median_set(
    runs: Sequence[_Run], count: int, score: Callable[[Sequence[_Run]], float]
) -> tuple[Sequence[_Run], str]:
    """Of M runs in the order of their start, more than the `count` of a submission, those that are scored, and which.

    They are the `count` consecutive ones of which the score is the median of all such sets; one without a score is
    infinitely slow (MLPerf's training_rules.adoc, section Scoring). Of an even number of sets there are two in the
    middle: the slower one is taken, as the rules name none.
    """
    sets = [runs[first : first + count] for first in range(len(runs) - count + 1)]
    scores = [score(one) for one in sets]
    first = sorted(range(len(sets)), key=scores.__getitem__)[len(sets) // 2]
    which = f"runs {first + 1} to {first + count} of {len(runs)} in the order of their start"
    return sets[first], f"{which}, the median of {len(sets)} sets of {count}"


def olympic_mean(values: Sequence[float]) -> float:
    """Mean without the best and the worst, added up as MLPerf's tools do. Needs three values."""
    assert len(values) >= 3
    kept = sorted(values)[1:-1]
    return sum(kept) / len(kept)


@functools.lru_cache(256)
def t_quantile(freedom: float, probability: float = 0.5 + CONFIDENCE / 2) -> float:
    """Quantile of Student's t, `probability` over 0.5 (SciPy's takes 0.4 s to import)."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def t_cdf(t: float, freedom: float) -> float:
    """Distribution function of Student's t by the continued fraction of the incomplete beta function."""
    if t < 0:
        return 1 - t_cdf(-t, freedom)
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
