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
from compliance.rules import FINDINGS_PER_RULE, Finding, FindingCollector
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event
from runlog.text import as_json, printable, visible

_JOINED_METRICS_KEY = "aggregated_eval_accuracy"  # under which the rules check the joined metrics of an evaluation
_MINUTE_MS = 60_000
_MOST_NAMES_SHOWN = 3  # of those that are missing, and of those that are unknown


class Judge:
    """Judges one log by the official rules of `version`: `take` each event, then `finish` reports what breaks them."""

    def __init__(self, version: str, collector: FindingCollector) -> None:
        self._version = version
        self._collector = collector
        self._keys = keys(version)
        self._events: list[Event] = []

    def take(self, event: Event) -> None:
        """Keep an event if a rule of any file is about its key."""
        if event.key not in self._keys:
            return
        if isinstance(event.metadata, dict):  # half the memory: no rule asks for the place in the code
            metadata = {sys.intern(name): value for name, value in own_metadata(event.metadata).items()}
            event = event._replace(key=sys.intern(event.key), metadata=metadata)
        self._events.append(event)

    def finish(self) -> None:
        """Apply the rule files to the events that were taken, and report what violates them.

        The first file is common.yaml. The code of its rules enqueues further files, depending on the events' values:
        the file of the division, such as closed_common.yaml, which enqueues the file of the benchmark.

        If several files have a rule for a key, failures and wrong counts are reported by the last of these files only.
        Other findings count in every file: `_AppliedFile.apply` reports them at once.
        """
        names_to_apply = [f"training_{self._version}/common.yaml"]
        applied_names: set[str] = set()
        last_result_by_key: dict[str, _KeyResult] = {}  # by the last file that has a rule for the key
        while names_to_apply:
            name = names_to_apply.pop(0)
            applied_names.add(name)
            applied = _AppliedFile(load(name))
            applied.apply(self._events, self._collector)
            for further_name, event in applied.state.enqueued:
                if further_name not in names() or further_name in applied_names:
                    # Here the official checker ends with an error, or never ends.
                    self._refuse_enqueued(applied.result_by_key[event.key], event, further_name)
                elif further_name not in names_to_apply:
                    names_to_apply.append(further_name)
            last_result_by_key |= applied.result_by_key  # replaces the results of earlier files for these keys
        for key_result in last_result_by_key.values():
            key_result.report_failures(self._collector)
            key_result.report_wrong_count(self._collector)

    def _refuse_enqueued(self, key_result: "_KeyResult", event: Event, rule_file: str) -> None:
        """Report an event that enqueued `rule_file`, which does not exist or was applied already.

        - The event names a benchmark: a breach of known-benchmark.
        - Any other event: a failure, which is kept in `key_result`, the result for the event's key. Nothing is kept if
          `key_result` has a failure already.
        """
        if event.key == schema.SUBMISSION_BENCHMARK.key:
            self._refuse_benchmark(event, rule_file)
        elif not key_result.failure_count:
            key_result.fail(event, "value", "a value that has rules of its own", printable(event.value))

    def _refuse_benchmark(self, event: Event, rule_file: str) -> None:
        """Report a benchmark that has no `rule_file` in this ruleset, with the rulesets that do have it."""
        rulesets = [version for version in versions() if event.value in benchmarks(version)]
        where_known = f"rulesets {', '.join(rulesets)} have it" if rulesets else "no ruleset has it"
        benchmark = printable(event.value, 60)
        actual = f"{event.key} {benchmark}: mlperf-logging {VERSION} has no {printable(rule_file)}; {where_known}"
        self._collector.add_breach("known-benchmark", event.line, actual)


