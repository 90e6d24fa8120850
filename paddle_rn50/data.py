"""ImageNet read by DALI, from files (`folder.py`) or packed (`records.py`).

Images leave the pipeline as [N, C, H, W] or [N, H, W, C], float32 or float16, normalized.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
    """Return the images of `part` (train or val) of the data set in the folder `root`.

    Packed images are taken if there are any, else image files. If there is a file PART.sizes.json, what it says of the
    images is added: the size of the largest one, and the files that they were packed from, if it names these.

    Raises ValueError where the images are absent, not whole, or wrongly listed, or where that file is damaged.
    """
    images: Images | None = _packed(root, part, classes)
    if images is None:
        images = folder.find(root, part, classes)
    sizes_file = root / SIZES.format(part)
    if not named_files.is_file(sizes_file):
        return images
    noted = _read_sizes_file(sizes_file)
    return replace(images, largest=noted.largest, source=noted.source)


class _Noted(NamedTuple):
    """Facts about a part's images by its file PART.sizes.json."""

    largest: Size
    source: schema.Passport | None  # of the files that the images were packed from; None: of images not packed


def _read_sizes_file(sizes_file: Path) -> _Noted:
    """Read PART.sizes.json, which tools.pack wrote: the size of the largest image, and where the images come from.

    The file is as `{"width": 500, "height": 375, "source": {...}}`. `source` is the passport (number, bytes and digest)
    of the files that were packed; it becomes None if the file has none.

    Raises ValueError if the file is damaged. The message speaks of width and height, which every such file has, even if
    it is the source that is damaged.
    """
    try:
        content = json.loads(sizes_file.read_bytes())
        largest = (int(content["width"]), int(content["height"]))
        source = None
        if content.get("source"):
            source = schema.Passport(**content["source"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{sizes_file}: holds no width and height: remove it, then tools.pack --sizes writes it"
        ) from error
    return _Noted(largest, source)


def _packed(root: Path, part: str, classes: int) -> Records | None:
    """Find the packed images of a part; None where there are none. Raises ValueError where they are not whole."""
    packed = root / recordio.FILE.format(part)
    if named_files.is_file(packed):
        return recordio.find(packed, packed.with_suffix(".idx"), classes)
    files = tfrecord.files_of(root, part)
    if files:
        return tfrecord.find(files, classes)
    return None


@pipeline_def  # type: ignore[untyped-decorator]  # DALI's
def _pipeline(
    *, source: Any, device: str, image: ImageFormat, augment: Augmentation | None, resize: int, largest: Size | None
) -> Any:
    """Build the DALI pipeline that decodes, crops and normalizes batches of images; return its outputs.

    `source` feeds it a batch at a time, which begins with the encoded images and their labels.

    - For training (`augment` is given) `_draw`'s four arrays follow. An image is decoded only where its random crop
      lies, then resized and perhaps mirrored. The outputs are images and labels.
    - For evaluation `valid` follows, which says for each image whether it counts. The whole image is resized to
      `resize` pixels on its shorter side, and its centre is cropped. The outputs are images, labels and `valid`.

    `largest` is the size of the data set's largest image, if it is known, for which the decoder reserves its memory.
    """
    decoder: dict[str, Any] = {"device": "mixed" if device == "gpu" else "cpu", "output_type": types.RGB}
    if largest is not None:
        decoder |= _hints(*largest)
    image_and_label = [(types.UINT8, 1), (types.INT64, 1)]
    mirror: Any = 0
    if augment is None:
        encoded, labels, valid = loader.inputs(source, [*image_and_label, (types.FLOAT, 1)])
        other_outputs = [labels, valid]
        images = fn.resize(fn.decoders.image(encoded, **decoder), resize_shorter=resize)
    else:
        drawn = [(types.FLOAT, 1), (types.FLOAT, 1), (types.FLOAT, 1), (types.INT32, 0)]  # what `_draw` returns
        encoded, labels, widths, heights, place, mirror = loader.inputs(source, [*image_and_label, *drawn])
        other_outputs = [labels]
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
        other_outputs = [output.gpu() for output in other_outputs]
    return images, *other_outputs


def _hints(width: int, height: int) -> dict[str, int]:
    """Return the memory hints with which a GPU's decoder starts, so that the largest image makes it take no more."""
    return {
        "preallocate_width_hint": width,
        "preallocate_height_hint": height,
        "device_memory_padding": NVJPEG.device_padding(width, height),
        "host_memory_padding": NVJPEG.host_padding(width, height),
    }


def _crop(image_shape: Any, widths: Any, heights: Any, place: Any, augment: Augmentation) -> tuple[Any, Any]:
    """Choose where an image is cropped; return the crop's upper left corner and its shape, each (height, width).

    Both are nodes of DALI's graph, in shares of the image: 0.5 is half of its height or width. `widths` and `heights`
    [CROP_TRIES] are the crops that `_draw` drew for a square image, in shares of that.

    - The first crop that fits into this image is taken. `place` (x, y) says where it lies, from 0 (left, top) to 1.
    - If none fits, the crop is at the centre: the largest one whose aspect is within the bounds, as in torchvision.

    A graph has no branches: a choice is a sum over all cases, each times 1 or 0.
    """
    size = fn.cast(image_shape, dtype=types.FLOAT)
    height_over_width = size[0] / size[1]
    # From shares of a square image to shares of this one, which is W x H pixels. Neither area nor aspect changes:
    # - area: crop_width * crop_height = width * height
    # - aspect in pixels: (crop_width * W) / (crop_height * H) = width / height
    root = dali_math.sqrt(height_over_width)
    crop_widths = widths * root
    crop_heights = heights / root

    # The first try that fits has the highest rank: CROP_TRIES for the first one, 1 for the last, 0 if it does not fit.
    ranks = types.Constant(np.arange(CROP_TRIES, 0, -1, dtype=np.float32))
    rank_if_fits = fn.cast((crop_widths <= 1.0) & (crop_heights <= 1.0), dtype=types.FLOAT) * ranks
    best_rank = fn.reductions.max(rank_if_fits)
    is_chosen = fn.cast((rank_if_fits == best_rank) & (rank_if_fits > 0.0), dtype=types.FLOAT)  # [CROP_TRIES] of 0 or 1
    any_fits = fn.cast(best_rank > 0.0, dtype=types.FLOAT)
    none_fits = 1.0 - any_fits

    # If none fits: the whole image, but for what is too wide, or too high, for the bounds of the aspect in pixels.
    # - At full height the aspect is widest * W / H, and must be at most aspect_max.
    # - At full width it is W / (highest * H), and must be at least aspect_min.
    widest = dali_math.min(1.0, augment.aspect_max * height_over_width)
    highest = dali_math.min(1.0, 1.0 / (augment.aspect_min * height_over_width))
    width = fn.reductions.sum(crop_widths * is_chosen) + none_fits * widest
    height = fn.reductions.sum(crop_heights * is_chosen) + none_fits * highest
    place = place * any_fits + 0.5 * none_fits
    anchor = fn.stack((1.0 - height) * place[1], (1.0 - width) * place[0])
    return anchor, fn.stack(height, width)


def _draw(augment: Augmentation, seed: int, epoch: int, ids: Array) -> list[Array]:
    """Draw how the images `ids` [N] are cropped and flipped in an epoch, the same on any number of ranks.

    Each image gets CROP_TRIES crops, of which `_crop` takes the first that fits. Their areas are spread evenly, and
    their aspects, width over height, evenly in the logarithm.

    Returns, in the order of the pipeline's inputs: the crops' widths and heights [N, CROP_TRIES] in shares of a square
    image's side, the crop's place [N, 2] from 0 (left, top) to 1, and whether to flip the image, 1 or 0 [N].
    """
    # Columns of an image's random numbers: an area and an aspect for each try, the place's two, the flip's one.
    aspects_start = CROP_TRIES
    place_start = 2 * CROP_TRIES
    flip_column = place_start + 2
    drawn = sampling.uniform(seed, epoch, ids, flip_column + 1).astype(np.float32)  # from 0 to 1
    drawn_areas = drawn[:, :aspects_start]
    drawn_aspects = drawn[:, aspects_start:place_start]
    drawn_places = drawn[:, place_start:flip_column]
    drawn_flips = drawn[:, flip_column]

    areas = augment.area_min + (augment.area_max - augment.area_min) * drawn_areas
    lowest_log = math.log(augment.aspect_min)
    highest_log = math.log(augment.aspect_max)
    aspects = np.exp(lowest_log + (highest_log - lowest_log) * drawn_aspects)
    flips = (drawn_flips < augment.flip).astype(np.int32)
    return [np.sqrt(areas * aspects), np.sqrt(areas / aspects), np.ascontiguousarray(drawn_places), flips]


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
