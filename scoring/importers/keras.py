"""TensorFlow model garden logs: Keras's `TimeHistory`, as `official/utils/misc/keras_utils.py` prints it.

I0826 16:01:52.940788 140244211521280 keras_utils.py:133] TimeHistory: 44.32 seconds, 577.67 examples/second
between steps 100 and 200
The rate is that of all devices. The configuration is printed twice, with the command line's options the second time;
the last line has the Unix time of each row.
"""

import re

from scoring.importers.table import At, Columns, Fact, RowTime, Table
from scoring.importers.text import NUMBER, RowPattern, field, integer, moment_s, positive

_STAMP = re.compile(r"BatchTimestamp<batch_index: (\d{1,9}), timestamp: (\d+\.\d+)>")


class Keras(Table):
    """Rows that say between which steps they lie, and in what time."""

    marker = clue = tool = "keras_utils.py"
    row = RowPattern(
        re.compile(rf"TimeHistory: {NUMBER} seconds,"),
        (
            field(" ", " examples/second"),
            re.compile(r" between steps (\d{1,9})\b"),
            re.compile(r" steps \d{1,9} and (\d{1,9})\b"),
        ),
    )
    columns = "window_s rate from step"
    needs = "window_s"
    rate_scope = "global"
    facts = re.compile(
        r"'num_gpus': (?P<gpus>\d{1,9})\b|'worker_hosts': (?P<hosts>None|'[^']*')|'(?P<part>train|validation)_dataset'"
        r"|'batch_size': (?P<batch>\d{1,9})\b|'dtype': '(?P<precision>\w+)'"
        r"|'use_per_replica_batch_size': (?P<each>True|False)"
    )
    framework = "TensorFlow"
    precisions = (("float32", "fp32"), ("", "amp"))
    closing = ("step_timestamp_log",)
    evaluation = re.compile(r"'(?P<name>accuracy_top_1)': (?P<value>[\d.]+)")
    summary = re.compile(r"'avg_exp_per_second': ([\d.]+)")
    _part = ""

    def state(self, name: str, value: object, line: int) -> None:
        """The last word counts; of the batch and what stands around it, that of the part that trains."""
        self._part = str(value) if name == "part" else self._part
        if self._part == "train" or name in ("gpus", "hosts"):
            self.said[name] = Fact(value, line)

    def after(self, line: int, text: str) -> None:
        """The closing line, with the time of each row."""
        super().after(line, text)
        if stamps := {int(step): moment_s(stamp) for step, stamp in _STAMP.findall(text)}:
            for window in self.windows:
                window.end_s = stamps.get(window.step or 0)

    def finish(self) -> None:
        """The devices are those of all hosts; the batch is that of one device or of all."""
        gpus, hosts = integer(self.value("gpus")), (self.value("hosts") or "None").count(",") + 1
        if gpus:
            self.derive("nodes", "gpus", hosts)
            self.derive("devices", "gpus", gpus * hosts)
        if "each" in self.said:
            self.derive("batch_per_device" if self.value("each") == "True" else "batch_of_all", "batch")
        super().finish()

    def time(self, at: At, row: Columns) -> RowTime:
        return max(0, at.step - int(row["from"] or 0)), positive(row["window_s"]), None
