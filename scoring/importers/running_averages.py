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

MAX_STAMP_ERROR_S = 1.0  # of the time between two stamps of whole seconds
CLEARLY_NEARER = 2.0  # one reading is right if it lies nearer to the stamps by this factor
MIN_ROWS_TO_FIT = 40  # by fewer rows, means may seem to get smoother by chance
RUNNING_SLOPE = -0.5  # halfway between the slopes of the two readings, which are -1 and 0
_DIGIT_S = 1e-5  # the last printed digit of a step time


class Totals(NamedTuple):
    """The totals of all steps that a row's printed averages cover: printed mean x number of steps."""

    steps: int
    time_s: float
    wait_s: float | None  # the part of the time that waited for input; None: not printed

    def since(self, before: "Totals") -> RowTime:
        """Return the steps, the seconds and the wait for input between an earlier row of a log and this row.

        Both rows print running averages: means over all steps since a reset. A total is such a mean x the number of
        steps. So the difference of the totals is what came between the rows:

            earlier row    a mean of 0.2 s over 20 steps    a total of 4 s
            this row       a mean of 0.3 s over 30 steps    a total of 9 s
            result         30 - 20 = 10 steps               9 s - 4 s = 5 s

        Args:
            before: The totals of an earlier row, or NO_TOTALS for the first row after a reset. The averages must not
                have been reset in between.

        Returns:
            The steps, seconds and wait. The seconds are None if the time did not grow. The wait is None if it is not
            printed, or if it is over 1 % longer than the seconds.
        """
        steps = self.steps - before.steps
        seconds = self.time_s - before.time_s if self.time_s > before.time_s else None
        # `plausible_wait_s` turns a wait that is over 1 % longer than the seconds into None.
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
    steps_since_row: int  # steps since the last row, or since the reset if that came later
    steps_since_reset: int  # steps since the averages were reset, maybe in the epoch before
    end_s: float | None  # time stamp of the row


def are_running_averages(groups: Sequence[Sequence[PrintedMean]], *, release_says: bool | None) -> bool | None:
    """Return whether the means that a log's rows print are running averages (True) or row averages (False).

    A running average is over all steps since a reset, early in the epoch. A row average is over the steps since the
    last row. The first of these with an answer decides:

    - Mean x steps since the reset falls from a row to the next: row averages.
    - The times that follow from the means fit the time stamps of the rows for one of the two kinds, or clearly better.
    - The release that printed the rows is known to print one kind.
    - The means get smoother with the steps since the reset: running averages. If they do not: row averages.

    Without an answer of any, the result is None.

    Args:
        groups: The rows from each reset of the averages up to the next one.
        release_says: Whether the release that prints such rows prints running averages. None if releases of both kinds
            print such rows.
    """
    # The mean x steps of running averages is the time since the reset, which never falls.
    if any(_has_total_that_falls(rows) for rows in groups):
        return False
    by_stamps = _are_running_by_stamps(groups)  # None: no stamps, or neither kind fits clearly better
    if by_stamps is not None:
        return by_stamps
    if release_says is not None:
        return release_says
    return _means_get_smoother(groups)


def _has_total_that_falls(rows: Sequence[PrintedMean]) -> bool:
    """Return whether mean x steps since the reset falls from some row to the next, beyond rounding.

    A fall shows that the means are not running averages. If they were, this product would be the time since the reset,
    which never falls: after 0.5 s over 16 steps, which is 8 s, no row prints 0.2 s over 26 steps, which is 5.2 s.

    Args:
        rows: The rows from one reset of the averages up to the next one. Their steps since the reset grow.
    """
    for before, row in itertools.pairwise(rows):
        total_before_s = before.mean_s * before.steps_since_reset
        total_s = row.mean_s * row.steps_since_reset
        # Each mean may be off by half a step of its last digit, 0.5e-5 s. The row before covers fewer steps, so that
        # both errors together are at most 1e-5 s x the steps of the later row.
        rounding_s = _DIGIT_S * row.steps_since_reset
        if total_s < total_before_s - rounding_s:
            return True
    return False


class _TimesToRow(NamedTuple):
    """The time from the first row after a reset to a later row: by the time stamps, and by each kind of averages."""

    by_stamps_s: float
    if_running_s: float  # if the printed means are running averages
    if_of_rows_s: float  # if the printed means are row averages
    steps_since_reset: int  # of the later row: the printed digits may be off by so many times their last place


