"""Where the time of a step goes: waiting for data, the all-reduce as far as the runs tell it, and the rest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from scoring import scale
from scoring.record import InputError, Record
from scoring.report.content import Group, StepTime, section


def with_step_times(groups: Sequence[Group]) -> list[Group]:
    """Step times with the all-reduce apart, where the group's own runs at other device counts tell it."""
    totals = [_step_total(group) for group in groups]
    model, note = _all_reduce_model(groups, [total for total, _ in totals])
    found = []
    for group, (total, wait) in zip(groups, totals, strict=True):
        if total is None:
            found.append(group)
            continue
        exposed, why, rest = _all_reduce(group.record, model, note)
        if exposed is not None:
            exposed = min(exposed, total - (wait or 0.0))
        rest += " and data wait" if wait is None else ""
        step = StepTime(total_s=total, data_wait_s=wait, all_reduce_s=exposed, all_reduce_note=why, rest=rest)
        found.append(replace(group, step_time=step))
    return found


def _all_reduce(record: Record, model: scale.Model | None, why_none: str) -> tuple[float | None, str, str]:
    """(exposed all-reduce time of a step in seconds, how it is known or why not, what the rest of the step is)."""
    devices, nodes = record.devices, record.nodes or 1
    if devices == 1:
        return 0.0, "one device: nothing to exchange", "computation"
    if model is None or devices is None:
        return None, why_none, "computation and all-reduce"
    within, between = model.all_reduce_s(nodes, devices // nodes)
    if len(model.devices_per_node) > 1:
        why = "estimated by the scaling model fitted on the device counts of this report"
        return within + between, why, "computation"
    if nodes == 1:
        why = "not estimated: all runs have as many devices a node, which hides the exchange within it"
        return None, why, "computation and all-reduce"
    why = "estimated between nodes only, by the scaling model fitted on the node counts of this report"
    return between, why, "computation and all-reduce in a node"


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
        return statistics.fmean(printed), None
    batch = group.record.global_batch
    if group.score is not None and group.score.unit == "images/s" and batch and group.score.value > 0:
        return batch / group.score.value, None
    return None, None


def all_reduce_mib(record: Record) -> float | None:
    """Gradients that a step sums, in MiB: from the log's header or the model's parameters; None if neither says."""
    counted = section(record, "program").get("all_reduce_mib")
    if isinstance(counted, int | float) and not isinstance(counted, bool) and counted > 0:
        return float(counted)
    try:
        return scale.gradient_bytes(record.model or "", record.precision) / 2**20
    except InputError:
        return None


def _all_reduce_model(groups: Sequence[Group], totals: Sequence[float | None]) -> tuple[scale.Model | None, str]:
    """The scaling model through the groups' step times, or why there is none."""
    record = groups[0].record
    if section(record, "hardware").get("device") == "cpu":
        return None, "not estimated: ranks on a CPU share its cores, so that computation itself slows with each rank"
    points = [
        scale.Point(
            nodes=group.record.nodes or 1,
            devices_per_node=group.record.devices // (group.record.nodes or 1),
            step_time_s=total,
        )
        for group, total in zip(groups, totals, strict=True)
        if group.record.devices and total
    ]
    if len({point.devices for point in points}) < 2:
        return None, "not estimated: runs of one device count cannot tell it from computation; add runs of another"
    size_mib = all_reduce_mib(record)
    if size_mib is None:
        return None, "not estimated: the log does not say how many bytes a step exchanges"
    network = scale.Network(bandwidth_bytes_per_s=scale.PUBLISHED_NETWORK_GBIT_S * scale.GIGABIT_PER_S)
    model = scale.fit(points, all_reduce_bytes=size_mib * 2**20, network=network, topology="hierarchical")
    return model, ""
