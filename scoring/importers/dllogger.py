"""NVIDIA DeepLearningExamples logs: DLLogger's standard output, in four dialects (rates are of all devices).

PyTorch     DLL <stamp> - Epoch: 0 Iteration: 1  train.loss : .. train.compute_ips : .. images/s
            train.total_ips : .. images/s ..     (total: data loading included; that is the rate taken)
TensorFlow  DLL <stamp> - (0, 200) total_ips : ..  |  DLL <stamp> - () train_throughput : .. images/s
MXNet       DLL <stamp> - Epoch: 2 Iteration: 419  train.loss : .. train.ips : .. images/s ..
Paddle      DLL <stamp> - Epoch: 0 Iteration: 10  train.loss : .. train.data_time : .. train.compute_time : ..
            train.batch_time : .. train.ips : .. images/s ..   (the times are of the last step alone)
"""

from __future__ import annotations

import re

from scoring.importers.text import NUMBER, Builder, Lines, Stretch, number, positive, rows
from scoring.record import Epoch

_STAMP = r"(?:DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - )?"
STEP_HEAD = re.compile(_STAMP + r"Epoch: (\d{1,9}) Iteration: (\d{1,9}) ")
PYTORCH_ROW = re.compile(STEP_HEAD.pattern + rf"(?=(?:.*?train\.loss : {NUMBER})?).*?train\.total_ips : {NUMBER} \w+/s")
MXNET_ROW = re.compile(STEP_HEAD.pattern + rf"(?=(?:.*?train\.loss : {NUMBER})?).*?train\.ips : {NUMBER} \w+/s")
PADDLE_ROW = re.compile(
    STEP_HEAD.pattern + rf"(?=(?:.*?train\.loss : {NUMBER})?)(?=(?:.*?train\.data_time : {NUMBER})?)"
    rf"(?=(?:.*?train\.batch_time : {NUMBER})?).*?train\.ips : {NUMBER}(?=\s|$)"
)
_NAMES = ("end", "epoch", "step", "loss", "rate")
_PADDLE_NAMES = ("end", "epoch", "step", "loss", "wait", "cost", "rate")
# As the tool prints a row with nothing odd in it: many at once are read by it.
_STEP_USUAL = r"DLL (.{26}) - Epoch: (\d{1,9}) Iteration: (\d{1,9})  train\.loss : ([^ ]+) "
_USUAL = {
    PYTORCH_ROW: re.compile(_STEP_USUAL + r".*train\.total_ips : ([0-9.]+) images/s"),
    MXNET_ROW: re.compile(_STEP_USUAL + r" train\.ips : ([0-9.]+) images/s"),
    PADDLE_ROW: re.compile(
        _STEP_USUAL
        + r".*?train\.data_time : ([-+0-9.e]+) .*?train\.batch_time : ([-+0-9.e]+) .*?train\.ips : ([0-9.]+)(?=[ \n])"
    ),
}
_TENSORFLOW_USUAL = re.compile(r"DLL (.{26}) - \((\d{1,9}), (\d{1,9})\) total_ips : ([0-9.]+)(?=[ \n])")
TENSORFLOW_HEAD = re.compile(_STAMP + r"\((\d{1,9}), (\d{1,9})\)")
TENSORFLOW_ROW = re.compile(TENSORFLOW_HEAD.pattern + rf".*?total_ips : {NUMBER}(?=\s|$)")
_TENSORFLOW_NAMES = ("end", "epoch", "step", "rate")
_EPOCH = re.compile(_STAMP + r"Epoch: (\d{1,9}) +(?!Iteration)")
_EPOCH_RATE = re.compile(rf"\btrain\.(?:total_)?ips : {NUMBER}(?=\s|$)")
_EPOCH_TIME = re.compile(rf"\btrain\.epoch_time : {NUMBER}")
_TOP1 = re.compile(rf"\b(val\.(?:top1|accuracy)) : {NUMBER}")
_PARAMETER = re.compile(r"(?:^|\s)([\w.]+) : (\[[^\]]*\]|\S+)")
_TENSORFLOW_FACT = re.compile(r"\b(Num GPUs|Per-GPU Batch Size) (\d{1,9})\s*$")
# The table that NVIDIA's MXNet benchmark.py prints last: batch sizes above, devices on the left.
_TABLE_HEAD = re.compile(r" {10,11}\|\s+(\d{1,9})\s+\|\s*$")
_OTHERS = ("Summary:", "   |")  # stand in lines after the first row that matter, beside those of "Epoch: "
_TABLE_ROW = re.compile(r"\s+(\d{1,9})\s+\|\s+[\d.e+]+\s+\|\s*$")


def _parameters(build: Builder, line: int, text: str) -> dict[str, str]:
    if "PARAMETER" not in text:
        return {}
    found = dict(_PARAMETER.findall(text.split("PARAMETER", 1)[1]))
    if "arch" in found:
        build.fact("model", found["arch"], line)
    build.count("batch_per_device", found.get("batch_size"), line)
    build.count("devices", found.get("world_size"), line)
    if "amp" in found or "dtype" in found:
        half = found.get("amp") == "True" or found.get("dtype") == "float16"
        build.fact("precision", "amp" if half else "fp32", line)
    return found


