"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print.
"""

import bisect
import itertools
import re
from collections.abc import Iterator
from typing import Any

from runlog import run, schema
from runlog.reader import Event, Header, Problem, read_stream
from runlog.run import Run, real
from scoring.importers.lines import Lines
from scoring.importers.table import Table
from scoring.importers.text import RowPattern, wait_within
from scoring.record import Quality, Window

# Events up to run_start, and the first sections of our own logs' header, which stands before them.
_OPENING = ("cache_clear", "init_start", "submission_benchmark", schema.RUN_START.key, "log", "source")
MOST = 10**15  # of anything that is counted, or of images and seconds


class MLLog(Table):
    """Events, not rows."""

    marker = ":::MLLOG"
    row = RowPattern(re.compile(r":::MLLOG \{"), ())
    rate_scope = "global"

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.events = Run()

    def read(self) -> None:
        events, (first, last) = self.events, self.lines.span
        for entry in read_stream(self.lines.stream):
            if entry.line < first or (last is not None and entry.line > last):
                continue
            if isinstance(entry, Problem):
                self.problem(f"line {entry.line}: {entry.message}")
            elif (entry.section if isinstance(entry, Header) else entry.key) in _OPENING:
                self.lines.begin(entry.line)
                if isinstance(entry, Event) and entry.key == schema.RUN_START.key:
                    self.lines.row(entry.line)
            events.take(entry)
            if events.windows:  # each is held once
                logged = events.windows.pop()
                self._window(logged, events.rank_times.pop(run.scalar(logged.metadata.get("step")), None))
        self._facts()
        by_windows = bool(self.windows)
        for epoch in self._epochs():
            self.epochs.append(epoch)
            if not by_windows and (epoch.seconds is not None or epoch.printed_rate is not None):
                self.add(epoch)
        for block in () if self.windows else self._blocks():
            self.add(block)
        for result in events.accuracies:
            if (value := real(result.value)) is not None:
                epoch_num = _epoch_number(result.number)
                self.qualities.append(Quality(line=result.line, name=result.key, value=value, epoch=epoch_num))

    def _facts(self) -> None:
        """What single events say, and the header of our own logs."""
        events = self.events
        for name, marks in (("run_start", events.starts), ("run_stop", events.stops)):
            for mark in marks[:1]:
                self.say(f"{name}_s", mark.time_ms / 1000, mark.line)
                self.say("status", _text(mark.status), mark.line)
            for mark in marks[1:]:
                self.problem(f"line {mark.line}: {name} again, first on line {marks[0].line}")
        self.truncated = not events.stops
        self.header = {name: header.value for name, header in events.headers.items()}
        packages, header = _table(self.header.get("packages")), events.headers.get(schema.ENVIRONMENT.name)
        self.software = {name: text for name, text in (packages or {}).items() if isinstance(text, str)}
        if header and isinstance(header.value, dict) and "NULL_GPU" in header.value:
            self.problem(f"line {header.line}: null GPUs, which compute nothing: no figure of this run means anything")
        if summary := events.first.get(schema.RUN_SUMMARY.key):
            if isinstance(said := summary.value, dict):
                self.header.setdefault("run_summary", said)
                for name in ("devices", "nodes", "batch_per_device"):
                    self.say(name, _count(said.get(name)), summary.line)
                for name in ("precision", "math_mode", "mode", "framework", "model"):
                    self.say(name, _text(said.get(name)), summary.line)
            else:
                self.problem(f"line {summary.line}: run_summary without a table of values")
        for name, event, of in (
            ("telemetry", events.first.get(schema.TELEMETRY_SUMMARY.key), _table),
            ("batch_of_all", events.first.get(schema.GLOBAL_BATCH_SIZE.key), _count),
            ("platform", events.first.get(schema.SUBMISSION_PLATFORM.key), _text),
            ("model", events.first.get(schema.SUBMISSION_BENCHMARK.key), _text),  # where no run_summary names it
            ("train_samples", events.last.get(schema.TRAIN_SAMPLES.key), _count),
        ):
            if event:
                self.say(name, of(event.value), event.line)
        self.say("rate_scope", self.rate_scope)

    def _window(self, logged: Event, rank_times: schema.RankTimes | None) -> None:
        table, beside = _table(logged.value) or {}, logged.metadata
        steps, seconds = _count(table.get("steps")), _amount(table.get("time_s"))
        if steps is None or seconds is None:
            lacks = "steps or time" if isinstance(logged.value, dict) else "a table of values"
            self.problem(f"line {logged.line}: step_window without {lacks}")
            return
        self.add(
            Window(
                line=logged.line,
                step=_count(beside.get("step")),
                epoch=_count(beside.get("epoch_num")),
                steps=steps,
                images=_amount(table.get("images")),
                seconds=seconds,
                data_wait_s=wait_within(real(table.get("data_wait_s")), seconds),
                printed_step_time_s=seconds / steps,
                end_s=logged.time_ms / 1000,
                phase=_text(beside.get("phase")),
                loss=real(table.get("loss")),
                gpu_memory_mib=real(table.get("gpu_memory_mib")),
                power_w=real(table.get("power_w")),
                rank_times=rank_times,
            )
        )

    def _epochs(self) -> list[Window]:
        """A window of each epoch that stopped or was given a rate; one that only started is none."""
        stopped = {interval.stop.number: interval for interval in self.events.epochs if interval.stop}
        stops = sorted(((i.stop.line, i.stop.number) for i in self.events.epochs if i.stop), key=lambda stop: stop[0])
        measured: dict[Any, run.Rate] = {}  # our epoch_throughput
        printed: dict[Any, run.Rate] = {}  # the first that says one
        for rate in self.events.rates:
            number = rate.number
            if number is None:
                before = bisect.bisect(stops, rate.line, key=lambda stop: stop[0])
                number = stops[before - 1][1] if before else None
            if rate.key == schema.EPOCH_THROUGHPUT.key:
                measured[number] = rate
            elif _amount(rate.images_per_s) is not None:
                printed.setdefault(number, rate)
        found = []
        for number in {**stopped, **measured, **printed}:
            interval, summary, rated = stopped.get(number), measured.get(number), printed.get(number)
            start, stop = (interval.start, interval.stop) if interval else (None, None)
            seconds = _amount((stop.time_ms - start.time_ms) / 1000) if start and stop else None
            images = None
            if summary:
                seconds, images = _amount(summary.time_s), _amount(summary.images)
            if images is None and seconds:
                images = self.value("train_samples")
            found.append(
                Window(
                    line=max([event.line for event in (stop, summary) if event] or [rated.line if rated else 0]),
                    epoch=_epoch_number(number),
                    steps=self._steps(images),
                    images=images,
                    seconds=seconds,
                    data_wait_s=real(summary.data_wait_s) if summary else None,
                    printed_rate=_amount(rated.images_per_s) if rated else None,
                    end_s=stop.time_ms / 1000 if stop else None,
                )
            )
        return sorted(found, key=lambda epoch: epoch.line)

    def _blocks(self) -> Iterator[Window]:
        """A window of each block; its training ends with its evaluation, or with itself."""
        blocks, samples = self.events.blocks, self.value("train_samples")
        starts = [block.start for block in blocks if block.start]
        ends = [one.stop for one in blocks if one.stop] + [one.start for one in self.events.evaluations if one.start]
        ends.sort(key=lambda end: end.line)
        for start, following in itertools.zip_longest(starts, starts[1:]):
            first, epochs = _count(start.number), _count(start.count)
            at = bisect.bisect(ends, start.line, key=lambda end: end.line)
            if not first or not epochs or at == len(ends) or (following and ends[at].line > following.line):
                continue
            images = samples * epochs if samples else None
            start_s, end_s = start.time_ms / 1000, ends[at].time_ms / 1000
            if end_s > start_s:
                yield Window(
                    line=ends[at].line,
                    epoch=first + epochs - 1,
                    steps=self._steps(images),
                    images=images,
                    seconds=end_s - start_s,
                    end_s=end_s,
                )

    def _steps(self, images: float | None) -> int | None:
        batch = self.value("batch_of_all")
        return int(images // batch) if images and batch else None


def _amount(value: Any) -> float | None:
    """A time, a rate or a number of images; None for what cannot be one."""
    found = real(value)
    return found if found is not None and 1e-9 < found < MOST else None


def _count(value: Any) -> int | None:
    found = real(value)
    return int(found) if found is not None and found == int(found) and 0 < found < MOST else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _epoch_number(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < MOST else None
