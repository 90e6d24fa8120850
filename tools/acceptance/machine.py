"""The parts that the checks of an acceptance share on a rank: machine, recorded training, writing of verdicts.

The recorded training is a short training of ResNet-50. A CPU computed its losses once, and they are stored in
paddle_rn50/golden.json.
"""

import contextlib
import itertools
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import static

from harness import loader, nvidia, provenance, ranks, sampling, session, state, task, workload
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins, with_values
from harness.loop import CapturedStep, LaunchedStep, loss_of_last_run
from paddle_rn50 import config, data, digits, folder
from paddle_rn50.train import ResNet50
from program import build
from program.arrays import Array
from program.optimizers import Schedule
from runlog.digits import six_digits
from runlog.errors import RunError, message_of
from runlog.verdict import FATAL, UNKNOWN, Verdict, as_text, worst
from tools.doctor import checks as doctor_checks

# What a CPU computed once: the losses of a short training, and the right answers of an evaluation.
GOLDEN = json.loads((Path(__file__).parents[2] / "paddle_rn50" / "golden.json").read_text())
BATCH, SIDE, SEED = 32, 32, 7  # of the recorded training: images a step, pixels a side
Batches = list[tuple[Array, Array]]  # image [N, 3, H, W] float32 and label [N, 1] of each step
# PaddleClas starts from it too. A dynamic scale finds its size by skipping steps, and the recorded training skips none.
LOSS_SCALE = 128
LEAVE_S = 60.0  # in which the other ranks must leave a check that has failed on one rank
STEPS, SHORT_STEPS = 20, 4  # of the recorded training
# Checks that need none of Paddle's kernels: DALI, NVML and NCCL have their own.
WITHOUT_KERNELS = ("sensors", "input", "all-reduce")
# {check: why it is not possible on a CPU}
ONLY_ON_A_GPU = {**dict.fromkeys(("sensors", "memory", "input"), "no GPU"), "captured": "a CPU has no CUDA graphs"}


# Flags of Paddle with which two runs of one program compute the same bits. The first selects cuDNN's algorithms without
# atomics, for the gradients of filters and of the maximum. Paddle's kernels refuse a search together with it.
REPEATABLE = {"FLAGS_cudnn_deterministic": True, "FLAGS_cudnn_exhaustive_search": False}


@contextlib.contextmanager
def repeatable_algorithms(**more_flags: Any) -> Iterator[None]:
    """Within the `with` block let cuDNN use only algorithms that compute the same bits each time.

    After the block all flags have their earlier values.

    Args:
        **more_flags: Further flags of Paddle to set within the block, such as FLAGS_conv_workspace_size_limit=512.
    """
    flags = REPEATABLE | more_flags
    earlier_flags = paddle.get_flags(list(flags))
    paddle.set_flags(flags)
    try:
        yield
    finally:
        paddle.set_flags(earlier_flags)


class NotPossible(Exception):
    """A check needs what the machine does not have; the message says what."""


class RecordedTraining(NamedTuple):
    """The inputs of a recorded training, without the plan of its program."""

    recipe: config.Recipe
    images: folder.ImageList
    schedule: Schedule  # of the learning rate


