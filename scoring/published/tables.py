"""The tables of a campaign: our figures, the published ones, and what the publishers' logs give where they differ.

Each throughput that the campaign measures again makes a row. Figures of other metrics and frameworks that the report
has under the same conditions, such as 8 devices and batch 128, are columns of this row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from runlog.digits import six_digits
from runlog.json_types import JsonObject
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score
from scoring.published.plan import Campaign, Job, Run, run_that_repeats
from scoring.published.plan_lines import SHRUNK_NOTE
from scoring.published.table import Figure, Published, select
from scoring.record import InputError, Record, TooFewRunsError

UNSHOWN = (
    *("table", "precision", "strategy", "unit", "interval_method", "logs"),  # shown in a table's head and notes
    "log_value",  # shown next to the published figure
)


def our_figure(job: Job, protocol: Protocol) -> Score | str:
    """Return the score of the finished trials of one benchmark run, or a text that says why there is none.

    If fewer trials are finished than the protocol asks for, they are scored all the same, if the protocol can score so
    few.

    Args:
        job: The run, with its trials that are done or missing.
        protocol: How trials become one figure.
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


def published_row_by_framework(campaign: Campaign, throughput: Published, metric: str) -> dict[str, Published | None]:
    """Return what a report has of one metric under the conditions of one of its throughputs, for each framework.

    A throughput of Paddle on 8 devices and the metric "speedup" give the speedups of Paddle and of OneFlow on 8
    devices, for example.

    Args:
        campaign: The campaign, with the figures of the report and the names of the frameworks.
        throughput: The throughput, whose conditions count: accelerator, nodes, devices and more.
        metric: What the returned figures are of: "throughput", "speedup" or "gpu_memory", for example.

    Returns:
        The figures, which are rows of published.csv, by framework; None for a framework without one.
    """
    condition_names = ("accelerator", "nodes", "devices", "batch_per_device", "strategy")
    conditions = {name: getattr(throughput, name) for name in condition_names}
    kind = _kind_of_precision(throughput)  # "amp" for AMP of any level
    rows = select(campaign.figures_of_report, metric=metric, **conditions)
    rows_of_kind = [row for row in rows if _kind_of_precision(row) == kind]
    # Of several versions of a framework, the first one in the report counts.
    return {framework: _first_of_framework(rows_of_kind, framework) for framework in campaign.frameworks}


def _first_of_framework(rows: Sequence[Published], framework: str) -> Published | None:
    """Return the first published figure of a framework, or None if there is none.

    Args:
        rows: Published figures.
        framework: Beginning of the framework's name, such as "Paddle"; a version may stand behind it.
    """
    return next((row for row in rows if row.framework.startswith(framework)), None)


def _kind_of_precision(row: Published) -> str:
    """Return the kind of a figure's precision, which is its first three letters: "amp_o2" gives "amp".

    The level of AMP does not count, because many reports do not say which level they used.

    Args:
        row: The published figure. The result is an empty text if it states no precision.
    """
    return (row.precision or "")[:3]


def published_figure_by_framework(campaign: Campaign, throughput: Published, metric: str) -> dict[str, Figure | None]:
    """Return the numbers that a report prints of one metric under the conditions of one of its throughputs.

    Args:
        campaign: The campaign, with the figures of the report and the names of the frameworks.
        throughput: The throughput, whose conditions count: devices, batch size and more.
        metric: What the numbers are of: "throughput", "speedup" or "gpu_memory", for example.

    Returns:
        The number with its printed digits, by framework; None for a framework without one.
    """
    row_by_framework = published_row_by_framework(campaign, throughput, metric)
    figures: dict[str, Figure | None] = dict.fromkeys(row_by_framework)
    for framework, row in row_by_framework.items():
        if row is not None:
            figures[framework] = row.value
    return figures


class _Result(NamedTuple):
    """A published throughput with our figure of it."""

    throughput: Published
    reported_run: Run  # of full size, under the conditions that the report states
    scored_run: Run  # the campaign's: the same one, or a tiny one on the CPU if the campaign is shrunk
    ours: Score | str  # our score, or a text that says why there is none


def table_rows(campaign: Campaign, jobs: Sequence[Job]) -> list[JsonObject]:
    """Return a row for each published throughput that a campaign measures again, as plain values by column.

    A row has our figure, the published ones, and their ratio. If the report has speedups, the row has ours, too: our
    throughput / our throughput on one device.

    Args:
        campaign: The campaign. Its `throughputs` are the throughputs that its runs measure again.
        jobs: Each run with its trials, which repeat it. There must be a run for each of the throughputs.
    """
    results = _results_of_throughputs(campaign, jobs)
    rows = []
    for result in results:
        value_on_one_device = _our_value_on_one_device(result.reported_run, results)  # for the speedup
        rows.append(_row_of_throughput(campaign, result, value_on_one_device))
    return rows


