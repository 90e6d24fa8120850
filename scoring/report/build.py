"""From records to a report: repeats put together and scored, systems compared, and all of it judged."""

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from runlog.reader import Event, Header, read_log
from runlog.text import called, visible
from runlog.verdict import Verdict
from scoring.figure import protocols, warnings
from scoring.figure.protocols import Protocol
from scoring.figure.repeats import refuse_same_run_twice
from scoring.figure.score import RunFigure, Score, score
from scoring.published.table import read_published
from scoring.record import InputError, Record, TooFewRunsError
from scoring.report.content import Group, Logged, Report, ReportedRun, ScalingRow, runs_of
from scoring.report.scaling import PublishedCurves, curves, scaling_rows, with_step_times
from scoring.report.text import counted
from scoring.report.verdict import checks, overall

PREAMBLE_ENTRIES = 5000  # entries of a log in which header and seed are looked for
EVENTS_SHOWN = ("seed", "submission_org", "submission_platform")  # events before run_start that the report shows


class _System(NamedTuple):
    """The properties that runs of one system share, whatever their number of devices."""

    framework: str | None
    model: str | None
    batch_per_device: int | None
    precision: str | None
    math_mode: str | None
    mode: str | None
    devices: object  # their kinds


class _Repeated(NamedTuple):
    """The properties that repeats of one run share: the system, its shape, and the folder that was given for them."""

    system: _System
    devices: int | None
    nodes: int | None
    batch_per_device: int | None
    global_batch: int | None
    machine: str | None
    folder: str | None


class _FigureOptions(NamedTuple):
    """How the figures are asked for: by a protocol or without one, and with how many windows dropped."""

    protocol: Protocol | None
    skip: int | None

    def protocol_for(self, runs: Sequence[ReportedRun]) -> Protocol:
        """Return the protocol; without one, `window` over as many runs as there are."""
        return self.protocol or replace(protocols.find("window"), runs=len(runs))


class _Scaling(NamedTuple):
    """The systems with two device counts or more: a table for each, and warnings of runs that differ in more."""

    tables: tuple[tuple[ScalingRow, ...], ...]
    mixture: tuple[Verdict, ...]


def build(
    records: Sequence[Record],
    protocol: Protocol | None,
    *,
    skip: int | None,
    findings: Mapping[str, JsonObject],
    logs: Mapping[str, os.PathLike[str]],
    folders: Mapping[str, str],
) -> Report:
    """Return the report of runs: grouped by what they repeat, scored, compared over device counts, and judged.

    Args:
        records: One for each run, in the order in which the report numbers them.
        protocol: How figures are made. None: the protocol `window` over as many runs as each group has, or `mlperf`
            where the logs say a time to train and nothing else.
        skip: How many windows to drop at the start of a run, in place of the protocol's number.
        findings: What the compliance check found in a run, by its file.
        logs: The path to read a run's log from, by its file; a file that is not there is read by its own path.
        folders: The folder that the user gave in a file's place, by the file: runs of two folders are two systems.

    Raises:
        InputError: One log is given twice.
    """
    refuse_same_run_twice(records)
    if protocol is None and all(_says_run_time_alone(record) for record in records):
        protocol = protocols.find("mlperf")
    options = _FigureOptions(protocol, skip)
    runs = []
    for number, record in enumerate(records, 1):
        runs.append(_reported_run(number, record, findings.get(record.file), logs.get(record.file, record.file)))

    systems = _by_system(_scored_groups(runs, options, folders))
    groups = list(itertools.chain.from_iterable(systems))
    scaling = _scaling(systems)
    published = _published_curves(groups)
    shown_protocol = options.protocol_for(min((group.runs for group in groups), key=len))  # the least that it asks for
    verdicts = tuple(checks(groups, shown_protocol))
    return Report(
        groups=tuple(groups),
        protocol=shown_protocol if skip is None else shown_protocol.skipping(skip),
        checks=verdicts,
        verdict=overall(verdicts),
        scaling=scaling.tables,
        curves=tuple(published.curves),
        curves_note=published.note,
        mixture=scaling.mixture,
        logs=logs,
    )


def _says_run_time_alone(record: Record) -> bool:
    """Return whether a log is one of MLPerf with its run's start, and no window to make a throughput of."""
    return record.format == "mllog" and record.run_start_s is not None and not record.windows


# ------------------------------------------------------------------------------------------------- grouping


