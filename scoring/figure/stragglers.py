"""The slowest rank of each window, and a warning if it is the same one again and again."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runlog.digits import percent
from runlog.verdict import Verdict
from scoring.figure.warnings import warning
from scoring.record import Record, Window

LEAST_STRAGGLER_LAG = 0.03  # of a straggler behind the median rank, as a share of the window's time
MOST_STRAGGLER_CHANCE = 0.01  # that ranks that are alike have such a warning in a run
WINDOWS_PER_INDEPENDENT_ONE = 4  # (1 + r) / (1 - r), at a correlation r of 0.6 between neighbouring windows


def warn_of_slow_rank(record: Record, windows: Sequence[Window], kind: str, *, action: str) -> Iterator[Verdict]:
    """Yield a warning if one rank is slowest in more windows than chance explains, and lags far behind the others.

    `kind` is the time that is compared: `compute` or `data_wait`. `action` is the same in words for the message, such
    as `computes`.
    """
    slowest_of_windows = slowest_ranks(windows, kind)
    if not slowest_of_windows or not record.devices or record.devices < 2:
        return

    times_slowest = Counter((slowest.rank, slowest.host) for slowest in slowest_of_windows)
    (rank, host), count = times_slowest.most_common(1)[0]
    chance = _most_chance_of_slowest(count, len(slowest_of_windows), record.devices)
    windows_of_rank = [slowest for slowest in slowest_of_windows if slowest.rank == rank]  # a rank has one host
    lag_share = statistics.median(slowest.lag_share for slowest in windows_of_rank)
    if chance < MOST_STRAGGLER_CHANCE and lag_share > LEAST_STRAGGLER_LAG:
        message = (
            f"rank {rank} on {host} {action} {percent(lag_share)} of the time longer than the median rank, and is the "
            f"slowest in {count} of {len(slowest_of_windows)} windows: all others wait for it"
        )
        yield warning("straggler", message, record, windows_of_rank[0].line)


class SlowestRank(NamedTuple):
    """The rank that took longest in one window."""

    rank: int | None
    host: str | None
    lag_share: float  # how much longer than the median rank, as a share of the window's time
    line: int  # of the window


def slowest_ranks(windows: Sequence[Window], kind: str) -> list[SlowestRank]:
    """Return the slowest rank of each window, by one kind of time: `compute` or `data_wait`.

    A window whose row does not give the ranks' times of this kind is left out.
    """
    slowest = []
    for window in windows:
        lag_share = slowest_rank_lag(window, kind)
        if lag_share is not None:
            rank = getattr(window.rank_times, f"{kind}_rank")  # such as `compute_rank`
            host = getattr(window.rank_times, f"{kind}_host")
            slowest.append(SlowestRank(rank=rank, host=host, lag_share=lag_share, line=window.line))
    return slowest


def _most_chance_of_slowest(count: int, windows: int, ranks: int) -> float:
    """Return an upper bound of the chance that any of `ranks` equal ranks is the slowest in `count` of `windows`.

    For one rank it is Chernoff's bound exp(-n D), for n independent windows. For any of the ranks it is `ranks` times
    that.
    """
    share = count / windows
    expected_share = 1 / ranks
    if share <= expected_share:
        return 1.0
    # D, the Kullback-Leibler divergence of the share from the expected one
    divergence = share * math.log(share / expected_share)
    if share < 1:  # at 1 this part is 0, but log(0) is not defined
        divergence += (1 - share) * math.log((1 - share) / (1 - expected_share))
    independent_windows = windows / WINDOWS_PER_INDEPENDENT_ONE  # fewer, because neighbouring windows are correlated
    return ranks * math.exp(-independent_windows * divergence)


def slowest_rank_lag(window: Window, kind: str) -> float | None:
    """Return how much longer the slowest rank of a window takes than the median rank, as a share of the window's time.

    `kind` is the time that is compared: `compute` or `data_wait`. Returns None if the row does not give these times.
    """
    if window.rank_times is None or not window.seconds:
        return None
    slowest_s = getattr(window.rank_times, f"{kind}_most_s")
    median_s = getattr(window.rank_times, f"{kind}_median_s")
    if slowest_s is None or median_s is None:
        return None
    return float((slowest_s - median_s) / window.seconds)
