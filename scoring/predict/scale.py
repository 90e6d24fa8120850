"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand, by loss.py."""

import argparse
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from compliance.official import convergence
from runlog import workloads
from runlog.json_types import JsonObject
from runlog.text import safe_lines
from scoring.figure import protocols, spread
from scoring.figure import warnings as figure_warnings
from scoring.figure.options import counts, whole
from scoring.figure.score import score
from scoring.importers import FORMATS, MOST, count, jsonable, read_record
from scoring.predict.lines import prediction_lines
from scoring.predict.loss import Loss, back_test, back_test_lines, learn, median_errors, published_tables
from scoring.published.table import read_published
from scoring.record import InputError, Record

EPOCHS_PER_EVAL = 4
ASSUMED_EVALUATION_RATE = 3.0  # times the training rate
NORMAL_QUANTILE = 1.96  # of the normal distribution: half of a 95 % interval in standard errors


class DatasetSize(NamedTuple):
    """How many images a data set has to train on, and to evaluate."""

    train: int
    evaluation: int


IMAGENET = DatasetSize(1_281_167, 50_000)
CITYSCAPES = DatasetSize(2_975, 500)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The epochs and evaluations that training to the target takes."""

    epochs: float | None  # None: the reference convergence points of ResNet-50 at the global batch
    train_samples: int
    eval_samples: int
    eval_images_per_s_device: float
    imagenet: bool  # the reference convergence points hold for ResNet on ImageNet only


@dataclass(frozen=True, kw_only=True)
class Point:
    """The measured throughput of so many nodes, with so many devices on each."""

    nodes: int
    devices_per_node: int
    images_per_s: float
    relative_error: float | None  # standard error, as a share

    @property
    def devices(self) -> int:
        """Return the number of devices on all nodes."""
        return self.nodes * self.devices_per_node


def predict(
    base: Point, loss: Loss, training: Training, *, nodes: int, batch_per_device: int, input_limit: float = math.inf
) -> JsonObject:
    """Return the predicted throughput and time to train on `nodes` nodes, as a row of plain values.

    The throughput of `base`, a measured number of nodes, is scaled to `nodes` by the published `loss` between nodes.
    `input_limit` is the images/s that the input of one node can feed: beyond it the step waits for its input.

    The 95 % interval of the throughput is None where nothing is known of its error: on as many nodes as were measured,
    where the measured figure itself has no interval. The time to train has an interval only on as many nodes as were
    measured: on others the published times lay outside such an interval.
    """
    devices = nodes * base.devices_per_node
    global_batch = devices * batch_per_device
    images_per_s_without_limit = base.images_per_s * loss.ratio(base.nodes, nodes)
    images_per_s = min(images_per_s_without_limit, nodes * input_limit)
    step_s = global_batch / images_per_s

    low_factor, high_factor = loss.relative_interval_95(base.nodes, nodes, base.relative_error or 0.0)
    error_is_known = high_factor > low_factor  # both are 1 without any error
    row: JsonObject = {
        "nodes": nodes,
        "devices": devices,
        "global_batch": global_batch,
        "images_per_s": images_per_s,
        "interval_95": [images_per_s * low_factor, images_per_s * high_factor] if error_is_known else None,
        "step_time_s": step_s,
        "input_wait_s": step_s - global_batch / images_per_s_without_limit,
    }
    row |= _time_to_train_columns(training, global_batch, devices, step_s)
    minutes = row["time_to_train_min"]
    if minutes and nodes == base.nodes and error_is_known:
        row["time_to_train_95_min"] = [minutes / high_factor, minutes / low_factor]  # least at the highest rate
    return row


def _time_to_train_columns(training: Training, global_batch: int, devices: int, step_s: float) -> JsonObject:
    """Return the columns of a prediction on the time to train: epochs, minutes, their interval, and a note.

    The interval is None here: `predict` sets it where it is known. Where the epochs are not known, they and the minutes
    are None and the note says why; else the note is empty.
    """
    epochs: float | None = None
    minutes: float | None = None
    note = ""
    epochs_or_reason = epochs_to_target(training, global_batch)
    if isinstance(epochs_or_reason, str):
        note = epochs_or_reason
    else:
        epochs = epochs_or_reason
        minutes = _minutes_to_train(training, epochs, global_batch, devices, step_s)
    return {
        "epochs": epochs,
        "time_to_train_min": minutes,
        "time_to_train_95_min": None,
        "time_to_train_note": note,
    }


def _minutes_to_train(training: Training, epochs: float, global_batch: int, devices: int, step_s: float) -> float:
    """Return the minutes that training and its evaluations take, with an evaluation every EPOCHS_PER_EVAL epochs."""
    steps = math.ceil(training.train_samples / global_batch) * epochs
    evaluations = math.ceil(epochs / EPOCHS_PER_EVAL)
    evaluated_by_a_device = evaluations * math.ceil(training.eval_samples / devices)
    return (steps * step_s + evaluated_by_a_device / training.eval_images_per_s_device) / 60


def epochs_to_target(training: Training, global_batch: int) -> float | str:
    """Return how many epochs training to the target takes at a global batch, or a text that says why it is not known.

    The epochs that a user gave count first. For ResNet-50 on ImageNet they follow from the MLPerf reference convergence
    points of ruleset 4.0.0, which say how many epochs the reference took to 75.9 % top-1 at some batches. Between two
    batches they are interpolated as the checker does; past the largest one they are not known.
    """
    if training.epochs is not None:
        return training.epochs
    if not training.imagenet:
        return "epochs to the target are not known for this model and data set: give --epochs"
    reference = convergence.reference_set("resnet", "4.0.0")
    at_batch = convergence.point_at(global_batch, reference.points, reference)
    if at_batch is not None:
        return at_batch.point.mean
    return f"global batch {global_batch} is past the largest reference convergence point: give --epochs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring scale`."""
    add = parser.add_argument
    add("--measured", nargs="+", metavar="LOG", default=[], help="logs of one node count or more")
    add("--nodes", type=counts, default="1,2,4,8,64,1024", help="node counts to predict (default: %(default)s)")
    add("--back-test", action="store_true", help="the model against the published tables")
    add("--protocol", default="window", help="how runs become a step time (default: %(default)s)")
    add("--skip", type=whole, metavar="N", help="windows dropped at the start, instead of the protocol's")
    add("--batch", type=count, help="images a device, for logs that do not say it")
    add("--devices-per-node", type=count, metavar="N", help="default: the most that a measured node has")
    add("--input-images-per-s", type=positive, metavar="R", help="most that a node's input can feed")
    add("--epochs", type=positive, help="epochs to the target (default for ResNet-50 on ImageNet: MLPerf reference)")
    add("--json", action="store_true", help="machine-readable output")


