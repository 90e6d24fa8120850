"""SIGKILL to a rank, to mpirun, to all of a node, in each phase of a run: nothing half passes, nothing stays behind.

Every pair is tried on ranks that train nothing (tests/stand_in.py), which tells what the launcher makes of it; training
is killed once in each phase, and each victim twice.
"""

import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from harness.hooks import checkpoint_file
from tests import jobs
from tests.harness import small

PHASES: dict[str, Callable[[Path], bool]] = {
    "set-up": lambda log: "init_start" in jobs.text(log),
    "first step": lambda log: "epoch_start" in jobs.text(log),
    "middle of an epoch": lambda log: jobs.text(log).count("step_window") >= 4,
    "evaluation": lambda log: "eval_start" in jobs.text(log),
    "checkpoint's write": lambda log: any(log.with_name("result_0.checkpoints").glob(".step_*.tmp")),
    "last log line": lambda log: '"run_stop"' in jobs.text(log),
}


def start(logdir: Path, data: Path, *, cwd: Path | None = None, **variables: str | int) -> subprocess.Popen[str]:
    """The user's command, begun; by default in a checkout with a small network."""
    job = {**small.TRAINING, "LOGDIR": logdir, "DATADIR": data, **variables}
    return jobs.run_and_time(start=jobs.begin, cwd=cwd or small.checkout(), **job)


def kill(victim: str, logdir: Path) -> None:
    """Of a node: all processes at one moment, as where it loses its power."""
    if victim == "rank":
        jobs.rank_of(logdir, 0).kill()
    elif victim == "mpirun":
        jobs.launcher_of(logdir).kill()
    else:
        jobs.kill_at_once(lambda: jobs.processes(logdir))


VICTIMS = ("rank", "mpirun", "node")
SLOW_BUT_IN_CI = [pytest.mark.slow, pytest.mark.ci]
TRAINS = [
    pytest.param(phase, VICTIMS[(number + 2) % 3], True, marks=[pytest.mark.ci, pytest.mark.xdist_group("ranks")])
    for number, phase in enumerate(PHASES)
]
# Of the jobs that train nothing .ci/run kills one victim in each phase, another than of those that train.
STANDS_IN = [
    pytest.param(phase, victim, False, marks=[pytest.mark.ci] if victim == VICTIMS[number % 3] else [])
    for number, phase in enumerate(PHASES)
    if phase != "checkpoint's write"
    for victim in VICTIMS
]


@pytest.mark.slow
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
    for path in checkpoint_file.newest_first(log.with_name("result_0.checkpoints")):
        checkpoint_file.read(path)  # what has a whole name is whole
    before = log.read_bytes()
    again = jobs.run_and_time(cwd=checkout, **{**small.TRAINING, "LOGDIR": logdir, "DATADIR": tmp_path / "data"})
    assert again.returncode == 2 and "never overwritten" in again.stderr and log.read_bytes() == before


# ---- each process of a job in turn, the tree as the system shows it


# {a word of the command: the reason in the log}
TREE = {
    "run_and_time.sh": r"run_and_time.sh was killed",
    "launch/trials.sh": r"launch/trials.sh was killed",
    "launch.trial": r"launch/trial.py was ended by signal 9",
    "mpirun": r"mpirun was ended by signal 9",
    "-m harness": r"process rank \d with PID \d+ on node \S+ exited on signal 9 \(Killed\)",
}


LOG = "CPU/rn50/result_0.txt"


def start_endless(checkout: Path, logdir: Path, starter: Sequence[str]) -> subprocess.Popen[str]:
    """A job that another command starts, and that trains for ever; its first steps are in the log."""
    settings = {**small.TRAINING, "LOGDIR": logdir, "DATADIR": logdir, "TMPDIR": logdir}
    settings |= {"MODE": "throughput", "MEASURED_STEPS": 100_000}
    if "-i" in starter:  # which would lose them
        starter = (*starter, "env", *(f"{name}={value}" for name, value in settings.items()))
    job = jobs.begin([*starter, str(checkout / "run_and_time.sh")], cwd=checkout, **settings)
    jobs.until(lambda: jobs.trains(logdir / LOG), job)
    return job


def role_of(process: psutil.Process) -> str:
    """The word of TREE that the process's own command has."""
    if process.name() in ("mpirun", "prterun"):
        return "mpirun"
    line = " ".join(process.cmdline())
    return next((word for word in TREE if word in line.partition(" -- ")[0]), line)


