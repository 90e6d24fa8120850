"""Lines of a log of any bytes, cleaned, and what an importer collects from them, in bounded memory."""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from scoring.record import Epoch, Quality, Window

CHUNK_BYTES = 1 << 17  # what is made of it stays in the processor's cache: 1 MiB takes a sixth more time
MAX_LINE_CHARS = 1 << 16  # of a longer line only the start is read
MAX_ROW_CHARS = 2_048  # no row is longer; a search over more could take very long
MAX_ROWS = 20_480  # beyond, neighbouring rows are merged, so that memory stays bounded
EXACT_ROWS = 8_192  # of the start of a run are never merged: the warm-up is cut there
MERGED_ROWS = 8_192  # room for rows that stand for several; the rest is for those not merged yet
FIRST_GROUP = 16  # rows that are merged into one at first; it doubles as often as that room is full
LEAST_STRETCH = 16  # rows that are worth reading by columns
MAX_PROBLEMS = 20

NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?|-?nan|-?inf)"  # as any of the tools may print one
_CUT = "\x03"  # stands after a last line without an end: a number right before it may be half of one
_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07)")
# Open MPI's --tag-output: `[1,0]<stdout>:`, `[prterun-host-1@1,0]<stdout>: `; --timestamp-output puts the
# time before it. A prefix may stand inside a line, where a process wrote the line in pieces.
_TAG = re.compile(r"\[(?:[\w.-]+@)?\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>:")
_TAG_RANK = re.compile(rb",(\d{1,9})\]<std")


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
    """The lines of a stream without colours, NUL bytes and mpirun's prefixes, in blocks of about CHUNK_BYTES.

    `rank` is that of the line last given to `untag`.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ranks: dict[str, int] = {}
        self.rank: int | None = None
        self.ranks: set[int] = set()  # of every prefix met so far

    def blocks(self) -> Iterator[tuple[int, str, bool]]:
        """(1-based number of the first line, whole lines, whether some carry a prefix and must go to `untag`)."""
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
                yield number, clean(data[:-1]), self._is_tagged(data)
                number += data.count(b"\n")
        if rest:
            yield number, clean(rest) + _CUT, self._is_tagged(rest)

    def _is_tagged(self, data: bytes) -> bool:
        if b"]<std" not in data:
            return False
        self.ranks.update(map(int, set(_TAG_RANK.findall(data))))
        return True

    def rank_of(self, line: str) -> int | None:
        """The rank that a prefix names."""
        self.untag(line)
        return self.rank

    def untag_all(self, text: str) -> str | None:
        """The lines without the prefix that all of them begin with; None where they do not, or hold another."""
        end = text.find(">:") + 2
        prefix = text[: end + (text[end : end + 1] == " ")]
        count = text.count("\n")
        if text.count("]<std") != count + 1 or text.count("\n" + prefix) != count or self.rank_of(prefix) is None:
            return None
        return text[len(prefix) :].replace("\n" + prefix, "\n")

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


class Stretch(NamedTuple):
    """Rows that follow one another in one epoch, each at a later step than the row before it."""

    lines: Sequence[int]  # the number of each one's
    columns: dict[str, list[Any]]  # what each row prints, by name; without those that no row prints
    step: Sequence[int]
    steps: Sequence[int]  # since the row before

    def times_steps(self, name: str) -> list[float] | None:
        """The sums behind a column of means over each row's own steps."""
        means = self.columns.get(name)
        return None if means is None else list(map(operator.mul, means, self.steps))

    def of_single_steps(self, name: str) -> list[float | None] | None:
        """A column of times of the last step alone, where that is the row's only step."""
        times = self.columns.get(name)
        if times is None or max(self.steps) == 1:
            return times
        return [time if steps == 1 else None for time, steps in zip(times, self.steps, strict=True)]


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
        memory_mib: str | float | None = None,
        power_w: float | None = None,
    ) -> None:
        """One printed row; a copy of the last one (a log written twice) is passed over.

        `end`, `loss` and `memory_mib` may be the text as printed: it is read at the end, for the rows that are kept.
        """
        if wait_s is not None and seconds is not None and not 0 <= wait_s <= seconds * 1.01:
            wait_s = None  # garbled: no step waits longer than it takes
        rows = self.rows
        if rows:
            last = rows[-1]
            if step is not None and last[1] == step and last[2] == epoch and last[5] == seconds and last[7] == rate:
                return
            if step is not None and last[1] is not None and (epoch or 0, step) < (last[2] or 0, last[1]):
                where = "" if epoch is None else f" of epoch {epoch}"
                self.problem(f"line {line}: step {step}{where} follows {last[1]}: more than one run in the log")
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

    def stretch(
        self,
        stretch: Stretch,
        *,
        seconds: Sequence[float | None] | None = None,
        waits: Sequence[float | None] | None = None,
    ) -> None:
        """Many printed rows, as `row` takes one; `seconds` are those of the rows' own steps, `waits` within them."""
        count = len(stretch.step)
        column = stretch.columns.get
        waited: Any = None
        if waits and seconds:
            pairs = zip(waits, seconds, strict=True)
            waited = [w if w is None or s is None or 0 <= w <= s * 1.01 else None for w, s in pairs]
        epoch = column("epoch")
        columns: list[Sequence[Any] | None] = [
            stretch.lines,
            stretch.step,
            None if epoch is None else (int(epoch[0]),) * count,
            stretch.steps,
            None,
            seconds,
            waited,
            column("rate"),
            column("cost"),
            column("end"),
            None,
            column("loss"),
            column("memory"),
            None,
            (1,) * count,
        ]
        at = 0
        while at < count:
            if len(self.rows) >= MAX_ROWS:
                self._merge()
            group = self._group if self._merged else 1
            end = at + (MAX_ROWS - len(self.rows)) * group
            part = [None if column is None else column[at:end] for column in columns]
            self.rows.extend(_rows_of(part if group == 1 else _reduced(part, group)))
            at = end

    def stretch_of_means(self, stretch: Stretch) -> None:
        """The same, where the printed times are means of the row's own steps."""
        self.stretch(stretch, seconds=stretch.times_steps("cost"), waits=stretch.times_steps("wait"))

    def _merge(self) -> None:
        """Make room: merge the rows not merged yet by the group size in use, and double that when it is full."""
        merged_end = EXACT_ROWS + self._merged
        middle = self.rows[EXACT_ROWS:merged_end]
        for several, part in itertools.groupby(self.rows[merged_end:], key=_stands_for_several):
            rows = list(part)
            middle.extend(rows if several else grouped(rows, self._group))
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
                    end_s=moment_s(end) if isinstance(end, str) else end,
                    phase=phase,
                    loss=number(loss) if isinstance(loss, str) else loss,
                    gpu_memory_mib=number(memory_mib) if isinstance(memory_mib, str) else memory_mib,
                    power_w=power_w,
                    rows=rows_,
                )
            )
        return tuple(made)


