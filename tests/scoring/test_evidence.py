"""Nothing assumed: each field of a record has its evidence in the log, and is None without it."""

import dataclasses
import datetime
import json
import re
from pathlib import Path

import pytest

from scoring.importers import FORMATS, read_record, show
from scoring.record import InputError, Record
from tests.jobs import REPOSITORY
from tests.scoring import samples

# By format and field, the evidence in a made log of that format.
EVIDENCE: dict[str, dict[str, str]] = {
    "mllog": {
        "devices": r'"devices": \d+',
        "nodes": r'"nodes": \d+',
        "batch_per_device": r'"batch_per_device": \d+',
        "precision": r'"precision": "\w+"',
        "framework": r'"framework": "[^"]*"',
        "status": r'"status": "\w+"',
        "run_start_s": r".*run_start.*",
        "run_stop_s": r".*run_stop.*",
    },
    "paddleclas_static": {
        "devices": r"LAUNCH INFO .*",
        "nodes": r"LAUNCH INFO .*nnodes.*",
    },
    "paddleclas_dygraph": {
        "devices": r".*PADDLE_TRAINERS_NUM.*",
        "precision": r".*(AMP|level) :.*",
    },
    "paddleseg": {"devices": r"LAUNCH INFO .*|GPUs used.*", "nodes": r".*nnodes.*", "model": r" +type: .*"},
    "mm_epochs": {"devices": r"gpu_ids.*", "batch_per_device": r".*samples_per_gpu.*"},
    "mmseg": {"devices": r"gpu_ids.*", "batch_per_device": r".*samples_per_gpu.*"},
    "paddle18": {"precision": r"use_fp16.*", "model": r"model: .*"},
    "oneflow": {
        "devices": r"num_nodes.*",
        "nodes": r"num_nodes.*",
        "batch_per_device": r"batch_size_per_device.*",
        "model": r"model = .*",
    },
    "nvidia_pytorch": {
        "devices": r"world_size : \d+",
        "batch_per_device": r"batch_size : \d+",
        "precision": r"amp : \w+",
        "model": r"arch : \w+",
    },
    "nvidia_json": {
        "devices": r'"world_size": \d+',
        "batch_per_device": r'"batch_size": \d+, ',
        "precision": r'"amp": \w+, ',
        "model": r'"arch": "\w+", ',
    },
    "nvidia_tensorflow": {
        "devices": r"Num GPUs.*",
        "batch_per_device": r"Per-GPU Batch Size.*|batch_size : \d+",
        "precision": r"amp : \w+",
    },
    "nvidia_nvlog": {"devices": r".*Num GPUs.*", "batch_per_device": r".*Per-GPU Batch.*", "model": r'Name: ".*"'},
    "nvidia_mxnet": {"precision": r"(dtype|amp) : \w+", "model": r"arch : \w+"},
    "nvidia_mxnet_speed": {"precision": r"(dtype|amp)='?\w+'?", "model": r"arch='\w+'"},
    "gluoncv": {
        "devices": r"num_gpus=\d+",
        "batch_per_device": r"batch_size=\d+",
        "precision": r"dtype='\w+'",
        "model": r"model='\w+'",
        "truncated": r"num_epochs=\d+",
    },
    "keras": {
        "devices": r"'worker_hosts': None",
        "nodes": r"'worker_hosts': None",
        "batch_per_device": r"'use_per_replica_batch_size': True",
        "precision": r"'dtype': '\w+'",
    },
}


def read(folder: Path, format: str, text: str) -> Record:
    return read_record(samples.write(folder, "x.log", text), format=format)


def read_text(folder: Path, text: str) -> Record:
    return read_record(samples.write(folder, "x.log", text))


def test_without_its_evidence_a_field_is_unknown(tmp_path: Path, name: str) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(120), epoch_steps=60))
    whole = read(tmp_path, name, text)
    for field, evidence in EVIDENCE.get(name, {}).items():
        without, count = re.subn(evidence, "", text)
        assert count and getattr(whole, field) is not None, field
        assert getattr(read(tmp_path, name, without), field) is None, field


