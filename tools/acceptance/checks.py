"""The checks of a machine's acceptance, on each of its ranks: __main__.py has their list and the report.

The reference is a CPU in FP32: losses and accuracy that were recorded once in paddle_rn50/golden.json, and what a CPU
computes here and now. The recorded training is the short training of these losses. Its first weights come from the
CPU's start-up program, because a GPU draws others from the same seed. Each rank trains on the same images, so that the
mean gradients, and the recorded losses, do not depend on the number of ranks.
"""

import contextlib
import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import static
from PIL import Image

from harness import nvidia
from harness.loader import ReaderConfig
from paddle_rn50 import config, data
from paddle_rn50.folder import ImageList
from paddle_rn50.train import ResNet50
from program import build, count, ops
from program.arrays import Array
from program.passes import edit, gradients
from runlog.digits import counted
from runlog.json_types import JsonObject
from runlog.verdict import Verdict, judged
from tools.acceptance.machine import BATCH, GOLDEN, SEED, Machine, NotPossible, repeatable_algorithms

SENSORS = ("memory_mib", "power_w", "temperature_c", "utilization_percent")
POOLED_SIDE, POOLED_CHANNELS = 7, 2048  # of the image that ResNet-50's global average pooling reads
# By type: two roundings, each half a unit in the last place.
MAX_POOLING_ERROR = {"float32": 2**-23, "float16": 2**-10}
OPENS_COMMUNICATOR = ("c_gen_nccl_id", "c_comm_init")  # types of operators
MAX_GREY_LEVELS = 4.0
WHY_GREY_LEVELS = "enlarging the colour channels another way gives 3.1, a faster IDCT 0.95, a shift by a pixel 7.0"
EARLY_STEPS = 14


@dataclass(frozen=True)
class Tolerance:
    """How far a loss may be from the recorded one, as a share of the recorded one."""

    early: float  # in the first EARLY_STEPS steps
    late: float  # in all later steps
    why: str

    def by_step(self, steps: int) -> Array:
        """Return the tolerance of each of the first `steps` steps."""
        return np.where(np.arange(steps) < EARLY_STEPS, self.early, self.late)


# Each is eight times what its control changes on a CPU (tests/paddle_rn50/altered.py), in the first steps and the later
# ones: `rounding`, `bits:20` and `bits:11` on losses that were recorded before the first step had a rate of 0, `half`
# on these. Here `rounding` changes 7e-8, then 6e-6, `bits:20` 2.0e-5, then 5.0e-4, and `bits:11` 1.6e-4, then 3.4e-4.
# No GPU has confirmed the latter three: the first reports may.
PRODUCTS = "reading products in 20 bits, not 24, changes 4.3e-5, then 6.5e-4"
CPU = Tolerance(1e-5, 1e-3, "each pixel moved by one FP32 rounding changes 1e-6, then 1.3e-4")
# Winograd's convolution rounds more than a direct one (Lavin and Gray 2015, arXiv:1509.09308).
GPU_FP32 = Tolerance(4e-4, 5e-3, f"cuDNN may use Winograd's convolution: {PRODUCTS}")
GPU_TF32 = Tolerance(2e-3, 8e-3, "reading products in the 11 bits of TF32 changes 2.5e-4, then 1.0e-3")
HALF = "storing in FP16 what each operator leaves, and reading its weights in FP16, changes 2.2e-4, then 9.6e-4"
GPU_HALF = Tolerance(2e-3, 8e-3, HALF)
# Measured on two AMD cores: 6e-7, then 4.0e-4; beyond what one rounding of the input alone changes.
LAYOUT = Tolerance(4e-4, 5e-3, f"every layer sums in another order: {PRODUCTS}")


