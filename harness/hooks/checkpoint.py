"""Checkpoints: a run's whole state on the disk, so that another run can go on from it.

A file (harness/hooks/checkpoint_file.py) holds the arrays, the position in the run, and what its state depends on. A
background thread writes it from a copy in host memory, so that no step waits for the disk.

All randomness of a run is a function of (seed, epoch, sample): the seed and the position stand for random states.
"""

import math
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from mpi4py import MPI
from paddle import static

from harness import state
from harness.hooks import Hook
from harness.hooks.checkpoint_file import read, write
from harness.job import CheckpointSettings, Job
from harness.processes import STOPPED_BY
from harness.progress import Timing
from harness.ranks import Ranks
from program import build, stored
from program.arrays import Array
from runlog import schema
from runlog.errors import RunError
from runlog.writer import RunLog

SUFFIX = ".safetensors"
MIB = 2**20
SPARE = 64 * MIB  # left on the disk by a checkpoint, as the log's next line must find room there
# What a window's end says to the other ranks, in place of a signal's number, all of which are above.
NOT_DUE = 0
DUE = 1


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands. An epoch with all its steps done but without its evaluation has not ended."""

    step: int  # optimizer steps done in the run
    epoch: int  # the epoch to go on with, from 1
    epoch_step: int  # steps done in it
    seed: int
    global_batch: int  # images a step
    ranks: int


def folder_of(checkpoints: CheckpointSettings, log: Path) -> Path:
    """Return the folder of a run's checkpoints, which those share that go on with it: CHECKPOINT_DIR, or by its log."""
    if checkpoints.folder:
        return Path(checkpoints.folder)
    trial = log.name.partition(".")[0]
    return log.with_name(f"{trial}.checkpoints")


def _newest_first(folder: Path) -> list[Path]:
    """List the whole checkpoints of a folder."""
    return sorted(folder.glob(f"step_*{SUFFIX}"), reverse=True)


# ---- going on


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run: the beginning, or a checkpoint's position; rank 0 has its arrays too."""

    position: Position = Position(step=0, epoch=1, epoch_step=0, seed=-1, global_batch=0, ranks=0)
    path: str = ""  # of the checkpoint; empty at the beginning
    arrays: dict[str, Array] = field(default_factory=dict)


def find(job: Job, ranks: Ranks, run: dict[str, Any]) -> Start:
    """Return where the run starts: at the newest good checkpoint of its folder, or at the beginning.

    With RESUME=no that is the beginning. Else rank 0 reads the checkpoint and broadcasts its position, so that every
    rank must call this; the arrays stay with rank 0. A damaged checkpoint is skipped with a warning.

    `run` names what the state depends on (workload, recipe, number of samples...). Raises ValueError where that, the
    global batch or the seed of the checkpoint's run was another.
    """
    if job.checkpoints.resume == "no":
        return Start()
    start = Start()
    if ranks.is_first:
        start = _newest_whole(job, run, ranks.size)
    position, path = ranks.comm.bcast((start.position, start.path))
    return Start(position=position, path=path, arrays=start.arrays)


