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
from typing import NamedTuple

from compliance.mlperf import UNVERIFIED, notes_in_order
from runlog.digits import percent
from runlog.json_types import JsonObject
from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.run import devices_in_rate
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.published.table import Published, read_published, read_rows, select
from scoring.record import InputError, Record, TooFewRunsError

LOGS_CSV = Path(__file__).with_name("published_logs.csv")
BORNE_OUT = "borne out"
NOT_BORNE_OUT = "not borne out"
NOT_DECIDED = "not decided"  # the publisher does not say its rule, and the one of its other logs gives another figure
NOT_RECOMPUTED = "not recomputed"
# {verdict: the JSON's `borne_out`}, which is null for the other two verdicts
_IS_BORNE_OUT = {BORNE_OUT: True, NOT_BORNE_OUT: False}

# A figure within this share of the published one is borne out: the publishers round and truncate their windows.
TOLERANCE = 0.0005


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the publisher made a figure from a log (or from several: the five runs of an MLPerf submission)."""

    names: tuple[str, ...]  # ends of the logs' paths, as shell patterns
    sha256: tuple[str, ...]  # of the logs, where they are known
    table: str
    metric: str
    framework: str
    accelerator: str
    precision: str | None
    devices: int
    protocol: str
    skip: int | None
    devices_unsaid: int | None  # stands in where the log does not say its devices
    batch_unsaid: int | None  # stands in where the log does not say its batch of one device
    factor: float | None  # that the publisher applied to the score
    rule: str  # "published", or "assumed": as in the publisher's other logs, for it does not say
    line: int


class Judgement(NamedTuple):
    """A published figure against what its logs give."""

    verdict: str
    recomputed: float
    notes: list[str]


class Recomputation(NamedTuple):
    """The figure that the logs behind a published one give, with the verdict on the published one."""

    verdict: str
    figure: float | None  # None where the logs cannot be scored
    notes: list[str]
    footnotes: list[str]  # those that stand beside an MLPerf figure


class Reproduction(NamedTuple):
    """Each published figure with the verdict on its logs, as the JSON has it, and the files that no rule knows."""

    figures: list[JsonObject]
    unknown: list[str]


def find_rule(rules: Sequence[Rule], path: Path, sha256: str) -> Rule | None:
    """Return the rule by which a log's publisher scored it; None where no rule knows the log.

    A rule that lists the log's SHA-256 comes first. Else the log's path must end in one of a rule's names. Of several
    rules the one whose name has the most folders counts: `8gpu/log.txt` before `log.txt`.
    """
    for rule in rules:
        if sha256 in rule.sha256:
            return rule

    rule_by_name: Rule | None = None
    most_folders = -1  # fewer than any name has
    for rule in rules:
        for name in rule.names:
            folders = name.count("/")
            if path.match(name) and folders > most_folders:
                rule_by_name = rule
                most_folders = folders
    return rule_by_name


def published_of(rule: Rule, rows: Sequence[Published]) -> Published:
    """Return the figure behind which a rule's logs stand. Raises InputError where there is not exactly one."""
    conditions = {name: getattr(rule, name) for name in ("table", "metric", "devices", "accelerator", "precision")}
    figures = [row for row in select(rows, **conditions) if row.framework.startswith(rule.framework)]
    if len(figures) != 1:
        raise InputError(f"table of logs, line {rule.line}: {len(figures)} published figures match, want one")
    return figures[0]


def reproduction_of(rule: Rule, paths: Sequence[Path], published: Published) -> JsonObject:
    """Return a published figure beside what its logs give under the publisher's rule, as an entry of the JSON.

    A figure is borne out where its logs give the same one, or nearly so. Where they cannot be scored, `recomputed` is
    None and `notes` say why. `as_recorded` tells whether the logs were scored and published.csv already notes that
    they give another figure. `difference` is a share of the published figure.
    """
    notes: list[str] = []
    if rule.rule == "assumed":
        notes.append("the publisher does not say how many windows it dropped: as in its other logs")
    recomputed = _recomputed(rule, paths, published)
    notes += recomputed.notes
    difference: float | None = None
    if recomputed.figure is not None:
        difference = recomputed.figure / published.value - 1

    return {
        "logs": [str(path) for path in paths],
        "source": published.source,
        "framework": published.framework,
        "place": published.place,
        "unit": published.unit,
        "published": published.value,
        "verdict": recomputed.verdict,
        "notes": notes,
        "recomputed": recomputed.figure,
        "difference": difference,
        "borne_out": _IS_BORNE_OUT.get(recomputed.verdict),
        "as_recorded": recomputed.figure is not None and published.log_note is not None,
        "protocol": rule.protocol,
        "footnotes": recomputed.footnotes,
    }