def _are_running_by_stamps(groups: Sequence[Sequence[PrintedMean]]) -> bool | None:
    """Return which kind of averages the time stamps of the rows show, or None if they do not tell.

    The means give the time from the first row after a reset to a later row, another one for each kind. If the stamps
    are 4 s apart, 4.4 s by running averages and 9 s by row averages show that the means are running averages: training
    steps cannot take more time than the clock shows. If neither kind takes more, one may still fit the stamps clearly
    better.

    Args:
        groups: The rows from each reset of the averages up to the next one.

    Returns:
        True for running averages, False for row averages, None if the stamps fit both kinds or neither, or if no stamps
        are printed.
    """
    times: list[_TimesToRow] = []
    for rows in groups:
        times += _times_to_later_rows(rows)  # three times for each later row: 4 s, 4.4 s and 9 s
    if not times:  # no row with a stamp follows a first row with one
        return None

    running_takes_too_long = any(_is_beyond_stamps(time.if_running_s, time) for time in times)
    rows_take_too_long = any(_is_beyond_stamps(time.if_of_rows_s, time) for time in times)
    if running_takes_too_long != rows_take_too_long:
        return rows_take_too_long

    # The mean distances from the stamps. One is clearly larger if it is over 1 s and at least twice the other.
    error_if_running_s = statistics.fmean(abs(time.by_stamps_s - time.if_running_s) for time in times)
    error_if_of_rows_s = statistics.fmean(abs(time.by_stamps_s - time.if_of_rows_s) for time in times)
    if _is_clearly_larger(error_if_of_rows_s, error_if_running_s):
        return True
    if _is_clearly_larger(error_if_running_s, error_if_of_rows_s):
        return False
    return None


def _is_beyond_stamps(seconds: float, time: _TimesToRow) -> bool:
    """Return whether training steps that lie between two rows would take more time than the rows' stamps show.

    Args:
        seconds: The time of the steps, by one kind of averages.
        time: The times between the two rows. Those by the stamps may be off by up to 1 s, and the printed means are
            rounded.
    """
    rounding_s = _DIGIT_S * time.steps_since_reset
    return seconds > time.by_stamps_s + MAX_STAMP_ERROR_S + rounding_s


def _is_clearly_larger(error_s: float, other_error_s: float) -> bool:
    """Return whether one mean distance from the time stamps is clearly larger than another.

    It is if it is at least CLEARLY_NEARER (2) times as large, and over MAX_STAMP_ERROR_S (1 s), as the rounding of the
    stamps to whole seconds explains less.

    Args:
        error_s: The one distance, in seconds.
        other_error_s: The other one.
    """
    return error_s > MAX_STAMP_ERROR_S and error_s >= CLEARLY_NEARER * other_error_s


def _times_to_later_rows(rows: Sequence[PrintedMean]) -> list[_TimesToRow]:
    """Return the time from the first row to each later row with a stamp: by the stamps, and by each kind of averages.

    The log prints the kind whose times are clearly nearer to those by the stamps. Three rows print 1.0 s, 0.5 s and
    0.4 s as the mean step time, 6, 16 and 26 steps after the reset. From the first one to the third one,

        running averages say    0.4 x 26 - 1.0 x 6 = 4.4 s: the time since the reset grows from 6 s to 10.4 s
        row averages say        0.5 x 10 + 0.4 x 10 = 9 s: each later row has 10 steps of its own

    Args:
        rows: The rows from one reset of the averages up to the next one. Without a stamp of the first one, the result
            is empty.
    """
    if not rows or rows[0].end_s is None:
        return []
    first = rows[0]
    first_end_s = rows[0].end_s
    first_since_reset_s = first.mean_s * first.steps_since_reset  # if running averages: 6 s in the example
    times: list[_TimesToRow] = []
    sum_of_rows_s = 0.0  # if row averages: the time since the first row
    for row in rows[1:]:
        sum_of_rows_s += row.mean_s * row.steps_since_row  # also of a row without a stamp: its steps took time, too
        since_reset_s = row.mean_s * row.steps_since_reset  # if running averages: 8 s, then 10.4 s
        if row.end_s is not None:
            times.append(
                _TimesToRow(
                    by_stamps_s=row.end_s - first_end_s,
                    if_running_s=since_reset_s - first_since_reset_s,
                    if_of_rows_s=sum_of_rows_s,
                    steps_since_reset=row.steps_since_reset,
                )
            )
    return times


def _means_get_smoother(groups: Sequence[Sequence[PrintedMean]]) -> bool | None:
    """Return whether the printed means get smoother with the number of steps since the reset, as running averages do.

    The roughness at a row is how sharply the means bend there: 1.0, 1.2 and 1.1 s of three successive rows give
    |1.1 - 2 x 1.2 + 1.0| = 0.3 s. In a running average over n steps, a new step has a share of 1 / n. So roughness
    falls about as 1 / n, and the line fitted to log(roughness) over log(n) has a slope of about -1. Row averages are as
    rough at any n: a slope of about 0.

    Args:
        groups: The rows from each reset of the averages up to the next one.

    Returns:
        True if the slope is below -0.5 (RUNNING_SLOPE). None if the rows cannot tell: fewer than 40 have a roughness
        above 0, or all have one n.
    """
    logs_of_steps: list[float] = []
    logs_of_roughness: list[float] = []
    for rows in groups:
        for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):  # rows 1, 2, 3, then 2, 3, 4, ..
            roughness_s = abs(after.mean_s - 2 * row.mean_s + before.mean_s)
            if roughness_s > 0:  # 0 has no logarithm
                logs_of_steps.append(math.log(row.steps_since_reset))
                logs_of_roughness.append(math.log(roughness_s))
    have_one_n = len(set(logs_of_steps)) < 2  # all n are the same, or there is none: no line can be fitted
    if len(logs_of_roughness) < MIN_ROWS_TO_FIT or have_one_n:
        return None
    slope, _ = statistics.linear_regression(logs_of_steps, logs_of_roughness)
    return slope < RUNNING_SLOPE
