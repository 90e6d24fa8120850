"""PaddleClas logs, as `ppcls/static/program.py` and `ppcls/engine/train/utils.py` print them.

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

from __future__ import annotations

import dataclasses
import re
from typing import Any

from scoring.importers.paddle_launch import Launch
from scoring.importers.table import Around, At, Columns, Spent, Table, counted, mean_time
from scoring.importers.text import Fact, RowPattern, field, integer, number, positive, wait_within

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
STATIC_HEAD = re.compile(_STAMP + r"epoch:(\d{1,9})\s+train step:(\d{1,9})")
DYGRAPH_HEAD = re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/\d+\]")
_UNIT = re.compile(r" ips: \S+ (\w+)/s")
_COSTS = (field(" (?:batch_cost|elapse): ", r" ?s\b"), field(" ips: ", r" \w+/s"))
_OTHERS = (field(" reader_cost: ", r"(?: ?s)?(?:[,\s]|$)"), field(" loss: +"), re.compile(" (elapse): "), _UNIT)
STATIC_ROW = RowPattern(STATIC_HEAD, _COSTS, _OTHERS)
DYGRAPH_ROW = RowPattern(DYGRAPH_HEAD, _COSTS, _OTHERS)
_CONFIG = re.compile(r"(?:\] \w+ |^\S+ \S+ )INFO: ( *)(\w+) : ?(.*)$")
_END = re.compile(r"END epoch:(\d{1,9})\s+train\b|\[Train\]\[Epoch (\d{1,9})(?:/\d{1,9})?\]\[Avg\]")
_AMP = ("AMP", "use_amp", "use_pure_fp16")
_FACTS = {  # paths of the configuration
    "DataLoader.Train.sampler.batch_size": "batch",
    "TRAIN.batch_size": "batch_of_all",  # old releases divide it by the number of trainers
    "Arch.name": "model",
    "ARCHITECTURE.name": "model",
    "Global.epochs": "epochs",
}


class _Around(Launch):
    """The indented configuration that PaddleClas prints at the start, and the ends of epochs."""

    evaluation = re.compile(
        r"(?:\[Eval\]\[Epoch (?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[Avg\]|END (?:eval|valid)\b)"
        r".*?\btop1: +(?P<value>[-\d.]+)"
    )
    quality = "top1"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._path: list[tuple[int, str]] = []
        self._amp: dict[str, Fact] = {}
        self._ended: set[int] = set()
        self.total_s = self.waited_s = 0.0  # of the epoch's averaged steps

    def before(self, line: int, text: str) -> None:
        """Take what the line says."""
        super().before(line, text)
        if "INFO: " not in text or not (match := _CONFIG.search(text)):
            return
        indent, key, value = len(match[1]), match[2], match[3].strip()
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        self._path.append((indent, key))
        path = ".".join(name for _, name in self._path)
        self.said.setdefault("config", Fact(True, line))
        if path in _FACTS:
            self.said.setdefault(_FACTS[path], Fact(value, line))
        elif path in _AMP or path.startswith("AMP."):
            self._amp[key] = Fact(value, line)

    def begins(self, text: str, row: Columns) -> None:
        """Steps of the old releases count from 0."""
        if row["old"]:
            self.first_step = 0

    def after(self, line: int, text: str) -> None:
        """The end of an epoch's training, or an evaluation of the last epoch where it does not say of which."""
        if found := _END.search(text):
            self._ended.add(int(found[1] or found[2]))
        elif found := self.evaluation.search(text):
            epoch = found["epoch"] or str(self.last and self.last.epoch)
            self.draft.evaluated(line, self.quality, found["value"], epoch=epoch)

    def finish(self) -> None:
        """Precision: without an AMP section, or with `use_amp : False`, PaddleClas trains in FP32."""
        self.count("batch_per_device", "batch")
        self.count("batch_of_all", "batch_of_all")
        self.fact("model", "model")
        amp = {key: str(fact.value) for key, fact in self._amp.items()}
        precision = "amp_o1"
        if amp.get("use_pure_fp16") == "True":
            precision = "amp_o2"
        elif not amp or amp.get("use_amp") == "False":
            precision = "fp32"
        elif amp.get("level") == "O2":
            precision = "amp_o2"
        if "config" in self.said:
            line = min((fact.line for fact in self._amp.values()), default=self.said["config"].line)
            self.draft.fact("precision", precision, line)
        super().finish()
        epoch, epochs = self.last.epoch if self.last else None, integer(self.text("epochs"))
        last_epoch = (epochs or 0) - 1 if self.draft.said("cumulative") else epochs or 0
        self.draft.truncated = epoch not in self._ended or (epochs is not None and (epoch or 0) < last_epoch)


class _AroundStatic(_Around):
    def finish(self) -> None:
        """Printed rates are averages, and epochs count from 0."""
        self.draft.fact("cumulative", True)
        super().finish()


def steps_averaged(step: int) -> int:
    """Steps behind the static log's average at 1-based `step`: the meters are reset before the fifth."""
    return step if step < 5 else step - 4


def _averages(around: Around, at: At, row: Columns) -> Spent:
    """How the static-graph trainer counts: averages of the epoch, which are differenced."""
    assert isinstance(around, _Around)
    cost_s, rate, wait_s = positive(row["time"]), positive(row["rate"]), number(row["wait"])
    assert cost_s is not None
    if row["old"] and around.batch.images and rate:
        cost_s = around.batch.images / rate
        row["time"] = str(cost_s)
    last_epoch, last_step = around.last or (-1, -1)
    count, resets = (at.step + 1, False) if row["old"] else (steps_averaged(at.step), last_step < 5 <= at.step)
    total_s, waited_s = cost_s * count, None if wait_s is None else wait_s * count
    if at.epoch != last_epoch or at.step <= last_step or resets:
        steps, seconds, waited_here = count, total_s, waited_s
    else:
        steps, seconds = at.step - last_step, total_s - around.total_s
        waited_here = None if waited_s is None else max(0.0, waited_s - around.waited_s)
    around.total_s, around.waited_s = total_s, waited_s or 0.0
    spent_s = seconds if seconds > 0 else None
    return steps, spent_s, wait_within(waited_here, spent_s)


def _steps(around: Around, at: At) -> int | None:
    """How the dynamic-graph trainer counts: its rows are of their own steps, but for the first of an epoch."""
    last = around.last
    if last is None and at.step:
        return None  # the log's start is lost: an epoch's first row is of iteration 0
    start = last.step if last and at.epoch == last.epoch and at.step > last.step else -1
    return at.step - max(start, 4) if start < 5 <= at.step else at.step - start


DYGRAPH = Table(
    marker="[Train][Epoch ",
    own="INFO: ",
    row=DYGRAPH_ROW,
    columns="stamp epoch step time rate wait loss old unit",
    needs="time",
    spent=counted(_steps, mean_time),
    others=("END ", "[Avg]"),
    around=_Around,
    first_step=0,
    always={"rate_scope": "device"},
    rows_tell_batch=True,
)
STATIC = dataclasses.replace(
    DYGRAPH, marker="train step:", row=STATIC_ROW, spent=_averages, around=_AroundStatic, first_step=1
)
