"""Campaigns: a published report's figures as runs here, which of them are missing, and ours next to the report's.

`launch/campaign.sh` is the door: it asks `plan` for the missing jobs, runs each as one call of `run_and_time.sh`, and
ends with `table`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runlog.options import Parser
from runlog.text import safe_lines
from scoring.importers import count, jsonable
from scoring.published.plan import Campaign, Job, plan_jobs, read_campaign
from scoring.published.plan_lines import plan_lines
from scoring.published.tables import markdown, table_rows
from scoring.record import InputError


def main(argv: Sequence[str] | None = None) -> int:
    """Write and print the table of a campaign (action `table`), or print its plan (action `plan`).

    A campaign measures the figures of a published report again. With --jobs, the plan is a tab-separated line for each
    trial to run.

    Args:
        argv: Words behind the program's name. None takes those of this process.

    Returns:
        The exit status: 2 after an error, such as a campaign or a file that cannot be read, else 0.
    """
    args = _parser().parse_args(argv)
    try:
        campaign = read_campaign(args.name, shrink=args.shrink, repeats=args.repeats)
        jobs = plan_jobs(campaign, args.results, runner=args.runner)
        if args.action == "table":
            _write_table(campaign, jobs, args.results)
        elif args.jobs:
            _print_jobs(campaign, jobs)
        else:
            print("\n".join(plan_lines(campaign, jobs)))
    except (InputError, OSError) as error:
        print(safe_lines([f"python -m scoring.published.campaign: {error}"]), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="python -m scoring.published.campaign", description=__doc__)
    parser.add_argument("action", choices=["plan", "table"])
    parser.add_argument("name", help="a campaign of campaigns/")
    parser.add_argument("--results", type=Path, required=True, help="folder of all campaigns' runs and tables")
    parser.add_argument("--shrink", action="store_true", help="the grid tiny on CPU ranks")
    parser.add_argument("--repeats", type=count, help="trials of a run (default: the protocol's; shrunk: 1)")
    parser.add_argument("--runner", default="", help="command of one job, instead of this project's")
    parser.add_argument("--jobs", action="store_true", help="plan: tab-separated run, trial, folder, command, exports")
    return parser


def _write_table(campaign: Campaign, jobs: Sequence[Job], results: Path) -> None:
    """Write a table of our figures next to the published ones, as Markdown and JSON, and print the Markdown.

    The files are `dlperf.md` and `dlperf.json` for the campaign "dlperf", or `dlperf-shrunk.md` and `.json` if it is
    shrunk to tiny runs on the CPU. The title names the machines of the logs.

    Args:
        campaign: The runs that measure a report's figures again.
        jobs: The runs with their trials.
        results: Folder of the files. It is made if it does not exist.

    Raises:
        OSError: A file cannot be written.
    """
    rows = table_rows(campaign, jobs)
    machines: set[str] = set()
    for job in jobs:
        machines.update(record.machine for record in job.done if record.machine)
    text = markdown(campaign, rows, system=", ".join(sorted(machines)) or "nothing measured yet")

    results.mkdir(parents=True, exist_ok=True)
    name = f"{campaign.name}-shrunk" if campaign.shrunk else campaign.name
    (results / f"{name}.md").write_text(text, encoding="utf-8")
    about = {"campaign": campaign.name, "protocol": campaign.protocol.name, "shrunk": campaign.shrunk, "rows": rows}
    (results / f"{name}.json").write_text(json.dumps(jsonable(about), indent=1), encoding="utf-8")
    print(text)


def _print_jobs(campaign: Campaign, jobs: Sequence[Job]) -> None:
    """Print a tab-separated line for each missing trial: run, trial, folder, command and environment variables.

    A run is a set of conditions, such as 8 devices with a batch of 128. A trial is one execution of a run, and a job is
    a run with all its trials. Jobs that this machine cannot do are left out.

    Args:
        campaign: The campaign of the jobs, which may be shrunk to tiny runs on the CPU.
        jobs: The jobs of the campaign.

    Raises:
        InputError: There are trials to run at full size, and the variable DGXSYSTEM is not set.
    """
    # `missing` has the trials to run by their numbers, from 1. `skipped` is why this machine cannot do them, or empty.
    jobs_to_run = [job for job in jobs if job.missing and not job.skipped]
    # A shrunk job has DGXSYSTEM=CPU among its exports. That of a full-size job is made from the user's DGXSYSTEM.
    if jobs_to_run and not campaign.shrunk and not os.environ.get("DGXSYSTEM"):
        raise InputError("DGXSYSTEM is not set: name the config_<SYSTEM>.sh of a node, e.g. DGXSYSTEM=DGX1")
    for job in jobs_to_run:
        exports = " ".join(f"{name}={value}" for name, value in job.exports.items())
        for trial in job.missing:  # its number, such as 2
            print(job.run.name, trial, job.folder / f"trial_{trial}", job.command, exports, sep="\t")


if __name__ == "__main__":
    sys.exit(main())
