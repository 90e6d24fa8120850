"""Trains FCN-HRNetW18 on images in Cityscapes' layout: one rank of a job, read from top to bottom.

Started on every rank by `python -m harness`, which has read the job and set up the process.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import paddle
from paddle import static

from harness import loader, ranks, sampling, session
from harness import plan as plans
from harness.env import Job, Origins
from harness.loop import COUNTED
from paddle_hrnet import config, data, metric, scenes
from paddle_hrnet.model import ModelConfig, fcn_hrnet_w18, pretrained_weights
from program import build, precision
from program.passes import sync_bn
from program.schedules import Schedule

CONFUSION = "eval.confusion"


def main(job: Job, origins: Origins) -> None:
    """Runs the job on this rank.

    Raises:
        ValueError: the job asks for what cannot be done.
        RunError: training failed.
    """
    me = ranks.start(job)
    task, train_pairs, eval_pairs = configured(job, me)  # all of it is checked before a log is begun
    recipe, plan = task.recipe, task.plan
    with session.begin(job, origins, me, task) as run:
        # ---- programs; the seeds of the ranks differ on purpose: rank 0's weights are broadcast
        model, image = model_and_image(recipe, plan)
        whole = whole_image(data.first_size(eval_pairs), image)
        training = training_program(job, recipe, plan, task.schedule, seed=run.seed + me.rank + 1)
        evaluation = build.evaluation(lambda: evaluation_totals(whole, recipe, model), training, plan)
        made = data.synthetic(image, batch=job.batchsize, classes=recipe.classes, seed=run.seed + me.rank)
        synthetic = loader.resident(made, run.executor.place)
        trainer, evaluator = run.prepare(
            training=training,
            evaluation=evaluation,
            totals=(CONFUSION, COUNTED),
            synthetic=synthetic,
            synthetic_eval=data.synthetic(whole, batch=recipe.eval_batch, classes=recipe.classes, seed=run.seed),
            pretrained=pretrained_weights(Path(job.pretrained), training.main) if job.pretrained else None,
        )

        # ---- input: nothing is read before the first batch is asked for
        reader, whole_reader = run.reader(image, batch=job.batchsize), run.reader(whole, batch=recipe.eval_batch)
        run.train(
            trainer,
            evaluator,
            lambda totals: metric.mean_iou(totals[CONFUSION]),
            batches=data.Loader(train_pairs, run.training_plan(), reader, augment=recipe.augmentation),
            eval_batches=data.Loader(eval_pairs, run.evaluation_plan(), whole_reader),
            synthetic=synthetic,
        )


def configured(job: Job, me: ranks.Ranks) -> tuple[session.Task, data.PairList, data.PairList]:
    """What the job trains, and its training and evaluation images with their labels.

    Raises:
        ValueError: the job asks for what cannot be done.
    """
    recipe = config.recipe(job.recipe, global_batch=job.global_batch, image_size=job.image_size)
    plan = in_nchw(job, plans.of_job(job))
    name, root = session.data_set(job, me, embedded=scenes.NAME, prepare=scenes.prepare)
    train_pairs = data.read_list(root, "train", recipe.classes)
    eval_pairs = data.read_list(root, "val", recipe.classes)
    samples = session.epoch_samples(job, listed=len(train_pairs), nominal=recipe.train_samples)
    steps = sampling.steps_per_epoch(samples, job.global_batch)
    # Training ends with the epoch of its last step; the rate has reached its end before.
    epochs = job.max_epochs or -(-recipe.total_steps(samples=samples, global_batch=job.global_batch) // steps)
    schedule = recipe.make_schedule(samples=samples, global_batch=job.global_batch, epochs=job.max_epochs)
    task = session.Task(
        dataset=name,
        train_samples=samples,
        eval_samples=len(eval_pairs),
        eval_batch=recipe.eval_batch,
        epochs=epochs,
        target=recipe.target_miou,
        bn_span=plan.micro_batch(job.batchsize) * (me.size if recipe.sync_bn else 1),
        recipe=recipe,
        plan=plan,
        schedule=schedule,
    )
    return task, train_pairs, eval_pairs


def in_nchw(job: Job, plan: build.Plan) -> build.Plan:
    """The plan in the one layout of this model, see `paddle_hrnet/model.py`.

    Raises:
        ValueError: the job asks for the other one.
    """
    if job.layout == "NHWC":
        raise ValueError("LAYOUT=NHWC: FCN-HRNetW18 is built in NCHW only: leave LAYOUT empty")
    return dataclasses.replace(plan, layout="NCHW")


def model_and_image(recipe: config.Recipe, plan: build.Plan) -> tuple[ModelConfig, data.ImageFormat]:
    """Network of the recipe and its training crop."""
    model = ModelConfig(
        classes=recipe.classes,
        head_bias=recipe.head_bias,
        bn_momentum=recipe.bn_momentum,
        weight_std=recipe.weight_std,
        zero_gamma=recipe.zero_gamma,
    )
    image = data.ImageFormat(
        height=recipe.image_height, width=recipe.image_width, half=plan.precision.input_dtype == "float16"
    )
    return model, image


def whole_image(size: data.ImageFormat, crop: data.ImageFormat) -> data.ImageFormat:
    """A whole image of this size, as an evaluation is fed it: of the type of the training's crops."""
    return dataclasses.replace(size, half=crop.half)


