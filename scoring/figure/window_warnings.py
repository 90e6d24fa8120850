"""Warnings about the windows of one run: what changes through it, what sticks out, and what all ranks wait for."""

import collections
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from runlog.digits import percent, percent_above, significant
from runlog.verdict import Verdict
from scoring.figure.level_change import DEVIATIONS_OF_MEDIAN_DISTANCE, LevelChange, change_point
from scoring.figure.rates import rate_of
from scoring.figure.stragglers import warn_of_slow_rank
from scoring.figure.warnings import MAX_RATE_GAP, warning
from scoring.importers.text import steps_as_weights, weighted_mean
from scoring.record import Record, Window

WARM_UP_SLOWDOWN = 0.01  # of the first windows, over the rest
THROTTLING_SLOWDOWN = 0.03  # of the windows after a sudden change, over those before
MIN_DRIFT = 0.02  # of the median time, from the first third of the windows to the last
MAX_WAITING_SHARE = 0.05  # of the time, spent waiting for data
OUTLIER_DEVIATIONS = 3.5  # from the median: the limit of Iglewicz and Hoaglin's modified z-score
OUTLIER_DISTANCE_SHARE = 0.2  # from the median, as a share of it
MAX_OUTLIERS_SHARE = 0.1  # of the windows
MAX_MEAN_SHIFT = 0.01  # of the mean time by its outliers
NORMAL_QUANTILE_99 = 2.576  # of a normal value's distance from its mean, in deviations
MAX_FOR_TREND = 200  # a series of 400 or more is thinned out to 200 to 300, as the test for a trend compares all pairs
MAX_SMOOTH_RATIO = 0.3  # von Neumann's ratio of running averages is below it; that of independent values is about 2
MIN_DECAY_RATIO = 3  # of the first changes of running averages to the last ones
MIN_FOR_LEVELS = 6  # windows in which a level change or an outlier is sought
MIN_FOR_RUNNING_AVERAGES = 20
MAX_CLOCK_DISTANCE = 0.01  # of a separate window's seconds, from the time between two stamps
MAX_SWING_RATIO = 1.25  # of the 95 % quantile of the times to the 5 % one


def warn_about_windows(record: Record, windows: Sequence[Window], averages_rates: bool) -> Iterator[Verdict]:
    """Yield the warnings about the measured windows of one run, such as a long warm-up, throttling or a slow rank.

    A window is what one printed row of the log covers.

    Args:
        record: The run as read from its log.
        windows: The windows that the run's figure comes from, in the order of the log.
        averages_rates: Whether the run's figure is the mean of its windows' rates.

    Yields:
        One warning at a time, in the order in which they are shown.
    """
    if record.truncated:
        message = "the log ends before its run does: the figure is of the part that is there"
        last_line = record.segment[1] if record.segment else record.lines  # a segment is one run of a file with several
        yield warning("truncated", message, record, last_line)
    if record.cumulative and averages_rates:
        message = "the printed rates are running averages of the epoch: their mean counts early steps many times"
        yield warning("cumulative_windows", message, record)
    times = comparable_times(record, windows)  # empty if they are not known of all windows
    if len(times) > 1:
        yield from _warn_of_uneven_times(record, windows, times, averages_rates)
    yield from _warn_if_waiting_is_long(record, windows)
    yield from warn_of_slow_rank(record, windows, "data_wait", action="waits for its input")
    yield from warn_of_slow_rank(record, windows, "compute", action="computes")


def _warn_if_waiting_is_long(record: Record, windows: Sequence[Window]) -> Iterator[Verdict]:
    """Yield a warning if waiting for data takes more than 5 % (MAX_WAITING_SHARE) of the time.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
    """
    share = waiting_share(windows)
    if share is not None and share > MAX_WAITING_SHARE:
        waiting = percent_above(share, MAX_WAITING_SHARE)
        message = f"{waiting} of the step time is waiting for data (over {percent(MAX_WAITING_SHARE, decimals=0)})"
        yield warning("data_stall", message, record)


