"""Finds the slow nodes or links of a fleet by the logarithms of their times.

Outliers are found by Rosner's generalized test (Technometrics 25, 1983). It sets aside the values farthest from the
median one after the other, so that several outliers do not hide each other. Each is compared with the mean and the
standard deviation of the values that are left.

That test is weak for a few nodes: three or five others show little of how healthy nodes differ. So there is a second
criterion: a minority that takes over twice the time of all others is slow, too.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from program.arrays import Array
from runlog import stats
from scoring.figure.calibration import smallest_difference

MIN_NODES = 4  # of three the odd one cannot be told
# Rosner's test consists of several tests, each of which may name a healthy node. So the chance of a false alarm in any
# of them is up to 2.2 times the chance in one of them at 5 to 16 nodes, and the same as in one at 64 nodes (simulated
# with a normal distribution).
ALARM_INFLATION = 2.0
MIN_DEVIATION = 1e-9  # of logarithms of times: equal ones have none to divide by
MIN_T = 3.0  # least distance of an outlier in standard errors, even if `alpha` allows less
MIN_MINORITY_RATIO = 2.0  # of times: healthy machines do not differ by so much


# ---- the level of a node or link over its turns


def level_of(log_ratios: Sequence[float]) -> float:
    """Return the level of a node or link: a robust mean (Hodges-Lehmann) of the logarithms of its times.

    It is the median of the means of all pairs of values. Each value is also paired with itself. The estimate varies
    less than the median of the values.

    Args:
        log_ratios: A logarithm for each turn (a repetition of the measurement): either the log ratio, log(time / usual
            time), or log(time). A log ratio of 0.05 is about 5 % slower.
    """
    pairs = itertools.combinations_with_replacement(log_ratios, 2)
    return statistics.median((first + second) / 2 for first, second in pairs)


def error_of_level(log_ratios: Sequence[float]) -> float:
    """Return the standard error of `level_of(log_ratios)`, the robust mean (Hodges-Lehmann) of n values.

        error = sqrt(pi / 3) * deviation / sqrt(n)

    `deviation` is the standard deviation of a value, estimated by the median absolute deviation (MAD) of all n. In
    normal noise the variance of the robust mean is pi / 3 times the variance of the plain mean.

    Args:
        log_ratios: A logarithm for each turn (a repetition of the measurement) of a node or link: either the log ratio,
            log(time / usual time), or log(time).
    """
    median = statistics.median(log_ratios)
    mad = statistics.median(abs(value - median) for value in log_ratios)
    deviation = 1.4826 * mad  # the standard deviation of a normal distribution with this MAD
    return math.sqrt(math.pi / 3) * deviation / math.sqrt(len(log_ratios))


# ---- which of several are slow


def find_slow(log_ratios: Mapping[str, float], *, noise: float, alpha: float) -> list[str]:
    """Return the names of the nodes or links that are slow compared with the others.

    For example, {"a": 0.0, "b": 0.01, "c": -0.01, "d": 1.1} with a `noise` of 0.01 gives ["d"], which takes about 3
    times as long as each of the others, because exp(1.1) is 3.0.

    Args:
        log_ratios: For each name the logarithm of a ratio of times, such as log(time / usual time): 0.05 is about 5 %
            slower.
        noise: The standard error of a log ratio.
        alpha: The accepted chance that the outlier test finds any name in a healthy fleet.

    Returns:
        The names in the order of `log_ratios`. The list is empty for fewer than MIN_NODES (4), because it is then
        unclear what is usual.
    """
    if len(log_ratios) < MIN_NODES:  # the usual time is unclear
        return []
    median = statistics.median(log_ratios.values())
    distances = {name: log_ratio - median for name, log_ratio in log_ratios.items()}
    outliers = _find_outliers(distances, noise=noise, alpha=alpha)  # among many names even by a few percent
    minority = _find_slow_minority(distances, noise=noise)  # over twice as slow, also among a few names
    return [name for name in log_ratios if name in outliers or name in minority]


def _find_outliers(distances: Mapping[str, float], *, noise: float, alpha: float) -> set[str]:
    """Return the names of slow nodes or links, by Rosner's test for outliers (Technometrics 25, 1983).

    The distances are sorted by their size without the sign: 0, 0.01, -0.01, -0.02, 0.5, -0.6, 0.7. The first one far
    above those before it is 0.5. All from there on are outliers, and the names of the slow ones are returned: those
    with 0.5 and 0.7. Distances by which healthy machines may differ, such as 0.004, are left out, too.

    Args:
        distances: For each node or link its log ratio (0.05 is about 5 % slower) minus the median of these: above 0 if
            it is slower than most.
        noise: The standard error of a distance.
        alpha: The accepted chance that any name is returned in a healthy fleet.
    """
    from_near_to_far = sorted(distances, key=lambda name: abs(distances[name]))
    values = np.array([distances[name] for name in from_near_to_far])
    # `_first_slow_outlier` tests one value after the other. All tests together give up to about twice the false alarms
    # of one, so ALARM_INFLATION is 2 and each test gets half of `alpha`.
    alpha_of_a_test = alpha / ALARM_INFLATION
    first = _first_slow_outlier(values, noise=noise, alpha=alpha_of_a_test)  # an index: 4 in the example
    if first is None:
        return set()
    # By Rosner's rule the values farther out are outliers, too, even if their own tests fail because of each other.
    outliers = from_near_to_far[first:]  # those with 0.5, -0.6 and 0.7
    least_distance = smallest_difference()  # by so much healthy machines may differ, such as 0.004
    return {name for name in outliers if distances[name] > least_distance}  # without the fast ones, such as -0.6


def _first_slow_outlier(values: Array, *, noise: float, alpha: float) -> int | None:
    """Return the index of the first value that lies far above the values before it; None if there is none.

    The first values, just more than half, are taken to be usual. Only those after them are tested, one after the other.
    For [0, 0.01, -0.01, 0.5, -0.6] the result is 3: the values at 0 to 2 are usual, and 0.5 lies far above them. The
    index of a value far below them, such as -0.6, is never returned.

    Args:
        values: Distances from the median, sorted by their size without the sign. Slow nodes or links are above 0.
        noise: The standard error of a value.
        alpha: The accepted chance of a false alarm in each test.
    """
    usual = len(values) // 2 + 1  # how many are not tested: more than half of a fleet cannot be unusual
    for index in range(usual, len(values)):
        # Whether it lies above the mean of those before it by more standard errors than chance explains.
        if _is_slow_outlier(float(values[index]), values[:index], noise=noise, alpha=alpha):
            return index
    return None


def _is_slow_outlier(farthest: float, others: Array, *, noise: float, alpha: float) -> bool:
    """Return whether the farthest of several values lies above the others by more than chance explains.

    It is a one-sided t-test: a value far below the others is not an outlier here. At MIN_T (3) standard errors above
    their mean or less, a value is not an outlier either, whatever `alpha` is.

    Args:
        farthest: The value that is farthest from the median. Values are logarithms of times, minus their median, so a
            slow node or link has a high value.
        others: All values that are nearer to the median.
        noise: The standard error of a value. It takes the place of the deviation of `others` if that is smaller.
        alpha: The accepted chance of a false alarm.
    """
    # How far the value lies above the mean of `others`: 5.0 is five standard errors.
    t = _standard_errors_above_mean(farthest, others, noise=noise)
    if t <= MIN_T:
        return False
    # As in a plain t-test. If `noise` took the deviation's place, this is cautious: with more degrees of freedom the
    # same `t` would be less likely by chance.
    degrees_of_freedom = len(others) - 1
    chance_of_one_value = 1 - stats.t_cdf(t, degrees_of_freedom)  # that one healthy value lies so far above
    # Bonferroni's correction: each of the values could have been the farthest.
    number_of_values = len(others) + 1
    chance_of_any_value = chance_of_one_value * number_of_values
    return chance_of_any_value <= alpha


def _standard_errors_above_mean(value: float, others: Array, *, noise: float) -> float:
    """Return how many standard errors a value lies above the mean of `others`."""
    # Few values may be near each other by chance, so their deviation counts as no less than the noise.
    deviation = max(float(others.std(ddof=1)), noise, MIN_DEVIATION)
    error_of_difference = deviation * math.sqrt(1 + 1 / len(others))  # between one value and the mean of the others
    return (value - float(others.mean())) / error_of_difference


def _find_slow_minority(distances: Mapping[str, float], *, noise: float) -> set[str]:
    """Return the names of a slow minority: fewer than half of the nodes or links, each far slower than all others.

    Each of them must take over MIN_MINORITY_RATIO (2) times as long as each of the others, and still more if the
    noise is large. For example, five nodes take 0.9, 1, 1.1, 5 and 6 s. Their distances are log(time / 1.1 s): -0.20,
    -0.10, 0, 1.51 and 1.70. The last two nodes are returned, because the gap from 0 to 1.51 is a factor of 4.5.

    Args:
        distances: For each node or link the logarithm of a ratio of times, such as log(its time / the usual time),
            minus the median of all these logarithms: 0.05 is about 5 % slower than most.
        noise: The standard error of a distance.

    Returns:
        The names of the largest such minority; empty if there is none.
    """
    from_slow_to_fast = sorted(distances, key=lambda name: -distances[name])  # the largest distance first
    # In logarithms a factor of 2 is a difference of log(2), 0.69. Three standard errors are added for the noise.
    least_gap = math.log(MIN_MINORITY_RATIO) + 3 * noise
    largest_minority = (len(distances) - 1) // 2  # less than half
    for size in range(largest_minority, 0, -1):  # the largest first, because the first that fits is returned
        minority = from_slow_to_fast[:size]  # the last of these is the fastest of the minority
        others = from_slow_to_fast[size:]  # the first of these is the slowest of the others
        gap = distances[minority[-1]] - distances[others[0]]  # 1.51 - 0 in the example
        if gap > least_gap:
            return set(minority)
    return set()
