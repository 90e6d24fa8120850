"""From records to a report: repeats put together and scored, systems compared, and all of it judged."""

import itertools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from runlog.reader import Event, Header, read_log
from runlog.text import called
from runlog.verdict import Verdict
from scoring.figure import protocols, warnings
from scoring.figure.protocols import Protocol
from scoring.figure.rates import rate_of
from scoring.figure.repeats import refuse_same_run_twice
from scoring.figure.run import RunFigure
from scoring.figure.score import Score, score
from scoring.published.table import read_published
from scoring.record import InputError, Record, TooFewRunsError
from scoring.report.content import NOT_LOGGED, Group, Logged, Report, ReportedRun, ScalingRow, runs_of
from scoring.report.names import name_of_group, with_own_names
from scoring.report.scaling import PublishedCurves, published_curves, scaling_rows, with_step_times
from scoring.report.verdict import checks, overall

PREAMBLE_ENTRIES = 5000  # entries of a log in which header and seed are looked for
EVENTS_SHOWN = ("seed", "submission_org", "submission_platform")  # events before run_start that the report shows


class _System(NamedTuple):
    """The properties that runs of one system share, on any number of devices."""

    framework: str | None
    model: str | None
    data: str | None
    batch_per_device: int | None
    precision: str | None
    math_mode: str | None
    mode: str | None
    kind_of_devices: object


class _RepeatKey(NamedTuple):
    """The properties that repeats of one run share: the system, its shape, and the folder they were found in."""

    system: _System
    devices: int | None
    nodes: int | None
    batch_per_device: int | None
    global_batch: int | None
    machine: str | None
    folder: str | None  # that holds the logs; None for logs that were given one by one


class _FigureOptions(NamedTuple):
    """How the figures of the report are made."""

    protocol: Protocol | None  # of all groups; None: each group has `window` over all of its runs
    skip: int | None  # windows to drop at the start of a run; None: the number of the protocol

    def protocol_of_group(self, runs: Sequence[ReportedRun]) -> Protocol:
        """Return the protocol by which the runs of a group are scored.

        Args:
            runs: The repeated runs of the group. Without a protocol for all groups, it is `window` over all of them.
        """
        if self.protocol is not None:
            return self.protocol
        return replace(protocols.find("window"), runs=len(runs))

    def shown_protocol(self, groups: Sequence[Group]) -> Protocol:
        """Return the one protocol that the page names for all groups: the protocol of the group with the fewest runs.

        Args:
            groups: Groups of repeated runs, at least one.
        """
        # Without a common protocol, that of each group asks for as many runs as the group has. `Protocol.describe`
        # raises smaller numbers of runs to its own, so only the smallest one gives "mean of 3 to 5 runs".
        runs_of_smallest_group = min((group.runs for group in groups), key=len)
        protocol = self.protocol_of_group(runs_of_smallest_group)
        if self.skip is None:
            return protocol
        return protocol.skipping(self.skip)


class _Scaling(NamedTuple):
    """A scaling table for each system on several numbers of devices or nodes, and the warnings about them."""

    tables: tuple[tuple[ScalingRow, ...], ...]
    warnings: tuple[Verdict, ...]


@dataclass(frozen=True, kw_only=True)
class GivenLog:
    """The record of a log, where the log lies, and what the compliance check found in it."""

    record: Record
    path: str | os.PathLike[str]  # where to read the log, which may not be at the record's `file`
    folder: str | None = None  # that the log was found in; None for a log that was given by itself
    findings: JsonObject | None = None  # the log's entry of `python -m compliance check --json`; None: not checked


