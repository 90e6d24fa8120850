"""A run as its events tell it: epochs, blocks, evaluations, step windows, rates, its start and its end.

Built from any stream of entries, in any order: a stop without a start, an epoch that never ends and a number that is
no number all have their place here, as they were written. Whether the order is right is for the checker to say, and
what a value is worth for who reads it. Values are JSON scalars; of anything longer its start is kept, as text, so
that a million events stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from runlog import schema
from runlog.reader import Entry, Event, Header, settings_of, table_of

LONGEST_TEXT = 200  # of a value that is kept
_T = TypeVar("_T")


class Mark(NamedTuple):
    """Where an interval starts or stops."""

    line: int
    time_ms: float  # Unix time
    number: Any = None  # epoch_num, of a block first_epoch_num
    count: Any = None  # epoch_count of a block
    status: Any = None  # of run_stop


@dataclass(kw_only=True, slots=True)
class Interval:
    """An epoch, an evaluation, or a block of epochs: a start and the next stop of the same number; one may lack."""

    start: Mark | None = None
    stop: Mark | None = None

    @property
    def first(self) -> Mark:
        """The mark that was met first."""
        mark = self.start or self.stop
        assert mark is not None
        return mark


class Window(NamedTuple):
    """A step_window; the units are those of `schema.StepWindow`."""

    line: int
    time_ms: float
    step: Any
    epoch: Any
    phase: Any
    steps: Any
    images: Any
    time_s: Any
    data_wait_s: Any
    loss: Any
    gpu_memory_mib: Any
    power_w: Any
    is_table: bool  # False: the event's value was no table


class Rate(NamedTuple):
    """The throughput of an epoch: our epoch_throughput, or what other submitters print."""

    line: int
    time_ms: float
    key: str  # epoch_throughput, throughput or tracked_stats
    number: Any  # of the epoch; None: of the one that ended last before it
    images_per_s: Any
    images: Any = None
    time_s: Any = None
    data_wait_s: Any = None


class Accuracy(NamedTuple):
    """The result of an evaluation."""

    line: int
    time_ms: float
    key: str  # eval_accuracy or eval_mean_iou
    number: Any  # of the epoch
    value: Any


@dataclass(kw_only=True)
class Run:
    """What the events have told so far, each list in file order. `take` adds an entry."""

    headers: dict[str, Header] = field(default_factory=dict)  # the first of each section
    first: dict[str, Event] = field(default_factory=dict)  # the first event of each key of the schema
    last: dict[str, Event] = field(default_factory=dict)  # and the last
    last_ms: float | None = None  # Unix time of the last event
    phase: str = "starting"  # preparing, training, evaluating, finished or aborted: what goes on after the last event
    inits: list[Mark] = field(default_factory=list)
    starts: list[Mark] = field(default_factory=list)  # run_start: a run has one
    stops: list[Mark] = field(default_factory=list)  # run_stop: a run has at most one
    epochs: list[Interval] = field(default_factory=list)
    blocks: list[Interval] = field(default_factory=list)
    evaluations: list[Interval] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    rank_times: dict[Any, schema.RankTimes] = field(default_factory=dict)  # by the last step of their window
    rates: list[Rate] = field(default_factory=list)
    accuracies: list[Accuracy] = field(default_factory=list)
    _open: dict[tuple[str, Any], Interval] = field(default_factory=dict)  # by kind and number

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Run:
        """The run of a whole log."""
        run = cls()
        for entry in entries:
            run.take(entry)
        return run

    def take(self, entry: Entry) -> None:
        """The next entry of the log."""
        if isinstance(entry, Event):
            key = entry.key
            self.last_ms = entry.time_ms
            if key in schema.EVENTS:
                self.first.setdefault(key, entry)
                self.last[key] = entry
            if handle := _HANDLERS.get(key):
                handle(self, entry)
        elif isinstance(entry, Header):
            self.headers.setdefault(entry.section, entry)

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the header's configuration; what is no setting is left out."""
        config = self.headers.get(schema.CONFIG.name)
        return settings_of(config and config.value)

    def last_value(self, point: schema.Point[_T]) -> Any:
        """The last value of an event; None where it was not met."""
        return self.last[point.key].value if point.key in self.last else None

    def _started(self, name: str, intervals: list[Interval], mark: Mark) -> None:
        interval = Interval(start=mark)
        intervals.append(interval)
        self._open[name, mark.number] = interval

    def _stopped(self, name: str, intervals: list[Interval], mark: Mark) -> None:
        interval = self._open.pop((name, mark.number), None)
        if interval is None:
            intervals.append(Interval(stop=mark))
        else:
            interval.stop = mark

    def _init_start(self, event: Event) -> None:
        self.inits.append(Mark(event.line, event.time_ms))
        self.phase = "preparing"

    def _run_start(self, event: Event) -> None:
        self.starts.append(Mark(event.line, event.time_ms))
        self.phase = "training"

    def _run_stop(self, event: Event) -> None:
        status = scalar(event.metadata.get("status"))
        self.stops.append(Mark(event.line, event.time_ms, status=status))
        self.phase = "finished" if status == "success" else "aborted"

    def _epoch_start(self, event: Event) -> None:
        self._started("epoch", self.epochs, _of_epoch(event))
        self.phase = "training"

    def _epoch_stop(self, event: Event) -> None:
        self._stopped("epoch", self.epochs, _of_epoch(event))

    def _block_start(self, event: Event) -> None:
        self._started("block", self.blocks, _of_block(event))

    def _block_stop(self, event: Event) -> None:
        self._stopped("block", self.blocks, _of_block(event))

    def _eval_start(self, event: Event) -> None:
        self._started("eval", self.evaluations, _of_epoch(event))
        self.phase = "evaluating"

    def _eval_stop(self, event: Event) -> None:
        self._stopped("eval", self.evaluations, _of_epoch(event))
        self.phase = "training"

    def _accuracy(self, event: Event) -> None:
        number, value = scalar(event.metadata.get("epoch_num")), scalar(event.value)
        self.accuracies.append(Accuracy(event.line, event.time_ms, event.key, number, value))

    def _step_window(self, event: Event) -> None:
        is_table = isinstance(event.value, dict)
        value, where = event.value.get if is_table else {}.get, event.metadata.get
        self.windows.append(
            Window(
                event.line,
                event.time_ms,
                scalar(where("step")),
                scalar(where("epoch_num")),
                scalar(where("phase")),
                scalar(value("steps")),
                scalar(value("images")),
                scalar(value("time_s")),
                scalar(value("data_wait_s")),
                scalar(value("loss")),
                scalar(value("gpu_memory_mib")),
                scalar(value("power_w")),
                is_table,
            )
        )

    def _rank_times(self, event: Event) -> None:
        if times := table_of(schema.RankTimes, event.value):
            self.rank_times[scalar(event.metadata.get("step"))] = times

    def _epoch_throughput(self, event: Event) -> None:
        value = event.value.get if isinstance(event.value, dict) else {}.get
        number = scalar(event.metadata.get("epoch_num"))
        names = ("images_per_s", "images", "time_s", "data_wait_s")
        self.rates.append(Rate(event.line, event.time_ms, event.key, number, *(scalar(value(name)) for name in names)))

    def _throughput(self, event: Event) -> None:
        """`throughput`, or `tracked_stats` with `throughput` or `imgs_sec`; the epoch is `epoch_num` or `step`."""
        value, metadata = event.value, event.metadata
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        number = scalar(metadata.get("epoch_num", metadata.get("step")))
        self.rates.append(Rate(event.line, event.time_ms, event.key, number, scalar(value)))


