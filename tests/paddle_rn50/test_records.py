"""Packed images: the bytes of MXNet's and TensorFlow's formats, and what is said of files that are not whole."""

import gzip
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def
from nvidia.dali import tfrecord as dali_tfrecord

from paddle_rn50 import data, recordio, records, tfrecord
from runlog import schema
from runlog.errors import RunError

MAGIC = bytes.fromhex("0a23d7ce")
# A payload is split where it holds the magic word at a multiple of 4; the header takes 24 bytes before the image.
IMAGES = [
    *(b"abcd", b"abcde"),
    b"ab" + MAGIC + b"cd",  # not aligned: whole
    *(b"abcd" + MAGIC + b"efg", MAGIC * 2 + b"abcd" + MAGIC),
]


def write_recordio(folder: Path, images: list[bytes], labels: list[int]) -> records.Records:
    made = [recordio.image_record(image, label, i) for i, (image, label) in enumerate(zip(images, labels, strict=True))]
    offsets = np.cumsum([0, *(len(record) for record in made)])
    (folder / "train.rec").write_bytes(b"".join(made))
    (folder / "train.idx").write_text("".join(f"{i}\t{offsets[i]}\n" for i in range(len(made))))
    found = data._packed(folder, "train", 10)
    assert found is not None
    return found


def write_tfrecord(
    file: Path, images: list[bytes], labels: list[int], *, twice: str = "", names: dict[str, str] | None = None
) -> None:
    """Labels from 1, as TensorFlow's scripts write them, and the index by DALI's own script; `names` renames fields."""
    content = b""
    renamed = names or {}
    for image, label in zip(images, labels, strict=True):
        example = tfrecord.EXAMPLE()
        features = example.features.feature
        features.add(key="image/format").value.bytes_list.value.append(b"JPEG")
        images_of_example = [image] * (2 if twice == "image/encoded" else 1)
        features.add(key=renamed.get("image/encoded", "image/encoded")).value.bytes_list.value.extend(images_of_example)
        labels_of_example = [label] * (2 if twice == "image/class/label" else 1)
        features.add(key=renamed.get("image/class/label", "image/class/label")).value.int64_list.value.extend(
            labels_of_example
        )
        message = example.SerializeToString()
        content += len(message).to_bytes(8, "little") + bytes(4) + message + bytes(4)
    file.write_bytes(content)
    index = [sys.executable, str(Path(sys.executable).with_name("tfrecord2idx")), str(file), f"{file}.idx"]
    subprocess.run(index, check=True)


def test_dalis_reader_reads_the_same_images_and_labels(tmp_path: Path) -> None:
    """Of records whose sizes are those of dmlc-core's RecordIOWriter::WriteRecord on paper."""
    ours = write_recordio(tmp_path, IMAGES, list(range(len(IMAGES))))
    assert ours.places[:, 2].tolist() == [36, 40, 40, 48, 60]
    assert struct.unpack_from("<IfQQ", (tmp_path / "train.rec").read_bytes(), 36 + 8) == (0, 1.0, 1, 0), (
        "MXNet's header"
    )

    @pipeline_def(batch_size=len(IMAGES), num_threads=1, device_id=None)
    def mxnet() -> object:
        found = fn.readers.mxnet(path=[str(tmp_path / "train.rec")], index_path=[str(tmp_path / "train.idx")])
        return found[0], found[1]

    pipeline = mxnet()
    pipeline.build()
    theirs, labels = pipeline.run()
    read, found = ours.read(np.arange(len(IMAGES)))
    assert [np.asarray(one).tobytes() for one in theirs] == read == IMAGES
    assert [float(np.asarray(one)[0]) for one in labels] == found.tolist()


