"""A node above 0 of a job: its sshd, which the first node calls, and what the first node says over the lifeline.

Called by launch/nodes.py.
"""

import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import NoReturn

from harness import env
from harness.processes import on_signals
from launch.ends import NodeError, fail, say, stop
from launch.hello import RefusedCalls, answer_in_place_of_sshd, hello_line
from launch.times import TIMES


def start_sshd(job: env.Job, folder: Path) -> subprocess.Popen[bytes]:
    """Start the ssh server that the first node calls, and return its process.

    It writes to sshd.log in the job's folder. If this node has no sshd, this waits for a call of the first node, to
    tell it so.

    Args:
        job: The settings of the job.
        folder: The job's folder on this node, with sshd_config.

    Raises:
        NodeError: There is no sshd on this node. It ends this process with status 2.
    """
    path = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        missing = "sshd is missing on this node: install openssh-server (the image has it)"
        say(missing)
        answer_in_place_of_sshd(job, missing)
        raise NodeError(missing, 2)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd asks for it if it runs as root
    command = [path, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=out)


def serve(job: env.Job, hosts: list[str], folder: Path) -> int:
    """Run sshd until the first node ends the job or is lost; return the job's exit status, as that node says it.

    The first node reads what it must know of this node from the file `hello`, by ssh.

    Args:
        job: The settings of the job.
        hosts: Names of the job's nodes, the first one first; they may be unknown here, and the list empty.
        folder: The job's folder on this node, with the pipe `lifeline`.

    Raises:
        SystemExit: The first node does not come or is lost, sshd cannot run, or a signal ends this node.
    """
    (folder / "hello").write_text(hello_line(job))
    lifeline = os.open(folder / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
    sshd = start_sshd(job, folder)
    return WaitingNode(job, hosts, lifeline, sshd, folder / "sshd.log").wait()


class WaitingNode:
    """This node above 0. It waits for the first node's call, and then for its words in the lifeline."""

    def __init__(
        self, job: env.Job, hosts: list[str], lifeline: int, sshd: subprocess.Popen[bytes], sshd_log: Path
    ) -> None:
        """Print that this node waits for the first node, and for how long; `wait` does the waiting.

        Args:
            job: The settings of the job.
            hosts: Names of the job's nodes, the first one first; may be empty.
            lifeline: File descriptor of the pipe into which the first node's ssh connection writes.
            sshd: The ssh server that takes this connection.
            sshd_log: The file with its log.
        """
        first_name = f", {hosts[0]}" if hosts else ""
        self.job = job
        self.me = f"node {job.cluster.node_rank}"
        self.first = f"the first node{first_name},"
        self.lifeline = lifeline
        self.sshd = sshd
        self.sshd_log = sshd_log
        self.refused = RefusedCalls(hosts)
        self.is_joined = False  # true once the first node has written anything
        self.unfinished = b""  # the beginning of a line whose end has not come yet
        self.signals: list[int] = []  # those that came after this node joined
        say(f"{self.me}: waiting on port {job.cluster.ssh_port} for {self.first} at most {job.cluster.node_wait_s} s")
        self.deadline = time.monotonic() + job.cluster.node_wait_s

    def on_signal(self, number: int, _frame: object) -> None:
        """Note a signal that asks this node to end, but go on for up to JOB_END_S seconds.

        Who stops a job often signals all its nodes. The first node needs this one until it has saved.

        Args:
            number: The signal.
            _frame: As Python gives it to a handler; not used.
        """
        if not self.signals:
            self.deadline = time.monotonic() + TIMES["JOB_END_S"]
        self.signals.append(number)

    def wait(self) -> int:
        """Wait until the first node says that the job has ended, and return the exit status that it says.

        Raises:
            SystemExit: The first node does not come or is lost, sshd ends, or JOB_END_S seconds have passed since a
                signal.
        """
        poll = select.poll()
        poll.register(self.lifeline, select.POLLIN)
        while True:
            for _, event in poll.poll(1000):  # ms
                has_data = bool(event & select.POLLIN)
                data = os.read(self.lifeline, 4096) if has_data else b""
                if not data:  # the first node's connection has closed
                    self.end_by_closed_lifeline()
                status = self.handle(data)
                if status is not None:
                    return status
            self.check_sshd()
            self.end_if_late()

    def handle(self, data: bytes) -> int | None:
        """Handle what the first node has sent.

        Args:
            data: Lines `go`, `say TEXT` and `end STATUS REASON`. The last one may be incomplete: its rest comes with
                the next call.

        Returns:
            The job's exit status once it has ended, else None.
        """
        if not self.is_joined:  # `go` has no other use
            self.is_joined = True
            on_signals(self.on_signal)  # from now on a signal does not end this node at once
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        for line in lines:
            word, _, text = line.decode(errors="replace").partition(" ")
            if word == "say":
                say(f"{self.me}: {text}")
            elif word == "end":
                return self.say_how_it_ended(text)
        return None

    def say_how_it_ended(self, text: str) -> int:
        """Return the job's exit status, and print the reason of a failure.

        Args:
            text: The words of the first node: the status, and the reason, which may be absent.
        """
        number, _, reason = text.partition(" ")
        status = int(number)
        if status != 0:
            why = reason or f"{self.first} says why, and its logs do"
            say(f"{self.me}: the job ended with status {status}: {why}")
        return status

    def end_by_closed_lifeline(self) -> NoReturn:
        """End this process because the first node's connection has ended without a word.

        If a signal came before, the signal is taken for the reason.

        Raises:
            SystemExit: Always, with 128 + n after signal n, else with 1.
        """
        if self.signals:
            stop(self.signals[0], None)
        fail(f"{self.me}: {self.first} was lost; this node ends")

    def check_sshd(self) -> None:
        """End this process if its sshd has ended. Until the first node has joined, print which callers hung up.

        Raises:
            NodeError: sshd has ended, or the first node has another JOB_KEY and has given up.
        """
        has_ended = self.sshd.poll() is not None  # before the log is read, so that this has its last lines
        log = self.sshd_log.read_text().splitlines()
        if has_ended:
            self.end_by_sshd(log)
        if not self.is_joined:
            self.report_refused_calls(log)

    def end_by_sshd(self, log: list[str]) -> NoReturn:
        """End this process with the last lines of sshd's log; wait for a call of the first node before, to tell it why.

        Args:
            log: All lines of the log.

        Raises:
            NodeError: Always.
        """
        last_lines = " / ".join(log[-2:])
        other_port = ": give the job another SSH_PORT, on all nodes" if "Bind to port" in last_lines else ""
        why = f"sshd ended: {last_lines}{other_port}"
        say(f"{self.me}: {why}")
        answer_in_place_of_sshd(self.job, why)
        raise NodeError(f"{self.me}: {why}", 1)

    def report_refused_calls(self, log: list[str]) -> None:
        """Print who called this node with another key; end this process if that was the first node, which has given up.

        Args:
            log: All lines of sshd's log so far.

        Raises:
            NodeError: The first node has another JOB_KEY than this one.
        """
        for caller in self.refused.read(log):
            say(
                f"{self.me}: {caller} called, and hung up at this node's key: it has another JOB_KEY, or is none of "
                "the job"
            )
        if self.refused.first_node_gave_up():
            fail(f"{self.me}: {self.first} has another JOB_KEY than this node, and has ended: give both the same file")

    def end_if_late(self) -> None:
        """End this process if its deadline is over: JOB_END_S after a signal, or NODE_WAIT_S without the first node.

        A node that has joined and got no signal has no deadline, so this does nothing then.

        Raises:
            SystemExit: The deadline is over.
        """
        if time.monotonic() <= self.deadline:
            return
        if self.signals:
            stop(self.signals[0], None)
        if self.is_joined:
            return
        log = self.sshd_log.read_text().splitlines()
        calls = [line for line in log if "Connection" in line or "Failed" in line]
        why = f"; sshd says: {calls[-1]}" if calls else " and nobody called"
        fail(f"{self.me}: {self.first} did not come within {self.job.cluster.node_wait_s} s{why}")
