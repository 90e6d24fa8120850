"""TensorFlow model garden logs: Keras's `TimeHistory`, as `official/utils/misc/keras_utils.py` prints it.

I0826 16:01:52.940788 140244211521280 keras_utils.py:133] TimeHistory: 44.32 seconds, 577.67 examples/second
between steps 100 and 200
The rate is that of all devices. The configuration is printed twice, with the command line's options the second time;
the last line has the Unix time of each row.
"""

from __future__ import annotations

import re

from scoring.importers.text import (
    NUMBER,
    Draft,
    Fact,
    Lines,
    RowPattern,
    field,
    first_group,
    integer,
    moment_s,
    positive,
    rows,
    whole,
)
from scoring.record import Window

ROW = RowPattern(
    re.compile(rf"TimeHistory: {NUMBER} seconds,"),
    (
        field(" ", " examples/second"),
        re.compile(r" between steps (\d{1,9})\b"),
        re.compile(r" steps \d{1,9} and (\d{1,9})\b"),
    ),
)
_FACT = re.compile(
    r"'num_gpus': (?P<gpus>\d{1,9})\b|'worker_hosts': (?P<hosts>None|'[^']*')|'(?P<part>train|validation)_dataset'"
    r"|'batch_size': (?P<batch>\d{1,9})\b|'dtype': '(?P<dtype>\w+)'|'use_per_replica_batch_size': (?P<each>True|False)"
)
_STAMP = re.compile(r"BatchTimestamp<batch_index: (\d{1,9}), timestamp: (\d+\.\d+)>")
_SUMMARY = re.compile(r"'avg_exp_per_second': ([\d.]+)")
_TOP1 = re.compile(r"'accuracy_top_1': ([\d.]+)")


def read(lines: Lines) -> Draft:
    """A log of the model garden's image classification."""
    draft = Draft()
    draft.truncated = True  # until the closing line is met
    said: dict[str, Fact] = {}
    part = ""
    for line, text, values in rows(lines, "keras_utils.py", "keras_utils.py", ROW, ("step_timestamp_log",)):
        if values is None:
            if not draft.has_rows:  # the last word before the first row
                for name, value in (fact for match in _FACT.finditer(text) for fact in first_group(match)):
                    part = value if name == "part" else part
                    if part == "train" or name in ("gpus", "hosts"):
                        said[name] = Fact(value, line)
            elif "step_timestamp_log" in text:
                draft.truncated = False
                draft.summary(line, _SUMMARY.search(text))
                if top1 := _TOP1.search(text):
                    draft.evaluated(line, "accuracy_top_1", top1[1])
                stamps = {int(step): moment_s(stamp) for step, stamp in _STAMP.findall(text)}
                for window in draft.windows:
                    window.end_s = stamps.get(window.step or 0)
            continue
        seconds, rate, first, step_text = values
        step, time_s = whole(step_text), positive(seconds)
        steps = step - whole(first)
        if steps > 0 and time_s is not None:
            draft.row(Window(line=line, step=step, steps=steps, seconds=time_s, printed_rate=positive(rate)))
    _finish(draft, said)
    return draft


def _finish(draft: Draft, said: dict[str, Fact]) -> None:
    text = {name: str(fact.value) for name, fact in said.items()}
    gpus, batch = integer(text.get("gpus")), integer(text.get("batch"))
    hosts = text.get("hosts", "None").count(",") + 1
    if gpus:
        draft.fact("nodes", hosts, said["gpus"].line)
        draft.fact("devices", gpus * hosts, said["gpus"].line)
    if batch and "each" in text:
        draft.fact("batch_per_device" if text["each"] == "True" else "batch_of_all", batch, said["batch"].line)
    if "dtype" in text:
        draft.fact("precision", "fp32" if text["dtype"] == "float32" else "amp", said["dtype"].line)
    draft.fact("framework", "TensorFlow")
    draft.fact("rate_scope", "global")
