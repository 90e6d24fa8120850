"""The figures that a performance engineer looks for first, for each system, and the runs by order and host."""

import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from runlog.text import visible
from scoring.figure.window_warnings import over_median
from scoring.importers.checks import REFUSED
from scoring.record import Window, nodes_of
from scoring.report import blocks
from scoring.report.blocks import Cell, Inline, Table, Text, run_link
from scoring.report.brief import of_group
from scoring.report.content import NOT_MEASURED, Group, Report, ReportedRun, values_of
from scoring.report.text import number, percent

DEVICES_NOT_SAID = "devices not said"
MOST_HOSTS = 4  # named for a run
KINDS = (("compute", "computes"), ("data_wait", "waits for its input"))  # of a rank's time, and the words for it


class Rank(NamedTuple):
    """A rank and its host."""

    number: int | None
    host: str


class SlowestRank(NamedTuple):
    """The rank that lies farthest beyond the median one, and by how much of the time."""

    text: str
    share: float


def performance(report: Report) -> Table:
    """Return the table with a row for each system: where its time and memory go in the measured windows.

    It has a column of scaling efficiency where any system was run on two numbers of devices.
    """
    efficiency: dict[str, float] = {}  # by the name of the group
    for rows in report.scaling:
        efficiency.update({row.group.name: row.efficiency for row in rows})

    table_rows = []
    for group in report.groups:
        cells = _cells_of_group(group)
        if efficiency:
            cells.append(Cell("efficiency", _efficiency(group, efficiency.get(group.name)), numeric=True))
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
        Cell("slowest rank", _slowest_rank(group)),
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
        return of_group(group, f"{number(statistics.median(times) * 1000)} ms")
    at = min(int(share * len(times)), len(times) - 1)
    return of_group(group, f"{number(times[at] * 1000)} ms")


def _data_wait(group: Group) -> Inline:
    """Return the share of the time that rank 0 waited for input."""
    waited = 0.0
    seconds = 0.0
    for window in _measured(group):
        if window.data_wait_s is not None and window.seconds:
            waited += window.data_wait_s
            seconds += window.seconds
    return of_group(group, percent(waited / seconds)) if seconds else NOT_MEASURED


def _rate_of_a_device(group: Group) -> Inline:
    """Return the figure a device, where it is one of throughput; in words where the log does not say the devices."""
    devices = group.record.devices
    score = group.score
    if score is None or not score.unit.startswith("images/s"):
        return NOT_MEASURED
    if score.unit != "images/s":  # it is that of one device already
        return of_group(group, number(score.value))
    return of_group(group, number(score.value / devices)) if devices else DEVICES_NOT_SAID


def _memory(group: Group) -> Inline:
    """Return the most GPU memory that any window shows, in MiB."""
    used: list[float] = values_of(_measured(group), "gpu_memory_mib")
    return of_group(group, f"{number(max(used))} MiB") if used else NOT_MEASURED


def _slowest_rank(group: Group) -> Inline:
    """Return which rank is the slowest and by how much: "rank 3 on node07 computes 12.4% longer".

    Each window names its slowest rank in computing, and in waiting for input. Of each kind the rank that is named most
    often counts, with the median of its excess over the median rank, as a share of the window's time. Of the two kinds
    the larger excess is shown.
    """
    slowest: SlowestRank | None = None
    for kind, words in KINDS:
        of_kind = _slowest_in(group, kind, words)
        if of_kind is not None and (slowest is None or of_kind.share > slowest.share):
            slowest = of_kind
    return of_group(group, slowest.text) if slowest else NOT_MEASURED


def _slowest_in(group: Group, kind: str, words: str) -> SlowestRank | None:
    """Return the rank that is the slowest in most windows in one kind of time; None where no window says it.

    `words` are the kind's in the text, as "computes".
    """
    excesses: dict[Rank, list[float]] = {}  # over the median rank, in each window in which a rank is the slowest
    for window in _measured(group):
        excess = over_median(window, kind)
        if excess is not None:
            times = window.rank_times
            rank = Rank(getattr(times, f"{kind}_rank"), str(getattr(times, f"{kind}_host")))
            excesses.setdefault(rank, []).append(excess)
    if not excesses:
        return None
    rank, excesses_of_rank = max(excesses.items(), key=_how_often)
    share = statistics.median(excesses_of_rank)
    return SlowestRank(f"rank {rank.number} on {visible(rank.host, 40)} {words} {percent(share)} longer", share)


def _how_often(rank_and_excesses: tuple[Rank, list[float]]) -> int:
    """Return in how many windows a rank is the slowest."""
    _, excesses = rank_and_excesses
    return len(excesses)


def _efficiency(group: Group, efficiency: float | None) -> Inline:
    """Return the scaling efficiency against the system's smallest size."""
    if efficiency is None:
        return NOT_MEASURED
    return of_group(group, percent(efficiency) if efficiency <= REFUSED else "no figure: at most 100 %")


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
        return f"{_start_s(run):g}"


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
    return blocks.at_line(run, run.figure.first_line, number(run.figure.value)) if run.figure else "no figure"