class _AppliedFile:
    """The rules of one file, to be applied to the events of a log by `apply`."""

    def __init__(self, file: RuleFile) -> None:
        self.file = file
        self.state = State()  # which the code of the rules reads and changes
        self.result_by_key = {key: _KeyResult(rule, self) for key, rule in file.rules.items()}
        self._first_crash: Finding | None = None  # where the official checker ends with a traceback

    def apply(self, events: Sequence[Event], collector: FindingCollector) -> None:
        """Apply the rules to all events of a log. Call it once.

        These are kept in `result_by_key` for the caller, because a later file with a rule for the key overrides them:

        - failures of single events
        - wrong numbers of events

        These are added to `collector` at once, because no later file overrides them:

        - keys without an event, if another key's event would do as well (AT_LEAST_ONE_OR)
        - checks that no event met, although at least one must (ATLEAST_ONE_CHECK)
        - the first event at which the official checker ends with a traceback
        - wrong lists of names, which the checks after the last event compare (END)
        """
        for initialise in self.file.begin:
            initialise(None, self.state)  # None: there is no event yet
        if self.file.evaluation_field:  # the rules of stable_diffusion look at all metrics of an evaluation together
            events = [*events, *self._joined_metrics(events)]
        for event in events:
            key_result = self.result_by_key.get(event.key)
            if key_result is not None:
                key_result.take(event)  # may set self._first_crash

        for key_result in self.result_by_key.values():
            key_result.report_missing_alternatives(collector)
            key_result.report_check_met_by_none(collector)
        if self._first_crash:
            collector.findings.append(self._first_crash)
        for check in self.file.end:
            self._check_listed_names(check, collector)

    def _joined_metrics(self, events: Iterable[Event]) -> list[Event]:
        """Return one event for each evaluation of stable_diffusion, which logs each metric in an event of its own:

        88.1 with metadata {"metric": "FID", "samples_count": 512}
        0.15 with metadata {"metric": "CLIP", "samples_count": 512}
        -> {"samples_count": 512, "FID": 88.1, "CLIP": 0.15}

        `self.file.evaluation_field` names the field that joins the events: samples_count, or step_num in some rulesets.
        The metric of an event without a usable value of this field is left out. The first such event becomes a finding,
        because the official checker ends with a traceback there.
        """
        joined_by_count: dict[Any, Event] = {}  # by samples_count
        for event in events:
            try:
                if event.key == schema.EVAL_ACCURACY.key and "metric" in event.metadata:
                    self._join_metric(event, joined_by_count)
            except (KeyError, TypeError):  # no samples_count, or an unhashable samples_count or metric
                # Here the official checker ends with a traceback.
                wanted = f"{self.file.evaluation_field} and a metric in the metadata"
                actual = _shown(event, "metadata")
                joined_result = self.result_by_key[_JOINED_METRICS_KEY]
                self.keep_first_crash(joined_result.finding("metadata", event.line, wanted, actual))
        return list(joined_by_count.values())

    def _join_metric(self, event: Event, joined_by_count: dict[Any, Event]) -> None:
        """Add the metric of an event to the joined event of its evaluation, which is made if it does not exist.

        A log may write each metric of an evaluation as an event of its own. Events with the same samples_count are of
        the same evaluation, so `joined_by_count` has one joined event for each samples_count.

        Raises KeyError or TypeError if the event's metadata does not say which evaluation it is of.
        """
        count_field = self.file.evaluation_field  # samples_count, or its name in another ruleset
        count = event.metadata[count_field]  # of the samples trained so far
        if count not in joined_by_count:
            value = {count_field: count}
            joined = Event(_JOINED_METRICS_KEY, value, {}, time_ms=0, event_type="", line=event.line, offset=0)
            joined_by_count[count] = joined
        joined_by_count[count].value[event.metadata["metric"]] = event.value

    def keep_first_crash(self, finding: Finding) -> None:
        """Keep a finding about an event at which the official checker ends with a traceback, if it is the first one."""
        if self._first_crash is None:
            self._first_crash = finding

    def _check_listed_names(self, check: Check, collector: FindingCollector) -> None:
        """Report a breach if the names that a log's events list are not those that the rule file wants.

        For instance, each event weights_initialization names a tensor. Together they must name each tensor of the
        reference model once. The rules have collected the names in the state, and `check` is a comparison:

            sorted(s['initialized_tensors']) == [...]  # the listed names, and the wanted ones

        `check.other_key` is the key of the events that list the names. Nothing is checked in a log without these
        events, because another finding reports that. The finding has the first three names that are missing, and the
        first three that are unknown or listed twice.
        """
        result_of_naming_key = self.result_by_key[check.other_key]  # of the events that list the names
        if not result_of_naming_key.event_count:  # another finding reports that
            return
        no_event = None  # the check looks at the state, not at an event
        if holds(check.code, no_event, self.state):
            return
        compute_listed, compute_wanted = check.sides  # functions that compute the left and the right side of ==
        listed = Counter(map(printable, compute_listed(no_event, self.state)))
        wanted = Counter(map(printable, compute_wanted(no_event, self.state)))
        missing = list(wanted - listed)[:_MOST_NAMES_SHOWN]
        unknown = list(listed - wanted)[:_MOST_NAMES_SHOWN]
        actual = f"missing {missing}, unknown or twice {unknown}"
        line = result_of_naming_key.first_line or None
        collector.findings.append(result_of_naming_key.finding("metadata", line, check.words, actual))


