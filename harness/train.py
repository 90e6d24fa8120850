"""Trains a job's workload: one rank of a job, read from top to bottom.

Started on every rank by `python -m harness`, which has read the job and set up the process.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from harness import loader, ranks, sampling, session, state
from harness.hooks import resume
from harness.job import LAST_SEED, CourseSettings, Job, ModelSettings, Origins
from harness.loader import Batch, Loader
from harness.loop import COUNTED, CapturedStep, Evaluator, LaunchedStep, NotFinite, Trainer
from harness.task import task_of
from program import build
from program.arrays import Array
from runlog import schema
from runlog.digits import beside_limit, counted
from runlog.errors import RunError


def main(job: Job, origins: Origins) -> None:
    """Run the job on this rank: build the programs, warm them up, open the input, and train or measure.

    No image of the training is read before the clock of the run starts. Every rank must call this.

    Args:
        job: The settings of the job.
        origins: The value of each setting with who set it, for the log.

    Raises:
        ValueError: The job asks for what cannot be done.
        RunError: The run failed, for example because the target was not reached.
    """
    me = ranks.start(job.cluster)
    task = task_of(job, me)  # all of it is checked before a log is begun
    with session.begin(job, origins, me, task) as run:
        # ---- programs, warmed up, and their state
        synthetic = synthetic_batches(run)
        trainer, evaluator = build_trainer(run, job.model, job.course)
        # Read before the warm-up, which may take minutes: a wrong file ends the run at once.
        first_weights = task.workload.pretrained(job.model.pretrained, trainer.step.program.main)
        warm_up(run, trainer, evaluator, synthetic, evaluates=job.course.trains)
        set_first_state(run, trainer.step.program, first_weights)
        # A CUDA graph reads its state at fixed addresses, so it is captured when the state has its memory for good. A
        # launched step does nothing here.
        trainer.step.capture()

        # ---- input: nothing is read before the first batch is asked for
        reader = loader.ReaderConfig.of_rank(
            job.data, job.cluster, me.local_rank, task.workload.image, batch=task.workload.batch, seed=run.seed
        )
        batches = training_batches(run, reader)
        eval_batches = evaluation_batches(run, reader)
        batches.write_to(trainer.step.inputs)  # tensors from which a captured step reads; a launched step has none
        source: Iterator[Batch] = batches
        if job.data.is_synthetic:
            source = itertools.repeat(synthetic.train)

        # ---- the timed run: no image of the training may be read before the clock starts
        session.start_clock(run.log, run.ranks)
        try:
            if job.course.trains:
                train_to_target(run, trainer, source, evaluator, eval_batches)
            else:
                train_measured_steps(trainer, source, job.course)
        except NotFinite as error:
            raise RunError(f"{error}; {run.keeper.last_good}") from error
        run.ranks.comm.Barrier()  # so that the run ends when its slowest rank has
        run.log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        session.log_telemetry(run.log, run.ranks, run.hooks)
        # These wait for the threads that read. After an error they are not waited for, and the process ends at once.
        batches.close()
        eval_batches.close()


class Synthetic(NamedTuple):
    """Batches of noise."""

    train: Batch  # on the device
    evaluation: Batch


def synthetic_batches(run: session.Run) -> Synthetic:
    """Return batches of noise for the training and for the evaluation program, to warm them up.

        training:    on the device, because a run on synthetic data feeds this batch at every step; its noise differs
                     from rank to rank
        evaluation:  the training batch if the evaluation has the same image format and batch size; else a batch in the
                     host's memory, as it is used once

    Args:
        run: The run that has begun. Its seed decides the noise.
    """
    task = run.task
    workload = task.workload
    made = workload.synthetic(workload.image, batch=workload.batch, seed=run.seed + run.ranks.rank)
    train = loader.resident(made, run.executor.place)
    if (task.eval_image, task.eval_batch) == (workload.image, workload.batch):
        return Synthetic(train=train, evaluation=train)
    evaluation = workload.synthetic(task.eval_image, batch=task.eval_batch, seed=run.seed)
    return Synthetic(train=train, evaluation=evaluation)


def build_trainer(run: session.Run, model: ModelSettings, course: CourseSettings) -> tuple[Trainer, Evaluator]:
    """Build the training and the evaluation program, and return the objects that run them.

    Nothing is run yet, and the parameters have no values. A summary of the training program is written into the log.

    Args:
        run: The run that has begun.
        model: Settings of the model. A CUDA graph runs the step if STRATEGY says cuda_graph.
        course: Settings of the run's course. `print_steps` is the length of the windows of steps that are logged.

    Returns:
        (trainer, evaluator).

    Raises:
        ValueError: Paddle cannot build a program as the settings ask.
    """
    task = run.task
    # Each rank draws other first weights, so that the losses show it if `set_first_state` fails to send them rank 0's.
    training = task.workload.training_program(task.schedule, seed=seed_of_rank(run.seed, run.ranks.rank))
    evaluation = build.evaluation(task.append_evaluation, training, task.workload.plan)
    _log_program(run, training, shows_choices=model.knobs.auto)

    step_kind = CapturedStep if model.knobs.cuda_graph else LaunchedStep
    trainer = Trainer(
        step=step_kind(run.executor, training),
        global_batch=model.batchsize * run.ranks.size,
        print_steps=course.print_steps,
        ranks=run.ranks,
        log=run.log,
        progress=run.progress,
        hooks=run.hooks,
    )
    evaluator = Evaluator(
        executor=run.executor,
        main=evaluation,
        totals=(task.workload.QUALITY, COUNTED),
        ranks=run.ranks,
    )
    return trainer, evaluator


def seed_of_rank(seed: int, rank: int) -> int:
    """Return the seed of a rank's first weights, from 1 to LAST_SEED, another one for each rank.

    Paddle takes no seed above LAST_SEED, and for 0 draws a seed itself. After LAST_SEED follows 1.

    Args:
        seed: Seed of the run.
        rank: Number of the rank, from 0.
    """
    return 1 + (seed + rank) % LAST_SEED


def _log_program(run: session.Run, training: build.TrainingProgram, *, shows_choices: bool) -> None:
    """Log a summary of the training program; show the user the choices that Paddle's automatic mode made, if it did."""
    run.log.section(schema.PROGRAM, schema.Program(**build.summary(training)))
    if shows_choices:
        for choice in training.verified:  # in another mode: what was proved of the program
            run.progress.say(choice)


