"""Podman without root: the default job, two nodes from one head, and a node that is killed, as a user made for it."""

import json
import sys
from pathlib import Path

import pytest

from tests import jobs
from tests.cluster import containers
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, STANDS_IN, run
from tests.cluster.rootless import NETWORK, Rootless


@pytest.fixture(scope="module")
def rootless(podman_user: Rootless) -> Rootless:
    podman_user.loaded()
    return podman_user


def two_nodes(rootless: Rootless, *, name: str, **job: str) -> tuple[list[str], Path]:
    """The command of a job on two nodes, and its log."""
    words = ("launch/mpirun.sh", "--hosts", "node0,node1", "--ssh", str(rootless.ssh))
    command, logs = rootless.job(*words, name=name, DGXSYSTEM="2xCPU", CONT_NETWORK=NETWORK, **job)
    return command, logs / "2xCPU" / "rn50" / "result_0.txt"


def test_the_default_job_runs_without_root_and_passes_the_official_checker(rootless: Rootless, tmp_path: Path) -> None:
    command, logs = rootless.job("launch/container_node.sh", name="default")
    run(*command)
    log = logs / "CPU" / "rn50" / "result_0.txt"
    assert log.stat().st_uid == rootless.uid, "it is the caller's"
    assert jobs.values(log, "eval_accuracy")[-1] >= 0.9
    (source,) = (
        json.loads(line[2:])["source"] for line in log.read_text().splitlines() if line.startswith('# {"source"')
    )
    image = containers.facts(IMAGE)
    assert source["image_digest"] == image["Id"]
    assert source["commit"] == image["Config"]["Labels"]["org.opencontainers.image.revision"][:40]
    checker = ("-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0")
    run(sys.executable, *checker, "--log_output", str(tmp_path / "checker.txt"), str(log))
    assert not rootless.containers()


def test_two_nodes_without_root_train_as_one_host_does(rootless: Rootless, tmp_path: Path) -> None:
    on_host = tmp_path / "host.txt"
    job = {**GOLDEN_JOB, "BATCHSIZE": "16"}
    done = jobs.on_ranks(2, "-m", "harness", **job, RESULT_FILE=str(on_host))
    assert done.returncode == 0, done.stderr[-2000:]
    command, log = two_nodes(rootless, name="two", **job)
    run(*command)
    assert containers.devices_and_nodes(log) == (2, 2)
    assert jobs.losses(log) == pytest.approx(jobs.losses(on_host), rel=1e-6)
    assert not rootless.containers()
    containers.nothing_is_left()


def test_a_node_killed_without_root_ends_the_job(rootless: Rootless) -> None:
    command, log = two_nodes(rootless, name="killed", CONT=STANDS_IN, **ENDLESS_JOB, BATCHSIZE="2")
    head = jobs.begin(command, together=True)
    jobs.until(lambda: jobs.trains(log), head)
    (second,) = (name for name in rootless.containers() if name.endswith("-1"))
    rootless("podman", "kill", second)
    said, _ = head.communicate(timeout=jobs.LIMIT_S)
    assert head.returncode != 0
    assert "node 1 (node1) was lost" in jobs.abort_reason(log), said
    assert not rootless.containers()
