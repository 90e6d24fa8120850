"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand; see scale_model.py."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure import warnings as figure_warnings
from scoring.figure.score import counts, score, whole
from scoring.importers import FORMATS, MOST, count, jsonable, read_record
from scoring.predict.scale_model import Point, Training, back_test, learn, median_errors, predict, published_tables
from scoring.published.table import read_published
from scoring.record import InputError, Record

ASSUMED_EVALUATION_RATE = 3.0  # times the training rate
IMAGENET, CITYSCAPES = (1_281_167, 50_000), (2_975, 500)  # images to train on, to evaluate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring scale`."""
    add = parser.add_argument
    add("--measured", nargs="+", metavar="LOG", default=[], help="logs of one node count or more")
    add("--nodes", type=counts, default="1,2,4,8,64,1024", help="node counts to predict (default: %(default)s)")
    add("--back-test", action="store_true", help="the model against the published tables")
    add("--protocol", default="window", help="how runs become a step time (default: %(default)s)")
    add("--skip", type=whole, metavar="N", help="windows dropped at the start, instead of the protocol's")
    add("--batch", type=count, help="images a device, for logs that do not say it")
    add("--devices-per-node", type=count, metavar="N", help="default: the most that a measured node has")
    add("--input-images-per-s", type=positive, metavar="R", help="most that a node's input can feed")
    add("--epochs", type=positive, help="epochs to the target (default for ResNet-50 on ImageNet: MLPerf's)")
    add("--json", action="store_true", help="machine-readable output")


def positive(text: str) -> float:
    """A number over 0, and neither too small nor too large to reckon with."""
    value = float(text)
    if not 1e-12 < value < 1e15:
        raise ValueError(text)
    return value


def main(args: argparse.Namespace) -> int:
    """Print the predictions, or the back-test. Returns 0."""
    if args.back_test:
        results = back_test(published_tables(read_published()))
        held = sum(result["covered"] for result in results)
        tested = {"median_errors": median_errors(results), "covered": held, "results": results}
        print(json.dumps(tested, indent=1) if args.json else "\n".join(back_test_lines(tested)))
        return 0
    if not args.measured:
        raise InputError("no logs: give --measured LOG..., or --back-test")
    found = plan(args)
    print(json.dumps(jsonable(found), indent=1) if args.json else safe_lines(prediction_lines(found)))
    return 0


