"""Throughput and time to train at node counts that are not at hand.

The step time of M nodes with g devices each is modelled as

    t(M, g) = (c + x(M, g)) * (M / M0) ** loss

c: what one device needs for a step (forward, backward, update, the wait for its input), seconds;
x: the all-reduce of S bytes that does not hide behind the backward pass, seconds:
    hierarchical   2 (g-1)/g S / B_node  +  2 (M-1)/M S / B_net  +  2 (M-1) messages latency
    ring           2 (N-1)/N S / min(B_node, B_net)  +  2 (N-1) messages latency,  N = M g, more than one node
loss: what no bandwidth explains (stragglers, jitter, shared storage), per power of the node count, from the published
    tables, where no several nodes were measured; M0 is the greatest node count that was measured.

The traffic terms are those of ring all-reduce (Patarasuk and Yuan, 2009; NCCL's notes on bus bandwidth); c, B_node
and, where several nodes were measured, B_net are fitted; else B_net is the network's line rate. Nothing is assumed to
overlap between nodes. The fit needs two device counts at least: one point cannot tell c from x.
"""

from __future__ import annotations

import importlib.resources
import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scoring.published import Published
from scoring.record import InputError

GIGABIT_PER_S = 1e9 / 8  # bytes/s
TOPOLOGIES = ("hierarchical", "ring")

# Trainable parameters: torchvision's ResNet-50; PaddleSeg's FCN-HRNetW18 with its batch norm statistics.
PARAMETERS = {r"resnet(_?50|v15|$)": 25_557_032, r"hrnet_?w18": 9_675_306}

# The reports with multi-node figures name 100 Gb/s InfiniBand, one adapter a node.
PUBLISHED_NETWORK_GBIT_S = 100.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured shape."""

    nodes: int
    devices_per_node: int
    step_time_s: float
    relative_error: float | None = None  # standard error of the mean step time over the runs, as a share of it

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node


@dataclass(frozen=True, kw_only=True)
class Network:
    """What the model knows beforehand of the network between nodes."""

    bandwidth_bytes_per_s: float  # one node, one direction
    latency_s: float = 5e-6  # one message: NCCL's few microseconds over InfiniBand
    messages: int = 1  # all-reduces a step


@dataclass(frozen=True, kw_only=True)
class Model:
    """The fitted model; see the module's text for the symbols."""

    topology: str
    all_reduce_bytes: float
    network: Network
    compute_s: float
    node_s_per_byte: float
    net_s_per_byte: float
    net_fitted: bool
    measured_nodes: int  # M0
    devices_per_node: frozenset[int]  # that were measured; others are not predicted where x(g) is unknown
    fit_relative_error: float  # standard error of the fitted step times, as a share
    loss: Loss

    def all_reduce_s(self, nodes: int, devices_per_node: int) -> tuple[float, float]:
        """Exposed all-reduce time in seconds, within a node and between nodes."""
        size, g, n = self.all_reduce_bytes, devices_per_node, nodes * devices_per_node
        within = 2 * (g - 1) / g * size * self.node_s_per_byte
        if nodes == 1:
            return within, 0.0
        if self.topology == "ring":
            slowest = max(self.node_s_per_byte, self.net_s_per_byte)
            whole = 2 * (n - 1) / n * size * slowest + 2 * (n - 1) * self.network.messages * self.network.latency_s
            return min(within, whole), max(0.0, whole - within)
        between = 2 * (nodes - 1) / nodes * size * self.net_s_per_byte
        return within, between + 2 * (nodes - 1) * self.network.messages * self.network.latency_s

    def step_time_s(self, nodes: int, devices_per_node: int) -> float:
        """Predicted step time in seconds."""
        more_nodes = max(1.0, nodes / self.measured_nodes)
        exposed = sum(self.all_reduce_s(nodes, devices_per_node))
        return (self.compute_s + exposed) * more_nodes**self.loss.mean

    def relative_interval_95(self, nodes: int) -> tuple[float, float]:
        """Factors on the throughput that bound it with 95 % confidence: the fit's error and that of the loss."""
        doublings = math.log(max(1.0, nodes / self.measured_nodes))
        # A new table's loss scatters by `spread` about a mean that is itself known from `tables` tables only.
        model = self.loss.spread * math.sqrt(1 + 1 / self.loss.tables) * doublings
        half = self.loss.t_95 * math.hypot(model, self.fit_relative_error)
        return math.exp(-half), math.exp(half)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Exponent by which measured step times exceed the network model, over the published tables."""

    mean: float
    spread: float  # standard deviation over tables
    tables: int

    @property
    def t_95(self) -> float:
        """Two-sided 95 % quantile of Student's t for this many tables."""
        from scipy.stats import t

        return float(t.ppf(0.975, self.tables - 1))


NO_LOSS = Loss(mean=0.0, spread=0.0, tables=2)


