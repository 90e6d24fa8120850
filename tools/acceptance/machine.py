"""The state that an acceptance's checks share on a rank: device, ranks, the recorded job, how a plan trains it."""

import contextlib
import itertools
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import static

from harness import loader, nvidia, provenance, ranks, sampling, session, state, task, workload
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins, with_values
from harness.loop import CapturedStep, LaunchedStep
from paddle_rn50 import config, data, digits, folder
from paddle_rn50.train import ResNet50
from program import build
from program.arrays import Array
from program.ops import LOSS_VALUE
from program.optimizers import Schedule
from runlog.digits import six_digits
from runlog.errors import RunError, message_of
from runlog.verdict import FATAL, UNKNOWN, Verdict, as_text, worst
from tools.doctor import checks as doctor_checks

# What a CPU computed once: the losses of a short training, and the right answers of an evaluation.
GOLDEN = json.loads((Path(__file__).parents[2] / "paddle_rn50" / "golden.json").read_text())
BATCH, SIDE, SEED = 32, 32, 7  # of the recorded losses: images a step, pixels a side
Images = list[tuple[Array, Array]]  # image [N, 3, H, W] float32 and label [N, 1] of each step
# PaddleClas starts from it too. A dynamic scale finds its size by skipping steps, and the recorded job skips none.
LOSS_SCALE = 128
LEAVE_S = 60.0  # in which the other ranks leave a check that one rank could not do
STEPS, SHORT_STEPS = 20, 4  # of the recorded job
# Checks that need none of Paddle's kernels: DALI, NVML and NCCL have their own.
WITHOUT_KERNELS = ("sensors", "input", "all-reduce")
ON_A_GPU = {**dict.fromkeys(("sensors", "memory", "input"), "no GPU"), "captured": "a CPU has no CUDA graphs"}


# Of Paddle, so that two runs of one program compute the same bits: cuDNN's algorithms without atomics (gradients of
# filters and of the maximum), always the same ones. Its kernels refuse a search beside the first.
REPEATABLE = {"FLAGS_cudnn_deterministic": True, "FLAGS_cudnn_exhaustive_search": False}


@contextlib.contextmanager
def repeatable(**more_flags: Any) -> Iterator[None]:
    """Have Paddle compute the same bits each time within the `with` block, by cuDNN's repeatable algorithms.

    `more_flags` are set too. Behind the block all these flags are as they were, for what measures Paddle's speed.
    """
    flags = REPEATABLE | more_flags
    before = paddle.get_flags(list(flags))
    paddle.set_flags(flags)
    try:
        yield
    finally:
        paddle.set_flags(before)


class NotPossible(Exception):
    """The machine lacks what a check needs; the message says what."""


