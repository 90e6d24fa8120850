"""Trains ResNet-50 v1.5 on images in ImageNet's layout: one rank of a job, read from top to bottom.

Started on every rank by `python -m harness`, which has read the job and set up the process.
"""

from __future__ import annotations

import math

import paddle
from paddle import static

from harness import loader, ranks, session
from harness import plan as plans
from harness.env import Job, Origins
from harness.loop import COUNTED
from paddle_rn50 import config, data, digits
from paddle_rn50.model import ModelConfig, resnet50
from program import build, precision
from program.schedules import Schedule

CORRECT = "eval.correct"


def main(job: Job, origins: Origins) -> None:
    """Runs the job on this rank.

    Raises:
        ValueError: the job asks for what cannot be done.
        RunError: training failed.
    """
    me = ranks.start(job)
    task, train_images, eval_images = configured(job, me)  # all of it is checked before a log is begun
    recipe, plan = task.recipe, task.plan
    with session.begin(job, origins, me, task) as run:
        # ---- programs; the seeds of the ranks differ on purpose: rank 0's weights are broadcast
        model, image = model_and_image(recipe, plan)
        training = training_program(job, recipe, plan, task.schedule, seed=run.seed + me.rank + 1)
        evaluation = build.evaluation(lambda: evaluation_totals(image, job.batchsize, recipe, model), training, plan)
        made = data.synthetic(image, batch=job.batchsize, classes=recipe.classes, seed=run.seed + me.rank)
        synthetic = loader.resident(made, run.executor.place)
        trainer, evaluator = run.prepare(
            training=training,
            evaluation=evaluation,
            totals=(CORRECT, COUNTED),
            synthetic=synthetic,
            synthetic_eval=synthetic,
        )

        # ---- input: nothing is read before the first batch is asked for
        reader = run.reader(image, batch=job.batchsize)
        run.train(
            trainer,
            evaluator,
            lambda totals: totals[CORRECT] / totals[COUNTED],
            batches=data.Loader(train_images, run.training_plan(), reader, augment=recipe.augmentation),
            eval_batches=data.Loader(eval_images, run.evaluation_plan(), reader, resize=recipe.eval_resize),
            synthetic=synthetic,
        )


def configured(job: Job, me: ranks.Ranks) -> tuple[session.Task, data.Images, data.Images]:
    """What the job trains, and its training and evaluation images.

    Raises:
        ValueError: the job asks for what cannot be done.
    """
    recipe = job.hyperparameters
    plan = plans.of_job(job)
    name, root = session.data_set(job, me, embedded=digits.NAME, prepare=digits.prepare)
    train_images = data.find(root, "train", recipe.classes)
    eval_images = data.find(root, "val", recipe.classes)
    samples = session.epoch_samples(job, listed=len(train_images), nominal=recipe.train_samples)
    epochs = job.max_epochs or math.ceil(recipe.epochs)
    schedule = recipe.make_schedule(samples=samples, global_batch=job.global_batch, epochs=epochs)
    task = session.Task(
        dataset=name,
        form=train_images.form,
        train_samples=samples,
        eval_samples=len(eval_images),
        eval_batch=job.batchsize,
        epochs=epochs,
        target=recipe.target_top1,
        bn_span=plan.micro_batch(job.batchsize),
        recipe=recipe,
        plan=plan,
        schedule=schedule,
    )
    return task, train_images, eval_images


def model_and_image(recipe: config.Recipe, plan: build.Plan) -> tuple[ModelConfig, data.ImageFormat]:
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
    job: Job, recipe: config.Recipe, plan: build.Plan, schedule: Schedule, *, seed: int
) -> build.TrainingProgram:
    """Training program of one rank, its start-up program and loss; fleet must know the ranks."""
    model, image = model_and_image(recipe, plan)
    training, startup = static.Program(), static.Program()
    startup.random_seed = seed
    with static.program_guard(training, startup):
        loss = training_loss(image, plan.micro_batch(job.batchsize), recipe, model)
        return build.minimize(loss, recipe.optimizer, schedule, plan=plan)


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
