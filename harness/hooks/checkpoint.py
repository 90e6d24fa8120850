"""Writes checkpoints: a run's whole state on the disk, so that another run can go on from it (resume.py).

A file (checkpoint_file.py) holds the arrays, the position in the run, and what its state depends on. A
background thread writes it from a copy in host memory, so that no step waits for the disk.

All randomness of a run is a function of (seed, epoch, sample): the seed and the position stand for random states.
"""

import contextlib
import errno
import math
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TextIO

import numpy as np
from paddle import static

from harness import state
from harness.hooks import Hook
from harness.hooks.checkpoint_file import (
    Position,
    file_of,
    flush_folder,
    folder_of,
    half_written,
    hold,
    let_go,
    newest_first,
    not_newer,
    write,
)
from harness.hooks.resume import Start
from harness.job import Job
from harness.processes import STOPPED_BY
from harness.progress import Progress, Timing
from harness.ranks import Ranks
from program.arrays import Array
from runlog import named_files, schema
from runlog.errors import RunError, message_of
from runlog.writer import RunLog

MIB = 2**20
SPARE = 64 * MIB  # left on the disk by a checkpoint, as the log's next line must find room there
PATIENCE_S = 120.0  # NFS keeps the lock of a node that was lost for up to 90 s, and a run goes on elsewhere at once
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)  # it may have room by the time of the first checkpoint
NO_SIGNAL = 0  # below the number of any signal


class _Written(NamedTuple):
    """The outcome of a checkpoint that was written."""

    event: schema.Checkpoint
    left_undone: str  # why older checkpoints were not removed, or the file may be lost; empty: all is done


class _Failed(NamedTuple):
    """The outcome of a checkpoint that was not written."""

    event: schema.FailedCheckpoint
    error: Exception