def grouped(rows: list[tuple[Any, ...]], size: int) -> list[tuple[Any, ...]]:
    """`rows` in groups of `size` as one row each. No group spans two phases."""
    out: list[tuple[Any, ...]] = []
    for _, phase in itertools.groupby(rows, key=_PHASE):
        columns = [
            None if column[0] is None and column.count(None) == len(column) else column
            for column in zip(*phase, strict=True)
        ]
        out.extend(_rows_of(_reduced(columns, size)))
    return out


def _rows_of(columns: Sequence[Sequence[Any] | None]) -> Iterator[tuple[Any, ...]]:
    """Rows of columns; None stands for a column of nothing else."""
    return zip(*(itertools.repeat(None) if column is None else column for column in columns), strict=False)


def _reduced(columns: Sequence[Sequence[Any] | None], size: int) -> list[Sequence[Any] | None]:
    """The columns of rows in groups of `size` as one row each: sums stay sums, means stay means."""
    rows = columns[-1]
    assert rows is not None
    alike = sum(rows) == len(rows)
    made: list[Sequence[Any] | None] = []
    for name, column in zip(_COLUMNS, columns, strict=True):
        if column is None:
            made.append(None)
        elif name in _SUMS:
            made.append(_each(sum, _parts(column, size)))
        elif name in _MEANS and alike:
            made.append(_each(_mean, _parts(column, size)))
        elif name in _MEANS:
            made.append(_each(_weighted, list(zip(_parts(column, size), _parts(rows, size), strict=True))))
        else:
            made.append([*column[size - 1 :: size], *column[-1:][: len(column) % size]])
    return made


# fmt: off
_COLUMNS = ("line", "step", "epoch", "steps", "images", "seconds", "wait_s", "rate", "step_time_s", "end", "phase",
            "loss", "memory_mib", "power_w", "rows")
# fmt: on
_SUMS = ("steps", "images", "seconds", "wait_s", "rows")
_MEANS = ("rate", "step_time_s", "power_w")
_PHASE = operator.itemgetter(_COLUMNS.index("phase"))


def _stands_for_several(row: tuple[Any, ...]) -> bool:
    return bool(row[-1] > 1)


