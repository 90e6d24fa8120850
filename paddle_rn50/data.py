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
    """Locate the images and labels of the training or validation part of an ImageNet data set.

    Packed images (RecordIO or TFRecord) take precedence over single image files. If there is a file PART.sizes.json, as
    tools/pack.py writes it, the result also has the size of the largest image and, for packed images, a description of
    the files that they were made from.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        classes: Number of classes that the labels may have, such as 1000.

    Returns:
        An `ImageList` for image files, or `Records` for packed images.

    Raises:
        ValueError: The part is missing, incomplete or wrongly listed, or PART.sizes.json is damaged.
    """
    images: Images | None = _packed(root, part, classes)
    if images is None:  # no packed images, so the part must be image files
        images = folder.find(root, part, classes)
    sizes_file = root / SIZES.format(part)
    if not named_files.is_file(sizes_file):
        return images
    noted = _read_sizes_file(sizes_file)
    if isinstance(images, ImageList):  # a source in the file is then of records that were packed here and removed
        return replace(images, largest=noted.largest)
    return replace(images, largest=noted.largest, source=noted.source)


class _Noted(NamedTuple):
    """Facts about a part's images by its file PART.sizes.json."""

    largest: Size
    source: schema.Passport | None  # of the files that the images were packed from; None: of images not packed


def _read_sizes_file(sizes_file: Path) -> _Noted:
    """Return the size of the largest image of a data set's part, and the passport of the files it was packed from.

    Args:
        sizes_file: PART.sizes.json, which tools.pack writes, as {"width": 500, "height": 375, "source": {...}}. The
            "source" is the passport of the files: their number, their bytes and a digest. Images that are not packed
            have none.

    Returns:
        Width and height in pixels, and the passport; None if the file has no "source".

    Raises:
        ValueError: The file is not JSON, has no width and height of 1 or more, or has a "source" of other fields.
    """
    fault = f"{sizes_file}: is damaged or of another version: remove it, then tools.pack --sizes writes it"
    try:
        content = json.loads(sizes_file.read_bytes())
        largest = (int(content["width"]), int(content["height"]))
        passport = content.get("source")
        source = schema.Passport(**passport) if passport else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(fault) from error
    if min(largest) < 1:
        raise ValueError(fault)
    return _Noted(largest, source)


def _packed(root: Path, part: str, classes: int) -> Records | None:
    """Find the packed images of a part of a data set: a RecordIO file, or else TFRecord files.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        classes: Number of classes that the labels may have.

    Returns:
        Where the images lie; None if the part is not packed.

    Raises:
        ValueError: Files are incomplete, empty or compressed, or an index is absent or damaged.
    """
    packed = root / recordio.FILE.format(part)
    if named_files.is_file(packed):
        return recordio.find(packed, packed.with_suffix(".idx"), classes)
    files = tfrecord.files_of(root, part)
    if files:
        return tfrecord.find(files, classes)
    return None


class _Drawn(NamedTuple):
    """How the N images of a batch are cropped and flipped, in the order of the pipeline's inputs.

    Each image has CROP_TRIES crops. They are drawn for a square image of side 1, and `_crop` takes the first one that
    fits into the image.
    """

    widths: Any  # [N, CROP_TRIES] float32
    heights: Any  # [N, CROP_TRIES] float32
    places: Any  # [N, 2] float32: x and y of the crop, from 0 (left, top) to 1 (right, bottom)
    flips: Any  # [N] int32: 1 if the image is flipped, else 0


# DALI's types of the pipeline's inputs for an image, and their numbers of dimensions.
_KINDS_OF_IMAGE_AND_LABEL = ((types.UINT8, 1), (types.INT64, 1))
_KIND_OF_VALID = (types.FLOAT, 1)
_KINDS_OF_DRAWN = _Drawn(
    widths=(types.FLOAT, 1), heights=(types.FLOAT, 1), places=(types.FLOAT, 1), flips=(types.INT32, 0)
)


