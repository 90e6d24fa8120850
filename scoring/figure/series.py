"""The 95 % interval of the mean of one run's windows, whose neighbours are correlated.

The windows are taken as a first-order autoregression: each value less the true mean is `r` times the value before
it less the true mean, plus independent noise. The correlation `r` is not known, so the interval allows for each one
that the values make probable (Zellner and Tiao, JASA 59, 1964).
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from runlog.stats import CONFIDENCE, t_cdf, t_quantile
from scoring.figure.spread import around

LEAST_WINDOWS = 8  # of one run, for an interval
LEAST_FOR_BATCHES = 60  # values; fewer are not put together
LEAST_BATCHES = 30
# Squared deviations from the mean that add up to at most this share of the mean squared come from rounding alone.
ROUNDING_SQUARES_SHARE = 1e-24
CORRELATIONS = [step / 20 for step in range(-10, 20)]  # that neighbours may have: -0.5 to 0.95
LEAST_PROBABILITY = 1e-4  # a correlation that is not more probable is left out
HALF_WIDTH_WITHIN = 1e-6  # a half-width is found up to this share of it


def series_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of one run's windows, which allows for correlated neighbours.

    A window is what one printed row of the log covers. Neighbouring windows are often alike, so they tell less about
    the mean than as many independent values would. The interval is wider if neighbours may be alike.

    The interval is worked out from the means of batches of neighbouring windows, because batch means are less
    correlated than single windows. Single windows are taken in two cases:

    - There are fewer than 60 windows (LEAST_FOR_BATCHES): `_batch_means` then returns the windows as they are.
    - All batches have the same mean, so that the batches show no spread.

    Args:
        values: The rates or the times of the windows, in the order of the log.

    Returns:
        The bounds (low, high). They are equal if all values are equal. Otherwise they are mean * exp(-h) and
        mean * exp(h), where h is the result of `_half_width` / the mean. None for fewer than 8 values (LEAST_WINDOWS),
        or if h would be 1 or more.
    """
    if len(values) < LEAST_WINDOWS:
        return None
    mean = math.fsum(values) / len(values)
    deviations = _deviations_from_mean(values)
    if _are_from_rounding(deviations, mean):  # all values are equal
        return mean, mean

    # Of fewer than 60 values, `_batch_means` returns the values themselves: both lists of deviations are then equal.
    batch_deviations = _deviations_from_mean(_batch_means(values))
    batches_are_equal = _are_from_rounding(batch_deviations, mean)
    half_width = _half_width_by_deviations(deviations if batches_are_equal else batch_deviations)
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
        The means in order; the values themselves if they are fewer than 60 (LEAST_FOR_BATCHES).
    """
    if len(values) < LEAST_FOR_BATCHES:
        return list(values)
    size = len(values) // LEAST_BATCHES
    left_out = len(values) % size
    return [math.fsum(values[start : start + size]) / size for start in range(left_out, len(values), size)]


def _are_from_rounding(deviations: Sequence[float], mean: float) -> bool:
    """Tell whether deviations from a mean are so small that rounding explains them.

    Args:
        deviations: The values less their mean.
        mean: The mean, in the same unit.
    """
    squares = math.fsum(deviation * deviation for deviation in deviations)
    return squares <= ROUNDING_SQUARES_SHARE * mean * mean


class PossibleError(NamedTuple):
    """A standard error that the mean of a series may have: it follows from one possible correlation of neighbours."""

    probability: float  # of that correlation, given the values
    error: float


def _half_width(possible_errors: Sequence[PossibleError], *, freedom: int) -> float:
    """Return half the width of the 95 % interval of a mean whose standard error is one of several possible ones.

    It is the distance beyond which, to either side, the true mean lies with a probability of 5 %, averaged over the
    possible errors (`_chance_beyond`). It is found by bisection, up to a relative error of HALF_WIDTH_WITHIN.

    Args:
        possible_errors: The standard errors that the mean may have, each with its probability. There is one for each
            possible correlation of neighbouring values. At least one.
        freedom: Degrees of freedom of Student's t.
    """
    # If the error were known, half the width would be quantile * error. So it lies between the half-width for the least
    # possible error and that for the greatest.
    quantile = t_quantile(freedom)
    too_narrow = quantile * min(possible.error for possible in possible_errors)
    wide_enough = quantile * max(possible.error for possible in possible_errors)
    while wide_enough - too_narrow > HALF_WIDTH_WITHIN * wide_enough:
        middle = (too_narrow + wide_enough) / 2
        if _chance_beyond(middle, possible_errors, freedom) > 1 - CONFIDENCE:
            too_narrow = middle
        else:
            wide_enough = middle
    return wide_enough


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


class AutoregressionFit(NamedTuple):
    """The fit of a series to an autoregression with one given correlation of neighbours."""

    log_likelihood: float  # of the correlation, less a constant that is the same for all correlations
    error: float  # standard error of the plain mean of the values


def _possible_errors(deviations: Sequence[float]) -> list[PossibleError]:
    """Return the standard errors that the mean of a series may have, each with its probability.

    The series x is taken as a first-order autoregression about a true mean mu:

        x[i] - mu = r * (x[i - 1] - mu) + independent noise

    The correlation r of neighbours is not known. So `_fit_autoregression` works out two things for each r in
    CORRELATIONS: the standard error of the plain mean, and the likelihood of r, given the values. The probability of an
    error is

        likelihood of its r / sum of the likelihoods of all r

    Args:
        deviations: The values less their plain mean, in order.

    Returns:
        The errors whose probability is above LEAST_PROBABILITY.
    """
    sums = _deviation_sums(deviations)
    fits = [_fit_autoregression(sums, correlation) for correlation in CORRELATIONS]
    probabilities = _probabilities([fit.log_likelihood for fit in fits])
    possible_errors = []
    for fit, probability in zip(fits, probabilities, strict=True):
        if probability > LEAST_PROBABILITY:
            possible_errors.append(PossibleError(probability, fit.error))
    return possible_errors


def _probabilities(log_likelihoods: Sequence[float]) -> list[float]:
    """Return the probabilities of several assumptions, by the logarithms of their likelihoods.

    By Bayes' rule, the probability of one is its likelihood / the sum of all likelihoods, if all of them were equally
    probable before the values were seen.

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


