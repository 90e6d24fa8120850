"""A campaign's table: our own figures beside those of the report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import jsonable
from scoring.published.campaign_plan import SHRUNK_NOTE, Campaign, Cell, Job, RunSpec, published_figures
from scoring.published.table import Published
from scoring.record import InputError, Record, TooFewRunsError

Line = dict[str, Any]  # a cell's figures as plain values
NONE = "-"  # in place of a figure


def figures(campaign: Campaign, jobs: Sequence[Job], *, repeats: int) -> dict[RunSpec, Score | str]:
    """The figure of each run by the campaign's protocol, or why it has none.

    Our runs set their warm-up apart: WARMUP_STEPS is what the protocol drops, so nothing more is dropped after it.
    """
    protocol = replace(protocols.find(campaign.protocol), runs=repeats)
    warm_up, measured = (int(campaign.environment[name]) for name in ("WARMUP_STEPS", "MEASURED_STEPS"))
    if protocol.skip_unit == "step":
        protocol = replace(protocol, skip=warm_up)
    if protocol.take_steps:
        protocol = replace(protocol, take_steps=measured)
    skip = 0 if protocol.skip_unit == "window" else None
    found: dict[RunSpec, Score | str] = {}
    for run, trials in itertools.groupby(jobs, key=lambda job: job.run):
        first, *others = trials
        records = [job.record for job in (first, *others) if job.record]
        try:
            found[run] = score(records, protocol, skip=skip) if records else _nothing(first)
        except (InputError, TooFewRunsError) as error:
            found[run] = getattr(error, "partial", None) or str(error)
    return found


def _nothing(job: Job) -> str:
    return f"skipped: {job.reason}" if job.state == "skip" else job.reason or "not run yet"


def table(campaign: Campaign, found: dict[RunSpec, Score | str], rows: Sequence[Published]) -> list[Line]:
    """The report's tables as rows of plain values: ours, published, ratio and interval side by side.

    A cell without a figure of ours says why in `notes`; one that the report leaves empty has `published` None.
    """
    lines, scores = [], {run: figure for run, figure in found.items() if isinstance(figure, Score)}
    for cell in campaign.cells:
        asked, ours, notes = cell.asked, scores.get(cell.run), [str(found[cell.run])]
        if ours:
            warned = dict.fromkeys(f"{warning.check}: {warning.found}" for warning in ours.warnings)
            notes = [f"interval: {ours.interval_method}", *warned]
        value, unit, interval, method = (
            getattr(ours, name, None) for name in ("value", "unit", "interval_95", "interval_method")
        )
        published = published_figures(rows, campaign, cell, "throughput")
        first = published[campaign.frameworks[0]]
        line: Line = {
            "table": cell.table.title,
            "nodes": asked.nodes,
            "devices": asked.devices,
            "batch_per_device": asked.batch,
            "precision": asked.precision,
            "strategy": asked.strategy,
            "ours": value,
            "unit": unit or (first and first.unit),
            "interval_95": interval,
            "interval_method": method,
            "runs": len(ours.runs) if ours else 0,
            "published": _values(published),
            "ratio": value / first.value if value and first else None,
            "ratio_95": [bound / first.value for bound in interval] if interval and first else None,
        }
        if campaign.speedup_base:
            base = scores.get(_base(campaign, cell))
            line["speedup"] = value / base.value if value and base else None
            line["speedup_published"] = _values(published_figures(rows, campaign, cell, "speedup"))
        if campaign.gpu_memory:
            line["gpu_memory_mib"] = _memory_mib(ours.records) if ours else None
            memory = _values(published_figures(rows, campaign, cell, "gpu_memory"))
            line["gpu_memory_mib_published"] = memory[campaign.frameworks[0]]
        logs = [record.file for record in ours.records] if ours else []
        lines.append(line | {"ran_as": cell.run.name, "notes": notes, "logs": logs})
    return lines


def _values(published: dict[str, Published | None]) -> dict[str, float | None]:
    return {framework: row.value if row else None for framework, row in published.items()}


def _base(campaign: Campaign, cell: Cell) -> RunSpec:
    """What a cell's speedup is against: the same batch of the same table, at the base's shape."""
    same = [one for one in campaign.cells if one.table == cell.table and one.asked.batch == cell.asked.batch]
    return next(one.run for one in same if (one.asked.nodes, one.asked.devices_per_node) == campaign.speedup_base)


def _memory_mib(records: Sequence[Record]) -> float | None:
    """The most that any run took; None where one does not say."""
    of_runs = [[w.gpu_memory_mib for w in record.windows if w.gpu_memory_mib is not None] for record in records]
    return max(map(max, of_runs)) if all(of_runs) else None


# ------------------------------------------------------------------------------------------------- Markdown


def markdown(campaign: Campaign, lines: Sequence[Line], *, system: str) -> str:
    """The table as aligned Markdown, one section for each table of the report; notes are numbered."""
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol}; "ours" was measured here, all else is published.', ""]
    text += [SHRUNK_NOTE, ""] * campaign.shrunk
    notes = list(dict.fromkeys(note for line in lines for note in line["notes"] if note))
    unit = next((line["unit"] for line in lines if line["unit"]), "images/s")
    # A report of one figure a cell is a matrix, as it prints it.
    matrix = not campaign.speedup_base and not campaign.gpu_memory and len(campaign.frameworks) == 1
    for of_table, group in itertools.groupby(zip(campaign.cells, lines, strict=True), key=lambda pair: pair[0].table):
        rows = [_row(line, notes, shrunk=campaign.shrunk) for _, line in group]
        text += [f"## {of_table.title} ({unit})", "", *([of_table.note, ""] if of_table.note else [])]
        text += [*_aligned(_matrix(rows) if matrix else rows), ""]
    if notes:
        text += ["Notes", "", *(f"- [{number}]: {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(text)


def _row(line: Line, notes: Sequence[str], *, shrunk: bool) -> dict[str, str]:
    """A cell's figures by the heads of their columns; .10g are the digits that a published one has."""
    first, *others = line["published"]
    marks = "".join(f" [{notes.index(note) + 1}]" for note in line["notes"] if note)
    row = {"nodes": str(line["nodes"]), "GPUs": str(line["devices"]), "batch/GPU": str(line["batch_per_device"])}
    row |= {"ran as": line["ran_as"]} if shrunk else {}
    row["ours"] = _number(line["ours"], absent="not measured") + marks
    row["95 % interval"] = "{:.2f} to {:.2f}".format(*line["interval_95"]) if line["interval_95"] else NONE
    row["runs"] = str(line["runs"] or NONE)
    row[first] = _number(line["published"][first], ".10g", absent="not published")
    bounds = " ({:.3f} to {:.3f})".format(*line["ratio_95"]) if line["ratio_95"] else ""
    row["ratio"] = _number(line["ratio"], ".3f") + bounds
    if "speedup" in line:
        row["speedup ours"] = _number(line["speedup"])
        row |= {f"speedup {name}": _number(value, ".10g") for name, value in line["speedup_published"].items()}
    if "gpu_memory_mib" in line:
        row["MiB ours"] = _number(line["gpu_memory_mib"], ".0f", absent="not measured")
        row["MiB published"] = _number(line["gpu_memory_mib_published"], ".10g")
    return row | {name: _number(line["published"][name], ".10g") for name in others}


