"""Rows of a log, and the draft of a record that an importer fills, in bounded memory."""

from __future__ import annotations

import datetime
import functools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scoring.importers.lines import Lines
from scoring.record import Check, Epoch, InputError, Quality, Window

MAX_ROW_CHARS = 2_048  # no row is longer; a search over more could take very long
MAX_ROWS = 1_000_000  # of a run, about 300 MB; public logs have some thousand
MAX_PROBLEMS = 20
MAX_RESTARTS = 1_000
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
        start = head.end()
        for field in self.needed:
            found = field.search(text, start)
            if found is None:
                return None
            values.append(found[1])
        for field in self.others:
            found = field.search(text, start)
            values.append(found and found[1])
        return values


def field(before: str, after: str = "") -> re.Pattern[str]:
    """A number between two patterns; where `before` starts with plain text the search for it is fast."""
    return re.compile(before + NUMBER + after)


def rows(lines: Lines, marker: str, tool: str, pattern: RowPattern, others: Sequence[str] = ()) -> Iterator[Row]:
    """Each line up to the first row, then those that matter, as (number, text, values of the row or None).

    `marker` stands at the start of every row and in little else, `tool` in every line of the tool's. After the first
    row only lines with `marker` or one of `others` are given. Two rows on one line come out as two; a row that
    foreign text broke off is joined with one of the next few lines, if that is none of the tool's. Where several
    ranks print rows, those of the lowest rank count.
    """
    begun = False
    broken: tuple[int, str] | None = None
    for number, line in lines.of_lowest_rank(marker):
        if marker in line:
            one = len(line) <= MAX_ROW_CHARS and line.count(marker) == 1
            for text in (line,) if one else _pieces(line, pattern.head):
                values = pattern.search(text)
                if values is not None:
                    begun = True
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
                begun, broken = True, None
                continue
            if number - broken[0] >= HALF_ROW_LINES:
                broken = None
        lines.start(number, line)
        if not begun or any(word in line for word in others):
            yield number, line, None


def _pieces(line: str, head: re.Pattern[str]) -> list[str]:
    """The line, cut where rows start in it; no piece is longer than a row can be."""
    starts = [found.start() for found in head.finditer(line)] or [0]
    ends = [*starts[1:], len(line)]
    return [line[start : min(end, start + MAX_ROW_CHARS)] for start, end in zip(starts, ends, strict=True)]


class Fact(NamedTuple):
    """What the log says of one thing, and on which line."""

    value: object
    line: int  # 0 where the format itself says it


class Draft:
    """What an importer has read of one run so far."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}  # by the field of Record
        self.epochs: list[Epoch] = []
        self.quality: list[Quality] = []
        self.software: dict[str, str] = {}
        self.problems: list[str] = []
        self.restarts: list[tuple[int, int]] = []  # lines of two rows between which the counters go back
        self.header: dict[str, object] = {}
        self.checks: list[Check] = []
        self.truncated: bool | None = None
        self.windows: list[Window] = []

    def fact(self, name: str, value: object, line: int = 0) -> None:
        """The log says `value` of `name`; its first word stands."""
        if value is not None:
            self.facts.setdefault(name, Fact(value, line))

    def value(self, name: str) -> object:
        """What the log says of `name`; None where it does not."""
        return self.facts[name].value if name in self.facts else None

    def evaluated(self, line: int, name: str, text: str, *, epoch: str | None = None, step: int | None = None) -> None:
        """The log says `text` of a quality."""
        value = number(text)
        if value is not None:
            self.quality.append(Quality(line=line, name=name, value=value, epoch=integer(epoch), step=step))

    def agreed(self, name: str, places: Mapping[str, Fact | None]) -> None:
        """What the log says of `name` in several places; where they differ it is unknown."""
        facts = {place: fact for place, fact in places.items() if fact is not None and fact.value is not None}
        values = {fact.value for fact in facts.values()}
        self.facts.pop(name, None)
        if len(values) == 1:
            self.facts[name] = next(iter(facts.values()))
        if len(facts) > 1:
            ways = tuple(f"line {fact.line}: {place}, {fact.value}" for place, fact in facts.items())
            self.checks.append(Check(what=name, ways=ways, agree=len(values) == 1))

    def problem(self, text: str) -> None:
        """Something in the text that could not be taken as it stands."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def row(self, window: Window) -> None:
        """One printed row; a copy of the last one (a log written twice) is passed over."""
        last = self.windows[-1] if self.windows else None
        if last is not None and last.step is not None and window.step is not None:
            before, at = (last.epoch or 0, last.step), (window.epoch or 0, window.step)
            if at == before and (window.seconds, window.printed_rate) == (last.seconds, last.printed_rate):
                return
            if at < before and len(self.restarts) < MAX_RESTARTS:
                self.restarts.append((last.line, window.line))
        if len(self.windows) == MAX_ROWS:
            raise InputError(
                f"line {window.line}: over {MAX_ROWS:,} rows in one run; print rarer rows, or score a part of the log"
            )
        self.windows.append(window)


