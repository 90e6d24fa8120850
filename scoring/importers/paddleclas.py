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

import re
from collections.abc import Callable

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import (
    Draft,
    Lines,
    RowBatch,
    RowPattern,
    field,
    integer,
    moment_s,
    number,
    of_steps,
    positive,
    rows,
    wait_within,
    whole,
)
from scoring.record import Window

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
STATIC_HEAD = re.compile(_STAMP + r"epoch:(\d{1,9})\s+train step:(\d{1,9})")
DYGRAPH_HEAD = re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/\d+\]")
_COSTS = (field(" (?:batch_cost|elapse): ", r" ?s\b"), field(" ips: ", r" \w+/s"))
_OTHERS = (field(" reader_cost: ", r"(?: ?s)?(?:[,\s]|$)"), field(" loss: +"), re.compile(" (elapse): "))
STATIC_ROW = RowPattern(STATIC_HEAD, _COSTS, _OTHERS)
DYGRAPH_ROW = RowPattern(DYGRAPH_HEAD, _COSTS, _OTHERS)
_CONFIG = re.compile(r"(?:\] \w+ |^\S+ \S+ )INFO: ( *)(\w+) : ?(.*)$")
_END = re.compile(r"END epoch:(\d{1,9})\s+train\b|\[Train\]\[Epoch (\d{1,9})(?:/\d{1,9})?\]\[Avg\]")
_EVAL = re.compile(r"(?:\[Eval\]\[Epoch (\d{1,9})(?:/\d{1,9})?\]\[Avg\]|END (?:eval|valid)\b).*?\btop1: +([-\d.]+)")


def steps_averaged(step: int) -> int:
    """Steps behind the static log's average at 1-based `step`: the meters are reset before the fifth."""
    return step if step < 5 else step - 4


class _Config:
    """The indented configuration that PaddleClas prints at the start."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._path: list[tuple[int, str]] = []
        self._amp: dict[str, str] = {}
        self._amp_line = 0
        self._line = 0
        self.epochs: int | None = None

    def read(self, line: int, text: str) -> None:
        """Take what the line says."""
        if "INFO: " not in text or not (match := _CONFIG.search(text)):
            return
        indent, key, value = len(match[1]), match[2], match[3].strip()
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        self._path.append((indent, key))
        path = ".".join(name for _, name in self._path)
        self._line = self._line or line
        if path == "DataLoader.Train.sampler.batch_size":
            self._draft.count("batch_per_device", value, line)
        elif path == "TRAIN.batch_size":  # old releases divide it by the number of trainers
            self._draft.count("batch_of_all", value, line)
        elif path in ("Arch.name", "ARCHITECTURE.name"):
            self._draft.fact("model", value, line)
        elif path == "Global.epochs":
            self.epochs = integer(value)
        elif path in ("AMP", "use_amp", "use_pure_fp16") or path.startswith("AMP."):
            self._amp[key] = value
            self._amp_line = self._amp_line or line

    def finish(self) -> None:
        """Precision: without an AMP section, or with `use_amp : False`, PaddleClas trains in FP32."""
        if not self._line:
            return
        if self._amp.get("use_pure_fp16") == "True":
            precision = "amp_o2"
        elif not self._amp or self._amp.get("use_amp") == "False":
            precision = "fp32"
        elif self._amp.get("level") == "O2":
            precision = "amp_o2"
        else:
            precision = "amp_o1"
        self._draft.fact("precision", precision, self._amp_line or self._line)


_Took = tuple[int | None, float | None, float | None]  # steps of a row, their seconds, and the wait in them
_At = tuple[int, int]  # epoch and step of a row


class _Averages:
    """How the static-graph trainer counts: averages of the epoch, which are differenced."""

    def __init__(self) -> None:
        self._total = self._waited = 0.0  # of the epoch's averaged steps

    def take(self, last: _At, at: _At, cost: float, wait: float | None, is_old: bool, begun: bool) -> _Took:
        """The steps since the row before."""
        (last_epoch, last_step), (epoch, step) = last, at
        count, resets = (step + 1, False) if is_old else (steps_averaged(step), last_step < 5 <= step)
        total, waited = cost * count, None if wait is None else wait * count
        if epoch != last_epoch or step <= last_step or resets:
            steps, seconds, waited_here = count, total, waited
        else:
            steps, seconds = step - last_step, total - self._total
            waited_here = None if waited is None else max(0.0, waited - self._waited)
        self._total, self._waited = total, waited or 0.0
        return steps, seconds if seconds > 0 else None, waited_here


def _windows(last: _At, at: _At, cost: float, wait: float | None, is_old: bool, begun: bool) -> _Took:
    """How the dynamic-graph trainer counts: its rows are of their own steps, but for the first of an epoch."""
    (last_epoch, last_step), (epoch, step) = last, at
    start = last_step if epoch == last_epoch and step > last_step else -1
    count = step - max(start, 4) if start < 5 <= step else step - start
    steps = count if begun or step == 0 else None  # the log's start is lost: an epoch's first row is of iteration 0
    return steps, *of_steps(steps, cost, wait)


def read_static(lines: Lines) -> Draft:
    """A log of PaddleClas's static-graph trainer, or of its old releases."""
    draft = _read(lines, "train step:", STATIC_ROW, _Averages().take, first_epoch=0)
    draft.fact("cumulative", True)
    draft.fact("first_step", 1)
    return draft


def read_dygraph(lines: Lines) -> Draft:
    """A log of PaddleClas's dynamic-graph trainer."""
    draft = _read(lines, "[Train][Epoch ", DYGRAPH_ROW, _windows, first_epoch=1)
    draft.fact("first_step", 0)
    return draft


def _read(lines: Lines, marker: str, pattern: RowPattern, take: Callable[..., _Took], *, first_epoch: int) -> Draft:
    draft = Draft()
    launch, config, batch = Launch(draft), _Config(draft), RowBatch()
    ended: set[int] = set()
    last = -1, -1
    for line, text, values in rows(lines, marker, "INFO: ", pattern, ("END ", "[Avg]")):
        if values is None:
            if not draft.has_rows:
                config.read(line, text)
                launch.read(line, text)
            if found := _END.search(text):
                ended.add(int(found[1] or found[2]))
            elif found := _EVAL.search(text):
                draft.evaluated(line, "top1", found[2], epoch=found[1] or str(last[0]))
            continue
        stamp, epoch_text, step_text, cost_text, rate_text, wait_text, loss, is_old = values
        at, cost, rate = (whole(epoch_text), whole(step_text)), positive(cost_text), positive(rate_text)
        if cost is None or at == last:
            continue
        batch.read(line, rate_text, cost_text, cost)
        if is_old:
            draft.fact("first_step", 0)
            cost = batch.images / rate if batch.images and rate else cost
        steps, seconds, waited = take(last, at, cost, number(wait_text), bool(is_old), draft.has_rows)
        last = at
        draft.row(
            Window(
                line=line,
                step=at[1],
                epoch=at[0],
                steps=steps,
                seconds=seconds,
                data_wait_s=wait_within(waited, seconds),
                printed_rate=rate,
                printed_step_time_s=cost,
                end_s=moment_s(stamp),
                loss=number(loss),
            )
        )
    config.finish()
    launch.finish()
    batch.finish(draft)
    draft.fact("rate_scope", "device")
    unfinished = config.epochs is not None and last[0] + 1 - first_epoch < config.epochs
    draft.truncated = last[0] not in ended or unfinished
    return draft
