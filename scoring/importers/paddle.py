"""Logs of Paddle's own training tools, and what its launcher and runtime print around any of them.

PaddlePaddle/models 1.8, PaddleCV/image_classification (DLPerf's): utils/utility.py
         2020-08-25 11:26:21,123-INFO: [Pass 0, train batch 19] \tloss .., acc1 .., acc5 .., lr .., elapse 0.35 sec
         Batches count from 0 in each pass; `elapse` is the time of that one batch; the time stamp may be absent. The
         printed `batch_size` is that of one process, whatever its devices: batch and devices come from options.
PaddleSeg: paddleseg/core/train.py
         Y-M-D h:m:s [INFO]\t[TRAIN] epoch: 1, iter: 15/400, loss: .., lr: .., batch_cost: .., reader_cost: ..,
         ips: .. samples/sec | ETA ..   (older releases: `epoch=1, iter=15/400, .., ips=..`)
         The costs are those of the window; `iter` counts through the whole run.
PaddleClas: ppcls/static/program.py and ppcls/engine/train/utils.py
static   [Y/M/D h:m:s] ppcls INFO: epoch:0   train step:10   lr: .., loss: .. batch_cost: .. s, reader_cost: .. s,
         ips: .. samples/sec.
         The costs are averages since step 5 of the epoch, where the meters are reset: here they are differenced.
old      Y-M-D h:m:s INFO: epoch:0   train step:10   loss: .. elapse: 0.096s ips: .. images/sec.
         Steps count from 0, and the averages from the epoch's start; the rate has the digits that `elapse` lacks.
dygraph  [Y/M/D h:m:s] ppcls INFO: [Train][Epoch 1/120][Iter: 10/626]lr(..): .., loss: .., batch_cost: ..s,
         reader_cost: .., ips: .. samples/s, eta: ..
         The costs are those of the window; the meters are reset at iteration 5 of the epoch too.
`ips` is that of rank 0 alone in all of them.
"""

import re

from scoring.importers.lines import Lines
from scoring.importers.table import At, Columns, EpochTable, Fact, RowTime, Table
from scoring.importers.text import RowPattern, field, integer, number, positive, wait_within

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
_COSTS = (field(" (?:batch_cost|elapse): ", r" ?s\b"), field(" ips: ", r" \w+/s"))
_OTHERS = (
    field(" reader_cost: ", r"(?: ?s)?(?:[,\s]|$)"),
    field(" loss: +"),
    re.compile(" (elapse): "),
    re.compile(r" ips: \S+ (\w+)/s"),
)
_CONFIG = re.compile(r"(?:\] \w+ |\d\d:\d\d:\d\d(?:,\d+)? )INFO: ( *)(\w+) : ?(.*)$")
_END = re.compile(r"END epoch:(\d{1,9})\s+train\b|\[Train\]\[Epoch (\d{1,9})(?:/\d{1,9})?\]\[Avg\]")
_PATHS = {  # of the configuration
    "DataLoader.Train.sampler.batch_size": "batch_per_device",
    "TRAIN.batch_size": "batch_of_all",  # old releases divide it by the number of trainers
    "Arch.name": "model",
    "ARCHITECTURE.name": "model",
    "Global.epochs": "epochs_wanted",
}


