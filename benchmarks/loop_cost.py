"""Measures the cost of the training loop: harness.loop.Trainer against a bare `exe.run` loop over the same program.

Synthetic data, 64 x 64, batch 16 a rank; the loop logs and prints a window every 5 steps, as by default. Several ranks
also gather their own times in each window (rank_times); rank 0 prints.
    [mpirun -n RANKS] python benchmarks/loop_cost.py [--repeats N] [--short]
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

import ratios

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import env
from harness.job import job_of

RANKS = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
JOB = job_of(mode="throughput", data="synthetic", dgxngpu=RANKS, dgxsystem="CPU")
env.export(env.runtime(JOB))

import paddle  # noqa: E402 - reads the environment when it is loaded
from paddle import static  # noqa: E402

from harness import ranks, workload  # noqa: E402
from harness.loop import LaunchedStep, Trainer  # noqa: E402
from harness.progress import Progress  # noqa: E402
from runlog.writer import RunLog  # noqa: E402


def main() -> None:
    """Takes turns and prints the ratio."""
    args = ratios.parser(__doc__).parse_args()
    steps = 5 if args.short else 30
    me = ranks.start(JOB.cluster)
    ranks.connect(JOB.cluster, me)
    paddle.enable_static()
    model = workload.of_job(JOB)
    schedule = model.recipe.make_schedule(samples=1437, global_batch=JOB.global_batch)
    training = model.training_program(schedule, seed=1)
    executor = static.Executor(paddle.CPUPlace())
    executor.run(training.startup)
    batch = model.synthetic(model.image, batch=JOB.model.batchsize, seed=0)
    feed = {"image": batch.image, "label": batch.label}

    with tempfile.TemporaryDirectory() as folder, Progress("plain", steps) as progress:
        trainer = Trainer(
            step=LaunchedStep(executor, training),
            global_batch=JOB.global_batch,
            print_steps=JOB.course.print_steps,
            ranks=me,
            log=RunLog(Path(folder) / "result.txt"),
            progress=progress,
        )
        trainer.warm_up(batch)

        def ours() -> float:
            start = time.perf_counter()
            trainer.run(itertools.repeat(batch), steps=steps, epoch=1, done=0, phase="measured")
            return steps * JOB.global_batch / (time.perf_counter() - start)

        def bare() -> float:
            start = time.perf_counter()
            for _ in range(steps):
                executor.run(training.main, feed=feed, fetch_list=[])
            return steps * JOB.global_batch / (time.perf_counter() - start)

        rates = ratios.take_turns({"loop": ours, "bare exe.run": bare}, 1 if args.short else args.repeats)
    if me.is_first:
        ratios.report(rates, "loop", {"bare exe.run": 0.99}, "images/s")


if __name__ == "__main__":
    main()