class Keeper(Hook):
    """Writes the checkpoints of a training run; every rank has one, rank 0's writes.

    A checkpoint is due every CHECKPOINT_EPOCHS, every CHECKPOINT_MINUTES, and when a signal of STOPPED_BY asks the run
    to end. The ranks agree on the latter two at the end of a window of steps.
    """

    def __init__(
        self,
        job: Job,
        ranks: Ranks,
        log: RunLog,
        progress: Progress,
        *,
        start: Start,
        identity: dict[str, Any],
        seed: int,
        steps_per_epoch: int,
    ) -> None:
        """Prepare to write checkpoints as the job's settings say; nothing is written yet.

        If the run writes checkpoints, rank 0 removes from their folder what a killed run has left half written.

        Args:
            job: The settings of the job: how often to write, how many files to keep, and in which folder.
            ranks: This process among the ranks of the job.
            log: The log of the run.
            progress: What the user sees of the run, also that a checkpoint was not written.
            start: Where the run goes on from: step 0 or a checkpoint.
            identity: What the run's state depends on, such as the recipe and the image size, by name. Each checkpoint
                states it.
            seed: Seed of the run.
            steps_per_epoch: Training steps of an epoch.

        Raises:
            ValueError: On rank 0 of a run that writes checkpoints, if the folder has some and the run does not go on
                from one of them, or if another run is writing into it.
        """
        self._settings = job.checkpoints
        self._ranks = ranks
        self._log = log
        self._progress = progress
        self._steps_per_epoch = steps_per_epoch
        # Each checkpoint says of which run it is.
        self._identity = identity
        self._seed = seed
        self._global_batch = job.global_batch
        self._folder = folder_of(job)
        self._writes_checkpoints = _writes_checkpoints(job)
        # Held on the folder. Also one next to a log may be of two runs: the second goes on from the first in a new log.
        self._lock: TextIO | None = None
        if self._writes_checkpoints and ranks.is_first:
            may_go_on = job.checkpoints.resume == "auto"  # also where the run before has left no checkpoint
            self._lock = hold(self._folder, patience_s=PATIENCE_S if may_go_on else 0.0, say=progress.say)
            _prepare_folder(self._folder, start)

        # What makes a checkpoint due at the end of a window of steps.
        self._last_checkpoint_s: float | None = None  # when the last one began, or the first step; None before it
        self._signal = NO_SIGNAL  # the last one that asked the run to end
        self._earlier_handlers: dict[int, Any] = {}  # by signal; empty until `_catch_signals`

        # Only rank 0 writes, in one thread at a time.
        self._writer: threading.Thread | None = None  # of the last checkpoint; None before the first
        self._outcome: _Written | _Failed | None = None  # the thread leaves it for `_report`, which logs it
        # Checkpoints of this run, the oldest first: the one that it goes on from, and those before it.
        self._on_disk = not_newer(Path(start.path)) if start.is_from_checkpoint else []
        # Copies of the state, by name, which the thread writes. All checkpoints use the same memory for them, because
        # to take memory and give it back each time would fragment the heap.
        self._copies: dict[str, Array] = {}

    def close(self) -> None:
        """Wait for the last checkpoint, and leave the signals and the folder to whoever wants them next.

        A folder next to the log is removed if it holds no checkpoint.
        """
        for number, handler in self._earlier_handlers.items():
            signal.signal(number, handler)
        self._wait_for_writer()
        self._report()
        if self._lock is not None:
            let_go(self._lock)
            is_made_for_log = not self._settings.folder
            if is_made_for_log:
                with contextlib.suppress(OSError):  # as it holds checkpoints
                    self._folder.rmdir()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    @property
    def last_good(self) -> str:
        """Return a sentence that names the last checkpoint, from which a run can go on.

        If there is none, the text says so. This waits until the checkpoint is written, and every rank must ask.
        """
        return self._last_in_words(suffix=", from which RESUME=auto goes on")

    @property
    def last_written(self) -> str:
        """Return in words which checkpoint is the last one written by a run that has done all of its epochs.

        Unlike `last_good` this does not say that a run can go on from it, because no epoch is left. This waits until
        the checkpoint is written, and every rank must ask.
        """
        return self._last_in_words(suffix="")

    def _last_in_words(self, *, suffix: str) -> str:
        self._wait_for_writer()
        in_words = "there is no checkpoint of this run"
        if self._on_disk:
            in_words = f"the last good checkpoint is {self._on_disk[-1]}{suffix}"
        return str(self._ranks.comm.bcast(in_words))

    def run_begins(self) -> None:
        """Count CHECKPOINT_MINUTES from the first step on: the log has begun by then, so its clock holds them."""
        if self._last_checkpoint_s is None:
            self._last_checkpoint_s = time.monotonic()

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Write a checkpoint after a window of training steps, if one is due; every rank must call this.

        The first of these cases counts:

            the run writes no checkpoints:           nothing is done
            a signal asked any rank to end the run:  one is written if that is possible, and the run ends
            CHECKPOINT_MINUTES is 0, or they have
            not passed by the clock of rank 0:       none is written
            the epoch ends, and one is due after it
            by CHECKPOINT_EPOCHS:                    none is written here, as `epoch_ended` will write it
            any other window:                        `_save` begins to write one, or warns; the run goes on

        Args:
            main: The training program.
            window: The steps that have ended; not used here.
            step: Number of the last step, counted from 1 over the whole run. It must be the same on every rank.
            epoch: Number of the epoch, from 1.

        Returns:
            Seconds that the training waited for the checkpoint. They are 0 if none was due.

        Raises:
            RunError: A signal asked the run to end. The message names the last good checkpoint, or says that there is
                none.
        """
        if not self._writes_checkpoints:
            return 0.0
        self._report()  # the checkpoint before may be written by now
        self._catch_signals()  # in the first window, after which there is a state to save; later calls do nothing
        steps_before_epoch = (epoch - 1) * self._steps_per_epoch
        position = self._position(step=step, epoch=epoch, epoch_step=step - steps_before_epoch)

        # All ranks must save, or none: so they agree on a signal and on the time.
        stopped_by = self._signal_on_any_rank()
        is_due_by_clock_of_rank_0 = self._ranks.comm.bcast(self._is_due())
        if stopped_by != NO_SIGNAL:
            self._save_and_stop(main, position, signal.Signals(stopped_by))  # raises RunError

        ends_epoch = position.epoch_step == self._steps_per_epoch
        epoch_ended_will_save = ends_epoch and self._is_due_after_epoch(epoch)
        if not is_due_by_clock_of_rank_0 or epoch_ended_will_save:
            return 0.0
        started_s = time.perf_counter()
        self._save(main, position)
        return time.perf_counter() - started_s

    def _signal_on_any_rank(self) -> int:
        """Return the number of a signal that asked any rank to end the run, or NO_SIGNAL; every rank must call this.

        If ranks got different signals, it is the one with the largest number. So the result is the same on all ranks.
        """
        signal_of_each_rank: list[int] = self._ranks.comm.allgather(self._signal)
        return max(signal_of_each_rank)

    def _save_and_stop(self, main: Any, position: Position, stopped_by: signal.Signals) -> NoReturn:
        """Write a checkpoint, wait until it is on the disk, and end the run by an error; every rank must call this.

        Args:
            main: The training program.
            position: The place in the run from which to go on.
            stopped_by: The signal that asked the run to end, for the message.

        Raises:
            RunError: Always. The message names the signal and the last good checkpoint, or says that there is none.
        """
        self._wait_for_writer()  # else `_save` would skip this checkpoint if the one before is still being written
        self._save(main, position)
        self._wait_for_writer()
        self._report()
        raise RunError(f"stopped by {STOPPED_BY[stopped_by]} after step {position.step}; {self.last_good}")

    def _catch_signals(self) -> None:
        """Have the signals of STOPPED_BY noted in `_signal` from now on; a second call does nothing.

        The first call must come when there is something to save. Before, a signal should end the run at once.
        """
        if not self._earlier_handlers:
            self._earlier_handlers = {number: signal.signal(number, self._on_signal) for number in STOPPED_BY}

    def _is_due(self) -> bool:
        """Return whether CHECKPOINT_MINUTES are set and have passed since the last checkpoint, by this rank's clock."""
        assert self._last_checkpoint_s is not None, "a window has ended before the first step"
        limit_s = 60 * self._settings.minutes
        return limit_s > 0 and time.monotonic() - self._last_checkpoint_s >= limit_s

    def _is_due_after_epoch(self, epoch: int) -> bool:
        """Return whether CHECKPOINT_EPOCHS asks for a checkpoint after an epoch and its evaluation."""
        every_epochs = self._settings.epochs  # 0: none is due by epochs
        return every_epochs > 0 and epoch % every_epochs == 0

    def epoch_ended(self, main: Any, epoch: int) -> None:
        """Write a checkpoint after an epoch and its evaluation, if one is due; every rank must call this.

        Args:
            main: The training program.
            epoch: Number of the epoch that has ended, from 1. One is due every CHECKPOINT_EPOCHS.
        """
        if self._writes_checkpoints and self._is_due_after_epoch(epoch):
            self._save(main, self._position(step=epoch * self._steps_per_epoch, epoch=epoch + 1, epoch_step=0))

    def _position(self, *, step: int, epoch: int, epoch_step: int) -> Position:
        """Return a place in this run from which another run can go on.

        Args:
            step: Training steps that the run has done.
            epoch: The epoch to go on with, from 1.
            epoch_step: Steps of that epoch that are done.
        """
        return Position(
            step=step,
            epoch=epoch,
            epoch_step=epoch_step,
            seed=self._seed,
            global_batch=self._global_batch,
            ranks=self._ranks.size,
        )

    def _save(self, main: Any, position: Position) -> None:
        """Have rank 0 copy the run's state to host memory and write it in a thread; every rank must call this.

        The training waits for the copy, and never for the disk. All ranks take part because each has batch norm
        statistics of its own, which rank 0 collects. All other state is the same on every rank.

        If the checkpoint cannot be written, the user is warned, and the training goes on.

        Args:
            main: The training program.
            position: The place in the run from which to go on.
        """
        started_s = time.monotonic()
        # Also if this one is left out: CHECKPOINT_MINUTES count anew, so that a slow disk is not asked again at once.
        self._last_checkpoint_s = started_s
        statistics_by_rank = self._ranks.comm.gather(_statistics_or_error(main))
        if statistics_by_rank is None:  # this is not rank 0
            return
        if self._is_writing():
            self._warn(f"checkpoint of step {position.step} left out: the one before is still being written")
            return

        self._report()  # logs the outcome of the checkpoint before, as the new thread will overwrite `self._outcome`
        try:
            # MemoryError: there is no memory for the copies, here or for the statistics of another rank.
            arrays = self._copy_shared(main) | _by_rank_and_name(statistics_by_rank)
            blocked_s = time.monotonic() - started_s
            writer = threading.Thread(target=self._write, args=(arrays, position, blocked_s), name="checkpoint")
            writer.start()  # RuntimeError: the system gives no further thread
        except (MemoryError, RuntimeError) as error:
            self._outcome = _failed(position, time.monotonic() - started_s, error)
            self._report()  # logs that this one has failed
        else:
            self._writer = writer  # if it fails later, as on a full disk, the next `_report` logs that

    def _is_writing(self) -> bool:
        """Return whether this rank's thread still writes a checkpoint."""
        return self._writer is not None and self._writer.is_alive()

    def _copy_shared(self, main: static.Program) -> dict[str, Array]:
        """Return copies, by name, of the state that is equal on all ranks; they are good until the next call.

        Args:
            main: The training program.
        """
        for name, value in state.shared_values(main):
            if name not in self._copies:
                self._copies[name] = np.empty_like(value)
            np.copyto(self._copies[name], value)
        return dict(self._copies)

    def _write(self, arrays: dict[str, Array], position: Position, blocked_s: float) -> None:
        """Write a checkpoint in a thread of its own, and leave its outcome for the main thread.

        This thread must not write the log. So `self._outcome` gets the event for the log, with the error that came, and
        `_report` logs it later on the main thread. No error ends the run, which has lost no more than a checkpoint.

        Args:
            arrays: The state to write, by name.
            position: The place in the run from which to go on.
            blocked_s: Seconds that the training waited for the copy of its state, for the event.
        """
        try:
            self._outcome = self._write_file(arrays, position, blocked_s)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread, outside which no one would learn of it
            self._outcome = _failed(position, blocked_s, error)

    def _write_file(self, arrays: dict[str, Array], position: Position, blocked_s: float) -> _Written:
        """Write the file of a checkpoint, and remove the oldest files so that CHECKPOINT_KEEP are left.

        Once the file is complete no error is raised: a failure to flush its folder or to remove a file is returned.

        Args:
            arrays: The state to write, by name.
            position: The place in the run from which to go on. Its step names the file.
            blocked_s: Seconds that the training waited for the copy of its state, for the event.

        Returns:
            The event for the log (step, file, size and times), and in words what failed once the file was complete.

        Raises:
            OSError: A value of the state is infinite or NaN, or the disk is full or fails. There is no new file.
        """
        started_s = time.monotonic()
        _require_finite(arrays)
        self._require_room(arrays)
        path = file_of(self._folder, position.step)
        size_bytes = write(path, arrays, {"position": asdict(position), "run": self._identity})
        if path not in self._on_disk:  # it is, if this run writes the checkpoint again that it went on from
            self._on_disk.append(path)
        left_undone = ""
        try:
            flush_folder(self._folder)
            self._remove_oldest()
        except OSError as error:
            left_undone = _in_words(error)
        event = schema.Checkpoint(
            step=position.step,
            file=path.name,
            mib=round(size_bytes / MIB, 1),
            blocked_s=round(blocked_s, 4),
            write_s=round(time.monotonic() - started_s, 4),
        )
        return _Written(event, left_undone)

    def _remove_oldest(self) -> None:
        """Remove the oldest checkpoints, so that CHECKPOINT_KEEP are left.

        Raises:
            OSError: One cannot be removed. The next call tries it again.
        """
        while len(self._on_disk) > self._settings.keep:
            self._on_disk[0].unlink(missing_ok=True)
            self._on_disk.pop(0)

    def _require_room(self, arrays: dict[str, Array]) -> None:
        """Create the folder of the checkpoints, and make sure that its disk has room for a further one.

        Args:
            arrays: The arrays to write. SPARE bytes more must be free.

        Raises:
            OSError: There is too little room, or the folder cannot be created.
        """
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
        """Log the outcome of the last checkpoint, once; if anything failed, show and print a warning, too."""
        outcome = self._outcome
        self._outcome = None
        if isinstance(outcome, _Failed):
            self._log.event(schema.CHECKPOINT_FAILED, outcome.event)
            self._warn(f"checkpoint not written: {_in_words(outcome.error)}")
        elif outcome:
            self._log.event(schema.CHECKPOINT, outcome.event)
            if outcome.left_undone:
                self._warn(f"{outcome.event.file} is written, but older checkpoints may be left: {outcome.left_undone}")

    def _warn(self, note: str) -> None:
        """Show a warning, print it on stderr and log it; again for each checkpoint, as each is one more that is lost.

        Args:
            note: The warning, one line.
        """
        text = f"warning: {note}"
        print(text, file=sys.stderr, flush=True)
        self._progress.say(text)
        self._log.text(text)


