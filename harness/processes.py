"""Ends processes with those that started them: by Linux as a parent dies, or all that this one started."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import TextIO

import psutil

STDOUT, STDERR = 1, 2  # file descriptors
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
# At TERM and INT mpirun kills its ranks, and at HUP it ends. So launch/trial.py sends it another signal, which mpirun
# passes on to the ranks and of which a rank without a handler dies.
SENT_TO_RANKS = {signal.SIGTERM: signal.SIGUSR1, signal.SIGINT: signal.SIGUSR2, signal.SIGHUP: signal.SIGALRM}
LAUNCHER_ENDED = signal.SIGVTALRM  # sent to the ranks where a launcher above launch/trial.py was killed
# {signal that a rank gets: what stopped it}, for the log
STOPPED_BY = {
    signal.SIGTERM: "signal TERM",
    signal.SIGUSR1: "signal TERM",
    signal.SIGUSR2: "signal INT",
    signal.SIGALRM: "signal HUP",
    LAUNCHER_ENDED: "the end of its launcher",
}


def on_signals(handler: object) -> None:
    """Install a handler for the signals by which a job is stopped: SIGTERM, SIGINT and SIGHUP.

    Args:
        handler: A function of the signal's number and the frame, or signal.SIG_IGN or signal.SIG_DFL.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)  # type: ignore[arg-type]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own: none escapes `end_descendants`."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals) -> None:
    """Have Linux send this process a signal when its parent dies, whatever it dies of; this holds over an exec.

    Args:
        number: The signal to be sent.

    Raises:
        OSError: Linux refuses it.
    """
    _prctl(PR_SET_PDEATHSIG, number)


def send_native_output_to_stderr() -> None:
    """Send to stderr what libraries of C and C++ print on stdout; what Python prints stays on stdout.

    mpirun shows a rank's stdout on the terminal, where Paddle would print the stack of an error in C++. Does nothing if
    stdout is closed.
    """
    if sys.stdout is None:  # closed
        return
    sys.stdout.flush()
    sys.stdout = _stdout_by_new_descriptor()  # for Python alone: libraries write to descriptor 1, STDOUT
    os.dup2(STDERR, STDOUT)  # from now on descriptor 1 leads to stderr


def _stdout_by_new_descriptor() -> TextIO:
    """Open stdout by a second descriptor, which still leads there when descriptor 1 leads elsewhere."""
    descriptor = os.dup(STDOUT)
    return open(  # noqa: PTH123 - a descriptor, open to the end of the process
        descriptor, "w", buffering=1, encoding=sys.stdout.encoding, errors=sys.stdout.errors
    )


def ancestors() -> list[int]:
    """Return the process ids of this process's parent and grandparent; of the parent alone where that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [os.getppid(), psutil.Process(os.getppid()).ppid()]
    return [os.getppid()]


def is_alive(pid: int) -> bool:
    """Return whether a process is there and has not ended; one that nobody has waited for yet has ended.

    Args:
        pid: Its process id.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def has_living_child(pid: int) -> bool:
    """Return whether a process has a child that has not ended; False where the process itself is gone.

    Args:
        pid: Its process id.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(is_alive(child.pid) for child in psutil.Process(pid).children())
    return False


def _descendants() -> list[psutil.Process]:
    """List every process below this one that has not ended."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_descendants(grace_s: float) -> None:
    """Ask every process below this one to end, and kill those that have not after some time.

    Args:
        grace_s: Seconds between SIGTERM and SIGKILL. After SIGKILL this waits up to 5 s for the end of all.
    """
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + limit_s
        for process in _descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        while _descendants() and time.monotonic() < deadline:
            time.sleep(0.1)
