"""A segmentation set read by DALI: pairs (`pairs.py`) of an image and a label of one size (`pictures.py`).

Image and label take one geometry, drawn from `harness.sampling`: scaled, cropped (padded on the right and below where
the scaled image is smaller) and flipped together, the image linearly, the label by nearest neighbour. Only the part of
the image that the crop shows is scaled. Brightness, contrast, saturation and hue are turned by DALI's `color_twist` in
this order about mid-grey, where PaddleSeg shuffles the order and turns contrast about the image's mean.

Images leave the pipeline as [N, 3, H, W], float32, normalized; labels as [N, H, W], uint8, 255 where ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali import math as dali

from harness import loader, sampling
from harness.loader import ReaderConfig
from paddle_hrnet import pictures
from paddle_hrnet.config import IGNORED, Augmentation
from paddle_hrnet.labels import (
    AS_IT_IS,
    FILLED_UP,
    FROM_LABEL_IDS,
    RENUMBERED,
    label_doubt,
    label_fault,
    no_class,
)
from paddle_hrnet.pairs import PairList, find, image_head, label_rows, require_first_size, require_one_size
from paddle_hrnet.pictures import Size
from program.arrays import Array
from runlog.errors import RunError

__all__ = ["ImageFormat", "Loader", "PairList", "find", "first_size", "label_doubt", "label_fault", "synthetic"]

MEAN = STD = 127.5  # of every channel, as PaddleSeg normalizes


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """The size, layout and type of the images that a program takes."""

    height: int  # pixels
    width: int
    half: bool = False  # float16 in place of float32


class _Drawn(NamedTuple):
    """How the N images of a batch are augmented, in the order of the pipeline's inputs.

    A window of each image is cut out and resized. The three arrays of windows are [N, 2] float32: height and width, or
    top and left, or bottom and right.
    """

    window_starts: Any  # pixels of the image as it is in the file
    window_ends: Any  # likewise
    resized_sizes: Any  # of the windows, in pixels after the resizing
    flips: Any  # [N] int32: 1 if the window is flipped, else 0
    brightness: Any  # [N] float32, a factor; 1 changes nothing
    contrast: Any  # likewise
    saturation: Any  # likewise
    hue: Any  # [N] float32, in degrees; 0 changes nothing


# DALI's types of the pipeline's inputs for a sample, and their numbers of dimensions.
_KINDS_OF_IMAGE_AND_LABEL = {"image": (types.UINT8, 1), "label": (types.UINT8, 1)}
_KIND_OF_ROW_START = (types.UINT16, 0)
_KIND_OF_VALID = (types.FLOAT, 0)
_KINDS_OF_DRAWN = _Drawn(
    window_starts=(types.FLOAT, 1),
    window_ends=(types.FLOAT, 1),
    resized_sizes=(types.FLOAT, 1),
    flips=(types.INT32, 0),
    brightness=(types.FLOAT, 0),
    contrast=(types.FLOAT, 0),
    saturation=(types.FLOAT, 0),
    hue=(types.FLOAT, 0),
)


@pipeline_def  # type: ignore[untyped-decorator]  # DALI's
def _pipeline(*, source: Any, device: str, image: ImageFormat, augmented: bool, renumbered: bool) -> Any:
    """Build the DALI pipeline that decodes, augments and normalizes images and labels; return its outputs.

        training:    images, labels, what was drawn (`_Drawn`)   ->  images, highest classes + 1, labels
        evaluation:  images, labels, which samples are valid     ->  the same, and which samples are valid

    The highest class of each label shows the host whether a label holds a number that is not a class (`Loader._batch`).

    If labels are renumbered, one more input comes behind the labels: for each sample, where its row begins in the table
    RENUMBERED. The row tells for each number in the label file the class that is trained on.

    Args:
        source: Function that DALI calls for the inputs of each batch, images and labels encoded (`Loader._read`).
        device: "cpu", or "gpu" to decode images on the GPU and put all outputs there but the highest classes.
        image: Size and type of the images that the program takes.
        augmented: True for training, False for an evaluation.
        renumbered: Whether the numbers in label files are replaced by those of RENUMBERED.
    """
    kinds = dict(_KINDS_OF_IMAGE_AND_LABEL)  # by the input's name, in the order of `source`
    if renumbered:
        kinds["row_start"] = _KIND_OF_ROW_START
    if augmented:
        kinds |= _KINDS_OF_DRAWN._asdict()
    else:
        kinds["valid"] = _KIND_OF_VALID
    nodes = loader.inputs(source, list(kinds.values()))
    fed = dict(zip(kinds, nodes, strict=True))

    images = fn.decoders.image(fed["image"], device="mixed" if device == "gpu" else "cpu", output_type=types.RGB)
    labels = fn.decoders.image(fed["label"], device="cpu", output_type=types.GRAY)
    if augmented:
        drawn = _Drawn(**{name: fed[name] for name in _Drawn._fields})
        images = _augmented_images(images, drawn, image)
        labels = _augmented_labels(labels, drawn, image)
    else:
        images = _normalized(images, image, mirror=0)
    if renumbered:
        labels = _renumbered(labels, fed["row_start"])

    highest_plus_1 = _highest_class_plus_1(labels)  # on the CPU, so that the host need not wait for a GPU
    fed_to_program = [fn.squeeze(labels, axes=[2])]
    if not augmented:
        fed_to_program.append(fed["valid"])
    if device == "gpu":
        fed_to_program = [output.gpu() for output in fed_to_program]
    return images, highest_plus_1, *fed_to_program


def _highest_class_plus_1(labels: Any) -> Any:
    """Return DALI's node of the highest class in each label, plus 1; 0 if all of its pixels are ignored.

    The 1 is added so that an ignored pixel is never the highest one: labels are uint8, in which IGNORED + 1 = 256
    becomes 0.
    """
    return fn.reductions.max(labels + types.Constant(1, dtype=types.UINT8))


def _augmented_images(images: Any, drawn: _Drawn, image: ImageFormat) -> Any:
    """Return DALI's node of images that are cut out, resized, coloured and flipped as drawn, and then normalized.

    Args:
        images: Node of the decoded images, in RGB.
        drawn: Nodes of the random augmentation.
        image: Size and type of the images that the program takes.
    """
    windows = _resized_window(images, drawn, types.INTERP_LINEAR)
    return _normalized(_with_colours_changed(windows, drawn), image, mirror=drawn.flips)


def _augmented_labels(labels: Any, drawn: _Drawn, image: ImageFormat) -> Any:
    """Return DALI's node of labels that are cut out, resized and flipped as drawn, filled up with IGNORED (255).

    Args:
        labels: Node of the decoded labels.
        drawn: Nodes of the random augmentation, the same as for the images.
        image: Size of the images that the program takes.
    """
    windows = _resized_window(labels, drawn, types.INTERP_NN)
    cropped = fn.crop(windows, **_upper_left_corner(image), fill_values=float(IGNORED))
    return fn.flip(cropped, horizontal=drawn.flips)


def _upper_left_corner(image: ImageFormat) -> dict[str, Any]:
    """Return the options with which DALI cuts out the upper left corner, filled up where an image is smaller."""
    return {
        "crop": (image.height, image.width),
        "crop_pos_x": 0.0,
        "crop_pos_y": 0.0,
        "out_of_bounds_policy": "pad",
    }


def _normalized(images: Any, image: ImageFormat, *, mirror: Any) -> Any:
    """Return DALI's node of images in the program's size and type, normalized to the range from -1 to 1.

    Args:
        images: Node of images with values from 0 to 255.
        image: Size and type that the program takes. A smaller image is filled up with grey; of a larger one the upper
            left corner is taken.
        mirror: 1 for an image that is to be mirrored, else 0; a number or a node.
    """
    return fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        **_upper_left_corner(image),
        fill_values=0.0,  # mid-grey, after normalization
        mean=[MEAN] * 3,
        std=[STD] * 3,
        dtype=types.FLOAT16 if image.half else types.FLOAT,
        output_layout="CHW",
    )


def _resized_window(images: Any, drawn: _Drawn, interpolation: Any) -> Any:
    """Return DALI's node that cuts the drawn window out of images or labels and resizes it.

    Args:
        images: Node of the decoded images or labels.
        drawn: Nodes of the random augmentation.
        interpolation: DALI's kind of interpolation: linear for images, nearest neighbour for labels.
    """
    return fn.resize(
        images,
        interp_type=interpolation,
        roi_start=drawn.window_starts,
        roi_end=drawn.window_ends,
        roi_relative=False,  # in pixels
        size=drawn.resized_sizes,
        antialias=False,
    )


def _with_colours_changed(images: Any, drawn: _Drawn) -> Any:
    """Return DALI's node that changes brightness, contrast, saturation and hue of images as drawn.

    Args:
        images: Node of images with values from 0 to 255.
        drawn: Nodes of the random augmentation.

    Returns:
        Node of float32 images, cut off to the range from 0 to 255.
    """
    changed = fn.color_twist(
        images,
        brightness=drawn.brightness,
        contrast=drawn.contrast,
        saturation=drawn.saturation,
        hue=drawn.hue,
        dtype=types.FLOAT,  # with uint8 it cuts off by itself, but takes four times as long
    )
    return dali.min(dali.max(changed, 0.0), 255.0)


def _renumbered(labels: Any, row_start: Any) -> Any:
    """Return DALI's node that replaces each number of label files by the class that the number is trained as.

    The classes are in the table RENUMBERED, which has a row of 256 entries for each of three kinds of samples (see
    `_row_starts`). In a row, the entry of the number n is at place n: the class, 255 for a number that is ignored, or
    254 for a wrong number. Here the three rows are laid end to end, so the entry is at place `row_start` + n.

    Args:
        labels: Node of the labels as they are in the files, uint8.
        row_start: Node of the place at which each sample's row begins, uint16: 0, 256 or 512.
    """
    positions = labels + row_start  # uint16, as DALI takes the wider type: up to 767
    return fn.lookup_table(
        positions, keys=list(range(RENUMBERED.size)), values=RENUMBERED.ravel().tolist(), dtype=types.UINT8
    )


def _draw(augment: Augmentation, crop: ImageFormat, sizes: Array, *, seed: int, epoch: int, ids: Array) -> _Drawn:
    """Draw how the images of a batch are scaled, cropped, flipped and coloured in an epoch.

    An image is augmented the same way on any number of ranks and in any batch.

    Args:
        augment: Bounds and probabilities of the augmentation.
        crop: Height and width of a training crop in pixels.
        sizes: Heights and widths of the images in pixels, [N, 2].
        seed: Seed of the run.
        epoch: Number of the epoch.
        ids: Numbers of the images in the data set, [N].
    """
    random = sampling.uniform(seed, epoch, ids, 12)  # [N, 12], from 0 up to but not 1
    for_scale = random[:, 0]
    for_corner = random[:, 1:3]
    for_flip = random[:, 3]
    # Two numbers for each colour property: the first decides whether it changes, the second by how much.
    for_brightness, for_contrast, for_saturation, for_hue = np.split(random[:, 4:], 4, axis=1)

    windows = _windows(crop, sizes, _scales(augment, for_scale), drawn_corners=for_corner)
    is_flipped = for_flip < augment.flip  # with that probability
    probability = augment.colour_probability
    brightness_changes = _changes(for_brightness, most=augment.colour, probability=probability)
    contrast_changes = _changes(for_contrast, most=augment.colour, probability=probability)
    saturation_changes = _changes(for_saturation, most=augment.colour, probability=probability)
    hue_changes = _changes(for_hue, most=augment.hue_degrees, probability=probability)
    return _Drawn(
        window_starts=windows.starts.astype(np.float32),
        window_ends=windows.ends.astype(np.float32),
        resized_sizes=windows.sizes.astype(np.float32),
        flips=is_flipped.astype(np.int32),
        # These three are factors; the hue is turned by degrees.
        brightness=(1 + brightness_changes).astype(np.float32),
        contrast=(1 + contrast_changes).astype(np.float32),
        saturation=(1 + saturation_changes).astype(np.float32),
        hue=hue_changes.astype(np.float32),
    )


def _scales(augment: Augmentation, drawn: Array) -> Array:
    """Return the factor by which each image is scaled: `scale_min`, a `scale_step` more, and so on to `scale_max`.

    Args:
        augment: The bounds and the step, such as 0.5 to 2.0 by 0.25.
        drawn: A random number for each image, from 0 up to but not 1, [N].
    """
    scale_count = round((augment.scale_max - augment.scale_min) / augment.scale_step) + 1
    scales: Array = augment.scale_min + augment.scale_step * np.floor(drawn * scale_count)
    return scales


class _Windows(NamedTuple):
    """The window that is cut out of each image of a batch, [N, 2] each: height and width, top and left, ..."""

    starts: Array  # pixels of the unscaled image
    ends: Array  # likewise
    sizes: Array  # pixels of the scaled image


def _windows(crop: ImageFormat, sizes: Array, scales: Array, *, drawn_corners: Array) -> _Windows:
    """Return where each unscaled image is cut, so that the part has the size of the training crop once it is scaled.

    An example, along one side:

        image of 100 pixels, scale 2     the scaled image has 200 pixels
        crop of 50 pixels                a window has 50 pixels of the scaled image, and can start at its 0, 1, ... 150
        drawn corner 0.5                 it starts at 75, which is 37.5 in the unscaled image, and ends 25 further on

    Args:
        crop: Height and width of a training crop in pixels. A scaled image that is smaller is taken whole.
        sizes: Heights and widths of the images in pixels, [N, 2].
        scales: Factors by which the images are scaled, [N].
        drawn_corners: Random numbers from 0 up to but not 1, which choose the windows' places, [N, 2].

    Returns:
        (starts, ends, sizes). In the example 37.5, 62.5 and 50: the window starts and ends at pixels of the unscaled
        image, and has 50 pixels of the scaled image.
    """
    scaled_sizes = np.maximum(np.rint(sizes * scales[:, None]), 1)  # a side of one pixel stays one at half the size
    window_sizes = np.minimum(scaled_sizes, [crop.height, crop.width])  # a smaller image is taken whole
    start_counts = scaled_sizes - window_sizes + 1
    scaled_starts = np.floor(drawn_corners * start_counts)
    scaled_ends = scaled_starts + window_sizes
    # DALI cuts the window out of the unscaled image, and then scales it to `window_sizes`. So the places are converted
    # to pixels of the unscaled image: 75 * 100 / 200 = 37.5 in the example. Not by `scales`, as the sizes were rounded.
    starts = scaled_starts * sizes / scaled_sizes
    ends = scaled_ends * sizes / scaled_sizes
    return _Windows(starts, ends, window_sizes)


def _changes(drawn: Array, *, most: float, probability: float) -> Array:
    """Return by how much a colour property of each image is changed, [N]; 0 for an image that does not change.

    Args:
        drawn: Two random numbers from 0 to 1 for each image, [N, 2]. The first decides whether it changes, the second
            by how much.
        most: The changes lie between -`most` and `most`.
        probability: Probability of a change.
    """
    is_changed = drawn[:, 0] < probability
    change = (2 * drawn[:, 1] - 1) * most
    changes: Array = np.where(is_changed, change, 0.0)
    return changes


def synthetic(image: ImageFormat, *, batch: int, classes: int, seed: int) -> loader.Batch:
    """Return a batch of noise, to warm up on and to measure the program without its input.

    Args:
        image: Size and type of the images that the program takes.
        batch: Number of images.
        classes: Number of classes from which the pixels' labels are drawn.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    pixels = loader.noise(rng, (batch, 3, image.height, image.width), half=image.half)
    label = rng.integers(0, classes, (batch, image.height, image.width), dtype=np.uint8)
    return loader.Batch(image=pixels, label=label, valid=np.ones(batch, np.float32), ids=np.zeros(batch, np.int64))


