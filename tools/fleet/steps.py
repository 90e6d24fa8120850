"""The training steps that a rank of a fleet takes, alone and with the others."""

import time
from typing import NamedTuple

import numpy as np
from paddle import static

from harness import loader, state
from paddle_rn50.train import ResNet50
from program.ops import LOSS_VALUE
from program.passes import edit
from tools.acceptance.machine import Machine, first_weights
from tools.fleet import digests

SEED = 1


class Step:
    """A training step of one program on one batch."""

    def __init__(self, machine: Machine, main: static.Program, batch: loader.Batch) -> None:
        self._executor = machine.executor
        self._main = main
        self._feed = {"image": batch.image, "label": batch.label}

    def __call__(self) -> float:
        """Take the step, and return its seconds."""
        began = time.perf_counter()
        self._executor.run(self._main, feed=self._feed, fetch_list=[])
        np.array(static.global_scope().find_var(LOSS_VALUE).get_tensor())  # waits for the device
        return time.perf_counter() - began


class Programs(NamedTuple):
    """The steps that a rank can take, all from one training program by the default strategy."""

    alone: Step  # a step of this rank without all-reduces
    of_all: Step  # a step of all ranks together
    carrier: digests.Carrier  # repeats steps that are the same on all ranks


def programs(machine: Machine) -> Programs:
    """Build the job's training program, start it, and return the three kinds of steps that the fleet check takes.

    These are a step of the rank alone, by the program without its all-reduces; a step of all ranks together; and the
    carrier, which repeats steps whose results must be the same on all ranks. For the first two each rank has a
    synthetic batch of its own. All ranks begin with the weights that the first one draws on its CPU: GPUs would draw
    others from the same seed.

    All ranks must call this together, as the weights are broadcast.
    """
    job = machine.job
    me = machine.me
    model = ResNet50(job.hyperparameters, machine.plan(), batch=job.model.batchsize)
    schedule = model.recipe.make_schedule(samples=job.global_batch, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=SEED)
    machine.executor.run(training.startup)
    if me.is_first:
        state.set_weights(training.main, first_weights(model.recipe))
    state.broadcast_parameters(training.main, me)
    training.schedule.send(machine.executor.place)  # the first learning rate

    without_all_reduces = training.main.clone()
    edit.remove(without_all_reduces, lambda op: op.type.startswith("c_allreduce"))
    synthetic = model.synthetic(model.image, batch=job.model.batchsize, seed=SEED + me.rank)
    batch = loader.resident(synthetic, machine.executor.place)
    return Programs(
        alone=Step(machine, without_all_reduces, batch),
        of_all=Step(machine, training.main, batch),
        # Paddle has no public name for the variable of a schedule's learning rate.
        carrier=digests.Carrier(machine.executor, without_all_reduces, model, rate=training.schedule._var_name),
    )
