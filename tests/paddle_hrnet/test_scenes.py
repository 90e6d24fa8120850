"""The embedded scenes."""

from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from harness.embedded import make
from paddle_hrnet import data, scenes
from paddle_hrnet.config import SCENES_CLASSES, SCENES_EVAL, SCENES_TRAIN


def test_layout_and_labels(tmp_path: Path) -> None:
    root = make(tmp_path / scenes.NAME, scenes.write)
    train, val = (data.find(root, part, SCENES_CLASSES) for part in ("train", "val"))
    assert (len(train), len(val)) == (SCENES_TRAIN, SCENES_EVAL)
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
        roots = [make(tmp_path / name, scenes.write) for name in ("one", "two")]
    one, two = ([path.read_bytes() for path in sorted(root.rglob("*.png"))] for root in roots)
    assert one == two and len(set(one)) == 2 * 5
    assert make(roots[0], mock.Mock(side_effect=AssertionError)) == roots[0]
