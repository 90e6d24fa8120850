"""Images in files: what a list may look like, and class folders."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from harness import lists, passport
from paddle_rn50 import data, folder
from tests.harness import small
from tools import pack, pack_lists


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small.data_set(tmp_path / "data")


def surveyed(root: Path) -> passport.Surveyed:
    return passport.survey(data.find(root, "train", 10), data.find(root, "val", 10), print)


def found(root: Path, part: str, classes: int) -> folder.ImageList:
    """Those of a part that is not packed."""
    images = data.find(root, part, classes)
    assert isinstance(images, folder.ImageList)
    return images


# ---- lists


@pytest.mark.parametrize("path", ["train/07.jpeg", "{root}/train/07.jpeg"])
def test_a_relative_datadir_reads_the_paths_of_an_absolute_one(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute paths stayed so, and "train/07.jpeg" was looked for as "07.jpeg" where DATADIR itself is named train."""
    renamed = root.with_name("train")
    (root / "train_list.txt").write_text(path.format(root=renamed) + " 6\n")
    root.rename(renamed)
    monkeypatch.chdir(root.parent)
    assert found(Path("train"), "train", 10).paths == ("train/07.jpeg",)


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
    images = found(root, "train", 10)
    assert images.labels.tolist() == [6]
    assert images.read(np.array([0]))[0] == [(root / "train/07.jpeg").read_bytes()]
    assert images.paths == ("train/07.jpeg",)


def test_a_list_may_have_the_paths_to_which_a_link_leads(root: Path, tmp_path: Path) -> None:
    """Where DATADIR is a link to another disk on each node, its lists were refused as different."""
    link = tmp_path / "link"
    link.symlink_to(root)
    (root / "train_list.txt").write_text(f"{root}/train/07.jpeg 6\n")
    assert found(link, "train", 10).paths == ("train/07.jpeg",)


def test_a_path_with_backslashes_at_which_something_is_stays_as_it_is(root: Path) -> None:
    (root / "train\\07.jpeg").mkdir()
    folders = lists.Folders(root)
    assert folders.relative("train\\07.jpeg") == "train\\07.jpeg"
    assert folders.relative("train\\06.jpeg") == "train/06.jpeg"


def test_paths_that_are_relative_to_the_part_are_said_to_be_so(root: Path) -> None:
    """Of Caffe's val.txt as it is, each line was to be removed."""
    (root / "val_list.txt").write_text("00.jpeg 0\n")
    said = rf"val_list\.txt:1: {root}/00\.jpeg is absent, val/00\.jpeg is there: write val/ before the paths"
    with pytest.raises(ValueError, match=said):
        data.find(root, "val", 10)


@pytest.mark.parametrize("before", ["/home/me/set/", "set/", "C:\\data\\"])
def test_paths_of_another_machine_are_said_to_be_so(root: Path, before: str) -> None:
    """Each line of such a list was to be removed."""
    (root / "val_list.txt").write_text(f"{before}val/00.jpeg 0\n")
    said = rf"is absent, val/00\.jpeg is there: write the paths as they count from {root}"
    with pytest.raises(ValueError, match=said):
        data.find(root, "val", 10)


def test_a_file_outside_is_read_by_its_absolute_path(root: Path, tmp_path: Path) -> None:
    (root / "train/07.jpeg").rename(tmp_path / "else where.jpeg")
    (root / "train_list.txt").write_text(f"{tmp_path}/else where.jpeg 6\n")
    images = data.find(root, "train", 10)
    assert images.name(0) == f"{tmp_path}/else where.jpeg" and len(images.read(np.array([0]))[0][0]) > 500


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder.jpeg", "is a folder, not a file"),
        ("link.jpeg", "is a link to a file that is absent"),
        ("pipe.jpeg", "is a pipe, a socket or a device, not a file"),
        ("link_to_pipe.jpeg", "is a pipe, a socket or a device, not a file"),
    ],
)
def test_what_is_no_file_is_refused_at_the_start(root: Path, name: str, said: str) -> None:
    (root / "folder.jpeg").mkdir()
    (root / "link.jpeg").symlink_to("nowhere")
    os.mkfifo(root / "pipe.jpeg")
    (root / "link_to_pipe.jpeg").symlink_to("pipe.jpeg")
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


def test_class_folders_are_labels_by_name(root: Path) -> None:
    small.by_class(root)
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
    small.by_class(root)
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("no image of a class")
    images = data.find(root, "train", 10)
    note = f"{root}/train: passed over 1 file other than images of a class folder, "
    assert images.notes == (f"{note}the first is {root / path}",) and len(images) == 40
    pack_lists.write_lists(root, None)
    assert capsys.readouterr().err == f"warning: {images.notes[0]}\n"


