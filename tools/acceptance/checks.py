"""The checks of a machine's acceptance, on each of its ranks: __main__.py has their list and the report.

The reference is a CPU in FP32: losses and accuracy in paddle_rn50/golden.json, recorded once, and what a CPU computes
here and now. Weights come from the CPU's start-up program, as a GPU draws others from the same seed. Each rank trains
on the same images, so that the mean of the gradients is that of one rank: the recorded losses hold at any number of
ranks.
"""

import contextlib
import functools
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import static
from PIL import Image

from harness import nvidia
from harness.loader import ReaderConfig
from paddle_rn50 import config, data
from paddle_rn50.folder import ImageList
from paddle_rn50.train import ResNet50
from program import count, ops
from program.arrays import Array
from program.passes import edit, gradients
from runlog.json_types import JsonObject
from runlog.verdict import Verdict, judged
from tools.acceptance.machine import BATCH, GOLDEN, SEED, Machine, NotPossible, repeatable

SENSORS = ("memory_mib", "power_w", "temperature_c", "utilization_percent")
POOLED_SIDE, POOLED_CHANNELS = 7, 2048  # of the image whose mean ResNet-50 classifies
POOLING = {"float32": 2**-23, "float16": 2**-10}  # two roundings, each half a unit in the last place
COMMUNICATOR = ("c_gen_nccl_id", "c_comm_init")  # operators that open one
GREY_LEVELS = 4.0
WHY_GREY_LEVELS = "enlarging the colour channels another way gives 3.1, a faster IDCT 0.95, a shift by a pixel 7.0"
EARLY_STEPS = 14


@dataclass(frozen=True)
class Tolerance:
    """How far a loss may be from the recorded one, as a share of it."""

    early: float  # up to EARLY_STEPS
    late: float
    why: str

    def by_step(self, steps: int) -> Array:
        """Return the tolerance of each of the first steps."""
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


def judge_losses(check: str, found: Array, wanted: Array, tolerance: Tolerance) -> Verdict:
    """Compare the losses of a training's first steps with those that are wanted, and return the verdict of `check`.

    `found` is [ranks, steps]; of a step the rank that is farthest off counts. `wanted` has a loss for each step, and
    may have more than were trained. The verdict is good where every loss is within the tolerance of its step; a loss
    that is NaN never is. It tells the step that is worst beside its tolerance.
    """
    steps = found.shape[1]
    wanted = wanted[:steps]
    off = np.abs(found - wanted).max(axis=0) / wanted  # [steps], as a share of the wanted loss
    bound = tolerance.by_step(steps)
    share_of_bound = np.where(np.isnan(off), np.inf, off / bound)  # a loss that is NaN is as far off as can be
    worst = int(np.argmax(share_of_bound))
    good = bool((off <= bound).all())  # False where one is NaN
    said = f"{off[worst]:.1e} of the loss off at step {worst + 1} of {steps}, {bound[worst]:.0e} allowed"
    allowed = f"at most {tolerance.early:.0e} off to step {EARLY_STEPS}, then {tolerance.late:.0e}: {tolerance.why}"
    figures = {"losses": found.tolist(), "wanted": wanted.tolist(), "off": off.tolist()}
    return judged(check, good, said, allowed, figures=figures)


def why_untrained(losses: Array, kind: str) -> str:
    """Return why the losses [ranks, steps] are not those of a training; empty where they are. `kind` names the step."""
    if not np.isfinite(losses).all():
        return f"a {kind} step's loss is not finite"
    if (losses[:, 1:] == losses[:, :-1]).all():
        return f"{losses.shape[1]} losses are alike, and none differs from the one before: nothing was trained"
    return ""


def sensors(machine: Machine) -> Verdict:
    """Check that NVML answers for each rank's GPU as the telemetry of a run needs it, and return the verdict.

    NVML numbers GPUs in its own way. To show that it looks at the right one, its name of this rank's GPU must be that
    of the device on which Paddle computes. Each sensor of SENSORS must have a reading. All ranks call this together,
    and each judges the GPUs of all.
    """
    index = machine.me.local_rank
    with nvidia.opened() as (handles, _):  # handles in CUDA's order, as `opened` finds it: local ranks count so too
        name = nvidia.gpu_of(handles[index]).name
        readings = nvidia.sample(handles[index])  # by sensor; None where there is no reading
    mine = {
        "name": name,
        "same": name == paddle.device.cuda.get_device_name(index),
        "silent": [sensor for sensor in SENSORS if readings[sensor] is None],
        **readings,
    }
    gpus = machine.me.comm.allgather(mine)

    wrong_gpus = 0
    silent_sensors: set[str] = set()
    for gpu in gpus:
        silent_sensors.update(gpu["silent"])
        if not gpu["same"]:
            wrong_gpus += 1
    silent = ", ".join(sorted(silent_sensors)) or "none"
    found = f"{len(gpus)} GPUs answer, {wrong_gpus} are not the one that computes; silent: {silent}"
    wanted = "NVML names each rank's GPU as CUDA does, and reads " + ", ".join(SENSORS)
    good = wrong_gpus == 0 and not silent_sensors
    return judged("sensors", good, found, wanted, figures={"gpus": gpus})


