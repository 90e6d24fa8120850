"""PaddleClas logs, of its static-graph and its dynamic-graph trainers.

static   [Y/M/D h:m:s] ppcls INFO: epoch:0   train step:10   lr: .., loss: .. batch_cost: .. s, reader_cost: .. s,
         ips: .. samples/sec.   (ppcls/static/program.py)
         Steps count from 1. The costs are averages since step 5 of the epoch, where the meters are reset.
2.0      Y-M-D h:m:s INFO: epoch:0  , train step:10  , loss: .., top1: .., batch_cost: .. s, reader_cost: .. s,
         ips: .. images/sec.   (tools/program.py of release 2.0)
         Steps count from 0. The costs are averages since step 10 of the epoch, where the meters are reset.
old      Y-M-D h:m:s INFO: epoch:0   train step:10   loss: .. elapse: 0.096s ips: .. images/sec.
         Steps count from 0. The averages are since step 5 of the epoch; the rate has the digits that `elapse` lacks.
         Before rates were printed, `elapse` was the time of the row's last step alone.
dygraph  [Y/M/D h:m:s] ppcls INFO: [Train][Epoch 1/120][Iter: 10/626]lr(..): .., loss: .., batch_cost: ..s,
         reader_cost: .., ips: .. samples/s, eta: ..   (ppcls/engine/train/utils.py)
         The costs are averages since iteration 5 of the epoch, where the meters are reset, and so on into the next
         epoch. Releases after 2.5 reset them after each row, too. Iterations count from 0.
`ips` is that of rank 0 alone in all of them. Averages are differenced.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from runlog.digits import four_digits
from scoring.importers.checks import AGREES_WITHIN
from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.evidence import Fact
from scoring.importers.lines import Lines
from scoring.importers.paddle import Launch
from scoring.importers.resets import Resets, averaged_steps_of_epoch
from scoring.importers.running_averages import NO_TOTALS, PrintedMean, Totals, are_running_averages
from scoring.importers.table import Columns, RowPosition, RowTime
from scoring.importers.text import RowPattern, field, integer, lines_in_words, number, plausible, positive
from scoring.record import Window

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
_TIME = field(" (?:batch_cost|elapse): ", r" ?s\b")
_RATE = field(" ips: ", r" \w+/s")
_RATE_OR_NOTHING_BEHIND_ELAPSE = re.compile(rf"{_RATE.pattern}| elapse: [\d.]+s\s*$")
_OTHERS = (
    field(" reader_cost: ", r"(?: ?s)?(?:[,\s]|$)"),
    field(" loss: +"),
    re.compile(" (elapse): "),
    re.compile(r" ips: \S+ (\w+/s)"),
)
_CONFIG_LINE = re.compile(r"(?:\] \w+ |\d\d:\d\d:\d\d(?:,\d+)? )INFO: ( *)(\w+) : ?(.*)$")
_EPOCH_END = re.compile(r"END epoch:(\d{1,9})\s+train\b|\[Train\]\[Epoch (\d{1,9})(?:/\d{1,9})?\]\[Avg\]")
_NAMES_BY_PATH = {  # names of facts, by the path of keys in the configuration
    "DataLoader.Train.sampler.batch_size": "batch_per_device",
    "TRAIN.batch_size": "batch_of_all",  # old releases divide it by the number of trainers
    "Arch.name": "model",
    "ARCHITECTURE.name": "model",
    "Global.epochs": "epochs_wanted",
    "epochs": "epochs_wanted",  # of old releases
}
RESET_STEP = 5  # of each epoch, in the dynamic graph: the averages begin anew with this step
_PRECISION_SWITCHES = ("AMP", "use_amp", "use_fp16", "use_pure_fp16")


class Key(NamedTuple):
    """A key of the printed configuration, and by how many spaces it is indented."""

    indent: int
    name: str


def _path_with(path: Sequence[Key], key: Key) -> list[Key]:
    """Return the keys from the root of an indented configuration to a key that is printed next.

    Args:
        path: The keys from the root to the key on the line before.
        key: The next key. It ends all keys of `path` that are indented as far as itself or further.
    """
    parents = list(path)
    while parents and parents[-1].indent >= key.indent:
        parents.pop()
    return [*parents, key]


def _is_precision_switch(path: str, name: str) -> bool:
    """Return whether a key of the printed configuration says in which precision the run computes.

    Args:
        path: Keys from the root to this one, such as "AMP.level". Every key in the section `AMP` counts.
        name: The key itself, such as "use_amp". Some names count at any place.
    """
    return name in _PRECISION_SWITCHES or path.startswith("AMP.")


class _PaddleClas(Launch):
    """The base of both trainers: reads costs and rates, the indented configuration, and the ends of epochs."""

    whole_line_marker = "INFO: "
    required_column = "time"
    prints_mean_times = True
    rows_imply_batch = True
    evaluation_pattern = re.compile(
        r"(?:\[Eval\]\[Epoch (?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[Avg\]"
        r"|END (?:epoch:\d{1,9}\s+)?(?:eval|valid)\b)"
        r".*?\btop1: +(?P<value>[-\d.]+)"
    )
    quality_name = "top1"
    precision_names = (("fp32", "fp32"), ("fp16", "fp16"), ("amp", "amp"), ("amp_o1", "amp_o1"), ("amp_o2", "amp_o2"))
    first_epoch: int  # the number of the first epoch

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._config_path: list[Key] = []  # the keys from the root to the line that is read
        self._precision_switches: dict[str, Fact] = {}  # by their names
        self._ended_epochs: set[int] = set()  # epochs whose training ended

    def read_before_rows(self, line: int, text: str) -> None:
        """Read a line before the first row of training figures, which may print a key of the configuration.

        The configuration is a tree with a key on each line. Here, the key `TRAIN.batch_size` has the value 64:

            12:30:00 INFO: TRAIN :
            12:30:00 INFO:     batch_size : 64

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_before_rows(line, text)
        match = _CONFIG_LINE.search(text) if "INFO: " in text else None
        if match is None:  # the line prints no key
            return

        spaces, name, value = match.groups()  # 4 spaces, "batch_size" and "64"
        keys_to_line_before = self._config_path
        self._config_path = _path_with(keys_to_line_before, Key(indent=len(spaces), name=name))
        path = ".".join(key.name for key in self._config_path)  # "TRAIN.batch_size"
        if path in _NAMES_BY_PATH:  # a key that states one value of the record, such as the batch size
            self.set_if_unset(_NAMES_BY_PATH[path], value.strip(), line)
        elif _is_precision_switch(path, name):  # kept until all are read: they state the precision only together
            self._precision_switches.setdefault(name, Fact(value.strip(), line))

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row of training figures, and note if it says that the training of an epoch ended.

        The line may also print the result of an evaluation.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_after_first_row(line, text)
        match = _EPOCH_END.search(text)
        if match:
            self._ended_epochs.add(int(match[1] or match[2]))

    def finish_facts(self) -> None:
        """Set the precision and whether the log is truncated, and convert what the log states to numbers and names."""
        first_line = min((fact.line for fact in self._precision_switches.values()), default=0)
        switches = {name: fact.value for name, fact in self._precision_switches.items()}
        self.set_if_unset("precision", _precision_by_switches(switches), first_line)
        super().finish_facts()
        self.truncated = self._is_truncated()

    def _is_truncated(self) -> bool | None:
        """Return whether the log ends before its run does, or None if it has no row or does not show it."""
        last_epoch = self.last_position.epoch if self.last_position else None
        if last_epoch is None:
            return None
        epochs_wanted = integer(self.value("epochs_wanted"))  # of the configuration
        last_wanted = None if epochs_wanted is None else self.first_epoch + epochs_wanted - 1
        return _is_run_truncated(last_epoch, last_wanted, self._ended_epochs)