class DeviationSums(NamedTuple):
    """Sums over d[0] to d[n - 1], the deviations of n values from their mean. Any correlation can be fitted by them."""

    n: int
    squares: float  # d[0]**2 + d[1]**2 + ...
    ends: float  # d[0] + d[n - 1]
    squares_of_ends: float  # d[0]**2 + d[n - 1]**2
    products: float  # d[0] * d[1] + d[1] * d[2] + ...


def _deviation_sums(deviations: Sequence[float]) -> DeviationSums:
    """Return the sums over deviations from their mean that `_fit_autoregression` needs."""
    return DeviationSums(
        n=len(deviations),
        squares=math.fsum(deviation * deviation for deviation in deviations),
        ends=deviations[0] + deviations[-1],
        squares_of_ends=deviations[0] ** 2 + deviations[-1] ** 2,
        products=math.fsum(deviation * following for deviation, following in itertools.pairwise(deviations)),
    )


def _fit_autoregression(sums: DeviationSums, r: float) -> AutoregressionFit:
    """Return how likely a correlation of neighbours is, and the standard error of the plain mean if it is true.

    Args:
        sums: Sums over the deviations of the values from their plain mean.
        r: The assumed correlation of neighbours, between -1 and 1.
    """
    n = sums.n
    noise_squares = _least_noise_squares(sums, r)
    error = math.sqrt(_variance_of_mean(r, n) * noise_squares / (n - 1))
    return AutoregressionFit(_log_likelihood(noise_squares, r, n), error)


