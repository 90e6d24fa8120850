"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from runlog.reader import Event, Header, Problem, read_stream
from scoring.importers.lines import Lines
from scoring.importers.text import Draft, Fact, wait_within
from scoring.record import Epoch, Quality, Window

_OPENING = ("cache_clear", "init_start", "submission_benchmark")  # events before run_start
_FIRST_SECTIONS = ("log", "source")  # of the header of our own logs, which stands before them
MOST = 10**15  # of anything that is counted, or of images and seconds
_COUNTS = ("devices", "nodes", "batch_per_device")
_TEXTS = ("precision", "math_mode", "mode", "framework", "model")


@dataclass(kw_only=True)
class _EpochSaid:
    """What the events of one epoch have said so far."""

    line: int
    start_s: float | None = None
    end_s: float | None = None
    seconds: float | None = None
    images: float | None = None
    data_wait_s: float | None = None
    printed_rate: float | None = None
    stopped: bool = False  # or given a rate: an epoch that only started is none


class _Block(NamedTuple):
    """Epochs between two evaluations."""

    line: int
    start_s: float
    end_s: float
    last_epoch: int
    epochs: int


def read(lines: Lines) -> Draft:
    """The run of an MLLOG log."""
    reader = _Reader()
    first, last = lines.span
    for entry in read_stream(lines.stream):  # type: ignore[arg-type]
        if entry.line < first or (last is not None and entry.line > last):
            continue
        if isinstance(entry, Event):
            if entry.key in _OPENING:
                lines.start(entry.line, entry.key)
            elif entry.key == "run_start":
                if lines.parts[-1].first_row:
                    lines.start(entry.line, entry.key)
                lines.row(entry.line)
            if handle := _HANDLERS.get(entry.key):
                handle(reader, entry)
        elif isinstance(entry, Header):
            if entry.section in _FIRST_SECTIONS:
                lines.start(entry.line, "header")
            reader.header(entry)
        elif isinstance(entry, Problem):
            reader.draft.problem(f"line {entry.line}: {entry.message}")
    return reader.finished()


