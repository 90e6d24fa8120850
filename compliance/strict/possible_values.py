"""Whether the value of an event that tells of speed is possible, by this event alone."""

from collections.abc import Container
from typing import Any

from compliance.logged_run import is_number
from runlog import schema

ROUNDING_ERROR_S = 1e-6  # of a time that is written with six digits
# A rank may compute while rank 0 writes a checkpoint or a line of the log, which is no time of its window.
_MOST_COMPUTED_SHARE = 1.25  # of the time that passed
_MOST_COMPUTED_MORE_S = 1.0
# MiB/s of a checkpoint: of the copy for which training waits, and of the hash and the write. Machines have a tenth.
_MOST_COPIED_MIB_PER_S = 1_000_000
_MOST_WRITTEN_MIB_PER_S = 100_000
_ROUNDING_OF_CHECKPOINT_S = 5e-5  # of its times, which have four digits


def is_possible_window(window: schema.StepWindow, last_step: int) -> bool:
    """Return whether a window's counts and last step are from 0 to 2^63 - 1, and its loss is not below 0.

    Args:
        window: The figures of some steps. A loss of None is possible: it was infinite or not a number.
        last_step: The number of the step at which the window ends.
    """
    is_good_loss = window.loss is None or window.loss >= 0
    has_good_steps = 0 <= window.steps < 2**63
    has_good_images = 0 <= window.images < 2**63
    has_good_end = 0 <= last_step < 2**63
    return is_good_loss and has_good_steps and has_good_images and has_good_end


def has_impossible_time(window: schema.StepWindow) -> bool:
    """Return whether a window took no time, or waited for data for a negative time or for longer than it took.

    Args:
        window: The figures of some steps, with the seconds that they took and waited.
    """
    longest_wait_s = window.time_s + ROUNDING_ERROR_S
    is_wait_possible = 0 <= window.data_wait_s <= longest_wait_s
    return window.time_s <= 0 or not is_wait_possible


def is_possible_checkpoint(checkpoint: schema.Checkpoint) -> bool:
    """Return whether a checkpoint's file is named by its step, its size is not below 0, and its times are long enough.

    Args:
        checkpoint: The checkpoint. The file of step 12 must begin with "step_000000012.", as the writer names it.
    """
    least_blocked_s = checkpoint.mib / _MOST_COPIED_MIB_PER_S - _ROUNDING_OF_CHECKPOINT_S
    least_write_s = checkpoint.mib / _MOST_WRITTEN_MIB_PER_S - _ROUNDING_OF_CHECKPOINT_S
    is_named_by_step = checkpoint.file.startswith(f"step_{checkpoint.step:09d}.")
    are_times_possible = checkpoint.blocked_s >= max(least_blocked_s, 0) and checkpoint.write_s >= max(least_write_s, 0)
    return is_named_by_step and checkpoint.mib >= 0 and are_times_possible


def is_positive_throughput(stated: schema.EpochThroughput) -> bool:
    """Return whether the images, the seconds and the images/s of a throughput are numbers above 0.

    Args:
        stated: The value of an event epoch_throughput.
    """
    return all(is_number(value) and value > 0 for value in (stated.images, stated.time_s, stated.images_per_s))


def images_per_s_of_foreign(value: Any) -> float | None:
    """Return the images/s that an event of another project has as its value; None if it has no number.

    Args:
        value: The number itself, or a table that has it as `throughput` or `imgs_sec`.
    """
    rate = value
    if isinstance(value, dict):
        other_name = value.get("imgs_sec")
        rate = value.get("throughput", other_name)
    return rate if is_number(rate) else None


