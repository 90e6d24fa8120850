"""Printed rows, found in a log's lines, and the numbers in them."""

import datetime
import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scoring.importers.lines import Lines
from scoring.record import Window

MAX_ROW_CHARS = 2_048  # no row is longer; a search over more could take very long
HALF_ROW_LINES = 5  # a row that foreign text broke in two goes on within so many lines

NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?|-?nan|-?inf)"  # as any of the tools may print one
_LEAST, _MOST = 1e-9, 1e12  # no rate and no time lies beyond

Row = tuple[int, str, "list[str | None] | None"]  # number of a line, its text, what a row in it says


@dataclass(frozen=True)
class RowPattern:
    """A printed row: a head, and behind it fields in any order, each a pattern of one group."""

    head: re.Pattern[str]
    needed: tuple[re.Pattern[str], ...]  # without one of them it is no row
    others: tuple[re.Pattern[str], ...] = ()

    def search(self, text: str) -> list[str | None] | None:
        """The groups of the head, then of the fields; None where `text` holds no row."""
        head = self.head.search(text)
        if head is None:
            return None
        values = list(head.groups())
        for field in (*self.needed, *self.others):
            found = field.search(text, head.end())
            if found is None and field in self.needed:
                return None
            values.append(found and found[1])
        return values


def field(before: str, after: str = "") -> re.Pattern[str]:
    """A number between two patterns; where `before` starts with plain text the search for it is fast."""
    return re.compile(before + NUMBER + after)


def rows(lines: Lines, marker: str, tool: str, pattern: RowPattern) -> Iterator[Row]:
    """Each line as (number, text, values of the row in it or None).

    `marker` stands at the start of every row and in little else, `tool` in every line of the tool's. Two rows on one
    line come out as two; a row that foreign text broke off is joined with one of the next few lines, if that is none
    of the tool's. Where several ranks print rows, those of the lowest rank count.
    """
    broken: tuple[int, str] | None = None
    for number, line in lines.of_lowest_rank(marker):
        if marker in line:
            one = len(line) <= MAX_ROW_CHARS and line.count(marker) == 1
            for text in (line,) if one else _pieces(line, pattern.head):
                values = pattern.search(text)
                if values is not None:
                    lines.row(number)
                yield number, text, values
            is_half = values is None and len(text) < MAX_ROW_CHARS and pattern.head.search(text)
            broken = (number, text) if is_half else None
            continue
        if broken is not None:
            joined = f"{broken[1]} {line}"[:MAX_ROW_CHARS]
            if tool not in line and (values := pattern.search(joined)) is not None:
                lines.row(broken[0])
                yield broken[0], joined, values
                broken = None
                continue
            if number - broken[0] >= HALF_ROW_LINES:
                broken = None
        lines.start(number, line)
        yield number, line, None


def _pieces(line: str, head: re.Pattern[str]) -> list[str]:
    """The line, cut where rows start in it; no piece is longer than a row can be."""
    starts = [found.start() for found in head.finditer(line)] or [0]
    ends = [*starts[1:], len(line)]
    return [line[start : min(end, start + MAX_ROW_CHARS)] for start, end in zip(starts, ends, strict=True)]


def work(windows: Sequence[Window]) -> list[int]:
    """What each weighs in a mean over time: its steps, where all say them, else all alike."""
    steps = [window.steps for window in windows if window.steps]
    return steps if len(steps) == len(windows) else [1] * len(windows)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """As statistics.fmean with weights, which Python has from 3.11 on."""
    return math.fsum(map(operator.mul, values, weights)) / math.fsum(weights)


def wait_within(wait_s: float | None, seconds: float | None) -> float | None:
    """The wait of a window of `seconds`; None for a garbled one: no step waits longer than it takes."""
    return wait_s if wait_s is None or seconds is None or 0 <= wait_s <= seconds * 1.01 else None


def moment_s(text: str | None) -> float | None:
    """A local `Y-M-D h:m:s` (Y/M/D; `.` or `,` before a fraction) or a Unix time, in seconds since a fixed origin."""
    if text is None or " " not in text:
        return number(text)
    try:
        *date, hour, minute, second = re.split("[-/ :]", text.replace(",", "."))
        day = datetime.date(*map(int, date)).toordinal()
        return day * 86400.0 + int(hour) * 3600 + int(minute) * 60 + float(second)
    except (ValueError, TypeError):
        return None


def number(text: str | None) -> float | None:
    """The number, NaN included; None where the text is none ("None", "-", a garbled one)."""
    try:
        return float(text or "")
    except ValueError:
        return None


def positive(text: str | None) -> float | None:
    """A rate or a time as printed; None for what cannot be one (0, negative, nan, inf, absurd, garbled)."""
    value = number(text)
    return value if value is not None and _LEAST < value < _MOST else None


def integer(text: str | None) -> int | None:
    """The whole number; None where the text is none, or one beyond any count here."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
