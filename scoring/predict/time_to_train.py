"""`python -m scoring time-to-train`: minutes to 0.759 by recipe `mlperf_lars` on nodes of 8 x A100, and MLPerf's.

Epochs are MLPerf's reference convergence points; the rate is the fastest published of Paddle on one such node, on more
by the scaling model (scale.py); evaluations are those of `python -m scoring scale`. Limits: docs/scale-model.md.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from scoring.figure.score import counts
from scoring.predict import scale
from scoring.published.table import Published, read_published, select
from scoring.record import InputError

DEVICES = 8  # of a node
GLOBAL_BATCH = 3264  # of every published log of 1 to 8 nodes of 8 x A100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=counts, default="1,2,4,8", help="node counts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def fastest(rows: Sequence[Published]) -> Published:
    """The fastest published training by Paddle on one node of 8 x A100."""
    on_a_node = select(rows, metric="throughput", accelerator="A100", nodes=1, devices=DEVICES)
    return max((row for row in on_a_node if row.framework.startswith("Paddle")), key=lambda row: row.value)


def predictions(rows: Sequence[Published], *, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Minutes to the target at each node count, each with the published ones of its size."""
    rate, loss = fastest(rows).value, scale.learn(scale.published_tables(rows))
    training = scale.Training(
        epochs=None,
        train_samples=scale.IMAGENET[0],
        eval_samples=scale.IMAGENET[1],
        eval_images_per_s_device=scale.ASSUMED_EVALUATION_RATE * rate / DEVICES,
        imagenet=True,
    )
    one_node = scale.Point(nodes=1, devices_per_node=DEVICES, images_per_s=rate, relative_error=None)
    found = []
    for number in nodes:
        batch, left = divmod(GLOBAL_BATCH, DEVICES * number)
        if left:
            raise InputError(f"--nodes {number}: {DEVICES * number} devices do not divide {GLOBAL_BATCH} images a step")
        row = scale.predict(one_node, loss, training, nodes=number, batch_per_device=batch)
        row["interval_95"] = None  # the batch of a device shrinks: the model's scatter is of a constant one
        logged = select(rows, metric="time_to_train", accelerator="A100", nodes=number, devices=DEVICES * number)
        row["published"] = [
            {
                "minutes": minutes,
                **{name: getattr(figure, name) for name in ("source", "system", "line")},
                "error": row["time_to_train_min"] / minutes - 1,
            }
            for figure in logged
            if figure.batch_per_device in (None, batch)
            for minutes in [figure.log_value or figure.value]  # that of the logs, before any convergence scaling
        ]
        found.append(row)
    return found


def text(found: Sequence[dict[str, Any]], base: Published) -> str:
    """The predictions for a reader."""
    lines = [
        "Minutes to 0.759 by mlperf_lars on nodes of 8 x A100. Predicted, not measured.",
        f"One node does {base.printed} images/s ({base.source}, published); "
        f"evaluation {scale.ASSUMED_EVALUATION_RATE:g} x that.",
        "A device is taken to be as fast at a smaller batch, so there is no interval.",
    ]
    for row in found:
        shown = f"nodes {row['nodes']}, global batch {row['global_batch']}, {1e3 * row['step_time_s']:.1f} ms a step: "
        lines.append(f"{shown}{row['time_to_train_min']:.2f} min, {row['epochs']:.2f} epochs")
        lines += [
            f"    {f['minutes']:7.3f} min published, error {f['error']:+7.1%}  {f['source']}: {f['system']}"
            for f in row["published"]
        ]
    return "\n".join(lines)


def main(args: argparse.Namespace) -> int:
    """Print the predictions. Returns 0."""
    rows = read_published()
    found = predictions(rows, nodes=args.nodes)
    print(json.dumps(found, indent=1) if args.json else text(found, fastest(rows)))
    return 0
