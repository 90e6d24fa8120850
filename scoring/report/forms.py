"""The report as JSON values, CSV and Markdown."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from scoring.report.commands import commands
from scoring.report.content import Group, Report, Run
from scoring.report.text import cell, interval, markdown, number, percent


def values(report: Report) -> dict[str, Any]:
    """All of it as JSON values; what is not known is null."""
    state, text = report.verdict
    return {
        "verdict": {"state": state, "text": text, "checks": [dataclasses.asdict(check) for check in report.checks]},
        "headline": report.groups.index(report.headline),
        "groups": [_group(group) for group in report.groups],
        "scaling": [
            [
                {
                    "devices": row.devices,
                    "images_per_s": row.images_per_s,
                    "speedup": row.speedup,
                    "speedup_95": row.speedup_95,
                    "efficiency": row.efficiency,
                }
                for row in rows
            ]
            for rows in report.scaling
        ],
        "published": [
            {
                "label": curve.label,
                "source": curve.base.source,
                "points": [{"devices": row.devices, "images_per_s": row.value, "row": row.line} for row in curve.rows],
            }
            for curve in report.curves
        ],
        "published_note": report.curves_note,
        "mixture": [dataclasses.asdict(warning) for warning in report.mixture],
    }


def _group(group: Group) -> dict[str, Any]:
    step = group.step_time
    return {
        "name": group.name,
        "score": group.score.to_json() if group.score else None,
        "problem": group.problem,
        "step_time": None
        if step is None
        else {
            "total_s": step.total_s,
            "data_wait_s": step.data_wait_s,
            "all_reduce_s": step.all_reduce_s,
            "all_reduce_note": step.all_reduce_note,
            "rest_s": step.rest_s,
            "rest": step.rest,
        },
        "runs": [_run(run) for run in group.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    record, figure = run.record, run.figure
    last = record.quality[-1] if record.quality else None
    memory = [w.gpu_memory_mib for w in record.windows if w.gpu_memory_mib is not None]
    power = [w.power_w for w in run.measured if w.power_w is not None]
    return {
        "run": run.number,
        "file": record.file,
        "sha256": record.sha256,
        "format": record.format,
        "framework": record.framework,
        "model": record.model,
        "devices": record.devices,
        "nodes": record.nodes,
        "batch_per_device": record.batch_per_device,
        "precision": record.precision,
        "math_mode": record.math_mode,
        "value": figure.value if figure else None,
        "windows": figure.windows if figure else None,
        "first_line": figure.first_line if figure else None,
        "last_line": figure.last_line if figure else None,
        "run_time_s": record.run_time_s,
        "status": record.status,
        "quality_name": last.name if last else None,
        "quality": last.value if last else None,
        "quality_line": last.line if last else None,
        "most_gpu_memory_mib": max(memory, default=None),
        "mean_power_w": sum(power) / len(power) if power else None,
        "seed": run.seed[0] if run.seed else None,
        "compliance": run.findings["verdict"] if run.findings else None,
    }


def csv_text(report: Report) -> str:
    """One row a run; an empty cell is what the log does not say."""
    rows = []
    for group in report.groups:
        unit = group.score.unit if group.score else None
        rows += [{"group": group.name, "unit": unit, **_run(run)} for run in group.runs]
    rows.sort(key=lambda row: row["run"])
    stream = io.StringIO()
    writer = csv.DictWriter(
        stream, fieldnames=["run", *(name for name in rows[0] if name != "run")], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return stream.getvalue()


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(markdown(item) for item in row)} |" for row in rows), ""]


def markdown_text(report: Report, command: Sequence[str]) -> str:
    """The report without its plots."""
    group = report.headline
    head = f"{number(group.score.value)} {group.score.unit}" if group.score else "no figure"
    lines = [f"# {markdown(f'{head}: {group.name}')}", "", f"**{markdown(report.verdict[1])}.**", ""]
    lines += [f"- {check.subject} ({check.state}): {markdown(check.text)}" for check in report.checks]
    lines += ["", f"Protocol {markdown(report.protocol.name)}: {markdown(report.protocol.describe())}.", ""]
    lines += ["## Figures", ""]
    lines += _table(
        ["system and shape", "figure", "unit", "95 % interval", "runs", "spread"],
        [
            [
                g.name,
                number(g.score.value),
                g.score.unit,
                f"{interval(g.score.interval_95)} ({g.score.interval_method})",
                len(g.score.runs),
                f"{number(g.score.spread)} over {g.score.spread_over}"
                if g.score.spread is not None
                else "not measured",
            ]
            if g.score
            else [g.name, "no figure", g.problem or "", "", len(g.runs), ""]
            for g in report.groups
        ],
    )
    lines += ["## Runs", ""]
    lines += _table(
        [
            "run",
            "figure",
            "log lines",
            "time to train, s",
            "quality",
            "GPU memory, MiB",
            "power, W",
            "check",
            "SHA-256",
        ],
        [_run_row(run) for run in report.runs],
    )
    timed = [(g, g.step_time) for g in report.groups if g.step_time]
    if timed:
        lines += ["## Where a step's time goes", ""]
        lines += _table(
            ["system", "step, ms", "computation and rest", "all-reduce", "data wait", "note"],
            [
                [
                    g.name,
                    number(step.total_s * 1000),
                    percent(step.rest_s / step.total_s),
                    percent(None if step.all_reduce_s is None else step.all_reduce_s / step.total_s, "not estimated"),
                    percent(None if step.data_wait_s is None else step.data_wait_s / step.total_s),
                    step.all_reduce_note,
                ]
                for g, step in timed
            ],
        )
    lines += ["## Scaling", "", markdown(report.curves_note), ""]
    if not report.scaling:
        lines += [
            "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more.",
            "",
        ]
    for rows in report.scaling:
        lines += _table(
            ["devices", "images/s", "speedup", "95 % interval", "efficiency"],
            [
                [
                    row.devices,
                    number(row.images_per_s),
                    number(row.speedup),
                    interval(row.speedup_95),
                    percent(row.efficiency),
                ]
                for row in rows
            ],
        )
    if report.curves:
        lines += _table(
            ["published", "devices", "images/s"],
            [[curve.label, row.devices, row.printed] for curve in report.curves for row in curve.rows],
        )
    warnings = [w for g in report.groups if g.score for w in g.score.warnings]
    if warnings or report.mixture:
        lines += ["## Doubts", ""]
        lines += [
            f"- {markdown(w.rule)}: {markdown(w.message)}"
            + (f" ({markdown(w.file)}{f':{w.line}' if w.line else ''})" if w.file else "")
            for w in dict.fromkeys([*warnings, *report.mixture])
        ]
        lines.append("")
    lines += ["## Compliance", "", *_findings(report), "", "## Reproduce it", ""]
    for text, code in commands(report, command):
        lines += [markdown(text), "", *(f"    {line}" for line in code.splitlines()), ""]
    return "\n".join(lines)


def _run_row(run: Run) -> list[object]:
    facts = _run(run)
    figure = run.figure
    return [
        f"{run.number}: {run.record.file}",
        number(figure.value) if figure else "no figure",
        f"{figure.first_line}-{figure.last_line}" if figure else "",
        number(facts["run_time_s"]),
        "not measured" if facts["quality"] is None else f"{facts['quality']:.4g} (line {facts['quality_line']})",
        number(facts["most_gpu_memory_mib"]),
        number(facts["mean_power_w"]),
        facts["compliance"] or "not checked",
        facts["sha256"][:16],
    ]


def _findings(report: Report) -> list[str]:
    lines = []
    for run in report.runs:
        if run.findings is None:
            lines.append(f"- run {run.number}: not checked")
            continue
        lines.append(f"- run {run.number}: {run.findings['verdict']}")
        for finding in run.findings["findings"]:
            if finding["severity"] != "info":
                where = f", line {finding['line']}" if finding["line"] else ""
                text = f"{finding['rule']}{where}: expected {finding['expected']}, found {finding['actual']}"
                text += f". {finding['fix']}" if finding["fix"] else ""
                lines.append(f"  - {markdown(finding['severity'])}: {markdown(text)}")
    return lines