def positive(text: str) -> float:
    """Parse a number over 0 that is neither too small nor too large to compute with. Raises ValueError for another."""
    value = float(text)
    if not 1e-12 < value < 1e15:
        raise ValueError(text)
    return value


def main(args: argparse.Namespace) -> int:
    """Print predictions from the measured logs, or with --back-test how well the model does on published figures.

    Returns 0. Raises InputError where neither logs nor --back-test are given.
    """
    if args.back_test:
        _print_back_test(as_json=args.json)
        return 0
    if not args.measured:
        raise InputError("no logs: give --measured LOG..., or --back-test")
    planned = plan(args)
    if args.json:
        print(json.dumps(jsonable(planned), indent=1))
    else:
        print(safe_lines(prediction_lines(planned)))
    return 0


def _print_back_test(*, as_json: bool) -> None:
    """Print every published figure beside what the model predicts for it, and the median errors."""
    results = back_test(published_tables(read_published()))
    covered = sum(result["covered"] for result in results)
    tested = {"median_errors": median_errors(results), "covered": covered, "results": results}
    if as_json:
        print(json.dumps(tested, indent=1))
    else:
        print("\n".join(back_test_lines(tested)))


class Shape(NamedTuple):
    """Nodes, and devices on each of them."""

    nodes: int
    devices_per_node: int


class Measured(NamedTuple):
    """The measured logs, the throughput of each of their shapes by ascending nodes, and warnings."""

    records: list[Record]
    points: list[Point]
    warnings: list[str]


