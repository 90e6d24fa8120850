"""Text from logs, made safe to show: in a terminal, a page, Markdown and a spreadsheet."""

from __future__ import annotations

import math
import re


def visible(value: object, limit: int = 600) -> str:
    """`value` as one line: what does not print (control characters, reversed writing) is escaped; cut at `limit`."""
    text = str(value)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit:,} more characters)"


def number(value: float | None, absent: str = "not measured") -> str:
    """Four to six digits of a figure, with separators; `absent` for None."""
    if value is None:
        return absent
    if not math.isfinite(value):
        return "did not converge" if value == math.inf else "not a number"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.1f}"
    if size >= 10:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 1 else f"{value:.4g}"


def percent(share: float | None, absent: str = "not measured") -> str:
    """A share as a percentage."""
    return absent if share is None else f"{share:.2%}" if abs(share) < 0.1 else f"{share:.1%}"


def interval(bounds: tuple[float, float] | None, absent: str = "none") -> str:
    """Both ends of an interval."""
    return absent if bounds is None else f"{number(bounds[0])} to {number(bounds[1])}"


_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~&]|:(?=//)|(?<=www)\.)")  # with what makes a link of a bare address


def markdown(value: object) -> str:
    """Plain text as Markdown that shows just it."""
    return _MARKDOWN.sub(r"\\\1", visible(value))


def cell(value: object) -> object:
    """A value of a CSV file: text that a spreadsheet would take as a formula gets an apostrophe before it."""
    if not isinstance(value, str):
        return value
    text = visible(value, limit=4096)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
