"""Each row of published.csv against its report, by a parse that shares nothing with the table."""

import re
from collections import Counter
from pathlib import Path

import pytest

from scoring.figure import protocols
from scoring.published.table import read_published, select

ROWS = read_published()


def _text(published_reports: Path, number: str) -> str:
    """Text of the report whose file name begins with `number`."""
    (path,) = published_reports.glob(f"{number}_*.txt")
    return path.read_text(encoding="utf-8")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _held(table: str, *names: str) -> dict[tuple, str]:
    """The rows of a table as {conditions: printed digits}; two rows with the same conditions fail."""
    rows = select(ROWS, table=table)
    held = {tuple(getattr(row, name) for name in names): row.printed for row in rows}
    assert len(held) == len(rows)
    return held


def test_dlperf_rows_are_those_of_the_report(published_reports: Path) -> None:
    text = _text(published_reports, "000")
    printed: dict[tuple, str] = {}
    for nodes, gpus, run, last in re.findall(r"/(\d)n(\d)g/r50_b128_fp32_(\d)\.log \{.*?(\d+): [\d.]+\}", text):
        line = re.search(rf"/{nodes}n{gpus}g/r50_b128_fp32_{run}\.log \{{(.*)\}}", text)
        assert line and run == last
        value = dict(pair.split(": ") for pair in line[1].split(", "))[run]
        printed[int(nodes), int(nodes) * int(gpus), "throughput_run", int(run), "paddle"] = value
    assert len(printed) == 36
    for nodes, gpus, speed, speedup in re.findall(
        r"'(\d)n(\d)g': \{'average_speed': ([\d.]+),\s+'batch_size_per_device': 128,\s+'speedup': ([\d.]+)\}", text
    ):
        printed[int(nodes), int(nodes) * int(gpus), "throughput", None, "paddle"] = speed
        printed[int(nodes), int(nodes) * int(gpus), "speedup", None, "paddle"] = speedup
    for line in text.split("### FP32 & Without XLA")[1].splitlines():
        cells = _cells(line)
        if len(cells) == 6 and cells[0].isdigit():
            nodes, devices = int(cells[0]), int(cells[1])
            printed[nodes, devices, "throughput", None, "oneflow"] = cells[2]
            printed[nodes, devices, "speedup", None, "oneflow"] = cells[3]
            # The second printing of Paddle's own figures must not differ from the first.
            assert printed[nodes, devices, "throughput", None, "paddle"] == cells[4]
            assert float(printed[nodes, devices, "speedup", None, "paddle"]) == float(cells[5])
    assert len(printed) == 36 + 12 + 10
    held = {
        (*key[:4], key[4].split()[0].lower()): value
        for key, value in _held("dlperf", "nodes", "devices", "metric", "run", "framework").items()
    }
    assert held == printed


def test_perf_rn50_rows_are_those_of_the_report(published_reports: Path) -> None:
    text = _text(published_reports, "001")
    printed: dict[tuple, str] = {}
    frameworks = ["Paddle", "TensorFlow", "PyTorch", "MXNet"]
    parts = re.split(r"(V100|A100)-(FP32|AMP)测试", text)[1:]
    for card, precision, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        for gpus, cells in re.findall(r"GPU=(\d+),BS=256 ((?:(?!GPU=)\S+ ?)+)", body):
            values = cells.removesuffix("-").split()[:4]
            for framework, value in zip(frameworks, values, strict=True):
                number = re.match(r"[\d.]+", value)
                if number:
                    printed[card, precision == "FP32", int(gpus), framework] = number[0]
    assert len(printed) == 11 + 11 + 7 + 7
    for card, body in re.findall(r"(V100|A100)上训练吞吐率\(images/sec\)如下:(.*?)(?=\n- |\n以上)", text, re.DOTALL):
        for gpus, fp32, fp16 in re.findall(r"^(\d+) \| ([\d.]+) \| ([\d.]+) \|$", body, re.MULTILINE):
            assert printed[card, True, int(gpus), "Paddle"] == fp32
            assert printed[card, False, int(gpus), "Paddle"] == fp16
    held = {
        (card, not precision.startswith("amp"), devices, next(name for name in frameworks if name in framework)): value
        for (card, precision, devices, framework), value in _held(
            "perf_rn50", "accelerator", "precision", "devices", "framework"
        ).items()
    }
    assert held == printed


def test_fleetx_rows_are_those_of_the_report(published_reports: Path) -> None:
    text = _text(published_reports, "002")
    printed: dict[tuple, str] = {}
    columns = [1, 1, 2, 4, 8]
    for heading, body in re.findall(r"- 单位：(.*?)如下：(.*?)(?=- 单位|\Z)", text, re.DOTALL):
        mode = "auto" if "自动" in heading else re.search(r"FP32|AMP", heading)[0].lower()  # type: ignore[index]
        for line in body.splitlines():
            cells = _cells(line)
            if line.startswith("| ") and cells[0].isdigit():
                values = (cells[1:] + [""] * 5)[:5]
                for position, (nodes, value) in enumerate(zip(columns, values, strict=True)):
                    if re.fullmatch(r"[\d.]+", value):
                        printed[mode, int(cells[0]), nodes, 1 if position == 0 else 8 * nodes] = value
    assert len(printed) == 6 + 12 + 8
    held = {
        ("auto" if strategy == "auto" else "amp" if precision == "amp_o1" else precision, batch, nodes, devices): value
        for (strategy, precision, batch, nodes, devices), value in _held(
            "fleetx", "strategy", "precision", "batch_per_device", "nodes", "devices"
        ).items()
    }
    assert held == printed


