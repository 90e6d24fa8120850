"""The 95 % intervals of a score: of one run by calibrated widths, of several runs by the spread between them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scoring.figure import spread
from scoring.figure.calibration import calibration, kind_of, width_for
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


def of_one_run(run: RunFigure, record: Record, protocol: Protocol) -> Intervals:
    """Return the two 95 % intervals of a single run: of its own mean, and of another run of the system.

    Their widths are calibrated by published logs, for rates of windows alone. Where a figure is made of anything else,
    or of too few or too uneven windows, there is no interval and `method` says why.
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
    return _calibrated(run, kind_of(record), deviation)


def _calibrated(run: RunFigure, kind: str, deviation: float | None) -> Intervals:
    """Return the intervals of a run by the widths that were calibrated for its `kind` of windows and their number."""
    windows = len(run.rates)
    run_width = width_for(calibration().run[kind], windows)
    repeat_width = width_for(calibration().repeat[kind], windows)
    if run_width is None:
        method = f"none: widths are not calibrated for {kind}"
        if calibration().run[kind]:
            least = min(width.windows for width in calibration().run[kind])
            method = f"none: fewer than {least} windows of one run"
        return Intervals(deviation=deviation, method=method)

    times = [1 / rate for rate in run.rates]  # not rates, as a stall makes one time very long
    run_half = run_width.half(spread.relative_sd(times))
    if run_half > 1 or run.windows_interval_95 is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")

    run_95 = spread.around(run.value, run_half)
    repeat_95 = None
    if repeat_width is not None:
        repeat_half = repeat_width.half(spread.half_share(run.windows_interval_95))
        repeat_95 = spread.around(run.value, repeat_half)
    return Intervals(
        deviation=deviation,
        interval_95=run_95,
        method=f"from {windows} windows of one run",
        run_95=run_95,
        repeat_95=repeat_95,
    )


def of_several_runs(runs: Sequence[RunFigure], records: Sequence[Record], protocol: Protocol) -> Intervals:
    """Return the 95 % interval of the protocol's mean, median or olympic mean of several runs, and how it was made.

    Runs on one host lie closer together than hosts do. So where the logs name two hosts or more and some have several
    runs, the interval of an arithmetic mean is made of the means of the hosts.
    """
    values = [run.value for run in runs]
    hosts = hosts_of_runs(records)
    over = f"{len(runs)} runs"
    if hosts is not None and len(set(hosts)) == 1:
        over += " of one host"

    if protocol.over_runs == "median":
        interval = spread.median_interval(values)
        method = f"order statistics of {over}"
        if len(values) == 5:
            method += ", least to greatest: 93.75 %"
        needed = "order statistics need 5"
    elif protocol.over_runs == "olympic_mean":
        dropped = protocol.dropped_runs
        interval = _interval_of(spread.mean_of(values, dropped=dropped))
        method = f"Yuen's t of the olympic mean over {over}"
        needed = f"an olympic mean's needs {2 * dropped + 2}"
    elif hosts is not None and 1 < len(set(hosts)) < len(runs):
        means_of_hosts = independent_values(values, hosts)
        interval = _around_mean_of_hosts(means_of_hosts, statistics.fmean(values))
        method = f"t over the means of {len(means_of_hosts)} hosts, {over}"
        needed = "two hosts are needed"
    else:
        interval = _interval_of(spread.mean_of(values))
        method = f"t over {over}"
        needed = "a mean's needs 2"

    if interval is None:
        method = f"none: {over}, {needed}"
    elif interval[0] == interval[1]:  # which would say that the figure is exact
        interval = None
        method = f"none: {over} print one and the same figure, in too few digits to tell how far they lie apart"
    deviation = spread.sd([value for value in values if math.isfinite(value)])
    return Intervals(deviation=deviation, interval_95=interval, method=method)


def _interval_of(estimate: spread.Estimate | None) -> Bounds | None:
    return None if estimate is None else estimate.interval_95


def _around_mean_of_hosts(means_of_hosts: Sequence[float], value: float) -> Bounds | None:
    """Return the interval of the mean of hosts, moved to the figure `value`, in which hosts may have unequal runs."""
    interval = _interval_of(spread.mean_of(means_of_hosts))
    if interval is None:
        return None
    shift = value / statistics.fmean(means_of_hosts)
    return interval[0] * shift, interval[1] * shift
