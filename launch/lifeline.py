"""The ssh connection from the first node of a job to another one, for the whole job.

Called by launch/nodes.py.
"""

import contextlib
import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from harness import env
from harness.provenance import code_sha256
from launch.ends import say
from launch.hello import overruled, why_sshd_cannot_start

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
# What ssh says where something answers that is no sshd.
NO_SSHD = re.compile("kex_exchange_identification|Connection (closed|reset)|banner|[Bb]ad packet")


class Lifeline(threading.Thread):
    """The ssh connection to one other node, for the whole job; the thread makes it.

    Over it the node says its hello (launch/hello.py), and then is sent lines: `go`, `say TEXT` and `end STATUS REASON`.
    """

    def __init__(self, rank: int, job: env.Job, host: str, folder: Path, deadline: float) -> None:
        """`folder` is that of the job's files, the same on each node; `deadline`, by time.monotonic, ends the tries."""
        super().__init__(daemon=True)
        self.rank, self.job, self.host, self.folder, self.deadline = rank, job, host, folder, deadline
        self.answered = False  # the node has said its hello
        self.process: subprocess.Popen[str] | None = None  # ssh
        self.problem = "not tried"  # why the node has not joined; empty: it has
        self.final = False  # no use in trying again

    def connect(self) -> None:
        """Try once to connect and to hear the node's hello; set `problem`, which is empty where the node has joined.

        A problem that another try cannot mend is `final`.
        """
        at = self.folder
        process = subprocess.Popen(
            ["ssh", "-F", str(at / "ssh_config"), self.host, f"cat {at}/hello && exec cat >{at}/lifeline"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process to pass on, not for the lifelines
        )
        self.process = process
        assert process.stdin and process.stdout and process.stderr
        answer = process.stdout.readline()
        if not answer:
            said = process.stderr.read().strip() or f"ssh exited with {process.wait()}"
            self._note_failure(said)
            return
        self.answered = True
        facts = json.loads(answer)
        self.problem = self._problem_of(facts)
        self.final = bool(self.problem)
        if not self.problem:
            self._let_join(facts, process.stdin)

    def _note_failure(self, said: str) -> None:
        """Set `problem` and `final` by what ssh said as it failed, or by what the node says in place of its sshd."""
        failure = next(failure for failure in FAILURES if re.search(failure.words, said))
        self.problem = failure.problem.format(said.splitlines()[-1])
        self.final = failure.is_final
        if NO_SSHD.search(said):
            why = why_sshd_cannot_start(self.host, self.job.cluster.ssh_port)
            if why:
                self.problem = f"its sshd cannot start: {why}"
                self.final = True

    def _problem_of(self, facts: dict[str, Any]) -> str:
        """Say why the node of this hello cannot be in the job: it has another rank or other code; empty if it can."""
        if facts["rank"] != self.rank:
            return f"says NODE_RANK={facts['rank']}, but HOSTS has it as node {self.rank}"
        if facts["code"] != code_sha256():
            return "runs other code than the first node: use one image, or one checkout, on all nodes"
        return ""

    def _let_join(self, facts: dict[str, Any], to_node: IO[str]) -> None:
        """Tell the node that it has joined, and on both nodes which of its settings the first node's overrule."""
        to_node.write("go\n")
        differences = overruled(facts["given"], self.job)
        if differences:
            say(f"{self.host} (node {self.rank}) was given {differences}; the first node's values rule")
            to_node.write(f"say the first node's values rule, not this node's: {differences}\n")
        to_node.flush()

    def run(self) -> None:
        """Try to connect until the node has joined, another try is of no use, or the deadline is over."""
        while self.problem and not self.final and time.monotonic() < self.deadline:
            with CONNECTING:
                self.connect()
            if self.problem:
                time.sleep(0.5)

    def lost(self) -> bool:
        """Tell whether the connection that was there has ended."""
        return self.process is not None and self.process.poll() is not None

    def end(self, status: int, reason: str) -> None:
        """Tell the node how the job ended, and why where that is known; do nothing where it is lost."""
        if self.process and self.process.stdin and not self.lost():
            with contextlib.suppress(BrokenPipeError):  # it went first
                self.process.stdin.write(f"end {status} {reason}\n")
                self.process.stdin.close()
