"""The device counts of one system compared: where a step's time goes, the scaling, and published tables to compare."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from runlog import workloads
from scoring.figure.compare import ratio_interval, spread_between_runs
from scoring.figure.score import Score
from scoring.importers.text import steps_as_weights, weighted_mean
from scoring.published.table import Published, systems_by_devices
from scoring.record import Record, Window, image_side, section
from scoring.report.content import Curve, Group, ScalingRow, StepTime, values_of

LONG_WORD = 8  # letters

# ---- where a step's time goes


class _MeanStep(NamedTuple):
    """The mean step of a group in seconds, and its wait for data; None unless all windows say it."""

    total_s: float
    data_wait_s: float | None


class _AllReduce(NamedTuple):
    """The time that a step waits for the all-reduce, which sums the gradients over all devices."""

    exposed_s: float | None
    note: str  # how the time is known, or why it is not


def with_step_times(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of one system, each with a breakdown of its mean step: data wait, all-reduce and the rest.

    The all-reduce sums the gradients over all devices. On several GPUs it is estimated as the time that a step takes
    longer than on a single one.

    Args:
        groups: Groups of repeated runs, on one or several numbers of devices.

    Returns:
        The groups in the same order. Those whose logs do not tell how long a step takes are unchanged.
    """
    mean_steps = [_mean_step(group) for group in groups]
    single_device_step_s = _step_on_single_device(groups, mean_steps)  # None: not known
    is_only_group = len(groups) == 1  # for the words on why there is no estimate
    with_times = []
    for group, mean_step in zip(groups, mean_steps, strict=True):
        if mean_step is not None:
            all_reduce = _estimated_all_reduce(  # 0 on one device, None where it is not known
                group.record, mean_step.total_s, single_device_step_s, is_only_group=is_only_group
            )
            group = replace(group, step_time=_step_time(mean_step, all_reduce))
        with_times.append(group)
    return with_times


def _step_on_single_device(groups: Sequence[Group], mean_steps: Sequence[_MeanStep | None]) -> float | None:
    """Return the mean step of the first group of runs that ran on one device, in seconds.

    Args:
        groups: Groups of repeated runs of one system.
        mean_steps: Mean step of each group; None for a group whose logs do not tell it.

    Returns:
        The step; None if there is no such group, or if its logs do not tell how long a step takes.
    """
    for group, mean_step in zip(groups, mean_steps, strict=True):
        if group.record.devices == 1:
            if mean_step is None:
                return None
            return mean_step.total_s
    return None


def _step_time(mean_step: _MeanStep, all_reduce: _AllReduce) -> StepTime:
    """Return the parts of a mean training step: its wait for data, its all-reduce, and the rest of its time.

    Args:
        mean_step: Length of the step and its wait for data.
        all_reduce: Estimate of the time that the step waits for the all-reduce of the gradients. It is cut to what is
            left of the step without the wait for data.

    Returns:
        The parts in seconds. `rest` says in words what the rest is: computation, and those of the other two parts that
        are not known, such as "computation and data wait".
    """
    unknown_parts = []
    all_reduce_s = all_reduce.exposed_s
    if all_reduce_s is None:
        unknown_parts.append("all-reduce")
    else:
        without_wait_s = mean_step.total_s - (mean_step.data_wait_s or 0.0)
        all_reduce_s = min(all_reduce_s, without_wait_s)  # an estimate, which may be longer than what is left
    if mean_step.data_wait_s is None:
        unknown_parts.append("data wait")
    return StepTime(
        total_s=mean_step.total_s,
        data_wait_s=mean_step.data_wait_s,
        all_reduce_s=all_reduce_s,
        all_reduce_note=all_reduce.note,
        rest=" and ".join(["computation", *unknown_parts]),
    )


