"""A run that has begun: its log, ranks, hooks and start; and what its log says between the steps."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paddle
from paddle import static

from harness import header, memory, ranks, sampling
from harness.hooks import Hook, checkpoint, resume, telemetry
from harness.hooks.watchdog import WATCHDOG
from harness.job import ClusterSettings, Job, ModelSettings, Origins
from harness.progress import Progress, Timing, usual_kind
from harness.ranks import Ranks
from harness.task import Task
from program import build
from runlog import schema
from runlog.writer import RunLog, open_log


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has begun, on this rank."""

    ranks: Ranks
    task: Task
    log: RunLog
    progress: Progress
    keeper: checkpoint.Keeper
    hooks: tuple[Hook, ...]  # the keeper among them
    start: resume.Start
    seed: int  # of the run: the same on every rank
    steps_per_epoch: int
    executor: static.Executor


@contextlib.contextmanager
def begin(job: Job, origins: Origins, me: Ranks, task: Task) -> Iterator[Run]:
    """Open the log of a run, write its header, connect the ranks, and give the run as a context.

    Everything that is known before the programs are built is written first. Every rank must call this, but only rank 0
    writes a log. The log is closed at the end of the context, as aborted if an error ended it.

    Args:
        job: The settings of the job.
        origins: The value of each setting with who set it, for the log's header.
        me: This process among the ranks of the job.
        task: The model, the data set and the schedule.

    Yields:
        The run: log, terminal output, checkpoints, start position, seed and executor.

    Raises:
        ValueError: The data set is smaller than a global batch, the log exists or cannot be created, the checkpoints in
            the run's folder are all damaged or do not fit this run or its settings, the run is done already, or
            CHECKPOINT_DIR cannot be written.
        RunError: Memory ran out, another rank was lost, or the ranks could not be connected.
    """
    samples = task.dataset.train_samples
    identity = identity_of(job.model, task)
    start = resume.find(job, me, identity)
    if start.position.epoch > task.epochs:
        fix = "set RESUME=no, and move it and the log away or set LOGDIR"
        raise ValueError(f"{start.path}: its run has done all of its {task.epochs} epochs: {fix}")
    if me.is_first:
        checkpoint.require_writable(job)
    seed = start.position.seed if start.is_from_checkpoint else me.comm.bcast(_seed(job.course.seed))
    steps = sampling.steps_per_epoch(samples, job.global_batch)
    total_steps = task.epochs * steps if job.course.trains else job.course.throughput_steps

    result_file = Path(job.trials.result_file)
    progress_kind = "none"
    if me.is_first:
        progress_kind = job.course.progress or usual_kind()
    with (
        open_log(result_file if me.is_first else None) as log,
        memory.explain_exhaustion(job.model.batchsize),
        ranks.lost_peer(),
        Progress(progress_kind, total_steps) as progress,
        checkpoint.Keeper(
            job, me, log, progress, start=start, identity=identity, seed=seed, steps_per_epoch=steps
        ) as keeper,
        contextlib.ExitStack() as stack,
    ):
        hooks: list[Hook] = []
        for hook in telemetry.of_rank(job.course, job.cluster, me, result_file):
            hooks.append(stack.enter_context(hook))
        hooks.append(keeper)
        header.write(log, job, origins, me, task, seed=seed, resumed=start.is_from_checkpoint)
        for note in (*task.notes, *start.notes):
            progress.warn(log, note)
        ranks.connect(job.cluster, me)
        paddle.enable_static()
        yield Run(
            ranks=me,
            task=task,
            log=log,
            progress=progress,
            keeper=keeper,
            hooks=tuple(hooks),
            start=start,
            seed=seed,
            steps_per_epoch=steps,
            executor=executor(job.cluster, me),
        )


