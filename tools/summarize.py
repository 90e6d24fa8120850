"""Checks and scores the logs of a finished job, writes its report and prints the table of a run.

`python -m tools.summarize LOG... [--throughput]`. Each log is read once. Beside the first one it leaves findings.json
and report.html. Exit status: 0, or 1 where a log of a training run fails its check.
"""

import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compliance import rules
from compliance.check import Report
from compliance.forms import as_json
from compliance.submission.runs import check_logs
from runlog import named_files, workloads
from runlog.errors import RunError, flush_output
from runlog.json_types import JsonObject
from runlog.options import Parser
from runlog.reader import HeldLog
from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score, score_without_figure
from scoring.figure.window_warnings import waiting_share
from scoring.importers import read_record
from scoring.output import replace_whole_file
from scoring.record import NothingMeasuredError, Record, TooFewRunsError, Window
from scoring.report import render
from scoring.report.build import GivenLog, build, read_findings

RULESET = "4.0.0"


def _median_and_range(values: Sequence[float], *, decimals: int, unit: str) -> str:
    """Return the median of a value as text, with the range if there are values of several runs.

    For instance "74.2 s", or "74.2 s (median of 3; 73.9 s to 74.8 s)".

    Args:
        values: The value of each run; at least one.
        decimals: Number of digits after the point.
        unit: Unit of the values, such as "s".
    """
    median = f"{statistics.median(values):.{decimals}f} {unit}"
    if len(values) == 1:
        return median
    least = f"{min(values):.{decimals}f} {unit}"
    most = f"{max(values):.{decimals}f} {unit}"
    return f"{median} (median of {len(values)}; {least} to {most})"


def _quality_row(records: Sequence[Record]) -> str:
    """Return the quality in the last evaluation of the runs as text: its median and its range over the runs.

    Args:
        records: What the log of each run says; at least one.

    Returns:
        Text such as "0.7590 eval_accuracy". If some runs have no evaluation, it names their logs instead: "no
        evaluation in run_1.txt, run_3.txt".
    """
    without_evaluation = [record.file for record in records if not record.quality]
    if without_evaluation:
        return f"no evaluation in {', '.join(without_evaluation)}"
    last_qualities = [record.quality[-1].value for record in records]
    workload = workloads.of_model(records[0].model)
    metric = "eval_accuracy" if workload is None else workload.metric
    return _median_and_range(last_qualities, decimals=4, unit=metric)


def _time_row(records: Sequence[Record], job_score: Score) -> str:
    """Return the time to train as text: its median and its range over the runs.

    Args:
        records: What the log of each run says; at least one.
        job_score: The score of all runs. For logs in the form of MLPerf it gives the unit, which is "s (unverified)" if
            the result uses the name of MLPerf.

    Returns:
        Text such as "74.2 s". If some logs have no end, it names these instead: "no end in run_1.txt, run_3.txt". If
        some runs were resumed, it names their logs, because the time before is missing in these.
    """
    without_end = [record.file for record in records if record.run_time_s is None]
    if without_end:
        return f"no end in {', '.join(without_end)}"
    resumed = [record.file for record in records if record.is_resumed]
    if resumed:
        return f"unknown: resumed from a checkpoint in {', '.join(resumed)}"
    times_s = [record.run_time_s for record in records if record.run_time_s is not None]  # of all: none is None here
    unit = "s"
    if job_score.standing is not None:  # the logs have the form of MLPerf logs
        unit = job_score.standing.unit("s")
    return _median_and_range(times_s, decimals=1, unit=unit)


def _data_wait(records: Sequence[Record]) -> str:
    """Return as text which share of the step time the runs waited for data, over all runs without the warm-up.

    Args:
        records: What the log of each run says.

    Returns:
        Text such as "1.25 % of the step time". If no log states how long it waited, it is "not stated".
    """
    measured_windows: list[Window] = []
    for record in records:
        measured_windows += [window for window in record.windows if window.phase != "warmup"]
    share = waiting_share(measured_windows)
    return "not stated" if share is None else f"{100 * share:.2f} % of the step time"