def scalar(value: Any) -> Any:
    """A JSON value as it is; the start of a long one's text."""
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST_TEXT):
        return value
    return str(value)[:LONGEST_TEXT]


def real(value: Any) -> float | None:
    """A finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON's whole numbers have no bound
        return None
    return found if math.isfinite(found) else None


def _of_epoch(event: Event) -> Mark:
    return Mark(event.line, event.time_ms, scalar(event.metadata.get("epoch_num")))


def _of_block(event: Event) -> Mark:
    metadata = event.metadata.get
    return Mark(event.line, event.time_ms, scalar(metadata("first_epoch_num")), scalar(metadata("epoch_count")))


_HANDLERS: dict[str, Callable[[Run, Event], None]] = {
    schema.INIT_START.key: Run._init_start,
    schema.RUN_START.key: Run._run_start,
    schema.RUN_STOP.key: Run._run_stop,
    schema.EPOCH_START.key: Run._epoch_start,
    schema.EPOCH_STOP.key: Run._epoch_stop,
    schema.BLOCK_START.key: Run._block_start,
    schema.BLOCK_STOP.key: Run._block_stop,
    schema.EVAL_START.key: Run._eval_start,
    schema.EVAL_STOP.key: Run._eval_stop,
    schema.EVAL_ACCURACY.key: Run._accuracy,
    "eval_mean_iou": Run._accuracy,
    schema.STEP_WINDOW.key: Run._step_window,
    schema.RANK_TIMES.key: Run._rank_times,
    schema.EPOCH_THROUGHPUT.key: Run._epoch_throughput,
    "throughput": Run._throughput,
    "tracked_stats": Run._throughput,
}
