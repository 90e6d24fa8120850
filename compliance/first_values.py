"""What a log says of each key: its first event, their number, and whether each value has the type of its meaning."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compliance.rules import Collected
from runlog import schema
from runlog.reader import Event
from runlog.text import as_json, visible

TEXT = "a name"
COUNT = "a whole number above 0"
NUMBER = "a number"
_OF_FIGURES = (  # what a score or a rate is computed from; other names and numbers are labels
    *(schema.TRAIN_SAMPLES.key, schema.EVAL_SAMPLES.key, schema.GLOBAL_BATCH_SIZE.key),
    *(schema.GRADIENT_ACCUMULATION_STEPS.key, schema.EVAL_ACCURACY.key),
)


def is_number(value: Any) -> bool:
    """A number that can be computed with: a JSON integer may have thousands of digits."""
    return type(value) in (int, float) and -1e300 < value < 1e300


def has_type(value: Any, wanted: str) -> bool:
    """Whether `value` is TEXT, COUNT or NUMBER."""
    if wanted is TEXT:
        return isinstance(value, str) and bool(value.strip()) and value.isprintable()
    return is_number(value) and (wanted is NUMBER or (value == int(value) and 0 < value < 2**63))


def own_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata but for the place in the code that mllog adds."""
    return {name: value for name, value in metadata.items() if name not in ("file", "lineno")}


@dataclass(kw_only=True)
class KeyState:
    """What a log says of one key: its first event's value, metadata and line, and the number of events."""

    event_type: str = "POINT_IN_TIME"
    value_type: str | None = None  # None: it may be anything
    count: int = 0
    value: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0


def _state(event: schema.Point[Any] | schema.Mark) -> KeyState:
    if not isinstance(event, schema.Point):
        return KeyState(event_type=event.event_type)
    if event.key.endswith("learning_rate_decay_steps"):
        return KeyState()  # training_rules.adoc: "unconstrained"; some log the name of a schedule
    value_type = {str: TEXT, float: NUMBER}.get(event.value) or (COUNT if event.least == 1 else None)
    return KeyState(event_type=event.event_type, value_type=value_type)


class FirstValues:
    def __init__(self, others: frozenset[str], collected: Collected) -> None:
        """`others`: keys to keep beside those of our schema."""
        self._collected = collected
        known = {key: _state(event) for key, event in schema.EVENTS.items()}
        self.keys = {name: KeyState() for name in sorted(others)} | known

    def of(self, event: schema.Point[Any] | schema.Mark) -> KeyState:
        return self.keys[event.key]

    def text(self, event: schema.Point[str]) -> str:
        """The first value of an event; empty if it is no text."""
        value = self.of(event).value
        return value if isinstance(value, str) else ""

    def take(self, event: Event) -> None:
        key, value = event.key, event.value
        if (state := self.keys.get(key)) is None:
            return
        state.count += 1
        if state.count == 1:
            state.value, state.metadata, state.line = value, event.metadata, event.line
        wanted, kind = state.value_type, state.event_type
        if wanted is not None and not has_type(value, wanted):
            rule, actual = "value-type" if key in _OF_FIGURES else "label-type", visible(as_json(value), 160)
            self._collected.breach(rule, event.line, f"{key} is {actual}", f"{key} is {wanted}")
        if event.event_type not in ("", kind):  # the reader told of an unknown one
            self._collected.breach("event-type", event.line, f"{key} is of type {event.event_type}", f"{key}: {kind}")
