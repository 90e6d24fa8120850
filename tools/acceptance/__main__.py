"""`./run_and_time.sh --acceptance [--short]`: what a user runs first on a new machine, 15 minutes at most.

launch/trials.sh starts one job for each precision on the ranks of the machine (CUDA's libraries decide on TF32 when
they are loaded, and a crash costs the lines of its own job only): `python -m tools.acceptance` on every rank. Rank 0
writes each line to a file when it is done. Then `--report FOLDER` puts the jobs' lines together: a table, a JSON file
and the exit status (0: none is fatal, 1: some are). What was not run is never ok.
"""

import argparse
import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness import env
from harness.__main__ import run_module
from paddle_rn50 import config
from runlog import named_files
from runlog.completion import complete
from runlog.errors import one_line, print_to_reader
from runlog.json_types import JsonObject
from runlog.options import Parser
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, as_text, worst
from tools.acceptance import CHECKS
from tools.acceptance.first_line import describe_job

FORMAT = {"format": "paddle-reference-acceptance", "version": 2}  # 2: its lines are runlog.verdict's

STATUSES = (OK, FATAL, UNKNOWN)  # of the checks: none gives a warning

JOB_SUFFIXES = {".lines", ".failed"}  # of the files that a job, or launch/trials.sh for it, leaves in the folder


class Results(NamedTuple):
    """The results of an acceptance, from the files of its jobs."""

    verdicts: list[Verdict]  # on each check of each precision, in the order of CHECKS
    nodes: list[JsonObject]  # that the jobs ran on, as the header of a log describes them; empty if no job wrote them
    job: JsonObject | None  # of `describe_job`; None if no job wrote it


def gather(folder: Path) -> Results:
    """Read the results of an acceptance from the files of its jobs.

    Each precision had a job of its own, which ran the checks of the precision. The job's file, such as fp32.lines, has
    a first line on the nodes and the job, and then a line for each check. A check without a line gets a verdict here
    that says why it was not run.

    Args:
        folder: The folder of the jobs' files.

    Returns:
        The verdicts, precision by precision, and the nodes and the job as a first line has them. Without any first
        line the nodes are an empty list, and the job is None.

    Raises:
        ValueError: The folder cannot be read or has no file of any job, or one of the files is damaged.
    """
    _check_folder(folder)  # raises ValueError
    # The first line of a file: {"nodes": [...], "job": {...}}. All jobs write the same, so the last one read is kept.
    nodes_and_job: JsonObject = {"nodes": []}  # stays so if no job has written a line
    verdicts: list[Verdict] = []
    for precision, checks in CHECKS.items():
        verdict_by_check: dict[str, Verdict] = {}  # of the checks that were run
        for line in _lines_of_job(folder / f"{precision}.lines"):  # no lines if there is no file
            if "nodes" in line:
                nodes_and_job = line
            elif "check" in line:
                verdict_by_check[line["check"]] = Verdict(**line)

        for check in checks:
            if check in verdict_by_check:
                verdicts.append(verdict_by_check[check])
            else:
                verdicts.append(_verdict_on_check_not_run(check, precision, folder))
    job = nodes_and_job.get("job")  # None if no job has written a line, or an older version wrote it without "job"
    return Results(verdicts, nodes_and_job["nodes"], job)


def _check_folder(folder: Path) -> None:
    """Raise ValueError if a folder cannot be read, or has no file of a job."""
    try:
        suffixes = {file.suffix for file in folder.iterdir()}
    except OSError as error:
        raise ValueError(named_files.explain(error)) from error
    if not suffixes & JOB_SUFFIXES:
        raise ValueError(
            f"{folder}: no file of an acceptance in it: give the folder that --acceptance printed as `logs`"
        )


def _lines_of_job(file: Path) -> list[JsonObject]:
    """Return the JSON objects of a job's file, which has one in each line.

    Args:
        file: The file, such as fp32.lines: first the nodes and the job, then a verdict on each check.

    Returns:
        The objects in their order; an empty list if there is no file.

    Raises:
        ValueError: The file cannot be read, or a line is not as a job writes it. The message has the line's number.
    """
    lines: list[JsonObject] = []
    text_of_file = _text_of(file)
    if text_of_file is None:
        return lines
    for number, text in enumerate(text_of_file.splitlines(), 1):
        try:
            line = json.loads(text)
            _check_line(line)
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{file}:{number}: is damaged: remove the line, and its check counts as one that was not run"
            ) from error
        lines.append(line)
    return lines