def measure(args: argparse.Namespace) -> Measured:
    """Return the logs of --measured with a figure for each shape among them: so many nodes of so many devices.

    Logs of one shape are repeats, scored together under the protocol. The 95 % interval of their figure gives its
    standard error. The interval of a single run is that of its windows, which is too narrow for a system: its error is
    used all the same, but a warning says that the spread of runs is not in it. The same warning stands for a figure
    without an interval. Other warnings tell of logs that differ in math mode or software.

    Raises InputError for a protocol that does not measure throughput, for logs that do not say their devices or batch,
    and for logs of different work. The errors of `score` are raised too, such as that of too few runs.
    """
    protocol = protocols.find(args.protocol)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {args.protocol} measures no throughput, of which the model is")
    by_shape: dict[Shape, list[Record]] = {}
    for log in args.measured:
        record = read_record(log, batch_per_device=args.batch)
        shape = _shape(record, log, args.devices_per_node)
        by_shape.setdefault(shape, []).append(record)
    records = list(itertools.chain.from_iterable(by_shape.values()))
    warnings = _warnings_of_mixture(records)

    points = []
    for shape, repeats in sorted(by_shape.items()):
        result = score(repeats, protocol, skip=args.skip)
        interval = result.interval_95
        spread_of_runs_is_unknown = interval is None or len(repeats) == 1
        if spread_of_runs_is_unknown:
            unknown = "the spread of runs is unknown, and not in the prediction's interval"
            warnings.append(f"{shape.nodes} x {shape.devices_per_node}: {unknown}")
        points.append(
            Point(
                nodes=shape.nodes,
                devices_per_node=shape.devices_per_node,
                images_per_s=result.value,
                relative_error=_relative_error(interval),
            )
        )
    return Measured(records, points, warnings)


