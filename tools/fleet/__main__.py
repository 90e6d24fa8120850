"""Finds the bad node of a fleet: the report on what `--fleet` of a launcher measured.

launch/trials.sh starts `python -m tools.fleet` on every rank, which measures and writes fleet.json. On that file it
then calls it again, without mpirun: `python -m tools.fleet fleet.json` judges, prints, and writes the list of hosts.
An earlier fleet.json is a baseline. Exit status: 0 if every node passes, 1 if one does not, 2 for wrong use.
"""

import argparse
import bisect
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness import env
from harness.__main__ import main as ranks_main
from runlog import named_files
from runlog.completion import complete
from runlog.digits import percent, significant, six_digits
from runlog.errors import RunError, one_line
from runlog.json_types import JsonObject
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, as_text
from scoring.importers import count
from scoring.report import brief, render
from scoring.report.blocks import Table
from scoring.report.text import number
from tools.fleet import arithmetic
from tools.fleet.baseline import Change, changes
from tools.fleet.record import EXCHANGE_MIB, differences, read, why_no_baseline
from tools.fleet.verdicts import BAD, LINK_METRICS, NOT_POSSIBLE, Judged, Record, links_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """The unit in which a metric is shown."""

    name: str
    factor: float  # shown value = recorded value * factor


RATIO_UNIT = Unit(name="of the fleet's median", factor=1.0)  # of a check that has no unit
UNITS = {  # by the check of a verdict
    "step": Unit(name="ms", factor=1e3),
    "input": Unit(name="ms", factor=1e3),
    "transfer": Unit(name="ms", factor=1e3),
    "memory": Unit(name="s/GiB", factor=1.0),
    "disk": Unit(name="s/GiB", factor=1.0),
    "GPU clock": Unit(name="ns", factor=1.0),
    "latency": Unit(name="us", factor=1e6),
}
# The upper bounds of the map's shades. They are ratios: a link's time over the median time of links of its kind, which
# is inside a switch group or across groups.
SHADES = (1.05, 1.2, 1.5, 2.0)
MOST_NODES_SHOWN = 16  # in full: the cells of a larger map have a shade but no figure, and a line has no more names
MAP_TITLES = {"transfer_s": "bandwidth, MiB/s", "latency_s": "latency, us"}


def write_hosts(path: Path, judged: Judged, nodes: int | None) -> None:
    """Write the hostfile `path` with the good nodes, and `<path>.spares` with those that are not needed.

    The hostfile has the first `nodes` good nodes, or all if `nodes` is None. Each has its own line. The bad nodes
    follow as comments with their status. The other good nodes are in `<path>.spares`, which is written even if it is
    empty.
    """
    good_hosts = judged.good_hosts
    wanted = len(good_hosts) if nodes is None else nodes
    lines = [f"{host}\n" for host in good_hosts[:wanted]]
    lines += [f"# {host}: {judged.statuses[host]}\n" for host in judged.left_out_hosts]
    spares = [f"{host}\n" for host in good_hosts[wanted:]]
    path.write_text("".join(lines), encoding="utf-8")
    path.with_name(f"{path.name}.spares").write_text("".join(spares), encoding="utf-8")


def _signed(share: float) -> str:
    """Return a share as percent with its sign: 0.05 -> "+5.0%"."""
    return f"{share:+.1%}"


# ---- the report as text


def text(judged: Judged, since: Sequence[Change]) -> str:
    """Return the report as text for a terminal.

    Each line begins with its subject, such as `step` or `left out`. The lines are in this order: each metric, the
    arithmetic, a step of all ranks, the links, facts that differ between nodes, changes since a baseline, bad verdicts,
    doubts, the nodes left out, the good nodes. `since` is empty without a baseline.
    """
    record = judged.record
    lines = [f"fleet     {len(judged.statuses)} compared, measured in {six_digits(record['took_s'])} s"]
    lines += _metric_lines(judged)
    lines += _arithmetic_lines(judged)
    lines += _lines_on_step_of_all(record)
    lines.append(f"{_first_column('links')}{len(record['links'])} measured")
    for difference in differences(record):
        lines.append(f"differs   {difference.fact}: {difference.usual}; but {difference.but}")
    for change in since:
        lines += _change_lines(change)
    lines += as_text(judged.bad_verdicts).splitlines()
    lines += [f"doubt     {doubt}" for doubt in judged.doubts]
    lines.append(f"left out  {', '.join(judged.left_out_hosts) or 'none'}")
    lines.append(f"good      {','.join(judged.good_hosts)}")
    return "\n".join(lines)


def _first_column(check: str) -> str:
    """Return the first column of a metric's line, padded to the width of that column."""
    return check.ljust(18)


