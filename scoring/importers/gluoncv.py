"""GluonCV logs, as `scripts/classification/imagenet/train_imagenet.py` prints them.

[INFO:root:]Epoch[0] Batch [49]\tSpeed: 999.246238 samples/sec\taccuracy=0.000957\tlr=0.003133
The rate is that of all devices, over the window; batches count from 0 in each epoch. An epoch closes with
[Epoch 0] speed: 1524 samples/sec\ttime cost: 852.235297 (the speed without its evaluation, the time with it), and
[Epoch 0] validation: err-top1=0.904516 err-top5=..
Programs made of this one close an epoch with `Speed: 1524 samples/sec\tTime cost=..` and `Validation-accuracy=..`.
MXNet's own `Module.fit` prints rows without `lr`, whose batches count otherwise: those are not rows of this format.
"""

import re

from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.text import NUMBER, RowPattern, field, integer
from scoring.record import InputError


class GluonCV(EpochFormatReader):
    """Rows, and the command's arguments: `Namespace(batch_norm=False, batch_size=128, ..)`."""

    row_marker = "Epoch["
    row_clue = "Speed: "
    whole_line_marker = "poch"
    # `lr` shows that a row is of this format. Its value is not used, so its number may be cut off at the end of a log.
    # Of a log that was copied from a terminal, spaces stand for a tab.
    row_pattern = RowPattern(
        re.compile(r"\bEpoch\[(\d{1,9})\] Batch \[(\d{1,9})\]"),
        (field("Speed: ", r" samples/sec\s"), re.compile(r"(?<=\S)(?:\t| +)lr=(\S)")),
    )
    columns = "epoch step rate start_of_lr"
    required_column = "rate"
    first_step = 0
    rate_scope = "global"
    fact_pattern = re.compile(
        r"\bbatch_size=(?P<batch_per_device>\d{1,9})\b|\bnum_gpus=(?P<devices>\d{1,9})\b|\bgpus='(?P<gpus>[\d,]+)'"
        r"|\bkvstore='(?P<kvstore>\w+)'"
        r"|\bnum_epochs=(?P<epochs_wanted>\d{1,9})\b|\bmodel='(?P<model>[^']+)'|\bdtype='(?P<precision>\w+)'"
    )
    framework = "MXNet"
    precision_names = (("float32", "fp32"), ("float16", "fp16"))
    evaluation_pattern = re.compile(
        r"\[Epoch (?P<epoch>\d{1,9})\] [Vv]alidation(?:: |-)(?P<name>err-top1|top1|accuracy)=(?P<value>[\d.]+)"
    )
    epoch_end_pattern = re.compile(
        rf"\[Epoch (?P<epoch>\d{{1,9}})\] [Ss]peed: (?P<rate>{NUMBER}) samples/sec\s+"
        rf"[Tt]ime cost(?:: |=)(?P<seconds>{NUMBER})"
    )

    def finish_facts(self) -> None:
        """Set the number of devices and whether the log is truncated, and convert what it states to numbers and names.

        Raises:
            InputError: The program's arguments name a key-value store for several workers, of which each prints the
                rate of its own devices.
        """
        kvstore = self.value("kvstore")
        if kvstore is not None and kvstore.startswith("dist"):
            raise InputError(
                f"line {self.line_of('kvstore')}: kvstore={kvstore!r}: each worker prints a rate of its own, and the "
                "log does not say how many there are; score logs with rates of all devices"
            )
        gpus = self.value("gpus")  # their numbers, such as "0,1,2,3"
        if gpus is not None:
            self.set_if_unset("devices", len(gpus.split(",")), self.line_of("gpus"))
        super().finish_facts()
        self.truncated = self._is_truncated()

    def _is_truncated(self) -> bool | None:
        """Return whether fewer epochs ended than the program's arguments ask for; None if the log does not show it.

        It does not show it without a number of epochs in the arguments. Nor does it if there are rows of several
        epochs and no line on the end of one, because the program prints such ends in other words then.
        """
        epochs_wanted = integer(self.value("epochs_wanted"))
        epochs_of_rows = {window.epoch for window in self.windows}
        prints_other_ends = not self.epochs and len(epochs_of_rows) > 1
        if epochs_wanted is None or prints_other_ends:
            return None
        epochs_ended = 0
        for ended in self.epochs:
            number = ended.epoch or 0  # counts from 0
            epochs_ended = max(epochs_ended, number + 1)
        return epochs_ended < epochs_wanted
