"""What breaks in a job of several containers ends it everywhere, in time, with a reason, and leaves nothing; what is
slow the fleet's acceptance names.

Ranks train only where it matters (image=IMAGE), else they stand in for such (tests/stand_in.py).
"""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.hooks import checkpoint_file
from tests import jobs
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, STANDS_IN, Nodes, address, docker, need, run
from tests.faults.test_kill import PHASES
from tests.harness import small

TINY = {**ENDLESS_JOB, "BATCHSIZE": "2"}


def start_two(nodes: Nodes) -> tuple[str, str]:
    """Two nodes that train until something ends them."""
    second, first = nodes.start(1, 2, **TINY), nodes.start(0, 2, **TINY)
    nodes.until_trains(2)
    return first, second


def assert_aborted(nodes: Nodes, reason: str) -> None:
    """The log is closed as aborted, with a reason that says what happened."""
    assert reason in jobs.abort_reason(nodes.log(2)), nodes.output(nodes.names[-1])


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase == "middle of an epoch" else pytest.mark.slow) for phase in PHASES]
)
def test_a_container_killed_in_any_phase_ends_the_job(nodes: Nodes, phase: str) -> None:
    data = small.data_set(nodes.logdir / "data")
    job: dict[str, Any] = {name: str(value) for name, value in small.TRAINING.items()} | {"CHECKPOINT_EPOCHS": "1"}
    image = IMAGE if phase == "checkpoint's write" else STANDS_IN
    second, first = (nodes.start(rank, 2, image=image, DATADIR=str(data), **job) for rank in (1, 0))
    reached = PHASES[phase]
    jobs.until(lambda: reached(nodes.log(2)), every_s=0.01, why=lambda: nodes.output(first))
    run("docker", "kill", second, check=phase != "last log line")  # after that it may have ended by itself
    assert nodes.wait(first) == 1
    assert_aborted(nodes, "below the target" if phase == "last log line" else "")
    for path in checkpoint_file.newest_first(nodes.log(2).with_name("result_0.checkpoints")):
        checkpoint_file.read(path)  # what has a whole name is whole


def test_a_node_cut_off_the_network_ends_the_job_on_both_sides(nodes: Nodes) -> None:
    first, second = start_two(nodes)
    docker("network", "disconnect", nodes.network, second)
    assert [nodes.wait(name) for name in (second, first)] == [1, 1]
    assert_aborted(nodes, "node 1 (node1) was lost")


def test_docker_stop_ends_the_job_in_order(nodes: Nodes) -> None:
    first, second = start_two(nodes)
    docker("stop", "--time", "300", first)
    assert [nodes.wait(name) for name in (first, second)] == [128 + signal.SIGTERM] * 2
    assert_aborted(nodes, "SIGTERM")


# {how the job's only container ends: its exit status}
ENDS = {"docker stop": 128 + signal.SIGTERM, "docker kill": 128 + signal.SIGKILL, "kill -9": 128 + signal.SIGKILL}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_job_ends_with_its_only_container(nodes: Nodes, how: str) -> None:
    """Who is killed cannot close the log: it has no end then, and the checker refuses it."""
    only = nodes.start(0, 1, **ENDLESS_JOB, DGXSYSTEM="CPU")
    log = nodes.logdir / "CPU/rn50/result_0.txt"
    jobs.until(lambda: jobs.trains(log), every_s=0.2, why=lambda: nodes.output(only))
    of_job = tree(only)
    if how == "kill -9":
        of_job[0].kill()
    else:
        docker(how.removeprefix("docker "), only)
    assert nodes.wait(only) == ENDS[how]
    jobs.until(lambda: not any(process.is_running() for process in of_job), why=lambda: of_job)
    if how == "docker stop":
        assert jobs.abort_reason(log) == "stopped by signal TERM"
    else:
        assert "run_stop" not in jobs.text(log)
    status, _ = jobs.checked(log)
    assert status == 1


def test_a_node_that_never_comes_is_named(nodes: Nodes) -> None:
    first = nodes.start(0, 2, NODE_WAIT_S="8")
    assert nodes.wait(first) == 1
    assert "1 of 2 nodes did not join within 8 s: node1 (node 1): its name does not resolve" in nodes.output(first)


# In a container as on a host, ports below this one are root's.
PRIVILEGED = ("--sysctl", "net.ipv4.ip_unprivileged_port_start=1024")


def test_a_rank_that_cannot_bind_its_port_ends_the_job(nodes: Nodes) -> None:
    job = {**GOLDEN_JOB, "GLOO_PORT": "80"}
    second, first = (nodes.start(rank, 2, image=IMAGE, options=PRIVILEGED, **job) for rank in (1, 0))
    assert nodes.wait(first) != 0 and nodes.wait(second) != 0
    assert "GLOO_PORT=80" in nodes.output(first)


