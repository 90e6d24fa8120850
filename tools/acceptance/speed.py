"""The checks of an acceptance that measure: throughput, compared with what others published, and memory."""

import itertools
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
from runlog.verdict import OK, UNKNOWN, Verdict, judged
from runlog.writer import RunLog, open_log
from scoring.published.table import Card, Published, card_of, figures_of, nearest, note
from tools import inspect
from tools.acceptance.machine import SEED, Machine

THROUGHPUT_S, SHORT_THROUGHPUT_S = 60.0, 2.0
PROBE_STEPS = 10  # before the timed minute, to measure how long a step takes
MIN_SHARE_OF_PUBLISHED = 0.9
PUBLISHED_SIZE = 224  # pixels of a side, in every published figure


def throughput(machine: Machine) -> Verdict:
    """Train the job's own program on synthetic data for about a minute, and judge its images/s by published figures.

    In the short form it takes about two seconds. The first rank writes a log to the job's RESULT_FILE. All ranks must
    call this together.

    Args:
        machine: This rank's part of the machine. The peak memory of each rank is kept in it for `peak_memory`.
    """
    measured = _train_with_log(machine)
    machine.kept_by_check["throughput"] = measured.peak_memory_mib_by_rank  # for `peak_memory`
    return judge_rate(machine, measured.timed, measured.flops_per_image)


class TimedTraining(NamedTuple):
    """The images, time and energy of a timed training, of all ranks together."""

    images: int
    time_s: float
    joules: float | None  # of the GPUs; None if it was not measured


class MeasuredTraining(NamedTuple):
    """A training that was measured, and what its program takes."""

    timed: TimedTraining
    flops_per_image: float  # floating-point operations of training on one image
    peak_memory_mib_by_rank: list[float | None]  # of the GPU; None on a CPU


def _train_with_log(machine: Machine) -> MeasuredTraining:
    """Measure the speed, energy and GPU memory of the job's own training program, on synthetic data.

    The program is warmed up, then timed on one batch that stays on the device. The first rank writes a log to the job's
    RESULT_FILE, as a run does; the other ranks write none. All ranks must call this together.

    Args:
        machine: This rank's part of the machine, with the settings of the job.

    Returns:
        The images, time and energy of all ranks together, the floating-point operations of training on one image, and
        the peak GPU memory of each rank (None on a CPU).
    """
    job = machine.job
    me = machine.me
    log_path = Path(job.trials.result_file) if me.is_first else None
    # The program has a scope and names of its own, so that its tensors are gone when the check ends.
    with open_log(log_path) as log, static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        model = workload.of_job(job)
        training = _logged_program(machine, model, log)
        trainer = _trainer(machine, training, log)
        batch = _resident_batch(machine, model)
        trainer.warm_up(batch)
        log.event(schema.RUN_SUMMARY, header.summary_of(job))
        session.start_clock(log, me)  # writes to the log that the timed run starts
        timed = _time_training(machine, trainer, batch)
        log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        peak_mib_here = gpu_memory_mib(machine.executor.place)
    return MeasuredTraining(
        timed=timed,
        flops_per_image=counts_of(training.main)["flops"] / job.model.batchsize,
        peak_memory_mib_by_rank=me.comm.allgather(peak_mib_here),
    )


def _trainer(machine: Machine, training: build.TrainingProgram, log: RunLog) -> Trainer:
    """Return a trainer that launches the steps of a program, and writes to the log but not to the terminal."""
    return Trainer(
        step=LaunchedStep(machine.executor, training),
        global_batch=machine.job.global_batch,
        print_steps=machine.job.course.print_steps,
        ranks=machine.me,
        log=log,
        progress=Progress("none", 0),
    )


def _resident_batch(machine: Machine, model: workload.Workload) -> loader.Batch:
    """Return a synthetic batch in the memory of this rank's device; each rank has another one."""
    batch = model.synthetic(model.image, batch=machine.job.model.batchsize, seed=SEED + machine.me.rank)
    return loader.resident(batch, machine.executor.place)


