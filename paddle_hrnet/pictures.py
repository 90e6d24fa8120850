"""The image and label files of a segmentation set: which are taken, their sizes, and labels and images made plain PNG.

An image is a PNG of 8 bits of RGB or a JPEG. A label is a PNG whose pixels are numbers: greyscale of 8 bits, or a
palette, whose colours mean nothing.
"""

import io
import struct
import zlib
from typing import NamedTuple

import numpy as np
from isal import isal_zlib
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from harness import encoded
from runlog.digits import counted

GREY, RGB, PALETTE = 0, 2, 3  # colour types of PNG
COLOUR_TYPES = {0: "greyscale", 2: "RGB", 3: "a palette", 4: "greyscale with an alpha channel", 6: "RGB with alpha"}
PNG_HEAD_BYTES = 33  # the start, and the header's chunk
PNG_HEADER = struct.Struct(">IIBB")  # width, height, bits of a channel, colour type
WHOLE_PNG_HEADER = struct.Struct(">IIBBBBB")  # the same and three methods, as _WholeHeader names them
PNG_HEADER_AT = 16
NOT_INTERLACED = (0, 0, 0)  # the methods; the first two have no other value
COLOUR_TYPE_IN_HEADER = 9  # its place in the header's 13 bytes; those of the three methods follow
ORIENTATION = 0x0112  # EXIF's tag
UPRIGHT = 1
TURNED = range(2, 9)  # EXIF's orientations that are turned or mirrored; decoders take any other value for upright
LENGTH_BYTES = 4  # of a PNG's chunk, before its kind
HEAD_BYTES = 1 << 18  # of a file, in which a JPEG states its size behind a thumbnail
FIX = "convert it or remove it from the list"


class Size(NamedTuple):
    """Size of a picture in pixels."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width} x {self.height}"


def image_size(name: str, content: bytes) -> Size:
    """Return the height and width of an image in pixels, as the first bytes of its JPEG or PNG file state them.

    Args:
        name: The file's name, for messages.
        content: The whole file, or its first HEAD_BYTES (256 KiB).

    Raises:
        ValueError: The file is neither an upright JPEG that states its size nor a PNG of 8 bits of RGB.
    """
    if content.startswith(encoded.JPEG_START):
        return _jpeg_size(name, content)
    # A file that is not a PNG raises ValueError here, such as "a.gif: is not a PNG or JPEG file: convert it or ...".
    depth, colour_type, size = _png_header(name, content, "a PNG or JPEG file")
    if (depth, colour_type) != (8, RGB):
        # For 16 bits of RGB `_is_but_must` gives "has 16 bits of RGB a pixel, must have 8".
        raise ValueError(f"{name}: {_is_but_must(depth, colour_type)} of RGB: {FIX}")
    return size


def label_size(name: str, content: bytes) -> Size:
    """Return the size of a segmentation label in pixels by the first bytes of its file.

    Args:
        name: The file's name, for messages.
        content: The whole file, or its first PNG_HEAD_BYTES (33).

    Raises:
        ValueError: It is neither a PNG of 8 bits of greyscale nor a PNG with a palette.
    """
    depth, colour_type, size = _png_header(name, content, "a PNG file, as a label must be")
    if colour_type != PALETTE and (depth, colour_type) != (8, GREY):
        raise ValueError(f"{name}: {_is_but_must(depth, colour_type)} of greyscale, or a palette: {FIX}")
    return size


def _jpeg_size(name: str, content: bytes) -> Size:
    """Return the height and width of a JPEG in pixels, and refuse one that is stored rotated or mirrored.

    A rotated image is refused because its segmentation label, a PNG without an orientation tag, might not be rotated
    with it.

    Args:
        name: The file's name, for error messages.
        content: The whole file, or its first HEAD_BYTES (256 KiB).

    Returns:
        The height and width of the picture, in pixels.

    Raises:
        ValueError: The JPEG does not state its size, Pillow cannot read its header, or its EXIF orientation is not
            upright. The message says how to fix it.
    """
    size = encoded.jpeg_size(content)
    if size is None:
        raise ValueError(f"{name}: is a JPEG file that does not state its size: replace it or remove it from the list")
    if b"Exif\0" in content[:HEAD_BYTES]:
        try:
            # Not by Image.open, which refuses more than 179 million pixels: DALI takes them.
            with JpegImagePlugin.JpegImageFile(io.BytesIO(content)) as opened:
                orientation = opened.getexif().get(ORIENTATION, UPRIGHT)
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{name}: is a JPEG file whose head cannot be read: {FIX}") from error
        if orientation in TURNED:  # the label, a PNG without EXIF, need not be turned in the same way
            raise ValueError(
                f"{name}: is stored turned (EXIF orientation {orientation}), so that its label may lie otherwise: turn "
                "it upright and remove the tag, or remove it from the list"
            )
    return Size(*size)


class _Header(NamedTuple):
    """The fields of a PNG's header."""

    depth: int  # bits of a channel
    colour_type: int
    size: Size