def measure(args: argparse.Namespace) -> tuple[list[Record], list[Point], list[str]]:
    """The logs, the throughput of each of their shapes under the protocol, and warnings; runs of a shape are repeats.

    Raises InputError for logs that do not say their devices or batch, and for logs of different work.
    """
    protocol = protocols.find(args.protocol)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {args.protocol} measures no throughput, of which the model is")
    by_shape: dict[tuple[int, int], list[Record]] = {}
    for log in args.measured:
        record = read_record(log, batch_per_device=args.batch)
        if record.devices is None or record.batch_per_device is None:
            raise InputError(f"{log}: the log does not say devices or batch, of which the model needs both (--batch)")
        nodes = record.nodes or math.ceil(record.devices / (args.devices_per_node or 8))
        if record.devices % nodes:
            raise InputError(f"{log}: {record.devices} devices on {nodes} nodes; give --devices-per-node")
        by_shape.setdefault((nodes, record.devices // nodes), []).append(record)
    records = [record for group in by_shape.values() for record in group]
    mixture = list(figure_warnings.of_mixture(records))
    for warning in mixture:
        if warning.check in ("mixed_model", "mixed_batch", "mixed_precision"):
            raise InputError(f"{warning.found}; scaling compares the same work, so give logs of one")
    points, warnings = [], [warning.found for warning in mixture]
    for (nodes, per_node), group in sorted(by_shape.items()):
        result = score(group, protocol, skip=args.skip)
        interval = result.interval_95
        if interval is None or len(group) == 1:
            unknown = "the spread of runs is unknown, and not in the prediction's interval"
            warnings.append(f"{nodes} x {per_node}: {unknown}")
        error = math.log(interval[1] / interval[0]) / 2 / 1.96 if interval else None
        points.append(Point(nodes=nodes, devices_per_node=per_node, images_per_s=result.value, relative_error=error))
    return records, points, warnings


def plan(args: argparse.Namespace) -> dict[str, Any]:
    """Predictions at node counts with what they rest on, as plain values."""
    records, measured, warnings = measure(args)
    batch = records[0].batch_per_device
    assert batch
    per_node = args.devices_per_node or max(point.devices_per_node for point in measured)
    points = {point.nodes: point for point in measured if point.devices_per_node == per_node}
    if not points:
        raise InputError(
            f"--devices-per-node {per_node}: no log has as many, and no node is predicted from a part of it"
        )
    loss = learn(published_tables(read_published()))
    training, assumptions = _training(args, records, points[min(points)])
    if set(args.nodes) - set(points):
        assumptions.append(
            f"many nodes do {math.exp(-loss.mean):.1%} of as many times one node, as {loss.tables} published tables of "
            "up to 8 nodes have it"
        )
    predictions = []
    for number in args.nodes:
        base = points[max((n for n in points if n <= number), default=min(points))]
        limit = args.input_images_per_s or math.inf
        row = predict(base, loss, training, nodes=number, batch_per_device=batch, input_limit=limit)
        predictions.append(row | {"measured_images_per_s": base.images_per_s if base.nodes == number else None})
    return {
        "model": {"loss": loss.mean, "loss_spread": loss.spread, "tables": loss.tables},
        "measured": [asdict(point) | {"devices": point.devices} for point in measured],
        "predictions": predictions,
        "assumptions": assumptions,
        "warnings": warnings,
    }


def _training(args: argparse.Namespace, records: Sequence[Record], base: Point) -> tuple[Training, list[str]]:
    """What training takes, from the log's data set, and else ImageNet (or Cityscapes); what is assumed."""
    model = (records[0].model or "").lower()
    segmentation = "hrnet" in model or any(FORMATS[record.format].segmentation for record in records)
    dataset = next((found for record in records if isinstance(found := record.header.get("dataset"), dict)), {})
    sizes = {} if dataset.get("synthetic", True) else dataset
    sizes = {name: size for name, size in sizes.items() if type(size) is int and 0 < size < MOST}
    train, evaluation = CITYSCAPES if segmentation else IMAGENET
    train = sizes.get("train_samples", train)
    imagenet = train == IMAGENET[0] and "resnet" in model
    rate = ASSUMED_EVALUATION_RATE * base.images_per_s / base.devices
    assumptions = [f"evaluation does {rate:.0f} images/s a device, 3 x training"]
    if args.epochs is None and imagenet:
        points = "MLPerf's reference convergence points at the global batch"
        assumptions.insert(0, f"epochs to the target are {points} (--epochs)")
    training = Training(
        epochs=args.epochs,
        train_samples=train,
        eval_samples=sizes.get("eval_samples", evaluation),
        eval_images_per_s_device=rate,
        imagenet=imagenet,
    )
    return training, assumptions


def prediction_lines(found: dict[str, Any]) -> list[str]:
    """The predictions in lines for a reader."""
    shapes = ", ".join(f"{row['nodes']} x {row['devices_per_node']}" for row in found["measured"])
    form = "{:>6} {:>8} {:>12} {:>25} {:>10} {:>9} {:>12} {:>12}"
    lines = [
        f"Measured {shapes} (nodes x devices); throughput lost between many nodes {found['model']['loss']:.1%}",
        "",
        form.format("nodes", "devices", "images/s", "95 % interval", "efficiency", "step ms", "to train", "measured"),
    ]
    first = found["predictions"][0]
    for row in found["predictions"]:
        efficiency = row["images_per_s"] / row["nodes"] / (first["images_per_s"] / first["nodes"])
        interval = "{:.1f} to {:.1f}".format(*row["interval_95"]) if row["interval_95"] else "not known"
        minutes, measured = row["time_to_train_min"], row["measured_images_per_s"]
        figures = f"{row['images_per_s']:.1f}", interval, f"{efficiency:.1%}", f"{1e3 * row['step_time_s']:.2f}"
        to_train = "not known" if minutes is None else f"{minutes:.1f} min"
        shown = f"{measured:.1f}" if measured else "-"
        lines.append(form.format(row["nodes"], row["devices"], *figures, to_train, shown))
    unknown = dict.fromkeys(row["time_to_train_note"] for row in found["predictions"])
    lines.append("")
    lines += [f"assumed: {text}" for text in found["assumptions"]]
    lines += [f"warning: {text}" for text in found["warnings"]]
    return lines + [f"time to train: {text}" for text in unknown if text]


def back_test_lines(found: dict[str, Any]) -> Iterator[str]:
    """The back-test in lines for a reader."""
    results = found["results"]
    yield "From the fewest nodes of each published table to more, by what the other reports lost"
    row = "  {table:<60} {nodes:>2} nodes  published {published:>9.1f}  predicted {predicted:>9.1f} "
    for result in results:
        inside = "" if result["covered"] else "  outside its interval"
        yield (row + "({low:.0f} to {high:.0f})  {error:+.1%}").format(**result) + inside
    tables = len({result["table"] for result in results})
    yield f"{len(results)} figures of {tables} tables; {found['covered']} within their 95 % interval. Median error:"
    yield from (f"  {error:6.2%}  {name}" for name, error in found["median_errors"].items())
