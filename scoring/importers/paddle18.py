"""Paddle 1.8 `models/PaddleCV/image_classification` logs (DLPerf's), as `utils/utility.py` prints them.

2020-08-25 11:26:21,123-INFO: [Pass 0, train batch 19] \tloss .., acc1 .., acc5 .., lr .., elapse 0.35 sec
Batches count from 0 in each pass; `elapse` is the time of that one batch; the time stamp may be absent. The
printed `batch_size` is that of one process, whatever its devices: batch and devices come from options.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.table import Table, counted, through_epoch
from scoring.importers.text import RowPattern, field

HEAD = re.compile(
    r"(?:(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?)[^\[]{0,60})?"
    r"\[Pass (\d{1,9}), train batch (\d{1,9})\]"
)
ROW = RowPattern(HEAD, (field(" elapse ", " sec"),), (field(r"\sloss "),))


class _Around(Launch):
    facts = re.compile(r"^\W*(?:use_)?fp16: (?P<fp16>True|False)|^model: (?P<model>\w+)\s*$")
    evaluation = re.compile(r"\[End pass (?P<epoch>\d{1,9}), .*?test acc1 (?P<value>[\d.]+)")
    quality = "acc1"

    def finish(self) -> None:
        """Hand over to the draft."""
        self.fact("precision", "fp16", "amp_o1" if self.text("fp16") == "True" else "fp32")
        self.fact("model", "model")
        super().finish()


TABLE = Table(
    marker="train batch ",
    own="[Pass ",
    row=ROW,
    columns="stamp epoch step time loss",
    needs="step",
    spent=counted(through_epoch),
    others=("[End pass",),
    around=_Around,
    first_step=0,
    always={"rate_scope": "device"},
)
