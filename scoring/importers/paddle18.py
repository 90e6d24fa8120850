"""Paddle 1.8 `models/PaddleCV/image_classification` logs (DLPerf's), as `utils/utility.py` prints them.

2020-08-25 11:26:21,123-INFO: [Pass 0, train batch 19] \tloss .., acc1 .., acc5 .., lr .., elapse 0.35 sec
Batches count from 0 in each pass; `elapse` is the time of that one batch; the time stamp may be absent. The
printed `batch_size` is that of one process, whatever its devices: batch and devices come from options.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import (
    Draft,
    EpochCounter,
    Lines,
    RowPattern,
    field,
    moment_s,
    number,
    positive,
    rows,
    whole,
)
from scoring.record import Window

HEAD = re.compile(
    r"(?:(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?)[^\[]{0,60})?"
    r"\[Pass (\d{1,9}), train batch (\d{1,9})\]"
)
ROW = RowPattern(HEAD, (field(" elapse ", " sec"),), (field(r"\sloss "),))
_FP16 = re.compile(r"^\W*(?:use_)?fp16: (True|False)")
_MODEL = re.compile(r"^model: (\w+)\s*$")
_EPOCH = re.compile(r"\[End pass (\d{1,9}), .*?test acc1 ([\d.]+)")


def read(lines: Lines) -> Draft:
    """A log of Paddle 1.8's image classification."""
    draft, counter = Draft(), EpochCounter(0)
    launch = Launch(draft)
    for line, text, values in rows(lines, "train batch ", "[Pass ", ROW, ("[End pass",)):
        if values is None:
            if draft.has_rows:
                if found := _EPOCH.search(text):
                    draft.evaluated(line, "acc1", found[2], epoch=found[1])
                continue
            launch.read(line, text)
            if found := _FP16.match(text):
                draft.fact("precision", "amp_o1" if found[1] == "True" else "fp32", line)
            elif found := _MODEL.match(text):
                draft.fact("model", found[1], line)
            continue
        stamp, epoch, step, elapse, loss = values
        step_time = positive(elapse)
        if (steps := counter.take(whole(epoch), whole(step))) == 0:
            continue
        draft.row(
            Window(
                line=line,
                step=whole(step),
                epoch=whole(epoch),
                steps=steps,
                seconds=step_time if steps == 1 else None,  # of the other steps the log says no time
                printed_step_time_s=step_time,
                end_s=moment_s(stamp),
                loss=number(loss),
            )
        )
    launch.finish()
    draft.fact("rate_scope", "device")
    draft.fact("first_step", 0)
    return draft
