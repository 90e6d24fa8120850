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

import argparse
import contextlib
import fcntl
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from harness import env
from harness.hosts import hosts_of_cluster
from harness.processes import adopt_orphans, end_descendants, end_with_parent, on_signals
from launch.hello import RefusedCalls, answer_that_unable, hello, rank_by_hosts
from launch.lifeline import Lifeline, say
from launch.times import TIMES
from runlog import named_files

EXTRA_USERS = Path("/var/lib/extrausers")  # where libnss-extrausers looks; in the image a link into /tmp
SIGNAL_S = 1.0  # from a node's loss to the signal that ended it, where it is for this node too


class NodeError(SystemExit):
    """The end of this node's part in a job: its exit status, and why in one line."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(status)
        self.text = text


def fail(text: str, status: int = 1) -> NoReturn:
    """Ends with that line: status 1 where the job cannot go on, 2 for wrong use."""
    say(text)
    raise NodeError(text, status)


def stop(number: int, _frame: object) -> NoReturn:
    """Ends this node as the first signal asks."""
    on_signals(signal.SIG_IGN)
    raise SystemExit(128 + number)


# --- a node's files of the job ----------------------------------------------------------------------------------------


def user_name() -> str:
    """Login name of this process's user; one that has none gets one, as ssh and sshd refuse a user without."""
    uid, gid = os.getuid(), os.getgid()
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    if not EXTRA_USERS.is_symlink():
        fail(f"user id {uid} has no name on this machine: run as a user of /etc/passwd, or in the image", 2)
    folder = EXTRA_USERS.resolve()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "passwd").write_text(f"job:x:{uid}:{gid}::/tmp:/bin/bash\n")
    (folder / "group").write_text(f"job:x:{gid}:\n")
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    fail(f"user id {uid} has no name and is below 500, so the image cannot give it one: use another --user", 2)


def take_key(key: Path, folder: Path, user: str) -> str:
    """Copies the job's private key into the folder; kind and text of its public half."""
    try:
        named_files.refuse_no_file(key)
        (folder / "key").write_bytes(key.read_bytes())
    except named_files.UnusableError as error:
        fail(f"JOB_KEY={error}", 2)
    except OSError as error:
        fail(f"JOB_KEY={key}: {error.strerror}; mount the job's private ssh key there, readable by {user}", 2)
    command = ["ssh-keygen", "-y", "-P", "", "-f", str(folder / "key")]
    public = subprocess.run(command, capture_output=True, text=True, check=False)
    if public.returncode != 0:
        fail(f"JOB_KEY={key}: no private ssh key without passphrase; make one with ssh-keygen -t ed25519 -N ''", 2)
    return " ".join(public.stdout.split()[:2])


