"""Logs of runs that went on from a checkpoint: only what was trained after the resume is measured."""

import re
from pathlib import Path

import pytest

from scoring.importers import read_record
from tests import make_log
from tests.scoring.samples import command, write


@pytest.mark.parametrize("without", ["step_window|epoch_throughput", "step_window|epoch_throughput|epoch_stop"])
def test_an_epoch_or_block_without_a_step_after_the_resume_has_no_figure(tmp_path: Path, without: str) -> None:
    """The run went on after the epoch's last step, before its evaluation: its start and stop are 3 ms apart."""
    text = make_log.run(epochs=1, epoch_ms=2, summary={"resumed": True})
    kept = [line for line in text.splitlines() if not re.search(rf'"key": "({without}|rank_times)"', line)]
    log = write(tmp_path, "a.txt", "\n".join(kept))
    record = read_record(log)
    assert record.windows == record.epochs == ()
    status, result, _ = command("score", log, "--protocol", "window")
    assert status == 0 and result["value"] is None
    assert "no windows after its resume: nothing was measured" in result["warnings"][0]["message"]
    assert command("score", log, "--protocol", "window", "--skip", 0)[0] == 2


def test_a_resumed_epoch_without_its_windows_has_its_own_throughput(tmp_path: Path) -> None:
    text = make_log.run(epochs=2, summary={"resumed": True})
    kept = [line for line in text.splitlines() if '"step_window"' not in line]
    record = read_record(write(tmp_path, "a.txt", "\n".join(kept)))
    assert [window.seconds for window in record.windows] == [36, 36]
