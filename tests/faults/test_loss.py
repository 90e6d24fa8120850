"""A loss that is no number any more ends the run; the message names the step and the last good checkpoint."""

from __future__ import annotations

import pytest

from tests import jobs
from tests.harness import small

# The job as it is, but for one weight, which turns to NaN after the first epoch (a bad memory cell).
SCRIPT = """
import sys
from unittest import mock
import numpy as np
from harness import __main__ as rank
from harness import state
from harness.hooks import checkpoint
ended = checkpoint.Keeper.epoch_ended
def spoil(self, main, epoch):
    ended(self, main, epoch)
    from paddle import CPUPlace
    for name, tensor in state.tensors(main):
        if len(tensor.shape()) == 2:  # the classifier: an earlier NaN may hide behind a ReLU, which gives 0 for it
            value = np.array(tensor)
            value[0, 0] = np.nan
            tensor.set(value, CPUPlace())
with mock.patch.object(checkpoint.Keeper, "epoch_ended", spoil):
    sys.exit(rank.main())
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_nan_names_step_and_checkpoint(tmp_path):
    script = tmp_path / "spoilt.py"
    script.write_text(SCRIPT)
    log = tmp_path / "result_0.txt"
    settings = {**small.TRAINING, "DATADIR": small.data_set(tmp_path / "data"), "CHECKPOINT_EPOCHS": 1}
    done = jobs.on_ranks(2, str(script), cwd=small.checkout(), RESULT_FILE=log, **settings)
    assert done.returncode == 1
    kept = tmp_path / "result_0.checkpoints" / "step_000000010.safetensors"
    reason = (
        "loss is nan at step 11: lower the learning rate or look at the data; "
        f"the last good checkpoint is {kept}, from which RESUME=auto goes on"
    )
    assert f"error: {reason}" in done.stderr, done.stderr[-2000:]
    assert jobs.values(log, "abort_reason") == [reason] and kept.is_file()
    assert jobs.values(log, "step_window")[-1]["loss"] is None