class Machine:
    """This rank's part of the machine, and what the checks share."""

    def __init__(self, job: Job, origins: Origins, me: ranks.Ranks, *, short: bool) -> None:
        """Prepare what the checks share: the embedded data set, an executor, and what this rank's GPU can do.

        All ranks must call this together.

        Args:
            job: The settings of the job.
            origins: Each setting's value with who set it.
            me: This rank, with its MPI communicator of all ranks.
            short: Whether the checks train SHORT_STEPS (4) steps instead of STEPS (20).
        """
        self.job = job
        self.origins = origins
        self.me = me
        self.short = short
        self.root = _folder_of_embedded_digits(job, me)  # the first rank of a node writes it, if it is not there yet
        self.executor = session.executor(job.cluster, me)
        self.nodes = provenance.gather_nodes(me.comm)
        self.steps = SHORT_STEPS if short else STEPS
        self.kept_by_check: dict[str, Any] = {}  # {name of a check: what it leaves here for a later check}
        capability = _compute_capability(job, me)
        # Of every rank, as nodes may have unlike GPUs: a rank that runs a check alone would wait for the others.
        self.capabilities: list[int] = me.comm.allgather(capability)
        # Whether this Paddle can compute on the device. On a GPU it must have machine code that the GPU runs.
        self.has_kernels = not job.cluster.on_gpu or bool(doctor_checks.code_for(capability))

    def begin_check(self, me: ranks.Ranks) -> None:
        """Give this machine's `me` a new communicator of MPI, by which the next check sends.

        A failed check may leave messages that no rank has received. In its own communicator they cannot reach a later
        check. All ranks must call this together.

        Args:
            me: This rank with the job's communicator, which it keeps.
        """
        self.me = replace(me, comm=me.comm.Dup())

    def raise_if_not_possible(self, check: str) -> None:
        """Check that the devices of all ranks can run a check. On every rank the answer is the same.

        Args:
            check: The name of the check.

        Raises:
            NotPossible: A device cannot. The message says what it does not have and, of a GPU, which rank's it is.
        """
        if not self.job.cluster.on_gpu:
            if check in ONLY_ON_A_GPU:
                raise NotPossible(f"{ONLY_ON_A_GPU[check]}: DEVICE=cpu")
            return
        for rank, capability in enumerate(self.capabilities):
            lacking = _what_gpu_lacks(check, self.job.model.precision, capability)
            if lacking:
                raise NotPossible(f"{lacking} (rank {rank})")

    def kept_by(self, check: str) -> Any:
        """Return the result that an earlier check has kept for later ones.

        Args:
            check: The name of the earlier check.

        Raises:
            RunError: It has kept none, as after a failure.
        """
        if check not in self.kept_by_check:
            raise RunError(f"needs what the check of {check} measures, which failed")
        return self.kept_by_check[check]

    def plan(self, layout: str = "", *, strategy: str = "") -> build.Plan:
        """Return how this job's programs are built: its plan, with a static loss scale.

        Args:
            layout: "NCHW" or "NHWC". If it is empty, the default is taken.
            strategy: A value of the setting STRATEGY, such as "cuda_graph=1". If it is empty, the default is taken.
        """
        return workload.plan_of(with_values(self.job, strategy=strategy, layout=layout, loss_scale=LOSS_SCALE))

    def recorded_training(self, other_recipe: config.Recipe | None = None) -> RecordedTraining:
        """Return recipe, images and schedule of the recorded training.

        It is a short training of ResNet-50, with BATCH images a step and SIDE pixels a side, whose losses a CPU has
        computed once (paddle_rn50/golden.json).

        Args:
            other_recipe: Recipe that takes the place of the recorded training's. None: its own.
        """
        recipe = other_recipe
        if recipe is None:
            recipe = config.recipe("recorded", global_batch=BATCH, image_size=SIDE)
        images = self.images("train", recipe)
        schedule = recipe.make_schedule(samples=len(images), global_batch=BATCH)
        return RecordedTraining(recipe, images, schedule)

    def images(self, part: str, recipe: config.Recipe) -> folder.ImageList:
        """Return the images of a part of the embedded data set, "train" or "val", in the classes of a recipe."""
        return folder.read_list(self.root, part, recipe.classes)

    def reader(self, image: data.ImageFormat, device: str = "cpu") -> loader.ReaderConfig:
        """Return the settings of an input pipeline on a device, with batch and seed of the recorded training."""
        job = self.job
        reader = loader.ReaderConfig.of_rank(job.data, job.cluster, self.me.local_rank, image, batch=BATCH, seed=SEED)
        return replace(reader, device=device)

    def batches(self, images: folder.ImageList, recipe: config.Recipe, steps: int) -> Batches:
        """Return the batches of the first steps of a training, decoded by the CPU. They are the same on every rank.

        Args:
            images: The list of image files to train on.
            recipe: Sets the augmentation of the images.
            steps: How many batches.

        Returns:
            For each step the images [N, 3, H, W] float32 and the labels [N, 1].
        """
        # As for a job of one rank, so that each rank reads all images.
        order = sampling.training_plan(len(images), batch=BATCH, rank=0, ranks=1, seed=SEED)
        reader = self.reader(data.ImageFormat(size=SIDE))
        with contextlib.closing(data.Loader(images, order, reader, augment=recipe.augmentation)) as source:
            # Copies, because the pipeline reuses its buffers for the next batch.
            return [(np.array(batch.image), np.array(batch.label)) for batch in itertools.islice(source, steps)]

    def train(self, plan: build.Plan, other_recipe: config.Recipe | None = None) -> Array:
        """Train ResNet-50 for 20 steps, or 4 in the short form; return the losses of all ranks.

        Each call trains on the same images and from the same first weights. All ranks must call this together.

        Args:
            plan: The layout, precision and strategy of the program. With the strategy cuda_graph=1 the steps are
                replayed from a CUDA graph.
            other_recipe: Recipe that takes the place of the recorded training's. None: its own, so that the training
                whose losses a CPU recorded in paddle_rn50/golden.json is repeated.

        Returns:
            The losses, float32 [ranks, steps].
        """
        recipe, images, schedule = self.recorded_training(other_recipe)
        # A CPU makes both, so they are the same on every machine. They come first, because the capture of a CUDA graph
        # below binds the process to its GPU.
        cpu_batches = self.batches(images, recipe, self.steps)
        weights = first_weights(recipe)
        model = ResNet50(recipe, plan, batch=BATCH)
        with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
            training = model.training_program(schedule, seed=SEED)
            self.executor.run(training.startup)
            feeds = [self._feed(image, label, model.image) for image, label in cpu_batches]
            if plan.strategy.cuda_graph:
                # Sets the weights, too, after the runs that must come before a capture.
                step = self._step_captured_with(weights, training, feeds[0])
            else:
                step = LaunchedStep(self.executor, training)  # operator by operator
                state.set_weights(training.main, weights)
            losses = _losses_of_steps(step, training, feeds)
        return np.array(self.me.comm.allgather(losses), np.float32)

    def _feed(self, image: Array, label: Array, wanted: data.ImageFormat) -> dict[str, Any]:
        """Return the feed of one step: image and label on this rank's device, the image in the program's format."""
        batch = loader.Batch(
            image=as_fed(image, wanted),
            label=label,
            valid=np.ones(BATCH, np.float32),
            ids=np.arange(BATCH),
        )
        on_device = loader.resident(batch, self.executor.place)
        return {"image": on_device.image, "label": on_device.label}

    def _step_captured_with(
        self, weights: dict[str, Array], training: build.TrainingProgram, feed: dict[str, Any]
    ) -> LaunchedStep:
        """Capture a program's training step as a CUDA graph, with the program in its first state and these weights.

        Paddle must run the program before it can be captured, which changes its state. So the start-up program is run
        again before the capture.

        Args:
            weights: The weights by name that the program has afterwards.
            training: The training program, whose start-up program has been run. The start-up program loses the
                operators that connect the ranks, because they are connected already.
            feed: Image and label on this rank's device, for the runs before the capture.
        """
        step = CapturedStep(self.executor, training)
        _run_before_capture(step, training.main, feed)
        build.keep_communicators(training.startup)  # so that the next run does not connect the ranks again
        self.executor.run(training.startup)
        state.set_weights(training.main, weights)
        step.capture()  # records the step, but computes nothing
        return step


