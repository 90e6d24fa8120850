"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print.
"""

from __future__ import annotations

import collections
import math
import re
from typing import Any

from compliance.log import Event, Header, Problem, read_stream
from scoring.importers.text import MAX_LINE_CHARS, Builder
from scoring.record import Epoch, Quality

# An event as mlperf-logging writes it, of a key that is of no use here (161 weights_initialization a run, ...).
_DULL_PATTERN = (
    rb':::MLLOG \{"namespace": "[^"]*", "time_ms": \d+, "event_type": "[A-Z_]+", "key": "(?!(?:KEYS)")[^"]*", '
)
_N = rb"(-?\d{1,15}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,2})?|null)"
# One of our own windows, as harness/events.py writes it: the bulk of a long log.
_WINDOW = re.compile(
    rb':::MLLOG \{"namespace": "", "time_ms": (\d{1,15}), "event_type": "POINT_IN_TIME", "key": "step_window", '
    rb'"value": \{"steps": (\d{1,9}), "images": (\d{1,12}), "time_s": '
    + _N
    + rb', "data_wait_s": '
    + _N
    + rb', "loss": '
    + _N
    + rb', "gpu_memory_mib": '
    + _N
    + rb', "power_w": '
    + _N
    + rb"\}, "
    rb'"metadata": \{"file": "[\w./-]*", "lineno": \d{1,9}, "step": (\d{1,9}), "epoch_num": (\d{1,9}), '
    rb'"phase": "(\w*)"\}\}'
)


class _Shortened:
    """A binary stream in which lines with nothing but an event of no use here are empty, so that no time goes
    into reading them (their faults are the checker's to find); so are our own plain windows, which go straight to
    `state`, before the next bytes are read or when `until` asks for them."""

    def __init__(self, stream: Any, state: _Reader) -> None:
        self._stream = stream
        self._state = state
        self._rest = b""
        self._line = 1  # of the first byte of `_rest`
        self._windows: collections.deque[tuple[int, tuple[bytes, ...]]] = collections.deque()

    def until(self, line: int | None = None) -> None:
        """Hand over the windows before `line`."""
        while self._windows and (line is None or self._windows[0][0] < line):
            self._state.plain_window(*self._windows.popleft())

    def read(self, size: int = -1) -> bytes:
        """The next bytes; none only at the end."""
        self.until()
        while data := self._stream.read(size):
            data = self._rest + data
            cut = data.rfind(b"\n") + 1
            self._rest = data[cut:]
            if len(self._rest) > MAX_LINE_CHARS:
                cut, self._rest = len(data), b""
            if cut:
                return self._without(data[:cut])
        rest, self._rest = self._rest, b""
        return rest

    def _without(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        window, dull = _WINDOW.fullmatch, _DULL.search
        for at, line in enumerate(lines):
            if match := window(line):
                self._windows.append((self._line + at, match.groups()))
                lines[at] = b""
            elif dull(line) and line.count(b":::MLLOG") == 1:
                lines[at] = b""
        self._line += len(lines) - 1
        return b"\n".join(lines)


_SUMMARY_FACTS = ("devices", "nodes", "batch_per_device", "precision", "math_mode", "mode", "framework", "model")


def read(stream: Any) -> Builder:
    """The run of an MLLOG log."""
    build = Builder()
    state = _Reader(build)
    shortened = _Shortened(stream, state)
    for entry in read_stream(shortened):  # type: ignore[arg-type]
        shortened.until(entry.line)
        if isinstance(entry, Event):
            state.event(entry)
        elif isinstance(entry, Header):
            state.header(entry)
        elif isinstance(entry, Problem):
            build.problem(f"line {entry.line}: {entry.message}")
    shortened.until()
    state.finish()
    return build


def _real(value: Any) -> float | None:
    """A finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        real = float(value)
    except OverflowError:  # JSON's whole numbers have no bound
        return None
    return real if math.isfinite(real) else None


def _amount(value: Any) -> float | None:
    """A time, a rate or a number of images; None for what cannot be one."""
    real = _real(value)
    return real if real is not None and 1e-9 < real < 1e15 else None


def _count(value: Any) -> int | None:
    real = _real(value)
    return int(real) if real is not None and real == int(real) and 0 < real < 1e15 else None


class _Reader:
    def __init__(self, build: Builder) -> None:
        self.build = build
        self.epoch_start: dict[Any, tuple[float, int]] = {}
        self.epochs: dict[Any, dict[str, Any]] = {}
        self.block: tuple[float, int, int] | None = None  # start of the open one, its first epoch, epochs
        self.blocks: list[tuple[int, float, float, int, int]] = []  # line, end, seconds, last epoch, epochs
        self.train_samples: int | None = None
        self.global_batch: tuple[int, int] | None = None
        self.benchmark: tuple[str, int] | None = None
        self.has_windows = False

    def header(self, header: Header) -> None:
        self.build.header.setdefault(header.section, header.value)
        if header.section == "packages" and isinstance(header.value, dict):
            for name, version in header.value.items():
                if isinstance(version, str):
                    self.build.software.setdefault(str(name), version)

    def event(self, event: Event) -> None:
        handler = _HANDLERS.get(event.key)
        if handler is not None:
            handler(self, event)

    def step_window(self, event: Event) -> None:
        value, where = event.value, event.metadata
        if not isinstance(value, dict):
            self.build.problem(f"line {event.line}: step_window without a table of values")
            return
        phase = where.get("phase")
        self._window(
            event.line,
            event.time_ms / 1000,
            _count(value.get("steps")),
            _amount(value.get("images")),
            _amount(value.get("time_s")),
            _real(value.get("data_wait_s")),
            _real(value.get("loss")),
            _real(value.get("gpu_memory_mib")),
            _real(value.get("power_w")),
            _count(where.get("step")),
            _count(where.get("epoch_num")),
            phase if isinstance(phase, str) else None,
        )

    def plain_window(self, line: int, said: tuple[bytes, ...]) -> None:
        """The same of a line that `_WINDOW` matches: its numbers are finite, its counts whole."""
        time_ms, steps, images, seconds, wait, loss, memory, power, step, epoch, phase = said
        self._window(
            line,
            int(time_ms) / 1000,
            int(steps) or None,
            float(images) or None,
            None if seconds == b"null" else _amount(float(seconds)),
            None if wait == b"null" else float(wait),
            None if loss == b"null" else float(loss),
            None if memory == b"null" else float(memory),
            None if power == b"null" else float(power),
            int(step) or None,
            int(epoch) or None,
            phase.decode(),
        )

    def _window(
        self,
        line: int,
        end_s: float,
        steps: int | None,
        images: float | None,
        seconds: float | None,
        wait_s: float | None,
        loss: float | None,
        memory_mib: float | None,
        power_w: float | None,
        step: int | None,
        epoch: int | None,
        phase: str | None,
    ) -> None:
        if steps is None or seconds is None:
            self.build.problem(f"line {line}: step_window without steps or time")
            return
        if not self.has_windows:
            self.has_windows = True
            self.build.clear_rows()
        self.build.row(
            line,
            step,
            epoch,
            steps=steps,
            images=images,
            seconds=seconds,
            wait_s=wait_s,
            step_time_s=seconds / steps,
            end=end_s,
            phase=phase,
            loss=loss,
            memory_mib=memory_mib,
            power_w=power_w,
        )

    def run_summary(self, event: Event) -> None:
        if not isinstance(event.value, dict):
            self.build.problem(f"line {event.line}: run_summary without a table of values")
            return
        for name in _SUMMARY_FACTS:
            value = event.value.get(name)
            if name in ("devices", "nodes", "batch_per_device"):
                value = _count(value)
            elif not isinstance(value, str):
                value = None
            if value is not None:
                self.build.fact(name, value, event.line)
        self.build.header.setdefault("run_summary", event.value)

    def telemetry(self, event: Event) -> None:
        if isinstance(event.value, dict):
            self.build.fact("telemetry", event.value, event.line)

    def epoch(self, event: Event) -> None:
        number = event.metadata.get("epoch_num")
        if event.key == "epoch_start":
            self.epoch_start[number] = (event.time_ms / 1000, event.line)
            return
        started = self.epoch_start.get(number)
        entry = self.epochs.setdefault(number, {"line": event.line})
        entry["line"] = event.line
        entry["end_s"] = event.time_ms / 1000
        if started is not None and event.time_ms / 1000 > started[0]:
            entry["seconds"] = _amount(event.time_ms / 1000 - started[0])
        self.last_epoch = number

    last_epoch: Any = None

    def block_of_epochs(self, event: Event) -> None:
        """A block's training ends with its evaluation, or with itself."""
        now_s = event.time_ms / 1000
        if event.key == "block_start":
            first, epochs = _count(event.metadata.get("first_epoch_num")), _count(event.metadata.get("epoch_count"))
            self.block = (now_s, first, epochs) if first and epochs else None
        elif self.block is not None:
            started_s, first, epochs = self.block
            if now_s > started_s:
                self.blocks.append((event.line, now_s, now_s - started_s, first + epochs - 1, epochs))
            self.block = None

    def rate(self, event: Event) -> None:
        """`throughput`, or `tracked_stats` with `throughput` or `imgs_sec`; the epoch is `step` or the last one."""
        value = event.value
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        rate = _amount(value)
        if rate is None:
            return
        number = event.metadata.get("epoch_num", event.metadata.get("step", self.last_epoch))
        self.epochs.setdefault(number, {"line": event.line}).setdefault("printed_rate", rate)

    def epoch_throughput(self, event: Event) -> None:
        value = event.value
        if not isinstance(value, dict):
            return
        seconds, images = _amount(value.get("time_s")), _amount(value.get("images"))
        entry = self.epochs.setdefault(event.metadata.get("epoch_num"), {"line": event.line})
        entry.update(line=event.line, seconds=seconds, images=images, data_wait_s=_real(value.get("data_wait_s")))

    def quality(self, event: Event) -> None:
        value = _real(event.value)
        if value is not None:
            epoch = event.metadata.get("epoch_num")
            self.build.quality.append(
                Quality(
                    line=event.line,
                    name=event.key,
                    value=value,
                    epoch=epoch if isinstance(epoch, int) else None,
                )
            )

    def run(self, event: Event) -> None:
        name = "run_start_s" if event.key == "run_start" else "run_stop_s"
        if name in self.build.facts:
            self.build.problem(f"line {event.line}: {event.key} again, first on line {self.build.lines[name]}")
            return
        self.build.fact(name, event.time_ms / 1000, event.line)
        if event.key == "run_stop":
            status = event.metadata.get("status")
            if isinstance(status, str):
                self.build.fact("status", status, event.line)

    def number(self, event: Event) -> None:
        count = _count(event.value)
        if count is None:
            return
        if event.key == "train_samples":
            self.train_samples = count
        elif self.global_batch is None:
            self.global_batch = (count, event.line)

    def model(self, event: Event) -> None:
        if isinstance(event.value, str):
            self.benchmark = (event.value, event.line)

    def finish(self) -> None:
        build = self.build
        if self.benchmark:  # the name of the benchmark stands where no run_summary names the model
            build.fact("model", *self.benchmark)
        for number, entry in self.epochs.items():
            images = entry.get("images")
            if images is None and entry.get("seconds"):
                images = self.train_samples
            epoch = Epoch(
                line=entry["line"],
                epoch=number if isinstance(number, int) else None,
                images=images,
                seconds=entry.get("seconds"),
                printed_rate=entry.get("printed_rate"),
                data_wait_s=entry.get("data_wait_s"),
            )
            build.epochs.append(epoch)
            if not self.has_windows and (epoch.seconds is not None or epoch.printed_rate is not None):
                steps = int(images // self.global_batch[0]) if images and self.global_batch else None
                build.row(
                    epoch.line,
                    None,
                    epoch.epoch,
                    steps=steps,
                    images=images,
                    seconds=epoch.seconds,
                    rate=epoch.printed_rate,
                    end=entry.get("end_s"),
                )
        batch = self.global_batch
        if not build.rows:
            for line, end_s, seconds, epoch_number, epochs in self.blocks:
                images = self.train_samples * epochs if self.train_samples else None
                steps = images // batch[0] if images and batch else None
                build.row(line, None, epoch_number, steps=steps, images=images, seconds=seconds, end=end_s)
        if batch is not None:
            build.fact("global_batch", *batch)
        build.facts.update(rate_scope="global", cumulative=False)
        build.truncated = "run_stop_s" not in build.facts


_HANDLERS = {
    "step_window": _Reader.step_window,
    "run_summary": _Reader.run_summary,
    "telemetry_summary": _Reader.telemetry,
    "epoch_throughput": _Reader.epoch_throughput,
    "epoch_start": _Reader.epoch,
    "epoch_stop": _Reader.epoch,
    "block_start": _Reader.block_of_epochs,
    "block_stop": _Reader.block_of_epochs,
    "eval_start": _Reader.block_of_epochs,
    "tracked_stats": _Reader.rate,
    "throughput": _Reader.rate,
    "eval_accuracy": _Reader.quality,
    "eval_mean_iou": _Reader.quality,
    "run_start": _Reader.run,
    "run_stop": _Reader.run,
    "train_samples": _Reader.number,
    "global_batch_size": _Reader.number,
    "submission_benchmark": _Reader.model,
}
_DULL = re.compile(_DULL_PATTERN.replace(b"KEYS", "|".join(_HANDLERS).encode()))