def build(logs: Sequence[GivenLog], protocol: Protocol | None, *, skip: int | None, files_left_out: int = 0) -> Report:
    """Build a report from training logs: group repeated runs, score each group, compare device counts, judge it all.

    Args:
        logs: The runs of the report, at least one.
        protocol: Rules by which runs become a figure, such as a throughput. None: those that suit the logs.
        skip: Number of windows (the steps between two printed rows) or epochs to drop at the start of each run. None:
            as many as the protocol says.
        files_left_out: Number of files in the given folders that hold no run.

    Returns:
        The content of the report. Among its fields are:

        - groups: A group that cannot be scored has a `problem` in place of a figure.
        - protocol: The given one, or one that stands for the protocols of all groups.
        - scaling: A table for each system whose images/s are known on several numbers of devices or of nodes.
        - curves: Published throughputs that suit one of the groups, to draw next to ours in the plots of scaling.
        - mixture: Warnings of scaling tables: their runs differ in more than their devices, such as in their packages,
          or a device does more among many.

    Raises:
        InputError: A run is given twice, or as two logs of which one continues the other.
    """
    records = [log.record for log in logs]
    refuse_same_run_twice(records)
    options = _FigureOptions(protocol or _default_protocol(records), skip)
    runs = [_reported_run(number, log) for number, log in enumerate(logs, 1)]

    # A group: the runs that repeat each other. A system: the groups that differ at most in devices, nodes, global
    # batch, machine or folder, and for submissions to MLPerf by others also in their batch per device.
    scored_groups = _scored_groups(runs, options)
    groups_of_systems = [with_step_times(groups) for groups in _groups_of_systems(scored_groups)]
    groups = list(itertools.chain.from_iterable(groups_of_systems))
    scaling = _scaling(groups_of_systems)
    published = _published_curves_of_one_group(_groups_in_plots(scaling, groups))

    shown_protocol = options.shown_protocol(groups)
    verdicts = tuple(checks(groups, shown_protocol, scaling.warnings, files_left_out=files_left_out))
    return Report(
        groups=tuple(groups),
        protocol=shown_protocol,
        checks=verdicts,
        verdict=overall(verdicts),
        scaling=scaling.tables,
        curves=tuple(published.curves),
        curves_note=published.note,
        mixture=scaling.warnings,
    )


def _default_protocol(records: Sequence[Record]) -> Protocol | None:
    """Return the rules by which runs become a figure, if the user gave none.

    Args:
        records: The runs of the report, as their logs describe them.

    Returns:
        `mlperf`, which takes the time to train, if the logs have nothing else to score. Otherwise None: each group of
        repeated runs is then scored by the protocol `window`, a throughput.
    """
    if all(_has_run_time_only(record) for record in records):
        return protocols.find("mlperf")
    return None


def _has_run_time_only(record: Record) -> bool:
    """Return whether an MLPerf log says when its run started, but has no rate to compute a throughput from.

    Logs of other benchmarks than ResNet may have windows of epochs, whose samples are not images.

    Args:
        record: The run as its log describes it.
    """
    has_rates = any(rate_of(record, window) is not None for window in record.windows)
    return record.format == "mllog" and record.run_start_s is not None and not has_rates


# ------------------------------------------------------------------------------------------------- grouping


def _scored_groups(runs: Sequence[ReportedRun], options: _FigureOptions) -> list[Group]:
    """Group the runs that repeat each other, score each group, and return all groups by ascending number of devices.

    Args:
        runs: The runs of the report.
        options: The protocol and the number of windows to skip that the user gave, if any.
    """
    repeats_by_key: dict[_RepeatKey, list[ReportedRun]] = {}
    for run in runs:
        repeats_by_key.setdefault(_repeat_key(run), []).append(run)
    machines = {run.record.machine for run in runs}
    name_machine = len(machines) > 1
    groups = [_scored_group(repeats, options, name_machine=name_machine) for repeats in repeats_by_key.values()]
    return sorted(with_own_names(groups), key=_devices_of)


def _devices_of(group: Group) -> int:
    """Return the number of devices to sort groups by; 0 if it is not known."""
    return group.record.devices or 0


