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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from harness.processes import LAUNCHER_ENDED, SENT_TO_RANKS, ancestors, end_with_parent, is_alive, on_signals
from launch.times import TIMES
from runlog.writer import close_for_dead

# What a rank says that only lost another one: it is not to blame.
LOST_PEER = re.compile(
    r"connection (reset|closed|refused)|broken pipe|socket closed|closed the connection|remote process|peer"
    r"|nccl.*(remote|unhandled system) error|gloo.*(timed? ?out|enforce)",
    re.IGNORECASE,
)
NO_MORE_PROCESSES = re.compile(r"can't start new thread|BlockingIOError: \[Errno 11\]|pthread_create failed")
ENDED = re.compile(r"process rank \d+ with PID \d+ on node \S+ exited on signal (\d+) \([^)]*\)")
OF_A_LOSS = {signal.SIGABRT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP}  # signals by which such a rank may end


def memory_kills() -> int:
    """Processes that this node's kernel has ended for want of memory."""
    found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    return int(found[1]) if found else 0


WINDOWS_TO_END = 2  # of steps: the one under way, and as long again for what is saved after it
WINDOW = re.compile(r'"key": "step_window", "value": \{[^}]*"time_s": ([\d.]+)')


def longest_window_s(result: Path) -> float:
    """Return the seconds of the longest window of steps in a log; 0 where it has none yet."""
    try:
        text = result.read_text(errors="replace")
    except OSError:
        return 0.0
    return max((float(seconds) for seconds in WINDOW.findall(text)), default=0.0)


def time_to_end_s(result: Path, *, nodes: int, in_container: bool) -> float:
    """Return how long the ranks may take to end after a signal: to the end of a window, and to save a checkpoint.

    It is LAST_WINDOW_S, or longer where windows are longer and nothing above this process kills it meanwhile, as the
    engine of a container does, and the launcher of several nodes.
    """
    if nodes > 1 or in_container:
        return float(TIMES["LAST_WINDOW_S"])
    return max(TIMES["LAST_WINDOW_S"], WINDOWS_TO_END * longest_window_s(result))


