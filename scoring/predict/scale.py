"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand, by loss.py."""

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from compliance.official import convergence
from runlog import workloads
from runlog.digits import percent
from runlog.json_types import JsonObject
from runlog.text import safe_lines
from scoring.figure.options import counts, whole
from scoring.importers import FORMATS, MOST, count, jsonable
from scoring.predict.lines import prediction_lines
from scoring.predict.loss import (
    ScalingLoss,
    back_test,
    back_test_lines,
    fit_scaling_loss,
    median_errors,
    published_tables,
)
from scoring.predict.measured import Point, measure
from scoring.published.table import read_published
from scoring.record import InputError, Record

EPOCHS_PER_EVAL = 4
EVALUATION_SPEEDUP = 3  # assumed: images/s of evaluation as a multiple of those of training


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
    is_resnet_on_imagenet: bool  # only then do the reference convergence points hold


def predict(
    base: Point,
    scaling_loss: ScalingLoss,
    training: Training,
    *,
    nodes: int,
    batch_per_device: int,
    input_limit: float = math.inf,
) -> JsonObject:
    """Return the predicted throughput and time to train on `nodes` nodes, as a row of plain values.

    The throughput of the measured point `base` is scaled to `nodes` with `scaling_loss`, the throughput lost between
    nodes. `input_limit` is the images/s that the input pipeline of one node can deliver. It caps the throughput, and
    the step then waits for its input: `input_wait_s`.

    - `interval_95`: around the capped throughput, but not capped itself. None if `nodes` equals the base's nodes and
      the base has no error.
    - `time_to_train_95_min`: only if `nodes` equals the base's nodes, else None. Published times on other numbers of
      nodes were outside such intervals.
    """
    devices = nodes * base.devices_per_node
    global_batch = devices * batch_per_device
    images_per_s_without_limit = base.images_per_s * scaling_loss.throughput_ratio(base.nodes, nodes)
    images_per_s = min(images_per_s_without_limit, nodes * input_limit)
    step_s = global_batch / images_per_s

    low_factor, high_factor = scaling_loss.relative_interval_95(base.nodes, nodes, base.relative_error or 0.0)
    error_is_known = high_factor > low_factor  # both are 1 without any error
    row: JsonObject = {
        "nodes": nodes,
        "devices": devices,
        "global_batch": global_batch,
        "images_per_s": images_per_s,
        # The interval is around the capped throughput, but not capped itself.
        "interval_95": [images_per_s * low_factor, images_per_s * high_factor] if error_is_known else None,
        "step_time_s": step_s,
        "input_wait_s": step_s - global_batch / images_per_s_without_limit,
    }
    row |= _time_to_train_columns(training, global_batch, devices, step_s)
    minutes = row["time_to_train_min"]
    # On other numbers of nodes, published times were outside such an interval.
    if minutes and nodes == base.nodes and error_is_known:
        row["time_to_train_95_min"] = [minutes / high_factor, minutes / low_factor]  # a high rate takes little time
    return row


