"""PaddleClas logs, as `ppcls/static/program.py` and `ppcls/engine/train/utils.py` print them.

static   [Y/M/D h:m:s] ppcls INFO: epoch:0   train step:10   lr: .., loss: .. batch_cost: .. s, reader_cost: .. s,
         ips: .. samples/sec.
         The costs are averages since step 5 of the epoch, where the meters are reset: here they are differenced.
dygraph  [Y/M/D h:m:s] ppcls INFO: [Train][Epoch 1/120][Iter: 10/626]lr(..): .., loss: .., batch_cost: ..s,
         reader_cost: .., ips: .. samples/s, eta: ..
         The costs are those of the window; the meters are reset at iteration 5 of the epoch too.
`ips` is that of rank 0 alone in both.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

from scoring.importers.paddle_launch import Launch
from scoring.importers.text import NUMBER, Builder, Lines, Stretch, integer, number, positive, rows

_STAMP = r"(?:\[?(\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]? (?:\w+ )?INFO: )?"
_COSTS = (  # in any order
    rf"(?=(?:.*?\bloss: +{NUMBER})?)(?=.*?\bbatch_cost: {NUMBER} ?s\b)"
    rf"(?=(?:.*?\breader_cost: {NUMBER}(?: ?s)?(?:[,\s]|$))?).*?\bips: {NUMBER} \w+/s"
)
STATIC_HEAD = re.compile(_STAMP + r"epoch:(\d{1,9})\s+train step:(\d{1,9})")
STATIC_ROW = re.compile(STATIC_HEAD.pattern + _COSTS)
DYGRAPH_HEAD = re.compile(_STAMP + r"\[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/\d+\]")
DYGRAPH_ROW = re.compile(DYGRAPH_HEAD.pattern + _COSTS)
# As the tool prints a row with nothing odd in it: many at once are read by it.
_STATIC_USUAL = re.compile(
    r"\[(.{19})\] ppcls INFO: epoch:(\d{1,9}) +train step:(\d{1,9}) +lr: [^,]+, loss: +([^ ]+) [^b\n]*"
    r"batch_cost: ([0-9.]+) s, reader_cost: ([0-9.]+) s, ips: ([0-9.]+) (?:samples|images)/s"
)
_DYGRAPH_USUAL = re.compile(
    r"\[(.{19})\] ppcls INFO: \[Train\]\[Epoch (\d{1,9})/\d+\]\[Iter: ?(\d{1,9})/\d+\].* loss: ([^,]+), "
    r"batch_cost: ([0-9.]+)s, reader_cost: ([0-9.]+), ips: ([0-9.]+) (?:samples|images)/s"
)
_NAMES = ("end", "epoch", "step", "loss", "cost", "wait", "rate")
_CONFIG = re.compile(r"\] \w+ INFO: ( *)(\w+) : ?(.*)$")
_END = re.compile(r"END epoch:(\d{1,9})\s+train\b(?:.*?\bbatch_cost: ([\d.]+) s.*?\bbatch_cost_sum: ([\d.]+) s)?")
_EVAL = re.compile(r"END (?:eval|valid)\b.*?\btop1: +([-\d.]+)")
_DYGRAPH_AVG = re.compile(r"\[(Train|Eval)\]\[Epoch (\d{1,9})(?:/(\d{1,9}))?\]\[Avg\]")
_TOP1 = re.compile(r"\btop1: ([-\d.]+)")


def steps_averaged(step: int) -> int:
    """Steps behind the static log's average at 1-based `step`: the meters are reset before the fifth."""
    return step if step < 5 else step - 4


class _Config:
    """The indented configuration that PaddleClas prints at the start."""

    def __init__(self, build: Builder) -> None:
        self._build = build
        self._path: list[tuple[int, str]] = []
        self._amp: dict[str, str] = {}
        self._line = 0
        self.epochs: int | None = None

    def read(self, line: int, text: str) -> None:
        if " INFO: " not in text or not (match := _CONFIG.search(text)):
            return
        indent, key, value = len(match[1]), match[2], match[3].strip()
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        self._path.append((indent, key))
        path = ".".join(name for _, name in self._path)
        self._line = self._line or line
        if path == "DataLoader.Train.sampler.batch_size":
            self._build.count("batch_per_device", value, line)
        elif path == "Arch.name":
            self._build.fact("model", value, line)
        elif path == "Global.epochs":
            self.epochs = integer(value)
        elif path == "AMP" or path.startswith("AMP."):
            self._amp[key] = value
            self._build.lines.setdefault("precision", line)

    def finish(self) -> None:
        """Precision: without an AMP section, or with `use_amp : False`, PaddleClas trains in FP32."""
        if not self._line:
            return
        if not self._amp or self._amp.get("use_amp") == "False":
            precision = "fp32"
        elif self._amp.get("level") == "O2" or self._amp.get("use_pure_fp16") == "True":
            precision = "amp_o2"
        else:
            precision = "amp_o1"
        self._build.fact("precision", precision, self._build.lines.get("precision", self._line))


