"""Finds the bad node of a fleet: the report on what `--fleet` of a launcher measured.

launch/trials.sh starts `python -m tools.fleet` on every rank, which measures and writes fleet.json. On that file it
then calls it again, without mpirun: `python -m tools.fleet fleet.json` judges, prints, and writes the list of hosts.
An earlier fleet.json is a baseline. Exit status: 0 if every node passes, 1 if one does not, 2 for wrong use.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from harness import env
from harness.__main__ import run_module
from runlog import named_files
from runlog.completion import complete
from runlog.digits import counted, percent, six_digits
from runlog.errors import RunError, one_line, print_to_reader
from runlog.json_types import JsonObject
from runlog.options import Parser
from runlog.text import visible
from runlog.verdict import UNKNOWN, Verdict, as_text
from scoring.importers import count
from tools.fleet import arithmetic
from tools.fleet.baseline import Change, changes
from tools.fleet.judged import Judged
from tools.fleet.page import MAX_NODES_SHOWN, report_as_page, signed, signed_interval
from tools.fleet.record import read, why_no_baseline
from tools.fleet.verdicts import Record


def write_hosts(path: Path, judged: Judged, nodes: int | None) -> None:
    """Write the good nodes of a fleet into a hostfile, one name a line, and spare ones into a second file next to it.

    Bad nodes follow in the hostfile as comments: "# node3: warning".

    Args:
        path: The hostfile. The other good nodes are written to `<path>.spares`, which may be empty.
        judged: The verdicts on the fleet.
        nodes: How many of the good nodes are written to the hostfile, the first ones. None: all of them.

    Raises:
        OSError: A file cannot be written.
    """
    good_hosts = judged.good_hosts
    needed_count = len(good_hosts) if nodes is None else nodes
    lines = [f"{host}\n" for host in good_hosts[:needed_count]]
    comments = [f"# {host}: {judged.statuses[host]}\n" for host in judged.left_out_hosts]
    lines_of_spares = [f"{host}\n" for host in good_hosts[needed_count:]]
    path.write_text("".join(lines + comments), encoding="utf-8")
    _spares_file(path).write_text("".join(lines_of_spares), encoding="utf-8")  # even if there are none


def _spares_file(hostfile: Path) -> Path:
    """Return the file of the good nodes that are not needed, next to the hostfile: hosts -> hosts.spares."""
    return Path(f"{hostfile}.spares")


# ---- the report as text


def report_as_text(judged: Judged, changes_since: Sequence[Change]) -> str:
    """Return the report on a fleet as text for a terminal, from the metrics to the list of good nodes.

    Each line begins with its subject, such as `step` or `left out`; those on bad nodes or links begin with the status.

    Args:
        judged: The verdicts on the fleet, with the record of its measurements.
        changes_since: How each metric changed since an earlier record (the baseline); empty without a baseline.
    """
    record = judged.record
    lines = [f"fleet     {len(judged.statuses)} compared, measured in {six_digits(record['took_s'])} s"]
    lines += _metric_lines(judged)
    lines += _arithmetic_lines(judged)
    lines += _lines_on_step_of_all(record)
    lines.append(f"{_first_column('links')}{len(record['links'])} measured")
    for difference in judged.differences:
        lines.append(f"differs   {difference.fact}: {difference.usual}; but {difference.but}")
    for change in changes_since:
        lines += _change_lines(change)
    lines += as_text(judged.bad_verdicts).splitlines()
    lines += [f"doubt     {doubt}" for doubt in judged.doubts]
    lines.append(f"left out  {', '.join(judged.left_out_hosts) or 'none'}")
    lines.append(f"good      {','.join(judged.good_hosts)}")
    # What a terminal takes as a command is escaped: the record may be of others. No line is cut.
    return "\n".join(visible(line, limit=len(line)) for line in lines)


def _first_column(check: str) -> str:
    """Return the first column of a metric's line, padded to the width of that column."""
    return check.ljust(18)


def _metric_lines(judged: Judged) -> list[str]:
    """Return the report's lines on the metrics: the range of nodes or links, and how many are unknown, by reason.

    For example:

        step              from -1.2% to +5.0% of the fleet's median
        disk              unknown for 4: no DATADIR

    Args:
        judged: The verdicts on the fleet. Those on whether nodes compute the same bits are left out here.
    """
    verdicts_by_check: dict[str, list[Verdict]] = {}
    for verdict in (*judged.node_verdicts, *judged.link_verdicts):
        if verdict.check != arithmetic.CHECK:  # which has lines of its own (`_arithmetic_lines`)
            verdicts_by_check.setdefault(verdict.check, []).append(verdict)

    lines = []
    for check, verdicts in verdicts_by_check.items():
        column = _first_column(check)
        # How much slower than the fleet's median each compared node or link is, as a share of the time: 0.05 is 5 %.
        extra_times = [verdict.figures["slower"] for verdict in verdicts if "slower" in verdict.figures]
        if extra_times:
            lines.append(f"{column}from {signed(min(extra_times))} to {signed(max(extra_times))} of the fleet's median")
        for reason, places in _unknown_by_reason(verdicts).items():
            lines.append(f"{column}unknown for {len(places)}: {reason}")
    return lines


