"""Lines of a log of any bytes, cleaned, and what an importer collects from them, in bounded memory."""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import operator
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from scoring.record import Epoch, Quality, Window

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 16  # of a longer line only the start is read
MAX_ROW_CHARS = 2_048  # no row is longer; a search over more could take very long
MAX_ROWS = 32_768  # beyond, neighbouring rows are merged, so that memory stays bounded
EXACT_ROWS = 8_192  # of the start of a run are never merged: the warm-up is cut there
MERGED_ROWS = 12_288  # room for rows that stand for several; the rest is for those not merged yet
FIRST_GROUP = 16  # rows that are merged into one at first; it doubles as often as that room is full
MAX_PROBLEMS = 20

_CUT = "\x03"  # stands after a last line without an end: a number right before it may be half of one
_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07)")
# Open MPI's --tag-output: `[1,0]<stdout>:`, `[prterun-host-1@1,0]<stdout>: `; --timestamp-output puts the
# time before it. A prefix may stand inside a line, where a process wrote the line in pieces.
_TAG = re.compile(r"\[(?:[\w.-]+@)?\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>:")


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
    """The lines of a stream without colours, NUL bytes and mpirun's prefixes, in blocks of about 1 MiB.

    `rank` is that of the line last given to `untag`.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ranks: dict[str, int] = {}
        self.rank: int | None = None

    def blocks(self) -> Iterator[tuple[int, list[str], bool]]:
        """(1-based number of the first line, lines, whether some carry a prefix and must go to `untag`)."""
        number = 1
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
                lines = clean(data[:-1]).split("\n")
                yield number, lines, b"]<std" in data
                number += len(lines)
        if rest:
            yield number, [clean(rest) + _CUT], b"]<std" in rest

    def rank_of(self, line: str) -> int | None:
        """The rank that a prefix names."""
        self.untag(line)
        return self.rank

    def untag(self, line: str) -> str:
        """The line without prefixes; `rank` becomes the one that the first of them names."""
        self.rank = None
        if "]<std" not in line:
            return line
        end = line.find(">:") + 2
        prefix = line[:end]
        self.rank = self._ranks.get(prefix)
        if self.rank is None:
            match = _TAG.search(prefix)
            if match is None or match.start() > 40:
                return _TAG.sub("", line)
            self.rank = int(match[1])
            if match.start() == 0 and len(self._ranks) < 10_000:
                self._ranks[prefix] = self.rank
        rest = line[end + 1 :] if line[end : end + 1] == " " else line[end:]
        return _TAG.sub("", rest) if "]<std" in rest else rest


def clean(data: bytes) -> str:
    """Text without colours and NUL bytes; what is no UTF-8 becomes the replacement character."""
    if b"\x00" in data:
        data = data.translate(None, b"\x00")
    if b"\x1b" in data:
        data = _COLOUR.sub(b"", data)
    return data.decode("utf-8", "replace")


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
        self._merged = 0  # rows after the first EXACT_ROWS that stand for several
        self._group = FIRST_GROUP  # printed rows that one of them stands for

    def fact(self, name: str, value: Any, line: int) -> None:
        """The log says `value` of `name`; its first word stands."""
        if name not in self.facts and value is not None:
            self.facts[name] = value
            self.lines[name] = line

    def count(self, name: str, text: str | None, line: int) -> None:
        """The log says `text` of a number of things; what is no number over 0 is not taken."""
        value = integer(text)
        if value:
            self.fact(name, value, line)

    def evaluated(self, line: int, name: str, text: str, *, epoch: str | None = None, step: int | None = None) -> None:
        """The log says `text` of a quality."""
        value = number(text)
        if value is not None:
            self.quality.append(Quality(line=line, name=name, value=value, epoch=integer(epoch), step=step))

    def problem(self, text: str) -> None:
        """Something in the text that could not be taken as it stands."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def clear_rows(self) -> None:
        """Forget the rows: others count instead."""
        self.rows.clear()
        self.epochs.clear()
        self._merged, self._group = 0, FIRST_GROUP

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
        end: str | float | None = None,
        phase: str | None = None,
        loss: str | float | None = None,
        memory_mib: float | None = None,
        power_w: float | None = None,
    ) -> None:
        """One printed row; a copy of the last one (a log written twice) is passed over.

        `end` and `loss` may be the text as printed: it is read at the end, for the rows that are kept.
        """
        if wait_s is not None and seconds is not None and not 0 <= wait_s <= seconds * 1.01:
            wait_s = None  # garbled: no step waits longer than it takes
        rows = self.rows
        if rows:
            last = rows[-1]
            if step is not None and last[1] == step and last[2] == epoch and last[5] == seconds and last[7] == rate:
                return
            if len(rows) >= MAX_ROWS:
                self._merge()
        rows.append(
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
                end,
                phase,
                loss,
                memory_mib,
                power_w,
                1,
            )
        )

    def _merge(self) -> None:
        """Make room: merge the rows not merged yet by the group size in use, and double that when it is full."""
        merged_end = EXACT_ROWS + self._merged
        middle = self.rows[EXACT_ROWS:merged_end]
        middle.extend(grouped(self.rows[merged_end:], self._group))
        while len(middle) > MERGED_ROWS:
            self._group *= 2
            middle = grouped(middle, 2)
        self._merged = len(middle)
        self.rows[EXACT_ROWS:] = middle

    def windows(self, global_batch: int | None) -> tuple[Window, ...]:
        """The rows as windows; images follow from steps where the global batch is known."""
        made = []
        for row in self.rows:
            (line, step, epoch, steps, images, seconds, wait_s, rate, step_time_s) = row[:9]
            (end, phase, loss, memory_mib, power_w, rows_) = row[9:]
            if images is None and steps is not None and global_batch is not None:
                images = steps * global_batch
            made.append(
                Window(
                    line=line,
                    step=step,
                    epoch=epoch,
                    steps=steps,
                    images=images,
                    seconds=seconds,
                    data_wait_s=wait_s,
                    printed_rate=rate,
                    printed_step_time_s=step_time_s,
                    end_s=stamp_s(end) if isinstance(end, str) else end,
                    phase=phase,
                    loss=number(loss) if isinstance(loss, str) else loss,
                    gpu_memory_mib=memory_mib,
                    power_w=power_w,
                    rows=rows_,
                )
            )
        return tuple(made)


