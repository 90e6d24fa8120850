"""What the tests of both workloads do with a loader."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable
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


def by_sample(sources: Iterable[Loader], count: int = 1) -> dict[int, np.ndarray]:
    """Images of each source's next batches by the numbers of their samples."""
    batches = [batch for source in sources for batch in taken(source, count)]
    return {int(i): image for batch in batches for i, image in zip(batch.ids, batch.image, strict=True)}
