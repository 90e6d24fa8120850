"""One reader for every format of printed rows: a format is a `Table`, and what its lines around the rows say.

Read `paddle18.py` first: it is the smallest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as default
from typing import NamedTuple

from scoring.importers.lines import Lines
from scoring.importers.text import (
    Draft,
    Fact,
    RowBatch,
    RowPattern,
    first_group,
    integer,
    moment_s,
    number,
    of_steps,
    positive,
    rows,
    wait_within,
    whole,
)
from scoring.record import InputError, Window

Columns = dict[str, "str | None"]  # of a row, by name, as printed
Spent = tuple["int | None", "float | None", "float | None"]  # steps of a row, their seconds, and the wait in them
_IMAGES = re.compile(r"(?:images?|imgs?|samples?)\Z")  # the units whose rate is one of images


class At(NamedTuple):
    """Where a row stands: its epoch and its step, as printed."""

    epoch: int | None
    step: int


class Around:
    """What the lines around the rows say. A format has a subclass where the patterns alone do not tell."""

    facts: re.Pattern[str] | None = None  # of lines before the first row; the first word on each name stands
    evaluation: re.Pattern[str] | None = None  # of later ones; its groups: `value`, and `epoch` or `name` if printed
    quality = ""  # name of that value
    summary: re.Pattern[str] | None = None  # of later ones; its group is the log's own closing figure
    has_closing_line = False  # where `after` meets none the log is truncated

    def __init__(self, draft: Draft, lines: Lines, first_step: int) -> None:
        self.draft, self.lines = draft, lines
        self.said: dict[str, Fact] = {}
        self.first_step = first_step  # the number of an epoch's first step
        self.usual_steps: int | None = None  # of a row: those of the first row that says
        self.last: At | None = None  # the last row
        self.batch = RowBatch()
        draft.truncated = True if self.has_closing_line else None

    def before(self, line: int, text: str) -> None:
        """A line before the first row."""
        for found in self.facts.finditer(text) if self.facts else ():
            for name, value in first_group(found):
                self.said.setdefault(name, Fact(value, line))

    def begins(self, text: str, row: Columns) -> None:
        """The first row."""

    def after(self, line: int, text: str) -> None:
        """A line after it that is none, and holds a word of `Table.others`."""
        if self.evaluation and self.last and (found := self.evaluation.search(text)):
            groups = found.groupdict()
            step = None if "epoch" in groups else self.last.step
            name = groups.get("name") or self.quality
            self.draft.evaluated(line, name, groups["value"], epoch=groups.get("epoch"), step=step)
        if self.summary and (found := self.summary.search(text)):
            self.draft.summary(line, found)

    def finish(self) -> None:
        """The log has ended: hand over to the draft."""

    def text(self, name: str) -> str | None:
        """What was said of `name`."""
        return str(self.said[name].value) if name in self.said else None

    def count(self, field: str, name: str) -> None:
        """What was said of `name` is the number `field` of the record."""
        if name in self.said:
            self.draft.count(field, self.text(name), self.said[name].line)

    def fact(self, field: str, name: str, value: object = None) -> None:
        """What was said of `name`, or `value` by it, is the `field` of the record."""
        if name in self.said:
            self.draft.fact(field, self.said[name].value if value is None else value, self.said[name].line)


def through_run(around: Around, at: At) -> int | None:
    """Steps since the last row, by a counter that runs through the run; None of the first, and where it goes back."""
    last = around.last
    return at.step - last.step if last and at.step >= last.step else None


def through_epoch(around: Around, at: At) -> int | None:
    """The same of a counter that starts anew in each epoch; None of the log's first row, if not of one step."""
    last = around.last
    if last is None:
        around.first_step = min(around.first_step, at.step)
        return 1 if at.step == around.first_step else None
    if last.epoch == at.epoch and at.step >= last.step:
        return at.step - last.step
    return at.step - around.first_step + 1


def mean_time(steps: int | None, time_s: float | None, wait_s: float | None) -> Spent:
    """The time of a row is the mean over its own steps, and so is its wait."""
    return (steps, *of_steps(steps, time_s, wait_s)) if time_s is not None else (steps, None, None)


def last_time(steps: int | None, time_s: float | None, wait_s: float | None) -> Spent:
    """It is that of the last step alone: of the others the log says nothing."""
    return (steps, time_s, wait_within(wait_s, time_s)) if steps == 1 and time_s is not None else (steps, None, None)


def counted(
    steps: Callable[[Around, At], int | None],
    time: Callable[[int | None, float | None, float | None], Spent] = last_time,
) -> Callable[[Around, At, Columns], Spent]:
    """Steps by a counter, and what the time of a row means."""
    return lambda around, at, row: time(steps(around, at), positive(row.get("time")), number(row.get("wait")))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A format: where its rows are, what their columns are called, how steps and times are counted.

    Columns are `step`, and of these what is printed: epoch, of (the last step of the run), stamp, rate, unit (of the
    rate, less `/s`), time and wait (s), loss, memory (MiB). More are a format's own.
    """

    marker: str  # stands in every row
    own: str  # stands in every line of the tool's
    row: RowPattern
    columns: str  # names of the row's groups, in their order; of two groups of one name the first that took part
    needs: str  # the column without which a row is none: a rate or a time above 0
    spent: Callable[[Around, At, Columns], Spent]  # steps (0: the row is a copy), seconds and wait
    others: tuple[str, ...] = ()  # words of the lines after the first row that matter
    around: type[Around] = Around
    first_step: int = 1
    always: dict[str, object] = default(default_factory=dict)  # what is so of every log of the format
    rows_tell_batch: bool = False  # the rate is that of one device, over the row's mean time

    def read(self, lines: Lines) -> Draft:
        """A log of this format. Raises InputError for a rate of anything but images."""
        draft, names = Draft(), self.columns.split()
        around = self.around(draft, lines, self.first_step)
        of: int | None = None
        for line, text, values in rows(lines, self.marker, self.own, self.row, self.others):
            if values is None:
                (around.after if draft.has_rows else around.before)(line, text)
                continue
            row: Columns = {}
            for name, value in zip(names, values, strict=True):
                row[name] = row.get(name) or value
            at = At(integer(row.get("epoch")), whole(row["step"]))
            if (self.needs != "step" and positive(row[self.needs]) is None) or at == around.last:
                continue
            if (unit := row.get("unit")) and not _IMAGES.match(unit):
                raise InputError(f"line {line}: a rate in {unit}/s, not in images/s: score logs of networks for images")
            if around.last is None:
                around.begins(text, row)
            if self.rows_tell_batch:
                around.batch.read(line, row.get("rate"), row["time"])
            steps, seconds, waited = self.spent(around, at, row)
            around.last, of = at, integer(row.get("of"))
            if steps == 0:
                continue
            around.usual_steps = around.usual_steps or steps
            draft.row(
                Window(
                    line=line,
                    step=at.step,
                    epoch=at.epoch,
                    steps=steps,
                    seconds=seconds,
                    data_wait_s=waited,
                    printed_rate=positive(row.get("rate")),
                    printed_step_time_s=positive(row.get("time")),
                    end_s=moment_s(row.get("stamp")),
                    loss=number(row.get("loss")),
                    gpu_memory_mib=number(row.get("memory")),
                )
            )
        if of is not None and around.last:
            draft.truncated = around.last.step + (around.usual_steps or around.last.step) <= of
        around.finish()
        around.batch.finish(draft)
        draft.fact("first_step", around.first_step)
        for field, always in self.always.items():
            draft.fact(field, always)
        return draft
