"""Pictures of stripes, which lie or stand, as NumPy files; DALI only hands them over."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import pipeline_def, types

from harness import loader
from harness.loader import ReaderConfig
from harness.passport import Contents, OnProgress
from harness.sampling import Plan
from paddle_stripes.config import EVAL_PICTURES, TRAIN_PICTURES, Recipe

NAME = "stripes"


def write(folder: Path) -> None:
    """Make the data set: noise with stripes of a period of four pixels."""
    side = Recipe.image_size
    rng = np.random.default_rng(3)
    for part, count in (("train", TRAIN_PICTURES), ("val", EVAL_PICTURES)):
        labels = np.arange(count) % 2
        phases = rng.uniform(0, 2 * np.pi, (count, 1, 1))
        lying = np.sin(np.arange(side)[None, :, None] * np.pi / 2 + phases) * np.ones((count, side, side))
        pictures = np.where(labels[:, None, None] == 0, lying, lying.transpose(0, 2, 1))
        pictures = pictures + 0.3 * rng.standard_normal(pictures.shape)
        np.save(folder / f"{part}_pictures.npy", pictures.astype(np.float32)[:, None])
        np.save(folder / f"{part}_labels.npy", labels.astype(np.int64))


@dataclass(frozen=True)
class Pictures:
    """The samples of a part of the data set."""

    pictures: np.ndarray  # [samples, 1, side, side] float32
    labels: np.ndarray  # [samples] int64
    form: str = "files"
    source: None = None  # they are not a copy of others
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def numbering(self) -> str:
        """Return a digest of the labels in their order."""
        return hashlib.sha256(self.labels.tobytes()).hexdigest()

    def contents(self, on_progress: OnProgress) -> Contents:
        """Tell names, sizes and labels; a picture has a number for a name, as the files hold it."""
        on_progress(len(self), len(self))
        sizes = np.full(len(self), self.pictures[0].nbytes, np.int64)
        return Contents(names=[str(i) for i in range(len(self))], sizes=sizes, labels=self.labels, is_exact=True)


def find(root: Path, part: str, classes: int) -> Pictures:
    """The samples of `part`."""
    return Pictures(np.load(root / f"{part}_pictures.npy"), np.load(root / f"{part}_labels.npy"))


def synthetic(side: int, *, batch: int, classes: int, seed: int) -> loader.Batch:
    """A batch of noise."""
    rng = np.random.default_rng(seed)
    return loader.Batch(
        image=loader.noise(rng, (batch, 1, side, side), half=False),
        label=rng.integers(0, classes, (batch, 1)),
        valid=np.ones((batch, 1), np.float32),
        ids=np.zeros(batch, np.int64),
    )


@pipeline_def
def _pipeline(*, source: Any, device: str, image: int) -> Any:
    kinds = [(types.FLOAT, 3), (types.INT64, 1), (types.FLOAT, 1)]
    return tuple(loader.inputs(source, kinds))


class Loader(loader.Loader):
    """Batches of `plan`: image [N, 1, side, side], label [N, 1], valid [N, 1]."""

    def __init__(self, samples: Pictures, plan: Plan, reader: ReaderConfig, *, augment: None = None) -> None:
        super().__init__(samples, plan, _pipeline, reader)

    def _read(self, epoch: int, ids: np.ndarray, valid: np.ndarray) -> tuple[Any, ...]:
        pictures = [self._samples.pictures[i] for i in ids]
        return pictures, self._samples.labels[ids][:, None], valid.astype(np.float32)[:, None]
