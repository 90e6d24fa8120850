"""The 95 % interval of the mean of one run's windows, whose neighbours are correlated.

The windows are taken as a first-order autoregression: each value less the true mean is `r` times the value before
it less the true mean, plus independent noise. The correlation `r` is not known, so the interval allows for each one
that the values make probable (Zellner and Tiao, JASA 59, 1964).
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from runlog.stats import CONFIDENCE, t_cdf, t_density, t_quantile
from scoring.figure.spread import around

MIN_WINDOWS = 8  # of one run, for an interval
MIN_FOR_BATCHES = 60  # values; fewer are not put together
MIN_BATCHES = 30
# Squared deviations from the mean that add up to at most this share of the squared mean come from rounding alone.
ROUNDING_SQUARES_SHARE = 1e-24
CORRELATIONS = [step / 20 for step in range(-10, 20)]  # that neighbours may have: -0.5 to 0.95
MIN_PROBABILITY = 1e-4  # a correlation that is not more probable is left out
HALF_WIDTH_WITHIN = 1e-6  # a half-width is found up to this share of it


def series_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of one run's windows, which allows for correlated neighbours.

    A window is what one printed row of the log covers. Neighbouring windows are often alike, so they tell less about
    the mean than as many independent values would. The interval is wider if neighbours may be alike.

    Args:
        values: The rates or the times of the windows, in the order of the log.

    Returns:
        The bounds (low, high), about the mean. None for fewer than 8 values (MIN_WINDOWS), or if half the width of
        the interval would be as much as the mean or more.
    """
    if len(values) < MIN_WINDOWS:
        return None
    mean = math.fsum(values) / len(values)
    deviations = _deviations_from_mean(values)
    if _are_from_rounding(deviations, mean):  # all values are equal
        return mean, mean

    # Means of batches of neighbouring windows are less correlated than the windows themselves.
    batch_deviations = _deviations_from_mean(_batch_means(values))  # below 60 windows, a batch is a single window
    if _are_from_rounding(batch_deviations, mean):  # all batch means are equal, so they show no spread
        half_width = _half_width_by_deviations(deviations)
    else:
        half_width = _half_width_by_deviations(batch_deviations)
    if half_width >= mean:  # too uneven: for example, one window took many times as long as the others
        return None
    return around(mean, half_width / mean)