def _differenced(means: Sequence[float], counts: Sequence[int], before: float) -> tuple[list[float], float]:
    """Seconds of each row from averages over `counts` steps, and the last total; `before` is that of the row before."""
    totals = list(map(operator.mul, means, counts))
    return list(map(operator.sub, totals, [before, *totals[:-1]])), totals[-1]


def read_static(lines: Lines) -> Builder:
    """A log of PaddleClas's static-graph trainer."""
    build = Builder()
    launch, config = Launch(build), _Config(build)
    ended: set[int] = set()
    last_epoch = last_step = -1
    total = waited = 0.0  # of the epoch's averaged steps
    for line, text, match in rows(
        lines,
        "train step:",
        "ppcls ",
        STATIC_HEAD,
        STATIC_ROW,
        _NAMES,
        usual=_STATIC_USUAL,
        others=("END ",),
        from_step=5,
    ):
        if match is None:
            if not build.rows:
                config.read(line, text)
                launch.read(line, text)
            elif "END " in text:
                if found := _END.search(text):
                    ended.add(int(found[1]))
                elif found := _EVAL.search(text):
                    build.evaluated(line, "top1", found[1], epoch=str(last_epoch))
            continue
        if isinstance(match, Stretch):
            last_step = match.step[-1]
            counts = list(map(steps_averaged, match.step))
            times, total = _differenced(match.columns["cost"], counts, total)
            waits = None
            if "wait" in match.columns:
                waits, waited = _differenced(match.columns["wait"], counts, waited)
                waits = [wait if wait > 0 else 0.0 for wait in waits]
            else:
                waited = 0.0
            build.stretch(match, seconds=[time if time > 0 else None for time in times], waits=waits)
            continue
        end, epoch_text, step_text, loss, cost_text, wait_text, rate_text = match.groups()
        epoch, step, cost, wait = int(epoch_text), int(step_text), positive(cost_text), number(wait_text)
        if cost is None:
            continue
        count = steps_averaged(step)
        if epoch != last_epoch or step <= last_step or (last_step < 5 <= step):
            if (epoch, step) == (last_epoch, last_step):
                continue
            steps, seconds, waited_here = count, cost * count, None if wait is None else wait * count
        else:
            steps, seconds = step - last_step, cost * count - total
            waited_here = None if wait is None else max(0.0, wait * count - waited)
        total, waited = cost * count, (wait or 0.0) * count
        last_epoch, last_step = epoch, step
        build.row(
            line,
            step,
            epoch,
            steps=steps,
            seconds=seconds if seconds > 0 else None,
            wait_s=waited_here,
            rate=positive(rate_text),
            step_time_s=cost,
            end=end,
            loss=loss,
        )
    config.finish()
    launch.finish()
    build.facts.update(rate_scope="device", cumulative=True)
    build.truncated = last_epoch not in ended or (config.epochs is not None and last_epoch + 1 < config.epochs)
    return build


def read_dygraph(lines: Lines) -> Builder:
    """A log of PaddleClas's dynamic-graph trainer."""
    build = Builder()
    launch, config = Launch(build), _Config(build)
    ended: set[int] = set()
    last_epoch = last_step = -1
    for line, text, match in rows(
        lines,
        "[Train][Epoch ",
        "ppcls ",
        DYGRAPH_HEAD,
        DYGRAPH_ROW,
        _NAMES,
        usual=_DYGRAPH_USUAL,
        others=("[Avg]",),
        from_step=5,
    ):
        if "[Avg]" in text and (found := _DYGRAPH_AVG.search(text)):
            if found[1] == "Train":
                ended.add(int(found[2]))
            elif top1 := _TOP1.search(text):
                build.evaluated(line, "top1", top1[1], epoch=found[2])
            continue
        if match is None:
            if not build.rows:
                config.read(line, text)
                launch.read(line, text)
            continue
        if isinstance(match, Stretch):
            last_step = match.step[-1]
            build.stretch_of_means(match)
            continue
        end, epoch_text, step_text, loss, cost_text, wait_text, rate_text = match.groups()
        epoch, step, cost, wait = int(epoch_text), int(step_text), positive(cost_text), number(wait_text)
        if cost is None or (epoch, step) == (last_epoch, last_step):
            continue
        start = last_step if epoch == last_epoch and step > last_step else -1
        steps = step - max(start, 4) if start < 5 <= step else step - start
        lost = not build.rows and step > 0  # the log's start: the first row of an epoch is that of iteration 0
        last_epoch, last_step = epoch, step
        build.row(
            line,
            step,
            epoch,
            steps=None if lost else steps,
            seconds=None if lost else cost * steps,
            wait_s=None if lost or wait is None else wait * steps,
            rate=positive(rate_text),
            step_time_s=cost,
            end=end,
            loss=loss,
        )
    config.finish()
    launch.finish()
    build.facts.update(rate_scope="device", cumulative=False, first_step=0)
    build.truncated = last_epoch not in ended or (config.epochs is not None and last_epoch < config.epochs)
    return build
