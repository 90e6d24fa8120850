"""The result of applying the rule of one key to the events of a log, and the findings that follow from it."""

import re
from typing import Any, NamedTuple

from compliance.logged_run import is_number, own_metadata
from compliance.official.checks import Check
from compliance.official.rule_files import Rule
from compliance.rules import FINDINGS_PER_RULE, Finding, FindingCollector
from runlog.digits import six_digits
from runlog.reader import Event
from runlog.text import as_json, printable, visible

_FIX_OF_TIME = "log submission_* first; do less before init_stop: compile less, or warm up with fewer steps"


class _Best(NamedTuple):
    """The value that is nearest to what a rule asks for, and its line."""

    value: float
    line: int


class KeyResult:
    """The result of applying the rule of one key to the log's events: how many there are, and what failed.

    `source` says where the rule comes from.
    """

    def __init__(self, rule: Rule, source: str) -> None:
        self.rule = rule
        self._source = source
        self.event_count = 0
        self.first_line: int | None = None  # of the first event
        self._first_value: Any = None  # of the first event
        self._has_other_values = False  # whether another event has another value
        self.earliest_met_ms: float | None = None  # of the events that met the rule's at_least_one_check
        self._best: _Best | None = None
        self.failure_count = 0
        self._listed_failures: list[Finding] = []

    def count(self, event: Event) -> None:
        """Count the next event of the key. Keep the first event's line and value; note whether a later value differs.

        Args:
            event: The event, in the order of the log.
        """
        self.event_count += 1
        if self.event_count == 1:
            self.first_line = event.line
            self._first_value = event.value
            return
        # `is` is for NaN, which is not equal to itself by `==`. The JSON reader returns the same object for every NaN,
        # and the official checker, which compares by list.count, takes an object as equal to itself.
        is_first_value_again = event.value is self._first_value or event.value == self._first_value
        if not is_first_value_again:
            self._has_other_values = True

    def keep_if_best(self, event: Event, check: Check) -> None:
        """Keep the value of an event if it is a number, and the best one so far.

        The best one is the smallest for a check of "at most 3.3", and the largest for one of "at least 0.8".

        Args:
            event: An event of the key.
            check: The check that at least one event of the key must meet.
        """
        if not is_number(event.value):
            return
        if self._best is None:
            is_better = True
        elif check.is_smallest_best:
            is_better = event.value < self._best.value
        else:
            is_better = event.value > self._best.value
        if is_better:
            self._best = _Best(event.value, event.line)

    def keep_time_of_met_check(self, event: Event) -> None:
        """Keep the time of an event that meets the check which one event of the key must meet, if it is the earliest.

        Args:
            event: The event, such as an eval_accuracy that reaches the target.
        """
        if self.earliest_met_ms is None or event.time_ms < self.earliest_met_ms:
            self.earliest_met_ms = event.time_ms

    @property
    def does_an_event_meet_check(self) -> bool:
        """Whether an event met the check that one event of the key must meet."""
        return self.earliest_met_ms is not None

    @property
    def target_reached_ms(self) -> float | None:
        """Return the time of the earliest event that reached the rule's target; None if none did, or without a target.

        A rule has a target if its `at_least_one_check` has one: any accuracy meets a check that it is below 1.
        """
        check = self.rule.at_least_one_check
        has_target = check is not None and check.has_target
        return self.earliest_met_ms if has_target else None

    def keep_failure(self, failure: Finding) -> None:
        """Keep a failure of an event. It is reported only if no later rule file has a rule for the key.

        Args:
            failure: The finding on the event. Beyond FINDINGS_PER_RULE, failures are only counted.
        """
        self.failure_count += 1
        if self.failure_count <= FINDINGS_PER_RULE:
            self._listed_failures.append(failure)

    # --- findings ---

    def finding_on_event(self, aspect: str, line: int | None, wanted: str, actual: str) -> Finding:
        """Return a finding that one aspect of an event of the key is not as the rule asks.

        Args:
            aspect: The aspect: "value", "metadata", "order" or "time".
            line: The line of the event. None if there is no single one.
            wanted: What the rule asks for, such as "above 0".
            actual: What the event has instead.
        """
        key = self.rule.key
        return self._finding(aspect, line, f"{key}: {wanted}", actual, _fix(aspect, key, wanted))

    def finding_on_count(self, actual: str) -> Finding:
        """Return a finding on a wrong number of events.

        Args:
            actual: The number in words, such as "none".
        """
        wanted = self.rule.count_in_words
        return self._finding("count", self.first_line, wanted, actual, f"log {wanted}")

    def finding_if_no_event_meets_check(self) -> Finding | None:
        """Return a finding if none of the key's events meets the check that one of them must meet.

        For instance, one eval_accuracy must reach the target. The finding shows the best value.

        Returns:
            The finding. None if nothing is wrong: a key without events is reported by its count, if at all.
        """
        check = self.rule.at_least_one_check
        if check is None or self.event_count == 0 or self.does_an_event_meet_check:
            return None
        if self._best is None:
            actual = "no number"
            line = None
        else:
            actual = f"the best is {six_digits(self._best.value)}"
            line = self._best.line
        expected = f"{self.rule.key}: one event with {check.words}"
        return self._finding("value", line, expected, actual, "train until the target is reached, then log run_stop")

    def _finding(self, aspect: str, line: int | None, expected: str, actual: str, fix: str) -> Finding:
        """Return an official finding on one aspect of the key's events.

        Args:
            aspect: The aspect: "count", "value", "metadata", "order" or "time".
            line: The line to blame; None if there is no single one.
            expected: What the rule asks for.
            actual: What the log has instead.
            fix: What the user should do.
        """
        return Finding(
            rule=f"{self.rule.key}.{aspect}",
            line=line,
            expected=expected,
            actual=actual,
            fix=fix,
            source=self._source,
            official=True,
        )

    def report_failures(self, collector: FindingCollector) -> None:
        """Report the first FINDINGS_PER_RULE failures of single events, and how many more there are.

        Args:
            collector: Gets the findings.
        """
        collector.findings += self._listed_failures
        unlisted_count = self.failure_count - len(self._listed_failures)
        if unlisted_count:
            collector.add_unlisted(self._listed_failures[-1], unlisted_count)

    def report_wrong_count(self, collector: FindingCollector) -> None:
        """Report that the log has too few events of the key, or several events where the rule asks for exactly one.

            fewer events than the rule asks for       an error, as by the official checker
            several events with different values      an error, as by the official checker
            several events, all with one value        a warning by our rule `exactly-once`

        Args:
            collector: Gets the finding. It gets nothing if the number of events is right.
        """
        required = self.rule.required
        has_too_few = self.event_count < required.least
        has_several_for_one = required.is_exact and self.event_count > 1
        is_error = has_too_few or (has_several_for_one and self._has_other_values)
        if is_error:
            collector.findings.append(self.finding_on_count(self._count_in_words()))
        elif has_several_for_one:
            actual = f"{self.event_count} {self.rule.key}, all with the same value"
            collector.add_breach("exactly-once", self.first_line, actual)

    def _count_in_words(self) -> str:
        """Return the number of events, with the first value if there are several values; `none` for 0."""
        if self._has_other_values:
            return f"{self.event_count}, with different values; the first is {printable(self._first_value)}"
        if self.event_count == 0:
            return "none"
        return str(self.event_count)