def _recomputed(rule: Rule, paths: Sequence[Path], published: Published) -> Recomputation:
    """Return the figure that logs give by their publisher's rule, and the verdict on the published one.

    Where the logs cannot be scored there is no figure, the verdict is NOT_RECOMPUTED, and a note says why.
    """
    try:
        records = [_read_log(path, rule) for path in paths]
        result = score(records, protocols.find(rule.protocol), skip=rule.skip, system=published.accelerator)
        is_verified = published.metric == "time_to_train"  # these figures are results that MLCommons verified
        footnotes = result.notes(next_to_verified=is_verified)
        judged = _judged(rule, result, records, published)
    except (InputError, TooFewRunsError) as error:
        return Recomputation(NOT_RECOMPUTED, None, [str(error)], [])
    return Recomputation(judged.verdict, judged.recomputed, judged.notes, footnotes)


def _judged(rule: Rule, result: Score, records: Sequence[Record], published: Published) -> Judgement:
    """Return the verdict on a published figure, the figure that its logs give, and notes on how they differ.

    The logs give the figure of the publisher's rule. They must have run under the conditions that the report states.
    The published figure is then borne out if the logs' figure is within TOLERANCE of it, or is the same at its printed
    digits. Where the two are not within TOLERANCE, a log that closes with the published figure bears it out too, and
    its closing figure counts as the logs' figure.

    No further rule is tried: one of 20 rules would bear out many a wrong figure. Where the report does not say its
    rule, and it is "assumed", a figure that is not borne out is not decided, unless the conditions differ.
    """
    notes = []
    recomputed = result.value * (rule.factor or 1.0)
    is_exact = _rounds_to_published(recomputed, published)
    is_near = abs(recomputed / published.value - 1) <= TOLERANCE
    if not is_near:
        closing_figure = _closing_figure_if_published(records, published)
        if closing_figure is not None:
            recomputed = closing_figure
            is_exact = True
            notes.append("the log's own closing line")

    notes += _notes_on_score(rule, result, records)
    other_conditions = _conditions_that_differ(records, published)
    notes += other_conditions
    is_borne_out = not other_conditions and (is_exact or is_near)
    if is_borne_out and not is_exact:
        notes.append(f"within {percent(TOLERANCE, decimals=2)}, not to all digits")
    if published.log_note:
        notes.append(f"known: {published.log_note}")

    if is_borne_out:
        return Judgement(BORNE_OUT, recomputed, notes)
    if rule.rule == "assumed" and not other_conditions:
        return Judgement(NOT_DECIDED, recomputed, notes)
    return Judgement(NOT_BORNE_OUT, recomputed, notes)


def _closing_figure_if_published(records: Sequence[Record], published: Published) -> float | None:
    """Return the images/s that a log itself closes with, if they are the published figure at its printed digits.

    Returns None where they are not, where the log closes with no figure, and for several logs.
    """
    if len(records) != 1 or records[0].summary_rate is None:
        return None
    closing_figure = records[0].summary_rate * (devices_in_rate(records[0]) or 1)
    return closing_figure if _rounds_to_published(closing_figure, published) else None


def _notes_on_score(rule: Rule, result: Score, records: Sequence[Record]) -> list[str]:
    """Return notes on the score of the logs: what they do not say themselves, a factor, and the score's warnings.

    Too few runs are no warning here, as a single log stands behind many a published figure.
    """
    notes = _notes_on_logs(rule, records)
    if rule.factor:
        notes.append(f"{result.value:.4f} {result.unit} times the publisher's factor {rule.factor}")
    warned = dict.fromkeys(warning.check for warning in result.warnings if warning.check != "too_few_runs")
    if warned:
        notes.append(f"the score warns of {', '.join(warned)}: see `python -m scoring score`")
    return notes


