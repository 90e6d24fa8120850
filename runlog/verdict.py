"""A thing that was checked: its status, what was found, what was wanted, what to do; and how several are shown."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def as_dict(self) -> dict[str, Any]:
        """What JSON says of it; `where` and `figures` only where there are any."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value or name not in ("where", "figures")}


def judged(
    check: str, good: bool, found: str, wanted: str = "", fix: str = "", *, bad: str = FATAL, **more: Any
) -> Verdict:
    """Ok, or `bad` with what to do; `more` are `where` and `figures`."""
    status, fix = (OK, "") if good else (bad, fix)
    return Verdict(check=check, status=status, found=found, wanted=wanted, fix=fix, **more)


def worst(verdicts: Iterable[Verdict]) -> str:
    """The worst status of all; ok of none."""
    return max((verdict.status for verdict in verdicts), key=STATUSES.index, default=OK)


def as_json(verdicts: Iterable[Verdict]) -> str:
    """A list of objects: {check, status, found, wanted, fix}, and {where, figures} where there are any."""
    return json.dumps([verdict.as_dict() for verdict in verdicts], indent=2) + "\n"


def as_text(verdicts: Iterable[Verdict]) -> str:
    """A table of lines; below each that is not ok what was wanted and what to do. Never wrapped nor padded behind."""
    shown = list(verdicts)
    head = [(v.status, v.check, visible(v.where)) for v in shown]
    widths = [max((len(row[i]) for row in head), default=0) for i in range(3)]
    lines = []
    for verdict, row in zip(shown, head, strict=True):
        columns = [text.ljust(width) for text, width in zip(row, widths, strict=True) if width]
        lines.append("  ".join([*columns, visible(verdict.found)]).rstrip())
        if verdict.status != OK:
            more = (("wanted", verdict.wanted), ("do", verdict.fix))
            lines += [f"{' ' * widths[0]}  {name}: {visible(text)}" for name, text in more if text]
    return "\n".join(lines) + "\n" if lines else ""
