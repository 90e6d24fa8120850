"""Means, spreads and 95 % intervals of a few numbers; each says how it was made."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.stats import CONFIDENCE, t_cdf, t_quantile

LEAST_WINDOWS = 8  # of one run for an interval
EQUAL_SQUARES = 1e-24  # relative: values whose squared deviations are less differ by rounding alone
COEFFICIENTS = [step / 20 for step in range(-10, 20)]  # of correlation between neighbours: -0.5 to 0.95
LEAST_PROBABILITY = 1e-4  # of a correlation that still counts


def sd(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation in the unit of the values; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def relative_sd(values: Sequence[float]) -> float:
    """Return the sample standard deviation of two values or more as a share of their mean."""
    deviation = sd(values)
    assert deviation is not None, "a deviation takes two values or more"
    return deviation / (math.fsum(values) / len(values))


class PooledSd(NamedTuple):
    """A relative standard deviation within several sets of values."""

    relative_sd: float
    freedom: int  # degrees of freedom


def pooled_sd(sets: Iterable[Sequence[float]]) -> PooledSd | None:
    """Return how far values lie apart within sets, as one relative standard deviation for all sets.

    The squares of the sets' own deviations are averaged. A set of n values weighs n - 1, its degrees of freedom, so
    that one of a single value does not count. Returns None where no set has two values.
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
    """Return the 95 % interval of the mean by Student's t, as (low, high); None for fewer than two values."""
    mean = mean_of(values)
    if mean is None:
        return None
    half = t_quantile(mean.freedom) * mean.error
    return mean.value - half, mean.value + half


def around(centre: float, share: float) -> tuple[float, float]:
    """Return the interval (low, high) around `centre` whose half-width is a share of it on the scale of logarithms.

    A share of 0.1 gives about 10 % to both sides. The bounds stay above zero (delta method), as a rate or a time is
    never negative.
    """
    return centre * math.exp(-share), centre * math.exp(share)


def half_share(interval: tuple[float, float]) -> float:
    """Return half the width of an interval as a share of its centre on the scale of logarithms.

    This is the inverse of `around`.
    """
    low, high = interval
    return math.log(high / low) / 2


