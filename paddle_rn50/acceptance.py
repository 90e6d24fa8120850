"""The checks of a machine's acceptance, on each of its ranks: harness/acceptance.py has their list and the report.

The reference is a CPU in FP32: losses and accuracy in golden.json, recorded once, and what a CPU computes here and now.
Weights come from the CPU's start-up program, as a GPU draws others from the same seed. Each rank trains on the same
images, so that the mean of the gradients is that of one rank: the recorded losses hold at any number of ranks.
"""

from __future__ import annotations

import functools
import itertools
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

from harness import events, inspect, loader, memory, passes, precision, program, provenance, ranks, sampling, session
from harness.acceptance import CHECKS, Lines, NotPossible, Outcome
from harness.env import Job
from harness.loop import COUNTED, Evaluator, Trainer, gpu_memory_mib
from harness.progress import Progress
from harness.watchdog import WATCHDOG
from paddle_rn50 import config, data, digits, train

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
BATCH, SIDE, SEED = 32, 32, 7  # of the recorded losses
STEPS, SHORT_STEPS = 20, 4
THROUGHPUT_S, SHORT_THROUGHPUT_S = 60.0, 2.0
PROBE_STEPS = 10  # how long a step takes, before the timed minute
# PaddleClas starts from it too. A dynamic scale finds its size by skipping steps, and the recorded job skips none.
LOSS_SCALE = 128
FIT_BATCHES = 16  # of training images that the evaluated weights are fitted to
RIDGE = 0.1  # of the mean square of what the last layer reads
RESIDUAL = 0.2  # last scale of each block: untrained blocks at full scale leave little of the image
TF32_CAPABILITY = 8
NAMED_GIB = 1.5  # a GPU named 40 GB has 39.4 to 40 GiB for NVML


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far a loss may be from the recorded one, as a share of it: grown from `early` to `late` over the steps."""

    early: float  # up to EARLY_STEPS
    late: float
    why: str

    def by_step(self, steps: int) -> np.ndarray:
        """Of the first steps."""
        return np.where(np.arange(steps) < EARLY_STEPS, self.early, self.late)


EARLY_STEPS = 14
# Each is eight times what its control changes on a CPU (tests/paddle_rn50/altered.py), in the first steps and the later
# ones: `rounding`, `bits:20` and `bits:11`. No GPU has confirmed the latter two: the first reports may.
CPU = Tolerance(early=1e-5, late=1e-3, why="each pixel moved by one FP32 rounding changes 1e-6, then 1.3e-4")
GPU_FP32 = Tolerance(
    early=4e-4,
    late=5e-3,
    # Winograd's convolution rounds more than a direct one (Lavin and Gray 2015, arXiv:1509.09308).
    why="cuDNN may use Winograd's convolution: reading products in 20 bits, not 24, changes 4.3e-5, then 6.5e-4",
)
GPU_PRODUCTS = Tolerance(
    early=2e-3,
    late=8e-3,
    why="reading products in the 11 bits of FP16 and TF32 changes 2.5e-4, then 1.0e-3",
)
LAYOUT = Tolerance(
    early=4e-4,
    late=5e-3,
    # Measured on two Intel cores: 5.2e-5, then 8.6e-4; beyond what one rounding of the input alone changes.
    why="every layer sums in another order: reading products in 20 bits, not 24, changes 4.3e-5, then 6.5e-4",
)
GREY_LEVELS = 4.0
WHY_GREY_LEVELS = "enlarging the colour channels another way gives 3.1, a faster IDCT 0.95, a shift by a pixel 7.0"
EVALUATION_DIFFERS = 4
WHY_EVALUATION = "rounding each product's inputs to the 11 bits of FP16 and TF32 changes one on a CPU; four times that"

Images = list[tuple[np.ndarray, np.ndarray]]  # image [N, 3, H, W] float32 and label [N, 1] of each step


class Machine:
    """The checks on this rank, in the order of harness/acceptance.py; each returns what it found."""

    def __init__(self, job: Job, origins: dict[str, Any], me: ranks.Ranks, *, short: bool) -> None:
        self.job, self.origins, self.me, self.short = job, origins, me, short
        _, self.root = session.data_set(replace(job, datadir=""), me, embedded=digits.NAME, prepare=digits.prepare)
        self.executor = session.executor(job, me)
        self.nodes = list({node["host"]: node for node in me.gather(provenance.node())}.values())
        self.measured: dict[str, Any] = {}  # what a later check needs of an earlier one

    # ---- losses

    def losses(self) -> Outcome:
        """Losses of the first steps on every rank against the recorded ones."""
        self.measured["losses"] = found = self.train(self.plan())
        return judge(found, np.array(GOLDEN["losses"]["1"]), self.tolerance)

    def layout(self) -> Outcome:
        """The same in NHWC against NCHW here."""
        nchw = self.measured["losses"][0]
        return judge(self.train(self.plan("NHWC")), nchw, LAYOUT)

    @property
    def tolerance(self) -> Tolerance:
        """That of this job's losses against the recorded ones."""
        if self.job.device == "cpu":
            return CPU
        return GPU_FP32 if self.job.precision == "fp32" else GPU_PRODUCTS

    def plan(self, layout: str = "") -> program.Plan:
        """Of this job by the default strategy, with a static loss scale."""
        return program.plan(replace(self.job, strategy="", layout=layout, loss_scale=LOSS_SCALE))

    def train(self, plan: program.Plan) -> np.ndarray:
        """Losses [ranks, steps] of the recorded job's first steps."""
        recipe = config.recipe("nvidia_cosine", global_batch=BATCH, image_size=SIDE)
        images = data.read_list(self.root, "train_list.txt", recipe.classes)
        schedule = recipe.make_schedule(samples=len(images), global_batch=BATCH, epochs=math.ceil(recipe.epochs))
        _, fed = train.model_and_image(recipe, plan)
        found = []
        with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
            main, startup, loss = train.training_program(
                replace(self.job, batchsize=BATCH), recipe, plan, schedule, seed=SEED
            )
            self.executor.run(startup)
            program.set_weights(main, first_weights(recipe))
            self.measured["buckets"] = inspect.buckets(main)
            for image, label in self.batches(images, recipe, SHORT_STEPS if self.short else STEPS):
                WATCHDOG.beat("training the recorded steps")
                feed = {"image": as_fed(image, fed), "label": label}
                found.append(float(np.mean(self.executor.run(main, feed=feed, fetch_list=[loss])[0])))
                program.step_schedule(main).step()
        return np.array(self.me.gather(found))

    def batches(self, images: data.ImageList, recipe: config.Recipe, steps: int) -> Images:
        """What one rank reads in the recorded job, by the CPU's pipeline."""
        order = sampling.training_plan(len(images), batch=BATCH, rank=0, ranks=1, seed=SEED)
        source = data.Loader(images, order, self.reader, augment=recipe.augmentation)
        # A copy: the pipeline's buffer is good until the next batch only.
        read = [(np.array(batch.image), batch.label) for batch in itertools.islice(source, steps)]
        source.close()
        return read

    @property
    def reader(self) -> data.ReaderConfig:
        """Of the CPU's pipeline for the recorded jobs."""
        return reader(data.ImageFormat(size=SIDE), threads=self.job.data_threads_per_rank)

    # ---- input

    def input(self) -> Outcome:
        """Images of the GPU's pipeline, as a program on the GPU reads them, against the CPU's, in the job's format."""
        if self.job.device == "cpu":
            raise NotPossible("no GPU: DEVICE=cpu")
        recipe = config.nvidia_cosine(BATCH)
        _, fed = train.model_and_image(recipe, self.plan())
        with tempfile.TemporaryDirectory() as folder:
            images = pictures(Path(folder))
            readers = {
                device: reader(
                    replace(fed, layout="NHWC"),
                    threads=self.job.data_threads_per_rank,
                    device=device,
                    device_id=self.me.local_rank,
                )
                for device in ("gpu", "cpu")
            }
            read = {device: one_batch_each(images, recipe, readers[device], self.copied) for device in readers}
        found = self.me.gather([grey_levels(a, b) for a, b in zip(read["gpu"], read["cpu"], strict=True)])
        mean = float(np.max(found))
        return (
            mean <= GREY_LEVELS,
            f"images differ by {mean:.2f} of 255 levels in the mean",
            f"at most {GREY_LEVELS} levels: {WHY_GREY_LEVELS}",
            {"mean_grey_levels": mean},
        )

    def copied(self, image: Any) -> np.ndarray:
        """A batch's images as an operator of a program finds them, of whichever device they come from."""
        if isinstance(image, np.ndarray):
            shape, kind = image.shape, image.dtype.name
        else:  # nothing here may wait for the device before the program does
            shape, kind = image.shape(), paddle.base.data_feeder.convert_dtype(image._dtype())
        main = static.Program()
        with static.program_guard(main), static.scope_guard(static.Scope()):
            x = static.data("x", shape, kind)
            (found,) = self.executor.run(main, feed={"x": image}, fetch_list=[paddle.assign(x)])
        return np.array(found, dtype=np.float32)

    # ---- ranks

    def all_reduce(self) -> Outcome:
        """Sums of the gradients' buckets over the ranks by NCCL, or gloo, against MPI's on the host."""
        if self.me.size == 1:
            raise NotPossible("one rank has nothing to sum: set DGXNGPU")
        wrong, total_mib = 0, 0.0
        for index, bucket in enumerate(self.measured["buckets"]):
            elements = round(bucket["mib"] * passes.MIB / np.dtype(bucket["dtype"]).itemsize)
            # Whole numbers this small have no rounding in any order of summing, so the sums must be the same.
            values = np.random.default_rng([SEED, self.me.rank, index]).integers(-4, 5, elements, dtype=np.int32)
            wanted = np.empty_like(values)
            self.me.comm.Allreduce(values, wanted)
            summed = self.sum(values.astype(bucket["dtype"]))
            wrong += int(np.count_nonzero(summed != wanted.astype(bucket["dtype"])))
            total_mib += bucket["mib"]
        wrong = int(self.me.sum(wrong))
        buckets = len(self.measured["buckets"])
        return (
            wrong == 0,
            f"{wrong} sums differ of {buckets} buckets, {total_mib:.0f} MiB, over {self.me.size} ranks",
            "no sum differs: whole numbers below 256 add up without rounding",
            {"wrong": wrong, "buckets": buckets, "mib": total_mib},
        )

    def sum(self, values: np.ndarray) -> np.ndarray:
        """`values` summed over the ranks by the operator that sums the gradients."""
        main = static.Program()
        with static.program_guard(main), static.scope_guard(static.Scope()):
            static.data("x", values.shape, str(values.dtype))
            passes.insert(
                main.global_block(),
                0,
                "c_allreduce_sum",
                {"X": ["x"]},
                {"Out": ["x"]},
                ring_id=0,
                use_calc_stream=True,
            )
            (summed,) = self.executor.run(main, feed={"x": values}, fetch_list=["x"])
        return np.array(summed)

    # ---- evaluation

    def evaluation(self) -> Outcome:
        """Right answers on the embedded evaluation set, by weights that the CPU computes."""
        recipe = config.recipe("digits_small", global_batch=BATCH, image_size=SIDE)
        weights = self.me.broadcast(
            fitted_weights(self.batches(self.images("train", recipe), recipe, FIT_BATCHES), recipe)
            if self.me.is_first
            else None
        )
        plan, images = self.plan(), self.images("val", recipe)
        model, fed = train.model_and_image(recipe, plan)
        main = static.Program()
        with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
            with static.program_guard(main, static.Program()):
                train.evaluation_totals(fed, BATCH, recipe, model)
                precision.cast_evaluation(main, plan.precision)
            for variable in main.list_vars():
                if variable.name in weights:
                    kind = paddle.base.data_feeder.convert_dtype(variable.dtype)
                    value = program.padded(weights[variable.name], variable.shape).astype(kind)
                    static.global_scope().var(variable.name).get_tensor().set(value, self.executor.place)
            evaluator = Evaluator(
                executor=self.executor,
                main=main,
                totals=(train.CORRECT, COUNTED),
                feed=lambda b: {"image": as_fed(np.asarray(b.image), fed), "label": b.label, "valid": b.valid},
                ranks=self.me,
            )
            order = sampling.evaluation_plan(len(images), batch=BATCH, rank=self.me.rank, ranks=self.me.size)
            source = data.Loader(images, order, self.reader, resize=recipe.eval_resize)
            steps = sampling.evaluation_steps(len(images), BATCH * self.me.size)
            totals = evaluator.run(source, steps=steps)
            source.close()
        correct, counted = int(totals[train.CORRECT]), int(totals[COUNTED])
        wanted, most = GOLDEN["evaluation"]["correct"], EVALUATION_DIFFERS
        return (
            counted == len(images) and abs(correct - wanted) <= most,
            f"{correct} of {counted} images right, recorded {wanted}",
            f"differs by at most {most} images: {WHY_EVALUATION}",
            {"correct": correct, "of": counted, "recorded": wanted},
        )

    def images(self, part: str, recipe: config.Recipe) -> data.ImageList:
        """The embedded data set's."""
        return data.read_list(self.root, f"{part}_list.txt", recipe.classes)

    # ---- speed

    def throughput(self) -> Outcome:
        """One minute of the job's own program on synthetic data, with a log as MODE=throughput writes it."""
        job, me = self.job, self.me
        recipe = config.recipe(job.recipe, global_batch=job.global_batch, image_size=job.image_size)
        # So many images that the rate stays low, as in a run's first minute.
        images = max(config.IMAGENET_TRAIN, job.global_batch)
        schedule = recipe.make_schedule(samples=images, global_batch=job.global_batch, epochs=math.ceil(recipe.epochs))
        plan = program.plan(job)
        _, fed = train.model_and_image(recipe, plan)
        with (
            events.open_log(Path(job.result_file) if me.is_first else None) as log,
            static.scope_guard(static.Scope()),
            paddle.utils.unique_name.guard(),
        ):
            dataset = {"name": "none", "train_samples": images, "eval_samples": 0, "synthetic": True}
            session.preamble(log, job, self.origins, me, recipe=recipe, dataset=dataset)
            main, startup, _ = train.training_program(job, recipe, plan, schedule, seed=SEED + me.rank)
            log.section("program", program.summary(main))
            self.executor.run(startup)
            program.broadcast_parameters(main, me)
            trainer = Trainer(
                executor=self.executor,
                main=main,
                global_batch=job.global_batch,
                print_steps=job.print_steps,
                ranks=me,
                log=log,
                progress=Progress("none", 0),
            )
            made = data.synthetic(fed, batch=job.batchsize, classes=recipe.classes, seed=SEED + me.rank)
            batch = loader.resident(made, self.executor.place)
            trainer.warm_up(batch)
            session.run_summary(log, job)
            session.start_clock(log, me)
            batches = itertools.repeat(batch)
            done = trainer.run(batches, steps=PROBE_STEPS, epoch=1, done=0, phase="warmup")
            wanted_s = SHORT_THROUGHPUT_S if self.short else THROUGHPUT_S
            steps = me.broadcast(max(1, round(wanted_s * done.steps / done.time_s)))
            timing = trainer.run(batches, steps=steps, epoch=1, done=done.steps, phase="measured")
            log.stop("run_stop", {"status": "success"})
            self.measured["memory_mib"] = me.gather(gpu_memory_mib(self.executor.place))
        rate = timing.images / timing.time_s
        published = self.published()
        beside = "; ".join(
            f"published {p['images_per_s']:g} ({p['source']}{p['note'] and '; '}{p['note']})" for p in published
        )
        return (
            True,  # a loss that is not finite ends the job
            f"{rate:.1f} images/s over {timing.time_s:.0f} s, batch {job.batchsize} x {me.size}; "
            f"{beside or 'none published for this machine, batch and number of devices'}",
            "the loss stays finite; the speed is for you to judge",
            {"images_per_s": rate, "time_s": timing.time_s, "images": timing.images, "published": published},
        )

    def published(self) -> list[dict[str, Any]]:
        """What others published for this GPU, batch and number of devices."""
        gpus = self.nodes[0]["gpus"][:1] if self.job.device == "gpu" else []
        return [
            figure
            for gpu in gpus
            for device in inspect.DEVICES
            if device.name in gpu["name"] and abs(device.memory_gib - gpu["memory_gib"]) <= NAMED_GIB
            for figure in inspect.published(
                device,
                workload=self.job.workload,
                precision=self.job.precision,
                batch=self.job.batchsize,
                ranks=self.me.size,
            )
        ]

    def memory(self) -> Outcome:
        """Most memory that a rank's allocator held up to the end of the timed minute."""
        peaks = [peak for peak in self.measured["memory_mib"] if peak is not None]
        if not peaks:
            raise NotPossible("no GPU: DEVICE=cpu")
        peak_gib, has_gib = max(peaks) / 1024, min(gpu["memory_gib"] for node in self.nodes for gpu in node["gpus"])
        return (
            True,  # a job that does not fit ended above, with the batch to lower
            f"{peak_gib:.1f} of {has_gib:g} GiB at batch {self.job.batchsize}",
            "the job fits; what is left is for you to judge",
            {"peak_gib": peak_gib, "has_gib": has_gib},
        )


