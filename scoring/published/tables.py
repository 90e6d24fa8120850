"""The tables of a campaign: our figures, the published ones, and what the publishers' logs give where they differ.

A cell is a throughput of the report's tables. Each cell makes a row here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runlog.digits import six_digits
from runlog.json_types import JsonObject
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score
from scoring.published.plan import Campaign, Job, Run, run_of_cell
from scoring.published.plan_lines import SHRUNK_NOTE
from scoring.published.table import Figure, Published, select
from scoring.record import InputError, Record, TooFewRunsError

UNSHOWN = ("table", "precision", "strategy", "unit", "interval_method", "logs")  # shown in a table's head and notes


def our_figure(job: Job, protocol: Protocol) -> Score | str:
    """Return the score of a job's finished trials, or a text that says why there is none.

    - No finished trial: the text says that the job is skipped, else why a trial does not count, else "not run yet".
    - Fewer trials than the protocol asks for: their score if they make one, else the error's text.
    - Trials that cannot be scored: the error's text.
    """
    if not job.done:
        if job.skipped:
            return f"skipped: {job.skipped}"
        reasons = [reason for reason in job.missing.values() if reason]
        return reasons[0] if reasons else "not run yet"
    try:
        return score(job.done, protocol)
    except TooFewRunsError as error:
        score_of_too_few = error.partial  # None if they make none
        return score_of_too_few or str(error)
    except InputError as error:
        return str(error)


def published_row_by_framework(campaign: Campaign, cell: Published, metric: str) -> dict[str, Published | None]:
    """Return, for each framework of the campaign, the published row of `metric` under the same conditions as `cell`.

    The conditions are accelerator, nodes, devices, batch, strategy and kind of precision. The first row of any version
    of the framework is taken; None if there is none.
    """
    same_columns = ("accelerator", "nodes", "devices", "batch_per_device", "strategy")
    conditions = {name: getattr(cell, name) for name in same_columns}
    kind = _kind_of_precision(cell)
    rows = select(campaign.published, metric=metric, **conditions)
    rows_of_kind = [row for row in rows if _kind_of_precision(row) == kind]

    row_by_framework: dict[str, Published | None] = dict.fromkeys(campaign.frameworks)
    for framework in campaign.frameworks:
        for row in rows_of_kind:
            if row.framework.startswith(framework):  # a version may follow the name
                row_by_framework[framework] = row
                break
    return row_by_framework


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


def table_rows(campaign: Campaign, jobs: Sequence[Job]) -> list[JsonObject]:
    """Return a row of plain values for each cell of the report's tables: our figure, the published ones, their ratio.

    A row has a speedup only if the row of one device comes before it, as it does in reports. `_values_of_row` says what
    the columns hold.
    """
    figure_by_run = {job.run: our_figure(job, campaign.protocol) for job in jobs}
    value_by_reported_run: dict[Run, float | None] = {}  # our values; see below
    rows = []
    for cell in campaign.cells:
        scored_run = run_of_cell(cell, shrink=campaign.shrunk)
        ours = figure_by_run[scored_run]
        # Speedups go by the runs that the report asks for, because cells of 2 and of 8 devices share one shrunk run.
        reported_run = run_of_cell(cell, shrink=False)
        value_by_reported_run[reported_run] = ours.value if isinstance(ours, Score) else None
        same_on_one_device = replace(reported_run, nodes=1, devices=1)
        rows.append(_values_of_row(campaign, cell, scored_run, ours, value_by_reported_run.get(same_on_one_device)))
    return rows


def _values_of_row(
    campaign: Campaign, cell: Published, scored_run: Run, ours: Score | str, our_value_on_one_device: float | None
) -> JsonObject:
    """Return the row of one cell of the report's tables, as plain values by the names of their columns.

    `ours` is our score of the cell, or a text that says why there is none. `scored_run` is the run that was scored,
    which is not the run of the report if the campaign is shrunk. The columns are:

    - the conditions of the run that the report asks for
    - our figure; the published ones by framework; in `log_value` what the publishers' logs give instead
    - the ratio of our figure to the published one, or to that of the publisher's log if it differs
    - speedup and GPU memory, if the report has such figures. Our speedup is None without a figure on one device.
    - the run that was scored, notes on all these figures, and our logs
    """
    value: float | None = None
    records: Sequence[Record] = ()
    if isinstance(ours, Score):
        value = ours.value
        records = ours.records
    unit_by_metric = {published.metric: published.unit for published in campaign.published}

    reported_run = run_of_cell(cell, shrink=False)
    title = (cell.accelerator, reported_run.precision, reported_run.strategy)
    row: JsonObject = {"table": " ".join(part for part in title if part)}
    row |= vars(reported_run)
    row |= _our_columns(ours, unit_by_metric["throughput"])
    row["published"] = published_figure_by_framework(campaign, cell, "throughput")
    row["log_value"] = _log_value_by_framework(campaign, cell)
    row |= _ratio_columns(ours, cell.log_value or cell.value)  # log_value is None unless the log gives another value
    if "speedup" in unit_by_metric:
        row["speedup"] = value / our_value_on_one_device if value and our_value_on_one_device else None
        row["speedup_published"] = published_figure_by_framework(campaign, cell, "speedup")
    if "gpu_memory" in unit_by_metric:
        own_framework = campaign.frameworks[0]
        row["gpu_memory_mib"] = _most_memory_mib(records)
        row["gpu_memory_mib_published"] = published_figure_by_framework(campaign, cell, "gpu_memory")[own_framework]

    row["ran_as"] = scored_run.name
    row["notes"] = [*_notes_on_ours(ours), *_notes_on_published(campaign, cell)]
    row["logs"] = [record.file for record in records]
    return row


def _our_columns(ours: Score | str, unit: str) -> JsonObject:
    """Return the columns of our figure: value, unit, interval, and number of runs.

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