@pipeline_def  # type: ignore[untyped-decorator]  # DALI's
def _pipeline(
    *, source: Any, device: str, image: ImageFormat, augment: Augmentation | None, resize: int, largest: Size | None
) -> Any:
    """Build the DALI pipeline that decodes, crops and normalizes the images of a batch.

    The function runs once for each pipeline. The calls below add nodes to a graph, of which the decorator makes the
    pipeline that the caller gets. DALI runs the graph for each batch, and puts out images, labels and, in an
    evaluation, which samples are valid.

    Args:
        source: Function that DALI calls for the inputs of each batch, as `Loader._read` returns them.
        device: "cpu", or "gpu" to decode on the GPU and put all outputs there.
        image: Size, layout and type of the images that the program takes.
        augment: Bounds of the random crops in training; None for an evaluation.
        resize: Length in pixels to which an evaluation brings the shorter side before it crops the centre.
        largest: Width and height in pixels of the largest image, for which a GPU's decoder reserves memory; None if
            unknown.
    """
    decoder = _decoder_options(device, largest)
    # `loader.inputs` returns one node for each kind of input.
    if augment is None:
        encoded, labels, valid = loader.inputs(source, [*_KINDS_OF_IMAGE_AND_LABEL, _KIND_OF_VALID])
        images = _evaluation_images(encoded, resize, image, decoder)
        other_outputs = [labels, valid]
    else:
        encoded, labels, *inputs = loader.inputs(source, [*_KINDS_OF_IMAGE_AND_LABEL, *_KINDS_OF_DRAWN])
        drawn = _Drawn(*inputs)  # an image's random crops, and whether the image is flipped
        images = _training_images(encoded, drawn, augment, image, decoder)
        other_outputs = [labels]
    if device == "gpu":
        other_outputs = [output.gpu() for output in other_outputs]
    return images, *other_outputs


def _decoder_options(device: str, largest: Size | None) -> dict[str, Any]:
    """Return the options of DALI's image decoder.

    Args:
        device: "gpu" to decode on the GPU, else "cpu".
        largest: Width and height in pixels of the largest image, for which a GPU's decoder reserves memory; None if
            unknown.
    """
    options: dict[str, Any] = {"device": "mixed" if device == "gpu" else "cpu", "output_type": types.RGB}
    if largest is not None:
        options |= _hints(*largest)
    return options


def _training_images(
    encoded: Any, drawn: _Drawn, augment: Augmentation, image: ImageFormat, decoder: dict[str, Any]
) -> Any:
    """Return DALI's node of images that are cropped and flipped as drawn, resized to the program's size, normalized.

    Args:
        encoded: Node of the encoded images. An image is decoded only where its crop lies.
        drawn: Nodes of the random crops and flips.
        augment: Bounds of the crops.
        image: Size, layout and type of the images that the program takes.
        decoder: Options of DALI's image decoder.
    """
    crop = _crop(fn.peek_image_shape(encoded), drawn, augment)
    images = fn.decoders.image_slice(encoded, crop.anchor, crop.shape, axis_names="HW", **decoder)
    images = fn.resize(images, size=[image.size, image.size])
    return fn.crop_mirror_normalize(images, mirror=drawn.flips, **_normalization(image))


def _evaluation_images(encoded: Any, resize: int, image: ImageFormat, decoder: dict[str, Any]) -> Any:
    """Return DALI's node of images that are resized, cropped at the centre to the program's size, and normalized.

    Args:
        encoded: Node of the encoded images.
        resize: Length in pixels to which the shorter side is brought.
        image: Size, layout and type of the images that the program takes.
        decoder: Options of DALI's image decoder.
    """
    images = fn.resize(fn.decoders.image(encoded, **decoder), resize_shorter=resize)
    return fn.crop_mirror_normalize(images, crop=(image.size, image.size), **_normalization(image))


def _normalization(image: ImageFormat) -> dict[str, Any]:
    """Return the options with which `crop_mirror_normalize` makes images of the program's type and layout."""
    return {
        "mean": list(MEAN),
        "std": list(STD),
        "dtype": types.FLOAT16 if image.half else types.FLOAT,
        "output_layout": "CHW" if image.layout == "NCHW" else "HWC",
        "pad_output": image.channels == 4,
    }


def _hints(width: int, height: int) -> dict[str, int]:
    """Return options that let a GPU's image decoder reserve all of its memory at the start.

    Args:
        width: Width of the largest image in pixels.
        height: Height of the largest image in pixels.
    """
    return {
        "preallocate_width_hint": width,
        "preallocate_height_hint": height,
        "device_memory_padding": NVJPEG.device_padding(width, height),
        "host_memory_padding": NVJPEG.host_padding(width, height),
    }


class _Crop(NamedTuple):
    """Where an image is cropped: nodes of DALI's graph, each (height, width) in shares of the image's sides."""

    anchor: Any  # the crop's upper left corner
    shape: Any


