"""The file of a checkpoint: arrays and metadata in the safetensors format, with a checksum over all of it.

The format is a JSON header, then raw arrays: reading one runs no code of whoever wrote it. The header's `__metadata__`
holds the SHA-256 of header and arrays. A file is written under a temporary name, flushed and renamed, so that a file
that has a checkpoint's name is complete.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from harness.job import Job
from program.arrays import Array

# {safetensors' name of a type: NumPy's}, of those that a state has
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "|b1"}
SUFFIX = ".safetensors"
CHECKPOINTS = f"step_*{SUFFIX}"  # the pattern of the complete ones, as `file_of` names them
LOCK = ".lock"  # the file of a folder that its run holds; it is empty
CANNOT_FLUSH_FOLDERS = (errno.EINVAL, errno.ENOTSUP)  # what some network file systems answer
LENGTH_BYTES = 8  # at the file's start: the header's length, little-endian
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


def _canonical(header: dict[str, Any]) -> bytes:
    """Return a header as JSON in one fixed form, so that equal headers are equal bytes and have one checksum.

    Args:
        header: The header of a checkpoint file.
    """
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def write(path: Path, arrays: dict[str, Array], metadata: dict[str, Any]) -> int:
    """Write arrays and metadata to a checkpoint file in safetensors format, atomically; return its size in bytes.

    The data go to a hidden temporary file in the same folder, are flushed to disk, and replace `path` only then. A
    crash thus never leaves a partial file under the checkpoint's name. The header holds a SHA-256 checksum of the
    header and the arrays. Until `flush_folder` has returned, a crash of the machine may lose the file's new name.

    Args:
        path: The file to write, such as "step_000000100.safetensors". An existing file is replaced.
        arrays: The NumPy arrays to store, by name. They must be C-contiguous and of type float64, float32, float16,
            int64, int32 or bool.
        metadata: Further values to store, by name. Each must be serializable as JSON. The name "sha256" is taken by the
            checksum.

    Raises:
        OSError: The file cannot be written, for example because the disk is full.
    """
    contents = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    header_text = _header_with_checksum(_header(arrays, metadata), contents)
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            # The length of the header, the header as JSON, and the bytes of the arrays.
            file.write(len(header_text).to_bytes(LENGTH_BYTES, "little") + header_text)
            file.writelines(contents)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        temporary.replace(path)
        return size_bytes
    finally:
        temporary.unlink(missing_ok=True)  # left over by an error alone, as it was renamed otherwise


def _header(arrays: dict[str, Array], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a checkpoint file without its checksum: the metadata, and type and place of each array.

    Args:
        arrays: The arrays by name, in the order in which they follow the header. Each must be C-contiguous.
        metadata: Further values by name. Each must be serializable as JSON.
    """
    header: dict[str, Any] = {"__metadata__": {name: json.dumps(value) for name, value in metadata.items()}}
    begin = 0
    for name, array in arrays.items():
        assert array.flags.c_contiguous
        end = begin + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    return header


def _checksum(header: dict[str, Any], contents: Iterable[memoryview]) -> str:
    """Return the SHA-256 of a checkpoint's header and arrays as hexadecimal text.

    Args:
        header: The header without a checksum.
        contents: The bytes of the arrays, in their order.
    """
    digest = hashlib.sha256(_canonical(header))
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _header_with_checksum(header: dict[str, Any], contents: list[memoryview]) -> bytes:
    """Return the bytes of a checkpoint's header with a checksum of it and the arrays, filled up with blanks.

    Args:
        header: The header without a checksum.
        contents: The bytes of each array.
    """
    metadata = header["__metadata__"] | {"sha256": _checksum(header, contents)}
    header_text = _canonical(header | {"__metadata__": metadata})
    bytes_to_fill = -len(header_text) % LENGTH_BYTES  # so that the arrays begin at a multiple of 8 bytes
    return header_text + b" " * bytes_to_fill


