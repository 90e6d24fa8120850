"""The order of a run, event by event: its clock, and its parts, which are blocks, epochs and evaluations."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_number
from compliance.rules import FindingCollector
from compliance.strict.measured import Measured
from compliance.strict.parts import NUMBER_FIELD_BY_KIND, START_KEYS, STOP_KEYS, OpenPart, TimedEvaluation, TrainedPart
from runlog import schema
from runlog.digits import significant
from runlog.reader import Event
from runlog.text import printable

ORDER = "event-order"  # a rule of form, so a breach of it only warns
# Keys by whose times a score or a rate is computed. All others only annotate the run: some log them at any time.
_KEYS_OF_THE_CLOCK = START_KEYS | STOP_KEYS | {schema.RUN_START.key, schema.RUN_STOP.key, schema.EVAL_ACCURACY.key}
_KEYS_OF_THE_CLOCK |= {schema.STEP_WINDOW.key, schema.EPOCH_THROUGHPUT.key, "throughput", "tracked_stats"}
KEYS_OF_EVERY_RANK = frozenset({schema.INIT_START.key, schema.CACHE_CLEAR.key})  # each with a clock of its own


class RunOrder:
    """Follows a run from event to event, and reports what is out of order. Times are Unix milliseconds."""

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.run = run
        self.measured = Measured(run, collector)
        self.last_epoch: int | None = None  # the number of the last epoch that was trained
        self.trained: list[TrainedPart] = []
        self._collector = collector
        self._latest_ms = -math.inf  # the latest time of the events of _KEYS_OF_THE_CLOCK so far
        self._first_run_start: Event | None = None
        self._first_run_stop: Event | None = None
        self._epochs_started = 0  # how many epoch_start the log has so far; some logs have blocks alone
        self._epochs_announced = 0  # how many epochs the blocks so far have, by their block_start
        self._open_parts: dict[str, OpenPart] = {}  # by kind: block, epoch and eval
        # The last evaluation, from its start until its accuracy comes. It waits while it is open, and may wait longer.
        self._waiting_evaluation: OpenPart | None = None
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
        """Check the time of the next event of the log, and pass it on to the method for its key.

        Args:
            event: The event, in the order of the log. `run` must have counted it before, if its key is known, because
                the checks use these counts.
        """
        self._check_clock(event)
        handle = self._handlers.get(event.key)
        if handle is not None:
            handle(event)
        elif event.key == schema.EPOCH_THROUGHPUT.key:
            self.measured.check_epoch_throughput(event, self._whole_number(event, "epoch_num"))
        else:
            self.measured.take(event)

    def _add_breach(self, rule: str, event: Event, actual: str, expected: str | None = None) -> None:
        self._collector.add_breach(rule, event.line, actual, expected)

    def _whole_number(self, event: Event, name: str) -> int | None:
        """Return the number in a field of an event's metadata: that of an epoch, or how many epochs there are.

        Args:
            event: An event that should have the field.
            name: The field, such as "epoch_num".

        Returns:
            The number, as 39 for 39.0. None if the field is missing or not a whole number from 0 on, which is then
            reported.
        """
        value: Any = event.metadata.get(name)
        if is_number(value) and 0 <= value < 2**31 and value == int(value):  # others write 39.0
            return int(value)
        rule = "value-type" if event.key == schema.EVAL_ACCURACY.key else ORDER
        self._add_breach(rule, event, f"{event.key} has {name} {printable(value)}", f"{event.key} has {name}, a number")
        return None

    # --- the clock ---

    def _check_clock(self, event: Event) -> None:
        """Report an event whose time is before that of an event above it in the log.

        Each event is compared with those of _KEYS_OF_THE_CLOCK, such as epoch_start, because scores are computed from
        their times. An event of these keys may fail the log, and any other only gets a warning.

        Args:
            event: The next event of the log. Events that each rank logs are not checked, because the clocks of ranks
                differ.
        """
        if event.key in _KEYS_OF_THE_CLOCK:
            self._check_event_of_the_clock(event)
        elif event.key not in KEYS_OF_EVERY_RANK:  # these have other ranks' clocks
            self._check_not_earlier(event, ORDER, allowed_ms=0.0)

    def _check_event_of_the_clock(self, event: Event) -> None:
        """Report an event of _KEYS_OF_THE_CLOCK that is too early, or that comes after the first run_stop.

        It is too early if it is more than `back_ms`, a bound of the rule time-order, before the latest time so far: as
        clocks are corrected during a run, a little is allowed. The run_stop of other nodes may follow the first one.

        Args:
            event: The event, whose time becomes the latest one unless it is earlier.
        """
        allowed_ms = self._collector.strict_rules["time-order"].bounds["back_ms"]
        self._check_not_earlier(event, "time-order", allowed_ms=allowed_ms)
        self._latest_ms = max(self._latest_ms, event.time_ms)
        first_stop = self._first_run_stop
        if first_stop is not None and event.key != schema.RUN_STOP.key:
            self._add_breach(ORDER, event, f"{event.key} after the run_stop of line {first_stop.line}")

    def _check_not_earlier(self, event: Event, rule: str, *, allowed_ms: float) -> None:
        """Report an event that is earlier than the latest time of the clock's events above it.

        Args:
            event: The event to check.
            rule: The rule that is broken: "time-order", or ORDER, which only warns.
            allowed_ms: By how many milliseconds the event may be earlier.
        """
        back_ms = self._latest_ms - event.time_ms
        if back_ms > allowed_ms:
            before = f"{significant(back_ms, digits=10)} ms before an event above it"
            self._add_breach(rule, event, f"{printable(event.key)} at {event.time_ms} ms, {before}")

    def _check_not_before_start(self, part_start: Event, start_ms: float) -> None:
        """Report a block, epoch or evaluation that starts too long before run_start, by the times of the log.

        Args:
            part_start: The event that starts the block, epoch or evaluation.
            start_ms: The time of the first run_start, in Unix milliseconds.
        """
        before_ms = start_ms - part_start.time_ms
        if before_ms > self._collector.strict_rules["before-run-start"].bounds["before_ms"]:
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
            self._begin_run(event)
        else:
            self._compare_time_with_first(event, self._first_run_start)

    def _begin_run(self, start: Event) -> None:
        """Begin the run, and report the first block, epoch or evaluation that the log has above its run_start.

        Its place in the log is one breach. If its time is too long before that of run_start, this is another.

        Args:
            start: The first run_start of the log.
        """
        self.measured.begin_window_sums(start)
        part_start = self._first_start_of_a_part()
        if part_start is not None:
            self._add_breach(ORDER, part_start, f"{part_start.key} above run_start")
            self._check_not_before_start(part_start, start.time_ms)

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
            self._add_breach(ORDER, stop, f"{part} is open")
        if self._waiting_evaluation is not None:
            self._add_breach(ORDER, stop, f"{self._waiting_evaluation} has no accuracy")

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
        """Report another run_start or run_stop that is at another time than the first.

        It may be another node's, so a difference up to `repeat_ms` (1 s), a bound of the rule run-time, only warns. If
        a run_start comes after the run_stop, the message says that the file holds two runs.

        Args:
            event: A later run_start or run_stop.
            first: The first event of the same key.
        """
        apart_ms = abs(event.time_ms - first.time_ms)
        if apart_ms:
            is_far = apart_ms > self._collector.strict_rules["run-time"].bounds["repeat_ms"]
            actual = f"another {event.key}, {significant(apart_ms, digits=10)} ms from that of line {first.line}"
            if event.key == schema.RUN_START.key and self._first_run_stop is not None:
                actual += " and after its run_stop: the file holds two runs, give each a file of its own"
            self._add_breach("run-time" if is_far else ORDER, event, actual)

    # --- blocks, epochs and evaluations ---

    def _start_block(self, event: Event) -> None:
        """Open a block, which is several epochs together, and report what is out of order.

        The event should state the number of the block's first epoch, and how many epochs the block has. A block that
        does not state how many counts as one epoch.

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
        self._epochs_announced += block.epochs
        self._open_parts["block"] = block

    def _start_epoch(self, event: Event) -> None:
        """Open and count an epoch, and report what is out of order.

        Args:
            event: An epoch_start.
        """
        self._check_time_of_start(event)
        self._report_if_open(event, "epoch")
        epoch = self._next_part_in_training(event, "epoch")
        self._epochs_started += 1
        self._evaluated_in_epoch_ms = 0.0
        self.measured.epoch_starts(event, epoch.number)
        self._open_parts["epoch"] = epoch

    def _next_part_in_training(self, start: Event, kind: str) -> OpenPart:
        """Return the block or epoch that starts at an event. Report an epoch number that is not the next one.

        Args:
            start: A block_start or an epoch_start, which should state the number of the first epoch.
            kind: "block" or "epoch".
        """
        due = self._numbers_of_next_epoch()
        number = self._whole_number(start, NUMBER_FIELD_BY_KIND[kind])
        self._warn_if_not_due(start, f"{start.key} of epoch", number, due)
        return OpenPart(start, number, due=due)

    def _start_evaluation(self, event: Event) -> None:
        """Open an evaluation, and report what is out of order.

        The evaluation before it must have ended and have its accuracy. From now on the new evaluation waits for its own
        accuracy, which may come after its eval_stop.

        Args:
            event: An eval_start, which should state the number of the epoch that is evaluated.
        """
        self._check_time_of_start(event)
        self._report_if_open(event, "eval")
        number = self._whole_number(event, NUMBER_FIELD_BY_KIND["eval"])
        self._report_if_previous_has_no_accuracy(event)
        number_due = self._epoch_to_evaluate()
        if number is not None:
            self._report_if_not_trained(event, number, number_due)
        due = () if number_due is None else (number_due,)
        evaluation = OpenPart(event, number, due=due)
        self._open_parts["eval"] = evaluation
        self._waiting_evaluation = evaluation

    def _report_if_previous_has_no_accuracy(self, event: Event) -> None:
        """Report that the previous evaluation has ended, but still waits for its accuracy.

        Args:
            event: The eval_start of the next evaluation.
        """
        is_previous_open = "eval" in self._open_parts
        if self._waiting_evaluation is not None and not is_previous_open:
            self._add_breach(ORDER, event, f"{self._waiting_evaluation} has no accuracy")

    def _report_if_not_trained(self, event: Event, number: int, number_due: int | None) -> None:
        """Report the start of an evaluation that states another epoch than it should.

        Args:
            event: An eval_start.
            number: The number of the epoch that the event states.
            number_due: The number of the epoch that is being trained or was trained last. None if it is not known: then
                the evaluation is only reported if no epoch has been started or announced before it.
        """
        if number_due is None:
            if not self.epochs_counted:
                self._add_breach(ORDER, event, f"evaluation of epoch {number}; no epoch was trained before it")
        elif number != number_due:
            self._add_breach(ORDER, event, f"evaluation of epoch {number}; the last trained is {number_due}")

    def _check_time_of_start(self, event: Event) -> None:
        """Report a part that starts too long before run_start. One that the log has above run_start is checked there.

        Args:
            event: A block_start, epoch_start or eval_start.
        """
        if self._first_run_start is not None:
            self._check_not_before_start(event, self._first_run_start.time_ms)

    def _report_if_open(self, event: Event, kind: str) -> None:
        """Report a block, epoch or evaluation that is still open, although it should have ended.

        Args:
            event: The event that shows it, such as the start of the next epoch.
            kind: "block", "epoch" or "eval".
        """
        part = self._open_parts.get(kind)
        if part is not None:
            self._add_breach(ORDER, event, f"{part} is still open")

    def _stop_block(self, event: Event) -> None:
        """Close the open block. Report a block_stop without an open block.

        In a log with events of the epochs, which have the times, the block must stop after its last epoch. In a log of
        blocks alone, the mean time of the block's epochs is kept.

        Args:
            event: A block_stop.
        """
        block = self._close_part("block", event)
        if block is None:
            return
        if self._has_epoch_events:
            self._check_last_epoch_of_block(event, block)
        else:
            took_ms = self._keep_duration(block, event)
            self._keep_training_time(block, took_ms, event.line)

    def _stop_epoch(self, event: Event) -> None:
        """Close the open epoch, and keep its time. Report an epoch_stop without an open epoch.

        The time without the evaluations in it goes to `measured`, which compares it with the epoch's throughput.

        Args:
            event: An epoch_stop.
        """
        epoch = self._close_part("epoch", event)
        if epoch is None:
            return
        took_ms = self._keep_duration(epoch, event)
        self._keep_training_time(epoch, took_ms, event.line)
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

        An event that states no epoch, or another one than the start, is reported.

        Args:
            kind: "block", "epoch" or "eval".
            event: The event at which it stops.

        Returns:
            The part that was open. None if no part of this kind is open, which is reported.
        """
        number = self._whole_number(event, NUMBER_FIELD_BY_KIND[kind])
        part = self._open_parts.pop(kind, None)
        if part is None:
            self._add_breach(ORDER, event, f"{event.key}, and no {kind} is open")
            return None
        self._warn_if_not_due(event, f"{event.key} of epoch", number, part.numbers_due)
        return part

    def _keep_training_time(self, part: OpenPart, took_ms: float, line: int) -> None:
        """Keep the time of an epoch, or the mean time of a block's epochs, and the number of the last epoch.

        Args:
            part: An epoch or a block that is over.
            took_ms: How long it took in all, in milliseconds.
            line: The line of its stop event.
        """
        self.last_epoch = part.last
        if len(self.trained) < EVENTS_KEPT:
            self.trained.append(TrainedPart(epoch_ms=took_ms / max(part.epochs, 1), line=line))

    def _check_last_epoch_of_block(self, event: Event, block: OpenPart) -> None:
        """Report a block that stops within an epoch, or whose last epoch is not the last one trained.

        Args:
            event: The block_stop.
            block: The block. If the number of its last epoch, or of the last epoch trained, is not known, only an open
                epoch is reported.
        """
        if block.last is None or self.last_epoch is None:
            self._report_if_open(event, "epoch")
        elif "epoch" in self._open_parts or self.last_epoch != block.last:
            announced = f"{block} announces epochs {block.number} to {block.last}"
            self._add_breach(ORDER, event, f"{announced}; the last one done is {self.last_epoch}")

    def _keep_duration(self, part: OpenPart, stop: Event) -> float:
        """Keep how long a block, epoch or evaluation took, and return it, in ms. Report a duration that cannot be.

        Args:
            part: The block, epoch or evaluation, with the event that started it.
            stop: The event at which it stops.

        Returns:
            The duration. One below 0 is reported; so is one of 0, unless the log's clock counts whole seconds.
        """
        took_ms = stop.time_ms - part.start.time_ms
        self.run.keep_interval(stop.key, took_ms)
        counts_milliseconds = self.run.tick_ms == 1
        if took_ms < 0 or (took_ms == 0 and counts_milliseconds):
            self._add_breach("epoch-time", stop, f"{stop.key} {took_ms} ms after its start")
        return took_ms

    def _warn_if_not_due(self, event: Event, what: str, number: int | None, due: tuple[int, ...]) -> None:
        """Warn if an event states another epoch than it should.

        Args:
            event: The event.
            what: How the message calls it, such as "epoch_start of epoch".
            number: The epoch that the event states. None if it states none, which has been reported already.
            due: The numbers that it may state. Empty if they are not known: then nothing is checked.
        """
        if number is None or not due or number in due:
            return
        numbers_due = " or ".join(map(str, due))
        self._add_breach(ORDER, event, f"{what} {number}; {numbers_due} is due")

    def _numbers_of_next_epoch(self) -> tuple[int, ...]:
        """Return the numbers that the next epoch may have: 0 or 1 until an epoch has ended, then the one after it.

        It is empty if the last epoch stated no number, and at the start of a run that went on from a checkpoint.
        """
        if not self.trained:
            return () if self.run.is_resumed else (0, 1)
        return () if self.last_epoch is None else (self.last_epoch + 1,)

    def _epoch_to_evaluate(self) -> int | None:
        """Return the number of the epoch that an evaluation must state if it starts now; None if it is not known."""
        if "epoch" in self._open_parts:
            return self._open_parts["epoch"].number
        if "block" in self._open_parts and not self._has_epoch_events:  # a log of blocks alone
            return self._open_parts["block"].last
        return self.last_epoch

    def _take_accuracy(self, event: Event) -> None:
        """Keep an accuracy, if it is a number, with the number of its epoch.

        The event states the epoch, or else the evaluation that waits for this accuracy does. In logs that count samples
        neither does: there the accuracies are numbered 1, 2, ...

        Args:
            event: An eval_accuracy.
        """
        evaluation = self._waiting_evaluation  # None if there is no eval_start since the last accuracy
        self._waiting_evaluation = None
        if "epoch_num" in event.metadata:
            epoch = self._epoch_of_accuracy(event)
            self._check_epoch_evaluated(event, epoch, evaluation)
            self._check_not_ahead_of_training(event, epoch)
        elif evaluation is not None and evaluation.number is not None:
            epoch = evaluation.number
        else:
            epoch = self.run.number_of_events(schema.EVAL_ACCURACY)  # with this one
        self._keep_accuracy(event, epoch)

    def _epoch_of_accuracy(self, event: Event) -> int:
        """Return the epoch that an accuracy states; if it is not a whole number, report it and return `epochs_counted`.

        Args:
            event: An eval_accuracy with the field epoch_num.
        """
        stated_epoch = self._whole_number(event, "epoch_num")
        return self.epochs_counted if stated_epoch is None else stated_epoch

    def _check_epoch_evaluated(self, event: Event, epoch: int, evaluation: OpenPart | None) -> None:
        """Report an accuracy without an evaluation of its own, or of another epoch than that evaluation.

        Args:
            event: An eval_accuracy.
            epoch: The number of the epoch that the accuracy is of.
            evaluation: The evaluation that waited for the accuracy. None if none did; in a log without any eval_start,
                this is not reported.
        """
        if evaluation is not None:
            self._warn_if_not_due(event, "an accuracy of epoch", epoch, evaluation.numbers_due)
        elif self.run.number_of_events(schema.EVAL_START):
            self._add_breach(ORDER, event, f"an accuracy of epoch {epoch} without an evaluation of its own")

    def _check_not_ahead_of_training(self, event: Event, number: int) -> None:
        """Report an accuracy of an epoch that is too far ahead of the epochs started or announced so far.

        Nothing is checked if the log has no epochs or blocks so far, or if the run was resumed, so that earlier epochs
        are in another log.

        Args:
            event: An eval_accuracy.
            number: The number of its epoch.
        """
        epochs_ahead = 0 if self.run.is_resumed else number - self.epochs_counted
        if self.epochs_counted and epochs_ahead > self._collector.strict_rules["epochs-counted"].bounds["ahead"]:
            actual = f"an accuracy of epoch {number}; {self.epochs_counted} were started or announced"
            self._add_breach("epochs-counted", event, actual)

    def _keep_accuracy(self, event: Event, number: int) -> None:
        """Keep an accuracy, unless its value is not a number.

        Once EVENTS_KEPT are kept, a new one replaces the last one. So the last one of the run is always kept.

        Args:
            event: An eval_accuracy.
            number: The number of its epoch.
        """
        if is_number(event.value):
            del self.run.evaluations[EVENTS_KEPT - 1 :]
            accuracy = float(event.value)
            self.run.evaluations.append(Evaluation(number, accuracy, event.line, self.epochs_counted, event.time_ms))