def _png_header(name: str, content: bytes, expected: str) -> _Header:
    """Return the fields of a PNG's header: bits of a channel, colour type and size.

    Args:
        name: The file's name, for messages.
        content: The whole file, or its first PNG_HEAD_BYTES (33) or more.
        expected: Words for what the file should be, for the error, such as "a PNG or JPEG file".

    Raises:
        ValueError: The file is not a PNG.
    """
    if not content.startswith(encoded.PNG_START) or len(content) < PNG_HEAD_BYTES:
        raise ValueError(f"{name}: is not {expected}: {FIX}")
    width, height, depth, colour_type = PNG_HEADER.unpack_from(content, PNG_HEADER_AT)
    return _Header(depth, colour_type, Size(height, width))


def _is_but_must(depth: int, colour_type: int) -> str:
    """Return the beginning of a message on a PNG whose pixels are of a wrong kind: what they are, and must be.

    Args:
        depth: Bits of a channel.
        colour_type: Number of the colour type in PNG, such as 2 for RGB.

    Returns:
        Words such as "has 16 bits of RGB a pixel, must have 8", which the caller completes.
    """
    return f"has {counted(depth, 'bit')} of {COLOUR_TYPES.get(colour_type, colour_type)} a pixel, must have 8"


# ---- files made plain for the decoder


class _WholeHeader(NamedTuple):
    """All fields of a PNG's header, in its order."""

    width: int
    height: int
    depth: int  # bits of a channel
    colour_type: int
    compression: int
    filtering: int
    interlacing: int


def as_grey(content: bytes) -> bytes:
    """Return the PNG of a segmentation label as a greyscale PNG, whose grey values are the pixels' labels.

    In a PNG with a palette the labels are the indices into the palette. DALI's decoder would return the colours.

        no palette:                       the file is returned as it is
        a palette, 8 bits a pixel:        it gets another header and no palette; its pixels need not be decoded
        a palette, 1, 2 or 4 bits:        Pillow decodes the indices, and they are written with 8 bits

    Args:
        content: A label file that `label_size` takes.

    Raises:
        ValueError: The file is damaged: a checksum of a palette PNG of 8 bits is wrong, or Pillow cannot decode one of
            fewer bits.
    """
    width, height, depth, colour_type = PNG_HEADER.unpack_from(content, PNG_HEADER_AT)
    if colour_type != PALETTE:
        return content
    if depth != 8:
        return _grey_by_pillow(content, width, height)
    return _grey_by_header(content)


def _grey_by_header(content: bytes) -> bytes:
    """Return a palette PNG of 8 bits as a greyscale PNG whose grey values are the indices into the palette.

    A byte of the pixels is an index in the one kind of PNG, and a grey value in the other. So the compressed pixels
    stay as they are, and the header gets another colour type. Palette, transparency and all other chunks are left out.

    Args:
        content: The whole file.

    Raises:
        ValueError: The checksum of a chunk is wrong. It is checked because the new chunks get checksums of their own.
    """
    grey = bytearray(encoded.PNG_START)
    for chunk in encoded.png_chunks(content):
        body = content[chunk.body_start : chunk.body_end]
        # A chunk is length, kind, body, checksum. Its checksum is right if a chunk of the same kind and body has it.
        kind_body_checksum = content[chunk.kind_start : chunk.end]
        if kind_body_checksum != _chunk(chunk.kind, body)[LENGTH_BYTES:]:
            raise ValueError(f"it is damaged: the checksum at its byte {chunk.body_end} is wrong")
        if chunk.kind == b"IHDR":
            body = body[:COLOUR_TYPE_IN_HEADER] + bytes([GREY]) + body[COLOUR_TYPE_IN_HEADER + 1 :]
        if chunk.kind in (b"IHDR", b"IDAT", b"IEND"):
            grey += _chunk(chunk.kind, body)
    return bytes(grey)