def _measured_rows(records: Sequence[Record], job_score: Score, *, throughput_only: bool) -> dict[str, str]:
    """Return the rows of the printed table that say what the runs measured, by their names.

    Args:
        records: What the log of each run says; at least one.
        job_score: The score of all runs: the throughput with its interval and, for logs in the form of MLPerf, how the
            result stands.
        throughput_only: Whether the runs did not train to a target, so that they have no quality and no time to train.

    Returns:
        Texts such as {"throughput": "2513.40 images/s, 95 % interval ...", "data wait": "1.25 % of the step time"}.
    """
    rows: dict[str, str] = {}
    if not throughput_only:
        rows["quality"] = _quality_row(records)
        rows["time to train"] = _time_row(records, job_score)
    standing = job_score.standing  # None if the logs do not have the form of MLPerf logs
    if standing is not None:
        rows["result"] = standing.name
        rows["data set"] = f"{standing.dataset_in_words}; target {standing.target_in_words}"
    rows["throughput"] = _throughput_row(job_score)
    rows["data wait"] = _data_wait(records)
    return rows


def _throughput_row(job_score: Score) -> str:
    """Return the throughput as text, with its interval, and how that was made or why there is none.

    Args:
        job_score: The score of all runs. If it has no figure, the text is "not measured"; a warning of it says why.
    """
    if math.isnan(job_score.value):
        return "not measured"
    method = job_score.interval_method
    if job_score.interval_95 is None:
        interval = method  # "none: " and why there is none
    else:
        low, high = job_score.interval_95
        interval = f"{low:.2f} to {high:.2f} ({method})"
    return f"{job_score.value:.2f} {job_score.shown_unit}, 95 % interval {interval}"


def _score_of_job(records: Sequence[Record], protocol: Protocol, *, throughput_only: bool) -> Score:
    """Return the score of a job's runs. Trainings too short for a throughput have a score without a figure.

    A small data set may reach its target within the protocol's warm-up, and so may a run that was resumed near its end.
    Such a run has a quality and a time to train, and it can be checked.

    Args:
        records: What the log of each run says; at least one.
        protocol: The rules by which the throughput is scored.
        throughput_only: Whether the runs measured only throughput, so that nothing is left of them without it.

    Raises:
        ValueError: A run that should measure throughput measured nothing, or the systems differ.
        TooFewRunsError: The runs are too few to be scored.
    """
    try:
        return score(records, protocol)
    except NothingMeasuredError as error:
        if throughput_only:
            raise
        return score_without_figure("nothing_measured", error, protocol, records)


def _print_table(rows: Mapping[str, str]) -> None:
    """Print each row as its name and its text. All lines of a text begin in the same column.

    Args:
        rows: Texts by the name of the row; at least one. A text may have several lines.
    """
    name_width = max(len(name) for name in rows) + 2
    for name, text in rows.items():
        aligned_text = text.replace("\n", "\n" + " " * name_width)
        print(name.ljust(name_width) + aligned_text)


def _print_notes(job_score: Score) -> None:
    """Print the warnings and the footnotes of a score, a line each. A warning about one run names its log.

    Args:
        job_score: The score of all runs.
    """
    for warning in job_score.warnings:
        where = f"{Path(warning.where).name}: " if warning.where else ""
        print(f"warning: {warning.check}: {where}{warning.found}")
    for note in job_score.footnotes:
        print(note)


def _print_errors(report: Report) -> None:
    """Print the errors that the check of a log found, a line each; its warnings are not printed.

    Args:
        report: What the check of one log found.
    """
    for finding in report.findings:
        if finding.severity == "error":
            where = report.file if finding.line is None else f"{report.file}:{finding.line}"
            print(f"{where}: {finding.rule}: expected {finding.expected}, found {finding.actual}. {finding.fix}")


def _check(logs: Sequence[HeldLog], findings_file: Path) -> list[Report]:
    """Check logs by the rules of MLPerf, in the version RULESET, and write down what was found.

    A receipt, LOG.checked, is also written next to each log.

    Args:
        logs: The logs, already read into memory.
        findings_file: The JSON file that gets what was found.

    Returns:
        What the check of each log found, in the order of the logs.
    """
    checks = check_logs(logs, rules.load(RULESET), receipt=True)
    replace_whole_file(findings_file, as_json(checks))
    return checks


