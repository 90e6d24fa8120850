"""Figures and texts as a page and Markdown show them."""

import math
import re
from collections.abc import Iterable

from runlog.text import visible


def number(value: float) -> str:
    """Four to six digits of a figure, with separators."""
    if not math.isfinite(value):
        return "did not converge" if value == math.inf else "not a number"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.1f}"
    if size >= 10:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 1 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{share:.2%}" if abs(share) < 0.1 else f"{share:.1%}"


def interval(bounds: tuple[float, float] | None) -> str:
    """Both ends of an interval."""
    return "none" if bounds is None else f"{number(bounds[0])} to {number(bounds[1])}"


def bounds(values: Iterable[float]) -> str:
    """The least and the greatest."""
    ordered = sorted(values)
    return interval((ordered[0], ordered[-1]))


def counted(count: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {noun}{'s' * (count != 1)}"


_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~&]|:(?=//)|(?<=www)\.)")  # with what makes a link of a bare address


def markdown(value: object) -> str:
    """Plain text as Markdown that shows just it."""
    return _MARKDOWN.sub(r"\\\1", visible(value))
