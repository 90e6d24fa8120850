"""Predictions as lines for a reader, as `python -m scoring scale` prints them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runlog.digits import percent

_ROW_FORMAT = "{:>6} {:>8} {:>12} {:>25} {:>10} {:>9} {:>12} {:>12}"


def prediction_lines(predicted: Mapping[str, Any]) -> list[str]:
    """Return predicted throughputs as lines: the measured shapes, a table of predictions, assumptions and warnings.

    A shape such as "2 x 8" is 2 nodes of 8 devices each. If some times to train are not known, the last lines say why.

    Args:
        predicted: The predictions, at least one, as `predict_from_logs` returns them: "model", "measured",
            "predictions", "assumptions" and "warnings".
    """
    shapes = ", ".join(f"{row['nodes']} x {row['devices_per_node']}" for row in predicted["measured"])
    # By the scaling model, M nodes reach the share exp(-loss * (1 - 1 / M)) of M times the throughput of one node.
    # On many nodes 1 / M is about 0, so that the share is about exp(-loss).
    share_left_on_many_nodes = math.exp(-predicted["model"]["loss"])
    lost_share = 1 - share_left_on_many_nodes
    rows = predicted["predictions"]
    table = [_prediction_cells(row, first=rows[0]) for row in rows]
    column_names = table[0].keys()
    return [
        f"Measured {shapes} (nodes x devices); throughput lost between many nodes {percent(lost_share)}",
        "",
        _ROW_FORMAT.format(*column_names),
        *[_ROW_FORMAT.format(*cells.values()) for cells in table],
        "",
        *[f"assumed: {text}" for text in predicted["assumptions"]],
        *[f"warning: {text}" for text in predicted["warnings"]],
        *[f"time to train: {reason}" for reason in _reasons_for_unknown_times(rows)],
    ]


def _reasons_for_unknown_times(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why the times to train of some predictions are not known, each reason once.

    Args:
        rows: The predictions, as `predict_from_logs` returns them.
    """
    reasons = dict.fromkeys(row["time_to_train_note"] for row in rows)  # in order, without repeats
    return [reason for reason in reasons if reason]


def _prediction_cells(row: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, object]:
    """Return the cells of one row of the table of predictions, by the names of the columns, in their order.

    What is not known is "not known", and a throughput that was not measured is "-".

    Args:
        row: The prediction for one number of nodes, as `predict_from_logs` returns it.
        first: The first prediction of the table. The efficiency is the row's throughput per node, divided by the
            throughput per node of this one.
    """
    images_per_s_per_node = row["images_per_s"] / row["nodes"]
    efficiency = images_per_s_per_node / (first["images_per_s"] / first["nodes"])
    interval = "not known"
    if row["interval_95"]:
        interval = "{:.1f} to {:.1f}".format(*row["interval_95"])
    to_train = "not known"
    if row["time_to_train_min"] is not None:
        to_train = f"{row['time_to_train_min']:.1f} min"
    measured = "-"
    if row["measured_images_per_s"]:
        measured = f"{row['measured_images_per_s']:.1f}"
    step_time_ms = 1e3 * row["step_time_s"]
    return {
        "nodes": row["nodes"],
        "devices": row["devices"],
        "images/s": f"{row['images_per_s']:.1f}",
        "95 % interval": interval,
        "efficiency": percent(efficiency),
        "step ms": f"{step_time_ms:.2f}",
        "to train": to_train,
        "measured": measured,
    }
