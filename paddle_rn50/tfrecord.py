"""TensorFlow's TFRecord: what its records hold.

A record is a length (8 bytes), its checksum (4), a tf.train.Example and its checksum (4). A line of DALI's index is
`offset size`.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from harness.lists import TABLE_ENDS
from harness.passport import Contents
from paddle_rn50.records import SIZE_COLUMN, Form, Parsed, Records, read_index
from program.arrays import Array
from runlog import named_files

# Names that TensorFlow's scripts give the files of a part; imagenet_to_gcs.py, which MLPerf submissions name, makes a
# folder for each part.
PATTERNS = {
    "train": ("train-*-of-*", "train*.tfrecord", "train/train-*-of-*"),
    "val": ("validation-*-of-*", "val*.tfrecord", "validation/validation-*-of-*"),
}
OTHER_ENDS = (".idx", *TABLE_ENDS)  # of files that may have such names and are not TFRecords
NUMBERED = re.compile(r".*-(?P<number>[0-9]{1,9})-of-(?P<count>[0-9]{1,9})(\.tfrecord)?")  # by TensorFlow's scripts
FIELDS_OF_TFDS = {"image", "label"}  # of TensorFlow Datasets' sets for classification, whose labels count from 0
INSTEAD = "save the images into class folders, or pack them as imagenet_to_gcs.py does"
GZIP_HEAD_BYTES = 10
# Its magic, method and last two fields. The magic alone may be the length of a first record: 35,615 + 65,536 n bytes.
GZIP_HEAD = re.compile(rb"\x1f\x8b\x08.{5}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)
LENGTH = np.dtype("<u8")
LENGTH_BYTES = LENGTH.itemsize
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
    """Find the TFRecord files of a part of a data set.

    Args:
        root: Folder of the data set.
        part: "train" or "val".

    Returns:
        The files, sorted by name; empty if there are none.

    Raises:
        ValueError: One of a numbered set, as train-00000-of-01024, is absent, or a file is there that is none of the
            set.
    """
    for pattern in PATTERNS[part]:
        files = tuple(sorted(path for path in root.glob(pattern) if path.suffix not in OTHER_ENDS))
        if files:
            _require_whole_set(root, pattern, files)
            return files
    return ()


def _require_whole_set(root: Path, pattern: str, files: tuple[Path, ...]) -> None:
    """Raise ValueError if files that are numbered, as train-00000-of-01024, are not one complete set.

    The name of the first file decides. If it has the numbers 00000 and 01024, there must be 1024 files, all with the
    count 01024 and each with a number of its own. That a number is below the count is not checked. If the name of the
    first file has no such numbers, nothing is checked. Names may end in `.tfrecord`.

    Args:
        root: Folder of the data set, for messages.
        pattern: Pattern by which the files were found, such as "train-*-of-*", for messages.
        files: All TFRecord files of the pattern, sorted; at least one.

    Raises:
        ValueError: A file is not of the set of the first file, or there are fewer or more files than the set has.
    """
    numbers_of_first = NUMBERED.fullmatch(files[0].name)
    if numbers_of_first is None:
        return
    count = int(numbers_of_first["count"])
    present = set()
    for file in files:
        numbers = NUMBERED.fullmatch(file.name)
        is_of_set = numbers is not None and int(numbers["count"]) == count
        number = int(numbers["number"]) if numbers else None  # None is refused below: not of the set
        # Two files can have one number: train-00000-of-01024 and train-00000-of-01024.tfrecord.
        is_second_with_number = number in present
        if not is_of_set or is_second_with_number:
            raise ValueError(f"{file}: is not of the set of {files[0].name}: move it elsewhere")
        present.add(number)
    if len(files) > count:  # numbers are given that a set of this count does not have
        raise ValueError(f"{root}: has {len(files)} files {pattern} of a set of {count}: move the others elsewhere")
    if len(files) < count:
        raise ValueError(f"{root}: has {len(files)} of the {count} files {pattern}: restore the others")


def find(files: tuple[Path, ...], classes: int) -> Records:
    """Return where the records of TFRecord files lie, by the index of each file.

    The index of FILE is FILE.idx, with lines `offset size` in bytes.

    Args:
        files: The files of a part of a data set, in order; at least one.
        classes: Number of classes that the labels may have.

    Raises:
        ValueError: A file is empty or compressed, an index is absent or damaged, or its records do not fill its file
            exactly.
    """
    places = []
    for file_number, file in enumerate(files):
        _require_plain_records(file)
        index = file.with_name(f"{file.name}.idx")
        how_to_make = f"make it by `tfrecord2idx {file} {index}`, which comes with DALI"
        offsets_and_sizes = read_index(index, how_to_make)
        if not _fill_file(offsets_and_sizes, file):
            raise ValueError(f"{index}: is not the index of {file}: restore the file, or {how_to_make}")
        # A column with the file's number is put before the two columns of the index.
        places.append(np.insert(offsets_and_sizes, 0, file_number, axis=1))
    return Records(format=FORM, files=files, places=np.concatenate(places), classes=classes)


def _require_plain_records(file: Path) -> None:
    """Raise ValueError if a file does not let its records be read in any order, each at its offset by the index.

    Args:
        file: A TFRecord file.

    Raises:
        ValueError: It is absent, a folder, empty, or compressed by gzip.
    """
    if not named_files.is_file(file):
        raise ValueError(f"{file}: no such file: restore it")
    with file.open("rb") as opened:
        head = opened.read(GZIP_HEAD_BYTES)
    if not head:
        raise ValueError(f"{file}: is empty: restore it, or if it never held a record pack the set in fewer files")
    if GZIP_HEAD.fullmatch(head):
        raise ValueError(f"{file}: is compressed by gzip: `gunzip` it, then make its index by `tfrecord2idx`")


def _fill_file(offsets_and_sizes: Array, file: Path) -> bool:
    """Return whether records fill a file from byte 0 to its end, each beginning where the one before it ends.

    Args:
        offsets_and_sizes: Offset and size in bytes of each record, [records, 2].
        file: The file, whose size is looked up.
    """
    starts = offsets_and_sizes[:, 0]
    ends = offsets_and_sizes.sum(axis=1)
    has_no_gaps = (starts[1:] == ends[:-1]).all()
    return bool(starts[0] == 0 and has_no_gaps and ends[-1] == file.stat().st_size)


def parse(record: bytes) -> Parsed:
    """Return the encoded image and the label of a TFRecord record, whose message is a tf.train.Example.

    TensorFlow numbers the classes from 1, so the label returned is one less than the record's.

    Args:
        record: All bytes of the record: length, message and checksums.

    Returns:
        The image and the label. The record's label 0, the background, becomes -1, which is not a class.

    Raises:
        ValueError: The record has another length than it states, or its message does not hold one image and one label.
    """
    message = _message(record)
    try:
        example = EXAMPLE.FromString(message)
    except DecodeError as error:
        raise ValueError("it is not a tf.train.Example") from error
    features = {entry.key: entry.value for entry in example.features.feature}
    try:
        images = features["image/encoded"].bytes_list.value
        labels = features["image/class/label"].int64_list.value
        image = images[0]
        label = labels[0]
    except (KeyError, IndexError) as error:
        raise ValueError(_other_fields(features)) from error
    for name, values in (("image/encoded", images), ("image/class/label", labels)):
        if len(values) > 1:
            raise ValueError(f"its {name} has {len(values)} values, not one")
    return Parsed(image, label - FORM.first_label)


def _other_fields(names: Collection[str]) -> str:
    """Return the message that a tf.train.Example lacks the image or the label, with the fields that it has.

    Args:
        names: Names of its fields.
    """
    fields = ", ".join(sorted(names)) or "no fields"
    origin = ", as TensorFlow Datasets writes them" if FIELDS_OF_TFDS.issubset(names) else ""
    return (
        f"its tf.train.Example has {fields}{origin}, and not both the bytes image/encoded and the number "
        "image/class/label"
    )


def first_record_fault(file: Path) -> str:
    """Return why the first record of a file is not an image with a label; an empty text if it is.

    Args:
        file: A file whose name is that of a TFRecord; there need be no index. If it is empty or compressed, so that it
            has no whole first record, the text is empty, too.

    Raises:
        OSError: The file cannot be read.
    """
    with file.open("rb") as opened:
        length = opened.read(LENGTH_BYTES)
        message_bytes = int.from_bytes(length, "little")
        if message_bytes + AROUND_MESSAGE > file.stat().st_size:
            return ""
        record = length + opened.read(message_bytes + AROUND_MESSAGE - LENGTH_BYTES)
    try:
        parse(record)
    except ValueError as error:
        return str(error)
    return ""


def _message(record: bytes) -> bytes:
    """Return the message of a TFRecord record: what is left without its length (8 bytes) and checksums (4 each).

    The index of the file says where the record begins and ends, and the record's first 8 bytes how long the message is.
    The two must agree.

    Args:
        record: All bytes of the record, by the index.

    Raises:
        ValueError: The message has another length by the index than by the record.
    """
    bytes_by_record = int.from_bytes(record[:LENGTH_BYTES], "little")
    bytes_by_index = len(record) - AROUND_MESSAGE
    if bytes_by_index < 0 or bytes_by_record != bytes_by_index:
        raise ValueError("its length is not the index's")
    return record[BEFORE_MESSAGE:-BEHIND_MESSAGE]


def contents_by_first_bytes(records: Records, first_bytes: Array) -> Contents:
    """Return the name and the size of each record of TFRecord files, but no labels.

    The name is the record's number, "0" and up. The size is the length in bytes of the record's message, which holds
    the encoded image, the label and perhaps other fields. Only the first record's message is read here, to check that
    it has an image and a class. The labels of the others would need all messages to be read.

    Args:
        records: Where each record lies, and how many classes the labels may have.
        first_bytes: The first 8 bytes of each record, which state the length of its message, [records, 8] uint8.

    Returns:
        Names, sizes in bytes, and None for the labels.

    Raises:
        ValueError: A stated length contradicts the index, or the first record holds no image with a class.
    """
    # The view has one column: each row's 8 bytes, read as one integer.
    message_bytes = first_bytes.view(LENGTH)[:, 0].astype(np.int64)
    _require_lengths_of_index(records, message_bytes)
    _require_first_is_image(records)
    names = [str(number) for number in range(len(records))]
    # `is_exact` is False because a message has more in it than the encoded image.
    return Contents(names=names, sizes=message_bytes, labels=None, is_exact=False)


def _require_lengths_of_index(records: Records, message_bytes: Array) -> None:
    """Raise ValueError unless each record is as long as the index says.

    A record has AROUND_MESSAGE (16) bytes more than its message: 8 for the length of the message and 4 for each of two
    checksums.

    Args:
        records: Where each record lies by the index.
        message_bytes: Length of its message that each record states, [records].

    Raises:
        ValueError: A record has another length than the index says. The message names the first such record.
    """
    bytes_by_index = records.places[:, SIZE_COLUMN]
    bytes_by_record = message_bytes + AROUND_MESSAGE
    wrong_numbers = np.flatnonzero(bytes_by_record != bytes_by_index)
    if len(wrong_numbers):
        number = int(wrong_numbers[0])
        raise ValueError(f"{records.name(number)}: its length is not the index's: restore the file, or make the index")


def _require_first_is_image(records: Records) -> None:
    """Raise ValueError if the first record is damaged or holds no image with a class; the others are not looked at.

    Args:
        records: Where each record lies, and how many classes the labels may have.

    Raises:
        ValueError: It is damaged, holds no image with a label, or its label is not a class.
    """
    try:
        label = parse(records.content(0)).label
    except ValueError as error:
        raise ValueError(f"{records.name(0)}: {error}: {INSTEAD}") from error
    if not 0 <= label < records.classes:
        raise ValueError(records.label_fault(0))


FORM = Form(
    name="tfrecord",
    first_label=1,
    head_bytes=LENGTH_BYTES,
    parse=parse,
    contents_by_first_bytes=contents_by_first_bytes,
)
