"""PaddleClas logs, of its static-graph and its dynamic-graph trainers.

static   [Y/M/D h:m:s] ppcls INFO: epoch:0   train step:10   lr: .., loss: .. batch_cost: .. s, reader_cost: .. s,
         ips: .. samples/sec.   (ppcls/static/program.py)
         Steps count from 1. The costs are averages since step 5 of the epoch, where the meters are reset.
2.0      Y-M-D h:m:s INFO: epoch:0  , train step:10  , loss: .., top1: .., batch_cost: .. s, reader_cost: .. s,
         ips: .. images/sec.   (tools/program.py of release 2.0)
         Steps count from 0. The costs are averages since step 10 of the epoch, where the meters are reset.
old      Y-M-D h:m:s INFO: epoch:0   train step:10   loss: .. elapse: 0.096s ips: .. images/sec.
         Steps count from 0. The averages start with the epoch; the rate has the digits that `elapse` lacks.
dygraph  [Y/M/D h:m:s] ppcls INFO: [Train][Epoch 1/120][Iter: 10/626]lr(..): .., loss: .., batch_cost: ..s,
         reader_cost: .., ips: .. samples/s, eta: ..   (ppcls/engine/train/utils.py)
         The costs are averages since iteration 5 of the epoch, where the meters are reset, and so on into the next
         epoch. Releases after 2.5 reset them after each row, too. Iterations count from 0.
`ips` is that of rank 0 alone in all of them. Averages are differenced.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from scoring.importers.evidence import Fact
from scoring.importers.lines import Lines
from scoring.importers.paddle import Launch
from scoring.importers.running_averages import NO_TOTALS, PrintedMean, Totals, are_running_averages
from scoring.importers.table import Columns, RowPosition, RowTime
from scoring.importers.text import RowPattern, field, integer, number, plausible, positive
from scoring.record import Window

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
_COSTS = (field(" (?:batch_cost|elapse): ", r" ?s\b"), field(" ips: ", r" \w+/s"))
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


class Meters(NamedTuple):
    """How a release counts its steps, and when it resets its meters within an epoch.

    Meters are the running averages of a step's time and wait that the program prints.
    """

    first_step: int  # the number of an epoch's first step
    reset_step: int | None  # the first step that the averages cover after the reset; None: there is no reset

    def averaged_steps(self, step: int) -> int:
        """Return how many steps the running averages cover that the program prints at a step of an epoch.

        They cover the steps from the last reset of the averages, or from the first step of the epoch if there was no
        reset yet. With a reset at step 5, the averages at step 10 cover 6 steps.

        Args:
            step: The step, as printed.
        """
        if self.reset_step is not None and step >= self.reset_step:
            return step - self.reset_step + 1
        return step - self.first_step + 1


class Dygraph(Launch):
    """The dynamic-graph trainer, with the indented configuration that PaddleClas prints, and the ends of epochs."""

    row_marker = "[Train][Epoch "
    whole_line_marker = "INFO: "
    row_pattern = RowPattern(
        re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/(\d{1,9})\]"), _COSTS, _OTHERS
    )
    columns = "stamp epoch step epoch_steps time rate wait loss old unit"
    required_column = "time"
    first_step = 0
    prints_mean_times = True
    rows_imply_batch = True
    evaluation_pattern = re.compile(
        r"(?:\[Eval\]\[Epoch (?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[Avg\]|END (?:eval|valid)\b)"
        r".*?\btop1: +(?P<value>[-\d.]+)"
    )
    quality_name = "top1"
    precision_names = (("fp32", "fp32"), ("fp16", "fp16"), ("amp", "amp"), ("amp_o1", "amp_o1"), ("amp_o2", "amp_o2"))
    first_epoch = 1
    meters = Meters(first_step=0, reset_step=5)

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._config_path: list[Key] = []  # the keys from the root to the line that is read
        self._precision_switches: dict[str, Fact] = {}  # by their names
        self._ended_epochs: set[int] = set()  # epochs whose training ended
        self._steps_of_epoch: int | None = None  # as the first row prints them
        self._release_averages_since_reset: bool | None = None  # by the first row; False: since the last row

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Keep what the first row shows: how many steps an epoch has, and maybe over which steps PaddleClas averages.

        The second depends on the release of PaddleClas that printed the row:

        - With `max_mem_reserved`: a release after 2.5, which averages since the last row.
        - With `images/sec`: 2.1 to 2.3, which average since a reset early in the epoch.
        - With neither: not known. It may be 2.4 or 2.5, which also average since a reset, or a later release.

        Args:
            text: The row as it is printed.
            position: Epoch and step of the row.
            row: Values of the row by column, as printed.
        """
        self._steps_of_epoch = integer(row["epoch_steps"])
        if "max_mem_reserved: " in text:
            self._release_averages_since_reset = False
        elif row["unit"] == "images/s":  # the column's pattern ends here: what is printed is `images/sec`
            self._release_averages_since_reset = True

    def read_before_rows(self, line: int, text: str) -> None:
        """Read a line before the first row of training figures, also as a line of PaddleClas's printed configuration.

        The configuration is an indented tree with a key on each line. `batch_size` here has the path
        `TRAIN.batch_size`, by which its meaning is known:

            12:30:00 INFO: TRAIN :
            12:30:00 INFO:     batch_size : 64

        Args:
            line: Number of the line in the log.
            text: The line. Lines must come in their order, because each key is understood by the keys before it.
        """
        super().read_before_rows(line, text)
        match = _CONFIG_LINE.search(text) if "INFO: " in text else None
        if match is None:
            return

        spaces, name, value = match.groups()
        key_of_line = Key(indent=len(spaces), name=name)
        self._config_path = _path_with(self._config_path, key_of_line)
        path = ".".join(key.name for key in self._config_path)
        if path in _NAMES_BY_PATH:
            self.set_if_unset(_NAMES_BY_PATH[path], value.strip(), line)
        elif _is_precision_switch(path, name):
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

    def finish_rows(self) -> None:
        """Give each row the figures of the steps since the last row or reset, if the rows print running averages."""
        if not self.cumulative:  # else each row was differenced as it was read
            self._difference_if_running_averages()

    def finish_facts(self) -> None:
        """Set the precision and whether the log is truncated, and convert what the log states to numbers and names."""
        first_line = min((fact.line for fact in self._precision_switches.values()), default=0)
        self.set_if_unset("precision", self._precision(), first_line)
        super().finish_facts()
        self.truncated = self._is_truncated()

    def _difference_if_running_averages(self) -> None:
        """Give each row the figures of the steps since the last row or reset, if the rows print running averages.

        PaddleClas resets its averages at an early step of each epoch. A running average is over all steps since the
        last reset. `are_running_averages` decides for all rows of the log together whether they print running averages.
        If so, `cumulative` becomes True; otherwise nothing changes.

        The totals of a row are its averages x the number of steps in the averages. The steps, seconds and wait of a row
        become its totals less the totals of the row before. After a reset, and for the first row of the log, the totals
        before are 0. For example, two rows print a mean step time:

            step 10, first after a reset: 1 s over 6 steps -> totals: 6 steps, 6 s; the row becomes 6 steps in 6 s
            step 20: 0.5 s over 16 steps                   -> totals: 16 steps, 8 s; the row becomes 10 steps in 2 s

        Where totals are not known, the steps stay as they are, and the seconds and the wait become None.
        """
        # For each row: over how many steps its averages are, if they are running averages.
        averaged_steps = self._averaged_steps_if_running()
        groups = self._means_since_resets(averaged_steps)  # the printed means, in groups from reset to reset
        if not are_running_averages(groups, release_says=self._release_averages_since_reset):
            return

        self.cumulative = True
        last: Window | None = None
        totals_before: Totals | None = None  # of the row before; 0 steps and 0 s after a reset; None: not known
        for window, steps in zip(self.windows, averaged_steps, strict=True):
            if last is None or self._was_reset_between(last, window):
                totals_before = NO_TOTALS
            totals = self._totals_of_window(window, steps)
            if totals is None or totals_before is None:  # no difference can be made
                window.seconds = window.data_wait_s = None
            else:
                window.steps, window.seconds, window.data_wait_s = totals.since(totals_before)
            last = window
            totals_before = totals

    def _averaged_steps_if_running(self) -> list[int | None]:
        """Return how many steps the printed means of each row are over, supposing that they are running averages.

        A running average is over all steps since PaddleClas last reset its averages, early in an epoch
        (`_averaged_steps_after`). A number is None where it is not known, as after rows that are missing.
        """
        all_steps: list[int | None] = []
        last: Window | None = None
        last_steps: int | None = None
        for window in self.windows:
            last_steps = self._averaged_steps_after(last, last_steps, window)
            all_steps.append(last_steps)
            last = window
        return all_steps

    def _averaged_steps_after(self, last: Window | None, last_steps: int | None, window: Window) -> int | None:
        """Return how many steps a row averages, supposing that it averages all steps since a reset.

        The program resets the averages at step `meters.reset_step` of each epoch, not where an epoch begins.

        - The first row of the log, or a row at the reset step or later, averages the steps of its epoch: from the reset
          on, or from the first step if the reset is still to come.
        - If the averages were reset between the row before and this row, this row averages the steps since that reset,
          which was in the epoch before.
        - Otherwise it averages the steps of the row before and the steps since that row.

        Steps count from 0. With a reset at step 5 and 26 steps in an epoch:

            step 0 of the first epoch   -> 1
            step 10                     -> 6: steps 5 to 10
            step 20                     -> 16: steps 5 to 20
            step 0 of the second epoch  -> 22: the 16 of step 20, 5 steps (21 to 25), and step 0

        With 10 steps in an epoch and rows at step 2 alone, the reset lies between two rows:

            step 2 of the first epoch   -> 3
            step 2 of the second epoch  -> 8: steps 5 to 9 and 0 to 2

        Args:
            last: The row before, or None for the first row.
            last_steps: How many steps the row before averages, if that is known.
            window: The row.

        Returns:
            The number of steps. None if the row goes on with averages of a row whose steps are not known. None also if
            the steps between the two rows are not known, as where an epoch between them has no row.
        """
        assert window.step is not None  # the pattern needs it
        assert self.meters.reset_step is not None
        is_after_reset = window.step >= self.meters.reset_step
        if last is None or is_after_reset:  # from the reset in this epoch, or from the first step of all
            return self.meters.averaged_steps(window.step)
        if last.step is None:
            return None

        if window.epoch == last.epoch:
            steps_since_last: int | None = window.step - last.step
        else:
            last_position = RowPosition(last.epoch, last.step)
            steps_since_last = self._steps_across_epochs(last_position, RowPosition(window.epoch, window.step))
        if steps_since_last is None:
            return None
        if self._was_reset_between(last, window):
            return steps_since_last  # of `_steps_across_epochs`, which counts from the reset in the epoch before
        return None if last_steps is None else last_steps + steps_since_last

    def _means_since_resets(self, averaged_steps: Sequence[int | None]) -> list[list[PrintedMean]]:
        """Return the mean step times that rows print, in groups: the rows from each reset of the averages to the next.

        A program resets its averages at step `meters.reset_step` of each epoch. Each mean gets two numbers of steps, as
        a row may print one of two kinds of averages, between which `are_running_averages` decides by the groups:

        - `steps_since_row` for a row average, which is over the steps since the last row or reset, whichever is later.
        - `steps_since_reset` for a running average, which is over all steps since the reset.

        Some rows are left out:

        - Rows before the reset step of their epoch: their averages may go back into the epoch before, and an evaluation
          may lie in the time since the last row. If epochs are too short to have the reset step, no row is left out for
          this, and all rows are one group.
        - Rows whose mean or numbers of steps are not known.

        The first group begins with the first row of the log. With a reset at step 5 and rows at steps 0, 10 and 20 of
        two epochs, the groups are

            []                      the first row, step 0, is left out
            [step 10, step 20]      since the reset in the first epoch
            [step 10, step 20]      since the reset in the second epoch, whose step 0 is left out

        Args:
            averaged_steps: For each row, over how many steps its averages are if they are running averages. This number
                becomes `steps_since_reset`.
        """
        groups: list[list[PrintedMean]] = []
        last: Window | None = None
        for window, steps_since_reset in zip(self.windows, averaged_steps, strict=True):
            if last is None or self._was_reset_between(last, window):
                groups.append([])
            last = window

            # A row before the reset step is kept only if epochs are too short to have that step.
            is_at_reset_or_later = (window.step or 0) >= (self.meters.reset_step or 0)
            is_kept = is_at_reset_or_later or not self._epochs_reach_reset()
            mean_s = self._mean_of_window_s(window)
            steps_since_row = window.steps  # by `steps_of_row`, as if averages were reset after each row
            if is_kept and steps_since_reset and steps_since_row and mean_s:
                groups[-1].append(PrintedMean(mean_s, steps_since_row, steps_since_reset, window.end_s))
        return groups

    def _was_reset_between(self, first: Window, second: Window) -> bool:
        """Return whether the averages that rows print were reset between two successive rows.

        This supposes that the program resets them only at step `meters.reset_step` of each epoch: not where an epoch
        begins, and not after a row.

        - Rows of one epoch: True if the first row is before the reset step, and the second row is not.
        - Rows of two epochs: True if one of the two epochs has its reset between the rows. The first row's epoch has
          its reset there if the first row is before the reset step, and epochs are long enough to have that step. The
          second row's epoch has its reset there if the second row is not before the reset step.

        With a reset at step 5:

            steps 0 and 10 of an epoch              -> True
            steps 10 and 20 of an epoch             -> False
            step 20, and step 0 of the next epoch   -> False: one reset came earlier, the other comes later
            step 20, and step 10 of the next epoch  -> True: the reset of the second epoch
            step 2, and step 2 of the next epoch    -> True, if epochs have a step 5: the reset of the first epoch

        Args:
            first: The first of the two rows.
            second: The second.
        """
        reset_step = self.meters.reset_step or 0
        first_is_before_reset = (first.step or 0) < reset_step
        second_is_before_reset = (second.step or 0) < reset_step
        if first.epoch == second.epoch:
            return first_is_before_reset and not second_is_before_reset
        # `_epochs_reach_reset` is False if all epochs are too short to have the reset step.
        reset_in_first_epoch = first_is_before_reset and self._epochs_reach_reset()
        reset_in_second_epoch = not second_is_before_reset
        return reset_in_first_epoch or reset_in_second_epoch

    def _epochs_reach_reset(self) -> bool:
        """Return whether an epoch has the step at which the averages are reset; else there is no reset in the run."""
        reset_step = self.meters.reset_step
        return reset_step is not None and (self._steps_of_epoch is None or reset_step < self._steps_of_epoch)

    def _totals_of_window(self, window: Window, steps: int | None) -> "Totals | None":
        """Return over how many steps a row's averages are, and the total seconds and the total wait of these steps.

        A row prints the mean time and the mean wait of a step. Each total is such a mean x `steps`.

        The printed mean wait is not kept as such: `data_wait_s` is the mean wait x `window.steps`, the steps since the
        row before or the reset. So the mean wait is found by dividing. For example, a row prints a mean wait of 0.1 s
        at step 20, with `window.steps` = 10 and `data_wait_s` = 1 s. If its averages are over 16 steps, the total wait
        is 1 s / 10 x 16 = 1.6 s.

        Args:
            window: The row.
            steps: Over how many steps its averages are: all since the last reset. None if that is not known.

        Returns:
            The totals, with a wait of None if no wait of the row is known. The whole result is None if `steps` or the
            mean time is not known.
        """
        mean_s = self._mean_of_window_s(window)
        if steps is None or mean_s is None:
            return None
        wait_s = None
        if window.data_wait_s is not None and window.steps:
            mean_wait_s = window.data_wait_s / window.steps  # the mean that the row prints
            wait_s = mean_wait_s * steps
        return Totals(steps, mean_s * steps, wait_s)

    def _mean_of_window_s(self, window: Window) -> float | None:
        """Return the mean step time that a row prints; by the rate, whose digits are more, if the batch is known."""
        if self.row_batch.batch and window.printed_rate:
            return self.row_batch.batch / window.printed_rate
        return window.printed_step_time_s

    def _precision(self) -> str | None:
        """Return the precision as a record names it, by the switches in the configuration that PaddleClas prints.

        AMP is automatic mixed precision. Its level O1 computes a part of the network in FP16, and its level O2 nearly
        all of it, which is called pure FP16.

        Returns:
            "fp32", "fp16", "amp_o1" or "amp_o2"; "amp" if the level is not known; None if no switch states the
            precision. `use_fp16` or `use_pure_fp16` alone does not state it if it is False.
        """
        switches = {name: fact.value for name, fact in self._precision_switches.items()}
        # A switch of FP16 that is on counts first, whatever the others say.
        if switches.get("use_pure_fp16") == "True":
            return "amp_o2"
        if switches.get("use_fp16") == "True":
            return "fp16"
        if switches.get("use_amp") == "False":
            return "fp32"
        # AMP is on if `use_amp` is printed (False was handled above) or if there is a section `AMP`.
        has_amp_section = switches.get("AMP", "None") != "None"  # `AMP : None` is no section
        is_amp_on = has_amp_section or "use_amp" in switches
        if not is_amp_on:
            return None

        level = switches.get("level")  # of the section `AMP`; counts before a `use_pure_fp16` that is False
        if level in ("O1", "O2"):
            return f"amp_{level.lower()}"
        if switches.get("use_pure_fp16") == "False":  # not level O2, so it is O1
            return "amp_o1"
        return "amp"  # no switch tells the level

    def _is_truncated(self) -> bool | None:
        """Return whether the log ends before its run does, by the epoch of its last row of training figures.

        - True if the configuration asks for later epochs.
        - True if no line says that this epoch ended, although lines say so of other epochs. Some public logs say it of
          no epoch, which shows nothing.
        - False if a line says that this epoch ended, and it is the last one that the configuration asks for, or a later
          one.
        - None in any other case, as in a log without rows.
        """
        last_epoch = self.last_position.epoch if self.last_position else None
        if last_epoch is None:
            return None
        epochs_wanted = integer(self.value("epochs_wanted"))
        if epochs_wanted is not None and last_epoch < self.first_epoch + epochs_wanted - 1:
            return True

        has_ended = last_epoch in self._ended_epochs
        if self._ended_epochs and not has_ended:
            return True
        if has_ended and epochs_wanted is not None:
            return False
        return None

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many training steps a row averages, supposing that the program resets its averages after each row.

        `finish_rows` replaces the result if all rows together show that the program does not.

        The program also resets its averages at step `meters.reset_step` of each epoch, but not where an epoch begins.
        So a row averages the steps from the latest of these on:

        - the step after the row before. If that row is of the epoch before, and the reset of this epoch is still to
          come, the averages begin in the epoch before (`_steps_across_epochs`),
        - the reset step, if the row has reached that step,
        - the first step of its epoch, where earlier steps are not known, as for the first row of the log.

        With a reset at step 5 and epochs of 26 steps, counted from 0, rows that are printed every 10 steps have:

            step 0 of the first epoch   -> 1 step
            step 10                     -> 6 steps: 5 to 10
            step 20                     -> 10 steps: 11 to 20
            step 0 of the second epoch  -> 6 steps: 21 to 25, and 0

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number of steps, or None if rows before the first row of the log may be missing.
        """
        if last is None and position.step > self.meters.first_step:
            return None
        # None if this row is not of the next epoch, or not before the reset step there.
        steps_across_epochs = self._steps_across_epochs(last, position)
        if steps_across_epochs is not None:
            return steps_across_epochs

        # Steps of this epoch from which the averages may begin. The latest one counts.
        new_averages_at = [self.meters.first_step]
        if last is not None and _is_later_in_epoch(last, position):
            new_averages_at.append(last.step + 1)
        reset_step = self.meters.reset_step
        if reset_step is not None and position.step >= reset_step:
            new_averages_at.append(reset_step)
        first_covered_step = max(new_averages_at)
        return position.step - first_covered_step + 1  # both steps count

    def _steps_across_epochs(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many steps since the row before are in a row's averages, if an epoch ended between the two rows.

        The program resets its averages at step `meters.reset_step` of an epoch, not where the epoch begins. So a row
        before that step averages two stretches of steps:

        - The last steps of the epoch before: from the step after the row before, or from the reset step, if that is
          later. If epochs are too short to have the reset step (`_epochs_reach_reset`), there is no reset.
        - All steps of the row's own epoch so far.

        Steps count from 0. With a reset at step 5:

            10 steps in an epoch, rows at step 2 and at step 2   -> 8: steps 5 to 9, and 0 to 2
            26 steps in an epoch, rows at step 20 and at step 0  -> 6: steps 21 to 25, and 0
            4 steps in an epoch, rows at step 2 and at step 2    -> 4: step 3, and 0 to 2 (no reset)

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number. None in these cases:

            - This is the first row, or the rows do not print how many steps an epoch has.
            - This row is at the reset step of its epoch or later, so that its averages begin in this epoch.
            - The step of the row before is not below the number of steps of an epoch, although steps count from 0.
            - This row is not of the epoch after that of the row before.
        """
        steps_of_epoch = self._steps_of_epoch
        is_before_reset = self.meters.reset_step is None or position.step < self.meters.reset_step
        if last is None or steps_of_epoch is None or not is_before_reset or last.step >= steps_of_epoch:
            return None
        if (position.epoch or 0) != (last.epoch or 0) + 1:
            return None
        first_averaged_step = last.step + 1  # in the epoch of the last row
        if self.meters.reset_step is not None and self._epochs_reach_reset():
            first_averaged_step = max(first_averaged_step, self.meters.reset_step)
        # The steps of the epoch before, and those of this epoch from 0 to `position.step`.
        return steps_of_epoch - first_averaged_step + position.step + 1


