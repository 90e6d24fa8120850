"""The course of a run that every workload shares: preamble of the log, training to a target, measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import paddle
from mlperf_logging.mllog import constants as keys

from harness import caches, program, provenance, telemetry
from harness.checkpoint import BEGINNING, Start
from harness.env import Job
from harness.errors import RunError
from harness.events import RunLog
from harness.loop import Timing, Trainer
from harness.progress import Progress
from harness.ranks import Ranks
from harness.schedules import Schedule
from harness.watchdog import WATCHDOG


def preamble(
    log: RunLog, job: Job, origins: dict[str, Any], ranks: Ranks, *, recipe: Any, dataset: dict[str, Any]
) -> None:
    """Provenance, submission and cache events, up to `init_start`; `recipe` is the workload's frozen dataclass."""
    nodes = {node["host"]: node for node in ranks.gather(provenance.node())}
    log.header(
        {
            "source": provenance.source(job.source_commit, job.image_digest),
            "config": origins | _flat("RECIPE", recipe, f"{job.package}/config.py"),
            "packages": provenance.packages(),
            "hardware": {"nodes": list(nodes.values()), "device": job.device, "math_mode": job.precision},
            "dataset": dataset,
        }
    )
    log.event(keys.SUBMISSION_BENCHMARK, {"rn50": "resnet"}.get(job.workload, job.workload))
    log.event(keys.SUBMISSION_ORG, job.submission_org)
    log.event(keys.SUBMISSION_DIVISION, job.submission_division)
    log.event(keys.SUBMISSION_STATUS, job.submission_status)
    log.event(keys.SUBMISSION_PLATFORM, job.submission_platform or job.dgxsystem)
    done = None
    WATCHDOG.beat("flushing the page cache and building the programs")
    if ranks.local_rank == 0:
        done = caches.clear(wanted=bool(job.clear_caches), done_by_launcher=job.cache_cleared)
    for node in ranks.gather({"node": ranks.node, **done} if done else None):
        if node:
            log.event(keys.CACHE_CLEAR, node["status"] == "done", node)
    log.start(keys.INIT_START)


def _flat(prefix: str, value: Any, origin: str) -> dict[str, Any]:
    """{"PREFIX.field": {"value", "origin"}} of a dataclass, nested ones flattened."""
    flat: dict[str, Any] = {}
    for f in fields(value):
        name, item = f"{prefix}.{f.name}", getattr(value, f.name)
        flat |= _flat(name, item, origin) if is_dataclass(item) else {name: {"value": item, "origin": origin}}
    return flat


def identity(job: Job, recipe: Any, *, train_samples: int, epochs: int) -> dict[str, Any]:
    """What a checkpoint's state depends on: a run may go on only from one with the same."""
    return {
        "workload": job.workload,
        "recipe": recipe.name,
        "image_size": recipe.image_size,
        "precision": job.precision,
        "train_samples": train_samples,
        "epochs": epochs,
    }


def log_optimizer(log: RunLog, schedule: Schedule, optimizer: Any, *, warmup_epochs: float) -> None:
    """Hyperparameters of the optimizer under the names of the ruleset; rates are of the global batch."""
    log.event(keys.OPT_NAME, optimizer.kind)
    log.event(keys.OPT_LR_WARMUP_EPOCHS if optimizer.kind == "sgd" else keys.LARS_OPT_LR_WARMUP_EPOCHS, warmup_epochs)
    prefix = f"{optimizer.kind}_opt"
    for name, value in (
        ("base_learning_rate", schedule.base),
        ("end_learning_rate", schedule.end),
        ("learning_rate_decay_poly_power", schedule.power),
        ("learning_rate_decay_steps", schedule.total_steps),
        ("momentum", optimizer.momentum),
        ("weight_decay", optimizer.weight_decay),
    ):
        log.event(f"{prefix}_{name}", value)
    if optimizer.kind == "lars":
        log.event(keys.LARS_EPSILON, optimizer.lars_epsilon)