def series_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of one run's windows as (low, high), for windows in their order.

    The windows of a run follow each other, so neighbours are correlated and the plain t interval would be too narrow.
    1. The values are averaged in batches of consecutive ones (Conway, Management Science 10, 1963).
    2. `_likely_correlations` returns how strongly neighbouring batches may be correlated, each strength with its
       probability: the few values do not say it exactly.
    3. `_half_width` averages the width of Student's t interval over these strengths (Zellner and Tiao, JASA 59, 1964).

    Batches that are equal but for rounding give an interval of no width. Returns None for fewer than LEAST_WINDOWS
    values, and where half the width would be as large as the mean: one window that is many times as long as the others
    makes it so.
    """
    if len(values) < LEAST_WINDOWS:
        return None

    mean = math.fsum(values) / len(values)
    batches = _batch_means(values)
    mean_of_batches = math.fsum(batches) / len(batches)
    deviations = [batch - mean_of_batches for batch in batches]
    squares = math.fsum(deviation * deviation for deviation in deviations)
    are_equal = squares <= EQUAL_SQUARES * mean_of_batches * mean_of_batches
    if are_equal:
        return mean, mean

    half = _half_width(_likely_correlations(deviations), freedom=len(deviations) - 1)
    if half >= mean:
        return None
    return around(mean, half / mean)


def _batch_means(values: Sequence[float]) -> list[float]:
    """Return the means of 30 batches or more of consecutive values, all of one size.

    Fewer than 60 values are returned as they are. The values that do not fill a batch are left out at the start: of 65
    values the first one is left out, and the means of 32 pairs are returned.
    """
    size = len(values) // 30 if len(values) >= 60 else 1
    first = len(values) % size
    return [math.fsum(values[at : at + size]) / size for at in range(first, len(values), size)]


class Correlation(NamedTuple):
    """A correlation between neighbours that a series of values may have."""

    probability: float  # given the values
    error: float  # standard error of the mean, if the correlation is this one


class SeriesSums(NamedTuple):
    """Sums over a series of deviations from its mean, of which the fit of any correlation is made."""

    length: int
    squares: float
    ends: float  # the first deviation plus the last one
    squares_of_ends: float
    products: float  # of each deviation and the next one


class CorrelationFit(NamedTuple):
    """The fit of a correlation between neighbours to a series of values."""

    log_likelihood: float  # but for a constant, which is the same for every correlation
    error: float  # standard error of the mean


def _half_width(correlations: Sequence[Correlation], *, freedom: int) -> float:
    """Return half the width of the 95 % interval of a mean, averaged over the correlations that its values may have.

    `freedom` is the degrees of freedom of Student's t. Each correlation gives the mean another standard error, and so
    an interval of another width. The half-width returned lies between the least and the greatest of them: it is the one
    beyond which the true mean lies with a probability of 5 %. Bisection finds it to a millionth.
    """
    quantile = t_quantile(freedom)
    low = quantile * min(correlation.error for correlation in correlations)
    high = quantile * max(correlation.error for correlation in correlations)
    while high - low > 1e-6 * high:
        half = (low + high) / 2
        if _chance_beyond(half, correlations, freedom) > 1 - CONFIDENCE:
            low = half
        else:
            high = half
    return high


def _chance_beyond(distance: float, correlations: Sequence[Correlation], freedom: int) -> float:
    """Return the probability that a mean is off by more than `distance`, to either side.

    It is the mean of that probability over the correlations, each weighted by its own.
    """
    weighted = []
    for correlation in correlations:
        chance = 2 * (1 - t_cdf(distance / correlation.error, freedom))
        weighted.append(correlation.probability * chance)
    return math.fsum(weighted)


def _likely_correlations(deviations: Sequence[float]) -> list[Correlation]:
    """Return the correlations between neighbours that a series may have, each with its probability.

    `deviations` are the values less their mean, in their order. Every coefficient of COEFFICIENTS is taken to be
    equally probable before the values are seen. Afterwards it is as probable as the values are likely under it. Those
    less probable than LEAST_PROBABILITY are left out.
    """
    sums = SeriesSums(
        length=len(deviations),
        squares=math.fsum(deviation * deviation for deviation in deviations),
        ends=deviations[0] + deviations[-1],
        squares_of_ends=deviations[0] ** 2 + deviations[-1] ** 2,
        products=math.fsum(one * following for one, following in itertools.pairwise(deviations)),
    )
    fits = [_fit(sums, coefficient) for coefficient in COEFFICIENTS]

    # Relative to the greatest one: the likelihoods themselves may be too small for a float.
    greatest = max(fit.log_likelihood for fit in fits)
    likelihoods = [math.exp(fit.log_likelihood - greatest) for fit in fits]
    total = math.fsum(likelihoods)
    likely = []
    for fit, likelihood in zip(fits, likelihoods, strict=True):
        probability = likelihood / total
        if probability > LEAST_PROBABILITY:
            likely.append(Correlation(probability, fit.error))
    return likely


def _fit(sums: SeriesSums, r: float) -> CorrelationFit:
    """Return how likely a series of values is, and the standard error of its mean, if its neighbours correlate by `r`.

    `sums` describe the series. The model is a first-order autoregression: each value's deviation is r times the one
    before plus noise of its own. The mean and the noise are fitted by generalized least squares. The likelihood is that
    of Zellner and Tiao (JASA 59, 1964), averaged over all means and noises that the series may have.
    """
    n = sums.length
    # The fitted mean weighs the two ends more, as they have one neighbour instead of two: it lies off the plain mean by
    # the shift over the weight.
    weight_of_mean = (1 - r) * (n - (n - 2) * r)
    shift_of_mean = (1 - r) * r * sums.ends
    weighted_squares = sums.squares + r * r * (sums.squares - sums.squares_of_ends) - 2 * r * sums.products
    noise = weighted_squares - shift_of_mean * shift_of_mean / weight_of_mean  # squares about the fitted mean
    noise = max(noise, 1e-12 * sums.squares)  # rounding may leave nothing, or less
    log_likelihood = 0.5 * math.log((1 - r * r) / weight_of_mean) - (n - 1) / 2 * math.log(noise)

    # The variance of the plain mean of n values with autocovariances r**lag / (1 - r * r), for noise of variance 1.
    variance = (1 + 2 * r / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)) / (n * (1 - r * r))
    return CorrelationFit(log_likelihood, error=math.sqrt(variance * noise / (n - 1)))


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


def mean_of(values: Sequence[float], *, dropped: int = 0) -> Estimate | None:
    """Return the mean of values with its standard error; None where fewer than two values make the mean.

    With `dropped` it is an olympic mean, which leaves out that many of the least values and as many of the greatest
    ones (Tukey and McLaughlin, Sankhya A 25, 1963). Its error is that of Yuen (Biometrika 61, 1974), for which each
    value left out is replaced by the nearest one that is kept. So the values left out may be infinite, as the time of a
    run that did not converge is. Without `dropped` the error is the usual one (Student, Biometrika 6, 1908).
    """
    kept = sorted(values)[dropped : len(values) - dropped]
    count = len(kept)
    freedom = count - 1
    if freedom < 1:
        return None

    with_replaced = [kept[0]] * dropped + kept + [kept[-1]] * dropped  # `kept` is in ascending order
    deviation = sd(with_replaced)
    assert deviation is not None, "two values or more are left"
    error = deviation / math.sqrt(count * freedom / (len(values) - 1))  # of all values: deviation / sqrt(count)
    return Estimate(math.fsum(kept) / count, error, freedom)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median as (low, high), for any distribution; None for fewer than five values.

    An interval from the d-th least value to the d-th greatest one is narrower, and holds the median less surely, the
    greater its depth d is. As d is a whole number, hardly any interval holds the median with 95 % exactly. So the
    bounds lie between two intervals: the deepest one that holds it with 95 % or more (`outer`) and the next deeper one
    (`inner`). See Hettmansperger and Sheather, Statistics & Probability Letters 4, 1986.

    Of five values even the widest interval, from the least to the greatest, has 93.75 %; it is returned as it is.
    """
    n = len(values)
    if n < 5:
        return None
    ordered = sorted(values)
    if _confidence_at_depth(1, n) < CONFIDENCE:
        return ordered[0], ordered[-1]

    depth = 1
    while _confidence_at_depth(depth + 1, n) >= CONFIDENCE:
        depth += 1
    outer = _confidence_at_depth(depth, n)
    inner = _confidence_at_depth(depth + 1, n)
    share = (outer - CONFIDENCE) / (outer - inner)  # of the way from `outer` to `inner`, by confidence
    weight = (n - depth) * share / (depth + (n - 2 * depth) * share)  # the same by value

    outer_low, inner_low = ordered[depth - 1], ordered[depth]
    inner_high, outer_high = ordered[-depth - 1], ordered[-depth]
    return outer_low + weight * (inner_low - outer_low), outer_high + weight * (inner_high - outer_high)


