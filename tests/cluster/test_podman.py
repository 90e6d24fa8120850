"""Podman without root: the default job, two nodes from one head, and a node that is killed, as a user made for it."""

import subprocess
from pathlib import Path

import pytest

from tests import jobs
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, STANDS_IN, docker, no_key_is_left
from tests.cluster.rootless import NETWORK, Rootless


@pytest.fixture(scope="module")
def rootless(podman_user: Rootless) -> Rootless:
    podman_user.loaded()
    return podman_user


def two_nodes(rootless: Rootless) -> tuple[str, ...]:
    return ("launch/mpirun.sh", "--hosts", "node0,node1", "--ssh", str(rootless.ssh))


def test_the_default_job_runs_without_root(rootless: Rootless) -> None:
    logs = rootless.job("launch/container_node.sh", name="default")
    log = logs / "CPU" / "rn50" / "result_0.txt"
    assert log.stat().st_uid == rootless.uid, "it is the caller's"
    (evaluation,) = jobs.values(log, "eval_accuracy")[-1:]
    assert evaluation >= 0.9
    assert docker("image", "inspect", "--format", "{{.Id}}", IMAGE) in log.read_text()
    assert not rootless.containers()


def test_two_nodes_without_root_train_as_one_host_does(rootless: Rootless, tmp_path: Path) -> None:
    on_host = tmp_path / "host.txt"
    job = {**GOLDEN_JOB, "BATCHSIZE": "16"}
    done = jobs.on_ranks(2, "-m", "harness", **job, RESULT_FILE=str(on_host))
    assert done.returncode == 0, done.stderr[-2000:]
    logs = rootless.job(*two_nodes(rootless), name="two", DGXSYSTEM="2xCPU", CONT_NETWORK=NETWORK, **job)
    log = logs / "2xCPU" / "rn50" / "result_0.txt"
    (summary,) = jobs.values(log, "run_summary")
    assert (summary["devices"], summary["nodes"]) == (2, 2)
    assert jobs.losses(log) == pytest.approx(jobs.losses(on_host), rel=1e-6)
    assert not rootless.containers()
    jobs.until(no_key_is_left)


def test_a_node_killed_without_root_ends_the_job(rootless: Rootless) -> None:
    logs = rootless.home / "killed"
    job = {**ENDLESS_JOB, "BATCHSIZE": "2", "DGXSYSTEM": "2xCPU", "CONT_NETWORK": NETWORK}
    settings = {"ENGINE": "podman", "CONT": STANDS_IN, "LOGDIR": str(logs), **job}
    head = subprocess.Popen(
        rootless.command(*two_nodes(rootless), folder=rootless.checkout, **settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = logs / "2xCPU" / "rn50" / "result_0.txt"
    jobs.until(lambda: jobs.trains(log), head)
    (second,) = (name for name in rootless.containers() if name.endswith("-1"))
    rootless("podman", "kill", second)
    said, _ = head.communicate(timeout=jobs.LIMIT_S)
    assert head.returncode != 0
    (stop,) = (event for event in jobs.mllog(log) if event["key"] == "run_stop")
    assert stop["metadata"]["status"] == "aborted", said
    assert "node 1 (node1) was lost" in jobs.values(log, "abort_reason")[-1]
    assert not rootless.containers()
