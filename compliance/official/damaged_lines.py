"""The official verdict on a log with damaged lines, which mlperf-logging's parser reads in another way than ours.

Our reader skips a damaged line, or splits it into events. mlperf-logging's parser reads some such lines as events, and
ends with an error at the others, the unreadable lines.
"""

import io
import json
import math
from collections.abc import Callable, Iterable, Sequence, Set
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

    - If all are about damaged lines, and the official checker ends at one of these lines, nothing more is looked for.
    - Otherwise the log is read a second time, as mlperf-logging's parser reads it. If `ours` has no error at any line
      that the parser cannot read, an error at the first such line is added. The findings of the second reading are
      added, too, if `ours` has no finding of the same rule.
    """
    is_only_damage_found = all(_is_about_damage(finding) for finding in ours)
    if is_only_damage_found:
        marked_by_damage = _mark_by_damage_alone(path, ours)
        if any(finding.official for finding in marked_by_damage):
            return tuple(marked_by_damage)  # the official checker ends there, so the rest of the log changes nothing

    # The findings and the unreadable lines of the second reading.
    second = _judge_as_parser_reads(path, ruleset)
    marked = _mark_official(ours, second.unreadable_lines, broken_rules={finding.rule for finding in second.findings})

    is_unreadable_line_named = any(_is_damage_error_at(finding, second.unreadable_lines) for finding in ours)
    if second.unreadable_lines and not is_unreadable_line_named:
        first_unreadable = min(second.unreadable_lines)
        # A template: the new error has the rule and the words of this finding.
        model = next(finding for finding in marked if _is_about_damage(finding))
        marked.append(replace(model, severity="error", line=first_unreadable, official=True))

    rules_of_ours = {finding.rule for finding in ours}
    marked += [finding for finding in second.findings if finding.rule not in rules_of_ours]
    return tuple(marked)


class _SecondJudgement(NamedTuple):
    """The official findings of a log that was read as mlperf-logging's parser does, and the lines where that ends."""

    findings: Sequence[Finding]
    unreadable_lines: set[int]


def _judge_as_parser_reads(path: Path, ruleset: Ruleset) -> _SecondJudgement:
    """Read a log as mlperf-logging's parser does, and judge it by the official rules."""
    collector = FindingCollector(ruleset.strict)
    judge = Judge(ruleset.version, collector)
    unreadable_lines = _find_unreadable_lines(path, take_event=judge.take)
    judge.finish()
    # The judge finds breaches of a few strict rules, too, such as exactly-once. These are left out.
    official = [finding for finding in collector.findings if finding.official]
    return _SecondJudgement(findings=official, unreadable_lines=unreadable_lines)


def _mark_by_damage_alone(path: Path, damage: Sequence[Finding]) -> list[Finding]:
    """Return findings about damaged lines, each marked by whether its line is unreadable for the official parser.

    The log is read up to the last of these lines only.
    """
    last_line = max(finding.line or 0 for finding in damage)
    unreadable_lines = _find_unreadable_lines(path, last_line=last_line)
    return _mark_official(damage, unreadable_lines, broken_rules=frozenset())


def _mark_official(findings: Iterable[Finding], unreadable_lines: set[int], broken_rules: Set[str]) -> list[Finding]:
    """Return copies of the findings with `official` set anew.

    It is true for an error about one of the `unreadable_lines`, and for a finding of one of the `broken_rules`.
    """
    marked = []
    for finding in findings:
        is_official = _is_damage_error_at(finding, unreadable_lines) or finding.rule in broken_rules
        marked.append(replace(finding, official=is_official))
    return marked


def _find_unreadable_lines(
    path: Path, *, last_line: float = math.inf, take_event: Callable[[Event], None] | None = None
) -> set[int]:
    """Read a log as mlperf-logging's parser does, and return the numbers of the lines at which it ends with an error.

    Unlike that parser, this function reads on after such a line, up to `last_line`. It stops at a line of
    _MOST_CHARACTERS or more, whose number is returned, too. `take_event` is called with each event that is read.
    """
    unreadable: set[int] = set()
    with io.TextIOWrapper(open_log(path), encoding="latin-1") as stream:
        number = 0
        while number < last_line:
            line = stream.readline(_MOST_CHARACTERS)
            if not line:
                break
            number += 1
            if len(line) == _MOST_CHARACTERS:
                unreadable.add(number)
                break
            if _TOKEN not in line:
                continue
            event_start = line.rfind(_TOKEN)  # the parser ignores what stands before the last token of a line
            try:
                event = _parse_event(line[event_start:].strip(), number)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                unreadable.add(number)
                continue
            if take_event is not None:
                take_event(event)
    return unreadable


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