def flush_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk; do nothing on a file system that cannot be asked to.

    Args:
        folder: The folder.

    Raises:
        OSError: The disk fails, or the folder may not be read.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH_FOLDERS:
            raise
    finally:
        os.close(descriptor)


class Contents(NamedTuple):
    """The contents of a checkpoint's file."""

    arrays: dict[str, Array]
    metadata: dict[str, Any]


def read(path: Path) -> Contents:
    """Return the arrays and the metadata that `write` stored in a checkpoint file, after checking its checksum.

    The file consists of three parts: 8 bytes with the length of the header (little-endian), the header as JSON, and
    the bytes of the arrays.

    Args:
        path: The file, such as "step_000000100.safetensors".

    Returns:
        The arrays and the metadata, each by name. The arrays are read-only views of the whole file in memory.

    Raises:
        ValueError: The file is damaged, or is not a checkpoint that `write` has written.
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    header_length = int.from_bytes(data[:LENGTH_BYTES], "little")
    header_end = LENGTH_BYTES + header_length
    has_no_header = header_length < len("{}")  # This is the shortest JSON object.
    is_cut_off = len(data) < header_end  # This is also true if the file is shorter than LENGTH_BYTES.
    if has_no_header or is_cut_off:
        raise ValueError("its header is cut short")
    try:
        header = json.loads(data[LENGTH_BYTES:header_end])
        return _contents(header, memoryview(data)[header_end:])
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        # A damaged header may be JSON of any form. Callers expect a ValueError for every kind of damage.
        raise ValueError(f"its header makes no sense ({type(error).__name__}: {error})") from error


def _contents(header: dict[str, Any], body: memoryview) -> Contents:
    """Return the arrays and the metadata of a checkpoint file, after a check of its checksum.

    Args:
        header: The file's header, as JSON gives it. It may be of any form if the file is damaged.
        body: The bytes of the arrays, which follow the header.

    Raises:
        ValueError: The checksum is wrong, or an array lies outside the body.
        KeyError: The header is of another form. It may also be a TypeError or an AttributeError.
    """
    written_checksum = header["__metadata__"]["sha256"]
    metadata = {name: text for name, text in header["__metadata__"].items() if name != "sha256"}
    entries_of_arrays = {name: entry for name, entry in header.items() if name != "__metadata__"}

    header_without_checksum = entries_of_arrays | {"__metadata__": metadata}
    if _checksum(header_without_checksum, [body]) != written_checksum:
        raise ValueError("its checksum is wrong")
    return Contents(
        arrays={name: _array(name, entry, body) for name, entry in entries_of_arrays.items()},
        metadata={name: json.loads(text) for name, text in metadata.items()},
    )


def _array(name: str, entry: dict[str, Any], body: memoryview) -> Array:
    """Return one array of a checkpoint file, a view of the file's bytes.

    Args:
        name: Name of the array, for the message.
        entry: What the header says of it: "dtype", "shape" and "data_offsets", its first byte and the one behind its
            last.
        body: The bytes of all arrays.

    Raises:
        ValueError: The array lies outside the body, or its shape does not fit its length.
    """
    begin, end = entry["data_offsets"]
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    shape = tuple(entry["shape"])
    if not 0 <= begin <= end <= len(body) or end - begin != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{name} lies outside the file")
    return np.frombuffer(body[begin:end], dtype=dtype).reshape(shape)


# ---- where files are, and what they say of a run


@dataclass(frozen=True, kw_only=True)
class Position:
    """The place in a run from which to go on. An epoch ends with its evaluation, and not with its last step."""

    step: int  # optimizer steps done in the run
    epoch: int  # the epoch to go on with, from 1
    epoch_step: int  # steps done in that epoch
    seed: int
    global_batch: int  # images a step
    ranks: int


def folder_of(job: Job) -> Path:
    """Return the folder of a run's checkpoints: CHECKPOINT_DIR or, if that is empty, one next to the run's log.

    Args:
        job: The settings of the job: the log, the number of trials and CHECKPOINT_DIR.
    """
    log = Path(job.trials.result_file)
    name_by_log = f"{log.name.partition('.')[0]}.checkpoints"  # result_0.checkpoints for the log result_0.txt
    if not job.checkpoints.folder:
        return log.with_name(name_by_log)
    folder = Path(job.checkpoints.folder)
    has_one_trial = job.trials.nexp == 1
    if has_one_trial:
        return folder
    return folder / name_by_log  # each trial has its own, so that none goes on from another's state


def hold(folder: Path, *, patience_s: float, say: Callable[[str], None]) -> TextIO | None:
    """Keep other runs from writing into a folder of checkpoints, which is made if it is absent.

    Args:
        folder: The folder.
        patience_s: How long to wait for another run to let go of the folder.
        say: Shows the user a line, here that there is a wait.

    Returns:
        The open file LOCK of the folder. The folder is held until it is closed, or until this process ends. None if the
        file system does not take the file or has no locks: then nothing is held.

    Raises:
        ValueError: A run in another process holds the folder.
    """
    deadline_s = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("a")
        except OSError:
            return None
        try:
            # Unlike a lock of `flock`, this one holds over NFS, and a child of this process does not inherit it.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # another has the lock; the file system decides which error
            lock.close()
            if time.monotonic() >= deadline_s:
                fix = f"wait for its end, set CHECKPOINT_DIR, or remove {LOCK} there if no run is at work"
                raise ValueError(f"{folder}: another run writes its checkpoints there: {fix}") from error
            if not is_told:
                say(f"{folder}: another run writes its checkpoints there: waiting {patience_s:.0f} s for its end")
                is_told = True
            time.sleep(min(patience_s, 1.0))
        except OSError:  # the file system has no locks
            lock.close()
            return None
        else:
            if _has_name(lock):
                return lock
            lock.close()  # the run that had it has removed the file meanwhile, so the next one makes another


def _has_name(lock: TextIO) -> bool:
    """Return whether the file that was opened is still the one of its name; False if it was removed, or another is."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), Path(lock.name).stat())
    except OSError:
        return False


