"""Images packed in a few large files, read at random by their index: MXNet's RecordIO and TensorFlow's TFRecord.

DALI's own readers of both go through a file in its order and shuffle within a buffer; here a sample is read wherever
`harness/sampling.py` wants it, so that a packed data set gives the batches of the folder that it was made of.
`recordio.py` and `tfrecord.py` know the two forms; this file what they share.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.passport import Contents, OnProgress, digest_in_order
from program.arrays import Array
from runlog import named_files, schema
from runlog.digits import counted
from runlog.errors import RunError

READERS = 16  # threads: a network disk answers each read late
RECORDS_AT_ONCE = 4096  # whose first bytes a thread reads


class Place(NamedTuple):
    """Where a record lies. Places sort by file, and within a file by offset."""

    file: int  # the file's number, its index in `Records.files`
    offset: int  # bytes
    size: int  # bytes, of all that belongs to the record


SIZE_COLUMN = 2  # of an array of places, whose columns are the fields of Place


class Parsed(NamedTuple):
    """The label and the encoded image of a record."""

    image: bytes  # encoded
    label: int  # from 0


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of packed images: how a record is read, and what its first bytes tell."""

    name: str  # one of runlog's schema.FORMS
    first_label: int  # the number that the form has for label 0
    head_bytes: int  # first bytes of a record that are looked at before a run
    parse: Callable[[bytes], Parsed]  # of a whole record; raises ValueError if it is damaged
    # Tells names, sizes and labels by the first bytes of all records, [records, head_bytes] uint8. Raises ValueError if
    # a record does not fit its index, or is seen to hold no image with a class.
    contents_by_first_bytes: Callable[["Records", Array], Contents]


def _positions_by_file(places: list[Place]) -> dict[int, list[int]]:
    """Return the positions of records in a list, grouped by their file and sorted by their offset in it.

    For records at offset 90 of file 1, offset 50 of file 0 and offset 10 of file 1 it is {0: [1], 1: [2, 0]}.

    Args:
        places: Where each record lies.
    """
    positions = sorted(range(len(places)), key=lambda position: places[position])  # by file, then by offset
    positions_by_file: dict[int, list[int]] = {}
    for position in positions:
        positions_by_file.setdefault(places[position].file, []).append(position)
    return positions_by_file