def _notes_on_logs(rule: Rule, records: Sequence[Record]) -> list[str]:
    """Return notes on what the logs do not say themselves, and on logs that are known by their names alone."""
    notes = []
    unsaid: set[str] = set()
    for record in records:
        unsaid.update(record.from_options)
    if unsaid:
        notes.append(f"the log does not say {' or '.join(sorted(unsaid))}: taken from the report")
    if rule.sha256 and {record.sha256 for record in records}.isdisjoint(rule.sha256):
        notes.append("known by its name alone: not the log that the figure was recomputed from before")
    return notes


def _read_log(path: Path, rule: Rule) -> Record:
    """Return the record of a log; the rule's devices and batch stand in where the log does not say its own."""
    record = read_record(path)
    devices = rule.devices_unsaid if record.devices is None else None
    batch = rule.batch_unsaid if record.batch_per_device is None else None
    if devices is None and batch is None:
        return record
    return read_record(path, devices=devices, batch_per_device=batch)


def _rounds_to_published(value: float, published: Published) -> bool:
    """Tell whether a figure is the published one at its printed digits: rounded, or cut off as 243.578 to 243."""
    cut = math.floor(value * 10**published.digits) / 10**published.digits
    return published.value in (round(value, published.digits), cut)


def _conditions_that_differ(records: Sequence[Record], published: Published) -> list[str]:
    """Return a text for each condition that a log and its report state differently, each once and in order.

    A condition that only one of the two states is no difference.
    """
    texts = set()
    for record in records:
        for name in _conditions_to_compare(record, published):
            logged = getattr(record, name)
            stated = getattr(published, name)
            if logged is not None and stated is not None and logged != stated:
                texts.add(f"the log says {name} {logged}, the report {stated}")
    return sorted(texts)


def _conditions_to_compare(record: Record, published: Published) -> list[str]:
    """Return the names of the fields in which a log must agree with its report.

    These are always the devices and the batch of one device, and one more by the precision of the two:

    - Both say FP32 or TF32: `math_mode`, which tells these apart.
    - One is of half precision and the other is not: `precision`.
    - Else: nothing more. Two half precisions are not told apart, as a report says AMP whichever of its levels it used.
    """
    names = ["devices", "batch_per_device"]
    single_precisions = ("fp32", "tf32")
    if record.math_mode in single_precisions and published.math_mode in single_precisions:
        names.append("math_mode")
    elif _is_half_precision(record.precision) != _is_half_precision(published.precision):
        names.append("precision")
    return names


def _is_half_precision(precision: str | None) -> bool:
    """Tell whether a precision is half precision, be it mixed (`amp_o1`) or pure (`fp16`)."""
    return str(precision).startswith(("amp", "fp16"))


