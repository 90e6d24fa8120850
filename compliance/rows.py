"""The rows of a ruleset, applied to a log event by event. It keeps of each key the first event and their number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compliance.findings import FINDINGS_PER_RULE, Collected, Finding, breach_of_row, printable
from compliance.official import rules as newer
from compliance.rules import Row, Ruleset, constraint_in_words, describe_metadata, holds
from runlog import schema
from runlog.reader import Event

TEXT = "a name"
COUNT = "a whole number above 0"
NUMBER = "a number"
# keys without a row whose first value is wanted
_KEPT = (schema.SEED, schema.RUN_SUMMARY, schema.ABORT_REASON, schema.TELEMETRY_SUMMARY)
_OF_FACTS = {  # key, and the fact that its first value is
    schema.SUBMISSION_DIVISION.key: "division",
    schema.SUBMISSION_BENCHMARK.key: "benchmark",
    schema.OPT_NAME.key: "opt_name",
    schema.GLOBAL_BATCH_SIZE.key: "batch",
}
_VALUES_KEPT = 1000  # different values of one name of metadata


def is_number(value: Any) -> bool:
    """A number that can be computed with: a JSON integer may have thousands of digits."""
    return type(value) in (int, float) and -1e300 < value < 1e300


def has_type(value: Any, wanted: str) -> bool:
    """Whether `value` is TEXT, COUNT or NUMBER."""
    if wanted is TEXT:
        return isinstance(value, str) and bool(value.strip()) and value.isprintable()
    return is_number(value) and (wanted is NUMBER or (value == int(value) and 0 < value < 2**63))


def _value_type(event: schema.Point[Any] | schema.Mark | None) -> str | None:
    """What an event's value must be; None where it may be anything."""
    if not isinstance(event, schema.Point):
        return None
    return {str: TEXT, float: NUMBER}.get(event.value) or (COUNT if event.least == 1 else None)


@dataclass(kw_only=True)
class KeyState:
    """What a log says of one key: the first value, its line, and whether a later value differs."""

    value_type: str | None = None
    event_type: str = "POINT_IN_TIME"
    count: int = 0
    value: Any = None
    line: int = 0
    differs: bool = False


@dataclass(kw_only=True)
class _RowState:
    row: Row
    only_metadata: tuple[str, ...] | None  # the row asks for no more than one of these
    metadata: Sequence[tuple[Callable[[Any, Mapping[str, Any]], bool], Any]] = ()
    any_met: bool = False
    best: float | None = None  # of the values that any_value looks at
    best_line: int | None = None
    failures: list[Finding] = field(default_factory=list)
    failed: int = 0
    seen: dict[str, dict[str, int]] = field(default_factory=dict)  # of a name of metadata: count of each value


def _only_metadata(row: Row) -> tuple[str, ...] | None:
    others = (row.value, row.any_value, row.order, row.minutes_since_first)
    if any(others) or set(row.metadata) != {"one_of"}:
        return None
    return tuple(row.metadata["one_of"])


