"""Statistics of a few runs that a score and the check of a submission share."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

CONFIDENCE = 0.95
MAX_PAIRS = 999  # of coefficients of a continued fraction; `t_cdf` needs about 100 at most
_Run = TypeVar("_Run")


def median_set(
    runs: Sequence[_Run], count: int, score: Callable[[Sequence[_Run]], float]
) -> tuple[Sequence[_Run], str]:
    """Return the consecutive runs whose score is the median of all such sets, and words that say which they are.

    7 runs have 3 sets of 5 consecutive runs: 1 to 5, 2 to 6 and 3 to 7. Of an even number of sets, the slower one of
    the two in the middle is taken.

    Args:
        runs: All runs, in the order of their start.
        count: The number of runs of a set, at most that of `runs`.
        score: Function that returns the score of a set of runs: a time, or infinity if the set has no score.

    Returns:
        The runs, and words such as "runs 2 to 6 of 7 in the order of their start, the median of 3 sets of 5".
    """
    # MLPerf training_rules.adoc, section Scoring: the set of consecutive runs with the median score counts.
    set_count = len(runs) - count + 1
    firsts = range(set_count)  # the index of the first run of each set
    scores = [score(runs[first : first + count]) for first in firsts]
    fastest_first = sorted(firsts, key=lambda first: scores[first])
    median = fastest_first[set_count // 2]  # of 4 sets the third fastest: the rules do not say which of the middle two
    which = f"runs {median + 1} to {median + count} of {len(runs)} in the order of their start"
    return runs[median : median + count], f"{which}, the median of {set_count} sets of {count}"


def olympic_mean(values: Sequence[float], dropped: int = 1) -> float:
    """Return the mean without the smallest and the largest values.

    The values are added up in ascending order, as the MLPerf tools do, so that both round in the same way.

    Args:
        values: The values, more than twice as many as `dropped`.
        dropped: How many values are left out at each end; 1 or more.
    """
    assert len(values) > 2 * dropped > 0
    kept = sorted(values)[dropped:-dropped]
    return sum(kept) / len(kept)


@functools.lru_cache(256)
def t_quantile(freedom: float, probability: float = 0.5 + CONFIDENCE / 2) -> float:
    """Return the quantile of Student's t-distribution: the t with t_cdf(t) = probability.

    It is found by bisection. SciPy has this function, but takes 0.4 s to import.

    Args:
        freedom: The number of degrees of freedom, which may be a fraction.
        probability: A probability above 0.5 and below 1. The default, 0.975, gives the t of a 95 % interval.
    """
    low = 0.0  # t_cdf(0) is 0.5, which is below the probability
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
    """Return the probability that a value of Student's t-distribution is below t.

    Args:
        t: The bound, of either sign.
        freedom: The number of degrees of freedom, which may be a fraction.
    """
    if t < 0:
        return 1 - t_cdf(-t, freedom)
    square = t * t
    # The probability of a value farther than t from 0, on either side, is I_x(freedom / 2, 1/2) at
    # x = freedom / (freedom + t^2), and half of it lies above t (Numerical Recipes, 6.4). As I_x(a, b) is
    # 1 - I_(1-x)(b, a), the first formula below is equal to the second one. Both hold for every t of 0 or more. Each is
    # used where its continued fraction converges fast.
    if square < 1:
        return 0.5 + _incomplete_beta(0.5, freedom / 2, square / (freedom + square)) / 2
    return 1 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square)) / 2


def t_density(t: float, freedom: float) -> float:
    """Return the density of Student's t-distribution at t, which is the slope of `t_cdf`.

    Args:
        t: The point, of either sign.
        freedom: The number of degrees of freedom, which may be a fraction.
    """
    log_of_factor = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(log_of_factor - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), such as 0.51 for a = 1, b = 2 and x = 0.3.

    The function is computed as a continued fraction (Numerical Recipes, 6.4):

        I_x(a, b) = factor * 1 / (1 + d_1 / (1 + d_2 / (1 + ...)))
        factor    = 1 / B(a, b) * x^a * (1 - x)^b / a
        1/B(a, b) = gamma(a + b) / (gamma(a) gamma(b))

    Args:
        a: The first parameter, above 0.
        b: The second parameter, above 0.
        x: The point, at least 0 and below 1. Above (a + 1) / (a + b + 2) the fraction converges slowly, and very near
            to 1 the result is wrong, as MAX_PAIRS pairs of coefficients are too few.
    """
    if x == 0:  # log(0) is not defined
        return 0.0
    # The logarithm of each part of the factor, in the order of the formula: gamma itself overflows above 171.
    log_of_1_over_beta = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    factor = math.exp(log_of_1_over_beta + a * math.log(x) + b * math.log1p(-x) - math.log(a))
    # The other coefficients come in pairs. d_1 has no partner, because the fraction has no d_0.
    d_1 = -((a + b) * x / (a + 1))
    further_pairs = _coefficients_in_pairs(a, b, x)  # (d_2, d_3), (d_4, d_5), ...
    return factor * _continued_fraction(d_1, further_pairs)


