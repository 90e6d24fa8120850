"""`python -m scoring report`: one page from runs, as HTML, Markdown, CSV or JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from runlog.text import called
from scoring.figure.score import add_score_options, protocol_of
from scoring.figure.systems import counts, read_systems
from scoring.importers import jsonable
from scoring.published.table import read_published
from scoring.record import InputError
from scoring.report import render
from scoring.report.build import build, read_findings
from scoring.report.values import csv_text, values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring report`."""
    parser.add_argument("logs", nargs="+", metavar="RUN", help="logs of one or more systems, or folders of them")
    parser.add_argument("--html", metavar="FILE", help="one self-contained page")
    parser.add_argument("--markdown", metavar="FILE", help="the same in text; - prints it, as does giving no form")
    parser.add_argument("--csv", metavar="FILE", help="one row a run; - prints it")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--findings", metavar="FILE", help="what `python -m compliance check --json` printed")
    add_score_options(parser, counts, without="window, over the runs given")


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
    options = {"skip": args.skip, "findings": findings, "folders": folders}
    report = build(records, protocol, published=read_published(), logs={}, **options)
    if args.csv:
        _write(args.csv, csv_text(report))
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
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, encoding="utf-8", newline="")