IGNORING = ("env", "--ignore-signal=HUP,INT,QUIT")  # as a shell's background and nohup together have a job
# {who starts the job: the words before the command}
STARTERS = {
    "nohup": ("nohup",),
    "setsid": ("setsid", "--wait"),
    "at": (*IGNORING, "setsid", "--wait", "sh", "-c", 'umask 22; exec "$@"', "at"),
    "cron": (
        "env",
        "-i",
        "HOME=/",
        "LOGNAME=root",
        "SHELL=/bin/sh",
        "PATH=/usr/bin:/bin",
        "sh",
        "-c",
        '"$@"; exit',
        "cron",
    ),
}


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    ("role", "starter"),
    [
        pytest.param(role, IGNORING, marks=[] if role in ("launch/trials.sh", "mpirun") else SLOW_BUT_IN_CI)
        for role in TREE
    ],
)
def test_nothing_stays_of_a_job_when_one_process_is_killed(
    standing_in: Path, tmp_path: Path, role: str, starter: Sequence[str]
) -> None:
    """The job is started with HUP, INT and QUIT ignored, which a shell cannot trap then."""
    job = start_endless(standing_in, tmp_path, starter)
    tree = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    assert {role_of(process) for process in tree} == set(TREE)
    segments = [Path(m.path) for m in jobs.rank_of(tmp_path, 0).memory_maps() if m.path.startswith("/dev/shm/")]
    assert segments and all(path.exists() for path in segments)
    folder_of_mpirun = Path(jobs.launcher_of(tmp_path).environ()["PRTE_MCA_prte_local_tmpdir_base"])
    assert folder_of_mpirun.exists()
    tree[[role_of(process) for process in tree].index(role)].send_signal(signal.SIGKILL)
    _, said = job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode != 0 and said.count("error: ") == said.count("\n") == 1, said
    jobs.until(lambda: not jobs.processes(tmp_path), why=lambda: jobs.processes(tmp_path))
    assert re.fullmatch(TREE[role], jobs.abort_reason(tmp_path / LOG))
    segments += [path.parent for path in segments if path.parent.name.startswith("ranks.")]
    left = (*tmp_path.iterdir(), *segments, folder_of_mpirun)
    assert [path for path in left if path.exists() and path.name != "CPU"] == []


TRIAL_THAT_HAS_BEGUN = """
import os, pathlib, time
pathlib.Path(os.environ["LOGDIR"], "begun").touch()
time.sleep(600)
"""


def test_a_trial_that_has_only_begun_ends_with_its_script(tmp_path: Path) -> None:
    """Such as one that still loads its modules, and has not yet asked Linux for a signal at its parent's death."""
    checkout = jobs.standing_in(tmp_path / "checkout")
    (checkout / "launch" / "trial.py").write_text(TRIAL_THAT_HAS_BEGUN)
    logdir = tmp_path / "logs"
    logdir.mkdir()
    job = jobs.run_and_time(start=jobs.begin, cwd=checkout, **jobs.TINY, LOGDIR=str(logdir))
    jobs.until((logdir / "begun").exists, job)
    (trial,) = (process for process in jobs.processes(logdir) if role_of(process) == "launch.trial")
    script = trial.parent()
    assert script is not None and role_of(script) == "launch/trials.sh"
    script.kill()
    try:
        trial.wait(60)  # which raises where it is still there
    finally:
        for process in jobs.processes(logdir):
            process.kill()
        job.communicate()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("starter", STARTERS)
def test_a_job_ends_with_its_script_whoever_started_it(standing_in: Path, tmp_path: Path, starter: str) -> None:
    job = start_endless(standing_in, tmp_path, STARTERS[starter])
    (script,) = (
        process
        for process in jobs.processes(tmp_path)
        if role_of(process) == "run_and_time.sh" and process.name() == "bash"
    )
    script.kill()
    job.communicate(timeout=jobs.LIMIT_S)
    jobs.until(lambda: not jobs.processes(tmp_path), why=lambda: jobs.processes(tmp_path))
    assert re.fullmatch(TREE["run_and_time.sh"], jobs.abort_reason(tmp_path / LOG))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_interrupted_ends_the_others_at_once(standing_in: Path, tmp_path: Path, rank: int) -> None:
    """It once waited at MPI's end for the others, and they in a step for it, up to HANG_TIMEOUT_S."""
    log = tmp_path / "result_0.txt"
    settings = {**small.TRAINING, "RESULT_FILE": log, "MAX_EPOCHS": 1000, "LOGDIR": tmp_path, "HANG_TIMEOUT_S": 60}
    job = jobs.on_ranks(2, "-m", "harness", cwd=standing_in, start=jobs.begin, **settings)
    jobs.until(lambda: jobs.trains(log), job)
    jobs.rank_of(tmp_path, rank).send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode == 130 and "error: stopped by signal INT" in said, said
    assert "hangs" not in said and "Traceback" not in said, said
    if rank == 0:  # which has the log
        assert jobs.abort_reason(log) == "stopped by signal INT"