def _is_run_truncated(last_epoch: int, last_wanted: int | None, ended_epochs: Collection[int]) -> bool | None:
    """Return whether a log ends before its run does, by the epoch of the log's last row.

    Args:
        last_epoch: The epoch of the last row.
        last_wanted: The last epoch that the configuration asks for. None if the log does not print it.
        ended_epochs: The epochs of which a line says that their training ended.

    Returns:
        True if epochs, or the end of the last one, are missing. None if the log does not show whether any are.
    """
    if last_wanted is not None and last_epoch < last_wanted:
        return True
    if last_epoch in ended_epochs:
        return None if last_wanted is None else False
    # The last epoch has no line of its end. That shows nothing if no epoch has one, as in some public logs.
    return True if ended_epochs else None


def _precision_by_switches(switches: Mapping[str, str]) -> str | None:
    """Return the precision of a run by the switches in its printed configuration, or None if they do not state it.

    AMP is automatic mixed precision. Its level O1 computes a part of the network in FP16, and its level O2 nearly all
    of it, which is called pure FP16.

    Args:
        switches: Texts of the switches by name: {"use_amp": "True", "level": "O2"}.

    Returns:
        "fp32", "fp16", "amp_o1" or "amp_o2", or "amp" if its level is not known.
    """
    # FP16 that is on counts first, whatever the other switches say.
    if switches.get("use_pure_fp16") == "True":
        return "amp_o2"
    if switches.get("use_fp16") == "True":
        return "fp16"

    use_amp = switches.get("use_amp")  # None: not printed
    if use_amp == "False":
        return "fp32"
    if use_amp not in ("True", None):  # other text follows the word, as that of a progress bar: it tells nothing
        return None
    has_amp_section = switches.get("AMP", "None") != "None"  # `AMP : None` is not a section
    is_amp_on = use_amp == "True" or has_amp_section
    if not is_amp_on:  # `use_fp16 : False` or `use_pure_fp16 : False` alone does not state the precision
        return None
    return _level_of_amp(switches) or "amp"