def _our_value_on_one_device(reported_run: Run, results: Sequence[_Result]) -> float | None:
    """Return our throughput in the run that differs from a given one only in having one device.

    Args:
        reported_run: The given run.
        results: Our figure for each throughput in the report's tables.

    Returns:
        The throughput, or None if there is no such run or it has no score.
    """
    run_on_one_device = replace(reported_run, nodes=1, devices=1)
    for result in results:
        if result.reported_run == run_on_one_device and isinstance(result.ours, Score):
            return result.ours.value
    return None


def _results_of_throughputs(campaign: Campaign, jobs: Sequence[Job]) -> list[_Result]:
    """Return each published throughput that a campaign measures again, with our figure of it.

    Args:
        campaign: The campaign.
        jobs: Its runs with their trials: for each of the throughputs the run that measures it again.
    """
    ours_by_run = {job.run: our_figure(job, campaign.protocol) for job in jobs}
    results = []
    for throughput in campaign.throughputs:
        reported_run = run_that_repeats(throughput, shrink=False)
        scored_run = run_that_repeats(throughput, shrink=campaign.shrunk)
        results.append(_Result(throughput, reported_run, scored_run, ours=ours_by_run[scored_run]))
    return results


def _row_of_throughput(campaign: Campaign, result: _Result, our_value_on_one_device: float | None) -> JsonObject:
    """Return the row that compares a published throughput with our own, as plain values by column.

    The conditions, such as "nodes" and "devices", are those of the report, even if ours was a tiny run on the CPU.

    Args:
        campaign: The campaign, with the figures of the report.
        result: The published throughput with our figure of it.
        our_value_on_one_device: Our throughput on one device, by which ours is divided for the speedup; None if there
            is none.
    """
    throughput = result.throughput
    reported_run = result.reported_run
    ours = result.ours
    unit_by_metric = {figure.metric: figure.unit for figure in campaign.figures_of_report}
    title_parts = (throughput.accelerator, reported_run.precision, reported_run.strategy)
    return {
        "table": " ".join(part for part in title_parts if part),
        "nodes": reported_run.nodes,
        "devices": reported_run.devices,
        "batch_per_device": reported_run.batch_per_device,
        "precision": reported_run.precision,
        "strategy": reported_run.strategy,
        **_our_columns(ours, unit_by_metric["throughput"]),
        "published": published_figure_by_framework(campaign, throughput, "throughput"),
        "log_value": _log_value_by_framework(campaign, throughput),
        **_ratio_columns(ours, throughput),
        **_speedup_and_memory_columns(campaign, throughput, ours, our_value_on_one_device),
        "ran_as": result.scored_run.name,
        "notes": [*_notes_on_ours(ours), *_notes_on_published(campaign, throughput)],
        "logs": [record.file for record in _records_of(ours)],
    }


def _records_of(ours: Score | str) -> Sequence[Record]:
    """Return what the logs say that our score was made from.

    Args:
        ours: Our score, or a text that says why there is none. Then the result is empty.
    """
    return ours.records if isinstance(ours, Score) else ()


def _speedup_and_memory_columns(
    campaign: Campaign, throughput: Published, ours: Score | str, our_value_on_one_device: float | None
) -> JsonObject:
    """Return the columns of speedup and of GPU memory in the row of a throughput: ours and the published ones.

    Args:
        campaign: The campaign, with the figures of the report.
        throughput: The published throughput of the row.
        ours: Our score of the run that measures it again, or a text that says why there is none.
        our_value_on_one_device: Our throughput on one device, or None if there is none.
    """
    metrics_of_report = {figure.metric for figure in campaign.figures_of_report}
    columns: JsonObject = {}
    if "speedup" in metrics_of_report:  # the columns are in all rows of a campaign, or in none
        columns |= _speedup_columns(campaign, throughput, ours, our_value_on_one_device)
    if "gpu_memory" in metrics_of_report:
        columns |= _memory_columns(campaign, throughput, _records_of(ours))  # no records if `ours` is a text
    return columns


def _speedup_columns(
    campaign: Campaign, throughput: Published, ours: Score | str, our_value_on_one_device: float | None
) -> JsonObject:
    """Return the columns `speedup`, which is ours, and `speedup_published`, which has one for each framework.

    Args:
        campaign: The campaign, which measures a report's figures again.
        throughput: The published throughput of the row.
        ours: Our score of the run that measures it again, or a text that says why there is none.
        our_value_on_one_device: Our throughput on one device, or None if there is none.
    """
    return {
        "speedup": _our_speedup(ours, our_value_on_one_device),
        "speedup_published": published_figure_by_framework(campaign, throughput, "speedup"),
    }


