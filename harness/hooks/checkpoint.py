"""Checkpoints: a run's whole state on the disk, so that another run can go on from it.

A file is in the safetensors format (a JSON header, then raw arrays): reading one runs no code of whoever wrote it.
Its `__metadata__` holds the position in the run and the SHA-256 of header and arrays. It is written under a temporary
name, synced and renamed, so that a whole name means a whole file; a background thread does it from a copy in host
memory, so that no step waits for the disk.

All randomness of a run is a function of (seed, epoch, sample): the seed and the position stand for random states.
"""

import hashlib
import json
import math
import os
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
from harness.job import Job
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
# mpirun kills its ranks at TERM and INT, so launch/trials.sh passes them on as USR1 and USR2.
SIGNALS = {signal.SIGTERM: "TERM", signal.SIGUSR1: "TERM", signal.SIGUSR2: "INT"}
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "|b1"}  # that a state has
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands. An epoch with all its steps done but without its evaluation has not ended."""

    step: int  # optimizer steps done in the run
    epoch: int  # the epoch to go on with, from 1
    epoch_step: int  # steps done in it
    seed: int
    global_batch: int  # images a step
    ranks: int


# ---- the file


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def write(path: Path, arrays: dict[str, Array], metadata: dict[str, Any]) -> None:
    """Writes a checkpoint, whole under its name or not at all. Raises OSError where it cannot be written."""
    header: dict[str, Any] = {"__metadata__": {name: json.dumps(value) for name, value in metadata.items()}}
    end = 0
    for name, array in arrays.items():
        assert array.flags.c_contiguous
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    contents = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    digest = hashlib.sha256(_canonical(header))
    for content in contents:
        digest.update(content)
    header["__metadata__"]["sha256"] = digest.hexdigest()
    text = _canonical(header)
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.writelines(contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and metadata of a checkpoint. Raises ValueError where it is damaged or none, OSError where unreadable."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= len(data) - 8:
        raise ValueError("its header is cut short")
    body = memoryview(data)[8 + length :]
    try:
        header = json.loads(data[8 : 8 + length])
        metadata = header["__metadata__"]
        wanted = metadata.pop("sha256")
        digest = hashlib.sha256(_canonical(header))
        digest.update(body)
        if digest.hexdigest() != wanted:
            raise ValueError("its checksum is wrong")
        arrays = {}
        del header["__metadata__"]
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
            if not 0 <= begin <= end <= len(body) or end - begin != dtype.itemsize * math.prod(shape):
                raise ValueError(f"{name} lies outside the file")
            arrays[name] = np.frombuffer(body[begin:end], dtype=dtype).reshape(shape)
        return arrays, {name: json.loads(text) for name, text in metadata.items()}
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header makes no sense ({type(error).__name__}: {error})") from error


def folder_of(job: Job) -> Path:
    """Where a trial's checkpoints are: beside its log, the same for the trial and for those that go on with it."""
    log = Path(job.trials.result_file)
    return Path(job.checkpoints.folder or log.with_name(log.name.partition(".")[0] + ".checkpoints"))


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"step_*{SUFFIX}"), reverse=True)


# ---- going on


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run: the beginning, or a checkpoint's position; rank 0 has its arrays too."""

    position: Position = Position(step=0, epoch=1, epoch_step=0, seed=-1, global_batch=0, ranks=0)
    path: str = ""  # of the checkpoint; empty at the beginning
    arrays: dict[str, Array] = field(default_factory=dict)


def find(job: Job, ranks: Ranks, run: dict[str, Any]) -> Start:
    """The last good checkpoint of RESUME=auto; a damaged one is skipped with a warning.

    `run` says what the state depends on (workload, recipe, samples...) and must be what the checkpoint's run had.

    Raises ValueError where the checkpoint is of another run.
    """
    if job.checkpoints.resume == "no":
        return Start()
    start = _find(job, run, ranks.size) if ranks.is_first else Start()
    position, path = ranks.comm.bcast((start.position, start.path))
    return Start(position=position, path=path, arrays=start.arrays)


