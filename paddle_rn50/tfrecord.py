"""TensorFlow's TFRecord: what its records hold.

A record is a length (8 bytes), its checksum (4), a tf.train.Example and its checksum (4). A line of DALI's index is
`offset size`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from harness.passport import Contents
from paddle_rn50.records import Form, Parsed, Records, read_index
from program.arrays import Array

# Names that TensorFlow's scripts give the files of a part.
PATTERNS = {"train": ("train-*-of-*", "train*.tfrecord"), "val": ("validation-*-of-*", "val*.tfrecord")}
LENGTH_BYTES = 8
BEFORE_MESSAGE = 12  # bytes: the length and its checksum
BEHIND_MESSAGE = 4  # bytes: the message's checksum
AROUND_MESSAGE = BEFORE_MESSAGE + BEHIND_MESSAGE

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


def files_of(root: Path, part: str) -> tuple[Path, ...]:
    """Find the files of `part` (train or val) in a folder. Raises ValueError where one of a numbered set is absent."""
    for pattern in PATTERNS[part]:
        files = tuple(sorted(path for path in root.glob(pattern) if path.suffix != ".idx"))
        count = files[0].name.rpartition("-of-")[2] if files else ""
        if count.isdecimal() and int(count) != len(files):
            raise ValueError(f"{root}: has {len(files)} of the {int(count)} files {pattern}: restore the others")
        if files:
            return files
    return ()


def find(files: tuple[Path, ...], classes: int) -> Records:
    """Find the records of these files by their indices. Raises ValueError where one is absent or another file's."""
    places = []
    for number, file in enumerate(files):
        index = file.with_name(f"{file.name}.idx")
        make = f"make it by `tfrecord2idx {file} {index}`, which comes with DALI"
        places_in_file = read_index(index, make)
        offsets = places_in_file[:, 0]
        ends = places_in_file.sum(axis=1)
        has_no_gap = offsets[0] == 0 and (offsets[1:] == ends[:-1]).all()
        if not has_no_gap or ends[-1] != file.stat().st_size:
            raise ValueError(f"{index}: is not the index of {file}: restore the file, or {make}")
        places.append(np.insert(places_in_file, 0, number, axis=1))
    return Records(format=FORM, files=files, places=np.concatenate(places), classes=classes)


def parse(record: bytes) -> Parsed:
    """Parse a whole record. TensorFlow's label 0 is the background, which no image has: it becomes -1.

    Raises ValueError where the record is damaged, or of another kind.
    """
    if len(record) < AROUND_MESSAGE or int.from_bytes(record[:LENGTH_BYTES], "little") != len(record) - AROUND_MESSAGE:
        raise ValueError("its length is not the index's")
    try:
        example = EXAMPLE.FromString(record[BEFORE_MESSAGE:-BEHIND_MESSAGE])
        features = {entry.key: entry.value for entry in example.features.feature}
        image = features["image/encoded"].bytes_list.value[0]
        label = features["image/class/label"].int64_list.value[0]
    except (DecodeError, KeyError, IndexError) as error:
        raise ValueError("it is no tf.train.Example with image/encoded and image/class/label") from error
    return Parsed(image, label - FORM.first_label)


def contents(records: Records, heads: Array) -> Contents:
    """Tell the sizes of all records from their heads [records, LENGTH_BYTES]; labels are not known without reading all.

    Raises ValueError for the first record whose length is not the index's, and where the first is of another kind.
    """
    lengths = heads.view("<u8")[:, 0].astype(np.int64)
    wrong = np.flatnonzero(lengths + AROUND_MESSAGE != records.places[:, 2])
    if len(wrong):
        number = int(wrong[0])
        raise ValueError(f"{records.name(number)}: its length is not the index's: restore the file, or make the index")
    _, offset, size = records.places[0].tolist()
    with records.files[0].open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    try:
        parse(content)
    except ValueError as error:
        raise ValueError(f"{records.name(0)}: {error}: pack the images as TensorFlow's own scripts do") from error
    names = [str(number) for number in range(len(records))]
    return Contents(names=names, sizes=lengths, labels=None, is_exact=False)


FORM = Form(name="tfrecord", first_label=1, head_bytes=LENGTH_BYTES, parse=parse, contents=contents)