def _run_before_capture(step: CapturedStep, main: static.Program, feed: dict[str, Any]) -> None:
    """Run a program as often as Paddle needs before its step can be captured."""
    step.send_rates_ahead()  # the runs read the first learning rates; `_losses_of_steps` sends them again
    for _ in range(step.RUNS_BEFORE):
        step.run(main, feed)


def _compute_capability(job: Job, me: ranks.Ranks) -> int:
    """Return the compute capability of this rank's GPU as a whole number, such as 80 for 8.0; 0 on a CPU."""
    if not job.cluster.on_gpu:
        return 0
    major, minor = paddle.device.cuda.get_device_capability(me.local_rank)
    return int(10 * major + minor)


def _what_gpu_lacks(check: str, precision: str, capability: int) -> str:
    """Return why a GPU cannot run a check, such as "TF32 needs compute capability 8.0 or later, not 7.0"; empty if it
    can.

    Args:
        check: The name of the check.
        precision: Value of PRECISION, such as "tf32".
        capability: The GPU's compute capability as a whole number, such as 80 for 8.0.
    """
    if check not in WITHOUT_KERNELS and not doctor_checks.code_for(capability):
        return f"this Paddle has no kernels for compute capability {capability / 10}"
    if precision == "tf32" and capability < nvidia.TF32_CAPABILITY:
        return f"TF32 needs compute capability 8.0 or later, not {capability / 10}"
    if check == "units" and capability not in nvidia.UNIT_CAPABILITIES:
        return f"resnet_unit needs compute capability 8.0 to 8.9, not {capability / 10}"
    return ""