def _coefficients_in_pairs(a: float, b: float, x: float) -> Iterator[tuple[float, float]]:
    """Yield the coefficients of the continued fraction of I_x(a, b) after d_1: (d_2, d_3), (d_4, d_5), ...

    Those of even and of odd number have two formulas (Numerical Recipes, 6.4):

        d_2m     = m (b - m) x / ((a + 2m - 1) (a + 2m))
        d_(2m+1) = -(a + m) (a + b + m) x / ((a + 2m) (a + 2m + 1))

    Args:
        a: The first parameter of the incomplete beta function.
        b: The second parameter.
        x: The point at which the function is computed.

    Yields:
        A pair of coefficients, up to MAX_PAIRS times.
    """
    for m in range(1, MAX_PAIRS + 1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        yield even, odd


def _continued_fraction(d_1: float, further_pairs: Iterable[tuple[float, float]]) -> float:
    """Return the continued fraction 1 / (1 + d_1 / (1 + d_2 / (1 + ...))) by Lentz's method (Numerical Recipes, 5.2).

    The method begins with 1 / (1 + d_1), and multiplies this by a factor for each further coefficient. For example,
    d_1 = 1 gives 1/2, and d_2 = 1 then has the factor 4/3: 1/2 * 4/3 = 2/3, which is 1 / (1 + 1 / (1 + 1)).

    Args:
        d_1: The first coefficient.
        further_pairs: The further coefficients: (d_2, d_3), (d_4, d_5), ... They come in pairs, because those of even
            and of odd number have different formulas.
    """
    # Cut off after d_n, the fraction is A_n / B_n:
    #     A_n = A_(n-1) + d_n A_(n-2), from A_0 = 1 and A_1 = 1
    #     B_n = B_(n-1) + d_n B_(n-2), from B_0 = 1 and B_1 = 1 + d_1
    # A_n and B_n may overflow, so only ratios of neighbours are computed. The lines divided by A_(n-1) and B_(n-1):
    #     A_n / A_(n-1) = 1 + d_n / (A_(n-1) / A_(n-2))
    #     B_n / B_(n-1) = 1 + d_n * (B_(n-2) / B_(n-1))
    # The ratio of the B is kept inverted, because the factor from one fraction to the next is
    # (A_n / A_(n-1)) * (B_(n-1) / B_n).
    ratio_of_a = 1.0  # A_1 / A_0
    inverse_ratio_of_b = 1 / (1 + d_1)  # B_0 / B_1
    fraction = inverse_ratio_of_b  # A_1 / B_1
    for pair in further_pairs:
        for d_n in pair:
            ratio_of_a = 1 + d_n / ratio_of_a  # A_n / A_(n-1)
            inverse_ratio_of_b = 1 / (1 + d_n * inverse_ratio_of_b)  # B_(n-1) / B_n
            factor = ratio_of_a * inverse_ratio_of_b
            fraction *= factor  # from A_(n-1) / B_(n-1) to A_n / B_n
        # `factor` is now that of the pair's second coefficient. 1e-15 is about the precision of a float.
        has_converged = abs(factor - 1) < 1e-15
        if has_converged:
            break
    return fraction  # also if the pairs ran out before
