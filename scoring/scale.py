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

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scoring import hazards, protocols
from scoring.importers import count, jsonable, read_record
from scoring.published import Published, read_published
from scoring.record import InputError, Record
from scoring.score import TooFewRunsError, score, whole

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
class Table:
    """Published throughput of one system over its shapes."""

    name: str
    report: str
    model: str
    precision: str | None
    batch_per_device: int
    points: tuple[Point, ...]


def published_tables(rows: Sequence[Published]) -> list[Table]:
    """Tables with figures on several nodes; a report's copy of another's figures is left out."""
    found: dict[tuple[Any, ...], dict[int, Published]] = {}
    for row in rows:
        copied = row.note is not None and row.note.startswith("copied")
        if row.metric != "throughput" or not row.nodes or not row.devices or copied:
            continue
        family = row.framework.split(" 2.5")[0]
        key = (row.table, family, row.accelerator, row.precision, row.strategy, row.batch_per_device, row.model)
        found.setdefault(key, {})[row.devices] = row
    tables = []
    for (report, family, accelerator, precision, strategy, batch, model), by_devices in found.items():
        if max(row.nodes or 1 for row in by_devices.values()) < 2:
            continue
        name = " ".join(str(part) for part in (report, family, accelerator, precision, strategy) if part)
        points = [
            Point(
                nodes=row.nodes or 1,
                devices_per_node=devices // (row.nodes or 1),
                step_time_s=devices * batch / row.value,
            )
            for devices, row in sorted(by_devices.items())
        ]
        tables.append(
            Table(
                name=f"{name} bs{batch}",
                report=report,
                model=model,
                precision=precision,
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


def _table_model(table: Table, fitted_on: tuple[int, ...], topology: str, loss: Loss) -> Model:
    return fit(
        [point for point in table.points if point.devices in fitted_on],
        all_reduce_bytes=gradient_bytes(table.model, table.precision),
        network=Network(bandwidth_bytes_per_s=PUBLISHED_NETWORK_GBIT_S * GIGABIT_PER_S),
        topology=topology,
        loss=loss,
    )


def calibrate(tables: Sequence[Table], topology: str, *, fitted_on: tuple[int, ...] = (1, 8)) -> Loss:
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
    import importlib.resources

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


# ---------------------------------------------------------------------------------------------- prediction


def predict(
    model: Model,
    *,
    nodes: int,
    devices_per_node: int,
    batch_per_device: int,
    input_images_per_s_node: float | None = None,
    training: Training | None = None,
) -> dict[str, Any]:
    """Throughput and time to train at one node count, as plain values.

    Where a node's input cannot feed its devices the step waits for it: `input_images_per_s_node` is its limit.
    """
    devices = nodes * devices_per_node
    global_batch = devices * batch_per_device
    within, between = model.all_reduce_s(nodes, devices_per_node)
    step_s = model.step_time_s(nodes, devices_per_node)
    input_s = devices_per_node * batch_per_device / input_images_per_s_node if input_images_per_s_node else 0.0
    wait_s = max(0.0, input_s - step_s)
    low, high = model.relative_interval_95(nodes)
    images_per_s = global_batch / (step_s + wait_s)
    found: dict[str, Any] = {
        "nodes": nodes,
        "devices": devices,
        "global_batch": global_batch,
        "images_per_s": images_per_s,
        "interval_95": [images_per_s * low, images_per_s * high],
        "step_time_s": step_s + wait_s,
        "compute_s": model.compute_s,
        "all_reduce_in_node_s": within,
        "all_reduce_between_nodes_s": between,
        "other_loss_s": step_s - model.compute_s - within - between,
        "input_wait_s": wait_s,
    }
    if training:
        seconds, epochs, why_not = time_to_train_s(
            training, devices=devices, global_batch=global_batch, step_time_s=step_s + wait_s
        )
        found |= {
            "epochs": epochs,
            "time_to_train_min": seconds / 60 if seconds is not None else None,
            "time_to_train_95_min": [seconds / 60 / high, seconds / 60 / low] if seconds is not None else None,
            "time_to_train_note": why_not,
        }
    return found


# ------------------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring scale`."""
    parser.add_argument("--measured", nargs="+", metavar="LOG", default=[], help="logs of at least two device counts")
    parser.add_argument("--nodes", default="1,2,4,8,64,1024", help="node counts to predict (default: %(default)s)")
    parser.add_argument("--back-test", action="store_true", help="the model against the published tables")
    parser.add_argument("--protocol", default="window", help="how runs become a step time (default: %(default)s)")
    parser.add_argument(
        "--skip", type=whole, metavar="N", help="windows dropped at the start, instead of the protocol's"
    )
    parser.add_argument("--batch", type=count, help="images a device, for logs that do not say it")
    parser.add_argument(
        "--devices-per-node", type=count, metavar="N", help="default: the most that a measured node has"
    )
    parser.add_argument(
        "--network-gbit-s",
        type=positive,
        metavar="G",
        help="line rate of a node's network, where no several nodes were measured (default: 100, assumed)",
    )
    parser.add_argument(
        "--latency-us", type=positive, default=5.0, help="of one message (default: %(default)s, assumed)"
    )
    parser.add_argument(
        "--all-reduce-mib", type=positive, metavar="M", help="gradients of a step; default: the log's or the model's"
    )
    parser.add_argument("--topology", choices=TOPOLOGIES, default="hierarchical", help="default: %(default)s")
    parser.add_argument("--input-images-per-s", type=positive, metavar="R", help="most that a node's input can feed")
    parser.add_argument(
        "--epochs", type=positive, help="epochs to the target (default for ResNet-50 on ImageNet: MLPerf's)"
    )
    parser.add_argument("--train-samples", type=count, help="default: the log's data set, else ImageNet's 1281167")
    parser.add_argument("--eval-samples", type=count, help="default: the log's data set, else ImageNet's 50000")
    parser.add_argument("--epochs-per-eval", type=count, default=4, help="default: %(default)s")
    parser.add_argument(
        "--eval-images-per-s",
        type=positive,
        metavar="R",
        help="of one device (default: 3 x its training rate, assumed)",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def positive(text: str) -> float:
    """A number over 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the logs say of the system: its shapes, and what all of them share."""

    points: tuple[Point, ...]
    batch_per_device: int
    model: str | None
    precision: str | None
    all_reduce_bytes: float | None  # that the log's program sums
    messages: int | None  # all-reduces of a step in the log's program
    dataset: dict[str, Any]
    warnings: tuple[str, ...]


def measure(
    logs: Sequence[str], *, protocol: str, skip: int | None, batch: int | None, devices_per_node: int | None
) -> Measured:
    """The step time of each shape in `logs`, under a protocol; runs of the same shape are repeats.

    Raises InputError for logs that do not say their devices or batch, and for logs of different work.
    """
    by_shape: dict[tuple[int, int], list[Record]] = {}
    for log in logs:
        record = read_record(log, batch_per_device=batch)
        if record.devices is None or record.batch_per_device is None:
            raise InputError(
                f"{log}: the log does not say devices or batch; the model needs both of every log (--batch)"
            )
        nodes = record.nodes or math.ceil(record.devices / (devices_per_node or 8))
        if record.devices % nodes:
            raise InputError(f"{log}: {record.devices} devices on {nodes} nodes; give --devices-per-node")
        by_shape.setdefault((nodes, record.devices // nodes), []).append(record)
    records = [record for group in by_shape.values() for record in group]
    shared = {}
    for name in ("batch_per_device", "model", "precision"):
        values = {getattr(record, name): record.file for record in records}
        if len(values) > 1:
            said = ", ".join(f"{value} in {file}" for value, file in values.items())
            raise InputError(f"logs of different {name} ({said}): scaling compares the same work")
        shared[name] = next(iter(values), None)
    images = records[0].batch_per_device
    assert images is not None
    points, warnings = [], [warning.message for warning in hazards.of_mixture(records)]
    for (nodes, per_node), group in sorted(by_shape.items()):
        result = score(group, protocols.find(protocol), skip=skip)
        half = (result.interval_95[1] - result.interval_95[0]) / 2 if result.interval_95 else None
        if half is None:
            warnings.append(f"{nodes} x {per_node}: no interval of the figure, so none of it in the prediction's")
        points.append(
            Point(
                nodes=nodes,
                devices_per_node=per_node,
                step_time_s=nodes * per_node * images / result.value,
                relative_error=half / result.value / 1.96 if half is not None else None,
            )
        )
    programs = [record.header.get("program", {}) for record in records if record.devices and record.devices > 1]
    mib = {program.get("all_reduce_mib") for program in programs} - {None}
    reduces = {program.get("all_reduces") for program in programs} - {None}
    return Measured(
        points=tuple(points),
        batch_per_device=images,
        model=shared["model"],
        precision=shared["precision"],
        all_reduce_bytes=max(mib) * 2**20 if mib else None,
        messages=max(reduces) if reduces else None,
        dataset=next((record.header["dataset"] for record in records if "dataset" in record.header), {}),
        warnings=tuple(warnings),
    )


def main(args: argparse.Namespace) -> int:
    """Print the predictions, or the back-test. Returns 0, or 1 for too few runs under the protocol."""
    if args.back_test:
        return _print_back_test(args)
    if not args.measured:
        raise InputError("no logs: give --measured LOG... of at least two device counts, or --back-test")
    node_counts = [_nodes(text) for text in args.nodes.split(",")]
    try:
        measured = measure(
            args.measured,
            protocol=args.protocol,
            skip=args.skip,
            batch=args.batch,
            devices_per_node=args.devices_per_node,
        )
    except TooFewRunsError as error:
        print(f"python -m scoring scale: {error}", file=sys.stderr)
        return 1
    found = plan(measured, node_counts, args)
    print(json.dumps(jsonable(found), indent=1) if args.json else "\n".join(describe(found)))
    return 0


def _nodes(text: str) -> int:
    try:
        return count(text)
    except ValueError:
        raise InputError(f"--nodes: {text!r} is no node count; give some as 1,2,4") from None


def plan(measured: Measured, node_counts: Sequence[int], args: argparse.Namespace) -> dict[str, Any]:
    """Predictions at `node_counts` with what they rest on, as plain values."""
    assumptions = []
    if args.all_reduce_mib:
        size = args.all_reduce_mib * 2**20
    else:
        size = measured.all_reduce_bytes or gradient_bytes(measured.model, measured.precision)
    gbit_s = args.network_gbit_s or PUBLISHED_NETWORK_GBIT_S
    several_nodes = any(point.nodes > 1 for point in measured.points)
    if not args.network_gbit_s and not several_nodes:
        assumptions.append(f"the network of a node carries {gbit_s:g} Gbit/s (--network-gbit-s)")
    network = Network(
        bandwidth_bytes_per_s=gbit_s * GIGABIT_PER_S,
        latency_s=args.latency_us * 1e-6,
        messages=measured.messages or 1,
    )
    tables = published_tables(read_published())
    models = {
        topology: fit(
            measured.points,
            all_reduce_bytes=size,
            network=network,
            topology=topology,
            loss=calibrate(tables, topology),
        )
        for topology in TOPOLOGIES
    }
    model = models[args.topology]
    per_node = args.devices_per_node or max(model.devices_per_node)
    if len(model.devices_per_node) == 1 and per_node not in model.devices_per_node:
        raise InputError(
            f"--devices-per-node {per_node}: only {per_node_text(model)} a node was measured; measure a second count"
        )
    training = _training(args, measured, model, assumptions)
    if model.loss.mean and max(node_counts) > model.measured_nodes:
        assumptions.append(
            f"step time grows by nodes ** {model.loss.mean:.3f} beside the network's cost, as it did in "
            f"{model.loss.tables} published tables"
        )
    by_shape = {(point.nodes, point.devices_per_node): point for point in measured.points}
    predictions = []
    for nodes in node_counts:
        row = predict(
            model,
            nodes=nodes,
            devices_per_node=per_node,
            batch_per_device=measured.batch_per_device,
            input_images_per_s_node=args.input_images_per_s,
            training=training,
        )
        point = by_shape.get((nodes, per_node))
        row["measured_images_per_s"] = row["global_batch"] / point.step_time_s if point else None
        for topology, other in models.items():
            row[f"{topology}_images_per_s"] = row["global_batch"] / other.step_time_s(nodes, per_node)
        predictions.append(row)
    return {
        "model": {
            "topology": model.topology,
            "compute_s": model.compute_s,
            "all_reduce_mib": size / 2**20,
            "messages": network.messages,
            "node_gb_per_s": 1e-9 / model.node_s_per_byte if model.node_s_per_byte else None,
            "network_gb_per_s": 1e-9 / model.net_s_per_byte if model.net_s_per_byte else None,
            "network_fitted": model.net_fitted,
            "latency_us": args.latency_us,
            "loss_exponent": model.loss.mean,
            "loss_spread": model.loss.spread,
        },
        "measured": [
            {
                "nodes": point.nodes,
                "devices": point.devices,
                "step_time_s": point.step_time_s,
                "images_per_s": point.devices * measured.batch_per_device / point.step_time_s,
            }
            for point in measured.points
        ],
        "predictions": predictions,
        "assumptions": assumptions,
        "warnings": list(measured.warnings),
    }


def per_node_text(model: Model) -> str:
    """Devices a node that were measured, for a message."""
    return ", ".join(map(str, sorted(model.devices_per_node)))


def _training(args: argparse.Namespace, measured: Measured, model: Model, assumptions: list[str]) -> Training:
    """What training takes, from the options, the log's data set, and else ImageNet (or Cityscapes)."""
    segmentation = "hrnet" in (measured.model or "").lower()
    own = {} if measured.dataset.get("synthetic", True) else measured.dataset
    train = args.train_samples or own.get("train_samples") or (2_975 if segmentation else 1_281_167)
    evaluation = args.eval_samples or own.get("eval_samples") or (500 if segmentation else 50_000)
    imagenet = train == 1_281_167 and not segmentation
    if args.epochs is None and imagenet:
        assumptions.append(
            "epochs to the target are MLPerf's reference convergence points at the global batch (--epochs)"
        )
    rate = args.eval_images_per_s
    if not rate:
        rate = 3 * measured.batch_per_device / model.compute_s
        assumptions.append(f"evaluation does {rate:.0f} images/s a device, 3 x training (--eval-images-per-s)")
    return Training(
        epochs=args.epochs,
        train_samples=train,
        eval_samples=evaluation,
        epochs_per_eval=args.epochs_per_eval,
        eval_images_per_s_device=rate,
        imagenet=imagenet,
    )


def describe(found: dict[str, Any]) -> list[str]:
    """The predictions in lines for a reader."""
    model = found["model"]
    shapes = ", ".join(f"{row['nodes']} x {row['devices'] // row['nodes']}" for row in found["measured"])
    source = "fitted" if model["network_fitted"] else "line rate"
    node = f"{model['node_gb_per_s']:.1f} GB/s" if model["node_gb_per_s"] else "hidden or not separable"
    net = f"{model['network_gb_per_s']:.1f} GB/s" if model["network_gb_per_s"] else "hidden"
    lines = [
        f"Measured {shapes} (nodes x devices); {model['topology']} all-reduce of {model['all_reduce_mib']:.1f} MiB",
        f"computation {1e3 * model['compute_s']:.2f} ms, in a node {node}, between nodes {net} ({source})",
        "",
        f"{'nodes':>6} {'devices':>8} {'images/s':>12} {'95 % interval':>25} {'efficiency':>10} {'step ms':>9} "
        f"{'to train':>12} {'measured':>12}",
    ]
    base = found["predictions"][0]
    for row in found["predictions"]:
        low, high = row["interval_95"]
        efficiency = row["images_per_s"] / row["nodes"] / (base["images_per_s"] / base["nodes"])
        minutes = row["time_to_train_min"]
        shown = f"{row['measured_images_per_s']:.1f}" if row["measured_images_per_s"] else "-"
        lines.append(
            f"{row['nodes']:>6} {row['devices']:>8} {row['images_per_s']:>12.1f} {f'{low:.1f} to {high:.1f}':>25} "
            f"{efficiency:>10.1%} {1e3 * row['step_time_s']:>9.2f} "
            f"{f'{minutes:.1f} min' if minutes is not None else 'not known':>12} {shown:>12}"
        )
    unknown: dict[str, None] = dict.fromkeys(row["time_to_train_note"] for row in found["predictions"])
    lines.append("")
    lines += [f"assumed: {text}" for text in found["assumptions"]]
    lines += [f"warning: {text}" for text in found["warnings"]]
    lines += [f"time to train: {text}" for text in unknown if text]
    return lines


def _print_back_test(args: argparse.Namespace) -> int:
    rows = read_published()
    tests = {fitted_on: back_test(rows, topology=args.topology, fitted_on=fitted_on) for fitted_on in ((1, 8), (8, 16))}
    if args.json:
        found = [
            {
                "fitted_on": list(fitted_on),
                "median_error": median_error(results),
                "results": [{**asdict(result), "error": result.error, "covered": result.covered} for result in results],
                "refused": refused,
            }
            for fitted_on, (results, refused) in tests.items()
        ]
        print(json.dumps(found, indent=1))
        return 0
    for fitted_on, (results, refused) in tests.items():
        print(f"Fitted on {' and '.join(map(str, fitted_on))} GPUs ({args.topology}), against what was published")
        for result in results:
            inside = "" if result.covered else "  outside its interval"
            print(
                f"  {result.table:<60} {result.devices:>3} GPUs  published {result.published:>9.1f}  predicted "
                f"{result.predicted:>9.1f} ({result.low:.0f} to {result.high:.0f})  {result.error:+.1%}{inside}"
            )
        for text in refused:
            print(f"  refused: {text}")
        held = sum(result.covered for result in results)
        print(
            f"  median error {median_error(results):.2%} over {len(results)} figures of "
            f"{len({result.table for result in results})} tables; {held} within their 95 % interval"
        )
    return 0
