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
from scoring.published.campaign_plan import SHRUNK_NOTE, Campaign, Cell, Job, RunSpec, published_figure
from scoring.published.table import Published
from scoring.record import InputError, Record, TooFewRunsError

Line = dict[str, Any]  # a cell's figures as plain values


def figures(campaign: Campaign, jobs: Sequence[Job], *, repeats: int) -> dict[RunSpec, Score | str]:
    """The figure of each run by the campaign's protocol, or why it has none.

    Our runs set their warm-up apart: WARMUP_STEPS is what the protocol drops, so nothing more is dropped after it.
    """
    protocol = replace(protocols.find(campaign.protocol), runs=repeats)
    warm_up, measured = (int(campaign.environment[name]) for name in ("WARMUP_STEPS", "MEASURED_STEPS"))
    skip = 0 if protocol.skip_unit == "window" else None
    if protocol.skip_unit == "step":
        protocol = replace(protocol, skip=warm_up)
    if protocol.take_steps:
        protocol = replace(protocol, take_steps=measured)
    found: dict[RunSpec, Score | str] = {}
    for run, group in itertools.groupby(jobs, key=lambda job: job.run):
        first, *others = group
        records = [job.record for job in (first, *others) if job.record]
        if not records:
            found[run] = "skipped: " + first.reason if first.state == "skip" else first.reason or "not run yet"
            continue
        try:
            found[run] = score(records, protocol, skip=skip)
        except (InputError, TooFewRunsError) as error:
            found[run] = getattr(error, "partial", None) or str(error)
    return found


def table(campaign: Campaign, found: dict[RunSpec, Score | str], rows: Sequence[Published]) -> list[Line]:
    """The report's tables as rows of plain values: ours, published, ratio and interval side by side.

    A cell without a figure of ours says why in `notes`; one that the report leaves empty has `published` None.
    """
    lines, scores = [], {run: figure for run, figure in found.items() if isinstance(figure, Score)}
    for cell in campaign.cells:

        def published(metric: str, cell: Cell = cell) -> dict[str, Published | None]:
            return {name: published_figure(rows, campaign, cell, name, metric) for name in campaign.frameworks}

        ours, others = scores.get(cell.run), published("throughput")
        first = others[campaign.frameworks[0]]
        interval = ours.interval_95 if ours else None
        line: Line = {
            "table": cell.table,
            "nodes": cell.asked.nodes,
            "devices": cell.asked.devices,
            "batch_per_device": cell.asked.batch,
            "precision": cell.asked.precision,
            "strategy": cell.asked.strategy,
            "ours": ours.value if ours else None,
            "unit": ours.unit if ours else first.unit if first else None,
            "interval_95": list(interval) if interval else None,
            "interval_method": ours.interval_method if ours else None,
            "runs": len(ours.runs) if ours else 0,
            "published": {name: row and row.value for name, row in others.items()},
            "ratio": ours.value / first.value if ours and first else None,
            "ratio_95": [bound / first.value for bound in interval] if first and interval else None,
        }
        if campaign.speedup_base:
            base = scores.get(_base(campaign, cell))
            line["speedup"] = ours.value / base.value if ours and base else None
            line["speedup_published"] = {name: row and row.value for name, row in published("speedup").items()}
        if campaign.gpu_memory:
            memory = published("gpu_memory")[campaign.frameworks[0]]
            line["gpu_memory_mib"] = _memory_mib(ours.records) if ours else None
            line["gpu_memory_mib_published"] = memory and memory.value
        notes = [str(found[cell.run])]
        if ours:
            warnings = (f"{warning.check}: {warning.found}" for warning in ours.warnings)
            notes = [f"interval: {ours.interval_method}", *dict.fromkeys(warnings)]
        logs = [record.file for record in ours.records] if ours else []
        lines.append(line | {"ran_as": cell.run.name, "notes": notes, "logs": logs})
    return lines


def _base(campaign: Campaign, cell: Cell) -> RunSpec:
    """What a cell's speedup is against: the same batch of the same table, at the base's shape."""
    same = [one for one in campaign.cells if (one.table, one.asked.batch) == (cell.table, cell.asked.batch)]
    return next(one.run for one in same if (one.asked.nodes, one.asked.devices_per_node) == campaign.speedup_base)


def _memory_mib(records: Sequence[Record]) -> float | None:
    """The most that any run took; None where one does not say."""
    of_runs = [[w.gpu_memory_mib for w in record.windows if w.gpu_memory_mib is not None] for record in records]
    return max(map(max, of_runs)) if all(of_runs) else None


