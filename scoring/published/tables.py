"""The tables of a campaign: our figures, the published ones, and what the publishers' logs give where they differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runlog.digits import six_digits
from runlog.json_types import JsonObject
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score
from scoring.published.plan import SHRUNK_NOTE, Campaign, Job, Run, run_of
from scoring.published.table import Figure, Published, select
from scoring.record import InputError, Record, TooFewRunsError

UNSHOWN = ("table", "precision", "strategy", "unit", "interval_method", "logs")  # shown in a table's head and notes


def figure_of(job: Job, protocol: Protocol) -> Score | str:
    """Return the score of a job's trials that are done, or a text that says why there is none.

    The text says that the job is skipped, what is wrong with its first trial that does not count, that it was not run
    yet, or why its trials cannot be scored. Fewer trials than the protocol asks for have a score, if they make one.
    """
    if not job.done and job.skipped:
        return f"skipped: {job.skipped}"
    if not job.done:
        reasons = [reason for reason in job.missing.values() if reason]
        return reasons[0] if reasons else "not run yet"
    try:
        return score(job.done, protocol)
    except TooFewRunsError as error:
        return error.partial or str(error)
    except InputError as error:
        return str(error)


def published_rows(campaign: Campaign, cell: Published, metric: str) -> dict[str, Published | None]:
    """Return for each framework of the campaign the report's row of a metric that was measured as a cell was.

    A cell is the report's throughput at one place of its table. The row agrees with it in devices, batch and the like,
    and in the kind of precision. It is the first such row of any version of the framework; None where there is none.
    """
    same = ("accelerator", "nodes", "devices", "batch_per_device", "strategy")
    conditions = {name: getattr(cell, name) for name in same}
    kind = _kind_of_precision(cell)
    rows = select(campaign.published, metric=metric, **conditions)
    rows_of_kind = [row for row in rows if _kind_of_precision(row) == kind]

    by_framework: dict[str, Published | None] = dict.fromkeys(campaign.frameworks)
    for framework in campaign.frameworks:
        for row in rows_of_kind:
            if row.framework.startswith(framework):
                by_framework[framework] = row
                break
    return by_framework


def _kind_of_precision(row: Published) -> str:
    """Return the kind of a row's precision, which is its first three letters: `amp_o2` -> `amp`.

    The level is left out, as reports say AMP where they mean one of its levels, or do not know which.
    """
    return (row.precision or "")[:3]


def published_figures(campaign: Campaign, cell: Published, metric: str) -> dict[str, Figure | None]:
    """Return the published figure of a metric for each framework, measured as a cell was; None where there is none."""
    rows = published_rows(campaign, cell, metric)
    figures: dict[str, Figure | None] = dict.fromkeys(rows)
    for framework, row in rows.items():
        if row is not None:
            figures[framework] = row.value
    return figures


def table(campaign: Campaign, jobs: Sequence[Job]) -> list[JsonObject]:
    """Return a row of plain values for each cell of the report's tables: our figure, the published ones, their ratio.

    A cell without a figure of ours says why in `notes`; a framework without a published one has None. Where the
    publisher's own log gives another figure, `log_value` has it, a note says how, and `ratio` is taken against it.
    The figure on one device, to which a speedup is taken, must come before those on more, as it does in reports: else
    a row has no speedup.
    """
    figures = {job.run: figure_of(job, campaign.protocol) for job in jobs}
    our_values: dict[Run, float | None] = {}  # by the run that the report asks for, which is not the shrunk one
    rows = []
    for cell in campaign.cells:
        reported_run = run_of(cell, shrink=False)
        run = run_of(cell, shrink=campaign.shrunk)
        figure = figures[run]
        our_values[reported_run] = figure.value if isinstance(figure, Score) else None
        same_on_one_device = replace(reported_run, nodes=1, devices=1)
        rows.append(_values_of_row(campaign, cell, run, figure, our_values.get(same_on_one_device)))
    return rows


def _values_of_row(
    campaign: Campaign, cell: Published, run: Run, figure: Score | str, on_one_device: float | None
) -> JsonObject:
    """Return the row of one cell of a report's table, as plain values by the names of their columns.

    The first columns are the conditions of the run that the report asks for. `run` is the one that ran, which is
    another where the campaign is shrunk: the column `ran_as` names it. `figure` is our score of `run`, or why there is
    none. `on_one_device` is our figure on one device, for the speedup; None where there is none. Columns for speedup
    and memory are there only where the report has such figures.
    """
    value: float | None = None
    records: Sequence[Record] = ()
    if isinstance(figure, Score):
        value = figure.value
        records = figure.records
    units = {published.metric: published.unit for published in campaign.published}

    reported_run = run_of(cell, shrink=False)
    title = (cell.accelerator, reported_run.precision, reported_run.strategy)
    row: JsonObject = {"table": " ".join(part for part in title if part)}
    row |= vars(reported_run)
    row |= _ours(figure, units["throughput"])
    row["published"] = published_figures(campaign, cell, "throughput")
    row["log_value"] = _log_values(campaign, cell)
    row |= _ratio(figure, cell.log_value or cell.value)  # what the publisher's own log gives counts more
    if "speedup" in units:
        row["speedup"] = value / on_one_device if value and on_one_device else None
        row["speedup_published"] = published_figures(campaign, cell, "speedup")
    if "gpu_memory" in units:
        own_framework = campaign.frameworks[0]
        row["gpu_memory_mib"] = _memory_mib(records)
        row["gpu_memory_mib_published"] = published_figures(campaign, cell, "gpu_memory")[own_framework]

    row["ran_as"] = run.name
    row["notes"] = [*_notes_on_ours(figure), *_notes_on_published(campaign, cell)]
    row["logs"] = [record.file for record in records]
    return row


def _ours(figure: Score | str, unit: str) -> JsonObject:
    """Return our figure with its unit and interval; None for each of them where there is no figure."""
    if isinstance(figure, Score):
        return {
            "ours": figure.value,
            "unit": figure.unit,
            "interval_95": figure.interval_95,
            "interval_method": figure.interval_method,
            "runs": len(figure.records),
        }
    return {"ours": None, "unit": unit, "interval_95": None, "interval_method": None, "runs": 0}


def _ratio(figure: Score | str, reference: float) -> JsonObject:
    """Return our figure and the ends of its interval as multiples of the published `reference`."""
    ratios: JsonObject = {"ratio": None, "ratio_95": None}
    if isinstance(figure, Score):
        if figure.value:
            ratios["ratio"] = figure.value / reference
        if figure.interval_95:
            ratios["ratio_95"] = [bound / reference for bound in figure.interval_95]
    return ratios


def _log_values(campaign: Campaign, cell: Published) -> dict[str, float | None]:
    """Return by framework what the publisher's own log gives where it does not bear the figure out."""
    values: dict[str, float | None] = dict.fromkeys(campaign.frameworks)
    for framework, row in published_rows(campaign, cell, "throughput").items():
        if row and row.log_note:
            values[framework] = row.log_value
    return values


