"""Each importer against logs made as the tool's own code prints them, and against published ones."""

import datetime
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from runlog import schema
from scoring.figure.protocols import find
from scoring.figure.run import run_figure
from scoring.importers import read_record, table
from scoring.record import InputError, Record
from tests import jobs, make_log
from tests.scoring import samples
from tests.scoring.samples import scoring


def read(tmp_path: Path, text: str | bytes, name: str = "", **options: Any) -> Record:
    """The record of a text; of the made log `name` with what must be told of it. Nothing comes from the path."""
    path = tmp_path / "10n4g_r50_b128_fp16.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_record(path, **{**samples.OPTIONS.get(name, {}), **options})


def same_rows(a: Record, b: Record) -> bool:
    def rows(record: Record) -> list[tuple[object, ...]]:
        return [(w.step, w.epoch, w.steps, w.seconds, w.printed_rate, w.data_wait_s, w.end_s) for w in record.windows]

    return rows(a) == rows(b)


def column(record: Record, field: str) -> list[float]:
    return [-1.0 if (value := getattr(window, field)) is None else value for window in record.windows]


def run() -> samples.Run:
    return samples.run_of(samples.steady(240), epoch_steps=120)


# From the files, by eye: format, devices, batch, precision, math mode, rows, line of first and last row, truncated.
PUBLISHED = {
    "mmseg_v100_gpu8_fp32_bs8.log": ("mmseg", 8, 8, None, None, 45, 5490, 5535, False),
    "ngc_mxnet_v100_gpu1_fp32_bs128.log": ("nvidia_mxnet", 1, 128, "fp32", None, 75, 43, 121, False),
    "ngc_pytorch_v100_gpu1_amp_bs256.log": ("nvidia_pytorch", 1, 256, "amp", None, 99, 9, 107, False),
    "ngc_tensorflow_v100_gpu8_amp_bs256.log": ("nvidia_tensorflow", 8, 256, "amp", None, 30, 42, 71, False),
    "paddleclas_a100_gpu1_fp32_bs256.log": ("paddleclas_static", None, 256, "fp32", "tf32", 78, 163, 240, False),
    "paddleclas_v100_gpu32_fp32_bs256.log": ("paddleclas_static", 32, 256, None, None, 12, 249, 262, True),
    "paddleclas_v100_gpu8_fp32_bs256.log": ("paddleclas_static", 8, 256, None, None, 80, 184, 265, True),
    "paddleseg_v100_gpu1_fp32_bs8.log": ("paddleseg", 1, 8, "fp32", "fp32", 26, 134, 534, False),
    "mlperf_v2.1_dgxa100_resnet/result_0.txt": ("mllog", None, None, None, None, 35, 204, 380, False),
}


@pytest.mark.parametrize("file", PUBLISHED)
def test_published_log(published_logs: Path, file: str) -> None:
    record = read_record(published_logs / file)
    first, last = record.windows[0].line, record.windows[-1].line
    found = (record.format, record.devices, record.batch_per_device, record.precision, record.math_mode)
    assert (*found, len(record.windows), first, last, record.truncated) == PUBLISHED[file]


# The last evaluation of a made log: its value, and its epoch or step.
QUALITY: dict[str, tuple[float, int | None, int | None]] = {
    "mllog": (0.76, 2, None),
    "paddleclas_dygraph": (0.71234, 2, None),
    "paddleseg": (0.7897, None, 240),
    "paddle18": (0.71234, 1, None),
    "oneflow": (0.71234, 0, None),
    "nvidia_pytorch": (71.234, 0, None),
    "nvidia_json": (71.234, 0, None),
    "nvidia_tensorflow": (0.71234, 0, None),
    "nvidia_nvlog": (71.234, None, 239),
    "nvidia_mxnet_speed": (0.71234, 1, None),
    "keras": (0.76, None, 240),
    "mm_epochs": (71.234, 2, None),
    "gluoncv": (0.24, 1, None),  # the log's own word is the error
}


FROM_ZERO = {"paddleclas_dygraph", "paddle18", "nvidia_tensorflow", "nvidia_mxnet", "nvidia_nvlog"}
FROM_ZERO |= {"nvidia_mxnet_speed", "gluoncv"}  # whose steps count so


