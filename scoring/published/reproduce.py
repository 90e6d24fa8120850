"""Published figures recomputed from the logs that were published with them.

`published_logs.csv` says which published figure a log stands behind and by what rule its publisher scored it. A log is
known by its SHA-256, else by the end of its path; nothing else is taken from a path. Devices and batch come from the
log; the table's own fill in only what the log does not say, and this is reported.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import dataclasses
import fnmatch
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.score import TooFewRunsError, score
from scoring.importers import read_record
from scoring.published.table import Published, read_published, select
from scoring.record import InputError, Record

LOGS_CSV = Path(__file__).with_name("published_logs.csv")

# A figure within this share of the published one is borne out: the publishers round and truncate their windows.
TOLERANCE = 0.001
MOST_SKIPPED = 20  # windows that a publisher may have dropped, where it does not say how many


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the publisher made a figure from a log (or from several: MLPerf's five runs)."""

    names: tuple[str, ...]  # ends of paths, as shell patterns
    sha256: frozenset[str]
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
    rule: str  # "published", or "assumed" where the publisher does not say what it dropped
    line: int


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One published figure beside what its logs give."""

    logs: tuple[str, ...]
    published: Published | None
    recomputed: float | None
    borne_out: bool | None  # None: not recomputed, or it depends on a rule that the publisher does not say
    as_recorded: bool  # a figure not borne out that published.csv already records as such
    protocol: str
    notes: tuple[str, ...]

    @property
    def said(self) -> str:
        """In words."""
        if self.borne_out is None:
            return "not recomputed" if self.recomputed is None else "depends on the rule"
        return "borne out" if self.borne_out else "NOT borne out"

    @property
    def difference(self) -> float | None:
        """Recomputed against published, as a share."""
        if self.recomputed is None or self.published is None:
            return None
        return self.recomputed / self.published.value - 1

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        row = self.published
        return {
            "logs": list(self.logs),
            "source": row.source if row else None,
            "place": row.place if row else None,
            "published": row.value if row else None,
            "recomputed": self.recomputed,
            "difference": self.difference,
            "borne_out": self.borne_out,
            "verdict": self.said.lower(),
            "as_recorded": self.as_recorded,
            "unit": row.unit if row else None,
            "protocol": self.protocol,
            "notes": list(self.notes),
        }


def read_rules(path: Path = LOGS_CSV) -> list[Rule]:
    """The rules of a table of logs. Raises InputError, with file and line, for a row that is none."""
    columns = {field.name for field in dataclasses.fields(Rule)} - {"line"}
    with path.open(newline="", encoding="utf-8", errors="replace") as text:
        reader = csv.DictReader(text)
        if set(reader.fieldnames or ()) != columns:
            raise InputError(f"{path}:1: want the columns {', '.join(sorted(columns))}")
        rules = []
        for cells in reader:
            try:
                rules.append(_rule(cells, reader.line_num))
            except (ValueError, TypeError, AttributeError) as error:
                raise InputError(f"{path}:{reader.line_num}: {error}; correct the row") from None
    return rules


def _rule(cells: dict[str, str], line: int) -> Rule:
    def whole(name: str) -> int | None:
        return int(cells[name]) if cells[name] else None

    if cells["rule"] not in ("published", "assumed"):
        raise ValueError(f"rule is {cells['rule']!r}, want published or assumed")
    return Rule(
        names=tuple(name for name in cells["names"].split(";") if name),
        sha256=frozenset(digest for digest in cells["sha256"].split(";") if digest),
        table=cells["table"],
        metric=cells["metric"],
        framework=cells["framework"],
        accelerator=cells["accelerator"],
        precision=cells["precision"] or None,
        devices=int(cells["devices"]),
        protocol=cells["protocol"],
        skip=whole("skip"),
        devices_unsaid=whole("devices_unsaid"),
        batch_unsaid=whole("batch_unsaid"),
        factor=float(cells["factor"]) if cells["factor"] else None,
        rule=cells["rule"],
        line=line,
    )


def find_rule(rules: Sequence[Rule], path: Path, sha256: str) -> Rule | None:
    """The rule of a log by its content, else by the longest of the names that its path ends in."""
    for rule in rules:
        if sha256 in rule.sha256:
            return rule
    parts = path.as_posix().split("/")
    best: tuple[int, Rule] | None = None
    for rule in rules:
        for name in rule.names:
            depth = name.count("/") + 1
            if fnmatch.fnmatchcase("/".join(parts[-depth:]), name) and (best is None or depth > best[0]):
                best = depth, rule
    return best[1] if best else None


def published_of(rule: Rule, rows: Sequence[Published]) -> Published:
    """The published figure behind which a rule's logs stand. Raises InputError where there is not exactly one."""
    found = [
        row
        for row in select(list(rows), table=rule.table, metric=rule.metric, devices=rule.devices)
        if row.framework.startswith(rule.framework)
        and row.accelerator == rule.accelerator
        and row.precision == rule.precision
    ]
    if len(found) != 1:
        raise InputError(f"table of logs, line {rule.line}: {len(found)} published figures match, want one")
    return found[0]


