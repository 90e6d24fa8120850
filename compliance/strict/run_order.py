"""The order of a run, event by event: its clock, and its parts, which are blocks, epochs and evaluations."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_number
from compliance.rules import FindingCollector
from compliance.strict.measured import THROUGHPUT_RULE, Measured
from compliance.strict.parts import NUMBER_FIELD_BY_KIND, START_KEYS, STOP_KEYS, OpenPart, TimedEvaluation, TrainedPart
from runlog import schema
from runlog.digits import significant
from runlog.reader import Event
from runlog.run import NO_DATE, is_date_of_run
from runlog.text import printable

ORDER = "event-order"  # a rule of form, so a breach of it only warns
# Keys by whose times a score or a rate is computed. All others only annotate the run: some log them at any time.
_KEYS_THAT_TIME_THE_RUN = START_KEYS | STOP_KEYS | {schema.RUN_START.key, schema.RUN_STOP.key, schema.EVAL_ACCURACY.key}
_KEYS_THAT_TIME_THE_RUN |= {schema.STEP_WINDOW.key, schema.EPOCH_THROUGHPUT.key, "throughput", "tracked_stats"}
# Rules that a missing or wrong number breaks, by the event's key; ORDER for all others. ORDER only warns, but scores
# need the epochs of accuracies.
_RULES_OF_NUMBERS = {schema.EVAL_ACCURACY.key: "value-type", schema.EPOCH_THROUGHPUT.key: THROUGHPUT_RULE}
_TRAINED_UNTIL_EVALUATION = ("epoch_num", "samples_count")  # what the metadata of an evaluation's events states
KEYS_OF_EVERY_RANK = frozenset({schema.INIT_START.key, schema.CACHE_CLEAR.key})  # each with a clock of its own


class RunOrder:
    """Follows a run from event to event, and reports what is out of order. Times are Unix milliseconds.

    The parts of a run are blocks, epochs and evaluations. A block is one or more epochs together; some logs have blocks
    alone. `measured` follows the windows of steps, the throughputs and the checkpoints in these parts.
    """

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.run = run
        self.measured = Measured(run, collector)
        self.last_epoch: int | None = None  # the number of the last epoch that was trained
        self.trained: list[TrainedPart] = []
        self._collector = collector
        # The latest time so far of the events that time the run, by the rank in their launcher's prefix.
        self._latest_ms_by_rank: dict[int | None, float] = {}
        self._latest_ms_before_run = -math.inf  # of all events above run_start, and of it
        # The first event up to run_start that is too early against an event above it, and by how many milliseconds.
        self.first_early_before_run: tuple[Event, float] | None = None
        self._latest_end_ms = math.inf  # of a block, an epoch or an evaluation, by the log's last event of one
        self._first_run_start: Event | None = None
        self._first_run_stop: Event | None = None
        self._epochs_started = 0  # how many epoch_start the log has so far; some logs have blocks alone
        self._epochs_announced = 0  # how many epochs the blocks so far have, by their block_start
        self._open_parts: dict[str, OpenPart] = {}  # by kind: block, epoch and eval
        # The last evaluation, from its start until its accuracy comes. It waits while it is open, and may wait longer.
        self._evaluation_without_accuracy: OpenPart | None = None
        self.shortest_evaluation: TimedEvaluation | None = None  # None: the log has no eval_stop
        self._evaluated_in_epoch_ms = 0.0  # the time of the evaluations in the open epoch
        self._handlers: dict[str, Callable[[Event], None]] = {
            schema.RUN_START.key: self._take_run_start,
            schema.RUN_STOP.key: self._take_run_stop,
            schema.BLOCK_START.key: self._start_block,
            schema.BLOCK_STOP.key: self._stop_block,
            schema.EPOCH_START.key: self._start_epoch,
            schema.EPOCH_STOP.key: self._stop_epoch,
            schema.EVAL_START.key: self._start_evaluation,
            schema.EVAL_STOP.key: self._stop_evaluation,
            schema.EVAL_ACCURACY.key: self._take_accuracy,
            schema.EPOCH_THROUGHPUT.key: self._take_throughput,
        }

    @property
    def epochs_counted(self) -> int:
        """How many epochs have started so far; if the log has had blocks alone, how many these announced."""
        return self._epochs_started if self._has_epoch_events else self._epochs_announced

    @property
    def _has_epoch_events(self) -> bool:
        """Whether the log has had any epoch_start; some logs have blocks alone."""
        return self._epochs_started > 0

    def take(self, event: Event) -> None:
        """Take the next event of the log: check its time, and then its place in the run by the method for its key.

        Args:
            event: The event, in the order of the log. `run` must have counted it before, if its key is known, because
                the checks use these counts.
        """
        if self._first_run_start is None:
            self._note_time_before_run(event)
        self._check_time(event)
        handle = self._handlers.get(event.key, self.measured.take)  # which ignores events of no interest
        handle(event)

    def _take_throughput(self, event: Event) -> None:
        self.measured.check_epoch_throughput(event, self._whole_number(event, "epoch_num"))

    def _add_breach(self, rule: str, event: Event, actual: str, expected: str | None = None) -> None:
        self._collector.add_breach(rule, event.line, actual, expected)

    def _report_disorder(self, event: Event, actual: str) -> None:
        """Report an event that is out of order, by the rule `event-order`, which only warns."""
        self._add_breach(ORDER, event, actual)

    def _whole_number(self, event: Event, name: str) -> int | None:
        """Return the whole number in a field of an event's metadata; report the field if it has no such number.

        The number is that of an epoch, or in the field epoch_count how many epochs a block has. The key of the event
        decides which rule the field breaks if it is reported (_RULES_OF_NUMBERS).

        Args:
            event: An event that should have the field.
            name: The field, such as "epoch_num".

        Returns:
            The number, from 0 to 2^31 - 1. A float such as 39.0 gives 39. None if the field was reported.
        """
        value: Any = event.metadata.get(name)
        if is_number(value) and 0 <= value < 2**31 and value == int(value):  # others write 39.0
            return int(value)
        rule = _RULES_OF_NUMBERS.get(event.key, ORDER)  # ORDER, which only warns, for most keys
        # The first text is what the log has, the second what is expected.
        self._add_breach(rule, event, f"{event.key} has {name} {printable(value)}", f"{event.key} has {name}, a number")
        return None

    # --- the clock ---

    def _check_time(self, event: Event) -> None:
        """Report an event that is too early against the events above it. The limit depends on the kind of the event.

        Only events that time the run are compared with: those from whose times a score or a rate is computed, such as
        epoch_start. The limits, by the kind of the event that is checked:

        - An event that times the run may itself be earlier by 100 ms (`back_ms`, a bound of the rule time-order). An
          event that is earlier by more breaks this rule, which may fail the log.
        - An event that each rank logs by a clock of its own, such as cache_clear, is not checked.
        - Any other event that is earlier at all breaks the rule ORDER, which only warns.

        These limits are for events of one rank. The clocks of two ranks may be further apart (`_check_not_earlier`).

        Args:
            event: The next event of the log.
        """
        times_the_run = event.key in _KEYS_THAT_TIME_THE_RUN
        may_be_by_other_clock = event.key in KEYS_OF_EVERY_RANK
        if times_the_run:
            self._check_timing_event(event)  # by the rule time-order; also reports an event below run_stop
        elif not may_be_by_other_clock:
            self._check_not_earlier(event, ORDER, allowed_ms=0.0)  # ORDER is the rule that only warns

    def _note_time_before_run(self, event: Event) -> None:
        """Note in `first_early_before_run` the first event up to run_start that is too early, and by how many ms.

        An event is too early if its time is more than 100 ms (`back_ms`, a bound of the rule time-order) before the
        latest time above it in the log. The noted event is reported at the end of the log, if the log is of this
        project. Nothing is reported in logs of other projects, where several clocks may write these events.

        Args:
            event: An event before the first run_start in the log, or this run_start.
        """
        back_ms = self._latest_ms_before_run - event.time_ms  # minus infinity for the first event of the log
        allowed_ms = self._collector.strict_rules["time-order"].bounds["back_ms"]
        if back_ms > allowed_ms and self.first_early_before_run is None:
            self.first_early_before_run = (event, back_ms)
        self._latest_ms_before_run = max(self._latest_ms_before_run, event.time_ms)

    def _check_timing_event(self, event: Event) -> None:
        """Check the time and the place of an event that times the run, such as epoch_start, and note its time.

        The event is reported in two cases:

        - The event is too early against an event above it that times the run, too (`_check_not_earlier`). Against an
          event of the same rank, 100 ms are allowed (`back_ms`, a bound of the rule time-order), because clocks are
          corrected a little during a run.
        - The event stands below the first run_stop. Of the events that time the run, only a further run_stop may stand
          there: that of another node.

        The time of the event is noted for the checks of later events.

        Args:
            event: The event.
        """
        allowed_ms = self._collector.strict_rules["time-order"].bounds["back_ms"]
        self._check_not_earlier(event, "time-order", allowed_ms=allowed_ms)  # than the latest time before this event
        # STOP_KEYS are those of events that end a block, an epoch or an evaluation; run_stop is none of them.
        if event.key in STOP_KEYS or event.key == schema.EVAL_ACCURACY.key:
            self._latest_end_ms = event.time_ms  # the gap before the next epoch counts from here
        self._latest_ms_by_rank[event.rank] = max(self._latest_ms_by_rank.get(event.rank, -math.inf), event.time_ms)
        first_stop = self._first_run_stop
        if first_stop is not None and event.key != schema.RUN_STOP.key:
            self._report_disorder(event, f"{event.key} after the run_stop of line {first_stop.line}")

    def _check_not_earlier(self, event: Event, rule: str, *, allowed_ms: float) -> None:
        """Report an event that is too early against the latest time so far of any rank.

        `_latest_ms_by_rank` has the latest time of each rank, from the events above that time the run, such as
        epoch_start. The event may be earlier than the latest time of its own rank by `allowed_ms`. The event may be
        earlier than the latest time of another rank by `_allowed_between_ranks_ms` (1 s), because each rank has a clock
        of its own.

        There is one report at most, even if the event is too early against several ranks. The report names the largest
        difference to one of these ranks, with the allowed part.

        Args:
            event: The event to check.
            rule: The rule that a breach is of: "time-order", or ORDER ("event-order"), which only gives a warning.
            allowed_ms: By how many milliseconds the event may be earlier than one of its own rank.
        """
        back_ms = 0.0  # the largest difference to a rank against which the event is too early
        for rank, latest_ms in self._latest_ms_by_rank.items():
            allowed_of_rank_ms = allowed_ms if rank == event.rank else self._allowed_between_ranks_ms
            rank_back_ms = latest_ms - event.time_ms
            if rank_back_ms > allowed_of_rank_ms:
                back_ms = max(back_ms, rank_back_ms)
        if back_ms > 0:
            before = f"{significant(back_ms, digits=10)} ms before an event above it"
            self._add_breach(rule, event, f"{printable(event.key)} at {event.time_ms} ms, {before}")

    @property
    def _allowed_between_ranks_ms(self) -> float:
        """By how many milliseconds the clocks of two ranks may be apart: a bound of the rule run-time."""
        return self._collector.strict_rules["run-time"].bounds["repeat_ms"]

    def _check_date(self, event: Event) -> None:
        """Report a run_start or run_stop that is at no date of a run: its time is not in milliseconds, or is wrong.

        A run whose times are in seconds would be scored a thousand times as fast.

        Args:
            event: The first run_start or run_stop of the log.
        """
        if not is_date_of_run(event.time_ms):
            actual = f"{event.key} at {event.time_ms} ms since 1970, which is {NO_DATE}"
            self._add_breach("run-time", event, actual)

    def _check_not_before_start(self, part_start: Event, run_start: Event) -> None:
        """Report a block, epoch or evaluation that starts too long before run_start, by the times of the log.

        Args:
            part_start: The event that starts the block, epoch or evaluation.
            run_start: The first run_start of the log. One of another rank has another clock.
        """
        before_ms = run_start.time_ms - part_start.time_ms
        allowed_ms = self._allowed_between_ranks_ms
        if part_start.rank == run_start.rank:
            allowed_ms = self._collector.strict_rules["before-run-start"].bounds["before_ms"]
        if before_ms > allowed_ms:
            actual = f"{part_start.key} {significant(before_ms, digits=10)} ms before run_start"
            self._add_breach("before-run-start", part_start, actual)

    # --- the start and the end of the run ---

    def _take_run_start(self, event: Event) -> None:
        """Begin the run at its first run_start. Any later one is another node's: it is only compared with the first.

        Args:
            event: A run_start.
        """
        if self._first_run_start is None:
            self._first_run_start = event
            self._check_date(event)
            self._begin_run(event)
        else:
            self._compare_time_with_first(event, self._first_run_start)

    def _begin_run(self, start: Event) -> None:
        """Begin the sums over the windows at run_start, and report a block, epoch or evaluation that started before it.

        Only the first such start is reported. It breaks one rule or two:

        - event-order, because its line is above that of run_start;
        - before-run-start, if its time is also earlier than that of run_start by more than is allowed: `before_ms`, a
          bound of this rule, or for an event of another rank `repeat_ms`, a bound of the rule run-time
          (`_check_not_before_start`).

        Args:
            start: The first run_start of the log.
        """
        self.measured.begin_window_sums(start)
        part_start = self._first_start_of_a_part()
        if part_start is not None:
            self._report_disorder(part_start, f"{part_start.key} above run_start")
            self._check_not_before_start(part_start, start)

    def _first_start_of_a_part(self) -> Event | None:
        """Return the first event so far that starts a block, an epoch or an evaluation; None if there is none."""
        first_starts = [event for key, event in self.run.first_events.items() if key in START_KEYS]
        return min(first_starts, key=lambda event: event.line, default=None)

    def _take_run_stop(self, event: Event) -> None:
        """End the run at its first run_stop. Any later one is another node's: it is only compared with the first.

        Args:
            event: A run_stop.
        """
        if self._first_run_stop is None:
            self._first_run_stop = event
            self._check_date(event)
            self._check_end_of_run(event)
        else:
            self._compare_stops(event, self._first_run_stop)

    def _check_end_of_run(self, stop: Event) -> None:
        """Report what is wrong with the run when it ends.

        The end must be at a later time than run_start. A run without success may end anywhere. In one that succeeded,
        losses and last step are checked, all blocks, epochs and evaluations must have ended, and the last evaluation
        must have its accuracy.

        Args:
            stop: The first run_stop of the log.
        """
        start_ms = self.run.start_ms
        if start_ms is not None and stop.time_ms <= start_ms:
            self._add_breach("run-time", stop, f"run_stop {start_ms - stop.time_ms} ms before run_start")
        if self.run.status != "success":
            return
        self.measured.check_losses_and_last_step(stop.line)
        for part in self._open_parts.values():
            self._report_disorder(stop, f"{part} is open")
        if self._evaluation_without_accuracy is not None:
            self._report_disorder(stop, f"{self._evaluation_without_accuracy} has no accuracy")

    def _compare_stops(self, event: Event, first: Event) -> None:
        """Report another node's run_stop if its status or its time is not that of the first run_stop.

        Args:
            event: A later run_stop.
            first: The first run_stop of the log.
        """
        self._compare_time_with_first(event, first)
        status = event.metadata.get("status")
        if status != self.run.status:
            status_of_first = f"that of line {first.line} is {printable(self.run.status)}"
            self._collector.add_breach("run-status", event.line, f"status {printable(status)}; {status_of_first}")

    def _compare_time_with_first(self, event: Event, first: Event) -> None:
        """Report another run_start or run_stop that is at another time than the first event of its key.

        The event may be another node's, with another clock. So the rule that it breaks depends on the difference:

        - up to 1 s (`repeat_ms`, a bound of the rule run-time): the rule ORDER, a breach of which is a warning;
        - more: the rule run-time, a breach of which is an error.

        If a run_start comes after the run_stop, the message says that the file holds two runs.

        Args:
            event: A later run_start or run_stop.
            first: The first event of the same key.
        """
        apart_ms = abs(event.time_ms - first.time_ms)
        if apart_ms == 0:
            return
        is_far = apart_ms > self._collector.strict_rules["run-time"].bounds["repeat_ms"]
        rule = "run-time" if is_far else ORDER  # which also decides on the severity: an error or a warning
        actual = f"another {event.key}, {significant(apart_ms, digits=10)} ms from that of line {first.line}"
        begins_another_run = event.key == schema.RUN_START.key and self._first_run_stop is not None
        if begins_another_run:
            actual += " and after its run_stop: the file holds two runs, give each a file of its own"
        self._add_breach(rule, event, actual)

    # --- blocks, epochs and evaluations ---

    def _start_block(self, event: Event) -> None:
        """Open a block, which is one or more epochs together, and report what is out of order.

        The event should state the number of the block's first epoch, and how many epochs the block has. A block that
        does not state how many counts as one epoch. The epochs of a block that several ranks start count once.

        Args:
            event: A block_start.
        """
        self._check_time_of_start(event)
        self._report_if_open(event, "block")
        self._report_if_open(event, "epoch")
        block = self._next_part_in_training(event, "block")
        epoch_count = self._whole_number(event, "epoch_count")
        if epoch_count is not None:
            block = replace(block, epochs=epoch_count)
        if not block.was_started_by_another_rank(self._open_parts.get("block")):
            self._epochs_announced += block.epochs
        self._open(block, "block")

    def _start_epoch(self, event: Event) -> None:
        """Open and count an epoch, and report what is out of order. An epoch that several ranks start counts once.

        It is reported that

        - the epoch starts too long before run_start (`_check_time_of_start`);
        - an epoch is still open (`_report_if_open`);
        - its number is missing, or is not the next one (`_next_part_in_training`).

        From here on `_evaluated_in_epoch_ms` sums the time of the evaluations in this epoch, and `measured` sums its
        windows of steps.

        Args:
            event: An epoch_start.
        """
        self._check_time_of_start(event)
        self._report_if_open(event, "epoch")
        epoch = self._next_part_in_training(event, "epoch")  # its `number` is None if the event states none
        if not epoch.was_started_by_another_rank(self._open_parts.get("epoch")):
            self._epochs_started += 1
        self._evaluated_in_epoch_ms = 0.0
        # The gap since the last block, epoch or evaluation ended, or since the last accuracy if that is later; minus
        # infinity without any. `measured` keeps the gap, because training may have waited for a checkpoint meanwhile.
        since_last_end_ms = event.time_ms - self._latest_end_ms
        self.measured.epoch_starts(event, epoch.number, gap_ms=since_last_end_ms)
        self._open(epoch, "epoch")  # so that `_stop_epoch` finds it

    def _open(self, part: OpenPart, kind: str) -> None:
        """Keep a block, epoch or evaluation as the open one of its kind.

        If another rank has logged the start of the same part, with the same number, that earlier start is kept. In all
        other cases `part` takes the place of the open part, if there is one. The replaced part should have ended, which
        the caller has reported.

        Args:
            part: What has started.
            kind: "block", "epoch" or "eval".
        """
        if not part.was_started_by_another_rank(self._open_parts.get(kind)):
            self._open_parts[kind] = part

    def _next_part_in_training(self, start: Event, kind: str) -> OpenPart:
        """Return the block or epoch that starts at an event. Report an epoch number that is not the next one.

        Args:
            start: A block_start or an epoch_start, which should state the number of the first epoch.
            kind: "block" or "epoch".
        """
        possible_numbers = self._possible_numbers_of_next_epoch()
        number = self._whole_number(start, NUMBER_FIELD_BY_KIND[kind])
        self._warn_of_other_epoch(start, f"{start.key} of epoch", number, possible_numbers)
        return OpenPart(start, number, possible_numbers=possible_numbers)

    def _start_evaluation(self, event: Event) -> None:
        """Open an evaluation. From now on it waits for its accuracy, which may come after its eval_stop.

        The eval_start is reported in these cases, in this order:

        - The eval_start comes too long before run_start.
        - The evaluation before it has not ended.
        - The eval_start states no number of an epoch.
        - The evaluation before it has ended, but has no accuracy.
        - The eval_start states another epoch than the one that is being trained or was trained last.
        - The eval_start states an epoch, and no epoch was trained before.

        A later event of the evaluation that states an epoch must state the epoch of the eval_start. If the eval_start
        states none, the later event must state the trained epoch (`possible_numbers`), or any if the trained epoch is
        not known.

        Args:
            event: An eval_start, which should state the number of the epoch that is evaluated.
        """
        self._check_time_of_start(event)
        self._report_if_open(event, "eval")
        number = self._whole_number(event, NUMBER_FIELD_BY_KIND["eval"])
        self._report_if_previous_has_no_accuracy(event)
        trained_number = self._epoch_to_evaluate()  # of the epoch that is trained now or was last; None: not known
        if number is not None:
            self._report_if_other_epoch_was_trained(event, number, trained_number)
        possible_numbers = () if trained_number is None else (trained_number,)
        evaluation = OpenPart(event, number, possible_numbers=possible_numbers)
        self._open(evaluation, "eval")
        self._evaluation_without_accuracy = evaluation  # only now: the checks above are about the one before

    def _report_if_previous_has_no_accuracy(self, event: Event) -> None:
        """Report that the previous evaluation has ended, but still waits for its accuracy.

        Args:
            event: The eval_start of the next evaluation.
        """
        has_previous_ended = "eval" not in self._open_parts  # one that has not is reported as still open
        if has_previous_ended and self._evaluation_without_accuracy is not None:
            self._report_disorder(event, f"{self._evaluation_without_accuracy} has no accuracy")

    def _report_if_other_epoch_was_trained(self, event: Event, number: int, trained_number: int | None) -> None:
        """Report the start of an evaluation that states another epoch than was trained.

        - The trained epoch is known: it is reported if the event states another one.
        - It is not known, and no epoch has been started or announced: this is reported.
        - It is not known, although there was an epoch, which did not state its number: nothing is reported.

        Args:
            event: An eval_start.
            number: The number of the epoch that the event states.
            trained_number: The number of the epoch that is being trained or was trained last. None if it is not known.
        """
        is_before_first_epoch = self.epochs_counted == 0
        if trained_number is None and is_before_first_epoch:
            self._report_disorder(event, f"evaluation of epoch {number}; no epoch was trained before it")
        elif trained_number is not None and trained_number != number:
            self._report_disorder(event, f"evaluation of epoch {number}; the last trained is {trained_number}")

    def _check_time_of_start(self, event: Event) -> None:
        """Report a block, epoch or evaluation that starts too long before run_start, by the times of the log.

        One that the log has above run_start is not checked here, but at run_start.

        Args:
            event: A block_start, epoch_start or eval_start.
        """
        if self._first_run_start is not None:
            self._check_not_before_start(event, self._first_run_start)

    def _report_if_open(self, event: Event, kind: str) -> None:
        """Report a block, epoch or evaluation that is still open, although it should have ended.

        Args:
            event: The event that shows it, such as the start of the next epoch.
            kind: "block", "epoch" or "eval".
        """
        part = self._open_parts.get(kind)
        if part is not None:
            self._report_disorder(event, f"{part} is still open")

    def _stop_block(self, event: Event) -> None:
        """Close the open block, which is one or more epochs together.

        A block_stop is reported if no block is open, if its first epoch is missing or is not the one that is expected
        after the block_start (both by `_close_part`), or if it states another number of epochs than the block_start.
        The rest depends on the kind of log:

        - A log with events of the epochs: it is reported if the block does not stop after its last epoch.
        - A log of blocks alone: the time of the block is kept in place of the times of its epochs.

        Args:
            event: A block_stop.
        """
        block = self._close_part("block", event)
        if block is None:
            return
        epoch_count = event.metadata.get("epoch_count", block.epochs)  # a block_stop need not state it
        if epoch_count != block.epochs:
            self._report_disorder(event, f"{block} of {block.epochs} epochs stops with {printable(epoch_count)}")
        if self._has_epoch_events:
            self._check_last_epoch_of_block(event, block)
        else:
            took_ms = self._keep_duration(block, event)  # for the comparison with other runs
            self._keep_training_time(block, took_ms, event.line)  # the mean over the epochs, for the check of the pace

    def _stop_epoch(self, event: Event) -> None:
        """Close the open epoch, and hand on how long it took. Report an epoch_stop without an open epoch.

        The time from epoch_start to epoch_stop, with the evaluations in the epoch, is kept for two later checks: the
        comparison with other runs, and the check of the pace. `measured` gets the time without the evaluations, because
        it compares this time with the throughput that the epoch states.

        Args:
            event: An epoch_stop.
        """
        epoch = self._close_part("epoch", event)
        if epoch is None:
            return
        took_ms = self._keep_duration(epoch, event)  # for the comparison with other runs
        self._keep_training_time(epoch, took_ms, event.line)  # for the check of the pace; sets `last_epoch`, too
        # `_evaluated_in_epoch_ms` is the time of the evaluations that ended since `_start_epoch`.
        self.measured.epoch_stops(epoch.number, took_ms - self._evaluated_in_epoch_ms)

    def _stop_evaluation(self, event: Event) -> None:
        """Close the open evaluation, and keep its time. Report an eval_stop without an open evaluation.

        If an epoch is open, the evaluation's time is not part of its training, so `_stop_epoch` will subtract it.

        Args:
            event: An eval_stop.
        """
        evaluation = self._close_part("eval", event)
        if evaluation is None:
            return
        took_ms = self._keep_duration(evaluation, event)
        if self.shortest_evaluation is None or took_ms < self.shortest_evaluation.took_ms:
            self.shortest_evaluation = TimedEvaluation(took_ms, event.line)
        if "epoch" in self._open_parts:
            self._evaluated_in_epoch_ms += took_ms

    def _close_part(self, kind: str, event: Event) -> OpenPart | None:
        """Close and return the block, epoch or evaluation that stops at an event.

        The event should state the same number of an epoch as the start of the part. If the start states none, it should
        be one that was possible there (`expected_numbers`). An event with another number, or without one, is reported.

        Args:
            kind: "block", "epoch" or "eval".
            event: The event at which it stops.

        Returns:
            The part that was open. None if no part of this kind is open, which is reported.
        """
        number = self._whole_number(event, NUMBER_FIELD_BY_KIND[kind])
        part = self._open_parts.pop(kind, None)
        if part is None:
            self._report_disorder(event, f"{event.key}, and no {kind} is open")
            return None
        self._warn_of_other_epoch(event, f"{event.key} of epoch", number, part.expected_numbers)
        return part

    def _keep_training_time(self, part: OpenPart, took_ms: float, line: int) -> None:
        """Keep the time of an epoch, or the mean time of a block's epochs, and the number of the last epoch.

        Args:
            part: An epoch or a block that is over.
            took_ms: How long it took in all, in milliseconds.
            line: The line of its stop event.
        """
        self.last_epoch = part.last_epoch
        if len(self.trained) < EVENTS_KEPT:
            epochs = max(part.epochs, 1)  # a block may announce 0
            self.trained.append(TrainedPart(epoch_ms=took_ms / epochs, line=line))

    def _check_last_epoch_of_block(self, event: Event, block: OpenPart) -> None:
        """Report a block that stops within an epoch, or after another epoch than its last one.

        Two numbers must be equal: `block.last_epoch`, which the block_start announces, and `self.last_epoch`, of the
        last epoch that has ended. If one of them is not known, only an open epoch is reported.

        Args:
            event: The block_stop.
            block: The block.
        """
        if block.last_epoch is None or self.last_epoch is None:
            self._report_if_open(event, "epoch")
            return
        stops_within_epoch = "epoch" in self._open_parts
        stops_after_other_epoch = self.last_epoch != block.last_epoch
        if stops_within_epoch or stops_after_other_epoch:
            # If an epoch is open, `self.last_epoch` is the one before it.
            announced = f"{block} announces epochs {block.number} to {block.last_epoch}"
            self._report_disorder(event, f"{announced}; the last one done is {self.last_epoch}")

    def _keep_duration(self, part: OpenPart, stop: Event) -> float:
        """Keep how long a block, epoch or evaluation took, and return it, in ms.

        An impossible duration is reported: one below 0, or of 0 if the log's clock counts milliseconds and not whole
        seconds. If one rank logged the start and another one the stop, their clocks differ and nothing is reported. An
        epoch or a block of 0 ms is possible in a resumed run that has trained no step so far: the checkpoint may be of
        the epoch's last step.

        Args:
            part: The block, epoch or evaluation, with the event that started it.
            stop: The event at which it stops.
        """
        took_ms = stop.time_ms - part.start.time_ms
        self.run.keep_interval(stop.key, took_ms)
        counts_milliseconds = self.run.tick_ms == 1
        has_one_clock = stop.rank == part.start.rank
        is_of_training = stop.key in (schema.EPOCH_STOP.key, schema.BLOCK_STOP.key)
        may_lack_steps = is_of_training and self.run.is_resumed_without_steps(stop.line)
        is_impossible = took_ms < 0 or (took_ms == 0 and counts_milliseconds and not may_lack_steps)
        if has_one_clock and is_impossible:
            self._add_breach("epoch-time", stop, f"{stop.key} {took_ms} ms after its start")
        return took_ms

    def _warn_of_other_epoch(self, event: Event, what: str, number: int | None, expected: tuple[int, ...]) -> None:
        """Warn if an event states another epoch than it should.

        Args:
            event: The event.
            what: How the message calls it, such as "epoch_start of epoch".
            number: The epoch that the event states. None if it states none, which has been reported already.
            expected: The numbers that it may state. Empty if they are not known: then nothing is checked.
        """
        can_compare = number is not None and len(expected) > 0
        if can_compare and number not in expected:
            expected_numbers = " or ".join(map(str, expected))
            self._report_disorder(event, f"{what} {number}; {expected_numbers} is due")

    def _possible_numbers_of_next_epoch(self) -> tuple[int, ...]:
        """Return the numbers that the next epoch may have: (0, 1) until an epoch has ended, then the one after it.

        It is empty if the last epoch stated no number, and at the start of a run that went on from a checkpoint.
        """
        is_first_of_log = not self.trained
        if is_first_of_log and self.run.is_resumed:
            return ()
        if is_first_of_log:
            return (0, 1)
        if self.last_epoch is None:
            return ()
        return (self.last_epoch + 1,)

    def _epoch_to_evaluate(self) -> int | None:
        """Return the number of the epoch that an evaluation must state if it starts now; None if it is not known."""
        if "epoch" in self._open_parts:
            return self._open_parts["epoch"].number
        if "block" in self._open_parts and not self._has_epoch_events:  # a log of blocks alone
            return self._open_parts["block"].last_epoch
        return self.last_epoch

    def _take_accuracy(self, event: Event) -> None:
        """Check an accuracy, find the number of its epoch, and keep both if the value of the accuracy is a number.

        An accuracy belongs to the evaluation that has started since the accuracy before it, if there is one. The number
        of its epoch comes from the first of these sources that the log has:

        1. The field epoch_num of the accuracy. If the field has no whole number, `epochs_counted` is taken instead.
        2. The number that the eval_start of its evaluation states.
        3. The count of accuracies so far, with this one. Some logs state samples and no epochs.

        In the first case, an accuracy that has no evaluation and repeats the accuracy before, as where each rank logs
        it, is reported and not kept.

        Args:
            event: An eval_accuracy.
        """
        evaluation = self._evaluation_without_accuracy  # None if there is no eval_start since the last accuracy
        self._evaluation_without_accuracy = None  # this event is the accuracy that the evaluation waited for
        if evaluation is not None:
            self._check_not_ahead_of_evaluation(event, evaluation.start)  # reports one of more training than the start
            self._check_not_before_evaluation(event, evaluation.start)  # reports one that is too early
        if "epoch_num" in event.metadata:
            epoch = self._epoch_of_accuracy(event)  # the number in the field, or `epochs_counted`
            if evaluation is None and self._is_repeated_accuracy(event, epoch):
                line_of_first = self.run.evaluations[-1].line
                self._report_disorder(event, f"the accuracy of epoch {epoch} again, as on line {line_of_first}")
                return
            # Reports an accuracy of another epoch than its evaluation, or without one if the log has had an eval_start.
            self._check_epoch_evaluated(event, epoch, evaluation)
            self._check_not_ahead_of_training(event, epoch)  # reports an epoch that is too far ahead
        elif evaluation is not None and evaluation.number is not None:
            epoch = evaluation.number
        else:
            epoch = self.run.number_of_events(schema.EVAL_ACCURACY)  # with this one
        self._keep_accuracy(event, epoch)  # which leaves out a value that is no number

    def _is_repeated_accuracy(self, event: Event, epoch: int) -> bool:
        """Return whether an accuracy repeats the one before, as where each rank logs it.

        It repeats it if value and epoch are equal, and no epoch has started since. The starts are counted, because the
        numbers of the epochs are wrong in some logs.

        Args:
            event: An eval_accuracy.
            epoch: The number of its epoch.
        """
        if not self.run.evaluations:
            return False
        before = self.run.evaluations[-1]
        has_epoch_started_since = self.epochs_counted != before.epochs_counted
        return event.value == before.value and epoch == before.epoch and not has_epoch_started_since

    def _epoch_of_accuracy(self, event: Event) -> int:
        """Return the epoch that an accuracy states; if it is not a whole number, report it and return `epochs_counted`.

        Args:
            event: An eval_accuracy with the field epoch_num.
        """
        stated_epoch = self._whole_number(event, "epoch_num")
        return self.epochs_counted if stated_epoch is None else stated_epoch

    def _check_epoch_evaluated(self, event: Event, epoch: int, evaluation: OpenPart | None) -> None:
        """Report an accuracy without an evaluation of its own, or of another epoch than its evaluation.

        - It has an evaluation: a warning if it is of another epoch than the evaluation.
        - It has none, and the log has had an eval_start: a warning.
        - It has none, and the log has had no eval_start: nothing, because such a log states no starts of evaluations.

        Args:
            event: An eval_accuracy.
            epoch: The number of the epoch that the accuracy is of.
            evaluation: The evaluation that the accuracy is of, by an eval_start since the accuracy before. None if
                there is none.
        """
        if evaluation is not None:
            self._warn_of_other_epoch(event, "an accuracy of epoch", epoch, evaluation.expected_numbers)
        elif self.run.number_of_events(schema.EVAL_START):
            self._report_disorder(event, f"an accuracy of epoch {epoch} without an evaluation of its own")

    def _check_not_ahead_of_evaluation(self, event: Event, start: Event) -> None:
        """Report an accuracy that states more training than the eval_start of its evaluation, in epochs or samples.

        Args:
            event: An eval_accuracy.
            start: The eval_start. What one of the two does not state as a number is not compared.
        """
        most_ahead = self._collector.strict_rules["accuracy-ahead"].bounds["ahead"]
        for name in _TRAINED_UNTIL_EVALUATION:
            stated: Any = event.metadata.get(name)
            at_start: Any = start.metadata.get(name)
            if is_number(stated) and is_number(at_start) and stated - at_start > most_ahead:
                actual = f"an accuracy of {name} {stated}; the eval_start of line {start.line} has {at_start}"
                self._add_breach("accuracy-ahead", event, actual)

    def _check_not_before_evaluation(self, event: Event, start: Event) -> None:
        """Report an accuracy that is earlier than the start of its evaluation.

        As much is allowed as the clocks of two ranks may be apart, because another rank may have logged the start.
        Nothing is reported if epoch or samples of the two events differ, also where only one event states them: they
        are of two evaluations then.

        Args:
            event: An eval_accuracy.
            start: The eval_start above it.
        """
        early_ms = start.time_ms - event.time_ms
        is_of_other = any(event.metadata.get(name) != start.metadata.get(name) for name in _TRAINED_UNTIL_EVALUATION)
        if early_ms > self._allowed_between_ranks_ms and not is_of_other:
            early = f"{significant(early_ms, digits=10)} ms"
            self._add_breach("run-time", event, f"eval_accuracy {early} before the eval_start of line {start.line}")

    def _check_not_ahead_of_training(self, event: Event, number: int) -> None:
        """Report an accuracy of an epoch that is too far ahead of the epochs started or announced so far.

        Nothing is checked if the log has no epochs or blocks so far, or if the run was resumed, so that earlier epochs
        are in another log.

        Args:
            event: An eval_accuracy.
            number: The number of its epoch.
        """
        if self.run.is_resumed or self.epochs_counted == 0:
            return
        epochs_ahead = number - self.epochs_counted
        if epochs_ahead > self._collector.strict_rules["epochs-counted"].bounds["ahead"]:
            actual = f"an accuracy of epoch {number}; {self.epochs_counted} were started or announced"
            self._add_breach("epochs-counted", event, actual)

    def _keep_accuracy(self, event: Event, number: int) -> None:
        """Keep an accuracy, unless its value is not a number.

        Once EVENTS_KEPT are kept, a new one replaces the last one. So the last one of the run is always kept.

        Args:
            event: An eval_accuracy.
            number: The number of its epoch.
        """
        if not is_number(event.value):
            return
        del self.run.evaluations[EVENTS_KEPT - 1 :]  # makes room for this one; nothing while there are fewer
        accuracy = float(event.value)
        self.run.evaluations.append(Evaluation(number, accuracy, event.line, self.epochs_counted, event.time_ms))
