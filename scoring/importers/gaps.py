"""The gaps between a log's rows, each by two clocks: the rows' time stamps, and what the rows say of their own time.

A row is a line that a program prints of its training steps; it becomes a Window of the record.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scoring.record import Record, Window

PAUSE_RATIO = 1.5  # a gap between rows that is longer than usual by more than this factor is a pause

LOST_RATIO = 1.8  # a row of so many times the usual steps follows a lost one; public logs have none of 1.5 times


class Gap(NamedTuple):
    """The time from one row to the next, by two clocks."""

    clock_s: float  # difference of the two time stamps
    row_s: float  # what the later row's own figures say
    before: Window  # the earlier row
    row: Window  # the later row


def seconds_of_row(record: Record, window: Window) -> float | None:
    """Return how many seconds the training steps of a printed row took, by the figures that the row prints itself.

    Args:
        record: What the log says, for the batch size and for whose images a rate counts.
        window: The row.

    Returns:
        The seconds that the row states, or else its images / its rate. None if a figure for that is missing.
    """
    if window.seconds:
        return window.seconds
    images = _images_of_rate(record, window)
    if images and window.printed_rate:
        return images / window.printed_rate
    return None


def _images_of_rate(record: Record, window: Window) -> float | None:
    """Return how many images the rate of a printed row counts: those of all devices, or those of one device.

    - A rate of all devices counts the row's `images`, which are always of all devices.
    - A rate of one device counts steps x batch size of one device.

    Args:
        record: What the log says: whether a rate is of all devices, and the batch size of one device.
        window: The row.

    Returns:
        The images, or None if they are not known.
    """
    if record.rate_scope == "global":  # a rate is of all devices
        return window.images
    if window.steps and record.batch_per_device:
        return window.steps * record.batch_per_device
    return None


def rows_after_lost_rows(windows: Sequence[Window], unread_lines: Sequence[int]) -> list[Window]:
    """Return the rows that seem to follow lost rows, as after a full disk: each covers the steps of these rows, too.

    With rows printed every 10 steps, the row after a lost one covers 20. So a row is returned if it covers at least
    LOST_RATIO times the usual distance of two rows.

    Args:
        windows: Rows of training figures, in the order of the log.
        unread_lines: The lines of rows that could not be read, in ascending order. A row is left out if one of these
            lies between it and the row before.
    """
    usual_distance = _usual_distance(windows)
    if usual_distance is None:
        return []
    found = []
    for before, row in itertools.pairwise(windows):
        is_long = row.steps is not None and row.steps >= LOST_RATIO * usual_distance
        if is_long and not _has_line_between(unread_lines, before.line, row.line):
            found.append(row)
    return found


def _usual_distance(windows: Sequence[Window]) -> float | None:
    """Return by how many steps successive rows of an epoch usually lie apart, as the median of all pairs of them.

    Args:
        windows: Rows of training figures, in the order of the log.

    Returns:
        The number of steps. If no epoch has two rows, it is the median of the steps that rows cover, which may be fewer
        for the first row of an epoch. None if that is not known either.
    """
    distances = []
    for before, row in itertools.pairwise(windows):
        if before.epoch == row.epoch and before.step is not None and row.step is not None:
            distances.append(row.step - before.step)
    if not distances:
        # Without the first row of the log, which may cover fewer steps than the others.
        distances = [row.steps for row in windows[1:] if row.steps is not None]
    return statistics.median(distances) if distances else None


def rows_after_lost_epochs(windows: Sequence[Window], unread_lines: Sequence[int]) -> list[Window]:
    """Return the printed rows before which all rows of an epoch or more seem to be missing.

        epoch 1, step 90 and then epoch 3, step 10   -> returned: steps count anew in each epoch, and epoch 2 is missing

    If steps may count through the whole run, as in "epoch 1, step 90 and then epoch 3, step 100", nothing needs to be
    missing: epoch 2 may have been too short for a row.

    Args:
        windows: Rows of training figures, in the order of the log.
        unread_lines: The lines of rows that could not be read, in ascending order. A row is left out if one of these
            lies between it and the row before.
    """
    found = []
    for before, row in itertools.pairwise(windows):
        if before.epoch is None or row.epoch is None or before.step is None or row.step is None:
            continue
        skips_epoch = row.epoch > before.epoch + 1
        steps_count_anew = row.step <= before.step
        if skips_epoch and steps_count_anew and not _has_line_between(unread_lines, before.line, row.line):
            found.append(row)
    return found


def lost_steps(windows: Sequence[Window], unread_lines: Sequence[int]) -> list[tuple[Window, int]]:
    """Return the windows that follow missing steps, each with the number of the steps missing before it.

    If a window ends at step 20, and the next one covers 10 steps and ends at step 40, then 10 steps are missing.

    Args:
        windows: Windows that each state their steps, of a log that counts the steps of the whole run, in its order.
        unread_lines: Lines that could not be read, in ascending order. A window is left out if one of these lies
            between it and the window before.
    """
    found = []
    for before, window in itertools.pairwise(windows):
        if before.step is None or window.step is None or window.steps is None:
            continue
        steps_between = window.step - window.steps - before.step
        if steps_between > 0 and not _has_line_between(unread_lines, before.line, window.line):
            found.append((window, steps_between))
    return found


def gaps_of_training(record: Record) -> list[Gap]:
    """Return the gaps between successive printed rows of one epoch, each with two durations.

    `clock_s` is the time between the two rows' time stamps, and `row_s` is the time of the later row by its own
    figures. A gap is left out in these cases:

    - A row has no time stamp, or the later row's figures do not say its time.
    - An evaluation is printed in the gap.
    - The clock was set back in it.
    - The later row's figures are not of all steps in it.

    Args:
        record: What the log says. Its `windows` are the rows of training figures.

    Returns:
        The gaps in the order of the log.
    """
    evaluation_lines = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        row_s = seconds_of_row(record, row)
        if before.end_s is None or row.end_s is None or not row_s:
            continue

        clock_s = row.end_s - before.end_s
        is_within_epoch = before.epoch == row.epoch  # between epochs, programs evaluate and save the model
        has_evaluation = _has_line_between(evaluation_lines, before.line, row.line)
        is_in_order = clock_s >= 0  # below 0, the clock was set back
        if is_within_epoch and not has_evaluation and is_in_order and _covers_all_steps(before, row):
            gaps.append(Gap(clock_s, row_s, before, row))
    return gaps


def _covers_all_steps(before: Window, row: Window) -> bool:
    """Return whether the figures of a printed row are of all training steps since the row before.

    They may be of fewer: PaddleClas begins new averages at step 5 of an epoch. The row at step 10 then averages the 6
    steps from 5 to 10, and the row before it is at step 0. As 6 is not 10 - 0, the result is False.

    Args:
        before: The row before.
        row: The row, of the same epoch.

    Returns:
        True also if a step or the number of steps is not known: then nothing shows that steps are missing.
    """
    if before.step is None or row.step is None or row.steps is None:
        return True
    steps_since_before = row.step - before.step
    return row.steps == steps_since_before


def _has_line_between(ascending_lines: Sequence[int], first: int, last: int) -> bool:
    """Return whether one of several line numbers is above the first of two lines and at most the second.

    Args:
        ascending_lines: The line numbers, in ascending order.
        first: The first line. A number equal to it does not count.
        last: The second line. A number equal to it counts.
    """
    count_up_to_first = bisect.bisect(ascending_lines, first)
    count_up_to_last = bisect.bisect(ascending_lines, last)
    return count_up_to_last > count_up_to_first


def slow_rows_after_evaluations(windows: Sequence[Window], evaluation_lines: Sequence[int]) -> list[Window]:
    """Return the rows that follow an evaluation and whose steps take longer than usual by more than PAUSE_RATIO.

    With steps of usually 0.3 s, a row that prints 2.3 s as their mean, right behind an evaluation, is returned. A row
    of another epoch than the row before is not: programs time the steps of each epoch by itself.

    Args:
        windows: Rows of training figures, in the order of the log. Those without steps or seconds are skipped.
        evaluation_lines: Lines that print the results of evaluations, in ascending order.
    """
    timed = [row for row in windows if row.steps and row.seconds]
    if not timed:
        return []
    usual_step_s = statistics.median(row.step_s or 0.0 for row in timed)  # `or` is for the types
    found = []
    for before, row in itertools.pairwise(timed):
        follows_evaluation = _has_line_between(evaluation_lines, before.line, row.line)
        is_within_epoch = before.epoch == row.epoch
        is_slow = (row.step_s or 0.0) > PAUSE_RATIO * usual_step_s
        if follows_evaluation and is_within_epoch and is_slow:
            found.append(row)
    return found


def without_pauses(gaps: Sequence[Gap], stamp_resolution_s: float) -> list[Gap]:
    """Return the gaps between printed rows in which no pause happened, such as an evaluation or a checkpoint.

    Each gap has two durations: `clock_s` between two time stamps, and `row_s` as the row itself states it. In many logs
    the clock always shows somewhat more, by a ratio that is usual for the log. A gap has a pause if

        clock_s > PAUSE_RATIO x usual ratio (at least 1) x row_s + rounding of the two stamps.

    Args:
        gaps: The gaps, at least one.
        stamp_resolution_s: Seconds for which the last digit of a time stamp stands, such as 0.01.
    """
    usual_ratio = _usual_ratio(gaps, stamp_resolution_s)
    usual_ratio = max(usual_ratio, 1.0)  # a clock that shows no more than the row is not a sign of a pause
    rounding_s = 2 * stamp_resolution_s  # of a gap's two time stamps
    kept = []
    for gap in gaps:
        expected_s = usual_ratio * gap.row_s
        if gap.clock_s <= PAUSE_RATIO * expected_s + rounding_s:
            kept.append(gap)
    return kept


def _usual_ratio(gaps: Sequence[Gap], stamp_resolution_s: float) -> float:
    """Return how many times as long the gaps between printed rows usually are by the time stamps as by the rows.

    The median of the gaps is taken: of 1.0, 1.1 and 5.0 times, it is 1.1. If gaps are as short as the rounding of their
    stamps, their sums are compared instead (`_ratio_of_sums`).

    Args:
        gaps: The gaps, at least one. Each has `clock_s` by the stamps, and `row_s` by the figures of its later row.
        stamp_resolution_s: Seconds for which the last digit of a time stamp stands, such as 0.01.
    """
    median_row_s = statistics.median(gap.row_s for gap in gaps)
    rounding_s = 2 * stamp_resolution_s  # of a gap's two time stamps
    are_gaps_short = median_row_s < rounding_s
    if are_gaps_short:  # a gap of 0.4 s may be 0 s or 1 s by stamps of whole seconds, so that its ratio says nothing
        return _ratio_of_sums(gaps)
    return statistics.median(gap.clock_s / gap.row_s for gap in gaps)


def _ratio_of_sums(gaps: Sequence[Gap]) -> float:
    """Return how many times as long gaps between printed rows are by the time stamps as by the rows, summed over them.

    In the sums, the rounding of the stamps mostly cancels out. The tenth of the gaps that may have pauses is left out:
    those that are longest by the stamps beside the rows.

    Args:
        gaps: The gaps, at least one.
    """
    least_excess_first = sorted(gaps, key=_excess_s)
    kept = least_excess_first[: math.ceil(0.9 * len(gaps))]  # 14 of 15 gaps; all of up to 9
    by_stamps_s = math.fsum(gap.clock_s for gap in kept)
    by_rows_s = math.fsum(gap.row_s for gap in kept)
    return by_stamps_s / by_rows_s


def _excess_s(gap: Gap) -> float:
    """Return by how many seconds a gap between printed rows is longer by the time stamps than by its later row.

    Args:
        gap: The gap.
    """
    return gap.clock_s - gap.row_s
