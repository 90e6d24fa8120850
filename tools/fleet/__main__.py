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
    per_own: float  # how many of it make the metric's own unit


QUOTIENT = Unit(name="of the fleet's median", per_own=1.0)  # of a verdict whose check has no unit
UNITS = {  # by a verdict's check
    "step": Unit(name="ms", per_own=1e3),
    "input": Unit(name="ms", per_own=1e3),
    "transfer": Unit(name="ms", per_own=1e3),
    "memory": Unit(name="s/GiB", per_own=1.0),
    "disk": Unit(name="s/GiB", per_own=1.0),
    "GPU clock": Unit(name="ns", per_own=1.0),
    "latency": Unit(name="us", per_own=1e6),
}
SHADES = (1.05, 1.2, 1.5, 2.0)  # of a link's time over the median of its kind: inside a switch group, or across
MOST_WITH_FIGURES = 16  # nodes; the cells of a larger map are shaded only, and a line names no more
MAP_TITLES = {"transfer_s": "bandwidth, MiB/s", "latency_s": "latency, us"}


def write_hosts(path: Path, judged: Judged, nodes: int | None) -> None:
    """Write the first `nodes` good nodes to the hostfile `path`, a line each, and the other good ones beside it.

    With `nodes` None all good nodes are in the hostfile. The bad ones follow there as comments, each with its status.
    The other good ones are in `<path>.spares`, which is written even where there are none.
    """
    good_hosts = judged.good
    wanted = len(good_hosts) if nodes is None else nodes
    lines = [f"{host}\n" for host in good_hosts[:wanted]]
    lines += [f"# {host}: {judged.statuses[host]}\n" for host in judged.left_out]
    spares = [f"{host}\n" for host in good_hosts[wanted:]]
    path.write_text("".join(lines), encoding="utf-8")
    path.with_name(f"{path.name}.spares").write_text("".join(spares), encoding="utf-8")


def _signed(share: float) -> str:
    """Return a share as percent with its sign: 0.05 is +5.0%."""
    return f"{share:+.1%}"


# ---- the report as text


def text(judged: Judged, since: Sequence[Change]) -> str:
    """Return the report as text for a terminal.

    It has lines on each metric, on the nodes' arithmetic, on what differs between the nodes, on each named node or link
    and on doubts, and in the end the nodes that are left out and the good ones. Each line begins with its subject, as
    `step` or `left out`. `since` are the changes since a baseline; empty without one.
    """
    record = judged.record
    lines = [f"fleet     {len(judged.statuses)} compared, measured in {six_digits(record['took_s'])} s"]
    lines += _metric_lines(judged)
    lines += _arithmetic_lines(judged)
    lines += _lines_on_step_of_all(record)
    lines.append(f"{_title('links')}{len(record['links'])} measured")
    for difference in differences(record):
        lines.append(f"differs   {difference.fact}: {difference.usual}; but {difference.but}")
    for change in since:
        lines += _change_lines(change)
    lines += as_text(judged.bad).splitlines()
    lines += [f"doubt     {doubt}" for doubt in judged.doubts]
    lines.append(f"left out  {', '.join(judged.left_out) or 'none'}")
    lines.append(f"good      {','.join(judged.good)}")
    return "\n".join(lines)


def _title(check: str) -> str:
    """Return the first column of a metric's line, as wide as it is on all of them."""
    return check.ljust(18)


def _metric_lines(judged: Judged) -> list[str]:
    """Return the report's lines on the metrics, such as `step  from -1.2% to +5.0% of the fleet's median`.

    Each metric has one line with the fastest and the slowest node or link that was measured, and one that counts those
    that were not, with the first one's reason: `disk  not possible here for 4: no DATADIR`. Either is left out where it
    is about none. The arithmetic, which is no time, has lines of its own.
    """
    by_check: dict[str, list[Verdict]] = {}
    for verdict in (*judged.verdicts, *judged.by_link):
        if verdict.check != arithmetic.CHECK:
            by_check.setdefault(verdict.check, []).append(verdict)

    lines = []
    for check, verdicts in by_check.items():
        slower = [verdict.figures["slower"] for verdict in verdicts if "slower" in verdict.figures]
        if slower:
            lines.append(f"{_title(check)}from {_signed(min(slower))} to {_signed(max(slower))} of the fleet's median")
        reasons = [verdict.found for verdict in verdicts if verdict.status == UNKNOWN]
        if reasons:
            lines.append(f"{_title(check)}{NOT_POSSIBLE} for {len(reasons)}: {reasons[0]}")
    return lines


def _arithmetic_lines(judged: Judged) -> list[str]:
    """Return the report's lines on whether the nodes compute the same bits.

    The first says what was compared. One follows for each reason for which nodes are unknown: with their number, and
    their names up to MOST_WITH_FIGURES, or "all" where it is every node.
    """
    title = _title(arithmetic.CHECK)
    lines = [f"{title}{arithmetic.summary(judged.record)}"]
    hosts_by_reason: dict[str, list[str]] = {}
    for verdict in judged.verdicts:
        if verdict.check == arithmetic.CHECK and verdict.status == UNKNOWN:
            hosts_by_reason.setdefault(verdict.found, []).append(verdict.where)
    for reason, hosts in hosts_by_reason.items():
        named = ", ".join(hosts[:MOST_WITH_FIGURES])
        if len(hosts) == len(judged.statuses):
            named = "all"
        elif len(hosts) > MOST_WITH_FIGURES:
            named += ", ..."
        lines.append(f"{title}unknown for {len(hosts)} ({named}): {reason}")
    return lines


