"""Ends processes with those that started them: by Linux as a parent dies, or all that this one started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own: none escapes end_descendants."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals) -> None:
    """Has Linux send this process a signal when its parent dies, whatever it dies of; kept over an exec."""
    _prctl(PR_SET_PDEATHSIG, number)


def parent_of(pid: int) -> int:
    """Of a living process; 0 where there is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
        return 0 if state == "Z" else int(parent)
    return 0


def descendants(pid: int) -> Iterator[int]:
    """Every living process under `pid`, parents first."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        children.setdefault(parent_of(int(process.name)), []).append(int(process.name))
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
