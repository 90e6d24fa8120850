"""mmsegmentation logs, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
{"mode": "train", "epoch": 1, "iter": 50, "lr": 0.01, "memory": 5322, "data_time": 0.005, .., "time": 0.7143}
(mmcv's `.log.json`, with {"env_info": .., "config": ..} before; `iter` may start anew in each epoch)
{"lr": 0.01, "data_time": 0.005, "loss": 2.1, .., "time": 0.7143, "iter": 50, "memory": 5322, "step": 50}
(mmengine's `scalars.json`; `step` counts through the whole run)
`time` is the mean step time of the window, in mmengine of its last 10 steps; no rate is printed.
"""

from __future__ import annotations

import re
from typing import Any

from scoring.importers.text import (
    Counter,
    Draft,
    Fact,
    Lines,
    RowPattern,
    field,
    first_group,
    integer,
    moment_s,
    number,
    of_steps,
    positive,
    rows,
    whole,
)
from scoring.record import Window

HEAD = re.compile(
    r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:,\d+)?) - (?:mmseg|mmengine) - INFO - )?"
    r"Iter(?:\(train\))? ?\[ *(\d{1,9})/(\d{1,9})\]"
)
ROW = RowPattern(
    HEAD,
    (field(" time: ", r"[\s,]"),),
    (field(" data_time: ", r"(?:[\s,]|$)"), re.compile(r" memory: (\d{1,9})"), field(" loss: ")),
)
JSON_ROW = RowPattern(
    re.compile(
        r'\{"(?:mode": "train", "epoch": (\d{1,9}), "iter": (\d{1,9}),|(?:base_)?lr": (?=.*"step": (\d{1,9})\b))'
    ),
    (field('"time": ', "(?=[,}])"),),
    (field('"data_time": '), re.compile(r'"memory": (\d{1,9})'), field('"loss": ')),
)
_JSON_EVAL, _JSON_STEP = re.compile(r'"mIoU": ([\d.]+)'), re.compile(r'"(?:iter|step)": (\d{1,9})')
_FACT = re.compile(
    r"\bsamples_per_gpu ?= ?(?P<batch>\d{1,9})"
    r"|(?P<loader>\w+)_dataloader ?= ?dict"
    r"|\bbatch_size ?= ?(?P<loaded>\d{1,9})"
    r"|gpu_ids ?= ?range\((?P<range>\d{1,9}, ?\d{1,9})\)"
    r"|gpu_ids ?= ?\[(?P<ids>[\d, ]+)\]"
    r"|\bDistributed training: (?P<distributed>True)"
    r"|\bPyTorch: (?P<torch>\S+)|\bMMSegmentation: (?P<mmseg>\S+)|\bCuDNN (?P<cudnn>\d[\d.]*)"
    r"|\bGPU [\d,]+: (?P<gpu>.+)$|\bworld_size ?= ?(?P<world>\d{1,9})"
    r"|\b(?P<fp16>fp16) ?= ?dict|type='(?P<amp>Fp16OptimizerHook|AmpOptimWrapper)'"
)
_EVAL = re.compile(r"\bmIoU: ([\d.]+)")
# Devices that multiply FP32 as TF32 by PyTorch's default for convolutions.
_TF32_DEVICE = re.compile(r"A100|A800|A30|A40|H100|H800|RTX 30|RTX 40|RTX A|L40")


