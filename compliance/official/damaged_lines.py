"""The official verdict on a log with damaged lines, which mlperf-logging's parser reads in another way than ours.

Our reader skips a damaged line, or splits it into events. mlperf-logging's parser reads some such lines as events, and
ends with an error at the others, the unreadable lines.
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
    """Return the findings of a log with damaged lines, each marked by whether the official checker reports it, too.

    `ours` are the findings of our reader. At least one must be about a damaged line.

    - If all are about damaged lines, and the official checker ends at one of these lines, they are returned, marked.
    - Otherwise the log is judged a second time, as mlperf-logging's parser reads it. What only this judgement finds is
      returned, too: an unreadable line that `ours` has no error on, and broken rules that `ours` does not have.
    """
    if all(_is_about_damage(finding) for finding in ours):
        last_damaged_line = max(finding.line or 0 for finding in ours)
        unreadable_lines = _unreadable_lines_up_to(last_damaged_line, path)
        marked = [replace(finding, official=_is_damage_error_at(finding, unreadable_lines)) for finding in ours]
        if any(finding.official for finding in marked):
            return tuple(marked)  # the official checker ends there, so the rest of the log changes nothing
    second = _judge_as_parser_reads(path, ruleset)
    return (
        *_mark_by_second_judgement(ours, second),
        *_finding_on_unnamed_unreadable_line(ours, second.unreadable_lines),
        *_findings_of_other_rules(second.findings, ours),
    )


class _SecondJudgement(NamedTuple):
    """The official findings of a log that was read as mlperf-logging's parser does, and the lines where that ends."""

    findings: Sequence[Finding]
    unreadable_lines: set[int]


def _judge_as_parser_reads(path: Path, ruleset: Ruleset) -> _SecondJudgement:
    """Read a log as mlperf-logging's parser does, and judge it by the official rules."""
    collector = FindingCollector(ruleset.strict)
    judge = Judge(ruleset.version, collector)
    unreadable_lines = set()
    for line in _lines_as_parser_reads(path):
        if line.event is None:
            unreadable_lines.add(line.number)
        else:
            judge.take(line.event)
    judge.finish()
    # The judge finds breaches of a few strict rules, too, such as exactly-once. These are left out.
    official = [finding for finding in collector.findings if finding.official]
    return _SecondJudgement(findings=official, unreadable_lines=unreadable_lines)


def _mark_by_second_judgement(ours: Sequence[Finding], second: _SecondJudgement) -> list[Finding]:
    """Return our findings with `official` set anew.

    It is true for an error about an unreadable line, and for a finding of a rule that the second judgement also names.
    """
    broken_rules = {finding.rule for finding in second.findings}
    marked = []
    for finding in ours:
        is_official = _is_damage_error_at(finding, second.unreadable_lines) or finding.rule in broken_rules
        marked.append(replace(finding, official=is_official))
    return marked


def _finding_on_unnamed_unreadable_line(ours: Sequence[Finding], unreadable_lines: set[int]) -> list[Finding]:
    """Return an official error about the first unreadable line; none if `ours` has an error about one of these lines.

    The error has the rule and the words of our first finding about damage.
    """
    is_one_named = any(_is_damage_error_at(finding, unreadable_lines) for finding in ours)
    if not unreadable_lines or is_one_named:
        return []
    first_about_damage = next(finding for finding in ours if _is_about_damage(finding))
    return [replace(first_about_damage, severity="error", line=min(unreadable_lines), official=True)]


def _findings_of_other_rules(findings: Sequence[Finding], ours: Sequence[Finding]) -> list[Finding]:
    """Return those of the findings whose rules are not the rules of `ours`."""
    rules_of_ours = {finding.rule for finding in ours}
    return [finding for finding in findings if finding.rule not in rules_of_ours]


# --- lines as mlperf-logging's parser reads them ---


class _ParsedLine(NamedTuple):
    """A line that mlperf-logging's parser takes for an event. The event is None if the parser ends with an error."""

    number: int
    event: Event | None


def _unreadable_lines_up_to(last_line: int, path: Path) -> set[int]:
    """Return the numbers of the lines, up to `last_line`, at which mlperf-logging's parser ends with an error."""
    unreadable_lines = set()
    for line in _lines_as_parser_reads(path):
        if line.number > last_line:
            break
        if line.event is None:
            unreadable_lines.add(line.number)
    return unreadable_lines


def _lines_as_parser_reads(path: Path) -> Iterator[_ParsedLine]:
    """Yield the lines of a log that mlperf-logging's parser takes for events.

    Unlike that parser, this function goes on after a line that is no event. A line of _MOST_CHARACTERS or more has no
    event either, and is the last that is read.
    """
    with io.TextIOWrapper(open_log(path), encoding="latin-1") as stream:
        for number in itertools.count(1):
            line = stream.readline(_MOST_CHARACTERS)
            if not line:
                return
            if len(line) == _MOST_CHARACTERS:
                yield _ParsedLine(number, None)
                return
            if _TOKEN in line:
                event_start = line.rfind(_TOKEN)  # the parser ignores what stands before the last token of a line
                yield _ParsedLine(number, _event_or_none(line[event_start:].strip(), number))


def _event_or_none(text: str, line: int) -> Event | None:
    """Return the event of a text; None if mlperf-logging's parser ends with an error at it."""
    try:
        return _parse_event(text, line)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _is_about_damage(finding: Finding) -> bool:
    """Return whether a finding is about a damaged line, not about an event."""
    return finding.rule.startswith("line-")


def _is_damage_error_at(finding: Finding, lines: set[int]) -> bool:
    """Return whether a finding is an error about damage in one of `lines`."""
    return _is_about_damage(finding) and finding.severity == "error" and finding.line in lines


def _parse_event(text: str, line: int) -> Event:
    """Return the event of a text such as `:::MLLOG {"key": "seed", "value": 1, "metadata": {}, "time_ms": 5}`.

    `line` is its line number in the log. A key that is not a text becomes empty. The event has neither a type nor an
    offset in the file, because no official rule looks at them.

    Raises ValueError, TypeError, KeyError, OverflowError or RecursionError if the text is not such an event.
    """
    if not text.startswith(_TOKEN):
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
