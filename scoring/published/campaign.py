"""Which runs a campaign still lacks, and the report's own table with our figures beside the published ones.

`launch/campaign.sh` is the door: it asks `plan` for the missing jobs, runs each as one call of `run_and_time.sh`, and
ends with `table`.
"""

from __future__ import annotations

import argparse
import collections
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import count, jsonable
from scoring.published.campaign_plan import SHRUNK_NOTE, Campaign, Cell, Job, Run, like, machine, plan, read_campaign
from scoring.published.table import Figure, nearest, select
from scoring.record import InputError, Record, TooFewRunsError

START_UP_S, SHRUNK_RUN_S = 60.0, 15.0  # assumed: before the first step, and of a whole shrunk run


def plan_lines(campaign: Campaign, jobs: Sequence[Job]) -> Iterator[str]:
    """The plan for a reader: a line for each run, and below it the nearest figure and what is wrong with its logs."""
    trials, seconds = collections.Counter[str](), 0.0
    for job in jobs:
        state = "done" if not job.missing else "skip" if job.skipped else "run"
        each_s, source = assumed(campaign, job.run)
        trials["done"] += len(job.done)
        trials[state] += len(job.missing)
        seconds += each_s * len(job.missing) * (state == "run")
        done = f"{len(job.done)} done, {len(job.missing)} missing"
        yield f"{state:<4} {job.run.name}: {done}, about {each_s:.0f} s each by {source}"
        yield from (f"     trial {trial}: {wrong}" for trial, wrong in job.missing.items() if wrong)
        if state == "skip":
            yield f"     {job.skipped}"
        if state == "run":
            exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in job.exports.items())
            yield f"     {exports} LOGDIR={job.folder}/trial_N {job.command}"
    yield (
        f"{campaign.name}: {trials.total()} jobs, {trials['done']} done, {trials['skip']} skipped, {trials['run']} to "
        f"run in about {seconds / 60:.0f} min: assumed, by the published rates and a start-up"
    )
    yield from [SHRUNK_NOTE] * campaign.shrunk


def assumed(campaign: Campaign, run: Run) -> tuple[float, str]:
    """Seconds one trial takes, by a start-up and the nearest published figure of the first framework, and that one."""
    if campaign.shrunk:
        return SHRUNK_RUN_S, "assumption"
    rows = [row for row in like(run, campaign) if row.framework.startswith(campaign.frameworks[0])]
    row = nearest(rows, batch=run.batch_per_device, devices=run.devices)
    assert row and row.devices, f"{campaign.name} has no figure like {run.name}"
    steps = int(campaign.environment["WARMUP_STEPS"]) + int(campaign.environment["MEASURED_STEPS"])
    shape = f"batch {row.batch_per_device} x {row.devices} {row.accelerator}"
    source = f"{row.printed} {row.unit} of {shape} ({row.source})"
    return START_UP_S + steps * run.batch_per_device * row.devices / row.value, source


def figures(campaign: Campaign, jobs: Sequence[Job]) -> dict[Run, Score | str]:
    """The figure of each run by the campaign's protocol, or why it has none.

    Our runs set their warm-up apart: WARMUP_STEPS is what the protocol drops, so nothing more is dropped after it.
    """
    protocol = protocols.find(campaign.protocol)
    warm_up, measured = (int(campaign.environment[name]) for name in ("WARMUP_STEPS", "MEASURED_STEPS"))
    by_window = protocol.skip_unit == "window"
    protocol = replace(
        protocol,
        runs=len(jobs[0].done) + len(jobs[0].missing),
        skip=protocol.skip if by_window else warm_up,
        take_steps=protocol.take_steps and measured,
    )
    found: dict[Run, Score | str] = {}
    for job in jobs:
        why = f"skipped: {job.skipped}" if job.skipped else next(filter(None, job.missing.values()), "not run yet")
        try:
            found[job.run] = score(job.done, protocol, skip=0 if by_window else None) if job.done else why
        except (InputError, TooFewRunsError) as error:
            found[job.run] = getattr(error, "partial", None) or str(error)
    return found


def published_figures(campaign: Campaign, cell: Cell, metric: str) -> dict[str, Figure | None]:
    """The published figure of a cell by framework; None where the report has none."""
    asked = {name: value for name, value in vars(cell.asked).items() if name != "precision"}
    asked |= {"accelerator": cell.accelerator} if cell.accelerator else {}
    rows = select(like(cell.asked, campaign, metric), **asked)
    return {n: next((row.value for row in rows if row.framework.startswith(n)), None) for n in campaign.frameworks}


def table(campaign: Campaign, found: dict[Run, Score | str]) -> list[dict[str, Any]]:
    """The report's tables as rows of plain values: ours, published, ratio and interval side by side.

    A cell without a figure of ours says why in `notes`; one that the report leaves empty has `published` None.
    """
    lines = []
    units = {row.metric: row.unit for row in campaign.published}
    values = {cell.asked: getattr(found[cell.run], "value", None) for cell in campaign.cells}
    for cell in campaign.cells:
        asked, ours = cell.asked, found[cell.run]
        value, unit, interval, method = (
            getattr(ours, name, None) for name in ("value", "unit", "interval_95", "interval_method")
        )
        records: Sequence[Record] = getattr(ours, "records", ())
        warned = dict.fromkeys(f"{warning.check}: {warning.found}" for warning in getattr(ours, "warnings", ()))
        published = {metric: published_figures(campaign, cell, metric) for metric in units}
        first = published["throughput"][campaign.frameworks[0]]
        line: dict[str, Any] = {
            "table": cell.title,
            **vars(asked),
            "ours": value,
            "unit": unit or units["throughput"],
            "interval_95": interval,
            "interval_method": method,
            "runs": len(records),
            "published": published["throughput"],
            "ratio": value / first if value and first else None,
            "ratio_95": [bound / first for bound in interval] if interval and first else None,
        }
        if "speedup" in units:
            base = values.get(replace(asked, nodes=1, devices=1))
            line["speedup"], line["speedup_published"] = value / base if value and base else None, published["speedup"]
        if "gpu_memory" in units:
            line["gpu_memory_mib"] = _memory_mib(records)
            line["gpu_memory_mib_published"] = published["gpu_memory"][campaign.frameworks[0]]
        line |= {"ran_as": cell.run.name, "notes": [f"interval: {method}", *warned] if records else [str(ours)]}
        lines.append(line | {"logs": [record.file for record in records]})
    return lines


