"""Images packed in a few large files, read at random by their index: MXNet's RecordIO and TensorFlow's TFRecord.

DALI's own readers of both go through a file in its order and shuffle within a buffer; here a sample is read wherever
`harness.sampling` wants it, so that a packed data set gives the batches of the folder that it was made of.

RecordIO (dmlc-core): a record is the word MAGIC, a word with a flag (3 bits) and a length (29), and the payload, filled
up to 4 bytes. A payload is split where it holds MAGIC at a multiple of 4: flags 1, 2, ..., 3 for its parts, 0 if whole.
MXNet's payload is an IRHeader and an encoded image. A line of the index is `key offset`; samples count by offset.
TFRecord: length, its CRC, a tf.train.Example, its CRC. A line of DALI's index is `offset size`.
"""

import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from runlog.errors import RunError

MAGIC = struct.pack("<I", 0xCED7230A)
HEAD = struct.Struct("<4sI")
IR_HEADER = struct.Struct("<IfQQ")  # labels behind the header (0: the one inside), label, id, id2
MOST_BYTES = (1 << 29) - 1  # of a record's part
MOST_CLASSES = 1 << 24  # whole numbers that an IRHeader's float holds exactly
# NVIDIA's and MXNet's names, and those of TensorFlow's scripts.
RECORDIO = "{}.rec"
TFRECORD = {"train": ("train-*-of-*", "train*.tfrecord"), "val": ("validation-*-of-*", "val*.tfrecord")}


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of some files, numbered from 0 in the order of the files."""

    form: str  # recordio | tfrecord
    files: tuple[Path, ...]
    places: np.ndarray  # [records, 3] int64: number of the file, offset, bytes
    classes: int
    largest: tuple[int, int] | None = None  # width and height in pixels of the largest image, where known

    def __len__(self) -> int:
        return len(self.places)

    def read(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Encoded images and labels [N] int64 of `ids`. Raises RunError for a damaged record or a wrong label."""
        images: list[Any] = [None] * len(ids)
        labels = np.empty(len(ids), dtype=np.int64)
        places = self.places[ids]
        in_order = np.lexsort((places[:, 1], places[:, 0])).tolist()
        for number, group in groupby(in_order, key=lambda i: places[i, 0]):
            mine = list(group)
            with self.files[number].open("rb", buffering=0) as file:
                for _, offset, size in places[mine].tolist():  # the disk is told of all before one is waited for
                    os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_WILLNEED)
                for i, (_, offset, size) in zip(mine, places[mine].tolist(), strict=True):
                    images[i], labels[i] = self._parsed(os.pread(file.fileno(), size, offset), ids[i])
        return images, labels

    def _parsed(self, content: bytes, number: int) -> tuple[np.ndarray, int]:
        try:
            image, label = (_image_record if self.form == "recordio" else _example)(content)
        except ValueError as error:
            raise RunError(f"{self.name(number)}: is damaged ({error}): make the file or its index again") from error
        if not 0 <= label < self.classes:
            least, most = (0, self.classes - 1) if self.form == "recordio" else (1, self.classes)
            raise RunError(
                f"{self.name(number)}: its label is not one of {least} to {most}: the recipe has {self.classes} classes"
            )
        return np.frombuffer(image, dtype=np.uint8), label

    def name(self, number: int) -> str:
        """File and record, for a message."""
        file, offset, _ = self.places[number]
        return f"{self.files[file]}, record {number} at byte {offset}"

    def named(self, ids: np.ndarray) -> Iterator[tuple[str, io.BytesIO]]:
        """Name and encoded image of these records."""
        return ((self.name(i), io.BytesIO(self.read(np.array([i]))[0][0].tobytes())) for i in ids)


def find(root: Path, part: str, classes: int = MOST_CLASSES) -> Records | None:
    """The records of `part` (train or val) in a folder; None if there are none.

    Raises ValueError where they have no index or one of another file, or a file of many is absent.
    """
    packed = root / RECORDIO.format(part)
    if packed.is_file():
        return recordio(packed, packed.with_suffix(".idx"), classes)
    for pattern in TFRECORD[part]:
        files = tuple(sorted(path for path in root.glob(pattern) if path.suffix != ".idx"))
        count = files[0].name.rpartition("-of-")[2] if files else ""
        if count.isdecimal() and int(count) != len(files):
            raise ValueError(f"{root}: has {len(files)} of the {int(count)} files {pattern}: restore the others")
        if files:
            return _tfrecord(files, classes)
    return None


def recordio(packed: Path, index: Path, classes: int = MOST_CLASSES) -> Records:
    """The records of a RecordIO file. Raises ValueError where the index is absent, or is another file's."""
    make = "restore it, or make both by tools.pack"  # MXNet, which reads a file for its index, is not installed
    offsets = np.sort(_index(index, make)[:, 1])
    size = packed.stat().st_size
    sizes = np.diff(offsets, append=size)
    if offsets[0] != 0 or (sizes < HEAD.size).any():
        raise ValueError(f"{index}: is not the index of {packed} with its {size} bytes: {make}")
    places = np.stack([np.zeros_like(offsets), offsets, sizes], axis=1)
    return Records(form="recordio", files=(packed,), places=places, classes=classes)


