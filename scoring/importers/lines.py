"""Lines of a log of any bytes, without colours, NUL bytes and mpirun's prefixes."""

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from runlog.reader import RANK_TAG
from scoring.importers.text import CUT, MAX_ROW_CHARS

MAX_LINE_BYTES = 1 << 16  # of a longer line only the start and the end are read, of at most so many bytes each
_BLANKS = " " * MAX_ROW_CHARS
_BLOCK_LINES = 1_000  # long enough to hold rows of all ranks that print rows, if of any
_PREFIX_CHARS = 40  # a tag that starts later in a line is another process's text inside it
_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07|\([0AB])")  # `(B` is in tput's end of colours
_OF_PRINTED_NUMBERS = "0123456789.,eE+-"
_OF_JSON = b'{"'  # begins a line of a collector of logs
# The keys under which collectors keep the line that a program printed: Docker's file <container>-json.log and Fluentd
# `log`, Elasticsearch and CloudWatch `message`, systemd's journal `MESSAGE`, Loki `line`, Google Cloud `textPayload`.
_KEYS_OF_OUTPUT = ("log", "message", "MESSAGE", "line", "textPayload")
# With --timestamp-output the time stands before it. It may stand inside a line that a process wrote in pieces.
_RANK_TAG = re.compile(f"{RANK_TAG}:")
# Labels of the process that wrote a line, as other launchers print them: srun's `3: `, torchrun's `[rank3]: ` and
# `[default3]:`, Hydra's `[3] `, compose's `trainer-3  | `, kubectl's `[pod/trainer-3/main] ` (of an indexed job
# `[pod/trainer-3-x7k2p/main] `). The time of a container's log may stand before it. Such text may also be a line's own.
_LABEL = re.compile(
    r"\s{0,9}(?:\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[-+]\d\d:\d\d) (?:std(?:out|err) F )?)?"
    r"(?:(\d{1,5}): |\[(?:rank|default)?(\d{1,5})\](?::| )|[\w.-]{1,40}?[-_](\d{1,5})\s{1,20}\| "
    r"|\[pod/[\w.-]{1,60}?-(\d{1,5})(?:-[a-z0-9]{5})?/[\w.-]{1,60}\] )"
)
# Words that every start of a tool prints exactly once. A second one without a row between shows a start that failed.
_ONCE_PER_START = (
    "powered by PaddlePaddle",
    "Environment Information",
    "Environment info:",
    "System environment:",
    '{"env_info": ',
    "Base params: {",
    "Namespace(batch_",
    "Namespace(data_dir=",
    ": num_gpu_per_node = ",
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

LineRange = tuple[int, "int | None"]  # first and last line of a run; None: to the end of the log


class TaggedLine(NamedTuple):
    """A line without its mpirun tags, and the rank that wrote it, as far as it is known."""

    number: int
    text: str
    rank: int | None  # in mpirun's tag before the line, such as `[1,3]<stdout>:`
    label: int | None = None  # in a label of another launcher, such as `3: `, or else a number of the line's own text


class _WithLineFeeds(io.RawIOBase):
    """A stream of bytes with line feeds in place of carriage returns."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return how many; 0 at the end of the stream."""
        data = self._stream.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(data)] = data
        return len(data)


class _Kept(NamedTuple):
    """The rank whose rows are kept, by each way in which a line names the rank that wrote it.

    None: no row has named a rank in this way so far, so that no line is left out by it.
    """

    rank: int | None  # by mpirun's tags
    label: int | None  # by the labels of another launcher


class Restart(NamedTuple):
    """Two successive rows between which the step counter goes back."""

    line_before: int  # the line of the earlier row
    line_after: int  # the line of the later row


@dataclass
class _PossibleStart:
    """A line on which a run may begin, and what came since."""

    line: int
    words: set[str] = field(default_factory=set)  # the START_WORDS on it and since; `note_if_start` adds them
    has_row: bool = False  # a row came since, which makes it the start of a run; `confirm_run` sets it

    def is_over_before(self, word: str) -> bool:
        """Whether a startup line with one of START_WORDS is of a new start, and not another line of this one.

        It is new if a row came since this start, or if this start has printed the word and prints it only once: then
        this start has failed.
        """
        has_failed = word in _ONCE_PER_START and word in self.words
        return self.has_row or has_failed


