"""Logs of mmsegmentation and of OpenMMLab's other tools, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
Trainers that count by epochs print `Epoch [1][50/1251]` and `Epoch(train)  [1][  50/1251]` instead.
`time` is the mean step time of the window, in mmengine of its last 10 steps; no rate is printed. mmengine prints the
rows of language models in the same form.
"""

import re

from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.evidence import Fact
from scoring.importers.table import FormatReader
from scoring.importers.text import RowPattern, field, integer

_COMMENT = re.compile(r"(?:^|\s)#[^\r\n]*")  # of a configuration that is printed as its files stand


class MMSeg(FormatReader):
    """Rows of mmcv's and mmengine's text, and what they print of the machine and the configuration before.

    A configuration without a section for half precision does not state FP32, because such a section has many names.
    """

    row_marker = "Iter"
    row_clue = "data_time: "
    whole_line_marker = " - INFO - "
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
    fact_pattern: re.Pattern[str] = re.compile(
        r"\bsamples_per_gpu ?= ?(?P<samples_per_gpu>\d{1,9})"
        r"|\b(?P<loader>\w+_dataloader|val|test) ?= ?dict(?=\()"
        r"|\bbatch_size ?= ?(?P<batch_of_loader>\d{1,9})"
        r"|gpu_ids ?= ?range\((?P<range>\d{1,9}, ?\d{1,9})\)"
        r"|gpu_ids ?= ?\[(?P<ids>[\d, ]+)\]"
        r"|\bDistributed training: (?P<distributed>True)"
        r"|\bPyTorch: (?P<pytorch>\S+)|\bMMSegmentation: (?P<mmseg>\S+)|\bCuDNN (?P<cudnn>\d[\d.]*)"
        r"|\b(?:world_size ?= ?|GPU number: )(?P<devices>\d{1,9})"  # mmengine's `GPU number` is of all nodes
        r"|(?P<opened>[(])|(?P<closed>[)])"
        r"|\b(?P<precision>fp16(?= ?= ?dict)|use_fp16 ?= ?True|(?:Fp16OptimizerHook|AmpOptimWrapper)(?='))"
    )
    evaluation_pattern = re.compile(r"\bmIoU: (?P<value>[\d.]+)")
    quality_name = "mIoU"
    precision_names = (("amp", "amp"),)
    _loader = ""  # the data loader whose section is read; empty: none
    _open_brackets = 0  # in the section of this loader

    def read_before_rows(self, line: int, text: str) -> None:
        """Read the values that a line before the first row states, but none of a comment in the configuration.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_before_rows(line, _COMMENT.sub("", text))

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Set a value that a line before the first row of training figures states, unless an earlier line has set it.

        By the name:

        - "loader": a line such as `val_dataloader = dict(` begins the section of a data loader, unless it stands in
          such a section.
        - "opened" and "closed": a bracket. Those of the section are counted, to know where it ends.
        - "batch_of_loader" and "samples_per_gpu": a batch size. It is kept for `_set_batch` if `_name_of_batch` finds
          it to be of the training data's loader or of all loaders.
        - "precision": a switch of half precision that is on sets the precision to "amp".
        - Any other value is set under this name.

        Args:
            name: Name of a group of `fact_pattern`, such as "devices".
            value: Text that the group matched.
            line: Number of the line in the log.
        """
        if name == "loader":
            self._loader = self._loader or str(value)
        elif name in ("opened", "closed"):
            self._follow_brackets(1 if name == "opened" else -1)
        elif name in ("batch_of_loader", "samples_per_gpu"):
            name_of_batch = self._name_of_batch(name)
            if name_of_batch is not None:
                self._take_batch(name_of_batch, value, line)
        elif name == "precision":  # `value` switches half precision on, as `fp16` does
            self.set_if_unset("precision", "amp", line)
        else:
            self.set_if_unset(name, value, line)

    def _name_of_batch(self, name: str) -> str | None:
        """Return the name under which to keep a batch size for `_set_batch`, by where the configuration prints it.

        None means that the batch size is ignored: it may be of other data, or of no loader.

            samples_per_gpu=2,                         -> batch_of_all_loaders
            batch_size=2,                              -> None: it may be anything's
            train_dataloader=dict(
                samples_per_gpu=4,                     -> batch_of_train_loader; the same for `batch_size=4`
                sampler=dict(batch_size=5)),           -> None: two brackets are open
            val_dataloader=dict(samples_per_gpu=1)     -> None: not the training data's loader

        Args:
            name: Group of `fact_pattern` that matched: "samples_per_gpu", or "batch_of_loader" for `batch_size`.
        """
        if self._loader:  # in the section of a loader
            is_of_loader_itself = self._open_brackets == 1  # only the section's own bracket is open
            is_of_training = self._loader == "train_dataloader"
            return "batch_of_train_loader" if is_of_training and is_of_loader_itself else None
        return "batch_of_all_loaders" if name == "samples_per_gpu" else None

    def _take_batch(self, name: str, value: object, line: int) -> None:
        """Keep a batch size of one device, and under `other_` and its name also the first one that differs from it.

        Args:
            name: "batch_of_train_loader" or "batch_of_all_loaders".
            value: The batch size as printed.
            line: Number of the line in the log.
        """
        self.set_if_unset(name, value, line)
        if value != self.value(name):
            self.set_if_unset(f"other_{name}", value, line)

    def _follow_brackets(self, change: int) -> None:
        """Count the brackets that are open in the section of a data loader, which ends where the last one closes.

        Args:
            change: 1 for a bracket that opens, -1 for one that closes. Outside of such a section it changes nothing.
        """
        if not self._loader:
            return
        self._open_brackets += change
        if self._open_brackets == 0:
            self._loader = ""

    def finish_facts(self) -> None:
        """Set batch, devices, software versions and framework, and convert what the log states to numbers and names."""
        self._set_batch()
        super().finish_facts()  # first: a number of devices that a line states goes before the list of GPUs
        self._set_devices_by_gpu_list()
        for name in ("pytorch", "mmseg", "cudnn"):
            if self.value(name):
                self.software[name] = self.value(name)
        version = self.value("pytorch")
        self.set_if_unset("framework", f"PyTorch {version}" if version else "PyTorch")

    def _set_batch(self) -> None:
        """Set the batch size of one device, from the settings of the training loader or else of all loaders.

        These settings may state two different sizes, if the log prints the files of a configuration one by one: the
        size in a base file, and the one that replaces it. Then none is set, and a check records both.
        """
        name = "batch_of_train_loader" if "batch_of_train_loader" in self.facts_by_name else "batch_of_all_loaders"
        other = self.facts_by_name.get(f"other_{name}")  # a second size, which differs from the first
        if other is None:
            self.set_if_unset_from("batch_per_device", name)
            return
        places = {"one batch size": self.facts_by_name[name], "another": other}
        self.set_if_places_agree("batch_per_device", places)  # only adds the check, because the two differ

    def _set_devices_by_gpu_list(self) -> None:
        """Set the number of devices to the length of the configuration's list of GPUs, unless it is set already.

        The list is `gpu_ids = range(0, 4)` or `gpu_ids = [0, 1, 2, 3]`. A list of one GPU sets nothing in distributed
        training, because each process may list only its own GPU there.
        """
        length = self._length_of_first_list()
        if length is None:
            return
        is_distributed = self.value("distributed") is not None  # only `Distributed training: True` sets it, not False
        may_be_own_gpu = length.value == 1 and is_distributed
        if length.value > 0 and not may_be_own_gpu:
            self.set_if_unset("devices", length.value, length.line)

    def _length_of_first_list(self) -> Fact | None:
        """Return the number of GPUs in the list that is printed first, in one form or the other; None without one."""
        lengths = [fact for fact in (self._length_of_range(), self._length_of_list()) if fact is not None]
        return min(lengths, key=lambda fact: fact.line, default=None)

    def _length_of_range(self) -> Fact | None:
        """Return the number of devices in `gpu_ids = range(0, 4)`, here 4, or None if no such range is printed."""
        printed = self.facts_by_name.get("range")
        if printed is None:
            return None
        start, stop = printed.value.split(",")
        return Fact(int(stop) - int(start), printed.line)

    def _length_of_list(self) -> Fact | None:
        """Return the number of devices in `gpu_ids = [0, 1, 2, 3]`, here 4, or None if no such list is printed."""
        printed = self.facts_by_name.get("ids")
        if printed is None:
            return None
        ids = re.findall(r"\d+", printed.value)
        return Fact(len(ids), printed.line)


