"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand; see scale_model.py."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure import warnings as hazards
from scoring.figure.score import TooFewRunsError, score, whole
from scoring.importers import FORMATS, MOST, count, jsonable, read_record
from scoring.predict.scale_model import (
    Loss,
    Training,
    back_test,
    learn,
    median_errors,
    published_tables,
    time_to_train_s,
)
from scoring.published.table import read_published
from scoring.record import InputError, Record


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
    base: Point,
    loss: Loss,
    *,
    nodes: int,
    batch_per_device: int,
    input_images_per_s_node: float | None = None,
    training: Training | None = None,
) -> dict[str, Any]:
    """Throughput and time to train at one node count, as plain values.

    Where a node's input cannot feed its devices the step waits for it: `input_images_per_s_node` is its limit.
    """
    devices = nodes * base.devices_per_node
    global_batch = devices * batch_per_device
    free = base.images_per_s * loss.ratio(base.nodes, nodes)
    images_per_s = min(free, nodes * input_images_per_s_node) if input_images_per_s_node else free
    low, high = loss.relative_interval_95(base.nodes, nodes, base.relative_error or 0.0)
    step_s = global_batch / images_per_s
    found: dict[str, Any] = {
        "nodes": nodes,
        "devices": devices,
        "global_batch": global_batch,
        "images_per_s": images_per_s,
        "interval_95": [images_per_s * low, images_per_s * high],
        "step_time_s": step_s,
        "input_wait_s": step_s - global_batch / free,
    }
    if training:
        seconds, epochs, why_not = time_to_train_s(
            training, devices=devices, global_batch=global_batch, step_time_s=step_s
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
    parser.add_argument("--measured", nargs="+", metavar="LOG", default=[], help="logs of one node count or more")
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
    """A number over 0, and neither too small nor too large to reckon with."""
    value = float(text)
    if not 1e-12 < value < 1e15:
        raise ValueError(text)
    return value


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the logs say of the system: its shapes, and what all of them share."""

    points: tuple[Point, ...]
    batch_per_device: int
    model: str | None
    precision: str | None
    segmentation: bool
    dataset: dict[str, Any]
    warnings: tuple[str, ...]


def measure(
    logs: Sequence[str], *, protocol: str, skip: int | None, batch: int | None, devices_per_node: int | None
) -> Measured:
    """The step time of each shape in `logs`, under a protocol; runs of the same shape are repeats.

    Raises InputError for logs that do not say their devices or batch, and for logs of different work.
    """
    asked = protocols.find(protocol)
    if asked.figure != "throughput":
        raise InputError(f"protocol {protocol} measures no throughput, of which the model is")
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
        result = score(group, asked, skip=skip)
        if result.interval_95 is None or len(group) == 1:
            warnings.append(
                f"{nodes} x {per_node}: the spread of runs is unknown, and not in the prediction's interval"
            )
        points.append(
            Point(
                nodes=nodes,
                devices_per_node=per_node,
                images_per_s=result.value,
                relative_error=_relative_error(result.interval_95),
            )
        )
    return Measured(
        points=tuple(points),
        batch_per_device=images,
        model=shared["model"],
        precision=shared["precision"],
        segmentation="hrnet" in (shared["model"] or "").lower()
        or any(FORMATS[record.format].segmentation for record in records),
        dataset=next((found for r in records if isinstance(found := r.header.get("dataset"), dict)), {}),
        warnings=tuple(warnings),
    )


def _relative_error(interval: tuple[float, float] | None) -> float | None:
    return math.log(interval[1] / interval[0]) / 2 / 1.96 if interval else None


def main(args: argparse.Namespace) -> int:
    """Print the predictions, or the back-test. Returns 0, or 1 for too few runs under the protocol."""
    if args.back_test:
        return _print_back_test(args)
    if not args.measured:
        raise InputError("no logs: give --measured LOG..., or --back-test")
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
        print(safe_lines([f"python -m scoring scale: {error}"]), file=sys.stderr)
        return 1
    found = plan(measured, node_counts, args)
    print(json.dumps(jsonable(found), indent=1) if args.json else safe_lines(prediction_lines(found)))
    return 0


def _nodes(text: str) -> int:
    try:
        return count(text)
    except ValueError:
        raise InputError(f"--nodes: {text!r} is no node count; give some as 1,2,4") from None


def plan(measured: Measured, node_counts: Sequence[int], args: argparse.Namespace) -> dict[str, Any]:
    """Predictions at `node_counts` with what they rest on, as plain values."""
    per_node = args.devices_per_node or max(point.devices_per_node for point in measured.points)
    points = {point.nodes: point for point in measured.points if point.devices_per_node == per_node}
    if not points:
        raise InputError(
            f"--devices-per-node {per_node}: no log has as many; a node is never predicted from a part of it"
        )
    bases = [points[max((n for n in points if n <= nodes), default=min(points))] for nodes in node_counts]
    loss = learn(published_tables(read_published()))
    assumptions: list[str] = []
    training = _training(args, measured, points[min(points)], assumptions)
    if set(node_counts) - set(points):
        assumptions.append(
            f"many nodes do {math.exp(-loss.mean):.1%} of as many times one node, as {loss.tables} published tables of "
            "up to 8 nodes have it"
        )
    predictions = []
    for nodes, base in zip(node_counts, bases, strict=True):
        row = predict(
            base,
            loss,
            nodes=nodes,
            batch_per_device=measured.batch_per_device,
            input_images_per_s_node=args.input_images_per_s,
            training=training,
        )
        predictions.append(row | {"measured_images_per_s": points[nodes].images_per_s if nodes in points else None})
    return {
        "model": {
            "loss": loss.mean,
            "loss_spread": loss.spread,
            "tables": loss.tables,
        },
        "measured": [asdict(point) | {"devices": point.devices} for point in measured.points],
        "predictions": predictions,
        "assumptions": assumptions,
        "warnings": list(measured.warnings),
    }


def _training(args: argparse.Namespace, measured: Measured, base: Point, assumptions: list[str]) -> Training:
    """What training takes, from the options, the log's data set, and else ImageNet (or Cityscapes)."""
    own = {} if measured.dataset.get("synthetic", True) else measured.dataset
    own = {name: size for name, size in own.items() if type(size) is int and 0 < size < MOST}
    train = args.train_samples or own.get("train_samples") or (2_975 if measured.segmentation else 1_281_167)
    evaluation = args.eval_samples or own.get("eval_samples") or (500 if measured.segmentation else 50_000)
    imagenet = train == 1_281_167 and "resnet" in (measured.model or "").lower()
    if args.epochs is None and imagenet:
        assumptions.append(
            "epochs to the target are MLPerf's reference convergence points at the global batch (--epochs)"
        )
    rate = args.eval_images_per_s
    if not rate:
        rate = 3 * base.images_per_s / base.devices
        assumptions.append(f"evaluation does {rate:.0f} images/s a device, 3 x training (--eval-images-per-s)")
    return Training(
        epochs=args.epochs,
        train_samples=train,
        eval_samples=evaluation,
        epochs_per_eval=args.epochs_per_eval,
        eval_images_per_s_device=rate,
        imagenet=imagenet,
    )


def prediction_lines(found: dict[str, Any]) -> list[str]:
    """The predictions in lines for a reader."""
    model = found["model"]
    shapes = ", ".join(f"{row['nodes']} x {row['devices_per_node']}" for row in found["measured"])
    lines = [
        f"Measured {shapes} (nodes x devices); loss of the way out of a node {model['loss']:.1%}",
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
    results = back_test(published_tables(read_published()))
    errors = median_errors(results)
    held = sum(result.covered for result in results)
    if args.json:
        rows = [{**asdict(result), "error": result.error, "covered": result.covered} for result in results]
        print(json.dumps({"median_errors": errors, "covered": held, "results": rows}, indent=1))
        return 0
    print("From the fewest nodes of each published table to more, by what the other reports lost")
    for result in results:
        inside = "" if result.covered else "  outside its interval"
        print(
            f"  {result.table:<60} {result.nodes:>2} nodes  published {result.published:>9.1f}  predicted "
            f"{result.predicted:>9.1f} ({result.low:.0f} to {result.high:.0f})  {result.error:+.1%}{inside}"
        )
    count = len({result.table for result in results})
    print(f"{len(results)} figures of {count} tables; {held} within their 95 % interval. Median error:")
    for name, error in errors.items():
        print(f"  {error:6.2%}  {name}")
    return 0
