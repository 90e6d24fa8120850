"""Joins the nodes of a job: each waits for the others, mpirun gets its way to them, all end together.

    nodes.py serve ...            on nodes above 0: sshd for the job's key, until the first node ends; ends as it ended
    nodes.py lead ... -- COMMAND  on the first node: waits for the others, runs COMMAND, tells them how it ended

Between the first node and each other one stands one ssh connection for the whole job, the lifeline. Over it the first
node learns that the other is there, and runs the same code; the other learns how the job ended; and each learns, by
ssh's own keepalives within LOST_S, that the other is gone. The job's key proves the first node to the others and, as
the host key of their sshd, the others to the first: nobody else is let in, and no host key is taken on trust.

Called by launch/nodes.sh, which owns the defaults. Exit status: COMMAND's; 1 where a node is lost or never comes; 2 for
wrong use; 128 + n when stopped by signal n.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import pwd
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]
ALIVE_S, ALIVE_COUNT = 5, 3  # a keepalive each ALIVE_S; a peer that misses ALIVE_COUNT of them is gone
LOST_S = ALIVE_S * (ALIVE_COUNT + 1)  # so a cut network is seen within this time
STOP_S = 25  # from SIGTERM to SIGKILL; trials.sh needs half of it, and SLURM kills after 30 s
SIGNAL_S = 1.0  # from a node's loss to the signal that ended it, where it is for this node too
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CONNECTING = 64  # ssh connections that the first node opens at the same time
EXTRA_USERS = Path("/var/lib/extrausers")  # where libnss-extrausers looks; in the image a link into /tmp

SSH_CONFIG = """Host *
Port {port}
User {user}
IdentityFile {folder}/key
IdentitiesOnly yes
IdentityAgent none
HostKeyAlias job
StrictHostKeyChecking yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
UpdateHostKeys no
CheckHostIP no
BatchMode yes
PreferredAuthentications publickey
ConnectTimeout 5
ServerAliveInterval {alive_s}
ServerAliveCountMax {alive_count}
LogLevel ERROR
"""
# StrictModes looks at every folder above the file; /tmp is everybody's, but ours in it is mode 0700.
SSHD_CONFIG = """Port {port}
{listen}
HostKey {folder}/key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
AllowUsers {user}
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitEmptyPasswords no
PermitRootLogin prohibit-password
UsePAM no
DisableForwarding yes
PermitTTY no
PermitTunnel no
PermitUserRC no
PermitUserEnvironment no
ClientAliveInterval {alive_s}
ClientAliveCountMax {alive_count}
LoginGraceTime 20
MaxAuthTries 3
UseDNS no
PrintMotd no
PidFile none
LogLevel INFO
"""


def say(text: str) -> None:
    """One line on stderr."""
    print(f"nodes.py: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    """Ends for wrong use."""
    say(text)
    raise SystemExit(2)


def fail(text: str) -> NoReturn:
    """Ends because the job cannot go on."""
    say(text)
    raise SystemExit(1)


class Stopped(Exception):
    """A signal asked this node to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def user_name() -> str:
    """Login name of this process's user; one that has none gets one, as ssh and sshd refuse a user without."""
    uid, gid = os.getuid(), os.getgid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        pass
    if not EXTRA_USERS.is_symlink():
        refuse(f"user id {uid} has no name on this machine: run as a user of /etc/passwd, or in the image")
    folder = EXTRA_USERS.resolve()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "passwd").write_text(f"job:x:{uid}:{gid}::/tmp:/bin/bash\n")
    (folder / "group").write_text(f"job:x:{gid}:\n")
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        refuse(f"user id {uid} has no name and is below 500, so the image cannot give it one: use another --user")


