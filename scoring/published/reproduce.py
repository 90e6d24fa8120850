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
from pathlib import Path
from typing import NamedTuple

from compliance.mlperf import UNVERIFIED, notes_in_order
from runlog import named_files
from runlog.digits import counted, percent
from runlog.json_types import JsonObject
from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.rates import devices_per_printed_rate
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.published.log_rules import LOGS_CSV, Rule, find_rule, published_of
from scoring.published.table import Figure, Published, read_published, read_rows, select
from scoring.record import InputError, Record, TooFewRunsError

BORNE_OUT = "borne out"
NOT_BORNE_OUT = "not borne out"
NOT_DECIDED = "not decided"  # the publisher does not say its rule, and the one of its other logs gives another figure
NOT_RECOMPUTED = "not recomputed"
# {verdict: the JSON's `borne_out`}, which is null for the other two verdicts
_IS_BORNE_OUT = {BORNE_OUT: True, NOT_BORNE_OUT: False}

# A figure within this share of the published one is borne out: the publishers round and truncate their windows.
TOLERANCE = 0.0005


class Judgement(NamedTuple):
    """A published figure against what its logs give."""

    verdict: str
    recomputed: float
    notes: list[str]


class LogsFigure(NamedTuple):
    """The figure that is compared with the published one, and whether it is from the closing line of a log."""

    value: float
    is_closing_figure: bool  # False: it is the score of the logs


class Recomputation(NamedTuple):
    """The figure that the logs of a published figure give, with the verdict on the published one."""

    verdict: str
    figure: float | None  # None if the logs cannot be scored
    notes: list[str]
    footnotes: list[str]  # that the rules of MLPerf demand next to an MLPerf figure; empty for any other figure


class Reproduction(NamedTuple):
    """Each published figure with the verdict on its logs, as the JSON has it, and the files that no rule knows."""

    figures: list[JsonObject]
    unknown: list[str]


def reproduction_of(rule: Rule, paths: Sequence[Path], published: Published) -> JsonObject:
    """Compute a published figure again from its logs, and return both figures as an entry of the JSON output.

    Args:
        rule: How the publisher made the figure from its logs.
        paths: The logs of the figure.
        published: The published figure.

    Returns:
        A dictionary with "published", "recomputed", "verdict", "notes" and more. The recomputed figure is None if the
        logs cannot be scored.
    """
    recomputed = _recompute(rule, paths, published)
    notes = list(recomputed.notes)
    if rule.is_assumed:  # by this rule, as much warm-up is dropped as the publisher dropped in its other logs
        notes.insert(0, "the publisher does not say how many windows it dropped: as in its other logs")
    difference = None  # as a share of the published figure
    # A mismatch is known if published.csv has a note on it and the logs still give the figure of that note.
    is_known_mismatch = False
    if recomputed.figure is not None:
        difference = recomputed.figure / published.value - 1
        is_known_mismatch = _is_figure_of_note(recomputed.figure, published)
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
        "borne_out": _IS_BORNE_OUT.get(recomputed.verdict),  # None for NOT_DECIDED and NOT_RECOMPUTED
        "as_recorded": is_known_mismatch,  # `main` does not count it as a fault
        "protocol": rule.protocol,
        "footnotes": recomputed.footnotes,
    }


def _recompute(rule: Rule, paths: Sequence[Path], published: Published) -> Recomputation:
    """Score logs by the rule of their publisher, and return their figure with the verdict on the published one.

    Args:
        rule: How the publisher made the figure from its logs.
        paths: The logs of the figure.
        published: The published figure.

    Returns:
        The verdict, the figure, notes on how it was made and judged, and the footnotes that MLPerf demands next to it.
        If the logs cannot be scored, the only note says why.
    """
    try:
        records = [_read_log(path, rule) for path in paths]
        # `system` only spares the score a warning that it names no machine.
        result = score(records, protocols.find(rule.protocol), skip=rule.skip, system=published.accelerator)
        # The one published time to train that has logs is a result that MLCommons has verified. The footnotes then say
        # how ours may differ from it.
        published_is_verified = published.metric == "time_to_train"
        footnotes = result.footnotes_where_shown(next_to_verified=published_is_verified)  # empty unless of MLPerf
        judged = _judge(rule, result, records, published)
    except (InputError, TooFewRunsError) as error:
        return _not_recomputed(str(error))
    except OSError as error:
        return _not_recomputed(named_files.explain(error))
    return Recomputation(judged.verdict, judged.recomputed, judged.notes, footnotes)


