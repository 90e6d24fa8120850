"""Warnings about the windows of one run: what changes through it, what sticks out, and what all ranks wait for."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from runlog.digits import percent, percent_above, significant
from runlog.verdict import Verdict
from scoring.figure.warnings import OUTLIER_SHARE, RATE_GAP_SHARE, warning
from scoring.importers.text import steps_as_weights, weighted_mean
from scoring.record import Record, Window

# A split is searched over the whole series: its strength must pass what noise alone reaches (about
# sqrt(2 ln n), 3.7 for a thousand windows) by a margin, and the levels must differ by what a user cares for.
CHANGE_STRENGTH = 6.0
WARM_UP_SHARE = 0.01
THROTTLE_SHARE = 0.03
DRIFT_SHARE = 0.02
STALL_SHARE = 0.05
OUTLIER_SCORE = 3.5  # median absolute deviations: Iglewicz and Hoaglin's modified z-score
DEVIATIONS_OF_MEDIAN_DISTANCE = 1.4826  # standard deviations of normal values, in their median absolute distances
OUTLYING_WINDOW_SHARE = 0.2
MOST_DEVIATIONS = 8  # a value farther from the median is clipped to it before a change of level is sought
NORMAL_QUANTILE_99 = 2.576  # of a normal value's distance from its mean, in deviations
MOST_FOR_TREND = 200  # a longer series is thinned out to 200 to 399 values, as the test for a trend compares all pairs
SMOOTH_RATIO = 0.3  # von Neumann's ratio of running averages is below it; that of independent values is about 2
DYING_CHANGES = 3  # the first changes of running averages are over so many times the last ones
LEAST_FOR_LEVELS = 6  # windows in which a change of level or an outlier is sought
LEAST_FOR_RUNNING_AVERAGES = 20
SWING = 1.25  # of the 95 % quantile of the step times to the 5 % one
STRAGGLER_SHARE = 0.03  # of a window's time, over the median rank
STRAGGLER_CHANCE = 0.01  # that a run of ranks that are alike has such a warning
STRAGGLER_WINDOWS = 4  # windows that are worth one of independent ones: (1 + r) / (1 - r) at a correlation r of 0.6


def warn_about_windows(record: Record, windows: Sequence[Window], averages_rates: bool) -> Iterator[Verdict]:
    """Warn of what the measured windows of one run show: a log that ends early, uneven times, waits for data or a rank.

    `averages_rates` says that the figure is a mean of the windows' rates, for which running averages and windows of
    unequal speed are a fault. Times are looked at only where all windows have them.
    """
    if record.truncated:
        message = "the log ends before its run does: the figure is of the part that is there"
        yield warning("truncated", message, record, record.segment[1] if record.segment else record.lines)
    if record.cumulative and averages_rates:
        message = "the printed rates are running averages of the epoch: their mean counts early steps many times"
        yield warning("cumulative_windows", message, record)
    times = comparable_times(windows)
    if len(times) == len(windows) > 1:
        yield from _warn_of_uneven_times(record, windows, times, averages_rates)
    share = waiting_share(windows)
    if share is not None and share > STALL_SHARE:
        waiting = percent_above(share, STALL_SHARE)
        message = f"{waiting} of the step time is waiting for data (over {percent(STALL_SHARE, decimals=0)})"
        yield warning("data_stall", message, record)
    for kind, does in (("data_wait", "waits for its input"), ("compute", "computes")):
        yield from _warn_of_slow_rank(record, windows, kind, does)


def waiting_share(windows: Sequence[Window]) -> float | None:
    """Return the share of the windows' time that rank 0 waited for input; None where none of them says it."""
    waited = 0.0
    total = 0.0
    for window in windows:
        if window.data_wait_s is not None and window.seconds:
            waited += window.data_wait_s
            total += window.seconds
    return waited / total if total else None


