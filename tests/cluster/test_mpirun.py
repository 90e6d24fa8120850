"""launch/mpirun.sh: hosts reached by ssh, with containers started on them and, in containers as hosts, without; and
Podman without root: the default job, two nodes from one head, and a node that is killed, as a user made for it.

Ranks stand in for such that train (tests/stand_in.py); those of Podman train, on two nodes by this launcher.
"""

import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import jobs
from tests.cluster import containers
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, NETWORK, STANDS_IN, Nodes, Rootless, docker, run

PORT = 2200  # of the hosts' own sshd


@pytest.fixture
def hosts(nodes: Nodes, tmp_path: Path) -> Iterator[str]:
    """node0 and node1: containers as plain hosts with an sshd, where the image's checkout is at the same path.

    Yields the head node's ssh command.
    """
    key = tmp_path / "login_key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    public = key.with_suffix(".pub").read_text()
    sshd = (
        f"cd /tmp && cp /login_key host_key && chmod 600 host_key && echo '{public.strip()}' >authorized_keys && "
        f"exec /usr/sbin/sshd -D -e -p {PORT} -o HostKey=/tmp/host_key -o AuthorizedKeysFile=/tmp/authorized_keys "
        "-o StrictModes=no -o UsePAM=no -o PidFile=none"
    )
    os.chown(key, 1000, 1000)
    os.chown(nodes.logdir, 1000, 1000)
    for rank in (0, 1):
        name = f"{nodes.network}-host{rank}"
        docker(
            *("run", "--detach", "--name", name, "--network", nodes.network, "--hostname", f"node{rank}", "--init"),
            *("--network-alias", f"node{rank}", "--volume", f"{key}:/login_key:ro"),
            *("--volume", f"{nodes.logdir}:{nodes.logdir}", STANDS_IN, "bash", "-c", sshd),
        )
        nodes.names.append(name)
    config = tmp_path / "ssh_config"
    entries = [
        f"Host node{rank}\nHostName {containers.address(f'{nodes.network}-host{rank}')}\nUser mpiuser\nPort {PORT}\n"
        f"IdentityFile {tmp_path}/head_key\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        for rank in (0, 1)
    ]
    config.write_text("".join(entries))
    (tmp_path / "head_key").write_bytes(key.read_bytes())
    (tmp_path / "head_key").chmod(0o600)
    yield f"ssh -F {config}"


def in_hosts(nodes: Nodes, script: str) -> list[str]:
    """Output of a shell script in each host."""
    return [docker("exec", f"{nodes.network}-host{rank}", "bash", "-c", script) for rank in (0, 1)]


NOTHING_LEFT = (
    "ls -d /dev/shm/job-key.* /tmp/job-key.* /tmp/nodes-* 2>/dev/null; "
    "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | "
    "grep -E '[-]m harness|[p]rted|[l]aunch.nodes|[s]shd_config'; true"
)


def command(nodes: Nodes, ssh: str, *arguments: str) -> list[str]:
    return ["launch/mpirun.sh", "--hosts", nodes.hosts(2), "--ssh", ssh, *arguments]


def job(nodes: Nodes, of: dict[str, str], batch: int, **more: str) -> dict[str, Any]:
    return {**of, "BATCHSIZE": str(batch), "DGXSYSTEM": "2xCPU", "LOGDIR": str(nodes.logdir), **more}


BARE = ("--no-container", "--workdir", "/workspace")


def test_bare_hosts_run_the_job_and_nothing_is_left(nodes: Nodes, hosts: str) -> None:
    run(*command(nodes, hosts, *BARE), **job(nodes, GOLDEN_JOB, 16))
    assert containers.devices_and_nodes(nodes.log(2)) == (2, 2)
    assert in_hosts(nodes, NOTHING_LEFT) == ["", ""]


@pytest.mark.slow
def test_a_head_that_is_killed_takes_the_job_and_the_key_with_it(nodes: Nodes, hosts: str) -> None:
    head = jobs.begin(command(nodes, hosts, *BARE), together=True, **job(nodes, ENDLESS_JOB, 2))
    nodes.until_trains(2)
    head.kill()
    head.communicate()
    jobs.until(lambda: in_hosts(nodes, NOTHING_LEFT) == ["", ""], why=lambda: in_hosts(nodes, NOTHING_LEFT))
    assert containers.status_of(nodes.log(2)) == "aborted"