def losses(machine: Machine) -> Verdict:
    """Train the first steps of the recorded job on every rank, and judge the losses by the recorded ones."""
    found = machine.train(machine.plan())
    machine.measured["losses"] = found  # `layout` compares with them
    on_a_gpu = {"fp32": GPU_FP32, "tf32": GPU_TF32}.get(machine.job.model.precision, GPU_HALF)
    tolerance = CPU if machine.job.cluster.device == "cpu" else on_a_gpu
    return judge_losses("losses", found, np.array(GOLDEN["losses"]["1"]), tolerance)


def layout(machine: Machine) -> Verdict:
    """Train the recorded job in the layout NHWC, and judge the losses by those in NCHW on the same machine."""
    nchw = machine.of_earlier("losses")[0]
    return judge_losses("layout", machine.train(machine.plan("NHWC")), nchw, LAYOUT)


def pooling(machine: Machine) -> Verdict:
    """Check the gradient of the network's last operator before the classifier, the mean over 7 x 7 pixels.

    A pixel's gradient is that of the mean divided by 49. Paddle's operator for it also reads the image, so our pass
    `gradients.spread_mean_gradients` puts a pooling of 7 x 7 with padding 6 in its place. The check runs that pooling
    on random gradients, and compares the result with the quotient in float64. The largest relative difference of all
    ranks must be at most POOLING of the job's type.
    """
    plan = machine.plan()
    dtype = plan.precision.dtype
    if plan.layout == "NCHW":
        image_shape = [BATCH, POOLED_CHANNELS, POOLED_SIDE, POOLED_SIDE]
        mean_shape = [BATCH, POOLED_CHANNELS, 1, 1]
    else:
        image_shape = [BATCH, POOLED_SIDE, POOLED_SIDE, POOLED_CHANNELS]
        mean_shape = [BATCH, 1, 1, POOLED_CHANNELS]

    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        image = static.data("x", image_shape, dtype)
        image.stop_gradient = False
        mean_gradient = static.data("gradient", mean_shape, dtype)
        mean = paddle.nn.functional.adaptive_avg_pool2d(image, 1, data_format=plan.layout)
        (image_gradient,) = static.gradients([mean], [image], [mean_gradient])
        replaced = gradients.spread_mean_gradients(main)
        assert replaced == 1  # operators: the one that computes this gradient
        given = np.random.default_rng(SEED).uniform(1, 2, mean_shape).astype(dtype)  # no quotient is subnormal
        # The image's values do not matter: a mean has the same gradient whatever they are.
        feed = {"x": np.zeros(image_shape, dtype), "gradient": given}
        (computed,) = machine.executor.run(main, feed=feed, fetch_list=[image_gradient])

    quotient = given.astype(np.float64) / POOLED_SIDE**2
    off_here = np.max(np.abs(computed - quotient) / quotient)
    off = float(max(machine.me.comm.allgather(off_here)))
    found = f"{off:.1e} of the gradient off, {POOLING[dtype]:.0e} allowed"
    wanted = "at most two roundings: one of 1 / 49, one of the quotient"
    return judged("pooling", off <= POOLING[dtype], found, wanted, figures={"off": off})


