"""The official verdict on a log with damaged lines, which mlperf-logging's parser reads in another way than ours.

- A damaged line is one that our reader skips, or splits into events, with a finding.
- A fatal line is one at which mlperf-logging's parser has an error, so that the official checker rejects the log. The
  parser goes on after a line that is not JSON, for instance, but ends at one that lacks a field.

A damaged line need not be fatal, because that parser reads some of them as events.
"""

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from compliance.official.checker import Judge
from compliance.official.tool_reading import ToolReader, ToolReading
from compliance.rules import Finding, FindingCollector, Ruleset
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Event, open_log

_TOKEN = ":::MLLOG "  # by which mlperf-logging begins each event of a log
_MAX_CHARACTERS = 1 << 24  # of a line that is read; a longer one is refused


def official_findings(path: Path, ours: Sequence[Finding], ruleset: Ruleset) -> tuple[Finding, ...]:
    """Mark which of our findings on a damaged log are official, and add those that only the official checker has.

    The official checker uses mlperf-logging's parser, which reads damaged lines in another way than our reader. It
    rejects a log with a fatal line, one at which the parser has an error. If all our findings are about damaged
    lines, and one of them is an error about a fatal line, nothing is added.

    Args:
        path: The path of the log.
        ours: The findings by our reader, at least one of them about a damaged line.
        ruleset: The rules by which the log is judged.

    Returns:
        The findings of `ours`, with `official` set, and then the added ones.

    Raises:
        OSError: The log cannot be read.
    """
    are_all_about_damage = all(_is_about_damage(finding) for finding in ours)
    if are_all_about_damage:
        # To mark these findings, only fatal lines are needed, up to the last line that one of the findings is about.
        last_damaged_line = max(finding.line or 0 for finding in ours)
        fatal_lines = _fatal_lines_up_to(last_damaged_line, path)
        if _has_error_about(fatal_lines, ours):
            # The official checker rejects the log for this line already, so the events need not be judged.
            return tuple(_with_official_set(ours, fatal_lines, rules_broken_officially=set()))
    # `by_parser` is the official judgement on the events and lines that mlperf-logging's parser reads.
    by_parser = _judge_lines(_lines_as_parser_reads(path), ruleset)
    rules_broken_officially = {finding.rule for finding in by_parser.findings}
    marked = _with_official_set(ours, by_parser.fatal_lines, rules_broken_officially)
    return (*marked, *_findings_of_official_checker_alone(ours, by_parser))


def _findings_of_official_checker_alone(ours: Sequence[Finding], by_parser: "_JudgementByParser") -> list[Finding]:
    """Return what the official checker reports of a damaged log, and our findings do not.

    Args:
        ours: The findings by our reader, at least one of them about a damaged line.
        by_parser: The official findings on the log as mlperf-logging's parser reads it, and the fatal lines, at which
            the parser has an error.
    """
    alone = []
    has_error_about_fatal_line = _has_error_about(by_parser.fatal_lines, ours)
    if by_parser.fatal_lines and not has_error_about_fatal_line:
        first_fatal_line = min(by_parser.fatal_lines)
        alone.append(_error_about_fatal_line(first_fatal_line, ours))
    rules_of_ours = {finding.rule for finding in ours}
    alone += [finding for finding in by_parser.findings if finding.rule not in rules_of_ours]
    return alone


def _error_about_fatal_line(fatal_line: int, ours: Sequence[Finding]) -> Finding:
    """Return an official error about a fatal line that is not an error among our findings.

    Args:
        fatal_line: The line at which mlperf-logging's parser has an error.
        ours: The findings by our reader. The first one about damage gives the error its words.
    """
    about_damage = next(finding for finding in ours if _is_about_damage(finding))
    return replace(about_damage, severity="error", line=fatal_line, official=True)