def _tfrecord(files: tuple[Path, ...], classes: int) -> Records:
    places = []
    for number, file in enumerate(files):
        index = file.with_name(f"{file.name}.idx")
        make = f"make it by `tfrecord2idx {file} {index}`, which comes with DALI"
        found = _index(index, make)
        ends = found.sum(axis=1)
        if found[0, 0] != 0 or (found[1:, 0] != ends[:-1]).any() or ends[-1] != file.stat().st_size:
            raise ValueError(f"{index}: is not the index of {file}: restore the file, or {make}")
        places.append(np.insert(found, 0, number, axis=1))
    return Records(form="tfrecord", files=files, places=np.concatenate(places), classes=classes)


def _index(index: Path, make: str) -> np.ndarray:
    """[records, 2] int64: the two numbers of each line."""
    if not index.is_file():
        raise ValueError(f"{index}: no such file: {make}")
    try:
        numbers = np.array(index.read_bytes().split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{index}: has other lines than two whole numbers: {make}") from error
    if not len(numbers):
        raise ValueError(f"{index}: is empty: {make}")
    return numbers


# ---- RecordIO


def image_record(image: bytes, label: int, number: int) -> bytes:
    """A RecordIO record of an encoded image, as MXNet's im2rec writes it."""
    payload = IR_HEADER.pack(0, label, number, 0) + image
    cuts, at = [], payload.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            cuts.append(at)
        at = payload.find(MAGIC, at + (1 if at % 4 else 4))
    flags = [1, *[2] * (len(cuts) - 1), 3] if cuts else [0]
    record = b""
    for flag, start, end in zip(flags, [0, *(cut + len(MAGIC) for cut in cuts)], [*cuts, len(payload)], strict=True):
        if end - start > MOST_BYTES:
            raise ValueError(f"is longer than {MOST_BYTES} bytes, the most that a record holds")
        record += HEAD.pack(MAGIC, flag << 29 | end - start) + payload[start:end]
    return record + bytes(-len(payload) % 4)


def _image_record(record: bytes) -> tuple[memoryview, int]:
    """Encoded image and label of a RecordIO record."""
    view, parts = memoryview(record), list[memoryview]()
    at = flag = 0
    while not parts or flag in (1, 2):
        if at + HEAD.size > len(record):
            raise ValueError("it ends within its head")
        magic, word = HEAD.unpack_from(record, at)
        flag, size = word >> 29, word & MOST_BYTES
        start = at + HEAD.size
        if magic != MAGIC or (flag in (0, 1)) == bool(parts) or flag > 3 or start + size > len(record):
            raise ValueError(f"no whole part at its byte {at}")
        parts.append(view[start : start + size])
        at = start + size + -size % 4
    if at != len(record):
        raise ValueError(f"it ends at its byte {at} of {len(record)}: the index lacks the record behind it")
    payload = parts[0] if len(parts) == 1 else memoryview(MAGIC.join(parts))
    if len(payload) < IR_HEADER.size:
        raise ValueError("it has no header of MXNet's")
    more, label, _, _ = IR_HEADER.unpack_from(payload)
    if more:
        raise ValueError(f"it has {more} labels behind its header, not one in it")
    return payload[IR_HEADER.size :], int(label) if label == label // 1 else -1


# ---- TFRecord

# tf.train.Example, as far as it is read here; on the wire a map is its pairs.
_EXAMPLE = """
name: "example.proto"
message_type {name: "Example" field {name: "features" number: 1 type_name: "Features"}}
message_type {name: "Features" field {name: "feature" number: 1 label: LABEL_REPEATED type_name: "Entry"}}
message_type {
  name: "Entry" field {name: "key" number: 1 type: TYPE_STRING} field {name: "value" number: 2 type_name: "Feature"}
}
message_type {
  name: "Feature"
  field {name: "bytes_list" number: 1 type_name: "Bytes"} field {name: "int64_list" number: 3 type_name: "Numbers"}
}
message_type {name: "Bytes" field {name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES}}
message_type {name: "Numbers" field {name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64}}
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
EXAMPLE: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("Example"))


def _example(record: bytes) -> tuple[memoryview, int]:
    """Encoded image and label from 0 of a TFRecord; TensorFlow's label 0 is the background, which no image has."""
    if len(record) < 16 or int.from_bytes(record[:8], "little") != len(record) - 16:
        raise ValueError("its length is not the index's")
    try:
        features = {e.key: e.value for e in EXAMPLE.FromString(memoryview(record)[12:-4]).features.feature}
        image = features["image/encoded"].bytes_list.value[0]
        return memoryview(image), features["image/class/label"].int64_list.value[0] - 1
    except (DecodeError, KeyError, IndexError) as error:
        raise ValueError("it is no tf.train.Example with image/encoded and image/class/label") from error
