"""Tells a whole encoded image from one that was cut off, by its structure and without decoding it.

A decoder makes up what a truncated JPEG does not hold: DALI warns and repeats the last row it has. So the end of each
file is looked at before it is decoded, by the one function `fault`, in training, evaluation, the doctor and the packer.
It does not tell a JPEG that was cut and then closed with an end marker, which Pillow takes too, nor bytes of something
else within the data of a baseline JPEG.
"""

import io
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image, PpmImagePlugin, TiffImagePlugin, UnidentifiedImageError

TRUNCATED = "it is truncated"

RARER_KINDS = ("BMP", "PPM", "TIFF", "JPEG2000")  # Pillow's names of the kinds that DALI knows, but for those below

JPEG_START = b"\xff\xd8"
JPEG_END = b"\xff\xd9"
START_OF_IMAGE = 0xD8
END_OF_IMAGE = 0xD9
START_OF_SCAN = 0xDA
JPEG_LS_FRAME = 0xF7
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15; the three others are tables
SINGLE_SCAN_FRAMES = frozenset((0xC0, 0xC1, 0xC3, 0xC9, 0xCB))  # baseline, extended, lossless: all but progressive
# A marker with a meaning of its own: not a stuffed byte (00), a restart (D0 to D7), a fill byte (FF) or TEM (01).
JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
# The kinds that libjpeg's `read_markers` reads or skips: frames, tables, scans, DNL, restart intervals, APP0 to APP15,
# comments, and the two markers without a length.
KNOWN_KINDS = FRAMES | {0xC4, 0xCC, *range(0xD8, 0xDE), *range(0xE0, 0xF0), 0xFE}
JPEG_BITS = 8  # a channel: all that DALI and Pillow decode
JPEG_TAIL = 64  # bytes at the end in which most files have their end marker

PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_CHUNK_EXTRA = 12  # bytes of a chunk that are not its content: length, kind and checksum

MIN_SEGMENT = 4  # bytes of a JPEG's segment: marker and length
ADOBE_SEGMENT = 0xEE  # APP14
CMYK_CHANNELS = 4
CHANNELS_IN_FRAME = 9  # where a frame says how many channels it has, from the start of its marker
BITS_IN_FRAME = 4  # where a frame says its bits a channel, from the start of its marker
MIN_FRAME = 10  # bytes of a JPEG's frame: marker, length, bits, height, width, channels
WEBP_HEAD = 12  # bytes: RIFF, length, WEBP
WEBP_LEAST = 30  # bytes up to the end of the longest field of its size
WEBP_SIDE = (1 << 14) - 1  # the bits of a side
VP8L_START, VP8_START = b"\x2f", b"\x9d\x01\x2a"  # stand before the sides in these chunks


TIFF_COLOURS, TIFF_COMPRESSION = 262, 259  # tags
TIFF_JPEG = (6, 7)  # compressions
WHITE_IS_ZERO, YCBCR = 0, 6
MISTAKEN_TIFF_COLOURS = {WHITE_IS_ZERO: "grey whose 0 is white", 5: "CMYK", YCBCR: "YCbCr", 8: "Lab"}


class Segment(NamedTuple):
    """A segment of a JPEG."""

    kind: int  # second byte of its marker
    start: int  # position of its marker
    end: int  # position behind it, by its length: may be beyond the file


def fault(content: bytes) -> str:
    """Return why some bytes are not a whole image of a supported kind, such as "it is truncated: ..."; empty if no
    fault is found.

    JPEG, PNG and WebP are checked by their structure, which takes no decoding. A file of any other kind is decoded by
    Pillow if DALI knows its kind. Of other kinds no fault is reported, because DALI does that.

    Args:
        content: All bytes of the file.
    """
    if not content:
        return "it is empty"
    if content.startswith(JPEG_START):
        return _jpeg_fault(content)
    if content.startswith(PNG_START):
        return _png_fault(content)
    if _is_webp(content):
        return _webp_fault(content)
    return _fault_by_decoding(content)


