"""The official verdict on the events of a log, by mlperf-logging's rule files, as its mlp_compliance.py comes to it."""

import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compliance.logged_run import is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import VERSION, Check, Rule, RuleFile, benchmarks, keys, load, names, versions
from compliance.rules import FINDINGS_PER_RULE, Collected, Finding, Ruleset
from runlog import schema
from runlog.reader import Event, open_log
from runlog.text import as_json, printable, visible

_AGGREGATED = "aggregated_eval_accuracy"
_MINUTE_MS = 60_000


class Judge:
    """Takes the events of one log; `finish` collects what the official rules of `version` have against it."""

    def __init__(self, version: str, collected: Collected) -> None:
        self._version, self._collected = version, collected
        self._keys = keys(version)
        self._events: list[Event] = []

    def take(self, event: Event) -> None:
        if event.key in self._keys:
            if isinstance(event.metadata, dict):  # half the memory: no rule asks for the place in the code
                where = {sys.intern(name): value for name, value in own_metadata(event.metadata).items()}
                event = event._replace(key=sys.intern(event.key), metadata=where)
            self._events.append(event)

    def finish(self) -> None:
        """Applies common.yaml and each file that the log's events name, one after the other."""
        collected = self._collected
        waiting, done = [f"training_{self._version}/common.yaml"], set[str]()
        last: dict[str, _Key] = {}
        while waiting:
            done.add(name := waiting.pop(0))
            applied = _Applied(load(name), self._events, collected)
            for named, by in applied.state.enqueued:
                if named in names() and named not in done:
                    waiting += [named] if named not in waiting else []
                else:  # the official checker ends, or never does
                    self._refuse(applied.keys[by.key], by, named)
            last |= applied.keys
        for key in last.values():
            key.finish_last(collected)

    def _refuse(self, key: "_Key", by: Event, name: str) -> None:
        if by.key == schema.SUBMISSION_BENCHMARK.key:
            having = [version for version in versions() if by.value in benchmarks(version)]
            others = f"rulesets {', '.join(having)} have it" if having else "no ruleset has it"
            actual = f"{by.key} {printable(by.value, 60)}: mlperf-logging {VERSION} has no {printable(name)}; {others}"
            self._collected.breach("known-benchmark", by.line, actual)
        elif not key.failed:
            key.fail(by, "value", "a value that has rules of its own", printable(by.value))


class _Applied:
    """The rules of one file, applied to the events of a log."""

    def __init__(self, file: RuleFile, events: Sequence[Event], collected: Collected) -> None:
        self.file, self.state = file, State()
        self.keys = {key: _Key(rule, self) for key, rule in file.rules.items()}
        self.ended: Finding | None = None  # where the official checker ends with a traceback
        for step in file.begin:
            step(None, self.state)
        for event in [*events, *self._aggregated(events)] if file.aggregates else events:
            if (key := self.keys.get(event.key)) is not None:
                key.take(event)
        for key in self.keys.values():
            key.finish(collected)
        if self.ended:
            collected.found.append(self.ended)
        for check in file.end:
            self._check_end(check, collected)

    def _aggregated(self, events: Iterable[Event]) -> list[Event]:
        """Joins the metrics of one evaluation, as stable_diffusion's BEGIN does."""
        joined: dict[Any, Event] = {}
        for event in events:
            try:
                if event.key == schema.EVAL_ACCURACY.key and "metric" in event.metadata:
                    at = event.metadata[self.file.aggregates]
                    first = Event(_AGGREGATED, {self.file.aggregates: at}, {}, 0, "", event.line, 0)
                    joined.setdefault(at, first).value[event.metadata["metric"]] = event.value
            except (KeyError, TypeError):
                wanted = f"{self.file.aggregates} and a metric in the metadata"
                found = self.keys[_AGGREGATED].finding("metadata", event.line, wanted, _shown(event, "metadata"))
                self.ended = self.ended or found
        return list(joined.values())

    def _check_end(self, check: Check, collected: Collected) -> None:
        """A check of the state after the last event: of a list that the events of a key made."""
        key = self.keys[check.other]
        if key.count and not holds(check.code, None, self.state):  # that there is none is another finding
            made, wanted = (Counter(map(printable, side(None, self.state))) for side in check.sides)
            actual = f"missing {[*wanted - made][:3]}, unknown or twice {[*made - wanted][:3]}"
            collected.found.append(key.finding("metadata", key.line or None, check.words, actual))


def _shown(event: Event, aspect: str) -> str:
    """Return what a check of `aspect` looks at."""
    if aspect == "metadata":
        metadata = own_metadata(event.metadata) if isinstance(event.metadata, dict) else event.metadata
        return f"metadata {printable(metadata)}"
    plain = isinstance(event.value, str) and re.search("[A-Za-z]", event.value)  # "0.33" keeps its quotes
    return printable(event.value) if plain else visible(as_json(event.value), 160)