def _level_of_amp(switches: Mapping[str, str]) -> str | None:
    """Return the level of automatic mixed precision, "amp_o1" or "amp_o2", or None if no switch tells it.

    Args:
        switches: Texts of the switches of precision, by name.
    """
    level = switches.get("level")  # in the section `AMP`
    if level in ("O1", "O2"):
        return f"amp_{level.lower()}"
    is_pure_fp16_off = switches.get("use_pure_fp16") == "False"
    return "amp_o1" if is_pure_fp16_off else None


class _AveragedRow(NamedTuple):
    """The means that a row prints, and over how many steps they are: as row averages, and as running averages."""

    window: Window
    mean_s: float | None  # of a step's time; None: not printed
    mean_wait_s: float | None  # of a step's wait for input; None: not known
    steps_since_row: int | None  # the means are over these if they are row averages; None: not known
    steps_if_running: int | None  # and over these if they are running averages; None: not known
    is_first_since_reset: bool  # it is the first row of the log, or the averages were reset since the row before


class Dygraph(_PaddleClas):
    """The dynamic-graph trainer, whose averages run on from row to row in some releases, and not in others."""

    row_marker = "[Train][Epoch "
    row_pattern = RowPattern(
        re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/(\d{1,9})\]"),
        (_TIME, _RATE),
        _OTHERS,
    )
    columns = "stamp epoch step epoch_steps time rate wait loss old unit"
    first_step = 0
    first_epoch = 1

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._resets: Resets | None = None  # the first row sets it
        self._release_averages_since_reset: bool | None = None  # by the first row; False: since the last row

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Keep how many steps an epoch has, and over which steps the release that printed the row averages.

        Args:
            text: The row as it is printed.
            position: Epoch and step of the row.
            row: Values of the row by column, as printed.
        """
        self._resets = Resets(RESET_STEP, steps_of_epoch=int(row["epoch_steps"] or 0))  # `or` is for the types
        self._release_averages_since_reset = _averages_since_reset(text, row["unit"])

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many training steps a row averages if the program begins new averages after each printed row.

        Some releases of PaddleClas do, and others do not. `finish_rows` replaces the number for the others.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number of steps, or None if rows before the first row of the log may be missing.
        """
        assert self._resets is not None  # the first row has set it
        return self._resets.steps_of_row_average(last, position)

    def finish_rows(self) -> None:
        """Give each row the figures of the steps since the last row or reset, if the rows print running averages.

        A running average is over all steps since a reset. `steps_of_row` has supposed averages since the last row or
        reset. All rows of the log together show which of the two is right. If they do not, the rows keep their figures,
        and a problem says by how much those would differ.
        """
        if self._resets is None:  # the first row sets it: the log has no row
            return
        rows = _averaged_rows(self.windows, self._resets, self.row_batch.batch)
        groups = _means_by_reset(rows, self._resets)
        are_running = are_running_averages(groups, release_says=self._release_averages_since_reset)
        if are_running:
            self.cumulative = True
            _set_figures_since_row_before(rows)
        elif are_running is None:
            self._note_if_kind_of_averages_matters(rows)

    def _note_if_kind_of_averages_matters(self, rows: Sequence["_AveragedRow"]) -> None:
        """Note a problem if the rows would take another time as running averages than as averages of their own steps.

        Args:
            rows: All rows of the log, in its order. Their windows have the figures of their own steps.
        """
        rows_if_running = [row._replace(window=dataclasses.replace(row.window)) for row in rows]
        _set_figures_since_row_before(rows_if_running)
        own_s = 0.0
        running_s = 0.0
        for row, other in zip(rows, rows_if_running, strict=True):
            if row.window.seconds is not None and other.window.seconds is not None:
                own_s += row.window.seconds
                running_s += other.window.seconds
        if own_s == 0 or abs(running_s / own_s - 1) <= AGREES_WITHIN:
            return
        self.note_problem(
            f"{lines_in_words(self.windows)}: nothing shows whether each row averages its own steps, as after release "
            "2.5 of PaddleClas, or all since the epoch's step 5, as in 2.4 and 2.5. They are read as their own; "
            f"otherwise they took {four_digits(running_s / own_s)} times as long"
        )