def judge_losses(check: str, losses: Array, wanted_losses: Array, tolerance: Tolerance) -> Verdict:
    """Compare the losses of a training's first steps with wanted losses, and return the verdict.

    Args:
        check: The name of the check, for the verdict.
        losses: Shape [ranks, steps].
        wanted_losses: Shape [steps] or longer; what is longer is ignored. They are the same for every rank.
        tolerance: How far a loss may be off, as a share of the wanted loss: one share for the first EARLY_STEPS (14)
            steps, one for all later ones.

    Returns:
        Ok if every loss is within the tolerance of its step, else fatal; a NaN is fatal, too.
    """
    steps = losses.shape[1]
    wanted_losses = wanted_losses[:steps]  # the short form takes fewer steps
    largest_errors = np.abs(losses - wanted_losses).max(axis=0)  # [steps], of any rank
    errors = largest_errors / wanted_losses  # as shares of the wanted losses
    tolerances = tolerance.by_step(steps)
    good = bool((errors <= tolerances).all())  # False if any error is NaN
    worst = _index_of_worst(errors / tolerances)  # the step that is farthest off, as compared with its tolerance
    found = f"{errors[worst]:.1e} of the loss off at step {worst + 1} of {steps}, {tolerances[worst]:.0e} allowed"
    wanted = f"at most {tolerance.early:.0e} off to step {EARLY_STEPS}, then {tolerance.late:.0e}: {tolerance.why}"
    figures = {"losses": losses.tolist(), "wanted": wanted_losses.tolist(), "off": errors.tolist()}
    return judged(check, good, found, wanted, figures=figures)


def _index_of_worst(ratios: Array) -> int:
    """Return the index of the largest ratio. A NaN is worse than any number."""
    return int(np.argmax(np.where(np.isnan(ratios), np.inf, ratios)))


def why_untrained(losses: Array, kind: str) -> str:
    """Return why losses cannot come from a training: one is not finite, or none ever changes. Empty if they can.

    Args:
        losses: Shape [ranks, steps].
        kind: The kind of step, for the text, such as "launched".
    """
    return why_not_finite(losses, kind) or why_constant(losses)


def why_not_finite(losses: Array, kind: str) -> str:
    """Return a message that one of the losses [ranks, steps] is infinite or NaN; empty if all are finite."""
    if np.isfinite(losses).all():
        return ""
    return f"a {kind} step's loss is not finite"


def why_constant(losses: Array) -> str:
    """Return a text saying that the losses [ranks, steps] never change from step to step; empty if any does."""
    if (losses[:, 1:] != losses[:, :-1]).any():
        return ""
    return f"{losses.shape[1]} losses are alike, and none differs from the one before: nothing was trained"


def sensors(machine: Machine) -> Verdict:
    """Check that NVML reads each rank's GPU, and that this is the GPU that Paddle computes on.

    NVML is NVIDIA's library of sensors, which may number the GPUs differently from CUDA. All ranks must call this
    together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        The verdict on the GPUs of all ranks. It is ok if each has the name of the GPU that computes, and a reading of
        every sensor of SENSORS; else fatal.
    """
    gpus = machine.me.comm.allgather(_readings_of_gpu(machine.me.local_rank))
    wrong_gpus = 0
    silent_sensors: set[str] = set()
    for gpu in gpus:
        silent_sensors.update(gpu["silent"])
        if not gpu["same"]:  # NVML numbers the GPUs differently from CUDA: these readings are another GPU's
            wrong_gpus += 1
    silent = ", ".join(sorted(silent_sensors)) or "none"
    found = f"{counted(len(gpus), 'GPU')} asked, {wrong_gpus} not the one that computes; silent: {silent}"
    wanted = "NVML names each rank's GPU as CUDA does, and reads " + ", ".join(SENSORS)
    good = wrong_gpus == 0 and not silent_sensors
    return judged("sensors", good, found, wanted, figures={"gpus": gpus})


def _readings_of_gpu(index: int) -> JsonObject:
    """Return what NVML, NVIDIA's library of sensors, says of a GPU of this node.

    Args:
        index: The number of the GPU in CUDA's order, which is the number of this rank on its node.

    Returns:
        The GPU's "name" and the reading of each sensor by name, None without a reading. "same" says whether Paddle
        gives its GPU `index` the same name, and "silent" lists the SENSORS without a reading.
    """
    with nvidia.opened() as (handles, _):  # in CUDA's order, so that the local rank is the index
        name = nvidia.gpu_of(handles[index]).name
        readings = nvidia.sample(handles[index])  # by sensor; None if there is no reading
    return {
        "name": name,
        "same": name == paddle.device.cuda.get_device_name(index),
        "silent": [sensor for sensor in SENSORS if readings[sensor] is None],
        **readings,
    }