def reproduction_of(rule: Rule, records: Sequence[Record], published: Published) -> Reproduction:
    """What the logs of one published figure give under the publisher's rule.

    A figure is borne out if it is within TOLERANCE of the published one and its logs ran what the report says they ran.
    """
    notes = []
    if rule.rule == "assumed":
        notes.append("the publisher does not say how many windows it dropped: as in its other logs")
    unsaid = sorted({name for record in records for name in record.from_options})
    if unsaid:
        notes.append(f"the log does not say {' or '.join(unsaid)}: taken from the report")
    try:
        result = score(records, protocols.find(rule.protocol), skip=rule.skip)
    except (InputError, TooFewRunsError) as error:
        value, tried = _other_rules(rule, records, published) if rule.rule == "assumed" else (None, "")
        return Reproduction(
            logs=tuple(record.file for record in records),
            published=published,
            recomputed=value,
            borne_out=None,
            as_recorded=False,
            protocol=rule.protocol,
            notes=(*notes, str(error), *([tried] if tried else [])),
        )
    recomputed = result.value * (rule.factor or 1.0)
    if rule.sha256 and not rule.sha256 & {record.sha256 for record in records}:
        notes.append("known by its name alone: not the log that the figure was recomputed from before")
    if rule.factor:
        notes.append(f"{result.value:.4f} {result.unit} times the publisher's factor {rule.factor}")
    labels = sorted({label for record in records for label in _labels(record, published)})
    exact = round(recomputed, published.digits) == published.value
    close = _close(recomputed, published)
    other = None
    if close and not exact:
        notes.append(f"within {TOLERANCE:.1%}, not to all digits")
    elif not close and rule.rule == "assumed":
        other, tried = _other_rules(rule, records, published)
        notes.append(tried)
    notes += labels
    warned = dict.fromkeys(warning.rule for warning in result.warnings if warning.rule != "too_few_runs")
    if warned:
        notes.append(f"the score warns of {', '.join(warned)}: see `python -m scoring score`")
    if published.log_note:
        notes.append(f"known: {published.log_note}")
    return Reproduction(
        logs=tuple(record.file for record in records),
        published=published,
        recomputed=recomputed,
        borne_out=None if other and not labels else close and not labels,
        as_recorded=published.log_note is not None,
        protocol=rule.protocol,
        notes=tuple(notes),
    )


def _close(value: float, published: Published) -> bool:
    cut = math.floor(value * 10**published.digits) / 10**published.digits  # 243 is printed for 243.578
    return published.value in (round(value, published.digits), cut) or abs(value / published.value - 1) <= TOLERANCE


