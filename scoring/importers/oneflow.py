"""OneFlow-Benchmark logs, as `Classification/cnns/job_function_util.py` and `ofrecord_util.py`'s Metric print them.

train: epoch 0, iter 20, loss: .., top_1: .., top_k: .., samples/s: 3988.891 [1597933942.98]
The rate is that of all devices, over the window; the Unix time stamp is optional.
"""

import re

from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.table import Columns, RowPosition
from scoring.importers.text import RowPattern, field, integer

# A rate has three digits behind the point: with fewer it was cut.
_RATE = re.compile(
    r" samples/s: ((?:[1-9]\d{0,2}(?:,\d{3})+|\d+)\.\d{3}(?![\d.eE])|\d\.\d+[eE][-+]\d+|nan|inf|-\d+[\d.]*)"
)
_IS = r"\b['\"]?\s*[=:]\s*['\"]?"


class OneFlow(EpochFormatReader):
    """Rows, and the script's arguments as it prints them: `batch_size_per_device = 128`."""

    row_marker = "train: epoch "
    row_clue = "samples/s: "
    whole_line_marker = "epoch "
    row_pattern = RowPattern(
        re.compile(r"train: epoch (\d{1,9}), iter (\d{1,9}),"),
        (_RATE,),
        (field(" loss: "), re.compile(r" samples/s: \S+\s+\[?(\d{9,}\.\d*)\]?")),
    )
    columns = "epoch step rate loss stamp"
    required_column = "rate"  # newer scripts print -1, which is not a rate
    rate_scope = "global"
    fact_pattern = re.compile(
        rf"\bbatch_size_per_device{_IS}(?P<batch_per_device>\w+)|\b(?:gpu|device)_num_per_node{_IS}(?P<gpus>\w+)"
        rf"|\bnum_nodes{_IS}(?P<nodes>\w+)|\bmodel{_IS}(?P<model>\w+)|\buse_fp16{_IS}(?P<precision>\w+)"
    )
    framework = "OneFlow"
    precision_names = (("True", "amp"), ("1", "amp"), ("False", "fp32"), ("0", "fp32"))
    evaluation_pattern = re.compile(r"validation: epoch (?P<epoch>\d{1,9}),.*? top_1: (?P<value>[\d.]+)")
    quality_name = "top_1"
    last_fact_counts = True

    def finish_facts(self) -> None:
        """Set devices = nodes x devices of a node, if both are stated, and convert texts to numbers and names."""
        super().finish_facts()  # makes `nodes` a number
        gpus_per_node = integer(self.value("gpus"))
        nodes = self.value("nodes")
        if gpus_per_node and nodes:
            self.set_if_unset("devices", nodes * gpus_per_node, self.line_of("gpus"))

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Keep `first_step`, even if the first row is at step 0: such a row does not cover a single step."""

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return the number of training steps that a printed row covers, or None if it is not known.

        With rows every 20 steps, those of a log give

            epoch 0, step 20    None: rows before the first row may be missing
            epoch 0, step 40    20: steps 21 to 40
            epoch 1, step 0     20, as an earlier row: the last steps of epoch 0, of which no line says how many

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.
        """
        if last is None:
            return None
        if position.step == 0:  # steps count from 1: the row covers none of its own epoch
            return self.usual_steps_per_row  # of the first row that shows its steps; None: no row has shown them
        return super().steps_of_row(last, position)  # since the row before, or since the start of the epoch
