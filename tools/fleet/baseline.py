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
    """Return how one metric changed, by the logarithms of each node's times in both records.

    The fleet's change is the median over the nodes that are in both. A node is named in `slower` where it lost more
    than that: `alpha` is the chance that a fleet which lost nothing has one named. The interval is None where the nodes
    are too few for one.
    """
    log_ratios = {}  # by node: the logarithm of its time now over its time then
    errors = []
    for host, times_now in log_times_now.items():
        if host in log_times_then:
            times_then = log_times_then[host]
            log_ratios[host] = place_of(times_now) - place_of(times_then)
            errors.append(math.hypot(error_of(times_now), error_of(times_then)))

    median_log_ratio = statistics.median(log_ratios.values())
    interval = spread.median_interval(list(log_ratios.values()))
    named = slow(log_ratios, noise=statistics.median(errors), alpha=alpha)
    return Change(
        metric=title,
        nodes=len(log_ratios),
        fleet=math.expm1(median_log_ratio),  # 0.05 is 5 % slower than then
        interval_95=None if interval is None else tuple(math.expm1(end) for end in interval),
        slower={host: math.expm1(log_ratios[host] - median_log_ratio) for host in named},
    )


def _log_times(series: Series) -> dict[str, list[float]]:
    """Return the logarithms of each node's times; a node without a measurement is left out."""
    return {host: np.log(values).tolist() for host, values in series.items() if values}
