"""The embedded scenes."""

from pathlib import Path

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
    for image, label in val.pairs:
        with Image.open(root / image) as opened:
            assert (opened.mode, opened.size) == ("RGB", (scenes.WIDTH, scenes.HEIGHT))
        with Image.open(root / label) as opened:
            values = np.asarray(opened)
        assert values.shape == (scenes.HEIGHT, scenes.WIDTH)
        for row, column in np.ndindex(scenes.HEIGHT // scenes.CELL, scenes.WIDTH // scenes.CELL):
            cell = values[scenes.CELL * row :, scenes.CELL * column :][: scenes.CELL, : scenes.CELL]
            assert len(set(np.unique(cell)) - {scenes.GROUND}) == 1
        pixels += np.bincount(values.ravel(), minlength=SCENES_CLASSES)
    assert len(pixels) == SCENES_CLASSES and (pixels > 0).all()
    assert 0.5 < pixels[scenes.GROUND] / pixels.sum() < 0.9
    made = (root / "val.txt").stat().st_mtime_ns
    assert make(root, scenes.write) == root
    assert (root / "val.txt").stat().st_mtime_ns == made


def test_a_scene_is_decided_by_its_random_numbers() -> None:
    digit = np.zeros((8, 8))
    digit[2:6, 3:5] = 1
    first, again, other = (scenes.scene([(digit, 1), (digit, 1)], np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).any()
    ink = first[1] == 1
    assert ink.any()
    assert np.abs(first[0][ink].astype(float).mean(0) - first[0][~ink].astype(float).mean(0)).min() > 30
