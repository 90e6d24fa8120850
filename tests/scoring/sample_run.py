"""Step times that are known, as what really happened in a run."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runlog import schema
from tests import make_log

STARTS_MS = itertools.count(1_690_530_600_000, 3_600_000)  # no two logs are of the same run


@dataclass(frozen=True, kw_only=True)
class Run:
    """What really happened: seconds of each step, the wait for data inside it, and the size of the job."""

    times: Sequence[float]
    waits: Sequence[float]
    devices: int = 8
    batch: int = 32
    every: int = 10
    epoch_steps: int | None = None  # None: one epoch

    @property
    def global_batch(self) -> int:
        return self.devices * self.batch

    def epochs(self) -> list[tuple[int, list[tuple[float, float]]]]:
        """(epoch from 0, its steps as (time, wait))."""
        steps = list(zip(self.times, self.waits, strict=True))
        size = self.epoch_steps or len(steps)
        return [(at // size, steps[at : at + size]) for at in range(0, len(steps), size)]


def run_of(times: Sequence[float], *, share: float = 0.02, **size: int) -> Run:
    """A run of these step times, `share` of each waiting for data."""
    return Run(times=list(times), waits=[time * share for time in times], **size)  # type: ignore[arg-type]


def steady(steps: int = 120, seconds: float = 0.5, *, jitter: float = 0.01) -> list[float]:
    """Step times around `seconds` that repeat in no short pattern; the first one is slow, as first steps are."""
    return [seconds * (3 if step == 0 else 1 + jitter * math.sin(step * step)) for step in range(steps)]


def mllog(
    run: Run,
    *,
    status: str | None = "success",
    mode: str = "train",
    warm_up: int | None = None,
    header: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    accuracy: float = 0.76,
    telemetry: bool = False,
    **summary: Any,
) -> str:
    """Our own log: run_summary, a step_window every `every` steps, run_start and run_stop.

    `header` has further sections, `facts` events before the run; without a status it has no end.
    """
    log = make_log.Log(tick_ms=0)
    log.now_ms = next(STARTS_MS)
    usual = {"log": schema.Format(), "packages": {"paddlepaddle-gpu": "2.6.2", "numpy": "1.26.4"}}
    for name, value in (usual | (header or {})).items():
        log.section(schema.SECTIONS[name], value)
    log.mllog.event("weights_initialization", metadata={"tensor": "conv0_weight"}, time_ms=int(log.now_ms))
    for key, value in (facts or {}).items():
        log.event(schema.EVENTS[key], value)  # type: ignore[arg-type]
    sizes = {"devices": run.devices, "batch_per_device": run.batch, "mode": mode}
    log.event(schema.RUN_SUMMARY, make_log.run_summary(**sizes, **summary))
    log.mark(schema.RUN_START)
    done = 0
    for number, steps in run.epochs():
        epoch = schema.InEpoch(epoch_num=number + 1)
        log.mark(schema.EPOCH_START, epoch)
        for at in range(0, len(steps) - run.every + 1, run.every):
            part = steps[at : at + run.every]
            seconds = sum(time for time, _ in part)
            done += run.every
            log.now_ms += seconds * 1000
            window = make_log.window(
                steps=run.every,
                images=run.every * run.global_batch,
                time_s=seconds,
                data_wait_s=sum(wait for _, wait in part),
                loss=6.9,
            )
            if telemetry:
                window = dataclasses.replace(window, gpu_memory_mib=1000.0 + done / run.every, power_w=200.0)
            of_warm_up = done <= (2 * run.every if warm_up is None else warm_up)
            phase = "train" if mode == "train" else ("warmup" if of_warm_up else "measured")
            log.window(window, step=done, epoch=number + 1, phase=phase)
            log.say(f"step {done}: human line, ips: 12 samples/sec.")
        log.mark(schema.EPOCH_STOP, epoch)
        if mode == "train":
            log.event(schema.EVAL_ACCURACY, accuracy, epoch)
    if telemetry:
        log.event(schema.TELEMETRY_SUMMARY, {"peak_gpu_temperature_c": 71})
    if status is not None:
        log.mark(schema.RUN_STOP, schema.Ended(status=status))
    return log.text.getvalue()
