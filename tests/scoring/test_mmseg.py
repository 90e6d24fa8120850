"""Logs of mmcv and mmengine: who printed a row, and where an evaluation stands among the rows."""

from pathlib import Path

import pytest

from tests.scoring import samples
from tests.scoring.test_importers import read


@pytest.mark.parametrize("logger", ["mmedit - ", "mmseg.apis - ", ""])  # none: mmcv 0.x
@pytest.mark.parametrize("name", ["mmseg", "mm_epochs"])
def test_the_name_of_the_logger_is_any_or_none(tmp_path: Path, name: str, logger: str) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(240)))
    tool = "mmseg - " if name == "mmseg" else "mmcls - "
    stamps = [window.end_s for window in read(tmp_path, text).windows]
    assert None not in stamps
    assert [window.end_s for window in read(tmp_path, text.replace(tool, logger)).windows] == stamps