def warm_up(run: session.Run, trainer: Trainer, evaluator: Evaluator, batches: Synthetic, *, evaluates: bool) -> None:
    """Run the programs on synthetic batches, because the first run of a program is slow.

    The values of the parameters mean nothing afterwards.

    Args:
        run: The run that has begun.
        trainer: Runs the training program.
        evaluator: Runs the evaluation program.
        batches: Noise for both programs.
        evaluates: Whether the run will evaluate. If not, only the training program is warmed up.
    """
    run.executor.run(trainer.step.program.startup)  # a program cannot run before its tensors have values
    trainer.warm_up(batches.train)
    if evaluates:
        evaluator.warm_up(batches.evaluation)


def set_first_state(run: session.Run, training: build.TrainingProgram, first_weights: dict[str, Array]) -> None:
    """Give the training program the state that the training starts from; every rank must call this.

    The state is set in four steps, each of which replaces what the step before has set:

    1. The start-up program sets all of the state.
    2. `first_weights` replace parameters.
    3. Rank 0 sends its state to all ranks.
    4. If the run goes on from a checkpoint, the checkpoint replaces the state.

    Args:
        run: The run that has begun, with the checkpoint that it starts from, if any.
        training: The training program. It has been run before, in the warm-up, so the ranks are connected already.
        first_weights: {name of a parameter: pretrained value}; empty if there are none.

    Raises:
        ValueError: On rank 0, if the checkpoint does not fit the program.
    """
    # With several ranks on GPUs, the start-up program also opens NCCL's communicators, which connect the ranks.
    # `warm_up` has run this program once already. So the operators that open communicators are removed, and the first
    # communicators stay in use.
    build.keep_communicators(training.startup)
    run.executor.run(training.startup)
    state.set_weights(training.main, first_weights)
    state.broadcast_parameters(training.main, run.ranks)
    # Last, as it gives each rank statistics of batch normalization of its own, which a broadcast would overwrite.
    resume.restore(run.start, training, run.ranks)