def grouped(rows: list[tuple[Any, ...]], size: int) -> list[tuple[Any, ...]]:
    """`rows` in groups of `size` as one row each: sums stay sums, means stay means. No group spans two phases."""
    out: list[tuple[Any, ...]] = []
    for _, stretch in itertools.groupby(rows, key=_PHASE):
        same = list(stretch)
        out.extend(_one_row(same[at : at + size]) for at in range(0, len(same), size))
    return out


_PHASE = operator.itemgetter(10)


def _one_row(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    last = rows[-1]
    # fmt: off
    _, _, _, steps, images, seconds, wait_s, rate, step_time_s, _, _, _, _, power_w, weights = zip(*rows, strict=True)
    # fmt: on
    return (
        *last[:3],
        *(None if None in column else sum(column) for column in (steps, images, seconds, wait_s)),
        *(_mean(column, weights) for column in (rate, step_time_s)),
        *last[9:13],
        _mean(power_w, weights),
        sum(weights),
    )


def _mean(values: tuple[Any, ...], weights: tuple[int, ...]) -> float | None:
    if None in values:
        return None
    return sum(map(operator.mul, values, weights)) / sum(weights)


@functools.lru_cache(maxsize=64)
def _day_s(date: str) -> float | None:
    try:
        year, month, day = re.split("[-/]", date)
        return datetime.date(int(year), int(month), int(day)).toordinal() * 86400.0
    except ValueError:
        return None


def stamp_s(stamp: str | None) -> float | None:
    """A local `Y-M-D h:m:s` (or Y/M/D; `.` or `,` before a fraction) in seconds since a fixed origin."""
    if stamp is None:
        return None
    date, time = stamp.split(" ", 1)
    day_s = _day_s(date)
    if day_s is None:
        return None
    hour, minute, second = time.split(":")
    return day_s + int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))


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
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if _LEAST < value < _MOST else None


_LEAST, _MOST = 1e-9, 1e12  # no rate and no time lies beyond


def integer(text: str | None) -> int | None:
    """The whole number; None where the text is none, or one beyond any count here."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def rows(
    lines: Lines, marker: str, own: str, head: re.Pattern[str], row: re.Pattern[str]
) -> Iterator[tuple[int, str, re.Match[str] | None]]:
    """Each line as (number, text, match of `row` or None).

    `marker` stands at the start of every row and in little else, `own` in every line of the tool's; `head` matches
    the start of a row. Two rows on one line come out as two; a row that foreign text broke off is joined with one
    of the next few lines, if that is none of the tool's own. Where several ranks
    print rows, those of the lowest rank count.
    """
    broken: tuple[int, str] | None = None
    search = row.search
    speaker: int | None = None
    for first, block, tagged in lines.blocks():
        lines.rank = None
        if tagged and speaker is None:
            ranks = {lines.rank_of(line) for line in block if marker in line} - {None}
            speaker = min(ranks, default=None)  # type: ignore[type-var]
        for number, line in enumerate(block, first):
            if tagged:
                line = lines.untag(line)
                if lines.rank != speaker and lines.rank is not None and speaker is not None and marker in line:
                    continue
            if marker not in line:
                if broken is not None:
                    whole = broken[1] + " " + line
                    if own not in line and (match := search(whole, 0, MAX_ROW_CHARS)):
                        yield broken[0], whole, match
                        broken = None
                        continue
                    if number - broken[0] >= 5:
                        broken = None
                yield number, line, None
            elif line.count(marker) == 1 and len(line) <= MAX_ROW_CHARS:
                match = search(line)
                broken = (number, line) if match is None and head.search(line) else None
                yield number, line, match
            else:
                starts = [found.start() for found in head.finditer(line)] or [0]
                for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
                    match = search(line, start, min(end, start + MAX_ROW_CHARS))
                    last = match is None and end == len(line) and len(line) - start <= MAX_ROW_CHARS
                    broken = (number, line[start:]) if last and head.search(line, start) else None
                    yield number, line[start:end], match
