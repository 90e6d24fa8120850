"""Lines of a log of any bytes, without colours, NUL bytes and mpirun's prefixes."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 16  # of a longer line only the start is read
_BLOCK_LINES = 1_000  # from the first of them with rows it shows which ranks print any
_CUT = "\x03"  # stands after a line of which the end is missing: a number right before it may be half of one
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
        self._begun: list[int] = []  # first lines of the runs of which a row was met
        self._start = span[0]  # of what may become the next run
        self._in_run = False  # whether a row was met since
        self._seen: set[str] = set()  # of STARTS, since then

    def start(self, number: int, text: str) -> None:
        """Line `number` may be what a run prints as it begins."""
        if clue := _clue(text):
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

    def texts(self) -> Iterator[str]:
        """Each line of the stream, prefixes included."""
        while raw := self.stream.readline(MAX_LINE_BYTES):
            rest = raw
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):  # passed over
                rest = self.stream.readline(MAX_LINE_BYTES)
            text = _COLOUR.sub(b"", raw.replace(b"\x00", b"")).decode("utf-8", "replace")
            yield text[:-1] if text.endswith("\n") else text + _CUT

    def of_lowest_rank(self, marker: str) -> Iterator[tuple[int, str]]:
        """(1-based number, text) of each line, less the lines with `marker` of all ranks but the lowest."""
        speaker: int | None = None
        first, last = self.span
        numbered = itertools.islice(enumerate(self.texts(), 1), first - 1, last)
        while block := [(line, *self._untagged(line, text)) for line, text in itertools.islice(numbered, _BLOCK_LINES)]:
            if speaker is None:
                ranks = [rank for _, text, rank in block if rank is not None and marker in text]
                speaker = min(ranks, default=None)
            for line, text, rank in block:
                if rank is None or speaker in (None, rank) or (marker not in text and _clue(text) is None):
                    yield line, text

    def _untagged(self, number: int, line: str) -> tuple[str, int | None]:
        """The line without prefixes, and the rank that the first of them names."""
        match = _TAG.search(line) if "]<std" in line else None
        if match is None:
            return line, None
        self.ranks.setdefault(int(match[1]), number)
        if match.start() > 40:  # no prefix: some other process's line, or a piece of one
            return _TAG.sub("", line), None
        return _TAG.sub("", line[match.end() :].removeprefix(" ")), int(match[1])


def _clue(text: str) -> str | None:
    """The word of STARTS that the line holds."""
    return next((clue for clue in STARTS if clue in text), None)
