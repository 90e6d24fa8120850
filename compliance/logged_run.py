"""The facts that a log states of its run: of each key the first event and how many, the header, and intervals."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compliance.official.tool_reading import ToolReading
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Event, from_json, settings_of

EVENTS_KEPT = 100_000  # of a kind of them: 15 MB
MAX_CLOCK_STEP_MS = 100  # by which a clock is corrected within a run, or threads write out of order
_ALL_KEPT = (
    *(schema.INIT_START.key, schema.CACHE_CLEAR.key, schema.SEED.key, schema.CLOCK_SET.key),
    schema.EVAL_ACCURACY.key,
)
_EVENTS_OF_PROJECT = (  # only this project writes them
    *(schema.RUN_SUMMARY, schema.STEP_WINDOW, schema.RANK_TIMES, schema.EPOCH_THROUGHPUT, schema.TELEMETRY_SUMMARY),
    schema.CLOCK_SET,
)
_NO_EVENT = Event("", None, {}, 0, "", 0, 0)


def is_number(value: Any) -> bool:
    """Return whether a value is a number of usable size. A JSON integer may have thousands of digits."""
    return type(value) in (int, float) and -1e300 < value < 1e300


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number above 0, of 63 bits at most; 5.0 is one."""
    return is_number(value) and value == int(value) and 0 < value < 2**63