class Lines:
    """The lines of a stream, and where the runs in it begin.

    A row is a line that a program prints of its training steps. The reader of a format calls `confirm_run` for each
    row and `note_if_start` for each other line. From these calls `runs` works out which runs the log holds.
    """

    def __init__(self, stream: BinaryIO, span: LineRange = (1, None)) -> None:
        self.stream = _with_ended_lines(stream)
        self.span = span
        self.ranks: dict[int, int] = {}  # by rank: the first line with a tag of it
        self._confirmed_starts: list[int] = []  # lines of the starts for which `confirm_run` was called
        self._last_start = _PossibleStart(span[0])  # noted last; at first, a run may begin on the first line of all
        self._last_startup_line = TaggedLine(0, "", None)  # the last line with START_WORDS, new start or not

    def note_if_start(self, number: int, text: str) -> None:
        """Note that a training run may begin on this line of a log, if the line shows that a tool was started anew.

        A tool prints several startup lines as it starts:

            line 1   powered by PaddlePaddle        the first start
            line 2   powered by PaddlePaddle        skipped as a copy of line 1: two programs may write one log
            line 3   --  Configuration Arguments    another line of the start on line 1
            line 9   powered by PaddlePaddle        a new start: a tool prints this once, so the start on line 1 failed
            line 20  a row: `confirm_run` is called, and a run begins on line 9
            line 50  --  Configuration Arguments    a new start: a row came since the last start

        Args:
            number: Number of the line in the log, from 1.
            text: Text of the line, which is not a row.
        """
        word = _start_word(text)
        if word is None:  # no startup line
            return
        startup_line_before = self._last_startup_line
        self._last_startup_line = TaggedLine(number, text, None)
        is_copy = number == startup_line_before.number + 1 and text == startup_line_before.text
        if is_copy:
            return

        if self._last_start.is_over_before(word):
            self._last_start = _PossibleStart(number)
        self._last_start.words.add(word)

    def note_possible_start(self, number: int) -> None:
        """Note that a training run may begin on a line, unless no row of figures came since the last noted start.

        The line begins a run only if `confirm_run` is called later.

        Args:
            number: Number of the line in the log, from 1.
        """
        if self._last_start.has_row:
            self._last_start = _PossibleStart(number)

    def confirm_run(self) -> None:
        """Make the last noted start the start of a run, because a row was read or the log says that the run began."""
        if not self._last_start.has_row:
            self._confirmed_starts.append(self._last_start.line)
            self._last_start.has_row = True

    def runs(self, restarts: Iterable[Restart]) -> list[LineRange]:
        """Return the first and the last line of each training run in the log. Call this after all lines are read.

        Args:
            restarts: Pairs of successive rows between which the step goes back.

        Returns:
            Pairs of line numbers in ascending order. None stands for the end of the log.
        """
        return _runs_between(self.span, self._confirmed_starts, restarts)

    def texts(self) -> Iterator[str]:
        """Yield the text of each line of the stream, without its newline, terminal colours and NUL bytes.

        Yields:
            Text of a line. Bytes that are not UTF-8 are replaced, and the rank tags of mpirun stay. The character CUT
            stands where text is missing, and for a number right before that, which may be incomplete.
        """
        while raw := self.stream.readline(MAX_LINE_BYTES):
            text = _text_of(raw)
            if raw.endswith(b"\n"):
                yield text
                continue
            end = self._end_of_line()
            if end:
                # A long line, of which the middle is dropped. The blanks are longer than any row, so that the start of
                # one row and the end of another are not read as one.
                yield f"{_without_cut_number(text)}{CUT}{_BLANKS}{_text_of(end)}"
            else:
                yield f"{_without_cut_number(text)}{CUT}"  # the last line, without a newline

    def _end_of_line(self) -> bytes:
        """Read the rest of a long line, whose start is read already, and return the end of it.

        Returns:
            The last MAX_LINE_BYTES bytes, with the newline, or with CUT behind them if the stream ends without one.
            Empty if the stream had ended before this call.
        """
        end = b""
        while piece := self.stream.readline(MAX_LINE_BYTES):
            end = (end + piece)[-MAX_LINE_BYTES:]
            if piece.endswith(b"\n"):
                return end
        if not end:
            return b""
        return end + CUT.encode()

    def without_repeated_rows(
        self, marker: str, other_figures: Sequence[re.Pattern[str]] = ()
    ) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each line of the run, leaving out lines that repeat those of another rank.

        Each rank may print the same rows of training figures, the same results and the same startup lines. Of these,
        the lines of the lowest rank that prints rows are kept. All other lines are kept of every rank.

            [1,0]<stdout>: loss 0.5     ->  loss 0.5        (a tag of mpirun, which is removed)
            [1,1]<stdout>: loss 0.5     ->  left out
            [1,1]<stdout>: saved to /x  ->  saved to /x
            0: loss 0.5                 ->  0: loss 0.5     (a label of another launcher)
            1: loss 0.5                 ->  left out

        Args:
            marker: Text that stands in every row of training figures.
            other_figures: Patterns of other lines with figures that each rank may print, such as those of evaluations.

        Yields:
            Number of the line, from 1, and its text without mpirun's tags.
        """
        kept = _Kept(rank=None, label=None)
        for block in self._blocks_of_lines():
            # Ranks print a row at about the same time, so the first block with a row has rows of all of them.
            kept = _Kept(
                rank=_lowest_rank_with_rows(block, marker) if kept.rank is None else kept.rank,
                label=_lowest_label_with_rows(block, marker) if kept.label is None else kept.label,
            )
            for line in block:
                is_repeated = _is_of_other(line, kept) and _may_repeat(line.text, marker, other_figures)
                if not is_repeated:
                    yield line.number, line.text

    def _blocks_of_lines(self) -> Iterator[list[TaggedLine]]:
        """Yield the lines of the run, without mpirun's tags, in lists of up to _BLOCK_LINES lines.

        Also note in `ranks`, for each rank that a tag names, the number of the first line with its tag.
        """
        first, last = self.span
        numbered_texts = enumerate(self.texts(), start=1)
        texts_of_run = itertools.islice(numbered_texts, first - 1, last)
        while block := list(itertools.islice(texts_of_run, _BLOCK_LINES)):
            yield [self._tagged_line(number, text) for number, text in block]

    def _tagged_line(self, number: int, text: str) -> TaggedLine:
        """Return a line with the rank that a launcher put before it, and note in `ranks` the first tag of each rank.

            [1,3]<stdout>: loss 0.5  -> `loss 0.5` of rank 3: a tag of mpirun, which is removed
            3: loss 0.5              -> `3: loss 0.5` of label 3, which stays in the text: it may be the line's own text

        Args:
            number: Number of the line in the log, from 1.
            text: The line.
        """
        tag = _first_tag(text)
        if tag is not None:
            rank_in_tag = int(tag[1])
            # Also by a tag inside the line, which shows that the rank exists.
            self.ranks.setdefault(rank_in_tag, number)
            return _without_tags(number, text, tag)
        label = _LABEL.match(text)
        if label is not None:
            return TaggedLine(number, text, rank=None, label=_number_in_label(label))
        return TaggedLine(number, text, rank=None)


def _runs_between(span: LineRange, starts: Sequence[int], restarts: Iterable[Restart]) -> list[LineRange]:
    """Return the first and the last line of each training run between two lines of a log.

    A run begins where a tool was started, and where the step goes back without a start. It ends on the line before the
    next run. Of lines 1 to the end,

        a start on line 40, and a step back on line 312  -> [(40, 311), (312, None)]
        only a step back on line 312                     -> [(1, 311), (312, None)]

    Args:
        span: The two lines. None as the second one stands for the end of the log.
        starts: Lines on which a tool was started, and behind which rows of training figures came.
        restarts: Pairs of successive rows between which the step goes back.

    Returns:
        Pairs of line numbers in ascending order.
    """
    steps_back = [restart.line_after for restart in restarts if not _has_start_within(restart, starts)]
    first_lines = sorted([*starts, *steps_back])
    is_first_start_printed = bool(first_lines) and first_lines[0] in starts
    if not is_first_start_printed:  # the rows before the first step back are a run, too, of which no line shows a start
        first_lines.insert(0, span[0])

    last_lines: list[int | None] = [first_of_next - 1 for first_of_next in first_lines[1:]]
    last_lines.append(span[1])
    return list(zip(first_lines, last_lines, strict=True))


def _has_start_within(restart: Restart, starts: Sequence[int]) -> bool:
    """Return whether a tool was started between two rows at which the step counter goes back.

    Args:
        restart: The two rows. A start on the line of the later one counts, too.
        starts: The lines of all starts.
    """
    return any(restart.line_before < start <= restart.line_after for start in starts)


def _with_ended_lines(stream: BinaryIO) -> BinaryIO:
    """Return a stream whose lines end with line feeds, also if they end with carriage returns alone.

    Args:
        stream: The log at its beginning. Without any line feed in it, its lines end with carriage returns.
    """
    has_line_feed = False
    while block := stream.read(MAX_LINE_BYTES):
        if b"\n" in block:
            has_line_feed = True
            break
    stream.seek(0)
    return stream if has_line_feed else io.BufferedReader(_WithLineFeeds(stream))


def _text_of(raw: bytes) -> str:
    """Return the text of a line's bytes, without its newline, terminal colours and NUL bytes."""
    if raw.startswith(_OF_JSON):
        raw = _output_in_json(raw)
    return _COLOUR.sub(b"", raw.replace(b"\x00", b"")).decode("utf-8", "replace").removesuffix("\n")


