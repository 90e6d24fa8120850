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
    are no intervals, and `method` says why, if:

    - `over_steps` is own_summary: the figure is the one that the log closes with. It has no standard deviation either.
    - `over_steps` is run_time or between_stamps: the figure is the difference of two time stamps. It has no standard
      deviation either.
    - The log prints running averages, and `over_steps` averages these. They are not independent.
    - `over_steps` is epoch_rates: the widths are not calibrated for printed summaries of epochs.
    - The windows are too few or too uneven.

    From the third case on, the standard deviation is that of the windows' rates.
    """
    if protocol.over_steps == "own_summary":
        return Intervals(deviation=None, method="none: the log says one figure")
    if protocol.over_steps in ("run_time", "between_stamps"):
        return Intervals(deviation=None, method="none: one run, and the protocol takes one difference of time stamps")

    deviation = spread.sd(run.rates)
    # Only these two methods average the printed values. If `cumulative`, the printed values are running averages.
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return Intervals(deviation=deviation, method="none: running averages are no independent windows")
    if protocol.over_steps == "epoch_rates":
        return Intervals(deviation=deviation, method="none: widths are not calibrated for printed epochs")
    return _intervals_by_calibrated_widths(run, kind_of(record), deviation)


def _intervals_by_calibrated_widths(run: RunFigure, kind: str, deviation: float | None) -> Intervals:
    """Return the intervals of a run, with the widths that published logs showed for windows of its kind and number.

    - `run_95` is where the mean of the whole run lies, and `interval_95` is the same.
    - `repeat_95` is where the figure of another run lies; None if the windows are too few for it.
    - `deviation` is the given one: the standard deviation of the windows' rates.

    If the windows are too few or too uneven, all three intervals are None, and `method` says why. `kind` is EPOCHS or
    ROWS.
    """
    windows = len(run.rates)
    calibrated_widths = calibration().run[kind]
    width = width_for(calibrated_widths, windows)
    if width is None:
        return Intervals(deviation=deviation, method=_why_no_width(calibrated_widths, kind))

    times = [1 / rate for rate in run.rates]  # a stall makes one time very long, but one rate only a little lower
    half_share = width.half_width(spread.relative_sd(times))  # half the width of `run_95`, as a share of the figure
    # `windows_interval_95` is None for too few or too uneven windows. Here they are enough, so they are too uneven.
    if half_share > 1 or run.windows_interval_95 is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")

    run_95 = spread.around(run.value, half_share)
    return Intervals(
        deviation=deviation,
        interval_95=run_95,
        method=f"from {windows} windows of one run",
        run_95=run_95,
        repeat_95=_interval_of_repeat(run, run.windows_interval_95, kind),
    )


def _interval_of_repeat(run: RunFigure, windows_interval: Bounds, kind: str) -> Bounds | None:
    """Return the 95 % interval of the figure of another run; None if the run has too few windows for this calibration.

    It is calibrated by the width of `windows_interval`, which the run's windows alone give.
    """
    width = width_for(calibration().repeat[kind], len(run.rates))
    if width is None:
        return None
    half_share_of_windows = spread.half_share(windows_interval)
    return spread.around(run.value, width.half_width(half_share_of_windows))


def _why_no_width(widths: Sequence[Width], kind: str) -> str:
    """Return why no calibrated width holds for a run: there is none for this kind of windows, or it has too few."""
    if not widths:
        return f"none: widths are not calibrated for {kind}"
    least = min(width.windows for width in widths)
    return f"none: fewer than {least} windows of one run"


def intervals_of_several_runs(runs: Sequence[RunFigure], records: Sequence[Record], protocol: Protocol) -> Intervals:
    """Return the 95 % interval of the figure of several runs, how it was made, and the runs' standard deviation.

    Without an interval, the result's `method` says why.
    """
    values = [run.value for run in runs]  # infinite for a run that did not converge
    deviation = spread.sd([value for value in values if math.isfinite(value)])
    hosts = hosts_of_runs(records)
    runs_in_words = f"{len(runs)} runs"
    if hosts is not None and len(set(hosts)) == 1:
        runs_in_words += " of one host"

    made = _interval_by_protocol(values, runs_in_words, hosts, protocol)
    if made.bounds is None:
        why_none = f"none: {runs_in_words}, {made.needed}"  # such as "none: 3 runs, order statistics need 5"
        return Intervals(deviation=deviation, method=why_none)
    if spread.has_no_width(made.bounds):
        says = "print one and the same figure, in too few digits to tell how far they lie apart"
        return Intervals(deviation=deviation, method=f"none: {runs_in_words} {says}")
    return Intervals(deviation=deviation, interval_95=made.bounds, method=made.method)


class _IntervalOfRuns(NamedTuple):
    """A 95 % interval of several runs, if they are enough for one."""

    bounds: Bounds | None  # None: too few runs or hosts
    method: str  # how the bounds were made, in words
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
    # `needed` ends a text such as "none: 3 runs, order statistics need 5". The last one below says that the interval of
    # a mean needs 2 runs.
    if protocol.over_runs == "median":
        return _interval_of_median(values, runs_in_words)
    if protocol.over_runs == "olympic_mean":
        return _interval_of_olympic_mean(values, runs_in_words, protocol.dropped_runs)
    if hosts is not None and _some_host_ran_twice(hosts):  # and there are two hosts or more
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
