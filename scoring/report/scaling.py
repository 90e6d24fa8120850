"""The device counts of one system compared: where a step's time goes, the scaling, published tables like it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from runlog import workloads
from scoring.figure.compare import ratio_interval
from scoring.figure.score import Score
from scoring.importers.text import steps_as_weights, weighted_mean
from scoring.published.table import Published, by_devices
from scoring.record import Record, Window, config_of, section
from scoring.report.content import Curve, Group, ScalingRow, StepTime, values_of

LONG_WORD = 8  # letters

# ---- where a step's time goes


class _MeanStep(NamedTuple):
    """The mean step of a group in seconds, and its wait for data where all windows say it."""

    total_s: float
    data_wait_s: float | None


class _AllReduce(NamedTuple):
    """The exposed time of the all-reduce, the sum of gradients over devices: what a step waits for it.

    The note says how the time is known, or why it is not.
    """

    exposed_s: float | None
    note: str


def with_step_times(groups: Sequence[Group]) -> list[Group]:
    """Return the groups, all of one system, each with the parts of its mean step as its `step_time`.

    A group whose logs do not tell a step is returned as it is. The all-reduce, the sum of gradients over devices, is a
    part of its own where it can be told from computation by runs on one device (`_estimated_all_reduce`).
    """
    mean_steps = [_mean_step(group) for group in groups]
    one_device_step_s = _step_of_one_device(groups, mean_steps)
    timed = []
    for group, mean_step in zip(groups, mean_steps, strict=True):
        if mean_step is not None:
            all_reduce = _estimated_all_reduce(
                group.record, mean_step.total_s, one_device_step_s, has_one_device_count=len(groups) == 1
            )
            group = replace(group, step_time=_step_time(mean_step, all_reduce))
        timed.append(group)
    return timed


def _step_of_one_device(groups: Sequence[Group], mean_steps: Sequence[_MeanStep | None]) -> float | None:
    """Return the mean step in seconds of the first group on one device; None without such a group or its time."""
    for group, mean_step in zip(groups, mean_steps, strict=True):
        if group.record.devices == 1:
            return None if mean_step is None else mean_step.total_s
    return None


def _step_time(mean_step: _MeanStep, all_reduce: _AllReduce) -> StepTime:
    """Return the parts of a mean step: its wait for data, its all-reduce, and in words what the rest of it is.

    The time of the all-reduce is an estimate, and is cut to the time that the wait leaves. `rest`, the words, are
    "computation" and the name of each part that is not known by itself: "computation and all-reduce".
    """
    all_reduce_s = all_reduce.exposed_s
    if all_reduce_s is not None:
        without_wait_s = mean_step.total_s - (mean_step.data_wait_s or 0.0)
        all_reduce_s = min(all_reduce_s, without_wait_s)
    rest = "computation"
    if all_reduce_s is None:
        rest += " and all-reduce"
    if mean_step.data_wait_s is None:
        rest += " and data wait"
    return StepTime(
        total_s=mean_step.total_s,
        data_wait_s=mean_step.data_wait_s,
        all_reduce_s=all_reduce_s,
        all_reduce_note=all_reduce.note,
        rest=rest,
    )


def _estimated_all_reduce(
    record: Record, step_s: float, one_device_step_s: float | None, *, has_one_device_count: bool
) -> _AllReduce:
    """Estimate what a step of `step_s` seconds waits for the all-reduce: what it takes longer than on one device.

    `one_device_step_s` is the step on one device, None where it is not known. `has_one_device_count` says that all runs
    of the system are on the same number of devices, so that there is nothing to compare. Where no estimate can be made
    the time is None, and the note says why. It is 0 on a single device, and where the step takes no longer than there.
    """
    if record.devices == 1:
        return _AllReduce(0.0, "one device: nothing to exchange")
    if section(record, "hardware").get("device") == "cpu":
        why = "ranks on a CPU share its cores, so that computation itself slows with each rank"
        return _AllReduce(None, f"not estimated: {why}")
    if has_one_device_count:
        why = "runs of one device count cannot tell it from computation; add runs of one device"
        return _AllReduce(None, f"not estimated: {why}")
    if one_device_step_s is None or not record.devices:
        return _AllReduce(None, "not estimated: only runs on one device tell computation from it")
    return _AllReduce(max(0.0, step_s - one_device_step_s), "estimated: what a step takes longer than on one device")


def _mean_step(group: Group) -> _MeanStep | None:
    """Return the mean step over the measured windows of all runs of a group; None where the logs do not tell it.

    It is taken from the first of these that the logs have: the time and the steps of each window; the step time that
    each window prints; the group's throughput and its batch. Only the first tells the wait for data.
    """
    windows: list[Window] = []
    for run in group.runs:
        windows += run.measured
    if windows:
        timed = _mean_of_windows(windows)
        if timed is not None:
            return timed
        printed_s: list[float] = values_of(windows, "printed_step_time_s")
        if len(printed_s) == len(windows):
            return _MeanStep(weighted_mean(printed_s, steps_as_weights(windows)), None)

    batch = group.record.global_batch
    score = group.score
    if not batch or score is None or score.unit != "images/s" or score.value <= 0:
        return None
    return _MeanStep(batch / score.value, None)


def _mean_of_windows(windows: Sequence[Window]) -> _MeanStep | None:
    """Return the mean step of windows by their seconds and steps: all of their time over all of their steps.

    Returns None where a window does not say both. The wait for data is the mean of a step too, and is None where one of
    the windows does not say it.
    """
    seconds: list[float] = []
    waits_s: list[float] = []
    steps = 0
    for window in windows:
        if window.seconds is None or not window.steps:
            return None
        seconds.append(window.seconds)
        steps += window.steps
        if window.data_wait_s is not None:
            waits_s.append(window.data_wait_s)

    wait_of_step_s = None
    if len(waits_s) == len(windows):
        wait_of_step_s = math.fsum(waits_s) / steps
    return _MeanStep(math.fsum(seconds) / steps, wait_of_step_s)


# ---- scaling


def scaling_rows(groups: Sequence[Group]) -> list[ScalingRow]:
    """Return a row for each number of devices that one system was run on, compared with the smallest.

    A group of `groups` is the repeated runs on one number of devices; the smallest comes first. A group without a
    throughput in images/s, or of an unknown number of devices, has no row. The speedup is the images/s over those of
    the smallest number, and the efficiency is the speedup over how many times the devices: 1.8 times the images/s on
    twice the devices is 0.9.
    """
    rows: list[ScalingRow] = []
    base: Score | None = None
    base_devices = 1
    for group in groups:
        score = group.score
        devices = group.record.devices
        if not score or not devices or score.unit != "images/s":
            continue
        speedup_95 = None  # the first row, which the others are compared with, has no interval
        if base is None:
            base = score
            base_devices = devices
        else:
            speedup_95 = ratio_interval(base, score).bounds
        speedup = score.value / base.value
        efficiency = speedup / (devices / base_devices)
        rows.append(ScalingRow(group, devices, score.value, speedup, speedup_95, efficiency))
    return rows


# ---- published tables


class PublishedCurves(NamedTuple):
    """The published tables that suit a run, and which were chosen or why none was."""

    curves: list[Curve]
    note: str


def _family_of_model(model: str | None) -> str | None:
    """Return the family that a model's name is of, such as ResNet-50's; None for a model that we do not train."""
    workload = workloads.of_family(model)
    return None if workload is None else workload.family


def _kind_of_precision(precision: str | None, math_mode: str | None) -> str | None:
    """Return the kind of precision by which figures are compared: fp32, tf32 or amp."""
    if precision not in (None, "fp32", "tf32"):
        return "amp"
    return "tf32" if "tf32" in (precision, math_mode) else precision


def curves(record: Record, published: Sequence[Published]) -> PublishedCurves:
    """Return the published tables to show beside a run: those of its kind of model and precision.

    `published` has a row for each published figure. For runs on a CPU, of a model that is not one of ours, or of an
    unknown precision there are none, and the note says why. Else the note says of which model and precision the tables
    are, even where `_curves_from_one_device` finds none.
    """
    if section(record, "hardware").get("device") == "cpu":
        note = "No published curves beside it: these runs are on a CPU, the published figures are of GPUs."
        return PublishedCurves([], note)
    workload = workloads.of_family(record.model)
    precision = _kind_of_precision(record.precision, record.math_mode)
    if workload is None or precision is None:
        unknown = "model" if workload is None else "precision"
        note = f"No published curves beside it: the log does not say a {unknown} that the published table knows."
        return PublishedCurves([], note)

    note = f"Published tables of {workload.title} at {precision}.{_other_data(record)}"
    return PublishedCurves(_curves_from_one_device(published, workload.family, precision), note)


def _curves_from_one_device(published: Sequence[Published], family: str, precision: str) -> list[Curve]:
    """Return the published tables of a family of models at a kind of precision that begin at one device.

    A table is the rows that differ in the number of devices alone. One that has no other row than that of one device is
    left out too: it makes no curve.
    """
    suitable = []
    for row in published:
        same_model = _family_of_model(row.model) == family
        same_precision = _kind_of_precision(row.precision, row.math_mode) == precision
        if same_model and same_precision:
            suitable.append(row)
    chosen = []
    for rows in by_devices(suitable):  # a published table each, its smallest number of devices first
        begins_at_one_device = rows[0].devices == 1
        if begins_at_one_device and len(rows) > 1:
            chosen.append(Curve(label=_label_of_table(rows), rows=tuple(rows)))
    return chosen


def _other_data(record: Record) -> str:
    """Return a warning where the runs did not read the full-size images of the published figures; else nothing."""
    dataset = section(record, "dataset")
    image_size = config_of(record).get("RECIPE.image_size", {}).get("value")
    if not dataset or (image_size == 224 and not dataset.get("synthetic")):
        return ""
    size = f" at {image_size} px" if isinstance(image_size, int) else ""
    name = dataset.get("name", "other data")
    return f" They were measured on full-size images; these runs on {name}{size}: compare the efficiency, not images/s."


def _label_of_table(rows: Sequence[Published]) -> str:
    """Return the label of a published table in a legend: framework, accelerator, batch and strategy.

    "Paddle (NVIDIA)" on V100 at batch 256 -> "NVIDIA Paddle V100 bs256". "mixed" behind the framework says that the
    rows are of several versions of it. What is not known is left out.
    """
    row = rows[0]
    versions = {row.framework for row in rows}
    parts: list[str | None] = [_short_framework(row.framework_name)]
    if len(versions) > 1:
        parts.append("mixed")
    parts.append(row.accelerator)
    if row.batch_per_device:
        parts.append(f"bs{row.batch_per_device}")
    parts.append(row.strategy)
    return " ".join(part for part in parts if part)


def _short_framework(name: str) -> str:
    """Return a published framework's name for a legend: words in brackets go to the front, or stand alone if long.

    "Paddle (NVIDIA)" -> "NVIDIA Paddle", "NGC PyTorch (mmsegmentation)" -> "mmsegmentation". Long is LONG_WORD letters
    or more. "NGC", NVIDIA's catalogue, and the number of a build, as ".post107", are left out.
    """
    without_ends = name.removeprefix("NGC ").removesuffix(")").split(".post")[0]
    before_brackets, _, in_brackets = without_ends.partition(" (")
    if not in_brackets:
        return before_brackets
    if len(in_brackets) >= LONG_WORD:
        return in_brackets
    return f"{in_brackets} {before_brackets}"
