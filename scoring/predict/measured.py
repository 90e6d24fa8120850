"""The measured throughputs that `python -m scoring scale` predicts from, read from the logs of --measured."""

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.digits import counted
from scoring.figure import protocols, spread
from scoring.figure import warnings as figure_warnings
from scoring.figure.score import Score, score
from scoring.figure.systems import read_described
from scoring.record import InputError, Record


@dataclass(frozen=True, kw_only=True)
class Point:
    """The measured throughput of so many nodes, with so many devices on each."""

    nodes: int
    devices_per_node: int
    images_per_s: float
    half_width_95: float | None  # of its 95 % interval, in the logarithm; None if the throughput has no interval

    @property
    def devices(self) -> int:
        """Return the number of devices on all nodes."""
        return self.nodes * self.devices_per_node


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
    """Read the logs of --measured, and return the throughput of each shape, such as 2 nodes with 8 devices each.

    A shape is a pair of numbers: the nodes of a run, and the devices on each node. All logs of one shape are scored
    together as repeats, so three logs of 2 nodes with 8 devices each give one throughput.

    Args:
        args: The parsed options of `python -m scoring scale`. `measured` are the logs; `protocol` and `skip` say how to
            score the logs. A log that does not say its devices takes `devices`, one that does not say its batch per
            device takes `batch`, and one that does not say its nodes is taken to have at most `devices_per_node`
            devices on a node (None: 8).

    Returns:
        Three values:

        - what was read from each log
        - the throughput of each shape, by ascending nodes
        - warnings: the logs differ in math mode or software; `batch` is another one than the logs say, or all logs say
          their devices; what `score` warns of in a single log; the spread of the runs of a shape is not known

    Raises:
        InputError: The protocol is unknown or invalid, or measures training times. A log cannot be read as a single
            run, its devices or batch are not known, or its devices cannot be shared equally among its nodes. The logs
            differ in model, batch or precision, or cannot be scored.
        TooFewRunsError: A shape has fewer runs than the protocol asks for.
        OSError: A log, or the file of the protocol, cannot be opened.
    """
    protocol = protocols.find(args.protocol)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {args.protocol} measures no throughput, which the model is made of")
    records_by_shape = _records_by_shape(args)
    records = list(itertools.chain.from_iterable(records_by_shape.values()))
    # This call raises InputError if the logs differ in model, batch or precision. Another math mode or other software
    # in some log only gives a warning.
    warnings = _require_same_work(records)
    batch_of_all_logs = records[0].batch_per_device  # images of a step on one device, the same in all logs by now
    if args.batch not in (None, batch_of_all_logs):  # --batch is only for logs that do not say their batch
        warnings.append(f"--batch {args.batch} is not taken: the logs say {batch_of_all_logs} images a device")
    if args.devices is not None and not any("devices" in record.from_options for record in records):
        warnings.append(f"--devices {args.devices} is not taken: the logs or their systems' descriptions say it")

    points = []
    for shape, repeats in sorted(records_by_shape.items()):  # by ascending nodes, then by devices on each
        scored = score(repeats, protocol, skip=args.skip)
        points.append(_point(shape, scored))
        warnings += _doubts_about_logs(scored)
        if not _knows_spread_of_runs(scored):  # a single run, or no interval
            doubt = "the spread of runs is unknown, and not in the prediction's interval"
            warnings.append(f"{shape.nodes} x {shape.devices_per_node}: {doubt}")
    return Measured(records, points, warnings)


def _point(shape: Shape, scored: Score) -> Point:
    """Return the measured throughput of a number of nodes and of devices on each.

    Args:
        shape: The two numbers.
        scored: The score of the runs on so many nodes and devices.
    """
    return Point(
        nodes=shape.nodes,
        devices_per_node=shape.devices_per_node,
        images_per_s=scored.value,
        half_width_95=None if scored.interval_95 is None else spread.half_width(scored.interval_95),
    )


def _doubts_about_logs(scored: Score) -> list[str]:
    """Return the warnings of a score that are about a single log, each behind the log's path.

    Those on all runs together are left out, as the interval of the prediction tells them.

    Args:
        scored: The score.
    """
    texts = []
    for doubt in scored.warnings:
        is_of_a_log = bool(doubt.where)
        if is_of_a_log and doubt.check != "system_unsaid":  # which is about the number of hosts, and names one log
            texts.append(f"{doubt.where}: {doubt.found}")
    return texts