def input_pipeline(machine: Machine) -> Verdict:
    """Compare images that the GPU decodes and crops with those that the CPU makes of the same files.

    Each rank writes JPEG files, and reads them as one batch by the pipeline of training and by that of evaluation, both
    on the GPU and on the CPU. The batches have the type and the channels that the job's network takes, with the
    channels last, as `grey_levels` compares them. The mean difference between the GPU's batch and the CPU's must be at
    most GREY_LEVELS of 255 for both pipelines on every rank.
    """
    recipe = config.NVIDIA_COSINE
    network_input = ResNet50(recipe, machine.plan(), batch=BATCH).image
    read_format = replace(network_input, layout="NHWC")
    to_host = functools.partial(copied, machine)
    with tempfile.TemporaryDirectory() as folder:
        images = pictures(Path(folder))
        by_gpu = read_as_one_batch(images, recipe, machine.reader(read_format, "gpu"), to_host)
        by_cpu = read_as_one_batch(images, recipe, machine.reader(read_format, "cpu"), to_host)

    differences = [grey_levels(gpu_images, cpu_images) for gpu_images, cpu_images in zip(by_gpu, by_cpu, strict=True)]
    worst = float(np.max(machine.me.comm.allgather(differences)))
    found = f"images differ by {worst:.2f} of 255 levels in the mean"
    wanted = f"at most {GREY_LEVELS} levels: {WHY_GREY_LEVELS}"
    return judged("input", worst <= GREY_LEVELS, found, wanted, figures={"mean_grey_levels": worst})


def grey_levels(a: Array, b: Array) -> float:
    """Return the mean difference of two batches of normalized images, in grey levels of 255.

    The images are [N, H, W, 3 or 4]. A fourth channel only fills up the format: where it is not empty, the difference
    is infinite.
    """
    if a[..., 3:].any() or b[..., 3:].any():
        return math.inf
    return float(np.mean(np.abs(a - b)[..., :3] * np.array(data.STD)))


def pictures(folder: Path) -> ImageList:
    """Write a batch of JPEG files in colour, 500 x 375 with detail of 16 pixels, into a folder; return their list."""
    rng = np.random.default_rng(SEED)
    names = tuple(f"{i}.jpeg" for i in range(BATCH))
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / name, quality=90)
    return ImageList(root=folder, part="train", paths=names, labels=np.zeros(BATCH, dtype=np.int64))


def read_as_one_batch(
    images: ImageList, recipe: config.Recipe, reader: ReaderConfig, to_host: Callable[[Any], Array]
) -> list[Array]:
    """Read all images twice, as one batch each time: by the pipeline of training, then by that of evaluation.

    Return the two batches of normalized images, in that order. `reader` says on which device and in which format the
    pipelines read, and `to_host` copies a batch's images from that device.
    """
    training = {"augment": recipe.augmentation}
    evaluation = {"resize": recipe.eval_resize}
    all_images = np.arange(len(images))
    all_are_valid = np.ones(len(images), dtype=bool)  # none is padding

    batches = []
    for settings in (training, evaluation):
        plan = iter([(1, all_images, all_are_valid)])  # a sampling.Plan of one step, in epoch 1
        with contextlib.closing(data.Loader(images, plan, reader, **settings)) as loader:
            batch = next(loader)
            batches.append(to_host(batch.image))  # before the loader closes, whose buffer it is
    return batches


def copied(machine: Machine, image: Any) -> Array:
    """Return a batch of images as float32 on the host, the way an operator of a training program reads it.

    `image` is what an input pipeline gives: a numpy array, or a Paddle tensor that a GPU may still be filling. It goes
    through a program that only copies it, as training would read it: if that reads a tensor before it is full, the
    result is wrong, and the check finds it. Where this Paddle has no kernels for the GPU, no program can run, and the
    batch is copied directly.
    """
    if not machine.kernels:
        return np.array(image, dtype=np.float32)
    if isinstance(image, np.ndarray):
        shape = image.shape
        dtype = image.dtype.name
    else:  # ask for its form alone: reading a value would wait for the device before the program does
        shape = image.shape()
        dtype = paddle.base.data_feeder.convert_dtype(image._dtype())
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        copy = paddle.assign(static.data("x", shape, dtype))
        (fetched,) = machine.executor.run(main, feed={"x": image}, fetch_list=[copy])
    return np.array(fetched, dtype=np.float32)


