"""A reader and a rank that hang: the watchdog ends the run with the stacks of every rank."""

import os
import re
import signal

import psutil
import pytest

from tests import jobs
from tests.faults.test_kill import start
from tests.harness import small

# Most of their time these two wait: other tests may have the cores then.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hangs")]
LIMIT_S = 60  # over set-up's longest silence on a busy machine
STANDING_IN_S = 10  # of the stand-in, which is never silent for long


def stacks(said: str, rank: int) -> str:
    return "\n".join(line for line in said.splitlines() if line.startswith(f"[rank {rank}] "))


def test_reader_that_hangs(tmp_path):
    """A FIFO in the list: opening it waits for a writer that never comes."""
    data, logdir = small.data_set(tmp_path / "data"), tmp_path / "logs"
    (data / "train" / "07.jpeg").unlink()
    os.mkfifo(data / "train" / "07.jpeg")
    job = start(logdir, data, HANG_TIMEOUT_S=LIMIT_S)
    _, said = job.communicate(timeout=jobs.LIMIT_S)
    log = logdir / "CPU/rn50/result_0.txt"
    reason = jobs.abort_reason(log)
    assert job.returncode == 1 and said.startswith(f"error: {reason}") and said.count("\n") == 1
    hang = rf"rank \d on \S+ hangs: no progress for {LIMIT_S} s while (reading the input of|computing) step \d+"
    assert re.fullmatch(hang, reason)
    messages = log.with_suffix(".stderr").read_text()
    assert "fromfile" in messages or "_read" in messages, "the stack of the reading thread"
    assert all("harness/loop.py" in stacks(messages, rank) for rank in (0, 1)), "the stack of every rank"
    assert jobs.processes(logdir) == []


def test_rank_that_hangs(tmp_path, standing_in):
    """A stopped process is the hardest kind of hang: it cannot write its own stack, the others can."""
    logdir = tmp_path / "logs"
    log = logdir / "CPU/rn50/result_0.txt"
    job = start(logdir, tmp_path, cwd=standing_in, HANG_TIMEOUT_S=STANDING_IN_S, MAX_EPOCHS=1000)
    jobs.until(lambda: jobs.text(log).count("step_window") >= 2, job)
    hung = jobs.rank_of(logdir, 1)
    hung.send_signal(signal.SIGSTOP)
    job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode == 1
    assert f"hangs: no progress for {STANDING_IN_S} s while computing step" in jobs.abort_reason(log)
    assert "train.py" in stacks(log.with_suffix(".stderr").read_text(), 0)
    assert not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE, "no orphan"
    assert jobs.processes(logdir) == []