def ssh(nodes: Nodes, *arguments: str, key: Path) -> subprocess.CompletedProcess[str]:
    """ssh from another container of the network to the waiting node1."""
    unasked = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=60"
    script = f"""mkdir /tmp/extrausers && echo 'job:x:12345:12345::/tmp:/bin/bash' >/tmp/extrausers/passwd &&
        exec ssh -i /key -p 2222 {unasked} "$@" """
    container = ("docker", "run", "--rm", "--network", nodes.network, "--user", "12345:12345", "--tmpfs", "/tmp")
    inside = ("--volume", f"{key}:/key:ro", IMAGE, "bash", "-c", script, "ssh", *arguments)
    return run(*container, *inside, check=False)


def test_a_waiting_node_lets_in_the_jobs_key_alone_and_forwards_nothing(nodes: Nodes, tmp_path: Path) -> None:
    waiting = nodes.start(1, 2, NODE_WAIT_S="600")
    jobs.until(lambda: "waiting on port" in nodes.output(waiting), why=lambda: nodes.output(waiting))
    good, other = nodes.key, nodes.new_key(tmp_path / "other_key")
    assert ssh(nodes, "job@node1", "echo in", key=good).stdout == "in\n"
    for user in ("job", "root", "mpiuser"):
        refused = ssh(nodes, f"{user}@node1", "echo in", key=other)
        assert refused.returncode == 255
        assert "Permission denied (publickey)." in refused.stderr  # no other way is offered: no password
    assert ssh(nodes, "root@node1", "echo in", key=good).returncode == 255
    for forward in (("-W", "127.0.0.1:2222"), ("-o", "ExitOnForwardFailure=yes", "-R", "9000:127.0.0.1:2222", "-N")):
        refused = ssh(nodes, *forward, "job@node1", key=good)
        assert refused.returncode == 255, refused
        assert "prohibited" in refused.stderr or "forwarding failed" in refused.stderr
    assert "PTY allocation request failed" in ssh(nodes, "-tt", "job@node1", "true", key=good).stderr
    docker("stop", "--time", "300", waiting)
    assert nodes.wait(waiting) == 128 + signal.SIGTERM


def test_a_node_listens_only_while_the_job_runs(nodes: Nodes) -> None:
    second, first = nodes.start(1, 2, **GOLDEN_JOB), nodes.start(0, 2, **GOLDEN_JOB)
    assert [nodes.wait(name) for name in (first, second)] == [0, 0], nodes.output(first)
    assert ssh(nodes, "job@node1", "true", key=nodes.key).returncode == 255


# ---- kill -9 of each process of a job on two containers in turn, the tree as the system shows it; on one node:
# tests/faults/test_kill.py

GOES_ON = "the job goes on"
LOST = r"node 1 \(node1\) was lost"
# {(node, the process): the reason in the log; none where the first node's container ends with the process}
TREE = {
    (0, "run_and_time.sh"): None,
    (0, "launch.nodes"): r"launch/nodes.py was killed",
    (0, "launch/trials.sh"): r"launch/trials.sh was killed",
    (0, "launch.trial"): r"launch/trial.py was ended by signal 9",
    (0, "prterun"): r"mpirun was ended by signal 9",
    (0, "ssh of prted"): r"mpirun ended with status 1, and no rank said why: .*",
    (0, "ssh of lifeline"): LOST,
    (0, "harness"): r"process rank 0 .* exited on signal 9 \(Killed\)",
    (1, "launch.nodes"): LOST,
    (1, "sshd"): LOST,
    (1, "sshd [priv] of prted"): GOES_ON,
    (1, "sshd of prted"): r".*",
    (1, "sshd [priv] of lifeline"): GOES_ON,
    (1, "sshd of lifeline"): LOST,
    (1, "cat of lifeline"): LOST,
    (1, "prted"): r".*",
    (1, "harness"): r"process rank 1 .* exited on signal 9 \(Killed\)|a rank was lost, of which another .*",
}


def role_of(process: psutil.Process) -> str:
    """The process of TREE that this is."""
    name, line = process.name(), " ".join(process.cmdline()).partition(" -- ")[0]
    if name in ("ssh", "sshd", "cat"):
        below = {child.name() for child in process.children(recursive=True)}
        prted = "PRTE_PREFIX" in line or ("prted" in below and "cat" not in below)
        listens = "[listener]" in line
        private = " [priv]" if "[priv]" in line else ""
        return name if listens else f"{name}{private} of {'prted' if prted else 'lifeline'}"
    if name.startswith("prte"):
        return name
    words = ("run_and_time.sh", "launch.nodes", "launch/trials.sh", "launch.trial", "harness")
    return next((word for word in words if word in line), name)


def tree(container: str) -> list[psutil.Process]:
    first = int(docker("inspect", "--format", "{{.State.Pid}}", container))
    return [psutil.Process(first), *psutil.Process(first).children(recursive=True)]


QUICK = ((0, "launch.nodes"), (0, "launch/trials.sh"))


