"""SIGKILL to mpirun and all ranks in each phase of a run: nothing half is taken for whole, nothing stays behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import checkpoint
from tests import jobs
from tests.harness import small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]


def text(log: Path) -> str:
    return log.read_text() if log.is_file() else ""


def half_written(log: Path) -> bool:
    """Whether a checkpoint is being written now."""
    return any(log.with_name("result_0.checkpoints").glob(".step_*.tmp"))


PHASES: dict[str, Callable[[Path], bool]] = {
    "set-up": lambda log: "init_start" in text(log),
    "first step": lambda log: "epoch_start" in text(log),
    "middle of an epoch": lambda log: text(log).count("step_window") >= 4,
    "evaluation": lambda log: "eval_start" in text(log),
    "checkpoint's write": half_written,
}


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_of_everything(tmp_path, phase):
    data, log = small.data_set(tmp_path / "data"), tmp_path / "result_0.txt"
    process = small.start(log, data, CHECKPOINT_EPOCHS=1)
    until = time.monotonic() + 300
    while not PHASES[phase](log):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)
    small.kill_all(process)

    checked = subprocess.run(
        [sys.executable, "-m", "compliance", "check", str(log), "--json"],
        capture_output=True,
        text=True,
        cwd=jobs.REPOSITORY,
        check=False,
    )
    assert checked.returncode == 1 and json.loads(checked.stdout)["files"][0]["verdict"] == "fail"
    for path in checkpoint._newest_first(log.with_name("result_0.checkpoints")):
        checkpoint.read(path)  # what has a whole name is whole
    before = log.read_bytes()
    again = small.train(log, data)
    assert again.returncode == 2 and "never overwritten" in again.stderr and log.read_bytes() == before
