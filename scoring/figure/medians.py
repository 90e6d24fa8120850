"""The 95 % intervals of a median and of the ratio of two medians, for values of any distribution."""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence

from runlog.stats import CONFIDENCE

MAX_QUOTIENTS_TO_COUNT = 2500  # of two sets, neither of them small (MIN_FOR_NORMAL); more take too long to count
MIN_FOR_NORMAL = 10  # values of each set, for a normal distribution in place of a count


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of some values of any distribution.

    The median lies between the k-th least and the k-th greatest value with a confidence that depends only on the rank
    k and on the number of values. For the ten values 1, 2, ..., 10:

        k = 2    2 to 9          97.9 %
                 2.66 to 8.34    95 %, the result, by interpolation
        k = 3    3 to 8          89.1 %

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

    rank = _greatest_rank_of_enough_confidence(n)  # 2 for ten values
    # No rank has a confidence of just 95 %, so each bound is moved inwards from that of this rank (97.9 % above)
    # towards that of the next rank (89.1 %). `inner_weight` is the share of the way at which 95 % are left: 0.66 for
    # ten values.
    inner_weight = _weight_of_inner_bounds(rank, n)
    low = _between(ordered[rank - 1], ordered[rank], inner_weight)  # from 2 up towards 3: 2.66
    high = _between(ordered[-rank], ordered[-(rank + 1)], inner_weight)  # from 9 down towards 8: 8.34
    return low, high


def _between(start: float, end: float, share: float) -> float:
    """Return the value that lies at a share of the way from one value to another."""
    return start + share * (end - start)


