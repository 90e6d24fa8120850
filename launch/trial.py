"""One trial: mpirun from its start to the end of its log, whoever is killed on the way.

    trial.py RESULT [OPTIONS] -- MPIRUN...

Called by launch/trials.sh. TERM, INT and HUP end the trial in order; HUP also comes where a launcher above this process
was killed. mpirun is ended with this process. Exit status: 0; 1 where the trial failed; 2 where it was refused; 128 + n
after signal n.
"""

import argparse
import contextlib
import fcntl
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from harness.processes import (
    LAUNCHER_ENDED,
    SENT_TO_RANKS,
    STDOUT,
    ancestors,
    end_with_parent,
    has_living_child,
    is_alive,
    on_signals,
)
from launch.times import TIMES
from runlog.errors import RunError
from runlog.text import encodable
from runlog.writer import close_log_of_killed_run

# What a rank says that failed only because it lost another one: it is not to blame.
LOST_PEER = re.compile(
    r"connection (reset|closed|refused)|broken pipe|socket closed|closed the connection|remote process|peer"
    r"|nccl.*(remote|unhandled system) error|gloo.*(timed? ?out|enforce)",
    re.IGNORECASE,
)
SIGNALS_OF_LOST_PEER = {signal.SIGABRT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP}  # by which such a rank may end
NO_MORE_PROCESSES = re.compile(r"can't start new thread|BlockingIOError: \[Errno 11\]|pthread_create failed")
STATUS_OF_REFUSAL = 2  # a rank's and the trial's
NO_READER = "SIGPIPE detected"  # mpirun's words before it ends the ranks by TERM
NOBODY_READS = "what reads the job's output has ended, as | head does or a lost ssh: write the output into a file"
# mpirun's words where there is no room for its files, of bytes or of files
MPIRUN_CANNOT_WRITE = re.compile("PMIX_ERR_FILE_WRITE_FAILURE|unable to create the desired\\s+directory")
# MPI's words where there is no room for the memory that ranks of a node share, before it fails to start
NO_ROOM_TO_SHARE = "not enough space for /dev/shm/"
ENOUGH_FOR_SHARED_MEMORY = 2**30  # bytes of a file: two ranks needed 5 to 20 MiB
# mpirun of Open MPI 5.0.11 may wait for ever, and not end at SIGTERM, where ranks end while they start MPI.
ALONE_S = 30.0  # it is killed where none of its processes has been alive for so long
LOOK_S = 5.0  # between two looks at its processes
RANK_ENDED = re.compile(r"process rank \d+ with PID \d+ on node \S+ exited on signal (\d+) \([^)]*\)")  # mpirun's words


def memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since its start; 0 if it counts none."""
    found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    return int(found[1]) if found else 0


WINDOWS_TO_END = 2  # windows of steps: the one under way, and as long again to save a checkpoint after it
WINDOW = re.compile(r'"key": "step_window", "value": \{[^}]*"time_s": ([\d.]+)')


def longest_window_s(result: Path) -> float:
    """Return the seconds of the longest window of steps in a log; 0 if it has none yet, or cannot be read.

    A window is some training steps in a row, which the log has an event for.

    Args:
        result: The log of the trial.
    """
    try:
        text = result.read_text(errors="replace")
    except OSError:
        return 0.0
    return max((float(seconds) for seconds in WINDOW.findall(text)), default=0.0)


def time_to_end_s(result: Path, *, nodes: int, in_container: bool) -> float:
    """Return how many seconds the ranks may take to end after a signal.

    Meanwhile they end the window of steps under way and save a checkpoint. They get LAST_WINDOW_S seconds. On one node
    without a container they get twice the time of the longest window so far, if that is more.

    Args:
        result: The log of the trial, which says how long its windows are.
        nodes: Nodes of the job.
        in_container: Whether this process runs in a container.
    """
    if nodes > 1 or in_container:  # what is above this process kills it after that
        return float(TIMES["LAST_WINDOW_S"])
    return max(TIMES["LAST_WINDOW_S"], WINDOWS_TO_END * longest_window_s(result))


def open_messages(path: Path) -> IO[bytes]:
    """Open the file for what the ranks and mpirun print on stderr, emptied, and locked until it is closed.

    The lock tells other jobs that a trial is at work here.

    Args:
        path: The file. Its folder is made if it is absent.

    Returns:
        The open file, to be written in bytes.

    Raises:
        FileExistsError: The path is a link or no plain file, or another job holds the lock.
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_other_than_file = path.exists() and not path.is_file()
    if path.is_symlink() or is_other_than_file:
        raise FileExistsError(f"{path} is a link, or no plain file: remove it, or set LOGDIR")
    # Opened without O_TRUNC, which would empty it before the lock: another job may be writing there.
    messages = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644), "wb")
    try:
        fcntl.flock(messages, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it tells other jobs that a trial is at work here
    except BlockingIOError:
        messages.close()
        problem = f"{path} is of another job, which is at work there: wait for it, or set LOGDIR"
        raise FileExistsError(problem) from None
    messages.truncate(0)
    return messages


class Messages:
    """All that the ranks and mpirun have printed on stderr so far."""

    def __init__(self, text: str) -> None:
        self.text = text

    def errors(self) -> list[str]:
        """Return the errors that ranks wrote: the lines that begin with `error: `, without these words."""
        lines = self.text.splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]

    def rank_ended(self) -> re.Match[str] | None:
        """Return mpirun's sentence about a rank that a signal ended.

        Returns:
            A match whose first group is the number of the signal; None if mpirun has printed no such sentence.
        """
        in_one_line = " ".join(self.text.split())  # mpirun breaks its sentence over lines
        return RANK_ENDED.search(in_one_line)


