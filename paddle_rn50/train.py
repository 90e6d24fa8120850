"""Trains ResNet-50 v1.5 on images in ImageNet's layout: one rank of a job, read from top to bottom.

Started on every rank by `python -m harness`, which has read the job and set up the process.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
from mlperf_logging.mllog import constants as keys
from paddle import static

from harness import checkpoint, events, memory, precision, program, ranks, sampling, session, telemetry, tracing
from harness.env import Job
from harness.loop import Evaluator, Trainer
from harness.progress import Progress
from harness.schedules import Schedule
from paddle_rn50 import config, data, digits
from paddle_rn50.model import ModelConfig, resnet50

CORRECT, COUNTED = "eval.correct", "eval.counted"


def main(job: Job, origins: dict[str, Any]) -> None:
    """Runs the job on this rank.

    Raises:
        ValueError: the job asks for what cannot be done.
        RunError: training failed.
    """
    # ---- configuration: all of it is checked before a log is begun
    me = ranks.start(job)
    recipe = config.recipe(job.recipe, global_batch=job.global_batch, image_size=job.image_size)
    plan = program.plan(job)
    name, root = data_set(job, me)
    train_images = data.read_list(root, "train_list.txt", recipe.classes)
    eval_images = data.read_list(root, "val_list.txt", recipe.classes)
    steps = sampling.steps_per_epoch(len(train_images), job.global_batch)
    epochs = job.max_epochs or math.ceil(recipe.epochs)
    schedule = recipe.make_schedule(samples=len(train_images), global_batch=job.global_batch, epochs=epochs)
    run = session.identity(job, recipe, train_samples=len(train_images), epochs=epochs)
    start = checkpoint.find(job, me, run)
    seed = start.position.seed if start.position else me.broadcast(job.seed if job.seed >= 0 else secrets.randbits(31))
    total_steps = epochs * steps if job.mode == "train" else job.warmup_steps + job.measured_steps

    log_path = Path(job.result_file) if me.is_first else None
    with (
        events.open_log(log_path) as log,
        memory.explained(job),
        ranks.lost_peer(),
        Progress((job.progress or "plain") if me.is_first else "none", total_steps) as progress,
        checkpoint.Keeper(job, me, log, start=start, run=run, seed=seed, steps_per_epoch=steps) as keeper,
        telemetry.sampling(job, me) as sampler,
    ):
        dataset = {
            "name": name,
            "train_samples": len(train_images),
            "eval_samples": len(eval_images),
            "synthetic": job.data == "synthetic",
        }
        session.preamble(log, job, origins, me, recipe=recipe, dataset=dataset)
        log.event(keys.SEED, seed)
        log.event(keys.TRAIN_SAMPLES, len(train_images))
        log.event(keys.EVAL_SAMPLES, len(eval_images))
        log.event(keys.GLOBAL_BATCH_SIZE, job.global_batch)
        log.event(keys.GRADIENT_ACCUMULATION_STEPS, plan.strategy.gradient_merge)
        log.event(keys.MODEL_BN_SPAN, plan.micro_batch(job.batchsize))
        session.log_optimizer(log, schedule, recipe.optimizer, warmup_epochs=recipe.warmup_epochs)

        # ---- programs
        ranks.connect(job, me)
        paddle.enable_static()
        place = paddle.CUDAPlace(me.local_rank) if job.device == "gpu" else paddle.CPUPlace()
        executor = static.Executor(place)
        model, image = model_and_image(recipe, plan)
        # The seeds of the ranks differ on purpose: rank 0's weights are broadcast.
        training, startup, _ = training_program(job, recipe, plan, schedule, seed=seed + me.rank + 1)
        evaluation = static.Program()
        with static.program_guard(evaluation, static.Program()):
            evaluation_totals(image, job.batchsize, recipe, model)
            precision.cast_evaluation(evaluation, plan.precision)
        log.section("program", program.summary(training))

        trainer = Trainer(
            executor=executor,
            main=training,
            global_batch=job.global_batch,
            print_steps=job.print_steps,
            ranks=me,
            log=log,
            progress=progress,
            keeper=keeper,
            sampler=sampler,
            tracer=tracing.tracer(job, me),
        )
        evaluator = Evaluator(
            executor=executor,
            main=evaluation,
            totals=(CORRECT, COUNTED),
            feed=lambda batch: {"image": batch.image, "label": batch.label, "valid": batch.valid},
            ranks=me,
        )

        # ---- warm-up on synthetic data; afterwards the start-up program sets all state anew
        synthetic = data.synthetic(image, batch=job.batchsize, classes=recipe.classes, seed=seed + me.rank)
        executor.run(startup)
        trainer.warm_up(synthetic)
        if job.mode == "train":
            evaluator.warm_up(synthetic)
        executor.run(startup)
        program.broadcast_parameters(training, me)
        checkpoint.restore(start, training, me)

        # ---- input: nothing is read before the first batch is asked for
        training_plan = sampling.training_plan(
            len(train_images),
            batch=job.batchsize,
            rank=me.rank,
            ranks=me.size,
            seed=seed,
            epoch=start.epoch,
            first_step=start.epoch_step,
        )
        evaluation_plan = sampling.evaluation_plan(len(eval_images), batch=job.batchsize, rank=me.rank, ranks=me.size)
        reader = data.ReaderConfig(
            batch=job.batchsize,
            image=image,
            device=job.device,
            device_id=me.local_rank,
            threads=job.data_threads_per_rank,
            seed=seed,
        )
        train_loader = data.Loader(train_images, training_plan, reader, augment=recipe.augmentation)
        eval_loader = data.Loader(eval_images, evaluation_plan, reader, resize=recipe.eval_resize)
        batches: Iterator[data.Batch] = itertools.repeat(synthetic) if job.data == "synthetic" else train_loader

        def evaluate() -> float:
            batches_of_rank = sampling.evaluation_steps(len(eval_images), job.global_batch)
            totals = evaluator.run(eval_loader, steps=batches_of_rank)
            assert totals[COUNTED] == len(eval_images), "evaluation must see every image exactly once"
            return totals[CORRECT] / totals[COUNTED]

        # ---- the timed run
        session.run_summary(log, job, model="resnet50_v1.5", resumed=start.position is not None)
        session.start_clock(log, me)
        if job.mode == "throughput":
            session.measure(job, trainer, batches)
        else:
            session.train_to_target(
                trainer,
                batches,
                evaluate,
                epochs=epochs,
                steps_per_epoch=steps,
                eval_epochs=[e for e in range(1, epochs + 1) if recipe.is_eval_epoch(e, epochs)],
                target=recipe.target_top1,
                progress=progress,
                start=start,
            )
        me.barrier()
        log.stop(keys.RUN_STOP, {"status": "success"})
        session.log_telemetry(log, me, sampler)
        train_loader.close()
        eval_loader.close()


def data_set(job: Job, me: ranks.Ranks) -> tuple[str, Path]:
    """Name and folder of the data set; the embedded one is made here, once on each node."""
    if job.datadir:
        return Path(job.datadir).name, Path(job.datadir)
    folder = Path(job.data_cache) / digits.NAME
    if me.local_rank == 0:
        digits.prepare(folder)
    me.barrier()
    return digits.NAME, folder


def model_and_image(recipe: config.Recipe, plan: program.Plan) -> tuple[ModelConfig, data.ImageFormat]:
    """Network of the recipe and its input, in the plan's layout and precision."""
    model = ModelConfig(
        classes=recipe.classes,
        layout=plan.layout,
        input_channels=4 if plan.layout == "NHWC" and plan.precision.is_half else 3,
        bn_momentum=recipe.bn_momentum,
        zero_gamma=recipe.zero_gamma,
    )
    image = data.ImageFormat(
        size=recipe.image_size,
        layout=plan.layout,
        channels=model.input_channels,
        half=plan.precision.input_dtype == "float16",
    )
    return model, image


