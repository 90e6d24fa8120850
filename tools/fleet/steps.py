"""The training steps that a rank of a fleet takes, alone and with the others."""

import time
from typing import NamedTuple

from paddle import static

from harness import loader, loop, state
from paddle_rn50.train import ResNet50
from program.build import TrainingProgram
from program.passes import edit
from tools.acceptance.machine import Machine, first_weights
from tools.fleet import digests

SEED = 1


class Step:
    """A training step of one program on one batch."""

    def __init__(self, machine: Machine, main: static.Program, batch: loader.Batch) -> None:
        """Keep what the step runs: the program `main`, which must have been started, on a batch on the device."""
        self._executor = machine.executor
        self._main = main
        self._feed = {"image": batch.image, "label": batch.label}

    def __call__(self) -> float:
        """Take the step, wait for the device to finish it, and return the seconds."""
        began = time.perf_counter()
        self._executor.run(self._main, feed=self._feed, fetch_list=[])
        loop.loss_of_last_run()  # waits for the device
        return time.perf_counter() - began


class Programs(NamedTuple):
    """The programs of the fleet check, all made from one training program by the default strategy."""

    step_alone: Step  # a step of this rank without all-reduces
    step_of_all: Step  # a step of all ranks together
    repeatable_training: digests.RepeatableTraining  # repeats steps whose results must be the same on all ranks


def programs(machine: Machine) -> Programs:
    """Return what a rank of the fleet check runs, made from one training program. All ranks must call this together.

        step_alone            a step of this rank by itself, to be timed: it sums nothing over the ranks
        step_of_all           a step that all ranks take together, to be timed: it sums the gradients over the ranks
        repeatable_training   steps of this rank by itself, whose results must be the same on all ranks

    Args:
        machine: This rank's part of the machine, with the settings of the job.
    """
    job = machine.job
    model = ResNet50(job.hyperparameters, machine.plan(), batch=job.model.batchsize)
    training = _started_training(machine, model)  # ready to run, with the same weights on all ranks
    main_alone = _without_all_reduces(training.main)  # a copy, in which a rank trains by itself
    name_of_rate = training.schedule._var_name  # of the variable of the learning rate; Paddle has no public attribute
    # `RepeatableTraining` copies the weights, from which each repetition starts. It must be made before any step is
    # taken: the weights are the same on all ranks only until then.
    repeatable = digests.RepeatableTraining(machine.executor, main_alone, model, rate_variable=name_of_rate)
    batch = _batch_of_this_rank(machine, model)  # of random images; both timed steps take it
    return Programs(
        step_alone=Step(machine, main_alone, batch),
        step_of_all=Step(machine, training.main, batch),
        repeatable_training=repeatable,
    )


def _started_training(machine: Machine, model: ResNet50) -> TrainingProgram:
    """Return a training program of the model, ready to run, with the same weights on all ranks.

    All ranks must call this together.
    """
    # The learning rate does not change how long a step takes, so a schedule for the smallest data set will do.
    smallest = machine.job.global_batch
    schedule = model.recipe.make_schedule(samples=smallest, global_batch=smallest)
    training = model.training_program(schedule, seed=SEED)
    _start_with_same_weights(machine, model, training)
    return training


def _batch_of_this_rank(machine: Machine, model: ResNet50) -> loader.Batch:
    """Return a random batch on the device, which differs from rank to rank."""
    synthetic = model.synthetic(model.image, batch=machine.job.model.batchsize, seed=SEED + machine.me.rank)
    return loader.resident(synthetic, machine.executor.place)


def _start_with_same_weights(machine: Machine, model: ResNet50, training: TrainingProgram) -> None:
    """Set up the state that a training program needs, with the same first weights on all ranks.

    The first rank draws the weights on its CPU and broadcasts them: GPUs would draw others from the same seed. All
    ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        model: The model of the program, for its recipe.
        training: The program, whose variables need not exist yet.
    """
    machine.executor.run(training.startup)  # makes all variables, so it comes before their values are set
    if machine.me.is_first:
        state.set_weights(training.main, first_weights(model.recipe))
    state.broadcast_parameters(training.main, machine.me)
    training.schedule.send(machine.executor.place)  # sends the first learning rate to the device


def _without_all_reduces(main: static.Program) -> static.Program:
    """Return a copy of a training program whose steps do not wait for other ranks: it sums nothing over the ranks."""
    copied = main.clone()
    edit.remove(copied, lambda op: op.type.startswith("c_allreduce"))
    return copied