# ------------------------------------------------------------------------------------------------- Markdown


def markdown(campaign: Campaign, lines: Sequence[Line], *, system: str) -> str:
    """The table as aligned Markdown, one section for each table of the report."""
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol}; "ours" was measured here, all else is published.', ""]
    text += [SHRUNK_NOTE, ""] * campaign.shrunk
    places: dict[str, list[str]] = {}  # of each note
    # A report of one figure a cell is a matrix, as it prints it.
    matrix = not campaign.speedup_base and not campaign.gpu_memory and len(campaign.frameworks) == 1
    notes = dict.fromkeys((cell.table, cell.note) for cell in campaign.cells)
    for title, note in notes:
        of_table = [(number, line) for number, line in enumerate(lines, start=1) if line["table"] == title]
        rows = _matrix(of_table, campaign.repeats, places) if matrix else _rows(of_table, places, campaign.shrunk)
        unit = next((line["unit"] for line in lines if line["unit"]), "images/s")
        text += [f"## {title} ({unit})", "", *([note, ""] if note else []), *_aligned(rows), ""]
    if places:
        text += ["Notes", "", *(f"- {', '.join(where)}: {note}" for note, where in places.items()), ""]
    return "\n".join(text)


def _matrix(lines: Sequence[tuple[int, Line]], repeats: int, places: dict[str, list[str]]) -> list[dict[str, str]]:
    """Batch sizes downwards, nodes x GPUs across; notes are numbered."""
    cells: dict[tuple[int, str], dict[str, str]] = {}
    for _, line in lines:
        shown = {
            "ours": _number(line["ours"], "-"),
            "95 % interval": _interval(line) if line["ours"] else "-",
            "published": _number(next(iter(line["published"].values())), "-", form=".10g"),
            "ratio": _number(line["ratio"], "-", form=".3f"),
        }
        if 0 < line["runs"] < repeats:
            shown["ours"] += f" ({line['runs']} run{'s' * (line['runs'] > 1)})"
        for note in filter(None, line["notes"]):
            shown["ours"] += " " + places.setdefault(note, [f"[{len(places) + 1}]"])[0]
        for name, value in shown.items():
            row = cells.setdefault((line["batch_per_device"], name), {})
            row[f"{line['nodes']} x {line['devices'] // line['nodes']}"] = value
    return [
        {"batch/GPU": str(batch) if name == "ours" else "", "nodes x GPUs": name, **row}
        for (batch, name), row in cells.items()
        if name == "ours" or set(row.values()) != {"-"}
    ]


def _rows(lines: Sequence[tuple[int, Line]], places: dict[str, list[str]], shrunk: bool) -> list[dict[str, str]]:
    """A row a cell, with all that the report and we know of it."""
    rows = []
    for number, line in lines:
        for note in line["notes"]:
            places[note] = [*places[note], str(number)] if note in places else [f"row {number}"]
        first, *others = line["published"]
        bounds = " ({:.3f} to {:.3f})".format(*line["ratio_95"]) if line["ratio_95"] else ""
        row = {"row": str(number), "nodes": str(line["nodes"]), "GPUs": str(line["devices"])}
        row["batch/GPU"] = str(line["batch_per_device"])
        row |= {"ran as": line["ran_as"]} if shrunk else {}
        row |= {"ours": _number(line["ours"], "not measured"), "95 % interval": _interval(line)}
        row["runs"] = str(line["runs"])
        row[first] = _number(line["published"][first], "not published", form=".10g")
        row["ratio"] = _number(line["ratio"], "-", form=".3f") + bounds
        if "speedup" in line:
            row["speedup ours"] = _number(line["speedup"], "-")
            published = line["speedup_published"].items()
            row |= {f"speedup {name}": _number(value, "-", form=".10g") for name, value in published}
        if "gpu_memory_mib" in line:
            row["MiB ours"] = _number(line["gpu_memory_mib"], "not measured", form=".0f")
            row["MiB published"] = _number(line["gpu_memory_mib_published"], "-", form=".10g")
        row |= {name: _number(line["published"][name], "-", form=".10g") for name in others}
        rows.append(row)
    return rows


def _interval(line: Line) -> str:
    absent = "not measured" if line["ours"] is None else "none"
    return "{:.2f} to {:.2f}".format(*line["interval_95"]) if line["interval_95"] else absent


def _number(value: float | None, absent: str, *, form: str = ".2f") -> str:
    """A figure in digits; .10g are those that a published one has."""
    return absent if value is None else format(value, form)


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