class Launch(Table):
    """Gathers devices, nodes, versions and the math mode from the lines before training starts."""

    framework = "PaddlePaddle"
    # paddle/distributed/launch (context/args, controllers), fleet/launch_utils.py, phi/backends/gpu/gpu_resources.cc
    facts_around = re.compile(
        r"PADDLE_TRAINERS_NUM\s+(?P<trainers>\d{1,9})"
        r"|\bnnodes: (?P<nodes>\d{1,9})(?:\s|$)"
        r"|replicas (?P<replicas>\d{1,9}), status "
        r"|GPU Compute Capability: (?P<capability>\d{1,9})\.\d+, Driver API Version: [\d.]+, "
        r"Runtime API Version: (?P<cuda>[\d.]+)"
        r"|device: \d+, cuDNN Version: (?P<cudnn>\d+(?:\.\d+)*)"
        r"|nccl context nranks: (?P<nranks>\d{1,9}) local rank: \d+ gpu id: \d+ ring id: 0\b"
        r"|GPUs used: (?P<gpus>\d{1,9})"
        r"|PaddlePaddle: (?P<paddle>\d[\w.+-]*)"
        r"|train with paddle (?P<trained_with>\d[\w.+-]*)"
        r"|NVIDIA_TF32_OVERRIDE\W+(?P<tf32>[01])\b"
    )

    def finish(self) -> None:
        """FP32 products run as TF32 from capability 8.0 on, unless NVIDIA_TF32_OVERRIDE=0: CUDA's libraries do so."""
        places = {"PADDLE_TRAINERS_NUM": "trainers", "NCCL's nranks": "nranks", "GPUs used": "gpus"}
        ranks = {
            place: Fact(int(self.value(name)) or None, self.said[name].line)
            for place, name in places.items()
            if name in self.said
        }
        nodes, pods = integer(self.value("nodes")), self.said.get("replicas")  # processes of one node
        if pods and nodes is not None:
            ranks = {"replicas x nnodes": Fact(int(pods.value) * nodes, pods.line), **ranks}
        self.agreed("devices", ranks)
        name = "paddle" if "paddle" in self.said else "trained_with"
        if version := self.value(name):
            self.software["paddlepaddle"] = version
            self.derive("framework", name, f"PaddlePaddle {version}")
        self.software |= {name: version for name in ("cudnn", "cuda") if (version := self.value(name))}
        super().finish()
        if (capability := self.value("capability")) and self.value("precision") == "fp32":
            modern = int(capability) >= 8 and self.value("tf32") != "0"
            self.derive("math_mode", "capability", "tf32" if modern else "fp32")


class Paddle18(Launch, EpochTable):
    """Rows of single batches."""

    marker = "train batch "
    tool = "[Pass "
    row = RowPattern(
        re.compile(
            r"(?:(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?)[^\[]{0,60})?"
            r"\[Pass (\d{1,9}), train batch (\d{1,9})\]"
        ),
        (field(" elapse ", " sec"),),
        (field(r"\sloss "),),
    )
    columns = "stamp epoch step time loss"
    first_step = 0
    facts = re.compile(r"^\W*(?:use_)?fp16: (?P<precision>True|False)|^model: (?P<model>\w+)\s*$")
    precisions = (("True", "amp_o1"), ("False", "fp32"))
    evaluation = re.compile(r"\[End pass (?P<epoch>\d{1,9}), .*?test acc1 (?P<value>[\d.]+)")
    quality = "acc1"


class PaddleSeg(Launch):
    """Rows, the launcher's lines, the configuration, and the command line, which overrides it."""

    marker = "[TRAIN] epoch"
    tool = "[INFO]"
    row = RowPattern(
        re.compile(
            r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \[INFO\]\s*)?"
            r"\[TRAIN\] epoch[:=] ?(\d{1,9}), iter[:=] ?(\d{1,9})/(\d{1,9})"
        ),
        (field(" batch_cost[:=] ?", r"[,\s]"), re.compile(r"( ips[:=] ?\S+ \w+/s| \|)")),  # or it was cut
        (
            field(" reader_cost[:=] ?", r"[,\s]"),
            field(" loss[:=] ?"),
            field(" ips[:=] ?", r" \w+/s"),
            re.compile(r" ips[:=] ?\S+ (\w+)/s"),
        ),
    )
    columns = "stamp epoch step of time cut wait loss rate unit"
    needs = "time"
    mean_time = True
    rows_tell_batch = True
    segmentation = True
    facts = re.compile(
        r"(?<![\w.])batch_size: (?P<in_file>\d{1,9})\s*$|--batch_size[ =](?P<batch_per_device>\d{1,9})\b"
        r"|--precision[ =](?P<precision>\w+)|--amp_level[ =](?P<level>\w+)"
    )
    evaluation = re.compile(r"\[EVAL\].*?\bmIoU[:=] ?(?P<value>[\d.]+)")
    quality = "mIoU"
    _section = ""

    def before(self, line: int, text: str) -> None:
        """Take what the line says; `type` is the model's in its section, and its backbone's one step deeper."""
        super().before(line, text)
        if text[:1] not in (" ", ""):
            self._section = text
        elif self._section.startswith("model:") and (found := re.match(r"(  |    )type: (.*)", text)):
            self.state("network" if found[1] == "  " else "backbone", found[2].strip(), line)

    def finish(self) -> None:
        self.precisions = (("fp32", "fp32"), ("", f"amp_{(self.value('level') or 'O1').lower()}"))
        self.derive("model", "network", " ".join(filter(None, (self.value("network"), self.value("backbone")))))
        self.derive("batch_per_device", "in_file")
        super().finish()


