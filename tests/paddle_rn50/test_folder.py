"""Images in files: what a list may look like, class folders, and what is said of a set before a run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness import lists, passport
from paddle_rn50 import data, folder, recordio
from tests.harness import small
from tools import pack, pack_lists


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small.data_set(tmp_path / "data")


def surveyed(root: Path) -> passport.Surveyed:
    return passport.survey(data.find(root, "train", 10), data.find(root, "val", 10), print)


# ---- lists


@pytest.mark.parametrize(
    "line",
    [
        "{root}/train/07.jpeg 6",
        "train/07.jpeg\t6",
        "train\\07.jpeg 6\r",
        '"train/07.jpeg","6"',
        "train/07.jpeg;6",
        "\ufefftrain/07.jpeg , 6",
    ],
)
def test_forms_of_a_line(root: Path, line: str) -> None:
    """Absolute, of Windows, of a spreadsheet: all are the same file."""
    (root / "train_list.txt").write_text(line.format(root=root) + "\n", newline="")
    images = data.find(root, "train", 10)
    assert images.labels.tolist() == [6]
    assert images.read(np.array([0]))[0] == [(root / "train/07.jpeg").read_bytes()]
    assert isinstance(images, folder.ImageList) and images.paths == ("train/07.jpeg",)


def test_a_path_with_backslashes_at_which_something_is_stays_as_it_is(root: Path) -> None:
    (root / "train\\07.jpeg").mkdir()
    folders = lists.Folders(root)
    assert folders.relative("train\\07.jpeg") == "train\\07.jpeg"
    assert folders.relative("train\\06.jpeg") == "train/06.jpeg"


def test_a_file_outside_is_read_by_its_absolute_path(root: Path, tmp_path: Path) -> None:
    (root / "train/07.jpeg").rename(tmp_path / "else where.jpeg")
    (root / "train_list.txt").write_text(f"{tmp_path}/else where.jpeg 6\n")
    images = data.find(root, "train", 10)
    assert images.name(0) == f"{tmp_path}/else where.jpeg" and len(images.read(np.array([0]))[0][0]) > 500


@pytest.mark.parametrize(
    ("name", "said"), [("folder.jpeg", "is a folder, not a file"), ("link.jpeg", "is a link to a file that is absent")]
)
def test_what_is_no_file_is_refused_at_the_start(root: Path, name: str, said: str) -> None:
    (root / "folder.jpeg").mkdir()
    (root / "link.jpeg").symlink_to("nowhere")
    (root / "train_list.txt").write_text(f"train/00.jpeg 1\n{name} 1\n")
    with pytest.raises(ValueError, match=f"train_list.txt:2: {root}/{name} {said}: restore it or remove the line"):
        data.find(root, "train", 10)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("train/00.jpeg 1\n".encode("utf-16"), "is UTF-16, as a spreadsheet saves it: save it as UTF-8 text"),
        (b"\xff\xfe" + bytes(range(256)) * 9, "is not text: give a list with a sample in each line"),
        (bytes(range(256)), "is not text: give a list with a sample in each line"),
    ],
)
def test_a_list_in_utf_16_and_one_that_is_no_text_are_said_to_be_so(root: Path, content: bytes, said: str) -> None:
    (root / "train_list.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"train_list\.txt: {said}$"):
        data.find(root, "train", 10)


# ---- class folders


def by_class(root: Path) -> Path:
    """Lay the set out in class folders, whose sorted names are the labels."""
    for part in ("train", "val"):
        for line in (root / f"{part}_list.txt").read_text().splitlines():
            path, label = line.split()
            place = root / part / f"n{int(label):02d}"
            place.mkdir(exist_ok=True)
            (root / path).rename(place / Path(path).name)
        (root / f"{part}_list.txt").unlink()
    for number in (8, 9):  # classes of which val has no image
        (root / f"val/n{number:02d}").mkdir()
        shutil.copy(root / f"train/n{number:02d}/{number:02d}.jpeg", root / f"val/n{number:02d}/x.JPEG")
    return root


def test_class_folders_are_labels_by_name(root: Path) -> None:
    by_class(root)
    (root / "train/n03/.hidden.jpeg").write_text("no image")
    images = data.find(root, "train", 10)
    assert isinstance(images, folder.ImageList) and len(images) == 40 and images.notes == ()
    for path, label in zip(images.paths, images.labels, strict=True):
        assert path.startswith(f"train/n{label:02d}/") and int(Path(path).stem) % 10 == label
    assert len(data.find(root, "val", 10)) == 10
    before = surveyed(root)
    lists = pack_lists.write_lists(root, None)
    assert [line.rpartition(": ")[2] for line in lists] == ["40 images", "10 images"]
    assert surveyed(root) == before, "the lists name the same files and labels"
    with pytest.raises(ValueError, match=r"train_list\.txt: is there: remove it"):
        pack_lists.write_lists(root, None)


@pytest.mark.parametrize("path", ["train/n03/notes.txt", "train/n03/deep/moving.gif", "train/no_class.jpeg"])
def test_files_of_no_class_are_named(root: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_class(root)
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("no image of a class")
    images = data.find(root, "train", 10)
    note = f"{root}/train has 1 files that are no images of a class folder and are passed over, "
    assert images.notes == (f"{note}the first is {root / path}",) and len(images) == 40
    pack_lists.write_lists(root, None)
    assert capsys.readouterr().err == f"warning: {images.notes[0]}\n"


def test_class_folders_that_do_not_fit_are_refused(root: Path) -> None:
    by_class(root)
    with pytest.raises(ValueError, match="has 10 class folders, the recipe 9 classes"):
        data.find(root, "train", 9)
    assert "10 class folders, the recipe 11 classes: they are numbered from 0" in data.find(root, "train", 11).notes[0]
    (root / "val/n04").rename(root / "val/other")
    with pytest.raises(ValueError, match=r"val: has other class folders than .*train \(n04 is in one"):
        data.find(root, "val", 10)
    (root / "train/empty").mkdir()
    with pytest.raises(ValueError, match="train/empty: this class folder has no image"):
        data.find(root, "train", 11)


def test_a_link_that_leads_to_itself_is_named(root: Path) -> None:
    by_class(root)
    (root / "train/n03/loop.jpeg").symlink_to("loop.jpeg")
    with pytest.raises(ValueError, match=r"train/n03/loop\.jpeg: is a link that leads back to itself"):
        data.find(root, "train", 10)


@pytest.mark.parametrize(("link", "to"), [("up", "."), ("up", ".."), ("up", "../.."), ("a", "../n04")])
def test_a_link_back_to_its_folder_is_named_once(root: Path, link: str, to: str) -> None:
    """It was named by the path of 40 rounds."""
    by_class(root)
    (root / "train/n03" / link).symlink_to(to)
    (root / "train/n04/back").symlink_to("../n03" if link == "a" else "../n05")
    with pytest.raises(ValueError, match=r": is a link back to \S+, in which it lies: remove the link$") as caught:
        data.find(root, "train", 10)
    assert f"{root}/train/n03/{'a/back' if link == 'a' else 'up'}: is a link back" in str(caught.value)


def test_a_flat_val_needs_its_labels(root: Path, tmp_path: Path) -> None:
    labels = tmp_path / "val.txt"
    labels.write_text((root / "val_list.txt").read_text().replace("val/", ""))
    wanted = (root / "val_list.txt").read_text()
    flat = [(path, path.read_bytes()) for path in (root / "val").iterdir()]
    by_class(root)
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    for path, content in flat:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"val: has no class folders and no val_list\.txt .* tools\.pack --lists"):
        data.find(root, "val", 10)
    pack_lists.write_lists(root, labels)
    assert (root / "val_list.txt").read_text() == wanted


def test_hidden_folders_of_a_class_are_left_out(root: Path) -> None:
    by_class(root)
    before = data.find(root, "train", 10).paths
    shutil.copytree(root / "train/n03", root / "train/n03/.ipynb_checkpoints")
    assert data.find(root, "train", 10).paths == before


def test_a_class_whose_link_is_dead_renumbers_no_other(root: Path) -> None:
    by_class(root)
    for part in ("train", "val"):
        shutil.rmtree(root / part / "n03")
        (root / part / "n03").symlink_to(root / "absent")
    with pytest.raises(ValueError, match=r"train/n03: is a link to a class folder that is absent: restore it"):
        data.find(root, "train", 10)


@pytest.mark.parametrize("name", ["train_list.txt", "train.rec", "train-00000-of-00001"])
def test_a_dead_link_is_not_passed_over_for_class_folders(root: Path, name: str) -> None:
    """All class folders were trained on where a list of fewer images was meant."""
    by_class(root)
    (root / name).symlink_to("/absent/disk")
    with pytest.raises(ValueError, match=rf"/{name}: is a link to a file that is absent: restore the file or remove"):
        data.find(root, "train", 10)


@pytest.mark.parametrize("unpacked", [["n01440764", "n01484850"], []])
def test_a_class_of_imagenet_that_is_not_unpacked_renumbers_no_other(root: Path, unpacked: list[str]) -> None:
    """The archives were passed over with a note, and the classes behind them had numbers that are not theirs."""
    shutil.rmtree(root / "train")
    (root / "train_list.txt").unlink()
    for name in unpacked:
        (root / "train" / name).mkdir(parents=True)
        shutil.copy(root / "val/00.jpeg", root / "train" / name / "a.JPEG")
    (root / "train").mkdir(exist_ok=True)
    for name in ("n01440764", "n01443537"):  # the first is the archive of a folder that is there, or may be
        (root / "train" / f"{name}.tar").write_bytes(b"archive")
    first = "n01443537" if unpacked else "n01440764"
    with pytest.raises(
        ValueError, match=rf"/train: has {2 - bool(unpacked)} archives? of .* the first is {first}\.tar: un"
    ):
        data.find(root, "train", 1000)
    (root / "train/n01443537").mkdir()
    shutil.copy(root / "val/00.jpeg", root / "train/n01443537")
    if unpacked:
        assert data.find(root, "train", 1000).labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("listed", ["train", "val"])
def test_a_list_and_class_folders_number_the_classes_alike(root: Path, listed: str) -> None:
    by_class(root)
    folders = "val" if listed == "train" else "train"
    text = folder.list_text(folder.by_class_folders(root, listed, 10)).decode()
    list_file = root / f"{listed}_list.txt"
    list_file.write_text(text)
    right = data.find(root, folders, 10)
    list_file.write_text("".join(f"{line[:-1]}{9 - int(line[-1])}\n" for line in text.splitlines()))
    with pytest.raises(
        ValueError,
        match=rf"{listed}_list\.txt:1: gives n00 the label 9, but \S+/{folders}/n00 is number 0 of the class folders",
    ):
        data.find(root, folders, 10)
    list_file.write_text("/elsewhere/n00/x.jpeg 9\nno label\n")  # of no class folder of this set
    assert data.find(root, folders, 10).paths == right.paths


@pytest.mark.parametrize("line_break", ["\n", "\r"])
def test_a_name_with_a_line_break_is_not_written_to_a_list(root: Path, line_break: str) -> None:
    by_class(root)
    (root / "train/n03/13.jpeg").rename(root / f"train/n03/1{line_break}3.jpeg")
    with pytest.raises(ValueError, match=r"train/n03/1\\\w3\.jpeg': its name has a line break: rename the file"):
        pack_lists.write_lists(root, None)
    assert not (root / "train_list.txt").exists()


def test_a_label_of_very_many_digits_is_named(root: Path) -> None:
    (root / "train_list.txt").write_text("train/07.jpeg " + "9" * 5000)
    with pytest.raises(ValueError, match=r"train_list\.txt:1: 'train/07\.jpeg 9+' has no label: write 'path label'"):
        data.find(root, "train", 10)


def test_images_and_classes_that_a_flat_vals_labels_lack(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_class(root)
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    for name in ("a.JPEG", "b.JPEG", "c.JPEG"):
        shutil.copy(root / "train/n03/03.jpeg", root / "val" / name)
    labels = tmp_path / "labels.txt"
    labels.write_text("a.JPEG 1\nb.JPEG 10\n")
    with pytest.raises(ValueError, match=r"labels\.txt:2: label 10 is out of range: \S+/train has 10 class folders"):
        pack_lists.write_lists(root, labels)
    labels.write_text("a.JPEG 1\nb.JPEG 2\nval/a.JPEG 3\n")  # of which both lines were written
    with pytest.raises(ValueError, match=rf"{labels}:3: names a\.JPEG again, after {labels}:1: remove the line that "):
        pack_lists.write_lists(root, labels)
    assert not (root / "val_list.txt").exists()
    labels.write_text("c.JPEG 1\n")
    pack_lists.write_lists(root, labels)
    said = f"{labels}: does not name 2 images of {root}/val: left out of the list, the first is a.JPEG"
    assert capsys.readouterr().err == f"warning: {said}\n"
    assert (root / "val_list.txt").read_text() == "val/c.JPEG 1\n"


@pytest.mark.parametrize("below", ["CLS-LOC", "ILSVRC/Data/CLS-LOC"])
def test_a_folder_within_datadir_that_has_the_part_is_named(root: Path, tmp_path: Path, below: str) -> None:
    """The advice was to write a list."""
    by_class(root)
    meant = tmp_path / "imagenet" / below
    meant.parent.mkdir(parents=True)
    root.rename(meant)
    with pytest.raises(ValueError, match=rf"; is {meant} meant, which has val/\?$"):
        data.find(tmp_path / "imagenet", "val", 10)
    shutil.rmtree(meant)
    with pytest.raises(ValueError, match=r"under a name of docs/data\.md$"):
        data.find(tmp_path / "imagenet", "val", 10)


def test_the_folder_above_is_named_where_datadir_is_a_part(root: Path) -> None:
    by_class(root)
    with pytest.raises(ValueError, match=rf"; is {root} meant, which has val/\?$"):
        data.find(root / "train", "val", 10)


@pytest.mark.parametrize("name", ["validation", "valid"])
def test_a_part_under_the_name_of_other_tools_is_named(root: Path, name: str) -> None:
    by_class(root)
    (root / "val").rename(root / name)
    with pytest.raises(ValueError, match=rf"; is {root}/{name}/ meant\? rename it val/$"):
        data.find(root, "val", 10)


# ---- forms that are not read


@pytest.mark.parametrize(
    "name",
    [
        "validation-00000-of-00001.parquet",
        "data/validation-00000-of-00014-0d3c.parquet",
        "val/0000.parquet",
        "validation/data-00000-of-00001.arrow",
    ],
)
def test_a_table_of_hugging_face_is_said_not_to_be_read(root: Path, name: str, tmp_path: Path) -> None:
    """A name of TFRecord brought the advice to make its index."""
    by_class(root)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(b"PAR1")
    assert len(data.find(root, "val", 10)) == 10, "beside class folders it is passed over"
    other = tmp_path / "other"
    (other / name).parent.mkdir(parents=True)
    (root / name).rename(other / name)
    end = Path(name).suffix[1:]
    said = f"{other / name}: is a file of Hugging Face's datasets, and {end} is not read: save its images into class f"
    with pytest.raises(ValueError, match=said):
        data.find(other, "val", 10)
    with pytest.raises(ValueError, match=said):
        pack._files_of_part(other, "val")


# ---- the passport


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
        "the training set names 1 files more than once, the first is train/03.jpeg",
        "the evaluation set has one class alone, 5: there is nothing to tell apart",
        "1 files are trained on and evaluated, the first is val/02.jpeg",
    ]
    (root / "val/03.jpeg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"val/03\.jpeg: is empty: replace"):
        surveyed(root)


def said_of_copies(root: Path) -> list[str]:
    return [note for note in surveyed(root).notes if "images have the sizes in bytes of the training" in note]


def test_a_part_that_is_the_other_again_is_noted(root: Path, tmp_path: Path) -> None:
    """Each passed in silence: class folders that were linked or copied, and equal records."""
    by_class(root)
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
    by_class(root)
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
    assert contradicted.startswith("the training set gives 1 files more than one label, the first is train/03.jpeg: ")


def test_labels_that_begin_at_1_in_one_part_are_noted(root: Path) -> None:
    text = (root / "val_list.txt").read_text()
    lines = [line.split() for line in text.splitlines()]
    (root / "val_list.txt").write_text("".join(f"{path} {int(label) + 3}\n" for path, label in lines))
    said = "the evaluation set has 1 classes that the training set has no image of, the first is 10 (val/07.jpeg)"
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
    monkeypatch.setattr(passport, "CHECKED", 3)
    monkeypatch.setattr(passport, "_size", lambda path: asked.append(path) or Path(path).stat().st_size)
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
    assert train.source == of_files and isinstance(train.format, type(recordio.FORM))
    assert (of_records.files, of_records.bytes, of_records.is_exact) == (40, of_files.bytes, True)
