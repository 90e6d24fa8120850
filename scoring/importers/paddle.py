"""Logs of PaddlePaddle/models 1.8 and PaddleSeg, and what Paddle's launcher and runtime print around any of its tools.

PaddlePaddle/models 1.8, PaddleCV/image_classification (DLPerf's): utils/utility.py
         2020-08-25 11:26:21,123-INFO: [Pass 0, train batch 19] \tloss .., acc1 .., acc5 .., lr .., elapse 0.35 sec
         Batches count from 0 in each pass; `elapse` is the time of that one batch; the time stamp may be absent. The
         printed `batch_size` is that of one process, whatever its devices: batch and devices come from options.
PaddleSeg: paddleseg/core/train.py
         Y-M-D h:m:s [INFO]\t[TRAIN] epoch: 1, iter: 15/400, loss: .., lr: .., batch_cost: .., reader_cost: ..,
         ips: .. samples/sec | ETA ..   (older releases: `epoch=1, iter=15/400, .., ips=..`)
         The costs are those of the window; `iter` counts through the whole run.
         Newer releases begin a line with `[Y/M/D h:m:s] INFO: `.   (paddleseg/utils/logger.py)
`ips` is that of rank 0 alone.
"""

import re
from dataclasses import dataclass

from scoring.importers.epoch_table import EpochFormatReader
from scoring.importers.evidence import Fact
from scoring.importers.table import FormatReader
from scoring.importers.text import RowPattern, field, integer

_COUNTS_OF_LAUNCHER = ("trainers", "nodes", "replicas")
TF32_CAPABILITY = 8  # CUDA's libraries compute FP32 products as TF32 from this compute capability on


class Launch(FormatReader):
    """The base of Paddle's formats: reads devices, nodes, versions and the math mode from the lines before training."""

    framework = "PaddlePaddle"
    # paddle/distributed/launch (context/args, controllers), fleet/launch_utils.py, phi/backends/gpu/gpu_resources.cc
    launcher_fact_pattern = re.compile(
        r"PADDLE_TRAINERS_NUM\s+(?P<trainers>\d{1,9})"
        r"|\bnnodes: (?P<nodes>\d{1,9})(?:\s|$)"
        r"|replicas (?P<replicas>\d{1,9}), status "
        r"|GPU Compute Capability: (?P<capability>\d{1,9})\.\d+, Driver API Version: [\d.]+, "
        r"Runtime API Version: (?P<cuda>[\d.]+)"
        r"|device: \d+, cuDNN Version: (?P<cudnn>\d+(?:\.\d+)*)"
        r"|nccl context nranks: (?P<nranks>\d{1,9}) local rank: \d+ gpu id: \d+ ring id: 0\b"
        r"|GPUs used: (?P<gpus>\d{1,9})"
        r"|the number of gpus? is (?P<world_size>\d{1,9}) in current training"  # PaddleClas, where it is not 4 (or 8)
        r"|PaddlePaddle: (?P<paddle>\d[\w.+-]*)"
        r"|train with paddle (?P<trained_with>\d[\w.+-]*)"
        r"|NVIDIA_TF32_OVERRIDE\W+(?P<tf32>[01])\b"
    )

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Set a value that a line of the log states, such as the number of nodes.

        Of several lines that state a value, the first one counts. Of the launcher's numbers of nodes and processes, the
        last one counts: a launch that failed may stand before the launch that trained, with other numbers.

        Args:
            name: Name of the value, such as "replicas".
            value: The value as the log prints it.
            line: Number of the line in the log.
        """
        if name in _COUNTS_OF_LAUNCHER:
            self.set_last(name, value, line)  # replaces a value that differs
        else:
            super().take_fact(name, value, line)  # keeps a value that is set already

    def finish_facts(self) -> None:
        """Set devices, software versions and the math mode by what Paddle's launcher and runtime print before training.

        Everything else that the log states is converted from its own words to the values of a record. Call this after
        the last line.
        """
        self.set_if_places_agree("devices", self._device_counts())
        self._set_versions()
        super().finish_facts()
        self._set_math_mode()  # last: it uses the converted precision

    def _device_counts(self) -> dict[str, Fact]:
        """Return how many devices the program used, by each place of the log that says so.

        Returns:
            The number and its line, by the place in words: {"GPUs used": Fact(8, line=12)}. A place whose number is 0
            is left out.
        """
        counts = {
            "replicas x nnodes": self._processes_of_all_nodes(),
            "PADDLE_TRAINERS_NUM": self._count_in("trainers"),
            "NCCL's nranks": self._count_in("nranks"),
            "GPUs used": self._count_in("gpus"),
            "the number of gpus in current training": self._count_in("world_size"),
        }
        return {place: count for place, count in counts.items() if count is not None and count.value > 0}

    def _processes_of_all_nodes(self) -> Fact | None:
        """Return how many processes the launcher starts, each with one device; None if the log does not state it."""
        processes_of_node = self._count_in("replicas")
        nodes = integer(self.value("nodes"))
        if processes_of_node is None or nodes is None:
            return None
        return Fact(processes_of_node.value * nodes, processes_of_node.line)

    def _count_in(self, name: str) -> Fact | None:
        """Return a value that the log states as a whole number, with its line, or None if the log does not state it.

        Args:
            name: Name of the value. Its text must consist of digits.
        """
        fact = self.facts_by_name.get(name)
        return None if fact is None else Fact(int(fact.value), fact.line)

    def _set_versions(self) -> None:
        """Set the versions of Paddle, cuDNN and CUDA in `software`, as far as the log prints them.

        If no framework is set yet, it becomes Paddle with its version, such as "PaddlePaddle 2.6.2".
        """
        # Paddle's version may be printed as `PaddlePaddle: 2.6.2`, which is preferred, or `train with paddle 2.6.2`.
        name = "paddle" if "paddle" in self.facts_by_name else "trained_with"
        version = self.value(name)
        if version:
            self.software["paddlepaddle"] = version
            self.set_if_unset("framework", f"PaddlePaddle {version}", self.line_of(name))
        for library in ("cudnn", "cuda"):
            if self.value(library):
                self.software[library] = self.value(library)

    def _set_math_mode(self) -> None:
        """Set how the GPU computes FP32 products, if the log states FP32 and the GPU's compute capability."""
        capability = self.value("capability")
        if capability and self.value("precision") == "fp32":
            as_tf32 = int(capability) >= TF32_CAPABILITY and self.value("tf32") != "0"  # 0: NVIDIA_TF32_OVERRIDE=0
            self.set_if_unset("math_mode", "tf32" if as_tf32 else "fp32", self.line_of("capability"))


