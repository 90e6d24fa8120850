"""The embedded data set: the digits of `harness/embedded.py` on textured ground.

Scenes of 128 x 64 pixels in Cityscapes' layout with eight digits each, brighter than their ground, every pixel labelled
with its digit or as ground. Training scenes show the digits that ResNet-50's embedded data set trains on, evaluation
scenes the others; each digit is in several scenes, at another place, size and colour.
"""

import math
from pathlib import Path

import numpy as np
from PIL import Image

from harness import embedded
from paddle_hrnet.config import SCENES_EVAL, SCENES_TRAIN
from program.arrays import Array

NAME = "uci-digit-scenes-128x64"
GROUND = 10
WIDTH, HEIGHT = 128, 64  # pixels
CELL = 32  # pixels, side of the square in which a digit lies
DIGITS = (WIDTH // CELL) * (HEIGHT // CELL)  # of a scene
DIGIT_MIN, DIGIT_MAX = 26, 32  # pixels, side of a digit: the network's output has one value for 4 x 4 pixels
INK = 0.25  # from this share of full ink on a pixel is the digit's


def write(folder: Path) -> None:
    """Write a small segmentation data set into a folder, in Cityscapes' layout: scenes of handwritten digits, labelled.

    The digits come with this project (`harness/embedded.py`). Each scene is an image and a label, both PNG. The lists
    train.txt and val.txt have a line `image label` for each scene, with paths below the folder. Every call writes the
    same scenes, because all random numbers have fixed seeds.

    Args:
        folder: Folder to fill.
    """
    digits = embedded.digits()
    _write_part(folder, "train", digits, digits.train, SCENES_TRAIN)
    _write_part(folder, "val", digits, digits.evaluation, SCENES_EVAL)


def _write_part(folder: Path, part: str, digits: embedded.Digits, digit_indices: list[int], count: int) -> None:
    """Write scenes into a folder in Cityscapes' layout, and the list of their files, PART.txt.

    A line of the list is `image label`, as paths below the folder.

    Args:
        folder: Folder of the data set.
        part: "train" or "val".
        digits: The embedded handwritten digits.
        digit_indices: Which of them the scenes show.
        count: Number of scenes. It must differ between the parts, because it is part of the random seed.
    """
    lines = []
    for number, indices_in_scene in enumerate(_deal_out(digit_indices, count)):
        # `count` differs between train and val. So scene 0 of train and scene 0 of val have different seeds.
        rng = np.random.default_rng([count, number])
        pixels, labels = scene(_shown(digits, indices_in_scene), rng)

        image_path = f"leftImg8bit/{part}/digits/digits_{number:06d}_leftImg8bit.png"
        label_path = f"gtFine/{part}/digits/digits_{number:06d}_gtFine_labelTrainIds.png"
        _save(pixels, folder / image_path)
        _save(labels, folder / label_path)
        lines.append(f"{image_path} {label_path}\n")
    (folder / f"{part}.txt").write_text("".join(lines))


def _shown(digits: embedded.Digits, indices: Array) -> list[tuple[Array, int]]:
    """Return the ink and the class of some digits.

    Args:
        digits: The embedded handwritten digits.
        indices: Which of them.

    Returns:
        For each its ink [8, 8], from 0 to 1, and its class, 0 to 9.
    """
    return [(digits.images[index] / embedded.FULL_INK, int(digits.labels[index])) for index in indices]


def _save(pixels: Array, file: Path) -> None:
    """Save an array as a picture, in a folder that is made if it is not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def _deal_out(digit_indices: list[int], scenes: int) -> Array:
    """Return the indices of the digits that each scene shows, at random.

    Each index is dealt out once before any is dealt out again.

    Args:
        digit_indices: Indices to deal out.
        scenes: Number of scenes, which is also the random seed.

    Returns:
        Indices, [scenes, 8].
    """
    rng = np.random.default_rng(scenes)
    rounds = math.ceil(scenes * DIGITS / len(digit_indices))
    shuffled: Array = np.concatenate([rng.permutation(digit_indices) for _ in range(rounds)])
    return shuffled[: scenes * DIGITS].reshape(scenes, DIGITS)


def _ground(rng: np.random.Generator) -> Array:
    """Draw the ground of a scene, [HEIGHT, WIDTH, 3] float64: a dark colour with smooth noise of three grain sizes."""
    colour = rng.uniform(20, 100, 3)
    grains = [rng.uniform(-1, 1, (HEIGHT // grain, WIDTH // grain)) for grain in (4, 8, 16)]
    texture = np.sum([_enlarged(grain, HEIGHT, WIDTH) for grain in grains], axis=0) / np.sqrt(3)  # about -1 to 1
    ground: Array = colour + texture[:, :, None] * rng.uniform(8, 20, 3)
    return ground


def scene(shown: list[tuple[Array, int]], rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw a scene of digits on textured ground, and the class of each of its pixels.

    Each digit lies in a square cell of its own, with a random size, place and colour.

    Args:
        shown: For each digit its ink [8, 8], from 0 to 1, and its class; eight at most.
        rng: Source of the random numbers. The same state gives the same scene.

    Returns:
        Pixels [64, 128, 3] and labels [64, 128], both uint8. The label of ground is 10.
    """
    # Keep the order of the draws from `rng`: with another order the same seed gives another scene.
    pixels = _ground(rng)
    labels = np.full((HEIGHT, WIDTH), GROUND, dtype=np.uint8)
    for cell, (digit, digit_class) in enumerate(shown):
        size = int(rng.integers(DIGIT_MIN, DIGIT_MAX + 1))
        rows, columns = _random_place(cell, size, rng)
        colour = rng.uniform(100, 150, 3)
        ink = np.clip(_enlarged(digit, size, size), 0, 1)
        pixels[rows, columns] += ink[:, :, None] * colour  # the digit is brighter than the ground
        labels_here = labels[rows, columns]  # a view: writing to it changes `labels`
        labels_here[ink >= INK] = digit_class
    pixels += rng.normal(0, 4, pixels.shape)  # noise
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), labels


def _random_place(cell: int, size: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Return the rows and the columns of a square that lies at random within a cell of a scene.

    Args:
        cell: Number of the cell. Cells are squares of 32 pixels (CELL), counted from the left to the right and from the
            top down.
        size: Side of the square in pixels; at most that of the cell.
        rng: Source of the random numbers.
    """
    row, column = divmod(cell, WIDTH // CELL)
    top = CELL * row + rng.integers(0, CELL - size + 1)
    left = CELL * column + rng.integers(0, CELL - size + 1)
    return slice(top, top + size), slice(left, left + size)


def _enlarged(values: Array, height: int, width: int) -> Array:
    """Resize an array [h, w] to [height, width] by bicubic interpolation."""
    picture = Image.fromarray(values.astype(np.float32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
