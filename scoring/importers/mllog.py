"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print. Images are read of ResNet
alone: samples of the other benchmarks are sentences, clicks or volumes, and SSD's `train_samples` counts batches.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from runlog import run, schema
from runlog.reader import Entry, Event, Header, Problem, read_stream
from runlog.run import Mark, Run, real
from scoring.importers.lines import Lines
from scoring.importers.mllog_epochs import read_epochs
from scoring.importers.table import Table
from scoring.importers.text import RowPattern, wait_within
from scoring.importers.values import amount, epoch_number, table_of, text_of, whole, whole_or_zero
from scoring.record import Check, Quality, Span, Window

T = TypeVar("T")
IMAGE_BENCHMARKS = frozenset({"resnet", "resnet50_v1.5"})  # of MLPerf Training, whose train_samples are images
# Events up to run_start, and the first sections of our own logs' header, which stands before them.
_OPENING = ("cache_clear", "init_start", "submission_benchmark", schema.RUN_START.key, "log", "source")


class MLLog(Table):
    """Events, not rows."""

    marker = ":::MLLOG"
    row = RowPattern(re.compile(r":::MLLOG \{"), ())
    rate_scope = "global"

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.events = Run()
        self._without_images: list[Window] = []  # windows of ours whose `images` cannot be read

    def read(self) -> None:
        """Read the log's events into windows, epochs and facts.

        The windows are those that the log holds; a log without any has a window for each epoch, and where it logs no
        epochs either, one for each block of epochs.
        """
        first, last = self.lines.span
        for entry in read_stream(self.lines.stream):
            if entry.line < first or (last is not None and entry.line > last):
                continue
            self._entry(entry)

        self._header()
        self._run_summary()
        self._single_events()
        self._check_images()
        self._epochs_and_blocks()
        self._evaluations()

    def _epochs_and_blocks(self) -> None:
        """Read the epochs; where the log has no windows these stand for them, else the blocks of epochs do."""
        has_windows = bool(self.windows)
        samples = self.value("train_samples") if self._samples_are_images() else None
        self.epochs = read_epochs(self.events, samples=samples, batch=self.value("batch_of_all"))
        for epoch in self.epochs:
            if not self._samples_are_images():
                epoch.printed_rate = None
            if not has_windows and (epoch.seconds is not None or epoch.printed_rate is not None):
                self.add(epoch)
        if not self.windows:
            for block in self._blocks(samples):
                self.add(block)

    def _entry(self, entry: Entry) -> None:
        """Take one entry of the log, an event, a header's section or a line that cannot be read.

        It may show where a run begins. A step window is made at once and its event is dropped, so that a long run is
        held in memory only once.
        """
        if isinstance(entry, Problem):
            self.problem(f"line {entry.line}: {entry.message}")
            return

        name = entry.section if isinstance(entry, Header) else entry.key
        if name in _OPENING:
            self.lines.begin(entry.line)
        if name == schema.RUN_START.key:
            self.lines.row(entry.line)

        events = self.events
        events.take(entry)
        if events.windows:
            logged = events.windows.pop()
            step = run.scalar(logged.metadata.get("step"))
            rank_times = events.rank_times.pop(step, None)
            self._window(logged, rank_times)

    def _header(self) -> None:
        """Read the header of our own logs: its sections by name, and the versions of the packages in it.

        Null GPUs, which stand in for real ones in tests and compute nothing, become a problem of the record.
        """
        headers = self.events.headers
        self.header = {name: header.value for name, header in headers.items()}
        for name, version in (table_of(self.header.get("packages")) or {}).items():
            if isinstance(version, str):
                self.software[name] = version

        environment = headers.get(schema.ENVIRONMENT.name)
        if environment and "NULL_GPU" in (table_of(environment.value) or {}):
            self.problem(
                f"line {environment.line}: null GPUs, which compute nothing: no figure of this run means anything"
            )

    def _run_summary(self) -> None:
        """Read devices, batch, precision, framework and model from `run_summary`, an event of our own logs alone."""
        summary = self.events.first.get(schema.RUN_SUMMARY.key)
        if summary is None:
            return
        stated = table_of(summary.value)
        if stated is None:
            self.problem(f"line {summary.line}: run_summary without a table of values")
            return

        self.header.setdefault("run_summary", stated)
        for name in ("devices", "nodes", "batch_per_device"):
            self.say(name, self._field(summary, name, stated.get(name), whole), summary.line)
        for name in ("precision", "math_mode", "mode", "framework", "model"):
            self.say(name, self._field(summary, name, stated.get(name), text_of), summary.line)

    def _single_events(self) -> None:
        """Read the facts that a log states in one event each, among them the run's start and stop.

        A log without run_stop is truncated.
        """
        events = self.events
        self._first_mark("run_start", events.starts)
        self._first_mark("run_stop", events.stops)
        self.truncated = not events.stops

        first = events.first
        self._event("telemetry", first.get(schema.TELEMETRY_SUMMARY.key), table_of)
        self._event("batch_of_all", first.get(schema.GLOBAL_BATCH_SIZE.key), whole)
        self._event("platform", first.get(schema.SUBMISSION_PLATFORM.key), text_of)
        self._event("benchmark", first.get(schema.SUBMISSION_BENCHMARK.key), text_of)
        self._event("model", first.get(schema.SUBMISSION_BENCHMARK.key), text_of)  # where no run_summary names it
        self._event("train_samples", events.last.get(schema.TRAIN_SAMPLES.key), whole)
        self._event("eval_samples", events.last.get(schema.EVAL_SAMPLES.key), whole)
        self._event("division", first.get(schema.SUBMISSION_DIVISION.key), text_of)
        self.say("rate_scope", self.rate_scope)

    def _first_mark(self, name: str, marks: list[Mark]) -> None:
        """Take time and status of the first mark; each further one is a problem."""
        for mark in marks[:1]:
            self.say(f"{name}_s", mark.time_ms / 1000, mark.line)
            self.say("status", text_of(mark.status), mark.line)
        for mark in marks[1:]:
            self.problem(f"line {mark.line}: {name} again, first on line {marks[0].line}")

    def _event(self, name: str, event: Event | None, read: Callable[[Any], object]) -> None:
        """Take the value of an event as the field `name`."""
        if event:
            self.say(name, self._field(event, "value", event.value, read), event.line)

    def _field(self, event: Event, name: str, value: Any, read: Callable[[Any], T | None]) -> T | None:
        """Return a value of an event as `read` makes it; a value that it cannot read is a problem of the log."""
        result = read(value)
        nan = isinstance(value, float) and value != value  # a loss may be none
        if result is None and value is not None and not nan:
            shown = repr(value)
            shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
            self.problem(f"line {event.line}: {event.key}: {name} is {shown}, which cannot be read")
        return result

    def _window(self, logged: Event, rank_times: schema.RankTimes | None) -> None:
        """Add the window that a `step_window` event of our own logs tells: its steps, seconds, images, loss and so on.

        `rank_times` says how far the times of the ranks lie apart in it, if they were logged. An event without steps or
        time becomes a problem of the record and no window.
        """
        table = table_of(logged.value) or {}
        steps = self._field(logged, "steps", table.get("steps"), whole)
        seconds = self._field(logged, "time_s", table.get("time_s"), amount)
        if steps is None or seconds is None:
            missing = "steps or time" if isinstance(logged.value, dict) else "a table of values"
            self.problem(f"line {logged.line}: step_window without {missing}")
            return

        images = self._field(logged, "images", table.get("images"), amount)
        window = Window(
            line=logged.line,
            step=self._field(logged, "step", logged.metadata.get("step"), whole),
            epoch=self._field(logged, "epoch_num", logged.metadata.get("epoch_num"), whole),
            steps=steps,
            images=images,
            seconds=seconds,
            data_wait_s=wait_within(self._field(logged, "data_wait_s", table.get("data_wait_s"), real), seconds),
            printed_step_time_s=seconds / steps,
            end_s=logged.time_ms / 1000,
            phase=text_of(logged.metadata.get("phase")),
            loss=self._field(logged, "loss", table.get("loss"), real),
            gpu_memory_mib=self._field(logged, "gpu_memory_mib", table.get("gpu_memory_mib"), real),
            power_w=self._field(logged, "power_w", table.get("power_w"), real),
            rank_times=rank_times,
        )
        self.add(window)
        if images is None:
            self._without_images.append(window)

    def _check_images(self) -> None:
        """Record that images cannot be held against steps x batch, where a window counts none that can be read.

        Later such windows get the images of their steps: held against those, the count would agree with itself.
        """
        if not self._without_images:
            return
        first, last = self._without_images[0].line, self._without_images[-1].line
        count = f"{len(self._without_images)} of {len(self.windows)} windows"
        ways = (f"lines {first} to {last}: {count} count no images that can be read", "their steps x batch")
        self.checks.append(Check(what="images", ways=ways, agree=False, one_sided=True))

    def _samples_are_images(self) -> bool:
        """Say whether samples and rates are of images: in our own logs, and in those of an image benchmark."""
        return "run_summary" in self.header or self.value("model") in IMAGE_BENCHMARKS

    def _evaluations(self) -> None:
        """Read when the model was evaluated, and with which results: the time of each evaluation and its accuracy.

        An evaluation that lacks its start or its stop, or that the clock makes no longer than 0, has no time.
        """
        for evaluation in self.events.evaluations:
            start = evaluation.start
            stop = evaluation.stop
            if start and stop and stop.time_ms > start.time_ms:
                self.evaluation_spans.append(Span(start.time_ms / 1000, stop.time_ms / 1000))

        for result in self.events.accuracies:
            value = real(result.value)
            if value is not None:
                epoch = epoch_number(result.number)
                self.qualities.append(Quality(line=result.line, name=result.key, value=value, epoch=epoch))

    def _blocks(self, samples: int | None) -> Iterator[Window]:
        """Yield a window for each block of epochs, of the time from its start to the end of its training.

        `samples` are the images of an epoch, if they are known. Training ends where the block's evaluation starts, or
        else where the block stops. A block that has no such end before the next block starts is left out, and so is one
        that does not say its epochs.
        """
        starts = [block.start for block in self.events.blocks if block.start]
        ends = [block.stop for block in self.events.blocks if block.stop]
        ends += [evaluation.start for evaluation in self.events.evaluations if evaluation.start]
        ends.sort(key=_line_of)

        for start, next_start in itertools.zip_longest(starts, starts[1:]):
            ends_before = bisect.bisect(ends, start.line, key=_line_of)
            if ends_before == len(ends):
                continue
            end = ends[ends_before]
            if next_start is not None and end.line > next_start.line:
                continue

            first_epoch = whole_or_zero(start.number)
            epochs = whole(start.count)
            seconds = (end.time_ms - start.time_ms) / 1000
            if first_epoch is None or epochs is None or seconds <= 0:
                continue
            images = samples * epochs if samples else None
            batch = self.value("batch_of_all")
            yield Window(
                line=end.line,
                epoch=first_epoch + epochs - 1,
                steps=int(images // batch) if images and batch else None,
                images=images,
                seconds=seconds,
                end_s=end.time_ms / 1000,
            )


def _line_of(mark: Mark) -> int:
    """Return the line of a mark."""
    return mark.line
