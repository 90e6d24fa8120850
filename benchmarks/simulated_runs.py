"""Runs of known rate, simulated, and how often the intervals and verdicts of `scoring` are right about them.

Windows scatter by 2 % with first-order correlation, and runs lie 1 % apart themselves. Noise is normal, or skewed
(gamma, skewness 1 and 2), with its tail on the side of slow runs, as runs are slow by accident and never fast.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.cells import Cell
from program.arrays import Array
from runlog import stats
from scoring.figure import history, medians, series, spread
from scoring.figure.mean_ratio import Runs

RATE = 100.0  # the true rate of every system
BETWEEN = 0.01  # standard deviation of the runs, as a share of the rate
WITHIN = 0.02  # of the windows of a run
WINDOWS = 40  # of a run
BURN_IN = 30  # windows before the first one, so that their correlation does not begin with it
TRUTHS = 200_000  # systems by which the true value of an olympic mean or a median is found
OUTLYING = 1.0  # percent that an outlier is off the rate, at least
COUNTS = (3, 5, 7)  # runs of a system
GAMMA_OF_SHAPE = {"normal": 0.0, "skewed (1)": 4.0, "skewed (2)": 1.0}  # the skewness is 2 / its root
NORMAL = "normal"
WITHOUT_TARGET = "skewed (2)"  # Student's t misses it, and published repeats do not show it
MIN_HELD = 0.93  # of 95 % intervals
MAX_HELD = 0.97
MAX_FALSE = 0.05  # of verdicts
Interval = tuple[float, float] | None


# ---- drawing runs


def noise(draw: np.random.Generator, shape: str, size: tuple[int, ...]) -> Array:
    """Return noise of mean 0 and deviation 1."""
    gamma = GAMMA_OF_SHAPE[shape]
    if not gamma:
        return draw.standard_normal(size)
    return (gamma - draw.gamma(gamma, size=size)) / gamma**0.5


def correlated(draw: np.random.Generator, shape: str, size: tuple[int, int], correlation: float) -> Array:
    """Return series with first-order correlation along the last axis, of mean 0 and deviation 1."""
    series = noise(draw, shape, (size[0], size[1] + BURN_IN))
    of_new = (1 - correlation**2) ** 0.5
    for at in range(1, series.shape[1]):
        series[:, at] = correlation * series[:, at - 1] + of_new * series[:, at]
    return series[:, BURN_IN:]


def systems(draw: np.random.Generator, shape: str, size: tuple[int, int], correlation: float) -> Array:
    """Return the figures of `size[1]` runs of each of `size[0]` systems, with the error that their windows leave."""
    lags = np.arange(1, WINDOWS)
    correlations = (1 - lags / WINDOWS) * correlation**lags
    variance_of_mean = (1 + 2 * float(correlations.sum())) / WINDOWS
    of_runs = BETWEEN * noise(draw, shape, size)
    of_windows = WITHIN * variance_of_mean**0.5 * draw.standard_normal(size)
    return RATE * (1 + of_runs + of_windows)


# ---- the means of several runs


class Mean(NamedTuple):
    """A mean of several runs: its interval, and what the runs of many systems make of it."""

    interval: Callable[[Sequence[float]], Interval]
    of_systems: Callable[[Array], Array]  # a row each
    dropped: int = 0  # runs at each end


def _interval_of_mean(runs: Sequence[float]) -> Interval:
    """Return the interval of a mean; None of too few runs."""
    found = spread.mean_of(runs)
    return found.interval_95 if found else None


def _interval_of_olympic_mean(runs: Sequence[float]) -> Interval:
    """Return the interval of an olympic mean; None of too few runs."""
    found = spread.olympic_mean_of(runs, dropped=1)
    return found.interval_95 if found else None


def _means(runs: Array) -> Array:
    """Return the mean of each system."""
    return runs.mean(1)


def _median_of_all(runs: Array) -> Array:
    """Return the median over all runs of all systems, which are alike, as an array of no dimension."""
    return np.asarray(np.median(runs))


def _olympic_means(runs: Array) -> Array:
    """Return the olympic mean of each system."""
    return np.sort(runs, axis=1)[:, 1:-1].mean(1)


MEAN = "mean"
MEDIAN = "median"
MEANS = {
    MEAN: Mean(_interval_of_mean, _means),
    MEDIAN: Mean(medians.median_interval, _median_of_all),
    "olympic mean": Mean(_interval_of_olympic_mean, _olympic_means, dropped=1),
}


def _truth(draw: np.random.Generator, name: str, shape: str, count: int, correlation: float) -> float:
    """Return what the intervals of a mean of `count` runs should hold; of a skewed shape that is not the rate."""
    runs = systems(draw, shape, (TRUTHS, 1 if name == MEDIAN else count), correlation)
    return float(MEANS[name].of_systems(runs).mean())


def _share(verdicts: Iterable[bool]) -> float:
    """Return the share of verdicts that are true."""
    return float(np.mean(list(verdicts)))


def _held(intervals: Iterable[Interval], truth: float) -> float:
    """Return the share of the intervals that hold the truth."""
    return _share(found is not None and found[0] <= truth <= found[1] for found in intervals)


# ---- what is counted


def one_run(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Count how often the interval of a run's windows holds its rate."""
    for correlation in (0.0, 0.3, 0.6):
        for count in (10, 20, 40, 200):
            yield _one_run(draw, repeats, NORMAL, correlation, count)
    yield _one_run(draw, repeats, "skewed (1)", 0.3, 40)