def _half_width_by_deviations(deviations: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean.

    Args:
        deviations: The values less their mean, in order. Their order shows how far neighbours are correlated.
    """
    return _half_width(_possible_errors(deviations), freedom=len(deviations) - 1)


def _deviations_from_mean(values: Sequence[float]) -> list[float]:
    """Return each value less the mean of all."""
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def _batch_means(values: Sequence[float]) -> list[float]:
    """Return the means of batches of consecutive values, which are less correlated than the values.

    Of 65 values, the first one is left out and the means of 32 pairs are returned. See Conway, Management Science 10,
    1963.

    Args:
        values: The values in order.

    Returns:
        The means in order; the values themselves if they are fewer than 60 (MIN_FOR_BATCHES).
    """
    if len(values) < MIN_FOR_BATCHES:
        return list(values)
    size = len(values) // MIN_BATCHES
    left_out = len(values) % size
    return [math.fsum(values[start : start + size]) / size for start in range(left_out, len(values), size)]


def _are_from_rounding(deviations: Sequence[float], mean: float) -> bool:
    """Return whether deviations from a mean are so small that rounding explains them.

    Args:
        deviations: The values less their mean.
        mean: The mean, in the same unit.
    """
    return _sum_of_squares(deviations) <= ROUNDING_SQUARES_SHARE * mean * mean


class PossibleError(NamedTuple):
    """A standard error that the mean of a series may have: it follows from one possible correlation of neighbours."""

    probability: float  # of that correlation, given the values
    error: float


def _half_width(possible_errors: Sequence[PossibleError], *, freedom: int) -> float:
    """Return half the width of the 95 % interval of a mean whose standard error is one of several possible ones.

    The true mean lies farther than this from the computed mean with a probability of 5 % (`_chance_beyond`).

    Args:
        possible_errors: The standard errors that the mean may have, each with its probability. At least one.
        freedom: Degrees of freedom of Student's t.
    """
    # For a single known error, the half-width is quantile * error. So for several it is not below that for the least.
    half_width = t_quantile(freedom) * min(possible.error for possible in possible_errors)
    # Newton's method from there. It comes ever nearer and never goes too far, as the chance falls less and less.
    step = half_width
    while step > HALF_WIDTH_WITHIN * half_width:
        excess = _chance_beyond(half_width, possible_errors, freedom) - (1 - CONFIDENCE)
        step = excess / _fall_of_chance(half_width, possible_errors, freedom)
        half_width += step
    return half_width


def _chance_beyond(distance: float, possible_errors: Sequence[PossibleError], freedom: int) -> float:
    """Return the probability that the true mean lies farther than a distance from the computed one, to either side.

    For one standard error it is the probability that |t| > distance / error, with Student's t.

    Args:
        distance: The distance, in the unit of the values. Not negative.
        possible_errors: The standard errors that the mean may have, each with its probability.
        freedom: Degrees of freedom of Student's t.
    """
    weighted = []
    for possible in possible_errors:
        chance = 2 * (1 - t_cdf(distance / possible.error, freedom))
        weighted.append(possible.probability * chance)
    return math.fsum(weighted)


def _fall_of_chance(distance: float, possible_errors: Sequence[PossibleError], freedom: int) -> float:
    """Return by how much `_chance_beyond` falls for each unit of distance.

    Args:
        distance: The distance, in the unit of the values. Not negative.
        possible_errors: The standard errors that the mean may have, each with its probability.
        freedom: Degrees of freedom of Student's t.
    """
    weighted = []
    for possible in possible_errors:
        fall = 2 * t_density(distance / possible.error, freedom) / possible.error
        weighted.append(possible.probability * fall)
    return math.fsum(weighted)


def _possible_errors(deviations: Sequence[float]) -> list[PossibleError]:
    """Return the standard errors that the mean of a series may have, each with its probability.

    Each correlation that neighbours may have (-0.5, -0.45, ..., 0.95) gives one standard error. Its probability is the
    posterior probability of this correlation, by the values.

    Args:
        deviations: The values less their plain mean, in order.

    Returns:
        The errors whose probability is above MIN_PROBABILITY (0.01 %).
    """
    fits = [_fit_autoregression(deviations, correlation) for correlation in CORRELATIONS]
    probabilities = _probabilities([fit.log_likelihood for fit in fits])
    possible_errors = []
    for fit, probability in zip(fits, probabilities, strict=True):
        if probability > MIN_PROBABILITY:
            possible_errors.append(PossibleError(probability, fit.error))
    return possible_errors


def _probabilities(log_likelihoods: Sequence[float]) -> list[float]:
    """Return the probabilities of several assumptions, by the logarithms of their likelihoods.

    By Bayes' rule with a flat prior, the probability of one is its likelihood / the sum of all likelihoods.

    Args:
        log_likelihoods: The natural logarithms. All may be too high by the same constant.

    Returns:
        The probabilities, in the same order. They add up to 1.
    """
    greatest = max(log_likelihoods)
    # Divided by the greatest likelihood, because the likelihoods themselves may be too small for a float.
    likelihoods = [math.exp(log_likelihood - greatest) for log_likelihood in log_likelihoods]
    sum_of_likelihoods = math.fsum(likelihoods)
    return [likelihood / sum_of_likelihoods for likelihood in likelihoods]


class AutoregressionFit(NamedTuple):
    """The fit of a series to an autoregression with one given correlation of neighbours."""

    log_likelihood: float  # of the correlation, less a constant that is the same for all correlations
    error: float  # standard error of the plain mean of the values


def _fit_autoregression(deviations: Sequence[float], r: float) -> AutoregressionFit:
    """Fit a series as if its neighbours had a given correlation; return its likelihood and the error of the mean.

    Args:
        deviations: The values less their plain mean, in order. Some deviation is not 0.
        r: The assumed correlation of neighbours, between -1 and 1.

    Returns:
        How likely the correlation is, and the standard error that the plain mean has if it is true.
    """
    n = len(deviations)
    regression = _without_correlation(deviations, r)
    noise_squares = _least_squares(regression)
    noise_variance = noise_squares / (n - 1)  # n - 1, because the true mean is fitted, too
    error = math.sqrt(noise_variance * _variance_of_mean_by_noise(r, n))
    return AutoregressionFit(_log_likelihood(regression, noise_squares, r), error)


class Regression(NamedTuple):
    """A linear regression with independent noise: each y is x * (the true mean less the plain mean) + noise."""

    x: Sequence[float]
    y: Sequence[float]


def _without_correlation(deviations: Sequence[float], r: float) -> Regression:
    """Return a series with correlated neighbours as a regression without correlation (Prais and Winsten, 1954).

    Let m be the true mean less the plain mean. With a correlation of r, each deviation d from the plain mean follows
    the one before it:

        d[i] - m = r * (d[i - 1] - m) + noise,   so   d[i] - r * d[i - 1] = (1 - r) * m + noise

    Args:
        deviations: The deviations d, in order.
        r: The assumed correlation of neighbours, between -1 and 1.
    """
    # Nothing comes before the first value, whose variance is 1 / (1 - r**2) times that of the noise. The root makes it
    # equal to that of the noise.
    root = math.sqrt(1 - r**2)
    x = [root]
    y = [root * deviations[0]]
    for before, deviation in itertools.pairwise(deviations):
        x.append(1 - r)
        y.append(deviation - r * before)
    return Regression(x, y)


def _least_squares(regression: Regression) -> float:
    """Return the sum of the squared noise of a regression whose slope is fitted by least squares."""
    products = [x * y for x, y in zip(regression.x, regression.y, strict=True)]
    slope = math.fsum(products) / _sum_of_squares(regression.x)
    noise = [y - slope * x for x, y in zip(regression.x, regression.y, strict=True)]
    return _sum_of_squares(noise)


def _log_likelihood(regression: Regression, noise_squares: float, r: float) -> float:
    """Return the logarithm of the marginal likelihood of a correlation, less a constant equal for all correlations.

    The noise is normal. Its standard deviation sigma and the true mean are not known, so the likelihood is integrated
    over log(sigma) and the true mean, with flat priors (Zellner and Tiao, JASA 59, 1964).

    Args:
        regression: The series as a regression without correlation, by `_without_correlation` for r.
        noise_squares: Q, the least sum of the squared noise. Above 0.
        r: The correlation, between -1 and 1.
    """
    n = len(regression.y)
    # The first value of the series was multiplied by sqrt(1 - r**2), and so is the density of the series.
    scale_of_first_value = 0.5 * math.log(1 - r**2)
    # In the true mean, the likelihood is a bell curve of standard deviation sigma / sqrt(sum of x**2). Its integral is
    # proportional to that.
    over_true_mean = -0.5 * math.log(_sum_of_squares(regression.x))
    # What is left is sigma**-(n - 1) * exp(-Q / (2 * sigma**2)). Its integral over log(sigma) is proportional to
    # Q**(-(n - 1) / 2).
    over_sigma = -(n - 1) / 2 * math.log(noise_squares)
    return scale_of_first_value + over_true_mean + over_sigma


def _variance_of_mean_by_noise(r: float, n: int) -> float:
    """Return the variance of the plain mean of a first-order autoregression / the variance of its noise.

    Args:
        r: The correlation of neighbours, between -1 and 1.
        n: The number of values.
    """
    variance_of_value = 1 / (1 - r**2)
    # Two values that are k places apart have the correlation r**k, and n - k pairs of the n values are k places apart.
    sum_of_correlations = math.fsum((n - k) * r**k for k in range(1, n))
    # The n values with themselves, and each pair in both orders
    return variance_of_value * (n + 2 * sum_of_correlations) / n**2


def _sum_of_squares(values: Sequence[float]) -> float:
    """Return the sum of the squared values."""
    return math.fsum(value * value for value in values)