def let_go(lock: TextIO) -> None:
    """Let go of a folder that `hold` holds, and remove its file LOCK; nothing is done if the disk fails.

    Args:
        lock: The open file, as `hold` has returned it.
    """
    with contextlib.suppress(OSError):  # the disk may have failed by now: the run ends as it would
        Path(lock.name).unlink()
    lock.close()


def file_of(folder: Path, step: int) -> Path:
    """Return where a folder has the checkpoint of a step.

    Args:
        folder: The folder.
        step: Optimizer steps done in the run. Names sort as their steps do.
    """
    return folder / f"step_{step:09d}{SUFFIX}"


def _temporary(path: Path) -> Path:
    """Return the name that a checkpoint's file has until it is complete; it is hidden."""
    return path.with_name(f".{path.name}.tmp")


def half_written(folder: Path) -> list[Path]:
    """List what is left of checkpoints that were being written when their run was killed.

    Args:
        folder: The folder, which need not exist.
    """
    return list(folder.glob(_temporary(Path(CHECKPOINTS)).name))


def newest_first(folder: Path) -> list[Path]:
    """List the complete checkpoints of a folder, that of the most steps first.

    One that is still being written has another name, and is left out.

    Args:
        folder: The folder, which need not exist.
    """
    return sorted(folder.glob(CHECKPOINTS), reverse=True)


def not_newer(path: Path) -> list[Path]:
    """List the complete checkpoints of a folder up to a given one, that of the fewest steps first.

    Args:
        path: The given checkpoint, which is the last of the list.
    """
    return [other for other in reversed(newest_first(path.parent)) if other.name <= path.name]