def _with_official_set(
    ours: Sequence[Finding], fatal_lines: set[int], rules_broken_officially: set[str]
) -> list[Finding]:
    """Return our findings, each with `official` set to whether the official checker reports it.

    Args:
        ours: The findings by our reader.
        fatal_lines: The lines at which mlperf-logging's parser has an error. An error about one is official.
        rules_broken_officially: The rules that the official checker finds broken. Any finding by one of them is
            official.
    """
    results = []
    for finding in ours:
        is_official = _is_error_about(fatal_lines, finding) or finding.rule in rules_broken_officially
        results.append(replace(finding, official=is_official))
    return results


def _is_about_damage(finding: Finding) -> bool:
    """Return whether a finding is about a damaged line, not about an event."""
    return finding.rule.startswith("line-")


def _is_error_about(fatal_lines: set[int], finding: Finding) -> bool:
    """Return whether a finding is an error about a damaged line that is fatal.

    Args:
        fatal_lines: The lines at which mlperf-logging's parser has an error.
        finding: The finding.
    """
    return _is_about_damage(finding) and finding.severity == "error" and finding.line in fatal_lines


def _has_error_about(fatal_lines: set[int], findings: Sequence[Finding]) -> bool:
    """Return whether one of the findings is an error about a damaged line that is fatal.

    Args:
        fatal_lines: The lines at which mlperf-logging's parser has an error.
        findings: The findings.
    """
    return any(_is_error_about(fatal_lines, finding) for finding in findings)


class _JudgementByParser(NamedTuple):
    """The official findings on a log that was read as mlperf-logging's parser does, and its fatal lines."""

    findings: Sequence[Finding]
    fatal_lines: set[int]


def _judge_lines(lines: "Iterable[_ParsedLine]", ruleset: Ruleset) -> _JudgementByParser:
    """Judge a log by the official rules, and note its fatal lines, at which mlperf-logging's parser has an error.

    The parser ends at some fatal lines. Here the events after them are judged, too.

    Args:
        lines: The lines as mlperf-logging's parser reads them.
        ruleset: The rules by which the log is judged.

    Returns:
        What breaks the official rules, and the log's fatal lines.
    """
    collector = FindingCollector(ruleset.strict)
    judge = Judge(ruleset.version, collector)
    fatal_lines = set()
    for line in lines:
        if line.event is None:
            fatal_lines.add(line.number)
        else:
            judge.take(line.event)
    judge.finish()
    # The judge also reports breaches of a few of our strict rules, such as exactly-once. These are left out.
    official = [finding for finding in collector.findings if finding.official]
    return _JudgementByParser(findings=official, fatal_lines=fatal_lines)


def official_findings_without_infinities(path: Path, ruleset: Ruleset) -> Sequence[Finding]:
    """Judge a log by the official rules without the events eval_accuracy that have Infinity or -Infinity.

    The official parser takes such a number, though JSON has none, and Infinity reaches any target that has no upper
    limit. What the other accuracies reach shows only without it.

    Args:
        path: The path of the log.
        ruleset: The rules by which the log is judged.

    Raises:
        OSError: The log cannot be read.
    """
    lines = (line for line in _lines_as_parser_reads(path) if not _is_infinite_accuracy(line))
    return _judge_lines(lines, ruleset).findings


def _is_infinite_accuracy(line: "_ParsedLine") -> bool:
    """Return whether a line is an eval_accuracy with an infinite number, as its value or in a table of metrics."""
    event = line.event
    if event is None or event.key != schema.EVAL_ACCURACY.key:
        return False
    metrics = event.value.values() if isinstance(event.value, dict) else [event.value]
    return any(isinstance(metric, float) and math.isinf(metric) for metric in metrics)


def reading_of_tools(path: Path, ruleset: Ruleset) -> ToolReading:
    """Return a run's minutes, batch and epochs (or samples) to the target, as the official tools find them in a log.

    Fatal lines, at which mlperf-logging's parser has an error, are skipped.

    Args:
        path: The path of the log, which may have damaged lines.
        ruleset: The rules by which the log is judged.

    Raises:
        OSError: The log cannot be read.
    """
    reader = ToolReader(ruleset.version)
    for line in _lines_as_parser_reads(path):
        if line.event is not None:  # None: the line is fatal
            reader.take(line.event)
    return reader.result()