def _shown(event: Event, aspect: str) -> str:
    """Return in words the part of an event that a check of `aspect` looks at: its metadata, else its value."""
    if aspect == "metadata":
        metadata = event.metadata
        if isinstance(metadata, dict):
            metadata = own_metadata(metadata)
        return f"metadata {printable(metadata)}"
    is_text_with_letters = isinstance(event.value, str) and re.search("[A-Za-z]", event.value)
    if is_text_with_letters:
        return printable(event.value)
    return visible(as_json(event.value), 160)  # in which the text "0.33" keeps its quotes


class _Largest(NamedTuple):
    """The largest value of a key, and its line."""

    value: float
    line: int


class _Objection(NamedTuple):
    """The objection of a failed check: what it wanted of an event, and what the log has instead."""

    wanted: str
    actual: str


class _KeyResult:
    """The result of applying the rule of one key to the log's events: how many there are, and what failed.

    `finding` and `fail` make findings about the key.
    """

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
        self._listed_failures: list[Finding] = []  # dropped if a later file has rules for the key

    def take(self, event: Event) -> None:
        """Count the next event of the key, and apply the rule to it in this order:

        1. Keep the line and the value of the first event, and whether a later event has another value.
        2. Apply the checks of each event, then run the rule's code. For keys submission_..., only for the first event.
        3. Apply `first_check` if the event is the first one.
        4. Note whether the event meets `any_check`, which at least one event must meet.
        """
        self.event_count += 1
        is_first = self.event_count == 1
        if is_first:
            self.first_value = event.value
            self.first_line = event.line
        elif event.value not in [self.first_value]:  # `in` a list, like the official checker: a NaN is equal to itself
            self.has_other_values = True
        if is_first or not self._only_first_is_checked:
            self._apply_checks(event)
        if self.rule.first_check and is_first:
            self._check(self.rule.first_check, event)
        if self.rule.any_check:
            self._note_if_any_check_is_met(self.rule.any_check, event)

    def _apply_checks(self, event: Event) -> None:
        """Apply the checks of each event to one event, then run the rule's code, which may change the state.

        If that code raises an exception, the event's value is reported, unless a check has failed for it already.
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

    def _note_if_any_check_is_met(self, check: Check, event: Event) -> None:
        """Remember in `is_any_check_met` that an event meets `check`, the rule's check for at least one event.

        The largest value so far is kept, too. It is shown if no event meets the check.

        If the event has a text where the check wants a number, for instance, the check raises an exception. The
        official checker then ends with a traceback. The first such event of the file is kept as a finding.
        """
        is_value_number = is_number(event.value)
        if is_value_number and (self._largest is None or event.value > self._largest.value):
            self._largest = _Largest(event.value, event.line)
        try:
            if check.code(event, self._file.state):
                self.is_any_check_met = True
        except Exception:  # noqa: BLE001  a log may hold anything; the official checker ends with a traceback here
            wanted = check.words
            if check.aspect == "value" and not is_value_number:
                wanted = "a number"  # the check failed because it compares the value with a number
            actual = _shown(event, check.aspect)
            self._file.keep_first_crash(self.finding(check.aspect, event.line, wanted, actual))

    def _check(self, check: Check, event: Event) -> None:
        """Apply one check to an event, and keep a failure if the event does not meet it."""
        if holds(check.code, event, self._file.state):
            return
        if check.aspect == "order":
            objection = self._objection_to_order(check)
        elif check.aspect == "time":
            objection = self._objection_to_time(check, event)
        else:
            objection = _Objection(check.words, _shown(event, check.aspect))
        self.fail(event, check.aspect, objection.wanted, objection.actual)

    def _objection_to_order(self, check: Check) -> _Objection:
        """Return what is wrong with the order of two keys, this rule's key and `check.other_key`.

        - This key's event must come first (`check.must_come_first`): an event of the other key came before it.
        - Otherwise: no event of the other key came before it.
        """
        if check.must_come_first:
            line = self._file.result_by_key[check.other_key].first_line
            return _Objection(check.words, f"after the {check.other_key} of line {line}")
        return _Objection(check.words, f"no {check.other_key} before it")

    def _objection_to_time(self, check: Check, event: Event) -> _Objection:
        """Return in words what is wrong with an event that has failed a time check.

        - A submission_division came before the event: the event came too long after the first init_start.
        - None came: the division is missing. The limit is that of the division, and 0 without one.
        """
        compute_passed, compute_limit = check.sides  # functions that compute the time passed and its limit
        passed_ms = compute_passed(event, self._file.state)
        limit_ms = compute_limit(event, self._file.state)
        if not limit_ms:
            return _Objection("submission_division before it, for its time limit", "no submission_division")
        wanted = f"under {six_digits(limit_ms / _MINUTE_MS)} min after the first init_start"
        return _Objection(wanted, f"{passed_ms / _MINUTE_MS:.1f} min after it")

    def fail(self, event: Event, aspect: str, wanted: str, actual: str) -> None:
        """Keep a failure of an event. It is reported only if no later rule file has a rule for the key."""
        self.failure_count += 1
        if self.failure_count <= FINDINGS_PER_RULE:
            self._listed_failures.append(self.finding(aspect, event.line, wanted, actual))

    def finding(self, aspect: str, line: int | None, wanted: str, actual: str) -> Finding:
        """Return an official finding about one aspect of the key's events, with what to do about it.

        `aspect` is value, metadata, order, time or count. `wanted` says what the rule asks for. For a count, `wanted`
        names the key itself, such as "at least one seed".
        """
        key = self.rule.key
        expected = wanted if aspect == "count" else f"{key}: {wanted}"
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

    def report_missing_alternatives(self, collector: FindingCollector) -> None:
        """Report that the log has neither an event of this key nor of its alternative key, if the rule asks for one."""
        alternative = self.rule.alternative_key
        if not alternative:
            return
        has_alternative = self._file.result_by_key[alternative].event_count > 0
        if not self.event_count and not has_alternative:
            collector.findings.append(self.finding("count", None, self.rule.count_in_words, "none"))

    def report_check_met_by_none(self, collector: FindingCollector) -> None:
        """Add a finding if the rule has a check for at least one event, and none of the key's events met it.

        Such a check asks whether the target was reached, for instance. The finding shows the largest value as the best,
        as it is for an accuracy, and its line. If no event has a number, the finding says so instead. Nothing is added
        if the key has no events.
        """
        check = self.rule.any_check
        if check is None or not self.event_count or self.is_any_check_met:
            return
        actual = "no number"
        line = None
        if self._largest is not None:
            actual = f"the best is {six_digits(self._largest.value)}"
            line = self._largest.line
        finding = self.finding("value", line, f"one event with {check.words}", actual)
        collector.findings.append(replace(finding, fix="train until the target is reached, then log run_stop"))

    def report_failures(self, collector: FindingCollector) -> None:
        """Report the first FINDINGS_PER_RULE failures of single events, and how many more there are."""
        collector.findings += self._listed_failures
        unlisted_count = self.failure_count - len(self._listed_failures)
        if unlisted_count:
            collector.add_unlisted(self._listed_failures[-1], unlisted_count)

    def report_wrong_count(self, collector: FindingCollector) -> None:
        """Report a wrong number of events. There are three cases:

        - Exactly one is required, and it is repeated with the same value: a warning, as in the official checker.
        - Exactly one is required, and it is repeated with another value: an error.
        - There are fewer events than required: an error.
        """
        rule = self.rule
        count = self.event_count
        is_repeated = rule.required == "EXACTLY_ONE" and count > 1
        if is_repeated and not self.has_other_values:  # exactly-once is a rule of form, whose breach only warns
            actual = f"{count} {rule.key}, all with the same value"
            collector.add_breach("exactly-once", self.first_line, actual)
        elif is_repeated or count < rule.least:
            actual = str(count or "none")
            if self.has_other_values:
                actual = f"{count}, with different values; the first is {printable(self.first_value)}"
            collector.findings.append(self.finding("count", self.first_line or None, rule.count_in_words, actual))