def _confidence_at_depth(depth: int, n: int) -> float:
    """Return the probability that the median lies between the `depth`-th least and the `depth`-th greatest of n values.

    It lies outside where fewer than `depth` values are on one side of it, and each value is on either side with 1/2.
    """
    return 1 - 2 * math.fsum(math.comb(n, count) for count in range(depth)) / 2**n


def has_no_width(interval: tuple[float, float]) -> bool:
    """Tell whether an interval has no width but for rounding, which would say that a figure is exact."""
    low, high = interval
    return math.isclose(low, high, rel_tol=1e-12)


def ratio_interval(base: Estimate, other: Estimate) -> tuple[float, float]:
    """Return the 95 % interval of the ratio other / base as (low, high), by Welch's t on the logarithms.

    The two may have unequal errors. Where both have none, the interval has no width. See Welch, Biometrika 34, 1947,
    and for olympic means Yuen, Biometrika 61, 1974.
    """
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
    """Return the 95 % interval (low, high) of a ratio of two means of which one or both are of a single run.

    `counts` are the numbers of runs of both. A single run does not show how far runs lie apart, so `relative_sd` is
    the relative standard deviation that other runs showed, with its degrees of freedom.
    """
    return around(ratio, t_quantile(freedom, SINGLE_RUNS) * relative_sd * math.sqrt(1 / counts[0] + 1 / counts[1]))


