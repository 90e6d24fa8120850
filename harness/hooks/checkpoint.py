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
    """The place in a run from which to go on. An epoch ends with its evaluation, and not with its last step."""

    step: int  # optimizer steps done in the run
    epoch: int  # the epoch to go on with, from 1
    epoch_step: int  # steps done in that epoch
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
    """List the files of a folder that have the name of a checkpoint, which one gets when it is complete."""
    return sorted(folder.glob(f"step_*{SUFFIX}"), reverse=True)


# ---- going on


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run: step 0, or the position of a checkpoint."""

    position: Position = Position(step=0, epoch=1, epoch_step=0, seed=-1, global_batch=0, ranks=0)
    path: str = ""  # of the checkpoint; empty for step 0
    arrays: dict[str, Array] = field(default_factory=dict)  # of the checkpoint; rank 0 alone has them


def find(job: Job, ranks: Ranks, run: dict[str, Any]) -> Start:
    """Return where the run starts: at the newest good checkpoint of its folder, or at step 0.

    With RESUME=no that is step 0. Else rank 0 reads the newest checkpoint that is good, that is, not damaged, and
    broadcasts its position; the arrays stay with rank 0. Every rank must call this.

    `run` has what the run's state depends on, such as workload, recipe and number of samples. Raises ValueError on
    rank 0 where that, the global batch or the seed of the checkpoint's run was another.
    """
    if job.checkpoints.resume == "no":
        return Start()
    start = Start()
    if ranks.is_first:
        start = _newest_good(job, run, ranks.size)
    position, path = ranks.comm.bcast((start.position, start.path))
    return Start(position=position, path=path, arrays=start.arrays)


def _newest_good(job: Job, run: dict[str, Any], ranks: int) -> Start:
    """Return the start at the newest checkpoint that is not damaged, with its arrays; at step 0 where there is none.

    A warning is printed for each damaged checkpoint that is skipped, and where there is no good one. `run` has what
    this run's state depends on, `ranks` is the number of its ranks. Raises ValueError where the newest good checkpoint
    is of a run that this one cannot go on with; older ones are not looked at then.
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
            differs = _differences_in_words(run_there, run)
            raise ValueError(f"{path}: is of another run ({differs}): set RESUME=no, CHECKPOINT_DIR or what differs")
        _require_same_course(path, position, job, ranks)
        return Start(position=position, path=str(path), arrays=contents.arrays)
    print(f"warning: RESUME=auto: {folder} has no good checkpoint: starting at step 0", file=sys.stderr, flush=True)
    return Start()


def _require_same_course(path: Path, position: Position, job: Job, ranks: int) -> None:
    """Raise ValueError where the job has another global batch or seed than the run of the checkpoint at `path`.

    `position` is the checkpoint's, which names both; `ranks` is the number of this job's ranks. A job with SEED=-1 has
    no seed of its own and takes over the checkpoint's.
    """
    if position.global_batch != job.global_batch:
        raise ValueError(
            f"{path}: its run had {position.global_batch} images a step, this one has {job.global_batch}: the "
            f"recipe depends on it: set BATCHSIZE={position.global_batch / ranks:g} for {ranks} ranks"
        )
    if job.course.seed not in (-1, position.seed):
        raise ValueError(f"{path}: its run had SEED={position.seed}: set that, or SEED=-1 to take it over")