def main(job: Job, origins: dict[str, Any], *, short: bool = False) -> None:
    """Runs the checks of the job's precision on this rank."""
    me = ranks.start(job)
    lines = Lines(Path(job.result_file) if me.is_first else None, job.precision)
    ranks.connect(job, me)
    paddle.enable_static()
    with memory.explained(job), ranks.lost_peer():
        machine = Machine(job, origins, me, short=short)
        lines.note({"nodes": machine.nodes})
        checks: dict[str, Callable[[], Outcome]] = {
            "losses": machine.losses,
            "layout": machine.layout,
            "input": machine.input,
            "all-reduce": machine.all_reduce,
            "evaluation": machine.evaluation,
            "throughput": machine.throughput,
            "memory": machine.memory,
        }
        for name in CHECKS[job.precision]:
            WATCHDOG.beat(f"checking {name}")
            lines.run(name, functools.partial(_unless_tf32_lacks, job, checks[name]))


def _unless_tf32_lacks(job: Job, check: Callable[[], Outcome]) -> Outcome:
    if job.precision == "tf32" and paddle.device.cuda.get_device_capability()[0] < TF32_CAPABILITY:
        raise NotPossible("TF32 needs compute capability 8.0 or later")
    return check()


# ---- comparing


def judge(found: np.ndarray, wanted: np.ndarray, tolerance: Tolerance) -> Outcome:
    """Losses [ranks, steps] against the `wanted` ones of the first steps."""
    steps = found.shape[1]
    off = np.abs(found - wanted[:steps]).max(axis=0) / wanted[:steps]
    bound = tolerance.by_step(steps)
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off / bound)))
    return (
        bool((off <= bound).all()),  # a NaN is not
        f"{off[worst]:.1e} of the loss off at step {worst + 1} of {steps}, {bound[worst]:.0e} allowed",
        f"at most {tolerance.early:.0e} off to step {EARLY_STEPS}, then {tolerance.late:.0e}: {tolerance.why}",
        {"losses": found.tolist(), "wanted": wanted[:steps].tolist(), "off": off.tolist()},
    )


