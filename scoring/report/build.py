"""From records to a report: repeats put together and scored, systems set side by side, and all of it judged."""

import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runlog.reader import Event, Header, read_log
from runlog.text import called, visible
from runlog.verdict import Verdict
from scoring.figure import protocols, warnings
from scoring.figure.protocols import Protocol
from scoring.figure.repeats import once
from scoring.figure.score import RunFigure, score
from scoring.published.table import read_published
from scoring.record import InputError, Record, TooFewRunsError
from scoring.report.content import Group, Report, ReportedRun, ScalingRow
from scoring.report.scaling import curves, scaling_rows, with_step_times
from scoring.report.text import counted
from scoring.report.verdict import checks, overall

PREAMBLE_ENTRIES = 5000  # entries of a log in which header and seed are looked for
LOGGED_ONCE = ("seed", "submission_org", "submission_platform")  # events before run_start that the report shows


def build(
    records: Sequence[Record],
    protocol: Protocol | None,
    *,
    skip: int | None,
    findings: dict[str, dict[str, Any]],
    logs: Mapping[str, os.PathLike[str]],
    folders: Mapping[str, str],
) -> Report:
    """The report of `records`; without a protocol, `window` over as many runs as each system has.

    MLPerf logs of which none has a window are scored by `mlperf` instead: their time to train is all that they say.

    `logs` has, by a record's file, the path to read where that is another, as of a log that is read already; `folders`
    the folder that was given in its place: runs of two are two systems.
    Raises InputError where one log is given twice.
    """
    once(records)
    if protocol is None and all(_says_run_time_alone(record) for record in records):
        protocol = protocols.find("mlperf")
    by_shape: dict[tuple[Any, ...], list[ReportedRun]] = {}
    for number, record in enumerate(records, 1):
        run = _run(number, record, findings.get(record.file), logs.get(record.file, record.file))
        shape = (record.devices, record.nodes, record.batch_per_device, record.global_batch, record.machine)
        folder = folders.get(record.file)
        by_shape.setdefault((*_system(record), *shape, folder), []).append(run)
    series: dict[tuple[Any, ...], list[Group]] = {}
    several = len({record.machine for record in records}) > 1
    groups = [_scored(runs, protocol, skip, machine=several) for runs in by_shape.values()]
    names = Counter(group.name for group in groups)
    for group in sorted(groups, key=lambda group: group.record.devices or 0):
        if names[group.name] > 1 and (folder := folders.get(group.record.file)):
            group = replace(group, name=f"{group.name}, {visible(folder, 80)}")
        series.setdefault(_system(group.record), []).append(group)
    timed: list[Group] = []
    scaling: list[tuple[ScalingRow, ...]] = []
    mixture: list[Verdict] = []
    for members in map(with_step_times, series.values()):
        timed.extend(members)
        if len(rows := scaling_rows(members)) > 1:
            scaling.append(tuple(rows))
            mixture.extend(warnings.of_mixture([run.record for member in members for run in member.runs]))
    # Of the largest shape that has any: the others are its smaller ones, or of models without published figures.
    published = read_published()
    beside = [curves(group.record, published) for group in reversed(timed)]
    chosen, note = next((found for found in beside if found[0]), beside[0])
    named = protocol or replace(protocols.find("window"), runs=len(timed[-1].runs))
    checked = tuple(checks(timed, named))
    return Report(
        groups=tuple(timed),
        protocol=named if skip is None else named.skipping(skip),
        checks=checked,
        verdict=overall(checked),
        scaling=tuple(scaling),
        curves=tuple(chosen),
        curves_note=note,
        mixture=tuple(mixture),
        logs=logs,
    )


def _says_run_time_alone(record: Record) -> bool:
    """Whether a log is one of MLPerf that has its run's start, and no window of which a throughput could be made."""
    return record.format == "mllog" and record.run_start_s is not None and not record.windows


def _system(record: Record) -> tuple[Any, ...]:
    """Return what runs of one system share, whatever their number of devices."""
    framework = record.framework.split()[0] if record.framework else None
    # A submission's batch follows its size, and its platform is a name of that size.
    submission = record.format == "mllog" and not record.header
    batch = None if submission else record.batch_per_device
    kinds = record.accelerator if submission else record.device_kinds
    return framework, record.model, batch, record.precision, record.math_mode, record.mode, kinds


