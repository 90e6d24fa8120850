"""The order of a run, event by event: its clock, epochs, blocks and evaluations, and what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_number
from compliance.rules import Collected
from compliance.strict import measured
from compliance.strict.measured import Measured, number_of_epochs
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

SHORTEST_EPOCH = 1 / 150  # of the run's longest; the least is 1/34 in v2.1 and 1/11 in four other rounds
# Of the upper quartile of 8 or more, where that is 1 s: of 944 published runs the least is 0.61. Shorter ones
# overlap: their least is 0.27.
FASTEST_EPOCH, LEAST_EPOCHS, LEAST_QUARTILE_MS = 1 / 4, 8, 1000
_NUMBERED = {  # event: the numbers of epochs in its metadata
    "block_start": ("first_epoch_num", "epoch_count"),
    "block_stop": ("first_epoch_num",),
    **dict.fromkeys(("epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"), ("epoch_num",)),
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
    next_block: int | None = None  # where it must start
    evaluation: _Open | None = None
    unscored: _Open | None = None  # evaluation that still lacks its accuracy
    eval_in_epoch_ms: float = 0.0
    last_evaluated: int = -1  # epoch
    late: list[tuple[int, str]] = field(default_factory=list)  # evaluations of an epoch before the last trained

    def __post_init__(self) -> None:
        self.measured = Measured(self.run, self.collected)

    def take(self, event: Event) -> None:
        """The next event, of any key."""
        if measure := measured.HANDLERS.get(event.key):
            measure(self.measured, event)
        handle = _HANDLERS.get(event.key)
        if handle is None:
            return
        if event.key == schema.EVAL_ACCURACY.key and "epoch_num" not in event.metadata:
            self._keep_accuracy(
                event, self.run.number(schema.EVAL_ACCURACY)
            )  # of another benchmark, by samples or steps
        rule, names = f"{event.key.partition('_')[0]}-order", _NUMBERED.get(event.key, ())
        numbers = [number_of_epochs(rule, event, name, self.collected) for name in names]
        if None not in numbers:
            handle(self, event, *numbers)

    def _breach(self, rule: str, event: Event, actual: str) -> None:
        self.collected.breach(rule, event.line, actual)

    # --- the clock ---

    def _run_start(self, event: Event) -> None:
        first = self.run.of(schema.RUN_START)
        if event is first:
            self.measured.run_starts(event)
        elif event.time_ms != first.time_ms:
            self._breach("run-time", event, f"another run_start, {event.time_ms - first.time_ms} ms after the first")

    def _run_stop(self, event: Event) -> None:
        first, status, start_ms = self.run.of(schema.RUN_STOP), event.metadata.get("status"), self.run.start_ms
        if event is not first:
            if event.time_ms != first.time_ms:
                self._breach("run-time", event, f"another run_stop than that of line {first.line}")
            if status != self.run.status:
                actual = f"status {printable(status)}; that of line {first.line} is {printable(self.run.status)}"
                self._breach("run-status", event, actual)
            return
        self.measured.was_measured()
        self._pace(event)
        if start_ms is not None and event.time_ms <= start_ms:
            self._breach("run-time", event, f"run_stop {start_ms - event.time_ms} ms before run_start")
        if status == "success":
            self.measured.succeeds(event.line)
            if self.epoch:
                self._breach("open-at-stop", event, f"{self.epoch} is open")
            if self.block:
                self._breach("block-order", event, f"{self.block} is open")
            if self.unscored:
                self._breach("eval-order", event, f"{self.unscored} has no accuracy")
            elif self.evaluation:
                self._breach("open-at-stop", event, f"{self.evaluation} is open")

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

    # --- blocks and epochs ---

    def _not_before_run(self, event: Event) -> None:
        if self.run.start_ms is None:
            self._breach("before-run-start", event, f"{event.key} before run_start")

    def _takes_time(self, event: Event, started: _Open) -> float:
        took_ms = event.time_ms - started.start.time_ms
        self.run.took(event.key, took_ms)
        if took_ms <= 0:
            self._breach("epoch-time", event, f"{event.key} {took_ms} ms after its start")
        return took_ms

    def _trained(self, event: Event, trained: _Open) -> float:
        took_ms = self._takes_time(event, trained)
        if len(self.trained_ms) < EVENTS_KEPT:
            self.trained_ms.append((took_ms / max(trained.epochs, 1), event.line))
        return took_ms

    def _next_epoch(self) -> int | None:
        return None if self.last_epoch is None else self.last_epoch + 1

    def _block_start(self, event: Event, first: int, count: int) -> None:
        if self.block:
            self._breach("block-order", event, f"{self.block} is still open")
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
        self.block = _Open(event, first, count)

    def _block_stop(self, event: Event, first: int) -> None:
        block, self.block = self.block, None
        if not block:
            self._breach("block-order", event, "block_stop, and no block is open")
            return
        if first != block.number:
            self._breach("block-order", event, f"block_stop of epoch {first}; open is {block}")
        if not self.epochs_seen:
            self.last_epoch = block.last
            self._trained(event, block)
        elif self.epoch or self.last_epoch != block.last:
            announced = f"{block} announces epochs {block.number} to {block.last}"
            done = "none" if self.last_epoch is None else self.last_epoch
            self._breach("block-order", event, f"{announced}; the last one done is {done}")
        self.next_block = block.last + 1

    def _epoch_start(self, event: Event, number: int) -> None:
        wanted, block = self._next_epoch(), self.block
        if self.epoch:
            self._breach("epoch-order", event, f"{self.epoch} is still open")
        elif not _follows(number, wanted):
            self._breach("epoch-order", event, f"epoch {number} starts; {_first(wanted)} is next")
        self._not_before_run(event)
        if block and not block.number <= number <= block.last:
            holds = f"{block}, which holds epochs {block.number} to {block.last}"
            self._breach("block-order", event, f"epoch {number} in {holds}")
        elif self.next_block is not None and not block:
            self._breach("block-order", event, f"epoch {number} lies in no block")
        self._trains_on()
        self.epoch = _Open(event, number)
        self.epochs_counted = self.epochs_counted + 1 if self.epochs_seen else 1
        self.epochs_seen = True
        self.eval_in_epoch_ms = 0.0
        self.measured.epoch_starts(event, number)

    def _epoch_stop(self, event: Event, number: int) -> None:
        epoch, self.epoch = self.epoch, None
        if not epoch:
            self._breach("epoch-order", event, f"epoch {number} stops and none is open")
            return
        if number != epoch.number:
            self._breach("epoch-order", event, f"epoch {number} stops; open is epoch {epoch.number}")
        self.last_epoch = epoch.number
        took_ms = self._trained(event, epoch)
        self.measured.epoch_stops(epoch.number, epoch.start.line, took_ms - self.eval_in_epoch_ms)

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
            self._breach("eval-order", event, f"{self.evaluation} is still open")
        elif self.unscored:
            self._breach("eval-order", event, f"{self.unscored} has no accuracy")
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
        self.evaluation = self.unscored = _Open(event, number)

    def _eval_stop(self, event: Event, number: int) -> None:
        evaluation, self.evaluation = self.evaluation, None
        if not evaluation:
            self._breach("eval-order", event, f"evaluation of epoch {number} stops and none is open")
            return
        if number != evaluation.number:
            actual = f"evaluation of epoch {number} stops; open is that of epoch {evaluation.number}"
            self._breach("eval-order", event, actual)
        took_ms = self._takes_time(event, evaluation)
        if self.epoch:
            self.eval_in_epoch_ms += took_ms

    def _eval_accuracy(self, event: Event, number: int) -> None:
        self._keep_accuracy(event, number)
        if not self.unscored:
            # the official rules ask for AT_LEAST_ONE_OR(block_start); some number from 0, and their accuracies from 1
            trained = max(self._trained_epoch() or 0, self.epochs_counted)
            if self.run.number(schema.EVAL_START) or not self.last_evaluated < number <= trained + 1:
                self._breach("eval-order", event, f"an accuracy of epoch {number} without an evaluation of its own")
        elif number != self.unscored.number:
            self._breach("eval-order", event, f"an accuracy of epoch {number}; {self.unscored} is of another epoch")
        self.last_evaluated = number
        self.unscored = None

    def _keep_accuracy(self, event: Event, number: int) -> None:
        if is_number(event.value):
            kept = self.run.evaluations
            del kept[EVENTS_KEPT - 1 :]  # the last one stays
            kept.append(Evaluation(number, float(event.value), event.line, self.epochs_counted))

    def _trains_on(self, rule: str = "eval-order") -> None:
        """Only checkpoints that are evaluated after all training may be of an epoch before the last one."""
        for line, actual in self.late:
            self.collected.breach(rule, line, actual)
        self.late.clear()

    def finish(self) -> None:
        self._trains_on("eval-late")
        self.measured.finish()


def _follows(number: int, wanted: int | None) -> bool:
    """Whether `number` is the wanted one; the first of a run is 0 or 1."""
    return number == wanted or (wanted is None and number in (0, 1))


def _first(wanted: int | None) -> str:
    return "0 or 1" if wanted is None else str(wanted)


_HANDLERS: dict[str, Callable[..., None]] = {
    key: getattr(RunOrder, f"_{key}") for key in schema.EVENTS if hasattr(RunOrder, f"_{key}")
}
