"""The slowest rank of each window, and a warning if it is the same one again and again."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from runlog.digits import percent
from runlog.verdict import Verdict
from scoring.figure.warnings import warning
from scoring.record import Record, Window

MIN_STRAGGLER_LAG = 0.03  # of a straggler behind the median rank, as a share of the window's time
MAX_STRAGGLER_CHANCE = 0.01  # that equally fast ranks have such a warning in a run
CORRELATION_OF_WINDOWS = 0.6  # assumed between neighbouring windows
# In the mean of a long first-order autoregressive series, so many values weigh as much as one independent value.
WINDOWS_PER_INDEPENDENT_ONE = (1 + CORRELATION_OF_WINDOWS) / (1 - CORRELATION_OF_WINDOWS)

KindOfTime = Literal["compute", "data_wait"]  # which of the ranks' times are compared


class SlowestRank(NamedTuple):
    """The rank that took longest in one window."""

    rank: int | None
    host: str | None
    lag_share: float  # how much longer than the median rank, as a share of the window's time
    line: int  # of the window


class OftenSlowestRank(NamedTuple):
    """The rank that is the slowest in more windows than any other rank."""

    rank: int | None
    host: str | None
    times_slowest: int  # windows in which it is the slowest
    windows: int  # windows that say which rank is the slowest
    median_lag_share: float  # over the windows in which it is the slowest; see SlowestRank
    first_line: int  # of the first of these windows


def warn_of_slow_rank(record: Record, windows: Sequence[Window], kind: KindOfTime, *, action: str) -> Iterator[Verdict]:
    """Yield a warning if one rank is the slowest too often to be chance, and lags far behind the median rank.

    Args:
        record: The run as read from its log. Each of its devices has one rank. There is no warning for fewer than two
            devices, or if their number is not known.
        windows: The measured windows (what one printed row covers). Without the ranks' times there is no warning.
        kind: Which times of the ranks to compare: "compute", or "data_wait" for the time spent waiting for input.
        action: The verb for it in the message, such as "computes".
    """
    straggler = most_often_slowest(windows, kind)
    ranks = record.devices  # each device has one rank
    if straggler is None or ranks is None or ranks < 2:
        return
    chance = _upper_bound_of_chance(straggler.times_slowest, straggler.windows, ranks)
    if chance < MAX_STRAGGLER_CHANCE and straggler.median_lag_share > MIN_STRAGGLER_LAG:
        message = (
            f"rank {straggler.rank} on {straggler.host} {action} {percent(straggler.median_lag_share)} of the time "
            f"longer than the median rank, and is the slowest in {straggler.times_slowest} of {straggler.windows} "
            "windows: all others wait for it"
        )
        yield warning("straggler", message, record, straggler.first_line)


def most_often_slowest(windows: Sequence[Window], kind: KindOfTime) -> OftenSlowestRank | None:
    """Return the rank that is the slowest in more windows of a run than any other rank.

    If several are the slowest equally often, it is the one that was so first.

    Args:
        windows: The windows of a run; a window is what one printed row of the log covers.
        kind: Which times of the ranks to compare: "compute", or "data_wait" for the time spent waiting for input.

    Returns:
        The rank; None if no window has the ranks' times of this kind.
    """
    slowest_of_windows = _slowest_ranks(windows, kind)
    if not slowest_of_windows:
        return None
    # By number and host, because two hosts may give their ranks the same numbers
    windows_by_rank: dict[tuple[int | None, str | None], list[SlowestRank]] = {}
    for slowest in slowest_of_windows:
        windows_by_rank.setdefault((slowest.rank, slowest.host), []).append(slowest)
    windows_of_one_rank = max(windows_by_rank.values(), key=len)  # the first of equals
    first = windows_of_one_rank[0]
    return OftenSlowestRank(
        rank=first.rank,
        host=first.host,
        times_slowest=len(windows_of_one_rank),
        windows=len(slowest_of_windows),
        median_lag_share=statistics.median(slowest.lag_share for slowest in windows_of_one_rank),
        first_line=first.line,
    )


def _slowest_ranks(windows: Sequence[Window], kind: KindOfTime) -> list[SlowestRank]:
    """Return the slowest rank of each window, with how far it lags behind the median rank.

    Args:
        windows: The windows of a run; a window is what one printed row of the log covers.
        kind: Which times of the ranks to compare: "compute", or "data_wait" for the time spent waiting for input.

    Returns:
        The ranks in the order of the windows. A window whose row does not give these times is left out.
    """
    slowest = []
    for window in windows:
        lag_share = slowest_rank_lag(window, kind)
        if lag_share is not None:
            # The fields of each kind begin with its name: `compute_rank`, `compute_most_s` and so on.
            rank = getattr(window.rank_times, f"{kind}_rank")
            host = getattr(window.rank_times, f"{kind}_host")
            slowest.append(SlowestRank(rank, host, lag_share, window.line))
    return slowest


def _upper_bound_of_chance(times_slowest: int, windows: int, ranks: int) -> float:
    """Return an upper bound of the chance that one of equally fast ranks is slowest in `times_slowest` windows or more.

    For example, 8 ranks are equally fast, so each is expected to be the slowest in 1/8 of the windows. The chance that
    one of the 8 ranks is the slowest in 40 or more of 100 windows is at most 0.0204.

    Args:
        times_slowest: In how many windows the rank is the slowest.
        windows: In how many windows the log shows which rank is the slowest.
        ranks: The number of ranks of the run.

    Returns:
        The bound, which may exceed 1. If the rank is the slowest in no more windows than expected, the bound is 1.
    """
    share = times_slowest / windows  # 0.4 in the example
    expected_share = 1 / ranks  # 0.125
    if share <= expected_share:  # nothing unusual; the bound below holds only above the expected share
        return 1.0
    # Neighbouring windows are alike, so only every fourth window counts as independent: 25 of 100.
    independent_windows = windows / WINDOWS_PER_INDEPENDENT_ONE
    # Chernoff's bound exp(-n * D). D, here 0.239, is how far the share lies above the expected share.
    bound_for_one_rank = math.exp(-independent_windows * _divergence(share, expected_share))  # 0.00255
    # The chance that any of the ranks is so often the slowest is at most the sum of the chances of all ranks.
    return ranks * bound_for_one_rank  # 8 * 0.00255 = 0.0204


def _divergence(share: float, expected_share: float) -> float:
    """Return the Kullback-Leibler divergence of one share from another.

    It is p * log(p / q) + (1 - p) * log((1 - p) / (1 - q)).

    Args:
        share: The share p, above 0 and at most 1.
        expected_share: The share q, between 0 and 1.
    """
    divergence = share * math.log(share / expected_share)
    if share < 1:  # at 1 the second part is 0, but log(0) is not defined
        divergence += (1 - share) * math.log((1 - share) / (1 - expected_share))
    return divergence


def slowest_rank_lag(window: Window, kind: KindOfTime) -> float | None:
    """Return how far the slowest rank lags behind the median rank, as a share of the time that the steps took.

    If the slowest rank computes for 12 s and the median rank for 10 s, in a window of 20 s, the lag is 0.1.

    Args:
        window: The steps between two printed rows of a log, or an epoch, with the times that the log states.
        kind: Which times of the ranks to compare: "compute", or "data_wait" for the time spent waiting for input.

    Returns:
        The lag; None if the window does not state its own time, or the ranks' times of this kind.
    """
    if window.rank_times is None or not window.seconds:
        return None
    slowest_s = getattr(window.rank_times, f"{kind}_most_s")
    median_s = getattr(window.rank_times, f"{kind}_median_s")
    if slowest_s is None or median_s is None:
        return None
    return float((slowest_s - median_s) / window.seconds)
