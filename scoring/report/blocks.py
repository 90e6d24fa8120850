"""The parts of a page as data: the templates render each class as HTML and as Markdown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

from scoring.report.content import ReportedRun


@dataclass(frozen=True, kw_only=True)
class Text:
    """Words that lead somewhere or look otherwise: `run` and `line` name a quoted log line, `run` alone a run."""

    text: str
    run: int | None = None
    line: int | None = None
    href: str | None = None  # a place of the page
    look: str = ""  # absent, code or small

    @property
    def target(self) -> str | None:
        """The id that a link leads to; None where it is none."""
        if self.run is None:
            return self.href
        return f"run-{self.run}" + ("" if self.line is None else f"-line-{self.line}")


Inline = str | Text | Sequence[Any]  # one, or several after one another


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


T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table: its head, and what it shows of a row; numbers are set flush right."""

    head: str
    cell: Callable[[T], Inline]
    numeric: bool = False


def table(caption: str, rows: Iterable[T], columns: Sequence[Column[T]], id: str | None = None) -> Table:
    """A table of those columns."""
    return Table(
        caption=caption,
        head=[column.head for column in columns],
        rows=[[column.cell(row) for column in columns] for row in rows],
        numeric=[at for at, column in enumerate(columns) if column.numeric],
        id=id,
    )


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and values; of one run, where `run` names it."""

    items: Sequence[tuple[str, Inline]]
    run: int | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot, what it shows in words, and its numbers; it is drawn when HTML is rendered."""

    name: str  # ids within the plot begin with it
    title: str
    caption: str
    draw: Callable[[Any], None]  # onto a plots.Plot
    words: str = ""  # the plot in words, where the caption is shorter
    numbers: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A part that is shown on demand only, and not on paper; Markdown has it where `in_markdown`."""

    summary: str
    blocks: Sequence[Any]
    in_markdown: bool = False


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of a log as they stand there."""

    run: int
    file: str
    lines: Sequence[tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; its gist stands beside its title while it is folded."""

    key: str
    title: str
    blocks: Sequence[Any]
    gist: str = ""


# -------------------------------------------------------------------------------------------------- links


NOT_SAID = Text(text="not said", look="absent")


def at_line(run: ReportedRun, line: int | None, shown: str | None = None) -> Inline:
    """`shown` (or the line's number) as a link to the quoted line; plain where no line is known."""
    if line is None or not 1 <= line <= run.record.lines:
        return shown or ""
    return Text(text=shown if shown is not None else f"line {line}", run=run.number, line=line)


def lines_of(run: ReportedRun) -> Inline:
    """Links to the first and the last line that a run's figure comes from."""
    return between(run, run.figure.first_line, run.figure.last_line) if run.figure else ""


def between(run: ReportedRun, first: int, last: int) -> Inline:
    """Links to the first and the last of several lines."""
    ends = [at_line(run, first, f"{first}"), "–", at_line(run, last, f"{last}")]
    return ends[0] if first == last else ends


def run_link(run: ReportedRun) -> Text:
    """The run's name, as a link to where it comes from."""
    return Text(text=f"run {run.number}", run=run.number)


def field(run: ReportedRun, name: str, shown: str | None = None) -> Inline:
    """A field of the record, linked to the line that says it, with its other origin named."""
    value = getattr(run.record, name)
    if value is None:
        return NOT_SAID
    shown = str(value) if shown is None else shown
    if name in run.record.from_options:
        return [shown, Text(text=" (from the command line)", look="small")]
    if run.record.described_by and name in ("devices", "nodes", "batch_per_device"):
        return [shown, Text(text=f" ({run.record.described_by})", look="small")]
    return at_line(run, run.record.field_lines.get(name), shown)


def quoted(block: Any) -> Iterator[tuple[int, int]]:
    """(run, line) of each link to a log line within a block, or several."""
    if isinstance(block, Text):
        if block.run is not None and block.line is not None:
            yield block.run, block.line
    elif is_dataclass(block):
        for part in fields(block):
            yield from quoted(getattr(block, part.name))
    elif isinstance(block, list | tuple):
        for part in block:
            yield from quoted(part)