def comparable_times(windows: Iterable[Window]) -> list[float]:
    """Return the seconds of a step in each window; windows whose rows do not tell a time are left out.

    Where a row does not say its steps, the time is that of an image instead. Where it prints a rate alone, it is one
    over that rate. Only the ratios of such times mean something.
    """
    times = []
    for window in windows:
        if window.seconds is not None and window.images and not window.steps:
            times.append(window.seconds / window.images)
        elif window.step_s is not None:
            times.append(window.step_s)
        elif window.printed_rate:
            times.append(1 / window.printed_rate)
    return times


def _warn_of_uneven_times(
    record: Record, windows: Sequence[Window], times: Sequence[float], averages_rates: bool
) -> Iterator[Verdict]:
    """Warn of uneven step times: running averages, a change of level or a few outliers, a wide swing, unequal rates.

    `times` are the seconds of a step in each window. A level is a stretch of the run in which they lie around one
    value. Changes of level are sought in LEAST_FOR_LEVELS windows or more, and outliers where there is no change.
    `averages_rates` says that the figure is a mean of rates: it lies above images over time where the windows are of
    unequal speed.
    """
    if not record.cumulative and _look_like_running_averages(times):
        message = "the windows look like running averages: ever smaller changes from row to row"
        yield warning("cumulative_windows", message, record)
    if len(times) >= LEAST_FOR_LEVELS:
        found = _warning_of_level_change(record, windows, times) or _warning_of_outlying_windows(record, windows, times)
        if found is not None:
            yield found

    ordered = sorted(times)
    fast = ordered[int(0.05 * len(times))]  # 5 % of the windows are faster
    slow = ordered[int(0.95 * len(times))]  # 5 % of them are as slow, or slower
    if slow > SWING * fast:
        times_as_long = significant(slow / fast, digits=3)
        message = f"the slow windows take {times_as_long} times as long as the fast ones, 5 to 95 % of them"
        yield warning("unsteady", message, record)

    mean_rate = statistics.fmean(1 / time for time in times)
    mean_time = weighted_mean(times, steps_as_weights(windows))
    gap = mean_rate * mean_time - 1  # 0 where all windows are of one speed
    if averages_rates and gap > RATE_GAP_SHARE:
        message = f"the mean of rates is {percent(gap, decimals=2)} above images over time: windows of unequal speed"
        yield warning("rates_averaged", message, record)


