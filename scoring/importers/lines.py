"""Lines of a log of any bytes, without colours, NUL bytes and mpirun's prefixes."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

MAX_LINE_BYTES = 1 << 16  # only the start of a longer line is read
_BLOCK_LINES = 1_000  # the first block of lines with a row shows which ranks print rows
_PREFIX_CHARS = 40  # a tag that starts later in a line is another process's text inside it
_CUT = "\x03"  # stands after a line whose end is missing: a number right before it may be half of one
_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07)")
# Open MPI's --tag-output: `[1,0]<stdout>:`, `[prterun-host-1@1,0]<stdout>: `; --timestamp-output puts the
# time before it. A prefix may stand inside a line, where a process wrote the line in pieces.
_RANK_TAG = re.compile(r"\[(?:[\w.-]+@)?\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>:")
# Words that every start of a tool prints exactly once: the second of them tells that the first start came to nothing.
_ONCE = (
    "powered by PaddlePaddle",
    "Environment Information",
    "Environment info:",
    "System environment:",
    '{"env_info": ',
    "Base params: {",
    "Namespace(batch_",
)
# Words that tools print as they start.
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


class TaggedLine(NamedTuple):
    """A line without its mpirun prefix, and the rank that the prefix named."""

    number: int
    text: str
    rank: int | None


class Lines:
    """The lines of a stream, and where the runs in it begin.

    The reader of a format calls `look_for_start` for each line that is no row and `note_row` for each line that is one.
    From these calls `runs` tells how many runs the log holds.
    """

    def __init__(self, stream: BinaryIO, span: Span = (1, None)) -> None:
        self.stream = stream
        self.span = span
        self.ranks: dict[int, int] = {}  # rank of each prefix, and the first line that has it
        self._first_lines: list[int] = []  # first line of each run that has a row
        self._possible_start = span[0]  # first line of the next run, should a row follow
        self._has_row = False  # whether a row was met since then
        self._start_words: set[str] = set()  # words of STARTS met since then

    def look_for_start(self, number: int, text: str) -> None:
        """Take note of line `number` if its text is what a tool prints as it starts."""
        word = _start_word(text)
        if word is None:
            return

        repeated = word in _ONCE and word in self._start_words
        self.begin_run(number, anew=repeated)
        self._start_words.add(word)

    def begin_run(self, number: int, *, anew: bool = False) -> None:
        """Let a run begin on line `number` if a row was met since the last start, or if `anew` is set."""
        if self._has_row or anew:
            self._possible_start = number
            self._has_row = False
            self._start_words = set()

    def note_row(self, number: int) -> None:
        """Take note that line `number` is a row: the start before it is the start of a run."""
        if not self._has_row:
            self._first_lines.append(self._possible_start)
            self._has_row = True

    def runs(self, restarts: Iterable[tuple[int, int]]) -> list[Span]:
        """Return the first and the last line of each run of the log, in order; the span that was read if it has no run.

        A run begins where a tool printed that it starts, if rows follow. It begins too where the step counters go back:
        `restarts` has the lines of the row before and of the row after each such place. The row after begins a run
        unless a tool's start between the two rows already did. The last line is None for a run that goes on to the end
        of the log.
        """
        first_lines = list(self._first_lines)
        for line_before, line_after in restarts:
            has_start_between = any(line_before < start <= line_after for start in self._first_lines)
            if not has_start_between:
                first_lines.append(line_after)
        if not first_lines:
            return [self.span]

        first_lines.sort()
        spans: list[Span] = []
        for first, next_first in itertools.zip_longest(first_lines, first_lines[1:]):
            last = self.span[1] if next_first is None else next_first - 1
            spans.append((first, last))
        return spans

    def texts(self) -> Iterator[str]:
        """Yield each line of the stream with its prefix, without colours and NUL bytes."""
        while raw := self.stream.readline(MAX_LINE_BYTES):
            rest = raw
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):  # the rest of a long line is dropped
                rest = self.stream.readline(MAX_LINE_BYTES)

            text = _COLOUR.sub(b"", raw.replace(b"\x00", b"")).decode("utf-8", "replace")
            yield text[:-1] if text.endswith("\n") else text + _CUT

    def of_lowest_rank(self, marker: str) -> Iterator[tuple[int, str]]:
        """Yield the number, from 1, and the text of each line, without the rows that several ranks print alike.

        mpirun can put before each line the rank that wrote it. Where every rank prints the same rows, those of one rank
        are enough, which is the lowest rank that prints any:

            [1,0]<stdout>: loss 0.5     ->  loss 0.5
            [1,1]<stdout>: loss 0.5     ->  left out
            [1,1]<stdout>: saved to /x  ->  saved to /x

        A row is a line that holds the text `marker`, such as `loss`. A line that a tool prints as it starts is left out
        of the other ranks too. Every other line is yielded, whatever its rank.
        """
        rank_of_rows: int | None = None  # the lowest rank that prints rows; None before the first block with a row
        for block in self._blocks_of_lines():
            if rank_of_rows is None:
                rank_of_rows = _lowest_rank_with_rows(block, marker)
            for line in block:
                is_of_another_rank = line.rank is not None and rank_of_rows is not None and line.rank != rank_of_rows
                may_be_repeated = marker in line.text or _start_word(line.text) is not None
                if not (is_of_another_rank and may_be_repeated):
                    yield line.number, line.text

    def _blocks_of_lines(self) -> Iterator[list[TaggedLine]]:
        """Yield the lines of the span, without mpirun's tags, in blocks of _BLOCK_LINES lines."""
        first, last = self.span
        numbered = itertools.islice(enumerate(self.texts(), 1), first - 1, last)
        while block := list(itertools.islice(numbered, _BLOCK_LINES)):
            yield [self._untagged(number, text) for number, text in block]

    def _untagged(self, number: int, text: str) -> TaggedLine:
        """Return a line without the tags by which mpirun says which rank wrote it, and that rank.

        `[1,3]<stdout>: loss 0.5` becomes `loss 0.5` of rank 3, and a line without a tag is of rank None. So is a line
        whose first tag stands behind _PREFIX_CHARS characters: another process wrote a piece of text into it. The first
        line with a tag of a rank is noted in `ranks`.
        """
        match = _RANK_TAG.search(text) if "]<std" in text else None
        if match is None:
            return TaggedLine(number, text, None)

        rank = int(match[1])
        self.ranks.setdefault(rank, number)
        if match.start() > _PREFIX_CHARS:
            return TaggedLine(number, _RANK_TAG.sub("", text), None)
        text_after_tag = text[match.end() :].removeprefix(" ")
        return TaggedLine(number, _RANK_TAG.sub("", text_after_tag), rank)


def _lowest_rank_with_rows(lines: Sequence[TaggedLine], marker: str) -> int | None:
    """Return the lowest rank that prints a line with `marker`; None where no rank does."""
    ranks = [line.rank for line in lines if line.rank is not None and marker in line.text]
    return min(ranks, default=None)


def _start_word(text: str) -> str | None:
    """Return the first word of STARTS that the line holds; None where it holds none."""
    for word in STARTS:
        if word in text:
            return word
    return None
