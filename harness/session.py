"""The course of a run that every workload shares: its log, preparation, training to a target, measuring."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import static

from harness import caches, checkpoint, env, memory, provenance, ranks, sampling, state, telemetry, tracing
from harness.capture import CapturedStep
from harness.env import MODELS, Job, Origins
from harness.loader import ReaderConfig
from harness.loop import COUNTED, Evaluator, Trainer
from harness.progress import Progress, Timing
from harness.ranks import Ranks
from harness.watchdog import WATCHDOG
from program import build
from program.schedules import Schedule
from runlog import schema
from runlog.errors import RunError
from runlog.writer import RunLog, open_log


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a workload trains, checked before a log is begun."""

    dataset: str  # its name
    form: str = "files"  # of its images: files, recordio or tfrecord
    train_samples: int
    eval_samples: int
    eval_batch: int  # images a rank
    epochs: int  # at most
    target: float  # of an evaluation: it ends the training
    bn_span: int  # images over which a normalization takes its statistics
    recipe: Any  # the workload's frozen dataclass
    plan: build.Plan
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has begun, on this rank."""

    job: Job
    ranks: Ranks
    task: Task
    log: RunLog
    progress: Progress
    keeper: checkpoint.Keeper
    sampler: telemetry.Sampler | None
    tracer: tracing.Tracer | None
    start: checkpoint.Start
    seed: int  # of the run: the same on every rank
    steps_per_epoch: int
    executor: static.Executor

    def training_plan(self) -> sampling.Plan:
        """This rank's training samples, from where the run starts or goes on."""
        return sampling.training_plan(
            self.task.train_samples,
            batch=self.job.batchsize,
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            seed=self.seed,
            epoch=self.start.epoch,
            first_step=self.start.epoch_step,
        )

    def evaluation_plan(self) -> sampling.Plan:
        """This rank's samples of the evaluations."""
        batch, ranks = self.task.eval_batch, self.ranks
        return sampling.evaluation_plan(self.task.eval_samples, batch=batch, rank=ranks.rank, ranks=ranks.size)

    def reader(self, image: Any, *, batch: int) -> ReaderConfig:
        """How this rank reads batches of images of this format."""
        return ReaderConfig(
            batch=batch,
            image=image,
            device=self.job.device,
            device_id=self.ranks.local_rank,
            threads=self.job.data_threads_per_rank,
            seed=self.seed,
        )

    def prepare(
        self,
        *,
        training: build.TrainingProgram,
        evaluation: static.Program,
        totals: tuple[str, ...],
        synthetic: Any,
        synthetic_eval: Any,
        pretrained: dict[str, np.ndarray] | None = None,
    ) -> tuple[Trainer, Evaluator]:
        """Warms the programs up on synthetic batches, then sets all state: by the start-up program, the `pretrained`
        weights, and the checkpoint that the run goes on from.
        """
        self.log.section(schema.PROGRAM, schema.Program(**build.summary(training)))
        if self.task.plan.strategy.auto:
            for line in training.verified:
                self.progress.say(line)
        trainer = Trainer(
            executor=self.executor,
            program=training,
            global_batch=self.job.global_batch,
            print_steps=self.job.print_steps,
            ranks=self.ranks,
            log=self.log,
            progress=self.progress,
            keeper=self.keeper,
            sampler=self.sampler,
            tracer=self.tracer,
            captured=CapturedStep(self.executor, training) if self.task.plan.strategy.cuda_graph else None,
        )
        evaluator = Evaluator(
            executor=self.executor,
            main=evaluation,
            totals=totals,
            feed=lambda batch: {"image": batch.image, "label": batch.label, "valid": batch.valid},
            ranks=self.ranks,
        )
        self.executor.run(training.startup)
        trainer.warm_up(synthetic)
        if self.job.mode == "train":
            evaluator.warm_up(synthetic_eval)
        build.keep_communicators(training.startup)
        self.executor.run(training.startup)
        if pretrained:
            state.set_weights(training.main, pretrained)
        state.broadcast_parameters(training.main, self.ranks)
        checkpoint.restore(self.start, training, self.ranks)
        if trainer.captured:
            WATCHDOG.beat("capturing the training step")
            trainer.captured.capture()
        return trainer, evaluator

    def train(
        self,
        trainer: Trainer,
        evaluator: Evaluator,
        quality: Callable[[dict[str, Any]], float],
        *,
        batches: Any,
        eval_batches: Any,
        synthetic: Any,
    ) -> None:
        """The timed run: training to the target, or measuring the throughput; `quality` is of an evaluation's totals.

        Nothing of `batches` and `eval_batches` may have been read; both are closed in the end.

        Raises:
            RunError: training failed.
        """
        job, task, log = self.job, self.task, self.log

        def evaluate() -> float:
            steps = sampling.evaluation_steps(task.eval_samples, task.eval_batch * self.ranks.size)
            totals = evaluator.run(eval_batches, steps=steps)
            assert totals[COUNTED] == task.eval_samples, "evaluation must see every image exactly once"
            return quality(totals)

        run_summary(log, job, resumed=self.start.position is not None)
        start_clock(log, self.ranks)
        source = itertools.repeat(synthetic) if job.data == "synthetic" else batches
        if trainer.captured:
            batches.write_to(trainer.captured.inputs)
        if job.mode == "throughput":
            trainer.run(source, steps=job.warmup_steps, epoch=1, done=0, phase="warmup")
            trainer.run(source, steps=job.measured_steps, epoch=1, done=job.warmup_steps, phase="measured")
        else:
            self._train_to_target(trainer, source, evaluate)
        self.ranks.barrier()
        log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        _log_telemetry(log, self.ranks, self.sampler)
        batches.close()
        eval_batches.close()

    def _train_to_target(self, trainer: Trainer, batches: Iterator[Any], evaluate: Callable[[], float]) -> None:
        """Trains epoch by epoch until an evaluation reaches the target.

        A block of the log is the epochs up to an evaluation and the evaluation itself.

        Raises:
            RunError: the target was not reached in the task's epochs.
        """
        task, log, start, steps, target = self.task, self.log, self.start, self.steps_per_epoch, self.task.target
        quality, previous = float("nan"), start.epoch - 1
        for last in (e for e in range(start.epoch, task.epochs + 1) if task.recipe.is_eval_epoch(e, task.epochs)):
            block = schema.InBlock(first_epoch_num=previous + 1, epoch_count=last - previous)
            log.mark(schema.BLOCK_START, block)
            for epoch in range(previous + 1, last + 1):
                log.mark(schema.EPOCH_START, schema.InEpoch(epoch_num=epoch))
                left_out = start.epoch_step if epoch == start.epoch else 0
                done = (epoch - 1) * steps + left_out
                timing = trainer.run(batches, steps=steps - left_out, epoch=epoch, done=done, phase="train")
                log.mark(schema.EPOCH_STOP, schema.InEpoch(epoch_num=epoch))
                _log_throughput(log, timing, epoch)
                if epoch < last:
                    self.keeper.epoch_ended(trainer.program.main, epoch)
            log.mark(schema.EVAL_START, schema.InEpoch(epoch_num=last))
            state.average_statistics(trainer.program.main, self.ranks)
            quality = evaluate()
            log.mark(schema.EVAL_STOP, schema.InEpoch(epoch_num=last))
            log.event(schema.EVAL_ACCURACY, quality, schema.InEpoch(epoch_num=last))
            log.mark(schema.BLOCK_STOP, block)
            self.progress.say(f"epoch {last} evaluation {quality:.4f} (target {target:.4f})")
            if quality >= target:
                return
            self.keeper.epoch_ended(trainer.program.main, last)
            previous = last
        # Asked of all ranks, so that none ends the job while rank 0 still writes its last checkpoint.
        said = f"evaluation is {quality:.4f} after {task.epochs} epochs, below the target {target:.4f}"
        raise RunError(f"{said}; {self.keeper.last_good}")