def _folder_of_embedded_digits(job: Job, me: ranks.Ranks) -> Path:
    """Return the folder of the embedded data set, images of digits, whatever the job's own data set is.

    The first rank of a node makes it, if it is not there yet. All ranks must call this together.
    """
    embedded = with_values(job, datadir="").data  # an empty DATADIR selects the embedded data set
    _, folder_of_digits = task.data_set(embedded, me, digits)
    return folder_of_digits


def _losses_of_steps(
    step: LaunchedStep, training: build.TrainingProgram, feeds: Sequence[dict[str, Any]]
) -> list[float]:
    """Take a training step on each feed; return the loss of each step, read right after it.

    Args:
        step: Runs a step of the program, launched operator by operator or replayed from a CUDA graph.
        training: The program, with the schedule of the learning rate, which moves on by one for each step.
        feeds: For each step the image and the label on this rank's device.
    """
    losses = []
    for number, feed in enumerate(feeds, 1):
        WATCHDOG.beat("training the recorded steps")
        step.ensure_rate(number)  # so that the device has the learning rate of this step
        step.run(training.main, feed)
        training.schedule.step()  # the schedule moves on to the next step's rate
        losses.append(float(np.mean(loss_of_last_run())))
    return losses


def as_fed(image: Array, wanted: data.ImageFormat) -> Array:
    """Return images in the format that a program is fed: layout, number of channels and type.

    Args:
        image: Images [N, 3, H, W] float32.
        wanted: The format. If it has a fourth channel, that is zero.
    """
    image = np.pad(image, ((0, 0), (0, wanted.channels - 3), (0, 0), (0, 0)))
    if wanted.layout == "NHWC":
        image = image.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(image, dtype=np.float16 if wanted.half else np.float32)


# ---- weights


@contextlib.contextmanager
def cpu_network(recipe: config.Recipe, batch: int) -> Iterator[tuple[static.Program, static.Executor]]:
    """Build ResNet-50's forward pass of training on the CPU in FP32; yield its program and an executor.

    Within the `with` block Paddle's current scope is a new one. It has random first weights, the same each time.

    Args:
        recipe: Sets the number of classes, the image size and the batch norm of the network.
        batch: Images in a batch.

    Yields:
        (program, executor), once.
    """
    main = static.Program()
    startup = static.Program()
    startup.random_seed = SEED + 1  # as for rank 0 of a job with this seed: its rank r has the seed SEED + 1 + r
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        ResNet50(recipe, build.Plan(device="cpu"), batch=batch).training_loss(batch)
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        yield main, executor


def copy_state(main: static.Program) -> dict[str, Array]:
    """Return a copy of the tensors that a program keeps in the current scope, by name."""
    return {name: np.array(tensor) for name, tensor in state.tensors(main)}


def first_weights(recipe: config.Recipe) -> dict[str, Array]:
    """Return ResNet-50's first weights by name, as the CPU draws them; they are the same each time."""
    with cpu_network(recipe, BATCH) as (main, _):
        return copy_state(main)


# ---- the checks, run on all ranks together, and their verdicts


