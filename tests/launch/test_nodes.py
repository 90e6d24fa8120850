"""Two nodes joined by launch/nodes.py on this machine, by real ssh: the second has a /tmp of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness.job import job_of
from launch import hello, lifeline, nodes
from launch.times import TIMES
from launch.waiting import WaitingNode
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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Pair:
    """The two nodes' processes, and what they say."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.variables: dict[str, Any] = {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "first,localhost"}
        self.variables |= {"NODE_WAIT_S": "300"}
        self.variables |= {"JOB_KEY": new_key(folder / "key"), "SSH_PORT": str(port), "SSH_ADDRESS": "127.0.0.1"}
        self.folder = Path(f"/tmp/nodes-{os.getuid()}-{port}")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **variables: Any) -> subprocess.Popen[str]:
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


@pytest.mark.slow
@pytest.mark.ci
def test_a_node_with_another_key_is_refused_and_both_end(tmp_path: Path, pair: Pair) -> None:
    """Long before NODE_WAIT_S, as neither can come to the other any more."""
    pair.variables["HOSTS"] = "127.0.0.1,localhost"
    for process, words in zip(
        pair.both("true", second=new_key(tmp_path / "other")),
        (
            "1 of 2 nodes did not join: localhost (node 1): answers with another key than this job's",
            "node 1: the first node, 127.0.0.1, has another JOB_KEY than this node, and has ended: give both the same",
        ),
        strict=True,
    ):
        status, stderr = said(process)
        assert status == 1 and words in stderr


def test_a_key_of_no_use_leaves_no_copy_behind(tmp_path: Path) -> None:
    key = tmp_path / "key"
    port = free_port()
    jobs.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "a passphrase", "-f", str(key)])
    variables: dict[str, Any] = {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "localhost,second", "NODE_RANK": "0"}
    done = jobs.run([*NODES, "lead", "--", "true"], JOB_KEY=str(key), SSH_PORT=port, **variables)
    assert done.returncode == 2 and "no private ssh key without passphrase" in done.stderr, done.stderr
    assert not Path(f"/tmp/nodes-{os.getuid()}-{port}").exists()


def test_only_the_first_nodes_refused_call_ends_a_waiting_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scanner's calls end in the same way; and a first node with the right key calls again."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    calls = hello.RefusedCalls(["127.0.0.1", "localhost"])
    log = ["Server listening on 127.0.0.1 port 2222.", "Connection closed by 203.0.113.7 port 50048 [preauth]"]
    assert calls.read(log) == ["203.0.113.7"]
    now_s += 1e6
    assert not calls.first_node_gave_up() and calls.read(log) == []

    log += ["Connection closed by 127.0.0.1 port 50066", "Connection reset by 127.0.0.1 port 50067 [preauth]"]
    assert calls.read(log) == ["127.0.0.1"]
    now_s += hello.REFUSED_S - 1
    log.append("Connection closed by authenticating user job 127.0.0.1 port 50068 [preauth]")
    assert calls.read(log) == ["127.0.0.1"]
    now_s += hello.REFUSED_S - 1
    assert not calls.first_node_gave_up()
    now_s += 2
    assert calls.first_node_gave_up()


def test_a_second_signal_gives_a_waiting_node_no_more_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as sshd:
        waiting = WaitingNode(job_of(dgxnnodes=2, node_rank=1), [], -1, sshd, tmp_path / "sshd.log")
    for now_s in (1000.0, 1000.0 + TIMES["JOB_END_S"] - 1):
        monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
        waiting.on_signal(signal.SIGTERM, None)
    assert waiting.deadline == 1000.0 + TIMES["JOB_END_S"]


def test_a_node_that_ends_as_a_signal_asks_is_not_disturbed_by_the_next() -> None:
    again = "signal.raise_signal(signal.SIGTERM); print('cleaned up')"
    code = f"import signal\nfrom launch import ends\ntry: ends.stop(15, None)\nfinally: {again}"
    done = jobs.run([".venv/bin/python", "-c", code])
    assert (done.returncode, done.stdout) == (128 + 15, "cleaned up\n"), done.stderr