def _announce_reads(descriptor: int, places: list[Place]) -> None:
    """Tell the system which parts of an open file will be read, so that it can read them ahead."""
    for place in places:
        os.posix_fadvise(descriptor, place.offset, place.size, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of some files, numbered from 0 in the order of the files."""

    format: Form
    files: tuple[Path, ...]
    places: Array  # [records, 3] int64: number of the file, offset, bytes
    classes: int
    largest: tuple[int, int] | None = None  # width and height in pixels of the largest image, where known
    source: schema.Passport | None = None  # of the files that they were packed from, where known
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    @property
    def form(self) -> str:
        """Name of the form, as the log has it."""
        return self.format.name

    def numbering(self) -> str:
        """Return a digest of the files' names and of where the records lie, in the order of their numbers."""
        return digest_in_order([file.name for file in self.files], self.places)

    def read(self, ids: Array) -> tuple[list[bytes], Array]:
        """Return the encoded images and the labels of some records.

        The files are read in the order in which the records lie in them.

        Args:
            ids: Numbers of the records, from 0, [N].

        Returns:
            Images, and labels [N] int64, both in the order of `ids`.

        Raises:
            RunError: A record is damaged, or its label is not a class.
        """
        images = [b""] * len(ids)
        labels = np.empty(len(ids), dtype=np.int64)
        places = [Place(*row) for row in self.places[ids].tolist()]
        # A position is a record's place in `ids`, and so in all of these lists.
        for file_number, positions in _positions_by_file(places).items():  # those of a file in the order of its bytes
            with self.files[file_number].open("rb", buffering=0) as file:
                _announce_reads(file.fileno(), [places[position] for position in positions])
                for position in positions:
                    place = places[position]
                    content = os.pread(file.fileno(), place.size, place.offset)
                    parsed = self._parse_record(content, int(ids[position]))
                    images[position] = parsed.image
                    labels[position] = parsed.label
        return images, labels

    def content(self, number: int) -> bytes:
        """Return all bytes of one record, its head included.

        Args:
            number: Which record; counts from 0.
        """
        place = Place(*self.places[number].tolist())
        with self.files[place.file].open("rb") as file:
            file.seek(place.offset)
            return file.read(place.size)

    def _parse_record(self, content: bytes, number: int) -> Parsed:
        """Return the image and the label of a record.

        Args:
            content: All bytes of the record, its head included.
            number: Which record it is, for messages.

        Raises:
            RunError: The record is damaged, or its label is none of the recipe's classes.
        """
        try:
            parsed = self.format.parse(content)
        except ValueError as error:
            raise RunError(f"{self.name(number)}: {error}: make the file or its index again") from error
        if not 0 <= parsed.label < self.classes:
            raise RunError(self.label_fault(number))
        return parsed

    def label_fault(self, number: int) -> str:
        """Return the message that a record's label is none of the recipe's classes.

        Args:
            number: Which record; counts from 0.
        """
        first = self.format.first_label
        last = first + self.classes - 1
        return (
            f"{self.name(number)}: its label is not one of {first} to {last}, the recipe's {self.classes} classes: "
            f"number the classes from {first}, or choose another RECIPE"
        )

    def name(self, number: int) -> str:
        """Name the file and the record, for a message."""
        place = Place(*self.places[number].tolist())
        return f"{self.files[place.file]}, record {number} at byte {place.offset}"

    def encoded(self, number: int) -> list[tuple[str, bytes]]:
        """Return the name and the encoded image of one record, as a list of one pair.

        The result is a list because other data sets answer the same call with several files of a sample: in
        segmentation, an image and a label.

        Args:
            number: Which record; counts from 0.

        Returns:
            A list of one pair: the name of the record for messages, such as "data/train.rec, record 0 at byte 0", and
            the bytes of the image file that the record holds.

        Raises:
            RunError: The record is damaged, or its label is not a class.
            OSError: The file of the record cannot be read.
        """
        images, _ = self.read(np.array([number]))
        return [(self.name(number), images[0])]

    def contents(self, on_progress: OnProgress) -> Contents:
        """Return the name, the size in bytes and, for RecordIO, the label of each record, and check the records.

        Of nearly all records only the first bytes are read, because the files are large. A whole record is read only
        where the first bytes do not suffice. The name of a record is its number: "0", "1" and so on. The form decides
        the rest:

            RecordIO   The size is that of the encoded image. The label is known. Every record is checked: it must have
                       the length that the index gives, an image and one label, which is a class.
            TFRecord   The size is that of the record's message, in which the image is one field of several. The label
                       is not known (None for all). The length of every record is checked, but only the first record is
                       checked for an image and a class.

        Args:
            on_progress: Called with the number of records read so far and the number of all.

        Raises:
            ValueError: A record fails a check. The message names the record.
            OSError: A file cannot be read.
        """
        first_bytes = self._first_bytes(on_progress)  # of all records: 36 bytes of each for RecordIO, 8 for TFRecord
        # A function of the form, in `recordio.py` or `tfrecord.py`, which makes the checks.
        contents = self.format.contents_by_first_bytes(self, first_bytes)
        self._require_own_source(image_bytes=int(contents.sizes.sum()))
        return contents

    def _require_own_source(self, image_bytes: int) -> None:
        """Raise ValueError if the records were not packed from their `source`, for example if they have replaced a
        pack.

        Args:
            image_bytes: Bytes of all images in the records. A pack holds the bytes of its source's files unchanged.

        Raises:
            ValueError: The source has another number of files or of bytes.
        """
        if self.source is None:
            return
        if (self.source.files, self.source.bytes) != (len(self), image_bytes):
            raise ValueError(
                f"{self.files[0]}: has {counted(len(self), 'record')} of {image_bytes} bytes, but the .sizes.json in "
                f"its folder is of a pack of {counted(self.source.files, 'file')} of {self.source.bytes} bytes: remove "
                "that .sizes.json, then tools.pack --sizes writes it anew"
            )

    def _first_bytes(self, on_progress: OnProgress) -> Array:
        """Return the first bytes of each record, in the order of the records: [records, head_bytes] uint8.

        READERS (16) threads read them, each for a block of RECORDS_AT_ONCE (4096) records at a time.

        Args:
            on_progress: Called after each block with the number of records read so far and the number of all.
        """
        blocks: list[Array] = []
        records_read = 0
        with ThreadPoolExecutor(READERS) as readers:
            for block in readers.map(self._first_bytes_of_block, range(0, len(self), RECORDS_AT_ONCE)):
                blocks.append(block)
                records_read += len(block)
                on_progress(records_read, len(self))
        return np.concatenate(blocks)

    def _first_bytes_of_block(self, start: int) -> Array:
        """Return the first bytes of up to 4096 consecutive records (RECORDS_AT_ONCE), in the order of the records.

        Args:
            start: Number of the first record.

        Returns:
            An array [records, head_bytes] uint8. `head_bytes` is 36 for a RecordIO file, 8 for a TFRecord file. If a
            record is shorter, zeros follow.
        """
        head_bytes = self.format.head_bytes
        places = [Place(*row) for row in self.places[start : start + RECORDS_AT_ONCE].tolist()]
        heads = []
        # The records are numbered file by file, so `groupby` yields each file once, and keeps the order.
        for file_number, places_in_file in groupby(places, key=lambda place: place.file):
            with self.files[file_number].open("rb", buffering=0) as file:
                # No reading ahead: only a few bytes of each record are needed.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                for place in places_in_file:
                    head = os.pread(file.fileno(), min(head_bytes, place.size), place.offset)
                    heads.append(head.ljust(head_bytes, b"\0"))
        return np.frombuffer(b"".join(heads), dtype=np.uint8).reshape(-1, head_bytes)


def read_index(index: Path, how_to_make: str) -> Array:
    """Return the pairs of whole numbers in an index file, one for each record: [records, 2] int64.

    Args:
        index: The file, such as train.idx.
        how_to_make: Words that tell the user how to make it; each message ends with them.

    Raises:
        ValueError: The file is absent or empty, or holds anything but such pairs.
    """
    if not named_files.is_file(index):
        raise ValueError(f"{index}: no such file: {how_to_make}")
    try:
        words = index.read_bytes().split()  # at blanks and at ends of lines
        numbers = np.array(words, dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{index}: has other lines than two whole numbers: {how_to_make}") from error
    if not len(numbers):
        raise ValueError(f"{index}: is empty: {how_to_make}")
    return numbers