def _number(value: float | None, form: str = ".2f", *, absent: str = NONE) -> str:
    return absent if value is None else format(value, form)


def _matrix(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The same with batch sizes downwards, nodes x GPUs across, and a line for each column that has any figure."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        shape = f"{row['nodes']} x {int(row['GPUs']) // int(row['nodes'])}"
        for head in list(row)[3:]:
            lines.setdefault((row["batch/GPU"], head), {})[shape] = row[head]
    shown = {key: texts for key, texts in lines.items() if set(texts.values()) != {NONE}}
    return [{"batch/GPU": batch, "nodes x GPUs": head, **texts} for (batch, head), texts in shown.items()]


def _aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    width = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    rule = "|" + "|".join("-" * (size + 1) + ":" for size in width.values()) + "|"
    head, *shown = (
        "| " + " | ".join(row[name].rjust(size) for name, size in width.items()) + " |"
        for row in ({name: name for name in width}, *rows)
    )
    return [head, rule, *shown]


def write_tables(
    campaign: Campaign, results: Path, jobs: Sequence[Job], rows: Sequence[Published], *, repeats: int
) -> None:
    """The table on stdout, and as NAME.md and NAME.json in `results`."""
    lines = table(campaign, figures(campaign, jobs, repeats=repeats), rows)
    systems = dict.fromkeys(job.record.machine for job in jobs if job.record and job.record.machine)
    text = markdown(campaign, lines, system=", ".join(systems) or "nothing measured yet")
    results.mkdir(parents=True, exist_ok=True)
    name = campaign.name + "-shrunk" * campaign.shrunk
    (results / f"{name}.md").write_text(text, encoding="utf-8")
    whole = {"campaign": campaign.name, "protocol": campaign.protocol, "shrunk": campaign.shrunk, "rows": lines}
    (results / f"{name}.json").write_text(json.dumps(jsonable(whole), indent=1), encoding="utf-8")
    print(text)
