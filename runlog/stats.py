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
    """Choose the runs that are scored where there are more than the `count` of a submission, and say which they are.

    `runs` stand in the order of their start, and every `count` that follow one another are a set. The set is chosen
    whose `score` is the median of all sets (MLPerf training_rules.adoc, section Scoring). Of an even number of sets the
    slower one of the two in the middle is chosen, as the rules name none.

    Returns the chosen runs, and words such as "runs 2 to 6 of 7 in the order of their start, the median of 3 sets of
    5". There must be `count` runs at least. `score` gives infinity for a set that has no score.
    """
    sets = [runs[first : first + count] for first in range(len(runs) - count + 1)]  # by the index of their first run
    scores = [score(candidate) for candidate in sets]
    fastest_first = sorted(range(len(sets)), key=lambda first: scores[first])
    first = fastest_first[len(sets) // 2]
    which = f"runs {first + 1} to {first + count} of {len(runs)} in the order of their start"
    return sets[first], f"{which}, the median of {len(sets)} sets of {count}"


def olympic_mean(values: Sequence[float], dropped: int = 1) -> float:
    """Return the mean without the `dropped` best and as many worst values, added up as the MLPerf tools do."""
    assert len(values) > 2 * dropped > 0
    kept = sorted(values)[dropped:-dropped]
    return sum(kept) / len(kept)


@functools.lru_cache(256)
def t_quantile(freedom: float, probability: float = 0.5 + CONFIDENCE / 2) -> float:
    """Return the t below which a value of Student's distribution lies with this probability, which is over 0.5.

    `freedom` is the distribution's number of degrees of freedom. The t is found by halving an interval around it: SciPy
    has the function, but takes 0.4 s to import.
    """
    low = 0.0  # where the probability is 0.5
    high = 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2

    # Halve the interval until no float lies inside it.
    middle = (low + high) / 2
    while low < middle < high:
        if t_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return high


def t_cdf(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's distribution of `freedom` degrees of freedom is below t."""
    if t < 0:
        return 1 - t_cdf(-t, freedom)
    square = t * t
    if square < 1:  # there the other fraction converges slowly
        return 0.5 + _incomplete_beta(0.5, freedom / 2, square / (freedom + square)) / 2
    return 1 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) by its continued fraction (Numerical Recipes, 6.4).

    The fraction is evaluated from its head on by Lentz's method, until a term changes it by less than 1e-15.
    """
    if x == 0:
        return 0.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    c = 1.0  # Lentz's ratios of numerators and of denominators
    d = 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1 / (1 + coefficient * d)
            c = 1 + coefficient / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
