"""ImageNet read by DALI, from files (`folder.py`) or packed (`records.py`).

Images leave the pipeline as [N, C, H, W] or [N, H, W, C], float32 or float16, normalized.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali import math as dali_math

from harness import loader, sampling
from harness.loader import ReaderConfig
from harness.sampling import Plan
from paddle_rn50 import folder, recordio, tfrecord
from paddle_rn50.config import Augmentation
from paddle_rn50.folder import ImageList, Size
from paddle_rn50.records import Records
from paddle_rn50.traits import NVJPEG
from program.arrays import Array
from runlog import named_files, schema

MEAN = (123.675, 116.28, 103.53)  # ImageNet's RGB mean and deviation, as every recipe in use has them
STD = (58.395, 57.12, 57.375)
CROP_TRIES = 10  # as torchvision and DALI draw a crop before they fall back to the centre
# A file with width and height in pixels of a part's largest image and, for packed images, the passport of the files
# that they were made of; tools/pack.py writes it.
SIZES = "{}.sizes.json"


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """The size, layout and type of the images that a program takes."""

    size: int  # side of the square image in pixels
    layout: str = "NCHW"
    channels: int = 3  # 4: a channel of zeros is added
    half: bool = False  # float16 in place of float32


Images = ImageList | Records


def find(root: Path, part: str, classes: int) -> Images:
    """Find the images of `part` (train or val) in a folder: packed ones if it has them, else its files.

    Raises ValueError where they are absent, not whole, or wrongly listed.
    """
    images = _packed(root, part, classes) or folder.find(root, part, classes)
    sizes = root / SIZES.format(part)
    named_files.refuse_no_file(sizes)
    if not sizes.is_file():
        return images
    try:
        known = json.loads(sizes.read_bytes())
        source = known.get("source")
        return replace(
            images,
            largest=(int(known["width"]), int(known["height"])),
            source=schema.Passport(**source) if source else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{sizes}: holds no width and height: remove it, then tools.pack --sizes writes it") from error


def _packed(root: Path, part: str, classes: int) -> Records | None:
    """Find the packed images of a part; None where there are none. Raises ValueError where they are not whole."""
    packed = root / recordio.FILE.format(part)
    named_files.refuse_no_file(packed)
    if packed.is_file():
        return recordio.find(packed, packed.with_suffix(".idx"), classes)
    files = tfrecord.files_of(root, part)
    if files:
        return tfrecord.find(files, classes)
    return None


@pipeline_def  # type: ignore[untyped-decorator]  # DALI's
def _pipeline(
    *, source: Any, device: str, image: ImageFormat, augment: Augmentation | None, resize: int, largest: Size | None
) -> Any:
    """Encoded images to normalized ones, and as they came their labels and, in evaluation, what is valid of them;
    `augment` is None for evaluation.
    """
    decoder: dict[str, Any] = {"device": "mixed" if device == "gpu" else "cpu", "output_type": types.RGB}
    if largest is not None:
        decoder |= _hints(*largest)
    of_all = [(types.UINT8, 1), (types.INT64, 1)]  # encoded image, label
    mirror: Any = 0
    if augment is None:
        encoded, labels, valid = loader.inputs(source, [*of_all, (types.FLOAT, 1)])
        beside = [labels, valid]
        images = fn.resize(fn.decoders.image(encoded, **decoder), resize_shorter=resize)
    else:
        drawn = [(types.FLOAT, 1), (types.FLOAT, 1), (types.FLOAT, 1), (types.INT32, 0)]  # by `_draw`
        encoded, labels, widths, heights, place, mirror = loader.inputs(source, [*of_all, *drawn])
        beside = [labels]
        anchor, shape = _crop(fn.peek_image_shape(encoded), widths, heights, place, augment)
        images = fn.decoders.image_slice(encoded, anchor, shape, axis_names="HW", **decoder)
        images = fn.resize(images, size=[image.size, image.size])
    images = fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        crop=(image.size, image.size),
        mean=list(MEAN),
        std=list(STD),
        dtype=types.FLOAT16 if image.half else types.FLOAT,
        output_layout="CHW" if image.layout == "NCHW" else "HWC",
        pad_output=image.channels == 4,
    )
    if device == "gpu":
        beside = [output.gpu() for output in beside]
    return images, *beside


def _hints(width: int, height: int) -> dict[str, int]:
    """Return the memory hints with which a GPU's decoder starts, so that the largest image makes it take no more."""
    return {
        "preallocate_width_hint": width,
        "preallocate_height_hint": height,
        "device_memory_padding": NVJPEG.device_padding(width, height),
        "host_memory_padding": NVJPEG.host_padding(width, height),
    }


