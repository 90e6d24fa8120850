"""The official verdict on the events of a log, by mlperf-logging's rule files, as its mlp_compliance.py comes to it."""

import sys
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import is_number, own_metadata
from compliance.official.checks import Check, ComparedTimes, KeyOrder, compared_times
from compliance.official.language import Enqueued, State, holds
from compliance.official.metrics import JOINED_METRICS_KEY, JoinedMetrics, join_metrics
from compliance.official.rounds import is_of_hpc
from compliance.official.rule_files import VERSION, Rule, RuleFile, benchmarks, keys, load, names, versions
from compliance.official.rule_result import KeyResult, shown
from compliance.rules import Finding, FindingCollector
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event
from runlog.text import printable

_MINUTE_MS = 60_000
_MAX_NAMES_SHOWN = 3  # of those that are missing, and of those that are unknown


class Judge:
    """Judges one log by the official rules of `version`: `take` each event, then `finish` reports what breaks them."""

    def __init__(self, version: str, collector: FindingCollector) -> None:
        self._version = version
        self._collector = collector
        self._keys = keys(version)
        self._events: list[Event] = []
        self.target_reached_ms: float | None = None  # after `finish`: when an accuracy first reached the target

    def take(self, event: Event) -> None:
        """Keep a reduced copy of an event until `finish`, if a rule of any file is about its key.

        The copy takes half the memory. Its metadata lacks `file` and `lineno`, the place in the code, which no rule
        asks for. Its names are shared with the other events. An event whose metadata is not a dict is kept as it is.

        Args:
            event: The next event of the log.
        """
        if event.key not in self._keys:
            return
        if isinstance(event.metadata, dict):  # a log may hold anything
            metadata = {sys.intern(name): value for name, value in own_metadata(event.metadata).items()}
            event = event._replace(key=sys.intern(event.key), metadata=metadata)
        self._events.append(event)

    def finish(self) -> None:
        """Apply the rule files to the events that were taken, report all findings, and set `target_reached_ms`."""
        last_result_by_key: dict[str, KeyResult] = {}
        for file_result in self._apply_files():
            self._collector.findings += file_result.findings  # on the log as a whole: those of each file count
            last_result_by_key |= file_result.result_by_key  # a later file's result for a key replaces an earlier one
        for key_result in last_result_by_key.values():
            key_result.report_failures(self._collector)
            key_result.report_wrong_count(self._collector)
        result_of_accuracy = last_result_by_key.get(schema.EVAL_ACCURACY.key)
        if result_of_accuracy is not None:
            self.target_reached_ms = result_of_accuracy.target_reached_ms

    def _apply_files(self) -> "list[_FileResult]":
        """Apply common.yaml, and then each rule file to which an event leads, once.

        For instance, the division "closed" leads to closed_common.yaml, and the benchmark "resnet" from there to
        closed_resnet.yaml: the code of a rule makes the name of the file from the value of the event.

        Returns:
            The result of each file, in the order of application.
        """
        result_by_file: dict[str, _FileResult] = {}
        queue = deque([f"training_{self._version}/common.yaml"])
        while queue:
            file_name = queue.popleft()
            file_result = _FileJudge(load(file_name)).judge(self._events)
            result_by_file[file_name] = file_result
            for enqueued in file_result.enqueued:
                is_unknown = enqueued.file not in names()
                was_applied = enqueued.file in result_by_file  # such as closed_common.yaml, by the benchmark "common"
                is_in_queue = enqueued.file in queue
                if is_unknown or was_applied:
                    result_of_event_key = file_result.result_by_key[enqueued.event.key]
                    self._report_refused_file(enqueued, result_of_event_key)
                elif not is_in_queue:
                    queue.append(enqueued.file)
        return list(result_by_file.values())

    def _report_refused_file(self, enqueued: Enqueued, key_result: KeyResult) -> None:
        """Report an event whose value leads to a rule file that does not exist, or that was applied already.

        For instance, the division "ajar" leads to training_4.0.0/ajar_common.yaml, which does not exist.

        Args:
            enqueued: The name of the rule file, which is not applied, and the event whose value gave the name.
            key_result: What the rule of the event's key found. It gets the failure, unless the event states the
                benchmark, which has a finding of its own.
        """
        event = enqueued.event
        if event.key == schema.SUBMISSION_BENCHMARK.key:
            self._refuse_benchmark(event, enqueued.file)
            return
        is_reported_already = key_result.failure_count > 0  # such as by the check that the division is a known one
        if is_reported_already:
            return
        # There is no such file, or it was applied already, and then it is not this value's own.
        wanted = "a value that has rules of its own"
        # `finding_on_event` makes a finding such as: submission_division: a value that has rules of its own.
        key_result.keep_failure(key_result.finding_on_event("value", event.line, wanted, printable(event.value)))

    def _refuse_benchmark(self, event: Event, rule_file: str) -> None:
        """Report a benchmark that has no rule file of its own, as a breach of the rule known-benchmark.

        Args:
            event: The event that states the benchmark.
            rule_file: The file to which the benchmark leads, such as training_4.0.0/closed_resnet.yaml for resnet.
        """
        benchmark = printable(event.value, 60)
        does_exist = rule_file in names()
        if does_exist:  # the benchmark "common" leads to closed_common.yaml, the rules for all closed runs
            why = f"{printable(rule_file)} has no rules of a benchmark"
        else:
            why = f"mlperf-logging {VERSION} has no {printable(rule_file)}; {_where_known(event.value)}"
        self._collector.add_breach("known-benchmark", event.line, f"{event.key} {benchmark}: {why}")


