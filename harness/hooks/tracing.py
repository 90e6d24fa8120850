"""Traces some steps of a run: PROFILE=steps:a-b. A run that was traced is marked and may not be published.

Rank 0 writes `<log without .txt>.trace.json`, in Chrome's trace format (chrome://tracing, Perfetto): for each step what
it waited for input and what the executor took on the host. On a GPU Paddle's profiler, which needs CUDA, adds
`<log without .txt>.kernels.trace.json` with operators and kernels; the two share no clock. A run that ends before the
last of the steps leaves a trace of those that it did.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import env
from harness.hooks import Hook

if TYPE_CHECKING:
    from harness.env import Job
    from harness.ranks import Ranks


class Tracer(Hook):
    """Records steps `first` to `last` (both counted from 1, both included), until it is left at the latest."""

    def __init__(self, first: int, last: int, log: Path, *, on_gpu: bool) -> None:
        self._first, self._last = first, last
        self._path = log.with_suffix(".trace.json")
        self._kernels = log.with_suffix(".kernels.trace.json") if on_gpu else None
        self._events: list[dict[str, Any]] = []
        self._profiler: Any = None
        self._written = False

    def close(self) -> None:
        """Writes the trace of a run that ended before the last of the steps."""
        if not self._written:
            left = "the trace ends before it" if self._events else "there is no trace"
            said = f"PROFILE=steps:{self._first}-{self._last}: the run had no step {self._last}: {left}"
            print(f"warning: {said}", file=sys.stderr, flush=True)
            self._write()

    def step_begins(self, step: int) -> None:
        """Starts Paddle's profiler at the first step."""
        # A run that goes on from a checkpoint may begin between the two.
        if self._kernels and not self._profiler and self._first <= step <= self._last:
            from paddle import profiler

            target = profiler.ProfilerTarget
            self._profiler = profiler.Profiler(
                targets=[target.CPU, target.GPU],
                on_trace_ready=lambda done: done.export(str(self._kernels), "json"),
            )
            self._profiler.start()

    def step_ends(self, step: int, began_s: float, ready_s: float) -> None:
        """Records the step, and writes the trace after the last one."""
        if not self._first <= step <= self._last:
            return
        ended_s = time.perf_counter()
        for name, begin_s, end_s in (("input", began_s, ready_s), ("executor", ready_s, ended_s)):
            event = {"name": name, "ph": "X", "pid": 0, "tid": 0, "ts": begin_s * 1e6, "dur": (end_s - begin_s) * 1e6}
            self._events.append(event | {"args": {"step": step}})
        if step == self._last:
            self._write()

    def _write(self) -> None:
        self._written = True
        if self._profiler:
            self._profiler.stop()
        if self._events:
            self._path.write_text(json.dumps({"traceEvents": self._events, "displayTimeUnit": "ms"}))


def tracers(job: Job, ranks: Ranks) -> list[Tracer]:
    """Rank 0's tracer where the job asks for one."""
    if not job.profile or not ranks.is_first:
        return []
    first, last = env.traced_steps(job.profile)
    return [Tracer(first, last, Path(job.result_file), on_gpu=job.device == "gpu")]
