"""Verdicts: a check, its status, what was found, what was wanted, what to do; and their form as text and JSON."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runlog.json_types import JsonObject
from runlog.text import visible

# The one vocabulary, from good to bad. UNKNOWN: it could not be checked here, so it never counts as passed.
OK, UNKNOWN, WARNING, FATAL = STATUSES = ("ok", "unknown", "warning", "fatal")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One check of a machine, a run, a figure or a package."""

    check: str  # its stable name
    status: str  # one of STATUSES
    found: str  # with figures and units, or why there is none
    wanted: str = ""  # what is ok, and why
    fix: str = ""  # what to do; empty if ok
    where: str = ""  # a file and line, a rank, a node, a precision
    figures: Mapping[str, Any] = field(default_factory=dict)  # name with its unit: value

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self.status

    def as_dict(self) -> JsonObject:
        """Return the fields by name, for JSON; `where` and `figures` only if there are any."""
        fields = dataclasses.asdict(self)
        for optional in ("where", "figures"):
            if not fields[optional]:
                del fields[optional]
        return fields


def judged(
    check: str, good: bool, found: str, wanted: str = "", fix: str = "", *, bad: str = FATAL, **more: Any
) -> Verdict:
    """Return the verdict of a check: ok, or not ok with what to do.

    Args:
        check: Stable name of the check.
        good: Whether what was found is ok.
        found: What was found, with figures and units.
        wanted: What would be ok, and why.
        fix: What to do if it is not ok. It is left out of a verdict that is ok.
        bad: The status if it is not ok: one of STATUSES, mostly FATAL or WARNING.
        **more: The fields `where` and `figures` of the verdict, if it has them.
    """
    if good:
        return Verdict(check=check, status=OK, found=found, wanted=wanted, **more)
    return Verdict(check=check, status=bad, found=found, wanted=wanted, fix=fix, **more)


def worst(verdicts: Iterable[Verdict]) -> str:
    """Return the worst status of some verdicts: "ok", "unknown", "warning" or "fatal", from good to bad.

    Args:
        verdicts: The verdicts. Without any, the status is "ok".
    """
    return worst_status(verdict.status for verdict in verdicts)


def worst_status(statuses: Iterable[str]) -> str:
    """Return the worst of some statuses; ok if there are none."""
    return max(statuses, key=STATUSES.index, default=OK)


def as_json(verdicts: Iterable[Verdict]) -> str:
    """Return verdicts as a JSON list of objects with `check`, `status`, `found`, `wanted` and `fix`.

    Args:
        verdicts: The verdicts. An object has `where` and `figures` only if they are not empty.

    Returns:
        The text, with a line feed at its end.
    """
    return json.dumps([verdict.as_dict() for verdict in verdicts], indent=2) + "\n"


def as_text(verdicts: Iterable[Verdict]) -> str:
    """Return the verdicts of several checks as text for a terminal, each a line of aligned columns.

    No line is wrapped. Below a verdict that is not ok, further lines say what was wanted and what to do:

        ok     memory  64 GiB
        fatal  disk    2 GiB
               wanted: 100 GiB
               do: free some space

    Args:
        verdicts: The verdicts, in the order in which they are shown.

    Returns:
        The text, with a line feed at the end of each line; empty without verdicts.
    """
    shown = list(verdicts)  # because an iterator could be gone through only once
    status_width = _widest(verdict.status for verdict in shown)
    check_width = _widest(verdict.check for verdict in shown)
    where_width = _widest(visible(verdict.where) for verdict in shown)
    margin = " " * (status_width + len("  "))  # up to the column of the checks
    lines = []
    for verdict in shown:
        columns = [verdict.status.ljust(status_width), verdict.check.ljust(check_width)]
        if where_width > 0:  # at least one verdict says where it was found
            columns.append(visible(verdict.where).ljust(where_width))
        columns.append(visible(verdict.found))
        lines.append("  ".join(columns).rstrip())
        lines += [f"{margin}{line}" for line in _lines_below(verdict)]
    return "".join(f"{line}\n" for line in lines)


def _widest(texts: Iterable[str]) -> int:
    """Return the number of characters of the longest text; 0 without texts."""
    return max((len(text) for text in texts), default=0)


def _lines_below(verdict: Verdict) -> list[str]:
    """Return what was wanted by a check and what to do, each as a line.

    Args:
        verdict: The verdict. One that is ok has no such lines.
    """
    lines: list[str] = []
    if verdict.status == OK:
        return lines
    if verdict.wanted:
        lines.append(f"wanted: {visible(verdict.wanted)}")
    if verdict.fix:
        lines.append(f"do: {visible(verdict.fix)}")
    return lines