def _jpeg_fault(content: bytes) -> str:
    """Return why a JPEG is not whole, or is of a kind that is not decoded; an empty text if no fault is found.

    A whole JPEG has, among other segments, a frame, which tells the kind of JPEG; then one scan or several, each with
    pixels behind it; and an end marker. A missing frame is left to the decoder.

    Args:
        content: All bytes of the file, which begin with a JPEG's start marker.
    """
    has_single_scan = False  # as its frame tells
    scan_has_begun = False
    for segment in _segments(content):
        if segment.kind == END_OF_IMAGE:
            return "" if scan_has_begun else "it ends before its picture begins"
        fault = _segment_fault(segment, content, scan_has_begun)
        if fault:
            return fault
        if segment.kind in FRAMES:
            has_single_scan = segment.kind in SINGLE_SCAN_FRAMES
        if segment.kind == START_OF_SCAN:
            scan_has_begun = True
            # A shortcut, as the loop takes long to search all pixels for the next segment. If a file of a single scan
            # ends with the end marker, nothing of it is missing. Otherwise the loop searches the pixels after all.
            if has_single_scan and _ends_with_marker(content, segment.end):
                return ""
    return f"{TRUNCATED}: no end marker follows its data"


def _segment_fault(segment: Segment, content: bytes, scan_has_begun: bool) -> str:
    """Return why a segment of a JPEG is damaged, cut off or not supported; an empty text if it is not.

    The kind is judged first, as the length means nothing in a segment of no kind; then the length; then the content.

    Args:
        segment: Kind and place of the segment, which lies behind the file's first start marker.
        content: All bytes of the JPEG.
        scan_has_begun: Whether a scan, and so pixels, came before the segment.
    """
    if segment.kind == START_OF_IMAGE:  # a second one, as the first lies before all segments
        return f"{TRUNCATED}: another picture begins at byte {segment.start}, before its end marker"
    if segment.kind == JPEG_LS_FRAME and not scan_has_begun:
        return "it is a JPEG-LS, which is not supported"
    if segment.kind not in KNOWN_KINDS:  # nor is FF F7 of JPEG-LS: behind a scan's start it is damaged pixels
        return f"it is damaged: FF {segment.kind:02X} at byte {segment.start} is not a marker"
    if segment.end > len(content):
        return f"{TRUNCATED}: its segment at byte {segment.start} goes beyond its end"
    if segment.end < segment.start + MIN_SEGMENT:
        return f"its segment at byte {segment.start} has no length"
    if segment.kind in FRAMES:
        return _frame_fault(segment, content)
    return ""


def _frame_fault(frame: Segment, content: bytes) -> str:
    """Return a message that a JPEG's frame lacks the picture's size, or has other than 8 bits a channel; empty if it is
    in order.

    Args:
        frame: Kind and place of the frame's segment.
        content: All bytes of the JPEG.
    """
    if frame.end < frame.start + MIN_FRAME:
        return f"its segment at byte {frame.start} has no size of the picture"
    bits = content[frame.start + BITS_IN_FRAME]
    if bits != JPEG_BITS:
        return f"it has {bits} bits a channel, not {JPEG_BITS}"
    return ""


def _ends_with_marker(content: bytes, scan_start: int) -> bool:
    """Return whether an end marker lies among the last JPEG_TAIL bytes of a JPEG with only one scan.

    Only these bytes are searched, because to search the whole scan takes 20 times as long. The price is that a picture
    that was cut off passes if another picture follows it in the file: the end marker is then the other's.

    Args:
        content: All bytes of the JPEG.
        scan_start: Where the pixels of its only scan begin; no earlier byte is looked at.
    """
    # Among pixels FF is followed by 00 or the kind of a restart, so pixels are not mistaken for an end marker.
    tail_start = max(scan_start, len(content) - JPEG_TAIL)
    return content.rfind(JPEG_END, tail_start) >= 0


def _segments(content: bytes) -> Iterator[Segment]:
    """Yield the segments of a JPEG behind its start marker, until no further marker follows.

    A segment is a marker (the byte FF and a byte for its kind), two bytes of length, and its content. A picture's start
    and its end are markers alone. The pixels behind a scan's segment are passed over.

    Args:
        content: All bytes of the JPEG.

    Yields:
        Kind and place of each segment. Its end may lie beyond a file that was cut off.
    """
    # Among pixels FF is followed by 00 or the kind of a restart, which JPEG_MARKER does not match.
    marker = JPEG_MARKER.search(content, len(JPEG_START))
    while marker is not None:
        start = marker.start()
        kind = content[start + 1]
        behind_marker = start + 2
        is_marker_alone = kind in (START_OF_IMAGE, END_OF_IMAGE)
        end = behind_marker if is_marker_alone else behind_marker + _segment_length(content, behind_marker)
        yield Segment(kind, start, end)
        marker = JPEG_MARKER.search(content, end)