def training_batches(run: session.Run, reader: loader.ReaderConfig) -> Loader:
    """Return an endless loader of this rank's training batches, one epoch after the other.

    It begins at the position where the run starts, which is within an epoch if a checkpoint was made there. Nothing is
    read before the first batch is taken.

    Args:
        run: The run that has begun.
        reader: How this rank reads: batch size, image format, threads and device.

    Raises:
        RunError: The input pipeline cannot be built.
        MemoryError: There is too little memory for it.
    """
    task = run.task
    position = run.start.position
    order = sampling.training_plan(
        task.dataset.train_samples,
        batch=reader.batch,
        rank=run.ranks.rank,
        ranks=run.ranks.size,
        seed=run.seed,
        epoch=position.epoch,
        first_step=position.epoch_step,
    )
    return task.workload.batches(task.training_set, order, reader)


def evaluation_batches(run: session.Run, training_reader: loader.ReaderConfig) -> Loader:
    """Return an endless loader of this rank's evaluation batches, one evaluation after the other.

    Nothing is read before the first batch is taken.

    Args:
        run: The run that has begun.
        training_reader: How this rank reads the training images. For an evaluation, image format and batch size are
            replaced.

    Raises:
        RunError: The input pipeline cannot be built.
        MemoryError: There is too little memory for it.
    """
    task = run.task
    reader = dataclasses.replace(training_reader, image=task.eval_image, batch=task.eval_batch)
    number_of_images = task.dataset.eval_samples
    plan = sampling.evaluation_plan(number_of_images, batch=reader.batch, rank=run.ranks.rank, ranks=run.ranks.size)
    return task.workload.eval_batches(task.evaluation_set, plan, reader)


def train_measured_steps(trainer: Trainer, batches: Iterator[Batch], course: CourseSettings) -> None:
    """Train the steps of a throughput measurement: those that warm up, then those that are measured.

    Args:
        trainer: Runs the steps and logs both phases.
        batches: Gives this rank's batch for each step.
        course: Settings with the number of steps of each phase.

    Raises:
        RunError: The training failed. It is a NotFinite if a loss is not finite.
    """
    trainer.run(batches, steps=course.warmup_steps, epoch=1, done=0, phase="warmup")
    trainer.run(batches, steps=course.measured_steps, epoch=1, done=course.warmup_steps, phase="measured")


def evaluate_all(evaluator: Evaluator, batches: Iterator[Batch], run: session.Run) -> float:
    """Evaluate every image of the evaluation set once, and return the quality between 0 and 1.

    A warning is logged and shown if the result means nothing. Every rank must call this.

    Args:
        evaluator: Runs the evaluation program.
        batches: This rank's evaluation batches, at the beginning of an evaluation.
        run: The run that has begun.
    """
    task = run.task
    samples = task.dataset.eval_samples
    steps = sampling.evaluation_steps(samples, task.eval_batch * evaluator.ranks.size)
    totals = evaluator.run(batches, steps=steps)
    assert totals[COUNTED] == samples, "evaluation must see every image exactly once"
    doubt = task.workload.doubt(totals)
    if doubt:
        run.progress.warn(run.log, doubt)
    return task.workload.quality(totals)


