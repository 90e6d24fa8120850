"""Figures and texts as a page and Markdown show them."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from runlog.digits import four_digits, percent
from runlog.text import visible


def number(value: float) -> str:
    """Format a number for display in a report, rounded to a precision that suits its size.

    For example, 12345.6 becomes "12,345.6", 45.678 becomes "45.68" and 0.45678 becomes "0.4568".

    Args:
        value: The number to format. Infinity stands for the training time of a run that never reached its target
            quality.

    Returns:
        The number as text; "did not converge" for infinity, and "not a number" for minus infinity or NaN.
    """
    if value == math.inf:
        return "did not converge"
    if not math.isfinite(value):
        return "not a number"
    size = abs(value)
    if size >= 1000:
        return format(value, ",.1f")
    if size >= 10:
        return format(value, ".2f")
    if size >= 1:
        return format(value, ".3f")
    return four_digits(value)


def short_percent(share: float) -> str:
    """Return a share as a percentage, with two decimals below 10 % and one above: 0.0312 gives "3.12%".

    Args:
        share: The share, where 1 means 100 %.
    """
    return percent(share, decimals=2 if abs(share) < 0.1 else 1)


def efficiency_in_words(efficiency: float | None) -> str:
    """Return a scaling efficiency as a percentage; words instead if there is none.

    Args:
        efficiency: Speedup over a smaller number of devices, divided by how many times as many devices there are: 0.9
            means 90 %. None if it is too high to be true.
    """
    if efficiency is None:
        return "no figure: at most 100 %"
    return short_percent(efficiency)


def interval_in_words(bounds: tuple[float, float] | None) -> str:
    """Return an interval in words, such as "9.812 to 9.934".

    Args:
        bounds: Its lower and upper bound; None for no interval, which gives "none".
    """
    if bounds is None:
        return "none"
    low, high = bounds
    return f"{number(low)} to {number(high)}"


def range_in_words(values: Iterable[float]) -> str:
    """Return the lowest and the highest of the values in words: `9.812 to 9.934`. There must be at least one value."""
    ordered = sorted(values)
    return interval_in_words((ordered[0], ordered[-1]))


class TimeUnit(NamedTuple):
    """A unit of time: its seconds and its name."""

    seconds: float
    name: str


def time_unit(longest_s: float) -> TimeUnit:
    """Return the unit in which times are shown: hours from 3 hours, minutes from 5 minutes, else seconds.

    Args:
        longest_s: The longest of the times that are shown together, in seconds.
    """
    if longest_s >= 3 * 3600:
        return TimeUnit(3600.0, "h")
    if longest_s >= 300:
        return TimeUnit(60.0, "min")
    return TimeUnit(1.0, "s")


def duration_in_words(seconds: float) -> str:
    """Return a duration in the unit that suits it: 1872.0 s -> "31.20 min"."""
    unit = time_unit(seconds)
    return f"{number(seconds / unit.seconds)} {unit.name}"


_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~&]|:(?=//)|(?<=www)\.)")  # with what makes a link of a bare address


def markdown(value: object) -> str:
    """Return plain text as Markdown that shows exactly this text."""
    return _MARKDOWN.sub(r"\\\1", visible(value))
