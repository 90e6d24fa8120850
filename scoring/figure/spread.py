"""Means, spreads and 95 % intervals of a few numbers; each says how it was made."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.stats import CONFIDENCE, t_cdf, t_quantile

LEAST_WINDOWS = 8  # of one run, for an interval
EQUAL_SQUARES = 1e-24  # of the mean squared: smaller squared deviations come from rounding alone
CORRELATIONS = [step / 20 for step in range(-10, 20)]  # that neighbours may have: -0.5 to 0.95
LEAST_PROBABILITY = 1e-4  # a correlation that is not more probable does not count


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
    """Return one relative standard deviation of values within their sets, pooled over all sets.

    It is the root of the weighted mean of the sets' squared relative deviations. A set of n values has the weight
    n - 1, which is its degrees of freedom. So a set with a single value does not count.

    Returns None if no set has two values.
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
    """Return the interval (centre * exp(-share), centre * exp(share)).

    `share` is the half-width on the scale of logarithms. A share of 0.1 gives about 10 % to both sides. The bounds are
    always above zero, because a rate or a time is never negative.
    """
    return centre * math.exp(-share), centre * math.exp(share)


def half_share(interval: tuple[float, float]) -> float:
    """Return half the width of an interval on the scale of logarithms: the `share` that `around` makes it of."""
    low, high = interval
    return math.log(high / low) / 2