def _knows_spread_of_runs(scored: Score) -> bool:
    """Return whether the interval of a score shows how far runs lie apart.

    Args:
        scored: The score. With a single run it has at most an interval of the run's own mean, which does not show it.
    """
    return len(scored.runs) > 1 and scored.interval_95 is not None


def _records_by_shape(args: argparse.Namespace) -> dict[Shape, list[Record]]:
    """Read the logs of --measured, and return the runs of each shape: a number of nodes and of devices on each.

    If a log does not say its nodes, its devices are taken to be on as few nodes as possible, with at most
    --devices-per-node (or else 8) on each.

    Args:
        args: The parsed options of `python -m scoring scale`: `measured` are the logs, `devices` and `batch` the
            number of devices and the batch of one for logs that do not say them, and `devices_per_node` the most
            devices of a node.

    Returns:
        The runs as read from their logs by their shape, in the order of the command line.

    Raises:
        InputError: A log does not say its devices or batch, its devices cannot be shared equally among its nodes, or it
            cannot be read.
    """
    most_devices_per_node = args.devices_per_node or 8  # 8 is the usual number of GPUs of a server
    records_by_shape: dict[Shape, list[Record]] = {}
    for log in args.measured:
        record = _read_log(log, devices=args.devices, batch=args.batch)
        if record.devices is None:
            raise InputError(f"{log}: the log does not say how many devices ran; give --devices")
        if record.batch_per_device is None:
            raise InputError(f"{log}: {_why_no_batch(record.batch_of_all, record.devices)}")
        shape = _shape(log, record.devices, record.nodes, most_devices_per_node)
        records_by_shape.setdefault(shape, []).append(record)
    return records_by_shape


def _why_no_batch(batch_of_all: int | None, devices: int) -> str:
    """Return why the batch of one device is not known, and what to do.

    Args:
        batch_of_all: The batch over all devices; None if it is not known either.
        devices: The number of devices.
    """
    if batch_of_all is None:
        return "the log does not say the batch of one device; give --batch"
    return f"{counted(devices, 'device')} cannot share a batch of {batch_of_all} evenly; check --devices"


def _read_log(log: str, *, devices: int | None, batch: int | None) -> Record:
    """Return what a log says, or the description of its system, with the user's numbers for what neither says.

    Args:
        log: Path of the log.
        devices: The number of devices of --devices, if given.
        batch: The batch of one device of --batch, if given.

    Raises:
        InputError: The log cannot be read as a single run, or the batch does not fit the system's description.
        OSError: The log cannot be opened.
    """
    record = read_described(log)
    devices_unsaid = devices if record.devices is None else None
    batch_unsaid = batch if record.batch_per_device is None else None
    if devices_unsaid is None and batch_unsaid is None:
        return record
    return read_described(log, devices=devices_unsaid, batch_per_device=batch_unsaid)


def _shape(log: str, devices: int, nodes: int | None, most_devices_per_node: int) -> Shape:
    """Return the number of nodes of a run and of devices on each.

    Args:
        log: Path of the log, for the error.
        devices: The number of devices of the run.
        nodes: The number of nodes. If None, it is the fewest possible: 12 devices at 8 a node are 2 nodes with 6 each.
        most_devices_per_node: How many devices a node has at most, if the nodes are not known.

    Raises:
        InputError: The devices cannot be shared equally among the nodes.
    """
    if not nodes:
        nodes = math.ceil(devices / most_devices_per_node)
    if devices % nodes:
        raise InputError(f"{log}: {counted(devices, 'device')} on {counted(nodes, 'node')}; give --devices-per-node")
    return Shape(nodes, devices // nodes)


def _require_same_work(records: Sequence[Record]) -> list[str]:
    """Raise an error if runs did different work. Return a warning for each other difference: math mode or software.

    Args:
        records: The runs as read from their logs.

    Raises:
        InputError: The runs differ in model, batch per device or precision.
    """
    texts = []
    for warning in figure_warnings.warn_of_mixed_settings(records):
        if warning.check in ("mixed_model", "mixed_batch", "mixed_precision"):
            raise InputError(f"{warning.found}; scaling compares the same work, so give logs of one")
        texts.append(warning.found)
    return texts
