"""Takes running averages apart: the steps between two rows, and whether a log's averages are running ones at all.

A running average is over all steps since a reset, early in the epoch. A format that prints running averages makes
`Totals` of each row, and takes the totals of the row before from them. Releases 2.1 to 2.5 of PaddleClas's dynamic
graph print running averages, later ones averages since the last row, both in the same words.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scoring.importers.table import RowTime
from scoring.importers.text import plausible_wait_s

MOST_STAMP_ERROR_S = 1.0  # of the time between two stamps of whole seconds
CLEARLY_NEARER = 2.0  # one reading is right if it lies nearer to the stamps by this factor
LEAST_CHANGES = 40  # with fewer, how they shrink may be chance
RUNNING_SLOPE = -0.5  # halfway between the slopes of the two readings, which are -1 and 0
_DIGIT_S = 1e-5  # the last printed digit of a step time


class Totals(NamedTuple):
    """The totals of all steps that a row's printed averages cover: printed mean x number of steps."""

    steps: int
    time_s: float
    wait_s: float | None  # the part of the time that waited for input; None: not printed

    def since(self, before: "Totals") -> RowTime:
        """Return the steps, seconds and wait for input since earlier totals: the difference of the two.

        With a mean of 0.2 s over 20 steps and a later one of 0.3 s over 30, there are 10 steps of 9 s - 4 s = 5 s.

        Args:
            before: The totals of an earlier row, or NO_TOTALS for the first row after a reset. The averages must
                not have been reset in between.

        Returns:
            The steps, seconds and wait. The seconds are None if the time did not grow. The wait is None if it is not
            printed, or if it is over 1 % longer than the seconds.
        """
        steps = self.steps - before.steps
        seconds = self.time_s - before.time_s if self.time_s > before.time_s else None
        return RowTime(steps, seconds, plausible_wait_s(self._wait_since(before), seconds))

    def _wait_since(self, before: "Totals") -> float | None:
        """Return the seconds of waiting for input that came after earlier totals, or None if none are printed.

        Args:
            before: The earlier totals. If their wait is None, it counts as 0.
        """
        if self.wait_s is None:
            return None
        wait_before_s = 0.0 if before.wait_s is None else before.wait_s
        return max(0.0, self.wait_s - wait_before_s)  # the averages are rounded, so the difference may be below 0


NO_TOTALS = Totals(steps=0, time_s=0.0, wait_s=0.0)  # right after the averages were reset


class PrintedMean(NamedTuple):
    """The mean step time that a row prints, and what it may be the mean of."""

    mean_s: float
    steps_since_row: int  # steps since the last row
    steps_since_reset: int  # steps since the averages were reset in this epoch
    end_s: float | None  # time stamp of the row

    @property
    def total_since_reset_s(self) -> float:
        """The time since the reset, if the row averages all steps since then."""
        return self.mean_s * self.steps_since_reset


def are_running_averages(groups: Sequence[Sequence[PrintedMean]], *, release_says: bool | None) -> bool:
    """Return whether the means that a log's rows print are running averages, rather than row averages.

    A running average is over all steps since a reset, early in the epoch. A row average is over the steps since the
    last row. Four tests are tried in this order, until one has an answer:

    - If the means were running averages, mean x steps since the reset would be a time that falls from one row to the
      next, which no time can do: row averages.
    - One of the two kinds fits the time stamps clearly better: this kind.
    - The rows show which release of the program printed them: the kind that `release_says`.
    - The changes of the mean from row to row shrink: running averages. Otherwise, as with too few rows: row averages.

    Args:
        groups: The rows from each reset of the averages up to the next one.
        release_says: Whether the release that prints such rows prints running averages. None if releases of both kinds
            print such rows.
    """
    if any(_has_total_that_falls(rows) for rows in groups):
        return False
    by_stamps = _are_running_by_stamps(groups)
    if by_stamps is not None:
        return by_stamps
    if release_says is not None:
        return release_says
    return _changes_shrink(groups)


