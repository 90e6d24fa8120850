"""Logs of mmsegmentation and of OpenMMLab's other tools, as mmcv's and mmengine's text loggers print them.

Y-M-D h:m:s,ms - mmseg - INFO - Iter [4/180]\tlr: .., eta: .., time: 1.661, data_time: .., memory: 11402, ..
Y/M/D h:m:s - mmengine - INFO - Iter(train) [  50/80000]  lr: ..  eta: ..  time: ..  data_time: ..  memory: ..
Trainers that count by epochs print `Epoch [1][50/1251]` and `Epoch(train)  [1][  50/1251]` instead.
`time` is the mean step time of the window, in mmengine of its last 10 steps; no rate is printed. mmengine prints the
rows of language models in the same form.
"""

import re
from typing import NamedTuple

from scoring.importers.checks import check_evaluations_within_rows
from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.evidence import Fact
from scoring.importers.gaps import slow_rows_after_evaluations
from scoring.importers.lines import Lines
from scoring.importers.table import FormatReader, RowPosition
from scoring.importers.text import RowPattern, field, integer
from scoring.record import Check

_COMMENT = re.compile(r"(?:^|\s)#[^\r\n]*")  # of a configuration that is printed as its files stand
# mmcv prints the name of the tool's logger (`mmseg`) behind the time, the first mmcv (0.x) no name.
_STAMP = r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:,\d+)?) - (?:[\w.]+ - )?INFO - )?"
# Between the step of a row and the accuracy of an evaluation (mmsegmentation prints `aAcc` with any metric).
_RESULT_BEHIND_STEP = r"[^\[]{0,400}?\baAcc: "  # of this row: the next one on the line has a bracket, too
_ROW_WITH_RESULT = re.compile(r"\bIter \[\d{1,9}/\d{1,9}\]" + _RESULT_BEHIND_STEP)
_EVALUATION = re.compile(r"\bIter\(val\) \[(\d{1,9})\]")


class _Place(NamedTuple):
    """A place in the printed configuration, in which each data loader has a section in brackets.

    train_dataloader=dict(               -> loader "train_dataloader", 1 open bracket
        samples_per_gpu=4,
        sampler=dict(batch_size=5)),     -> 2 open brackets up to the first `)`, and none behind the second one
    samples_per_gpu=2                    -> no loader: the size holds for all loaders
    """

    loader: str  # the loader whose section is read; empty: none
    open_brackets: int  # in this section


def _place_after(place: _Place, name: str, text: str) -> _Place:
    """Return in which data loader's section a printed configuration is, and how deep in brackets, after one more word.

    In `train_dataloader=dict(sampler=dict(..))`, the name begins the section, and the last bracket ends it.

    Args:
        place: The section and the depth before the word.
        name: Kind of the word: "loader" (a loader's name, which `=dict(` follows), "opened" `(`, or "closed" `)`.
        text: The word. It is only used if it is a loader's name.
    """
    if not place.loader:  # outside of all sections, where brackets do not count
        return _Place(loader=text, open_brackets=0) if name == "loader" else place  # the next word is its `(`
    if name == "loader":  # a name within a section is not a beginning of another one
        return place
    open_brackets = place.open_brackets + (1 if name == "opened" else -1)
    section_ends = open_brackets == 0  # the bracket that the section began with is closed
    return _Place(loader="" if section_ends else place.loader, open_brackets=open_brackets)


def _is_of_train_loader(place: _Place) -> bool:
    """Return whether a batch size at a place of the configuration is that of the training data's loader.

    Args:
        place: The place. A size within a further bracket of the section is not the loader's own.
    """
    return place.loader == "train_dataloader" and place.open_brackets == 1


