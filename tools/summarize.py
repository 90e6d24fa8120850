"""Checks and scores the logs of a finished job, writes its report and prints the table of a run.

`python -m tools.summarize LOG... [--throughput]`. Each log is read once. Beside the first one it leaves findings.json
and report.html. Exit status: 0, or 1 where a log of a training run fails its check.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compliance import rules
from compliance.check import Report
from compliance.forms import as_json
from compliance.submission.runs import check_logs
from runlog import workloads
from runlog.reader import HeldLog
from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.record import Record, TooFewRunsError
from scoring.report import render
from scoring.report.build import build, read_findings

RULESET = "4.0.0"


def _of_all(records: Sequence[Record], what: str, values: list[Any], form: str) -> str:
    """A figure of the run, the median and range of several, or which logs lack it."""
    if without := [record.file for record, value in zip(records, values, strict=True) if value is None]:
        return f"no {what} in {', '.join(without)}"
    low, middle, high = (form.format(of(values)) for of in (min, statistics.median, max))
    return middle if len(values) == 1 else f"{middle} (median of {len(values)}; {low} to {high})"


def _rows(records: Sequence[Record], figure: Score, *, throughput: bool) -> dict[str, str]:
    """Return the table's rows about the runs themselves."""
    rows = {}
    if not throughput:
        last = [record.quality[-1].value if record.quality else None for record in records]
        workload = workloads.of_model(records[0].model)
        measure = "eval_accuracy" if workload is None else workload.metric
        rows["quality"] = _of_all(records, "evaluation", last, f"{{:.4f}} {measure}")
        seconds = "s" if figure.standing is None else figure.standing.unit("s")
        rows["time to train"] = _of_all(
            records, "end", [record.run_time_s for record in records], f"{{:.1f}} {seconds}"
        )
    interval = "95 % interval {:.2f} to {:.2f}".format(*figure.interval_95) if figure.interval_95 else "no interval"
    if figure.standing is not None:
        rows["result"] = figure.standing.name
        rows["data set"] = f"{figure.standing.dataset_in_words}; target {figure.standing.target_in_words}"
    rows["throughput"] = f"{figure.value:.2f} {figure.shown_unit}, {interval} ({figure.interval_method})"
    windows = [window for record in records for window in record.windows if window.phase != "warmup"]
    waited_s, time_s = (sum(getattr(w, name) or 0.0 for w in windows) for name in ("data_wait_s", "seconds"))
    rows["data wait"] = f"{100 * waited_s / time_s:.2f} % of the step time"
    return rows


def summarize(paths: Sequence[Path], *, throughput: bool) -> int:
    """Prints the table of the runs; 1 where a log fails its check. Raises ValueError where one measured nothing."""
    logs = [HeldLog.read(path) for path in paths]
    folder, records = logs[0].parent, [read_record(log) for log in logs]
    figure = score(records, dataclasses.replace(protocols.find("window"), runs=len(logs)))
    rows = _rows(records, figure, throughput=throughput)
    held = {str(log): log for log in logs}
    reports, checked, command = list[Report](), dict[str, dict[str, Any]](), list(held)
    if throughput:
        rows["check"] = "not applicable: a throughput run is no training result"
    else:
        reports = check_logs(logs, rules.load(RULESET), receipt=True)
        findings = folder / "findings.json"
        findings.write_text(as_json(reports), encoding="utf-8")
        rows["check"] = f"{', '.join('pass' if check.passed else 'fail' for check in reports)} (ruleset {RULESET})"
        checked = read_findings(str(findings), records)
        command += ["--findings", str(findings)]
    rows["log"], rows["report"] = "\n".join(held), str(folder / "report.html")
    report = build(records, None, skip=None, findings=checked, logs=held, folders={})
    page = render.page(report, [*command, "--html", rows["report"]])
    Path(rows["report"]).write_text(render.html(page), encoding="utf-8")
    width = max(map(len, rows)) + 2
    for name, text in rows.items():
        print(f"{name:{width}}" + text.replace("\n", "\n" + " " * width))
    for warning in figure.warnings:
        print(f"warning: {warning.check}: {warning.found}")
    for note in figure.footnotes:
        print(note)
    for check in reports:
        for found in check.findings:
            if found.severity == "error":
                where = f"{check.file}:{found.line}: {found.rule}"
                print(f"{where}: expected {found.expected}, found {found.actual}. {found.fix}")
    return 0 if all(check.passed for check in reports) else 1


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.summarize", description=__doc__)
    parser.add_argument("logs", nargs="+", metavar="LOG", type=Path)
    parser.add_argument("--throughput", action="store_true", help="runs of MODE=throughput: no quality, no check")
    args = parser.parse_args()
    try:
        return summarize(args.logs, throughput=args.throughput)
    except (TooFewRunsError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