def fit(
    points: Sequence[Point], *, all_reduce_bytes: float, network: Network, topology: str, loss: Loss = NO_LOSS
) -> Model:
    """The model through `points`, by least squares on relative step times with no negative term.

    Raises InputError for fewer than two device counts: one point cannot tell computation from communication.
    """
    import numpy as np
    from scipy.optimize import nnls

    counts = {point.devices for point in points}
    if len(counts) < 2:
        raise InputError(
            f"only one device count measured ({', '.join(map(str, sorted(counts))) or 'none'}): refusing to "
            "extrapolate from one point; give runs of at least two device counts"
        )
    line_rate = 1 / network.bandwidth_bytes_per_s
    net_fitted = any(point.nodes > 1 for point in points)
    start = Model(
        topology="hierarchical",
        all_reduce_bytes=all_reduce_bytes,
        network=network,
        compute_s=0.0,
        node_s_per_byte=1.0,
        net_s_per_byte=1.0,
        net_fitted=net_fitted,
        measured_nodes=max(point.nodes for point in points),
        devices_per_node=frozenset(point.devices_per_node for point in points),
        fit_relative_error=0.0,
        # A bandwidth fitted between nodes already holds what bandwidth does not explain; the scatter stays.
        loss=replace(loss, mean=0.0) if net_fitted else loss,
    )
    # One row a point: t = c + (within) / B_node + (between) / B_net + latency, all divided by t.
    no_latency = replace(start, network=replace(network, latency_s=0.0))
    rows, wanted = [], []
    for point in points:
        within, between = no_latency.all_reduce_s(point.nodes, point.devices_per_node)
        latency_s = start.all_reduce_s(point.nodes, point.devices_per_node)[1] - between
        rows.append([1 / point.step_time_s, within / point.step_time_s, between / point.step_time_s])
        wanted.append(1 - latency_s / point.step_time_s)
    # Devices a node that never vary cannot be told from computation: their exchange stays within c.
    within_fitted = len({point.devices_per_node for point in points}) > 1
    used = [0] + [1] * within_fitted + [2] * net_fitted
    matrix = np.array(rows)[:, used]
    scale = matrix.max(axis=0)
    solution, _ = nnls(matrix / scale, np.clip(np.array(wanted), 0, None))
    coefficients = dict(zip(used, solution / scale, strict=True))
    left_over = matrix @ (solution / scale) - np.array(wanted)
    freedom = len(points) - len(used)
    scatter = math.sqrt(float(left_over @ left_over) / freedom) if freedom > 0 else 0.0
    measured = [point.relative_error for point in points if point.relative_error is not None]
    return replace(
        start,
        topology=topology,
        compute_s=float(coefficients[0]),
        node_s_per_byte=float(coefficients.get(1, 0.0)),
        net_s_per_byte=float(coefficients.get(2, line_rate)),
        fit_relative_error=math.hypot(scatter, max(measured, default=0.0)),
    )


# ---------------------------------------------------------------------------------------------- back-test


@dataclass(frozen=True, kw_only=True)
class BackTest:
    """One published figure against the model fitted on the smaller shapes of its table."""

    table: str
    report: str
    fitted_on: tuple[int, ...]  # devices
    nodes: int
    devices: int
    published: float  # images/s
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Predicted against published, as a share."""
        return self.predicted / self.published - 1

    @property
    def covered(self) -> bool:
        """Whether the 95 % interval holds the published figure."""
        return self.low <= self.published <= self.high


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published throughput of one system over its shapes."""

    name: str
    report: str
    model: str
    precision: str | None
    batch_per_device: int
    points: tuple[Point, ...]


def published_tables(rows: Sequence[Published]) -> list[PublishedTable]:
    """Tables with figures on several nodes; a report's copy of another's figures is left out."""
    found: dict[tuple[object, ...], dict[int, Published]] = {}
    for row in rows:
        copied = row.note is not None and row.note.startswith("copied")
        if row.metric != "throughput" or not row.nodes or not row.devices or copied:
            continue
        family = row.framework.split(" 2.5")[0]
        key = (row.table, family, row.accelerator, row.precision, row.strategy, row.batch_per_device, row.model)
        found.setdefault(key, {})[row.devices] = row
    tables = []
    for system, by_devices in found.items():
        row = next(iter(by_devices.values()))
        batch = row.batch_per_device
        if batch is None or max(other.nodes or 1 for other in by_devices.values()) < 2:
            continue
        name = " ".join(str(part) for part in system[:5] if part)
        points = [
            Point(
                nodes=other.nodes or 1,
                devices_per_node=devices // (other.nodes or 1),
                step_time_s=devices * batch / other.value,
            )
            for devices, other in sorted(by_devices.items())
        ]
        tables.append(
            PublishedTable(
                name=f"{name} bs{batch}",
                report=row.table,
                model=row.model,
                precision=row.precision,
                batch_per_device=batch,
                points=tuple(points),
            )
        )
    return tables


def gradient_bytes(model: str | None, precision: str | None) -> float:
    """Bytes that one step's all-reduce sums: two a parameter where the gradients are FP16 (O2), else four.

    Raises InputError for a model whose size is not known.
    """
    for pattern, parameters in PARAMETERS.items():
        if model and re.search(pattern, model, re.IGNORECASE):
            return parameters * (2.0 if precision == "amp_o2" else 4.0)
    raise InputError(f"model {model!r}: its number of parameters is not known; give --all-reduce-mib")


