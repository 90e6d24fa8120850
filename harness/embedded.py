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


def make(folder: Path, write: Callable[[Path], None]) -> Path:
    """Have `write` fill `folder` unless it is there, and return it; processes of any host may do so at once.

    Raises ValueError where the folder cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.partial-", dir=folder.parent) as temporary:
            partial = Path(temporary) / folder.name
            partial.mkdir()
            write(partial)
            _rename(partial, folder)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot write the embedded data set ({error}): free the disk or set DATADIR"
        ) from error
    return folder


def _rename(partial: Path, folder: Path) -> None:
    """Give the finished folder its name; another process may have been first, with the same files."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def digits() -> Digits:
    """Read the digits and their split, in the order of the file."""
    split: dict[str, list[int]] = {"train": [], "val": []}
    drawn: dict[int, tuple[int, list[int]]] = {}  # label and pixels, by number
    for line in DIGITS_FILE.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        part, number, label, levels = line.split()
        split[part].append(int(number))
        drawn[int(number)] = int(label), [int(level, LEVELS) for level in levels]

    images = np.array([drawn[number][1] for number in range(len(drawn))], dtype=np.float64)
    labels = np.array([drawn[number][0] for number in range(len(drawn))], dtype=np.int64)
    return Digits(images=images.reshape(-1, SIDE, SIDE), labels=labels, train=split["train"], evaluation=split["val"])