def _scored_groups(runs: Sequence[ReportedRun], options: _FigureOptions, folders: Mapping[str, str]) -> list[Group]:
    """Return the runs in groups that repeat one run, each group with its figure, in the order of their devices.

    `folders` has the folder that was given in place of a run's file, by the file. A group's name says the machine where
    the report has runs of several machines. Groups whose names would be equal have their folder's name added.
    """
    runs_by_shared: dict[_Repeated, list[ReportedRun]] = {}  # the runs that repeat each other, by what they share
    for run in runs:
        shared = _shared_by_repeats(run.record, folders.get(run.record.file))
        runs_by_shared.setdefault(shared, []).append(run)
    machines = {run.record.machine for run in runs}
    name_machine = len(machines) > 1
    groups = [_scored_group(repeats, options, name_machine=name_machine) for repeats in runs_by_shared.values()]

    name_counts = Counter(group.name for group in groups)
    named = []
    for group in groups:
        folder = folders.get(group.record.file)
        if name_counts[group.name] > 1 and folder:
            group = replace(group, name=f"{group.name}, {visible(folder, 80)}")
        named.append(group)
    return sorted(named, key=_devices_of)


def _devices_of(group: Group) -> int:
    """Return the number of devices by which groups are sorted; 0 where it is not known."""
    return group.record.devices or 0


def _shared_by_repeats(record: Record, folder: str | None) -> _Repeated:
    """Return what a run shares with its repeats."""
    return _Repeated(
        system=_system_of(record),
        devices=record.devices,
        nodes=record.nodes,
        batch_per_device=record.batch_per_device,
        global_batch=record.global_batch,
        machine=record.machine,
        folder=folder,
    )


def _system_of(record: Record) -> _System:
    """Return what a run shares with runs of the same system on other numbers of devices: framework, model and so on.

    Batch and kind of devices are such properties too, but not in a log of another's submission to MLPerf, which is told
    by the lack of our header. There the batch changes with the number of devices and the platform is named after it. So
    the batch is left out, and the kind of accelerator takes the place of the platform.
    """
    is_submission = record.format == "mllog" and not record.header
    framework_name = None
    if record.framework:
        framework_name = record.framework.split()[0]  # without its version
    return _System(
        framework=framework_name,
        model=record.model,
        batch_per_device=None if is_submission else record.batch_per_device,
        precision=record.precision,
        math_mode=record.math_mode,
        mode=record.mode,
        devices=record.accelerator if is_submission else record.device_kinds,
    )


def _name_of_group(record: Record, *, name_machine: bool) -> str:
    """Return the name of a group of repeated runs, of what the record of one of them says.

    "resnet50_v1.5, 16 devices, on 2 nodes, batch 256 a device, amp" is such a name. The machine is added where
    `name_machine` is set. A record that says nothing of it all gives the name of the log's format.
    """
    parts = []
    if record.model:
        parts.append(visible(record.model, 80))
    if record.devices:
        parts.append(counted(record.devices, "device"))
    if record.nodes and record.nodes > 1:
        parts.append(f"on {record.nodes} nodes")
    if record.batch_per_device:
        parts.append(f"batch {record.batch_per_device} a device")
    if record.precision:
        parts.append(visible(record.precision, 40))
    if record.math_mode == "tf32" and record.precision == "fp32":
        parts.append("TF32")
    if name_machine:
        parts.append(f"on {visible(record.machine or 'a machine not said', 80)}")
    return ", ".join(parts) or record.format


def _scored_group(runs: Sequence[ReportedRun], options: _FigureOptions, *, name_machine: bool) -> Group:
    """Return a group of runs with its figure, or with the problem, a sentence on why there is no figure.

    Where there are too few runs for the protocol, the group has the problem, and the figure of those that there are if
    the protocol makes one of them. `name_machine` adds the machine to the group's name.
    """
    protocol = options.protocol_for(runs)
    result: Score | None = None
    problem = None
    try:
        result = score([run.record for run in runs], protocol, skip=options.skip)
    except TooFewRunsError as error:
        result = error.partial
        problem = str(error)
    except InputError as error:
        problem = str(error)
    if result is not None:
        runs = _with_figures(runs, result, protocol)
    name = _name_of_group(runs[0].record, name_machine=name_machine)
    return Group(name=name, runs=tuple(runs), score=result, problem=problem)


def _with_figures(runs: Sequence[ReportedRun], result: Score, protocol: Protocol) -> list[ReportedRun]:
    """Return the runs with their figures; a run beyond those that MLPerf scores has none."""
    figures = {id(record): figure for record, figure in zip(result.records, result.runs, strict=True)}
    measured = []
    for run in runs:
        figure = figures.get(id(run.record))
        if figure:
            run = replace(run, figure=figure, span=_span(run.record, figure, protocol))
        measured.append(run)
    return measured