class _Sides(NamedTuple):
    """Heights and widths of crops in shares of an image's height and width: nodes of DALI's graph."""

    heights: Any
    widths: Any


def _crop(image_shape: Any, drawn: _Drawn, augment: Augmentation) -> _Crop:
    """Return where an image is cropped for training, in shares of its sides, as nodes of DALI's graph.

    The first of ten drawn crops that fits into the image is taken, at the drawn place. If none fits, the largest crop
    whose aspect `augment` allows is taken, at the centre, as in torchvision.

    Args:
        image_shape: Node of the image's height and width in pixels.
        drawn: Nodes of the ten crops and of the place. The place is x and y as shares of the margin around the crop:
            0 puts the crop at the left or the top of the image, 1 at the right or the bottom.
        augment: Least and most aspect of a crop, which is width over height in pixels.
    """
    size = fn.cast(image_shape, dtype=types.FLOAT)
    height_over_width = size[0] / size[1]
    tries = _in_shares_of_image(drawn, height_over_width)  # the ten crops
    is_first_fit = _is_first_that_fits(tries)  # [10]: 1 for one of them and 0 for the others, or 0 for all
    any_fits = fn.reductions.sum(is_first_fit)  # 1 or 0
    first_fit = _selected(tries, is_first_fit)
    largest = _largest_within_bounds(height_over_width, augment)

    # A graph of DALI has no branches: both crops are computed, and one is chosen by `any_fits`.
    height = _choose(any_fits, first_fit.heights, otherwise=largest.heights)
    width = _choose(any_fits, first_fit.widths, otherwise=largest.widths)
    place = _choose(any_fits, drawn.places, otherwise=0.5)  # x and y, from 0 to 1; 0.5 is the centre
    # Of a crop below one pixel the decoder, which takes whole pixels, would take none.
    one_pixel_high, one_pixel_wide = 1.0 / size[0], 1.0 / size[1]
    height = dali_math.max(height, one_pixel_high)
    width = dali_math.max(width, one_pixel_wide)
    left = (1.0 - width) * place[0]  # a share of the margin, which is 1.0 - width
    top = (1.0 - height) * place[1]
    return _Crop(anchor=fn.stack(top, left), shape=fn.stack(height, width))


def _selected(tries: _Sides, is_selected: Any) -> _Sides:
    """Return the height and the width of the one crop that is selected, as nodes of DALI's graph.

    For example the heights 0.9, 0.5 and 0.7 with the selection 0, 1 and 0 give 0.9 * 0 + 0.5 * 1 + 0.7 * 0 = 0.5.

    Args:
        tries: Nodes of the heights and widths of an image's crops, [CROP_TRIES] each.
        is_selected: Node with 1 for one crop and 0 for the others, [CROP_TRIES].

    Returns:
        Nodes of the two sides; both sides are 0 if no crop is selected.
    """
    height = fn.reductions.sum(tries.heights * is_selected)
    width = fn.reductions.sum(tries.widths * is_selected)
    return _Sides(heights=height, widths=width)


def _choose(condition: Any, value: Any, *, otherwise: Any) -> Any:
    """Return DALI's node of `value` where `condition` is 1, and of `otherwise` where it is 0."""
    return value * condition + otherwise * (1.0 - condition)


def _in_shares_of_image(drawn: _Drawn, height_over_width: Any) -> _Sides:
    """Return the sides of drawn crops as shares of the height H and the width W of an image.

    A crop was drawn with the width w and the height h for a square image of side 1. In the real image the crop must
    have the same share of the area, w * h, and the same aspect in pixels, w / h:

        width * height = w * h    and    (width * W) / (height * H) = w / h

    The solution of these two equations is

        height = h / sqrt(H / W)    and    width = w * sqrt(H / W)

    For example, in an image 1000 pixels high and 2000 wide, a crop drawn with h = 0.5 and w = 0.5 has 0.707 of the
    height and 0.354 of the width: 707 x 707 pixels, a square that is a quarter of the image.

    Args:
        drawn: DALI's nodes of the drawn crops, CROP_TRIES for each image.
        height_over_width: Node of H / W.

    Returns:
        DALI's nodes of the shares. A crop with a share above 1 does not fit into the image.
    """
    root = dali_math.sqrt(height_over_width)
    return _Sides(heights=drawn.heights / root, widths=drawn.widths * root)


