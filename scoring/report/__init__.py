"""`python -m scoring report`: one page from runs, as HTML, Markdown, CSV or JSON."""

import argparse
import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from runlog.json_types import JsonObject
from runlog.text import called, csv_text
from scoring.figure import warnings
from scoring.figure.options import add_score_options, counts, protocol_of
from scoring.figure.systems import read_systems
from scoring.importers import jsonable
from scoring.output import refuse_missing_folder, replace_whole_file
from scoring.record import FACTS, InputError, Record
from scoring.report import render
from scoring.report.build import GivenLog, build, read_findings
from scoring.report.content import Curve, Group, Report, ReportedRun, ScalingRow, values_of

_NUMBER_OF_STREAM = {"/dev/stdout": 1, "/dev/stderr": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring report`."""
    parser.add_argument("logs", nargs="+", metavar="RUN", help="logs of one or more systems, or folders of them")
    parser.add_argument("--html", metavar="FILE", help="one self-contained page")
    parser.add_argument("--markdown", metavar="FILE", help="the same in text; - prints it, as does giving no form")
    parser.add_argument("--csv", metavar="FILE", help="one row a run; - prints it")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--findings", metavar="FILE", help="what `python -m compliance check --json` printed")
    add_score_options(
        parser, counts, default_in_words="window, over the runs given; mlperf for MLPerf logs without rates"
    )


def main(args: argparse.Namespace) -> int:
    """Write the report in each requested form: CSV, JSON, HTML, Markdown. By default Markdown is printed.

    Args:
        args: Options of the command line (see `add_arguments`).

    Returns:
        The exit status: 1 if a group of runs has a problem, which is then printed on stderr, else 0. The problem is
        that the group has no figure, or not the one that the protocol asks for.

    Raises:
        InputError: The logs or the options cannot be used.
    """
    _refuse_to_print_several_forms(args)
    report = _build_report(args)
    text_by_file = _text_by_file(report, args)
    printed = text_by_file.pop("-", "")
    for file, text in text_by_file.items():
        _write(file, text)
    print(printed, end="")  # last, because a reader that has seen enough, such as `| head`, ends the command

    problems = [group.problem for group in report.groups if group.problem]
    for problem in problems:
        print(f"{called('scoring')} report: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _text_by_file(report: Report, args: argparse.Namespace) -> dict[str, str]:
    """Return the report in each requested form, by the file to write it to; `-` stands for standard output.

    Args:
        report: The content of the report.
        args: Options of the command line (see `add_arguments`). At most one form is for standard output.
    """
    asks_for_a_form = args.html or args.markdown or args.csv or args.json
    markdown_file = args.markdown if asks_for_a_form else "-"
    text_by_file = {}
    if args.csv:
        text_by_file[_file_or_dash(args.csv)] = as_csv(report)
    if args.json:  # the one form that is always printed
        text_by_file["-"] = json.dumps(jsonable(values(report)), indent=1) + "\n"
    if args.html or markdown_file:
        page = render.page(report, command_words(args))
        if args.html:
            text_by_file[_file_or_dash(args.html)] = render.html(page)
        if markdown_file:
            text_by_file[_file_or_dash(markdown_file)] = render.markdown_text(page)
    return text_by_file


def _file_or_dash(file: str) -> str:
    """Return `-` for a path that leads to standard output, such as /dev/stdout, and any other path as it is.

    Args:
        file: Path of a file to write to, or `-` for standard output.
    """
    return "-" if _is_standard_output(file) else file


def _is_standard_output(file: str) -> bool:
    """Return whether a path leads to standard output: `-`, a name such as /dev/stdout, or the file that it goes to.

    Args:
        file: Path of a file to write to, or `-` for standard output.
    """
    if file == "-" or _number_of_open_file(file) == 1:
        return True
    try:
        status_of_path = Path(file).stat()
        status_of_standard_output = os.fstat(1)
    except OSError:  # nothing is there, or standard output is closed
        return False
    # By `report RUN --html a.html > a.html`, standard output is the file a.html. If `_write` put a new file there, what
    # the command prints would be lost.
    is_same_file = os.path.samestat(status_of_path, status_of_standard_output)
    return is_same_file and stat.S_ISREG(status_of_path.st_mode)


def _build_report(args: argparse.Namespace) -> Report:
    """Read the runs that the command line names, and return the content of their report.

    Args:
        args: Options of the command line (see `add_arguments`). `logs` are the logs and folders, `protocol` and `runs`
            say how to make the figures, and `skip` replaces the warm-up that is dropped at the start of each run.
            `findings` is a file with what the compliance check found.

    Raises:
        InputError: Logs, findings or the protocol cannot be used, no file holds a run, --runs is given without
            --protocol, or an output file is the log of a run.
        OSError: A log, or the file of the findings or of the protocol, cannot be opened.
    """
    found = _find_logs(args)
    records = [log.record for log in found.logs]
    _refuse_to_overwrite_logs(args, records)  # now that the files in the folders are known
    if args.runs is not None and args.protocol is None:
        raise InputError("--runs goes with --protocol: without one, the figure is over all runs given")

    protocol = None if args.protocol is None else protocol_of(args)
    logs = found.logs
    if args.findings:
        findings = read_findings(args.findings, records)
        logs = [replace(log, findings=findings.get(log.record.file)) for log in logs]
    return build(logs, protocol, skip=args.skip, files_left_out=found.files_left_out)


class _FoundLogs(NamedTuple):
    """The logs that the command line names, and how many files of its folders hold no run."""

    logs: list[GivenLog]
    files_left_out: int


def _find_logs(args: argparse.Namespace) -> _FoundLogs:
    """Read the logs and folders of the command line, and say on stderr which files of folders hold no run.

    Args:
        args: Options of the command line (see `add_arguments`).

    Raises:
        InputError: A log cannot be used, or no file holds a run.
        OSError: A log cannot be opened.
    """
    logs: list[GivenLog] = []
    reasons_left_out: list[str] = []  # one for each file that holds no run
    for system in read_systems(args, args.logs, leave_out_files_without_run=True):
        folder = system.path if Path(system.path).is_dir() else None  # None: the log was given by itself
        logs += [GivenLog(record=record, path=record.file, folder=folder) for record in system.records]
        reasons_left_out += system.left_out

    if not logs:  # all files were left out; there is at least one, because `read_systems` refuses an empty folder
        raise InputError(reasons_left_out[0])
    for reason in reasons_left_out:
        print(f"{called('scoring')} report: {reason}; left out", file=sys.stderr)
    return _FoundLogs(logs, files_left_out=len(reasons_left_out))


def _refuse_to_print_several_forms(args: argparse.Namespace) -> None:
    """Raise InputError if more than one form of the report is to be printed: no reader could tell them apart.

    Args:
        args: Options of the command line (see `add_arguments`).

    Raises:
        InputError: More than one form is to be printed. The message names their options.
    """
    printed = []
    for option, file in (("--html", args.html), ("--markdown", args.markdown), ("--csv", args.csv)):
        if file and _is_standard_output(file):
            printed.append(f"{option} {file}")
    if args.json:
        printed.append("--json")
    if len(printed) > 1:
        raise InputError(f"{' and '.join(printed)}: only one form can be printed; write the others to files")


def _refuse_to_overwrite_logs(args: argparse.Namespace, records: Sequence[Record]) -> None:
    """Raise InputError if a file that the report is to be written to is the log of a run.

    Args:
        args: Options of the command line, with the files to write to.
        records: The runs of the report, with the paths of their logs.

    Raises:
        InputError: The report would overwrite a log.
    """
    log_paths = {os.path.realpath(record.file) for record in records}
    for output in (args.html, args.markdown, args.csv):
        if output and os.path.realpath(output) in log_paths:
            raise InputError(f"{output} is one of the runs: give another file to write to")


def command_words(args: argparse.Namespace) -> list[str]:
    """Return the words after `report` on its command line, so that the page can show how to repeat it.

    Args:
        args: Options of the command line (see `add_arguments`).

    Returns:
        The logs, and then each option that was given with its value, such as "--html", "report.html". --json is left
        out, because it does not change the page.
    """
    words = list(args.logs)
    for name, value in vars(args).items():
        # `command` and `main` are not options: the parser keeps there that the subcommand is `report`.
        is_shown_option = name not in ("logs", "json", "command", "main")
        if is_shown_option and value is not None:
            in_one_word = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name}", in_one_word]
    return words


def _write(file: str, text: str) -> None:
    """Write the text of a report to a file, a pipe, a device, or an open file of this process such as /dev/stderr.

    Args:
        file: Path of the file.
        text: The report in one of its forms.

    Raises:
        InputError: The file's folder does not exist.
        OSError: The file cannot be written.
    """
    path = Path(file)
    refuse_missing_folder(path)
    open_file = _number_of_open_file(file)
    is_pipe_or_device = path.exists() and not path.is_file()
    if open_file is not None and path.exists():
        _write_to_open_file(open_file, file, text)
    elif is_pipe_or_device:  # no file may take its place, and a pipe of the shell has no folder for a new file
        path.write_text(text, encoding="utf-8", newline="")
    else:  # an interrupted write leaves the old file
        replace_whole_file(path, text)


def _write_to_open_file(number: int, file: str, text: str) -> None:
    """Write a text to an open file of this process, and leave it open.

    Args:
        number: Number of the open file, such as 2 for standard error.
        file: Its path, for the error.
        text: The text.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        with open(number, "w", encoding="utf-8", newline="", closefd=False) as stream:
            stream.write(text)
    except OSError as error:  # which names no path
        raise OSError(error.errno, error.strerror, file) from error


def _number_of_open_file(file: str) -> int | None:
    """Return the number of the open file of this process that a path names, such as 2 for /dev/stderr; else None.

    Args:
        file: Path of a file to write to.
    """
    by_number = re.fullmatch(r"/(?:dev|proc/self)/fd/(0|[1-9][0-9]{0,8})", file)
    return int(by_number[1]) if by_number else _NUMBER_OF_STREAM.get(file)


def values(report: Report) -> JsonObject:
    """Return all of a report as plain values, as `report --json` prints them.

    Args:
        report: The content of the report.

    Returns:
        The verdict, the groups of repeated runs, the scaling tables, the published tables, and warnings of settings
        that differ within a table. `headline` is the index of the group whose figure the page shows first. None stands
        for what is not known.
    """
    checks = [check.as_dict() for check in report.checks]
    return {
        "verdict": {"status": report.verdict.status, "text": report.verdict.text, "checks": checks},
        "headline": report.groups.index(report.headline),  # the group whose figure the page shows first
        "groups": [_group_values(group) for group in report.groups],
        "scaling": [_scaling_values(rows) for rows in report.scaling],
        "published": [_curve_values(curve) for curve in report.curves],
        "published_note": report.curves_note,  # which tables these are, or why there are none
        "mixture": warnings.as_json(report.mixture),  # of scaling tables
    }


def _scaling_values(rows: Sequence[ScalingRow]) -> list[JsonObject]:
    """Return the scaling table of one system as JSON values, a row for each number of devices.

    Args:
        rows: The rows of the table, each with the group of runs that it is of, which is left out.
    """
    shown = []
    for row in rows:
        fields = dict(vars(row))
        del fields["group"]  # the JSON has all groups in a list of their own
        del fields["rate_of_a_device"]
        shown.append(fields | {"efficiency": row.efficiency})
    return shown


def _curve_values(curve: Curve) -> JsonObject:
    """Return a published table as JSON values."""
    points = [{"devices": row.devices, "images_per_s": row.value, "row": row.line} for row in curve.rows]
    return {"label": curve.label, "source": curve.rows[0].source, "points": points}


def _group_values(group: Group) -> JsonObject:
    """Return a group of repeated runs as plain values for JSON: its figure, the parts of a step, and each run.

    Args:
        group: The repeated runs.

    Returns:
        The values. `score` is the figure, or None. `problem` says why there is none, or why it is not the one that the
        protocol asks for; it is None for a group without a problem.
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
    """Return a run as plain values for JSON: what its log says, its figure, and the verdict of the compliance check.

    Args:
        run: A run of the report.

    Returns:
        The values; None for what is not known. `first_line` and `last_line` are the first and the last line of the log
        that the figure comes from. `quality_line` is the line of the last evaluation.
    """
    record = run.record
    fields: JsonObject = {"run": run.number}
    for name in ("file", "sha256", "format", *FACTS):
        fields[name] = getattr(record, name)
    for name in ("value", "windows", "first_line", "last_line"):
        fields[name] = getattr(run.figure, name, None)  # None if the run has no figure
    fields["run_time_s"] = record.run_time_s
    fields["status"] = record.status

    final_quality = record.quality[-1] if record.quality else None  # None: the log has no evaluation
    fields["quality_name"] = getattr(final_quality, "name", None)
    fields["quality"] = getattr(final_quality, "value", None)
    fields["quality_line"] = getattr(final_quality, "line", None)

    memory_mib: list[float] = values_of(record.windows, "gpu_memory_mib")
    fields["most_gpu_memory_mib"] = max(memory_mib, default=None)
    fields["mean_power_w"] = run.mean_power_w
    fields["seed"] = run.seed.value if run.seed else None
    fields["compliance"] = run.findings["verdict"] if run.findings else None
    return fields


def as_csv(report: Report) -> str:
    """Return the report as CSV: a row for each run, in the order given.

    Args:
        report: The content of the report.

    Returns:
        The text, with a head. A cell is empty if the log does not say its value.
    """
    rows = []
    for group in report.groups:
        unit = group.score.unit if group.score else None
        for run in group.runs:
            rows.append({"run": run.number, "group": group.name, "unit": unit} | _run_values(run))
    rows.sort(key=_run_number)
    return csv_text(list(rows[0]), rows)


def _run_number(row: JsonObject) -> int:
    """Return the number of a row's run, to sort rows by."""
    return int(row["run"])