def _other_rules(rule: Rule, records: Sequence[Record], published: Published) -> tuple[float | None, str]:
    """The figure by another number of dropped windows, or by the logs' own summary, if one gives it; what was tried."""
    values: dict[str, float] = {}
    ways = [(f"--skip {skip}", rule.protocol, skip) for skip in range(MOST_SKIPPED + 1)]
    for name, protocol, skip in [*ways, ("the log's own summary", "summary", None)]:
        with contextlib.suppress(InputError, TooFewRunsError):
            values[name] = score(records, protocols.find(protocol), skip=skip).value * (rule.factor or 1.0)
    if found := [name for name, value in values.items() if _close(value, published)]:
        best = min(found, key=lambda name: abs(values[name] - published.value))
        return values[best], f"{best} gives {values[best]:.{max(3, published.digits)}f}; {len(values)} rules were tried"
    span = f": they give {min(values.values()):.6g} to {max(values.values()):.6g}" if values else ""
    return None, f"no other of {len(values)} rules gives it{span}"


def _labels(record: Record, published: Published) -> list[str]:
    """Conditions that the report states otherwise than the log."""
    wrong = []
    for name in ("devices", "batch_per_device"):
        said, stated = getattr(record, name), getattr(published, name)
        if said is not None and stated is not None and said != stated:
            wrong.append(f"the log says {name} {said}, the report {stated}")
    if record.math_mode in ("fp32", "tf32") and published.math_mode in ("fp32", "tf32"):
        if record.math_mode != published.math_mode:
            wrong.append(f"the log computes in {record.math_mode}, the report's row in {published.math_mode}")
    elif record.precision and published.precision and _is_amp(record.precision) != _is_amp(published.precision):
        wrong.append(f"the log says precision {record.precision}, the report {published.precision}")
    return wrong


def _is_amp(precision: str) -> bool:
    return precision.startswith("amp") or precision == "fp16"


# ---------------------------------------------------------------------------------------------- speedups


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """One printed speedup beside the quotient of the same report's own figures."""

    source: str
    framework: str
    batch_per_device: int
    nodes: int
    devices: int
    printed: str
    recomputed: float
    follows: bool
    note: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)


def speedups(rows: Sequence[Published]) -> list[Speedup]:
    """Every printed speedup against the report's own averages; where some do not follow, which one run gives them."""
    found = []
    tables: dict[tuple[str, str, int | None], list[Published]] = {}
    for row in select(list(rows), metric="speedup"):
        tables.setdefault((row.table, row.framework, row.batch_per_device), []).append(row)
    for (table, framework, batch), printed in tables.items():
        same = [row for row in rows if (row.table, row.framework, row.batch_per_device) == (table, framework, batch)]
        own = {row.devices: row.value for row in select(same, metric="throughput")}
        wrong = [row for row in printed if not _as_printed(own[row.devices] / own[1], row)]
        note = "; ".join(
            f"divided by {run.printed}, run {run.run} of one device alone, all that do not follow would"
            for run in select(same, metric="throughput_run", devices=1)
            if wrong and all(_as_printed(own[row.devices] / run.value, row) for row in wrong)
        )
        for row in printed:
            assert row.batch_per_device and row.nodes and row.devices
            found.append(
                Speedup(
                    source=row.source,
                    framework=row.framework,
                    batch_per_device=row.batch_per_device,
                    nodes=row.nodes,
                    devices=row.devices,
                    printed=row.printed,
                    recomputed=own[row.devices] / own[1],
                    follows=row not in wrong,
                    note=note if row in wrong else "",
                )
            )
    return found


def _as_printed(value: float, row: Published) -> bool:
    """Whether `value` rounds to the printed figure; a report that prints 1.8 means 1.80 where others have 1.95."""
    return round(value, 2) == row.value


