"""The device counts of one system side by side: where a step's time goes, the scaling, published tables like it."""

import math
from collections.abc import Sequence
from dataclasses import replace

from runlog import workloads
from scoring.figure.compare import ratio_interval
from scoring.importers.text import weighted_mean, work
from scoring.published.table import Published, by_devices
from scoring.record import Record, config_of, section
from scoring.report.content import Curve, Group, ScalingRow, StepTime


def with_step_times(groups: Sequence[Group]) -> list[Group]:
    """Step times with the all-reduce apart, where the report has runs on one device."""
    totals = [_step_total(group) for group in groups]
    alone = next((total for group, (total, _) in zip(groups, totals, strict=True) if group.record.devices == 1), None)
    found = []
    for group, (total, wait) in zip(groups, totals, strict=True):
        if total is None:
            found.append(group)
            continue
        exposed, why = _all_reduce(group.record, total, alone, one_count=len(groups) == 1)
        rest = "computation and all-reduce"
        if exposed is not None:
            exposed, rest = min(exposed, total - (wait or 0.0)), "computation"
        rest += " and data wait" if wait is None else ""
        step = StepTime(total_s=total, data_wait_s=wait, all_reduce_s=exposed, all_reduce_note=why, rest=rest)
        found.append(replace(group, step_time=step))
    return found


def _all_reduce(record: Record, total: float, alone: float | None, *, one_count: bool) -> tuple[float | None, str]:
    """(exposed all-reduce time of a step in seconds, how it is known or why not)."""
    if record.devices == 1:
        return 0.0, "one device: nothing to exchange"
    if section(record, "hardware").get("device") == "cpu":
        return None, "not estimated: ranks on a CPU share its cores, so that computation itself slows with each rank"
    if one_count:
        return None, "not estimated: runs of one device count cannot tell it from computation; add runs of one device"
    if alone is None or not record.devices:
        return None, "not estimated: only runs on one device tell computation from it"
    return max(0.0, total - alone), "estimated: what a step takes longer than on one device"


def _step_total(group: Group) -> tuple[float | None, float | None]:
    """Mean step time and mean wait for data in seconds over the measured windows of all runs."""
    windows = [w for run in group.runs for w in run.measured]
    timed = [(w.seconds, w.steps, w.data_wait_s) for w in windows if w.seconds is not None and w.steps]
    if windows and len(timed) == len(windows):
        steps = sum(steps for _, steps, _ in timed)
        waits = [wait for _, _, wait in timed if wait is not None]
        wait = math.fsum(waits) / steps if len(waits) == len(timed) else None
        return math.fsum(seconds for seconds, _, _ in timed) / steps, wait
    printed = [w.printed_step_time_s for w in windows if w.printed_step_time_s is not None]
    if windows and len(printed) == len(windows):
        return weighted_mean(printed, work(windows)), None
    batch = group.record.global_batch
    if group.score is not None and group.score.unit == "images/s" and batch and group.score.value > 0:
        return batch / group.score.value, None
    return None, None


def scaling_rows(groups: Sequence[Group]) -> list[ScalingRow]:
    """Each device count of one system against the smallest; groups come in the order of their devices."""
    rows: list[ScalingRow] = []
    scored = [(group, figure, n) for group in groups if (figure := group.score) and (n := group.record.devices)]
    rated = [row for row in scored if row[1].unit == "images/s"]
    for group, figure, devices in rated:
        _, base, least = rated[0]
        speedup = figure.value / base.value
        interval = ratio_interval(base, figure)[0] if rows else None
        rows.append(ScalingRow(group, devices, figure.value, speedup, interval, speedup / (devices / least)))
    return rows


def _family(model: str | None) -> str | None:
    workload = workloads.of_family(model)
    return None if workload is None else workload.family


def _precision(precision: str | None, math_mode: str | None) -> str | None:
    if precision in (None, "fp32", "tf32"):
        return "tf32" if "tf32" in (precision, math_mode) else precision
    return "amp"


def curves(record: Record, published: Sequence[Published]) -> tuple[list[Curve], str]:
    """Published tables of the same model and precision that start at one device, and what was chosen or why none."""
    if section(record, "hardware").get("device") == "cpu":
        return [], "No published curves beside it: these runs are on a CPU, the published figures are of GPUs."
    family, precision = _family(record.model), _precision(record.precision, record.math_mode)
    if family is None or precision is None:
        what = "model" if family is None else "precision"
        return [], f"No published curves beside it: the log does not say a {what} that the published table knows."
    same = [row for row in published if _family(row.model) == family]
    alike = (row for row in same if _precision(row.precision, row.math_mode) == precision)
    systems = [rows for rows in by_devices(alike) if rows[0].devices == 1 and len(rows) > 1]
    chosen = [Curve(label=_label(rows), rows=tuple(rows)) for rows in systems]
    workload = workloads.of_family(record.model)
    assert workload is not None, "its family is known"
    note = f"Published tables of {workload.title} at {precision}."
    dataset = section(record, "dataset")
    image_size = config_of(record).get("RECIPE.image_size", {}).get("value")
    if dataset and (image_size != 224 or dataset.get("synthetic")):
        size = f" at {image_size} px" if isinstance(image_size, int) else ""
        note += (
            f" They were measured on full-size images; these runs on {dataset.get('name', 'other data')}{size}: "
            "compare the efficiency, not images/s."
        )
    return chosen, note


def _label(rows: Sequence[Published]) -> str:
    """A published table in a few words, such as `Paddle mixed V100 bs256`: mixed of software versions."""
    row = rows[0]
    name, _, by = row.framework_name.removeprefix("NGC ").removesuffix(")").split(".post")[0].partition(" (")
    if by:  # such as `Paddle (NVIDIA)`
        name = f"{by} {name}" if len(by) < 8 else by
    mixed = "mixed" if len({row.framework for row in rows}) > 1 else None
    batch = f"bs{row.batch_per_device}" if row.batch_per_device else None
    return " ".join(filter(None, (name, mixed, row.accelerator, batch, row.strategy)))