def identity_of(model: ModelSettings, task: Task) -> dict[str, Any]:
    """Return the properties of a run that are stored in its checkpoints, and that decide whether a run may resume.

    All but four must equal those in the checkpoint, or the run does not resume. These four may differ, which only
    gives a warning (MAY_CHANGE of harness/hooks/resume.py):

        "train_sha256":  the SHA-256 of the names, sizes and labels of the training files; None if it is unknown or if
                         the data are synthetic, and then there is no warning
        "eval_sha256":   that of the evaluation files, likewise
        "train_order":   the form of the training samples, and a digest of their order; None for synthetic data
        "bn_span":       the number of images over which batch normalization takes its statistics

    Args:
        model: Settings of the model.
        task: The model, the data set and the schedule.

    Returns:
        The properties by name, as {"workload": "rn50", "precision": "fp32", "epochs": 90, ...}.
    """
    recipe = task.workload.recipe
    # The files by which the data are recognised. Images may be packed into records: `train_source` is of the files that
    # were packed (None if unknown or not packed), and `train` of what is read, records or images.
    files = task.dataset.train_source or task.dataset.train
    evaluation_files = task.dataset.eval_source or task.dataset.eval
    order: str | None = f"{task.dataset.form} {task.training_set.numbering()}"
    if task.dataset.synthetic:  # the data set may have files, but none of them is read
        files = None
        evaluation_files = None
        order = None
    return {
        "workload": model.workload,
        "recipe": recipe.name,
        "image_size": recipe.image_size,
        "precision": model.precision,
        "data": "synthetic" if task.dataset.synthetic else "real",  # as DATA names them
        "train_samples": task.dataset.train_samples,
        "epochs": task.epochs,
        resume.TRAIN_SHA256: files.sha256 if files else None,  # the key is "train_sha256"
        resume.EVAL_SHA256: evaluation_files.sha256 if evaluation_files else None,  # the key is "eval_sha256"
        resume.TRAIN_ORDER: order,  # the key is "train_order"
        resume.BN_SPAN: task.workload.bn_span,  # the key is "bn_span"
    }


def _seed(asked: int) -> int:
    """Return the seed of a run: the one that was asked for, or one from the operating system.

    Args:
        asked: SEED; -1 stands for one from the operating system.
    """
    return asked if asked >= 0 else secrets.randbits(31)


def executor(cluster: ClusterSettings, me: Ranks) -> build.Executor:
    """Return Paddle's executor for the device of this rank: its GPU, or the CPU.

    Args:
        cluster: Settings of the nodes and ranks, with the device.
        me: This process among the ranks. Its number on the node is that of its GPU.
    """
    place = paddle.CUDAPlace(me.local_rank) if cluster.on_gpu else paddle.CPUPlace()
    return build.Executor(place)


def start_clock(log: RunLog, ranks: Ranks) -> None:
    """Log the start of the timed run between two barriers; training data may be read only after this.

    Every rank must call this.

    Args:
        log: The log of the run.
        ranks: This process among the ranks of the job.
    """
    WATCHDOG.beat("waiting for the other ranks to be ready")
    log.mark(schema.INIT_STOP)
    ranks.comm.Barrier()
    log.mark(schema.RUN_START)
    ranks.comm.Barrier()


def log_telemetry(log: RunLog, ranks: Ranks, hooks: tuple[Hook, ...]) -> None:
    """Log a summary of what the nodes' samplers of sensors have measured; every rank must call this.

    Nothing is logged if there are no samplers.

    Args:
        log: The log of the run.
        ranks: This process among the ranks of the job.
        hooks: The hooks of this rank, in which its sampler is, if it has one.
    """
    mine = [hook.summary() for hook in hooks if isinstance(hook, telemetry.Sampler)]
    nodes = []
    for summaries in ranks.comm.allgather(mine):
        nodes.extend(summaries)
    if nodes:
        log.event(schema.TELEMETRY_SUMMARY, telemetry.summarize(nodes))


def log_throughput(log: RunLog, timing: Timing, epoch: int) -> None:
    """Log the throughput of an epoch, if steps were trained in it.

    There may be none if the run goes on from a checkpoint of an epoch's last step.

    Args:
        log: The log of the run.
        timing: Steps, images and seconds of the epoch's training, without its evaluation.
        epoch: Number of the epoch, from 1.
    """
    if not timing.steps:  # resumed after an epoch's last step, before its evaluation
        return
    value = schema.EpochThroughput(
        images=timing.images,
        time_s=round(timing.time_s, 6),
        images_per_s=timing.images / timing.time_s,
        data_wait_s=round(timing.data_wait_s, 6),
    )
    log.event(schema.EPOCH_THROUGHPUT, value, schema.InEpoch(epoch_num=epoch))