# Fields that no log of other tools states, or that are of the file rather than of its text.
OF_THE_FILE = {"file", "sha256", "lines", "segment", "format", "from_options", "field_lines", "problems", "checks"}


def test_every_field_of_a_record_has_its_evidence_on_the_page() -> None:
    page = (REPOSITORY / "docs" / "records.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert {field.name for field in dataclasses.fields(Record)} <= named | OF_THE_FILE
    assert set(FORMATS) <= named


# Lines that switch half precision on, in a log of that format, and the precision that is said of it.
HALF = [
    ("nvidia_pytorch", "amp : True", "fp16 : True  amp : False", "fp16"),
    ("nvidia_pytorch", "amp : True", "fp16 : False  amp : True", "amp"),
    ("nvidia_pytorch", "amp : True", "fp16 : False  amp : False", "fp32"),
    ("nvidia_pytorch", "amp : True", "bf16 : True  amp : False", None),
    ("nvidia_json", '"amp": true', '"fp16": true, "amp": false', "fp16"),
    ("nvidia_json", '"amp": true', '"fp16": false, "amp": false', "fp32"),
    ("nvidia_mxnet", "dtype : float32", "dtype : float16", "fp16"),
    ("nvidia_tensorflow", "amp : False", "precision : fp16", "fp16"),
    ("nvidia_tensorflow", "amp : False", "amp : False  use_tf_amp : True", "amp"),
    ("mmseg", "workflow:", "optimizer_config = dict(type='DistOptimizerHook', use_fp16=True)", "amp"),
    ("mmseg", "workflow:", "optimizer_config = dict(type='ApexOptimizerHook')", None),
    ("mmseg", "workflow:", "optimizer_config = dict(type='GradientCumulativeFp16OptimizerHook')", "amp"),
    ("mmseg", "workflow:", "fp16 = dict(loss_scale=512.)", "amp"),
    ("mmseg", "workflow:", "", None),
    ("paddleclas_dygraph", "AMP :", "Global2 :\n[2023/07/28 07:49:52] ppcls INFO:     use_fp16 : True", "fp16"),
    ("paddleclas_static", "Global :", "AMP :\n[2023/07/28 07:49:52] ppcls INFO:     use_amp : False", "fp32"),
    ("paddleclas_static", "Global :", "AMP :\n[2023/07/28 07:49:52] ppcls INFO:     use_amp : True", "amp"),
    ("paddleclas_static", "Global :", "AMP :\n[2023/07/28 07:49:52] ppcls INFO:     use_amp : False<br>", None),
    ("paddleclas_static", "Global :", "Global :", None),
    ("paddleseg", "GPUs used", "12:48:20 [INFO]\tuse amp to train\nGPUs used", "amp"),
    ("paddleseg", "GPUs used", "12:48:20 [INFO]\tuse AMP to train. AMP level = O2\nGPUs used", "amp_o2"),
    ("paddleseg", "GPUs used", "args: ['--precision', 'fp16', '--amp_level', 'O1']\nGPUs used", "amp_o1"),
    ("paddleseg", "GPUs used", "args: ['--batch_size', '32', '--fp16']\nGPUs used", "amp"),
    ("paddleseg", "GPUs used", "usage: train.py [-h] [--fp16]\nGPUs used", None),
    ("paddle18", "use_fp16: False", "use_fp16: True", "amp"),
    ("paddle18", "use_fp16: False", "use_fp16: False\nuse_pure_fp16: True", None),
    ("oneflow", "num_nodes", "use_fp16 = True\nnum_nodes", "amp"),
    ("oneflow", "num_nodes", "use_fp16 = maybe\nnum_nodes", None),
    ("gluoncv", "dtype='float32'", "dtype='bfloat16'", None),
    ("keras", "'dtype': 'float32'", "'dtype': 'float16'", "amp"),
]


@pytest.mark.parametrize(("name", "old", "new", "precision"), HALF)
def test_fp32_is_said_only_where_the_log_says_so(
    tmp_path: Path, name: str, old: str, new: str, precision: str | None
) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(120)))
    assert old in text
    record = read(tmp_path, name, text.replace(old, new))
    assert record.precision == precision
    assert record.math_mode is None or precision == "fp32"