def losses(machine: Machine) -> Verdict:
    """Train some steps on this machine, and judge their losses by those that a CPU recorded for the same training.

    All ranks must call this together.

    Args:
        machine: This rank's part of the machine. The losses are kept in its `kept_by_check` for later checks.
    """
    found = machine.train(machine.plan())
    machine.kept_by_check["losses"] = found  # for `layout` and `fast.units`
    if machine.job.cluster.device == "cpu":
        tolerance = CPU
    else:
        tolerance = {"fp32": GPU_FP32, "tf32": GPU_TF32}.get(machine.job.model.precision, GPU_HALF)
    recorded = np.array(GOLDEN["losses"]["1"])  # by 1 rank; each of more ranks has the same batches, so the same losses
    return judge_losses("losses", found, recorded, tolerance)


def layout(machine: Machine) -> Verdict:
    """Train the same steps in the layout NHWC as the check `losses` did in NCHW, and compare the losses.

    All ranks must call this together.

    Args:
        machine: This rank's part of the machine. It holds the losses of the check `losses`.

    Raises:
        RunError: The check `losses` has failed.
    """
    nchw_losses = machine.kept_by("losses")[0]  # of the first rank
    return judge_losses("layout", machine.train(machine.plan("NHWC")), nchw_losses, LAYOUT)


def pooling(machine: Machine) -> Verdict:
    """Check the gradient of the global average pooling: the mean over 7 x 7 pixels before the classifier.

    Each pixel must get a 49th of the gradient at the mean. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if the largest relative error of any rank is at most that of two roundings: of 1 / 49, and of the result,
        gradient / 49; else fatal.
    """
    plan = machine.plan()
    dtype = plan.precision.dtype
    # The shape of images of one pixel, which is their mean.
    mean_shape = [BATCH, POOLED_CHANNELS, 1, 1] if plan.layout == "NCHW" else [BATCH, 1, 1, POOLED_CHANNELS]
    # From 1 to 2: a 49th of a far smaller number would be subnormal in FP16, with fewer digits and a larger error.
    gradient_at_mean = np.random.default_rng(SEED).uniform(1, 2, mean_shape).astype(dtype)
    gradient_at_pixels = _pooling_gradient(machine, plan, gradient_at_mean)  # at all 7 x 7 pixels

    wanted_at_each_pixel = gradient_at_mean.astype(np.float64) / POOLED_SIDE**2
    # NumPy repeats the wanted gradient for all pixels, because the axes of height and width have the length 1.
    error_here = np.max(np.abs(gradient_at_pixels - wanted_at_each_pixel) / wanted_at_each_pixel)
    error = float(max(machine.me.comm.allgather(error_here)))
    most_error = MAX_POOLING_ERROR[dtype]
    found = f"{error:.1e} of the gradient off, {most_error:.0e} allowed"
    wanted = "at most two roundings: one of 1 / 49, one of the quotient"
    return judged("pooling", error <= most_error, found, wanted, figures={"off": error})


def _pooling_gradient(machine: Machine, plan: build.Plan, gradient_at_mean: Array) -> Array:
    """Run this project's operator for the gradient of a global average pooling; return the gradient at each pixel.

    Args:
        machine: This rank's part of the machine, whose executor runs the program.
        plan: The layout (NCHW or NHWC) and the precision of the training.
        gradient_at_mean: The gradient at the output, the mean: one value for each image and channel. Its shape is
            [BATCH, C, 1, 1], or [BATCH, 1, 1, C] in NHWC, with C = POOLED_CHANNELS (2048).

    Returns:
        The gradient at each pixel, shape [BATCH, C, 7, 7], or [BATCH, 7, 7, C] in NHWC.
    """
    dtype = plan.precision.dtype
    image_shape = [BATCH, POOLED_SIDE, POOLED_SIDE, POOLED_CHANNELS]
    if plan.layout == "NCHW":
        image_shape = [BATCH, POOLED_CHANNELS, POOLED_SIDE, POOLED_SIDE]
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        pixels = static.data("pixels", image_shape, dtype)
        pixels.stop_gradient = False
        mean = paddle.nn.functional.adaptive_avg_pool2d(pixels, 1, data_format=plan.layout)
        at_mean = static.data("gradient_at_mean", gradient_at_mean.shape, dtype)
        # Adds Paddle's own operator for the gradient to the program.
        (at_pixels,) = static.gradients(targets=[mean], inputs=[pixels], target_gradients=[at_mean])
        # Puts this project's operator in its place, as in a training.
        replaced_operators = gradients.spread_mean_gradients(main)
        assert replaced_operators == 1
        any_pixels = np.zeros(image_shape, dtype)  # the gradient of a mean does not depend on the pixels' values
        feed = {"pixels": any_pixels, "gradient_at_mean": gradient_at_mean}
        (gradient_at_pixels,) = machine.executor.run(main, feed=feed, fetch_list=[at_pixels])
    return np.asarray(gradient_at_pixels)


