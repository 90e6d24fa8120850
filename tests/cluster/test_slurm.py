"""launch/slurm.sub on a real SLURM of two nodes, bare and in containers."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs
from tests.cluster import slurm_cluster
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, Nodes, docker, need
from tests.cluster.slurm_cluster import Slurm

SYSTEM = "2xCPU"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    missing = [
        tool for tool in slurm_cluster.TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]
    need(not missing, f"SLURM's {', '.join(missing)} absent")
    need(os.geteuid() == 0, "root makes network namespaces")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # not /tmp: each node has its own
    folder.chmod(0o755)
    with slurm_cluster.start(folder) as started:
        yield started
    shutil.rmtree(folder)


@pytest.fixture
def results(slurm: Slurm, request: pytest.FixtureRequest) -> Path:
    return slurm.folder / "results" / request.node.name


def key_and_ranks_left(results: Path) -> list[str]:
    """Keys in the job's folder, and this job's processes and containers."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(results) in process.joinpath("environ").read_text(errors="replace") and process.name != str(
                os.getpid()
            ):
                processes.append(process.joinpath("cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or not ours
            continue
    return [*map(str, results.glob(".job_key*")), *processes]


@pytest.mark.parametrize("contained", [False, True], ids=["bare", "containers"])
def test_two_trials_on_two_nodes(slurm: Slurm, nodes: Nodes, results: Path, contained: bool) -> None:
    job = {**GOLDEN_JOB, "BATCHSIZE": "16", "NEXP": "2", "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    if contained:
        job |= {"CONT": IMAGE, "CONT_NETWORK": nodes.network}
    number = slurm.submit(**job)
    assert slurm.wait(number, timeout_s=400) == "COMPLETED 0:0", slurm.output(number)
    logs = sorted(results.rglob("result_*.txt"))
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"]
    for log in logs:
        (summary,) = jobs.values(log, "run_summary")
        assert (summary["devices"], summary["nodes"]) == (2, 2)
    assert jobs.values(logs[0], "seed") != jobs.values(logs[1], "seed")
    assert key_and_ranks_left(results) == []
    assert docker("ps", "--all", "--quiet", "--filter", "name=paddle-reference-") == ""


@pytest.mark.parametrize("contained", [False, True], ids=["bare", "containers"])
def test_scancel_ends_the_log_as_aborted(slurm: Slurm, nodes: Nodes, results: Path, contained: bool) -> None:
    job = {**ENDLESS_JOB, "BATCHSIZE": "2", "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    if contained:
        job |= {"CONT": IMAGE, "CONT_NETWORK": nodes.network}
    number = slurm.submit(**job)
    log = results / SYSTEM / "rn50" / "result_0.txt"
    deadline = time.monotonic() + 120
    while not (log.is_file() and "step_window" in log.read_text(errors="replace")):
        assert time.monotonic() < deadline, slurm.output(number)
        time.sleep(0.5)
    assert next(results.glob(".job_key*")).stat().st_mode & 0o777 == 0o600
    slurm.command("scancel", number)
    assert slurm.wait(number, timeout_s=60).startswith("CANCELLED")
    deadline = time.monotonic() + 60
    while left := key_and_ranks_left(results):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    (stop,) = [event for event in jobs.mllog(log) if event["key"] == "run_stop"]
    assert stop["metadata"]["status"] == "aborted"
    assert docker("ps", "--all", "--quiet", "--filter", "name=paddle-reference-") == ""
