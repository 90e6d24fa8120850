"""`python -m scoring compare`."""

import math
from pathlib import Path

import pytest

from scoring.figure.compare import between_runs_sd
from tests.scoring.command import Command, scoring
from tests.scoring.samples import folder_of, steady_log


def test_different_only_if_the_interval_says_so(tmp_path: Path, command: Command) -> None:
    base, near, far = (
        folder_of(tmp_path, str(mean), [mean * by for by in (1, 1.01, 0.99, 1.005, 0.995)]) for mean in (1, 1.002, 0.95)
    )
    code, result, _ = command("compare", base, near, far, "--protocol", "window")
    assert code == 0 and not result["warnings"]
    _, a, b = result["rows"]
    assert a["different"] is False and b["different"] is True
    assert b["ratio"] == b["speedup"] == b["efficiency"] == pytest.approx(1 / 0.95, rel=2e-3)
    assert b["ratio_interval_95"][0] > 1 and a["ratio_interval_95"][0] < 1 < a["ratio_interval_95"][1]
    assert a["basis"] == "Welch's t over 5 and 5 runs"
    _, result, _ = command("compare", base, far, "--protocol", "mlperf")  # faster to train is a speedup
    row = result["rows"][1]
    assert row["ratio"] == pytest.approx(0.95, rel=1e-3) and row["speedup"] == pytest.approx(1 / 0.95, rel=1e-3)
    assert row["different"] is True and row["basis"] == "Yuen's t over 5 and 5 runs"


@pytest.mark.parametrize(("step_s", "given"), [(1.1, 1 / 1.1), (0.8, 1.25), (0.5, None)])
def test_efficiency_is_of_a_device(tmp_path: Path, command: Command, step_s: float, given: float | None) -> None:
    """More a device among many is said; from a factor of 1.5 on there is no efficiency but the bound."""
    one, eight = folder_of(tmp_path, "one", [1], devices=1), folder_of(tmp_path, "eight", [step_s], devices=8)
    _, result, _ = command("compare", one, eight, "--protocol", "window")
    said = [warning["message"] for warning in result["warnings"] if warning["rule"] == "over_linear"]
    assert ["1 at most" in message for message in said] == [given is None] * (step_s < 1)
    assert all("times as much a device as the base" in message for message in said)
    row = result["rows"][1]
    assert row["speedup"] == pytest.approx(8 / step_s, rel=1e-3)
    assert row["efficiency"] == (given and pytest.approx(given, rel=1e-3))


def test_single_runs_cannot_be_told(tmp_path: Path, command: Command) -> None:
    """Whatever their windows say: two repeats of one system may lie further apart."""
    one, two = folder_of(tmp_path, "one", [1]), folder_of(tmp_path, "two", [1.1])
    _, result, _ = command("compare", one, two, "--protocol", "window")
    row = result["rows"][1]
    assert row["different"] is None and row["ratio_interval_95"] is None and "unknown" in row["basis"]
    assert "cannot be told" in scoring("compare", one, two, "--protocol", "window").stdout
    for given, different in (("1/5", True), ("4/5", False)):  # 10 % against 5.3 and 21.2 %
        _, result, _ = command("compare", one, two, "--protocol", "window", "--between-runs-sd", given)
        row = result["rows"][1]
        assert row["different"] is different
        half = 3.7469 * float(given[0]) / 100 * math.sqrt(2)
        assert row["ratio_interval_95"][1] / row["ratio"] == pytest.approx(math.exp(half), rel=1e-4)


def test_repeats_of_the_same_system_judge_its_single_runs(tmp_path: Path, command: Command) -> None:
    many, one = folder_of(tmp_path, "many", [1, 1.01, 0.99]), folder_of(tmp_path, "one", [2])
    near, other = folder_of(tmp_path, "near", [1.02]), folder_of(tmp_path, "other", [1], devices=4)
    _, result, _ = command("compare", many, one, near, other, "--protocol", "window")
    assert [row["different"] for row in result["rows"]] == [None, True, False, None]
    assert result["rows"][1]["basis"] == "one run against 3: the spread of 3 runs of this system"
    _, result, _ = command("compare", near, one, many, "--protocol", "window")  # a third that has repeats
    assert result["rows"][1]["different"] is True


def test_systems_that_share_a_run_are_refused(tmp_path: Path, command: Command) -> None:
    """Their means are not independent; a copy that was cut or commented on is the same run too."""
    many, one = folder_of(tmp_path, "many", [1, 1.01, 0.99]), folder_of(tmp_path, "one", [1.02])
    copy = one / "result_9.txt"
    copy.write_text((many / "result_1.txt").read_text() + "the operator's remark\n")
    code, _, err = command("compare", many, one, "--protocol", "window")
    assert code == 2 and str(copy) in err and str(many / "result_1.txt") in err and "same run" in err


def test_other_work_has_no_efficiency(tmp_path: Path, published_logs: Path, command: Command) -> None:
    seg, clas = (
        published_logs / name for name in ("paddleseg_v100_gpu1_fp32_bs8.log", "paddleclas_v100_gpu8_fp32_bs256.log")
    )
    _, result, _ = command("compare", seg, clas, "--protocol", "window")
    said = {warning["rule"]: warning["message"] for warning in result["warnings"]}
    assert "ResNet50" in said["mixed_model"] and said["mixed_batch"] == "batch of one device differs: 8, 256"
    assert result["rows"][1]["efficiency"] is None
    one, eight = (steady_log(tmp_path, f"{n}.log", writer="nvidia_pytorch", devices=n) for n in (1, 8))
    flow = steady_log(tmp_path, "flow.log", writer="nvidia_tensorflow", devices=8)
    flow.write_text(flow.read_text().replace(" amp : False ", " amp : True "))
    _, result, _ = command("compare", one, eight, flow, "--protocol", "perf")
    assert result["rows"][1]["efficiency"] is not None and result["rows"][2]["efficiency"] is None


@pytest.mark.parametrize("given", ["1", "1/1", "0/5", "x/5", "1/5/2", "101/5", "0.8/99999999999999999999"])
def test_a_spread_without_its_runs_is_refused(given: str) -> None:
    with pytest.raises(ValueError):
        between_runs_sd(given)


def test_compare_of_nothing(tmp_path: Path, command: Command) -> None:
    code, _, error = command("compare", tmp_path, tmp_path, "--protocol", "window")
    assert code == 2 and "no *.txt or *.log" in error
