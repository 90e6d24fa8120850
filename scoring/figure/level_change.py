"""Where a series of values changes from one level to another, told from its noise."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# A level change is sought over the whole series. Noise alone reaches a strength of about sqrt(2 ln n), which is 3.7 for
# a thousand windows; a change must exceed that by a margin.
MIN_CHANGE_STRENGTH = 6.0
# The standard deviation of normal values is 1.4826 times the median of their absolute distances from their centre.
DEVIATIONS_OF_MEDIAN_DISTANCE = 1.4826
CLIP_DEVIATIONS = 8  # a value farther from the median is clipped to it before a level change is sought


class LevelChange(NamedTuple):
    """The index at which a series of values changes from one level to another."""

    at: int  # index of the first value of the new level
    before: float  # median of the values before that index
    after: float  # median of the values from that index on


def change_point(values: Sequence[float], first_index: int, last_index: int) -> LevelChange | None:
    """Return where, in a range of indexes, a series of values changes from one level to another; None if nowhere.

    Each index splits the series into the values before it and the values from it on. The strength of a split is how
    many standard errors the means of the two parts lie apart. The change is at the strongest split of the range from
    `first_index` to `last_index`.

    Args:
        values: The series in order, such as the step times of a run. Two values or more.
        first_index: The least index at which a change counts.
        last_index: The greatest index at which a change counts.

    Returns:
        The change, with the median of each part as its level. None in these cases:

        - The range has no index that splits the series into two parts.
        - The strongest split of the range is too weak: its strength is 6 (MIN_CHANGE_STRENGTH) or less.
        - The strengths go on to rise beyond the range, so the true change is outside. For example, `last_index` is 30,
          and the strengths at 29, 30 and 31 are 9, 10 and 11.
    """
    noise = _noise_deviation(values)  # the standard deviation of a value around its level
    # A single spike would move the means of which the strengths are made, and count as a level. So it is cut down.
    clipped = _clipped(values, CLIP_DEVIATIONS * noise)
    strengths = _strengths_of_splits(clipped, noise)  # by index: those of the whole series, not of the range alone
    allowed_indexes = [index for index in strengths if first_index <= index <= last_index]
    if not allowed_indexes:
        return None
    strongest = max(allowed_indexes, key=lambda index: strengths[index])
    if strengths[strongest] <= MIN_CHANGE_STRENGTH:
        return None
    # No strength within the range is greater than that at `strongest`. So a greater one that `_rises_from` finds, by a
    # walk to lower (-1) or higher (+1) indexes without a deep dip, lies outside the range.
    true_change_is_before_range = _rises_from(strongest, strengths, -1)
    true_change_is_after_range = _rises_from(strongest, strengths, +1)
    if true_change_is_before_range or true_change_is_after_range:
        return None
    # Of the values as they were measured: a spike hardly moves a median.
    before = statistics.median(values[:strongest])
    after = statistics.median(values[strongest:])
    return LevelChange(at=strongest, before=before, after=after)


def _rises_from(start: int, strengths: Mapping[int, float], direction: int) -> bool:
    """Return whether a greater strength lies in one direction from an index, without a deep dip on the way.

    The strength at an index says how far apart the means of the values before and after it are. Where a series changes
    from one level to another, the strengths have a peak. A greater strength nearby shows that `start` is only on the
    slope of a peak, and not at the change itself. For example, with the strengths from `start` on:

    - 20, 17, 21: True, because noise makes strengths dip a little on the way up
    - 20, 13, 21: False, because 13 is a deep dip, which separates two peaks: it is 6 (MIN_CHANGE_STRENGTH) or more
      below the 20 at `start`

    Args:
        start: The index to start from.
        strengths: The strength at each index: the distance between the mean of the values before the index and the mean
            of the values from the index on, in standard errors.
        direction: +1 to look at higher indexes, -1 at lower ones.
    """
    bottom_of_deep_dip = strengths[start] - MIN_CHANGE_STRENGTH
    index = start + direction
    while index in strengths and strengths[index] > bottom_of_deep_dip:
        if strengths[index] > strengths[start]:
            return True
        index += direction
    return False  # a deep dip, or the end of the series, comes before any greater strength


def _strengths_of_splits(values: Sequence[float], noise: float) -> dict[int, float]:
    """Return for each index how far apart the means of values[:index] and values[index:] are, in standard errors.

    Args:
        values: The series in order.
        noise: Standard deviation of a value around its level, in the unit of the values. Above 0.

    Returns:
        The distances by index, from 1 to the number of values - 1, so that each part has at least one value.
    """
    total = math.fsum(values)
    sums_before = list(itertools.accumulate(values, initial=0.0))  # sums_before[i] is the sum of values[:i]
    strengths = {}
    for index in range(1, len(values)):
        count_before = index
        count_after = len(values) - index
        mean_before = sums_before[index] / count_before
        mean_after = (total - sums_before[index]) / count_after
        standard_error = noise * math.sqrt(1 / count_before + 1 / count_after)
        strengths[index] = abs(mean_before - mean_after) / standard_error
    return strengths


def _clipped(values: Sequence[float], most_distance: float) -> list[float]:
    """Return the values, each moved to within `most_distance` of their median."""
    median = statistics.median(values)
    return [min(max(value, median - most_distance), median + most_distance) for value in values]


def _noise_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a series around its level, estimated from the differences of neighbours.

    A level change or a slow drift hardly affects the median of these differences.

    Args:
        values: The series in order, two values or more.

    Returns:
        The deviation in the unit of the values. It is at least 0.0001 of their median, and always above 0.
    """
    differences = [abs(after - before) for before, after in itertools.pairwise(values)]
    # The standard deviation of normal values around 0 is 1.4826 times the median of their absolute values.
    deviation_of_differences = DEVIATIONS_OF_MEDIAN_DISTANCE * statistics.median(differences)
    # A difference of two values has sqrt(2) times the deviation of one value.
    deviation_of_values = deviation_of_differences / math.sqrt(2)

    # A log prints rounded times, which may all be equal. The deviation must be above 0 then, too.
    least_deviation = max(1e-4 * abs(statistics.median(values)), 1e-12)
    return max(deviation_of_values, least_deviation)
