"""Lines of a log of any bytes, cleaned, and what an importer collects from them, in bounded memory."""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from scoring.record import Epoch, Quality, Window

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 20  # of a longer line only the start is read
MAX_ROWS = 65_536  # beyond, neighbouring rows are merged, so that memory stays bounded
EXACT_ROWS = 8_192  # of the start of a run are never merged: the warm-up is cut there
MAX_PROBLEMS = 20

_ESCAPES = rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\n]*\x07|\x00"
_DIRT = re.compile(_ESCAPES)
# Open MPI's --tag-output: `[1,0]<stdout>:`, `[prterun-host-1@1,0]<stdout>: `; --timestamp-output puts the
# time before it. A prefix may stand inside a line, where a process wrote the line in pieces.
_TAG = rb"\[[\w.@-]*\d+,(\d+)\]<std(?:out|err|diag)>:"
_TAG_AT_START = re.compile(rb"^[ \w:]{0,40}?" + _TAG + rb" ?", re.MULTILINE)
_TAG_INSIDE = re.compile(_TAG)
_RANK_MARK = "\x1f"


class HashingStream:
    """A binary stream that keeps the SHA-256 and the number of lines of what was read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._last = b"\n"
        self.newlines = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size`."""
        data = self._stream.read(size)
        self._hash.update(data)
        self.newlines += data.count(b"\n")
        self._last = data[-1:] or self._last
        return data

    @property
    def sha256(self) -> str:
        """Of everything read so far."""
        return self._hash.hexdigest()

    @property
    def lines(self) -> int:
        """Lines read so far, an unfinished one included."""
        return self.newlines + (self._last != b"\n")


class Lines:
    """Iterates (line number from 1, text) without colours, NUL bytes and mpirun's prefixes.

    `rank` is that of the line just given, where mpirun's prefix says it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.rank: int | None = None

    def __iter__(self) -> Iterator[tuple[int, str]]:
        number = 0
        rest = b""
        overlong = False
        while data := self._stream.read(CHUNK_BYTES):
            if overlong:  # pass over what is left of the line
                end = data.find(b"\n")
                if end < 0:
                    continue
                data, overlong = data[end:], False
            data = rest + data
            cut = data.rfind(b"\n") + 1
            data, rest = data[:cut], data[cut:]
            if len(rest) > MAX_LINE_CHARS:
                rest, overlong = rest[:MAX_LINE_CHARS], True
            if data:
                yield from self._split(data[:-1], number)
                number += data.count(b"\n")
        if rest:
            yield from self._split(rest, number)

    def _split(self, data: bytes, number: int) -> Iterator[tuple[int, str]]:
        text, tagged = clean(data)
        self.rank = None
        if not tagged:
            for line in text.split("\n"):
                number += 1
                yield number, line
            return
        for line in text.split("\n"):
            number += 1
            self.rank = None
            if line.startswith(_RANK_MARK):
                rank, line = line[1:].split(_RANK_MARK, 1)
                self.rank = int(rank)
            yield number, line


def clean(data: bytes) -> tuple[str, bool]:
    """Text without colours, NUL bytes and prefixes; whether there were prefixes (then ranks are marked)."""
    if b"\x1b" in data or b"\x00" in data:
        data = _DIRT.sub(b"", data)
    tagged = b">:" in data and _TAG_INSIDE.search(data) is not None
    if tagged:
        data = data.replace(b"\x1f", b"")
        data = _TAG_AT_START.sub(b"\x1f\\1\x1f", data)
        data = _TAG_INSIDE.sub(b"", data)
    return data.decode("utf-8", "replace"), tagged


class Builder:
    """Collects what an importer reads of one run."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.epochs: list[Epoch] = []
        self.quality: list[Quality] = []
        self.facts: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.software: dict[str, str] = {}
        self.problems: list[str] = []
        self.header: dict[str, Any] = {}
        self.truncated: bool | None = None
        self._rank: int | None = None

    def fact(self, name: str, value: Any, line: int) -> None:
        """The log says `value` of `name`; its first word stands."""
        if name not in self.facts:
            self.facts[name] = value
            self.lines[name] = line

    def problem(self, text: str) -> None:
        """Something in the text that could not be taken as it stands."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def speaks(self, rank: int | None) -> bool:
        """Whether rows of this rank count: only those of the lowest rank that prints rows do."""
        if rank is None or rank == self._rank:
            return True
        if self._rank is not None and rank > self._rank:
            return False
        self._rank = rank
        self.rows.clear()
        self.epochs.clear()
        return True

    def row(
        self,
        line: int,
        step: int | None,
        epoch: int | None,
        *,
        steps: int | None = None,
        images: float | None = None,
        seconds: float | None = None,
        wait_s: float | None = None,
        rate: float | None = None,
        step_time_s: float | None = None,
        end_s: float | None = None,
        phase: str | None = None,
        loss: float | None = None,
        memory_mib: float | None = None,
        power_w: float | None = None,
    ) -> None:
        """One printed row; a copy of the last one (a log written twice) is passed over."""
        rows = self.rows
        if rows:
            last = rows[-1]
            if step is not None and last[1] == step and last[2] == epoch and last[7] == rate:
                return
            if len(rows) >= MAX_ROWS:
                self.rows = rows = merged(rows)
        rows.append(
            # fmt: off
            (
                line,
                step,
                epoch,
                steps,
                images,
                seconds,
                wait_s,
                rate,
                step_time_s,
                end_s,
                phase,
                loss,
                memory_mib,
                power_w,
                1,
            )
            # fmt: on
        )

    def windows(self, global_batch: int | None) -> tuple[Window, ...]:
        """The rows as windows; images follow from steps where the global batch is known."""
        made = []
        for row in self.rows:
            values = dict(zip(_COLUMNS, row, strict=True))
            if values["images"] is None and values["steps"] is not None and global_batch is not None:
                values["images"] = values["steps"] * global_batch
            made.append(Window(**values))
        return tuple(made)


# fmt: off
_COLUMNS = (
    "line", "step", "epoch", "steps", "images", "seconds", "data_wait_s", "printed_rate", "printed_step_time_s",
    "end_s", "phase", "loss", "gpu_memory_mib", "power_w", "rows",
)
# fmt: on


def _sum(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a + b


def _mean(a: Any, b: Any, weight_a: int, weight_b: int) -> Any:
    return None if a is None or b is None else (a * weight_a + b * weight_b) / (weight_a + weight_b)


def merged(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Half as many rows after the first EXACT_ROWS: sums stay sums, means stay means."""
    out = rows[:EXACT_ROWS]
    tail = rows[EXACT_ROWS:]
    index = 0
    while index < len(tail):
        a = tail[index]
        if index + 1 == len(tail) or tail[index + 1][10] != a[10]:  # never across phases
            out.append(a)
            index += 1
            continue
        b = tail[index + 1]
        na, nb = a[14], b[14]
        out.append(
            # fmt: off
            (
                b[0],
                b[1],
                b[2],
                _sum(a[3], b[3]),
                _sum(a[4], b[4]),
                _sum(a[5], b[5]),
                _sum(a[6], b[6]),
                _mean(a[7], b[7], na, nb),
                _mean(a[8], b[8], na, nb),
                b[9],
                b[10],
                b[11],
                b[12],
                _mean(a[13], b[13], na, nb),
                na + nb,
            )
            # fmt: on
        )
        index += 2
    return out


