"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from compliance.log import Entry, Event, Header, Problem
from scoring.importers.text import MAX_LINE_CHARS, Builder
from scoring.record import Epoch, Quality

# An event as mlperf-logging writes it, of a key that is of no use here (161 weights_initialization a run, ...).
_DULL_PATTERN = (
    rb':::MLLOG \{"namespace": "[^"]*", "time_ms": \d+, "event_type": "[A-Z_]+", "key": "(?!(?:KEYS)")[^"]*", '
)


class WithoutDullEvents:
    """A binary stream in which lines with nothing but an event of no use here are empty, so that no time goes
    into reading them; their faults are the checker's to find."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes; none only at the end."""
        while data := self._stream.read(size):
            data = self._rest + data
            cut = data.rfind(b"\n") + 1
            self._rest = data[cut:]
            if len(self._rest) > MAX_LINE_CHARS:
                cut, self._rest = len(data), b""
            if cut:
                search = _DULL.search
                return b"\n".join(
                    b"" if search(line) and line.count(b":::MLLOG") == 1 else line for line in data[:cut].split(b"\n")
                )
        rest, self._rest = self._rest, b""
        return rest


_SUMMARY_FACTS = ("devices", "nodes", "batch_per_device", "precision", "math_mode", "mode", "framework", "model")


def read(entries: Iterable[Entry]) -> Builder:
    """The run of an MLLOG log."""
    build = Builder()
    state = _Reader(build)
    for entry in entries:
        if isinstance(entry, Event):
            state.event(entry)
        elif isinstance(entry, Header):
            state.header(entry)
        elif isinstance(entry, Problem):
            build.problem(f"line {entry.line}: {entry.message}")
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
        steps, seconds = _count(value.get("steps")), _amount(value.get("time_s"))
        if steps is None or seconds is None:
            self.build.problem(f"line {event.line}: step_window without steps or time")
            return
        if not self.has_windows:
            self.has_windows = True
            self.build.clear_rows()
        phase = where.get("phase")
        loss = value.get("loss")
        self.build.row(
            event.line,
            _count(where.get("step")),
            _count(where.get("epoch_num")),
            steps=steps,
            images=_amount(value.get("images")),
            seconds=seconds,
            wait_s=_real(value.get("data_wait_s")),
            step_time_s=seconds / steps,
            end=event.time_ms / 1000,
            phase=phase if isinstance(phase, str) else None,
            loss=_real(loss),
            memory_mib=_real(value.get("gpu_memory_mib")),
            power_w=_real(value.get("power_w")),
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
        if batch is not None:
            build.fact("global_batch", *batch)
        build.facts.update(rate_scope="global", cumulative=False)
        build.truncated = "run_stop_s" not in build.facts


_HANDLERS = {
    "step_window": _Reader.step_window,
    "run_summary": _Reader.run_summary,
    "epoch_throughput": _Reader.epoch_throughput,
    "epoch_start": _Reader.epoch,
    "epoch_stop": _Reader.epoch,
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
