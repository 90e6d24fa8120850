"""One reader for every format of printed rows: a format is a `Table` that says where its rows are and what they hold.

Read `Paddle18` in `paddle.py` first: it is the smallest.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from scoring.importers.lines import Lines
from scoring.importers.text import RowPattern, integer, moment_s, number, positive, rows, wait_within
from scoring.record import Check, InputError, Quality, Window

Columns = dict[str, "str | None"]  # of a row, by name, as printed
RowTime = tuple["int | None", "float | None", "float | None"]  # steps of a row, their seconds, and the wait in them
MAX_ROWS = 1_000_000  # of a run, about 300 MB; public logs have some thousand
MAX_PROBLEMS = 20
MAX_RESTARTS = 1_000
_IMAGES = re.compile(r"(?:images?|imgs?|samples?)\Z")  # the units whose rate is one of images


class Fact(NamedTuple):
    """What the log says of one thing, and on which line."""

    value: Any
    line: int  # 0 where the format itself says it


class At(NamedTuple):
    """Where a row stands: its epoch and its step, as printed."""

    epoch: int | None
    step: int


class Table:
    """A format, and what is read of one log of it.

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
    needs: str | None = None  # the column without which a row is none: a rate or a time above 0
    first_step = 1  # the number of an epoch's first step
    mean_time = False  # whether the time of a row is the mean over its own steps; else it is that of the last step
    rate_scope: str | None = "device"  # or "global": whose images/s a row has
    cumulative = False  # rates are running averages
    rows_tell_batch = False  # the rate is that of one device, over the row's mean time
    segmentation = False  # the program trains segmentation networks alone
    # The lines around them
    facts: re.Pattern[str] | None = None  # of lines before the first row
    facts_around: re.Pattern[str] | None = None  # the same, of what starts the tool
    evaluation: re.Pattern[str] | None = None  # groups: `value`, and `epoch`, `step` or `name` where they are printed
    quality = ""  # name of that value
    epoch_end: re.Pattern[str] | None = None  # groups of an epoch's summary: `epoch`, `rate`, `seconds`
    summary: re.Pattern[str] | None = None  # its group is the log's own closing figure
    closing: tuple[str, ...] = ()  # words of the log's last line; where there is none the log is truncated
    framework: str | None = None
    precisions: tuple[tuple[str, str], ...] = ()  # a word of the log, and the record's; "" is any other word

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.said: dict[str, Fact] = {}  # by the field of the record, or by the format's own word
        self.windows: list[Window] = []
        self.epochs: list[Window] = []
        self.qualities: list[Quality] = []
        self.software: dict[str, str] = {}
        self.header: dict[str, Any] = {}
        self.problems: list[str] = []
        self.checks: list[Check] = []
        self.restarts: list[tuple[int, int]] = []  # lines of two rows between which the counters go back
        self.truncated = True if self.closing else None
        self.usual_steps: int | None = None  # of a row: those of the first row that says
        self.last: At | None = None  # the last row
        self.batch = RowBatch()

    def say(self, name: str, value: object, line: int = 0) -> None:
        """The log says `value` of `name`; its first word stands."""
        if value is not None:
            self.said.setdefault(name, Fact(value, line))

    def value(self, name: str) -> Any:
        """What the log says of `name`; None where it does not."""
        return self.said[name].value if name in self.said else None

    def derive(self, field: str, name: str, value: object = None) -> None:
        """What the log says of `name`, or `value` by it, is the `field` of the record."""
        if name in self.said:
            self.say(field, self.value(name) if value is None else value, self.said[name].line)

    def agreed(self, name: str, places: Mapping[str, Fact]) -> None:
        """What the log says of `name` in several places; where they differ it is unknown."""
        facts = {place: fact for place, fact in places.items() if fact.value is not None}
        values = {fact.value for fact in facts.values()}
        if len(values) == 1:
            self.said[name] = next(iter(facts.values()))
        elif values:
            self.said.pop(name, None)
        if len(facts) > 1:
            ways = tuple(f"line {fact.line}: {place}, {fact.value}" for place, fact in facts.items())
            self.checks.append(Check(what=name, ways=ways, agree=len(values) == 1))

    def problem(self, text: str) -> None:
        """Something in the text that could not be taken as it stands."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def add(self, window: Window) -> None:
        """One printed row; a copy of the last one (a log written twice) is passed over."""
        last = self.windows[-1] if self.windows else None
        if last is not None and last.step is not None and window.step is not None:
            before, at = (last.epoch or 0, last.step), (window.epoch or 0, window.step)
            if at == before and (window.seconds, window.printed_rate) == (last.seconds, last.printed_rate):
                return
            if at < before and len(self.restarts) < MAX_RESTARTS:
                self.restarts.append((last.line, window.line))
        if len(self.windows) == MAX_ROWS:
            raise InputError(
                f"line {window.line}: over {MAX_ROWS:,} rows in one run; print rarer rows, or score a part of the log"
            )
        self.windows.append(window)

    def before(self, line: int, text: str) -> None:
        """A line before the first row."""
        for pattern in filter(None, (self.facts, self.facts_around)):
            for found in pattern.finditer(text):
                for name, value in found.groupdict().items():
                    if value is not None:
                        self.state(name, value, line)

    def state(self, name: str, value: object, line: int) -> None:
        """A line before the first row says `value` of `name`."""
        self.say(name, value, line)

    def begins(self, text: str, row: Columns) -> None:
        """The first row."""

    def after(self, line: int, text: str) -> None:
        """A line after the first row that is none."""
        if self.evaluation and self.last and (found := self.evaluation.search(text)):
            groups = found.groupdict()
            name, epoch, step = groups.get("name") or self.quality, groups.get("epoch"), groups.get("step")
            at_epoch = integer(epoch) if epoch or "epoch" not in groups else self.last.epoch
            at_step = integer(step) if step or "epoch" in groups else self.last.step
            if (value := number(groups["value"])) is not None:
                self.qualities.append(Quality(line=line, name=name, value=value, epoch=at_epoch, step=at_step))
        if self.epoch_end and (found := self.epoch_end.search(text)):
            rate, seconds = positive(found["rate"]), positive(found["seconds"])
            self.epochs.append(Window(line=line, epoch=int(found["epoch"]), printed_rate=rate, seconds=seconds))
        if self.summary and (found := self.summary.search(text)):
            self.say("summary_rate", positive(found[1]), line)
        if any(word in text for word in self.closing):
            self.truncated = False

    def finish(self) -> None:
        """The log has ended: what it states becomes what a record holds."""
        for field in ("devices", "nodes", "batch_per_device", "batch_of_all"):
            if (fact := self.said.pop(field, None)) and (count := integer(str(fact.value))):
                self.said[field] = Fact(count, fact.line)
        if fact := self.said.get("precision"):
            named = dict(self.precisions)
            self.said["precision"] = fact._replace(value=named.get(fact.value, named.get("", fact.value)))
        self.say("framework", self.framework)

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

    def read(self) -> None:
        """Read the log. Raises InputError for a rate of anything but images."""
        names, of = self.columns.split(), None
        for line, text, values in rows(self.lines, self.marker, self.tool, self.row):
            if values is None:
                (self.after if self.windows else self.before)(line, text)
                continue
            row: Columns = {}
            for name, value in zip(names, values, strict=True):
                row[name] = row.get(name) or value
            at = At(integer(row.get("epoch")), int(row["step"] or 0))
            if (self.needs and positive(row[self.needs]) is None) or at == self.last:
                continue
            if (unit := row.get("unit")) and not _IMAGES.match(unit):
                raise InputError(f"line {line}: a rate in {unit}/s, not in images/s: score logs of networks for images")
            if self.last is None:
                self.begins(text, row)
            if self.rows_tell_batch:
                self.batch.read(line, row.get("rate"), row["time"])
            steps, seconds, waited = self.time(at, row)
            self.last, of = at, integer(row.get("of"))
            if steps == 0:
                continue
            self.usual_steps = self.usual_steps or steps
            self.add(
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
        if of is not None and self.last:
            self.truncated = self.last.step + (self.usual_steps or self.last.step) <= of
        self.finish()
        self.batch.finish(self)
        for field in ("first_step", "rate_scope", "cumulative"):
            self.say(field, getattr(self, field))


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


class RowBatch:
    """The batch of one device by its printed rows: rate x step time, of which each row's digits leave a range."""

    def __init__(self) -> None:
        self._low, self._high = 0.0, 1e12
        self._line = 0

    @property
    def images(self) -> int | None:
        """The only whole number that all rows so far leave; None where they leave several, or none."""
        low = math.ceil(self._low)
        return low if low == math.floor(self._high) else None

    def read(self, line: int, printed_rate: str | None, printed_time: str | None) -> None:
        """One row's rate and its step time as printed: with how many digits."""
        rate, time_s = positive(printed_rate), positive(printed_time)
        if rate is None or time_s is None or "e" in f"{printed_rate}{printed_time}":
            return
        half_rate, half_time = (0.5 * 10.0 ** -len(str(one).partition(".")[2]) for one in (printed_rate, printed_time))
        product = rate * time_s
        slack = rate * half_time + time_s * half_rate + 1e-4 * product
        self._low, self._high = max(self._low, product - slack), min(self._high, product + slack)
        self._line = self._line or line

    def finish(self, table: Table) -> None:
        """The rows have the last word: what the configuration says otherwise is not what ran."""
        images, configured = self.images, table.said.get("batch_per_device")
        if images is None:
            return
        if configured is not None:
            ways = (
                f"line {configured.line}: the configuration, {configured.value}",
                f"line {self._line} and the other rows: rate x step time, {images} a device",
            )
            table.checks.append(Check(what="batch", ways=ways, agree=configured.value == images))
        if configured is None or configured.value != images:
            table.said["batch_per_device"] = Fact(images, self._line)
