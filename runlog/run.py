"""A run as its events tell it: epochs, blocks, evaluations, step windows, rates, its start and its end.

Built from any stream of entries, in any order: a stop without a start, an epoch that never ends and a number that is
no number all have their place here, as they were written. Whether the order is right is for the checker to say, and
what a value is worth for who reads it. Values are JSON scalars; of anything longer its start is kept, as text, so
that a million events stay small; windows are whole events, for the reader to take away.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Entry, Event, Header, from_json, settings_of

LONGEST_TEXT = 200  # of a value that is kept
_FIRST_DATE_MS = 1_514_764_800_000  # Unix time of 2018-01-01, before the first MLPerf logs
_LAST_DATE_MS = 4_102_444_800_000  # and of 2100-01-01
NO_DATE = "not a date from 2018 to 2099"
_PHASE_AFTER = {  # what goes on after an event
    schema.INIT_START.key: "preparing",
    schema.RUN_START.key: "training",
    schema.EPOCH_START.key: "training",
    schema.EVAL_START.key: "evaluating",
    schema.EVAL_STOP.key: "training",
}
# The name in an event's metadata that has the number of its interval, by the interval's kind.
_NUMBER_NAMES = {"epoch": "epoch_num", "eval": "epoch_num", "block": "first_epoch_num"}
# What a target is compared with: no further metric of an evaluation belongs here.
_QUALITY_KEYS = (schema.EVAL_ACCURACY.key, "eval_mean_iou")
_INTERVAL_KEYS = {*(f"{kind}_start" for kind in _NUMBER_NAMES), *(f"{kind}_stop" for kind in _NUMBER_NAMES)}


def is_date_of_run(time_ms: float) -> bool:
    """Return whether a Unix time lies in the years 2018 to 2099. In seconds, the time of any run is in 1970.

    Args:
        time_ms: The time that a log gives, which should be in milliseconds.
    """
    return _FIRST_DATE_MS <= time_ms < _LAST_DATE_MS


def setting_of_epochs(settings: JsonObject) -> str:
    """Return the name of the setting that says how many epochs a run trains at most: MAX_EPOCHS or RECIPE.epochs.

    The user's MAX_EPOCHS goes before the recipe. It is 0 if it is not set. RECIPE.epochs is None where the recipe
    counts in iterations.

    Args:
        settings: The settings in the log's header.
    """
    return "MAX_EPOCHS" if settings.get("MAX_EPOCHS") else "RECIPE.epochs"


class Mark(NamedTuple):
    """Where an interval starts or stops."""

    line: int
    offset: int  # the byte of the log at which its event starts, which is also the order of events on one line
    time_ms: float  # Unix time
    number: Any = None  # epoch_num, of a block first_epoch_num
    count: Any = None  # epoch_count of a block
    status: Any = None  # of run_stop


@dataclass(kw_only=True, slots=True)
class Interval:
    """An epoch, an evaluation, or a block of epochs: a start and the next stop of its number; either may be missing."""

    start: Mark | None = None
    stop: Mark | None = None


class Rate(NamedTuple):
    """The throughput of an epoch: our epoch_throughput, or what other submitters print."""

    line: int
    offset: int  # the byte of the log at which its event starts
    key: str  # epoch_throughput, throughput or tracked_stats
    number: Any  # of the epoch; None: of the one that ended last before it
    images_per_s: Any
    images: Any = None
    time_s: Any = None
    data_wait_s: Any = None


class Accuracy(NamedTuple):
    """The result of an evaluation."""

    line: int
    key: str  # one of _QUALITY_KEYS
    number: Any  # of the epoch
    value: Any


@dataclass(kw_only=True)
class Run:
    """The course of a run, by the log entries that `take` has added so far. Each list is in file order."""

    headers: dict[str, Header] = field(default_factory=dict)  # the first of each section
    first: dict[str, Event] = field(default_factory=dict)  # the first event of each key of the schema
    last: dict[str, Event] = field(default_factory=dict)  # and the last
    last_ms: float | None = None  # Unix time of the last event
    phase: str = "starting"  # preparing, training, evaluating, finished or aborted: what goes on after the last event
    starts: list[Mark] = field(default_factory=list)  # run_start: a run has one
    stops: list[Mark] = field(default_factory=list)  # run_stop: a run has at most one
    epochs: list[Interval] = field(default_factory=list)
    blocks: list[Interval] = field(default_factory=list)
    evaluations: list[Interval] = field(default_factory=list)
    windows: list[Event] = field(default_factory=list)  # step_window
    # By the last step of their window, in the order in which they were last logged.
    rank_times: dict[Any, schema.RankTimes] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)
    accuracies: list[Accuracy] = field(default_factory=list)
    _open: dict[tuple[str, Any], Interval] = field(default_factory=dict)  # by kind and number

    def take(self, entry: Entry) -> None:
        """Add what the next entry of the log tells to the fields of this run.

        - Event: its time becomes `last_ms`. If its key is in the schema, the event becomes the `last` one of the key,
          and also the `first` one if the key is new. `_take_event` then adds epochs, rates and so on, also for keys of
          other submitters that the schema lacks, such as "throughput".
        - Header: the first one of each section is kept in `headers`, and any further one is ignored.
        - Problem: ignored.

        Args:
            entry: An Event, a Header or a Problem, as the reader of the log yields them.
        """
        if isinstance(entry, Event):
            self.last_ms = entry.time_ms
            if entry.key in schema.EVENTS:
                self.first.setdefault(entry.key, entry)  # only the first event of a key stays
                self.last[entry.key] = entry
            self._take_event(entry)
        elif isinstance(entry, Header):
            self.headers.setdefault(entry.section, entry)  # only the first header of a section stays

    def _take_event(self, event: Event) -> None:
        """Update `phase` by an event of the log, and add what the event tells to the list or dictionary for its key.

        - start or stop of an epoch, a block or an evaluation: `epochs`, `blocks` or `evaluations`
        - run_start and run_stop: `starts` and `stops`
        - eval_accuracy and eval_mean_iou: `accuracies`
        - rank_times: `rank_times`, if the value has the fields that the schema wants
        - step_window: `windows`
        - epoch_throughput, and other submitters' throughput and tracked_stats: `rates`

        An event with another key adds nothing.

        Args:
            event: The next event of the log.
        """
        key = event.key
        metadata = event.metadata
        self.phase = _phase_after(event, self.phase)  # such as "training"; most events leave it as it is
        if key in _INTERVAL_KEYS:  # epoch_start, epoch_stop, block_start, block_stop, eval_start, eval_stop
            self._note_interval(event)
        elif key == schema.RUN_START.key:
            self.starts.append(Mark(line=event.line, offset=event.offset, time_ms=event.time_ms))
        elif key == schema.RUN_STOP.key:
            status = scalar(metadata.get("status"))  # such as "success"; `scalar` keeps any value short
            self.stops.append(Mark(line=event.line, offset=event.offset, time_ms=event.time_ms, status=status))
        elif key in _QUALITY_KEYS:  # eval_accuracy, eval_mean_iou
            epoch = scalar(metadata.get("epoch_num"))
            self.accuracies.append(Accuracy(line=event.line, key=key, number=epoch, value=scalar(event.value)))
        elif key == schema.RANK_TIMES.key:
            times = from_json(schema.RankTimes, event.value)  # None for no object, or a field of another type
            if times is not None:
                step = scalar(metadata.get("step"))
                # After a resume, a step may be done again. Its old entry is removed, so that the new one is the last.
                self.rank_times.pop(step, None)
                self.rank_times[step] = times
        elif key == schema.STEP_WINDOW.key:
            self.windows.append(event)
        elif key == schema.EPOCH_THROUGHPUT.key:
            self.rates.append(_rate_of_this_project(event))
        elif key in ("throughput", "tracked_stats"):  # of other submitters, so they are not in the schema
            self.rates.append(_rate_of_other_submitter(event))

    def _note_interval(self, event: Event) -> None:
        """Note that an epoch, a block of epochs or an evaluation starts or stops.

        A start adds an interval. A stop completes the interval of its kind and number that was started last. If there
        is none or it has its stop already, as in a damaged log, the stop is added as an interval without a start.

        Args:
            event: The event, whose key says which of them it is, such as "epoch_start" or "eval_stop".
        """
        kind, _, start_or_stop = event.key.rpartition("_")  # "epoch_start" -> "epoch", "start"
        mark = Mark(
            line=event.line,
            offset=event.offset,
            time_ms=event.time_ms,
            number=scalar(event.metadata.get(_NUMBER_NAMES[kind])),
            count=scalar(event.metadata.get("epoch_count")),
        )
        intervals_of_kind = {"epoch": self.epochs, "block": self.blocks, "eval": self.evaluations}
        intervals = intervals_of_kind[kind]
        if start_or_stop == "start":
            interval = Interval(start=mark)
            intervals.append(interval)
            self._open[kind, mark.number] = interval
            return
        open_interval = self._open.pop((kind, mark.number), None)
        if open_interval is None:
            intervals.append(Interval(stop=mark))
        else:
            open_interval.stop = mark

    @property
    def settings(self) -> JsonObject:
        """The values of the header's configuration by name; empty if the log has no configuration."""
        config = self.headers.get(schema.CONFIG.name)
        return settings_of(None if config is None else config.value)

    def last_value(self, point: schema.Point[Any]) -> Any:
        """Return the value of the last event of one kind; None if the log does not have such an event.

        Args:
            point: The kind of event: an entry of `runlog/schema.py`, such as RUN_SUMMARY.
        """
        event = self.last.get(point.key)
        return None if event is None else event.value


