"""The beginning of a run's log: all that is known before the programs are built."""

from dataclasses import fields, is_dataclass
from typing import Any

import paddle

from harness import env, provenance
from harness.hooks.watchdog import WATCHDOG
from harness.job import DataSettings, Job, Origins
from harness.ranks import Ranks
from harness.task import Task
from program.optimizers import KINDS, OptimizerConfig, Schedule
from runlog import schema
from runlog.writer import RunLog


def write(log: RunLog, job: Job, origins: Origins, ranks: Ranks, task: Task, *, seed: int, resumed: bool) -> None:
    """Write what the log says of a run before its programs are built; every rank must call this.

    That is the preamble, then the seed, the sizes, the optimizer's hyperparameters and the run's summary. The
    hyperparameters are left out in Paddle's automatic mode (STRATEGY=auto), which chooses the optimizer itself.

    Args:
        log: The log of the run. Only that of rank 0 is written to a file.
        job: The settings of the job.
        origins: The value of each setting with who set it.
        ranks: This process among the ranks of the job.
        task: The model, the data set and the schedule.
        seed: Seed of the run.
        resumed: Whether the run goes on from a checkpoint.
    """
    recipe = task.workload.recipe
    knobs = job.model.knobs
    summary = summary_of(job, resumed=resumed)
    hyperparameters: list[tuple[schema.Point[Any], Any]] = []
    if not knobs.auto:  # in Paddle's automatic mode it chooses the optimizer, as the log's section "program" says
        hyperparameters = optimizer_events(task.schedule, recipe.optimizer, warmup_epochs=recipe.warmup_epochs)

    preamble(log, job, origins, ranks, recipe=recipe, dataset=task.dataset)
    log.event(schema.SEED, seed)
    log.event(schema.TRAIN_SAMPLES, task.dataset.train_samples)
    log.event(schema.EVAL_SAMPLES, task.dataset.eval_samples)
    log.event(schema.GLOBAL_BATCH_SIZE, job.global_batch)
    log.event(schema.GRADIENT_ACCUMULATION_STEPS, knobs.gradient_merge)
    log.event(schema.MODEL_BN_SPAN, task.workload.bn_span)
    for event, value in hyperparameters:
        log.event(event, value)
    log.event(schema.RUN_SUMMARY, summary)


def preamble(log: RunLog, job: Job, origins: Origins, ranks: Ranks, *, recipe: Any, dataset: schema.Dataset) -> None:
    """Write the beginning of a run's log: what runs, on what machines, and who submits it.

    Every rank must call this, because the ranks tell each other of their nodes. The last line that is written is the
    event `init_start`.

    Args:
        log: The log of the run. Only that of rank 0 is written to a file.
        job: The settings of the job.
        origins: The value of each setting with who set it.
        ranks: This process among the ranks of the job.
        recipe: The hyperparameters, a dataclass. Each is logged like a setting, such as "RECIPE.optimizer.momentum",
            with the workload's file config.py as its origin.
        dataset: Name, sizes and digests of the data set.
    """
    nodes = provenance.gather_nodes(ranks.comm)  # from all ranks
    hardware = schema.Hardware(nodes=nodes, device=job.cluster.device, math_mode=job.model.precision)
    settings_of_recipe = _flat("RECIPE", recipe, f"{job.model.package}/config.py")
    _write_header(log, job, origins | settings_of_recipe, hardware, dataset)
    _write_submission(log, job)
    # With CLEAR_CACHES each node flushes its page cache and tells whether that was done. A node may take minutes: if
    # the run ends meanwhile, the log already says what ran.
    for state_of_node in _flush_caches_of_nodes(job.data, ranks):
        log.event(schema.CACHE_CLEAR, state_of_node.status == "done", state_of_node)
    log.mark(schema.INIT_START)


def _write_header(log: RunLog, job: Job, settings: Origins, hardware: schema.Hardware, dataset: schema.Dataset) -> None:
    """Write the sections of the header: format, code, settings, libraries, packages, machines and data set.

    Args:
        log: The log of the run.
        job: The settings of the job, with the commit and digest of the image.
        settings: Every setting and hyperparameter, with its value and who set it.
        hardware: The machines of the job.
        dataset: Name, sizes and digests of the data set.
    """
    source = provenance.source(job.submission.source_commit, job.submission.image_digest)
    log.section(schema.LOG, schema.Format())
    log.section(schema.SOURCE, source)
    log.section(schema.CONFIG, settings)
    log.section(schema.ENVIRONMENT, env.libraries())
    log.section(schema.PACKAGES, provenance.packages())
    log.section(schema.HARDWARE, hardware)
    log.section(schema.DATASET, dataset)


