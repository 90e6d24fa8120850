"""Printed rows, found in a log's lines, and the numbers in them."""

import datetime
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scoring.importers.lines import Lines
from scoring.record import Window

MAX_ROW_CHARS = 2_048  # no row is longer; a search over more could take very long
HALF_ROW_LINES = 5  # the second half of a row that foreign text broke in two follows within so many lines

NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?|-?nan|-?inf)"  # as any of the tools may print one
_LEAST, _MOST = 1e-9, 1e12  # no rate and no time lies beyond

Values = list["str | None"]  # of a row's groups, as printed


class Row(NamedTuple):
    """A line of the log; `values` are those of the row in it, None where it holds no row."""

    line: int
    text: str
    values: Values | None


@dataclass(frozen=True)
class RowPattern:
    """The pattern of a printed row: a head, and behind it fields in any order, each a pattern of one group."""

    head: re.Pattern[str]
    needed: tuple[re.Pattern[str], ...]  # a text without one of them is no row
    others: tuple[re.Pattern[str], ...] = ()

    def search(self, text: str) -> Values | None:
        """Return the values of the row in `text`; None where `text` holds no row.

        A row has the head, and each of the needed fields somewhere behind it. The values are the head's groups, then
        one for each needed field, then one for each other field, which is None where that field is missing.
        """
        head = self.head.search(text)
        if head is None:
            return None

        values: Values = list(head.groups())
        for pattern in self.needed:
            match = pattern.search(text, head.end())
            if match is None:
                return None
            values.append(match[1])
        for pattern in self.others:
            match = pattern.search(text, head.end())
            values.append(match[1] if match else None)
        return values


def field(before: str, after: str = "") -> re.Pattern[str]:
    """Return the pattern of a number between two patterns.

    The search is fast where `before` starts with plain text.
    """
    return re.compile(before + NUMBER + after)


def rows(lines: Lines, marker: str, tool: str, pattern: RowPattern) -> Iterator[Row]:
    """Yield each line of the log, with the values of the printed row in it where it holds one.

    `marker` is a text at the start of every printed row and in little else; `tool` is one in every line that the
    logging tool prints. Two rows on one line are yielded as two. Where several ranks print rows, only those of the
    lowest rank are yielded. `lines` is told of each row, and of each other line, which may be the start of a run.

    Another process may write into the midst of a row, whose second half then follows some lines later. The line with a
    first half is yielded without values. If one of the next HALF_ROW_LINES lines completes it, the joined row is
    yielded in the place of that line, with the number of the first half. A line that the logging tool printed itself
    completes none.
    """
    first_half: Row | None = None
    for number, line in lines.of_lowest_rank(marker):
        if marker in line:
            row_texts = _cut_at_rows(line, marker, pattern.head)
            rows_of_line = [Row(number, text, pattern.search(text)) for text in row_texts]
            for row in rows_of_line:
                if row.values is not None:
                    lines.note_row(number)
                yield row
            last_row = rows_of_line[-1]
            first_half = last_row if _is_first_half(last_row, pattern.head) else None
            continue

        if first_half is not None:
            joined_row = None
            if tool not in line:
                joined_row = _joined(first_half, line, pattern)
            if joined_row is not None:
                lines.note_row(joined_row.line)
                yield joined_row
                first_half = None
                continue
            if number - first_half.line >= HALF_ROW_LINES:
                first_half = None

        lines.look_for_start(number, line)
        yield Row(number, line, None)


def _joined(first_half: Row, line: str, pattern: RowPattern) -> Row | None:
    """Return the row that the first half of a broken row and a later line make together; None where they make none."""
    text = f"{first_half.text} {line}"[:MAX_ROW_CHARS]
    values = pattern.search(text)
    if values is None:
        return None
    return Row(first_half.line, text, values)


def _cut_at_rows(line: str, marker: str, head: re.Pattern[str]) -> list[str]:
    """Return the line, cut where rows start in it; no piece is longer than a row can be."""
    if len(line) <= MAX_ROW_CHARS and line.count(marker) == 1:
        return [line]

    starts = [match.start() for match in head.finditer(line)] or [0]
    ends = [*starts[1:], len(line)]
    return [line[start : min(end, start + MAX_ROW_CHARS)] for start, end in zip(starts, ends, strict=True)]


def _is_first_half(row: Row, head: re.Pattern[str]) -> bool:
    """Tell whether a line has the head of a row but not its fields, which may then stand on a later line."""
    return row.values is None and len(row.text) < MAX_ROW_CHARS and head.search(row.text) is not None


def total(windows: Iterable[Window], field: str) -> float:
    """Return the sum of one field over windows; a window without it counts as 0."""
    return math.fsum(getattr(window, field) or 0.0 for window in windows)


def lines_in_words(windows: Sequence[Window]) -> str:
    """Return which lines of the log windows are of: `lines 12 to 480`."""
    return f"lines {windows[0].line} to {windows[-1].line}"


def steps_as_weights(windows: Sequence[Window]) -> list[int]:
    """Return the weight of each window in a mean over time: its steps, or 1 for each where not all say their steps."""
    steps = [window.steps for window in windows if window.steps]
    return steps if len(steps) == len(windows) else [1] * len(windows)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of `values` with `weights` (statistics.fmean takes weights from Python 3.11 on)."""
    return math.fsum(map(operator.mul, values, weights)) / math.fsum(weights)


def wait_within(wait_s: float | None, seconds: float | None) -> float | None:
    """Return the wait of a window of `seconds`; None where it is garbled, as no step waits longer than it takes."""
    if wait_s is None or seconds is None:
        return wait_s
    return wait_s if 0 <= wait_s <= seconds * 1.01 else None


def moment_s(text: str | None) -> float | None:
    """Return a printed moment in seconds since an origin that is the same for all moments of one form; None if garbled.

    The two forms are a Unix time, and a local time `2024-05-01 12:30:00,25`: the date may have `/` for `-`, the
    fraction of a second `.` for `,`. A text of None gives None.
    """
    if text is None or " " not in text:
        return number(text)
    try:
        year, month, day, hour, minute, second = re.split("[-/ :]", text.replace(",", "."))
        days = datetime.date(int(year), int(month), int(day)).toordinal()
        return days * 86400.0 + int(hour) * 3600 + int(minute) * 60 + float(second)
    except (ValueError, TypeError):
        return None


def number(text: str | None) -> float | None:
    """Return the number, which may be NaN; None where the text is none ("None", "-", a garbled one)."""
    try:
        return float(text or "")
    except ValueError:
        return None


def positive(text: str | None) -> float | None:
    """Return a printed rate or time; None for what cannot be one (0, negative, nan, inf, absurd, garbled)."""
    value = number(text)
    return value if value is not None and _LEAST < value < _MOST else None


def integer(text: str | None) -> int | None:
    """Return the whole number; None where the text is none, or one beyond any count here."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) >= 10:
        return None
    return int(text)