def _segment_length(content: bytes, start: int) -> int:
    """Return the length of a JPEG's segment without its marker, in bytes, which the segment's first two bytes hold.

    Args:
        content: All bytes of the JPEG.
        start: Place of the two bytes, which are a part of the length.
    """
    length_bytes = content[start : start + 2]  # as 00 10 of a segment of 16 bytes
    is_cut_off = len(length_bytes) < 2  # the file ends here
    if is_cut_off:
        return MIN_SEGMENT  # puts the segment's end beyond the file's, which `_segment_fault` reports
    return int.from_bytes(length_bytes, "big")


def jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a JPEG in pixels, by its frame; None if no frame with a size comes before its pixels.

    Args:
        content: The bytes of the JPEG; its beginning up to the frame is enough.
    """
    for segment in _segments(content):
        if segment.kind in FRAMES and segment.start + 9 <= len(content):
            height, width = struct.unpack_from(">HH", content, segment.start + 5)
            return height, width
        if segment.kind == START_OF_SCAN:
            break
    return None


def webp_size(content: bytes) -> tuple[int, int] | None:
    """Return the size of a WebP that is not extended, by its first chunk. DALI takes no extended one.

    Args:
        content: The bytes of the file; its first 30 are enough.

    Returns:
        (height, width) in pixels; None if the file is no such WebP, or the chunk is damaged.
    """
    if not _is_webp(content) or len(content) < WEBP_LEAST:
        return None
    kind = content[WEBP_HEAD : WEBP_HEAD + 4]
    if kind == b"VP8L" and content[20:21] == VP8L_START:
        sides = int.from_bytes(content[21:25], "little")  # the lowest 14 bits are width - 1, the next 14 height - 1
        width, height = (sides & WEBP_SIDE) + 1, (sides >> 14 & WEBP_SIDE) + 1
        return height, width
    if kind == b"VP8 " and content[23:26] == VP8_START:
        width_and_scale, height_and_scale = struct.unpack_from("<HH", content, 26)  # 14 bits, and 2 for the scale
        return height_and_scale & WEBP_SIDE, width_and_scale & WEBP_SIDE
    return None


def is_cmyk_without_mark(content: bytes) -> bool:
    """Return whether a file is a JPEG of CMYK without the marker of Adobe.

    The marker says that 0 is full ink. Without the marker DALI takes 0 for no ink, as TensorFlow does, while Pillow
    takes 0 for full ink.

    Args:
        content: All bytes of the file. It need not be a JPEG.
    """
    if not content.startswith(JPEG_START):
        return False
    channels = 0
    for segment in _segments(content):
        if segment.kind == START_OF_SCAN:
            break
        if segment.kind == ADOBE_SEGMENT and content.startswith(b"Adobe", segment.start + MIN_SEGMENT):
            return False
        if segment.kind in FRAMES and segment.start + MIN_FRAME <= len(content):
            channels = content[segment.start + CHANNELS_IN_FRAME]
    return channels == CMYK_CHANNELS


def _png_fault(content: bytes) -> str:
    """Return a message that the last chunk of a PNG is absent; an empty text if it is there as a whole.

    Args:
        content: All bytes of the PNG.
    """
    for chunk in png_chunks(content):
        if chunk.kind == b"IEND" and chunk.end <= len(content):
            return ""
    return f"{TRUNCATED}: its last chunk is absent"


class PngChunk(NamedTuple):
    """Where a chunk of a PNG lies: the length of its body, its kind, the body, and a CRC-32 of kind and body."""

    kind: bytes  # IHDR, IDAT, IEND and others
    kind_start: int  # in the file, as the further places
    body_start: int
    body_end: int

    @property
    def end(self) -> int:
        """The place behind the chunk's checksum; beyond the end of a file that is cut."""
        return self.body_end + 4


