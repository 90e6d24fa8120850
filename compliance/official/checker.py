"""The official verdict on the events of a log, by mlperf-logging's rule files, as its mlp_compliance.py comes to it."""

import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from compliance.logged_run import is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import VERSION, Check, Rule, RuleFile, benchmarks, keys, load, names, versions
from compliance.rules import FINDINGS_PER_RULE, Collected, Finding, Ruleset
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Event, open_log
from runlog.text import as_json, printable, visible

_AGGREGATED = "aggregated_eval_accuracy"
_MINUTE_MS = 60_000
_NAMES_SHOWN = 3  # of those that are missing, and of those that are unknown


class Judge:
    """Takes the events of one log; `finish` collects the violations of the official rules of `version`."""

    def __init__(self, version: str, collected: Collected) -> None:
        self._version = version
        self._collected = collected
        self._keys = keys(version)
        self._events: list[Event] = []

    def take(self, event: Event) -> None:
        """Keep an event that any rule is about."""
        if event.key not in self._keys:
            return
        if isinstance(event.metadata, dict):  # half the memory: no rule asks for the place in the code
            where = {sys.intern(name): value for name, value in own_metadata(event.metadata).items()}
            event = event._replace(key=sys.intern(event.key), metadata=where)
        self._events.append(event)

    def finish(self) -> None:
        """Apply the rule file common.yaml to the events, and then each file that a file before sends the log to.

        common.yaml sends a log to its division's file, and that to its benchmark's, by what the events state. Where
        several files have rules for a key, those of the last one count for its single events and their number.
        """
        waiting = [f"training_{self._version}/common.yaml"]
        applied_names: set[str] = set()
        last_by_key: dict[str, _Key] = {}
        while waiting:
            name = waiting.pop(0)
            applied_names.add(name)
            applied = _Applied(load(name), self._events, self._collected)
            for further_file, event in applied.state.enqueued:
                if further_file not in names() or further_file in applied_names:
                    # Here the official checker ends with an error, or never ends.
                    self._refuse(applied.keys[event.key], event, further_file)
                elif further_file not in waiting:
                    waiting.append(further_file)
            last_by_key |= applied.keys
        for key in last_by_key.values():
            key.collect_in_last_file(self._collected)

    def _refuse(self, key: "_Key", event: Event, rule_file: str) -> None:
        """Collect that the value of `event` leads to `rule_file`, which mlperf-logging lacks or has applied already.

        An unknown benchmark breaks the rule known-benchmark, and the finding names the rulesets that have it. Any other
        value fails as one of `key`, the events of the same key, unless one of these has failed already.
        """
        if event.key == schema.SUBMISSION_BENCHMARK.key:
            self._refuse_benchmark(event, rule_file)
        elif not key.failed:
            key.fail(event, "value", "a value that has rules of its own", printable(event.value))

    def _refuse_benchmark(self, event: Event, rule_file: str) -> None:
        rulesets = [version for version in versions() if event.value in benchmarks(version)]
        where_known = f"rulesets {', '.join(rulesets)} have it" if rulesets else "no ruleset has it"
        benchmark = printable(event.value, 60)
        actual = f"{event.key} {benchmark}: mlperf-logging {VERSION} has no {printable(rule_file)}; {where_known}"
        self._collected.breach("known-benchmark", event.line, actual)