def _metric_lines(judged: Judged) -> list[str]:
    """Return the report's lines on the metrics: up to two lines for each metric.

    - The range from the fastest to the slowest node or link, if any was compared:
      `step  from -1.2% to +5.0% of the fleet's median`.
    - The number of unknown nodes or links, if there are any, with the reason of the first one:
      `disk  not possible here for 4: no DATADIR`.

    The arithmetic is left out, because `_arithmetic_lines` reports on it.
    """
    verdicts_by_check: dict[str, list[Verdict]] = {}
    for verdict in (*judged.node_verdicts, *judged.link_verdicts):
        if verdict.check != arithmetic.CHECK:
            verdicts_by_check.setdefault(verdict.check, []).append(verdict)

    lines = []
    for check, verdicts in verdicts_by_check.items():
        column = _first_column(check)
        slower = [verdict.figures["slower"] for verdict in verdicts if "slower" in verdict.figures]
        if slower:
            lines.append(f"{column}from {_signed(min(slower))} to {_signed(max(slower))} of the fleet's median")
        reasons = [verdict.found for verdict in verdicts if verdict.status == UNKNOWN]
        if reasons:
            lines.append(f"{column}{NOT_POSSIBLE} for {len(reasons)}: {reasons[0]}")
    return lines


def _arithmetic_lines(judged: Judged) -> list[str]:
    """Return the report's lines on whether the nodes compute the same bits.

    The first line says what was compared. If nodes are unknown, each reason has a line with their number and names.
    The names are "all" if every node is unknown for that reason. Otherwise at most MOST_NODES_SHOWN are named.
    """
    column = _first_column(arithmetic.CHECK)
    lines = [f"{column}{arithmetic.summary(judged.record)}"]
    hosts_by_reason: dict[str, list[str]] = {}
    for verdict in judged.node_verdicts:
        if verdict.check == arithmetic.CHECK and verdict.status == UNKNOWN:
            hosts_by_reason.setdefault(verdict.found, []).append(verdict.where)
    for reason, hosts in hosts_by_reason.items():
        names = ", ".join(hosts[:MOST_NODES_SHOWN])
        if len(hosts) == len(judged.statuses):
            names = "all"
        elif len(hosts) > MOST_NODES_SHOWN:
            names += ", ..."
        lines.append(f"{column}unknown for {len(hosts)} ({names}): {reason}")
    return lines


def _lines_on_step_of_all(record: Record) -> list[str]:
    """Return a line with the median seconds of a step of all ranks, and of a step of one rank alone.

    The list is empty if one of the two was not measured.
    """
    times_alone_s: list[float] = []
    for times_of_node in record["metrics"]["step_s"]["series"]:
        times_alone_s.extend(times_of_node or ())  # None for a node that was not measured
    times_of_all_s = record["whole_s"]
    if not times_alone_s or not times_of_all_s:
        return []
    of_all_s = statistics.median(times_of_all_s)
    alone_s = statistics.median(times_alone_s)
    return [f"{_first_column('whole')}a step of all takes {of_all_s:.4f} s, alone {alone_s:.4f} s"]


def _change_lines(change: Change) -> list[str]:
    """Return a line on how a metric changed since the baseline, and one for each node that slowed down more."""
    interval = ""
    if change.interval_95 is not None:
        interval = " ({:+.1%} to {:+.1%})".format(*change.interval_95)
    lines = [f"since     {change.metric}: {_signed(change.fleet)}{interval} on {change.nodes} nodes"]
    for host, slower in change.slower.items():
        lines.append(f"since     {host}: {change.metric}: {percent(slower)} slower beside itself")
    return lines


def as_document(judged: Judged, since: Sequence[Change] | None) -> JsonObject:
    """Return the verdicts on a record as the object that --json prints; `since` is None without a baseline."""
    return {
        "nodes": judged.statuses,
        "good": judged.good_hosts,
        "verdicts": [verdict.as_dict() for verdict in judged.node_verdicts],
        "links": [verdict.as_dict() for verdict in judged.link_verdicts],
        "doubts": judged.doubts,
        "differences": [dataclasses.asdict(difference) for difference in differences(judged.record)],
        "changes": since and [dataclasses.asdict(change) for change in since],  # None stays None, null in JSON
    }


# ---- the report as a page


class Cell(NamedTuple):
    """One pair of nodes on a map."""

    figure: str
    shade: int  # 0 for a ratio up to SHADES[0], 1 for one up to SHADES[1], and so on
    status: str  # of the verdict on the link; empty if there is none


def _slower(verdict: Verdict, *, missing: str) -> str:
    """Return how much slower than the fleet's median a node or link is: "+5.0%". `missing` if it was not compared."""
    if "slower" in verdict.figures:
        return _signed(verdict.figures["slower"])
    return missing


