"""The tables of a campaign: our figures, the published ones, and what the publishers' logs give where they differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runlog.json_types import JsonObject
from scoring.digits import six_digits
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score
from scoring.published.plan import SHRUNK_NOTE, Campaign, Job, Run, run_of
from scoring.published.table import Figure, Published, select
from scoring.record import InputError, Record, TooFewRunsError

UNSHOWN = ("table", "precision", "strategy", "unit", "interval_method", "logs")  # shown in a table's head and notes


def figure_of(job: Job, protocol: Protocol) -> Score | str:
    """Return the score of a job's trials that are done, or a text that says why there is none.

    Where they are fewer than the protocol asks for it is the score of those, if they make one.
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
    """Return the report's rows of a metric, such as throughput, that were measured as a cell of its table was.

    The rows are by the campaign's frameworks: for each the first row of it, whatever its version, or None where the
    report has none. Such rows agree with the cell in devices, batch and the like, and in the kind of precision.
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
    """Return the precision of a row by its first three letters, such as `amp` of `amp_o2`.

    Reports say AMP where they mean one of its levels, or do not know which.
    """
    return (row.precision or "")[:3]


def published_figures(campaign: Campaign, cell: Published, metric: str) -> dict[str, Figure | None]:
    """Return the published figure of a cell by framework; None where the report has none."""
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
    """
    figures = {job.run: figure_of(job, campaign.protocol) for job in jobs}
    our_values: dict[Run, float | None] = {}  # by the run that the report asks for, which is not the shrunk one
    lines = []
    for cell in campaign.cells:
        reported_run = run_of(cell, shrink=False)
        run = run_of(cell, shrink=campaign.shrunk)
        figure = figures[run]
        our_values[reported_run] = figure.value if isinstance(figure, Score) else None
        same_on_one_device = replace(reported_run, nodes=1, devices=1)
        lines.append(_line(campaign, cell, run, figure, our_values.get(same_on_one_device)))
    return lines


def _line(campaign: Campaign, cell: Published, run: Run, figure: Score | str, one_device: float | None) -> JsonObject:
    """Return the row of one cell of a report's table, as plain values by the names of their columns.

    `figure` is our score of `run`, or why there is none. `one_device` is our figure on one device, for the speedup.
    Columns for speedup and memory are there only where the report has such figures.
    """
    value = None
    records: Sequence[Record] = ()
    if isinstance(figure, Score):
        value = figure.value
        records = figure.records
    units = {row.metric: row.unit for row in campaign.published}

    reported_run = run_of(cell, shrink=False)
    title = (cell.accelerator, reported_run.precision, reported_run.strategy)
    line: JsonObject = {"table": " ".join(part for part in title if part)}
    line |= vars(reported_run)
    line |= _ours(figure, units["throughput"])
    line["published"] = published_figures(campaign, cell, "throughput")
    line["log_value"] = _log_values(campaign, cell)
    line |= _ratio(figure, cell.log_value or cell.value)
    if "speedup" in units:
        line["speedup"] = value / one_device if value and one_device else None
        line["speedup_published"] = published_figures(campaign, cell, "speedup")
    if "gpu_memory" in units:
        own_framework = campaign.frameworks[0]
        line["gpu_memory_mib"] = _memory_mib(records)
        line["gpu_memory_mib_published"] = published_figures(campaign, cell, "gpu_memory")[own_framework]

    line["ran_as"] = run.name
    line["notes"] = [*_notes_on_ours(figure), *_notes_on_published(campaign, cell)]
    line["logs"] = [record.file for record in records]
    return line


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

    A last one says where our ratio is taken against the log's figure rather than the printed one.
    """
    notes = []
    metrics = dict.fromkeys(row.metric for row in campaign.published)
    for metric in metrics:
        for row in published_rows(campaign, cell, metric).values():
            if row is None or row.log_note is None:
                continue
            log = ""
            if row.log_value is not None:
                log = f"its own log gives {six_digits(row.log_value)}: "
            notes.append(f"published {metric} {row.printed}: {log}{row.log_note}")
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


def markdown(campaign: Campaign, lines: Sequence[JsonObject], *, system: str) -> str:
    """Return the rows of `table` as the Markdown of a page: a section for each table of the report, then the notes.

    `system` names the machine in the title. Equal notes are listed once, and cells refer to them by number.
    """
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol.name}; "ours" was measured here, all else is published.', ""]
    if campaign.shrunk:
        text += [SHRUNK_NOTE, ""]
    if campaign.note:
        text += [campaign.note, ""]

    numbers: dict[str, int] = {}  # of the notes, by their texts
    for line in lines:
        for note in line["notes"]:
            numbers.setdefault(note, len(numbers) + 1)
    titles = dict.fromkeys(line["table"] for line in lines)
    for title in titles:
        rows = [_row(line, numbers) for line in lines if line["table"] == title]
        text += [f"## {title} ({lines[0]['unit']})", "", *_aligned(rows), ""]

    text += ["Notes", ""]
    text += [f"- [{number}]: {note}" for note, number in numbers.items()]
    return "\n".join([*text, ""])


def _row(line: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, str]:
    """Return a row of `table` as texts for a page, by the heads of their columns.

    What is published has a column for each framework, such as `published PaddlePaddle`. `numbers` are those of the
    notes, by their texts.
    """
    row = {}
    for name, value in line.items():
        if name == "notes":
            row[name] = " ".join(f"[{numbers[note]}]" for note in value)
        elif name == "published":
            for framework, figure in value.items():
                row[f"{name} {framework}"] = _published_cell(line, framework, figure, numbers)
        elif name == "speedup_published":
            for framework, figure in value.items():
                row[f"{name} {framework}"] = _shown(figure, "not published")
        elif name != "log_value" and name not in UNSHOWN:
            row[name] = _shown(value, "not measured" if name == "ours" else "-")
    return row


def _published_cell(line: Mapping[str, Any], framework: str, figure: Figure | None, numbers: Mapping[str, int]) -> str:
    """Return the text of a published figure: `2450`, or `2450 (log: 2390.5) [3]` where note 3 says that logs differ.

    `line` is the row of `table` that the figure of `framework` stands in. `numbers` are those of the notes.
    """
    if figure is None:
        return _shown(figure, "not published")
    shown = _shown(figure)
    for note in line["notes"]:
        if note.startswith(f"published throughput {figure.printed}:"):
            log_value = line["log_value"][framework]
            if log_value is not None:
                shown += f" (log: {six_digits(log_value)})"
            return f"{shown} [{numbers[note]}]"
    return shown


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """Return a figure, a published one as printed, both ends of an interval, or `nothing`."""
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
