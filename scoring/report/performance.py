"""The figures that a performance engineer looks for first, for each system, and the runs by order and host."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from runlog.digits import six_digits
from runlog.text import visible
from scoring.figure.stragglers import KindOfTime, most_often_slowest
from scoring.figure.window_warnings import waiting_share
from scoring.record import nodes_of
from scoring.report import blocks
from scoring.report.blocks import Cell, Inline, Table, Text, run_link
from scoring.report.brief import link_to_runs
from scoring.report.content import NOT_MEASURED, Group, Report, ReportedRun, ScalingRow, values_of
from scoring.report.text import efficiency_in_words, number, short_percent

DEVICES_NOT_SAID = "devices not said"
MAX_HOSTS = 4  # named for a run
MAX_HOST_CHARS = 64  # characters: the longest name that Linux takes


class _Straggler(NamedTuple):
    """The rank of a group that is most often the slowest."""

    text: str  # "rank 3 on node07 computes 12.4% longer"
    lag_share: float  # how much longer than the median rank it takes, as a share of the window's time


def performance(report: Report) -> Table:
    """Return the table of where time and memory go in the measured windows, a row for each group of repeated runs.

    Args:
        report: The content of the report.

    Returns:
        The table. Its last column, the scaling efficiency, is left out if no system has a throughput in images/s on
        several numbers of devices or nodes.
    """
    efficiency_by_first_run = _efficiency_by_first_run(report.scaling)
    has_efficiencies = bool(efficiency_by_first_run)
    rows = []
    for group in report.groups:
        cells = _cells_of_group(group)
        if has_efficiencies:
            efficiency = _efficiency(group, efficiency_by_first_run.get(group.runs[0].number))
            cells.append(Cell("efficiency", efficiency, numeric=True))
        rows.append(cells)
    return blocks.table("Where time and memory go, in the measured windows", rows, id="performance")


def _efficiency_by_first_run(systems: Sequence[Sequence[ScalingRow]]) -> dict[int, str]:
    """Return the scaling efficiency of each group of repeated runs in words, by the number of the group's first run.

    Args:
        systems: The rows of each system's scaling table.
    """
    efficiency_by_first_run: dict[int, str] = {}
    for rows in systems:
        for row in rows:
            first_run = row.group.runs[0]  # a run is in one group
            efficiency_by_first_run[first_run.number] = efficiency_in_words(row.efficiency)
    return efficiency_by_first_run


def _cells_of_group(group: Group) -> list[Cell]:
    """Return the row of a group, without its efficiency."""
    return [
        Cell("system", group.name),
        Cell("step, median", _median_step(group), numeric=True),
        Cell("step, 95 %", _slow_step(group), numeric=True),
        Cell("data wait", _data_wait(group), numeric=True),
        Cell("images/s a device", _rate_of_a_device(group), numeric=True),
        Cell("most GPU memory", _memory(group), numeric=True),
        Cell("slowest rank", _slowest_rank_in_words(group)),
    ]


def _median_step(group: Group) -> Inline:
    """Return the median step time of the measured windows in milliseconds; or "not measured"."""
    quantiles = group.step_quantiles
    if quantiles is None:
        return NOT_MEASURED
    return link_to_runs(group, f"{number(quantiles.median_s * 1000)} ms")


def _slow_step(group: Group) -> Inline:
    """Return the step time that 95 % of a group's measured windows stay below, such as "352 ms".

    Args:
        group: A group of repeated runs.

    Returns:
        The time, with a link to the group's runs or to a single run's log; "not measured" if no window says its step
        time.
    """
    quantiles = group.step_quantiles  # of the step times of all measured windows
    if quantiles is None:
        return NOT_MEASURED
    return link_to_runs(group, f"{number(quantiles.long_s * 1000)} ms")


def _data_wait(group: Group) -> Inline:
    """Return the share of the time that rank 0 of a group's runs waited for input.

    Args:
        group: A group of repeated runs. Only measured windows that say both times count.

    Returns:
        The share; "not measured" if no window says both.
    """
    share = waiting_share(group.measured)
    return NOT_MEASURED if share is None else link_to_runs(group, short_percent(share))


def _rate_of_a_device(group: Group) -> Inline:
    """Return a group's throughput per device in images/s, with a link to the group's runs or to a single run's log.

    Args:
        group: A group of repeated runs.

    Returns:
        The text. The first case that fits counts:

            no score                                                "not measured"
            the score is a throughput per device                    the score
            the score is not a throughput, but a time for example      "not measured"
            the number of devices is not known                      "devices not said"
            the score is the throughput of all devices              the score divided by the number of devices
    """
    score = group.score
    if score is None:
        return NOT_MEASURED
    if score.unit == "images/s per device":
        return link_to_runs(group, number(score.value))
    if score.unit != "images/s":
        return NOT_MEASURED
    devices = group.record.devices
    if not devices:
        return DEVICES_NOT_SAID
    return link_to_runs(group, number(score.value / devices))


def _memory(group: Group) -> Inline:
    """Return the most GPU memory that any measured window shows, in MiB; or "not measured"."""
    used_mib: list[float] = values_of(group.measured, "gpu_memory_mib")
    if not used_mib:
        return NOT_MEASURED
    return link_to_runs(group, f"{number(max(used_mib))} MiB")


def _slowest_rank_in_words(group: Group) -> Inline:
    """Return which rank is the slowest and by how much: "rank 3 on node07 computes 12.4% longer".

    A rank, one process of a distributed run, may be slow in computing or in waiting for its input. The one with the
    longer lag behind the median rank is named.

    Args:
        group: A group of repeated runs.

    Returns:
        The words; "not measured" if no window has the times of the ranks.
    """
    computing = _straggler_of_group(group, "compute", "computes")
    waiting = _straggler_of_group(group, "data_wait", "waits for its input")
    candidates = [straggler for straggler in (computing, waiting) if straggler is not None]
    if not candidates:
        return NOT_MEASURED
    slowest = max(candidates, key=_lag_of)
    return link_to_runs(group, slowest.text)


def _lag_of(straggler: _Straggler) -> float:
    """Return how far a rank lags behind the median one, to compare ranks by."""
    return straggler.lag_share


def _straggler_of_group(group: Group, kind: KindOfTime, verb: str) -> _Straggler | None:
    """Return how far the rank that is most often the slowest lags behind the median rank, as a number and in words.

    The lag is a share of the window's time, not of the median rank's time. In a window of 20 s, a rank that computes
    for 12 s, where the median rank computes for 10 s, lags by (12 s - 10 s) / 20 s = 0.1. The text is then
    "rank 3 on node07 computes 10.0% longer".

    Args:
        group: A group of repeated runs.
        kind: Which times of the ranks are compared: "compute" or "data_wait".
        verb: What a rank does in these times: "computes" or "waits for its input".

    Returns:
        The lag with the text; None if no window has both its own time and these times of the ranks.
    """
    slowest = most_often_slowest(group.measured, kind)  # the rank, its host and its lag, over all measured windows
    if slowest is None:
        return None
    lag_share = slowest.median_lag_share  # median of the lags in those windows in which this rank is the slowest
    host = visible(str(slowest.host), 40)
    text = f"rank {slowest.rank} on {host} {verb} {short_percent(lag_share)} longer"
    return _Straggler(text, lag_share)


def _efficiency(group: Group, efficiency: str | None) -> Inline:
    """Return a group's scaling efficiency, such as "90.0%", with a link to the group's runs or to a single run's log.

    Args:
        group: A group of repeated runs.
        efficiency: The group's throughput per device, divided by the throughput per device of the fewest devices on
            which the system was measured. If 8 devices give 400 images/s and 16 devices 720 images/s, the efficiency of
            16 devices is "90.0%". None: not known.

    Returns:
        The text; "not measured" if `efficiency` is None.
    """
    if efficiency is None:
        return NOT_MEASURED
    return link_to_runs(group, efficiency)


def runs_in_order(report: Report) -> Table | None:
    """Return the table of the runs in the order in which they started, with their hosts.

    Args:
        report: The content of the report.

    Returns:
        The table; None unless at least two logs say when their run started.
    """
    started = [run for run in report.runs if run.record.run_start_s is not None]
    if len(started) < 2:
        return None
    started.sort(key=_start_s)
    rows = [_cells_of_run(run) for run in started]
    return blocks.table("Runs in the order in which they started, and their hosts", rows)


def _cells_of_run(run: ReportedRun) -> list[Cell]:
    """Return the row of a run in the table of runs by their start."""
    return [
        Cell("run", run_link(run)),
        Cell("started (UTC)", blocks.field(run, "run_start_s", _moment(run))),
        Cell("host", hosts_of(run)),
        Cell("figure", _figure(run), numeric=True),
    ]


def _start_s(run: ReportedRun) -> float:
    """Return when a run started, in Unix seconds."""
    return run.record.run_start_s or 0.0


def _moment(run: ReportedRun) -> str:
    """Return when a run started, to the second in UTC; the number itself if it is not a valid time."""
    try:
        return datetime.fromtimestamp(_start_s(run), tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return six_digits(_start_s(run))


def hosts_of(run: ReportedRun) -> Inline:
    """Return the names of the first four hosts of a run, and how many more there are; "not said" without any."""
    hosts = _hosts(run)
    if not hosts:
        return Text(text="not said", look="absent")
    first_hosts = ", ".join(visible(host, MAX_HOST_CHARS) for host in hosts[:MAX_HOSTS])
    if len(hosts) > MAX_HOSTS:
        return f"{first_hosts} and {len(hosts) - MAX_HOSTS} more"
    return first_hosts


def _hosts(run: ReportedRun) -> Sequence[str]:
    """Return the names of the machines of a run."""
    return [str(node["host"]) for node in nodes_of(run.record) if node.get("host")]


def _figure(run: ReportedRun) -> Inline:
    """Return a run's figure, as a link to the first line that it comes from; or "no figure"."""
    if run.figure is None:
        return "no figure"
    return blocks.link_to_line(run, run.figure.first_line, number(run.figure.value))
