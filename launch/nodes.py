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
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness import env
from harness.processes import adopt_orphans, end_descendants
from harness.provenance import code_sha256
from launch.job_folder import Folder, fail, refuse, say
from launch.lifeline import Lifeline
from launch.times import TIMES

SIGNAL_S = 1.0  # from a node's loss to the signal that ended it, where it is for this node too
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CONNECTING = 64  # ssh connections that the first node opens at the same time
Events = queue.Queue[tuple[str, object]]


class Stopped(Exception):
    """A signal asked this node to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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


def nobody_came(args: argparse.Namespace, first: str, folder: Folder) -> str:
    """Why this node waited in vain."""
    lines = (folder.path / "sshd.log").read_text().splitlines()
    seen = [line for line in lines if "Connection" in line or "Failed" in line]
    why = f"; sshd says: {seen[-1]}" if seen else " and nobody called"
    return f"node {args.rank}: {first} did not come within {args.wait} s{why}"


def serve(args: argparse.Namespace, folder: Folder) -> int:
    """Runs sshd until the first node ends the job, or is lost; the job's exit status."""
    (folder.path / "hello").write_text(json.dumps({"rank": args.rank, "code": code_sha256()}) + "\n")
    lifeline = os.open(folder.path / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
    sshd = start_sshd(folder)
    first = f"the first node{', ' + args.hosts[0] if args.hosts else ''},"
    say(f"node {args.rank}: waiting on port {args.port} for {first} at most {args.wait} s")
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    deadline = time.monotonic() + args.wait
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
                for number in STOPPING:
                    signal.signal(number, on_signal)
            received += data
            for line in received.split(b"\n")[:-1]:
                if line.startswith(b"end "):
                    return int(line.split()[1])
            if not data and asked:
                raise Stopped(asked[0])
            if not data:
                fail(f"node {args.rank}: {first} was lost; this node ends")
        if asked and time.monotonic() > deadline:
            raise Stopped(asked[0])
        if sshd.poll() is not None:
            last_lines = " / ".join((folder.path / "sshd.log").read_text().splitlines()[-2:])
            other = ": give the job another SSH_PORT, on all nodes" if "Bind to port" in last_lines else ""
            fail(f"node {args.rank}: sshd ended: {last_lines}{other}")
        if not received and time.monotonic() > deadline:
            fail(nobody_came(args, first, folder))


# --- the first node ---------------------------------------------------------------------------------------------------


def lead(args: argparse.Namespace, folder: Folder, events: Events) -> int:
    """Waits for the other nodes, runs the command over them, and tells them how it ended."""
    start = time.monotonic()
    slots = threading.Semaphore(CONNECTING)
    others = [
        Lifeline(rank, host, folder=folder, deadline=start + args.wait, slots=slots)
        for rank, host in enumerate(args.hosts)
        if rank > 0
    ]
    status = 1
    try:
        for other in others:
            other.events = events
            other.start()
        join(args, others, start + args.wait + 1, events)
        say(f"{len(args.hosts)} nodes joined after {time.monotonic() - start:.1f} s")
        status = run_command(args, folder, events)
    except SystemExit as end:
        status = int(end.code or 0)
        raise
    except Stopped as stopped:
        status = 128 + stopped.number
        raise
    finally:
        for other in others:
            other.end(status)
        for other in others:  # a node closes its sshd, and so the lifeline, when it has heard
            if other.process is not None and not other.problem:
                other.join(2.0)
    return status


def join(args: argparse.Namespace, others: list[Lifeline], deadline: float, events: Events) -> None:
    """Waits for the other nodes; ends this process where one does not come."""
    waiting = list(others)
    while waiting and time.monotonic() < deadline and not any(o.final for o in others):
        check_signal(events)
        waiting = [o for o in waiting if not o.ready.wait(0.05 if o is waiting[0] else 0)]
    missing = [o for o in others if o.problem or not o.ready.is_set()]
    if missing:
        final = [o for o in missing if o.final] or missing
        after = "" if any(o.final for o in missing) else f" within {args.wait} s"
        names = "; ".join(f"{o.host} (node {o.rank}): {o.problem}" for o in final[:8])
        more = f"; and {len(final) - 8} more" if len(final) > 8 else ""
        fail(f"{len(final)} of {len(args.hosts)} nodes did not join{after}: {names}{more}")


def check_signal(events: Events) -> None:
    """Raises Stopped if a signal came."""
    try:
        kind, what = events.get_nowait()
    except queue.Empty:
        return
    if kind == "signal":
        raise Stopped(int(what))  # type: ignore[call-overload]
    events.put((kind, what))
    time.sleep(0.05)


def start_command(args: argparse.Namespace, folder: Folder) -> subprocess.Popen[bytes]:
    """The command, with what mpirun needs in its environment."""
    hostfile = folder.path / "hosts"
    hostfile.write_text("".join(f"{host} slots={args.slots}\n" for host in args.hosts))
    settings = {
        "HOSTS": ",".join(args.hosts),
        "ABORT_REASON_FILE": str(folder.path / "abort_reason"),
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {folder.path}/ssh_config",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",  # Kubernetes' names have dots
        "PRTE_MCA_oob_tcp_keepalive_time": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_intvl": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_probes": str(TIMES["ALIVE_COUNT"]),
    }
    return subprocess.Popen(args.command, env=os.environ | settings, start_new_session=True, close_fds=False)


def run_command(args: argparse.Namespace, folder: Folder, events: Events) -> int:
    """Runs the command; stops it when a node is lost."""
    command, parent = start_command(args, folder), os.getppid()

    def watch() -> None:
        events.put(("exit", command.wait()))

    threading.Thread(target=watch, daemon=True).start()
    stopping: int | None = None
    deadline: float | None = None
    while True:
        try:
            kind, what = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            say(f"the job did not end within {TIMES['JOB_END_S']} s of being asked to: killed")
            end_descendants(0)
            return 1 if stopping is None else stopping
        if kind == "exit":
            returned = int(what)  # type: ignore[call-overload]
            return stopping or (returned if returned >= 0 else 128 - returned)
        if deadline is not None:
            continue
        if kind == "lost":
            # Who stops a job often signals all its nodes, with all that runs there: then that is the reason.
            time.sleep(SIGNAL_S)
            kind, what = next((event for event in list(events.queue) if event[0] == "signal"), (kind, what))
        if kind == "lost":
            assert isinstance(what, Lifeline)
            text = f"node {what.rank} ({what.host}) was lost"
            say(f"{text}; the job ends")
            stopping, number = 1, signal.SIGTERM
        else:
            number = signal.Signals(what)  # type: ignore[arg-type]
            text = f"stopped by {number.name}" if os.getppid() == parent else "run_and_time.sh was killed"
            stopping = 128 + number
        (folder.path / "abort_reason").write_text(text + "\n")
        deadline = time.monotonic() + TIMES["JOB_END_S"]
        command.send_signal(number)


def arguments() -> argparse.Namespace:
    """The command line (see the module's docstring), and what the job's variables say of its nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("serve", "lead"))
    parser.add_argument("command", nargs="*", help="lead: what runs over the nodes")
    args = parser.parse_args()
    try:
        job, _ = env.read()
        args.hosts = hosts_of(job)
    except (ValueError, OSError) as error:
        refuse(str(error))
    args.rank, args.key, args.port, args.address = job.node_rank, job.job_key, job.ssh_port, job.ssh_address
    args.wait, args.slots = job.node_wait_s, job.dgxngpu
    if not job.job_key:
        refuse(
            f"DGXNNODES={job.dgxnnodes} needs JOB_KEY, the file of its private ssh key (ssh-keygen -t ed25519 -N '')"
        )
    if (args.role == "lead") != (args.rank == 0):
        refuse(f"NODE_RANK={args.rank} does not fit the role '{args.role}': the first node leads, the others serve")
    return args


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
    args = arguments()
    events: Events = queue.Queue()

    def on_signal(number: int, _frame: object) -> None:
        if args.role == "serve":
            raise Stopped(number)
        events.put(("signal", number))

    adopt_orphans()
    folder = Folder(key=Path(args.key), port=args.port, address=args.address)
    for number in STOPPING:
        signal.signal(number, on_signal)
    try:
        return serve(args, folder) if args.role == "serve" else lead(args, folder, events)
    except Stopped as stopped:
        say(f"stopped by {signal.Signals(stopped.number).name}")
        return 128 + stopped.number
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        end_descendants(5)
        folder.remove()


if __name__ == "__main__":
    sys.exit(main())