class Machine:
    """This rank's part of the machine, and what its checks share."""

    def __init__(self, job: Job, origins: Origins, me: ranks.Ranks, *, short: bool) -> None:
        self.job, self.origins, self.me, self.short = job, origins, me, short
        _, self.root = task.data_set(with_values(job, datadir="").data, me, digits)
        self.executor = session.executor(job.cluster, me)
        self.nodes = list({node.host: node for node in me.comm.allgather(provenance.node())}.values())
        self.steps = SHORT_STEPS if short else STEPS
        self.measured: dict[str, Any] = {}  # what a later check needs of an earlier one
        self.capability = 0  # of this rank's GPU, as 80
        if job.cluster.device == "gpu":
            major, minor = paddle.device.cuda.get_device_capability(me.local_rank)
            self.capability = 10 * major + minor
        self.kernels = job.cluster.device == "cpu" or bool(doctor_checks.code_for(self.capability))

    def possible(self, check: str) -> None:
        """Raise NotPossible where this device lacks what a check needs; the message says what."""
        if self.job.cluster.device == "cpu" and check in ON_A_GPU:
            raise NotPossible(f"{ON_A_GPU[check]}: DEVICE=cpu")
        if check not in WITHOUT_KERNELS and not self.kernels:
            raise NotPossible(f"this Paddle has no kernels for compute capability {self.capability / 10}")
        if self.job.model.precision == "tf32" and self.capability < nvidia.TF32_CAPABILITY:
            raise NotPossible("TF32 needs compute capability 8.0 or later")
        if check == "units" and self.capability not in nvidia.UNIT_CAPABILITIES:
            raise NotPossible(f"resnet_unit needs compute capability 8.0 to 8.9, not {self.capability / 10}")

    def of_earlier(self, check: str) -> Any:
        """Return what an earlier check measured. Raises RunError where it measured nothing."""
        if check not in self.measured:
            raise RunError(f"needs what the check of {check} measures, which failed")
        return self.measured[check]

    def plan(self, layout: str = "", *, strategy: str = "") -> build.Plan:
        """Return the plan of this job by a strategy, the default one if none is given, with a static loss scale."""
        return workload.plan_of(with_values(self.job, strategy=strategy, layout=layout, loss_scale=LOSS_SCALE))

    def recorded(self) -> tuple[config.Recipe, folder.ImageList, Schedule]:
        """Return recipe, images and schedule of the recorded job."""
        return self.on_recorded_images(config.recipe("recorded", global_batch=BATCH, image_size=SIDE))

    def on_recorded_images(self, recipe: config.Recipe) -> tuple[config.Recipe, folder.ImageList, Schedule]:
        """Return the recipe, the images of the recorded job and the schedule that the recipe has on these."""
        images = self.images("train", recipe)
        return recipe, images, recipe.make_schedule(samples=len(images), global_batch=BATCH)

    def images(self, part: str, recipe: config.Recipe) -> folder.ImageList:
        """Return the images of a part of the embedded data set, "train" or "val", with a recipe's classes."""
        return folder.read_list(self.root, part, recipe.classes)

    def reader(self, image: data.ImageFormat, device: str = "cpu") -> loader.ReaderConfig:
        """Return how a pipeline on that device reads the recorded jobs."""
        job = with_values(self.job, device=device)
        return loader.ReaderConfig.of_rank(job.data, job.cluster, self.me.local_rank, image, batch=BATCH, seed=SEED)

    def batches(self, images: folder.ImageList, recipe: config.Recipe, steps: int) -> Images:
        """Return what one rank reads in the recorded job, by the CPU's pipeline."""
        order = sampling.training_plan(len(images), batch=BATCH, rank=0, ranks=1, seed=SEED)
        reader = self.reader(data.ImageFormat(size=SIDE))
        with contextlib.closing(data.Loader(images, order, reader, augment=recipe.augmentation)) as source:
            # Copies: the pipeline's buffers are good until the next batch only.
            return [(np.array(batch.image), np.array(batch.label)) for batch in itertools.islice(source, steps)]

    def train(self, plan: build.Plan, other_recipe: config.Recipe | None = None) -> Array:
        """Train the first steps of the recorded job by `plan`, and return the losses of all ranks.

        The recorded job is the one whose losses paddle_rn50/golden.json holds. Its first weights come from the CPU,
        as a GPU draws others from the same seed. Each rank reads the same images, so that the gradients' mean over the
        ranks is that of one rank. Where another recipe is given it takes the place of the job's. All ranks call this
        together.

        Returns float32 [ranks, steps]; each loss is read after its step.
        """
        if other_recipe is None:
            recipe, images, schedule = self.recorded()
        else:
            recipe, images, schedule = self.on_recorded_images(other_recipe)
        cpu_batches = self.batches(images, recipe, self.steps)
        weights = first_weights(recipe)  # before a capture, which binds the process to its GPU
        model = ResNet50(recipe, plan, batch=BATCH)
        losses = []
        with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
            training = model.training_program(schedule, seed=SEED)
            self.executor.run(training.startup)
            feeds = [self._feed(image, label, model.image) for image, label in cpu_batches]
            step = self._step(plan, training, feeds[0])  # may train and reset the weights, so they are set after it
            state.set_weights(training.main, weights)
            step.capture()  # of a CUDA graph; a launched step does nothing here
            for number, feed in enumerate(feeds, 1):
                WATCHDOG.beat("training the recorded steps")
                step.send_rate(number)
                step.run(training.main, feed)
                training.schedule.step()
                loss = static.global_scope().find_var(LOSS_VALUE).get_tensor()
                losses.append(float(np.mean(np.array(loss))))
        return np.array(self.me.comm.allgather(losses), np.float32)

    def _feed(self, image: Array, label: Array, wanted: data.ImageFormat) -> dict[str, Any]:
        """Return the feed of one step: image and label on this rank's device, the image as the program wants it."""
        batch = loader.Batch(
            image=as_fed(image, wanted),
            label=label,
            valid=np.ones(BATCH, np.float32),
            ids=np.arange(BATCH),
        )
        on_device = loader.resident(batch, self.executor.place)
        return {"image": on_device.image, "label": on_device.label}

    def _step(self, plan: build.Plan, training: build.TrainingProgram, feed: dict[str, Any]) -> LaunchedStep:
        """Return the object that runs the steps of a program: operator by operator, or as a CUDA graph if so planned.

        A program must have run some times before its graph can be captured. Those first runs are made here, and train
        on `feed`, so the start-up program then sets all state anew. The caller sets the weights, then captures.
        """
        if not plan.strategy.cuda_graph:
            return LaunchedStep(self.executor, training)
        step = CapturedStep(self.executor, training)
        step.begin()
        for _ in range(step.RUNS_BEFORE):
            step.run(training.main, feed)
        build.keep_communicators(training.startup)  # so that its second run does not connect the ranks anew
        self.executor.run(training.startup)
        return step