def _unknown_by_reason(verdicts: Iterable[Verdict]) -> dict[str, list[str]]:
    """Return the nodes or links whose verdict is "unknown", by the reason that the verdict gives."""
    places_by_reason: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.status == UNKNOWN:
            places_by_reason.setdefault(verdict.found, []).append(verdict.where)
    return places_by_reason


def _arithmetic_lines(judged: Judged) -> list[str]:
    """Return the report's lines on whether the nodes compute the same bits: what was compared, and what is unknown.

    For example:

        arithmetic        16 ranks of 1 class, at least 4 repetitions of 10 steps each, 428 digests a step
        arithmetic        unknown for 2 (node3, node4): not decided: 2 of its class, 3 are needed to tell who is wrong

    Args:
        judged: The verdicts on the fleet, with the record of its measurements.
    """
    column = _first_column(arithmetic.CHECK)
    lines = [f"{column}{arithmetic.summary(judged.record)}"]
    verdicts = [verdict for verdict in judged.node_verdicts if verdict.check == arithmetic.CHECK]
    for reason, hosts in _unknown_by_reason(verdicts).items():
        names = _names_of(hosts, all_hosts=judged.statuses)
        lines.append(f"{column}unknown for {len(hosts)} ({names}): {reason}")
    return lines


def _names_of(hosts: Sequence[str], *, all_hosts: Collection[str]) -> str:
    """Return the names of some hosts as text: "all", or at most MAX_NODES_SHOWN (16) names and then "...".

    Args:
        hosts: The hosts to name.
        all_hosts: All hosts of the fleet. If `hosts` are as many, the text is "all".
    """
    if len(hosts) == len(all_hosts):
        return "all"
    names = ", ".join(hosts[:MAX_NODES_SHOWN])
    if len(hosts) > MAX_NODES_SHOWN:
        names += ", ..."
    return names


def _lines_on_step_of_all(record: Record) -> list[str]:
    """Return a line with the median seconds of a training step of all ranks together, and of one rank alone.

    For example:

        whole             a step of all takes 1.1500 s, alone 0.9987 s

    Args:
        record: What was measured on the fleet, as fleet.json holds it.

    Returns:
        A list of this line. It is empty if one of the two was not measured.
    """
    times_alone_s: list[float] = []  # of all nodes
    for times_of_node in record["metrics"]["step_s"]["series"]:
        if times_of_node is not None:  # the node was measured
            times_alone_s.extend(times_of_node)
    times_of_all_s = record["whole_s"]
    if not times_alone_s or not times_of_all_s:
        return []
    of_all_s = statistics.median(times_of_all_s)
    alone_s = statistics.median(times_alone_s)
    return [f"{_first_column('whole')}a step of all takes {of_all_s:.4f} s, alone {alone_s:.4f} s"]


def _change_lines(change: Change) -> list[str]:
    """Return a line on how a metric of the fleet changed since the baseline, and one for each node that stands out.

    A node stands out if it slowed down since then by far more than the fleet did. For the metric "step" of 8 nodes:

        since     step: +2.0% (+1.0% to +3.0%) on 8 nodes
        since     n3: step: 7.0% slower beside itself

    The second line says that n3 is 7 % slower than n3 itself was in the baseline, the fleet's change taken off.

    Args:
        change: The change of the metric on the nodes that are in both records.
    """
    interval = ""
    if change.interval_95 is not None:
        interval = f" ({signed_interval(*change.interval_95)})"
    lines = [f"since     {change.metric}: {signed(change.fleet)}{interval} on {counted(change.nodes, 'node')}"]
    for host, slower in change.slower.items():
        lines.append(f"since     {host}: {change.metric}: {percent(slower)} slower beside itself")
    return lines


def report_as_json(judged: Judged, changes_since: Sequence[Change] | None) -> JsonObject:
    """Return the object that --json prints: the status of each node, the good nodes, all verdicts and what differs.

    Args:
        judged: The verdicts on the fleet.
        changes_since: How each metric changed since an earlier record (the baseline). None without a baseline, and so
            is "changes" in the result.
    """
    changes_as_json = None
    if changes_since is not None:
        changes_as_json = [dataclasses.asdict(change) for change in changes_since]
    return {
        "nodes": judged.statuses,
        "good": judged.good_hosts,
        "verdicts": [verdict.as_dict() for verdict in judged.node_verdicts],
        "links": [verdict.as_dict() for verdict in judged.link_verdicts],
        "doubts": judged.doubts,
        "differences": [dataclasses.asdict(difference) for difference in judged.differences],
        "changes": changes_as_json,
    }