def _span(record: Record, figure: RunFigure, protocol: Protocol) -> tuple[int, int]:
    """Return the first and the last line of the log that may hold a window which a run's figure is made of."""
    first_line = figure.first_line
    if protocol.over_steps == "between_stamps":
        first_line += 1  # the row of the first stamp ends before the measurement begins
    elif protocol.over_steps == "epoch_rates":
        # The figure's first line is the row of an epoch, which follows the epoch's windows.
        earlier_epochs = [epoch.line for epoch in record.epochs if epoch.line < first_line]
        first_line = max(earlier_epochs, default=0) + 1
    return first_line, figure.last_line


def _by_system(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups of each system, with their step times."""
    systems: dict[_System, list[Group]] = {}
    for group in groups:
        systems.setdefault(_system_of(group.record), []).append(group)
    return [with_step_times(members) for members in systems.values()]


def _scaling(systems: Sequence[Sequence[Group]]) -> _Scaling:
    """Return the scaling tables of the systems that have several device counts."""
    tables = []
    mixture: list[Verdict] = []
    for members in systems:
        rows = scaling_rows(members)
        if len(rows) > 1:
            tables.append(tuple(rows))
            mixture += warnings.warn_of_mixed_settings([run.record for run in runs_of(members)])
    return _Scaling(tuple(tables), tuple(mixture))


def _published_curves(groups: Sequence[Group]) -> PublishedCurves:
    """Return the published curves of the largest group that has any: others are smaller, or of models without any.

    Where no group has any, say why the largest one has none.
    """
    published = read_published()
    for group in reversed(groups):
        suitable = curves(group.record, published)
        if suitable.curves:
            return suitable
    return curves(groups[-1].record, published)


# ------------------------------------------------------------------------------------------------- reading


def _reported_run(number: int, record: Record, findings: JsonObject | None, log: str | os.PathLike[str]) -> ReportedRun:
    """Return a run of the report: its record, the check's `findings`, and what its log says before the run starts.

    Of an MLPerf log these are the lines of the header's sections, the time of the first event (as `start_s`), and the
    events of EVENTS_SHOWN, each with its line. Where an event or a section is logged twice, the first one counts. A log
    of another format has none of them. `log` is the path to read.
    """
    header_lines: dict[str, int] = {}
    preamble: dict[str, Logged] = {}
    for entry in _first_entries(record, log):
        if isinstance(entry, Header):
            header_lines.setdefault(entry.section, entry.line)
        elif isinstance(entry, Event):
            if entry.key == "run_start":
                break
            preamble.setdefault("start_s", Logged(entry.time_ms / 1000, entry.line))
            if entry.key in EVENTS_SHOWN:
                preamble.setdefault(entry.key, Logged(entry.value, entry.line))
    return ReportedRun(number=number, record=record, header_lines=header_lines, preamble=preamble, findings=findings)


def _first_entries(record: Record, log: str | os.PathLike[str]) -> Iterator[object]:
    """Return the first entries of a run's part of an MLLOG log; none of another format."""
    if record.format != "mllog":
        return iter(())
    first_line = record.segment[0] if record.segment else 1
    entries = (entry for entry in read_log(log) if entry.line >= first_line)
    return itertools.islice(entries, PREAMBLE_ENTRIES)


def read_findings(path: str, records: Sequence[Record]) -> dict[str, JsonObject]:
    """Read a file that `compliance check --json` printed, and return what it found in each run, by the run's file.

    The check may have been given the same logs by other names, so that files are compared by their real paths. A run
    that was not checked is left out. Raises InputError for a file of another form, and for one that has a log which is
    not in this report.
    """
    try:
        by_real_path = _entries_by_real_path(json.loads(Path(path).read_text("utf-8")))
    except (ValueError, KeyError, TypeError, RecursionError):
        make = f"{called('compliance')} check --json LOG... > {path}"
        raise InputError(f"{path}: no findings; make the file with `{make}`") from None
    findings = {}
    for record in records:
        entry = by_real_path.pop(os.path.realpath(record.file), None)
        if entry is not None:
            findings[record.file] = entry
    files_of_no_run = list(by_real_path)
    if files_of_no_run:
        raise InputError(f"{path}: speaks of {files_of_no_run[0]}, which is no run of this report; check the same logs")
    return findings


def _entries_by_real_path(content: Any) -> dict[str, JsonObject]:
    """Return the entries of the check's JSON by real path. Raises KeyError or TypeError for another form."""
    by_file = {os.path.realpath(entry["file"]): entry for entry in content["files"]}
    for entry in by_file.values():
        if entry["verdict"] not in ("pass", "fail") or not isinstance(entry["findings"], list):
            raise KeyError
    return by_file
