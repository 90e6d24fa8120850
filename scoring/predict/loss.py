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
from scoring.published.table import Published, by_devices


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Log of the throughput lost to communication between nodes."""

    mean: float
    spread: float  # standard deviation of a figure's logarithm about the model at twice the nodes
    tables: int  # how many tables it is learnt from: figures of one table are no independent witnesses

    def ratio(self, base: int, nodes: int) -> float:
        """Return the throughput on `nodes` as a multiple of the one on `base` nodes."""
        return nodes / base * math.exp(-self.mean * (1 / base - 1 / nodes))

    def relative_interval_95(self, base: int, nodes: int, relative_error: float = 0.0) -> tuple[float, float]:
        """Return the two factors on the throughput that bound it, from the published scatter and the figure's error."""
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
    """Return the tables with figures on several nodes.

    Each holds the shapes that have as many devices a node as its largest one.
    """
    tables = []
    for system in by_devices(row for row in rows if row.nodes):
        largest = system[-1]
        devices_per_node = (largest.devices or 0) / (largest.nodes or 1)
        images_per_s: dict[int, float] = {}
        for row in system:
            if row.nodes and row.devices == row.nodes * devices_per_node:
                images_per_s[row.nodes] = row.value
        if len(images_per_s) > 1:
            batch = f"bs{largest.batch_per_device}"
            parts = (largest.table, largest.framework_name, largest.accelerator, largest.precision, largest.strategy)
            name = " ".join(part for part in (*parts, batch) if part)
            tables.append(PublishedTable(name=name, report=largest.table, images_per_s=images_per_s))
    return tables


class _LostThroughput(NamedTuple):
    """The throughput that one published figure lost against its table's fewest nodes."""

    share: float  # by how much the share of the traffic that leaves a node is larger
    lost: float  # logarithm of the throughput that is lost
    doublings: float  # of the nodes


def learn(tables: Sequence[PublishedTable]) -> Loss:
    """Return the loss that fits every published figure, each against its table's fewest nodes."""
    figures = []
    for table in tables:
        (base, base_rate), *more = table.images_per_s.items()
        for nodes, rate in more:
            share = 1 / base - 1 / nodes
            lost = math.log(nodes / base * base_rate / rate)
            figures.append(_LostThroughput(share, lost, math.log2(nodes / base)))
    mean = statistics.fmean(figure.lost / figure.share for figure in figures)
    squares = math.fsum((figure.lost - mean * figure.share) ** 2 / figure.doublings for figure in figures)
    return Loss(mean=mean, spread=math.sqrt(squares / (len(figures) - 1)), tables=len(tables))


def back_test(tables: Sequence[PublishedTable]) -> list[dict[str, Any]]:
    """Predict all figures but those of the fewest nodes, each with the loss of the other reports alone.

    Figures are images/s; `linear` is the baseline, as many times the images/s as nodes, and `error` a share.
    """
    results = []
    for table in tables:
        loss = learn([other for other in tables if other.report != table.report])
        (base, base_rate), *more = table.images_per_s.items()
        for nodes, rate in more:
            predicted = base_rate * loss.ratio(base, nodes)
            low_factor, high_factor = loss.relative_interval_95(base, nodes)
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
                    "linear": base_rate * nodes / base,
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
    """Yield the back-test as lines: one for each figure, then how many are covered and the median errors."""
    results = tested["results"]
    yield "From the fewest nodes of each published table to more, by what the other reports lost"
    form = "  {table:<60} {nodes:>2} nodes  published {published:>9.1f}  predicted {predicted:>9.1f} "
    form += "({low:.0f} to {high:.0f})  {error:+.1%}"
    for result in results:
        inside = "" if result["covered"] else "  outside its interval"
        yield form.format(**result) + inside
    tables = {result["table"] for result in results}
    covered = f"{tested['covered']} within their 95 % interval"
    yield f"{len(results)} figures of {len(tables)} tables; {covered}. Median error:"
    for name, error in tested["median_errors"].items():
        yield f"  {error:6.2%}  {name}"