def code_digest() -> str:
    """SHA-256 over what a node runs, so that nodes with different code do not train together."""
    digest = hashlib.sha256()
    for pattern in ("*.sh", "launch/*", "locks/*.lock", "harness/*.py", "paddle_*/*.py"):
        for path in sorted(REPOSITORY.glob(pattern)):
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Folder:
    """The job's files on this node: the key, the configuration of ssh and sshd, the lifeline.

    Its path is the same on every node, because mpirun's daemons start each other with the first node's ssh command.
    """

    def __init__(self, *, key: Path, port: int, address: str) -> None:
        user = user_name()
        self.path = Path(f"/tmp/nodes-{os.getuid()}-{port}")
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.path.stat().st_uid != os.getuid() or self.path.is_symlink():
            fail(f"{self.path} belongs to somebody else: remove it, or choose another SSH_PORT")
        self.lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another job on this node uses port {port}: choose another SSH_PORT")
        for left in self.path.iterdir():  # of a job that was killed
            if left.name != "lock":
                left.unlink()
        values = {
            "port": port,
            "user": user,
            "folder": self.path,
            "alive_s": ALIVE_S,
            "alive_count": ALIVE_COUNT,
            "listen": f"ListenAddress {address}" if address else "",
        }
        os.umask(0o077)
        try:
            (self.path / "key").write_bytes(key.read_bytes())
        except OSError as error:
            refuse(f"JOB_KEY={key}: {error.strerror}; mount the job's private ssh key there, readable by {user}")
        public = subprocess.run(
            ["ssh-keygen", "-y", "-P", "", "-f", str(self.path / "key")],
            capture_output=True,
            text=True,
            check=False,
        )
        if public.returncode != 0:
            refuse(f"JOB_KEY={key}: no private ssh key without passphrase; make one with ssh-keygen -t ed25519 -N ''")
        kind, text = public.stdout.split()[:2]
        (self.path / "authorized_keys").write_text(f"restrict {kind} {text}\n")
        (self.path / "known_hosts").write_text(f"job {kind} {text}\n")
        (self.path / "ssh_config").write_text(SSH_CONFIG.format(**values))
        (self.path / "sshd_config").write_text(SSHD_CONFIG.format(**values))
        os.mkfifo(self.path / "lifeline")

    def remove(self) -> None:
        """Leaves nothing of the job on this node."""
        shutil.rmtree(self.path)
        if (EXTRA_USERS / "passwd").is_file() and EXTRA_USERS.is_symlink():
            shutil.rmtree(EXTRA_USERS.resolve())


