"""At which time stamp a warm-up ends, if the clock runs between the stamps of two rows."""

import dataclasses

import pytest

from scoring.figure import protocols
from scoring.figure.run import run_figure
from scoring.record import Record, Window


@pytest.mark.parametrize(
    ("printed_steps", "first_step", "start"),
    [
        ([10, 20, 30, 40], 1, 20),
        ([0, 10, 20, 30], 0, 20),  # 20 is printed after 21 steps
        ([19, 29, 39], 0, 19),  # exactly 20 steps were done
        ([15, 25, 35], 1, 25),
        ([30, 40, 20, 30, 40], 1, 20),  # a run that was started again from an earlier step
        ([30, 40, 20, 30, 40], 0, 20),
    ],
)
def test_a_row_that_fits_the_warm_up_exactly_goes_before_a_later_step(
    printed_steps: list[int], first_step: int, start: int
) -> None:
    windows = [Window(line=at, step=step, end_s=float(at)) for at, step in enumerate(printed_steps, start=1)]
    assert start_line(windows, first_step) == 1 + printed_steps.index(start)


def test_a_late_first_row_of_a_log_that_counts_from_0_is_not_where_the_warm_up_ends() -> None:
    """The steps start again in the second epoch, in which a row prints the number of steps to skip."""
    printed = [(1, 30), (1, 40), (2, 0), (2, 10), (2, 20), (2, 30)]
    windows = [
        Window(line=at, epoch=epoch, step=step, end_s=float(at)) for at, (epoch, step) in enumerate(printed, start=1)
    ]
    assert start_line(windows, first_step=0) == 5


def start_line(windows: list[Window], first_step: int) -> int:
    """Return the line at whose stamp a warm-up of 20 steps ends."""
    record = Record(
        file="a.log",
        sha256="0",
        lines=len(windows),
        format="csv",
        windows=tuple(windows),
        first_step=first_step,
        devices=1,
        batch_per_device=1,
    )
    protocol = dataclasses.replace(
        protocols.find("window"), skip_unit="step", skip=20, over_steps="between_stamps", take_steps=None
    )
    return run_figure(record, protocol).first_line
