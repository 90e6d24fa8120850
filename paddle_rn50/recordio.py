"""MXNet's RecordIO (dmlc-core): what its records hold, and a record made of an image.

A record is the word MAGIC, a word with a flag (3 bits) and a length (29), and the payload, filled up to 4 bytes. A
payload is split where it holds MAGIC at a multiple of 4: flags 1, 2, ..., 3 for its parts, 0 if whole. MXNet's payload
is an IRHeader, further labels where the header counts some, and an encoded image. A line of the index is `key offset`;
samples count by offset.
"""

import struct
from pathlib import Path

import numpy as np

from harness.passport import Contents
from paddle_rn50.records import Form, Parsed, Records, read_index
from program.arrays import Array

MAGIC = struct.pack("<I", 0xCED7230A)
HEAD = struct.Struct("<4sI")  # MAGIC, and flag and length
IR_HEADER = struct.Struct("<IfQQ")  # how many labels follow it (0: the one inside counts), label, id, id2
FURTHER_LABEL = struct.Struct("<f")
WHOLE, FIRST, MIDDLE, LAST = range(4)  # flags of a record's parts
FLAG_SHIFT = 29
MOST_BYTES = (1 << FLAG_SHIFT) - 1  # of a record's part
MOST_CLASSES = 1 << 24  # whole numbers that an IRHeader's float holds exactly

FILE = "{}.rec"  # NVIDIA's and MXNet's name
MAKE = "restore it, or make both by tools.pack"  # MXNet, which reads a file for its index, is not installed
# A record's first bytes, where it has one part.
HEAD_FIELDS = np.dtype(
    [("magic", "S4"), ("word", "<u4"), ("further", "<u4"), ("label", "<f4"), ("ids", "<u8", 2), ("next_label", "<f4")]
)


def find(packed: Path, index: Path, classes: int = MOST_CLASSES) -> Records:
    """Find the records of a RecordIO file by its index.

    Raises ValueError where the index is absent, or is another file's.
    """
    offsets = np.sort(read_index(index, MAKE)[:, 1])
    size = packed.stat().st_size
    sizes = np.diff(offsets, append=size)
    if offsets[0] != 0 or (sizes < HEAD.size).any():
        raise ValueError(f"{index}: is not the index of {packed} with its {size} bytes: {MAKE}")
    places = np.stack([np.zeros_like(offsets), offsets, sizes], axis=1)
    return Records(format=FORM, files=(packed,), places=places, classes=classes)


# ---- a record


def image_record(image: bytes, label: int, number: int) -> bytes:
    """Make a RecordIO record of an encoded image, as MXNet's im2rec writes it.

    Raises ValueError where the image is longer than a record may be.
    """
    payload = IR_HEADER.pack(0, label, number, 0) + image
    starts = [0]
    ends = []
    for position in _magic_words(payload):
        ends.append(position)
        starts.append(position + len(MAGIC))
    ends.append(len(payload))

    record = b""
    for part, (start, end) in enumerate(zip(starts, ends, strict=True)):
        length = end - start
        if length > MOST_BYTES:
            raise ValueError(f"is longer than {MOST_BYTES} bytes, the most that a record holds")
        record += HEAD.pack(MAGIC, _flag(part, len(starts)) << FLAG_SHIFT | length) + payload[start:end]
    return record + bytes(-len(payload) % 4)


def _magic_words(payload: bytes) -> list[int]:
    """Positions at multiples of 4 where a payload holds MAGIC, none overlapping another."""
    positions = []
    position = payload.find(MAGIC)
    while position >= 0:
        if position % 4 == 0:
            positions.append(position)
        position = payload.find(MAGIC, position + 1)
    return positions


def _flag(part: int, parts: int) -> int:
    """Flag of a record's part, by its number from 0 and their count."""
    if parts == 1:
        return WHOLE
    if part == 0:
        return FIRST
    return LAST if part == parts - 1 else MIDDLE


