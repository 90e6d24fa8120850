"""How a fleet's nodes changed since an earlier record of the same job: each is compared with itself."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scoring.figure import medians
from tools.fleet.outliers import error_of_level, find_slow, level_of
from tools.fleet.verdicts import ALPHAS, NODE_METRICS, Record, Series, extra_time_of, of_hosts


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one metric changed since a baseline."""

    metric: str
    nodes: int  # the number of nodes in both records
    fleet: float  # median over the nodes: 0.02 is 2 % more time than then
    interval_95: tuple[float, ...] | None  # of `fleet`; None for fewer than five nodes
    slower: dict[str, float]  # nodes that slowed down far more than the fleet, and by how much more


class NodeChange(NamedTuple):
    """How the times of one node changed since a baseline."""

    log_ratio: float  # the logarithm of its time now over its time then: 0.05 is about 5 % slower
    error: float  # the standard error of `log_ratio`


def changes(now: Record, then: Record) -> list[Change]:
    """Return how each metric of a fleet's nodes changed since an earlier record of the same job.

    Each node is compared with itself, so that differences between the nodes' hardware cancel.

    Args:
        now: The new record of the fleet (fleet.json).
        then: The earlier one.

    Returns:
        A change for each metric that at least one node has in both records.
    """
    changes_of_metrics = []
    for metric, title in NODE_METRICS.items():
        if metric in now["metrics"] and metric in then["metrics"]:
            change_by_host = _changes_of_nodes(of_hosts(now, metric), of_hosts(then, metric))
            if change_by_host:
                changes_of_metrics.append(_change_of_fleet(title, change_by_host, alpha=ALPHAS[metric]))
    return changes_of_metrics


def _changes_of_nodes(now: Series, then: Series) -> dict[str, NodeChange]:
    """Return how one metric changed on each node that was measured both now and then, by the name of the node."""
    change_by_host = {}
    for host, times_now in now.items():
        times_then = then.get(host)
        if times_now and times_then:
            change_by_host[host] = _change_of_node(times_now, times_then)
    return change_by_host


def _change_of_node(times_now: Sequence[float], times_then: Sequence[float]) -> NodeChange:
    """Return how the times of one node changed: from the level of their logarithms then to that level now."""
    logs_now: list[float] = np.log(times_now).tolist()
    logs_then: list[float] = np.log(times_then).tolist()
    log_ratio = level_of(logs_now) - level_of(logs_then)  # a level is a robust mean
    # The two levels are independent, so the squares of their errors add up.
    error = math.hypot(error_of_level(logs_now), error_of_level(logs_then))
    return NodeChange(log_ratio, error)


def _change_of_fleet(title: str, change_by_host: Mapping[str, NodeChange], *, alpha: float) -> Change:
    """Summarize how one performance metric changed across a fleet's nodes since an earlier measurement.

    A node is compared with the median of all nodes. If all nodes got 10 % slower, none is named. All is computed with
    the logarithms of ratios, log(time now / time then), and returned as extra time: 0.02 is 2 % more.

    Args:
        title: The metric's name for display, such as "step" or "memory".
        change_by_host: The change of each node; at least one.
        alpha: The accepted chance of naming a node although all nodes changed equally.

    Returns:
        The median change, its 95 % interval (None for fewer than five nodes), and the nodes that slowed down far more,
        each with how much more. Of fewer than four nodes none is named.
    """
    log_ratios = {host: change.log_ratio for host, change in change_by_host.items()}
    median_log_ratio = statistics.median(log_ratios.values())
    interval_of_logs = medians.median_interval(list(log_ratios.values()))  # None for fewer than five nodes
    interval = None
    if interval_of_logs is not None:
        interval = tuple(extra_time_of(end) for end in interval_of_logs)  # log(1.02) -> 0.02

    typical_error = statistics.median(change.error for change in change_by_host.values())  # of a node's log ratio
    # The names of nodes whose log ratio lies far above the others'; an empty list for fewer than four nodes.
    slow_hosts = find_slow(log_ratios, noise=typical_error, alpha=alpha)
    # A node's ratio over the median ratio: log(1.12) - log(1.02) is log(1.098), which gives 0.098.
    slower_than_fleet = {host: extra_time_of(log_ratios[host] - median_log_ratio) for host in slow_hosts}
    return Change(
        metric=title,
        nodes=len(log_ratios),
        fleet=extra_time_of(median_log_ratio),
        interval_95=interval,
        slower=slower_than_fleet,
    )
