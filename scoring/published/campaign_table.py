"""A campaign's table: our own figures beside those of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.figure.score import TooFewRunsError, score
from scoring.importers import jsonable, read_record
from scoring.published.campaign_plan import (
    SHRUNK_ENVIRONMENT,
    SHRUNK_NOTE,
    Campaign,
    Job,
    RunSpec,
    cells,
    published_figure,
    result_log,
)
from scoring.published.table import Published
from scoring.record import InputError, Record


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What our own runs of one cell give under the campaign's protocol."""

    value: float
    unit: str
    runs: int
    interval_95: tuple[float, float] | None
    interval_method: str
    gpu_memory_mib: float | None
    warnings: tuple[str, ...]
    logs: tuple[str, ...]


def protocol_of(campaign: Campaign, *, shrink: bool, repeats: int) -> tuple[Protocol, int | None]:
    """The campaign's protocol for our own logs, and the windows to drop instead of its own number.

    Our runs set their warm-up apart: WARMUP_STEPS is what the protocol drops, so nothing more is dropped after it.
    """
    protocol = protocols.find(campaign.protocol)
    exports = campaign.environment | (SHRUNK_ENVIRONMENT if shrink else {})
    warm_up, measured = int(exports["WARMUP_STEPS"]), int(exports["MEASURED_STEPS"])
    protocol = replace(
        protocol,
        skip=warm_up if protocol.skip_unit == "step" else protocol.skip,
        take_steps=measured if protocol.take_steps else None,
        runs=repeats,
    )
    return protocol, 0 if protocol.skip_unit == "window" else None


def figures(
    campaign: Campaign, jobs: Sequence[Job], *, shrink: bool, repeats: int
) -> tuple[dict[RunSpec, Figure], dict[RunSpec, str], list[Record]]:
    """Figures of the runs that are done, why the others have none, and the records read."""
    protocol, skip = protocol_of(campaign, shrink=shrink, repeats=repeats)
    found: dict[RunSpec, Figure] = {}
    missing: dict[RunSpec, str] = {}
    read: list[Record] = []
    for run in dict.fromkeys(job.run for job in jobs):
        own = [job for job in jobs if job.run == run]
        logs = [log for job in own if job.state == "done" and (log := result_log(job.folder))]
        if not logs:
            missing[run] = "skipped: " + own[0].reason if own[0].state == "skip" else own[0].reason or "not run yet"
            continue
        records = [read_record(log) for log in logs]
        read += records
        try:
            result = score(records, protocol, skip=skip)
        except TooFewRunsError as error:
            if error.partial is None:
                missing[run] = str(error)
                continue
            result = error.partial
        except InputError as error:
            missing[run] = str(error)
            continue
        memory = [[w.gpu_memory_mib for w in r.windows if w.gpu_memory_mib is not None] for r in records]
        found[run] = Figure(
            value=result.value,
            unit=result.unit,
            runs=len(records),
            interval_95=result.interval_95,
            interval_method=result.interval_method,
            gpu_memory_mib=max(max(one) for one in memory) if all(memory) else None,
            warnings=tuple(dict.fromkeys(f"{warning.rule}: {warning.message}" for warning in result.warnings)),
            logs=tuple(str(log) for log in logs),
        )
    return found, missing, read