def _newest_whole(job: Job, run: dict[str, Any], ranks: int) -> Start:
    """Return the start at the newest checkpoint that is whole, with its arrays; at the beginning where there is none.

    A damaged checkpoint is skipped with a warning. Raises ValueError where the first whole one is of a run that this
    one cannot go on with. `run` names what this run's state depends on, `ranks` is the number of its ranks.
    """
    folder = folder_of(job.checkpoints, Path(job.trials.result_file))
    for path in _newest_first(folder):
        try:
            contents = read(path)
            position = Position(**contents.metadata["position"])
            run_there = contents.metadata["run"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            print(f"warning: {path}: damaged, {error}: skipped", file=sys.stderr, flush=True)
            continue
        if run_there != run:
            differs = _differences(run_there, run)
            raise ValueError(f"{path}: is of another run ({differs}): set RESUME=no, CHECKPOINT_DIR or what differs")
        _require_same_course(path, position, job, ranks)
        return Start(position=position, path=str(path), arrays=contents.arrays)
    print(f"warning: RESUME=auto: {folder} has no good checkpoint: starting at step 0", file=sys.stderr, flush=True)
    return Start()


def _require_same_course(path: Path, position: Position, job: Job, ranks: int) -> None:
    """Raise ValueError where the job has another global batch or seed than the run of the checkpoint at `path`.

    `position` is the checkpoint's, `ranks` the number of this job's ranks. SEED=-1 takes over the checkpoint's seed.
    """
    if position.global_batch != job.global_batch:
        raise ValueError(
            f"{path}: its run had {position.global_batch} images a step, this one has {job.global_batch}: the "
            f"recipe depends on it: set BATCHSIZE={position.global_batch / ranks:g} for {ranks} ranks"
        )
    if job.course.seed not in (-1, position.seed):
        raise ValueError(f"{path}: its run had SEED={position.seed}: set that, or SEED=-1 to take it over")


def _differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Return what a checkpoint's run had otherwise than this one."""
    differing = []
    for name, value in here.items():
        if there.get(name) != value:
            differing.append(f"{name} {there.get(name)!r} there, {value!r} here")
    return ", ".join(differing)


def restore(start: Start, training: build.TrainingProgram, ranks: Ranks) -> None:
    """Give every rank's program the state of the checkpoint that the run starts from; do nothing at the beginning.

    Rank 0 has the checkpoint's arrays. It takes them over and broadcasts what all ranks share. The statistics of batch
    normalization differ from rank to rank: on as many ranks as before each gets its own, else all get the mean. The
    learning rate goes on at the checkpoint's step. Every rank must call this.

    Raises ValueError where the checkpoint lacks a tensor of the program.
    """
    if not start.path:
        return
    main = training.main
    statistics = state.statistics_names(main)
    arrays = _as_stored(start.arrays, main)
    if ranks.is_first:
        _restore_first_rank(start.path, arrays, main, statistics)
    # The broadcast overwrites every rank's BN statistics by those of rank 0, so a rank's own must be set after it.
    state.broadcast_parameters(main, ranks)
    _restore_statistics(start.position.ranks, arrays, main, statistics, ranks)
    training.schedule.step(start.position.step)


def _as_stored(arrays: dict[str, Array], main: static.Program) -> dict[str, Array]:
    """Return a checkpoint's arrays, which are the plain network's, in the form in which the program stores them."""
    forms = stored.forms(main)
    as_stored = {}
    for name, saved in arrays.items():
        _, _, variable = name.rpartition("/")  # behind rank0/
        form = forms.get(variable)
        as_stored[name] = saved if form is None else form.from_plain(saved)
    return as_stored


def _restore_first_rank(path: str, arrays: dict[str, Array], main: static.Program, statistics: set[str]) -> None:
    """Give rank 0's program the state in a checkpoint's arrays, its own BN `statistics` (names) included.

    Where the loss scale is fixed in one of the two runs and dynamic in the other, the program keeps its own, with a
    warning. Raises ValueError for a tensor that the checkpoint does not have in the program's shape.
    """
    tensors = dict(state.tensors(main))
    was_dynamic = state.has_dynamic_loss_scale(arrays)
    is_dynamic = state.has_dynamic_loss_scale(tensors)
    begins_loss_scale_anew = False
    for name, tensor in tensors.items():
        if was_dynamic != is_dynamic and state.is_loss_scale(name):
            begins_loss_scale_anew = True
            continue
        name_in_checkpoint = f"rank0/{name}" if name in statistics else name
        value = arrays.get(name_in_checkpoint)
        if value is None or list(value.shape) != tensor.shape():
            raise ValueError(f"{path}: has no {name} of this program's shape: set RESUME=no")
        state.assign(tensor, value)
    if begins_loss_scale_anew:
        scales = "a fixed loss scale, this one has a dynamic one"
        if was_dynamic:
            scales = "a dynamic loss scale, this one has a fixed one"
        print(f"warning: {path}: its run had {scales}, which begins anew", file=sys.stderr, flush=True)


def _restore_statistics(
    ranks_then: int, arrays: dict[str, Array], main: static.Program, statistics: set[str], ranks: Ranks
) -> None:
    """Give each rank its BN `statistics` (names) of a checkpoint that `ranks_then` ranks have written.

    On as many ranks each gets the values of its own number; on another number all get the mean. Rank 0 has the arrays
    and sends every rank its part, so that all must call this.
    """
    for name, tensor in state.tensors(main):
        if name not in statistics:
            continue
        values = None  # by rank
        if ranks.is_first:
            values = [arrays[f"rank{rank}/{name}"] for rank in range(ranks_then)]
            if ranks_then != ranks.size:
                mean = np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype)
                values = [mean] * ranks.size
        state.assign(tensor, ranks.comm.scatter(values))


# ---- keeping