def test_tfrecord_files_are_read_in_their_order_as_dali_reads_them(tmp_path: Path) -> None:
    images = [bytes([i]) * (i + 1) for i in range(5)]
    names = ["validation-00000-of-00002", "validation-00001-of-00002"]
    write_tfrecord(tmp_path / names[1], images[3:], [4, 5])
    write_tfrecord(tmp_path / names[0], images[:3], [1, 2, 10])
    ours = data._packed(tmp_path, "val", 10)
    assert ours is not None

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)
    def tensorflow() -> object:
        found: Any = fn.readers.tfrecord(
            path=[str(tmp_path / name) for name in names],
            index_path=[str(tmp_path / f"{name}.idx") for name in names],
            features={
                "image/encoded": dali_tfrecord.FixedLenFeature([], dali_tfrecord.string, ""),
                "image/class/label": dali_tfrecord.FixedLenFeature([1], dali_tfrecord.int64, -1),
            },
        )
        return found["image/encoded"], found["image/class/label"] - 1

    pipeline = tensorflow()
    pipeline.build()
    theirs, their_labels = pipeline.run()
    in_order, our_labels = ours.read(np.arange(5))
    assert [np.asarray(one).tobytes() for one in theirs] == in_order == images
    # 1 to 1000 is TensorFlow's, 0 to 999 ours
    assert [int(np.asarray(one)[0]) for one in their_labels] == our_labels.tolist() == [0, 1, 9, 3, 4]
    (tmp_path / "validation").mkdir()
    for file in tmp_path.glob("validation-*"):
        file.rename(tmp_path / "validation" / file.name)
    in_a_folder = data._packed(tmp_path, "val", 10)
    assert in_a_folder is not None and in_a_folder.read(np.arange(5))[0] == images


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, r"train\.idx: no such file: restore it, or make both by tools\.pack"),
        ("", r"train\.idx: is empty: restore it"),
        ("0 zero\n", r"train\.idx: has other lines than two whole numbers"),
        ("0\t0\n1\t32\n2\n", r"train\.idx: has other lines than two whole numbers"),
        ("0\t0\n1\t99999999999999999999\n", r"train\.idx: has other lines than two whole numbers"),
        ("0\t36\n1\t72\n", r"train\.idx: is not the index of .*train\.rec with its 72 bytes"),
        ("0\t0\n1\t9999\n", r"train\.idx: is not the index of .*train\.rec with its 72 bytes"),
        ("0\t0\n1\t0\n", r"train\.idx: is not the index of .*train\.rec with its 72 bytes"),
    ],
)
def test_a_wrong_index_is_named_before_a_record_is_read(tmp_path: Path, index: str | None, message: str) -> None:
    write_recordio(tmp_path, [b"abcd", b"efgh"], [0, 1])
    if index is None:
        (tmp_path / "train.idx").unlink()
    else:
        (tmp_path / "train.idx").write_text(index)
    with pytest.raises(ValueError, match=message):
        data._packed(tmp_path, "train", 10)


@pytest.mark.parametrize("index", ["", "0\t0\n1\t36\n"])
def test_an_empty_file_of_records_is_called_empty(tmp_path: Path, index: str) -> None:
    """Its index was blamed."""
    (tmp_path / "train.rec").touch()
    (tmp_path / "train.idx").write_text(index)
    with pytest.raises(ValueError, match=r"train\.rec: is empty: restore it, or make both by tools\.pack"):
        data._packed(tmp_path, "train", 10)


NO_PART = "no whole part at its byte 0"


@pytest.mark.parametrize("image", [b"efgh", b"efg"])  # the record of the second is filled up by one byte
@pytest.mark.parametrize(
    ("at", "put", "said"),
    [
        (36, b"\x0b", NO_PART),  # in the magic word
        (40, b"\x1d", NO_PART),  # a length of one byte more
        (43, b"\x60", NO_PART),  # flag 3, the last of several parts
        (44, b"\x02", "it holds labels and no image"),
        (48, struct.pack("<f", 1.5), "its label is not one of 0 to 9"),
        (48, struct.pack("<f", 10), "its label is not one of 0 to 9, the recipe's 10 classes: number the classes"),
        (71, b"", NO_PART),  # the last byte is cut off
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, at: int, put: bytes, said: str, image: bytes) -> None:
    """The second of two records of 36 bytes."""
    found = write_recordio(tmp_path, [b"abcd", image], [0, 1])
    file = tmp_path / "train.rec"
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + put + whole[at + max(1, len(put)) :])
    assert file.read_bytes() != whole and found.read(np.array([0]))[0][0] == b"abcd"
    with pytest.raises(RunError, match=rf"train\.rec, record 1 at byte 36: .*{said}"):
        found.read(np.array([0, 1]))


@pytest.mark.parametrize("left", [[0, 2], [0, 1]])
def test_an_index_that_lacks_a_record_loses_no_sample_in_silence(tmp_path: Path, left: list[int]) -> None:
    write_recordio(tmp_path, [b"abcd", b"efgh", b"ijkl"], [0, 1, 2])
    (tmp_path / "train.idx").write_text("".join(f"{i}\t{36 * i}\n" for i in left))
    found = data._packed(tmp_path, "train", 10)
    assert found is not None and len(found) == 2
    with pytest.raises(RunError, match=r"ends at its byte 36 of 72: the index does not name the record behind it"):
        found.read(np.arange(2))


@pytest.mark.parametrize("label", [0, 11])
def test_a_label_that_is_not_tensorflows_is_refused(tmp_path: Path, label: int) -> None:
    write_tfrecord(tmp_path / "train.tfrecord", [b"a"], [label])
    found = data._packed(tmp_path, "train", 10)
    assert found is not None
    with pytest.raises(RunError, match=r"train\.tfrecord, record 0 at byte 0: its label is not one of 1 to 10"):
        found.read(np.array([0]))