def _figure_on_map(metric: str, time_s: float) -> str:
    """Return the figure of a link on a map: the bandwidth in MiB/s for "transfer_s", else the latency in microseconds.

    `time_s` is the link's time. Figures of 1000 and more are whole numbers; others have four digits.
    """
    value = time_s * 1e6
    if metric == "transfer_s":
        value = EXCHANGE_MIB / time_s
    return f"{value:,.0f}" if value >= 1000 else significant(value, digits=4)


def _map_rows(judged: Judged, metric: str) -> list[dict[int, Cell]]:
    """Return the rows of a map of the links: for each node {number of another node: cell of the link between them}.

    A node has a cell for each other node that it was measured with. So each link is in two rows, those of its nodes.
    `metric` is one of LINK_METRICS.

    The shade of a cell shows the link's time over the median time of its kind of links. There are two kinds: links
    inside a switch group, and links from one group to another ("across").
    """
    links = links_of(judged.record)  # by name
    median_time_s = {name: statistics.median(link[metric]) for name, link in links.items()}  # of the link's turns
    times_by_is_across: dict[bool, list[float]] = {}
    for name, link in links.items():
        times_by_is_across.setdefault(link["across"], []).append(median_time_s[name])
    usual_s = {is_across: statistics.median(times) for is_across, times in times_by_is_across.items()}

    check = LINK_METRICS[metric]
    statuses = {verdict.where: verdict.status for verdict in judged.link_verdicts if verdict.check == check}
    rows: list[dict[int, Cell]] = [{} for _ in judged.statuses]
    for name, link in links.items():
        time_s = median_time_s[name]
        ratio_to_usual = time_s / usual_s[link["across"]]
        shade = bisect.bisect_left(SHADES, ratio_to_usual)  # how many of SHADES are below the ratio
        cell = Cell(figure=_figure_on_map(metric, time_s), shade=shade, status=statuses.get(name, ""))
        rows[link["a"]][link["b"]] = cell
        rows[link["b"]][link["a"]] = cell
    return rows


def _table_of_bad(verdicts: Sequence[Verdict]) -> Table:
    """Return the table of the bad nodes and links: a row for each of the verdicts.

    - A verdict on a time has the node's or link's median in the figure `value`. Its row shows how much slower it is,
      with the interval, and the median in the metric's unit.
    - A verdict on stalls, on arithmetic or by the doctor has no `value`. Its last column also says what was found.
    """
    rows = []
    for verdict in verdicts:
        figures = verdict.figures
        median = ""
        status = f"{verdict.status}: {verdict.found}"
        if "value" in figures:
            unit = UNITS.get(verdict.check, RATIO_UNIT)
            median = f"{number(figures['value'] * unit.factor)} {unit.name}"
            status = verdict.status
        interval = ""
        if figures.get("interval_95"):  # None if there were too few turns
            interval = "{:+.1%} to {:+.1%}".format(*figures["interval_95"])
        rows.append((verdict.where, verdict.check, _slower(verdict, missing=""), interval, median, status))
    head = ("node or link", "by", "slower", "95 % interval", "median", "verdict")
    return Table(caption="Against the fleet's median", head=head, rows=rows, numeric=(2, 3, 4))


def _table_of_nodes(judged: Judged) -> Table:
    """Return the table of all nodes: a row for each, with its status and how much slower it is by each metric.

    If a node was not compared by a metric, the cell has the status of that verdict; it is empty without a verdict.
    """
    metrics = list(dict.fromkeys(verdict.check for verdict in judged.node_verdicts if verdict.check != "doctor"))
    cells: dict[tuple[str, str], str] = {}  # by node and metric
    for verdict in judged.node_verdicts:
        cells[verdict.where, verdict.check] = _slower(verdict, missing=verdict.status)
    rows = []
    for index, (host, status) in enumerate(judged.statuses.items()):
        cells_of_host = [cells.get((host, metric), "") for metric in metrics]
        rows.append((str(index), host, status, *cells_of_host))
    head = ("number", "node", "verdict", *metrics)
    return Table(caption="Each node's time beside the fleet's median", head=head, rows=rows, numeric=(0,))


def _conclusion(judged: Judged) -> tuple[str, str]:
    """Return the status of the whole fleet, and sentences that say it in words.

    - FATAL if a node or a link is bad. The sentences list the nodes left out and the bad links.
    - UNKNOWN if no node could be compared, or if there are doubts.
    - OK otherwise.

    Doubts are appended to the sentences in any case.
    """
    sentence = "No node and no link is named."
    if judged.bad_verdicts:
        bad_places = [verdict.where for verdict in judged.bad_verdicts]
        # `statuses` has all nodes, so that any other place is a link. A link may have several bad verdicts.
        bad_links = dict.fromkeys(place for place in bad_places if place not in judged.statuses)
        left_out = ", ".join(judged.left_out_hosts) or "none"
        status = FATAL
        sentence = f"Nodes left out: {left_out}. Links named: {', '.join(bad_links) or 'none'}."
    elif set(judged.statuses.values()) == {UNKNOWN}:
        status = UNKNOWN
        sentence = "Nobody could be told from the others here."
    elif judged.doubts:
        status = UNKNOWN
    else:
        status = OK
    for doubt in judged.doubts:
        sentence = f"{sentence} Doubt: {doubt}."
    return status, sentence


