"""Predictions as lines for a reader, as `python -m scoring scale` prints them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runlog.digits import percent

_ROW_FORMAT = "{:>6} {:>8} {:>12} {:>25} {:>10} {:>9} {:>12} {:>12}"


def prediction_lines(predicted: Mapping[str, Any]) -> list[str]:
    """Return predicted throughputs as lines to print: a headline, a table of the predictions, and notes.

    The headline names what was measured, such as "1 x 8" for 1 node with 8 devices, and what share of the throughput is
    lost to communication on many nodes. The table has a line for each predicted number of nodes:

        Measured 1 x 8 (nodes x devices); throughput lost between many nodes 4.9%

         nodes  devices     images/s             95 % interval efficiency   step ms     to train     measured
             1        8      20000.0                 not known     100.0%    102.40    not known      20000.0

        assumed: evaluation does 7500 images/s a device, 3 x training
        warning: 1 x 8: the spread of runs is unknown, and not in the prediction's interval
        time to train: epochs to the target are not known for this model and data set: give --epochs

    Args:
        predicted: What `predict_from_logs` returns. "measured" and "predictions" are lists of rows, which are
            dictionaries such as {"nodes": 1, "devices": 8, ...}. There is at least one prediction.
    """
    shapes = ", ".join(f"{row['nodes']} x {row['devices_per_node']}" for row in predicted["measured"])
    # `loss` is the one coefficient of the model. By the model, each of very many nodes keeps exp(-loss) of the
    # throughput that it has alone. With a loss of 0.05 it keeps 95.1 %, and 4.9 % are lost.
    kept_share_on_many_nodes = math.exp(-predicted["model"]["loss"])
    lost_share = 1 - kept_share_on_many_nodes
    rows = predicted["predictions"]
    base = min(rows, key=_nodes_of)  # of the efficiency
    table = [_prediction_cells(row, base) for row in rows]
    column_names = table[0].keys()  # "nodes", "devices", "images/s" and so on, the same in each row
    return [
        f"Measured {shapes} (nodes x devices); throughput lost between many nodes {percent(lost_share)}",
        "",
        _ROW_FORMAT.format(*column_names),
        *[_ROW_FORMAT.format(*cells.values()) for cells in table],
        "",
        *[f"assumed: {text}" for text in predicted["assumptions"]],
        *[f"warning: {text}" for text in predicted["warnings"]],
        # A line for each reason why a time to train is not known.
        *[f"time to train: {reason}" for reason in _reasons_for_unknown_times(rows)],
    ]


def _reasons_for_unknown_times(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why the times to train of some predictions are not known, each reason once.

    Args:
        rows: The predictions, as `predict_from_logs` returns them.
    """
    reasons = dict.fromkeys(row["time_to_train_note"] for row in rows)  # in order, without repeats
    return [reason for reason in reasons if reason]


def _nodes_of(row: Mapping[str, Any]) -> int:
    """Return the number of nodes of a prediction."""
    nodes: int = row["nodes"]
    return nodes


def _prediction_cells(row: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, object]:
    """Return the cells of one row of the table of predictions, by the names of the columns, in their order.

    What is not known is "not known", and a throughput that was not measured is "-".

    Args:
        row: The prediction for one number of nodes, as `predict_from_logs` returns it.
        base: The prediction for the fewest nodes of the table. The efficiency is the row's throughput per node,
            divided by the throughput per node of this one.
    """
    images_per_s_per_node = row["images_per_s"] / row["nodes"]
    efficiency = images_per_s_per_node / (base["images_per_s"] / base["nodes"])
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