def test_wrong_tfrecord_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00002"
    write_tfrecord(file, [b"a", b"b"], [1, 2])
    with pytest.raises(ValueError, match=r"has 1 of the 2 files train-\*-of-\*: restore the others"):
        data._packed(tmp_path, "train", 10)
    whole = tmp_path / "whole"
    whole.mkdir()
    file = file.rename(whole / "train-00000-of-00001")
    with pytest.raises(ValueError, match=r"\.idx: no such file: make it by `tfrecord2idx "):
        data._packed(whole, "train", 10)
    index = (tmp_path / "train-00000-of-00002.idx").rename(f"{file}.idx")
    for line in index.read_text().splitlines():  # the first record alone, then the last
        index.write_text(line)
        with pytest.raises(ValueError, match=r"is not the index of "):
            data._packed(whole, "train", 10)
    content = bytearray(file.read_bytes())
    index.write_text(f"0 {len(content)}\n")
    found = data._packed(whole, "train", 10)
    assert found is not None
    with pytest.raises(RunError, match="its length is not the index's"):
        found.read(np.array([0]))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train-00000-of-00002.tfrecord"], r": has 1 of the 2 files train-\*-of-\*: restore the others"),
        (
            ["train-00000-of-00002", "train-00001-of-00002", "train-00002-of-00002"],
            r": has 3 files train-\*-of-\* of a set of 2: move the others elsewhere",
        ),
        (["train-00000-of-00002", "train-00000-of-00003"], r"/train-00000-of-00003: is not of the set of "),
        (["train-00000-of-00002", "train-00000-of-00002 (1)"], r" \(1\): is not of the set of train-00000-of-"),
        (["train-00000-of-00002", "train-0-of-2"], r"/train-00000-of-00002: is not of the set of train-0-of-2: "),
        (["train-00000-of-00001", "train-00000-of-00001.md5"], r"\.md5: is not of the set of train-00000-of-"),
    ],
)
def test_a_numbered_set_is_whole_and_alone(tmp_path: Path, names: list[str], said: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=said):
        data._packed(tmp_path, "train", 10)


def test_compressed_records_are_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00001"
    write_tfrecord(file, [b"a"], [1])
    file.write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(ValueError, match=r"train-00000-of-00001: is compressed by gzip: `gunzip` it"):
        data._packed(tmp_path, "train", 10)
    file.unlink()
    file.symlink_to(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"train-00000-of-00001: is a link to a file that is absent: restore"):
        data._packed(tmp_path, "train", 10)


def test_an_empty_file_of_a_set_is_named_with_what_helps(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "train-00000-of-00002", [b"a"], [1])
    write_tfrecord(tmp_path / "train-00001-of-00002", [], [])
    said = r"train-00001-of-00002: is empty: restore it, or if it never held a record pack the set in fewer files"
    with pytest.raises(ValueError, match=said):
        data._packed(tmp_path, "train", 10)


def test_a_record_as_long_as_the_magic_of_gzip_says_is_not_taken_for_gzip(tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00001"
    length = int.from_bytes(b"\x1f\x8b", "little")
    write_tfrecord(file, [bytes(length - 200)], [1])
    rest = length - int.from_bytes(file.read_bytes()[:8], "little")
    write_tfrecord(file, [bytes(length - 200 + rest)], [1])
    assert file.read_bytes().startswith(b"\x1f\x8b\x00")
    found = data._packed(tmp_path, "train", 10)
    assert found is not None and len(found.places) == 1


@pytest.mark.parametrize("twice", ["image/encoded", "image/class/label"])
def test_an_example_with_two_images_or_labels_is_refused(tmp_path: Path, twice: str) -> None:
    """The first one was taken."""
    write_tfrecord(tmp_path / "train.tfrecord", [b"a"], [1], twice=twice)
    found = data._packed(tmp_path, "train", 10)
    assert found is not None
    said = rf"train\.tfrecord, record 0 at byte 0: its {twice} has 2 values, not one: "
    with pytest.raises(RunError, match=said):
        found.read(np.array([0]))
    with pytest.raises(ValueError, match=said):
        found.contents(print)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train-00000-of-00001", r"train-00000-of-00001, record 0 at byte 0: "),
        ("imagenet2012-train.tfrecord-00000-of-00001", r"; \S*imagenet2012-train\.\S*-of-00001 is there, but "),
    ],
)
def test_records_of_tensorflow_datasets_are_said_to_be_so(tmp_path: Path, name: str, said: str) -> None:
    """All files were to be renamed, then given an index, and then the records were said to be no tf.train.Example."""
    file = tmp_path / name
    write_tfrecord(file, [b"a"], [1], names={"image/encoded": "image", "image/class/label": "label"})
    if name.startswith("imagenet2012"):
        Path(f"{file}.idx").unlink()
    fields = (
        "its tf.train.Example has image, image/format, label, as TensorFlow Datasets writes them, and not both the "
    )
    with pytest.raises(
        ValueError, match=rf"{said}{fields}.* image/class/label: save the images into class folders, or"
    ):
        data.find(tmp_path, "train", 10).contents(print)


