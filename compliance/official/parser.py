"""The official verdict on a log with damaged lines, read as mlperf-logging's parser reads them.

Our reader passes over, or splits, what it cannot take as one event; that parser takes some of it and ends at the rest.
"""

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compliance.findings import Collected, Finding
from compliance.official.checker import Judge
from compliance.rules import Ruleset
from runlog.reader import Event, open_log

_TOKEN = ":::MLLOG "
_LONGEST = 1 << 24  # characters of a line; a longer one is refused unread


def official_findings(path: Path, found: Sequence[Finding], ruleset: Ruleset) -> tuple[Finding, ...]:
    """`found`, each marked by whether the official checker finds it too, and what only that one finds."""
    if all(finding.rule.startswith("line-") for finding in found):
        last = max(finding.line or 0 for finding in found)
        bad_lines = _read(path, lambda event: None, last)
        if any(_is_bad(one, bad_lines) for one in found):  # the rest can change nothing
            return tuple(replace(one, official=_is_bad(one, bad_lines)) for one in found)
    collected = Collected(ruleset.strict)
    judge = Judge(ruleset.version, collected)
    bad_lines = _read(path, judge.take)
    judge.finish()
    theirs = [finding for finding in collected.found if finding.official]
    named = {finding.rule for finding in theirs}
    marked = [replace(one, official=one.rule in named or _is_bad(one, bad_lines)) for one in found]
    if bad_lines and not any(_is_bad(one, bad_lines) for one in marked):
        blamed = next(one for one in marked if one.rule.startswith("line-"))
        marked.append(replace(blamed, severity="error", line=min(bad_lines), official=True))
    ours = {finding.rule for finding in found}
    return (*marked, *(one for one in theirs if one.rule not in ours))


def _read(path: Path, take: Callable[[Event], None], last: float = math.inf) -> set[int]:
    """Gives `take` the events as the official parser reads them, to line `last`; the lines that it cannot read."""
    bad_lines: set[int] = set()
    with io.TextIOWrapper(open_log(path), encoding="latin-1") as stream:
        number = 0
        while number < last and (line := stream.readline(_LONGEST)):
            number += 1
            if len(line) == _LONGEST:
                bad_lines.add(number)
                break
            if _TOKEN not in line:
                continue
            try:
                event = _event(line[line.rfind(_TOKEN) :].strip(), number)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                bad_lines.add(number)
                continue
            take(event)
    return bad_lines


def _is_bad(finding: Finding, bad_lines: set[int]) -> bool:
    return finding.rule.startswith("line-") and finding.severity == "error" and finding.line in bad_lines


def _event(text: str, line: int) -> Event:
    """Raises what the official parser raises."""
    if not text.startswith(_TOKEN):
        raise ValueError("no event")
    fields: dict[str, Any] = json.loads(text[len(_TOKEN) :])
    time_ms, key, value, metadata = float(fields["time_ms"]), fields["key"], fields["value"], fields["metadata"]
    known = key if isinstance(key, str) else ""  # no rule is of such a key
    return Event(known, value, metadata, time_ms, "", line, 0)
