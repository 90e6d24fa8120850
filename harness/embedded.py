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


def make_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Make the folder of an embedded data set, unless it is there already, and return it.

    `write` fills a temporary folder, which is then renamed. So several processes may do this at once, and none sees the
    folder half filled. Raises ValueError where it cannot be written.
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
            f"{folder}: cannot write the embedded data set ({error}): free the disk or set DATADIR"
        ) from error
    return folder


def _rename_unless_there(partial: Path, folder: Path) -> None:
    """Give the finished folder its name; another process may have been first, with the same files."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def digits() -> Digits:
    """Return the images and labels of the handwritten digits in `digits.txt`, and which of them are for training.

    A line of the file is `part number label pixels`, as `train 1346 3 008ggc00...`. Each character of `pixels` is a
    grey level: a digit of base 17, from 0 to g.
    """
    numbers_by_part: dict[str, list[int]] = {"train": [], "val": []}
    label_by_number: dict[int, int] = {}
    pixels_by_number: dict[int, list[int]] = {}
    for line in DIGITS_FILE.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        part, number_text, label, levels = line.split()
        number = int(number_text)
        numbers_by_part[part].append(number)
        label_by_number[number] = int(label)
        pixels_by_number[number] = [int(level, LEVELS) for level in levels]  # LEVELS is the base of the digits

    numbers = range(len(label_by_number))
    images = np.array([pixels_by_number[number] for number in numbers], dtype=np.float64)
    return Digits(
        images=images.reshape(-1, SIDE, SIDE),
        labels=np.array([label_by_number[number] for number in numbers], dtype=np.int64),
        train=numbers_by_part["train"],
        evaluation=numbers_by_part["val"],
    )