def input_pipeline(machine: Machine) -> Verdict:
    """Judge the GPU's input pipelines by comparing their images with those that the CPU makes from the same files.

    The images differ if a pipeline decodes, crops or resizes them in another way, or hands a batch over before the
    batch is finished. The files are random pictures. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if the images differ by at most MAX_GREY_LEVELS (4) of 255 levels in the mean, in the input pipelines of
        training and of evaluation, on every rank; else fatal.
    """
    recipe = config.NVIDIA_COSINE
    image_format = _image_format(machine, recipe)
    # Copies a batch to the host as a training reads it: without waiting, so that a batch that is not finished shows. It
    # waits only if Paddle has no kernels for the GPU.
    to_host = functools.partial(read_by_program, machine)
    with tempfile.TemporaryDirectory() as folder:
        images = write_pictures(Path(folder))
        by_gpu = read_by_both_pipelines(images, recipe, machine.reader(image_format, "gpu"), to_host)
        by_cpu = read_by_both_pipelines(images, recipe, machine.reader(image_format, "cpu"), to_host)

    in_training = mean_grey_levels(by_gpu.training, by_cpu.training)
    in_evaluation = mean_grey_levels(by_gpu.evaluation, by_cpu.evaluation)
    worst = float(np.max(machine.me.comm.allgather([in_training, in_evaluation])))
    found = f"images differ by {worst:.2f} of 255 levels in the mean"
    wanted = f"at most {MAX_GREY_LEVELS} levels: {WHY_GREY_LEVELS}"
    return judged("input", worst <= MAX_GREY_LEVELS, found, wanted, figures={"mean_grey_levels": worst})


def _image_format(machine: Machine, recipe: config.Recipe) -> data.ImageFormat:
    """Return the format in which the job's network is fed images, but with the channels last.

    `mean_grey_levels` needs the channels there.
    """
    network = ResNet50(recipe, machine.plan(), batch=BATCH)
    return replace(network.image, layout="NHWC")


def mean_grey_levels(a: Array, b: Array) -> float:
    """Return the mean difference of two batches of the same images, in grey levels of 255.

    Args:
        a: Normalized images [N, H, W, 3 or 4].
        b: Others to compare with, of the same shape.

    Returns:
        The difference. It is infinite if a fourth channel, which is padding, is not zero.
    """
    if a[..., 3:].any() or b[..., 3:].any():  # the fourth channel is padding
        return math.inf
    # Normalized images are divided by STD, which is in grey levels.
    return float(np.mean(np.abs(a - b)[..., :3] * np.array(data.STD)))


def write_pictures(folder: Path) -> ImageList:
    """Write a batch of random JPEG files into a folder; return their list.

    They are in colour and have 500 x 375 pixels, with details of about 16 pixels.

    Args:
        folder: An existing folder. The files are 0.jpeg, 1.jpeg and so on.
    """
    rng = np.random.default_rng(SEED)
    names = tuple(f"{i}.jpeg" for i in range(BATCH))
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / name, quality=90)
    return ImageList(root=folder, part="train", paths=names, labels=np.zeros(BATCH, dtype=np.int64))


class ReadImages(NamedTuple):
    """All images of a list, normalized, as two input pipelines read them."""

    training: Array
    evaluation: Array


def read_by_both_pipelines(
    images: ImageList, recipe: config.Recipe, reader: ReaderConfig, to_host: Callable[[Any], Array]
) -> ReadImages:
    """Read all images as one batch by the input pipeline of training, and as one batch by that of evaluation.

    Args:
        images: The list of image files.
        recipe: Sets the augmentation of training, and the size to which an evaluation resizes.
        reader: The settings of the pipelines, with the device that decodes.
        to_host: Copies a batch's images from that device.
    """
    return ReadImages(  # with `augment` a Loader builds the pipeline of training, and with `resize` that of evaluation
        training=_read_as_one_batch(images, reader, to_host, {"augment": recipe.augmentation}),
        evaluation=_read_as_one_batch(images, reader, to_host, {"resize": recipe.eval_resize}),
    )


