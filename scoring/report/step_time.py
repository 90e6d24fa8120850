"""Where the time of a step goes: waiting for data, the all-reduce as far as the runs tell it, and the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from runlog.run import real
from scoring.importers.text import weighted_mean, work
from scoring.record import Record, section
from scoring.report.content import Group, StepTime


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
        rest = "computation" if exposed is not None else "computation and all-reduce"
        if exposed is not None:
            exposed = min(exposed, total - (wait or 0.0))
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


def all_reduce_mib(record: Record) -> float | None:
    """Gradients that a step sums, in MiB, by the log's header; None if it does not say."""
    counted = real(section(record, "program").get("all_reduce_mib"))
    return counted if counted is not None and counted > 0 else None
