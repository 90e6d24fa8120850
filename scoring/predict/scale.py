"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand.

    images/s of M nodes = images/s of M0 nodes * M / M0 * exp(-loss * (1/M0 - 1/M))

M0 is the next smaller measured node count. (M-1)/M is the share of a ring all-reduce's traffic that leaves a node.
`loss` is the mean over the published figures, and their scatter about it, as it grows with each doubling of the nodes,
makes the interval. docs/scale-model.md has what did no better on figures that it had not seen.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compliance.official import convergence
from runlog import stats, workloads
from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure import warnings as figure_warnings
from scoring.figure.score import counts, score, whole
from scoring.importers import FORMATS, MOST, count, jsonable, read_record
from scoring.published.table import Published, by_devices, read_published
from scoring.record import InputError, Record

EPOCHS_PER_EVAL = 4
ASSUMED_EVALUATION_RATE = 3.0  # times the training rate
IMAGENET, CITYSCAPES = (1_281_167, 50_000), (2_975, 500)  # images to train on, to evaluate


@dataclass(frozen=True, kw_only=True)
class Training:
    """The epochs and evaluations that training to the target takes."""

    epochs: float | None  # None: the reference convergence points of ResNet-50 at the global batch
    train_samples: int
    eval_samples: int
    eval_images_per_s_device: float
    imagenet: bool  # the reference convergence points hold for ResNet on ImageNet only


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
        scatter = self.spread * math.sqrt(abs(math.log2(nodes / base)) * (1 + 1 / self.tables))
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


def epochs_to_target(training: Training, global_batch: int) -> float | str:
    """Epochs at a global batch, or why they are not known.

    Of ResNet-50 on ImageNet those to 75.9 % top-1 by the MLPerf reference convergence points of ruleset 4.0.0, pruned
    and interpolated as the checker does.
    """
    if training.epochs is not None:
        return training.epochs
    if not training.imagenet:
        return "epochs to the target are not known for this model and data set: give --epochs"
    reference = convergence.reference_set("resnet", "4.0.0")
    held_to = convergence.point_at(global_batch, reference.points, reference)
    if held_to is not None:
        return held_to.point.mean
    return f"global batch {global_batch} is past the largest reference convergence point: give --epochs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        says = "no log has as many, and no node is predicted from a part of it"
        raise InputError(f"--devices-per-node {per_node}: {says}")
    loss = learn(published_tables(read_published()))
    training, assumptions = _training(args, records, points[min(points)])
    if set(args.nodes) - set(points):
        sources = f"{loss.tables} published tables of up to 8 nodes"
        assumptions.append(f"many nodes do {math.exp(-loss.mean):.1%} of as many times one node, as {sources} have it")
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
    """Return what training takes, by the log's data set, else by ImageNet (or Cityscapes); and what is assumed."""
    workload = workloads.of_family(records[0].model)
    segmentation = any(FORMATS[record.format].segmentation for record in records)
    dataset = next((found for record in records if isinstance(found := record.header.get("dataset"), dict)), {})
    sizes = {} if dataset.get("synthetic", True) else dataset
    sizes = {name: size for name, size in sizes.items() if type(size) is int and 0 < size < MOST}
    train, evaluation = CITYSCAPES if segmentation else IMAGENET
    if workload is not None:
        train, evaluation = workload.train_samples, workload.eval_samples
    train = sizes.get("train_samples", train)
    imagenet = train == IMAGENET[0] and workload is not None and workload.benchmark == "resnet"
    rate = ASSUMED_EVALUATION_RATE * base.images_per_s / base.devices
    assumptions = [f"evaluation does {rate:.0f} images/s a device, 3 x training"]
    if args.epochs is None and imagenet:
        points = "MLPerf reference convergence points at the global batch"
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
    lines += ["", *(f"assumed: {text}" for text in found["assumptions"])]
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