def _not_recomputed(reason: str) -> Recomputation:
    """Return the verdict on a figure whose logs cannot be scored, with the reason as its only note."""
    return Recomputation(NOT_RECOMPUTED, figure=None, notes=[reason], footnotes=[])


def _judge(rule: Rule, result: Score, records: Sequence[Record], published: Published) -> Judgement:
    """Compare a published figure with the figure that its logs yield; return a verdict, the logs' figure, and notes.

    If the logs state other conditions than the report, such as another batch size, the published figure is not borne
    out, even if the two figures agree.

    Args:
        rule: How the publisher made the figure from its logs.
        result: Score of the logs by this rule.
        records: What the logs say.
        published: The published figure.
    """
    logs_figure = _figure_of_logs(rule, result, records, published)
    differing_conditions = _conditions_that_differ(records, published)
    agrees_in_all_digits = _rounds_to(published.value, logs_figure.value)
    agrees = agrees_in_all_digits or _is_within_tolerance(logs_figure.value, published.value)
    verdict = NOT_BORNE_OUT if differing_conditions else _verdict_on_figure(rule, agrees=agrees)

    notes = []
    if logs_figure.is_closing_figure:
        notes.append("the log's own closing line")
    notes += _notes_on_score(rule, result, records)
    notes += differing_conditions
    if verdict == BORNE_OUT and not agrees_in_all_digits:
        notes.append(f"within {percent(TOLERANCE, decimals=2)}, not to all digits")
    if published.log_note:
        is_known = verdict == BORNE_OUT or _is_figure_of_note(logs_figure.value, published)
        head = "known" if is_known else "not the figure that published.csv has a note on"
        notes.append(f"{head}: {published.log_note}")
    return Judgement(verdict, logs_figure.value, notes)


def _is_figure_of_note(value: float, published: Published) -> bool:
    """Return whether published.csv has a note that logs do not bear a figure out, and the logs still give its figure.

    Args:
        value: The figure of the logs.
        published: The published figure. Its `log_value` is the figure of the logs when the note was written; None if
            the note is about something else than the figure.
    """
    if published.log_note is None:
        return False
    noted = published.log_value
    return noted is None or _is_within_tolerance(value, noted) or _rounds_to(noted, value)


def _verdict_on_figure(rule: Rule, *, agrees: bool) -> str:
    """Return the verdict on a published figure that agrees with its logs by the publisher's rule, or does not.

    No other rule is tried: among many rules, one would match almost any wrong figure.

    Args:
        rule: How the publisher made the figure from its logs. If the publisher does not say this, a difference decides
            nothing.
        agrees: Whether the two figures agree.
    """
    if agrees:
        return BORNE_OUT
    return NOT_DECIDED if rule.is_assumed else NOT_BORNE_OUT


def _figure_of_logs(rule: Rule, result: Score, records: Sequence[Record], published: Published) -> LogsFigure:
    """Return the figure of the logs that is to be compared with the published one.

    Args:
        rule: How the publisher made the figure from its logs. The publisher may have multiplied the score by a factor.
        result: Score of the logs by this rule.
        records: What the logs say.
        published: The published figure.

    Returns:
        The score times the publisher's factor, or the images/s in the closing line of a log.
    """
    scored_figure = result.value * (rule.factor or 1.0)
    if not _is_within_tolerance(scored_figure, published.value):
        # The publisher may have taken the log's closing line instead. No other figure is tried: among many figures, one
        # would match almost anything.
        closing_figure = _closing_figure_if_published(records, published)
        if closing_figure is not None:
            return LogsFigure(closing_figure, is_closing_figure=True)
    return LogsFigure(scored_figure, is_closing_figure=False)


def _is_within_tolerance(value: float, printed: Figure) -> bool:
    """Return whether a figure differs from a printed one by at most TOLERANCE, as a share of the printed one.

    Args:
        value: The figure.
        printed: The figure as printed, such as the published one.
    """
    return abs(value / printed - 1) <= TOLERANCE