def waiting_share(windows: Sequence[Window]) -> float | None:
    """Return the share of the time that rank 0 waited for input, such as 0.05.

    Args:
        windows: The windows of a run (what one printed row covers). A window counts if its row gives both its waiting
            time and its whole time.

    Returns:
        The share; None if no window counts.
    """
    waited_s = 0.0
    total_s = 0.0
    for window in windows:
        if window.data_wait_s is not None and window.seconds:
            waited_s += window.data_wait_s
            total_s += window.seconds
    return waited_s / total_s if total_s else None


def comparable_times(record: Record, windows: Sequence[Window]) -> list[float]:
    """Return a time for each window of a run, all of one unit: seconds per step, or else seconds per image.

    Use only ratios of these times: the unit depends on what the rows of the log give.

    Args:
        record: The run as read from its log.
        windows: The windows of the run. A window is what one printed row covers.

    Returns:
        The times, in the order of `windows`. The list is empty if neither unit is known of all windows.
    """
    step_times = [window.step_s for window in windows if window.step_s is not None]
    if len(step_times) == len(windows):
        return step_times
    rates = [rate_of(record, window) for window in windows]
    image_times = [1 / rate for rate in rates if rate is not None]
    return image_times if len(image_times) == len(windows) else []


def _warn_of_uneven_times(
    record: Record, windows: Sequence[Window], times: Sequence[float], averages_rates: bool
) -> Iterator[Verdict]:
    """Yield the warnings about windows of a run that take unequally long.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, as `comparable_times` returns it. Only ratios have a meaning.
        averages_rates: Whether the run's figure is the mean of its windows' rates.
    """
    yield from _warn_if_running_averages(record, windows, times)
    if len(times) >= MIN_FOR_LEVELS:
        # Outliers are sought only in a run that keeps its level.
        found = _warning_of_level_change(record, windows, times) or _warning_of_outlying_windows(record, windows, times)
        if found is not None:
            yield found
    yield from _warn_if_times_swing(record, times)
    if averages_rates:
        yield from _warn_if_mean_of_window_rates_is_high(record, windows, times)