@pytest.mark.parametrize("victim", [pytest.param(v, marks=() if v in QUICK else pytest.mark.slow) for v in TREE])
def test_nothing_stays_of_a_job_when_one_process_is_killed(nodes: Nodes, victim: tuple[int, str]) -> None:
    secrets: dict[str, Any] = {"AWS_SECRET_ACCESS_KEY": "s3cr3t", "NCCL_X_TOKEN": "s3cr3t"}
    second, first = nodes.start(1, 2, **ENDLESS_JOB), nodes.start(0, 2, **ENDLESS_JOB, **secrets)
    nodes.until_trains(2)
    found = [(node, process) for node, name in enumerate((first, second)) for process in tree(name)]
    roles = [(node, role_of(process)) for node, process in found]
    assert set(roles) == set(TREE)
    told = [role for role, (_, process) in zip(roles, found, strict=True) if "s3cr3t" in str(process.environ())]
    assert told == [(0, "run_and_time.sh")], "the user's own"
    found[roles.index(victim)][1].kill()
    if TREE[victim] == GOES_ON:
        windows = jobs.text(nodes.log(2)).count("step_window")
        jobs.until(lambda: jobs.text(nodes.log(2)).count("step_window") > windows + 50)
        return
    assert nodes.wait(first) and nodes.wait(second)
    if (reason := TREE[victim]) is None:
        assert "run_stop" not in jobs.text(nodes.log(2))
    else:
        assert re.fullmatch(reason, jobs.abort_reason(nodes.log(2)))


# ---- the fleet's acceptance on four containers: one with fewer cores, and one link that is slow and loses packets

COUNT = 4
SLOW = 3
USUAL_CPUS, FEW_CPUS = "0.4", "0.08"  # four containers share two cores
FLEET_JOB = {"THREADS": "1", "BATCHSIZE": "2", "IMAGE_SIZE": "32", "CLEAR_CACHES": "0", "NODE_WAIT_S": "240"}


def measured(nodes: Nodes, *, cpus: dict[int, str], links: tuple[int, ...] = ()) -> dict[str, Any]:
    """The verdicts on four nodes with these cores; the ways from node 1 to the nodes `links` are slow and lossy."""
    data = small.data_set(nodes.logdir / "data")
    names = {}
    for rank in reversed(range(COUNT)):
        options = ("--cpus", cpus.get(rank, USUAL_CPUS))
        job: dict[str, Any] = {**FLEET_JOB, "DATADIR": str(data)}
        names[rank] = nodes.start(rank, COUNT, image=IMAGE, options=options, arguments=("--fleet",), **job)
    for other in links:
        for here, there in ((1, other), (other, 1)):
            slow_down(names[here], address(names[there]))
    nodes.wait(names[0], timeout_s=1200)
    paths = list((nodes.logdir / "fleet").glob("*/fleet.json"))
    assert paths, nodes.output(names[0])
    done = run(".venv/bin/python", "-m", "tools.fleet", str(paths[0]), "--json", check=False)
    return {"record": json.loads(paths[0].read_text()), **json.loads(done.stdout)}


def slow_down(name: str, towards: str) -> None:
    """At most 200 Mbit/s, and 0.3 % of the packets lost, on the way from a container to an address.

    By HTB and netfilter, which more kernels have than netem.
    """
    inside = ("nsenter", "-t", docker("inspect", "--format", "{{.State.Pid}}", name), "-n")
    usual = (*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10")
    need(run(*usual, check=False).returncode == 0, "nsenter and tc slow a link down")
    for number, rate in (("10", "10gbit"), ("20", "200mbit")):
        run(*inside, "tc", "class", "add", "dev", "eth0", "parent", "1:", "classid", f"1:{number}", "htb", "rate", rate)
    chosen = ("u32", "match", "ip", "dst", towards, "flowid", "1:20")
    run(*inside, "tc", "filter", "add", "dev", "eth0", "protocol", "ip", "parent", "1:", "prio", "1", *chosen)
    lost = ("-m", "statistic", "--mode", "random", "--probability", "0.003", "-j", "DROP")
    run(*inside, "iptables", "-A", "OUTPUT", "-d", towards, *lost)


@pytest.mark.slow
def test_a_node_with_fewer_cores_is_named_and_left_out(nodes: Nodes) -> None:
    found = measured(nodes, cpus={SLOW: FEW_CPUS})
    assert found["record"]["hosts"] == nodes.hosts(COUNT).split(",")
    assert found["nodes"][f"node{SLOW}"] == "warning", found["verdicts"]
    assert found["good"] == [f"node{rank}" for rank in range(COUNT) if rank != SLOW]
    assert "CPU quota" in {difference["fact"] for difference in found["differences"]}
    written = next((nodes.logdir / "fleet").glob("*/hosts")).read_text().splitlines()
    assert written[:3] == found["good"]


@pytest.mark.slow
def test_a_slow_lossy_link_is_named_and_no_node_with_it(nodes: Nodes) -> None:
    found = measured(nodes, cpus={}, links=(2,))
    assert {link["where"] for link in found["links"] if link["status"] == "warning"} == {"node1 - node2"}
    assert found["good"] == nodes.hosts(COUNT).split(",")