def train_epoch(run: session.Run, trainer: Trainer, batches: Iterator[Batch], epoch: int) -> None:
    """Train an epoch, or the steps of it that a checkpoint has not done yet, and log its throughput.

    Args:
        run: The run that has begun, with the position where it starts.
        trainer: Runs the training program.
        batches: This rank's training batches from the next step on.
        epoch: Number of the epoch, from 1.

    Raises:
        RunError: The training failed. It is a NotFinite if a loss is not finite.
    """
    start = run.start.position
    done_in_epoch = start.epoch_step if epoch == start.epoch else 0
    done_in_run = (epoch - 1) * run.steps_per_epoch + done_in_epoch
    steps = run.steps_per_epoch - done_in_epoch  # that are left
    run.log.mark(schema.EPOCH_START, schema.InEpoch(epoch_num=epoch))
    timing = trainer.run(batches, steps=steps, epoch=epoch, done=done_in_run, phase="train")
    if timing.steps > 0:
        # Someone may have set the system's clock after the last window was reported, as during a checkpoint.
        trainer.report_clock(done_in_run + steps)
    run.log.mark(schema.EPOCH_STOP, schema.InEpoch(epoch_num=epoch))
    session.log_throughput(run.log, timing, epoch)


def train_to_target(
    run: session.Run,
    trainer: Trainer,
    batches: Iterator[Batch],
    evaluator: Evaluator,
    eval_batches: Iterator[Batch],
) -> None:
    """Train epoch by epoch until an evaluation reaches the quality that is the recipe's target.

    The recipe says after which epochs an evaluation follows. The epochs up to an evaluation and the evaluation itself
    are a block of the log. A checkpoint may be written after each epoch, but none after the one that reached the
    target.

    Args:
        run: The run that has begun.
        trainer: Runs the training program.
        batches: This rank's training batches, from the position where the run starts.
        evaluator: Runs the evaluation program.
        eval_batches: This rank's evaluation batches, one evaluation after the other.

    Raises:
        RunError: The target was not reached in the task's epochs, or the training failed, for example by a loss that is
            not finite.
    """
    task = run.task
    log = run.log
    recipe = task.workload.recipe
    main = trainer.step.program.main
    first = run.start.position.epoch  # of the block
    shown = "not made"  # of the last evaluation
    for epoch in range(first, task.epochs + 1):
        if not recipe.is_eval_epoch(epoch, task.epochs):
            continue
        block = schema.InBlock(first_epoch_num=first, epoch_count=epoch - first + 1)
        log.mark(schema.BLOCK_START, block)
        for number in range(first, epoch + 1):
            train_epoch(run, trainer, batches, number)
            if number < epoch:
                run.keeper.epoch_ended(main, number)

        in_epoch = schema.InEpoch(epoch_num=epoch)
        log.mark(schema.EVAL_START, in_epoch)
        state.average_statistics(main, run.ranks)
        quality = evaluate_all(evaluator, eval_batches, run)
        log.mark(schema.EVAL_STOP, in_epoch)
        log.event(schema.EVAL_ACCURACY, quality, in_epoch)
        trainer.report_clock(epoch * run.steps_per_epoch)  # no window follows the last evaluation
        log.mark(schema.BLOCK_STOP, block)
        shown = beside_limit(quality, recipe.target, kind="f")
        run.progress.say(f"epoch {epoch} evaluation {shown} (target {recipe.target:.4f})")
        if quality >= recipe.target:
            return
        run.keeper.epoch_ended(main, epoch)
        first = epoch + 1

    # Every rank waits here until rank 0 has written its last checkpoint: an error on any of them ends the job.
    last_checkpoint = run.keeper.last_written
    found = f"evaluation is {shown} after {counted(task.epochs, 'epoch')}, below the target {recipe.target:.4f}"
    raise RunError(f"{found}; {last_checkpoint}")
