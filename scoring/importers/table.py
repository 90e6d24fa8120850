"""One reader for every format of printed rows.

A format is a subclass of `FormatReader` that says how its rows look. The smallest is `Paddle18` in `paddle.py`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from scoring.importers.evidence import Evidence, Fact
from scoring.importers.gaps import rows_after_lost_epochs, rows_after_lost_rows
from scoring.importers.lines import Lines, Restart
from scoring.importers.row_batch import RowBatch
from scoring.importers.text import (
    CUT,
    RowPattern,
    Values,
    first_line_in_words,
    integer,
    moment_s,
    number,
    plausible_wait_s,
    positive,
    rows,
)
from scoring.importers.unread import UnreadRows
from scoring.record import Check, InputError, Quality, TimeSpan, Window

Columns = dict[str, "str | None"]  # a row's values by column, as printed
MAX_ROWS = 1_000_000  # of a run, about 300 MB; public logs have some thousand
MAX_PROBLEMS = 20
MAX_RESTARTS = 1_000
WATCHED_ROWS = 100  # so many first rows are searched for what the samples are
_IMAGE_UNIT = re.compile(r"(?:images?|imgs?|samples?)/s(?:ec|econd)?\Z")  # units of a rate that may be images/s
_COUNT_FIELDS = ("devices", "nodes", "batch_per_device", "batch_of_all")  # facts that are whole numbers


class RowPosition(NamedTuple):
    """The epoch and the step of a row, as printed."""

    epoch: int | None
    step: int


class RowTime(NamedTuple):
    """The steps that a row covers, their seconds, and how long they waited for input. None: not known."""

    steps: int | None
    seconds: float | None
    wait_s: float | None


class FormatReader:
    """The base of all formats: a subclass describes a format, an object reads one log of it.

    A row is a line that a program prints of its training steps. Its columns are `step` and what else is printed:
    epoch, of (the run's last step; only in `MMEpochs` the epoch's), stamp, rate, unit (of the rate), time and wait (s),
    loss, memory (MiB). A format may add columns of its own.

    A fact is a value that the log states once. The groups of `fact_pattern` name facts. A fact is a field of the
    record, or a word of the format from which its `finish_facts` sets fields.
    """

    # The rows
    row_marker: str  # stands in every row
    row_clue: str = ""  # stands in every row and in little else; empty: use the marker
    figure_words: tuple[str, ...] = ()  # one stands in every row, and in no row of an evaluation; empty: use the clue
    whole_line_marker: str  # in no second half of a row that another process broke in two
    row_pattern: RowPattern
    recognised_by: RowPattern | None = None  # recognises the format; None: use `row_pattern`
    columns: str  # names of the row's groups, in order; of two groups with one name the first that matched counts
    required_column: str | None = None  # rows without a positive figure in this column are left out
    first_step = 1  # the number of an epoch's first step
    prints_mean_times = False  # the time of a row is the mean over its steps; else the time of its last step
    rate_scope: str | None = "device"  # whose images/s a row has: "device" or "global"
    cumulative = False  # rates are running averages, which the format itself differences (running_averages.py)
    rows_imply_batch = False  # rate x time is the batch, of one device or of all, as the rate is
    segmentation = False  # the program trains only segmentation networks
    # The lines around them
    fact_pattern: re.Pattern[str] | None = None  # facts in lines before the first row
    launcher_fact_pattern: re.Pattern[str] | None = None  # facts that a launcher or runtime prints before the first row
    last_fact_counts = False  # of several lines that state a fact before the first row; else the first one counts
    evaluation_pattern: re.Pattern[str] | None = None  # group `value`; also `epoch`, `step`, `name` if printed
    quality_name = ""  # name of an evaluation's value, if the line prints none
    epoch_end_pattern: re.Pattern[str] | None = None  # groups of an epoch's summary: `epoch`, `rate`, `seconds`
    summary_pattern: re.Pattern[str] | None = None  # its group is the log's own closing figure
    closing_words: tuple[str, ...] = ()  # one of them is in the last line of a complete log
    framework: str | None = None
    precision_names: tuple[tuple[str, str], ...] = ()  # pairs: a word of the log, the record's name; others are ignored

    def __init__(self, lines: Lines) -> None:
        """Make a reader of one training run. Nothing is read yet: `read` fills the attributes that are set up here.

        Args:
            lines: The lines of the log. Its `span` says which of them belong to the run.
        """
        self.lines = lines

        # What the log says.
        self.facts_by_name: dict[str, Fact] = {}  # values that it states once, such as "devices", each with its line
        self.windows: list[Window] = []  # one for each row of training figures
        self.epochs: list[Window] = []  # the log's own summary of each epoch
        self.qualities: list[Quality] = []  # results of evaluations
        self.evaluation_spans: list[TimeSpan] = []
        self.software: dict[str, str] = {}
        self.header: JsonObject = {}

        # What was noticed about the log itself.
        self.problems: list[str] = []
        self.checks: list[Check] = []
        self.restarts: list[Restart] = []  # where the epoch goes back, or the step within an epoch
        # Whether the log ends before its run does: True until a line has one of `closing_words`. None: not known.
        self.truncated = True if self.closing_words else None

        # What has been learnt so far from the rows, for the next row or for the end of the log.
        self.last_position: RowPosition | None = None  # epoch and step of the last row
        self._summarised_epochs: set[int] = set()  # the numbers of the epochs in `epochs`
        self._last_step_wanted: int | None = None  # as the last row prints it: 800 in `[50/800]`
        self.unread_rows = UnreadRows()  # lines of rows whose figures cannot be read
        self.row_batch = RowBatch()  # the batch, worked out from the rows
        self.evidence = Evidence()  # signs of what the samples are, and of half precision

    @property
    def usual_steps_per_row(self) -> int | None:
        """The steps of the first window that shows them. None: no window shows them so far."""
        for window in self.windows:
            if window.steps is not None:
                return window.steps
        return None

    def set_if_unset(self, name: str, value: object, line: int = 0) -> None:
        """Set a value that the log states, such as the number of devices, unless this value is set already.

        Args:
            name: Name of the value: a field of the record, such as "devices", or a word of the log's format.
            value: The value. None sets nothing.
            line: Number of the line that states the value. 0 means that no line states it.
        """
        if value is not None:
            self.facts_by_name.setdefault(name, Fact(value, line))

    def set_last(self, name: str, value: object, line: int) -> None:
        """Set a value that a later line may state anew, for example if a start failed: the last start counts.

        Args:
            name: Name of the value, such as "devices".
            value: The value. One that is the same as before keeps its first line.
            line: Number of the line that states the value.
        """
        if self.value(name) != value:
            self.facts_by_name[name] = Fact(value, line)

    def value(self, name: str) -> Any:
        """Return a value that the log states, such as the number of devices, or None if it does not state it.

        Args:
            name: Name of the value: a field of the record, such as "devices", or a word of the log's format.
        """
        return self.facts_by_name[name].value if name in self.facts_by_name else None

    def set_if_unset_from(self, field: str, name: str) -> None:
        """Copy one value that the log states to another name, with its line, unless the other name has a value already.

        Nothing happens if the log does not state the first value.

        Args:
            field: Name that gets the value, such as "model".
            name: Name of the value that is copied, such as "arch".
        """
        source = self.facts_by_name.get(name)
        if source is not None:
            self.set_if_unset(field, source.value, source.line)

    def line_of(self, name: str) -> int:
        """Return the line of the log that states a value, or 0 if no line states it.

        Args:
            name: Name of the value, which must be set.
        """
        return self.facts_by_name[name].line

    def set_if_places_agree(self, name: str, places: Mapping[str, Fact]) -> None:
        """Set a value that a log may state in several places, or remove it if the places disagree.

        An earlier value is replaced. If at least two places state the value, a check in `checks` records what each of
        them says and whether they agree.

        Args:
            name: Name of the value, such as "devices".
            places: What each place states, by a text that names the place: {"NCCL's nranks": Fact(8, line=12)}. A place
                whose value is None states nothing. If all are so, nothing changes.
        """
        facts = {place: fact for place, fact in places.items() if fact.value is not None}
        distinct_values = {fact.value for fact in facts.values()}
        places_agree = len(distinct_values) == 1
        if places_agree:
            first_fact, *_ = facts.values()
            self.facts_by_name[name] = first_fact
        elif distinct_values:  # they differ
            self.facts_by_name.pop(name, None)

        if len(facts) > 1:  # there is something to compare
            ways = tuple(f"line {fact.line}: {place}, {fact.value}" for place, fact in facts.items())
            self.checks.append(Check(what=name, ways=ways, agree=places_agree))

    def note_problem(self, text: str) -> None:
        """Record that something in the log could not be read as it stands.

        Args:
            text: What is wrong, with the line. Only the first MAX_PROBLEMS texts are kept.
        """
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def add_window(self, window: Window) -> None:
        """Append the figures of one printed row to `windows`, unless they repeat the last row.

        A row repeats the last one if two programs write one log, for example. If a row has an earlier epoch than the
        last one, or an earlier step of the same epoch, the lines of both are added to `restarts`, because another run
        may begin there. At most MAX_RESTARTS such pairs are kept.

        Args:
            window: The figures of the row. One without a step is never taken for a repetition or a restart.

        Raises:
            InputError: The run has MAX_ROWS rows already.
        """
        last = self.windows[-1] if self.windows else None
        if last is not None and _is_copy(window, last):
            return
        if last is not None and _goes_back(window, last) and len(self.restarts) < MAX_RESTARTS:
            self.restarts.append(Restart(last.line, window.line))  # another run may begin between these lines

        if len(self.windows) == MAX_ROWS:
            raise InputError(
                f"line {window.line}: over {MAX_ROWS:,} rows in one run; print rarer rows, or score a part of the log"
            )
        self.windows.append(window)

    def read_before_rows(self, line: int, text: str) -> None:
        """Read the values that a line before the first row of training figures states, such as the batch size.

        Each named group of the format's patterns that matches is passed to `take_fact`. Formats extend this method to
        read more.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        for pattern in (self.fact_pattern, self.launcher_fact_pattern):
            if pattern is None:
                continue
            for match in pattern.finditer(text):
                for name, value in match.groupdict().items():  # a named group has the name of its fact
                    if value is not None:
                        self.take_fact(name, value, line)

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Set a value, such as the batch size, that a line before the first row of training figures states.

        Of several lines that state it the first counts, or the last in a format with `last_fact_counts`. Formats
        override this method to choose otherwise.

        Args:
            name: Name of the value. `read_before_rows` passes the name of a group in the format's patterns.
            value: What the line states: there, the text that the group matched.
            line: Number of the line in the log.
        """
        if self.last_fact_counts:
            self.set_last(name, value, line)
        else:
            self.set_if_unset(name, value, line)

    def note_row(self, text: str) -> None:
        """Keep what a printed row shows of the rows to come. This does nothing, but a format may override it.

        Args:
            text: The row as it is printed, of training or of an evaluation.
        """

    def is_training_row(self, text: str) -> bool:
        """Return whether a printed row is of training. Formats override this if their evaluations print such rows, too.

        Args:
            text: The row as it is printed.
        """
        return True

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Learn from the first row of training figures how its program counts steps, and the like.

        This does nothing, but a format may override it.

        Args:
            text: The row as it is printed.
            position: Epoch and step of the row.
            row: Values of the row by column, as printed.
        """

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row of training figures that is not such a row itself.

        The line may print the result of an evaluation, the summary of an epoch, or the average speed of the run. If it
        has one of the format's `closing_words`, the log is complete, and `truncated` becomes False.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        self._read_evaluation(line, text)

        self._read_epoch_summary(line, text)
        summary = self.summary_pattern.search(text) if self.summary_pattern else None
        if summary:
            self.set_if_unset("summary_rate", positive(summary[1]), line)
        if any(word in text for word in self.closing_words):
            self.truncated = False

    def _read_evaluation(self, line: int, text: str) -> None:
        """Append the result of an evaluation to `qualities`, if a line prints one and a training row came before.

        A result is of an epoch, if the format's results print their epoch, or else of a step. If this line does not
        print the number, that of the last training row is taken.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        last_row = self.last_position
        match = self.evaluation_pattern.search(text) if self.evaluation_pattern else None
        value = number(match["value"]) if match else None
        if match is None or value is None or last_row is None:
            return

        printed = match.groupdict()  # by the named groups of the pattern; None if this line does not print the value
        epoch = integer(printed.get("epoch"))
        step = integer(printed.get("step"))
        is_of_epoch = "epoch" in printed  # the pattern has this group, even if it does not match on this line
        if is_of_epoch and epoch is None:
            epoch = last_row.epoch
        if not is_of_epoch and step is None:
            step = last_row.step
        name = printed.get("name") or self.quality_name
        self.qualities.append(Quality(line=line, name=name, value=value, epoch=epoch, step=step))

    def _read_epoch_summary(self, line: int, text: str) -> None:
        """Append the summary of an epoch to `epochs`, if a line prints one and no earlier line did so of this epoch.

        A second summary of an epoch is of another rank, or of another handler that writes to the same file.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        match = self.epoch_end_pattern.search(text) if self.epoch_end_pattern else None
        if match is None:
            return
        epoch = int(match["epoch"])
        if epoch in self._summarised_epochs:
            return
        self._summarised_epochs.add(epoch)
        rate = positive(match["rate"])
        self.epochs.append(Window(line=line, epoch=epoch, printed_rate=rate, seconds=positive(match["seconds"])))

    def finish_rows(self) -> None:
        """Change `windows` by what only all rows together show; this is called after the last line.

        This does nothing, but a format may override it.
        """

    def finish_facts(self) -> None:
        """Convert what the log states from its own words to the values of a record. Call this after the last line.

        The text "8" for the devices becomes the number 8, and a log's own word for the precision becomes "fp32" or the
        like. Formats extend this method to set further values.
        """
        for field in _COUNT_FIELDS:
            self._convert_fact(field, _count_of)
        self._convert_fact("precision", self.name_of_precision)
        self.set_if_unset("framework", self.framework)

    def _convert_fact(self, name: str, convert: Callable[[str], object]) -> None:
        """Replace the text of a value by what it means, or remove the value if its meaning is not known.

        Args:
            name: Name of the value. If it is not set, nothing happens.
            convert: Function that returns the meaning of a text, or None.
        """
        fact = self.facts_by_name.pop(name, None)
        if fact is not None:
            self.set_if_unset(name, convert(str(fact.value)), fact.line)  # None sets nothing

    def name_of_precision(self, word: str) -> str | None:
        """Return the name that a record uses for a precision, such as "amp".

        Args:
            word: The precision in the words of the log, such as "float16".

        Returns:
            The name, or None if the word names no precision that the format knows.
        """
        return dict(self.precision_names).get(word)

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return the number of steps from one printed row to the next, if steps are counted through the whole run.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number of steps, or None for the first row and if the step goes back.
        """
        if last is None or position.step < last.step:
            return None
        return position.step - last.step

    def time_of_row(self, last: RowPosition | None, position: RowPosition, row: Columns) -> RowTime:
        """Return how many training steps a printed row covers, how long they took, and how long they waited for input.

        A row prints the time of one step. A row at step 20, after one at step 10, that prints 0.35 s covers

            10 steps in 3.5 s           in a format with `prints_mean_times`: 0.35 s is the mean of the row's steps
            10 steps in unknown time    in any other format: 0.35 s is the time of the last step alone

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.
            row: Values of this row by column, as printed: {"step": "20", "time": "0.35"}.

        Returns:
            The steps, their seconds, and their wait in seconds; None for what is not known. A wait that is negative, or
            over 1 % longer than the seconds, counts as not known.
        """
        steps = self.steps_of_row(last, position)
        step_s = self.step_time_of_row(row)
        is_mean_of_steps = self.prints_mean_times or steps == 1  # the time of a single step is its own mean
        if steps is None or step_s is None or not is_mean_of_steps:
            return RowTime(steps, seconds=None, wait_s=None)

        seconds = step_s * steps
        step_wait_s = number(row.get("wait"))  # of one step, too
        wait_s = None if step_wait_s is None else plausible_wait_s(step_wait_s * steps, seconds)
        return RowTime(steps, seconds, wait_s)

    def step_time_of_row(self, row: Columns) -> float | None:
        """Return the seconds of a training step that a row prints, or None if it prints none that can be true.

        Formats override this method if a row shows the time more exactly.

        Args:
            row: Values of the row by column, as printed.
        """
        return positive(row.get("time"))

    def read(self) -> None:
        """Read all lines of the run, and fill the attributes of this reader from them. Call this once.

        Each call below uses what those before it have set.

        Raises:
            InputError: The log has rows of training figures, but no line shows that the samples are images, or a line
                shows other samples. Also if a row prints a rate not in images/s or samples/s, or if there are over
                MAX_ROWS rows.
        """
        self._read_lines()
        self._note_unread_rows()
        self._set_truncated()
        self.finish_rows()  # of the format: turns running averages into figures of each row's own steps
        self._note_lost_rows()
        self.finish_facts()  # of the format: turns the texts of facts into numbers and names
        self._set_batch_by_rows()
        self._forget_fp32_if_half_precision_is_on()
        self._require_images()  # raises InputError
        self._set_facts_of_format()

    def _set_batch_by_rows(self) -> None:
        """Set the batch that the rows imply, rate x step time, and check whether a stated batch is the same."""
        batch_field = "batch_of_all" if self.rate_scope == "global" else "batch_per_device"
        self.row_batch.set_batch(batch_field, self.facts_by_name, self.checks)

    def _set_facts_of_format(self) -> None:
        """Set what no line states, but the format: its first step, whose images a rate counts, and how it averages."""
        self.set_if_unset("first_step", self.first_step)
        self.set_if_unset("rate_scope", self.rate_scope)
        self.set_if_unset("cumulative", self.cumulative)

    def _read_lines(self) -> None:
        """Read each line of the run: a row of training figures into `windows`, any other line for what it states.

        Raises:
            InputError: A row prints a rate not in images/s or samples/s, or the run has over MAX_ROWS rows.
        """
        patterns = (self.evaluation_pattern, self.epoch_end_pattern, self.summary_pattern)
        other_figures = [pattern for pattern in patterns if pattern is not None]
        numbered_lines = self.lines.without_repeated_rows(self.row_marker, other_figures)
        for row in rows(numbered_lines, self.row_marker, self.whole_line_marker, self.row_pattern):
            self._search_for_evidence(row.line, row.text, is_row=row.values is not None)
            if row.values is None:
                self._read_other_line(row.line, row.text)
                continue
            if row.is_joined:  # its first half came as a line without values, and may be among the unread rows
                self.unread_rows.forget(row.line)
            self._read_row(row.line, row.text, row.values)

    def _note_unread_rows(self) -> None:
        """Note a problem that counts the rows whose figures cannot be read, if there are any."""
        if self.unread_rows.lines:
            self.note_problem(self.unread_rows.in_words(rows_read=len(self.windows)))

    def _read_other_line(self, line: int, text: str) -> None:
        """Read a line that is not a whole row of training figures, such as a setting, an evaluation or a torn row.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        has_row_marker = self.row_marker in text
        if not has_row_marker:
            self.lines.note_if_start(line, text)  # a run may begin here
        if has_row_marker and self._has_figure_that_cannot_be_read(text):  # a torn row
            self.unread_rows.note(line)

        if self.windows:
            self.read_after_first_row(line, text)
        else:
            self.read_before_rows(line, text)

    def _note_lost_rows(self) -> None:
        """Note a problem for each of two signs that rows are missing.

        - A row covers so many steps that it stands for the rows before it, too.
        - All rows of an epoch or more are missing.
        """
        long_rows = rows_after_lost_rows(self.windows, self.unread_rows.lines)
        if long_rows:
            longest = max(row.steps or 0 for row in long_rows)
            where = first_line_in_words([row.line for row in long_rows])
            self.note_problem(f"{where}: rows before it are missing, and its figures stand for up to {longest} steps")

        rows_of_later_epochs = rows_after_lost_epochs(self.windows, self.unread_rows.lines)
        if rows_of_later_epochs:
            where = first_line_in_words([row.line for row in rows_of_later_epochs])
            self.note_problem(f"{where}: rows before it are missing, and so are whole epochs")

    def _has_figure_that_cannot_be_read(self, text: str) -> bool:
        """Return whether a line begins as a row of training figures and goes on to a figure that cannot be read.

        Args:
            text: The line, which is not a whole row. If it was cut, as at the end of a log, the result is False.
        """
        if CUT in text or self.row_pattern.head.search(text) is None:
            return False
        words = self.figure_words or (self.row_clue or self.row_marker,)
        return any(word in text for word in words)

    def _read_row(self, line: int, text: str, values: Values) -> None:
        """Read one printed row, and add its figures to `windows` if it is a row of training that can be read.

        Args:
            line: Number of the line in the log.
            text: The row as it is printed.
            values: Values of the row in the order of `columns`. None stands for what the row does not print.

        Raises:
            InputError: The row prints a rate not in images/s or samples/s, or the run has over MAX_ROWS rows.
        """
        self.lines.confirm_run()  # there is a row: so the start noted last is the start of a run
        self.note_row(text)  # before `is_training_row`, which uses what earlier rows and this one have shown
        row = self._values_by_column(values)
        position = _position_of(row)
        is_repeated = position == self.last_position
        if is_repeated or not self.is_training_row(text):
            return
        if self.required_column is not None and positive(row[self.required_column]) is None:
            self.unread_rows.note(line)
            return

        self._require_image_unit(line, row.get("unit"))
        if self.last_position is None:
            self.read_first_row(text, position, row)
        if self.rows_imply_batch:
            self.row_batch.narrow(line, row.get("rate"), row.get("time"))
        # After these two, on which the time of a row may depend.
        covered = self.time_of_row(self.last_position, position, row)
        has_no_steps = covered.steps == 0  # None, for steps that are not known, is no 0
        if not has_no_steps:
            self.add_window(self._window_of_row(line, position, row, covered))
        self.last_position = position  # also of a row without steps: the next row counts its steps from there
        self._last_step_wanted = integer(row.get("of"))

    def _set_truncated(self) -> None:
        """Set `truncated` if the rows print the last step, of the run or, in `MMEpochs`, of the epoch.

        True means that another row would have fitted: with a row every 10 steps of 105, a log is complete at step 100
        and truncated at step 90.
        """
        if self._last_step_wanted is None or self.last_position is None:
            return
        steps_per_row = self.usual_steps_per_row or self.last_position.step  # a single row covers the steps up to it
        self.truncated = self.last_position.step + steps_per_row <= self._last_step_wanted

    def _search_for_evidence(self, line: int, text: str, *, is_row: bool) -> None:
        """Search a line for signs of what the samples of the log are, and of half-precision training.

        Every line is searched for signs of images. Lines before the first row and the first WATCHED_ROWS rows are also
        searched for signs of other samples and of half precision, because they may show how the training is set up.

        Args:
            line: Number of the line in the log.
            text: The line.
            is_row: Whether it is a row of training figures.
        """
        rows_before = len(self.windows)
        is_before_rows = not is_row and rows_before == 0
        is_among_first_rows = is_row and rows_before < WATCHED_ROWS
        self.evidence.search(line, text, may_configure=is_before_rows or is_among_first_rows)

    def _values_by_column(self, values: Values) -> Columns:
        """Return the values of a printed row by the names of their columns.

        If a name stands twice in `columns`, for two forms of a figure, its first value that is not empty counts.

        Args:
            values: The values in the order of `columns`. None stands for what the row does not print.
        """
        row: Columns = {}
        for name, value in zip(self.columns.split(), values, strict=True):
            row[name] = row.get(name) or value
        return row

    def _require_image_unit(self, line: int, unit: str | None) -> None:
        """Raise an error if a row prints a rate that is not of images, as tokens/s.

        Args:
            line: Number of the line in the log.
            unit: Unit of the rate, such as "samples/s". None if the row prints none.

        Raises:
            InputError: The unit is of something other than images or samples, of another time than a second, or of one
                device, as "images/s/gpu" is.
        """
        if unit and not _IMAGE_UNIT.match(unit):
            raise InputError(f"line {line}: a rate in {unit}, not in images/s: score logs of networks for images")

    def _window_of_row(self, line: int, position: RowPosition, row: Columns, covered: RowTime) -> Window:
        """Return the figures of one printed row as a Window: its columns, and the steps and time that it covers.

        Args:
            line: Number of the line in the log.
            position: Epoch and step of the row.
            row: Values of the row by column, as printed. A figure that is missing or cannot be read becomes None.
            covered: Steps that the row covers, their seconds and their wait for input, as `time_of_row` returns them.
        """
        return Window(
            line=line,
            step=position.step,
            epoch=position.epoch,
            steps=covered.steps,
            seconds=covered.seconds,
            data_wait_s=covered.wait_s,
            printed_rate=positive(row.get("rate")),
            printed_step_time_s=self.step_time_of_row(row),
            end_s=moment_s(row.get("stamp")),
            loss=number(row.get("loss")),
            gpu_memory_mib=number(row.get("memory")),
        )

    def _forget_fp32_if_half_precision_is_on(self) -> None:
        """Remove the facts `precision` and `math_mode` if the precision is FP32, but a line switches half precision on.

        Call this after `finish_facts`, which converts the log's own word for FP32 to "fp32".
        """
        if self.value("precision") == "fp32" and self.evidence.half_line is not None:
            for name in ("precision", "math_mode"):
                self.facts_by_name.pop(name, None)

    def _require_images(self) -> None:
        """Raise InputError if the log has rows, but its lines do not show that the samples are images."""
        why_not = self.evidence.why_not_images() if self.windows else None
        if why_not is not None:
            raise InputError(why_not)


