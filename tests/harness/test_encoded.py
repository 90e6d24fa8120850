"""What is a whole encoded image: by three ways of writing, cut anywhere, and with what cameras add."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness import encoded
from harness.decoder import Decoder

RNG = np.random.default_rng(11)
COARSE = Image.fromarray(RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8))
PICTURE = COARSE.resize((152, 113), Image.Resampling.BICUBIC)


def written(picture: Image.Image = PICTURE, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, **options)  # type: ignore[arg-type]
    return file.getvalue()


def with_thumbnail(content: bytes) -> bytes:
    """Put a whole small JPEG into a segment behind the start, as cameras do in EXIF."""
    thumbnail = b"Exif\0\0" + written(PICTURE.resize((20, 15)), format="JPEG")
    return content[:2] + b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail + content[2:]


BASELINE = written(format="JPEG", quality=91)
PROGRESSIVE = written(format="JPEG", progressive=True)
JPEGS = {
    "baseline": BASELINE,
    "progressive": PROGRESSIVE,
    "grey": written(PICTURE.convert("L"), format="JPEG"),
    "CMYK": written(PICTURE.convert("CMYK"), format="JPEG"),
    "restarts": written(format="JPEG", restart_marker_blocks=3),
    "progressive with restarts": written(format="JPEG", progressive=True, restart_marker_rows=1),
    "thumbnail": with_thumbnail(BASELINE),
    "progressive with thumbnail": with_thumbnail(PROGRESSIVE),
}
WHOLE = {
    **JPEGS,
    "bytes behind": BASELINE + b"\x01garbage" * 40,
    "zeros behind": PROGRESSIVE + bytes(3000),
    "two ends": BASELINE + b"\xff\xd9",
    "fill bytes": PROGRESSIVE[:-2] + b"\xff\xff\xff\xd9",
    "second picture": BASELINE + PROGRESSIVE,
    "second picture cut": BASELINE + PROGRESSIVE[:700],
    "several pictures": written(format="MPO", save_all=True, append_images=[PICTURE.resize((40, 30))]),
    **{kind: written(format=kind) for kind in ("PNG", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000")},
}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder("cpu", None)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_images_are_taken(name: str, decoder: Decoder) -> None:
    assert encoded.fault(WHOLE[name]) == ""
    assert decoder.fault(WHOLE[name]) == ""


@pytest.mark.parametrize("name", JPEGS)
def test_a_cut_jpeg_is_refused(name: str) -> None:
    """At each hundredth of it, in its last bytes, and with zeros for its second half: some of which Pillow takes."""
    content = JPEGS[name]
    lengths = [len(content) * share // 100 for share in range(1, 100)]
    cuts = [content[:length] for length in (*lengths, len(content) - 3, len(content) - 2, len(content) - 1)]
    cuts.append(content[: len(content) // 2].ljust(len(content), b"\0"))
    for cut in cuts:
        assert encoded.fault(cut) or len(cut) < 2, f"{len(cut)} of {len(content)} bytes"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_other_cut_files_are_refused(kind: str, decoder: Decoder) -> None:
    content = WHOLE[kind]
    for share in (10, 55, 97):
        cut = content[: len(content) * share // 100]
        assert encoded.fault(cut) or decoder.fault(cut)


@pytest.mark.parametrize("cut_bytes", range(1, 10))
def test_a_webp_is_as_long_as_its_head_says(cut_bytes: int) -> None:
    assert encoded.fault(WHOLE["WEBP"][:-cut_bytes]).startswith("it is truncated")


def test_an_end_marker_within_a_comment_ends_no_progressive_picture() -> None:
    segments = list(encoded._segments(PROGRESSIVE))
    first_scan = next(number for number, segment in enumerate(segments) if segment.kind == encoded.START_OF_SCAN)
    behind_first_scan = segments[first_scan + 1].start
    comment = b"\xff\xfe\x00\x09end\xff\xd9.."
    assert encoded.fault(PROGRESSIVE[:behind_first_scan] + comment + PROGRESSIVE[behind_first_scan:]) == ""
    assert encoded.fault(PROGRESSIVE[:behind_first_scan] + comment).startswith("it is truncated")


def test_what_is_wrong_is_said() -> None:
    assert encoded.fault(b"") == "it is empty"
    assert encoded.fault(BASELINE[:-300]) == "it is truncated: no end marker follows its data"
    assert encoded.fault(BASELINE[:30]).endswith("goes beyond its end")
    assert encoded.fault(BASELINE[:-300] + BASELINE[:-2]).startswith("it is truncated: another picture begins at byte")
    assert encoded.fault(b"\xff\xd8\xff\xd9") == "it ends before its picture begins"
    assert encoded.fault(b"\xff\xd8\xff\xe0\0").endswith("goes beyond its end")
    assert encoded.fault(b"\xff\xd8\xff\xe0\0\0") == "its segment at byte 2 has no length"
    assert encoded.fault(b"\xff\xd8\xff\xc0\0\x02") == "its segment at byte 2 has no size of the picture"
    jpeg_ls = b"\xff\xd8\xff\xf7\0\x0b\x08\0\x50\0\x64\x01\x01\x11\0"
    assert encoded.fault(jpeg_ls) == "it is a JPEG-LS, which is not supported"
    assert encoded.fault(WHOLE["PNG"][:-1]) == "it is truncated: its last chunk is absent"
    assert encoded.fault(WHOLE["WEBP"][:-9]).startswith("it is truncated: it has ")


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("CMYK", {}, "it is a TIFF of CMYK, which is not supported"),
        ("YCbCr", {}, "it is a TIFF of YCbCr, which is not supported"),
        ("LAB", {}, "it is a TIFF of Lab, which is not supported"),
        ("L", {"tiffinfo": {262: 0}}, "it is a TIFF of grey whose 0 is white, which is not supported"),
        ("1", {"compression": "group4"}, ""),
        ("RGB", {"compression": "jpeg"}, ""),
        ("L", {}, ""),
        ("P", {}, ""),
        ("RGBA", {}, ""),
    ],
)
def test_a_tiff_is_refused_whose_colours_dali_mistakes(
    mode: str, options: dict[str, object], said: str, decoder: Decoder
) -> None:
    picture = Image.new("LAB", (8, 8), (50, 9, 9)) if mode == "LAB" else PICTURE.convert(mode)
    content = written(picture, format="TIFF", **options)
    assert encoded.fault(content) == said
    assert decoder.fault(content) == "", "DALI takes it without a word"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"P6 1 1 31\n\x1f\x1f\x1f", "it is a PNM whose white is 31, not 255, which is not supported"),
        (b"P5 1 1 31\n\x1f", "it is a PNM whose white is 31, not 255, which is not supported"),
        (b"P5 1 1 1023\n\x03\xff", "it is a PNM whose white is 1023, not 65535, which is not supported"),
        (b"P2 1 1 1023\n1023\n", "it is a PNM whose white is 1023, not 65535, which is not supported"),
        (b"P6 1 1 255\n\xff\xff\xff", ""),
        (b"P5 1 1 65535\n\xff\xff", ""),
        (b"P3 1 1 15\n15 15 15\n", ""),
        (b"P4 8 1\n\0", ""),
        (b"P1 1 1\n0\n", ""),
    ],
)
def test_a_pnm_is_refused_whose_white_dali_takes_for_black(content: bytes, said: str, decoder: Decoder) -> None:
    assert encoded.fault(content) == said
    assert decoder.fault(content) == "", "DALI takes it without a word"


def test_a_picture_of_12_bits_is_said_to_be_so() -> None:
    frame = BASELINE.index(b"\xff\xc0")
    of_12_bits = BASELINE[: frame + 4] + b"\x0c" + BASELINE[frame + 5 :]
    assert encoded.fault(of_12_bits) == "it has 12 bits a channel, not 8"


def test_other_bytes_within_a_progressive_picture_are_refused() -> None:
    middle = len(PROGRESSIVE) // 2
    overwritten = PROGRESSIVE[:middle] + b"\xff\x51<html>" + PROGRESSIVE[middle + 8 :]
    assert encoded.fault(overwritten) == f"it is damaged: FF 51 at byte {middle} is not a marker"
    with pytest.raises(OSError, match="broken data stream"), Image.open(io.BytesIO(overwritten)) as opened:
        opened.load()


def test_the_size_stands_in_a_jpegs_head() -> None:
    for content in JPEGS.values():
        assert encoded.jpeg_size(content) == (113, 152)
    assert encoded.jpeg_size(BASELINE[:20]) is None


def test_the_decoders_reason_is_one_line(decoder: Decoder, tmp_path: Path) -> None:
    assert decoder.fault(written(format="GIF")) == "GIF images are not supported"
    assert decoder.fault(BASELINE) == "", "it goes on after a fault"
    png = written(format="PNG")
    middle = len(png) // 2
    damaged = png[:middle] + bytes(8) + png[middle + 8 :]
    assert decoder.fault(damaged) == "it is damaged, or of a variant of its format that is not supported"
    for kind in ("TGA", "ICO", "PCX", "SGI", "DDS"):
        assert decoder.fault(written(format=kind)).startswith("Unrecognized image format. Supported formats are:")


def test_a_file_of_another_kind_that_is_damaged_is_left_to_dali(decoder: Decoder) -> None:
    """Pillow raised an error of the library for AVIF, after which `--check` of two ranks waited for ever."""
    whole = written(format="AVIF")
    damaged = whole.replace(b"pixi", b"pixj").replace(b"av1C", b"av1D")
    with pytest.raises(RuntimeError), Image.open(io.BytesIO(damaged)) as opened:
        opened.load()
    assert encoded.fault(damaged) == ""
    assert decoder.fault(damaged).startswith("Unrecognized image format. Supported formats are:")


def test_an_assertion_of_dali_without_a_reason_is_put_in_words(decoder: Decoder) -> None:
    """The message was its line of C++."""
    said = "it is damaged, or of a variant of its format that is not supported"
    assert decoder.fault(written(PICTURE.convert("LA"), format="TIFF")) == said


def test_a_cmyk_jpeg_without_adobes_marker_is_told() -> None:
    marked = WHOLE["CMYK"]
    start = marked.index(b"\xff\xee")
    end = start + 2 + int.from_bytes(marked[start + 2 : start + 4], "big")
    unmarked = marked[:start] + marked[end:]
    assert encoded.is_cmyk_without_mark(unmarked)
    assert encoded.is_cmyk_without_mark(unmarked + marked[start:end]), "none after the pixels counts"
    assert not any(encoded.is_cmyk_without_mark(content) for content in WHOLE.values())


@pytest.mark.parametrize(("kind", "size", "lossless"), [(b"VP8 ", (300, 70), False), (b"VP8L", (16383, 3), True)])
def test_the_size_of_a_webp_is_that_of_each_of_its_forms(kind: bytes, size: tuple[int, int], lossless: bool) -> None:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "WEBP", lossless=lossless)
    content = file.getvalue()
    assert content[12:16] == kind and encoded.webp_size(content) == size[::-1]
    assert encoded.webp_size(content[:20]) is None and encoded.webp_size(BASELINE) is None
    assert encoded.webp_size(content.replace(kind, b"VP8X")) is None, "DALI takes no extended one"
    zeros_in_place_of_its_start = content[:20] + bytes(4 + 3) + content[27:]  # the size of a VP8 was 0 x 0 then
    assert encoded.webp_size(zeros_in_place_of_its_start) is None
