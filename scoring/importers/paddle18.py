"""Paddle 1.8 `models/PaddleCV/image_classification` logs (DLPerf's), as `utils/utility.py` prints them.

2020-08-25 11:26:21,123-INFO: [Pass 0, train batch 19] \tloss .., acc1 .., acc5 .., lr .., elapse 0.35 sec
Batches count from 0 in each pass; `elapse` is the time of that one batch; the time stamp may be absent. The
printed `batch_size` is that of one process, whatever its devices: batch and devices come from options.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.table import EpochTable
from scoring.importers.text import RowPattern, field


class Paddle18(Launch, EpochTable):
    """Rows of single batches."""

    marker = "train batch "
    tool = "[Pass "
    row = RowPattern(
        re.compile(
            r"(?:(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?)[^\[]{0,60})?"
            r"\[Pass (\d{1,9}), train batch (\d{1,9})\]"
        ),
        (field(" elapse ", " sec"),),
        (field(r"\sloss "),),
    )
    columns = "stamp epoch step time loss"
    first_step = 0
    facts = re.compile(r"^\W*(?:use_)?fp16: (?P<precision>True|False)|^model: (?P<model>\w+)\s*$")
    precisions = (("True", "amp_o1"), ("False", "fp32"))
    evaluation = re.compile(r"\[End pass (?P<epoch>\d{1,9}), .*?test acc1 (?P<value>[\d.]+)")
    quality = "acc1"
