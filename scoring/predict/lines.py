"""Predictions as lines for a reader, as `python -m scoring scale` prints them."""

from collections.abc import Mapping
from typing import Any


def prediction_lines(planned: Mapping[str, Any]) -> list[str]:
    """Return a plan as lines: the measured shapes, a table of the predictions, assumptions and warnings.

    `planned` is what `plan` returned. An efficiency compares a prediction with the first one in the table. The last
    lines say why a time to train is not known, where it is not.
    """
    shapes = ", ".join(f"{row['nodes']} x {row['devices_per_node']}" for row in planned["measured"])
    loss = format(planned["model"]["loss"], ".1%")
    form = "{:>6} {:>8} {:>12} {:>25} {:>10} {:>9} {:>12} {:>12}"
    lines = [
        f"Measured {shapes} (nodes x devices); throughput lost between many nodes {loss}",
        "",
        form.format("nodes", "devices", "images/s", "95 % interval", "efficiency", "step ms", "to train", "measured"),
    ]
    first = planned["predictions"][0]
    for row in planned["predictions"]:
        lines.append(form.format(*_prediction_cells(row, first)))

    lines.append("")
    lines += [f"assumed: {text}" for text in planned["assumptions"]]
    lines += [f"warning: {text}" for text in planned["warnings"]]
    reasons = dict.fromkeys(row["time_to_train_note"] for row in planned["predictions"])  # each once
    lines += [f"time to train: {reason}" for reason in reasons if reason]
    return lines


def _prediction_cells(row: Mapping[str, Any], first: Mapping[str, Any]) -> list[object]:
    """Return the cells of a prediction's line, in the order of the table's head.

    The efficiency is the throughput of a node as a share of that of a node in the `first` prediction. What is not known
    says so; a dash stands for the measured throughput of a node count that was not measured.
    """
    images_per_s_of_node = row["images_per_s"] / row["nodes"]
    efficiency = images_per_s_of_node / (first["images_per_s"] / first["nodes"])
    interval = "not known"
    if row["interval_95"]:
        interval = "{:.1f} to {:.1f}".format(*row["interval_95"])
    to_train = "not known"
    if row["time_to_train_min"] is not None:
        to_train = f"{format(row['time_to_train_min'], '.1f')} min"
    measured = "-"
    if row["measured_images_per_s"]:
        measured = format(row["measured_images_per_s"], ".1f")
    return [
        row["nodes"],
        row["devices"],
        format(row["images_per_s"], ".1f"),
        interval,
        format(efficiency, ".1%"),
        format(1e3 * row["step_time_s"], ".2f"),
        to_train,
        measured,
    ]
