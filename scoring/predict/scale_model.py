"""Throughput and time to train at node counts that are not at hand.

    images/s of M nodes = images/s of M0 nodes * M / M0 * exp(-loss * (1/M0 - 1/M))

M0 is the next smaller measured node count. (M-1)/M is the share of a ring all-reduce's traffic that leaves a node.
`loss` is the mean over the published figures, and their scatter about it, as it grows with each doubling of the nodes,
makes the interval. docs/scale-model.md has what did no better on figures that it had not seen.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compliance.official import convergence
from runlog import stats
from scoring.published.table import Published, by_devices
from scoring.record import InputError

RUNS = 5  # of a submission of ResNet-50
EPOCHS_PER_EVAL = 4


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Log of the throughput lost to communication between nodes."""

    mean: float
    spread: float  # standard deviation of a figure's logarithm about the model at twice the nodes
    tables: int  # that they are of: figures of one table are no independent witnesses

    def ratio(self, base: int, nodes: int) -> float:
        """Throughput on `nodes` as a multiple of that on `base`."""
        return nodes / base * math.exp(-self.mean * (1 / base - 1 / nodes))

    def relative_interval_95(self, base: int, nodes: int, relative_error: float = 0.0) -> tuple[float, float]:
        """Factors on the throughput that bound it: the published scatter and the error of the measured figure."""
        doublings = abs(math.log2(nodes / base))
        scatter = self.spread * math.sqrt(doublings * (1 + 1 / self.tables))
        half = stats.t_quantile(self.tables - 1) * math.hypot(scatter, relative_error)
        return math.exp(-half), math.exp(half)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured shape."""

    nodes: int
    devices_per_node: int
    images_per_s: float
    relative_error: float | None  # standard error, as a share

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node


def predict(
    base: Point, loss: Loss, training: Training, *, nodes: int, batch_per_device: int, input_limit: float = math.inf
) -> dict[str, Any]:
    """Throughput and time to train at one node count, as plain values.

    Where a node's input cannot feed its devices the step waits for it: `input_limit` is its images/s. The interval is
    of the throughput at the batch of the base; where nothing is known of its error there is none. Time to train has one
    on the base's own nodes alone: on others the published times lay outside.
    """
    devices = nodes * base.devices_per_node
    global_batch = devices * batch_per_device
    free = base.images_per_s * loss.ratio(base.nodes, nodes)
    images_per_s = min(free, nodes * input_limit)
    step_s = global_batch / images_per_s
    low, high = loss.relative_interval_95(base.nodes, nodes, base.relative_error or 0.0)
    epochs = epochs_to_target(training, global_batch)
    minutes, why_not = None, epochs if isinstance(epochs, str) else ""
    if not isinstance(epochs, str):
        steps = math.ceil(training.train_samples / global_batch) * epochs
        evaluated = math.ceil(epochs / EPOCHS_PER_EVAL) * math.ceil(training.eval_samples / devices)  # by one device
        minutes = (steps * step_s + evaluated / training.eval_images_per_s_device) / 60
    known = nodes == base.nodes and high > low
    return {
        "nodes": nodes,
        "devices": devices,
        "global_batch": global_batch,
        "images_per_s": images_per_s,
        "interval_95": [images_per_s * low, images_per_s * high] if high > low else None,
        "step_time_s": step_s,
        "input_wait_s": step_s - global_batch / free,
        "epochs": None if why_not else epochs,
        "time_to_train_min": minutes,
        "time_to_train_95_min": [minutes / high, minutes / low] if minutes and known else None,
        "time_to_train_note": why_not,
    }


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published throughput of one system over its node counts, of as many devices a node."""

    name: str
    report: str
    images_per_s: Mapping[int, float]  # by nodes, ascending


