"""OneFlow-Benchmark logs, as `Classification/cnns/job_function_util.py` and `ofrecord_util.py`'s Metric print them.

train: epoch 0, iter 20, loss: .., top_1: .., top_k: .., samples/s: 3988.891 [1597933942.98]
The rate is that of all devices, over the window; the Unix time stamp is optional.
"""

from __future__ import annotations

import re

from scoring.importers.text import NUMBER, Builder, Lines, Stretch, integer, positive, rows

HEAD = re.compile(r"train: epoch (\d{1,9}), iter (\d{1,9}),")
ROW = re.compile(
    HEAD.pattern + rf"(?=(?:.*? loss: {NUMBER})?)"
    r".*? samples/s: (\d+\.\d{3}(?![\d.eE])|\d\.\d+[eE][-+]\d+|nan|inf|-\d+[\d.]*)(?:\s+\[?(\d{9,}\.\d*)\]?)?"
)
# As the tool prints a row with nothing odd in it: many at once are read by it.
_USUAL = re.compile(
    r"train: epoch (\d{1,9}), iter (\d{1,9}), loss: ([^,]+), top_1: [^,]+, top_k: [^,]+, "
    r"samples/s: (\d+\.\d{3})(?: \[([^\]\n]+)\])?$"
)
_NAMES = ("epoch", "step", "loss", "rate", "end")
# The arguments as the script prints them: `batch_size_per_device = 128`.
_FACT = re.compile(
    r"\b(batch_size_per_device|gpu_num_per_node|device_num_per_node|num_nodes|model|use_fp16)\b['\"]?\s*[=:]\s*['\"]?(\w+)"
)
_EVAL = re.compile(r"validation: epoch (\d{1,9}),.*? top_1: ([\d.]+)")


def read(lines: Lines) -> Builder:
    """A log of OneFlow-Benchmark's image classification."""
    build = Builder()
    said: dict[str, tuple[str, int]] = {}
    last_epoch = last_step = -1
    interval: int | None = None
    for line, text, match in rows(
        lines, "train: epoch ", "epoch ", HEAD, ROW, _NAMES, usual=_USUAL, others=("validation: ",)
    ):
        if "validation: " in text and (found := _EVAL.search(text)):
            build.evaluated(line, "top_1", found[2], epoch=found[1])
            continue
        if match is None:
            if not build.rows:
                for found in _FACT.finditer(text):
                    said.setdefault(found[1], (found[2], line))
            continue
        if isinstance(match, Stretch):
            last_step, interval = match.step[-1], interval or match.steps[0]
            build.stretch(match)
            continue
        epoch, step, loss, printed, stamp = match.groups()
        rate, epoch_number, step_number = positive(printed), int(epoch), int(step)
        if rate is None:  # newer scripts print -1: no rate
            continue
        if (epoch_number, step_number) == (last_epoch, last_step):
            continue
        steps: int | None
        if epoch_number == last_epoch and step_number > last_step:
            steps = step_number - last_step
            interval = interval or steps
        else:
            steps = (step_number or interval) if build.rows else None
        last_epoch, last_step = epoch_number, step_number
        build.row(
            line,
            step_number,
            epoch_number,
            steps=steps,
            rate=rate,
            end=stamp,
            loss=loss,
        )
    _finish(build, said)
    return build


def _finish(build: Builder, said: dict[str, tuple[str, int]]) -> None:
    if "batch_size_per_device" in said:
        build.count("batch_per_device", *said["batch_size_per_device"])
    nodes, per_node = said.get("num_nodes"), said.get("gpu_num_per_node") or said.get("device_num_per_node")
    if nodes:
        build.count("nodes", *nodes)
    if per_node and "nodes" in build.facts:
        build.fact("devices", build.facts["nodes"] * (integer(per_node[0]) or 0) or None, per_node[1])
    if "model" in said:
        build.fact("model", *said["model"])
    if "use_fp16" in said:
        value, line = said["use_fp16"]
        build.fact("precision", "amp" if value in ("True", "1") else "fp32", line)
    build.fact("framework", "OneFlow", 0)
    build.facts.update(rate_scope="global", cumulative=False)
