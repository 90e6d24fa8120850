"""Goes on from a checkpoint: finds the newest good one, and gives its state to the program of every rank."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from paddle import static

from harness import state
from harness.hooks.checkpoint_file import Position, folder_of, newest_first, read
from harness.job import Job
from harness.ranks import Ranks
from program import build, stored
from program.arrays import Array
from runlog.errors import message_of


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run: step 0, or the position of a checkpoint."""

    position: Position
    path: str = ""  # of the checkpoint; empty for step 0
    arrays: dict[str, Array] = field(default_factory=dict)  # of the checkpoint; empty on all ranks but 0
    # A sentence each on skipped checkpoints, and on what differs from this one's run; empty on all ranks but 0.
    notes: tuple[str, ...] = ()

    @property
    def is_from_checkpoint(self) -> bool:
        """Whether the run goes on from a checkpoint; else it starts at step 0."""
        return self.path != ""


FROM_STEP_0 = Start(position=Position(step=0, epoch=1, epoch_step=0, seed=-1, global_batch=0, ranks=0))


# Names in an identity of what may change, with a note: the digests of the training and of the evaluation files, as
# where a damaged image is replaced during a run, the order of the training files, for example if a list is written
# anew, and the images over which batch norm takes its statistics, as on another number of ranks.
TRAIN_SHA256 = "train_sha256"
EVAL_SHA256 = "eval_sha256"
TRAIN_ORDER = "train_order"
BN_SPAN = "bn_span"
MAY_CHANGE = (TRAIN_SHA256, EVAL_SHA256, TRAIN_ORDER, BN_SPAN)


def find(job: Job, ranks: Ranks, identity: dict[str, Any]) -> Start:
    """Return where the run starts: at step 0 or, with RESUME=auto, at the newest undamaged checkpoint in its folder.

    Every rank must call this, because rank 0 alone reads the checkpoint and sends the position to the others.

    Args:
        job: The settings of the job, such as RESUME and the folder of the checkpoints.
        ranks: This process among the ranks of the job.
        identity: What the state of the run depends on, by name, such as the recipe; None for a value that is not known.
            The run that wrote the checkpoint must have had the same values. Only the values of MAY_CHANGE may differ;
            a note then says so.

    Returns:
        The position in the run and the path of the checkpoint, equal on all ranks. Only on rank 0, also the arrays of
        the checkpoint, and notes for the user, such as on skipped damaged checkpoints.

    Raises:
        ValueError: On rank 0 only: the run that wrote the checkpoint had another identity, global batch or seed, or
            there are checkpoints and all are damaged. The other ranks then wait until the caller aborts the job.
    """
    if job.checkpoints.resume == "no":
        return FROM_STEP_0
    if ranks.is_first:
        start = _newest_good(job, identity, ranks.size)
        ranks.comm.bcast((start.position, start.path))  # without the arrays, which are large: `restore` sends them
        return start
    position, path = ranks.comm.bcast(None)  # receives what rank 0 sends
    return Start(position=position, path=path)


def _newest_good(job: Job, identity: dict[str, Any], ranks: int) -> Start:
    """Return the newest checkpoint that is not damaged or, if there is no checkpoint, the start at step 0.

    If this run cannot go on from that checkpoint, no older one is tried.

    Args:
        job: The settings of the job, which tell the folder.
        identity: What this run's state depends on, by name, such as the recipe. The checkpoint's run must have had the
            same, but for MAY_CHANGE.
        ranks: Number of this run's ranks, for a message.

    Returns:
        The checkpoint's position in its run, its path and arrays, and notes for the user, as on damaged checkpoints.

    Raises:
        ValueError: This run cannot go on from the newest good checkpoint, or there are checkpoints and all are damaged.
    """
    folder = folder_of(job)
    checkpoints = newest_first(folder)
    if not checkpoints:
        return replace(FROM_STEP_0, notes=(f"RESUME=auto: {folder} has no good checkpoint: starting at step 0",))
    skipped: list[str] = []  # a note on each damaged checkpoint
    for path in checkpoints:
        try:
            saved = _read_saved(path)
        except (ValueError, KeyError, TypeError, OSError) as error:
            skipped.append(f"{path}: damaged, {message_of(error)}: skipped")
            print(f"warning: {skipped[-1]}", file=sys.stderr, flush=True)  # at once: there may be no log to say it in
            continue
        differs = _differences_in_words(saved.identity, identity)
        if differs:
            raise ValueError(f"{path}: is of another run ({differs}): set RESUME=no, CHECKPOINT_DIR or what differs")
        _require_same_course(path, saved.position, job, ranks)
        notes = (*skipped, *_notes_on_changes(path, saved.identity, identity))
        return Start(position=saved.position, path=str(path), arrays=saved.arrays, notes=notes)
    raise ValueError(f"{folder}: no checkpoint in it is whole: move them away to start at step 0")


class _Saved(NamedTuple):
    """A checkpoint: the position in its run, what the state depends on by name, and the arrays."""

    position: Position
    identity: dict[str, Any]
    arrays: dict[str, Array]


