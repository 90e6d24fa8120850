"""The loop over batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
from mpi4py import MPI
from paddle import static

from harness import loader, loop
from harness.progress import Progress
from harness.ranks import Ranks
from program.optimizers import Schedule
from runlog.writer import RunLog
from tests.program import programs

# Rates 0.05, 0.1, 0.1, 0.1, 0.01, 0.01, ...
SCHEDULE = Schedule(kind="piecewise", base=0.1, warmup_steps=2, total_steps=9, boundaries=(4,), factors=(0.1,))


def test_a_rate_is_copied_to_the_device_where_it_changes_and_at_no_other_step(tmp_path: Path) -> None:
    training = programs.build(schedule=SCHEDULE)
    executor, rate = static.Executor(paddle.CPUPlace()), training.schedule
    fed = loader.Batch(**programs.images(0, layout="NCHW", channels=3), ids=np.arange(programs.BATCH))
    of_program: list[float] = []  # the rate that each step took

    def of_device() -> np.ndarray:
        return np.array(static.global_scope().find_var(rate._var_name).get_tensor())

    def batches() -> Iterator[loader.Batch]:
        while True:
            yield fed
            of_program.append(of_device().item())

    with (
        static.scope_guard(static.Scope()),
        mock.patch.object(loop, "WATCHDOG", autospec=True),
        mock.patch.object(type(rate), "send", autospec=True, side_effect=type(rate).send) as sent,
    ):
        executor.run(training.startup)
        shape = of_device().shape
        trainer = loop.Trainer(
            step=loop.LaunchedStep(executor, training),
            global_batch=programs.BATCH,
            print_steps=3,
            ranks=Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here"),
            log=RunLog(tmp_path / "log.txt"),
            progress=Progress("none", 0),
        )
        source = batches()
        trainer.run(source, steps=3, epoch=1, done=0, phase="train")
        trainer.run(source, steps=4, epoch=2, done=3, phase="train")
        next(source)
        assert of_device().shape == shape, "a checkpoint has it so"
    np.testing.assert_allclose(of_program, [SCHEDULE(step) for step in range(7)], rtol=1e-6)
    assert sent.call_count == 2 + 2, "of an epoch its first step, and each with another rate than the one before"
    assert not any(hasattr(program, "lr_scheduler") for program in training.update), "Paddle copies it as well"