def _read_as_one_batch(
    images: ImageList, reader: ReaderConfig, to_host: Callable[[Any], Array], settings: dict[str, Any]
) -> Array:
    """Return all images as one batch, read by the input pipeline that the `settings` select."""
    all_images = np.arange(len(images))
    all_are_valid = np.ones(len(images), dtype=bool)  # none is padding
    plan = iter([(1, all_images, all_are_valid)])  # a sampling.Plan of one step, in epoch 1
    with contextlib.closing(data.Loader(images, plan, reader, **settings)) as loader:
        batch = next(loader)
        return to_host(batch.image)  # before the loader closes: the image is in its buffer


def read_by_program(machine: Machine, image: Any) -> Array:
    """Return a pipeline's batch of images as float32 on the host, read by a program of Paddle as in a training.

    This shows a fault that a pipeline on a GPU may have: to hand a batch over before the batch is finished. The program
    does not wait for the pipeline, just as a training does not. So the program reads wrong images if the batch is not
    finished, and the check `input_pipeline` finds the fault by these images.

    If Paddle has no kernels for the GPU, no program can read the batch. Then the batch is copied without a program, and
    the copy waits until the batch is finished, so the fault is not found.

    Args:
        machine: This rank's part of the machine, whose executor runs the program.
        image: The images, as a NumPy array or a tensor of Paddle's core.
    """
    if not machine.has_kernels:
        return np.array(image, dtype=np.float32)  # waits until the batch is finished
    shape, dtype = _shape_and_type(image)
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        copy = paddle.assign(static.data("x", shape, dtype))  # the program only copies its input
        (fetched,) = machine.executor.run(main, feed={"x": image}, fetch_list=[copy])
    return np.array(fetched, dtype=np.float32)


def _shape_and_type(image: Any) -> tuple[Sequence[int], str]:
    """Return shape and type of a NumPy array or a tensor of Paddle's core, without waiting for its values.

    To turn the tensor into an array would give both, too, but it would wait for the GPU.
    """
    if isinstance(image, np.ndarray):
        return image.shape, image.dtype.name
    return image.shape(), paddle.base.data_feeder.convert_dtype(image._dtype())


def all_reduce(machine: Machine) -> Verdict:
    """Check sums over the ranks by NCCL (on a CPU by gloo) against sums of the same numbers by MPI on the host.

    The arrays have the sizes and types of those in which a training sums its gradients. All ranks must call this
    together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if no sum differs, else fatal.

    Raises:
        NotPossible: There is only one rank.
    """
    if machine.me.size == 1:
        raise NotPossible("one rank has nothing to sum: set DGXNGPU")
    training = _recorded_program(machine)
    _open_communicators(machine, training.startup)  # before the first sum
    buckets = count.buckets(training.main)  # the arrays in which a training sums its gradients
    total_mib = sum(bucket["mib"] for bucket in buckets)
    wrong_here = sum(_count_wrong_sums(machine, bucket, index) for index, bucket in enumerate(buckets))
    wrong = int(machine.me.comm.allreduce(wrong_here))
    where = f"{counted(len(buckets), 'bucket')}, {total_mib:.0f} MiB, over {counted(machine.me.size, 'rank')}"
    found = f"{wrong} sums differ of {where}"
    figures = {"wrong": wrong, "buckets": len(buckets), "mib": total_mib}
    wanted = "no sum differs: whole numbers below 256 add up without rounding"
    return judged("all-reduce", wrong == 0, found, wanted, figures=figures)


def _count_wrong_sums(machine: Machine, bucket: JsonObject, index: int) -> int:
    """Sum an array of random whole numbers over the ranks in two ways; return how many elements of the sums differ.

    One sum is by the operator with which a training sums its gradients, the other by MPI on the host.

    All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        bucket: The size ("mib") and type ("dtype") of an array in which a training sums gradients. This array has both.
        index: The number of the bucket. With the rank it seeds the random values.
    """
    elements = round(bucket["mib"] * ops.MIB / np.dtype(bucket["dtype"]).itemsize)
    # From -4 to 4: sums of whole numbers this small are exact in any order, so both sums must be the same.
    rng = np.random.default_rng([SEED, machine.me.rank, index])
    values = rng.integers(-4, 5, elements, dtype=np.int32)
    by_mpi = np.empty_like(values)
    machine.me.comm.Allreduce(values, by_mpi)
    by_training_operator = _sum_by_training_operator(machine, values.astype(bucket["dtype"]))
    return int(np.count_nonzero(by_training_operator != by_mpi))


