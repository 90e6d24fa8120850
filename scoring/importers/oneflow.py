"""OneFlow-Benchmark logs, as `Classification/cnns/job_function_util.py` and `ofrecord_util.py`'s Metric print them.

train: epoch 0, iter 20, loss: .., top_1: .., top_k: .., samples/s: 3988.891 [1597933942.98]
The rate is that of all devices, over the window; the Unix time stamp is optional.
"""

from __future__ import annotations

import re

from scoring.importers.table import Around, At, Table, counted
from scoring.importers.text import RowPattern, field, integer

HEAD = re.compile(r"train: epoch (\d{1,9}), iter (\d{1,9}),")
# A rate has three digits behind the point: with fewer it was cut.
_RATE = re.compile(r" samples/s: (\d+\.\d{3}(?![\d.eE])|\d\.\d+[eE][-+]\d+|nan|inf|-\d+[\d.]*)")
ROW = RowPattern(HEAD, (_RATE,), (field(" loss: "), re.compile(r" samples/s: \S+\s+\[?(\d{9,}\.\d*)\]?")))
_IS = r"\b['\"]?\s*[=:]\s*['\"]?"


class _Around(Around):
    """The arguments as the script prints them: `batch_size_per_device = 128`."""

    facts = re.compile(
        rf"\bbatch_size_per_device{_IS}(?P<batch>\w+)|\b(?:gpu|device)_num_per_node{_IS}(?P<gpus>\w+)"
        rf"|\bnum_nodes{_IS}(?P<nodes>\w+)|\bmodel{_IS}(?P<model>\w+)|\buse_fp16{_IS}(?P<half>\w+)"
    )
    evaluation = re.compile(r"validation: epoch (?P<epoch>\d{1,9}),.*? top_1: (?P<value>[\d.]+)")
    quality = "top_1"

    def finish(self) -> None:
        """Hand over to the draft."""
        self.count("batch_per_device", "batch")
        self.count("nodes", "nodes")
        gpus, nodes = integer(self.text("gpus")), self.draft.said("nodes")
        if gpus and isinstance(nodes, int):
            self.fact("devices", "gpus", nodes * gpus)
        self.fact("model", "model")
        self.fact("precision", "half", "amp" if self.text("half") in ("True", "1") else "fp32")


def _steps(around: Around, at: At) -> int | None:
    """The last row of an epoch may hold more steps than the others, and the next one starts anew, or at 0."""
    last = around.last
    if last is None:
        return None
    if last.epoch == at.epoch and at.step > last.step:
        return at.step - last.step
    return at.step or around.usual_steps


TABLE = Table(
    marker="train: epoch ",
    own="epoch ",
    row=ROW,
    columns="epoch step rate loss stamp",
    needs="rate",  # newer scripts print -1: no rate
    spent=counted(_steps),
    others=("validation: ",),
    around=_Around,
    always={"framework": "OneFlow", "rate_scope": "global"},
)
