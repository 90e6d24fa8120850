"""`python -m scoring time-to-train`: minutes to 0.759 by recipe `mlperf_lars` on nodes of 8 x A100, and MLPerf's.

Epochs are MLPerf's reference convergence points; the rate is the fastest published of Paddle on one such node, on more
by the scaling model (scale_model.py); evaluations are those of `python -m scoring scale`. Limits: docs/estimate.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from typing import Any

from scoring.importers import count
from scoring.published import Published, read_published, select
from scoring.record import InputError
from scoring.scale import Point, predict
from scoring.scale_model import Training, learn, published_tables

DEVICES = 8  # of a node
EVALUATION_RATE = 3.0  # times the training rate, as `scale` assumes
GLOBAL_BATCH = 3264  # of every published log of 1 to 8 nodes of 8 x A100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring time-to-train`."""
    parser.add_argument("--nodes", default="1,2,4,8", help="node counts (default: %(default)s)")
    parser.add_argument(
        "--global-batch", type=count, default=GLOBAL_BATCH, help="images of a step (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def fastest(rows: list[Published]) -> Published:
    """The fastest published training by Paddle on one node of 8 x A100."""
    return max(
        (
            row
            for row in select(rows, metric="throughput", accelerator="A100", nodes=1, devices=DEVICES)
            if row.framework.startswith("Paddle")
        ),
        key=lambda row: row.value,
    )


def predictions(rows: list[Published], *, nodes: Sequence[int], global_batch: int) -> list[dict[str, Any]]:
    """Minutes to the target at each node count, each with the published ones of its size and batch."""
    base = fastest(rows)
    training = Training(
        epochs=None,
        train_samples=1_281_167,
        eval_samples=50_000,
        epochs_per_eval=4,
        eval_images_per_s_device=EVALUATION_RATE * base.value / DEVICES,
        imagenet=True,
    )
    loss = learn(published_tables(rows))
    one_node = Point(nodes=1, devices_per_node=DEVICES, images_per_s=base.value, relative_error=None)
    found = []
    for count_ in nodes:
        batch, left = divmod(global_batch, DEVICES * count_)
        if left:
            raise InputError(
                f"--global-batch {global_batch}: {DEVICES * count_} devices of {count_} nodes do not divide it"
            )
        row = predict(one_node, loss, nodes=count_, batch_per_device=batch, training=training)
        minutes = row["time_to_train_min"]
        published = select(rows, metric="time_to_train", accelerator="A100", nodes=count_, devices=DEVICES * count_)
        row["published"] = [
            {
                "minutes": logged,
                "source": figure.source,
                "system": figure.system,
                "line": figure.line,
                "error": minutes / logged - 1 if minutes else None,
            }
            for figure in published
            if (figure.batch_per_device or batch) == batch
            for logged in [figure.log_value or figure.value]  # that of the logs, before any convergence scaling
        ]
        found.append(row)
    return found


def lines(found: Sequence[dict[str, Any]], base: Published) -> list[str]:
    """The predictions for a reader."""
    shown = [
        f"Minutes to 0.759 by mlperf_lars on nodes of 8 x A100. Predicted, not measured. One node: {base.printed} "
        f"images/s of {base.source}."
    ]
    errors = []
    for row in found:
        minutes = row["time_to_train_min"]
        if minutes is None:
            shown.append(f"nodes {row['nodes']}: not known ({row['time_to_train_note']})")
            continue
        low, high = row["time_to_train_95_min"]
        width = f" ({low:.2f} to {high:.2f})" if high > low else ""
        shown.append(
            f"nodes {row['nodes']}, global batch {row['global_batch']}: {minutes:.2f} min{width}, {row['epochs']:.2f} "
            f"epochs, {1e3 * row['step_time_s']:.1f} ms a step"
        )
        for figure in row["published"]:
            errors.append(abs(figure["error"]))
            shown.append(
                f"    {figure['minutes']:7.3f} min published, error {figure['error']:+7.1%}  {figure['source']}: "
                f"{figure['system']}"
            )
    if errors:
        shown.append(
            f"{len(errors)} published: median error {statistics.median(errors):.1%}, largest {max(errors):.1%}"
        )
    shown += [
        f"assumed: evaluation does {EVALUATION_RATE:g} x the training rate; a device is as fast at its smaller batch",
        "the interval is the scaling model's alone: of one node nothing is known",
    ]
    return shown


def main(args: argparse.Namespace) -> int:
    """Print the predictions. Returns 0."""
    try:
        nodes = [count(text) for text in args.nodes.split(",")]
    except ValueError:
        raise InputError(f"--nodes: {args.nodes!r} are no node counts; give some as 1,2,4,8") from None
    rows = read_published()
    found = predictions(rows, nodes=nodes, global_batch=args.global_batch)
    print(json.dumps(found, indent=1) if args.json else "\n".join(lines(found, fastest(rows))))
    return 0
