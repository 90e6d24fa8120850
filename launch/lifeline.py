"""The first node's connection to one other node, for the whole job: opened, held, watched."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time

from harness.provenance import code_sha256
from launch.job_folder import Folder


class Lifeline(threading.Thread):
    """The connection to one other node: opened, held, watched."""

    def __init__(self, rank: int, host: str, *, folder: Folder, deadline: float, slots: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self.rank, self.host, self.folder, self.deadline, self.slots = rank, host, folder, deadline, slots
        self.process: subprocess.Popen[str] | None = None
        self.problem = "not tried"
        self.final = False  # no use in trying again
        self.ready = threading.Event()  # connected, or given up
        self.events: queue.Queue[tuple[str, object]] | None = None

    def connect(self) -> bool:
        """One try; whether the node is there."""
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
            lines = self.process.stderr.read().strip().splitlines()
            self.problem = explain(lines, self.process.wait())
            self.final = self.problem.startswith("refused") or self.problem.startswith("answers with")
            return False
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
        return not self.problem

    def run(self) -> None:
        while not self.final and self.problem and time.monotonic() < self.deadline:
            with self.slots:
                if self.connect():
                    break
            time.sleep(0.5)
        self.ready.set()
        if not self.problem and self.process is not None:
            self.process.wait()
            if self.events is not None:
                self.events.put(("lost", self))

    def end(self, status: int) -> None:
        """Tells the node how the job ended."""
        if self.process is None or self.process.poll() is not None or self.process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):  # it went first
            self.process.stdin.write(f"end {status}\n")
            self.process.stdin.close()


def explain(stderr: list[str], status: int) -> str:
    """What ssh's failure means for a user."""
    text = stderr[-1] if stderr else f"ssh exited with {status}"
    whole = "\n".join(stderr)
    if "Could not resolve" in whole or "Name or service" in whole:
        return "its name does not resolve"
    if "Host key verification failed" in whole:
        return "answers with another key than this job's: JOB_KEY differs, or another sshd has that port"
    if "Permission denied" in whole:
        return "refused the job's key: JOB_KEY differs"
    if "timed out" in whole or "No route" in whole:
        return f"not reached ({text})"
    if "refused" in whole:
        return "nothing listens there (is its container running?)"
    return text
