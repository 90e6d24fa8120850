"""Means and spreads of a few numbers, the 95 % intervals of means and of their ratios, and the outlier among them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.stats import t_quantile


def sd(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation of some values, in their unit.

    Args:
        values: The values.

    Returns:
        The deviation; None for fewer than two values.
    """
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def relative_sd(values: Sequence[float]) -> float:
    """Return the sample standard deviation of some values as a share of their mean, such as 0.01.

    Args:
        values: Two values or more.
    """
    deviation = sd(values)
    assert deviation is not None, "a deviation takes two values or more"
    return deviation / (math.fsum(values) / len(values))


class PooledSd(NamedTuple):
    """A relative standard deviation within several sets of values."""

    relative_sd: float
    freedom: int  # degrees of freedom


def pooled_sd(sets: Iterable[Sequence[float]]) -> PooledSd | None:
    """Return one relative standard deviation of values within several sets, such as the runs of each system.

    It is the root of the sets' mean squared relative deviation. A set of n values weighs n - 1, its degrees of freedom.

    Args:
        sets: Sets of values, each compared only with its own mean. A set of a single value does not count.

    Returns:
        The deviation as a share of the mean, with its degrees of freedom; None if no set has two values.
    """
    squares = 0.0
    freedom = 0
    for values in sets:
        if len(values) > 1:
            freedom_of_set = len(values) - 1
            squares += freedom_of_set * relative_sd(values) ** 2
            freedom += freedom_of_set
    if freedom == 0:
        return None
    return PooledSd(math.sqrt(squares / freedom), freedom)


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of some values by Student's t.

    Args:
        values: The values.

    Returns:
        The bounds (low, high); None for fewer than two values.
    """
    mean = mean_of(values)
    if mean is None:
        return None
    half = t_quantile(mean.freedom) * mean.error
    return mean.value - half, mean.value + half


def around(centre: float, half_width: float) -> tuple[float, float]:
    """Return the interval (centre * exp(-half_width), centre * exp(half_width)).

    The bounds are always above zero, because a rate or a time is never negative.

    Args:
        centre: The figure that the interval is about, above zero.
        half_width: Half the width on the scale of logarithms: 0.1 gives about 10 % of the centre to both sides.
    """
    return centre * math.exp(-half_width), centre * math.exp(half_width)


def half_width(interval: tuple[float, float]) -> float:
    """Return half the width of an interval on the scale of logarithms: what `around` makes it of.

    Args:
        interval: The bounds (low, high), both above zero.
    """
    low, high = interval
    return math.log(high / low) / 2


@dataclass(frozen=True)
class Estimate:
    """A figure of several runs with its standard error, to be judged by Student's t."""

    value: float
    error: float
    freedom: float

    @property
    def interval_95(self) -> tuple[float, float]:
        """Return the interval (low, high), which lies above zero whatever the spread."""
        return around(self.value, t_quantile(self.freedom) * self.error / self.value)


def mean_of(values: Sequence[float]) -> Estimate | None:
    """Return the mean of values with its standard error, sd / sqrt(n); None for fewer than two values."""
    return olympic_mean_of(values, dropped=0)


def olympic_mean_of(values: Sequence[float], *, dropped: int) -> Estimate | None:
    """Return the mean of values without the least and the greatest ones, with its standard error.

    Args:
        values: The values. Those that are dropped may be infinite.
        dropped: How many values are left out at each end; 0 for the plain mean.

    Returns:
        The mean; None if fewer than two values are kept.
    """
    kept = sorted(values)[dropped : len(values) - dropped]
    if len(kept) < 2:
        return None
    mean = math.fsum(kept) / len(kept)
    return Estimate(mean, _error_of_trimmed_mean(kept, dropped), freedom=len(kept) - 1)