def _estimated_all_reduce(
    record: Record, step_s: float, single_device_step_s: float | None, *, is_only_group: bool
) -> _AllReduce:
    """Estimate the time of the all-reduce in a step: how much longer the step takes than one on a single device.

    Args:
        record: First run of the group whose step is meant, as its log describes it.
        step_s: Mean step of the runs, in seconds.
        single_device_step_s: Mean step of the same system on one device, in seconds; None if not known.
        is_only_group: Whether the system has no other group of runs to compare with.

    Returns:
        The time in seconds, not below 0, and how it is known. Without an estimate the time is None, and the note says
        why.
    """
    if record.devices == 1:
        return _AllReduce(0.0, "one device: nothing to exchange")
    if section(record, "hardware").get("device") == "cpu":
        why = "ranks on a CPU share its cores, so that computation itself slows with each rank"
        return _AllReduce(None, f"not estimated: {why}")
    if is_only_group:
        why = "runs of one device count cannot tell it from computation; add runs of one device"
        return _AllReduce(None, f"not estimated: {why}")
    if single_device_step_s is None or not record.devices:
        return _AllReduce(None, "not estimated: only runs on one device tell computation from it")
    longer_s = max(0.0, step_s - single_device_step_s)
    return _AllReduce(longer_s, "estimated: what a step takes longer than on one device")


def _mean_step(group: Group) -> _MeanStep | None:
    """Return how long a mean training step takes over the measured windows of all runs of a group.

    Args:
        group: A group of repeated runs. A window is the steps between two printed rows of a log; measured windows are
            those that the figure is made of.

    Returns:
        The step in seconds, with its wait for data; None if the logs tell neither times nor a score in images/s.
    """
    windows = group.measured
    if not windows:
        return _step_by_score(group)
    # The most exact one that is known. Only the first one has the wait for data, too.
    return _mean_of_windows(windows) or _mean_of_printed_times(windows) or _step_by_score(group)


def _mean_of_printed_times(windows: Sequence[Window]) -> _MeanStep | None:
    """Return the mean of the step times that a log prints for its windows, weighted by their numbers of steps.

    Args:
        windows: Parts of runs between two printed rows of the log. If one does not say its steps, all weigh the same.

    Returns:
        The mean step, without a wait for data; None unless the log prints a time for each window.
    """
    printed_s: list[float] = values_of(windows, "printed_step_time_s")
    if len(printed_s) != len(windows):
        return None
    return _MeanStep(weighted_mean(printed_s, steps_as_weights(windows)), data_wait_s=None)


def _step_by_score(group: Group) -> _MeanStep | None:
    """Return how long a step takes by the throughput of a group: the images of a step divided by images/s.

    Args:
        group: A group of repeated runs.

    Returns:
        The step, without a wait for data; None if the group has no score in images/s, or if its global batch is not
        known.
    """
    global_batch = group.record.global_batch  # images of a step, on all devices
    score = group.score
    if not global_batch or score is None:
        return None
    is_throughput = score.unit == "images/s" and score.value > 0
    if not is_throughput:
        return None
    return _MeanStep(global_batch / score.value, data_wait_s=None)