def _shape(record: Record, log: str, devices_per_node: int | None) -> Shape:
    """Return the shape of a run; where the log names no nodes, they are taken to have 8 devices each.

    Raises InputError where the log does not say devices or batch, or its nodes cannot all have equally many devices.
    """
    if record.devices is None or record.batch_per_device is None:
        raise InputError(f"{log}: the log does not say devices or batch, of which the model needs both (--batch)")
    nodes = record.nodes or math.ceil(record.devices / (devices_per_node or 8))
    if record.devices % nodes:
        raise InputError(f"{log}: {record.devices} devices on {nodes} nodes; give --devices-per-node")
    return Shape(nodes, record.devices // nodes)


def _warnings_of_mixture(records: Sequence[Record]) -> list[str]:
    """Return warnings of runs that differ in math mode or software.

    Raises InputError where they differ in model, batch of one device or precision, as they did different work then.
    """
    texts = []
    for warning in figure_warnings.warn_of_mixed_settings(records):
        if warning.check in ("mixed_model", "mixed_batch", "mixed_precision"):
            raise InputError(f"{warning.found}; scaling compares the same work, so give logs of one")
        texts.append(warning.found)
    return texts


def _relative_error(interval_95: tuple[float, float] | None) -> float | None:
    """Return the standard error of a figure as a share of it, from its interval; None where it has none."""
    if not interval_95:
        return None
    return spread.half_share(interval_95) / NORMAL_QUANTILE


def plan(args: argparse.Namespace) -> JsonObject:
    """Return a prediction for each node count of --nodes, with what the predictions rest on, as plain values.

    Each is scaled from the largest measured node count that is not larger, or from the least one where all are larger.
    All nodes are of one size: that of --devices-per-node, or the most devices that a measured node has. Raises
    InputError as `measure` does, and where no node of that size was measured.
    """
    records, measured, warnings = measure(args)
    batch = records[0].batch_per_device
    assert batch, "`measure` has refused logs without it"
    points = _points_by_nodes(measured, args.devices_per_node)
    loss = learn(published_tables(read_published()))
    training, assumptions = _training(args, records, points[min(points)])  # the fewest nodes: they lose the least
    unmeasured_nodes = set(args.nodes) - set(points)
    if unmeasured_nodes:
        share = format(math.exp(-loss.mean), ".1%")  # from one node to any number: 1 / 1 - 1 / M goes to 1
        sources = f"{loss.tables} published tables of up to 8 nodes"
        assumptions.append(f"many nodes do {share} of as many times one node, as {sources} have it")

    predictions = []
    for nodes in args.nodes:
        base = points[_base_nodes(points, nodes)]
        limit = args.input_images_per_s or math.inf
        row = predict(base, loss, training, nodes=nodes, batch_per_device=batch, input_limit=limit)
        row["measured_images_per_s"] = base.images_per_s if base.nodes == nodes else None
        predictions.append(row)
    return {
        "model": {"loss": loss.mean, "loss_spread": loss.spread, "tables": loss.tables},
        "measured": [asdict(point) | {"devices": point.devices} for point in measured],
        "predictions": predictions,
        "assumptions": assumptions,
        "warnings": warnings,
    }


def _points_by_nodes(measured: Sequence[Point], devices_per_node: int | None) -> dict[int, Point]:
    """Return the measured points of nodes with so many devices, by their number of nodes.

    Without `devices_per_node` these are the nodes with the most devices. Raises InputError where there are none.
    """
    wanted = devices_per_node or max(point.devices_per_node for point in measured)
    points = {point.nodes: point for point in measured if point.devices_per_node == wanted}
    if not points:
        says = "no log has as many, and no node is predicted from a part of it"
        raise InputError(f"--devices-per-node {wanted}: {says}")
    return points


def _base_nodes(measured: Iterable[int], nodes: int) -> int:
    """Return the largest measured node count up to `nodes`; the least one where all are larger."""
    least, *larger_counts = sorted(measured)
    base = least
    for count_of_nodes in larger_counts:
        if count_of_nodes <= nodes:
            base = count_of_nodes
    return base


class Assumed(NamedTuple):
    """The epochs and images that training takes, and what is assumed for it."""

    training: Training
    assumptions: list[str]


def _training(args: argparse.Namespace, records: Sequence[Record], base: Point) -> Assumed:
    """Return what the time to train is computed from: epochs, images, and the rate of evaluation.

    What is assumed rather than measured is returned in words too:

    - On each device evaluation does ASSUMED_EVALUATION_RATE times the images/s that training does at the measured point
      `base`.
    - Where the user gives no --epochs, ResNet-50 on ImageNet takes as many epochs as the MLPerf reference did at the
      same global batch.
    """
    workload = workloads.of_family(records[0].model)
    size = _dataset_size(records)
    is_resnet = workload is not None and workload.benchmark == "resnet"
    is_imagenet = is_resnet and size.train == IMAGENET.train
    evaluated_per_s_device = ASSUMED_EVALUATION_RATE * base.images_per_s / base.devices
    assumptions = []
    if args.epochs is None and is_imagenet:
        points = "MLPerf reference convergence points at the global batch"
        assumptions.append(f"epochs to the target are {points} (--epochs)")
    assumptions.append(f"evaluation does {format(evaluated_per_s_device, '.0f')} images/s a device, 3 x training")
    training = Training(
        epochs=args.epochs,
        train_samples=size.train,
        eval_samples=size.evaluation,
        eval_images_per_s_device=evaluated_per_s_device,
        imagenet=is_imagenet,
    )
    return Assumed(training, assumptions)


def _dataset_size(records: Sequence[Record]) -> DatasetSize:
    """Return the size of the data set that the first log with a description of one has, or that of their benchmark.

    The size is that of the benchmark where no log describes a data set, or where it is synthetic, as its size says
    nothing of the real one. A number of images that is missing or impossible is that of the benchmark, too.
    """
    benchmark_size = _benchmark_size(records)
    datasets = [record.header.get("dataset") for record in records]
    described = [dataset for dataset in datasets if isinstance(dataset, dict)]
    if not described:
        return benchmark_size
    dataset = described[0]
    is_synthetic = dataset.get("synthetic", True)  # one that does not say so may be
    if is_synthetic:
        return benchmark_size
    return DatasetSize(
        train=_size_or(dataset.get("train_samples"), benchmark_size.train),
        evaluation=_size_or(dataset.get("eval_samples"), benchmark_size.evaluation),
    )


def _benchmark_size(records: Sequence[Record]) -> DatasetSize:
    """Return the size of the data set that the model's benchmark trains on.

    A model that is no workload of ours is taken to be trained on ImageNet, or on Cityscapes where it segments.
    """
    workload = workloads.of_family(records[0].model)
    if workload is not None:
        return DatasetSize(workload.train_samples, workload.eval_samples)
    if any(FORMATS[record.format].segmentation for record in records):
        return CITYSCAPES
    return IMAGENET


def _size_or(size: object, fallback: int) -> int:
    """Return a size that a log says; `fallback` where it is no possible number of images."""
    if type(size) is int and 0 < size < MOST:
        return size
    return fallback
