"""The model of what communication between nodes costs, learnt from the published figures and tested on them.

    images/s of M nodes = images/s of M0 nodes * M / M0 * exp(-loss * (1/M0 - 1/M))

M0 is the next smaller measured node count. (M-1)/M is the share of a ring all-reduce's traffic that leaves a node.
`loss` is the mean over the published figures, and their scatter about it, as it grows with each doubling of the nodes,
makes the interval. docs/scale-model.md has what did no better on figures that it had not seen.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runlog import stats
from runlog.json_types import JsonObject
from scoring.published.table import Published, by_devices


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Log of the throughput lost to communication between nodes."""

    mean: float
    spread: float  # standard deviation of a figure's logarithm about the model at twice the nodes
    tables: int  # how many tables it is learnt from: figures of one table are no independent witnesses

    def ratio(self, base: int, nodes: int) -> float:
        """Return the throughput on `nodes` nodes as a multiple of the one on `base` nodes."""
        return nodes / base * math.exp(-self.mean * (1 / base - 1 / nodes))

    def relative_interval_95(self, base: int, nodes: int, relative_error: float = 0.0) -> tuple[float, float]:
        """Return the two factors (low, high) by which the throughput on `nodes` may differ from the prediction.

        They hold the scatter of the published figures, which grows with each doubling of the nodes from `base` on, and
        the standard error of the base's own figure, as a share of it.
        """
        scatter = self.spread * math.sqrt(abs(math.log2(nodes / base)) * (1 + 1 / self.tables))
        half = stats.t_quantile(self.tables - 1) * math.hypot(scatter, relative_error)
        return math.exp(-half), math.exp(half)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published throughput of one system over its node counts, with equally many devices on each node."""

    name: str
    report: str
    images_per_s: Mapping[int, float]  # by nodes, ascending


def published_tables(rows: Sequence[Published]) -> list[PublishedTable]:
    """Return a table for each published system with figures on two numbers of nodes or more.

    A system may have been measured with 1, 4 or 8 devices on a node. Only those figures are kept that have as many on
    each node as the system's largest measurement, so that they differ in the number of nodes alone.
    """
    tables = []
    for figures in by_devices(row for row in rows if row.nodes):  # a list for each system, by ascending devices
        largest = figures[-1]
        images_per_s: dict[int, float] = {}  # by nodes
        for figure in figures:
            if figure.nodes and figure.devices_per_node == largest.devices_per_node:
                images_per_s[figure.nodes] = figure.value
        if len(images_per_s) > 1:
            name = _table_name(largest)
            tables.append(PublishedTable(name=name, report=largest.table, images_per_s=images_per_s))
    return tables


def _table_name(figure: Published) -> str:
    """Return the name of a figure's table, of what the report says of it: `oneflow PaddlePaddle V100 fp32 bs128`."""
    batch = f"bs{figure.batch_per_device}"
    parts = (figure.table, figure.framework_name, figure.accelerator, figure.precision, figure.strategy, batch)
    return " ".join(part for part in parts if part)


class _LostThroughput(NamedTuple):
    """The throughput that one published figure lost against its table's fewest nodes."""

    more_traffic: float  # 1 / fewest nodes - 1 / nodes: by how much more of the traffic leaves a node, as a share of it
    lost: float  # logarithm of linear scaling over the published figure
    doublings: float  # of the nodes


