"""mmsegmentation logs, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
`time` is the mean step time of the window, in mmengine of its last 10 steps; no rate is printed. mmengine prints the
rows of language models in the same form.
"""

import re

from scoring.importers.table import Table
from scoring.importers.text import RowPattern, field


class MMSeg(Table):
    """Rows of mmcv's and mmengine's text, and what they print of the machine and the configuration before.

    A configuration without a section for half precision does not state FP32: there are many names for such a section.
    """

    marker = "Iter"
    clue = "data_time: "
    tool = " - INFO - "
    row = RowPattern(
        re.compile(
            r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:,\d+)?) - (?:mmseg|mmengine) - INFO - )?"
            r"Iter(?:\(train\))? ?\[ *(\d{1,9})/(\d{1,9})\]"
        ),
        (field(" time: ", r"[\s,]"),),
        (field(" data_time: ", r"(?:[\s,]|$)"), re.compile(r" memory: (\d{1,9})"), field(" loss: ")),
    )
    columns = "stamp step of time wait memory loss"
    needs = "time"
    mean_time = True
    segmentation = True
    facts = re.compile(
        r"\bsamples_per_gpu ?= ?(?P<batch_per_device>\d{1,9})"
        r"|(?P<loader>\w+)_dataloader ?= ?dict"
        r"|\bbatch_size ?= ?(?P<loaded>\d{1,9})"
        r"|gpu_ids ?= ?range\((?P<range>\d{1,9}, ?\d{1,9})\)"
        r"|gpu_ids ?= ?\[(?P<ids>[\d, ]+)\]"
        r"|\bDistributed training: (?P<distributed>True)"
        r"|\bPyTorch: (?P<pytorch>\S+)|\bMMSegmentation: (?P<mmseg>\S+)|\bCuDNN (?P<cudnn>\d[\d.]*)"
        r"|\bworld_size ?= ?(?P<devices>\d{1,9})"
        r"|\b(?P<precision>fp16(?= ?= ?dict)|use_fp16 ?= ?True|(?:Fp16OptimizerHook|AmpOptimWrapper)(?='))"
    )
    evaluation = re.compile(r"\bmIoU: (?P<value>[\d.]+)")
    quality = "mIoU"
    _loader = ""

    def take_stated(self, name: str, value: object, line: int) -> None:
        """Take a stated value; of the loaders' batches only that of the training one, and AMP by any of its names."""
        if name == "loader":
            self._loader = str(value)
        elif name == "precision":
            self.set_once("precision", "amp", line)
        elif name != "loaded":
            self.set_once(name, value, line)
        elif self._loader == "train":
            self.set_once("batch_per_device", value, line)

    def finish(self) -> None:
        """Set devices and versions."""
        self.precisions = (("amp", "amp"),)
        super().finish()
        self._set_devices_by_gpu_list()
        for name in ("pytorch", "mmseg", "cudnn"):
            if self.value(name):
                self.software[name] = self.value(name)
        version = self.value("pytorch")
        self.set_once("framework", f"PyTorch {version}" if version else "PyTorch")

    def _set_devices_by_gpu_list(self) -> None:
        """Set the number of devices by the list of GPUs that the configuration prints, if it prints one.

        `gpu_ids = range(0, 4)` and `gpu_ids = [0, 1, 2, 3]` are 4 devices each. Where both forms are printed, the one
        on the earlier line counts. Under a launcher (`Distributed training: True`) each process may list its own device
        alone, so that a list of one device does not tell how many ran, and nothing is set.
        """
        printed_forms = [name for name in ("range", "ids") if name in self.said]  # groups of `facts`
        if not printed_forms:
            return

        form = min(printed_forms, key=lambda name: self.said[name].line)
        numbers = [int(text) for text in re.findall(r"\d+", self.value(form))]
        if form == "range":
            start, stop = numbers
            count = stop - start
        else:
            count = len(numbers)

        may_be_own_device_alone = "distributed" in self.said and count == 1
        if count > 0 and not may_be_own_device_alone:
            self.derive("devices", form, count)