@contextlib.contextmanager
def begin(job: Job, origins: Origins, me: Ranks, task: Task) -> Iterator[Run]:
    """Opens the log, writes all that is known before the programs are built, and connects the ranks.

    Raises:
        ValueError: RESUME finds what cannot be gone on from.
        RunError: training failed.
    """
    identity = {  # what a checkpoint's state depends on: a run may go on only from one with the same
        "workload": job.workload,
        "recipe": task.recipe.name,
        "image_size": task.recipe.image_size,
        "precision": job.precision,
        "train_samples": task.train_samples,
        "epochs": task.epochs,
    }
    start = checkpoint.find(job, me, identity)
    if start.epoch > task.epochs:
        raise ValueError(f"{start.path}: its run has done all of its {task.epochs} epochs: set RESUME=no")
    seed = start.position.seed if start.position else me.broadcast(job.seed if job.seed >= 0 else secrets.randbits(31))
    steps = sampling.steps_per_epoch(task.train_samples, job.global_batch)
    total_steps = task.epochs * steps if job.mode == "train" else job.warmup_steps + job.measured_steps
    with (
        open_log(Path(job.result_file) if me.is_first else None) as log,
        memory.explained(job),
        ranks.lost_peer(),
        Progress((job.progress or "plain") if me.is_first else "none", total_steps) as progress,
        checkpoint.Keeper(job, me, log, start=start, run=identity, seed=seed, steps_per_epoch=steps) as keeper,
        telemetry.sampling(job, me) as sampler,
        tracing.tracer(job, me) or contextlib.nullcontext() as tracer,
    ):
        dataset = schema.Dataset(
            name=task.dataset,
            train_samples=task.train_samples,
            eval_samples=task.eval_samples,
            synthetic=job.data == "synthetic",
            form=task.form,
        )
        preamble(log, job, origins, me, recipe=task.recipe, dataset=dataset)
        _log_task(log, job, task, seed=seed)
        ranks.connect(job, me)
        paddle.enable_static()
        yield Run(
            job=job,
            ranks=me,
            task=task,
            log=log,
            progress=progress,
            keeper=keeper,
            sampler=sampler,
            tracer=tracer,
            start=start,
            seed=seed,
            steps_per_epoch=steps,
            executor=executor(job, me),
        )


