"""kill -9 of each process of a job on two containers in turn, the tree as the system shows it.

Ranks stand in for such that train (tests/stand_in.py); tests/faults/test_tree.py is the same on one node.
"""

import re

import psutil
import pytest

from tests import jobs
from tests.cluster.containers import ENDLESS_JOB, Nodes, docker

GOES_ON = "the job goes on"
LOST = r"node 1 \(node1\) was lost"
# {(node, the process): the reason in the log; none where the first node's container ends with the process}
TREE = {
    (0, "run_and_time.sh"): None,
    (0, "launch.nodes"): r"launch/nodes.py was killed: .*",
    (0, "launch/trials.sh"): r"launch/trials.sh was killed: .*",
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
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cr3t", "NCCL_X_TOKEN": "s3cr3t"}
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
