"""The tables of a campaign: our figures, the published ones, and what the publishers' logs give where they differ.

A cell is a throughput of the report's tables. Each cell makes a row here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from runlog.digits import six_digits
from runlog.json_types import JsonObject
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score
from scoring.published.plan import Campaign, Job, Run, run_of_cell
from scoring.published.plan_lines import SHRUNK_NOTE
from scoring.published.table import Figure, Published, select
from scoring.record import InputError, Record, TooFewRunsError

UNSHOWN = (
    *("table", "precision", "strategy", "unit", "interval_method", "logs"),  # shown in a table's head and notes
    "log_value",  # shown beside the published figure
)


def our_figure(job: Job, protocol: Protocol) -> Score | str:
    """Return the score of a job's finished trials, or a text that says why there is none.

    If fewer trials are finished than the protocol asks for, they are scored all the same, if the protocol can score so
    few.
    """
    if not job.done:
        if job.skipped:
            return f"skipped: {job.skipped}"
        reasons = [reason for reason in job.missing.values() if reason]  # why the log of a trial does not count
        return reasons[0] if reasons else "not run yet"
    try:
        return score(job.done, protocol)
    except TooFewRunsError as error:
        score_of_too_few = error.partial  # None if the protocol cannot score so few
        return score_of_too_few or str(error)
    except InputError as error:
        return str(error)


def published_row_by_framework(campaign: Campaign, cell: Published, metric: str) -> dict[str, Published | None]:
    """Return {framework of the campaign: its published row of `metric` under the conditions of `cell`, or None}.

    The conditions are the columns in `condition_names` and the kind of precision, such as AMP of any level. If several
    versions of a framework have a row, the first row counts.
    """
    condition_names = ("accelerator", "nodes", "devices", "batch_per_device", "strategy")
    conditions = {name: getattr(cell, name) for name in condition_names}
    kind = _kind_of_precision(cell)
    rows = select(campaign.published, metric=metric, **conditions)
    rows_of_kind = [row for row in rows if _kind_of_precision(row) == kind]

    return {framework: _first_of_framework(rows_of_kind, framework) for framework in campaign.frameworks}


def _first_of_framework(rows: Sequence[Published], framework: str) -> Published | None:
    """Return the first row of a framework, whose name may have a version behind it; None without such a row."""
    return next((row for row in rows if row.framework.startswith(framework)), None)


def _kind_of_precision(row: Published) -> str:
    """Return the kind of a row's precision, its first three letters: `amp_o2` -> `amp`.

    The level of AMP does not count, because many reports do not say which level they used.
    """
    return (row.precision or "")[:3]


def published_figure_by_framework(campaign: Campaign, cell: Published, metric: str) -> dict[str, Figure | None]:
    """Return, for each framework, the published figure of `metric` under the conditions of `cell`; None without one."""
    row_by_framework = published_row_by_framework(campaign, cell, metric)
    figures: dict[str, Figure | None] = dict.fromkeys(row_by_framework)
    for framework, row in row_by_framework.items():
        if row is not None:
            figures[framework] = row.value
    return figures


class _CellResult(NamedTuple):
    """A cell of the report with our figure of it."""

    cell: Published
    reported_run: Run  # the full-size run that the report names for the cell
    ours: Score | str  # our score, or a text that says why there is none


def table_rows(campaign: Campaign, jobs: Sequence[Job]) -> list[JsonObject]:
    """Return a row of plain values for each cell of the report's tables: our figure, the published ones, their ratio.

    A cell is a published throughput.
    """
    results = _results_of_cells(campaign, jobs)
    rows = []
    for result in results:
        value_on_one_device = _our_value_on_one_device(result.reported_run, results)
        rows.append(_row_of_cell(campaign, result.cell, result.ours, value_on_one_device))
    return rows


def _our_value_on_one_device(reported_run: Run, results: Sequence[_CellResult]) -> float | None:
    """Return our figure of the cell whose run differs from this one only in having one device; None if there is none.

    `results` are those of all cells of the report.
    """
    run_on_one_device = replace(reported_run, nodes=1, devices=1)
    for result in results:
        if result.reported_run == run_on_one_device and isinstance(result.ours, Score):
            return result.ours.value
    return None


def _results_of_cells(campaign: Campaign, jobs: Sequence[Job]) -> list[_CellResult]:
    """Return each cell of the report with our figure of it. `jobs` must have the job of every cell.

    In a shrunk campaign this is the figure of a tiny run, which several cells may share.
    """
    ours_by_run_of_job = {job.run: our_figure(job, campaign.protocol) for job in jobs}
    results = []
    for cell in campaign.cells:
        ours = ours_by_run_of_job[run_of_cell(cell, shrink=campaign.shrunk)]
        results.append(_CellResult(cell, run_of_cell(cell, shrink=False), ours))
    return results


def _row_of_cell(
    campaign: Campaign, cell: Published, ours: Score | str, our_value_on_one_device: float | None
) -> JsonObject:
    """Return {name of a column: plain value} for one cell of the report's tables.

    `ours` is our score, or a text that says why there is none. `our_value_on_one_device` is our throughput on one
    device, for the speedup. The columns of speedup and of memory are left out if the report has no such figures.
    """
    reported_run = run_of_cell(cell, shrink=False)  # the run that the report names
    scored_run = run_of_cell(cell, shrink=campaign.shrunk)  # the run that we did: a tiny one in a shrunk campaign
    unit_by_metric = {published.metric: published.unit for published in campaign.published}
    title_parts = (cell.accelerator, reported_run.precision, reported_run.strategy)
    return {
        "table": " ".join(part for part in title_parts if part),
        "nodes": reported_run.nodes,
        "devices": reported_run.devices,
        "batch_per_device": reported_run.batch_per_device,
        "precision": reported_run.precision,
        "strategy": reported_run.strategy,
        **_our_columns(ours, unit_by_metric["throughput"]),
        "published": published_figure_by_framework(campaign, cell, "throughput"),
        "log_value": _log_value_by_framework(campaign, cell),
        **_ratio_columns(ours, cell),
        **_speedup_and_memory_columns(campaign, cell, ours, our_value_on_one_device),
        "ran_as": scored_run.name,
        "notes": [*_notes_on_ours(ours), *_notes_on_published(campaign, cell)],
        "logs": [record.file for record in _records_of(ours)],
    }


def _records_of(ours: Score | str) -> Sequence[Record]:
    """Return the records of the logs that our score was made from; none if there is no score."""
    return ours.records if isinstance(ours, Score) else ()


def _speedup_and_memory_columns(
    campaign: Campaign, cell: Published, ours: Score | str, our_value_on_one_device: float | None
) -> JsonObject:
    """Return the columns of speedup and those of GPU memory, if the report has such figures."""
    published_metrics = {published.metric for published in campaign.published}
    columns: JsonObject = {}
    if "speedup" in published_metrics:
        columns |= _speedup_columns(campaign, cell, ours, our_value_on_one_device)
    if "gpu_memory" in published_metrics:
        columns |= _memory_columns(campaign, cell, _records_of(ours))
    return columns


def _speedup_columns(
    campaign: Campaign, cell: Published, ours: Score | str, our_value_on_one_device: float | None
) -> JsonObject:
    """Return the columns `speedup`, which is ours, and `speedup_published`, which has one for each framework."""
    return {
        "speedup": _our_speedup(ours, our_value_on_one_device),
        "speedup_published": published_figure_by_framework(campaign, cell, "speedup"),
    }


def _memory_columns(campaign: Campaign, cell: Published, records: Sequence[Record]) -> JsonObject:
    """Return the columns of GPU memory in MiB: the most of our runs, and the published one of the first framework."""
    published = published_figure_by_framework(campaign, cell, "gpu_memory")
    return {
        "gpu_memory_mib": _most_memory_mib(records),
        "gpu_memory_mib_published": published[campaign.frameworks[0]],
    }


def _our_speedup(ours: Score | str, our_value_on_one_device: float | None) -> float | None:
    """Return our throughput as a multiple of ours on one device; None if one of the two is missing or 0."""
    if not isinstance(ours, Score) or not ours.value or not our_value_on_one_device:
        return None
    return ours.value / our_value_on_one_device


def _our_columns(ours: Score | str, unit: str) -> JsonObject:
    """Return the columns of our throughput: `ours`, `unit`, `interval_95`, `interval_method`, and `runs`, their number.

    Without a figure the value and the interval are None, there are 0 runs, and the unit is `unit`.
    """
    if isinstance(ours, Score):
        return {
            "ours": ours.value,
            "unit": ours.unit,
            "interval_95": ours.interval_95,
            "interval_method": ours.interval_method,
            "runs": len(ours.records),
        }
    return {"ours": None, "unit": unit, "interval_95": None, "interval_method": None, "runs": 0}


def _ratio_columns(ours: Score | str, cell: Published) -> JsonObject:
    """Return the columns `ratio` and `ratio_95`: our throughput and its 95 % interval / the published throughput.

    If the publisher's own log gives another throughput than its report, the ratios are to the log's. `ratio` is None if
    we have no figure, and `ratio_95` if we have no interval.
    """
    published = cell.log_value or cell.value  # log_value is None unless the log gives another value
    ratios: JsonObject = {"ratio": None, "ratio_95": None}
    if isinstance(ours, Score):
        if ours.value:
            ratios["ratio"] = ours.value / published
        if ours.interval_95:
            ratios["ratio_95"] = [bound / published for bound in ours.interval_95]
    return ratios


def _log_value_by_framework(campaign: Campaign, cell: Published) -> dict[str, float | None]:
    """Return, for each framework, the throughput by the publisher's own log; None unless it differs from the figure."""
    values: dict[str, float | None] = dict.fromkeys(campaign.frameworks)
    for framework, row in published_row_by_framework(campaign, cell, "throughput").items():
        if row and row.log_note:  # published.csv has a note only if the log does not confirm the figure
            values[framework] = row.log_value
    return values


