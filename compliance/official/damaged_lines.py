"""The official verdict on a log with damaged lines, which mlperf-logging's parser reads in another way than ours.

- A damaged line is one that our reader skips, or splits into events, with a finding.
- A fatal line is one at which mlperf-logging's parser ends with an error, so that the official checker rejects the log.

A damaged line need not be fatal, because that parser reads some of them as events.
"""

import io
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from compliance.official.checker import Judge
from compliance.rules import Finding, FindingCollector, Ruleset
from runlog.json_types import JsonObject
from runlog.reader import Event, open_log

_TOKEN = ":::MLLOG "  # by which mlperf-logging begins each event of a log
_MOST_CHARACTERS = 1 << 24  # of a line that is read; a longer one is refused


def official_findings(path: Path, ours: Sequence[Finding], ruleset: Ruleset) -> tuple[Finding, ...]:
    """Return the findings on a log with damaged lines, with `official` set in each that the official checker reports.

    `ours` are the findings by our reader, at least one of them about damage. The official parser reads some damaged
    lines, ignores others, and ends with an error at a fatal one. So the log is judged once more as that parser reads
    it. This is not needed if all findings are about damage, and one of them is an error about a fatal line.
    """
    if all(_is_about_damage(finding) for finding in ours):
        last_damaged_line = max(finding.line or 0 for finding in ours)
        fatal_lines = _fatal_lines_up_to(last_damaged_line, path)
        if _has_error_about(fatal_lines, ours):  # the official checker ends there, and reports nothing else
            return tuple(_with_official_set(ours, fatal_lines, rules_broken_officially=set()))
    as_parser_reads = _judge_as_parser_reads(path, ruleset)
    return _joined_findings(ours, as_parser_reads)


def _joined_findings(ours: Sequence[Finding], as_parser_reads: "_SecondJudgement") -> tuple[Finding, ...]:
    """Return our findings on a log, then those of the judgement `as_parser_reads` whose rules are not among ours.

    `official` is set in each finding that the official checker reports. If the log has fatal lines and none of ours is
    an error about one, an official error about the first fatal line is added.
    """
    fatal_lines = as_parser_reads.fatal_lines
    rules_broken_officially = {finding.rule for finding in as_parser_reads.findings}
    rules_of_ours = {finding.rule for finding in ours}
    joined = _with_official_set(ours, fatal_lines, rules_broken_officially)
    if fatal_lines and not _has_error_about(fatal_lines, ours):
        joined.append(_error_about_fatal_line(min(fatal_lines), ours))
    joined += [finding for finding in as_parser_reads.findings if finding.rule not in rules_of_ours]
    return tuple(joined)


def _error_about_fatal_line(fatal_line: int, ours: Sequence[Finding]) -> Finding:
    """Return an official error about a fatal line that is no error among our findings.

    It has the words of the first of our findings that is about damage.
    """
    about_damage = next(finding for finding in ours if _is_about_damage(finding))
    return replace(about_damage, severity="error", line=fatal_line, official=True)


def _with_official_set(
    ours: Sequence[Finding], fatal_lines: set[int], rules_broken_officially: set[str]
) -> list[Finding]:
    """Return our findings, each with `official` set to whether the official checker reports it.

    It reports errors about fatal lines, and breaches of the rules in `rules_broken_officially`.
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
    """Return whether a finding is an error about a damaged line that is fatal."""
    return _is_about_damage(finding) and finding.severity == "error" and finding.line in fatal_lines


def _has_error_about(fatal_lines: set[int], findings: Sequence[Finding]) -> bool:
    """Return whether one of the findings is an error about a damaged line that is fatal."""
    return any(_is_error_about(fatal_lines, finding) for finding in findings)


class _SecondJudgement(NamedTuple):
    """The official findings on a log that was read as mlperf-logging's parser does, and its fatal lines."""

    findings: Sequence[Finding]
    fatal_lines: set[int]


def _judge_as_parser_reads(path: Path, ruleset: Ruleset) -> _SecondJudgement:
    """Read a log as mlperf-logging's parser does. Return what breaks the official rules, and the log's fatal lines.

    That parser ends at the first fatal line. Here a fatal line is only noted, and the events after it are judged, too.
    """
    collector = FindingCollector(ruleset.strict)
    judge = Judge(ruleset.version, collector)
    fatal_lines = set()
    for line in _lines_as_parser_reads(path):
        if line.event is None:
            fatal_lines.add(line.number)
        else:
            judge.take(line.event)
    judge.finish()
    # The judge also reports breaches of a few of our strict rules, such as exactly-once. These are left out.
    official = [finding for finding in collector.findings if finding.official]
    return _SecondJudgement(findings=official, fatal_lines=fatal_lines)


# --- lines as mlperf-logging's parser reads them ---


class _ParsedLine(NamedTuple):
    """A line that mlperf-logging's parser takes for an event. The event is None if the line is fatal."""

    number: int
    event: Event | None


def _fatal_lines_up_to(last_line: int, path: Path) -> set[int]:
    """Return the numbers of the fatal lines of a log, up to `last_line`."""
    fatal_lines = set()
    for line in _lines_as_parser_reads(path):
        if line.number > last_line:
            break
        if line.event is None:
            fatal_lines.add(line.number)
    return fatal_lines


def _lines_as_parser_reads(path: Path) -> Iterator[_ParsedLine]:
    """Yield the lines of a log that mlperf-logging's parser takes for events: those with the token `:::MLLOG `.

    A line is yielded without an event if it is fatal: the parser ends with an error at it. A line of _MOST_CHARACTERS
    or more counts as fatal, with or without the token, and is the last one that is read.
    """
    with io.TextIOWrapper(open_log(path), encoding="latin-1") as stream:
        for number in itertools.count(1):
            line = stream.readline(_MOST_CHARACTERS)  # of a longer line, only this beginning
            is_end_of_log = line == ""
            is_too_long = len(line) == _MOST_CHARACTERS
            if is_end_of_log:
                return
            if is_too_long:
                yield _ParsedLine(number, event=None)
                return
            if _TOKEN in line:
                text = _from_last_token(line).strip()
                yield _ParsedLine(number, _event_or_none(text, number))


def _from_last_token(line: str) -> str:
    """Return a line from its last token on. mlperf-logging's parser ignores what stands before it."""
    return line[line.rfind(_TOKEN) :]


def _event_or_none(text: str, line: int) -> Event | None:
    """Return the event of a text; None if mlperf-logging's parser ends with an error at it."""
    try:
        return _parse_event(text, line)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _parse_event(text: str, line: int) -> Event:
    """Return the event of a text such as `:::MLLOG {"key": "seed", "value": 1, "metadata": {}, "time_ms": 5}`.

    Raises ValueError, TypeError, KeyError, OverflowError or RecursionError if the text is not such an event.
    """
    if not text.startswith(_TOKEN):  # the text is the token alone, stripped of the blank at its end
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