def _grey_by_pillow(content: bytes, width: int, height: int) -> bytes:
    """Return a palette PNG of 1, 2 or 4 bits as a greyscale PNG whose grey values are the indices into the palette.

    Pillow decodes it. The new PNG has 8 bits a pixel, and is not compressed.

    Args:
        content: The whole file.
        width: Width in pixels.
        height: Height in pixels.

    Raises:
        ValueError: Pillow cannot decode it.
    """
    try:
        with Image.open(io.BytesIO(content)) as opened:
            indices = np.asarray(opened, dtype=np.uint8)
    except UnidentifiedImageError as error:  # its text names an object in memory
        raise ValueError("its head is damaged") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    no_filter = 0
    rows = np.insert(indices, 0, no_filter, axis=1)  # PNG has the number of a filter before each row
    header = WHOLE_PNG_HEADER.pack(width, height, 8, GREY, *NOT_INTERLACED)
    return _png(header, rows.tobytes())  # stores the rows without compression


def inflated(content: bytes, rows: int) -> bytes:
    """Return the first rows of a PNG in RGB as an uncompressed PNG.

    They are decompressed here, by ISA-L, because it takes a third of the time that DALI's decoder takes for that.

    Args:
        content: A whole file that `image_size` takes.
        rows: Number of rows that are needed; at most the image's height.

    Returns:
        The uncompressed PNG. A JPEG, an interlaced PNG or a damaged one is returned as it is: DALI decodes it, or says
        what is wrong.
    """
    if not content.startswith(encoded.PNG_START):
        return content
    header = _WholeHeader(*WHOLE_PNG_HEADER.unpack_from(content, PNG_HEADER_AT))
    methods = (header.compression, header.filtering, header.interlacing)
    if methods != NOT_INTERLACED:  # or of a method that PNG does not have
        return content
    pixels = _first_rows(content, rows, header.width)
    if pixels is None:  # damaged
        return content
    header_of_rows = header._replace(height=rows)
    return _png(WHOLE_PNG_HEADER.pack(*header_of_rows), pixels)


def _first_rows(content: bytes, rows: int, width: int) -> bytes | None:
    """Decompress the first rows of a PNG in RGB.

    Args:
        content: The whole file.
        rows: Number of rows.
        width: Width of the image in pixels.

    Returns:
        For each row, as in the file, a byte that names the row's filter and then three bytes for each pixel. None if
        the file is damaged.
    """
    compressed = _image_data(content)
    if compressed is None:  # a checksum is wrong
        return None
    bytes_of_rows = rows * (1 + 3 * width)
    try:
        decompressed: bytes = isal_zlib.decompressobj().decompress(compressed, bytes_of_rows)  # no more than these
    except isal_zlib.error:  # type: ignore[misc]
        return None
    is_whole = len(decompressed) >= bytes_of_rows
    return decompressed if is_whole else None


def _image_data(content: bytes) -> bytes | None:
    """Return the compressed pixels of a PNG, joined from its IDAT chunks.

    Args:
        content: The whole file.

    Returns:
        The pixels; None if a checksum is wrong.
    """
    parts = []
    view = memoryview(content)  # of which a slice copies nothing
    for chunk in encoded.png_chunks(content):
        if chunk.kind == b"IDAT":
            checksum = struct.pack(">I", isal_zlib.crc32(view[chunk.kind_start : chunk.body_end]))
            if content[chunk.body_end : chunk.end] != checksum:
                return None
            parts.append(view[chunk.body_start : chunk.body_end])
    return b"".join(parts)


def _png(header: bytes, pixels: bytes) -> bytes:
    """Return a PNG that is not compressed.

    Args:
        header: Content of its header: width, height, bits, colour type and three methods, 13 bytes.
        pixels: Its rows, each with a byte before it that names the row's filter.
    """
    return (
        encoded.PNG_START + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(pixels, 0)) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    """Make a chunk of a PNG."""
    checksum = isal_zlib.crc32(content, isal_zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
