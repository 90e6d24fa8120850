"""Cityscapes' layout by DALI: geometry, labels, files that are not what they should be; the embedded scenes."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from harness import passport, sampling
from harness.embedded import make_once
from paddle_hrnet import data, pictures, scenes, train
from paddle_hrnet.config import RECIPES, SCENES_CLASSES, SCENES_EVAL, SCENES_TRAIN, Augmentation
from runlog import workloads
from runlog.errors import RunError
from tests.paddle_rn50.test_data import SEED, pixels_of, reader, taken

HEIGHT, WIDTH = 96, 160
BLOCK = 16  # pixels: the label of a pixel is the number of its block
PLAIN = Augmentation(colour=0.0, hue_degrees=0.0)
CLASSES = (HEIGHT // BLOCK) * (WIDTH // BLOCK)


def block_of(y: Any, x: Any) -> Any:
    return y // BLOCK * (WIDTH // BLOCK) + x // BLOCK


Y, X = np.mgrid[:HEIGHT, :WIDTH]
PIXELS, BLOCKS = np.stack([X, Y, 255 - X], axis=-1).astype(np.uint8), block_of(Y, X).astype(np.uint8)


def write(
    root: Path,
    part: str,
    name: str,
    image: np.ndarray = PIXELS,
    label: np.ndarray = BLOCKS,
    kind: str = "labelTrainIds",
) -> str:
    """A pair in Cityscapes' folders; the line of a list."""
    paths = (f"leftImg8bit/{part}/town/{name}_leftImg8bit.png", f"gtFine/{part}/town/{name}_gtFine_{kind}.png")
    for path, picture in zip(paths, (image, label), strict=True):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(root / path)
    return " ".join(paths)


def training(
    root: Path, *, augment: Augmentation, batch: int = 4, rank: int = 0, ranks: int = 1, **crop: Any
) -> data.Loader:
    pairs = data.find(root, "train", CLASSES)
    plan = sampling.training_plan(len(pairs), batch=batch, rank=rank, ranks=ranks, seed=SEED)
    return data.Loader(pairs, plan, reader(batch, data.ImageFormat(**crop)), augment=augment)


def evaluation(root: Path, *, rank: int = 0, ranks: int = 1, batch: int = 2, classes: int = CLASSES) -> data.Loader:
    pairs = data.find(root, "val", classes)
    plan = sampling.evaluation_plan(len(pairs), batch=batch, rank=rank, ranks=ranks)
    return data.Loader(pairs, plan, reader(batch, data.first_size(pairs)))


@pytest.mark.parametrize(
    ("augment", "crop"),
    [
        (PLAIN, {"height": 64, "width": 96}),
        (PLAIN, {"height": 160, "width": 256}),  # padded at the small scales, cropped at the large ones
        (replace(PLAIN, scale_min=1.0, scale_max=1.0, flip=1.0), {"height": 64, "width": 96}),
    ],
)
def test_image_and_label_stay_aligned(root: Path, augment: Augmentation, crop: dict[str, int]) -> None:
    compared = padded = mirrored = 0
    for batch in taken(training(root, augment=augment, **crop), 8):
        assert batch.image.shape == (4, 3, *crop.values())
        assert batch.label.shape == (4, *crop.values())
        for image, label in zip(batch.image * data.STD + data.MEAN, batch.label, strict=True):
            x, y, inverse = image
            inside = label != 255
            np.testing.assert_allclose((x + inverse)[inside], 255, atol=1.01)  # each is rounded
            np.testing.assert_allclose(image[:, ~inside], data.MEAN, atol=0.01)
            # Half a block from its edges both kinds of interpolation know the block for certain.
            sure = inside & (np.abs(x % BLOCK - (BLOCK - 1) / 2) < 5) & (np.abs(y % BLOCK - (BLOCK - 1) / 2) < 5)
            np.testing.assert_array_equal(label[sure], block_of(np.rint(y), np.rint(x))[sure])
            compared += int(sure.sum())
            padded += int((~inside).sum())
            columns = x[0][inside[0]]
            mirrored += bool(columns[0] > columns[-1])
    assert compared > 10_000
    assert (padded > 0) == (augment.scale_min * HEIGHT < crop["height"])
    assert mirrored == 32 if augment.flip == 1 else 4 < mirrored < 28


def test_scales_are_the_recipes(root: Path) -> None:
    """Neighbouring columns of the coordinate image differ by 1 / scale."""
    seen = set()
    for batch in taken(training(root, augment=replace(PLAIN, flip=0.0), height=32, width=80), 40):
        for scale in 78 / (batch.image[:, 0, 16, 79] - batch.image[:, 0, 16, 1]) / data.STD:
            seen.add(round(scale / 0.25) * 0.25)
            assert abs(scale / 0.25 - round(scale / 0.25)) < 0.3  # the ends are rounded to whole numbers
    assert seen == {0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0}


