"""The official verdict on the events of a log, by mlperf-logging's rule files, as its mlp_compliance.py comes to it."""

import sys
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import is_number, own_metadata
from compliance.official.checks import Check, ComparedTimes, KeyOrder, WantedNames, compared_times
from compliance.official.language import Enqueued, State, holds
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
        self.target_reached_ms: float | None = None  # after `finish`: when an accuracy first reached the target

    def take(self, event: Event) -> None:
        """Keep a reduced copy of an event until `finish`, if a rule of any file is about its key.

        The copy takes half the memory. Its metadata lacks `file` and `lineno`, the place in the code, which no rule
        asks for. Its names are shared with the other events. An event whose metadata is no dict is kept as it is.

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
        """Apply the rule files to the events that were taken, report all findings, and set `target_reached_ms`.

        As in the official checker, there are two kinds of findings:

        - Findings on all events of the log together, such as that no accuracy reaches the target. Those of each file
          are reported, by `_apply_files`.
        - Findings by key: failures of single events, and a wrong number of events. Several files may have a rule for
          the same key, such as common.yaml and closed_resnet.yaml. Only the findings of the last of these files are
          reported, here.

        Besides these, `_apply_files` reports a benchmark that has no rule file of its own.

        `target_reached_ms` becomes the time of the earliest accuracy that reached the target. Without such an accuracy,
        `target_reached_ms` stays None; also if the rule of eval_accuracy has no target, as in most rule files for open
        runs, where the rule only asks for an accuracy below 1.
        """
        last_result_by_key: dict[str, KeyResult] = {}
        for file_result in self._apply_files():
            last_result_by_key |= file_result.result_by_key  # the result of a later file replaces an earlier one
        result_of_accuracy = last_result_by_key.get(schema.EVAL_ACCURACY.key)
        if result_of_accuracy is not None:
            self.target_reached_ms = result_of_accuracy.target_reached_ms
        for key_result in last_result_by_key.values():
            key_result.report_failures(self._collector)
            key_result.report_wrong_count(self._collector)

    def _apply_files(self) -> "list[_FileResult]":
        """Apply common.yaml, and each rule file to which events lead, once. Return the result of each file.

        A rule may contain code that enqueues a further file, whose name depends on the value of an event. For instance,
        common.yaml leads from the division "closed" to closed_common.yaml, and closed_common.yaml from a benchmark X to
        closed_X.yaml. Each enqueued file is handled so:

        - If no such file exists, or if the file was applied already, the event is reported. For instance, the benchmark
          "common" leads from closed_common.yaml to closed_common.yaml again.
        - Otherwise the file is added to the queue, if it does not wait there already.

        Returns:
            The results, in the order of application. The `findings` of each result have been reported here. The caller
            reports what `result_by_key` has, because only the last file with a rule for a key counts.
        """
        result_by_file: dict[str, _FileResult] = {}
        queue = deque([f"training_{self._version}/common.yaml"])
        while queue:
            file_name = queue.popleft()
            file_result = _FileJudge(load(file_name)).judge(self._events)
            result_by_file[file_name] = file_result
            self._collector.findings += file_result.findings  # these count, whatever later files find
            for enqueued in file_result.enqueued:
                is_unknown = enqueued.file not in names()
                was_applied = enqueued.file in result_by_file
                is_in_queue = enqueued.file in queue
                if is_unknown or was_applied:
                    result_of_event_key = file_result.result_by_key[enqueued.event.key]
                    self._report_refused_file(enqueued, result_of_event_key)
                elif not is_in_queue:
                    queue.append(enqueued.file)
        return list(result_by_file.values())

    def _report_refused_file(self, enqueued: Enqueued, key_result: KeyResult) -> None:
        """Report an event whose value names a rule file that does not exist, or that was applied already.

        The code of a rule makes the name of the file from the value of the event. For instance, the division "ajar"
        makes the name training_4.0.0/ajar_common.yaml, which does not exist.

        - An event submission_benchmark is reported as a breach of the rule known-benchmark.
        - For any other event, such as submission_division, a failure is added to `key_result`. If `key_result` has a
          failure already, nothing is added: the check for a known division, for instance, has failed then, and the same
          value would be reported twice.

        Args:
            enqueued: The name of the rule file, and the event whose value gave the name.
            key_result: What the rule of the event's key found, with the failures of all events of this key.
        """
        event = enqueued.event
        if event.key == schema.SUBMISSION_BENCHMARK.key:
            self._refuse_benchmark(event, enqueued.file)
        elif key_result.failure_count == 0:
            wanted = "a value that has rules of its own"
            # `finding_on_event` makes a finding such as: submission_division: a value that has rules of its own.
            key_result.keep_failure(key_result.finding_on_event("value", event.line, wanted, printable(event.value)))

    def _refuse_benchmark(self, event: Event, rule_file: str) -> None:
        """Report a benchmark that has no rule file of its own, as a breach of the rule known-benchmark.

        A rule file is named for its benchmark: the benchmark resnet leads to training_4.0.0/closed_resnet.yaml. There
        are two cases:

        - The file exists, but is no benchmark's: "common" leads to closed_common.yaml, which was applied already.
        - The file does not exist. The report names the rulesets that have the benchmark.

        Args:
            event: The event that states the benchmark.
            rule_file: The file to which the benchmark leads.
        """
        benchmark = printable(event.value, 60)
        does_exist = rule_file in names()
        if does_exist:  # such as closed_common.yaml, the rules for all closed runs
            why = f"{printable(rule_file)} has no rules of a benchmark"
        else:
            rulesets = [version for version in versions() if event.value in benchmarks(version)]
            where_known = f"rulesets {', '.join(rulesets)} have it" if rulesets else "no ruleset has it"
            why = f"mlperf-logging {VERSION} has no {printable(rule_file)}; {where_known}"
        self._collector.add_breach("known-benchmark", event.line, f"{event.key} {benchmark}: {why}")


class _Objection(NamedTuple):
    """The objection of a failed check: what it wanted of an event, and what the log has instead."""

    wanted: str
    actual: str


class _FileResult(NamedTuple):
    """The result of applying the rules of one file to the events of a log.

    - `findings` count, whatever other files find.
    - `result_by_key` has the failures of single events and the numbers of events. They count only if no later file has
      a rule for the key.
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
        """Apply the rule file to the events of a log. Return what was found, and which rule files to apply next.

        Each rule is for the events of one key. For instance, the rule for submission_division asks for the value
        "closed" or "open", and its code enqueues the rule file closed_common.yaml at the value "closed". The steps:

        1. The statements in `begin` of the file, if there are any, set the first values in `_state`.
        2. `_apply_rule` judges each event whose key has a rule, and adds what it finds to the key's result in
           `_result_by_key`; only a crash of the official checker is kept in `_first_crash`. `_apply_rule` also runs the
           rule's code, which changes `_state` and may enqueue a further file there.
        3. `_findings_on_all_events` returns the findings on the log as a whole, such as that no accuracy reaches the
           target.

        The rule files of stable_diffusion are also applied to joined events, after the events of the log: one event for
        each evaluation, with all metrics of the evaluation. The official checker does the same.

        Args:
            events: The events, in the order of the log.
        """
        for initialise in self._file.begin:
            no_event = None  # this code runs before the first event, and only sets names in the state
            initialise(no_event, self._state)
        joined_events = self._joined_metrics(events)  # no events if the file is none of stable_diffusion
        for event in [*events, *joined_events]:
            if event.key in self._result_by_key:  # from the start, each key that has a rule has a result
                self._apply_rule(event)
        return _FileResult(self._findings_on_all_events(), self._result_by_key, self._state.enqueued)

    def _joined_metrics(self, events: Sequence[Event]) -> list[Event]:
        """Return one new event for each evaluation of stable_diffusion, with all metrics of the evaluation.

        stable_diffusion logs each metric of an evaluation, such as FID or CLIP, in an event of its own. The events of
        one evaluation have the same count in their metadata, such as the samples trained on. Only the rule files of
        stable_diffusion need the new events. For any other rule file the list is empty.

        The official checker crashes at an event with unusable metadata (see `join_metrics`), and so fails the log. Here
        the event is left out, and a finding on the crash of the official checker is kept.

        Args:
            events: All events of the log, in their order.
        """
        count_field = self._file.joining_field  # such as "samples_count", in rule files of stable_diffusion alone
        if count_field is None:
            return []
        joined = join_metrics(events, count_field)
        if joined.first_unusable is not None:
            # This is the first crash: the official checker joins the metrics before it applies any rule of the file.
            self._keep_if_first_crash(self._finding_on_unusable_metric(joined.first_unusable, count_field))
        return joined.events

    def _keep_if_first_crash(self, crash: Finding) -> None:
        """Keep the finding on a crash of the official checker, unless one is kept already.

        That checker ends at its first crash. Our judge goes on after such an event, so there may be several.

        Args:
            crash: The finding on the event at which the official checker ends with a traceback.
        """
        if self._first_crash is None:
            self._first_crash = crash

    # --- all events ---

    def _findings_on_all_events(self) -> list[Finding]:
        """Return the findings that can only be made after the last event, in this order:

        1. For each key, up to two separate findings:

           - The key has no event, and neither has the alternative key that its rule names.
           - The key has events, but none meets the check that at least one event must meet.

        2. The official checker crashes at an event. Only its first crash is a finding.
        3. The events of a key together do not list the wanted names.
        """
        findings: list[Finding | None] = []  # None: a check that found nothing
        for key_result in self._result_by_key.values():
            findings.append(self._finding_if_alternative_is_missing(key_result))
            findings.append(key_result.finding_if_any_check_is_unmet())
        findings.append(self._first_crash)  # kept by `judge`, which joins metrics and judges events; None: no crash
        for wanted_names in self._file.wanted_names:
            findings.append(self._finding_if_names_differ(wanted_names))
        return [finding for finding in findings if finding is not None]

    def _finding_on_unusable_metric(self, event: Event, count_field: str) -> Finding:
        """Return the finding on an event whose metric cannot be joined with the others of its evaluation.

        Args:
            event: The event, an eval_accuracy of stable_diffusion.
            count_field: The field of its metadata by which metrics are joined, such as "samples_count".
        """
        joined_result = self._result_by_key[JOINED_METRICS_KEY]
        wanted = f"{count_field} and a metric in the metadata"
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

    def _finding_if_names_differ(self, wanted: WantedNames) -> Finding | None:
        """Return a finding if the events of a key do not list each wanted name exactly once.

        In all rule files that ask for names, the events weights_initialization together must name each tensor of the
        reference model once. The code of the rule adds the name in each event to a list in the state.

        Args:
            wanted: The key, and the names that its events must list.

        Returns:
            The finding. None if the names are right, or if the log has no event of the key.
        """
        key_result = self._result_by_key[wanted.key]
        if key_result.event_count == 0:
            return None
        listed_names = self._state[wanted.state_name]
        are_all_texts = all(isinstance(name, str) for name in listed_names)  # a log may list anything
        is_each_listed_once = are_all_texts and Counter(listed_names) == Counter(wanted.names)
        if is_each_listed_once:
            return None
        actual = _difference_in_words(listed_names, wanted.names)
        words = "each tensor of the reference model once"
        return key_result.finding_on_event("metadata", key_result.first_line, words, actual)

    # --- one event ---

    def _apply_rule(self, event: Event) -> None:
        """Count an event, and apply the rule of its key to it, in this order:

        1. the checks for each event, then the rule's code, which changes the state that later checks read
        2. the check for the first event of the key, if the rule has one
        3. the check that at least one event of the key must meet, if the rule has one

        A later event of a key with `submission_` in its name, such as a second submission_division, skips step 1. The
        official checker, mlp_compliance.py, skips it, too.

        Args:
            event: An event whose key has a rule in this file.
        """
        key_result = self._result_by_key[event.key]
        rule = key_result.rule
        key_result.count(event)
        is_first = key_result.event_count == 1
        is_only_first_checked = "submission_" in event.key
        if is_first or not is_only_first_checked:
            self._apply_checks_and_code(key_result, event)
        if is_first and rule.first_check is not None:
            self._apply_first_check(rule.first_check, key_result, event)
        if rule.any_check is not None:
            self._apply_any_check(rule.any_check, key_result, event)

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

        1. Each check that every event of the key must meet, and that this event does not meet, is kept as a failure.
        2. The code of the rule is run, even after a failure. The code changes the state, which later checks read, and
           may compute with the event's value. If the code raises an exception, the exception is kept as a failure, but
           only if there is no failure from step 1.

        Args:
            key_result: The result of the event's key, with the rule of the key.
            event: The event.
        """
        rule = key_result.rule
        unmet_checks = [check for check in rule.checks if not self._is_met(check, event)]
        for check in unmet_checks:
            self._keep_failure(check, key_result, event)
        has_code_failed = not self._run_code(rule, event)  # `_run_code` returns False after an exception
        are_checks_met = not unmet_checks
        if has_code_failed and are_checks_met:
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

    def _apply_any_check(self, check: Check, key_result: KeyResult, event: Event) -> None:
        """Check whether an event meets a check that one event of its key has to meet. Note the answer in `key_result`.

        Such a check is, for instance, that an accuracy reaches the target: at least one has to. In this order:

        1. If the value of the event is the best number so far, the number is noted, to be shown in a finding if no
           event meets the check. The best is the largest for a check of "at least 0.8", and the smallest for a check of
           "at most 3.3".
        2. If the check raises an exception, as where a text is compared with a number, the official checker crashes. A
           finding on the crash is kept, if there was no earlier crash while this rule file was applied.
        3. If the event meets the check, `key_result` keeps the time of the event, unless it has an earlier time.

        Args:
            check: The check.
            key_result: The result of the event's key.
            event: The event.
        """
        key_result.keep_if_best(event, check)
        try:
            is_met = bool(check.is_met(event, self._state))
        except Exception:  # noqa: BLE001  a log may hold anything
            self._keep_if_first_crash(_finding_on_crash(check, key_result, event))
            return
        if is_met:
            key_result.keep_met_any_check(event)

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

        A check is about one of three things:

        - the order: the event must stand before or after the events of another key
        - the time: the event must come soon enough after the first init_start
        - the event's value or its metadata, which is then shown

        Args:
            check: The check that is not met. Its `aspect` says what it is about.
            event: The event.
        """
        if check.order is not None:
            return self._objection_to_order(check.order)
        if check.aspect == "time":
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


def _difference_in_words(listed_names: Sequence[object], wanted_names: Sequence[str]) -> str:
    """Return in words which names are listed less often than wanted, and which are listed more often.

    Args:
        listed_names: The names that a log lists, with values of any type.
        wanted_names: The names that it should list, each once.
    """
    listed = Counter(map(printable, listed_names))  # as texts, because a value such as a list cannot be counted
    wanted = Counter(map(printable, wanted_names))
    missing = list(wanted - listed)[:_MOST_NAMES_SHOWN]
    surplus = list(listed - wanted)[:_MOST_NAMES_SHOWN]
    return f"missing {missing}, unknown or twice {surplus}"


def _finding_on_crash(check: Check, key_result: KeyResult, event: Event) -> Finding:
    """Return the finding on an event at which the official checker crashes, because a check raised an exception.

    Args:
        check: The check. Its `aspect` is the part of the event that it looks at, such as "value" or "metadata".
        key_result: The result of applying the key's rule, which names key and rule in the finding.
        event: The event, such as an eval_accuracy whose value is a text.
    """
    wanted = check.words
    if check.aspect == "value" and not is_number(event.value):
        wanted = "a number"  # the check compares the value with a number
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
