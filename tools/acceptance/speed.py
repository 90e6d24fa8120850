"""The checks of an acceptance that measure: throughput beside what others published, and memory."""

import itertools
import math
from pathlib import Path
from typing import NamedTuple

import paddle
from paddle import static

from harness import header, loader, nvidia, session, state, workload
from harness.loop import LaunchedStep, Trainer, gpu_memory_mib
from harness.progress import Progress
from paddle_rn50 import config
from program import build
from program.count import counts_of
from runlog import schema
from runlog.digits import percent, significant, six_digits
from runlog.json_types import JsonObject
from runlog.verdict import OK, UNKNOWN, Verdict, judged
from runlog.writer import RunLog, open_log
from scoring.published.table import Card, Published, card_of, figures_of, nearest, note
from tools import inspect
from tools.acceptance.machine import SEED, Machine

THROUGHPUT_S, SHORT_THROUGHPUT_S = 60.0, 2.0
PROBE_STEPS = 10  # before the timed minute, to measure how long a step takes
LEAST_SHARE_OF_PUBLISHED = 0.9
PUBLISHED_SIZE = 224  # pixels of a side, in every published figure


def throughput(machine: Machine) -> Verdict:
    """Train the job's own program on synthetic data for about a minute, and judge its images/s by published figures.

    The first rank writes a log to the job's RESULT_FILE. The largest GPU memory of each rank is kept for a later check,
    `memory`. All ranks must call this together.
    """
    measured = _train_with_log(machine)
    machine.kept_by_check["throughput"] = measured.peak_memory_mib_by_rank  # `peak_memory` reads it
    return judge_rate(machine, measured.timed, measured.flops_per_image)


class TimedTraining(NamedTuple):
    """The images, time and energy of a timed training, of all ranks together."""

    images: int
    time_s: float
    joules: float  # of the GPUs; NaN if it was not measured


class MeasuredTraining(NamedTuple):
    """A training that was measured, and what its program takes."""

    timed: TimedTraining
    flops_per_image: float  # floating-point operations of training on one image
    peak_memory_mib_by_rank: list[float | None]  # of the GPU; None on a CPU


def _train_with_log(machine: Machine) -> MeasuredTraining:
    """Train the job's own program on one synthetic batch for about a minute, and return what was measured.

    The first rank writes the log of a run, to the job's RESULT_FILE. All ranks must call this together.
    """
    job = machine.job
    me = machine.me
    model = workload.of_job(job)
    with (
        open_log(Path(job.trials.result_file) if me.is_first else None) as log,
        static.scope_guard(static.Scope()),
        paddle.utils.unique_name.guard(),
    ):
        training = _logged_program(machine, model, log)
        trainer = Trainer(
            step=LaunchedStep(machine.executor, training),
            global_batch=job.global_batch,
            print_steps=job.course.print_steps,
            ranks=me,
            log=log,
            progress=Progress("none", 0),
        )
        synthetic = model.synthetic(model.image, batch=job.model.batchsize, seed=SEED + me.rank)
        batch = loader.resident(synthetic, machine.executor.place)
        trainer.warm_up(batch)
        # The lines that the log of a run has before its first timed step.
        log.event(schema.RUN_SUMMARY, header.summary_of(job))
        session.start_clock(log, me)
        timed = _time_training(machine, trainer, batch)
        log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        peak_memory_mib_by_rank = me.comm.allgather(gpu_memory_mib(machine.executor.place))
    flops_per_image = counts_of(training.main)["flops"] / job.model.batchsize
    return MeasuredTraining(timed, flops_per_image, peak_memory_mib_by_rank)


