"""SIGKILL to a rank, to mpirun, to all of a node, in each phase of a run: nothing half passes, nothing stays behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.hooks import checkpoint
from tests import jobs
from tests.harness import small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]


def half_written(log: Path) -> bool:
    """Whether a checkpoint is being written now."""
    return any(log.with_name("result_0.checkpoints").glob(".step_*.tmp"))


def text(log: Path) -> str:
    return log.read_text() if log.is_file() else ""


PHASES: dict[str, Callable[[Path], bool]] = {
    "set-up": lambda log: "init_start" in text(log),
    "first step": lambda log: "epoch_start" in text(log),
    "middle of an epoch": lambda log: text(log).count("step_window") >= 4,
    "evaluation": lambda log: "eval_start" in text(log),
    "checkpoint's write": half_written,
    "last log line": lambda log: '"run_stop"' in text(log),
}


def start(logdir: Path, data: Path, **variables: str | int) -> subprocess.Popen[str]:
    """The user's command, begun."""
    settings = {**small.TRAINING, "LOGDIR": logdir, "DATADIR": data, **variables}
    return jobs.begin([str(jobs.REPOSITORY / "run_and_time.sh")], **settings)


def kill(victim: str, logdir: Path) -> None:
    """Of a node: all processes at one moment, as where it loses its power."""
    if victim == "rank":
        jobs.rank_of(logdir, 0).kill()
    elif victim == "mpirun":
        jobs.launcher_of(logdir).kill()
    else:
        jobs.kill_at_once(lambda: jobs.processes(logdir))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["rank", "mpirun", "node"])
def test_kill_9(tmp_path, victim, phase):
    logdir, last = tmp_path / "logs", phase == "last log line"
    log = logdir / "CPU/rn50/result_0.txt"
    # Training to a target ends in an evaluation; a run of fixed steps is what can end well here.
    settings = {"MODE": "throughput", "WARMUP_STEPS": 1, "MEASURED_STEPS": 1} if last else {"CHECKPOINT_EPOCHS": 1}
    job = start(logdir, small.data_set(tmp_path / "data"), **settings)
    until = time.monotonic() + 300
    while not PHASES[phase](log):
        assert job.poll() is None and time.monotonic() < until, job.communicate()[1]
        time.sleep(0.005)
    kill(victim, logdir)
    _, said = job.communicate(timeout=60)

    until = time.monotonic() + 30
    while jobs.processes(logdir) and time.monotonic() < until:
        time.sleep(0.05)
    assert jobs.processes(logdir) == [], "no orphan"
    assert job.returncode == (-9 if victim == "node" else 1)
    if victim != "node":
        assert said.startswith("error: ") and said.count("\n") == 1, said
    stops = [event for event in jobs.mllog(log) if event["key"] == "run_stop"]
    if last:
        assert [stop["metadata"]["status"] for stop in stops] == ["success"], "what the log says was so"
    elif victim == "node":
        assert stops == []
    else:
        assert jobs.abort_reason(log) in said

    status, checked = jobs.checked(log)
    assert status == 1 and checked["verdict"] == "fail"
    for path in checkpoint._newest_first(log.with_name("result_0.checkpoints")):
        checkpoint.read(path)  # what has a whole name is whole
    before = log.read_bytes()
    again = jobs.run_and_time(**{**small.TRAINING, "LOGDIR": logdir, "DATADIR": tmp_path / "data"})
    assert again.returncode == 2 and "never overwritten" in again.stderr and log.read_bytes() == before
