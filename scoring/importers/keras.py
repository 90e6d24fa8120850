"""TensorFlow model garden logs: Keras's `TimeHistory`, as `official/utils/misc/keras_utils.py` prints it.

I0826 16:01:52.940788 140244211521280 keras_utils.py:133] TimeHistory: 44.32 seconds, 577.67 examples/second
between steps 100 and 200
The rate is that of all devices. The configuration is printed twice, with the command line's options the second time;
the last line has the Unix time of each row. Language models print the same rows.
"""

import re

from scoring.importers.evidence import Fact
from scoring.importers.table import Columns, FormatReader, RowPosition, RowTime
from scoring.importers.text import NUMBER, RowPattern, field, integer, moment_s, positive

_STAMP = re.compile(r"BatchTimestamp<batch_index: (\d{1,9}), timestamp: (\d+\.\d+)>")


class Keras(FormatReader):
    """Rows that state between which steps they lie, and the seconds of these steps."""

    row_marker = row_clue = tool_marker = "keras_utils.py"
    row_pattern = RowPattern(
        re.compile(rf"TimeHistory: {NUMBER} seconds,"),
        (
            field(" ", " examples/second"),
            re.compile(r" between steps (\d{1,9})\b"),
            re.compile(r" steps \d{1,9} and (\d{1,9})\b"),
        ),
    )
    columns = "window_s rate from step"
    required_column = "window_s"
    rate_scope = "global"
    fact_pattern = re.compile(
        r"'num_gpus': (?P<gpus>\d{1,9})\b|'worker_hosts': (?P<hosts>None|'[^']*')|'(?P<part>train|validation)_dataset'"
        r"|'batch_size': (?P<batch>\d{1,9})\b|'dtype': '(?P<precision>\w+)'"
        r"|'use_per_replica_batch_size': (?P<is_batch_per_device>True|False)"
    )
    framework = "TensorFlow"
    precision_names = (
        ("float32", "fp32"),
        ("float16", "amp"),
        ("bfloat16", "amp"),
    )  # set_mixed_precision_policy takes this dtype
    closing_words = ("step_timestamp_log",)
    evaluation_pattern = re.compile(r"'(?P<name>accuracy_top_1)': (?P<value>[\d.]+)")
    summary_pattern = re.compile(r"'avg_exp_per_second': ([\d.]+)")
    _part = ""  # the data set whose section is read: "train" or "validation"

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Set the fact `name`, replacing an earlier value: the configuration is printed again with the options applied.

        Facts of a data set count only in the section of the training data set. `part` says that a section begins.
        """
        if name == "part":
            self._part = str(value)
        if self._part == "train" or name in ("gpus", "hosts"):
            self.facts_by_name[name] = Fact(value, line)

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row. The closing line states the time of each row, which the windows then get."""
        super().read_after_first_row(line, text)
        stamps = {int(step): moment_s(stamp) for step, stamp in _STAMP.findall(text)}
        if stamps:
            for window in self.windows:
                window.end_s = stamps.get(window.step or 0)

    def finish_facts(self) -> None:
        """Set devices, nodes and batch, and convert the facts.

        - Nodes = number of hosts, and devices = GPUs of a node x nodes. Both are set only if the log states the GPUs of
          a node and the hosts.
        - The stated batch is that of one device if `use_per_replica_batch_size` is True, else that of all devices. It
          is not set if the log does not state that option.
        """
        gpus = integer(self.value("gpus"))
        hosts = self.value("hosts")
        if gpus and hosts is not None:
            nodes = hosts.count(",") + 1  # a run without a list of hosts prints the text `None`: it is on one host
            # The second argument is the stated fact whose line is cited. The third is the value; without it, the
            # value of the stated fact is taken.
            self.set_if_unset_from("nodes", "gpus", nodes)
            self.set_if_unset_from("devices", "gpus", gpus * nodes)
        if "is_batch_per_device" in self.facts_by_name:
            is_per_device = self.value("is_batch_per_device") == "True"
            self.set_if_unset_from("batch_per_device" if is_per_device else "batch_of_all", "batch")
        super().finish_facts()

    def time_of_row(self, position: RowPosition, row: Columns) -> RowTime:
        """Return the number of steps between the two that a row names, and the seconds that it prints."""
        steps = position.step - int(row["from"] or 0)
        return RowTime(max(0, steps), positive(row["window_s"]), None)
