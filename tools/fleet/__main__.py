"""Finds the bad node of a fleet: the report on what `--fleet` of a launcher measured.

launch/trials.sh starts `python -m tools.fleet` on every rank, which measures and writes fleet.json. On that file it
then calls it again, without mpirun: `python -m tools.fleet fleet.json` judges, prints, and writes the list of hosts.
An earlier fleet.json is a baseline. Exit status: 0 if every node passes, 1 if one does not, 2 for wrong use.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import env
from harness.__main__ import main as ranks_main
from runlog.errors import RunError, one_line
from runlog.verdict import UNKNOWN, as_text
from scoring.importers import count
from tools.fleet import page as fleet_page
from tools.fleet.record import differences, read, unlike
from tools.fleet.verdicts import NOT_POSSIBLE, Change, Judged, changes


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
    """The same for a program."""
    return {
        "nodes": judged.statuses,
        "good": judged.good,
        "verdicts": [verdict.as_dict() for verdict in judged.verdicts],
        "links": [verdict.as_dict() for verdict in judged.by_link],
        "doubts": judged.doubts,
        "differences": [dataclasses.asdict(difference) for difference in differences(judged.record)],
        "changes": since and [dataclasses.asdict(change) for change in since],
    }


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
            args.html.write_text(fleet_page.html(judged), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error}: give a file that can be written") from error
    if other:  # what was just measured is judged all the same
        raise ValueError(f"{args.baseline}: {other}")
    if args.nodes and args.nodes > len(judged.good):
        raise RunError(f"{args.nodes} nodes are wanted, {len(judged.good)} are good: add nodes")
    return int(bool(judged.bad))


if __name__ == "__main__":
    sys.exit(main())
