"""OneFlow-Benchmark logs, as `Classification/cnns/job_function_util.py` and `ofrecord_util.py`'s Metric print them.

train: epoch 0, iter 20, loss: .., top_1: .., top_k: .., samples/s: 3988.891 [1597933942.98]
The rate is that of all devices, over the window; the Unix time stamp is optional.
"""

from __future__ import annotations

import re

from scoring.importers.text import (
    Draft,
    Fact,
    Lines,
    RowPattern,
    field,
    integer,
    moment_s,
    number,
    positive,
    rows,
    whole,
)
from scoring.record import Window

HEAD = re.compile(r"train: epoch (\d{1,9}), iter (\d{1,9}),")
# A rate has three digits behind the point: with fewer it was cut.
_RATE = re.compile(r" samples/s: (\d+\.\d{3}(?![\d.eE])|\d\.\d+[eE][-+]\d+|nan|inf|-\d+[\d.]*)")
ROW = RowPattern(HEAD, (_RATE,), (field(" loss: "), re.compile(r" samples/s: \S+\s+\[?(\d{9,}\.\d*)\]?")))
# The arguments as the script prints them: `batch_size_per_device = 128`.
_FACT = re.compile(
    r"\b(batch_size_per_device|gpu_num_per_node|device_num_per_node|num_nodes|model|use_fp16)\b['\"]?\s*[=:]\s*['\"]?(\w+)"
)
_EVAL = re.compile(r"validation: epoch (\d{1,9}),.*? top_1: ([\d.]+)")


def read(lines: Lines) -> Draft:
    """A log of OneFlow-Benchmark's image classification."""
    draft = Draft()
    said: dict[str, Fact] = {}
    last_epoch = last_step = -1
    interval = 0
    for line, text, values in rows(lines, "train: epoch ", "epoch ", ROW, ("validation: ",)):
        if values is None:
            if found := _EVAL.search(text):
                draft.evaluated(line, "top_1", found[2], epoch=found[1])
            elif not draft.has_rows:
                for found in _FACT.finditer(text):
                    said.setdefault(found[1], Fact(found[2], line))
            continue
        epoch_text, step_text, printed, loss, stamp = values
        rate, epoch, step = positive(printed), whole(epoch_text), whole(step_text)
        if rate is None or (epoch, step) == (last_epoch, last_step):  # newer scripts print -1: no rate
            continue
        steps: int | None
        if epoch == last_epoch and step > last_step:
            steps = step - last_step
            interval = interval or steps
        else:
            steps = (step or interval or None) if draft.has_rows else None
        last_epoch, last_step = epoch, step
        draft.row(
            Window(
                line=line,
                step=step,
                epoch=epoch,
                steps=steps,
                printed_rate=rate,
                end_s=moment_s(stamp),
                loss=number(loss),
            )
        )
    _finish(draft, said)
    return draft


def _finish(draft: Draft, said: dict[str, Fact]) -> None:
    def text(name: str) -> str:
        return str(said[name].value)

    if "batch_size_per_device" in said:
        draft.count("batch_per_device", text("batch_size_per_device"), said["batch_size_per_device"].line)
    if "num_nodes" in said:
        draft.count("nodes", text("num_nodes"), said["num_nodes"].line)
    per_node = said.get("gpu_num_per_node") or said.get("device_num_per_node")
    nodes = draft.said("nodes")
    if per_node and isinstance(nodes, int):
        draft.fact("devices", nodes * (integer(str(per_node.value)) or 0) or None, per_node.line)
    if "model" in said:
        draft.fact("model", *said["model"])
    if "use_fp16" in said:
        draft.fact("precision", "amp" if text("use_fp16") in ("True", "1") else "fp32", said["use_fp16"].line)
    draft.fact("framework", "OneFlow")
    draft.fact("rate_scope", "global")
