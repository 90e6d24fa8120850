"""GluonCV logs, as `scripts/classification/imagenet/train_imagenet.py` prints them.

[INFO:root:]Epoch[0] Batch [49]\tSpeed: 999.246238 samples/sec\taccuracy=0.000957\tlr=0.003133
The rate is that of all devices, over the window; batches count from 0 in each epoch. An epoch closes with
[Epoch 0] speed: 1524 samples/sec\ttime cost: 852.235297, and [Epoch 0] validation: err-top1=0.904516 err-top5=..
"""

from __future__ import annotations

import re

from scoring.importers.table import Around, Table, counted, through_epoch
from scoring.importers.text import NUMBER, RowPattern, field, integer, positive
from scoring.record import Epoch

ROW = RowPattern(
    re.compile(r"\bEpoch\[(\d{1,9})\] Batch \[(\d{1,9})\]"),
    (field(r"\tSpeed: ", r" samples/sec\t"),),
)
_EPOCH = re.compile(rf"\[Epoch (\d{{1,9}})\] speed: {NUMBER} samples/sec\ttime cost: {NUMBER}")


class _Around(Around):
    """The command's arguments, `Namespace(batch_norm=False, batch_size=128, ..)`, and the ends of epochs."""

    facts = re.compile(
        r"\bbatch_size=(?P<batch>\d{1,9})\b|\bnum_gpus=(?P<gpus>\d{1,9})\b|\bnum_epochs=(?P<epochs>\d{1,9})\b"
        r"|\bmodel='(?P<model>[^']+)'|\bdtype='(?P<dtype>\w+)'"
    )
    evaluation = re.compile(r"\[Epoch (?P<epoch>\d{1,9})\] validation: (?P<name>err-top1)=(?P<value>[\d.]+)")

    def after(self, line: int, text: str) -> None:
        """The end of an epoch; the time excludes its evaluation."""
        super().after(line, text)
        if found := _EPOCH.search(text):
            rate, seconds = positive(found[2]), positive(found[3])
            self.draft.epochs.append(Epoch(line=line, epoch=int(found[1]), printed_rate=rate, seconds=seconds))

    def finish(self) -> None:
        """Hand over to the draft."""
        self.count("batch_per_device", "batch")
        self.count("devices", "gpus")
        self.fact("model", "model")
        self.fact("precision", "dtype", {"float32": "fp32", "float16": "fp16"}.get(self.text("dtype") or ""))
        epochs = integer(self.text("epochs"))
        done = max((epoch.epoch or 0 for epoch in self.draft.epochs), default=-1) + 1
        self.draft.truncated = done < epochs if epochs is not None else None


TABLE = Table(
    marker="Epoch[",
    own="poch",
    row=ROW,
    columns="epoch step rate",
    needs="rate",
    spent=counted(through_epoch),
    others=("[Epoch ",),
    around=_Around,
    first_step=0,
    always={"framework": "MXNet", "rate_scope": "global"},
)
