"""The figures that a performance engineer looks for first, for each system, and the runs by order and host."""

import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from runlog.digits import six_digits
from runlog.text import visible
from scoring.figure.stragglers import slowest_ranks
from scoring.importers.checks import MAX_PLAUSIBLE_RATIO
from scoring.record import Window, nodes_of
from scoring.report import blocks
from scoring.report.blocks import Cell, Inline, Table, Text, run_link
from scoring.report.brief import link_to_runs
from scoring.report.content import NOT_MEASURED, Group, Report, ReportedRun, values_of
from scoring.report.text import number, percent

DEVICES_NOT_SAID = "devices not said"
MOST_HOSTS = 4  # named for a run
KINDS_OF_TIME = (("compute", "computes"), ("data_wait", "waits for its input"))  # each with the verb for it


class Rank(NamedTuple):
    """A rank and its host, as the log names them."""

    number: int | None
    host: str


class SlowestRank(NamedTuple):
    """The rank that is the slowest of a group, in words, and by how much."""

    text: str  # "rank 3 on node07 computes 12.4% longer"
    share: float  # what it takes longer than the median rank, as a share of the time


def performance(report: Report) -> Table:
    """Return the table of where time and memory go in the measured windows, with a row for each group of runs.

    A group is the repeated runs of a system on one number of devices. The last column is the scaling efficiency. The
    table is without it where no system was run on two numbers of devices.
    """
    efficiency_by_group: dict[str, float] = {}  # by the group's name
    for scaling_rows in report.scaling:
        efficiency_by_group.update({row.group.name: row.efficiency for row in scaling_rows})

    table_rows = []
    for group in report.groups:
        cells = _cells_of_group(group)
        if efficiency_by_group:
            efficiency = _efficiency(group, efficiency_by_group.get(group.name))
            cells.append(Cell("efficiency", efficiency, numeric=True))
        table_rows.append(cells)
    return blocks.table("Where time and memory go, in the measured windows", table_rows, id="performance")


def _cells_of_group(group: Group) -> list[Cell]:
    """Return the row of a system, without its efficiency."""
    return [
        Cell("system", group.name),
        Cell("step, median", _step(group, 0.5), numeric=True),
        Cell("step, 95 %", _step(group, 0.95), numeric=True),
        Cell("data wait", _data_wait(group), numeric=True),
        Cell("images/s a device", _rate_of_a_device(group), numeric=True),
        Cell("most GPU memory", _memory(group), numeric=True),
        Cell("slowest rank", _slowest_rank_in_words(group)),
    ]


def _measured(group: Group) -> list[Window]:
    """Return the measured windows of all runs of a group."""
    windows: list[Window] = []
    for run in group.runs:
        windows += run.measured
    return windows


def _step(group: Group, share: float) -> Inline:
    """Return the quantile of the windows' step times that `share` of them do not exceed, in milliseconds."""
    times: list[float] = sorted(values_of(_measured(group), "step_s"))
    if not times:
        return NOT_MEASURED
    if share == 0.5:
        return link_to_runs(group, f"{number(statistics.median(times) * 1000)} ms")
    at = min(int(share * len(times)), len(times) - 1)
    return link_to_runs(group, f"{number(times[at] * 1000)} ms")


def _data_wait(group: Group) -> Inline:
    """Return the share of the time that rank 0 waited for input."""
    waited = 0.0
    seconds = 0.0
    for window in _measured(group):
        if window.data_wait_s is not None and window.seconds:
            waited += window.data_wait_s
            seconds += window.seconds
    return link_to_runs(group, percent(waited / seconds)) if seconds else NOT_MEASURED


def _rate_of_a_device(group: Group) -> Inline:
    """Return the figure a device, where it is one of throughput; in words where the log does not say the devices."""
    devices = group.record.devices
    score = group.score
    if score is None or not score.unit.startswith("images/s"):
        return NOT_MEASURED
    if score.unit != "images/s":  # it is that of one device already
        return link_to_runs(group, number(score.value))
    return link_to_runs(group, number(score.value / devices)) if devices else DEVICES_NOT_SAID


def _memory(group: Group) -> Inline:
    """Return the most GPU memory that any window shows, in MiB."""
    used: list[float] = values_of(_measured(group), "gpu_memory_mib")
    return link_to_runs(group, f"{number(max(used))} MiB") if used else NOT_MEASURED


