"""The 95 % interval of the ratio of two means of runs, by the runs or by the hosts that they ran on."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scoring.figure import spread
from scoring.figure.levels import IndependentValues, means_of_hosts, runs_or_host_means


class Runs(NamedTuple):
    """The runs of one side: the figure of each, and where it ran."""

    values: Sequence[float]
    hosts: Sequence[str] | None  # the host of each run; None if not known


class RatioInterval(NamedTuple):
    """The 95 % interval of a ratio of two figures."""

    bounds: tuple[float, float] | None  # low, high; None if not known
    basis: str  # what the interval is made of, or why there is none


def interval_of_means(base: Runs, other: Runs, *, are_of_one_system: bool) -> RatioInterval:
    """Return the 95 % interval of the ratio mean(other) / mean(base) of two sets of runs.

    The interval is by the errors of the two means in all cases but one. If one set is of a single host and the other is
    of several hosts of the same system, it may be too narrow: runs of one host lie closer together than hosts do. Then
    a second interval is made from how far the several hosts lie apart, and the wider one of the two is returned.

    Args:
        base: The runs in the denominator, two or more, with their hosts if known.
        other: The runs in the numerator, two or more, with their hosts if known.
        are_of_one_system: Whether both sets are known to be of one system, whose hosts then lie equally far apart.

    Returns:
        The interval, which always has bounds, with words that say how it was made.
    """
    by_errors = _interval_by_errors(base, other)
    # The mean of each host of the set with several hosts, if the other set is of a single host
    host_means = host_means_against_one_host(base, other) if are_of_one_system else None
    if host_means is None:  # both sets are of several hosts, or neither is, or hosts or a common system are not known
        return by_errors
    ratio = statistics.fmean(other.values) / statistics.fmean(base.values)
    by_hosts = interval_by_spread_of_hosts(ratio, host_means)
    assert by_errors.bounds is not None and by_hosts.bounds is not None, "both ways always give bounds"
    hosts_are_wider = spread.half_width(by_hosts.bounds) > spread.half_width(by_errors.bounds)
    return by_hosts if hosts_are_wider else by_errors


def _interval_by_errors(base: Runs, other: Runs) -> RatioInterval:
    """Return the 95 % interval of the ratio mean(other) / mean(base) of two sets of runs by their standard errors.

    Both means are of all runs. Only their standard errors, with the degrees of freedom, depend on the hosts, because
    runs of one host lie closer together than hosts do:

        several hosts, and some host has several runs    by how far the means of the hosts lie apart
        any other set                                    by how far the runs lie apart

    Args:
        base: The runs in the denominator, two or more, with their hosts if known.
        other: The runs in the numerator, two or more, with their hosts if known.

    Returns:
        The bounds, with words such as "Welch's t over 2 hosts and 5 runs": the error of `base` is by the means of its 2
        hosts, and the error of `other` by its 5 runs.
    """
    # The values by which each error goes: the figures of the runs, or the means of the hosts
    base_values = runs_or_host_means(base.values, base.hosts)
    other_values = runs_or_host_means(other.values, other.hosts)
    base_mean = base_values.mean_of_runs  # the mean of all runs (a host's mean weighs as its runs do), with the error
    other_mean = other_values.mean_of_runs
    assert base_mean is not None and other_mean is not None, "each set has two runs or more, of one host or of several"
    bounds = spread.mean_ratio_interval(base_mean, other_mean)
    whose_t = spread.name_of_ratio_t(base_mean, other_mean)
    return RatioInterval(bounds, f"{whose_t} over {_counts_in_words(base_values, other_values)}")


def host_means_against_one_host(base: Runs, other: Runs) -> IndependentValues | None:
    """Return the mean figure of each host of the one of two sets that ran on several hosts, if the other ran on one.

    For example, `base` ran on node1, and `other` ran on node2 and node3: the result is the mean of node2 and the mean
    of node3. To compare the two sets, a caller must know how far hosts of the system lie apart. These means show it,
    and node1 alone does not. The caller makes sure that both sets are of one system.

    Args:
        base: A set of runs, with their hosts if known.
        other: The set of runs that is compared with `base`, with their hosts if known.

    Returns:
        The means, with the number of runs of each. None if both sets ran on one host each, if both ran on several
        hosts, or if the hosts of a set are not known.
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

    A single host does not show how far hosts lie apart, so the width comes from the several hosts alone. All hosts must
    be of one system. For example, the means of 4 hosts with equally many runs vary by 1 % (standard deviation / mean),
    with 3 degrees of freedom, whose t is 4.54. Half the width is then 4.54 * 1 % * sqrt(1/4 + 1/1) = 5.1 %, and a ratio
    of 1.0 has the interval (0.951, 1.052).

    Args:
        ratio: Either mean / the other one, above zero. The relative width is the same both ways round.
        host_means: The means of the several hosts (two or more), and the number of runs of each.

    Returns:
        The bounds, and words such as "one host against 4: the spread of 4 hosts of this system".
    """
    hosts = len(host_means.values)
    bounds = spread.single_value_interval(
        ratio=ratio,
        relative_sd=spread.relative_sd(host_means.values),
        freedom=hosts - 1,
        # The number of hosts if all have equally many runs. Otherwise fewer, because a mean of all runs varies more if
        # some hosts have more of the runs than others.
        count=host_means.effective_count,
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