def _closing_figure_if_published(records: Sequence[Record], published: Published) -> float | None:
    """Return the images/s of all devices that a log closes with, if they equal the published figure.

    If the closing line has the images/s of one device, they are multiplied by the number of devices.

    Args:
        records: What the logs of the figure say.
        published: The published figure.

    Returns:
        The images/s. None if there are several logs. None if the log has no closing line. None if the images/s do not
        equal the published figure at its printed digits.
    """
    if len(records) != 1 or records[0].summary_rate is None:
        return None
    closing_figure = records[0].summary_rate * devices_per_printed_rate(records[0])
    return closing_figure if _rounds_to(published.value, closing_figure) else None


def _notes_on_score(rule: Rule, result: Score, records: Sequence[Record]) -> list[str]:
    """Return notes on how logs were scored: on doubts about the logs, the publisher's factor, the score's warnings.

    The warning of too few runs is left out, because many published figures come from a single log.

    Args:
        rule: How the publisher made the figure from its logs. Its `factor`, if any, is what the publisher multiplied
            the score by.
        result: Score of the logs by this rule.
        records: What the logs say.
    """
    notes = _notes_on_logs(rule, records)
    if rule.factor:
        notes.append(f"{result.value:.4f} {result.unit} times the publisher's factor {rule.factor}")
    warned = dict.fromkeys(warning.check for warning in result.warnings if warning.check != "too_few_runs")
    if warned:
        notes.append(f"the score warns of {', '.join(warned)}: see `python -m scoring score`")
    return notes


def _notes_on_logs(rule: Rule, records: Sequence[Record]) -> list[str]:
    """Return notes on doubts about logs: what they do not say, and that none of them was seen before.

    Args:
        rule: How the publisher made the figure from its logs. Its `sha256` are of the logs from which the figure was
            recomputed before; empty if they are not known.
        records: What the logs say.
    """
    notes = []
    taken_from_report: set[str] = set()  # "devices" or "batch_per_device", which `_read_log` took from the rule
    for record in records:
        taken_from_report.update(record.from_options)
    if taken_from_report:
        notes.append(f"the log does not say {' or '.join(sorted(taken_from_report))}: taken from the report")

    was_seen_before = any(record.sha256 in rule.sha256 for record in records)
    if rule.sha256 and not was_seen_before:  # the rule was found by the end of the path, which other logs may share
        notes.append("known by its name alone: not the log that the figure was recomputed from before")
    return notes


def _read_log(path: Path, rule: Rule) -> Record:
    """Return what a log says, with devices and batch size from its rule where the log does not say them.

    Args:
        path: The log.
        rule: How the publisher made the figure from the log.

    Raises:
        InputError: No single run in the log can be scored.
        OSError: The log cannot be opened.
    """
    record = read_record(path)
    devices = rule.devices_unsaid if record.devices is None else None
    batch = rule.batch_unsaid if record.batch_per_device is None else None
    if devices is None and batch is None:
        return record
    return read_record(path, devices=devices, batch_per_device=batch)


def _rounds_to(printed: Figure, value: float) -> bool:
    """Return whether a figure, rounded or cut off to the digits of a printed one, equals it.

    Args:
        printed: The figure as printed, such as the published one.
        value: The figure. 243.578 equals a printed 244, to which it rounds, and a printed 243, to which it is cut off.
    """
    cut = math.floor(value * 10**printed.digits) / 10**printed.digits
    return printed in (round(value, printed.digits), cut)


def _conditions_that_differ(records: Sequence[Record], published: Published) -> list[str]:
    """Return a text for each condition, such as the batch size, that a log and its report state differently.

    Args:
        records: What the logs say.
        published: The published figure, with the conditions that the report states.

    Returns:
        The texts, each once, in alphabetical order. A condition that only one of the two states does not count.
    """
    texts = set()
    for record in records:
        for name in _fields_that_must_agree(record, published):
            logged = getattr(record, name)
            stated = getattr(published, name)
            if logged is not None and stated is not None and logged != stated:
                texts.add(f"the log says {name} {logged}, the report {stated}")
    return sorted(texts)


