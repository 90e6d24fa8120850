"""Published figures recomputed from the logs that were published with them.

`published_logs.csv` says which published figure a log stands behind and by what rule its publisher scored it. A log is
known by its SHA-256, else by the end of its path; nothing else is taken from a path. Devices and batch come from the
log; the table's own fill in only what the log does not say, and this is reported.
"""

import argparse
import collections
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compliance.mlperf import UNVERIFIED, notes_in_order
from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.score import score
from scoring.importers import read_record
from scoring.published.table import Published, read_published, read_rows, select
from scoring.record import InputError, Record, TooFewRunsError

LOGS_CSV = Path(__file__).with_name("published_logs.csv")
VERDICTS = {None: "not recomputed", True: "borne out", False: "not borne out"}

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
    rule: str  # "published", or "assumed": as in the publisher's other logs, for it does not say
    line: int


def find_rule(rules: Sequence[Rule], path: Path, sha256: str) -> Rule | None:
    """The rule of a log by its content, else by the longest of the names that its path ends in."""
    by_depth = {name.count("/"): rule for rule in reversed(rules) for name in rule.names if path.match(name)}
    by_name = by_depth[max(by_depth)] if by_depth else None
    return next((rule for rule in rules if sha256 in rule.sha256), by_name)


def published_of(rule: Rule, rows: Sequence[Published]) -> Published:
    """The published figure behind which a rule's logs stand. Raises InputError where there is not exactly one."""
    conditions = ("table", "metric", "devices", "accelerator", "precision")
    alike = select(rows, **{name: getattr(rule, name) for name in conditions})
    found = [row for row in alike if row.framework.startswith(rule.framework)]
    if len(found) != 1:
        raise InputError(f"table of logs, line {rule.line}: {len(found)} published figures match, want one")
    return found[0]


def reproduction_of(rule: Rule, paths: Sequence[Path], published: Published) -> dict[str, Any]:
    """What the logs of one published figure give under the publisher's rule, as the JSON has it.

    A figure is borne out if it is within TOLERANCE of the published one and its logs ran what the report says they ran.
    Only the rule that its report has is tried: some of 20 rules would give many a wrong figure. `as_recorded`:
    published.csv already says that it is not borne out.
    """
    footnotes: list[str] = []
    notes = ["the publisher does not say how many windows it dropped: as in its other logs"] * (rule.rule == "assumed")
    recomputed = borne_out = None
    try:
        records = [_read(path, rule) for path in paths]
        result = score(records, protocols.find(rule.protocol), skip=rule.skip)
        footnotes = result.notes(next_to_verified=published.metric == "time_to_train")
        recomputed = result.value * (rule.factor or 1.0)
        exact = _as_printed(recomputed, published)
        labels = sorted({label for record in records for label in _labels(record, published)})
        borne_out = not labels and (exact or abs(recomputed / published.value - 1) <= TOLERANCE)
        unsaid = sorted({name for record in records for name in record.from_options})
        warned = dict.fromkeys(warning.check for warning in result.warnings if warning.check != "too_few_runs")
        by_name = rule.sha256 and {record.sha256 for record in records}.isdisjoint(rule.sha256)
        more = {
            f"the log does not say {' or '.join(unsaid)}: taken from the report": unsaid,
            "known by its name alone: not the log that the figure was recomputed from before": by_name,
            f"{result.value:.4f} {result.unit} times the publisher's factor {rule.factor}": rule.factor,
            f"the score warns of {', '.join(warned)}: see `python -m scoring score`": warned,
            f"within {TOLERANCE:.2%}, not to all digits": borne_out and not exact,
            **dict.fromkeys(labels, True),
            f"known: {published.log_note}": published.log_note,
        }
        notes += [note for note, holds in more.items() if holds]
    except (InputError, TooFewRunsError) as error:
        notes.append(str(error))
    return {
        "logs": list(map(str, paths)),
        **{name: getattr(published, name) for name in ("source", "framework", "place", "unit")},
        "published": published.value,
        "verdict": VERDICTS[borne_out],
        "notes": notes,
        "recomputed": recomputed,
        "difference": recomputed / published.value - 1 if recomputed is not None else None,
        "borne_out": borne_out,
        "as_recorded": recomputed is not None and published.log_note is not None,
        "protocol": rule.protocol,
        "footnotes": footnotes,
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
    names = ["devices", "batch_per_device"]
    if {record.math_mode, published.math_mode} <= {"fp32", "tf32"}:
        names.append("math_mode")
    elif len({str(one.precision).startswith(("amp", "fp16")) for one in (record, published)}) == 2:
        names.append("precision")
    pairs = [(name, getattr(record, name), getattr(published, name)) for name in names]
    return [
        f"the log says {name} {logged}, the report {stated}"
        for name, logged, stated in pairs
        if None not in (logged, stated) and logged != stated
    ]


def speedups(rows: Sequence[Published]) -> list[dict[str, Any]]:
    """Every printed speedup against the quotient of the report's own averages, to 2 digits: 1.8 is printed for 1.80."""
    found = []
    for row in select(rows, metric="speedup"):
        same = {name: getattr(row, name) for name in ("table", "framework", "batch_per_device")}
        averages = {one.devices: one.value for one in select(rows, metric="throughput", **same)}
        quotient = averages[row.devices] / averages[1]
        follows = round(quotient, 2) == row.value
        said = {name: getattr(row, name) for name in ("source", "framework", "batch_per_device", "nodes", "devices")}
        judged = {"recomputed": quotient, "follows": follows, "note": "" if follows else row.log_note or ""}
        found.append(said | {"printed": row.printed} | judged)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="logs that others published, in any sub-folders")
    which = "which log stands behind which figure (default: %(default)s)"
    parser.add_argument("--map", type=Path, default=LOGS_CSV, metavar="CSV", help=which)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def main(args: argparse.Namespace) -> int:
    """Print published, recomputed, difference and verdict.

    Returns 1 if a figure is not borne out and published.csv does not say so yet, or a known log could not be scored.
    """
    rows = read_published()
    figures, unknown = reproduce(args.folder, read_rows(args.map, Rule), rows)
    if not figures and not unknown:
        raise InputError(f"{args.folder}: no folder with files in it; give the folder of published logs")
    found = {"figures": figures, "speedups": speedups(rows), "unknown": unknown}
    print(json.dumps(found, indent=1) if args.json else safe_lines(verdict_lines(found)))
    return 1 if any(not one["borne_out"] and not one["as_recorded"] for one in figures) else 0


