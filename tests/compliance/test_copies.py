"""Two runs that resemble each other more than two trainings do: intervals, counts of right images and losses."""

import math
import random
import re

import pytest

from compliance.logged_run import Evaluation, LoggedRun
from compliance.strict.copies import describe_near_losses, describe_resemblance
from runlog.reader import Event


def test_intervals_of_no_time_are_no_resemblance() -> None:
    """Two runs whose clock shows no time for each tenth of 300 epochs, and noise for the others."""
    chance = random.Random(5)
    runs = (LoggedRun(), LoggedRun())
    for run in runs:
        for place in range(300):
            run.keep_interval("epoch_stop", 0.0 if place % 10 == 0 else float(chance.randrange(1000, 9000)))
    assert describe_resemblance(*runs, "other", most_chance=1e-20) == ""
    copied = LoggedRun()
    for time_ms in runs[0].durations("epoch_stop"):
        copied.keep_interval("epoch_stop", time_ms)
    assert describe_resemblance(runs[0], copied, "other", most_chance=1e-20).startswith("270 of 270 intervals are")


def test_runs_of_very_many_evaluations_are_compared() -> None:
    """The number of ways to choose the equal ones among 20,000 is beyond any float."""
    chance = random.Random(3)
    runs = (LoggedRun(), LoggedRun())
    for run in runs:
        for key, value in (("submission_benchmark", "resnet"), ("eval_samples", 50_000)):
            run.take(Event(key, value, {}, 0, "POINT_IN_TIME", 1, 0))
        run.evaluations += [Evaluation(n, chance.randrange(30_000, 38_000) / 50_000, 1) for n in range(20_000)]
    assert describe_resemblance(*runs, "other", most_chance=1e-20) == ""
    moved = [one._replace(value=one.value + 1 / 50_000) for one in runs[0].evaluations]
    runs[1].evaluations[:] = moved
    assert "rises of right images are" in describe_resemblance(*runs, "other", most_chance=1e-20)


@pytest.mark.parametrize(("windows", "scatter", "found"), [(27, 0.3, True), (27, 0.01, False), (19, 0.3, False)])
def test_losses_of_a_copy_are_nearer_than_they_scatter(windows: int, scatter: float, found: bool) -> None:
    """One run, another one, and a copy whose losses are each some 0.5 % off: too much where they scatter by 1 %."""
    chance = random.Random(7)
    falling = [math.exp(1.5 - 0.1 * window) for window in range(windows)]
    one, another, copy = LoggedRun(), LoggedRun(), LoggedRun()
    for loss in falling:
        scattered = loss * math.exp(chance.gauss(0, scatter))
        one.first_losses.append(scattered)
        another.first_losses.append(loss * math.exp(chance.gauss(0, scatter)))
        copy.first_losses.append(scattered * math.exp(chance.gauss(0, 0.005)))
    assert describe_near_losses(one, another, "other", most_share=0.1) == ""
    said = describe_near_losses(copy, one, "other", most_share=0.1)
    assert bool(re.fullmatch(r"its losses are those of other within 0\.\d+ %", said)) == found


@pytest.mark.parametrize("unit", [4.0, 2.0**-28], ids=["diverged", "learned by heart"])
def test_coarse_losses_of_two_runs_are_equal_by_coincidence(unit: float) -> None:
    """Two runs that diverged had losses of 44, 48, 52, 56, 60 and 64, and were called copies; a copy has all losses."""
    chance = random.Random(11)
    one, another, copy = LoggedRun(), LoggedRun(), LoggedRun()
    for window in range(120):
        for run in (one, another):
            coarse = unit * chance.choice((11, 12, 13, 13, 13, 14, 15, 15, 15, 15, 15, 16))
            run.first_losses.append(2.3 * math.exp(chance.gauss(0, 0.3)) if window < 30 else coarse)
    copy.first_losses += one.first_losses
    for other, found in ((another, ""), (copy, "30 of 120 losses of step_windows are those of other")):
        assert describe_resemblance(one, other, "other", most_chance=1e-20) == found
    assert describe_near_losses(one, another, "other", most_share=0.1) == ""


@pytest.mark.parametrize("loss", [math.log(10), 64.0])
def test_losses_that_do_not_change_are_no_copies(loss: float) -> None:
    one, another = LoggedRun(), LoggedRun()
    for run in (one, another):
        run.first_losses += [loss] * 30
    assert describe_near_losses(one, another, "other", most_share=0.1) == ""