def png_chunks(content: bytes) -> Iterator[PngChunk]:
    """Yield the chunks of a PNG in their order; the last one may reach beyond the end of a file that is cut.

    A chunk has 4 bytes for the length of its body, 4 bytes for its kind, the body, and 4 bytes of checksum. The end of
    a PngChunk lies behind the checksum, where the next chunk begins.

    Args:
        content: All bytes of the PNG.

    Yields:
        Kind and place of each chunk.
    """
    position = len(PNG_START)
    while position + PNG_CHUNK_EXTRA <= len(content):
        (length,) = struct.unpack_from(">I", content, position)
        kind_start = position + 4
        body_start = kind_start + 4
        chunk = PngChunk(content[kind_start:body_start], kind_start, body_start, body_start + length)
        yield chunk
        position = chunk.end


def _is_webp(content: bytes) -> bool:
    """Return whether the first bytes of a file are those of a WebP."""
    return content.startswith(b"RIFF") and content[8:WEBP_HEAD] == b"WEBP"


def _webp_fault(content: bytes) -> str:
    """Return a message that a WebP file is shorter than its head says; an empty text if it is not.

    Args:
        content: All bytes of the file.
    """
    (length,) = struct.unpack_from("<I", content, 4)
    if len(content) < 8 + length:
        return f"{TRUNCATED}: it has {len(content)} bytes of {8 + length}"
    return ""


def _fault_by_decoding(content: bytes) -> str:
    """Return why an image of a rarer kind cannot be taken, by decoding it with Pillow; an empty text if it can.

    Pillow is kept to the kinds that DALI knows, too: of others, such as AVIF, it raises errors of its libraries.

    Args:
        content: All bytes of the file.
    """
    try:
        with Image.open(io.BytesIO(content), formats=RARER_KINDS) as opened:
            pnm_fault = ""
            if isinstance(opened, PpmImagePlugin.PpmImageFile):
                pnm_fault = _pnm_fault(opened)  # before `load`, which empties the attribute `tile` that this reads
            opened.load()
            if isinstance(opened, TiffImagePlugin.TiffImageFile):
                return _tiff_fault(opened)
            return pnm_fault
    except UnidentifiedImageError:  # of another kind, as GIF, or with a damaged head: DALI says so
        return ""
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return " ".join(str(error).split())


def _pnm_fault(opened: PpmImagePlugin.PpmImageFile) -> str:
    """Return a message that DALI would decode a PNM too dark; an empty text if it would not.

    The head of a PNM says which value is white (its "maxval"), but DALI takes a fixed white for most files. If the
    head's white is lower than that, the picture becomes too dark.

    Args:
        opened: The image as Pillow has opened it, not loaded yet: `load` empties its `tile`.
    """
    codec, _, _, arguments = opened.tile[0]  # as ("ppm", box, offset, ("RGB", 100)): 100 is the head's white
    if codec == "raw":  # the white is 255 or 65,535, as DALI takes it, or the numbers are bits or floats, without one
        return ""
    if not isinstance(arguments, tuple):  # bits that are written as text: they have no white either
        return ""
    white = int(arguments[1])
    is_written_as_text = codec == "ppm_plain"
    if white > 255:
        white_of_dali = 65535
    elif is_written_as_text:
        white_of_dali = white  # of these files, DALI takes the head's white
    else:
        white_of_dali = 255
    if white == white_of_dali:
        return ""
    return f"it is a PNM whose white is {white}, not {white_of_dali}, which is not supported"


def _tiff_fault(opened: TiffImagePlugin.TiffImageFile) -> str:
    """Return a message that DALI would mistake the colours of a TIFF; an empty text if it would not.

    DALI takes three or more channels for RGB, and a single channel for grey whose 0 is black.

    Args:
        opened: The image as Pillow has opened it.
    """
    colours = opened.tag_v2.get(TIFF_COLOURS)  # what the channels mean: 6 for YCbCr
    if colours not in MISTAKEN_TIFF_COLOURS:
        return ""
    has_one_bit_pixels = opened.mode == "1"
    if colours == WHITE_IS_ZERO and has_one_bit_pixels:  # DALI takes these as they are meant
        return ""
    is_jpeg = opened.tag_v2.get(TIFF_COMPRESSION) in TIFF_JPEG
    if colours == YCBCR and is_jpeg:  # JPEG data in YCbCr become RGB as they are decoded
        return ""
    return f"it is a TIFF of {MISTAKEN_TIFF_COLOURS[colours]}, which is not supported"
