"""NVIDIA DeepLearningExamples logs: DLLogger's standard output and JSON, in four dialects (rates are of all devices).

PyTorch     DLL <stamp> - Epoch: 0 Iteration: 1  train.loss : .. train.compute_ips : .. images/s
            train.total_ips : .. images/s ..     (total: data loading included; that is the rate taken)
TensorFlow  DLL <stamp> - (0, 200) total_ips : ..  |  DLL <stamp> - () train_throughput : .. images/s
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

from scoring.importers.lines import Lines
from scoring.importers.table import At, Columns, EpochTable, Fact, Table
from scoring.importers.text import NUMBER, RowPattern, field, integer

_STAMP = r"(?:DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - )?"
_STEP_HEAD = re.compile(_STAMP + r"Epoch: (\d{1,9}) Iteration: (\d{1,9})(?= )")
_LOSS, _WAIT, _TIME = field(r" train\.loss : "), field(r" train\.data_time : "), field(r" train\.batch_time : ")
_IPS = field(r" train\.ips : ", r"(?=\s|$)")
_UNIT = re.compile(r" train\.(?:total_)?ips : \S+ (\w+)/s")
_OTHERS_OF_ROW = (_TIME, _LOSS, _WAIT, _UNIT)
_NVLOG = r":::NVLOG\S* \S+ (\d{9,}\.\d+) \([^)]*\)"
_EPOCH = r"Epoch: (?P<epoch>\d{1,9})\b(?!.*Iteration)"
_PARAMETER = re.compile(r"(?:^|[\s(])(arch|batch_size|amp|dtype|world_size|gpus)(?: : |='?)(\[[^\]]*\]|[^\s,')]+)")
# The table that NVIDIA's MXNet benchmark.py prints last: batch sizes above, devices on the left.
_TABLE_HEAD = re.compile(r" {10,11}\|\s+(\d{1,9})\s+\|\s*$")
_TABLE_ROW = re.compile(r"\s+(\d{1,9})\s+\|\s+[\d.e+]+\s+\|\s*$")


class PyTorch(EpochTable):
    """PyTorch's rows, and what all dialects share: parameters, ends of epochs, closing lines."""

    marker = "Epoch: "
    clue = "train.total_ips"
    tool = "DLL "
    row = RowPattern(_STEP_HEAD, (field(r" train\.total_ips : ", r" \w+/s"),), _OTHERS_OF_ROW)
    columns = "stamp epoch step rate time loss wait unit"
    needs = "rate"
    rate_scope = "global"
    framework = "PyTorch"
    closing = ("Summary:", "Experiment took:", "train_throughput : ", "Average total_ips")
    summary = re.compile(
        rf"(?:Summary:.*?\btrain\.(?:total_)?ips :|\btrain_throughput :|\bAverage total_ips:) {NUMBER}(?=\s|$)"
    )
    epoch_end = re.compile(
        rf"{_EPOCH}(?:(?=.*\btrain\.epoch_time : (?P<seconds>{NUMBER})))?"
        rf".*?\btrain\.(?:total_)?ips : (?P<rate>{NUMBER})(?=\s|$)"
    )
    evaluation = re.compile(rf"{_EPOCH}.*?\b(?P<name>val\.(?:top1|accuracy)) : (?P<value>{NUMBER})")
    batch_field = "batch_per_device"  # of the record: what the parameter `batch_size` states

    def before(self, line: int, text: str) -> None:
        super().before(line, text)
        text = _as_text(text)
        head = next((head for head in ("PARAMETER", "Start with arguments") if head in text), None)
        for name, value in _PARAMETER.findall(text.split(head, 1)[1]) if head else ():
            self.say(name, value, line)

    def after(self, line: int, text: str) -> None:
        super().after(line, _as_text(text))

    def device_counts(self) -> dict[str, Fact]:
        """What the log says of the devices, by the place."""
        counts = {}
        if world := self.said.get("world_size"):
            counts["world_size"] = Fact(integer(world.value) or None, world.line)
        if gpus := self.said.get("gpus"):
            counts["gpus"] = Fact(len(re.findall(r"\d+", gpus.value)) or None, gpus.line)
        return counts

    def finish(self) -> None:
        self.agreed("devices", self.device_counts())
        self.derive("model", "arch")
        self.derive(self.batch_field, "batch_size")
        super().finish()
        for name, half in (("amp", "True"), ("dtype", "float16")):
            if self.value(name) == half:
                self.derive("precision", name, "amp")
        for name in ("amp", "dtype"):
            self.derive("precision", name, "fp32")


