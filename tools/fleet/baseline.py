"""How a fleet's nodes changed since an earlier record of the same job: each is compared with itself."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scoring.figure import spread
from tools.fleet.outliers import error_of, place_of, slow
from tools.fleet.verdicts import ALPHAS, NODE_METRICS, Record, Series, of_hosts


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one metric changed since a baseline."""

    metric: str
    nodes: int  # in both
    fleet: float  # median over the nodes: 0.02 is 2 % more time than then
    interval_95: tuple[float, ...] | None
    slower: dict[str, float]  # nodes that lost more than the others did, and how much


def changes(now: Record, then: Record) -> list[Change]:
    """Return how each metric changed on the nodes that are in both records, `then` the earlier one.

    Each node is compared with itself, so that differences between the nodes' hardware cancel. A metric that one of the
    records lacks, or that no node has in both, is left out.
    """
    changed = []
    for metric, title in NODE_METRICS.items():
        if metric in now["metrics"] and metric in then["metrics"]:
            log_times_now = _log_times(of_hosts(now, metric))
            log_times_then = _log_times(of_hosts(then, metric))
            if log_times_now.keys() & log_times_then.keys():
                changed.append(_change(title, log_times_now, log_times_then, alpha=ALPHAS[metric]))
    return changed


def _change(
    title: str, log_times_now: Mapping[str, list[float]], log_times_then: Mapping[str, list[float]], *, alpha: float
) -> Change:
    """Return how the metric `title` changed from an earlier record to a later one.

    The mappings have for each node the logarithms of its times; one node at least is in both. A node's own change is
    that of the centre of its times, and the fleet's is the median change of the nodes in both records.

    Nodes that lost far more than the fleet, by the tests of `slow`, are in `slower` with how much more they lost.
    `alpha` is the chance that a node is named in a fleet whose nodes all changed alike. Of fewer than LEAST_NODES nodes
    none is named, and of fewer than five the change has no interval.
    """
    log_ratios = {}  # by node: the logarithm of its time now over its time then
    errors = []  # the standard error of each of these
    for host, times_now in log_times_now.items():
        if host in log_times_then:
            times_then = log_times_then[host]
            # `place_of` gives a centre of the times that varies little, and `error_of` its standard error.
            log_ratios[host] = place_of(times_now) - place_of(times_then)
            errors.append(math.hypot(error_of(times_now), error_of(times_then)))  # of a difference

    median_log_ratio = statistics.median(log_ratios.values())
    interval = spread.median_interval(list(log_ratios.values()))  # None of fewer than five
    # Hosts whose log ratio is an outlier above the others, or one of a minority at over twice the time of all others.
    slow_hosts = slow(log_ratios, noise=statistics.median(errors), alpha=alpha)
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