def take(stderr: Path) -> IO[bytes]:
    """The trial's file of messages, made new and locked: its name is the trial's.

    Raises FileExistsError where it is another job's, or no plain file; OSError where the folder cannot be written.
    """
    stderr.parent.mkdir(parents=True, exist_ok=True)
    if stderr.is_symlink() or (stderr.exists() and not stderr.is_file()):
        raise FileExistsError(f"{stderr} is a link, or no plain file: remove it, or set LOGDIR")
    # One that is there is of a trial that ended before it had a log, or of a job under way.
    messages = os.fdopen(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644), "wb")
    try:
        fcntl.flock(messages, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        messages.close()
        said = f"{stderr} is of another job, which is at work there: wait for it, or set LOGDIR"
        raise FileExistsError(said) from None
    messages.truncate(0)
    return messages


class Trial:
    """mpirun, what it was asked, and why it ended."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.result: Path = args.result
        self.stderr = self.result.with_suffix(".stderr")
        self.signal: signal.Signals | None = None
        self.above = ancestors()  # trials.sh, and what started it
        self.deadline = float("inf")
        self.mpirun: subprocess.Popen[bytes] | None = None
        self.kills_before = memory_kills()

    def on_signal(self, number: int, _frame: object) -> None:
        """Asks the ranks to end; those with something to save do so."""
        if self.signal is None:
            in_container = bool(os.environ.get("IMAGE_DIGEST"))
            limit_s = time_to_end_s(self.result, nodes=self.args.nodes, in_container=in_container)
            self.deadline = time.monotonic() + limit_s
        self.signal = self.signal or signal.Signals(number)
        if self.mpirun is not None:
            sent = SENT_TO_RANKS[signal.Signals(number)]
            if number == signal.SIGHUP and self.killed():
                sent = LAUNCHER_ENDED
            self.mpirun.send_signal(sent)

    def run(self, messages: IO[bytes]) -> int:
        """mpirun's exit status, or 128 + the signal that it was ended by."""
        # A rank that is killed leaves its segments in the node's memory; other nodes' are gone with their container.
        settings, segments = dict(os.environ), ""
        if self.args.nodes == 1:
            with contextlib.suppress(OSError):
                segments = tempfile.mkdtemp(prefix=f"ranks.{os.getppid()}.", dir="/dev/shm")  # or trials.sh removes it
                settings["OMPI_MCA_btl_sm_backing_directory"] = segments
        self.mpirun = subprocess.Popen(
            self.args.command,
            stdin=subprocess.DEVNULL,
            stderr=messages,
            env=settings,
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
        )
        if self.signal is not None:  # it came before there was an mpirun
            self.on_signal(self.signal, None)
        late = time.monotonic() + self.args.limit if self.args.limit else float("inf")
        while self.mpirun.poll() is None:
            now = time.monotonic()
            if now > self.deadline + TIMES["MPIRUN_END_S"]:
                self.mpirun.kill()
            elif now > min(self.deadline, late):
                self.mpirun.terminate()
            time.sleep(0.1)
        for left in (segments, f"{tempfile.gettempdir()}/ompi.{self.mpirun.pid}"):  # a killed mpirun's own folder too
            shutil.rmtree(left, ignore_errors=True)
        return self.mpirun.returncode if self.mpirun.returncode >= 0 else 128 - self.mpirun.returncode

    def killed(self) -> str:
        """Name the launcher above that was killed; return an empty text where both are still there.

        Linux ends a launcher with the one above it, so of two that are gone the upper one was killed.
        """
        upper_name = "run_and_time.sh" if self.args.nodes == 1 else "launch/nodes.py"
        if len(self.above) > 1 and not is_alive(self.above[1]):
            return f"{upper_name} was killed"
        if os.getppid() != self.above[0]:
            return "launch/trials.sh was killed"
        return ""

    def messages(self) -> str:
        """Return what the ranks and mpirun have written."""
        return self.stderr.read_text(errors="replace") if self.stderr.exists() else ""

    def errors(self) -> list[str]:
        """Return the errors that the ranks wrote, without `error: `."""
        return [line.removeprefix("error: ") for line in self.messages().splitlines() if line.startswith("error: ")]

    def ended(self) -> re.Match[str] | None:
        """Return mpirun's line about a rank that was ended by a signal."""
        return ENDED.search(" ".join(self.messages().split()))  # mpirun breaks its sentence over lines

    def told(self) -> str:
        """The reason that the first node's launcher has, as it lost a node or is being stopped."""
        path = Path(os.environ.get("ABORT_REASON_FILE") or os.devnull)
        return path.read_text().partition("\n")[0] if path.exists() else ""

    def wait_for_word(self) -> None:
        """Where a node was lost or all are being stopped, mpirun may fail before this node hears of it.

        It hears at once by a rank's word, or mpirun's of a rank, and by the end of its own ssh, whose keepalives may be
        one ahead of ours.
        """
        begin = time.monotonic()
        while time.monotonic() < begin + TIMES["ALIVE_S"] + 3 and self.signal is None and not self.told():
            if time.monotonic() > begin + 3 and (self.errors() or self.ended()):
                return
            time.sleep(0.1)

    def reason(self, status: int) -> str:
        """Why it failed, in one line: the kernel's kill, then a signal, a rank's own word, and last a lost peer."""
        if told := self.told():
            return told
        said, errors, ended = self.messages(), self.errors(), self.ended()
        if self.signal is not None:
            killed = self.killed()
            of_ranks = [line for line in errors if line.startswith("stopped by ")]
            if of_ranks:
                return f"{killed}: {of_ranks[0]}" if killed else of_ranks[0]
            return killed or f"stopped by signal {self.signal.name.removeprefix('SIG')}"
        if not self.stderr.exists():
            return f"{self.stderr.parent} was removed during the run"
        number = int(ended[1]) if ended else 0
        if number == signal.SIGKILL and memory_kills() > self.kills_before:
            memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
            return (
                f"out of memory at BATCHSIZE={os.environ.get('BATCHSIZE')}: the kernel of {os.uname().nodename}, which "
                f"has {memory_gib:.2f} GiB (its container may have less), killed a rank: lower BATCHSIZE or DGXNGPU, "
                "or compute the update in parts: STRATEGY=gradient_merge=N"
            )
        if ended and number not in OF_A_LOSS:
            return ended[0] + (": no room in /dev/shm (--shm-size)?" if number == signal.SIGBUS else "")
        advice = ""
        if NO_MORE_PROCESSES.search(said):
            advice = ": raise the limit on processes (ulimit -u, or a container's --pids-limit)"
        if own := [line for line in errors if not LOST_PEER.search(line)] or ([ended[0]] if ended else errors):
            return own[0] + advice
        if 128 < status < 192:
            return f"mpirun was ended by signal {status - 128}"
        if "unable to find network interfaces" in said:
            return "no network interface is up here, and ranks meet over the loopback: ip link set lo up"
        if "MPI_ERRORS_ARE_FATAL" in said:
            return f"a rank was lost, of which another one heard before mpirun did; what it said is in {self.stderr}"
        if self.args.nodes > 1 and not said:
            return f"mpirun ended with status {status}, and no rank said why: it may have lost its connection to a node"
        return f"a rank ended with status {status}; what it said is in {self.stderr}{advice}"

    def done(self, status: int) -> bool:
        """Open MPI 5.0.11's mpirun ends with 0 where it loses a node as the ranks start: only what rank 0 wrote says
        that a run is done. An acceptance whose checks are not possible here has no log, but its lines; a fleet's has
        its record."""
        if status:
            return False
        others = (self.result.with_suffix(suffix) for suffix in (".lines", ".json"))
        if any(path.is_file() and path.stat().st_size for path in others):
            return True
        return self.result.is_file() and b'"key": "run_stop"' in self.result.read_bytes()


def report(pipe: Path, reason: str) -> None:
    """Tell launch/trials.sh why the trial failed, if it is still there to hear."""
    with contextlib.suppress(BrokenPipeError):
        pipe.write_text(reason)


def main() -> int:
    """Run the trial and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="the trial's log, which rank 0 makes")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the job")
    parser.add_argument("--limit", type=float, default=0, help="seconds after which the trial is ended; 0: never")
    parser.add_argument("--launcher", type=int, required=True, help="process id of launch/trials.sh")
    parser.add_argument("--reason", type=Path, required=True, help="pipe that gets why the trial failed")
    parser.add_argument("command", nargs="+", help="mpirun and its words")
    args = parser.parse_args()
    trial = Trial(args)
    on_signals(trial.on_signal)
    end_with_parent(signal.SIGHUP)
    if os.getppid() != args.launcher:  # it was killed before Linux was asked to signal that
        trial.on_signal(signal.SIGHUP, None)
    begin = time.monotonic()
    try:
        messages = take(trial.stderr)
    except OSError as error:
        denied = f"{trial.stderr.parent} cannot be written: set LOGDIR to a writable folder with room in it"
        reason = str(error) if isinstance(error, FileExistsError) else denied
        report(args.reason, reason)
        print(f"error: {reason}", file=sys.stderr)
        return 2
    with messages:
        status = trial.run(messages)
        if trial.done(status) and trial.signal is None:
            return 0
        status = status or 1
        if args.nodes > 1:
            trial.wait_for_word()
        reason = trial.reason(status)
        if args.limit and trial.signal is None and time.monotonic() > begin + args.limit:
            reason = f"it was not done after the {TIMES['ACCEPTANCE_END_S']} s that an acceptance may take"
        try:
            reason = close_for_dead(args.result, reason)
        except OSError as error:
            reason = f"{reason}; the log cannot be closed as aborted: {error.strerror}"
    where = f" (log {args.result}, messages {trial.stderr})" if args.result.exists() else ""
    print(f"error: {reason}{where}", file=sys.stderr)
    report(args.reason, reason)
    if trial.signal is not None:
        return 128 + trial.signal
    return 2 if status == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
