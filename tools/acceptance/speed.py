"""The checks of an acceptance that measure: throughput beside what others published, and memory."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import paddle
from paddle import static

from harness import loader, session, state, workload
from harness.loop import LaunchedStep, Trainer, gpu_memory_mib
from harness.progress import Progress
from paddle_rn50 import config
from program import build
from runlog import schema
from runlog.verdict import Verdict, judged
from runlog.writer import open_log
from tools import inspect
from tools.acceptance.lines import NotPossible
from tools.acceptance.machine import Machine
from tools.acceptance.reference import SEED

THROUGHPUT_S, SHORT_THROUGHPUT_S = 60.0, 2.0
PROBE_STEPS = 10  # how long a step takes, before the timed minute
NAMED_GIB = 1.5  # a GPU named 40 GB has 39.4 to 40 GiB for NVML


def throughput(machine: Machine) -> Verdict:
    """One minute of the job's own program on synthetic data, with a log as MODE=throughput writes it."""
    job, me = machine.job, machine.me
    # So many images that the rate stays low, as in a run's first minute.
    images = max(config.IMAGENET_TRAIN, job.global_batch)
    model = workload.of_job(job)
    schedule = model.recipe.make_schedule(samples=images, global_batch=job.global_batch)
    with (
        open_log(Path(job.result_file) if me.is_first else None) as log,
        static.scope_guard(static.Scope()),
        paddle.utils.unique_name.guard(),
    ):
        dataset = schema.Dataset(name="none", train_samples=images, eval_samples=0, synthetic=True)
        session.preamble(log, job, machine.origins, me, recipe=model.recipe, dataset=dataset)
        training = model.training_program(schedule, seed=SEED + me.rank)
        log.section(schema.PROGRAM, schema.Program(**build.summary(training)))
        machine.executor.run(training.startup)
        state.broadcast_parameters(training.main, me)
        trainer = Trainer(
            step=LaunchedStep(machine.executor, training),
            global_batch=job.global_batch,
            print_steps=job.print_steps,
            ranks=me,
            log=log,
            progress=Progress("none", 0),
        )
        made = model.synthetic(model.image, batch=job.batchsize, seed=SEED + me.rank)
        batch = loader.resident(made, machine.executor.place)
        trainer.warm_up(batch)
        session.run_summary(log, job)
        session.start_clock(log, me)
        batches = itertools.repeat(batch)
        done = trainer.run(batches, steps=PROBE_STEPS, epoch=1, done=0, phase="warmup")
        wanted_s = SHORT_THROUGHPUT_S if machine.short else THROUGHPUT_S
        steps = me.broadcast(max(1, round(wanted_s * done.steps / done.time_s)))
        timing = trainer.run(batches, steps=steps, epoch=1, done=done.steps, phase="measured")
        log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        machine.measured["throughput"] = me.gather(gpu_memory_mib(machine.executor.place))
    rate = timing.images / timing.time_s
    others = published(machine)
    beside = "; ".join(
        f"published {p['images_per_s']:g} ({p['source']}{p['note'] and '; '}{p['note']})" for p in others
    )
    return judged(
        "throughput",
        True,  # a loss that is not finite ends the check
        f"{rate:.1f} images/s over {timing.time_s:.0f} s, batch {job.batchsize} x {me.size}; "
        f"{beside or 'none published for this machine, batch and number of devices'}",
        "the loss stays finite; the speed is for you to judge",
        figures={"images_per_s": rate, "time_s": timing.time_s, "images": timing.images, "published": others},
    )


def published(machine: Machine) -> list[dict[str, Any]]:
    """What others published for this GPU, batch and number of devices."""
    gpus = machine.nodes[0].gpus[:1] if machine.job.device == "gpu" else []
    return [
        figure
        for gpu in gpus
        for device in inspect.DEVICES
        if device.name in (gpu.name or "") and abs(device.memory_gib - (gpu.memory_gib or 0)) <= NAMED_GIB
        for figure in inspect.published(
            device,
            workload=machine.job.workload,
            precision=machine.job.precision,
            batch=machine.job.batchsize,
            ranks=machine.me.size,
        )
    ]


def peak_memory(machine: Machine) -> Verdict:
    """Most memory that a rank's allocator held up to the end of the timed minute."""
    if machine.job.device == "cpu":
        raise NotPossible("no GPU: DEVICE=cpu")
    peaks = machine.of_earlier("throughput")
    has_gib = [gpu.memory_gib for node in machine.nodes for gpu in node.gpus if gpu.memory_gib]
    peak_gib, least_gib = max(peaks) / 1024, min(has_gib, default=math.nan)
    return judged(
        "memory",
        True,  # a job that does not fit failed above, with the batch to lower
        f"{peak_gib:.1f} of {least_gib:g} GiB at batch {machine.job.batchsize}",
        "the job fits; what is left is for you to judge",
        figures={"peak_gib": peak_gib, "has_gib": least_gib if has_gib else None},
    )
