"""A training run of seconds: 40 images of noise, 32 x 32 pixels, 10 steps an epoch for two ranks of two images.

Its ResNet has one block in each stage, of the same operators: a job takes half the time of one with ResNet-50.
"""

import functools
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests import jobs

STEPS_PER_EPOCH = 10
TRAINING: dict[str, Any] = {"MODE": "train", "IMAGE_SIZE": 32, "BATCHSIZE": 2, "PRINT_STEPS": 1, "MAX_EPOCHS": 2}
TRAINING |= {"SEED": 7, "THREADS": 1, "CLEAR_CACHES": 0, "PROGRESS": "plain"}


@functools.cache
def _made() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()  # removed when this process ends
    model = (jobs.REPOSITORY / "paddle_rn50" / "model.py").read_text()
    model, found = re.subn(r"(?m)^STAGES = .*", "STAGES = ((64, 1), (128, 1), (256, 1), (512, 1))", model)
    assert found == 1
    jobs.checkout(Path(folder.name) / "checkout", model=model)
    return folder


def checkout() -> Path:
    """A checkout with the small network."""
    return Path(_made().name) / "checkout"


def data_set(folder: Path) -> Path:
    """Writes the data set: 40 training images in 10 classes and 8 for evaluation, noise from a fixed seed."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("val", 8)):
        (folder / part).mkdir(parents=True)
        lines = []
        for number in range(count):
            path = f"{part}/{number:02d}.jpeg"
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / path)
            lines.append(f"{path} {number % 10}\n")
        (folder / f"{part}_list.txt").write_text("".join(lines))
    return folder


def by_class(root: Path) -> Path:
    """Lay the set out in class folders, whose sorted names are the labels."""
    for part in ("train", "val"):
        for line in (root / f"{part}_list.txt").read_text().splitlines():
            path, label = line.split()
            place = root / part / f"n{int(label):02d}"
            place.mkdir(exist_ok=True)
            (root / path).rename(place / Path(path).name)
        (root / f"{part}_list.txt").unlink()
    for number in (8, 9):  # classes of which val has no image
        (root / f"val/n{number:02d}").mkdir()
        shutil.copy(root / f"train/n{number:02d}/{number:02d}.jpeg", root / f"val/n{number:02d}/x.JPEG")
    return root


def train(log: Path, data: Path, *, ranks: int = 2, cwd: Path | None = None, **options: Any) -> Any:
    """The job, to its end; with `cwd` in that checkout. A training ends with status 1: noise reaches no target."""
    settings = {**TRAINING, "RESULT_FILE": log, "DATADIR": data, **options}
    return jobs.on_ranks(ranks, "-m", "harness", cwd=cwd or checkout(), **settings)


start = functools.partial(train, start=jobs.begin)