def work(windows: Sequence[Window]) -> list[int]:
    """What each weighs in a mean over time: its steps, where all say them, else all alike."""
    steps = [window.steps for window in windows if window.steps]
    return steps if len(steps) == len(windows) else [1] * len(windows)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """As statistics.fmean with weights, which Python has from 3.11 on."""
    return math.fsum(map(operator.mul, values, weights)) / math.fsum(weights)


def wait_within(wait_s: float | None, seconds: float | None) -> float | None:
    """The wait of a window of `seconds`; None for a garbled one: no step waits longer than it takes."""
    if wait_s is None or seconds is None or 0 <= wait_s <= seconds * 1.01:
        return wait_s
    return None


class RowBatch:
    """The batch of one device by its printed rows: rate x step time, of which each row's digits leave a range."""

    def __init__(self) -> None:
        self._low, self._high = 0.0, math.inf
        self._line = 0

    @property
    def images(self) -> int | None:
        """The only whole number that all rows so far leave; None where they leave several, or none."""
        low, high = math.ceil(self._low), math.floor(min(self._high, _MOST))
        return low if low == high else None

    def read(self, line: int, printed_rate: str | None, printed_time: str | None) -> None:
        """One row's rate and its step time as printed: with how many digits."""
        rate, time_s = positive(printed_rate), positive(printed_time)
        if rate is None or time_s is None or "e" in f"{printed_rate}{printed_time}":
            return
        half_rate, half_time = (
            0.5 * 10.0 ** -len(str(text).partition(".")[2]) for text in (printed_rate, printed_time)
        )
        product = rate * time_s
        slack = rate * half_time + time_s * half_rate + 1e-4 * product
        self._low, self._high = max(self._low, product - slack), min(self._high, product + slack)
        self._line = self._line or line

    def finish(self, draft: Draft) -> None:
        """The rows have the last word: what the configuration says otherwise is not what ran."""
        images, configured = self.images, draft.facts.get("batch_per_device")
        if images is None:
            return
        if configured is not None:
            ways = (
                f"line {configured.line}: the configuration, {configured.value}",
                f"line {self._line} and the other rows: rate x step time, {images} a device",
            )
            draft.checks.append(Check(what="batch", ways=ways, agree=configured.value == images))
        if configured is None or configured.value != images:
            draft.facts["batch_per_device"] = Fact(images, self._line)


@functools.lru_cache(maxsize=64)
def _day_s(date: str) -> float:
    return datetime.date(*map(int, re.split("[-/]", date))).toordinal() * 86400.0


def moment_s(text: str | None) -> float | None:
    """A local `Y-M-D h:m:s` (Y/M/D; `.` or `,` before a fraction) or a Unix time, in seconds since a fixed origin."""
    date, _, time = (text or "").partition(" ")
    if not time:
        return number(text)
    try:
        hour, minute, second = time.split(":")
        return _day_s(date) + int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))
    except (ValueError, TypeError):
        return None


def number(text: str | None) -> float | None:
    """The number, NaN included; None where the text is none ("None", "-", a garbled one)."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def positive(text: str | None) -> float | None:
    """A rate or a time as printed; None for what cannot be one (0, negative, nan, inf, absurd, garbled)."""
    value = number(text)
    return value if value is not None and _LEAST < value < _MOST else None


def whole(text: str | None) -> int:
    """The whole number that a row's pattern has found."""
    assert text is not None
    return int(text)


def integer(text: str | None) -> int | None:
    """The whole number; None where the text is none, or one beyond any count here."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def first_group(match: re.Match[str]) -> Iterable[tuple[str, str]]:
    """(name, text) of the groups of a pattern of alternatives that took part."""
    return ((name, text) for name, text in match.groupdict().items() if text is not None)
