"""The ssh connection from the first node of a job to another one, for the whole job.

Called by launch/nodes.py.
"""

import contextlib
import json
import re
import shlex
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from harness import env
from harness.provenance import code_sha256
from launch.ends import say
from launch.hello import overruled_settings, why_sshd_cannot_start

CONNECTING = threading.Semaphore(64)  # ssh connections that the first node opens at the same time


class Failure(NamedTuple):
    """A way in which ssh fails."""

    words: str  # regular expression of what ssh prints then
    problem: str  # for a user; {} stands for ssh's last line
    is_final: bool  # trying again is of no use


FAILURES = (
    Failure("Could not resolve|Name or service", "its name does not resolve", False),
    Failure(
        "Host key verif",
        "answers with another key than this job's: JOB_KEY differs, or another sshd has that port",
        True,
    ),
    Failure("Permission denied", "refused the job's key: JOB_KEY differs", True),
    Failure("timed out|No route", "not reached ({})", False),
    Failure("refused", "nothing listens there (is its container running?)", False),
    Failure("", "{}", False),  # any other
)
CALL_S = 5  # in which a node that has joined calls the first one
# What ssh says where something answers that is not an sshd.
NO_SSHD = re.compile("kex_exchange_identification|Connection (closed|reset)|banner|[Bb]ad packet")


class CallsBack(threading.Thread):
    """Notes which other nodes reach the first one by TCP, as the daemons of mpirun on them must.

    Without that mpirun waits, and says nothing: a firewall may let ssh pass to the other nodes and nothing else back.
    """

    def __init__(self) -> None:
        """Open a free port; the thread takes the calls from `start` on, until `say_who_has_not_called` returns."""
        super().__init__(daemon=True)
        by_both = socket.has_dualstack_ipv6()  # IPv4 and IPv6: a node calls by the one that its ssh connection takes
        family = socket.AF_INET6 if by_both else socket.AF_INET
        self.listener = socket.create_server(("", 0), family=family, backlog=1024, dualstack_ipv6=by_both)
        self.port = int(self.listener.getsockname()[1])
        self.ranks: set[bytes] = set()  # of the nodes that have called, as b"1"

    def run(self) -> None:
        """Take each call, which says the number of its node."""
        while self.listener.fileno() >= 0:  # until it is closed
            with contextlib.suppress(OSError):  # of a caller that hung up or says nothing, and of the end
                caller, _ = self.listener.accept()
                with caller:
                    caller.settimeout(1)
                    self.ranks.add(caller.recv(16).strip())

    def command(self, rank: int) -> str:
        """Return the shell's command by which a node calls, to the address from which its ssh connection comes.

        It ends at once, or after CALL_S seconds if a firewall answers nothing.

        Args:
            rank: Number of the node.
        """
        call = f"echo {rank} >/dev/tcp/${{SSH_CONNECTION%% *}}/{self.port}"
        # Below sshd bash would read the user's .bashrc, which may be slow.
        return f"timeout {CALL_S} bash --norc -c '{call}' </dev/null >/dev/null 2>&1"

    def say_who_has_not_called(self, others: "list[Lifeline]") -> None:
        """Wait up to CALL_S for the calls of the nodes that have joined, close the port, and name who is missing.

        It is not an error: a network may show a node another address of this one than mpirun's daemons take. Nobody is
        named where the user fixes the ports of mpirun: a firewall may close all others.

        Args:
            others: The connections to the other nodes.
        """
        end = time.monotonic() + CALL_S
        missing = [] if env.user_fixes_mpirun_ports() else others
        while missing and time.monotonic() < end:
            time.sleep(0.05)
            missing = [other for other in others if str(other.rank).encode() not in self.ranks]
        self.listener.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        self.listener.close()
        if missing:
            first = missing[0]
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            say(
                f"{first.host} (node {first.rank}){more} cannot call this node at TCP port {self.port}: if nothing "
                "follows, a firewall has mpirun wait: let the nodes reach each other at all ports"
            )