def _crop(image_shape: Any, widths: Any, heights: Any, place: Any, augment: Augmentation) -> tuple[Any, Any]:
    """Relative (anchor, shape) of the first of the drawn crops that fits the image, as DALI graph nodes.

    A crop of area share a and aspect r is sqrt(a r) q wide and sqrt(a / r) / q high, in shares of an image with
    q^2 = height / width. If no try fits, the largest centre crop within the aspect bounds, as torchvision does.
    """
    size = fn.cast(image_shape, dtype=types.FLOAT)
    q = dali_math.sqrt(size[0] / size[1])
    w, h = widths * q, heights / q
    order = types.Constant(np.arange(CROP_TRIES, 0, -1, dtype=np.float32))
    fits = fn.cast((w <= 1.0) & (h <= 1.0), dtype=types.FLOAT) * order
    best = fn.reductions.max(fits)
    first = fn.cast((fits == best) & (fits > 0.0), dtype=types.FLOAT)
    found = fn.cast(best > 0.0, dtype=types.FLOAT)
    crop_w = fn.reductions.sum(w * first) + (1.0 - found) * dali_math.min(1.0, augment.aspect_max * q * q)
    crop_h = fn.reductions.sum(h * first) + (1.0 - found) * dali_math.min(1.0, 1.0 / (augment.aspect_min * q * q))
    place = place * found + 0.5 * (1.0 - found)
    return fn.stack((1.0 - crop_h) * place[1], (1.0 - crop_w) * place[0]), fn.stack(crop_h, crop_w)


def _draw(augment: Augmentation, seed: int, epoch: int, ids: Array) -> list[Array]:
    """Crop widths and heights [N, tries], places [N, 2] and flips [N] of one batch."""
    u = sampling.uniform(seed, epoch, ids, 2 * CROP_TRIES + 3).astype(np.float32)
    area = augment.area_min + (augment.area_max - augment.area_min) * u[:, :CROP_TRIES]
    low, high = math.log(augment.aspect_min), math.log(augment.aspect_max)
    aspect = np.exp(low + (high - low) * u[:, CROP_TRIES : 2 * CROP_TRIES])
    return [
        np.sqrt(area * aspect),
        np.sqrt(area / aspect),
        np.ascontiguousarray(u[:, -3:-1]),
        (u[:, -1] < augment.flip).astype(np.int32),
    ]


def synthetic(image: ImageFormat, *, batch: int, classes: int, seed: int) -> loader.Batch:
    """A batch of noise, to warm up on and to measure the program without its input."""
    rng = np.random.default_rng(seed)
    side, channels = image.size, image.channels
    shape = (batch, channels, side, side) if image.layout == "NCHW" else (batch, side, side, channels)
    pixels, label = loader.noise(rng, shape, half=image.half), rng.integers(0, classes, (batch, 1))
    valid = np.ones((batch, 1), np.float32)
    return loader.Batch(image=pixels, label=label, valid=valid, ids=np.zeros(batch, np.int64))


class Loader(loader.Loader):
    """Batches of `plan`: image [N, C, H, W] or [N, H, W, C], label [N, 1] int64, valid [N, 1].

    With `augment` cropped and flipped for training; without, `resize` is the shorter side in pixels before the centre
    crop.
    """

    def __init__(
        self, images: Images, plan: Plan, reader: ReaderConfig, *, augment: Augmentation | None = None, resize: int = 0
    ) -> None:
        self._augment = augment
        super().__init__(images, plan, _pipeline, reader, augment=augment, resize=resize, largest=images.largest)

    def _read(self, epoch: int, ids: Array, valid: Array) -> tuple[Any, ...]:
        images, labels = self._samples.read(ids)
        for number, image in zip(ids, images, strict=True):
            loader.require_whole(self._samples.name(int(number)), image)
        encoded = [np.frombuffer(image, dtype=np.uint8) for image in images]
        if self._augment is None:
            return encoded, labels[:, None], valid.astype(np.float32)[:, None]
        return encoded, labels[:, None], *_draw(self._augment, self._reader.seed, epoch, ids)
