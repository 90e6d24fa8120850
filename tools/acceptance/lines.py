"""The checks of each job of an acceptance, and the line that each of them becomes, on all ranks together."""

import dataclasses
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runlog.errors import RunError
from runlog.verdict import FATAL, STATUSES, UNKNOWN, Verdict, as_text

if TYPE_CHECKING:
    from harness.ranks import Ranks  # starts MPI, which the launcher has no use for

LEAVE_S = 60.0  # in which the other ranks leave a check that one rank could not do
# The checks of each job, in the order in which they run: the figures first, as a crash costs the lines after it. A
# capture binds its process, so nothing may come after it.
EACH, LAST = ("losses", "throughput", "memory", "evaluation"), ("captured",)
CHECKS = {
    "fp32": ("sensors", *EACH, "layout", "pooling", "all-reduce", "input", *LAST),
    "tf32": (*EACH, *LAST),
    "amp_o1": (*EACH, *LAST),
    "amp_o2": (*EACH, "pooling", "all-reduce", "input", *LAST),
}


class NotPossible(Exception):
    """The machine lacks what a check needs; the message says what."""


class Lines:
    """The lines of one job, written as they are done; `Lines(None)` is that of every rank but the first."""

    def __init__(self, result: Path | None, precision: str) -> None:
        """`result`: the job's log, beside which the lines are written."""
        self._path, self._precision = result and result.with_suffix(".lines"), precision

    def run(self, me: "Ranks", name: str, check: Callable[[], Verdict]) -> None:
        """Runs a check on all ranks, and notes and prints what it found."""
        started_s = time.monotonic()
        verdict = on_all(me, name, check)
        figures = {**verdict.figures, "took_s": round(time.monotonic() - started_s, 1)}
        verdict = dataclasses.replace(verdict, where=self._precision, figures=figures)
        self.note(verdict.as_dict())
        if self._path:
            print(as_text([verdict]), end="", flush=True)

    def note(self, value: dict[str, Any]) -> None:
        """Appends a line of JSON to the job's file."""
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")


def on_all(me: "Ranks", name: str, check: Callable[[], Verdict]) -> Verdict:
    """What a check found on this rank, or, where a rank could not do it, that on all ranks, once all have left it.

    `me` must have a communicator that the check does not use.

    Raises RunError where a rank failed, and another did not leave the check in time, as one that waits for it: the
    job must end.
    """
    undone = None
    try:
        verdict = check()
    except NotPossible as reason:
        undone = Verdict(check=name, status=UNKNOWN, found=str(reason))
    except Exception as reason:  # noqa: BLE001 - the boundary of a check: its line says what it was
        traceback.print_exc()
        undone = Verdict(check=name, status=FATAL, found=" ".join(str(reason).split()) or type(reason).__name__)
    left, until = me.comm.Ibarrier(), time.monotonic() + LEAVE_S
    while not left.Test():
        if undone and undone.status == FATAL and time.monotonic() > until:
            raise RunError(f"rank {me.rank}: {undone.found}; another rank has not left this check {LEAVE_S:g} s later")
        time.sleep(0.01)
    every = me.gather(undone)
    if not any(every):
        return verdict
    first = max(filter(None, every), key=lambda one: STATUSES.index(one.status))
    if all(every) or first.status == UNKNOWN:
        return first
    return dataclasses.replace(first, found=f"rank {every.index(first)}: {first.found}")