def _notes_on_ours(ours: Score | str) -> list[str]:
    """Return how our interval was made and each warning once, or why there is no figure."""
    if isinstance(ours, str):
        return [ours]
    warned = dict.fromkeys(f"{warning.check}: {warning.found}" for warning in ours.warnings)
    return [f"interval: {ours.interval_method}", *warned]


def _notes_on_published(campaign: Campaign, cell: Published) -> list[str]:
    """Return a note on each published figure that its publisher's own log does not confirm.

    The figures are those of every metric and framework under the conditions of `cell`. A last note says that the ratio
    is to the log's throughput, if the log of `cell` gives another one than the report.
    """
    notes = []
    metrics = dict.fromkeys(row.metric for row in campaign.published)  # each once, in their order
    for metric in metrics:
        rows = published_row_by_framework(campaign, cell, metric).values()
        # `log_note` says how the log does not confirm the figure. It is None if the log does, or if there is no log.
        notes += [_note_on_figure(row) for row in rows if row is not None and row.log_note is not None]
    if cell.log_value is not None:
        notes.append(f"ratio: against {six_digits(cell.log_value)}, which the publisher's own log gives")
    return notes


def _note_on_figure(row: Published) -> str:
    """Return the note on a published figure that its log does not confirm, which begins with `_head_of_note`.

    - The log gives another figure: "published speedup 7.59: its own log gives 7.5: " and how it does not confirm it.
    - It gives none: "published speedup 7.59: " and how it does not confirm it.
    """
    head = _head_of_note(row.metric, row.printed)
    if row.log_value is None:
        return f"{head} {row.log_note}"
    return f"{head} its own log gives {six_digits(row.log_value)}: {row.log_note}"


