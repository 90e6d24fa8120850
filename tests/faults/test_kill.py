"""SIGKILL to a rank, to mpirun, to all of a node, in each phase of a run: nothing half passes, nothing stays behind.

Every pair is tried on ranks that train nothing (tests/stand_in.py), which tells what the launcher makes of it; training
is killed once in each phase, and each victim twice.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.hooks import checkpoint
from tests import jobs
from tests.harness import small

pytestmark = pytest.mark.slow


def half_written(log: Path) -> bool:
    """Whether a checkpoint is being written now."""
    return any(log.with_name("result_0.checkpoints").glob(".step_*.tmp"))


PHASES: dict[str, Callable[[Path], bool]] = {
    "set-up": lambda log: "init_start" in jobs.text(log),
    "first step": lambda log: "epoch_start" in jobs.text(log),
    "middle of an epoch": lambda log: jobs.text(log).count("step_window") >= 4,
    "evaluation": lambda log: "eval_start" in jobs.text(log),
    "checkpoint's write": half_written,
    "last log line": lambda log: '"run_stop"' in jobs.text(log),
}


def start(logdir: Path, data: Path, *, cwd: Path | None = None, **variables: str | int) -> subprocess.Popen[str]:
    """The user's command, begun; by default in a checkout with a small network."""
    cwd = cwd or small.checkout()
    return jobs.begin_run_and_time(cwd=cwd, **{**small.TRAINING, "LOGDIR": logdir, "DATADIR": data, **variables})


def kill(victim: str, logdir: Path) -> None:
    """Of a node: all processes at one moment, as where it loses its power."""
    if victim == "rank":
        jobs.rank_of(logdir, 0).kill()
    elif victim == "mpirun":
        jobs.launcher_of(logdir).kill()
    else:
        jobs.kill_at_once(lambda: jobs.processes(logdir))


VICTIMS = ("rank", "mpirun", "node")
TRAINS = [
    pytest.param(phase, VICTIMS[(number + 2) % 3], True, marks=pytest.mark.xdist_group("ranks"))
    for number, phase in enumerate(PHASES)
]
STANDS_IN = [(phase, victim, False) for phase in PHASES if phase != "checkpoint's write" for victim in VICTIMS]


@pytest.mark.parametrize(("phase", "victim", "trains"), TRAINS + STANDS_IN)
def test_kill_9(tmp_path, standing_in, phase, victim, trains):
    logdir, last = tmp_path / "logs", phase == "last log line"
    checkout = small.checkout() if trains else standing_in
    if phase == "checkpoint's write":
        checkout = jobs.REPOSITORY  # whose 200 MB take a while
    log = logdir / "CPU/rn50/result_0.txt"
    # Training to a target ends in an evaluation; a run of fixed steps is what can end well here.
    settings = {"MODE": "throughput", "WARMUP_STEPS": 1, "MEASURED_STEPS": 1} if last else {"CHECKPOINT_EPOCHS": 1}
    job = start(logdir, small.data_set(tmp_path / "data"), cwd=checkout, **settings)
    jobs.until(lambda: PHASES[phase](log), job, every_s=0.005)
    kill(victim, logdir)
    _, said = job.communicate(timeout=jobs.LIMIT_S)

    jobs.until(lambda: not jobs.processes(logdir), why=lambda: jobs.processes(logdir))  # no orphan
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
    again = jobs.run_and_time(cwd=checkout, **{**small.TRAINING, "LOGDIR": logdir, "DATADIR": tmp_path / "data"})
    assert again.returncode == 2 and "never overwritten" in again.stderr and log.read_bytes() == before
