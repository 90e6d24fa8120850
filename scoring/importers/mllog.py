"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print.
"""

from __future__ import annotations

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
from scoring.importers.text import Draft, RowPattern, wait_within
from scoring.record import Epoch, Quality, Window

# Events up to run_start, and the first sections of our own logs' header, which stands before them.
_OPENING = ("cache_clear", "init_start", "submission_benchmark", schema.RUN_START.key, "log", "source")
MOST = 10**15  # of anything that is counted, or of images and seconds
_COUNTS = ("devices", "nodes", "batch_per_device")
_TEXTS = ("precision", "math_mode", "mode", "framework", "model")


class MLLog(Table):
    """Events, not rows."""

    marker = ":::MLLOG"
    row = RowPattern(re.compile(r":::MLLOG \{"), ())

    @classmethod
    def read(cls, lines: Lines) -> Draft:
        """The run of an MLLOG log."""
        draft, events = Draft(), Run()
        first, last = lines.span
        for entry in read_stream(lines.stream):
            if entry.line < first or (last is not None and entry.line > last):
                continue
            if isinstance(entry, Problem):
                draft.problem(f"line {entry.line}: {entry.message}")
            elif (entry.section if isinstance(entry, Header) else entry.key) in _OPENING:
                lines.begin(entry.line)
                if isinstance(entry, Event) and entry.key == schema.RUN_START.key:
                    lines.row(entry.line)
            events.take(entry)
            if events.windows:  # each is held once
                logged = events.windows.pop()
                _window(draft, logged, events.rank_times.pop(logged.step, None))
        _headers(draft, events)
        _facts(draft, events)
        by_windows = bool(draft.windows)
        for window, epoch in _epochs(draft, events):
            draft.epochs.append(epoch)
            if not by_windows and (epoch.seconds is not None or epoch.printed_rate is not None):
                draft.row(window)
        for window in () if draft.windows else _blocks(draft, events):
            draft.row(window)
        for result in events.accuracies:
            if (value := real(result.value)) is not None:
                number = _epoch_number(result.number)
                draft.quality.append(Quality(line=result.line, name=result.key, value=value, epoch=number))
        return draft


def _amount(value: Any) -> float | None:
    """A time, a rate or a number of images; None for what cannot be one."""
    found = real(value)
    return found if found is not None and 1e-9 < found < MOST else None


def _count(value: Any) -> int | None:
    found = real(value)
    return int(found) if found is not None and found == int(found) and 0 < found < MOST else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _epoch_number(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < MOST else None


def _headers(draft: Draft, events: Run) -> None:
    """The sections of our own logs."""
    draft.header |= {name: header.value for name, header in events.headers.items()}
    for name, header in events.headers.items():
        if name == schema.PACKAGES.name and isinstance(header.value, dict):
            draft.software |= {str(name): version for name, version in header.value.items() if isinstance(version, str)}
        elif name == schema.ENVIRONMENT.name and isinstance(header.value, dict) and "NULL_GPU" in header.value:
            draft.problem(f"line {header.line}: null GPUs, which compute nothing: no figure of this run means anything")


def _facts(draft: Draft, events: Run) -> None:
    """What single events say."""
    for name, marks in (("run_start", events.starts), ("run_stop", events.stops)):
        for mark in marks[:1]:
            draft.fact(f"{name}_s", mark.time_ms / 1000, mark.line)
            draft.fact("status", _text(mark.status), mark.line)
        for mark in marks[1:]:
            draft.problem(f"line {mark.line}: {name} again, first on line {marks[0].line}")
    draft.truncated = not events.stops
    if (summary := events.first.get(schema.RUN_SUMMARY.key)) and isinstance(summary.value, dict):
        draft.header.setdefault("run_summary", summary.value)
        for name in _COUNTS:
            draft.fact(name, _count(summary.value.get(name)), summary.line)
        for name in _TEXTS:
            draft.fact(name, _text(summary.value.get(name)), summary.line)
    elif summary:
        draft.problem(f"line {summary.line}: run_summary without a table of values")
    if (telemetry := events.first.get(schema.TELEMETRY_SUMMARY.key)) and isinstance(telemetry.value, dict):
        draft.fact("telemetry", telemetry.value, telemetry.line)
    for name, point, taken in (
        ("batch_of_all", schema.GLOBAL_BATCH_SIZE, _count),
        ("platform", schema.SUBMISSION_PLATFORM, _text),
        ("model", schema.SUBMISSION_BENCHMARK, _text),  # where no run_summary names the model
    ):
        if event := events.first.get(point.key):
            draft.fact(name, taken(event.value), event.line)
    if event := events.last.get(schema.TRAIN_SAMPLES.key):
        draft.fact("train_samples", _count(event.value), event.line)
    draft.fact("rate_scope", "global")


def _window(draft: Draft, logged: run.Window, rank_times: schema.RankTimes | None) -> None:
    """A step_window."""
    steps, seconds = _count(logged.steps), _amount(logged.time_s)
    if steps is None or seconds is None:
        what = "step_window without steps or time" if logged.is_table else "step_window without a table of values"
        draft.problem(f"line {logged.line}: {what}")
        return
    draft.row(
        Window(
            line=logged.line,
            step=_count(logged.step),
            epoch=_count(logged.epoch),
            steps=steps,
            images=_amount(logged.images),
            seconds=seconds,
            data_wait_s=wait_within(real(logged.data_wait_s), seconds),
            printed_step_time_s=seconds / steps,
            end_s=logged.time_ms / 1000,
            phase=_text(logged.phase),
            loss=real(logged.loss),
            gpu_memory_mib=real(logged.gpu_memory_mib),
            power_w=real(logged.power_w),
            rank_times=rank_times,
        )
    )


def _epochs(draft: Draft, events: Run) -> list[tuple[Window, Epoch]]:
    """A window and a summary of each epoch that stopped or was given a rate; one that only started is none."""
    stopped = {interval.stop.number: interval for interval in events.epochs if interval.stop}
    stops = sorted(((i.stop.line, i.stop.number) for i in events.epochs if i.stop), key=lambda stop: stop[0])
    measured: dict[Any, run.Rate] = {}  # our epoch_throughput
    printed: dict[Any, run.Rate] = {}  # the first that says one
    for rate in events.rates:
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
            images = _samples(draft)
        both: dict[str, Any] = {
            "line": max([event.line for event in (stop, summary) if event] or [rated.line if rated else 0]),
            "epoch": _epoch_number(number),
            "images": images,
            "seconds": seconds,
            "printed_rate": _amount(rated.images_per_s) if rated else None,
        }
        window = Window(steps=_steps(draft, images), end_s=stop.time_ms / 1000 if stop else None, **both)
        found.append((window, Epoch(data_wait_s=real(summary.data_wait_s) if summary else None, **both)))
    return sorted(found, key=lambda pair: pair[0].line)


def _blocks(draft: Draft, events: Run) -> Iterator[Window]:
    """A window of each block; its training ends with its evaluation, or with itself."""
    starts = [block.start for block in events.blocks if block.start]
    ends = [block.stop for block in events.blocks if block.stop] + [e.start for e in events.evaluations if e.start]
    ends.sort(key=lambda end: end.line)
    samples = _samples(draft)
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
                steps=_steps(draft, images),
                images=images,
                seconds=end_s - start_s,
                end_s=end_s,
            )


def _samples(draft: Draft) -> int | None:
    samples = draft.value("train_samples")
    return samples if isinstance(samples, int) else None


def _steps(draft: Draft, images: float | None) -> int | None:
    batch = draft.value("batch_of_all")
    return int(images // batch) if images and isinstance(batch, int) else None
