"""Cityscapes' layout read by DALI: images in `leftImg8bit/`, labels in `gtFine/`, PNG files of one size a pair.

Image and label take one geometry, drawn from `harness.sampling`: scaled, cropped (padded on the right and below where
the scaled image is smaller) and flipped together, the image linearly, the label by nearest neighbour. Only the part of
the image that the crop shows is scaled. Brightness, contrast, saturation and hue are turned by DALI's `color_twist` in
this order about mid-grey, where PaddleSeg shuffles the order and turns contrast about the image's mean.

Images leave the pipeline as [N, 3, H, W], float32, normalized; labels as [N, H, W], uint8, 255 where ignored.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali import math as dali

from harness import loader, sampling
from harness.loader import ReaderConfig
from paddle_hrnet.config import IGNORED, Augmentation
from runlog.errors import RunError

MEAN = STD = 127.5  # of every channel, as PaddleSeg normalizes
IMAGE_END, LABEL_END, LABEL_IDS_END = "_leftImg8bit.png", "_gtFine_labelTrainIds.png", "_gtFine_labelIds.png"
LISTS = ("{}.txt", "{}.list", "{}_list.txt")  # names that PaddleSeg's tools and tutorials give them

# Cityscapes' label ids that are trained on, in order of their train ids (cityscapesScripts, labels.py).
TRAINED_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LABEL_IDS = 34
OUT_OF_RANGE = 254
# A pixel's number in the file to the one that is trained on, by row: as it is, from label ids, of a filled-up sample.
RENUMBERED = np.array([np.arange(256), np.full(256, OUT_OF_RANGE), np.full(256, IGNORED)], dtype=np.uint8)
AS_IT_IS, FROM_LABEL_IDS, FILLED_UP = range(3)
RENUMBERED[FROM_LABEL_IDS, :LABEL_IDS] = RENUMBERED[FROM_LABEL_IDS, 255] = IGNORED
RENUMBERED[FROM_LABEL_IDS, list(TRAINED_IDS)] = np.arange(len(TRAINED_IDS))

PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
GREY, RGB = 0, 2  # colour types of PNG
COLOUR_TYPES = {0: "greyscale", 2: "RGB", 3: "a palette", 4: "greyscale with an alpha channel", 6: "RGB with alpha"}


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """What the program wants to be fed."""

    height: int  # pixels
    width: int
    half: bool = False  # float16 in place of float32


@dataclass(frozen=True, kw_only=True)
class PairList:
    """Images with their labels, numbered from 0."""

    root: Path
    pairs: tuple[tuple[str, str], ...]  # image and label, relative to root
    classes: int
    form: str = "files"

    def __len__(self) -> int:
        return len(self.pairs)

    def paths(self, number: int) -> tuple[Path, Path]:
        """Image and label of this pair."""
        image, label = self.pairs[number]
        return self.root / image, self.root / label

    def named(self, ids: np.ndarray) -> Iterator[tuple[str, Path]]:
        """Name and file of these samples."""
        return ((os.fspath(path), path) for i in ids for path in self.paths(i))


def find(root: Path, part: str, classes: int) -> PairList:
    """Pairs of `part` (train or val): those of its list file, or without one all in Cityscapes' folders.

    Raises ValueError where the folder or the list is absent or empty; a line has not two paths; a file is absent. The
    message names the line.
    """
    lists = [file for name in LISTS if (file := root / name.format(part)).is_file()]
    folders, pairs = loader.Folders(root), []
    for where, image, label in _listed(lists[0]) if lists else _found(root, part):
        if label.endswith(LABEL_END) and not folders.has(label):
            other = label.removesuffix(LABEL_END) + LABEL_IDS_END
            label = other if folders.has(other) else label
        for path in (image, label):
            if not folders.has(path):
                raise ValueError(f"{where}: {root / path} is absent: restore it or remove it from the list")
        pairs.append((image, label))
    return PairList(root=root, pairs=tuple(pairs), classes=classes)


def _listed(list_file: Path) -> Iterator[tuple[str, str, str]]:
    for where, line in loader.listed(list_file):
        paths = line.split()
        if len(paths) != 2:
            raise ValueError(f"{where}: {line!r} has not two paths: write 'image label', without blanks in them")
        yield where, paths[0], paths[1]


def _found(root: Path, part: str) -> Iterator[tuple[str, str, str]]:
    folder = root / "leftImg8bit" / part
    images = sorted(folder.glob(f"*/*{IMAGE_END}"))
    if not images:
        raise ValueError(
            f"{root}: has neither {LISTS[0].format(part)} nor images {folder}/*/*{IMAGE_END}: "
            "set DATADIR to a folder in Cityscapes' layout"
        )
    for image in images:
        label = f"gtFine/{part}/{image.parent.name}/{image.name.removesuffix(IMAGE_END)}{LABEL_END}"
        yield str(image), str(image.relative_to(root)), label


def png_size(path: Path, content: bytes, colour_type: int) -> tuple[int, int]:
    """(height, width) in pixels of a whole PNG file of 8 bits and this colour type.

    Raises RunError where it is none, or has another colour type.
    """
    fix = "convert it or remove it from the list"
    if not content.startswith(PNG_START) or len(content) < 33:
        raise RunError(f"{path}: is no PNG file: {fix}")
    if PNG_END not in content[-64:]:
        raise RunError(f"{path}: is truncated ({len(content)} bytes): replace it or remove it from the list")
    width, height, depth, found = struct.unpack(">IIBB", content[16:26])
    if (depth, found) != (8, colour_type):
        is_now, wanted = COLOUR_TYPES.get(found, found), COLOUR_TYPES[colour_type]
        raise RunError(f"{path}: has {depth} bits of {is_now} a pixel, must have 8 of {wanted}: {fix}")
    return height, width


def inflated(content: bytes, rows: int) -> bytes:
    """The first `rows` rows of a PNG file in RGB as a PNG file of stored blocks: filtered as they were, not compressed.

    ISA-L inflates in a third of the time that DALI's zlib takes, which then only copies. A file that is damaged or
    interlaced stays as it is: DALI says what is wrong with it.
    """
    parts, at, view = [], len(PNG_START), memoryview(content)
    while at + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, at)
        end = at + 8 + size
        if content[at + 4 : at + 8] == b"IDAT":
            if content[end : end + 4] != struct.pack(">I", isal_zlib.crc32(view[at + 4 : end])):
                return content
            parts.append(view[at + 8 : end])
        at = end + 4
    wanted = rows * (1 + 3 * int.from_bytes(content[16:20], "big"))  # the width; a byte a row names its filter
    try:
        pixels = isal_zlib.decompressobj().decompress(b"".join(parts), wanted)
    except isal_zlib.error:  # type: ignore[misc]
        return content
    if len(pixels) < wanted or any(content[26:29]):  # methods of compression, filters and interlacing
        return content
    header = content[16:20] + struct.pack(">I", rows) + content[24:29]
    return PNG_START + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(pixels, 0)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    total = isal_zlib.crc32(content, isal_zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", total)


@pipeline_def
def _pipeline(*, source: Any, device: str, image: ImageFormat, augmented: bool, renumbered: bool) -> Any:
    """Encoded pairs to normalized images and labels, `augmented` for training; labels take their way on the CPU.

    Of the labels also the highest number but IGNORED, plus 1, on the CPU: the host sees whether all are classes without
    waiting for a GPU. Not `augmented`, the last output is what is valid.
    """
    drawn = [(types.FLOAT, 1)] * 3 + [(types.INT32, 0)] + [(types.FLOAT, 0)] * 4
    inputs = [(types.UINT8, 1)] * 2 + [(types.UINT16, 0)] * renumbered + (drawn if augmented else [(types.FLOAT, 0)])
    data = loader.inputs(source, inputs)
    rest = data[2 + renumbered :]
    images = fn.decoders.image(data[0], device="mixed" if device == "gpu" else "cpu", output_type=types.RGB)
    labels = fn.decoders.image(data[1], device="cpu", output_type=types.GRAY)
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
    if renumbered:
        numbers = labels + data[2]
        labels = fn.lookup_table(
            numbers, keys=list(range(RENUMBERED.size)), values=RENUMBERED.ravel().tolist(), dtype=types.UINT8
        )
    highest = fn.reductions.max(labels + types.Constant(1, dtype=types.UINT8))  # IGNORED, the last of them, becomes 0
    beside = [fn.squeeze(labels, axes=[2]), *(() if augmented else rest)]
    return images, highest, *(output.gpu() if device == "gpu" else output for output in beside)


def _draw(
    augment: Augmentation, crop: ImageFormat, sizes: np.ndarray, *, seed: int, epoch: int, ids: np.ndarray
) -> list[np.ndarray]:
    """Window in the image (start and end [N, 2], pixels), its size in the crop [N, 2], flip [N], colours 4 x [N].

    `sizes` [N, 2] are the images' heights and widths.
    """
    u = sampling.uniform(seed, epoch, ids, 12)
    steps = round((augment.scale_max - augment.scale_min) / augment.scale_step) + 1
    scale = augment.scale_min + augment.scale_step * np.floor(u[:, :1] * steps)
    scaled = np.rint(sizes * scale)
    wanted = np.array([crop.height, crop.width])
    shown = np.minimum(scaled, wanted)
    first = np.floor(u[:, 1:3] * (scaled - shown + 1))
    start, end = first * sizes / scaled, (first + shown) * sizes / scaled

    def turned(column: int, share: float) -> np.ndarray:
        """A number within +- share, or 0 where this colour stays."""
        return np.where(u[:, column] < augment.colour_probability, (2 * u[:, column + 1] - 1) * share, 0.0)

    c = augment.colour
    colours = [1.0 + turned(4, c), 1.0 + turned(6, c), 1.0 + turned(8, c), turned(10, augment.hue_degrees)]
    flip = (u[:, 3] < augment.flip).astype(np.int32)
    return [a.astype(np.float32) for a in (start, end, shown)] + [flip] + [a.astype(np.float32) for a in colours]


def synthetic(image: ImageFormat, *, batch: int, classes: int, seed: int) -> loader.Batch:
    """A batch of noise, to warm up on and to measure the program without its input."""
    rng = np.random.default_rng(seed)
    pixels = loader.noise(rng, (batch, 3, image.height, image.width), half=image.half)
    label = rng.integers(0, classes, (batch, image.height, image.width), dtype=np.uint8)
    return loader.Batch(image=pixels, label=label, valid=np.ones(batch, np.float32), ids=np.zeros(batch, np.int64))


class Loader(loader.Loader):
    """Batches of `plan`: image [N, 3, H, W], label [N, H, W] uint8, valid [N].

    With `augment` crops of the reader's size for training; without, whole images of that size.
    """

    def __init__(
        self, pairs: PairList, plan: sampling.Plan, reader: ReaderConfig, *, augment: Augmentation | None = None
    ) -> None:
        self._augment, self._image = augment, reader.image
        from_ids = np.array([label.endswith(LABEL_IDS_END) for _, label in pairs.pairs])
        self._row = np.where(from_ids, FROM_LABEL_IDS, AS_IT_IS)  # of RENUMBERED, for each label
        self._renumbered = augment is None or bool(from_ids.any())
        super().__init__(pairs, plan, _pipeline, reader, augmented=augment is not None, renumbered=self._renumbered)

    def _read(self, epoch: int, ids: np.ndarray, valid: np.ndarray) -> tuple[Any, ...]:
        images, labels, sizes = [], [], []
        for i in ids:
            (image_path, image), (label_path, label) = ((path, path.read_bytes()) for path in self._samples.paths(i))
            size, label_size = png_size(image_path, image, RGB), png_size(label_path, label, GREY)
            if size != label_size:
                raise RunError(
                    f"{label_path}: is {label_size[1]} x {label_size[0]} pixels but its image {size[1]} x {size[0]}: "
                    "replace one of them or remove the pair from the list"
                )
            if self._augment is None and size != (self._image.height, self._image.width):
                first = f"{self._image.width} x {self._image.height}: evaluation takes images of one size"
                raise RunError(f"{image_path}: is {size[1]} x {size[0]} pixels but the first evaluation image {first}")
            images.append(image)
            labels.append(np.frombuffer(label, dtype=np.uint8))
            sizes.append(size)
        rows, drawn = [height for height, _ in sizes], [valid.astype(np.float32)]
        if self._augment is not None:
            drawn = _draw(self._augment, self._image, np.array(sizes), seed=self._reader.seed, epoch=epoch, ids=ids)
            # Down to the window's end, and one more to interpolate with.
            rows = [min(height, math.ceil(end) + 1) for height, end in zip(rows, drawn[1][:, 0], strict=True)]
        plain = [inflated(image, count) for image, count in zip(images, rows, strict=True)]
        if self._renumbered:
            drawn.insert(0, (RENUMBERED.shape[1] * np.where(valid, self._row[ids], FILLED_UP)).astype(np.uint16))
        return [np.frombuffer(image, dtype=np.uint8) for image in plain], labels, *drawn

    def _batch(self, outputs: Any, ids: np.ndarray) -> loader.Batch:
        images, highest, *beside = outputs
        classes = self._samples.classes
        for i, value in zip(ids, highest.as_array().astype(int) - 1, strict=True):
            if value >= classes:
                shown = f"above {LABEL_IDS - 1}" if self._row[i] == FROM_LABEL_IDS else f"{value}"
                raise RunError(
                    f"{self._samples.paths(i)[1]}: holds the label {shown}, no class ({classes} of them) nor "
                    f"{IGNORED}: correct the file, remove it from the list, or choose another RECIPE"
                )
        return super()._batch((images, *beside), ids)


def first_size(pairs: PairList) -> ImageFormat:
    """Size of the first image: that of all of an evaluation. Raises ValueError where it cannot be read."""
    path, _ = pairs.paths(0)
    try:
        height, width = png_size(path, path.read_bytes(), RGB)
    except (OSError, RunError) as error:
        raise ValueError(str(error)) from error
    return ImageFormat(height=height, width=width)