def _where_known(benchmark: str) -> str:
    """Return in words which rules have a benchmark, such as "rulesets 0.6.0, 0.7.0 have it"."""
    rulesets = [version for version in versions() if benchmark in benchmarks(version)]
    if rulesets:
        return f"rulesets {', '.join(rulesets)} have it"
    if is_of_hpc(benchmark):
        return "it is of MLPerf HPC, whose rules are not read"
    return "no ruleset has it"


class _Objection(NamedTuple):
    """The objection of a failed check: what it wanted of an event, and what the log has instead."""

    wanted: str
    actual: str


class _FileResult(NamedTuple):
    """The result of applying the rules of one file to the events of a log.

    - `findings` are on the log as a whole, such as that no accuracy reaches the target. They count, whatever other
      files find.
    - `result_by_key` has the failures of single events and the numbers of events. They count only if no later file has
      a rule for the key, as in the official checker.
    - `enqueued` are the files that the events lead to.
    """

    findings: list[Finding]
    result_by_key: dict[str, KeyResult]
    enqueued: list[Enqueued]


class _FileJudge:
    """Judges the events of one log by the rules of one file: make one for each file, and call `judge` once."""

    def __init__(self, file: RuleFile) -> None:
        self._file = file
        self._state = State()  # which the code of the rules reads and changes
        self._result_by_key = {key: KeyResult(rule, file.source) for key, rule in file.rules.items()}
        self._first_crash: Finding | None = None  # on the first event at which the official checker ends by a traceback

    def judge(self, events: Sequence[Event]) -> _FileResult:
        """Apply the rules of the file to the events of a log.

        Args:
            events: The events, in the order of the log.

        Returns:
            What was found, and the rule files to which the events lead.
        """
        for set_first_values in self._file.begin:
            set_first_values(None, self._state)  # None: no event has come yet
        joined = _joined_metrics(events, self._file.joining_field)
        if joined.first_unusable is not None:
            # The official checker crashes at this event, before it applies any rule of the file.
            self._first_crash = self._finding_on_unusable_metric(joined.first_unusable)
        for event in [*events, *joined.events]:
            has_rule = event.key in self._result_by_key
            if has_rule:
                # The failures go to the key's result. The rule's code may change `_state` and enqueue a file there.
                self._apply_rule(event)
        return _FileResult(
            findings=self._findings_on_all_events(),
            result_by_key=self._result_by_key,
            enqueued=self._state.enqueued,
        )

    # --- all events ---

    def _findings_on_all_events(self) -> list[Finding]:
        """Return the findings on the log as a whole, such as that no accuracy reaches the target.

        Call it after the rules have been applied to the last event.
        """
        findings: list[Finding | None] = []  # None: nothing is wrong
        for key_result in self._result_by_key.values():
            findings.append(self._finding_if_alternative_is_missing(key_result))
            findings.append(key_result.finding_if_no_event_meets_check())
        findings.append(self._first_crash)
        for wanted in self._file.wanted_names:
            key_result = self._result_by_key[wanted.key]
            if key_result.event_count > 0:
                # The code of the key's rule has added a name to this list at each event that states one.
                listed_names = self._state[wanted.state_name]
                findings.append(_finding_if_tensors_differ(key_result, listed_names, wanted.names))
        return [finding for finding in findings if finding is not None]

    def _finding_on_unusable_metric(self, event: Event) -> Finding:
        """Return the finding on an event whose metric cannot be joined with the others of its evaluation.

        Args:
            event: The event, an eval_accuracy of stable_diffusion.
        """
        joined_result = self._result_by_key[JOINED_METRICS_KEY]
        wanted = f"{self._file.joining_field} and a metric in the metadata"  # as "samples_count and a metric ..."
        return joined_result.finding_on_event("metadata", event.line, wanted, shown(event, "metadata"))

    def _finding_if_alternative_is_missing(self, key_result: KeyResult) -> Finding | None:
        """Return a finding if neither a key nor its alternative has an event; one of them would do.

        Args:
            key_result: The result of the key, with its rule and its number of events.

        Returns:
            The finding. None if one of them has an event, or if the rule names no alternative key.
        """
        alternative_key = key_result.rule.required.alternative_key
        if alternative_key is None:
            return None
        events_of_both = key_result.event_count + self._result_by_key[alternative_key].event_count
        if events_of_both > 0:
            return None
        return key_result.finding_on_count("none")

    # --- one event ---

    def _apply_rule(self, event: Event) -> None:
        """Count an event, and apply the rule of its key to it. Failures go to the key's result.

        Args:
            event: An event whose key has a rule in this file.
        """
        key_result = self._result_by_key[event.key]
        rule = key_result.rule
        key_result.count(event)
        is_first = key_result.event_count == 1
        # As in the official checker, a second submission_division, for instance, is not checked like the first one.
        is_repeated_statement = "submission_" in event.key and not is_first
        if not is_repeated_statement:
            self._apply_checks_and_code(key_result, event)
        if is_first and rule.first_check is not None:
            self._apply_first_check(rule.first_check, key_result, event)
        if rule.at_least_one_check is not None:
            self._apply_at_least_one_check(rule.at_least_one_check, key_result, event)

    def _apply_first_check(self, check: Check, key_result: KeyResult, event: Event) -> None:
        """Keep a failure if the first event of a key does not meet the check for it.

        Args:
            check: The check for the first event.
            key_result: The result of the event's key, which keeps the failure.
            event: The first event of the key.
        """
        if not self._is_met(check, event):
            self._keep_failure(check, key_result, event)

    def _apply_checks_and_code(self, key_result: KeyResult, event: Event) -> None:
        """Check an event by the rule of its key, then run the code of the rule. Failures are kept in `key_result`.

        Args:
            key_result: The result of the event's key, with the rule of the key.
            event: The event.
        """
        rule = key_result.rule
        unmet_checks = [check for check in rule.checks if not self._is_met(check, event)]
        for check in unmet_checks:
            self._keep_failure(check, key_result, event)
        # The code runs even after a failure: it changes the state, which the checks of later events read.
        has_code_failed = not self._run_code(rule, event)
        if has_code_failed and not unmet_checks:
            # The code could not compute, for instance, a limit for later events from a value that is a text.
            wanted = "a value that the later rules can be computed from"
            failure = key_result.finding_on_event("value", event.line, wanted, shown(event, "value"))
            key_result.keep_failure(failure)

    def _run_code(self, rule: Rule, event: Event) -> bool:
        """Run the code of a rule for an event. Return whether it ran to its end, without an exception.

        Args:
            rule: The rule. Its code changes the state that later checks read.
            event: The event.
        """
        try:
            for step in rule.code_after_checks:
                step(event, self._state)
        except Exception:  # noqa: BLE001  a log may hold anything; the official checker takes it for a failed check
            return False
        return True

    def _apply_at_least_one_check(self, check: Check, key_result: KeyResult, event: Event) -> None:
        """Note in `key_result` whether an event meets the check that at least one event of its key has to meet.

        Args:
            check: The check, such as that an accuracy reaches the target.
            key_result: The result of the event's key.
            event: The event.
        """
        key_result.keep_if_best(event, check)  # a finding shows the best value if no event meets the check
        try:
            is_met = bool(check.is_met(event, self._state))
        except Exception:  # noqa: BLE001  a log may hold anything, such as a text where a number is compared
            if self._first_crash is None:  # the official checker ends at its first crash
                self._first_crash = _finding_on_crash(check, key_result, event)
            return
        if is_met:
            key_result.keep_time_of_met_check(event)

    # --- failed checks ---

    def _is_met(self, check: Check, event: Event) -> bool:
        """Return whether an event meets a check; False if the check raises an exception, as in the official checker.

        Args:
            check: The check.
            event: The event.
        """
        return holds(check.is_met, event, self._state)

    def _keep_failure(self, check: Check, key_result: KeyResult, event: Event) -> None:
        """Keep that an event does not meet a check.

        Args:
            check: The check.
            key_result: The result of the event's key, which keeps the failure.
            event: The event.
        """
        objection = self._objection(check, event)
        failure = key_result.finding_on_event(check.aspect, event.line, objection.wanted, objection.actual)
        key_result.keep_failure(failure)

    def _objection(self, check: Check, event: Event) -> _Objection:
        """Return what a check wanted of an event that does not meet it, and what the log has instead.

        Args:
            check: The check that is not met.
            event: The event.
        """
        if check.order is not None:  # the event must stand before or after the events of another key
            return self._objection_to_order(check.order)
        if check.aspect == "time":  # the event must come soon enough after the first init_start
            return _objection_to_time(compared_times(check, event, self._state))
        return _Objection(check.words, shown(event, check.aspect))

    def _objection_to_order(self, order: KeyOrder) -> _Objection:
        """Return where an event must stand among the events of another key, and what the log has instead.

        Args:
            order: The place that the event should have, but has not.
        """
        if order.must_precede_other:
            line_of_other = self._result_by_key[order.other_key].first_line
            return _Objection(order.in_words, f"after the {order.other_key} of line {line_of_other}")
        return _Objection(order.in_words, f"no {order.other_key} before it")


