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
from scoring.published.table import Published, systems_by_devices


@dataclass(frozen=True, kw_only=True)
class ScalingLoss:
    """The throughput lost to communication between nodes: `loss` in the formula of this module."""

    loss: float  # log(linear scaling / throughput), by the share of the all-reduce's traffic that leaves a node
    spread: float  # standard deviation of log(throughput) from the model, after one doubling of the nodes
    tables: int  # how many published tables both are fitted to: figures of one table depend on each other

    def throughput_ratio(self, base_nodes: int, nodes: int) -> float:
        """Return the throughput on `nodes` nodes as a multiple of the throughput on `base_nodes` nodes."""
        return nodes / base_nodes * math.exp(-self.loss * (1 / base_nodes - 1 / nodes))

    def relative_interval_95(self, base_nodes: int, nodes: int, relative_error: float = 0.0) -> tuple[float, float]:
        """Return the 95 % interval of a predicted throughput as two factors (low, high) of the prediction.

        `relative_error` is the standard error of the throughput measured on `base_nodes`, as a share of it.

        The interval is that of log(throughput) by Student's t. The variance is the sum of three:

        - `spread`² for each doubling from `base_nodes` to `nodes`: a single figure scatters about the model.
        - `spread`² / `tables` for each doubling: `loss` has an error, because it is fitted to only `tables` published
          tables. We assume that this error grows with the doublings too.
        - `relative_error`².

        If all three are 0, both factors are 1.
        """
        doublings = abs(math.log2(nodes / base_nodes))
        # 1: scatter of single figures; 1 / tables: error of the fitted `loss`.
        model_error = self.spread * math.sqrt(doublings * (1 + 1 / self.tables))
        total_error = math.hypot(model_error, relative_error)
        half_width = stats.t_quantile(self.tables - 1) * total_error  # of the interval of log(throughput)
        return math.exp(-half_width), math.exp(half_width)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published throughput of one system over its node counts, with equally many devices on each node."""

    name: str
    report: str
    images_per_s: Mapping[int, float]  # by nodes, ascending


def published_tables(rows: Sequence[Published]) -> list[PublishedTable]:
    """Return a table for each published system that was measured on at least two numbers of nodes.

    All figures of a table have the same number of devices on each node: that of the system's largest measurement. So
    only the number of nodes differs. The system's other figures are left out, and so are rows that do not say their
    nodes.
    """
    rows_with_nodes = [row for row in rows if row.nodes]
    tables = []
    for figures in systems_by_devices(rows_with_nodes):  # figures of one system, by ascending devices
        largest = figures[-1]
        images_per_s: dict[int, float] = {}  # by nodes
        for figure in figures:
            assert figure.nodes, "rows without it are left out above"
            if figure.devices_per_node == largest.devices_per_node:
                images_per_s[figure.nodes] = figure.value
        if len(images_per_s) > 1:
            name = _table_name(largest)
            tables.append(PublishedTable(name=name, report=largest.table, images_per_s=images_per_s))
    return tables


def _table_name(figure: Published) -> str:
    """Return a name for the table of a figure, such as `oneflow PaddlePaddle V100 fp32 bs128`.

    What the report does not say is left out.
    """
    batch = f"bs{figure.batch_per_device}"
    parts = (figure.table, figure.framework_name, figure.accelerator, figure.precision, figure.strategy, batch)
    return " ".join(part for part in parts if part)


class _LostThroughput(NamedTuple):
    """The throughput that one published figure lost, compared with the fewest nodes of its table."""

    added_traffic_share: float  # 1 / fewest nodes - 1 / nodes: the share of the traffic that now leaves a node too
    log_loss: float  # log(linear scaling / published figure)
    doublings: float  # of the nodes


def fit_scaling_loss(tables: Sequence[PublishedTable]) -> ScalingLoss:
    """Fit the throughput lost to communication between nodes to published figures, by this model:

        log(linear scaling / figure on M nodes) = loss * (1 / M0 - 1 / M)

    M0 is the fewest nodes of the figure's table, and linear scaling is M / M0 times the figure on M0 nodes. In a ring
    all-reduce, (M - 1) / M of the traffic leaves a node. From M0 to M nodes this share grows by 1 / M0 - 1 / M.

    - `loss`: each figure on more than M0 nodes gives one estimate, by solving the model. The result is their mean.
    - `spread`: how far log(figure) typically departs from the model when the nodes double once, as a standard
      deviation. The variance is assumed to grow in proportion to the doublings.

    All tables together must hold at least two figures on more than M0 nodes.
    """
    figures = []
    for table in tables:
        (fewest_nodes, base_rate), *on_more_nodes = table.images_per_s.items()  # ascending by nodes
        for nodes, rate in on_more_nodes:
            figures.append(
                _LostThroughput(
                    added_traffic_share=1 / fewest_nodes - 1 / nodes,
                    log_loss=math.log(nodes / fewest_nodes * base_rate / rate),
                    doublings=math.log2(nodes / fewest_nodes),
                )
            )
    loss = statistics.fmean(figure.log_loss / figure.added_traffic_share for figure in figures)
    squares_per_doubling = []  # the variance is assumed to grow with the doublings: each estimates that of one
    for figure in figures:
        deviation = figure.log_loss - loss * figure.added_traffic_share
        squares_per_doubling.append(deviation**2 / figure.doublings)
    variance_of_doubling = math.fsum(squares_per_doubling) / (len(figures) - 1)  # less one: the loss is fitted
    return ScalingLoss(loss=loss, spread=math.sqrt(variance_of_doubling), tables=len(tables))


def back_test(tables: Sequence[PublishedTable]) -> list[JsonObject]:
    """Predict each published throughput from that on its table's fewest nodes, and return how far off it is.

    The result has a row of plain values for each figure, except those on the fewest nodes. The scaling loss is fitted
    to the other reports only, so that no report takes part in its own prediction.

    - `published`, `predicted`: images/s
    - `low`, `high`: ends of the 95 % interval of the prediction, in images/s
    - `linear`: images/s by linear scaling, as a baseline
    - `error`: error of the prediction as a share of the published figure
    - `covered`: whether the interval contains the published figure
    """
    results = []
    for table in tables:
        # No report takes part in its own prediction.
        scaling_loss = fit_scaling_loss([other for other in tables if other.report != table.report])
        (fewest_nodes, base_rate), *on_more_nodes = table.images_per_s.items()  # ascending by nodes
        for nodes, rate in on_more_nodes:
            predicted = base_rate * scaling_loss.throughput_ratio(fewest_nodes, nodes)
            low_factor, high_factor = scaling_loss.relative_interval_95(fewest_nodes, nodes)
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
                    "linear": base_rate * nodes / fewest_nodes,  # a baseline
                    "error": predicted / rate - 1,
                    "covered": low <= rate <= high,
                }
            )
    return results


def median_errors(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median absolute error of the model and of two baselines, by name; 0.03 is 3 %.

    `results` are the rows of `back_test`.
    """
    return {
        "loss over (M-1)/M": _median_error(results, "predicted", 1.0),
        "0.95 x linear": _median_error(results, "linear", 0.95),
        "linear": _median_error(results, "linear", 1.0),
    }