def _repeat_key(run: ReportedRun) -> _RepeatKey:
    """Return the properties that a run shares with its repeats, to group runs by: runs with equal keys are repeats.

    Args:
        run: A run of the report.

    Returns:
        The system, the numbers of devices and nodes, the batch, the machine, and the folder that the log was found in.
        A property that the log does not state is None.
    """
    record = run.record
    return _RepeatKey(
        system=_system_of(record),
        devices=record.devices,
        nodes=record.nodes,
        batch_per_device=record.batch_per_device,
        global_batch=record.global_batch,
        machine=record.machine,
        folder=run.given_folder,
    )


def _system_of(record: Record) -> _System:
    """Return the properties that a run shares with runs of the same system on other numbers of devices.

    Args:
        record: A run as its log describes it.

    Returns:
        The properties, as a key to group runs by. A property is None if it is not known.
    """
    batch_per_device = record.batch_per_device
    kind_of_devices: object = record.device_kinds
    if _is_submission_by_others(record):
        batch_per_device = None  # submissions have another batch for each number of devices
        # Without an accelerator, `device_kinds` is the name of the platform, which has the number of devices.
        kind_of_devices = record.accelerator
    framework_name = None
    if record.framework:
        framework_name = record.framework.split()[0]  # without its version
    return _System(
        framework=framework_name,
        model=record.model,
        data=record.data,
        batch_per_device=batch_per_device,
        precision=record.precision,
        math_mode=record.math_mode,
        mode=record.mode,
        kind_of_devices=kind_of_devices,
    )


def _is_submission_by_others(record: Record) -> bool:
    """Return whether a log is a submission to MLPerf by others: an MLPerf log without the header of our own logs."""
    return record.format == "mllog" and not record.header


def _scored_group(runs: Sequence[ReportedRun], options: _FigureOptions, *, name_machine: bool) -> Group:
    """Score a group of repeated runs, and return the group with its figure, or with the problem that prevents it.

    Args:
        runs: The repeated runs, at least one.
        options: The protocol and the number of windows to skip that the user gave, if any.
        name_machine: Whether the group's name says on which machine it ran.

    Returns:
        The group. With too few runs for the protocol, it may have both a figure and a problem.
    """
    protocol = options.protocol_of_group(runs)
    result: Score | None = None
    problem = None
    try:
        result = score([run.record for run in runs], protocol, skip=options.skip)
    except TooFewRunsError as error:
        problem = str(error)
        result = error.partial  # the score of the runs that there are; None if these are too few for any
    except InputError as error:
        problem = str(error)
    if result is not None:
        runs = _with_figures(runs, result, protocol)  # of each run, and the lines that they come from
    name = name_of_group(runs[0].record, name_machine=name_machine)
    return Group(name=name, runs=tuple(runs), score=result, problem=problem)


def _with_figures(runs: Sequence[ReportedRun], result: Score, protocol: Protocol) -> list[ReportedRun]:
    """Return the runs in the same order, each with its own figure and the log lines that the figure is from.

    Args:
        runs: Runs of one group.
        result: Score of the group, which has a figure for each run that it counts.
        protocol: Rules by which the group was scored.

    Returns:
        The runs. A score by the rules of MLPerf counts a fixed number of runs; if there are more, the others are
        returned without a figure.
    """
    figure_by_record_id = _figure_by_record_id(result)
    with_figures = []
    for run in runs:
        figure = figure_by_record_id.get(id(run.record))
        if figure is not None:
            run = replace(run, figure=figure, span=_span_of_figure(run.record, figure, protocol))
        with_figures.append(run)
    return with_figures


def _figure_by_record_id(result: Score) -> dict[int, RunFigure]:
    """Return the figure of each run that a score counts, by `id` of the run's record. Records are not hashable.

    Args:
        result: Score of a group of repeated runs.
    """
    figure_by_record_id: dict[int, RunFigure] = {}
    for record, figure in zip(result.records, result.runs, strict=True):
        figure_by_record_id[id(record)] = figure
    return figure_by_record_id


