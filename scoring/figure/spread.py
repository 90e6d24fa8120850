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

    `values` are the windows' rates or times, in their order. Neighbouring ones are correlated, so a plain t interval
    would be too narrow. So if there are many, the means of groups (batches) are taken. The width is then weighed over
    the correlations that neighbours may have. Returns None for fewer values than LEAST_WINDOWS, or too uneven ones.
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
    if half_width >= mean:  # one window took many times as long as the others
        return None
    return around(mean, half_width / mean)


def _batch_means(values: Sequence[float]) -> list[float]:
    """Return the means of batches of consecutive values, which are less correlated than the values.

    Of 65 values, the first one is left out and the means of 32 pairs are returned. Fewer than 60 values are returned
    as they are. See Conway, Management Science 10, 1963.
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
    ends: float  # the first deviation plus the last one, which have only one neighbour each
    squares_of_ends: float
    products: float  # of each deviation and the next one


class AutoregressionFit(NamedTuple):
    """The fit of a first-order autoregression to a series of values."""

    log_likelihood: float  # less a constant that is the same for every correlation
    error: float  # standard error of the mean of the values


def _half_width(possible_errors: Sequence[PossibleError], *, freedom: int) -> float:
    """Return half the width of the 95 % interval of a mean whose standard error is uncertain.

    The true mean lies farther away than this with a probability of 5 % (Zellner and Tiao, JASA 59, 1964). `freedom` is
    the degrees of freedom of Student's t.
    """
    # Each error alone would give quantile * error. The result lies between the least and the greatest of these.
    quantile = t_quantile(freedom)
    low = quantile * min(possible.error for possible in possible_errors)
    high = quantile * max(possible.error for possible in possible_errors)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        is_too_narrow = _chance_beyond(middle, possible_errors, freedom) > 1 - CONFIDENCE
        if is_too_narrow:
            low = middle
        else:
            high = middle
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

    `deviations` are the values less their mean, in their order. The standard error depends on the correlation of
    neighbours. It is not known, so each one of CORRELATIONS has a probability.
    """
    sums = _deviation_sums(deviations)
    fits = [_fit_autoregression(sums, correlation) for correlation in CORRELATIONS]

    # Bayes' rule: correlations that are equally probable at first become as probable as the series is likely under
    # them. The likelihoods are divided by the greatest one, because they may be too small for a float.
    greatest = max(fit.log_likelihood for fit in fits)
    likelihoods = [math.exp(fit.log_likelihood - greatest) for fit in fits]
    total = math.fsum(likelihoods)
    possible_errors = []
    for fit, likelihood in zip(fits, likelihoods, strict=True):
        probability = likelihood / total
        if probability > LEAST_PROBABILITY:
            possible_errors.append(PossibleError(probability, fit.error))
    return possible_errors


def _deviation_sums(deviations: Sequence[float]) -> DeviationSums:
    """Return the sums over deviations from their mean that `_fit_autoregression` needs."""
    return DeviationSums(
        length=len(deviations),
        squares=math.fsum(deviation * deviation for deviation in deviations),
        ends=deviations[0] + deviations[-1],
        squares_of_ends=deviations[0] ** 2 + deviations[-1] ** 2,
        products=math.fsum(deviation * following for deviation, following in itertools.pairwise(deviations)),
    )


def _fit_autoregression(sums: DeviationSums, r: float) -> AutoregressionFit:
    """Return the fit of a series to a first-order autoregression whose neighbours have the correlation `r`.

    `sums` are sums over the deviations of the values from their plain mean. The likelihood is integrated over all true
    means and all sizes of noise (Zellner and Tiao, JASA 59, 1964).
    """
    n = sums.length
    # Let d[i] be the deviations from a true mean, which is the plain mean + m. In the model, d[i] is r * d[i - 1] plus
    # independent noise. The squares of the noise add up to
    #     (1 - r**2) * d[0]**2 + sum of (d[i] - r * d[i - 1])**2  =  a * m**2 - 2 * b * m + c
    a = (1 - r) * (n - (n - 2) * r)
    b = (1 - r) * r * sums.ends  # `ends` is the first deviation plus the last one
    c = sums.squares + r * r * (sums.squares - sums.squares_of_ends) - 2 * r * sums.products
    least_sum = c - b * b / a  # at m = b / a
    noise_squares = max(least_sum, 1e-12 * sums.squares)  # rounding may leave 0 or less, which has no logarithm

    # The likelihood is sqrt(1 - r**2) / s**n * exp(-squares / (2 * s**2)), for noise of the standard deviation s. This
    # is the logarithm of its integral over m, and over s with the prior 1 / s.
    log_likelihood = 0.5 * math.log((1 - r * r) / a) - (n - 1) / 2 * math.log(noise_squares)
    # noise_squares / (n - 1) is the variance of the noise.
    error = math.sqrt(_variance_of_mean(r, n) * noise_squares / (n - 1))
    return AutoregressionFit(log_likelihood, error)


