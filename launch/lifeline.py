"""The ssh connection from the first node of a job to another one, for the whole job.

Called by launch/nodes.py.
"""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness import env
from harness.provenance import code_sha256
from launch.hello import overruled, why_unable


def say(text: str) -> None:
    """One line on stderr."""
    print(f"nodes.py: {text}", file=sys.stderr, flush=True)


CONNECTING = threading.Semaphore(64)  # ssh connections that the first node opens at the same time
# What ssh says where it fails, what that means for a user, and whether trying again is of no use.
FAILURES = (
    ("Could not resolve|Name or service", "its name does not resolve", False),
    (
        "Host key verif",
        "answers with another key than this job's: JOB_KEY differs, or another sshd has that port",
        True,
    ),
    ("Permission denied", "refused the job's key: JOB_KEY differs", True),
    ("timed out|No route", "not reached ({})", False),
    ("refused", "nothing listens there (is its container running?)", False),
    ("", "{}", False),
)
# What ssh says where it is answered by what is no sshd.
NO_SSHD = re.compile("kex_exchange_identification|Connection (closed|reset)|banner|[Bb]ad packet")


class Lifeline(threading.Thread):
    """The connection to one other node, for the whole job; the thread makes it."""

    def __init__(self, rank: int, job: env.Job, host: str, folder: Path, deadline: float) -> None:
        super().__init__(daemon=True)
        self.rank, self.job, self.host, self.folder, self.deadline = rank, job, host, folder, deadline
        self.answered = False
        self.process: subprocess.Popen[str] | None = None
        self.problem = "not tried"
        self.final = False  # no use in trying again

    def connect(self) -> None:
        """One try; `problem` is empty where the node is there."""
        at = self.folder
        self.process = subprocess.Popen(
            ["ssh", "-F", str(at / "ssh_config"), self.host, f"cat {at}/hello && exec cat >{at}/lifeline"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process to pass on, not for the lifelines
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        answer = self.process.stdout.readline()
        if not answer:
            said = self.process.stderr.read().strip() or f"ssh exited with {self.process.wait()}"
            problem, final = next((why, final) for words, why, final in FAILURES if re.search(words, said))
            self.problem, self.final = problem.format(said.splitlines()[-1]), final
            unable = why_unable(self.host, self.job.cluster.ssh_port) if NO_SSHD.search(said) else ""
            if unable:
                self.problem, self.final = f"its sshd cannot start: {unable}", True
            return
        facts = json.loads(answer)
        self.answered = True
        if facts["rank"] != self.rank:
            self.problem = f"says NODE_RANK={facts['rank']}, but HOSTS has it as node {self.rank}"
        elif facts["code"] != code_sha256():
            self.problem = "runs other code than the first node: use one image, or one checkout, on all nodes"
        else:
            self.problem = ""
            self.process.stdin.write("go\n")
            if differences := overruled(facts["given"], self.job):
                say(f"{self.host} (node {self.rank}) was given {differences}; the first node's values rule")
                self.process.stdin.write(f"say the first node's values rule, not this node's: {differences}\n")
            self.process.stdin.flush()
        self.final = bool(self.problem)

    def run(self) -> None:
        while self.problem and not self.final and time.monotonic() < self.deadline:
            with CONNECTING:
                self.connect()
            if self.problem:
                time.sleep(0.5)

    def lost(self) -> bool:
        """Whether the connection that was there has ended."""
        return self.process is not None and self.process.poll() is not None

    def end(self, status: int, reason: str) -> None:
        """Tells the node how the job ended, and why where that is known."""
        if self.process and self.process.stdin and not self.lost():
            with contextlib.suppress(BrokenPipeError):  # it went first
                self.process.stdin.write(f"end {status} {reason}\n")
                self.process.stdin.close()