def _lines_on_step_of_all(record: Record) -> list[str]:
    """Return a line on how long a step of all ranks takes, and one alone; no line where either was not measured."""
    times_alone_s: list[float] = []
    for times_of_node in record["metrics"]["step_s"]["series"]:
        times_alone_s.extend(times_of_node or ())
    times_of_all_s = record["whole_s"]
    if not times_alone_s or not times_of_all_s:
        return []
    of_all_s = statistics.median(times_of_all_s)
    alone_s = statistics.median(times_alone_s)
    return [f"{_title('whole')}a step of all takes {of_all_s:.4f} s, alone {alone_s:.4f} s"]


def _change_lines(change: Change) -> list[str]:
    """Return how a metric changed since the baseline, and the nodes that lost more than the others did."""
    between = ""
    if change.interval_95 is not None:
        between = " ({:+.1%} to {:+.1%})".format(*change.interval_95)
    lines = [f"since     {change.metric}: {_signed(change.fleet)}{between} on {change.nodes} nodes"]
    for host, slower in change.slower.items():
        lines.append(f"since     {host}: {change.metric}: {percent(slower)} slower beside itself")
    return lines


def as_document(judged: Judged, since: Sequence[Change] | None) -> JsonObject:
    """Return the record's verdicts for a program, as JSON; `since` is None where there is no baseline."""
    return {
        "nodes": judged.statuses,
        "good": judged.good,
        "verdicts": [verdict.as_dict() for verdict in judged.verdicts],
        "links": [verdict.as_dict() for verdict in judged.by_link],
        "doubts": judged.doubts,
        "differences": [dataclasses.asdict(difference) for difference in differences(judged.record)],
        "changes": since and [dataclasses.asdict(change) for change in since],  # None stays None, null in JSON
    }


# ---- the report as a page


class Cell(NamedTuple):
    """One pair of nodes on a map."""

    figure: str
    shade: int  # 0 for up to the first of SHADES, and so on
    status: str  # of the verdict on the link; empty where there is none


def _slower(verdict: Verdict, otherwise: str) -> str:
    """Return how much slower than the fleet's median a node or link is, as "+5.0%"; `otherwise` without a figure."""
    if "slower" in verdict.figures:
        return _signed(verdict.figures["slower"])
    return otherwise


def _figure_on_map(metric: str, time_s: float) -> str:
    """Return a link's time as the map of its metric has it: MiB/s of a transfer, microseconds of a latency."""
    value = time_s * 1e6
    if metric == "transfer_s":
        value = EXCHANGE_MIB / time_s
    return f"{value:,.0f}" if value >= 1000 else significant(value, digits=4)


def _map_rows(judged: Judged, metric: str) -> list[dict[int, Cell]]:
    """Return the rows of a map of the links, one for each node: {number of another node: cell of the link to it}.

    A cell is there for each node that it was measured with, so a link stands in the rows of both its nodes. `metric` is
    one of LINK_METRICS. The cell's shade says how the link's time compares with the median of its kind: of the links
    inside switch groups, or of those from one group to another ("across").
    """
    links = links_of(judged.record)  # by name
    time_of_link_s = {name: statistics.median(link[metric]) for name, link in links.items()}
    times_by_kind: dict[bool, list[float]] = {}  # by whether a link is across
    for name, link in links.items():
        times_by_kind.setdefault(link["across"], []).append(time_of_link_s[name])
    usual_s = {is_across: statistics.median(times) for is_across, times in times_by_kind.items()}

    statuses = {verdict.where: verdict.status for verdict in judged.by_link if verdict.check == LINK_METRICS[metric]}
    rows: list[dict[int, Cell]] = [{} for _ in judged.statuses]
    for name, link in links.items():
        time_s = time_of_link_s[name]
        times_usual = time_s / usual_s[link["across"]]
        shade = bisect.bisect_left(SHADES, times_usual)  # how many of SHADES it is above
        cell = Cell(figure=_figure_on_map(metric, time_s), shade=shade, status=statuses.get(name, ""))
        rows[link["a"]][link["b"]] = cell
        rows[link["b"]][link["a"]] = cell
    return rows


def _table_of_named(verdicts: Sequence[Verdict]) -> Table:
    """Return the table of the nodes and links that these verdicts name: a row for each verdict.

    A verdict on a time has the figures of the comparison, in the unit of its metric. One without a measured `value`,
    such as one on stalls, on arithmetic or of the doctor, has what was found in its last column.
    """
    rows = []
    for verdict in verdicts:
        figures = verdict.figures
        unit = UNITS.get(verdict.check, QUOTIENT)
        median = ""
        if figures.get("value") is not None:
            median = f"{number(figures['value'] * unit.per_own)} {unit.name}"
        interval = ""
        if figures.get("interval_95"):
            interval = "{:+.1%} to {:+.1%}".format(*figures["interval_95"])
        status = verdict.status
        if "value" not in figures:
            status = f"{verdict.status}: {verdict.found}"
        rows.append((verdict.where, verdict.check, _slower(verdict, ""), interval, median, status))
    head = ("node or link", "by", "slower", "95 % interval", "median", "verdict")
    return Table(caption="Against the fleet's median", head=head, rows=rows, numeric=(2, 3, 4))


