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

import functools
import json
import re
from typing import NamedTuple

from scoring.importers.text import (
    NUMBER,
    Counter,
    Draft,
    EpochCounter,
    Fact,
    Lines,
    RowPattern,
    field,
    integer,
    moment_s,
    number,
    positive,
    rows,
    wait_within,
    whole,
)
from scoring.record import Epoch, Window

_STAMP = r"(?:DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - )?"
STEP_HEAD = re.compile(_STAMP + r"Epoch: (\d{1,9}) Iteration: (\d{1,9})(?= )")
_LOSS, _WAIT, _TIME = field(r" train\.loss : "), field(r" train\.data_time : "), field(r" train\.batch_time : ")
_IPS = field(r" train\.ips : ", r"(?=\s|$)")
_OTHERS_OF_ROW = (_TIME, _LOSS, _WAIT)
PYTORCH_ROW = RowPattern(STEP_HEAD, (field(r" train\.total_ips : ", r" \w+/s"),), _OTHERS_OF_ROW)
MXNET_ROW = RowPattern(re.compile(STEP_HEAD.pattern + r"(?!.*train\.batch_time)"), (_IPS,), _OTHERS_OF_ROW)
SPEED_ROW = RowPattern(
    re.compile(r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+):INFO: )?Epoch\[(\d{1,9})\] Batch \[\d+-(\d{1,9})\]"),
    (field(r"\tSpeed: ", r" samples/sec\tLR: "),),
    _OTHERS_OF_ROW,
)
PADDLE_ROW = RowPattern(STEP_HEAD, (_IPS, _TIME), (_LOSS, _WAIT))
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
_EPOCH_RATE = re.compile(rf"\b(?:train\.(?:total_)?ips|train_throughput) : {NUMBER}(?=\s|$)")
_TENSORFLOW_SUMMARY = re.compile(rf"(?:\btrain_throughput :|\bAverage total_ips:) {NUMBER}(?=\s|$)")
_EPOCH_TIME = re.compile(rf"\btrain\.epoch_time : {NUMBER}")
_TOP1 = re.compile(rf"\b(val\.(?:top1|accuracy)) : {NUMBER}")
_PARAMETER = re.compile(r"(?:^|[\s(])([\w.]+)(?: : |='?)(\[[^\]]*\]|[^\s,')]+)")
_TENSORFLOW_FACT = re.compile(r"\b(Num GPUs|Per-GPU Batch Size):? (\d{1,9})\s*$")
_NVLOG_NAME = re.compile(r'\) Name: "([\w.]+)"')
# The table that NVIDIA's MXNet benchmark.py prints last: batch sizes above, devices on the left.
_TABLE_HEAD = re.compile(r" {10,11}\|\s+(\d{1,9})\s+\|\s*$")
_TABLE_ROW = re.compile(r"\s+(\d{1,9})\s+\|\s+[\d.e+]+\s+\|\s*$")
_OTHERS = ("Summary:", "Experiment took:", "   |")  # stand in lines after the first row that matter


class _Dialect(NamedTuple):
    """What a framework's scripts print differently."""

    framework: str
    row: RowPattern
    first: int  # number of the first step of an epoch
    batch: str = "batch_per_device"  # the fact that its parameter `batch_size` states
    marker: str = "Epoch: "  # stands in each row
    own: str = "DLL "  # and in each line of the tool's


_PYTORCH = _Dialect("PyTorch", PYTORCH_ROW, 1)
_MXNET = _Dialect("MXNet", MXNET_ROW, 0, "batch_of_all")
_SPEED = _MXNET._replace(row=SPEED_ROW, marker="Epoch[", own=":INFO: ")
_JSON = _Dialect("", JSON_ROW, 1, marker='"step": [', own="DLLL ")  # of the others, as the first row says
_PADDLE = _Dialect("PaddlePaddle", PADDLE_ROW, 1)
_TENSORFLOW = _Dialect("TensorFlow", TENSORFLOW_ROW, 0)


def _json_dialect(row: str) -> _Dialect:
    if '"train.total_ips"' in row:
        return _PYTORCH
    if '"total_ips"' in row:
        return _TENSORFLOW
    return _PADDLE if '"train.batch_time"' in row else _MXNET