def _phase_after(event: Event, phase_before: str) -> str:
    """Return what goes on in a run after an event, such as "training" or "finished".

    Args:
        event: The event.
        phase_before: What went on before it. It is returned if the event does not change it.
    """
    if event.key == schema.RUN_STOP.key:
        return "finished" if event.metadata.get("status") == "success" else "aborted"
    return _PHASE_AFTER.get(event.key, phase_before)


def _rate_of_this_project(event: Event) -> Rate:
    """Return the throughput of an epoch from an event `epoch_throughput`, which this project's runs log.

    Args:
        event: The event. Its value should be a JSON object with images, seconds and images/s.

    Returns:
        The throughput. A figure that the event does not have is None. If the value is not a JSON object, all figures
        are None.
    """
    value = event.value if isinstance(event.value, dict) else {}
    return Rate(
        line=event.line,
        offset=event.offset,
        key=event.key,
        number=scalar(event.metadata.get("epoch_num")),
        images_per_s=scalar(value.get("images_per_s")),
        images=scalar(value.get("images")),
        time_s=scalar(value.get("time_s")),
        data_wait_s=scalar(value.get("data_wait_s")),
    )


def _rate_of_other_submitter(event: Event) -> Rate:
    """Return the throughput from an event of another MLPerf submitter's log.

    Args:
        event: The event, with the key "throughput" or "tracked_stats". Its value is the images/s, or a JSON object with
            them as "throughput" or else "imgs_sec".

    Returns:
        The throughput. What the event does not have is None.
    """
    images_per_s = event.value
    if isinstance(event.value, dict):
        images_per_s = event.value["throughput"] if "throughput" in event.value else event.value.get("imgs_sec")
    metadata = event.metadata
    number = metadata["epoch_num"] if "epoch_num" in metadata else metadata.get("step")
    return Rate(
        line=event.line,
        offset=event.offset,
        key=event.key,
        number=scalar(number),
        images_per_s=scalar(images_per_s),
    )


def scalar(value: Any) -> Any:
    """Return a number, a boolean, None or a short text as it is, and any other JSON value as a text that is cut short.

    - a number, a boolean, None, or a text of at most 200 (LONGEST_TEXT) characters: the value itself
    - a longer text: its first 200 characters
    - a list or an object, also a short one: the first 200 characters of `str(value)`, so [1, 2] gives "[1, 2]"

    Args:
        value: The value, of any type.
    """
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str) and len(value) <= LONGEST_TEXT:
        return value
    return str(value)[:LONGEST_TEXT]


def real(value: Any) -> float | None:
    """Return a value of a log as a float, if it is a finite number.

    Args:
        value: The value, of any type.

    Returns:
        The float; None for anything else, booleans included.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number:
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's whole numbers have no bound
        return None
    return number if math.isfinite(number) else None