def test_no_field_stands_for_another(tmp_path: Path, name: str) -> None:
    """Figure, steps, times and waits of one made log against what really happened."""
    run = samples.run_of([0.5 + 0.3 * (at // 10 % 3) for at in range(240)], share=0.1, epoch_steps=120)
    text = samples.WRITERS[name](run)
    record = read(tmp_path, text, name)
    assert (record.format, record.devices, record.batch_per_device) == (name, 8, 32)
    assert record.truncated in (False, None) and not record.problems
    assert record.from_options == tuple(samples.OPTIONS.get(name, ()))
    assert record.first_step == int(name not in FROM_ZERO)
    every = 1 if name in ("paddle18", "nvidia_pytorch", "nvidia_json") else 10
    assert len(record.windows) == 240 // every
    end = 0
    for window in record.windows:
        assert window.step is not None
        start, end = end, window.step - record.first_step + 1
        end += 120 * (end < start)  # it counts anew in the second epoch
        assert name == "mllog" or str(window.step) in text.splitlines()[window.line - 1]
        if window is not record.windows[0]:
            assert window.steps and window.images == window.steps * 256
            assert (window.seconds is None) == (record.windows[1].seconds is None)
        true = sum(run.times[end - (window.steps or 0) : end])
        if window.seconds is not None:
            assert window.seconds == pytest.approx(true, rel=3e-3), window
            if window.data_wait_s is not None:
                assert window.data_wait_s == pytest.approx(0.1 * true, rel=1e-2), window
    if name in ("paddleseg", "mmseg", "mm_epochs"):  # the first row has as many steps as the second
        assert record.windows[0].steps == 10
    fourth = record.windows[3]
    assert fourth.step == (30 if name == "paddleclas_dygraph" else every * 4 - (name in FROM_ZERO))
    assert fourth.epoch in (None, 1 if name in ("mllog", "paddleclas_dygraph", "paddleseg", "mm_epochs") else 0)
    end = fourth.step - record.first_step + 1
    true = sum(run.times[end - every : end])
    if name in ("mllog", "paddleclas_static", "paddleclas_dygraph", "paddleseg", "mmseg"):
        assert fourth.data_wait_s is not None
    assert fourth.gpu_memory_mib == ({"mmseg": 13479, "mm_epochs": 3784}.get(name))
    if record.cumulative:
        true = sum(run.times[4:end]) / (end - 4) * every
    if fourth.printed_step_time_s is not None:
        assert fourth.printed_step_time_s == pytest.approx(true / every, rel=1e-2)
    if fourth.printed_rate is not None:
        scale = 8 if record.rate_scope == "device" else 1
        assert fourth.printed_rate * scale == pytest.approx(256 * every / true, rel=1e-2)
    figure = run_figure(record, find("window")).value
    assert figure == pytest.approx(256 * 220 / sum(run.times[20:]), rel=3e-2)
    assert fourth.loss is None or 1 < fourth.loss < 10
    found = [(quality.value, quality.epoch, quality.step) for quality in record.quality[-1:]]
    assert found == ([QUALITY[name]] if name in QUALITY else [])
    if name == "paddle18":
        stamped = run_figure(record, find("dlperf"))
        assert stamped.value == pytest.approx(256 * 100 / sum(run.times[20:120]), rel=1e-4)


@pytest.mark.parametrize("rule", ["window", "perf", "perf-seg", "oneflow"])
def test_the_figure_is_as_the_time_and_the_devices_are(tmp_path: Path, name: str, rule: str) -> None:
    """k times the time is a kth of it, and more devices or larger batches are so much more."""

    def figure(seconds: float = 0.5, devices: int = 8, batch: int = 32) -> float:
        made = samples.run_of(samples.steady(160, seconds), devices=devices, batch=batch)
        told: dict[str, Any] = {"devices": devices, "batch_per_device": batch} if name in samples.OPTIONS else {}
        return run_figure(read(tmp_path, samples.WRITERS[name](made), **told), find(rule)).value

    once = figure()
    for factor in (0.5, 7.3):  # mmsegmentation prints milliseconds: 1 in 250 of the shorter step
        assert figure(0.5 * factor) * factor == pytest.approx(once, rel=4e-3 if name == "mmseg" else 1e-3)
    for devices, batch in ((1, 256), (16, 8), (128, 1)):
        assert figure(devices=devices, batch=batch) / (devices * batch) == pytest.approx(once / 256, rel=1e-3)


@pytest.mark.parametrize(
    "name", ["paddleseg", "paddleclas_dygraph", "paddleclas_static", "nvidia_pytorch", "nvidia_mxnet"]
)
def test_a_rate_of_anything_but_images_is_refused(tmp_path: Path, name: str) -> None:
    text = re.sub("(?:images|samples)/s", "tokens/s", samples.WRITERS[name](run()))
    with pytest.raises(InputError, match=r"log: line \d+: a rate in tokens/s, not in images/s: score logs of networks"):
        read(tmp_path, text)


def test_what_the_log_does_not_say_is_unknown(tmp_path: Path) -> None:
    text = "\n".join(line for line in samples.paddleclas_static(run()).splitlines() if "train step" in line)
    record = read(tmp_path, text)
    for field in ("devices", "nodes", "precision", "math_mode", "model", "status"):
        assert getattr(record, field) is None, field
    assert record.batch_per_device == 32  # each row's rate x step time
    assert all(window.images is None for window in record.windows)
    told = read(tmp_path, text, devices=4)
    assert told.from_options == ("devices",)
    assert told.windows[0].images == 6 * 128


def test_mllog_of_a_submission_that_logs_blocks_alone(published_logs: Path, tmp_path: Path) -> None:
    """Blocks without epochs: one window each, up to its evaluation."""
    text = (published_logs / "mlperf_v2.1_dgxa100_resnet" / "result_0.txt").read_text()
    by_epochs = read(tmp_path, text)
    kept = [line for line in text.splitlines() if not re.search(r'"(epoch_st|tracked_stats|throughput)', line)]
    record = read(tmp_path, "\n".join(kept) + "\n")
    assert len(record.windows) == 9 and [w.epoch for w in record.windows][:3] == [3, 7, 11]
    assert record.windows[0].images == 3 * 1281167
    epochs = sum(window.seconds or 0 for window in by_epochs.windows[:3])
    assert record.windows[0].seconds == pytest.approx(epochs, abs=0.2)

    # Some submitters count epochs from 0, a few of them as 0.0.
    from_zero = re.sub(r'"first_epoch_num": (\d+)', lambda found: f'"first_epoch_num": {int(found[1]) - 1}.0', text)
    kept = [line for line in from_zero.splitlines() if not re.search(r'"(epoch_st|tracked_stats|throughput)', line)]
    zero_based = read(tmp_path, "\n".join(kept) + "\n")
    assert [w.epoch for w in zero_based.windows][:3] == [2, 6, 10]
    assert [w.seconds for w in zero_based.windows] == [w.seconds for w in record.windows]


def test_import_command(tmp_path: Path) -> None:
    log = samples.write(tmp_path, "run.log", samples.paddleclas_static(run()) + "\x1b[31mevil\n")
    [record] = json.loads(scoring("import", log, "--json").stdout)
    assert record["devices"] == 8 and len(record["windows"]) == 24
    assert record["field_lines"]["devices"] == 2
    shown = scoring("import", log).stdout
    assert "8  (line 2)" in shown and "\x1b" not in shown


def test_two_runs_in_one_log(tmp_path: Path, name: str) -> None:
    """A restarted job appends to its log: refused, and each run is the same as alone, but for where it stands."""
    text = samples.WRITERS[name](run())
    other = samples.WRITERS[name](samples.run_of(samples.steady(120), devices=4))
    with pytest.raises(InputError, match=r"2 runs in one log \(1: lines 1 to \d+; 2: lines \d+ to \d+\)"):
        read(tmp_path, text + other, name)
    for number, alone in ((1, text), (2, other)):
        found = read(tmp_path, text + other, name, segment=number)
        assert same_rows(found, read(tmp_path, alone, name))
        own = (8,) if number == 1 or name in samples.OPTIONS else (4, None)
        assert found.devices in own  # never those of the other run


def test_a_log_without_its_start(tmp_path: Path, name: str) -> None:
    """What stands before the first row that is left is unknown: no window takes it for its own."""
    text = samples.WRITERS[name](run())
    lines = text.splitlines(keepends=True)
    first = read(tmp_path, text, name).windows[5].line - 1
    record = read(tmp_path, "".join(lines[first:]), devices=8, batch_per_device=32, format=name)
    for window in record.windows:
        if window.seconds is not None:
            assert window.steps is not None and window.seconds / window.steps == pytest.approx(0.5, rel=0.05)
    if name != "paddleclas_static":  # its row is an average of all steps since the fifth
        assert (record.windows[0].steps or 0) <= 10


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("paddleclas_static", r"(batch_cost: \S+ s), (reader_cost: \S+ s)", r"\2, \1"),
        ("paddleclas_static", r"loss: +(\S+) (.*)samples/sec\.", r"\2samples/sec. loss: \1"),
        ("paddleclas_static", r"samples/sec\.", r"img/s"),
        ("paddleclas_static", r"\[(\S+) (\S+)\] ppcls INFO", r"\1 \2 INFO"),
        ("paddleclas_static", r"\[(\S+) (\S+)\] ppcls INFO", r"trainer-0  | \1 \2 INFO"),
        ("paddleclas_dygraph", r"(batch_cost: \S+)s, (reader_cost: \S+),", r"\2, \1 s,"),
        ("paddleclas_dygraph", r", eta: \S+", r", eta: 1 day, 2:03:04, max_mem_reserved: 1000 MB"),
        ("paddleseg", r"batch_cost: (\S+), reader_cost: (\S+), ", r"reader_cost: \2, batch_cost: \1, "),
        ("paddleseg", r"loss: (\S+), lr: (\S+), ", r"lr: \2, loss: \1, "),
        ("paddleseg", r"(\d{4})-(\d\d)-(\d\d) (\S+) \[INFO\]\t\[", r"[\1/\2/\3 \4] INFO: ["),
        ("mmseg", r"time: (\S+), data_time: (\S+), memory: (\d+),", r"memory: \3, data_time: \2, time: \1,"),
        ("mmseg", r"eta: \S+, ", r"eta: 1 day, 2:03:04, momentum: 0.9, "),
        ("nvidia_pytorch", r"train\.loss : (\S+) None (.*)\n", r"\2 train.loss : \1 None\n"),
        ("nvidia_pytorch", r"images/s", r"img/s"),
        ("nvidia_mxnet", r"(train\.loss : \S+) ( train\.ips : \S+ images/s)", r"\2 \1"),
        ("nvidia_tensorflow", r"total_ips", r"cross_entropy : 7.01 l2_loss : 1.2e+00 total_ips"),
        ("nvidia_paddle", r"(train\.data_time : \S+) (.*) (train\.batch_time : \S+) ", r"\2 \3  \1 "),
        ("paddle18", r"lr (\S+), elapse (\S+) sec", r"elapse \2 sec, lr \1"),
        ("oneflow", r"top_1: \S+, top_k: \S+", r"accuracy: 0.0"),
        ("oneflow", r" \[(\S+)\]", r" \1"),
        ("nvidia_mxnet", r"train\.loss", r"train[1,0]<stdout>:.loss"),  # a prefix inside a line
        ("paddleclas_static", r"samples/sec\.\n", r"samples/sec."),  # two rows on one line
        ("gluoncv", r"\t", r"  "),  # copied from a terminal
        ("nvidia_mxnet_speed", r"\t", r"  "),
    ],
)
def test_other_releases_of_a_tool(tmp_path: Path, name: str, old: str, new: str) -> None:
    """Fields in another order, other units, more fields than usual."""
    text = samples.WRITERS[name](run())
    changed = re.sub(old, new, text)
    assert changed != text
    before, after = read(tmp_path, text, name), read(tmp_path, changed, name)
    assert same_rows(before, after)
    assert [check.what for check in before.checks] == [check.what for check in after.checks]
    for field in ("end_s", "loss", "gpu_memory_mib"):
        assert column(before, field) == pytest.approx(column(after, field), nan_ok=True), field


@pytest.mark.parametrize("name", sorted(set(samples.WRITERS) - {"mllog"}))
def test_scientific_notation(tmp_path: Path, name: str) -> None:
    """Python prints small and large numbers so, and the tools print what Python makes of them."""
    text = samples.WRITERS[name](run())
    word = r"(?:_cost|[ _\"]time|total_ips|ips|samples/s|elapse|TimeHistory|Speed)\"?"
    decimals = "3" if name == "oneflow" else "7"
    changed = re.sub(rf"({word}:? :? ?)(\d+\.\d+)", lambda m: f"{m[1]}{float(m[2]):.{decimals}e}", text)
    assert changed != text
    before, after = read(tmp_path, text, name), read(tmp_path, changed, name)
    for field in ("seconds", "printed_rate", "data_wait_s"):
        assert column(before, field) == pytest.approx(column(after, field), rel=1e-3, abs=1e-4), field


MEMORY = """
import re, sys
from pathlib import Path
from scoring.importers import read_record
record = read_record(sys.argv[1], devices=8, batch_per_device=32)
# VmHWM: ru_maxrss would include the parent's, before exec
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(len(record.windows), peak_kib / 1024)
"""


@pytest.mark.slow
@pytest.mark.ci
def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A log of many rows, and then a line without end: neither is held in memory."""
    path = tmp_path / "long.log"
    row = "train: epoch {}, iter 20, loss: 1.0, top_1: 0.0, top_k: 0.0, samples/s: {}.000\n"
    path.write_text("".join(row.format(at, 500 + at % 7) for at in range(80_000)))
    for _ in range(2):
        count, memory_mib = jobs.run([sys.executable, "-c", MEMORY, str(path)]).stdout.split()
        assert int(count) == 80_000 and float(memory_mib) < 150
        with path.open("ab") as out:
            for _ in range(160):
                out.write(b"x" * (1 << 20))


def test_more_rows_than_a_run_may_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = samples.paddleseg(run())
    count = len(read(tmp_path, text).windows)
    monkeypatch.setattr(table, "MAX_ROWS", count)
    assert len(read(tmp_path, text).windows) == count
    monkeypatch.setattr(table, "MAX_ROWS", count - 1)
    with pytest.raises(InputError, match=rf"log: line \d+: over {count - 1} rows in one run; print rarer rows, or"):
        read(tmp_path, text)


MMENGINE = """\
2023/08/03 02:17:53 - mmengine - INFO - Config:
test_dataloader = dict(
    batch_size=1,
    num_workers=4)
train_dataloader = dict(
    batch_size=2,
    num_workers=4)
optim_wrapper = dict(type='AmpOptimWrapper', optimizer=dict(type='SGD'))
2023/08/03 02:18:40 - mmengine - INFO - Iter(train) [   50/80000]  lr: 9.9945e-03  eta: 15:52:11  time: 0.7143  data_time: 0.0051  memory: 5322  loss: 1.2345  decode.loss_ce: 0.9
2023/08/03 02:19:15 - mmengine - INFO - Iter(train) [  100/80000]  lr: 9.9889e-03  eta: 15:50:11  time: 0.7001  data_time: 0.0049  memory: 5322  loss: nan  decode.loss_ce: 0.8
2023/08/03 02:20:00 - mmengine - INFO - Iter(val) [500/500]    aAcc: 95.9  mIoU: 77.72  mAcc: 84.4  data_time: 0.01  time: 0.05
"""  # noqa: E501


def test_mmengine(tmp_path: Path) -> None:
    record = read(tmp_path, MMENGINE, devices=4)
    assert (record.batch_per_device, record.precision, record.truncated) == (2, "amp", True)
    assert [(w.step, w.steps, w.printed_step_time_s) for w in record.windows] == [(50, 50, 0.7143), (100, 50, 0.7001)]
    assert record.quality[0].value == 77.72 and record.windows[0].gpu_memory_mib == 5322


@pytest.mark.parametrize(
    ("framework", "rate", "other", "batch", "last"),
    [
        ("PyTorch", "train.total_ips", "", 256, 40),
        ("MXNet", "train.ips", "", 32, 39),  # whose batch_size is of all devices
        ("PaddlePaddle", "train.ips", '"train.batch_time": 0.5, ', 256, 40),
        ("TensorFlow", "total_ips", "", 256, 39),
    ],
)
def test_dialects_of_json(tmp_path: Path, framework: str, rate: str, other: str, batch: int, last: int) -> None:
    head = 'DLLL {"timestamp": "1610000000.1", "datetime": "2021-01-07 06:26:40.1", "elapsedtime": "0.1", "type": "LOG"'
    text = f'{head}, "step": "PARAMETER", "data": {{"arch": "resnet50", "batch_size": 256, "gpus": {[*range(8)]}}}}}\n'
    for epoch in (0, 1):
        for step in range(last - 30, last + 1, 10):
            text += f'{head}, "step": [{epoch}, {step}], "data": {{{other}"{rate}": 4096.5, "train.lr": 0.1}}}}\n'
    record = read(tmp_path, text)
    assert (record.format, record.framework) == ("nvidia_json", framework)
    assert (record.devices, record.batch_per_device, record.model) == (8, batch, "resnet50")
    assert [window.steps for window in record.windows][1:] == [10] * 7 and record.truncated
    assert record.windows[3].printed_rate == 4096.5
    assert read(tmp_path, text + f'{head}, "step": [], "data": {{"{rate}": 4096.5}}}}\n').truncated is False


def test_events_without_their_values_are_said_and_copies_passed_over(tmp_path: Path) -> None:
    text = samples.mllog(run())
    twice = re.sub(r"(:::MLLOG .*step_window.*\n)", r"\1\1", text)
    assert twice != text and same_rows(read(tmp_path, text), read(tmp_path, twice))
    empty = re.sub(r'("key": "(?:step_window|run_summary)", "value": )\{[^}]*\}', r"\1null", text, count=2)
    found = read(tmp_path, empty, devices=8, batch_per_device=32)
    assert len(found.windows) == 23 and [problem.split(": ")[1] for problem in found.problems] == [
        "step_window without a table of values",
        "run_summary without a table of values",
    ]


def test_gpus_used_are_of_all_nodes(tmp_path: Path) -> None:
    """PaddleSeg prints its world size as `GPUs used`: on four nodes 32, not 8."""
    text = samples.paddleseg(run()).replace("nnodes: 1", "nnodes: 4").replace("GPUs used: 8", "GPUs used: 32")
    record = read(tmp_path, text)
    assert record.devices == 32 and [check.agree for check in record.checks if check.what == "devices"] == [True]
    assert read(tmp_path, re.sub(r"LAUNCH INFO .*replicas.*\n", "", text)).devices == 32


@pytest.mark.parametrize("gpus", ["gpus", "gpu"])  # newer releases leave out the `s`
def test_paddleclas_says_its_world_size_where_it_is_not_4(tmp_path: Path, gpus: str) -> None:
    """ppcls/engine/engine.py warns so; the launcher's lines are in another file."""
    text = re.sub(r"INFO .*PADDLE_TRAINERS_NUM.*\n", "", samples.paddleclas_dygraph(run()))
    said = "[2023/07/28 07:49:53] ppcls WARNING: The training strategy provided by PaddleClas is based on 4 gpus. "
    said += f"But the number of {gpus} is 16 in current training. Please modify the stategy\n"
    assert read(tmp_path, text).devices is None and read(tmp_path, said + text).devices == 16
    both = read(tmp_path, said + samples.paddleclas_dygraph(run()))
    assert both.devices is None and [check.agree for check in both.checks if check.what == "devices"] == [False]


@pytest.mark.parametrize(("printed", "zero"), [("replicas 8,", "replicas 0,"), ("nnodes: 1", "nnodes: 0")])
def test_a_count_of_no_devices_says_nothing(tmp_path: Path, printed: str, zero: str) -> None:
    """A launcher that starts no process of its own contradicts no other place: the devices are those of `GPUs used`."""
    text = samples.paddleseg(run())
    assert text.count(printed) == 1
    record = read(tmp_path, text.replace(printed, zero))
    assert record.devices == 8 and [check for check in record.checks if check.what == "devices"] == []


def test_old_paddleseg_and_old_paddleclas(tmp_path: Path) -> None:
    """`=` for `: ` in old PaddleSeg, `images/sec` in old PaddleClas."""
    text = "2021-01-01 00:00:00 [INFO]\t[TRAIN] epoch=1, iter=10/100, loss=0.5, lr=0.01, batch_cost=0.5000, "
    record = read(
        tmp_path,
        text + "reader_cost=0.001, ips=16.0000 samples/sec | ETA 00:00:45\n[EVAL] #Images=9 mIoU=0.7 Acc=0.9\n",
    )
    assert record.quality[-1].value == 0.7
    assert (record.format, record.windows[0].printed_step_time_s) == ("paddleseg", 0.5)
    old = samples.paddleclas_static(run()).replace("samples/sec", "images/sec")
    record = read(tmp_path, old + "END valid top1: 0.76320, top5: 0.93 ips: 900.0 images/sec.\n")
    assert len(record.windows) == 24
    assert (record.quality[-1].value, record.quality[-1].epoch) == (0.7632, 1)  # of the last epoch before it


def test_our_own_windows_are_held_to_their_steps_and_stamps(tmp_path: Path) -> None:
    text = samples.mllog(run())
    assert [(check.what, check.agree) for check in read(tmp_path, text).checks] == [("time", True), ("images", True)]
    fewer = read(tmp_path, re.sub(r'"images": 2560', '"images": 2400', text)).checks
    assert [check.what for check in fewer if not check.agree] == ["images"] and not fewer[1].refused
    assert "counted, 57600" in str(fewer[1]) and "240 x 256" in str(fewer[1])
    longer = read(tmp_path, re.sub(r'"time_s": (\d)', r'"time_s": 1\1', text)).checks
    assert [check.what for check in longer if check.refused] == ["time"]


def test_rates_are_held_to_the_seconds_of_their_epochs(tmp_path: Path) -> None:
    """GluonCV's rows have no stamps; each epoch closes with its own seconds and rate."""
    text = samples.gluoncv(run())
    [check] = read(tmp_path, text).checks
    assert check.what == "rates against the epochs' time" and check.agree and "2 epochs" not in check.ways[0]
    for factor, refused in ((0.9, False), (0.6, True)):
        slower = re.sub(r"speed: (\d+)", lambda match: f"speed: {int(match[1]) * factor:.0f}", text)  # noqa: B023
        [check] = read(tmp_path, slower).checks
        assert (check.agree, check.refused) == (False, refused)


def test_an_evaluation_beside_training_is_in_its_epochs_own_time(tmp_path: Path) -> None:
    log = make_log.Log(tick_ms=0)
    log.event(schema.SUBMISSION_BENCHMARK, "resnet")
    log.event(schema.TRAIN_SAMPLES, 1_281_167)
    log.event(schema.EVAL_SAMPLES, 50_000)
    for epoch in range(1, 5):
        for mark in (schema.EPOCH_START, schema.EVAL_START, schema.EVAL_STOP, schema.EPOCH_STOP):
            log.mark(mark, schema.InEpoch(epoch_num=epoch))
            log.now_ms += 0 if mark is schema.EPOCH_STOP else 300
    [check] = [check for check in read(tmp_path, log.text.getvalue(), devices=8).checks if "run's time" in check.what]
    assert check.agree and "first to last epoch, 3.6 s" in str(check)


def test_pauses_and_a_clock_that_was_set_are_no_contradiction(tmp_path: Path) -> None:
    """An evaluation of 20 minutes without a line of its own, then the end of summer time."""
    lines = samples.mmseg(samples.run_of(samples.steady(240))).splitlines()
    for at in range(12, len(lines)):
        moved_s = 1200 - (3600 if at >= 20 else 0)
        stamp = datetime.datetime.fromisoformat(lines[at][:19]) + datetime.timedelta(seconds=moved_s)
        lines[at] = f"{stamp:%Y-%m-%d %H:%M:%S}{lines[at][19:]}"
    record = read(tmp_path, "\n".join(lines) + "\n")
    found = [(check.what, check.agree, check.refused) for check in record.checks]
    assert found == [("time", True, False), ("time with pauses", False, False)]
    slow = re.sub(r"\btime: 0\.5", "time: 0.2", "\n".join(lines) + "\n")
    assert [check.refused for check in read(tmp_path, slow).checks] == [True, False]