@pytest.mark.parametrize(("drawn", "start"), [(0.0, 0.0), (0.5, 37.5), (0.999, 75.0)])
def test_a_window_starts_at_any_pixel_up_to_the_last_that_holds_it(drawn: float, start: float) -> None:
    """Of 100 pixels at scale 2, a crop of 50 starts at one of 151 places: 0, 1, ... 150 of the scaled image."""
    crop = data.ImageFormat(height=50, width=50)
    corners = np.array([[drawn, drawn]])
    windows = data._windows(crop, np.array([[100, 100]]), np.array([2.0]), drawn_corners=corners)
    assert windows.starts.tolist() == [[start] * 2] and windows.ends.tolist() == [[start + 25] * 2]


@pytest.mark.parametrize(("height", "width", "labelled"), [(1, 1, 1), (8, 1, 4), (1, 8, 4)])
def test_a_side_of_one_pixel_stays_one_at_half_the_size(tmp_path: Path, height: int, width: int, labelled: int) -> None:
    """It became 0, and the run ended by 'cannot convert float NaN to integer' or a segmentation fault."""
    image = np.full((height, width, 3), 90, dtype=np.uint8)
    for name in ("0", "1", "2", "3"):
        write(tmp_path, "train", name, image, np.full((height, width), 3, dtype=np.uint8))
    augment = replace(PLAIN, scale_min=0.5, scale_max=0.5)
    [batch] = taken(training(tmp_path, augment=augment, height=32, width=32))
    assert (batch.label == 3).sum() == len(batch.label) * labelled


def test_a_window_has_the_pixels_that_the_whole_image_gives(tmp_path: Path) -> None:
    """The windows are compared with those that DALI cuts out of the files as they are, not shortened beforehand.

    At scale 2, half of the windows end where a row of the file ends, and their last row is interpolated with the row
    below. In an image of noise any two rows differ.
    """
    noise = np.random.default_rng(1).integers(0, 256, PIXELS.shape, dtype=np.uint8)
    for name in ("t0", "t1", "t2", "t3"):
        write(tmp_path, "train", name, noise)
    twice = replace(PLAIN, scale_min=2.0, scale_max=2.0)
    shortened = taken(training(tmp_path, augment=twice, height=64, width=96), 4)
    with mock.patch.object(pictures, "inflated", side_effect=lambda content, rows: content) as read:
        whole = taken(training(tmp_path, augment=twice, height=64, width=96), 4)
    assert read.call_count >= 16
    for batch, other in zip(shortened, whole, strict=True):
        np.testing.assert_array_equal(batch.image, other.image)


def test_colours_are_turned_as_stated_and_stay_in_range(root: Path) -> None:
    """Saturation about the grey of a pixel, contrast about mid-grey, brightness; what leaves the range is cut off."""
    augment = Augmentation(scale_min=1.0, scale_max=1.0, flip=0.0, hue_degrees=0.0, colour_probability=1.0)
    crop: dict[str, Any] = {"height": HEIGHT, "width": WIDTH}
    [batch] = taken(training(root, augment=augment, **crop))
    assert (batch.label == BLOCKS).all()
    grey = PIXELS @ [[0.299], [0.587], [0.114]]
    sizes = np.array([[HEIGHT, WIDTH]] * len(batch.ids))
    drawn = data._draw(augment, data.ImageFormat(**crop), sizes, seed=SEED, epoch=1, ids=batch.ids)
    cut = 0
    for found, brightness, contrast, saturation in zip(batch.image, *drawn[4:7], strict=True):
        expected = brightness * (128 + contrast * (grey + saturation * (PIXELS - grey) - 128))
        cut += int((expected > 255).sum() + (expected < 0).sum())
        np.testing.assert_allclose(pixels_of(found, data), expected.clip(0, 255), atol=0.6)
    assert cut > 1000


