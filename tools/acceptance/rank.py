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
from tools.acceptance import CHECKS, checks, fast, speed
from tools.acceptance.machine import Lines, Machine

FUNCTIONS: dict[str, Callable[[Machine], Verdict]] = {
    "sensors": checks.sensors,
    "losses": checks.losses,
    "throughput": speed.throughput,
    "memory": speed.peak_memory,
    "layout": checks.layout,
    "pooling": checks.pooling,
    "all-reduce": checks.all_reduce,
    "evaluation": checks.evaluation,
    "input": checks.input_pipeline,
    "units": fast.units,
    "lars": fast.lars,
    "captured": checks.captured,
}


def main(job: Job, origins: Origins, *, short: bool = False) -> None:
    """Run the checks of the job's precision on this rank; each writes its line when it is done."""
    me = ranks.start(job.cluster)
    lines = Lines(Path(job.trials.result_file) if me.is_first else None, job.model.precision)
    ranks.connect(job.cluster, me)
    paddle.enable_static()
    machine = Machine(job, origins, me, short=short)
    lines.note({"nodes": as_json(machine.nodes)})

    def checked(name: str) -> Verdict:
        machine.possible(name)
        with memory.explained(job.model.batchsize), ranks.lost_peer():
            return FUNCTIONS[name](machine)

    for name in CHECKS[job.model.precision]:
        WATCHDOG.beat(f"checking {name}")
        # Its own communicator: what one rank left unread in a check that failed is not read in the next.
        machine.me = replace(me, comm=me.comm.Dup())
        lines.run(me, name, functools.partial(checked, name))
