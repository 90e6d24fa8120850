"""Finds what a job trains, before a log is begun: its workload, its data set and its schedule."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import lists, workload
from harness.embedded import make_once
from harness.hooks.watchdog import WATCHDOG
from harness.job import DataSettings, Job
from harness.passport import Samples, Surveyed, survey
from harness.ranks import Ranks
from harness.workload import Workload
from program.optimizers import Schedule
from runlog import named_files, schema
from runlog.digits import counted

LOOK_S = 3600.0  # that other ranks may look at a data set on a slow disk; meanwhile they watch themselves


@dataclass(frozen=True, kw_only=True)
class Task:
    """The model, data set and schedule of a run, checked before a log is begun."""

    workload: Workload
    dataset: schema.Dataset  # its samples are those of an epoch
    training_set: Any  # the samples themselves
    evaluation_set: Any
    eval_image: Any  # format of an evaluation's images
    eval_batch: int  # images a rank
    epochs: int  # at most
    schedule: Schedule
    notes: tuple[str, ...] = ()  # what a user should know of the data set

    def append_evaluation(self) -> None:
        """Append the operators of an evaluation to the default program."""
        self.workload.evaluation_totals(self.eval_image, self.eval_batch)


def task_of(job: Job, me: Ranks) -> Task:
    """Return what the job trains: its model, data set and schedule, all checked; every rank must call this.

    Rank 0 looks at all files of the data set without decoding them, unless the data are synthetic. Rank 0 prints its
    progress.

    Args:
        job: The settings of the job.
        me: This process among the ranks of the job.

    Returns:
        The task. Its `notes` say what a user should know of the data set.

    Raises:
        ValueError: The job cannot be done, or a file of the data set would make the run fail.
    """
    model = workload.of_job(job)
    model.require_pretrained(job.model.pretrained)
    recipe = model.recipe
    name, folder = data_set(job.data, me, model.EMBEDDED)
    with _node_named_in_faults(me):
        lists.require_data_folder(folder)
        training_set = model.DATA.find(folder, "train", recipe.classes)
        evaluation_set = model.DATA.find(folder, "val", recipe.classes)
    notes = [*training_set.notes, *evaluation_set.notes]
    require_same_on_all(me, "training", training_set)  # of synthetic data, too: it decides the length of an epoch
    require_same_on_all(me, "evaluation", evaluation_set)
    train_passport = None
    eval_passport = None
    if not job.data.is_synthetic:
        with _node_named_in_faults(me):
            surveyed = survey_on_first(me, training_set, evaluation_set)
        train_passport = surveyed.train
        eval_passport = surveyed.evaluation
        notes += surveyed.notes

    samples_per_epoch = len(training_set)
    if job.data.is_synthetic and not job.data.folder:
        # An epoch is as long as on the recipe's data set: the embedded one may be smaller than a batch.
        samples_per_epoch = max(recipe.train_samples, job.global_batch)
    dataset = schema.Dataset(
        name=name,
        train_samples=samples_per_epoch,
        eval_samples=len(evaluation_set),
        synthetic=job.data.is_synthetic,
        form=training_set.form,
        train=train_passport,
        eval=eval_passport,
        train_source=training_set.source,
        eval_source=evaluation_set.source,
    )
    epochs = job.course.max_epochs or recipe.most_epochs(samples=samples_per_epoch, global_batch=job.global_batch)
    eval_image, eval_batch = model.eval_input(evaluation_set)
    return Task(
        workload=model,
        dataset=dataset,
        training_set=training_set,
        evaluation_set=evaluation_set,
        eval_image=eval_image,
        eval_batch=eval_batch,
        epochs=epochs,
        schedule=recipe.make_schedule(
            samples=samples_per_epoch, global_batch=job.global_batch, epochs=job.course.max_epochs
        ),
        notes=tuple(notes),
    )


@contextlib.contextmanager
def _node_named_in_faults(me: Ranks) -> Iterator[None]:
    """Name this node in the message of an error within this context, in which its data set is looked at.

    The other nodes of the job may have other files at the same path. In a job of one node the message stays.

    Args:
        me: This process among the ranks of the job.

    Raises:
        ValueError: The data set has a fault, or the system refuses to read a file or folder, which the message names.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        fault = named_files.explain(error) if isinstance(error, OSError) else str(error)
        has_other_nodes = len(set(me.nodes)) > 1
        raise ValueError(f"{me.node}: {fault}" if has_other_nodes else fault) from error


def data_set(data: DataSettings, me: Ranks, embedded: Any) -> tuple[str, Path]:
    """Return the name and the folder of the job's data set; every rank must call this.

    It is the folder in DATADIR or, if that is not set, a small embedded data set. The first rank of each node makes the
    embedded one if it is absent, and all ranks wait for that.

    Args:
        data: Settings of the data: `folder` is DATADIR, and `embedded_in` the folder in which the embedded set is made.
        me: This process among the ranks of the job.
        embedded: The workload's module of its embedded data set, with its name `NAME` and a function `write(folder)`.

    Returns:
        (name, folder).

    Raises:
        ValueError: The embedded data set cannot be written.
    """
    if data.folder:
        folder = Path(data.folder)
        name = folder.name
        if name in ("", ".."):  # of a path such as "." or "..", which does not say it
            name = folder.resolve().name
        return name, folder
    folder = Path(data.embedded_in) / embedded.NAME
    if me.local_rank == 0:
        make_once(folder, embedded.write)
    me.comm.Barrier()
    return embedded.NAME, folder


def require_same_on_all(me: Ranks, part: str, samples: Samples) -> None:
    """Raise ValueError unless all ranks number the samples of a part alike; every rank must call this.

    Ranks share out the samples of a step by their numbers. If a node numbers them otherwise, for example if it lacks
    a class folder, its ranks train with other labels, or on samples of other ranks.

    Args:
        me: This process among the ranks of the job.
        part: Name of the part for the message, such as "training".
        samples: The samples of the part, as this rank has found them.

    Raises:
        ValueError: On every rank, if the samples of one rank differ from those of rank 0.
    """
    WATCHDOG.beat("waiting for the other ranks to find the data set", extra_s=LOOK_S)
    found = (len(samples), samples.numbering())
    found_by_rank = me.comm.allgather(found)
    first_count, _ = found_by_rank[0]
    for rank, found_there in enumerate(found_by_rank):
        if found_there != found_by_rank[0]:
            count, _ = found_there
            raise ValueError(
                f"the {part} set of rank {rank} on {me.nodes[rank]} ({counted(count, 'sample')}) is not that of rank 0 "
                f"on {me.nodes[0]} ({counted(first_count, 'sample')}): names, labels or their order differ: give all "
                "nodes the same files and lists in DATADIR"
            )


def survey_on_first(me: Ranks, train: Samples, evaluation: Samples) -> Surveyed:
    """Look at the data set's files on rank 0, and tell all ranks what they hold; every rank must call this.

    The files are not decoded.

    Args:
        me: This process among the ranks of the job.
        train: The training samples.
        evaluation: The evaluation samples.

    Returns:
        The number, sizes and digest of each part's files, and notes for the user; the same on every rank.

    Raises:
        ValueError: On rank 0, if a run would fail at a file.
        OSError: On rank 0, if a file or folder cannot be read.
    """
    WATCHDOG.beat("waiting for the first rank's look at the data set", extra_s=LOOK_S)
    found = None
    if me.is_first:
        found = survey(train, evaluation, _print_now)
    everywhere: Surveyed = me.comm.bcast(found)
    return everywhere


def _print_now(line: str) -> None:
    print(line, flush=True)
