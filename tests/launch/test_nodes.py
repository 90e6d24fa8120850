"""Two nodes joined by launch/nodes.py on this machine, by real ssh: the second has a /tmp of its own."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import jobs
from tests.jobs import need

NODES = (".venv/bin/python", "-m", "launch.nodes")
# Runs "$@" with an empty /tmp that has the key $0 alone, and the checkout, where that is in /tmp too.
PRIVATE = """exec 9<"$0"
exec unshare --mount bash -c 'exec 8<. && mount -t tmpfs t /tmp && mkdir -p "$PWD" &&
  mount -c --bind /proc/self/fd/8 "$PWD" && cd "$PWD" && cp /dev/fd/9 /tmp/key && exec "$@"' _ "$@"
"""


def new_key(path: Path) -> str:
    jobs.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
    return str(path)


class Pair:
    """The two nodes' processes, and what they say."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.variables = {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "first,localhost", "NODE_WAIT_S": "300"}
        self.variables |= {"JOB_KEY": new_key(folder / "key"), "SSH_PORT": str(port), "SSH_ADDRESS": "127.0.0.1"}
        self.folder = Path(f"/tmp/nodes-{os.getuid()}-{port}")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        process = jobs.begin(command, **(self.variables | variables))
        self.processes.append(process)
        return process

    def both(self, *command: str, second: str = "", **more: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """The first node, which leads `command`, and the second, with the job's key or that of `second`, and `more`."""
        key = second or self.variables["JOB_KEY"]
        serve = self.start("bash", "-c", PRIVATE, key, *NODES, "serve", NODE_RANK="1", JOB_KEY="/tmp/key", **more)
        lead = self.start(*NODES, "lead", "--", *command, NODE_RANK="0")
        return lead, serve


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    sshd = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/usr/local/sbin")
    private = jobs.run(["unshare", "--mount", "mount", "-t", "tmpfs", "t", "/mnt"])
    need(bool(sshd) and shutil.which("ssh") is not None, "openssh-client and openssh-server are absent")
    need(private.returncode == 0, "this user cannot give a process a /tmp of its own: run as root")
    made = Pair(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for left in psutil.process_iter(["cmdline"]):  # the sshd of a node that the test killed
        if any(f"{made.folder}/" in word for word in left.info["cmdline"] or ()):
            left.kill()


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    stderr = process.communicate(timeout=jobs.LIMIT_S)[1]
    return process.returncode, stderr


def test_the_command_has_mpiruns_settings_and_both_nodes_end_as_it_ends(tmp_path: Path, pair: Pair) -> None:
    script = 'env >"$0"; cat "${PRTE_MCA_prte_default_hostfile}" >"$0.hosts"; umask >"$0.umask"; exit 3'
    assert [said(node)[0] for node in pair.both("bash", "-c", script, str(tmp_path / "env"))] == [3, 3]
    settings = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert settings["HOSTS"] == "first,localhost"
    assert settings["PRTE_MCA_oob_tcp_keepalive_time"] == "5"
    assert (tmp_path / "env.umask").read_text() == jobs.run(["bash", "-c", "umask"]).stdout
    assert (tmp_path / "env.hosts").read_text() == "first slots=1\nlocalhost slots=1\n"
    assert not pair.folder.exists()


LOOP = 'trap "cat ${ABORT_REASON_FILE} >$0.reason; exit 0" TERM; touch "$0"; while :; do sleep 0.1; done'


def test_a_lost_node_ends_the_command_with_its_reason(tmp_path: Path, pair: Pair) -> None:
    lead, serve = pair.both("bash", "-c", LOOP, str(tmp_path / "runs"))
    jobs.until((tmp_path / "runs").exists)
    root = psutil.Process(serve.pid)
    jobs.kill_at_once(lambda: [root, *root.children(recursive=True)])
    status, stderr = said(lead)
    assert status == 1
    assert "node 1 (localhost) was lost; the job ends" in stderr
    assert (tmp_path / "runs.reason").read_text() == "node 1 (localhost) was lost\n"


def test_a_signal_to_the_first_node_ends_both(tmp_path: Path, pair: Pair) -> None:
    lead, serve = pair.both("bash", "-c", LOOP, str(tmp_path / "runs"))
    jobs.until((tmp_path / "runs").exists)
    lead.send_signal(signal.SIGTERM)
    assert [said(node)[0] for node in (lead, serve)] == [143, 143]
    assert (tmp_path / "runs.reason").read_text() == "stopped by SIGTERM\n"


def test_a_node_with_another_key_is_refused(tmp_path: Path, pair: Pair) -> None:
    lead, serve = pair.both("true", second=new_key(tmp_path / "other"), NODE_WAIT_S="10")
    for process, words in (
        (lead, "1 of 2 nodes did not join: localhost (node 1): answers with another key than this job's"),  # at once
        (serve, "did not come within 10 s"),
    ):
        status, stderr = said(process)
        assert status == 1 and words in stderr


def test_a_port_that_another_job_has_is_said_with_what_to_do(pair: Pair) -> None:
    """A job in a container of its own, but on the network of the host."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(pair.variables["SSH_PORT"])))
        taken.listen()
        status, stderr = said(pair.start(*NODES, "serve", NODE_RANK="1"))
    assert status == 1
    assert "Address already in use" in stderr and "give the job another SSH_PORT, on all nodes\n" in stderr