class _Applied:
    """The rules of one file, applied to the events of a log."""

    def __init__(self, file: RuleFile, events: Sequence[Event], collected: Collected) -> None:
        self.file = file
        self.state = State()
        self.keys = {key: _Key(rule, self) for key, rule in file.rules.items()}
        self.ended: Finding | None = None  # where the official checker ends with a traceback

        for step in file.begin:
            step(None, self.state)
        if file.aggregates:
            events = [*events, *self._aggregated(events)]
        for event in events:
            key = self.keys.get(event.key)
            if key is not None:
                key.take(event)
        for key in self.keys.values():
            key.collect_in_each_file(collected)
        if self.ended:
            collected.found.append(self.ended)
        for check in file.end:
            self._check_listed_names(check, collected)

    def _aggregated(self, events: Iterable[Event]) -> list[Event]:
        """Return one event for each evaluation of stable_diffusion, which logs each of its metrics in an event.

        The new event's value is a table such as {"samples_count": 512, "FID": 88.1, "CLIP": 0.15}. Its metrics are
        those with the same samples_count in their metadata; `file.aggregates` has that name. Where an event lacks such
        metadata the official checker ends, which is noted.
        """
        by_evaluation: dict[Any, Event] = {}  # by the evaluation's samples_count
        name = self.file.aggregates
        for event in events:
            try:
                if event.key != schema.EVAL_ACCURACY.key or "metric" not in event.metadata:
                    continue
                evaluation = event.metadata[name]
                if evaluation not in by_evaluation:
                    table = {name: evaluation}
                    joined = Event(_AGGREGATED, table, {}, time_ms=0, event_type="", line=event.line, offset=0)
                    by_evaluation[evaluation] = joined
                by_evaluation[evaluation].value[event.metadata["metric"]] = event.value
            except (KeyError, TypeError):
                wanted = f"{name} and a metric in the metadata"
                self.end(self.keys[_AGGREGATED].finding("metadata", event.line, wanted, _shown(event, "metadata")))
        return list(by_evaluation.values())

    def end(self, finding: Finding) -> None:
        """Note why the official checker ends; only the first reason counts."""
        if self.ended is None:
            self.ended = finding

    def _check_listed_names(self, check: Check, collected: Collected) -> None:
        """Collect that the names which a log's events listed are not those that the rule file wants.

        For instance, the tensors that a log has initialized, one event each, must be those of the reference model. The
        check's key is `check.other`, and its two sides compute the listed and the wanted names from what the events
        left in the state. A log without events of the key is passed over: another finding says that they are missing.
        """
        key = self.keys[check.other]
        if not key.count or holds(check.code, None, self.state):
            return
        compute_listed, compute_wanted = check.sides
        listed = Counter(map(printable, compute_listed(None, self.state)))
        wanted = Counter(map(printable, compute_wanted(None, self.state)))
        missing = list(wanted - listed)[:_NAMES_SHOWN]
        unknown = list(listed - wanted)[:_NAMES_SHOWN]
        actual = f"missing {missing}, unknown or twice {unknown}"
        collected.found.append(key.finding("metadata", key.line or None, check.words, actual))


def _shown(event: Event, aspect: str) -> str:
    """Return the part of an event that a check of `aspect` looks at."""
    if aspect == "metadata":
        metadata = event.metadata
        if isinstance(metadata, dict):
            metadata = own_metadata(metadata)
        return f"metadata {printable(metadata)}"
    if isinstance(event.value, str) and re.search("[A-Za-z]", event.value):
        return printable(event.value)
    return visible(as_json(event.value), 160)  # in which "0.33" keeps its quotes


class _Best(NamedTuple):
    """The largest value of a key, and its line."""

    value: float
    line: int


class _Objection(NamedTuple):
    """An unmet check: what it wanted of an event, and what the log has instead."""

    wanted: str
    actual: str


