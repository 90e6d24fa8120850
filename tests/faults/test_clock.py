"""A clock that is set back during a run: durations stay right, the log says it, the checker refuses the log."""

from __future__ import annotations

import pytest

from tests import jobs
from tests.harness import small

BACK_S = 3600
# The job as it is, but for the system's clock, which somebody sets back after the first epoch.
SCRIPT = f"""
import sys
import time
from unittest import mock
right = time.time
back_s = 0
time.time = lambda: right() - back_s
from harness import __main__ as rank
from harness.hooks import checkpoint
ended = checkpoint.Keeper.epoch_ended
def set_back(self, main, epoch):
    global back_s
    ended(self, main, epoch)
    back_s = {BACK_S}
with mock.patch.object(checkpoint.Keeper, "epoch_ended", set_back):
    sys.exit(rank.main())
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_clock_set_back(tmp_path):
    script, log = tmp_path / "clock.py", tmp_path / "result_0.txt"
    script.write_text(SCRIPT)
    settings = {**small.TRAINING, "DATADIR": small.data_set(tmp_path / "data")}
    done = jobs.on_ranks(2, str(script), cwd=small.checkout(), RESULT_FILE=log, **settings)
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr[-2000:]
    events = jobs.mllog(log)
    assert events[-1]["time_ms"] < events[0]["time_ms"], "the clock was set"
    (noticed,) = [event for event in events if event["key"] == "clock_set"]
    assert noticed["value"] == pytest.approx(-BACK_S, abs=1) and noticed["metadata"]["step"] == 11
    windows = jobs.values(log, "step_window")
    assert len(windows) == 2 * small.STEPS_PER_EPOCH and all(0 < window["time_s"] < BACK_S for window in windows)
    status, checked = jobs.checked(log)
    assert status == 1 and "time-order" in {finding["rule"] for finding in checked["findings"]}