# --- processes --------------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own: none escapes end_descendants."""
    pr_set_child_subreaper = 36  # linux/prctl.h
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(pid: int) -> Iterator[int]:
    """Every living process under `pid`, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = text.rpartition(") ")[2].split()[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    waiting = list(children.get(pid, []))
    while waiting:
        child = waiting.pop(0)
        yield child
        waiting += children.get(child, [])


def end_descendants(grace_s: float) -> None:
    """Asks every process that this one started to end, and kills after `grace_s` those that do not."""
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + limit_s
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while any(descendants(os.getpid())):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            return


# --- nodes above 0 ----------------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace, folder: Folder) -> int:
    """Runs sshd until the first node ends the job, or is lost; the job's exit status."""
    (folder.path / "hello").write_text(json.dumps({"rank": args.rank, "code": code_digest()}) + "\n")
    sshd_path = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin:/usr/local/sbin")
    if sshd_path is None:
        refuse("sshd is missing on this node: install openssh-server (the image has it)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own demand where it runs as root
    lifeline = os.open(folder.path / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
    log = folder.path / "sshd.log"
    with log.open("wb") as out:
        sshd = subprocess.Popen(
            [sshd_path, "-D", "-e", "-f", str(folder.path / "sshd_config")], stdin=subprocess.DEVNULL, stderr=out
        )
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
            deadline = time.monotonic() + STOP_S
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
            fail(f"node {args.rank}: sshd ended: {' / '.join(log.read_text().splitlines()[-2:])}")
        if not received and time.monotonic() > deadline:
            seen = [line for line in log.read_text().splitlines() if "Connection" in line or "Failed" in line]
            fail(
                f"node {args.rank}: {first} did not come within {args.wait} s"
                + (f"; sshd says: {seen[-1]}" if seen else " and nobody called")
            )


# --- the first node ---------------------------------------------------------------------------------------------------


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
        elif facts["code"] != code_digest():
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


def lead(args: argparse.Namespace, folder: Folder, events: queue.Queue[tuple[str, object]]) -> int:
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
        waiting = list(others)
        while waiting and time.monotonic() < start + args.wait + 1 and not any(o.final for o in others):
            check_signal(events)
            waiting = [o for o in waiting if not o.ready.wait(0.05 if o is waiting[0] else 0)]
        missing = [o for o in others if o.problem or not o.ready.is_set()]
        if missing:
            final = [o for o in missing if o.final] or missing
            after = "" if any(o.final for o in missing) else f" within {args.wait} s"
            names = "; ".join(f"{o.host} (node {o.rank}): {o.problem}" for o in final[:8])
            more = f"; and {len(final) - 8} more" if len(final) > 8 else ""
            fail(f"{len(final)} of {len(args.hosts)} nodes did not join{after}: {names}{more}")
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


def check_signal(events: queue.Queue[tuple[str, object]]) -> None:
    """Raises Stopped if a signal came."""
    try:
        kind, what = events.get_nowait()
    except queue.Empty:
        return
    if kind == "signal":
        raise Stopped(int(what))  # type: ignore[call-overload]
    events.put((kind, what))
    time.sleep(0.05)


def run_command(args: argparse.Namespace, folder: Folder, events: queue.Queue[tuple[str, object]]) -> int:
    """Runs the command with what mpirun needs in its environment; stops it when a node is lost."""
    hostfile = folder.path / "hosts"
    hostfile.write_text("".join(f"{host} slots={args.slots}\n" for host in args.hosts))
    reason = folder.path / "abort_reason"
    settings = {
        "HOSTS": ",".join(args.hosts),
        "ABORT_REASON_FILE": str(reason),
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {folder.path}/ssh_config",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",  # Kubernetes' names have dots
        "PRTE_MCA_oob_tcp_keepalive_time": str(ALIVE_S),
        "PRTE_MCA_oob_tcp_keepalive_intvl": str(ALIVE_S),
        "PRTE_MCA_oob_tcp_keepalive_probes": str(ALIVE_COUNT),
    }
    # Under SLURM mpirun would start its daemons by srun, whose step is this very job's: it is to use ssh, as elsewhere.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI_", "PMIX_"))}
    command = subprocess.Popen(args.command, env=kept | settings, start_new_session=True)

    def watch() -> None:
        events.put(("exit", command.wait()))

    threading.Thread(target=watch, daemon=True).start()
    stopping: int | None = None
    deadline: float | None = None
    while True:
        try:
            kind, what = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            say(f"the job did not end within {STOP_S} s of being asked to: killed")
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
            number = signal.Signals(what)
            text = f"stopped by {number.name}"
            stopping = 128 + number
        reason.write_text(text + "\n")
        deadline = time.monotonic() + STOP_S
        command.send_signal(number)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("serve", "lead"))
    parser.add_argument(
        "--hosts", required=True, help="host names, the first node's first, with commas between; serve: may be empty"
    )
    parser.add_argument("--rank", type=int, default=0, help="this node's place in --hosts")
    parser.add_argument("--key", type=Path, required=True, help="file of the job's private ssh key")
    parser.add_argument("--port", type=int, required=True, help="port of the waiting nodes' sshd")
    parser.add_argument("--address", default="", help="address that sshd listens on; empty: all")
    parser.add_argument("--wait", type=int, required=True, help="seconds that the nodes wait for each other")
    parser.add_argument("--slots", type=int, default=1, help="ranks on a node")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:end])
    args.command = sys.argv[end + 1 :]
    args.hosts = [host for host in args.hosts.split(",") if host]
    if twice := sorted({host for host in args.hosts if args.hosts.count(host) > 1}):
        refuse(f"HOSTS names {', '.join(twice)} more than once: give each node once")
    if (args.role == "lead") != (args.rank == 0):
        refuse(f"NODE_RANK={args.rank} does not fit the role '{args.role}': the first node leads, the others serve")
    if args.role == "lead" and not args.command:
        refuse("lead needs a command after --")

    events: queue.Queue[tuple[str, object]] = queue.Queue()

    def on_signal(number: int, _frame: object) -> None:
        if args.role == "serve":
            raise Stopped(number)
        events.put(("signal", number))

    adopt_orphans()
    folder = Folder(key=args.key, port=args.port, address=args.address)
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
