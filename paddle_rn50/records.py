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

from harness.passport import Contents, Look
from program.arrays import Array
from runlog import named_files, schema
from runlog.errors import RunError

READERS = 16  # threads: a network disk answers each read late
HEADS_AT_ONCE = 4096


class Place(NamedTuple):
    """Where a record is."""

    file: int  # its number
    offset: int
    size: int  # bytes, of all that belongs to it


class Parsed(NamedTuple):
    """The label and the encoded image of a record."""

    image: bytes  # encoded
    label: int  # from 0


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of packed images: how a record is read, and what its first bytes tell."""

    name: str  # recordio | tfrecord
    first_label: int  # the number that the form has for label 0
    head_bytes: int  # first bytes of a record that are looked at before a run
    parse: Callable[[bytes], Parsed]  # of a whole record; raises ValueError where it is damaged
    contents: Callable[["Records", Array], Contents]  # by all heads [records, head_bytes]; raises ValueError


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

    def read(self, ids: Array) -> tuple[list[bytes], Array]:
        """Read the encoded images and labels [N] int64 of `ids`.

        Raises RunError for a damaged record or a wrong label.
        """
        images = [b""] * len(ids)
        labels = np.empty(len(ids), dtype=np.int64)
        places = self.places[ids]
        in_order = np.lexsort((places[:, 1], places[:, 0])).tolist()
        for number, group in groupby(in_order, key=lambda i: places[i, 0]):
            in_file = list(group)
            with self.files[number].open("rb", buffering=0) as file:
                for _, offset, size in places[in_file].tolist():  # the disk is told of all before one is waited for
                    os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_WILLNEED)
                for i in in_file:
                    _, offset, size = places[i].tolist()
                    parsed = self._parsed(os.pread(file.fileno(), size, offset), int(ids[i]))
                    images[i] = parsed.image
                    labels[i] = parsed.label
        return images, labels

    def _parsed(self, content: bytes, number: int) -> Parsed:
        """Parse a record. Raises RunError where it is damaged, or its label is none of the recipe's classes."""
        try:
            parsed = self.format.parse(content)
        except ValueError as error:
            raise RunError(f"{self.name(number)}: {error}: make the file or its index again") from error
        if not 0 <= parsed.label < self.classes:
            raise RunError(self.label_fault(number))
        return parsed

    def label_fault(self, number: int) -> str:
        """Say that a record's label is none of the recipe's."""
        first = self.format.first_label
        last = first + self.classes - 1
        return f"{self.name(number)}: its label is not one of {first} to {last}: the recipe has {self.classes} classes"

    def name(self, number: int) -> str:
        """Name the file and the record, for a message."""
        place = Place(*self.places[number].tolist())
        return f"{self.files[place.file]}, record {number} at byte {place.offset}"

    def encoded(self, number: int) -> list[tuple[str, bytes]]:
        """Name and read the encoded image of a record. Raises RunError where the record is damaged."""
        images, _ = self.read(np.array([number]))
        return [(self.name(number), images[0])]

    def contents(self, look: Look) -> Contents:
        """Look at the first bytes of all records, and tell what they hold.

        Raises ValueError for the first record that is not whole, is of another kind or has a wrong label.
        """
        heads = np.zeros((len(self), self.format.head_bytes), dtype=np.uint8)
        starts = range(0, len(self), HEADS_AT_ONCE)
        with ThreadPoolExecutor(READERS) as readers:
            for start, block in zip(starts, readers.map(self._heads, starts), strict=True):
                heads[start : start + len(block)] = block
                look(start + len(block), len(self))
        return self.format.contents(self, heads)

    def _heads(self, start: int) -> Array:
        """Read the first bytes [HEADS_AT_ONCE, head_bytes] of records from number `start` on; absent ones are 0."""
        most = self.format.head_bytes
        places = self.places[start : start + HEADS_AT_ONCE]
        heads = bytearray()
        for number, group in groupby(places.tolist(), key=lambda place: place[0]):
            with self.files[number].open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read beyond a head
                for _, offset, size in group:
                    heads += os.pread(file.fileno(), min(most, size), offset).ljust(most, b"\0")
        return np.frombuffer(bytes(heads), dtype=np.uint8).reshape(-1, most)


def read_index(index: Path, make: str) -> Array:
    """Read an index: [records, 2] int64, the two numbers of each line.

    Raises ValueError where it is absent, empty or has other lines; `make` says how to make it.
    """
    named_files.refuse_no_file(index)
    if not index.is_file():
        raise ValueError(f"{index}: no such file: {make}")
    try:
        numbers = np.array(index.read_bytes().split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{index}: has other lines than two whole numbers: {make}") from error
    if not len(numbers):
        raise ValueError(f"{index}: is empty: {make}")
    return numbers
