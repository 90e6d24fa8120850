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
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from harness import env
from harness.hosts import hosts_of_cluster
from harness.processes import adopt_orphans, end_descendants, end_with_parent, on_signals
from launch.ends import NodeError, fail, say, stop
from launch.hello import rank_by_hosts
from launch.lifeline import CallsBack, Lifeline
from launch.times import TIMES
from launch.waiting import serve
from runlog import named_files

EXTRA_USERS = Path("/var/lib/extrausers")  # where libnss-extrausers looks; in the image a link into /tmp
MAX_NAMED = 8  # at most so many of the nodes that did not join are named
SIGNAL_S = 1.0  # a signal that ended another node, and is for this node too, comes within this time of its loss


# --- a node's files of the job ----------------------------------------------------------------------------------------


def user_name() -> str:
    """Return the login name of this process's user, which ssh and sshd need.

    In the image a user without a name is given one, because a container may run as any user id. The image looks up
    users in a folder that this process may write to.

    Raises:
        NodeError: No name can be given: outside the image, or to a user id below 500. It ends this process with status
            2.
    """
    uid, gid = os.getuid(), os.getgid()
    name = known_name(uid)
    if name:
        return name
    is_in_image = EXTRA_USERS.is_symlink()
    if not is_in_image:
        fail(f"user id {uid} has no name on this machine: run as a user of /etc/passwd, or in the image", 2)
    folder = EXTRA_USERS.resolve()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "passwd").write_text(f"job:x:{uid}:{gid}::/tmp:/bin/bash\n")
    (folder / "group").write_text(f"job:x:{gid}:\n")
    name = known_name(uid)
    if not name:
        # libnss-extrausers takes only user ids from 500 on.
        fail(f"user id {uid} has no name and is below 500, so the image cannot give it one: use another --user", 2)
    return name


def known_name(uid: int) -> str:
    """Return the login name of a user id on this machine; empty if it has none.

    Args:
        uid: The number of the user.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def forget_user_name() -> None:
    """Remove the name that `user_name` gave this process's user; do nothing if it gave none."""
    if (EXTRA_USERS / "passwd").is_file() and EXTRA_USERS.is_symlink():
        shutil.rmtree(EXTRA_USERS.resolve())


def copy_key(key: Path, folder: Path, user: str) -> str:
    """Copy the job's private ssh key into the job's folder, and return its public half, such as "ssh-ed25519 AAAA...".

    Args:
        key: The file of the private key, which JOB_KEY names.
        folder: The job's folder on this node. The copy is its file `key`.
        user: Login name of this process's user, for the message.

    Raises:
        NodeError: The file cannot be read, or is not a private key without a passphrase. It ends this process with
            status 2.
    """
    try:
        named_files.require_file_if_present(key)
        (folder / "key").write_bytes(key.read_bytes())
    except named_files.UnusableError as error:
        fail(f"JOB_KEY={error}", 2)
    except OSError as error:
        fail(f"JOB_KEY={key}: {error.strerror}; mount the job's private ssh key there, readable by {user}", 2)
    command = ["ssh-keygen", "-y", "-P", "", "-f", str(folder / "key")]
    public = subprocess.run(command, capture_output=True, text=True, check=False)
    if public.returncode != 0:
        fail(f"JOB_KEY={key}: no private ssh key without passphrase; make one with ssh-keygen -t ed25519 -N ''", 2)
    kind_and_key = public.stdout.split()[:2]  # a comment may follow
    return " ".join(kind_and_key)


@contextlib.contextmanager
def job_folder(job: env.Job) -> Iterator[Path]:
    """Make this node's folder with the job's files, give its path, and remove it at the end of the context.

    It has the same path on every node, and is locked: another job on this node must have another SSH_PORT.

    Args:
        job: The settings of the job.

    Yields:
        The path of the folder.

    Raises:
        NodeError: The folder is not this job's alone, the user has no name, or the job's key is of no use. It ends this
            process.
    """
    user = user_name()
    # The same path on every node: mpirun's daemons start each other with the first node's ssh command.
    folder = Path(f"/tmp/nodes-{os.getuid()}-{job.cluster.ssh_port}")
    folder.mkdir(mode=0o700, exist_ok=True)
    is_ours = folder.stat().st_uid == os.getuid() and not folder.is_symlink()
    if not is_ours:
        fail(f"{folder} belongs to somebody else: remove it, or choose another SSH_PORT")
    with (folder / "lock").open("w") as lock:  # held to the end of the context
        lock_or_fail(lock, job.cluster.ssh_port)
        for leftover in folder.iterdir():  # of a job that was killed
            if leftover.name != "lock":
                leftover.unlink()
        try:
            usual_umask = os.umask(0o077)  # only this user may read the job's files
            write_files(job, folder, user)
            os.umask(usual_umask)
            yield folder
        finally:
            shutil.rmtree(folder)
            forget_user_name()


