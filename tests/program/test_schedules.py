"""Learning rates against their closed forms, at every step."""

import math

import pytest

from program.schedules import Schedule

BASE, WARMUP, TOTAL = 0.4, 7, 50


def expected(kind: str, step: int) -> float:
    if step < WARMUP:
        return BASE / WARMUP * (step + 1)
    share = (step - WARMUP) / (TOTAL - WARMUP)
    if kind == "cosine":
        return 0.001 + (BASE - 0.001) * (1 + math.cos(math.pi * min(share, 1))) / 2
    if kind == "polynomial":
        return 0.001 + (BASE - 0.001) * max(0.0, 1 - share) ** 2
    return BASE * (1 if step < 20 else 0.1 if step < 30 else 0.01)


@pytest.mark.parametrize("kind", ["piecewise", "cosine", "polynomial"])
def test_each_step_follows_the_closed_form(kind: str) -> None:
    piecewise = {"boundaries": (20, 30), "factors": (0.1, 0.01)} if kind == "piecewise" else {"end": 0.001}
    schedule = Schedule(kind=kind, base=BASE, warmup_steps=WARMUP, total_steps=TOTAL, **piecewise)
    for step in range(TOTAL + 5):  # past the end the last rate holds
        assert schedule(step) == pytest.approx(expected(kind, step), rel=1e-12)


def test_without_warm_up_the_first_step_has_the_base_rate() -> None:
    assert Schedule(kind="cosine", base=BASE, warmup_steps=0, total_steps=9)(0) == BASE


def test_a_warm_up_as_long_as_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="warm-up of 9 steps in a schedule of 9"):
        Schedule(kind="cosine", base=BASE, warmup_steps=9, total_steps=9)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must be piecewise, cosine or polynomial"):
        Schedule(kind="linear", base=BASE, warmup_steps=0, total_steps=9)