def published_tables(rows: Sequence[Published]) -> list[PublishedTable]:
    """Tables with figures on several nodes, each with the shapes of as many devices a node as its largest."""
    tables = []
    for system in by_devices(row for row in rows if row.nodes):
        most = system[-1]
        per_node = (most.devices or 0) / (most.nodes or 1)
        same = {row.nodes: row.value for row in system if row.nodes and row.devices == row.nodes * per_node}
        if len(same) > 1:
            what = (most.table, most.framework_name, most.accelerator, most.precision, most.strategy)
            name = " ".join(filter(None, (*what, f"bs{most.batch_per_device}")))
            tables.append(PublishedTable(name=name, report=most.table, images_per_s=same))
    return tables


def learn(tables: Sequence[PublishedTable]) -> Loss:
    """The loss of every published figure from its table's fewest nodes."""
    figures = []  # share of the traffic that leaves a node more, logarithm of what is lost, doublings
    for table in tables:
        (base, base_rate), *more = table.images_per_s.items()
        for nodes, rate in more:
            lost = math.log(nodes / base * base_rate / rate)
            figures.append((1 / base - 1 / nodes, lost, math.log2(nodes / base)))
    mean = statistics.fmean(lost / share for share, lost, _ in figures)
    squares = math.fsum((lost - mean * share) ** 2 / doublings for share, lost, doublings in figures)
    return Loss(mean=mean, spread=math.sqrt(squares / (len(figures) - 1)), tables=len(tables))


# ---------------------------------------------------------------------------------------------- back-test


def back_test(tables: Sequence[PublishedTable]) -> list[dict[str, Any]]:
    """Predictions of all figures but those of the fewest nodes, each with the loss of the other reports alone.

    Figures are images/s; `linear` is the baseline, as many times the images/s as nodes, and `error` a share.
    """
    results = []
    for table in tables:
        loss = learn([other for other in tables if other.report != table.report])
        (base, base_rate), *more = table.images_per_s.items()
        for nodes, rate in more:
            predicted = base_rate * loss.ratio(base, nodes)
            low, high = (predicted * bound for bound in loss.relative_interval_95(base, nodes))
            of_table = {"table": table.name, "report": table.report, "nodes": nodes, "published": rate}
            bounds = {"predicted": predicted, "low": low, "high": high, "linear": base_rate * nodes / base}
            results.append(of_table | bounds | {"error": predicted / rate - 1, "covered": low <= rate <= high})
    return results


def median_errors(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median of the absolute errors, as a share: of the model and of its baselines."""
    ways = {"loss over (M-1)/M": ("predicted", 1.0), "0.95 x linear": ("linear", 0.95), "linear": ("linear", 1.0)}
    return {
        name: statistics.median(abs(factor * result[way] / result["published"] - 1) for result in results)
        for name, (way, factor) in ways.items()
    }


# ------------------------------------------------------------------------------------------- time to train


@dataclass(frozen=True, kw_only=True)
class Training:
    """What training to the target takes beside the step time."""

    epochs: float | None  # None: the reference convergence points of ResNet-50 at the global batch
    train_samples: int
    eval_samples: int
    eval_images_per_s_device: float
    imagenet: bool  # the reference convergence points hold for ResNet on ImageNet only


@functools.cache
def reference_epochs(global_batch: int) -> float | None:
    """Epochs to 75.9 % top-1 at a global batch by MLPerf's reference convergence points of ruleset 4.0.0.

    The points are pruned and interpolated as the checker does; None above the largest. Raises InputError where
    mlperf-logging, which holds them, is not installed.
    """
    try:
        points = convergence.reference_points("rcps_resnet.json", "4.0.0", RUNS)
    except ValueError as error:
        raise InputError(str(error)) from None
    found = convergence.point_at(global_batch, points, RUNS)
    return found[0].mean_epochs if found else None


def epochs_to_target(training: Training, global_batch: int) -> float | str:
    """Epochs at a global batch, or why they are not known."""
    if training.epochs is not None:
        return training.epochs
    if not training.imagenet:
        return "epochs to the target are not known for this model and data set: give --epochs"
    past = f"global batch {global_batch} is past the largest reference convergence point: give --epochs"
    return reference_epochs(global_batch) or past
