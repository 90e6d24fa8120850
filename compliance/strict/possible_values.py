"""Whether the value of an event that tells of speed is possible, by this event alone."""

from collections.abc import Container
from typing import Any, NamedTuple

from compliance.logged_run import is_number
from runlog import schema

ROUNDING_ERROR_S = 1e-6  # of a time that is written with six digits
# A rank may compute while rank 0 writes a checkpoint or a line of the log, which is not time of its window.
_MAX_COMPUTED_SHARE = 1.25  # of the time that passed
_MAX_COMPUTED_MORE_S = 1.0
# MiB/s of a checkpoint: of the copy for which training waits, and of the hash and the write. Machines have a tenth.
_MAX_COPIED_MIB_PER_S = 1_000_000
_MAX_WRITTEN_MIB_PER_S = 100_000
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
    least_blocked_s = checkpoint.mib / _MAX_COPIED_MIB_PER_S - _ROUNDING_OF_CHECKPOINT_S
    least_write_s = checkpoint.mib / _MAX_WRITTEN_MIB_PER_S - _ROUNDING_OF_CHECKPOINT_S
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
    """Return whether the values of an event rank_times are possible in a run with these ranks and hosts.

    The event states how long the ranks waited for data in a window of steps, by five values: the least, median and most
    time of a rank, and the rank and host with the most time. They are possible if 0 <= least <= median <= most (of two
    ranks, median = least), and if the run has the rank and the host. If computing was measured, five such values of it
    must be possible, too.

    Args:
        times: The values of the event. Those on waiting for data are never missing.
        ranks: How many ranks the run has. The ranks count from 0.
        hosts: The hosts of the run's nodes. None if the hosts are not known: any host is taken to exist then.
    """
    if ranks < 2:  # a run of one rank logs no rank_times
        return False
    waits = _TimesOfRanks(
        times.data_wait_least_s, times.data_wait_median_s, times.data_wait_most_s, times.data_wait_rank
    )
    if not (waits.are_possible(ranks) and _exists(times.data_wait_host, hosts)):
        return False

    values_on_computing = (
        times.compute_least_s,
        times.compute_median_s,
        times.compute_most_s,
        times.compute_rank,
        times.compute_host,
    )
    was_computing_measured = any(value is not None for value in values_on_computing)
    if not was_computing_measured:  # as on GPUs
        return True
    # From here on, all five must be stated: some of them alone are a fault.
    return _is_computing_possible(times, ranks=ranks, hosts=hosts)


def _is_computing_possible(times: schema.RankTimes, *, ranks: int, hosts: Container[str] | None) -> bool:
    """Return whether an event rank_times states all its five values on computing, and the run can have these.

    They are the least, median and most time that a rank computed, and the rank and host that computed longest. They are
    possible if 0 <= least <= median <= most (of two ranks, median = least), and if the run has the rank and the host.

    Args:
        times: The values of an event rank_times.
        ranks: How many ranks the run has.
        hosts: The hosts of the run's nodes. None if they are not known: any host is taken to exist then.
    """
    least_s, median_s, most_s = times.compute_least_s, times.compute_median_s, times.compute_most_s
    if least_s is None or median_s is None or most_s is None:
        return False
    if times.compute_rank is None or times.compute_host is None:
        return False
    computing = _TimesOfRanks(least_s, median_s, most_s, times.compute_rank)
    return computing.are_possible(ranks) and _exists(times.compute_host, hosts)


class _TimesOfRanks(NamedTuple):
    """The times that the ranks took for one thing, and the rank with the most time."""

    least_s: float
    median_s: float
    most_s: float
    rank_of_most: int

    def are_possible(self, ranks: int) -> bool:
        """Return whether so many ranks, at least two, can have these times.

        Args:
            ranks: How many ranks the run has, which count from 0.
        """
        does_rank_exist = 0 <= self.rank_of_most < ranks
        are_in_order = 0 <= self.least_s <= self.median_s <= self.most_s
        # Of two ranks in the middle, the lower time is the median.
        is_median_right = ranks != 2 or self.median_s == self.least_s
        return does_rank_exist and are_in_order and is_median_right


def _exists(host: str, hosts: Container[str] | None) -> bool:
    """Return whether a host is one of the run's; any is if these are not known (None)."""
    return hosts is None or host in hosts


def contradiction_of_ranks(times: schema.RankTimes, window: schema.StepWindow, passed_s: float, *, ranks: int) -> str:
    """Return in words why the ranks' times cannot be those of a window of steps; an empty text if they can.

    They cannot if rank 0 waited longer or shorter in the window than they allow, or if a rank computed for too long:
    "a window of 5.0 s; by its rank_times a rank computed for 90.0 s".

    Args:
        times: The ranks' least, median and most times in the window. The times of computing may be missing (None).
        window: The window's own figures, by rank 0.
        passed_s: The time since the window before it, or since the start of the epoch or run, by the log's clock, in s.
        ranks: How many ranks the run has.
    """
    # Such as "rank 0 waited 4.0 s for data; the ranks' rank_times have 1.0 to 3.0"; empty if the waits agree.
    contradiction = _contradiction_of_waits(times, window.data_wait_s, ranks=ranks)
    if contradiction:
        return f"a window in which {contradiction}"
    # The window's time is that of rank 0. Another rank may compute longer, as while rank 0 is between two windows.
    available_s = max(window.time_s, passed_s)
    most_compute_s = available_s * _MAX_COMPUTED_SHARE + _MAX_COMPUTED_MORE_S  # of 5 s: 1.25 * 5 s + 1 s = 7.25 s
    if times.compute_most_s is not None and times.compute_most_s > most_compute_s:
        return f"a window of {window.time_s} s; by its rank_times a rank computed for {times.compute_most_s} s"
    return ""


def _contradiction_of_waits(times: schema.RankTimes, waited_s: float, *, ranks: int) -> str:
    """Return in words how the wait of rank 0 for data contradicts the ranks' least and most wait, but for rounding.

    For instance, the ranks waited from 1 s to 3 s. Then rank 0 must have waited from 1 s to 3 s. If it is the rank that
    waited longest, it must have waited 3 s. If it is one of two ranks and the other waited longest, it must have waited
    1 s, and 2 s give "rank 0 of two waited 2 s for data; by its rank_times the other one waited longer, and it 1 s".

    Args:
        times: The ranks' least and most wait, and the rank that waited longest.
        waited_s: How long rank 0 waited, in seconds.
        ranks: How many ranks the run has.

    Returns:
        The contradiction; an empty text if there is none.
    """
    least_s = times.data_wait_least_s
    most_s = times.data_wait_most_s
    is_between = least_s - ROUNDING_ERROR_S <= waited_s <= most_s + ROUNDING_ERROR_S
    if not is_between:
        return f"rank 0 waited {waited_s} s for data; the ranks' rank_times have {least_s} to {most_s}"

    waited_longest = times.data_wait_rank == 0  # the rank that waited longest is rank 0
    if waited_longest and waited_s < most_s - ROUNDING_ERROR_S:
        return f"rank 0 waited {waited_s} s for data; by its rank_times it waited longest, {most_s} s"

    # Of two ranks, the one that did not wait longest waited least. Of more ranks, it may be any other one.
    waited_least = ranks == 2 and times.data_wait_rank == 1
    if waited_least and waited_s > least_s + ROUNDING_ERROR_S:
        least = f"by its rank_times the other one waited longer, and it {least_s} s"
        return f"rank 0 of two waited {waited_s} s for data; {least}"
    return ""
