"""A run that has begun: its log, ranks, hooks and start; and what its log says before and between the steps."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import paddle
from paddle import static

from harness import env, memory, provenance, ranks, sampling
from harness.embedded import make_once
from harness.hooks import Hook, checkpoint, telemetry
from harness.hooks.watchdog import WATCHDOG
from harness.job import ClusterSettings, DataSettings, Job, ModelSettings, Origins
from harness.passport import Samples, Surveyed, survey
from harness.progress import Progress, Timing
from harness.ranks import Ranks
from harness.workload import Workload
from program import build
from program.optimizers import KINDS, Schedule
from program.strategy import Strategy
from runlog import schema
from runlog.writer import RunLog, open_log

LOOK_S = 3600.0  # that the first rank may look at a data set on a slow disk; meanwhile it watches itself


@dataclass(frozen=True, kw_only=True)
class Task:
    """The model, data set and schedule of a run, checked before a log is begun."""

    workload: Workload
    dataset: schema.Dataset  # its samples are those of an epoch
    samples: Any  # of the training, and of the evaluations
    eval_samples: Any
    eval_image: Any  # format of an evaluation's images
    eval_batch: int  # images a rank
    epochs: int  # at most
    schedule: Schedule
    notes: tuple[str, ...] = ()  # what a user should know of the data set

    def append_evaluation(self) -> None:
        """Append the operators of an evaluation to the default program."""
        self.workload.evaluation_totals(self.eval_image, self.eval_batch)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has begun, on this rank."""

    ranks: Ranks
    task: Task
    log: RunLog
    progress: Progress
    keeper: checkpoint.Keeper
    hooks: tuple[Hook, ...]  # the keeper among them
    start: checkpoint.Start
    seed: int  # of the run: the same on every rank
    steps_per_epoch: int
    executor: static.Executor


@contextlib.contextmanager
def begin(job: Job, origins: Origins, me: Ranks, task: Task) -> Iterator[Run]:
    """Open the log, write all that is known before the programs are built, connect the ranks, and give the run.

    Every rank must call this. When the context ends the log is closed, as aborted where an error ended it. Raises
    ValueError where RESUME finds a checkpoint that this run cannot go on from, and RunError where training failed.
    """
    samples = task.dataset.train_samples
    identity = identity_of(job.model, task)
    start = checkpoint.find(job, me, identity)
    if start.position.epoch > task.epochs:
        raise ValueError(f"{start.path}: its run has done all of its {task.epochs} epochs: set RESUME=no")
    seed = start.position.seed if start.path else me.comm.bcast(_seed(job.course.seed))
    steps = sampling.steps_per_epoch(samples, job.global_batch)
    total_steps = task.epochs * steps if job.course.trains else job.course.throughput_steps

    result_file = Path(job.trials.result_file)
    progress_kind = "none"
    if me.is_first:
        progress_kind = job.course.progress or "plain"
    with (
        open_log(result_file if me.is_first else None) as log,
        memory.explained(job.model.batchsize),
        ranks.lost_peer(),
        Progress(progress_kind, total_steps) as progress,
        checkpoint.Keeper(job, me, log, start=start, run=identity, seed=seed, steps_per_epoch=steps) as keeper,
        contextlib.ExitStack() as stack,
    ):
        hooks: list[Hook] = []
        for hook in telemetry.of_rank(job.course, job.cluster, me, result_file):
            hooks.append(stack.enter_context(hook))
        hooks.append(keeper)
        preamble(log, job, origins, me, recipe=task.workload.recipe, dataset=task.dataset)
        log_task(log, task, job.model.knobs, global_batch=job.global_batch, seed=seed)
        for note in task.notes:
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
    """Return what a run's state depends on: it may go on only from the checkpoint of a run that has the same."""
    recipe = task.workload.recipe
    return {
        "workload": model.workload,
        "recipe": recipe.name,
        "image_size": recipe.image_size,
        "precision": model.precision,
        "train_samples": task.dataset.train_samples,
        "epochs": task.epochs,
    }


def _seed(asked: int) -> int:
    """Return SEED, or a seed from the operating system where it is -1."""
    return asked if asked >= 0 else secrets.randbits(31)


