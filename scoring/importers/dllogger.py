"""NVIDIA DeepLearningExamples logs: DLLogger's standard output, in four dialects (rates are of all devices).

PyTorch     DLL <stamp> - Epoch: 0 Iteration: 1  train.loss : .. train.compute_ips : .. images/s
            train.total_ips : .. images/s ..     (total: data loading included; that is the rate taken)
TensorFlow  DLL <stamp> - (0, 200) total_ips : ..  |  DLL <stamp> - () train_throughput : .. images/s
MXNet       DLL <stamp> - Epoch: 2 Iteration: 419  train.loss : .. train.ips : .. images/s ..
Paddle      DLL <stamp> - Epoch: 0 Iteration: 10  train.loss : .. train.data_time : .. train.compute_time : ..
            train.batch_time : .. train.ips : .. images/s ..   (the times are of the last step alone)
"""

from __future__ import annotations

import re

from scoring.importers.text import (
    NUMBER,
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
PADDLE_ROW = RowPattern(STEP_HEAD, (_IPS, _TIME), (_LOSS, _WAIT))
TENSORFLOW_ROW = RowPattern(re.compile(_STAMP + r"\((\d{1,9}), (\d{1,9})\)"), (field(" total_ips : ", r"(?=\s|$)"),))
_EPOCH = re.compile(_STAMP + r"Epoch: (\d{1,9}) +(?!Iteration)")
_EPOCH_RATE = re.compile(rf"\btrain\.(?:total_)?ips : {NUMBER}(?=\s|$)")
_EPOCH_TIME = re.compile(rf"\btrain\.epoch_time : {NUMBER}")
_TOP1 = re.compile(rf"\b(val\.(?:top1|accuracy)) : {NUMBER}")
_PARAMETER = re.compile(r"(?:^|\s)([\w.]+) : (\[[^\]]*\]|\S+)")
_TENSORFLOW_FACT = re.compile(r"\b(Num GPUs|Per-GPU Batch Size) (\d{1,9})\s*$")
# The table that NVIDIA's MXNet benchmark.py prints last: batch sizes above, devices on the left.
_TABLE_HEAD = re.compile(r" {10,11}\|\s+(\d{1,9})\s+\|\s*$")
_TABLE_ROW = re.compile(r"\s+(\d{1,9})\s+\|\s+[\d.e+]+\s+\|\s*$")
_OTHERS = ("Summary:", "   |")  # stand in lines after the first row that matter


def _parameters(draft: Draft, line: int, text: str, *, batch: str) -> Fact | None:
    """The line that lists the job's parameters; `batch` is the fact that its `batch_size` states. Its list of GPUs."""
    if "PARAMETER" not in text:
        return None
    found = dict(_PARAMETER.findall(text.split("PARAMETER", 1)[1]))
    draft.fact("model", found.get("arch"), line)
    draft.count(batch, found.get("batch_size"), line)
    draft.count("devices", found.get("world_size"), line)
    if "amp" in found or "dtype" in found:
        half = found.get("amp") == "True" or found.get("dtype") == "float16"
        draft.fact("precision", "amp" if half else "fp32", line)
    return Fact(len(re.findall(r"\d+", found["gpus"])) or None, line) if "gpus" in found else None


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


def _read_steps(lines: Lines, row: RowPattern, counter: EpochCounter, framework: str, batch: str) -> Draft:
    draft = Draft()
    draft.truncated = True  # until the closing summary is met
    gpus: Fact | None = None
    table_batch: Fact | None = None
    table_devices: list[Fact] = []  # a row for each of its runs
    for line, text, values in rows(lines, "Epoch: ", "DLL ", row, _OTHERS):
        if values is None:
            if not draft.has_rows:
                gpus = _parameters(draft, line, text, batch=batch) or gpus
            elif "Summary:" in text:
                draft.truncated = False
            elif "Epoch: " in text:
                _epoch(draft, line, text)
            elif found := _TABLE_HEAD.search(text):
                table_batch = table_batch or Fact(integer(found[1]), line)
            elif table_batch and (found := _TABLE_ROW.search(text)):
                table_devices.append(Fact(integer(found[1]), line))
            continue
        stamp, epoch_text, step_text, rate_text, batch_time, loss, wait = values
        epoch, step = whole(epoch_text), whole(step_text)
        rate = positive(rate_text)
        if rate is None or (steps := counter.take(epoch, step)) == 0:
            continue
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
    if table_batch and len({fact.value for fact in table_devices}) == 1:  # the benchmark's own last word
        draft.facts |= {"devices": table_devices[0], "batch_per_device": table_batch}
    elif len(lines.ranks) > 1:  # every rank that runs writes some warning
        draft.fact("devices", max(lines.ranks) + 1)
    elif gpus:
        draft.fact("devices", *gpus)
    draft.fact("framework", framework)
    draft.fact("rate_scope", "global")
    draft.fact("first_step", counter.first)
    return draft


def read_pytorch(lines: Lines) -> Draft:
    """A log of NVIDIA's PyTorch image classification."""
    return _read_steps(lines, PYTORCH_ROW, EpochCounter(1), "PyTorch", "batch_per_device")


def read_mxnet(lines: Lines) -> Draft:
    """A log of NVIDIA's MXNet ResNet-50."""
    return _read_steps(lines, MXNET_ROW, EpochCounter(0), "MXNet", "batch_of_all")


def read_paddle(lines: Lines) -> Draft:
    """A log of NVIDIA's Paddle ResNet-50."""
    return _read_steps(lines, PADDLE_ROW, EpochCounter(1), "PaddlePaddle", "batch_per_device")


def read_tensorflow(lines: Lines) -> Draft:
    """A log of NVIDIA's TensorFlow image classification."""
    draft, counter = Draft(), EpochCounter(0)
    draft.truncated = True  # until the closing train_throughput is met
    for line, text, values in rows(lines, " - (", "DLL ", TENSORFLOW_ROW, ("train_throughput : ",)):
        if values is None:
            if draft.has_rows:
                draft.truncated = draft.truncated and "train_throughput : " not in text
                continue
            _parameters(draft, line, text, batch="batch_per_device")
            if found := _TENSORFLOW_FACT.search(text):
                draft.count("devices" if found[1] == "Num GPUs" else "batch_per_device", found[2], line)
            continue
        stamp, epoch_text, step_text, rate_text = values
        epoch, step = whole(epoch_text), whole(step_text)
        rate = positive(rate_text)
        if rate is None or (steps := counter.take(epoch, step)) == 0:
            continue
        draft.row(
            Window(
                line=line,
                step=step,
                epoch=epoch,
                # The first row's rate is that of its own step or window, not of all steps before: it does not say.
                steps=steps if draft.has_rows else None,
                printed_rate=rate,
                end_s=moment_s(stamp),
            )
        )
    draft.fact("framework", "TensorFlow")
    draft.fact("rate_scope", "global")
    draft.fact("first_step", 0)
    return draft
