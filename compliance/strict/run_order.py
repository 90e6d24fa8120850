"""The order of a run, event by event: its clock, epochs, blocks and evaluations, and what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compliance.first_values import FirstValues, is_number, own_metadata
from compliance.rules import FINDINGS_PER_RULE, Collected
from compliance.strict.measured import EVENTS_KEPT, Measured, number_of_epochs
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

SHORTEST_EPOCH = 1 / 150  # of the run's longest; the least is 1/34 in v2.1 and 1/11 in four other rounds
# Of the upper quartile of 8 or more, where that is 1 s: of 944 published runs the least is 0.61. Shorter ones
# overlap: their least is 0.27.
FASTEST_EPOCH, LEAST_EPOCHS, LEAST_QUARTILE_MS = 1 / 4, 8, 1000
_NO = frozenset({"false", "no", "n", "off", "0", "none", "skipped", "failed"})
_NUMBERED = {  # event: the numbers of epochs in its metadata
    "block_start": ("first_epoch_num", "epoch_count"),
    "block_stop": ("first_epoch_num",),
    **dict.fromkeys(("epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"), ("epoch_num",)),
}


class Evaluation(NamedTuple):
    """An eval_accuracy, with the epoch that it says it is of, and how many were announced or started before it."""

    epoch: int
    value: float
    line: int
    trained: int = 0


class _Open(NamedTuple):
    """An epoch, an evaluation, or a block of epochs that was started."""

    number: int
    start_ms: float
    line: int
    epochs: int = 1

    @property
    def last(self) -> int:
        return self.number + self.epochs - 1


@dataclass(kw_only=True, eq=False, repr=False)  # each is made at every start, and not asked for
class RunOrder:
    """Where a run is. Times are Unix milliseconds."""

    values: FirstValues
    collected: Collected
    measured: Measured
    first_init_ms: float | None = None
    start_ms: float | None = None
    start_line: int | None = None
    stop_ms: float | None = None
    stop_line: int | None = None
    status: Any = None
    seeds: list[tuple[Any, int, bool]] = field(default_factory=list)  # value, line, whether it has file and lineno
    caches_kept: list[tuple[int, str]] = field(default_factory=list)  # line, why
    caches_cleared: list[tuple[int, float]] = field(default_factory=list)  # line, when
    epoch: _Open | None = None
    epochs_seen: bool = False
    epochs_counted: int = 0  # that blocks announced, or epoch_start: whatever their numbers
    last_epoch: int | None = None
    trained_ms: list[tuple[float, int]] = field(default_factory=list)  # of an epoch, and the line where it ended
    block: _Open | None = None
    next_block: int | None = None  # where it must start
    evaluation: _Open | None = None
    unscored: _Open | None = None  # evaluation that still lacks its accuracy
    intervals: dict[tuple[str, int], float] = field(default_factory=dict)  # kind and number of it, ms
    eval_in_epoch_ms: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)
    last_evaluated: int = -1  # epoch
    late: list[tuple[int, str]] = field(default_factory=list)  # evaluations of an epoch before the last trained
    evaluation_count: int = 0

    def take(self, event: Event) -> None:
        """The next event, of any key."""
        handle = _HANDLERS.get(event.key)
        if handle is None:
            return
        if event.key == schema.EVAL_ACCURACY.key:
            self.evaluation_count += 1
            if "epoch_num" not in event.metadata:  # of another benchmark, by samples or steps
                self._keep_accuracy(event, self.evaluation_count)
        rule, names = f"{event.key.partition('_')[0]}-order", _NUMBERED.get(event.key, ())
        numbers = [number_of_epochs(rule, event, name, self.collected) for name in names]
        if None not in numbers:
            handle(self, event, *numbers)

    def _breach(self, rule: str, event: Event, actual: str) -> None:
        self.collected.breach(rule, event.line, actual)

    # --- the clock ---

    def _init_start(self, event: Event) -> None:
        self.first_init_ms = event.time_ms if self.first_init_ms is None else min(self.first_init_ms, event.time_ms)

    def _run_start(self, event: Event) -> None:
        if self.start_ms is None:
            self.start_ms, self.start_line = event.time_ms, event.line
            self.measured.run_starts(event)
        elif event.time_ms != self.start_ms:
            self._breach("run-time", event, f"another run_start, {event.time_ms - self.start_ms} ms after the first")

    def _run_stop(self, event: Event) -> None:
        if self.stop_line is not None:
            if event.time_ms != self.stop_ms:
                self._breach("run-time", event, f"another run_stop than that of line {self.stop_line}")
            if (status := event.metadata.get("status")) != self.status:
                actual = f"status {printable(status)}; that of line {self.stop_line} is {printable(self.status)}"
                self._breach("run-status", event, actual)
            return
        self.stop_line, self.stop_ms = event.line, event.time_ms
        self.status = event.metadata.get("status")
        self.measured.was_measured()
        self._pace(event)
        if self.start_ms is not None and event.time_ms <= self.start_ms:
            self._breach("run-time", event, f"run_stop {self.start_ms - event.time_ms} ms before run_start")
        if self.status == "success":
            self.measured.succeeds(event.line)
            if self.epoch:
                self._breach("open-at-stop", event, f"epoch {self.epoch.number} of line {self.epoch.line} is open")
            if self.block:
                self._breach("block-order", event, f"the block of line {self.block.line} is open")
            if self.unscored:
                self._breach("eval-order", event, f"the evaluation of line {self.unscored.line} has no accuracy")
            elif self.evaluation:
                self._breach("open-at-stop", event, f"the evaluation of line {self.evaluation.line} is open")

    def _pace(self, event: Event) -> None:
        """No epoch, or mean epoch of a block, is far shorter than the others."""
        epochs = sorted(one for one in self.trained_ms if one[0] > 0)
        if not epochs:
            return
        (shortest, line), (longest, _), (usual, _) = epochs[0], epochs[-1], epochs[len(epochs) * 3 // 4]
        if shortest < SHORTEST_EPOCH * longest:
            actual = f"an epoch of {shortest:.10g} ms; the longest one took {longest:.10g} ms"
            self.collected.breach("epoch-time", line, actual)
        fast = sum(ms < FASTEST_EPOCH * usual for ms, _ in epochs)
        if len(epochs) >= LEAST_EPOCHS and usual >= LEAST_QUARTILE_MS and fast:
            actual = f"{fast} of {len(epochs)} epochs take under 1/4 of the upper quartile, {usual:.10g} ms"
            self._breach("epoch-time", event, actual)

    def _seed(self, event: Event) -> None:
        if len(self.seeds) < EVENTS_KEPT:
            self.seeds.append((event.value, event.line, {"file", "lineno"} <= event.metadata.keys()))

    def _cache_clear(self, event: Event) -> None:
        kept = ""
        if str(event.value or False).strip().lower() in _NO and event.value is not None:
            kept = f"the value is {printable(event.value)}"
        elif event.metadata.get("status", "done") != "done":
            kept = printable(own_metadata(event.metadata))
        if kept and len(self.caches_kept) < FINDINGS_PER_RULE:
            self.caches_kept.append((event.line, kept))
        elif not kept and len(self.caches_cleared) < EVENTS_KEPT:
            self.caches_cleared.append((event.line, event.time_ms))

    # --- blocks and epochs ---

    def _not_before_run(self, event: Event) -> None:
        if self.start_ms is None:
            self._breach("before-run-start", event, f"{event.key} before run_start")

    def _takes_time(self, event: Event, start_ms: float) -> None:
        if len(self.intervals) < EVENTS_KEPT:
            self.intervals[event.key, len(self.intervals)] = event.time_ms - start_ms
        if event.time_ms <= start_ms:
            self._breach("epoch-time", event, f"{event.key} {event.time_ms - start_ms} ms after its start")

    def _trained(self, event: Event, trained: _Open) -> None:
        self._takes_time(event, trained.start_ms)
        if len(self.trained_ms) < EVENTS_KEPT:
            self.trained_ms.append(((event.time_ms - trained.start_ms) / max(trained.epochs, 1), event.line))

    def _next_epoch(self) -> int | None:
        return None if self.last_epoch is None else self.last_epoch + 1

    def _block_start(self, event: Event, first: int, count: int) -> None:
        if self.block:
            self._breach("block-order", event, f"the block of line {self.block.line} is still open")
        if self.epoch:
            self._breach("block-order", event, f"a block starts inside epoch {self.epoch.number}")
        wanted = self.next_block if self.next_block is not None else self._next_epoch()
        if not _follows(first, wanted):
            self._breach("block-order", event, f"a block starts at epoch {first}; {_first(wanted)} is next")
        self._not_before_run(event)
        if not self.epochs_seen:
            self.epochs_counted += count
            if first > (self.last_epoch or 0):
                self._trains_on()
        self.block = _Open(first, event.time_ms, event.line, count)

    def _block_stop(self, event: Event, first: int) -> None:
        block = self.block
        if not block:
            self._breach("block-order", event, "block_stop, and no block is open")
            return
        if first != block.number:
            self._breach("block-order", event, f"block_stop of epoch {first}; open is the block of line {block.line}")
        if not self.epochs_seen:
            self.last_epoch = block.last
            self._trained(event, block)
        elif self.epoch or self.last_epoch != block.last:
            announced = f"the block of line {block.line} announces epochs {block.number} to {block.last}"
            done = "none" if self.last_epoch is None else self.last_epoch
            self._breach("block-order", event, f"{announced}; the last one done is {done}")
        self.next_block = block.last + 1
        self.block = None

    def _epoch_start(self, event: Event, number: int) -> None:
        wanted, block = self._next_epoch(), self.block
        if self.epoch:
            self._breach("epoch-order", event, f"epoch {self.epoch.number} of line {self.epoch.line} is still open")
        elif not _follows(number, wanted):
            self._breach("epoch-order", event, f"epoch {number} starts; {_first(wanted)} is next")
        self._not_before_run(event)
        if block and not block.number <= number <= block.last:
            holds = f"the block of line {block.line}, which holds epochs {block.number} to {block.last}"
            self._breach("block-order", event, f"epoch {number} in {holds}")
        elif self.next_block is not None and not block:
            self._breach("block-order", event, f"epoch {number} lies in no block")
        self._trains_on()
        self.epoch = _Open(number, event.time_ms, event.line)
        self.epochs_counted = self.epochs_counted + 1 if self.epochs_seen else 1
        self.epochs_seen = True
        self.eval_in_epoch_ms = 0.0
        self.measured.epoch_starts(event, number)

    def _epoch_stop(self, event: Event, number: int) -> None:
        epoch = self.epoch
        if not epoch:
            self._breach("epoch-order", event, f"epoch {number} stops and none is open")
            return
        if number != epoch.number:
            self._breach("epoch-order", event, f"epoch {number} stops; open is epoch {epoch.number}")
        self.last_epoch = epoch.number
        self._trained(event, epoch)
        self.measured.epoch_stops(epoch.number, epoch.line, event.time_ms - epoch.start_ms - self.eval_in_epoch_ms)
        self.epoch = None

    # --- evaluations ---

    def _trained_epoch(self) -> int | None:
        """The epoch that an evaluation here is of."""
        if self.epoch:
            return self.epoch.number
        if self.block and not self.epochs_seen:
            return self.block.last
        return self.last_epoch

    def _eval_start(self, event: Event, number: int) -> None:
        if self.evaluation:
            self._breach("eval-order", event, f"the evaluation of line {self.evaluation.line} is still open")
        elif self.unscored:
            self._breach("eval-order", event, f"the evaluation of line {self.unscored.line} has no accuracy")
        self._not_before_run(event)
        trained = self._trained_epoch()
        if number != trained:
            was = "no epoch was" if trained is None else f"epoch {trained} was"
            actual = f"evaluation of epoch {number}; {was} the last trained"
            if trained is not None and not self.epoch and self.last_evaluated < number < trained:
                self.late.append((event.line, actual))
            else:
                self._breach("eval-order", event, actual)
        self.last_evaluated = number
        self.evaluation = self.unscored = _Open(number, event.time_ms, event.line)

    def _eval_stop(self, event: Event, number: int) -> None:
        if not self.evaluation:
            self._breach("eval-order", event, f"evaluation of epoch {number} stops and none is open")
            return
        if number != self.evaluation.number:
            actual = f"evaluation of epoch {number} stops; open is that of epoch {self.evaluation.number}"
            self._breach("eval-order", event, actual)
        self._takes_time(event, self.evaluation.start_ms)
        if self.epoch:
            self.eval_in_epoch_ms += event.time_ms - self.evaluation.start_ms
        self.evaluation = None

    def _eval_accuracy(self, event: Event, number: int) -> None:
        self._keep_accuracy(event, number)
        if not self.unscored:
            # the official rules ask for AT_LEAST_ONE_OR(block_start); some number from 0, and their accuracies from 1
            trained = max(self._trained_epoch() or 0, self.epochs_counted)
            if self.values.of(schema.EVAL_START).count or not self.last_evaluated < number <= trained + 1:
                self._breach("eval-order", event, f"an accuracy of epoch {number} without an evaluation of its own")
        elif number != self.unscored.number:
            actual = f"an accuracy of epoch {number}; the evaluation of line {self.unscored.line} is of another epoch"
            self._breach("eval-order", event, actual)
        self.last_evaluated = number
        self.unscored = None

    def _keep_accuracy(self, event: Event, number: int) -> None:
        if is_number(event.value):
            counted = self.epochs_counted
            evaluation = Evaluation(epoch=number, value=float(event.value), line=event.line, trained=counted)
            if len(self.evaluations) >= EVENTS_KEPT:
                self.evaluations[-1] = evaluation
            else:
                self.evaluations.append(evaluation)

    def _trains_on(self) -> None:
        """Only checkpoints that are evaluated after all training may be of an epoch before the last one."""
        for line, actual in self.late:
            self.collected.breach("eval-order", line, actual)
        self.late.clear()

    def finish(self) -> None:
        for line, actual in self.late:
            self.collected.breach("eval-late", line, actual)
        self.measured.finish()


def _follows(number: int, wanted: int | None) -> bool:
    """Whether `number` is the wanted one; the first of a run is 0 or 1."""
    return number == wanted or (wanted is None and number in (0, 1))


def _first(wanted: int | None) -> str:
    return "0 or 1" if wanted is None else str(wanted)


_HANDLERS: dict[str, Callable[..., None]] = {
    key: getattr(RunOrder, f"_{key}") for key in schema.EVENTS if hasattr(RunOrder, f"_{key}")
}