def _read_saved(path: Path) -> _Saved:
    """Read a checkpoint.

    Args:
        path: The file.

    Raises:
        ValueError, KeyError, TypeError, OSError: The file is damaged or cannot be read.
    """
    contents = read(path)
    position = Position(**contents.metadata["position"])
    return _Saved(position=position, identity=contents.metadata["run"], arrays=contents.arrays)


def _require_same_course(path: Path, position: Position, job: Job, ranks: int) -> None:
    """Make sure that this job has the global batch and the seed of the run that wrote a checkpoint.

    Args:
        path: The checkpoint, for the message.
        position: The checkpoint's place in its run, with that run's global batch and seed.
        job: The settings of this job. SEED=-1 fits any seed.
        ranks: Number of this job's ranks. The message says which BATCHSIZE they need for the same global batch.

    Raises:
        ValueError: One of the two differs.
    """
    if position.global_batch != job.global_batch:
        batchsize, rest = divmod(position.global_batch, ranks)
        fix = f"set BATCHSIZE={batchsize} for {ranks} ranks"
        if rest != 0:
            fix = f"{ranks} ranks cannot share them evenly: take a number of ranks that divides {position.global_batch}"
        raise ValueError(
            f"{path}: its run had {position.global_batch} images a step, this one has {job.global_batch}: the "
            f"recipe depends on it: {fix}"
        )
    if job.course.seed not in (-1, position.seed):
        raise ValueError(f"{path}: its run had SEED={position.seed}: set that, or SEED=-1 to take it over")


