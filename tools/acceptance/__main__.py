"""`./run_and_time.sh --acceptance [--short]`: what a user runs first on a new machine, 15 minutes at most.

launch/trials.sh starts one job for each precision on the ranks of the machine (CUDA's libraries decide on TF32 when
they are loaded, and a crash costs the lines of its own job only): `python -m tools.acceptance` on every rank. Rank 0
writes each line to a file when it is done. Then `--report FOLDER` puts the jobs' lines together: a table, a JSON file
and the exit status (0: none failed, 1: some failed). What was not run never counts as passed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from harness import env, provenance
from harness.__main__ import main as ranks_main
from program import strategy
from runlog.errors import RunError
from runlog.json_schema import as_json

if TYPE_CHECKING:
    from harness.ranks import Ranks  # starts MPI, which the launcher has no use for

LEAVE_S = 60.0  # in which the other ranks leave a check that one rank could not do
FORMAT = {"format": "paddle-reference-acceptance", "version": 1}
PASSED, FAILED, NOT_POSSIBLE = "passed", "failed", "not possible here"
# The checks of each job, in the order in which they run: the figures first, as a crash costs the lines after it. A
# capture binds its process, so nothing may come after it.
EACH, LAST = ("losses", "throughput", "memory", "evaluation"), ("captured",)
CHECKS = {
    "fp32": ("sensors", *EACH, "layout", "pooling", "all-reduce", "input", *LAST),
    "tf32": (*EACH, *LAST),
    "amp_o1": (*EACH, *LAST),
    "amp_o2": (*EACH, "pooling", "all-reduce", "input", *LAST),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the report."""

    check: str
    precision: str
    status: str  # passed | failed | not possible here
    found: str  # figures, or why there are none
    wanted: str = ""  # what passes, and why
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


class NotPossible(Exception):
    """The machine lacks what a check needs; the message says what."""


class CheckFailed(Exception):
    """A rank could not do a check; the message says why."""


class Outcome(NamedTuple):
    """What a check found."""

    passed: bool
    found: str  # in words
    wanted: str  # what passes, and why
    figures: dict[str, Any]


class Lines:
    """The lines of one job, written as they are done; `Lines(None)` is that of every rank but the first."""

    def __init__(self, result: Path | None, precision: str) -> None:
        """`result`: the job's log."""
        self._path, self._precision = result and lines_file(result), precision

    def run(self, check: str, function: Callable[[], Outcome]) -> None:
        """Runs a check on this rank and notes what rank 0 found; an error of it is a line that failed."""
        started_s = time.monotonic()
        try:
            passed, found, wanted, figures = function()
            status = PASSED if passed else FAILED
        except NotPossible as reason:
            status, found, wanted, figures = NOT_POSSIBLE, str(reason), "", {}
        except CheckFailed as error:
            status, found, wanted, figures = FAILED, str(error), "", {}
        line = Line(
            check=check,
            precision=self._precision,
            status=status,
            found=found,
            wanted=wanted,
            seconds=round(time.monotonic() - started_s, 1),
            figures=figures,
        )
        self.note(dataclasses.asdict(line))
        if self._path:
            print(f"{line.status:18}{line.check} {line.precision}: {line.found}", flush=True)

    def note(self, value: dict[str, Any]) -> None:
        """Appends a line of JSON to the job's file."""
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")


def lines_file(result: Path) -> Path:
    """Where a job with this log writes its lines."""
    return result.with_suffix(".lines")


def on_all(me: Ranks, check: Callable[[], Outcome], *, leave_s: float = LEAVE_S) -> Outcome:
    """What a check found on this rank, or, where a rank could not do it, that on all ranks, once all have left it.

    `me` must have a communicator that the check does not use.

    Raises:
        NotPossible: the machine lacks what it needs.
        CheckFailed: a rank could not do it.
        RunError: a rank could not, and another did not leave it in time, as one that waits for it: the job must end.
    """
    outcome, error, lacks = None, "", ""
    try:
        outcome = check()
    except NotPossible as reason:
        lacks = str(reason)
    except Exception as reason:  # noqa: BLE001 - the boundary of a check: its line says what it was
        traceback.print_exc()
        error = " ".join(str(reason).split()) or type(reason).__name__
    left, until = me.comm.Ibarrier(), time.monotonic() + leave_s
    while not left.Test():
        if error and time.monotonic() > until:
            raise RunError(f"rank {me.rank}: {error}; another rank has not left this check {leave_s:g} s later")
        time.sleep(0.01)
    errors = {rank: said for rank, said in enumerate(me.gather(error)) if said}
    missing = [said for said in me.gather(lacks) if said]
    if errors:
        rank, said = next(iter(errors.items()))
        raise CheckFailed(said if len(errors) == me.size else f"rank {rank}: {said}")
    if missing or outcome is None:
        raise NotPossible(missing[0])
    return outcome


