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
from typing import NamedTuple

from runlog import stats
from scoring.published.table import Published, systems_by_devices


@dataclass(frozen=True, kw_only=True)
class ScalingLoss:
    """The throughput lost to communication between nodes: `loss` in the formula of this module."""

    loss: float  # log(linear scaling / throughput), by the share of the all-reduce's traffic that leaves a node
    spread: float  # standard deviation of log(throughput) from the model: spread * sqrt(n) after n doublings of nodes
    tables: int  # how many published tables both are fitted to: figures of one table depend on each other

    def throughput_ratio(self, base_nodes: int, nodes: int) -> float:
        """Return the throughput on one number of nodes as a multiple of the throughput on another.

        Args:
            base_nodes: The number of nodes whose throughput is known.
            nodes: The number of nodes to predict.

        Returns:
            The ratio: nodes / base_nodes * exp(-loss * (1 / base_nodes - 1 / nodes)).
        """
        return nodes / base_nodes * math.exp(-self.loss * (1 / base_nodes - 1 / nodes))

    def relative_interval_95(
        self, base_nodes: int, nodes: int, measured_half_width: float = 0.0
    ) -> tuple[float, float]:
        """Return the 95 % interval of a predicted throughput as two factors (low, high) of the prediction.

        The factors 0.9 and 1.11, for example, are an interval from 90 to 111 % of the prediction.

        Args:
            base_nodes: The number of nodes whose throughput was measured.
            nodes: The predicted number of nodes.
            measured_half_width: Half the width of the 95 % interval of the measured throughput on the scale of
                logarithms. On the measured number of nodes, the result has the same width.
        """
        error_of_model = self._error_of_model(doublings=abs(math.log2(nodes / base_nodes)))
        freedom = self.tables - 1  # not the number of figures, because those of one table depend on each other
        t_of_95_percent = stats.t_quantile(freedom)  # by default the 0.975 quantile, for an interval of 95 %
        half_width_of_model = t_of_95_percent * error_of_model
        # Independent errors add up as their squares
        half_width_of_log = math.hypot(half_width_of_model, measured_half_width)
        return math.exp(-half_width_of_log), math.exp(half_width_of_log)

    def _error_of_model(self, doublings: float) -> float:
        """Return the standard error of log(throughput) that the scaling model adds when the nodes are doubled n times.

        It is the root of n * (spread**2 + spread**2 / tables). The first term is how figures scatter about the model.
        The second one is there because `loss` is only an estimate from so many tables.

        Args:
            doublings: n, such as 3 from 1 to 8 nodes. It may be a fraction.
        """
        return self.spread * math.sqrt(doublings * (1 + 1 / self.tables))


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published throughput of one system over its node counts, with equally many devices on each node."""

    name: str
    report: str
    images_per_s: Mapping[int, float]  # by nodes, ascending


def published_tables(rows: Sequence[Published]) -> list[PublishedTable]:
    """Return the throughputs of published systems by their numbers of nodes, a table for each system.

    A system that was measured on a single number of nodes has no table. All nodes of a table have the same number of
    devices. A system that was measured on 1 node of 4 devices, on 1 node of 8 and on 2 nodes of 8 gets the table
    {1: 2450.0, 2: 4800.0}, for example, of its nodes of 8 devices.

    Args:
        rows: The published figures. Those without a number of nodes are left out.
    """
    rows_with_nodes = [row for row in rows if row.nodes]
    tables = []
    for figures in systems_by_devices(rows_with_nodes):  # figures of one system, by ascending devices
        on_most_devices = figures[-1]
        devices_per_node = on_most_devices.devices_per_node  # of all figures in the table
        figures_on_equal_nodes = [figure for figure in figures if figure.devices_per_node == devices_per_node]
        images_per_s = _images_per_s_by_nodes(figures_on_equal_nodes)
        shows_scaling = len(images_per_s) > 1
        if shows_scaling:
            name = _table_name(on_most_devices)
            report = on_most_devices.table  # the field `table` of a published figure names its report
            tables.append(PublishedTable(name=name, report=report, images_per_s=images_per_s))
    return tables


def _images_per_s_by_nodes(figures: Sequence[Published]) -> dict[int, float]:
    """Return published throughputs by their numbers of nodes, in the order of `figures`.

    Args:
        figures: The published figures of one system, all with a known number of nodes.
    """
    images_per_s: dict[int, float] = {}
    for figure in figures:
        assert figure.nodes, "rows without it are left out"
        images_per_s[figure.nodes] = figure.value
    return images_per_s


def _table_name(figure: Published) -> str:
    """Return a name for the table of a figure, such as "oneflow PaddlePaddle V100 fp32 bs128".

    Args:
        figure: A published figure. An accelerator, precision, strategy or batch that its report does not say is left
            out.
    """
    batch = f"bs{figure.batch_per_device}" if figure.batch_per_device else None
    parts = (figure.table, figure.framework_name, figure.accelerator, figure.precision, figure.strategy, batch)
    return " ".join(part for part in parts if part)


class _LostThroughput(NamedTuple):
    """The throughput that one published figure lost, compared with the fewest nodes of its table."""

    added_traffic_share: float  # between nodes: 1 / M0 - 1 / M, for M nodes and a table whose fewest nodes are M0
    log_lost: float  # log(linear scaling / published figure); by the model it is loss * added_traffic_share
    doublings: float  # log2(M / M0)


def fit_scaling_loss(tables: Sequence[PublishedTable]) -> ScalingLoss:
    """Return the scaling model fitted to published throughputs: its one coefficient, `loss`, and the figures' spread.

    The model predicts the throughput of M nodes from that of M0, the fewest nodes of a table:

        images/s of M nodes = images/s of M0 nodes * M / M0 * exp(-loss * (1 / M0 - 1 / M))

    Args:
        tables: Published throughputs by number of nodes, one table for each system. Together they must have at least
            two figures on more nodes than the fewest of their table.
    """
    figures = _lost_throughputs(tables)  # for each figure on more than M0 nodes: how far it is below linear scaling
    assert len(figures) >= 2, "a spread takes two figures"
    loss = _mean_of_losses(figures)  # each figure gives a loss by the formula
    spread = _spread_per_doubling(figures, loss)  # how far the figures scatter about the model with this loss
    return ScalingLoss(loss=loss, spread=spread, tables=len(tables))


def _lost_throughputs(tables: Sequence[PublishedTable]) -> list[_LostThroughput]:
    """Return how much throughput each published figure lost, compared with linear scaling.

    Linear scaling starts from the figure on the fewest nodes of the table. That figure itself is left out.

    Args:
        tables: Published throughputs, one table for each system. `images_per_s` maps the number of nodes to images/s,
            such as {1: 1000.0, 2: 1940.0}.
    """
    figures = []
    for table in tables:
        base_nodes = min(table.images_per_s)
        base_rate = table.images_per_s[base_nodes]
        for nodes, rate in table.images_per_s.items():
            if nodes > base_nodes:
                figures.append(_lost_throughput(base_nodes, base_rate, nodes, rate))
    return figures


def _lost_throughput(base_nodes: int, base_rate: float, nodes: int, rate: float) -> _LostThroughput:
    """Return how much throughput a system lost by communication when it grew from its fewest nodes to more.

    Args:
        base_nodes: The fewest nodes that the system was measured on.
        base_rate: The system's images/s on these nodes.
        nodes: The greater number of nodes.
        rate: The system's images/s on this number.
    """
    # On n nodes, the share 1 - 1 / n of a ring all-reduce's traffic leaves its node. From `base_nodes` to `nodes` it
    # grows by (1 - 1 / nodes) - (1 - 1 / base_nodes).
    added_traffic_share = 1 / base_nodes - 1 / nodes
    linear_scaling = nodes / base_nodes * base_rate
    return _LostThroughput(
        added_traffic_share=added_traffic_share,
        log_lost=math.log(linear_scaling / rate),  # 0: nothing is lost
        doublings=math.log2(nodes / base_nodes),  # 3 from 1 to 8 nodes
    )


def _mean_of_losses(figures: Sequence[_LostThroughput]) -> float:
    """Return the mean of the `loss` that each figure alone would have, by the model."""
    return statistics.fmean(figure.log_lost / figure.added_traffic_share for figure in figures)


def _spread_per_doubling(figures: Sequence[_LostThroughput], loss: float) -> float:
    """Return the standard deviation of published figures about the scaling model, per doubling of nodes.

    Args:
        figures: Two or more published figures, each compared with the fewest nodes of its table.
        loss: The coefficient of the model, fitted to the same figures.

    Returns:
        The deviation of the natural logarithms of the figures, so 0.02 is about 2 %.
    """
    variances_per_doubling = []
    for figure in figures:
        log_lost_by_model = loss * figure.added_traffic_share
        departure = figure.log_lost - log_lost_by_model
        # The variance is assumed to grow with each doubling: after 3 doublings it is 3 times that of one.
        variances_per_doubling.append(departure**2 / figure.doublings)
    # Divided by n - 1 and not by n, because `loss` is fitted to the same figures.
    variance_per_doubling = math.fsum(variances_per_doubling) / (len(figures) - 1)
    return math.sqrt(variance_per_doubling)


@dataclass(frozen=True, kw_only=True)
class BackTested:
    """A published figure and the prediction of it, all in images/s. The fields are those of the JSON output."""

    table: str
    report: str
    nodes: int
    published: float
    predicted: float
    low: float  # end of the 95 % interval of the prediction
    high: float
    linear: float  # by linear scaling, as a baseline
    error: float  # of the prediction, as a share of the published figure
    covered: bool  # whether the interval contains the published figure


def back_test(tables: Sequence[PublishedTable]) -> list[BackTested]:
    """Test a scaling model: predict published throughputs on more nodes from those on the fewest nodes.

    The model's one coefficient, the scaling loss, is the throughput lost to communication between nodes. For each
    prediction it is fitted to the tables of other reports only, so no report helps to predict its own figures.

    Args:
        tables: Published throughputs, one table for each system. `images_per_s` maps the number of nodes to images/s,
            such as {1: 1000.0, 2: 1940.0}. Whichever report is left out, the others must have at least two figures to
            fit, not counting those on the fewest nodes of their table.

    Returns:
        One result for each figure on more than its table's fewest nodes.
    """
    results = []
    for table in tables:
        tables_of_other_reports = [other for other in tables if other.report != table.report]
        scaling_loss = fit_scaling_loss(tables_of_other_reports)
        fewest_nodes = min(table.images_per_s)
        for nodes in table.images_per_s:
            if nodes > fewest_nodes:
                results.append(_back_tested(table, nodes, scaling_loss))
    return results


def _back_tested(table: PublishedTable, nodes: int, scaling_loss: ScalingLoss) -> BackTested:
    """Return a published throughput and its prediction from the table's fewest nodes.

    Args:
        table: The published throughputs of one system, by number of nodes.
        nodes: The number of nodes to predict. The table must have a figure for it.
        scaling_loss: The scaling model, fitted to the tables of other reports.

    Returns:
        The published and the predicted images/s, with the 95 % interval, the relative error, and linear scaling as a
        baseline.
    """
    published = table.images_per_s[nodes]
    fewest_nodes = min(table.images_per_s)
    base_rate = table.images_per_s[fewest_nodes]
    predicted = base_rate * scaling_loss.throughput_ratio(fewest_nodes, nodes)
    low_factor, high_factor = scaling_loss.relative_interval_95(fewest_nodes, nodes)
    low = predicted * low_factor
    high = predicted * high_factor
    return BackTested(
        table=table.name,
        report=table.report,
        nodes=nodes,
        published=published,
        predicted=predicted,
        low=low,
        high=high,
        linear=base_rate * nodes / fewest_nodes,
        error=predicted / published - 1,
        covered=low <= published <= high,
    )


def median_errors(results: Sequence[BackTested]) -> dict[str, float]:
    """Return the median absolute error of the scaling model and of two baselines, by name; 0.03 is 3 %.

    - "loss over (M-1)/M": the scaling model. The logarithm of what it loses grows in proportion to (M - 1) / M, the
      share of a ring all-reduce's traffic that leaves its node.
    - "0.95 x linear": 95 % of linear scaling
    - "linear": linear scaling, where twice the nodes have twice the throughput

    Args:
        results: Published figures, each predicted by the scaling model and by linear scaling.
    """
    published = [result.published for result in results]
    linear = [result.linear for result in results]
    return {
        "loss over (M-1)/M": _median_error([result.predicted for result in results], published),
        "0.95 x linear": _median_error([0.95 * rate for rate in linear], published),
        "linear": _median_error(linear, published),
    }


def _median_error(predicted: Sequence[float], published: Sequence[float]) -> float:
    """Return the median absolute error of predictions, as a share of the published figures.

    Args:
        predicted: The predictions.
        published: The published figures, in the same order and unit.
    """
    return statistics.median(abs(rate / figure - 1) for rate, figure in zip(predicted, published, strict=True))


def back_test_lines(results: Sequence[BackTested]) -> Iterator[str]:
    """Yield the test of the scaling model on published figures as lines for a reader.

    They are a heading, a line for each predicted figure, a line of counts, and the median errors.

    A system's throughput on more nodes was predicted from its throughput on the fewest nodes. How much throughput is
    lost between nodes was learnt from other reports only.

    Args:
        results: Published throughputs with their predictions, as `back_test` returns them.
    """
    yield "From the fewest nodes of each published table to more, by what the other reports lost"
    for result in results:
        yield _line_of(result)
    tables = len({result.table for result in results})
    covered = sum(result.covered for result in results)
    yield f"{len(results)} figures of {tables} tables; {covered} within their 95 % interval. Median error:"
    for name, error in median_errors(results).items():
        yield f"  {error:6.2%}  {name}"


def _line_of(result: BackTested) -> str:
    """Return the line of a published figure: its prediction, the interval, the error, and whether it lies outside.

    Args:
        result: The published figure and its prediction.
    """
    line = (
        f"  {result.table:<60} {result.nodes:>2} nodes  published {result.published:>9.1f}  "
        f"predicted {result.predicted:>9.1f} ({result.low:.0f} to {result.high:.0f})  {result.error:+.1%}"
    )
    return line if result.covered else f"{line}  outside its interval"