def test_class_folders_that_do_not_fit_are_refused(root: Path) -> None:
    small.by_class(root)
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
    small.by_class(root)
    (root / "train/n03/loop.jpeg").symlink_to("loop.jpeg")
    with pytest.raises(ValueError, match=r"train/n03/loop\.jpeg: is a link that leads back to itself"):
        data.find(root, "train", 10)


@pytest.mark.parametrize(("link", "to"), [("up", "."), ("up", ".."), ("up", "../.."), ("a", "../n04")])
def test_a_link_back_to_its_folder_is_named_once(root: Path, link: str, to: str) -> None:
    """It was named by the path of 40 rounds."""
    small.by_class(root)
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
    small.by_class(root)
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    for path, content in flat:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"val: has no class folders and no val_list\.txt .* tools\.pack --lists"):
        data.find(root, "val", 10)
    pack_lists.write_lists(root, labels)
    assert (root / "val_list.txt").read_text() == wanted


def test_hidden_folders_of_a_class_are_left_out(root: Path) -> None:
    small.by_class(root)
    before = found(root, "train", 10).paths
    shutil.copytree(root / "train/n03", root / "train/n03/.ipynb_checkpoints")
    assert found(root, "train", 10).paths == before


def test_a_class_whose_link_is_dead_renumbers_no_other(root: Path) -> None:
    small.by_class(root)
    for part in ("train", "val"):
        shutil.rmtree(root / part / "n03")
        (root / part / "n03").symlink_to(root / "absent")
    with pytest.raises(ValueError, match=r"train/n03: is a link to a class folder that is absent: restore it"):
        data.find(root, "train", 10)


@pytest.mark.parametrize("name", ["train_list.txt", "train.rec", "train-00000-of-00001"])
def test_a_dead_link_is_not_passed_over_for_class_folders(root: Path, name: str) -> None:
    """All class folders were trained on where a list of fewer images was meant."""
    small.by_class(root)
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
        assert found(root, "train", 1000).labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("listed", ["train", "val"])
def test_a_list_and_class_folders_number_the_classes_alike(root: Path, listed: str) -> None:
    small.by_class(root)
    folders = "val" if listed == "train" else "train"
    text = folder.list_text(folder.by_class_folders(root, listed, 10)).decode()
    list_file = root / f"{listed}_list.txt"
    list_file.write_text(text)
    right = found(root, folders, 10)
    list_file.write_text("".join(f"{line[:-1]}{9 - int(line[-1])}\n" for line in text.splitlines()))
    with pytest.raises(
        ValueError,
        match=rf"{listed}_list\.txt:1: gives n00 the label 9, but \S+/{folders}/n00 is number 0 of the class folders",
    ):
        data.find(root, folders, 10)
    list_file.write_text("/elsewhere/n00/x.jpeg 9\nno label\n")  # of no class folder of this set
    assert found(root, folders, 10).paths == right.paths


