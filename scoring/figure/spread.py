"""Means, spreads and 95 % intervals of a few numbers; each says how it was made."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.stats import CONFIDENCE, t_cdf, t_quantile

LEAST_WINDOWS = 8  # of one run for an interval


def sd(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None of fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def relative_sd(values: Sequence[float]) -> float:
    """Sample standard deviation over the mean of two values or more."""
    deviation = sd(values)
    assert deviation is not None, "a deviation takes two values or more"
    return deviation / (math.fsum(values) / len(values))


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean; None of fewer than two values."""
    mean = mean_of(values)
    if mean is None:
        return None
    half = t_quantile(mean.freedom) * mean.error
    return mean.value - half, mean.value + half


def around(centre: float, share: float) -> tuple[float, float]:
    """`centre` -/+ a share of it on the scale of logarithms (delta method): a rate or a time is never negative."""
    return centre * math.exp(-share), centre * math.exp(share)


def half_share(interval: tuple[float, float]) -> float:
    """Half the width of an interval as a share of its centre on the scale of logarithms: the inverse of `around`."""
    low, high = interval
    return math.log(high / low) / 2


def series_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of one run's windows, which follow each other; None of fewer than 8.

    None too where half its width exceeds the mean, as one window does that is many times as long as the others.

    Batch means (Conway, Management Science 10, 1963) of 30 batches or more where there are 60 windows, and Student's t
    over what correlation is left: first order, its coefficient unknown, as in Zellner and Tiao (JASA 59, 1964).
    """
    if len(values) < LEAST_WINDOWS:
        return None

    mean = math.fsum(values) / len(values)
    batches = _batch_means(values)
    centre = math.fsum(batches) / len(batches)
    deviations = [value - centre for value in batches]
    if math.fsum(deviation * deviation for deviation in deviations) <= 1e-24 * centre * centre:
        return mean, mean

    half = _half_width(_first_order(deviations), freedom=len(deviations) - 1)
    return around(mean, half / mean) if half < mean else None


def _batch_means(values: Sequence[float]) -> list[float]:
    """The means of 30 batches or more of consecutive values where there are 60 values; else the values themselves.

    What does not fill a batch is left out at the start.
    """
    size = len(values) // 30 if len(values) >= 60 else 1
    first = len(values) % size
    return [math.fsum(values[at : at + size]) / size for at in range(first, len(values), size)]


class Correlation(NamedTuple):
    """A first-order correlation that the values may have."""

    weight: float  # its posterior probability
    error: float  # the standard error of the mean under it


def _half_width(correlations: Sequence[Correlation], *, freedom: int) -> float:
    """The distance from the mean beyond which t leaves 5 %, averaged over the correlations; halved to a millionth."""
    quantile = t_quantile(freedom)
    low = quantile * min(correlation.error for correlation in correlations)
    high = quantile * max(correlation.error for correlation in correlations)
    while high - low > 1e-6 * high:
        half = (low + high) / 2
        outside = math.fsum(one.weight * 2 * (1 - t_cdf(half / one.error, freedom)) for one in correlations)
        if outside > 1 - CONFIDENCE:
            low = half
        else:
            high = half
    return high


def _first_order(deviations: Sequence[float]) -> list[Correlation]:
    """Each correlation from -0.5 to 0.95 in steps of 0.05, all equally likely beforehand; the unlikely ones left out.

    `deviations` are those of the values from their mean.
    """
    n = len(deviations)
    squares = math.fsum(deviation * deviation for deviation in deviations)
    squares_of_ends = deviations[0] ** 2 + deviations[-1] ** 2
    products = math.fsum(one * following for one, following in itertools.pairwise(deviations))
    likelihoods = []
    errors = []
    for step in range(-10, 20):
        r = step / 20
        # Least squares under the correlation: the residuals' weighted sum, less what the shift of the mean explains.
        weight_of_mean = (1 - r) * (n - (n - 2) * r)
        shift = (1 - r) * r * (deviations[0] + deviations[-1])
        left = squares + r * r * (squares - squares_of_ends) - 2 * r * products - shift * shift / weight_of_mean
        left = max(left, 1e-12 * squares)
        likelihoods.append(0.5 * math.log((1 - r * r) / weight_of_mean) - (n - 1) / 2 * math.log(left))
        of_mean = (1 + 2 * r / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)) / (n * (1 - r * r))
        errors.append(math.sqrt(of_mean * left / (n - 1)))

    top = max(likelihoods)
    total = math.fsum(math.exp(likelihood - top) for likelihood in likelihoods)
    likely = []
    for likelihood, error in zip(likelihoods, errors, strict=True):
        weight = math.exp(likelihood - top) / total
        if weight > 1e-4:
            likely.append(Correlation(weight, error))
    return likely


@dataclass(frozen=True)
class Estimate:
    """A figure of several runs with its standard error, to be judged by Student's t."""

    value: float
    error: float
    freedom: float

    @property
    def interval_95(self) -> tuple[float, float]:
        """Positive whatever the spread."""
        return around(self.value, t_quantile(self.freedom) * self.error / self.value)