def _averages_since_reset(text: str, unit: str | None) -> bool | None:
    """Return whether the PaddleClas release that printed a row averages all steps since a reset early in the epoch.

    Args:
        text: The row as it is printed.
        unit: Unit of its rate, up to the first letter of the time: "images/s" of both `images/s` and `images/sec`.

    Returns:
        False if it averages the steps since the last row. None if the row does not tell: releases 2.4 and 2.5 average
        since the reset, later ones since the last row, in the same words.
    """
    if "max_mem_reserved: " in text:  # only releases after 2.5 print it
        return False
    if unit == "images/s":  # only releases 2.1 to 2.3 print `images/sec`
        return True
    return None


def _averaged_rows(windows: Sequence[Window], resets: Resets, batch: int | None) -> list[_AveragedRow]:
    """Return the means that each row prints, with the numbers of steps that they may cover.

    Args:
        windows: All rows of the log, in its order. Their steps, seconds and wait are those since the last row or
            reset.
        resets: When the program resets its averages.
        batch: Images of a step on one device, or None if they are not known.
    """
    rows: list[_AveragedRow] = []
    position_before: RowPosition | None = None  # of the row before; None: there is none
    steps_before: int | None = None  # the `steps_if_running` of the row before
    for window in windows:
        assert window.step is not None  # each row prints it
        position = RowPosition(window.epoch, window.step)
        is_first = position_before is None or resets.had_reset_between(position_before, position)
        mean_wait_s: float | None = None
        if window.data_wait_s is not None and window.steps:
            mean_wait_s = window.data_wait_s / window.steps  # as printed: the row's wait was set to mean x steps
        row = _AveragedRow(
            window,
            mean_s=_mean_s(window, batch),
            mean_wait_s=mean_wait_s,
            steps_since_row=window.steps,
            steps_if_running=resets.steps_of_running_average(position_before, steps_before, position),
            is_first_since_reset=is_first,
        )
        rows.append(row)
        position_before = position
        steps_before = row.steps_if_running
    return rows


def _mean_s(window: Window, batch: int | None) -> float | None:
    """Return the mean step time that a row prints, or None if it prints none.

    Args:
        window: The row.
        batch: Images of a step on one device. If they are known, the time is batch / rate: the rate has more digits.
    """
    if batch and window.printed_rate:
        return batch / window.printed_rate
    return window.printed_step_time_s


