"""PaddleSeg logs, as `paddleseg/core/train.py` prints them.

Y-M-D h:m:s [INFO]\t[TRAIN] epoch: 1, iter: 15/400, loss: .., lr: .., batch_cost: .., reader_cost: ..,
ips: .. samples/sec | ETA ..   (older releases: `epoch=1, iter=15/400, .., ips=..`)
The costs are those of the window; `ips` is that of rank 0 alone; `iter` counts through the whole run.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import NUMBER, Builder, Lines, Stretch, number, positive, rows

HEAD = re.compile(
    r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \[INFO\]\s*)?\[TRAIN\] epoch[:=] ?(\d{1,9}), iter[:=] ?(\d{1,9})/(\d{1,9})"
)
ROW = re.compile(
    HEAD.pattern + rf"(?=(?:.*? loss[:=] ?{NUMBER})?)(?=.*? batch_cost[:=] ?{NUMBER}[,\s])"
    rf"(?=(?:.*? reader_cost[:=] ?{NUMBER}[,\s])?)(?:.*? ips[:=] ?{NUMBER} \w+/s|.* \|)"
)
# As the tool prints a row with nothing odd in it: many at once are read by it.
_USUAL = re.compile(
    r"(.{19}) \[INFO\]\t\[TRAIN\] epoch: (\d{1,9}), iter: (\d{1,9})/(\d{1,9}), loss: ([^,]+), lr: [^,]+, "
    r"batch_cost: ([0-9.]+), reader_cost: ([0-9.]+), ips: ([0-9.]+) samples/s"
)
_NAMES = ("end", "epoch", "step", "of", "loss", "cost", "wait", "rate")
_BATCH = re.compile(r"(?<![\w.])batch_size: (\d{1,9})\s*$")
_ARGUMENT = re.compile(r"--(batch_size|precision|amp_level)[ =](\w+)")
_PRECISION = re.compile(r"(?:use_amp|fp16|precision|amp_level): ?(\S+)")
_MODEL = re.compile(r"^\s*type: (FCN|\w*HRNet\w*|\w+)\s*$")
_EVAL = re.compile(r"\[EVAL\].*?\bmIoU[:=] ?([\d.]+)")


def read(lines: Lines) -> Builder:
    """A log of PaddleSeg."""
    build = Builder()
    launch = Launch(build)
    arguments: dict[str, tuple[str, int]] = {}
    in_model = False
    last_step, last_of = 0, 0
    interval = None
    for line, text, match in rows(
        lines, "[TRAIN] epoch", "[INFO]", HEAD, ROW, _NAMES, usual=_USUAL, others=("[EVAL]",)
    ):
        if match is None:
            if not build.rows:
                launch.read(line, text)
                if found := _BATCH.search(text):
                    build.count("batch_per_device", found[1], line)
                if "--" in text:
                    for found in _ARGUMENT.finditer(text):
                        arguments.setdefault(found[1], (found[2], line))
                if text.startswith("model:"):
                    in_model = True
                elif in_model and text[:1] not in (" ", ""):
                    in_model = False
                elif in_model and text.startswith("  type: "):
                    build.fact("model", text.split(":", 1)[1].strip(), line)
                elif in_model and text.startswith("    type: "):
                    build.fact("backbone", text.split(":", 1)[1].strip(), line)
            elif "[EVAL]" in text and (found := _EVAL.search(text)):
                build.evaluated(line, "mIoU", found[1], step=last_step)
            continue
        if isinstance(match, Stretch):
            last_step, interval = match.step[-1], interval or match.steps[0]
            build.stretch_of_means(match)
            continue
        stamp, epoch, step, of, loss, cost, wait, rate = match.groups()
        step_time, step_number = positive(cost), int(step)
        if step_time is None:
            continue
        if build.rows and step_number > last_step:
            steps = step_number - last_step
            interval = interval or steps
        elif build.rows and step_number == last_step:
            continue
        else:  # the first row: where the run began is seen by the interval of the next ones
            steps = None
        last_step, last_of = step_number, int(of)
        waited = number(wait)
        build.row(
            line,
            step_number,
            int(epoch),
            steps=steps,
            seconds=None if steps is None else step_time * steps,
            wait_s=None if steps is None or waited is None else waited * steps,
            rate=positive(rate),
            step_time_s=step_time,
            end=stamp,
            loss=loss,
        )
    _finish_precision(build, arguments)
    backbone = build.facts.pop("backbone", None)
    if backbone and "model" in build.facts:
        build.facts["model"] = f"{build.facts['model']} {backbone}"
    if "batch_size" in arguments:  # it overrides the file's
        build.facts.pop("batch_per_device", None)
        build.count("batch_per_device", *arguments["batch_size"])
    launch.finish()
    build.facts.update(rate_scope="device", cumulative=False)
    build.truncated = last_step + (interval or last_step) <= last_of
    return build


def _finish_precision(build: Builder, arguments: dict[str, tuple[str, int]]) -> None:
    if "precision" not in arguments:
        return
    value, line = arguments["precision"]
    level = arguments.get("amp_level", ("O1", line))[0].lower()
    build.fact("precision", "fp32" if value == "fp32" else f"amp_{level}", line)