class Trial:
    """A trial: its mpirun, the signal that asked it to end, and why it failed."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Prepare a trial; nothing is started yet.

        Args:
            args: The options and arguments of the command line.
        """
        self.args = args
        self.result: Path = args.result
        self.stderr = self.result.with_suffix(".stderr")
        folders = (self.stderr.parent, *self.stderr.parent.parents)
        self.folders_to_make = [folder for folder in folders if not folder.exists()]  # the lowest one first
        self.signal: signal.Signals | None = None  # the first that asked the trial to end
        self.deadline = float("inf")  # by time.monotonic: until then ranks that were asked to end may save
        self.launchers = ancestors()  # process ids of launch/trials.sh, and of what started it
        self.mpirun: subprocess.Popen[bytes] | None = None
        self.kills_before = memory_kills()
        self.mpirun_hung = False  # it did not end with its ranks

    def on_signal(self, number: int, _frame: object) -> None:
        """Ask the ranks to save what they have and to end, by a signal that mpirun passes on to them.

        The first signal is kept as the reason of the end, and sets the time by which the ranks must have ended. A
        signal that comes before mpirun is started is sent by `run` later.

        Args:
            number: The signal that this process got: SIGTERM, SIGINT or SIGHUP.
            _frame: As Python gives it to a handler; not used.
        """
        if self.signal is None:
            in_container = bool(os.environ.get("IMAGE_DIGEST"))
            limit_s = time_to_end_s(self.result, nodes=self.args.nodes, in_container=in_container)
            self.deadline = time.monotonic() + limit_s
            self.signal = signal.Signals(number)
        if self.mpirun is not None:  # otherwise `run` calls this again once mpirun runs
            signal_to_send = SENT_TO_RANKS[signal.Signals(number)]
            # HUP comes from a user, or from Linux if a launcher above was killed; the ranks say which in the log.
            if number == signal.SIGHUP and self.killed_launcher():
                signal_to_send = LAUNCHER_ENDED
            self.mpirun.send_signal(signal_to_send)

    def run(self, messages: IO[bytes]) -> int:
        """Run mpirun to its end, and return its exit status.

        What mpirun and its ranks leave in shared memory and in the folder of temporary files is removed.

        Args:
            messages: The open file that gets what mpirun and its ranks print on stderr.

        Returns:
            The exit status, or 128 + n if signal n ended mpirun.
        """
        settings = dict(os.environ)
        segments = self._make_folder_of_segments()
        if segments:
            settings["OMPI_MCA_btl_sm_backing_directory"] = segments
        mpirun = subprocess.Popen(
            self.args.command,
            stdin=subprocess.DEVNULL,
            stderr=messages,
            env=settings,
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
        )
        self.mpirun = mpirun
        if self.signal is not None:  # it came before there was an mpirun to send it to
            self.on_signal(self.signal, None)
        self._wait_for(mpirun)

        folder_of_mpirun = settings.get("PRTE_MCA_prte_local_tmpdir_base", "")  # named by launch/trials.sh
        for leftover in (segments, folder_of_mpirun):
            shutil.rmtree(leftover, ignore_errors=True)  # an empty or missing path is ignored
        if self.mpirun_hung:
            return 1
        if mpirun.returncode < 0:  # a signal ended it
            return 128 - mpirun.returncode
        return mpirun.returncode

    def _make_folder_of_segments(self) -> str:
        """Make a folder in /dev/shm for the memory segments through which the ranks of a node talk.

        A rank that is killed leaves its segments; they are removed with the folder.

        Returns:
            The path of the folder. Empty if it cannot be made, or the job has several nodes: there the segments go with
            the containers.
        """
        if self.args.nodes > 1:  # their segments go with their containers
            return ""
        with contextlib.suppress(OSError):
            # The name has the process id of trials.sh, which removes the folder if this process is killed.
            return tempfile.mkdtemp(prefix=f"ranks.{os.getppid()}.", dir="/dev/shm")
        return ""

    def _wait_for(self, mpirun: subprocess.Popen[bytes]) -> None:
        """Wait until mpirun has ended.

        mpirun is asked to end its ranks, again and again, once the time to end after a signal or the trial's limit is
        over. It is killed MPIRUN_END_S seconds after the time to end; the limit alone never has it killed. It is also
        killed if it does not end with its ranks, unless what they have printed is not read, as in a pager.

        Args:
            mpirun: The running process.
        """
        end_by_limit = float("inf")
        if self.args.limit:  # 0: none
            end_by_limit = time.monotonic() + self.args.limit
        had_work_s = float("inf")  # when it was last seen with a living child, or output to print; infinite: never yet
        next_look_s = time.monotonic() + LOOK_S
        while mpirun.poll() is None:
            now = time.monotonic()
            if now > next_look_s:
                next_look_s = now + LOOK_S
                if has_living_child(mpirun.pid) or _stdout_is_full():
                    had_work_s = now
            self.mpirun_hung = now > had_work_s + ALONE_S
            if self.mpirun_hung or now > self.deadline + TIMES["MPIRUN_END_S"]:  # only a signal sets a deadline
                mpirun.kill()
            elif now > min(self.deadline, end_by_limit):
                mpirun.terminate()  # repeated until it has ended
            time.sleep(0.1)

    def killed_launcher(self) -> str:
        """Return which launcher above this process was killed, such as "launch/trials.sh was killed"; empty if none
        was.

        Linux ends a launcher with the one above it. So if two are gone, the upper one was killed.
        """
        upper_name = "run_and_time.sh" if self.args.nodes == 1 else "launch/nodes.py"
        trials_sh, *above = self.launchers  # process ids; the nearest one above trials.sh comes first
        if above and not is_alive(above[0]):
            return f"{upper_name} was killed"
        if os.getppid() != trials_sh:
            return "launch/trials.sh was killed"
        return ""

    def messages(self) -> Messages:
        """Return what the ranks and mpirun have printed on stderr; empty if the file is gone."""
        text = self.stderr.read_text(errors="replace") if self.stderr.exists() else ""
        return Messages(text)

    def reason_by_nodes(self) -> str:
        """Return why launch/nodes.py, which connects the nodes, ends the job; empty if it does not.

        It may have lost a node, or is being stopped. The text is the first line of the file that ABORT_REASON_FILE
        names.
        """
        path = Path(os.environ.get("ABORT_REASON_FILE") or os.devnull)  # /dev/null is read as an empty text
        if not path.exists():
            return ""
        first_line, _, _ = path.read_text().partition("\n")
        return first_line

    def wait_for_reason(self) -> None:
        """Wait until launch/nodes.py, which connects the nodes, says why the job ends, or would have said so by now.

        If a node is lost, mpirun may notice before launch/nodes.py does. The wait is at most ALIVE_S + 3 s. A signal to
        this process ends it at once. After 3 s an error that a rank or mpirun has written ends it, too.
        """
        begin = time.monotonic()
        # By then our ssh connections have noticed a lost node, too: mpirun's keepalives may be one ahead of ours.
        end = begin + TIMES["ALIVE_S"] + 3
        while time.monotonic() < end:
            if self.signal is not None or self.reason_by_nodes():
                return
            if time.monotonic() > begin + 3:  # from then on a rank's reason, or mpirun's about a rank, is enough
                messages = self.messages()
                if messages.errors() or messages.rank_ended():
                    return
            time.sleep(0.1)

    def reason(self, status: int) -> str:
        """Return why the trial failed, in one line: the first reason that is known, in the order below.

        These are tried in turn: the reason of launch/nodes.py, the signal that asked the trial to end, a folder of
        results that was removed, an output that nobody reads any more, a rank that a signal ended, what the ranks
        wrote, and how mpirun ended.

        Args:
            status: Exit status of mpirun as `run` returned it, or 1 in place of 0.
        """
        reason_by_nodes = self.reason_by_nodes()
        if reason_by_nodes:
            return reason_by_nodes
        messages = self.messages()
        if self.signal is not None:
            return self._reason_of_signal(self.signal, messages)
        if not self.stderr.exists():
            return f"{self.stderr.parent} was removed during the run"
        if NO_READER in messages.text:
            return NOBODY_READS
        return (
            self._reason_of_ended_rank(messages)
            or self._reason_by_ranks(messages)
            or self._reason_by_mpirun(status, messages)
        )

    def _reason_of_signal(self, number: signal.Signals, messages: Messages) -> str:
        """Return what asked the trial to end: a signal, or a launcher that was killed.

        If a rank has written why it stopped, its words are in the result, because they also name the last checkpoint.

        Args:
            number: The signal.
            messages: What the ranks and mpirun have printed on stderr.
        """
        killed = self.killed_launcher()
        said_by_ranks = [line for line in messages.errors() if line.startswith("stopped by ")]
        if said_by_ranks and killed:
            return f"{killed}: {said_by_ranks[0]}"
        if said_by_ranks:
            return said_by_ranks[0]
        return killed or f"stopped by signal {number.name.removeprefix('SIG')}"

    def _reason_of_ended_rank(self, messages: Messages) -> str:
        """Return which signal ended a rank; empty if there is no such rank, or it is not to blame.

        If the rank ended for lack of memory, the text also says what to do.

        Args:
            messages: What the ranks and mpirun have printed on stderr.
        """
        ended = messages.rank_ended()
        if ended is None:
            return ""
        number = int(ended[1])
        if number == signal.SIGKILL and memory_kills() > self.kills_before:
            return _reason_of_memory()
        if number in SIGNALS_OF_LOST_PEER:  # not to blame: it may have ended because it lost another rank
            return ""
        if number == signal.SIGBUS:
            return f"{ended[0]}: no room in /dev/shm (--shm-size)?"
        return ended[0]

    def _reason_by_ranks(self, messages: Messages) -> str:
        """Return what the ranks or mpirun wrote about who failed first, with advice; empty if they wrote nothing.

        An error about a lost connection (LOST_PEER) comes last: its rank failed only because another one did.

        Args:
            messages: What the ranks and mpirun have printed on stderr.
        """
        errors = messages.errors()
        own_errors = [line for line in errors if not LOST_PEER.search(line)]
        ended = messages.rank_ended()
        if own_errors:
            reason = own_errors[0]
        elif ended:
            reason = ended[0]
        elif errors:
            reason = errors[0]
        else:
            return ""
        return reason + _advice(messages)

    def _reason_by_mpirun(self, status: int, messages: Messages) -> str:
        """Return what is known if no rank wrote an error: how mpirun ended, or what mpirun or MPI wrote.

        Args:
            status: Exit status of mpirun as `run` returned it, or 1 in place of 0.
            messages: What the ranks and mpirun have printed on stderr.
        """
        folder = os.environ.get("TMPDIR") or "/tmp"
        mpirun_has_no_room = f"mpirun cannot write into {folder}: make room there, or set TMPDIR to another folder"
        if status == 128 + signal.SIGBUS:  # a file that it maps has no room
            return mpirun_has_no_room
        if 128 < status < 192:  # 128 + the number of a signal, of which Linux has 64
            advice = _advice_on_file_size() if status == 128 + signal.SIGXFSZ else ""
            return f"mpirun was ended by signal {status - 128}{advice}"
        if "unable to find network interfaces" in messages.text:
            return "no network interface is up here, and ranks meet over the loopback: ip link set lo up"
        if MPIRUN_CANNOT_WRITE.search(messages.text):
            return mpirun_has_no_room
        if NO_ROOM_TO_SHARE in messages.text:
            return "MPI has too little room in /dev/shm, of which a rank takes 16 MiB: make room there (--shm-size)"
        if "An error occurred in MPI_Init" in messages.text:
            return f"MPI could not start on a rank; what it said is in {self.stderr}{_advice_on_file_size()}"
        if "MPI_ERRORS_ARE_FATAL" in messages.text:
            return f"a rank was lost, of which another one heard before mpirun did; what it said is in {self.stderr}"
        if self.args.nodes > 1 and not messages.text:
            return f"mpirun ended with status {status}, and no rank said why: it may have lost its connection to a node"
        if self.mpirun_hung:
            return f"mpirun did not end with its ranks, and was killed; what they said is in {self.stderr}"
        return f"a rank ended with status {status}; what it said is in {self.stderr}{_advice(messages)}"

    def remove_messages_if_said(self) -> None:
        """Remove the messages of a trial that was refused before it had a log, and the folders made for them.

        Its user has read the reason, and sets up the next start in folders that are as they were. The messages stay if
        the ranks gave several reasons, of which the user has read only the first.
        """
        has_one_reason = len(set(self.messages().errors())) == 1
        if self.result.exists() or not has_one_reason:
            return
        self.stderr.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a folder has something else in it by now
            for folder in self.folders_to_make:
                folder.rmdir()

    def is_done(self, status: int) -> bool:
        """Return whether the trial did its work: mpirun ended with 0, and rank 0 has written a result.

        The status is not enough: mpirun of Open MPI 5.0.11 ends with 0 if it loses a node as the ranks start. A result
        is a finished log or, of commands that write none, a file with another suffix.

        Args:
            status: Exit status of mpirun.
        """
        if status:
            return False
        # An acceptance whose checks are not possible here writes .lines, and a fleet .json; all else writes a log.
        results_that_are_no_logs = (self.result.with_suffix(suffix) for suffix in (".lines", ".json"))
        if any(path.is_file() and path.stat().st_size > 0 for path in results_that_are_no_logs):
            return True
        return self.result.is_file() and b'"key": "run_stop"' in self.result.read_bytes()


