"""Figures as texts."""

import pytest

from runlog.digits import beside_limit, four_digits, percent, percent_above, significant, six_digits


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5678, "1234.57"), (0.5, "0.5"), (90.0, "90"), (2_500_000.0, "2.5e+06")]
)
def test_six_digits_has_no_zeros_behind_the_last(value, text):
    assert six_digits(value) == text


def test_significant_and_percent_take_as_many_digits_as_are_asked_for():
    assert significant(1_281_167.0, digits=10) == "1281167"
    assert significant(0.123456, digits=3) == "0.123"
    assert percent(0.0312) == "3.1%"
    assert percent(0.0312, decimals=0) == "3%"


def test_four_digits_has_no_zeros_behind_the_last():
    assert four_digits(45.678) == "45.68"
    assert four_digits(0.5) == "0.5"


def test_percent_above_shows_that_it_lies_above():
    assert percent_above(0.0312, 0.02) == "3.1%"
    assert percent_above(0.020004, 0.02) == "2.0004%"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [(0.75898, "g", "0.75898"), (0.75898, "f", "0.75898"), (0.7582, "g", "0.7582"), (0.76, "g", "0.76")],
)
def test_a_figure_beside_a_limit_shows_on_which_side_it_lies(value, kind, text):
    assert beside_limit(value, 0.759, kind=kind) == text
    assert beside_limit(0.76, 0.759, kind="f") == "0.7600"
    assert beside_limit(0.759, 0.75898, kind="g") == "0.759"
    assert beside_limit(0.75898, None, kind="g") == "0.759"