def _differences_in_words(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Return what differs between a checkpoint's run and this one, as "epochs 90 there, 37 here"."""
    differing = []
    for name, value in here.items():
        if there.get(name) != value:
            differing.append(f"{name} {there.get(name)!r} there, {value!r} here")
    return ", ".join(differing)


def restore(start: Start, training: build.TrainingProgram, ranks: Ranks) -> None:
    """Give every rank's program the state of the checkpoint that the run starts from; do nothing at step 0.

    Rank 0 has the checkpoint's arrays. It sets its own program's tensors and broadcasts them to the other ranks. The
    statistics of batch normalization (BN) differ from rank to rank: on as many ranks as before each gets its own, else
    all get the mean. The learning rate goes on at the checkpoint's step. Every rank must call this.

    Raises ValueError on rank 0 where the checkpoint lacks a tensor of the program.
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
    """Return a checkpoint's arrays, which are laid out as in the network, as the passes have the program store them."""
    forms = stored.forms(main)  # of the variables that the program stores otherwise, by name
    as_stored = {}
    for name, saved in arrays.items():
        _, _, variable = name.rpartition("/")  # a statistic's name is as rank0/VARIABLE
        form = forms.get(variable)
        as_stored[name] = saved if form is None else form.from_plain(saved)
    return as_stored


def _restore_first_rank(path: str, arrays: dict[str, Array], main: static.Program, statistics: set[str]) -> None:
    """Set every tensor of rank 0's program to the value that a checkpoint's arrays have for it.

    `statistics` are the names of the BN statistics, which the arrays have for each rank: as `rank0/NAME`. Where the
    loss scale was fixed in the checkpoint's run and is dynamic in this one, or the other way round, the program's loss
    scale stays as it begins, and a warning is printed.

    Raises ValueError for a tensor that the checkpoint does not have in the program's shape.
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
    """Set each rank's BN statistics to those of a checkpoint whose run had `ranks_then` ranks; all must call this.

    `statistics` are their names. If there are as many ranks as then, each gets the values of the rank of its number;
    else all get the mean. Rank 0 alone has the `arrays`, and sends every rank its values.
    """
    for name, tensor in state.tensors(main):
        if name not in statistics:
            continue
        values = None  # of the ranks; the others than rank 0 have none to send
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

        `start` is what `find` returned and `run` what it was given. `steps_per_epoch` is that of the run.

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
        self._kept = [Path(start.path)] if start.path else []  # checkpoints, the oldest first
        if self._active and ranks.is_first:
            self._prepare_folder()
        self._last_s = time.monotonic()
        self._signal = 0  # number of the last one that asked the run to end; 0: none
        self._handlers: dict[int, Any] = {}
        # Written over by each checkpoint, as memory taken and given back each time would scatter the heap.
        self._copies: dict[str, Array] = {}
        self._writer: threading.Thread | None = None
        self._outcome: schema.Checkpoint | OSError | None = None  # of the last checkpoint, until it is logged

    def _prepare_folder(self) -> None:
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
        """Say in words which checkpoint is the last one written; waits for it, and every rank must ask."""
        self._join()
        good = "there is no checkpoint of this run"
        if self._kept:
            good = f"the last good checkpoint is {self._kept[-1]}, from which RESUME=auto goes on"
        return str(self._ranks.comm.bcast(good))

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Write a checkpoint of `main` if one is due; return the seconds that the training waited for it.

        One is due when CHECKPOINT_MINUTES have passed, or when a signal asked a rank to end the run. Each rank says
        NOT_DUE, DUE or a signal's number, which is above both; the largest holds for all. Every rank must call this
        after the same step. The first call also begins to heed the signals. Without checkpoints this does nothing.

        Raises RunError where a signal asked for the end, once the checkpoint was written as far as it could be.
        """
        if not self._active:
            return 0.0
        self._report()
        if not self._handlers:  # only now: before there is anything to save, a signal should end the run at once
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
        """Return DUE on rank 0 where CHECKPOINT_MINUTES have passed since the last checkpoint, else NOT_DUE."""
        is_late = self._every_s > 0 and time.monotonic() - self._last_s >= self._every_s
        return DUE if self._ranks.is_first and is_late else NOT_DUE

    def epoch_ended(self, main: Any, epoch: int) -> None:
        """Write a checkpoint that is due after an epoch and its evaluation; every rank must call this."""
        if self._active and self._every_epochs and epoch % self._every_epochs == 0:
            self._save(main, step=epoch * self._steps_per_epoch, epoch=epoch + 1, epoch_step=0)

    def _save(self, main: Any, *, step: int, epoch: int, epoch_step: int) -> None:
        """Copy the state to host memory, and have a thread of rank 0 write it; every rank must call this.

        `step` is the number of steps done, `epoch` and `epoch_step` are where another run goes on. If the checkpoint
        before is still being written, this one is left out, and the log says so.
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
        leaves in `self._outcome` what `_report` logs later: the event of the checkpoint, or why it was not written (an
        OSError, for a state with an infinite value too).
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
        """Log what the writer did, and forget it; where it failed, print a warning too, and go on with the run."""
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
