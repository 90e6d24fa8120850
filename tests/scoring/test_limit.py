"""How near a figure is to its machine's limit: from a log's header, by the data sheet and the counted FLOPs."""

import json
from pathlib import Path
from typing import Any

import pytest

from scoring.figure import limit
from scoring.record import Record
from tests import make_log
from tests.jobs import REPOSITORY
from tests.scoring.command import scoring

A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_gib": 39.6}


def record(*, gpus: Any = (A100,) * 8, sizes: dict[str, Any] | None = None, **fields: Any) -> Record:
    config = {f"RECIPE.image_{name}": {"value": value} for name, value in (sizes or {"size": 224}).items()}
    header = {"hardware": {"nodes": [{"gpus": list(gpus)}]}, "config": config}
    of_run = {"model": "resnet50_v1.5", "devices": 8, "precision": "amp_o2", "header": header}
    return Record(file="a", sha256="", lines=1, format="mllog", **(of_run | fields))


def of_gpu(name: str, memory_gib: float | None) -> dict[str, Any]:
    """A run on eight of it."""
    return {"gpus": [{"name": name, "memory_gib": memory_gib}] * 8}


def test_the_flops_are_those_counted_of_the_fp32_programs() -> None:
    golden = json.loads((REPOSITORY / "tests/tools/golden/programs.json").read_text())
    for (model, *_), flops in limit.FLOPS.items():
        names = [n for n in golden if n.startswith("hrnet_fp32" if "hrnet" in model else "fp32_")]
        assert names and {golden[name]["flops"] / int(name.split("_")[-2][1:]) for name in names} == {flops}


@pytest.mark.parametrize(
    ("fields", "peak"),
    [
        ({}, 312e12),
        ({"precision": "fp32", "math_mode": "fp32"}, 19.5e12),
        ({"precision": "fp32", "math_mode": "tf32"}, 156e12),
        (of_gpu("Tesla V100-SXM2-32GB", 32.0), 125e12),
        (of_gpu("Tesla V100-SXM2-16GB", 15.8), 125e12),
        (of_gpu("NVIDIA A100-SXM4-80GB", 79.2), 312e12),
    ],
)
def test_a_figure_is_a_share_of_the_cards_peak(fields: dict[str, Any], peak: float) -> None:
    assert limit.utilization([record(**fields)] * 2, 16_000.0) == pytest.approx(16_000 * 24_299_077_632 / (8 * peak))
    hrnet = record(model="fcn_hrnetw18", sizes={"height": 512, "width": 1024}, **fields)
    assert limit.utilization([hrnet], 100.0) == pytest.approx(100 * 220_648_587_264 / (8 * peak))


@pytest.mark.parametrize(
    "fields",
    [
        *(of_gpu(f"{name}GB", 39.6) for name in ("NVIDIA A100-PCIE-40", "Tesla V100S-SXM2-40", "NVIDIA A10-40")),
        of_gpu("NVIDIA A100 80GB PCIe", 79.2),
        of_gpu("NVIDIA A100-SXM4-40GB", None),
        *({"gpus": gpus} for gpus in ((), [A100, {"name": "H100"}], [{"name": [1], "memory_gib": "x"}], [3])),
        *({"sizes": {"size": size}} for size in (160, None, [224], "224", 1e400)),
        *({name: None} for name in ("devices", "precision", "model")),
        *({"header": {"hardware": hardware, "config": hardware}} for hardware in (None, [], {"nodes": 1})),
    ],
)
def test_what_a_log_does_not_say_gives_no_share(fields: dict[str, Any]) -> None:
    assert limit.utilization([record(), record(**fields)], 16_000.0) is None


def test_images_a_joule_are_those_of_all_runs() -> None:
    runs = [record(telemetry={"joules_per_image": joules}) for joules in (0.5, 0.3)]
    assert limit.images_per_joule(runs) == pytest.approx(2 / 0.8)
    for joules in (None, 0, "1", True):
        assert limit.images_per_joule([*runs, record(telemetry={"joules_per_image": joules})]) is None


def test_score_and_report_say_it(tmp_path: Path) -> None:
    summary = {"devices": 8, "batch_per_device": 256, "precision": "amp_o2"}
    text = make_log.run(summary=summary, devices=8, batch=256, samples=(204_800, 2048))
    gpu = A100 | {"driver": "535", "topology": None}
    text = text.replace('"gpus": []', f'"gpus": {json.dumps([gpu] * 8)}')
    text = text.replace('"RECIPE.image_size": {"value": 64,', '"RECIPE.image_size": {"value": 224,')
    log, page = tmp_path / "result_0.txt", tmp_path / "report.html"
    log.write_text(text)
    words = ("score", log, "--protocol", "window", "--runs", "1")
    found = json.loads(scoring(*words, "--json").stdout)
    share = found["value"] * 24_299_077_632 / (8 * 312e12)
    assert found["flops_utilization"] == pytest.approx(share) and found["images_per_joule"] is None
    said = f"{share:.1%} of the cards' peak FLOP/s (MFU)"
    assert f"  limit          {said}\n" in scoring(*words).stdout
    assert scoring("report", log, "--html", page).returncode == 0
    assert said.replace("'", "&#39;") in page.read_text()
