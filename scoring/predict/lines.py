"""Predictions as lines for a reader, as `python -m scoring scale` prints them."""

from collections.abc import Mapping
from typing import Any

from runlog.digits import percent


def prediction_lines(predicted: Mapping[str, Any]) -> list[str]:
    """Return predictions as lines: the measured shapes, a table of the predictions, assumptions and warnings.

    `predicted` is what `predict_from_logs` returns. A shape such as `2 x 8` is 2 nodes of 8 devices each. If some times
    to train are not known, the last lines say why.
    """
    shapes = ", ".join(f"{row['nodes']} x {row['devices_per_node']}" for row in predicted["measured"])
    loss = percent(predicted["model"]["loss"])
    row_format = "{:>6} {:>8} {:>12} {:>25} {:>10} {:>9} {:>12} {:>12}"
    head = ("nodes", "devices", "images/s", "95 % interval", "efficiency", "step ms", "to train", "measured")
    lines = [
        f"Measured {shapes} (nodes x devices); throughput lost between many nodes {loss}",
        "",
        row_format.format(*head),
    ]
    first = predicted["predictions"][0]
    for row in predicted["predictions"]:
        lines.append(row_format.format(*_prediction_cells(row, first)))

    lines.append("")
    lines += [f"assumed: {text}" for text in predicted["assumptions"]]
    lines += [f"warning: {text}" for text in predicted["warnings"]]
    reasons = dict.fromkeys(row["time_to_train_note"] for row in predicted["predictions"])  # each once
    lines += [f"time to train: {reason}" for reason in reasons if reason]
    return lines


def _prediction_cells(row: Mapping[str, Any], first: Mapping[str, Any]) -> list[object]:
    """Return the cells of one prediction's line, in the order of the table's head.

    An interval or a time to train that is None becomes `not known`, and a throughput that was not measured `-`. The
    efficiency is the throughput per node as a share of that in the table's first prediction, `first`.
    """
    images_per_s_per_node = row["images_per_s"] / row["nodes"]
    efficiency = images_per_s_per_node / (first["images_per_s"] / first["nodes"])
    interval = "not known"
    if row["interval_95"]:
        interval = "{:.1f} to {:.1f}".format(*row["interval_95"])
    to_train = "not known"
    if row["time_to_train_min"] is not None:
        to_train = f"{format(row['time_to_train_min'], '.1f')} min"
    measured = "-"
    if row["measured_images_per_s"]:
        measured = format(row["measured_images_per_s"], ".1f")
    step_time_ms = 1e3 * row["step_time_s"]
    return [
        row["nodes"],
        row["devices"],
        format(row["images_per_s"], ".1f"),
        interval,
        percent(efficiency),
        format(step_time_ms, ".2f"),
        to_train,
        measured,
    ]