def _is_later_in_epoch(last: RowPosition, position: RowPosition) -> bool:
    """Return whether a printed row is of the same epoch as the row before, and of a later step.

    Args:
        last: Epoch and step of the row before.
        position: Epoch and step of the row.
    """
    return position.epoch == last.epoch and position.step > last.step


class Static(Dygraph):
    """The static-graph trainer and the dynamic one of 2.0: rows are averages of the epoch; epochs count from 0."""

    row_marker = "train step:"
    row_pattern = RowPattern(
        re.compile(_STAMP + r"epoch:(\d{1,9})\s*(?:, |\s)\s*train step:(\d{1,9})"), _COSTS, _OTHERS
    )
    columns = "stamp epoch step time rate wait loss old unit"
    first_step = 1
    first_epoch = 0
    cumulative = True
    meters = Meters(first_step=1, reset_step=5)

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._last_totals = NO_TOTALS  # of the last row

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Set how the program counts steps and resets its averages, by the PaddleClas release that the first row shows.

        - Old releases print `elapse`. Steps count from 0, and averages begin with the epoch.
        - Release 2.0 prints a comma between epoch and step. Steps count from 0, and averages begin anew at step 10.
        - Later releases print neither. Steps count from 1, and averages begin anew at step 5.

        Args:
            text: The row as it is printed.
            position: Epoch and step of the row.
            row: Values of the row by column. "old" holds the word `elapse`, or None.
        """
        if row["old"] is not None:
            self.meters = Meters(first_step=0, reset_step=None)
        elif re.search(r"epoch:\d+\s*, train step:", text):
            self.meters = Meters(first_step=0, reset_step=10)
        # Otherwise it is a later release, whose meters are the meters of the class.
        self.first_step = self.meters.first_step

    def time_of_row(self, last: RowPosition | None, position: RowPosition, row: Columns) -> RowTime:
        """Return how many training steps a printed row covers, how long they took, and how long they waited for input.

        A row prints averages since the last reset, so its own time is a difference of totals. If one row prints a mean
        of 0.2 s over 20 steps and the next one 0.3 s over 30 steps, the 10 steps between took 9 s - 4 s = 5 s.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.
            row: Values of this row by column, as printed.

        Returns:
            The steps, their seconds and their wait. The seconds are None if the total time did not grow. The wait is
            None if it is not printed, or if it is over 1 % longer than the seconds.
        """
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
        return plausible(self._mean_step_s(row))

    def _mean_step_s(self, row: Columns) -> float:
        """Return the mean time of a training step that a row prints, in seconds, as exactly as its digits allow.

        Old releases of PaddleClas print the rate with more digits than the time, as `elapse: 0.096s ips: 2656.31
        images/sec`. There the step time is batch size / rate, if the rows so far leave a single possible batch size.

        Args:
            row: Values of the row by column, as printed. It must have a positive "time".
        """
        printed_s = positive(row["time"])
        assert printed_s is not None  # rows without a time are skipped: it is the required column
        is_of_old_release = row["old"] is not None  # the column has the word `elapse`
        batch = self.row_batch.batch  # worked out from the rows so far, or None
        rate = positive(row["rate"])
        if is_of_old_release and batch and rate:
            return batch / rate
        return printed_s

    def _totals_of_row(self, position: RowPosition, row: Columns) -> Totals:
        """Return how many steps a row averages, their total time, and the total wait for input in it.

        Args:
            position: Epoch and step of the row.
            row: Values of the row by column, as printed. It must have a positive "time".
        """
        steps = self.meters.averaged_steps(position.step)
        mean_wait_s = number(row["wait"])
        total_wait_s = None
        if mean_wait_s is not None:
            total_wait_s = mean_wait_s * steps
        return Totals(steps, self._mean_step_s(row) * steps, total_wait_s)

    def _were_averages_reset(self, last: RowPosition, position: RowPosition) -> bool:
        """Return whether the program reset its averages between two successive rows.

        It does so at the start of an epoch, which also shows in a step that does not go up, and at `meters.reset_step`.

        Args:
            last: Epoch and step of the first of the two rows.
            position: Epoch and step of the second.
        """
        if not _is_later_in_epoch(last, position):
            return True
        reset_step = self.meters.reset_step
        return reset_step is not None and last.step < reset_step <= position.step