class _Key:
    """The events of a rule's key in a log, and the rule's objections to them."""

    def __init__(self, rule: Rule, file: _Applied) -> None:
        self.rule = rule
        self._file = file
        self._only_first_is_checked = "submission_" in rule.key
        self.count = 0
        self.line = 0  # of the first event
        self.value: Any = None  # of the first event
        self.differs = False  # whether another event has another value
        self.any_met = False  # whether an event met the rule's any_check
        self.failed = 0
        self._best: _Best | None = None
        self._failures: list[Finding] = []  # dropped where a later file has rules for the key

    def take(self, event: Event) -> None:
        """Apply the rule's checks to the next event of the key, and count it.

        The value and the line of the first event are kept, and whether a later one has another value. Of the keys
        submission_... the official checker checks the first event alone.
        """
        self.count += 1
        is_first = self.count == 1
        if is_first:
            self.value = event.value
            self.line = event.line
        elif not self.differs and event.value not in [self.value]:  # a list's: NaN equals NaN, as for the official one
            self.differs = True
        if is_first or not self._only_first_is_checked:
            self._check_each(event)
        if self.rule.first_check and is_first:
            self._check(self.rule.first_check, event)
        if self.rule.any_check:
            self._look_for_any(self.rule.any_check, event)

    def _check_each(self, event: Event) -> None:
        """Apply the checks of every event, then run the rule's own code, which may change the state for later rules.

        Where that code fails, the event is at fault, unless a check has blamed it already.
        """
        failed_before = self.failed
        for check in self.rule.checks:
            self._check(check, event)
        try:
            for step in self.rule.post:
                step(event, self._file.state)
        except Exception:  # noqa: BLE001  as the official checker takes it
            if self.failed == failed_before:
                wanted = "a value that the later rules can be computed from"
                self.fail(event, "value", wanted, _shown(event, "value"))

    def _look_for_any(self, check: Check, event: Event) -> None:
        """Note whether an event meets the check that at least one event of the key must meet.

        The largest value is kept for the message where none does. Where the check cannot be computed, the official
        checker ends.
        """
        has_number = is_number(event.value)
        if has_number and (self._best is None or event.value > self._best.value):
            self._best = _Best(event.value, event.line)
        try:
            if check.code(event, self._file.state):
                self.any_met = True
        except Exception:  # noqa: BLE001  the official checker ends here
            wanted = check.words
            if check.aspect == "value" and not has_number:
                wanted = "a number"
            self._file.end(self.finding(check.aspect, event.line, wanted, _shown(event, check.aspect)))

    def _check(self, check: Check, event: Event) -> None:
        """Apply one check to an event."""
        if holds(check.code, event, self._file.state):
            return
        objection = _Objection(check.words, _shown(event, check.aspect))
        if check.aspect == "order":
            objection = self._objection_to_order(check)
        elif check.aspect == "time":
            objection = self._objection_to_time(check, event)
        self.fail(event, check.aspect, objection.wanted, objection.actual)

    def _objection_to_order(self, check: Check) -> _Objection:
        """Return which event came before this one, or did not."""
        if check.before:
            line = self._file.keys[check.other].line
            return _Objection(check.words, f"after the {check.other} of line {line}")
        return _Objection(check.words, f"no {check.other} before it")

    def _objection_to_time(self, check: Check, event: Event) -> _Objection:
        """Return how long after the first init_start an event came, and how long it may take."""
        since, limit = check.sides
        since_ms = since(event, self._file.state)
        limit_ms = limit(event, self._file.state)
        if not limit_ms:
            return _Objection("submission_division before it, for its time limit", "no submission_division")
        wanted = f"under {limit_ms / _MINUTE_MS:g} min after the first init_start"
        return _Objection(wanted, f"{since_ms / _MINUTE_MS:.1f} min after it")

    def fail(self, event: Event, aspect: str, wanted: str, actual: str) -> None:
        """Note a breach, which counts unless a later file has rules for the key."""
        self.failed += 1
        if self.failed <= FINDINGS_PER_RULE:
            self._failures.append(self.finding(aspect, event.line, wanted, actual))

    def finding(self, aspect: str, line: int | None, wanted: str, actual: str) -> Finding:
        """Return a finding of the official checker about one aspect of the key, with what to do."""
        key = self.rule.key
        fixes = {
            "value": f"make {key} {wanted}",
            "metadata": f"give {key} this metadata: {wanted.removeprefix('metadata has ')}",
            "order": f"log {key} {wanted}",
            "time": "log submission_* first; do less before init_stop: compile less, or warm up with fewer steps",
        }
        return Finding(
            rule=f"{key}.{aspect}",
            line=line,
            expected=wanted if aspect == "count" else f"{key}: {wanted}",
            actual=actual,
            fix=fixes.get(aspect, f"log {wanted}"),
            source=self._file.file.source,
            official=True,
        )

    def collect_in_each_file(self, collected: Collected) -> None:
        """Collect the breaches by all events of the key that count whatever later rule files say of the key.

        One is that neither this key nor the other one that may take its place has an event. The other is that none of
        the events met the check that at least one must meet.
        """
        rule = self.rule
        if rule.other and not self.count and not self._file.keys[rule.other].count:
            collected.found.append(self.finding("count", None, rule.count_in_words, "none"))
        if rule.any_check and self.count and not self.any_met:
            best = "no number"
            line = None
            if self._best is not None:
                best = f"the best is {self._best.value:.6g}"
                line = self._best.line
            finding = self.finding("value", line, f"one event with {rule.any_check.words}", best)
            collected.found.append(replace(finding, fix="train until the target is reached, then log run_stop"))

    def collect_in_last_file(self, collected: Collected) -> None:
        """Collect the breaches that count only in the last rule file with rules for the key.

        These are the failed checks of single events, and a wrong number of events. Where a key must be there exactly
        once, repeats with the same value only warn, as in the official checker.
        """
        rule = self.rule
        collected.found += self._failures
        if self.failed > len(self._failures):
            collected.more(self._failures[-1], self.failed - len(self._failures))
        is_repeated = rule.count == "EXACTLY_ONE" and self.count > 1
        if is_repeated and not self.differs:
            collected.breach("exactly-once", self.line, f"{self.count} {rule.key}, all with the same value")
        elif is_repeated or self.count < rule.least:
            actual = str(self.count or "none")
            if self.differs:
                actual = f"{self.count}, with different values; the first is {printable(self.value)}"
            collected.found.append(self.finding("count", self.line or None, rule.count_in_words, actual))


