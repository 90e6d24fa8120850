"""Who of several nodes or links is slow beside the others, by the place of each on a scale of logarithms of times.

Who does not belong is found by Rosner's generalized test (Technometrics 25, 1983): the farthest from the median are
set aside one after the other, so that several do not hide each other, and each is compared with mean and standard
deviation of those left. Three or five others tell little of how healthy ones differ, so that test is weak where few
are; hence a second way to be named: a minority that takes over twice the time of all others.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from runlog import stats
from scoring.figure.calibration import smallest_difference

LEAST_NODES = 4  # of three the odd one cannot be told
STEPWISE = 2.0  # the chance of a name over one step's: up to 2.2 at 5 to 16 nodes, 1 at 64 (simulated, normal places)
LEAST_DEVIATION = 1e-9  # of logarithms of times: equal ones have none to divide by
LEAST_T = 3.0  # standard errors that an outlier is away at least, whatever `alpha` would allow
APART = 2.0  # times as slow as the slowest of the others, beyond errors: no difference between healthy machines


# ---- the place of one, by its turns


def place_of(log_ratios: Sequence[float]) -> float:
    """Return the place of a node or link: a centre of its log ratios, which varies less than their median does.

    It is Hodges and Lehmann's estimate: the median of the means of every two turns, each also with itself.
    """
    pairs = itertools.combinations_with_replacement(log_ratios, 2)
    return statistics.median((first + second) / 2 for first, second in pairs)


def error_of(log_ratios: Sequence[float]) -> float:
    """Return the standard error of a place (`place_of`), by the median absolute deviation (MAD) of the turns.

    In normal noise the variance of a place is pi / 3 times that of a mean of as many turns.
    """
    centre = statistics.median(log_ratios)
    mad = statistics.median(abs(value - centre) for value in log_ratios)
    deviation = 1.4826 * mad  # the standard deviation of a normal distribution with this MAD
    return math.sqrt(math.pi / 3) * deviation / math.sqrt(len(log_ratios))


# ---- which of several are slow


def slow(places: Mapping[str, float], *, noise: float, alpha: float) -> list[str]:
    """Return the names of those that are slow beside the others, in the order of `places`; none of fewer than four.

    `places` has for each name the logarithm of its time over the fleet's. `noise` is the error of such a place, `alpha`
    the chance that a healthy fleet has one named. There are two ways to be named: as an outlier above the others, and
    as one of a minority that takes more than APART times as long as all others.
    """
    if len(places) < LEAST_NODES:
        return []
    centre = statistics.median(places.values())
    distances = {name: place - centre for name, place in places.items()}
    named = _outliers(distances, noise=noise, alpha=alpha) | _slow_minority(distances, noise=noise)
    return [name for name in places if name in named]


def _outliers(distances: Mapping[str, float], *, noise: float, alpha: float) -> set[str]:
    """Return the names of those above the centre that Rosner's test sets aside, by their distances from the centre.

    The farthest from the centre is compared with mean and standard deviation of all nearer ones, then the next farthest
    with those nearer still, down to half of all. One differs if it is so far above their mean that chance hardly
    explains it. The nearest one that differs is an outlier, and so are all that are farther. Of these, the ones below
    the centre are fast, and those that are only a little above it do not matter: neither is returned. `noise` is the
    least standard deviation that is believed, `alpha` the chance that one of healthy nodes is named.
    """
    from_near_to_far = sorted(distances, key=lambda name: abs(distances[name]))
    values = np.array([distances[name] for name in from_near_to_far])
    count = len(values)
    first_outlier = count  # an index of from_near_to_far; at first there is none
    for candidate in range(count - 1, count // 2, -1):  # from the farthest on
        nearer = values[:candidate]
        deviation = max(float(nearer.std(ddof=1)), noise, LEAST_DEVIATION)
        error_of_difference = deviation * math.sqrt(1 + 1 / candidate)  # of one value and a mean of `candidate`
        t = float(values[candidate] - nearer.mean()) / error_of_difference
        chance_of_any = (1 - stats.t_cdf(t, candidate - 1)) * (candidate + 1)  # of `candidate` + 1 healthy ones
        # One that differs takes all farther ones along, also those that hid each other in an earlier step.
        if t > LEAST_T and chance_of_any <= alpha / STEPWISE:
            first_outlier = candidate
    least_distance = smallest_difference()  # of speed, that counts
    return {name for name in from_near_to_far[first_outlier:] if distances[name] > least_distance}


def _slow_minority(distances: Mapping[str, float], *, noise: float) -> set[str]:
    """Return the largest minority whose fastest takes over APART times as long as the slowest of the others.

    `distances` are logarithms of times. `noise` is the error of one: the gap must be three errors wider. The set is
    empty where there is no such minority.
    """
    from_slow_to_fast = sorted(distances, key=lambda name: -distances[name])
    gap = math.log(APART) + 3 * noise
    largest = 0
    for size in range(1, (len(distances) + 1) // 2):  # fewer than half of all
        fastest_inside = from_slow_to_fast[size - 1]
        slowest_outside = from_slow_to_fast[size]
        if distances[fastest_inside] - distances[slowest_outside] > gap:
            largest = size
    return set(from_slow_to_fast[:largest])