def _greatest_rank_of_enough_confidence(n: int) -> int:
    """Return the greatest rank k whose interval of the median has a confidence of 95 % or more.

    The interval is from the k-th least to the k-th greatest of n values. The confidence falls from each rank to the
    next. Of ten values, rank 2 has 97.9 % and rank 3 has 89.1 %, so the result is 2.

    Args:
        n: The number of values, 6 or more, so that rank 1 has enough.
    """

    def is_too_great(rank: int) -> bool:
        return _confidence_of_rank(rank, n) < CONFIDENCE

    ranks = range(1, n // 2 + 1)
    # `is_too_great` is False for the first ranks and True for all others. The bisection returns how many are False, and
    # as ranks count from 1, this number is the last rank that is not too great.
    return bisect.bisect_left(ranks, True, key=is_too_great)


def _weight_of_inner_bounds(k: int, n: int) -> float:
    """Return at which share of the way from one pair of bounds of a median to the next inner pair 95 % are reached.

    The bounds of rank k are the k-th least and the k-th greatest of n values. The median lies between them with a
    confidence that falls with k. Of n = 10 values, the bounds of rank 2 have 97.9 % and those of rank 3 have 89.1 %.
    The bounds of 95 % lie at 0.66 of the way from those of rank 2 to those of rank 3.

    Args:
        k: The greatest rank whose bounds have a confidence of 95 % or more.
        n: The number of values, 6 or more.

    Returns:
        The share, from 0 (the bounds of rank k) to below 1 (those of rank k + 1).
    """
    above = _confidence_of_rank(k, n) - CONFIDENCE  # 97.9 - 95 = 2.9 percentage points in the example
    below = CONFIDENCE - _confidence_of_rank(k + 1, n)  # 95 - 89.1 = 5.9
    # Linear interpolation would give above / (above + below) = 0.33. The confidence does not fall linearly between the
    # two ranks, so Hettmansperger and Sheather (Statistics & Probability Letters 4, 1986) weigh the two distances by
    # n - k and k: 8 * 2.9 / (8 * 2.9 + 2 * 5.9) = 0.66.
    return (n - k) * above / ((n - k) * above + k * below)


def _confidence_of_rank(k: int, n: int) -> float:
    """Return the probability that the median lies between the k-th least and the k-th greatest of n values.

    The median lies outside if fewer than k of the values are on one side of it. Each value is on either side with a
    probability of 1/2.

    Args:
        k: The rank of the two values, counted from 1.
        n: The number of values.
    """
    all_ways: int = 2**n  # in which n values may lie on either side
    ways_outside = 0  # those with fewer than k values on one side
    ways = 1  # those with `count` values on that side: n! / count! / (n - count)!
    for count in range(k):
        ways_outside += ways
        ways = ways * (n - count) // (count + 1)  # for the next count
    return 1 - 2 * (ways_outside / all_ways)  # 2: on one side or on the other


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

    The bounds are the k-th least and the k-th greatest of the m * n quotients of a value of one set by a value of the
    other. A lower bound is wrong if it lies above the true ratio. k is the greatest rank whose lower bound is wrong
    with a probability of 2.5 % or less. For 5 and 5 values k is 3:

        rank 1      1 / 252 = 0.4 %
        rank 2      2 / 252 = 0.8 %
        rank 3      4 / 252 = 1.6 %
        rank 4      7 / 252 = 2.8 %

    By symmetry, the upper bound is wrong with the same probability.

    Args:
        m: The number of values of one set.
        n: The number of values of the other set.

    Returns:
        The rank k; 0 for too few values, for which even rank 1 is wrong too often.
    """
    if m * n > MAX_QUOTIENTS_TO_COUNT and min(m, n) >= MIN_FOR_NORMAL:
        return _rank_by_normal_distribution(m, n)  # nearly the rank that a count gives, which would take too long
    # The k-th least quotient lies above the true ratio if fewer than k quotients lie below it. To know how likely that
    # is, divide the numerators by the true ratio. Both sets then have one distribution, so all rankings of the m + n
    # values are equally likely. A quotient was below the true ratio if its numerator now ranks below its denominator.
    # The number of such pairs is Mann and Whitney's U of the ranking.
    rankings_by_u = _rankings_by_u(m, n)  # [1, 1, 2, 3, ...] for 5 and 5 values: 3 of the 252 rankings have U = 3
    # So rank k is wrong in the rankings with U = 0 to U = k - 1.
    failing_rankings = itertools.accumulate(rankings_by_u)  # 1 for rank 1, 2 for rank 2, then 4, 7, ...
    most_failing = (1 - CONFIDENCE) / 2 * math.comb(m + n, m)  # 2.5 % of 252 rankings are 6.3
    usable_ranks = [rank for rank, failing in enumerate(failing_rankings, 1) if failing <= most_failing]
    return max(usable_ranks, default=0)


def _rank_by_normal_distribution(m: int, n: int) -> int:
    """Return about the greatest k for which fewer than k quotients lie below the true ratio in at most 2.5 % of cases.

    The quotients are the m * n of a value of one set by a value of the other. The number U of those below the true
    ratio is nearly normal for many values (Mann and Whitney, Annals of Mathematical Statistics 18, 1947). An exact
    count gives the same rank for 50 and 50 values, 966. For 200 and 200 values it gives 17735, and this function gives
    17734.

    Args:
        m: The number of values of one set, 10 or more.
        n: The number of values of the other set, 10 or more.
    """
    mean = m * n / 2  # of U
    deviation = math.sqrt(m * n * (m + n + 1) / 12)
    normal_quantile = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)  # 1.96
    # U is below mean - 1.96 * deviation in 2.5 %. U is a whole number, so U < k stands for all values up to k - 1/2,
    # and the greatest k is the greatest whole number with k - 1/2 <= mean - 1.96 * deviation.
    return math.floor(mean + 0.5 - normal_quantile * deviation)


def _rankings_by_u(m: int, n: int) -> list[int]:
    """Return how many rankings of two sets of values have U = 0, how many have U = 1, and so on up to U = m * n.

    Mann and Whitney's U is the number of pairs of a value of the first set and a lower value of the second set. For
    m = 1 and n = 2 the counts are [1, 1, 1], because 0, 1 or 2 values of the second set may be below the single value.
    For m = 2 and n = 2 they are [1, 1, 2, 1, 1]. They do not change if the two sets change places.

    Args:
        m: The number of values of the first set.
        n: The number of values of the second set.
    """
    # The counts are the coefficients of a polynomial in x, the Gaussian binomial coefficient
    #     (1 - x^(n+1)) / (1 - x) * (1 - x^(n+2)) / (1 - x^2) * ... * (1 - x^(n+m)) / (1 - x^m)
    # (Andrews, The Theory of Partitions, 1976, section 3.2). After i of these factors they are those of i and n values.
    # So the smaller set is the one that grows here.
    smaller, larger = sorted((m, n))
    counts = [1]  # one ranking of no values and `larger` values
    for size in range(1, smaller + 1):
        counts += [0] * larger
        # Multiplied by 1 - x^(larger + size): from the end, as each count still needs an earlier one as it was
        for u in reversed(range(larger + size, len(counts))):
            counts[u] -= counts[u - larger - size]
        # Divided by 1 - x^size
        for u in range(size, len(counts)):
            counts[u] += counts[u - size]
    return counts
