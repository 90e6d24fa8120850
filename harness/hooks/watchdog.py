"""Ends a run that hangs, with the stacks of all its ranks, and notices a clock that was set.

A rank that makes no progress within the limit writes its threads' stacks to stderr and exits, which makes mpirun end
the others. As one rank that stands still soon stops all of them, each rank waits GRACE_S before it exits, in which
the others write theirs. Should the interpreter itself be stuck, faulthandler's own thread does the same in C.

Time to the end of a hung run: the limit, plus TICK_S at most, plus GRACE_S; stuck in the interpreter, GRACE_S more.
"""

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from runlog.digits import six_digits

GRACE_S = 5.0
TICK_S = 1.0


class Watchdog:
    """Watches this process; `beat` says that it makes progress."""

    def __init__(self) -> None:
        """Prepare to watch; nothing is watched before `start`."""
        self.doing = "starting"  # in words, for a message
        # The limit counts from the last progress; where that has extra time, from the end of the extra time.
        self._limit_counts_from_s = time.monotonic()

    def beat(self, doing: str, *, extra_s: float = 0.0) -> None:
        """Note that this process has made progress, and what it does next.

        Args:
            doing: What comes next, such as "reading the input of step 5", for a message.
            extra_s: Seconds that it may take beyond the limit.
        """
        self.doing = doing
        self._limit_counts_from_s = time.monotonic() + extra_s

    def start(self, limit_s: float, *, rank: int, node: str) -> None:
        """Watch this process from now on, in a thread, and end it if it makes no progress.

        Args:
            limit_s: Seconds without a call of `beat` after which the process is ended; 0: nothing is watched.
            rank: Number of this rank, for the message.
            node: Name of this host, for the message.
        """
        if limit_s:
            self.beat(self.doing)
            threading.Thread(target=self._watch, args=(limit_s, rank, node), name="watchdog", daemon=True).start()

    def _watch(self, limit_s: float, rank: int, node: str) -> None:
        """Look every TICK_S whether the process makes progress; if it does not, end it with its stacks on stderr.

        This is the body of the watchdog's thread, and lasts as long as the process. The thread cannot run while the
        interpreter itself is stuck; the fallback timer, which is in C, then ends the process a little later.

        Args:
            limit_s: Seconds within which `beat` must be called again, beyond the extra time that its last call asked
                for.
            rank: Number of this rank, for the message.
            node: Name of this host, for the message.
        """
        while True:
            self._restart_fallback_timer(limit_s)
            time.sleep(TICK_S)
            if self._seconds_left(limit_s) < 0:
                self._end_process(limit_s, rank, node)

    def _restart_fallback_timer(self, limit_s: float) -> None:
        """Start a timer that ends the process where the watchdog's thread cannot; it replaces an earlier one.

        That thread does not run while the interpreter itself is stuck, but faulthandler's timer is in C. It leaves the
        thread time to end the process first: up to a tick until it looks, and GRACE_S for the end.

        Args:
            limit_s: Seconds without progress after which the process is to end.
        """
        longest_s = max(limit_s, self._seconds_left(limit_s))  # more than the limit during a beat's extra time
        faulthandler.dump_traceback_later(longest_s + TICK_S + GRACE_S, exit=True)

    def _seconds_left(self, limit_s: float) -> float:
        """Return the seconds in which the process must make progress; below 0 if they are over.

        Args:
            limit_s: Seconds without progress that are allowed.
        """
        return self._limit_counts_from_s + limit_s - time.monotonic()

    def _end_process(self, limit_s: float, rank: int, node: str) -> NoReturn:
        """Write to stderr that this rank hangs, and the stacks of its threads; end the process with status 1.

        As soon as this process has ended, mpirun ends the other ranks, which hang, too. So this process first waits
        GRACE_S seconds, in which the other ranks can write their stacks.

        Args:
            limit_s: Seconds without progress that were allowed, for the message.
            rank: Number of this rank, for the message.
            node: Name of this host, for the message.
        """
        sys.stderr.write(
            f"error: rank {rank} on {node} hangs: no progress for {six_digits(limit_s)} s while {self.doing}\n"
        )
        _write_stacks(rank)
        time.sleep(GRACE_S)  # meanwhile the other ranks write their stacks
        os._exit(1)


def _write_stacks(rank: int) -> None:
    """Write the stacks of all threads of this process to stderr, with the rank before each line.

    Args:
        rank: Number of this rank.
    """
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        sys.stderr.write("".join(f"[rank {rank}] {line}" for line in file))
    sys.stderr.flush()


WATCHDOG = Watchdog()  # of this process, as faulthandler is


class _Reading(NamedTuple):
    """A reading of the two clocks."""

    steady_s: float
    offset_s: float  # the wall clock's time less the steady clock's
    took_s: float


class Clock:
    """Compares the system's clock, which a log's times are by, with the monotonic one, which durations are by."""

    MIN_AHEAD_S = 0.1  # of a setting; more would contradict the durations of a short epoch on GPUs
    MIN_BACK_S = 1.0  # less leaves the run's time right but for that
    MAX_SLEW = 0.001  # of the time between two calls; NTP slews by 0.0005 s a second
    LONGEST_PAUSE_S = MIN_AHEAD_S / 10  # in a reading; the offset is then wrong by half of it at most
    MAX_READINGS = 5

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._last = self._read()

    def _read(self) -> _Reading:
        """Read the two clocks; the offset between them changes when the wall clock is set.

        If the process is paused while it reads the clocks, the offset may be wrong, and look as if the clock was set.
        So the clocks are read again if that took LONGEST_PAUSE_S or more. After MAX_READINGS the quickest one counts.
        """
        readings = []
        for _ in range(self.MAX_READINGS):
            readings.append(self._read_once())
            if readings[-1].took_s < self.LONGEST_PAUSE_S:
                break
        return min(readings, key=lambda reading: reading.took_s)

    def _read_once(self) -> _Reading:
        """Read the wall clock between two readings of the steady one, and compare it with their mean."""
        before_s = self._steady()
        wall_s = self._wall()
        after_s = self._steady()
        mean_steady_s = (before_s + after_s) / 2
        return _Reading(steady_s=mean_steady_s, offset_s=wall_s - mean_steady_s, took_s=after_s - before_s)

    def set_by_s(self) -> float:
        """Return the seconds by which the system's clock was set since the last call.

        Returns:
            Seconds, below 0 if it was set back; the first call counts from the creation of this object. 0 if it was set
            ahead by less than MIN_AHEAD_S or back by less than MIN_BACK_S, or in a long time by less than NTP's
            small corrections may add up to.
        """
        before = self._last
        self._last = self._read()
        moved_s = self._last.offset_s - before.offset_s
        least_s = self.MIN_AHEAD_S if moved_s > 0 else self.MIN_BACK_S
        most_slew_s = self.MAX_SLEW * (self._last.steady_s - before.steady_s)
        return moved_s if abs(moved_s) >= max(least_s, most_slew_s) else 0.0
