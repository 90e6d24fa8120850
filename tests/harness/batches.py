"""What the tests of both workloads do with a loader."""

import contextlib
import copy
import itertools
from types import ModuleType
from typing import Any

import numpy as np

from harness.loader import Batch, Loader, ReaderConfig

SEED = 3


def reader(batch: int, image: Any) -> ReaderConfig:
    """A rank's on this CPU."""
    return ReaderConfig(batch=batch, image=image, device="cpu", device_id=0, threads=1, seed=SEED)


def taken(source: Loader, count: int = 1) -> list[Batch]:
    """Its next batches, copied as its buffers are good until the next one; the source is closed."""
    with contextlib.closing(source):
        return [copy.deepcopy(batch) for batch in itertools.islice(source, count)]


def pixels_of(image: np.ndarray, of: ModuleType) -> np.ndarray:
    """[C, H, W], normalized as this module does, to [H, W, C] pixels."""
    return image.transpose(1, 2, 0) * np.array(of.STD) + np.array(of.MEAN)
