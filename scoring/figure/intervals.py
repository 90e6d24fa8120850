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
    """The two intervals of a single run; none where the widths were not calibrated for what was measured."""
    if protocol.over_steps == "own_summary":
        return Intervals(deviation=None, method="none: the log says one figure")
    if protocol.over_steps in ("run_time", "between_stamps"):
        return Intervals(deviation=None, method="none: one run, and the protocol takes one difference of time stamps")

    count = len(run.rates)
    deviation = spread.sd(run.rates)
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return Intervals(deviation=deviation, method="none: running averages are no independent windows")
    if protocol.over_steps == "epoch_rates":
        return Intervals(deviation=deviation, method="none: widths are not calibrated for printed epochs")

    kind = kind_of(record)
    run_width = width_for(calibration().run[kind], count)
    repeat_width = width_for(calibration().repeat[kind], count)
    if run_width is None:
        least = min((width.windows for width in calibration().run[kind]), default=None)
        method = f"none: widths are not calibrated for {kind}"
        if least is not None:
            method = f"none: fewer than {least} windows of one run"
        return Intervals(deviation=deviation, method=method)
    times = [1 / rate for rate in run.rates]  # not rates, as a stall makes one time very long
    run_half = run_width.half(spread.relative_sd(times))
    if run_half > 1 or run.windows_interval_95 is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")

    run_95 = spread.around(run.value, run_half)
    repeat_95 = None
    if repeat_width is not None:
        repeat_95 = spread.around(run.value, repeat_width.half(spread.half_share(run.windows_interval_95)))
    return Intervals(
        deviation=deviation,
        interval_95=run_95,
        method=f"from {count} windows of one run",
        run_95=run_95,
        repeat_95=repeat_95,
    )


def of_several_runs(runs: Sequence[RunFigure], records: Sequence[Record], protocol: Protocol) -> Intervals:
    """The interval of the protocol's own mean of several runs.

    Runs on one host lie closer together than hosts do. Where the logs name two hosts or more and some have several
    runs, the means of the hosts are the independent values of an arithmetic mean.
    """
    values = [run.value for run in runs]
    deviation = spread.sd([value for value in values if math.isfinite(value)])
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
        by_host = independent_values(values, hosts)
        interval = _around_mean_of_hosts(by_host, statistics.fmean(values))
        method = f"t over the means of {len(by_host)} hosts, {over}"
        needed = "two hosts are needed"
    else:
        interval = _interval_of(spread.mean_of(values))
        method = f"t over {over}"
        needed = "a mean's needs 2"

    if interval is None:
        method = f"none: {over}, {needed}"
    return Intervals(deviation=deviation, interval_95=interval, method=method)


def _interval_of(estimate: spread.Estimate | None) -> Bounds | None:
    return None if estimate is None else estimate.interval_95


def _around_mean_of_hosts(by_host: Sequence[float], value: float) -> Bounds | None:
    """The interval of the mean of hosts, moved to the figure `value`, in which a host may have more runs."""
    interval = _interval_of(spread.mean_of(by_host))
    if interval is None:
        return None
    shift = value / statistics.fmean(by_host)
    return interval[0] * shift, interval[1] * shift
