"""Warnings of runs and figures: each where it belongs, and not where it does not."""

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from scoring.figure import warnings
from scoring.importers import read_record
from scoring.record import Record, Window
from tests.scoring import samples
from tests.scoring.command import Command
from tests.scoring.samples import write


def record_of(times: list[float], **fields: Any) -> Record:
    waits = fields.pop("waits", [0.0] * len(times))
    powers = fields.pop("powers", [None] * len(times))
    windows = tuple(
        Window(line=at + 1, step=at + 1, steps=1, images=256, seconds=time, data_wait_s=wait, power_w=power)
        for at, (time, wait, power) in enumerate(zip(times, waits, powers, strict=True))
    )
    values: dict[str, Any] = {"devices": 8, "batch_per_device": 32, "rate_scope": "global", **fields}
    return Record(file="a.log", sha256="0", lines=len(times), format="mllog", windows=windows, **values)


def noise(count: int, level: float = 0.5, share: float = 0.01) -> list[float]:
    return [level * (1 + share * math.sin(at * at * 1.7)) for at in range(count)]


def rules(record: Record, *, averages_rates: bool = False) -> set[str]:
    return {warning.check for warning in warnings.of_windows(record, record.windows, averages_rates)}


def test_steady_run_has_no_warning() -> None:
    for count in (6, 20, 100, 1000):
        assert rules(record_of(noise(count)), averages_rates=True) == set(), count


SLOWED, UNEVEN = noise(60) + noise(40, 0.56), noise(200, share=0.2)
RUNNING = [statistics.fmean(UNEVEN[: at + 1]) for at in range(200)]


@pytest.mark.parametrize(
    ("record", "averages_rates", "said", "unsaid"),
    [
        *((record_of(noise(n, 0.6) + noise(60)), False, f"warm_up_not_over: skip {n} more", "") for n in (1, 3, 15)),
        (record_of(noise(15, 0.502) + noise(60)), False, "", "warm_up_not_over"),  # less than the noise
        (record_of([*noise(20), 5.0, *noise(40)]), False, "outlying_window", "warm_up_not_over"),
        (record_of([time * (1 + at / 1000) for at, time in enumerate(noise(100))]), False, "drift", "throttling"),
        (record_of(SLOWED), False, "throttling", "drift"),
        (
            record_of(SLOWED, powers=[300.0] * 60 + [210.0] * 40),
            False,
            "throttling: 300 W before, 210 W after",
            "drift",
        ),
        (record_of(SLOWED, waits=[0.005] * 60 + [0.065] * 40), False, "", "throttling"),
        (record_of(noise(50), waits=[0.05] * 50), False, "data_stall", "throttling"),
        (record_of(noise(50), waits=[0.01] * 50), False, "", "data_stall"),
        (record_of([0.5, 0.5, 0.5, 2.0] * 10), True, "rates_averaged", ""),
        (record_of([0.5, 0.5, 0.5, 2.0] * 10), False, "", "rates_averaged"),
        (record_of(RUNNING), False, "cumulative_windows", ""),  # of which no format tells
        (record_of(UNEVEN), False, "", "cumulative_windows"),
        (record_of(UNEVEN, cumulative=True), True, "cumulative_windows", ""),
    ],
)
def test_what_is_wrong_with_windows_is_said(record: Record, averages_rates: bool, said: str, unsaid: str) -> None:
    found = {one.check: one for one in warnings.of_windows(record, record.windows, averages_rates)}
    rule, _, words = said.partition(": ")
    assert unsaid not in found and (not rule or words in found[rule].found)
    assert rule != "throttling" or found[rule].where == "a.log:61"


def test_mixed_software_math_modes_and_precisions(published_logs: Path, command: Command) -> None:
    a = read_record(published_logs / "paddleclas_v100_gpu8_fp32_bs256.log")
    b = read_record(published_logs / "paddleclas_a100_gpu1_fp32_bs256.log")
    found = {warning.check: warning.found for warning in warnings.of_mixture([a, b])}
    assert found["mixed_math_mode"] == "math mode differs: fp32, tf32"
    assert "cudnn 8.1 and 8.2" in found["mixed_software"]
    assert not list(warnings.of_mixture([a, a]))
    c = dataclasses.replace(a, framework="PaddlePaddle 2.5.0")
    d = dataclasses.replace(a, framework="PaddlePaddle 2.6.2")
    assert "PaddlePaddle 2.5.0 and 2.6.2" in next(warnings.of_mixture([c, d])).found
    [mixed] = warnings.of_mixture([a, dataclasses.replace(a, precision="amp_o1")])
    assert (mixed.check, mixed.found) == ("mixed_precision", "precision differs: amp_o1, fp32")
    _, result, _ = command("score", b.file, "--protocol", "perf", "--devices", 1)
    assert "tf32" in [warning["rule"] for warning in result["warnings"]]


def test_problems_of_a_log_are_warnings(tmp_path: Path, command: Command) -> None:
    """An option that the log contradicts, a run that computed nothing, a log that ends early."""
    text = samples.paddleseg(samples.run_of([0.5] * 200))
    null = '# {"environment": {"NULL_GPU": "nothing is computed"}}\n' + samples.mllog(samples.run_of([0.5] * 100))
    for log, options, rule, message in (
        (text, ["--devices", 2], "option_contradicts_log", "line 2: the log says devices 8, the options 2"),
        (null, [], "log_problem", "null GPUs, which compute nothing"),
        (text[: text.index("iter: 160/")] + "iter: 160/200, loss: 1", [], "truncated", "the log ends before its run"),
    ):
        code, result, _ = command("score", write(tmp_path, "a.log", log), "--protocol", "perf-seg", *options)
        [said] = [one["message"] for one in result["warnings"] if one["rule"] == rule]
        assert code == 0 and message in said
        if rule == "truncated":
            assert result["value"] == pytest.approx(512, rel=1e-3) and result["windows"] == 11


def test_outlying_runs() -> None:
    records = [record_of(noise(10)) for _ in range(6)]
    for values, outlying in (
        ([100, 101, 99, 100.5, 99.5, 80], True),
        ([100, 101, 99, 100.5, 99.5, 98], False),
        ([28.410, 28.639, 30.342, 28.748, 28.669], True),
        ([100, 100, 100], False),
        ([1, 2], False),
    ):
        found = [warning.check for warning in warnings.of_runs(records[: len(values)], values, "of any unit")]
        assert found == ["outlying_run"] * outlying


@pytest.mark.parametrize(
    ("low", "high", "unsteady"), [(98.1, 101.9, False), (97.5, 102.6, True), (100.0, 100.0, False)]
)
def test_an_interval_of_over_two_percent_each_way_is_unsteady(low: float, high: float, unsteady: bool) -> None:
    assert bool(list(warnings.of_interval(100.0, (low, high)))) == unsteady