class VerdictWriter:
    """Runs the checks of one job; the first rank writes each verdict to the job's file as soon as the check is done."""

    def __init__(self, log_path: Path, precision: str) -> None:
        """Write to the file that has the name of the job's log, with the suffix ".lines"."""
        self._path = log_path.with_suffix(".lines")
        self._precision = precision

    def run_check(self, me: ranks.Ranks, name: str, check: Callable[[], Verdict]) -> None:
        """Run a check on all ranks; the first rank appends the verdict to the job's file and prints it.

        If the check raises an exception, the verdict is on this failure. All ranks must call this together.

        Args:
            me: This rank. By `me.comm` the ranks tell each other of failures, so the check must use another one.
            name: The name of the check.
            check: Runs the check on this rank, and returns its verdict.

        Raises:
            RunError: This rank has failed, and another rank stays in the check.
        """
        started_s = time.monotonic()
        verdict = run_on_all_ranks(me, name, check)
        took_s = round(time.monotonic() - started_s, 1)
        if not me.is_first:
            return
        # The report has a table of all precisions, whose column `where` tells them apart.
        line = replace(verdict, where=self._precision, figures={**verdict.figures, "took_s": took_s})
        self.append_line(line.as_dict())
        print(as_text([line]), end="", flush=True)

    def append_line(self, value: dict[str, Any]) -> None:
        """Append a line of JSON to the job's file; for the first rank alone."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


def run_on_all_ranks(me: ranks.Ranks, name: str, check: Callable[[], Verdict]) -> Verdict:
    """Run a check on all ranks; return this rank's verdict, or the gravest failure if the check failed on any rank.

    The check fails on a rank if `check` raises an exception there. All ranks must call this together.

    Args:
        me: This rank. The ranks tell each other of failures by `me.comm`, so the check must use another communicator.
        name: The name of the check, for the verdict on a failure.
        check: Runs the check on this rank, and returns its verdict.

    Raises:
        RunError: The failure on this rank is fatal, and another rank stays in the check.
    """
    here = _run_here(name, check)
    failure = here.verdict if here.has_failed else None
    # A rank that waits in the check for one that failed would never come to the allgather.
    _raise_if_others_stay(me, failure)
    failure_by_rank: list[Verdict | None] = me.comm.allgather(failure)  # None for a rank that has not failed
    if all(failed is None for failed in failure_by_rank):
        return here.verdict
    return _gravest_failure(failure_by_rank)


class _Outcome(NamedTuple):
    """The outcome of a check on this rank: the verdict that it returned, or that on its failure."""

    verdict: Verdict
    has_failed: bool


def _run_here(name: str, check: Callable[[], Verdict]) -> _Outcome:
    """Run a check on this rank. An exception is a failure: UNKNOWN if the machine lacks what it needs, else FATAL."""
    try:
        return _Outcome(check(), has_failed=False)
    except NotPossible as reason:
        return _Outcome(Verdict(check=name, status=UNKNOWN, found=str(reason)), has_failed=True)
    except Exception as reason:  # noqa: BLE001 - the boundary of a check: its line says what it was
        traceback.print_exc()
        return _Outcome(Verdict(check=name, status=FATAL, found=message_of(reason)), has_failed=True)


def _gravest_failure(failure_by_rank: Sequence[Verdict | None]) -> Verdict:
    """Return the gravest failure of a check: a fatal one before an unknown one, then that of the lowest rank.

    Args:
        failure_by_rank: For each rank the verdict on its failure; None if it has not failed. At least one has.

    Returns:
        The verdict. If it is fatal and some ranks have not failed, its text begins with the rank: "rank 3: ...".
    """
    failures = [failed for failed in failure_by_rank if failed is not None]
    gravest_status = worst(failures)
    gravest = next(failed for failed in failures if failed.status == gravest_status)
    have_all_failed = len(failures) == len(failure_by_rank)
    if have_all_failed or gravest.status == UNKNOWN:
        return gravest
    # Some ranks have not failed, so the text names the one that has.
    rank = failure_by_rank.index(gravest)
    return replace(gravest, found=f"rank {rank}: {gravest.found}")


def _raise_if_others_stay(me: ranks.Ranks, failure: Verdict | None) -> None:
    """Wait until all ranks have left a check; raise RunError if this rank has failed and another one stays in it.

    A rank that fails leaves in the middle of the check, where another rank may wait for its message for ever. All ranks
    must call this together.

    Args:
        me: This rank. The check itself uses another communicator than `me.comm`.
        failure: The failure of the check on this rank; None if it has not failed.

    Raises:
        RunError: The failure is fatal, and another rank has not left the check LEAVE_S (60) seconds later.
    """
    # Only a rank with a fatal failure gives up waiting. A failure of status "unknown" says that a device lacks what the
    # check needs. Every rank knows the devices of all, so the other ranks leave the check, too.
    fatal_failure = failure if failure is not None and failure.status == FATAL else None
    give_up_s = time.monotonic() + LEAVE_S
    all_have_left = me.comm.Ibarrier()  # does not wait; `Test` below is true once every rank has called `Ibarrier`
    while not all_have_left.Test():
        if fatal_failure is not None and time.monotonic() > give_up_s:
            message = f"{fatal_failure.found}; another rank has not left this check {six_digits(LEAVE_S)} s later"
            raise RunError(f"rank {me.rank}: {message}")
        time.sleep(0.001)  # so that the cores are left to ranks that still compute