def _is_copy(window: Window, last: Window) -> bool:
    """Return whether a row of figures is a copy of the last one: same epoch, step, seconds and printed rate.

    Args:
        window: The row. Without a step it is not a copy.
        last: The last row.
    """
    if window.step is None:
        return False
    is_same_step = window.step == last.step and (window.epoch or 0) == (last.epoch or 0)
    return is_same_step and window.seconds == last.seconds and window.printed_rate == last.printed_rate


def _goes_back(window: Window, last: Window) -> bool:
    """Return whether a row has an earlier epoch than the last one, or an earlier step of the same epoch.

    Args:
        window: The row.
        last: The last row. If one of the two has no step, the result is False.
    """
    if window.step is None or last.step is None:
        return False
    # Without epochs, the steps count through the whole run.
    return (window.epoch or 0, window.step) < (last.epoch or 0, last.step)


def _count_of(text: str) -> int | None:
    """Return a number of devices or the like that a log states, or None if the text is none, as 0 or garbled text is.

    Args:
        text: The number as printed.
    """
    return integer(text) or None


def _position_of(row: Columns) -> RowPosition:
    """Return the epoch and the step that a row of training figures prints.

    Args:
        row: Values of the row by column, as printed. It must have a "step". The epoch is None if it is not printed.
    """
    step = row["step"]
    assert step is not None  # the pattern of each format needs it
    return RowPosition(integer(row.get("epoch")), int(step))
