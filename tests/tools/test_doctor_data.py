"""What the doctor says of a data set, and which job it looks at."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from harness import data_check
from harness.embedded import make_once
from harness.job import job_of
from paddle_rn50 import data
from runlog.verdict import Verdict
from tests import jobs
from tests.harness import small
from tools import pack, pack_lists
from tools.doctor import checks as doctor_checks
from tools.doctor import node as doctor_node


def by_check(results: list[Verdict], check: str) -> list[Verdict]:
    return [result for result in results if result.check == check]


def looked_at(root: Path) -> list[tuple[str, str]]:
    """What is said of the lists and samples of a data set."""
    facts = {"drop_caches": True, "data": doctor_node.data_facts(job_of(datadir=str(root)), has_packages=True)}
    return [(v.status, v.found) for v in doctor_checks.judge_data(facts, job_of()) if v.check != "data.page_cache"]


def test_the_doctor_alone_looks_at_the_system_that_is_named(tmp_path):
    """Without its config file a job of DGXA100 would be one of two processes on a CPU, for which all is well."""
    doctor = [sys.executable, "-m", "tools.doctor", "--json"]
    done = jobs.run(doctor, DGXSYSTEM="DGXA100", DATADIR=tmp_path)
    wanted = {row["check"]: row["wanted"] for row in json.loads(done.stdout)}
    assert done.returncode == 1 and wanted["gpu.count"] == "at least DGXNGPU=8"
    done = jobs.run(doctor, DGXSYSTEM="none")
    assert done.returncode == 2 and done.stderr.startswith("error: DGXSYSTEM=none: there is no config_none.sh")


def test_data_set_that_misses_a_file(tmp_path):
    root = small.data_set(tmp_path / "data")
    odd, listing = os.fsdecode(b"train/\xe9t\xe9 1.jpeg"), root / "train_list.txt"  # as training takes it
    (root / "train/00.jpeg").rename(root / odd)
    listing.write_bytes(listing.read_bytes().replace(b"train/00.jpeg", os.fsencode(odd)))
    found = looked_at(root)
    assert [status for status, _ in found] == ["ok"] * 4 and "40 samples" in found[0][1]
    (root / "train" / "03.jpeg").unlink()
    (root / "val" / "00.jpeg").write_bytes(b"\xff\xd8\xff")
    listed, _, decoded = looked_at(root)
    assert listed[0] == decoded[0] == "fatal" and "train/03.jpeg" in listed[1]
    assert "val/00.jpeg: it is truncated" in decoded[1]
    said = "DATADIR={}: no such folder{}: set DATADIR to the folder of the data set"
    nowhere = tmp_path / "nowhere"
    assert looked_at(nowhere) == [("fatal", said.format(nowhere, ""))] * 2
    counts_from = f" in {Path.cwd()}, from which it counts"
    assert looked_at(Path("no/where")) == [("fatal", said.format("no/where", counts_from))] * 2


@pytest.mark.parametrize("workload", ["rn50", "hrnet"])
def test_the_embedded_data_set_is_the_workloads_own(workload: str) -> None:
    """Of HRNet, which trains on scenes, it said "the embedded digits"."""
    facts = {"drop_caches": True, "data": None}
    _, verdict = doctor_checks.judge_data(facts, job_of(workload=workload))
    assert (verdict.status, verdict.found) == ("ok", f"the embedded data set of {workload}, made at the first start")


def test_a_folder_in_which_the_embedded_set_cannot_be_made_is_fatal(tmp_path: Path) -> None:
    """It was ok, and the run ended: as in a checkout of somebody else's. Root may write anywhere but under a file."""
    (tmp_path / "file").touch()
    job = job_of(data_cache=str(tmp_path / "file" / "data"))
    facts = {"drop_caches": True, "data": doctor_node.data_facts(job, has_packages=True)}
    _, verdict = doctor_checks.judge_data(facts, job)
    assert verdict.status == "fatal"
    assert verdict.found.startswith(f"{tmp_path}/file/data: the embedded data set cannot be made there: set DATA_CACHE")
    for cache in (tmp_path, tmp_path / "new" / "data"):
        assert doctor_node.data_facts(job_of(data_cache=str(cache)), has_packages=True) is None


