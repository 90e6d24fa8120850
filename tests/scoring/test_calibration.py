"""The 95 % intervals hold what they say, by simulation with fixed seeds; benchmarks/calibration.py measures more."""

import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import calibration
from scoring.figure import spread

REPEATS = 400
# Three standard errors of a share of 400 about 95 %.
LEAST, MOST = 0.917, 0.983


def windows(draw: random.Random, correlation: float, count: int) -> list[float]:
    """Windows of one run of mean 100 and deviation 2, each like the last by `correlation`."""
    value, found = draw.gauss(0, 2), []
    for _ in range(count):
        found.append(100 + value)
        value = correlation * value + math.sqrt(1 - correlation**2) * draw.gauss(0, 2)
    return found


def share(intervals: Sequence[tuple[float, float] | None], truth: float = 100) -> float:
    return sum(found is not None and found[0] <= truth <= found[1] for found in intervals) / len(intervals)


@pytest.mark.parametrize(("count", "correlation", "most"), [(8, 0.6, 1), (20, 0.6, MOST), (90, 0.3, MOST)])
def test_the_interval_within_a_run_holds_at_any_correlation(count: int, correlation: float, most: float) -> None:
    """Student's t over these windows holds 86 % at 0.3 and 67 % at 0.6; a few are covered rather too often."""
    draw = random.Random(1)
    found = [spread.series_interval(windows(draw, correlation, count)) for _ in range(REPEATS)]
    assert LEAST <= share(found) <= most


@pytest.mark.parametrize("count", [5, 7])
def test_equal_systems_are_rarely_called_different_and_healthy_sets_rarely_blamed(count: int) -> None:
    draw = random.Random(1)
    called = {"mean": 0, "median": 0, "olympic": 0, "outlier": 0}
    for _ in range(2 * REPEATS):
        a, b = ([draw.gauss(100, 1) for _ in range(count)] for _ in range(2))
        pairs = {"mean": [spread.mean_of(v) for v in (a, b)], "olympic": [spread.olympic_mean_of(v) for v in (a, b)]}
        intervals = {name: spread.ratio_interval(*pair) for name, pair in pairs.items()}  # type: ignore[arg-type]
        median = spread.median_ratio_interval(a, b)
        assert median is not None
        for name, (low, high) in (intervals | {"median": median}).items():
            called[name] += not low <= 1 <= high
        called["outlier"] += spread.outlier(a) is not None
    # 5 % of 800 are 40; two deviations more are 52.
    assert all(count <= 52 for count in called.values()), called
    assert called["outlier"] <= 0.02 * 2 * REPEATS


def test_windows_of_a_published_run_do_not_hold_its_mean_as_often_as_they_say(published_logs: Path) -> None:
    """Real runs drift, so the interval of one run is named for its windows; all published series: docs/scoring.md."""
    shares = []
    for log in sorted(published_logs.glob("*.log")):
        times = calibration.step_times(log)
        if len(times) >= 40:
            shares.append(calibration.held_by_windows(times, 20))
    assert len(shares) == 5
    assert statistics.fmean(shares) < 0.9, shares
    steady = windows(random.Random(1), 0.3, 1000)
    assert calibration.held_by_windows(steady, 20, most=50) > 0.9
