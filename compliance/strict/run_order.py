"""The order of a run, event by event: its clock, its epochs by their places, its blocks and evaluations."""

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

ORDER = "event-order"  # the rule of form that labels and closing events break
_STARTS = frozenset({schema.BLOCK_START.key, schema.EPOCH_START.key, schema.EVAL_START.key})
_STOPS = frozenset({schema.BLOCK_STOP.key, schema.EPOCH_STOP.key, schema.EVAL_STOP.key})
_CLOSED_BY = {"block": ("block", "epoch"), "epoch": ("epoch",), "eval": ("eval",)}  # what is over when a part starts
_NUMBER_FIELD = {"block": "first_epoch_num", "epoch": "epoch_num", "eval": "epoch_num"}  # in the metadata of a part
_PARTS = _STARTS | _STOPS | {schema.EVAL_ACCURACY.key}
# Keys whose times a score or a rate rests on. All others are labels, which some log at any time.
KEYS_OF_THE_CLOCK = _PARTS | {schema.RUN_START.key, schema.RUN_STOP.key, schema.STEP_WINDOW.key}
KEYS_OF_THE_CLOCK |= {schema.EPOCH_THROUGHPUT.key, "throughput", "tracked_stats"}
_KEYS_OF_EVERY_RANK = frozenset({schema.INIT_START.key, schema.CACHE_CLEAR.key})  # each with a clock of its own


@dataclass(frozen=True)
class _Open:
    """A part of the run that was started. `number` is None where its label is none; only a block has more epochs."""

    start: Event
    number: int | None
    epochs: int = 1

    @property
    def last(self) -> int | None:
        return None if self.number is None else self.number + self.epochs - 1

    def __str__(self) -> str:
        return f"the {_kind_of_part(self.start)} of line {self.start.line}"


class TrainedPart(NamedTuple):
    """The time of an epoch, or the mean of an epoch of a block, and the line where it ended."""

    epoch_ms: float
    line: int