@pytest.mark.parametrize(
    ("hosts", "rank"),
    [
        (["127.0.0.1", "localhost"], 0),
        (["203.0.113.1", "203.0.113.2", "127.0.0.2"], 2),
        (["203.0.113.1", "203.0.113.2"], 0),
        (["first.invalid", "localhost"], 0),  # it may yet get its name
        (["a" * 70, "localhost"], 0),  # longer than a name can be
        ([], 0),
    ],
)
def test_a_first_node_finds_its_place_in_hosts(hosts: list[str], rank: int) -> None:
    assert hello.rank_by_hosts(hosts) == rank


@pytest.mark.parametrize("host", ["first.invalid", "node..1", "a" * 70])
def test_a_node_whose_name_cannot_be_looked_up_tells_nothing_of_its_sshd(host: str) -> None:
    assert hello.why_sshd_cannot_start(host, 1) == ""


def test_both_nodes_are_told_which_settings_of_the_second_one_do_not_rule(pair: Pair) -> None:
    commit = "0123456789abcdef"
    own = {"BATCHSIZE": "7", "SOURCE_COMMIT": commit, "LOGDIR": "/elsewhere", "JOB_FROM_CONFIG": "DGXNGPU"}
    own["JOB_FROM_USER"] = "BATCHSIZE SOURCE_COMMIT LOGDIR"
    pair.variables["BATCHSIZE"] = "16"
    for status, stderr in map(said, pair.both("true", **own)):
        assert status == 0
        (line,) = (line for line in stderr.splitlines() if "values rule" in line)
        assert f"BATCHSIZE=7 (the first node: 16), SOURCE_COMMIT={commit} (the first node: empty)" in line
        assert "LOGDIR" not in line and "node 1" in line


def test_nodes_that_agree_are_told_nothing(pair: Pair) -> None:
    assert [said(node)[1].count("values rule") for node in pair.both("true")] == [0, 0]


def test_the_second_node_says_why_the_job_failed(pair: Pair) -> None:
    reason = "evaluation is 0.2 after 1 epoch, below the target 0.9 \N{EM DASH} caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    _, serve = pair.both("bash", "-c", 'echo "$0" >"${END_REASON_FILE}"; exit 1', reason)
    status, stderr = said(serve)
    assert (status, stderr.splitlines()[-1]) == (1, f"nodes.py: node 1: the job ended with status 1: {reason}")


OTHER_MACHINE = "203.0.113.1"  # of no network: an address for examples


def test_a_second_first_node_says_so_and_is_named_by_the_first_one_at_once(pair: Pair) -> None:
    serve = pair.start(
        *("bash", "-c", PRIVATE, pair.variables["JOB_KEY"], *NODES, "lead", "--", "true"),
        HOSTS=f"{OTHER_MACHINE},localhost",
        JOB_KEY="/tmp/key",
        NODE_RANK="0",
    )
    lead = pair.start(*NODES, "lead", "--", "true", NODE_RANK="0")
    words = "says NODE_RANK=0, but HOSTS has it as node 1"
    for process, line in (
        (lead, f"1 of 2 nodes did not join: localhost (node 1): {words}"),
        (serve, "NODE_RANK=0, but HOSTS has this machine as node 1 (localhost): set NODE_RANK=1"),
    ):
        status, stderr = said(process)
        assert status == 1 and line in stderr, stderr
    assert words in stderr  # the first node's reason, in the second one's last line