def reproduce(folder: Path, rules: Sequence[Rule], rows: Sequence[Published]) -> tuple[list[dict[str, Any]], list[str]]:
    """Each published figure with every log of `folder` that a rule knows, and the files that none knows."""
    logs: dict[Rule, list[Path]] = {}
    unknown = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if rule := find_rule(rules, path, hashlib.sha256(path.read_bytes()).hexdigest()):
            logs.setdefault(rule, []).append(path)
        else:
            unknown.append(str(path))
    found = []
    for rule, paths in logs.items():
        groups = [paths] if protocols.find(rule.protocol).runs > 1 else [[path] for path in paths]
        found += [reproduction_of(rule, group, published_of(rule, rows)) for group in groups]
    return found, unknown


def verdict_lines(found: dict[str, Any]) -> Iterator[str]:
    """The verdicts in lines for a reader."""
    for one in found["figures"]:
        figure = "-"
        if one["recomputed"] is not None:
            figure = "{recomputed:.4f} ({difference:+.3%})".format(**one)
            figure += f" {UNVERIFIED}" if one["footnotes"] else ""
        yield "{verdict}: {source}, {framework}, {place}".format(**one)
        yield "    published {published.printed} {unit}, recomputed {0}, protocol {protocol}".format(figure, **one)
        yield from (f"    {text}" for text in (", ".join(one["logs"]), *one["notes"]))
    yield "Printed speedups against the quotient of the report's own averages"
    for one in found["speedups"]:
        verdict = "follows" if one["follows"] else f"DOES NOT FOLLOW ({one['note']})"
        what = "{source}, {framework}, batch {batch_per_device}, x{devices}".format(**one)
        yield f"{verdict}: {what}: printed {one['printed']}, recomputed {one['recomputed']:.2f}"
    yield from (f"No published figure is known for: {path}" for path in found["unknown"])
    count = collections.Counter(one["borne_out"] for one in found["figures"])
    wrong = sum(not one["follows"] for one in found["speedups"])
    yield from notes_in_order(itertools.chain.from_iterable(one["footnotes"] for one in found["figures"]))
    yield (
        f"{count.total()} figures: {count[True]} borne out, {count[False]} not, {count[None]} not recomputed; "
        f"{wrong} of {len(found['speedups'])} speedups do not follow"
    )
