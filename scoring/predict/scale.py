"""`python -m scoring scale`: throughput and time to train at node counts that are not at hand, by loss.py."""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from runlog.digits import percent
from runlog.json_types import JsonObject
from runlog.text import safe_lines
from scoring.figure.options import add_skip_option, counts
from scoring.importers import count, jsonable
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
from scoring.predict.training import Training, assumed_training, time_to_train
from scoring.published.table import read_published
from scoring.record import InputError


def predict(
    base: Point,
    scaling_loss: ScalingLoss,
    training: Training,
    *,
    nodes: int,
    batch_per_device: int,
    input_limit: float = math.inf,
) -> JsonObject:
    """Return the predicted throughput and time to train on a number of nodes, as a row of plain values.

    Args:
        base: The measured throughput from which to scale.
        scaling_loss: The scaling model: the throughput lost to communication between nodes.
        training: How many epochs and images training to the target takes.
        nodes: The number of nodes to predict. It may be that of `base`.
        batch_per_device: Images of one step on one device.
        input_limit: The most images/s that the input of one node delivers.

    Returns:
        The row by names such as "images_per_s"; None for what is not known. Each step waits `input_wait_s` for its
        input, which is 0 if the input does not limit the throughput.
    """
    devices = nodes * base.devices_per_node
    global_batch = devices * batch_per_device
    images_per_s_without_limit = base.images_per_s * scaling_loss.throughput_ratio(base.nodes, nodes)
    images_per_s = min(images_per_s_without_limit, nodes * input_limit)
    step_s = global_batch / images_per_s
    step_without_waiting_s = global_batch / images_per_s_without_limit
    time = time_to_train(training, global_batch=global_batch, devices=devices, step_s=step_s)

    interval_95 = None
    minutes_95 = None
    low_factor, high_factor = scaling_loss.relative_interval_95(base.nodes, nodes, base.half_width_95 or 0.0)
    an_error_is_known = low_factor < high_factor  # both are 1 without any error
    if an_error_is_known:
        # The limit of the input holds at both ends, too. Where both lie above it, the limit alone is the interval.
        low = min(images_per_s_without_limit * low_factor, nodes * input_limit)
        high = min(images_per_s_without_limit * high_factor, nodes * input_limit)
        interval_95 = [low, high]
        # On other numbers of nodes, published times were outside such intervals.
        if time.minutes is not None and nodes == base.nodes:
            # A high rate takes little time.
            minutes_95 = [time.minutes * images_per_s / high, time.minutes * images_per_s / low]
    return {
        "nodes": nodes,
        "devices": devices,
        "global_batch": global_batch,
        "images_per_s": images_per_s,
        "interval_95": interval_95,
        "step_time_s": step_s,
        "input_wait_s": step_s - step_without_waiting_s,
        "epochs": time.epochs,
        "time_to_train_min": time.minutes,
        "time_to_train_95_min": minutes_95,
        "time_to_train_note": time.why_unknown,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `python -m scoring scale` to its parser.

    The command predicts the throughput and the time to train on the node counts of --nodes, from the logs of
    --measured. --protocol names the rules by which measured runs become one throughput. With --back-test, the command
    tests its model of how throughput grows with the nodes on published figures instead.

    Args:
        parser: The parser of the command. A default text, such as that of --nodes, is converted in the same way as the
            user's text.
    """
    add = parser.add_argument
    add("--measured", nargs="+", metavar="LOG", default=[], help="logs of one node count or more")
    add("--nodes", type=counts, default="1,2,4,8,64,1024", help="node counts to predict (default: %(default)s)")
    add("--back-test", action="store_true", help="the model against the published tables")
    add("--protocol", default="window", help="how runs become a step time (default: %(default)s)")
    add_skip_option(parser)
    add("--devices", type=count, metavar="N", help="devices of a run, for logs that do not say it")
    add("--batch", type=count, metavar="N", help="images a device, for logs that do not say it")
    add("--devices-per-node", type=count, metavar="N", help="default: the most that a measured node has")
    add("--input-images-per-s", type=positive, metavar="R", help="most that a node's input can feed")
    add("--epochs", type=positive, help="epochs to the target (default for ResNet-50 on ImageNet: MLPerf reference)")
    add("--json", action="store_true", help="machine-readable output")


def positive(text: str) -> float:
    """Return the text of an option as a number between 1e-12 and 1e15.

    Numbers outside these bounds are too small or too large to compute with.

    Args:
        text: The option's value, such as "90" or "0.5".

    Raises:
        ArgumentTypeError: The text is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e-12 < value < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0 and below 1e15")
    return value


def main(args: argparse.Namespace) -> int:
    """Run the command `scale`: print predictions for node counts that are not at hand, or a test of the model.

    Args:
        args: The parsed options of `add_arguments`. `back_test` prints how well the model predicts published figures;
            `measured` are the logs to predict from.

    Returns:
        The exit status, which is 0.

    Raises:
        InputError: Neither --measured nor --back-test is given, --back-test is given with an option of predictions, or
            `predict_from_logs` raises it.
        TooFewRunsError: As `predict_from_logs` raises it.
    """
    if args.back_test:
        _refuse_options_of_predictions(args)
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


def _refuse_options_of_predictions(args: argparse.Namespace) -> None:
    """Raise InputError if an option beside --back-test and --json has another value than its default.

    Args:
        args: The parsed options of `add_arguments`, with --back-test among them.

    Raises:
        InputError: There is such an option, as --nodes, which would change nothing. The message names it.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    defaults = parser.parse_args([])
    for name, default in vars(defaults).items():
        if name not in ("back_test", "json") and getattr(args, name) != default:
            option = "--" + name.replace("_", "-")
            raise InputError(f"--back-test predicts published figures alone: leave out {option}, or --back-test")


def _print_back_test(*, as_json: bool) -> None:
    """Print every published figure with what the scaling model predicts for it, and the median errors.

    Args:
        as_json: Whether to print JSON in place of lines.
    """
    results = back_test(published_tables(read_published()))
    if as_json:
        covered = sum(result.covered for result in results)
        rows = [asdict(result) for result in results]
        print(json.dumps({"median_errors": median_errors(results), "covered": covered, "results": rows}, indent=1))
    else:
        print("\n".join(back_test_lines(results)))


def predict_from_logs(args: argparse.Namespace) -> JsonObject:
    """Return predictions of throughput and time to train for some node counts, as `scale --json` prints them.

    The throughput on the measured node counts comes from the logs. How much throughput is lost to communication as
    nodes are added comes from published figures of other runs. A node count of --nodes that was measured takes its
    throughput from the logs alone, any other one from both.

    Args:
        args: The parsed options of `python -m scoring scale`: `measured` are the logs, `nodes` the node counts to
            predict.

    Returns:
        By name: the model, the measured throughputs, a row for each predicted node count, assumptions and warnings.

    Raises:
        InputError: No log has nodes of --devices-per-node devices, or the logs cannot be scored together.
        TooFewRunsError: The protocol asks for more runs than there are on some number of nodes and devices per node.
        OSError: A log, or the file of the protocol, cannot be opened.
    """
    # `records` are the logs as read. `measured` has a throughput (Point) for each pair of nodes and devices per node.
    records, measured, warnings = measure(args)
    # {nodes: Point} of full nodes only: those with as many devices as a predicted node has.
    base_by_nodes = _points_by_nodes(measured, args.devices_per_node)
    # One coefficient, `loss`: on many nodes the throughput tends to exp(-loss) of linear scaling from one node.
    scaling_loss = fit_scaling_loss(published_tables(read_published()))

    # `training` has the epochs, the numbers of images and the speed of evaluation; `assumptions` are texts on them. The
    # speed is assumed from that of training on the fewest nodes, where communication costs least.
    base_on_fewest_nodes = base_by_nodes[min(base_by_nodes)]
    training, assumptions = assumed_training(records, base_on_fewest_nodes, args.epochs)

    some_are_not_measured = bool(set(args.nodes) - set(base_by_nodes))  # only their predictions use the loss
    if some_are_not_measured:
        assumptions.append(_assumed_scaling_in_words(scaling_loss))

    batch_per_device = records[0].batch_per_device
    assert batch_per_device, "`measure` has refused logs without it"
    return {
        "model": {"loss": scaling_loss.loss, "loss_spread": scaling_loss.spread, "tables": scaling_loss.tables},
        "measured": [asdict(point) | {"devices": point.devices} for point in measured],
        "predictions": _prediction_rows(args, base_by_nodes, scaling_loss, training, batch_per_device),
        "assumptions": assumptions,
        "warnings": warnings,
    }


def _prediction_rows(
    args: argparse.Namespace,
    points: Mapping[int, Point],
    scaling_loss: ScalingLoss,
    training: Training,
    batch_per_device: int,
) -> list[JsonObject]:
    """Return a row for each node count of --nodes: the prediction, and the measured throughput next to it.

    Args:
        args: The parsed options of `python -m scoring scale`.
        points: The measured throughputs by node count. A prediction starts from the largest count that is not above its
            own, or else from the smallest.
        scaling_loss: The scaling model: the throughput lost to communication between nodes.
        training: How many epochs and images training to the target takes.
        batch_per_device: Images of one step on one device.

    Returns:
        The rows of `predict`, each with `measured_images_per_s` added: None for a node count that was not measured.
    """
    input_limit = math.inf if args.input_images_per_s is None else args.input_images_per_s
    rows = []
    for nodes in args.nodes:
        base = points[_base_nodes(points, nodes)]
        row = predict(
            base, scaling_loss, training, nodes=nodes, batch_per_device=batch_per_device, input_limit=input_limit
        )
        row["measured_images_per_s"] = points[nodes].images_per_s if nodes in points else None
        rows.append(row)
    return rows


def _assumed_scaling_in_words(scaling_loss: ScalingLoss) -> str:
    """Return in words what is assumed for unmeasured nodes: what share of linear scaling a large cluster reaches.

    Compared with one node it is exp(-loss * (1 - 1 / M)) on M nodes, which tends to exp(-loss).

    Args:
        scaling_loss: The scaling model: the throughput lost to communication between nodes.
    """
    share_of_linear = percent(math.exp(-scaling_loss.loss))
    sources = f"{scaling_loss.tables} published tables of up to 8 nodes"
    return f"many nodes do {share_of_linear} of as many times one node, as {sources} have it"


def _points_by_nodes(measured: Sequence[Point], devices_per_node: int | None) -> dict[int, Point]:
    """Return the measured throughputs whose nodes have a given number of devices, by their number of nodes.

    The others are left out: a run on 4 of the 8 devices of a node does not tell the throughput of the whole node.

    Args:
        measured: The measured throughputs, at least one. No two have both the same nodes and devices per node.
        devices_per_node: How many devices a node must have. None takes the most that a measured node has.

    Raises:
        InputError: No measured node has so many devices.
    """
    wanted = devices_per_node or max(point.devices_per_node for point in measured)
    points = {point.nodes: point for point in measured if point.devices_per_node == wanted}
    if not points:
        reason = "no log has as many, and no node is predicted from a part of it"
        raise InputError(f"--devices-per-node {wanted}: {reason}")
    return points


def _base_nodes(measured: Iterable[int], nodes: int) -> int:
    """Return the measured node count from which another one is predicted.

    Args:
        measured: The measured node counts, in any order. At least one.
        nodes: The node count to predict.

    Returns:
        The largest measured count that is at most `nodes`; the smallest one if all are larger.
    """
    ascending = sorted(measured)
    up_to_predicted = [count_of_nodes for count_of_nodes in ascending if count_of_nodes <= nodes]
    return up_to_predicted[-1] if up_to_predicted else ascending[0]
