"""Lines of a log of any bytes, without colours, NUL bytes and mpirun's prefixes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

CHUNK_BYTES = 1 << 17
MAX_LINE_CHARS = 1 << 16  # of a longer line only the start is read
_CUT = "\x03"  # stands after a last line without an end: a number right before it may be half of one
_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07)")
# Open MPI's --tag-output: `[1,0]<stdout>:`, `[prterun-host-1@1,0]<stdout>: `; --timestamp-output puts the
# time before it. A prefix may stand inside a line, where a process wrote the line in pieces.
_TAG = re.compile(r"\[(?:[\w.-]+@)?\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>:")
# What a run prints as it begins. One that a start prints once tells two starts apart though the first printed no row.
_ONCE = (
    "powered by PaddlePaddle",
    "Environment Information",
    "Environment info:",
    "System environment:",
    '{"env_info": ',
    "Base params: {",
    "Namespace(batch_",
)
STARTS = (
    *_ONCE,
    "--  Configuration ",
    " - PARAMETER ",
    '"PARAMETER"',
    ") Model HParams:",
    "Start with arguments Namespace(",
    "PADDLE_TRAINERS_NUM",
    ", replicas ",
)

Span = tuple[int, "int | None"]  # first and last line of a run; None: to the end of the log


class Lines:
    """The lines of a stream without colours, NUL bytes and mpirun's prefixes."""

    def __init__(self, stream: BinaryIO, span: Span = (1, None)) -> None:
        self.stream = stream
        self.span = span
        self.ranks: dict[int, int] = {}  # of every prefix met so far, and its first line
        self._may_start = False  # whether the lines that come now may hold one of STARTS
        self._begun: list[int] = []  # first lines of the runs of which a row was met
        self._start = span[0]  # of what may become the next run
        self._in_run = False  # whether a row was met since
        self._seen: set[str] = set()  # of STARTS, since then

    def start(self, number: int, text: str) -> None:
        """Line `number` may be what a run prints as it begins."""
        if (clue := self._clue(text)) is None:
            return
        # Where a word that a start prints once comes again the start before came to nothing.
        self.begin(number, anew=clue in _ONCE and clue in self._seen)
        self._seen.add(clue)

    def begin(self, number: int, *, anew: bool = False) -> None:
        """A run begins on line `number`, if a row stands before it, or `anew`."""
        if self._in_run or anew:
            self._start, self._in_run, self._seen = number, False, set()

    def row(self, number: int) -> None:
        """Line `number` is a row."""
        if not self._in_run:
            self._begun.append(self._start)
            self._in_run = True

    def runs(self, restarts: Iterable[tuple[int, int]]) -> list[Span]:
        """The runs of the log. Starts without a row behind them are none.

        `restarts` are (line of a row, line of the next), whose counters went back; a start may stand between them.
        """
        unsaid = [row for before, row in restarts if not any(before < first <= row for first in self._begun)]
        firsts = sorted([*self._begun, *unsaid]) or [self.span[0]]
        return list(zip(firsts, [*(first - 1 for first in firsts[1:]), self.span[1]], strict=True))

    def blocks(self) -> Iterator[str]:
        """Whole lines, about CHUNK_BYTES at a time; each block but the last had a newline at its end."""
        rest = b""
        overlong = False
        while data := self.stream.read(CHUNK_BYTES):
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
                yield clean(data[:-1])
        if rest:
            yield clean(rest) + _CUT

    def of_lowest_rank(self, marker: str) -> Iterator[tuple[int, str]]:
        """(1-based number, text) of each line, less the lines with `marker` of all ranks but the lowest."""
        number = 0
        speaker: int | None = None
        first, last = self.span
        for block in self.blocks():
            texts = block.split("\n")
            self._may_start = any(clue in block for clue in STARTS)
            if number + 1 < first:
                passed = min(first - 1 - number, len(texts))
                del texts[:passed]
                number += passed
            if last is not None:
                del texts[max(0, last - number) :]
            if "]<std" not in block:
                yield from enumerate(texts, number + 1)
            else:
                tagged = [(line, *self._untagged(text, line)) for line, text in enumerate(texts, number + 1)]
                if speaker is None:
                    speaker = min(
                        (rank for _, text, rank in tagged if rank is not None and marker in text), default=None
                    )
                for line, text, rank in tagged:
                    if rank is None or speaker in (None, rank) or (marker not in text and self._clue(text) is None):
                        yield line, text
            number += len(texts)

    def _clue(self, text: str) -> str | None:
        """The word of STARTS that the line holds."""
        return next((clue for clue in STARTS if clue in text), None) if self._may_start else None

    def _untagged(self, line: str, number: int) -> tuple[str, int | None]:
        """The line without prefixes, and the rank that the first of them names."""
        match = _TAG.search(line)
        if match is None:
            return line, None
        self.ranks.setdefault(int(match[1]), number)
        if match.start() > 40:  # no prefix: some other process's line, or a piece of one
            return _TAG.sub("", line), None
        return _TAG.sub("", line[match.end() :].removeprefix(" ")), int(match[1])


def clean(data: bytes) -> str:
    """Text without colours and NUL bytes; what is no UTF-8 becomes the replacement character."""
    if b"\x00" in data:
        data = data.translate(None, b"\x00")
    if b"\x1b" in data:
        data = _COLOUR.sub(b"", data)
    return data.decode("utf-8", "replace")