def test_a_port_that_another_job_has_is_said_with_what_to_do(pair: Pair) -> None:
    """A job in a container of its own, but on the network of the host."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(pair.variables["SSH_PORT"])))
        taken.listen()
        status, stderr = said(pair.start(*NODES, "serve", NODE_RANK="1"))
    assert status == 1
    assert "Address already in use" in stderr and "give the job another SSH_PORT, on all nodes\n" in stderr


WITHOUT_SSHD = """
import runpy
import shutil
shutil.which = lambda *_, **__: None
runpy.run_module("launch.nodes", run_name="__main__")
"""


def test_a_node_whose_sshd_cannot_start_is_named_at_once(pair: Pair) -> None:
    lead = pair.start(*NODES, "lead", "--", "true", NODE_RANK="0")
    serve = pair.start(
        *("bash", "-c", PRIVATE, pair.variables["JOB_KEY"], NODES[0], "-c", WITHOUT_SSHD, "serve"),
        JOB_KEY="/tmp/key",
        NODE_RANK="1",
    )
    why = "sshd is missing on this node: install openssh-server"
    status, stderr = said(serve)
    assert status == 2 and stderr.startswith(f"nodes.py: {why}")
    status, stderr = said(lead)
    assert status == 1
    assert f"1 of 2 nodes did not join: localhost (node 1): its sshd cannot start: {why}" in stderr


@pytest.mark.parametrize(("missing", "more"), [(8, ""), (9, "; and 1 more")])
def test_of_many_nodes_that_did_not_join_the_first_are_named_and_the_others_counted(missing: int, more: str) -> None:
    others = [
        SimpleNamespace(host=f"n{rank}", rank=rank, problem="not tried" if rank <= missing else "", is_final=False)
        for rank in range(1, 12)
    ]
    said = nodes.nodes_that_did_not_join(others, 60)  # type: ignore[arg-type]
    assert said.startswith(f"{missing} of 12 nodes did not join within 60 s: n1 (node 1): not tried; n2 (node 2)")
    assert said.endswith(f"n8 (node 8): not tried{more}")


def call_back(calls_back: lifeline.CallsBack, rank: int, address: str, home: Path) -> None:
    """Has a node call the first one at an address, as its ssh connection shows it.

    The user's .bashrc there, which bash reads below sshd, takes longer than a call may.
    """
    (home / ".bashrc").write_text("sleep 60\n")
    below_sshd = {"SSH_CLIENT": f"{address} 5 6", "SSH_CONNECTION": f"{address} 5 {address} 6", "SHLVL": "0"}
    shell = ["sh", "-c", f"{calls_back.command(rank)}; true"]  # its status does not count
    subprocess.run(shell, env=os.environ | below_sshd | {"HOME": str(home)}, check=True)


def test_nodes_that_cannot_call_the_first_one_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A firewall that lets ssh pass to them and nothing else back had mpirun wait without a word."""
    monkeypatch.setattr(lifeline, "CALL_S", 1)
    calls_back = lifeline.CallsBack()
    calls_back.start()
    call_back(calls_back, 1, "127.0.0.1", tmp_path)
    call_back(calls_back, 2, "203.0.113.1", tmp_path)  # leads nowhere
    others: Any = [SimpleNamespace(rank=rank, host=f"node{rank}") for rank in (1, 2)]
    calls_back.say_who_has_not_called(others)
    said = capsys.readouterr().err
    assert said.startswith(f"nodes.py: node2 (node 2) cannot call this node at TCP port {calls_back.port}: if nothing")
    calls_back.join(5)
    assert not calls_back.is_alive()


@pytest.mark.parametrize(
    ("address", "fixed"),
    [
        ("::1" if hello.is_this_machine("::1") else "127.0.0.1", {}),  # a machine may have no IPv6
        ("203.0.113.1", {"PRTE_MCA_oob_tcp_static_ipv4_ports": "5000"}),  # leads nowhere
    ],
)
def test_a_node_that_calls_by_ipv6_or_where_the_user_fixes_the_ports_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    address: str,
    fixed: dict[str, str],
) -> None:
    """A firewall may close all ports but those that the user fixes."""
    monkeypatch.setattr(lifeline, "CALL_S", 1)
    for name, value in fixed.items():
        monkeypatch.setenv(name, value)
    calls_back = lifeline.CallsBack()
    calls_back.start()
    call_back(calls_back, 1, address, tmp_path)
    other: Any = SimpleNamespace(rank=1, host="node1")
    calls_back.say_who_has_not_called([other])
    assert capsys.readouterr().err == ""