def _time_training(machine: Machine, trainer: Trainer, batch: loader.Batch) -> TimedTraining:
    """Train on `batch` for THROUGHPUT_S, or for SHORT_THROUGHPUT_S in the short form; return what it took.

    All ranks must call this together.
    """
    batches = itertools.repeat(batch)
    # These steps show how many steps fit in that time.
    probe = trainer.run(batches, steps=PROBE_STEPS, epoch=1, done=0, phase="warmup")
    wanted_s = SHORT_THROUGHPUT_S if machine.short else THROUGHPUT_S
    steps_here = max(1, round(wanted_s * probe.steps / probe.time_s))
    steps = machine.me.comm.bcast(steps_here)  # from the first rank, so that all take the same number
    before_j = energy_j(machine)
    timing = trainer.run(batches, steps=steps, epoch=1, done=probe.steps, phase="measured")
    return TimedTraining(timing.images, timing.time_s, joules=energy_j(machine) - before_j)


def _logged_program(machine: Machine, model: workload.Workload, log: RunLog) -> build.TrainingProgram:
    """Build the job's training program, start it with the same parameters on all ranks, and return it.

    The log gets what a run on synthetic data writes first: the preamble, which says what is trained, and a summary of
    the program. All ranks must call this together, because the first rank's parameters are broadcast.
    """
    job = machine.job
    me = machine.me
    # The number of images sets the schedule. With a large one the learning rate is still in its warm-up, as in the
    # first minute of a run.
    images = max(config.IMAGENET_TRAIN, job.global_batch)
    dataset = schema.Dataset(name="none", train_samples=images, eval_samples=0, synthetic=True)
    header.preamble(log, job, machine.origins, me, recipe=model.recipe, dataset=dataset)
    schedule = model.recipe.make_schedule(samples=images, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=SEED + me.rank)
    log.section(schema.PROGRAM, schema.Program(**build.summary(training)))
    machine.executor.run(training.startup)
    state.broadcast_parameters(training.main, me)  # from the first rank: each rank drew others from its own seed
    return training


def energy_j(machine: Machine) -> float:
    """Return the joules that the GPUs of all ranks have taken since their drivers were loaded, by NVML's counters.

    NaN if NVML does not count for one of them, or on a CPU. All ranks must call this together.
    """
    with nvidia.opened() as (handles, _):
        mine_j = nvidia.energy_j(handles[machine.me.local_rank]) if handles else None
    total_j: float = machine.me.comm.allreduce(math.nan if mine_j is None else mine_j)
    return total_j


def judge_rate(machine: Machine, timed: TimedTraining, flops_per_image: float) -> Verdict:
    """Judge the images/s of a training, of all ranks together, by the nearest published rate of this card.

    - Nothing is published for this card, precision and size of images: unknown.
    - The rate is at least LEAST_SHARE_OF_PUBLISHED of what the published rate of a device makes for all ranks: ok.
    - Otherwise: fatal.

    `flops_per_image` is the number of floating-point operations of training on one image; it gives the share of the
    card's peak in the verdict's text.
    """
    card = _card_of_machine(machine)
    measured = _rate_of_training(machine, card, timed, flops_per_image)
    found = _text_of_rate(machine, measured)
    published = _nearest_published(machine, card)
    # `nearest` only returns figures with a number of devices.
    if published is None or published.devices is None:
        figures: JsonObject = {**measured._asdict(), "published": []}
        unpublished = f"{found}; none published for this card, precision and image size"
        return Verdict(check="throughput", status=UNKNOWN, found=unpublished, figures=figures)

    figures = {**measured._asdict(), "published": [inspect.quoted(published)]}
    published_rate_of_device = published.value / published.devices
    least_rate = LEAST_SHARE_OF_PUBLISHED * published_rate_of_device * machine.me.size
    wanted = _text_of_wanted_rate(least_rate, published)
    # "that batch": the batch of the published figure, which the text names.
    fix = "look at clocks, power limit and links by ./run_and_time.sh --check, and take that batch"
    return judged("throughput", measured.images_per_s >= least_rate, found, wanted, fix, figures=figures)


class MeasuredRate(NamedTuple):
    """The rate of a training, as the figures of its verdict."""

    images_per_s: float  # of all ranks together
    time_s: float
    images: int
    flops_utilization: float | None  # share of the cards' peak; None if the card or its peak is not known
    images_per_joule: float | None  # None if the energy was not measured


