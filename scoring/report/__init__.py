"""`python -m scoring report`: one page from runs, as HTML, Markdown, CSV or JSON."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from runlog.json_types import JsonObject
from runlog.text import called, csv_text
from scoring.figure import warnings
from scoring.figure.options import add_score_options, counts, protocol_of
from scoring.figure.systems import read_systems
from scoring.importers import jsonable
from scoring.output import refuse_missing_folder
from scoring.record import FACTS, InputError, Record
from scoring.report import render
from scoring.report.build import build, read_findings
from scoring.report.content import Curve, Group, Report, ReportedRun, ScalingRow, values_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring report`."""
    parser.add_argument("logs", nargs="+", metavar="RUN", help="logs of one or more systems, or folders of them")
    parser.add_argument("--html", metavar="FILE", help="one self-contained page")
    parser.add_argument("--markdown", metavar="FILE", help="the same in text; - prints it, as does giving no form")
    parser.add_argument("--csv", metavar="FILE", help="one row a run; - prints it")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--findings", metavar="FILE", help="what `python -m compliance check --json` printed")
    add_score_options(
        parser, counts, default_in_words="window, over the runs given; mlperf for MLPerf logs without windows"
    )


def main(args: argparse.Namespace) -> int:
    """Write the report in each form that was asked for: CSV, JSON, HTML, Markdown. By default Markdown is printed.

    Returns the exit status. It is 1 where a group of runs has no figure, or not the one that the protocol asks for; why
    is printed to standard error. Else it is 0.
    """
    report = _report_of(args)
    if args.csv:
        _write(args.csv, as_csv(report))
    if args.json:
        print(json.dumps(jsonable(values(report)), indent=1))
    is_default = not (args.html or args.markdown or args.csv or args.json)
    if args.html or args.markdown or is_default:
        page = render.page(report, args_of(args))
        if args.html:
            _write(args.html, render.html(page))
        if args.markdown or is_default:
            _write(args.markdown or "-", render.markdown_text(page))

    problems = [group.problem for group in report.groups if group.problem]
    for problem in problems:
        print(f"{called('scoring')} report: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _report_of(args: argparse.Namespace) -> Report:
    """Read the runs that the command line names, and return their report.

    Raises InputError for --runs without --protocol, and for a form that would be written over a run's log.
    """
    records: list[Record] = []
    folders: dict[str, str] = {}  # the folder that was given in a run's place, by the run's file
    for given, records_of_given in read_systems(args, args.logs):  # each word given is a log or a folder of logs
        records += records_of_given
        if Path(given).is_dir():
            folders.update({record.file: given for record in records_of_given})

    logs = {os.path.realpath(record.file) for record in records}
    for output in (args.html, args.markdown, args.csv):
        if output and os.path.realpath(output) in logs:
            raise InputError(f"{output} is one of the runs: give another file to write to")
    if args.runs is not None and args.protocol is None:
        raise InputError("--runs goes with --protocol: without one, the figure is over all runs given")

    protocol = None if args.protocol is None else protocol_of(args)
    findings = read_findings(args.findings, records) if args.findings else {}
    return build(records, protocol, skip=args.skip, findings=findings, logs={}, folders=folders)


def args_of(args: argparse.Namespace) -> list[str]:
    """Return the words of the command line, as the report's own commands repeat them."""
    words = list(args.logs)
    for name, value in vars(args).items():
        if name in ("logs", "json", "command", "main") or value is None:
            continue
        shown = str(value)
        if isinstance(value, list):
            shown = ",".join(map(str, value))
        words += [f"--{name}", shown]
    return words


def _write(file: str, text: str) -> None:
    """Write a form of the report to a file; `-` is standard output.

    A file is written under another name first, so that it is never there in part, even if the writing is broken off. A
    pipe or a device cannot be replaced so, and is written to directly. Raises InputError where the file's folder is not
    there.
    """
    if file == "-":
        sys.stdout.write(text)
        return
    refuse_missing_folder(Path(file))
    path = Path(file).resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", newline="")
    else:
        unfinished = path.with_name(f".{path.name}.half")
        try:
            unfinished.write_text(text, encoding="utf-8", newline="")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def values(report: Report) -> JsonObject:
    """Return all of a report as JSON values, as `report --json` prints them; what is not known is null.

    `headline` is the index of the group whose figure stands first.
    """
    checks = [check.as_dict() for check in report.checks]
    return {
        "verdict": {"status": report.verdict.status, "text": report.verdict.text, "checks": checks},
        "headline": report.groups.index(report.headline),
        "groups": [_group_values(group) for group in report.groups],
        "scaling": [_scaling_values(rows) for rows in report.scaling],
        "published": [_curve_values(curve) for curve in report.curves],
        "published_note": report.curves_note,
        "mixture": warnings.as_json(report.mixture),
    }


def _scaling_values(rows: Sequence[ScalingRow]) -> list[JsonObject]:
    """Return the device counts of one system as JSON values."""
    shown = []
    for row in rows:
        fields = dict(vars(row))
        del fields["group"]
        shown.append(fields)
    return shown


def _curve_values(curve: Curve) -> JsonObject:
    """Return a published table as JSON values."""
    points = [{"devices": row.devices, "images_per_s": row.value, "row": row.line} for row in curve.rows]
    return {"label": curve.label, "source": curve.rows[0].source, "points": points}


def _group_values(group: Group) -> JsonObject:
    """Return a group of repeated runs as JSON values: its figure, the parts of a step, and each run.

    Where there is no figure, `score` is null and `problem` says why.
    """
    step_time = None
    if group.step_time is not None:
        step_time = asdict(group.step_time) | {"rest_s": group.step_time.rest_s}
    return {
        "name": group.name,
        "score": group.score.to_json() if group.score else None,
        "problem": group.problem,
        "step_time": step_time,
        "runs": [_run_values(run) for run in group.runs],
    }


def _run_values(run: ReportedRun) -> JsonObject:
    """Return a run as JSON values: its record's facts, its figure, how it ended, and what the compliance check said.

    What is not known is null. Beside the figure and the final quality stand the lines of the log that they come from.
    """
    record = run.record
    values: JsonObject = {"run": run.number}
    for name in ("file", "sha256", "format", *FACTS):
        values[name] = getattr(record, name)
    for name in ("value", "windows", "first_line", "last_line"):
        values[name] = getattr(run.figure, name, None)  # None of a run without a figure
    values["run_time_s"] = record.run_time_s
    values["status"] = record.status

    final_quality = record.quality[-1] if record.quality else None
    values["quality_name"] = final_quality.name if final_quality else None
    values["quality"] = final_quality.value if final_quality else None
    values["quality_line"] = final_quality.line if final_quality else None

    memory_mib: list[float] = values_of(record.windows, "gpu_memory_mib")
    values["most_gpu_memory_mib"] = max(memory_mib, default=None)
    power_w: list[float] = values_of(run.measured, "power_w")
    values["mean_power_w"] = sum(power_w) / len(power_w) if power_w else None
    values["seed"] = run.seed.value if run.seed else None
    values["compliance"] = run.findings["verdict"] if run.findings else None
    return values


def as_csv(report: Report) -> str:
    """Return one row for each run; an empty cell is what the log does not say."""
    rows = []
    for group in report.groups:
        unit = group.score.unit if group.score else None
        for run in group.runs:
            rows.append({"run": run.number, "group": group.name, "unit": unit} | _run_values(run))
    rows.sort(key=_run_number)
    return csv_text(list(rows[0]), rows)


def _run_number(row: JsonObject) -> int:
    """Return the number of a row's run, by which rows are sorted."""
    return int(row["run"])
