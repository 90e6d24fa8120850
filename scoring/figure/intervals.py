"""The 95 % intervals of a score: of one run by calibrated widths, of several runs by the spread between them."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scoring.figure import spread
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure
from scoring.record import Record, nodes_of

CALIBRATION = Path(__file__).with_name("calibration.yaml")
Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Width:
    """Half the width of a calibrated interval: `factor` times that of the windows alone, but `least_share` at least."""

    factor: float
    least_share: float

    def around(self, value: float, windows: Bounds) -> Bounds:
        """The calibrated interval of a figure `value` whose windows alone have the interval `windows`."""
        half_of_windows = math.log(windows[1] / windows[0]) / 2
        return spread.around(value, max(self.factor * half_of_windows, self.least_share))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The widths that published series gave, as `calibration.yaml` has them."""

    run: Width
    repeat: Width
    least_windows: int


@functools.cache
def calibration() -> Calibration:
    """Read the calibrated widths from `calibration.yaml`."""
    table = yaml.safe_load(CALIBRATION.read_text(encoding="utf-8"))
    return Calibration(
        run=Width(**table["run"]),
        repeat=Width(**table["repeat"]),
        least_windows=table["least_windows"],
    )


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

    deviation = spread.sd(run.rates)
    least_windows = calibration().least_windows
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return Intervals(deviation=deviation, method="none: running averages are no independent windows")
    if protocol.over_steps == "epoch_rates":
        return Intervals(deviation=deviation, method="none: widths are not calibrated for printed epochs")
    if len(run.rates) < least_windows:
        return Intervals(deviation=deviation, method=f"none: fewer than {least_windows} windows of one run")
    if run.windows_interval_95 is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")

    run_95 = calibration().run.around(run.value, run.windows_interval_95)
    repeat_95 = calibration().repeat.around(run.value, run.windows_interval_95)
    return Intervals(
        deviation=deviation,
        interval_95=run_95,
        method=f"from {len(run.rates)} windows of one run",
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
        by_host = host_means(values, hosts)
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


def hosts_of_runs(records: Sequence[Record]) -> list[str] | None:
    """The host, or the comma-separated hosts, that each run names; None where a log names none or not all."""
    named = []
    for record in records:
        hosts = {str(node["host"]) for node in nodes_of(record) if node.get("host")}
        if not hosts or len(hosts) < (record.nodes or 1):
            return None
        named.append(", ".join(sorted(hosts)))
    return named


def host_means(values: Sequence[float], hosts: Sequence[str]) -> list[float]:
    """The mean of the values of each host, in the order in which the hosts first appear."""
    by_host: dict[str, list[float]] = {}
    for host, value in zip(hosts, values, strict=True):
        by_host.setdefault(host, []).append(value)
    return [statistics.fmean(of_host) for of_host in by_host.values()]


def independent_values(values: Sequence[float], records: Sequence[Record]) -> Sequence[float]:
    """The values that count as independent repeats of a system: means of hosts where two or more are named."""
    hosts = hosts_of_runs(records)
    if hosts is None or len(set(hosts)) < 2:
        return values
    return host_means(values, hosts)


def _interval_of(estimate: spread.Estimate | None) -> Bounds | None:
    return None if estimate is None else estimate.interval_95


def _around_mean_of_hosts(by_host: Sequence[float], value: float) -> Bounds | None:
    """The interval of the mean of hosts, moved to the figure `value`, in which a host may have more runs."""
    interval = _interval_of(spread.mean_of(by_host))
    if interval is None:
        return None
    shift = value / statistics.fmean(by_host)
    return interval[0] * shift, interval[1] * shift