def _mean_of_windows(windows: Sequence[Window]) -> _MeanStep | None:
    """Return the mean step of windows: the sum of their times divided by the sum of their steps.

    Args:
        windows: Parts of runs between two printed rows of the log, at least one.

    Returns:
        The mean step and its mean wait for data, in seconds. The wait is None unless each window says it. The result is
        None unless each window says its time and its steps.
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

    mean_wait_s = None
    if len(waits_s) == len(windows):
        mean_wait_s = math.fsum(waits_s) / steps
    return _MeanStep(math.fsum(seconds) / steps, mean_wait_s)


# ---- scaling


def scaling_rows(groups: Sequence[Group]) -> list[ScalingRow]:
    """Return a scaling table of one system: the speedup and efficiency of each group over the first one, the base.

    If the base has 400 images/s on 8 devices, 720 images/s on 16 devices are a speedup of 1.8 and, as they are 2 times
    as many devices, an efficiency of 0.9.

    Args:
        groups: Groups of repeated runs, by ascending number of devices, so that the base has the smallest number.

    Returns:
        A row for each group. A group without a throughput in images/s, or without a known number of devices, has none.
    """
    measured = []
    for group in groups:
        score = group.score
        devices = group.record.devices
        if score and devices and score.unit == "images/s":
            measured.append(_MeasuredGroup(group, score, devices))
    scores = [measured_group.score for measured_group in measured]
    return [_scaling_row(measured_group, measured[0], scores) for measured_group in measured]


class _MeasuredGroup(NamedTuple):
    """A group with a throughput in images/s and a known number of devices."""

    group: Group
    score: Score
    devices: int


def _scaling_row(measured: _MeasuredGroup, base: _MeasuredGroup, scores: Sequence[Score]) -> ScalingRow:
    """Return the row of a group in a scaling table: its speedup and efficiency compared with the base.

    Args:
        measured: The group of the row.
        base: First group of the table, that of the fewest devices.
        scores: The scores of all groups of the table, which may show how far single runs of a system lie apart.

    Returns:
        The row. The row of the base itself has speedup 1 and no 95 % interval of it.
    """
    speedup = measured.score.value / base.score.value
    speedup_95 = None  # the base is not compared with itself
    if measured is not base:
        between_runs = spread_between_runs(base.score, measured.score, scores)
        speedup_95 = ratio_interval(base.score, measured.score, between_runs).bounds
    return ScalingRow(
        group=measured.group,
        devices=measured.devices,
        images_per_s=measured.score.value,
        speedup=speedup,
        speedup_95=speedup_95,
        rate_of_a_device=speedup / (measured.devices / base.devices),
    )


# ---- published tables


class PublishedCurves(NamedTuple):
    """The published tables to show with a run, and a note on which were chosen or why none was."""

    curves: list[Curve]
    note: str


def _family_of_model(model: str | None) -> str | None:
    """Return the family of a model: models that count as one, such as all versions of ResNet-50.

    Args:
        model: Name of the model; None if it is not known.

    Returns:
        The name of the family; None for a model that is not trained here.
    """
    workload = workloads.of_family(model)
    return None if workload is None else workload.family


def _kind_of_precision(precision: str | None, math_mode: str | None) -> str | None:
    """Return the kind of precision by which throughputs are compared.

    Args:
        precision: Precision of the training, such as "fp32" or "amp_o2"; None if it is not known.
        math_mode: What FP32 matrix products really use: "fp32" or "tf32"; None if it is not known.

    Returns:
        "fp32", "tf32" or "amp"; None if it is not known. Any other precision than fp32 and tf32 counts as "amp".
    """
    is_half = precision not in (None, "fp32", "tf32")
    if is_half:
        return "amp"
    if "tf32" in (precision, math_mode):
        return "tf32"
    return precision


def published_curves(record: Record, published: Sequence[Published]) -> PublishedCurves:
    """Return published throughput tables to draw with a run: those of its model and kind of precision.

    Args:
        record: The run as its log describes it.
        published: All published figures.

    Returns:
        The curves, and a note for the page on which tables these are. There are no curves, and the note says why, for a
        run on a CPU, for an unknown model or precision, and for a model and a kind of precision of which no published
        table makes a curve.
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

    curves = _curves_from_one_device(published, workload.family, precision)
    if not curves:
        without = f"no published table of {workload.title} at {precision} has figures of one device and of more"
        return PublishedCurves([], f"No published curves beside it: {without}.")
    note = f"Published tables of {workload.title} at {precision}.{_warning_of_other_data(record, workload)}"
    return PublishedCurves(curves, note)


