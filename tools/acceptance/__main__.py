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
from typing import Any

from harness import env, provenance
from harness.__main__ import main as ranks_main
from paddle_rn50 import config
from runlog import named_files
from runlog.errors import one_line
from runlog.schema import as_json
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, as_text, worst
from tools.acceptance import CHECKS

FORMAT = {"format": "paddle-reference-acceptance", "version": 2}  # 2: its lines are runlog.verdict's

OF_A_JOB = {".lines", ".failed"}  # files that a job, or launch/trials.sh for it, leaves in the folder


def gather(folder: Path) -> tuple[list[Verdict], list[dict[str, Any]]]:
    """Every line of the plan from the jobs' files, and the nodes that the jobs ran on.

    Raises ValueError where the folder holds no file of a job.
    """
    try:
        written = {file.suffix for file in folder.iterdir()}
    except OSError as error:
        raise ValueError(named_files.explain(error)) from error
    if not written & OF_A_JOB:
        raise ValueError(
            f"{folder}: no file of an acceptance in it: give the folder that --acceptance printed as `logs`"
        )

    found, nodes = list[Verdict](), list[dict[str, Any]]()
    for precision, checks in CHECKS.items():
        file = folder / f"{precision}.lines"
        said = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
        nodes = next((line["nodes"] for line in said if "nodes" in line), nodes)
        noted = {line["check"]: Verdict(**line) for line in said if "check" in line}
        refused = env.refusal(PRECISION=precision)
        reason = folder / f"{precision}.failed"  # launch/trials.sh wrote why the job ended
        ended = reason.read_text(encoding="utf-8").strip() if reason.is_file() else "its job did not run it"
        status, why = (UNKNOWN, refused) if refused else (FATAL, f"not run: {ended}")
        found += [noted.get(name) or Verdict(check=name, status=status, found=why, where=precision) for name in checks]
    return found, nodes


def report(job: env.Job, folder: Path, *, short: bool) -> int:
    """Writes `<folder>.json`, prints the lines and how many have each status; returns the exit status."""
    lines, nodes = gather(folder)
    counts = Counter(line.status for line in lines)
    verdict = ", ".join(f"{counts[status]} {status}" for status in (OK, FATAL, UNKNOWN))
    verdict += ", in the short form" if short else ""
    path = folder.with_suffix(".json")
    document = FORMAT | {
        "verdict": verdict,
        "short": short,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "system": job.cluster.dgxsystem,
        "ranks": job.cluster.world_size,
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
        "packages": provenance.packages(),
        "nodes": nodes,
        "lines": [line.as_dict() for line in lines],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\n{as_text(lines)}\nverdict   {verdict}\nreport    {path}\nlogs      {folder}")
    return int(worst(lines) == FATAL)


@one_line
def main() -> int:
    """A rank's part of the acceptance where mpirun started this process, else one of the commands of its launcher."""
    parser = argparse.ArgumentParser(prog="python -m tools.acceptance", description=__doc__)
    parser.add_argument("--precisions", action="store_true", help="print the precisions whose jobs can run here")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="report on the jobs whose files are in FOLDER")
    parser.add_argument("--short", action="store_true", help="the jobs ran in their short form")
    args = parser.parse_args()
    named_files.check_options(args)
    if env.is_rank():
        return ranks_main("tools.acceptance.rank", short=args.short)
    job, _ = env.read()
    if job.model.package != config.__package__:
        name = config.__package__.removeprefix("paddle_")
        raise ValueError(f"WORKLOAD={job.model.workload}: the acceptance trains ResNet-50: set WORKLOAD={name}")
    if job.model.knobs.cuda_graph:
        why = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
        raise ValueError(f"STRATEGY: cuda_graph=1: {why}")
    if args.report:
        return report(job, args.report, short=args.short)
    print("\n".join(precision for precision in CHECKS if not env.refusal(PRECISION=precision)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