def executor(job: Job, me: Ranks) -> build.Executor:
    """That of this rank's device."""
    return build.Executor(paddle.CUDAPlace(me.local_rank) if job.device == "gpu" else paddle.CPUPlace())


def epoch_samples(job: Job, *, listed: int, nominal: int) -> int:
    """Images of an epoch: those `listed`, or `nominal` ones where no data set is given and none is read.

    Batch and rate are then as on the recipe's data set, which the embedded one may be too small for.
    """
    without_data = job.data == "synthetic" and not job.datadir
    return max(nominal, job.global_batch) if without_data else listed


def data_set(job: Job, me: Ranks, *, embedded: str, prepare: Callable[[Path], Any]) -> tuple[str, Path]:
    """Name and folder of the data set; the embedded one is made here, once on each node."""
    if job.datadir:
        return Path(job.datadir).name, Path(job.datadir)
    folder = Path(job.data_cache) / embedded
    if me.local_rank == 0:
        prepare(folder)
    me.barrier()
    return embedded, folder


def preamble(log: RunLog, job: Job, origins: Origins, ranks: Ranks, *, recipe: Any, dataset: schema.Dataset) -> None:
    """Provenance, submission and cache events, up to `init_start`; `recipe` is the workload's frozen dataclass."""
    nodes = {node.host: node for node in ranks.gather(provenance.node())}
    hardware = schema.Hardware(nodes=list(nodes.values()), device=job.device, math_mode=job.precision)
    log.section(schema.LOG, schema.Format())
    log.section(schema.SOURCE, provenance.source(job.source_commit, job.image_digest))
    log.section(schema.CONFIG, origins | _flat("RECIPE", recipe, f"{job.package}/config.py"))
    log.section(schema.ENVIRONMENT, env.libraries())
    log.section(schema.PACKAGES, provenance.packages())
    log.section(schema.HARDWARE, hardware)
    log.section(schema.DATASET, dataset)
    log.event(schema.SUBMISSION_BENCHMARK, {"rn50": "resnet"}.get(job.workload, job.workload))
    log.event(schema.SUBMISSION_ORG, job.submission_org)
    log.event(schema.SUBMISSION_DIVISION, job.submission_division)
    log.event(schema.SUBMISSION_STATUS, job.submission_status)
    log.event(schema.SUBMISSION_PLATFORM, job.submission_platform or job.dgxsystem)
    done = None
    WATCHDOG.beat("flushing the page cache and building the programs")
    if ranks.local_rank == 0:
        done = caches.clear(ranks.node, wanted=bool(job.clear_caches), done_by_launcher=job.cache_cleared)
    for flushed in ranks.gather(done):
        if flushed:
            log.event(schema.CACHE_CLEAR, flushed.status == "done", flushed)
    log.mark(schema.INIT_START)


