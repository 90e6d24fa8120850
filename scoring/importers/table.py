"""One reader for every format of printed rows: a format is a `Table` that says where its rows are and what they hold.

Read `paddle18.py` first: it is the smallest.
"""

from __future__ import annotations

import re
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
    positive,
    rows,
    wait_within,
    whole,
)
from scoring.record import Epoch, InputError, Window

Columns = dict[str, "str | None"]  # of a row, by name, as printed
RowTime = tuple["int | None", "float | None", "float | None"]  # steps of a row, their seconds, and the wait in them
_IMAGES = re.compile(r"(?:images?|imgs?|samples?)\Z")  # the units whose rate is one of images


class At(NamedTuple):
    """Where a row stands: its epoch and its step, as printed."""

    epoch: int | None
    step: int


class Table:
    """A format, and one log of it while that is read.

    Columns are `step`, and of these what is printed: epoch, of (the last step of the run), stamp, rate, unit (of the
    rate, less `/s`), time and wait (s), loss, memory (MiB). More are a format's own. Groups of `facts` are fields of
    the record, whose first value counts, or words of the format's own for `finish`.
    """

    # The rows
    marker: str  # stands in every row
    clue: str = ""  # stands in every row and in little else; default: the marker
    tool: str  # stands in every line of the tool's
    row: RowPattern
    recognised_by: RowPattern | None = None  # default: the row; where that has two lines, the one with the clue
    columns: str  # names of the row's groups, in their order; of two groups of one name the first that took part
    needs: str  # the column without which a row is none: a rate or a time above 0
    first_step = 1  # the number of an epoch's first step
    mean_time = False  # whether the time of a row is the mean over its own steps; else it is that of the last step
    rate_scope: str | None = "device"  # or "global": whose images/s a row has
    rows_tell_batch = False  # the rate is that of one device, over the row's mean time
    segmentation = False  # the program trains segmentation networks alone
    # The lines around them
    facts: re.Pattern[str] | None = None  # of lines before the first row
    others: tuple[str, ...] = ()  # words of the lines after it that matter; `after` reads them by these patterns:
    evaluation: re.Pattern[str] | None = None  # groups: `value`, and `epoch` or `name` where they are printed
    quality = ""  # name of that value
    epoch_end: re.Pattern[str] | None = None  # groups of an epoch's summary: `epoch`, `rate`, `seconds`
    summary: re.Pattern[str] | None = None  # its group is the log's own closing figure
    closing: tuple[str, ...] = ()  # words of the log's last line; where there is none the log is truncated
    framework: str | None = None
    precisions: tuple[tuple[str, str], ...] = ()  # a word of the log, and the record's; "" is any other word

    def __init__(self, lines: Lines) -> None:
        self.draft, self.lines = Draft(), lines
        self.stated: dict[str, Fact] = {}  # by the groups of `facts`
        self.usual_steps: int | None = None  # of a row: those of the first row that says
        self.last: At | None = None  # the last row
        self.batch = RowBatch()
        self.draft.truncated = True if self.closing else None

    def before(self, line: int, text: str) -> None:
        """A line before the first row."""
        for found in self.facts.finditer(text) if self.facts else ():
            for name, value in first_group(found):
                self.state(name, value, line)

    def state(self, name: str, value: object, line: int) -> None:
        """The log says `value` of `name`; the first counts."""
        self.stated.setdefault(name, Fact(value, line))

    def begins(self, text: str, row: Columns) -> None:
        """The first row."""

    def after(self, line: int, text: str) -> None:
        """A line after it that is none, and holds a word of `others`."""
        if self.evaluation and self.last and (found := self.evaluation.search(text)):
            groups = found.groupdict()
            step = None if "epoch" in groups else self.last.step
            name = groups.get("name") or self.quality
            self.draft.evaluated(line, name, groups["value"], epoch=groups.get("epoch"), step=step)
        if self.epoch_end and (found := self.epoch_end.search(text)):
            rate, seconds = positive(found["rate"]), positive(found["seconds"])
            self.draft.epochs.append(Epoch(line=line, epoch=int(found["epoch"]), printed_rate=rate, seconds=seconds))
        if self.summary and (found := self.summary.search(text)):
            self.draft.fact("summary_rate", positive(found[1]), line)
        if any(word in text for word in self.closing):
            self.draft.truncated = False

    def finish(self) -> None:
        """The log has ended: hand what it states over to the draft."""
        for field in ("devices", "nodes", "batch_per_device", "batch_of_all"):
            if field in self.stated:
                self.draft.fact(field, integer(self.text(field)) or None, self.stated[field].line)
        self.fact("model", "model")
        precisions = dict(self.precisions)
        self.fact("precision", "precision", precisions.get(self.text("precision") or "", precisions.get("")))
        self.draft.fact("framework", self.framework)

    def text(self, name: str) -> str | None:
        """What the log states of `name`."""
        return str(self.stated[name].value) if name in self.stated else None

    def fact(self, field: str, name: str, value: object = None) -> None:
        """What the log states of `name`, or `value` by it, is the `field` of the record."""
        if name in self.stated:
            self.draft.fact(field, self.stated[name].value if value is None else value, self.stated[name].line)

    def steps(self, at: At) -> int | None:
        """Steps since the last row, by a counter that runs through the run; None of the first, or if it goes back."""
        return at.step - self.last.step if self.last and at.step >= self.last.step else None

    def time(self, at: At, row: Columns) -> RowTime:
        """Steps of a row (0: it is a copy), their seconds and the wait in them."""
        steps, time_s, wait_s = self.steps(at), positive(row.get("time")), number(row.get("wait"))
        timed = steps if self.mean_time or steps == 1 else None  # of the other steps the log says nothing
        if timed is None or time_s is None:
            return steps, None, None
        return steps, time_s * timed, None if wait_s is None else wait_within(wait_s * timed, time_s * timed)

    @classmethod
    def read(cls, lines: Lines) -> Draft:
        """A log of this format. Raises InputError for a rate of anything but images."""
        table, names = cls(lines), cls.columns.split()
        draft, of = table.draft, None
        for line, text, values in rows(lines, cls.marker, cls.tool, cls.row, cls.others):
            if values is None:
                (table.after if draft.windows else table.before)(line, text)
                continue
            row: Columns = {}
            for name, value in zip(names, values, strict=True):
                row[name] = row.get(name) or value
            at = At(integer(row.get("epoch")), whole(row["step"]))
            if (cls.needs != "step" and positive(row[cls.needs]) is None) or at == table.last:
                continue
            if (unit := row.get("unit")) and not _IMAGES.match(unit):
                raise InputError(f"line {line}: a rate in {unit}/s, not in images/s: score logs of networks for images")
            if table.last is None:
                table.begins(text, row)
            if cls.rows_tell_batch:
                table.batch.read(line, row.get("rate"), row["time"])
            steps, seconds, waited = table.time(at, row)
            table.last, of = at, integer(row.get("of"))
            if steps == 0:
                continue
            table.usual_steps = table.usual_steps or steps
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
        if of is not None and table.last:
            draft.truncated = table.last.step + (table.usual_steps or table.last.step) <= of
        table.finish()
        table.batch.finish(draft)
        draft.fact("first_step", table.first_step)
        draft.fact("rate_scope", cls.rate_scope)
        return draft


class EpochTable(Table):
    """A format whose counter starts anew in each epoch."""

    def steps(self, at: At) -> int | None:
        """Steps since the last row; None of the log's first row, if not of one step."""
        last = self.last
        if last is None:
            self.first_step = min(self.first_step, at.step)
            return 1 if at.step == self.first_step else None
        if last.epoch == at.epoch and at.step >= last.step:
            return at.step - last.step
        return at.step - self.first_step + 1
