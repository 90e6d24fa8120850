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
from scoring.importers.text import RowPattern, field, integer, number, positive, wait_within

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
_NAMES_BY_PATH = {  # of the configuration, and the names that this reader gives them
    "DataLoader.Train.sampler.batch_size": "batch_per_device",
    "TRAIN.batch_size": "batch_of_all",  # old releases divide it by the number of trainers
    "Arch.name": "model",
    "ARCHITECTURE.name": "model",
    "Global.epochs": "epochs_wanted",
    "epochs": "epochs_wanted",  # of old releases
}
_PRECISION_SWITCHES = ("AMP", "use_amp", "use_fp16", "use_pure_fp16")


class Key(NamedTuple):
    """A key of the printed configuration and how far it is indented."""

    indent: int
    name: str


class AveragedTime(NamedTuple):
    """The time of the steps since the meters' reset that a row's averages are over."""

    steps: int
    total_s: float
    wait_s: float | None  # the part of it that waited for input; None where it is not printed


class Meters(NamedTuple):
    """How a release counts its steps and when it resets its meters within an epoch."""

    first_step: int
    reset_step: int | None  # None: they run through the epoch

    def averaged_steps(self, step: int) -> int:
        """Return how many steps the averages that are printed at `step` are over."""
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
    precisions = (("fp32", "fp32"), ("fp16", "fp16"), ("amp", "amp"), ("amp_o1", "amp_o1"), ("amp_o2", "amp_o2"))
    first_epoch = 1
    meters = Meters(first_step=0, reset_step=5)

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._config_path: list[Key] = []  # the keys that lead to the configuration line that is read
        self._precision_switches: dict[str, Fact] = {}  # by their names
        self._ended_epochs: set[int] = set()  # epochs whose training ended

    def read_before_rows(self, line: int, text: str) -> None:
        """Read a line before the first row; note the batch, the model and the switches of precision it configures.

        The configuration is printed as an indented tree, with a key on each line. `_config_path` holds the keys under
        which the current one stands: so a line `batch_size : 64` is known as `DataLoader.Train.sampler.batch_size`. A
        key ends the parts of the tree that begin at keys indented as far as itself or further.
        """
        super().read_before_rows(line, text)
        match = _CONFIG_LINE.search(text) if "INFO: " in text else None
        if match is None:
            return

        spaces, name, value = match.groups()
        indent = len(spaces)
        while self._config_path and self._config_path[-1].indent >= indent:
            self._config_path.pop()
        self._config_path.append(Key(indent, name))

        path = ".".join(key.name for key in self._config_path)
        if path in _NAMES_BY_PATH:
            self.set_if_unset(_NAMES_BY_PATH[path], value.strip(), line)
        elif name in _PRECISION_SWITCHES or path.startswith("AMP."):
            self._precision_switches.setdefault(name, Fact(value.strip(), line))

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read the end of an epoch's training, or an evaluation."""
        super().read_after_first_row(line, text)
        match = _EPOCH_END.search(text)
        if match:
            self._ended_epochs.add(int(match[1] or match[2]))

    def finish_facts(self) -> None:
        """Set precision and whether the log is truncated, and then what the launcher prints."""
        line = min((fact.line for fact in self._precision_switches.values()), default=0)
        self.set_if_unset("precision", self._precision(), line)
        super().finish_facts()
        self.truncated = self._is_truncated()

    def _precision(self) -> str | None:
        """Return the precision as a record names it, by the configuration's switches; None where these state none.

        The first that applies counts: `use_pure_fp16` is AMP O2, `use_fp16` is FP16, and `use_amp : False` is FP32. AMP
        is on by `use_amp`, and by a section `AMP` without it. Its level is that of `level`; without one it is O1 where
        `use_pure_fp16` is said to be off, and else not known.
        """
        switches = {name: fact.value for name, fact in self._precision_switches.items()}
        if switches.get("use_pure_fp16") == "True":
            return "amp_o2"
        if switches.get("use_fp16") == "True":
            return "fp16"
        if switches.get("use_amp") == "False":
            return "fp32"
        if "AMP" not in switches and "use_amp" not in switches:
            return None

        level = switches.get("level")
        if level in ("O1", "O2"):
            return f"amp_{level.lower()}"
        return "amp_o1" if switches.get("use_pure_fp16") == "False" else "amp"

    def _is_truncated(self) -> bool | None:
        """Tell whether the log ends before its run does; None where its lines do not tell.

        It does where its last row is of an epoch before the last configured one. It does too where the log prints the
        ends of epochs, but not that of its last one. The run is whole where its last configured epoch ended. Some
        public logs print no epoch's end at all, or do not say how many epochs were wanted: they do not tell.
        """
        epoch = self.last_position.epoch if self.last_position else None
        epochs_wanted = integer(self.value("epochs_wanted"))
        if epoch is not None and epochs_wanted is not None:
            last_epoch = epochs_wanted - 1 + self.first_epoch
            if epoch < last_epoch:
                return True

        has_ended = epoch in self._ended_epochs
        if has_ended and epochs_wanted is None:
            return None
        if has_ended:
            return False
        return True if self._ended_epochs else None

    def steps_of_row(self, position: RowPosition) -> int | None:
        """Return how many steps a row's averages are over: those since the row before it, or since the epoch began.

        Where the meters are reset in between, these are the steps since the reset. Returns None for the log's first row
        if it is not of the first step: the log's start is lost.
        """
        last = self.last_position
        if last is None and position.step > self.meters.first_step:
            return None

        step_before = self.meters.first_step - 1
        if last is not None and position.epoch == last.epoch and position.step > last.step:
            step_before = last.step
        reset_step = self.meters.reset_step  # the averages at this step are over itself alone
        if reset_step is not None and step_before < reset_step <= position.step:
            return position.step - reset_step + 1
        return position.step - step_before


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
        self._last_total_s = 0.0  # time of all steps that the last row's averages are over
        self._last_wait_s = 0.0  # the part of it that waited for input

    def read_first_row(self, text: str, row: Columns) -> None:
        """Tell the release by its first row: `elapse` is that of the old ones, commas are those of 2.0."""
        if row["old"]:
            self.meters = Meters(first_step=0, reset_step=None)
        elif re.search(r"epoch:\d+\s*, train step:", text):
            self.meters = Meters(first_step=0, reset_step=10)
        self.first_step = self.meters.first_step

    def time_of_row(self, position: RowPosition, row: Columns) -> RowTime:
        """Return how many steps a row is about, their seconds, and how long they waited for input.

        The printed averages are over all steps since the meters were reset. An average times its number of steps is a
        total, and a row's own time is the difference of two totals: averages of 0.2 s over 20 steps and of 0.3 s over
        30 steps make 9 s - 4 s for 10 steps. In a new epoch and after a reset the row's own time is its whole total.
        Seconds that are not above 0 are None, and a wait is None where none is printed.
        """
        averaged = self._averaged_time(position, row)
        steps = self._steps_since_last_row(position)
        if steps is None:  # a new epoch, or the meters were reset
            steps = averaged.steps
            self._last_total_s = 0.0
            self._last_wait_s = 0.0
        seconds = None
        if averaged.total_s > self._last_total_s:
            seconds = averaged.total_s - self._last_total_s
        wait_s = None
        if averaged.wait_s is not None:
            wait_s = max(0.0, averaged.wait_s - self._last_wait_s)

        self._last_total_s = averaged.total_s
        self._last_wait_s = averaged.wait_s or 0.0
        return RowTime(steps, seconds, wait_within(wait_s, seconds))

    def _averaged_time(self, position: RowPosition, row: Columns) -> AveragedTime:
        """Return the total time, and the wait for input in it, of all steps that a row's averages are over.

        Old releases print the time of a step with few digits. The batch over the printed rate is more exact: where the
        rows tell the batch it is taken, and it replaces the time in `row`, of which the window's step time is made.
        """
        cost_s = positive(row["time"])
        rate = positive(row["rate"])
        wait_s = number(row["wait"])
        assert cost_s is not None  # a line without it was not taken for a row
        if row["old"] and self.row_batch.batch and rate:
            cost_s = self.row_batch.batch / rate
            row["time"] = str(cost_s)

        steps = self.meters.averaged_steps(position.step)
        total_wait_s = None
        if wait_s is not None:
            total_wait_s = wait_s * steps
        return AveragedTime(steps, cost_s * steps, total_wait_s)

    def _steps_since_last_row(self, position: RowPosition) -> int | None:
        """Return the steps since the last row; None where the meters were reset in between."""
        last = self.last_position
        if last is None or position.epoch != last.epoch or position.step <= last.step:
            return None
        reset_step = self.meters.reset_step
        if reset_step is not None and last.step < reset_step <= position.step:
            return None
        return position.step - last.step
