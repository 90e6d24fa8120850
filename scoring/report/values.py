"""The report as JSON values and as CSV."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runlog import text
from scoring.figure import warnings
from scoring.record import FACTS
from scoring.report.content import Group, Report, ReportedRun


def values(report: Report) -> dict[str, Any]:
    """All of it as JSON values; what is not known is null."""
    status, meaning = report.verdict
    return {
        "verdict": {"status": status, "text": meaning, "checks": [check.as_dict() for check in report.checks]},
        "headline": report.groups.index(report.headline),
        "groups": [_group(group) for group in report.groups],
        "scaling": [
            [{name: value for name, value in vars(row).items() if name != "group"} for row in rows]
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
        "mixture": warnings.as_json(report.mixture),
    }


def _group(group: Group) -> dict[str, Any]:
    step = group.step_time
    return {
        "name": group.name,
        "score": group.score.to_json() if group.score else None,
        "problem": group.problem,
        "step_time": None if step is None else asdict(step) | {"rest_s": step.rest_s},
        "runs": [_run(run) for run in group.runs],
    }


def _run(run: ReportedRun) -> dict[str, Any]:
    record, figure = run.record, run.figure
    last = record.quality[-1] if record.quality else None
    memory = [w.gpu_memory_mib for w in record.windows if w.gpu_memory_mib is not None]
    power = [w.power_w for w in run.measured if w.power_w is not None]
    return {
        "run": run.number,
        **{name: getattr(record, name) for name in ("file", "sha256", "format", *FACTS)},
        **{name: getattr(figure, name, None) for name in ("value", "windows", "first_line", "last_line")},
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
        rows += [{"run": run.number, "group": group.name, "unit": unit, **_run(run)} for run in group.runs]
    return text.csv_text(list(rows[0]), sorted(rows, key=lambda row: row["run"]))