def _time_training(machine: Machine, trainer: Trainer, batch: loader.Batch) -> TimedTraining:
    """Train for a fixed time on one batch; return the images, time and energy of all ranks together.

    The time is about THROUGHPUT_S (60) seconds, or SHORT_THROUGHPUT_S (2) in the short form. PROBE_STEPS (10) steps
    before it show how many steps that takes. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        trainer: Takes the steps. It has been warmed up.
        batch: The batch of every step, on this rank's device.
    """
    batches = itertools.repeat(batch)
    # A few steps show how many steps fit in that time.
    probe = trainer.run(batches, steps=PROBE_STEPS, epoch=1, done=0, phase="warmup")
    wanted_s = SHORT_THROUGHPUT_S if machine.short else THROUGHPUT_S
    steps_here = max(1, round(wanted_s * probe.steps / probe.time_s))
    steps = machine.me.comm.bcast(steps_here)  # from the first rank, so that all take the same number
    before_j = energy_j(machine)
    timing = trainer.run(batches, steps=steps, epoch=1, done=probe.steps, phase="measured")
    after_j = energy_j(machine)
    joules = None  # if NVML does not count the energy
    if before_j is not None and after_j is not None:
        joules = after_j - before_j
    return TimedTraining(timing.images, timing.time_s, joules)


def _logged_program(machine: Machine, model: workload.Workload, log: RunLog) -> build.TrainingProgram:
    """Return the job's training program, ready for its first step, with the same parameters on all ranks.

    No step is taken here. All ranks must call this together.

    Args:
        machine: This rank's part of the machine, with the settings of the job.
        model: The job's model.
        log: Gets a preamble, which says that synthetic data is trained on, and a summary of the program.
    """
    job = machine.job
    me = machine.me
    # Synthetic data has no number of images, but the schedule of the learning rate needs one, at least a global batch.
    # With ImageNet's, the learning rate is that of the first steps of a run on ImageNet.
    images = max(config.IMAGENET_TRAIN, job.global_batch)
    dataset = schema.Dataset(name="none", train_samples=images, eval_samples=0, synthetic=True)
    header.preamble(log, job, machine.origins, me, recipe=model.recipe, dataset=dataset)
    schedule = model.recipe.make_schedule(samples=images, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=SEED + me.rank)
    log.section(schema.PROGRAM, schema.Program(**build.summary(training)))
    machine.executor.run(training.startup)  # draws the first parameters; each rank has a seed and so others
    state.broadcast_parameters(training.main, me)  # gives all ranks those of the first rank, as a run does
    return training


def energy_j(machine: Machine) -> float | None:
    """Return the joules that the GPUs of all ranks have taken since their drivers were loaded, by NVML's counters.

    All ranks must call this together. The difference of two calls is the energy taken between them.

    Args:
        machine: This rank's part of the machine.

    Returns:
        The sum over the ranks. None on a CPU, or if NVML does not count the energy of one of the GPUs.
    """
    with nvidia.opened() as (handles, _):
        own_j = nvidia.energy_j(handles[machine.me.local_rank]) if handles else None
    joules_of_each_rank: list[float | None] = machine.me.comm.allgather(own_j)
    total_j = 0.0
    for joules in joules_of_each_rank:
        if joules is None:
            return None
        total_j += joules
    return total_j


def judge_rate(machine: Machine, timed: TimedTraining, flops_per_image: float) -> Verdict:
    """Return the verdict on a training's speed: whether its images/s reach 90 % of a rate published for the same card.

    Of the published rates, the nearest in batch size counts; of several such rates, the nearest in number of devices.
    That rate is divided by its devices and multiplied by the ranks here: 2800 images/s of 8 devices are 350 of a
    device, or 1400 of 4 ranks.

    Args:
        machine: This rank's part of the machine, with the settings of the job.
        timed: The images, time and energy of the training, of all ranks together.
        flops_per_image: Floating-point operations of training on one image, for the share of the card's peak.

    Returns:
        Unknown if no rate is published for the card, model, precision and image size, as for a CPU or for unlike GPUs.
        Otherwise ok if the training's rate reaches MIN_SHARE_OF_PUBLISHED (0.9) of the published one, and fatal if it
        does not.
    """
    card = _card_of_machine(machine)
    measured = _rate_of_training(machine, card, timed, flops_per_image)
    found = _text_of_rate(machine, measured)
    published = _nearest_published(machine, card)
    if published is None:
        found += "; none published for these devices, precision and image size"
        figures = measured._asdict() | {"published": []}
        return Verdict(check="throughput", status=UNKNOWN, found=found, figures=figures)

    least_rate = MIN_SHARE_OF_PUBLISHED * _rate_of_device(published) * machine.me.size  # images/s of all ranks
    is_fast_enough = measured.images_per_s >= least_rate
    figures = measured._asdict() | {"published": [inspect.quoted(published)]}
    wanted = _text_of_wanted_rate(least_rate, published)  # ends with "2800 at batch 256 x 8 (...)", the published rate
    fix = "look at clocks, power limit and links by ./run_and_time.sh --check, and take that batch"
    return judged("throughput", is_fast_enough, found, wanted, fix, figures=figures)


