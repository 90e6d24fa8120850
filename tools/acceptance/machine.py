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

from harness import loader, provenance, ranks, sampling, session, state, workload
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins, with_values
from harness.loop import CapturedStep, LaunchedStep
from paddle_rn50 import config, data, digits, folder
from paddle_rn50.train import ResNet50
from program import build
from program.arrays import Array
from program.ops import LOSS_VALUE
from program.optimizers import Schedule
from runlog.errors import RunError
from runlog.verdict import FATAL, STATUSES, UNKNOWN, Verdict, as_text
from tools.doctor import checks as doctor_checks

BATCH, SIDE, SEED = 32, 32, 7  # of the recorded losses
RIDGE = 0.1  # of the mean square of what the last layer reads
RESIDUAL = 0.2  # last scale of each block: untrained blocks at full scale leave little of the image
Images = list[tuple[Array, Array]]  # image [N, 3, H, W] float32 and label [N, 1] of each step
# PaddleClas starts from it too. A dynamic scale finds its size by skipping steps, and the recorded job skips none.
LOSS_SCALE = 128
TF32_CAPABILITY = 80
LEAVE_S = 60.0  # in which the other ranks leave a check that one rank could not do
STEPS, SHORT_STEPS = 20, 4  # of the recorded job
# Checks that need none of Paddle's kernels: DALI, NVML and NCCL have their own.
WITHOUT_KERNELS = ("sensors", "input", "all-reduce")
ON_A_GPU = {**dict.fromkeys(("sensors", "memory", "input"), "no GPU"), "captured": "a CPU has no CUDA graphs"}


class NotPossible(Exception):
    """The machine lacks what a check needs; the message says what."""


class Machine:
    """This rank's part of the machine, and what its checks share."""

    def __init__(self, job: Job, origins: Origins, me: ranks.Ranks, *, short: bool) -> None:
        self.job, self.origins, self.me, self.short = job, origins, me, short
        _, self.root = session.data_set(with_values(job, datadir="").data, me, digits)
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
        """Whether this device can do a check. Raises NotPossible where it lacks what the check needs."""
        if self.job.cluster.device == "cpu" and check in ON_A_GPU:
            raise NotPossible(f"{ON_A_GPU[check]}: DEVICE=cpu")
        if check not in WITHOUT_KERNELS and not self.kernels:
            raise NotPossible(f"this Paddle has no kernels for compute capability {self.capability / 10}")
        if self.job.model.precision == "tf32" and self.capability < TF32_CAPABILITY:
            raise NotPossible("TF32 needs compute capability 8.0 or later")

    def of_earlier(self, check: str) -> Any:
        """Return what an earlier check measured. Raises RunError where it measured nothing."""
        if check not in self.measured:
            raise RunError(f"needs what the check of {check} measures, which failed")
        return self.measured[check]

    def plan(self, layout: str = "", *, strategy: str = "") -> build.Plan:
        """Return the plan of this job by a strategy, the default one if none is given, with a static loss scale."""
        return workload.plan_of(with_values(self.job, strategy=strategy, layout=layout, loss_scale=LOSS_SCALE))

    def recorded(self) -> tuple[config.Recipe, folder.ImageList, Schedule]:
        """Recipe, images and schedule of the recorded job."""
        recipe = config.recipe("recorded", global_batch=BATCH, image_size=SIDE)
        images = self.images("train", recipe)
        return recipe, images, recipe.make_schedule(samples=len(images), global_batch=BATCH)

    def images(self, part: str, recipe: config.Recipe) -> folder.ImageList:
        """The embedded data set's."""
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

    def train(self, plan: build.Plan) -> Array:
        """Losses [ranks, steps] of the recorded job's first steps by a plan, each read after its step."""
        recipe, images, schedule = self.recorded()
        read = self.batches(images, recipe, self.steps)
        weights = first_weights(recipe)  # before a capture binds the process
        model, executor, found = ResNet50(recipe, plan, batch=BATCH), self.executor, []
        with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
            training = model.training_program(schedule, seed=SEED)
            executor.run(training.startup)
            beside = {"valid": np.ones(BATCH, np.float32), "ids": np.arange(BATCH)}
            made = (loader.Batch(image=as_fed(image, model.image), label=label, **beside) for image, label in read)
            on_device = (loader.resident(batch, executor.place) for batch in made)
            feeds = [{"image": batch.image, "label": batch.label} for batch in on_device]
            step = (CapturedStep if plan.strategy.cuda_graph else LaunchedStep)(executor, training)
            if plan.strategy.cuda_graph:
                step.begin()
                for _ in range(step.RUNS_BEFORE):
                    step.run(training.main, feeds[0])
                build.keep_communicators(training.startup)
                executor.run(training.startup)  # what they trained
            state.set_weights(training.main, weights)
            step.capture()
            for number, feed in enumerate(feeds, 1):
                WATCHDOG.beat("training the recorded steps")
                step.send_rate(number)
                step.run(training.main, feed)
                training.schedule.step()
                found.append(float(np.mean(np.array(static.global_scope().find_var(LOSS_VALUE).get_tensor()))))
        return np.array(self.me.comm.allgather(found), np.float32)