def _other_line(build: Builder, line: int, text: str) -> None:
    """Epoch rows, evaluations and the closing summary of the dialects that print epochs."""
    if "Summary:" in text:
        build.truncated = False
    elif "Epoch: " in text and "Iteration" not in text and (match := _EPOCH.search(text)):
        if rate := _EPOCH_RATE.search(text):
            seconds = _EPOCH_TIME.search(text)
            build.epochs.append(
                Epoch(
                    line=line,
                    epoch=int(match[2]),
                    printed_rate=positive(rate[1]),
                    seconds=positive(seconds[1]) if seconds else None,
                )
            )
        if top1 := _TOP1.search(text):
            build.evaluated(line, top1[1], top1[2], epoch=match[2])


class _Steps:
    """Steps of a window from a counter that may start anew in each epoch (`first` is its first value)."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._last: tuple[int, int] | None = None

    def take(self, epoch: int, step: int) -> int | None:
        """Steps since the last row, 0 for a row that repeats it; None of the log's first row, if not of one step."""
        last, self._last = self._last, (epoch, step)
        if last is None:
            self.first = min(self.first, step)
            return 1 if step == self.first else None
        if last[0] == epoch and step >= last[1]:
            return step - last[1]
        return step - self.first + 1

    def pass_over(self, stretch: Stretch) -> None:
        """The rows of a stretch, each of which says its own steps, were read."""
        assert self._last is not None
        self._last = (self._last[0], stretch.step[-1])


def _read_steps(lines: Lines, row: re.Pattern[str], first: int, framework: str) -> Builder:
    build = Builder()
    build.truncated = True  # until the closing summary is met
    counter = _Steps(first)
    has_times = row is PADDLE_ROW
    table_batch: tuple[str, int] | None = None
    names = _PADDLE_NAMES if has_times else _NAMES
    for line, text, match in rows(lines, "Epoch: ", "DLL ", STEP_HEAD, row, names, usual=_USUAL[row], others=_OTHERS):
        if match is None:
            if not build.rows:
                _parameters(build, line, text)
            else:
                _other_line(build, line, text)
                if found := _TABLE_HEAD.search(text):
                    table_batch = (found[1], line)
                elif table_batch and (found := _TABLE_ROW.search(text)):
                    build.count("devices", found[1], line)
                    build.count("batch_per_device", *table_batch)
            continue
        if isinstance(match, Stretch):
            counter.pass_over(match)
            build.stretch(match, seconds=match.of_single_steps("cost"), waits=match.of_single_steps("wait"))
            continue
        groups = match.groups()
        rate, epoch, step = positive(groups[-1]), int(groups[1]), int(groups[2])
        if rate is None:
            continue
        steps = counter.take(epoch, step)
        if steps == 0:
            continue
        wait = step_time = one = None
        if has_times:
            wait, step_time = number(groups[4]), positive(groups[5])
            one = step_time if steps == 1 else None  # of the other steps the log says no time
        build.row(
            line,
            step,
            epoch,
            steps=steps,
            seconds=one,
            wait_s=wait if one is not None else None,
            rate=rate,
            step_time_s=step_time,
            end=groups[0],
            loss=groups[3],
        )
    if len(lines.ranks) > 1:  # every rank that runs writes some warning
        build.fact("devices", max(lines.ranks) + 1, 0)
    build.fact("framework", framework, 0)
    build.facts.update(rate_scope="global", cumulative=False, first_step=counter.first)
    return build


def read_pytorch(lines: Lines) -> Builder:
    """A log of NVIDIA's PyTorch image classification."""
    return _read_steps(lines, PYTORCH_ROW, 1, "PyTorch")


def read_mxnet(lines: Lines) -> Builder:
    """A log of NVIDIA's MXNet ResNet-50."""
    return _read_steps(lines, MXNET_ROW, 0, "MXNet")


def read_paddle(lines: Lines) -> Builder:
    """A log of NVIDIA's Paddle ResNet-50."""
    return _read_steps(lines, PADDLE_ROW, 1, "PaddlePaddle")


def read_tensorflow(lines: Lines) -> Builder:
    """A log of NVIDIA's TensorFlow image classification."""
    build = Builder()
    build.truncated = True  # until the closing train_throughput is met
    counter = _Steps(0)
    for line, text, match in rows(
        lines,
        " - (",
        "DLL ",
        TENSORFLOW_HEAD,
        TENSORFLOW_ROW,
        _TENSORFLOW_NAMES,
        usual=_TENSORFLOW_USUAL,
        others=("train_throughput : ",),
    ):
        if match is None:
            if not build.rows:
                _parameters(build, line, text)
                if found := _TENSORFLOW_FACT.search(text):
                    build.count("devices" if found[1] == "Num GPUs" else "batch_per_device", found[2], line)
            elif "train_throughput : " in text:
                build.truncated = False
            continue
        if isinstance(match, Stretch):
            counter.pass_over(match)
            build.stretch(match)
            continue
        groups = match.groups()
        rate, epoch, step = positive(groups[-1]), int(groups[1]), int(groups[2])
        if rate is None:
            continue
        first = not build.rows
        steps = counter.take(epoch, step)
        if steps == 0:
            continue
        # The first row's rate is that of its own step or window, not of all steps before: the log does not say.
        build.row(line, step, epoch, steps=None if first else steps, rate=rate, end=groups[0])
    build.fact("framework", "TensorFlow", 0)
    build.facts.update(rate_scope="global", cumulative=False, first_step=0)
    return build