def _joined_metrics(events: Sequence[Event], count_field: str | None) -> JoinedMetrics:
    """Return a new event for each evaluation of stable_diffusion, with all metrics of the evaluation.

    stable_diffusion logs each metric of an evaluation, such as FID or CLIP, in an event of its own. Its rule files look
    at the metrics together, in events that the official checker makes.

    Args:
        events: All events of the log, in their order.
        count_field: The field of metadata by which the metrics of an evaluation are joined, such as "samples_count";
            None in the rule files of all other benchmarks.

    Returns:
        The new events, and the first event whose metric cannot be joined; neither for another benchmark.
    """
    if count_field is None:
        return JoinedMetrics(events=[], first_unusable=None)
    return join_metrics(events, count_field)


def _finding_if_tensors_differ(
    key_result: KeyResult, listed_names: Sequence[object], wanted_names: Sequence[str]
) -> Finding | None:
    """Return a finding if the log does not name each tensor of the reference model exactly once.

    Each event weights_initialization names one tensor.

    Args:
        key_result: The result of the key weights_initialization, which has one event or more.
        listed_names: The names that these events state, with values of any type.
        wanted_names: The names of the tensors.

    Returns:
        The finding; None if the names are right, in any order.
    """
    are_all_texts = all(isinstance(name, str) for name in listed_names)  # a log may list anything
    is_each_listed_once = are_all_texts and sorted(map(str, listed_names)) == sorted(wanted_names)
    if is_each_listed_once:
        return None
    actual = _difference_in_words(listed_names, wanted_names)
    words = "each tensor of the reference model once"
    return key_result.finding_on_event("metadata", key_result.first_line, words, actual)


