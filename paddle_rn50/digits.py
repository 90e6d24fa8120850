"""The embedded data set in ImageNet's layout: the digits of `harness/embedded.py`, enlarged to 64 x 64 JPEG files.

`python -m paddle_rn50.digits FOLDER` makes it in FOLDER, as an image's build does.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from harness import embedded
from program.arrays import Array

NAME = "uci-digits-64"
PIXELS = 64  # side of an image
JPEG_QUALITY = 90
WHITE = 255


def write(folder: Path) -> None:
    """Write the embedded handwritten digits into a folder as a data set of JPEG files in ImageNet's layout.

    The lists train_list.txt and val_list.txt have lines `path label`, such as `train/7/0017.jpeg 7`. An image is
    PART/LABEL/NUMBER.jpeg, where NUMBER is the digit's index in `embedded.digits()`.

    Args:
        folder: Folder to fill.
    """
    digits = embedded.digits()
    for part, numbers in (("train", digits.train), ("val", digits.evaluation)):
        lines = []
        for number in sorted(numbers):
            label = int(digits.labels[number])
            path = f"{part}/{label}/{number:04d}.jpeg"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            picture(digits.images[number]).save(folder / path, quality=JPEG_QUALITY)
            lines.append(f"{path} {label}\n")
        (folder / f"{part}_list.txt").write_text("".join(lines))


def picture(ink: Array) -> Image.Image:
    """Draw a digit's ink [8, 8] in white on black, in RGB."""
    grey = (ink * (WHITE / embedded.FULL_INK)).astype(np.uint8)
    return Image.fromarray(grey).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC).convert("RGB")


if __name__ == "__main__":
    try:
        embedded.make_once(Path(sys.argv[1]) / NAME, write)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
