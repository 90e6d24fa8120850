"""Joins the nodes of a job: each waits for the others, mpirun gets its way to them, all end together.

    nodes.py serve                on nodes above 0: sshd for the job's key, until the first node ends; ends as it ended
    nodes.py lead -- COMMAND      on the first node: waits for the others, runs COMMAND, tells them how it ended

Between the first node and each other one stands one ssh connection for the whole job, the lifeline. Over it the first
node learns that the other is there, and runs the same code; the other learns how the job ended; and each learns, by
ssh's own keepalives, that the other is gone. The job's key proves the first node to the others and, as
the host key of their sshd, the others to the first: nobody else is let in, and no host key is taken on trust.

Called by run_and_time.sh; the job's variables say which nodes and how to reach them. Exit status: COMMAND's; 1 where a
node is lost or never comes; 2 for wrong use; 128 + n when stopped by signal n.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

from harness import env
from harness.processes import adopt_orphans, end_descendants
from harness.provenance import code_sha256
from launch.job_folder import Folder, fail, refuse, say
from launch.times import TIMES

SIGNAL_S = 1.0  # from a node's loss to the signal that ended it, where it is for this node too
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def on_signals(handler: object) -> None:
    """What the signals by which a job is stopped do from now on."""
    for number in STOPPING:
        signal.signal(number, handler)  # type: ignore[arg-type]


def stop(number: int, _frame: object) -> NoReturn:
    """Ends this node as the first signal asks."""
    on_signals(signal.SIG_IGN)
    raise SystemExit(128 + number)


# --- nodes above 0 ----------------------------------------------------------------------------------------------------


def start_sshd(folder: Folder) -> subprocess.Popen[bytes]:
    """The sshd that the first node calls; it writes to sshd.log."""
    path = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        refuse("sshd is missing on this node: install openssh-server (the image has it)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own demand where it runs as root
    command = [path, "-D", "-e", "-f", str(folder.path / "sshd_config")]
    with (folder.path / "sshd.log").open("wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=out)


def serve(job: env.Job, hosts: list[str], folder: Folder) -> int:
    """Runs sshd until the first node ends the job, or is lost; the job's exit status."""
    (folder.path / "hello").write_text(json.dumps({"rank": job.node_rank, "code": code_sha256()}) + "\n")
    lifeline = os.open(folder.path / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
    sshd = start_sshd(folder)
    me, first = f"node {job.node_rank}", f"the first node{', ' + hosts[0] if hosts else ''},"
    say(f"{me}: waiting on port {job.ssh_port} for {first} at most {job.node_wait_s} s")
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    deadline = time.monotonic() + job.node_wait_s
    received = b""
    asked: list[int] = []  # signals that came once the job ran

    def on_signal(number: int, _frame: object) -> None:
        # Who stops a job often signals all its nodes: the first one then needs this one until it has saved.
        nonlocal deadline
        if not asked:
            deadline = time.monotonic() + TIMES["JOB_END_S"]
        asked.append(number)

    while True:
        for _, event in poll.poll(1000):
            data = os.read(lifeline, 4096) if event & select.POLLIN else b""
            if data and not received:
                on_signals(on_signal)
            received += data
            for line in received.split(b"\n")[:-1]:
                if line.startswith(b"end "):
                    return int(line.split()[1])
            if not data and not asked:
                fail(f"{me}: {first} was lost; this node ends")
            if not data:
                stop(asked[0], None)
        ended = sshd.poll() is not None
        log = (folder.path / "sshd.log").read_text().splitlines()
        if ended:
            last_lines = " / ".join(log[-2:])
            other = ": give the job another SSH_PORT, on all nodes" if "Bind to port" in last_lines else ""
            fail(f"{me}: sshd ended: {last_lines}{other}")
        if time.monotonic() > deadline and asked:
            stop(asked[0], None)
        if time.monotonic() > deadline and not received:
            seen = [line for line in log if "Connection" in line or "Failed" in line]
            why = f"; sshd says: {seen[-1]}" if seen else " and nobody called"
            fail(f"{me}: {first} did not come within {job.node_wait_s} s{why}")


# --- the first node ---------------------------------------------------------------------------------------------------


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

# A node that was lost, an exit status, or None for a signal: SimpleQueue's put may stand in a signal's handler.
Events: TypeAlias = "queue.SimpleQueue[Lifeline | int | None]"


class Lifeline(threading.Thread):
    """The connection to one other node, for the whole job; puts itself into `lost` when that ends."""

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


def lead(job: env.Job, hosts: list[str], folder: Folder, command: list[str]) -> int:
    """Waits for the other nodes, runs the command over them, and tells them how it ended."""
    start = time.monotonic()
    events: Events = queue.SimpleQueue()
    others = [Lifeline(rank, host, folder, start + job.node_wait_s, events) for rank, host in enumerate(hosts) if rank]
    status = 1
    try:
        for other in others:
            other.start()
        join(others, start + job.node_wait_s + 1, f" within {job.node_wait_s} s")
        say(f"{len(hosts)} nodes joined after {time.monotonic() - start:.1f} s")
        status = run_command(lambda: start_command(job, hosts, folder, command), folder, events)
    except SystemExit as end:
        status = int(end.code or 0)
        raise
    finally:
        for other in others:
            other.end(status)
        for other in others:  # a node closes its sshd, and so the lifeline, when it has heard
            if not other.problem:
                other.join(2.0)
    return status


def join(others: list[Lifeline], deadline: float, within: str) -> None:
    """Waits for the other nodes; ends this process where one does not come."""
    waiting = list(others)
    while waiting and time.monotonic() < deadline and not any(o.final for o in others):
        waiting = [o for o in waiting if not o.ready.wait(0.05 if o is waiting[0] else 0)]
    missing = [o for o in others if o.problem or not o.ready.is_set()]
    if final := [o for o in missing if o.final]:
        missing, within = final, ""
    if missing:
        names = "; ".join(f"{o.host} (node {o.rank}): {o.problem}" for o in missing[:8])
        more = f"; and {len(missing) - 8} more" if len(missing) > 8 else ""
        fail(f"{len(missing)} of {len(others) + 1} nodes did not join{within}: {names}{more}")


def start_command(job: env.Job, hosts: list[str], folder: Folder, command: list[str]) -> subprocess.Popen[bytes]:
    """The command, with what mpirun needs in its environment."""
    hostfile = folder.path / "hosts"
    hostfile.write_text("".join(f"{host} slots={job.dgxngpu}\n" for host in hosts))
    settings = {
        "HOSTS": ",".join(hosts),
        "ABORT_REASON_FILE": str(folder.path / "abort_reason"),
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {folder.path}/ssh_config",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",  # Kubernetes' names have dots
        "PRTE_MCA_oob_tcp_keepalive_time": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_intvl": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_probes": str(TIMES["ALIVE_COUNT"]),
    }
    return subprocess.Popen(command, env=os.environ | settings, start_new_session=True, close_fds=False)


def run_command(start: Callable[[], subprocess.Popen[bytes]], folder: Folder, events: Events) -> int:
    """Runs the command to its end; stops it when a node is lost, or a signal comes."""
    parent = os.getppid()
    asked: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        asked.append(number)
        events.put(None)

    on_signals(on_signal)
    command = start()
    threading.Thread(target=lambda: events.put(command.wait()), daemon=True).start()
    stopping = 0  # the exit status of a job that was told to end
    deadline: float | None = None
    while True:
        try:
            event = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            say(f"the job did not end within {TIMES['JOB_END_S']} s of being asked to: killed")
            end_descendants(0)
            return stopping
        if isinstance(event, int):
            return stopping or (event if event >= 0 else 128 - event)
        if deadline is not None:
            continue
        if event:
            # Who stops a job often signals all its nodes, with all that runs there: then that is the reason.
            time.sleep(SIGNAL_S)
        if event and not asked:
            stopping, number, text = 1, signal.SIGTERM, f"node {event.rank} ({event.host}) was lost"
            say(f"{text}; the job ends")
        else:
            number = signal.Signals(asked[0])
            stopping = 128 + number
            text = f"stopped by {number.name}" if os.getppid() == parent else "run_and_time.sh was killed"
        (folder.path / "abort_reason").write_text(text + "\n")
        deadline = time.monotonic() + TIMES["JOB_END_S"]
        command.send_signal(number)


def hosts_of(job: env.Job) -> list[str]:
    """Names of the job's nodes; a node that waits needs none, as the first one calls it.

    Raises ValueError where they are not as many as DGXNNODES, or one is named twice; OSError where HOSTFILE cannot be
    read.
    """
    words = [line.split("#")[0].split() for line in Path(job.hostfile).read_text().splitlines()] if job.hostfile else []
    hosts = [word[0] for word in words if word] or [host for host in job.hosts.split(",") if host]
    if twice := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise ValueError(f"HOSTS names {', '.join(twice)} more than once: give each node once")
    if len(hosts) != job.dgxnnodes and (hosts or job.node_rank == 0):
        raise ValueError(
            f"DGXNNODES={job.dgxnnodes} needs HOSTS, the nodes' names with commas between (or a HOSTFILE), "
            f"but HOSTS names {len(hosts)}"
        )
    return hosts


def main() -> int:
    """Runs this node's role; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("serve", "lead"))
    parser.add_argument("command", nargs="*", help="lead: what runs over the nodes")
    args = parser.parse_args()
    try:
        job, _ = env.read()
        hosts = hosts_of(job)
    except (ValueError, OSError) as error:
        refuse(str(error))
    if not job.job_key:
        refuse(
            f"DGXNNODES={job.dgxnnodes} needs JOB_KEY, the file of its private ssh key (ssh-keygen -t ed25519 -N '')"
        )
    adopt_orphans()
    folder = Folder(job)
    on_signals(stop)
    try:
        return serve(job, hosts, folder) if args.role == "serve" else lead(job, hosts, folder, args.command)
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            say(f"stopped by {signal.Signals(end.code - 128).name}")
        raise
    finally:
        on_signals(signal.SIG_IGN)
        end_descendants(5)
        folder.remove()


if __name__ == "__main__":
    sys.exit(main())