def test_a_sample_looks_the_same_at_any_rank_count(root: Path) -> None:
    seen = []
    for ranks in (1, 2):
        where = (
            {"batch": 4 // ranks, "rank": rank, "ranks": ranks, "height": 64, "width": 64} for rank in range(ranks)
        )
        batches = [taken(training(root, augment=Augmentation(), **of))[0] for of in where]
        seen.append({int(i): image for batch in batches for i, image in zip(batch.ids, batch.image, strict=True)})
    one, two = seen
    assert one.keys() == two.keys() == set(range(4)) and all(np.array_equal(one[i], two[i]) for i in one)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_sees_each_whole_image_once(root: Path, ranks: int) -> None:
    counted: list[int] = []
    for rank in range(ranks):
        for batch in taken(evaluation(root, rank=rank, ranks=ranks), sampling.evaluation_steps(5, 2 * ranks)):
            for i in range(2):
                if batch.valid[i]:
                    counted.append(int(batch.ids[i]))
                    np.testing.assert_array_equal(batch.label[i], BLOCKS)
                    np.testing.assert_allclose(pixels_of(batch.image[i], data), PIXELS, atol=0.01)
                else:
                    assert (batch.label[i] == 255).all()
    assert sorted(counted) == list(range(5))


def test_label_ids_become_train_ids_where_only_they_are_there(tmp_path: Path) -> None:
    ids = np.arange(35, dtype=np.uint8).reshape(5, 7)
    ids[4, 6] = 255  # the licence plates' -1
    image = np.zeros((5, 7, 3), np.uint8)
    write(tmp_path, "val", "a", image, ids, kind="labelIds")
    write(tmp_path, "val", "b", image, np.full_like(ids, 11), kind="labelIds")
    write(tmp_path, "val", "b", image, np.full_like(ids, 3))
    [batch] = taken(evaluation(tmp_path, classes=19))
    trained = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13}
    trained |= {27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
    assert batch.label[0].ravel().tolist() == [trained.get(i, 255) for i in ids.ravel().tolist()]
    assert (batch.label[1] == 3).all()


def test_coarse_label_ids_of_a_list_become_train_ids(tmp_path: Path) -> None:
    """Of the ids 0 to 18 each is also the number of a class."""
    ids = np.array([[0, 7], [8, 17]], np.uint8)
    image, label = write(tmp_path, "val", "a", np.zeros((2, 2, 3), np.uint8), ids, kind="labelIds").split()
    coarse = label.replace("gtFine", "gtCoarse")
    (tmp_path / coarse).parent.mkdir(parents=True)
    (tmp_path / label).rename(tmp_path / coarse)
    (tmp_path / "val.txt").write_text(f"{image} {coarse}\n")
    [batch] = taken(evaluation(tmp_path, classes=19))
    assert batch.label[0].ravel().tolist() == [255, 0, 1, 5]


@pytest.mark.parametrize("name", ["train.txt", "train.list", "train_list.txt"])
def test_a_list_file_decides(root: Path, name: str) -> None:
    line = write(root, "train", "listed")
    (root / name).write_text(f"{line}\n\n")
    assert data.find(root, "train", CLASSES).pairs == (tuple(line.split()),)


# ---- bad input: one line that names the file and what to do

IMAGE, LABEL = "leftImg8bit/train/town/t2_leftImg8bit.png", "gtFine/train/town/t2_gtFine_labelTrainIds.png"
BITS = "has 8 bits of"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the list is empty"),
        ("one/path.png\n", r"train\.txt:1: 'one/path\.png' has not two paths: write 'image label'"),
        ("a b c\n", r"train\.txt:1: .* has not two paths"),
        (f"{IMAGE} gtFine/none.png\n", r"train\.txt:1: .*gtFine/none\.png is absent"),
        (f"{IMAGE} a_gtFine_labelTrainIds.png\n", r"TrainIds\.png is absent \(its _gtFine_labelIds\.png would do"),
        (f"none.png {LABEL}\n", r"train\.txt:1: .*none\.png is absent"),
    ],
)
def test_bad_lists(root: Path, text: str, said: str) -> None:
    (root / "train.txt").write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        data.find(root, "train", CLASSES)
    assert "\n" not in str(caught.value)