def _one_run(draw: np.random.Generator, repeats: int, shape: str, correlation: float, count: int) -> Cell:
    """Count it for one shape, correlation and number of windows."""
    windows = RATE * (1 + WITHIN * correlated(draw, shape, (repeats, count), correlation))
    return Cell(
        row=f"within a run, {shape}, correlation {correlation:g}",
        column=f"{count} windows",
        share=_held(map(series.series_interval, windows.tolist()), RATE),
        least=MIN_HELD,
        most=MAX_HELD,
        of=repeats,
    )


def several_runs(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Count how often the intervals of means hold, and how often a healthy set is said to hold an outlier."""
    for shape in GAMMA_OF_SHAPE:
        for count in COUNTS:
            for correlation in (0.0, 0.6) if shape == NORMAL else (0.3,):
                yield from _coverage_of_means(draw, repeats, shape, count, correlation)
            yield _false_outliers(draw, repeats, shape, count)


def _coverage_of_means(
    draw: np.random.Generator, repeats: int, shape: str, count: int, correlation: float
) -> Iterator[Cell]:
    """Count how often the interval of each mean holds; a mean that has none of so few runs is left out."""
    for name, mean in MEANS.items():
        runs = systems(draw, shape, (repeats, count), correlation)
        if mean.interval(runs[0].tolist()) is None:
            continue
        truth = _truth(draw, name, shape, count, correlation)
        has_target = shape != WITHOUT_TARGET or name == MEDIAN
        yield Cell(
            row=f"{name}, {shape}, correlation {correlation:g}",
            column=f"{count} runs",
            share=_held(map(mean.interval, runs.tolist()), truth),
            least=MIN_HELD if has_target else None,
            most=MAX_HELD if has_target else None,
            of=repeats,
        )


def _false_outliers(draw: np.random.Generator, repeats: int, shape: str, count: int) -> Cell:
    """Count how often a healthy set is said to hold an outlier."""
    runs = systems(draw, shape, (repeats, count), 0.3)
    return Cell(
        row=f"outlying_run, {shape}",
        column=f"{count} runs",
        share=_share(map(_has_outlier, runs.tolist())),
        most=None if shape == WITHOUT_TARGET else MAX_FALSE,
        of=repeats,
    )


def _has_outlier(runs: Sequence[float]) -> bool:
    """Return whether a run is said to be an outlier."""
    at = spread.outlier(runs)
    return at is not None and abs(runs[at] - RATE) > OUTLYING


def two_systems(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Count false "different", and how often a real difference is found."""
    for faster, shape in ((0, NORMAL), (0, "skewed (1)"), (1, NORMAL), (2, NORMAL), (3, NORMAL)):
        for count in COUNTS:
            for name in MEANS:
                if name == MEAN or count >= 5:  # others are refused, or find as good as nothing
                    yield _called_different(draw, repeats, faster, shape, count, name)
        yield _single_runs(draw, repeats, faster, shape)


def _what(faster: int) -> str:
    """Return in words what is counted of systems of which one is faster by so many percent."""
    return f"found: {faster} % faster" if faster else "false different"


def _called_different(draw: np.random.Generator, repeats: int, faster: int, shape: str, count: int, name: str) -> Cell:
    """Count how often `compare` would call two systems different."""
    base = systems(draw, shape, (repeats, count), 0.3)
    other = systems(draw, shape, (repeats, count), 0.3) * (1 + faster / 100)
    pairs = zip(base.tolist(), other.tolist(), strict=True)
    return Cell(
        row=f"{_what(faster)}, {name}, {shape}",
        column=f"{count} runs each",
        share=_share(different(name, of_base, of_other) for of_base, of_other in pairs),
        most=None if faster else MAX_FALSE,
        of=repeats,
    )


def different(name: str, base: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether `compare` would call two systems different."""
    interval = None
    if name == MEDIAN:
        interval = medians.median_ratio_interval(base, other)
    else:
        dropped = MEANS[name].dropped
        mean_base = spread.olympic_mean_of(base, dropped=dropped)
        mean_other = spread.olympic_mean_of(other, dropped=dropped)
        if mean_base and mean_other:
            interval = spread.mean_ratio_interval(mean_base, mean_other)
    return interval is not None and not interval[0] <= 1 <= interval[1]


def _single_runs(draw: np.random.Generator, repeats: int, faster: int, shape: str) -> Cell:
    """Count it for single runs, judged by the spread of five others."""
    base = systems(draw, shape, (repeats, 1), 0.3)
    other = systems(draw, shape, (repeats, 1), 0.3) * (1 + faster / 100)
    known = systems(draw, shape, (repeats, 5), 0.3)
    relative_sds = known.std(axis=1, ddof=1) / known.mean(1)
    halves = stats.t_quantile(4, spread.SINGLE_RUN_PROBABILITY) * relative_sds * 2**0.5
    distances = abs(np.log(other / base)[:, 0])
    return Cell(
        row=f"{_what(faster)}, single runs, 5 others known, {shape}",
        column="1 run each",
        share=float(np.mean(distances > halves)),
        most=None if faster else MAX_FALSE,
        of=repeats,
    )


def trend(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Count how often `history check` calls new runs lower than ten earlier ones."""
    for lower in (0, 3):
        for count in (5, 1):
            past = systems(draw, NORMAL, (repeats, 10), 0.3)
            new = systems(draw, NORMAL, (repeats, count), 0.3) * (1 - lower / 100)
            least = 0.9 if lower and count == 5 else None
            yield Cell(
                row=f"called lower, {lower} % lower" if lower else "called lower, no change",
                column="1 new run" if count == 1 else f"{count} new runs",
                share=_share(map(_called_lower, past.tolist(), new.tolist())),
                least=least,
                most=None if lower else MAX_FALSE,
                of=repeats,
            )


def _called_lower(past: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether `history check` would call new runs lower."""
    bounds = history.interval_of_new_to_past(Runs(past, hosts=None), Runs(new, hosts=None))
    return bounds is not None and bounds[1] < 1