def _stdout_is_full() -> bool:
    """Return whether what is printed would have to wait, as a pager or a stopped terminal reads no more of it."""
    poll = select.poll()
    poll.register(STDOUT, select.POLLOUT)
    return not poll.poll(0)


def _reason_of_memory() -> str:
    """Return that the kernel killed a rank for lack of memory, and what to do."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30  # of the machine
    return (
        f"out of memory at BATCHSIZE={os.environ.get('BATCHSIZE')}: the kernel of {os.uname().nodename}, which "
        f"has {memory_gib:.2f} GiB (its container may have less), killed a rank: lower BATCHSIZE or DGXNGPU, "
        "or compute the update in parts: STRATEGY=gradient_merge=N"
    )


def _advice(messages: Messages) -> str:
    """Return what to do if a limit on processes was met, as the end of a reason; empty if none was.

    Args:
        messages: What the ranks and mpirun have printed on stderr.
    """
    if NO_MORE_PROCESSES.search(messages.text):
        return ": raise the limit on processes (ulimit -u, or a container's --pids-limit)"
    return ""


def _advice_on_file_size() -> str:
    """Return what to do where files may not become as large as MPI's shared memory, as the end of a reason, or ""."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes == resource.RLIM_INFINITY or limit_bytes >= ENOUGH_FOR_SHARED_MEMORY:
        return ""
    return f": raise the limit on the size of files (ulimit -f), which is {limit_bytes // 1024} KiB"


