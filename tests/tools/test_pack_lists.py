"""The lists that tools.pack writes of what users have: Kaggle's ImageNet, tiny-imagenet, a server's thumbnails."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paddle_rn50 import data, folder
from tests import jobs

CLASSES = ("n01440764", "n01443537", "n01484850")
KAGGLE = "ILSVRC2012_val_{:08d}"


def write_pictures(root: Path, paths: Sequence[str]) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / path, "JPEG")


def write_training(root: Path, below: str) -> None:
    write_pictures(root, [f"train/{name}/{below}{name}_0.JPEG" for name in CLASSES])


def lists_of(root: Path, labels: Path) -> None:
    """By the user's command."""
    done = jobs.run([sys.executable, "-m", "tools.pack", "--lists", str(root), "--labels", str(labels)])
    assert done.returncode == 0, done.stderr


def labels_of(root: Path, part: str) -> dict[str, int]:
    images = data.find(root, part, len(CLASSES))
    assert isinstance(images, folder.ImageList)
    return dict(zip(images.paths, images.labels.tolist(), strict=True))


def test_kaggles_solution_gives_the_labels_of_a_flat_val(tmp_path: Path) -> None:
    """Its header was said to have no label. The last number of a line is that of a box, and below the classes here."""
    write_training(tmp_path, "")
    classes_of_images = (2, 0, 1, 1)
    names = [KAGGLE.format(number) for number in range(len(classes_of_images))]
    write_pictures(tmp_path, [f"val/{name}.JPEG" for name in names])
    rows = ["ImageId,PredictionString"]
    for name, label in zip(names, classes_of_images, strict=True):
        box = f"{CLASSES[label]} 85 1 499 2 "
        rows.append(f"{name},{box}{box}")
    labels = tmp_path / "LOC_val_solution.csv"
    labels.write_text("\n".join(rows) + "\n")
    lists_of(tmp_path, labels)
    wanted = {f"val/{name}.JPEG": label for name, label in zip(names, classes_of_images, strict=True)}
    assert labels_of(tmp_path, "val") == wanted
    assert labels_of(tmp_path, "train") == {f"train/{name}/{name}_0.JPEG": n for n, name in enumerate(CLASSES)}


def test_tiny_imagenets_annotations_give_the_labels_of_its_val(tmp_path: Path) -> None:
    write_training(tmp_path, "images/")
    write_pictures(tmp_path, [f"val/images/val_{number}.JPEG" for number in range(3)])
    labels = tmp_path / "val/val_annotations.txt"
    labels.write_text("".join(f"val_{number}.JPEG\t{CLASSES[2 - number]}\t0\t32\t44\t1\n" for number in range(3)))
    said = r"\(images is in one of them only\): .*: tools\.pack --lists --labels FILE writes it by a file as "
    with pytest.raises(ValueError, match=said):
        data.find(tmp_path, "val", len(CLASSES))
    lists_of(tmp_path, labels)
    assert labels_of(tmp_path, "val") == {f"val/images/val_{number}.JPEG": 2 - number for number in range(3)}


def test_a_name_with_the_name_of_a_class_in_it_has_the_label_at_the_lines_end(tmp_path: Path) -> None:
    write_pictures(tmp_path, ["train/cat/1.jpg", "train/dog/1.jpg", "val/my", "val/my dog 1.jpg"])
    labels = tmp_path / "labels.txt"
    labels.write_text("my dog 1.jpg 0\n")
    lists_of(tmp_path, labels)
    assert (tmp_path / "val_list.txt").read_text() == "val/my dog 1.jpg 0\n"


def test_thumbnails_of_a_server_are_no_class_and_no_samples(tmp_path: Path) -> None:
    """The classes behind `@eaDir` had numbers of one more, and thumbnails were trained on and evaluated."""
    write_training(tmp_path, "")
    before = labels_of(tmp_path, "train")
    write_pictures(tmp_path, ["train/@eaDir/x/SYNOPHOTO_THUMB_M.jpg", f"train/{CLASSES[1]}/@eaDir/y/SYNO_THUMB_S.jpg"])
    assert labels_of(tmp_path, "train") == before


def test_classes_a_folder_further_down_are_warned_of(tmp_path: Path) -> None:
    """All images were of one class, and nothing said which folder was meant."""
    write_pictures(tmp_path, ["train/images/cat/1.jpg", "train/images/dog/1.jpg"])
    said = f"{tmp_path}/train/images is the only class folder, and has 2 folders with images: if these are the classes"
    found = data.find(tmp_path, "train", 1)
    assert found.notes == (f"{said}, move them into {tmp_path}/train",)
    write_pictures(tmp_path, ["train/images/1.jpg"])
    found = data.find(tmp_path, "train", 1)
    assert found.notes == () and np.array_equal(found.read(np.arange(3))[1], [0, 0, 0])