def lock_or_fail(lock: IO[str], port: int) -> None:
    """Lock a file until it is closed, or end this process if another job on this node holds the lock.

    Args:
        lock: The open file.
        port: The job's SSH_PORT, for the message.

    Raises:
        NodeError: Another job holds the lock.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"another job on this node uses port {port}: choose another SSH_PORT, unless HOSTS has this node twice")


def write_files(job: env.Job, folder: Path, user: str) -> None:
    """Write what ssh, sshd and the connection between the nodes need into the job's folder of this node.

    The job's key proves both sides: sshd lets in who has it, and ssh expects it as the host key of every node.

    Args:
        job: The settings of the job, with its key, port and address.
        folder: The job's folder on this node, which is empty but for its lock.
        user: Login name of this process's user.

    Raises:
        NodeError: The key is of no use. It ends this process.
    """
    public = copy_key(Path(job.cluster.job_key), folder, user)
    (folder / "authorized_keys").write_text(f"restrict {public}\n")
    (folder / "known_hosts").write_text(f"job {public}\n")
    address = job.cluster.ssh_address
    values = {
        "port": job.cluster.ssh_port,
        "user": user,
        "folder": folder,
        "alive_s": TIMES["ALIVE_S"],
        "alive_count": TIMES["ALIVE_COUNT"],
        "listen": f"ListenAddress {address}" if address else "",
    }
    for name in ("ssh_config", "sshd_config"):
        template = Path(__file__).with_name(name).read_text()
        (folder / name).write_text(template.format(**values))
    os.mkfifo(folder / "lifeline")  # the first node's ssh connection writes into it


# --- the first node ---------------------------------------------------------------------------------------------------


def lead(job: env.Job, hosts: list[str], folder: Path, words: list[str]) -> int:
    """Wait for the other nodes, run a command over all of them, and return its exit status.

    However this ends, the other nodes are sent the exit status, and the reason if it is known.

    Args:
        job: The settings of the job.
        hosts: Names of the job's nodes, this one first.
        folder: The job's folder on this node.
        words: The command and its arguments; it starts mpirun.

    Raises:
        SystemExit: A node cannot join or has not joined in time, or a signal came before the command was started.
    """
    start = time.monotonic()
    deadline = start + job.cluster.node_wait_s
    calls_back = CallsBack()
    calls_back.start()
    others = [Lifeline(rank, job, host, folder, deadline, calls_back) for rank, host in enumerate(hosts) if rank > 0]
    status = 1  # if an error comes that nothing here expects
    reason = ""
    try:
        for other in others:
            other.start()
        wait_until_joined(others, start, job.cluster.node_wait_s)
        say(f"{len(hosts)} nodes joined after {time.monotonic() - start:.1f} s")
        calls_back.say_who_has_not_called(others)
        status = run_command(words, mpirun_settings(job, hosts, folder), folder, others)
        reason = reason_of(folder)
    except SystemExit as end:
        status = int(end.code or 0)
        reason = end.text if isinstance(end, NodeError) else ""
        raise
    finally:
        end_others(others, status, reason)
    return status


def wait_until_joined(others: list[Lifeline], start: float, wait_s: int) -> None:
    """Wait until all other nodes have joined the job, or end this process.

    Args:
        others: The connections to the other nodes, which are being tried.
        start: When the waiting began, by time.monotonic.
        wait_s: Seconds from `start` within which all must have joined.

    Raises:
        NodeError: A node cannot join, or has not joined in time.
    """
    end = start + wait_s + 1  # each lifeline stops trying after `wait_s`, and may need a moment for its last try
    while time.monotonic() < end:
        all_have_stopped_trying = not any(other.is_alive() for other in others)
        one_can_never_join = any(other.is_final for other in others)
        if all_have_stopped_trying or one_can_never_join:
            break
        time.sleep(0.05)

    problem = nodes_that_did_not_join(others, wait_s)
    if problem:
        fail(problem)


def nodes_that_did_not_join(others: list[Lifeline], wait_s: int) -> str:
    """Return a message that names nodes that did not join the job, each with its problem; empty if all did.

    Args:
        others: The connections to the other nodes. If some can never join, only these count. At most MAX_NAMED are
            named.
        wait_s: Seconds that the nodes had to join, for the message.
    """
    unable = [other for other in others if other.is_final]  # they can never join
    missing = unable or [other for other in others if other.problem]
    if not missing:
        return ""
    within = "" if unable else f" within {wait_s} s"  # more time would not help those that are unable
    problems = "; ".join(f"{other.host} (node {other.rank}): {other.problem}" for other in missing[:MAX_NAMED])
    unnamed = len(missing) - MAX_NAMED
    more = f"; and {unnamed} more" if unnamed > 0 else ""
    return f"{len(missing)} of {len(others) + 1} nodes did not join{within}: {problems}{more}"


def mpirun_settings(job: env.Job, hosts: list[str], folder: Path) -> dict[str, str]:
    """Write the file in which mpirun finds the nodes, and return the variables by which it starts ranks on them.

    Args:
        job: The settings of the job.
        hosts: Names of the job's nodes, the first one first.
        folder: The job's folder on this node.

    Returns:
        {name of an environment variable: value}, for the command that runs mpirun. Two of them name files in which this
        process and the command tell each other why they end.
    """
    hostfile = folder / "hosts"
    hostfile.write_text("".join(f"{host} slots={job.cluster.dgxngpu}\n" for host in hosts))
    return {
        "HOSTS": ",".join(hosts),
        "ABORT_REASON_FILE": str(folder / "abort_reason"),  # why the command is being ended, for it to read
        "END_REASON_FILE": str(folder / "end_reason"),  # why the command failed, as it writes there
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {folder}/ssh_config",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",  # Kubernetes' names have dots
        "PRTE_MCA_oob_tcp_keepalive_time": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_intvl": str(TIMES["ALIVE_S"]),
        "PRTE_MCA_oob_tcp_keepalive_probes": str(TIMES["ALIVE_COUNT"]),
    }


class EarlyEnd(NamedTuple):
    """How a command is ended before it has ended by itself."""

    status: int  # exit status of the job
    signal_to_send: signal.Signals  # to the command
    reason: str


def run_command(words: list[str], settings: dict[str, str], folder: Path, others: list[Lifeline]) -> int:
    """Run a command to its end, or until a node is lost or a signal comes; return the exit status.

    In the latter cases the command is asked to end, and is killed if it has not ended JOB_END_S seconds later.

    Args:
        words: The command and its arguments.
        settings: Environment variables of the command, in addition to this process's.
        folder: The job's folder on this node.
        others: The connections to the other nodes.

    Returns:
        The command's exit status, or 128 + n if signal n ended it. If it was asked to end, the status of
        `decide_early_end`.
    """
    parent = os.getppid()
    signals: list[int] = []  # that this process got, the first one first
    on_signals(lambda number, _frame: signals.append(number))
    command = subprocess.Popen(words, env=os.environ | settings, start_new_session=True, close_fds=False)
    early_end: EarlyEnd | None = None  # None: the command has not been asked to end
    deadline = float("inf")
    while command.poll() is None:
        if early_end is not None and time.monotonic() > deadline:
            say(f"the job did not end within {TIMES['JOB_END_S']} s of being asked to: killed")
            end_descendants(0)
            return early_end.status
        lost = next((other for other in others if other.is_lost()), None)
        must_end = lost is not None or bool(signals)
        if must_end and early_end is None:  # it is asked to end only once
            early_end = decide_early_end(lost, signals, parent)
            # Before the signal is sent, because the command reads the reason when it gets the signal.
            (folder / "abort_reason").write_text(f"{early_end.reason}\n")
            deadline = time.monotonic() + TIMES["JOB_END_S"]
            command.send_signal(early_end.signal_to_send)
        time.sleep(0.1)

    if early_end is not None:
        return early_end.status
    if command.returncode < 0:  # a signal ended it
        return 128 - command.returncode
    return command.returncode


def decide_early_end(lost: Lifeline | None, signals: list[int], parent: int) -> EarlyEnd:
    """Return how to end the command because a node was lost or a signal came; one of them must have come.

    Args:
        lost: The connection to a lost node; None: none is lost.
        signals: Numbers of the signals that this process got, the first one first. The handler of signals adds
            to this list meanwhile.
        parent: Process id of what started this process, run_and_time.sh.

    Returns:
        The exit status, the signal to send to the command, and the reason in words.
    """
    if lost is not None:
        # Who stops a job often sends a signal to all processes on all nodes, so another node may go first. Then this
        # node's signal, which the handler adds to `signals`, is the true reason.
        time.sleep(SIGNAL_S)
        if not signals:
            reason = f"node {lost.rank} ({lost.host}) was lost"
            say(f"{reason}; the job ends")
            return EarlyEnd(1, signal.SIGTERM, reason)
    number = signal.Signals(signals[0])
    is_parent_alive = os.getppid() == parent  # Linux gives an orphan another parent
    # If run_and_time.sh was killed, Linux sent the signal because of that.
    reason = f"stopped by {number.name}" if is_parent_alive else "run_and_time.sh was killed"
    return EarlyEnd(128 + number, number, reason)


def reason_of(folder: Path) -> str:
    """Return why the job failed, in one line; empty if that is not known.

    A reason why this process ended the command comes first, then one that launch/trials.sh gave.

    Args:
        folder: The job's folder on this node, with the files of the reasons.
    """
    for name in ("abort_reason", "end_reason"):
        with contextlib.suppress(FileNotFoundError):
            return (folder / name).read_text(errors="replace").partition("\n")[0]
    return ""


def end_others(others: list[Lifeline], status: int, reason: str) -> None:
    """Tell the other nodes how the job ended, and wait up to 2 s for each that answered to hear it.

    Args:
        others: The connections to the other nodes.
        status: Exit status of the job.
        reason: Why it ended so; empty if that is not known.
    """
    for other in others:
        other.send_end(status, reason)
    for other in others:  # when a node has heard, it ends its sshd, and with it the lifeline
        if other.process and other.answered:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.process.wait(2.0)


# --- the command ------------------------------------------------------------------------------------------------------


def hosts_of(job: env.Job) -> list[str]:
    """Return the names of the job's nodes.

    Args:
        job: The settings of the job.

    Returns:
        The names, the first node first. Empty if none are given to a node other than the first, which needs none.

    Raises:
        ValueError: The first node is given none, or HOSTFILE is not right.
    """
    names = hosts_of_cluster(job.cluster)
    if not names and job.cluster.node_rank == 0:
        raise ValueError(
            f"DGXNNODES={job.cluster.dgxnnodes} needs HOSTS, the nodes' names with commas between, or a HOSTFILE"
        )
    return names


def arguments() -> argparse.Namespace:
    """Read the command line: the role of this node, and for the first node the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("serve", "lead"))
    parser.add_argument("command", nargs="*", help="lead: what runs over the nodes")
    return parser.parse_args()


