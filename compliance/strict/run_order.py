"""The order of a run, event by event: its clock, epochs, blocks and evaluations, and what is wrong."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_number
from compliance.rules import Collected
from compliance.strict.measured import OWN, Measured, Wrong
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

SHORTEST_EPOCH = 1 / 150  # of the run's longest; the least is 1/34 in v2.1 and 1/11 in four other rounds
# Of the upper quartile of 8 or more, where that is 1 s: of 944 published runs the least is 0.61. Shorter ones
# overlap: their least is 0.27.
FASTEST_EPOCH, LEAST_EPOCHS, LEAST_QUARTILE_MS = 1 / 4, 8, 1000
_NUMBERED = {  # event: the rule that it has numbers of epochs, and their names in its metadata
    "block_start": ("block-order", "first_epoch_num", "epoch_count"),
    "block_stop": ("block-order", "first_epoch_num"),
    **dict.fromkeys(("epoch_start", "epoch_stop"), ("epoch-order", "epoch_num")),
    **dict.fromkeys(("eval_start", "eval_stop", "eval_accuracy"), ("eval-order", "epoch_num")),
    "epoch_throughput": ("throughput-agrees", "epoch_num"),
}


class _Open(NamedTuple):
    """An epoch, an evaluation, or a block of epochs that was started."""

    start: Event
    number: int
    epochs: int = 1

    @property
    def last(self) -> int:
        return self.number + self.epochs - 1

    def __str__(self) -> str:
        names = {"epoch_start": f"epoch {self.number}", "block_start": "the block", "eval_start": "the evaluation"}
        return f"{names[self.start.key]} of line {self.start.line}"


@dataclass(kw_only=True, eq=False, repr=False)
class RunOrder:
    """Where a run is. Times are Unix milliseconds."""

    run: LoggedRun
    collected: Collected
    epoch: _Open | None = None
    epochs_seen: bool = False
    epochs_counted: int = 0  # that blocks announced, or epoch_start: whatever their numbers
    last_epoch: int | None = None
    trained_ms: list[tuple[float, int]] = field(default_factory=list)  # of an epoch, and the line where it ended
    block: _Open | None = None
    last_block: int | None = None  # the last epoch of the one that ended
    evaluation: _Open | None = None
    unscored: _Open | None = None  # evaluation that still lacks its accuracy
    eval_in_epoch_ms: float = 0.0
    last_evaluated: int = -1  # epoch
    late: list[tuple[int, str]] = field(default_factory=list)  # evaluations of an epoch before the last trained

    def __post_init__(self) -> None:
        self.measured = Measured(self.run, self.collected)
        keys = (*schema.EVENTS, "throughput", "tracked_stats")
        handlers = {key: getattr(self, f"_{key}", getattr(self.measured, key, None)) for key in keys}
        self._handlers = {key: handle for key, handle in handlers.items() if handle}

    def take(self, event: Event) -> None:
        """The next event, of any key."""
        handle = self._handlers.get(event.key)
        if handle is None:
            return
        if event.key == schema.EVAL_ACCURACY.key and "epoch_num" not in event.metadata:
            # of another benchmark, by samples or steps
            self._keep_accuracy(event, self.run.number(schema.EVAL_ACCURACY))
        rule, *names = _NUMBERED.get(event.key, ("",))
        numbers = [self._number(rule, event, name) for name in names]
        for broken, *how in handle(event, *numbers) if None not in numbers else ():
            if broken == OWN:
                self.measured.fault(event.line, *how)
            else:
                self.collected.breach(broken, event.line, *how)

    def _number(self, rule: str, event: Event, name: str) -> int | None:
        """A number of epochs in the metadata of `event`; None, and a breach of `rule`, where it is none."""
        value: Any = event.metadata.get(name)
        if is_number(value) and 0 <= value < 2**31 and value == int(value):  # others write 39.0
            return int(value)
        wanted = f"{event.key} has {name}, a whole number"
        self.collected.breach(rule, event.line, f"{event.key} has {name} {printable(value)}", wanted)
        return None

    # --- the clock ---

    def _run_start(self, event: Event) -> Wrong:
        first = self.run.of(schema.RUN_START)
        if event is first:
            self.measured.run_starts(event)
        elif event.time_ms != first.time_ms:
            yield "run-time", f"another run_start, {event.time_ms - first.time_ms} ms after the first"

    def _run_stop(self, event: Event) -> Wrong:
        first, status, start_ms = self.run.of(schema.RUN_STOP), event.metadata.get("status"), self.run.start_ms
        if event is not first:
            if event.time_ms != first.time_ms:
                yield "run-time", f"another run_stop than that of line {first.line}"
            if status != self.run.status:
                that = f"that of line {first.line} is {printable(self.run.status)}"
                yield "run-status", f"status {printable(status)}; {that}"
            return
        self.measured.was_measured()
        yield from self._pace()
        if start_ms is not None and event.time_ms <= start_ms:
            yield "run-time", f"run_stop {start_ms - event.time_ms} ms before run_start"
        if status != "success":
            return
        self.measured.succeeds(event.line)
        if self.epoch:
            yield "open-at-stop", f"{self.epoch} is open"
        if self.block:
            yield "block-order", f"{self.block} is open"
        if self.unscored:
            yield "eval-order", f"{self.unscored} has no accuracy"
        elif self.evaluation:
            yield "open-at-stop", f"{self.evaluation} is open"

    def _pace(self) -> Wrong:
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
            yield "epoch-time", f"{fast} of {len(epochs)} epochs take under 1/4 of the upper quartile, {usual:.10g} ms"

    # --- blocks and epochs ---

    def _starts(self, event: Event) -> Wrong:
        if self.run.start_ms is None:
            yield "before-run-start", f"{event.key} before run_start"

    def _took(self, event: Event, started: _Open) -> Wrong:
        took_ms = event.time_ms - started.start.time_ms
        self.run.took(event.key, took_ms)
        if event.key != schema.EVAL_STOP.key and len(self.trained_ms) < EVENTS_KEPT:
            self.trained_ms.append((took_ms / max(started.epochs, 1), event.line))
        if took_ms <= 0:
            yield "epoch-time", f"{event.key} {took_ms} ms after its start"

    def _block_start(self, event: Event, first: int, count: int) -> Wrong:
        if self.block:
            yield "block-order", f"{self.block} is still open"
        if self.epoch:
            yield "block-order", f"a block starts inside epoch {self.epoch.number}"
        wanted = _after(self.last_epoch if self.last_block is None else self.last_block)
        if first not in wanted:
            yield "block-order", f"a block starts at epoch {first}; {' or '.join(map(str, wanted))} is next"
        yield from self._starts(event)
        if not self.epochs_seen:
            self.epochs_counted += count
            if first > (self.last_epoch or 0):
                self._trains_on()
        self.block = _Open(event, first, count)

    def _block_stop(self, event: Event, first: int) -> Wrong:
        block, self.block = self.block, None
        if not block:
            yield "block-order", "block_stop, and no block is open"
            return
        if first != block.number:
            yield "block-order", f"block_stop of epoch {first}; open is {block}"
        if not self.epochs_seen:
            self.last_epoch = block.last
            yield from self._took(event, block)
        elif self.epoch or self.last_epoch != block.last:
            announced = f"{block} announces epochs {block.number} to {block.last}"
            done = "none" if self.last_epoch is None else self.last_epoch
            yield "block-order", f"{announced}; the last one done is {done}"
        self.last_block = block.last

    def _epoch_start(self, event: Event, number: int) -> Wrong:
        wanted, block = _after(self.last_epoch), self.block
        if self.epoch:
            yield "epoch-order", f"{self.epoch} is still open"
        elif number not in wanted:
            yield "epoch-order", f"epoch {number} starts; {' or '.join(map(str, wanted))} is next"
        yield from self._starts(event)
        if block and not block.number <= number <= block.last:
            yield "block-order", f"epoch {number} in {block}, which holds epochs {block.number} to {block.last}"
        elif self.last_block is not None and not block:
            yield "block-order", f"epoch {number} lies in no block"
        self._trains_on()
        self.epoch = _Open(event, number)
        self.epochs_counted = self.epochs_counted + 1 if self.epochs_seen else 1
        self.epochs_seen = True
        self.eval_in_epoch_ms = 0.0
        self.measured.epoch_starts(event, number)

    def _epoch_stop(self, event: Event, number: int) -> Wrong:
        epoch, self.epoch = self.epoch, None
        if not epoch:
            yield "epoch-order", f"epoch {number} stops and none is open"
            return
        if number != epoch.number:
            yield "epoch-order", f"epoch {number} stops; open is epoch {epoch.number}"
        self.last_epoch = epoch.number
        yield from self._took(event, epoch)
        trained_ms = event.time_ms - epoch.start.time_ms - self.eval_in_epoch_ms
        self.measured.epoch_stops(epoch.number, epoch.start.line, trained_ms)

    # --- evaluations ---

    def _trained_epoch(self) -> int | None:
        """The epoch that an evaluation here is of."""
        if self.epoch:
            return self.epoch.number
        return self.block.last if self.block and not self.epochs_seen else self.last_epoch

    def _eval_start(self, event: Event, number: int) -> Wrong:
        if self.evaluation:
            yield "eval-order", f"{self.evaluation} is still open"
        elif self.unscored:
            yield "eval-order", f"{self.unscored} has no accuracy"
        yield from self._starts(event)
        trained = self._trained_epoch()
        if number != trained:
            was = "no epoch was" if trained is None else f"epoch {trained} was"
            actual = f"evaluation of epoch {number}; {was} the last trained"
            if trained is not None and not self.epoch and self.last_evaluated < number < trained:
                self.late.append((event.line, actual))
            else:
                yield "eval-order", actual
        self.last_evaluated = number
        self.evaluation = self.unscored = _Open(event, number)

    def _eval_stop(self, event: Event, number: int) -> Wrong:
        evaluation, self.evaluation = self.evaluation, None
        if not evaluation:
            yield "eval-order", f"evaluation of epoch {number} stops and none is open"
            return
        if number != evaluation.number:
            yield "eval-order", f"evaluation of epoch {number} stops; open is that of epoch {evaluation.number}"
        yield from self._took(event, evaluation)
        if self.epoch:
            self.eval_in_epoch_ms += event.time_ms - evaluation.start.time_ms

    def _eval_accuracy(self, event: Event, number: int) -> Wrong:
        self._keep_accuracy(event, number)
        if not self.unscored:
            # the official rules ask for AT_LEAST_ONE_OR(block_start); some number from 0, and their accuracies from 1
            trained = max(self._trained_epoch() or 0, self.epochs_counted)
            if self.run.number(schema.EVAL_START) or not self.last_evaluated < number <= trained + 1:
                yield "eval-order", f"an accuracy of epoch {number} without an evaluation of its own"
        elif number != self.unscored.number:
            yield "eval-order", f"an accuracy of epoch {number}; {self.unscored} is of another epoch"
        self.last_evaluated = number
        self.unscored = None

    def _keep_accuracy(self, event: Event, number: int) -> None:
        if is_number(event.value):
            del self.run.evaluations[EVENTS_KEPT - 1 :]  # the last one stays
            self.run.evaluations.append(Evaluation(number, float(event.value), event.line, self.epochs_counted))

    def _trains_on(self, rule: str = "eval-order") -> None:
        """Only checkpoints that are evaluated after all training may be of an epoch before the last one."""
        for line, actual in self.late:
            self.collected.breach(rule, line, actual)
        self.late.clear()

    def finish(self) -> None:
        self._trains_on("eval-late")
        self.measured.finish()


def _after(last: int | None) -> tuple[int, ...]:
    """What the next epoch may be; the first of a run is 0 or 1."""
    return (0, 1) if last is None else (last + 1,)
