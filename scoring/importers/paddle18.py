"""Paddle 1.8 `models/PaddleCV/image_classification` logs (DLPerf's), as `utils/utility.py` prints them.

2020-08-25 11:26:21,123-INFO: [Pass 0, train batch 19] \tloss .., acc1 .., acc5 .., lr .., elapse 0.35 sec
Batches count from 0 in each pass; `elapse` is the time of that one batch; the time stamp may be absent. The
printed `batch_size` is that of one process, whatever its devices: batch and devices come from options.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import NUMBER, Builder, Lines, Stretch, positive, rows

HEAD = re.compile(
    r"(?:(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?)[^\[]{0,60})?"
    r"\[Pass (\d{1,9}), train batch (\d{1,9})\]"
)
ROW = re.compile(HEAD.pattern + rf"(?=(?:.*?\bloss {NUMBER})?).*? elapse {NUMBER} sec")
# As the tool prints a row with nothing odd in it: many at once are read by it.
_USUAL = re.compile(r"(.{23})-INFO: \[Pass (\d{1,9}), train batch (\d{1,9})\] \tloss ([^,]+),.* elapse ([0-9.]+) sec")
_NAMES = ("end", "epoch", "step", "loss", "cost")
_FP16 = re.compile(r"^\W*use_fp16: (True|False)|^\W*fp16: (True|False)")
_MODEL = re.compile(r"^model: (\w+)\s*$")
_EPOCH = re.compile(r"\[End pass (\d{1,9}), .*?test acc1 ([\d.]+)")


def read(lines: Lines) -> Builder:
    """A log of Paddle 1.8's image classification."""
    build = Builder()
    launch = Launch(build)
    last_epoch = last_step = -1
    for line, text, match in rows(
        lines, "train batch ", "[Pass ", HEAD, ROW, _NAMES, usual=_USUAL, others=("[End pass",)
    ):
        if match is None:
            if not build.rows:
                launch.read(line, text)
                if found := _FP16.match(text):
                    build.fact("precision", "amp_o1" if "True" in found.groups() else "fp32", line)
                elif found := _MODEL.match(text):
                    build.fact("model", found[1], line)
            elif "[End pass" in text and (found := _EPOCH.search(text)):
                build.evaluated(line, "acc1", found[2], epoch=found[1])
            continue
        if isinstance(match, Stretch):
            last_step = match.step[-1]
            build.stretch(match, seconds=match.of_single_steps("cost"))
            continue
        stamp, epoch, step, loss, elapse = match.groups()
        step_time, epoch_number, step_number = positive(elapse), int(epoch), int(step)
        if (epoch_number, step_number) == (last_epoch, last_step):
            continue
        steps: int | None
        if epoch_number == last_epoch and step_number > last_step:
            steps = step_number - last_step
        else:
            steps = step_number + 1 if build.rows or step_number == 0 else None
        last_epoch, last_step = epoch_number, step_number
        build.row(
            line,
            step_number,
            epoch_number,
            steps=steps,
            seconds=step_time if steps == 1 else None,  # of the other steps the log says no time
            step_time_s=step_time,
            end=stamp,
            loss=loss,
        )
    launch.finish()
    build.facts.update(rate_scope="device", cumulative=False, first_step=0)
    return build
