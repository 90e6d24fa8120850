"""What is said of a data set before a run, without decoding."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from harness import passport
from paddle_rn50 import data, recordio, records
from tests.harness import small
from tools import pack, pack_lists


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small.data_set(tmp_path / "data")


def surveyed(root: Path) -> passport.Surveyed:
    return passport.survey(data.find(root, "train", 10), data.find(root, "val", 10), print)


def test_the_passport_tells_the_bytes(root: Path) -> None:
    one = surveyed(root)
    assert one.notes == [] and (one.train.files, one.evaluation.files) == (40, 8)
    assert one.train.bytes == sum(path.stat().st_size for path in (root / "train").iterdir())
    lines = (root / "train_list.txt").read_text().splitlines()
    (root / "train_list.txt").write_text("\n".join([*lines[9:], *lines[:9]]))
    assert surveyed(root) == one, "the order of a list does not matter"
    Image.open(root / "train/05.jpeg").resize((20, 20)).save(root / "train/05.jpeg")
    shrunk = surveyed(root)
    assert shrunk.train.bytes < one.train.bytes and shrunk.train.sha256 != one.train.sha256
    (root / "train_list.txt").write_text("\n".join([*lines[:-1], "train/39.jpeg 3"]))
    assert surveyed(root).train.sha256 != shrunk.train.sha256, "another label"


@pytest.mark.parametrize("again", ["train/03.jpeg", "./train/03.jpeg", "val/../train/03.jpeg", "train//03.jpeg"])
def test_what_is_odd_is_noted(root: Path, again: str) -> None:
    text = (root / "train_list.txt").read_text()
    (root / "train_list.txt").write_text(text + f"{again} 3\n./val/02.jpeg 2\n")
    (root / "val_list.txt").write_text("val/02.jpeg 5\nval/03.jpeg 5\n")
    assert surveyed(root).notes == [
        "the training set names 1 file more than once, the first is train/03.jpeg",
        "the evaluation set has one class alone, 5: there is nothing to tell apart",
        "training and evaluation have 1 file in common, the first is val/02.jpeg",
    ]
    (root / "val/03.jpeg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"val/03\.jpeg: is empty: replace"):
        surveyed(root)


def said_of_copies(root: Path) -> list[str]:
    return [note for note in surveyed(root).notes if "images have the sizes in bytes of the training" in note]


def test_a_part_that_is_the_other_again_is_noted(root: Path, tmp_path: Path) -> None:
    """Each passed in silence: class folders that were linked or copied, and equal records."""
    small.by_class(root)
    assert said_of_copies(root) == []
    shutil.rmtree(root / "val")
    (root / "val").symlink_to("train")
    assert len(said_of_copies(root)) == 1
    pack.pack(root, tmp_path / "packed", "train")
    for end in (".rec", ".idx"):
        shutil.copy(tmp_path / f"packed/train{end}", tmp_path / f"packed/val{end}")
    assert said_of_copies(tmp_path / "packed") == [
        "the 40 evaluation images have the sizes in bytes of the training images: they seem to be these again, on "
        "which accuracy means nothing: see that each part has its own"
    ]


def test_bitmaps_of_one_size_are_not_taken_for_copies(root: Path) -> None:
    small.by_class(root)
    shutil.rmtree(root / "val")
    shutil.copytree(root / "train", root / "val")
    for path in root.glob("*/*/*.jpeg"):
        Image.open(path).save(path, "BMP")
    assert said_of_copies(root) == []


def test_a_file_with_two_labels_is_noted(root: Path) -> None:
    with (root / "train_list.txt").open("a") as listing:
        listing.write("train/02.jpeg 2\n./train/03.jpeg 4\n")
    repeated, contradicted = surveyed(root).notes
    assert repeated == "the training set names 2 files more than once, the first is train/02.jpeg"
    assert contradicted.startswith("the training set gives 1 file more than one label, the first is train/03.jpeg: ")


def test_labels_that_begin_at_1_in_one_part_are_noted(root: Path) -> None:
    text = (root / "val_list.txt").read_text()
    lines = [line.split() for line in text.splitlines()]
    (root / "val_list.txt").write_text("".join(f"{path} {int(label) + 3}\n" for path, label in lines))
    said = "the training set has no image of 1 of the evaluated classes, the first is 10 (val/07.jpeg)"
    found = passport.survey(data.find(root, "train", 20), data.find(root, "val", 20), print)
    assert found.notes == [f"{said}: see that the labels of both count from the same number"]


def test_labels_that_begin_at_1_in_both_parts_are_noted(root: Path) -> None:
    """They passed in silence where the recipe has more classes than the highest label says."""
    for part in ("train", "val"):
        text = (root / f"{part}_list.txt").read_text()
        lines = [line.split() for line in text.splitlines()]
        (root / f"{part}_list.txt").write_text("".join(f"{path} {int(label) + 1}\n" for path, label in lines))
    found = passport.survey(data.find(root, "train", 20), data.find(root, "val", 20), print)
    said = (
        "the training set has the labels 1 to 10 and no 0: labels count from 0 here: if its list counts from 1, take 1"
    )
    assert found.notes == [f"{said} from each label of both parts"]


def numbered(root: Path, part: str, labels: dict[str, int]) -> None:
    """Write a list of a part with two images in a folder of each class, labelled as given."""
    lines = []
    for name, label in labels.items():
        for number in range(2):
            path = root / part / name / f"{part}_{number}.jpeg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"image")
            lines.append(f"{path.relative_to(root)} {label}\n")
    (root / f"{part}_list.txt").write_text("".join(lines))


def test_class_folders_that_two_lists_number_differently_are_noted(root: Path) -> None:
    numbered(root, "train", {"cat": 0, "dog": 1, "fox": 2})
    numbered(root, "val", {"cat": 1, "dog": 0, "fox": 2})
    assert surveyed(root).notes == [
        "the lists give 2 of 3 class folders another label in the evaluation set than in the training set, the first "
        "is cat, trained as 0 and evaluated as 1: number the classes of both in one way"
    ]


def test_folders_that_are_no_classes_may_have_other_labels_in_each_part(root: Path) -> None:
    numbered(root, "train", {"shard0": 0, "shard1": 1, "cat": 2})
    numbered(root, "val", {"shard0": 1, "shard1": 0, "dog": 2})
    with (root / "val_list.txt").open("a") as listing:
        listing.write("val/00.jpeg 2\n")
        (root / "val/shard1/more.jpeg").write_bytes(b"image")
        listing.write("val/shard1/more.jpeg 1\n")
    assert surveyed(root).notes == []


def test_sizes_of_many_files_are_kept_until_one_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passport, "STORED_FROM", 40)
    monkeypatch.setattr(passport, "CHECKED", 40)
    first = surveyed(root)
    kept = root / "train.filesizes"
    content = kept.read_bytes()
    assert surveyed(root) == first and kept.read_bytes() == content and not (root / "val.filesizes").exists()
    asked = []

    def size(path: str) -> int:
        asked.append(path)
        return Path(path).stat().st_size

    monkeypatch.setattr(passport, "CHECKED", 3)
    monkeypatch.setattr(passport, "_size", size)
    assert surveyed(root) == first and len(asked) == 3 + 8
    monkeypatch.setattr(passport, "CHECKED", 40)
    (root / "train/11.jpeg").write_bytes(b"changed")
    changed = surveyed(root).train
    assert changed.bytes != first.train.bytes and kept.read_bytes() != content
    for damaged in (b"damaged", kept.read_bytes() + bytes(8)):
        kept.write_bytes(damaged)
        assert surveyed(root).train == changed


def test_packed_images_carry_their_sources_passport(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    for part in pack_lists.PARTS:
        pack.pack(root, target, part)
    train = data.find(target, "train", 10)
    of_files = surveyed(root).train
    of_records = surveyed(target).train
    assert isinstance(train, records.Records)
    assert train.source == of_files and isinstance(train.format, type(recordio.FORM))
    assert (of_records.files, of_records.bytes, of_records.is_exact) == (40, of_files.bytes, True)


def test_a_source_is_of_the_records_that_are_read(root: Path, tmp_path: Path) -> None:
    """The log had the passport of a pack whose records were replaced or removed."""
    for part in pack_lists.PARTS:
        pack.pack(root, root, part)
    shutil.copytree(root, tmp_path / "replaced")
    for end in ("rec", "idx"):
        shutil.copy(root / f"val.{end}", tmp_path / "replaced" / f"train.{end}")
        (root / f"train.{end}").unlink()
    assert data.find(root, "train", 10).source is None
    with pytest.raises(ValueError, match=r"train\.rec: has 8 records of .* a pack of 40 files .*: remove that"):
        surveyed(tmp_path / "replaced")