def training_program(
    job: Job, recipe: config.Recipe, plan: program.Plan, schedule: Schedule, *, seed: int
) -> tuple[static.Program, static.Program, static.Variable]:
    """Training program of one rank, its start-up program and its loss; fleet must know the ranks."""
    model, image = model_and_image(recipe, plan)
    training, startup = static.Program(), static.Program()
    startup.random_seed = seed
    with static.program_guard(training, startup):
        loss = training_loss(image, plan.micro_batch(job.batchsize), recipe, model)
        program.minimize(loss, recipe.optimizer, schedule, plan=plan)
    return training, startup, loss


def _image_input(image: data.ImageFormat, batch: int) -> static.Variable:
    side, channels = image.size, image.channels
    shape = [batch, channels, side, side] if image.layout == "NCHW" else [batch, side, side, channels]
    return static.data("image", shape, "float32")  # fed as float16 where the program begins by casting it


def training_loss(image: data.ImageFormat, batch: int, recipe: config.Recipe, model: ModelConfig) -> static.Variable:
    """Mean cross entropy [] of a batch against its smoothed labels, appended to the default program."""
    with precision.half_region():
        logits = resnet50(_image_input(image, batch), model, training=True)
    label = static.data("label", [batch, 1], "int64")
    if not recipe.label_smoothing:
        return paddle.nn.functional.cross_entropy(logits, label)
    one_hot = paddle.nn.functional.one_hot(paddle.squeeze(label, 1), recipe.classes)
    smooth = paddle.nn.functional.label_smooth(one_hot, epsilon=recipe.label_smoothing)
    return paddle.nn.functional.cross_entropy(logits, smooth, soft_label=True)


def evaluation_totals(image: data.ImageFormat, batch: int, recipe: config.Recipe, model: ModelConfig) -> None:
    """Adds a batch's correct and counted samples to CORRECT and COUNTED, by operators of the default program."""
    with precision.half_region():
        logits = resnet50(_image_input(image, batch), model, training=False)
    label = static.data("label", [batch, 1], "int64")
    valid = static.data("valid", [batch, 1], "float32")
    hit = paddle.cast(paddle.equal(paddle.argmax(logits, axis=1, keepdim=True), label), "float32")
    for name, value in ((CORRECT, hit * valid), (COUNTED, valid)):
        total = (
            static.default_main_program()
            .global_block()
            .create_var(name=name, shape=[1], dtype="float32", persistable=True)
        )
        paddle.assign(total + paddle.sum(value), output=total)