def table(
    campaign: Campaign,
    *,
    shrink: bool,
    figures: dict[RunSpec, Figure],
    missing: dict[RunSpec, str],
    rows: Sequence[Published],
) -> list[dict[str, Any]]:
    """The report's tables as rows of plain values: ours, published, ratio and interval side by side.

    A cell without a figure of ours says why in `notes`; one that the report leaves empty has `published` None.
    """
    lines = []
    all_cells = cells(campaign, shrink=shrink)
    for cell in all_cells:
        ours = figures.get(cell.run)
        found = {name: published_figure(rows, campaign, cell, name, "throughput") for name in campaign.frameworks}
        published = found[campaign.frameworks[0]]
        interval = ours.interval_95 if ours else None
        line: dict[str, Any] = {
            "table": cell.table.title,
            "nodes": cell.asked.nodes,
            "devices": cell.asked.devices,
            "batch_per_device": cell.asked.batch,
            "precision": cell.asked.precision,
            "strategy": cell.asked.strategy,
            "ours": ours.value if ours else None,
            "unit": ours.unit if ours else published.unit if published else None,
            "interval_95": list(interval) if interval else None,
            "interval_method": ours.interval_method if ours else None,
            "runs": ours.runs if ours else 0,
            "published": {name: row.value if row else None for name, row in found.items()},
            "ratio": ours.value / published.value if ours and published else None,
            "ratio_95": [bound / published.value for bound in interval] if published and interval else None,
        }
        if campaign.speedup_base:
            base = next(
                other
                for other in all_cells
                if other.table == cell.table
                and other.asked.batch == cell.asked.batch
                and (other.asked.nodes, other.asked.devices_per_node) == campaign.speedup_base
            )
            base_figure = figures.get(base.run)
            speedups = {name: published_figure(rows, campaign, cell, name, "speedup") for name in campaign.frameworks}
            line["speedup"] = ours.value / base_figure.value if ours and base_figure else None
            line["speedup_published"] = {name: row.value if row else None for name, row in speedups.items()}
        if campaign.gpu_memory:
            memory = published_figure(rows, campaign, cell, campaign.frameworks[0], "gpu_memory")
            line["gpu_memory_mib"] = ours.gpu_memory_mib if ours else None
            line["gpu_memory_mib_published"] = memory.value if memory else None
        line["ran_as"] = cell.run.name
        line["notes"] = (
            [missing.get(cell.run, "")] if not ours else [f"interval: {ours.interval_method}", *ours.warnings]
        )
        line["logs"] = list(ours.logs) if ours else []
        lines.append(line)
    return lines


def markdown(campaign: Campaign, lines: Sequence[dict[str, Any]], *, shrink: bool, system: str) -> str:
    """The table as aligned Markdown, one section for each table of the report."""
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol}; "ours" was measured here, all else is published.', ""]
    if shrink:
        text += [SHRUNK_NOTE, ""]
    notes: dict[str, list[str]] = {}
    number = 0
    for table in campaign.tables:
        own = [line for line in lines if line["table"] == table.title]
        if "speedup" in own[0] or "gpu_memory_mib" in own[0] or len(campaign.frameworks) > 1:
            rows = []
            for line in own:
                number += 1
                for note in line["notes"]:
                    places = notes.setdefault(note, [])
                    places.append(str(number) if places else f"row {number}")
                rows.append(_markdown_row(line, number, shrink=shrink))
        else:
            rows = _matrix(own, campaign.repeats, notes)
        unit = next((line["unit"] for line in lines if line["unit"]), "images/s")
        text += [f"## {table.title} ({unit})", "", *([table.note, ""] if table.note else []), *_aligned(rows), ""]
    if notes:
        text += ["Notes", ""]
        text += [f"- {', '.join(places)}: {note}" for note, places in notes.items()]
        text += [""]
    return "\n".join(text)


def _matrix(lines: Sequence[dict[str, Any]], repeats: int, notes: dict[str, list[str]]) -> list[dict[str, str]]:
    """A table of one figure a cell as reports print it: batch sizes downwards, nodes x GPUs across."""
    rows = []
    for batch in dict.fromkeys(line["batch_per_device"] for line in lines):
        cells: dict[str, dict[str, str]] = {name: {} for name in ("ours", "95 % interval", "published", "ratio")}
        for line in lines:
            if line["batch_per_device"] != batch:
                continue
            shape = f"{line['nodes']} x {line['devices'] // line['nodes']}"
            marks = ""
            for note in filter(None, line["notes"]):
                mark = f"[{list(notes).index(note) + 1 if note in notes else len(notes) + 1}]"
                notes.setdefault(note, [mark])
                marks += f" {mark}"
            runs = f" ({line['runs']} run{'s' * (line['runs'] > 1)})" if 0 < line["runs"] < repeats else ""
            cells["ours"][shape] = _number(line["ours"], "-") + runs + marks
            cells["95 % interval"][shape] = _interval(line) if line["ours"] else "-"
            cells["published"][shape] = _printed(next(iter(line["published"].values())), "-")
            cells["ratio"][shape] = _number(line["ratio"], "-", digits=3)
        for name, row in cells.items():
            if name == "ours" or set(row.values()) != {"-"}:
                rows.append({"batch/GPU": str(batch) if name == "ours" else "", "nodes x GPUs": name, **row})
    return rows


