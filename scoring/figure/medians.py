"""The 95 % intervals of a median and of the ratio of two medians, for values of any distribution."""

import itertools
import math
import statistics
from collections.abc import Sequence

from runlog.stats import CONFIDENCE


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of some values of any distribution.

    An interval from the k-th least to the k-th greatest value rarely has a confidence of exactly 95 %. So the bounds
    are interpolated between the narrowest such interval of 95 % or more, and the next narrower one.

    Args:
        values: The values, in any order and unit.

    Returns:
        The bounds (low, high); None for fewer than five values. Those of five are the least and the greatest, with a
        confidence of only 93.75 %.
    """
    n = len(values)
    if n < 5:
        return None
    ordered = sorted(values)
    if n == 5:
        return ordered[0], ordered[-1]

    depth = _deepest_of_enough_confidence(n)
    outer = _interval_at_depth(depth, ordered)
    inner = _interval_at_depth(depth + 1, ordered)
    return _interpolated(outer, inner, _weight_of_inner_bounds(depth, n))


def _interpolated(outer: tuple[float, float], inner: tuple[float, float], inner_weight: float) -> tuple[float, float]:
    """Return the interval between two intervals, at a weight.

    Args:
        outer: The bounds (low, high) at a weight of 0.
        inner: The bounds (low, high) at a weight of 1.
        inner_weight: The weight, from 0 to 1.
    """
    outer_low, outer_high = outer
    inner_low, inner_high = inner
    low = outer_low + inner_weight * (inner_low - outer_low)
    high = outer_high + inner_weight * (inner_high - outer_high)
    return low, high


def _interval_at_depth(depth: int, ordered: Sequence[float]) -> tuple[float, float]:
    """Return the interval from the `depth`-th least value to the `depth`-th greatest.

    Args:
        depth: The rank of the bounds, counted from 1.
        ordered: The values in ascending order.
    """
    return ordered[depth - 1], ordered[-depth]


def _deepest_of_enough_confidence(n: int) -> int:
    """Return the greatest depth whose interval of the median has a confidence of 95 % or more, for n >= 6 values."""
    depth = 1
    while _confidence_at_depth(depth + 1, n) >= CONFIDENCE:
        depth += 1
    return depth


def _weight_of_inner_bounds(k: int, n: int) -> float:
    """Return the weight, from 0 to below 1, of the inner bounds in the 95 % bounds of a median.

    - outer bounds: the k-th least and the k-th greatest value. Their confidence is 95 % or more.
    - inner bounds: the (k + 1)-th least and the (k + 1)-th greatest value. Their confidence is below 95 %.

    Each 95 % bound is (1 - weight) * outer bound + weight * inner bound. For k = 2 and n = 10, the weight is 0.66.

    Args:
        k: The rank of the outer bounds, as `_deepest_of_enough_confidence` returns it for n. k + 1 is below n / 2.
        n: The number of values, 6 or more.
    """
    outer_confidence = _confidence_at_depth(k, n)
    inner_confidence = _confidence_at_depth(k + 1, n)
    weight_if_linear = (outer_confidence - CONFIDENCE) / (outer_confidence - inner_confidence)
    # The confidence does not fall linearly. The correction is that of Hettmansperger and Sheather (Statistics &
    # Probability Letters 4, 1986).
    return (n - k) * weight_if_linear / (k + (n - 2 * k) * weight_if_linear)


def _confidence_at_depth(depth: int, n: int) -> float:
    """Return the probability that the median lies between the k-th least and the k-th greatest of n values.

    The median lies outside if fewer than k of the values are on one side of it. Each value is on either side with a
    probability of 1/2.

    Args:
        depth: The rank k of the two values, counted from 1.
        n: The number of values.
    """
    return 1 - 2 * float(math.fsum(math.comb(n, count) for count in range(depth)) / 2**n)


def median_ratio_interval(base: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the ratio median(other) / median(base) of two sets of values.

    The bounds are the k-th least and the k-th greatest of all quotients of a value of `other` by one of `base` (Hodges
    and Lehmann, Annals of Mathematical Statistics 34, 1963). If the ratio of the medians itself lies outside them, the
    interval is widened up to it. Both sets are assumed to have one distribution but for a factor.

    Args:
        base: The values in the denominator, such as the figures of runs.
        other: The values in the numerator, in the same unit.

    Returns:
        The bounds (low, high); None for too few values.
    """
    rank = _rank_of_bounds(len(base), len(other))
    if rank == 0:
        return None

    quotients = sorted(other_value / base_value for base_value, other_value in itertools.product(base, other))
    low = quotients[rank - 1]
    high = quotients[-rank]
    ratio = statistics.median(other) / statistics.median(base)
    return min(ratio, low), max(ratio, high)  # widened if the ratio of the medians does not lie between the two