def series_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of one run's windows, as (low, high).

    `values` are the windows' rates or times, in the order of the windows. Neighbouring windows are correlated, so a
    plain t interval would be too narrow. The interval is made in three steps:

    1. Average the values in batches of consecutive ones (Conway, Management Science 10, 1963).
    2. Find the standard errors that the mean may have, each with its probability. There are several, because a few
       batches do not show exactly how correlated they are.
    3. Average Student's t over these standard errors (Zellner and Tiao, JASA 59, 1964).

    If all batches are equal, the interval has no width. Returns None for fewer than LEAST_WINDOWS values, and if half
    the width would reach the mean itself. The latter happens if one window takes many times as long as the others.
    """
    if len(values) < LEAST_WINDOWS:
        return None

    mean = math.fsum(values) / len(values)
    batches = _batch_means(values)
    mean_of_batches = math.fsum(batches) / len(batches)
    deviations = [batch - mean_of_batches for batch in batches]
    squares = math.fsum(deviation * deviation for deviation in deviations)
    are_equal = squares <= EQUAL_SQUARES * mean_of_batches * mean_of_batches  # but for rounding
    if are_equal:
        return mean, mean

    half_width = _half_width(_possible_errors(deviations), freedom=len(deviations) - 1)
    if half_width >= mean:
        return None
    return around(mean, half_width / mean)


def _batch_means(values: Sequence[float]) -> list[float]:
    """Return the means of at least 30 batches of consecutive values, all of the same size.

    Fewer than 60 values are returned as they are. The first values are left out if they do not fill a batch: of 65
    values, the first one is left out and the means of 32 pairs are returned.
    """
    size = len(values) // 30 if len(values) >= 60 else 1
    left_out = len(values) % size
    return [math.fsum(values[at : at + size]) / size for at in range(left_out, len(values), size)]


class PossibleError(NamedTuple):
    """A standard error that the mean of a series may have: it follows from one possible correlation of neighbours."""

    probability: float  # of that correlation, given the values
    error: float


class DeviationSums(NamedTuple):
    """Sums over the deviations of a series from its mean. They suffice to fit any correlation of neighbours."""

    length: int
    squares: float
    ends: float  # the first deviation plus the last one
    squares_of_ends: float
    products: float  # of each deviation and the next one


class AutoregressionFit(NamedTuple):
    """The fit of a first-order autoregression to a series of values."""

    log_likelihood: float  # less a constant that is the same for every correlation
    error: float  # standard error of the mean of the values


def _half_width(possible_errors: Sequence[PossibleError], *, freedom: int) -> float:
    """Return half the width of the 95 % interval of a mean whose standard error is uncertain.

    It is the distance from the mean that the true mean exceeds with a probability of 5 %. This probability is averaged
    over the possible standard errors. `freedom` is the degrees of freedom of Student's t.

    The result is found by bisection, to a millionth of it.
    """
    quantile = t_quantile(freedom)
    low = quantile * min(possible.error for possible in possible_errors)
    high = quantile * max(possible.error for possible in possible_errors)
    while high - low > 1e-6 * high:
        half = (low + high) / 2
        if _chance_beyond(half, possible_errors, freedom) > 1 - CONFIDENCE:
            low = half  # too narrow
        else:
            high = half
    return high


def _chance_beyond(distance: float, possible_errors: Sequence[PossibleError], freedom: int) -> float:
    """Return the probability that a mean is off by more than `distance`, to either side.

    It is averaged over the possible standard errors of the mean, each weighted by its probability.
    """
    weighted = []
    for possible in possible_errors:
        chance = 2 * (1 - t_cdf(distance / possible.error, freedom))
        weighted.append(possible.probability * chance)
    return math.fsum(weighted)


def _possible_errors(deviations: Sequence[float]) -> list[PossibleError]:
    """Return the standard errors that the mean of a series may have, each with its probability.

    `deviations` are the values less their mean, in their order. The standard error depends on how correlated
    neighbouring values are, which is not known. So each correlation of CORRELATIONS is fitted to the series. All are
    equally probable at first; then each is as probable as the series is likely under it (Bayes' rule).

    Correlations with a probability of LEAST_PROBABILITY or less are left out.
    """
    sums = DeviationSums(
        length=len(deviations),
        squares=math.fsum(deviation * deviation for deviation in deviations),
        ends=deviations[0] + deviations[-1],
        squares_of_ends=deviations[0] ** 2 + deviations[-1] ** 2,
        products=math.fsum(deviation * following for deviation, following in itertools.pairwise(deviations)),
    )
    fits = [_fit_autoregression(sums, correlation) for correlation in CORRELATIONS]

    # Likelihoods relative to the greatest one: the likelihoods themselves may be too small for a float.
    greatest = max(fit.log_likelihood for fit in fits)
    likelihoods = [math.exp(fit.log_likelihood - greatest) for fit in fits]
    total = math.fsum(likelihoods)
    possible_errors = []
    for fit, likelihood in zip(fits, likelihoods, strict=True):
        probability = likelihood / total
        if probability > LEAST_PROBABILITY:
            possible_errors.append(PossibleError(probability, fit.error))
    return possible_errors


def _fit_autoregression(sums: DeviationSums, r: float) -> AutoregressionFit:
    """Return the fit of a series to a first-order autoregression whose neighbours have the correlation `r`.

    `sums` are sums over the deviations of the values from their plain mean. In the model, each deviation from the true
    mean is r times the one before, plus independent noise. If the true mean is the plain mean + m, the squares of the
    noise add up to

        a * m**2 - 2 * b * m + c

    This is least at m = b / a, and is then c - b**2 / a. The likelihood is averaged over all means and all sizes of
    noise (Zellner and Tiao, JASA 59, 1964): it is proportional to sqrt((1 - r**2) / a) * squares**(-(n - 1) / 2).
    """
    n = sums.length
    a = (1 - r) * (n - (n - 2) * r)
    b = (1 - r) * r * sums.ends
    c = sums.squares + r * r * (sums.squares - sums.squares_of_ends) - 2 * r * sums.products
    least_squares = c - b * b / a
    least_squares = max(least_squares, 1e-12 * sums.squares)  # rounding may leave 0 or less, which has no logarithm
    log_likelihood = 0.5 * math.log((1 - r * r) / a) - (n - 1) / 2 * math.log(least_squares)

    # The variance of the plain mean of n values with autocovariances r**lag / (1 - r * r), for noise of variance 1.
    variance = (1 + 2 * r / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)) / (n * (1 - r * r))
    # The noise has the variance least_squares / (n - 1).
    return AutoregressionFit(log_likelihood, error=math.sqrt(variance * least_squares / (n - 1)))


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
    """Return the mean of values with its standard error; None if fewer than two values are averaged.

    With `dropped` it is an olympic mean: that many of the least values are left out, and as many of the greatest
    (Tukey and McLaughlin, Sankhya A 25, 1963). The values left out may be infinite, as the time of a run that did not
    converge.

    Without `dropped` the standard error is the usual one (Student, Biometrika 6, 1908). An olympic mean has that of
    Yuen (Biometrika 61, 1974). For it, each value left out is replaced by the nearest value kept.
    """
    kept = sorted(values)[dropped : len(values) - dropped]
    count = len(kept)
    freedom = count - 1
    if freedom < 1:
        return None

    with_replaced = [kept[0]] * dropped + kept + [kept[-1]] * dropped  # `kept` is in ascending order
    deviation = sd(with_replaced)
    assert deviation is not None, "two values or more are left"
    # Yuen: deviation * sqrt((n - 1) / (count * (count - 1))) for n values. If all are kept: deviation / sqrt(n).
    error = deviation / math.sqrt(count * freedom / (len(values) - 1))
    return Estimate(math.fsum(kept) / count, error, freedom)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median as (low, high), for any distribution; None for fewer than five values.

    The interval of depth d runs from the d-th least value to the d-th greatest. A greater depth makes it narrower and
    lowers its confidence. No depth gives exactly 95 %, so the result lies between two intervals:

    - `outer`, the deepest one with a confidence of 95 % or more, and
    - `inner`, which is one deeper.

    It is interpolated by Hettmansperger and Sheather (Statistics & Probability Letters 4, 1986).

    Five values are an exception: even their widest interval, least to greatest, has only 93.75 %. It is returned as it
    is.
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
    outer_confidence = _confidence_at_depth(depth, n)
    inner_confidence = _confidence_at_depth(depth + 1, n)
    share = (outer_confidence - CONFIDENCE) / (outer_confidence - inner_confidence)
    # The paper's weight of the inner bounds. It is not `share`: confidence does not change linearly between the bounds.
    inner_weight = (n - depth) * share / (depth + (n - 2 * depth) * share)

    outer_low, inner_low = ordered[depth - 1], ordered[depth]
    inner_high, outer_high = ordered[-depth - 1], ordered[-depth]
    low = outer_low + inner_weight * (inner_low - outer_low)
    high = outer_high + inner_weight * (inner_high - outer_high)
    return low, high


def _confidence_at_depth(depth: int, n: int) -> float:
    """Return the probability that the median lies between the `depth`-th least and the `depth`-th greatest of n values.

    The median lies outside if fewer than `depth` of the values are on one side of it. Each value is on either side
    with a probability of 1/2.
    """
    return 1 - 2 * float(math.fsum(math.comb(n, count) for count in range(depth)) / 2**n)


def has_no_width(interval: tuple[float, float]) -> bool:
    """Tell whether the two bounds of an interval are equal, but for rounding.

    Such an interval would wrongly say that a figure is exact.
    """
    low, high = interval
    return math.isclose(low, high, rel_tol=1e-12)


def ratio_interval(base: Estimate, other: Estimate) -> tuple[float, float]:
    """Return the 95 % interval of the ratio other / base as (low, high), by Welch's t on the logarithms.

    The two standard errors may differ (Welch, Biometrika 34, 1947; for olympic means Yuen, Biometrika 61, 1974). If
    both are 0, the interval has no width.
    """
    ratio = other.value / base.value
    variance_of_base = (base.error / base.value) ** 2
    variance_of_other = (other.error / other.value) ** 2
    variance = variance_of_base + variance_of_other
    if variance == 0:
        return ratio, ratio
    freedom = variance**2 / (variance_of_base**2 / base.freedom + variance_of_other**2 / other.freedom)
    return around(ratio, t_quantile(freedom) * math.sqrt(variance))


# Half the width is the t that lies below this probability: 98 % to both sides, because no mean evens out the tails of
# single runs. At 96.5 %, which holds 95 % of runs of skewness 1, 9 % of the pairs of equal systems of MLPerf v1.0 were
# called different (benchmarks/calibration.py).
SINGLE_RUN_PROBABILITY = 0.99


def single_run_interval(
    ratio: float, relative_sd: float, freedom: float, counts: tuple[int, int]
) -> tuple[float, float]:
    """Return the 95 % interval (low, high) of the ratio of two means, if at least one of them is a single run.

    A single run does not show how far repeats lie apart. So `relative_sd`, with its degrees of freedom `freedom`, is
    the relative standard deviation of other runs. `counts` are the numbers of runs of the two means.
    """
    runs, other_runs = counts
    half_width = t_quantile(freedom, SINGLE_RUN_PROBABILITY) * relative_sd * math.sqrt(1 / runs + 1 / other_runs)
    return around(ratio, half_width)


def median_ratio_interval(base: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of median(other) / median(base) as (low, high); None for too few values.

    Each value of `other` is divided by each value of `base`. The interval runs from the k-th least to the k-th greatest
    of these quotients, where k is the result of `_rank_of_bounds`. It is widened if the ratio of the medians lies
    outside.

    If both sets have distributions of the same shape, the interval holds every ratio that the Mann-Whitney test does
    not reject (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963).
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
    """Return the rank k for a 95 % interval of the ratio of two sets, of m and n values; 0 for too few values.

    Each value of one set is divided by each value of the other. The interval runs from the k-th least of these m * n
    quotients to the k-th greatest. For 5 and 5 values k is 3.

    If the sets are alike, all rankings of the m + n values are equally probable. The true ratio is below the k-th least
    quotient in the rankings whose Mann-Whitney U is less than k, and above the k-th greatest in as many. The result is
    the greatest k for which these are at most 5 % of all rankings.
    """
    rankings_by_u = _rankings_by_u(m, n)
    most_outside = (1 - CONFIDENCE) * math.comb(m + n, m)  # rankings, at both ends together
    rank = 0
    outside_at_one_end = 0
    while 2 * (outside_at_one_end + rankings_by_u[rank]) <= most_outside:
        outside_at_one_end += rankings_by_u[rank]
        rank += 1
    return rank


def _rankings_by_u(m: int, n: int) -> list[int]:
    """Return how many rankings of m and n values have each Mann-Whitney U; the index of the list is U, 0 to m * n.

    U is the number of pairs in which the value of the first set is the greater one. For m = 1 and n = 2 the list is
    [1, 1, 1]: the one value may be greater than none, one or both of the others.

    The counts are the coefficients of the Gaussian binomial, a polynomial in q. It is the product of
    (1 - q**(n + k)) / (1 - q**k) for k from 1 to m.
    """
    # Coefficients by power of q, at first of the polynomial 1. Powers above m * n are cut off: they never change a
    # lower one, and the final polynomial does not have them.
    counts = [1] + [0] * (m * n)
    for k in range(1, m + 1):
        # Multiply by 1 - q**(n + k). Go down, because each count takes a lower one that must still be the old one.
        for u in range(m * n, n + k - 1, -1):
            counts[u] -= counts[u - (n + k)]
        # Divide by 1 - q**k. Go up, because each count takes a lower one that must already be the new one.
        for u in range(k, m * n + 1):
            counts[u] += counts[u - k]
    return counts


def outlier(values: Sequence[float]) -> int | None:
    """Return the index of the one outlier among values, by Grubbs' test at a significance of 1 %; None without one.

    See Grubbs, Technometrics 11, 1969. Fewer than three values, or values that are all equal, have no outlier.
    """
    n = len(values)
    deviation = sd(values)
    if n < 3 or not deviation:
        return None

    mean = math.fsum(values) / n
    distances = [abs(value - mean) for value in values]
    farthest = distances.index(max(distances))
    t = t_quantile(n - 2, 1 - 0.01 / (2 * n))  # 1 %, shared among n values and both sides
    most_deviations = (n - 1) / math.sqrt(n) * math.sqrt(t * t / (n - 2 + t * t))
    if distances[farthest] / deviation <= most_deviations:
        return None
    return farthest