def html(judged: Judged) -> str:
    """Return the report as an HTML page, rendered from the template page.html.

    It has a table of the bad nodes and links (none if all are good), a map of the links' bandwidth and one of their
    latency, a table of what differs between the nodes, and a table of all nodes.
    """
    status, sentence = _conclusion(judged)
    tables_of_bad = [_table_of_bad(judged.bad_verdicts)] if judged.bad_verdicts else []
    rows = [(difference.fact, difference.usual, difference.but) for difference in differences(judged.record)]
    caption = "What is not alike, first what matters most"
    table_of_differences = Table(caption=caption, head=("fact", "usual", "but"), rows=rows)
    variables = {
        "record": judged.record,
        "sentence": sentence,
        "state": status,
        "mark": brief.STATUSES[status][0],  # the sign before the sentence
        "named": tables_of_bad,
        "statuses": judged.statuses,
        "bad": BAD,  # the statuses that are marked on the maps
        "maps": {title: _map_rows(judged, metric) for metric, title in MAP_TITLES.items()},
        "figures": len(judged.statuses) <= MOST_NODES_SHOWN,  # whether the maps' cells show them
        "shades": SHADES,
        "tables": [table_of_differences, _table_of_nodes(judged)],
    }
    return render.html(variables, Path(__file__).with_name("page.html"))


# ---- the command


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m tools.fleet", description=__doc__)
    made.add_argument("record", type=Path, metavar="FLEET.JSON", help="what --fleet of a launcher measured")
    made.add_argument("--baseline", type=Path, metavar="FLEET.JSON", help="an earlier one to compare with")
    made.add_argument("--write-hosts", type=Path, metavar="FILE", help="write good nodes there")
    made.add_argument("--nodes", type=count, metavar="N", help="so many, the other good ones to FILE.spares")
    made.add_argument("--html", type=Path, metavar="FILE", help="write a page with the map of nodes and links there")
    made.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    return made


def misuse(args: argparse.Namespace) -> str:
    """Return a message on options that do not go together, or that would overwrite a record; empty if all is right."""
    if args.nodes and not args.write_hosts:
        return "--nodes goes with --write-hosts"
    records = [path.resolve() for path in (args.record, args.baseline) if path]
    for written in (args.html, args.write_hosts):
        if written and written.resolve() in records:
            return f"{written}: is a fleet's record, which would be written over: give another file"
    return ""


def report(args: argparse.Namespace) -> int:
    """Judge a record, print the verdicts, and write the files that the options ask for.

    Returns the exit status: 1 if a node or link is bad, else 0.

    Raises ValueError if a record cannot be read, a file cannot be written, or the baseline cannot be compared; RunError
    if fewer nodes are good than --nodes asks for. The last two errors come after the report is printed and written.
    """
    judged = read(args.record)
    why_not_comparable = ""
    since = None
    if args.baseline:
        baseline = read(args.baseline)
        why_not_comparable = why_no_baseline(judged.record, baseline.record)
        if not why_not_comparable:
            since = changes(judged.record, baseline.record)

    if args.json:
        print(json.dumps(as_document(judged, since), indent=1))
    else:
        print(text(judged, since or []))
    try:
        if args.write_hosts:
            write_hosts(args.write_hosts, judged, args.nodes)
        if args.html:
            args.html.write_text(html(judged), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error}: give a file that can be written") from error

    if why_not_comparable:  # only now, because the report does not need the baseline
        raise ValueError(f"{args.baseline}: {why_not_comparable}")
    if args.nodes and args.nodes > len(judged.good_hosts):
        raise RunError(f"{args.nodes} nodes are wanted, {len(judged.good_hosts)} are good: add nodes")
    return 1 if judged.bad_verdicts else 0


@one_line
def main() -> int:
    """Take part in the measurement if mpirun started this process; otherwise report on the record of the command line.

    Returns the exit status: 0 if no node and no link is bad, else 1. Wrong options end the process with status 2.
    """
    if env.is_rank():
        return ranks_main("tools.fleet.measure")
    arguments = parser()
    complete(arguments)  # for completion in the shell
    args = arguments.parse_args()
    named_files.check_options(args)
    wrong = misuse(args)
    if wrong:
        arguments.error(wrong)
    return report(args)


if __name__ == "__main__":
    sys.exit(main())
