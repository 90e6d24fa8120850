"""MXNet's RecordIO (dmlc-core): what its records hold, and a record made of an image.

A record is the word MAGIC, a word with a flag (3 bits) and a length (29), and the payload, filled up to 4 bytes. A
payload is split where it holds MAGIC at a multiple of 4: flags 1, 2, ..., 3 for its parts, 0 if whole. MXNet's payload
is an IRHeader, further labels where the header counts some, and an encoded image. A line of the index is `key offset`;
samples count by offset.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.passport import Contents
from paddle_rn50.records import SIZE_COLUMN, Form, Parsed, Records, read_index
from program.arrays import Array

MAGIC = struct.pack("<I", 0xCED7230A)
HEAD = struct.Struct("<4sI")  # MAGIC, and flag and length
IR_HEADER = struct.Struct("<IfQQ")  # how many labels follow it (0: the one inside counts), label, id, id2
FURTHER_LABEL = struct.Struct("<f")
WHOLE, FIRST, MIDDLE, LAST = range(4)  # flags of a record's parts
FLAG_SHIFT = 29
MAX_BYTES = (1 << FLAG_SHIFT) - 1  # of a record's part
MAX_CLASSES = 1 << 24  # whole numbers that an IRHeader's float holds exactly

FILE = "{}.rec"  # NVIDIA's and MXNet's name
MAKE = "restore it, or make both by tools.pack"  # MXNet, which reads a file for its index, is not installed
# A record's first bytes, if it has one part. `word` is a flag and the length of what follows it; `further` is how many
# labels follow the IRHeader: if none, `next_label` is the image's first bytes, and `label` counts.
HEAD_FIELDS = np.dtype(
    [("magic", "S4"), ("word", "<u4"), ("further", "<u4"), ("label", "<f4"), ("ids", "<u8", 2), ("next_label", "<f4")]
)


def find(packed: Path, index: Path, classes: int = MAX_CLASSES) -> Records:
    """Return where the records of a RecordIO file lie, by its index.

    A line of the index is `key offset`, in any order. A record ends where the next one begins.

    Args:
        packed: The RecordIO file, such as train.rec.
        index: Its index, such as train.idx.
        classes: Number of classes that the labels may have.

    Raises:
        ValueError: The file is empty, or the index is absent or damaged, or cannot be this file's.
    """
    file_bytes = packed.stat().st_size
    if file_bytes == 0:
        raise ValueError(f"{packed}: is empty: {MAKE}")
    keys_and_offsets = read_index(index, MAKE)
    offsets = np.sort(keys_and_offsets[:, 1])
    sizes = np.diff(offsets, append=file_bytes)  # the last record ends with the file
    begins_with_file = offsets[0] == 0
    has_room_for_heads = (sizes >= HEAD.size).all()
    if not begins_with_file or not has_room_for_heads:
        raise ValueError(f"{index}: is not the index of {packed} with its {file_bytes} bytes: {MAKE}")
    file_numbers = np.zeros_like(offsets)  # all in the one file
    places = np.stack([file_numbers, offsets, sizes], axis=1)
    return Records(format=FORM, files=(packed,), places=places, classes=classes)


# ---- a record


def image_record(image: bytes, label: int, number: int) -> bytes:
    """Return a RecordIO record of an encoded image and its label, as MXNet's im2rec writes it.

    Args:
        image: The encoded image, such as a whole JPEG file.
        label: Number of the class.
        number: Id of the record.

    Raises:
        ValueError: The image is too large for a record.
    """
    further_labels = 0  # there are none: the label in the header counts
    second_id = 0
    payload = IR_HEADER.pack(further_labels, label, number, second_id) + image
    parts = _parts(payload)  # nearly always one
    record = b""
    for part_number, part in enumerate(parts):
        record += _encoded_part(part, _flag(part_number, len(parts)))
    return record


def _parts(payload: bytes) -> list[bytes]:
    """Cut the payload of a record where it has the word MAGIC at a multiple of 4.

    To find the start of a record, a reader looks for MAGIC at multiples of 4, so a payload must not have it there. The
    reader puts the word back between the parts.

    Args:
        payload: Content of a record: a header and an encoded image.

    Returns:
        The parts without the word; nearly always one.
    """
    parts: list[bytes] = []
    start = 0
    for position in _magic_positions(payload):
        parts.append(payload[start:position])
        start = position + len(MAGIC)
    parts.append(payload[start:])
    return parts


def _encoded_part(part: bytes, flag: int) -> bytes:
    """Return a part of a record with its head before it, filled up with zeros to a multiple of 4 bytes.

    The head is the word MAGIC and a word whose upper 3 bits are the flag, and whose lower 29 are the length of the
    part.

    Args:
        part: Bytes of the part.
        flag: WHOLE for the only part of a record; else FIRST, MIDDLE or LAST.

    Raises:
        ValueError: The length needs more than 29 bits.
    """
    if len(part) > MAX_BYTES:
        raise ValueError(f"is longer than {MAX_BYTES} bytes, the most that a record holds")
    flag_and_length = flag << FLAG_SHIFT | len(part)
    filling = bytes(_filling_bytes(len(part)))
    return HEAD.pack(MAGIC, flag_and_length) + part + filling


def _filling_bytes(length: int) -> int:
    """Return how many bytes fill `length` bytes up to a multiple of 4, such as 3 for 5."""
    return -length % 4


def _magic_positions(payload: bytes) -> list[int]:
    """Return the positions at multiples of 4 where a payload holds MAGIC."""
    positions = []
    position = payload.find(MAGIC)
    while position >= 0:
        if position % 4 == 0:
            positions.append(position)
        position = payload.find(MAGIC, position + 1)
    return positions


def _flag(part: int, parts: int) -> int:
    """Return the flag of a part of a record: whether it is the only one, the first, a middle one or the last.

    Args:
        part: Number of the part; counts from 0.
        parts: Number of parts of the record.
    """
    if parts == 1:
        return WHOLE
    if part == 0:
        return FIRST
    return LAST if part == parts - 1 else MIDDLE


def parse(record: bytes) -> Parsed:
    """Return the encoded image and the label of a whole RecordIO record.

    A record has a header with a label, then perhaps a further label, which replaces that of the header, then the image.

    Args:
        record: All bytes of the record, its head included.

    Returns:
        The image and the label. A label that is not a whole number becomes -1, which is not a class.

    Raises:
        ValueError: The record is damaged, holds no image, or has several further labels.
    """
    payload = _payload(record)
    if len(payload) < IR_HEADER.size:
        raise ValueError("it has no header of MXNet's")
    further_labels, label, _, _ = IR_HEADER.unpack_from(payload)
    further_label_bytes = FURTHER_LABEL.size * further_labels
    image = payload[IR_HEADER.size + further_label_bytes :]
    if further_labels > 1 or not image:
        raise ValueError(_other_kind(further_labels, len(image)))  # says what the record holds
    if further_labels == 1:
        (label,) = FURTHER_LABEL.unpack_from(payload, IR_HEADER.size)
    if not float(label).is_integer():
        label = -1
    return Parsed(image=image, label=int(label))


def _payload(record: bytes) -> bytes:
    """Return the content of a RecordIO record: a header with the label, further labels if it has any, and the image.

    A record has one part or several, and each part begins with a head. Where the content itself has the bytes MAGIC, by
    which a reader finds a head, the writer leaves them out and begins a new part. Here they are put back:

        record     head AAAA head BBBB
        content    AAAA MAGIC BBBB

    Args:
        record: All bytes of the record, its head included.

    Raises:
        ValueError: A part is damaged or out of order, or the record does not end with its last part.
    """
    part = _part_at(0, record, (WHOLE, FIRST))  # raises ValueError for any other flag
    contents_of_parts = [part.content]
    while part.flag in (FIRST, MIDDLE):  # another part follows
        part = _part_at(part.end, record, (MIDDLE, LAST))
        contents_of_parts.append(part.content)
    # `record` has all bytes up to the next record that the index names, or to the end of the file. So if bytes follow
    # the last part, the index lacks a record, or these bytes are not a record.
    if part.end != len(record):
        raise ValueError(
            f"it ends at its byte {part.end} of {len(record)}: the index does not name the record behind it, or these "
            "bytes belong to none"
        )
    return MAGIC.join(contents_of_parts)  # a single part is returned as it is


class _Part(NamedTuple):
    """A part of a record."""

    flag: int  # WHOLE, or FIRST, MIDDLE or LAST of several
    content: bytes
    end: int  # where the next part begins


def _part_at(position: int, record: bytes, expected_flags: tuple[int, int]) -> _Part:
    """Return the part of a RecordIO record that begins at a position.

    Args:
        position: Byte of the record.
        record: All bytes of the record.
        expected_flags: Flags that the part may have there, such as (MIDDLE, LAST) after the first part.

    Raises:
        ValueError: No whole part begins there, or it has another flag: the parts are out of order.
    """
    if position + HEAD.size > len(record):
        raise ValueError("it is damaged: it ends within its head")
    magic, word = HEAD.unpack_from(record, position)
    flag = word >> FLAG_SHIFT  # the upper 3 bits
    length = word & MAX_BYTES  # of the content: the lower 29 bits
    start = position + HEAD.size
    end = start + length + _filling_bytes(length)
    is_whole = magic == MAGIC and end <= len(record)
    if not is_whole or flag not in expected_flags:
        raise ValueError(f"it is damaged: no whole part at its byte {position}")
    return _Part(flag, record[start : start + length], end)


def _other_kind(further_labels: int, image_bytes: int) -> str:
    """Return words for what a record holds that is not one image with one label.

    Args:
        further_labels: Number of labels that follow the header.
        image_bytes: Bytes of the image; 0 or less if there is none.
    """
    if image_bytes <= 0:
        return "it holds labels and no image, as the header and identity records of InsightFace's sets for faces do"
    return f"it has {further_labels} labels, as sets for detection have, not the one of a class"


# ---- all records, by their heads


def contents_by_first_bytes(records: Records, first_bytes: Array) -> Contents:
    """Return the name, size in bytes and class label of the image in every record of a RecordIO file.

    The first bytes of nearly every record tell all this. Only a record for which they do not suffice, such as one that
    is stored in several parts, is read in full.

    Args:
        records: Where each record lies in the file, and how many classes the labels may have.
        first_bytes: The first 36 bytes of each record, laid out as HEAD_FIELDS; shape [records, 36], uint8.

    Returns:
        For each record: its number as the name ("0", "1", ...), the exact size of its encoded image, and its label as
        int64.

    Raises:
        ValueError: A record is seen to be damaged, does not hold one image with one label, or has a label that is
            not a class. The message names the first such record.
    """
    fields = first_bytes.view(HEAD_FIELDS)[:, 0]  # [records]: each row of bytes as one record of named fields
    # Both are right where the first bytes suffice. The others are replaced below.
    labels = _labels(fields)
    image_bytes = _image_bytes(fields)
    do_first_bytes_suffice = _is_one_part(fields, records) & _has_image_and_class(fields, records)
    for number in np.flatnonzero(~do_first_bytes_suffice):
        parsed = _read_whole(records, int(number))  # raises ValueError for a damaged record
        image_bytes[number] = len(parsed.image)
        labels[number] = parsed.label
    names = [str(number) for number in range(len(records))]
    # The sizes are exact: of the encoded images alone, without heads and labels.
    return Contents(names=names, sizes=image_bytes, labels=labels.astype(np.int64), is_exact=True)


def _lengths(fields: Array) -> Array:
    """Return the length in bytes of what follows the head of each record, [records] int64.

    Args:
        fields: First bytes of each record, laid out as HEAD_FIELDS, [records].
    """
    lengths: Array = (fields["word"] & MAX_BYTES).astype(np.int64)
    return lengths


def _labels(fields: Array) -> Array:
    """Return the label of each record by its first bytes, [records] float64.

    One further label replaces the one in the header.

    Args:
        fields: First bytes of each record, laid out as HEAD_FIELDS, [records].
    """
    has_further_label = fields["further"] == 1
    labels: Array = np.where(has_further_label, fields["next_label"], fields["label"]).astype(np.float64)
    return labels


def _image_bytes(fields: Array) -> Array:
    """Return the bytes of each encoded image, [records] int64: what is left behind the header and further labels.

    Args:
        fields: First bytes of each record, laid out as HEAD_FIELDS, [records].
    """
    further_label_bytes = FURTHER_LABEL.size * fields["further"].astype(np.int64)
    image_bytes: Array = _lengths(fields) - IR_HEADER.size - further_label_bytes
    return image_bytes


def _is_one_part(fields: Array, records: Records) -> Array:
    """Tell for each record, by its first bytes, whether it is stored in one part, of the length that the index says.

    Args:
        fields: First bytes of each record, laid out as HEAD_FIELDS, [records].
        records: Where each record lies by the index.

    Returns:
        [records] bool.
    """
    has_head = fields["magic"] == MAGIC
    flags = fields["word"] >> FLAG_SHIFT
    has_no_further_part = flags == WHOLE
    lengths = _lengths(fields)
    bytes_by_head = HEAD.size + lengths + (-lengths % 4)  # filled up to a multiple of 4
    bytes_by_index = records.places[:, SIZE_COLUMN]
    is_one_part: Array = has_head & has_no_further_part & (bytes_by_head == bytes_by_index)
    return is_one_part


def _has_image_and_class(fields: Array, records: Records) -> Array:
    """Tell for each record, by its first bytes, whether it holds an image and one label that is a class.

    Args:
        fields: First bytes of each record, laid out as HEAD_FIELDS, [records].
        records: How many classes the labels may have.

    Returns:
        [records] bool. The values of records that are stored in several parts have no meaning.
    """
    labels = _labels(fields)
    # Without a further label the one in the header counts. A single further label replaces it.
    has_one_label = fields["further"] <= 1
    has_image = _image_bytes(fields) > 0
    is_whole_number = labels == np.floor(labels)
    is_class: Array = is_whole_number & (labels >= 0) & (labels < records.classes)
    has_image_and_class: Array = has_one_label & has_image & is_class
    return has_image_and_class


def _read_whole(records: Records, number: int) -> Parsed:
    """Read all bytes of one record and return its image and label.

    Args:
        records: Where each record lies, and how many classes the labels may have.
        number: Which record; counts from 0.

    Raises:
        ValueError: The record is damaged, does not hold one image with one label, or has a label that is not a class.
            The message names the record and says what to do.
    """
    content = records.content(number)
    try:
        parsed = parse(content)
    except ValueError as error:
        raise ValueError(f"{records.name(number)}: {error}: {MAKE}") from error
    if not 0 <= parsed.label < records.classes:
        raise ValueError(records.label_fault(number))
    return parsed


FORM = Form(
    name="recordio",
    first_label=0,
    head_bytes=HEAD_FIELDS.itemsize,
    parse=parse,
    contents_by_first_bytes=contents_by_first_bytes,
)
