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
        """Set a value that the log states before the first row, or follow which section of the configuration is open.

        `read_before_rows` calls this for each match of `fact_pattern`. The printed configuration has a section for each
        data loader, such as `train_dataloader=dict(batch_size=4)`. The open section shows of which loader a batch size
        is. In the order of the code:

            `name`               `value`               what is done
            "loader"             "train_dataloader"    if no section is open, the section of this loader begins
            "opened"             "("                   in an open section, one open bracket more
            "closed"             ")"                   in an open section, one bracket less; at 0 the section ends
            "batch_of_loader"    "4"                   the size in `batch_size=4`, if of the training data, is kept
            "samples_per_gpu"    "4"                   the size in `samples_per_gpu=4`, if of the training data, is kept
            "precision"          "use_fp16=True"       half precision is on: "precision" is set to "amp"
            any other            such as "8"           the value is set under this name

        Of several lines that set the same name, the first one counts. `_set_batch` later decides by the sizes that are
        kept.

        Args:
            name: Name of the group of `fact_pattern` that matched.
            value: Text that the group matched.
            line: Number of the line in the log.
        """
        if name == "loader":
            if not self._loader:  # no section is open; a loader named within a section begins no other one
                self._loader = str(value)
        elif name == "opened":
            self._count_bracket(1)
        elif name == "closed":
            self._count_bracket(-1)
        elif name in ("batch_of_loader", "samples_per_gpu"):
            name_of_batch = self._name_of_batch(name)  # by the open section; None: the size is ignored
            if name_of_batch is not None:
                self._keep_batch(name_of_batch, value, line)  # for `_set_batch`, after the last line
        elif name == "precision":  # `value` is a switch that is on, such as `use_fp16=True`
            self.set_if_unset("precision", "amp", line)
        else:
            self.set_if_unset(name, value, line)

    def _name_of_batch(self, name: str) -> str | None:
        """Return the name under which a batch size in the printed configuration is kept, or None to ignore it.

        The place of the batch size decides, here by the example of a whole configuration:

            train_dataloader=dict(
                samples_per_gpu=4,                    -> "batch_of_train_loader"; the same for `batch_size=4`
                sampler=dict(batch_size=5)),          -> None: within a further bracket, so not the loader's own
            val_dataloader=dict(samples_per_gpu=1),   -> None: not of the training data
            samples_per_gpu=2,                        -> "batch_of_all_loaders": in no loader's section
            batch_size=2,                             -> None: in no loader's section, it may be anything's

        Args:
            name: "samples_per_gpu" for a size that is printed under this name, "batch_of_loader" for `batch_size`.
        """
        open_section = self._loader  # such as "train_dataloader"; empty in no loader's section
        if open_section:
            is_of_loader_itself = self._open_brackets == 1  # only the bracket of the section itself is open
            if open_section == "train_dataloader" and is_of_loader_itself:
                return "batch_of_train_loader"
            return None
        return "batch_of_all_loaders" if name == "samples_per_gpu" else None

    def _keep_batch(self, name: str, value: object, line: int) -> None:
        """Keep a batch size of one device, and under `other_` and its name also the first one that differs from it.

        Args:
            name: "batch_of_train_loader" or "batch_of_all_loaders".
            value: The batch size as printed.
            line: Number of the line in the log.
        """
        self.set_if_unset(name, value, line)
        if value != self.value(name):
            self.set_if_unset(f"other_{name}", value, line)

    def _count_bracket(self, change: int) -> None:
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
        """Set `batch_per_device`, the batch size of one device, by the sizes that the printed configuration states.

        The sizes that stand directly in the section of the training data's loader count, not those in a further
        bracket. If there is none, each `samples_per_gpu` outside of all loaders' sections counts, which holds for all
        loaders. By the sizes that count:

        - One size, perhaps stated several times: this size is set.
        - Different sizes: no size is set, and a check that does not agree records the first two of them. Such a log may
          print the files of a configuration one by one, a file with `samples_per_gpu=2` and then a file that replaces 2
          by 4.
        - No size: nothing changes.

        Call this after the last line.
        """
        # `_keep_batch` has kept the first size of each of these two places, under the name of the place.
        name = "batch_of_train_loader"
        if name not in self.facts_by_name:
            name = "batch_of_all_loaders"
        second_size = self.facts_by_name.get(f"other_{name}")  # the first size that differs, if any
        if second_size is None:
            self.set_if_unset_from("batch_per_device", name)  # copies the size; does nothing if there is none
            return
        # The two sizes differ, so `set_if_places_agree` only adds the check, and sets no size.
        first_size = self.facts_by_name[name]
        self.set_if_places_agree("batch_per_device", {"one batch size": first_size, "another": second_size})

    def _set_devices_by_gpu_list(self) -> None:
        """Set the number of devices to the length of the configuration's list of GPUs, unless it is set already.

        The list is `gpu_ids = range(0, 4)` or `gpu_ids = [0, 1, 2, 3]`. Two lists set nothing: an empty one, and a list
        of one GPU in distributed training, because each process may list only its own GPU there.
        """
        length = self._length_of_first_list()
        if length is None:
            return
        is_distributed = "distributed" in self.facts_by_name  # only `Distributed training: True` is such a fact
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
        """Set what `MMSeg.finish_facts` sets, such as the batch size. Then correct `truncated` by the number of epochs.

        `truncated` says whether rows are missing at the end of the run. So far, `truncated` only says whether rows are
        missing at the end of the last row's epoch. If 5 epochs are wanted, `truncated` changes as follows:

            last row                so far    afterwards
            Epoch [2][1251/1251]    False     True, because epochs 3 to 5 are missing
            Epoch [5][600/1251]     True      True: in the last wanted epoch nothing changes
            Epoch [5][1251/1251]    False     False: in the last wanted epoch nothing changes

        If the wanted number of epochs is not known, or if no row was read, `truncated` becomes None.
        """
        super().finish_facts()
        self.set_if_unset_from("epochs_wanted", "max_epochs")  # the log may state either
        epochs_wanted = integer(self.value("epochs_wanted"))
        last_epoch = self.last_position.epoch if self.last_position else None
        if epochs_wanted is None or last_epoch is None:
            self.truncated = None
        elif last_epoch < epochs_wanted:
            self.truncated = True