# --- a log with damaged lines, as mlperf-logging's parser reads it ---

_TOKEN = ":::MLLOG "  # by which mlperf-logging begins each event of a log
_LONGEST = 1 << 24  # characters of a line; a longer one is refused unread


def official_findings(path: Path, ours: Sequence[Finding], ruleset: Ruleset) -> tuple[Finding, ...]:
    """Return our findings of a log with damaged lines, each marked by whether the official checker has it, too.

    Our reader skips a damaged line, or splits it into events. mlperf-logging's parser takes some such lines as events,
    and ends with an error at the others. So the log is read and judged a second time in the parser's way. A finding of
    ours is official if it is an error about a line at which the parser ends, or if the second judgement broke the same
    rule. The findings of rules that only the second judgement broke are added.
    """
    if all(_is_about_a_line(finding) for finding in ours):
        last_line = max(finding.line or 0 for finding in ours)
        marked = _mark_official(ours, _bad_lines_of_official_parser(path, None, last_line), broken_rules=frozenset())
        if any(finding.official for finding in marked):
            return tuple(marked)  # the official checker ends there, so the rest of the log changes nothing

    collected = Collected(ruleset.strict)
    judge = Judge(ruleset.version, collected)
    bad_lines = _bad_lines_of_official_parser(path, judge)
    judge.finish()
    theirs = [finding for finding in collected.found if finding.official]
    marked = _mark_official(ours, bad_lines, broken_rules={finding.rule for finding in theirs})

    is_bad_line_named = any(_is_error_at(finding, bad_lines) for finding in ours)
    if bad_lines and not is_bad_line_named:
        about_lines = [finding for finding in marked if _is_about_a_line(finding)]
        marked.append(replace(about_lines[0], severity="error", line=min(bad_lines), official=True))

    rules_of_ours = {finding.rule for finding in ours}
    marked += [finding for finding in theirs if finding.rule not in rules_of_ours]
    return tuple(marked)


def _mark_official(findings: Iterable[Finding], bad_lines: set[int], broken_rules: Set[str]) -> list[Finding]:
    """Return copies of the findings: official are errors at the bad lines, and findings of the broken rules."""
    marked = []
    for finding in findings:
        is_official = _is_error_at(finding, bad_lines) or finding.rule in broken_rules
        marked.append(replace(finding, official=is_official))
    return marked


def _bad_lines_of_official_parser(path: Path, judge: Judge | None, last_line: float = math.inf) -> set[int]:
    """Read a log to `last_line` as the official parser does, and give its events to `judge`, if there is one.

    Return the numbers of the lines at which that parser ends with an error. Reading ends at a line of 16 million
    characters, which counts as one of them.
    """
    bad_lines: set[int] = set()
    with io.TextIOWrapper(open_log(path), encoding="latin-1") as stream:
        number = 0
        while number < last_line:
            line = stream.readline(_LONGEST)
            if not line:
                break
            number += 1
            if len(line) == _LONGEST:
                bad_lines.add(number)
                break
            if _TOKEN not in line:
                continue
            try:
                event = _parse_event(line[line.rfind(_TOKEN) :].strip(), number)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                bad_lines.add(number)
                continue
            if judge is not None:
                judge.take(event)
    return bad_lines


def _is_about_a_line(finding: Finding) -> bool:
    """Return whether a finding is about a line as such, before any rule of its key."""
    return finding.rule.startswith("line-")


def _is_error_at(finding: Finding, bad_lines: set[int]) -> bool:
    """Return whether a finding is an error about a line that the official parser cannot read."""
    return _is_about_a_line(finding) and finding.severity == "error" and finding.line in bad_lines


def _parse_event(text: str, line: int) -> Event:
    """Return the event of a text such as `:::MLLOG {"key": "seed", "value": 1, "metadata": {}, "time_ms": 5}`.

    `line` is the number of its line in the log. The event has no type and no offset in the file, which no official
    rule looks at.

    Raises ValueError for what is no event or no JSON, KeyError for a field that is missing, TypeError for JSON that is
    no table, TypeError or OverflowError for a time that is no number, and RecursionError for JSON nested too deep.
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