def _rate_of_device(published: Published) -> float:
    """Return the images/s of one device, by a published rate of several together."""
    assert published.devices is not None  # `_nearest_published` returns no figure without a number of devices
    return published.value / published.devices


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
    """Return the rate of a timed training, in images/s, as a share of the cards' peak, and in images for each joule.

        share = flops_per_image * images/s / (peak flops/s of a card * ranks)

    Args:
        machine: This rank's part of the machine, for the job's precision and the number of ranks.
        card: The model of the GPUs; None on a CPU or if it is not known.
        timed: The images, time and energy of the training, of all ranks together.
        flops_per_image: Floating-point operations of training on one image.
    """
    images_per_s = timed.images / timed.time_s
    peak_of_card = card.peak(machine.job.model.precision) if card else None  # in flops/s
    flops_utilization = None  # if the card, or its peak in the job's precision, is not known
    if peak_of_card:
        flops_per_s = flops_per_image * images_per_s
        flops_utilization = flops_per_s / (peak_of_card * machine.me.size)
    images_per_joule = None  # if the energy was not measured
    if timed.joules:
        images_per_joule = timed.images / timed.joules
    return MeasuredRate(
        images_per_s=images_per_s,
        time_s=timed.time_s,
        images=timed.images,
        flops_utilization=flops_utilization,
        images_per_joule=images_per_joule,
    )


def _nearest_published(machine: Machine, card: Card | None) -> Published | None:
    """Return the published rate of this card, model and precision that is nearest in batch and number of devices.

    Args:
        machine: This rank's part of the machine, with the settings of the job.
        card: The model of the GPUs; None on a CPU or if it is not known.

    Returns:
        The rate. None if there is none, the card is not known, or the job's images do not have PUBLISHED_SIZE (224)
        pixels a side.
    """
    job = machine.job
    if card is None or job.hyperparameters.image_size != PUBLISHED_SIZE:
        return None
    of_card = figures_of(card, model=job.model.row.model, precision=job.model.precision)
    return nearest(of_card, batch=job.model.batchsize, devices=machine.me.size)


def _card_of_machine(machine: Machine) -> Card | None:
    """Return the card of the job's GPUs; None on a CPU, if it is not known, or if the GPUs are of several kinds."""
    cards: set[Card | None] = set()
    for node in machine.nodes:
        gpus_of_job = node.gpus[: machine.job.cluster.dgxngpu]
        cards.update(card_of(gpu.name, gpu.memory_gib) for gpu in gpus_of_job)
    if not machine.job.cluster.on_gpu or len(cards) != 1:
        return None
    return cards.pop()


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
        f"{least_rate:.1f} images/s: {MIN_SHARE_OF_PUBLISHED:.0%} of the nearest published figure a device, "
        f"{published.printed} at batch {published.batch_per_device} x {published.devices} ({source})"
    )


def peak_memory(machine: Machine) -> Verdict:
    """Report the most GPU memory that any rank's allocator held in the check `throughput`, and what the GPUs have.

    The verdict is always ok, because a job that does not fit fails in `throughput`.

    Args:
        machine: This rank's part of the machine. It holds what `throughput` measured.

    Raises:
        RunError: The check `throughput` has failed.
    """
    peaks_mib = machine.kept_by("throughput")  # of each rank
    gpu_sizes_gib: list[float] = []
    for node in machine.nodes:
        gpu_sizes_gib.extend(gpu.memory_gib for gpu in node.gpus if gpu.memory_gib)
    smallest_gib = min(gpu_sizes_gib, default=None)  # None if no GPU reports its size
    peak_gib = max(peaks_mib) / 1024
    batch = machine.job.model.batchsize
    found = f"{peak_gib:.1f} GiB at batch {batch}; the memory of the GPUs is unknown"
    if smallest_gib is not None:
        found = f"{peak_gib:.1f} of {six_digits(smallest_gib)} GiB at batch {batch}"
    figures = {"peak_gib": peak_gib, "has_gib": smallest_gib}
    return Verdict(check="memory", status=OK, found=found, wanted="the job fits", figures=figures)