def _means_by_reset(rows: Sequence[_AveragedRow], resets: Resets) -> list[list[PrintedMean]]:
    """Return the mean step times that rows print, grouped from each reset of the averages to the next one.

    Args:
        rows: All rows of the log, in its order.
        resets: When the program resets its averages.
    """
    groups: list[list[PrintedMean]] = []
    for row in rows:
        if row.is_first_since_reset:  # the first row of the log is one
            groups.append([])
        if _may_follow_evaluation(row, resets):  # the time since the row before may then be that of the evaluation
            continue
        if row.mean_s and row.steps_since_row and row.steps_if_running:  # else a figure is not known
            mean = PrintedMean(row.mean_s, row.steps_since_row, row.steps_if_running, row.window.end_s)
            groups[-1].append(mean)
    return groups


def _may_follow_evaluation(row: _AveragedRow, resets: Resets) -> bool:
    """Return whether a row comes before the reset step of its epoch, so that an evaluation may lie before it.

    If epochs are too short to have that step, the result is False for all rows, so that some rows are left to compare.

    Args:
        row: The row.
        resets: When the program resets its averages.
    """
    assert row.window.step is not None  # each row prints it
    is_before_reset = row.window.step < resets.reset_step
    return is_before_reset and resets.come_in_epochs


def _set_figures_since_row_before(rows: Sequence[_AveragedRow]) -> None:
    """Set the steps, the seconds and the wait of each row's window to those since the row before or the reset.

    The rows print running averages. The totals of a row are its averages x the number of steps in them. A row gets its
    totals less those of the row before:

        printed mean                                      totals           figures of the row
        step 10, first after a reset: 1 s over 6 steps    6 steps, 6 s     6 steps in 6 s
        step 20: 0.5 s over 16 steps                      16 steps, 8 s    10 steps in 2 s

    Args:
        rows: All rows of the log, in its order. The windows of rows are changed.
    """
    totals_before: Totals | None = NO_TOTALS
    for row in rows:
        if row.is_first_since_reset:
            totals_before = NO_TOTALS
        totals = _totals(row)
        window = row.window
        if totals is None or totals_before is None:  # no difference can be made: keep the steps alone
            window.seconds = None
            window.data_wait_s = None
        else:
            window.steps, window.seconds, window.data_wait_s = totals.since(totals_before)
        totals_before = totals  # None, for a row of unknown totals, also leaves the next row without seconds


def _totals(row: _AveragedRow) -> Totals | None:
    """Return the total time and the total wait of the steps in a row's running averages: printed mean x steps.

    Args:
        row: The row.

    Returns:
        The totals. None if the row's mean step time or the number of its steps is not known.
    """
    steps = row.steps_if_running
    if steps is None or row.mean_s is None:
        return None
    wait_s = None if row.mean_wait_s is None else row.mean_wait_s * steps
    return Totals(steps, row.mean_s * steps, wait_s)