def _ratio_columns(ours: Score | str, published: float) -> JsonObject:
    """Return our figure and the ends of its interval as multiples of the published one; None for what we lack."""
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
    """Return a note for each published figure of a cell that its publisher's own log does not confirm.

    If such a log gives another throughput for the cell itself, a last note says that our ratio is to that value.
    """
    notes = []
    metrics = dict.fromkeys(row.metric for row in campaign.published)  # each once, in their order
    for metric in metrics:
        for row in published_row_by_framework(campaign, cell, metric).values():
            if row is None or row.log_note is None:
                continue
            logged_value = ""
            if row.log_value is not None:
                logged_value = f"its own log gives {six_digits(row.log_value)}: "
            notes.append(f"{_head_of_note(metric, row.printed)} {logged_value}{row.log_note}")
    if cell.log_note and cell.log_value is not None:
        notes.append(f"ratio: against {six_digits(cell.log_value)}, which the publisher's own log gives")
    return notes


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

    `rows` are what `table_rows` returned, and `system` names the machine in the title. Equal notes are listed once, and
    cells refer to them by number.
    """
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol.name}; "ours" was measured here, all else is published.', ""]
    if campaign.shrunk:
        text += [SHRUNK_NOTE, ""]
    if campaign.note:
        text += [campaign.note, ""]

    note_numbers: dict[str, int] = {}  # {text of a note: its number}, from 1
    for row in rows:
        for note in row["notes"]:
            note_numbers.setdefault(note, len(note_numbers) + 1)
    titles = dict.fromkeys(row["table"] for row in rows)  # each once, in their order
    for title in titles:
        shown_rows = [_shown_cells(row, note_numbers) for row in rows if row["table"] == title]
        unit = rows[0]["unit"]  # of all rows: each has a throughput
        text += [f"## {title} ({unit})", "", *_aligned(shown_rows), ""]

    text += ["Notes", ""]
    text += [f"- [{number}]: {note}" for note, number in note_numbers.items()]
    return "\n".join([*text, ""])


def _shown_cells(row: Mapping[str, Any], note_numbers: Mapping[str, int]) -> dict[str, str]:
    """Return a row of `table_rows` as the texts of a page, by the heads of their columns.

    - Published figures become a column for each framework, such as `published PaddlePaddle`.
    - Notes become their numbers in `note_numbers`, which is {text of a note: its number}.
    - `log_value` has no column of its own, because `_published_cell` adds it to the published figure.
    - The columns of UNSHOWN are left out.
    """
    cells = {}
    for name, value in row.items():
        if name == "notes":
            cells[name] = " ".join(f"[{note_numbers[note]}]" for note in value)
        elif name == "published":
            for framework, figure in value.items():
                cells[f"{name} {framework}"] = _published_cell(row, framework, figure, note_numbers)
        elif name == "speedup_published":
            for framework, figure in value.items():
                cells[f"{name} {framework}"] = _shown(figure, "not published")
        elif name == "ours":
            cells[name] = _shown(value, "not measured")
        elif name != "log_value" and name not in UNSHOWN:
            cells[name] = _shown(value)
    return cells


def _published_cell(
    row: Mapping[str, Any], framework: str, figure: Figure | None, note_numbers: Mapping[str, int]
) -> str:
    """Return the text of the published throughput of `framework` in a row of `table_rows`.

    - No published figure: `not published`.
    - A note of the row is about the figure: `2450 (log: 2390.5) [3]` with the value of the publisher's log and the
      note's number, or `2450 [3]` if the log gives no value.
    - Else: `2450`.
    """
    if figure is None:
        return "not published"
    log_value = row["log_value"][framework]
    for note in row["notes"]:
        if note.startswith(_head_of_note("throughput", figure.printed)):
            logged_value = ""
            if log_value is not None:
                logged_value = f" (log: {six_digits(log_value)})"
            return f"{figure.printed}{logged_value} [{note_numbers[note]}]"
    return figure.printed


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """Return the text of a cell of a page.

    - None or an empty text: `nothing`.
    - Any other text: itself.
    - A published figure: its digits as printed.
    - Any other number: its six leading digits.
    - An interval: `1.2 to 1.3`.
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

    The rows are {head of a column: text}, with the same columns each.
    """
    head = {name: name for name in rows[0]}
    widths = dict.fromkeys(head, 0)
    for row in (head, *rows):
        for name in widths:
            widths[name] = max(widths[name], len(row[name]))
    rule = {name: "-" * (width - 1) + ":" for name, width in widths.items()}
    for row in (head, rule, *rows):
        cells = [row[name].rjust(width) for name, width in widths.items()]
        yield f"| {' | '.join(cells)} |"
