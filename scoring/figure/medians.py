"""The 95 % intervals of a median and of the ratio of two medians, for values of any distribution."""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence

from runlog.stats import CONFIDENCE


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of some values of any distribution.

    The median lies between the k-th least and the k-th greatest value with a confidence that depends only on k and on
    the number of values. The confidence is rarely 95 % for any k, so the bounds are interpolated between the intervals
    of two neighbouring k. For example, for the ten values 1, 2, ..., 10:

        outer    k = 2    2 to 9          97.9 %
        result            2.66 to 8.34    95 %, by interpolation
        inner    k = 3    3 to 8          89.1 %

    Args:
        values: The values, in any order and unit.

    Returns:
        The bounds (low, high); None for fewer than five values. The bounds of five values are the least and the
        greatest value, with a confidence of only 93.75 %.
    """
    n = len(values)
    if n < 5:
        return None
    ordered = sorted(values)
    if n == 5:
        return ordered[0], ordered[-1]

    depth = _deepest_of_enough_confidence(n)  # the greatest k with a confidence of 95 % or more: 2 for ten values
    outer = _interval_at_depth(depth, ordered)
    inner = _interval_at_depth(depth + 1, ordered)  # not wider, with a confidence below 95 %
    # The weight says how far the result lies from the outer towards the inner bounds: 0.66 for ten values.
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

    def is_too_deep(depth: int) -> bool:
        return _confidence_at_depth(depth, n) < CONFIDENCE

    depths = range(1, n // 2 + 1)  # the confidence falls from each depth to the next
    return bisect.bisect_left(depths, True, key=is_too_deep)  # as many depths, from 1 on, are not too deep


def _weight_of_inner_bounds(k: int, n: int) -> float:
    """Return the weight by which the 95 % bounds of a median are interpolated between two pairs of bounds.

    - outer bounds (weight 0): the k-th least and the k-th greatest value, with a confidence of 95 % or more
    - inner bounds (weight 1): the next values inwards, of rank k + 1, with a confidence below 95 %

    For example, of n = 10 values, the outer bounds of rank k = 2 have a confidence of 97.9 %, and the inner bounds have
    89.1 %. The weight for 95 % is 0.66: each 95 % bound lies at 66 % of the way from the outer to the inner bound.

    Args:
        k: The rank of the outer bounds, as `_deepest_of_enough_confidence` returns it for n.
        n: The number of values, 6 or more.

    Returns:
        The weight, from 0 to below 1.
    """
    outer_confidence = _confidence_at_depth(k, n)
    inner_confidence = _confidence_at_depth(k + 1, n)
    weight_if_linear = (outer_confidence - CONFIDENCE) / (outer_confidence - inner_confidence)  # 0.32 in the example
    # The confidence does not fall linearly between the two. The correction of Hettmansperger and Sheather (Statistics &
    # Probability Letters 4, 1986) keeps a weight of 0 or 1, and raises any weight between: 0.32 to 0.66.
    return (n - k) * weight_if_linear / (k + (n - 2 * k) * weight_if_linear)


def _confidence_at_depth(depth: int, n: int) -> float:
    """Return the probability that the median lies between the k-th least and the k-th greatest of n values.

    The median lies outside if fewer than k of the values are on one side of it. Each value is on either side with a
    probability of 1/2.

    Args:
        depth: The rank k of the two values, counted from 1.
        n: The number of values.
    """
    all_ways: int = 2**n  # in which n values may lie on either side
    ways_outside = 0  # those with fewer than k values on one side
    ways = 1  # those with `count` values on that side: n! / count! / (n - count)!
    for count in range(depth):
        ways_outside += ways
        ways = ways * (n - count) // (count + 1)
    return 1 - 2 * (ways_outside / all_ways)


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
    """Return the rank k of the two quotients that are the 95 % bounds of the ratio of two sets of values.

    Each value of one set is divided by each value of the other set, which makes m * n quotients. The bounds are the
    k-th least and the k-th greatest quotient (Hodges and Lehmann). The k-th least quotient fails as the lower bound if
    fewer than k quotients lie below the true ratio. k is the greatest rank for which the probability of this failure is
    2.5 % or less. By symmetry, the k-th greatest quotient fails as the upper bound with the same probability.

    For example, 5 and 5 values can be ranked in 252 ways, which are equally likely. 2.5 % of these rankings are 6.3.

        fewer than 1 quotient below the true ratio      1 ranking
        fewer than 2 quotients                          2 rankings
        fewer than 3 quotients                          4 rankings
        fewer than 4 quotients                          7 rankings, which is more than 6.3

    So k is 3.

    Args:
        m: The number of values of one set.
        n: The number of values of the other set.

    Returns:
        The rank k; 0 for too few values.
    """
    # If one set is divided by the true ratio, both have the same distribution. All rankings are then equally likely.
    all_rankings = math.comb(m + n, m)  # 252 in the example
    most_rankings = (1 - CONFIDENCE) / 2 * all_rankings  # 6.3
    # U of a ranking is the number of quotients below the true ratio (Mann and Whitney). `_rankings_by_u` returns how
    # many rankings have U = 0, 1, 2, ...: [1, 1, 2, 3, ...]. The sums are the rankings with U < 1, 2, 3, 4, ...
    rankings_up_to_u = itertools.accumulate(_rankings_by_u(m, n))  # 1, 2, 4, 7, ...
    rare_enough = [rankings for rankings in rankings_up_to_u if rankings <= most_rankings]  # [1, 2, 4]
    return len(rare_enough)  # 3 in the example: the last of these sums is the number of rankings with U < 3


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
