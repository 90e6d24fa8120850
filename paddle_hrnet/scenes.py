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
    """Write the embedded scenes of digits into a folder as a segmentation set in Cityscapes' layout, with its lists.

    Each scene is an image and a label, both PNG. A line of train.txt and val.txt is `image label`, as paths below the
    folder. The scenes are the same at each call: their random numbers are seeded by their number.
    """
    digits = embedded.digits()
    _write_part(folder, "train", digits, digits.train, SCENES_TRAIN)
    _write_part(folder, "val", digits, digits.evaluation, SCENES_EVAL)


def _write_part(folder: Path, part: str, digits: embedded.Digits, digit_indices: list[int], scenes: int) -> None:
    """Write `scenes` scenes into a folder in Cityscapes' layout, and their list PART.txt.

    Each scene shows some of the `digits` at `digit_indices`. A line of the list is `image label`, as paths below the
    folder.
    """
    indices_by_scene = _deal_out(digit_indices, scenes)
    lines = []
    for scene_number in range(scenes):
        image = f"leftImg8bit/{part}/digits/digits_{scene_number:06d}_leftImg8bit.png"
        label = f"gtFine/{part}/digits/digits_{scene_number:06d}_gtFine_labelTrainIds.png"
        shown = []  # ink and class of each digit in the scene
        for index in indices_by_scene[scene_number]:
            ink = digits.images[index] / embedded.FULL_INK  # from 0 to 1
            shown.append((ink, int(digits.labels[index])))

        # The seed has the count of scenes too, which differs between train and val. So scene 0 of train and scene 0 of
        # val are drawn with different random numbers.
        pixels, labels = scene(shown, np.random.default_rng([scenes, scene_number]))
        for path, array in ((image, pixels), (label, labels)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(folder / path)
        lines.append(f"{image} {label}\n")
    (folder / f"{part}.txt").write_text("".join(lines))


def _deal_out(digit_indices: list[int], scenes: int) -> Array:
    """Return the indices of the digits that each scene shows, at random: [scenes, DIGITS].

    Each index is dealt out once before any is dealt out again.
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
    """Draw a scene of digits on textured ground; return its pixels [HEIGHT, WIDTH, 3] and their labels, both uint8.

    `shown` has each digit's ink [8, 8], from 0 to 1, and its class. A digit gets a random size, a random place in its
    cell, and a random colour.
    """
    # Keep the order of the draws from `rng`: with another order the same seed gives another scene.
    pixels = _ground(rng)
    labels = np.full((HEIGHT, WIDTH), GROUND, dtype=np.uint8)

    # Where a digit has ink, it makes the ground brighter, by a colour of its own.
    for cell, (digit, digit_class) in enumerate(shown):  # a cell is a square of CELL pixels
        row, column = divmod(cell, WIDTH // CELL)
        size = int(rng.integers(DIGIT_MIN, DIGIT_MAX + 1))
        top = CELL * row + rng.integers(0, CELL - size + 1)
        left = CELL * column + rng.integers(0, CELL - size + 1)
        window = (slice(top, top + size), slice(left, left + size))
        ink = np.clip(_enlarged(digit, size, size), 0, 1)
        colour = rng.uniform(100, 150, 3)  # of full ink, added to the ground
        pixels[window] += ink[:, :, None] * colour
        labels[window][ink >= INK] = digit_class
    pixels += rng.normal(0, 4, pixels.shape)  # noise of each value by itself
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), labels


def _enlarged(values: Array, height: int, width: int) -> Array:
    """Resize an array [h, w] to [height, width] by bicubic interpolation."""
    picture = Image.fromarray(values.astype(np.float32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
