"""The order of a run, event by event: its start and end, and its parts, which are blocks, epochs and evaluations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_number
from compliance.rules import FindingCollector
from compliance.strict.event_times import ORDER, EventTimes, times_the_run
from compliance.strict.measured import THROUGHPUT_RULE, Measured
from compliance.strict.parts import NUMBER_FIELD_BY_KIND, START_KEYS, OpenPart, TimedEvaluation, TrainedPart
from runlog import schema
from runlog.digits import significant
from runlog.reader import Event
from runlog.text import printable

# Rules that a missing or wrong number breaks, by the event's key; ORDER for all others. ORDER only warns, but scores
# need the epochs of accuracies.
_RULES_OF_NUMBERS = {schema.EVAL_ACCURACY.key: "value-type", schema.EPOCH_THROUGHPUT.key: THROUGHPUT_RULE}
# Fields in the metadata of an evaluation's events: after how many epochs or samples of training it is done.
_FIELDS_OF_TRAINING = ("epoch_num", "samples_count")


class RunOrder:
    """Follows a run from event to event, and reports what is out of order. Times are Unix milliseconds.

    The parts of a run are blocks, epochs and evaluations. A block is one or more epochs together; some logs have blocks
    alone. `measured` follows the windows of steps, the throughputs and the checkpoints in these parts.
    """

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.run = run
        self.measured = Measured(run, collector)
        self.times = EventTimes(collector)
        self.last_epoch: int | None = None  # the number of the last epoch that was trained
        self.trained: list[TrainedPart] = []
        self._collector = collector
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
        """Take the next event of the log: check its time, and then its place in the run.

        `LoggedRun.take` must have counted the event before, because the checks use these counts.

        Args:
            event: The event, in the order of the log.
        """
        if self._first_run_start is None:
            self.times.note_event_before_run(event)
        self.times.check(event)
        self._report_if_after_run(event)
        if event.key in self._handlers:
            self._handlers[event.key](event)
        else:  # a window or a checkpoint, for instance
            self.measured.take(event)

    def _take_throughput(self, event: Event) -> None:
        self.measured.check_epoch_throughput(event, self._whole_number(event, "epoch_num"))

    def _add_breach(self, rule: str, event: Event, actual: str, expected: str | None = None) -> None:
        self._collector.add_breach(rule, event.line, actual, expected)

    def _report_disorder(self, event: Event, actual: str) -> None:
        """Report an event that is out of order, by the rule `event-order`, which only warns."""
        self._add_breach(ORDER, event, actual)

    def _whole_number(self, event: Event, name: str) -> int | None:
        """Return the whole number in a field of an event's metadata; report the field if it has no such number.

        The number is that of an epoch, or in the field epoch_count how many epochs a block has.

        Args:
            event: An event that should have the field.
            name: The field, such as "epoch_num".

        Returns:
            The number, from 0 to 2^31 - 1. A float such as 39.0 gives 39. None if the field was reported.
        """
        value: Any = event.metadata.get(name)
        if is_number(value) and 0 <= value < 2**31 and value == int(value):  # logs of other projects may have 39.0
            return int(value)
        broken_rule = _RULES_OF_NUMBERS.get(event.key, ORDER)
        actual = f"{event.key} has {name} {printable(value)}"
        self._add_breach(broken_rule, event, actual, expected=f"{event.key} has {name}, a number")
        return None

    def _report_if_after_run(self, event: Event) -> None:
        """Report an event below the first run_stop that times the run, unless it is the run_stop of another node.

        Args:
            event: The next event of the log.
        """
        first_stop = self._first_run_stop
        if first_stop is not None and times_the_run(event) and event.key != schema.RUN_STOP.key:
            self._report_disorder(event, f"{event.key} after the run_stop of line {first_stop.line}")

    # --- the start and the end of the run ---

    def _take_run_start(self, event: Event) -> None:
        """Begin the run at its first run_start. Any later one, as of another node, is only compared with the first.

        Args:
            event: A run_start.
        """
        if self._first_run_start is None:
            self._first_run_start = event
            self.times.check_date(event)
            self._begin_run(event)
        else:
            self._compare_time_with_first(event, self._first_run_start)

    def _begin_run(self, start: Event) -> None:
        """Begin the sums over the windows at run_start, and report the first block, epoch or evaluation above it.

        Args:
            start: The first run_start of the log.
        """
        self.measured.begin_window_sums(start)
        part_start = self._first_start_of_a_part()
        if part_start is not None:
            self._report_disorder(part_start, f"{part_start.key} above run_start")
            self.times.check_not_before_start(part_start, start)  # its time may be too early, too

    def _first_start_of_a_part(self) -> Event | None:
        """Return the first event so far that starts a block, an epoch or an evaluation; None if there is none."""
        first_starts = [event for key, event in self.run.first_events.items() if key in START_KEYS]
        return min(first_starts, key=lambda event: event.line, default=None)

    def _take_run_stop(self, event: Event) -> None:
        """End the run at its first run_stop. Any later one, as of another node, is only compared with the first.

        Args:
            event: A run_stop.
        """
        if self._first_run_stop is None:
            self._first_run_stop = event
            self.times.check_date(event)
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
        """Report a further run_start or run_stop, mostly of another node, that is not at the time of the first.

        Args:
            event: A later run_start or run_stop.
            first: The first event of the same key.
        """
        apart_ms = abs(event.time_ms - first.time_ms)
        if apart_ms == 0:
            return
        actual = f"another {event.key}, {significant(apart_ms, digits=10)} ms from that of line {first.line}"
        begins_another_run = event.key == schema.RUN_START.key and self._first_run_stop is not None
        if begins_another_run:
            actual += " and after its run_stop: the file holds two runs, give each a file of its own"
        if apart_ms > self.times.allowed_between_ranks_ms:
            self._add_breach("run-time", event, actual)
        else:  # two nodes' clocks may be so far apart
            self._report_disorder(event, actual)

    # --- blocks, epochs and evaluations ---

    def _start_block(self, event: Event) -> None:
        """Open a block, which is one or more epochs together, and report what is out of order.

        The event should state the number of the block's first epoch, and how many epochs the block has. A block that
        does not state how many counts as one epoch.

        Args:
            event: A block_start.
        """
        # These checks come first, because they are about what was open before.
        self._check_time_of_start(event)
        self._report_if_open(event, "block")
        self._report_if_open(event, "epoch")
        block = self._next_part_in_training(event, "block")
        epoch_count = self._whole_number(event, "epoch_count")
        if epoch_count is not None:
            block = replace(block, epochs=epoch_count)
        is_open_already = self._open_unless_open(block, "block")
        if not is_open_already:  # another rank may have started it
            self._epochs_announced += block.epochs

    def _start_epoch(self, event: Event) -> None:
        """Open and count an epoch, and report what is out of order.

        Args:
            event: An epoch_start, which should state the number of the epoch.
        """
        # These checks come first, because they are about what was open before.
        self._check_time_of_start(event)
        self._report_if_open(event, "epoch")
        epoch = self._next_part_in_training(event, "epoch")  # its `number` is None if the event states none
        is_open_already = self._open_unless_open(epoch, "epoch")
        if not is_open_already:  # another rank may have started it
            self._epochs_started += 1
        self._evaluated_in_epoch_ms = 0.0  # `_stop_evaluation` adds to it, `_stop_epoch` subtracts it

        gap_ms = event.time_ms - self.times.last_end_ms  # minus infinity if nothing has ended before
        self.measured.epoch_starts(event, epoch.number, gap_ms=gap_ms)

    def _open_unless_open(self, part: OpenPart, kind: str) -> bool:
        """Keep a block, epoch or evaluation as the open one of its kind, and return whether it was open already.

        It was if another rank has logged the start of the same one.

        Args:
            part: What has started.
            kind: "block", "epoch" or "eval".
        """
        is_open_already = part.was_started_by_another_rank(self._open_parts.get(kind))
        if not is_open_already:
            self._open_parts[kind] = part  # in place of one that should have ended, which the caller has reported
        return is_open_already

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
        """Open an evaluation, and report what is out of order.

        From now on the evaluation waits for its accuracy, which may come after its eval_stop.

        Args:
            event: An eval_start, which should state the number of the epoch that is evaluated.
        """
        self._check_time_of_start(event)
        self._report_if_open(event, "eval")
        stated_epoch = self._whole_number(event, NUMBER_FIELD_BY_KIND["eval"])  # reports a missing number
        self._report_if_previous_has_no_accuracy(event)
        trained_epoch = self._epoch_to_evaluate()
        if stated_epoch is not None:
            self._report_if_other_epoch_was_trained(event, stated_epoch, trained_epoch)
        # The accuracy and eval_stop must be of `stated_epoch`. If the event states none, of the epoch that was trained.
        possible_numbers = () if trained_epoch is None else (trained_epoch,)
        evaluation = OpenPart(event, stated_epoch, possible_numbers=possible_numbers)
        self._open_unless_open(evaluation, "eval")
        self._evaluation_without_accuracy = evaluation  # in place of the one before, which the checks above are about

    def _report_if_previous_has_no_accuracy(self, event: Event) -> None:
        """Report that the previous evaluation has ended, but still waits for its accuracy.

        Args:
            event: The eval_start of the next evaluation.
        """
        has_previous_ended = "eval" not in self._open_parts  # one that has not is reported as still open
        if has_previous_ended and self._evaluation_without_accuracy is not None:
            self._report_disorder(event, f"{self._evaluation_without_accuracy} has no accuracy")

    def _report_if_other_epoch_was_trained(self, event: Event, stated_epoch: int, trained_epoch: int | None) -> None:
        """Report the start of an evaluation that states another epoch than was trained.

        Args:
            event: An eval_start.
            stated_epoch: The number of the epoch that the event states.
            trained_epoch: The number of the epoch that is being trained or was trained last. None if it is not known.
        """
        if trained_epoch is not None:
            if trained_epoch != stated_epoch:
                actual = f"evaluation of epoch {stated_epoch}; the last trained is {trained_epoch}"
                self._report_disorder(event, actual)
        elif self.epochs_counted == 0:  # otherwise there was an epoch, which did not state its number
            self._report_disorder(event, f"evaluation of epoch {stated_epoch}; no epoch was trained before it")

    def _check_time_of_start(self, event: Event) -> None:
        """Report a block, epoch or evaluation that starts too long before run_start, by the times of the log.

        One that the log has above run_start is not checked here, but at run_start.

        Args:
            event: A block_start, epoch_start or eval_start.
        """
        if self._first_run_start is not None:
            self.times.check_not_before_start(event, self._first_run_start)

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
        """Close the open block, which is one or more epochs together, and report what is out of order.

        Args:
            event: A block_stop.
        """
        block = self._close_part("block", event)  # reports a missing block, or another first epoch
        if block is None:
            return
        epoch_count = event.metadata.get("epoch_count", block.epochs)  # a block_stop need not state it
        if epoch_count != block.epochs:
            self._report_disorder(event, f"{block} of {block.epochs} epochs stops with {printable(epoch_count)}")
        if self._has_epoch_events:
            self._report_if_not_at_last_epoch(event, block)
        else:  # a log of blocks alone: the block's time stands for the times of its epochs
            took_ms = self._take_duration(block, event)
            self._keep_training_time(block, took_ms, event.line)

    def _stop_epoch(self, event: Event) -> None:
        """Close the open epoch, and hand on how long it took. Report an epoch_stop without an open epoch.

        Args:
            event: An epoch_stop.
        """
        epoch = self._close_part("epoch", event)
        if epoch is None:
            return
        took_ms = self._take_duration(epoch, event)  # with the evaluations in the epoch
        self._keep_training_time(epoch, took_ms, event.line)
        training_ms = took_ms - self._evaluated_in_epoch_ms
        self.measured.epoch_stops(epoch.number, training_ms)

    def _stop_evaluation(self, event: Event) -> None:
        """Close the open evaluation, and keep its time. Report an eval_stop without an open evaluation.

        If an epoch is open, the evaluation's time is not part of its training, so `_stop_epoch` will subtract it.

        Args:
            event: An eval_stop.
        """
        evaluation = self._close_part("eval", event)
        if evaluation is None:
            return
        took_ms = self._take_duration(evaluation, event)
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
        """Keep the time of an epoch, or the mean time of a block's epochs, for the check of the pace.

        The number of the epoch becomes `last_epoch`, for a block that of its last epoch.

        Args:
            part: An epoch or a block that is over.
            took_ms: How long it took in all, in milliseconds.
            line: The line of its stop event.
        """
        self.last_epoch = part.last_epoch
        if len(self.trained) < EVENTS_KEPT:
            epochs = max(part.epochs, 1)  # a block may announce 0
            self.trained.append(TrainedPart(epoch_ms=took_ms / epochs, line=line))

    def _report_if_not_at_last_epoch(self, event: Event, block: OpenPart) -> None:
        """Report a block that stops while an epoch is open, or before or after the last epoch that it announced.

        For instance, a block_start announces the epochs 5 to 8, and the block_stop comes after epoch 7.

        Args:
            event: The block_stop.
            block: The block.
        """
        announced_last = block.last_epoch  # None if the block_start states no number
        last_done = self.last_epoch  # if an epoch is open, the one before it; None if its number is not known
        if announced_last is None or last_done is None:  # then an open epoch is all that can be reported
            self._report_if_open(event, "epoch")
            return
        is_epoch_open = "epoch" in self._open_parts
        if is_epoch_open or last_done != announced_last:
            announced = f"{block} announces epochs {block.number} to {announced_last}"
            self._report_disorder(event, f"{announced}; the last one done is {last_done}")

    def _take_duration(self, part: OpenPart, stop: Event) -> float:
        """Return how long a block, epoch or evaluation took, in ms, and report a duration that is impossible.

        The duration is also kept, for the comparison with other runs.

        Args:
            part: The block, epoch or evaluation, with the event that started it.
            stop: The event at which it stops.
        """
        took_ms = stop.time_ms - part.start.time_ms
        self.run.keep_interval(stop.key, took_ms)
        has_one_clock = stop.rank == part.start.rank  # otherwise the clocks of two ranks differ, and nothing is known
        is_impossible = took_ms < 0 or (took_ms == 0 and not self._may_take_0_ms(stop))
        if has_one_clock and is_impossible:
            self._add_breach("epoch-time", stop, f"{stop.key} {took_ms} ms after its start")
        return took_ms

    def _may_take_0_ms(self, stop: Event) -> bool:
        """Return whether a block, epoch or evaluation may stop at the time of its start, by the log's clock.

        Args:
            stop: The event at which it stops.
        """
        counts_milliseconds = self.run.tick_ms == 1
        if not counts_milliseconds:  # but whole seconds
            return True
        # A run that was resumed after the last step of an epoch has no step left to do in it.
        is_of_training = stop.key in (schema.EPOCH_STOP.key, schema.BLOCK_STOP.key)
        return is_of_training and self.run.is_resumed_without_steps(stop.line)

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
        """Check an eval_accuracy against its eval_start and the training so far, and keep it with its epoch.

        An accuracy that only repeats the one before, with its epoch and without an eval_start, for example if each
        rank logs it, is reported and not kept.

        Args:
            event: An eval_accuracy.
        """
        evaluation = self._evaluation_without_accuracy  # None if there is no eval_start since the last accuracy
        self._evaluation_without_accuracy = None  # this event is the accuracy that the evaluation waited for
        if evaluation is not None:
            self._report_if_more_training_than_at_start(event, evaluation.start)
            self._report_if_earlier_than_start(event, evaluation.start)
        states_epoch = "epoch_num" in event.metadata
        if not states_epoch:
            self._keep_accuracy(event, self._epoch_of_evaluation(evaluation))
            return
        epoch = self._stated_epoch_of_accuracy(event)
        if evaluation is None and self._is_repeated_accuracy(event, epoch):
            line_of_first = self.run.evaluations[-1].line
            self._report_disorder(event, f"the accuracy of epoch {epoch} again, as on line {line_of_first}")
            return
        self._report_if_of_other_evaluation(event, epoch, evaluation)
        self._report_if_epoch_not_begun(event, epoch)
        self._keep_accuracy(event, epoch)

    def _epoch_of_evaluation(self, evaluation: OpenPart | None) -> int:
        """Return the epoch of an accuracy that does not state one.

        Args:
            evaluation: The evaluation that the accuracy is of; None if there is no eval_start of it.

        Returns:
            The epoch that the eval_start states. Without one, the count of accuracies so far, with this one, because
            some logs state samples and no epochs.
        """
        if evaluation is not None and evaluation.number is not None:
            return evaluation.number
        return self.run.number_of_events(schema.EVAL_ACCURACY)

    def _is_repeated_accuracy(self, event: Event, epoch: int) -> bool:
        """Return whether an accuracy repeats the one before, for example if each rank logs it.

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

    def _stated_epoch_of_accuracy(self, event: Event) -> int:
        """Return the epoch that an accuracy states; if it is not a whole number, report it and return `epochs_counted`.

        Args:
            event: An eval_accuracy with the field epoch_num.
        """
        stated_epoch = self._whole_number(event, "epoch_num")
        return self.epochs_counted if stated_epoch is None else stated_epoch

    def _report_if_of_other_evaluation(self, event: Event, epoch: int, evaluation: OpenPart | None) -> None:
        """Warn of an accuracy that is of another epoch than its evaluation, or that has no evaluation.

        Args:
            event: An eval_accuracy.
            epoch: The number of the epoch that the accuracy is of.
            evaluation: The evaluation that the accuracy is of. None if there is no eval_start since the accuracy
                before.
        """
        if evaluation is not None:
            self._warn_of_other_epoch(event, "an accuracy of epoch", epoch, evaluation.expected_numbers)
        elif self.run.number_of_events(schema.EVAL_START) > 0:  # otherwise the log states no starts of evaluations
            self._report_disorder(event, f"an accuracy of epoch {epoch} without an evaluation of its own")

    def _report_if_more_training_than_at_start(self, event: Event, start: Event) -> None:
        """Report an accuracy whose epochs or samples of training are further than those of its eval_start.

        For instance, the eval_start states the samples_count 5,000,000, and the accuracy 6,000,000. No training lies
        between the two events. Whole numbers may differ by 1, because some count epochs from 0 and accuracies from 1.

        Args:
            event: An eval_accuracy.
            start: The eval_start of its evaluation. A number that one of the two does not state is not compared.
        """
        bounds = self._collector.strict_rules["accuracy-ahead"].bounds
        for field in _FIELDS_OF_TRAINING:
            stated: Any = event.metadata.get(field)
            at_start: Any = start.metadata.get(field)
            if not (is_number(stated) and is_number(at_start)):
                continue
            are_whole = stated == int(stated) and at_start == int(at_start)
            most_ahead = bounds["ahead"] if are_whole else bounds["ahead_of_fraction"]
            if stated - at_start > most_ahead:
                actual = f"an accuracy of {field} {stated}; the eval_start of line {start.line} has {at_start}"
                self._add_breach("accuracy-ahead", event, actual)

    def _report_if_earlier_than_start(self, event: Event, start: Event) -> None:
        """Report an accuracy that is earlier than its eval_start by more than two ranks' clocks may be apart (1 s).

        Args:
            event: An eval_accuracy.
            start: The eval_start above it.
        """
        is_of_start = all(event.metadata.get(field) == start.metadata.get(field) for field in _FIELDS_OF_TRAINING)
        if not is_of_start:  # the two are of different evaluations
            return
        early_ms = start.time_ms - event.time_ms
        if early_ms > self.times.allowed_between_ranks_ms:
            early = f"{significant(early_ms, digits=10)} ms"
            self._add_breach("run-time", event, f"eval_accuracy {early} before the eval_start of line {start.line}")

    def _report_if_epoch_not_begun(self, event: Event, number: int) -> None:
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
        if len(self.run.evaluations) == EVENTS_KEPT:
            self.run.evaluations.pop()
        accuracy = float(event.value)
        self.run.evaluations.append(Evaluation(number, accuracy, event.line, self.epochs_counted, event.time_ms))