class Keeper(Hook):
    """Writes the checkpoints of a training run; every rank has one, rank 0's writes.

    A checkpoint is due every CHECKPOINT_EPOCHS, every CHECKPOINT_MINUTES, and when a signal of STOPPED_BY asks the run
    to end. The ranks agree on it at the end of a window of steps, in one all-reduce of an integer.
    """

    def __init__(
        self, job: Job, ranks: Ranks, log: RunLog, *, start: Start, run: dict[str, Any], seed: int, steps_per_epoch: int
    ) -> None:
        """Prepare to write the checkpoints that the job's settings ask for; remove what a killed run left half written.

        `run` and `start` are those of `find`. `steps_per_epoch` tells a checkpoint's step in its epoch.

        Raises ValueError where the folder has checkpoints and the run does not go on from them.
        """
        checkpoints = job.checkpoints
        self._every_epochs = checkpoints.epochs
        self._every_s = 60 * checkpoints.minutes
        self._keep = checkpoints.keep
        self._global_batch = job.global_batch
        self._ranks = ranks
        self._log = log
        self._run = run
        self._seed = seed
        self._steps_per_epoch = steps_per_epoch
        self._folder = folder_of(checkpoints, Path(job.trials.result_file))
        self._active = job.course.trains and bool(checkpoints.epochs or checkpoints.minutes)
        self._kept = [Path(start.path)] if start.path else []
        if self._active and ranks.is_first:
            self._make_way()
        self._last_s = time.monotonic()
        self._signal = 0
        self._handlers: dict[int, Any] = {}
        self._copies: dict[str, Array] = {}  # kept, as memory taken and given back each time scatters the heap
        self._writer: threading.Thread | None = None
        self._outcome: schema.Checkpoint | OSError | None = None  # of the last checkpoint, until it is logged

    def _make_way(self) -> None:
        """Remove what a killed run left half written.

        Raises ValueError where the folder has checkpoints of a run that this one does not go on with.
        """
        old = _newest_first(self._folder)
        if old and not self._kept:
            never = "checkpoints are never overwritten: set RESUME=auto or move them away"
            raise ValueError(f"{old[0]}: exists, {never}")
        for half in self._folder.glob(f".step_*{SUFFIX}.tmp"):
            half.unlink()

    def close(self) -> None:
        """Wait for the last checkpoint."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._join()
        self._report()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    @property
    def last_good(self) -> str:
        """Say in words which checkpoint is the last good one; every rank must ask."""
        self._join()
        good = "there is no checkpoint of this run"
        if self._kept:
            good = f"the last good checkpoint is {self._kept[-1]}, from which RESUME=auto goes on"
        return str(self._ranks.comm.bcast(good))

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Write a checkpoint of `main` if one is due; return the seconds that the training waited for it.

        One is due when CHECKPOINT_MINUTES have passed, or when a rank was sent a signal. The ranks agree on it by an
        all-reduce, the largest of their numbers: NOT_DUE, DUE or the signal's. Every rank must call this after the same
        step.

        Raises RunError, with the checkpoint on the disk, where a signal asked for the end.
        """
        if not self._active:
            return 0.0
        self._report()
        if not self._handlers:  # only now: before there is anything to save a signal ends the run at once
            self._handlers = {number: signal.signal(number, self._on_signal) for number in STOPPED_BY}
        due_or_signal = self._ranks.comm.allreduce(self._signal or self._due(), op=MPI.MAX)
        if due_or_signal == NOT_DUE:
            return 0.0

        started = time.perf_counter()
        epoch_step = step - (epoch - 1) * self._steps_per_epoch
        if due_or_signal == DUE:
            self._save(main, step=step, epoch=epoch, epoch_step=epoch_step)
            return time.perf_counter() - started
        self._join()  # else `_save` would leave this checkpoint out while the one before is being written
        self._save(main, step=step, epoch=epoch, epoch_step=epoch_step)
        self._join()
        self._report()
        cause = STOPPED_BY[signal.Signals(due_or_signal)]
        raise RunError(f"stopped by {cause} after step {step}; {self.last_good}")

    def _due(self) -> int:
        """Return DUE where rank 0 finds that CHECKPOINT_MINUTES have passed since the last checkpoint."""
        is_late = self._every_s > 0 and time.monotonic() - self._last_s >= self._every_s
        return DUE if self._ranks.is_first and is_late else NOT_DUE

    def epoch_ended(self, main: Any, epoch: int) -> None:
        """Write a checkpoint that is due after an epoch and its evaluation; every rank must call this."""
        if self._active and self._every_epochs and epoch % self._every_epochs == 0:
            self._save(main, step=epoch * self._steps_per_epoch, epoch=epoch + 1, epoch_step=0)

    def _save(self, main: Any, *, step: int, epoch: int, epoch_step: int) -> None:
        """Copy the state to host memory, and have a thread of rank 0 write it; every rank must call this.

        `epoch` and `epoch_step` are where another run goes on. The checkpoint is left out, with a line in the log, if
        the one before is still being written. `self._outcome` then holds what became of it, for `_report`.
        """
        started_s = time.monotonic()
        self._last_s = started_s
        statistics = {name: np.array(value) for name, value in state.statistics(main)}
        statistics_by_rank = self._ranks.comm.gather(statistics)
        if statistics_by_rank is None:  # on all ranks but 0
            return
        if self._writer and self._writer.is_alive():
            self._log.text(f"checkpoint of step {step} left out: the one before is still being written")
            return
        self._join()
        self._report()  # of the one before, which this one's outcome would replace

        arrays = self._copy_shared(main)
        for rank, statistics_of_rank in enumerate(statistics_by_rank):
            for name, value in statistics_of_rank.items():
                arrays[f"rank{rank}/{name}"] = value
        position = Position(
            step=step,
            epoch=epoch,
            epoch_step=epoch_step,
            seed=self._seed,
            global_batch=self._global_batch,
            ranks=self._ranks.size,
        )
        metadata = {"position": asdict(position), "run": self._run}
        blocked_s = time.monotonic() - started_s
        self._writer = threading.Thread(target=self._write, args=(arrays, metadata, blocked_s), name="checkpoint")
        self._writer.start()

    def _copy_shared(self, main: static.Program) -> dict[str, Array]:
        """Return copies, by name, of the state that all ranks share; they are good until the next call."""
        for name, value in state.shared_values(main):
            if name not in self._copies:
                self._copies[name] = np.empty_like(value)
            np.copyto(self._copies[name], value)
        return dict(self._copies)

    def _write(self, arrays: dict[str, Array], metadata: dict[str, Any], blocked_s: float) -> None:
        """Write a checkpoint, and remove the oldest ones beyond CHECKPOINT_KEEP; runs in a thread of its own.

        `blocked_s` is how long the training waited for the copy of its state. The thread must not write the log, so it
        leaves in `self._outcome` what `_report` logs later: the event of the checkpoint, or the error where the state
        is not finite, or the disk has no room or fails.
        """
        started_s = time.monotonic()
        step = metadata["position"]["step"]
        path = self._folder / f"step_{step:09d}{SUFFIX}"
        try:
            _check_finite(arrays)
            self._require_room(arrays)
            write(path, arrays, metadata)
            self._kept.append(path)
            while len(self._kept) > self._keep:
                self._kept.pop(0).unlink(missing_ok=True)
            self._outcome = schema.Checkpoint(
                step=step,
                file=path.name,
                mib=round(path.stat().st_size / MIB, 1),
                blocked_s=round(blocked_s, 4),
                write_s=round(time.monotonic() - started_s, 4),
            )
        except OSError as error:
            self._outcome = error

    def _require_room(self, arrays: dict[str, Array]) -> None:
        """Create the folder of the checkpoints; raise OSError where its disk has no room for the arrays and SPARE."""
        self._folder.mkdir(parents=True, exist_ok=True)
        needed = sum(value.nbytes for value in arrays.values()) + SPARE
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise OSError(f"{self._folder} has {_mib(free)} MiB left, {_mib(needed)} are needed")

    def _join(self) -> None:
        """Wait for the thread that writes."""
        if self._writer:
            self._writer.join()

    def _report(self) -> None:
        """Log what the writer did; a checkpoint that cannot be written is no reason to lose the run as well."""
        outcome = self._outcome
        self._outcome = None
        if isinstance(outcome, schema.Checkpoint):
            self._log.event(schema.CHECKPOINT, outcome)
        elif outcome:
            text = f"warning: checkpoint not written: {outcome}"
            print(text, file=sys.stderr, flush=True)
            self._log.text(text)


def _check_finite(arrays: dict[str, Array]) -> None:
    """Raise OSError where an array has an infinite value or a NaN.

    By its sum, which takes no memory: a mask's would stay with the writing thread's heap, once for each checkpoint.
    """
    for name, value in arrays.items():
        if value.dtype.kind == "f" and not math.isfinite(np.sum(value, dtype=np.float64)):
            raise OSError(f"{name} is not finite")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f}"
