"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A submission without `step_window` gives one window an epoch, from epoch_start to epoch_stop; its images are
`train_samples`. Where it logs no epochs, one a block of epochs, from block_start to its evaluation or block_stop.
Throughput is in no MLPerf rule: `throughput` and `tracked_stats` are what submitters print.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runlog import run, schema
from runlog.reader import Event, Header, Problem, read_stream
from runlog.run import Run, real
from scoring.importers.lines import Lines
from scoring.importers.text import Draft, wait_within
from scoring.record import Epoch, Quality, Window

_OPENING = ("cache_clear", "init_start", "submission_benchmark")  # events before run_start
_FIRST_SECTIONS = ("log", "source")  # of the header of our own logs, which stands before them
MOST = 10**15  # of anything that is counted, or of images and seconds
_COUNTS = ("devices", "nodes", "batch_per_device")
_TEXTS = ("precision", "math_mode", "mode", "framework", "model")


def read(lines: Lines) -> Draft:
    """The run of an MLLOG log."""
    draft, told = Draft(), Run()
    first, last = lines.span
    for entry in read_stream(lines.stream):  # type: ignore[arg-type]
        if entry.line < first or (last is not None and entry.line > last):
            continue
        if isinstance(entry, Problem):
            draft.problem(f"line {entry.line}: {entry.message}")
        elif isinstance(entry, Event) and entry.key in _OPENING:
            lines.start(entry.line, entry.key)
        elif isinstance(entry, Event) and entry.key == schema.RUN_START.key:
            if lines.parts[-1].first_row:
                lines.start(entry.line, entry.key)
            lines.row(entry.line)
        elif isinstance(entry, Header) and entry.section in _FIRST_SECTIONS:
            lines.start(entry.line, "header")
        told.take(entry)
        if told.windows:  # each is held once
            _window(draft, told.windows.pop())
    _headers(draft, told)
    _facts(draft, told)
    of_steps = draft.has_rows
    for window, epoch in _epochs(draft, told):
        draft.epochs.append(epoch)
        if not of_steps and (epoch.seconds is not None or epoch.printed_rate is not None):
            draft.row(window)
    for window in () if draft.has_rows else _blocks(draft, told):
        draft.row(window)
    for said in told.accuracies:
        if (value := real(said.value)) is not None:
            draft.quality.append(Quality(line=said.line, name=said.key, value=value, epoch=_epoch_number(said.number)))
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


def _headers(draft: Draft, told: Run) -> None:
    """The sections of our own logs."""
    draft.header |= {name: header.value for name, header in told.headers.items()}
    for name, header in told.headers.items():
        if name == schema.PACKAGES.name and isinstance(header.value, dict):
            draft.software |= {str(name): version for name, version in header.value.items() if isinstance(version, str)}
        elif name == schema.ENVIRONMENT.name and isinstance(header.value, dict) and "NULL_GPU" in header.value:
            draft.problem(f"line {header.line}: null GPUs, which compute nothing: no figure of this run means anything")


def _facts(draft: Draft, told: Run) -> None:
    """What single events say."""
    for name, marks in (("run_start", told.starts), ("run_stop", told.stops)):
        for mark in marks[:1]:
            draft.fact(f"{name}_s", mark.time_ms / 1000, mark.line)
            draft.fact("status", _text(mark.status), mark.line)
        for mark in marks[1:]:
            draft.problem(f"line {mark.line}: {name} again, first on line {marks[0].line}")
    draft.truncated = not told.stops
    if (summary := told.first.get(schema.RUN_SUMMARY.key)) and isinstance(summary.value, dict):
        draft.header.setdefault("run_summary", summary.value)
        for name in _COUNTS:
            draft.fact(name, _count(summary.value.get(name)), summary.line)
        for name in _TEXTS:
            draft.fact(name, _text(summary.value.get(name)), summary.line)
    elif summary:
        draft.problem(f"line {summary.line}: run_summary without a table of values")
    if (telemetry := told.first.get(schema.TELEMETRY_SUMMARY.key)) and isinstance(telemetry.value, dict):
        draft.fact("telemetry", telemetry.value, telemetry.line)
    for name, point, taken in (
        ("batch_of_all", schema.GLOBAL_BATCH_SIZE, _count),
        ("platform", schema.SUBMISSION_PLATFORM, _text),
        ("model", schema.SUBMISSION_BENCHMARK, _text),  # where no run_summary names the model
    ):
        if event := told.first.get(point.key):
            draft.fact(name, taken(event.value), event.line)
    draft.fact("rate_scope", "global")