class RunOrder:
    """Follows a run from event to event. Times are Unix milliseconds."""

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.run = run
        self.measured = Measured(run, collector)
        self.epochs_counted = 0  # that epoch_start or blocks announced, whatever their numbers
        self.last_epoch: int | None = None  # the number of the last one trained
        self.trained: list[TrainedPart] = []
        self._collector = collector
        self._latest_ms: float | None = None  # of the events whose times count
        self._early_part: Event | None = None  # the first part that started above run_start
        self._has_epoch_events = False
        self._open: dict[str, _Open] = {}  # the block, epoch and eval that are open
        self._evaluation_without_accuracy: _Open | None = None  # the evaluation that has no accuracy yet
        self._eval_in_epoch_ms = 0.0
        self._handlers: dict[str, Callable[[Event], None]] = {
            schema.RUN_START.key: self._run_start,
            schema.RUN_STOP.key: self._run_stop,
            schema.EVAL_ACCURACY.key: self._eval_accuracy,
        }
        self._handlers |= dict.fromkeys(_STARTS, self._part_starts)
        self._handlers |= dict.fromkeys(_STOPS, self._part_stops)

    def take(self, event: Event) -> None:
        """Follow the next event, of any key."""
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

        None where the field is missing or no whole number, which is a breach.
        """
        value: Any = event.metadata.get(name)
        if is_number(value) and 0 <= value < 2**31 and value == int(value):  # others write 39.0
            return int(value)
        rule = "value-type" if event.key == schema.EVAL_ACCURACY.key else ORDER
        self._add_breach(rule, event, f"{event.key} has {name} {printable(value)}", f"{event.key} has {name}, a number")
        return None

    # --- the clock ---

    def _check_clock(self, event: Event) -> None:
        """Collect an event that is earlier than one above it, or that comes after run_stop.

        The times of a run's start, parts and end decide its score: these may go back by 0.1 s, as clocks are corrected,
        and more is a breach of `time-order`. The times of other events decide nothing, and some log them at any time:
        an earlier one only warns, and they may come after run_stop. Events that each rank logs by a clock of its own
        are passed over.
        """
        if event.key in _KEYS_OF_EVERY_RANK:
            return
        rule = ORDER
        allowed_ms = 0.0
        does_time_count = event.key in KEYS_OF_THE_CLOCK
        if does_time_count:
            rule = "time-order"
            allowed_ms = self._collector.strict_rules[rule].bounds["back_ms"]
        latest_ms = event.time_ms if self._latest_ms is None else self._latest_ms
        back_ms = latest_ms - event.time_ms
        if back_ms > allowed_ms:
            before = f"{significant(back_ms, digits=10)} ms before an event above it"
            actual = f"{printable(event.key)} at {event.time_ms} ms, {before}"
            self._add_breach(rule, event, actual)
        if not does_time_count:
            return

        self._latest_ms = max(latest_ms, event.time_ms)
        stop = self.run.stop
        if stop is not None and event.key != schema.RUN_STOP.key:
            self._add_breach(ORDER, event, f"{event.key} after the run_stop of line {stop.line}")

    def _check_not_before_start(self, part: Event, start_ms: float) -> None:
        """Collect the start of a block, epoch or evaluation that is before run_start."""
        before_ms = start_ms - part.time_ms
        if before_ms > self._collector.strict_rules["before-run-start"].bounds["before_ms"]:
            self._add_breach(
                "before-run-start", part, f"{part.key} {significant(before_ms, digits=10)} ms before run_start"
            )

    def _run_start(self, event: Event) -> None:
        """Begin the run, and collect a part that started above it. A second run_start is compared with the first."""
        first = self.run.first_event(schema.RUN_START)  # `event` itself, if none came before it
        if event is not first:
            self._compare_time_with_first(event, first)
            return
        self.measured.run_starts(event)
        if self._early_part is not None:
            self._add_breach(ORDER, self._early_part, f"{self._early_part.key} above run_start")
            self._check_not_before_start(self._early_part, event.time_ms)

    def _run_stop(self, event: Event) -> None:
        """Collect what is wrong with the end of the run, an event run_stop.

        It must be later than the start. If its status is success, all blocks, epochs and evaluations must have been
        stopped, and the last evaluation have its accuracy. A second run_stop is another node's: it is only compared
        with the first.
        """
        first = self.run.first_event(schema.RUN_STOP)  # `event` itself, if none came before it
        if event is not first:
            self._compare_stops(event, first)
            return
        if self.run.start_ms is not None and event.time_ms <= self.run.start_ms:
            self._add_breach("run-time", event, f"run_stop {self.run.start_ms - event.time_ms} ms before run_start")
        if self.run.status != "success":
            return
        self.measured.check_success(event.line)
        for part in self._open.values():
            self._add_breach(ORDER, event, f"{part} is open")
        if self._evaluation_without_accuracy is not None:
            self._add_breach(ORDER, event, f"{self._evaluation_without_accuracy} has no accuracy")

    def _compare_stops(self, event: Event, first: Event) -> None:
        """Collect that another node's run_stop has another status than the first, or is at another time."""
        self._compare_time_with_first(event, first)
        status = event.metadata.get("status")
        if status != self.run.status:
            that = f"that of line {first.line} is {printable(self.run.status)}"
            self._collector.add_breach("run-status", event.line, f"status {printable(status)}; {that}")

    def _compare_time_with_first(self, event: Event, first: Event) -> None:
        """Collect a second run_start or run_stop at another time; close to the first it is another node's and warns."""
        apart_ms = abs(event.time_ms - first.time_ms)
        if apart_ms:
            far = apart_ms > self._collector.strict_rules["run-time"].bounds["repeat_ms"]
            actual = f"another {event.key}, {significant(apart_ms, digits=10)} ms from that of line {first.line}"
            self._add_breach("run-time" if far else ORDER, event, actual)

    # --- blocks, epochs and evaluations ---

    def _part_starts(self, event: Event) -> None:
        """Open a part of the run at its start event, and collect what is wrong with its place, time and epoch number.

        A part is a block, an epoch or an evaluation. A block is several epochs together: its event has the number of
        the first one and their count. A part may not start before run_start, nor while an earlier part is open that
        must have stopped by then, such as another of its kind.
        """
        kind = _kind_of_part(event)
        if self.run.start_ms is None:
            self._early_part = self._early_part or event  # judged when run_start comes
        else:
            self._check_not_before_start(event, self.run.start_ms)
        for other in _CLOSED_BY[kind]:
            if other in self._open:
                self._add_breach(ORDER, event, f"{self._open[other]} is still open")

        number = self._epoch_number(event, _NUMBER_FIELD[kind])
        if kind != "eval":  # an evaluation has the number of an epoch before it
            self._warn_of_other_number(event, f"{event.key} of epoch", number, self._next_epoch())
        if kind == "block":
            self._open[kind] = self._block_starts(event, number)
            return
        part = _Open(event, number)
        if kind == "epoch":
            self._epoch_starts(part)
        else:
            self._evaluation_starts(part)
        self._open[kind] = part

    def _block_starts(self, event: Event, first_number: int | None) -> _Open:
        """Return the block that starts at an event, and count its epochs while none has events of its own."""
        epochs = self._epoch_number(event, "epoch_count")
        if epochs is None:
            epochs = 1
        if not self._has_epoch_events:
            self.epochs_counted += epochs
        return _Open(event, first_number, epochs)

    def _epoch_starts(self, epoch: _Open) -> None:
        """Count an epoch; from the first one on, what blocks announced no longer counts."""
        if not self._has_epoch_events:
            self.epochs_counted = 0
        self.epochs_counted += 1
        self._has_epoch_events = True
        self._eval_in_epoch_ms = 0.0
        self.measured.epoch_starts(epoch.start, epoch.number)

    def _evaluation_starts(self, evaluation: _Open) -> None:
        """Collect that the evaluation before has no accuracy, or that this one is not labelled with the last epoch."""
        if self._evaluation_without_accuracy is not None and "eval" not in self._open:
            self._add_breach(ORDER, evaluation.start, f"{self._evaluation_without_accuracy} has no accuracy")
        trained = self._trained_epoch()
        if evaluation.number != trained:
            what = f"evaluation of epoch {evaluation.number}; the last trained is {trained}"
            self._add_breach(ORDER, evaluation.start, what)
        self._evaluation_without_accuracy = evaluation

    def _part_stops(self, event: Event) -> None:
        """Close the block, epoch or evaluation that stops at `event`, and record how long it took.

        A stop without a start is a breach, and a stop with another epoch number than the start warns. Of a block whose
        epochs have events of their own no time is recorded, as theirs are: only the place of its end is checked. The
        time of an epoch, or of a block in place of its epochs, is one of training; that of an evaluation within an
        epoch is taken off when the throughput is checked.
        """
        kind = _kind_of_part(event)
        number = self._epoch_number(event, _NUMBER_FIELD[kind])
        part = self._open.pop(kind, None)
        if part is None:
            self._add_breach(ORDER, event, f"{event.key}, and no {kind} is open")
            return
        self._warn_of_other_number(event, f"{event.key} of epoch", number, part.number)
        if kind == "block" and self._has_epoch_events:
            self._block_of_epochs_stops(event, part)
            return

        took_ms = event.time_ms - part.start.time_ms
        self._record_time(event, took_ms)
        if kind == "eval":
            self._evaluation_stops(took_ms)
            return
        self._keep_trained(part, took_ms, event.line)
        if kind == "epoch":
            self.measured.epoch_stops(part.number, took_ms - self._eval_in_epoch_ms)

    def _evaluation_stops(self, took_ms: float) -> None:
        """Add the time of an evaluation within an epoch to what the epoch did not train."""
        if "epoch" in self._open:
            self._eval_in_epoch_ms += took_ms

    def _keep_trained(self, part: _Open, took_ms: float, line: int) -> None:
        """Keep the time of an epoch, or the mean time of the epochs of a block, which ended in `line`."""
        self.last_epoch = part.last
        if len(self.trained) < EVENTS_KEPT:
            self.trained.append(TrainedPart(epoch_ms=took_ms / max(part.epochs, 1), line=line))

    def _block_of_epochs_stops(self, event: Event, block: _Open) -> None:
        """Collect that a block whose epochs have events of their own ends before the last of them, or after more."""
        if "epoch" in self._open or self.last_epoch != block.last:
            announced = f"{block} announces epochs {block.number} to {block.last}"
            self._add_breach(ORDER, event, f"{announced}; the last one done is {self.last_epoch}")

    def _record_time(self, event: Event, took_ms: float) -> None:
        """Record the time of the part that stops at `event`. It must be above 0, or 0 where the clock counts in s."""
        self.run.keep_interval(event.key, took_ms)
        if took_ms < 0 or (took_ms == 0 and self.run.tick_ms == 1):
            self._add_breach("epoch-time", event, f"{event.key} {took_ms} ms after its start")

    def _warn_of_other_number(self, event: Event, what: str, number: int | None, wanted: int | None) -> None:
        """Warn where an epoch number is not the wanted one; None wants the first of a run, 0 or 1."""
        wanted_numbers = (0, 1) if wanted is None else (wanted,)
        if number is None or number in wanted_numbers:
            return
        due = "0 or 1" if wanted is None else str(wanted)
        self._add_breach(ORDER, event, f"{what} {number}; {due} is due")

    def _next_epoch(self) -> int | None:
        return None if self.last_epoch is None else self.last_epoch + 1

    def _trained_epoch(self) -> int | None:
        """Return the number of the epoch that an evaluation here is of; None where no label says it."""
        if "epoch" in self._open:
            return self._open["epoch"].number
        if "block" in self._open and not self._has_epoch_events:
            return self._open["block"].last
        return self.last_epoch

    def _eval_accuracy(self, event: Event) -> None:
        """Keep an accuracy with the epoch that it states, and collect what is wrong with that epoch.

        It must be the epoch of the evaluation that started before, and not later than the epochs that were started or
        announced. If the log has any eval_start, each accuracy needs one of its own. Benchmarks that count samples or
        steps state no epoch: their accuracies are numbered in turn, and nothing is checked. Where the epoch is no whole
        number, a breach in itself, the number of epochs that were started takes its place.
        """
        if "epoch_num" not in event.metadata:
            self._keep_accuracy(event, self.run.number_of_events(schema.EVAL_ACCURACY))
            return
        number = self._epoch_number(event, "epoch_num")
        if number is None:
            number = self.epochs_counted
        self._keep_accuracy(event, number)
        evaluation = self._evaluation_without_accuracy
        self._evaluation_without_accuracy = None
        if evaluation is not None:
            self._warn_of_other_number(event, "an accuracy of epoch", number, evaluation.number)
        elif self.run.number_of_events(schema.EVAL_START):
            self._add_breach(ORDER, event, f"an accuracy of epoch {number} without an evaluation of its own")

        ahead = number - self.epochs_counted
        if self.epochs_counted and ahead > self._collector.strict_rules["epochs-counted"].bounds["ahead"]:
            actual = f"an accuracy of epoch {number}; {self.epochs_counted} were started or announced"
            self._add_breach("epochs-counted", event, actual)

    def _keep_accuracy(self, event: Event, number: int) -> None:
        """Keep an accuracy as one of epoch `number`, unless it is no number. Of too many the last one takes a place."""
        if is_number(event.value):
            del self.run.evaluations[EVENTS_KEPT - 1 :]  # the last one stays
            accuracy = float(event.value)
            self.run.evaluations.append(Evaluation(number, accuracy, event.line, self.epochs_counted, event.time_ms))


def _kind_of_part(event: Event) -> str:
    """Return the kind of part that a start or stop is one of: `block`, `epoch` or `eval`."""
    return event.key.partition("_")[0]
