"""How a fleet's nodes changed since an earlier record of the same job: each is compared with itself."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scoring.figure import spread
from tools.fleet.verdicts import ALPHAS, NODE_METRICS, Record, Series, error_of, of_hosts, place_of, slow


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
            logs_now = _logs(of_hosts(now, metric))
            logs_then = _logs(of_hosts(then, metric))
            if logs_now.keys() & logs_then.keys():
                changed.append(_change(title, logs_now, logs_then, alpha=ALPHAS[metric]))
    return changed


def _change(
    title: str, logs_now: Mapping[str, list[float]], logs_then: Mapping[str, list[float]], *, alpha: float
) -> Change:
    """Return how one metric changed, by the logarithms of each node's times in both records.

    The fleet's change is the median over the nodes. A node is named where it lost more than that, beyond chance.
    """
    log_slower = {}  # by node: the logarithm of its time now over its time then
    errors = []
    for host, logs in logs_now.items():
        if host in logs_then:
            log_slower[host] = place_of(logs) - place_of(logs_then[host])
            errors.append(math.hypot(error_of(logs), error_of(logs_then[host])))

    fleet = statistics.median(log_slower.values())
    interval = spread.median_interval(list(log_slower.values()))
    named = slow(log_slower, noise=statistics.median(errors), alpha=alpha)
    return Change(
        metric=title,
        nodes=len(log_slower),
        fleet=math.expm1(fleet),
        interval_95=None if interval is None else tuple(math.expm1(end) for end in interval),
        slower={host: math.expm1(log_slower[host] - fleet) for host in named},
    )


def _logs(series: Series) -> dict[str, list[float]]:
    """Return the logarithms of what was measured; who has no measurement is left out."""
    return {host: np.log(values).tolist() for host, values in series.items() if values}