def _fix(aspect: str, key: str, wanted: str) -> str:
    """Return what the user should do about an event that a rule does not accept. For the key seed:

        aspect      wanted                    to do
        metadata    metadata has epoch_num    give seed this metadata: epoch_num
        order       after init_start          log seed after init_start
        time        any                       the text _FIX_OF_TIME, because only init_stop has a rule on the time
        value       above 0                   make seed above 0

    Args:
        aspect: The part of the event that the rule is about: "value", "metadata", "order" or "time".
        key: The key of the event, such as "seed".
        wanted: What the rule asks for, in words.
    """
    if aspect == "metadata":
        metadata = wanted.removeprefix("metadata has ")  # begins most texts about metadata
        return f"give {key} this metadata: {metadata}"
    if aspect == "order":
        return f"log {key} {wanted}"
    if aspect == "time":
        return _FIX_OF_TIME
    return f"make {key} {wanted}"


def shown(event: Event, aspect: str) -> str:
    """Return the part of an event that a check looks at, as text for a message.

    Args:
        event: The event.
        aspect: The part: "metadata" for the event's metadata; any other for its value.
    """
    if aspect == "metadata":
        return _shown_metadata(event.metadata)
    return _shown_value(event.value)


def _shown_metadata(metadata: Any) -> str:
    """Return metadata as text, such as `metadata {"epoch_num": 3}`, without the place in the user's code."""
    if isinstance(metadata, dict):  # a log may hold anything
        metadata = own_metadata(metadata)  # without `file` and `lineno`
    return f"metadata {printable(metadata)}"


def _shown_value(value: Any) -> str:
    """Return the value of an event as text for a message, cut after 160 characters.

        the text resnet                resnet
        the text 0.33                  "0.33", with quotes, because a text without letters may look like a number
        the number 0.33                0.33
        the list of 1 and null         [1, null], its JSON

    Args:
        value: The value, of any type.
    """
    is_text_with_letters = isinstance(value, str) and re.search("[A-Za-z]", value)
    if is_text_with_letters:
        return printable(value)  # without quotes, and cut after 160 characters, too
    return visible(as_json(value), 160)  # JSON has quotes around a text; `visible` cuts it