def mean_of(values: Sequence[float], *, dropped: int = 0) -> Estimate | None:
    """The mean and its error (Student, Biometrika 6, 1908); None where fewer than two values make it.

    An olympic mean leaves out the `dropped` best and as many worst values (Tukey and McLaughlin, Sankhya A 25, 1963).
    Its error is that of the winsorized values (Yuen, Biometrika 61, 1974), so the values left out may be infinite, as
    the time of a run that did not converge is.
    """
    kept = sorted(values)[dropped : len(values) - dropped]
    count = len(kept)
    freedom = count - 1
    if freedom < 1:
        return None

    winsorized = [kept[0]] * dropped + kept + [kept[-1]] * dropped
    deviation = sd(winsorized)
    assert deviation is not None, "two values or more are left"
    error = deviation / math.sqrt(count * freedom / (len(values) - 1))
    return Estimate(math.fsum(kept) / count, error, freedom)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median by order statistics, whatever the distribution; None of fewer than five values.

    From six on interpolated between two of them (Hettmansperger and Sheather, Statistics & Probability Letters 4,
    1986). Five reach 93.75 %, from the least to the greatest.
    """
    n = len(values)
    if n < 5:
        return None
    ordered = sorted(values)

    def confidence(depth: int) -> float:
        return 1 - 2 * math.fsum(math.comb(n, k) for k in range(depth)) / 2**n

    depth = 1
    while confidence(depth + 1) >= CONFIDENCE:
        depth += 1
    if confidence(depth) < CONFIDENCE:
        return ordered[0], ordered[-1]
    share = (confidence(depth) - CONFIDENCE) / (confidence(depth) - confidence(depth + 1))
    weight = (n - depth) * share / (depth + (n - 2 * depth) * share)
    low, high = ordered[depth - 1], ordered[n - depth]
    return low + weight * (ordered[depth] - low), high + weight * (ordered[n - depth - 1] - high)


def ratio_interval(base: Estimate, other: Estimate) -> tuple[float, float]:
    """95 % interval of other / base: Welch's t on the logarithms (Biometrika 34, 1947; for trimmed means Yuen 1974)."""
    ratio = other.value / base.value
    variance_of_base = (base.error / base.value) ** 2
    variance_of_other = (other.error / other.value) ** 2
    variance = variance_of_base + variance_of_other
    if variance == 0:
        return ratio, ratio
    freedom = variance**2 / (variance_of_base**2 / base.freedom + variance_of_other**2 / other.freedom)
    return around(ratio, t_quantile(freedom) * math.sqrt(variance))


# The quantile of t for them, 98 % both ways. No mean evens out their tails: at 96.5 %, which holds 95 % of runs of
# skewness 1, 9 % of the pairs of equal systems of MLPerf v1.0 were called different (benchmarks/calibration.py).
SINGLE_RUNS = 0.99


def single_run_interval(
    ratio: float, relative_sd: float, freedom: float, counts: tuple[int, int]
) -> tuple[float, float]:
    """95 % interval of a ratio of means of which one is of a single run, by a deviation of runs that others showed."""
    return around(ratio, t_quantile(freedom, SINGLE_RUNS) * relative_sd * math.sqrt(1 / counts[0] + 1 / counts[1]))


def median_ratio_interval(base: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the ratio of medians, for two distributions of the same shape; None of too few values.

    Mann and Whitney's test turned round: ordered quotients of single values (Hodges and Lehmann, Annals of
    Mathematical Statistics 34, 1963).
    """
    left_out = _quotients_left_out(len(base), len(other))
    if left_out == 0:
        return None

    quotients = []
    for one in base:
        quotients += [another / one for another in other]
    quotients.sort()
    figure = statistics.median(other) / statistics.median(base)
    return min(figure, quotients[left_out - 1]), max(figure, quotients[-left_out])


def _quotients_left_out(m: int, n: int) -> int:
    """How many ordered quotients of m and n values lie outside the interval at each end.

    Of all ways to rank m + n values, those with Mann and Whitney's U are a Gaussian binomial coefficient.
    """
    ways = [1] + [0] * (m * n)  # by U
    for k in range(1, m + 1):
        for u in range(m * n, n + k - 1, -1):
            ways[u] -= ways[u - n - k]
        for u in range(k, m * n + 1):
            ways[u] += ways[u - k]

    left_out = 0
    below = 0
    while 2 * (below + ways[left_out]) <= (1 - CONFIDENCE) * math.comb(m + n, m):
        below += ways[left_out]
        left_out += 1
    return left_out


def outlier(values: Sequence[float]) -> int | None:
    """The value that does not belong to the others at 1 %, by its place: Grubbs (Technometrics 11, 1969)."""
    n = len(values)
    deviation = sd(values)
    if n < 3 or not deviation:
        return None

    mean = math.fsum(values) / n
    distances = [abs(value - mean) for value in values]
    at = distances.index(max(distances))
    t = t_quantile(n - 2, 1 - 0.01 / (2 * n))
    limit = (n - 1) / math.sqrt(n) * math.sqrt(t * t / (n - 2 + t * t))
    return at if distances[at] / deviation > limit else None