def _flat(prefix: str, value: Any, origin: str) -> dict[str, Any]:
    """{"PREFIX.field": {"value", "origin"}} of a dataclass, nested ones flattened."""
    flat: dict[str, Any] = {}
    for f in fields(value):
        name, item = f"{prefix}.{f.name}", getattr(value, f.name)
        flat |= _flat(name, item, origin) if is_dataclass(item) else {name: {"value": item, "origin": origin}}
    return flat


def _log_task(log: RunLog, job: Job, task: Task, *, seed: int) -> None:
    """Seed, samples, batch and optimizer under the names of the ruleset."""
    log.event(schema.SEED, seed)
    log.event(schema.TRAIN_SAMPLES, task.train_samples)
    log.event(schema.EVAL_SAMPLES, task.eval_samples)
    log.event(schema.GLOBAL_BATCH_SIZE, job.global_batch)
    log.event(schema.GRADIENT_ACCUMULATION_STEPS, task.plan.strategy.gradient_merge)
    log.event(schema.MODEL_BN_SPAN, task.bn_span)
    if not task.plan.strategy.auto:  # else Paddle chooses it: the log's section "program" says which
        log_optimizer(log, task.schedule, task.recipe.optimizer, warmup_epochs=task.recipe.warmup_epochs)


def log_optimizer(log: RunLog, schedule: Schedule, optimizer: Any, *, warmup_epochs: float) -> None:
    """Hyperparameters of the optimizer under the names of the ruleset; rates are of the global batch."""
    log.event(schema.OPT_NAME, optimizer.kind)
    log.event(schema.WARMUP_EPOCHS[optimizer.kind], warmup_epochs)
    for name, value in (
        ("base_learning_rate", schedule.base),
        ("end_learning_rate", schedule.end),
        ("learning_rate_decay_poly_power", schedule.power),
        ("learning_rate_decay_steps", schedule.decay_steps),
        ("momentum", optimizer.momentum),
        ("weight_decay", optimizer.weight_decay),
    ):
        log.event(schema.OPTIMIZER[optimizer.kind][name], value)
    if optimizer.kind == "lars":
        log.event(schema.LARS_EPSILON, optimizer.lars_epsilon)


def run_summary(log: RunLog, job: Job, *, resumed: bool = False) -> None:
    """What a score must know of a run, written before it starts so that a truncated log has it too."""
    log.event(
        schema.RUN_SUMMARY,
        schema.RunSummary(
            devices=job.world_size,
            nodes=job.dgxnnodes,
            batch_per_device=job.batchsize,
            precision=job.precision,
            math_mode=job.precision,
            mode=job.mode,
            data=job.data,
            resumed=resumed,
            profiled=bool(job.profile),
            framework=f"paddlepaddle {paddle.__version__}",
            model=MODELS[job.workload],
        ),
    )


def start_clock(log: RunLog, ranks: Ranks) -> None:
    """Ends the preparation; from here on training data may be touched. A barrier stands on both sides."""
    WATCHDOG.beat("waiting for the other ranks to be ready")
    log.mark(schema.INIT_STOP)
    ranks.barrier()
    log.mark(schema.RUN_START)
    ranks.barrier()


def _log_telemetry(log: RunLog, ranks: Ranks, sampler: telemetry.Sampler | None) -> None:
    """Sums up what the nodes' samplers saw."""
    nodes = [node for node in ranks.gather(sampler.summary() if sampler else None) if node]
    if nodes:
        log.event(schema.TELEMETRY_SUMMARY, telemetry.summarize(nodes))


def _log_throughput(log: RunLog, timing: Timing, epoch: int) -> None:
    if not timing.steps:  # resumed after an epoch's last step, before its evaluation
        return
    value = schema.EpochThroughput(
        images=timing.images,
        time_s=round(timing.time_s, 6),
        images_per_s=timing.images / timing.time_s,
        data_wait_s=round(timing.data_wait_s, 6),
    )
    log.event(schema.EPOCH_THROUGHPUT, value, schema.InEpoch(epoch_num=epoch))
