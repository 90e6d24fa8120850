"""Writes checkpoints: a run's whole state on the disk, so that another run can go on from it (resume.py).

A file (checkpoint_file.py) holds the arrays, the position in the run, and what its state depends on. A
background thread writes it from a copy in host memory, so that no step waits for the disk.

All randomness of a run is a function of (seed, epoch, sample): the seed and the position stand for random states.
"""

import math
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from mpi4py import MPI
from paddle import static

from harness import state
from harness.hooks import Hook
from harness.hooks.checkpoint_file import SUFFIX, Position, folder_of, newest_first, write
from harness.hooks.resume import Start
from harness.job import Job
from harness.processes import STOPPED_BY
from harness.progress import Timing
from harness.ranks import Ranks
from program.arrays import Array
from runlog import schema
from runlog.errors import RunError
from runlog.writer import RunLog

MIB = 2**20
SPARE = 64 * MIB  # left on the disk by a checkpoint, as the log's next line must find room there
# What a window's end says to the other ranks, in place of a signal's number, all of which are above.
NOT_DUE = 0
DUE = 1


class Keeper(Hook):
    """Writes the checkpoints of a training run; every rank has one, rank 0's writes.

    A checkpoint is due every CHECKPOINT_EPOCHS, every CHECKPOINT_MINUTES, and when a signal of STOPPED_BY asks the run
    to end. The ranks agree on it at the end of a window of steps, in one all-reduce of an integer.
    """

    def __init__(
        self, job: Job, ranks: Ranks, log: RunLog, *, start: Start, run: dict[str, Any], seed: int, steps_per_epoch: int
    ) -> None:
        """Prepare to write the checkpoints that the job's settings ask for; remove what a killed run left half written.

        `start` is the position from which the training begins. `run` has the facts that the state depends on, such as
        workload, recipe and number of samples. They are stored in each checkpoint: a run that resumes from it must have
        equal ones.

        Raises ValueError if the folder has checkpoints and the run does not go on from them.
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
        self._last_checkpoint_s = time.monotonic()
        self._signal = 0  # the last signal that asked the run to end; 0: none
        self._handlers: dict[int, Any] = {}
        # Written over by each checkpoint, as memory taken and given back each time would scatter the heap.
        self._copies: dict[str, Array] = {}
        self._writer: threading.Thread | None = None
        self._outcome: schema.Checkpoint | OSError | None = None  # of the last checkpoint, until it is logged

    def _prepare_folder(self) -> None:
        """Remove what a killed run left half written.

        Raises ValueError where the folder has checkpoints of a run that this one does not go on with.
        """
        old = newest_first(self._folder)
        if old and not self._kept:
            never = "checkpoints are never overwritten: set RESUME=auto or move them away"
            raise ValueError(f"{old[0]}: exists, {never}")
        for half in self._folder.glob(f".step_*{SUFFIX}.tmp"):
            half.unlink()

    def close(self) -> None:
        """Wait for the last checkpoint."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._wait_for_writer()
        self._report()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    @property
    def last_good(self) -> str:
        """Say in words which checkpoint is the last one written; waits for it, and every rank must ask."""
        self._wait_for_writer()
        good = "there is no checkpoint of this run"
        if self._kept:
            good = f"the last good checkpoint is {self._kept[-1]}, from which RESUME=auto goes on"
        return str(self._ranks.comm.bcast(good))

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Write a checkpoint of `main` if one is due; return the seconds that the training waited for it.

        One is due if CHECKPOINT_MINUTES have passed; a thread then writes it while the training goes on. One is also
        due if a signal asked a rank to end the run; then this waits until it is written. Each rank contributes the
        number of its signal, else DUE or NOT_DUE. The largest wins, and the numbers of signals are above both.

        Every rank must call this after the same step. The first call also begins to catch the signals. If the run
        writes no checkpoints, this does nothing. `window` is not used; other hooks want it.

        Raises RunError if a signal asked for the end, after the checkpoint was written or failed.
        """
        if not self._active:
            return 0.0
        self._report()
        if not self._handlers:  # only now: before there is anything to save, a signal should end the run at once
            self._handlers = {number: signal.signal(number, self._on_signal) for number in STOPPED_BY}
        # The largest counts: a signal's number is above DUE, and DUE above NOT_DUE.
        due_or_signal = self._ranks.comm.allreduce(self._signal or self._due(), op=MPI.MAX)
        if due_or_signal == NOT_DUE:
            return 0.0

        started = time.perf_counter()
        epoch_step = step - (epoch - 1) * self._steps_per_epoch
        if due_or_signal == DUE:
            self._save(main, step=step, epoch=epoch, epoch_step=epoch_step)
            return time.perf_counter() - started
        self._wait_for_writer()  # else `_save` would skip this checkpoint if the one before is still being written
        self._save(main, step=step, epoch=epoch, epoch_step=epoch_step)
        self._wait_for_writer()
        self._report()
        cause = STOPPED_BY[signal.Signals(due_or_signal)]
        raise RunError(f"stopped by {cause} after step {step}; {self.last_good}")

    def _due(self) -> int:
        """Return DUE on rank 0 where CHECKPOINT_MINUTES have passed since the last checkpoint, else NOT_DUE."""
        is_late = self._every_s > 0 and time.monotonic() - self._last_checkpoint_s >= self._every_s
        return DUE if self._ranks.is_first and is_late else NOT_DUE

    def epoch_ended(self, main: Any, epoch: int) -> None:
        """Write a checkpoint that is due after an epoch and its evaluation; every rank must call this."""
        if self._active and self._every_epochs and epoch % self._every_epochs == 0:
            self._save(main, step=epoch * self._steps_per_epoch, epoch=epoch + 1, epoch_step=0)

    def _save(self, main: Any, *, step: int, epoch: int, epoch_step: int) -> None:
        """Copy the state to host memory, and start a thread of rank 0 that writes it; every rank must call this.

        `step` steps are done; a run that goes on from here begins in `epoch` after `epoch_step` of its steps. The
        checkpoint is left out if the one before is still being written.
        """
        started_s = time.monotonic()
        self._last_checkpoint_s = started_s
        statistics = {name: np.array(value) for name, value in state.statistics(main)}
        statistics_by_rank = self._ranks.comm.gather(statistics)
        if statistics_by_rank is None:  # on all ranks but 0
            return
        if self._writer and self._writer.is_alive():
            self._log.text(f"checkpoint of step {step} left out: the one before is still being written")
            return
        self._report()  # the outcome of the checkpoint before, which that of this one will replace

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

        `blocked_s` is how long the training waited for the copy of its state. The thread must not write the log. So it
        leaves the outcome in `self._outcome`, and `_report` logs it later: the event of the checkpoint, or an OSError
        that says why it was not written. A state with an infinite value is not written either.
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

    def _wait_for_writer(self) -> None:
        """Wait until the last checkpoint is written, or has failed."""
        if self._writer:
            self._writer.join()

    def _report(self) -> None:
        """Log the outcome of the last checkpoint, once; if it was not written, print a warning, too."""
        outcome = self._outcome
        self._outcome = None
        if isinstance(outcome, schema.Checkpoint):
            self._log.event(schema.CHECKPOINT, outcome)
        elif outcome:
            text = f"warning: checkpoint not written: {outcome}"
            print(text, file=sys.stderr, flush=True)
            self._log.text(text)


def _check_finite(arrays: dict[str, Array]) -> None:
    """Raise OSError if an array has an infinite value or a NaN.

    Its sum shows that, and takes no memory. A mask of the array would take some, which the writing thread's heap would
    keep, again for each checkpoint.
    """
    for name, value in arrays.items():
        if value.dtype.kind == "f" and not math.isfinite(np.sum(value, dtype=np.float64)):
            raise OSError(f"{name} is not finite")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f}"