# ----------------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring reproduce`."""
    parser.add_argument("folder", type=Path, help="logs that others published, in any sub-folders")
    parser.add_argument(
        "--map",
        type=Path,
        default=LOGS_CSV,
        metavar="CSV",
        help="which log stands behind which figure (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def main(args: argparse.Namespace) -> int:
    """Print published, recomputed, difference and verdict.

    Returns 1 if a figure is not borne out and published.csv does not say so yet, or a known log could not be scored.
    """
    if not args.folder.is_dir():
        raise InputError(f"{args.folder}: no such folder; give the folder of published logs")
    rows, rules = read_published(), read_rules(args.map)
    verdicts, unknown = reproduce(args.folder, rules, rows)
    if not verdicts and not unknown:
        raise InputError(f"{args.folder}: no file in it; give the folder of published logs")
    quotients = speedups(rows)
    if args.json:
        found = {
            "figures": [verdict.to_json() for verdict in verdicts],
            "speedups": [speedup.to_json() for speedup in quotients],
            "unknown": unknown,
        }
        print(json.dumps(found, indent=1))
    else:
        print(safe_lines(verdict_lines(verdicts, quotients, unknown)))
    bad = [v for v in verdicts if v.said in ("NOT borne out", "not recomputed") and not v.as_recorded]
    return 1 if bad else 0


def reproduce(folder: Path, rules: Sequence[Rule], rows: Sequence[Published]) -> tuple[list[Reproduction], list[str]]:
    """Verdicts on every log of `folder` that a rule knows, and the files that none knows."""
    logs: dict[Rule, list[Path]] = {}
    unknown = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        rule = find_rule(rules, path, _sha256(path))
        if rule is None:
            unknown.append(str(path))
        else:
            logs.setdefault(rule, []).append(path)
    verdicts = []
    for rule, found in logs.items():
        published = published_of(rule, rows)
        for group in [found] if protocols.find(rule.protocol).runs > 1 else [[one] for one in found]:
            verdicts.append(_read_and_judge(rule, group, published))
    return verdicts, unknown


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _read_and_judge(rule: Rule, paths: Sequence[Path], published: Published) -> Reproduction:
    try:
        records = [_read(path, rule) for path in paths]
    except InputError as error:
        return Reproduction(
            logs=tuple(str(path) for path in paths),
            published=published,
            recomputed=None,
            borne_out=None,
            as_recorded=False,
            protocol=rule.protocol,
            notes=(str(error),),
        )
    return reproduction_of(rule, records, published)


def _read(path: Path, rule: Rule) -> Record:
    """The record of a log; the table's devices and batch stand in for what it does not say."""
    record = read_record(path)
    devices = rule.devices_unsaid if record.devices is None else None
    batch = rule.batch_unsaid if record.batch_per_device is None else None
    unsaid = devices is not None or batch is not None
    return read_record(path, devices=devices, batch_per_device=batch) if unsaid else record


def verdict_lines(verdicts: Sequence[Reproduction], quotients: Sequence[Speedup], unknown: Sequence[str]) -> list[str]:
    """The verdicts in lines for a reader."""
    lines = []
    for verdict in verdicts:
        row = verdict.published
        assert row is not None
        figure = "-" if verdict.recomputed is None else f"{verdict.recomputed:.{max(3, row.digits)}f}"
        gap = "-" if verdict.difference is None else f"{verdict.difference:+.3%}"
        more = f" and {len(verdict.logs) - 1} more" if len(verdict.logs) > 1 else ""
        lines.append(f"{verdict.said}: {row.source}, {row.framework}, {row.place}")
        lines.append(
            f"    published {row.printed} {row.unit}, recomputed {figure} ({gap}), protocol {verdict.protocol}"
        )
        lines.append(f"    {verdict.logs[0]}{more}")
        lines += [f"    {note}" for note in verdict.notes]
    if quotients:
        lines += ["", "Printed speedups against the quotient of the report's own averages"]
    for speedup in quotients:
        said = "follows" if speedup.follows else "DOES NOT FOLLOW"
        where = f"{speedup.source}, {speedup.framework}, batch {speedup.batch_per_device}, x{speedup.devices}"
        lines.append(f"{said}: {where}: printed {speedup.printed}, recomputed {speedup.recomputed:.2f}")
        lines += [f"    {speedup.note}"] * bool(speedup.note)
    if unknown:
        lines += ["", "No published figure is known for:", *(f"    {path}" for path in unknown)]
    count = collections.Counter(verdict.said for verdict in verdicts)
    lines += [
        "",
        f"{len(verdicts)} figures: {count['borne out']} borne out, {count['NOT borne out']} not, "
        f"{count['depends on the rule']} depend on the rule, {count['not recomputed']} not recomputed; "
        f"{sum(not s.follows for s in quotients)} of {len(quotients)} speedups do not follow",
    ]
    return lines