def are_possible_rank_times(times: schema.RankTimes, *, ranks: int, hosts: Container[str] | None) -> bool:
    """Return whether a run with these ranks and hosts can have logged the values of an event rank_times.

    The event states how long the ranks waited for data in a window of steps, by five values: the least, median and most
    time of a rank, and the rank and host with the most time. If the time of computing was measured, the event states
    the same five values of computing. The values are possible if all of these are true:

    - The run has at least two ranks.
    - The five values on computing are all stated, or all missing (None), as on GPUs.
    - The named hosts and ranks exist.
    - With two ranks, the median time is the least time: of two in the middle, the lower is the median.
    - 0 <= least <= median <= most.

    Args:
        times: The values of the event. Those on waiting for data are never missing.
        ranks: How many ranks the run has. The ranks count from 0.
        hosts: The hosts of the run's nodes. None if the hosts are not known: any host is taken to exist then.
    """
    if ranks < 2:
        return False

    computing_s = (times.compute_least_s, times.compute_median_s, times.compute_most_s)
    values_on_computing = (*computing_s, times.compute_rank, times.compute_host)
    are_all_stated = None not in values_on_computing
    are_all_missing = all(value is None for value in values_on_computing)
    if not (are_all_stated or are_all_missing):
        return False

    hosts_named = {times.data_wait_host, times.compute_host} - {None}  # None: computing was not measured
    if hosts is not None and not all(host in hosts for host in hosts_named):
        return False
    for rank in (times.data_wait_rank, times.compute_rank):
        exists = rank is None or 0 <= rank < ranks  # None: computing was not measured, so no rank is named
        if not exists:
            return False

    is_median_wait_least = times.data_wait_median_s == times.data_wait_least_s
    is_median_computing_least = times.compute_median_s == times.compute_least_s  # true if both are missing (None)
    if ranks == 2 and not (is_median_wait_least and is_median_computing_least):
        return False
    are_waits_in_order = _are_in_order(times.data_wait_least_s, times.data_wait_median_s, times.data_wait_most_s)
    are_computing_times_in_order = _are_in_order(*computing_s)  # true if all are missing: None is taken as 0
    return are_waits_in_order and are_computing_times_in_order


def contradiction_of_ranks(times: schema.RankTimes, window: schema.StepWindow, passed_s: float, *, ranks: int) -> str:
    """Return in words how the ranks' times contradict their window of steps; an empty text if they do not.

    `window` states how long rank 0 waited for data. `times` states the least and the most wait of all ranks, and which
    rank waited longest. The first of these contradictions is returned; in the examples, rank 0 waited 2.0 s:

    - The wait of rank 0 is not from the least to the most of all ranks, such as 2.5 to 3.0 s.
    - Rank 0 waited longest, but the wait of rank 0 is below the most, such as 3.0 s.
    - Rank 1 of two ranks waited longest, but the wait of rank 0 is above the least, such as 1.0 s.
    - A rank computed for far longer than there was time: for more than 1.25 * `available_s` + 1 s, where `available_s`
      is the longer of the window's time and `passed_s`.

    Because the waits are rounded, differences up to ROUNDING_ERROR_S are allowed.

    Args:
        times: The ranks' least, median and most times in the window. The times of computing may be missing (None).
        window: The window's own figures, by rank 0.
        passed_s: The time since the window before it, or since the start of the epoch or run, by the log's clock, in s.
        ranks: How many ranks the run has.
    """
    least_s = times.data_wait_least_s - ROUNDING_ERROR_S  # may be rounded up
    most_s = times.data_wait_most_s + ROUNDING_ERROR_S  # may be rounded down
    if not least_s <= window.data_wait_s <= most_s:
        of_all = f"the ranks' rank_times have {times.data_wait_least_s} to {times.data_wait_most_s}"
        return f"a window in which rank 0 waited {window.data_wait_s} s for data; {of_all}"
    # The test above has shown that the wait is not above the most, so only a wait below the most is left.
    if times.data_wait_rank == 0 and window.data_wait_s < times.data_wait_most_s - ROUNDING_ERROR_S:
        most = f"by its rank_times it waited longest, {times.data_wait_most_s} s"
        return f"a window in which rank 0 waited {window.data_wait_s} s for data; {most}"
    waited_least = ranks == 2 and times.data_wait_rank == 1  # with more ranks, another one may have waited least
    if waited_least and window.data_wait_s > times.data_wait_least_s + ROUNDING_ERROR_S:
        least = f"by its rank_times the other one waited longer, and it {times.data_wait_least_s} s"
        return f"a window in which rank 0 of two waited {window.data_wait_s} s for data; {least}"
    available_s = max(window.time_s, passed_s)  # the time in which a rank can have computed
    most_compute_s = available_s * _MOST_COMPUTED_SHARE + _MOST_COMPUTED_MORE_S  # available_s * 1.25 + 1 s
    if times.compute_most_s is not None and times.compute_most_s > most_compute_s:
        return f"a window of {window.time_s} s; by its rank_times a rank computed for {times.compute_most_s} s"
    return ""


def _are_in_order(least_s: float | None, median_s: float | None, most_s: float | None) -> bool:
    """Return whether 0 <= least <= median <= most. A missing time counts as 0.

    Args:
        least_s: The least time of a rank, in seconds; None if it is missing.
        median_s: The time of the median rank, in seconds; None if it is missing.
        most_s: The most time of a rank, in seconds; None if it is missing.
    """
    return 0 <= (least_s or 0) <= (median_s or 0) <= (most_s or 0)
