"""`tools.pack`: what it writes, how it goes on after a kill, and what it refuses."""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from harness import data_check
from harness.job import job_of
from paddle_rn50 import data, folder
from runlog.errors import RunError
from tests import jobs
from tests.harness import small
from tools import pack, pack_lists, pack_sizes
from tools.doctor import checks as doctor_checks
from tools.doctor import node as doctor_node

RECORD = 8 + 24  # bytes before an image


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small.data_set(tmp_path / "data")


def run(*arguments: object, limit_kib: str = "unlimited") -> tuple[int, str]:
    """Status and all output of the command, whose files may not be longer than this, without DALI's word on 3.12."""
    command = [sys.executable, "-m", "tools.pack", *map(str, arguments)]
    done = jobs.run(["bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "-", *command])
    return done.returncode, re.sub(r".*Warning: DALI support for Python.*\n.*\n", "", done.stdout + done.stderr)


def packed(*arguments: object) -> str:
    """What it says where it ends well."""
    status, said = run(*arguments)
    assert status == 0, said
    return said


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_pack_holds_the_files_of_the_lists_in_their_order(source: Path, tmp_path: Path) -> None:
    said = packed(source, tmp_path / "packed")
    for part in pack_lists.PARTS:
        images, found = folder.read_list(source, part, 10), data._packed(tmp_path / "packed", part, 10)
        assert found is not None and len(found) == len(images)
        read, labels = found.read(np.arange(len(found)))
        assert read == [(source / path).read_bytes() for path in images.paths]
        assert labels.tolist() == images.labels.tolist()
        assert f"{part}.rec: {len(images)} images" in said
    names = [f"{part}.{kind}" for part in pack_lists.PARTS for kind in ("idx", "rec", "sizes.json")]
    assert sorted(contents(tmp_path / "packed")) == names
    before = contents(tmp_path / "packed")
    assert "is whole already" in pack.pack(source, tmp_path / "packed", "train")
    assert contents(tmp_path / "packed") == before
    status, said = run(tmp_path / "packed", tmp_path / "twice")
    refused = f"{tmp_path}/packed/train.rec: {tmp_path}/packed is packed already: DATADIR takes it as it is"
    assert (status, said) == (2, f"error: {refused}\n") and not (tmp_path / "twice").exists()
    records = tmp_path / "records/train/train-00000-of-00001"
    records.parent.mkdir(parents=True)
    records.touch()
    with pytest.raises(ValueError, match=f"{records}: {tmp_path}/records is packed already"):
        pack._files_of_part(tmp_path / "records", "train")


def test_class_folders_beside_tfrecords_in_another_folder_are_packed(source: Path) -> None:
    """They were said to be packed already."""
    small.by_class(source)
    (source / "validation").mkdir()
    (source / "validation/validation-00000-of-00001").touch()
    assert len(pack._files_of_part(source, "val").names) == 10


@pytest.mark.slow
@pytest.mark.ci
def test_a_killed_pack_goes_on(source: Path, tmp_path: Path) -> None:
    """It is stopped while it packs, and then killed for good; a second is refused meanwhile."""
    lines = (source / "train_list.txt").read_text() * 200  # 8,000 samples: seconds of work
    (source / "train_list.txt").write_text(lines)
    target = tmp_path / "packed"
    process = jobs.begin([sys.executable, "-m", "tools.pack", str(source), str(target)])
    journal = target / "train.rec.journal"
    try:
        jobs.until(lambda: jobs.text(journal).count("\n") > 2 * 64, process, every_s=0.01)
        os.killpg(process.pid, signal.SIGSTOP)
        status, said = run(source, target)
        assert status == 2 and "train.rec.partial: another tools.pack writes it: wait for its end" in said
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    packed_before = journal.read_text().count("\n") - 1  # its first line is of the list
    assert packed_before < 8_000 and not (target / "train.rec").exists()
    images = folder.read_list(source, "train", 10)
    said = packed(source, target)
    assert f"train.rec.partial: goes on after {packed_before - 1} images" in said  # the last one may have been cut off
    assert f"train.rec: {len(images)} images" in said
    packed(source, tmp_path / "at_once")
    assert contents(target) == contents(tmp_path / "at_once")


@pytest.mark.parametrize(
    ("record_lost", "journal_lost"), [(0, 0), (1, 10**9), (700, 1), (10**9, 20), (0, 20), (10**9, 10**9), (700, 0)]
)
def test_a_pack_goes_on_from_any_loss(source: Path, tmp_path: Path, record_lost: int, journal_lost: int) -> None:
    """As a kill leaves them: the ends of the records and of the journal are lost, each by itself."""
    whole, target = tmp_path / "whole", tmp_path / "packed"
    pack.pack(source, whole, "train")
    target.mkdir()
    images = folder.read_list(source, "train", 10)
    journal = json.loads((whole / "train.sizes.json").read_text())["list_sha256"] + "\n"
    for i, line in enumerate((whole / "train.idx").read_text().splitlines()):
        _, crc32, (width, height) = pack._checked_record(images, i)
        journal += f"{line.split()[1]} {crc32} {width} {height}\n"
    content = (whole / "train.rec").read_bytes()
    (target / "train.rec.partial").write_bytes(content[: max(0, len(content) - record_lost)])
    (target / "train.rec.journal").write_text(journal[: max(0, len(journal) - journal_lost)])
    pack.pack(source, target, "train")
    assert contents(target) == contents(whole)


def test_a_record_that_the_disk_changed_is_found(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    (source / "train_list.txt").write_text((source / "train_list.txt").read_text() + "train/none.jpeg 1\n")
    (source / "train/none.jpeg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"train/none\.jpeg: cannot be decoded \(Unrecognized image format"):
        pack.pack(source, target, "train")
    shutil.copy(source / "train/00.jpeg", source / "train/none.jpeg")
    growing = target / "train.rec.partial"
    content = bytearray(growing.read_bytes())
    content[RECORD + 100] ^= 1  # of the first image
    growing.write_bytes(content)
    with pytest.raises(RunError, match=r"train\.rec\.partial, record 0 at byte 0: is not what was written"):
        pack.pack(source, target, "train")
    assert not (target / "train.rec").exists()


def test_a_target_of_another_list_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    pack.pack(source, target, "train")
    listed = (source / "train_list.txt").read_text().splitlines()
    (source / "train_list.txt").write_text("\n".join(listed[1:]) + "\n")
    with pytest.raises(ValueError, match=r"train\.rec: is there, and not packed from this list"):
        pack.pack(source, target, "train")
    for name in ("train.rec", "train.idx", "train.sizes.json"):
        (target / name).unlink()
    (target / "train.rec.journal").write_text("another\n0 1 2 3\n")
    with pytest.raises(ValueError, match=r"train\.rec\.partial: was begun from another list"):
        pack.pack(source, target, "train")
    (source / "val_list.txt").rename(tmp_path / "val_list.txt")
    for origin, said in ((tmp_path / "none", "none: no such folder: give the"), (source, "val_list.txt")):
        status, shown = run(origin, tmp_path / "other")
        assert (status, shown.count("\n")) == (2, 1)
        assert said in shown
        assert not (tmp_path / "other").exists()  # said before the other list is packed


def test_a_target_of_other_files_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    pack.pack(source, target, "train")
    assert "train.rec: is whole already" in pack.pack(source, target, "train")
    Image.new("RGB", (300, 200)).save(source / "train/00.jpeg")
    with pytest.raises(ValueError, match=r"train\.rec: is there, but files of \S+/data were changed since: remove it"):
        pack.pack(source, target, "train")


def test_a_name_that_is_not_utf_8_is_the_folders(source: Path, tmp_path: Path) -> None:
    odd = source / os.fsdecode(b"train/\xe9t\xe9\xe2\x80\xa8 1.jpeg")  # Latin-1, a line separator and a space
    (source / "train/00.jpeg").rename(odd)
    lines = (source / "train_list.txt").read_bytes().replace(b"train/00.jpeg", os.fsencode(odd.relative_to(source)))
    (source / "train_list.txt").write_bytes(lines)
    assert packed(source, tmp_path / os.fsdecode(b"\xe9")).count("each record checked") == 2
    found = data._packed(tmp_path / os.fsdecode(b"\xe9"), "train", 10)
    assert found is not None and found.read(np.array([0]))[0][0] == odd.read_bytes()
    odd.unlink()
    status, said = run(source, tmp_path / "other")
    assert status == 2 and "train_list.txt:1: " in said and "is absent" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("train.rec.journal", "{listed}\n" + entry) for entry in ("0 1 2\n", "no number 2 3\n")),
        *(("train.sizes.json", content) for content in ("", "[1]")),
    ],
)
def test_a_damaged_file_beside_the_records_is_named(source: Path, tmp_path: Path, file: str, content: str) -> None:
    listed = hashlib.sha256((source / "train_list.txt").read_bytes()).hexdigest()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / file).write_text(content.format(listed=listed))
    if file == "train.sizes.json":
        (tmp_path / "packed/train.rec").touch()
    with pytest.raises(ValueError, match=f"{file}: is damaged: remove it"):
        pack.pack(source, tmp_path / "packed", "train")


def test_a_target_among_the_class_folders_is_refused(source: Path) -> None:
    """It failed at val, after all of train was packed, and the target was a class folder from then on."""
    target = source / "train" / "packed"
    status, said = run(source, target)
    assert status == 2 and f"{target}: lies in {source}/train, whose folders are classes: take another TARGET" in said
    assert not target.exists()


def test_a_full_disk_is_named_and_the_pack_goes_on(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    status, said = run(source, target, limit_kib="8")
    assert status == 1 and "File too large: mend that and start the same command again" in said
    assert 0 < (target / "train.rec.partial").stat().st_size <= 8192
    packed(source, target)


def test_a_file_that_was_changed_after_it_was_packed_is_named(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    with (source / "train_list.txt").open("a") as listing:
        listing.write("train/last.jpeg 1\n")
    (source / "train/last.jpeg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"last\.jpeg: cannot be decoded"):
        pack.pack(source, target, "train")
    for name in ("last", "00"):
        Image.new("RGB", (300, 200)).save(source / f"train/{name}.jpeg")
    with pytest.raises(ValueError, match=rf"train/00\.jpeg: was changed since it was packed: remove {target}"):
        pack.pack(source, target, "train")
    assert not (target / "train.rec").exists()


def test_what_training_could_not_say_of_records_is_said_before(source: Path, tmp_path: Path) -> None:
    """An image that is trained on and evaluated; CMYK without Adobe's marker; a file of val that is empty."""
    with (source / "val_list.txt").open("a") as listing:
        listing.write("train/03.jpeg 3\n")
    ink = io.BytesIO()
    Image.new("CMYK", (40, 40)).save(ink, "JPEG")
    (source / "train/00.jpeg").write_bytes(ink.getvalue().replace(b"\xff\xee\x00\x0eAdobe", b"\xff\xee\x00\x0eOther"))
    said = packed(source, tmp_path / "packed")
    assert "warning: training and evaluation have 1 file in common, the first is train/03.jpeg\n" in said
    assert f"warning: {source}/train/00.jpeg: is a CMYK JPEG without Adobe's marker: " in said
    (source / "val/01.jpeg").write_bytes(b"")
    status, said = run(source, tmp_path / "other")
    assert status == 2 and "val/01.jpeg: is empty" in said and not (tmp_path / "other").exists()


def test_sizes_are_those_of_the_largest_image(source: Path, tmp_path: Path) -> None:
    packed("--sizes", source)
    pack.pack(source, tmp_path / "packed", "train")
    of_folder = data.find(source, "train", 10).largest
    assert of_folder == data.find(tmp_path / "packed", "train", 10).largest is not None
    before = (tmp_path / "packed" / "train.sizes.json").read_bytes()
    pack_sizes.find_sizes(tmp_path / "packed", "train")
    assert (tmp_path / "packed" / "train.sizes.json").read_bytes() == before
    assert run(source)[0] == run("--sizes", source, tmp_path)[0] == 2


def test_sizes_that_are_found_again_are_those_of_the_images_now(source: Path) -> None:
    pack_sizes.find_sizes(source, "train")
    Image.new("RGB", (300, 200)).save(source / "train/00.jpeg")
    pack_sizes.find_sizes(source, "train")
    assert data.find(source, "train", 10).largest == (300, 200)


def test_images_of_more_pixels_than_pillow_opens_are_packed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes them; the pack of hours ended with a traceback."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 40)
    Image.new("RGB", (90, 50)).save(source / "train/00.jpeg", "JPEG")
    Image.new("RGB", (50, 91)).save(source / "train/01.jpeg", "PNG")
    Image.new("RGB", (50, 92)).save(source / "train/02.jpeg", "WEBP")
    pack.pack(source, tmp_path / "packed", "train")
    pack_sizes.find_sizes(source, "train")
    for place in (source, tmp_path / "packed"):
        assert data.find(place, "train", 10).largest == (50, 92)
    Image.new("RGB", (90, 50)).save(source / "train/03.jpeg", "BMP")  # which a run refuses, too
    with pytest.raises(
        ValueError, match=r"train/03\.jpeg: Image size \(4500 pixels\) exceeds limit .* Make it smaller"
    ):
        pack_sizes.find_sizes(source, "train")


@pytest.mark.parametrize("most_pixels", [40 * 30, 10])
def test_the_size_of_a_damaged_webp_is_not_taken_from_its_header(
    most_pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the size that its header claims counted, such as 0 x 0 pixels, and of a large one that was truncated."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most_pixels)
    file = io.BytesIO()
    Image.new("RGB", (40, 30)).save(file, "WEBP")
    content = file.getvalue()
    assert pack_sizes.size_of("a.webp", content) == (40, 30)
    for damaged in (content[:26] + bytes(4) + content[30:], content[:-2], content[:20] + bytes(len(content) - 20)):
        with pytest.raises(ValueError, match=r"a\.webp: is not an image"):
            pack_sizes.size_of("a.webp", damaged)


def test_sizes_that_cannot_be_written_are_not_looked_for(source: Path) -> None:
    (source / "train/00.jpeg").write_bytes(b"no image")  # which is told once it is read
    read_only = f"mount --bind {source} {source} && mount -o remount,bind,ro {source} && exec "
    command = f"{read_only} {sys.executable} -m tools.pack --sizes {source}"
    done = jobs.run([*jobs.in_namespaces("--mount"), "bash", "-c", command])
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {source}/train.sizes.json: Read-only file system: mend that" in done.stderr
    said = run("--sizes", source)[1]
    assert "train/00.jpeg: is not an image" in said
    assert {path.name for path in source.iterdir()} == {"train", "val", "train_list.txt", "val_list.txt"}


def test_the_doctor_says_why_the_system_refuses_to_read(source: Path) -> None:
    (source / "train_list.txt").write_text(f"{'x' * 300}/a.jpeg 0\n")
    facts = doctor_node.data_facts(job_of(datadir=str(source)), has_packages=True)
    said = "this path is longer than the system allows: name a shorter one"
    assert facts and facts["train"] == {"error": f"{source}/{'x' * 300}: {said}"}
    forbidden = PermissionError(errno.EACCES, "Permission denied", "a.jpeg")
    samples = mock.Mock(encoded=mock.Mock(side_effect=forbidden))
    assert data_check._first_undecodable(samples, [0]).startswith("a.jpeg: permission denied: ask its owner")


def test_the_doctor_looks_into_packed_images(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    for part in pack_lists.PARTS:
        pack.pack(source, target, part)

    def judged() -> list[tuple[str, str, str]]:
        facts = {"drop_caches": True, "data": doctor_node.data_facts(job_of(datadir=str(target)), has_packages=True)}
        return [(r.check, r.status, r.found) for r in doctor_checks.judge_data(facts, job_of())][1:]

    assert any(check == "data.lists" and "train (recordio): 40 samples" in found for check, _, found in judged())
    assert {status for _, status, _ in judged()} == {"ok"}
    content = bytearray((target / "train.rec").read_bytes())
    content[0] ^= 1
    (target / "train.rec").write_bytes(content)
    assert any(check == "data.lists" and status == "fatal" for check, status, _ in judged())
    (target / "train.idx").unlink()
    assert any("train.idx: no such file" in found and status == "fatal" for _, status, found in judged())
