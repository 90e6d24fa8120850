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


class Gap(NamedTuple):
    """The time from one row to the next, by two clocks."""

    clock_s: float  # difference of the two time stamps
    row_s: float  # what the later row's own figures say
    row: Window  # the later row


def seconds_of_row(record: Record, window: Window) -> float | None:
    """Return how many seconds the steps of a row took by its own figures, or None if a figure is missing.

    They are the seconds that the row states, or else its images / its printed rate.
    """
    if window.seconds:
        return window.seconds
    if not window.printed_rate:
        return None

    images: float | None = None
    if record.rate_scope == "global":  # the rate is that of all devices
        images = window.images
    elif window.steps and record.batch_per_device:  # the rate is that of one device, so its images count
        images = window.steps * record.batch_per_device
    return images / window.printed_rate if images else None


def gaps_of_training(record: Record) -> list[Gap]:
    """Return the gap between each two successive rows between which only training happened.

    A gap is left out if the clock or the later row's own figures do not tell its time, or if an epoch ended or an
    evaluation is printed in it.
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
        if clock_s >= 0 and is_within_epoch and not has_evaluation:  # below 0, the clock was set back
            gaps.append(Gap(clock_s, row_s, row))
    return gaps


def _has_line_between(ascending_lines: Sequence[int], first: int, last: int) -> bool:
    """Return whether one of the line numbers, which are in ascending order, is above `first` and at most `last`."""
    count_up_to_first = bisect.bisect(ascending_lines, first)
    count_up_to_last = bisect.bisect(ascending_lines, last)
    return count_up_to_last > count_up_to_first


def without_pauses(gaps: Sequence[Gap], last_digit_s: float) -> list[Gap]:
    """Return the gaps between rows without the pauses, which are evaluations, checkpoints and stalls. A pause has

        clock_s > PAUSE_RATIO * usual_ratio * row_s + 2 * last_digit_s

    `clock_s` is the time between the time stamps of two rows, and `row_s` the time that the later row says it took. Of
    most gaps clock_s / row_s is about the `usual_ratio`. The last digit of a time stamp stands for `last_digit_s`.
    """
    usual_ratio = max(1.0, _usual_ratio(gaps, last_digit_s))  # at least 1: a gap no longer than its row is no pause
    kept = []
    for gap in gaps:
        longest_s = PAUSE_RATIO * usual_ratio * gap.row_s + 2 * last_digit_s  # 2: the rounding of two stamps
        if gap.clock_s <= longest_s:
            kept.append(gap)
    return kept


def _usual_ratio(gaps: Sequence[Gap], last_digit_s: float) -> float:
    """Return the usual ratio of a gap's time by the clock to its time by the row.

    The last digit of the time stamps stands for `last_digit_s` seconds.
    """
    median_row_s = statistics.median(gap.row_s for gap in gaps)
    if median_row_s >= 2 * last_digit_s:  # the two stamps' rounding is small
        return statistics.median(gap.clock_s / gap.row_s for gap in gaps)

    # The ratio of a single short row is mostly rounding, so sums are compared. They leave out the tenth of the gaps
    # with the largest excess, which may hold pauses.
    by_excess = sorted(gaps, key=_excess_s)
    least_excess = by_excess[: math.ceil(0.9 * len(gaps))]
    return math.fsum(gap.clock_s for gap in least_excess) / math.fsum(gap.row_s for gap in least_excess)


def _excess_s(gap: Gap) -> float:
    """Return by how many seconds a gap is longer by the clock than by its row."""
    return gap.clock_s - gap.row_s