def _parts(column: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [column[at : at + size] for at in range(0, len(column), size)]


def _mean(part: tuple[Any, ...]) -> float:
    return float(sum(part) / len(part))


def _weighted(part_and_weights: tuple[tuple[Any, ...], tuple[int, ...]]) -> float:
    part, weights = part_and_weights
    return float(sum(map(operator.mul, part, weights)) / sum(weights))


def _each(reduced: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Of each part, None where it holds None. That is tried for last: a look for None among numbers takes long."""
    try:
        return list(map(reduced, parts))
    except TypeError:
        return [_or_none(reduced, part) for part in parts]


def _or_none(reduced: Callable[[Any], Any], part: Any) -> Any:
    try:
        return reduced(part)
    except TypeError:
        return None


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
    date, _, time = stamp.partition(" ")
    day_s = _day_s(date)
    if day_s is None:
        return None
    try:
        hour, minute, second = time.split(":")
        return day_s + int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))
    except ValueError:
        return None


def moment_s(text: str) -> float | None:
    """A time stamp or a Unix time in seconds."""
    unix_s = number(text)
    return stamp_s(text) if unix_s is None else unix_s


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
    lines: Lines,
    marker: str,
    own: str,
    head: re.Pattern[str],
    row: re.Pattern[str],
    names: tuple[str, ...],
    *,
    usual: re.Pattern[str] | None = None,
    others: tuple[str, ...] = (),
    from_step: int = 0,
) -> Iterator[tuple[int, str, re.Match[str] | Stretch | None]]:
    """Each line up to the first row, then those that matter, as (number, text, match of `row` or None), or many rows
    at once as (number of the first, "", Stretch).

    `marker` stands at the start of every row and in little else, `own` in every line of the tool's; `head` matches
    the start of a row, and `names` are those of the groups of `row`. After the first row only lines with `marker` or
    one of `others` are given. Two rows on one line come out as two; a row that foreign text broke off is joined with
    one of the next few lines, if that is none of the tool's own. Where several ranks print rows, those of the lowest
    rank count.

    Rows that follow one another, whatever stands between them, come as a stretch after the first of them: it says what
    they would have said one by one, and the row before it has come alone, at `from_step` or later. `usual` may be a
    faster pattern with the same groups, for lines with nothing odd in them.
    """
    reader = _Rows(lines, marker, own, head, row)
    plain = re.compile(f"^(?:{(usual or row).pattern}).*$|^.*$", re.MULTILINE)
    for first, text, tagged in lines.blocks():
        text, mine = reader.untagged(text) if tagged else (text, None)
        block = text.split("\n")
        done = 0  # lines of the block that were read
        while not reader.begun and done < len(block):
            if (line := mine(block[done]) if mine else block[done]) is not None:
                yield from reader.read(first + done, line)
            done += 1
        numbers, texts = _wanted(block, done, first, text, (marker, *others))
        if mine:
            heard = [
                (number, line) for number, raw in zip(numbers, texts, strict=True) if (line := mine(raw)) is not None
            ]
            numbers, texts = [number for number, _ in heard], [line for _, line in heard]
        at = 0
        columns = _columns(text if texts is block and not mine else "\n".join(texts), texts, marker, plain, names)
        for start, stretch in [*_stretches(columns, numbers, from_step), (len(texts), None)]:
            for number, line in zip(numbers[at:start], texts[at:start], strict=True):
                yield from reader.read_halves(block, first, done, number - first, mine)
                yield from reader.read(number, line)
                done = number - first + 1
            if stretch is not None:
                yield stretch.lines[0], "", stretch
                at = start + len(stretch.step)
                done = stretch.lines[-1] - first + 1
        yield from reader.read_halves(block, first, done, len(block), mine)


def _wanted(
    block: list[str], start: int, first: int, text: str, words: tuple[str, ...]
) -> tuple[Sequence[int], list[str]]:
    """Numbers and text of the lines from `start` on that hold one of `words`; the first of the block is `first`."""
    if text.count(words[0]) >= len(block) and not start:  # every line is a row, or nearly
        return range(first, first + len(block)), block
    found: list[int] = []
    met = [word for word in words if word in text]
    for word in met:
        found += [at for at, line in enumerate(block) if word in line]
    if len(met) > 1:
        found = sorted(set(found))
    if start:
        found = [at for at in found if at >= start]
    return [first + at for at in found], [block[at] for at in found]


def _columns(
    text: str, lines: list[str], marker: str, plain: re.Pattern[str], names: tuple[str, ...]
) -> dict[str, list[Any]]:
    """What `plain` finds in each of `lines`, which are those of `text`, by name: texts, None of a line without a row.

    Nothing where some line is too odd.
    """
    pieces = plain.split(text) if len(lines) >= LEAST_STRETCH else []
    width = len(names) + 1
    if len(pieces) != len(lines) * width + 1:  # few lines, or a match that went past the end of one
        return {}
    columns = {name: pieces[at::width] for at, name in enumerate(names, 1)}
    odd = (
        [line for line, step in zip(lines, columns["step"], strict=True) if not step] if None in columns["step"] else []
    )
    if text.count(marker) - sum(line.count(marker) for line in odd) != len(lines) - len(odd):  # two rows on a line
        return {}
    return columns


def _stretches(columns: dict[str, list[Any]], numbers: Sequence[int], from_step: int) -> Iterator[tuple[int, Stretch]]:
    """The stretches among the lines of `numbers`, each with its offset."""
    if not columns:
        return
    step = columns["step"]
    # NaN follows nothing
    step = [math.nan if text is None else int(text) for text in step] if None in step else list(map(int, step))
    follows = map(operator.gt, step[1:], step)
    for name in ("epoch", "of"):
        if name in columns:
            follows = map(operator.and_, follows, map(operator.eq, columns[name][1:], columns[name]))
    flags = bytes(follows)
    end = 0
    while (start := flags.find(1, end)) >= 0:
        end = flags.find(0, start)
        end = end if end >= 0 else len(flags)
        while start < end and step[start] < from_step:
            start += 1
        if end - start >= LEAST_STRETCH:
            rows = slice(start + 1, end + 1)
            if (taken := _sound({name: column[rows] for name, column in columns.items()})) is not None:
                steps = list(map(operator.sub, step[rows], step[start:end]))
                yield start + 1, Stretch(lines=numbers[rows], columns=taken, step=step[rows], steps=steps)


_NUMBERS = ("rate", "cost", "wait")  # of every row; the other texts are read at the end, of the rows that are kept


def _sound(columns: dict[str, list[Any]]) -> dict[str, list[Any]] | None:
    """The columns, without those that no row prints, numbers as such; None where one is no number, rate or time."""
    taken = {name: column for name, column in columns.items() if any(column)}
    for name in _NUMBERS:
        if name in taken:
            try:
                taken[name] = values = list(map(float, taken[name]))
            except (TypeError, ValueError):
                return None
            if name != "wait" and not (min(values) > _LEAST and max(values) < _MOST):
                return None
    return taken


class _Rows:
    """Lines one by one: see `rows`."""

    def __init__(self, lines: Lines, marker: str, own: str, head: re.Pattern[str], row: re.Pattern[str]) -> None:
        self.lines = lines
        self.marker = marker
        self.own = own
        self.head = head
        self.row = row
        self.begun = False  # a row was met
        self.speaker: int | None = None
        self.broken: tuple[int, str] | None = None

    def untagged(self, text: str) -> tuple[str, Callable[[str], str | None] | None]:
        """`text` and what makes a line of it bare; without the latter where one prefix stood before every line."""
        if self.speaker is None:
            ranks = {self.lines.rank_of(line) for line in text.split("\n") if self.marker in line} - {None}
            self.speaker = min(ranks, default=None)  # type: ignore[type-var]
        bare = self.lines.untag_all(text)
        return (bare, None) if bare is not None and self.lines.rank == self.speaker else (text, self._bare)

    def _bare(self, line: str) -> str | None:
        """The line without prefixes; None for a row of a rank that does not count."""
        bare, rank = self.lines.untag(line), self.lines.rank
        heard = rank is None or self.speaker is None or rank == self.speaker
        return bare if heard or self.marker not in bare else None

    def read_halves(
        self, block: list[str], first: int, start: int, end: int, mine: Callable[[str], str | None] | None
    ) -> Iterator[tuple[int, str, re.Match[str] | None]]:
        """The lines from `start` to `end`, as long as a row that was broken off waits for its other half."""
        while self.broken is not None and start < end:
            if (line := mine(block[start]) if mine else block[start]) is not None:
                yield from self.read(first + start, line)
            start += 1

    def read(self, number: int, line: str) -> Iterator[tuple[int, str, re.Match[str] | None]]:
        """What the line holds."""
        marker, search = self.marker, self.row.search
        if marker not in line:
            if self.broken is not None:
                whole = self.broken[1] + " " + line
                if self.own not in line and (match := search(whole, 0, MAX_ROW_CHARS)):
                    self.begun = True
                    yield self.broken[0], whole, match
                    self.broken = None
                    return
                if number - self.broken[0] >= 5:
                    self.broken = None
            yield number, line, None
            return
        single = line.count(marker) == 1 and len(line) <= MAX_ROW_CHARS
        starts = [0] if single else [found.start() for found in self.head.finditer(line)] or [0]
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            match = search(line, start, min(end, start + MAX_ROW_CHARS))
            last = match is None and end == len(line) and len(line) - start <= MAX_ROW_CHARS
            self.broken = (number, line[start:]) if last and self.head.search(line, start) else None
            self.begun = self.begun or match is not None
            yield number, line[start:end], match