def parse(record: bytes) -> Parsed:
    """Parse a whole record. Raises ValueError where it is damaged, or of another kind."""
    payload = _payload(record)
    if len(payload) < IR_HEADER.size:
        raise ValueError("it has no header of MXNet's")
    further, label, _, _ = IR_HEADER.unpack_from(payload)
    start = IR_HEADER.size + FURTHER_LABEL.size * further
    if further > 1 or start >= len(payload):
        raise ValueError(_other_kind(further, len(payload) - start))
    if further:
        (label,) = FURTHER_LABEL.unpack_from(payload, IR_HEADER.size)
    return Parsed(payload[start:], int(label) if float(label).is_integer() else -1)


def _payload(record: bytes) -> bytes:
    """Join the parts of a record. Raises ValueError where they are not whole, or more follows them."""
    parts: list[bytes] = []
    position = 0
    flag = FIRST
    while not parts or flag in (FIRST, MIDDLE):
        if position + HEAD.size > len(record):
            raise ValueError("it is damaged: it ends within its head")
        magic, word = HEAD.unpack_from(record, position)
        flag = word >> FLAG_SHIFT
        length = word & MOST_BYTES
        start = position + HEAD.size
        begins = flag in (WHOLE, FIRST)
        if magic != MAGIC or begins == bool(parts) or flag > LAST or start + length > len(record):
            raise ValueError(f"it is damaged: no whole part at its byte {position}")
        parts.append(record[start : start + length])
        position = start + length + -length % 4
    if position != len(record):
        raise ValueError(
            f"it ends at its byte {position} of {len(record)}: the index does not name the record behind it, or these "
            "bytes belong to none"
        )
    return MAGIC.join(parts)


def _other_kind(further: int, image_bytes: int) -> str:
    """Say what a whole record holds that is no labelled image."""
    if image_bytes <= 0:
        return "it holds labels and no image, as the header and identity records of InsightFace's sets for faces do"
    return f"it has {further} labels, as sets for detection have, not the one of a class"


# ---- all records, by their heads


def contents(records: Records, heads: Array) -> Contents:
    """Tell sizes and labels of all images from the records' heads [records, bytes].

    Raises ValueError for the first record that is damaged, of another kind, or with a label out of range.
    """
    fields = heads.view(HEAD_FIELDS)[:, 0]
    lengths = (fields["word"] & MOST_BYTES).astype(np.int64)
    flags = fields["word"] >> FLAG_SHIFT
    further = fields["further"].astype(np.int64)
    labels = np.where(further == 1, fields["next_label"], fields["label"]).astype(np.float64)
    image_bytes = lengths - IR_HEADER.size - FURTHER_LABEL.size * further

    ends = HEAD.size + lengths + -lengths % 4
    is_plain = (fields["magic"] == MAGIC) & (flags == WHOLE) & (ends == records.places[:, 2])
    is_plain &= (further <= 1) & (image_bytes > 0)
    is_plain &= (labels >= 0) & (labels < records.classes) & (labels == np.floor(labels))
    for number in np.flatnonzero(~is_plain):
        parsed = _read_whole(records, int(number))  # one of several parts, or one that is refused
        image_bytes[number] = len(parsed.image)
        labels[number] = parsed.label
    names = [str(number) for number in range(len(records))]
    return Contents(names=names, sizes=image_bytes, labels=labels.astype(np.int64), is_exact=True)


def _read_whole(records: Records, number: int) -> Parsed:
    """Read and parse one record. Raises ValueError where it is refused."""
    _, offset, size = records.places[number].tolist()
    with records.files[0].open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    try:
        parsed = parse(content)
    except ValueError as error:
        raise ValueError(f"{records.name(number)}: {error}: {MAKE}") from error
    if not 0 <= parsed.label < records.classes:
        raise ValueError(records.label_fault(number))
    return parsed


FORM = Form(name="recordio", first_label=0, head_bytes=HEAD_FIELDS.itemsize, parse=parse, contents=contents)
