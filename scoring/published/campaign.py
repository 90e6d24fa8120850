"""Which runs a campaign still lacks, and the report's own table with our figures beside the published ones.

`launch/campaign.sh` is the door: it asks `plan` for the missing jobs, runs each as one call of `run_and_time.sh`,
and ends with `table`.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from runlog.text import safe_lines
from scoring.importers import count
from scoring.published.campaign_plan import (
    SHRUNK_NOTE,
    Campaign,
    Job,
    RunSpec,
    assumed_s,
    like,
    machine,
    plan,
    read_campaign,
)
from scoring.published.campaign_table import write_tables
from scoring.published.table import Published, nearest, read_published, select
from scoring.record import InputError


def _plan_text(jobs: Sequence[Job], campaign: Campaign, rows: Sequence[Published]) -> str:
    """The plan for a reader: a line for the trials of a run that fare alike; what all jobs export stands once."""
    every = jobs[0].exports.items()
    shared = {name: value for name, value in every if all(job.exports.get(name) == value for job in jobs)}
    lines = [f"Every job: {_words(shared)} LOGDIR={jobs[0].folder.parents[1]}/RUN/trial_N"]
    for (run, state, reason), group in itertools.groupby(jobs, key=lambda job: (job.run, job.state, job.reason)):
        first, *others = group
        trials = f"trials {first.trial} to {others[-1].trial}" if others else f"trial {first.trial}"
        of_run = {name: value for name, value in first.exports.items() if name not in shared}
        does = "" if state == "done" else f": {_words(of_run)} {first.command}"
        why, each = f" ({reason})" if reason else "", " each" * bool(others)
        lines.append(f"{state:<4} {run.name} {trials}, about {assumed_s(campaign, run, rows):.0f} s{each}{does}{why}")
        if state == "skip" and not campaign.shrunk and run.nodes == 1 and not run.strategy:
            lines += _nearest(run, campaign, rows)
    count = collections.Counter(job.state for job in jobs)
    minutes = sum(assumed_s(campaign, job.run, rows) for job in jobs if job.state == "run") / 60
    lines.append(
        f"{campaign.name}: {len(jobs)} jobs, {count['done']} done, {count['skip']} skipped, {count['run']} to run in "
        f"about {minutes:.0f} min: assumed, by the published rates and a start-up"
    )
    return "\n".join([*lines, *[SHRUNK_NOTE] * campaign.shrunk])


def _nearest(run: RunSpec, campaign: Campaign, rows: Sequence[Published]) -> Iterator[str]:
    """The report's own figure that is nearest to a run, on each card that it has some of."""
    alike = [row for row in like(run, campaign, rows) if row.framework.startswith(campaign.frameworks[0])]
    for card in sorted({row.accelerator or "" for row in alike}):
        if row := nearest(select(alike, accelerator=card), batch=run.batch, devices=run.devices):
            shape = f"{row.accelerator}, batch {row.batch_per_device} x {row.devices}"
            yield f"     nearest published: {row.printed} {row.unit}, {shape} ({row.source})"


def _words(exports: dict[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in exports.items())


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
        campaign = read_campaign(args.name, shrink=args.shrink)
        repeats = args.repeats or (1 if args.shrink else campaign.repeats)
        rows = read_published()
        here = machine()
        jobs = plan(campaign, args.results, here, repeats=repeats, runner=args.runner)
        if args.action == "table":
            write_tables(campaign, args.results, jobs, rows, repeats=repeats)
        elif args.jobs:
            wanted = [job for job in jobs if job.state == "run"]
            if wanted and not args.shrink and not here.system:
                raise InputError("DGXSYSTEM is not set: name the config_<SYSTEM>.sh of a node, e.g. DGXSYSTEM=DGX1")
            for job in wanted:
                exports = " ".join(f"{name}={value}" for name, value in job.exports.items())
                print(job.run.name, job.trial, job.folder, job.command, exports, sep="\t")
        else:
            print(_plan_text(jobs, campaign, rows))
    except (InputError, OSError) as error:
        print(safe_lines([f"python -m scoring.published.campaign: {error}"]), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