def training_program(
    job: Job, recipe: config.Recipe, plan: build.Plan, schedule: Schedule, *, seed: int
) -> build.TrainingProgram:
    """Training program of one rank, its start-up program and loss; fleet must know the ranks."""
    plan = in_nchw(job, plan)
    model, image = model_and_image(recipe, plan)
    training, startup = static.Program(), static.Program()
    startup.random_seed = seed
    with static.program_guard(training, startup):
        loss = training_loss(image, plan.micro_batch(job.batchsize), recipe, model)
        if recipe.sync_bn and job.world_size > 1:
            sync_bn.span_ranks(training)
        return build.minimize(loss, recipe.optimizer, schedule, plan=plan)


def training_loss(image: data.ImageFormat, batch: int, recipe: config.Recipe, model: ModelConfig) -> static.Variable:
    """Mean cross entropy [] over the pixels of a batch that are not ignored, appended to the default program."""
    pixels = static.data("image", [batch, 3, image.height, image.width], "float32")
    with precision.half_region():
        logits = fcn_hrnet_w18(pixels, model, training=True)
    label = static.data("label", [batch, image.height, image.width], "uint8")
    label = paddle.unsqueeze(paddle.cast(label, "int64"), 1)
    return paddle.nn.functional.cross_entropy(logits, label, axis=1, ignore_index=config.IGNORED)


def evaluation_totals(whole: data.ImageFormat, recipe: config.Recipe, model: ModelConfig) -> None:
    """Adds a batch's confusion matrix and counted images to CONFUSION and COUNTED, by operators of the program."""
    batch, classes = recipe.eval_batch, recipe.classes
    pixels = static.data("image", [batch, 3, whole.height, whole.width], "float32")
    label = static.data("label", [batch, whole.height, whole.width], "uint8")
    valid = static.data("valid", [batch], "float32")
    with precision.half_region():
        logits = evaluation_logits(pixels, recipe, model)
    for name, value, shape in (
        (CONFUSION, metric.confusion_matrix(logits, label, classes), [classes, classes]),
        (COUNTED, paddle.cast(paddle.sum(valid, keepdim=True), "int64"), [1]),
    ):
        block = static.default_main_program().global_block()
        total = block.create_var(name=name, shape=shape, dtype="int64", persistable=True)
        paddle.assign(total + value, output=total)


def evaluation_logits(pixels: static.Variable, recipe: config.Recipe, model: ModelConfig) -> static.Variable:
    """Logits [N, K, H, W], summed over the recipe's sizes of the image and, with `eval_flip`, its mirror image."""
    height, width = pixels.shape[2:]
    total = None
    for scale in recipe.eval_scales:
        size = [int(height * scale + 0.5), int(width * scale + 0.5)]
        scaled = pixels
        if scale != 1.0:
            scaled = paddle.nn.functional.interpolate(pixels, size, mode="bilinear", align_corners=False)
        for mirrored in (False, True) if recipe.eval_flip else (False,):
            logits = fcn_hrnet_w18(paddle.flip(scaled, [3]) if mirrored else scaled, model, training=False)
            logits = paddle.flip(logits, [3]) if mirrored else logits
            if scale != 1.0:
                logits = paddle.nn.functional.interpolate(logits, [height, width], mode="bilinear", align_corners=False)
            total = logits if total is None else total + logits
    return total
