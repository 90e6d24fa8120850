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
from pathlib import Path
from typing import NamedTuple

from harness import env, provenance
from harness.__main__ import main as ranks_main
from paddle_rn50 import config
from runlog import named_files
from runlog.completion import complete
from runlog.errors import one_line
from runlog.json_types import JsonObject
from runlog.schema import as_json
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, as_text, worst
from tools.acceptance import CHECKS

FORMAT = {"format": "paddle-reference-acceptance", "version": 2}  # 2: its lines are runlog.verdict's

OF_A_JOB = {".lines", ".failed"}  # files that a job, or launch/trials.sh for it, leaves in the folder


class Results(NamedTuple):
    """The results of an acceptance, from the files of its jobs."""

    lines: list[Verdict]  # of each check of each precision, in the order of CHECKS
    nodes: list[JsonObject]  # on which the jobs ran, as the header of a log describes them; empty if none says it


def gather(folder: Path) -> Results:
    """Return a verdict for each check of each precision, run or not, and the nodes that the jobs ran on.

    They are read from `folder`. The job of one precision leaves `<precision>.lines`, a JSON object a line: first
    {"nodes": [...]}, then a verdict for each check that it ran. All jobs run on the same nodes, so the last job's list
    is returned. It is empty where no job has written one.

    Where a job ended early, launch/trials.sh leaves the reason in `<precision>.failed`. A check that the job did not
    run is FATAL with that reason, or UNKNOWN where this machine cannot run the precision at all.

    Raises ValueError where the folder cannot be read, holds no file of a job, or has a line that is no JSON.
    """
    try:
        suffixes = {file.suffix for file in folder.iterdir()}
    except OSError as error:
        raise ValueError(named_files.explain(error)) from error
    if not suffixes & OF_A_JOB:
        raise ValueError(
            f"{folder}: no file of an acceptance in it: give the folder that --acceptance printed as `logs`"
        )

    verdicts: list[Verdict] = []
    nodes: list[JsonObject] = []  # of the last job that wrote them
    for precision, checks in CHECKS.items():
        verdict_by_check: dict[str, Verdict] = {}  # of those that were run
        for line in _lines_of_job(folder / f"{precision}.lines"):
            if "nodes" in line:
                nodes = line["nodes"]  # the same for every job
            elif "check" in line:
                verdict_by_check[line["check"]] = Verdict(**line)
        for check in checks:
            if check in verdict_by_check:
                verdicts.append(verdict_by_check[check])
            else:  # FATAL or UNKNOWN, with the reason
                verdicts.append(_verdict_on_check_not_run(check, precision, folder))
    return Results(verdicts, nodes)


def _lines_of_job(file: Path) -> list[JsonObject]:
    """Return the JSON objects of a job's file, one a line; none where the job wrote no file."""
    if not file.is_file():
        return []
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def _verdict_on_check_not_run(check: str, precision: str, folder: Path) -> Verdict:
    """Return the verdict on a check that was not run, with the reason: UNKNOWN where it cannot run here, else FATAL."""
    impossible = env.refusal(PRECISION=precision)  # empty where this machine can run the precision
    if impossible:
        return Verdict(check=check, status=UNKNOWN, found=impossible, where=precision)
    reason_file = folder / f"{precision}.failed"  # launch/trials.sh wrote why the job ended
    reason = "its job did not run it"
    if reason_file.is_file():
        reason = reason_file.read_text(encoding="utf-8").strip()
    return Verdict(check=check, status=FATAL, found=f"not run: {reason}", where=precision)


def report(job: env.Job, folder: Path, *, short: bool) -> int:
    """Write the results of the jobs in `folder` to `<folder>.json`, and print them as a table.

    Beside the results stand the time, the code, its packages and the machine. `short` says that the jobs ran in their
    short form, which is noted too. Returns the exit status: 1 where a verdict is FATAL, else 0. Raises ValueError where
    `gather` does, before anything is written.
    """
    results = gather(folder)
    counts = Counter(line.status for line in results.lines)
    verdict = ", ".join(f"{counts[status]} {status}" for status in (OK, FATAL, UNKNOWN))
    if short:
        verdict += ", in the short form"
    document = FORMAT | {
        "verdict": verdict,
        "short": short,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "system": job.cluster.dgxsystem,
        "ranks": job.cluster.world_size,
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
        "packages": provenance.packages(),
        "nodes": results.nodes,
        "lines": [line.as_dict() for line in results.lines],
    }
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\n{as_text(results.lines)}\nverdict   {verdict}\nreport    {path}\nlogs      {folder}")
    return 1 if worst(results.lines) == FATAL else 0


@one_line
def main() -> int:
    """Run this rank's part of the acceptance where mpirun started this process, or else answer the launcher.

    The launcher, launch/trials.sh, first has the precisions printed whose jobs can run here (`--precisions`, also
    without an option), and in the end the report (`--report FOLDER`). Returns the exit status. Raises ValueError for a
    job that the acceptance does not train: another network, or one with STRATEGY=cuda_graph=1; and where there is
    nothing to report on.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.acceptance", description=__doc__)
    parser.add_argument("--precisions", action="store_true", help="print the precisions whose jobs can run here")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="report on the jobs whose files are in FOLDER")
    parser.add_argument("--short", action="store_true", help="the jobs ran in their short form")
    complete(parser)
    args = parser.parse_args()
    named_files.check_options(args)
    if env.is_rank():
        return ranks_main("tools.acceptance.rank", short=args.short)

    job, _ = env.read()
    if job.model.package != config.__package__:  # "paddle_rn50", the package of ResNet-50
        name = config.__package__.removeprefix("paddle_")
        raise ValueError(f"WORKLOAD={job.model.workload}: the acceptance trains ResNet-50: set WORKLOAD={name}")
    if job.model.knobs.cuda_graph:
        why = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
        raise ValueError(f"STRATEGY: cuda_graph=1: {why}")
    if args.report:
        return report(job, args.report, short=args.short)
    can_run = [precision for precision in CHECKS if not env.refusal(PRECISION=precision)]
    print("\n".join(can_run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