# --- lines as mlperf-logging's parser reads them ---


class _ParsedLine(NamedTuple):
    """A line that mlperf-logging's parser takes for an event. The event is None if the line is fatal."""

    number: int
    event: Event | None


def _fatal_lines_up_to(last_line: int, path: Path) -> set[int]:
    """Return the numbers of all fatal lines of a log, up to a given line.

    mlperf-logging's parser ends at some fatal lines. Here each line is parsed by itself: it is fatal if the parser
    refuses it, and then has no event. A line that is too long to be read counts as fatal, too.

    Args:
        last_line: The last line that is looked at.
        path: The path of the log.
    """
    fatal_lines = set()
    for line in _lines_as_parser_reads(path):
        if line.number > last_line:
            break
        if line.event is None:
            fatal_lines.add(line.number)
    return fatal_lines


def _lines_as_parser_reads(path: Path) -> Iterator[_ParsedLine]:
    """Yield the lines of a log that mlperf-logging's parser takes for events: those with the token `:::MLLOG `.

    The parser ends at some lines that it refuses. Here the later lines are yielded, too, each parsed by itself.

    Args:
        path: The path of the log.

    Yields:
        The line's number and its event; None if the parser refuses the line. Any line of _MAX_CHARACTERS or more is
        yielded without an event, and is the last one.
    """
    for line in _numbered_lines(path):
        is_too_long = len(line.text) == _MAX_CHARACTERS
        if is_too_long:
            yield _ParsedLine(line.number, event=None)
            return
        if _TOKEN in line.text:
            text = _from_last_token(line.text).strip()
            yield _ParsedLine(line.number, _event_or_none(text, line.number))


class _NumberedLine(NamedTuple):
    """A line of a log with its end, and its number."""

    number: int
    text: str


def _numbered_lines(path: Path) -> Iterator[_NumberedLine]:
    """Yield the lines of a log, which end with a carriage return (CR), a line feed (LF) or both, with their numbers.

    mlperf-logging's parser and our reader split a log so. But our reader's findings number lines by the LFs alone:

        "a" CR "b" LF "c"    ->    a has the number 1, b too, and c the number 2

    Args:
        path: The path of the log.

    Yields:
        The line. Of one longer than _MAX_CHARACTERS, a beginning of this length; what follows counts as another line.
    """
    number = 1
    with io.TextIOWrapper(open_log(path), encoding="latin-1", newline="") as stream:  # newline="": keeps CR and LF
        while line := stream.readline(_MAX_CHARACTERS):
            yield _NumberedLine(number, line)
            has_line_feed = line.endswith("\n")
            if has_line_feed:
                number += 1


def _from_last_token(line: str) -> str:
    """Return a line from its last token on. mlperf-logging's parser ignores what stands before it."""
    return line[line.rfind(_TOKEN) :]


def _event_or_none(text: str, line: int) -> Event | None:
    """Return the event of a text; None if mlperf-logging's parser has an error at it.

    Args:
        text: The text of a line from its last token `:::MLLOG ` on.
        line: The number of the line.
    """
    try:
        return _parse_event(text, line)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _parse_event(text: str, line: int) -> Event:
    """Return the event of a text such as `:::MLLOG {"key": "seed", "value": 1, "metadata": {}, "time_ms": 5}`.

    Args:
        text: The text of a line from its last token `:::MLLOG ` on, without blanks at its end.
        line: The number of the line.

    Raises:
        ValueError, TypeError, KeyError, OverflowError, RecursionError: The text is not such an event.
    """
    if not text.startswith(_TOKEN):  # nothing followed the token, so stripping the line took the token's last blank
        raise ValueError("no event")
    fields: JsonObject = json.loads(text[len(_TOKEN) :])
    time_ms = float(fields["time_ms"])
    key = fields["key"]
    value = fields["value"]
    metadata = fields["metadata"]
    if not isinstance(key, str):
        key = ""  # no rule is about such a key
    # No official rule looks at the event's type or its offset in the file.
    return Event(key, value, metadata, time_ms, event_type="", line=line, offset=0)
