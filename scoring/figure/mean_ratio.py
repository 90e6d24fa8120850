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


def interval_of_means(base: Runs, other: Runs, several_hosts: IndependentValues | None) -> RatioInterval:
    """Return the 95 % interval of the ratio mean(other) / mean(base) of two sets of runs, by Welch's t.

    If the runs of a side are of two hosts or more, and some host has several, each of its hosts counts as one value.

    Args:
        base: The runs in the denominator, two or more, with their hosts if known.
        other: The runs in the numerator, two or more, with their hosts if known.
        several_hosts: The means of the hosts of one side, if the other is of one host (see `hosts_beside_one_host`);
            else None. With it, the interval is no narrower than their spread makes it.

    Returns:
        The interval, with words that say how it was made.
    """
    base_repeats = independent_values(base.values, base.hosts)
    other_repeats = independent_values(other.values, other.hosts)
    base_mean = base_repeats.mean_of_runs
    other_mean = other_repeats.mean_of_runs
    assert base_mean is not None and other_mean is not None, "there are two runs, or two hosts, or more"
    bounds = spread.mean_ratio_interval(base_mean, other_mean)
    by_runs = RatioInterval(bounds, f"Welch's t over {_counts_in_words(base_repeats, other_repeats)}")

    if several_hosts is None:
        return by_runs
    by_hosts = interval_by_spread_of_hosts(other_mean.value / base_mean.value, several_hosts)
    assert by_hosts.bounds is not None, "it has one by the spread of two hosts or more"
    return by_hosts if spread.half_width(by_hosts.bounds) > spread.half_width(bounds) else by_runs


def hosts_beside_one_host(base: Runs, other: Runs) -> IndependentValues | None:
    """Return the means of the hosts of one set of runs, if the other set is of a single host.

    The runs of one host do not show how far hosts lie apart, but the means of several hosts do. Both sets must be of
    one system, because the hosts of another may lie further apart.

    Args:
        base: One set of runs, with their hosts if known.
        other: The other set of runs, with their hosts if known.

    Returns:
        The means of the hosts of the set that has several; None if neither or both have several, or if hosts are not
        known.
    """
    if base.hosts is None or other.hosts is None:
        return None
    means_of_base = means_of_hosts(base.values, base.hosts)
    means_of_other = means_of_hosts(other.values, other.hosts)
    if len(means_of_base.values) > 1 and len(means_of_other.values) == 1:
        return means_of_base
    if len(means_of_other.values) > 1 and len(means_of_base.values) == 1:
        return means_of_other
    return None


def interval_by_spread_of_hosts(ratio: float, host_means: IndependentValues) -> RatioInterval:
    """Return the 95 % interval of the ratio of two means, if one side ran on one host and the other on several.

    The runs of one host do not show how much hosts differ. So the width of the interval is computed from how much the
    means of the several hosts differ. Both sides must be the same system, whose hosts are assumed to differ as much.
    Each host gives one value: the one side has the mean of several values, the other side a single one.

    Args:
        ratio: The ratio of the means of the two sides, above zero. Either side may be the numerator.
        host_means: The mean of each host of the side with several hosts (two or more), and the number of its runs.

    Returns:
        The bounds, such as (0.97, 1.03) for a ratio of 1.0. The words say what they are computed from: "one host
        against 4: the spread of 4 hosts of this system".
    """
    hosts = len(host_means.values)
    bounds = spread.single_value_interval(
        ratio=ratio,
        relative_sd=spread.relative_sd(host_means.values),
        freedom=hosts - 1,
        count=host_means.effective_count,  # less than `hosts` if some hosts have more runs than others
        other_count=1,  # the side that ran on one host
    )
    return RatioInterval(bounds, f"one host against {hosts}: the spread of {hosts} hosts of this system")


def _counts_in_words(base: IndependentValues, other: IndependentValues) -> str:
    """Return how many values two sides have, and of what: `2 and 3 hosts`, `5 and 5 runs` or `2 hosts and 5 runs`."""
    base_unit = "hosts" if base.are_hosts else "runs"
    other_unit = "hosts" if other.are_hosts else "runs"
    if base_unit == other_unit:
        return f"{len(base.values)} and {len(other.values)} {other_unit}"
    return f"{len(base.values)} {base_unit} and {len(other.values)} {other_unit}"
