"""`python -m scoring report`: one page from runs, as HTML, Markdown, CSV or JSON."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runlog.text import called, csv_text
from scoring.figure import warnings
from scoring.figure.compare import read_systems
from scoring.figure.score import add_score_options, counts, protocol_of
from scoring.importers import jsonable
from scoring.record import FACTS, InputError
from scoring.report import render
from scoring.report.build import build, read_findings
from scoring.report.content import Group, Report, ReportedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring report`."""
    parser.add_argument("logs", nargs="+", metavar="RUN", help="logs of one or more systems, or folders of them")
    parser.add_argument("--html", metavar="FILE", help="one self-contained page")
    parser.add_argument("--markdown", metavar="FILE", help="the same in text; - prints it, as does giving no form")
    parser.add_argument("--csv", metavar="FILE", help="one row a run; - prints it")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--findings", metavar="FILE", help="what `python -m compliance check --json` printed")
    add_score_options(parser, counts, without="window, over the runs given; mlperf for MLPerf logs without windows")


def main(args: argparse.Namespace) -> int:
    """Write the forms asked for. Returns 1 where a figure is missing, or is not the one that the protocol asks for."""
    systems = read_systems(args, args.logs)
    records = [record for _, runs in systems for record in runs]
    folders = {record.file: place for place, runs in systems if Path(place).is_dir() for record in runs}
    logs = {os.path.realpath(record.file) for record in records}
    for form in (args.html, args.markdown, args.csv):
        if form and os.path.realpath(form) in logs:
            raise InputError(f"{form} is one of the runs: give another file to write to")
    if args.runs is not None and args.protocol is None:
        raise InputError("--runs goes with --protocol: without one, the figure is over all runs given")
    protocol = protocol_of(args) if args.protocol is not None else None
    findings = read_findings(args.findings, records) if args.findings else {}
    report = build(records, protocol, skip=args.skip, findings=findings, logs={}, folders=folders)
    if args.csv:
        _write(args.csv, as_csv(report))
    if args.json:
        print(json.dumps(jsonable(values(report)), indent=1))
    if args.html or args.markdown or not (args.csv or args.json):
        shown = render.page(report, args_of(args))
        if args.html:
            _write(args.html, render.html(shown))
        if args.markdown or not (args.html or args.csv or args.json):
            _write(args.markdown or "-", render.markdown_text(shown))
    problems = [group.problem for group in report.groups if group.problem]
    for problem in problems:
        print(f"{called('scoring')} report: {problem}", file=sys.stderr)
    return 1 if problems else 0


def args_of(args: argparse.Namespace) -> list[str]:
    """The command line again, for the report's own commands."""
    words = list(args.logs)
    for name, value in vars(args).items():
        if name not in ("logs", "json", "command", "main") and value is not None:
            shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name}", shown]
    return words


def _write(file: str, text: str) -> None:
    """Writes a form that is whole under its name, or not there; a pipe or a device just takes it."""
    path = Path(file).resolve()
    if file == "-":
        sys.stdout.write(text)
    elif not path.parent.is_dir():
        raise InputError(f"{file}: no folder {path.parent} to write into; make it first")
    elif path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", newline="")
    else:
        half = path.with_name(f".{path.name}.half")
        try:
            half.write_text(text, encoding="utf-8", newline="")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)


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
                "source": curve.rows[0].source,
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


def as_csv(report: Report) -> str:
    """One row a run; an empty cell is what the log does not say."""
    rows = []
    for group in report.groups:
        unit = group.score.unit if group.score else None
        rows += [{"run": run.number, "group": group.name, "unit": unit, **_run(run)} for run in group.runs]
    return csv_text(list(rows[0]), sorted(rows, key=lambda row: row["run"]))
