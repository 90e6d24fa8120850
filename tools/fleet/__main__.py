"""Finds the bad node of a fleet: the report on what `--fleet` of a launcher measured.

launch/trials.sh starts `python -m tools.fleet` on every rank, which measures and writes fleet.json. On that file it
then calls it again, without mpirun: `python -m tools.fleet fleet.json` judges, prints, and writes the list of hosts.
An earlier fleet.json is a baseline. Exit status: 0 if every node passes, 1 if one does not, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import env
from harness.__main__ import main as ranks_main
from scoring.importers import count
from tools.fleet import drift as fleet_drift
from tools.fleet import page as fleet_page
from tools.fleet import verdicts as fleet_verdicts
from tools.fleet.verdicts import FAILED, NOT_POSSIBLE, PASS, SLOW, FleetVerdict

FORMAT = {"format": "paddle-reference-fleet", "version": 1}


def read(path: Path) -> dict[str, Any]:
    """A record.

    Raises:
        ValueError: the file is none, or has a figure or a list that none can have.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: give the fleet.json of a --fleet") from error
    if not isinstance(record, dict) or {name: record.get(name) for name in FORMAT} != FORMAT:
        raise ValueError(f"{path}: no record of a --fleet in this version's form: give its fleet.json")
    try:
        _check(record)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: damaged ({type(error).__name__}: {error}): give the file as --fleet wrote it"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}: give the file as --fleet wrote it") from error
    return record


def _check(record: Mapping[str, Any]) -> None:
    """Raises the error of whatever is not as a fleet's acceptance writes it."""
    hosts, metrics = record["hosts"], record["metrics"]
    twice = [host for host, times in Counter(hosts).items() if times > 1]
    if twice or not hosts:
        raise ValueError(f"its hosts have {twice[0]} more than once" if twice else "it has no hosts")
    if len(record["nodes"]) != len(hosts):
        raise ValueError(f"it has {len(hosts)} hosts and facts of {len(record['nodes'])}")
    for node in record["nodes"]:
        _times("the offset of a clock", [[1 + abs(node["clock_offset_s"])]])
        if not isinstance(node["failed"] + list(node["facts"].items()), list):
            raise TypeError("facts")
    for metric in (fleet_verdicts.STEP, fleet_verdicts.STALLS, *metrics):
        if len(metrics[metric]["series"]) != len(hosts):
            raise ValueError(f"{metric} has {len(metrics[metric]['series'])} series of {len(hosts)} hosts")
        _times(metric, metrics[metric]["series"], hosts)
        if not all(0 <= int(i) < len(hosts) and isinstance(why, str) for i, why in metrics[metric]["reasons"].items()):
            raise ValueError(f"{metric} has a reason of no host")
    links = record["links"]
    for link in links:
        if not 0 <= link["a"] < link["b"] < len(hosts) or not isinstance(link["across"], bool):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")
        _times("resent segments", [[1 + sum(link["resent"])]])
    for metric in fleet_verdicts.LINK_METRICS:
        _times(metric, [link[metric] for link in links], [f"{hosts[link['a']]} - {hosts[link['b']]}" for link in links])
    _times("whole_s", [[*record["whole_s"], 1.0]])
    _times("took_s", [[record["took_s"]]])
    if not isinstance(record["system"] + record["time"], str):
        raise TypeError("system and time")


def _times(metric: str, series: Sequence[Sequence[float] | None], names: Sequence[str] = ()) -> None:
    """
    Raises:
        ValueError: a time is none, or the series are not of the same turns.
    """
    turns = len(next((taken for taken in series if taken is not None), ()))
    for i, taken in enumerate(series):
        of = f"{metric} of {names[i]}" if names else metric
        if taken is not None and not (len(taken) == turns > 0):
            raise ValueError(f"{of} has {len(taken)} turns, another {turns}: all are of the same turns")
        for value in taken or ():
            if not 0 < value < math.inf:
                raise ValueError(f"{of} is {value}: a time is above 0 and finite")


