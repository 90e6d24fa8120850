"""Checks and scores the logs of a finished job through the public commands and prints the table of a run.

`python launch/summarize.py LOG... [--throughput]`. Exit status: 0, or 1 where a log of a training run fails its check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

QUALITY = {"resnet50_v1.5": "top-1", "fcn_hrnetw18": "mIoU"}  # of each model, as a log's run_summary names it


def _ask(*command: str) -> Any:
    """JSON answer of one of the project's commands; what it says against the logs is passed on."""
    done = subprocess.run([sys.executable, "-m", *command, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise ValueError(f"{' '.join(command[:2])}: {done.stderr.strip() or 'no answer'}")
    return json.loads(done.stdout)


def _range(values: list[float], form: str) -> str:
    """A value, or the median and range of several."""
    if len(values) == 1:
        return form.format(values[0])
    low, middle, high = (form.format(v) for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} (median of {len(values)}; {low} to {high})"


def _of_all(records: list[dict[str, Any]], what: str, values: list[Any], form: str) -> str:
    """A figure over all runs, or which logs lack it."""
    if without := [record["file"] for record, value in zip(records, values, strict=True) if value is None]:
        return f"no {what} in {', '.join(without)}"
    return _range(values, form)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python launch/summarize.py", description=__doc__)
    parser.add_argument("logs", nargs="+", metavar="LOG")
    parser.add_argument("--throughput", action="store_true", help="runs of MODE=throughput: no quality, no check")
    args = parser.parse_args()
    report = Path(args.logs[0]).parent / "report.html"

    table = Table(show_header=False, box=None, pad_edge=False)
    records = _ask("scoring", "import", *args.logs)
    score = _ask("scoring", "score", *args.logs, "--protocol", "window", "--runs", str(len(args.logs)))
    failed = False
    findings: list[str] = []
    checked: list[str] = []
    if not args.throughput:
        last = [r["quality"][-1]["value"] if r["quality"] else None for r in records]
        measure = QUALITY.get(records[0]["model"], "eval_accuracy")
        table.add_row("quality", _of_all(records, "evaluation", last, f"{{:.4f}} {measure}"))
        ended = [r["run_stop_s"] - r["run_start_s"] if r["run_stop_s"] else None for r in records]
        table.add_row("time to train", _of_all(records, "end", ended, "{:.1f} s"))
    interval = "95 % interval {:.2f} to {:.2f}".format(*score["interval_95"]) if score["interval_95"] else "no interval"
    throughput = f"{score['value']:.2f} {score['unit']}, {interval} ({score['interval_method']})"
    table.add_row("throughput", throughput)
    windows = [window for record in records for window in record["windows"] if window["phase"] != "warmup"]
    waited, time_s = sum(w["data_wait_s"] for w in windows), sum(w["seconds"] for w in windows)
    table.add_row("data wait", f"{100 * waited / time_s:.2f} % of the step time")
    if args.throughput:
        table.add_row("check", "not applicable: a throughput run is no training result")
    else:
        answer = _ask("compliance", "check", *args.logs, "--receipt")
        report.with_name("findings.json").write_text(json.dumps(answer, indent=1), encoding="utf-8")
        checked = ["--findings", str(report.with_name("findings.json"))]
        verdicts = answer["files"]
        failed = any(file["verdict"] != "pass" for file in verdicts)
        table.add_row("check", ", ".join(file["verdict"] for file in verdicts) + " (ruleset 4.0.0)")
        for file in verdicts:
            findings += [
                f"{file['file']}:{f['line']}: {f['rule']}: expected {f['expected']}, found {f['actual']}. {f['fix']}"
                for f in file["findings"]
                if f["severity"] == "error"
            ]
    table.add_row("log", "\n".join(args.logs))
    _ask("scoring", "report", *args.logs, *checked, "--html", str(report))
    table.add_row("report", str(report))
    Console(highlight=False, width=120).print(table)
    for warning in score["warnings"]:
        print(f"warning: {warning['rule']}: {warning['message']}")
    for finding in findings:
        print(finding)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