def _write_submission(log: RunLog, job: Job) -> None:
    """Write the events that MLPerf has for a submission: benchmark, submitter, division, status and platform."""
    submission = job.submission
    log.event(schema.SUBMISSION_BENCHMARK, job.model.row.benchmark)
    log.event(schema.SUBMISSION_ORG, submission.org)
    log.event(schema.SUBMISSION_DIVISION, submission.division)
    log.event(schema.SUBMISSION_STATUS, submission.status)
    log.event(schema.SUBMISSION_PLATFORM, submission.platform or job.cluster.dgxsystem)


def _flush_caches_of_nodes(data: DataSettings, ranks: Ranks) -> list[schema.CacheState]:
    """Flush the page cache of each node if the job says so; every rank must call this.

    The first rank of each node does it.

    Args:
        data: Settings of the data, with CLEAR_CACHES.
        ranks: This process among the ranks of the job.

    Returns:
        For each node whether it was done, and by whom or why not.
    """
    WATCHDOG.beat("flushing the page cache and building the programs")
    done = None
    if ranks.local_rank == 0:
        done = provenance.clear_caches(bool(data.clear_caches))
    done_by_rank = ranks.comm.allgather(done)  # None for a rank that is not the first of its node
    return [state for state in done_by_rank if state is not None]


def _flat(prefix: str, value: Any, origin: str) -> Origins:
    """Return the fields of a dataclass, and of dataclasses within it, in the form in which the log lists settings.

    With the prefix "RECIPE" the field `momentum` of the field `optimizer` becomes:

        {"RECIPE.optimizer.momentum": {"value": 0.9, "origin": "paddle_rn50/config.py"}}

    Args:
        prefix: Beginning of each name, before a dot.
        value: The dataclass.
        origin: The file that the values are from; all get it.
    """
    flat: Origins = {}
    for field in fields(value):
        name = f"{prefix}.{field.name}"
        item = getattr(value, field.name)
        if is_dataclass(item):
            flat |= _flat(name, item, origin)
        else:
            flat[name] = {"value": item, "origin": origin}
    return flat


def summary_of(job: Job, *, resumed: bool = False) -> schema.RunSummary:
    """Return what a score must know of a run: its devices, batch, precision, mode, data, framework and model.

    It is logged before the run starts, so that the log of a run that is cut off has it, too.

    Args:
        job: The settings of the job.
        resumed: Whether the run goes on from a checkpoint.
    """
    return schema.RunSummary(
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
    )


def optimizer_events(
    schedule: Schedule, optimizer: OptimizerConfig, *, warmup_epochs: float
) -> list[tuple[schema.Point[Any], Any]]:
    """Return what a log says of the optimizer, as pairs of an event and its value: name, warm-up and hyperparameters.

    For SGD these are the events opt_name = "sgd", sgd_opt_momentum = 0.9 and others.

    Args:
        schedule: The learning rates for the run's global batch.
        optimizer: The recipe's optimizer, with its kind, such as "sgd", and its momentum and weight decay.
        warmup_epochs: Epochs in which the learning rate rises, as the recipe says.

    Returns:
        The pairs. An event is a `schema.Point`, which has the name and the type of the value.
    """
    kind = KINDS[optimizer.kind]  # with the events that a log has for this kind of optimizer
    # Two dictionaries by the name of a hyperparameter: its event, and its value. They are joined in the loop below.
    # {"momentum": event sgd_opt_momentum, ...}. `further_points` has "lars_epsilon" for LARS, and nothing for SGD.
    event_by_name = {**kind.logged.hyperparameters, **kind.further_points}
    value_by_name = {  # {"momentum": 0.9, ...}: a value for each name in `event_by_name`, and some that no event has
        **vars(optimizer),  # the fields of OptimizerConfig: "momentum", "weight_decay", "lars_epsilon", ...
        "base_learning_rate": schedule.base,
        "end_learning_rate": schedule.end,
        "learning_rate_decay_poly_power": schedule.power,
        "learning_rate_decay_steps": schedule.decay_steps,
    }
    events: list[tuple[schema.Point[Any], Any]] = [
        (schema.OPT_NAME, optimizer.kind),
        (kind.logged.warmup_epochs, warmup_epochs),  # an event of this kind of optimizer: LARS has another than SGD
    ]
    for name, event in event_by_name.items():
        events.append((event, value_by_name[name]))
    return events