def report(pipe: Path, reason: str) -> None:
    """Write why the trial failed into the pipe to launch/trials.sh; do nothing if it is no longer read.

    Args:
        pipe: Path of the pipe.
        reason: Why, in one line.
    """
    with contextlib.suppress(BrokenPipeError):
        pipe.write_text(encodable(reason))


def end_failed(trial: Trial, status: int, begin: float) -> str:
    """Return why a trial failed, in one line, after its log is closed as aborted if its ranks could not do that.

    A reason that the log has already is preferred. Where nobody reads the output any more it is the second one, as
    the log names the signal by which mpirun ended the ranks for it.

    Args:
        trial: The trial, whose mpirun has ended.
        status: What `Trial.run` returned, or 1 instead of 0.
        begin: When the trial began, by time.monotonic.
    """
    args = trial.args
    if args.nodes > 1:
        trial.wait_for_reason()  # by launch/nodes.py
    reason = trial.reason(status)
    has_limit = args.limit > 0  # as only the trials of an acceptance do
    is_over_limit = has_limit and time.monotonic() > begin + args.limit
    if is_over_limit and trial.signal is None:  # a signal that came is the reason, even after the limit
        reason = f"it was not done after the {TIMES['ACCEPTANCE_END_S']} s that an acceptance may take"
    try:
        logged_reason = close_log_of_killed_run(args.result, reason)  # the log's own where it has one
    except RunError as error:
        return str(error)
    if reason == NOBODY_READS and logged_reason != reason:
        return f"{reason}; {logged_reason}"
    return logged_reason


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="the trial's log, which rank 0 makes")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the job")
    parser.add_argument("--limit", type=float, default=0, help="seconds after which the trial is ended; 0: never")
    parser.add_argument("--launcher", type=int, required=True, help="process id of launch/trials.sh")
    parser.add_argument("--reason", type=Path, required=True, help="pipe that gets why the trial failed")
    parser.add_argument("command", nargs="+", help="mpirun and its words")
    return parser.parse_args()


