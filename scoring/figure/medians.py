"""The 95 % intervals of a median and of the ratio of two medians, for values of any distribution."""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence

from runlog.stats import CONFIDENCE


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median as (low, high).

    - Fewer than five values: None.
    - Five values: the least and the greatest, although their confidence is only 93.75 %.
    - Otherwise each bound lies between two neighbouring values, so that the confidence is 95 %.
    """
    n = len(values)
    if n < 5:
        return None
    ordered = sorted(values)
    if n == 5:
        return ordered[0], ordered[-1]

    # No depth has a confidence of exactly 95 %: the outer one has more, and the inner one has less.
    depth = _deepest_of_enough_confidence(n)
    outer_low, outer_high = _interval_at_depth(depth, ordered)
    inner_low, inner_high = _interval_at_depth(depth + 1, ordered)
    inner_weight = _weight_of_inner_bounds(depth, n)
    low = outer_low + inner_weight * (inner_low - outer_low)
    high = outer_high + inner_weight * (inner_high - outer_high)
    return low, high


def _interval_at_depth(depth: int, ordered: Sequence[float]) -> tuple[float, float]:
    """Return the interval from the `depth`-th least value to the `depth`-th greatest, of values in ascending order."""
    return ordered[depth - 1], ordered[-depth]


def _deepest_of_enough_confidence(n: int) -> int:
    """Return the greatest depth whose interval of the median has a confidence of 95 % or more, for n >= 6 values."""
    depth = 1
    while _confidence_at_depth(depth + 1, n) >= CONFIDENCE:
        depth += 1
    return depth


def _weight_of_inner_bounds(depth: int, n: int) -> float:
    """Return where the 95 % bounds lie between those of `depth` (0) and those one deeper (1).

    See Hettmansperger and Sheather, Statistics & Probability Letters 4, 1986.
    """
    outer_confidence = _confidence_at_depth(depth, n)
    inner_confidence = _confidence_at_depth(depth + 1, n)
    share = (outer_confidence - CONFIDENCE) / (outer_confidence - inner_confidence)
    # The weight is not `share`, because confidence does not change linearly between the bounds.
    return (n - depth) * share / (depth + (n - 2 * depth) * share)


def _confidence_at_depth(depth: int, n: int) -> float:
    """Return the probability that the median lies between the `depth`-th least and the `depth`-th greatest of n values.

    The median lies outside if fewer than `depth` of the values are on one side of it. Each value is on either side
    with a probability of 1/2.
    """
    return 1 - 2 * float(math.fsum(math.comb(n, count) for count in range(depth)) / 2**n)


def median_ratio_interval(base: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of median(other) / median(base) as (low, high); None for too few values.

    It is the interval of Hodges and Lehmann (Annals of Mathematical Statistics 34, 1963): each value of `other` is
    divided by each value of `base`, and the bounds are the k-th least and the k-th greatest of these quotients. It
    holds 95 % whatever the distribution, if both sets have the same one but for a factor. That factor is the ratio.
    `_rank_of_bounds` gives k.

    The interval is widened if the ratio of the two medians lies outside.
    """
    rank = _rank_of_bounds(len(base), len(other))
    if rank == 0:
        return None

    quotients = sorted(other_value / base_value for base_value, other_value in itertools.product(base, other))
    low = quotients[rank - 1]
    high = quotients[-rank]
    ratio = statistics.median(other) / statistics.median(base)
    return min(ratio, low), max(ratio, high)


def _rank_of_bounds(m: int, n: int) -> int:
    """Return the rank k for a 95 % interval of the ratio of two sets, of m and n values; 0 for too few values.

    The interval runs from the k-th least of their m * n quotients to the k-th greatest. For 5 and 5 values k is 3.

    Let U be the number of quotients below the true ratio. The true ratio lies below the interval if U < k, and above it
    with the same probability. So k is the greatest rank for which U < k has a probability of 2.5 % or less.
    """
    # Divided by the true ratio, the two sets have one distribution. So all rankings of their values are equally
    # probable, and U is the statistic of Mann and Whitney.
    most_rankings = (1 - CONFIDENCE) / 2 * math.comb(m + n, m)
    rankings_below_rank = list(itertools.accumulate(_rankings_by_u(m, n)))  # of U < 1, U < 2, ... in ascending order
    return bisect.bisect_right(rankings_below_rank, most_rankings)  # how many of them are at most `most_rankings`


def _rankings_by_u(m: int, n: int) -> list[int]:
    """Return how many rankings of m and n values have each Mann-Whitney U, as a list by U from 0 to m * n.

    U is the number of pairs in which the first set has the greater value. For m = 1 and n = 2: [1, 1, 1].

    The counts follow from those of smaller sets (Mann and Whitney, Annals of Mathematical Statistics 18, 1947). Take
    away the greatest of all values:

    - It was of the first set: it is greater than all n values of the second. So m - 1 and n values with U - n are left.
    - It was of the second set: it adds nothing to U. So m and n - 1 values with the same U are left.
    """
    counts_by_n = [[1] for _ in range(n + 1)]  # of no value in the first set and 0 to n in the second: U is 0
    for _ in range(m):
        counts_of_smaller_m = counts_by_n
        counts_by_n = [[1]]  # of no value in the second set: U is 0
        for size in range(1, n + 1):
            first_has_greatest = [0] * size + counts_of_smaller_m[size]
            second_has_greatest = counts_by_n[size - 1]
            both = itertools.zip_longest(first_has_greatest, second_has_greatest, fillvalue=0)
            counts_by_n.append([first + second for first, second in both])
    return counts_by_n[n]