def _as_text(text: str) -> str:
    """A line of JSON that is no row as DLLogger's standard output has it; any other line as it is."""
    if "DLLL {" not in text:
        return text
    try:
        event = json.loads(text[text.index("DLLL ") + 5 :])
        step, values = event["step"], event["data"]
        fields = "  ".join(f"{key} : {value}" for key, value in values.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text
    if step == "PARAMETER":
        return f"PARAMETER {fields} "
    return f"Epoch: {step[0]}  {fields} " if isinstance(step, list) and step else f"Summary: {fields} "


class Paddle(PyTorch):
    """Paddle's examples."""

    clue = "train.batch_time"
    row = RowPattern(_STEP_HEAD, (_IPS, _TIME), (_LOSS, _WAIT, _UNIT))
    framework = "PaddlePaddle"


class MXNet(PyTorch):
    """MXNet's: the batch is that of all devices; the closing table has the last word on both."""

    clue = "train.ips"
    row = RowPattern(re.compile(_STEP_HEAD.pattern + r"(?!.*train\.batch_time)"), (_IPS,), _OTHERS_OF_ROW)
    first_step = 0
    framework = "MXNet"
    batch_field = "batch_of_all"

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._batch: Fact | None = None
        self._devices: list[Fact] = []  # a row for each of its runs

    def after(self, line: int, text: str) -> None:
        super().after(line, text)
        if found := _TABLE_HEAD.search(text):
            self._batch = self._batch or Fact(integer(found[1]), line)
        elif self._batch and (found := _TABLE_ROW.search(text)):
            self._devices.append(Fact(integer(found[1]), line))

    def device_counts(self) -> dict[str, Fact]:
        """The table's word, where it is of one run, and mpirun's: a rank a device, of which each writes some line."""
        counts = super().device_counts()
        if self._batch and len({fact.value for fact in self._devices}) == 1:
            counts["the closing table"] = self._devices[0]
            self.said["batch_per_device"] = self._batch
        last_line = self.windows[-1].line if self.windows else 0
        ranks = {rank: line for rank, line in self.lines.ranks.items() if line <= last_line}
        if len(ranks) > 1:
            counts["mpirun's ranks"] = Fact(max(ranks) + 1, ranks[max(ranks)])
        return counts


class MXNetSpeed(MXNet):
    """MXNet's before DLLogger."""

    marker = "Epoch["
    clue = " samples/sec\tLR: "
    tool = ":INFO: "
    row = RowPattern(
        re.compile(r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+):INFO: )?Epoch\[(\d{1,9})\] Batch \[\d+-(\d{1,9})\]"),
        (field(r"\tSpeed: ", r" samples/sec\tLR: "),),
        _OTHERS_OF_ROW,
    )


class Json(MXNet):
    """JSON of any of the four, as the first row's columns tell."""

    marker = '"step": ['
    clue = tool = "DLLL {"
    row = RowPattern(
        re.compile(
            r'DLLL \{(?:.*?"datetime": "(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)")?.*?"step": \[(\d{1,9}), (\d{1,9})\]'
        ),
        (field(r'"(?:train\.total_ips|train\.ips|total_ips)": "?', r'(?=[,}"])'),),
        (
            field(r'"train\.batch_time": "?', r'(?=[,}"])'),
            field(r'"train\.loss": "?'),
            field(r'"train\.data_time": "?'),
        ),
    )
    columns = "stamp epoch step rate time loss wait"

    def begins(self, text: str, row: Columns) -> None:
        """The framework, its batch and the number of its first step."""
        dialects = {
            '"train.total_ips"': ("PyTorch", "batch_per_device", 1),
            '"total_ips"': ("TensorFlow", "batch_per_device", 0),
            '"train.batch_time"': ("PaddlePaddle", "batch_per_device", 1),
            "": ("MXNet", "batch_of_all", 0),
        }
        self.framework, self.batch_field, self.first_step = next(dialects[clue] for clue in dialects if clue in text)


class TensorFlow(PyTorch):
    """TensorFlow's."""

    marker = " - ("
    clue = " total_ips"
    row = RowPattern(re.compile(_STAMP + r"\((\d{1,9}), (\d{1,9})\)"), (field(" total_ips : ", r"(?=\s|$)"),))
    columns = "stamp epoch step rate"
    first_step = 0
    framework = "TensorFlow"
    facts = re.compile(
        r"\bNum GPUs:? (?P<devices>\d{1,9})\s*$|\bPer-GPU Batch Size:? (?P<batch_per_device>\d{1,9})\s*$"
        r'|(?P<precision>AMP is activated)|:::NVLOG.*\) Name: "(?P<model>[\w.]+)"'
    )
    precisions = (("", "amp"),)

    def steps(self, at: At) -> int | None:
        """The first row's rate is that of its own step or window, not of all steps before: it does not say."""
        steps = super().steps(at)
        return steps if self.last else None


class NvLog(TensorFlow):
    """TensorFlow's before DLLogger; a row has two lines."""

    marker = tool = "iteration: "
    clue = ":::NVLOG"
    row = RowPattern(re.compile(_NVLOG + r" iteration: (\d{1,9})\b"), (field(r"\) total_ips: ", r"(?=\s|$)"),))
    recognised_by = RowPattern(re.compile(_NVLOG + "(?= total_ips)"), (field(r" total_ips: ", r"(?=\s|$)"),))
    columns = "stamp step rate"
    steps = Table.steps
