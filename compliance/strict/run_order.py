"""The order of a run, event by event: its clock, and its parts, which are blocks, epochs and evaluations.

A block is several epochs together. Its event has the number of the first epoch, and how many there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_number
from compliance.rules import FindingCollector
from compliance.strict.measured import Measured
from runlog import schema
from runlog.digits import significant
from runlog.reader import Event
from runlog.text import printable

ORDER = "event-order"  # a rule of form, so a breach of it only warns
_STARTS = frozenset({schema.BLOCK_START.key, schema.EPOCH_START.key, schema.EVAL_START.key})
_STOPS = frozenset({schema.BLOCK_STOP.key, schema.EPOCH_STOP.key, schema.EVAL_STOP.key})
# The kinds of parts that must have stopped before a part of a kind starts.
_MUST_STOP_BEFORE = {"block": ("block", "epoch"), "epoch": ("epoch",), "eval": ("eval",)}
_NUMBER_FIELD = {"block": "first_epoch_num", "epoch": "epoch_num", "eval": "epoch_num"}  # in the metadata of a part
_PARTS = _STARTS | _STOPS | {schema.EVAL_ACCURACY.key}
# Keys by whose times a score or a rate is computed. All others only annotate the run: some log them at any time.
KEYS_OF_THE_CLOCK = _PARTS | {schema.RUN_START.key, schema.RUN_STOP.key, schema.STEP_WINDOW.key}
KEYS_OF_THE_CLOCK |= {schema.EPOCH_THROUGHPUT.key, "throughput", "tracked_stats"}
KEYS_OF_EVERY_RANK = frozenset({schema.INIT_START.key, schema.CACHE_CLEAR.key})  # each with a clock of its own


@dataclass(frozen=True)
class _OpenPart:
    """A part of the run that has started. `number` is the number of its first epoch; None if the event states none.

    Only a block has more than one epoch.
    """

    start: Event
    number: int | None
    epochs: int = 1

    @property
    def last(self) -> int | None:
        """The number of its last epoch."""
        return None if self.number is None else self.number + self.epochs - 1

    def __str__(self) -> str:
        return f"the {_kind_of_part(self.start)} of line {self.start.line}"


class TrainedPart(NamedTuple):
    """The time of an epoch, or the mean time of the epochs of a block, and the line where it ended."""

    epoch_ms: float
    line: int


class RunOrder:
    """Follows a run from event to event, and reports what is out of order. Times are Unix milliseconds."""

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.run = run
        self.measured = Measured(run, collector)
        self.epochs_counted = 0  # epochs that were started, or announced by blocks, whatever their numbers
        self.last_epoch: int | None = None  # the number of the last epoch that was trained
        self.trained: list[TrainedPart] = []
        self._collector = collector
        self._latest_ms: float | None = None  # of the events of KEYS_OF_THE_CLOCK
        self._early_start: Event | None = None  # the first event on a line before run_start that starts a part
        self._has_epoch_events = False  # whether the log has any epoch_start; some have blocks alone
        self._open_parts: dict[str, _OpenPart] = {}  # by kind: block, epoch and eval
        self._evaluation_without_accuracy: _OpenPart | None = None  # the evaluation that has no accuracy yet
        self._evaluated_in_epoch_ms = 0.0  # the time of the evaluations in the open epoch
        self._handlers: dict[str, Callable[[Event], None]] = {
            schema.RUN_START.key: self._start_run,
            schema.RUN_STOP.key: self._stop_run,
            schema.EVAL_ACCURACY.key: self._take_accuracy,
        }
        self._handlers |= dict.fromkeys(_STARTS, self._start_part)
        self._handlers |= dict.fromkeys(_STOPS, self._stop_part)

    def take(self, event: Event) -> None:
        """Check the time of the next event, and pass it on to the method for its key."""
        self._check_clock(event)
        handle = self._handlers.get(event.key)
        if handle is not None:
            handle(event)
        elif event.key == schema.EPOCH_THROUGHPUT.key:
            self.measured.check_epoch_throughput(event, self._epoch_number(event, "epoch_num"))
        else:
            self.measured.take(event)

    def _add_breach(self, rule: str, event: Event, actual: str, expected: str | None = None) -> None:
        self._collector.add_breach(rule, event.line, actual, expected)

    def _epoch_number(self, event: Event, name: str) -> int | None:
        """Return the number of an epoch, or of epochs, in the field `name` of an event's metadata.

        If the field is missing or not a whole number, report a breach and return None.
        """
        value: Any = event.metadata.get(name)
        if is_number(value) and 0 <= value < 2**31 and value == int(value):  # others write 39.0
            return int(value)
        rule = "value-type" if event.key == schema.EVAL_ACCURACY.key else ORDER
        self._add_breach(rule, event, f"{event.key} has {name} {printable(value)}", f"{event.key} has {name}, a number")
        return None

    # --- the clock ---

    def _check_clock(self, event: Event) -> None:
        """Report an event that goes back in time, or that decides the score and comes after run_stop.

        Its time is compared with the latest time of the events of KEYS_OF_THE_CLOCK so far.

        - KEYS_OF_EVERY_RANK are not checked, because each rank logs them by its own clock.
        - KEYS_OF_THE_CLOCK decide the score. They may go back by 0.1 s, because clocks are corrected during the run
          (rule time-order). They must not come after run_stop (rule event-order).
        - Any other key may not go back at all (rule event-order). It may come after run_stop.

        A breach of event-order only warns.
        """
        if event.key in KEYS_OF_EVERY_RANK:  # each rank logs these by its own clock
            return
        latest_ms = event.time_ms if self._latest_ms is None else self._latest_ms
        decides_score = event.key in KEYS_OF_THE_CLOCK
        if not decides_score:
            self._check_not_earlier(event, latest_ms, ORDER, allowed_ms=0.0)
            return

        allowed_ms = self._collector.strict_rules["time-order"].bounds["back_ms"]
        self._check_not_earlier(event, latest_ms, "time-order", allowed_ms=allowed_ms)
        self._latest_ms = max(latest_ms, event.time_ms)
        stop = self.run.stop
        if stop is not None and event.key != schema.RUN_STOP.key:
            self._add_breach(ORDER, event, f"{event.key} after the run_stop of line {stop.line}")

    def _check_not_earlier(self, event: Event, latest_ms: float, rule: str, *, allowed_ms: float) -> None:
        """Report a breach of `rule` if an event is earlier than `latest_ms` by more than `allowed_ms`."""
        back_ms = latest_ms - event.time_ms
        if back_ms > allowed_ms:
            before = f"{significant(back_ms, digits=10)} ms before an event above it"
            self._add_breach(rule, event, f"{printable(event.key)} at {event.time_ms} ms, {before}")

    def _check_not_before_start(self, part_start: Event, start_ms: float) -> None:
        """Report the start of a block, epoch or evaluation at a time before `start_ms`, the time of run_start."""
        before_ms = start_ms - part_start.time_ms
        if before_ms > self._collector.strict_rules["before-run-start"].bounds["before_ms"]:
            actual = f"{part_start.key} {significant(before_ms, digits=10)} ms before run_start"
            self._add_breach("before-run-start", part_start, actual)

    def _start_run(self, event: Event) -> None:
        """Begin the run at its first run_start. The time of any later run_start is only compared with the first.

        Report a breach if a block, epoch or evaluation started on an earlier line of the log. The first such event is
        then also checked for a time before run_start. This time was not known when the event was read.
        """
        first = self.run.first_event(schema.RUN_START)  # `event` itself, if none came before it
        if event is not first:
            self._compare_time_with_first(event, first)
            return
        self.measured.run_starts(event)
        early_start = self._early_start  # the first start of a block, epoch or evaluation above run_start
        if early_start is not None:
            self._add_breach(ORDER, early_start, f"{early_start.key} above run_start")
            self._check_not_before_start(early_start, event.time_ms)  # only now is run_start known

    def _stop_run(self, event: Event) -> None:
        """End the run at its first run_stop, and report what is wrong with its end.

        - run_stop must be later than run_start.
        - A run that succeeded must not have an open block, epoch or evaluation, and its last evaluation must have an
          accuracy. Its losses are checked, too, and its last step if it only measures throughput.

        Any later run_stop is another node's: it is only compared with the first.
        """
        first = self.run.first_event(schema.RUN_STOP)  # `event` itself, if none came before it
        if event is not first:
            self._compare_stops(event, first)
            return
        if self.run.start_ms is not None and event.time_ms <= self.run.start_ms:
            self._add_breach("run-time", event, f"run_stop {self.run.start_ms - event.time_ms} ms before run_start")
        if self.run.status != "success":
            return
        self.measured.check_losses_and_last_step(event.line)
        for part in self._open_parts.values():
            self._add_breach(ORDER, event, f"{part} is open")
        if self._evaluation_without_accuracy is not None:
            self._add_breach(ORDER, event, f"{self._evaluation_without_accuracy} has no accuracy")

    def _compare_stops(self, event: Event, first: Event) -> None:
        """Report another node's run_stop if its status or its time is not that of the first run_stop."""
        self._compare_time_with_first(event, first)
        status = event.metadata.get("status")
        if status != self.run.status:
            status_of_first = f"that of line {first.line} is {printable(self.run.status)}"
            self._collector.add_breach("run-status", event.line, f"status {printable(status)}; {status_of_first}")

    def _compare_time_with_first(self, event: Event, first: Event) -> None:
        """Report another run_start or run_stop that is at another time than the first.

        - The times differ by more than `repeat_ms`, a bound of the rule run-time: a breach of run-time.
        - They differ by less: a breach of event-order, which only warns, because the event may be another node's.
        """
        apart_ms = abs(event.time_ms - first.time_ms)
        if apart_ms:
            is_far = apart_ms > self._collector.strict_rules["run-time"].bounds["repeat_ms"]
            actual = f"another {event.key}, {significant(apart_ms, digits=10)} ms from that of line {first.line}"
            self._add_breach("run-time" if is_far else ORDER, event, actual)

    # --- blocks, epochs and evaluations ---

    def _start_part(self, event: Event) -> None:
        """Open a block, epoch or evaluation at its start event. Whatever is wrong with the start, the part is opened.

        Report a breach if

        - it starts at a time before run_start; `_start_run` checks this if run_start comes later in the log,
        - a block, epoch or evaluation is still open that must have stopped before it, or
        - its epoch is not the expected one. For an evaluation, `_open_evaluation` checks the epoch.
        """
        kind = _kind_of_part(event)
        if self.run.start_ms is not None:
            self._check_not_before_start(event, self.run.start_ms)
        elif self._early_start is None:
            self._early_start = event  # its time is checked when run_start comes
        for other_kind in _MUST_STOP_BEFORE[kind]:
            if other_kind in self._open_parts:
                self._add_breach(ORDER, event, f"{self._open_parts[other_kind]} is still open")

        number = self._epoch_number(event, _NUMBER_FIELD[kind])
        if kind != "eval":
            self._warn_of_other_number(event, f"{event.key} of epoch", number, self._next_epoch())
        if kind == "block":
            part = self._open_block(event, number)
        elif kind == "epoch":
            part = self._open_epoch(event, number)
        else:
            part = self._open_evaluation(event, number)
        self._open_parts[kind] = part

    def _open_block(self, event: Event, number: int | None) -> _OpenPart:
        """Return the block that starts at an event with the epoch `number`.

        Its epochs are counted, unless the log has events of single epochs, which are counted instead.
        """
        epochs = self._epoch_number(event, "epoch_count")
        if epochs is None:
            epochs = 1
        if not self._has_epoch_events:
            self.epochs_counted += epochs
        return _OpenPart(event, number, epochs)

    def _open_epoch(self, event: Event, number: int | None) -> _OpenPart:
        """Count an epoch, and return it. From the first epoch on, the epochs that blocks announced no longer count."""
        if not self._has_epoch_events:
            self.epochs_counted = 0
        self.epochs_counted += 1
        self._has_epoch_events = True
        self._evaluated_in_epoch_ms = 0.0
        self.measured.epoch_starts(event, number)
        return _OpenPart(event, number)

    def _open_evaluation(self, event: Event, number: int | None) -> _OpenPart:
        """Return the evaluation that starts at an event with the epoch `number`. Its accuracy is still to come.

        Report a breach if the previous evaluation stopped without an accuracy, or if `number` is not the epoch to
        evaluate now.
        """
        # If the previous evaluation is still open, `_start_part` has reported it already. One report is enough.
        is_previous_still_open = "eval" in self._open_parts
        if self._evaluation_without_accuracy is not None and not is_previous_still_open:
            self._add_breach(ORDER, event, f"{self._evaluation_without_accuracy} has no accuracy")
        epoch_to_evaluate = self._epoch_to_evaluate()
        if number != epoch_to_evaluate:
            self._add_breach(ORDER, event, f"evaluation of epoch {number}; the last trained is {epoch_to_evaluate}")
        evaluation = _OpenPart(event, number)
        self._evaluation_without_accuracy = evaluation  # until its accuracy comes
        return evaluation

    def _stop_part(self, event: Event) -> None:
        """Close the block, epoch or evaluation that stops at `event`, and keep its duration.

        A stop without a start is a breach. A stop with another epoch number than its start is a warning.

        - A block in a log that has epoch events: no duration is kept. Only the number of its last epoch is checked.
        - Any other block: its duration is kept as training time.
        - An epoch: its duration is kept as training time, and checked without the evaluations within the epoch.
        - An evaluation: its duration is kept. It is also added up for the epoch that it lies in, if there is one.
        """
        kind = _kind_of_part(event)
        number = self._epoch_number(event, _NUMBER_FIELD[kind])
        part = self._open_parts.pop(kind, None)
        if part is None:
            self._add_breach(ORDER, event, f"{event.key}, and no {kind} is open")
            return
        self._warn_of_other_number(event, f"{event.key} of epoch", number, part.number)
        if kind == "block" and self._has_epoch_events:  # the epochs' own events give the durations
            self._check_last_epoch_of_block(event, part)
            return

        took_ms = event.time_ms - part.start.time_ms
        self._keep_duration(event, took_ms)
        if kind == "eval":
            if "epoch" in self._open_parts:
                self._evaluated_in_epoch_ms += took_ms
            return
        self._keep_training_time(part, took_ms, event.line)
        if kind == "epoch":
            self.measured.epoch_stops(part.number, took_ms - self._evaluated_in_epoch_ms)

    def _keep_training_time(self, part: _OpenPart, took_ms: float, line: int) -> None:
        """Keep the time of an epoch, or the mean time of a block's epochs, and the number of the last epoch.

        `line` is that of the stop event.
        """
        self.last_epoch = part.last
        if len(self.trained) < EVENTS_KEPT:
            self.trained.append(TrainedPart(epoch_ms=took_ms / max(part.epochs, 1), line=line))

    def _check_last_epoch_of_block(self, event: Event, block: _OpenPart) -> None:
        """Report a block that stops within an epoch, or whose last epoch is not the last one trained."""
        if "epoch" in self._open_parts or self.last_epoch != block.last:
            announced = f"{block} announces epochs {block.number} to {block.last}"
            self._add_breach(ORDER, event, f"{announced}; the last one done is {self.last_epoch}")

    def _keep_duration(self, event: Event, took_ms: float) -> None:
        """Keep the duration of the part that stops at `event`. Report a duration that is not above 0.

        A duration of 0 is no breach if the log's clock counts whole seconds.
        """
        self.run.keep_interval(event.key, took_ms)
        counts_milliseconds = self.run.tick_ms == 1
        if took_ms < 0 or (took_ms == 0 and counts_milliseconds):
            self._add_breach("epoch-time", event, f"{event.key} {took_ms} ms after its start")

    def _warn_of_other_number(self, event: Event, what: str, number: int | None, wanted: int | None) -> None:
        """Warn if an epoch's `number` is not the `wanted` one.

        A `number` of None was reported before. A `wanted` of None stands for the first epoch of a run, 0 or 1.
        """
        wanted_numbers = (0, 1) if wanted is None else (wanted,)
        if number is None or number in wanted_numbers:
            return
        due = "0 or 1" if wanted is None else str(wanted)
        self._add_breach(ORDER, event, f"{what} {number}; {due} is due")

    def _next_epoch(self) -> int | None:
        return None if self.last_epoch is None else self.last_epoch + 1

    def _epoch_to_evaluate(self) -> int | None:
        """Return the number of the epoch that an evaluation must state if it starts now; None if it is not known.

        - An epoch is open: this epoch.
        - A block is open, and the log has no events of single epochs: the last epoch of the block.
        - Otherwise: the last epoch that was trained.
        """
        if "epoch" in self._open_parts:
            return self._open_parts["epoch"].number
        if "block" in self._open_parts and not self._has_epoch_events:
            return self._open_parts["block"].last
        return self.last_epoch

    def _take_accuracy(self, event: Event) -> None:
        """Keep an accuracy with the number of its epoch, and check that number. The number is

        - the count of the accuracies so far (1, 2, ...) if the event states no epoch. Benchmarks that count samples or
          steps state none. This number is not checked.
        - the stated epoch, if it is a whole number.
        - `epochs_counted` if the stated epoch is anything else, which is reported.

        The last two are checked: the number must equal the epoch of the evaluation that waits for its accuracy. It may
        exceed the number of epochs started so far by a bound of the rule epochs-counted at most.
        """
        if "epoch_num" not in event.metadata:
            accuracies_so_far = self.run.number_of_events(schema.EVAL_ACCURACY)  # with this one
            self._keep_accuracy(event, accuracies_so_far)
            return
        number = self._epoch_number(event, "epoch_num")
        if number is None:
            number = self.epochs_counted  # the stated one is not a whole number, which was reported
        self._keep_accuracy(event, number)
        self._match_accuracy_with_evaluation(event, number)
        self._check_not_ahead_of_training(event, number)

    def _match_accuracy_with_evaluation(self, event: Event, number: int) -> None:
        """Take an accuracy of epoch `number` as that of the evaluation that waits for its accuracy.

        - An evaluation waits: it takes this accuracy. Warn if their epochs differ.
        - No evaluation waits, but the log has had an eval_start: report a breach.
        - The log has had no eval_start: report nothing.
        """
        evaluation = self._evaluation_without_accuracy  # the one that waits; None if none does
        self._evaluation_without_accuracy = None
        if evaluation is not None:
            # This warns only if the two numbers differ.
            self._warn_of_other_number(event, "an accuracy of epoch", number, evaluation.number)
        elif self.run.number_of_events(schema.EVAL_START):
            self._add_breach(ORDER, event, f"an accuracy of epoch {number} without an evaluation of its own")

    def _check_not_ahead_of_training(self, event: Event, number: int) -> None:
        """Report an accuracy whose epoch `number` exceeds the epochs started or announced by more than `ahead`.

        `ahead` is a bound of the rule `epochs-counted`. Nothing is checked if the log has no epochs or blocks so far.
        """
        epochs_ahead = number - self.epochs_counted
        if self.epochs_counted and epochs_ahead > self._collector.strict_rules["epochs-counted"].bounds["ahead"]:
            actual = f"an accuracy of epoch {number}; {self.epochs_counted} were started or announced"
            self._add_breach("epochs-counted", event, actual)

    def _keep_accuracy(self, event: Event, number: int) -> None:
        """Keep an accuracy of epoch `number`, unless it is not a number.

        At most EVENTS_KEPT are kept. Once there are as many, a new one replaces the last one, so that the last one of
        the run is always kept.
        """
        if is_number(event.value):
            del self.run.evaluations[EVENTS_KEPT - 1 :]
            accuracy = float(event.value)
            self.run.evaluations.append(Evaluation(number, accuracy, event.line, self.epochs_counted, event.time_ms))


def _kind_of_part(event: Event) -> str:
    """Return the kind of part that an event starts or stops: `block`, `epoch` or `eval`."""
    return event.key.partition("_")[0]
