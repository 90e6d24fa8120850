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
_OF_DOCKER = b'{"log":"'  # begins a line of the file <container>-json.log
# With --timestamp-output the time stands before it. It may stand inside a line that a process wrote in pieces.
_RANK_TAG = re.compile(f"{RANK_TAG}:")
# Labels of the process that wrote a line, as other launchers print them: srun's `3: `, torchrun's `[rank3]: ` and
# `[default3]:`, Hydra's `[3] `, compose's `trainer-3  | `, kubectl's `[pod/trainer-3/main] ` (of an indexed job
# `[pod/trainer-3-x7k2p/main] `). Such text may also be a line's own.
_LABEL = re.compile(
    r"\s{0,9}(?:(\d{1,5}): |\[(?:rank|default)?(\d{1,5})\](?::| )|[\w.-]{1,40}?[-_](\d{1,5})\s{1,20}\| "
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
    """A line without its mpirun tags, and the rank that the tag before it named."""

    number: int
    text: str
    rank: int | None
    label: int | None = None  # the number in another launcher's label, if the line seems to begin with one


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

        A startup line has words that a tool prints as it starts, such as "powered by PaddlePaddle". Any other line
        changes nothing. A tool prints several startup lines, so a startup line is a new start only if a row of training
        figures came since the last start, or if the last start failed. Until a start is noted, the first line of all
        counts as the last start:

            line 1   powered by PaddlePaddle        belongs to the start on line 1
            line 2   powered by PaddlePaddle        skipped as a copy of line 1: two programs may write one log
            line 3   --  Configuration Arguments    belongs to the start on line 1
            line 9   powered by PaddlePaddle        a new start: a tool prints this once, so the start on line 1 failed
            line 20  a row, for which `confirm_run` is called: a run begins on line 9
            line 50  --  Configuration Arguments    a new start: a row came since the last start

        Args:
            number: Number of the line in the log, from 1.
            text: Text of the line, which is not a row.
        """
        word = _start_word(text)  # such as "powered by PaddlePaddle"; None if this is no startup line
        if word is None:
            return
        line_before = self._last_startup_line
        is_copy = number == line_before.number + 1 and text == line_before.text
        self._last_startup_line = TaggedLine(number, text, None)  # also a copy, so that a copy of the copy is found
        if is_copy:
            return
        row_came_since = self._last_start.has_row
        # A word that each start prints just once comes again: the start that printed the word before has failed.
        last_start_failed = word in _ONCE_PER_START and word in self._last_start.words
        if row_came_since or last_start_failed:
            self._last_start = _PossibleStart(number)
        self._last_start.words.add(word)  # of the new start, or of the old one if this line is no new start

    def note_possible_start(self, number: int) -> None:
        """Note that a training run may begin on a line, unless no row of figures came since the last noted start.

        The line begins a run only if `confirm_run` is called later.

        Args:
            number: Number of the line in the log, from 1.
        """
        if self._last_start.has_row:
            self._last_start = _PossibleStart(number)

    def confirm_run(self) -> None:
        """Note that a row was read, which makes the last noted start the start of a run."""
        if not self._last_start.has_row:
            self._confirmed_starts.append(self._last_start.line)
            self._last_start.has_row = True

    def runs(self, restarts: Iterable[Restart]) -> list[LineRange]:
        """Return the first and the last line of each training run in the log. Call this after all lines are read.

        A row is a line that a program prints of its training steps. A run begins

        - at each confirmed start (`confirm_run`): a line with startup text, such as "powered by PaddlePaddle", or one
          that opens a run in an MLLOG log, or the first line of all, if a row or MLLOG's `run_start` followed,
        - at each row where the step counter goes back, if no confirmed start lies between this row and the row before,
        - and at the first line of all, if the first of these beginnings is a row where the step counter goes back: the
          rows before it are a run, too.

        Each run ends on the line before the next one begins. Lines before the first run are of starts that failed.

            a start on line 40, and a step back on line 312  -> [(40, 311), (312, None)]
            only a step back on line 312                     -> [(1, 311), (312, None)]

        Args:
            restarts: Pairs of successive rows between which the step goes back.

        Returns:
            Pairs of line numbers in ascending order. None stands for the end of the log. Without any beginning, all
            lines of `span` are one run.
        """
        steps_back = [restart.line_after for restart in restarts if not self._has_start_within(restart)]
        if not self._confirmed_starts and not steps_back:
            return [self.span]

        first_lines = sorted([*self._confirmed_starts, *steps_back])
        begins_by_step_back = first_lines[0] not in self._confirmed_starts
        if begins_by_step_back:  # rows came before it, so these are a run
            first_lines.insert(0, self.span[0])
        last_lines: list[int | None] = [first_of_next - 1 for first_of_next in first_lines[1:]]
        last_lines.append(self.span[1])
        return list(zip(first_lines, last_lines, strict=True))

    def _has_start_within(self, restart: Restart) -> bool:
        """Return whether a training run has a confirmed start between two rows at which the step counter goes back.

        Args:
            restart: The two rows. A start on the line of the later one counts, too.
        """
        return any(restart.line_before < start <= restart.line_after for start in self._confirmed_starts)

    def texts(self) -> Iterator[str]:
        """Yield the text of each line of the stream, without its newline, terminal colours and NUL bytes.

        Yields:
            Text of a line. Bytes that are not UTF-8 are replaced, and the rank tags of mpirun stay. The character CUT
            stands where a text was cut: a number right before CUT may be incomplete.

                a line of at most MAX_LINE_BYTES with newline    -> its text
                a longer line                                    -> its start, CUT, blanks, its end
                a last line without a newline                    -> the same, and CUT behind it

            The start and the end of a longer line have MAX_LINE_BYTES bytes at most, and what lies between is dropped.
            The blanks are longer than any row, so that the start of one row and the end of another are not read as one.
        """
        while raw := self.stream.readline(MAX_LINE_BYTES):
            text = _text_of(raw)
            is_whole_line = raw.endswith(b"\n")
            if not is_whole_line:
                # The last bytes of the rest of the line. Empty if the stream has ended: then a newline is missing.
                end = self._end_of_line()
                text += f"{CUT}{_BLANKS}{_text_of(end)}" if end else CUT
            yield text

    def _end_of_line(self) -> bytes:
        """Read the rest of a long line, whose start is read already, and return the end of it.

        Returns:
            The last bytes before the newline and the newline, about MAX_LINE_BYTES at most. The bytes before them, the
            middle of the line, are dropped.

            - If the stream ends without a newline, CUT stands in its place, the character that marks missing text.
            - If the stream had ended before this call, the result is empty.
        """
        end = b""
        piece = self.stream.readline(MAX_LINE_BYTES)
        while piece:
            end = (end + piece)[-MAX_LINE_BYTES:]
            if piece.endswith(b"\n"):
                return end
            piece = self.stream.readline(MAX_LINE_BYTES)
        return end + CUT.encode() if end else end

    def without_repeated_rows(self, marker: str) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each line of the run, leaving out lines that repeat those of another rank.

        Before each line may stand the rank that wrote it:

        - In a tag of mpirun, as `[1,0]<stdout>:`. It always names a rank, and is removed.
        - In a label of another launcher, as `0: `. Such a number may also be the line's own text, such as seconds, so
          it stays. `_lowest_label_with_rows` decides whether the labels of this log are ranks.

        Each rank may print the same rows of training figures and the same startup lines of a tool. If a tag or a label
        names the rank, lines of these two kinds are kept only of the lowest rank that prints rows. All other lines are
        kept.

            [1,0]<stdout>: loss 0.5     ->  loss 0.5        (a tag)
            [1,1]<stdout>: loss 0.5     ->  left out
            [1,1]<stdout>: saved to /x  ->  saved to /x
            0: loss 0.5                 ->  0: loss 0.5     (a label)
            1: loss 0.5                 ->  left out

        By tags, the first block of _BLOCK_LINES lines in which a row has a tag shows which rank is the lowest. By
        labels, it is the first block in which the labels count as ranks. All lines of earlier blocks are kept.

        Args:
            marker: Text that stands in every row of training figures.

        Yields:
            Number of the line, from 1, and its text without mpirun's tags.
        """
        # The lowest rank that prints rows, by the tags and by the labels. None: no line is left out by them (yet).
        kept_rank: int | None = None
        kept_label: int | None = None  # stays None if the labels are the lines' own text
        for block in self._blocks_of_lines():
            # Ranks print a row at about the same time, so the first block with a row has rows of all of them.
            if kept_rank is None:
                kept_rank = _lowest_rank_with_rows(block, marker)
            if kept_label is None:
                kept_label = _lowest_label_with_rows(block, marker)
            for line in block:
                is_repeated = _is_of_other(line.rank, kept_rank) or _is_of_other(line.label, kept_label)
                # `_may_repeat` is True for a row and for a startup line.
                if not (is_repeated and _may_repeat(line.text, marker)):
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

        - mpirun's tags, as in `[1,3]<stdout>: loss 0.5`: `_without_tags` removes all tags of the line. Where at most
          40 characters (_PREFIX_CHARS) stand before the first tag, `_without_tags` removes these, too, and sets `rank`
          to the rank in this tag, here 3. Where the first tag is further inside, another rank wrote into the line, and
          `rank` is None. `ranks` notes that other rank all the same, because the tag shows that it exists.
        - A line without a tag may have the label of another launcher, as in `3: loss 0.5`. Its number becomes `label`.
          The label stays in the text, because the number may also be the line's own text.

        Args:
            number: Number of the line in the log, from 1.
            text: The line.
        """
        tag = _first_tag(text)
        if tag is not None:
            self.ranks.setdefault(int(tag[1]), number)  # group 1 of the match is the rank
            return _without_tags(number, text, tag)

        label = _LABEL.match(text)
        if label is None:
            return TaggedLine(number, text, None)
        # The pattern has one group for each form of a label, and one of them has matched. `or 0` is for the types.
        group_that_matched = label.lastindex or 0
        return TaggedLine(number, text, None, label=int(label[group_that_matched]))


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
    if raw.startswith(_OF_DOCKER):
        raw = _output_of_container(raw)
    return _COLOUR.sub(b"", raw.replace(b"\x00", b"")).decode("utf-8", "replace").removesuffix("\n")


def _output_of_container(raw: bytes) -> bytes:
    """Return the line that a container printed, by a line of the file in which Docker keeps its output.

    Args:
        raw: The line of the file, as `{"log":"loss 0.5\\n","stream":"stdout","time":".."}`. It must begin with
            `{"log":"`. If it is no whole JSON, it is returned as it is.
    """
    try:
        printed = json.loads(raw)["log"]  # it has this key, by its beginning
    except (ValueError, RecursionError):
        return raw
    return str(printed).encode("utf-8", "replace")


def _first_tag(text: str) -> re.Match[str] | None:
    """Return the match of the first rank tag of mpirun in a line, or None if it has none.

    Args:
        text: The line, such as `[1,3]<stdout>: loss 0.5`. Group 1 of the match is the rank, here 3.
    """
    may_have_tag = "]<std" in text  # faster than the pattern
    return _RANK_TAG.search(text) if may_have_tag else None


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


def _is_of_other(writer: int | None, kept: int | None) -> bool:
    """Return whether a line is of another rank than the one whose rows are kept.

    Args:
        writer: The rank that wrote the line, or None if nothing names it.
        kept: The rank whose rows are kept. None means that no rank has printed a row yet.
    """
    return kept is not None and writer is not None and writer != kept


def _may_repeat(text: str, marker: str) -> bool:
    """Return whether a line is one that each rank may print: a row of training figures, or text of a tool's start.

    Args:
        text: The line.
        marker: Text that stands in every row of training figures.
    """
    return marker in text or _start_word(text) is not None


def _lowest_rank_with_rows(lines: Sequence[TaggedLine], marker: str) -> int | None:
    """Return the lowest rank that prints a row of training figures, or None if no rank does.

    Args:
        lines: Lines of the log, each with the rank that wrote it or None.
        marker: Text that stands in every row.
    """
    ranks = [line.rank for line in lines if line.rank is not None and marker in line.text]
    return min(ranks, default=None)


def _lowest_label_with_rows(lines: Sequence[TaggedLine], marker: str) -> int | None:
    """Return the lowest rank that prints a row of training figures, by the labels before the lines.

    A label is a number at the beginning of a line, as in `3: loss 0.5`. A launcher may have put the rank there, but it
    may also be the line's own text, such as seconds or the line numbers of `grep -n`. Labels count as ranks only

    - if several different labels stand before rows,
    - if these labels are 0, 1, 2 and so on, or 1, 2, 3 and so on, without a gap,
    - and if, over all lines with one of these labels, a label is lower than the label before, somewhere. Ranks write in
      turn, as in 0, 1, 0, 1, while seconds and line numbers only grow.

    Args:
        lines: Lines of the log, each with the number in its label or None.
        marker: Text that stands in every row.

    Returns:
        The rank, or None if the labels do not count as ranks.
    """
    labels_of_rows = {line.label for line in lines if line.label is not None and marker in line.text}
    if len(labels_of_rows) < 2:
        return None
    lowest = min(labels_of_rows)
    are_without_gap = lowest <= 1 and max(labels_of_rows) == lowest + len(labels_of_rows) - 1
    # Of rows and all other lines. A line without a label is left out, because None is not in the set.
    labels = [line.label for line in lines if line.label in labels_of_rows]
    one_goes_back = any(later < earlier for earlier, later in itertools.pairwise(labels))
    return lowest if are_without_gap and one_goes_back else None


def _start_word(text: str) -> str | None:
    """Return the text in a line that a training tool prints as it starts, or None if the line holds none.

    Args:
        text: The line. If it holds several such texts, the first one in START_WORDS counts.
    """
    for word in START_WORDS:
        if word in text:
            return word
    return None