def _error_of_trimmed_mean(kept: Sequence[float], dropped: int) -> float:
    """Return the standard error of a mean without the least and the greatest values.

    It is Yuen's (Biometrika 61, 1974), for a mean of h kept values out of n:

        sd / sqrt(h * (h - 1) / (n - 1))

    sd is the deviation of all n values, with each dropped one replaced by the nearest kept one (winsorized). If 2, 3
    and 4 are kept of 5 values, it is that of 2, 2, 3, 4 and 4: 1.0. The error is 1.0 / sqrt(3 * 2 / 4) = 0.82. If none
    is dropped, h is n, h - 1 cancels n - 1, and the error is the usual sd / sqrt(n).

    Args:
        kept: The values that are kept, in ascending order, two or more.
        dropped: How many values were left out at each end.
    """
    winsorized = [kept[0]] * dropped + [*kept] + [kept[-1]] * dropped
    deviation = sd(winsorized)
    assert deviation is not None, "two values or more are kept"
    n = len(winsorized)
    h = len(kept)
    return deviation / math.sqrt(h * (h - 1) / (n - 1))


def has_no_width(interval: tuple[float, float]) -> bool:
    """Return whether the two bounds of an interval are equal, but for rounding.

    Such an interval would wrongly say that a figure is exact.

    Args:
        interval: The bounds (low, high).
    """
    low, high = interval
    return math.isclose(low, high, rel_tol=1e-12)


# Where one mean has at most this share of the other's degrees of freedom, Welch's t holds too seldom. For 2 runs
# against 10, the interval held the true ratio in 89 to 95 %, by which of them scatter more. Cochran and Cox's held it
# in 94 to 98 % (simulated, tests/scoring/test_mean_ratio.py).
GREATEST_SHARE_OF_FREEDOM = 1 / 3


def mean_ratio_interval(base: Estimate, other: Estimate) -> tuple[float, float]:
    """Return the 95 % interval (low, high) of the ratio of two means, other / base, by `name_of_ratio_t`.

    The interval is computed for log(ratio) = log(other) - log(base), as log(ratio) - h to log(ratio) + h. For the ratio
    itself the bounds are ratio * exp(-h) and ratio * exp(h). If both standard errors are 0, both bounds are the ratio.

    The two standard errors may differ (Welch, Biometrika 34, 1947). This also holds for olympic means, which leave out
    the least and the greatest values (Yuen, Biometrika 61, 1974).

    Args:
        base: The mean in the denominator, with its standard error and the degrees of freedom of this error.
        other: The mean in the numerator, with its standard error and the degrees of freedom of this error.
    """
    ratio = other.value / base.value
    variance = _variance_of_log(base) + _variance_of_log(other)  # of log(ratio), the difference of two logarithms
    if variance == 0:
        return ratio, ratio

    t = _t_by_cochran(base, other) if _one_has_few_values(base, other) else _t_by_welch(base, other)
    half_width_of_log = t * math.sqrt(variance)
    return around(ratio, half_width_of_log)  # ratio * exp(-half_width_of_log), ratio * exp(half_width_of_log)


def name_of_ratio_t(base: Estimate, other: Estimate) -> str:
    """Return whose t the interval of the ratio of two means takes: "Welch's t" or "Cochran and Cox's t"."""
    return "Cochran and Cox's t" if _one_has_few_values(base, other) else "Welch's t"


def _one_has_few_values(base: Estimate, other: Estimate) -> bool:
    """Return whether one of two means is of so few values, against the other, that Welch's t would be too small."""
    fewer, more = sorted([base.freedom, other.freedom])
    return fewer <= more * GREATEST_SHARE_OF_FREEDOM


def _t_by_welch(base: Estimate, other: Estimate) -> float:
    """Return Student's t at Welch's degrees of freedom of the sum of two variances, of which one is above 0."""
    variance_of_base = _variance_of_log(base)
    variance_of_other = _variance_of_log(other)
    variance = variance_of_base + variance_of_other
    freedom = variance**2 / (variance_of_base**2 / base.freedom + variance_of_other**2 / other.freedom)
    return t_quantile(freedom)