def median_ratio_interval(base: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of median(other) / median(base) as (low, high); None for too few values.

    Each value of `other` is divided by each of `base`. Of these quotients in ascending order, the interval runs from
    the one that `_rank_of_bounds` counts from the start to that counted from the end. It holds every ratio that the
    test of Mann and Whitney does not rule out (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963), if both
    sets have distributions of the same shape. It is widened where it would not hold the ratio of the medians itself.
    """
    rank = _rank_of_bounds(len(base), len(other))
    if rank == 0:
        return None

    quotients = []
    for base_value in base:
        quotients += [other_value / base_value for other_value in other]
    quotients.sort()
    low = quotients[rank - 1]
    high = quotients[-rank]
    ratio = statistics.median(other) / statistics.median(base)
    return min(ratio, low), max(ratio, high)


def _rank_of_bounds(m: int, n: int) -> int:
    """Return which of the m * n ordered quotients bound a 95 % interval, counted from each end; 0 for too few values.

    For 5 and 5 values it is 3: the interval runs from the third least quotient to the third greatest. If the two sets
    are alike, all rankings of the m + n values are equally probable. The result is the greatest rank for which those
    rankings that lie beyond the bounds, at both ends together, are 5 % of all at most.
    """
    rankings = _rankings_by_u(m, n)
    most_outside = (1 - CONFIDENCE) * math.comb(m + n, m)  # rankings at both ends together
    rank = 0
    outside_at_one_end = 0
    while 2 * (outside_at_one_end + rankings[rank]) <= most_outside:
        outside_at_one_end += rankings[rank]
        rank += 1
    return rank


def _rankings_by_u(m: int, n: int) -> list[int]:
    """Return a list of how many rankings of m and n values have the Mann-Whitney U of each index, from 0 to m * n.

    U is the number of pairs in which the value of the first set is the greater one. For 1 and 2 values the list is
    [1, 1, 1]: the one value may be greater than none, one or both of the others. The counts are the coefficients of a
    polynomial in q, the product of (1 - q**(n + k)) / (1 - q**k) for k from 1 to m (the Gaussian binomial).
    """
    counts = [1] + [0] * (m * n)  # of the polynomial 1; the index is the power of q
    for k in range(1, m + 1):
        # Multiply by 1 - q**(n + k): from the top, as each count takes a lower one that must not have changed yet.
        for u in range(m * n, n + k - 1, -1):
            counts[u] -= counts[u - (n + k)]
        # Divide by 1 - q**k: from below, as each count takes a lower one that has changed already.
        for u in range(k, m * n + 1):
            counts[u] += counts[u - k]
    return counts


def outlier(values: Sequence[float]) -> int | None:
    """Return the index of the value that does not belong to the others, by Grubbs' test at 1 %; None without one.

    See Grubbs, Technometrics 11, 1969. Fewer than three values, or values that are all equal, have no such value.
    """
    n = len(values)
    deviation = sd(values)
    if n < 3 or not deviation:
        return None

    mean = math.fsum(values) / n
    distances = [abs(value - mean) for value in values]
    farthest = distances.index(max(distances))
    t = t_quantile(n - 2, 1 - 0.01 / (2 * n))  # 1 %, shared among n values and both sides
    limit = (n - 1) / math.sqrt(n) * math.sqrt(t * t / (n - 2 + t * t))  # in standard deviations
    if distances[farthest] / deviation <= limit:
        return None
    return farthest