# ---- the report


def gather(folder: Path) -> tuple[list[Line], list[dict[str, Any]]]:
    """Every line of the plan from the jobs' files, and the nodes that the jobs ran on."""
    found: list[Line] = []
    nodes: list[dict[str, Any]] = []
    for precision, checks in CHECKS.items():
        noted: dict[str, Line] = {}
        file = lines_file(folder / f"{precision}.txt")
        for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
            value = json.loads(text)
            if "nodes" in value:
                nodes = value["nodes"]
            else:
                noted[value["check"]] = Line(**value)
        refused = env.refusal(PRECISION=precision)
        reason = folder / f"{precision}.failed"  # launch/trials.sh wrote why the job ended
        ended = reason.read_text(encoding="utf-8").strip() if reason.is_file() else "its job did not run it"
        for check in checks:
            if check in noted:
                found.append(noted[check])
            elif refused:
                found.append(Line(check=check, precision=precision, status=NOT_POSSIBLE, found=refused))
            else:
                found.append(Line(check=check, precision=precision, status=FAILED, found=f"not run: {ended}"))
    return found, nodes


def verdict(lines: list[Line]) -> str:
    """How many lines have each status, in words."""
    return ", ".join(f"{sum(line.status == s for line in lines)} {s}" for s in (PASSED, FAILED, NOT_POSSIBLE))


def report(folder: Path, *, short: bool) -> int:
    """Writes `<folder>.json`, prints the table and the verdict; returns the exit status."""
    job, _ = env.read()
    lines, nodes = gather(folder)
    said = verdict(lines) + (", in the short form" if short else "")
    path = folder.with_suffix(".json")
    document = FORMAT | {
        "verdict": said,
        "short": short,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "system": job.dgxsystem,
        "ranks": job.world_size,
        "source": as_json(provenance.source(job.source_commit, job.image_digest)),
        "packages": provenance.packages(),
        "nodes": nodes,
        "lines": [dataclasses.asdict(line) for line in lines],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    table = Table("check", "precision", "result", "found", "passes if", box=box.SIMPLE_HEAD, pad_edge=False)
    # What was not run for one reason is one row.
    for (precision, status, found, wanted), alike in itertools.groupby(
        lines, key=lambda line: (line.precision, line.status, line.found, line.wanted)
    ):
        table.add_row(", ".join(line.check for line in alike), precision, status, found, wanted)
    Console(width=max(env.columns(), 120), highlight=False, markup=False).print(table)
    print(f"verdict   {said}\nreport    {path}\nlogs      {folder}")
    return 1 if any(line.status == FAILED for line in lines) else 0


def main() -> int:
    """A rank's part of the acceptance where mpirun started this process, else one of the commands of its launcher."""
    parser = argparse.ArgumentParser(prog="python -m tools.acceptance", description=__doc__)
    parser.add_argument("--precisions", action="store_true", help="print the precisions whose jobs can run here")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="report on the jobs whose files are in FOLDER")
    parser.add_argument("--short", action="store_true", help="the jobs ran in their short form")
    args = parser.parse_args()
    if env.is_rank():
        return ranks_main("tools.acceptance.checks", short=args.short)
    job, _ = env.read()
    if job.workload != "rn50":
        print(f"error: WORKLOAD={job.workload}: the acceptance trains ResNet-50: set WORKLOAD=rn50", file=sys.stderr)
        return 2
    knobs = strategy.parse(job.strategy)
    if knobs.cuda_graph:
        why = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
        print(f"error: STRATEGY: cuda_graph=1: {why}", file=sys.stderr)
        return 2
    if args.report:
        return report(args.report, short=args.short)
    print("\n".join(precision for precision in CHECKS if not env.refusal(PRECISION=precision)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
