"""Each row of published.csv against its report, by a parse that shares nothing with the table."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scoring.figure import protocols
from scoring.published.table import Published, read_published, select

ROWS = read_published()


def dlperf(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for nodes, gpus, runs in re.findall(r"/(\d)n(\d)g/r50_b128_fp32_\d\.log \{(.*)\}", text):
        run, value = runs.split(", ")[-1].split(": ")  # each line has the runs up to its own
        printed[int(nodes), int(nodes) * int(gpus), "throughput_run", int(run), "Paddle"] = value
    assert len(printed) == 36
    for nodes, gpus, speed, speedup in re.findall(
        r"'(\d)n(\d)g': \{'average_speed': ([\d.]+),\s+'batch_size_per_device': 128,\s+'speedup': ([\d.]+)\}", text
    ):
        for metric, value in (("throughput", speed), ("speedup", speedup)):
            printed[int(nodes), int(nodes) * int(gpus), metric, None, "Paddle"] = value
    for nodes, devices, speed, speedup, *own in _tables(text.split("### FP32 & Without XLA")[1], 6):
        for metric, value, second in (("throughput", speed, own[0]), ("speedup", speedup, own[1])):
            printed[int(nodes), int(devices), metric, None, "OneFlow"] = value
            # The second printing of Paddle's own figures must not differ from the first.
            assert float(printed[int(nodes), int(devices), metric, None, "Paddle"]) == float(second)
    return printed


def perf_rn50(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    parts = re.split(r"(V100|A100)-(FP32|AMP)测试", text)[1:]
    for card, precision, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        for gpus, cells in re.findall(r"GPU=(\d+),BS=256 ((?:(?!GPU=)\S+ ?)+)", body):
            frameworks = ("Paddle", "NGC TensorFlow", "NGC PyTorch", "NGC MXNet")
            for framework, value in zip(frameworks, cells.removesuffix("-").split()[:4], strict=True):
                if number := re.match(r"[\d.]+", value):
                    printed[card, precision == "FP32", int(gpus), framework] = number[0]
    for card, body in re.findall(r"(V100|A100)上训练吞吐率\(images/sec\)如下:(.*?)(?=\n- |\n以上)", text, re.DOTALL):
        for gpus, *values in re.findall(r"^(\d+) \| ([\d.]+) \| ([\d.]+) \|$", body, re.MULTILINE):
            assert [printed[card, fp32, int(gpus), "Paddle"] for fp32 in (True, False)] == values
    return printed


def fleetx(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for heading, body in re.findall(r"- 单位：(.*?)如下：(.*?)(?=- 单位|\Z)", text, re.DOTALL):
        mode = "auto" if "自动" in heading else re.search(r"FP32|AMP", heading)[0].lower()  # type: ignore[index]
        for batch, *values in _tables(body):
            for (nodes, devices), value in zip(((1, 1), (1, 8), (2, 16), (4, 32), (8, 64)), values, strict=False):
                if re.fullmatch(r"[\d.]+", value):
                    printed[mode, int(batch), nodes, devices] = value
    return printed


def perf_hrnet(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for precision, body in re.findall(r"- (FP32|AMP)测试\n(.*?)(?=\n- |\n## )", text, re.DOTALL):
        for gpus, *values in re.findall(r"GPU=(\d+),BS=8 \|\s*([\d.]+)\s*\|\s*([\d.]+)\s*\|", body):
            for framework, value in zip(("Paddle", "NGC PyTorch"), values, strict=True):
                printed[precision == "FP32", int(gpus), framework] = value
    for gpus, *values in re.findall(r"^\s+\|(\d+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE):
        assert [printed[fp32, int(gpus), "Paddle"] for fp32 in (True, False)] == values
    return printed


def oneflow(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for cells in _tables(text.split("## Test Results")[1], 7):
        nodes, gpus, devices, batch = map(int, cells[:4])
        assert nodes * gpus == devices
        for metric, value in zip(("gpu_memory", "throughput", "speedup"), cells[4:], strict=True):
            printed[nodes, devices, batch, metric] = value
    return printed


def _tables(text: str, columns: int | None = None) -> Iterator[list[str]]:
    """The rows of its tables that begin with a number."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit() and columns in (None, len(cells)):
            yield cells


def _framework(row: Published) -> str:
    words = row.framework.split()
    return " ".join(words[:2]) if words[0] == "NGC" else words[0]


def _fp32(row: Published) -> bool:
    return not (row.precision or "").startswith("amp")


@pytest.mark.parametrize(
    "parse, number, rows, key",
    [
        (dlperf, "000", 58, lambda row: (row.nodes, row.devices, row.metric, row.run, _framework(row))),
        (perf_rn50, "001", 36, lambda row: (row.accelerator, _fp32(row), row.devices, _framework(row))),
        (
            fleetx,
            "002",
            26,
            lambda row: (row.strategy or row.precision.split("_")[0], row.batch_per_device, row.nodes, row.devices),
        ),
        (perf_hrnet, "003", 12, lambda row: (_fp32(row), row.devices, _framework(row))),
        (oneflow, "004", 36, lambda row: (row.nodes, row.devices, row.batch_per_device, row.metric)),
    ],
)
def test_the_rows_are_those_of_the_report(
    published_reports: Path,
    parse: Callable[[str], dict[tuple, str]],
    number: str,
    rows: int,
    key: Callable[[Published], tuple],
) -> None:
    (path,) = published_reports.glob(f"{number}_*.txt")
    printed = parse(path.read_text(encoding="utf-8"))
    held = select(ROWS, table=parse.__name__)
    assert len(printed) == len(held) == rows
    assert {key(row): row.printed for row in held} == printed


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