def grey_levels(a: np.ndarray, b: np.ndarray) -> float:
    """Mean difference of normalized images [N, H, W, 3 or 4] in levels of 255; infinite where the 4th is not empty."""
    if a[..., 3:].any() or b[..., 3:].any():
        return math.inf
    return float(np.mean(np.abs(a - b)[..., :3] * np.array(data.STD)))


# ---- feeding


def as_fed(image: np.ndarray, wanted: data.ImageFormat) -> np.ndarray:
    """[N, 3, H, W] float32 in the layout, channels and type that a program is fed."""
    image = np.pad(image, ((0, 0), (0, wanted.channels - 3), (0, 0), (0, 0)))
    if wanted.layout == "NHWC":
        image = image.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(image, dtype=np.float16 if wanted.half else np.float32)


def pictures(folder: Path) -> data.ImageList:
    """A batch of made JPEG files in colour, 500 x 375, with detail of 16 pixels."""
    rng = np.random.default_rng(SEED)
    names = [f"{i}.jpeg" for i in range(BATCH)]
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / name, quality=90)
    return data.ImageList(root=folder, paths=tuple(names), labels=np.zeros(BATCH, dtype=np.int64))


def reader(image: data.ImageFormat, *, threads: int, device: str = "cpu", device_id: int = 0) -> data.ReaderConfig:
    """Of a pipeline that makes such images."""
    return data.ReaderConfig(batch=BATCH, image=image, device=device, device_id=device_id, threads=threads, seed=SEED)


