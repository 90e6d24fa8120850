"""Lines of a log of any bytes, without colours, NUL bytes and mpirun's prefixes."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

MAX_LINE_BYTES = 1 << 16  # only the start of a longer line is read
_BLOCK_LINES = 1_000  # long enough to hold rows of all ranks that print rows, if of any
_PREFIX_CHARS = 40  # a tag that starts later in a line is another process's text inside it
_CUT = "\x03"  # stands after a line whose end is missing: a number right before it may be half of one
_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07)")
# Open MPI's --tag-output: `[1,0]<stdout>:`, `[prterun-host-1@1,0]<stdout>: `; --timestamp-output puts the
# time before it. A prefix may stand inside a line, where a process wrote the line in pieces.
_RANK_TAG = re.compile(r"\[(?:[\w.-]+@)?\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>:")
# Words that every start of a tool prints exactly once. A second one without a row between shows a start that failed.
_ONCE_PER_START = (
    "powered by PaddlePaddle",
    "Environment Information",
    "Environment info:",
    "System environment:",
    '{"env_info": ',
    "Base params: {",
    "Namespace(batch_",
)
# Words that tools print as they start.
START_WORDS = (
    *_ONCE_PER_START,
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
    """A line without its mpirun tags, and the rank that the tag before it named."""

    number: int
    text: str
    rank: int | None


class Lines:
    """The lines of a stream, and where the runs in it begin.

    A row is a line that a program prints of its training steps. The reader of a format calls `confirm_run` for each
    row and `note_if_start` for each other line. From these calls `runs` works out which runs the log holds.
    """

    def __init__(self, stream: BinaryIO, span: Span = (1, None)) -> None:
        self.stream = stream
        self.span = span
        self.ranks: dict[int, int] = {}  # by rank: the first line with a tag of it
        self._first_lines: list[int] = []  # of each run that `confirm_run` has confirmed
        self._possible_start = span[0]  # the last noted start; a run if a row follows
        self._has_row = False  # whether a row came since that start
        self._words_of_start: set[str] = set()  # the START_WORDS that came since that start

    def note_if_start(self, number: int, text: str) -> None:
        """Note that a run may begin on line `number`, if the line's text is one that a tool prints as it starts.

        A tool prints several such texts as it starts:

        - The first of them is where the run begins.
        - The later ones are ignored until a row comes.
        - Some texts are printed exactly once per start. If one of them comes again before any row, the earlier start
          failed, and the run begins on line `number`.
        """
        word = _start_word(text)
        if word is None:
            return

        is_second_start = word in _ONCE_PER_START and word in self._words_of_start
        # `note_possible_start` ignores this line if the noted start has no row yet, unless the earlier start is to be
        # dropped. If it takes this line as the new start, it also empties `_words_of_start`.
        self.note_possible_start(number, drop_earlier_start=is_second_start)
        self._words_of_start.add(word)

    def note_possible_start(self, number: int, *, drop_earlier_start: bool = False) -> None:
        """Note that a run may begin on line `number`. It counts as a run only once `confirm_run` is called.

        Nothing happens if an earlier start is still without a row: the run then begins at that start. With
        `drop_earlier_start` it begins on line `number` nevertheless.
        """
        if self._has_row or drop_earlier_start:
            self._possible_start = number
            self._has_row = False
            self._words_of_start = set()

    def confirm_run(self) -> None:
        """Note that a row was read, which makes the last noted start the start of a run."""
        if not self._has_row:
            self._first_lines.append(self._possible_start)
            self._has_row = True

    def runs(self, restarts: Iterable[tuple[int, int]]) -> list[Span]:
        """Return the first and the last line of each run in the log. Call this after all lines are read.

        A run begins in two kinds of places:

        - at each start that `confirm_run` noted while the lines were read;
        - where the step counter goes back, unless such a start is there. `restarts` has (line of the row before, line
          of the row after) for each of these places; the run begins at the row after.

        A last line of None is the end of the log. A log without rows is returned as one run.
        """
        first_lines = list(self._first_lines)  # the starts that `confirm_run` noted
        for line_before, line_after in restarts:
            # A start that the tool prints between the two rows is already in the list: the run began there.
            has_start_between = any(line_before < start <= line_after for start in self._first_lines)
            if not has_start_between:
                first_lines.append(line_after)
        if not first_lines:  # no row
            return [self.span]

        first_lines.sort()
        last_line_of_span = self.span[1]
        last_lines = [next_first - 1 for next_first in first_lines[1:]]
        return list(zip(first_lines, [*last_lines, last_line_of_span], strict=True))

    def texts(self) -> Iterator[str]:
        """Yield the text of each line of the stream, without colours and NUL bytes. mpirun's prefixes stay in it.

        A line longer than MAX_LINE_BYTES is cut to its start. A text ends with _CUT if it is cut, or if the last line
        lacks its newline.
        """
        while raw := self.stream.readline(MAX_LINE_BYTES):
            rest = raw
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):  # skip the rest of a long line
                rest = self.stream.readline(MAX_LINE_BYTES)

            text = _COLOUR.sub(b"", raw.replace(b"\x00", b"")).decode("utf-8", "replace")
            yield text[:-1] if text.endswith("\n") else text + _CUT

    def without_repeated_rows(self, marker: str) -> Iterator[tuple[int, str]]:
        """Yield the number, from 1, and the text of each line, without the rows that several ranks print alike.

        mpirun can put before each line the rank that wrote it. If all ranks print the same rows, only those of the
        lowest rank that prints any are yielded:

            [1,0]<stdout>: loss 0.5     ->  loss 0.5
            [1,1]<stdout>: loss 0.5     ->  left out
            [1,1]<stdout>: saved to /x  ->  saved to /x

        A row is a line that holds the text `marker`, such as `loss`. Lines that a tool prints as it starts are also
        left out for the other ranks. Any other line is yielded, whatever its rank.

        The log is read in blocks of lines. The first block with a row shows which ranks print rows. Lines that stand
        before that block are all yielded.
        """
        rank_of_rows: int | None = None  # the lowest rank that prints rows; None before the first block with a row
        for block in self._blocks_of_lines():
            if rank_of_rows is None:
                # Ranks print a row at about the same time, so the first block with a row has rows of all of them.
                rank_of_rows = _lowest_rank_with_rows(block, marker)
            for line in block:
                is_of_another_rank = line.rank is not None and rank_of_rows is not None and line.rank != rank_of_rows
                is_row_or_start = marker in line.text or _start_word(line.text) is not None
                is_repeated = is_of_another_rank and is_row_or_start
                if not is_repeated:
                    yield line.number, line.text

    def _blocks_of_lines(self) -> Iterator[list[TaggedLine]]:
        """Yield the lines of the span, without mpirun's tags, in blocks of _BLOCK_LINES lines."""
        first, last = self.span
        numbered = itertools.islice(enumerate(self.texts(), 1), first - 1, last)
        while block := list(itertools.islice(numbered, _BLOCK_LINES)):
            yield [self._untagged(number, text) for number, text in block]

    def _untagged(self, number: int, text: str) -> TaggedLine:
        """Return a line without mpirun's tags, which say which rank wrote it, and the rank of its first tag.

        - `[1,3]<stdout>: loss 0.5` -> `loss 0.5` of rank 3. A short text before the tag, such as a time, is dropped.
        - A line without a tag has the rank None.
        - A first tag behind more than _PREFIX_CHARS characters is no prefix: another process wrote into the line. The
          text before the tag is kept, and the rank is None.

        The first line with a tag of a rank is noted in `ranks`.
        """
        may_have_tag = "]<std" in text  # faster than the pattern
        match = _RANK_TAG.search(text) if may_have_tag else None
        if match is None:
            return TaggedLine(number, text, None)

        rank = int(match[1])
        self.ranks.setdefault(rank, number)
        is_inside_line = match.start() > _PREFIX_CHARS
        if is_inside_line:  # another process wrote into the line, so the tag does not say who began it
            return TaggedLine(number, _RANK_TAG.sub("", text), None)
        text_after_tag = text[match.end() :].removeprefix(" ")
        return TaggedLine(number, _RANK_TAG.sub("", text_after_tag), rank)


def _lowest_rank_with_rows(lines: Sequence[TaggedLine], marker: str) -> int | None:
    """Return the lowest rank that prints a line with `marker`, or None if no rank does."""
    ranks = [line.rank for line in lines if line.rank is not None and marker in line.text]
    return min(ranks, default=None)


def _start_word(text: str) -> str | None:
    """Return the first of START_WORDS that the line holds, or None if it holds none."""
    for word in START_WORDS:
        if word in text:
            return word
    return None