def _markdown_row(line: dict[str, Any], number: int, *, shrink: bool) -> dict[str, str]:
    row = {
        "row": str(number),
        "nodes": str(line["nodes"]),
        "GPUs": str(line["devices"]),
        "batch/GPU": str(line["batch_per_device"]),
        **({"ran as": line["ran_as"]} if shrink else {}),
        "ours": _number(line["ours"], "not measured"),
        "95 % interval": _interval(line),
        "runs": str(line["runs"]),
    }
    names = list(line["published"])
    row[names[0]] = _printed(line["published"][names[0]], "not published")
    row["ratio"] = _number(line["ratio"], "-", digits=3)
    if line["ratio_95"]:
        low, high = line["ratio_95"]
        row["ratio"] += f" ({low:.3f} to {high:.3f})"
    if "speedup" in line:
        row["speedup ours"] = _number(line["speedup"], "-")
        for name, value in line["speedup_published"].items():
            row[f"speedup {name}"] = _printed(value, "-")
    if "gpu_memory_mib" in line:
        row["MiB ours"] = _number(line["gpu_memory_mib"], "not measured", digits=0)
        row["MiB published"] = _printed(line["gpu_memory_mib_published"], "-")
    for name in names[1:]:
        row[name] = _printed(line["published"][name], "-")
    return row


def _interval(line: dict[str, Any]) -> str:
    if line["interval_95"]:
        low, high = line["interval_95"]
        return f"{low:.2f} to {high:.2f}"
    return "not measured" if line["ours"] is None else "none"


def _number(value: float | None, absent: str, *, digits: int = 2) -> str:
    return absent if value is None else f"{value:.{digits}f}"


def _printed(value: float | None, absent: str) -> str:
    """A published figure with the digits that it has."""
    return absent if value is None else f"{value:.10g}"


def _aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    names = list(rows[0])
    width = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    head = "| " + " | ".join(name.rjust(width[name]) for name in names) + " |"
    rule = "|" + "|".join("-" * (width[name] + 1) + ":" for name in names) + "|"
    return [head, rule, *("| " + " | ".join(row[n].rjust(width[n]) for n in names) + " |" for row in rows)]


def system_of(records: Sequence[Record]) -> str:
    """What the runs were done on, by their logs."""
    return ", ".join(dict.fromkeys(filter(None, (record.machine for record in records)))) or "nothing measured yet"


def write_tables(
    campaign: Campaign, results: Path, jobs: Sequence[Job], rows: Sequence[Published], *, shrink: bool, repeats: int
) -> None:
    """The table on stdout, and as NAME.md and NAME.json in `results`."""
    found, missing, read = figures(campaign, jobs, shrink=shrink, repeats=repeats)
    lines = table(campaign, shrink=shrink, figures=found, missing=missing, rows=rows)
    text = markdown(campaign, lines, shrink=shrink, system=system_of(read))
    results.mkdir(parents=True, exist_ok=True)
    name = campaign.name + ("-shrunk" if shrink else "")
    (results / f"{name}.md").write_text(text, encoding="utf-8")
    whole = {"campaign": campaign.name, "protocol": campaign.protocol, "shrunk": shrink, "rows": lines}
    (results / f"{name}.json").write_text(json.dumps(jsonable(whole), indent=1), encoding="utf-8")
    print(text)
