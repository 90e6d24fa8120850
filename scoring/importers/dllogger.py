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

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from scoring.importers.table import Around, At, Columns, Table, counted, through_epoch, through_run
from scoring.importers.text import NUMBER, Fact, RowPattern, field, integer, positive
from scoring.record import Epoch

_STAMP = r"(?:DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - )?"
STEP_HEAD = re.compile(_STAMP + r"Epoch: (\d{1,9}) Iteration: (\d{1,9})(?= )")
_LOSS, _WAIT, _TIME = field(r" train\.loss : "), field(r" train\.data_time : "), field(r" train\.batch_time : ")
_IPS = field(r" train\.ips : ", r"(?=\s|$)")
_UNIT = re.compile(r" train\.(?:total_)?ips : \S+ (\w+)/s")
_OTHERS_OF_ROW = (_TIME, _LOSS, _WAIT, _UNIT)
PYTORCH_ROW = RowPattern(STEP_HEAD, (field(r" train\.total_ips : ", r" \w+/s"),), _OTHERS_OF_ROW)
MXNET_ROW = RowPattern(re.compile(STEP_HEAD.pattern + r"(?!.*train\.batch_time)"), (_IPS,), _OTHERS_OF_ROW)
SPEED_ROW = RowPattern(
    re.compile(r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+):INFO: )?Epoch\[(\d{1,9})\] Batch \[\d+-(\d{1,9})\]"),
    (field(r"\tSpeed: ", r" samples/sec\tLR: "),),
    _OTHERS_OF_ROW,
)
PADDLE_ROW = RowPattern(STEP_HEAD, (_IPS, _TIME), (_LOSS, _WAIT, _UNIT))
TENSORFLOW_ROW = RowPattern(re.compile(_STAMP + r"\((\d{1,9}), (\d{1,9})\)"), (field(" total_ips : ", r"(?=\s|$)"),))
JSON_ROW = RowPattern(
    re.compile(
        r'DLLL \{(?:.*?"datetime": "(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)")?.*?"step": \[(\d{1,9}), (\d{1,9})\]'
    ),
    (field(r'"(?:train\.total_ips|train\.ips|total_ips)": "?', r'(?=[,}"])'),),
    (field(r'"train\.batch_time": "?', r'(?=[,}"])'), field(r'"train\.loss": "?'), field(r'"train\.data_time": "?')),
)
_NVLOG = r":::NVLOG\S* \S+ (\d{9,}\.\d+) \([^)]*\)"
NVLOG_ROW = RowPattern(re.compile(_NVLOG + r" iteration: (\d{1,9})\b"), (field(r"\) total_ips: ", r"(?=\s|$)"),))
# The second line of a row.
NVLOG_RATE = RowPattern(re.compile(_NVLOG + "(?= total_ips)"), (field(r" total_ips: ", r"(?=\s|$)"),))
_EPOCH = re.compile(_STAMP + r"Epoch: (\d{1,9}) +(?!Iteration)")
_RATE = re.compile(rf"\b(?:train\.(?:total_)?ips :|train_throughput :|Average total_ips:) {NUMBER}(?=\s|$)")
_EPOCH_TIME = re.compile(rf"\btrain\.epoch_time : {NUMBER}")
_TOP1 = re.compile(rf"\b(val\.(?:top1|accuracy)) : {NUMBER}")
_PARAMETER = re.compile(r"(?:^|[\s(])([\w.]+)(?: : |='?)(\[[^\]]*\]|[^\s,')]+)")
_HEADS = ("PARAMETER", "Start with arguments")  # of the line that lists the job's parameters
# The table that NVIDIA's MXNet benchmark.py prints last: batch sizes above, devices on the left.
_TABLE_HEAD = re.compile(r" {10,11}\|\s+(\d{1,9})\s+\|\s*$")
_TABLE_ROW = re.compile(r"\s+(\d{1,9})\s+\|\s+[\d.e+]+\s+\|\s*$")
_CLOSING = ("Summary:", "Experiment took:", "train_throughput : ", "Average total_ips")
_OTHERS = (*_CLOSING[:2], "   |")  # stand in lines after the first row that matter


class _Around(Around):
    """The job's parameters, summaries of epochs, and the closing lines."""

    batch_field = "batch_per_device"  # the fact that the parameter `batch_size` states
    framework = ""
    has_closing_line = True

    def before(self, line: int, text: str) -> None:
        """The parameters."""
        super().before(line, text)
        text = _as_text(text)
        head = next((head for head in _HEADS if head in text), None)
        for name, value in _PARAMETER.findall(text.split(head, 1)[1]) if head else ():
            self.said.setdefault(name, Fact(value, line))

    def after(self, line: int, text: str) -> None:
        """The summary of an epoch, its evaluation, or that of the run."""
        text = _as_text(text)
        if any(word in text for word in _CLOSING):
            self.draft.truncated = False
            self.draft.summary(line, _RATE.search(text))
        elif "Iteration" not in text and (epoch := _EPOCH.search(text)):
            if rate := _RATE.search(text):
                seconds = _EPOCH_TIME.search(text)
                self.draft.epochs.append(
                    Epoch(
                        line=line,
                        epoch=int(epoch[2]),
                        printed_rate=positive(rate[1]),
                        seconds=positive(seconds[1]) if seconds else None,
                    )
                )
            if top1 := _TOP1.search(text):
                self.draft.evaluated(line, top1[1], top1[2], epoch=epoch[2])

    def devices(self) -> dict[str, Fact | None]:
        """What the log says of the devices, by the place."""
        told: dict[str, Fact | None] = {}
        if (world := self.said.get("world_size")) and (count := integer(str(world.value))):
            told["world_size"] = Fact(count, world.line)
        if gpus := self.said.get("gpus"):
            told["gpus"] = Fact(len(re.findall(r"\d+", str(gpus.value))) or None, gpus.line)
        return told

    def finish(self) -> None:
        """Hand over to the draft."""
        self.draft.agreed("devices", self.devices())
        self.fact("model", "arch")
        for name, half in (("amp", "True"), ("dtype", "float16")):
            if self.text(name) == half:
                self.fact("precision", name, "amp")
        for name in ("amp", "dtype"):
            self.fact("precision", name, "fp32")
        self.count(self.batch_field, "batch_size")
        self.draft.fact("framework", self.framework)