class Lifeline(threading.Thread):
    """The ssh connection to one other node, for the whole job. The thread connects; then the connection stays.

    The other node sends its hello (launch/hello.py). Then it is sent lines: `go`, `say TEXT` and `end STATUS REASON`.
    """

    def __init__(
        self, rank: int, job: env.Job, host: str, folder: Path, deadline: float, calls_back: CallsBack
    ) -> None:
        """Note what to connect to; nothing is tried yet.

        Args:
            rank: Number of the other node, from 1.
            job: The settings of the job.
            host: Name of the other node.
            folder: The folder with the job's files, the same on each node.
            deadline: Time by time.monotonic after which no further try begins.
            calls_back: What the other node calls once it is connected.
        """
        super().__init__(daemon=True)
        self.rank, self.job, self.host, self.folder, self.deadline = rank, job, host, folder, deadline
        self.calls_back = calls_back
        self.answered = False  # the node has said its hello
        self.process: subprocess.Popen[str] | None = None  # ssh
        self.problem = "not tried"  # why the node has not joined; empty: it has
        self.is_final = False  # another try cannot mend `problem`

    def connect(self) -> None:
        """Try once to connect to the node by ssh, to read its hello, and to let it join.

        The hello is a line of JSON with the node's rank, code and settings. Afterwards `problem` says why the node has
        not joined; it is empty if the node has. `is_final` says whether another try is useless.
        """
        process = self._start_ssh()
        self.process = process
        assert process.stdin and process.stdout and process.stderr
        answer = process.stdout.readline()
        if not answer:
            ssh_output = process.stderr.read().strip() or f"ssh exited with {process.wait()}"
            self._note_failure(ssh_output)
            return
        self.answered = True
        facts = json.loads(answer)
        self.problem = self._problem_of(facts)
        self.is_final = bool(self.problem)
        if not self.problem:
            self._let_join(facts, process.stdin)

    def _start_ssh(self) -> subprocess.Popen[str]:
        """Start ssh to the node, which prints its hello there, and then passes all that it gets into the node's pipe.

        Returns:
            The running process. Its output begins with the hello, a line of JSON.
        """
        # Not in the background: `cat` would not wait for its end, and it would stay as a zombie for the whole job.
        call = self.calls_back.command(self.rank)
        in_bash = f"cat {self.folder}/hello && {{ {call}; exec cat >{self.folder}/lifeline; }}"
        # The user's shell there may be another than bash; it has read its files already, which may be slow.
        command_there = f"exec bash --norc -c {shlex.quote(in_bash)}"
        return subprocess.Popen(
            ["ssh", "-F", str(self.folder / "ssh_config"), self.host, command_there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process to pass on, not for the lifelines
        )

    def _note_failure(self, ssh_output: str) -> None:
        """Set `problem` and `is_final` by what ssh printed as it failed.

        If something answers there that is not an sshd, it may be the node itself: then its own words count.

        Args:
            ssh_output: What ssh printed on stderr; not empty.
        """
        failure = next(failure for failure in FAILURES if re.search(failure.words, ssh_output))
        self.problem = failure.problem.format(ssh_output.splitlines()[-1])
        self.is_final = failure.is_final
        if NO_SSHD.search(ssh_output):
            why = why_sshd_cannot_start(self.host, self.job.cluster.ssh_port)
            if why:
                self.problem = f"its sshd cannot start: {why}"
                self.is_final = True

    def _problem_of(self, facts: dict[str, Any]) -> str:
        """Return why a node cannot join: it has another rank, or runs other code; empty if it can.

        Args:
            facts: The node's hello, with "rank" and "code".
        """
        if facts["rank"] != self.rank:
            return f"says NODE_RANK={facts['rank']}, but HOSTS has it as node {self.rank}"
        if facts["code"] != code_sha256():
            return "runs other code than the first node: use one image, or one checkout, on all nodes"
        return ""

    def _let_join(self, facts: dict[str, Any], to_node: IO[str]) -> None:
        """Send the node `go`; if the first node's settings overrule some of its own, say so on both nodes.

        Args:
            facts: The node's hello. "given" has the settings that its user gave it.
            to_node: What is written here reaches the node.
        """
        to_node.write("go\n")
        overruled = overruled_settings(facts["given"], self.job)
        if overruled:
            say(f"{self.host} (node {self.rank}) was given {overruled}; the first node's values rule")
            to_node.write(f"say the first node's values rule, not this node's: {overruled}\n")
        to_node.flush()

    def run(self) -> None:
        """Try to connect until the node has joined, another try is useless, or the deadline is over."""
        while self.problem and not self.is_final and time.monotonic() < self.deadline:
            with CONNECTING:
                self.connect()
            if self.problem:
                time.sleep(0.5)

    def is_lost(self) -> bool:
        """Return whether ssh to the node was started and has ended: the connection failed, or was lost later."""
        return self.process is not None and self.process.poll() is not None

    def send_end(self, status: int, reason: str) -> None:
        """Tell the node how the job ended; do nothing if the connection is lost.

        Args:
            status: Exit status of the job.
            reason: Why it ended so, in one line; may be empty.
        """
        if self.process and self.process.stdin and not self.is_lost():
            with contextlib.suppress(BrokenPipeError):  # the node went first
                self.process.stdin.write(f"end {status} {reason}\n")
                self.process.stdin.close()