def _t_by_cochran(base: Estimate, other: Estimate) -> float:
    """Return the mean of the t of two means, weighted by their variances, of which one is above 0.

    Welch's degrees of freedom follow from the two deviations as measured. That of few values is often much too small by
    chance, which makes the freedom too great and the interval too narrow. Here each variance keeps its own t (Cochran
    and Cox, Experimental Designs, 2nd edition, 1957, section 4.14). 2 runs have a t of 12.7 and 10 runs one of 2.26.
    With equal variances the mean is 7.5.

    Args:
        base: The mean in the denominator.
        other: The mean in the numerator.
    """
    variance_of_base = _variance_of_log(base)
    variance_of_other = _variance_of_log(other)
    weighted = variance_of_base * t_quantile(base.freedom) + variance_of_other * t_quantile(other.freedom)
    return weighted / (variance_of_base + variance_of_other)


def _variance_of_log(estimate: Estimate) -> float:
    """Return the variance of log(value) of an estimate. Its standard error is about error / value."""
    return (estimate.error / estimate.value) ** 2


# Half the width is the t that lies below this probability: 98 % to both sides, because no mean evens out the tails of
# single runs. At 96.5 %, which holds 95 % of runs of skewness 1, 9 % of the pairs of equal systems of MLPerf v1.0 were
# called different (benchmarks/calibration.py).
SINGLE_RUN_PROBABILITY = 0.99


def single_value_interval(
    ratio: float, relative_sd: float, freedom: float, *, count: float, other_count: float
) -> tuple[float, float]:
    """Return the 95 % interval (low, high) of the ratio of two means, if one mean or both are single values.

    A single value, such as the figure of one run, does not show how far the runs of a system lie apart. So the caller
    gives the standard deviation of several runs that do. For example, two single runs have a ratio of 1.0, and 5 other
    runs of the system have a standard deviation of 0.8 %, with 4 degrees of freedom: the interval is (0.958, 1.043).

    Args:
        ratio: The ratio of the two means, above zero.
        relative_sd: The standard deviation of those several values / their mean, such as 0.008.
        freedom: The degrees of freedom of `relative_sd`.
        count: The number of values (runs or hosts) of one mean, such as 1. If the values do not weigh the same in the
            mean, their number counts as less (`IndependentValues.effective_count`).
        other_count: The number of values of the other mean, in the same way.
    """
    # For a 95 % interval, Student's t usually leaves 2.5 % to each side, which is right for values of a normal
    # distribution. Single runs lie far out more often, and no mean evens this out. So the t here leaves only 1 % to
    # each side: with a smaller one, too many pairs of equal systems of MLPerf v1.0 were called different.
    wider_t = t_quantile(freedom, SINGLE_RUN_PROBABILITY)  # 3.75 in the example
    half_width = wider_t * relative_sd * math.sqrt(1 / count + 1 / other_count)  # 3.75 * 0.008 * sqrt(2) = 0.042
    return around(ratio, half_width)  # ratio * exp(-half_width), ratio * exp(half_width)


def outlier(values: Sequence[float]) -> int | None:
    """Return the index of the one outlier among some values, by Grubbs' test at a significance of 1 %.

    See Grubbs, Technometrics 11, 1969.

    Args:
        values: The values, in any unit; all finite.

    Returns:
        The index; None if there is no outlier. Fewer than three values, or values that are all equal, have none.
    """
    n = len(values)
    deviation = sd(values)
    if n < 3 or not deviation:
        return None
    mean = math.fsum(values) / n
    distances = [abs(value - mean) for value in values]
    greatest_distance = max(distances)
    if greatest_distance / deviation <= _most_deviations_from_mean(n):
        return None
    return distances.index(greatest_distance)


def _most_deviations_from_mean(n: int) -> float:
    """Return Grubbs' limit: how many standard deviations the farthest of some values may lie from their mean.

    Args:
        n: The number of values, three or more.
    """
    # Each of the n values could be too high or too low, so each of these 2 * n cases gets an equal share of the 1 %.
    t = t_quantile(n - 2, 1 - 0.01 / (2 * n))
    return (n - 1) / math.sqrt(n) * math.sqrt(t * t / (n - 2 + t * t))