def _time_to_train_columns(training: Training, global_batch: int, devices: int, step_s: float) -> JsonObject:
    """Return the time to train as columns of a prediction: epochs, minutes, their 95 % interval, and a note.

    - The epochs are known: the note is empty.
    - They are not known: the epochs and minutes are None, and the note says why.

    The interval is always None here: `predict` sets it if it is known.
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
        "time_to_train_95_min": None,  # `predict` sets it if it is known
        "time_to_train_note": note,
    }


def _minutes_to_train(training: Training, epochs: float, global_batch: int, devices: int, step_s: float) -> float:
    """Return the minutes that training takes, including an evaluation every EPOCHS_PER_EVAL epochs."""
    steps = math.ceil(training.train_samples / global_batch) * epochs
    evaluations = math.ceil(epochs / EPOCHS_PER_EVAL)
    evaluated_images_per_device = evaluations * math.ceil(training.eval_samples / devices)
    training_s = steps * step_s
    evaluation_s = evaluated_images_per_device / training.eval_images_per_s_device
    return (training_s + evaluation_s) / 60


def epochs_to_target(training: Training, global_batch: int) -> float | str:
    """Return how many epochs training takes to reach the target at a global batch, or a text why this is not known.

    - The user gave the epochs: they are returned.
    - Another model or data set than ResNet-50 on ImageNet: not known.
    - Else the MLPerf reference convergence points of ruleset 4.0.0 decide. They are the epochs that the reference took
      to 75.9 % top-1 at some batches. Between two batches the epochs are interpolated, as the checker does.
    - A batch larger than that of every point: not known.
    """
    if training.epochs is not None:
        return training.epochs
    if not training.is_resnet_on_imagenet:
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
    """Return a command-line option as a number between 1e-12 and 1e15. Raises ValueError for any other text.

    Numbers outside these bounds are too small or too large to compute with.
    """
    value = float(text)
    if not 1e-12 < value < 1e15:
        raise ValueError(text)
    return value


def main(args: argparse.Namespace) -> int:
    """Print how well the model predicts published figures (--back-test), or predictions from the logs of --measured.

    Returns 0. Raises InputError if neither option is given, or for the same reasons as `predict_from_logs`.
    """
    if args.back_test:
        _print_back_test(as_json=args.json)
        return 0
    if not args.measured:
        raise InputError("no logs: give --measured LOG..., or --back-test")
    predicted = predict_from_logs(args)
    if args.json:
        print(json.dumps(jsonable(predicted), indent=1))
    else:
        print(safe_lines(prediction_lines(predicted)))
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


def predict_from_logs(args: argparse.Namespace) -> JsonObject:
    """Predict throughput and time to train at each node count of --nodes, from the logs of --measured.

    Each prediction is scaled from the nearest measured node count at or below its own; without one, from the smallest
    measured node count. Every node has the same number of devices: --devices-per-node, or the most that a measured node
    has.

    Returns plain values: the model, the measured points, the predictions, and the assumptions and warnings as texts.
    Raises InputError for the same reasons as `measure`, or if no node with that number of devices was measured.
    """
    records, measured, warnings = measure(args)
    batch = records[0].batch_per_device
    assert batch, "`measure` has refused logs without it"
    points = _points_by_nodes(measured, args.devices_per_node)
    scaling_loss = fit_scaling_loss(published_tables(read_published()))
    # The rate of evaluation is estimated from the point on the fewest nodes. Its throughput per device is the least
    # reduced by communication between nodes.
    fewest_nodes = min(points)
    training, assumptions = _assumed_training(args, records, points[fewest_nodes])
    unmeasured_nodes = set(args.nodes) - set(points)
    if unmeasured_nodes:
        assumptions.append(_assumed_scaling_in_words(scaling_loss))

    limit = args.input_images_per_s or math.inf
    predictions = []
    for nodes in args.nodes:
        base = points[_base_nodes(points, nodes)]
        row = predict(base, scaling_loss, training, nodes=nodes, batch_per_device=batch, input_limit=limit)
        row["measured_images_per_s"] = base.images_per_s if base.nodes == nodes else None
        predictions.append(row)
    return {
        "model": {"loss": scaling_loss.loss, "loss_spread": scaling_loss.spread, "tables": scaling_loss.tables},
        "measured": [asdict(point) | {"devices": point.devices} for point in measured],
        "predictions": predictions,
        "assumptions": assumptions,
        "warnings": warnings,
    }


def _assumed_scaling_in_words(scaling_loss: ScalingLoss) -> str:
    """Return the text of what is assumed for unmeasured nodes: what share of linear scaling a large cluster reaches.

    On M nodes the share is exp(-loss * (1 - 1 / M)), compared with one node. For large M it tends to exp(-loss).
    """
    share_of_linear = percent(math.exp(-scaling_loss.loss))
    sources = f"{scaling_loss.tables} published tables of up to 8 nodes"
    return f"many nodes do {share_of_linear} of as many times one node, as {sources} have it"


def _points_by_nodes(measured: Sequence[Point], devices_per_node: int | None) -> dict[int, Point]:
    """Return the measured points whose nodes have `devices_per_node` devices, by their number of nodes.

    None stands for the most devices that a measured node has. Raises InputError if no point has such nodes.
    """
    wanted = devices_per_node or max(point.devices_per_node for point in measured)
    points = {point.nodes: point for point in measured if point.devices_per_node == wanted}
    if not points:
        reason = "no log has as many, and no node is predicted from a part of it"
        raise InputError(f"--devices-per-node {wanted}: {reason}")
    return points


def _base_nodes(measured: Iterable[int], nodes: int) -> int:
    """Return the largest measured node count that is at most `nodes`; the smallest one if all are larger."""
    least, *larger_counts = sorted(measured)
    base = least
    for count_of_nodes in larger_counts:
        if count_of_nodes <= nodes:
            base = count_of_nodes
    return base


class Assumed(NamedTuple):
    """The inputs of the time to train, and a text for each that is assumed."""

    training: Training
    assumptions: list[str]


def _assumed_training(args: argparse.Namespace, records: Sequence[Record], base: Point) -> Assumed:
    """Return the inputs of the time to train, and a text for each that is assumed.

    - Epochs, --epochs is given: these, without a text.
    - Epochs, --epochs is missing and the run is ResNet-50 on ImageNet: None. `epochs_to_target` then takes the MLPerf
      reference epochs. A text says so.
    - Epochs, --epochs is missing for any other run: None, without a text. The time to train is then not known.
    - Images to train on and to evaluate: the size of the logs' data set, without a text.
    - Rate of evaluation: EVALUATION_SPEEDUP times the training throughput of a device at the measured point `base`.
      It is always assumed, and a text says so.
    """
    assumptions = []
    size = _dataset_size(records)
    is_resnet_on_imagenet = _is_resnet(records[0]) and size.train == IMAGENET.train  # no other set has this size
    if args.epochs is None and is_resnet_on_imagenet:
        assumptions.append(
            "epochs to the target are MLPerf reference convergence points at the global batch (--epochs)"
        )

    eval_images_per_s_device = EVALUATION_SPEEDUP * base.images_per_s / base.devices
    evaluation_rate = f"{format(eval_images_per_s_device, '.0f')} images/s a device"
    assumptions.append(f"evaluation does {evaluation_rate}, {EVALUATION_SPEEDUP} x training")
    training = Training(
        epochs=args.epochs,
        train_samples=size.train,
        eval_samples=size.evaluation,
        eval_images_per_s_device=eval_images_per_s_device,
        is_resnet_on_imagenet=is_resnet_on_imagenet,
    )
    return Assumed(training, assumptions)


def _is_resnet(record: Record) -> bool:
    """Return whether a run is of the MLPerf benchmark `resnet`, by its model."""
    workload = workloads.of_family(record.model)
    return workload is not None and workload.benchmark == "resnet"


def _dataset_size(records: Sequence[Record]) -> DatasetSize:
    """Return how many images the runs train on and evaluate.

    The first log that describes its data set decides. The numbers of the benchmark's data set are returned instead:

    - for both, if no log describes a data set
    - for both, if the described data set is synthetic: its size says nothing of the real one
    - for a single number that the description lacks or that is impossible
    """
    benchmark_size = _benchmark_size(records)
    datasets = [record.header.get("dataset") for record in records]
    described = [dataset for dataset in datasets if isinstance(dataset, dict)]
    if not described:
        return benchmark_size
    dataset = described[0]
    is_synthetic = dataset.get("synthetic", True)  # a log that does not say so may be of synthetic data
    if is_synthetic:  # its size says nothing of the real data set
        return benchmark_size
    return DatasetSize(
        train=_size_or(dataset.get("train_samples"), benchmark_size.train),
        evaluation=_size_or(dataset.get("eval_samples"), benchmark_size.evaluation),
    )


def _benchmark_size(records: Sequence[Record]) -> DatasetSize:
    """Return the size of the data set that the model's benchmark trains on.

    - A model of this project: by its workload.
    - Any other model: Cityscapes if one of the logs is of segmentation, else ImageNet.
    """
    workload = workloads.of_family(records[0].model)
    if workload is not None:
        return DatasetSize(workload.train_samples, workload.eval_samples)
    if any(FORMATS[record.format].segmentation for record in records):
        return CITYSCAPES
    return IMAGENET


def _size_or(size: object, fallback: int) -> int:
    """Return a size from a log, or `fallback` if the size is not a possible number of images."""
    if type(size) is int and 0 < size < MOST:
        return size
    return fallback