def _slowest_rank_in_words(group: Group) -> Inline:
    """Return which rank is the slowest and by how much: "rank 3 on node07 computes 12.4% longer".

    Two ranks may be: the one that is most often the slowest to compute, and the one that most often waits longest for
    its input. Of the two the one that takes longer beyond the median rank is shown. The text is "not measured" where
    the logs do not say the ranks' times.
    """
    slowest_of_each_kind = []
    for kind, verb in KINDS_OF_TIME:
        slowest = _rank_most_often_slowest(group, kind, verb)
        if slowest is not None:
            slowest_of_each_kind.append(slowest)
    if not slowest_of_each_kind:
        return NOT_MEASURED
    return link_to_runs(group, max(slowest_of_each_kind, key=_share_of).text)


def _share_of(slowest: SlowestRank) -> float:
    """Return by how much of the time a rank is slower than the median one."""
    return slowest.share


def _rank_most_often_slowest(group: Group, kind: str, verb: str) -> SlowestRank | None:
    """Return the rank that is the slowest in most of a group's measured windows, in one kind of time.

    `kind` is "compute" or "data_wait", and `verb` says it in the text. The rank's share is the median, over the windows
    in which it is the slowest, of what it takes longer than the median rank. None where no window has the ranks' times.
    """
    shares_by_rank: dict[Rank, list[float]] = {}  # one share for each window in which the rank is the slowest
    for slowest in slowest_ranks(_measured(group), kind):
        rank = Rank(slowest.rank, str(slowest.host))
        shares_by_rank.setdefault(rank, []).append(slowest.lag_share)
    if not shares_by_rank:
        return None

    rank, shares = max(shares_by_rank.items(), key=_windows_as_slowest)
    share = statistics.median(shares)
    return SlowestRank(f"rank {rank.number} on {visible(rank.host, 40)} {verb} {percent(share)} longer", share)


def _windows_as_slowest(rank_and_shares: tuple[Rank, list[float]]) -> int:
    """Return in how many windows a rank is the slowest."""
    _, shares = rank_and_shares
    return len(shares)


def _efficiency(group: Group, efficiency: float | None) -> Inline:
    """Return the scaling efficiency against the system's smallest size."""
    if efficiency is None:
        return NOT_MEASURED
    return link_to_runs(group, percent(efficiency) if efficiency <= MAX_PLAUSIBLE_RATIO else "no figure: at most 100 %")


def runs_in_order(report: Report) -> Table | None:
    """Return the runs by the time at which they started, each with its hosts; None where no log says when it did."""
    started = [run for run in report.runs if run.record.run_start_s is not None]
    if len(started) < 2:
        return None
    started.sort(key=_start_s)
    rows = [_cells_of_run(run) for run in started]
    return blocks.table("Runs in the order in which they started, and their hosts", rows)


def _cells_of_run(run: ReportedRun) -> list[Cell]:
    """Return the row of a run in the table by start."""
    return [
        Cell("run", run_link(run)),
        Cell("started (UTC)", blocks.field(run, "run_start_s", _moment(run))),
        Cell("host", hosts_of(run)),
        Cell("figure", _figure(run), numeric=True),
    ]


def _start_s(run: ReportedRun) -> float:
    """Return when a run started, in seconds."""
    return run.record.run_start_s or 0.0


def _moment(run: ReportedRun) -> str:
    """Return when a run started, to the second in UTC; the number itself where it is no time."""
    try:
        return datetime.fromtimestamp(_start_s(run), tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return six_digits(_start_s(run))


def hosts_of(run: ReportedRun) -> Inline:
    """Return the hosts that a run's log names."""
    hosts = _hosts(run)
    if not hosts:
        return Text(text="not said", look="absent")
    more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
    return ", ".join(visible(host, 40) for host in hosts[:MOST_HOSTS]) + more


def _hosts(run: ReportedRun) -> Sequence[str]:
    """Return the names of the machines of a run."""
    return [str(node["host"]) for node in nodes_of(run.record) if node.get("host")]


def _figure(run: ReportedRun) -> Inline:
    """Return a run's figure, as a link to its first line."""
    return blocks.link_to_line(run, run.figure.first_line, number(run.figure.value)) if run.figure else "no figure"