def _recorded_program(machine: Machine) -> build.TrainingProgram:
    """Build the program of the recorded training; nothing of it is run."""
    recorded = machine.recorded_training()
    with paddle.utils.unique_name.guard():
        model = ResNet50(recorded.recipe, machine.plan(), batch=BATCH)
        return model.training_program(recorded.schedule, seed=SEED)


def _open_communicators(machine: Machine, startup: static.Program) -> None:
    """Connect the ranks' GPUs by NCCL, as the start-up program of a training does; nothing is done on a CPU.

    Args:
        machine: This rank's part of the machine.
        startup: The start-up program. Its other operators, which set the weights, are removed from it and not run.
    """
    edit.remove(startup, lambda op: op.type not in OPENS_COMMUNICATOR)
    if startup.global_block().ops:  # none is left on a CPU, where gloo connects the ranks
        with static.scope_guard(static.Scope()):
            machine.executor.run(startup)


def _sum_by_training_operator(machine: Machine, values: Array) -> Array:
    """Return `values` summed over all ranks by the operator that sums gradients in a training program."""
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        static.data("x", values.shape, str(values.dtype))
        attributes = {"ring_id": 0, "use_calc_stream": True}
        edit.insert(main.global_block(), 0, "c_allreduce_sum", {"X": ["x"]}, {"Out": ["x"]}, **attributes)
        (summed,) = machine.executor.run(main, feed={"x": values}, fetch_list=["x"])
    return np.array(summed)


def captured(machine: Machine) -> Verdict:
    """Compare the losses of steps that are launched operator by operator with those of a replayed CUDA graph.

    This must be the last check of its job: a capture binds the process to its GPU, and a failed capture leaves its
    stream in capture mode. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
    """
    with repeatable_algorithms():  # so that both must have the same losses, bit for bit
        launched = machine.train(machine.plan())
        replayed = machine.train(machine.plan(strategy="cuda_graph=1"))
    return judge_replayed_losses(launched, replayed)


def judge_replayed_losses(launched: Array, replayed: Array) -> Verdict:
    """Return the verdict on whether steps replayed from a CUDA graph have the losses of launched steps, bit for bit.

    Args:
        launched: The losses of steps that were launched operator by operator, float32 [ranks, steps].
        replayed: The losses of the same steps, replayed from a CUDA graph, in the same form.

    Returns:
        Ok if all bits are the same. Fatal if not, or if the launched losses show no training to compare with.
    """
    # Equal losses prove nothing if they are not finite or never change.
    fault = why_not_finite(launched, "launched") or _difference_of_replay(launched, replayed) or why_constant(launched)
    steps = launched.shape[1]  # each rank's
    found = fault or f"{steps} of {steps} losses alike bit for bit"
    # Both trainings used algorithms of cuDNN that give the same bits each time, so any difference is the graph's.
    wanted = "STRATEGY=cuda_graph=1 has the losses of the launched step, bit for bit, by cuDNN's repeatable algorithms"
    figures = {"launched": launched.tolist(), "replayed": replayed.tolist()}
    return judged("captured", not fault, found, wanted, figures=figures)


def _difference_of_replay(launched: Array, replayed: Array) -> str:
    """Return how replayed losses differ from launched ones: "2 of 20 losses differ, first at step 19, by 1.0e-07 of
    it".

    Args:
        launched: The losses of steps that were launched operator by operator, float32 [ranks, steps]; all are finite.
        replayed: Those of the same steps, replayed from a CUDA graph, in the same form.

    Returns:
        The text, with the largest relative difference of any rank at that step. Empty if all bits are the same.
    """
    differing_steps = _steps_with_other_bits(launched, replayed)  # indices of steps, from 0
    if not differing_steps.size:
        return ""
    first = differing_steps[0]
    relative_differences = np.abs(replayed[:, first] - launched[:, first]) / np.abs(launched[:, first])  # [ranks]
    difference = np.max(relative_differences)
    steps = launched.shape[1]
    return f"{differing_steps.size} of {steps} losses differ, first at step {first + 1}, by {difference:.1e} of it"


def _steps_with_other_bits(losses: Array, others: Array) -> Array:
    """Return the indices of the steps at which a loss of any rank differs. Both are float32 [ranks, steps]."""
    # Bits are compared as integers, because floats have 0.0 == -0.0 and NaN != NaN.
    differs = losses.view(np.int32) != others.view(np.int32)
    return np.flatnonzero(differs.any(axis=0))
