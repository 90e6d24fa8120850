"""The first node's connection to one other node, for the whole job: opened, held, watched."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import subprocess
import threading
import time
from typing import TypeAlias

from harness.provenance import code_sha256
from launch.job_folder import Folder

CONNECTING = threading.Semaphore(64)  # ssh connections that the first node opens at the same time
# What ssh says where it fails, what that means for a user, and whether trying again is of no use.
FAILURES = (
    ("Could not resolve|Name or service", "its name does not resolve", False),
    (
        "Host key verification failed",
        "answers with another key than this job's: JOB_KEY differs, or another sshd has that port",
        True,
    ),
    ("Permission denied", "refused the job's key: JOB_KEY differs", True),
    ("timed out|No route", "not reached ({})", False),
    ("refused", "nothing listens there (is its container running?)", False),
    ("", "{}", False),
)


# A node that was lost, an exit status, or None for a signal: SimpleQueue's put may stand in a signal's handler.
Events: TypeAlias = "queue.SimpleQueue[Lifeline | int | None]"


class Lifeline(threading.Thread):
    """The connection to one other node; puts itself into `lost` when that ends."""

    def __init__(self, rank: int, host: str, folder: Folder, deadline: float, lost: Events) -> None:
        super().__init__(daemon=True)
        self.rank, self.host, self.folder, self.deadline, self.lost = rank, host, folder, deadline, lost
        self.process: subprocess.Popen[str] | None = None
        self.problem = "not tried"
        self.final = False  # no use in trying again
        self.ready = threading.Event()  # connected, or given up

    def connect(self) -> None:
        """One try; `problem` is empty where the node is there."""
        path = self.folder.path
        self.process = subprocess.Popen(
            ["ssh", "-F", str(path / "ssh_config"), self.host, f"cat {path}/hello && exec cat >{path}/lifeline"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process to pass on, not for the lifelines
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        hello = self.process.stdout.readline()
        if not hello:
            said = self.process.stderr.read().strip() or f"ssh exited with {self.process.wait()}"
            problem, self.final = next((why, final) for words, why, final in FAILURES if re.search(words, said))
            self.problem = problem.format(said.splitlines()[-1])
            return
        facts = json.loads(hello)
        if facts["rank"] != self.rank:
            self.problem = f"says NODE_RANK={facts['rank']}, but HOSTS has it as node {self.rank}"
        elif facts["code"] != code_sha256():
            self.problem = "runs other code than the first node: use one image, or one checkout, on all nodes"
        else:
            self.problem = ""
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        self.final = bool(self.problem)

    def run(self) -> None:
        while self.problem and not self.final and time.monotonic() < self.deadline:
            with CONNECTING:
                self.connect()
            if self.problem:
                time.sleep(0.5)
        self.ready.set()
        if self.process and not self.problem:
            self.process.wait()
            self.lost.put(self)

    def end(self, status: int) -> None:
        """Tells the node how the job ended."""
        if self.process is None or self.process.poll() is not None or self.process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):  # it went first
            self.process.stdin.write(f"end {status}\n")
            self.process.stdin.close()