def speedups(rows: Sequence[Published]) -> list[JsonObject]:
    """Return every speedup that a report prints beside the quotient of the report's own averages, as plain values.

    The quotient is the images/s that the report prints for so many devices over those for one device. `follows` tells
    whether the printed speedup is the quotient rounded to two decimals, of which a last 0 need not be printed. `note`
    is what published.csv says of one that does not follow.
    """
    judged = []
    for row in select(rows, metric="speedup"):
        same_system = {"table": row.table, "framework": row.framework, "batch_per_device": row.batch_per_device}
        averages = {figure.devices: figure.value for figure in select(rows, metric="throughput", **same_system)}
        quotient = averages[row.devices] / averages[1]  # a report that prints speedups prints both of these too
        follows = round(quotient, 2) == row.value
        judged.append(
            {
                "source": row.source,
                "framework": row.framework,
                "batch_per_device": row.batch_per_device,
                "nodes": row.nodes,
                "devices": row.devices,
                "printed": row.printed,
                "recomputed": quotient,
                "follows": follows,
                "note": "" if follows else row.log_note or "",
            }
        )
    return judged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring reproduce`."""
    parser.add_argument("folder", type=Path, help="logs that others published, in any sub-folders")
    which = "which log stands behind which figure (default: %(default)s)"
    parser.add_argument("--map", type=Path, default=LOGS_CSV, metavar="CSV", help=which)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def main(args: argparse.Namespace) -> int:
    """Print each published figure, what its logs give and the verdict; then the printed speedups, and unknown files.

    Returns 1 where something is found that published.csv does not record: logs that do not bear their figure out,
    without a `log_note` on that, or logs that could not be scored. Else it returns 0, for files of which no figure is
    known too. Raises InputError where the folder holds no files.
    """
    rows = read_published()
    rules = read_rows(args.map, Rule)
    figures, unknown = reproduce(args.folder, rules, rows)
    if not figures and not unknown:
        raise InputError(f"{args.folder}: no folder with files in it; give the folder of published logs")

    results = {"figures": figures, "speedups": speedups(rows), "unknown": unknown}
    print(json.dumps(results, indent=1) if args.json else safe_lines(verdict_lines(results)))
    return int(any(_is_unrecorded_fault(figure) for figure in figures))


def _is_unrecorded_fault(figure: JsonObject) -> bool:
    """Tell whether a figure has a bad verdict that published.csv does not note yet.

    A figure that could not be recomputed has no note (`reproduction_of`), so that it always is one.
    """
    return figure["verdict"] in (NOT_BORNE_OUT, NOT_RECOMPUTED) and not figure["as_recorded"]


def reproduce(folder: Path, rules: Sequence[Rule], rows: Sequence[Published]) -> Reproduction:
    """Return each published figure of which the folder has logs, recomputed, and the files that no rule knows.

    All files below the folder are looked at. A rule says which published figure a log stands behind. Under a protocol
    of several runs all logs of a rule make one figure; else each log is judged by itself.
    """
    logs: dict[Rule, list[Path]] = {}
    unknown = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        rule = find_rule(rules, path, sha256)
        if rule:
            logs.setdefault(rule, []).append(path)
        else:
            unknown.append(str(path))

    figures = []
    for rule, paths in logs.items():
        is_of_several_runs = protocols.find(rule.protocol).runs > 1
        groups = [[path] for path in paths]
        if is_of_several_runs:
            groups = [paths]
        for group in groups:
            figures.append(reproduction_of(rule, group, published_of(rule, rows)))
    return Reproduction(figures, unknown)


def verdict_lines(results: JsonObject) -> Iterator[str]:
    """Yield what `reproduce` found as lines for a reader: figures, speedups, unknown files, footnotes and counts."""
    for figure in results["figures"]:
        yield from _figure_lines(figure)

    yield "Printed speedups against the quotient of the report's own averages"
    for speedup in results["speedups"]:
        verdict = "follows" if speedup["follows"] else f"DOES NOT FOLLOW ({speedup['note']})"
        what = "{source}, {framework}, batch {batch_per_device}, x{devices}".format(**speedup)
        yield f"{verdict}: {what}: printed {speedup['printed']}, recomputed {speedup['recomputed']:.2f}"
    for path in results["unknown"]:
        yield f"No published figure is known for: {path}"

    yield from notes_in_order(itertools.chain.from_iterable(figure["footnotes"] for figure in results["figures"]))
    count = collections.Counter(figure["verdict"] for figure in results["figures"])
    wrong = sum(not speedup["follows"] for speedup in results["speedups"])
    yield (
        f"{count.total()} figures: {count[BORNE_OUT]} borne out, {count[NOT_BORNE_OUT]} not, "
        f"{count[NOT_DECIDED]} not decided, {count[NOT_RECOMPUTED]} not recomputed; "
        f"{wrong} of {len(results['speedups'])} speedups do not follow"
    )


def _figure_lines(figure: JsonObject) -> Iterator[str]:
    """Yield a recomputed figure as lines: the verdict, both figures with the protocol, the logs, and a line a note.

    Where the logs could not be scored a dash stands for their figure. One of an MLPerf result is marked as unverified.
    """
    recomputed = "-"
    if figure["recomputed"] is not None:
        recomputed = "{recomputed:.4f} ({difference:+.3%})".format(**figure)
        if figure["footnotes"]:
            recomputed += f" {UNVERIFIED}"
    yield "{verdict}: {source}, {framework}, {place}".format(**figure)
    yield "    published {published.printed} {unit}, recomputed {0}, protocol {protocol}".format(recomputed, **figure)
    yield f"    {', '.join(figure['logs'])}"
    for note in figure["notes"]:
        yield f"    {note}"
