"""NVIDIA DeepLearningExamples logs: DLLogger's standard output and JSON, in four dialects (rates are of all devices).

PyTorch     DLL <stamp> - Epoch: 0 Iteration: 1  train.loss : .. train.compute_ips : .. images/s
            train.total_ips : .. images/s ..     (total: data loading included; that is the rate taken)
TensorFlow  DLL <stamp> - (0, 200) total_ips : ..  |  DLL <stamp> - () train_throughput : .. images/s
            DLL <stamp> - (1, 5200) imgs_per_sec : .. cross_entropy : ..   (in the modes that train a model)
MXNet       DLL <stamp> - Epoch: 2 Iteration: 419  train.loss : .. train.ips : .. images/s ..
            before DLLogger: <stamp>:INFO: Epoch[2] Batch [400-419]\tSpeed: 1386.7 samples/sec\tLR: 0.01
Paddle      DLL <stamp> - Epoch: 0 Iteration: 10  train.loss : .. train.data_time : .. train.compute_time : ..
            train.batch_time : .. train.ips : .. images/s ..   (the times are of the last step alone)
JSON        DLLL {"timestamp": .., "datetime": .., "elapsedtime": .., "type": "LOG", "step": [0, 1],
            "data": {"train.loss": .., "train.total_ips": ..}}   (of any of the four; "step": "PARAMETER", [0] or [])
NVLOG       :::NVLOGv0.2.3 resnet <stamp> (benchmark_hooks.py:59) iteration: 200
            :::NVLOGv0.2.3 resnet <stamp> (benchmark_hooks.py:60) total_ips: 1067.22   (TensorFlow before DLLogger)
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.evidence import Fact
from scoring.importers.lines import Lines
from scoring.importers.table import Columns, FormatReader, RowPosition
from scoring.importers.text import NUMBER, RowPattern, field, integer

_STAMP = r"(?:DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - )?"
_STEP_HEAD = re.compile(_STAMP + r"Epoch: (\d{1,9}) Iteration: (\d{1,9})(?= )")
_LOSS = field(r" train\.loss : ")
_WAIT = field(r" train\.data_time : ", r"(?=\s|$)")
_TIME = field(r" train\.batch_time : ", r"(?=\s|$)")
_IPS = field(r" train\.ips : ", r"(?=\s|$)")
# Another process's text may follow at once, as in `img/s/opt/conda/lib/`: only known words are of the unit.
_UNIT = re.compile(
    r" (?:train\.)?(?:total_)?ips : \S+ "
    r"(\w+/(?:s(?:ec(?:ond)?)?(?:/(?:gpu|device|replica|rank|card|worker|node)\b)?|min|ms|hour))"
)
_OTHERS_OF_ROW = (_TIME, _LOSS, _WAIT, _UNIT)
_NVLOG = r":::NVLOG\S* \S+ (\d{9,}\.\d+) \([^)]*\)"
_EPOCH = r"Epoch: (?P<epoch>\d{1,9})\b(?!.*Iteration)"
_PARAMETERS = "arch|model_arch_name|batch_size|amp|use_tf_amp|fp16|dtype|precision|world_size|gpus|kv_store"
_HEADS_OF_PARAMETERS = ("PARAMETER", "Start with arguments")  # on a line that states parameters, before them
_PARAMETER = re.compile(rf"(?:^|[\s(])({_PARAMETERS})(?: : |='?)(\[[^\]]*\]|\d+(?:,\d+)+|[^\s,')]+)")
# TensorFlow's examples print rows of evaluations in the words of training. MXNet's and they have the parameter `mode`.
_MODE = r"^(?=.*(?:PARAMETER|Start with arguments)).*[\s(]mode(?: : |=')"
_EVALUATION_STARTS = re.compile(
    r"Starting Model Evaluation"
    rf"|{_MODE}(?P<mode>evaluate|predict|inference_benchmark|val|pred)(?=[\s']|$)"
)
_TRAINING_STARTS = re.compile(rf"Starting Model Training|{_MODE}train")
# TensorFlow trains with rows of this rate, and evaluates with `total_ips`, in any mode but `training_benchmark`.
_TRAINING_RATE = "imgs_per_sec"
# The table that NVIDIA's MXNet benchmark.py prints last: batch sizes above, devices on the left.
_TABLE_HEAD = re.compile(r" {10,11}\|\s+(\d{1,9})\s+\|\s*$")
_TABLE_ROW = re.compile(r"\s+(\d{1,9})\s+\|\s+[\d.e+]+\s+\|\s*$")

# A parameter and its value, and the precision that it switches on.
_HALF_SWITCHES = {
    ("amp", "true"): "amp",
    ("use_tf_amp", "true"): "amp",
    ("fp16", "true"): "fp16",
    ("dtype", "float16"): "fp16",
    ("precision", "fp16"): "fp16",
    ("precision", "amp"): "amp",
}
# Parameters and values that state single precision, where no switch of half precision is on.
_SINGLE_SWITCHES = (
    ("amp", "false"),
    ("use_tf_amp", "false"),
    ("fp16", "false"),
    ("dtype", "float32"),
    ("precision", "fp32"),
    ("precision", "tf32"),
)


class PyTorch(EpochFormatReader):
    """Rows of PyTorch's examples, and what all dialects share: parameters, ends of epochs, closing lines."""

    row_marker = "Epoch: "
    row_clue = "train.total_ips"
    whole_line_marker = "DLL "
    row_pattern = RowPattern(_STEP_HEAD, (field(r" train\.total_ips : ", r" \w+/s"),), _OTHERS_OF_ROW)
    columns = "stamp epoch step rate time loss wait unit"
    required_column = "rate"
    rate_scope = "global"
    framework = "PyTorch"
    closing_words = ("Summary:", "Experiment took:", "train_throughput : ", "Average total_ips")
    summary_pattern = re.compile(
        rf"(?:Summary:.*?\btrain\.(?:total_)?ips :|\btrain_throughput :|\bAverage total_ips:) {NUMBER}(?=\s|$)"
    )
    epoch_end_pattern = re.compile(
        rf"{_EPOCH}(?:(?=.*\btrain\.epoch_time : (?P<seconds>{NUMBER})))?"
        rf".*?\btrain\.(?:total_)?ips : (?P<rate>{NUMBER})(?=\s|$)"
    )
    # TensorFlow's example prints `() top1_accuracy : ..`, without the epoch.
    evaluation_pattern = re.compile(
        rf"(?:{_EPOCH}.*?\b(?=val\.)|\b(?=top1_))(?P<name>val\.(?:top1|accuracy)|top1_accuracy) : (?P<value>{NUMBER})"
    )
    last_fact_counts = True
    batch_field = "batch_per_device"  # the field of the record that the parameter `batch_size` states
    steps_run_on = False  # steps count through the whole run, and not anew in each epoch
    _evaluates = False  # the rows that come are of an evaluation, but for those of `_TRAINING_RATE`

    def read_before_rows(self, line: int, text: str) -> None:
        """Read the values that a line before the first row of training figures states, in JSON or as text.

        The line may also say that evaluation or training follows.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_before_rows(line, text)
        plain_text = _as_text(text)
        for head in _HEADS_OF_PARAMETERS:
            if head in plain_text:
                _, parameters = plain_text.split(head, 1)
                self._set_parameters(line, parameters)
                break
        self._note_phase(line, plain_text)

    def _set_parameters(self, line: int, parameters: str) -> None:
        """Set each parameter of _PARAMETERS that a line states, such as "amp" by `amp : True`.

        Args:
            line: Number of the line in the log. It counts more than earlier lines, which may be of a start that failed.
            parameters: The text of the line that states them.
        """
        values_by_name: dict[str, str] = {}
        for name, value in _PARAMETER.findall(parameters):
            values_by_name.setdefault(name, value)  # a line that states a parameter twice: the first value counts
        for name, value in values_by_name.items():
            self.set_last(name, value, line)

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row of training figures that is not such a row itself, in JSON or as text.

        The base class keeps what the line prints, such as an evaluation's result or an epoch's summary. For that, JSON
        is turned into text. `_note_phase` then notes whether rows of an evaluation or of training follow.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        plain_text = _as_text(text)
        super().read_after_first_row(line, plain_text)
        self._note_phase(line, plain_text)

    def _note_phase(self, line: int, plain_text: str) -> None:
        """Note whether the next printed rows are of an evaluation or of training, if a line says so.

        Rows of an evaluation look like rows of training and must be skipped. If a parameter `mode` makes the whole
        program evaluate, as `mode : evaluate` does, that also becomes a problem of the record.

        Args:
            line: Number of the line in the log.
            plain_text: The line as `_as_text` returns it.
        """
        evaluation = _EVALUATION_STARTS.search(plain_text)  # `Starting Model Evaluation`, or a parameter `mode`
        if evaluation is not None:
            self._evaluates = True
        elif _TRAINING_STARTS.search(plain_text):
            self._evaluates = False

        mode = evaluation["mode"] if evaluation is not None else None  # None also if no parameter states it
        if mode is not None:
            self.note_problem(f"line {line}: mode {mode}: the rows are of an evaluation, not of training")

    def note_row(self, text: str) -> None:
        """Note that rows of an evaluation may follow, if a row prints the rate with which TensorFlow's examples train.

        Args:
            text: The row as it is printed.
        """
        if _TRAINING_RATE in text:
            self._evaluates = True  # of rows with another rate

    def is_training_row(self, text: str) -> bool:
        """Return whether a printed row is of training, and not of an evaluation.

        TensorFlow's examples print rows of `imgs_per_sec` as they train, and rows of `total_ips` as they evaluate. Only
        a benchmark of training prints rows of `total_ips` alone. A line may also say that an evaluation begins
        (`_note_phase`).

        Args:
            text: The row as it is printed.
        """
        return _TRAINING_RATE in text or not self._evaluates

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many training steps a printed row covers: those since the row before, or since a start.

        The start is that of the program if steps run on through the whole run, or else that of the epoch.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number of steps, or None if rows before the first row of a log may be missing.
        """
        if not self.steps_run_on:  # steps are counted anew in each epoch
            return super().steps_of_row(last, position)
        if last is None:  # rows before it may be missing
            return None
        if position.step > last.step:
            return position.step - last.step
        return position.step - self.first_step + 1  # the run was started again

    def device_counts(self) -> dict[str, Fact]:
        """Return how many devices the program used, by each of its parameters that states it: `world_size` and `gpus`.

        Returns:
            The number and its line, by the parameter: {"world_size": Fact(8, line=3)}. A number is None if the text of
            its parameter is garbled, if `world_size` is 0, or if `gpus` leaves it open: `gpus : 3` may be three GPUs or
            the GPU with the number 3.
        """
        counts: dict[str, Fact] = {}
        world_size = self.facts_by_name.get("world_size")
        if world_size:
            counts["world_size"] = Fact(integer(world_size.value) or None, world_size.line)
        gpus = self.facts_by_name.get("gpus")
        if gpus:
            counts["gpus"] = Fact(_number_of_gpus(gpus.value), gpus.line)
        return counts

    def finish_facts(self) -> None:
        """Set devices, model, batch and precision from the program's parameters, converted to numbers and names."""
        precision = self.precision()
        self.set_if_places_agree("devices", self.device_counts())
        self.set_if_unset_from("model", "arch")
        self.set_if_unset_from("model", "model_arch_name")  # as Paddle's examples call it
        self.set_if_unset_from(self.batch_field, "batch_size")
        super().finish_facts()  # removes the parameter `precision`, whose words are not the record's
        if precision:
            self.set_if_unset("precision", precision.value, precision.line)

    def precision(self) -> Fact | None:
        """Return the precision that the program's parameters state, with its line, or None if none states it."""
        # A program with two switches prints `fp16 : True` and `amp : False`, which alone would mean FP32. So the
        # parameters that switch half precision on count first.
        for (name, value), precision in _HALF_SWITCHES.items():
            if self._parameter_is(name, value):
                return Fact(precision, self.facts_by_name[name].line)
        for name, value in _SINGLE_SWITCHES:
            if self._parameter_is(name, value):
                return Fact("fp32", self.facts_by_name[name].line)
        return None

    def _parameter_is(self, name: str, lower_case_value: str) -> bool:
        """Return whether the log states the parameter `name` with this value, in upper or lower case."""
        return str(self.value(name)).lower() == lower_case_value


