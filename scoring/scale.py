"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand; see scale_model.py."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scoring import hazards, protocols
from scoring.importers import count, jsonable, read_record
from scoring.published import read_published
from scoring.record import InputError, Record
from scoring.scale_model import (
    GIGABIT_PER_S,
    PUBLISHED_NETWORK_GBIT_S,
    TOPOLOGIES,
    Model,
    Network,
    Point,
    Training,
    back_test,
    calibrate,
    fit,
    gradient_bytes,
    median_error,
    published_tables,
    time_to_train_s,
)
from scoring.score import TooFewRunsError, score, whole


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
    print(json.dumps(jsonable(found), indent=1) if args.json else "\n".join(prediction_lines(found)))
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
    per_node = _per_node(model, args.devices_per_node)
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
        "model": _model_json(model, args.latency_us),
        "measured": [_point_json(point, measured.batch_per_device) for point in measured.points],
        "predictions": predictions,
        "assumptions": assumptions,
        "warnings": list(measured.warnings),
    }


def _per_node(model: Model, asked: int | None) -> int:
    """Devices a node that are predicted: as asked for, else the most that were measured."""
    per_node = asked or max(model.devices_per_node)
    if len(model.devices_per_node) == 1 and per_node not in model.devices_per_node:
        measured = max(model.devices_per_node)
        raise InputError(f"--devices-per-node {per_node}: only {measured} a node was measured; measure a second count")
    return per_node


def _point_json(point: Point, batch_per_device: int) -> dict[str, float]:
    return {
        "nodes": point.nodes,
        "devices": point.devices,
        "step_time_s": point.step_time_s,
        "images_per_s": point.devices * batch_per_device / point.step_time_s,
    }


def _model_json(model: Model, latency_us: float) -> dict[str, str | float | bool | None]:
    return {
        "topology": model.topology,
        "compute_s": model.compute_s,
        "all_reduce_mib": model.all_reduce_bytes / 2**20,
        "messages": model.network.messages,
        "node_gb_per_s": 1e-9 / model.node_s_per_byte if model.node_s_per_byte else None,
        "network_gb_per_s": 1e-9 / model.net_s_per_byte if model.net_s_per_byte else None,
        "network_fitted": model.net_fitted,
        "latency_us": latency_us,
        "loss_exponent": model.loss.mean,
        "loss_spread": model.loss.spread,
    }


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


def prediction_lines(found: dict[str, Any]) -> list[str]:
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
