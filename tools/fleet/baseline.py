"""How a fleet's nodes changed since an earlier record of the same job: each is compared with itself."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scoring.figure import spread
from tools.fleet.outliers import centre_of, error_of_centre, find_slow
from tools.fleet.verdicts import ALPHAS, NODE_METRICS, Record, Series, of_hosts


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one metric changed since a baseline."""

    metric: str
    nodes: int  # the number of nodes in both records
    fleet: float  # median over the nodes: 0.02 is 2 % more time than then
    interval_95: tuple[float, ...] | None
    slower: dict[str, float]  # nodes that slowed down far more than the fleet, and by how much more


def changes(now: Record, then: Record) -> list[Change]:
    """Return how each metric of the nodes changed from the earlier record `then` to the record `now`.

    Each node is compared with itself, so that differences between the nodes' hardware cancel. A metric is left out if
    one of the records lacks it, or if no node has it in both.
    """
    changes_of_metrics = []
    for metric, title in NODE_METRICS.items():
        if metric in now["metrics"] and metric in then["metrics"]:
            log_times_now = _log_times(of_hosts(now, metric))
            log_times_then = _log_times(of_hosts(then, metric))
            if log_times_now.keys() & log_times_then.keys():
                changes_of_metrics.append(_change(title, log_times_now, log_times_then, alpha=ALPHAS[metric]))
    return changes_of_metrics


def _change(
    title: str, log_times_now: Mapping[str, list[float]], log_times_then: Mapping[str, list[float]], *, alpha: float
) -> Change:
    """Return how the metric `title` changed from an earlier record to a later one.

    The mappings have for each node the logarithms of its times; at least one node must be in both. A node's change is
    the change of the centre of its times. The fleet's change is the median over the nodes of both records. Its interval
    is None for fewer than five nodes.

    `slower` has the nodes that slowed down far more than the fleet, with how much more. It is empty for fewer than
    LEAST_NODES nodes. `alpha` is the chance of a false alarm if all nodes changed alike.
    """
    log_ratios = {}  # by node: the logarithm of its time now over its time then
    errors = []  # the standard error of each of these
    for host, times_now in log_times_now.items():
        if host in log_times_then:
            times_then = log_times_then[host]
            log_ratios[host] = centre_of(times_now) - centre_of(times_then)
            error_of_difference = math.hypot(error_of_centre(times_now), error_of_centre(times_then))
            errors.append(error_of_difference)

    median_log_ratio = statistics.median(log_ratios.values())
    interval = spread.median_interval(list(log_ratios.values()))  # None for fewer than five
    slow_hosts = find_slow(log_ratios, noise=statistics.median(errors), alpha=alpha)
    return Change(
        metric=title,
        nodes=len(log_ratios),
        fleet=math.expm1(median_log_ratio),  # 0.05 is 5 % slower than then
        interval_95=None if interval is None else tuple(math.expm1(end) for end in interval),
        slower={host: math.expm1(log_ratios[host] - median_log_ratio) for host in slow_hosts},
    )


def _log_times(series: Series) -> dict[str, list[float]]:
    """Return the logarithms of each node's times; a node without a measurement is left out."""
    return {host: np.log(values).tolist() for host, values in series.items() if values}
