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
from tools.acceptance.first_line import describe_job
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
    """Run the checks of the job's precision one after the other on all ranks, and write each verdict to a file.

    After a check that fails, the next one runs. All ranks must call this together.

    Args:
        job: The settings of the job. If RESULT_FILE is fp32.txt, the verdicts are written to fp32.lines beside it.
        origins: Each setting's value with who set it.
        short: Whether the checks take fewer steps.

    Raises:
        RunError: The ranks cannot be connected. Or a check has failed on this rank while another rank does not come
            out of the check, where it may wait for this rank for ever.
        ValueError: mpirun started another number of ranks than the settings say.
    """
    this_rank = ranks.start(job.cluster)  # joins the ranks by MPI: the number of this rank, and a communicator
    writer = VerdictWriter(Path(job.trials.result_file), job.model.precision)  # writes to the file *.lines
    # After MPI, by which the ranks exchange their addresses. Paddle needs these: its collectives do not use MPI.
    ranks.connect(job.cluster, this_rank)
    paddle.enable_static()  # the checks build static programs
    machine = Machine(job, origins, this_rank, short=short)
    if this_rank.is_first:  # it alone writes the file, which begins with the nodes and the job
        writer.append_line({"nodes": as_json(machine.nodes), "job": describe_job(job, short=short)})
    for name in CHECKS[job.model.precision]:
        WATCHDOG.beat(f"checking {name}")
        machine.begin_check(this_rank)  # gives the check an MPI communicator of its own
        # `this_rank` keeps the communicator of the job: by it the ranks tell each other whether the check has failed.
        writer.run_check(this_rank, name, functools.partial(_run_check, machine, name))


def _run_check(machine: Machine, name: str) -> Verdict:
    """Run a check on this rank, and return its verdict.

    Args:
        machine: This rank's part of the machine.
        name: The name of the check, a key of FUNCTIONS.

    Raises:
        NotPossible: The machine does not have what the check needs.
        RunError: Memory is exhausted, another rank is lost, or an earlier check that this one needs has failed.
    """
    machine.raise_if_not_possible(name)
    with memory.explain_exhaustion(machine.job.model.batchsize), ranks.lost_peer():
        return FUNCTIONS[name](machine)