def overwrite(path: Path, picture: Image.Image) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:60] + bytes(40) + content[100:])


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        (LABEL, lambda path, label: label.resize((WIDTH, HEIGHT - 1)).save(path), "is 160 x 95 pixels but its image "),
        (LABEL, lambda path, label: Image.new("L", label.size, 60).save(path), "holds the label 60, "),
        (IMAGE, lambda path, image: image.convert("RGBA").save(path), f"{BITS} RGB with alpha a pixel, must have 8 of"),
        (LABEL, lambda path, label: label.convert("RGB").save(path), f"{BITS} RGB a pixel, must have 8 of greyscale"),
        (IMAGE, lambda path, image: path.write_bytes(path.read_bytes()[:-200]), "cannot be decoded (it is truncated"),
        (IMAGE, lambda path, image: image.save(path, format="GIF"), "is not a PNG or JPEG file: convert it"),
        (LABEL, lambda path, label: label.save(path, format="JPEG"), "is not a PNG file, as a label must be: convert"),
        (IMAGE, overwrite, "cannot be decoded ("),
    ],
    ids=["another size", "label out of range", "alpha", "colours", "truncated", "no PNG", "JPEG label", "damaged"],
)
def test_a_bad_file_is_named(root: Path, name: str, spoil: Callable[[Path, Image.Image], None], said: str) -> None:
    spoil(root / name, Image.fromarray(PIXELS if name == IMAGE else BLOCKS))
    with pytest.raises(RunError) as caught:
        taken(training(root, augment=PLAIN, height=64, width=96))
    assert f"{root / name}: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_are_uncompressed_but_a_damaged_file_is_left_to_the_decoder(root: Path) -> None:
    whole = (root / IMAGE).read_bytes()
    for rows in (1, 50, HEIGHT):
        plain = pictures.inflated(whole, rows)
        assert plain != whole
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(plain))), PIXELS[:rows])
    middle = len(whole) // 2
    wrong_sum = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for content in (wrong_sum, whole[:middle], whole[:28] + b"\1" + whole[29:]):  # the last one interlaced
        assert pictures.inflated(content, HEIGHT) == content


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_palette_labels_are_their_numbers(root: Path, bits: int) -> None:
    """Whatever colours they have: those of PaddleSeg's pseudo-colour labels."""
    numbers = BLOCKS % (3 if bits == 2 else 13)
    for number in range(5):
        label = Image.fromarray(numbers).convert("P")
        label.putdata(numbers.ravel().tolist())
        label.putpalette([(37 * i) % 256 for i in range(3 * 2**bits)])
        label.save(root / f"gtFine/val/town/v{number}_gtFine_labelTrainIds.png", bits=bits)
    [batch] = taken(evaluation(root))
    np.testing.assert_array_equal(batch.label[0], numbers)
    assert data.find(root, "val", CLASSES).contents(mock.Mock()).names


def test_jpeg_images_are_read_and_one_that_is_stored_turned_is_refused(root: Path) -> None:
    line = write(root, "train", "photo")
    image = root / "photo one.jpg"
    (root / "train.txt").write_text(f"photo one.jpg,{line.split()[1]}\n" * 4)
    Image.fromarray(PIXELS).save(image, quality=98, subsampling=0)
    [batch] = taken(
        training(root, augment=replace(PLAIN, scale_min=1.0, scale_max=1.0, flip=0.0), height=96, width=160)
    )
    np.testing.assert_array_equal(batch.label[0], BLOCKS)
    assert np.abs(pixels_of(batch.image[0], data) - PIXELS).mean() < 2
    turned = Image.Exif()
    turned[0x0112] = 3
    Image.fromarray(PIXELS).save(image, exif=turned)
    with pytest.raises(ValueError, match=r"photo one\.jpg: is stored turned \(EXIF orientation 3\)"):
        data.find(root, "train", CLASSES).contents(mock.Mock())
    image.write_bytes(image.read_bytes()[:-40])
    Image.fromarray(PIXELS).save(image)
    image.write_bytes(image.read_bytes()[:-40])
    with pytest.raises(RunError, match=r"photo one\.jpg: cannot be decoded \(it is truncated"):
        taken(training(root, augment=PLAIN, height=64, width=96))


def test_a_jpeg_with_exif_of_more_pixels_than_pillow_opens_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended a run with a traceback."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = pictures.UPRIGHT
    content = io.BytesIO()
    Image.new("RGB", (20, 10)).save(content, "JPEG", exif=exif)
    assert pictures.image_size("a.jpg", content.getvalue()) == (10, 20)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (Image.fromarray(BLOCKS).convert("RGB"), "has 8 bits of RGB a pixel, must have 8 of greyscale, or a palette"),
        (Image.fromarray(BLOCKS).resize((40, 40)), "is 40 x 40 pixels but its image 160 x 96"),
    ],
)
def test_what_a_label_may_not_be_is_said_at_the_start(root: Path, picture: Image.Image, said: str) -> None:
    picture.save(root / LABEL)
    with pytest.raises(ValueError, match=f"{LABEL}: {said}"):
        data.find(root, "train", CLASSES).contents(mock.Mock())


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ([3], "hold class 3 alone (255 is ignored)"),
        ([], "hold no class (255 is ignored)"),
        ([0, 2, 5], "hold 3 of 11 classes, and one without a pixel counts 0: the mIoU is at most 0.2727"),
        (list(range(7)), "the target 0.7000 cannot be reached"),
        (list(range(8)), ""),  # 0.73 at most
    ],
)
def test_an_evaluation_of_too_few_classes_is_doubted(held: list[int], said: str) -> None:
    confusion = np.zeros((11, 11))
    confusion[held, 0] = 70
    workload = mock.create_autospec(train.HRNet, instance=True, recipe=RECIPES["scenes_small"])
    doubt = train.HRNet.doubt(workload, {train.CONFUSION: confusion})
    assert said in doubt if said else doubt == ""


