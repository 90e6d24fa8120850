"""What one row of a log tells of the batch, the devices, the steps done and the pauses between rows."""

import re
from pathlib import Path

import pytest

from runlog import schema
from scoring.figure.selection import steps_done_by_window
from scoring.importers import read_record
from scoring.importers.gaps import Gap, without_pauses
from scoring.importers.row_batch import RowBatch
from scoring.record import Record, Window
from tests import make_log
from tests.scoring import samples


@pytest.mark.parametrize(
    ("rate", "time_s", "batch"),
    [
        ("320", "0.1001", 32),  # 32 images in 0.10012 s are 319.6 images/s: the rate's digits leave 31.97 to 32.10
        ("320.00", "0.1001", None),  # by these digits it is 32.01 to 32.05, which is not a whole number
        ("320.0", "0.10", None),  # 30.4 to 33.6: several
        ("0.1", "0.1", None),  # 0 to 0.02: no step has 0 images
        ("3.20E+02", "0.1000", None),  # with an exponent the last digit stands for another step
    ],
)
def test_the_digits_of_rate_and_time_leave_a_range_for_the_batch(rate: str, time_s: str, batch: int | None) -> None:
    rows = RowBatch()
    rows.narrow(7, rate, time_s)
    assert rows.batch == batch


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ([32] * 40, None),
        ([32] * 39 + [8], False),  # the last batch of an epoch, which is smaller
        ([16, 24, 32, 48, 64] * 8, True),  # PaddleClas's MultiScaleSampler
    ],
)
@pytest.mark.parametrize("writer", ["paddleclas_static", "paddleclas_dygraph", "paddleseg"])
def test_rows_of_several_batch_sizes_make_no_figure(
    tmp_path: Path, writer: str, sizes: list[int], refused: bool | None
) -> None:
    """A row prints the rate of its last batch's size, over the mean time of batches that have other sizes."""
    rows = {"paddleclas_static": "train step:", "paddleclas_dygraph": "[Iter:", "paddleseg": "[TRAIN]"}
    rates = iter(sizes)
    text = ""
    for line in samples.WRITERS[writer](samples.run_of([0.5] * 400)).splitlines(keepends=True):
        is_row = rows[writer] in line
        text += re.sub(r"ips: [\d.]+", f"ips: {next(rates) / 0.5:.4f}", line) if is_row else line
    record = read_record(samples.write(tmp_path, "log.txt", text))
    found = [check.refused for check in record.checks if check.what == "batch" and not check.agree]
    assert found == ([] if refused is None else [refused])


def nvidia_paddle(times: list[float], *, rows_in_json: bool) -> str:
    """A log of 8 devices by NVIDIA's program.py: its rows have the time and the rate of their last steps."""
    head = "DLL 2023-07-28 07:49:59.0 - PARAMETER batch_size : 32  model_arch_name : ResNet50 \n"
    text = head + samples.nvidia_paddle(samples.run_of(times, devices=8))
    text = re.sub(r"(?m)^.*epoch_time.*\n", "", text)
    if not rows_in_json:
        return text
    row = r'DLLL {"datetime": "\1", "step": [\2, \3], "data": {"train.batch_time": \4, "train.ips": \5}}'
    return re.sub(r"DLL (.*) - Epoch: (\d+) Iteration: (\d+) .*batch_time : (\S+)  train.ips : (\S+) .*", row, text)


@pytest.mark.parametrize("rows_in_json", [False, True])
def test_rates_of_all_devices_show_how_many_they_are(tmp_path: Path, *, rows_in_json: bool) -> None:
    log = samples.write(tmp_path, "a.log", nvidia_paddle(samples.steady(240), rows_in_json=rows_in_json))
    record = read_record(log)
    assert (record.devices, record.batch_per_device, record.batch_of_all) == (8, 32, 256)
    assert record.model == "ResNet50"
    assert [check.agree for check in record.checks if check.what == "steps, batch and rate against time"] == [True]


@pytest.mark.parametrize("rows_in_json", [False, True])
def test_last_steps_that_are_faster_than_the_others_make_no_figure(tmp_path: Path, *, rows_in_json: bool) -> None:
    """Nine steps of a row take 0.5 s and the last one, which alone is printed, 0.1 s: 557 images/s and not 2558."""
    log = samples.write(tmp_path, "a.log", nvidia_paddle(([0.5] * 9 + [0.10007]) * 24, rows_in_json=rows_in_json))
    status, _, error = samples.scoring("score", log, "--protocol", "window")
    assert status == 2 and "steps, batch and rate against time: " in error


BATCH_IN_JSON = 'DLLL {"type": "LOG", "step": %s, "data": {"val.top1": 60.0, "val.top5": 80.0}}\n'


