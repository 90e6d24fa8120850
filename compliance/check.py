"""The checker: the stream of one log in, findings and the facts of its run out. No I/O but `check_file`'s read.

Memory is bounded whatever the log's length: of each rule the first FINDINGS_PER_RULE breaches are kept and the
rest counted, of each key the first event.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from compliance.findings import SEVERITIES, Finding, printable
from compliance.log import Entry, Event, Header, Problem, read_log
from compliance.rules import Benchmark, Row, Ruleset, describe, describe_metadata, holds

FINDINGS_PER_RULE = 10
EVALUATIONS_KEPT = 100_000  # 15 MB
THROUGHPUT_TOLERANCE = 0.01  # of the time between epoch_start and epoch_stop
CLOCK_MS = 2  # two readings of a clock of 1 ms
_OF_OTHER_RANKS = frozenset({"init_start", "cache_clear"})  # may come from every rank, or node
_OF_TRAINING = frozenset(
    {
        *("init_start", "init_stop", "run_start", "train_samples", "eval_samples"),
        *("block_start", "block_stop", "epoch_start", "epoch_stop"),
        *("eval_start", "eval_stop", "eval_accuracy"),
        *("step_window", "epoch_throughput", "throughput", "tracked_stats"),
    }
)
_TEXT = "a name"
_COUNT = "a whole number above 0"
_NUMBER = "a number"
_TYPES = {
    "submission_org": _TEXT,
    "submission_platform": _TEXT,
    "submission_benchmark": _TEXT,
    "submission_division": _TEXT,
    "submission_status": _TEXT,
    "opt_name": _TEXT,
    "train_samples": _COUNT,
    "eval_samples": _COUNT,
    "global_batch_size": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "eval_accuracy": _NUMBER,
    "model_bn_span": _NUMBER,
    "opt_learning_rate_warmup_epochs": _NUMBER,
}


_EVENT_TYPES = {"_stop": "INTERVAL_END", "_start": "INTERVAL_START"}  # by the end of the key


def _types(key: str) -> tuple[str | None, str]:
    """The type of a key's value, None for any, and of its event."""
    wanted = _TYPES.get(key) or (_NUMBER if key.startswith(("sgd_", "lars_")) else None)
    return wanted, _EVENT_TYPES.get(key[-5:]) or _EVENT_TYPES.get(key[-6:]) or "POINT_IN_TIME"


def _has_type(value: Any, wanted: str) -> bool:
    if wanted is _TEXT:
        return isinstance(value, str) and bool(value.strip()) and value.isprintable()
    return _is_number(value) and (wanted is _NUMBER or (value == int(value) and 0 < value < 2**63))


def _is_number(value: Any) -> bool:
    """A number that can be computed with: a JSON integer may have thousands of digits."""
    return type(value) in (int, float) and -1e300 < value < 1e300


class Evaluation(NamedTuple):
    """An eval_accuracy, with the epoch that it is of."""

    epoch: int
    value: float
    line: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a log says of its run; None where it does not say. Times are Unix milliseconds."""

    values: Mapping[str, Any]  # first value of each key that a row or this checker names
    lines: Mapping[str, int]  # and its line
    headers: Mapping[str, Any]
    seeds: tuple[tuple[Any, int], ...]  # value, line
    evaluations: tuple[Evaluation, ...]
    start_ms: int | float | None
    stop_ms: int | float | None
    status: str | None
    official_keys_met: bool  # no breach of a rule that the official checker has too

    @property
    def minutes(self) -> float | None:
        """Time to train, as mlperf-logging's result_summarizer computes it."""
        if self.start_ms is None or self.stop_ms is None:
            return None
        return (float(self.stop_ms) - float(self.start_ms)) / 60 / 1000

    @property
    def summary(self) -> Mapping[str, Any]:
        """The run_summary event; empty without one."""
        summary = self.values.get("run_summary")
        return summary if isinstance(summary, dict) else {}


@dataclass
class _KeyState:
    types: tuple[str | None, str]
    count: int = 0
    value: Any = None
    line: int = 0
    differs: bool = False
    best: float | None = None
    best_line: int | None = None


@dataclass
class _RowState:
    row: Row
    only_metadata: tuple[str, ...] | None  # the row asks for no more than one of these
    any_met: bool = False
    failures: list[Finding] = field(default_factory=list)
    failed: int = 0
    tensors: dict[str, dict[str, int]] = field(default_factory=dict)


def _only_metadata(row: Row) -> tuple[str, ...] | None:
    others = (row.value, row.any_value, row.order, row.minutes_since_first)
    if any(others) or set(row.metadata) != {"one_of"}:
        return None
    return tuple(row.metadata["one_of"])