def _as_text(text: str) -> str:
    """A line of JSON that is no row as DLLogger's standard output has it."""
    try:
        said = json.loads(text[text.index("DLLL ") + 5 :])
        step, values = said["step"], said["data"]
        told = "  ".join(f"{key} : {value}" for key, value in values.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text
    if step == "PARAMETER":
        return f"PARAMETER {told} "
    return f"Epoch: {step[0]}  {told} " if isinstance(step, list) and step else f"Summary: {told} "


def _parameters(draft: Draft, line: int, text: str) -> Fact | None:
    """The line that lists the job's parameters. Its list of GPUs."""
    head = "PARAMETER" if "PARAMETER" in text else "Start with arguments"
    if head not in text:
        return None
    found = dict(_PARAMETER.findall(text.split(head, 1)[1]))
    draft.fact("model", found.get("arch"), line)
    draft.count("batch_size", found.get("batch_size"), line)
    draft.count("devices", found.get("world_size"), line)
    if "amp" in found or "dtype" in found:
        half = found.get("amp") == "True" or found.get("dtype") == "float16"
        draft.fact("precision", "amp" if half else "fp32", line)
    return Fact(len(re.findall(r"\d+", found["gpus"])) or None, line) if "gpus" in found else None


def _finish(draft: Draft, dialect: _Dialect, first_step: int) -> None:
    batch = draft.facts.pop("batch_size", None)
    if batch:
        draft.fact(dialect.batch, *batch)
    draft.fact("framework", dialect.framework)
    draft.fact("rate_scope", "global")
    draft.fact("first_step", first_step)


def _epoch(draft: Draft, line: int, text: str) -> None:
    """An epoch's summary and evaluation."""
    if "Iteration" in text or not (match := _EPOCH.search(text)):
        return
    if rate := _EPOCH_RATE.search(text):
        seconds = _EPOCH_TIME.search(text)
        draft.epochs.append(
            Epoch(
                line=line,
                epoch=int(match[2]),
                printed_rate=positive(rate[1]),
                seconds=positive(seconds[1]) if seconds else None,
            )
        )
    if top1 := _TOP1.search(text):
        draft.evaluated(line, top1[1], top1[2], epoch=match[2])


def _read_steps(lines: Lines, dialect: _Dialect) -> Draft:
    """The rows of one dialect."""
    draft = Draft()
    draft.truncated = True  # until the closing summary is met
    gpus: Fact | None = None
    table_batch: Fact | None = None
    table_devices: list[Fact] = []  # a row for each of its runs
    last_line = 0
    counter = EpochCounter(dialect.first)
    for line, text, values in rows(lines, dialect.marker, dialect.own, dialect.row, _OTHERS):
        if values is None:
            text = _as_text(text) if "DLLL {" in text else text
            if not draft.has_rows:
                gpus = _parameters(draft, line, text) or gpus
            elif "Summary:" in text or "Experiment took:" in text:
                draft.truncated = False
                draft.summary(line, _EPOCH_RATE.search(text))
            elif "Epoch: " in text:
                _epoch(draft, line, text)
            elif found := _TABLE_HEAD.search(text):
                table_batch = table_batch or Fact(integer(found[1]), line)
            elif table_batch and (found := _TABLE_ROW.search(text)):
                table_devices.append(Fact(integer(found[1]), line))
            continue
        if dialect is _JSON:
            dialect = _json_dialect(text)
            counter.first = dialect.first
        stamp, epoch_text, step_text, rate_text, batch_time, loss, wait = values
        epoch, step = whole(epoch_text), whole(step_text)
        rate = positive(rate_text)
        if rate is None or (steps := counter.take(epoch, step)) == 0:
            continue
        last_line = line
        step_time = positive(batch_time)
        seconds = step_time if steps == 1 else None  # of the other steps the log says no time
        draft.row(
            Window(
                line=line,
                step=step,
                epoch=epoch,
                steps=steps,
                seconds=seconds,
                data_wait_s=None if seconds is None else wait_within(number(wait), seconds),
                printed_rate=rate,
                printed_step_time_s=step_time,
                end_s=moment_s(stamp),
                loss=number(loss),
            )
        )
    table = table_devices[0] if table_batch and len({fact.value for fact in table_devices}) == 1 else None
    told: dict[str, Fact | None] = {"world_size": draft.facts.get("devices"), "gpus": gpus, "the closing table": table}
    ranks = {rank: line for rank, line in lines.ranks.items() if line <= last_line}
    if dialect in (_MXNET, _SPEED) and len(ranks) > 1:  # a rank a device, of which each writes some warning
        told["mpirun's ranks"] = Fact(max(ranks) + 1, ranks[max(ranks)])
    draft.agreed("devices", told)
    if table and table_batch:  # the benchmark's own last word
        draft.facts |= {"batch_per_device": table_batch}
    _finish(draft, dialect, counter.first)
    return draft


read_pytorch = functools.partial(_read_steps, dialect=_PYTORCH)
read_mxnet = functools.partial(_read_steps, dialect=_MXNET)
read_speed = functools.partial(_read_steps, dialect=_SPEED)
read_paddle = functools.partial(_read_steps, dialect=_PADDLE)
read_json = functools.partial(_read_steps, dialect=_JSON)


def read_tensorflow(lines: Lines) -> Draft:
    """A log of NVIDIA's TensorFlow image classification."""
    draft, counter = Draft(), EpochCounter(0)
    draft.truncated = True  # until the closing train_throughput is met
    for line, text, values in rows(lines, " - (", "DLL ", TENSORFLOW_ROW, ("train_throughput : ",)):
        if values is None:
            if draft.has_rows:
                draft.truncated = draft.truncated and "train_throughput : " not in text
                draft.summary(line, _TENSORFLOW_SUMMARY.search(text))
                continue
            _parameters(draft, line, text)
            _tensorflow_fact(draft, line, text)
            continue
        stamp, epoch_text, step_text, rate_text = values
        epoch, step = whole(epoch_text), whole(step_text)
        rate = positive(rate_text)
        if rate is None or (steps := counter.take(epoch, step)) == 0:
            continue
        _tensorflow_row(draft, line, step, steps, rate, stamp, epoch)
    _finish(draft, _TENSORFLOW, 0)
    return draft


def read_nvlog(lines: Lines) -> Draft:
    """A log of NVIDIA's TensorFlow image classification before DLLogger: a row on two lines."""
    draft, counter = Draft(), Counter()
    draft.truncated = True  # until the closing average is met
    for line, text, values in rows(lines, "iteration: ", "iteration: ", NVLOG_ROW, ("Average total_ips",)):
        if values is None:
            if "Average total_ips" in text:
                draft.truncated = False
                draft.summary(line, _TENSORFLOW_SUMMARY.search(text))
            elif not draft.has_rows and ":::NVLOG" in text:
                _tensorflow_fact(draft, line, text)
                if "AMP is activated" in text:
                    draft.fact("precision", "amp", line)
                elif found := _NVLOG_NAME.search(text):
                    draft.fact("model", found[1], line)
            continue
        stamp, step_text, rate_text = values
        step, rate = whole(step_text), positive(rate_text)
        if rate is None or counter.repeats(step):
            continue
        _tensorflow_row(draft, line, step, counter.take(step, 0), rate, stamp)
    _finish(draft, _TENSORFLOW, 0)
    return draft


def _tensorflow_fact(draft: Draft, line: int, text: str) -> None:
    if found := _TENSORFLOW_FACT.search(text):
        draft.count("devices" if found[1] == "Num GPUs" else "batch_per_device", found[2], line)


def _tensorflow_row(
    draft: Draft, line: int, step: int, steps: int | None, rate: float, stamp: str | None, epoch: int | None = None
) -> None:
    """A row; the first one's rate is that of its own step or window, not of all steps before: it does not say."""
    draft.row(
        Window(
            line=line,
            step=step,
            epoch=epoch,
            steps=steps if draft.has_rows else None,
            printed_rate=rate,
            end_s=moment_s(stamp),
        )
    )
