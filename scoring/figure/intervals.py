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
    """Return the two 95 % intervals of a single run: where its own mean lies, and where another run would lie.

    Their widths were learnt from published logs, for figures that are made of windows. Where a figure is made of
    anything else, or of too few or too uneven windows, there is no interval and `method` says why.
    """
    if protocol.over_steps == "own_summary":
        return Intervals(deviation=None, method="none: the log says one figure")
    if protocol.over_steps in ("run_time", "between_stamps"):
        return Intervals(deviation=None, method="none: one run, and the protocol takes one difference of time stamps")

    deviation = spread.sd(run.rates)
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return Intervals(deviation=deviation, method="none: running averages are no independent windows")
    if protocol.over_steps == "epoch_rates":
        return Intervals(deviation=deviation, method="none: widths are not calibrated for printed epochs")
    return _by_calibrated_widths(run, kind_of(record), deviation)


def _by_calibrated_widths(run: RunFigure, kind: str, deviation: float | None) -> Intervals:
    """Return the intervals of a run by the widths that published logs gave for its kind and number of windows.

    `kind` is that of the windows, EPOCHS or ROWS. `deviation` is put into the result as it is. There are no intervals,
    and `method` says why, for fewer windows than a width is known for, and where the windows are too uneven: where half
    the width would exceed the figure, or the windows alone make no interval. The interval of another run is None where
    no width of that is known for so few windows.
    """
    windows = len(run.rates)
    widths_of_run = calibration().run[kind]
    width_of_run = width_for(widths_of_run, windows)
    if width_of_run is None:
        return Intervals(deviation=deviation, method=_why_no_width(widths_of_run, kind))

    times = [1 / rate for rate in run.rates]  # not rates, as a stall makes one time very long
    half_width = width_of_run.half_width(spread.relative_sd(times))
    if half_width > 1 or run.windows_interval_95 is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")

    interval_of_run = spread.around(run.value, half_width)
    interval_of_repeat = None
    width_of_repeat = width_for(calibration().repeat[kind], windows)
    if width_of_repeat is not None:
        by_windows_alone = spread.half_share(run.windows_interval_95)
        interval_of_repeat = spread.around(run.value, width_of_repeat.half_width(by_windows_alone))
    return Intervals(
        deviation=deviation,
        interval_95=interval_of_run,
        method=f"from {windows} windows of one run",
        run_95=interval_of_run,
        repeat_95=interval_of_repeat,
    )


def _why_no_width(widths: Sequence[Width], kind: str) -> str:
    """Return why no calibrated width holds for a run: there is none for this kind of windows, or it has too few."""
    if not widths:
        return f"none: widths are not calibrated for {kind}"
    least = min(width.windows for width in widths)
    return f"none: fewer than {least} windows of one run"


def intervals_of_several_runs(runs: Sequence[RunFigure], records: Sequence[Record], protocol: Protocol) -> Intervals:
    """Return the 95 % interval of the protocol's mean, median or olympic mean of several runs, and how it was made.

    Runs on one host lie closer together than hosts do. So where the logs name two hosts or more and some have several
    runs, the interval of an arithmetic mean is made of the means of the hosts. There is none, and `method` says why,
    for too few runs, and where all print one and the same figure. The standard deviation returned with it is that of
    the runs that converged.
    """
    values = [run.value for run in runs]
    hosts = hosts_of_runs(records)
    over = f"{len(runs)} runs"  # what the interval is made over, in the words of `method`
    if hosts is not None and len(set(hosts)) == 1:
        over += " of one host"

    made = _interval_by_protocol(values, over, hosts, protocol)
    bounds = made.bounds
    method = made.method
    if bounds is None:
        method = f"none: {over}, {made.missing}"  # such as "none: 3 runs, order statistics need 5"
    elif spread.has_no_width(bounds):
        bounds = None
        method = f"none: {over} print one and the same figure, in too few digits to tell how far they lie apart"
    deviation = spread.sd([value for value in values if math.isfinite(value)])
    return Intervals(deviation=deviation, interval_95=bounds, method=method)


class _Interval(NamedTuple):
    """A 95 % interval of several runs, if they are enough for one."""

    bounds: Bounds | None
    method: str  # how it was made, in words
    missing: str  # in words, how many runs or hosts it needs


def _interval_by_protocol(
    values: Sequence[float], over: str, hosts: Sequence[str] | None, protocol: Protocol
) -> _Interval:
    """Return the interval of runs by the method that suits how the protocol averages them; `over` names the runs."""
    if protocol.over_runs == "median":
        return _interval_of_median(values, over)
    if protocol.over_runs == "olympic_mean":
        return _interval_of_olympic_mean(values, over, protocol.dropped_runs)
    if hosts is not None and _some_host_ran_twice(hosts):
        return _interval_over_hosts(values, over, hosts)
    return _Interval(_interval_of(spread.mean_of(values)), f"t over {over}", missing="a mean's needs 2")


def _interval_of_median(values: Sequence[float], over: str) -> _Interval:
    """Return the interval of the median of runs by order statistics; `over` names the runs, as "7 runs of one host"."""
    method = f"order statistics of {over}"
    if len(values) == 5:  # even the least and the greatest of five hold the median in no more than 1 - 2 / 2**5
        method += ", least to greatest: 93.75 %"
    return _Interval(spread.median_interval(values), method, missing="order statistics need 5")


def _interval_of_olympic_mean(values: Sequence[float], over: str, dropped: int) -> _Interval:
    """Return the interval of the mean of runs without the `dropped` least and greatest ones; `over` names the runs."""
    bounds = _interval_of(spread.mean_of(values, dropped=dropped))
    method = f"Yuen's t of the olympic mean over {over}"
    return _Interval(bounds, method, missing=f"an olympic mean's needs {2 * dropped + 2}")


def _interval_over_hosts(values: Sequence[float], over: str, hosts: Sequence[str]) -> _Interval:
    """Return the interval of the mean of runs, made of the means of their hosts; `over` names the runs."""
    means_of_hosts = independent_values(values, hosts)
    bounds = _around_mean_of_hosts(means_of_hosts, statistics.fmean(values))
    method = f"t over the means of {len(means_of_hosts)} hosts, {over}"
    return _Interval(bounds, method, missing="two hosts are needed")


def _some_host_ran_twice(hosts: Sequence[str]) -> bool:
    """Tell whether runs are of two hosts or more, and some host has several; `hosts` names the host of each run."""
    different_hosts = len(set(hosts))
    return different_hosts > 1 and different_hosts < len(hosts)


def _interval_of(estimate: spread.Estimate | None) -> Bounds | None:
    """Return the 95 % interval of a mean; None where too few values make none."""
    return None if estimate is None else estimate.interval_95


def _around_mean_of_hosts(means_of_hosts: Sequence[float], value: float) -> Bounds | None:
    """Return the interval of the mean of hosts, moved to the figure `value`, in which hosts may have unequal runs."""
    interval = _interval_of(spread.mean_of(means_of_hosts))
    if interval is None:
        return None
    shift = value / statistics.fmean(means_of_hosts)
    return interval[0] * shift, interval[1] * shift
