"""Printed rows, found in a log's lines, and the numbers in them."""

import datetime
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scoring.record import Window

MAX_ROW_CHARS = 2_048  # no row is longer, and a search of a longer text could take very long
HALF_ROW_LINES = 5  # if another process's text breaks a row in two, the second half follows within so many lines

# A number as any of the tools may print one, also in thousands, such as `1,234.5`. A part of `1,2345` or `1,234`, which
# may have a decimal comma, is none, nor is `1e`, whose exponent is cut off; `1.2epoch` has one. In `6.92023-08-03`, a
# date follows without a space, so that no one can tell where the number ends.
_IN_THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3})+\.\d+"
NUMBER = (
    rf"([-+]?(?:{_IN_THOUSANDS}|[\d.]+)(?:[eE][-+]?\d+)?(?![\d.]|[eE](?![A-Za-z])|,\d|[-/]\d\d[-/]\d\d)|-?nan|-?inf)"
)
_STARTS_IN_THOUSANDS = re.compile(rf"[-+]?{_IN_THOUSANDS}")
_MIN_VALUE = 1e-9  # every rate and every time lies between this and the next
_MAX_VALUE = 1e12

CUT = "\x03"  # stands where a text was cut: a number right before it may be half of one
_OF_NUMBERS = tuple("0123456789.")  # characters of a number

Values = list["str | None"]  # of a row's groups, as printed


class Row(NamedTuple):
    """A line of the log, with the values of the printed row in it, or None if it holds no row."""

    line: int
    text: str
    values: Values | None
    is_joined: bool = False  # of two lines between which another process wrote; the first was given without values