def as_fed(image: Array, wanted: data.ImageFormat) -> Array:
    """Return images [N, 3, H, W] float32 in the layout, number of channels and type that a program is fed.

    A fourth channel, where one is wanted, is zero.
    """
    image = np.pad(image, ((0, 0), (0, wanted.channels - 3), (0, 0), (0, 0)))
    if wanted.layout == "NHWC":
        image = image.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(image, dtype=np.float16 if wanted.half else np.float32)


# ---- weights


@contextlib.contextmanager
def cpu_network(recipe: config.Recipe, batch: int) -> Iterator[tuple[static.Program, static.Executor]]:
    """Build the forward pass of training on the CPU in FP32, and yield its program and an executor.

    Within the `with` block Paddle's current scope is a new one. It has the first weights, which are those that the
    recorded job begins with.
    """
    main = static.Program()
    startup = static.Program()
    startup.random_seed = SEED + 1  # a job gives its rank r the seed SEED + 1 + r; this is rank 0
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        ResNet50(recipe, build.Plan(device="cpu"), batch=batch).training_loss(batch)
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        yield main, executor


def weights_of(main: static.Program) -> dict[str, Array]:
    """Return a copy of the tensors that a program keeps in the current scope, by name."""
    return {name: np.array(tensor) for name, tensor in state.tensors(main)}


def first_weights(recipe: config.Recipe) -> dict[str, Array]:
    """Return ResNet-50's first weights by a recipe, by name, as the CPU draws them from the recorded job's seed."""
    with cpu_network(recipe, BATCH) as (main, _):
        return weights_of(main)


# ---- the line that a check becomes, on all ranks together


class Lines:
    """The lines of one job, written as they are done beside its log `result`, which the first rank alone gives."""

    def __init__(self, result: Path | None, precision: str) -> None:
        self._path = result and result.with_suffix(".lines")
        self._precision = precision

    def run(self, me: ranks.Ranks, name: str, check: Callable[[], Verdict]) -> None:
        """Run a check on all ranks; the first rank writes its verdict, with the seconds it took, and prints it."""
        started_s = time.monotonic()
        verdict = on_all(me, name, check)
        figures = {**verdict.figures, "took_s": round(time.monotonic() - started_s, 1)}
        verdict = replace(verdict, where=self._precision, figures=figures)
        self.note(verdict.as_dict())
        if self._path:
            print(as_text([verdict]), end="", flush=True)

    def note(self, value: dict[str, Any]) -> None:
        """Append a line of JSON to the job's file; ranks other than the first write nothing."""
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")


def on_all(me: ranks.Ranks, name: str, check: Callable[[], Verdict]) -> Verdict:
    """Run a check on this rank and return its verdict; where any rank failed, all ranks return the same failure.

    Every rank calls this with its own `check`, and waits here until all have left theirs. Where no rank failed, each
    returns its own verdict. A failure is UNKNOWN where the machine lacks what the check needs (NotPossible), and FATAL
    for any other exception. Of several the gravest is returned, of equally grave ones the first rank's. Where only some
    ranks failed, a FATAL one names its rank.

    `me` has a communicator that the check does not use. Raises RunError where this rank failed and another one is
    still in the check LEAVE_S seconds later: it may wait for this rank without an end, so the job must end.
    """
    verdict: Verdict | None = None
    failure: Verdict | None = None
    try:
        verdict = check()
    except NotPossible as reason:
        failure = Verdict(check=name, status=UNKNOWN, found=str(reason))
    except Exception as reason:  # noqa: BLE001 - the boundary of a check: its line says what it was
        traceback.print_exc()
        failure = Verdict(check=name, status=FATAL, found=message_of(reason))

    _wait_for_others(me, failure)
    failure_of_ranks: list[Verdict | None] = me.comm.allgather(failure)
    failures = [failed for failed in failure_of_ranks if failed is not None]
    if not failures:
        assert verdict is not None  # as this rank has not failed either
        return verdict
    gravest_status = worst(failures)
    gravest = next(failed for failed in failures if failed.status == gravest_status)
    all_failed = len(failures) == len(failure_of_ranks)
    if all_failed or gravest.status == UNKNOWN:
        return gravest
    return replace(gravest, found=f"rank {failure_of_ranks.index(gravest)}: {gravest.found}")


def _wait_for_others(me: ranks.Ranks, failure: Verdict | None) -> None:
    """Wait until all ranks have left a check; `failure` is what this rank's one ended with, None where it ended well.

    Raises RunError where the failure is FATAL and another rank has not left LEAVE_S seconds later: it may wait for this
    one without an end. In any other case this rank waits as long as the others take.
    """
    all_have_left = me.comm.Ibarrier()
    until_s = time.monotonic() + LEAVE_S
    while not all_have_left.Test():
        is_late = time.monotonic() > until_s
        if is_late and failure is not None and failure.status == FATAL:
            message = f"{failure.found}; another rank has not left this check {six_digits(LEAVE_S)} s later"
            raise RunError(f"rank {me.rank}: {message}")
        time.sleep(0.01)
