"""Which pairs a segmentation set has, and what is said of it before a run."""

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from harness import passport
from paddle_hrnet import data, pairs, pictures
from tests.paddle_hrnet.test_data import BLOCKS, CLASSES, PIXELS, write


def test_a_folder_without_data_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has neither train\.txt nor images .* Cityscapes' layout"):
        data.find(tmp_path, "train", 19)


def test_a_folder_near_cityscapes_says_which_is_meant(root: Path, tmp_path: Path) -> None:
    """Each was told to write lists, though only a path or a place was wrong."""
    above = tmp_path / "above"
    above.mkdir()
    (above / "set").symlink_to(root)
    inside = [root / "leftImg8bit", root / "gtFine", root / "leftImg8bit/train"]
    for named, meant in ((above, above / "set"), *((folder, root) for folder in inside)):
        said = re.escape(f"; is {meant} meant, which has leftImg8bit/train/ and gtFine/train/?")
        with pytest.raises(ValueError, match=f"write the list, .*{said}$"):
            data.find(named, "train", CLASSES)
    unpacked = root / "leftImg8bit_trainvaltest"
    unpacked.mkdir()
    (root / "leftImg8bit").rename(unpacked / "leftImg8bit")
    said = f"; is {unpacked}/leftImg8bit meant? move it, and the folder gtFine/ of the labels, into {root}"
    with pytest.raises(ValueError, match=f"{re.escape(said)}$"):
        data.find(root, "train", CLASSES)


def test_images_without_a_folder_of_labels_and_of_another_name_are_said_to_be_so(root: Path) -> None:
    """Each pair was to be removed from a list that is not there."""
    (root / "gtFine/train").rename(root / "train")
    with pytest.raises(ValueError, match=f"^{root}/gtFine/train: no such folder: put the labels of the images in"):
        data.find(root, "train", CLASSES)
    for image in (root / "leftImg8bit/train").glob("*/*.png"):
        image.rename(image.with_suffix(".jpg"))
    said = "train/town/t0_leftImg8bit.jpg is there, which is no */*_leftImg8bit.png"
    with pytest.raises(ValueError, match=f"{re.escape(said)}$"):
        data.find(root, "train", CLASSES)


def test_a_table_of_hugging_face_is_said_not_to_be_read(tmp_path: Path) -> None:
    """The advice to write a list is of no help, as there are no files to list."""
    (tmp_path / "data").mkdir()
    table = tmp_path / "data/train-00000-of-00001.parquet"
    table.write_bytes(b"PAR1")
    said = (
        f"{table}: is a file of Hugging Face's datasets, and parquet is not read: save its images and labels as files"
    )
    with pytest.raises(ValueError, match=said):
        data.find(tmp_path, "train", CLASSES)


def test_what_is_passed_over_in_cityscapes_folders_is_noted(root: Path) -> None:
    found = data.find(root, "train", CLASSES)
    folder = root / "leftImg8bit/train"
    (folder / "town/._t0_leftImg8bit.png").write_bytes(b"macOS")
    assert data.find(root, "train", CLASSES) == found and found.notes == ()
    (folder / "town/t9_leftImg8bit.jpg").write_bytes(b"image")
    (folder / "village").symlink_to(root / "absent")
    said = f"{folder}: passed over 2 paths other than CITY/NAME_leftImg8bit.png, the first is "
    assert data.find(root, "train", CLASSES).notes == (f"{said}{folder}/town/t9_leftImg8bit.jpg",)


def test_labels_whose_images_are_absent_are_noted(root: Path) -> None:
    """A run trained on the cities that were there, without a word."""
    kept = data.find(root, "train", CLASSES)
    labels = root / "gtFine/train"
    (labels / "village").mkdir()
    for name in (
        "v1_gtFine_labelIds.png",
        "v1_gtFine_labelTrainIds.png",
        "v2_gtFine_labelIds.png",
        "._v3_gtFine_labelIds.png",
    ):
        (labels / "village" / name).write_bytes(b"label")
    found = data.find(root, "train", CLASSES)
    images = root / "leftImg8bit/train"
    said = f"{labels} has the labels of 2 images that {images} does not have, the first is village/v1_leftImg8bit.png"
    assert kept.notes == () and found.notes == (f"{said}: see that all images were unpacked",)
    assert found.pairs == kept.pairs


