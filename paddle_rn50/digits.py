"""The embedded data set in ImageNet's layout: the digits (harness/embedded.py), enlarged to 64 x 64 JPEG files.

`python -m paddle_rn50.digits FOLDER` makes it in FOLDER, as an image's build does.
"""

import sys
from pathlib import Path

from PIL import Image

from harness import embedded

NAME = "uci-digits-64"
SIDE = 64  # pixels


def write(folder: Path) -> None:
    """Writes the images and both lists."""
    digits, train, evaluation = embedded.digits()
    for part, ids in (("train", train), ("val", evaluation)):
        lines = []
        for i in sorted(ids):
            label = int(digits.target[i])
            path = f"{part}/{label}/{i:04d}.jpeg"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            grey = (digits.images[i] * (255 / 16)).astype("uint8")
            picture = Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")
            picture.save(folder / path, quality=90)
            lines.append(f"{path} {label}\n")
        (folder / f"{part}_list.txt").write_text("".join(lines))


if __name__ == "__main__":
    embedded.make(Path(sys.argv[1]) / NAME, write)
