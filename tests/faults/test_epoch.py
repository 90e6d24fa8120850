"""What happens to a run after its first epoch: a weight turns to NaN, the system's clock is set back."""

import subprocess
from pathlib import Path

import pytest

from tests import jobs
from tests.harness import small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]
BACK_S = 3600
# The job as it is, but for what `happens`.
SCRIPT = """
import sys
import time
from unittest import mock
import numpy as np
right, back_s = time.time, 0
time.time = lambda: right() - back_s
from harness import __main__ as rank
from harness import state
from harness.hooks import checkpoint
ended = checkpoint.Keeper.epoch_ended
def epoch_ended(self, main, epoch):
    global back_s
    ended(self, main, epoch)
{happens}
with mock.patch.object(checkpoint.Keeper, "epoch_ended", epoch_ended):
    sys.exit(rank.main())
"""
SET_BACK = f"    back_s = {BACK_S}"  # somebody sets the clock
SPOIL = """  # a bad memory cell
    from paddle import CPUPlace
    for name, tensor in state.tensors(main):
        if len(tensor.shape()) == 2:  # the classifier: an earlier NaN may hide behind a ReLU, which gives 0 for it
            value = np.array(tensor)
            value[0, 0] = np.nan
            tensor.set(value, CPUPlace())
"""


def train(folder: Path, happens: str, **more: int) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A training run to its end, and its log."""
    script, log = folder / "script.py", folder / "result_0.txt"
    script.write_text(SCRIPT.format(happens=happens))
    settings = {**small.TRAINING, "DATADIR": small.data_set(folder / "data"), **more}
    return jobs.on_ranks(2, str(script), cwd=small.checkout(), RESULT_FILE=log, **settings), log


def test_nan_names_step_and_checkpoint(tmp_path: Path) -> None:
    done, log = train(tmp_path, SPOIL, CHECKPOINT_EPOCHS=1)
    assert done.returncode == 1
    kept = tmp_path / "result_0.checkpoints" / "step_000000010.safetensors"
    reason = (
        "loss is nan at step 11: lower the learning rate or look at the data; "
        f"the last good checkpoint is {kept}, from which RESUME=auto goes on"
    )
    assert f"error: {reason}" in done.stderr, done.stderr[-2000:]
    assert jobs.values(log, "abort_reason") == [reason] and kept.is_file()
    assert jobs.values(log, "step_window")[-1]["loss"] is None


def test_a_clock_set_back(tmp_path: Path) -> None:
    """Durations stay right, the log says it, the checker refuses the log."""
    done, log = train(tmp_path, SET_BACK)
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr[-2000:]
    events = jobs.mllog(log)
    assert events[-1]["time_ms"] < events[0]["time_ms"], "the clock was set"
    (noticed,) = [event for event in events if event["key"] == "clock_set"]
    assert noticed["value"] == pytest.approx(-BACK_S, abs=1) and noticed["metadata"]["step"] == 11
    windows = jobs.values(log, "step_window")
    assert len(windows) == 2 * small.STEPS_PER_EPOCH and all(0 < window["time_s"] < BACK_S for window in windows)
    status, checked = jobs.checked(log)
    assert status == 1 and "time-order" in {finding["rule"] for finding in checked["findings"]}