def _warning_of_outlying_windows(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning of a few windows far from the median step time that move the mean by over 1 %; None without.

    Far is more than OUTLIER_SCORE deviations, and more than OUTLYING_WINDOW_SHARE of the median. More than a tenth of
    the windows are not a few: then the whole run is uneven, of which another warning tells.
    """
    middle = statistics.median(times)
    distances = [abs(time - middle) for time in times]
    # The standard deviation of the other windows: the median distance does not grow with a few far ones.
    deviation = DEVIATIONS_OF_MEDIAN_DISTANCE * statistics.median(distances)
    limit = max(OUTLIER_SCORE * deviation, OUTLYING_WINDOW_SHARE * middle)
    far_windows = sum(distance > limit for distance in distances)
    if far_windows == 0 or far_windows > len(times) / 10:
        return None

    # How far the mean over all windows lies from that over the near ones alone.
    weights = steps_as_weights(windows)
    near_times = []
    near_weights = []
    for time, weight, distance in zip(times, weights, distances, strict=True):
        if distance <= limit:
            near_times.append(time)
            near_weights.append(weight)
    moved = weighted_mean(times, weights) / weighted_mean(near_times, near_weights) - 1
    if abs(moved) <= OUTLIER_SHARE:
        return None

    farthest = distances.index(max(distances))
    longer = "longer" if moved > 0 else "shorter"
    times_the_median = significant(times[farthest] / middle, digits=3)
    message = (
        f"{far_windows} of {len(windows)} windows, far from the others, make the mean step time {percent(abs(moved))} "
        f"{longer}; the farthest takes {times_the_median} times the median: see the median of the window "
        "rates"
    )
    return warning("outlying_window", message, record, windows[farthest].line)


def _warning_of_level_change(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning of warm-up that was not over, of throttling or of drift; None without them.

    At most one of them explains a series, so the first one that is found is returned.
    """
    return (
        _warning_of_warm_up(record, windows, times)
        or _warning_of_throttling(record, windows, times)
        or _warning_of_drift(record, windows, times)
    )


class LevelChange(NamedTuple):
    """The place at which a series of values changes from one level to another."""

    at: int  # index of the first value of the new level
    before: float  # median of the values before it
    after: float  # median of the values from it on


def change_point(values: Sequence[float], first: int, last: int) -> LevelChange | None:
    """Return where a series changes its level, at an index from `first` to `last`; None where it does not clearly.

    Each index splits the series in two parts, of the values before it and of those from it on. The index is taken at
    which the means of the parts differ most, in standard errors of their difference. It counts as a change if they
    differ by more than CHANGE_STRENGTH of these. Values far from the median are moved nearer beforehand, so that one
    spike does not look like a level.
    """
    noise = _noise_deviation(values)
    clipped = _clipped(values, MOST_DEVIATIONS * noise)
    total = math.fsum(clipped)
    sums_before = list(itertools.accumulate(clipped, initial=0.0))  # at an index, the sum of the values before it

    greatest_strength = 0.0
    best_index = 0
    for index in range(max(first, 1), min(last, len(values) - 1) + 1):
        count_before = index
        count_after = len(values) - index
        mean_before = sums_before[index] / count_before
        mean_after = (total - sums_before[index]) / count_after
        standard_error = noise * math.sqrt(1 / count_before + 1 / count_after)
        strength = abs(mean_before - mean_after) / standard_error
        if strength > greatest_strength:
            greatest_strength = strength
            best_index = index

    if greatest_strength <= CHANGE_STRENGTH:
        return None
    return LevelChange(best_index, statistics.median(values[:best_index]), statistics.median(values[best_index:]))


def _clipped(values: Sequence[float], most: float) -> list[float]:
    """Return the values, those that lie farther than `most` from their median moved to that distance."""
    middle = statistics.median(values)
    return [min(max(value, middle - most), middle + most) for value in values]


def _noise_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a series about its level, by how much neighbours differ at the median.

    A change of level or a slow drift hardly touches it. The difference of two values has sqrt(2) times the deviation of
    one. The result is above 0 even where printed digits hide the noise, or all values are 0.
    """
    differences = [abs(after - before) for before, after in itertools.pairwise(values)]
    noise = DEVIATIONS_OF_MEDIAN_DISTANCE * statistics.median(differences) / math.sqrt(2)
    middle = statistics.median(values)
    return max(noise, 1e-4 * abs(middle), 1e-12)


def _warning_of_warm_up(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning where the measured windows begin with a level that is slower by over 1 %; None where not."""
    count = len(times)
    change = change_point(times, 1, count // 2)
    if change is None or change.before <= change.after * (1 + WARM_UP_SHARE):
        return None
    message = (
        f"the first {change.at} of {count} measured windows are {percent(change.before / change.after - 1)} slower "
        f"than the rest: warm-up was not over at the cut; try to skip {change.at} more"
    )
    return warning("warm_up_not_over", message, record, windows[change.at].line)


def _warning_of_throttling(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning where the computation slows down by over 3 % and stays slow to the end; None where not.

    The wait for data is taken off the times. The change must be sudden: where the times rise slowly before or after
    it, the run drifts, which is another warning. It is sought away from the ends of the run: a slow first tenth is
    warm-up, and a slow last fifth may be over soon.
    """
    count = len(times)
    compute_times = []  # of a step in each window, as `times` are
    for window, time in zip(windows, times, strict=True):
        waiting = 0.0  # as a share of the window's time
        if window.data_wait_s and window.seconds:
            waiting = min(window.data_wait_s / window.seconds, 1.0)
        compute_times.append(time * (1 - waiting))
    first = max(1, count // 10)
    last = count - max(3, count // 5)
    change = change_point(compute_times, first, last)
    if change is None:
        return None

    steepest_ramp = max(
        _change_between_halves(compute_times[: change.at]), _change_between_halves(compute_times[change.at :])
    )
    is_step = steepest_ramp < THROTTLE_SHARE / 2  # flat on both sides, beside the change, which is over THROTTLE_SHARE
    is_slower = change.after > change.before * (1 + THROTTLE_SHARE) > 0  # 0: all of the time before was waiting
    if not (is_step and is_slower):
        return None
    message = (
        f"from window {change.at + 1} of {count} on steps take {percent(change.after / change.before - 1)} longer, to "
        f"the end: throttling, or another job on the machine{_power_note(windows, change.at)}"
    )
    return warning("throttling", message, record, windows[change.at].line)


def _warning_of_drift(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Return a warning where step times rise or fall through the whole run by over 2 %; None where they do not."""
    third = len(times) // 3
    first = statistics.median(times[:third])
    last = statistics.median(times[-third:])
    if abs(last / first - 1) <= DRIFT_SHARE or not _has_trend(times):
        return None
    message = f"step time drifts by {last / first - 1:+.1%} from the first to the last third of the run"
    return warning("drift", message, record, windows[len(times) - third].line)


def _change_between_halves(values: Sequence[float]) -> float:
    """Return how much the median of the second half of a stretch differs from that of the first, as a share of it."""
    half = len(values) // 2
    if not half:
        return 0.0
    first = statistics.median(values[:half])
    second = statistics.median(values[half:])
    return abs(second / first - 1) if first else 0.0


def _has_trend(values: Sequence[float]) -> bool:
    """Tell whether values rise or fall through a series, by the test of Mann and Kendall at 1 %.

    The test compares each value with each later one. In a series without a trend as many of these pairs rise as fall,
    but for a difference of about `deviation` (Kendall, Rank Correlation Methods, 1955). Of a long series every n-th
    value is taken, as the pairs would be too many.
    """
    stride = max(1, len(values) // MOST_FOR_TREND)
    chosen = values[::stride]
    rising_pairs = 0
    falling_pairs = 0
    for before, after in itertools.combinations(chosen, 2):
        if after > before:
            rising_pairs += 1
        elif after < before:
            falling_pairs += 1

    count = len(chosen)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return abs(rising_pairs - falling_pairs) > NORMAL_QUANTILE_99 * deviation


def _look_like_running_averages(times: Sequence[float]) -> bool:
    """Tell whether the step times look like running averages rather than like times of separate windows.

    Running averages have two marks. They change ever less: their last changes are small beside their first. And they
    are smooth: neighbours differ little beside the whole range. The ratio of von Neumann tells that, which is the mean
    square of the changes over the variance. Fewer than LEAST_FOR_RUNNING_AVERAGES times do not show it.
    """
    if len(times) < LEAST_FOR_RUNNING_AVERAGES:
        return False
    variance = statistics.pvariance(times)
    changes = [abs(after - before) for before, after in itertools.pairwise(times)]
    quarter = len(changes) // 4
    early_change = statistics.fmean(changes[:quarter])
    late_change = statistics.fmean(changes[-quarter:])
    if variance == 0 or early_change == 0:  # times that do not change have neither mark
        return False

    von_neumann_ratio = statistics.fmean([change * change for change in changes]) / variance
    is_smooth = von_neumann_ratio < SMOOTH_RATIO
    changes_die_out = late_change < early_change / DYING_CHANGES
    return is_smooth and changes_die_out


def _power_note(windows: Sequence[Window], index: int) -> str:
    """Return the median power before the window `index` and from it on, in words; empty where it is not known."""
    before = [window.power_w for window in windows[:index] if window.power_w is not None]
    after = [window.power_w for window in windows[index:] if window.power_w is not None]
    if not before or not after:
        return ""
    return f" (power {statistics.median(before):.0f} W before, {statistics.median(after):.0f} W after)"


def _warn_of_slow_rank(record: Record, windows: Sequence[Window], kind: str, does: str) -> Iterator[Verdict]:
    """Warn of a rank that all others wait for: slower than the median rank by over 3 % of the time, again and again.

    `kind` is the time that is looked at, `compute` or `data_wait`; `does` says it in words, for the message. Some rank
    is always the slowest, so the rank must be the slowest in more windows than chance gives among ranks that are alike.
    There is no warning for a single device, nor where no window has the ranks' times.
    """
    slowest_of_windows = slowest_ranks(windows, kind)
    if not slowest_of_windows or not record.devices or record.devices < 2:
        return

    windows_as_slowest = Counter((slowest.rank, slowest.host) for slowest in slowest_of_windows)
    [((rank, host), count)] = windows_as_slowest.most_common(1)
    chance = _chance_of_slowest(count, len(slowest_of_windows), record.devices)
    of_this_rank = [slowest for slowest in slowest_of_windows if slowest.rank == rank]
    share = statistics.median(slowest.lag_share for slowest in of_this_rank)
    if chance < STRAGGLER_CHANCE and share > STRAGGLER_SHARE:
        message = (
            f"rank {rank} on {host} {does} {percent(share)} of the time longer than the median rank, and is the "
            f"slowest in {count} of {len(slowest_of_windows)} windows: all others wait for it"
        )
        yield warning("straggler", message, record, of_this_rank[0].line)


class SlowestRank(NamedTuple):
    """The rank that took longest in one window."""

    rank: int | None
    host: str | None
    lag_share: float  # how much longer than the median rank, as a share of the window's time
    line: int  # of the window


def slowest_ranks(windows: Sequence[Window], kind: str) -> list[SlowestRank]:
    """Return the slowest rank of each window that has the ranks' times of a kind: `compute` or `data_wait`.

    The fields of a window's `rank_times` are named by the kind, such as `compute_rank`.
    """
    slowest = []
    for window in windows:
        share = slowest_rank_lag(window, kind)
        if share is not None:
            rank = getattr(window.rank_times, f"{kind}_rank")
            host = getattr(window.rank_times, f"{kind}_host")
            slowest.append(SlowestRank(rank=rank, host=host, lag_share=share, line=window.line))
    return slowest


def _chance_of_slowest(count: int, windows: int, ranks: int) -> float:
    """Return an upper bound of the chance that one of `ranks` that are alike is the slowest in `count` of `windows`.

    Each of R ranks is the slowest of a window with probability 1/R. By Chernoff's bound, the chance that any of them is
    it in a share s of n windows is at most R exp(-n D). D is the Kullback-Leibler divergence of s from 1/R. Windows are
    correlated, so that n is only a fourth of them. For a share that is not above 1/R the bound is 1.
    """
    share = count / windows
    expected_share = 1 / ranks
    if share <= expected_share:
        return 1.0
    divergence = share * math.log(share / expected_share)
    if share < 1:  # at 1 this part is 0, but log(0) is not defined
        divergence += (1 - share) * math.log((1 - share) / (1 - expected_share))
    return ranks * math.exp(-windows / STRAGGLER_WINDOWS * divergence)


def slowest_rank_lag(window: Window, kind: str) -> float | None:
    """Return how much longer the slowest rank of a window takes than the median one, as a share of the window's time.

    `kind` is the time that is compared: `compute` or `data_wait`. Returns None where the log does not say the ranks'
    times of that kind, or the window's own time.
    """
    if window.rank_times is None or not window.seconds:
        return None
    slowest_s = getattr(window.rank_times, f"{kind}_most_s")
    median_s = getattr(window.rank_times, f"{kind}_median_s")
    if slowest_s is None or median_s is None:
        return None
    return float((slowest_s - median_s) / window.seconds)
