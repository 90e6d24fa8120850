"""The interval of a ratio of two means: runs of one host beside several hosts, by `compare` and by `history check`."""

import math
import random
import statistics
from pathlib import Path

import pytest

from scoring.figure import spread
from tests.scoring.samples import command, folder_of, scoring
from tests.scoring.test_compare import on_host

THREE_HOSTS = {"node1": [1, 1.0001], "node2": [1.00001, 1.00002], "node3": [0.99999, 1.00003]}


def system(place: Path, name: str, step_times_by_host: dict[str, list[float]]) -> Path:
    """Make the folder of a system, with a log of each host for each of its step times, and return the folder."""
    for host, step_times in step_times_by_host.items():
        unnamed = folder_of(place, f"{name}_{host}", step_times)
        on_host(place / name, host, sorted(unnamed.iterdir()))
    return place / name


@pytest.mark.parametrize("host", ["node1", "node4"])
@pytest.mark.parametrize("is_base", [True, False])
def test_a_single_run_beside_several_hosts_is_judged_by_how_far_hosts_lie_apart(
    tmp_path: Path, host: str, is_base: bool
) -> None:
    """Runs of two hosts, which lie 2 % apart, are two values, whether the single run is of one of them or of another.

    By hand: the means 1 and 1/1.02 deviate by 1.4 %; t(1) of 98 % to both sides is 31.82.
    """
    several = system(tmp_path, "several", {"node1": [1, 1, 1], "node2": [1.02, 1.02, 1.02]})
    one = system(tmp_path, "one", {host: [1.03]})
    sides = [one, several] if is_base else [several, one]
    _, result, _ = command("compare", *sides, "--protocol", "window")
    row = result["rows"][1]
    assert row["basis"] == "one host against 2: the spread of 2 hosts of this system"
    low, high = row["ratio_interval_95"]
    assert math.log(high / low) / 2 == pytest.approx(31.82 * 0.014003 * math.sqrt(1.5), rel=1e-3)
    _, result, _ = command("compare", *sides, "--protocol", "window", "--between-runs-sd", "0.1/5")
    assert result["rows"][1]["different"] is True, "what the user gives counts"


@pytest.mark.parametrize(
    ("past", "new"),
    [
        (THREE_HOSTS, {"node4": [1, 1.04, 1.02]}),  # its runs scatter more than the hosts of the past
        ({"node1": [1, 1.0001, 1.0002, 0.9999]}, {"node2": [1.015], "node3": [1.02], "node4": [1.01]}),
    ],
)
def test_the_history_judges_runs_of_one_host_beside_several_as_compare_does(
    tmp_path: Path, past: dict[str, list[float]], new: dict[str, list[float]]
) -> None:
    past_logs, new_logs = system(tmp_path, "past", past), system(tmp_path, "new", new)
    _, result, _ = command("compare", past_logs, new_logs, "--protocol", "window")
    row = result["rows"][1]
    assert row["different"] is False

    file = ("--file", tmp_path / "history.sqlite")
    assert scoring("history", "add", *sorted(past_logs.iterdir()), *file).returncode == 0
    done = scoring("history", "check", *sorted(new_logs.iterdir()), *file)
    low, high = row["ratio_interval_95"]
    assert f"; {row['ratio']:.4f} of the last" in done.stdout and f"95 % {low:.4f} to {high:.4f} (" in done.stdout
    assert done.returncode == 0 and done.stdout.startswith("not shown to be lower")


@pytest.mark.parametrize("dropped", [0, 1])
@pytest.mark.parametrize("deviation_of_few", [1 / 3, 1, 3])
def test_the_ratio_of_few_runs_to_many_holds_as_often_as_it_says(deviation_of_few: float, dropped: int) -> None:
    """Two kept runs against ten: Welch's t held the true ratio in 90 % where the few scatter as much as the many."""
    draw = random.Random(5)
    repeats = 1500
    holds = 0
    for _ in range(repeats):
        few = [draw.gauss(100, deviation_of_few) for _ in range(2 + 2 * dropped)]
        many = [draw.gauss(100, 1) for _ in range(10 + 2 * dropped)]
        base = spread.olympic_mean_of(many, dropped=dropped)
        other = spread.olympic_mean_of(few, dropped=dropped)
        assert base is not None and other is not None
        low, high = spread.mean_ratio_interval(base, other)
        holds += low <= 1 <= high
    two_errors = 2 * math.sqrt(0.93 * 0.07 / repeats)
    assert holds / repeats > 0.93 - two_errors


def test_two_runs_against_seven_take_the_t_of_each(tmp_path: Path) -> None:
    """By hand: the t of 95 % are 12.706 for one degree of freedom and 2.447 for six, weighted by the two variances."""
    many_times = [1, 1.01, 0.99, 1.02, 1.005, 0.995, 1.003]
    few_times = [1.03, 1.035]
    many = folder_of(tmp_path, "many", many_times)
    few = folder_of(tmp_path, "few", few_times)
    _, result, _ = command("compare", many, few, "--protocol", "window")
    row = result["rows"][1]
    assert row["basis"] == "Cochran and Cox's t over 7 and 2 runs"

    def variance_of_mean(step_times: list[float]) -> float:
        rates = [1 / time for time in step_times]
        return statistics.variance(rates) / len(rates) / statistics.fmean(rates) ** 2

    of_many, of_few = variance_of_mean(many_times), variance_of_mean(few_times)
    t = (2.447 * of_many + 12.706 * of_few) / (of_many + of_few)
    low, high = row["ratio_interval_95"]
    assert math.log(high / low) / 2 == pytest.approx(t * math.sqrt(of_many + of_few), rel=1e-3)


def test_the_report_gives_a_single_run_the_interval_that_compare_gives(tmp_path: Path) -> None:
    several = folder_of(tmp_path, "several", [1, 1.01, 0.99, 1.02])
    one = folder_of(tmp_path, "one", [1.03])
    on_more_devices = folder_of(tmp_path, "more", [1.05, 1.06], devices=16)  # else the report has no table of scaling
    systems = (several, one, on_more_devices)
    _, compared, _ = command("compare", *systems, "--protocol", "window")
    _, report, _ = command("report", *systems)
    [rows] = report["scaling"]
    by_report = {row["speedup"]: row["speedup_95"] for row in rows}
    by_compare = {row["speedup"]: row["ratio_interval_95"] for row in compared["rows"]}
    assert by_report == by_compare and len(by_report) == 3
    assert [interval for interval in by_report.values() if interval is None] == [None], "the base alone has none"
