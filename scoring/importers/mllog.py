"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print. Images are read of ResNet
alone: samples of the other benchmarks are sentences, clicks or volumes, and SSD's `train_samples` counts batches.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from runlog import run, schema
from runlog.reader import Entry, Event, Header, Problem, read_stream
from runlog.run import Mark, Run, real
from scoring.importers.lines import Lines
from scoring.importers.mllog_epochs import read_epochs
from scoring.importers.table import FormatReader
from scoring.importers.text import RowPattern, wait_within
from scoring.importers.values import (
    epoch_number,
    positive_amount,
    positive_whole,
    table_or_none,
    text_or_none,
    whole_or_zero,
)
from scoring.record import Check, Quality, Span, Window

T = TypeVar("T")
IMAGE_BENCHMARKS = frozenset({"resnet", "resnet50_v1.5"})  # of MLPerf Training, whose train_samples are images
# Events up to run_start, and the first sections of our own logs' header, which stands before them.
_OPENING = ("cache_clear", "init_start", "submission_benchmark", schema.RUN_START.key, "log", "source")


class MLLog(FormatReader):
    """Events, not rows."""

    row_marker = ":::MLLOG"
    row_pattern = RowPattern(re.compile(r":::MLLOG \{"), ())
    rate_scope = "global"

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.events = Run()
        self._without_images: list[Window] = []  # windows of ours whose `images` cannot be read

    def read(self) -> None:
        """Read the log's events, as far as they are in this run's lines, into windows, epochs, evaluations and facts.

        The windows are the `step_window` events of our own logs. A log without any has a window for each epoch, and
        where it logs no epochs either, one for each block of epochs.
        """
        first, last = self.lines.span
        for entry in read_stream(self.lines.stream):
            if entry.line < first or (last is not None and entry.line > last):
                continue
            self._take_entry(entry)

        self._read_header()  # it tells, as the summary does, that a log is ours, on which the reading of epochs depends
        self._read_run_summary()
        self._read_single_events()
        self._record_unreadable_images()
        self._read_epochs_or_blocks()
        self._read_evaluations()

    def _read_epochs_or_blocks(self) -> None:
        """Read the epochs, and fill `windows` where the log has no step windows: with the epochs, else with blocks.

        An epoch without time and without a rate makes no window. Where the samples are not images, epochs get neither
        images nor a rate.
        """
        has_step_windows = bool(self.windows)
        samples = self.value("train_samples") if self._samples_are_images() else None
        self.epochs = read_epochs(self.events, samples=samples, batch=self.value("batch_of_all"))
        for epoch in self.epochs:
            if not self._samples_are_images():
                epoch.printed_rate = None
            says_its_speed = epoch.seconds is not None or epoch.printed_rate is not None
            if says_its_speed and not has_step_windows:
                self.add_window(epoch)
        if not self.windows:
            for block in self._windows_of_blocks(samples):
                self.add_window(block)

    def _take_entry(self, entry: Entry) -> None:
        """Take one entry of the log: an event, a section of the header, or a problem, a line that cannot be read.

        Events and sections are collected in `self.events`, and `self.lines` is told of those that show where a run
        begins. A `step_window` event becomes a window at once and is dropped, so that a long run is held only once.
        """
        if isinstance(entry, Problem):
            self.note_problem(f"line {entry.line}: {entry.message}")
            return

        name = entry.section if isinstance(entry, Header) else entry.key
        if name in _OPENING:
            self.lines.begin_run(entry.line)
        if name == schema.RUN_START.key:
            self.lines.confirm_run(entry.line)  # for `lines` a run counts once it has a row; here its start is enough

        events = self.events
        events.take(entry)
        is_step_window = bool(events.windows)  # as each is taken out at once, there is only this one
        if is_step_window:
            logged = events.windows.pop()
            step = run.scalar(logged.metadata.get("step"))
            rank_times = events.rank_times.pop(step, None)
            self._add_step_window(logged, rank_times)

    def _read_header(self) -> None:
        """Set `header` to the sections of our own logs' header by name, and `software` to the packages' versions.

        Null GPUs, which stand in for real ones in tests and compute nothing, become a problem of the record. They are
        told by the variable NULL_GPU in the section `environment`.
        """
        headers = self.events.headers
        self.header = {name: header.value for name, header in headers.items()}
        packages = table_or_none(self.header.get("packages")) or {}
        for name, version in packages.items():
            if isinstance(version, str):
                self.software[name] = version

        environment = headers.get(schema.ENVIRONMENT.name)
        variables = table_or_none(environment.value) if environment else None
        if environment and variables and "NULL_GPU" in variables:
            self.note_problem(
                f"line {environment.line}: null GPUs, which compute nothing: no figure of this run means anything"
            )

    def _read_run_summary(self) -> None:
        """Set devices, batch, precision, framework, model and the like from `run_summary`, an event of our own logs.

        Its table of values becomes a section of the header too. A log without the event is another submitter's, and
        nothing is set. An event without a table becomes a problem of the record.
        """
        summary = self.events.first.get(schema.RUN_SUMMARY.key)
        if summary is None:
            return
        stated = table_or_none(summary.value)
        if stated is None:
            self.note_problem(f"line {summary.line}: run_summary without a table of values")
            return

        self.header.setdefault("run_summary", stated)
        for name in ("devices", "nodes", "batch_per_device"):
            self.set_if_unset(name, self._readable(summary, name, stated.get(name), positive_whole), summary.line)
        for name in ("precision", "math_mode", "mode", "framework", "model"):
            self.set_if_unset(name, self._readable(summary, name, stated.get(name), text_or_none), summary.line)

    def _read_single_events(self) -> None:
        """Set the facts that a log states in one event each, among them the run's start and stop.

        Of events that are logged again the first counts, but the last of the numbers of samples. A start or a stop that
        is logged again becomes a problem of the record. A log without run_stop is truncated.
        """
        events = self.events
        self._set_from_first_mark("run_start", events.starts)
        self._set_from_first_mark("run_stop", events.stops)
        self.truncated = not events.stops

        first = events.first
        self._set_from_event("telemetry", first.get(schema.TELEMETRY_SUMMARY.key), table_or_none)
        self._set_from_event("batch_of_all", first.get(schema.GLOBAL_BATCH_SIZE.key), positive_whole)
        self._set_from_event("platform", first.get(schema.SUBMISSION_PLATFORM.key), text_or_none)
        self._set_from_event("benchmark", first.get(schema.SUBMISSION_BENCHMARK.key), text_or_none)
        # The benchmark is the model too, unless run_summary has named one.
        self._set_from_event("model", first.get(schema.SUBMISSION_BENCHMARK.key), text_or_none)
        self._set_from_event("train_samples", events.last.get(schema.TRAIN_SAMPLES.key), positive_whole)
        self._set_from_event("eval_samples", events.last.get(schema.EVAL_SAMPLES.key), positive_whole)
        self._set_from_event("division", first.get(schema.SUBMISSION_DIVISION.key), text_or_none)
        self.set_if_unset("rate_scope", self.rate_scope)

    def _set_from_first_mark(self, name: str, marks: list[Mark]) -> None:
        """Set `name`_s and the status by the first of the marks; each further mark becomes a problem of the record."""
        for mark in marks[:1]:
            self.set_if_unset(f"{name}_s", mark.time_ms / 1000, mark.line)
            self.set_if_unset("status", text_or_none(mark.status), mark.line)
        for mark in marks[1:]:
            self.note_problem(f"line {mark.line}: {name} again, first on line {marks[0].line}")

    def _set_from_event(self, name: str, event: Event | None, read: Callable[[Any], object]) -> None:
        """Set the fact `name` to the value of an event as `read` makes it; without the event nothing is set."""
        if event:
            self.set_if_unset(name, self._readable(event, "value", event.value, read), event.line)

    def _readable(self, event: Event, name: str, value: Any, read: Callable[[Any], T | None]) -> T | None:
        """Return the value `name` of an event as `read` makes it; None where `read` cannot, which becomes a problem.

        It is no problem where the event has no such value, or one that is NaN, as a loss may be.
        """
        result = read(value)
        is_nan = isinstance(value, float) and value != value  # NaN alone is not equal to itself
        if result is None and value is not None and not is_nan:
            shown = repr(value)
            shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
            self.note_problem(f"line {event.line}: {event.key}: {name} is {shown}, which cannot be read")
        return result

    def _add_step_window(self, logged: Event, rank_times: schema.RankTimes | None) -> None:
        """Add the window that a `step_window` event of our own logs tells: its steps, seconds, images, loss and so on.

        `rank_times` says how far the times of the ranks lie apart in it, if they were logged. An event without steps or
        time becomes a problem of the record and no window, and so does one whose value is no table. The mean time of a
        step is set too, by which the window's speed is known without its images. A window whose images cannot be read
        is noted in `_without_images`.
        """
        table = table_or_none(logged.value) or {}
        steps = self._readable(logged, "steps", table.get("steps"), positive_whole)
        seconds = self._readable(logged, "time_s", table.get("time_s"), positive_amount)
        if steps is None or seconds is None:
            has_table = isinstance(logged.value, dict)  # without one, both are missing
            missing = "steps or time" if has_table else "a table of values"
            self.note_problem(f"line {logged.line}: step_window without {missing}")
            return

        images = self._readable(logged, "images", table.get("images"), positive_amount)
        window = Window(
            line=logged.line,
            step=self._readable(logged, "step", logged.metadata.get("step"), positive_whole),
            epoch=self._readable(logged, "epoch_num", logged.metadata.get("epoch_num"), positive_whole),
            steps=steps,
            images=images,
            seconds=seconds,
            data_wait_s=wait_within(self._readable(logged, "data_wait_s", table.get("data_wait_s"), real), seconds),
            printed_step_time_s=seconds / steps,  # our logs print none, but both of its parts
            end_s=logged.time_ms / 1000,
            phase=text_or_none(logged.metadata.get("phase")),
            loss=self._readable(logged, "loss", table.get("loss"), real),
            gpu_memory_mib=self._readable(logged, "gpu_memory_mib", table.get("gpu_memory_mib"), real),
            power_w=self._readable(logged, "power_w", table.get("power_w"), real),
            rank_times=rank_times,
        )
        self.add_window(window)
        if images is None:
            self._without_images.append(window)

    def _record_unreadable_images(self) -> None:
        """Add a one-sided check of the images where some step windows count no images that can be read.

        Such windows are given the images of their steps later. A comparison of images and steps would then agree with
        itself, and this check stands in its place.
        """
        if not self._without_images:
            return
        first, last = self._without_images[0].line, self._without_images[-1].line
        count = f"{len(self._without_images)} of {len(self.windows)} windows"
        ways = (f"lines {first} to {last}: {count} count no images that can be read", "their steps x batch")
        self.checks.append(Check(what="images", ways=ways, agree=False, one_sided=True))

    def _samples_are_images(self) -> bool:
        """Tell whether samples and rates are of images: in our own logs, and in those of an image benchmark."""
        return "run_summary" in self.header or self.value("model") in IMAGE_BENCHMARKS

    def _read_evaluations(self) -> None:
        """Fill `evaluation_spans` with the time of each evaluation, and `qualities` with the accuracies logged.

        An evaluation that lacks its start or its stop, or that ends no later than it began, is left out, and so is an
        accuracy that is not a number.
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

    def _windows_of_blocks(self, samples: int | None) -> Iterator[Window]:
        """Yield a window for each block of epochs, of the time from its start to the end of its training.

        `samples` are the images of an epoch; where they are not known, a window has neither images nor steps. Training
        ends where the block's evaluation starts, or else where the block stops. Three kinds of blocks are left out:
        without such an end before the next block starts; without the number of its first epoch or of its epochs; and of
        a clock that was set back.
        """
        starts = [block.start for block in self.events.blocks if block.start]
        ends = [block.stop for block in self.events.blocks if block.stop]
        ends += [evaluation.start for evaluation in self.events.evaluations if evaluation.start]
        ends.sort(key=_line_of)

        for start, next_start in itertools.zip_longest(starts, starts[1:]):
            end = _first_behind(ends, start.line)
            if end is None:
                continue
            is_of_next_block = next_start is not None and end.line > next_start.line
            first_epoch = whole_or_zero(start.number)
            epochs = positive_whole(start.count)
            seconds = (end.time_ms - start.time_ms) / 1000
            if is_of_next_block or first_epoch is None or epochs is None or seconds <= 0:
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


def _first_behind(marks: Sequence[Mark], line: int) -> Mark | None:
    """Return the first of the marks, which are in the order of their lines, behind `line`; None where none is."""
    marks_up_to_line = bisect.bisect(marks, line, key=_line_of)
    return marks[marks_up_to_line] if marks_up_to_line < len(marks) else None


def _line_of(mark: Mark) -> int:
    """Return the line of a mark."""
    return mark.line