def _fields_that_must_agree(log: Record, report: Published) -> list[str]:
    """Return the names of the conditions in which a log must agree with its report, such as "devices".

    Args:
        log: What the log says.
        report: The published figure, with the conditions that the report states.
    """
    names = ["devices", "batch_per_device"]
    single_precisions = ("fp32", "tf32")  # the values of `math_mode`
    both_are_single = log.math_mode in single_precisions and report.math_mode in single_precisions
    only_one_is_half = _is_half_precision(log.precision) != _is_half_precision(report.precision)
    if both_are_single:
        names.append("math_mode")
    elif only_one_is_half:  # two kinds of half precision may differ, because reports rarely state the level of AMP
        names.append("precision")
    return names


def _is_half_precision(precision: str | None) -> bool:
    """Return whether a precision is half precision, mixed or pure.

    Args:
        precision: The precision, such as "amp_o1" (mixed), "fp16" (pure) or "fp32". None, if it is not known, is not
            half.
    """
    return str(precision).startswith(("amp", "fp16"))


def speedups(rows: Sequence[Published]) -> list[JsonObject]:
    """Check each published speedup against the throughputs in its report.

    Args:
        rows: All published figures. For each speedup they must have the throughputs on its devices and on one device.

    Returns:
        An entry of the JSON output for each speedup. "recomputed" is the throughput on all devices / the throughput on
        one device. "follows" says whether the published speedup is this quotient, rounded to two decimals.
    """
    entries = []
    for row in select(rows, metric="speedup"):
        same_system = {"table": row.table, "framework": row.framework, "batch_per_device": row.batch_per_device}
        throughputs = select(rows, metric="throughput", **same_system)
        rate_by_devices = {throughput.devices: throughput.value for throughput in throughputs}
        # A report that prints a speedup also prints these two throughputs.
        quotient = rate_by_devices[row.devices] / rate_by_devices[1]
        follows = round(quotient, 2) == row.value
        entries.append(
            {
                "source": row.source,
                "framework": row.framework,
                "batch_per_device": row.batch_per_device,
                "nodes": row.nodes,
                "devices": row.devices,
                "printed": row.printed,
                "recomputed": quotient,
                "follows": follows,
                "note": "" if follows else row.log_note or "",  # published.csv says why it does not follow
            }
        )
    return entries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring reproduce`."""
    parser.add_argument("folder", type=Path, help="logs that others published, in any sub-folders")
    which = "which log stands behind which figure (default: %(default)s)"
    parser.add_argument("--map", type=Path, default=LOGS_CSV, metavar="CSV", help=which)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def main(args: argparse.Namespace) -> int:
    """Print each published figure, the figure of its logs and the verdict; then the speedups and unknown files.

    Args:
        args: Options of the command: `folder` of the logs, `map` and `json`.

    Returns:
        The exit status: 1 if a figure has a fault that published.csv does not note, else 0.

    Raises:
        InputError: The folder holds no log that a rule knows, or the table of --map has a mistake, such as an unknown
            protocol, or a rule that fits no published figure or several.
        OSError: The table of --map cannot be read.
    """
    rows = read_published()
    rules = read_rows(args.map, Rule)
    figures, unknown = reproduce(args.folder, rules, rows)
    if not figures:
        says = "no folder with files in it"
        if unknown:  # reports, or logs that nobody published
            says = f"no log of a published figure among {counted(len(unknown), 'file')}, such as {unknown[0]}"
        raise InputError(f"{args.folder}: {says}; give the folder of published logs, which {args.map.name} lists")

    results = {"figures": figures, "speedups": speedups(rows), "unknown": unknown}
    print(json.dumps(results, indent=1) if args.json else safe_lines(verdict_lines(results)))
    return int(any(_is_unrecorded_fault(figure) for figure in figures))


def _is_unrecorded_fault(figure: JsonObject) -> bool:
    """Return whether a figure could not be recomputed, or is not borne out and published.csv does not note that.

    Args:
        figure: The figure, as `reproduction_of` returns it.
    """
    # `as_recorded` is always False for a figure that could not be recomputed.
    return figure["verdict"] in (NOT_BORNE_OUT, NOT_RECOMPUTED) and not figure["as_recorded"]


def reproduce(folder: Path, rules: Sequence[Rule], rows: Sequence[Published]) -> Reproduction:
    """Compute the published figures again whose logs lie in a folder, and list the files that belong to none.

    A rule whose protocol takes several runs makes one figure of all its logs. Any other rule makes one of each log.

    Args:
        folder: The folder. Its sub-folders are searched, too.
        rules: Which logs belong to which published figure, and how their publisher scored them.
        rows: All published figures.

    Raises:
        InputError: A rule whose logs are there does not match exactly one published figure, or names an unknown
            protocol.
    """
    files = _files_by_rule(folder, rules)
    figures = []
    for rule, paths in files.known.items():
        published = published_of(rule, rows)
        takes_several_runs = protocols.find(rule.protocol).runs > 1
        if takes_several_runs:
            figures.append(reproduction_of(rule, paths, published))
        else:
            figures += [reproduction_of(rule, [path], published) for path in paths]
    return Reproduction(figures, files.unknown)


class _Files(NamedTuple):
    """The files of a folder: those that a rule knows, by the rule, and the others."""

    known: dict[Rule, list[Path]]
    unknown: list[str]  # paths, and behind a path why the file cannot be read


def _files_by_rule(folder: Path, rules: Sequence[Rule]) -> _Files:
    """Return the files in a folder and below it: those that a rule knows, by the rule, and the others.

    Args:
        folder: The folder. Its files are taken in the order of their paths.
        rules: Which logs belong to which published figure. A log is known by its SHA-256 or by the end of its path. One
            that cannot be read is known by its path alone.
    """
    files = _Files(known={}, unknown=[])
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        sha256 = ""
        why_not_read = ""
        try:
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            why_not_read = f" ({error.strerror})"
        rule = find_rule(rules, path, sha256)
        if rule:
            files.known.setdefault(rule, []).append(path)
        else:
            files.unknown.append(f"{path}{why_not_read}")
    return files


def verdict_lines(results: JsonObject) -> Iterator[str]:
    """Yield the results of the command as lines to print: figures, speedups, unknown files, footnotes and counts.

    Args:
        results: {"figures": [..], "speedups": [..], "unknown": [..]}, with what `reproduce` and `speedups` return.

    Yields:
        A line of text.
    """
    for figure in results["figures"]:
        yield from _figure_lines(figure)

    yield "Printed speedups against the quotient of the report's own averages"
    for speedup in results["speedups"]:
        verdict = "follows" if speedup["follows"] else f"DOES NOT FOLLOW ({speedup['note']})"
        conditions = "{source}, {framework}, batch {batch_per_device}, x{devices}".format(**speedup)
        yield f"{verdict}: {conditions}: printed {speedup['printed']}, recomputed {speedup['recomputed']:.2f}"
    for path in results["unknown"]:
        yield f"No published figure is known for: {path}"

    yield from notes_in_order(itertools.chain.from_iterable(figure["footnotes"] for figure in results["figures"]))
    count = collections.Counter(figure["verdict"] for figure in results["figures"])
    wrong = sum(not speedup["follows"] for speedup in results["speedups"])
    yield (
        f"{counted(count.total(), 'figure')}: {count[BORNE_OUT]} borne out, {count[NOT_BORNE_OUT]} not, "
        f"{count[NOT_DECIDED]} not decided, {count[NOT_RECOMPUTED]} not recomputed; "
        f"{wrong} of {len(results['speedups'])} speedups do not follow"
    )


def _figure_lines(figure: JsonObject) -> Iterator[str]:
    """Yield a recomputed figure as lines: the verdict, both figures with the protocol, the logs, and each note.

    Args:
        figure: The figure, as `reproduction_of` returns it.

    Yields:
        A line of text. A dash stands for the figure of logs that could not be scored.
    """
    recomputed_text = "-"
    if figure["recomputed"] is not None:
        recomputed_text = f"{figure['recomputed']:.4f} ({figure['difference']:+.3%})"
        if figure["footnotes"]:  # only MLPerf results have them
            recomputed_text += f" {UNVERIFIED}"
    yield f"{figure['verdict']}: {figure['source']}, {figure['framework']}, {figure['place']}"
    published_text = f"published {figure['published'].printed} {figure['unit']}"
    yield f"    {published_text}, recomputed {recomputed_text}, protocol {figure['protocol']}"
    yield f"    {', '.join(figure['logs'])}"
    for note in figure["notes"]:
        yield f"    {note}"