def _rank_of_bounds(m: int, n: int) -> int:
    """Return the rank k of the quotients that are 95 % bounds of the ratio of two sets of values.

    The bounds are the interval of Hodges and Lehmann, by the test of Mann and Whitney: the k-th least and the k-th
    greatest of all quotients of a value of one set by a value of the other.

    Let U be how many quotients lie below the true ratio. The k-th least quotient fails as a lower bound if it is above
    the true ratio, that is if U <= k - 1. By symmetry, the k-th greatest one fails as often. Each may fail in 2.5 % of
    cases, so k is the greatest number with

        P(U <= k - 1) <= 2.5 %

    For sets of 5 and 5 values, there are 252 equally likely rankings, and 2.5 % of them are 6.3. U <= 0 holds in 1 of
    them, U <= 1 in 2, U <= 2 in 4 and U <= 3 in 7. So k is 3.

    Args:
        m: The number of values of one set.
        n: The number of values of the other set.

    Returns:
        The rank k; 0 for too few values.
    """
    # If one set is divided by the true ratio, both have the same distribution. All rankings are then equally likely.
    all_rankings = math.comb(m + n, m)
    most_rankings = (1 - CONFIDENCE) / 2 * all_rankings  # 2.5 % of them
    rankings_up_to_u = itertools.accumulate(_rankings_by_u(m, n))  # how many have U <= 0, U <= 1, U <= 2, ...
    rare_enough = [rankings for rankings in rankings_up_to_u if rankings <= most_rankings]
    return len(rare_enough)  # k, because they are those of U <= 0, U <= 1, ..., U <= k - 1


def _rankings_by_u(m: int, n: int) -> list[int]:
    """Return how many rankings of two sets of values have U = 0, how many have U = 1, and so on up to U = m * n.

    Mann and Whitney's U is the number of pairs of a value of the first set and a lower value of the second set. For
    m = 1 and n = 2 the counts are [1, 1, 1], because 0, 1 or 2 values of the second set may be below the single value.

    The counts are the coefficients, from q**0 up, of a polynomial with m factors, the Gaussian binomial (Andrews, The
    Theory of Partitions, 1976):

        (1 - q**(n + 1)) / (1 - q**1) * (1 - q**(n + 2)) / (1 - q**2) * ... * (1 - q**(n + m)) / (1 - q**m)

    Args:
        m: The number of values of the first set.
        n: The number of values of the second set.
    """
    # Powers above q**(m * n) are cut off in each step: no coefficient of a lower power depends on them.
    coefficients = [1] + [0] * (m * n)
    for k in range(1, m + 1):
        # Times the k-th factor, (1 - q**(n + k)) / (1 - q**k)
        coefficients = _multiplied_by_one_minus_power(coefficients, n + k)
        coefficients = _divided_by_one_minus_power(coefficients, k)
    return coefficients


def _multiplied_by_one_minus_power(coefficients: Sequence[int], power: int) -> list[int]:
    """Return the coefficients of a polynomial in q times 1 - q**power.

    Args:
        coefficients: The coefficients of the polynomial, from q**0 up.
        power: The power of q, 1 or more.

    Returns:
        The coefficients from q**0 up, cut off at the length of `coefficients`.
    """
    times_q_to_power = [0] * power + list(coefficients)
    return [kept - moved for kept, moved in zip(coefficients, times_q_to_power, strict=False)]


def _divided_by_one_minus_power(coefficients: Sequence[int], power: int) -> list[int]:
    """Return the coefficients of a polynomial in q divided by 1 - q**power, cut off at the length of `coefficients`.

    For example, 1 / (1 - q) is 1 + q + q**2 and so on: [1, 0, 0] and a power of 1 give [1, 1, 1].

    Args:
        coefficients: The coefficients of the polynomial, from q**0 up.
        power: The power of q, 1 or more.

    Returns:
        The coefficients of the quotient, from q**0 up.
    """
    # quotient = polynomial / (1 - q**power) is the same as quotient = polynomial + q**power * quotient.
    quotient = list(coefficients)
    for place in range(power, len(quotient)):
        quotient[place] += quotient[place - power]  # the lower place already has the quotient's coefficient
    return quotient