def _head_of_note(metric: str, printed: str) -> str:
    """Return the words with which a note on a published figure begins: `published throughput 2450:`."""
    return f"published {metric} {printed}:"


def _most_memory_mib(records: Sequence[Record]) -> float | None:
    """Return the most GPU memory that any run took; None if a run does not say it, or there are no runs."""
    most: list[float] = []
    for record in records:
        used = [window.gpu_memory_mib for window in record.windows if window.gpu_memory_mib is not None]
        if not used:
            return None
        most.append(max(used))
    return max(most, default=None)


def markdown(campaign: Campaign, rows: Sequence[JsonObject], *, system: str) -> str:
    """Return the Markdown of a page: a section for each table of the report, then the notes.

    `rows` are what `table_rows` returned, and `system` names the machine. Equal notes are listed once, and cells refer
    to them by number.
    """
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol.name}; "ours" was measured here, all else is published.', ""]
    if campaign.shrunk:
        text += [SHRUNK_NOTE, ""]
    if campaign.note:
        text += [campaign.note, ""]

    note_numbers = _note_numbers(rows)
    titles = dict.fromkeys(row["table"] for row in rows)  # each once, in their order
    for title in titles:
        shown_rows = [_shown_cells(row, note_numbers) for row in rows if row["table"] == title]
        unit = rows[0]["unit"]  # all rows are throughputs, in the same unit
        text += [f"## {title} ({unit})", "", *_aligned(shown_rows), ""]

    text += ["Notes", ""]
    text += [f"- [{number}]: {note}" for note, number in note_numbers.items()]
    return "\n".join([*text, ""])


