"""Checks and scores the logs of a finished job, writes its report and prints the table of a run.

`python -m tools.summarize LOG... [--throughput]`. Each log is read once. Beside the first one it leaves findings.json
and report.html. Exit status: 0, or 1 where a log of a training run fails its check.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compliance import rules
from compliance.check import Report
from compliance.forms import as_json
from compliance.submission.runs import check_logs
from runlog import named_files, workloads
from runlog.json_types import JsonObject
from runlog.reader import HeldLog
from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.record import Record, TooFewRunsError
from scoring.report import render
from scoring.report.build import build, read_findings

RULESET = "4.0.0"


def _median_and_range(records: Sequence[Record], what: str, values: Sequence[float | None], form: str) -> str:
    """Return a figure of several runs as text: "74.2 s (median of 3; 73.9 s to 74.8 s)", of one run "74.2 s".

    `values` has the figure of each record. `form` writes one, as "{:.1f} s". If a run has no figure (None), the text
    is "no <what> in" and the names of the logs without.
    """
    known = []
    logs_without = []
    for record, value in zip(records, values, strict=True):
        if value is None:
            logs_without.append(record.file)
        else:
            known.append(value)
    if logs_without:
        return f"no {what} in {', '.join(logs_without)}"
    middle = form.format(statistics.median(known))
    if len(known) == 1:
        return middle
    return f"{middle} (median of {len(known)}; {form.format(min(known))} to {form.format(max(known))})"


def _training_rows(records: Sequence[Record], figure: Score) -> dict[str, str]:
    """Return the table's rows on the quality that the runs reached last and the time it took: {name: text}.

    Of several runs that is the median and the range; if a run has none, the text names its log. If the runs'
    score `figure` says what it counts as (`standing`), the unit of the time says so too, such as that it is no official
    time.
    """
    last_qualities: list[float | None] = []  # of each run
    for record in records:
        evaluations = record.quality
        last_qualities.append(evaluations[-1].value if evaluations else None)
    workload = workloads.of_model(records[0].model)
    metric = "eval_accuracy" if workload is None else workload.metric
    seconds = "s" if figure.standing is None else figure.standing.unit("s")
    times_s = [record.run_time_s for record in records]
    return {
        "quality": _median_and_range(records, "evaluation", last_qualities, f"{{:.4f}} {metric}"),
        "time to train": _median_and_range(records, "end", times_s, f"{{:.1f}} {seconds}"),
    }


def _data_wait(records: Sequence[Record]) -> str:
    """Return the share of the step time in which the runs waited for data, as text; the warm-up does not count."""
    waited_s = 0.0
    time_s = 0.0
    for record in records:
        for window in record.windows:
            if window.phase != "warmup":
                waited_s += window.data_wait_s or 0.0
                time_s += window.seconds or 0.0
    return f"{100 * waited_s / time_s:.2f} % of the step time"


def _rows(records: Sequence[Record], figure: Score, *, throughput: bool) -> dict[str, str]:
    """Return the rows of the printed table that say what the runs measured: {name: text}.

    With `throughput` there are none on quality and time to train, which runs of MODE=throughput do not have. If the
    score says what the figure counts as, there are rows on that, and on the data set and its target. The rows on
    throughput and on the wait for data are always there.
    """
    rows: dict[str, str] = {}
    if not throughput:
        rows.update(_training_rows(records, figure))
    if figure.standing is not None:
        rows["result"] = figure.standing.name
        rows["data set"] = f"{figure.standing.dataset_in_words}; target {figure.standing.target_in_words}"
    interval = "no interval"
    if figure.interval_95:
        low, high = figure.interval_95
        interval = f"95 % interval {low:.2f} to {high:.2f}"
    rows["throughput"] = f"{figure.value:.2f} {figure.shown_unit}, {interval} ({figure.interval_method})"
    rows["data wait"] = _data_wait(records)
    return rows


def _print_table(rows: Mapping[str, str]) -> None:
    """Print a row a line, its name first; the further lines of a text stand below its first one."""
    width = max(len(name) for name in rows) + 2
    for name, text in rows.items():
        aligned = text.replace("\n", "\n" + " " * width)
        print(name.ljust(width) + aligned)


def _print_errors(report: Report) -> None:
    """Print the errors that the check of a log found."""
    for finding in report.findings:
        if finding.severity == "error":
            where = f"{report.file}:{finding.line}: {finding.rule}"
            print(f"{where}: expected {finding.expected}, found {finding.actual}. {finding.fix}")


def summarize(paths: Sequence[Path], *, throughput: bool) -> int:
    """Score and check the logs of a job's runs, write their report beside them, and print a table of it all.

    Each log is read once and held in memory. The files findings.json (what the check found) and report.html are
    written to the first log's folder. With `throughput` the logs are not checked: such runs are no training result.

    Returns the exit status: 1 if a log fails its check, else 0. Raises ValueError if a log measured nothing, and
    TooFewRunsError if the runs are too few for a score.
    """
    logs = [HeldLog.read(path) for path in paths]
    records = [read_record(log) for log in logs]
    # The throughput of the steps that were measured, of however many runs there are.
    figure = score(records, dataclasses.replace(protocols.find("window"), runs=len(logs)))
    rows = _rows(records, figure, throughput=throughput)

    folder = logs[0].parent
    page_file = folder / "report.html"
    findings_file: Path | None = None
    checks: list[Report] = []
    if throughput:
        rows["check"] = "not applicable: a throughput run is no training result"
    else:
        findings_file = folder / "findings.json"
        checks = check_logs(logs, rules.load(RULESET), receipt=True)
        findings_file.write_text(as_json(checks), encoding="utf-8")
        verdicts = ["pass" if check.passed else "fail" for check in checks]
        rows["check"] = f"{', '.join(verdicts)} (ruleset {RULESET})"
    _write_page(page_file, logs, records, findings_file)

    rows["log"] = "\n".join(str(log) for log in logs)
    rows["report"] = str(page_file)
    _print_table(rows)
    for warning in figure.warnings:
        print(f"warning: {warning.check}: {warning.found}")
    for note in figure.footnotes:
        print(note)
    for check in checks:
        _print_errors(check)
    return 0 if all(check.passed for check in checks) else 1


def _write_page(
    page_file: Path, logs: Sequence[HeldLog], records: Sequence[Record], findings_file: Path | None
) -> None:
    """Write the report of the runs as an HTML page to `page_file`.

    The page says by which words of the command `scoring report` it can be made again. `findings_file` has what the
    check of the logs found; None if they were not checked.
    """
    log_by_name = {str(log): log for log in logs}
    words = list(log_by_name)  # of the command
    findings_by_file: dict[str, JsonObject] = {}
    if findings_file is not None:
        findings_by_file = read_findings(str(findings_file), records)
        words += ["--findings", str(findings_file)]
    words += ["--html", str(page_file)]
    report = build(
        records,
        None,
        skip=None,
        findings_by_file=findings_by_file,
        path_by_file=log_by_name,
        folder_by_file={},
    )
    page_file.write_text(render.html(render.page(report, words)), encoding="utf-8")


def main() -> int:
    """Summarize the logs that the command line names; return the exit status, 1 if one is at fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.summarize", description=__doc__)
    parser.add_argument("logs", nargs="+", metavar="LOG", type=Path)
    parser.add_argument("--throughput", action="store_true", help="runs of MODE=throughput: no quality, no check")
    args = parser.parse_args()
    try:
        return summarize(args.logs, throughput=args.throughput)
    except OSError as error:
        print(f"error: {named_files.explain(error)}", file=sys.stderr)
    except (TooFewRunsError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
