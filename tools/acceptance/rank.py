"""A rank's part of an acceptance: the checks of its job's precision, one after the other, in the order of CHECKS."""

import functools
from collections.abc import Callable
from pathlib import Path

import paddle

from harness import memory, ranks
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins
from runlog.schema import as_json
from runlog.verdict import Verdict
from tools.acceptance import CHECKS, checks, evaluation, fast, speed
from tools.acceptance.machine import Machine, VerdictWriter

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

    With `short` the checks take fewer steps. A failed check gets a verdict, and the next one runs all the same. Raises
    RunError only if a check fails on this rank and another rank waits in it for ever.
    """
    me = ranks.start(job.cluster)  # joins the ranks by MPI
    writer = VerdictWriter(Path(job.trials.result_file), job.model.precision)
    ranks.connect(job.cluster, me)  # joins them for Paddle's collectives, too
    paddle.enable_static()
    machine = Machine(job, origins, me, short=short)
    if me.is_first:
        writer.append_line({"nodes": as_json(machine.nodes)})
    for name in CHECKS[job.model.precision]:
        WATCHDOG.beat(f"checking {name}")
        machine.begin_check(me)
        writer.run_check(me, name, functools.partial(_run_check, machine, name))


def _run_check(machine: Machine, name: str) -> Verdict:
    """Run the check of that name on this rank, and return its verdict.

    Raises NotPossible if the machine does not have what the check needs, and RunError with an explanation if memory is
    exhausted or a rank is lost.
    """
    machine.raise_if_not_possible(name)
    with memory.explain_exhaustion(machine.job.model.batchsize), ranks.lost_peer():
        return FUNCTIONS[name](machine)
