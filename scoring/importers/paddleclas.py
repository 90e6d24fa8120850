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
         The costs are those of the window; the meters are reset at iteration 5 of the epoch too.
`ips` is that of rank 0 alone in all of them. Averages are differenced here.
"""

import re
from typing import NamedTuple

from scoring.importers.evidence import Fact
from scoring.importers.lines import Lines
from scoring.importers.paddle import Launch
from scoring.importers.table import Columns, RowPosition, RowTime
from scoring.importers.text import RowPattern, field, integer, number, plausible, positive, wait_within

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
_COSTS = (field(" (?:batch_cost|elapse): ", r" ?s\b"), field(" ips: ", r" \w+/s"))
_OTHERS = (
    field(" reader_cost: ", r"(?: ?s)?(?:[,\s]|$)"),
    field(" loss: +"),
    re.compile(" (elapse): "),
    re.compile(r" ips: \S+ (\w+)/s"),
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


class Totals(NamedTuple):
    """The totals of all steps that a row's printed averages cover."""

    steps: int
    time_s: float
    wait_s: float | None  # the part of the time that waited for input; None: not printed


class Meters(NamedTuple):
    """How a release counts its steps, and when it resets its meters within an epoch.

    Meters are the running averages of a step's time and wait that the program prints.
    """

    first_step: int  # the number of an epoch's first step
    reset_step: int | None  # the first step that the averages cover after the reset; None: there is no reset

    def averaged_steps(self, step: int) -> int:
        """Return how many steps the averages cover that a row prints at `step` of an epoch.

        They cover the steps from the last reset, or from the first step of the epoch if there was no reset yet.
        """
        if self.reset_step is not None and step >= self.reset_step:
            return step - self.reset_step + 1
        return step - self.first_step + 1


