"""A segmentation set read by DALI: pairs (`pairs.py`) of an image and a label of one size (`pictures.py`).

Image and label take one geometry, drawn from `harness.sampling`: scaled, cropped (padded on the right and below where
the scaled image is smaller) and flipped together, the image linearly, the label by nearest neighbour. Only the part of
the image that the crop shows is scaled. Brightness, contrast, saturation and hue are turned by DALI's `color_twist` in
this order about mid-grey, where PaddleSeg shuffles the order and turns contrast about the image's mean.

Images leave the pipeline as [N, 3, H, W], float32, normalized; labels as [N, H, W], uint8, 255 where ignored.
"""

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

# Cityscapes' label ids that are trained on, in order of their train ids (cityscapesScripts, labels.py): a pixel whose
# label id is TRAINED_IDS[n] is of class n.
TRAINED_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LABEL_IDS = 34
OUT_OF_RANGE = 254
# Tables from a pixel's number in the file to the one that is trained on, a row each: the number as it is; from a label
# id to its class; and, for a sample that only fills up a batch, IGNORED for every number.
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
    """Build the DALI pipeline that decodes, crops and normalizes pairs of an image and its label; return its outputs.

    `source` feeds it a batch at a time: encoded images and labels; if `renumbered`, where each sample's row of
    RENUMBERED begins; and, if `augmented` (for training), what `_draw` draws, else which samples are valid.

    The outputs are the images; for each label its highest number but IGNORED, plus 1; the labels; and, if not
    `augmented`, which samples are valid. The highest numbers are left on the CPU, so that the host sees whether all are
    classes without waiting for a GPU.
    """
    inputs = [(types.UINT8, 1), (types.UINT8, 1)]  # encoded image and label
    if renumbered:
        inputs.append((types.UINT16, 0))  # where the sample's row of RENUMBERED begins
    if augmented:
        inputs += [(types.FLOAT, 1)] * 3 + [(types.INT32, 0)] + [(types.FLOAT, 0)] * 4  # by `_draw`
    else:
        inputs.append((types.FLOAT, 0))  # whether the sample is valid
    image_bytes, label_bytes, *rest = loader.inputs(source, inputs)
    row_start = rest.pop(0) if renumbered else None
    images = fn.decoders.image(image_bytes, device="mixed" if device == "gpu" else "cpu", output_type=types.RGB)
    labels = fn.decoders.image(label_bytes, device="cpu", output_type=types.GRAY)
    mirror: Any = 0
    # The upper left corner is cut out, and filled up where the image is smaller.
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
    if row_start is not None:
        positions = labels + row_start  # in RENUMBERED, its rows one after the other
        labels = fn.lookup_table(
            positions, keys=list(range(RENUMBERED.size)), values=RENUMBERED.ravel().tolist(), dtype=types.UINT8
        )
    highest = fn.reductions.max(labels + types.Constant(1, dtype=types.UINT8))  # IGNORED, the last of them, becomes 0
    other_outputs = [fn.squeeze(labels, axes=[2])]
    if not augmented:
        other_outputs += rest
    if device == "gpu":
        other_outputs = [output.gpu() for output in other_outputs]
    return images, highest, *other_outputs


def _draw(augment: Augmentation, crop: ImageFormat, sizes: Array, *, seed: int, epoch: int, ids: Array) -> list[Array]:
    """Draw how the images `ids` [N] are augmented in an epoch, the same on any number of ranks.

    `sizes` [N, 2] are the images' heights and widths in pixels.

    Returns, in the order of the pipeline's inputs: start and end [N, 2] of the window that is cut out of each image, in
    pixels of the image; the size [N, 2] to which the window is resized; whether to flip it, 1 or 0 [N]; and factors of
    brightness, contrast and saturation and a turn of hue in degrees, [N] each.
    """
    # [N, 12], from 0 to 1: a scale, two for a corner, a flip, and two for each of four changes of colour.
    drawn = sampling.uniform(seed, epoch, ids, 12)
    drawn_scales = drawn[:, 0]
    drawn_corners = drawn[:, 1:3]  # top, left
    drawn_flips = drawn[:, 3]
    drawn_colours = drawn[:, 4:].reshape(-1, 4, 2)  # for each of the four: whether it changes, and by how much

    scales = _scales(augment, drawn_scales)
    windows = _windows(crop, sizes, scales, drawn_corners)
    flips = (drawn_flips < augment.flip).astype(np.int32)
    return [*windows, flips, *_colour_changes(augment, drawn_colours)]


def _scales(augment: Augmentation, drawn: Array) -> Array:
    """Return a factor of size for each drawn number (0 to 1): `scale_min`, a `scale_step` more, ... or `scale_max`."""
    scale_count = round((augment.scale_max - augment.scale_min) / augment.scale_step) + 1
    scales: Array = augment.scale_min + augment.scale_step * np.floor(drawn * scale_count)
    return scales


def _windows(crop: ImageFormat, sizes: Array, scales: Array, drawn_corners: Array) -> list[Array]:
    """Return which window of each image becomes its crop: starts, ends and sizes, [N, 2] float32 each.

    An image is scaled by its factor in `scales` [N], and a window of at most the crop's size is cut out of the scaled
    image, at the place that `drawn_corners` [N, 2] (0 to 1) chooses. DALI does both at once: it resizes the part of the
    unscaled image from start to end to the window's size.
    """
    scaled_sizes = np.rint(sizes * scales[:, None])
    window_sizes = np.minimum(scaled_sizes, [crop.height, crop.width])
    # Corners of the windows in the scaled images. There are as many places as pixels to spare, and one more.
    corners = np.floor(drawn_corners * (scaled_sizes - window_sizes + 1))
    starts = corners * sizes / scaled_sizes
    ends = (corners + window_sizes) * sizes / scaled_sizes
    return [values.astype(np.float32) for values in (starts, ends, window_sizes)]


