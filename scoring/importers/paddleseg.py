"""PaddleSeg logs, as `paddleseg/core/train.py` prints them.

Y-M-D h:m:s [INFO]\t[TRAIN] epoch: 1, iter: 15/400, loss: .., lr: .., batch_cost: .., reader_cost: ..,
ips: .. samples/sec | ETA ..   (older releases: `epoch=1, iter=15/400, .., ips=..`)
The costs are those of the window; `ips` is that of rank 0 alone; `iter` counts through the whole run.
"""

from __future__ import annotations

import re

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import RowPattern, field

_HEAD = re.compile(
    r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \[INFO\]\s*)?\[TRAIN\] epoch[:=] ?(\d{1,9}), iter[:=] ?(\d{1,9})/(\d{1,9})"
)
_RATE = field(" ips[:=] ?", r" \w+/s")


class PaddleSeg(Launch):
    """Rows, the launcher's lines, the configuration, and the command line, which overrides it."""

    marker = "[TRAIN] epoch"
    tool = "[INFO]"
    row = RowPattern(
        _HEAD,
        (field(" batch_cost[:=] ?", r"[,\s]"), re.compile(r"( ips[:=] ?\S+ \w+/s| \|)")),  # or it was cut
        (field(" reader_cost[:=] ?", r"[,\s]"), field(" loss[:=] ?"), _RATE, re.compile(r" ips[:=] ?\S+ (\w+)/s")),
    )
    columns = "stamp epoch step of time cut wait loss rate unit"
    needs = "time"
    mean_time = True
    rows_tell_batch = True
    segmentation = True
    facts = re.compile(
        r"(?<![\w.])batch_size: (?P<in_file>\d{1,9})\s*$|--batch_size[ =](?P<batch_per_device>\d{1,9})\b"
        r"|--precision[ =](?P<precision>\w+)|--amp_level[ =](?P<level>\w+)"
    )
    evaluation = re.compile(r"\[EVAL\].*?\bmIoU[:=] ?(?P<value>[\d.]+)")
    quality = "mIoU"
    _section = ""

    def before(self, line: int, text: str) -> None:
        """Take what the line says; `type` is the model's in its section, and its backbone's one step deeper."""
        super().before(line, text)
        if text[:1] not in (" ", ""):
            self._section = text
        elif self._section.startswith("model:") and (found := re.match(r"(  |    )type: (.*)", text)):
            self.state("network" if found[1] == "  " else "backbone", found[2].strip(), line)

    def finish(self) -> None:
        self.precisions = (("fp32", "fp32"), ("", f"amp_{(self.value('level') or 'O1').lower()}"))
        self.derive("model", "network", " ".join(filter(None, (self.value("network"), self.value("backbone")))))
        self.derive("batch_per_device", "in_file")
        super().finish()