def test_containers_are_started_on_the_hosts(nodes: Nodes, tmp_path: Path) -> None:
    """Both hosts are this machine, reached by an ssh that is its shell; the containers have a network of their own."""
    shell = jobs.local_ssh(tmp_path / "ssh")
    contained = job(nodes, GOLDEN_JOB, 16, CONT=STANDS_IN, CONT_NETWORK=nodes.network)
    done = run(*command(nodes, str(shell)), **contained)
    assert containers.devices_and_nodes(nodes.log(2)) == (2, 2), done.stdout
    containers.nothing_is_left()


@pytest.mark.parametrize(
    ("trials", "killed"), [(3, (1,)), pytest.param(10, (1, 4, 8), marks=pytest.mark.slow)], ids=["one", "three"]
)
def test_spares_take_the_places_of_killed_nodes(
    nodes: Nodes, tmp_path: Path, trials: int, killed: tuple[int, ...]
) -> None:
    """Hosts and spares are this machine, reached by an ssh that is its shell; a container of a job is its node."""
    shell = jobs.local_ssh(tmp_path / "ssh")
    spares = {"ON_FAILURE": "go_on", "SPARES": "spare0,spare1,spare2,spare3"}
    steps = {"NEXP": str(trials), "MEASURED_STEPS": "60"}  # long enough to be killed in
    contained = job(nodes, GOLDEN_JOB, 4, CONT=STANDS_IN, CONT_NETWORK=nodes.network, **spares, **steps)
    with jobs.begin(command(nodes, str(shell)), together=True, **contained) as head:
        for trial in killed:
            log = nodes.log(2, trial)
            jobs.until(functools.partial(jobs.trains, log), head)
            found = docker("ps", "--quiet", "--filter", "name=paddle-reference-.*-1$")
            run("docker", "kill", found)
        said, _ = head.communicate(timeout=900)
    assert head.returncode == 1, said
    aborted = [trial for trial in range(trials) if containers.status_of(nodes.log(2, trial)) == "aborted"]
    assert aborted == list(killed), said
    for trial in killed:
        assert re.search(rf"^trial {trial} aborted: node 1 \(\S+\) was lost$", said, re.M), said
    assert f"over {trials - len(killed)} runs" in said or trials - len(killed) < 3, said
    containers.nothing_is_left()


# ---- Podman without root


@pytest.fixture(scope="module")
def rootless(podman_user: Rootless) -> Iterator[Rootless]:
    """The user of the tests below, the last of this file; then it goes, with its 20 GB of images."""
    podman_user.loaded()
    yield podman_user
    podman_user.close()


def two_nodes(rootless: Rootless, *, name: str, **job: str) -> tuple[list[str], Path]:
    """The command of a job on two nodes, and its log."""
    words = ("launch/mpirun.sh", "--hosts", "node0,node1", "--ssh", str(rootless.ssh))
    command, logs = rootless.job(*words, name=name, DGXSYSTEM="2xCPU", CONT_NETWORK=NETWORK, **job)
    return command, logs / "2xCPU" / "rn50" / "result_0.txt"


def test_a_job_without_root_is_its_callers_and_names_its_image(rootless: Rootless) -> None:
    command, logs = rootless.job("launch/container_node.sh", name="short", MODE="throughput", MEASURED_STEPS="3")
    run(*command)
    log = logs / "CPU" / "rn50" / "result_0.txt"
    assert log.stat().st_uid == rootless.uid, "it is the caller's"
    (source,) = (
        json.loads(line[2:])["source"] for line in log.read_text().splitlines() if line.startswith('# {"source"')
    )
    image = containers.facts(IMAGE)
    assert source["image_digest"] == image["Id"]
    assert source["commit"] == image["Config"]["Labels"]["org.opencontainers.image.revision"][:40]
    assert not rootless.containers()


@pytest.mark.slow
def test_the_default_job_runs_without_root_and_passes_the_official_checker(rootless: Rootless, tmp_path: Path) -> None:
    command, logs = rootless.job("launch/container_node.sh", name="default")
    run(*command)
    log = logs / "CPU" / "rn50" / "result_0.txt"
    assert jobs.values(log, "eval_accuracy")[-1] >= 0.9
    checker = ("-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0")
    run(sys.executable, *checker, "--log_output", str(tmp_path / "checker.txt"), str(log))


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
