"""The widths of the intervals of one run, and the smallest difference that matters, as published logs gave them.

`benchmarks/calibration.py --only widths --write` makes them from logs of others; calibration.yaml holds them.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scoring.record import Record

FILE = Path(__file__).with_name("calibration.yaml")
EPOCHS = "epochs"  # windows that are whole epochs, as in MLPerf logs
ROWS = "rows"  # windows of fewer steps


@dataclass(frozen=True, kw_only=True)
class Width:
    """Half the width of an interval as a share of the figure: max(factor * scale**power, least_share).

    The power is 1 or less. The mean of an even run may move by many times the deviation of its windows, for example
    because a clock rate drops. The mean of an uneven run moves by fewer deviations.
    """

    windows: int  # the least number of windows that it holds for
    factor: float
    power: float
    least_share: float

    def half_width(self, scale: float) -> float:
        """Return half the width of an interval as a share of the figure that it is about, such as 0.01.

        Args:
            scale: How much the run varies: a relative standard deviation or half a width, as `Calibration` says of each
                table.
        """
        share: float = self.factor * scale**self.power
        return max(share, self.least_share)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The calibrated widths by the kind of windows, in ascending order of the windows that they need."""

    run: Mapping[str, Sequence[Width]]  # scale: the relative standard deviation of the windows' times
    repeat: Mapping[str, Sequence[Width]]  # scale: half the width of the interval that the windows alone give
    smallest_difference: float  # share of a figure by which like hosts differ


@functools.cache
def calibration() -> Calibration:
    """Read calibration.yaml."""
    table = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return Calibration(
        run=_widths_by_kind(table["run"]),
        repeat=_widths_by_kind(table["repeat"]),
        smallest_difference=table["smallest_difference"],
    )


def _widths_by_kind(table: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, list[Width]]:
    """Return one table of calibration.yaml as lists of calibrated widths, by the kind of windows: EPOCHS and ROWS.

    Args:
        table: The rows of each kind, each with the fields of a `Width`, in the order of the file: from fewer windows to
            more.
    """
    widths_by_kind = {}
    for kind, rows in table.items():
        widths_by_kind[kind] = [_width(row) for row in rows]
    return widths_by_kind


def _width(row: Mapping[str, float]) -> Width:
    """Return the width that a row of calibration.yaml describes."""
    return Width(
        windows=int(row["windows"]),
        factor=row["factor"],
        power=row["power"],
        least_share=row["least_share"],
    )


def width_for(widths: Sequence[Width], windows: int) -> Width | None:
    """Return the rule for the width of an interval that fits a run with a number of windows.

    A `Width` is such a rule. Each rule holds for runs of at least `Width.windows` windows. For example, of three rules
    for 10, 20 and 40 windows or more, a run of 25 windows takes the rule for 20.

    Args:
        widths: The rules, in ascending order of their `windows`.
        windows: The number of windows of the run; a window is what one printed row of the log covers.

    Returns:
        The last rule whose `windows` is not above the run's number; None if there is no such rule.
    """
    chosen = None
    for width in widths:
        if width.windows <= windows:
            chosen = width  # a later rule that fits replaces an earlier one
    return chosen


def kind_of(record: Record) -> str:
    """Return the kind of a log's windows: ROWS if the first one has a step number, EPOCHS if not or without windows."""
    return ROWS if record.windows and record.windows[0].step is not None else EPOCHS


def smallest_difference() -> float:
    """Return the share of a figure by which like hosts (hosts of one kind) differ: less is not called a difference."""
    return calibration().smallest_difference
