"""The official verdict on the events of a log, by mlperf-logging's rule files, as its mlp_compliance.py comes to it."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import is_number, own_metadata
from compliance.official.checks import Check, ComparedTimes, KeyOrder, WantedNames, compared_times
from compliance.official.language import State, holds
from compliance.official.metrics import JOINED_METRICS_KEY, join_metrics
from compliance.official.rule_files import VERSION, Rule, RuleFile, benchmarks, keys, load, names, versions
from compliance.official.rule_result import KeyResult, shown
from compliance.rules import Finding, FindingCollector
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event
from runlog.text import printable

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

        If several files have a rule for a key, failures and wrong counts are reported by the last of these files only.
        Other findings count in every file.
        """
        last_result_by_key: dict[str, KeyResult] = {}  # by the last file that has a rule for the key
        for applied in self._apply_files():
            last_result_by_key |= applied.result_by_key
        for key_result in last_result_by_key.values():
            key_result.report_failures(self._collector)
            key_result.report_wrong_count(self._collector)

    def _apply_files(self) -> "list[_AppliedFile]":
        """Apply common.yaml and each file that it leads to. Return the files in the order in which they were applied.

        The code of the rules enqueues further files, depending on the events' values: common.yaml that of the division,
        such as closed_common.yaml, and this one that of the benchmark. An event that enqueues a file which does not
        exist, or was applied already, is reported: the official checker ends with an error there, or never ends.
        """
        applied_files = []
        names_to_apply = [f"training_{self._version}/common.yaml"]
        applied_names: set[str] = set()
        while names_to_apply:
            name = names_to_apply.pop(0)
            applied_names.add(name)
            applied = _AppliedFile(load(name))
            self._collector.findings += applied.apply(self._events)
            applied_files.append(applied)
            for further_name, event in applied.state.enqueued:
                if further_name in names_to_apply:
                    continue
                if further_name in names() and further_name not in applied_names:
                    names_to_apply.append(further_name)
                else:
                    self._refuse_enqueued(applied.result_by_key[event.key], event, further_name)
        return applied_files

    def _refuse_enqueued(self, key_result: KeyResult, event: Event, rule_file: str) -> None:
        """Report an event that enqueued `rule_file`, which does not exist or was applied already.

        - The event names a benchmark: a breach of known-benchmark.
        - Any other event: a failure, which is kept in `key_result`, the result for the event's key. Nothing is kept if
          `key_result` has a failure already.
        """
        if event.key == schema.SUBMISSION_BENCHMARK.key:
            self._refuse_benchmark(event, rule_file)
        elif key_result.failure_count == 0:
            wanted = "a value that has rules of its own"
            key_result.keep_failure(key_result.finding_on_event("value", event.line, wanted, printable(event.value)))

    def _refuse_benchmark(self, event: Event, rule_file: str) -> None:
        """Report a benchmark that has no `rule_file` in this ruleset, with the rulesets that do have it."""
        rulesets = [version for version in versions() if event.value in benchmarks(version)]
        where_known = f"rulesets {', '.join(rulesets)} have it" if rulesets else "no ruleset has it"
        benchmark = printable(event.value, 60)
        actual = f"{event.key} {benchmark}: mlperf-logging {VERSION} has no {printable(rule_file)}; {where_known}"
        self._collector.add_breach("known-benchmark", event.line, actual)


class _Objection(NamedTuple):
    """The objection of a failed check: what it wanted of an event, and what the log has instead."""

    wanted: str
    actual: str


