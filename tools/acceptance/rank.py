"""A rank's part of an acceptance: the checks of its job's precision, one after the other, in the plan's order."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import paddle

from harness import memory, ranks
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins
from runlog.schema import as_json
from runlog.verdict import Verdict
from tools.acceptance import CHECKS, checks, evaluation, fast, speed
from tools.acceptance.machine import Lines, Machine

FUNCTIONS: dict[str, Callable[[Machine], Verdict]] = {
    "sensors": checks.sensors,
    "losses": checks.losses,
    "throughput": speed.throughput,
    "memory": speed.peak_memory,
    "layout": checks.layout,
    "pooling": checks.pooling,
    "all-reduce": checks.all_reduce,
    "evaluation": evaluation.evaluation,
    "input": checks.input_pipeline,
    "units": fast.units,
    "lars": fast.lars,
    "captured": checks.captured,
}


def main(job: Job, origins: Origins, *, short: bool = False) -> None:
    """Run the checks of the job's precision on this rank, together with the other ranks.

    The first rank writes each verdict as a line of the job's file, and prints it. A check that fails does not stop the
    ones after it. Raises RunError, which ends the job, where this rank failed in a check that another rank does not
    leave (see `machine.on_all`). With `short` each check takes fewer steps.
    """
    me = ranks.start(job.cluster)
    lines = Lines(Path(job.trials.result_file) if me.is_first else None, job.model.precision)
    # By MPI the ranks have found each other; Paddle's collectives and mode are set before Machine uses Paddle.
    ranks.connect(job.cluster, me)
    paddle.enable_static()
    machine = Machine(job, origins, me, short=short)
    lines.note({"nodes": as_json(machine.nodes)})
    for name in CHECKS[job.model.precision]:
        WATCHDOG.beat(f"checking {name}")
        # Each check has a communicator of its own, so that it cannot read what a failed check left unread in the last.
        # `lines` keeps `me`, whose communicator no check uses, to compare the verdicts of the ranks.
        machine.me = replace(me, comm=me.comm.Dup())
        lines.run(me, name, functools.partial(_check, machine, name))


def _check(machine: Machine, name: str) -> Verdict:
    """Run the check of that name on this rank. Raises NotPossible where the machine lacks what the check needs."""
    machine.possible(name)
    with memory.explain_exhaustion(machine.job.model.batchsize), ranks.lost_peer():
        return FUNCTIONS[name](machine)