def reason_of_refusal(stderr: Path, error: OSError) -> str:
    """Return why the file for the trial's messages could not be opened.

    Args:
        stderr: The file.
        error: The error of `open_messages`.
    """
    if isinstance(error, FileExistsError):
        return str(error)
    return f"{stderr.parent} cannot be written: set LOGDIR to a writable folder with room in it"


def main() -> int:
    """Run the trial and return its exit status, which the module's docstring lists.

    If the trial failed, the reason is written in one line to stderr and into the pipe --reason.
    """
    args = arguments()
    trial = Trial(args)
    on_signals(trial.on_signal)  # before the next line, from which on Linux may send SIGHUP
    end_with_parent(signal.SIGHUP)
    if os.getppid() != args.launcher:  # the launcher was killed before the line above took effect
        trial.on_signal(signal.SIGHUP, None)
    begin = time.monotonic()
    try:
        messages = open_messages(trial.stderr)
    except OSError as error:
        reason = reason_of_refusal(trial.stderr, error)
        report(args.reason, reason)
        print(f"error: {reason}", file=sys.stderr)
        return STATUS_OF_REFUSAL

    with messages:
        status = trial.run(messages)
        if trial.is_done(status) and trial.signal is None:
            return 0
        status = status or 1  # mpirun may end with 0 though the trial was stopped, or is not done
        reason = end_failed(trial, status, begin)
        if status == STATUS_OF_REFUSAL and trial.signal is None:
            trial.remove_messages_if_said()  # still locked, so that they are no other job's
    files = f" (log {args.result}, messages {trial.stderr})" if args.result.exists() else ""
    print(f"error: {reason}{files}", file=sys.stderr)
    report(args.reason, reason)
    if trial.signal is not None:
        return 128 + trial.signal
    return STATUS_OF_REFUSAL if status == STATUS_OF_REFUSAL else 1


if __name__ == "__main__":
    sys.exit(main())
