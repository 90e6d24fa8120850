"""The levels on which a measurement is repeated: windows of a run, runs of a host, hosts of a system.

Each level has its own spread, because different things change from one value to the next. Windows show little about
runs, and runs of one host show little about other hosts.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runlog.digits import percent
from scoring.figure import spread
from scoring.record import Record, nodes_of

HOSTS_UNSAID = "the logs do not name their hosts"


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of repetition, and how much its values vary."""

    name: str  # window, run or host
    count: int | None  # values of the level in all; None: the logs do not say
    relative_sd: float | None = None  # sample standard deviation over the mean; None: nothing has two of the level
    unknown: str = ""  # why there is no count, or else why there is no deviation
    not_converged: int = 0  # runs that are not counted because they have no figure: aborted, or short of the target


def levels_of_repetition(
    values: Sequence[float], rates: Sequence[Sequence[float]], hosts: Sequence[str] | None
) -> tuple[Level, Level, Level]:
    """Return how many windows, runs and hosts were measured, and how far they vary, as three levels in this order.

    - Windows: how far they vary within their runs.
    - Runs: how far they vary within their hosts. If the hosts are not known, this includes the variation of the hosts.
    - Hosts: how far the means of their runs vary.

    `values` are the figures of the runs. An infinite one is of a run that did not converge: the run is only counted in
    the run level's `not_converged`. `rates` are the rates of each run's windows. `hosts` names each run's host; None
    if not known.
    """
    # `unknown` is the reason that a level gives if it has no deviation.
    window_level = _level_of_windows(rates)
    indices_of_converged = [index for index, value in enumerate(values) if not math.isinf(value)]
    not_converged = len(values) - len(indices_of_converged)
    converged_values = [values[index] for index in indices_of_converged]
    if hosts is None:  # the variation of the runs then includes that of their hosts
        run_level = _level_of_sets("run", [converged_values], unknown="one run", not_converged=not_converged)
        return window_level, run_level, Level(name="host", count=None, unknown=HOSTS_UNSAID)

    converged_hosts = [hosts[index] for index in indices_of_converged]
    runs_of_hosts = list(values_by_host(converged_values, converged_hosts).values())
    run_level = _level_of_sets("run", runs_of_hosts, unknown="one run of each host", not_converged=not_converged)
    host_means = [statistics.fmean(runs_of_host) for runs_of_host in runs_of_hosts]
    return window_level, run_level, _level_of_sets("host", [host_means], unknown="one host")


def _level_of_windows(rates: Sequence[Sequence[float]]) -> Level:
    """Return how many windows were measured, and how far they vary within their runs.

    `rates` are the rates of each run's windows, empty for a run whose figure is not made of windows.
    """
    if not any(rates):
        return Level(name="window", count=None, unknown="the figure is not made of windows")
    return _level_of_sets("window", rates, unknown="no run has two windows")


def _level_of_sets(name: str, sets: Sequence[Sequence[float]], *, unknown: str, not_converged: int = 0) -> Level:
    """Return how many values a level of repetition has, and how far they vary within sets of comparable values.

    A set is the windows of one run, the runs of one host, or the means of all hosts. The relative deviation is pooled
    over all sets. A value of NaN is counted, but has no part in the deviation.

    - `name` is the level: window, run or host.
    - `unknown` is the reason, in words, why there is no deviation. It is used only if no set has two values.
    - `not_converged` is the number of runs that are in no set because they did not converge.
    """
    count = sum(len(values) for values in sets)
    measured_sets = []  # without NaN: a run without a figure only counts
    for values in sets:
        measured_sets.append([value for value in values if math.isfinite(value)])
    pooled = spread.pooled_sd(measured_sets)
    if pooled is None:
        return Level(name=name, count=count, unknown=unknown, not_converged=not_converged)
    return Level(name=name, count=count, relative_sd=pooled.relative_sd, not_converged=not_converged)


def in_words(repeated: Sequence[Level]) -> str:
    """Return levels as one line: `40 windows +-1.20%; 3 runs +-0.31%; one host`."""
    return "; ".join(level_in_words(level) for level in repeated)


def level_in_words(level: Level) -> str:
    """Return how many values a level has, and their deviation or why there is none: `3 runs +-0.31%`, `one host`.

    Runs that did not converge are added: `2 runs +-0.31% (1 run that did not converge is not counted)`.
    """
    text = _counted_in_words(level)
    if level.not_converged == 1:
        return f"{text} (1 run that did not converge is not counted)"
    if level.not_converged:
        return f"{text} ({level.not_converged} runs that did not converge are not counted)"
    return text


def _counted_in_words(level: Level) -> str:
    """Return how many values a level has, and how far they vary.

    - The count is not known: the reason, such as `hosts: the logs do not name their hosts`.
    - No value or one: `no run` or `one run`.
    - The deviation is not known: the reason stands in its place, such as `2 runs (one run of each host)`.
    - Otherwise: `3 runs +-0.31%`.
    """
    why_unknown = level.unknown  # why there is no count, or else why there is no deviation
    if level.count is None:
        return f"{level.name}s: {why_unknown}"
    if level.count == 0:
        return f"no {level.name}"
    if level.count == 1:
        return f"one {level.name}"
    counted = f"{level.count} {level.name}s"
    if level.relative_sd is None:
        return f"{counted} ({why_unknown})"
    return f"{counted} +-{percent(level.relative_sd, decimals=2)}"  # 3 runs +-0.31%


def hosts_of_runs(records: Sequence[Record]) -> list[str] | None:
    """Return the host of each run, such as `node1`, or `node1, node2` for a run on several hosts.

    Returns None if a log does not name all of its hosts.
    """
    hosts_by_run = []
    for record in records:
        hosts = hosts_of_nodes(nodes_of(record), record.nodes)
        if hosts is None:
            return None
        hosts_by_run.append(hosts)
    return hosts_by_run


def hosts_of_nodes(nodes: Sequence[Mapping[str, object]], count: int | None) -> str | None:
    """Return the hosts that the nodes of a log's header name, sorted, as one text: `node1, node2`.

    `count` is the number of nodes of the run; None or 0 counts as 1. Returns None if fewer hosts are named.
    """
    hosts = {str(node["host"]) for node in nodes if node.get("host")}
    if not hosts or len(hosts) < (count or 1):
        return None
    return ", ".join(sorted(hosts))


def values_by_host(values: Sequence[float], hosts: Sequence[str]) -> dict[str, list[float]]:
    """Return the values of each host, in the order in which the hosts first appear."""
    by_host: dict[str, list[float]] = {}
    for host, value in zip(hosts, values, strict=True):
        by_host.setdefault(host, []).append(value)
    return by_host


def independent_values(values: Sequence[float], hosts: Sequence[str] | None) -> Sequence[float]:
    """Return the values that count as independent repeats of a system.

    - The means of the hosts, if `hosts` names two or more: runs on one host lie closer together than hosts do.
    - Otherwise the runs' own `values`.

    `hosts` names the host of each run; None if not known.
    """
    if hosts is None or len(set(hosts)) < 2:
        return values
    # Runs on one host are not independent: they lie closer together than hosts do.
    return [statistics.fmean(values_of_host) for values_of_host in values_by_host(values, hosts).values()]