def _as_text(text: str) -> str:
    """A line of JSON that is no row as DLLogger's standard output has it; any other line as it is."""
    if "DLLL {" not in text:
        return text
    try:
        said = json.loads(text[text.index("DLLL ") + 5 :])
        step, values = said["step"], said["data"]
        told = "  ".join(f"{key} : {value}" for key, value in values.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text
    if step == "PARAMETER":
        return f"PARAMETER {told} "
    return f"Epoch: {step[0]}  {told} " if isinstance(step, list) and step else f"Summary: {told} "


class _PyTorch(_Around):
    framework = "PyTorch"


class _Paddle(_Around):
    framework = "PaddlePaddle"


class _MXNet(_Around):
    """The batch is that of all devices; the closing table has the last word on both."""

    framework = "MXNet"
    batch_field = "batch_of_all"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batch: Fact | None = None
        self._devices: list[Fact] = []  # a row for each of its runs

    def after(self, line: int, text: str) -> None:
        """A line of the table, or any other."""
        super().after(line, text)
        if found := _TABLE_HEAD.search(text):
            self._batch = self._batch or Fact(integer(found[1]), line)
        elif self._batch and (found := _TABLE_ROW.search(text)):
            self._devices.append(Fact(integer(found[1]), line))

    def devices(self) -> dict[str, Fact | None]:
        """The table's word, where it is of one run, and mpirun's: a rank a device, of which each writes some line."""
        told = super().devices()
        if self._batch and len({fact.value for fact in self._devices}) == 1:
            told["the closing table"] = self._devices[0]
            self.draft.facts["batch_per_device"] = self._batch
        last_line = self.draft.windows[-1].line if self.draft.windows else 0
        ranks = {rank: line for rank, line in self.lines.ranks.items() if line <= last_line}
        if len(ranks) > 1:
            told["mpirun's ranks"] = Fact(max(ranks) + 1, ranks[max(ranks)])
        return told


class _TensorFlow(_Around):
    """Before DLLogger, too."""

    framework = "TensorFlow"
    facts = re.compile(
        r"\bNum GPUs:? (?P<devices>\d{1,9})\s*$|\bPer-GPU Batch Size:? (?P<each>\d{1,9})\s*$"
        r'|(?P<half>AMP is activated)|:::NVLOG.*\) Name: "(?P<model>[\w.]+)"'
    )

    def finish(self) -> None:
        """Hand over to the draft."""
        self.count("batch_per_device", "each")
        super().finish()
        self.count("devices", "devices")
        self.fact("model", "model")
        self.fact("precision", "half", "amp")


class _Json(_MXNet):
    """Any of the four, as the first row's columns tell."""

    def begins(self, text: str, row: Columns) -> None:
        """The framework, its batch and the number of its first step."""
        for clue, framework, batch_field, first in (
            ('"train.total_ips"', "PyTorch", "batch_per_device", 1),
            ('"total_ips"', "TensorFlow", "batch_per_device", 0),
            ('"train.batch_time"', "PaddlePaddle", "batch_per_device", 1),
            ("", "MXNet", "batch_of_all", 0),
        ):
            if clue in text:
                self.framework, self.batch_field, self.first_step = framework, batch_field, first
                return


def _after_first(around: Around, at: At) -> int | None:
    """The first row's rate is that of its own step or window, not of all steps before: it does not say."""
    steps = through_epoch(around, at)
    return steps if around.last else None


PYTORCH = Table(
    marker="Epoch: ",
    own="DLL ",
    row=PYTORCH_ROW,
    columns="stamp epoch step rate time loss wait unit",
    needs="rate",
    spent=counted(through_epoch),
    others=_OTHERS,
    around=_PyTorch,
    always={"rate_scope": "global"},
)
MXNET = dataclasses.replace(PYTORCH, row=MXNET_ROW, around=_MXNet, first_step=0)
SPEED = dataclasses.replace(MXNET, marker="Epoch[", own=":INFO: ", row=SPEED_ROW)
JSON = dataclasses.replace(
    PYTORCH, marker='"step": [', own="DLLL ", row=JSON_ROW, columns="stamp epoch step rate time loss wait", around=_Json
)
PADDLE = dataclasses.replace(PYTORCH, row=PADDLE_ROW, around=_Paddle)
TENSORFLOW = dataclasses.replace(
    PYTORCH,
    marker=" - (",
    row=TENSORFLOW_ROW,
    columns="stamp epoch step rate",
    spent=counted(_after_first),
    others=("train_throughput : ",),
    around=_TensorFlow,
    first_step=0,
)
NVLOG = dataclasses.replace(
    TENSORFLOW,
    marker="iteration: ",
    own="iteration: ",
    row=NVLOG_ROW,
    columns="stamp step rate",
    spent=counted(through_run),
    others=("Average total_ips",),
)
