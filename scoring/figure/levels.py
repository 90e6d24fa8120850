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
    """The levels window, run and host of runs with the figures `values`.

    `rates` holds the window rates of each run, empty where it has none. `hosts` names the host of each run, and is None
    where that is not known: the deviation of the runs then holds that of the hosts too.
    """
    windows = sum(len(of_run) for of_run in rates)
    window = Level(name="window", count=windows or None, unknown="the figure is not made of windows")
    if windows:
        window = _level("window", windows, rates, unknown="no run has two windows")

    if hosts is None:
        run = _level("run", len(values), [values], unknown="one run")
        return window, run, Level(name="host", count=None, unknown=HOSTS_UNSAID)

    by_host = values_by_host(values, hosts)
    run = _level("run", len(values), list(by_host.values()), unknown="one run of each host")
    means = [statistics.fmean(of_host) for of_host in by_host.values()]
    host = _level("host", len(means), [means], unknown="one host")
    return window, run, host


def _level(name: str, count: int, sets: Sequence[Sequence[float]], *, unknown: str) -> Level:
    """A level with the deviation within sets of its values, pooled over the sets."""
    squares = 0.0
    freedom = 0
    for values in sets:
        finite = [value for value in values if math.isfinite(value)]
        deviation = spread.sd(finite)
        if deviation is not None:
            squares += (len(finite) - 1) * (deviation / statistics.fmean(finite)) ** 2
            freedom += len(finite) - 1
    if not freedom:
        return Level(name=name, count=count, unknown=unknown)
    return Level(name=name, count=count, relative_sd=math.sqrt(squares / freedom))


def in_words(repeated: Sequence[Level]) -> str:
    """The levels as one line: `40 windows +-1.2 %; 3 runs +-0.31 %; one host`."""
    return "; ".join(_level_in_words(level) for level in repeated)


def _level_in_words(level: Level) -> str:
    if level.count is None:
        return f"{level.name}s: {level.unknown}"
    if level.count == 1:
        return f"one {level.name}"
    counted = f"{level.count} {level.name}s"
    if level.relative_sd is None:
        return f"{counted} ({level.unknown})"
    return f"{counted} +-{level.relative_sd:.2%}"


def hosts_of_runs(records: Sequence[Record]) -> list[str] | None:
    """The host, or the comma-separated hosts, that each run names; None where a log names none or not all."""
    named = []
    for record in records:
        hosts = hosts_of_nodes(nodes_of(record), record.nodes)
        if hosts is None:
            return None
        named.append(hosts)
    return named


def hosts_of_nodes(nodes: Sequence[Mapping[str, object]], count: int | None) -> str | None:
    """The comma-separated hosts of a run's header; None where it names fewer than its `count` of nodes."""
    hosts = {str(node["host"]) for node in nodes if node.get("host")}
    if not hosts or len(hosts) < (count or 1):
        return None
    return ", ".join(sorted(hosts))


def values_by_host(values: Sequence[float], hosts: Sequence[str]) -> dict[str, list[float]]:
    """The values of each host, in the order in which the hosts first appear."""
    by_host: dict[str, list[float]] = {}
    for host, value in zip(hosts, values, strict=True):
        by_host.setdefault(host, []).append(value)
    return by_host


def independent_values(values: Sequence[float], hosts: Sequence[str] | None) -> Sequence[float]:
    """The values that count as independent repeats of a system: means of hosts where two or more are named.

    Runs on one host lie closer together than hosts do.
    """
    if hosts is None or len(set(hosts)) < 2:
        return values
    return [statistics.fmean(of_host) for of_host in values_by_host(values, hosts).values()]