def comparable(path: Path, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: the baseline has other hosts, or its job took other steps.
    """
    if not set(now["hosts"]) & set(then["hosts"]):
        raise ValueError(f"{path}: has none of these hosts: give an earlier record of the same ones")
    jobs = [record.get("job", {}) for record in (then, now)]
    other = [name for name in {**jobs[0], **jobs[1]} if jobs[0].get(name) != jobs[1].get(name)]
    if other:
        said = ", ".join(f"{name} {jobs[0].get(name)} then, {jobs[1].get(name)} now" for name in other)
        raise ValueError(f"{path}: is of another job ({said}): give an earlier record of the same job")


def judge_record(record: Mapping[str, Any]) -> tuple[dict[str, str], list[FleetVerdict], list[FleetVerdict]]:
    """Each node's status, the verdicts on nodes, and those on links."""
    hosts = record["hosts"]
    by_node, by_link = fleet_verdicts.judge_links(hosts, record["links"])
    verdicts = fleet_verdicts.judge_nodes(hosts, record["metrics"]) + by_node
    verdicts += [
        FleetVerdict(what=host, metric="doctor", status=FAILED, said=said)
        for host, node in zip(hosts, record["nodes"], strict=True)
        for said in node["failed"]
    ]
    worst = (FAILED, SLOW, PASS, NOT_POSSIBLE)
    statuses = {
        h: min((v.status for v in verdicts if v.what == h), key=worst.index, default=NOT_POSSIBLE) for h in hosts
    }
    return statuses, verdicts, by_link


def good(statuses: Mapping[str, str]) -> list[str]:
    """Nodes to run on: those that are not known to be slow or to fail."""
    return [host for host, status in statuses.items() if status in (PASS, NOT_POSSIBLE)]


def write_hosts(path: Path, statuses: Mapping[str, str], nodes: int | None) -> None:
    """A hostfile of `nodes` good nodes, or all; those left over are in the file beside it, `.spares`."""
    taken = good(statuses)
    cut = len(taken) if nodes is None else nodes
    left_out = [f"# {host}: {status}\n" for host, status in statuses.items() if host not in taken]
    path.write_text("".join([f"{host}\n" for host in taken[:cut]] + left_out), encoding="utf-8")
    path.with_name(f"{path.name}.spares").write_text("".join(f"{host}\n" for host in taken[cut:]), encoding="utf-8")


def text(record: Mapping[str, Any], then: Mapping[str, Any] | None) -> str:
    """The report."""
    statuses, verdicts, by_link = judge_record(record)
    lines = [f"fleet     {len(statuses)} compared, measured in {record['took_s']:g} s"]
    for metric in dict.fromkeys(v.metric for v in verdicts if v.slower is not None):
        spread = [v.slower for v in verdicts if v.metric == metric and v.slower is not None]
        lines.append(f"{metric:18}from {min(spread):+.1%} to {max(spread):+.1%} of the fleet's median")
    for metric in dict.fromkeys(v.metric for v in [*verdicts, *by_link]):
        of = [v for v in [*verdicts, *by_link] if v.metric == metric and v.status == NOT_POSSIBLE]
        if of:
            lines.append(f"{metric:18}{NOT_POSSIBLE} for {len(of)}: {of[0].said}")
    alone = [s for series in record["metrics"]["step_s"]["series"] if series for s in series]
    if alone and record["whole_s"]:
        whole = statistics.median(record["whole_s"])
        lines.append(f"{'whole':18}a step of all takes {whole:.4f} s, alone {statistics.median(alone):.4f} s")
    resent = sum(sum(link["resent"]) for link in record["links"])
    lines.append(f"{'links':18}{len(record['links'])} measured; TCP sent {resent:.0f} segments again")
    for difference in fleet_drift.differences(record["hosts"], record["nodes"]):
        others = "; ".join(f"{value}: {', '.join(hosts)}" for value, hosts in difference.others.items())
        lines.append(f"differs   {difference.fact}: {difference.usual}; but {others}")
    for change in fleet_verdicts.changes(record, then) if then else []:
        between = "" if change.interval_95 is None else " ({:+.1%} to {:+.1%})".format(*change.interval_95)
        lines.append(f"since     {change.metric}: {change.fleet:+.1%}{between} on {change.nodes} nodes")
        lines += [
            f"since     {host}: {change.metric}: {by:.1%} slower beside itself" for host, by in change.slower.items()
        ]
    lines += [f"{v.status:10}{v}" for v in [*verdicts, *by_link] if v.status in (SLOW, FAILED)]
    lines += [f"doubt     {said}" for said in fleet_verdicts.doubts(verdicts)]
    taken = good(statuses)
    lines += [f"left out  {', '.join(h for h in statuses if h not in taken) or 'none'}", f"good      {','.join(taken)}"]
    return "\n".join(lines)


def as_document(record: Mapping[str, Any], then: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same for a program."""
    statuses, verdicts, by_link = judge_record(record)
    return {
        "nodes": statuses,
        "good": good(statuses),
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
        "links": [dataclasses.asdict(verdict) for verdict in by_link],
        "doubts": fleet_verdicts.doubts(verdicts),
        "differences": [dataclasses.asdict(d) for d in fleet_drift.differences(record["hosts"], record["nodes"])],
        "changes": [dataclasses.asdict(change) for change in fleet_verdicts.changes(record, then)] if then else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """A rank's part where mpirun started this process, else the report."""
    if env.is_rank():
        return ranks_main("tools.fleet.measure")
    parser = argparse.ArgumentParser(prog="python -m tools.fleet", description=__doc__)
    parser.add_argument("record", type=Path, metavar="FLEET.JSON", help="what --fleet of a launcher measured")
    parser.add_argument("--baseline", type=Path, metavar="FLEET.JSON", help="an earlier one to compare with")
    parser.add_argument(
        "--write-hosts", type=Path, metavar="FILE", help="write good nodes there, others to FILE.spares"
    )
    parser.add_argument(
        "--nodes", type=count, metavar="N", help="with --write-hosts: how many good nodes are wanted; default: all"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the map of nodes and links there")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    args = parser.parse_args(arguments)
    if args.nodes and not args.write_hosts:
        parser.error("--nodes goes with --write-hosts")
    for written in (args.html, args.write_hosts):
        if written and any(written.resolve() == kept.resolve() for kept in (args.record, args.baseline) if kept):
            parser.error(f"{written}: is a fleet's record, which would be written over: give another file")
    unlike = ""
    try:
        record, then = read(args.record), args.baseline and read(args.baseline)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        if then:
            comparable(args.baseline, record, then)
    except ValueError as error:  # what was just measured is judged all the same
        then, unlike = None, str(error)
    statuses, verdicts, by_link = judge_record(record)
    print(json.dumps(as_document(record, then), indent=1) if args.json else text(record, then))
    try:
        if args.write_hosts:
            write_hosts(args.write_hosts, statuses, args.nodes)
        if args.html:
            args.html.write_text(fleet_page.html(record, statuses, verdicts, by_link), encoding="utf-8")
    except OSError as error:
        print(f"error: {error}: give a file that can be written", file=sys.stderr)
        return 2
    if unlike:
        print(f"error: {unlike}", file=sys.stderr)
        return 2
    if args.nodes and args.nodes > len(good(statuses)):
        print(f"error: {args.nodes} nodes are wanted, {len(good(statuses))} are good: add nodes", file=sys.stderr)
        return 1
    return int(any(s in (SLOW, FAILED) for s in (*statuses.values(), *(v.status for v in by_link))))


if __name__ == "__main__":
    sys.exit(main())