def _warn_if_running_averages(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Iterator[Verdict]:
    """Yield a warning if the rows of a log look like running averages, though its format is not known to print them.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit.
    """
    if record.cumulative:  # the format is known to print them
        return
    if _look_like_running_averages(times) and not _stamps_confirm_times(windows):
        message = "the windows look like running averages: ever smaller changes from row to row"
        yield warning("cumulative_windows", message, record)


def _warn_if_times_swing(record: Record, times: Sequence[float]) -> Iterator[Verdict]:
    """Yield a warning if the slow windows of a run take over 1.25 (MAX_SWING_RATIO) times as long as the fast ones.

    The slow ones are at the 95 % quantile of the times, the fast ones at the 5 % quantile.

    Args:
        record: The run as read from its log.
        times: A time for each window (what one printed row covers), in any unit.
    """
    ordered = sorted(times)
    fast = ordered[int(0.05 * len(times))]
    slow = ordered[int(0.95 * len(times))]
    if slow > MAX_SWING_RATIO * fast:
        times_as_long = significant(slow / fast, digits=3)
        message = f"the slow windows take {times_as_long} times as long as the fast ones, 5 to 95 % of them"
        yield warning("unsteady", message, record)


def _warn_if_mean_of_window_rates_is_high(
    record: Record, windows: Sequence[Window], times: Sequence[float]
) -> Iterator[Verdict]:
    """Yield a warning if the mean of the windows' rates is over 0.1 % (MAX_RATE_GAP) above all images / all time.

    A fast window counts as much as a slow one in the mean of rates, though it takes less time. For example, two windows
    of one image take 1 s and 3 s. The mean of their rates, 1 and 0.333 images/s, is 0.667. But 2 images in 4 s are 0.5
    images/s.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: The time per image of each window, in any unit. The unit cancels out.
    """
    mean_rate = statistics.fmean(1 / time for time in times)
    mean_time = weighted_mean(times, steps_as_weights(windows))  # the images of a window are in proportion to its steps
    images_over_time = 1 / mean_time
    gap = mean_rate / images_over_time - 1
    if gap > MAX_RATE_GAP:
        message = f"the mean of rates is {percent(gap, decimals=2)} above images over time: windows of unequal speed"
        yield warning("rates_averaged", message, record)


def _warning_of_outlying_windows(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning if a few outlying windows move the mean time by more than 1 % (MAX_MEAN_SHIFT).

    A few are at most 10 % (MAX_OUTLIERS_SHARE) of the windows.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit.

    Returns:
        The warning, which points to the farthest window; None if there is nothing to warn of.
    """
    median = statistics.median(times)
    distances = [abs(time - median) for time in times]
    are_outliers = _are_outliers(distances, median)
    outlier_count = sum(are_outliers)
    whole_run_is_uneven = outlier_count > MAX_OUTLIERS_SHARE * len(times)
    if outlier_count == 0 or whole_run_is_uneven:
        return None
    mean_shift = _shift_of_mean(times, steps_as_weights(windows), are_outliers)
    if abs(mean_shift) <= MAX_MEAN_SHIFT:
        return None

    farthest = distances.index(max(distances))
    longer = "longer" if mean_shift > 0 else "shorter"
    times_the_median = significant(times[farthest] / median, digits=3)
    message = (
        f"{outlier_count} of {len(windows)} windows, far from the others, make the mean step time "
        f"{percent(abs(mean_shift))} {longer}; the farthest takes {times_the_median} times the median: see the median "
        "of the window rates"
    )
    return warning("outlying_window", message, record, windows[farthest].line)


def _are_outliers(distances: Sequence[float], median: float) -> list[bool]:
    """Return for each of several times whether the time is an outlier, by its distance from the median of all times.

    The distance of an outlier exceeds two limits:

    - 3.5 (OUTLIER_DEVIATIONS) standard deviations. A standard deviation is taken to be 1.4826 x the median of all
      distances, as of normal values, because a few outliers hardly change that median (Iglewicz and Hoaglin's modified
      z-score).
    - 20 % (OUTLIER_DISTANCE_SHARE) of the median of the times.

    Args:
        distances: |time - median of all times| for each time, in any unit.
        median: The median of all times, in the same unit.
    """
    deviation = DEVIATIONS_OF_MEDIAN_DISTANCE * statistics.median(distances)
    # The greater one of the two limits: a distance above the greater limit is above both.
    most_usual_distance = max(OUTLIER_DEVIATIONS * deviation, OUTLIER_DISTANCE_SHARE * median)
    return [distance > most_usual_distance for distance in distances]


def _shift_of_mean(times: Sequence[float], weights: Sequence[float], is_outlier: Sequence[bool]) -> float:
    """Return how much the outliers move the weighted mean time, as a share of the mean without them.

    Args:
        times: A time for each window, in any unit.
        weights: The weight of each time.
        is_outlier: Whether each time is an outlier. At least one is not.
    """
    near_times = []
    near_weights = []
    for time, weight, is_far in zip(times, weights, is_outlier, strict=True):
        if not is_far:
            near_times.append(time)
            near_weights.append(weight)
    return weighted_mean(times, weights) / weighted_mean(near_times, near_weights) - 1


def _warning_of_level_change(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning of a long warm-up, of throttling or of drift: the first that applies; None if none does.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit.
    """
    return (
        _warning_of_warm_up(record, windows, times)
        or _warning_of_throttling(record, windows, times)
        or _warning_of_drift(record, windows, times)
    )


def _warning_of_warm_up(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning if the first measured windows are slower than the rest by over 1 % (WARM_UP_SLOWDOWN).

    Slower means a higher median time. The slow part must end in the first half of the windows.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit.

    Returns:
        The warning, which says how many more windows to skip; None if there is nothing to warn of.
    """
    count = len(times)
    change = change_point(times, first_index=1, last_index=count // 2)
    if change is None:
        return None
    is_slower_before = change.before > change.after * (1 + WARM_UP_SLOWDOWN)
    if not is_slower_before:
        return None
    slow_windows = change.at  # the index of the first fast window is the number of slow ones before it
    first_ones = f"first of {count} measured windows is"
    if slow_windows > 1:
        first_ones = f"first {slow_windows} of {count} measured windows are"
    slowdown = percent(change.before / change.after - 1)
    message = (
        f"the {first_ones} {slowdown} slower than the rest: warm-up was not over at the cut; "
        f"try to skip {slow_windows} more"
    )
    return warning("warm_up_not_over", message, record, windows[change.at].line)


def _warning_of_throttling(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning if the computation suddenly slows down by over 3 % (THROTTLING_SLOWDOWN) and stays slow.

    Time spent waiting for data does not count.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit.

    Returns:
        The warning, which points to the first slow window; None if there is nothing to warn of.
    """
    compute_times = _times_without_waiting(windows, times)
    change = _late_change(compute_times)
    if change is None or change.before <= 0:  # at 0, all of the time before the change was waiting
        return None
    is_slower = change.after > change.before * (1 + THROTTLING_SLOWDOWN)
    if not is_slower or not _is_sudden(compute_times, change.at):
        return None
    slowdown = percent(change.after / change.before - 1)
    message = (
        f"from window {change.at + 1} of {len(times)} on steps take {slowdown} longer, to the end: throttling, or "
        f"another job on the machine{_power_note(windows, change.at)}"
    )
    return warning("throttling", message, record, windows[change.at].line)


def _late_change(times: Sequence[float]) -> LevelChange | None:
    """Return where the times of a run change their level between the first tenth and the last fifth.

    Args:
        times: A time for each window (what one printed row covers), in order.

    Returns:
        The change; None if they do not change there.
    """
    count = len(times)
    first_index = max(1, count // 10)  # the first tenth may be warm-up
    fewest_after_change = max(3, count // 5)  # fewer would not show that it lasts
    return change_point(times, first_index=first_index, last_index=count - fewest_after_change)


def _is_sudden(times: Sequence[float], index: int) -> bool:
    """Return whether a change of level at an index is a jump, not the middle of a slow drift.

    At a jump, the values before the index are level, and so are the values from the index on. A drift goes on within
    these two parts. For example, times that rise steadily by 6 % differ by 3 % (THROTTLING_SLOWDOWN) from part to part,
    and by 1.5 % from half to half of a part.

    Args:
        times: A time for each window (what one printed row covers), in order.
        index: The first index of the new level.
    """
    drift_before = _absolute_drift(times[:index])  # from half to half, such as 0.02
    drift_after = _absolute_drift(times[index:])
    return max(drift_before, drift_after) < THROTTLING_SLOWDOWN / 2


def _times_without_waiting(windows: Sequence[Window], times: Sequence[float]) -> list[float]:
    """Return the times of windows without the part in which rank 0 waited for data.

    The part is taken off as a share, because the unit of the times depends on the log.

    Args:
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit.

    Returns:
        The times. A window that does not say how long it waited, or took, keeps its value.
    """
    compute_times = []
    for window, time in zip(windows, times, strict=True):
        waiting_share_of_window = 0.0
        if window.data_wait_s and window.seconds:
            waiting_share_of_window = min(window.data_wait_s / window.seconds, 1.0)
        compute_times.append(time * (1 - waiting_share_of_window))
    return compute_times


def _warning_of_drift(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning if the times rise or fall through the whole run by over 2 % (MIN_DRIFT).

    The drift is the change of the median time from the first third of the windows to the last third.

    Args:
        record: The run as read from its log.
        windows: The measured windows; a window is what one printed row of the log covers.
        times: A time for each window, in any unit. At least three.

    Returns:
        The warning; None if there is nothing to warn of.
    """
    third = len(times) // 3
    median_of_first_third = statistics.median(times[:third])
    median_of_last_third = statistics.median(times[-third:])
    drift = median_of_last_third / median_of_first_third - 1
    if abs(drift) <= MIN_DRIFT or not _has_trend(times):
        return None
    message = f"step time drifts by {drift:+.1%} from the first to the last third of the run"
    return warning("drift", message, record, windows[-third].line)


def _absolute_drift(values: Sequence[float]) -> float:
    """Return how far the median of a series moves, up or down, from its first half to the second, as a share.

    Args:
        values: The series in order.

    Returns:
        The share, such as 0.02; 0 for fewer than two values, or if the first median is 0.
    """
    half = len(values) // 2
    if half == 0:
        return 0.0
    first = statistics.median(values[:half])
    second = statistics.median(values[half:])
    return abs(second / first - 1) if first else 0.0


def _has_trend(values: Sequence[float]) -> bool:
    """Return whether values rise or fall through a series, by the two-sided Mann-Kendall test at a significance of 1 %.

    The test counts how many pairs of an earlier and a later value rise, and how many fall (Kendall, Rank Correlation
    Methods, 1955).

    Args:
        values: The values in order. 400 values or more have too many pairs: of these, only every second, third or
            later one is taken, so that 200 to 300 are left.
    """
    stride = max(1, len(values) // MAX_FOR_TREND)  # MAX_FOR_TREND is 200: 1 up to 399 values, 2 up to 599, ...
    chosen = values[::stride]
    pairs = list(itertools.combinations(chosen, 2))
    rising_pairs = sum(later > earlier for earlier, later in pairs)
    falling_pairs = sum(later < earlier for earlier, later in pairs)
    # Without a trend, about as many pairs rise as fall. Their difference then has this standard deviation, which equal
    # values make smaller.
    counts_of_equal_values = collections.Counter(chosen).values()
    variance_lost = sum(_variance_of_pairs(count) for count in counts_of_equal_values)
    deviation = math.sqrt(_variance_of_pairs(len(chosen)) - variance_lost)
    # Without a trend, a difference of over 2.576 deviations, up or down, has a probability of 1 %.
    return abs(rising_pairs - falling_pairs) > NORMAL_QUANTILE_99 * deviation


def _variance_of_pairs(count: int) -> float:
    """Return the variance of the rising pairs less the falling pairs of different values in random order (Kendall).

    Args:
        count: The number of values. A single one has no pairs, and a variance of 0.
    """
    return count * (count - 1) * (2 * count + 5) / 18


def _look_like_running_averages(times: Sequence[float]) -> bool:
    """Return whether times look like running averages: they are smooth, and their changes die out.

    An average of all rows so far changes little from row to row, and the less, the more rows it is of. The times are
    smooth if their von Neumann ratio, mean squared change / variance, is low.

    Args:
        times: The times of a run's windows (what one printed row covers), in order, in any unit.

    Returns:
        Whether they do. Fewer than 20 (MIN_FOR_RUNNING_AVERAGES) times never do, nor do times that do not change.
    """
    if len(times) < MIN_FOR_RUNNING_AVERAGES:
        return False
    variance = statistics.pvariance(times)
    changes = [abs(after - before) for before, after in itertools.pairwise(times)]
    if variance == 0 or not _die_out(changes):
        return False
    von_neumann_ratio = statistics.fmean([change * change for change in changes]) / variance
    return von_neumann_ratio < MAX_SMOOTH_RATIO


def _die_out(changes: Sequence[float]) -> bool:
    """Return whether changes in the last quarter are, in the mean, far smaller than in the first quarter.

    Args:
        changes: The distances of neighbours in a series, in order, four or more.
    """
    quarter = len(changes) // 4
    early_change = statistics.fmean(changes[:quarter])
    late_change = statistics.fmean(changes[-quarter:])
    return late_change < early_change / MIN_DECAY_RATIO


def _stamps_confirm_times(windows: Sequence[Window]) -> bool:
    """Return whether the seconds that windows print agree with their time stamps.

    The seconds of a window must be about the time from the stamp before it to its own. They are then times of this
    window alone, not running averages over earlier windows.

    Args:
        windows: Two windows or more, in the order of the log. A window is what one printed row covers.

    Returns:
        Whether they do; False if a stamp is missing, or the seconds of any window but the first.
    """
    relative_distances = []
    for before, window in itertools.pairwise(windows):
        if before.end_s is None or window.end_s is None or not window.seconds:
            return False
        relative_distances.append(abs((window.end_s - before.end_s) / window.seconds - 1))
    # The median, because pauses such as evaluations may spoil a few windows.
    return statistics.median(relative_distances) <= MAX_CLOCK_DISTANCE


def _power_note(windows: Sequence[Window], index: int) -> str:
    """Return the median power before and after a change, such as " (power 300 W before, 250 W after)".

    Args:
        windows: The windows of a run (what one printed row covers), in order.
        index: Index of the first window after the change.

    Returns:
        The note; empty if no window before the change, or none after it, has a power.
    """
    before = [window.power_w for window in windows[:index] if window.power_w is not None]
    after = [window.power_w for window in windows[index:] if window.power_w is not None]
    if not before or not after:
        return ""
    return f" (power {statistics.median(before):.0f} W before, {statistics.median(after):.0f} W after)"