def learn(tables: Sequence[PublishedTable]) -> Loss:
    """Return how much throughput communication between nodes costs, by the published figures.

    Each figure is compared with that of its table's fewest nodes. What it lost is the logarithm of linear scaling over
    the figure: where twice the nodes do 1.9 times the images/s, log(2 / 1.9). On M nodes a share of 1 - 1 / M of the
    traffic leaves its node, so that from M0 nodes to M it grows by 1 / M0 - 1 / M. What a figure lost is divided by
    that, and the mean of these quotients is the loss.

    The spread is the standard deviation of figures about the model at one doubling of the nodes. Their variance is
    taken to grow by as much with each doubling: so the square of a deviation is divided by the figure's doublings.
    There must be two figures or more.
    """
    figures = []
    for table in tables:
        (fewest_nodes, base_rate), *on_more_nodes = table.images_per_s.items()  # ascending by nodes
        for nodes, rate in on_more_nodes:
            figures.append(
                _LostThroughput(
                    more_traffic=1 / fewest_nodes - 1 / nodes,
                    lost=math.log(nodes / fewest_nodes * base_rate / rate),
                    doublings=math.log2(nodes / fewest_nodes),
                )
            )
    mean = statistics.fmean(figure.lost / figure.more_traffic for figure in figures)
    squares = math.fsum((figure.lost - mean * figure.more_traffic) ** 2 / figure.doublings for figure in figures)
    return Loss(mean=mean, spread=math.sqrt(squares / (len(figures) - 1)), tables=len(tables))


def back_test(tables: Sequence[PublishedTable]) -> list[JsonObject]:
    """Return a prediction of every published figure beside the figure itself, as rows of plain values.

    Each is predicted from its table's fewest nodes, whose own figure has no row. The loss is that of the other reports
    alone, so that no figure is predicted by itself.

    `published`, `predicted`, `linear`, and the bounds `low` and `high` of the 95 % interval are images/s. `linear` is
    the baseline: as many times the images/s as nodes. `error` is a share of the published figure, and `covered` tells
    whether the interval holds it.
    """
    results = []
    for table in tables:
        loss = learn([other for other in tables if other.report != table.report])
        (fewest_nodes, base_rate), *on_more_nodes = table.images_per_s.items()
        for nodes, rate in on_more_nodes:
            predicted = base_rate * loss.ratio(fewest_nodes, nodes)
            low_factor, high_factor = loss.relative_interval_95(fewest_nodes, nodes)
            low = predicted * low_factor
            high = predicted * high_factor
            results.append(
                {
                    "table": table.name,
                    "report": table.report,
                    "nodes": nodes,
                    "published": rate,
                    "predicted": predicted,
                    "low": low,
                    "high": high,
                    "linear": base_rate * nodes / fewest_nodes,
                    "error": predicted / rate - 1,
                    "covered": low <= rate <= high,
                }
            )
    return results


def median_errors(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of the absolute errors of the model and of its baselines, each as a share."""
    return {
        "loss over (M-1)/M": _median_error(results, "predicted", 1.0),
        "0.95 x linear": _median_error(results, "linear", 0.95),
        "linear": _median_error(results, "linear", 1.0),
    }


def _median_error(results: Sequence[Mapping[str, Any]], prediction: str, factor: float) -> float:
    """Return the median of the absolute errors of a prediction, which is multiplied by `factor`."""
    return statistics.median(abs(factor * result[prediction] / result["published"] - 1) for result in results)


def back_test_lines(tested: Mapping[str, Any]) -> Iterator[str]:
    """Yield the back-test as lines: one for each figure, then how many are covered and the median errors.

    `tested` has the `results` of `back_test`, how many of them are `covered` by their intervals, and `median_errors`.
    """
    results = tested["results"]
    yield "From the fewest nodes of each published table to more, by what the other reports lost"
    form = "  {table:<60} {nodes:>2} nodes  published {published:>9.1f}  predicted {predicted:>9.1f} "
    form += "({low:.0f} to {high:.0f})  {error:+.1%}"
    for result in results:
        line = form.format(**result)
        if not result["covered"]:
            line += "  outside its interval"
        yield line
    tables = {result["table"] for result in results}
    covered = f"{tested['covered']} within their 95 % interval"
    yield f"{len(results)} figures of {len(tables)} tables; {covered}. Median error:"
    for name, error in tested["median_errors"].items():
        yield f"  {error:6.2%}  {name}"