def _number_of_gpus(text: str) -> int | None:
    """Return how many GPUs the parameter `gpus` of a training program states.

        [0, 1]  -> 2, and so does `0,1`
        [2]     -> 1: the brackets make it a list
        0       -> 1: the GPU with this number
        1       -> 1: the GPU with this number, or one GPU
        3       -> None: the GPU with this number, or three GPUs
        none    -> None

    Args:
        text: Value of the parameter.
    """
    number_alone = integer(text)  # None for a list
    if number_alone is not None and number_alone > 1:
        return None
    listed = re.findall(r"\d+", text)
    return len(listed) or None


def _as_text(text: str) -> str:
    """Return a JSON line of NVIDIA's DLLogger in the text form of DLLogger, so that one reader suits both forms.

        DLLL {.., "step": "PARAMETER", "data": {"amp": true}}          -> PARAMETER amp : True
        DLLL {.., "step": [3], "data": {"val.top1": 70.1}}             -> Epoch: 3  val.top1 : 70.1
        DLLL {.., "step": [3, 10], "data": {"val.top1": 68.0}}         -> Epoch: 3 Iteration: 10  val.top1 : 68.0
        DLLL {.., "step": [], "data": {"train.total_ips": 2600.0}}     -> Summary: train.total_ips : 2600.0

    Args:
        text: A line of the log. Any other line, and broken JSON, is returned as it is.
    """
    if "DLLL {" not in text:
        return text
    _, _, json_text = text.partition("DLLL ")
    try:
        event = json.loads(json_text)
        step = event["step"]
        fields = "  ".join(f"{key} : {value}" for key, value in event["data"].items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text

    if step == "PARAMETER":
        return f"PARAMETER {fields} "
    if isinstance(step, list) and step:
        names = ("Epoch", "Iteration", "Validation Iteration")
        place = " ".join(f"{name}: {number}" for name, number in zip(names, step, strict=False))
        return f"{place}  {fields} "
    return f"Summary: {fields} "


class Paddle(PyTorch):
    """Rows of Paddle's examples. No line says how many devices there are: rate x time is the batch of all of them."""

    row_clue = "train.batch_time"
    row_pattern = RowPattern(_STEP_HEAD, (_IPS, _TIME), (_LOSS, _WAIT, _UNIT))
    framework = "PaddlePaddle"
    rows_imply_batch = True


class ClosingTable(NamedTuple):
    """The facts in the table that NVIDIA's MXNet benchmark.py prints last."""

    devices: Fact
    batch_per_device: Fact


class MXNet(PyTorch):
    """Rows of MXNet's examples. The parameter states the batch of all devices, a closing table the batch of one."""

    row_clue = "train.ips"
    row_pattern = RowPattern(re.compile(_STEP_HEAD.pattern + r"(?!.*train\.batch_time)"), (_IPS,), _OTHERS_OF_ROW)
    first_step = 0
    framework = "MXNet"
    batch_field = "batch_of_all"

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._table_batch: Fact | None = None
        self._table_devices: list[Fact] = []  # one for each row of the table: each of the benchmark's runs

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row of training figures, which may be of the table that benchmark.py prints last.

        The head of this table states the batch size of one device, and each row below it states a number of devices.
        The line may also print an evaluation's result, an epoch's summary or the run's average speed.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_after_first_row(line, text)
        head = _TABLE_HEAD.search(text)  # `           |   256   |`
        if self._table_batch is None:  # the table has not begun: no line is one of its rows
            if head is not None:
                self._table_batch = Fact(integer(head[1]), line)
            return
        row = _TABLE_ROW.search(text)  # `   8   |   2600.5   |`
        if row is not None and head is None:
            self._table_devices.append(Fact(integer(row[1]), line))

    def finish_facts(self) -> None:
        """Set the batch of one device from the closing table, and the model and the like from the parameters."""
        table = self._closing_table()
        if table is not None:
            self.facts_by_name["batch_per_device"] = table.batch_per_device  # overrides the parameter
        super().finish_facts()

    def _closing_table(self) -> ClosingTable | None:
        """Return what the closing table states, or None without one or if its rows state different devices."""
        numbers = {fact.value for fact in self._table_devices}
        if self._table_batch is None or len(numbers) != 1:
            return None
        return ClosingTable(devices=self._table_devices[0], batch_per_device=self._table_batch)

    def device_counts(self) -> dict[str, Fact]:
        """Return how many devices the program used, by each place of the log that says so.

        The places are the parameters `world_size` and `gpus`, benchmark.py's closing table, and mpirun's ranks.

        Returns:
            The number and its line, by the place in words: {"gpus": Fact(4, line=3), "the closing table": Fact(4,
            line=90)}. The number is None if it cannot be read. No place at all if the only one may count the devices of
            a single node, because the log then does not say how many there are.
        """
        counts = super().device_counts()
        table = self._closing_table()
        if table is not None:
            counts["the closing table"] = table.devices

        least_devices = self._least_devices_by_ranks()
        gpus = counts.get("gpus")
        if least_devices is not None and gpus is not None and self._are_ranks_of_whole_nodes(gpus, least_devices):
            nodes = least_devices.value // gpus.value
            del counts["gpus"]
            counts[f"gpus of each of {nodes} nodes"] = Fact(nodes * gpus.value, gpus.line)
        # Ranks 0 and 5 show that there are at least 6 devices. That confirms a place that states 6, and contradicts one
        # that states 4. Of 8 it says nothing.
        stated = [count.value for count in counts.values() if count.value is not None]
        if least_devices is not None and stated and least_devices.value >= max(stated):
            counts["mpirun's ranks"] = least_devices
        return {} if self._are_of_one_node(counts) else counts

    def _are_ranks_of_whole_nodes(self, gpus: Fact, least_devices: Fact) -> bool:
        """Return whether mpirun's ranks are those of several nodes, on each of which a process runs on each GPU.

        With Horovod and `gpus : [0, 1, 2, 3]`, ranks 0 to 7 are those of two nodes, if each of them printed something.

        Args:
            gpus: The number of GPUs that the parameter lists.
            least_devices: How many devices there are at least, by the ranks.
        """
        if self.value("kv_store") != "horovod" or gpus.value is None or gpus.value == 1:
            return False
        has_each_rank = all(rank in self.lines.ranks for rank in range(least_devices.value))
        has_several_nodes = least_devices.value > gpus.value
        return has_each_rank and has_several_nodes and least_devices.value % gpus.value == 0

    def _are_of_one_node(self, counts: Mapping[str, Fact]) -> bool:
        """Return whether the stated devices may be those of one of several nodes, as `gpus` lists them with Horovod.

        Args:
            counts: The number and its line, by the place in words. A number of 1 is taken for the number of all nodes.
        """
        is_gpus_alone = list(counts) == ["gpus"]
        return is_gpus_alone and self.value("kv_store") == "horovod" and counts["gpus"].value != 1

    def _least_devices_by_ranks(self) -> Fact | None:
        """Return how many devices there are at least, by the ranks in mpirun's tags: the highest rank + 1.

        mpirun starts one rank for each device. It can put a tag with the rank before each line, as in
        `[1,3]<stdout>: ..` of rank 3. A line with this tag shows that there are at least 4 devices. There may be more,
        because a rank that prints nothing has no tag.

        A rank whose first line comes after the last row of training figures does not count, because such a rank took no
        part in the training.

        Returns:
            The number, with the first line of the highest rank. None if fewer than two ranks count, for example where
            rank 0 prints alone, or where lines have no tags.
        """
        last_row_line = self.windows[-1].line if self.windows else 0
        # `self.lines.ranks` has, by rank, the first line with a tag of this rank.
        first_lines = {rank: line for rank, line in self.lines.ranks.items() if line <= last_row_line}
        if len(first_lines) < 2:
            return None
        highest = max(first_lines)
        return Fact(highest + 1, first_lines[highest])  # ranks count from 0


class MXNetSpeed(MXNet):
    """Rows of MXNet's examples before they used DLLogger."""

    row_marker = "Epoch["
    row_clue = "LR: "
    whole_line_marker = ":INFO: "
    row_pattern = RowPattern(
        re.compile(r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+):INFO: )?Epoch\[(\d{1,9})\] Batch \[\d+-(\d{1,9})\]"),
        (field("Speed: ", r" samples/sec\s+LR: "),),  # spaces for a tab: the log was copied from a terminal
        _OTHERS_OF_ROW,
    )
    evaluation_pattern = re.compile(
        rf"Epoch\[(?P<epoch>\d{{1,9}})\] Validation (?P<name>accuracy) *: (?P<value>{NUMBER})"
    )