def test_perf_hrnet_rows_are_those_of_the_report(published_reports: Path) -> None:
    text = _text(published_reports, "003")
    printed: dict[tuple, str] = {}
    for precision, body in re.findall(r"- (FP32|AMP)测试\n(.*?)(?=\n- |\n## )", text, re.DOTALL):
        for gpus, paddle, torch in re.findall(r"GPU=(\d+),BS=8 \|\s*([\d.]+)\s*\|\s*([\d.]+)\s*\|", body):
            printed[precision == "FP32", int(gpus), "Paddle"] = paddle
            printed[precision == "FP32", int(gpus), "NGC"] = torch
    assert len(printed) == 12
    for gpus, fp32, amp in re.findall(r"^\s+\|(\d+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE):
        assert (printed[True, int(gpus), "Paddle"], printed[False, int(gpus), "Paddle"]) == (fp32, amp)
    held = {
        (precision == "fp32", devices, framework.split()[0]): value
        for (precision, devices, framework), value in _held("perf_hrnet", "precision", "devices", "framework").items()
    }
    assert held == printed


def test_oneflow_rows_are_those_of_the_report(published_reports: Path) -> None:
    text = _text(published_reports, "004")
    printed: dict[tuple, str] = {}
    for line in text.split("## Test Results")[1].splitlines():
        cells = _cells(line)
        if len(cells) == 7 and cells[0].isdigit():
            nodes, gpus, devices, batch = (int(cell) for cell in cells[:4])
            assert nodes * gpus == devices
            for metric, value in zip(("gpu_memory", "throughput", "speedup"), cells[4:], strict=True):
                printed[nodes, devices, batch, metric] = value
    assert len(printed) == 36
    assert _held("oneflow", "nodes", "devices", "batch_per_device", "metric") == printed


# What the collection of other published results says, as a sentence with each figure at its place.
OTHERS = {
    ("nvidia_paddle", "throughput"): r"TF32 (1024) / (8013), AMP (2897) / (23874) images/s on 1 / 8 GPUs "
    r"\(their sparsity table gives (2711) / (20267) for the same AMP baseline\)",
    ("mlperf_v2.1", "throughput"): r"MLPerf v2\.1 MXNet on DGX A100 \(8 GPUs\): about (26,700) images/s",
    ("quality", "top1"): r"PaddleClas ResNet50 \|.*\| (76\.50) \|\n\| PaddleClas AMP O2 ultra \|.*\| (76\.23) \|\n"
    r"\| NVIDIA Paddle \|.*\| (76\.93) \+- 0\.14",
    ("quality", "miou"): r"mIoU (78\.97) \(flip (79\.49), multi-scale and flip (80\.04)\)",
}


@pytest.fixture
def reference(published_reports: Path) -> str:
    return (published_reports.parent / "reference" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table, metric", OTHERS)
def test_other_published_results_are_those_of_the_collection(reference: str, table: str, metric: str) -> None:
    found = re.search(OTHERS[table, metric], reference)
    assert found
    assert [row.printed for row in select(ROWS, table=table, metric=metric)] == [
        v.replace(",", "") for v in found.groups()
    ]


# Sentence of the collection -> the row that must carry the log's figure.
NOT_BORNE_OUT = [
    (r"A100 FP32 8 GPUs (5333\.558) \(log: about (4,390)", {}),
    (r"V100 pure FP16 1 GPU (1438\.518) \(log's maximum (1434\.8)\)", {}),
    (r"HRNet FP32 8 GPUs (117\.205) \(log (116\.7)\)", {}),
    (r"HRNet 32 GPUs (428) / 422 \(log about (431) / 427", {"precision": "fp32"}),
    (r"HRNet 32 GPUs 428 / (422) \(log about 431 / (427)", {"precision": "amp_o2"}),
    (r"mmseg FP16 1 GPU (17\.448) \(log (17\.488)\)", {}),
]


@pytest.mark.parametrize("sentence, more", NOT_BORNE_OUT)
def test_figures_their_logs_do_not_bear_out_carry_what_the_log_gives(reference: str, sentence: str, more: dict) -> None:
    found = re.search(sentence, reference)
    assert found
    (row,) = select(ROWS, printed=found[1], **more)
    assert row.log_value == float(found[2].replace(",", "")) and row.log_note


def test_only_the_listed_figures_are_doubted() -> None:
    doubted = Counter((row.table, row.metric) for row in ROWS if row.log_note)
    assert doubted == {
        ("dlperf", "speedup"): 3,
        ("perf_rn50", "throughput"): 4,  # of two batch 128 is the log's
        ("perf_hrnet", "throughput"): 4,
        ("mlperf_v2.1", "time_to_train"): 1,
    }


def test_tf32_is_never_called_fp32() -> None:
    assert not [row for row in ROWS if row.accelerator == "A100" and row.precision == "fp32"]


def test_every_protocol_named_is_one_of_the_protocols() -> None:
    named = {row.protocol for row in ROWS if row.protocol}
    assert named <= set(protocols.load())
    assert {"fleetx", "dlperf", "perf", "perf-seg", "oneflow", "mlperf"} <= named