def own_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata but for the place in the code that mllog adds."""
    return {name: value for name, value in metadata.items() if name not in ("file", "lineno")}


class Rows:
    """Takes the events of one log; `finish` gives what the rows that apply have against them."""

    def __init__(self, ruleset: Ruleset, collected: Collected) -> None:
        self.collected = collected
        self.keys: dict[str, KeyState] = {}
        self.rows: dict[str, list[_RowState]] = {}
        for name in [row.key for row in ruleset.rows] or {*schema.EVENTS, *newer.keys(ruleset.version)}:
            event = schema.EVENTS.get(name)
            self.keys[name] = KeyState(
                value_type=_value_type(event), event_type=event.event_type if event else "POINT_IN_TIME"
            )
        for row in ruleset.rows:
            metadata = [
                (_METADATA[name], frozenset(wanted) if name == "all_of" else wanted)
                for name, wanted in row.metadata.items()
                if name in _METADATA
            ]
            state = _RowState(row=row, only_metadata=_only_metadata(row), metadata=metadata)
            self.rows.setdefault(row.key, []).append(state)
        for kept in _KEPT:
            self.keys.setdefault(kept.key, KeyState())

    def of(self, event: schema.Point[Any] | schema.Mark) -> KeyState:
        """What the log says of an event of our schema."""
        return self.keys[event.key]

    def text(self, event: schema.Point[str]) -> str:
        """The first value of an event; empty if it is no text."""
        value = self.of(event).value
        return value if isinstance(value, str) else ""

    def facts(self) -> dict[str, str]:
        """What the rows' `when` speaks of."""
        batch = self.of(schema.GLOBAL_BATCH_SIZE).value
        return {
            "division": self.text(schema.SUBMISSION_DIVISION),
            "benchmark": self.text(schema.SUBMISSION_BENCHMARK),
            "opt_name": self.text(schema.OPT_NAME),
            "batch": "below 32k" if is_number(batch) and batch < 32_000 else "32k or more",
        }

    def _drop_rows(self) -> None:
        """Leaves out the rows that a fact of the log, which is of a key's first event, has ruled out."""
        facts = self.facts()
        known = {name: facts[name] for key, name in _OF_FACTS.items() if self.keys[key].count}
        for key, states in self.rows.items():
            self.rows[key] = [state for state in states if state.row.applies(dict(state.row.when) | known)]

    def take(self, event: Event, first_init_ms: float | None) -> None:
        """Applies the rows of the event's key. `first_init_ms` is the first init_start so far."""
        key, value, metadata, _, event_type, line, _, _ = event
        state = self.keys.get(key)
        if state is None:
            return
        state.count += 1
        if state.count == 1:
            state.value, state.line = value, line
            if key in _OF_FACTS:
                self._drop_rows()
        elif not state.differs and value != state.value:
            state.differs = True
        for row_state in self.rows.get(key, ()):
            names = row_state.only_metadata  # most rows of most events
            if names is None or metadata.keys().isdisjoint(names):
                self._apply(row_state, event, first_init_ms)
        wanted, kind = state.value_type, state.event_type
        if wanted is not None or event_type != kind:
            self._check_types(event, wanted, kind)

    def _check_types(self, event: Event, wanted: str | None, kind: str) -> None:
        key, value = event.key, event.value
        breach = self.collected.breach
        if wanted is not None and not has_type(value, wanted):
            breach("value-type", event.line, _of_value, key, value, expected=f"{key} is {wanted}")
        if event.event_type not in ("", kind):  # the reader told of an unknown one
            breach("event-type", event.line, "{} is of type {}", key, event.event_type, expected=f"{key}: {kind}")

    def _apply(self, state: _RowState, event: Event, first_init_ms: float | None) -> None:
        row, value = state.row, event.value
        if row.value and not holds(row.value, value) and _is_told(state):
            wanted = constraint_in_words(row.value)
            _fail(state, "value", event, wanted, printable(value) or "empty", f"set {row.key} to {wanted}")
        if row.any_value:
            if is_number(value) and (state.best is None or value > state.best):
                state.best, state.best_line = float(value), event.line
            if type(value) in (int, float, bool):
                state.any_met = state.any_met or holds(row.any_value, value)
            elif _is_told(state):  # the official checker ends with a traceback
                fix = f"log the number itself as the value of {row.key}"
                _fail(state, "value", event, NUMBER, printable(value), fix)
        if row.metadata:
            _apply_metadata(state, event)
        if row.order:
            self._apply_order(state, event)
        if row.minutes_since_first:
            self._apply_limit(state, event, first_init_ms)

    def _apply_order(self, state: _RowState, event: Event) -> None:
        row = state.row
        for key in row.order.get("after", ()):
            if not self.keys[key].count and _is_told(state):
                _fail(state, "order", event, _in_words(row.order), f"no {key} before it", f"log {row.key} after {key}")
        for key in row.order.get("before", ()):
            if self.keys[key].count and _is_told(state):
                actual = f"after the {key} of line {self.keys[key].line}"
                _fail(state, "order", event, _in_words(row.order), actual, f"log {row.key} before {key}")

    def _apply_limit(self, state: _RowState, event: Event, first_init_ms: float | None) -> None:
        row, division = state.row, self.of(schema.SUBMISSION_DIVISION)
        limits = row.minutes_since_first
        if "any" not in limits and not division.count:
            wanted = "submission_division before it, for its time limit"
            if _is_told(state):
                _fail(state, "time", event, wanted, "no submission_division", "log submission_* first")
        elif first_init_ms is not None:
            limit = limits["any"] if "any" in limits else limits["open" if division.value == "open" else "closed"]
            minutes = (event.time_ms - first_init_ms) / 60000
            if not minutes < limit and _is_told(state):
                wanted = f"under {limit} min after the first {limits['key']}"
                fix = "do less before init_stop: compile less, or warm up with fewer steps"
                _fail(state, "time", event, wanted, f"{minutes:.1f} min after it", fix)

    # --- the end ---

    def finish(self, facts: Mapping[str, object]) -> None:
        """Collects the breaches of the rows that apply to a log of these facts."""
        for states in self.rows.values():
            for state in states:
                if state.row.applies(facts):
                    self._finish(state)

    def _finish(self, state: _RowState) -> None:
        row, key, collected = state.row, self.keys[state.row.key], self.collected
        collected.found += state.failures
        if state.failed > len(state.failures):
            collected.more(state.failures[-1], state.failed - len(state.failures))
        self._finish_count(row, key)
        if row.any_value and key.count and not state.any_met:
            best = "no number" if state.best is None else f"the best is {state.best:.6g}"
            fix = "train until the target is reached, then log run_stop"
            wanted = f"one {row.key} {constraint_in_words(row.any_value)}"
            collected.found.append(breach_of_row(row, "value", state.best_line, wanted, best, fix))
        for name, names in row.metadata.get("exactly", {}).items():
            seen = state.seen.get(name, {})
            if key.count and (set(seen) != set(names) or any(count != 1 for count in seen.values())):
                missing, extra = sorted(set(names) - set(seen)), sorted(set(seen) - set(names))
                twice = sorted(one for one, count in seen.items() if count != 1)
                actual = f"missing {missing[:3]}, unknown {[printable(e, 40) for e in extra[:3]]}, twice {twice[:3]}"
                wanted = f"each of the {len(names)} values of {name} once"
                found = breach_of_row(row, "metadata", key.line, wanted, printable(actual), f"log {row.key} so")
                collected.found.append(found)

    def _finish_count(self, row: Row, key: KeyState) -> None:
        collected = self.collected
        said = any(finding.rule == f"{row.key}.count" for finding in collected.found)

        def error(line: int | None, wanted: str, actual: str, fix: str) -> None:
            collected.found.append(breach_of_row(row, "count", line, wanted, actual, fix))

        if row.count == "exactly_one" and not said:
            wanted = f"exactly one {row.key}"
            if not key.count:
                error(None, wanted, "none", f"log {row.key}")
            elif key.count > 1 and key.differs:
                actual = f"{key.count}, with different values; the first is {printable(key.value)}"
                error(key.line, wanted, actual, f"log {row.key} once, on rank 0")
            elif key.count > 1 and not any(f.rule == "exactly-once" and f.line == key.line for f in collected.found):
                collected.breach("exactly-once", key.line, f"{key.count} {row.key}, all with the same value")
        if row.count == "at_least_one" and not key.count and not said:
            error(None, f"at least one {row.key}", "none", f"log {row.key}")
        if row.one_or and not key.count and not any(self.keys[other].count for other in row.one_or):
            named = " or ".join([row.key, *row.one_or])
            error(None, f"at least one {named}", "none", f"log {named}")


