"""The checks of a machine's acceptance, on each of its ranks: __main__.py has their list and the report.

The reference is a CPU in FP32: losses and accuracy in paddle_rn50/golden.json, recorded once, and what a CPU computes
here and now. Weights come from the CPU's start-up program, as a GPU draws others from the same seed. Each rank trains
on the same images, so that the mean of the gradients is that of one rank: the recorded losses hold at any number of
ranks.
"""

import contextlib
import functools
import json
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

from harness import nvidia, sampling, state
from harness.loader import ReaderConfig
from harness.loop import COUNTED, Evaluator
from paddle_rn50 import config, data
from paddle_rn50.folder import ImageList
from paddle_rn50.train import ResNet50
from program import count, ops, precision
from program.arrays import Array
from program.passes import edit, gradients
from runlog.verdict import Verdict, judged
from tools.acceptance.machine import BATCH, SEED, SIDE, Machine, NotPossible, as_fed, fitted_weights

GOLDEN = json.loads((Path(__file__).parents[2] / "paddle_rn50" / "golden.json").read_text())
SENSORS = ("memory_mib", "power_w", "temperature_c", "utilization_percent")
FIT_BATCHES = 16  # of training images that the evaluated weights are fitted to
POOLING = {"float32": 2**-23, "float16": 2**-10}  # two roundings, each half a unit in the last place
COMMUNICATOR = ("c_gen_nccl_id", "c_comm_init")  # operators that open one
GREY_LEVELS = 4.0
WHY_GREY_LEVELS = "enlarging the colour channels another way gives 3.1, a faster IDCT 0.95, a shift by a pixel 7.0"
# Of Paddle, so that two runs of one program compute the same bits: cuDNN's algorithms without atomics (gradients of
# filters and of the maximum), always the same ones. Its kernels refuse a search beside the first.
REPEATABLE = {"FLAGS_cudnn_deterministic": True, "FLAGS_cudnn_exhaustive_search": False}
EVALUATION_DIFFERS = 4
WHY_EVALUATION = "rounding products to 11 bits changes one on a CPU, and so does storing in FP16; four times that"
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
    """Losses [ranks, steps] against the `wanted` ones of the first steps."""
    steps = found.shape[1]
    off = np.abs(found - wanted[:steps]).max(axis=0) / wanted[:steps]
    bound = tolerance.by_step(steps)
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off / bound)))
    said = f"{off[worst]:.1e} of the loss off at step {worst + 1} of {steps}, {bound[worst]:.0e} allowed"
    allowed = f"at most {tolerance.early:.0e} off to step {EARLY_STEPS}, then {tolerance.late:.0e}: {tolerance.why}"
    figures = {"losses": found.tolist(), "wanted": wanted[:steps].tolist(), "off": off.tolist()}
    return judged(check, bool((off <= bound).all()), said, allowed, figures=figures)  # of a NaN it is False


def why_untrained(losses: Array, kind: str) -> str:
    """Return why the losses [ranks, steps] are not those of a training; empty where they are. `kind` names the step."""
    if not np.isfinite(losses).all():
        return f"a {kind} step's loss is not finite"
    if (losses[:, 1:] == losses[:, :-1]).all():
        return f"{losses.shape[1]} losses are alike, and none differs from the one before: nothing was trained"
    return ""


def sensors(machine: Machine) -> Verdict:
    """Judge what NVML says of this rank's GPU, as the telemetry of a run reads it."""
    index = machine.me.local_rank
    with nvidia.opened() as (handles, _):
        told, sample = nvidia.gpu_of(handles[index]), nvidia.sample(handles[index])
    same = told.name == paddle.device.cuda.get_device_name(index)
    silent = [sensor for sensor in SENSORS if sample[sensor] is None]
    gpus = machine.me.comm.allgather({"name": told.name, "same": same, "silent": silent, **sample})
    others = sum(not gpu["same"] for gpu in gpus)
    absent = sorted(set().union(*(gpu["silent"] for gpu in gpus)))
    found = f"{len(gpus)} GPUs answer, {others} are not the one that computes; silent: {', '.join(absent) or 'none'}"
    wanted = "NVML names each rank's GPU as CUDA does, and reads " + ", ".join(SENSORS)
    return judged("sensors", not others and not absent, found, wanted, figures={"gpus": gpus})


