"""The 95 % interval of the ratio of two means of runs, by the runs or by the hosts that they ran on."""

from collections.abc import Sequence
from typing import NamedTuple

from scoring.figure import spread
from scoring.figure.levels import IndependentValues, independent_values, means_of_hosts


class Runs(NamedTuple):
    """The runs of one side: the figure of each, and where it ran."""

    values: Sequence[float]
    hosts: Sequence[str] | None  # the host of each run; None if not known


class RatioInterval(NamedTuple):
    """The 95 % interval of a ratio of two figures."""

    bounds: tuple[float, float] | None  # low, high; None if not known
    basis: str  # what the interval is made of, or why there is none


def interval_of_means(base: Runs, other: Runs, host_means: IndependentValues | None) -> RatioInterval:
    """Return the 95 % interval of the ratio mean(other) / mean(base) of two sets of runs.

    The interval is made by Welch's t from how far the values of each set lie apart. The values are the figures of the
    runs. But if a set has several hosts and some host has several runs, the values of this set are the means of the
    hosts, because runs of one host lie closer together than hosts do.

    If one set is of a single host and the other set of several hosts, the interval by Welch's t may be too narrow,
    because a single host does not show how far hosts lie apart. With `host_means`, a second interval is made from how
    far the several hosts lie apart, and the wider interval of the two is returned.

    Args:
        base: The runs in the denominator, two or more, with their hosts if known.
        other: The runs in the numerator, two or more, with their hosts if known.
        host_means: The means of the several hosts, which `host_means_against_one_host(base, other)` returns. The caller
            gives None if there are none, or if the sets may be of two systems: no second interval is then made.

    Returns:
        The interval, with words that say how it was made.
    """
    # The figures of the runs, or the means of the hosts
    base_values = independent_values(base.values, base.hosts)
    other_values = independent_values(other.values, other.hosts)
    base_mean = base_values.mean_of_runs  # the mean of all runs, with a standard error by the values
    other_mean = other_values.mean_of_runs
    assert base_mean is not None and other_mean is not None, "each set has two runs or more, of one host or of several"
    bounds = spread.mean_ratio_interval(base_mean, other_mean)  # (low, high) by Welch's t
    by_welch = RatioInterval(bounds, f"Welch's t over {_counts_in_words(base_values, other_values)}")

    if host_means is None:
        return by_welch
    by_hosts = interval_by_spread_of_hosts(other_mean.value / base_mean.value, host_means)
    assert by_hosts.bounds is not None, "an interval by the spread of hosts always has bounds"
    # The wider one of the two intervals
    return by_hosts if spread.half_width(by_hosts.bounds) > spread.half_width(bounds) else by_welch


def host_means_against_one_host(base: Runs, other: Runs) -> IndependentValues | None:
    """Return the mean figure of each host of one set of runs, if this set has several hosts and the other set has one.

    Either set, `base` or `other`, may have the several hosts. Their means show how far hosts lie apart, which the runs
    of a single host do not show. The caller makes sure that both sets are of one system, because the hosts of another
    system may lie further apart. This function does not check the systems.

    Args:
        base: A set of runs, with their hosts if known.
        other: The set of runs that is compared with `base`, with their hosts if known.

    Returns:
        The means, with the number of runs of each. None if neither set or both sets have several hosts, or if the hosts
        of a set are not known.
    """
    if base.hosts is None or other.hosts is None:
        return None
    means_of_base = means_of_hosts(base.values, base.hosts)
    means_of_other = means_of_hosts(other.values, other.hosts)
    hosts_of_base = len(means_of_base.values)
    hosts_of_other = len(means_of_other.values)
    if hosts_of_base > 1 and hosts_of_other == 1:
        return means_of_base
    if hosts_of_other > 1 and hosts_of_base == 1:
        return means_of_other
    return None


def interval_by_spread_of_hosts(ratio: float, host_means: IndependentValues) -> RatioInterval:
    """Return the 95 % interval of the ratio of two means: the mean of a single host and the mean of several hosts.

    A single host does not show how far hosts lie apart. So the width of the interval is computed only from how far the
    means of the several hosts lie apart. All hosts must be of one system.

    For example, 4 hosts with equally many runs have means with a standard deviation of 1 % of their mean. The interval
    of a ratio of 1.0 is then (0.951, 1.052), which is (exp(-h), exp(h)) with

        h = 4.54 * 0.01 * sqrt(1 / 4 + 1 / 1) = 0.051

    4.54 is Student's t for 3 degrees of freedom, as `single_value_interval` takes it.

    Args:
        ratio: The mean of the single host / the mean of the several hosts, or the reciprocal. Above zero.
        host_means: The means of the several hosts (two or more), and the number of runs of each.

    Returns:
        The bounds, and words that say how they were made: "one host against 4: the spread of 4 hosts of this system".
    """
    hosts = len(host_means.values)
    # ratio * exp(-h) and ratio * exp(h), with h = t(freedom) * relative_sd * sqrt(1 / count + 1 / other_count)
    bounds = spread.single_value_interval(
        ratio=ratio,
        relative_sd=spread.relative_sd(host_means.values),
        freedom=hosts - 1,
        count=host_means.effective_count,  # the number of hosts if all have equally many runs, otherwise less
        other_count=1,  # the single host
    )
    return RatioInterval(bounds, f"one host against {hosts}: the spread of {hosts} hosts of this system")


def _counts_in_words(base: IndependentValues, other: IndependentValues) -> str:
    """Return how many values two sides have, and of what: `2 and 3 hosts`, `5 and 5 runs` or `2 hosts and 5 runs`."""
    base_unit = "hosts" if base.are_hosts else "runs"
    other_unit = "hosts" if other.are_hosts else "runs"
    if base_unit == other_unit:
        return f"{len(base.values)} and {len(other.values)} {other_unit}"
    return f"{len(base.values)} {base_unit} and {len(other.values)} {other_unit}"
