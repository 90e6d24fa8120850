"""Figures as texts."""

import pytest

from runlog.digits import four_digits, percent, percent_above, significant, six_digits


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
