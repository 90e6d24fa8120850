"""Published figures recomputed from the logs that were published with them.

`published_logs.csv` says which published figure a log stands behind and by what rule its publisher scored it. A log is
known by its SHA-256, else by the end of its path; nothing else is taken from a path. Devices and batch come from the
log; the table's own fill in only what the log does not say, and this is reported.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.score import score
from scoring.importers import read_record
from scoring.published.table import Published, read_published, read_rows, select
from scoring.record import InputError, Record, TooFewRunsError

LOGS_CSV = Path(__file__).with_name("published_logs.csv")
VERDICTS = {None: "not recomputed", True: "borne out", False: "not borne out"}
Reproduction = dict[str, Any]  # a published figure beside what its logs give, as the JSON has it

# A figure within this share of the published one is borne out: the publishers round and truncate their windows.
TOLERANCE = 0.0005


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the publisher made a figure from a log (or from several: MLPerf's five runs)."""

    names: tuple[str, ...]  # ends of paths, as shell patterns
    sha256: tuple[str, ...]
    table: str
    metric: str
    framework: str
    accelerator: str
    precision: str | None
    devices: int
    protocol: str
    skip: int | None
    devices_unsaid: int | None
    batch_unsaid: int | None
    factor: float | None  # that the publisher applied to the score
    rule: Literal["published", "assumed"]  # "assumed": as in the publisher's other logs, for it does not say
    line: int


def find_rule(rules: Sequence[Rule], path: Path, sha256: str) -> Rule | None:
    """The rule of a log by its content, else by the longest of the names that its path ends in."""
    by_name: dict[int, Rule] = {}
    for rule in rules:
        if sha256 in rule.sha256:
            return rule
        for name in rule.names:
            depth = name.count("/") + 1
            if fnmatch.fnmatchcase("/".join(path.parts[-depth:]), name):
                by_name.setdefault(depth, rule)
    return by_name[max(by_name)] if by_name else None


def published_of(rule: Rule, rows: Sequence[Published]) -> Published:
    """The published figure behind which a rule's logs stand. Raises InputError where there is not exactly one."""
    conditions = ("table", "metric", "devices", "accelerator", "precision")
    alike = select(rows, **{name: getattr(rule, name) for name in conditions})
    found = [row for row in alike if row.framework.startswith(rule.framework)]
    if len(found) != 1:
        raise InputError(f"table of logs, line {rule.line}: {len(found)} published figures match, want one")
    return found[0]


def reproduction_of(rule: Rule, paths: Sequence[Path], published: Published) -> Reproduction:
    """What the logs of one published figure give under the publisher's rule.

    A figure is borne out if it is within TOLERANCE of the published one and its logs ran what the report says they ran.
    Only the rule that its report has is tried: some of 20 rules would give many a wrong figure. `as_recorded`:
    published.csv already says that it is not borne out.
    """
    notes = ["the publisher does not say how many windows it dropped: as in its other logs"] * (rule.rule == "assumed")
    recomputed = borne_out = None
    try:
        records = [_read(path, rule) for path in paths]
        if unsaid := sorted({name for record in records for name in record.from_options}):
            notes.append(f"the log does not say {' or '.join(unsaid)}: taken from the report")
        result = score(records, protocols.find(rule.protocol), skip=rule.skip)
        recomputed = result.value * (rule.factor or 1.0)
        exact = _as_printed(recomputed, published)
        close = exact or abs(recomputed / published.value - 1) <= TOLERANCE
        labels = sorted({label for record in records for label in _labels(record, published)})
        borne_out = close and not labels
        other = {record.sha256 for record in records}.isdisjoint(rule.sha256)
        warned = dict.fromkeys(warning.check for warning in result.warnings if warning.check != "too_few_runs")
        more = {
            "known by its name alone: not the log that the figure was recomputed from before": other and rule.sha256,
            f"{result.value:.4f} {result.unit} times the publisher's factor {rule.factor}": rule.factor,
            f"the score warns of {', '.join(warned)}: see `python -m scoring score`": warned,
            f"within {TOLERANCE:.2%}, not to all digits": close and not exact,
            **dict.fromkeys(labels, True),
            f"known: {published.log_note}": published.log_note,
        }
        notes += [note for note, holds in more.items() if holds]
    except (InputError, TooFewRunsError) as error:
        notes.append(str(error))
    return {
        "logs": list(map(str, paths)),
        "source": published.source,
        "place": published.place,
        "published": published.value,
        "unit": published.unit,
        "verdict": VERDICTS[borne_out],
        "notes": notes,
        "recomputed": recomputed,
        "difference": recomputed / published.value - 1 if recomputed is not None else None,
        "borne_out": borne_out,
        "as_recorded": recomputed is not None and published.log_note is not None,
        "protocol": rule.protocol,
    }


def _read(path: Path, rule: Rule) -> Record:
    """The record of a log; the table's devices and batch stand in for what it does not say."""
    record = read_record(path)
    devices = rule.devices_unsaid if record.devices is None else None
    batch = rule.batch_unsaid if record.batch_per_device is None else None
    return read_record(path, devices=devices, batch_per_device=batch) if devices or batch else record


def _as_printed(value: float, published: Published) -> bool:
    """Whether a figure rounds to the published one, or is cut to it: 243 is printed for 243.578."""
    cut = math.floor(value * 10**published.digits) / 10**published.digits
    return published.value in (round(value, published.digits), cut)


