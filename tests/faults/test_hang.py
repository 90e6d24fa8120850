"""A reader and a rank that hang: the watchdog ends the run with the stacks of every rank, within the stated time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from harness import watchdog
from tests import jobs
from tests.harness import small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]
LIMIT_S = 60  # over set-up's longest silence on a busy machine
ENDS_S = LIMIT_S + watchdog.TICK_S + watchdog.GRACE_S


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Python processes under mpirun, in order of rank."""
    return [p for p in psutil.Process(process.pid).children(recursive=True) if "python" in p.name()]


def stacks(said: str, rank: int) -> str:
    return "\n".join(line for line in said.splitlines() if line.startswith(f"[rank {rank}] "))


def test_reader_that_hangs(tmp_path):
    """A FIFO in the list: opening it waits for a writer that never comes."""
    data = small.data_set(tmp_path / "data")
    (data / "train" / "07.jpeg").unlink()
    os.mkfifo(data / "train" / "07.jpeg")
    log = tmp_path / "result_0.txt"
    process = small.start(log, data, HANG_TIMEOUT_S=LIMIT_S)
    _, said = process.communicate(timeout=500)
    assert process.returncode != 0
    found = re.search(rf"error: rank \d on \S+ hangs: no progress for {LIMIT_S} s while (.*)", said)
    assert found and re.match(r"(reading the input of|computing) step \d+", found[1]), said[-3000:]
    assert "fromfile" in said or "_read" in said, "the stack of the reading thread"
    assert all("harness/loop.py" in stacks(said, rank) for rank in (0, 1)), "the stack of every rank"


def test_rank_that_hangs(tmp_path):
    """A stopped process is the hardest kind of hang: it cannot write its own stack, the others can."""
    log = tmp_path / "result_0.txt"
    process = small.start(log, small.data_set(tmp_path / "data"), HANG_TIMEOUT_S=LIMIT_S)
    until = time.monotonic() + 300
    while not (log.is_file() and log.read_text().count("step_window") >= 2):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    hung = ranks_of(process)[1]
    hung.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    _, said = process.communicate(timeout=200)
    took_s = time.monotonic() - began
    assert process.returncode != 0 and f"hangs: no progress for {LIMIT_S} s while computing step" in said
    assert LIMIT_S <= took_s < ENDS_S + 15, f"{took_s:.1f} s"
    assert "harness/loop.py" in stacks(said, 0)
    assert not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE, "no orphan"


def test_log_of_a_hung_run_names_the_hang(tmp_path):
    """By the user's command: the log ends with the reason, the stacks are in the .stderr beside it."""
    data = small.data_set(tmp_path / "data")
    (data / "train" / "07.jpeg").unlink()
    os.mkfifo(data / "train" / "07.jpeg")
    settings = {**small.TRAINING, "HANG_TIMEOUT_S": LIMIT_S, "DATADIR": data, "LOGDIR": tmp_path / "logs"}
    done = jobs.run_and_time(timeout_s=600, **settings)
    assert done.returncode == 1, done.stderr
    (log,) = Path(tmp_path / "logs").rglob("result_0.txt")
    assert re.search(rf"rank \d on \S+ hangs: no progress for {LIMIT_S} s", jobs.values(log, "abort_reason")[0])
    assert "[rank 0] " in log.with_suffix(".stderr").read_text()