def losses(machine: Machine) -> Verdict:
    """Losses of the first steps on every rank against the recorded ones."""
    machine.measured["losses"] = found = machine.train(machine.plan())
    on_a_gpu = {"fp32": GPU_FP32, "tf32": GPU_TF32}.get(machine.job.model.precision, GPU_HALF)
    tolerance = CPU if machine.job.cluster.device == "cpu" else on_a_gpu
    return judge_losses("losses", found, np.array(GOLDEN["losses"]["1"]), tolerance)


def layout(machine: Machine) -> Verdict:
    """Compare the network in NHWC with the one in NCHW here."""
    nchw = machine.of_earlier("losses")[0]
    return judge_losses("layout", machine.train(machine.plan("NHWC")), nchw, LAYOUT)


def pooling(machine: Machine) -> Verdict:
    """Gradient of the last pooling, which `gradients.spread_mean` makes a pooling of 7 x 7 with padding 6."""
    plan = machine.plan()
    dtype, side, channels = plan.precision.dtype, 7, 2048
    whole = [BATCH, channels, side, side] if plan.layout == "NCHW" else [BATCH, side, side, channels]
    mean = [1 if n == side else n for n in whole]
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        image, gradient = static.data("x", whole, dtype), static.data("gradient", mean, dtype)
        image.stop_gradient = False
        pooled = paddle.nn.functional.adaptive_avg_pool2d(image, 1, data_format=plan.layout)
        (spread,) = static.gradients([pooled], [image], [gradient])
        assert gradients.spread_mean(main) == 1
        given = np.random.default_rng(SEED).uniform(1, 2, mean).astype(dtype)  # no quotient is subnormal
        feed = {"x": np.zeros(whole, dtype), "gradient": given}
        (computed,) = machine.executor.run(main, feed=feed, fetch_list=[spread])
    quotient = given.astype(np.float64) / side**2
    off = float(max(machine.me.comm.allgather(np.max(np.abs(computed - quotient) / quotient))))
    found = f"{off:.1e} of the gradient off, {POOLING[dtype]:.0e} allowed"
    wanted = "at most two roundings: one of 1 / 49, one of the quotient"
    return judged("pooling", off <= POOLING[dtype], found, wanted, figures={"off": off})


def input_pipeline(machine: Machine) -> Verdict:
    """Images of the GPU's pipeline, as a program on the GPU reads them, against the CPU's, in the job's format."""
    recipe = config.NVIDIA_COSINE
    fed = ResNet50(recipe, machine.plan(), batch=BATCH).image
    with tempfile.TemporaryDirectory() as folder:
        images = pictures(Path(folder))
        readers = (machine.reader(replace(fed, layout="NHWC"), device) for device in ("gpu", "cpu"))
        read = [one_batch_each(images, recipe, reader, functools.partial(copied, machine)) for reader in readers]
    mean = float(np.max(machine.me.comm.allgather([grey_levels(a, b) for a, b in zip(*read, strict=True)])))
    found = f"images differ by {mean:.2f} of 255 levels in the mean"
    wanted = f"at most {GREY_LEVELS} levels: {WHY_GREY_LEVELS}"
    return judged("input", mean <= GREY_LEVELS, found, wanted, figures={"mean_grey_levels": mean})


def grey_levels(a: Array, b: Array) -> float:
    """Mean difference of normalized images [N, H, W, 3 or 4] in levels of 255; infinite where the 4th is not empty."""
    if a[..., 3:].any() or b[..., 3:].any():
        return math.inf
    return float(np.mean(np.abs(a - b)[..., :3] * np.array(data.STD)))


