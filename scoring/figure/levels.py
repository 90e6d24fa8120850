"""The levels on which a measurement is repeated: windows of a run, runs of a host, hosts of a system.

Values of one level lie apart by what changes from one to the next, so each level has a spread of its own. Windows tell
little of runs, and runs of one host little of other hosts.
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
    """One level of repetition, and how far its values lie apart."""

    name: str  # window, run or host
    count: int | None  # values of the level in all; None: the logs do not say
    relative_sd: float | None = None  # sample standard deviation over the mean; None: nothing has two of the level
    unknown: str = ""  # why there is no deviation
    not_converged: int = 0  # runs that are not counted, as they have no figure: aborted, or short of the target


def levels_of_repetition(
    values: Sequence[float], rates: Sequence[Sequence[float]], hosts: Sequence[str] | None
) -> tuple[Level, ...]:
    """Return how many windows, runs and hosts were measured, and how far each lie apart, in this order.

    `values` are the figures of the runs. `rates` holds the rates of each run's windows, empty where it has none.
    `hosts` names the host of each run; it is None where that is not known. The deviation between runs is taken within
    each host. Where the hosts are not known, it is taken over all runs, so that it includes what hosts differ by.

    A run that did not converge, whose figure is infinite, is not counted, nor is a host that has no other runs. The
    level `run` says how many such runs there are, as its `not_converged`. A run without a figure, NaN, is counted.
    """
    window_level = _level_of_windows(rates)
    indices_of_converged = [index for index, value in enumerate(values) if not math.isinf(value)]
    not_converged = len(values) - len(indices_of_converged)
    converged_values = [values[index] for index in indices_of_converged]
    if hosts is None:
        run_level = _level("run", [converged_values], unknown="one run", not_converged=not_converged)
        return window_level, run_level, Level(name="host", count=None, unknown=HOSTS_UNSAID)

    converged_hosts = [hosts[index] for index in indices_of_converged]
    runs_of_hosts = list(values_by_host(converged_values, converged_hosts).values())
    run_level = _level("run", runs_of_hosts, unknown="one run of each host", not_converged=not_converged)
    host_means = [statistics.fmean(runs_of_host) for runs_of_host in runs_of_hosts]
    return window_level, run_level, _level("host", [host_means], unknown="one host")


def _level_of_windows(rates: Sequence[Sequence[float]]) -> Level:
    """Return how far the windows of a run lie apart, by the rates of each run's windows."""
    if not any(rates):
        return Level(name="window", count=None, unknown="the figure is not made of windows")
    return _level("window", rates, unknown="no run has two windows")


def _level(name: str, sets: Sequence[Sequence[float]], *, unknown: str, not_converged: int = 0) -> Level:
    """Return how many windows, runs or hosts were measured, and how far their values lie apart: the level `name`.

    `sets` has the values, such as the images/s of the runs, in sets of those that are compared with each other: runs
    with the other runs of their host. The deviation is taken within each set. A value of NaN, that of a run without a
    figure, is counted, but has no part in the deviation. Where no set has two values there is none, and `unknown` says
    why. `not_converged` is how many runs are in no set because they did not converge.
    """
    count = sum(len(values) for values in sets)
    measured_sets = []
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
    """Return how many values a level has and their deviation, or why it has none: `3 runs +-0.31%`, `one host`.

    Runs that are not counted are said: `2 runs +-0.31% (1 run that did not converge is not counted)`.
    """
    text = _counted_in_words(level)
    if level.not_converged == 1:
        return f"{text} (1 run that did not converge is not counted)"
    if level.not_converged:
        return f"{text} ({level.not_converged} runs that did not converge are not counted)"
    return text


def _counted_in_words(level: Level) -> str:
    """Return how many values a level counts and their deviation, or why it has none."""
    if level.count is None:
        return f"{level.name}s: {level.unknown}"
    if level.count == 0:
        return f"no {level.name}"
    if level.count == 1:
        return f"one {level.name}"
    counted = f"{level.count} {level.name}s"
    if level.relative_sd is None:
        return f"{counted} ({level.unknown})"
    return f"{counted} +-{percent(level.relative_sd, decimals=2)}"


def hosts_of_runs(records: Sequence[Record]) -> list[str] | None:
    """Return for each run the name of its host, such as `node1`; of a run on several hosts `node1, node2`.

    Returns None where a log does not name all of its hosts.
    """
    hosts_of_each = []
    for record in records:
        hosts = hosts_of_nodes(nodes_of(record), record.nodes)
        if hosts is None:
            return None
        hosts_of_each.append(hosts)
    return hosts_of_each


def hosts_of_nodes(nodes: Sequence[Mapping[str, object]], count: int | None) -> str | None:
    """Return the hosts that the nodes of a log's header name, sorted, as one text: `node1, node2`.

    `count` is the number of nodes of the run. Returns None where fewer hosts are named, or none at all.
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

    These are the runs' own `values`, or the means of the hosts where two hosts or more are named: runs on one host lie
    closer together than hosts do.
    """
    if hosts is None or len(set(hosts)) < 2:
        return values
    return [statistics.fmean(of_host) for of_host in values_by_host(values, hosts).values()]
