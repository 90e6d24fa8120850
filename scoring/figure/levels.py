"""The levels on which a measurement is repeated: windows of a run, runs of a host, hosts of a system.

Each level has its own spread, because different things change from one value to the next. Windows show little about
runs, and runs of one host show little about other hosts.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.digits import percent
from scoring.figure import spread
from scoring.record import Record, nodes_of

HOSTS_UNSAID = "the logs do not name their hosts"


@dataclass(frozen=True, kw_only=True)
class Level:
    """How many windows, runs or hosts were measured, and how much they vary."""

    name: str  # window, run or host
    count: int | None  # values of the level in all; None: not known
    relative_sd: float | None = None  # sample standard deviation over the mean; None: nothing has two of the level
    unknown: str = ""  # why there is no count, or else why there is no deviation
    not_converged: int = 0  # runs that are not counted because they have no figure: aborted, or short of the target


class Levels(NamedTuple):
    """The three levels of repetition of a measurement."""

    window: Level
    run: Level
    host: Level


def levels_of_repetition(
    values: Sequence[float], rates: Sequence[Sequence[float]], hosts: Sequence[str] | None
) -> Levels:
    """Return how many windows, runs and hosts were measured, and the relative standard deviation of each of the three.

    For example, runs with the figures 100 and 102 on node1 and a run with the figure 104 on node2 give:

        window   the windows of all runs (what one printed row covers); windows of the same run are compared
        run      3 runs, 1.40 %: 100 and 102 are compared, because both are of node1
        host     2 hosts, 2.07 %: the means 101 and 104 are compared

    Args:
        values: The figure of each run. Infinite for a run that did not converge, which only `not_converged` counts. NaN
            for any other run without a figure, which counts as a run, but is compared with none.
        rates: For each run the rates of its windows; empty if not known.
        hosts: Name of the host of each run; None if not known.
    """
    window_level = _level_of_windows(rates)  # of all runs, converged or not
    converged_values = [value for value in values if not math.isinf(value)]  # NaN stays among these
    if hosts is None:  # all runs are compared with each other
        run_level = _level_of_groups("run", [converged_values], reason_if_no_pair="one run")
        host_level = Level(name="host", count=None, unknown=HOSTS_UNSAID)
    else:
        converged_hosts = [host for host, value in zip(hosts, values, strict=True) if not math.isinf(value)]
        runs_by_host = values_by_host(converged_values, converged_hosts)  # {"node1": [100, 102], "node2": [104]}
        run_level = _level_of_groups("run", list(runs_by_host.values()), reason_if_no_pair="one run of each host")
        host_level = _level_of_hosts(runs_by_host)

    # `run_level` counts only the values that it was given. The runs left out above (infinite) are added in a field of
    # their own, for "2 runs +-0.31% (1 run that did not converge is not counted)".
    not_converged = len(values) - len(converged_values)
    return Levels(window_level, dataclasses.replace(run_level, not_converged=not_converged), host_level)


def _level_of_hosts(runs_by_host: Mapping[str, Sequence[float]]) -> Level:
    """Return how many hosts there are, and how far the means of their runs vary.

    Args:
        runs_by_host: The figures of the converged runs of each host, at least one for each.
    """
    host_means = [statistics.fmean(runs) for runs in runs_by_host.values()]
    first_host = next(iter(runs_by_host), "")
    return _level_of_groups("host", [host_means], reason_if_no_pair=one_host_in_words(first_host))


def one_host_in_words(host: str) -> str:
    """Return "one host", or "one set of 8 hosts" for runs on so many.

    Args:
        host: The host or hosts of a run as `hosts_of_runs` names them: "node1", or "node1, node2".
    """
    nodes = host.count(", ") + 1
    return "one host" if nodes == 1 else f"one set of {nodes} hosts"


def _level_of_windows(rates: Sequence[Sequence[float]]) -> Level:
    """Return how many windows were measured, and how far they vary within their runs.

    Args:
        rates: The rates of each run's windows; empty for a run whose figure is not made of windows.
    """
    if not any(rates):
        return Level(name="window", count=None, unknown="the figure is not made of windows")
    return _level_of_groups("window", rates, reason_if_no_pair="no run has two windows")


def _level_of_groups(name: str, groups: Sequence[Sequence[float]], *, reason_if_no_pair: str) -> Level:
    """Return how many windows, runs or hosts there are in some groups, and how far they vary within a group.

    For example, [[100, 102], [200]] are 3 runs in groups by their host. Their `relative_sd` is 0.014 (1.4 %), the
    sample standard deviation of 100 and 102 over their mean. For [[100], [200]], 2 runs, it is None, and `unknown` says
    why.

    Args:
        name: What the values are: "window", "run" or "host".
        groups: The values of each group. NaN stands for a missing figure, which counts, but is not compared.
        reason_if_no_pair: The reason for the case that no group has two values, such as "one run of each host".
    """
    count = sum(len(values) for values in groups)
    # One deviation for all groups, of each value from the mean of its own group; None if no group has two figures
    pooled = spread.pooled_sd([_finite(values) for values in groups])
    if pooled is not None:
        return Level(name=name, count=count, relative_sd=pooled.relative_sd)
    some_group_has_a_pair = any(len(values) > 1 for values in groups)  # counting values without a figure (NaN)
    reason = "too few of them have a figure" if some_group_has_a_pair else reason_if_no_pair
    return Level(name=name, count=count, unknown=reason)


def _finite(values: Sequence[float]) -> list[float]:
    """Return the finite ones of some values, in their order."""
    return [value for value in values if math.isfinite(value)]


def in_words(repeated: Sequence[Level]) -> str:
    """Return levels as one line: `40 windows +-1.20%; 3 runs +-0.31%; one host`."""
    return "; ".join(level_in_words(level) for level in repeated)


def level_in_words(level: Level) -> str:
    """Return how many windows, runs or hosts were measured and how far they vary: "3 runs +-0.31%" or "one host".

    Runs that did not converge are added: "2 runs +-0.31% (1 run that did not converge is not counted)".

    Args:
        level: The windows, the runs or the hosts of a measurement, with their spread.
    """
    text = _counted_in_words(level)
    if level.not_converged == 1:
        return f"{text} (1 run that did not converge is not counted)"
    if level.not_converged:
        return f"{text} ({level.not_converged} runs that did not converge are not counted)"
    return text


def _counted_in_words(level: Level) -> str:
    """Return how many windows, runs or hosts were measured, and how far these vary, such as "3 runs +-0.31%".

    If the number is not known, or the variation of two or more, the text gives the reason, which `level.unknown` holds.

    Args:
        level: The windows, the runs or the hosts of a measurement. The variation is a relative standard deviation.
    """
    if level.count is None:
        why_no_count = level.unknown
        return f"{level.name}s: {why_no_count}"  # "hosts: the logs do not name their hosts"
    if level.count == 0:
        return f"no {level.name}"  # "no run"
    if level.count == 1 and level.name == "host":
        # Why hosts cannot be compared: "one host", or "one set of 8 hosts" if each run was on 8. It tells the
        # number, too.
        return level.unknown
    if level.count == 1:
        return f"one {level.name}"  # "one run"
    counted = f"{level.count} {level.name}s"
    if level.relative_sd is None:
        why_no_spread = level.unknown
        return f"{counted} ({why_no_spread})"  # "2 runs (one run of each host)"
    return f"{counted} +-{percent(level.relative_sd, decimals=2)}"  # "3 runs +-0.31%"


def hosts_of_runs(records: Sequence[Record]) -> list[str] | None:
    """Return the host of each run, as its log names it.

    Args:
        records: The runs as read from their logs.

    Returns:
        One text for each run, in the order of `records`: "node1", or "node1, node2" for a run on several hosts. None if
        any log does not name all of its hosts.
    """
    hosts_by_run = []
    for record in records:
        hosts = hosts_of_nodes(nodes_of(record), record.nodes)
        if hosts is None:
            return None
        hosts_by_run.append(hosts)
    return hosts_by_run


def hosts_of_nodes(nodes: Sequence[Mapping[str, object]], count: int | None) -> str | None:
    """Return the hosts that the header of a log names, sorted, as one text: "node1, node2".

    Args:
        nodes: The nodes that the header describes, each a table with the name of its `host`.
        count: The number of nodes of the run; None or 0 counts as 1.

    Returns:
        The text; None if fewer hosts are named than the run had nodes.
    """
    hosts = {str(node["host"]) for node in nodes if node.get("host")}
    if not hosts or len(hosts) < (count or 1):
        return None
    return ", ".join(sorted(hosts))


def values_by_host(values: Sequence[float], hosts: Sequence[str]) -> dict[str, list[float]]:
    """Return the values of each host, in the order in which the hosts first appear.

    Args:
        values: A value for each run.
        hosts: Name of the host of each run, in the same order.
    """
    by_host: dict[str, list[float]] = {}
    for host, value in zip(hosts, values, strict=True):
        by_host.setdefault(host, []).append(value)
    return by_host


class IndependentValues(NamedTuple):
    """The values that count as independent repeats of a system."""

    values: Sequence[float]  # of a run, or the mean of a host's runs
    runs_of_each: Sequence[int]  # how many runs each value is the mean of
    are_hosts: bool  # each value is the mean of a host's runs; otherwise it is a run

    @property
    def effective_count(self) -> float:
        """Return how many values of equal weight would have a mean that varies as the mean of all runs does.

        It is the number of values if each is of as many runs, and fewer otherwise (Kish, Survey Sampling, 1965).
        """
        return sum(self.runs_of_each) ** 2 / sum(runs**2 for runs in self.runs_of_each)

    @property
    def mean_of_runs(self) -> spread.Estimate | None:
        """Return the mean of all runs, with the standard error that the values give; None for fewer than two values."""
        if len(self.values) < 2:
            return None
        weighted = [runs * value for runs, value in zip(self.runs_of_each, self.values, strict=True)]
        mean = math.fsum(weighted) / sum(self.runs_of_each)
        relative_error = spread.relative_sd(self.values) / math.sqrt(self.effective_count)
        return spread.Estimate(mean, mean * relative_error, freedom=len(self.values) - 1)


def runs_or_host_means(values: Sequence[float], hosts: Sequence[str] | None) -> IndependentValues:
    """Return the values that count as independent repeats of a system: its runs, or the means of its hosts.

    Hosts count if there are two or more and some host has several runs, because runs of one host lie closer together
    than hosts do.

    Args:
        values: The figure of each run.
        hosts: Name of the host of each run; None if not known, so that the runs count.
    """
    if hosts is None or not _are_several_with_a_repeat(hosts):
        return IndependentValues(values, [1] * len(values), are_hosts=False)
    return means_of_hosts(values, hosts)


def means_of_hosts(values: Sequence[float], hosts: Sequence[str]) -> IndependentValues:
    """Return the mean of each host's runs.

    Args:
        values: The figure of each run.
        hosts: Name of the host of each run, in the same order.

    Returns:
        The means, in the order in which the hosts first appear, with the number of runs of each.
    """
    runs_of_hosts = values_by_host(values, hosts).values()
    means = [statistics.fmean(runs) for runs in runs_of_hosts]
    return IndependentValues(means, [len(runs) for runs in runs_of_hosts], are_hosts=True)


def _are_several_with_a_repeat(hosts: Sequence[str]) -> bool:
    """Return whether runs are of two hosts or more, and one has several runs; `hosts` has one name for each run."""
    different_hosts = set(hosts)
    some_host_has_several_runs = len(different_hosts) < len(hosts)
    return len(different_hosts) > 1 and some_host_has_several_runs
