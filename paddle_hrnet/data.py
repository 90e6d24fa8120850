"""A segmentation set read by DALI: pairs (`pairs.py`) of an image and a label of one size (`pictures.py`).

Image and label take one geometry, drawn from `harness.sampling`: scaled, cropped (padded on the right and below where
the scaled image is smaller) and flipped together, the image linearly, the label by nearest neighbour. Only the part of
the image that the crop shows is scaled. Brightness, contrast, saturation and hue are turned by DALI's `color_twist` in
this order about mid-grey, where PaddleSeg shuffles the order and turns contrast about the image's mean.

Images leave the pipeline as [N, 3, H, W], float32, normalized; labels as [N, H, W], uint8, 255 where ignored.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali import math as dali
from PIL import Image

from harness import loader, sampling
from harness.loader import ReaderConfig
from paddle_hrnet import pictures
from paddle_hrnet.config import IGNORED, Augmentation
from paddle_hrnet.pairs import PairList, find, image_head, label_rows, require_first_size, require_one_size
from paddle_hrnet.pictures import Size
from program.arrays import Array
from runlog.errors import RunError

__all__ = ["ImageFormat", "Loader", "PairList", "find", "first_size", "synthetic"]

MEAN = STD = 127.5  # of every channel, as PaddleSeg normalizes

# Cityscapes' label ids that are trained on, in order of their train ids (cityscapesScripts, labels.py).
TRAINED_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LABEL_IDS = 34
OUT_OF_RANGE = 254
# A pixel's number in the file to the one that is trained on, by row: as it is, from label ids, of a filled-up sample.
RENUMBERED = np.array([np.arange(256), np.full(256, OUT_OF_RANGE), np.full(256, IGNORED)], dtype=np.uint8)
AS_IT_IS, FROM_LABEL_IDS, FILLED_UP = range(3)
RENUMBERED[FROM_LABEL_IDS, :LABEL_IDS] = RENUMBERED[FROM_LABEL_IDS, 255] = IGNORED
RENUMBERED[FROM_LABEL_IDS, list(TRAINED_IDS)] = np.arange(len(TRAINED_IDS))


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """The size, layout and type of the images that a program takes."""

    height: int  # pixels
    width: int
    half: bool = False  # float16 in place of float32


@pipeline_def  # type: ignore[untyped-decorator]  # DALI's
def _pipeline(*, source: Any, device: str, image: ImageFormat, augmented: bool, renumbered: bool) -> Any:
    """Encoded pairs to normalized images and labels, `augmented` for training; labels take their way on the CPU.

    Of the labels also the highest number but IGNORED, plus 1, on the CPU: the host sees whether all are classes without
    waiting for a GPU. Not `augmented`, the last output is what is valid.
    """
    inputs = [(types.UINT8, 1), (types.UINT8, 1)]  # encoded image and label
    if renumbered:
        inputs.append((types.UINT16, 0))  # first key of the sample's row of RENUMBERED
    if augmented:
        inputs += [(types.FLOAT, 1)] * 3 + [(types.INT32, 0)] + [(types.FLOAT, 0)] * 4  # by `_draw`
    else:
        inputs.append((types.FLOAT, 0))  # whether the sample is valid
    image_bytes, label_bytes, *rest = loader.inputs(source, inputs)
    first_key = rest.pop(0) if renumbered else None
    images = fn.decoders.image(image_bytes, device="mixed" if device == "gpu" else "cpu", output_type=types.RGB)
    labels = fn.decoders.image(label_bytes, device="cpu", output_type=types.GRAY)
    mirror: Any = 0
    # The crop at the upper left corner, filled up where the image ends before it.
    cut: dict[str, Any] = {"crop": (image.height, image.width), "out_of_bounds_policy": "pad"}
    cut |= {"crop_pos_x": 0.0, "crop_pos_y": 0.0}
    if augmented:
        start, end, size, mirror, brightness, contrast, saturation, hue = rest  # by `_draw`
        window = {"roi_start": start, "roi_end": end, "roi_relative": False, "size": size, "antialias": False}
        images = fn.resize(images, interp_type=types.INTERP_LINEAR, **window)
        labels = fn.resize(labels, interp_type=types.INTERP_NN, **window)
        # To floats and back into their range: its conversion to uint8 takes four times as long.
        images = fn.color_twist(
            images, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue, dtype=types.FLOAT
        )
        images = dali.min(dali.max(images, 0.0), 255.0)
        labels = fn.flip(fn.crop(labels, **cut, fill_values=float(IGNORED)), horizontal=mirror)
    images = fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        **cut,
        fill_values=0.0,  # mid-grey, after normalization
        mean=[MEAN] * 3,
        std=[STD] * 3,
        dtype=types.FLOAT16 if image.half else types.FLOAT,
        output_layout="CHW",
    )
    if first_key is not None:
        numbers = labels + first_key
        labels = fn.lookup_table(
            numbers, keys=list(range(RENUMBERED.size)), values=RENUMBERED.ravel().tolist(), dtype=types.UINT8
        )
    highest = fn.reductions.max(labels + types.Constant(1, dtype=types.UINT8))  # IGNORED, the last of them, becomes 0
    beside = [fn.squeeze(labels, axes=[2])]
    if not augmented:
        beside += rest
    if device == "gpu":
        beside = [output.gpu() for output in beside]
    return images, highest, *beside


def _draw(augment: Augmentation, crop: ImageFormat, sizes: Array, *, seed: int, epoch: int, ids: Array) -> list[Array]:
    """Draw how the images `ids` are augmented in an epoch, the same on any number of ranks.

    `sizes` [N, 2] are the images' heights and widths in pixels. All draws are uniform from 0 to 1, of which each image
    has a row of its own (`sampling.uniform`).

    Returns, in the order of the pipeline's inputs: start and end [N, 2] of the window in the image; its size [N, 2] in
    the crop; whether to flip it [N]; factors of brightness, contrast and saturation, and a turn of hue in degrees, [N]
    each.
    """
    (
        drawn_scale,
        drawn_top,
        drawn_left,
        drawn_flip,
        *drawn_colours,  # for each of the four colours: whether it changes, and by how much
    ) = sampling.uniform(seed, epoch, ids, 12).T

    scale = _scales(augment, drawn_scale)
    drawn_corner = np.stack([drawn_top, drawn_left], axis=1)
    window = _windows(crop, sizes, scale, drawn_corner)
    flip = (drawn_flip < augment.flip).astype(np.int32)
    return [*window, flip, *_colour_changes(augment, drawn_colours)]


def _scales(augment: Augmentation, drawn: Array) -> Array:
    """Return a factor of size for each drawn number: one of those from `scale_min` to `scale_max` by `scale_step`."""
    scale_count = round((augment.scale_max - augment.scale_min) / augment.scale_step) + 1
    scales: Array = augment.scale_min + augment.scale_step * np.floor(drawn * scale_count)
    return scales


def _windows(crop: ImageFormat, sizes: Array, scale: Array, drawn_corner: Array) -> list[Array]:
    """Return which window of each image becomes its crop: start, end and size, [N, 2] float32 each.

    An image is scaled by its `scale`, and a window of at most the crop's size is cut out of the scaled image, at the
    place that `drawn_corner` [N, 2] (0 to 1) chooses. It is done in one go: start and end are in pixels of the
    unscaled image, and the size is that to which the window is resized.
    """
    scaled_sizes = np.rint(sizes * scale[:, None])
    window_sizes = np.minimum(scaled_sizes, [crop.height, crop.width])
    corner = np.floor(drawn_corner * (scaled_sizes - window_sizes + 1))  # of the window, in the scaled image
    start = corner * sizes / scaled_sizes
    end = (corner + window_sizes) * sizes / scaled_sizes
    return [values.astype(np.float32) for values in (start, end, window_sizes)]


def _colour_changes(augment: Augmentation, drawn_colours: list[Array]) -> list[Array]:
    """Return factors of brightness, contrast and saturation, and a turn of hue in degrees: [N] float32 each.

    `drawn_colours` has two numbers from 0 to 1 for each of the four, one after the other: whether it changes, and by
    how much.
    """
    most_changes = (augment.colour, augment.colour, augment.colour, augment.hue_degrees)
    unchanged = (1.0, 1.0, 1.0, 0.0)
    colours = []
    for number, (most, neutral) in enumerate(zip(most_changes, unchanged, strict=True)):
        drawn_whether, drawn_change = drawn_colours[2 * number : 2 * number + 2]
        change = np.where(drawn_whether < augment.colour_probability, (2 * drawn_change - 1) * most, 0.0)
        colours.append((neutral + change).astype(np.float32))
    return colours


def synthetic(image: ImageFormat, *, batch: int, classes: int, seed: int) -> loader.Batch:
    """A batch of noise, to warm up on and to measure the program without its input."""
    rng = np.random.default_rng(seed)
    pixels = loader.noise(rng, (batch, 3, image.height, image.width), half=image.half)
    label = rng.integers(0, classes, (batch, image.height, image.width), dtype=np.uint8)
    return loader.Batch(image=pixels, label=label, valid=np.ones(batch, np.float32), ids=np.zeros(batch, np.int64))


class Pair(NamedTuple):
    """A pair as it is read."""

    image: bytes  # encoded
    label: bytes  # a greyscale PNG
    size: Size


class Loader(loader.Loader):
    """Batches of `plan`: image [N, 3, H, W], label [N, H, W] uint8, valid [N].

    With `augment` crops of the reader's size for training; without, whole images of that size.
    """

    def __init__(
        self, pairs: PairList, plan: sampling.Plan, reader: ReaderConfig, *, augment: Augmentation | None = None
    ) -> None:
        self._augment = augment
        self._image = reader.image
        from_ids = label_rows(pairs)
        self._row = np.where(from_ids, FROM_LABEL_IDS, AS_IT_IS)  # of RENUMBERED, for each label
        self._renumbered = augment is None or bool(from_ids.any())
        super().__init__(pairs, plan, _pipeline, reader, augmented=augment is not None, renumbered=self._renumbered)

    def _read(self, epoch: int, ids: Array, valid: Array) -> tuple[Any, ...]:
        images = []
        labels = []
        sizes = []
        for number in ids:
            pair = self._read_pair(int(number))
            images.append(pair.image)
            labels.append(np.frombuffer(pair.label, dtype=np.uint8))
            sizes.append(pair.size)

        rows = [size.height for size in sizes]
        drawn = [valid.astype(np.float32)]
        if self._augment is not None:
            drawn = _draw(self._augment, self._image, np.array(sizes), seed=self._reader.seed, epoch=epoch, ids=ids)
            window_ends = drawn[1][:, 0]
            # Down to the window's end, and one more row to interpolate with.
            rows = [min(height, math.ceil(end) + 1) for height, end in zip(rows, window_ends, strict=True)]
        if self._renumbered:
            first_key = RENUMBERED.shape[1] * np.where(valid, self._row[ids], FILLED_UP)
            drawn.insert(0, first_key.astype(np.uint16))

        plain = []
        for image, count in zip(images, rows, strict=True):
            plain.append(np.frombuffer(pictures.inflated(image, count), dtype=np.uint8))
        return plain, labels, *drawn

    def _read_pair(self, number: int) -> Pair:
        """Return the encoded image and label of a pair, with their size in pixels; the label as a greyscale PNG.

        Raises RunError where one of the two is of a kind that is not taken or not whole, where they differ in size, and
        in evaluation for another size than the first image's.
        """
        image_path, label_path = self._samples.paths(number)
        (image_name, image), (label_name, label) = self._samples.encoded(number)
        try:
            size = pictures.image_size(image_name, image)
            require_one_size(image_path, size, label_path, pictures.label_size(label_name, label))
            if self._augment is None:
                require_first_size(image_path, size, Size(self._image.height, self._image.width))
        except ValueError as error:
            raise RunError(str(error)) from error
        loader.require_whole(image_name, image)
        loader.require_whole(label_name, label)
        try:
            return Pair(image, pictures.as_grey(label), size)
        except ValueError as error:
            raise RunError(loader.undecodable(label_name, str(error))) from error

    def _batch(self, outputs: Any, ids: Array) -> loader.Batch:
        images, highest, *beside = outputs
        classes = self._samples.classes
        for i, value in zip(ids, highest.as_array().astype(int) - 1, strict=True):
            if value >= classes:
                raise RunError(_no_class(self._samples, i, value))
        return super()._batch((images, *beside), ids)


def label_fault(pairs: PairList, number: int) -> str:
    """Say which number of a pair's label is no class, without DALI; an empty text where all are classes or ignored."""
    with Image.open(pairs.paths(number)[1]) as label:
        present = np.unique(np.asarray(label))
    row = FROM_LABEL_IDS if pairs.has_label_ids(number) else AS_IT_IS
    trained = RENUMBERED[row, present]
    highest = int(trained[trained != IGNORED].max(initial=0))
    return _no_class(pairs, number, highest) if highest >= pairs.classes else ""


def _no_class(pairs: PairList, number: int, value: int) -> str:
    """Say that `value`, as it is trained on, of a pair's label is no class."""
    shown = f"above {LABEL_IDS - 1}" if pairs.has_label_ids(number) else f"{value}"
    return (
        f"{pairs.paths(number)[1]}: holds the label {shown}, no class ({pairs.classes} of them) nor {IGNORED}: correct "
        "the file, remove it from the list, or choose another RECIPE"
    )


def first_size(pairs: PairList) -> ImageFormat:
    """Read the size of the first image, which all of an evaluation must have.

    Raises ValueError where it cannot be read.
    """
    image, _ = pairs.paths(0)
    size = image_head(image)
    return ImageFormat(height=size.height, width=size.width)