def _memory_columns(campaign: Campaign, throughput: Published, records: Sequence[Record]) -> JsonObject:
    """Return two columns of GPU memory in MiB: the most that our runs took, and the published memory to compare with.

    The published memory is of the campaign's first framework, because our runs repeat the measurements of this one.
    The memory was published under the same conditions as the throughput of the row, such as devices and batch size.

    Args:
        campaign: The campaign: our runs that repeat the measurements of a report.
        throughput: The published throughput of the row.
        records: What the logs of our runs say.

    Returns:
        `gpu_memory_mib` is None if there are no logs, or if one of them does not say the memory.
        `gpu_memory_mib_published` is None if the report does not have it.
    """
    memory_by_framework = published_figure_by_framework(campaign, throughput, "gpu_memory")
    first_framework = campaign.frameworks[0]
    return {
        "gpu_memory_mib": _most_memory_mib(records),
        "gpu_memory_mib_published": memory_by_framework[first_framework],
    }


def _our_speedup(ours: Score | str, our_value_on_one_device: float | None) -> float | None:
    """Return our throughput as a multiple of our throughput on one device.

    Args:
        ours: Our score, or a text that says why there is none.
        our_value_on_one_device: Our throughput on one device, or None if there is none.

    Returns:
        The speedup, or None if one of the two is missing or 0.
    """
    if not isinstance(ours, Score) or not ours.value or not our_value_on_one_device:
        return None
    return ours.value / our_value_on_one_device


def _our_columns(ours: Score | str, unit: str) -> JsonObject:
    """Return the columns of our throughput: `ours`, `unit`, `interval_95`, `interval_method` and `runs`.

    `runs` is the number of our runs. Without a score it is 0, and value and interval are None.

    Args:
        ours: Our score, or a text that says why there is none.
        unit: Unit of the published throughputs, which is shown if there is no score.
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


def _ratio_columns(ours: Score | str, throughput: Published) -> JsonObject:
    """Return our throughput and its 95 % interval, both divided by the published throughput.

    Args:
        ours: Our score, or a text that says why there is none.
        throughput: The published throughput. If the publisher's own log gives another value than the report, ours is
            divided by the value of the log.

    Returns:
        The columns `ratio` and `ratio_95`, which is a list of two bounds. `ratio` is None if we have no figure, and
        `ratio_95` if we have no interval.
    """
    published = (
        throughput.log_value or throughput.value
    )  # log_value is None if the log confirms the value, or gives none
    ratios: JsonObject = {"ratio": None, "ratio_95": None}
    if isinstance(ours, Score):
        if ours.value:
            ratios["ratio"] = ours.value / published
        if ours.interval_95:
            ratios["ratio_95"] = [bound / published for bound in ours.interval_95]
    return ratios


def _log_value_by_framework(campaign: Campaign, throughput: Published) -> dict[str, float | None]:
    """Return the throughputs that publishers' own logs give where they do not confirm the published ones.

    Args:
        campaign: The campaign, with the figures of the report and the names of the frameworks.
        throughput: A published throughput, whose conditions count: devices, batch size and more.

    Returns:
        The logs' images/s by framework, such as {"Paddle": 2390.5, "OneFlow": None}. None stands for a framework
        without such a value.
    """
    values: dict[str, float | None] = dict.fromkeys(campaign.frameworks)
    for framework, row in published_row_by_framework(campaign, throughput, "throughput").items():
        if row and row.log_note:  # the note says how the log does not confirm the throughput
            values[framework] = row.log_value  # None if the log gives no value, but only other conditions
    return values


def _notes_on_ours(ours: Score | str) -> list[str]:
    """Return how our confidence interval was made and each warning once, or why there is no figure.

    Args:
        ours: Our score, or a text that says why there is none.
    """
    if isinstance(ours, str):
        return [ours]
    warned = dict.fromkeys(f"{warning.check}: {warning.found}" for warning in ours.warnings)
    return [f"interval: {ours.interval_method}", *warned]


def _notes_on_published(campaign: Campaign, throughput: Published) -> list[str]:
    """Return notes on those published figures of a throughput's row that their publisher's own log does not confirm.

    Args:
        campaign: The campaign, with the figures of the report.
        throughput: The published throughput of the row. The row has the figures of each metric and framework under its
            conditions, such as 8 devices and batch 128.
    """
    notes = []
    metrics = dict.fromkeys(figure.metric for figure in campaign.figures_of_report)  # each once, in their order
    for metric in metrics:
        figure_by_framework = published_row_by_framework(campaign, throughput, metric)
        for figure in figure_by_framework.values():
            # `log_note` says how the log does not confirm the figure: by another value, or by other conditions.
            if figure is not None and figure.log_note is not None:
                notes.append(_note_on_figure(figure))
    if throughput.log_value is not None:  # then `_ratio_columns` divides by it
        notes.append(f"ratio: against {six_digits(throughput.log_value)}, which the publisher's own log gives")
    return notes


def _note_on_figure(row: Published) -> str:
    """Return the note on a published figure that the log of its publisher does not confirm.

    The note begins "published speedup 7.59: ", or "published speedup 7.59: its own log gives 7.5: " if the log gives a
    value (`log_value`). Then it says how the log does not confirm the figure (`log_note`).

    Args:
        row: The published figure.
    """
    head = _head_of_note(row.metric, row.printed)
    if row.log_value is None:
        return f"{head} {row.log_note}"
    return f"{head} its own log gives {six_digits(row.log_value)}: {row.log_note}"


def _head_of_note(metric: str, printed: str) -> str:
    """Return the words with which a note on a published figure begins: `published throughput 2450:`.

    Args:
        metric: What the figure is of, such as "throughput".
        printed: The figure as it is printed, such as "2450".
    """
    return f"published {metric} {printed}:"


def _most_memory_mib(records: Sequence[Record]) -> float | None:
    """Return the most GPU memory that any of our runs took, in MiB.

    Args:
        records: What the logs of the runs say.

    Returns:
        The memory. None if a run does not say it, or if there are no runs.
    """
    most: list[float] = []
    for record in records:
        used = [window.gpu_memory_mib for window in record.windows if window.gpu_memory_mib is not None]
        if not used:
            return None
        most.append(max(used))
    return max(most, default=None)


def markdown(campaign: Campaign, rows: Sequence[JsonObject], *, system: str) -> str:
    """Return a Markdown page that compares our figures with the published ones.

    The page has a section for each table of the report, then the notes. Equal notes are listed once, and the cells of
    the tables refer to them by number.

    Args:
        campaign: The runs that measure a report's figures again.
        rows: Rows of all tables, as `table_rows` returns them.
        system: Name of the machine that was measured, for the title.
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
    """Return the number of each note on the page, from 1, by its text.

    Args:
        rows: Rows of all tables, as `table_rows` returns them. Equal notes share a number.
    """
    numbers: dict[str, int] = {}
    for row in rows:
        for note in row["notes"]:
            numbers.setdefault(note, len(numbers) + 1)
    return numbers


