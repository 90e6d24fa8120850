"""Warnings about the windows of one run: what changes through it, what sticks out, and what all ranks wait for."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from runlog.verdict import Verdict
from scoring.figure.warnings import OUTLIER_SHARE, RATE_GAP_SHARE, warning
from scoring.importers.text import weighted_mean, work
from scoring.record import Record, Window

# A split is searched over the whole series: its strength must pass what noise alone reaches (about
# sqrt(2 ln n), 3.7 for a thousand windows) by a margin, and the levels must differ by what a user cares for.
CHANGE_STRENGTH = 6.0
WARM_UP_SHARE = 0.01
THROTTLE_SHARE = 0.03
DRIFT_SHARE = 0.02
STALL_SHARE = 0.05
OUTLIER_SCORE = 3.5  # median absolute deviations: Iglewicz and Hoaglin's modified z-score
OUTLYING_WINDOW_SHARE = 0.2
SWING = 1.25  # of the 95 % quantile of the step times to the 5 % one
STRAGGLER_SHARE = 0.03  # of a window's time, over the median rank
STRAGGLER_CHANCE = 0.01  # that a run of ranks that are alike has such a warning
STRAGGLER_WINDOWS = 4  # windows that are worth one of independent ones: (1 + r) / (1 - r) at a correlation r of 0.6


def of_windows(record: Record, windows: Sequence[Window], averages_rates: bool) -> Iterator[Verdict]:
    """Warnings about the measured windows of one run."""
    if record.truncated:
        message = "the log ends before its run does: the figure is of the part that is there"
        yield warning("truncated", message, record, record.segment[1] if record.segment else record.lines)
    if record.cumulative and averages_rates:
        message = "the printed rates are running averages of the epoch: their mean counts early steps many times"
        yield warning("cumulative_windows", message, record)
    times = step_times(windows)
    if len(times) == len(windows) > 1:
        yield from _of_times(record, windows, times, averages_rates)
    share = waiting_share(windows)
    if share is not None and share > STALL_SHARE:
        message = f"{share:.1%} of the step time is waiting for data (over {STALL_SHARE:.0%})"
        yield warning("data_stall", message, record)
    for kind, what in (("data_wait", "waits for its input"), ("compute", "computes")):
        yield from _straggler(record, windows, kind, what)


def waiting_share(windows: Sequence[Window]) -> float | None:
    """The share of the windows' time that rank 0 waited for input; None where none of them says it."""
    waited = 0.0
    total = 0.0
    for window in windows:
        if window.data_wait_s is not None and window.seconds:
            waited += window.data_wait_s
            total += window.seconds
    return waited / total if total else None


def step_times(windows: Iterable[Window]) -> list[float]:
    """Seconds a step (or a printed unit of equal work) of each window, as far as the log has them."""
    times = []
    for window in windows:
        if window.seconds is not None and window.images and not window.steps:
            times.append(window.seconds / window.images)
        elif window.step_s is not None:
            times.append(window.step_s)
        elif window.printed_rate:
            times.append(1 / window.printed_rate)
    return times


def _of_times(
    record: Record, windows: Sequence[Window], times: Sequence[float], averages_rates: bool
) -> Iterator[Verdict]:
    """Warnings about the step times of all windows."""
    if not record.cumulative and _looks_cumulative(times):
        message = "the windows look like running averages: ever smaller changes from row to row"
        yield warning("cumulative_windows", message, record)
    if len(times) >= 6:
        moved = _change_of_level(record, windows, times) or _outlying_windows(record, windows, times)
        if moved:
            yield moved
    ordered = sorted(times)
    low = ordered[int(0.05 * len(times))]
    high = ordered[int(0.95 * len(times))]
    if high > SWING * low:
        message = f"the slow windows take {high / low:.3g} times as long as the fast ones, 5 to 95 % of them"
        yield warning("unsteady", message, record)
    gap = statistics.fmean(1 / time for time in times) * weighted_mean(times, work(windows)) - 1
    if averages_rates and gap > RATE_GAP_SHARE:
        message = f"the mean of rates is {gap:.2%} above images over time: windows of unequal speed"
        yield warning("rates_averaged", message, record)