def run_summary(log: RunLog, job: Job, *, model: str, resumed: bool = False) -> None:
    """What a score must know of a run, written before it starts so that a truncated log has it too."""
    log.event(
        "run_summary",
        {
            "devices": job.world_size,
            "nodes": job.dgxnnodes,
            "batch_per_device": job.batchsize,
            "precision": job.precision,
            "math_mode": job.precision,
            "mode": job.mode,
            "data": job.data,
            "resumed": resumed,
            "profiled": bool(job.profile),
            "framework": f"paddlepaddle {paddle.__version__}",
            "model": model,
        },
    )


def start_clock(log: RunLog, ranks: Ranks) -> None:
    """Ends the preparation; from here on training data may be touched. A barrier stands on both sides."""
    WATCHDOG.beat("waiting for the other ranks to be ready")
    log.stop(keys.INIT_STOP)
    ranks.barrier()
    log.start(keys.RUN_START)
    ranks.barrier()


def log_telemetry(log: RunLog, ranks: Ranks, sampler: telemetry.Sampler | None) -> None:
    """Sums up what the nodes' samplers saw."""
    nodes = [node for node in ranks.gather(sampler.summary() if sampler else None) if node]
    if nodes:
        log.event("telemetry_summary", telemetry.summarize(nodes))


def measure(job: Job, trainer: Trainer, batches: Iterator[Any]) -> None:
    """Throughput mode: warm-up steps, then the measured ones, without evaluation."""
    trainer.run(batches, steps=job.warmup_steps, epoch=1, done=0, phase="warmup")
    trainer.run(batches, steps=job.measured_steps, epoch=1, done=job.warmup_steps, phase="measured")


def train_to_target(
    trainer: Trainer,
    batches: Iterator[Any],
    evaluate: Callable[[], float],
    *,
    epochs: int,
    steps_per_epoch: int,
    eval_epochs: list[int],
    target: float,
    progress: Progress,
    start: Start = BEGINNING,
) -> None:
    """Trains epoch by epoch from `start` until an evaluation reaches `target`.

    A block of the log is the epochs up to an evaluation and the evaluation itself.

    Raises:
        RunError: the target was not reached in `epochs` epochs.
    """
    log, quality, previous = trainer.log, float("nan"), start.epoch - 1
    for last in (e for e in eval_epochs if e >= start.epoch):
        block = {"first_epoch_num": previous + 1, "epoch_count": last - previous}
        log.start(keys.BLOCK_START, block)
        for epoch in range(previous + 1, last + 1):
            log.start(keys.EPOCH_START, {"epoch_num": epoch})
            left_out = start.epoch_step if epoch == start.epoch else 0
            done = (epoch - 1) * steps_per_epoch + left_out
            timing = trainer.run(batches, steps=steps_per_epoch - left_out, epoch=epoch, done=done, phase="train")
            log.stop(keys.EPOCH_STOP, {"epoch_num": epoch})
            _log_throughput(log, timing, epoch)
            if trainer.keeper and epoch < last:
                trainer.keeper.epoch_ended(trainer.main, epoch)
        log.start(keys.EVAL_START, {"epoch_num": last})
        program.average_statistics(trainer.main, trainer.ranks)
        quality = evaluate()
        log.stop(keys.EVAL_STOP, {"epoch_num": last})
        log.event(keys.EVAL_ACCURACY, quality, {"epoch_num": last})
        log.stop(keys.BLOCK_STOP, block)
        progress.say(f"epoch {last} evaluation {quality:.4f} (target {target:.4f})")
        if quality >= target:
            return
        if trainer.keeper:
            trainer.keeper.epoch_ended(trainer.main, last)
        previous = last
    # Asked of all ranks, so that none ends the job while rank 0 still writes its last checkpoint.
    kept = f"; {trainer.keeper.last_good}" if trainer.keeper else ""
    raise RunError(f"evaluation is {quality:.4f} after {epochs} epochs, below the target {target:.4f}{kept}")


def _log_throughput(log: RunLog, timing: Timing, epoch: int) -> None:
    if not timing.steps:  # resumed after an epoch's last step, before its evaluation
        return
    value = {
        "images": timing.images,
        "time_s": round(timing.time_s, 6),
        "images_per_s": timing.images / timing.time_s,
        "data_wait_s": round(timing.data_wait_s, 6),
    }
    log.event("epoch_throughput", value, {"epoch_num": epoch})