def all_reduce(machine: Machine) -> Verdict:
    """Compare sums over the ranks by NCCL (on a CPU by gloo) with sums of the same numbers by MPI on the host.

    A training step sums its gradients in buckets: several gradients side by side in one array. The arrays here have the
    sizes and types of the recorded job's buckets. No element may differ on any rank. Raises NotPossible where there is
    one rank only.
    """
    if machine.me.size == 1:
        raise NotPossible("one rank has nothing to sum: set DGXNGPU")
    buckets = _buckets(machine)
    total_mib = sum(bucket["mib"] for bucket in buckets)
    wrong_here = 0
    for index, bucket in enumerate(buckets):
        elements = round(bucket["mib"] * ops.MIB / np.dtype(bucket["dtype"]).itemsize)
        # Whole numbers this small have no rounding in any order of summing, so the sums must be the same.
        rng = np.random.default_rng([SEED, machine.me.rank, index])
        values = rng.integers(-4, 5, elements, dtype=np.int32)
        by_mpi = np.empty_like(values)
        machine.me.comm.Allreduce(values, by_mpi)
        by_program = _sum(machine, values.astype(bucket["dtype"]))
        wrong_here += np.count_nonzero(by_program != by_mpi)

    wrong = int(machine.me.comm.allreduce(wrong_here))
    found = f"{wrong} sums differ of {len(buckets)} buckets, {total_mib:.0f} MiB, over {machine.me.size} ranks"
    figures = {"wrong": wrong, "buckets": len(buckets), "mib": total_mib}
    wanted = "no sum differs: whole numbers below 256 add up without rounding"
    return judged("all-reduce", wrong == 0, found, wanted, figures=figures)


def _buckets(machine: Machine) -> list[JsonObject]:
    """Return the buckets in which the recorded job's program sums its gradients: each has a "dtype" and "mib".

    To find them the program is built. Of its start-up program only the operators are run that open a communicator
    between the ranks, which the sums of `all_reduce` need.
    """
    recipe, _, schedule = machine.recorded()
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        training = ResNet50(recipe, machine.plan(), batch=BATCH).training_program(schedule, seed=SEED)
        edit.remove(training.startup, lambda op: op.type not in COMMUNICATOR)
        if training.startup.global_block().ops:  # none on a CPU, whose ranks gloo has connected
            machine.executor.run(training.startup)
    return count.buckets(training.main)


def _sum(machine: Machine, values: Array) -> Array:
    """Return `values` summed over the ranks, by the operator that sums gradients in a training program."""
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        static.data("x", values.shape, str(values.dtype))
        way = {"ring_id": 0, "use_calc_stream": True}
        edit.insert(main.global_block(), 0, "c_allreduce_sum", {"X": ["x"]}, {"Out": ["x"]}, **way)
        (summed,) = machine.executor.run(main, feed={"x": values}, fetch_list=["x"])
    return np.array(summed)


def captured(machine: Machine) -> Verdict:
    """Compare the losses of steps that are launched operator by operator with those of a replayed CUDA graph.

    Both train the first steps of the recorded job by cuDNN's repeatable algorithms, so the losses must have equal bits.
    This is the last check of its job: a capture binds the process to its GPU, and one that fails leaves its stream
    capturing.
    """
    with repeatable():
        launched = machine.train(machine.plan())
        replayed = machine.train(machine.plan(strategy="cuda_graph=1"))
    return same_bits(launched, replayed)


def same_bits(launched: Array, replayed: Array) -> Verdict:
    """Return the verdict on whether steps replayed from a CUDA graph have the losses of launched ones, bit for bit.

    Both are float32 [ranks, steps]. The verdict is good where no loss differs and the launched steps have trained. It
    is bad where one of their losses is not finite, or none changes from step to step: equal losses then prove nothing.
    Where losses differ it tells in how many steps, in which one first, and by how much of the loss.
    """
    steps = launched.shape[1]
    # [steps], whether a rank's loss differs: compared as whole numbers, in which -0.0 is not 0.0 and a NaN is itself.
    differ = (launched.view(np.int32) != replayed.view(np.int32)).any(axis=0)
    untrained = why_untrained(launched, "launched")
    good = False
    if not np.isfinite(launched).all():  # said first: no difference from such a loss can be told
        found = untrained
    elif differ.any():
        first = int(np.argmax(differ))
        off = np.max(np.abs(replayed[:, first] - launched[:, first]) / np.abs(launched[:, first]))
        found = f"{differ.sum()} of {steps} losses differ, first at step {first + 1}, by {off:.1e} of it"
    elif untrained:  # here: the losses stay the same
        found = untrained
    else:
        good = True
        found = f"{steps} of {steps} losses alike bit for bit"
    wanted = "STRATEGY=cuda_graph=1 has the losses of the launched step, bit for bit, by cuDNN's repeatable algorithms"
    figures = {"launched": launched.tolist(), "replayed": replayed.tolist()}
    return judged("captured", good, found, wanted, figures=figures)
