"""How a fleet's nodes changed since an earlier record of the same job: each is compared with itself."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scoring.figure import medians
from tools.fleet.outliers import error_of_level, find_slow, level_of
from tools.fleet.verdicts import ALPHAS, NODE_METRICS, Record, Series, of_hosts


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
    """Return how each metric of the nodes changed from the earlier record `then` to the record `now`.

    Each node is compared with itself, so that differences between the nodes' hardware cancel. A metric is left out if
    no node has it in both records.
    """
    changes_of_metrics = []
    for metric, title in NODE_METRICS.items():
        if metric in now["metrics"] and metric in then["metrics"]:
            change_by_host = _changes_of_nodes(of_hosts(now, metric), of_hosts(then, metric))
            if change_by_host:
                changes_of_metrics.append(_change_of_fleet(title, change_by_host, alpha=ALPHAS[metric]))
    return changes_of_metrics


def _changes_of_nodes(now: Series, then: Series) -> dict[str, NodeChange]:
    """Return how one metric changed on each node that was measured both now and then, by the name of the node.

    The change is from the level of the logarithms of the node's times then to their level now. A level (`level_of`) is
    a robust mean.
    """
    log_times_now = _logarithms(now)
    log_times_then = _logarithms(then)
    change_by_host = {}
    for host in log_times_now:
        if host not in log_times_then:
            continue
        of_now = log_times_now[host]
        of_then = log_times_then[host]
        log_ratio = level_of(of_now) - level_of(of_then)
        # The two levels are independent, so the squares of their errors add up.
        error = math.hypot(error_of_level(of_now), error_of_level(of_then))
        change_by_host[host] = NodeChange(log_ratio, error)
    return change_by_host


def _change_of_fleet(title: str, change_by_host: Mapping[str, NodeChange], *, alpha: float) -> Change:
    """Return how the metric `title` changed on a fleet: the median change, and the nodes that slowed down far more.

    The changes in the result are fractions of the earlier time: 0.05 is 5 % slower. `alpha` is the chance that a node
    is named although all changed alike.
    """
    # The logarithm of each node's time now over its time then. `expm1` makes a fraction of it: log(1.05) -> 0.05.
    log_ratios = {host: change.log_ratio for host, change in change_by_host.items()}
    median_log_ratio = statistics.median(log_ratios.values())
    interval = medians.median_interval(list(log_ratios.values()))  # None for fewer than five nodes
    typical_error = statistics.median(change.error for change in change_by_host.values())
    slow_hosts = find_slow(log_ratios, noise=typical_error, alpha=alpha)
    return Change(
        metric=title,
        nodes=len(log_ratios),
        fleet=math.expm1(median_log_ratio),
        interval_95=None if interval is None else tuple(math.expm1(end) for end in interval),
        slower={host: math.expm1(log_ratios[host] - median_log_ratio) for host in slow_hosts},  # than the fleet
    )


def _logarithms(series: Series) -> dict[str, list[float]]:
    """Return the natural logarithm of each time of each node; a node without a measurement is left out."""
    return {host: np.log(values).tolist() for host, values in series.items() if values}
