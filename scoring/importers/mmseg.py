"""mmsegmentation logs, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
{"mode": "train", "epoch": 1, "iter": 50, "lr": 0.01, "memory": 5322, "data_time": 0.005, .., "time": 0.7143}
(mmcv's `.log.json`, with {"env_info": .., "config": ..} before; `iter` may start anew in each epoch)
{"lr": 0.01, "data_time": 0.005, "loss": 2.1, .., "time": 0.7143, "iter": 50, "memory": 5322, "step": 50}
(mmengine's `scalars.json`; `step` counts through the whole run)
`time` is the mean step time of the window, in mmengine of its last 10 steps; no rate is printed.
"""

import re

from scoring.importers.table import At, Table
from scoring.importers.text import RowPattern, field

# Devices that multiply FP32 as TF32 by PyTorch's default for convolutions.
_TF32_DEVICE = re.compile(r"A100|A800|A30|A40|H100|H800|RTX 30|RTX 40|RTX A|L40")


class MMSeg(Table):
    """Rows of mmcv's and mmengine's text, and what they print of the machine and the configuration before."""

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
        r"|\bGPU [\d,]+: (?P<gpu>.+)$|\bworld_size ?= ?(?P<devices>\d{1,9})"
        r"|(?P<precision>\bfp16(?= ?= ?dict)|(?<=type=')(?:Fp16OptimizerHook|AmpOptimWrapper)(?='))"
    )
    precisions = (("", "amp"),)
    evaluation = re.compile(r"\bmIoU: (?P<value>[\d.]+)")
    quality = "mIoU"
    _loader = ""

    def state(self, name: str, value: object, line: int) -> None:
        """Each loader has its own batch: that of the one that trains counts."""
        if name == "loader":
            self._loader = str(value)
        if name in ("batch_per_device", "loaded"):
            self.say("config", True, line)
        if name != "loaded" or self._loader == "train":
            self.say("batch_per_device" if name == "loaded" else name, value, line)

    def finish(self) -> None:
        super().finish()
        for name in sorted({"range", "ids"} & self.said.keys(), key=lambda name: self.said[name].line)[:1]:
            numbers = [int(text) for text in re.findall(r"\d+", self.value(name))]
            count = numbers[1] - numbers[0] if name == "range" else len(numbers)
            # Under a launcher each process may list its own device alone: one is then no word on how many ran.
            if count and not ("distributed" in self.said and count == 1):
                self.derive("devices", name, count)
        self.derive("precision", "config", "fp32")  # the whole configuration is printed: without an fp16 section it is
        if self.value("precision") == "fp32":
            self.derive("math_mode", "gpu", "tf32" if _TF32_DEVICE.search(self.value("gpu") or "") else "fp32")
        self.software |= {name: version for name in ("pytorch", "mmseg", "cudnn") if (version := self.value(name))}
        self.say("framework", " ".join(filter(None, ("PyTorch", self.value("pytorch")))))


class MMCVJson(MMSeg):
    """The same in JSON: the configuration is one text in it."""

    marker = '"lr": '
    clue = '"data_time": '
    tool = '{"'
    row = RowPattern(
        re.compile(
            r'\{"(?:mode": "train", "epoch": (\d{1,9}), "iter": (\d{1,9}),|(?:base_)?lr": (?=.*"step": (\d{1,9})\b))'
        ),
        (field('"time": ', "(?=[,}])"),),
        (field('"data_time": '), re.compile(r'"memory": (\d{1,9})'), field('"loss": ')),
    )
    columns = "epoch step step time wait memory loss"
    evaluation = re.compile(r'^(?:(?=.*"(?:iter|step)": (?P<step>\d{1,9})))?.*"mIoU": (?P<value>[\d.]+)')

    def before(self, line: int, text: str) -> None:
        self.say("distributed", True, line)  # the file does not say whether a launcher ran
        for part in text.replace('\\"', '"').split("\\n"):
            super().before(line, part)

    def steps(self, at: At) -> int | None:
        """A counter that runs through the run, or starts anew in each epoch."""
        last = self.last
        return None if last is None else at.step - last.step if at.step > last.step else at.step