class MMEpochs(EpochFormatReader, MMSeg):
    """Rows of trainers that count steps in each epoch, of mmsegmentation and of OpenMMLab's other tools."""

    row_marker = "Epoch"
    row_pattern = RowPattern(
        re.compile(
            r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:,\d+)?) - \w+ - INFO - )?"
            r"Epoch(?:\(train\))? *\[(\d{1,9})\]\[ *(\d{1,9})/(\d{1,9})\]"
        ),
        MMSeg.row_pattern.needed,
        MMSeg.row_pattern.others,
    )
    columns = "stamp epoch step of time wait memory loss"
    segmentation = False
    fact_pattern = re.compile(
        MMSeg.fact_pattern.pattern
        + r"|\bmax: (?P<epochs_wanted>\d{1,9}) epochs|\bmax_epochs ?= ?(?P<max_epochs>\d{1,9})"
    )
    evaluation_pattern = re.compile(
        r"(?:Epoch\(val\) *\[(?P<epoch>\d{1,9})\].*?)?\b(?P<name>mIoU|accuracy/top1|accuracy_top-1): (?P<value>[\d.]+)"
    )

    def finish_facts(self) -> None:
        """Set `truncated`, by whether epochs are missing, and set batch, devices, versions and framework.

        `truncated` says whether rows are missing at the end of the run:

        - None if the wanted number of epochs or the epoch of the last row is not known.
        - True if the epoch of the last row comes before the last epoch wanted.
        - Otherwise whether rows are missing in that epoch, which the base class has set by steps such as `[50/1251]`.
        """
        super().finish_facts()  # sets all the rest
        self.set_if_unset_from("epochs_wanted", "max_epochs")
        epochs_wanted = integer(self.value("epochs_wanted"))
        last_epoch = self.last_position.epoch if self.last_position else None
        if epochs_wanted is None or last_epoch is None:
            self.truncated = None
        elif last_epoch < epochs_wanted:
            self.truncated = True