@dataclass(frozen=True)
class RowPattern:
    """The pattern of a printed row: a head, then fields in any order. Each field is a pattern with one group."""

    head: re.Pattern[str]
    needed: tuple[re.Pattern[str], ...]  # a text that lacks one of them is not a row
    others: tuple[re.Pattern[str], ...] = ()

    def search(self, text: str) -> Values | None:
        """Return the values that a printed row of training figures holds, or None if the text is no such row.

        Args:
            text: A line of a log, or a part of one.

        Returns:
            The groups of `head`, then one value for each pattern in `needed` and in `others`, which may stand in any
            order behind the head. The value is None for a pattern of `others` that does not match. The result as a
            whole is None if the head or a needed pattern is missing.
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
    """Return a pattern that finds a number between two texts. The number is the group of the pattern.

    Args:
        before: Pattern of what stands before the number. The search is fast if it starts with plain text.
        after: Pattern of what stands behind it.
    """
    return re.compile(before + NUMBER + after)


def rows(
    numbered_lines: Iterable[tuple[int, str]], row_marker: str, whole_line_marker: str, pattern: RowPattern
) -> Iterator[Row]:
    """Yield each line of a log with the values of the training row that is printed on it, or with None.

    Another process may write into a row and so break it in two. Then the whole row is yielded in place of its second
    half, with the line number of the first:

        5: iter: 10, loss:    -> line 5, `iter: 10, loss:`, None
        6: another process    -> line 6, `another process`, None
        7: 0.5, time: 0.1     -> line 5, `iter: 10, loss: 0.5, time: 0.1`, with its values

    Args:
        numbered_lines: Number and text of each line.
        row_marker: Text that stands in every row of training figures.
        whole_line_marker: Text that stands in the program's whole lines, such as ` - INFO - `.
        pattern: Pattern of a row.

    Yields:
        A line with its values, or with None if it is not a whole row. Several rows on a line are yielded one by one.
    """
    first_half: Row | None = None  # the last line with a row, if the row on it is broken: its second half may come
    for number, line in numbered_lines:
        if row_marker in line:
            rows_of_line = _rows_of_line(number, line, row_marker, pattern)
            yield from rows_of_line
            last = rows_of_line[-1]
            first_half = last if _is_first_half(last, pattern.head) else None
            continue

        if first_half is not None and number > first_half.line + HALF_ROW_LINES:
            first_half = None  # too far above
        is_whole_line = whole_line_marker in line
        whole_row: Row | None = None
        if first_half is not None and not is_whole_line:
            whole_row = _joined(first_half, line, pattern)
        if whole_row is None:
            yield Row(number, line, None)
        else:
            yield whole_row
            first_half = None  # its second half was found


def _rows_of_line(number: int, line: str, row_marker: str, pattern: RowPattern) -> list[Row]:
    """Return each row of training figures that one line of a log holds, mostly one, with its values.

    The line `Iter [50/800] time: 0.5, Iter [100/800] ti` holds two rows. The values of the second one are None, because
    it is not whole.

    Args:
        number: Number of the line in the log.
        line: The line. If it holds no row, it is returned as a single item, whose values are None.
        row_marker: Text that stands in every row, and maybe in other lines, such as "Iter".
        pattern: Pattern of a row. Its `head` shows where a row begins, such as "Iter [50/800]".
    """
    texts = _cut_at_rows(line, row_marker, pattern.head)
    return [Row(number, text, pattern.search(text)) for text in texts]


def _joined(first_half: Row, line: str, pattern: RowPattern) -> Row | None:
    """Return the row of training figures that its first half and a later line make together.

    `iter: 10, loss:` and `0.5, time: 0.1` make the row `iter: 10, loss: 0.5, time: 0.1`.

    Args:
        first_half: The line with the beginning of the row, whose line number the row gets.
        line: Text of the later line.
        pattern: Pattern of a row.

    Returns:
        The row, or None if the two texts make none.
    """
    # `time: 0.5` may be the beginning of `time: 0.52`, whose rest another process has cut off. The character CUT marks
    # this place: no pattern takes a number right before it for a rate or a time.
    may_end_within_number = first_half.text[-1:] in _OF_NUMBERS
    gap = f"{CUT} " if may_end_within_number else " "
    text = f"{first_half.text}{gap}{line}"[:MAX_ROW_CHARS]
    values = pattern.search(text)
    return None if values is None else Row(first_half.line, text, values, is_joined=True)


def _cut_at_rows(line: str, marker: str, head: re.Pattern[str]) -> list[str]:
    """Return the texts of the printed rows on a line of a log, each cut to MAX_ROW_CHARS characters.

    The line `abc Iter [50/800] time: 0.5, Iter [100/800] ti` gives `Iter [50/800] time: 0.5, ` and `Iter [100/800] ti`:
    a row reaches from its head up to the next head. A line without a head, or a short one with a single row, gives one
    text, which begins where the line does.

    Args:
        line: The line.
        marker: Text that stands once in every row, such as "Iter".
        head: Pattern of the beginning of a row, such as `Iter [50/800]`.
    """
    has_one_row_at_most = line.count(marker) <= 1
    if has_one_row_at_most and len(line) <= MAX_ROW_CHARS:  # as on most lines: the slow search for heads is saved
        return [line]

    starts = [match.start() for match in head.finditer(line)]
    if not starts:
        return [line[:MAX_ROW_CHARS]]
    ends = [*starts[1:], len(line)]
    texts = [line[start:end] for start, end in zip(starts, ends, strict=True)]
    return [text[:MAX_ROW_CHARS] for text in texts]


def _is_first_half(row: Row, head: re.Pattern[str]) -> bool:
    """Return whether a line has the beginning of a row of training figures, but lacks some of its figures.

    These may then stand on a later line.

    Args:
        row: The line, with its values or None.
        head: Pattern of the beginning of a row.
    """
    return row.values is None and len(row.text) < MAX_ROW_CHARS and head.search(row.text) is not None


def total(windows: Iterable[Window], field: str) -> float:
    """Return the sum of one field over all windows.

    Args:
        windows: The windows.
        field: Name of the field, such as "seconds". A window in which it is None counts as 0.
    """
    return math.fsum(getattr(window, field) or 0.0 for window in windows)


def lines_in_words(windows: Sequence[Window]) -> str:
    """Return in words the lines of a log from the first window to the last one: `lines 12 to 480`, or `line 12`.

    Args:
        windows: Rows of training figures or epochs, at least one.
    """
    if windows[0].line == windows[-1].line:
        return f"line {windows[0].line}"
    return f"lines {windows[0].line} to {windows[-1].line}"


def first_line_in_words(lines: Sequence[int]) -> str:
    """Return in words the first of some lines of a log, and how many more there are: `line 12 and 3 more`.

    Args:
        lines: Numbers of the lines, at least one.
    """
    words = f"line {lines[0]}"
    if len(lines) > 1:
        words += f" and {len(lines) - 1} more"
    return words


def steps_as_weights(windows: Sequence[Window]) -> list[int]:
    """Return the weight of each window in a mean over time: its number of steps.

    Args:
        windows: Rows of training figures. If one of them lacks its number of steps, all weights are 1.
    """
    steps = [window.steps for window in windows if window.steps]
    return steps if len(steps) == len(windows) else [1] * len(windows)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean of some values. (statistics.fmean takes weights only from Python 3.11 on.)

    Args:
        values: The values.
        weights: One weight for each value. Their sum must not be 0.
    """
    return math.fsum(map(operator.mul, values, weights)) / math.fsum(weights)