def _median_error(results: Sequence[Mapping[str, Any]], column: str, factor: float) -> float:
    """Return the median absolute error of `factor` times the values of a column, as a share of the published ones."""
    errors: list[float] = [abs(factor * result[column] / result["published"] - 1) for result in results]
    return statistics.median(errors)


def back_test_lines(tested: Mapping[str, Any]) -> Iterator[str]:
    """Yield a back-test as lines: a heading, a line for each predicted figure, a line of counts, the median errors.

    The heading says how each figure is predicted: from the fewest nodes of its table, with a scaling loss that is
    fitted to the other reports. A figure outside the 95 % interval of its prediction is marked.

    `tested` has the keys `results` and `median_errors`, which hold what the functions `back_test` and `median_errors`
    returned, and `covered`: how many of the figures are inside their intervals.
    """
    results = tested["results"]
    yield "From the fewest nodes of each published table to more, by what the other reports lost"
    line_format = (
        "  {table:<60} {nodes:>2} nodes  published {published:>9.1f}  predicted {predicted:>9.1f} "
        "({low:.0f} to {high:.0f})  {error:+.1%}"
    )
    for result in results:
        line = line_format.format(**result)
        if not result["covered"]:
            line += "  outside its interval"
        yield line
    table_names = {result["table"] for result in results}
    covered = f"{tested['covered']} within their 95 % interval"
    yield f"{len(results)} figures of {len(table_names)} tables; {covered}. Median error:"
    for name, error in tested["median_errors"].items():
        yield f"  {error:6.2%}  {name}"