def _least_noise_squares(sums: DeviationSums, r: float) -> float:
    """Return the least sum of squared noise that explains a series, if neighbours have a given correlation r.

    The series x is taken as a first-order autoregression about a true mean mu:

        x[i] - mu = r * (x[i - 1] - mu) + noise

    The true mean is not known, so the mu with the least sum of squared noise is taken. With d[i] = x[i] - plain mean
    and m = mu - plain mean, the noise is

        sqrt(1 - r**2) * d[0] - sqrt(1 - r**2) * m      of the first value
        (d[i] - r * d[i - 1]) - (1 - r) * m             of each later value, i = 1 to n - 1

    (No value comes before the first one. The variance of d[0] - m is the variance of the noise / (1 - r**2), and the
    root turns that into the variance of the noise.) Each line has the form u - v * m. So the sum of all squares is

        a * m**2 - 2 * b * m + c = a * (m - b / a)**2 + c - b**2 / a

        a = sum of all v**2  = (1 - r**2) + (n - 1) * (1 - r)**2
        b = sum of all u * v = (1 - r**2) * d[0] + (1 - r) * (sum of all d[i] - r * d[i - 1])
        c = sum of all u**2

    As a is above 0, the least sum is c - b**2 / a, at m = b / a.

    Args:
        sums: Sums over the deviations d.
        r: The assumed correlation of neighbours, between -1 and 1.

    Returns:
        The least sum, which is above 0 if some deviation is not 0.
    """
    # Each of these functions returns its coefficient in a form that needs no loop over the deviations.
    a = _weight_of_mean(r, sums.n)
    b = _linear_coefficient(sums, r)
    c = _noise_squares_about_plain_mean(sums, r)
    least = c - b**2 / a
    # The caller takes the logarithm, so rounding must not leave 0 or less. For each r in CORRELATIONS, the floor is far
    # below the exact least sum.
    return max(least, 1e-12 * sums.squares)


def _linear_coefficient(sums: DeviationSums, r: float) -> float:
    """Return b, a coefficient in the sum of squared noise of a first-order autoregression: a * m**2 - 2 * b * m + c.

    Here m is an assumed true mean less the plain mean of the n values. With the deviations d of the values from their
    plain mean, the noise is (`_least_noise_squares`)

        sqrt(1 - r**2) * d[0] - sqrt(1 - r**2) * m      of the first value
        (d[i] - r * d[i - 1]) - (1 - r) * m             of each later value, i = 1 to n - 1

    Each line has the form u - v * m, and its square has the term -2 * u * v * m. So b is the sum of all u * v:

        b = (1 - r**2) * d[0] + (1 - r) * (sum of all d[i] - r * sum of all d[i - 1])

    All n deviations add up to 0. So all d[i], which lack d[0], add up to -d[0]. All d[i - 1], which lack d[n - 1], add
    up to -d[n - 1]:

        b = (1 - r) * (1 + r) * d[0] + (1 - r) * (-d[0] + r * d[n - 1])
          = (1 - r) * r * (d[0] + d[n - 1])

    Args:
        sums: Sums over the deviations d.
        r: The assumed correlation of neighbours, between -1 and 1.
    """
    return (1 - r) * r * sums.ends  # `ends` is d[0] + d[n - 1]


def _noise_squares_about_plain_mean(sums: DeviationSums, r: float) -> float:
    """Return the sum of squared noise of a first-order autoregression about the plain mean of its values.

    With the deviations d of the values from the plain mean, it is

        (1 - r**2) * d[0]**2 + (d[1] - r * d[0])**2 + ... + (d[n - 1] - r * d[n - 2])**2

    With squares = d[0]**2 + ... + d[n - 1]**2 and products = d[0] * d[1] + ... + d[n - 2] * d[n - 1], the sum is

        squares - r**2 * d[0]**2 + r**2 * (squares - d[n - 1]**2) - 2 * r * products
        = squares + r**2 * (squares - (d[0]**2 + d[n - 1]**2)) - 2 * r * products

    Args:
        sums: These sums over the deviations d. `squares_of_ends` is d[0]**2 + d[n - 1]**2.
        r: The assumed correlation of neighbours, between -1 and 1.
    """
    return sums.squares + r**2 * (sums.squares - sums.squares_of_ends) - 2 * r * sums.products