def _without_cut_number(text: str) -> str:
    """Return the text of a cut line without the number at its end: `loss: 2.6` may be the beginning of `loss: 2.6493`.

    Args:
        text: The text up to the place where it was cut. If it ends otherwise, it is returned as it is.
    """
    text_before = text.rstrip(_OF_PRINTED_NUMBERS)
    is_within_word = text_before[-1:].isalnum() or text_before.endswith("_")  # as the digit in `top5`
    return text if is_within_word else text_before


def _output_in_json(raw: bytes) -> bytes:
    """Return the line that a program printed, by a line of JSON in which a collector of logs keeps it.

    Args:
        raw: The line of JSON, as Docker's `{"log":"loss 0.5\\n","stream":"stdout","time":".."}`. It must begin with
            `{"`. If it is not whole JSON, or has none of _KEYS_OF_OUTPUT with a text, it is returned as it is.
    """
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    for key in _KEYS_OF_OUTPUT:
        printed = entry.get(key)  # it is an object, by its beginning
        if isinstance(printed, str):
            return printed.encode("utf-8", "replace")
    return raw


def _first_tag(text: str) -> re.Match[str] | None:
    """Return the match of the first rank tag of mpirun in a line, or None if it has none.

    Args:
        text: The line, such as `[1,3]<stdout>: loss 0.5`. Group 1 of the match is the rank, here 3.
    """
    may_have_tag = "]<std" in text  # faster than the pattern
    return _RANK_TAG.search(text) if may_have_tag else None


