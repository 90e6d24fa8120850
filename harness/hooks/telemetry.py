"""Samples a node's sensors while a run goes on, and traces some of its steps.

One thread on each node's first rank samples into `<log without .txt>.node<n>.telemetry.jsonl`, a line a sample; what a
node cannot say is null. GPUs are those that CUDA shows the job, in its order: the first is local rank 0's. Counters
(energy, NVLink, disk, network) count from when the machine or driver started: take differences. The sampler's own CPU
time is in its summary, so that every run says what its telemetry cost.
"""

import contextlib
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from harness import nvidia
from harness.hooks import Hook
from harness.job import Job
from harness.progress import Timing
from harness.ranks import Ranks
from runlog.schema import TelemetrySummary

INFINIBAND = Path("/sys/class/infiniband")


class Sampler(Hook):
    """Samples from entering to leaving; a file that cannot be written ends the sampling, not the run."""

    def __init__(self, path: Path, *, every_s: float, job_gpus: int, prometheus: str = "") -> None:
        """`job_gpus`: how many GPUs of this node the job uses: the first of those that CUDA shows, in its order."""
        self._path, self._every_s, self._job_gpus, self._prometheus = path, every_s, job_gpus, prometheus
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._exit = contextlib.ExitStack()
        self._gpus: list[tuple[Any, bool]] = []  # handle, and whether it has NVLinks
        self._energy_begin_j: float | None = None
        self._images, self._samples, self._cpu_s = 0, 0, 0.0
        self._peaks: dict[str, float | None] = {"memory_mib": None, "temperature_c": None}  # of a GPU of the job
        self.power_w: float | None = None  # of the job's GPUs on this node at the last sample

    def __enter__(self) -> "Sampler":
        handles, _ = self._exit.enter_context(nvidia.opened())
        self._gpus = [(handle, nvidia.nvlinks(handle) > 0) for handle in handles]
        psutil.cpu_percent()  # the first answer is about nothing, later ones about the time since
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends the sampling."""
        self._stop.set()
        self._thread.join()
        self._exit.close()

    def _run(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("x", encoding="utf-8") as file:
                due_s = time.monotonic()
                while True:
                    sample = self.sample()
                    self._note(sample)
                    file.write(json.dumps(sample) + "\n")
                    file.flush()
                    if self._prometheus:  # as its collector wants it: whole under its name at any time
                        text = Path(self._prometheus)
                        temporary = text.with_name(f".{text.name}.tmp")
                        temporary.write_text(prometheus(sample))
                        temporary.replace(text)
                    self._samples, self._cpu_s = self._samples + 1, time.thread_time()
                    due_s = max(due_s + self._every_s, time.monotonic())
                    if self._stop.wait(due_s - time.monotonic()):
                        return
        except OSError as error:
            print(f"warning: telemetry ends: {error}", file=sys.stderr, flush=True)

    def sample(self) -> dict[str, Any]:
        """One sample of the node."""
        memory, disk, network = psutil.virtual_memory(), psutil.disk_io_counters(), psutil.net_io_counters()
        with self._process.oneshot():
            process = {
                "rss_mib": round(self._process.memory_info().rss / 2**20, 1),
                "threads": self._process.num_threads(),
                "open_files": self._process.num_fds(),
            }
        return {
            "time_s": round(time.time(), 3),
            "elapsed_s": round(time.monotonic() - self._started_s, 3),
            "node": socket.gethostname(),
            "cpu_percent": psutil.cpu_percent(),
            "memory_used_gib": round((memory.total - memory.available) / 2**30, 3),
            "disk_read_bytes": disk.read_bytes if disk else None,
            "disk_write_bytes": disk.write_bytes if disk else None,
            "network_sent_bytes": network.bytes_sent if network else None,
            "network_received_bytes": network.bytes_recv if network else None,
            **_infiniband_bytes(),
            "process": process,
            "gpus": [nvidia.sample(handle, nvlink=nvlinked) for handle, nvlinked in self._gpus],
        }

    def _note(self, sample: dict[str, Any]) -> None:
        gpus = sample["gpus"][: self._job_gpus]
        for name in self._peaks:
            known = [value for value in (self._peaks[name], *(gpu[name] for gpu in gpus)) if value is not None]
            self._peaks[name] = max(known, default=None)
        power_w = _sum([gpu["power_w"] for gpu in gpus])
        self.power_w = None if power_w is None else round(power_w, 3)

    # ---- what the run asks

    def run_begins(self) -> None:
        """Energy counts from the first step."""
        if self._energy_begin_j is None:
            self._energy_begin_j = self._energy_j()

    def readings(self) -> dict[str, Any]:
        """Power of the job's GPUs on this node."""
        return {"power_w": self.power_w}

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Counts the images that were trained on, over all ranks."""
        self._images += window.images
        return 0.0

    def _energy_j(self) -> float | None:
        return _sum([nvidia.energy_j(handle) for handle, _ in self._gpus[: self._job_gpus]])

    def summary(self) -> dict[str, Any]:
        """Of this node, so far."""
        begin_j, end_j = self._energy_begin_j, self._energy_j()
        return {
            "samples": self._samples,
            **{f"peak_gpu_{name}": peak for name, peak in self._peaks.items()},
            "energy_j": None if begin_j is None or end_j is None else end_j - begin_j,
            "images": self._images,
            "sampler_cpu_s": round(self._cpu_s, 4),
            "elapsed_s": round(time.monotonic() - self._started_s, 3),
        }


def summarize(nodes: list[dict[str, Any]]) -> TelemetrySummary:
    """A run's summary from those of its nodes; None is what was not measured.

    Energy is that of the job's GPUs from the first step to the end of the run, evaluations included; images are those
    that were trained on, so that joules_per_image is what an image of training cost.
    """
    peaks = {
        name: max((node[name] for node in nodes if node[name] is not None), default=None)
        for name in ("peak_gpu_memory_mib", "peak_gpu_temperature_c")
    }
    energy_j = _sum([node["energy_j"] for node in nodes])
    images = nodes[0]["images"]
    return TelemetrySummary(
        **peaks,
        energy_j=None if energy_j is None else round(energy_j, 3),
        joules_per_image=energy_j / images if energy_j is not None and images else None,
        samples=sum(node["samples"] for node in nodes),
        sampler_cpu_share=max(round(node["sampler_cpu_s"] / node["elapsed_s"], 6) for node in nodes),
    )


def _sum(values: list[float | None]) -> float | None:
    """None where there is no value, or one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _infiniband_bytes() -> dict[str, int | None]:
    """Octets over all ports; the files count in words of four."""
    totals: dict[str, int | None] = {}
    for name, file in (("infiniband_sent_bytes", "port_xmit_data"), ("infiniband_received_bytes", "port_rcv_data")):
        files = list(INFINIBAND.glob(f"*/ports/*/counters/{file}"))
        totals[name] = sum(4 * int(path.read_text()) for path in files) if files else None
    return totals