def _span_of_figure(record: Record, figure: RunFigure, protocol: Protocol) -> tuple[int, int]:
    """Return the first and the last line of a log between which the measured windows of a run stand.

    A window is the steps between two printed rows. It stands on the line of the row at its end.

    Args:
        record: The run as its log describes it.
        figure: The run's figure, with the lines that it comes from.
        protocol: Rules by which the run was scored.

    Returns:
        Two line numbers, counted from 1.
    """
    first_line = figure.first_line
    if protocol.over_steps == "between_stamps":
        first_line += 1  # the window of the first line ends where the measurement starts
    elif protocol.over_steps == "epoch_rates":
        # The first line is the end of an epoch. The windows of this epoch stand before it, from the line after the end
        # of the epoch before on.
        ends_of_earlier_epochs = [epoch.line for epoch in record.epochs if epoch.line < first_line]
        first_line = max(ends_of_earlier_epochs, default=0) + 1
    return first_line, figure.last_line


def _groups_of_systems(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups of repeated runs, a list for each system.

    Groups of one system agree in framework, model, precision, kind of devices and the like (`_System`). They may differ
    in their numbers of devices and nodes, their machine and their folder.

    Args:
        groups: Groups of repeated runs.

    Returns:
        The lists. The order of `groups` is kept in each.
    """
    groups_by_system: dict[_System, list[Group]] = {}
    for group in groups:
        groups_by_system.setdefault(_system_of(group.record), []).append(group)
    return list(groups_by_system.values())


def _scaling(systems: Sequence[Sequence[Group]]) -> _Scaling:
    """Return a scaling table for each system with throughputs on several shapes.

    A shape is a number of devices and a number of nodes: 8 devices on 1 node and 8 devices on 2 nodes are two shapes.

    Args:
        systems: The groups of repeated runs of each system, which share framework, model and precision, among others.

    Returns:
        The tables, and a warning for each setting in which the runs of a table differ besides their number of devices,
        such as the versions of their packages, and for each group whose devices do more than those of the base.
    """
    tables = []
    warnings_of_tables: list[Verdict] = []
    for groups in systems:
        rows = scaling_rows(groups)
        shapes = {(row.devices, row.group.record.nodes) for row in rows}
        has_several_shapes = len(shapes) > 1  # several groups may be of one shape, for example of two folders
        if has_several_shapes:
            tables.append(tuple(rows))
            warnings_of_tables += warnings.warn_of_mixed_settings([run.record for run in runs_of(groups)])
            for row in rows:
                warnings_of_tables += warnings.warn_if_over_linear(row.group.name, row.rate_of_a_device)
    return _Scaling(tuple(tables), tuple(warnings_of_tables))


def _groups_in_plots(scaling: _Scaling, groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups of runs that the plots of scaling may show.

    Args:
        scaling: The scaling tables. If there are any, only their groups are returned.
        groups: All groups of the report. Without a table, all are returned. The plots then show a point for each that
            has images/s and a known number of devices.
    """
    groups_in_tables = [row.group for row in itertools.chain.from_iterable(scaling.tables)]
    return groups_in_tables or groups


def _published_curves_of_one_group(groups: Sequence[Group]) -> PublishedCurves:
    """Return published throughput curves to draw with groups of runs: those that fit one of the groups.

    Curves fit a group if they are of its model and kind of precision; none fit one on a CPU. The groups are tried from
    the last to the first, and the first one that has curves decides.

    Args:
        groups: Groups of repeated runs, at least one: system by system, each by ascending number of devices. So the
            group of the most devices of a system is tried before its others.

    Returns:
        The curves and a note on them. If no group has any, there are no curves, and the note says why the last group
        has none.
    """
    published = read_published()
    for group in reversed(groups):
        curves_of_group = published_curves(group.record, published)
        if curves_of_group.curves:
            return curves_of_group
    return published_curves(groups[-1].record, published)


# ------------------------------------------------------------------------------------------------- reading


def _reported_run(number: int, log: GivenLog) -> ReportedRun:
    """Return a run of the report: what is given of its log, and what the log says before the run starts.

    Only an MLPerf log (lines `:::MLLOG {...}`) has header sections and events there.

    Args:
        number: Number of the run in the report, counted from 1.
        log: The log of the run.

    Returns:
        The run, still without a figure.
    """
    entries = _entries_before_run_start(log)
    events = [entry for entry in entries if isinstance(entry, Event)]
    start = NOT_LOGGED
    if events:
        start = Logged(events[0].time_ms / 1000, events[0].line)
    return ReportedRun(
        number=number,
        record=log.record,
        path=log.path,
        given_folder=log.folder,
        header_lines=_lines_of_header(entries),
        start=start,
        preamble=_shown_events(events),
        findings=log.findings,
    )


def _lines_of_header(entries: Sequence[object]) -> dict[str, int]:
    """Return the line of each section of a log's header, by the section's name; the first line if it occurs twice.

    Args:
        entries: Entries of the log, in its order. Those that are not sections of a header are ignored.
    """
    line_by_section: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry, Header):
            line_by_section.setdefault(entry.section, entry.line)
    return line_by_section


