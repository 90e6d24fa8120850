"""The lists that tools.pack --lists writes of a data set whose val/ lacks classes."""

import shutil
from pathlib import Path

import pytest

from paddle_rn50 import data, folder
from tests.harness import small
from tools import pack_lists


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small.data_set(tmp_path / "set")


def test_lists_are_written_of_a_val_without_some_classes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one class val has no folder, of another an empty one; labels stay the numbers of the folders in train."""
    small.by_class(root)
    shutil.rmtree(root / "val/n04")
    for image in (root / "val/n06").iterdir():
        image.unlink()
    with pytest.raises(ValueError, match="val/n06: this class folder has no image"):
        data.find(root, "val", 10)
    (root / "val/n06").rmdir()
    with pytest.raises(ValueError, match=r"n04 is in one of them only.*tools\.pack --lists writes it"):
        data.find(root, "val", 10)
    (root / "val/n06").mkdir()
    (root / "val/n01440764.tar").touch()
    with pytest.raises(ValueError, match=r"has 1 archive of classes without their folder, the first is n01440764\.tar"):
        pack_lists.write_lists(root, None)
    (root / "val/n01440764.tar").unlink()
    assert [line.rpartition(": ")[2] for line in pack_lists.write_lists(root, None)] == ["40 images", "8 images"]
    said = capsys.readouterr().err
    assert f"{root}/val: has no image of 2 of the 10 classes in {root}/train, the first is n04" in said
    images = data.find(root, "val", 10)
    assert isinstance(images, folder.ImageList)
    assert {f"n{label:02d}" for label in images.labels} == {Path(path).parent.name for path in images.paths}
    assert not {4, 6} & set(images.labels)
