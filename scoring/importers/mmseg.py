"""mmsegmentation logs, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
`time` is the mean step time of the window, in mmengine of its last 10 steps; no rate is printed. mmengine prints the
rows of language models in the same form.
"""

import re

from scoring.importers.table import FormatReader
from scoring.importers.text import RowPattern, field


class MMSeg(FormatReader):
    """Rows of mmcv's and mmengine's text, and what they print of the machine and the configuration before.

    A configuration without a section for half precision does not state FP32: there are many names for such a section.
    """

    row_marker = "Iter"
    row_clue = "data_time: "
    tool_marker = " - INFO - "
    row_pattern = RowPattern(
        re.compile(
            r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:,\d+)?) - (?:mmseg|mmengine) - INFO - )?"
            r"Iter(?:\(train\))? ?\[ *(\d{1,9})/(\d{1,9})\]"
        ),
        (field(" time: ", r"[\s,]"),),
        (field(" data_time: ", r"(?:[\s,]|$)"), re.compile(r" memory: (\d{1,9})"), field(" loss: ")),
    )
    columns = "stamp step of time wait memory loss"
    required_column = "time"
    prints_mean_times = True
    segmentation = True
    fact_pattern = re.compile(
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
    evaluation_pattern = re.compile(r"\bmIoU: (?P<value>[\d.]+)")
    quality_name = "mIoU"
    _loader = ""

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Take a stated value; of the loaders' batches only that of the training one, and AMP by any of its names."""
        if name == "loader":
            self._loader = str(value)
        elif name == "precision":
            self.set_if_unset("precision", "amp", line)
        elif name != "loaded":
            self.set_if_unset(name, value, line)
        elif self._loader == "train":
            self.set_if_unset("batch_per_device", value, line)

    def finish_facts(self) -> None:
        """Set devices and versions."""
        self.precisions = (("amp", "amp"),)
        super().finish_facts()
        self._set_devices_by_gpu_list()
        for name in ("pytorch", "mmseg", "cudnn"):
            if self.value(name):
                self.software[name] = self.value(name)
        version = self.value("pytorch")
        self.set_if_unset("framework", f"PyTorch {version}" if version else "PyTorch")

    def _set_devices_by_gpu_list(self) -> None:
        """Set the number of devices by the list of GPUs that the configuration prints, if it prints one.

        `gpu_ids = range(0, 4)` and `gpu_ids = [0, 1, 2, 3]` are 4 devices each. Where both forms are printed, the one
        on the earlier line counts. Under a launcher (`Distributed training: True`) each process may list its own device
        alone, so that a list of one device does not tell how many ran, and nothing is set.
        """
        printed_forms = [name for name in ("range", "ids") if name in self.facts_by_name]  # groups of `facts`
        if not printed_forms:
            return

        form = min(printed_forms, key=lambda name: self.facts_by_name[name].line)
        numbers = [int(text) for text in re.findall(r"\d+", self.value(form))]
        if form == "range":
            start, stop = numbers
            count = stop - start
        else:
            count = len(numbers)

        may_be_own_device_alone = "distributed" in self.facts_by_name and count == 1
        if count > 0 and not may_be_own_device_alone:
            self.set_from_fact("devices", form, count)
