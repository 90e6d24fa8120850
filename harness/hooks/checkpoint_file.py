"""The file of a checkpoint: arrays and metadata in the safetensors format, with a checksum over all of it.

The format is a JSON header, then raw arrays: reading one runs no code of whoever wrote it. The header's `__metadata__`
holds the SHA-256 of header and arrays. A file is written under a temporary name, flushed and renamed, so that a file
that has a checkpoint's name is complete.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.job import Job
from program.arrays import Array

# {safetensors' name of a type: NumPy's}, of those that a state has
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "|b1"}
SUFFIX = ".safetensors"
LENGTH_BYTES = 8  # at the file's start: the header's length, little-endian
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


def _canonical(header: dict[str, Any]) -> bytes:
    """Return a header as JSON in one fixed form, so that equal headers are equal bytes and have one checksum."""
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def write(path: Path, arrays: dict[str, Array], metadata: dict[str, Any]) -> None:
    """Write arrays and metadata to a checkpoint file in safetensors format, atomically.

    The data go to a hidden temporary file in the same folder, are flushed to disk, and replace `path` only then. A
    crash thus never leaves a partial file under the checkpoint's name. The header holds a SHA-256 checksum of the
    header and the arrays.

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
    header_text = _with_checksum(_header(arrays, metadata), contents)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            # The length of the header, the header as JSON, and the bytes of the arrays.
            file.write(len(header_text).to_bytes(LENGTH_BYTES, "little") + header_text)
            file.writelines(contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)  # left over by an error alone, as it was renamed otherwise


def _header(arrays: dict[str, Array], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a checkpoint file, but for its checksum: the metadata, and what each array is and where."""
    header: dict[str, Any] = {"__metadata__": {name: json.dumps(value) for name, value in metadata.items()}}
    begin = 0
    for name, array in arrays.items():
        assert array.flags.c_contiguous
        end = begin + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    return header


def _checksum(header: dict[str, Any], contents: Iterable[memoryview]) -> str:
    """Return the SHA-256 of a header that has no checksum, and of the bytes of the arrays, `contents`."""
    digest = hashlib.sha256(_canonical(header))
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _with_checksum(header: dict[str, Any], contents: list[memoryview]) -> bytes:
    """Put a checksum into a checkpoint's header, and return the header's bytes, filled up with blanks.

    The checksum is of the header without it, and of the bytes of each array, `contents`.
    """
    header["__metadata__"]["sha256"] = _checksum(header, contents)
    header_text = _canonical(header)
    bytes_to_fill = -len(header_text) % LENGTH_BYTES  # so that the arrays begin at a multiple of 8 bytes
    return header_text + b" " * bytes_to_fill


def _flush_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Contents(NamedTuple):
    """The contents of a checkpoint's file."""

    arrays: dict[str, Array]
    metadata: dict[str, Any]


def read(path: Path) -> Contents:
    """Return the arrays and the metadata of a checkpoint file; the arrays are read-only views of the file's bytes.

    Raises ValueError if the file is damaged or no checkpoint, and OSError if it cannot be read.
    """
    data = path.read_bytes()  # the header's length, the header as JSON, and the bytes of the arrays
    header_length = int.from_bytes(data[:LENGTH_BYTES], "little")
    header_end = LENGTH_BYTES + header_length
    has_no_header = header_length < len("{}")
    is_cut_off = len(data) < LENGTH_BYTES or len(data) < header_end
    if has_no_header or is_cut_off:
        raise ValueError("its header is cut short")
    try:
        header = json.loads(data[LENGTH_BYTES:header_end])
        return _contents(header, memoryview(data)[header_end:])
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header makes no sense ({type(error).__name__}: {error})") from error


def _contents(header: dict[str, Any], body: memoryview) -> Contents:
    """Return the arrays and the metadata of a checkpoint file by its header and `body`, the bytes of the arrays.

    Raises ValueError if the checksum is wrong or an array lies outside the body, and KeyError, TypeError or the like
    for a header of another form.
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
    """Return the array of a header's entry. Raises ValueError if it lies outside the file."""
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
    """Return the folder of a run's checkpoints: CHECKPOINT_DIR or, if that is empty, one next to its log.

    All runs that go on from each other have one folder: result_0.checkpoints for the log result_0.txt. If the job has
    several trials (NEXP), CHECKPOINT_DIR has such a folder of each, so that none goes on from another's state.
    """
    log = Path(job.trials.result_file)
    name = f"{log.name.partition('.')[0]}.checkpoints"
    if not job.checkpoints.folder:
        return log.with_name(name)
    folder = Path(job.checkpoints.folder)
    return folder if job.trials.nexp == 1 else folder / name


def newest_first(folder: Path) -> list[Path]:
    """List the complete checkpoints of a folder; one that is still being written has another name."""
    return sorted(folder.glob(f"step_*{SUFFIX}"), reverse=True)


def not_newer(path: Path) -> list[Path]:
    """List the complete checkpoints of a checkpoint's folder up to that one, the oldest first."""
    return [other for other in reversed(newest_first(path.parent)) if other.name <= path.name]