class _Config:
    """What the log prints of the machine and the configuration before its first row."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._loader = ""
        self._gpu: Fact | None = None
        self._line = 0
        self._gpu_ids: Fact | None = None
        self.distributed = False

    def read(self, line: int, text: str) -> None:
        """Take what the line says."""
        draft = self._draft
        if "samples_per_gpu" in text or "batch_size" in text:
            self._line = self._line or line
        if not (match := _FACT.search(text)):
            return
        for name, value in first_group(match):
            if name == "gpu":
                self._gpu = self._gpu or Fact(value, line)
            elif name == "loader":
                self._loader = value
            elif name == "batch" or (name == "loaded" and self._loader == "train"):  # each loader has its own batch
                draft.count("batch_per_device", value, line)
            elif name == "range":
                first, end = map(int, value.split(","))
                self._gpu_ids = self._gpu_ids or Fact(end - first, line)
            elif name == "ids":
                self._gpu_ids = self._gpu_ids or Fact(value.count(",") + 1, line)
            elif name == "distributed":
                self.distributed = True
            elif name == "world":
                draft.count("devices", value, line)
            elif name in ("torch", "mmseg", "cudnn"):
                draft.software.setdefault("pytorch" if name == "torch" else name, value)
            elif name in ("fp16", "amp"):
                draft.fact("precision", "amp", line)

    def finish(self) -> None:
        """Devices, precision and math mode, from all that was said."""
        draft, ids = self._draft, self._gpu_ids
        # Under a launcher each process may list its own device alone: one is then no word on how many ran.
        if ids is not None and not (self.distributed and ids.value == 1):
            draft.fact("devices", ids.value or None, ids.line)
        if self._line:  # the whole configuration is printed: without an fp16 section it is FP32
            draft.fact("precision", "fp32", self._line)
        if self._gpu is not None and draft.said("precision") == "fp32":
            modern = _TF32_DEVICE.search(str(self._gpu.value))
            draft.fact("math_mode", "tf32" if modern else "fp32", self._gpu.line)
        version = draft.software.get("pytorch")
        draft.fact("framework", f"PyTorch {version}" if version else "PyTorch")


def read_json(lines: Lines) -> Draft:
    """The JSON lines that mmcv or mmengine writes beside its log."""
    draft = Draft()
    config = _Config(draft)
    config.distributed = True  # the file does not say whether a launcher ran
    last: tuple[int | None, int] = (0, 0)
    for line, text, values in rows(lines, '"lr": ', '{"', JSON_ROW, ('"mIoU": ',)):
        if values is None:
            if found := _JSON_EVAL.search(text):
                step_found = _JSON_STEP.search(text)
                draft.evaluated(line, "mIoU", found[1], step=integer(step_found[1]) if step_found else None)
            elif not draft.has_rows:
                for part in text.replace('\\"', '"').split("\\n"):
                    config.read(line, part)
            continue
        epoch, step, step_time = integer(values[0]), whole(values[1] or values[2]), positive(values[3])
        if step_time is None or (epoch, step) == last:
            continue
        steps = step - last[1] if step > last[1] else step
        last = epoch, step
        draft.row(_window(line, step, steps if draft.has_rows else None, step_time, values[4:], epoch=epoch))
    config.finish()
    draft.fact("rate_scope", "device")
    return draft


def _window(line: int, step: int, steps: int | None, step_time: float, others: list[str | None], **more: Any) -> Window:
    """A row; `others` are its wait, memory and loss."""
    wait, memory, loss = others
    seconds, waited = of_steps(steps, step_time, number(wait))
    return Window(
        line=line,
        step=step,
        steps=steps,
        seconds=seconds,
        data_wait_s=waited,
        printed_step_time_s=step_time,
        loss=number(loss),
        gpu_memory_mib=number(memory),
        **more,
    )


def read(lines: Lines) -> Draft:
    """A log of mmsegmentation (mmcv runner or mmengine)."""
    draft, counter = Draft(), Counter()
    config = _Config(draft)
    for line, text, values in rows(lines, "Iter", " - INFO - ", ROW, ("mIoU: ",)):
        if values is None:
            if not draft.has_rows:
                config.read(line, text)
            elif found := _EVAL.search(text):
                draft.evaluated(line, "mIoU", found[1], step=counter.last)
            continue
        stamp, step, of, cost, *others = values
        step_time = positive(cost)
        if step_time is None or counter.repeats(whole(step)):
            continue
        steps = counter.take(whole(step), whole(of))
        draft.row(_window(line, whole(step), steps, step_time, others, end_s=moment_s(stamp)))
    config.finish()
    draft.fact("rate_scope", "device")
    draft.truncated = counter.stops_short
    return draft