class Dygraph(Launch):
    """The dynamic-graph trainer, with the indented configuration that PaddleClas prints, and the ends of epochs."""

    row_marker = "[Train][Epoch "
    tool_marker = "INFO: "
    row_pattern = RowPattern(
        re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/\d+\]"), _COSTS, _OTHERS
    )
    columns = "stamp epoch step time rate wait loss old unit"
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

    def read_before_rows(self, line: int, text: str) -> None:
        """Read a line before the first row, also as a line of the configuration.

        The configuration is printed as an indented tree with a key on each line. `_config_path` holds the keys from the
        root to this line, so the line `batch_size : 64` is known as `DataLoader.Train.sampler.batch_size`. The batch,
        the model and the epochs wanted become facts; switches of precision are kept for `_precision`.
        """
        super().read_before_rows(line, text)
        match = _CONFIG_LINE.search(text) if "INFO: " in text else None
        if match is None:
            return

        spaces, name, value = match.groups()
        indent = len(spaces)
        while self._config_path and self._config_path[-1].indent >= indent:
            self._config_path.pop()  # a key ends all keys that are indented as far as itself or further
        self._config_path.append(Key(indent, name))

        path = ".".join(key.name for key in self._config_path)
        if path in _NAMES_BY_PATH:
            self.set_if_unset(_NAMES_BY_PATH[path], value.strip(), line)
        elif name in _PRECISION_SWITCHES or path.startswith("AMP."):
            self._precision_switches.setdefault(name, Fact(value.strip(), line))

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row, such as an evaluation. Also note which epochs end their training."""
        super().read_after_first_row(line, text)
        match = _EPOCH_END.search(text)
        if match:
            self._ended_epochs.add(int(match[1] or match[2]))

    def finish_facts(self) -> None:
        """Set the precision, convert the facts, and set whether the log is truncated."""
        first_line = min((fact.line for fact in self._precision_switches.values()), default=0)
        self.set_if_unset("precision", self._precision(), first_line)
        super().finish_facts()
        self.truncated = self._is_truncated()

    def _precision(self) -> str | None:
        """Return the precision as a record names it, by the first of these switches that the configuration states:

        - `use_pure_fp16 : True` -> amp_o2
        - `use_fp16 : True` -> fp16
        - `use_amp : False` -> fp32
        - neither `use_amp` nor a section `AMP` -> None
        - AMP with `level` O1 or O2 -> amp_o1 or amp_o2
        - AMP with `use_pure_fp16 : False` -> amp_o1
        - any other AMP -> amp, which leaves the level open
        """
        switches = {name: fact.value for name, fact in self._precision_switches.items()}
        if switches.get("use_pure_fp16") == "True":
            return "amp_o2"
        if switches.get("use_fp16") == "True":
            return "fp16"
        if switches.get("use_amp") == "False":
            return "fp32"
        is_amp_on = "AMP" in switches or "use_amp" in switches
        if not is_amp_on:
            return None

        level = switches.get("level")
        if level in ("O1", "O2"):
            return f"amp_{level.lower()}"
        return "amp_o1" if switches.get("use_pure_fp16") == "False" else "amp"

    def _is_truncated(self) -> bool | None:
        """Return whether the log ends before its run does, or None if its lines do not show that."""
        epoch = self.last_position.epoch if self.last_position else None
        epochs_wanted = integer(self.value("epochs_wanted"))
        if epoch is not None and epochs_wanted is not None:
            last_epoch_wanted = epochs_wanted - 1 + self.first_epoch
            if epoch < last_epoch_wanted:
                return True

        if not self._ended_epochs:
            return None  # some public logs print the end of no epoch
        if epoch not in self._ended_epochs:
            return True  # the program prints the end of each epoch, but not of this one
        if epochs_wanted is None:
            return None  # further epochs may be missing
        return False

    def steps_of_row(self, position: RowPosition) -> int | None:
        """Return how many steps the printed averages of a row cover, up to the row's own step.

        They cover the steps from the latest of these on:

        - the first step of the epoch;
        - the step after the row before, if that row is of the same epoch;
        - `reset_step`, if the row has reached it: the program resets its averages there.

        Example: with `reset_step` 5, rows at steps 0, 10 and 20 cover 1 step, 6 steps (5 to 10) and 10 steps. Returns
        None for the log's first row unless it is at an epoch's first step: rows before it may be missing.
        """
        last = self.last_position
        if last is None and position.step > self.meters.first_step:
            return None

        first_covered = self.meters.first_step
        if last is not None and position.epoch == last.epoch and position.step > last.step:
            first_covered = last.step + 1
        reset_step = self.meters.reset_step
        if reset_step is not None and position.step >= reset_step:
            first_covered = max(first_covered, reset_step)
        return position.step - first_covered + 1


class Static(Dygraph):
    """The static-graph trainer and the dynamic one of 2.0: rows are averages of the epoch; epochs count from 0."""

    row_marker = "train step:"
    row_pattern = RowPattern(
        re.compile(_STAMP + r"epoch:(\d{1,9})\s*(?:, |\s)\s*train step:(\d{1,9})"), _COSTS, _OTHERS
    )
    first_step = 1
    first_epoch = 0
    cumulative = True
    meters = Meters(first_step=1, reset_step=5)

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._last_total_s = 0.0  # time of all steps that the last row's averages cover
        self._last_wait_s = 0.0  # the part of it that waited for input

    def read_first_row(self, text: str, row: Columns) -> None:
        """Set how steps and meters count, by the release of PaddleClas that the first row's form shows.

        Old releases print `elapse`. Release 2.0 prints commas. Later releases keep the class's own meters.
        """
        if row["old"]:
            self.meters = Meters(first_step=0, reset_step=None)
        elif re.search(r"epoch:\d+\s*, train step:", text):
            self.meters = Meters(first_step=0, reset_step=10)
        self.first_step = self.meters.first_step

    def time_of_row(self, position: RowPosition, row: Columns) -> RowTime:
        """Return the steps that a row covers, their seconds, and their wait for input. Call this for each row in order.

        The printed averages are over all steps since the last reset. So the row's own time is its total less the total
        of the row before.
        """
        totals = self._totals_of_row(position, row)
        steps = self._steps_since_last_row(position)
        if steps is None:  # the totals start anew: in a new epoch, or because the averages were reset
            steps = totals.steps
            self._last_total_s = 0.0
            self._last_wait_s = 0.0

        # Example: averages of 0.2 s over 20 steps, then of 0.3 s over 30 steps. The later 10 steps took 9 s - 4 s.
        seconds = None
        if totals.time_s > self._last_total_s:
            seconds = totals.time_s - self._last_total_s
        wait_s = None
        if totals.wait_s is not None:
            wait_s = max(0.0, totals.wait_s - self._last_wait_s)

        self._last_total_s = totals.time_s
        self._last_wait_s = totals.wait_s or 0.0
        return RowTime(steps, seconds, wait_within(wait_s, seconds))

    def step_time_of_row(self, row: Columns) -> float | None:
        """Return the mean step time of a row's averages, as exactly as the row shows it, or None if it is absurd."""
        return plausible(self._mean_step_s(row))

    def _mean_step_s(self, row: Columns) -> float:
        """Return the mean step time of a row's averages, as exactly as the row's digits allow.

        Old releases print the time with few digits. For their rows, batch / rate is returned because it is more exact,
        if the row has a rate and the rows so far imply the batch.
        """
        printed_s = positive(row["time"])
        assert printed_s is not None  # rows without a time are skipped: it is the required column
        rate = positive(row["rate"])
        batch = self.row_batch.batch
        if row["old"] and batch and rate:
            return batch / rate
        return printed_s

    def _totals_of_row(self, position: RowPosition, row: Columns) -> Totals:
        """Return the total time, and the total wait for input in it, of all steps that a row's averages cover."""
        steps = self.meters.averaged_steps(position.step)
        mean_wait_s = number(row["wait"])
        total_wait_s = None
        if mean_wait_s is not None:
            total_wait_s = mean_wait_s * steps
        return Totals(steps, self._mean_step_s(row) * steps, total_wait_s)

    def _steps_since_last_row(self, position: RowPosition) -> int | None:
        """Return the steps since the last row, or None if the row's totals start anew.

        They start anew if there is no last row, if the row is of another epoch, if its step does not go up, or if the
        program reset its averages after the last row.
        """
        last = self.last_position
        if last is None or position.epoch != last.epoch or position.step <= last.step:
            return None
        reset_step = self.meters.reset_step
        if reset_step is not None and last.step < reset_step <= position.step:
            return None
        return position.step - last.step