def _differences_in_words(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Return what differs between a checkpoint's run and this one, but for MAY_CHANGE, such as "epochs 90 there, 37
    here".

    Args:
        there: What the state of the checkpoint's run depends on, by name.
        here: What the state of this run depends on, by name.
    """
    differing = []
    names = dict.fromkeys([*here, *there])  # each once, in this order
    for name in names:
        if name not in MAY_CHANGE and there.get(name) != here.get(name):
            differing.append(f"{name} {there.get(name)!r} there, {here.get(name)!r} here")
    return ", ".join(differing)


def _notes_on_changes(path: Path, there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return a sentence for each value of MAY_CHANGE that a checkpoint's run and this one have differently.

    Args:
        path: The checkpoint.
        there: What the state of the checkpoint's run depends on, by name. Older checkpoints do not know some of it.
        here: What the state of this run depends on, by name.
    """
    changed = []
    for name in MAY_CHANGE:
        is_known = there.get(name) is not None and here.get(name) is not None
        if is_known and there[name] != here[name]:
            changed.append(name)
    notes = []
    for name, did in ((TRAIN_SHA256, "trained"), (EVAL_SHA256, "evaluated")):
        if name in changed:
            notes.append(
                f"{path}: its run {did} on other files: names, sizes or labels differ from those of this data set"
            )
    # Other files are in another order anyway, and samples in another form are numbered by another digest.
    is_reordered = TRAIN_ORDER in changed and TRAIN_SHA256 not in changed
    if is_reordered and _form_of_order(there) == _form_of_order(here):
        notes.append(
            f"{path}: its run numbered the training files in another order, as where a list was written anew: in an "
            "epoch that was cut, some are trained on twice and others not at all"
        )
    if BN_SPAN in changed:
        notes.append(
            f"{path}: its run took the statistics of batch norm over {there[BN_SPAN]} images, this one takes them over "
            f"{here[BN_SPAN]}: the losses will differ from those of one straight run"
        )
    return notes


def _form_of_order(identity: dict[str, Any]) -> str:
    """Return the form of the training samples, such as "files", that stands before the digest of their order.

    Args:
        identity: What the state of a run depends on, by name, with the order of its training samples.
    """
    form, _, _ = str(identity[TRAIN_ORDER]).partition(" ")
    return form


def restore(start: Start, training: build.TrainingProgram, ranks: Ranks) -> None:
    """Give every rank's program the state of the checkpoint that the run starts from; do nothing at step 0.

    Every rank must call this, because only rank 0 has the checkpoint, and sends its state to the others.

    Args:
        start: Where the run starts. `start.arrays` has the checkpoint's arrays on rank 0, and is empty on all others.
        training: The training program, whose tensors have values already.
        ranks: This process among the ranks of the job.

    Raises:
        ValueError: On rank 0, if a tensor of the program is not in the checkpoint, or has another shape there.
    """
    if not start.is_from_checkpoint:
        return
    main = training.main
    statistics = state.statistics_names(main)  # of batch normalization: each rank has values of its own
    arrays = _in_layout_of_program(start.arrays, main)  # empty on all ranks but 0
    if ranks.is_first:
        _restore_first_rank(start.path, arrays, main, statistics)
    # Every rank gets the whole state of rank 0, and then the statistics that were saved for it in place of rank 0's.
    state.broadcast_parameters(main, ranks)
    _restore_statistics(start.position.ranks, arrays, main, statistics, ranks)
    training.schedule.step(start.position.step)  # the learning rate of this step


def _in_layout_of_program(arrays: dict[str, Array], main: static.Program) -> dict[str, Array]:
    """Return a checkpoint's arrays, by name, in the memory layout that the program's tensors have.

    A checkpoint has the network's plain layout. An optimization pass over the program may store some of its tensors in
    another layout.

    Args:
        arrays: Arrays by the names in the checkpoint: "rank0/NAME" for a rank's statistics of batch normalization, the
            name of the program's tensor for all else. Empty on all ranks but 0.
        main: The training program, from which the layouts are known.
    """
    other_layouts = stored.conversions(main)  # by name, of the tensors that the program stores in another layout
    in_layout = {}
    for name, saved in arrays.items():
        _, _, variable = name.rpartition("/")  # a BN statistic is saved as rank0/VARIABLE, all else as VARIABLE
        layout = other_layouts.get(variable)
        in_layout[name] = saved if layout is None else layout.from_plain(saved)
    return in_layout


def _restore_first_rank(path: str, arrays: dict[str, Array], main: static.Program, statistics: set[str]) -> None:
    """Load a checkpoint into the training program of rank 0.

    A change between a dynamic and a fixed loss scale is not an error: the program then keeps the loss scale that it
    has, and a warning is printed to stderr.

    Args:
        path: Path of the checkpoint file, for messages.
        arrays: Contents of the checkpoint by name, in the memory layout of the program's tensors.
        main: The training program. Every tensor of its state, such as parameters and momenta, is set.
        statistics: Names of the running means and variances of batch normalization. They differ from rank to rank, so
            the checkpoint has them once for each rank, such as "rank0/NAME".

    Raises:
        ValueError: The checkpoint lacks a tensor of the program, or has it in another shape.
    """
    tensors = dict(state.tensors(main))
    why_anew = _why_loss_scale_begins_anew(arrays, tensors)
    for name, tensor in tensors.items():
        if why_anew and state.is_loss_scale(name):
            continue  # the program keeps the loss scale that it has
        name_in_checkpoint = f"rank0/{name}" if name in statistics else name  # each rank has statistics of its own
        value = arrays.get(name_in_checkpoint)
        if value is None or list(value.shape) != tensor.shape():
            raise ValueError(f"{path}: has no {name} of this program's shape: set RESUME=no")
        state.assign(tensor, value)
    if why_anew:
        print(f"warning: {path}: {why_anew}, which begins anew", file=sys.stderr, flush=True)


def _why_loss_scale_begins_anew(saved: Iterable[str], here: Iterable[str]) -> str:
    """Return why a run cannot go on from the loss scale of a checkpoint; empty if it can.

    It cannot if one of the two has a dynamic loss scale and the other does not.

    Args:
        saved: Names of the checkpoint's arrays.
        here: Names of the tensors of this run's program.
    """
    was_dynamic = state.has_dynamic_loss_scale(saved)
    is_dynamic = state.has_dynamic_loss_scale(here)
    if was_dynamic and not is_dynamic:
        return "its run had a dynamic loss scale, this one has a fixed one"
    if is_dynamic and not was_dynamic:
        return "its run had a fixed loss scale, this one has a dynamic one"
    return ""


def _restore_statistics(
    saved_ranks: int, arrays: dict[str, Array], main: static.Program, names: set[str], ranks: Ranks
) -> None:
    """Send each rank its statistics of batch normalization from a checkpoint; every rank must call this.

    Args:
        saved_ranks: Number of ranks that the checkpoint's run had.
        arrays: The checkpoint's arrays in the memory layout of the program; only rank 0 has them.
        main: The training program of this rank.
        names: Names of the program's running means and variances, the same on every rank.
        ranks: This process among the ranks of the job.
    """
    own_tensors = {name: tensor for name, tensor in state.tensors(main) if name in names}
    values_of_each_rank = None  # only rank 0 has them, and sends each rank its own
    if ranks.is_first:
        values_of_each_rank = _statistics_of_each_rank(arrays, list(own_tensors), saved_ranks, ranks.size)
    own_values = ranks.comm.scatter(values_of_each_rank)
    for name, tensor in own_tensors.items():
        state.assign(tensor, own_values[name])


def _statistics_of_each_rank(
    arrays: dict[str, Array], names: list[str], saved_ranks: int, ranks: int
) -> list[dict[str, Array]]:
    """Return the statistics of batch normalization that each rank of this run gets from a checkpoint.

    Each rank gets those that were saved for it. If the number of ranks has changed, every rank gets the mean over all
    saved ranks.

    Args:
        arrays: The checkpoint's arrays; the statistics are named "rank0/NAME".
        names: Names of the statistics, without a rank.
        saved_ranks: Number of ranks that the checkpoint's run had.
        ranks: Number of ranks of this run.

    Returns:
        For each rank {name: value}.
    """
    saved = []
    for rank in range(saved_ranks):
        saved.append({name: arrays[f"rank{rank}/{name}"] for name in names})  # as a checkpoint names them
    if saved_ranks == ranks:
        return saved
    mean = {}
    for name in names:
        values = [saved_by_rank[name] for saved_by_rank in saved]
        mean[name] = np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype)
    return [mean] * ranks