# ---- the command


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = Parser(prog="python -m tools.fleet", description=__doc__)
    made.add_argument("record", type=Path, metavar="FLEET.JSON", help="what --fleet of a launcher measured")
    made.add_argument("--baseline", type=Path, metavar="FLEET.JSON", help="an earlier one to compare with")
    made.add_argument("--write-hosts", type=Path, metavar="FILE", help="write good nodes there")
    made.add_argument("--nodes", type=count, metavar="N", help="so many, the other good ones to FILE.spares")
    made.add_argument("--html", type=Path, metavar="FILE", help="write a page with the map of nodes and links there")
    made.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    return made


def refuse_misuse(args: argparse.Namespace) -> None:
    """Check that the options go together, and that no output overwrites a record or another output.

    Args:
        args: The parsed command line.

    Raises:
        ValueError: Options do not go together, two outputs are the same file, or an output is a record that is read.
            Also if FILE.spares of --write-hosts is a pipe, a socket, a device or a link to itself.
    """
    if args.nodes and not args.write_hosts:
        raise ValueError("--nodes goes with --write-hosts")
    if args.write_hosts:
        named_files.refuse_unusable(_spares_file(args.write_hosts))  # which no option names, unlike the other files
    records = [record for record in (args.record, args.baseline) if record]
    outputs = _outputs(args)
    for option, written in outputs.items():
        is_a_record = any(_is_same_file(written, record) for record in records)
        if is_a_record:
            raise ValueError(
                f"{written}: is a fleet's record, which would be written over: give another file to {option}"
            )
    for (option, written), (other_option, other_written) in itertools.combinations(outputs.items(), 2):
        if _is_same_file(written, other_written):
            raise ValueError(
                f"{written}: would be written by {option} and by {other_option}: give each a file of its own"
            )


def _outputs(args: argparse.Namespace) -> dict[str, Path]:
    """Return the files that the options would have written, by the words that name the option."""
    outputs = {}
    if args.html:
        outputs["--html"] = args.html
    if args.write_hosts:
        outputs["--write-hosts"] = args.write_hosts
        outputs["--write-hosts (its FILE.spares)"] = _spares_file(args.write_hosts)
    return outputs


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file, also by links; the file need not exist yet."""
    try:
        return path.samefile(other)  # also of hard links
    except OSError:  # mostly because one of them does not exist yet
        return path.resolve() == other.resolve()


def report(args: argparse.Namespace) -> int:
    """Judge what was measured on a fleet, print the verdicts, and write the files that the options ask for.

    Args:
        args: The parsed command line, which `refuse_misuse` has accepted.

    Returns:
        The exit status: 1 if a node or link is bad, else 0.

    Raises:
        ValueError: A file is not a whole record, or cannot be written. After the report also if the baseline is of
            other hosts or of another job.
        RunError: Fewer nodes are good than are wanted. This also comes after the report.
    """
    judged = read(args.record)
    why_not_comparable = ""  # empty: the baseline can be compared, or none is given
    changes_since = None  # None: there is no baseline, or none that can be compared
    if args.baseline:
        earlier_record = read(args.baseline).record
        why_not_comparable = why_no_baseline(judged.record, earlier_record)
        if not why_not_comparable:
            changes_since = changes(judged.record, earlier_record)

    if args.json:
        print_to_reader(json.dumps(report_as_json(judged, changes_since), indent=1))
    else:
        print_to_reader(report_as_text(judged, changes_since or []))
    _write_files(args, judged)

    # These come last, because the report is of use without the baseline and with too few nodes.
    if why_not_comparable:
        raise ValueError(f"{args.baseline}: {visible(why_not_comparable)}")
    good_count = len(judged.good_hosts)
    if args.nodes and args.nodes > good_count:
        raise RunError(f"--nodes {args.nodes}: of good ones there are {good_count}: add nodes")
    return 1 if judged.bad_verdicts else 0


def _write_files(args: argparse.Namespace, judged: Judged) -> None:
    """Write the list of hosts and the page if the options ask for them; ValueError if a file cannot be written."""
    try:
        if args.write_hosts:
            write_hosts(args.write_hosts, judged, args.nodes)
        if args.html:
            args.html.write_text(report_as_page(judged), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error}: give a file that can be written") from error


@one_line
def main() -> int:
    """Take part in the measurement if mpirun started this process; otherwise report on a record that was measured.

    Returns:
        The exit status: 0 if no node and no link is bad, 2 for wrong use, 130 after Ctrl-C, else 1.
    """
    if env.is_rank():
        # A GPU that cannot compute in the job's precision is not refused: the measurement leaves out what it cannot do.
        return run_module("tools.fleet.measure", checks_precision=False)
    arguments = parser()
    complete(arguments)  # for completion in the shell
    args = arguments.parse_args()
    named_files.check_options(args)
    refuse_misuse(args)
    return report(args)


if __name__ == "__main__":
    sys.exit(main())
