"""TensorFlow model garden logs: Keras's `TimeHistory`, as `official/utils/misc/keras_utils.py` prints it.

I0826 16:01:52.940788 140244211521280 keras_utils.py:133] TimeHistory: 44.32 seconds, 577.67 examples/second
between steps 100 and 200
The rate is that of all devices. The configuration is printed twice, with the command line's options the second time;
the last line has the Unix time of each row.
"""

from __future__ import annotations

import re

from scoring.importers.table import Around, At, Columns, Spent, Table
from scoring.importers.text import NUMBER, Fact, RowPattern, field, first_group, integer, moment_s, positive, whole

ROW = RowPattern(
    re.compile(rf"TimeHistory: {NUMBER} seconds,"),
    (
        field(" ", " examples/second"),
        re.compile(r" between steps (\d{1,9})\b"),
        re.compile(r" steps \d{1,9} and (\d{1,9})\b"),
    ),
)
_STAMP = re.compile(r"BatchTimestamp<batch_index: (\d{1,9}), timestamp: (\d+\.\d+)>")


class _Around(Around):
    facts = re.compile(
        r"'num_gpus': (?P<gpus>\d{1,9})\b|'worker_hosts': (?P<hosts>None|'[^']*')|'(?P<part>train|validation)_dataset'"
        r"|'batch_size': (?P<batch>\d{1,9})\b|'dtype': '(?P<dtype>\w+)'"
        r"|'use_per_replica_batch_size': (?P<each>True|False)"
    )
    evaluation = re.compile(r"'(?P<name>accuracy_top_1)': (?P<value>[\d.]+)")
    summary = re.compile(r"'avg_exp_per_second': ([\d.]+)")
    has_closing_line = True
    _part = ""

    def before(self, line: int, text: str) -> None:
        """The last word before the first row; of the batch and what stands around it, of the part that trains."""
        for name, value in (fact for match in self.facts.finditer(text) for fact in first_group(match)):
            self._part = value if name == "part" else self._part
            if self._part == "train" or name in ("gpus", "hosts"):
                self.said[name] = Fact(value, line)

    def after(self, line: int, text: str) -> None:
        """The closing line, with the time of each row."""
        if "step_timestamp_log" not in text:
            return
        super().after(line, text)
        self.draft.truncated = False
        stamps = {int(step): moment_s(stamp) for step, stamp in _STAMP.findall(text)}
        for window in self.draft.windows:
            window.end_s = stamps.get(window.step or 0)

    def finish(self) -> None:
        """Hand over to the draft."""
        gpus, hosts = integer(self.text("gpus")), (self.text("hosts") or "None").count(",") + 1
        if gpus:
            self.fact("nodes", "gpus", hosts)
            self.fact("devices", "gpus", gpus * hosts)
        if "each" in self.said:
            self.count("batch_per_device" if self.text("each") == "True" else "batch_of_all", "batch")
        self.fact("precision", "dtype", "fp32" if self.text("dtype") == "float32" else "amp")


def _spent(around: Around, at: At, row: Columns) -> Spent:
    """Each row says between which steps it lies, and in what time."""
    return max(0, at.step - whole(row["from"])), positive(row["window_s"]), None


TABLE = Table(
    marker="keras_utils.py",
    own="keras_utils.py",
    row=ROW,
    columns="window_s rate from step",
    needs="window_s",
    spent=_spent,
    others=("step_timestamp_log",),
    around=_Around,
    always={"framework": "TensorFlow", "rate_scope": "global"},
)
