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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import env
from harness.__main__ import main as ranks_main
from runlog import named_files
from runlog.errors import RunError, one_line
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, as_text
from scoring.importers import count
from scoring.report import brief, render
from scoring.report.blocks import Table
from scoring.report.text import number
from tools.fleet.record import EXCHANGE_MIB, differences, read, unlike
from tools.fleet.verdicts import BAD, LINK_METRICS, NOT_POSSIBLE, Change, Judged, changes, links_of

UNITS = {  # of a verdict's figure, and how many make its own
    **dict.fromkeys(("step", "input", "transfer"), (1e3, "ms")),
    **dict.fromkeys(("memory", "disk"), (1.0, "s/GiB")),
    **{"GPU clock": (1.0, "ns"), "latency": (1e6, "us")},
}
SHADES = (1.05, 1.2, 1.5, 2.0)  # of a link's time over the median of its kind: inside a switch group, or across
MOST_WITH_FIGURES = 16  # nodes; the cells of a larger map are shaded only
MAPS: dict[str, tuple[str, Callable[[float], float]]] = {
    "transfer_s": ("bandwidth, MiB/s", lambda s: EXCHANGE_MIB / s),
    "latency_s": ("latency, us", lambda s: s * 1e6),
}


def write_hosts(path: Path, judged: Judged, nodes: int | None) -> None:
    """A hostfile of `nodes` good nodes, or all; those left over are in the file beside it, `.spares`."""
    taken = judged.good
    cut = len(taken) if nodes is None else nodes
    left_out = [f"# {host}: {judged.statuses[host]}\n" for host in judged.left_out]
    path.write_text("".join([f"{host}\n" for host in taken[:cut]] + left_out), encoding="utf-8")
    path.with_name(f"{path.name}.spares").write_text("".join(f"{host}\n" for host in taken[cut:]), encoding="utf-8")


def text(judged: Judged, since: Sequence[Change]) -> str:
    """The report."""
    record, every = judged.record, [*judged.verdicts, *judged.by_link]
    lines = [f"fleet     {len(judged.statuses)} compared, measured in {record['took_s']:g} s"]
    for check in dict.fromkeys(v.check for v in every):
        of = [v for v in every if v.check == check]
        if slower := [v.figures["slower"] for v in of if "slower" in v.figures]:
            lines.append(f"{check:18}from {min(slower):+.1%} to {max(slower):+.1%} of the fleet's median")
        if unknown := [v.found for v in of if v.status == UNKNOWN]:
            lines.append(f"{check:18}{NOT_POSSIBLE} for {len(unknown)}: {unknown[0]}")
    alone = [s for series in record["metrics"]["step_s"]["series"] if series for s in series]
    if alone and record["whole_s"]:
        whole = statistics.median(record["whole_s"])
        lines.append(f"{'whole':18}a step of all takes {whole:.4f} s, alone {statistics.median(alone):.4f} s")
    lines.append(f"{'links':18}{len(record['links'])} measured")
    lines += [f"differs   {differs.fact}: {differs.usual}; but {differs.but}" for differs in differences(record)]
    for change in since:
        between = "" if change.interval_95 is None else " ({:+.1%} to {:+.1%})".format(*change.interval_95)
        lines.append(f"since     {change.metric}: {change.fleet:+.1%}{between} on {change.nodes} nodes")
        named = change.slower.items()
        lines += [f"since     {host}: {change.metric}: {by:.1%} slower beside itself" for host, by in named]
    lines += as_text(judged.bad).splitlines()
    lines += [f"doubt     {doubt}" for doubt in judged.doubts]
    lines += [f"left out  {', '.join(judged.left_out) or 'none'}", f"good      {','.join(judged.good)}"]
    return "\n".join(lines)


def as_document(judged: Judged, since: Sequence[Change] | None) -> dict[str, Any]:
    """Return the record and its verdicts for a program, as JSON."""
    return {
        "nodes": judged.statuses,
        "good": judged.good,
        "verdicts": [verdict.as_dict() for verdict in judged.verdicts],
        "links": [verdict.as_dict() for verdict in judged.by_link],
        "doubts": judged.doubts,
        "differences": [dataclasses.asdict(difference) for difference in differences(judged.record)],
        "changes": since and [dataclasses.asdict(change) for change in since],
    }


# ---- its page


def _slower(verdict: Verdict, otherwise: str) -> str:
    return f"{verdict.figures['slower']:+.1%}" if "slower" in verdict.figures else otherwise


def _map(judged: Judged, metric: str) -> list[dict[int, tuple[str, int, str]]]:
    """Return by pair of nodes that were measured together: the figure, the shade, and the verdict on the link."""
    links = links_of(judged.record)
    times = [(link["across"], statistics.median(link[metric])) for link in links.values()]
    usual_s = {across: statistics.median(s for of, s in times if of == across) for across, _ in times}
    status = {v.where: v.status for v in judged.by_link if v.check == LINK_METRICS[metric]}
    rows: list[dict[int, tuple[str, int, str]]] = [{} for _ in judged.statuses]
    for (name, link), (across, time_s) in zip(links.items(), times, strict=True):
        value = MAPS[metric][1](time_s)
        figure = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
        shade = bisect.bisect_left(SHADES, time_s / usual_s[across])
        rows[link["a"]][link["b"]] = rows[link["b"]][link["a"]] = figure, shade, status.get(name, "")
    return rows