def _text_of(file: Path) -> str | None:
    """Return the text of a job's file, each byte that is not UTF-8 as U+FFFD; None if there is no file.

    Args:
        file: The file, such as fp32.lines or fp32.failed.

    Raises:
        ValueError: The file cannot be read.
    """
    try:
        if not file.is_file():
            return None
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(named_files.explain(error)) from error


def _check_line(line: JsonObject) -> None:
    """Raise an error if a line of a job's file is damaged.

    A job writes two kinds of lines. An object with neither "nodes" nor "check" is accepted as it is.

        {"nodes": [...], "job": {"short": false, ...}}              the nodes; older versions write no "job"
        {"check": "losses", "status": "ok", "found": "...", ...}    a verdict on a check

    Args:
        line: The JSON value of the line.

    Raises:
        TypeError: The line is not an object; a field shown above has the wrong type, such as "short" with a number; or
            a verdict has an unknown field.
        LookupError: "short", "status" or "found" is missing.
        ValueError: The status of a verdict is not "ok", "fatal" or "unknown".
    """
    _require_type(line, dict)
    if "nodes" in line:
        _require_type(line["nodes"], list)
        if "job" in line:
            _require_type(line["job"], dict)
            _require_type(line["job"]["short"], bool)
    elif "check" in line:
        for name in ("check", "status", "found"):
            _require_type(line[name], str)
        if line["status"] not in STATUSES:
            raise ValueError(line["status"])
        # Made only to see whether it can be made: TypeError if the class Verdict has no field of one of the names.
        Verdict(**line)


def _require_type(value: object, wanted: type) -> None:
    """Raise TypeError if a value is not of the wanted type."""
    if not isinstance(value, wanted):
        raise TypeError(value)


def _verdict_on_check_not_run(check: str, precision: str, folder: Path) -> Verdict:
    """Return the verdict on a check that was not run, with the reason.

    - "unknown" if no job was planned for the check's precision, and the settings on this machine allow none, such as
      tf32 on a CPU
    - "fatal" with the reason in the .failed file if there is such a file
    - "fatal" with "its job did not run it" in any other case

    Args:
        check: The name of the check.
        precision: The precision of the check's job, such as "fp32".
        folder: The folder of the jobs' files. A job that was planned has left fp32.lines or fp32.failed there, or both.

    Raises:
        ValueError: The file with the reason cannot be read.
    """
    lines_file = folder / f"{precision}.lines"  # written by the job: verdicts, but none on this check
    # Written by launch/trials.sh: why the job failed or was not started. None if there is no such file.
    reason = _text_of(folder / f"{precision}.failed")
    job_was_planned = lines_file.is_file() or reason is not None
    if not job_was_planned:
        # By the settings on this machine. A planned job may have run on another one, whose settings are not known.
        # The answer is such as "PRECISION=tf32: a CPU has no kernels for it"; empty if a job is possible.
        why_impossible = env.refusal(PRECISION=precision)
        if why_impossible:
            return Verdict(check=check, status=UNKNOWN, found=why_impossible, where=precision)

    if reason is None:  # the job left this check out, or there was no job although one is possible here
        reason = "its job did not run it"
    return Verdict(check=check, status=FATAL, found=f"not run: {reason.strip()}", where=precision)


def report(job: env.Job, folder: Path, *, short: bool) -> int:
    """Print the verdicts of an acceptance as a table, and write them to a JSON file, `<folder>.json`.

    Args:
        job: The settings of this environment's job.
        folder: The folder of the jobs' files, such as fp32.lines.
        short: Whether the jobs ran in their short form. Like `job`, this is used only if no file describes the jobs.

    Returns:
        The exit status: 1 if a verdict is fatal, else 0.

    Raises:
        ValueError: The files of the jobs cannot be read, or the JSON file cannot be written.
    """
    folder = folder.resolve()  # so that "." has a name, too
    results = gather(folder)  # `verdicts` on all checks, `nodes`, and `job`: how the jobs describe themselves, or None
    # {"short", "system", "ranks", "source", "packages"}: by the jobs themselves or, without that, made from `job`
    description = results.job or describe_job(job, short=short)
    totals = _totals_in_words(results.verdicts)  # "12 ok, 1 fatal, 0 unknown"
    if description["short"]:
        totals += ", in the short form"
    # The table comes first, so that a user sees it even if the file cannot be written.
    print_to_reader(f"\n{as_text(results.verdicts)}\nverdict   {totals}")
    document = FORMAT | {  # FORMAT has the name and the version of the format
        "verdict": totals,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **description,
        "nodes": results.nodes,
        "lines": [verdict.as_dict() for verdict in results.verdicts],
    }
    # Next to the folder. Not by with_suffix: the folder is named after the system, whose name may have a dot.
    path = folder.with_name(f"{folder.name}.json")
    _write_json(path, document)
    print_to_reader(f"report    {path}\nlogs      {folder}")
    return 1 if worst(results.verdicts) == FATAL else 0


