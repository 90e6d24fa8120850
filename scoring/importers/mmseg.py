"""mmsegmentation logs, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
`time` is the mean step time of the window; no rate is printed.
"""

from __future__ import annotations

import re

from scoring.importers.text import NUMBER, Builder, Lines, Stretch, number, positive, rows

HEAD = re.compile(
    r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:,\d+)?) - (?:mmseg|mmengine) - INFO - )?"
    r"Iter(?:\(train\))? ?\[ *(\d{1,9})/(\d{1,9})\]"
)
ROW = re.compile(
    HEAD.pattern + rf"(?=.*?\stime: {NUMBER}[\s,])(?=(?:.*?data_time: {NUMBER}(?:[\s,]|$))?)"
    rf"(?=(?:.*?memory: (\d{{1,9}}))?)(?=(?:.*?\sloss: {NUMBER})?)"
)
# As the tool prints a row with nothing odd in it: many at once are read by it.
_USUAL = re.compile(
    r"(.{23}) - mmseg - INFO - Iter \[(\d{1,9})/(\d{1,9})\]\tlr: [^,]+, eta: [^t\n]*time: ([0-9.]+), "
    r"data_time: ([0-9.]+), memory: (\d{1,9}),.* loss: ([^ \n,]+)"
)
_NAMES = ("end", "step", "of", "cost", "wait", "memory", "loss")
_FACT = re.compile(
    r"\bsamples_per_gpu ?= ?(?P<batch>\d{1,9})"
    r"|(?P<loader>\w+)_dataloader ?= ?dict"
    r"|\bbatch_size ?= ?(?P<loaded>\d{1,9})"
    r"|gpu_ids ?= ?range\((?P<first>\d{1,9}), ?(?P<end>\d{1,9})\)"
    r"|gpu_ids ?= ?\[(?P<ids>[\d, ]+)\]"
    r"|\bPyTorch: (?P<torch>\S+)|\bMMSegmentation: (?P<mmseg>\S+)|\bCuDNN (?P<cudnn>\d[\d.]*)"
    r"|\bGPU [\d,]+: (?P<gpu>.+)$|\bworld_size ?= ?(?P<world>\d{1,9})"
    r"|\b(?P<fp16>fp16) ?= ?dict|type='(?P<amp>Fp16OptimizerHook|AmpOptimWrapper)'"
)
_EVAL = re.compile(r"\bmIoU: ([\d.]+)")
# Devices that multiply FP32 as TF32 by PyTorch's default for convolutions.
_TF32_DEVICE = re.compile(r"A100|A800|A30|A40|H100|H800|RTX 30|RTX 40|RTX A|L40")


def read(lines: Lines) -> Builder:
    """A log of mmsegmentation (mmcv runner or mmengine)."""
    build = Builder()
    last_step = last_of = 0
    interval = None
    gpu: tuple[str, int] | None = None
    config_line = 0
    loader = ""
    for line, text, match in rows(lines, "Iter", " - INFO - ", HEAD, ROW, _NAMES, usual=_USUAL, others=("mIoU: ",)):
        if match is None:
            if not build.rows:
                for name, value in _facts(text):
                    if name == "gpu":
                        gpu = gpu or (value, line)
                    elif name == "loader":
                        loader = value
                    elif name == "loaded":  # mmengine: each data loader has its own batch
                        if loader == "train":
                            build.count("batch_per_device", value, line)
                    elif name in ("torch", "mmseg", "cudnn"):
                        build.software.setdefault({"torch": "pytorch"}.get(name, name), value)
                    elif name == "precision":
                        build.fact(name, value, line)
                    else:
                        build.count(name, value, line)
                if "samples_per_gpu" in text or "batch_size" in text:
                    config_line = config_line or line
            elif "mIoU: " in text and (found := _EVAL.search(text)):
                build.evaluated(line, "mIoU", found[1], step=last_step)
            continue
        if isinstance(match, Stretch):
            last_step, interval = match.step[-1], interval or match.steps[0]
            build.stretch_of_means(match)
            continue
        stamp, step, of, cost, wait, memory, loss = match.groups()
        step_time, step_number = positive(cost), int(step)
        if step_time is None:
            continue
        if build.rows and step_number == last_step:
            continue
        steps: int | None = None
        if build.rows and step_number > last_step:
            steps = step_number - last_step
            interval = interval or steps
        last_step, last_of = step_number, int(of)
        waited = number(wait)
        build.row(
            line,
            step_number,
            None,
            steps=steps,
            seconds=None if steps is None else step_time * steps,
            wait_s=None if steps is None or waited is None else waited * steps,
            step_time_s=step_time,
            end=stamp,
            loss=loss,
            memory_mib=memory,
        )
    if config_line:  # the whole configuration is printed: without an fp16 section it is FP32
        build.fact("precision", "fp32", config_line)
    if gpu is not None and build.facts.get("precision") == "fp32":
        build.fact("math_mode", "tf32" if _TF32_DEVICE.search(gpu[0]) else "fp32", gpu[1])
    version = build.software.get("pytorch")
    build.fact("framework", f"PyTorch {version}" if version else "PyTorch", 0)
    build.facts.update(rate_scope="device", cumulative=False)
    build.truncated = last_step + (interval or last_step) <= last_of
    return build


def _facts(text: str) -> list[tuple[str, str]]:
    match = _FACT.search(text)
    if match is None:
        return []
    found = {name: value for name, value in match.groupdict().items() if value is not None}
    if "end" in found:
        return [("devices", str(int(found["end"]) - int(found["first"])))]
    if "ids" in found:
        return [("devices", str(found["ids"].count(",") + 1))]
    if "world" in found:
        return [("devices", found["world"])]
    if "fp16" in found or "amp" in found:
        return [("precision", "amp")]
    if "batch" in found:
        return [("batch_per_device", found["batch"])]
    return list(found.items())
