"""PaddleSeg logs, as `paddleseg/core/train.py` prints them.

Y-M-D h:m:s [INFO]\t[TRAIN] epoch: 1, iter: 15/400, loss: .., lr: .., batch_cost: .., reader_cost: ..,
ips: .. samples/sec | ETA ..   (older releases: `epoch=1, iter=15/400, .., ips=..`)
The costs are those of the window; `ips` is that of rank 0 alone; `iter` counts through the whole run.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import (
    Counter,
    Draft,
    Fact,
    Lines,
    RowBatch,
    RowPattern,
    field,
    moment_s,
    number,
    of_steps,
    positive,
    rows,
    whole,
)
from scoring.record import Window

HEAD = re.compile(
    r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \[INFO\]\s*)?\[TRAIN\] epoch[:=] ?(\d{1,9}), iter[:=] ?(\d{1,9})/(\d{1,9})"
)
_RATE = field(" ips[:=] ?", r" \w+/s")
ROW = RowPattern(
    HEAD,
    (field(" batch_cost[:=] ?", r"[,\s]"), re.compile(r"( ips[:=] ?\S+ \w+/s| \|)")),  # or it was cut
    (field(" reader_cost[:=] ?", r"[,\s]"), field(" loss[:=] ?"), _RATE),
)
_BATCH = re.compile(r"(?<![\w.])batch_size: (\d{1,9})\s*$")
_ARGUMENT = re.compile(r"--(batch_size|precision|amp_level)[ =](\w+)")
_EVAL = re.compile(r"\[EVAL\].*?\bmIoU[:=] ?([\d.]+)")


class _Config:
    """What the log prints before its first row: the launcher's lines, the configuration and the command line."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._launch = Launch(draft)
        self._arguments: dict[str, Fact] = {}
        self._in_model = False
        self._backbone = ""

    def read(self, line: int, text: str) -> None:
        """Take what the line says."""
        self._launch.read(line, text)
        if found := _BATCH.search(text):
            self._draft.count("batch_per_device", found[1], line)
        for found in _ARGUMENT.finditer(text) if "--" in text else ():
            self._arguments.setdefault(found[1], Fact(found[2], line))
        if text.startswith("model:"):
            self._in_model = True
        elif self._in_model and text[:1] not in (" ", ""):
            self._in_model = False
        elif self._in_model and text.startswith("  type: "):
            self._draft.fact("model", text.split(":", 1)[1].strip(), line)
        elif self._in_model and text.startswith("    type: "):
            self._backbone = self._backbone or text.split(":", 1)[1].strip()

    def finish(self) -> None:
        """Hand over to the draft; the command line overrides the file."""
        draft, arguments = self._draft, self._arguments
        if "precision" in arguments:
            value, line = arguments["precision"]
            level = str(arguments.get("amp_level", Fact("O1", line)).value).lower()
            draft.fact("precision", "fp32" if value == "fp32" else f"amp_{level}", line)
        if self._backbone and "model" in draft.facts:
            model = draft.facts["model"]
            draft.facts["model"] = Fact(f"{model.value} {self._backbone}", model.line)
        if "batch_size" in arguments:
            draft.facts.pop("batch_per_device", None)
            draft.count("batch_per_device", str(arguments["batch_size"].value), arguments["batch_size"].line)
        self._launch.finish()


def read(lines: Lines) -> Draft:
    """A log of PaddleSeg."""
    draft, counter, batch = Draft(), Counter(), RowBatch()
    config = _Config(draft)
    for line, text, values in rows(lines, "[TRAIN] epoch", "[INFO]", ROW, ("[EVAL]",)):
        if values is None:
            if not draft.has_rows:
                config.read(line, text)
            elif found := _EVAL.search(text):
                draft.evaluated(line, "mIoU", found[1], step=counter.last)
            continue
        stamp, epoch, step, of, cost, _, wait, loss, rate = values
        step_time = positive(cost)
        if step_time is None or counter.repeats(whole(step)):
            continue
        batch.read(line, rate, cost, step_time)
        steps = counter.take(whole(step), whole(of))
        seconds, waited = of_steps(steps, step_time, number(wait))
        draft.row(
            Window(
                line=line,
                step=whole(step),
                epoch=whole(epoch),
                steps=steps,
                seconds=seconds,
                data_wait_s=waited,
                printed_rate=positive(rate),
                printed_step_time_s=step_time,
                end_s=moment_s(stamp),
                loss=number(loss),
            )
        )
    config.finish()
    batch.finish(draft)
    draft.fact("rate_scope", "device")
    draft.truncated = counter.stops_short
    return draft
