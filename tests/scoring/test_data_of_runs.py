"""Runs on other data: synthetic or real, of other sizes. They are not repeats, and no efficiency compares them."""

import json
from pathlib import Path

from tests import make_log
from tests.scoring.samples import scoring, write

SIZE = '"RECIPE.image_size": {"value": 64'


def logs_of_three_kinds(folder: Path) -> tuple[Path, Path, Path]:
    """Throughput runs on synthetic images, on as large real ones, and on larger ones by four devices."""
    synthetic = make_log.run(seed=1, windows=5, summary={"data": "synthetic", "mode": "throughput"})
    real = make_log.run(seed=2, windows=5, summary={"mode": "throughput"})
    large = make_log.run(seed=3, windows=5, devices=4, summary={"mode": "throughput"})
    assert SIZE in large
    large = large.replace(SIZE, SIZE.replace("64", "224"))
    return write(folder, "a.txt", synthetic), write(folder, "b.txt", real), write(folder, "c.txt", large)


def test_runs_on_synthetic_and_on_real_images_are_no_repeats(tmp_path: Path) -> None:
    """Both of README's commands for throughput leave their logs in one folder; score took their mean without a word."""
    synthetic, real, large = logs_of_three_kinds(tmp_path)
    done = scoring("score", synthetic, real, "--protocol", "window")
    assert done.returncode == 2
    assert f"different data (synthetic images of 64 x 64 in {synthetic}, 1437 images of 64 x 64 in" in done.stderr
    groups = json.loads(scoring("report", synthetic, real, large, "--json").stdout)["groups"]
    names = [group["name"].rpartition(", ")[2] for group in groups]
    assert names == ["synthetic images of 64 x 64", "1437 images of 64 x 64", "fp32"]


def test_no_efficiency_is_given_over_other_data(tmp_path: Path) -> None:
    _, real, large = logs_of_three_kinds(tmp_path)
    found = json.loads(scoring("compare", real, large, "--protocol", "window", "--json").stdout)
    assert found["rows"][1]["efficiency"] is None
    [warning] = [warning for warning in found["warnings"] if warning["rule"] == "mixed_data"]
    assert warning["message"] == "data differs: 1437 images of 224 x 224, 1437 images of 64 x 64"
    assert json.loads(scoring("report", real, large, "--json").stdout)["scaling"] == []


def test_runs_on_other_data_are_of_another_trend(tmp_path: Path) -> None:
    synthetic, real, _ = logs_of_three_kinds(tmp_path)
    file = tmp_path / "history.sqlite"
    assert scoring("history", "add", synthetic, "--file", file).returncode == 0
    done = scoring("history", "check", real, "--file", file)
    assert done.returncode == 0 and "holds 0 earlier runs of it" in done.stdout, done