def one_batch_each(
    images: data.ImageList, recipe: config.Recipe, wanted: data.ReaderConfig, copied: Callable[[Any], np.ndarray]
) -> list[np.ndarray]:
    """A batch of the training pipeline and one of the evaluation's, normalized, each `copied` to the host."""
    loaders = (
        data.Loader(images, _once(images), wanted, augment=recipe.augmentation),
        data.Loader(images, _once(images), wanted, resize=recipe.eval_resize),
    )
    read = [copied(next(source).image) for source in loaders]
    for source in loaders:
        source.close()
    return read


def _once(images: data.ImageList) -> sampling.Plan:
    """One batch of all of them."""
    return iter([(1, np.arange(len(images)), np.ones(len(images), dtype=bool))])


# ---- weights


def first_weights(recipe: config.Recipe) -> dict[str, np.ndarray]:
    """Weights that a recorded job starts from: rank 0's of the recorded seed, drawn on the CPU."""
    weights, _ = _forward(recipe, batch=BATCH)
    return weights


def _forward(
    recipe: config.Recipe,
    *,
    batch: int,
    start: dict[str, np.ndarray] | None = None,
    feed: dict[str, np.ndarray] | None = None,
) -> tuple[dict[str, np.ndarray], Any]:
    """On the CPU in FP32, from the first weights with `start` in them: the weights after one training forward pass of
    `feed`, and what the last layer read in it.
    """
    model, image = train.model_and_image(recipe, program.Plan(device="cpu"))
    main, startup = static.Program(), static.Program()
    startup.random_seed = SEED + 1  # as rank 0 has it
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        train.training_loss(image, batch, recipe, model)
    executor, read = static.Executor(paddle.CPUPlace()), None
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        program.set_weights(main, start or {})
        if feed:
            (layer,) = (op for op in main.global_block().ops if "fc.w" in op.input_arg_names)
            (read,) = executor.run(main, feed=feed, fetch_list=layer.input("X"))
        return {name: np.array(tensor) for name, tensor in program.state(main)}, read


def fitted_weights(batches: Images, recipe: config.Recipe) -> dict[str, np.ndarray]:
    """Weights that recognise digits without training: the first ones, with BN statistics of these images and a last
    layer that is the ridge regression of their classes on what it reads.
    """
    recipe = replace(recipe, bn_momentum=0.0)  # the statistics of these images replace the first ones
    image, label = (np.concatenate(part) for part in zip(*batches, strict=True))
    last = {k: np.full_like(v, RESIDUAL) for k, v in first_weights(recipe).items() if k.endswith(".3.bn.w")}
    weights, read = _forward(recipe, batch=len(image), start=last, feed={"image": image, "label": label})
    x = np.concatenate([read, np.ones((len(image), 1))], axis=1, dtype=np.float64)
    gram = x @ x.T
    ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    layer = x.T @ np.linalg.solve(gram + ridge, np.eye(recipe.classes)[label[:, 0]])
    return weights | {"fc.w": layer[:-1].astype(np.float32), "fc.b": layer[-1].astype(np.float32)}