_HEAD_OF_ARGUMENTS = "-----------  Configuration Arguments -----------"


class Paddle18(Launch, EpochFormatReader):
    """Rows of single batches."""

    row_marker = "train batch "
    whole_line_marker = "[Pass "
    row_pattern = RowPattern(
        re.compile(
            # The row's own stamp is the last one before it; a launcher's may stand before.
            r"(?:(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?)(?![^\[]{0,60}\d:\d\d:\d)[^\[]{0,60})?"
            r"\[Pass (\d{1,9}), train batch (\d{1,9})\]"
        ),
        (field(" elapse ", " sec"),),
        (field(r"\sloss "),),
    )
    columns = "stamp epoch step time loss"
    required_column = "time"
    first_step = 0
    fact_pattern = re.compile(r"^\W*(?:use_)?fp16: (?P<precision>True|False)|^model: (?P<model>\w+)\s*$")
    precision_names = (("True", "amp"), ("False", "fp32"))
    evaluation_pattern = re.compile(r"\[End pass (?P<epoch>\d{1,9})\].*?\btest_acc1 (?P<value>[\d.]+)")
    quality_name = "acc1"
    _label_length = 0  # characters of a launcher's label before each line, by the head of the arguments

    def read_before_rows(self, line: int, text: str) -> None:
        """Read the values that a line before the first row states, also the line of an argument behind a label.

            0: -----------  Configuration Arguments -----------    -> each line has 3 characters of a label
            0: model: ResNet50                                     -> the model

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        if _HEAD_OF_ARGUMENTS in text:
            self._label_length = text.index(_HEAD_OF_ARGUMENTS)
        super().read_before_rows(line, text)
        if self._label_length > 0:
            super().read_before_rows(line, text[self._label_length :])


# Between an option and its value: of a command line, or of the list of arguments that Paddle's launcher prints.
_BEFORE_VALUE = "(?:[ =]|', ')"
# A launcher's label, such as `0: `, may stand before it. A key `model:` that is indented is in another section.
_HEAD_OF_MODEL_SECTION = re.compile(r"(?P<label>(?: *\S(?:.*\S)? ?)?)model:\s*")


@dataclass
class _ModelSection:
    """The section `model:` of a printed configuration, as far as it has been read."""

    label_length: int  # characters of the launcher's label before each line
    indent: int | None = None  # spaces before the section's own keys; None before the first of them
    is_in_backbone: bool = False  # the section's last own key is `backbone`


class PaddleSeg(Launch):
    """Rows, the launcher's lines, the configuration, and the command line, which overrides it."""

    row_marker = "[TRAIN] epoch"
    whole_line_marker = "INFO"
    row_pattern = RowPattern(
        re.compile(
            r"(?:(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)\]? (?:\[INFO\]|INFO:)\s*)?"
            r"\[TRAIN\] epoch[:=] ?(\d{1,9}), iter[:=] ?(\d{1,9})/(\d{1,9})"
        ),
        (field(" batch_cost[:=] ?", r"[,\s]"), re.compile(r"( ips[:=] ?\S+ \w+/s| \|)")),  # or it was cut
        (
            field(" reader_cost[:=] ?", r"[,\s]"),
            field(" loss[:=] ?"),
            field(" ips[:=] ?", r" \w+/s"),
            re.compile(r" ips[:=] ?\S+ (\w+/s)"),
        ),
    )
    columns = "stamp epoch step of time cut wait loss rate unit"
    required_column = "time"
    prints_mean_times = True
    rows_imply_batch = True
    segmentation = True
    precision_names = (("fp32", "fp32"), ("fp16", "amp"))  # PaddleSeg's `fp16` means AMP
    fact_pattern = re.compile(
        r"(?<![\w.])batch_size: (?P<batch_of_config>\d{1,9})\s*$"
        rf"|--batch_size{_BEFORE_VALUE}(?P<batch_per_device>\d{{1,9}})\b"
        rf"|--precision{_BEFORE_VALUE}(?P<precision>\w+)"
        rf"|(?:--amp_level{_BEFORE_VALUE}|AMP level = )(?P<level>\w+)"
        r"|(?P<amp>(?<!\[)--fp16\b|\buse (?:amp|AMP) to train)"  # `[--fp16]` is in the usage that a wrong call prints
    )
    evaluation_pattern = re.compile(r"\[EVAL\].*?\bmIoU[:=] ?(?P<value>[\d.]+)")
    quality_name = "mIoU"
    _model_section: _ModelSection | None = None  # the section that the line before is in

    def read_before_rows(self, line: int, text: str) -> None:
        """Set the values that a line before the first row of training figures states, also the network or the backbone.

        The printed configuration has a section `model:`, in which lines `type: ` name the network and the backbone. A
        launcher may print a label before each line, here `0: `, which has the same length on all lines.

            0: model:
            0:   type: FCN           -> the network: indented as the first line of the section
            0:   backbone:
            0:     type: HRNet_W48   -> the backbone: in the block `backbone:`, indented by 2 spaces more
            0: iters: 1000           -> the end of the section: not indented

        A line `type: ` of another block of the section, such as one of losses, is ignored. Of several lines that name
        the network, the first one counts, and so for the backbone.

        Args:
            line: Number of the line in the log.
            text: The line. Lines must come in their order, because a section begins on an earlier line.
        """
        super().read_before_rows(line, text)  # all values except network and backbone
        head = _HEAD_OF_MODEL_SECTION.fullmatch(text)
        if head:
            self._model_section = _ModelSection(label_length=len(head["label"]))
            return
        section = self._model_section
        if section is None:
            return

        after_label = text[section.label_length :]  # whatever the label is
        entry = after_label.lstrip(" ")
        indent = len(after_label) - len(entry)
        if not entry:
            return
        if indent == 0:
            self._model_section = None  # the section has ended
            return

        if section.indent is None:
            section.indent = indent  # of the first line of the section
        if indent == section.indent:
            section.is_in_backbone = entry.startswith("backbone:")  # YAML may print an anchor behind it: `&id001`
        if not entry.startswith("type: "):
            return
        kind = entry.removeprefix("type: ").strip()
        if indent == section.indent:
            self.take_fact("network", kind, line)
        elif indent == section.indent + 2 and section.is_in_backbone:
            self.take_fact("backbone", kind, line)

    def name_of_precision(self, word: str) -> str | None:
        """Return the name of a precision in a record, such as "amp_o1" for `--precision fp16 --amp_level O1`.

        Args:
            word: The precision as `--precision` states it.

        Returns:
            "amp_" and the level for "fp16" with a level, and "amp" for "fp16" without one. "fp32" for "fp32". None for
            any other word.
        """
        level = self.value("level")  # of `--amp_level`, or of the trainer's line `AMP level = O2`; None without them
        if word == "fp16" and level:
            return f"amp_{level.lower()}"
        return super().name_of_precision(word)  # by the pairs of `precision_names`

    def finish_facts(self) -> None:
        """Set model, batch size, precision, devices, software versions and math mode from what the log states.

        Call this after the last line.
        """
        self._set_model()
        if "amp" in self.facts_by_name:  # the option `--fp16` of older releases, or the trainer's own words
            self.set_if_unset("precision", "fp16", self.line_of("amp"))
        # A line with the option `--batch_size` of the command line has set the field already, and counts.
        self.set_if_unset_from("batch_per_device", "batch_of_config")
        super().finish_facts()  # last: it also turns the text of the batch size into a number

    def _set_model(self) -> None:
        """Set the model to the network and, if the log names it, its backbone, such as "FCN HRNet_W48"."""
        network = self.facts_by_name.get("network")
        if network is None:
            return
        parts = [network.value, self.value("backbone")]
        self.set_if_unset("model", " ".join(part for part in parts if part), network.line)
