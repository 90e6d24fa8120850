"""The times of a log's events, each held against the times of the events above it."""

import math
from typing import NamedTuple

from compliance.rules import FindingCollector
from compliance.strict.parts import START_KEYS, STOP_KEYS
from runlog import schema
from runlog.digits import significant
from runlog.reader import Event
from runlog.run import NO_DATE, is_date_of_run
from runlog.text import printable

ORDER = "event-order"  # a rule of form, so a breach of it only warns
# Keys by whose times a score or a rate is computed. All others only annotate the run: some log them at any time.
_KEYS_THAT_TIME_THE_RUN = START_KEYS | STOP_KEYS | {schema.RUN_START.key, schema.RUN_STOP.key, schema.EVAL_ACCURACY.key}
_KEYS_THAT_TIME_THE_RUN |= {schema.STEP_WINDOW.key, schema.EPOCH_THROUGHPUT.key, "throughput", "tracked_stats"}
KEYS_OF_EVERY_RANK = frozenset({schema.INIT_START.key, schema.CACHE_CLEAR.key})  # each with a clock of its own


def times_the_run(event: Event) -> bool:
    """Return whether a score or a rate is computed from the time of an event, as for epoch_start."""
    return event.key in _KEYS_THAT_TIME_THE_RUN


class EarlyEvent(NamedTuple):
    """An event that is earlier than an event above it in the log, and by how many milliseconds."""

    event: Event
    early_ms: float


class EventTimes:
    """Follows the times of a log's events, in Unix milliseconds, and reports those that are too early.

    Attributes:
        first_early_before_run: The first event up to run_start that is too early against an event above it; None if
            there is none.
        last_end_ms: The time of the last event that ended a block, epoch or evaluation, or that was an accuracy;
            infinite if there was none.
    """

    def __init__(self, collector: FindingCollector) -> None:
        self.first_early_before_run: EarlyEvent | None = None
        self.last_end_ms = math.inf
        self._collector = collector
        self._latest_ms_by_rank: dict[int | None, float] = {}  # of the events so far that time the run
        self._latest_ms_before_run = -math.inf  # of all events above run_start, and of it

    def note_event_before_run(self, event: Event) -> None:
        """Keep the first event up to run_start whose time is over 100 ms before that of an event on a line above it.

        For instance, after events at 5,000 ms and 9,000 ms, an event at 6,000 ms is 3,000 ms too early. `Policy`
        reports it for a log of this project, in which one clock has timed all of these events.

        Args:
            event: An event above the first run_start in the log, or this run_start.
        """
        early_ms = self._latest_ms_before_run - event.time_ms  # against the latest time so far; -inf for the first
        if early_ms > self._most_early_ms and self.first_early_before_run is None:
            self.first_early_before_run = EarlyEvent(event, early_ms)
        self._latest_ms_before_run = max(self._latest_ms_before_run, event.time_ms)

    def check(self, event: Event) -> None:
        """Report an event that is too early against the events above it that time the run.

        Args:
            event: The next event of the log.
        """
        if times_the_run(event):
            self._report_if_early(event, "time-order", allowed_ms=self._most_early_ms)  # may fail the log
            self._note_time(event)
        elif event.key not in KEYS_OF_EVERY_RANK:
            self._report_if_early(event, ORDER, allowed_ms=0.0)  # only a warning

    def _note_time(self, event: Event) -> None:
        """Note the time of an event that times the run, for the checks of later events."""
        if event.key in STOP_KEYS or event.key == schema.EVAL_ACCURACY.key:
            self.last_end_ms = event.time_ms
        latest_ms = self._latest_ms_by_rank.get(event.rank, -math.inf)
        self._latest_ms_by_rank[event.rank] = max(latest_ms, event.time_ms)

    def _report_if_early(self, event: Event, rule: str, *, allowed_ms: float) -> None:
        """Report an event that is too early against an event above it that times the run, of its own or another rank.

        It may be `allowed_ms` earlier than one of its own rank, and 1000 ms earlier than one of another rank, because
        their clocks differ. If it is too early against several ranks, the one report names the largest difference.

        Args:
            event: The event to check.
            rule: The rule that it breaks if it is too early.
            allowed_ms: By how many milliseconds the event may be earlier than one of its own rank.
        """
        most_early_ms = 0.0  # over all ranks against which the event is too early; 0: against none
        for rank, latest_ms in self._latest_ms_by_rank.items():
            is_of_same_clock = rank == event.rank
            allowed_of_rank_ms = allowed_ms if is_of_same_clock else self.allowed_between_ranks_ms
            early_ms = latest_ms - event.time_ms
            if early_ms > allowed_of_rank_ms:
                most_early_ms = max(most_early_ms, early_ms)
        if most_early_ms > 0:
            before = f"{significant(most_early_ms, digits=10)} ms before an event above it"
            self._add_breach(rule, event, f"{printable(event.key)} at {event.time_ms} ms, {before}")

    def check_date(self, event: Event) -> None:
        """Report a run_start or run_stop that is at no date of a run: its time is not in milliseconds, or is wrong.

        A run whose times are in seconds would be scored a thousand times as fast.

        Args:
            event: The first run_start or run_stop of the log.
        """
        if not is_date_of_run(event.time_ms):
            actual = f"{event.key} at {event.time_ms} ms since 1970, which is {NO_DATE}"
            self._add_breach("run-time", event, actual)

    def check_not_before_start(self, part_start: Event, run_start: Event) -> None:
        """Report a block, epoch or evaluation whose start is timed more than 40 ms before run_start.

        If another rank logged the start, the two times are of two clocks, and 1000 ms are allowed.

        Args:
            part_start: The event that starts the block, epoch or evaluation.
            run_start: The first run_start of the log.
        """
        before_ms = run_start.time_ms - part_start.time_ms
        is_of_same_clock = part_start.rank == run_start.rank
        allowed_ms = self._bound("before-run-start", "before_ms")
        if not is_of_same_clock:
            allowed_ms = self.allowed_between_ranks_ms
        if before_ms > allowed_ms:
            actual = f"{part_start.key} {significant(before_ms, digits=10)} ms before run_start"
            self._add_breach("before-run-start", part_start, actual)

    @property
    def allowed_between_ranks_ms(self) -> float:
        """By how many milliseconds the clocks of two ranks may be apart: 1000."""
        return self._bound("run-time", "repeat_ms")

    @property
    def _most_early_ms(self) -> float:
        """By how many milliseconds an event may be earlier than one above it of the same rank: 100.

        Clocks are corrected a little during a run.
        """
        return self._bound("time-order", "back_ms")

    def _bound(self, rule: str, name: str) -> float:
        return self._collector.strict_rules[rule].bounds[name]

    def _add_breach(self, rule: str, event: Event, actual: str) -> None:
        self._collector.add_breach(rule, event.line, actual)