def test_a_name_with_a_comma_is_no_two_columns(root: Path) -> None:
    """Its part before the comma was said to be absent."""
    (image, label), *_ = data.find(root, "train", CLASSES).pairs
    (root / image).rename(root / "a,b.png")
    (root / label).rename(root / "c.png")
    (root / "d e.png").symlink_to("a,b.png")
    (root / "train.txt").write_text('a,b.png c.png\n"a,b.png" "c.png"\nd e.png,c.png\n')
    pair = ("a,b.png", "c.png")
    assert data.find(root, "train", CLASSES).pairs == (pair, pair, ("d e.png", "c.png"))


def test_paths_of_another_machine_are_said_to_be_so(root: Path) -> None:
    """Each line of such a list was to be removed."""
    (image, label), *_ = data.find(root, "train", CLASSES).pairs
    (root / "train.txt").write_text(f"/home/me/set/{image} /home/me/set/{label}\n")
    said = rf"train.txt:1: /home/me/set/{image} is absent, {image} is there: write the paths as they count from {root}"
    with pytest.raises(ValueError, match=said):
        data.find(root, "train", CLASSES)


def test_an_image_with_the_label_of_another_is_noted(root: Path) -> None:
    images = [f"leftImg8bit/train/town/t{i}_leftImg8bit.png" for i in range(3)]
    label = "gtFine/train/town/t0_gtFine_labelTrainIds.png"
    (root / "train.txt").write_text("".join(f"{image} {label}\n" for image in [images[0], *images]))
    found = passport.survey(data.find(root, "train", CLASSES), data.find(root, "val", CLASSES), print)
    repeated, shared = found.notes
    assert repeated == f"the training set names 1 file more than once, the first is {images[0]}"
    said = f"the training set gives 2 images the label file of another image, the first is {images[1]}, with that of "
    assert shared == f"{said}{images[0]}: see that its list names the right files"


def test_images_of_several_sizes_are_refused_before_a_run_in_evaluation_alone(root: Path) -> None:
    for part in ("train", "val"):
        write(root, part, "v9", PIXELS[:32, :32], BLOCKS[:32, :32])
    train, val = (data.find(root, part, CLASSES) for part in ("train", "val"))
    assert len(train.contents(lambda done, total: None).names) == len(train)
    said = r"v9_left.*: is 32 x 32 pixels but the first evaluation image 160 x 96: .*: resize it with its "
    with pytest.raises(ValueError, match=said):
        val.contents(lambda done, total: None)


@pytest.mark.parametrize("orientation", [0, 1, 9])
def test_a_jpeg_whose_orientation_is_none_of_exifs_is_upright(orientation: int, tmp_path: Path) -> None:
    """Some cameras write 0. Their pictures were refused as turned."""
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = orientation
    Image.new("RGB", (20, 10)).save(tmp_path / "a.jpg", exif=exif)
    assert pairs.image_head(tmp_path / "a.jpg") == (10, 20)


def test_a_jpeg_that_states_its_size_very_late_is_taken(tmp_path: Path) -> None:
    """Segments of an application lie before it, as a thermal camera's. The run would have read it."""
    content = io.BytesIO()
    Image.new("RGB", (20, 10)).save(content, "JPEG")
    segment = b"\xff\xe1" + (0xFFFF).to_bytes(2, "big") + bytes(0xFFFD)
    jpeg = content.getvalue()
    (tmp_path / "a.jpg").write_bytes(jpeg[:2] + 5 * segment + jpeg[2:])
    assert pairs.image_head(tmp_path / "a.jpg") == (10, 20)