def _find(job: Job, run: dict[str, Any], ranks: int) -> Start:
    folder = folder_of(job)
    for path in _newest_first(folder):
        try:
            arrays, metadata = read(path)
            position, of = Position(**metadata["position"]), metadata["run"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            print(f"warning: {path}: damaged, {error}: skipped", file=sys.stderr, flush=True)
            continue
        if of != run:
            differs = ", ".join(f"{k} {of.get(k)!r} there, {run.get(k)!r} here" for k in run if of.get(k) != run.get(k))
            raise ValueError(f"{path}: is of another run ({differs}): set RESUME=no, CHECKPOINT_DIR or what differs")
        if position.global_batch != job.global_batch:
            raise ValueError(
                f"{path}: its run had {position.global_batch} images a step, this one has {job.global_batch}: the "
                f"recipe depends on it: set BATCHSIZE={position.global_batch / ranks:g} for {ranks} ranks"
            )
        if job.course.seed not in (-1, position.seed):
            raise ValueError(f"{path}: its run had SEED={position.seed}: set that, or SEED=-1 to take it over")
        return Start(position=position, path=str(path), arrays=arrays)
    print(f"warning: RESUME=auto: {folder} has no good checkpoint: starting at step 0", file=sys.stderr, flush=True)
    return Start()


def restore(start: Start, training: build.TrainingProgram, ranks: Ranks) -> None:
    """Puts a checkpoint's state into the program on every rank, and its learning rate where it was.

    BN statistics differ from rank to rank: on as many ranks as before each gets its own, else all get the mean. Where
    the loss scale is fixed in one of the two runs and dynamic in the other, it begins as the program has it.

    Raises ValueError where the checkpoint has not all of the program's state.
    """
    if not start.path:
        return
    main = training.main
    own = state.own_names(main)
    arrays = _as_stored(start.arrays, main)
    if ranks.is_first:
        _restore_shared(start.path, arrays, main, own)
    state.broadcast_parameters(main, ranks)  # before the ranks' own state, which it would make rank 0's
    _restore_own(start.position.ranks, arrays, main, own, ranks)
    training.schedule.step(start.position.step)


def _as_stored(arrays: dict[str, Array], main: static.Program) -> dict[str, Array]:
    """Arrays of a checkpoint, which has the plain network's, in the form that the program stores them in."""
    forms = stored.forms(main)
    as_stored = {}
    for name, saved in arrays.items():
        _, _, variable = name.rpartition("/")  # behind rank0/
        form = forms.get(variable)
        as_stored[name] = saved if form is None else form.from_plain(saved)
    return as_stored


def _restore_shared(path: str, arrays: dict[str, Array], main: static.Program, own: set[str]) -> None:
    """Gives rank 0's program the state of a checkpoint, the statistics of its own among it."""
    tensors = dict(state.tensors(main))
    was_dynamic = state.has_dynamic_loss_scale(arrays)
    is_dynamic = state.has_dynamic_loss_scale(tensors)
    kept = []
    for name, tensor in tensors.items():
        if was_dynamic != is_dynamic and state.is_loss_scale(name):
            kept.append(name)
            continue
        value = arrays.get(f"rank0/{name}" if name in own else name)
        if value is None or list(value.shape) != tensor.shape():
            raise ValueError(f"{path}: has no {name} of this program's shape: set RESUME=no")
        state.assign(tensor, value)
    if kept:
        there, here = ("dynamic", "fixed") if was_dynamic else ("fixed", "dynamic")
        text = f"warning: {path}: its run had a {there} loss scale, this one has a {here} one, which begins anew"
        print(text, file=sys.stderr, flush=True)


def _restore_own(ranks_then: int, arrays: dict[str, Array], main: static.Program, own: set[str], ranks: Ranks) -> None:
    """Gives each rank its own BN statistics of a checkpoint of `ranks_then` ranks, or their mean on other ranks."""
    for name, tensor in state.tensors(main):
        if name not in own:
            continue
        parts = None
        if ranks.is_first:
            parts = [arrays[f"rank{rank}/{name}"] for rank in range(ranks_then)]
            if len(parts) != ranks.size:
                mean = np.mean(parts, axis=0, dtype=np.float64).astype(parts[0].dtype)
                parts = [mean] * ranks.size
        state.assign(tensor, ranks.comm.scatter(parts))


# ---- keeping


class Keeper(Hook):
    """Writes the checkpoints of a training run; every rank has one, rank 0's writes.

    A checkpoint is due every CHECKPOINT_EPOCHS, every CHECKPOINT_MINUTES, and when a signal of SIGNALS asks the run to
    end. The ranks agree on it at the end of a window of steps, in one all-reduce of an integer.
    """

    def __init__(
        self, job: Job, ranks: Ranks, log: RunLog, *, start: Start, run: dict[str, Any], seed: int, steps_per_epoch: int
    ) -> None:
        """`run` and `start` are those of `find`. Raises ValueError where the folder has another run's checkpoints."""
        self._job, self._ranks, self._log, self._run = job, ranks, log, run
        self._seed, self._steps_per_epoch, self._folder = seed, steps_per_epoch, folder_of(job)
        self._active = job.course.mode == "train" and bool(job.checkpoints.epochs or job.checkpoints.minutes)
        self._kept = [Path(start.path)] if start.path else []
        if self._active and ranks.is_first:
            if not self._kept and (old := _newest_first(self._folder)):
                never = "checkpoints are never overwritten: set RESUME=auto or move them away"
                raise ValueError(f"{old[0]}: exists, {never}")
            for half in self._folder.glob(f".step_*{SUFFIX}.tmp"):  # of a run that was killed as it wrote
                half.unlink()
        self._last_s = time.monotonic()
        self._signal = 0
        self._handlers: dict[int, Any] = {}
        self._copies: dict[str, Array] = {}  # kept, as memory taken and given back each time scatters the heap
        self._writer: threading.Thread | None = None
        self._outcome: schema.Checkpoint | OSError | None = None  # of the last checkpoint, until it is logged

    def close(self) -> None:
        """Waits for the last checkpoint."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._join()
        self._report()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    @property
    def last_good(self) -> str:
        """For a message: the last checkpoint that is whole; every rank must ask."""
        self._join()
        good = f"the last good checkpoint is {self._kept[-1]}, from which RESUME=auto goes on" if self._kept else ""
        return str(self._ranks.comm.bcast(good or "there is no checkpoint of this run"))

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Writes a checkpoint that is due. Raises RunError, with it on the disk, where a signal asked for the end."""
        if not self._active:
            return 0.0
        self._report()
        if not self._handlers:  # only now: before there is anything to save a signal ends the run at once
            self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        every_s = 60 * self._job.checkpoints.minutes
        late = self._ranks.is_first and bool(every_s) and time.monotonic() - self._last_s >= every_s
        asked = self._ranks.comm.allreduce(2 * self._signal + late, op=MPI.MAX)
        if not asked:
            return 0.0
        started = time.perf_counter()
        if asked > 1:
            self._join()
        self._save(main, step=step, epoch=epoch, epoch_step=step - (epoch - 1) * self._steps_per_epoch)
        if asked > 1:
            self._join()
            self._report()
            name = SIGNALS[signal.Signals(asked // 2)]
            raise RunError(f"stopped by signal {name} after step {step}; {self.last_good}")
        return time.perf_counter() - started

    def epoch_ended(self, main: Any, epoch: int) -> None:
        """Called on every rank after an epoch and its evaluation."""
        every = self._job.checkpoints.epochs
        if self._active and every and epoch % every == 0:
            self._save(main, step=epoch * self._steps_per_epoch, epoch=epoch + 1, epoch_step=0)

    def _save(self, main: Any, *, step: int, epoch: int, epoch_step: int) -> None:
        self._last_s = started_s = time.monotonic()
        mine = {name: np.array(value) for name, value in state.values(main, own=True)}
        of_ranks = self._ranks.comm.gather(mine)
        if of_ranks is None:
            return
        if self._writer and self._writer.is_alive():
            self._log.text(f"checkpoint of step {step} left out: the one before is still being written")
            return
        self._join()
        self._report()  # of the one before, which this one's outcome would replace
        for name, value in state.values(main, own=False):
            np.copyto(self._copies.setdefault(name, np.empty_like(value)), value)
        arrays = dict(self._copies)
        for rank, part in enumerate(of_ranks):
            arrays |= {f"rank{rank}/{name}": value for name, value in part.items()}
        position = Position(
            step=step,
            epoch=epoch,
            epoch_step=epoch_step,
            seed=self._seed,
            global_batch=self._job.global_batch,
            ranks=self._ranks.size,
        )
        metadata = {"position": asdict(position), "run": self._run}
        blocked_s = time.monotonic() - started_s
        self._writer = threading.Thread(target=self._write, args=(arrays, metadata, blocked_s), name="checkpoint")
        self._writer.start()

    def _write(self, arrays: dict[str, Array], metadata: dict[str, Any], blocked_s: float) -> None:
        started_s, step = time.monotonic(), metadata["position"]["step"]
        path = self._folder / f"step_{step:09d}{SUFFIX}"
        try:
            # By a sum, which takes no memory: a mask's would stay with this thread's heap, and each checkpoint has one.
            broken = [
                name
                for name, value in arrays.items()
                if value.dtype.kind == "f" and not math.isfinite(np.sum(value, dtype=np.float64))
            ]
            if broken:
                raise OSError(f"{broken[0]} is not finite")
            self._folder.mkdir(parents=True, exist_ok=True)
            needed, free = sum(value.nbytes for value in arrays.values()) + SPARE, shutil.disk_usage(self._folder).free
            if free < needed:
                raise OSError(f"{self._folder} has {free / MIB:.0f} MiB left, {needed / MIB:.0f} are needed")
            write(path, arrays, metadata)
            self._kept.append(path)
            while len(self._kept) > self._job.checkpoints.keep:
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

    def _join(self) -> None:
        if self._writer:
            self._writer.join()

    def _report(self) -> None:
        """Logs what the writer did; a checkpoint that cannot be written is no reason to lose the run as well."""
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, schema.Checkpoint):
            self._log.event(schema.CHECKPOINT, outcome)
        elif outcome:
            text = f"warning: checkpoint not written: {outcome}"
            print(text, file=sys.stderr, flush=True)
            self._log.text(text)