def job_and_hosts() -> tuple[env.Job, list[str]]:
    """Return the job that the environment describes, and the names of its nodes.

    Returns:
        (job, hosts). The hosts may be empty on a node other than the first.

    Raises:
        NodeError: The job is wrong, or has no JOB_KEY. It ends this process with status 2.
    """
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
    return job, hosts


def main() -> int:
    """Play this node's role in the job that the environment describes, and return the exit status.

    The module's docstring lists the statuses. When this returns, all processes that were started here have ended.
    """
    args = arguments()
    job, hosts = job_and_hosts()
    adopt_orphans()
    with job_folder(job) as folder:
        on_signals(stop)
        # End in order if run_and_time.sh is killed; until here it has had Linux kill this process with it.
        end_with_parent(signal.SIGHUP)
        try:
            if args.role == "serve":
                return serve(job, hosts, folder)
            return lead_as_first(job, hosts, folder, args.command)
        except SystemExit as end:
            if isinstance(end.code, int) and end.code > 128:  # 128 + the number of a signal
                say(f"stopped by {signal.Signals(end.code - 128).name}")
            raise
        finally:
            on_signals(signal.SIG_IGN)
            end_descendants(5)


def lead_as_first(job: env.Job, hosts: list[str], folder: Path, words: list[str]) -> int:
    """Lead the job if this machine is the first of its nodes, and return the exit status.

    Args:
        job: The settings of the job.
        hosts: Names of the job's nodes, the first one first.
        folder: The job's folder on this node.
        words: The command and its arguments, which run over all nodes.

    Returns:
        The exit status of the command. On a machine that was started as the first by mistake, the status that the true
        first node sends, or 2 if that is 0.
    """
    rank = rank_by_hosts(hosts)
    if rank == 0:
        return lead(job, hosts, folder, words)
    say(f"NODE_RANK=0, but HOSTS has this machine as node {rank} ({hosts[rank]}): set NODE_RANK={rank}")
    # The true first node calls this one, and so notices the mistake and reports it.
    status = serve(job, hosts, folder)
    return status or 2


if __name__ == "__main__":
    sys.exit(main())
