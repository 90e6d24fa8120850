"""The images of an acceptance: a batch of made pictures, read by a pipeline, and how far two readings are apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from harness import sampling
from harness.loader import ReaderConfig
from paddle_rn50 import config, data
from tools.acceptance.reference import BATCH, SEED

GREY_LEVELS = 4.0
WHY_GREY_LEVELS = "enlarging the colour channels another way gives 3.1, a faster IDCT 0.95, a shift by a pixel 7.0"


def grey_levels(a: np.ndarray, b: np.ndarray) -> float:
    """Mean difference of normalized images [N, H, W, 3 or 4] in levels of 255; infinite where the 4th is not empty."""
    if a[..., 3:].any() or b[..., 3:].any():
        return math.inf
    return float(np.mean(np.abs(a - b)[..., :3] * np.array(data.STD)))


def as_fed(image: np.ndarray, wanted: data.ImageFormat) -> np.ndarray:
    """[N, 3, H, W] float32 in the layout, channels and type that a program is fed."""
    image = np.pad(image, ((0, 0), (0, wanted.channels - 3), (0, 0), (0, 0)))
    if wanted.layout == "NHWC":
        image = image.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(image, dtype=np.float16 if wanted.half else np.float32)


def pictures(folder: Path) -> data.ImageList:
    """A batch of made JPEG files in colour, 500 x 375, with detail of 16 pixels."""
    rng = np.random.default_rng(SEED)
    names = [f"{i}.jpeg" for i in range(BATCH)]
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / name, quality=90)
    return data.ImageList(root=folder, paths=tuple(names), labels=np.zeros(BATCH, dtype=np.int64))


def reader(image: data.ImageFormat, *, threads: int, device: str = "cpu", device_id: int = 0) -> ReaderConfig:
    """Of a pipeline that makes such images."""
    return ReaderConfig(batch=BATCH, image=image, device=device, device_id=device_id, threads=threads, seed=SEED)


def one_batch_each(
    images: data.ImageList, recipe: config.Recipe, wanted: ReaderConfig, copied: Callable[[Any], np.ndarray]
) -> list[np.ndarray]:
    """A batch of the training pipeline and one of the evaluation's, normalized, each `copied` to the host."""
    loaders = (
        data.Loader(images, _once(images), wanted, augment=recipe.augmentation),
        data.Loader(images, _once(images), wanted, resize=recipe.eval_resize),
    )
    read = [copied(next(source).image) for source in loaders]
    for source in loaders:
        source.close()
    return read


def _once(images: data.ImageList) -> sampling.Plan:
    """One batch of all of them."""
    return iter([(1, np.arange(len(images)), np.ones(len(images), dtype=bool))])
