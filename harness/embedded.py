"""Makes the embedded data sets where they are first needed, from the handwritten digits of `harness/digits.txt`.

The digits are 1,797 scans of 8 x 8 pixels with 17 grey levels, in ten classes (E. Alpaydin, C. Kaynak, 1998); the file
says where they come from and under which licence. Its split is fixed and stratified: 1,437 for training, 360 for
evaluation. A workload's folder draws them as images in its own layout.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from program.arrays import Array

DIGITS_FILE = Path(__file__).with_name("digits.txt")
TRAIN_DIGITS = 1437
SIDE = 8  # pixels of a digit, in each direction
FULL_INK = 16  # the highest grey level
LEVELS = 17


class Digits(NamedTuple):
    """The digits by their numbers in the original file, and the numbers in each half of the split."""

    images: Array  # [1797, 8, 8] float64, from 0 (paper) to FULL_INK
    labels: Array  # [1797] int64, 0 to 9
    train: list[int]
    evaluation: list[int]


class _Digit(NamedTuple):
    """A line of `digits.txt`, such as `train 1346 3 008ggc00...`."""

    part: str  # "train" or "val"
    number: int
    label: int
    pixels: list[int]  # grey levels, row by row


def make_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Make the folder of an embedded data set, unless it is there already, and return it.

    A temporary folder is filled and then renamed. So several processes may do this at once, and none sees the folder
    half filled.

    Args:
        folder: The folder to make.
        write: Function that fills the folder whose path it gets.

    Raises:
        ValueError: The folder cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.partial-", dir=folder.parent) as temporary:
            partial = Path(temporary) / folder.name
            partial.mkdir()
            write(partial)
            _rename_unless_there(partial, folder)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot make the embedded data set ({error.strerror or error}): set DATA_CACHE to a folder that "
            "you may write and that has room, or DATADIR to a data set"
        ) from error
    return folder


def _rename_unless_there(partial: Path, folder: Path) -> None:
    """Give a finished folder its name; another process may have been first, with the same files.

    Args:
        partial: The finished folder under its temporary name.
        folder: The name that it gets. If a folder is there already, that is kept.

    Raises:
        OSError: The folder cannot be renamed, and there is none of that name.
    """
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def digits() -> Digits:
    """Return the images and labels of the 1,797 handwritten digits in `digits.txt`, and the file's fixed split.

    Returns:
        Images [1797, 8, 8] and labels [1797] in the order of their numbers, from 0. The split is two lists of such
        numbers.
    """
    in_file = _digits_in_file()
    by_number = sorted(in_file, key=lambda digit: digit.number)
    images = np.array([digit.pixels for digit in by_number], dtype=np.float64)
    return Digits(
        images=images.reshape(-1, SIDE, SIDE),
        labels=np.array([digit.label for digit in by_number], dtype=np.int64),
        train=[digit.number for digit in in_file if digit.part == "train"],
        evaluation=[digit.number for digit in in_file if digit.part == "val"],
    )


def _digits_in_file() -> list[_Digit]:
    found = []
    for line in DIGITS_FILE.read_text(encoding="ascii").splitlines():
        if not line.startswith("#"):
            part, number, label, levels = line.split()
            pixels = [int(level, LEVELS) for level in levels]  # each is a digit of base 17, from 0 to g
            found.append(_Digit(part, int(number), int(label), pixels))
    return found
