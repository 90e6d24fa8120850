"""Finds the size of the largest image of a part, and keeps it in `<part>.sizes.json`: `tools.pack --sizes`."""

import io
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin
from rich import progress

from harness import encoded
from paddle_rn50 import data, folder, recordio
from paddle_rn50.records import Records
from program.arrays import Array
from runlog import named_files
from runlog.json_types import JsonObject

AT_ONCE, READERS = 64, 16  # samples read together, and by how many threads: a network disk answers each late


def read_sizes(sizes: Path) -> JsonObject:
    """Return the content of a file of sizes, `<part>.sizes.json`; an empty dict if there is no file.

    Args:
        sizes: Path of the file. It has the "width" and "height" of a part's largest image, among others.

    Raises:
        ValueError: The file is damaged.
    """
    if not sizes.exists():
        return {}
    try:
        return dict(json.loads(sizes.read_bytes()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{sizes}: is damaged: remove it, then tools.pack --sizes writes it") from error


def size_of(name: str, content: bytes) -> folder.Size:
    """Return the (width, height) of an image in pixels, by the header of its file.

    DALI takes a JPEG, PNG or WebP (not extended) of any number of pixels, but Pillow's `Image.open` takes at most 179
    million. So a JPEG is read by `encoded.jpeg_size`, and a PNG by Pillow's class for PNG, which has no limit.
    `Image.open` reads all others, and a JPEG without a size in its header. If it refuses an image as too large,
    `encoded.webp_size` tries it as a WebP.

    Args:
        name: Name of the image file, for the message.
        content: Bytes of the file.

    Raises:
        ValueError: The file is not an image, or it is above Pillow's limit and `encoded` cannot read it either.
    """
    is_jpeg = content.startswith(encoded.JPEG_START)
    is_png = content.startswith(encoded.PNG_START)
    try:
        jpeg_size = encoded.jpeg_size(content) if is_jpeg else None  # None if the header has no size
        if jpeg_size is not None:
            height, width = jpeg_size  # `encoded` has the height first, this function the width
            return width, height
        # Above its limit `Image.open` raises a DecompressionBombError; `PngImageFile` has no limit.
        open_image = PngImagePlugin.PngImageFile if is_png else Image.open
        with open_image(io.BytesIO(content)) as opened:
            size: folder.Size = opened.size
            return size
    except Image.DecompressionBombError as error:
        webp_size = encoded.webp_size(content)  # None if the file is not a WebP that DALI takes
        if webp_size is None:
            raise ValueError(f"{name}: {error} Make it smaller or remove it from the list") from error
        fault = encoded.fault(content)  # as that it is truncated, which Pillow has not looked at yet
        if fault:
            remedy = "replace the file or remove it from the list"
            raise ValueError(f"{name}: is not an image ({fault}): {remedy}") from error
        height, width = webp_size  # the height first here, too
        return width, height
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name}: is not an image: replace the file or remove it from the list") from error


def _size_of_sample(images: folder.ImageList | Records, number: int) -> folder.Size:
    """Return the width and height of one sample of a data set in pixels.

    Args:
        images: Image files or packed records.
        number: Number of the sample, from 0.

    Raises:
        ValueError: Its file is not an image.
        RunError: The packed record is damaged.
    """
    [(name, content)] = images.encoded(number)
    return size_of(name, content)


def _pixels(size: folder.Size) -> int:
    """Return the number of pixels of an image of this width and height."""
    width, height = size
    return width * height


def write_sizes(file: Path, sizes: Sequence[folder.Size], more: JsonObject) -> None:
    """Write a file of sizes: the width and height of the largest image, the number of images, and more.

    Args:
        file: The file, `<part>.sizes.json`.
        sizes: Width and height of each image in pixels; at least one.
        more: What else to write. It may be the content of an earlier file of sizes, whose own numbers are replaced.
    """
    width, height = max(sizes, key=_pixels)
    content = more | {"width": width, "height": height, "images": len(sizes)}
    file.write_text(json.dumps(content) + "\n")


def find_sizes(source: Path, part: str) -> str:
    """Write the width and height of a part's largest image to `<part>.sizes.json`; return the file's path and content.

    Args:
        source: Folder of the data set, packed or not. The file is written there.
        part: "train" or "val".

    Returns:
        One line to print, such as `data/train.sizes.json: {"width": 500, "height": 375, "images": 1000}`.

    Raises:
        ValueError: The file is damaged, or the images cannot be found or read.
        RunError: A packed record is damaged.
        OSError: The file cannot be written.
    """
    file = source / data.SIZES.format(part)
    earlier_content = read_sizes(file)  # first, so that a damaged file is reported before all images are read
    # The number of classes is not known here. With MAX_CLASSES every label that a record can hold is accepted.
    images = data.find(source, part, recordio.MAX_CLASSES)
    _raise_unless_writable(file)  # reading all images may take hours
    sizes = _sizes_of_images(images, part)
    # Writes the largest size and the number of images, and keeps what else the earlier file had.
    write_sizes(file, sizes, earlier_content)
    return f"{file}: {file.read_text().strip()}"


def _raise_unless_writable(file: Path) -> None:
    """Raise an error unless a file can be written; neither the file nor its folder is changed.

    Args:
        file: The file, which need not exist.

    Raises:
        OSError: The file cannot be written. The error has its name.
    """
    if file.exists():
        file.open("r+b").close()
        return
    refusal = named_files.refusal_of_new_file(file.parent)
    if refusal:
        refusal.filename = file
        raise refusal


def _sizes_of_images(images: folder.ImageList | Records, part: str) -> list[folder.Size]:
    """Return the width and height of each image of a part in pixels, by the images' headers.

    Args:
        images: Image files or packed records.
        part: "train" or "val", for the progress that a terminal shows.

    Raises:
        ValueError: A file is not an image.
        RunError: A packed record is damaged.
    """
    sizes: list[folder.Size] = []
    with ThreadPoolExecutor(READERS) as readers:
        for ids in batches_with_progress(f"sizes {part}", len(images)):
            sizes += readers.map(lambda number: _size_of_sample(images, int(number)), ids)
    return sizes


def batches_with_progress(what: str, total: int, *, done: int = 0) -> Iterator[Array]:
    """Yield sample numbers in batches of AT_ONCE, and show a progress bar if stdout is a terminal.

    Args:
        what: Title of the progress bar.
        total: Number of all samples.
        done: The first number to yield; the samples before it are done already.

    Yields:
        Arrays of consecutive numbers. The last one may be shorter.
    """
    is_on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed, for example by `>&-`
    for start in progress.track(range(done, total, AT_ONCE), what, disable=not is_on_terminal):
        yield np.arange(start, min(start + AT_ONCE, total))