def _of_value(key: str, value: Any) -> str:
    return f"{key} is {printable(value) or 'empty'}"


def _in_words(order: Mapping[str, Any]) -> str:
    return "; ".join(f"{word} {' and '.join(keys)}" for word, keys in order.items())


def _is_told(state: _RowState) -> bool:
    """Counts a breach of a row, and says whether it is one of those to be told: words take longer than the check."""
    state.failed += 1
    return state.failed <= FINDINGS_PER_RULE


def _fail(state: _RowState, aspect: str, event: Event, wanted: str, actual: str, fix: str) -> None:
    """A breach of a row; it counts only if the row applies, which is known at the end."""
    state.failures.append(breach_of_row(state.row, aspect, event.line, f"{state.row.key}: {wanted}", actual, fix))


def _apply_metadata(state: _RowState, event: Event) -> None:
    constraint, metadata = state.row.metadata, event.metadata
    for met, names in state.metadata:
        if not met(names, metadata):
            if _is_told(state):
                wanted = describe_metadata({k: v for k, v in constraint.items() if k != "exactly"})
                fix = f"give {event.key} this metadata: {wanted}"
                _fail(state, "metadata", event, wanted, f"metadata {printable(own_metadata(metadata))}", fix)
            break
    for name in constraint.get("exactly", {}):
        seen = state.seen.setdefault(name, {})
        value = metadata.get(name)
        shown = value if isinstance(value, str) else printable(value)
        if len(seen) < _VALUES_KEPT or shown in seen:
            seen[shown] = seen.get(shown, 0) + 1


def _limit(word: str) -> Callable[[Any, Mapping[str, Any]], bool]:
    def met(limits: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
        for name, least in limits.items():  # a loop: all() of a generator takes twice its time
            if name in metadata and not holds({word: least}, metadata[name]):
                return False
        return True

    return met


_METADATA: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "one_of": lambda names, metadata: not metadata.keys().isdisjoint(names),
    "all_of": lambda names, metadata: metadata.keys() >= names,
    "beside": lambda pairs, metadata: all(other in metadata for name, other in pairs.items() if name in metadata),
    "above": _limit("above"),
    "at_least": _limit("at_least"),
}