def _notes_on_ours(figure: Score | str) -> list[str]:
    """Return how our interval was made and each warning once, or why there is no figure."""
    if isinstance(figure, str):
        return [figure]
    warned = dict.fromkeys(f"{warning.check}: {warning.found}" for warning in figure.warnings)
    return [f"interval: {figure.interval_method}", *warned]


def _notes_on_published(campaign: Campaign, cell: Published) -> list[str]:
    """Return a text for each published figure of a cell that its publisher's own logs do not bear out.

    Where such a log gives another throughput, a last text says that our ratio is taken against that one.
    """
    notes = []
    metrics = dict.fromkeys(row.metric for row in campaign.published)  # each once, in their order
    for metric in metrics:
        for row in published_rows(campaign, cell, metric).values():
            if row is None or row.log_note is None:
                continue
            by_log = ""
            if row.log_value is not None:
                by_log = f"its own log gives {six_digits(row.log_value)}: "
            notes.append(f"published {metric} {row.printed}: {by_log}{row.log_note}")
    if cell.log_note and cell.log_value is not None:
        notes.append(f"ratio: against {six_digits(cell.log_value)}, which the publisher's own log gives")
    return notes


def _memory_mib(records: Sequence[Record]) -> float | None:
    """Return the most GPU memory that any run took; None where one of them does not say."""
    most: list[float] = []
    for record in records:
        used = [window.gpu_memory_mib for window in record.windows if window.gpu_memory_mib is not None]
        if not used:
            return None
        most.append(max(used))
    return max(most, default=None)


def markdown(campaign: Campaign, rows: Sequence[JsonObject], *, system: str) -> str:
    """Return the Markdown of a page: a section for each table of the report, then the notes.

    `rows` are what `table` returned, and `system` names the machine in the title. Equal notes are listed
    once, and cells refer to them by number.
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
    """Return a row of `table` as texts for a page, by the heads of their columns.

    Published figures have a column for each framework, such as `published PaddlePaddle`. Notes are shown by their
    numbers, which `note_numbers` has by their texts. Left out are the columns of UNSHOWN, and `log_value`, which stands
    beside the published figure.
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
    """Return the text of a published figure: `2450`, or `2450 (log: 2390.5) [3]` where note 3 says how its log differs.

    `row` is the row of `table` that the figure of `framework` stands in. The log's figure is left out where it has
    none. A framework without a figure is `not published`.
    """
    if figure is None:
        return _shown(figure, "not published")
    for note in row["notes"]:
        if note.startswith(f"published throughput {figure.printed}:"):  # as `_notes_on_published` words it
            by_log = ""
            if row["log_value"][framework] is not None:
                by_log = f" (log: {six_digits(row['log_value'][framework])})"
            return f"{figure.printed}{by_log} [{note_numbers[note]}]"
    return figure.printed


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """Return the text of a cell: a figure with six digits, a published one as printed, an interval as `1.2 to 1.3`.

    A text is returned as it is; `nothing` stands for None and for an empty text.
    """
    if value is None or isinstance(value, str):
        return value or nothing
    if isinstance(value, Figure):
        return value.printed
    if isinstance(value, int | float):
        return six_digits(value)
    return " to ".join(_shown(bound) for bound in value)


def _aligned(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table whose columns are as wide as their widest cell."""
    head = {name: name for name in rows[0]}
    widths = dict.fromkeys(head, 0)
    for row in (head, *rows):
        for name in widths:
            widths[name] = max(widths[name], len(row[name]))
    rule = {name: "-" * (width - 1) + ":" for name, width in widths.items()}
    for row in (head, rule, *rows):
        cells = [row[name].rjust(width) for name, width in widths.items()]
        yield f"| {' | '.join(cells)} |"