def test_evaluation_images_have_one_size(root: Path) -> None:
    write(root, "val", "v9", PIXELS[:32, :32], BLOCKS[:32, :32])
    with pytest.raises(RunError, match=r"v9_left.*: is 32 x 32 pixels but the first evaluation image 160 x 96"):
        taken(evaluation(root, batch=6))


def test_a_damaged_palette_label_is_refused(root: Path) -> None:
    """Greyscale ones are by DALI; here the file is made anew, with checksums that would be right."""
    Image.fromarray(BLOCKS).convert("P").save(root / LABEL)
    content = bytearray((root / LABEL).read_bytes())
    content[content.index(b"IDAT") + 20] ^= 0xFF
    (root / LABEL).write_bytes(content)
    with pytest.raises(RunError, match=rf"{LABEL}: cannot be decoded \(it is damaged: the checksum at its byte \d+ is"):
        taken(training(root, augment=PLAIN, height=64, width=96))


def test_a_damaged_head_is_named_without_an_address_in_memory(root: Path) -> None:
    label = Image.fromarray(BLOCKS % 13).convert("P")
    label.save(root / LABEL, bits=4)
    content = bytearray((root / LABEL).read_bytes())
    content[29] ^= 0xFF  # the checksum of the header
    with pytest.raises(ValueError, match=r"^its head is damaged$"):
        pictures.as_grey(bytes(content))
    turned = Image.Exif()
    turned[0x0112] = 1
    picture = io.BytesIO()
    Image.fromarray(PIXELS).save(picture, format="JPEG", exif=turned)
    content = bytearray(picture.getvalue())
    content[content.index(b"\xff\xc0\0\x11") + 4] = 12  # bits a channel
    with pytest.raises(ValueError, match=r"^photo\.jpg: is a JPEG file whose head cannot be read: convert it"):
        pictures.image_size("photo.jpg", bytes(content))


# ---- the embedded scenes


def test_layout_and_labels(tmp_path: Path) -> None:
    root = make_once(tmp_path / scenes.NAME, scenes.write)
    train, val = (data.find(root, part, SCENES_CLASSES) for part in ("train", "val"))
    assert (len(train), len(val)) == (SCENES_TRAIN, SCENES_EVAL)
    found, known = passport.survey(train, val, print), workloads.named("hrnet").embedded
    assert known and (found.train.sha256, found.evaluation.sha256) == (known.train_sha256, known.eval_sha256)
    pixels = np.zeros(SCENES_CLASSES, dtype=np.int64)
    for number in range(len(val)):
        image, label = map(Image.open, val.paths(number))
        assert (image.mode, image.size, label.size) == ("RGB", *[(scenes.WIDTH, scenes.HEIGHT)] * 2)
        shown, values = np.asarray(image, dtype=float), np.asarray(label)
        for row, column in np.ndindex(scenes.HEIGHT // scenes.CELL, scenes.WIDTH // scenes.CELL):
            cell = values[scenes.CELL * row :, scenes.CELL * column :][: scenes.CELL, : scenes.CELL]
            assert len(set(np.unique(cell)) - {scenes.GROUND}) == 1
        ink = values != scenes.GROUND
        assert (shown[ink].mean(0) - shown[~ink].mean(0)).min() > 30
        pixels += np.bincount(values.ravel(), minlength=SCENES_CLASSES)
    assert len(pixels) == SCENES_CLASSES and (pixels > 0).all()
    assert 0.5 < pixels[scenes.GROUND] / pixels.sum() < 0.9


def test_scenes_are_the_same_wherever_they_are_made_and_are_made_once(tmp_path: Path) -> None:
    with mock.patch.multiple(scenes, SCENES_TRAIN=3, SCENES_EVAL=2):
        roots = [make_once(tmp_path / name, scenes.write) for name in ("one", "two")]
    one, two = ([path.read_bytes() for path in sorted(root.rglob("*.png"))] for root in roots)
    assert one == two and len(set(one)) == 2 * 5
    assert make_once(roots[0], mock.Mock(side_effect=AssertionError)) == roots[0]