class Static(_PaddleClas, EpochFormatReader):
    """The static-graph trainer and the dynamic one of 2.0: rows print running averages; epochs count from 0.

    Rows of early 2020, which print no rate, print the time of their last step alone.
    """

    row_marker = "train step:"
    row_pattern = RowPattern(
        re.compile(_STAMP + r"epoch:(\d{1,9})\s*(?:, |\s)\s*train step:(\d{1,9})"),
        (_TIME, _RATE_OR_NOTHING_BEHIND_ELAPSE),
        _OTHERS,
    )
    columns = "stamp epoch step time rate wait loss old unit"
    first_step = 1
    first_epoch = 0
    cumulative = True
    reset_step = 5  # of each epoch: the averages begin anew with this step

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._last_totals = NO_TOTALS  # of the last row

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Set how steps are counted and averaged by the PaddleClas release that printed a row.

            epoch:0   train step:10   .. elapse: 0.1s              before rates: steps from 0, no averages
            epoch:0   train step:10   .. elapse: 0.1s ips: ..      an old release: steps from 0, a reset at step 5
            epoch:0  , train step:10  , .. batch_cost: .. ips: ..  release 2.0: steps from 0, a reset at step 10
            epoch:0   train step:10   .. batch_cost: .. ips: ..    the static trainer: steps from 1, a reset at step 5

        Args:
            text: The row as it is printed, the first one of the log.
            position: Epoch and step of the row.
            row: Values of the row by column. "old" holds the word `elapse`, or None.
        """
        is_old_release = row["old"] is not None
        has_comma_before_step = re.search(r"epoch:\d+\s*, train step:", text) is not None
        is_release_2_0 = has_comma_before_step and not is_old_release
        if is_old_release or is_release_2_0:
            self.first_step = 0  # else 1 stays
        if is_release_2_0:
            self.reset_step = 10  # else 5 stays
        prints_averages = row["rate"] is not None
        self.prints_mean_times = prints_averages
        self.cumulative = prints_averages

    def time_of_row(self, last: RowPosition | None, position: RowPosition, row: Columns) -> RowTime:
        """Return the steps since the last row or reset, their seconds and their wait, from the running averages.

        If one row prints a mean of 0.2 s over 20 steps and the next one 0.3 s over 30 steps, the 10 steps between took
        9 s - 4 s = 5 s.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.
            row: Values of this row by column, as printed.

        Returns:
            The steps, their seconds and their wait, as `Totals.since` returns them. Of a release that prints no
            averages, the seconds are known for rows of a single step alone.
        """
        if row["rate"] is not None:  # the first row may have none although its release prints rates: it was torn
            self.prints_mean_times = True
            self.cumulative = True
        if not self.prints_mean_times:
            return super().time_of_row(last, position, row)
        totals = self._totals_of_row(position, row)
        is_first_after_reset = last is None or self._were_averages_reset(last, position)
        totals_before = NO_TOTALS if is_first_after_reset else self._last_totals
        self._last_totals = totals  # for the next row: this is called once for each row, in their order
        return totals.since(totals_before)

    def step_time_of_row(self, row: Columns) -> float | None:
        """Return the mean step time of the steps that a row averages, in seconds, as exactly as the row shows it.

        Args:
            row: Values of the row by column, as printed. It must have a positive "time".

        Returns:
            The time, or None if it is absurdly small or large.
        """
        return plausible(_mean_step_s(row, self.row_batch.batch))

    def _totals_of_row(self, position: RowPosition, row: Columns) -> Totals:
        """Return how many steps a row averages, their total time, and the total wait for input in it.

        Args:
            position: Epoch and step of the row.
            row: Values of the row by column, as printed. It must have a positive "time".
        """
        steps = averaged_steps_of_epoch(position.step, first_step=self.first_step, reset_step=self.reset_step)
        mean_wait_s = number(row["wait"])
        total_wait_s = None
        if mean_wait_s is not None:
            total_wait_s = mean_wait_s * steps
        mean_s = _mean_step_s(row, self.row_batch.batch)
        return Totals(steps, mean_s * steps, total_wait_s)

    def _were_averages_reset(self, last: RowPosition, position: RowPosition) -> bool:
        """Return whether the program reset its averages between two successive rows.

        It does so at the start of an epoch, which also shows in a step that does not go up, and at `reset_step`.

        Args:
            last: Epoch and step of the first of the two rows.
            position: Epoch and step of the second.
        """
        is_later_in_epoch = position.epoch == last.epoch and position.step > last.step
        if not is_later_in_epoch:
            return True
        return last.step < self.reset_step <= position.step


def _mean_step_s(row: Columns, batch: int | None) -> float:
    """Return the mean step time that a row of the static trainer prints, in seconds, as exactly as its digits allow.

    Old releases print the rate with more digits than the time: `elapse: 0.096s ips: 2656.31 images/sec`. There, with a
    batch of 256, the time is 256 / 2656.31 = 0.0964 s.

    Args:
        row: Values of the row by column, as printed. It must have a positive "time". "old" holds the word `elapse`, or
            None.
        batch: Images of a step on one device. None if the rows so far do not show them.
    """
    is_old_release = row["old"] is not None
    rate = positive(row["rate"])
    if is_old_release and batch and rate:
        return batch / rate
    printed_s = positive(row["time"])
    assert printed_s is not None  # rows without a time are skipped: it is the required column
    return printed_s