def _memory_mib(records: Sequence[Record]) -> float | None:
    """The most that any run took; None where one does not say."""
    of_runs = [[w.gpu_memory_mib for w in record.windows if w.gpu_memory_mib is not None] for record in records]
    return max(map(max, of_runs)) if of_runs and all(of_runs) else None


def markdown(campaign: Campaign, lines: Sequence[dict[str, Any]], *, system: str) -> str:
    """The table as aligned Markdown, one section for each table of the report; notes are numbered."""
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol}; "ours" was measured here, all else is published.', ""]
    text += [SHRUNK_NOTE, ""] * campaign.shrunk
    notes = list(dict.fromkeys(note for line in lines for note in line["notes"]))
    for title, note in {cell.title: cell.note for cell in campaign.cells}.items():
        rows = [_row(line, notes) for line in lines if line["table"] == title]
        text += [f"## {title} ({lines[0]['unit']})", "", *[note, ""] * bool(note), *_aligned(rows), ""]
    text += ["Notes", "", *(f"- [{number}]: {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(text)


UNSHOWN = ("table", "precision", "strategy", "unit", "interval_method", "logs")  # what a table's head and notes say


def _row(line: dict[str, Any], notes: Sequence[str]) -> dict[str, str]:
    """A cell's figures by the heads of their columns."""
    row = {}
    for name, value in line.items():
        if name == "notes":
            row[name] = " ".join(f"[{notes.index(note) + 1}]" for note in value)
        elif isinstance(value, dict):
            row |= {f"{name} {framework}": _shown(figure, "not published") for framework, figure in value.items()}
        elif name not in UNSHOWN:
            row[name] = _shown(value, "not measured" if name == "ours" else "-")
    return row


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """A figure, a published one as printed, both ends of an interval, or the word for none."""
    if value is None or isinstance(value, str):
        return value or nothing
    if isinstance(value, int | float):
        return getattr(value, "printed", "") or f"{value:.6g}"
    return " to ".join(map(_shown, value))


def _aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    head, rule = {name: name for name in widths}, {name: "-" * (size - 1) + ":" for name, size in widths.items()}
    cells = ([row[name].rjust(size) for name, size in widths.items()] for row in (head, rule, *rows))
    return [f"| {' | '.join(row)} |" for row in cells]


def main(argv: Sequence[str] | None = None) -> int:
    """`plan` prints the jobs, `table` the report's table. Returns 0, or 2 for wrong use with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m scoring.published.campaign", description=__doc__)
    parser.add_argument("action", choices=["plan", "table"])
    parser.add_argument("name", help="a campaign of campaigns/")
    parser.add_argument("--results", type=Path, required=True, help="folder of all campaigns' runs and tables")
    parser.add_argument("--shrink", action="store_true", help="the grid tiny on CPU ranks")
    parser.add_argument("--repeats", type=count, help="trials of a run (default: the campaign's; shrunk: 1)")
    parser.add_argument("--runner", default="", help="command of one job, instead of this project's")
    parser.add_argument("--jobs", action="store_true", help="plan: tab-separated run, trial, folder, command, exports")
    args = parser.parse_args(argv)
    try:
        campaign, here = read_campaign(args.name, shrink=args.shrink), machine()
        repeats = args.repeats or (1 if args.shrink else campaign.repeats)
        jobs = plan(campaign, args.results, here, repeats=repeats, runner=args.runner)
        if args.action == "table":
            lines = table(campaign, figures(campaign, jobs))
            systems = sorted({record.machine for job in jobs for record in job.done if record.machine})
            text = markdown(campaign, lines, system=", ".join(systems) or "nothing measured yet")
            args.results.mkdir(parents=True, exist_ok=True)
            name = args.results / (campaign.name + "-shrunk" * campaign.shrunk)
            name.with_suffix(".md").write_text(text, encoding="utf-8")
            about = {"campaign": campaign.name, "protocol": campaign.protocol, "shrunk": campaign.shrunk}
            name.with_suffix(".json").write_text(
                json.dumps(jsonable(about | {"rows": lines}), indent=1), encoding="utf-8"
            )
            print(text)
        elif not args.jobs:
            print("\n".join(plan_lines(campaign, jobs)))
        else:
            wanted = [(job, trial) for job in jobs for trial in job.missing if not job.skipped]
            if wanted and not args.shrink and not here.system:
                raise InputError("DGXSYSTEM is not set: name the config_<SYSTEM>.sh of a node, e.g. DGXSYSTEM=DGX1")
            for job, trial in wanted:
                exports = " ".join(f"{name}={value}" for name, value in job.exports.items())
                print(job.run.name, trial, job.folder / f"trial_{trial}", job.command, exports, sep="\t")
    except (InputError, OSError) as error:
        print(safe_lines([f"python -m scoring.published.campaign: {error}"]), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
