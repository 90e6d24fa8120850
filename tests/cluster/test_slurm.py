"""launch/slurm.sub on a real SLURM of two nodes, bare and in containers.

Two trials train; elsewhere ranks stand in for such that do (tests/stand_in.py), bare by the checkout `standing_in`.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import jobs
from tests.cluster import containers, slurm_cluster
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, STANDS_IN, Nodes, need
from tests.cluster.slurm_cluster import Slurm
from tests.harness import small

SYSTEM = "2xCPU"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [tool for tool in slurm_cluster.TOOLS if shutil.which(tool, path=path) is None]
    need(not missing, f"SLURM's {', '.join(missing)} absent")
    need(os.geteuid() == 0, "root makes network namespaces")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # not /tmp: each node has its own
    folder.chmod(0o755)
    with slurm_cluster.start(folder) as started:
        yield started
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def standing_in(slurm: Slurm) -> Path:
    """Where every node sees it."""
    return jobs.standing_in(slurm.folder / "checkout")


@pytest.fixture
def results(slurm: Slurm, request: pytest.FixtureRequest) -> Path:
    return slurm.folder / "results" / request.node.name


def key_and_ranks_left(results: Path) -> list[str]:
    """What the job keeps in its folder only while it runs, and this job's processes and containers."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or not ours
            if str(results) in str(process.environ()) and process.pid != os.getpid():
                processes.append(" ".join(process.cmdline()))
    return [*map(str, results.rglob(".job_*")), *processes]


CONTAINED = pytest.mark.parametrize(
    "contained", [pytest.param(False, id="bare", marks=pytest.mark.slow), pytest.param(True, id="containers")]
)


@CONTAINED
def test_two_trials_on_two_nodes(slurm: Slurm, nodes: Nodes, results: Path, contained: bool) -> None:
    job = {**GOLDEN_JOB, "BATCHSIZE": "16", "NEXP": "2", "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    if contained:
        job |= {"CONT": IMAGE, "CONT_NETWORK": nodes.network}
    number = slurm.submit(**job)
    assert slurm.wait(number) == "COMPLETED 0:0", slurm.output(number)
    logs = sorted(results.rglob("result_*.txt"))
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"]
    assert [containers.devices_and_nodes(log) for log in logs] == [(2, 2)] * 2
    assert jobs.values(logs[0], "seed") != jobs.values(logs[1], "seed")
    assert key_and_ranks_left(results) == []
    containers.nothing_is_left()


def until_trains(slurm: Slurm, number: str, log: Path) -> None:
    """Waits for the first steps in a job's log."""
    jobs.until(lambda: jobs.trains(log), why=lambda: slurm.output(number))


def until_nothing_is_left(slurm: Slurm, number: str, results: Path) -> None:
    def why() -> str:
        return f"{key_and_ranks_left(results)}\n{slurm.output(number)}\n{slurm.log()}"

    jobs.until(lambda: key_and_ranks_left(results) == [], every_s=0.5, why=why)


def start_again(slurm: Slurm, number: str) -> None:
    """After a requeue, at once: SLURM itself would wait two minutes."""
    jobs.until(lambda: slurm.facts(number)["JobState"] == "PENDING", every_s=0.2, why=lambda: slurm.output(number))
    slurm.command("scontrol", "update", f"JobId={number}", "StartTime=now")


@CONTAINED
def test_scancel_ends_the_log_as_aborted(slurm: Slurm, nodes: Nodes, results: Path, contained: bool) -> None:
    job = {**ENDLESS_JOB, "BATCHSIZE": "2", "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    if contained:
        job |= {"CONT": STANDS_IN, "CONT_NETWORK": nodes.network}
    number = slurm.submit(**job)
    log = results / SYSTEM / "rn50" / "result_0.txt"
    until_trains(slurm, number, log)
    assert next(results.glob(".job_key*")).stat().st_mode & 0o777 == 0o600
    slurm.command("scancel", number)
    assert slurm.wait(number).startswith("CANCELLED")
    until_nothing_is_left(slurm, number, results)
    assert "stopped by" in jobs.abort_reason(log)
    containers.nothing_is_left()


def test_a_requeued_job_keeps_the_trials_that_ended(slurm: Slurm, standing_in: Path, results: Path) -> None:
    job = {**GOLDEN_JOB, "BATCHSIZE": "4", "MEASURED_STEPS": "60", "NEXP": "3", "ON_FAILURE": "go_on"}
    number = slurm.submit("--chdir", str(standing_in), **job, DGXSYSTEM=SYSTEM, LOGDIR=str(results))
    logs = [results / SYSTEM / "rn50" / f"result_{trial}.txt" for trial in range(3)]
    until_trains(slurm, number, logs[1])
    finished = logs[0].read_bytes()
    slurm.command("scontrol", "requeue", number)
    until_nothing_is_left(slurm, number, results)
    start_again(slurm, number)
    assert slurm.wait(number) == "FAILED 1:0", slurm.output(number)  # not all trials ended well
    assert [log.name for log in sorted(results.rglob("result_*.txt"))] == [log.name for log in logs]
    assert logs[0].read_bytes() == finished
    assert [containers.status_of(log) for log in logs] == ["success", "aborted", "success"], slurm.output(number)
    assert f"trial 1 aborted: {jobs.abort_reason(logs[1])}" in slurm.output(number)
    assert key_and_ranks_left(results) == []


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_requeue_and_the_time_limit_end_their_logs_as_aborted(
    slurm: Slurm, standing_in: Path, results: Path, trains: bool
) -> None:
    """One job: put back into the queue in mid-run, started again, and ended in order when its time is nearly over."""
    data = small.data_set(results / "data")
    training = {name: str(value) for name, value in small.TRAINING.items()} | {"MAX_EPOCHS": "100000"}
    job = {**training, "DGXSYSTEM": SYSTEM, "LOGDIR": str(results), "DATADIR": str(data)}
    checkout = jobs.REPOSITORY if trains else standing_in
    number = slurm.submit("--time", "3", "--chdir", str(checkout), **job)
    first, second = (folder / SYSTEM / "rn50" / "result_0.txt" for folder in (results, results / "restart_1"))
    until_trains(slurm, number, first)
    slurm.command("scontrol", "requeue", number)
    until_nothing_is_left(slurm, number, results)
    assert jobs.abort_reason(first)
    of_first = first.read_bytes()
    killed = results / f".job_key_{number}"  # as a start leaves it that is killed
    killed.touch(mode=0o600)

    start_again(slurm, number)
    until_trains(slurm, number, second)
    assert not killed.exists()
    # slurm.sub asks for SIGTERM 90 s before the end, and SLURM looks each half minute.
    assert slurm.wait(number) == "FAILED 143:0", slurm.output(number)
    until_nothing_is_left(slurm, number, results)
    step = len(jobs.losses(second))
    reason = f"stopped by signal TERM after step {step}"
    if trains:
        (saved,) = second.parent.glob("result_0.checkpoints/*")  # the ranks of both nodes had their time
        assert saved.name == f"step_{step:09d}.safetensors"
        reason += "; the last good checkpoint is"
    assert jobs.abort_reason(second).startswith(reason)
    assert first.read_bytes() == of_first