def test_class_folders_named_by_numbers_are_noted_beside_a_list(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a flat val/ with its labels in a list, folder 10 was trained as 2 and evaluated as 10 in silence."""
    small.by_class(root)
    shutil.rmtree(root / "train")
    for number in range(11):
        (root / f"train/{number}").mkdir(parents=True)
        shutil.copy(root / "val/n00/00.jpeg", root / f"train/{number}/a.jpeg")
    assert data.find(root, "train", 11).notes == ()
    (root / "val_list.txt").write_text("val/n00/00.jpeg 10\n")
    said = f"{root}/train/10 has the label 2, as class folders are numbered by name: see that val_list.txt gives that"
    assert data.find(root, "train", 11).notes == (f"{said} class 2, too, or write train_list.txt",)
    (root / "train/10").rename(root / "train/-1")
    (note,) = data.find(root, "train", 11).notes
    assert note.startswith(f"{root}/train/-1 has the label 0, as class folders are numbered by name: see that ")
    (root / "train/-1").rename(root / "train/10")
    labels = tmp_path / "labels.txt"
    labels.write_text("00.jpeg 10\n")
    (root / "val/n00/00.jpeg").rename(root / "val/00.jpeg")
    (root / "val_list.txt").unlink()
    pack_lists.write_lists(root, labels)
    assert f"warning: {said.replace('val_list.txt', 'labels.txt')} class 2" in capsys.readouterr().err
    for part in ("train", "val"):
        (root / f"{part}_list.txt").unlink()
    (root / "val_list.txt").write_text("val/00.jpeg 10\n")
    (root / "train/10").rename(root / "train/9a")
    assert data.find(root, "train", 11).notes == ()


@pytest.mark.parametrize("line_break", ["\n", "\r"])
def test_a_name_with_a_line_break_is_not_written_to_a_list(root: Path, line_break: str) -> None:
    small.by_class(root)
    (root / "train/n03/13.jpeg").rename(root / f"train/n03/1{line_break}3.jpeg")
    with pytest.raises(ValueError, match=r"train/n03/1\\\w3\.jpeg': its name has a line break: rename the file"):
        pack_lists.write_lists(root, None)
    assert not (root / "train_list.txt").exists()


def test_a_label_of_very_many_digits_is_named(root: Path) -> None:
    (root / "train_list.txt").write_text("train/07.jpeg " + "9" * 5000)
    with pytest.raises(ValueError, match=r"train_list\.txt:1: 'train/07\.jpeg 9+' has no label, a whole number from 0"):
        data.find(root, "train", 10)


def test_the_devkits_labels_are_said_to_be_in_another_order(root: Path, tmp_path: Path) -> None:
    """The advice to put names before them gives a list of wrong classes, which nothing can find."""
    (root / "val_list.txt").write_text("490\n361\n")
    said = r": '490' is only a number: write '{}'; ImageNet's devkit numbers the classes in another order than class f"
    with pytest.raises(ValueError, match=r"val_list\.txt:1" + said.format("path label")):
        data.find(root, "val", 1000)
    (root / "val_list.txt").rename(tmp_path / "truth.txt")
    (root / "train_list.txt").unlink()
    (root / "train/n01").mkdir()
    (root / "train/00.jpeg").rename(root / "train/n01/00.jpeg")
    with pytest.raises(ValueError, match=r"truth\.txt:1" + said.format("name label")):
        pack_lists.write_lists(root, tmp_path / "truth.txt")


def test_images_and_classes_that_a_flat_vals_labels_lack(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.by_class(root)
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
    small.by_class(root)
    meant = tmp_path / "imagenet" / below
    meant.parent.mkdir(parents=True)
    root.rename(meant)
    with pytest.raises(ValueError, match=rf"; is {meant} meant, which has val/\?$"):
        data.find(tmp_path / "imagenet", "val", 10)
    shutil.rmtree(meant)
    with pytest.raises(ValueError, match=r"under a name of docs/data\.md$"):
        data.find(tmp_path / "imagenet", "val", 10)


def test_the_folder_above_is_named_where_datadir_is_a_part(root: Path) -> None:
    small.by_class(root)
    with pytest.raises(ValueError, match=rf"; is {root} meant, which has val/\?$"):
        data.find(root / "train", "val", 10)


@pytest.mark.parametrize("name", ["validation", "valid"])
def test_a_part_under_the_name_of_other_tools_is_named(root: Path, name: str) -> None:
    small.by_class(root)
    (root / "val").rename(root / name)
    with pytest.raises(ValueError, match=rf"; is {root}/{name}/ meant\? rename it val/$"):
        data.find(root, "val", 10)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["imagenet_train.rec"], r"; is .*_train\.rec meant\? rename it train\.rec, and its index train\.idx$"),
        (["set-train.tfrecord-00000-of-00001"], r"; is .*-of-00001 meant\? .* as .*/train\*\.tfrecord: rename them$"),
        (["imagenet-train-00000-of-00002"], r"; is .*-of-00002 meant\? .* as .*/train\*\.tfrecord: rename them$"),
        (["train/a.tfrecord.idx", "train/a.tfrecord"], r"val_list\.txt; is .*/train/a\.tfrecord meant\? TFRecord "),
        (["train_0.rec", "train_1.rec"], r"; are .*/train_0\.rec and 1 more meant\? make one train\.rec of them, "),
    ],
)
def test_records_under_another_name_are_named(tmp_path: Path, names: list[str], said: str) -> None:
    """A list or class folders were asked for."""
    for name in (*names, "val.rec"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=said):
        data.find(tmp_path, "train", 10)


def test_records_that_need_no_other_name_are_not_said_to(tmp_path: Path) -> None:
    """Nor is another folder said to be a file of records."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train.tfrecord").touch()
    (tmp_path / "train-of-2012").mkdir()
    with pytest.raises(ValueError, match=r"train: has no class folders .* or PaddleClas' val_list\.txt$"):
        folder.find(tmp_path, "train", 10)


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
    small.by_class(root)
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