def as_fed(image: Array, wanted: data.ImageFormat) -> Array:
    """[N, 3, H, W] float32 in the layout, channels and type that a program is fed."""
    image = np.pad(image, ((0, 0), (0, wanted.channels - 3), (0, 0), (0, 0)))
    if wanted.layout == "NHWC":
        image = image.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(image, dtype=np.float16 if wanted.half else np.float32)


# ---- weights


@contextlib.contextmanager
def _network(recipe: config.Recipe, batch: int) -> Iterator[tuple[static.Program, static.Executor]]:
    """The program of a training forward pass on the CPU in FP32, in a scope with its first weights."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = SEED + 1  # as rank 0 of the recorded job has it
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        ResNet50(recipe, build.Plan(device="cpu"), batch=batch).training_loss(batch)
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        yield main, executor


def first_weights(recipe: config.Recipe) -> dict[str, Array]:
    """Return ResNet-50's first weights and BN statistics by name, drawn on the CPU from a fixed seed, in FP32."""
    with _network(recipe, batch=1) as (main, _):  # whose weights do not depend on the batch
        return {name: np.array(tensor) for name, tensor in state.tensors(main)}


def fitted_weights(batches: Images, recipe: config.Recipe) -> dict[str, Array]:
    """Weights that recognise digits without training: the first ones, with BN statistics of these images and a last
    layer that is the ridge regression of their classes on what it reads.
    """
    recipe = replace(recipe, bn_momentum=0.0)  # the statistics of these images replace the first ones
    image = np.concatenate([images for images, _ in batches])
    label = np.concatenate([labels for _, labels in batches])
    with _network(recipe, len(image)) as (main, executor):
        for name, tensor in state.tensors(main):
            if name.endswith(".3.bn.w"):
                state.assign(tensor, np.full_like(np.array(tensor), RESIDUAL))
        (layer,) = [op for op in main.global_block().ops if "fc.w" in op.input_arg_names]
        (read,) = executor.run(main, feed={"image": image, "label": label}, fetch_list=layer.input("X"))
        weights = {name: np.array(tensor) for name, tensor in state.tensors(main)}
    x = np.concatenate([read, np.ones((len(image), 1))], axis=1, dtype=np.float64)
    gram = x @ x.T
    ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    fitted = x.T @ np.linalg.solve(gram + ridge, np.eye(recipe.classes)[label[:, 0]])
    return weights | {"fc.w": fitted[:-1].astype(np.float32), "fc.b": fitted[-1].astype(np.float32)}


# ---- the line that a check becomes, on all ranks together


class Lines:
    """The lines of one job, written as they are done beside its log `result`, which the first rank alone gives."""

    def __init__(self, result: Path | None, precision: str) -> None:
        self._path, self._precision = result and result.with_suffix(".lines"), precision

    def run(self, me: ranks.Ranks, name: str, check: Callable[[], Verdict]) -> None:
        """Runs a check on all ranks, and notes and prints what it found."""
        started_s = time.monotonic()
        verdict = on_all(me, name, check)
        figures = {**verdict.figures, "took_s": round(time.monotonic() - started_s, 1)}
        verdict = replace(verdict, where=self._precision, figures=figures)
        self.note(verdict.as_dict())
        if self._path:
            print(as_text([verdict]), end="", flush=True)

    def note(self, value: dict[str, Any]) -> None:
        """Appends a line of JSON to the job's file."""
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")


def on_all(me: ranks.Ranks, name: str, check: Callable[[], Verdict]) -> Verdict:
    """Return what a check found on this rank; where a rank could not do it, that on all ranks, once all have left it.

    `me` has a communicator that the check does not use. Raises RunError where a rank failed and another does not leave
    the check in time, as one that waits for it: the job must end.
    """
    undone = None
    try:
        verdict = check()
    except NotPossible as reason:
        undone = Verdict(check=name, status=UNKNOWN, found=str(reason))
    except Exception as reason:  # noqa: BLE001 - the boundary of a check: its line says what it was
        traceback.print_exc()
        undone = Verdict(check=name, status=FATAL, found=" ".join(str(reason).split()) or type(reason).__name__)
    left, until = me.comm.Ibarrier(), time.monotonic() + LEAVE_S
    while not left.Test():
        if undone and undone.status == FATAL and time.monotonic() > until:
            raise RunError(f"rank {me.rank}: {undone.found}; another rank has not left this check {LEAVE_S:g} s later")
        time.sleep(0.01)
    every: list[Verdict | None] = me.comm.allgather(undone)
    failed = [failure for failure in every if failure is not None]
    if not failed:
        return verdict
    first = max(failed, key=lambda failure: STATUSES.index(failure.status))
    if len(failed) == len(every) or first.status == UNKNOWN:
        return first
    return replace(first, found=f"rank {every.index(first)}: {first.found}")