@pytest.mark.parametrize(
    ("name", "of_batch"),
    [
        ("nvidia_json", BATCH_IN_JSON % "[0, 10]"),  # of NVIDIA's example for Paddle
        ("nvidia_json", BATCH_IN_JSON % "[0, 240, 10]"),  # and of that for PyTorch
        (
            "nvidia_pytorch",
            "DLL 2023-07-28 07:52:00.0 - Epoch: 0 Iteration: 240 Validation Iteration: 10  val.top1 : 60.0 % \n",
        ),
    ],
)
def test_the_accuracy_of_a_single_batch_is_not_that_of_an_evaluation(tmp_path: Path, name: str, of_batch: str) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(240)))
    summary = text.rindex("DLLL" if name == "nvidia_json" else "DLL")
    quality = read_record(samples.write(tmp_path, "a.log", text[:summary] + of_batch + text[summary:])).quality
    assert [(result.epoch, result.value) for result in quality] == [(0, 71.234)]


@pytest.mark.parametrize(("hosts", "nodes"), [("None", 1), ("'a:5000,b:5000,c:5000'", 3)])
def test_keras_names_the_gpus_of_a_node_and_its_hosts(tmp_path: Path, hosts: str, nodes: int) -> None:
    text = samples.keras(samples.run_of(samples.steady(60)))
    assert "'worker_hosts': None" in text
    log = samples.write(tmp_path, "log.txt", text.replace("'worker_hosts': None", f"'worker_hosts': {hosts}"))
    record = read_record(log)
    assert (record.nodes, record.devices) == (nodes, 8 * nodes)


def test_of_two_rates_of_an_epoch_the_first_counts(tmp_path: Path) -> None:
    """As a submitter logs one after the epoch and one after its evaluation."""
    log = make_log.Log(tick_ms=100)
    log.event(schema.SUBMISSION_BENCHMARK, "resnet")
    log.mark(schema.RUN_START)
    for epoch in (1, 2):
        for mark in (schema.EPOCH_START, schema.EPOCH_STOP):
            log.mark(mark, schema.InEpoch(epoch_num=epoch))
        for rate in (1000.0 * epoch, 9.0):
            log.mllog.event("throughput", rate, metadata={"epoch_num": epoch}, time_ms=int(log.now_ms))
    record = read_record(samples.write(tmp_path, "log.txt", log.text.getvalue()))
    assert [window.printed_rate for window in record.windows] == [1000.0, 2000.0]


@pytest.mark.parametrize("name", ["gluoncv", "nvidia_mxnet", "nvidia_paddle"])
def test_of_two_summaries_of_an_epoch_the_first_counts(tmp_path: Path, name: str) -> None:
    """As two handlers write them to one file. The warm-up epoch is skipped in both of its copies."""
    text = samples.WRITERS[name](samples.run_of(samples.steady(240), epoch_steps=80))
    twice = "".join(2 * line for line in text.splitlines(keepends=True))
    found = []
    for log, lines in (("clean.log", text), ("twice.log", twice)):
        path = samples.write(tmp_path, log, lines)
        found.append(samples.command("score", path, "--protocol", "ngc-mxnet")[1])
    clean, doubled = found
    assert (doubled["windows"], doubled["value"]) == (clean["windows"], clean["value"]) == (2, clean["value"])


@pytest.mark.parametrize(
    ("steps", "epochs", "done"),
    [
        ((100, 100, 100), (1, 2, 3), [100, 200, 300]),  # a row at each epoch's end: the numbers begin again
        ((50, 100, 50, 100), (1, 1, 2, 2), [50, 100, 150, 200]),
        ((100, 101, 200), (1, 2, 2), [100, 101, 200]),  # they go on
    ],
)
def test_printed_steps_that_begin_again_are_added_up(
    steps: tuple[int, ...], epochs: tuple[int, ...], done: list[int]
) -> None:
    windows = [Window(line=at, step=step, epoch=epochs[at]) for at, step in enumerate(steps)]
    record = Record(file="a", sha256="a", lines=9, format="csv", windows=tuple(windows))
    assert steps_done_by_window(record) == done


def test_a_gap_that_is_no_longer_by_the_clock_than_by_its_row_has_no_pause() -> None:
    """Where rows usually state twice the time that passed, one that states the time that passed did not pause."""
    row = Window(line=1)
    halves = [Gap(clock_s=5.0, row_s=10.0, before=row, row=row)] * 7
    wholes = [Gap(clock_s=10.0, row_s=10.0, before=row, row=row)] * 3
    pause = Gap(clock_s=16.0, row_s=10.0, before=row, row=row)
    assert without_pauses([*halves, *wholes, pause], stamp_resolution_s=0.01) == [*halves, *wholes]


def test_a_single_row_has_no_more_rows_beside_it(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "a.log", samples.keras(samples.run_of([0.5] * 10)))
    [check] = [check for check in read_record(path).checks if check.what == "rate"]
    assert re.match(r"line \d+: the printed rates, ", check.ways[0])