def is_name(value: Any) -> bool:
    """Return whether a value is a printable text that is not blank."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def own_metadata(metadata: Mapping[str, Any]) -> JsonObject:
    """Return an event's metadata without `file` and `lineno`, the place in the code that mllog adds.

    Args:
        metadata: The metadata of the event.
    """
    return {name: value for name, value in metadata.items() if name not in ("file", "lineno")}


class Evaluation(NamedTuple):
    """An eval_accuracy, with the number of its epoch, and `RunOrder.epochs_counted` at its line."""

    epoch: int
    value: float
    line: int
    epochs_counted: int = 0
    time_ms: float = 0.0


@dataclass(kw_only=True, eq=False, repr=False)
class LoggedRun:
    """The facts of a run that its log states; None for a fact that it does not state. Times are Unix milliseconds."""

    first_events: dict[str, Event] = field(default_factory=dict)  # of each key that a rule or this checker names
    event_counts: Counter[str] = field(default_factory=Counter)  # of the same events
    all_events: dict[str, list[Event]] = field(default_factory=lambda: {key: [] for key in _ALL_KEPT})
    headers: JsonObject = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    first_losses: list[float | None] = field(default_factory=list)  # of at most LOSSES_KEPT windows, to compare runs
    # Durations of epochs, blocks, evaluations and windows, by (the key of their events, the number of those before).
    intervals: dict[tuple[str, int], float] = field(default_factory=dict)
    tick_ms: int = 1000  # of the clock: 1 once an event's time is not a whole second
    as_tools_read: ToolReading = field(default_factory=ToolReading)  # after the last event

    def take(self, event: Event) -> None:
        """Count the next event, and keep it if it is the first of its key or if all events of its key are kept.

        Args:
            event: The event, in the order of the log.
        """
        self.event_counts[event.key] += 1
        self.first_events.setdefault(event.key, event)
        events_of_key = self.all_events.get(event.key)
        if events_of_key is not None and len(events_of_key) < EVENTS_KEPT:
            events_of_key.append(event)

    def keep_interval(self, kind: str, duration: float) -> None:
        """Keep the duration of an interval, such as an epoch. Durations beyond EVENTS_KEPT are ignored.

        Args:
            kind: The key of the event that ends it, such as "epoch_stop", or "step_window".
            duration: The duration, in milliseconds. A step window has its duration in seconds.
        """
        if len(self.intervals) < EVENTS_KEPT:
            self.intervals[kind, len(self.intervals)] = duration

    def durations(self, kind: str) -> list[float]:
        """Return the durations of the intervals of one kind, in their order.

        Args:
            kind: The key of their events, such as "epoch_stop".
        """
        return [duration for (name, _), duration in self.intervals.items() if name == kind]

    def first_event(self, event: schema.Point[Any] | schema.Mark) -> Event:
        """Return the run's first event of a key; if there is none, an event of line 0 without a value.

        Args:
            event: The event of the schema that has the key, such as schema.SEED.
        """
        return self.first_events.get(event.key, _NO_EVENT)

    def number_of_events(self, event: schema.Point[Any] | schema.Mark) -> int:
        """Return how many events of a key the run has.

        Args:
            event: The event of the schema that has the key, such as schema.SEED.
        """
        return self.event_counts[event.key]

    def stated_count(self, event: schema.Point[Any]) -> Any:
        """Return the value of the first event of a key; 0 if it is missing or not a whole number above 0.

        Args:
            event: The event of the schema that has the key, such as schema.TRAIN_SAMPLES.
        """
        value = self.first_event(event).value
        return value if is_count(value) else 0

    @property
    def clock_tolerance_ms(self) -> float:
        """Return how far two times of the log's clock may disagree with a duration."""
        return MAX_CLOCK_STEP_MS + self.tick_ms

    @property
    def global_batch(self) -> int | None:
        """Return the value of global_batch_size, the samples of a step; None if it is not a whole number above 0."""
        return int(self.stated_count(schema.GLOBAL_BATCH_SIZE)) or None

    def stated_text(self, event: schema.Point[str]) -> str:
        """Return the value of the first event of a key; empty if it is missing or not a text.

        Args:
            event: The event of the schema that has the key, such as schema.OPT_NAME.
        """
        value = self.first_event(event).value
        return value if isinstance(value, str) else ""

    def header_section(self, section: schema.Section[Any]) -> JsonObject:
        """Return a section of the header; empty if it is missing or not a table.

        Args:
            section: The section of the schema, such as schema.HARDWARE.
        """
        value = self.headers.get(section.name)
        return value if isinstance(value, dict) else {}

    @property
    def first_values(self) -> JsonObject:
        """Return the first value of each key."""
        return {key: event.value for key, event in self.first_events.items()}

    @property
    def first_lines(self) -> dict[str, int]:
        """Return the line of the first event of each key."""
        return {key: event.line for key, event in self.first_events.items()}

    @property
    def settings(self) -> JsonObject:
        """Return the values of the settings in the header's section `config`."""
        return settings_of(self.headers.get(schema.CONFIG.name))

    def whole_setting(self, name: str) -> int | None:
        """Return the value of a setting; None if it is missing or not a whole number of usable size (`is_number`).

        Args:
            name: The name of the setting, such as "PRINT_STEPS".
        """
        value: Any = self.settings.get(name)
        is_whole_number = type(value) is int and is_number(value)
        return int(value) if is_whole_number else None

    @property
    def workload_name(self) -> str:
        """Return the value of the setting WORKLOAD, such as "rn50"; empty if it is missing or not a text."""
        name = self.settings.get("WORKLOAD")
        return name if isinstance(name, str) else ""

    @property
    def recipe_target(self) -> float | None:
        """Return the quality target among the header's settings, a number named RECIPE.target_...; None without one."""
        for name, value in self.settings.items():
            if name.startswith("RECIPE.target_") and is_number(value):
                return float(value)
        return None

    @property
    def is_project_log(self) -> bool:
        """Whether the log has anything that only this project writes."""
        return not self.headers.keys().isdisjoint(schema.SECTIONS) or any(
            self.number_of_events(event) for event in _EVENTS_OF_PROJECT
        )

    @property
    def start_ms(self) -> float | None:
        start = self.first_events.get(schema.RUN_START.key)
        return start and start.time_ms

    @property
    def stop(self) -> Event | None:
        return self.first_events.get(schema.RUN_STOP.key)

    @property
    def stop_ms(self) -> float | None:
        return self.stop and self.stop.time_ms

    @property
    def status(self) -> Any:
        return self.stop and self.stop.metadata.get("status")

    @property
    def minutes(self) -> float | None:
        """Return the minutes from the first run_start to the first run_stop; None if one of them is missing.

        In a log with several of them, `as_tools_read` has the time that mlperf-logging's result_summarizer takes.
        """
        if self.start_ms is None or self.stop_ms is None:
            return None
        return (float(self.stop_ms) - float(self.start_ms)) / 60 / 1000

    @property
    def summary(self) -> schema.RunSummary | None:
        """Return the value of the event run_summary; None if it is missing or does not fit the schema."""
        return from_json(schema.RunSummary, self.first_event(schema.RUN_SUMMARY).value)

    @property
    def is_resumed(self) -> bool:
        """Whether the run went on from a checkpoint, so that its first steps are in another log."""
        return self.summary is not None and self.summary.resumed

    def is_resumed_without_steps(self, line: int) -> bool:
        """Return whether the run went on from a checkpoint, and no window of training steps stands above a line.

        Args:
            line: The number of the line in the log, such as that of an epoch_stop.
        """
        first_window = self.first_event(schema.STEP_WINDOW)  # of line 0 if there is none
        return self.is_resumed and not 0 < first_window.line < line


NOTHING = LoggedRun()  # the facts of a log without events
