"""The parts of a page as data: the templates render each class as HTML and as Markdown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import NamedTuple, TypeAlias

from scoring.report.content import ReportedRun
from scoring.report.panel import Plot


@dataclass(frozen=True, kw_only=True)
class Text:
    """Words that are a link or have a look of their own: `run` and `line` name a quoted log line, `run` alone a run."""

    text: str
    run: int | None = None
    line: int | None = None
    href: str | None = None  # a place of the page
    look: str = ""  # absent, code or small

    @property
    def target(self) -> str | None:
        """Return where the text links to: a run, a quoted line of a run's log, or `href`; None if it is not a link."""
        if self.run is None:
            return self.href
        if self.line is None:
            return f"run-{self.run}"
        return f"run-{self.run}-line-{self.line}"


Inline: TypeAlias = "str | Text | Sequence[Inline]"  # one piece of text, or several after one another


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph; `code` is what to type."""

    text: Inline
    absent: bool = False
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a head; columns `numeric` are set flush right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Inline]]
    numeric: Sequence[int] = ()
    id: str | None = None


class Cell(NamedTuple):
    """One cell of a table and the head of its column; numbers are set flush right."""

    head: str
    value: Inline
    numeric: bool = False


def table(caption: str, rows: Sequence[Sequence[Cell]], id: str | None = None) -> Table:
    """Make a table of the page from rows of cells.

    Args:
        caption: Caption of the table.
        rows: At least one row. The cells of the first row say the head of each column, and whether its values are
            numbers, which are set flush right.
        id: Name by which texts of the page can link to the table; None if none does.
    """
    first_row = rows[0]
    return Table(
        caption=caption,
        head=[cell.head for cell in first_row],
        rows=[_values_of_cells(row) for row in rows],
        numeric=[index for index, cell in enumerate(first_row) if cell.numeric],
        id=id,
    )


def _values_of_cells(row: Sequence[Cell]) -> list[Inline]:
    """Return what the cells of a row show."""
    return [cell.value for cell in row]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and values. They are of one run if `run` has its number."""

    items: Sequence[tuple[str, Inline]]
    run: int | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot, what it shows in words, and its numbers; it is drawn when HTML is rendered."""

    name: str  # ids within the plot begin with it
    title: str
    caption: str
    draw: Callable[[Plot], None]
    words: str = ""  # the plot in words, if the caption says less
    numbers: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A part that is shown on demand only, and not on paper; Markdown has it if `in_markdown`."""

    summary: str
    blocks: "Sequence[Block]"
    in_markdown: bool = False


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of a log with their numbers, unchanged."""

    run: int
    file: str
    lines: Sequence[tuple[int, str]]


Block: TypeAlias = Paragraph | Table | Facts | Figure | Fold | Lines


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page, whose title and gist are shown while it is folded."""

    key: str
    title: str
    blocks: Sequence[Block]
    gist: str = ""


# -------------------------------------------------------------------------------------------------- links


NOT_SAID = Text(text="not said", look="absent")
FROM_DESCRIPTION = ("devices", "nodes", "batch_per_device")  # fields that a description of the log may fill in


class QuotedLine(NamedTuple):
    """A line of a log that the page links to."""

    run: int
    line: int


def link_to_line(run: ReportedRun, line: int | None, shown: str | None = None) -> Inline:
    """Return a link to a line of a run's log, or plain text if the log has no such line.

    Args:
        run: The run.
        line: Number of the line, counted from 1; None if it is not known.
        shown: Text of the link, or the plain text. None shows "line 12" for a link, and nothing as plain text.

    Returns:
        The link. The page quotes each line that a link leads to. Plain text if `line` is None, below 1, or beyond the
        last line of the log.
    """
    if line is None or not 1 <= line <= run.record.lines:
        return shown or ""
    if shown is None:
        shown = f"line {line}"
    return Text(text=shown, run=run.number, line=line)


def links_to_figure_lines(run: ReportedRun) -> Inline:
    """Return links to the first and the last line that a run's figure comes from; empty if it has no figure."""
    if run.figure is None:
        return ""
    return links_to_lines(run, run.figure.first_line, run.figure.last_line)


def links_to_lines(run: ReportedRun, first: int, last: int) -> Inline:
    """Return links to the first and the last of several lines, `12–40`; one link if both are the same line."""
    start = link_to_line(run, first, f"{first}")
    if first == last:
        return start
    return [start, "–", link_to_line(run, last, f"{last}")]


def run_link(run: ReportedRun) -> Text:
    """Return the run's name as a link to its provenance."""
    return Text(text=f"run {run.number}", run=run.number)


def field(run: ReportedRun, name: str, shown: str | None = None) -> Inline:
    """Return a field of a run's record as text for the page, marked with where its value comes from.

    The first of these cases that applies decides:

    - The field has no value: "not said".
    - The value is from an option: "16 (from the command line)".
    - The run has a description of its system, no line of the log states the value, and the field is in
      FROM_DESCRIPTION: "16 (systems/DGXA100.json)".
    - Any other value: "16" as a link to the line of the log that states the value, or as plain text if no line does.

    Args:
        run: A run of the report.
        name: Name of the field of the run's `Record`, such as "devices".
        shown: Text to show in place of the value; None for the value itself.
    """
    record = run.record
    value = getattr(record, name)
    if value is None:
        return NOT_SAID
    text = str(value) if shown is None else shown
    if name in record.from_options:
        return _with_source(text, "from the command line")
    line_of_log = record.field_lines.get(name)  # None if no line states the value
    if line_of_log is None and name in FROM_DESCRIPTION and record.described_by:
        return _with_source(text, record.described_by)
    return link_to_line(run, line_of_log, text)  # plain text without a line


def _with_source(text: str, source: str) -> Inline:
    """Return a text with its source in small brackets after it."""
    return [text, Text(text=f" ({source})", look="small")]


def linked_lines(block: object) -> Iterator[QuotedLine]:
    """Yield each log line that a part of the page links to, as often as it is linked to.

    Args:
        block: A block of the page, a list of blocks, or any value inside a block. Dataclasses, lists and tuples are
            searched for the texts inside them; only a `Text` can be a link.

    Yields:
        The number of the run and the number of the line in its log.
    """
    if isinstance(block, Text):
        if block.run is not None and block.line is not None:
            yield QuotedLine(block.run, block.line)
    elif is_dataclass(block):
        for field_of_block in fields(block):
            yield from linked_lines(getattr(block, field_of_block.name))
    elif isinstance(block, list | tuple):
        for part in block:
            yield from linked_lines(part)