class _AppliedFile:
    """The rules of one file, to be applied to the events of a log by `apply`."""

    def __init__(self, file: RuleFile) -> None:
        self._file = file
        self.state = State()  # which the code of the rules reads and changes
        self.result_by_key = {key: KeyResult(rule, file.source) for key, rule in file.rules.items()}

    def apply(self, events: Sequence[Event]) -> list[Finding]:
        """Apply the rules to all events of a log. Call it once. Return the findings that no later file overrides:

        - a key has no event, and neither has the key that would do as well (AT_LEAST_ONE_OR)
        - no event meets a check that at least one must meet (ATLEAST_ONE_CHECK)
        - the first event at which the official checker ends with a traceback
        - the names that the events list are not those that the file wants (END)

        Failures of single events and wrong numbers of events are in `result_by_key`, because they are reported only if
        no later file has a rule for the key.
        """
        first_crash = self._apply_to_events(events)
        findings: list[Finding | None] = []
        for key_result in self.result_by_key.values():
            findings.append(self._finding_if_alternative_is_missing(key_result))
            findings.append(key_result.finding_if_any_check_is_unmet())
        findings.append(first_crash)
        for wanted_names in self._file.wanted_names:
            findings.append(self._finding_if_names_differ(wanted_names))
        return [finding for finding in findings if finding is not None]

    def _apply_to_events(self, events: Sequence[Event]) -> Finding | None:
        """Apply the rules to one event after the other. What they find is kept in `result_by_key`.

        Return the finding on the first event at which the official checker ends with a traceback; None if it ends at
        none. The rules are applied to the later events all the same.
        """
        for initialise in self._file.begin:
            no_event = None  # the code runs before the first event
            initialise(no_event, self.state)
        first_crash = None
        if self._file.joining_field is not None:
            joined = join_metrics(events, self._file.joining_field)
            events = [*events, *joined.events]
            if joined.first_unusable is not None:
                # The official checker joins the metrics before it applies a rule, so this is its first traceback.
                first_crash = self._finding_on_unusable_metric(joined.first_unusable, self._file.joining_field)
        for event in events:
            if event.key in self.result_by_key:
                crash = self._apply_rule(event)
                if first_crash is None:
                    first_crash = crash
        return first_crash

    def _finding_on_unusable_metric(self, event: Event, count_field: str) -> Finding:
        """Return the finding on an event whose metric cannot be joined with the others of its evaluation."""
        joined_result = self.result_by_key[JOINED_METRICS_KEY]
        wanted = f"{count_field} and a metric in the metadata"
        return joined_result.finding_on_event("metadata", event.line, wanted, shown(event, "metadata"))

    def _finding_if_alternative_is_missing(self, key_result: KeyResult) -> Finding | None:
        """Return a finding if a key has no event, and neither has its alternative key; None if it has no such key."""
        alternative_key = key_result.rule.required.alternative_key
        if alternative_key is None:
            return None
        if key_result.event_count > 0 or self.result_by_key[alternative_key].event_count > 0:
            return None
        return key_result.finding_on_count("none")

    def _finding_if_names_differ(self, wanted: WantedNames) -> Finding | None:
        """Return a finding if the names that the log's events list are not the wanted names, each once; else None.

        For instance, each event weights_initialization names a tensor. Together they must name each tensor of the
        reference model once. The finding has the first three names that are missing, and the first three that are
        unknown or listed twice.

        There is no finding on a log without such events, because another finding reports that.
        """
        key_result = self.result_by_key[wanted.key]
        if key_result.event_count == 0:
            return None
        listed_names = self.state[wanted.state_name]  # a list, which the code of the key's rule has made
        are_all_texts = all(isinstance(name, str) for name in listed_names)  # a log may list anything
        if are_all_texts and sorted(listed_names) == sorted(wanted.names):
            return None
        count_by_listed_name = Counter(map(printable, listed_names))
        count_by_wanted_name = Counter(map(printable, wanted.names))
        missing = list(count_by_wanted_name - count_by_listed_name)[:_MOST_NAMES_SHOWN]
        unknown = list(count_by_listed_name - count_by_wanted_name)[:_MOST_NAMES_SHOWN]
        actual = f"missing {missing}, unknown or twice {unknown}"
        words = "each tensor of the reference model once"
        return key_result.finding_on_event("metadata", key_result.first_line, words, actual)

    # --- one event ---

    def _apply_rule(self, event: Event) -> Finding | None:
        """Apply the rule of an event's key to the event, in this order:

        1. The checks of each event and the rule's code. For keys submission_..., only for the first event.
        2. The check of the first event.
        3. The check that at least one event must meet.

        What was found is kept in the result of the key. If the official checker ends with a traceback at the last of
        these checks, the finding on that is returned; else None.
        """
        key_result = self.result_by_key[event.key]
        rule = key_result.rule
        key_result.count(event)
        is_first = key_result.event_count == 1
        only_first_is_checked = "submission_" in rule.key
        if is_first or not only_first_is_checked:
            self._apply_checks_and_code(key_result, event)
        if is_first and rule.first_check is not None:
            self._keep_failures([rule.first_check], key_result, event)
        if rule.any_check is None:
            return None
        return self._apply_any_check(rule.any_check, key_result, event)

    def _apply_checks_and_code(self, key_result: KeyResult, event: Event) -> None:
        """Apply the checks of each event to one event, then run the rule's code, which may change the state.

        If the code raises an exception, that is a failure of the event's value, unless a check has failed already.
        """
        failures_before = key_result.failure_count
        self._keep_failures(key_result.rule.checks, key_result, event)
        has_failed = key_result.failure_count > failures_before
        has_run = self._run_code(key_result.rule, event)
        if not has_run and not has_failed:
            wanted = "a value that the later rules can be computed from"
            failure = key_result.finding_on_event("value", event.line, wanted, shown(event, "value"))
            key_result.keep_failure(failure)

    def _run_code(self, rule: Rule, event: Event) -> bool:
        """Run the code of a rule for an event. Return whether it ran to its end, without an exception."""
        try:
            for step in rule.code_after_checks:
                step(event, self.state)
        except Exception:  # noqa: BLE001  a log may hold anything; the official checker takes it for a failed check
            return False
        return True

    def _apply_any_check(self, check: Check, key_result: KeyResult, event: Event) -> Finding | None:
        """Apply the check that at least one event of a key must meet, and keep in `key_result` if this event does.

        A check raises an exception if an event has a text where it wants a number, for instance. The official checker
        then ends with a traceback: the finding on that is returned. None if the check could be applied.
        """
        key_result.keep_if_best(event, check)  # which is shown if no event meets the check
        try:
            is_met = bool(check.is_met(event, self.state))
        except Exception:  # noqa: BLE001  a log may hold anything
            wanted = check.words
            if check.aspect == "value" and not is_number(event.value):
                wanted = "a number"  # the check failed because it compares the value with a number
            return key_result.finding_on_event(check.aspect, event.line, wanted, shown(event, check.aspect))
        if is_met:
            key_result.is_any_check_met = True
        return None

    # --- failed checks ---

    def _keep_failures(self, checks: Sequence[Check], key_result: KeyResult, event: Event) -> None:
        """Keep a failure in `key_result` for each check that an event does not meet."""
        for check in checks:
            if not holds(check.is_met, event, self.state):
                objection = self._objection(check, event)
                failure = key_result.finding_on_event(check.aspect, event.line, objection.wanted, objection.actual)
                key_result.keep_failure(failure)

    def _objection(self, check: Check, event: Event) -> _Objection:
        """Return what is wrong with an event that does not meet a check."""
        if check.order is not None:
            return self._objection_to_order(check.order)
        if check.aspect == "time":
            return _objection_to_time(compared_times(check, event, self.state))
        return _Objection(check.words, shown(event, check.aspect))

    def _objection_to_order(self, order: KeyOrder) -> _Objection:
        """Return what is wrong with the place of an event among the events of another key.

        - It must come before all of them: one came before it.
        - It must come after one of them: none came before it.
        """
        if order.must_come_first:
            line_of_other = self.result_by_key[order.other_key].first_line
            return _Objection(order.in_words, f"after the {order.other_key} of line {line_of_other}")
        return _Objection(order.in_words, f"no {order.other_key} before it")


def _objection_to_time(times: ComparedTimes) -> _Objection:
    """Return what is wrong with an event that has failed a check of its time.

    - The limit is 0: no submission_division came before the event. The division sets the limit, which is 0 before.
    - Otherwise: too much time has passed since the first init_start.
    """
    if times.limit_ms == 0:
        return _Objection("submission_division before it, for its time limit", "no submission_division")
    limit_min = six_digits(times.limit_ms / _MINUTE_MS)
    passed_min = times.passed_ms / _MINUTE_MS
    return _Objection(f"under {limit_min} min after the first init_start", f"{passed_min:.1f} min after it")
