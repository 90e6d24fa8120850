"""Trains a job's workload: one rank of a job, read from top to bottom.

Started on every rank by `python -m harness`, which has read the job and set up the process.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from paddle import static

from harness import loader, ranks, sampling, session, state, workload
from harness.hooks import checkpoint
from harness.job import Job, Origins
from harness.loop import COUNTED, CapturedStep, Evaluator, LaunchedStep, NotFinite, Trainer
from program import build
from runlog import schema
from runlog.errors import RunError


def main(job: Job, origins: Origins) -> None:
    """Runs the job on this rank. Raises ValueError for what cannot be done, and RunError where training failed."""
    me = ranks.start(job)
    task = configured(job, me)  # all of it is checked before a log is begun
    with session.begin(job, origins, me, task) as run:
        # ---- programs; the seeds of the ranks differ on purpose: rank 0's weights are broadcast
        model, eval_image, eval_batch = task.workload, task.eval_image, task.eval_batch
        training = model.training_program(task.schedule, seed=run.seed + me.rank + 1)
        evaluation = build.evaluation(lambda: model.evaluation_totals(eval_image, eval_batch), training, model.plan)
        made = model.synthetic(model.image, batch=job.model.batchsize, seed=run.seed + me.rank)
        synthetic = synthetic_eval = loader.resident(made, run.executor.place)
        if (eval_image, eval_batch) != (model.image, job.model.batchsize):
            synthetic_eval = model.synthetic(eval_image, batch=eval_batch, seed=run.seed)
        trainer, evaluator = prepared(run, training, evaluation, synthetic, synthetic_eval)

        # ---- input: nothing is read before the first batch is asked for
        reader = loader.ReaderConfig.of_rank(job, me.local_rank, model.image, batch=job.model.batchsize, seed=run.seed)
        at, share = run.start.position, {"rank": me.rank, "ranks": me.size}
        order = sampling.training_plan(
            task.dataset.train_samples,
            batch=job.model.batchsize,
            seed=run.seed,
            epoch=at.epoch,
            first_step=at.epoch_step,
            **share,
        )
        batches = model.batches(task.samples, order, reader)
        order = sampling.evaluation_plan(task.dataset.eval_samples, batch=eval_batch, **share)
        eval_batches = model.eval_batches(
            task.eval_samples, order, dataclasses.replace(reader, image=eval_image, batch=eval_batch)
        )
        batches.write_to(trainer.step.inputs)
        source = itertools.repeat(synthetic) if job.data.kind == "synthetic" else batches

        # ---- the timed run
        session.run_summary(run.log, job, resumed=bool(run.start.path))
        session.start_clock(run.log, me)
        try:
            if job.course.mode == "throughput":
                trainer.run(source, steps=job.course.warmup_steps, epoch=1, done=0, phase="warmup")
                trainer.run(
                    source, steps=job.course.measured_steps, epoch=1, done=job.course.warmup_steps, phase="measured"
                )
            else:
                to_target(run, trainer, source, lambda: evaluated(evaluator, eval_batches, run))
        except NotFinite as error:
            raise RunError(f"{error}; {run.keeper.last_good}") from error
        me.comm.Barrier()
        run.log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        session.log_telemetry(run.log, me, run.hooks)
        batches.close()
        eval_batches.close()


def configured(job: Job, me: ranks.Ranks) -> session.Task:
    """Return what the job trains, by environment and data set.

    Raises ValueError where it asks for what cannot be done.
    """
    model = workload.of_job(job)
    recipe = model.recipe
    name, root = session.data_set(job, me, model.EMBEDDED)
    train_samples = model.DATA.find(root, "train", recipe.classes)
    eval_samples = model.DATA.find(root, "val", recipe.classes)
    is_synthetic = job.data.kind == "synthetic"
    surveyed = None if is_synthetic else session.surveyed(me, train_samples, eval_samples)

    count = len(train_samples)
    if is_synthetic and not job.data.folder:
        # An epoch is as long as on the recipe's data set: the embedded one may be smaller than a batch.
        count = max(recipe.train_samples, job.global_batch)

    eval_image, eval_batch = model.eval_input(eval_samples)
    sizes = {"samples": count, "global_batch": job.global_batch}
    dataset = schema.Dataset(
        name=name,
        train_samples=count,
        eval_samples=len(eval_samples),
        synthetic=is_synthetic,
        form=train_samples.form,
        train=surveyed.train if surveyed else None,
        eval=surveyed.evaluation if surveyed else None,
        train_source=train_samples.source,
        eval_source=eval_samples.source,
    )
    return session.Task(
        workload=model,
        dataset=dataset,
        samples=train_samples,
        eval_samples=eval_samples,
        eval_image=eval_image,
        eval_batch=eval_batch,
        epochs=job.course.max_epochs or recipe.most_epochs(**sizes),
        schedule=recipe.make_schedule(**sizes, epochs=job.course.max_epochs),
        notes=(*train_samples.notes, *eval_samples.notes, *(surveyed.notes if surveyed else ())),
    )


def prepared(
    run: session.Run, training: build.TrainingProgram, evaluation: static.Program, synthetic: Any, synthetic_eval: Any
) -> tuple[Trainer, Evaluator]:
    """Warms the programs up on synthetic batches, then sets all state: by the start-up program, the weights of
    PRETRAINED, and the checkpoint that the run goes on from.
    """
    job, model, executor = run.job, run.task.workload, run.executor
    run.log.section(schema.PROGRAM, schema.Program(**build.summary(training)))
    if job.model.knobs.auto:
        for line in training.verified:
            run.progress.say(line)
    trainer = Trainer(
        step=(CapturedStep if job.model.knobs.cuda_graph else LaunchedStep)(executor, training),
        global_batch=job.global_batch,
        print_steps=job.course.print_steps,
        ranks=run.ranks,
        log=run.log,
        progress=run.progress,
        hooks=run.hooks,
    )
    evaluator = Evaluator(
        executor=executor,
        main=evaluation,
        totals=(model.QUALITY, COUNTED),
        ranks=run.ranks,
    )
    first_weights = model.pretrained(job.model.pretrained, training.main)
    executor.run(training.startup)
    trainer.warm_up(synthetic)
    if job.course.mode == "train":
        evaluator.warm_up(synthetic_eval)
    build.keep_communicators(training.startup)
    executor.run(training.startup)
    state.set_weights(training.main, first_weights)
    state.broadcast_parameters(training.main, run.ranks)
    checkpoint.restore(run.start, training, run.ranks)
    trainer.step.capture()
    return trainer, evaluator


def evaluated(evaluator: Evaluator, batches: Iterator[Any], run: session.Run) -> float:
    """Return the quality by all images of the evaluation, each seen once; warn where it shows nothing."""
    task = run.task
    samples = task.dataset.eval_samples
    steps = sampling.evaluation_steps(samples, task.eval_batch * evaluator.ranks.size)
    totals = evaluator.run(batches, steps=steps)
    assert totals[COUNTED] == samples, "evaluation must see every image exactly once"
    doubt = task.workload.doubt(totals)
    if doubt:
        run.progress.warn(run.log, doubt)
    return task.workload.quality(totals)


def to_target(run: session.Run, trainer: Trainer, batches: Iterator[Any], evaluate: Callable[[], float]) -> None:
    """Trains epoch by epoch until an evaluation reaches the target.

    A block of the log is the epochs up to an evaluation and the evaluation itself.

    Raises RunError where the target was not reached in the task's epochs.
    """
    task, log, start, steps = run.task, run.log, run.start.position, run.steps_per_epoch
    recipe, main = task.workload.recipe, trainer.step.program.main
    quality, previous = float("nan"), start.epoch - 1
    for last in (e for e in range(start.epoch, task.epochs + 1) if recipe.is_eval_epoch(e, task.epochs)):
        block = schema.InBlock(first_epoch_num=previous + 1, epoch_count=last - previous)
        log.mark(schema.BLOCK_START, block)
        for epoch in range(previous + 1, last + 1):
            log.mark(schema.EPOCH_START, schema.InEpoch(epoch_num=epoch))
            left_out = start.epoch_step if epoch == start.epoch else 0
            done = (epoch - 1) * steps + left_out
            timing = trainer.run(batches, steps=steps - left_out, epoch=epoch, done=done, phase="train")
            log.mark(schema.EPOCH_STOP, schema.InEpoch(epoch_num=epoch))
            session.log_throughput(log, timing, epoch)
            if epoch < last:
                run.keeper.epoch_ended(main, epoch)
        log.mark(schema.EVAL_START, schema.InEpoch(epoch_num=last))
        state.average_statistics(main, run.ranks)
        quality = evaluate()
        log.mark(schema.EVAL_STOP, schema.InEpoch(epoch_num=last))
        log.event(schema.EVAL_ACCURACY, quality, schema.InEpoch(epoch_num=last))
        log.mark(schema.BLOCK_STOP, block)
        run.progress.say(f"epoch {last} evaluation {quality:.4f} (target {recipe.target:.4f})")
        if quality >= recipe.target:
            return
        run.keeper.epoch_ended(main, last)
        previous = last
    # Asked of all ranks, so that none ends the job while rank 0 still writes its last checkpoint.
    found = f"evaluation is {quality:.4f} after {task.epochs} epochs, below the target {recipe.target:.4f}"
    raise RunError(f"{found}; {run.keeper.last_good}")