def test_what_a_run_says_of_such_a_folder(tmp_path: Path) -> None:
    """It was to free the disk, or to set DATADIR, and the reason had "[Errno 13]"."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"embedded data set \(Not a directory\): set DATA_CACHE to a folder that you"):
        make_once(tmp_path / "file" / "data" / "set", lambda folder: None)


def test_a_set_smaller_than_a_step_is_named(tmp_path: Path) -> None:
    job = job_of(datadir=str(small.data_set(tmp_path / "data")), batchsize=21, dgxngpu=2)
    facts = doctor_node.data_facts(job, has_packages=True)
    assert facts is not None and "samples" in facts["val"]
    assert facts["train"]["error"].startswith("global batch 42 is larger than the training set of 40 images: lower")


def test_cityscapes_with_and_without_lists(tmp_path):
    job = job_of(datadir=str(tmp_path), workload="hrnet", batchsize=1, dgxngpu=1)
    for part in ("train", "val"):
        for folder, end, mode in (("leftImg8bit", "leftImg8bit", "RGB"), ("gtFine", "gtFine_labelIds", "L")):
            path = tmp_path / folder / part / "town" / f"{part}_0_{end}.png"
            path.parent.mkdir(parents=True)
            Image.new(mode, (4, 4)).save(path)
    plain = doctor_node.data_facts(job, has_packages=True)
    assert [(part["samples"], part["decoded"], part["undecodable"]) for part in plain.values()] == [(1, 1, "")] * 2
    for part in ("train", "val"):
        label = f"gtFine/{part}/town/{part}_0_gtFine_labelTrainIds.png"
        (tmp_path / f"{part}.txt").write_text(f"leftImg8bit/{part}/town/{part}_0_leftImg8bit.png {label}\n")
    assert doctor_node.data_facts(job, has_packages=True) == plain


def verdicts_on_labels(folder: Path, kind: str, **pictures: Image.Image) -> list[Verdict]:
    """The verdicts on a segmentation set of one pair a part, whose labels are these."""
    for part, picture in pictures.items():
        (folder / part).mkdir()
        image, label = f"{part}/a_leftImg8bit.png", f"{part}/a_gtFine_{kind}.png"
        Image.new("RGB", picture.size, {"train": "red", "val": "blue"}[part]).save(folder / image)
        picture.save(folder / label)
        (folder / f"{part}.txt").write_text(f"{image} {label}\n")
    data = doctor_node.data_facts(
        job_of(datadir=str(folder), workload="hrnet", batchsize=1, dgxngpu=1), has_packages=True
    )
    verdicts = list(doctor_checks.judge_data({"drop_caches": True, "data": data}, job_of()))
    assert [v.status for v in by_check(verdicts, "data.decode")] == ["ok"] * 2
    return verdicts


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [("labelTrainIds", 11, "11"), ("labelIds", 34, "above 33"), ("labelIds", 26, "26, which is class 13")],
)
def test_a_label_that_is_no_class_is_named(tmp_path: Path, kind: str, value: int, shown: str) -> None:
    train, val = Image.new("L", (4, 4)), Image.new("L", (4, 4), value)
    verdicts = verdicts_on_labels(tmp_path, kind, train=train, val=val)
    (labels,) = by_check(verdicts, "data.labels")
    assert labels.status == "fatal" and labels.fix.startswith("correct the labels")
    assert f": {tmp_path}/val/a_gtFine_{kind}.png: holds the label {shown}, no class (11 of them) nor" in labels.found


def test_labels_of_one_class_are_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of 0 and 255 has one class. Labels of more pixels than Pillow opens are looked at, too."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    mask = Image.new("L", (4, 4), 255)
    mask.putpixel((0, 0), 0)
    two_classes = Image.new("L", (4, 4), 1)
    two_classes.putpixel((0, 0), 0)
    verdicts = verdicts_on_labels(tmp_path, "labelTrainIds", train=two_classes, val=mask)
    (doubt,) = by_check(verdicts, "data.content")
    assert doubt.found.startswith("the labels of val that were looked at hold class 0 alone (255 is ignored)")


def test_a_label_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    too_long = PngImagePlugin.PngInfo()
    too_long.add_text("Comment", "a" * (2 << 20), zip=True)  # DALI passes it over
    picture = Image.new("L", (4, 4))
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / part / "a.png")
        picture.save(tmp_path / part / "label.png", pnginfo=too_long)
        (tmp_path / f"{part}.txt").write_text(f"{part}/a.png {part}/label.png\n")
    facts = doctor_node.data_facts(
        job_of(datadir=str(tmp_path), workload="hrnet", batchsize=1, dgxngpu=1), has_packages=True
    )
    assert facts is not None
    assert facts["val"]["label_fault"].startswith(f"{tmp_path}/val/label.png: cannot be read (Decompressed data too")


@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (16, 16), (40, 16)])
def test_of_a_small_set_all_samples_are_decoded(count: int, chosen: int) -> None:
    numbers = data_check._choose_samples(count, 7)
    assert len(set(numbers)) == len(numbers) == chosen
    assert numbers[0] == 0 and numbers[-1] == count - 1


COPIES = "evaluation images that were looked at are training images, the first is "


@pytest.mark.parametrize("form", ["files", "bitmaps", "recordio"])
def test_evaluation_images_that_are_trained_on_are_found_by_their_bytes(tmp_path: Path, form: str) -> None:
    """Some were copied where they should have been moved, in silence: the parts have other numbers of files."""
    root = small.data_set(tmp_path / "data")
    if form == "bitmaps":
        for path in root.glob("*/*.jpeg"):
            Image.open(path).save(path, "BMP")
    if form == "recordio":
        for part in pack_lists.PARTS:
            pack.pack(root, tmp_path / "packed", part)
        assert copies_in(tmp_path / "packed") == []
    assert copies_in(root) == []
    for number in (2, 5):
        shutil.copy(root / f"train/{number + 20}.jpeg", root / f"val/{number:02d}.jpeg")
    shown = f"{root}/val/02.jpeg, the same bytes as {root}/train/22.jpeg: accuracy"
    if form == "recordio":
        root = tmp_path / "again"
        for part in pack_lists.PARTS:
            pack.pack(tmp_path / "data", root, part)
        shown = f"{root}/val.rec, record 2 at byte "
    (note,) = copies_in(root)
    assert note.startswith(f"2 of the 8 {COPIES}{shown}")


def copies_in(root: Path) -> list[str]:
    return [found for status, found in looked_at(root) if status == "warning" and COPIES in found]


def test_a_training_image_that_cannot_be_read_is_no_copy(tmp_path: Path) -> None:
    root = small.data_set(tmp_path / "data")
    for path in root.glob("*/*.jpeg"):
        path.write_bytes(b"x" * 99)
    parts = []
    for name in ("train", "val"):
        samples = data.find(root, name, 10)
        parts.append(data_check._Part(samples, samples.contents(lambda *_: None)))
    train, evaluation = parts
    assert data_check._notes_on_copies(train, evaluation, [0, 1]) != []
    shutil.rmtree(root / "train")
    assert data_check._notes_on_copies(train, evaluation, [0, 1]) == []
