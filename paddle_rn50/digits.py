"""The embedded data set: UCI's handwritten digits, which scikit-learn's wheel carries, in ImageNet's layout.

1,797 scans of 8 x 8 pixels with 17 grey levels, ten classes (E. Alpaydin, C. Kaynak, 1998). They are enlarged to
64 x 64 JPEG files; the split of 1,437 for training and 360 for evaluation is stratified and fixed.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAME = "uci-digits-64"
CLASSES = 10
SIDE = 64  # pixels
TRAIN, EVAL = 1437, 360
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
        range(len(digits.target)), train_size=TRAIN, test_size=EVAL, stratify=digits.target, random_state=0
    )
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        for part, ids in (("train", train), ("val", evaluation)):
            lines = []
            for i in sorted(ids):
                label = int(digits.target[i])
                path = Path(part) / str(label) / f"{i:04d}.jpeg"
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                grey = (digits.images[i] * (255 / 16)).astype("uint8")
                picture = Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")
                picture.save(partial / path, quality=90)
                lines.append(f"{path.as_posix()} {label}\n")
            (partial / f"{part}_list.txt").write_text("".join(lines))
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


if (
    __name__ == "__main__"
):  # python -m paddle_rn50.digits FOLDER: makes the data set in FOLDER, as an image's build does
    prepare(Path(sys.argv[1]) / NAME)