class Pair(NamedTuple):
    """A pair as it is read."""

    image: bytes  # encoded
    label: bytes  # a greyscale PNG
    size: Size


def _decompressed(pair: Pair, rows: int) -> Array:
    """Return the first rows of a pair's image as a PNG that is not compressed, for speed.

    Args:
        pair: An image and its label, both encoded.
        rows: Number of rows that are needed.

    Returns:
        The bytes of the PNG, as uint8. A JPEG, and an interlaced or damaged PNG, are returned as they are.
    """
    return np.frombuffer(pictures.inflated(pair.image, rows), dtype=np.uint8)


def _decompressed_to_windows(pairs: list[Pair], drawn: _Drawn) -> list[Array]:
    """Return each pair's image, with a PNG decompressed as far down as the drawn window needs it.

    This is faster than DALI's decoder, and leaves out the rows below the window that augmentation cuts out.

    Args:
        pairs: Images and their labels, encoded.
        drawn: The random augmentation, which has the window of each pair.

    Returns:
        The bytes of each image as a file: of a PNG, its upper rows as a PNG without compression; a JPEG, or a PNG that
        is interlaced or damaged, whole and unchanged.
    """
    images = []
    for pair, window_end in zip(pairs, drawn.window_ends, strict=True):
        bottom, _ = window_end  # (bottom, right) in pixels of the image
        needed_rows = int(np.ceil(bottom)) + 1  # one more, as the resizing interpolates with it
        images.append(_decompressed(pair, min(needed_rows, pair.size.height)))
    return images


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
        """Read a batch of training or evaluation samples, and return the inputs of the DALI pipeline for it.

        Args:
            epoch: Number of the epoch, which the augmentation depends on.
            ids: Numbers of the samples, [N].
            valid: Which samples count, [N]; the others only fill up the last batch of an evaluation.

        Returns:
            A tuple of inputs in the order in which `_pipeline` takes them:

                1 input                            the images as files, PNGs decompressed (`_decompressed`)
                1 input                            the labels as files
                1 input if labels are renumbered   the place in the table RENUMBERED at which each sample's row begins
                1 input in an evaluation           `valid` as float32
                8 inputs in training               the fields of `_Drawn`, which say how the images are augmented

        Raises:
            RunError: A pair has a fault; the first one is named.
            OSError: A file cannot be read.
        """
        pairs = [self._read_pair(int(number)) for number in ids]
        labels = [np.frombuffer(pair.label, dtype=np.uint8) for pair in pairs]
        further_inputs: list[Array] = []
        if self._renumbered:
            further_inputs.append(self._row_starts(ids, valid))
        if self._augment is None:  # an evaluation
            all_rows = [pair.size.height for pair in pairs]
            images = [_decompressed(pair, rows) for pair, rows in zip(pairs, all_rows, strict=True)]
            further_inputs.append(valid.astype(np.float32))
        else:
            sizes = np.array([pair.size for pair in pairs])
            drawn = _draw(self._augment, self._image, sizes, seed=self._reader.seed, epoch=epoch, ids=ids)
            images = _decompressed_to_windows(pairs, drawn)
            further_inputs += drawn  # one input for each field
        return images, labels, *further_inputs

    def _row_starts(self, ids: Array, valid: Array) -> Array:
        """Return for each sample the place in the table RENUMBERED at which the sample's row begins: 0, 256 or 512.

        The table says which class each value in a label file is trained as. It has a row of 256 entries for each of
        three kinds of samples: with classes in the file (AS_IT_IS), with Cityscapes' label ids (FROM_LABEL_IDS), and
        samples that only fill up the batch (FILLED_UP). DALI has the rows end to end, as it looks values up in one
        list: the label id 7 is trained as the class at place 256 + 7.

        Args:
            ids: Numbers of the samples, [N].
            valid: Which samples count, [N]; the others fill up the batch.

        Returns:
            The places, [N] uint16.
        """
        # `self._row` has AS_IT_IS (0) or FROM_LABEL_IDS (1) for each sample of the data set. FILLED_UP is 2.
        row_numbers = np.where(valid, self._row[ids], FILLED_UP)
        row_length = RENUMBERED.shape[1]
        starts: Array = row_length * row_numbers
        return starts.astype(np.uint16)

    def _read_pair(self, number: int) -> Pair:
        """Read an image and its label, both encoded, the label as a greyscale PNG.

        Args:
            number: Which pair of the data set; counts from 0.

        Returns:
            Both files and their common size in pixels.

        Raises:
            RunError: A file is not whole or of a kind that is not taken, or a size is wrong.
        """
        (image_name, image), (label_name, label) = self._samples.encoded(number)
        size = self._checked_size(number, image, label)  # first: it refuses kinds of files that the rest does not know
        loader.require_whole(image_name, image)
        loader.require_whole(label_name, label)
        try:
            grey_label = pictures.as_grey(label)
        except ValueError as error:
            raise RunError(loader.undecodable(label_name, str(error))) from error
        return Pair(image, grey_label, size)

    def _checked_size(self, number: int, image: bytes, label: bytes) -> Size:
        """Return the size in pixels that a pair's image and label have in common.

        Args:
            number: Which pair of the data set; counts from 0.
            image: The encoded image.
            label: The encoded label.

        Raises:
            RunError: One of the two is of a kind that is not taken, their sizes differ, or a pair for evaluation has
                another size than the first one.
        """
        image_path, label_path = self._samples.paths(number)
        is_evaluation = self._augment is None
        try:
            size = pictures.image_size(str(image_path), image)
            require_one_size(image_path, size, label_path, pictures.label_size(str(label_path), label))
            if is_evaluation:
                self._require_size_of_evaluation(image_path, size)
        except ValueError as error:
            raise RunError(str(error)) from error
        return size

    def _require_size_of_evaluation(self, image_path: Path, size: Size) -> None:
        """Raise ValueError for an image of another size than the first one, which is the format of an evaluation."""
        size_of_first = Size(self._image.height, self._image.width)
        require_first_size(image_path, size, size_of_first)

    def _batch(self, outputs: Any, ids: Array) -> loader.Batch:
        """Return DALI's outputs as a batch for the program; raise RunError if a label holds a number that is not a
        class.

        Args:
            outputs: The images; for each label, its highest number plus 1; the labels; and, in an evaluation, which
                samples are valid.
            ids: Numbers of the samples, [N].

        Raises:
            RunError: A label holds a number that is not a class. The message names the file of the first such label.
        """
        images, highest_plus_1, *other_outputs = outputs
        # Plus 1, an ignored pixel's 255 is 0 in uint8, so that it is never the highest: -1 here if all are ignored.
        highest = highest_plus_1.as_array().astype(int) - 1
        for sample, highest_in_label in zip(ids, highest, strict=True):
            if highest_in_label >= self._samples.classes:
                raise RunError(no_class(self._samples, sample, highest_in_label))
        return super()._batch((images, *other_outputs), ids)  # copies the outputs to the device


def first_size(pairs: PairList) -> ImageFormat:
    """Return the size of the first image of a data set, which all images of an evaluation must have.

    Args:
        pairs: Images with their labels.

    Raises:
        ValueError: The image cannot be read, or is of a kind that is not taken.
    """
    image, _ = pairs.paths(0)
    size = image_head(image)
    return ImageFormat(height=size.height, width=size.width)