def pictures(folder: Path) -> ImageList:
    """A batch of made JPEG files in colour, 500 x 375, with detail of 16 pixels."""
    rng, names = np.random.default_rng(SEED), tuple(f"{i}.jpeg" for i in range(BATCH))
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / name, quality=90)
    return ImageList(root=folder, part="train", paths=names, labels=np.zeros(BATCH, dtype=np.int64))


def one_batch_each(
    images: ImageList, recipe: config.Recipe, reader: ReaderConfig, copied: Callable[[Any], Array]
) -> list[Array]:
    """A batch of the training pipeline and one of the evaluation's, normalized, each `copied` to the host."""
    read = []
    for kind in ({"augment": recipe.augmentation}, {"resize": recipe.eval_resize}):
        all_at_once = iter([(1, np.arange(len(images)), np.ones(len(images), dtype=bool))])
        with contextlib.closing(data.Loader(images, all_at_once, reader, **kind)) as source:
            read.append(copied(next(source).image))
    return read


def copied(machine: Machine, image: Any) -> Array:
    """A batch's images as an operator of a program finds them; where Paddle has no kernels, as a copy to the host."""
    if not machine.kernels:
        return np.array(image, dtype=np.float32)
    if isinstance(image, np.ndarray):
        shape, kind = image.shape, image.dtype.name
    else:  # nothing here may wait for the device before the program does
        shape, kind = image.shape(), paddle.base.data_feeder.convert_dtype(image._dtype())
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        x = static.data("x", shape, kind)
        (found,) = machine.executor.run(main, feed={"x": image}, fetch_list=[paddle.assign(x)])
    return np.array(found, dtype=np.float32)


def all_reduce(machine: Machine) -> Verdict:
    """Sums of the gradients' buckets over the ranks by NCCL, or gloo, against MPI's on the host."""
    if machine.me.size == 1:
        raise NotPossible("one rank has nothing to sum: set DGXNGPU")
    buckets, wrong = _buckets(machine), 0
    for index, bucket in enumerate(buckets):
        elements = round(bucket["mib"] * ops.MIB / np.dtype(bucket["dtype"]).itemsize)
        # Whole numbers this small have no rounding in any order of summing, so the sums must be the same.
        values = np.random.default_rng([SEED, machine.me.rank, index]).integers(-4, 5, elements, dtype=np.int32)
        wanted = np.empty_like(values)
        machine.me.comm.Allreduce(values, wanted)
        wrong += np.count_nonzero(_sum(machine, values.astype(bucket["dtype"])) != wanted)
    wrong, total_mib = int(machine.me.comm.allreduce(wrong)), sum(bucket["mib"] for bucket in buckets)
    found = f"{wrong} sums differ of {len(buckets)} buckets, {total_mib:.0f} MiB, over {machine.me.size} ranks"
    figures = {"wrong": wrong, "buckets": len(buckets), "mib": total_mib}
    wanted = "no sum differs: whole numbers below 256 add up without rounding"
    return judged("all-reduce", wrong == 0, found, wanted, figures=figures)


def _buckets(machine: Machine) -> list[dict[str, Any]]:
    """The buckets of the recorded job's program, whose start-up program runs as far as it opens a communicator."""
    recipe, _, schedule = machine.recorded()
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        training = ResNet50(recipe, machine.plan(), batch=BATCH).training_program(schedule, seed=SEED)
        edit.remove(training.startup, lambda op: op.type not in COMMUNICATOR)
        if training.startup.global_block().ops:  # none on a CPU, whose ranks gloo has connected
            machine.executor.run(training.startup)
    return count.buckets(training.main)


def _sum(machine: Machine, values: Array) -> Array:
    """`values` summed over the ranks by the operator that sums the gradients."""
    main = static.Program()
    with static.program_guard(main), static.scope_guard(static.Scope()):
        static.data("x", values.shape, str(values.dtype))
        way = {"ring_id": 0, "use_calc_stream": True}
        edit.insert(main.global_block(), 0, "c_allreduce_sum", {"X": ["x"]}, {"Out": ["x"]}, **way)
        (summed,) = machine.executor.run(main, feed={"x": values}, fetch_list=["x"])
    return np.array(summed)