class MMSeg(FormatReader):
    """Rows of mmcv's and mmengine's text, and what they print of the machine and the configuration before.

    A configuration without a section for half precision does not state FP32, because such a section has many names.
    """

    row_marker = "Iter"
    row_clue = "data_time: "
    whole_line_marker = " - INFO - "
    row_pattern = RowPattern(
        re.compile(_STAMP + rf"Iter(?:\(train\))? ?\[ *(\d{{1,9}})/(\d{{1,9}})\](?!{_RESULT_BEHIND_STEP})"),
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
        r"|\b(?P<precision>fp16(?= ?= ?dict)|use_fp16 ?= ?True|(?:\w{0,40}Fp16OptimizerHook|AmpOptimWrapper)(?='))"
    )
    evaluation_pattern = re.compile(r"\bmIoU: (?P<value>[\d.]+)")
    quality_name = "mIoU"
    framework = "PyTorch"
    precision_names = (("amp", "amp"),)

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._place = _Place(loader="", open_brackets=0)  # where the configuration is read
        self._batches_of_train_loader: list[Fact] = []  # each size, as text, of the training data's loader
        self._batches_of_all_loaders: list[Fact] = []  # each size outside of all loaders' sections

    def read_before_rows(self, line: int, text: str) -> None:
        """Read the values that a line before the first row states, but none of a comment in the configuration.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_before_rows(line, _COMMENT.sub("", text))

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Keep a value that the log states before the first row, such as a batch size or the number of devices.

        Of several lines that state a value, the first one counts. A batch size is only kept if it is that of the
        training data's loader: it stands in that loader's section `train_dataloader=dict(..)`, within no further
        bracket, or is a `samples_per_gpu` outside of all sections. All such sizes are kept, for `finish_facts` to
        compare.

        Args:
            name: Name of the value, such as "devices", or of the word of the configuration, such as "opened".
            value: The text of the value or the word.
            line: Number of the line in the log.
        """
        if name in ("loader", "opened", "closed"):  # `train_dataloader=dict`, `(` or `)`
            # The section that the configuration is in from here on, and its open brackets.
            self._place = _place_after(self._place, name, str(value))
        elif name in ("batch_of_loader", "samples_per_gpu"):  # `batch_size=4` or `samples_per_gpu=4`
            if _is_of_train_loader(self._place):
                self._batches_of_train_loader.append(Fact(value, line))
            # Outside of all sections, only a `samples_per_gpu` holds for all loaders.
            elif name == "samples_per_gpu" and not self._place.loader:  # "": no section
                self._batches_of_all_loaders.append(Fact(value, line))
        elif name == "precision":  # `value` is a switch that is on, such as `use_fp16=True`
            self.set_if_unset("precision", "amp", line)
        else:
            self.set_if_unset(name, value, line)

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line after the first row of training figures that is not such a row itself.

        If the line prints the result of an evaluation in place of a row, the rows go on from the step of that row.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        step = self._step_of_replaced_row(text)
        if step is not None:
            self.last_position = RowPosition(self.windows[-1].epoch, step)
        super().read_after_first_row(line, text)

    def finish_rows(self) -> None:
        """Say by a check that rows take in the time of an evaluation, if there are such rows.

        mmcv's times and waits run from the end of one training step to the next, also through an evaluation. So the
        wait for data of the row behind it is not known.
        """
        evaluation_lines = [result.line for result in self.qualities]
        rows_with_evaluation = slow_rows_after_evaluations(self.windows, evaluation_lines)
        if not rows_with_evaluation:
            return
        for row in rows_with_evaluation:
            row.data_wait_s = None
        self.checks.append(check_evaluations_within_rows(self.windows, rows_with_evaluation))

    def _step_of_replaced_row(self, text: str) -> int | None:
        """Return the step of the row that an evaluation's result replaces, or None if the line replaces no row.

        mmsegmentation of 2020 and 2021 evaluated before it printed the row of the same step, and printed the result in
        the row's place. The means of the next row are of the steps since then. After rows at steps 900 and 950:

            Iter(val) [1000]  mIoU: 0.7                     -> 1000, the step of training
            Iter [63/80000]  .. aAcc: 0.9, mIoU: 0.7, ..    -> 1000; 63 counts the batches of the evaluation
            Iter(val) [500]  aAcc: 0.9, mIoU: 0.7           -> None: 500 counts batches, and the row was printed before

        Args:
            text: The line, which comes after a row of training figures.
        """
        last_step = self.windows[-1].step
        steps_per_row = self.usual_steps_per_row
        if last_step is None or steps_per_row is None:
            return None
        step_of_next_row = last_step + steps_per_row
        evaluation = _EVALUATION.search(text)
        has_step_of_row = evaluation is not None and int(evaluation[1]) == step_of_next_row
        is_row_with_result = _ROW_WITH_RESULT.search(text) is not None
        return step_of_next_row if has_step_of_row or is_row_with_result else None

    def finish_facts(self) -> None:
        """Set batch, devices, software versions and framework, and convert what the log states to numbers and names."""
        self._set_batch()
        version = self.value("pytorch")
        if version:
            self.set_if_unset("framework", f"PyTorch {version}", self.line_of("pytorch"))
        super().finish_facts()  # first: a number of devices that a line states goes before the list of GPUs
        self._set_devices_by_gpu_list()
        for name in ("pytorch", "mmseg", "cudnn"):
            if self.value(name):
                self.software[name] = self.value(name)

    def _set_batch(self) -> None:
        """Set the batch size of one device, or note by a check that the printed configuration states several.

        A log may print the files of a configuration one by one, a file with `samples_per_gpu=2` and then a file that
        replaces 2 by 4.
        """
        batches = self._batches_of_train_loader or self._batches_of_all_loaders
        if not batches:
            return
        first = batches[0]
        others = [batch for batch in batches if batch.value != first.value]
        if not others:
            self.set_if_unset("batch_per_device", first.value, first.line)
            return
        other = others[0]
        ways = (f"line {first.line}: one batch size, {first.value}", f"line {other.line}: another, {other.value}")
        self.checks.append(Check(what="batch_per_device", ways=ways, agree=False))

    def _set_devices_by_gpu_list(self) -> None:
        """Set the number of devices to the length of the configuration's list of GPUs, unless it is set already.

        The list is `gpu_ids = range(0, 4)` or `gpu_ids = [0, 1, 2, 3]`. If both are printed, the first one counts.
        An empty list sets nothing. Nor does a list of one GPU in distributed training: each process may list only its
        own GPU there, so that the list would state 1 device for a run on 8.
        """
        length = self._length_of_first_list()  # 4 for either example, with the line of the list
        if length is None:  # no list is printed
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
        re.compile(_STAMP + r"Epoch(?:\(train\))? *\[(\d{1,9})\]\[ *(\d{1,9})/(\d{1,9})\]"),
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
        """Set what `MMSeg.finish_facts` sets, such as the batch size, and whether the run is truncated."""
        super().finish_facts()
        self.set_if_unset_from("epochs_wanted", "max_epochs")  # the log may state either
        self.truncated = self._is_run_truncated()

    def _is_run_truncated(self) -> bool | None:
        """Return whether rows are missing at the end of the run, or None if its number of epochs is not known.

        `truncated` says so far whether rows are missing at the end of the last row's epoch.
        """
        epochs_wanted = integer(self.value("epochs_wanted"))
        last_epoch = self.last_position.epoch if self.last_position else None
        if epochs_wanted is None or last_epoch is None:
            return None
        later_epochs_are_missing = last_epoch < epochs_wanted
        return True if later_epochs_are_missing else self.truncated