GLUON = "Epoch[0] Batch [{}]\tSpeed: 512.250 samples/sec\taccuracy=0.31\tlr=0.100000\n"
ENGINE = (
    "2024/05/01 10:00:{} - mmengine - INFO - Iter(train) [{}/1000]  lr: 2e-05  eta: 0:10:00  time: 0.5000  "
    "data_time: 0.0100  memory: 9000  loss: 2.1{}\n"
)
HISTORY = (
    "I0728 07:50:52.9 1402 keras_utils.py:133] TimeHistory: 50.00 seconds, 64.0 examples/second between steps {} and {}"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Namespace(batch_size=64, model='lstm', num_gpus=1)\n" + GLUON.format(49) + GLUON.format(99), "no line shows"),
        (
            "Namespace(batch_size=64, dataset='ucf101', model='resnet50_v1b_ucf101', num_gpus=1)\n" + GLUON.format(49),
            "line 1: 'ucf101' shows samples that are not images",
        ),
        ("Namespace(batch_size=64, model='i3d_resnet50_v1_kinetics400')\n" + GLUON.format(49), "'_kinetics' shows"),
        ("Namespace(batch_size=64, model='resnet50_v1b_sthsthv2')\n" + GLUON.format(49), "'_sthsth' shows"),
        (
            "Namespace(batch_size=64, data='somethingsomethingv2', model='resnet50')\n" + GLUON.format(49),
            "shows samples",
        ),
        (ENGINE.format(10, 10, "") + ENGINE.format(15, 20, ""), "no line shows"),
        (ENGINE.format(10, 10, "  tokens_per_sec: 9000") + ENGINE.format(15, 20, ""), "tokens_per_sec"),
        ("\n".join(HISTORY.format(at, at + 100) for at in (0, 100)) + "\n{'task': 'bert/squad'}\n", "no line shows"),
    ],
)
def test_samples_that_are_no_images_make_no_images_per_second(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_record(samples.write(tmp_path, "x.log", text))


def event(key: str, value: object) -> str:
    fields = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": {}}
    return f":::MLLOG {json.dumps(fields)}"


@pytest.mark.parametrize(("benchmark", "images"), [("resnet", 1000), ("ssd", None), ("bert", None)])
def test_an_mlperf_log_of_another_benchmark_keeps_its_time(tmp_path: Path, benchmark: str, images: int | None) -> None:
    """BERT's train_samples are sentences, SSD's are batches."""
    text = samples.mllog(samples.run_of(samples.steady(120), epoch_steps=60))
    own = re.compile("step_window|run_summary|epoch_throughput|rank_times")
    kept = [line for line in text.splitlines() if line.startswith(":::MLLOG") and not own.search(line)]
    events = [event("submission_benchmark", benchmark), event("train_samples", 1000)]
    record = read(tmp_path, "mllog", "\n".join([*events, *kept]) + "\n")
    assert record.model == benchmark and record.run_time_s and record.windows
    assert {window.images for window in record.windows} == {images}


def test_a_benchmark_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    """The benchmark also stands for the model of a log that names none."""
    text = samples.mllog(samples.run_of(samples.steady(120), epoch_steps=60))
    own_lines = re.compile("run_summary|submission_benchmark")
    kept = [line for line in text.splitlines() if not own_lines.search(line)]
    record = read(tmp_path, "mllog", "\n".join([event("submission_benchmark", ["resnet"]), *kept]) + "\n")
    assert (record.benchmark, record.model) == (None, None)
    [problem] = [problem for problem in record.problems if "submission_benchmark" in problem]
    assert problem == "line 1: submission_benchmark: value is ['resnet'], which cannot be read"


def paddleclas_2_0(steps: int = 60) -> str:
    """Rows of tools/program.py of PaddleClas 2.0: averages since step 10, with commas, from step 0."""
    lines = []
    for step in range(0, steps, 10):
        count = step - 9 if step >= 10 else step + 1
        mean_s = (count * 0.25 + (1.75 if step < 10 else 0.0)) / count  # the first step of all takes 2 s
        lines.append(
            f"2021-03-01 10:00:{step // 4:02d} INFO: epoch:0  , train step:{step:<4d}, loss: 6.91, top1: 0.01, "
            f"batch_cost: {mean_s:.5f} s, reader_cost: 0.00100 s, ips: {64 / mean_s:.5f} images/sec.\n"
        )
    return "".join(lines)


def test_paddleclas_2_0_resets_its_meters_at_step_10(tmp_path: Path) -> None:
    record = read_text(tmp_path, paddleclas_2_0())
    assert (record.format, record.first_step, record.batch_per_device) == ("paddleclas_static", 0, 64)
    assert [(window.step, window.steps) for window in record.windows] == [
        (0, 1), (10, 1), (20, 10), (30, 10), (40, 10), (50, 10),
    ]  # fmt: skip
    assert [window.seconds for window in record.windows[1:]] == pytest.approx([0.25, 2.5, 2.5, 2.5, 2.5])
    assert (record.precision, record.truncated) == (None, None)


def test_mxnets_module_fit_is_no_gluoncv(tmp_path: Path) -> None:
    """Its rows have no learning rate, and its batches count from 1."""
    rows = "".join(f"INFO:root:Epoch[0] Batch [{at}]\tSpeed: 99.50 samples/sec\taccuracy=0.5\n" for at in (20, 40))
    with pytest.raises(InputError, match="no line of a known format in 3 lines"):
        read_text(tmp_path, f"{rows}INFO:root:Epoch[0] Time cost=9.8\n")


def test_the_evaluation_in_gluoncv_s_time_of_an_epoch_is_no_contradiction(tmp_path: Path) -> None:
    """`train_imagenet.py` takes an epoch's speed before its evaluation, and its `time cost` after it."""
    text = samples.gluoncv(samples.run_of([*samples.steady(120), *samples.steady(120, 2.5)], epoch_steps=120))
    [found] = re.finditer(r"\[Epoch 0\] speed: .*?time cost: ([\d.]+)", text)
    first, cost = found.group(0, 1)
    longer = text.replace(first, first.replace(cost, "5000.0"))
    for log in (text, longer):
        [check] = read_text(tmp_path, log).checks
        assert check.what == "rates against the epochs' time" and check.agree and not check.refused


def test_an_epochs_end_is_no_contradiction_and_a_pause_within_one_is_said(tmp_path: Path) -> None:
    text = samples.nvidia_pytorch(samples.run_of(samples.steady(60), epoch_steps=30)).splitlines()

    def later(lines: list[str], by_s: int) -> list[str]:
        moved = []
        for line in lines:
            stamp = datetime.datetime.fromisoformat(line[4:30]) + datetime.timedelta(seconds=by_s)
            moved.append(f"DLL {stamp:%Y-%m-%d %H:%M:%S.%f}{line[30:]}")
        return moved

    second = [line.replace("Epoch: 0", "Epoch: 1") for line in text[31:]]
    at_the_end = read_text(tmp_path, "\n".join([*text[:31], *later(second, 45)]) + "\n")
    assert not [check for check in at_the_end.checks if not check.agree]
    within = read_text(tmp_path, "\n".join([*text[:31], *later(text[31:], 45)]) + "\n")
    assert [check.what for check in within.checks if not check.agree] == ["time with pauses"]


@pytest.mark.parametrize(("wanted", "ended", "truncated"), [(1, 0, None), (2, 0, True), (2, 1, True), (2, 2, False)])
def test_a_log_is_truncated_only_where_its_lines_tell(
    tmp_path: Path, wanted: int, ended: int, truncated: bool | None
) -> None:
    """PaddleClas's public logs may close without a word; an epoch that the configuration asks for is a word."""
    epochs = max(1, min(wanted, ended + 1) if ended < wanted else wanted)
    text = samples.paddleclas_static(samples.run_of(samples.steady(40 * epochs), epoch_steps=40))
    text = re.sub(r"epochs : \d+", f"epochs : {wanted}", text)
    ends = re.findall(r".*END epoch.*\n", text)
    for end in ends[ended:]:
        text = text.replace(end, "")
    assert read_text(tmp_path, text).truncated is truncated


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("train.total_ips", "sequences/s"),
        ("train.total_ips", "images/s/gpu"),
        ("train.total_ips", "images/min"),
        ("train.total_ips", "ms"),
        ("train.loss", "nats/s"),
        ("train.total_ips", "img/sec"),
    ],
)
def test_a_unit_in_dlloggers_metadata_is_that_of_the_rows(tmp_path: Path, metric: str, unit: str) -> None:
    lines = samples.nvidia_json(samples.run_of(samples.steady(240))).splitlines(keepends=True)
    assert read_text(tmp_path, "".join(lines)).windows
    metadata = {"type": "METADATA", "metric": metric, "metadata": {"unit": unit, "format": ":.2f"}}
    text = f"DLLL {json.dumps(metadata)}\n" + "".join(lines)
    if metric == "train.loss" or unit == "img/sec":
        assert read_text(tmp_path, text).windows
        return
    with pytest.raises(InputError, match=f"line 1: a rate in {unit}, not in images/s"):
        read_text(tmp_path, text)