def require_writable(job: Job) -> None:
    """Make CHECKPOINT_DIR if a job writes checkpoints there, and raise ValueError if files cannot be made in it.

    Call it before the log is begun, so that a bad setting leaves no log. Without CHECKPOINT_DIR this function does
    nothing: the checkpoints then lie next to the log, and the log's own creation shows whether that folder can be
    written.

    Args:
        job: The settings of the job.

    Raises:
        ValueError: The folder cannot be made or written; the message says why. If only the disk is full, nothing is
            raised, because there may be room by the time of the first checkpoint.
    """
    if not (_writes_checkpoints(job) and job.checkpoints.folder):
        return
    folder = folder_of(job)
    refusal: OSError | None  # why the folder cannot be made or written; None if it can
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refusal = named_files.refusal_of_new_file(folder)  # tries to make a file, and returns the error
    except OSError as error:  # of `mkdir`
        # The same error with the name of this folder, because `error` may name a folder above.
        refusal = OSError(error.errno, error.strerror, str(folder))
    if refusal and refusal.errno not in DISK_IS_FULL:
        raise ValueError(f"CHECKPOINT_DIR={named_files.explain(refusal)}") from refusal


def _failed(position: Position, blocked_s: float, error: Exception) -> _Failed:
    """Return the outcome of a checkpoint that was not written.

    Args:
        position: The place in the run from which to go on.
        blocked_s: Seconds that the training waited for it.
        error: Why it was not written.
    """
    return _Failed(schema.FailedCheckpoint(step=position.step, blocked_s=round(blocked_s, 4)), error)