def _number_in_label(label: re.Match[str]) -> int:
    """Return the number in a launcher's label, such as 3 in `3: ` or in `[rank3]: `.

    Args:
        label: Match of the label. It has a group for each form of a label, and only one of them has matched.
    """
    [number] = [group for group in label.groups() if group is not None]
    return int(number)


def _without_tags(number: int, text: str, first_tag: re.Match[str]) -> TaggedLine:
    """Return a line without the rank tags of mpirun, and the rank that wrote the line.

    - A first tag behind at most _PREFIX_CHARS characters names this rank. Only a time stamp or the like stands before
      it, and is dropped: `12:30 [1,3]<stdout>: loss 0.5` becomes `loss 0.5` of rank 3.
    - A first tag further inside is of another process, which wrote into the line. The text before it stays.

    Args:
        number: Number of the line in the log.
        text: The line, with at least one tag.
        first_tag: Match of the first tag in the line. Its group 1 is the rank.

    Returns:
        The line with its number. Its rank is None if the first tag stands further inside.
    """
    is_prefix = first_tag.start() <= _PREFIX_CHARS
    if is_prefix:
        text_after_tag = text[first_tag.end() :].removeprefix(" ")
        return TaggedLine(number, _RANK_TAG.sub("", text_after_tag), int(first_tag[1]))
    return TaggedLine(number, _RANK_TAG.sub("", text), None)