def test_labels_from_0_are_found_before_a_run_if_the_first_one_is_0(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "train.tfrecord", [b"a", b"b"], [0, 1])
    found = data._packed(tmp_path, "train", 10)
    assert found is not None
    with pytest.raises(ValueError, match=r"record 0 at byte 0: its label is not one of 1 to 10"):
        found.contents(lambda done, total: None)


def test_a_log_may_have_each_form_that_is_read() -> None:
    """The checker refuses any other `dataset.form`, which shows only after a training."""
    packed = {module.FORM.name for module in vars(data).values() if hasattr(module, "FORM")}
    assert {"files", *packed} == set(schema.FORMS), "add a new form to FORMS of runlog/schema.py"


# ---- all heads, before a run


def whole(folder: Path) -> records.Records:
    return write_recordio(folder, [b"abcd", b"efgh", b"ijklm"], [0, 1, 9])


def test_heads_tell_sizes_and_labels(tmp_path: Path) -> None:
    contents = write_recordio(tmp_path, IMAGES, [3, 1, 4, 1, 5]).contents(print)
    assert contents.sizes.tolist() == [len(image) for image in IMAGES] and contents.is_exact
    assert contents.labels is not None and list(contents.labels) == [3, 1, 4, 1, 5]


def test_a_label_behind_the_header_is_read(tmp_path: Path) -> None:
    payload = struct.pack("<IfQQf", 1, 0.0, 0, 0, 7.0) + b"picture!"
    record = MAGIC + struct.pack("<I", len(payload)) + payload
    (tmp_path / "train.rec").write_bytes(record)
    (tmp_path / "train.idx").write_text("0 0\n")
    found = data._packed(tmp_path, "train", 10)
    assert found is not None and found.contents(print).sizes.tolist() == [8]
    images, labels = found.read(np.array([0]))
    assert (images, labels.tolist(), found.contents(print).labels) == ([b"picture!"], [7], [7])


@pytest.mark.parametrize(
    ("at", "put", "said"),
    [
        (36, b"\x0b", "it is damaged: no whole part"),
        (44, b"\x03", "it holds labels and no image"),
        (48, struct.pack("<f", 10), "its label is not one of 0 to 9"),
        (48, struct.pack("<f", -1), "its label is not one of 0 to 9"),
        (48, struct.pack("<f", 2.5), "its label is not one of 0 to 9"),
    ],
)
def test_a_wrong_head_is_named_before_a_run(tmp_path: Path, at: int, put: bytes, said: str) -> None:
    whole(tmp_path)
    content = bytearray((tmp_path / "train.rec").read_bytes())
    content[at : at + len(put)] = put
    (tmp_path / "train.rec").write_bytes(content)
    found = data._packed(tmp_path, "train", 10)
    assert found is not None
    with pytest.raises(ValueError, match=rf"train\.rec, record 1 at byte 36: {said}"):
        found.contents(print)


@pytest.mark.parametrize("change", ["cut", "longer", "hole", "detection"])
def test_a_file_that_is_not_its_indexs_is_named_before_a_run(tmp_path: Path, change: str) -> None:
    whole(tmp_path)
    file = tmp_path / "train.rec"
    content = file.read_bytes()
    said = "record 2 at byte 72: it"
    if change == "cut":
        file.write_bytes(content[:-3])
    elif change == "longer":
        file.write_bytes(content + bytes(8))
    elif change == "hole":
        (tmp_path / "train.idx").write_text("0 0\n2 72\n")
        said = "record 0 at byte 0: it ends at its byte 36 of 72"
    else:
        payload = struct.pack("<IfQQ6f", 6, 0.0, 0, 0, *range(6)) + b"picture!"
        file.write_bytes(content[:72] + MAGIC + struct.pack("<I", len(payload)) + payload)
        said = "record 2 at byte 72: it has 6 labels, as sets for detection have"
    found = data._packed(tmp_path, "train", 10)
    assert found is not None
    with pytest.raises(ValueError, match=said):
        found.contents(print)


@pytest.mark.parametrize("difference", [-1, 1])
def test_tfrecords_lengths_are_looked_at_before_a_run(tmp_path: Path, difference: int) -> None:
    file = tmp_path / "train.tfrecord"
    write_tfrecord(file, [b"a", b"bc", b"d"], [1, 2, 3])
    found = data._packed(tmp_path, "train", 10)
    assert found is not None and len(found.contents(print).sizes) == 3 and not found.contents(print).is_exact
    content = bytearray(file.read_bytes())
    second = int(found.places[1, 1])
    content[second] += difference
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"record 1 at byte {second}: its length is not the index's"):
        found.contents(print)
