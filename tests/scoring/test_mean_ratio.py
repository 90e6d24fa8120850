"""The interval of a ratio of two means: runs of one host beside several hosts, by `compare` and by `history check`."""

import math
from pathlib import Path

import pytest

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