def _named(verdicts: Sequence[Verdict]) -> Table:
    rows = []
    for v in verdicts:
        scale, unit = UNITS.get(v.check, (1.0, "of the fleet's median"))
        value, interval = v.figures.get("value"), v.figures.get("interval_95")
        figure = "" if value is None else f"{number(value * scale)} {unit}"
        between = "{:+.1%} to {:+.1%}".format(*interval) if interval else ""
        verdict = v.status if "value" in v.figures else f"{v.status}: {v.found}"
        rows.append((v.where, v.check, _slower(v, ""), between, figure, verdict))
    head = ("node or link", "by", "slower", "95 % interval", "median", "verdict")
    return Table(caption="Against the fleet's median", head=head, rows=rows, numeric=(2, 3, 4))


def _nodes(judged: Judged) -> Table:
    metrics = list(dict.fromkeys(v.check for v in judged.verdicts if v.check != "doctor"))
    of = {(v.where, v.check): _slower(v, v.status) for v in judged.verdicts}
    statuses = enumerate(judged.statuses.items())
    rows = [(str(i), host, status, *(of.get((host, m), "") for m in metrics)) for i, (host, status) in statuses]
    head = ("number", "node", "verdict", *metrics)
    return Table(caption="Each node's time beside the fleet's median", head=head, rows=rows, numeric=(0,))


def html(judged: Judged) -> str:
    """A page for people: who is named, a map of bandwidth and latency from node to node, and what differs."""
    record, statuses, named = judged.record, judged.statuses, judged.bad
    state, sentence = OK, "No node and no link is named."
    if named:
        links = dict.fromkeys(v.where for v in named if v.where not in statuses)
        texts = (", ".join(names) or "none" for names in (judged.left_out, links))
        state, sentence = FATAL, "Nodes left out: {}. Links named: {}.".format(*texts)
    elif set(statuses.values()) == {UNKNOWN}:
        state, sentence = UNKNOWN, "Nobody could be told from the others here."
    for doubt in judged.doubts:
        state, sentence = state if named else UNKNOWN, f"{sentence} Doubt: {doubt}."
    differ = [(d.fact, d.usual, d.but) for d in differences(record)]
    alike = Table(caption="What is not alike, first what matters most", head=("fact", "usual", "but"), rows=differ)
    page = {
        "record": record,
        "sentence": sentence,
        "state": state,
        "mark": brief.STATUSES[state][0],
        "named": [_named(named)] if named else [],
        "statuses": statuses,
        "bad": BAD,
        "maps": {title: _map(judged, metric) for metric, (title, _) in MAPS.items()},
        "figures": len(statuses) <= MOST_WITH_FIGURES,
        "shades": SHADES,
        "tables": [alike, _nodes(judged)],
    }
    return render.html(page, Path(__file__).with_name("page.html"))


# ---- the command


@one_line
def main() -> int:
    """A rank's part where mpirun started this process, else the report."""
    if env.is_rank():
        return ranks_main("tools.fleet.measure")
    parser = argparse.ArgumentParser(prog="python -m tools.fleet", description=__doc__)
    parser.add_argument("record", type=Path, metavar="FLEET.JSON", help="what --fleet of a launcher measured")
    parser.add_argument("--baseline", type=Path, metavar="FLEET.JSON", help="an earlier one to compare with")
    parser.add_argument("--write-hosts", type=Path, metavar="FILE", help="write good nodes there")
    parser.add_argument("--nodes", type=count, metavar="N", help="so many, the other good ones to FILE.spares")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the map of nodes and links there")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    args = parser.parse_args()
    named_files.check_options(args)
    if args.nodes and not args.write_hosts:
        parser.error("--nodes goes with --write-hosts")
    for written in (args.html, args.write_hosts):
        if written and any(written.resolve() == kept.resolve() for kept in (args.record, args.baseline) if kept):
            parser.error(f"{written}: is a fleet's record, which would be written over: give another file")
    judged, then = read(args.record), args.baseline and read(args.baseline)
    other = unlike(judged.record, then.record) if then else ""
    since = changes(judged.record, then.record) if then and not other else None
    print(json.dumps(as_document(judged, since), indent=1) if args.json else text(judged, since or []))
    try:
        if args.write_hosts:
            write_hosts(args.write_hosts, judged, args.nodes)
        if args.html:
            args.html.write_text(html(judged), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error}: give a file that can be written") from error
    if other:  # what was just measured is judged all the same
        raise ValueError(f"{args.baseline}: {other}")
    if args.nodes and args.nodes > len(judged.good):
        raise RunError(f"{args.nodes} nodes are wanted, {len(judged.good)} are good: add nodes")
    return int(bool(judged.bad))


if __name__ == "__main__":
    sys.exit(main())