def _totals_in_words(verdicts: Sequence[Verdict]) -> str:
    """Return how many verdicts have each status: "12 ok, 1 fatal, 0 unknown"."""
    counts = Counter(verdict.status for verdict in verdicts)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES)


def _write_json(path: Path, document: JsonObject) -> None:
    """Write a JSON object to a file; raise ValueError if the file cannot be written."""
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(named_files.explain(error)) from error


@one_line
def main() -> int:
    """Do one of the three steps of an acceptance, and return the exit status.

    launch/trials.sh starts the steps in this order:

    1. --precisions: print the precisions that can run.
    2. Started by mpirun as a rank, without such an option: run the checks of one precision with the other ranks.
    3. --report FOLDER: report on the checks of all precisions.

    Returns:
        0 without an error, 1 if the report has a fatal verdict. After an error in step 2 the status is that of
        `run_module`, such as 2 for wrong settings. Otherwise `one_line` prints a ValueError and returns 2.

    Raises:
        ValueError: The settings of the job, the folder or a file in it are unusable, the report cannot be written, or
            no step was asked for.
    """
    args = _arguments()
    if env.is_rank():  # mpirun started this process as a rank, and so has set OMPI_COMM_WORLD_SIZE
        # Calls `main` of tools/acceptance/rank.py, which runs the checks.
        # checks_precision=False: a GPU that cannot compute in the job's precision is not an error here. The verdicts on
        # the checks say it.
        return run_module("tools.acceptance.rank", checks_precision=False, short=args.short)

    job, _ = env.read()
    _check_job(job)  # raises ValueError
    if args.precisions:
        print_to_reader("\n".join(_precisions_that_can_run()))
        return 0
    if args.report:
        return report(job, args.report, short=args.short)
    # A user has started this module by hand.
    raise ValueError("the acceptance runs on all ranks of a machine: start it by ./run_and_time.sh --acceptance")


def _precisions_that_can_run() -> list[str]:
    """Return the precisions that the settings of the environment's job allow on this machine."""
    return [precision for precision in CHECKS if not env.refusal(PRECISION=precision)]


def _arguments() -> argparse.Namespace:
    """Return the options of the command line, or end the process with an error if one of them is wrong.

    Raises:
        ValueError: FOLDER of `--report FOLDER` leads to a pipe, a socket or a device, or is a symbolic link that leads
            back to itself.
    """
    parser = Parser(prog="python -m tools.acceptance", description=__doc__)
    asked_for = parser.add_mutually_exclusive_group()
    asked_for.add_argument("--precisions", action="store_true", help="print the precisions whose jobs can run here")
    asked_for.add_argument("--report", type=Path, metavar="FOLDER", help="report on the jobs whose files are in FOLDER")
    parser.add_argument("--short", action="store_true", help="the jobs run in their short form")
    complete(parser)  # answers and ends the process if a shell asks for completions
    args = parser.parse_args()
    named_files.check_options(args)  # raises ValueError if FOLDER is a pipe, for example
    return args


def _check_job(job: env.Job) -> None:
    """Raise ValueError unless a job trains ResNet-50 by launched steps."""
    is_resnet50 = job.model.package == config.__package__  # "paddle_rn50"
    if not is_resnet50:
        name = config.__package__.removeprefix("paddle_")
        raise ValueError(f"WORKLOAD={job.model.workload}: the acceptance trains ResNet-50: set WORKLOAD={name}")
    if job.model.knobs.cuda_graph:
        why = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
        raise ValueError(f"STRATEGY: cuda_graph=1: {why}")


if __name__ == "__main__":
    sys.exit(main())
