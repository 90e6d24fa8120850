"""The levels on which a measurement is repeated: windows of a run, runs of a host, hosts of a system.

Values of one level lie apart by what changes from one to the next, so each level has a spread of its own. Windows tell
little of runs, and runs of one host little of other hosts.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def levels(values: Sequence[float], rates: Sequence[Sequence[float]], hosts: Sequence[str] | None) -> tuple[Level, ...]:
    """Return how far windows, runs and hosts lie apart, as the levels `window`, `run` and `host` in this order.

    `values` are the figures of the runs. `rates` holds the rates of each run's windows, empty where it has none.
    `hosts` names the host of each run; it is None where that is not known. The deviation between runs is taken within
    each host. Where the hosts are not known, it is taken over all runs, so that it includes what hosts differ by.
    """
    window_level = _level_of_windows(rates)
    if hosts is None:
        run_level = _level("run", len(values), [values], unknown="one run")
        return window_level, run_level, Level(name="host", count=None, unknown=HOSTS_UNSAID)

    runs_of_hosts = list(values_by_host(values, hosts).values())
    run_level = _level("run", len(values), runs_of_hosts, unknown="one run of each host")
    host_means = [statistics.fmean(runs_of_host) for runs_of_host in runs_of_hosts]
    host_level = _level("host", len(host_means), [host_means], unknown="one host")
    return window_level, run_level, host_level


def _level_of_windows(rates: Sequence[Sequence[float]]) -> Level:
    """Return how far the windows of a run lie apart, by the rates of each run's windows."""
    windows = sum(len(rates_of_run) for rates_of_run in rates)
    if not windows:
        return Level(name="window", count=None, unknown="the figure is not made of windows")
    return _level("window", windows, rates, unknown="no run has two windows")


def _level(name: str, count: int, sets: Sequence[Sequence[float]], *, unknown: str) -> Level:
    """Return the level `name` of `count` values, with the deviation within the sets that they fall into.

    Infinite values, of runs that did not converge, are left out. `unknown` says why there is no deviation where no set
    has two values.
    """
    finite_sets = []
    for values in sets:
        finite_sets.append([value for value in values if math.isfinite(value)])
    pooled = spread.pooled_sd(finite_sets)
    if pooled is None:
        return Level(name=name, count=count, unknown=unknown)
    return Level(name=name, count=count, relative_sd=pooled.relative_sd)


def in_words(repeated: Sequence[Level]) -> str:
    """Return levels as one line: `40 windows +-1.2 %; 3 runs +-0.31 %; one host`."""
    return "; ".join(level_in_words(level) for level in repeated)


def level_in_words(level: Level) -> str:
    """Return how many values a level has and their deviation, or why it has none: `3 runs +-0.31 %`, `one host`."""
    if level.count is None:
        return f"{level.name}s: {level.unknown}"
    if level.count == 1:
        return f"one {level.name}"
    counted = f"{level.count} {level.name}s"
    if level.relative_sd is None:
        return f"{counted} ({level.unknown})"
    return f"{counted} +-{level.relative_sd:.2%}"


def hosts_of_runs(records: Sequence[Record]) -> list[str] | None:
    """Return the host of each run, or its hosts with commas between them; None where a log names none or not all."""
    named = []
    for record in records:
        hosts = hosts_of_nodes(nodes_of(record), record.nodes)
        if hosts is None:
            return None
        named.append(hosts)
    return named


def hosts_of_nodes(nodes: Sequence[Mapping[str, object]], count: int | None) -> str | None:
    """Return the hosts that the nodes of a log's header name, sorted, with commas between them.

    Returns None where they are fewer than `count`, the nodes of the run.
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