def _colour_changes(augment: Augmentation, drawn_colours: Array) -> list[Array]:
    """Return factors of brightness, contrast and saturation, and a turn of hue in degrees: [N] float32 each.

    `drawn_colours` [N, 4, 2] has two numbers from 0 to 1 for each of the four: whether it changes, and by how much. An
    image in which one does not change has a factor of 1, or a turn of 0.
    """
    most_changes = (augment.colour, augment.colour, augment.colour, augment.hue_degrees)
    unchanged = (1.0, 1.0, 1.0, 0.0)
    changed = []
    for number, (most, neutral) in enumerate(zip(most_changes, unchanged, strict=True)):
        is_changed = drawn_colours[:, number, 0] < augment.colour_probability
        change = (2 * drawn_colours[:, number, 1] - 1) * most  # from -most to most
        changed.append((neutral + np.where(is_changed, change, 0.0)).astype(np.float32))
    return changed


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
        # In evaluation always, as samples that fill up the last batch are ignored by their row.
        self._renumbered = augment is None or bool(from_ids.any())
        super().__init__(pairs, plan, _pipeline, reader, augmented=augment is not None, renumbered=self._renumbered)

    def _read(self, epoch: int, ids: Array, valid: Array) -> tuple[Any, ...]:
        """Return the inputs of `_pipeline` for a batch of the samples `ids`; `valid` [N] says which of them count.

        They are, each with a value for every sample:

        - the images, decompressed: whole for an evaluation, in training down to the last row that the crop needs
        - the encoded labels
        - if labels are renumbered: the offset in the table RENUMBERED at which the sample's row begins. The row has the
          new number for each number of the label file.
        - in training what `_draw` draws, in an evaluation whether the sample counts
        """
        pairs = [self._read_pair(int(number)) for number in ids]
        labels = [np.frombuffer(pair.label, dtype=np.uint8) for pair in pairs]
        sizes = np.array([pair.size for pair in pairs])
        needed_rows = sizes[:, 0]  # of (height, width)
        augmentation_or_valid = [valid.astype(np.float32)]
        if self._augment is not None:
            drawn = _draw(self._augment, self._image, sizes, seed=self._reader.seed, epoch=epoch, ids=ids)
            window_ends = drawn[1]  # of (starts, ends, ...): where the windows that become the crops end
            bottoms = window_ends[:, 0]  # of (bottom, right)
            needed_rows = np.minimum(needed_rows, np.ceil(bottoms) + 1)  # one more row to interpolate with
            augmentation_or_valid = drawn

        images = []
        for pair, rows in zip(pairs, needed_rows, strict=True):
            images.append(np.frombuffer(pictures.inflated(pair.image, int(rows)), dtype=np.uint8))
        other_inputs = augmentation_or_valid
        if self._renumbered:
            other_inputs = [self._row_starts(ids, valid), *augmentation_or_valid]  # first the offsets in RENUMBERED
        return images, labels, *other_inputs

    def _row_starts(self, ids: Array, valid: Array) -> Array:
        """Return where the row of each sample begins in RENUMBERED, [N] uint16; the pipeline reads its rows end to end.

        A sample that only fills up the batch (not `valid`) has the row that ignores all pixels.
        """
        row_numbers = np.where(valid, self._row[ids], FILLED_UP)
        row_length = RENUMBERED.shape[1]
        starts: Array = row_length * row_numbers
        return starts.astype(np.uint16)

    def _read_pair(self, number: int) -> Pair:
        """Return the encoded image and label of a pair, and their size in pixels; the label as a greyscale PNG.

        Raises RunError where one of the two is of a kind that is not taken or is not whole, or where they differ in
        size. In evaluation, where nothing is augmented, all images must have the size of the first one.
        """
        image_path, label_path = self._samples.paths(number)
        (image_name, image), (label_name, label) = self._samples.encoded(number)
        try:
            size = pictures.image_size(image_name, image)
            require_one_size(image_path, size, label_path, pictures.label_size(label_name, label))
            is_evaluation = self._augment is None
            if is_evaluation:
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
        """Return a batch of the pipeline's outputs. Raises RunError where a label holds a number that is no class."""
        images, highest_plus_1, *other_outputs = outputs
        highest = highest_plus_1.as_array().astype(int) - 1
        for number, value in zip(ids, highest, strict=True):
            if value >= self._samples.classes:
                raise RunError(_no_class(self._samples, number, value))
        return super()._batch((images, *other_outputs), ids)


def label_fault(pairs: PairList, number: int) -> str:
    """Return a message that a pair's label holds a number that is no class; empty where all are classes or ignored.

    The label is read without DALI.
    """
    with Image.open(pairs.paths(number)[1]) as label:
        present = np.unique(np.asarray(label))
    row = FROM_LABEL_IDS if pairs.has_label_ids(number) else AS_IT_IS
    trained = RENUMBERED[row, present]
    highest = int(trained[trained != IGNORED].max(initial=0))
    return _no_class(pairs, number, highest) if highest >= pairs.classes else ""


def _no_class(pairs: PairList, number: int, value: int) -> str:
    """Return the message that a pair's label holds a number that is no class; `value` is what it is trained on as."""
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