def _note_numbers(rows: Sequence[JsonObject]) -> dict[str, int]:
    """Return {text of a note: its number on the page, from 1} for all notes of the rows. Equal notes share a number."""
    numbers: dict[str, int] = {}
    for row in rows:
        for note in row["notes"]:
            numbers.setdefault(note, len(numbers) + 1)
    return numbers


def _shown_cells(row: Mapping[str, Any], note_numbers: Mapping[str, int]) -> dict[str, str]:
    """Return {head of a column: text of its cell} for a row of `table_rows`, without the columns of UNSHOWN.

    The published throughputs and speedups, which are one entry of `row` each, become a column for each framework.
    `note_numbers` is {text of a note: its number on the page}.
    """
    cells: dict[str, str] = {}
    for name, value in row.items():
        if name in UNSHOWN:
            continue
        if name == "notes":
            cells["notes"] = " ".join(f"[{note_numbers[note]}]" for note in value)
        elif name == "published":
            for framework, figure in value.items():
                cells[f"published {framework}"] = _published_cell(row, framework, figure, note_numbers)
        elif name == "speedup_published":
            for framework, figure in value.items():
                cells[f"speedup_published {framework}"] = _shown(figure, "not published")
        elif name == "ours":
            cells["ours"] = _shown(value, "not measured")
        else:
            cells[name] = _shown(value)
    return cells


def _published_cell(
    row: Mapping[str, Any], framework: str, figure: Figure | None, note_numbers: Mapping[str, int]
) -> str:
    """Return the text of a framework's published throughput, which is `figure`, in a row of `table_rows`.

    - `not published`: there is no figure
    - `2450`: there is no note that the publisher's log does not confirm the figure
    - `2450 [3]`: note 3 says how the log does not confirm it
    - `2450 (log: 2390.5) [3]`: and the log gives another value
    """
    if figure is None:
        return "not published"
    note = _note_on_throughput(figure, row["notes"])
    if note is None:
        return figure.printed
    log_value = row["log_value"][framework]
    if log_value is None:
        return f"{figure.printed} [{note_numbers[note]}]"
    return f"{figure.printed} (log: {six_digits(log_value)}) [{note_numbers[note]}]"


def _note_on_throughput(figure: Figure, notes: Sequence[str]) -> str | None:
    """Return the note on a published throughput, which begins with `_head_of_note`; None if there is none."""
    for note in notes:
        if note.startswith(_head_of_note("throughput", figure.printed)):
            return note
    return None


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """Return the text of a cell of a page; `nothing` for None or an empty text.

    A published figure keeps its printed digits, and any other number has at most six. An interval becomes `1.2 to 1.3`.
    """
    if value is None or isinstance(value, str):
        return value or nothing
    if isinstance(value, Figure):
        return value.printed
    if isinstance(value, int | float):
        return six_digits(value)
    return " to ".join(_shown(bound) for bound in value)


def _aligned(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: head, rule, and rows, with columns as wide as their widest cell.

    The rows are {head of a column: text}, all with the same columns.
    """
    head = {name: name for name in rows[0]}
    widths = dict.fromkeys(head, 0)
    for row in (head, *rows):
        for name in widths:
            widths[name] = max(widths[name], len(row[name]))
    rule = {name: "-" * (width - 1) + ":" for name, width in widths.items()}  # the colon sets a column flush right
    for row in (head, rule, *rows):
        cells = [row[name].rjust(width) for name, width in widths.items()]
        yield f"| {' | '.join(cells)} |"