class _Key:
    """The events of a rule's key in a log, and the rule's objections to them."""

    def __init__(self, rule: Rule, file: _Applied) -> None:
        self.rule, self._file, self._once = rule, file, "submission_" in rule.key
        self.count, self.line, self.failed = 0, 0, 0
        self.value: Any = None
        self.differs = self.any_met = False
        self._best: tuple[float, int] | None = None  # value and line, of what any_check looks at
        self._failures: list[Finding] = []  # dropped where a later file has rules for the key

    def take(self, event: Event) -> None:
        rule, state = self.rule, self._file.state
        self.count += 1
        if self.count == 1:
            self.value, self.line = event.value, event.line
        elif not self.differs:
            self.differs = event.value not in (self.value,)  # one NaN is another's equal, as in list.count
        if self.count == 1 or not self._once:
            failed = self.failed
            for check in rule.checks:
                self._check(check, event)
            try:
                for step in rule.post:
                    step(event, state)
            except Exception:  # noqa: BLE001  as the official checker takes it
                if self.failed == failed:
                    wanted = "a value that the later rules can be computed from"
                    self.fail(event, "value", wanted, _shown(event, "value"))
        if rule.first_check and self.count == 1:
            self._check(rule.first_check, event)
        if rule.any_check:
            if is_number(event.value) and (self._best is None or event.value > self._best[0]):
                self._best = event.value, event.line
            try:
                self.any_met = bool(rule.any_check.code(event, state)) or self.any_met
            except Exception:  # noqa: BLE001  the official checker ends here
                check = rule.any_check
                wanted = "a number" if check.aspect == "value" and not is_number(event.value) else check.words
                found = self.finding(check.aspect, event.line, wanted, _shown(event, check.aspect))
                self._file.ended = self._file.ended or found

    def _check(self, check: Check, event: Event) -> None:
        if holds(check.code, event, self._file.state):
            return
        wanted, actual = check.words, _shown(event, check.aspect)
        if check.aspect == "order":
            other = check.other
            line = self._file.keys[other].line
            actual = f"after the {other} of line {line}" if check.before else f"no {other} before it"
        elif check.aspect == "time":
            since_ms, limit_ms = (side(event, self._file.state) for side in check.sides)
            wanted = f"under {limit_ms / _MINUTE_MS:g} min after the first init_start"
            actual = f"{since_ms / _MINUTE_MS:.1f} min after it"
            if not limit_ms:
                wanted, actual = "submission_division before it, for its time limit", "no submission_division"
        self.fail(event, check.aspect, wanted, actual)

    def fail(self, event: Event, aspect: str, wanted: str, actual: str) -> None:
        """A breach, which counts unless a later file has rules for the key."""
        self.failed += 1
        if self.failed <= FINDINGS_PER_RULE:
            self._failures.append(self.finding(aspect, event.line, wanted, actual))

    def finding(self, aspect: str, line: int | None, wanted: str, actual: str) -> Finding:
        key = self.rule.key
        fix = {
            "value": f"make {key} {wanted}",
            "metadata": f"give {key} this metadata: {wanted.removeprefix('metadata has ')}",
            "order": f"log {key} {wanted}",
            "time": "log submission_* first; do less before init_stop: compile less, or warm up with fewer steps",
        }.get(aspect, f"log {wanted}")
        rule, source = f"{key}.{aspect}", self._file.file.source
        wanted = wanted if aspect == "count" else f"{key}: {wanted}"
        return Finding(rule=rule, line=line, expected=wanted, actual=actual, fix=fix, source=source, official=True)

    def finish(self, collected: Collected) -> None:
        """Collects what no later file takes back."""
        rule = self.rule
        if rule.other and not self.count and not self._file.keys[rule.other].count:
            collected.found.append(self.finding("count", None, rule.count_in_words, "none"))
        if rule.any_check and self.count and not self.any_met:
            best, line = (f"the best is {self._best[0]:.6g}", self._best[1]) if self._best else ("no number", None)
            found = self.finding("value", line, f"one event with {rule.any_check.words}", best)
            collected.found.append(replace(found, fix="train until the target is reached, then log run_stop"))

    def finish_last(self, collected: Collected) -> None:
        """Collects the rest, where no later file names the key."""
        rule, count, found = self.rule, self.count, self._failures
        collected.found += found
        if self.failed > len(found):
            collected.more(found[-1], self.failed - len(found))
        if rule.count == "EXACTLY_ONE" and count > 1 and not self.differs:
            collected.breach("exactly-once", self.line, f"{count} {rule.key}, all with the same value")
        elif count < rule.least or (rule.count == "EXACTLY_ONE" and count > 1):
            first = f"{count}, with different values; the first is {printable(self.value)}"
            actual = first if self.differs else str(count or "none")
            collected.found.append(self.finding("count", self.line or None, rule.count_in_words, actual))


# --- a log with damaged lines, as mlperf-logging's parser reads it ---

_TOKEN = ":::MLLOG "
_LONGEST = 1 << 24  # characters of a line; a longer one is refused unread


def official_findings(path: Path, found: Sequence[Finding], ruleset: Ruleset) -> tuple[Finding, ...]:
    """`found`, each marked by whether the official checker finds it too, and what only that one finds.

    Our reader passes over, or splits, what it cannot take as one event; the official parser takes some of it and ends
    at the rest.
    """
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