def _curves_from_one_device(published: Sequence[Published], family: str, precision: str) -> list[Curve]:
    """Return published tables of one family of models and kind of precision, as curves over the number of devices.

    Args:
        published: All published figures.
        family: Models that count as one, such as all versions of ResNet-50, by the name that `_family_of_model`
            returns.
        precision: "fp32", "tf32" or "amp".

    Returns:
        A curve for each table, which is the rows that differ only in the number of devices. A table without a row of
        one device, or with that row alone, makes no curve.
    """
    suitable = [row for row in published if _has_family_and_precision(row, family, precision)]
    curves = []
    for rows in systems_by_devices(suitable):  # the rows of a table, by ascending number of devices
        begins_at_one_device = rows[0].devices == 1  # the efficiency is relative to it
        if begins_at_one_device and len(rows) > 1:
            curves.append(Curve(label=_label_of_table(rows), rows=tuple(rows)))
    return curves


def _has_family_and_precision(row: Published, family: str, precision: str) -> bool:
    """Return whether a published figure is of a family of models and a kind of precision."""
    same_family = _family_of_model(row.model) == family
    return same_family and _kind_of_precision(row.precision, row.math_mode) == precision


def _warning_of_other_data(record: Record, workload: workloads.Workload) -> str:
    """Return a warning that the published figures were measured on other images than this run, or "".

    Args:
        record: The run as its log describes it.
        workload: What is known of the run's model. Its `flop_height` and `flop_width` are also the size of the images
            of the published runs, such as 224 x 224 px for ResNet-50.

    Returns:
        A sentence that begins with a space, because it follows another one. It is empty if the run read real images of
        that size, or if its log does not describe its data set.
    """
    dataset = section(record, "dataset")
    if not dataset:
        return ""
    height = image_side(record, "height")
    width = image_side(record, "width")
    is_full_size = (height, width) == (workload.flop_height, workload.flop_width)
    is_synthetic = bool(dataset.get("synthetic"))
    if is_full_size and not is_synthetic:
        return ""
    name = dataset.get("name", "other data")
    size = ""  # of a log that does not say it
    if height and width:
        size = f" at {width} px" if height == width else f" at {width}x{height} px"
    return f" They were measured on full-size images; these runs on {name}{size}: compare the efficiency, not images/s."


def _label_of_table(rows: Sequence[Published]) -> str:
    """Return the label of a published table in a legend: framework, accelerator, batch size and strategy.

    For example, "Paddle (FleetX)" on V100 at batch 256 with the strategy "auto" gives "FleetX Paddle V100 bs256 auto".

    Args:
        rows: Published figures that differ only in the number of devices, at least one. If they were measured with
            several versions of the framework, "mixed" follows its name.
    """
    first_row = rows[0]  # the rows agree in all that the label says, except the framework's version
    frameworks_with_version = {row.framework for row in rows}
    parts: list[str | None] = [_short_framework(first_row.framework_name)]
    if len(frameworks_with_version) > 1:  # the rows were measured with several versions of the framework
        parts.append("mixed")
    parts.append(first_row.accelerator)
    if first_row.batch_per_device:
        parts.append(f"bs{first_row.batch_per_device}")
    parts.append(first_row.strategy)
    return " ".join(part for part in parts if part)


def _short_framework(name: str) -> str:
    """Return the name of a published framework in the short form of a legend.

    "Paddle 1.8.3.post107" gives "Paddle 1.8.3", "Paddle (NVIDIA)" gives "NVIDIA Paddle", and "PyTorch (mmsegmentation)"
    gives "mmsegmentation".

    Args:
        name: The framework as the published table names it.
    """
    without_catalogue = name.removeprefix("NGC ")  # NVIDIA's catalogue
    without_build = without_catalogue.split(".post")[0]  # the number of a build follows ".post"
    before_brackets, _, after_opening_bracket = without_build.partition(" (")
    in_brackets = after_opening_bracket.removesuffix(")")
    if not in_brackets:
        return before_brackets
    if len(in_brackets) >= LONG_WORD:  # long enough to be understood alone
        return in_brackets
    return f"{in_brackets} {before_brackets}"