def _name(record: Record, *, machine: bool) -> str:
    parts = [
        record.model and visible(record.model, 80),
        record.devices and counted(record.devices, "device"),
        record.nodes and record.nodes > 1 and f"on {record.nodes} nodes",
        record.batch_per_device and f"batch {record.batch_per_device} a device",
        record.precision and visible(record.precision, 40),
        record.math_mode == "tf32" and record.precision == "fp32" and "TF32",
        machine and f"on {visible(record.machine or 'a machine not said', 80)}",
    ]
    return ", ".join(part for part in parts if part) or record.format


def _scored(runs: list[ReportedRun], protocol: Protocol | None, skip: int | None, *, machine: bool) -> Group:
    wanted = protocol or replace(protocols.find("window"), runs=len(runs))
    result, problem = None, None
    try:
        result = score([run.record for run in runs], wanted, skip=skip)
    except TooFewRunsError as error:
        result, problem = error.partial, str(error)
    except InputError as error:
        problem = str(error)
    if result is not None:
        figures = {id(record): figure for record, figure in zip(result.records, result.runs, strict=True)}
        runs = [
            replace(run, figure=figure, span=_span(run.record, figure, wanted))
            if (figure := figures.get(id(run.record)))  # none of a run beyond those that MLPerf scores
            else run
            for run in runs
        ]
    return Group(name=_name(runs[0].record, machine=machine), runs=tuple(runs), score=result, problem=problem)


def _span(record: Record, figure: RunFigure, protocol: Protocol) -> tuple[int, int]:
    """First and last line of the windows that the figure speaks of."""
    first = figure.first_line
    if protocol.over_steps == "between_stamps":
        first += 1  # the row of the first stamp ends before the measurement begins
    elif protocol.over_steps == "epoch_rates":  # an epoch's row follows its windows
        first = max((epoch.line for epoch in record.epochs if epoch.line < first), default=0) + 1
    return first, figure.last_line


# ------------------------------------------------------------------------------------------------- reading


def _run(number: int, record: Record, findings: dict[str, Any] | None, log: str | os.PathLike[str]) -> ReportedRun:
    """A run with what an MLLOG log says up to run_start beside its record."""
    lines: dict[str, int] = {}
    preamble: dict[str, tuple[Any, int]] = {}
    first = record.segment[0] if record.segment else 1
    entries = (entry for entry in (read_log(log) if record.format == "mllog" else ()) if entry.line >= first)
    for entry in itertools.islice(entries, PREAMBLE_ENTRIES):
        if isinstance(entry, Header):
            lines.setdefault(entry.section, entry.line)
        elif isinstance(entry, Event):
            if entry.key == "run_start":
                break
            preamble.setdefault("start_s", (entry.time_ms / 1000, entry.line))
            if entry.key in LOGGED_ONCE:
                preamble.setdefault(entry.key, (entry.value, entry.line))
    return ReportedRun(number=number, record=record, header_lines=lines, preamble=preamble, findings=findings)


def read_findings(path: str, records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Each run's entry of `compliance check --json`, by its file. Raises InputError for a wrong file, or other logs."""
    try:
        entries = json.loads(Path(path).read_text("utf-8"))["files"]
        by_file = {os.path.realpath(entry["file"]): entry for entry in entries}
        if any(e["verdict"] not in ("pass", "fail") or not isinstance(e["findings"], list) for e in by_file.values()):
            raise KeyError
    except (ValueError, KeyError, TypeError, RecursionError):
        make = f"{called('compliance')} check --json LOG... > {path}"
        raise InputError(f"{path}: no findings; make the file with `{make}`") from None
    found = {record.file: by_file.pop(os.path.realpath(record.file), None) for record in records}
    if by_file:
        other = next(iter(by_file))
        raise InputError(f"{path}: speaks of {other}, which is no run of this report; check the same logs")
    return {file: entry for file, entry in found.items() if entry is not None}
