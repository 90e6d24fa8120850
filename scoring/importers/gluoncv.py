"""GluonCV logs, as `scripts/classification/imagenet/train_imagenet.py` prints them.

[INFO:root:]Epoch[0] Batch [49]\tSpeed: 999.246238 samples/sec\taccuracy=0.000957\tlr=0.003133
The rate is that of all devices, over the window; batches count from 0 in each epoch. An epoch closes with
[Epoch 0] speed: 1524 samples/sec\ttime cost: 852.235297 (the speed without its evaluation, the time with it), and
[Epoch 0] validation: err-top1=0.904516 err-top5=..
MXNet's own `Module.fit` prints rows without `lr`, whose batches count otherwise: those are not rows of this format.
"""

import re

from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.text import NUMBER, RowPattern, field, integer


class GluonCV(EpochFormatReader):
    """Rows, and the command's arguments: `Namespace(batch_norm=False, batch_size=128, ..)`."""

    row_marker = "Epoch["
    row_clue = "\tSpeed: "
    whole_line_marker = "poch"
    # `lr` shows that a row is of this format. Its value is not used, so its number may be cut off at the end of a log.
    row_pattern = RowPattern(
        re.compile(r"\bEpoch\[(\d{1,9})\] Batch \[(\d{1,9})\]"),
        (field(r"\tSpeed: ", r" samples/sec\t"), re.compile(r"\tlr=(\S)")),
    )
    columns = "epoch step rate start_of_lr"
    required_column = "rate"
    first_step = 0
    rate_scope = "global"
    fact_pattern = re.compile(
        r"\bbatch_size=(?P<batch_per_device>\d{1,9})\b|\bnum_gpus=(?P<devices>\d{1,9})\b"
        r"|\bnum_epochs=(?P<epochs_wanted>\d{1,9})\b|\bmodel='(?P<model>[^']+)'|\bdtype='(?P<precision>\w+)'"
    )
    framework = "MXNet"
    precision_names = (("float32", "fp32"), ("float16", "fp16"))
    evaluation_pattern = re.compile(r"\[Epoch (?P<epoch>\d{1,9})\] validation: (?P<name>err-top1)=(?P<value>[\d.]+)")
    epoch_end_pattern = re.compile(
        rf"\[Epoch (?P<epoch>\d{{1,9}})\] speed: (?P<rate>{NUMBER}) samples/sec\ttime cost: (?P<seconds>{NUMBER})"
    )

    def finish_facts(self) -> None:
        """Set whether the log is truncated: it is if fewer epochs closed than the program's arguments ask for.

        If the arguments do not say how many epochs are wanted, `truncated` is None. What the log states is also
        converted from texts to numbers and names.
        """
        super().finish_facts()
        epochs_wanted = integer(self.value("epochs_wanted"))
        closed_epochs = 1 + max((epoch.epoch or 0 for epoch in self.epochs), default=-1)  # epochs count from 0
        self.truncated = None if epochs_wanted is None else closed_epochs < epochs_wanted