def summarize(paths: Sequence[Path], *, throughput_only: bool) -> int:
    """Score and check the logs of a job's runs, write a report of them, and print a table of the results.

    The report.html, and what the check found, findings.json, are written next to the first log.

    Args:
        paths: The logs of repeated runs of one system, at least one.
        throughput_only: Whether the runs measured only throughput; these are not checked.

    Returns:
        The exit status: 1 if a log fails its check, else 0.

    Raises:
        ValueError: A run of a throughput job measured nothing, or the systems differ.
        TooFewRunsError: The runs are too few to be scored.
        OSError: A file cannot be read or written.
    """
    logs = [HeldLog.read(path) for path in paths]
    records = [read_record(log) for log in logs]
    # The protocol "window" scores the throughput of the measured steps. By itself it is over one run; here, over all.
    protocol = dataclasses.replace(protocols.find("window"), runs=len(logs))
    job_score = _score_of_job(records, protocol, throughput_only=throughput_only)
    rows = _measured_rows(records, job_score, throughput_only=throughput_only)

    folder = logs[0].parent
    page_file = folder / "report.html"
    findings_file: Path | None = None
    checks: list[Report] = []
    if not throughput_only:
        findings_file = folder / "findings.json"
        checks = _check(logs, findings_file)
    _write_page(page_file, logs, records, findings_file)  # it reads the findings that were just written

    rows["check"] = _check_row(checks)
    rows["log"] = "\n".join(str(log) for log in logs)
    rows["report"] = str(page_file)
    _print_table(rows)
    _print_notes(job_score)
    for check in checks:
        _print_errors(check)
    return 0 if all(check.passed for check in checks) else 1


def _check_row(checks: Sequence[Report]) -> str:
    """Return the verdicts of the checks as text, one for each log: "pass, fail (ruleset 4.0.0)".

    Args:
        checks: What the check of each log found; empty for throughput runs, which are not checked.
    """
    if not checks:
        return "not applicable: a throughput run is not a training result"
    verdicts = ["pass" if check.passed else "fail" for check in checks]
    return f"{', '.join(verdicts)} (ruleset {RULESET})"


def _write_page(
    page_file: Path, logs: Sequence[HeldLog], records: Sequence[Record], findings_file: Path | None
) -> None:
    """Write the report of the runs as an HTML page, which also shows the command that makes it anew.

    Args:
        page_file: The file of the page.
        logs: Paths of the logs, which hold the logs' bytes.
        records: What each of the logs says, in the same order.
        findings_file: JSON file with what the check of the logs found; None if they were not checked.
    """
    findings_by_file: dict[str, JsonObject] = {}
    if findings_file is not None:
        findings_by_file = read_findings(str(findings_file), records)
    given_logs = []
    for log, record in zip(logs, records, strict=True):
        given_logs.append(GivenLog(record=record, path=log, findings=findings_by_file.get(record.file)))
    # Without a protocol, `build` chooses one that suits the logs. Without `skip`, it drops as much of the start of each
    # run as the chosen protocol says.
    report = build(given_logs, protocol=None, skip=None)
    arguments = _report_arguments(page_file, logs, findings_file)
    replace_whole_file(page_file, render.html(render.page(report, arguments)))


def _report_arguments(page_file: Path, logs: Sequence[Path], findings_file: Path | None) -> list[str]:
    """Return the arguments of `scoring report` that make a page of the logs: LOG... [--findings FILE] --html PAGE.

    Args:
        page_file: The file of the page.
        logs: Paths of the logs; one that is given twice is named once.
        findings_file: JSON file with what the check of the logs found; None if they were not checked.
    """
    names = dict.fromkeys(str(log) for log in logs)  # each name once
    if findings_file is None:
        return [*names, "--html", str(page_file)]
    return [*names, "--findings", str(findings_file), "--html", str(page_file)]


def main() -> int:
    """Summarize the logs that the command line names.

    Returns the exit status: 1 if a log fails its check or an error was printed, else 0.
    """
    parser = Parser(prog="python -m tools.summarize", description=__doc__)
    parser.add_argument("logs", nargs="+", metavar="LOG", type=Path)
    parser.add_argument("--throughput", action="store_true", help="runs of MODE=throughput: no quality, no check")
    args = parser.parse_args()
    try:
        status = summarize(args.logs, throughput_only=args.throughput)
        flush_output()
        return status
    except OSError as error:
        print(f"error: {named_files.explain(error)}", file=sys.stderr)
    except (TooFewRunsError, RunError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