def _has_total_that_falls(rows: Sequence[PrintedMean]) -> bool:
    """Return whether the time since the reset would fall from one row to the next, which no time can do.

    Args:
        rows: The rows from one reset of the averages up to the next one.
    """
    for before, row in itertools.pairwise(rows):
        rounding_s = _DIGIT_S * row.steps_since_reset
        if row.total_since_reset_s < before.total_since_reset_s - rounding_s:
            return True
    return False


def _are_running_by_stamps(groups: Sequence[Sequence[PrintedMean]]) -> bool | None:
    """Return whether the printed means are running averages, by the rows' time stamps; None if undecided.

    A running average is over all steps since a reset, and a row average over the steps since the last row. Each kind
    predicts the time from the first row after a reset to a later row:

    - Running averages: total of the later row - total of the first row, where a total is mean x steps since the reset.
    - Row averages: sum of mean x steps since the last row, over the rows after the first one up to the later row.

    If the first row prints 1 s over 6 steps since the reset, and a row 10 steps later prints 0.5 s, these times are
    0.5 s x 16 - 1 s x 6 = 2 s and 0.5 s x 10 = 5 s. With stamps that are 2 s apart, the mean is a running average.

    The error of a kind is the mean difference between its times and the times between the stamps. The kind with the
    smaller error is right. Undecided means that the larger error is at most MOST_STAMP_ERROR_S, or less than
    CLEARLY_NEARER x the smaller one, or that there are no stamps to compare.

    Args:
        groups: The rows from each reset of the averages up to the next one. Rows without a stamp are not compared.
    """
    errors_if_running: list[float] = []
    errors_if_of_rows: list[float] = []
    for rows in groups:
        by_rows_s = 0.0
        for row in rows[1:]:
            by_rows_s += row.mean_s * row.steps_since_row  # with the rows that have no stamp
            if row.end_s is None or rows[0].end_s is None:
                continue
            by_stamps_s = row.end_s - rows[0].end_s
            running_s = row.total_since_reset_s - rows[0].total_since_reset_s
            errors_if_running.append(abs(by_stamps_s - running_s))
            errors_if_of_rows.append(abs(by_stamps_s - by_rows_s))
    if not errors_if_running:
        return None

    error_if_running = statistics.fmean(errors_if_running)
    error_if_of_rows = statistics.fmean(errors_if_of_rows)
    smaller, larger = sorted((error_if_running, error_if_of_rows))
    if larger <= MOST_STAMP_ERROR_S or larger < CLEARLY_NEARER * smaller:
        return None
    return error_if_running == smaller


def _changes_shrink(groups: Sequence[Sequence[PrintedMean]]) -> bool:
    """Return whether the printed means behave as running averages: their changes from row to row get smaller.

    A change is the second difference of three successive means, |after - 2 x row + before|, which is 0 for a steady
    drift. A line is fitted to log(change) over log(steps since the reset). Its slope is

    - about -1 for running averages, over all n steps since a reset: a new step has a share of 1 / n in the mean, so
      that changes are in proportion to 1 / n,
    - about 0 for row averages, over the steps since the last row: changes are as large late as early.

    Args:
        groups: The rows from each reset of the averages up to the next one.

    Returns:
        False also if there are fewer than LEAST_CHANGES changes, or if all are at one number of steps.
    """
    steps: list[float] = []
    changes: list[float] = []
    for rows in groups:
        for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):
            change_s = abs(after.mean_s - 2 * row.mean_s + before.mean_s)
            if change_s > 0:
                steps.append(math.log(row.steps_since_reset))
                changes.append(math.log(change_s))
    if len(changes) < LEAST_CHANGES or len(set(steps)) < 2:
        return False
    slope, _ = statistics.linear_regression(steps, changes)
    return slope < RUNNING_SLOPE  # halfway between the two slopes
