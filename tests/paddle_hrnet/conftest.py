"""A small data set in Cityscapes' folders."""

from pathlib import Path

import pytest

from tests.paddle_hrnet.test_data import write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for part, count in (("train", 4), ("val", 5)):
        for i in range(count):
            write(tmp_path, part, f"{part[0]}{i}")
    return tmp_path