def executor(cluster: ClusterSettings, me: Ranks) -> build.Executor:
    """Return the executor of this rank's device."""
    place = paddle.CUDAPlace(me.local_rank) if cluster.on_gpu else paddle.CPUPlace()
    return build.Executor(place)


def data_set(data: DataSettings, me: Ranks, embedded: Any) -> tuple[str, Path]:
    """Return the name and the folder of the job's data set: those of DATADIR, or of the embedded data set.

    `embedded` is the module by which the workload writes its embedded data set. Where that is used and is not in
    DATA_CACHE yet, the first rank of each node makes it, and all ranks wait for that: every rank must call this.
    """
    if data.folder:
        folder = Path(data.folder)
        return folder.name, folder
    folder = Path(data.embedded_in) / embedded.NAME
    if me.local_rank == 0:
        make_once(folder, embedded.write)
    me.comm.Barrier()
    return embedded.NAME, folder


def surveyed(me: Ranks, train: Samples, evaluation: Samples) -> Surveyed:
    """Look at the data set's files on the first rank, and tell all ranks what it holds; every rank must call this.

    Raises ValueError where a run would fail at one of its files.
    """
    WATCHDOG.beat("waiting for the first rank's look at the data set", extra_s=LOOK_S)
    found = None
    if me.is_first:
        found = survey(train, evaluation, _print_now)
    everywhere: Surveyed = me.comm.bcast(found)
    return everywhere


def _print_now(line: str) -> None:
    print(line, flush=True)


def preamble(log: RunLog, job: Job, origins: Origins, ranks: Ranks, *, recipe: Any, dataset: schema.Dataset) -> None:
    """Write the beginning of the log, up to `init_start`: what runs, on what machines, and who submits it.

    First come the sections of the header: the code, all settings and the fields of the `recipe` (a frozen dataclass)
    with who set each value (`origins`), the libraries, the machines of all ranks and the data set. Then come the events
    that MLPerf has for a submission. At last the first rank of each node flushes the node's page cache, if the job says
    so, and the log says what was done. Every rank must call this: the others send rank 0 what they know.
    """
    nodes = {node.host: node for node in ranks.comm.allgather(provenance.node())}
    hardware = schema.Hardware(nodes=list(nodes.values()), device=job.cluster.device, math_mode=job.model.precision)
    log.section(schema.LOG, schema.Format())
    log.section(schema.SOURCE, provenance.source(job.submission.source_commit, job.submission.image_digest))
    log.section(schema.CONFIG, origins | _flat("RECIPE", recipe, f"{job.model.package}/config.py"))
    log.section(schema.ENVIRONMENT, env.libraries())
    log.section(schema.PACKAGES, provenance.packages())
    log.section(schema.HARDWARE, hardware)
    log.section(schema.DATASET, dataset)
    log.event(schema.SUBMISSION_BENCHMARK, job.model.row.benchmark)
    log.event(schema.SUBMISSION_ORG, job.submission.org)
    log.event(schema.SUBMISSION_DIVISION, job.submission.division)
    log.event(schema.SUBMISSION_STATUS, job.submission.status)
    log.event(schema.SUBMISSION_PLATFORM, job.submission.platform or job.cluster.dgxsystem)
    WATCHDOG.beat("flushing the page cache and building the programs")
    done = None
    if ranks.local_rank == 0:
        done = provenance.clear_caches(bool(job.data.clear_caches), cleared_by=job.data.cache_cleared)
    for flushed in ranks.comm.allgather(done):
        if flushed:
            log.event(schema.CACHE_CLEAR, flushed.status == "done", flushed)
    log.mark(schema.INIT_START)


def _flat(prefix: str, value: Any, origin: str) -> dict[str, Any]:
    """Return the fields of a dataclass as settings of a log, those of nested dataclasses too.

    {"RECIPE.optimizer.momentum": {"value": 0.9, "origin": "paddle_rn50/config.py"}} is one with the prefix "RECIPE".
    """
    flat: dict[str, Any] = {}
    for field in fields(value):
        name = f"{prefix}.{field.name}"
        item = getattr(value, field.name)
        if is_dataclass(item):
            flat |= _flat(name, item, origin)
        else:
            flat[name] = {"value": item, "origin": origin}
    return flat