class Dialect(NamedTuple):
    """The meaning of one framework's JSON keys."""

    framework: str
    batch_field: str  # the field of the record that the parameter `batch_size` states
    first_step: int
    rows_imply_batch: bool = False  # no line says how many devices there are: rate x time is the batch of all of them
    steps_run_on: bool = False  # steps count through the whole run, and not anew in each epoch


_DIALECTS = {  # by a column in the first row; the first that is there counts
    '"train.total_ips"': Dialect("PyTorch", "batch_per_device", 1),
    '"total_ips"': Dialect("TensorFlow", "batch_per_device", 0, steps_run_on=True),
    '"imgs_per_sec"': Dialect("TensorFlow", "batch_per_device", 0, steps_run_on=True),
    '"train.batch_time"': Dialect("PaddlePaddle", "batch_per_device", 1, rows_imply_batch=True),
    '"train.ips"': Dialect("MXNet", "batch_of_all", 0),
}


# DLLL {.., "type": "METADATA", "metric": "train.ips", "metadata": {"unit": "images/s", ..}}: rows print no unit.
_UNIT_OF_JSON_RATE = re.compile(
    r'"metric": "(?:train\.total_ips|train\.ips|total_ips|imgs_per_sec)".*?"unit": "([^"]+)"'
)


class Json(MXNet):
    """Rows in JSON of any of the four frameworks. The columns of the first row show which."""

    row_marker = '"step": ['
    row_clue = whole_line_marker = "DLLL {"
    figure_words = ('"train.total_ips": ', '"train.ips": ', '"total_ips": ', '"imgs_per_sec": ')
    row_pattern = RowPattern(
        re.compile(
            r'DLLL \{(?:.*?"datetime": "(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)")?.*?"step": \[(\d{1,9}), (\d{1,9})\]'
        ),
        (field(r'"(?:train\.total_ips|train\.ips|total_ips|imgs_per_sec)": "?', r'(?=[,}"])'),),
        (
            field(r'"train\.batch_time": "?', r'(?=[,}"])'),
            field(r'"train\.loss": "?'),
            field(r'"train\.data_time": "?', r'(?=[,}"])'),
        ),
    )
    columns = "stamp epoch step rate time loss wait"

    def read_before_rows(self, line: int, text: str) -> None:
        """Read the values that a line before the first row of training figures states, such as the batch size.

        Args:
            line: Number of the line in the log.
            text: The line.

        Raises:
            InputError: The line says that the rate of the rows counts something other than images.
        """
        super().read_before_rows(line, text)
        unit = _UNIT_OF_JSON_RATE.search(text)
        if unit:
            self._require_image_unit(line, unit[1])

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Set how the program counts steps and states its batch, by the framework whose columns the first row has.

        Args:
            text: The row as it is printed.
            position: Epoch and step of the row.
            row: Values of the row by column, as printed.
        """
        dialect = _dialect_of(text)
        if dialect is not None:
            self.framework = dialect.framework
            self.batch_field = dialect.batch_field
            self.first_step = dialect.first_step
            self.rows_imply_batch = dialect.rows_imply_batch
            self.steps_run_on = dialect.steps_run_on
        super().read_first_row(text, position, row)  # lowers `first_step` to the step of this row, if that is lower


def _dialect_of(row: str) -> Dialect | None:
    """Return the dialect of the framework that printed a row in JSON, or None if it has no column of _DIALECTS.

    Args:
        row: The row as it is printed. The column `train.total_ips` is of PyTorch, for example.
    """
    for column, dialect in _DIALECTS.items():
        if column in row:
            return dialect
    return None


class TensorFlow(PyTorch):
    """Rows of TensorFlow's examples."""

    row_marker = row_clue = " - ("
    figure_words: tuple[str, ...] = (" total_ips", " imgs_per_sec")
    row_pattern = RowPattern(
        re.compile(_STAMP + r"\((\d{1,9}), (\d{1,9})\)"),
        (field(" (?:total_ips|imgs_per_sec) : ", r"(?=\s|$)"),),
        (_UNIT,),
    )
    columns = "stamp epoch step rate unit"
    steps_run_on = True
    first_step = 0
    framework = "TensorFlow"
    fact_pattern = re.compile(
        r"\bNum GPUs:? (?P<devices>\d{1,9})\s*$|\bPer-GPU Batch Size:? (?P<batch_per_device>\d{1,9})\s*$"
        r'|(?P<amp_line>AMP is activated)|:::NVLOG.*\) Name: "(?P<model>[\w.]+)"'
    )

    def precision(self) -> Fact | None:
        """Return AMP if a line says that it is activated, or else what the parameters state."""
        if "amp_line" in self.facts_by_name:
            return Fact("amp", self.facts_by_name["amp_line"].line)
        return super().precision()


class NvLog(TensorFlow):
    """Rows of TensorFlow's examples before they used DLLogger, each on two lines."""

    row_marker = whole_line_marker = "iteration: "
    row_clue = ":::NVLOG"
    row_pattern = RowPattern(re.compile(_NVLOG + r" iteration: (\d{1,9})\b"), (field(r"\) total_ips: ", r"(?=\s|$)"),))
    recognised_by = RowPattern(re.compile(_NVLOG + "(?= total_ips)"), (field(r" total_ips: ", r"(?=\s|$)"),))
    columns = "stamp step rate"
    figure_words = (row_clue,)
    evaluation_pattern = re.compile(rf":::NVLOG.* (?P<name>Top-1 Accuracy): (?P<value>{NUMBER})")
    steps_of_row = FormatReader.steps_of_row