def _variance_of_mean(r: float, n: int) -> float:
    """Return the variance of the plain mean of n values of a first-order autoregression, for noise of variance 1.

    Two values that are `lag` places apart have the covariance r**lag / (1 - r**2).
    """
    return (1 + 2 * r / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)) / (n * (1 - r * r))


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

    `dropped` makes it an olympic mean: that many of the least values, and as many of the greatest, are left out. The
    values left out may be infinite.
    """
    n = len(values)
    kept = sorted(values)[dropped : n - dropped]
    count = len(kept)
    if count < 2:
        return None

    # Yuen (Biometrika 61, 1974) replaces each value left out by the nearest one kept.
    with_replaced = [kept[0]] * dropped + kept + [kept[-1]] * dropped
    deviation = sd(with_replaced)
    assert deviation is not None, "two values or more are left"
    error = deviation / math.sqrt(count * (count - 1) / (n - 1))  # deviation / sqrt(n) if all are kept
    return Estimate(math.fsum(kept) / count, error, freedom=count - 1)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median as (low, high), for any distribution; None for fewer than five values.

    Of five values, the least and the greatest are returned, although their confidence is only 93.75 %.
    """
    n = len(values)
    if n < 5:
        return None
    ordered = sorted(values)
    if n == 5:
        return ordered[0], ordered[-1]

    # The interval of depth d runs from the d-th least value to the d-th greatest. No depth has exactly 95 %, so the
    # result lies between the last depth that has more and the next one.
    depth = _deepest_of_enough_confidence(n)
    outer_low, inner_low = ordered[depth - 1], ordered[depth]
    inner_high, outer_high = ordered[-depth - 1], ordered[-depth]
    inner_weight = _weight_of_inner_bounds(depth, n)
    low = outer_low + inner_weight * (inner_low - outer_low)
    high = outer_high + inner_weight * (inner_high - outer_high)
    return low, high


def _deepest_of_enough_confidence(n: int) -> int:
    """Return the greatest depth whose interval of the median has a confidence of 95 % or more, for n >= 6 values.

    The interval of depth 2 runs from the second least value to the second greatest.
    """
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
    of these quotients; `_rank_of_bounds` gives k. It is widened if the ratio of the medians lies outside.

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
    return min(ratio, low), max(ratio, high)  # widened if the ratio itself lies outside


def _rank_of_bounds(m: int, n: int) -> int:
    """Return the rank k for a 95 % interval of the ratio of two sets, of m and n values; 0 for too few values.

    The interval runs from the k-th least of their m * n quotients to the k-th greatest. For 5 and 5 values k is 3.
    """
    # U is the number of quotients below the true ratio (Mann-Whitney). If U is less than k, the lower end is above the
    # true ratio. The upper end is below it as often, hence the factor 2. All rankings are equally probable.
    rankings_of_u = _rankings_by_u(m, n)  # how many rankings have each U
    most_outside = (1 - CONFIDENCE) * math.comb(m + n, m)  # rankings, at both ends together
    rank = 0
    outside_at_one_end = 0  # rankings of a U less than `rank`
    while 2 * (outside_at_one_end + rankings_of_u[rank]) <= most_outside:
        outside_at_one_end += rankings_of_u[rank]
        rank += 1
    return rank


def _rankings_by_u(m: int, n: int) -> list[int]:
    """Return how many rankings of m and n values have each Mann-Whitney U, as a list by U from 0 to m * n.

    U is the number of pairs in which the first set has the greater value. For m = 1 and n = 2: [1, 1, 1].
    """
    # The counts are the coefficients of the Gaussian binomial, a polynomial in q. It is the product of
    # (1 - q**(n + k)) / (1 - q**k) for k from 1 to m. Start with 1; counts[u] is the coefficient of q**u.
    # Powers above m * n are cut off: they never change a lower one, and the final polynomial does not have them.
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