class Checker:
    """Takes the entries of one log; `finish` gives the findings and the run."""

    def __init__(self, ruleset: Ruleset, benchmark: str | None = None) -> None:
        self.ruleset = ruleset
        self.benchmark_asked = benchmark
        self.strict = ruleset.strict
        self.found: list[Finding] = []
        self.found_counts: dict[str, int] = {}
        self.headers: dict[str, Any] = {}
        self.keys: dict[str, _KeyState] = {row.key: _KeyState(_types(row.key)) for row in ruleset.rows}
        for key in ("seed", "run_summary", "abort_reason"):
            self.keys.setdefault(key, _KeyState(_types(key)))
        self.rows: dict[str, list[_RowState]] = {}
        for row in ruleset.rows:
            self.rows.setdefault(row.key, []).append(_RowState(row, _only_metadata(row)))
        self.events = 0
        self.unreadable = 0
        self.last_ms: int | float = -math.inf
        self.first_init_ms: int | float | None = None
        self.start_ms: int | float | None = None
        self.stop_ms: int | float | None = None
        self.stop_line: int | None = None
        self.status: Any = None
        self.seeds: list[tuple[Any, int]] = []
        # epochs, blocks and evaluations
        self.epoch: tuple[int, int | float, int] | None = None  # open: number, start in ms, line
        self.epochs_seen = False
        self.last_epoch: int | None = None
        self.last_epoch_ms: float | None = None  # its time less evaluation
        self.block: tuple[int, int, int] | None = None  # open: first epoch, epochs, line
        self.next_block: int | None = None
        self.evaluation: tuple[int, int | float, int] | None = None  # open: epoch, start in ms, line
        self.unscored: tuple[int, int] | None = None  # evaluation that still lacks its accuracy: epoch, line
        self.eval_in_epoch_ms: float = 0.0
        self.evaluations: list[Evaluation] = []
        self.evaluation_count = 0
        self.throughputs: list[tuple[Event, int]] = []  # of an epoch that is not over
        self.caches_kept: list[tuple[int, str]] = []
        self.handlers: dict[str, Callable[[Event], None]] = {
            "init_start": self._init_start,
            "run_start": self._run_start,
            "run_stop": self._run_stop,
            "block_start": self._block_start,
            "block_stop": self._block_stop,
            "epoch_start": self._epoch_start,
            "epoch_stop": self._epoch_stop,
            "eval_start": self._eval_start,
            "eval_stop": self._eval_stop,
            "eval_accuracy": self._eval_accuracy,
            "epoch_throughput": self._epoch_throughput,
            "throughput": self._throughput,
            "tracked_stats": self._throughput,
            "cache_clear": self._cache_clear,
            "seed": self._seed,
        }

    # --- findings ---

    def _breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        """A breach of a strict rule."""
        count = self.found_counts[rule] = self.found_counts.get(rule, 0) + 1
        if count <= FINDINGS_PER_RULE:
            what = self.strict[rule]
            self.found.append(
                Finding(
                    rule=rule,
                    severity=what.severity,
                    line=line,
                    expected=expected or what.expected,
                    actual=actual,
                    fix=what.fix,
                )
            )

    def _note(self, rule: str, actual: str) -> None:
        """Says that a strict rule was not applied, so that nobody takes it for met."""
        what = self.strict[rule]
        self.found.append(Finding(rule=rule, severity="info", line=None, expected=what.expected, actual=actual, fix=""))

    # --- the stream ---

    def feed(self, entry: Entry) -> None:
        if type(entry) is Event:
            self._event(entry)
        elif type(entry) is Problem:
            self.unreadable += 1
            shown = f": {printable(entry.text)}" if entry.text else ""
            self._breach(f"line-{entry.kind}", entry.line, f"{printable(entry.message)}{shown}")
        elif type(entry) is Header and len(self.headers) < 100:
            self.headers.setdefault(entry.section, entry.value)

    def _event(self, event: Event) -> None:
        key, time_ms = event.key, event.time_ms
        self.events += 1
        if key not in _OF_OTHER_RANKS:
            if time_ms < self.last_ms:
                self._breach(
                    "time-order",
                    event.line,
                    f"{printable(key)} at {time_ms} ms, {self.last_ms - time_ms} ms before the event above it",
                )
            self.last_ms = time_ms
            if event.rank or event.metadata.get("rank"):
                self._breach("rank-zero", event.line, f"{printable(key)} of rank {self._rank(event)}")
        if self.stop_line is not None and key in _OF_TRAINING:
            self._breach("after-run-stop", event.line, f"{key} after the run_stop of line {self.stop_line}")
        state = self.keys.get(key)
        if state is not None:
            self._known(event, state)
        handler = self.handlers.get(key)
        if handler is not None:
            handler(event)

    @staticmethod
    def _rank(event: Event) -> str:
        return printable(event.rank or event.metadata["rank"], 20)

    def _known(self, event: Event, state: _KeyState) -> None:
        key, value = event.key, event.value
        state.count += 1
        if state.count == 1:
            state.value, state.line = value, event.line
        elif not state.differs and value != state.value:
            state.differs = True
        metadata = event.metadata
        for row_state in self.rows.get(key, ()):
            names = row_state.only_metadata  # most rows of most events
            if names is None or metadata.keys().isdisjoint(names):
                self._apply(row_state, event)
        wanted, kind = state.types
        if event.event_type != kind or wanted is not None:
            self._check_types(event, wanted, kind)

    def _check_types(self, event: Event, wanted: str | None, kind: str) -> None:
        key, value = event.key, event.value
        if wanted is not None and not _has_type(value, wanted):
            self._breach("value-type", event.line, f"{key} is {printable(value) or 'empty'}", f"{key} is {wanted}")
        if event.event_type != kind:
            self._breach(
                "event-type", event.line, f"{key} is of type {event.event_type or 'unknown'}", f"{key}: {kind}"
            )

    def _apply(self, state: _RowState, event: Event) -> None:
        row = state.row
        if row.value and not holds(row.value, event.value):
            wanted = describe(row.value)
            self._fail(state, "value", event, wanted, printable(event.value) or "empty", f"set {row.key} to {wanted}")
        if row.any_value and not state.any_met:
            state.any_met = holds(row.any_value, event.value)
            if type(event.value) not in (int, float, bool):
                fix = f"log the number itself as the value of {row.key}"
                self._fail(state, "value", event, _NUMBER, printable(event.value), fix)
        if row.metadata:
            self._apply_metadata(state, event)
        if row.order:
            missing = [key for key in row.order.get("after", ()) if not self.keys[key].count]
            early = [key for key in row.order.get("before", ()) if self.keys[key].count]
            wanted = "; ".join(f"{word} {' and '.join(keys)}" for word, keys in row.order.items())
            for key in missing:
                fix = f"log {row.key} after {key}"
                self._fail(state, "order", event, wanted, f"no {key} before it", fix)
            for key in early:
                actual = f"after the {key} of line {self.keys[key].line}"
                self._fail(state, "order", event, wanted, actual, f"log {row.key} before {key}")
        if row.minutes_since_first:
            self._apply_limit(state, event)

    def _apply_limit(self, state: _RowState, event: Event) -> None:
        row = state.row
        division = self.keys["submission_division"]
        if not division.count:
            wanted = "submission_division before it, for its time limit"
            self._fail(state, "time", event, wanted, "no submission_division", "log submission_* first")
        elif self.first_init_ms is not None:
            limit = row.minutes_since_first["open" if division.value == "open" else "closed"]
            minutes = (event.time_ms - self.first_init_ms) / 60000
            if not minutes < limit:
                wanted = f"under {limit} min after the first {row.minutes_since_first['key']}"
                fix = "do less before init_stop: compile less, or warm up with fewer steps"
                self._fail(state, "time", event, wanted, f"{minutes:.1f} min after it", fix)

    def _apply_metadata(self, state: _RowState, event: Event) -> None:
        constraint, metadata = state.row.metadata, event.metadata
        names = constraint.get("one_of", ())
        good = not names or not metadata.keys().isdisjoint(names)
        good = good and all(name in metadata for name in constraint.get("all_of", ()))
        good = good and all(
            other in metadata for name, other in constraint.get("beside", {}).items() if name in metadata
        )
        for limit in ("above", "at_least"):
            good = good and all(
                holds({limit: least}, metadata[name])
                for name, least in constraint.get(limit, {}).items()
                if name in metadata
            )
        if not good:
            wanted = describe_metadata({k: v for k, v in constraint.items() if k != "exactly"})
            fix = f"give {event.key} this metadata: {wanted}"
            given = {name: value for name, value in metadata.items() if name not in ("file", "lineno")}
            self._fail(state, "metadata", event, wanted, f"metadata {printable(given)}", fix)
        for name in constraint.get("exactly", {}):
            seen = state.tensors.setdefault(name, {})
            value = metadata.get(name)
            shown = value if isinstance(value, str) else printable(value)
            if len(seen) < 1000 or shown in seen:
                seen[shown] = seen.get(shown, 0) + 1

    def _fail(self, state: _RowState, aspect: str, event: Event, wanted: str, actual: str, fix: str) -> None:
        """A breach of a row; it counts only if the row applies, which is known at the end."""
        state.failed += 1
        if len(state.failures) < FINDINGS_PER_RULE:
            state.failures.append(
                Finding(
                    rule=f"{state.row.key}.{aspect}",
                    severity="error",
                    line=event.line,
                    expected=f"{state.row.key}: {wanted}",
                    actual=actual,
                    fix=fix,
                )
            )

    # --- keys with a meaning of their own ---

    def _init_start(self, event: Event) -> None:
        self.first_init_ms = event.time_ms if self.first_init_ms is None else min(self.first_init_ms, event.time_ms)

    def _run_start(self, event: Event) -> None:
        if self.start_ms is None:
            self.start_ms = event.time_ms

    def _run_stop(self, event: Event) -> None:
        if self.stop_line is not None:
            return
        self.stop_line, self.stop_ms = event.line, event.time_ms
        self.status = event.metadata.get("status")
        if self.start_ms is not None and event.time_ms <= self.start_ms:
            actual = f"run_stop {self.start_ms - event.time_ms} ms before run_start"
            self._breach("run-time", event.line, actual)
        if self.status == "success":
            if self.epoch:
                self._breach("epoch-order", event.line, f"epoch {self.epoch[0]} of line {self.epoch[2]} is open")
            if self.block:
                self._breach("block-order", event.line, f"the block of line {self.block[2]} is open")
            if self.evaluation or self.unscored:
                _, line = self.unscored or (0, self.evaluation[2] if self.evaluation else 0)
                self._breach("eval-order", event.line, f"the evaluation of line {line} has no stop or no accuracy")

    def _number(self, rule: str, event: Event, name: str) -> int | None:
        """A number of epochs in the metadata of `event`."""
        value = event.metadata.get(name)
        if type(value) is int and 0 <= value < 2**31:
            return value
        wanted = f"{event.key} has {name}, a whole number"
        self._breach(rule, event.line, f"{event.key} has {name} {printable(value)}", wanted)
        return None

    def _block_start(self, event: Event) -> None:
        first = self._number("block-order", event, "first_epoch_num")
        count = self._number("block-order", event, "epoch_count")
        if first is None or count is None:
            return
        if self.block:
            self._breach("block-order", event.line, f"the block of line {self.block[2]} is still open")
        if self.epoch:
            self._breach("block-order", event.line, f"a block starts inside epoch {self.epoch[0]}")
        wanted = self.next_block if self.next_block is not None else self._next_epoch()
        if first != wanted and not (wanted is None and first in (0, 1)):
            begins = "0 or 1" if wanted is None else str(wanted)
            self._breach("block-order", event.line, f"a block starts at epoch {first}; {begins} is next")
        self.block = (first, count, event.line)

    def _next_epoch(self) -> int | None:
        return None if self.last_epoch is None else self.last_epoch + 1

    def _block_stop(self, event: Event) -> None:
        first = self._number("block-order", event, "first_epoch_num")
        if first is None:
            return
        if not self.block:
            self._breach("block-order", event.line, "block_stop, and no block is open")
            return
        started, count, line = self.block
        if first != started:
            self._breach("block-order", event.line, f"block_stop of epoch {first}; open is the block of line {line}")
        last = started + count - 1
        if not self.epochs_seen:
            self.last_epoch = last
        elif self.epoch or self.last_epoch != last:
            done = "none" if self.last_epoch is None else str(self.last_epoch)
            self._breach(
                "block-order",
                event.line,
                f"the block of line {line} announces epochs {started} to {last}; the last one done is {done}",
            )
        self.next_block = last + 1
        self.block = None

    def _epoch_start(self, event: Event) -> None:
        number = self._number("epoch-order", event, "epoch_num")
        if number is None:
            return
        if self.epoch:
            self._breach("epoch-order", event.line, f"epoch {self.epoch[0]} of line {self.epoch[2]} is still open")
        wanted = self._next_epoch()
        if self.epoch is None and number != wanted and not (wanted is None and number in (0, 1)):
            begins = "0 or 1" if wanted is None else str(wanted)
            self._breach("epoch-order", event.line, f"epoch {number} starts; {begins} is next")
        if self.start_ms is None:
            self._breach("epoch-order", event.line, f"epoch {number} starts before run_start")
        if self.block and not self.block[0] <= number < self.block[0] + self.block[1]:
            first, count, line = self.block
            span = f"epochs {first} to {first + count - 1}"
            self._breach("block-order", event.line, f"epoch {number} in the block of line {line}, which holds {span}")
        elif self.next_block is not None and not self.block:
            self._breach("block-order", event.line, f"epoch {number} lies in no block")
        self.epoch = (number, event.time_ms, event.line)
        self.epochs_seen = True
        self.eval_in_epoch_ms = 0.0

    def _epoch_stop(self, event: Event) -> None:
        number = self._number("epoch-order", event, "epoch_num")
        if number is None:
            return
        if not self.epoch:
            self._breach("epoch-order", event.line, f"epoch {number} stops and none is open")
            return
        if number != self.epoch[0]:
            self._breach("epoch-order", event.line, f"epoch {number} stops; open is epoch {self.epoch[0]}")
        self.last_epoch = self.epoch[0]
        self.last_epoch_ms = event.time_ms - self.epoch[1] - self.eval_in_epoch_ms
        self.epoch = None
        for throughput, epoch in self.throughputs:
            self._compare_throughput(throughput, epoch)
        self.throughputs.clear()

    def _trained_epoch(self) -> int | None:
        """The epoch that an evaluation here is of."""
        if self.epoch:
            return self.epoch[0]
        if self.block and not self.epochs_seen:
            return self.block[0] + self.block[1] - 1
        return self.last_epoch

    def _eval_start(self, event: Event) -> None:
        number = self._number("eval-order", event, "epoch_num")
        if number is None:
            return
        if self.evaluation:
            self._breach("eval-order", event.line, f"the evaluation of line {self.evaluation[2]} is still open")
        elif self.unscored:
            self._breach("eval-order", event.line, f"the evaluation of line {self.unscored[1]} has no accuracy")
        trained = self._trained_epoch()
        if number != trained:
            done = "no epoch was" if trained is None else f"epoch {trained} was"
            self._breach("eval-order", event.line, f"evaluation of epoch {number}; {done} the last trained")
        self.evaluation = (number, event.time_ms, event.line)
        self.unscored = (number, event.line)

    def _eval_stop(self, event: Event) -> None:
        number = self._number("eval-order", event, "epoch_num")
        if number is None:
            return
        if not self.evaluation:
            self._breach("eval-order", event.line, f"evaluation of epoch {number} stops and none is open")
            return
        if number != self.evaluation[0]:
            actual = f"evaluation of epoch {number} stops; open is that of epoch {self.evaluation[0]}"
            self._breach("eval-order", event.line, actual)
        if self.epoch:
            self.eval_in_epoch_ms += event.time_ms - self.evaluation[1]
        self.evaluation = None

    def _eval_accuracy(self, event: Event) -> None:
        self.evaluation_count += 1
        number = self._number("eval-order", event, "epoch_num")
        if number is None:
            return
        if not self.unscored:
            actual = f"an accuracy of epoch {number} without an evaluation of its own"
            self._breach("eval-order", event.line, actual)
        elif number != self.unscored[0]:
            actual = f"an accuracy of epoch {number}; the evaluation of line {self.unscored[1]} is of another epoch"
            self._breach("eval-order", event.line, actual)
        self.unscored = None
        value = event.value
        if _is_number(value):
            state = self.keys["eval_accuracy"]
            if state.best is None or value > state.best:
                state.best, state.best_line = float(value), event.line
            evaluation = Evaluation(epoch=number, value=float(value), line=event.line)
            if len(self.evaluations) >= EVALUATIONS_KEPT:
                self.evaluations[-1] = evaluation
            else:
                self.evaluations.append(evaluation)

    def _seed(self, event: Event) -> None:
        if len(self.seeds) < FINDINGS_PER_RULE:
            self.seeds.append((event.value, event.line))

    def _cache_clear(self, event: Event) -> None:
        if event.value is False or event.metadata.get("status", "done") != "done":
            told = {name: value for name, value in event.metadata.items() if name not in ("file", "lineno")}
            if len(self.caches_kept) < FINDINGS_PER_RULE:
                self.caches_kept.append((event.line, printable(told)))

    # --- throughput ---

    def _epoch_throughput(self, event: Event) -> None:
        number = self._number("throughput-agrees", event, "epoch_num")
        value = event.value
        if number is None:
            return
        if not isinstance(value, dict) or not all(
            _is_number(value.get(name)) and value[name] > 0 for name in ("images", "time_s", "images_per_s")
        ):
            wanted = "epoch_throughput has images, time_s and images_per_s, numbers above 0"
            self._breach("throughput-agrees", event.line, f"epoch_throughput is {printable(value)}", wanted)
            return
        rate = value["images"] / value["time_s"]
        if abs(value["images_per_s"] - rate) > THROUGHPUT_TOLERANCE * rate:
            actual = f"{value['images_per_s']:.6g} images/s; its images over its time are {rate:.6g}"
            self._breach("throughput-agrees", event.line, actual)
        if self.epoch and self.epoch[0] == number:
            if len(self.throughputs) < FINDINGS_PER_RULE:
                self.throughputs.append((event, number))
        else:
            self._compare_throughput(event, number)
        self._check_images(event, value["images"])

    def _compare_throughput(self, event: Event, number: int) -> None:
        if number != self.last_epoch or self.last_epoch_ms is None:
            actual = f"a throughput of epoch {number}, which is not the last one trained"
            self._breach("throughput-agrees", event.line, actual)
            return
        time_ms = event.value["time_s"] * 1000
        if abs(time_ms - self.last_epoch_ms) > THROUGHPUT_TOLERANCE * self.last_epoch_ms + CLOCK_MS:
            between = f"{self.last_epoch_ms / 1000:.3f} s lie between its epoch_start and epoch_stop"
            self._breach("throughput-agrees", event.line, f"{time_ms / 1000:.3f} s for epoch {number}; {between}")

    def _check_images(self, event: Event, images: float) -> None:
        samples: Any = self.keys["train_samples"].value
        summary: Any = self.keys["run_summary"].value
        batch: Any = self.keys["global_batch_size"].value
        if type(batch) is not int and isinstance(summary, dict):
            devices: Any = summary.get("devices")
            per_device: Any = summary.get("batch_per_device")
            if _has_type(devices, _COUNT) and _has_type(per_device, _COUNT):
                batch = devices * per_device
        if _has_type(samples, _COUNT) and _has_type(batch, _COUNT) and abs(images - samples) > batch:
            actual = f"{images:.10g} images in an epoch; train_samples is {samples}, the global batch {batch}"
            self._breach("epoch-images", event.line, actual)

    def _throughput(self, event: Event) -> None:
        """Other submitters' throughput of the epoch that just ended: images/s over the whole data set."""
        value = event.value
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        samples = self.keys["train_samples"].value
        if not _is_number(value) or not _has_type(samples, _COUNT) or self.epoch or not self.last_epoch_ms:
            return
        rate = samples / self.last_epoch_ms * 1000
        if self.last_epoch_ms > 0 and abs(value - rate) > THROUGHPUT_TOLERANCE * rate:
            actual = f"{value:.6g} images/s; {samples} images in {self.last_epoch_ms / 1000:.3f} s are {rate:.6g}"
            self._breach("throughput-agrees", event.line, actual)

    # --- the end ---

    def finish(self) -> tuple[tuple[Finding, ...], Run]:
        """The findings, errors first, then by line; and the run."""
        facts = {
            "division": self._fact("submission_division"),
            "benchmark": self._fact("submission_benchmark"),
            "opt_name": self._fact("opt_name"),
        }
        rows = [state for states in self.rows.values() for state in states if state.row.applies(facts)]
        if not self.events:
            self._row_finding("events.count", None, "MLLOG events", "none", "give the log of a run")
        for state in rows:
            self._finish_row(state)
        row_failures = [finding for finding in self.found if "." in finding.rule]
        benchmark = self._finish_benchmark(facts["benchmark"])
        self._finish_run(benchmark, facts["division"])
        for rule, count in self.found_counts.items():
            if count > FINDINGS_PER_RULE:
                actual = f"{count - FINDINGS_PER_RULE} more breaches of {rule}, not listed"
                self.found.append(Finding(rule=rule, severity="info", line=None, expected="", actual=actual, fix=""))
        findings = sorted(self.found, key=lambda f: (SEVERITIES.index(f.severity), f.line or 0))
        named = {key: state for key, state in self.keys.items() if state.count}
        run = Run(
            values={key: state.value for key, state in named.items()},
            lines={key: state.line for key, state in named.items()},
            headers=self.headers,
            seeds=tuple(self.seeds),
            evaluations=tuple(self.evaluations),
            start_ms=self.start_ms,
            stop_ms=self.stop_ms,
            status=self.status if isinstance(self.status, str) else None,
            official_keys_met=not row_failures and not self.unreadable,
        )
        return tuple(findings), run

    def _fact(self, key: str) -> str:
        state = self.keys.get(key)
        return state.value if state and isinstance(state.value, str) else ""

    def _row_finding(self, rule: str, line: int | None, expected: str, actual: str, fix: str) -> None:
        self.found.append(Finding(rule=rule, severity="error", line=line, expected=expected, actual=actual, fix=fix))

    def _finish_row(self, state: _RowState) -> None:
        row, key = state.row, self.keys[state.row.key]
        self.found += state.failures
        if state.failed > len(state.failures):
            more = state.failed - len(state.failures)
            self.found.append(
                Finding(
                    rule=row.key,
                    severity="info",
                    line=None,
                    expected="",
                    actual=f"{more} more breaches of the rule of {row.key}, not listed",
                    fix="",
                )
            )
        rule = f"{row.key}.count"
        if row.count == "exactly_one" and not any(finding.rule == rule for finding in self.found):
            if not key.count:
                self._row_finding(rule, None, f"exactly one {row.key}", "none", f"log {row.key}")
            elif key.count > 1 and key.differs:
                actual = f"{key.count}, with different values; the first is {printable(key.value)}"
                self._row_finding(rule, key.line, f"exactly one {row.key}", actual, f"log {row.key} once, on rank 0")
            elif key.count > 1 and not any(f.rule == "exactly-once" and f.line == key.line for f in self.found):
                self._breach("exactly-once", key.line, f"{key.count} {row.key}, all with the same value")
        if (row.count == "at_least_one" and not key.count) and not any(f.rule == rule for f in self.found):
            self._row_finding(rule, None, f"at least one {row.key}", "none", f"log {row.key}")
        if row.one_or and not key.count and not any(self.keys[other].count for other in row.one_or):
            named = " or ".join([row.key, *row.one_or])
            self._row_finding(rule, None, f"at least one {named}", "none", f"log {named}")
        if row.any_value and key.count and not state.any_met:
            best = "no number" if key.best is None else f"the best is {key.best:.6g}"
            fix = "train until the target is reached, then log run_stop"
            wanted = f"one {row.key} {describe(row.any_value)}"
            self._row_finding(f"{row.key}.value", key.best_line, wanted, best, fix)
        for name, names in row.metadata.get("exactly", {}).items():
            seen = state.tensors.get(name, {})
            if key.count and (set(seen) != set(names) or any(count != 1 for count in seen.values())):
                missing, extra = sorted(set(names) - set(seen)), sorted(set(seen) - set(names))
                twice = sorted(one for one, count in seen.items() if count != 1)
                actual = f"missing {missing[:3]}, unknown {[printable(e, 40) for e in extra[:3]]}, twice {twice[:3]}"
                wanted = f"each of the {len(names)} values of {name} once"
                self._row_finding(f"{row.key}.metadata", key.line, wanted, printable(actual), f"log {row.key} so")

    def _finish_benchmark(self, name: str) -> Benchmark | None:
        known = self.ruleset.benchmarks
        line = self.keys["submission_benchmark"].line or None
        if self.benchmark_asked and name and name != self.benchmark_asked:
            self._breach("benchmark-asked", line, printable(name), f"benchmark {self.benchmark_asked}")
        if name not in known:
            expected = f"submission_benchmark is one of {', '.join(known)} (ruleset {self.ruleset.version})"
            self._breach("known-benchmark", line, printable(name) or "no benchmark", expected)
            return None
        return known[name]

    def _finish_run(self, benchmark: Benchmark | None, division: str) -> None:
        keys = self.keys
        if self.keys["run_stop"].count and self.status != "success":
            reason = keys["abort_reason"].value
            why = f": {printable(reason)}" if keys["abort_reason"].count else ""
            self._breach("run-status", self.stop_line, f"status {printable(self.status)}{why}")
        if keys["eval_accuracy"].count and not (keys["eval_start"].count and keys["eval_stop"].count):
            self._breach("eval-order", keys["eval_accuracy"].line, "accuracies without eval_start and eval_stop")
        self._finish_summary()
        closed = division == "closed"
        if closed:
            for line, reason in self.caches_kept:
                self._breach("cache-cleared", line, f"not cleared: {reason}")
            if not self.seeds:
                self._breach("seed-present", None, "no seed")
        else:
            self._note("cache-cleared", "not applied: not a closed run")
            if not self.seeds:
                self._note("seed-present", "not applied: not a closed run; this log has no seed")
        for value, line in self.seeds:
            if type(value) is not int:
                self._breach("seed-present", line, f"seed {printable(value)}")
        if benchmark is None:
            return
        self._finish_target(benchmark, division)
        samples = (keys["train_samples"].value, keys["eval_samples"].value)
        own_data = samples == (benchmark.train_samples, benchmark.eval_samples)
        if closed and not own_data:
            wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
            actual = f"{printable(samples[0], 30)} and {printable(samples[1], 30)}"
            self._breach("closed-data", keys["train_samples"].line or None, actual, wanted)
        if closed and own_data:
            if benchmark.evaluate_every_epochs:
                self._finish_schedule(benchmark.evaluate_every_epochs)
            if benchmark.name == "resnet":
                self._finish_samples(benchmark.eval_samples)
        else:
            reason = "not a closed run" if not closed else "not the benchmark's data set"
            for rule in ("closed-data", "eval-schedule", "eval-samples", "rcp-hyperparameters", "rcp-convergence"):
                if rule != "closed-data" or not closed:
                    self._note(rule, f"not applied: {reason}")

    def _finish_summary(self) -> None:
        state = self.keys["run_summary"]
        if not isinstance(state.value, dict):
            for rule in ("run-resumed", "run-profiled", "run-mode"):
                self._note(rule, "not applied: the log has no run_summary that says so")
            return
        summary, line = state.value, state.line
        for rule, name in (("run-resumed", "resumed"), ("run-profiled", "profiled")):
            if name not in summary:
                self._note(rule, f"not applied: run_summary does not say whether the run was {name}")
            elif summary[name] is not False:
                self._breach(rule, line, f"{name} is {printable(summary[name])}")
        for name, wanted in (("mode", "train"), ("data", "real")):
            if summary.get(name) != wanted:
                self._breach("run-mode", line, f"{name} is {printable(summary.get(name))}", f"{name} is {wanted}")

    def _finish_target(self, benchmark: Benchmark, division: str) -> None:
        target = benchmark.targets.get(division)
        evaluations = self.evaluations
        if target is None:
            target = self._own_target()
        if target is None:
            actual = f"not applied: the {printable(division, 20)} division fixes no target, nor does the log's header"
            self._note("target-status", actual)
            return
        if not evaluations or self.stop_line is None:
            return
        last = evaluations[-1]
        if self.status == "success" and last.value < target:
            actual = f"status success; the last evaluation gave {last.value:.6g}, the target is {target}"
            self._breach("target-status", last.line, actual)
        if self.status != "success" and any(e.value >= target for e in evaluations):
            reached = next(e for e in evaluations if e.value >= target)
            actual = f"status {printable(self.status)}, although epoch {reached.epoch} reached {reached.value:.6g}"
            self._breach("target-status", reached.line, actual)
        for early in evaluations[:-1]:
            if early.value >= target and self.status == "success" and division == "closed":
                actual = f"epoch {early.epoch} reached {early.value:.6g} already and the run went on"
                self._breach("target-status", early.line, actual)
                break

    def _own_target(self) -> float | None:
        """The target of the recipe that the header's `config` names; an open run may choose it."""
        config = self.headers.get("config")
        for name, entry in (config if isinstance(config, dict) else {}).items():
            if name.startswith("RECIPE.target_") and isinstance(entry, dict) and _is_number(entry.get("value")):
                return float(entry["value"])
        return None

    def _finish_schedule(self, period: int) -> None:
        previous = None
        for evaluation in self.evaluations:
            epoch = evaluation.epoch
            if previous is None and not epoch <= period:
                self._breach("eval-schedule", evaluation.line, f"the first evaluation is of epoch {epoch}")
            elif previous is not None and epoch - previous != period:
                actual = f"an evaluation of epoch {epoch}, {epoch - previous} after the one before"
                self._breach("eval-schedule", evaluation.line, actual)
            previous = epoch
        if self.evaluation_count > EVALUATIONS_KEPT:
            self._breach("eval-schedule", None, f"{self.evaluation_count} evaluations")
        if previous is not None and self.last_epoch is not None and self.last_epoch - previous >= period:
            actual = f"the last evaluation is of epoch {previous}, the last epoch {self.last_epoch}"
            self._breach("eval-schedule", self.evaluations[-1].line, actual)

    def _finish_samples(self, samples: int) -> None:
        for evaluation in self.evaluations:
            count = evaluation.value * samples
            if abs(count - round(count)) > 0.01:  # single precision of a value below 1, over 50,000 samples
                actual = f"{evaluation.value!r} is {count:.3f} of {samples} samples"
                self._breach("eval-samples", evaluation.line, actual)


def check_entries(
    entries: Iterable[Entry], ruleset: Ruleset, benchmark: str | None = None
) -> tuple[tuple[Finding, ...], Run]:
    """The findings of a log given as its entries, and its run."""
    checker = Checker(ruleset, benchmark)
    feed = checker.feed
    for entry in entries:
        feed(entry)
    return checker.finish()


def check_file(path: Path, ruleset: Ruleset, benchmark: str | None = None) -> tuple[tuple[Finding, ...], Run]:
    """The same of the log at `path`. Raises OSError if it cannot be read, ValueError if it is no regular file."""
    findings, run = check_entries(read_log(path), ruleset, benchmark)
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        rule = ruleset.strict["file-link"]
        link = Finding(
            rule=rule.name,
            severity=rule.severity,
            line=None,
            expected=rule.expected,
            actual=f"a link to {printable(str(path.resolve()))}",
            fix=rule.fix,
        )
        findings = (link, *findings)
    return findings, run