def log_task(log: RunLog, task: Task, knobs: Strategy, *, global_batch: int, seed: int) -> None:
    """Log seed, samples, batch and optimizer under the names of the ruleset."""
    log.event(schema.SEED, seed)
    log.event(schema.TRAIN_SAMPLES, task.dataset.train_samples)
    log.event(schema.EVAL_SAMPLES, task.dataset.eval_samples)
    log.event(schema.GLOBAL_BATCH_SIZE, global_batch)
    log.event(schema.GRADIENT_ACCUMULATION_STEPS, knobs.gradient_merge)
    log.event(schema.MODEL_BN_SPAN, task.workload.bn_span)
    if not knobs.auto:  # else Paddle chooses it: the log's section "program" says which
        recipe = task.workload.recipe
        log_optimizer(log, task.schedule, recipe.optimizer, warmup_epochs=recipe.warmup_epochs)


def log_optimizer(log: RunLog, schedule: Schedule, optimizer: Any, *, warmup_epochs: float) -> None:
    """Log the optimizer's hyperparameters, an event each, under the names that MLPerf has for this kind of optimizer.

    `optimizer` is that of the recipe. The learning rates and the length of the decay come from the `schedule`, which
    has them for the run's global batch.
    """
    log.event(schema.OPT_NAME, optimizer.kind)
    kind = KINDS[optimizer.kind]  # the events that MLPerf has for it
    log.event(kind.warmup, warmup_epochs)
    hyperparameters = {
        "base_learning_rate": schedule.base,
        "end_learning_rate": schedule.end,
        "learning_rate_decay_poly_power": schedule.power,
        "learning_rate_decay_steps": schedule.decay_steps,
        "momentum": optimizer.momentum,
        "weight_decay": optimizer.weight_decay,
    }
    for name, value in hyperparameters.items():
        log.event(kind.points[name], value)
    if optimizer.kind == "lars":
        log.event(schema.LARS_EPSILON, optimizer.lars_epsilon)


def run_summary(log: RunLog, job: Job, *, resumed: bool = False) -> None:
    """Log what a score must know of a run: its devices, batch, precision, mode, data, framework and model.

    Call it before the run starts, so that the log of a run that is cut off has it, too. `resumed` tells that the run
    goes on from a checkpoint.
    """
    log.event(
        schema.RUN_SUMMARY,
        schema.RunSummary(
            devices=job.cluster.world_size,
            nodes=job.cluster.dgxnnodes,
            batch_per_device=job.model.batchsize,
            precision=job.model.precision,
            math_mode=job.model.precision,
            mode=job.course.mode,
            data=job.data.kind,
            resumed=resumed,
            profiled=bool(job.course.profile),
            framework=f"paddlepaddle {paddle.__version__}",
            model=job.model.row.model,
        ),
    )


def start_clock(log: RunLog, ranks: Ranks) -> None:
    """Log run_start between two barriers; training data may be read only after this."""
    WATCHDOG.beat("waiting for the other ranks to be ready")
    log.mark(schema.INIT_STOP)
    ranks.comm.Barrier()
    log.mark(schema.RUN_START)
    ranks.comm.Barrier()


def log_telemetry(log: RunLog, ranks: Ranks, hooks: tuple[Hook, ...]) -> None:
    """Log a summary of what the nodes' samplers have measured, if there are any; every rank must call this."""
    mine = [hook.summary() for hook in hooks if isinstance(hook, telemetry.Sampler)]
    nodes = []
    for summaries in ranks.comm.allgather(mine):
        nodes.extend(summaries)
    if nodes:
        log.event(schema.TELEMETRY_SUMMARY, telemetry.summarize(nodes))


def log_throughput(log: RunLog, timing: Timing, epoch: int) -> None:
    """Log the throughput of an epoch."""
    if not timing.steps:  # resumed after an epoch's last step, before its evaluation
        return
    value = schema.EpochThroughput(
        images=timing.images,
        time_s=round(timing.time_s, 6),
        images_per_s=timing.images / timing.time_s,
        data_wait_s=round(timing.data_wait_s, 6),
    )
    log.event(schema.EPOCH_THROUGHPUT, value, schema.InEpoch(epoch_num=epoch))
