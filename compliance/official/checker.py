"""The official verdict on the events of a log, by mlperf-logging's rule files, as its mlp_compliance.py comes to it."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from compliance.logged_run import is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import VERSION, Check, Rule, RuleFile, benchmarks, keys, load, names, versions
from compliance.rules import FINDINGS_PER_RULE, Collected, Finding
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event
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
        """Keep an event, if a rule of any file is about its key."""
        if event.key not in self._keys:
            return
        if isinstance(event.metadata, dict):  # half the memory: no rule asks for the place in the code
            where = {sys.intern(name): value for name, value in own_metadata(event.metadata).items()}
            event = event._replace(key=sys.intern(event.key), metadata=where)
        self._events.append(event)

    def finish(self) -> None:
        """Apply the rule files to the events that were taken, and collect what violates them.

        The first file is common.yaml. A file can send the log on to further files by what an event states: common.yaml
        to that of the division, such as closed_common.yaml, and this one to that of the benchmark. Where several files
        have rules for a key, those of the last one count for its single events and their number. What the earlier ones
        ask by AT_LEAST_ONE_OR and ATLEAST_ONE_CHECK counts as well.
        """
        files_to_apply = [f"training_{self._version}/common.yaml"]
        applied_files: set[str] = set()
        judged_by_last_file: dict[str, _EventsOfKey] = {}  # by key
        while files_to_apply:
            name = files_to_apply.pop(0)
            applied_files.add(name)
            applied = _AppliedFile(load(name), self._events, self._collected)
            for further_file, event in applied.state.enqueued:
                if further_file not in names() or further_file in applied_files:
                    # Here the official checker ends with an error, or never ends.
                    self._refuse(applied.events_by_key[event.key], event, further_file)
                elif further_file not in files_to_apply:
                    files_to_apply.append(further_file)
            judged_by_last_file |= applied.events_by_key
        for events in judged_by_last_file.values():
            events.collect_failures_and_count(self._collected)

    def _refuse(self, events: "_EventsOfKey", event: Event, rule_file: str) -> None:
        """Collect that the value of `event` sends the log on to a file that is not there, or was applied already.

        An unknown benchmark breaks the rule known-benchmark, and the finding names the rulesets that have it. Any other
        value fails a check of `events`, those of the same key, unless one of them has failed a check already.
        """
        if event.key == schema.SUBMISSION_BENCHMARK.key:
            self._refuse_benchmark(event, rule_file)
        elif not events.failure_count:
            events.fail(event, "value", "a value that has rules of its own", printable(event.value))

    def _refuse_benchmark(self, event: Event, rule_file: str) -> None:
        rulesets = [version for version in versions() if event.value in benchmarks(version)]
        where_known = f"rulesets {', '.join(rulesets)} have it" if rulesets else "no ruleset has it"
        benchmark = printable(event.value, 60)
        actual = f"{event.key} {benchmark}: mlperf-logging {VERSION} has no {printable(rule_file)}; {where_known}"
        self._collected.breach("known-benchmark", event.line, actual)


class _AppliedFile:
    """The rules of one file, applied to the events of a log."""

    def __init__(self, file: RuleFile, events: Sequence[Event], collected: Collected) -> None:
        self.file = file
        self.state = State()
        self.events_by_key = {key: _EventsOfKey(rule, self) for key, rule in file.rules.items()}
        self.traceback: Finding | None = None  # the first event at which the official checker ends with a traceback

        for step in file.begin:
            step(None, self.state)
        if file.evaluation_field:
            events = [*events, *self._joined_metrics(events)]
        for event in events:
            events_of_key = self.events_by_key.get(event.key)
            if events_of_key is not None:
                events_of_key.take(event)
        for events_of_key in self.events_by_key.values():
            events_of_key.collect_missing_event(collected)
        if self.traceback:
            collected.found.append(self.traceback)
        for check in file.end:
            self._check_listed_names(check, collected)

    def _joined_metrics(self, events: Iterable[Event]) -> list[Event]:
        """Return one event for each evaluation of stable_diffusion, which logs each of its metrics in an event.

        Events with `{"metric": "FID", "samples_count": 512}` and `{"metric": "CLIP", "samples_count": 512}` in their
        metadata give one event, whose value is the table `{"samples_count": 512, "FID": 88.1, "CLIP": 0.15}`. One
        ruleset has another name for samples_count: `file.evaluation_field` has the file's. At an event that lacks such
        metadata the official checker ends with a traceback, which is noted.
        """
        event_by_count: dict[Any, Event] = {}  # by samples_count
        count_field = self.file.evaluation_field
        for event in events:
            try:
                if event.key != schema.EVAL_ACCURACY.key or "metric" not in event.metadata:
                    continue
                count = event.metadata[count_field]
                if count not in event_by_count:
                    table = {count_field: count}
                    joined = Event(_AGGREGATED, table, {}, time_ms=0, event_type="", line=event.line, offset=0)
                    event_by_count[count] = joined
                event_by_count[count].value[event.metadata["metric"]] = event.value
            except (KeyError, TypeError):  # no such name, or a value that cannot be one in a table
                wanted = f"{count_field} and a metric in the metadata"
                actual = _shown(event, "metadata")
                self.note_traceback(self.events_by_key[_AGGREGATED].finding("metadata", event.line, wanted, actual))
        return list(event_by_count.values())

    def note_traceback(self, finding: Finding) -> None:
        """Note a finding at which the official checker ends with a traceback; only the first one is kept."""
        if self.traceback is None:
            self.traceback = finding

    def _check_listed_names(self, check: Check, collected: Collected) -> None:
        """Collect that the names which a log's events listed are not those that the rule file wants.

        For instance, each event weights_initialization names a tensor, and all of them together must name the tensors
        of the reference model. The rules have noted the names in the state by now. `check` compares them with the
        wanted ones, and its two sides compute both lists. The finding has the first three names that are missing, and
        the first three that are unknown or listed twice.

        A log without any event of the key, `check.other_key`, is passed over: another finding says that.
        """
        naming_events = self.events_by_key[check.other_key]
        if not naming_events.event_count or holds(check.code, None, self.state):
            return
        compute_listed, compute_wanted = check.sides
        listed = Counter(map(printable, compute_listed(None, self.state)))
        wanted = Counter(map(printable, compute_wanted(None, self.state)))
        missing = list(wanted - listed)[:_NAMES_SHOWN]
        unknown = list(listed - wanted)[:_NAMES_SHOWN]
        actual = f"missing {missing}, unknown or twice {unknown}"
        line = naming_events.first_line or None
        collected.found.append(naming_events.finding("metadata", line, check.words, actual))


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


class _Largest(NamedTuple):
    """The largest value of a key, and its line."""

    value: float
    line: int


class _Objection(NamedTuple):
    """An unmet check: what it wanted of an event, and what the log has instead."""

    wanted: str
    actual: str


class _EventsOfKey:
    """The events of a rule's key in a log, and the rule's objections to them."""

    def __init__(self, rule: Rule, file: _AppliedFile) -> None:
        self.rule = rule
        self._file = file
        self._only_first_is_checked = "submission_" in rule.key
        self.event_count = 0
        self.first_line = 0  # of the first event
        self.first_value: Any = None  # of the first event
        self.has_other_values = False  # whether another event has another value
        self.is_any_check_met = False  # whether an event met the rule's any_check
        self.failure_count = 0
        self._largest: _Largest | None = None
        self._listed_failures: list[Finding] = []  # dropped where a later file has rules for the key

    def take(self, event: Event) -> None:
        """Apply the rule's checks to the next event of the key, and count it.

        The value and the line of the first event are kept, and whether a later one has another value. For the keys
        submission_... only the first event has to meet the checks that each event has to meet for other keys.
        """
        self.event_count += 1
        is_first = self.event_count == 1
        if is_first:
            self.first_value = event.value
            self.first_line = event.line
        elif event.value not in [self.first_value]:  # as the official checker asks: in a list, a NaN is equal to itself
            self.has_other_values = True
        if is_first or not self._only_first_is_checked:
            self._apply_checks(event)
        if self.rule.first_check and is_first:
            self._check(self.rule.first_check, event)
        if self.rule.any_check:
            self._check_any(self.rule.any_check, event)

    def _apply_checks(self, event: Event) -> None:
        """Apply the rule's checks to an event, then run the rule's code, which may change the state for later rules.

        Where that code raises an exception, the event's value is at fault, unless a check has blamed the event already.
        """
        failures_before = self.failure_count
        for check in self.rule.checks:
            self._check(check, event)
        try:
            for step in self.rule.code_after_checks:
                step(event, self._file.state)
        except Exception:  # noqa: BLE001  a log may hold anything; the official checker takes it for a failed check
            if self.failure_count == failures_before:
                wanted = "a value that the later rules can be computed from"
                self.fail(event, "value", wanted, _shown(event, "value"))

    def _check_any(self, check: Check, event: Event) -> None:
        """Note in `is_any_check_met` whether an event meets the check that at least one event of the key must meet.

        The largest value so far is kept in `_largest`, for the message where no event does. Where the check raises an
        exception, as for a text in place of a number, the official checker ends with a traceback, which is noted.
        """
        has_number = is_number(event.value)
        if has_number and (self._largest is None or event.value > self._largest.value):
            self._largest = _Largest(event.value, event.line)
        try:
            if check.code(event, self._file.state):
                self.is_any_check_met = True
        except Exception:  # noqa: BLE001  a log may hold anything
            wanted = check.words
            if check.aspect == "value" and not has_number:
                wanted = "a number"
            self._file.note_traceback(self.finding(check.aspect, event.line, wanted, _shown(event, check.aspect)))

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
        """Return the objection that an event came before this one and must not, or must and did not."""
        if check.must_come_before:
            line = self._file.events_by_key[check.other_key].first_line
            return _Objection(check.words, f"after the {check.other_key} of line {line}")
        return _Objection(check.words, f"no {check.other_key} before it")

    def _objection_to_time(self, check: Check, event: Event) -> _Objection:
        """Return the objection that an event came too long after the first init_start."""
        since, limit = check.sides
        since_ms = since(event, self._file.state)
        limit_ms = limit(event, self._file.state)
        if not limit_ms:
            return _Objection("submission_division before it, for its time limit", "no submission_division")
        wanted = f"under {six_digits(limit_ms / _MINUTE_MS)} min after the first init_start"
        return _Objection(wanted, f"{since_ms / _MINUTE_MS:.1f} min after it")

    def fail(self, event: Event, aspect: str, wanted: str, actual: str) -> None:
        """Note a breach, which counts unless a later file has rules for the key."""
        self.failure_count += 1
        if self.failure_count <= FINDINGS_PER_RULE:
            self._listed_failures.append(self.finding(aspect, event.line, wanted, actual))

    def finding(self, aspect: str, line: int | None, wanted: str, actual: str) -> Finding:
        """Return an official finding about one aspect of the key's events, with what to do about it.

        `aspect` is value, metadata, order, time or count. `wanted` and `actual` say what the rule asks for and what the
        log has; for a count `wanted` names the key itself, as "at least one seed".
        """
        key = self.rule.key
        expected = f"{key}: {wanted}"
        if aspect == "count":
            expected = wanted
        fixes = {
            "value": f"make {key} {wanted}",
            "metadata": f"give {key} this metadata: {wanted.removeprefix('metadata has ')}",
            "order": f"log {key} {wanted}",
            "time": "log submission_* first; do less before init_stop: compile less, or warm up with fewer steps",
            "count": f"log {wanted}",
        }
        return Finding(
            rule=f"{key}.{aspect}",
            line=line,
            expected=expected,
            actual=actual,
            fix=fixes[aspect],
            source=self._file.file.source,
            official=True,
        )

    def collect_missing_event(self, collected: Collected) -> None:
        """Collect that an event which there must be at least once is not there. Later rule files cannot lift this.

        One case is a rule that asks for this key or another one, and neither has an event. The other is a check that at
        least one event must meet, such as to reach the target, and none did.
        """
        rule = self.rule
        alternative = rule.alternative_key
        if alternative and not self.event_count and not self._file.events_by_key[alternative].event_count:
            collected.found.append(self.finding("count", None, rule.count_in_words, "none"))
        if rule.any_check and self.event_count and not self.is_any_check_met:
            actual = "no number"
            line = None
            if self._largest is not None:
                actual = f"the best is {six_digits(self._largest.value)}"
                line = self._largest.line
            finding = self.finding("value", line, f"one event with {rule.any_check.words}", actual)
            collected.found.append(replace(finding, fix="train until the target is reached, then log run_stop"))

    def collect_failures_and_count(self, collected: Collected) -> None:
        """Collect the failed checks of single events, and a wrong number of events.

        The caller asks this of the last rule file that has rules for the key. The first ten failures are collected, and
        how many more there are. Where there must be exactly one event, repeats with the same value only warn, as in the
        official checker.
        """
        rule = self.rule
        collected.found += self._listed_failures
        not_listed = self.failure_count - len(self._listed_failures)
        if not_listed:
            collected.more(self._listed_failures[-1], not_listed)
        is_repeated = rule.required == "EXACTLY_ONE" and self.event_count > 1
        if is_repeated and not self.has_other_values:  # exactly-once is a rule of form, whose breach only warns
            collected.breach("exactly-once", self.first_line, f"{self.event_count} {rule.key}, all with the same value")
        elif is_repeated or self.event_count < rule.least:
            actual = str(self.event_count or "none")
            if self.has_other_values:
                actual = f"{self.event_count}, with different values; the first is {printable(self.first_value)}"
            collected.found.append(self.finding("count", self.first_line or None, rule.count_in_words, actual))