def plausible_wait_s(wait_s: float | None, seconds: float | None) -> float | None:
    """Return how long a window waited for input, or None if the printed wait cannot be true.

    Args:
        wait_s: Seconds of waiting, or None if they are not known.
        seconds: Seconds of the whole window. None if they are not known: then the wait is returned as it is.

    Returns:
        The wait. None if it is not known, negative, or over 1 % longer than the window.
    """
    if wait_s is None or seconds is None:
        return wait_s
    return wait_s if 0 <= wait_s <= seconds * 1.01 else None  # 1 % for the rounding of the printed figures


def moment_s(text: str | None) -> float | None:
    """Return a printed time stamp in seconds.

    Unix times and local times are counted from different origins, so that only stamps of one form can be compared.

    Args:
        text: A Unix time, such as "1597933942.98", or a local time, such as "2024-05-01 12:30:00,25" or "2024/05/01
            12:30:00". None if no stamp is printed.

    Returns:
        Seconds since the origin of this form of stamp. None if the text is None or garbled.
    """
    if text is None or " " not in text:  # without a date, it can only be a Unix time
        return number(text)
    try:
        # The date may have `/` for `-`, and the second `.` for `,`.
        year, month, day, hour, minute, second = re.split("[-/ :]", text.replace(",", "."))
        days = datetime.date(int(year), int(month), int(day)).toordinal()
        return days * 86400.0 + int(hour) * 3600 + int(minute) * 60 + float(second)
    except (ValueError, TypeError):
        return None


def number(text: str | None) -> float | None:
    """Return the number that a text prints, which may be NaN or infinite.

    Args:
        text: The text, or None.

    Returns:
        The number, or None if the text is None or prints no number, such as "-" or a garbled one. `1,234.5` is in
        thousands; `1,234` is none, because its comma may be a decimal one.
    """
    text = text or ""
    if _STARTS_IN_THOUSANDS.match(text):
        text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None


def positive(text: str | None) -> float | None:
    """Return a printed rate or time, or None if the text cannot be one.

    Args:
        text: The text. None, 0, negative, nan, inf, absurdly small or large numbers and garbled text cannot be one.
    """
    return plausible(number(text))


def plausible(value: float | None) -> float | None:
    """Return a number if it can be a rate or a time, else None.

    Args:
        value: The number. None, 0, negative, nan, inf, and absurdly small or large numbers cannot be one.
    """
    return value if value is not None and _MIN_VALUE < value < _MAX_VALUE else None


def integer(text: str | None) -> int | None:
    """Return the whole number that a text prints.

    Args:
        text: The text, such as "128", or None.

    Returns:
        The number. None if the text is None or empty, has anything but digits in it or has over 9 of them.
    """
    if text is None or not text.isascii() or not text.isdigit() or len(text) >= 10:
        return None
    return int(text)