def _is_of_other(line: TaggedLine, kept: _Kept) -> bool:
    """Return whether a tag or a label says that a line is of another rank than the one whose rows are kept.

    Args:
        line: The line.
        kept: The rank whose rows are kept.
    """
    tag_differs = line.rank is not None and kept.rank is not None and line.rank != kept.rank
    label_differs = line.label is not None and kept.label is not None and line.label != kept.label
    return tag_differs or label_differs


def _may_repeat(text: str, marker: str, other_figures: Sequence[re.Pattern[str]]) -> bool:
    """Return whether a line is one that each rank may print: a line with figures, or text of a tool's start.

    Args:
        text: The line.
        marker: Text that stands in every row of training figures.
        other_figures: Patterns of other lines with figures.
    """
    if marker in text or _start_word(text) is not None:
        return True
    return any(pattern.search(text[:MAX_ROW_CHARS]) for pattern in other_figures)


def _lowest_rank_with_rows(lines: Sequence[TaggedLine], marker: str) -> int | None:
    """Return the lowest rank that prints a row of training figures, or None if no rank does.

    Args:
        lines: Lines of the log, each with the rank that wrote it or None.
        marker: Text that stands in every row.
    """
    ranks = [line.rank for line in lines if line.rank is not None and marker in line.text]
    return min(ranks, default=None)


def _lowest_label_with_rows(lines: Sequence[TaggedLine], marker: str) -> int | None:
    """Return the lowest rank that prints a row of training figures, by the labels of a launcher other than mpirun.

    A label is a number at the beginning of a line, as in `3: loss 0.5`. It may also be the line's own text.

    Args:
        lines: Lines of the log, each with the number in its label or None.
        marker: Text that stands in every row.

    Returns:
        The rank. None if no row has a label, or if the labels do not seem to be ranks (`_are_ranks`).
    """
    labels_of_rows = {line.label for line in lines if line.label is not None and marker in line.text}
    labels_in_order = [line.label for line in lines if line.label is not None and line.label in labels_of_rows]
    return min(labels_of_rows) if _are_ranks(labels_in_order) else None


def _are_ranks(labels: Sequence[int]) -> bool:
    """Return whether the numbers at the beginnings of lines are ranks, and not seconds or line numbers of `grep -n`.

    Ranks count up from 0 or 1 without a gap, and write in turn, as in 0, 1, 0, 1. Seconds and line numbers only grow.

    Args:
        labels: The numbers, in the order of the lines.
    """
    distinct = set(labels)
    if len(distinct) < 2:
        return False
    lowest = min(distinct)
    highest = max(distinct)
    have_no_gap = highest - lowest + 1 == len(distinct)
    go_back = any(later < earlier for earlier, later in itertools.pairwise(labels))
    return lowest <= 1 and have_no_gap and go_back


def _start_word(text: str) -> str | None:
    """Return the text in a line that a training tool prints as it starts, or None if the line holds none.

    Args:
        text: The line. If it holds several such texts, the first one in START_WORDS counts.
    """
    for word in START_WORDS:
        if word in text:
            return word
    return None