def _shown_cells(row: Mapping[str, Any], note_numbers: Mapping[str, int]) -> dict[str, str]:
    """Return the texts of one row of a table as the page shows them, by the heads of their columns.

    The published throughputs and speedups become a column for each framework. Columns in UNSHOWN are left out.

    Args:
        row: The row, as `table_rows` returns it.
        note_numbers: Number of each note on the page, by its text.
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
    """Return the text of the table cell that shows a published throughput, with the number of the note on it.

    - "not published": there is no such throughput
    - "2450": no note is on it
    - "2450 [3]": the publisher's own log does not confirm it, as note 3 says, and gives no throughput
    - "2450 (log: 2390.5) [3]": this log does not confirm it, as note 3 says, and gives 2390.5

    Args:
        row: The row, as `table_rows` returns it.
        framework: The framework whose figure it is.
        figure: The published throughput, or None.
        note_numbers: Number of each note on the page, by its text.
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
    """Return the note on a published throughput, or None if there is none.

    Args:
        figure: The throughput with its printed digits.
        notes: All notes of its row. The note on it begins "published throughput 2450:", for example.
    """
    for note in notes:
        if note.startswith(_head_of_note("throughput", figure.printed)):
            return note
    return None


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """Return the text of a table cell for a value.

    Args:
        value: A published figure, which keeps its printed digits; another number, which gets at most six; an interval,
            which becomes "1.2 to 1.3"; or a text.
        nothing: Text for None or an empty text.
    """
    if value is None or isinstance(value, str):
        return value or nothing
    if isinstance(value, Figure):
        return value.printed
    if isinstance(value, int | float):
        return six_digits(value)
    return " to ".join(_shown(bound) for bound in value)  # an interval


def _aligned(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: head, rule and rows, with columns as wide as their widest cell.

    Args:
        rows: Text of each cell by the head of its column. All rows have the same columns, and there is at least one
            row.

    Yields:
        A line. All columns are set flush right.
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