def _outlying_windows(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """A few windows that move the figure: far from the median step time, and over 1 % of the mean by themselves."""
    middle = statistics.median(times)
    scale = 1.4826 * statistics.median([abs(time - middle) for time in times])  # a normal one's standard deviation
    limit = max(OUTLIER_SCORE * scale, OUTLYING_WINDOW_SHARE * middle)
    far = [index for index, time in enumerate(times) if abs(time - middle) > limit]
    if not 0 < len(far) <= len(times) / 10:  # more of them are how the run goes: it is unsteady
        return None
    weights = work(windows)
    near_times = []
    near_weights = []
    for time, weight in zip(times, weights, strict=True):
        if abs(time - middle) <= limit:
            near_times.append(time)
            near_weights.append(weight)
    moved = weighted_mean(times, weights) / weighted_mean(near_times, near_weights) - 1
    if abs(moved) <= OUTLIER_SHARE:
        return None

    distances = [abs(time - middle) for time in times]
    worst = distances.index(max(distances))
    longer = "longer" if moved > 0 else "shorter"
    message = (
        f"{len(far)} of {len(windows)} windows, far from the others, make the mean step time {abs(moved):.1%} "
        f"{longer}; the farthest takes {times[worst] / middle:.3g} times the median: see the median of the window rates"
    )
    return warning("outlying_window", message, record, windows[worst].line)


def _change_of_level(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Warm-up not over, throttling or drift: at most one of them explains a series."""
    return (
        _warm_up_not_over(record, windows, times)
        or _throttling(record, windows, times)
        or _drift(record, windows, times)
    )


def change_point(values: Sequence[float], first: int, last: int) -> tuple[int, float, float] | None:
    """The best split of `values` into two levels with `first` <= index <= last, and both; None without a clear one.

    Least squares on values clipped at 8 deviations (one spike is no level). Noise is the scaled median absolute
    difference of neighbours, which a change of level or a slow drift hardly touches.
    """
    noise = 1.4826 * statistics.median([abs(b - a) for a, b in itertools.pairwise(values)]) / math.sqrt(2)
    middle = statistics.median(values)
    noise = max(noise, 1e-4 * abs(middle), 1e-12)  # printed digits hide smaller noise; all time may be waiting
    clipped = [min(max(value, middle - 8 * noise), middle + 8 * noise) for value in values]
    total = math.fsum(clipped)
    count = len(clipped)
    best = 0.0  # in standard errors
    at = 0
    for index, left in enumerate(itertools.accumulate(clipped[:-1]), 1):
        gap = left / index - (total - left) / (count - index)
        strength = abs(gap) * math.sqrt(index * (count - index) / count) / noise
        if first <= index <= last and strength > best:
            best, at = strength, index
    if best <= CHANGE_STRENGTH:
        return None
    return at, statistics.median(values[:at]), statistics.median(values[at:])


def _warm_up_not_over(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """A slower level at the start."""
    count = len(times)
    change = change_point(times, 1, count // 2)
    if change is None:
        return None
    at, slow, usual = change
    if slow <= usual * (1 + WARM_UP_SHARE):
        return None
    message = (
        f"the first {at} of {count} measured windows are {slow / usual - 1:.1%} slower "
        f"than the rest: warm-up was not over at the cut; try to skip {at} more"
    )
    return warning("warm_up_not_over", message, record, windows[at].line)


def _throttling(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """A slower level of the computation to the end: a step rather than a ramp, and no wait for data."""
    count = len(times)
    compute = []
    for window, time in zip(windows, times, strict=True):
        waits = 0.0
        if window.data_wait_s and window.seconds:
            waits = min(window.data_wait_s / window.seconds, 1.0)
        compute.append(time * (1 - waits))
    change = change_point(compute, max(1, count // 10), count - max(3, count // 5))
    if change is None:
        return None
    at, usual, slow = change
    is_step = max(_ramp(compute[:at]), _ramp(compute[at:])) < THROTTLE_SHARE / 2
    if not (is_step and slow > usual * (1 + THROTTLE_SHARE) > 0):
        return None
    message = (
        f"from window {at + 1} of {count} on steps take {slow / usual - 1:.1%} longer, to the end: "
        f"throttling, or another job on the machine{_power_note(windows, at)}"
    )
    return warning("throttling", message, record, windows[at].line)


def _drift(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """A trend through the run."""
    third = len(times) // 3
    first = statistics.median(times[:third])
    last = statistics.median(times[-third:])
    if abs(last / first - 1) <= DRIFT_SHARE or not _monotone(times):
        return None
    message = f"step time drifts by {last / first - 1:+.1%} from the first to the last third of the run"
    return warning("drift", message, record, windows[len(times) - third].line)


def _ramp(values: Sequence[float]) -> float:
    """How much the second half of a stretch differs from the first, as a share."""
    half = len(values) // 2
    if not half:
        return 0.0
    first = statistics.median(values[:half])
    second = statistics.median(values[half:])
    return abs(second / first - 1) if first else 0.0


def _monotone(values: Sequence[float]) -> bool:
    """Mann-Kendall's test on at most 200 evenly chosen values: a trend at 1 %."""
    chosen = values[:: max(1, len(values) // 200)]
    count = len(chosen)
    sign = 0
    for one, other in itertools.combinations(chosen, 2):
        sign += (other > one) - (other < one)
    return abs(sign) > 2.576 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


def _looks_cumulative(times: Sequence[float]) -> bool:
    """Running averages change ever less, and little from row to row beside their whole range."""
    if len(times) < 20:
        return False
    differences = [abs(b - a) for a, b in itertools.pairwise(times)]
    quarter = len(differences) // 4
    early = statistics.fmean(differences[:quarter])
    late = statistics.fmean(differences[-quarter:])
    variance = statistics.pvariance(times)
    if variance == 0 or early == 0:
        return False
    ratio = statistics.fmean([d * d for d in differences]) / variance  # von Neumann's; 2 for independent values
    return ratio < 0.3 and late < early / 3


def _power_note(windows: Sequence[Window], index: int) -> str:
    before = [window.power_w for window in windows[:index] if window.power_w is not None]
    after = [window.power_w for window in windows[index:] if window.power_w is not None]
    if not before or not after:
        return ""
    return f" (power {statistics.median(before):.0f} W before, {statistics.median(after):.0f} W after)"


def _straggler(record: Record, windows: Sequence[Window], kind: str, what: str) -> Iterator[Verdict]:
    """A rank that the others wait for: slowest by over 3 % of the time, and in more windows than chance gives.

    Of R ranks that are alike each is the slowest of a window with probability 1/R. That one, not named before, is the
    slowest in a share s of n windows has at most the probability R exp(-n KL(s, 1/R)), by Chernoff's bound. Windows are
    correlated, so that n is a fourth of them.
    """
    slowest = _slowest_ranks(windows, kind)
    if not slowest or not record.devices or record.devices < 2:
        return

    often, count = Counter((one.rank, one.host) for one in slowest).most_common(1)[0]
    chance = _chance_of_slowest(count, len(slowest), record.devices)
    rows = [one for one in slowest if one.rank == often[0]]
    over = statistics.median(row.over for row in rows)
    if chance < STRAGGLER_CHANCE and over > STRAGGLER_SHARE:
        message = (
            f"rank {often[0]} on {often[1]} {what} {over:.1%} of the time longer than the median rank, and is the "
            f"slowest in {count} of {len(slowest)} windows: all others wait for it"
        )
        yield warning("straggler", message, record, rows[0].line)


class SlowestRank(NamedTuple):
    """The rank that took longest in one window, and by how much of the window's time beyond the median rank."""

    rank: int | None
    host: str | None
    over: float
    line: int


def _slowest_ranks(windows: Sequence[Window], kind: str) -> list[SlowestRank]:
    """The slowest rank of each window that has the ranks' times; `kind`: compute or data_wait."""
    found = []
    for window in windows:
        over = over_median(window, kind)
        if over is not None:
            rank = getattr(window.rank_times, f"{kind}_rank")
            host = getattr(window.rank_times, f"{kind}_host")
            found.append(SlowestRank(rank=rank, host=host, over=over, line=window.line))
    return found


def _chance_of_slowest(count: int, windows: int, ranks: int) -> float:
    """The most probability with which one of `ranks` that are alike is the slowest in `count` of `windows`."""
    share = count / windows
    alike = 1 / ranks
    if share <= alike:
        return 1.0
    divergence = share * math.log(share / alike)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - alike))
    return ranks * math.exp(-windows / STRAGGLER_WINDOWS * divergence)


def over_median(window: Window, kind: str) -> float | None:
    """How much longer the slowest rank takes than the median one, of the time; `kind`: compute or data_wait."""
    if window.rank_times is None or not window.seconds:
        return None
    most = getattr(window.rank_times, f"{kind}_most_s")
    median = getattr(window.rank_times, f"{kind}_median_s")
    if most is None or median is None:
        return None
    return float((most - median) / window.seconds)