def _difference_in_words(listed_names: Sequence[object], wanted_names: Sequence[str]) -> str:
    """Return in words which names are listed less often than wanted, and which are listed more often.

    Args:
        listed_names: The names that a log lists, with values of any type.
        wanted_names: The names that it should list, each once.
    """
    listed = Counter(map(printable, listed_names))  # as texts, because a value such as a list cannot be counted
    wanted = Counter(map(printable, wanted_names))
    missing = list(wanted - listed)[:_MAX_NAMES_SHOWN]
    surplus = list(listed - wanted)[:_MAX_NAMES_SHOWN]
    return f"missing {missing}, unknown or twice {surplus}"


def _finding_on_crash(check: Check, key_result: KeyResult, event: Event) -> Finding:
    """Return the finding on an event at which a check raises an exception, by which the official checker ends.

    For instance, the check that an accuracy is at least 0.8 compares it with a number, which fails for a text. The
    finding then asks for a number.

    Args:
        check: The check. Its `aspect` is the part of the event that it looks at, such as "value".
        key_result: The result of the event's key, which makes the finding.
        event: The event.
    """
    is_value_no_number = check.aspect == "value" and not is_number(event.value)
    wanted = "a number" if is_value_no_number else check.words
    return key_result.finding_on_event(check.aspect, event.line, wanted, shown(event, check.aspect))


def _objection_to_time(times: ComparedTimes) -> _Objection:
    """Return what was wanted of an event that comes too late after the first init_start, and what the log has instead.

    Args:
        times: The time that has passed until the event, and its limit.
    """
    if times.limit_ms == 0:  # until submission_division, whose value sets it, has come
        return _Objection("submission_division before it, for its time limit", "no submission_division")
    limit_min = six_digits(times.limit_ms / _MINUTE_MS)
    passed_min = times.passed_ms / _MINUTE_MS
    return _Objection(f"under {limit_min} min after the first init_start", f"{passed_min:.1f} min after it")