def _window(draft: Draft, said: run.Window) -> None:
    """A step_window."""
    steps, seconds = _count(said.steps), _amount(said.time_s)
    if steps is None or seconds is None:
        what = "step_window without steps or time" if said.is_table else "step_window without a table of values"
        draft.problem(f"line {said.line}: {what}")
        return
    draft.row(
        Window(
            line=said.line,
            step=_count(said.step),
            epoch=_count(said.epoch),
            steps=steps,
            images=_amount(said.images),
            seconds=seconds,
            data_wait_s=wait_within(real(said.data_wait_s), seconds),
            printed_step_time_s=seconds / steps,
            end_s=said.time_ms / 1000,
            phase=_text(said.phase),
            loss=real(said.loss),
            gpu_memory_mib=real(said.gpu_memory_mib),
            power_w=real(said.power_w),
        )
    )


@dataclass(kw_only=True)
class _Epoch:
    """What the events say of one epoch, in several places."""

    line: int
    trained_s: float | None = None  # from its start to its stop
    end_s: float | None = None
    rate: run.Rate | None = None  # the first that says one
    measured: run.Rate | None = None  # our epoch_throughput


def _epochs(draft: Draft, told: Run) -> Iterator[tuple[Window, Epoch]]:
    """A window and a summary of each epoch that stopped or was given a rate; one that only started is none."""
    found: dict[Any, _Epoch] = {}
    for interval in told.epochs:
        if stop := interval.stop:
            started_s = interval.start.time_ms / 1000 if interval.start else None
            end_s = stop.time_ms / 1000
            trained_s = _amount(end_s - started_s) if started_s is not None else None
            found[stop.number] = _Epoch(line=stop.line, trained_s=trained_s, end_s=end_s)
    stops = sorted(((i.stop.line, i.stop.number) for i in told.epochs if i.stop), key=lambda stop: stop[0])
    for rate in told.rates:
        number = rate.number
        if number is None:
            before = bisect.bisect(stops, rate.line, key=lambda stop: stop[0])
            number = stops[before - 1][1] if before else None
        if rate.key == schema.EPOCH_THROUGHPUT.key:
            epoch = found.setdefault(number, _Epoch(line=rate.line))
            epoch.measured, epoch.line = rate, max(rate.line, epoch.line)
        elif _amount(rate.images_per_s) is not None:
            epoch = found.setdefault(number, _Epoch(line=rate.line))
            epoch.rate = epoch.rate or rate
    samples = _samples(told)
    for number, said in sorted(found.items(), key=lambda item: item[1].line):
        seconds = _amount(said.measured.time_s) if said.measured else said.trained_s
        images = _amount(said.measured.images) if said.measured else None
        if images is None and seconds:
            images = samples
        printed = _amount(said.rate.images_per_s) if said.rate else None
        yield (
            Window(
                line=said.line,
                epoch=_epoch_number(number),
                steps=_steps(draft, images),
                images=images,
                seconds=seconds,
                printed_rate=printed,
                end_s=said.end_s,
            ),
            Epoch(
                line=said.line,
                epoch=_epoch_number(number),
                images=images,
                seconds=seconds,
                printed_rate=printed,
                data_wait_s=real(said.measured.data_wait_s) if said.measured else None,
            ),
        )


def _blocks(draft: Draft, told: Run) -> Iterator[Window]:
    """A window of each block; its training ends with its evaluation, or with itself."""
    starts = [block.start for block in told.blocks if block.start]
    ends = [block.stop for block in told.blocks if block.stop] + [e.start for e in told.evaluations if e.start]
    ends.sort(key=lambda end: end.line)
    samples = _samples(told)
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


def _samples(told: Run) -> int | None:
    event = told.last.get(schema.TRAIN_SAMPLES.key)
    return _count(event.value) if event else None


def _steps(draft: Draft, images: float | None) -> int | None:
    batch = draft.said("batch_of_all")
    return int(images // batch) if images and isinstance(batch, int) else None