def _is_first_that_fits(tries: _Sides) -> Any:
    """Return a node with 1 for the first crop that fits into the image and 0 for the others, [CROP_TRIES].

    All are 0 if none fits. For example, three crops have the ranks 3, 2 and 1. If only the last two fit, the rank of
    the first counts as 0: of 0, 2 and 1 the second is the highest, and the result is 0, 1 and 0.

    Args:
        tries: Nodes of the heights and widths of the crops, as shares of the image's.
    """
    ranks = types.Constant(np.arange(CROP_TRIES, 0, -1, dtype=np.float32))  # 10 for the first crop, 1 for the last
    fits = fn.cast((tries.widths <= 1.0) & (tries.heights <= 1.0), dtype=types.FLOAT)  # 1 or 0
    rank_if_fits = ranks * fits  # 0 for a crop that does not fit
    is_highest = rank_if_fits == fn.reductions.max(rank_if_fits)  # for all crops if none fits, as all are 0
    return fn.cast(is_highest & (rank_if_fits > 0.0), dtype=types.FLOAT)


def _largest_within_bounds(height_over_width: Any, augment: Augmentation) -> _Sides:
    """Return the largest crop whose aspect, width over height in pixels, is within the bounds of `augment`.

    The crop is the whole image, or the image with one side cut. For example, an image 2000 pixels wide and 1000 high
    has the aspect 2. With an aspect_max of 4/3 the crop has 0.667 of the width: 1333 x 1000 pixels.

    Args:
        height_over_width: Node of the image's height H over its width W.
        augment: Least and most aspect of a crop.

    Returns:
        Nodes of the sides, as shares of H and W.
    """
    # At its whole height, a crop with the aspect aspect_max has aspect_max * H / W of the width. At its whole width, a
    # crop with the aspect aspect_min has (W / H) / aspect_min of the height. A share above 1 means that the side is not
    # cut.
    width = dali_math.min(1.0, augment.aspect_max * height_over_width)
    height = dali_math.min(1.0, 1.0 / (augment.aspect_min * height_over_width))
    return _Sides(heights=height, widths=width)


def _draw(augment: Augmentation, seed: int, epoch: int, ids: Array) -> _Drawn:
    """Draw at random how the images of a batch are cropped and flipped in an epoch.

    The draw for an image depends only on `seed`, `epoch` and the image's id, and so is the same in any batch. The sizes
    of the images are not known here: the sides of a crop are those for a square image of side 1, and the pipeline fits
    them to the real image (`_in_shares_of_image`).

    Args:
        augment: Bounds of area and aspect, and the probability of a flip.
        seed: Seed of the run.
        epoch: Number of the epoch.
        ids: Numbers of the images in the data set, [N].

    Returns:
        For each image the widths and heights of the ten crops, the place (x and y) of the crop that is taken, and 1 if
        the image is flipped, else 0.
    """
    numbers = CROP_TRIES + CROP_TRIES + 2 + 1  # areas, aspects, x and y, flip
    random = sampling.uniform(seed, epoch, ids, numbers).astype(np.float32)  # from 0 to 1, [N, numbers]
    # The columns of an image's row: 0 to 9 for the areas, 10 to 19 for the aspects, 20 to 22 for x, y and the flip.
    random_areas, random_aspects, others = np.split(random, [CROP_TRIES, 2 * CROP_TRIES], axis=1)
    places = others[:, :2]  # x and y
    random_flips = others[:, 2]

    # `_between` maps random numbers from 0 to 1 to the range between its two bounds.
    areas = _between(augment.area_min, augment.area_max, random_areas)
    # Of an aspect (width / height) the logarithm is uniformly random, so that 1:2 is as likely as 2:1.
    aspects = np.exp(_between(math.log(augment.aspect_min), math.log(augment.aspect_max), random_aspects))
    is_flipped = random_flips < augment.flip  # with that probability
    return _Drawn(
        widths=np.sqrt(areas * aspects),
        heights=np.sqrt(areas / aspects),
        places=np.ascontiguousarray(places),
        flips=is_flipped.astype(np.int32),
    )


def _between(low: float, high: float, shares: Array) -> Array:
    """Return the numbers that lie at these shares of the way from `low` (0) to `high` (1)."""
    return low + (high - low) * shares


def synthetic(image: ImageFormat, *, batch: int, classes: int, seed: int) -> loader.Batch:
    """Return a batch of noise, to warm up on and to measure the program without its input.

    Args:
        image: Size, layout and type of the images that the program takes.
        batch: Number of images.
        classes: Number of classes from which the labels are drawn.
        seed: Seed of the random numbers.
    """
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