def evaluation(machine: Machine) -> Verdict:
    """Right answers on the embedded evaluation set, by weights that the CPU computes."""
    recipe = config.recipe("digits_small", global_batch=BATCH, image_size=SIDE)
    weights = machine.me.comm.bcast(
        fitted_weights(machine.batches(machine.images("train", recipe), recipe, FIT_BATCHES), recipe)
        if machine.me.is_first
        else None
    )
    plan, images = machine.plan(), machine.images("val", recipe)
    model = ResNet50(recipe, plan, batch=BATCH)
    main = static.Program()
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        with static.program_guard(main, static.Program()):
            model.evaluation_totals(model.image, BATCH)
            precision.cast_evaluation(main, plan.precision)
        for variable in main.list_vars():
            if variable.name in weights:
                kind = paddle.base.data_feeder.convert_dtype(variable.dtype)
                value = state.padded(weights[variable.name], variable.shape).astype(kind)
                static.global_scope().var(variable.name).get_tensor().set(value, machine.executor.place)
        evaluator = Evaluator(
            executor=machine.executor,
            main=main,
            totals=(model.QUALITY, COUNTED),
            ranks=machine.me,
        )
        order = sampling.evaluation_plan(len(images), batch=BATCH, rank=machine.me.rank, ranks=machine.me.size)
        steps = sampling.evaluation_steps(len(images), BATCH * machine.me.size)
        reader = machine.reader(data.ImageFormat(size=SIDE))
        with contextlib.closing(data.Loader(images, order, reader, resize=recipe.eval_resize)) as source:
            fed = (replace(b, image=as_fed(np.asarray(b.image), model.image)) for b in source)
            totals = evaluator.run(fed, steps=steps)
    correct, counted, recorded = int(totals[model.QUALITY]), int(totals[COUNTED]), GOLDEN["evaluation"]["correct"]
    good = counted == len(images) and abs(correct - recorded) <= EVALUATION_DIFFERS
    found = f"{correct} of {counted} images right, recorded {recorded}"
    wanted = f"differs by at most {EVALUATION_DIFFERS} images: {WHY_EVALUATION}"
    return judged("evaluation", good, found, wanted, figures={"correct": correct, "of": counted, "recorded": recorded})


def captured(machine: Machine) -> Verdict:
    """Losses of the recorded job's first steps, launched operator by operator, against those of a replayed graph.

    The last check of its job: a capture binds the process to its GPU, and one that fails leaves its stream capturing.
    """
    paddle.set_flags(REPEATABLE)
    launched = machine.train(machine.plan())
    return same_bits(launched, machine.train(machine.plan(strategy="cuda_graph=1")))


def same_bits(launched: Array, replayed: Array) -> Verdict:
    """Losses [ranks, steps] of the one against those of the other."""
    steps, good = launched.shape[1], False
    differ = (launched.view(np.int32) != replayed.view(np.int32)).any(axis=0)
    untrained = why_untrained(launched, "launched")
    if not np.isfinite(launched).all():
        found = untrained
    elif differ.any():
        first = int(np.argmax(differ))
        off = np.max(np.abs(replayed[:, first] - launched[:, first]) / np.abs(launched[:, first]))
        found = f"{differ.sum()} of {steps} losses differ, first at step {first + 1}, by {off:.1e} of it"
    elif untrained:
        found = untrained
    else:
        found, good = f"{steps} of {steps} losses alike bit for bit", True
    wanted = "STRATEGY=cuda_graph=1 has the losses of the launched step, bit for bit, by cuDNN's repeatable algorithms"
    figures = {"launched": launched.tolist(), "replayed": replayed.tolist()}
    return judged("captured", good, found, wanted, figures=figures)