@functools.lru_cache(maxsize=64)
def _day_s(year: str, month: str, day: str) -> float:
    try:
        return datetime.date(int(year), int(month), int(day)).toordinal() * 86400.0
    except ValueError:
        return float("nan")


def stamp_s(year: str, month: str, day: str, hour: str, minute: str, second: str) -> float | None:
    """A local time stamp in seconds since a fixed origin; None if it is no date. `second` may hold `,` or `.`."""
    value = _day_s(year, month, day) + int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))
    return value if value == value else None


def number(text: str | None) -> float | None:
    """The number, NaN included; None where the text is none ("None", "-", a garbled one)."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def positive(text: str | None) -> float | None:
    """A rate or a time as printed; None for what cannot be one (0, negative, nan, inf, garbled)."""
    value = number(text)
    return value if value is not None and 0 < value < float("inf") else None


def rows(
    lines: Lines, marker: str, head: re.Pattern[str], row: re.Pattern[str]
) -> Iterator[tuple[int, str, re.Match[str] | None]]:
    """Each line as (number, text, match of `row` or None).

    `marker` stands in every row and little else; `head` matches the start of a row. Two rows on one line come
    out as two; a row that foreign text broke off is joined with one of the next few lines.
    """
    broken: tuple[int, str] | None = None
    for number, line in lines:
        if marker not in line:
            if broken is not None:
                whole = broken[1] + " " + line
                if match := row.search(whole):
                    yield broken[0], whole, match
                    broken = None
                    continue
                if number - broken[0] >= 5:
                    broken = None
            yield number, line, None
            continue
        if line.count(marker) == 1:
            match = row.search(line)
            broken = (number, line) if match is None and head.search(line) else None
            yield number, line, match
            continue
        starts = [match.start() for match in head.finditer(line)] or [0]
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            match = row.search(line, start, end)
            broken = (number, line[start:]) if match is None and end == len(line) else None
            yield number, line[start:end], match
