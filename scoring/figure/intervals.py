"""The 95 % intervals of a score: of one run by calibrated widths, of several runs by the spread between them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scoring.figure import spread
from scoring.figure.calibration import Width, calibration, kind_of, width_for
from scoring.figure.levels import hosts_of_runs, independent_values
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure
from scoring.record import Record

Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """The intervals of a figure. None: not known, and `method` says why."""

    deviation: float | None  # sample standard deviation in the score's unit
    interval_95: Bounds | None = None
    method: str
    run_95: Bounds | None = None  # of one run: where the mean of the whole run lies
    repeat_95: Bounds | None = None  # of one run: where the figure of another run of the system lies


def intervals_of_one_run(run: RunFigure, record: Record, protocol: Protocol) -> Intervals:
    """Return the two 95 % intervals of a single run: one for its own mean, and one for another run of the system.

    The intervals need a figure that is made of windows, because their widths were calibrated for such figures. There
    are none, and `method` says why, if:

    - the figure is the log's own closing figure, or the time between two time stamps,
    - the windows are running averages,
    - the windows are printed summaries of epochs,
    - the windows are too few or too uneven.

    The first case has no standard deviation either; in the others it is that of the windows' rates.
    """
    if protocol.over_steps == "own_summary":
        return Intervals(deviation=None, method="none: the log says one figure")
    if protocol.over_steps in ("run_time", "between_stamps"):
        return Intervals(deviation=None, method="none: one run, and the protocol takes one difference of time stamps")

    deviation = spread.sd(run.rates)
    # Only these two methods read the printed values, which are the running averages.
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return Intervals(deviation=deviation, method="none: running averages are no independent windows")
    if protocol.over_steps == "epoch_rates":
        return Intervals(deviation=deviation, method="none: widths are not calibrated for printed epochs")
    return _intervals_by_calibrated_widths(run, kind_of(record), deviation)


def _intervals_by_calibrated_widths(run: RunFigure, kind: str, deviation: float | None) -> Intervals:
    """Return the intervals of a run, with the widths that published logs showed for windows of its kind and number.

    `kind` is EPOCHS or ROWS. `deviation` is passed on into the result. The half-width of each interval, as a share of
    the figure, is calibrated by another scale:

    - `run_95`, which is also `interval_95`: by the relative standard deviation of the windows' times.
    - `repeat_95`: by the half-width of the interval that the windows alone give. It is None if the run has too few
      windows for this calibration.

    There are no intervals, and `method` says why, if the windows are too few for `run_95`, or are too uneven.
    """
    windows = len(run.rates)
    widths_of_run = calibration().run[kind]
    width_of_run = width_for(widths_of_run, windows)
    if width_of_run is None:
        return Intervals(deviation=deviation, method=_why_no_width(widths_of_run, kind))

    times = [1 / rate for rate in run.rates]  # a stall makes one time very long, but one rate only a little lower
    half_width_of_run = width_of_run.half_width(spread.relative_sd(times))
    if half_width_of_run > 1 or run.windows_interval_95 is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")

    run_95 = spread.around(run.value, half_width_of_run)
    repeat_95 = None
    width_of_repeat = width_for(calibration().repeat[kind], windows)
    if width_of_repeat is not None:
        half_width_of_windows = spread.half_share(run.windows_interval_95)
        repeat_95 = spread.around(run.value, width_of_repeat.half_width(half_width_of_windows))
    return Intervals(
        deviation=deviation,
        interval_95=run_95,
        method=f"from {windows} windows of one run",
        run_95=run_95,
        repeat_95=repeat_95,
    )


def _why_no_width(widths: Sequence[Width], kind: str) -> str:
    """Return why no calibrated width holds for a run: there is none for this kind of windows, or it has too few."""
    if not widths:
        return f"none: widths are not calibrated for {kind}"
    least = min(width.windows for width in widths)
    return f"none: fewer than {least} windows of one run"


def intervals_of_several_runs(runs: Sequence[RunFigure], records: Sequence[Record], protocol: Protocol) -> Intervals:
    """Return the 95 % interval of the figure of several runs, how it was made, and the runs' standard deviation.

    The figure is the mean, median or olympic mean of the runs, as the protocol says. The interval is None, and `method`
    says why, if the runs are too few, or if all of them print the same figure.

    Runs that did not converge have no part in the standard deviation.
    """
    values = [run.value for run in runs]  # infinite for a run that did not converge
    hosts = hosts_of_runs(records)
    runs_in_words = f"{len(runs)} runs"
    if hosts is not None and len(set(hosts)) == 1:
        runs_in_words += " of one host"

    made = _interval_by_protocol(values, runs_in_words, hosts, protocol)
    bounds = made.bounds
    method = made.method
    if bounds is None:
        method = f"none: {runs_in_words}, {made.needed}"  # such as "none: 3 runs, order statistics need 5"
    elif spread.has_no_width(bounds):
        bounds = None
        why = "print one and the same figure, in too few digits to tell how far they lie apart"
        method = f"none: {runs_in_words} {why}"
    deviation = spread.sd([value for value in values if math.isfinite(value)])
    return Intervals(deviation=deviation, interval_95=bounds, method=method)


class _IntervalOfRuns(NamedTuple):
    """A 95 % interval of several runs, if they are enough for one."""

    bounds: Bounds | None
    method: str  # how it was made, in words
    needed: str  # how many runs or hosts the method needs, in words


def _interval_by_protocol(
    values: Sequence[float], runs_in_words: str, hosts: Sequence[str] | None, protocol: Protocol
) -> _IntervalOfRuns:
    """Return the interval of several runs, by the method for the protocol's figure.

    - A median: order statistics.
    - An olympic mean: Yuen's t.
    - A mean, if the runs are of several hosts and some host has several runs: Student's t over the means of the hosts,
      because runs on one host lie closer together than hosts do.
    - Any other mean: Student's t over the runs.

    `hosts` names the host of each run; None if not known. `runs_in_words` is such as "7 runs of one host".
    """
    if protocol.over_runs == "median":
        return _interval_of_median(values, runs_in_words)
    if protocol.over_runs == "olympic_mean":
        return _interval_of_olympic_mean(values, runs_in_words, protocol.dropped_runs)
    if hosts is not None and _some_host_ran_twice(hosts):
        return _interval_over_hosts(values, runs_in_words, hosts)
    bounds = _bounds_of(spread.mean_of(values))
    return _IntervalOfRuns(bounds, f"t over {runs_in_words}", needed="a mean's needs 2")


def _interval_of_median(values: Sequence[float], runs_in_words: str) -> _IntervalOfRuns:
    """Return the interval of the median of runs by order statistics. It needs five runs."""
    method = f"order statistics of {runs_in_words}"
    if len(values) == 5:  # even the least and the greatest of five hold the median in no more than 1 - 2 / 2**5
        method += ", least to greatest: 93.75 %"
    return _IntervalOfRuns(spread.median_interval(values), method, needed="order statistics need 5")


def _interval_of_olympic_mean(values: Sequence[float], runs_in_words: str, dropped: int) -> _IntervalOfRuns:
    """Return the interval of the mean of runs without the `dropped` least and the `dropped` greatest values."""
    bounds = _bounds_of(spread.mean_of(values, dropped=dropped))
    method = f"Yuen's t of the olympic mean over {runs_in_words}"
    runs_needed = 2 * dropped + 2  # two must be left
    return _IntervalOfRuns(bounds, method, needed=f"an olympic mean's needs {runs_needed}")


def _interval_over_hosts(values: Sequence[float], runs_in_words: str, hosts: Sequence[str]) -> _IntervalOfRuns:
    """Return the interval of the mean of runs, made of the means of their hosts."""
    means_of_hosts = independent_values(values, hosts)
    bounds = _bounds_over_hosts(means_of_hosts, statistics.fmean(values))
    method = f"t over the means of {len(means_of_hosts)} hosts, {runs_in_words}"
    return _IntervalOfRuns(bounds, method, needed="two hosts are needed")


def _some_host_ran_twice(hosts: Sequence[str]) -> bool:
    """Tell whether runs are of two hosts or more, and some host has several runs; `hosts` has one name for each run."""
    different_hosts = len(set(hosts))
    return 1 < different_hosts < len(hosts)


def _bounds_of(estimate: spread.Estimate | None) -> Bounds | None:
    """Return the 95 % interval of a mean; None if there is no mean, because the values are too few."""
    return None if estimate is None else estimate.interval_95


def _bounds_over_hosts(means_of_hosts: Sequence[float], mean_of_runs: float) -> Bounds | None:
    """Return the 95 % interval of the mean of hosts, scaled so that it lies around the mean of all runs.

    The two means differ if the hosts have unequal numbers of runs. Returns None for fewer than two hosts.
    """
    interval = _bounds_of(spread.mean_of(means_of_hosts))
    if interval is None:
        return None
    low, high = interval
    scale = mean_of_runs / statistics.fmean(means_of_hosts)
    return low * scale, high * scale