def _rate_of_training(
    machine: Machine, card: Card | None, timed: TimedTraining, flops_per_image: float
) -> MeasuredRate:
    """Return the rate of a timed training, with its share of the cards' peak and the images for each joule."""
    images_per_s = timed.images / timed.time_s
    peak_flops_per_s = card.peak(machine.job.model.precision) if card else None  # of one card
    flops_utilization = None
    if peak_flops_per_s:
        flops_utilization = flops_per_image * images_per_s / (peak_flops_per_s * machine.me.size)
    images_per_joule = None
    if timed.joules > 0:  # which NaN, "not measured", is not
        images_per_joule = timed.images / timed.joules
    return MeasuredRate(images_per_s, timed.time_s, timed.images, flops_utilization, images_per_joule)


def _nearest_published(machine: Machine, card: Card | None) -> Published | None:
    """Return the published figure of this card, model and precision that is nearest in batch and number of devices.

    None if there is none, the card is not known, or the job's images do not have PUBLISHED_SIZE.
    """
    job = machine.job
    if card is None or job.hyperparameters.image_size != PUBLISHED_SIZE:
        return None
    of_card = figures_of(card, model=job.model.row.model, precision=job.model.precision)
    return nearest(of_card, batch=job.model.batchsize, devices=machine.me.size)


def _card_of_machine(machine: Machine) -> Card | None:
    """Return the card of the machine's first GPU; None on a CPU, or if the card is not known."""
    if machine.job.cluster.device != "gpu" or not machine.nodes[0].gpus:
        return None
    gpu = machine.nodes[0].gpus[0]
    return card_of(gpu.name, gpu.memory_gib)


def _text_of_rate(machine: Machine, measured: MeasuredRate) -> str:
    """Return a measured rate as text; figures that are None are left out."""
    batch = machine.job.model.batchsize
    text = f"{measured.images_per_s:.1f} images/s over {measured.time_s:.0f} s, batch {batch} x {machine.me.size}"
    if measured.flops_utilization is not None:
        text += f", {percent(measured.flops_utilization)} of the card's peak"
    if measured.images_per_joule is not None:
        text += f", {significant(measured.images_per_joule, digits=3)} images/J"
    return text


def _text_of_wanted_rate(least_rate: float, published: Published) -> str:
    """Return the rate that a training must reach as text, with the published figure that the rate comes from."""
    source = published.source
    if note(published):
        source += f"; {note(published)}"
    return (
        f"{least_rate:.1f} images/s: {LEAST_SHARE_OF_PUBLISHED:.0%} of the nearest published figure a device, "
        f"{published.printed} at batch {published.batch_per_device} x {published.devices} ({source})"
    )


def peak_memory(machine: Machine) -> Verdict:
    """Report the largest GPU memory that any rank's allocator held during the check `throughput`.

    It is shown with the memory of the smallest GPU. If no GPU reports its memory, that is NaN in the text and None in
    the figures. The verdict is always ok: a job that does not fit fails in `throughput`, and the user decides how much
    memory should be left. Raises RunError if `throughput` has failed.
    """
    peaks_mib = machine.kept_by("throughput")
    gpu_sizes_gib: list[float] = []
    for node in machine.nodes:
        gpu_sizes_gib.extend(gpu.memory_gib for gpu in node.gpus if gpu.memory_gib)
    smallest_gib = min(gpu_sizes_gib, default=math.nan)  # NaN if no GPU reports its memory
    peak_gib = max(peaks_mib) / 1024
    found = f"{peak_gib:.1f} of {six_digits(smallest_gib)} GiB at batch {machine.job.model.batchsize}"
    figures = {"peak_gib": peak_gib, "has_gib": smallest_gib if gpu_sizes_gib else None}
    return Verdict(check="memory", status=OK, found=found, wanted="the job fits", figures=figures)
