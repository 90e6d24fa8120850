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
_END = re.compile(r"END epoch:(\d{1,9})\s+train\b")
_EVAL = re.compile(r"END (?:eval|valid)\b.*?\btop1: +([-\d.]+)")
_DYGRAPH_AVG = re.compile(r"\[(Train|Eval)\]\[Epoch (\d{1,9})(?:/(\d{1,9}))?\]\[Avg\]")
_TOP1 = re.compile(r"\btop1: ([-\d.]+)")


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


def read_static(lines: Lines) -> Draft:
    """A log of PaddleClas's static-graph trainer, or of its old releases."""
    draft = Draft()
    launch, config, batch = Launch(draft), _Config(draft), RowBatch()
    ended: set[int] = set()
    last_epoch = last_step = -1
    total = waited = 0.0  # of the epoch's averaged steps
    first_step = 1
    for line, text, values in rows(lines, "train step:", "INFO: ", STATIC_ROW, ("END ",)):
        if values is None:
            if not draft.has_rows:
                config.read(line, text)
                launch.read(line, text)
            elif found := _END.search(text):
                ended.add(int(found[1]))
            elif found := _EVAL.search(text):
                draft.evaluated(line, "top1", found[1], epoch=str(last_epoch))
            continue
        stamp, epoch_text, step_text, cost_text, rate_text, wait_text, loss, is_old = values
        epoch, step, cost, wait = whole(epoch_text), whole(step_text), positive(cost_text), number(wait_text)
        if cost is None or (epoch, step) == (last_epoch, last_step):
            continue
        rate = positive(rate_text)
        batch.read(line, rate_text, cost_text, cost)
        if is_old:
            first_step, count, resets = 0, step + 1, False
            cost = batch.images / rate if batch.images and rate else cost
        else:
            count, resets = steps_averaged(step), last_step < 5 <= step
        if epoch != last_epoch or step <= last_step or resets:
            steps, seconds, waited_here = count, cost * count, None if wait is None else wait * count
        else:
            steps, seconds = step - last_step, cost * count - total
            waited_here = None if wait is None else max(0.0, wait * count - waited)
        total, waited = cost * count, (wait or 0.0) * count
        last_epoch, last_step = epoch, step
        own_time = seconds if seconds > 0 else None
        draft.row(
            Window(
                line=line,
                step=step,
                epoch=epoch,
                steps=steps,
                seconds=own_time,
                data_wait_s=wait_within(waited_here, own_time),
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
    draft.fact("cumulative", True)
    draft.fact("first_step", first_step)
    draft.truncated = last_epoch not in ended or (config.epochs is not None and last_epoch + 1 < config.epochs)
    return draft


def read_dygraph(lines: Lines) -> Draft:
    """A log of PaddleClas's dynamic-graph trainer."""
    draft = Draft()
    launch, config, batch = Launch(draft), _Config(draft), RowBatch()
    ended: set[int] = set()
    last_epoch = last_step = -1
    for line, text, values in rows(lines, "[Train][Epoch ", "INFO: ", DYGRAPH_ROW, ("[Avg]",)):
        if values is None:
            if found := _DYGRAPH_AVG.search(text):
                if found[1] == "Train":
                    ended.add(int(found[2]))
                elif top1 := _TOP1.search(text):
                    draft.evaluated(line, "top1", top1[1], epoch=found[2])
            elif not draft.has_rows:
                config.read(line, text)
                launch.read(line, text)
            continue
        stamp, epoch_text, step_text, cost_text, rate_text, wait_text, loss, _ = values
        epoch, step, cost, wait = whole(epoch_text), whole(step_text), positive(cost_text), number(wait_text)
        if cost is None or (epoch, step) == (last_epoch, last_step):
            continue
        rate = positive(rate_text)
        batch.read(line, rate_text, cost_text, cost)
        start = last_step if epoch == last_epoch and step > last_step else -1
        count = step - max(start, 4) if start < 5 <= step else step - start
        lost = not draft.has_rows and step > 0  # the log's start: the first row of an epoch is that of iteration 0
        steps = None if lost else count
        seconds, waited = of_steps(steps, cost, wait)
        last_epoch, last_step = epoch, step
        draft.row(
            Window(
                line=line,
                step=step,
                epoch=epoch,
                steps=steps,
                seconds=seconds,
                data_wait_s=waited,
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
    draft.fact("first_step", 0)
    draft.truncated = last_epoch not in ended or (config.epochs is not None and last_epoch < config.epochs)
    return draft