class Dygraph(Launch):
    """The dynamic-graph trainer, with the indented configuration that PaddleClas prints, and the ends of epochs."""

    marker = "[Train][Epoch "
    tool = "INFO: "
    row = RowPattern(re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/\d+\]"), _COSTS, _OTHERS)
    columns = "stamp epoch step time rate wait loss old unit"
    needs = "time"
    first_step = 0
    mean_time = True
    rows_tell_batch = True
    evaluation = re.compile(
        r"(?:\[Eval\]\[Epoch (?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[Avg\]|END (?:eval|valid)\b)"
        r".*?\btop1: +(?P<value>[-\d.]+)"
    )
    quality = "top1"
    first_epoch = 1

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._path: list[tuple[int, str]] = []
        self._amp: dict[str, Fact] = {}
        self._ended: set[int] = set()

    def before(self, line: int, text: str) -> None:
        super().before(line, text)
        if "INFO: " not in text or not (match := _CONFIG.search(text)):
            return
        indent, key, value = len(match[1]), match[2], match[3].strip()
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        self._path.append((indent, key))
        path = ".".join(name for _, name in self._path)
        self.say("config", True, line)
        if path in _PATHS:
            self.say(_PATHS[path], value, line)
        elif path in ("AMP", "use_amp", "use_pure_fp16") or path.startswith("AMP."):
            self._amp[key] = Fact(value, line)

    def begins(self, text: str, row: Columns) -> None:
        """Steps of the old releases count from 0."""
        if row["old"]:
            self.first_step = 0

    def after(self, line: int, text: str) -> None:
        """The end of an epoch's training, or an evaluation."""
        super().after(line, text)
        if found := _END.search(text):
            self._ended.add(int(found[1] or found[2]))

    def finish(self) -> None:
        """Precision: without an AMP section, or with `use_amp : False`, PaddleClas trains in FP32."""
        amp = {key: fact.value for key, fact in self._amp.items()}
        pure = amp.get("use_pure_fp16") == "True"
        precision = "amp_o2" if pure or amp.get("level") == "O2" else "amp_o1"
        if not amp or (amp.get("use_amp") == "False" and not pure):
            precision = "fp32"
        if "config" in self.said:
            line = min((fact.line for fact in self._amp.values()), default=self.said["config"].line)
            self.say("precision", precision, line)
        super().finish()
        epoch, epochs = self.last.epoch if self.last else None, integer(self.value("epochs_wanted"))
        unfinished = epochs is not None and (epoch or 0) < epochs - 1 + self.first_epoch
        self.truncated = epoch not in self._ended or unfinished

    def steps(self, at: At) -> int | None:
        """Rows are of their own steps, but for the first of an epoch."""
        last = self.last
        if last is None and at.step:
            return None  # the log's start is lost: an epoch's first row is of iteration 0
        start = last.step if last and at.epoch == last.epoch and at.step > last.step else -1
        return at.step - max(start, 4) if start < 5 <= at.step else at.step - start


class Static(Dygraph):
    """The static-graph trainer: rows are averages of the epoch, which are differenced; epochs count from 0."""

    marker = "train step:"
    row = RowPattern(re.compile(_STAMP + r"epoch:(\d{1,9})\s+train step:(\d{1,9})"), _COSTS, _OTHERS)
    first_step = 1
    first_epoch = 0
    cumulative = True
    _total_s = _waited_s = 0.0  # of the epoch's averaged steps

    def time(self, at: At, row: Columns) -> RowTime:
        """The difference of two averages; newer releases reset the meters before an epoch's fifth step."""
        cost_s, rate, wait_s = positive(row["time"]), positive(row["rate"]), number(row["wait"])
        assert cost_s is not None
        if row["old"] and self.batch.images and rate:
            cost_s = self.batch.images / rate
            row["time"] = str(cost_s)
        last_epoch, last_step = self.last or (-1, -1)
        resets = not row["old"] and last_step < 5 <= at.step
        count = at.step + 1 if row["old"] else at.step if at.step < 5 else at.step - 4
        total_s, waited_s = cost_s * count, None if wait_s is None else wait_s * count
        steps = at.step - last_step
        if at.epoch != last_epoch or steps <= 0 or resets:
            steps, self._total_s, self._waited_s = count, 0.0, 0.0
        seconds = total_s - self._total_s if total_s > self._total_s else None
        waited_here = None if waited_s is None else max(0.0, waited_s - self._waited_s)
        self._total_s, self._waited_s = total_s, waited_s or 0.0
        return steps, seconds, wait_within(waited_here, seconds)
