"""The official verdict on a log with damaged lines, which mlperf-logging's parser reads in another way than ours."""

import io
import json
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path

from compliance.official.checker import Judge
from compliance.rules import Finding, FindingCollector, Ruleset
from runlog.json_types import JsonObject
from runlog.reader import Event, open_log

_TOKEN = ":::MLLOG "  # by which mlperf-logging begins each event of a log
_LONGEST = 1 << 24  # characters of a line; a longer one is refused unread


def official_findings(path: Path, ours: Sequence[Finding], ruleset: Ruleset) -> tuple[Finding, ...]:
    """Return our findings of a log with damaged lines, each marked by whether the official checker has it, too.

    Our reader skips a damaged line, or splits it into events. mlperf-logging's parser takes some such lines as events,
    and ends with an error at the others. So the log is read and judged a second time in that parser's way. A finding of
    ours is official if it is an error about a line at which the parser ends, or if the second judgement found the same
    rule broken. Findings of rules that only the second judgement found broken are added, and so is the first line at
    which the parser ends if no finding names one.
    """
    if all(_is_about_a_line(finding) for finding in ours):
        # It may be enough to read up to the last of these lines: whether the official parser ends at one of them.
        last_line = max(finding.line or 0 for finding in ours)
        unreadable = _lines_unreadable_for_official_parser(path, None, last_line)
        marked = _mark_official(ours, unreadable, broken_rules=frozenset())
        if any(finding.official for finding in marked):
            return tuple(marked)  # the official checker ends there, so the rest of the log changes nothing

    collector = FindingCollector(ruleset.strict)
    judge = Judge(ruleset.version, collector)
    unreadable = _lines_unreadable_for_official_parser(path, judge)
    judge.finish()
    theirs = [finding for finding in collector.findings if finding.official]
    marked = _mark_official(ours, unreadable, broken_rules={finding.rule for finding in theirs})

    is_unreadable_line_named = any(_is_error_at(finding, unreadable) for finding in ours)
    if unreadable and not is_unreadable_line_named:
        # There is one to copy, as only logs in which our reader found damaged lines are judged here.
        about_lines = [finding for finding in marked if _is_about_a_line(finding)]
        marked.append(replace(about_lines[0], severity="error", line=min(unreadable), official=True))

    rules_of_ours = {finding.rule for finding in ours}
    marked += [finding for finding in theirs if finding.rule not in rules_of_ours]
    return tuple(marked)


def _mark_official(findings: Iterable[Finding], unreadable: set[int], broken_rules: Set[str]) -> list[Finding]:
    """Return copies of the findings: official are errors at the unreadable lines, and findings of the broken rules."""
    marked = []
    for finding in findings:
        is_official = _is_error_at(finding, unreadable) or finding.rule in broken_rules
        marked.append(replace(finding, official=is_official))
    return marked


def _lines_unreadable_for_official_parser(path: Path, judge: Judge | None, last_line: float = math.inf) -> set[int]:
    """Return the numbers of the lines, up to `last_line`, at which mlperf-logging's parser ends with an error.

    The log is read as that parser reads it, but reading goes on after such lines. A line of 16 million characters is
    one of them, and there reading ends. The events of the other lines are given to `judge`, if it is not None.
    """
    unreadable: set[int] = set()
    with io.TextIOWrapper(open_log(path), encoding="latin-1") as stream:
        number = 0
        while number < last_line:
            line = stream.readline(_LONGEST)
            if not line:
                break
            number += 1
            if len(line) == _LONGEST:
                unreadable.add(number)
                break
            if _TOKEN not in line:
                continue
            event_at = line.rfind(_TOKEN)  # what stands before the last token of a line is ignored
            try:
                event = _parse_event(line[event_at:].strip(), number)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                unreadable.add(number)
                continue
            if judge is not None:
                judge.take(event)
    return unreadable


def _is_about_a_line(finding: Finding) -> bool:
    """Return whether a finding is about a line as such, before any rule of its key."""
    return finding.rule.startswith("line-")


def _is_error_at(finding: Finding, lines: set[int]) -> bool:
    """Return whether a finding is an error about one of the lines as such."""
    return _is_about_a_line(finding) and finding.severity == "error" and finding.line in lines


def _parse_event(text: str, line: int) -> Event:
    """Return the event of a text such as `:::MLLOG {"key": "seed", "value": 1, "metadata": {}, "time_ms": 5}`.

    `line` is the number of its line in the log. The event has neither a type nor an offset in the file, as no official
    rule looks at these. Its key is empty where the text has one that is no text.

    Raises ValueError, TypeError, KeyError, OverflowError or RecursionError where the text is no such event.
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
    return Event(key, value, metadata, time_ms, event_type="", line=line, offset=0)