@pytest.mark.parametrize(
    ("digits", "is_told"), [(r"\g<1>", True), (r"\g<0>", False), (r"\g<0>000", True)], ids=["s", "ms", "us"]
)
def test_stamps_that_are_not_in_milliseconds_are_told_of(tmp_path: Path, digits: str, is_told: bool) -> None:
    """A figure by epochs would be 1000 times too high or too low, and nothing else in the log says so."""
    text = re.sub(r'(?<="time_ms": )(\d+)\d{3}', digits, samples.mllog(samples.run_of(samples.steady(240))))
    problems = read_text(tmp_path, text).problems
    assert [problem for problem in problems if "if it does not count milliseconds" in problem] == list(problems)
    assert len(problems) == is_told


@pytest.mark.parametrize(("name", "value"), [("time_s", "-5"), ("time_s", '"fast"'), ("steps", "0"), ("steps", "null")])
def test_a_window_without_steps_or_time_is_one_problem(tmp_path: Path, name: str, value: str) -> None:
    text = samples.mllog(samples.run_of(samples.steady(240), epoch_steps=120))
    record = read_text(tmp_path, re.sub(rf'"{name}": [\d.]+', f'"{name}": {value}', text, count=1))
    [problem] = record.problems
    assert "step_window without steps or time (" in problem
    assert f"{name} {value}".replace('"', "") in problem and len(record.windows) == 23


@pytest.mark.parametrize("value", ['"many"', "1e308", "{}", "-5"])
def test_a_field_that_cannot_be_read_is_a_problem_and_no_check_agrees_with_itself(tmp_path: Path, value: str) -> None:
    text = re.sub(
        r'"images": [\d.]+', f'"images": {value}', samples.mllog(samples.run_of(samples.steady(240), epoch_steps=120))
    )
    record = read_text(tmp_path, text)
    assert "step_window: images is " in record.problems[0] and "cannot be read" in record.problems[0]
    [images] = [check for check in record.checks if check.what == "images"]
    assert images.one_sided and not images.agree and "24 of 24 windows count no images" in str(images)
    shown = "\n".join(show.record_lines(record))
    assert "NOT CHECKED" in shown and "counted" not in shown
    log = samples.write(tmp_path, "own.log", text)
    _, result, _ = samples.command("score", log, "--protocol", "window")
    assert [warning["rule"] for warning in result["warnings"]].count("log_problem") == 3