def _writes_checkpoints(job: Job) -> bool:
    return job.course.trains and bool(job.checkpoints.epochs or job.checkpoints.minutes)


def _prepare_folder(folder: Path, start: Start) -> None:
    """Remove from a folder of checkpoints what a killed run left half written.

    Args:
        folder: The folder, which need not exist.
        start: Where the run goes on from: step 0 or a checkpoint.

    Raises:
        ValueError: The folder has checkpoints, and the run does not go on from one.
    """
    old = newest_first(folder)
    if old and not start.is_from_checkpoint:
        never = "checkpoints are never overwritten: set RESUME=auto or move them away"
        raise ValueError(f"{old[0]}: exists, {never}")
    for path in half_written(folder):
        path.unlink()


def _statistics_or_error(main: static.Program) -> dict[str, Array] | MemoryError:
    """Copy the BN statistics of this rank: running means and variances, the only state that differs from rank to rank.

    If there is no memory for them the error is returned, not raised: rank 0 waits for what each rank sends.

    Args:
        main: The training program of this rank.

    Returns:
        The copies by name, or the error.
    """
    try:
        return {name: np.array(value) for name, value in state.statistics(main)}
    except MemoryError as error:
        return error


def _by_rank_and_name(statistics_by_rank: list[dict[str, Array] | MemoryError]) -> dict[str, Array]:
    """Return the BN statistics of all ranks under the names that a checkpoint has for them, such as "rank0/NAME".

    Args:
        statistics_by_rank: For each rank its running means and variances of batch normalization, by name; or the error
            of a rank that had no memory for a copy of them.

    Raises:
        MemoryError: A rank had no memory for a copy of its statistics.
    """
    named = {}
    for rank, statistics in enumerate(statistics_by_rank):
        if isinstance(statistics, MemoryError):
            raise statistics
        for name, value in statistics.items():
            named[f"rank{rank}/{name}"] = value
    return named


def _require_finite(arrays: dict[str, Array]) -> None:
    """Make sure that no array has an infinite value or a NaN.

    A sum of all values is infinite or NaN if one of them is. Unlike a mask (`np.isfinite` of the array) it needs no
    memory of the array's size, which the heap of the writing thread would keep for each checkpoint.

    Args:
        arrays: Arrays by name. Only those of floating-point numbers are looked at.

    Raises:
        OSError: An array has such a value; the message names it. As after a full disk, there is no new checkpoint.
    """
    for name, value in arrays.items():
        is_floating_point = value.dtype.kind == "f"
        if is_floating_point and not math.isfinite(np.sum(value, dtype=np.float64)):
            raise OSError(f"{name} is not finite")


def _in_words(error: Exception) -> str:
    """Return an error on one line, with its class unless it is of the disk, whose text tells the kind.

    Args:
        error: The error.
    """
    text = message_of(error)
    kind = type(error).__name__
    is_clear_without_kind = isinstance(error, OSError) or text == kind
    return text if is_clear_without_kind else f"{kind}: {text}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f}"