def real(value: Any) -> float | None:
    """A finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON's whole numbers have no bound
        return None
    return found if math.isfinite(found) else None


def _amount(value: Any) -> float | None:
    """A time, a rate or a number of images; None for what cannot be one."""
    found = real(value)
    return found if found is not None and 1e-9 < found < MOST else None


def _count(value: Any) -> int | None:
    found = real(value)
    return int(found) if found is not None and found == int(found) and 0 < found < MOST else None


class _Reader:
    """Takes the events one by one."""

    def __init__(self) -> None:
        self.draft = Draft()
        self.epochs: dict[Any, _EpochSaid] = {}
        self.last_epoch: Any = None
        self.block: tuple[float, int, int] | None = None  # start of the open one, its first epoch, epochs
        self.blocks: list[_Block] = []
        self.train_samples: int | None = None
        self.benchmark: Fact | None = None

    def header(self, header: Header) -> None:
        """A section of our own logs."""
        self.draft.header.setdefault(header.section, header.value)
        if header.section == "packages" and isinstance(header.value, dict):
            for name, version in header.value.items():
                if isinstance(version, str):
                    self.draft.software.setdefault(str(name), version)
        elif header.section == "environment" and isinstance(header.value, dict) and "NULL_GPU" in header.value:
            self.draft.problem(
                f"line {header.line}: null GPUs, which compute nothing: no figure of this run means anything"
            )

    def table_of(self, event: Event) -> dict[str, Any] | None:
        """The event's value, which must be a table."""
        if isinstance(event.value, dict):
            return event.value
        self.draft.problem(f"line {event.line}: {event.key} without a table of values")
        return None

    def step_window(self, event: Event) -> None:
        if (value := self.table_of(event)) is None:
            return
        steps, seconds, phase = _count(value.get("steps")), _amount(value.get("time_s")), event.metadata.get("phase")
        if steps is None or seconds is None:
            self.draft.problem(f"line {event.line}: step_window without steps or time")
            return
        self.draft.row(
            Window(
                line=event.line,
                step=_count(event.metadata.get("step")),
                epoch=_count(event.metadata.get("epoch_num")),
                steps=steps,
                images=_amount(value.get("images")),
                seconds=seconds,
                data_wait_s=wait_within(real(value.get("data_wait_s")), seconds),
                printed_step_time_s=seconds / steps,
                end_s=event.time_ms / 1000,
                phase=phase if isinstance(phase, str) else None,
                loss=real(value.get("loss")),
                gpu_memory_mib=real(value.get("gpu_memory_mib")),
                power_w=real(value.get("power_w")),
            )
        )

    def run_summary(self, event: Event) -> None:
        if (value := self.table_of(event)) is None:
            return
        for name in _COUNTS:
            self.draft.fact(name, _count(value.get(name)), event.line)
        for name in _TEXTS:
            self.draft.fact(name, text if isinstance(text := value.get(name), str) else None, event.line)
        self.draft.header.setdefault("run_summary", value)

    def telemetry(self, event: Event) -> None:
        if isinstance(event.value, dict):
            self.draft.fact("telemetry", event.value, event.line)

    def epoch_of(self, event: Event, number: Any) -> _EpochSaid:
        """What was said of the epoch of that number; a JSON value is its name, whatever it is."""
        key = number if isinstance(number, int | float | str | None) else repr(number)
        return self.epochs.setdefault(key, _EpochSaid(line=event.line))

    def epoch_start(self, event: Event) -> None:
        self.epoch_of(event, event.metadata.get("epoch_num")).start_s = event.time_ms / 1000

    def epoch_stop(self, event: Event) -> None:
        number, now_s = event.metadata.get("epoch_num"), event.time_ms / 1000
        epoch = self.epoch_of(event, number)
        epoch.line, epoch.end_s, epoch.stopped = event.line, now_s, True
        if epoch.start_s is not None and now_s > epoch.start_s:
            epoch.seconds = _amount(now_s - epoch.start_s)
        self.last_epoch = number

    def epoch_throughput(self, event: Event) -> None:
        value = event.value
        if isinstance(value, dict):
            epoch = self.epoch_of(event, event.metadata.get("epoch_num"))
            epoch.line, epoch.stopped = event.line, True
            epoch.seconds, epoch.images = _amount(value.get("time_s")), _amount(value.get("images"))
            epoch.data_wait_s = real(value.get("data_wait_s"))

    def rate(self, event: Event) -> None:
        """`throughput`, or `tracked_stats` with `throughput` or `imgs_sec`; the epoch is `step` or the last one."""
        value = event.value
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        if (rate := _amount(value)) is not None:
            number = event.metadata.get("epoch_num", event.metadata.get("step", self.last_epoch))
            epoch = self.epoch_of(event, number)
            if not epoch.stopped:
                epoch.line, epoch.stopped = event.line, True
            epoch.printed_rate = epoch.printed_rate or rate

    def block_start(self, event: Event) -> None:
        first, epochs = _count(event.metadata.get("first_epoch_num")), _count(event.metadata.get("epoch_count"))
        self.block = (event.time_ms / 1000, first, epochs) if first and epochs else None

    def block_stop(self, event: Event) -> None:
        """A block's training ends with its evaluation, or with itself."""
        if self.block is not None:
            start_s, first, epochs = self.block
            end_s = event.time_ms / 1000
            if end_s > start_s:
                block = _Block(event.line, start_s, end_s, first + epochs - 1, epochs)
                self.blocks.append(block)
            self.block = None

    def quality(self, event: Event) -> None:
        value, epoch = real(event.value), event.metadata.get("epoch_num")
        if value is not None:
            number = epoch if isinstance(epoch, int) and abs(epoch) < MOST else None
            self.draft.quality.append(Quality(line=event.line, name=event.key, value=value, epoch=number))

    def run(self, event: Event) -> None:
        name = f"{event.key}_s"
        if name in self.draft.facts:
            first = self.draft.facts[name].line
            self.draft.problem(f"line {event.line}: {event.key} again, first on line {first}")
            return
        self.draft.fact(name, event.time_ms / 1000, event.line)
        status = event.metadata.get("status")
        if event.key == "run_stop" and isinstance(status, str):
            self.draft.fact("status", status, event.line)

    def samples(self, event: Event) -> None:
        self.train_samples = _count(event.value) or self.train_samples

    def global_batch(self, event: Event) -> None:
        self.draft.fact("batch_of_all", _count(event.value), event.line)

    def model(self, event: Event) -> None:
        if isinstance(event.value, str):
            self.benchmark = Fact(event.value, event.line)

    def platform(self, event: Event) -> None:
        self.draft.fact("platform", event.value if isinstance(event.value, str) else None, event.line)

    def finished(self) -> Draft:
        """The draft; windows of epochs, else of blocks, where the log has none of steps."""
        draft = self.draft
        if self.benchmark:  # the name of the benchmark stands where no run_summary names the model
            draft.fact("model", *self.benchmark)
        of_steps = draft.has_rows
        for number, said in self.epochs.items():
            if not said.stopped:
                continue
            images = self.train_samples if said.images is None and said.seconds else said.images
            epoch = Epoch(
                line=said.line,
                epoch=number if isinstance(number, int) and abs(number) < MOST else None,
                images=images,
                seconds=said.seconds,
                printed_rate=said.printed_rate,
                data_wait_s=said.data_wait_s,
            )
            draft.epochs.append(epoch)
            if not of_steps and (epoch.seconds is not None or epoch.printed_rate is not None):
                draft.row(
                    Window(
                        line=said.line,
                        epoch=epoch.epoch,
                        steps=self._steps(images),
                        images=images,
                        seconds=said.seconds,
                        printed_rate=said.printed_rate,
                        end_s=said.end_s,
                    )
                )
        for block in () if draft.has_rows else self.blocks:
            images = self.train_samples * block.epochs if self.train_samples else None
            draft.row(
                Window(
                    line=block.line,
                    epoch=block.last_epoch,
                    steps=self._steps(images),
                    images=images,
                    seconds=block.end_s - block.start_s,
                    end_s=block.end_s,
                )
            )
        draft.fact("rate_scope", "global")
        draft.truncated = "run_stop_s" not in draft.facts
        return draft

    def _steps(self, images: float | None) -> int | None:
        batch = self.draft.said("batch_of_all")
        return int(images // batch) if images and isinstance(batch, int) else None


_HANDLERS: dict[str, Callable[[_Reader, Event], None]] = {
    "step_window": _Reader.step_window,
    "run_summary": _Reader.run_summary,
    "telemetry_summary": _Reader.telemetry,
    "epoch_throughput": _Reader.epoch_throughput,
    "epoch_start": _Reader.epoch_start,
    "epoch_stop": _Reader.epoch_stop,
    "block_start": _Reader.block_start,
    "block_stop": _Reader.block_stop,
    "eval_start": _Reader.block_stop,
    "tracked_stats": _Reader.rate,
    "throughput": _Reader.rate,
    "eval_accuracy": _Reader.quality,
    "eval_mean_iou": _Reader.quality,
    "run_start": _Reader.run,
    "run_stop": _Reader.run,
    "train_samples": _Reader.samples,
    "global_batch_size": _Reader.global_batch,
    "submission_benchmark": _Reader.model,
    "submission_platform": _Reader.platform,
}
