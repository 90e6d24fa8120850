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
from harness.env import export_trainer
from harness.loop import LaunchedStep, Trainer
from harness.progress import Progress
from harness.ranks import Ranks
from program import build
from program.optimizers import OptimizerConfig, Schedule
from runlog.writer import RunLog

# Rates 0.05, 0.1, 0.1, 0.1, 0.01, 0.01, ...
SCHEDULE = Schedule(kind="piecewise", base=0.1, warmup_steps=2, total_steps=9, boundaries=(4,), factors=(0.1,))
SGD = OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.0)


def test_a_rate_is_copied_to_the_device_where_it_changes_and_at_no_other_step(tmp_path: Path) -> None:
    paddle.enable_static()
    export_trainer(0, ["127.0.0.1:6170"])
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        logits = static.nn.fc(static.data("image", [4, 3], "float32"), 2)
        loss = paddle.nn.functional.cross_entropy(logits, static.data("label", [4, 1], "int64"))
        training = build.minimize(loss, SGD, SCHEDULE, plan=build.Plan(device="cpu"))
    executor = static.Executor(paddle.CPUPlace())
    rate = training.schedule
    of_program: list[float] = []  # the rate that each step took

    def batches() -> Iterator[loader.Batch]:
        while True:
            yield loader.Batch(image=np.ones((4, 3), np.float32), label=np.zeros((4, 1), np.int64), ids=np.arange(4))
            of_program.append(float(np.array(static.global_scope().find_var(rate._var_name).get_tensor()).item()))

    with (
        static.scope_guard(static.Scope()),
        Progress("none", 0) as progress,
        mock.patch.object(loop, "WATCHDOG", autospec=True),
        mock.patch.object(type(rate), "send", autospec=True, side_effect=type(rate).send) as sent,
    ):
        executor.run(startup)
        shape = static.global_scope().find_var(rate._var_name).get_tensor().shape()
        trainer = Trainer(
            step=LaunchedStep(executor, training),
            global_batch=4,
            print_steps=3,
            ranks=Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here"),
            log=RunLog(tmp_path / "log.txt"),
            progress=progress,
        )
        source = batches()
        trainer.run(source, steps=3, epoch=1, done=0, phase="train")
        trainer.run(source, steps=4, epoch=2, done=3, phase="train")
        next(source)
        assert static.global_scope().find_var(rate._var_name).get_tensor().shape() == shape, "a checkpoint has it so"
    np.testing.assert_allclose(of_program, [SCHEDULE(step) for step in range(7)], rtol=1e-6)
    assert sent.call_count == 2 + 2, "of an epoch its first step, and each with another rate than the one before"
    assert not any(hasattr(program, "lr_scheduler") for program in training.update), "Paddle copies it as well"