@contextlib.contextmanager
def job_folder(job: env.Job) -> Iterator[Path]:
    """The job's files on this node: the key, the configuration of ssh and sshd, the lifeline; removed at the end.

    Its path is the same on every node, because mpirun's daemons start each other with the first node's ssh command.
    """
    user = user_name()
    folder = Path(f"/tmp/nodes-{os.getuid()}-{job.cluster.ssh_port}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        fail(f"{folder} belongs to somebody else: remove it, or choose another SSH_PORT")
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another job on this node uses port {job.cluster.ssh_port}: choose another SSH_PORT")
        for left in folder.iterdir():  # of a job that was killed
            if left.name != "lock":
                left.unlink()
        for_others = os.umask(0o077)
        public = take_key(Path(job.cluster.job_key), folder, user)
        (folder / "authorized_keys").write_text(f"restrict {public}\n")
        (folder / "known_hosts").write_text(f"job {public}\n")
        values = {"port": job.cluster.ssh_port, "user": user, "folder": folder}
        values |= {name.lower(): TIMES[name] for name in ("ALIVE_S", "ALIVE_COUNT")}
        values["listen"] = f"ListenAddress {job.cluster.ssh_address}" if job.cluster.ssh_address else ""
        for name in ("ssh_config", "sshd_config"):
            (folder / name).write_text(Path(__file__).with_name(name).read_text().format(**values))
        os.mkfifo(folder / "lifeline")
        os.umask(for_others)  # the results' own
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            if (EXTRA_USERS / "passwd").is_file() and EXTRA_USERS.is_symlink():
                shutil.rmtree(EXTRA_USERS.resolve())


# --- nodes above 0 ----------------------------------------------------------------------------------------------------


def start_sshd(job: env.Job, folder: Path) -> subprocess.Popen[bytes]:
    """The sshd that the first node calls; it writes to sshd.log."""
    path = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        missing = "sshd is missing on this node: install openssh-server (the image has it)"
        say(missing)
        answer_that_unable(job, missing)
        raise NodeError(missing, 2)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own demand where it runs as root
    command = [path, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=out)


def say_how_it_ended(me: str, first: str, text: str) -> int:
    """Say why the job ended, by the first node's word: its status, and a reason where it has one; the status."""
    number, _, reason = text.partition(" ")
    status = int(number)
    if status != 0:
        why = reason or f"{first} says why, and its logs do"
        say(f"{me}: the job ended with status {status}: {why}")
    return status


def fail_for_sshd(job: env.Job, me: str, log: list[str]) -> NoReturn:
    """End this node because its sshd has ended, with the last lines of its log."""
    last_lines = " / ".join(log[-2:])
    other = ": give the job another SSH_PORT, on all nodes" if "Bind to port" in last_lines else ""
    why = f"sshd ended: {last_lines}{other}"
    say(f"{me}: {why}")
    answer_that_unable(job, why)
    raise NodeError(f"{me}: {why}", 1)


def tell_refused(me: str, first: str, refused: RefusedCalls, log: list[str]) -> None:
    """Say who called with another key; end this node where that was the first one, which then has ended too."""
    for caller in refused.read(log):
        say(f"{me}: {caller} called, and hung up at this node's key: it has another JOB_KEY, or is none of the job")
    if refused.first_node_gave_up():
        fail(f"{me}: {first} has another JOB_KEY than this node, and has ended: give both the same file")


def serve(job: env.Job, hosts: list[str], folder: Path) -> int:
    """Runs sshd until the first node ends the job, or is lost; the job's exit status."""
    (folder / "hello").write_text(hello(job))
    lifeline = os.open(folder / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
    sshd = start_sshd(job, folder)
    me, first = f"node {job.cluster.node_rank}", f"the first node{', ' + hosts[0] if hosts else ''},"
    say(f"{me}: waiting on port {job.cluster.ssh_port} for {first} at most {job.cluster.node_wait_s} s")
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    deadline = time.monotonic() + job.cluster.node_wait_s
    received = b""
    refused = RefusedCalls(hosts)
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
            *lines, _ = (received.rpartition(b"\n")[2] + data).split(b"\n")
            received += data
            for line in lines:
                word, _, text = line.decode(errors="replace").partition(" ")
                if word == "say":
                    say(f"{me}: {text}")
                elif word == "end":
                    return say_how_it_ended(me, first, text)
            if not data and not asked:
                fail(f"{me}: {first} was lost; this node ends")
            if not data:
                stop(asked[0], None)
        has_ended = sshd.poll() is not None  # before its last words are read
        log = (folder / "sshd.log").read_text().splitlines()
        if has_ended:
            fail_for_sshd(job, me, log)
        if not received:
            tell_refused(me, first, refused, log)
        late = time.monotonic() > deadline
        if late and asked:
            stop(asked[0], None)
        if late and not received:
            seen = [line for line in log if "Connection" in line or "Failed" in line]
            why = f"; sshd says: {seen[-1]}" if seen else " and nobody called"
            fail(f"{me}: {first} did not come within {job.cluster.node_wait_s} s{why}")


# --- the first node ---------------------------------------------------------------------------------------------------


def lead(job: env.Job, hosts: list[str], folder: Path, command: list[str]) -> int:
    """Waits for the other nodes, runs the command over them, and tells them how it ended."""
    start = time.monotonic()
    deadline = start + job.cluster.node_wait_s
    others = [Lifeline(rank, job, host, folder, deadline) for rank, host in enumerate(hosts) if rank]
    status, reason = 1, ""
    try:
        for other in others:
            other.start()
        join(others, start, job.cluster.node_wait_s)
        say(f"{len(hosts)} nodes joined after {time.monotonic() - start:.1f} s")
        status = run_command(command, mpirun_settings(job, hosts, folder), folder, others)
        reason = reason_of(folder)
    except SystemExit as end:
        status = int(end.code or 0)
        reason = end.text if isinstance(end, NodeError) else ""
        raise
    finally:
        for other in others:
            other.end(status, reason)
        for other in others:  # a node closes its sshd, and so the lifeline, when it has heard
            if other.process and other.answered:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    other.process.wait(2.0)
    return status


def reason_of(folder: Path) -> str:
    """Return why the job failed: this process's reason to end it, or the one of launch/trials.sh; empty: neither."""
    for name in ("abort_reason", "end_reason"):
        with contextlib.suppress(FileNotFoundError):
            return (folder / name).read_text(errors="replace").partition("\n")[0]
    return ""


def join(others: list[Lifeline], start: float, wait_s: int) -> None:
    """Waits for the other nodes; ends this process where one does not come."""
    end = start + wait_s + 1
    while any(o.is_alive() for o in others) and time.monotonic() < end and not any(o.final for o in others):
        time.sleep(0.05)
    final = [o for o in others if o.final]
    if missing := final or [o for o in others if o.problem]:
        within = "" if final else f" within {wait_s} s"
        names = "; ".join(f"{o.host} (node {o.rank}): {o.problem}" for o in missing[:8])
        more = f"; and {len(missing) - 8} more" if len(missing) > 8 else ""
        fail(f"{len(missing)} of {len(others) + 1} nodes did not join{within}: {names}{more}")


def mpirun_settings(job: env.Job, hosts: list[str], folder: Path) -> dict[str, str]:
    """Return the environment that mpirun needs, and the files of two reasons.

    The command reads in the one why it is ended, and writes into the other why it failed.
    """
    hostfile = folder / "hosts"
    hostfile.write_text("".join(f"{host} slots={job.cluster.dgxngpu}\n" for host in hosts))
    return {
        "HOSTS": ",".join(hosts),
        "ABORT_REASON_FILE": str(folder / "abort_reason"),
        "END_REASON_FILE": str(folder / "end_reason"),
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {folder}/ssh_config",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",  # Kubernetes' names have dots
        "PRTE_MCA_oob_tcp_keepalive_time": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_intvl": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_probes": str(TIMES["ALIVE_COUNT"]),
    }


def run_command(words: list[str], settings: dict[str, str], folder: Path, others: list[Lifeline]) -> int:
    """Runs the command to its end; stops it when a node is lost, or a signal comes."""
    parent = os.getppid()
    asked: list[int] = []
    on_signals(lambda number, _frame: asked.append(number))
    command = subprocess.Popen(words, env=os.environ | settings, start_new_session=True, close_fds=False)
    stopping = 0  # the exit status of a job that was told to end
    deadline = float("inf")
    while (status := command.poll()) is None:
        lost = next((other for other in others if other.lost()), None)
        if time.monotonic() > deadline:
            say(f"the job did not end within {TIMES['JOB_END_S']} s of being asked to: killed")
            end_descendants(0)
            return stopping
        if not stopping and (lost or asked):
            if lost:
                # Who stops a job often signals all its nodes, with all that runs there: then that is the reason.
                time.sleep(SIGNAL_S)
            if lost and not asked:
                stopping, number, text = 1, signal.SIGTERM, f"node {lost.rank} ({lost.host}) was lost"
                say(f"{text}; the job ends")
            else:
                number = signal.Signals(asked[0])
                stopping = 128 + number
                text = f"stopped by {number.name}" if os.getppid() == parent else "run_and_time.sh was killed"
            (folder / "abort_reason").write_text(text + "\n")
            deadline = time.monotonic() + TIMES["JOB_END_S"]
            command.send_signal(number)
        time.sleep(0.1)
    return stopping or (status if status >= 0 else 128 - status)


def hosts_of(job: env.Job) -> list[str]:
    """Names of the job's nodes; a node that waits needs none, as the first one calls it.

    Raises ValueError where the first node has none, or HOSTFILE is not right.
    """
    names = hosts_of_cluster(job.cluster)
    if not names and job.cluster.node_rank == 0:
        raise ValueError(
            f"DGXNNODES={job.cluster.dgxnnodes} needs HOSTS, the nodes' names with commas between, or a HOSTFILE"
        )
    return names


def main() -> int:
    """Runs this node's role; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("serve", "lead"))
    parser.add_argument("command", nargs="*", help="lead: what runs over the nodes")
    args = parser.parse_args()
    try:
        job, _ = env.read()
        hosts = hosts_of(job)
    except ValueError as error:
        fail(str(error), 2)
    if not job.cluster.job_key:
        fail(
            f"DGXNNODES={job.cluster.dgxnnodes} needs JOB_KEY, the file of its private ssh key (ssh-keygen -t ed25519 "
            "-N '')",
            2,
        )
    adopt_orphans()
    with job_folder(job) as folder:
        on_signals(stop)
        end_with_parent(signal.SIGHUP)  # in order; until here run_and_time.sh has had Linux kill this process with it
        try:
            if args.role == "serve":
                return serve(job, hosts, folder)
            if place := rank_by_hosts(hosts):
                say(f"NODE_RANK=0, but HOSTS has this machine as node {place} ({hosts[place]}): set NODE_RANK={place}")
                return serve(job, hosts, folder) or 2  # so that the first node hears of it
            return lead(job, hosts, folder, args.command)
        except SystemExit as end:
            if isinstance(end.code, int) and end.code > 128:
                say(f"stopped by {signal.Signals(end.code - 128).name}")
            raise
        finally:
            on_signals(signal.SIG_IGN)
            end_descendants(5)


if __name__ == "__main__":
    sys.exit(main())
