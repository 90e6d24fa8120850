"""The embedded data set: UCI's handwritten digits, which scikit-learn's wheel carries, on textured ground.

Scenes of 128 x 64 pixels in Cityscapes' layout with two digits each, every pixel labelled with its digit or as ground.
Training scenes show the digits that ResNet-50's embedded data set trains on, evaluation scenes the others; each digit
is used once.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAME = "uci-digit-scenes"
CLASSES = 11  # the digits, and ground
GROUND = 10
WIDTH, HEIGHT = 128, 64  # pixels
TRAIN, EVAL = 718, 180  # scenes
TRAIN_DIGITS, EVAL_DIGITS = 1437, 360
DIGIT_MIN, DIGIT_MAX = 44, 60  # pixels, side of a digit
INK = 0.35  # from this share of full ink on a pixel is the digit's
DONE = "complete"  # written last, so that a half-made folder is made again


def prepare(folder: Path) -> Path:
    """Writes the data set to `folder` unless it is there, and returns the folder.

    Raises:
        ValueError: the folder cannot be written.
    """
    if (folder / DONE).is_file():
        return folder
    # Imported here: it takes a second, and only the first start needs it.
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, evaluation = train_test_split(
        range(len(digits.target)),
        train_size=TRAIN_DIGITS,
        test_size=EVAL_DIGITS,
        stratify=digits.target,
        random_state=0,
    )
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        for part, ids, scenes in (("train", train, TRAIN), ("val", evaluation, EVAL)):
            lines = []
            for number in range(scenes):
                image = f"leftImg8bit/{part}/digits/digits_{number:06d}_leftImg8bit.png"
                label = f"gtFine/{part}/digits/digits_{number:06d}_gtFine_labelTrainIds.png"
                pair = [(digits.images[i] / 16, int(digits.target[i])) for i in ids[2 * number : 2 * number + 2]]
                pixels, labels = scene(pair, np.random.default_rng([scenes, number]))
                for path, array in ((image, pixels), (label, labels)):
                    (partial / path).parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(array).save(partial / path)
                lines.append(f"{image} {label}\n")
            (partial / f"{part}.txt").write_text("".join(lines))
        (partial / DONE).write_text("")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot write the embedded data set ({error}): free the disk or set DATADIR"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def scene(pair: list[tuple[np.ndarray, int]], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [H, W, 3] and labels [H, W], uint8, of two digits side by side, each [8, 8] of ink from 0 to 1."""
    ground, contrast = rng.uniform(40, 215, 3), rng.uniform(80, 120)
    ink_colour = np.where(ground > 127.5, ground - contrast, ground + contrast)
    pixels = ground + _texture(rng)[:, :, None] * rng.uniform(10, 25, 3)
    labels = np.full((HEIGHT, WIDTH), GROUND, dtype=np.uint8)
    half = WIDTH // 2
    for side, (digit, value) in enumerate(pair):
        size = int(rng.integers(DIGIT_MIN, DIGIT_MAX + 1))
        top, left = rng.integers(0, HEIGHT - size + 1), side * half + rng.integers(0, half - size + 1)
        window = (slice(top, top + size), slice(left, left + size))
        ink = np.clip(_enlarged(digit, size, size), 0, 1)
        pixels[window] += ink[:, :, None] * (ink_colour - ground)
        labels[window][ink >= INK] = value
    pixels += rng.normal(0, 4, pixels.shape)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), labels


def _texture(rng: np.random.Generator) -> np.ndarray:
    """Smooth noise [H, W] of three grain sizes, about -1 to 1."""
    return sum(
        (_enlarged(rng.uniform(-1, 1, (HEIGHT // grain, WIDTH // grain)), HEIGHT, WIDTH) for grain in (4, 8, 16)),
        start=np.zeros((HEIGHT, WIDTH)),
    ) / np.sqrt(3)


def _enlarged(values: np.ndarray, height: int, width: int) -> Any:
    from PIL import Image

    picture = Image.fromarray(values.astype(np.float32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)


if (
    __name__ == "__main__"
):  # python -m paddle_hrnet.scenes FOLDER: makes the data set in FOLDER, as an image's build does
    prepare(Path(sys.argv[1]) / NAME)