def _weight_of_mean(r: float, n: int) -> float:
    """Return 1 / the variance of the best estimate of an autoregression's true mean, for noise of variance 1.

    The n values x are a first-order autoregression about a true mean mu. The noise that some mu implies is

        sqrt(1 - r**2) * x[0] - sqrt(1 - r**2) * mu     of the first value
        (x[i] - r * x[i - 1]) - (1 - r) * mu            of each of the n - 1 later values

    (No value comes before the first one. The variance of x[0] is 1 / (1 - r**2), and the root turns that into 1.) In
    the sum of the squared noise, mu**2 has the factor

        a = (1 - r**2) + (n - 1) * (1 - r)**2
          = (1 - r) * ((1 + r) + (n - 1) * (1 - r))
          = (1 - r) * (n - (n - 2) * r)

    The likelihood of mu is proportional to exp(-(sum of the squared noise) / 2). As a function of mu, this is a normal
    density with the variance 1 / a. So the result is a.

    Args:
        r: The correlation of neighbours, between -1 and 1.
        n: The number of values.
    """
    return (1 - r) * (n - (n - 2) * r)  # n for r = 0: the mean of n independent values has the variance 1 / n


def _log_likelihood(noise_squares: float, r: float, n: int) -> float:
    """Return the logarithm of the likelihood of a correlation r of neighbours, less a constant that is equal for all r.

    With Q for `noise_squares`, the likelihood is

        sqrt((1 - r**2) / a) * Q**(-(n - 1) / 2),   a = _weight_of_mean(r, n)

    The model is a first-order autoregression with normal noise. Its true mean and the standard deviation sigma of its
    noise are not known. So the likelihood is integrated over the true mean and over log(sigma), with flat priors on
    both (Zellner and Tiao, JASA 59, 1964). These steps leave out constant factors:

    1. Let m be the true mean less the plain mean. The sum of squared noise is least, namely Q, at some m0, and is
       Q + a * (m - m0)**2 at any m. For given m and sigma, the likelihood is

           sqrt(1 - r**2) * sigma**-n * exp(-(Q + a * (m - m0)**2) / (2 * sigma**2))

    2. The integral of exp(-a * (m - m0)**2 / (2 * sigma**2)) over m is sigma / sqrt(a). That leaves

           sqrt((1 - r**2) / a) * sigma**-(n - 1) * exp(-Q / (2 * sigma**2))

    3. The integral of sigma**-(n - 1) * exp(-Q / (2 * sigma**2)) over log(sigma) is Q**(-(n - 1) / 2).

    Args:
        noise_squares: The least sum of the squared noise, as `_least_noise_squares` returns it. Above 0.
        r: The correlation, between -1 and 1.
        n: The number of values.
    """
    a = _weight_of_mean(r, n)  # 1 / the variance of the best estimate of the true mean, for noise of variance 1
    return 0.5 * math.log((1 - r**2) / a) - (n - 1) / 2 * math.log(noise_squares)


def _variance_of_mean(r: float, n: int) -> float:
    """Return the variance of the plain mean of a first-order autoregression, for noise of variance 1.

    One value has the variance 1 / (1 - r**2), two values that are k places apart have the correlation r**k, and n - k
    pairs of the n values are k places apart. So the variance of the mean is

        (1 + 2 * S) / (n * (1 - r**2)),   S = sum of (1 - k / n) * r**k for k = 1 to n - 1

    For S without a loop, r * n * S is subtracted from n * S:

        n * S           = (n - 1) * r + (n - 2) * r**2 + ... + r**(n - 1)
        r * n * S       =               (n - 1) * r**2 + ... + 2 * r**(n - 1) + r**n
        (1 - r) * n * S = (n - 1) * r - (r**2 + ... + r**n)
                        = n * r - (r + r**2 + ... + r**n)
                        = n * r - r * (1 - r**n) / (1 - r)

        S = r / (1 - r) - r * (1 - r**n) / (n * (1 - r)**2)

    Args:
        r: The correlation of neighbours, between -1 and 1.
        n: The number of values.
    """
    # 2 * S = first_term - second_term, such as r for n = 2
    first_term = 2 * r / (1 - r)
    second_term = 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    return (1 + first_term - second_term) / (n * (1 - r * r))
