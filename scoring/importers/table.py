"""One reader for every format of printed rows: a format is a `Table` that says where its rows are and what they hold.

Read `Paddle18` in `paddle.py` first: it is the smallest.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from scoring.importers.evidence import Evidence, Fact
from scoring.importers.lines import Lines
from scoring.importers.row_batch import RowBatch
from scoring.importers.text import RowPattern, Values, integer, moment_s, number, positive, rows, wait_within
from scoring.record import Check, InputError, Quality, Span, Window

Columns = dict[str, "str | None"]  # a row's values by column, as printed
MAX_ROWS = 1_000_000  # of a run, about 300 MB; public logs have some thousand
MAX_PROBLEMS = 20
MAX_RESTARTS = 1_000
WATCHED_ROWS = 100  # the first rows, which are searched for what their samples are
_IMAGES = re.compile(r"(?:images?|imgs?|samples?)\Z")  # units whose rate may be one of images
_COUNTS = ("devices", "nodes", "batch_per_device", "batch_of_all")  # fields that hold whole numbers


class At(NamedTuple):
    """The place of a row: its epoch and its step, as printed."""

    epoch: int | None
    step: int


class RowTime(NamedTuple):
    """The steps of a row, the seconds that they took, and how long they waited for input; None where not known."""

    steps: int | None
    seconds: float | None
    wait_s: float | None


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
    rate_scope: str | None = "device"  # whose images/s a row has; the other one is "global"
    cumulative = False  # rates are running averages
    rows_tell_batch = False  # the rate is that of one device, over the row's mean time
    segmentation = False  # the program trains segmentation networks alone
    # The lines around them
    facts: re.Pattern[str] | None = None  # of lines before the first row
    facts_around: re.Pattern[str] | None = None  # of lines before the first row that a launcher or runtime prints
    evaluation: re.Pattern[str] | None = None  # groups: `value`, and `epoch`, `step` or `name` where they are printed
    quality = ""  # name of that value
    epoch_end: re.Pattern[str] | None = None  # groups of an epoch's summary: `epoch`, `rate`, `seconds`
    summary: re.Pattern[str] | None = None  # its group is the log's own closing figure
    closing: tuple[str, ...] = ()  # words of the log's last line; a log without them is truncated
    framework: str | None = None
    precisions: tuple[tuple[str, str], ...] = ()  # a word of the log, and the record's; any other word says nothing

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.said: dict[str, Fact] = {}  # by the field of the record, or by the format's own word
        self.windows: list[Window] = []
        self.epochs: list[Window] = []
        self.qualities: list[Quality] = []
        self.evaluation_spans: list[Span] = []
        self.software: dict[str, str] = {}
        self.header: JsonObject = {}
        self.problems: list[str] = []
        self.checks: list[Check] = []
        self.restarts: list[tuple[int, int]] = []  # lines of two rows between which the counters go back
        self.truncated = True if self.closing else None
        self.usual_steps: int | None = None  # steps of the first row that says how many it has
        self.last_row: At | None = None  # epoch and step of the last row so far
        self.row_batch = RowBatch()  # the batch of one device, by rates and times of the rows
        self.evidence = Evidence()

    def set_once(self, name: str, value: object, line: int = 0) -> None:
        """Set the fact `name` to what the log states on `line`, unless it is set already or `value` is None."""
        if value is not None:
            self.said.setdefault(name, Fact(value, line))

    def value(self, name: str) -> Any:
        """Return the value that the log states of `name`; None where it states none."""
        return self.said[name].value if name in self.said else None

    def line(self, name: str) -> int | None:
        """Return the line that states `name`; None where none does."""
        return self.said[name].line if name in self.said else None

    def derive(self, field: str, name: str, value: object = None) -> None:
        """Set `field` to `value`, or else to what the log states of `name`; not where the log does not state `name`.

        Its line is that of `name`. A field that is set already is left as it is.
        """
        if name in self.said:
            self.set_once(field, self.value(name) if value is None else value, self.said[name].line)

    def set_where_agreed(self, name: str, places: Mapping[str, Fact]) -> None:
        """Set the fact `name` to the value that several places of the log state; remove the fact where they differ.

        `places` holds what each place states, by a name for the place in words; a value of None states nothing. Where
        none states anything, the fact is left as it is. Where two or more do, a check records whether they agree.
        """
        facts = {place: fact for place, fact in places.items() if fact.value is not None}
        values = {fact.value for fact in facts.values()}
        if len(values) == 1:
            first_fact, *_ = facts.values()
            self.said[name] = first_fact
        elif values:
            self.said.pop(name, None)

        if len(facts) > 1:
            ways = tuple(f"line {fact.line}: {place}, {fact.value}" for place, fact in facts.items())
            self.checks.append(Check(what=name, ways=ways, agree=len(values) == 1))

    def note_problem(self, text: str) -> None:
        """Record something in the text that could not be taken as it stands."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def add_window(self, window: Window) -> None:
        """Append the window of one printed row to `windows`, unless it is a copy of the last one.

        A row is printed twice where two programs write the same log. Where the counters of epochs and steps go back,
        the lines of both rows are noted in `restarts`: another run may begin there. Raises InputError for more than
        MAX_ROWS rows.
        """
        last = self.windows[-1] if self.windows else None
        if last is not None and last.step is not None and window.step is not None:
            last_counters = (last.epoch or 0, last.step)
            counters = (window.epoch or 0, window.step)
            has_same_figures = (window.seconds, window.printed_rate) == (last.seconds, last.printed_rate)
            if counters == last_counters and has_same_figures:
                return
            if counters < last_counters and len(self.restarts) < MAX_RESTARTS:
                self.restarts.append((last.line, window.line))

        if len(self.windows) == MAX_ROWS:
            raise InputError(
                f"line {window.line}: over {MAX_ROWS:,} rows in one run; print rarer rows, or score a part of the log"
            )
        self.windows.append(window)

    def read_before_rows(self, line: int, text: str) -> None:
        """Read a line before the first row: state what the groups of `facts` and `facts_around` match in it."""
        for pattern in (self.facts, self.facts_around):
            if pattern is None:
                continue
            for match in pattern.finditer(text):
                for name, value in match.groupdict().items():
                    if value is not None:
                        self.take_stated(name, value, line)

    def take_stated(self, name: str, value: object, line: int) -> None:
        """Take a value that a line before the first row states of `name`."""
        self.set_once(name, value, line)

    def read_first_row(self, text: str, row: Columns) -> None:
        """Take note of the first row."""

    def read_behind_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row that is no row itself, by the format's patterns for four kinds of lines.

        An evaluation goes to `qualities`, the summary of an epoch to `epochs`, and the figure that the log closes with
        becomes the fact `summary_rate`. A log with one of the words `closing`, which end a whole log, is not truncated.
        """
        self._read_evaluation(line, text)

        epoch_end = self.epoch_end.search(text) if self.epoch_end else None
        if epoch_end:
            self.epochs.append(
                Window(
                    line=line,
                    epoch=int(epoch_end["epoch"]),
                    printed_rate=positive(epoch_end["rate"]),
                    seconds=positive(epoch_end["seconds"]),
                )
            )
        summary = self.summary.search(text) if self.summary else None
        if summary:
            self.set_once("summary_rate", positive(summary[1]), line)
        if any(word in text for word in self.closing):
            self.truncated = False

    def _read_evaluation(self, line: int, text: str) -> None:
        """Add the result of an evaluation to `qualities` if the line prints one, with its epoch or its step.

        Epoch and step are what the line prints. Where it prints no epoch, but the format's evaluations can have one,
        the epoch is that of the row before. Where they cannot, the step is that of the row before, unless it is
        printed. An evaluation before the first row is left out.
        """
        if self.evaluation is None or self.last_row is None:
            return
        match = self.evaluation.search(text)
        value = number(match["value"]) if match else None
        if match is None or value is None:
            return

        groups = match.groupdict()
        epoch = integer(groups.get("epoch"))
        step = integer(groups.get("step"))
        format_has_epoch = "epoch" in groups
        if epoch is None and format_has_epoch:
            epoch = self.last_row.epoch
        if step is None and not format_has_epoch:
            step = self.last_row.step
        name = groups.get("name") or self.quality
        self.qualities.append(Quality(line=line, name=name, value=value, epoch=epoch, step=step))

    def finish(self) -> None:
        """Turn the words that the log states into values of a record; this is called after the log's last line.

        The counts (devices, nodes and batches) become whole numbers, and the precision one of the record's names, by
        the format's `precisions`. What cannot be one is removed. The framework is set to the format's own, unless the
        log states it. A format overrides this to set what it reads in its own way.
        """
        for field in _COUNTS:
            stated = self.said.pop(field, None)
            count = integer(str(stated.value)) if stated else None
            if stated and count:
                self.said[field] = Fact(count, stated.line)

        precision = self.said.pop("precision", None)
        if precision:
            record_name = dict(self.precisions).get(str(precision.value))
            self.set_once("precision", record_name, precision.line)
        self.set_once("framework", self.framework)

    def steps_of_row(self, at: At) -> int | None:
        """Return the steps since the last row, by a counter that runs through the run.

        None for the first row, and where the counter goes back.
        """
        if self.last_row is None or at.step < self.last_row.step:
            return None
        return at.step - self.last_row.step

    def time_of_row(self, at: At, row: Columns) -> RowTime:
        """Return how many steps a row is about, their seconds, and how long they waited for input.

        `at` is the row's epoch and step, `row` its printed columns. Steps are None where the row does not tell them,
        and 0 for a copy of the last row. Some formats print the mean time of the row's steps (`mean_time`). Others
        print the time of its last step alone, which tells the seconds only of a row of one step. Seconds and wait are
        None where they are not known.
        """
        steps = self.steps_of_row(at)
        step_s = positive(row.get("time"))
        step_wait_s = number(row.get("wait"))
        is_time_of_all_steps = self.mean_time or steps == 1
        if steps is None or step_s is None or not is_time_of_all_steps:
            return RowTime(steps, None, None)

        seconds = step_s * steps
        waited_s = None
        if step_wait_s is not None:
            waited_s = wait_within(step_wait_s * steps, seconds)
        return RowTime(steps, seconds, waited_s)

    def read(self) -> None:
        """Read all lines of the log into rows, epochs, evaluations and facts.

        A line with a row goes to `_add_row`, any other line to `read_before_rows` or, behind the first row, to
        `read_behind_first_row`. A row that lacks the figure which the format needs, or that repeats the counters of the
        last row, is passed over. Where rows print the run's last step, the log is truncated if a row more would have
        fitted. Raises InputError where the rows are of anything but images, or where nothing shows that they are of
        images.
        """
        last_step_wanted: int | None = None
        for line, text, values in rows(self.lines, self.marker, self.tool, self.row):
            self._search_for_evidence(line, text, is_row=values is not None)
            if values is None:
                if self.windows:
                    self.read_behind_first_row(line, text)
                else:
                    self.read_before_rows(line, text)
                continue

            row = self._values_by_column(values)
            at = At(integer(row.get("epoch")), int(row["step"] or 0))
            lacks_figure = self.needs is not None and positive(row[self.needs]) is None
            if lacks_figure or at == self.last_row:
                continue
            self._add_row(line, text, at, row)
            last_step_wanted = integer(row.get("of"))

        if last_step_wanted is not None and self.last_row:
            steps_of_row = self.usual_steps or self.last_row.step  # a first row alone does not say how many it has
            self.truncated = self.last_row.step + steps_of_row <= last_step_wanted
        self.finish()  # first, as the next two look at the batch and the precision that it sets
        self.row_batch.set_batch(self.said, self.checks)
        self._forget_doubtful_precision()
        self._require_images()
        for field in ("first_step", "rate_scope", "cumulative"):
            self.set_once(field, getattr(self, field))

    def _search_for_evidence(self, line: int, text: str, *, is_row: bool) -> None:
        """Search a line for what the samples are and whether half precision is on.

        The lines before the first row and the first WATCHED_ROWS rows are searched for all of it, later lines for words
        of images alone.
        """
        rows_before = len(self.windows)
        configures = rows_before == 0
        if is_row:
            configures = rows_before < WATCHED_ROWS
        self.evidence.search(line, text, configures=configures)

    def _values_by_column(self, values: Values) -> Columns:
        """Return a row's values by the names of their columns; of two values of one name the first that is printed."""
        row: Columns = {}
        for name, value in zip(self.columns.split(), values, strict=True):
            row[name] = row.get(name) or value
        return row

    def _add_row(self, line: int, text: str, at: At, row: Columns) -> None:
        """Add the window of one row, and make the row `last_row`. A row of no steps, a copy of the last one, adds none.

        `at` is the row's epoch and step, `row` its printed columns. Raises InputError for a rate that is not in images.
        """
        unit = row.get("unit")
        if unit and not _IMAGES.match(unit):
            raise InputError(f"line {line}: a rate in {unit}/s, not in images/s: score logs of networks for images")
        if self.last_row is None:
            self.read_first_row(text, row)  # some formats tell their release by the first row
        if self.rows_tell_batch:
            self.row_batch.narrow(line, row.get("rate"), row["time"])

        time = self.time_of_row(at, row)  # it looks at `last_row`, which must still be the row before
        self.last_row = at
        if time.steps == 0:
            return

        self.usual_steps = self.usual_steps or time.steps
        self.add_window(
            Window(
                line=line,
                step=at.step,
                epoch=at.epoch,
                steps=time.steps,
                seconds=time.seconds,
                data_wait_s=time.wait_s,
                printed_rate=positive(row.get("rate")),
                printed_step_time_s=positive(row.get("time")),
                end_s=moment_s(row.get("stamp")),
                loss=number(row.get("loss")),
                gpu_memory_mib=number(row.get("memory")),
            )
        )

    def _forget_doubtful_precision(self) -> None:
        """Remove a precision of FP32, and the math mode, where a line of the log switches half precision on."""
        if self.value("precision") == "fp32" and self.evidence.half_line is not None:
            for name in ("precision", "math_mode"):
                self.said.pop(name, None)

    def _require_images(self) -> None:
        """Raise InputError for a log with rows whose lines do not show that the samples are images."""
        why_not = self.evidence.why_not_images() if self.windows else None
        if why_not is not None:
            raise InputError(why_not)


class EpochTable(Table):
    """A format whose counter starts anew in each epoch."""

    def steps_of_row(self, at: At) -> int | None:
        """Return the steps since the last row; None of the log's first row, unless it has one step."""
        last = self.last_row
        if last is None:
            self.first_step = min(self.first_step, at.step)
            return 1 if at.step == self.first_step else None
        if last.epoch == at.epoch and at.step >= last.step:
            return at.step - last.step
        return at.step - self.first_step + 1