def prometheus(sample: dict[str, Any]) -> str:
    """A sample in Prometheus' text format."""
    node = sample["node"].replace("\\", "\\\\").replace('"', '\\"')
    groups = [("training", f'node="{node}"', sample)]
    groups += [("training_gpu", f'node="{node}",gpu="{index}"', gpu) for index, gpu in enumerate(sample["gpus"])]
    lines = [
        f"{prefix}_{name}{{{labels}}} {value}\n"
        for prefix, labels, values in groups
        for name, value in values.items()
        if isinstance(value, int | float)
    ]
    return "".join(lines)


# ---- a trace of steps


class Tracer(Hook):
    """PROFILE=steps:a-b: records the steps `first` to `last`, counted from 1, until it is left at the latest.

    Rank 0 writes `<log without .txt>.trace.json`, in Chrome's trace format (chrome://tracing, Perfetto): for each step
    what it waited for input and what the executor took on the host. On a GPU Paddle's profiler, which needs CUDA, adds
    `<log without .txt>.kernels.trace.json` with operators and kernels; the two share no clock. A run that was traced is
    marked and may not be published; one that ends before the last of the steps leaves a trace of those that it did.
    """

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


def of_rank(job: Job, ranks: Ranks) -> list[Hook]:
    """What the job asks of this rank: on the first of a node its sampler, on the first of all the tracer."""
    log, hooks = Path(job.trials.result_file), list[Hook]()
    if job.course.telemetry_s and not ranks.local_rank:
        path = log.with_suffix(f".node{ranks.rank // job.cluster.dgxngpu}.telemetry.jsonl")
        gpus = job.cluster.dgxngpu if job.cluster.device == "gpu" else 0
        hooks.append(
            Sampler(path, every_s=job.course.telemetry_s, job_gpus=gpus, prometheus=job.course.telemetry_prometheus)
        )
    steps = job.course.traced
    if steps and ranks.is_first:
        hooks.append(Tracer(steps.start, steps.stop - 1, log, on_gpu=job.cluster.on_gpu))
    return hooks