def _table_model(table: PublishedTable, fitted_on: tuple[int, ...], topology: str, loss: Loss) -> Model:
    return fit(
        [point for point in table.points if point.devices in fitted_on],
        all_reduce_bytes=gradient_bytes(table.model, table.precision),
        network=Network(bandwidth_bytes_per_s=PUBLISHED_NETWORK_GBIT_S * GIGABIT_PER_S),
        topology=topology,
        loss=loss,
    )


def calibrate(tables: Sequence[PublishedTable], topology: str, *, fitted_on: tuple[int, ...] = (1, 8)) -> Loss:
    """The loss over `tables`: for each the mean of log(measured / modelled step time) / log(nodes)."""
    losses = []
    for table in tables:
        if not set(fitted_on) <= {point.devices for point in table.points}:
            continue
        model = _table_model(table, fitted_on, topology, NO_LOSS)
        excess = [
            math.log(point.step_time_s / model.step_time_s(point.nodes, point.devices_per_node)) / math.log(point.nodes)
            for point in table.points
            if point.nodes > 1
        ]
        losses.append(statistics.mean(excess))
    return Loss(mean=statistics.mean(losses), spread=statistics.stdev(losses), tables=len(losses))


def back_test(
    rows: Sequence[Published], *, topology: str = "hierarchical", fitted_on: tuple[int, ...] = (1, 8), loss: bool = True
) -> tuple[list[BackTest], list[str]]:
    """Predictions of every larger shape from `fitted_on` devices, and the tables refused with the reason.

    No table is predicted with what its own report taught: the loss comes from the other reports' tables.
    """
    tables = published_tables(rows)
    results, refused = [], []
    for table in tables:
        others = [other for other in tables if other.report != table.report]
        learned = calibrate(others, topology) if loss else NO_LOSS
        try:
            model = _table_model(table, fitted_on, topology, learned)
        except InputError as error:
            refused.append(f"{table.name}: {error}")
            continue
        for point in table.points:
            if point.devices <= max(fitted_on):
                continue
            images = point.devices * table.batch_per_device
            predicted = images / model.step_time_s(point.nodes, point.devices_per_node)
            low, high = model.relative_interval_95(point.nodes)
            results.append(
                BackTest(
                    table=table.name,
                    report=table.report,
                    fitted_on=fitted_on,
                    nodes=point.nodes,
                    devices=point.devices,
                    published=images / point.step_time_s,
                    predicted=predicted,
                    low=predicted * low,
                    high=predicted * high,
                )
            )
    return results, refused


def median_error(results: Sequence[BackTest]) -> float:
    """Median of the absolute errors, as a share."""
    return statistics.median(abs(result.error) for result in results)


# ------------------------------------------------------------------------------------------- time to train


@dataclass(frozen=True, kw_only=True)
class Training:
    """What training to the target takes beside the step time."""

    epochs: float | None  # None: the reference convergence points of ResNet-50 at the global batch
    train_samples: int
    eval_samples: int
    epochs_per_eval: int
    eval_images_per_s_device: float
    imagenet: bool  # the reference convergence points hold for ImageNet only


def reference_epochs(global_batch: int) -> float | None:
    """Epochs to 75.9 % top-1 at a global batch: mlperf-logging's reference convergence points, ruleset 4.0.0.

    Linear between two points, as its rcp_checker; the smallest point's below it; None above the largest.
    """
    package = importlib.resources.files("mlperf_logging.rcp_checker")
    text = (package / "training_4.0.0" / "rcps_resnet.json").read_text(encoding="utf-8")
    points: dict[int, float] = {}
    for reference in json.loads(text).values():
        runs = sorted(reference["Epochs to converge"])
        points[reference["BS"]] = min(points.get(reference["BS"], math.inf), statistics.mean(runs[1:-1]))
    batches = sorted(points)
    if global_batch > batches[-1]:
        return None
    above = next(batch for batch in batches if batch >= global_batch)
    if above == batches[0]:
        return points[above]
    below = batches[batches.index(above) - 1]
    share = (global_batch - below) / (above - below)
    return points[below] + share * (points[above] - points[below])


def time_to_train_s(
    training: Training, *, devices: int, global_batch: int, step_time_s: float
) -> tuple[float | None, float | None, str]:
    """(seconds, epochs, why not): steps of all epochs and the evaluations between them."""
    epochs = training.epochs
    if epochs is None and not training.imagenet:
        return None, None, "epochs to the target are not known for this data set: give --epochs"
    if epochs is None:
        epochs = reference_epochs(global_batch)
    if epochs is None:
        return None, None, f"global batch {global_batch} is past the largest reference convergence point: give --epochs"
    steps = math.ceil(training.train_samples / global_batch) * epochs
    evaluations = math.ceil(epochs / training.epochs_per_eval)
    per_device = math.ceil(training.eval_samples / devices)
    return steps * step_time_s + evaluations * per_device / training.eval_images_per_s_device, epochs, ""