def _table_of_nodes(judged: Judged) -> Table:
    """Return the table of all nodes with their status, and how much slower each is by each metric."""
    metrics = list(dict.fromkeys(verdict.check for verdict in judged.verdicts if verdict.check != "doctor"))
    cells = {(verdict.where, verdict.check): _slower(verdict, verdict.status) for verdict in judged.verdicts}
    rows = []
    for index, (host, status) in enumerate(judged.statuses.items()):
        of_host = [cells.get((host, metric), "") for metric in metrics]
        rows.append((str(index), host, status, *of_host))
    head = ("number", "node", "verdict", *metrics)
    return Table(caption="Each node's time beside the fleet's median", head=head, rows=rows, numeric=(0,))


def _conclusion(judged: Judged) -> tuple[str, str]:
    """Return the fleet's status, and sentences for people: who is left out, and what is in doubt.

    The status is FATAL where a node or a link is named. It is UNKNOWN where there is a doubt instead, or where no node
    could be compared, else OK.
    """
    state = OK
    sentence = "No node and no link is named."
    if judged.bad:
        links = dict.fromkeys(verdict.where for verdict in judged.bad if verdict.where not in judged.statuses)
        left_out = ", ".join(judged.left_out) or "none"
        state = FATAL
        sentence = f"Nodes left out: {left_out}. Links named: {', '.join(links) or 'none'}."
    elif set(judged.statuses.values()) == {UNKNOWN}:
        state = UNKNOWN
        sentence = "Nobody could be told from the others here."
    for doubt in judged.doubts:
        if not judged.bad:
            state = UNKNOWN
        sentence = f"{sentence} Doubt: {doubt}."
    return state, sentence


def html(judged: Judged) -> str:
    """Return the report as an HTML page, made of the template page.html.

    It has the named nodes and links, a map of the links' bandwidth and one of their latency, what differs between the
    nodes, and a table of all nodes.
    """
    state, sentence = _conclusion(judged)
    tables_of_named = [_table_of_named(judged.bad)] if judged.bad else []
    rows = [(difference.fact, difference.usual, difference.but) for difference in differences(judged.record)]
    caption = "What is not alike, first what matters most"
    table_of_differences = Table(caption=caption, head=("fact", "usual", "but"), rows=rows)
    variables = {
        "record": judged.record,
        "sentence": sentence,
        "state": state,
        "mark": brief.STATUSES[state][0],  # the sign before the sentence
        "named": tables_of_named,
        "statuses": judged.statuses,
        "bad": BAD,
        "maps": {title: _map_rows(judged, metric) for metric, title in MAP_TITLES.items()},
        "figures": len(judged.statuses) <= MOST_WITH_FIGURES,  # whether the maps' cells show them
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
    """Return what is wrong with the options together; empty where nothing is."""
    if args.nodes and not args.write_hosts:
        return "--nodes goes with --write-hosts"
    records = [path.resolve() for path in (args.record, args.baseline) if path]
    for written in (args.html, args.write_hosts):
        if written and written.resolve() in records:
            return f"{written}: is a fleet's record, which would be written over: give another file"
    return ""


def report(args: argparse.Namespace) -> int:
    """Judge a record, print the verdicts and write the files that were asked for.

    Returns the exit status: 1 where a node or link is named, else 0. Raises ValueError where a record cannot be read, a
    file cannot be written, or the baseline is not of this fleet; RunError where fewer nodes are good than --nodes asks
    for. The last two are raised after the report and the files are out.
    """
    judged = read(args.record)
    not_comparable = ""
    since = None
    if args.baseline:
        earlier = read(args.baseline)
        not_comparable = why_no_baseline(judged.record, earlier.record)
        if not not_comparable:
            since = changes(judged.record, earlier.record)

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

    if not_comparable:  # the record itself has been judged all the same
        raise ValueError(f"{args.baseline}: {not_comparable}")
    if args.nodes and args.nodes > len(judged.good):
        raise RunError(f"{args.nodes} nodes are wanted, {len(judged.good)} are good: add nodes")
    return 1 if judged.bad else 0


@one_line
def main() -> int:
    """Measure as a rank where mpirun started this process, else report on the record that the command line names.

    Returns the exit status of `report`: 0 if no node and no link is named, else 1. Wrong use ends with 2.
    """
    if env.is_rank():
        return ranks_main("tools.fleet.measure")
    arguments = parser()
    complete(arguments)
    args = arguments.parse_args()
    named_files.check_options(args)
    wrong = misuse(args)
    if wrong:
        arguments.error(wrong)
    return report(args)


if __name__ == "__main__":
    sys.exit(main())