def _shown_events(events: Sequence[Event]) -> dict[str, Logged]:
    """Return the values and lines of the events of EVENTS_SHOWN by key. If a key occurs twice, the first counts."""
    shown: dict[str, Logged] = {}
    for event in events:
        if event.key in EVENTS_SHOWN:
            shown.setdefault(event.key, Logged(event.value, event.line))
    return shown


def _entries_before_run_start(log: GivenLog) -> Sequence[object]:
    """Return the entries of an MLPerf log before the run's event `run_start`: header sections, events and problems.

    Args:
        log: The log of the run. The file may hold several runs; only entries of this run are returned.

    Returns:
        The entries in their order, at most PREAMBLE_ENTRIES. Empty for a log of another format.
    """
    if log.record.format != "mllog":
        return []
    segment = log.record.segment  # the first and the last line of the run if the file holds several runs, else None
    first_line = segment[0] if segment else 1
    entries_of_run = (entry for entry in read_log(log.path) if entry.line >= first_line)
    entries: list[object] = []
    for entry in itertools.islice(entries_of_run, PREAMBLE_ENTRIES):
        if isinstance(entry, Event) and entry.key == "run_start":
            break
        entries.append(entry)
    return entries


def read_findings(path: str, records: Sequence[Record]) -> dict[str, JsonObject]:
    """Read a file that `python -m compliance check --json` printed, and return its entry on each run of the report.

    Args:
        path: The JSON file.
        records: The runs of the report, as their logs describe them.

    Returns:
        The entries by the path of the run's log (`Record.file`). A run that was not checked is left out.

    Raises:
        InputError: The file has another form, or has an entry on a log that is not in this report.
    """
    try:
        # Real paths are compared, because the check may have been given the same logs by other names.
        entry_by_real_path = _entries_by_real_path(json.loads(Path(path).read_text("utf-8")))
    except (ValueError, KeyError, TypeError, RecursionError):
        command = f"{called('compliance')} check --json LOG... > {path}"
        raise InputError(f"{path}: no findings; make the file with `{command}`") from None
    entry_by_file = {}
    for record in records:
        entry = entry_by_real_path.pop(os.path.realpath(record.file), None)
        if entry is not None:
            entry_by_file[record.file] = entry
    files_of_no_run = list(entry_by_real_path)  # what the runs have left
    if files_of_no_run:
        other = files_of_no_run[0]
        raise InputError(f"{path}: speaks of {other}, which is not a run of this report; check the same logs")
    return entry_by_file


def _entries_by_real_path(content: Any) -> dict[str, JsonObject]:
    """Return the entries of a JSON output of the compliance check by the real paths of the logs.

    Args:
        content: The output, as parsed from JSON, which may have any form.

    Raises:
        KeyError: The content has another form than that output.
        TypeError: It has another form, for example it is a list.
    """
    by_file = {os.path.realpath(entry["file"]): entry for entry in content["files"]}
    for entry in by_file.values():
        is_entry_of_check = entry["verdict"] in ("pass", "fail") and isinstance(entry["findings"], list)
        if not is_entry_of_check:
            raise KeyError
    return by_file