def _labels(record: Record, published: Published) -> list[str]:
    """Conditions that the report states otherwise than the log."""
    names = {"devices": "says devices", "batch_per_device": "says batch_per_device"}
    if {record.math_mode, published.math_mode} <= {"fp32", "tf32"}:
        names["math_mode"] = "computes in"
    elif len({str(one.precision).startswith(("amp", "fp16")) for one in (record, published)}) == 2:
        names["precision"] = "says precision"
    pairs = [(what, getattr(record, name), getattr(published, name)) for name, what in names.items()]
    return [
        f"the log {what} {logged}, the report {stated}"
        for what, logged, stated in pairs
        if logged is not None and stated is not None and logged != stated
    ]


def speedups(rows: Sequence[Published]) -> list[dict[str, Any]]:
    """Every printed speedup against the report's own averages; where some do not follow, which one run gives them."""
    found = []
    printed = select(rows, metric="speedup")
    for table, framework, batch in dict.fromkeys((row.table, row.framework, row.batch_per_device) for row in printed):
        same = select(rows, table=table, framework=framework, batch_per_device=batch)
        averages = {row.devices: row.value for row in select(same, metric="throughput")}
        quotients = {row: averages[row.devices] / averages[1] for row in select(same, metric="speedup")}
        # To 2 digits: a report that prints 1.8 means 1.80 where others have 1.95.
        wrong = [row for row, quotient in quotients.items() if round(quotient, 2) != row.value]
        note = "; ".join(
            f"divided by {run.printed}, run {run.run} of one device alone, all that do not follow would"
            for run in select(same, metric="throughput_run", devices=1)
            if wrong and all(round(averages[row.devices] / run.value, 2) == row.value for row in wrong)
        )
        for row, quotient in quotients.items():
            names = ("source", "framework", "batch_per_device", "nodes", "devices", "printed")
            judged = {"recomputed": quotient, "follows": row not in wrong, "note": note if row in wrong else ""}
            found.append({name: getattr(row, name) for name in names} | judged)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring reproduce`."""
    parser.add_argument("folder", type=Path, help="logs that others published, in any sub-folders")
    which = "which log stands behind which figure (default: %(default)s)"
    parser.add_argument("--map", type=Path, default=LOGS_CSV, metavar="CSV", help=which)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def main(args: argparse.Namespace) -> int:
    """Print published, recomputed, difference and verdict.

    Returns 1 if a figure is not borne out and published.csv does not say so yet, or a known log could not be scored.
    """
    if not args.folder.is_dir():
        raise InputError(f"{args.folder}: no such folder; give the folder of published logs")
    rows, rules = read_published(), read_rows(args.map, Rule)
    found, unknown = reproduce(args.folder, rules, rows)
    if not found and not unknown:
        raise InputError(f"{args.folder}: no file in it; give the folder of published logs")
    quotients = speedups(rows)
    if args.json:
        figures = [one for _, one in found]
        print(json.dumps({"figures": figures, "speedups": quotients, "unknown": unknown}, indent=1))
    else:
        print(safe_lines(verdict_lines(found, quotients, unknown)))
    return 1 if any(not one["borne_out"] and not one["as_recorded"] for _, one in found) else 0


def reproduce(
    folder: Path, rules: Sequence[Rule], rows: Sequence[Published]
) -> tuple[list[tuple[Published, Reproduction]], list[str]]:
    """Each published figure with every log of `folder` that a rule knows, and the files that none knows."""
    logs: dict[Rule, list[Path]] = {}
    unknown = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        rule = find_rule(rules, path, hashlib.sha256(path.read_bytes()).hexdigest())
        if rule is None:
            unknown.append(str(path))
        else:
            logs.setdefault(rule, []).append(path)
    found = []
    for rule, paths in logs.items():
        published = published_of(rule, rows)
        groups = [paths] if protocols.find(rule.protocol).runs > 1 else [[path] for path in paths]
        found += [(published, reproduction_of(rule, group, published)) for group in groups]
    return found, unknown


def verdict_lines(
    found: Sequence[tuple[Published, Reproduction]], quotients: Sequence[dict[str, Any]], unknown: Sequence[str]
) -> list[str]:
    """The verdicts in lines for a reader."""
    lines = []
    for row, one in found:
        figure = "- (-)"
        if one["recomputed"] is not None:
            figure = f"{one['recomputed']:.{max(3, row.digits)}f} ({one['difference']:+.3%})"
        more = f" and {len(one['logs']) - 1} more" if len(one["logs"]) > 1 else ""
        lines += [
            f"{one['verdict'].replace('not borne', 'NOT borne')}: {row.source}, {row.framework}, {row.place}",
            f"    published {row.printed} {row.unit}, recomputed {figure}, protocol {one['protocol']}",
            *(f"    {text}" for text in (f"{one['logs'][0]}{more}", *one["notes"])),
        ]
    lines += ["", "Printed speedups against the quotient of the report's own averages"] * bool(quotients)
    line = "{verdict}: {source}, {framework}, batch {batch_per_device}, x{devices}: printed {printed}, recomputed "
    for one in quotients:
        verdict = "follows" if one["follows"] else "DOES NOT FOLLOW"
        lines.append(line.format(verdict=verdict, **one) + f"{one['recomputed']:.2f}")
        lines += [f"    {one['note']}"] * bool(one["note"])
    if unknown:
        lines += ["", "No published figure is known for:", *(f"    {path}" for path in unknown)]
    count = collections.Counter(one["borne_out"] for _, one in found)
    lines += [
        "",
        f"{len(found)} figures: {count[True]} borne out, {count[False]} not, {count[None]} not recomputed; "
        f"{sum(not one['follows'] for one in quotients)} of {len(quotients)} speedups do not follow",
    ]
    return lines
