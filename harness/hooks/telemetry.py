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
from typing import Any, TextIO

import psutil

from harness import nvidia
from harness.hooks import Hook
from harness.job import ClusterSettings, CourseSettings
from harness.progress import Timing
from harness.ranks import Ranks
from runlog.schema import TelemetrySummary

INFINIBAND = Path("/sys/class/infiniband")


class Sampler(Hook):
    """Samples from entering to leaving, also where the file of samples cannot be written: the run's log needs them."""

    def __init__(self, path: Path, *, every_s: float, job_gpus: int, prometheus: str = "") -> None:
        """Prepare to sample the sensors of this node into a file; nothing is started yet.

        Args:
            path: File that gets a line of JSON for each sample. It must not exist yet.
            every_s: Seconds between two samples.
            job_gpus: Number of GPUs that the job uses, the first of those that CUDA shows; 0 on CPUs.
            prometheus: File that each sample overwrites, for a collector of Prometheus; empty: none. If it cannot be
                written, the sampling goes on without it.
        """
        self._path = path
        self._file: TextIO | None = None  # None: not open yet, or it could not be written
        self._every_s = every_s
        self._job_gpus = job_gpus
        self._prometheus = prometheus
        self._process = psutil.Process()
        self._stop = threading.Event()  # set by `close`
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._gpus: list[tuple[Any, bool]] = []  # each GPU's handle and whether it has NVLinks, from `__enter__` on
        self._exit = contextlib.ExitStack()  # closes NVML, which `__enter__` opens

        # What `summary` and `readings` tell; of GPUs only those of the job count.
        self._energy_begin_j: float | None = None  # the energy counters' sum at the first step
        self._images = 0  # trained on, by all ranks
        self._samples = 0  # taken
        self._cpu_s = 0.0  # CPU time of the sampling thread
        self._peaks: dict[str, float | None] = {"memory_mib": None, "temperature_c": None}  # the most of any GPU
        self.power_w: float | None = None  # of all GPUs together, at the last sample

    def __enter__(self) -> "Sampler":
        handles, _ = self._exit.enter_context(nvidia.opened())
        self._gpus = [(handle, nvidia.nvlinks(handle) > 0) for handle in handles]
        psutil.cpu_percent()  # the first answer is about nothing, later ones about the time since
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def close(self) -> None:
        """End the sampling."""
        self._stop.set()
        self._thread.join()
        self._exit.close()

    def _run(self) -> None:
        """Take a sample every `every_s` seconds, until `close` is called.

        This is the body of the sampling thread.
        """
        self._open_file()
        due_s = time.monotonic()
        is_closed = False
        while not is_closed:
            self._take_sample()
            due_s = max(due_s + self._every_s, time.monotonic())  # at once if the sample took longer
            is_closed = self._stop.wait(due_s - time.monotonic())
        self._close_file()

    def _open_file(self) -> None:
        """Open the file of samples, whose folder is made. A warning tells if that fails, or it is there already."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("x", encoding="utf-8")
        except OSError as error:
            _warn_of_file(error)

    def _close_file(self) -> None:
        """Close the file of samples if it is open."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # of a line that had no room on the disk, as a warning has told
                self._file.close()
            self._file = None

    def _take_sample(self) -> None:
        """Take a sample, append it to the file as a line of JSON, and overwrite that of Prometheus, if there is one.

        What the run's log needs of the sample is kept in this object. If the file cannot be written, it is given up
        with a warning.
        """
        sample = self.sample()
        self._keep_for_log(sample)
        try:
            if self._file is not None:
                self._file.write(json.dumps(sample) + "\n")
                self._file.flush()
        except OSError as error:
            _warn_of_file(error)
            self._close_file()
        if self._prometheus:
            self._write_for_prometheus(sample)
        self._samples += 1
        self._cpu_s = time.thread_time()  # of this thread since it began

    def _write_for_prometheus(self, sample: dict[str, Any]) -> None:
        """Overwrite the file for Prometheus, whose folder is made. If it cannot be written, give it up with a warning.

        Args:
            sample: The sample that the file gets.
        """
        prometheus_file = Path(self._prometheus)
        temporary = prometheus_file.with_name(f".{prometheus_file.name}.tmp")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(prometheus(sample))
            temporary.replace(prometheus_file)  # complete, as the collector may read it at any time
        except OSError as error:
            reason = error.strerror or error
            print(
                f"warning: TELEMETRY_PROMETHEUS={self._prometheus}: is not written any more ({reason}): name a file "
                "in a folder that this user may write",
                file=sys.stderr,
                flush=True,
            )
            self._prometheus = ""

    def sample(self) -> dict[str, Any]:
        """Return the node's readings of now, by the names that a line of the telemetry file has.

        Returns:
            {name with its unit: value}, such as "cpu_percent". "gpus" lists such a dictionary for each GPU that CUDA
            shows. Bytes of the disks and the network are counted since the machine started. What cannot be read is
            None.
        """
        memory = psutil.virtual_memory()
        disk = psutil.disk_io_counters()
        network = psutil.net_io_counters()
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

    def _keep_for_log(self, sample: dict[str, Any]) -> None:
        """Keep of a sample what the run's log needs: the peaks so far, and the power now, of the job's GPUs.

        Args:
            sample: A result of `sample`.
        """
        gpus = sample["gpus"][: self._job_gpus]
        for name, peak in self._peaks.items():
            self._peaks[name] = _most_of_known([peak, *(gpu[name] for gpu in gpus)])
        power_w = _sum_if_all_known([gpu["power_w"] for gpu in gpus])
        self.power_w = None if power_w is None else round(power_w, 3)

    # ---- what the run asks

    def run_begins(self) -> None:
        """Count energy from now on, if this is the first call, which comes before the first step of the run."""
        if self._energy_begin_j is None:
            self._energy_begin_j = self._energy_j()

    def readings(self) -> dict[str, Any]:
        """Return the power in watts of the job's GPUs on this node at the last sample, as {"power_w": 812.5}.

        It is None if there is no sample yet, there are no GPUs, or one of them does not tell it.
        """
        return {"power_w": self.power_w}

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Count the images that were trained on, over all ranks; this takes no time from the training.

        Args:
            main: Not used.
            window: The steps that have ended, with their images.
            step: Not used.
            epoch: Not used.
        """
        self._images += window.images
        return 0.0

    def _energy_j(self) -> float | None:
        return _sum_if_all_known([nvidia.energy_j(handle) for handle, _ in self._gpus[: self._job_gpus]])

    def summary(self) -> dict[str, Any]:
        """Return what was measured on this node since the sampling began; `summarize` takes one such dictionary a node.

        Returns:
            {name with its unit: value}. Peaks and energy are of the job's GPUs on this node, and None if they were not
            measured. Energy counts from the first step on. "images" are those trained on by all ranks.
        """
        begin_j = self._energy_begin_j  # what the GPUs' counters had at the first step
        end_j = self._energy_j()
        energy_j = None
        if begin_j is not None and end_j is not None:
            energy_j = end_j - begin_j
        return {
            "samples": self._samples,
            **{f"peak_gpu_{name}": peak for name, peak in self._peaks.items()},  # memory_mib and temperature_c
            "energy_j": energy_j,
            "images": self._images,
            "sampler_cpu_s": round(self._cpu_s, 4),  # of the sampling thread
            "elapsed_s": round(time.monotonic() - self._started_s, 3),
        }


def _warn_of_file(error: OSError) -> None:
    print(f"warning: the file of telemetry ends: {error}", file=sys.stderr, flush=True)


def summarize(nodes: list[dict[str, Any]]) -> TelemetrySummary:
    """Return the telemetry summary of a whole run from what was measured on each of its nodes.

    Energy is summed over the nodes, from the first step to the end of the run, with its evaluations. Divided by the
    images trained on it is `joules_per_image`. Peaks are the most of any node.

    Args:
        nodes: The result of `Sampler.summary` of each node; at least one.

    Returns:
        The summary. What was not measured is None, and so is the energy if one node did not measure it.
    """
    energy_j = _sum_if_all_known([node["energy_j"] for node in nodes])
    images = nodes[0]["images"]  # each node counts those of all ranks, so the nodes' counts are equal
    joules_per_image = None
    if energy_j is not None and images:
        joules_per_image = energy_j / images
    # The share of one core that the sampling took on each node.
    cpu_shares = [round(node["sampler_cpu_s"] / node["elapsed_s"], 6) for node in nodes]
    return TelemetrySummary(
        peak_gpu_memory_mib=_most_of_known([node["peak_gpu_memory_mib"] for node in nodes]),
        peak_gpu_temperature_c=_most_of_known([node["peak_gpu_temperature_c"] for node in nodes]),
        energy_j=None if energy_j is None else round(energy_j, 3),
        joules_per_image=joules_per_image,
        samples=sum(node["samples"] for node in nodes),
        sampler_cpu_share=max(cpu_shares),
    )


def _most_of_known(values: list[float | None]) -> float | None:
    """Return the largest of the values that are known; None if none is.

    Args:
        values: Values, each None if it is not known.
    """
    return max((value for value in values if value is not None), default=None)


def _sum_if_all_known(values: list[float | None]) -> float | None:
    """Return the sum of some values; None if there is no value, or one is not known.

    Args:
        values: Values, each None if it is not known.
    """
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total if values else None


def _infiniband_bytes() -> dict[str, int | None]:
    """Return the bytes sent and received over all InfiniBand ports of this node since it started.

    Returns:
        Two values by their names in the telemetry file. One is None if the node has no such port, or a port cannot be
        read.
    """
    return {
        "infiniband_sent_bytes": _port_bytes("port_xmit_data"),
        "infiniband_received_bytes": _port_bytes("port_rcv_data"),
    }


def _port_bytes(counter: str) -> int | None:
    """Return the bytes that a counter has counted over all ports of InfiniBand of this node.

    Args:
        counter: Name of the counter's file, such as "port_xmit_data". The file counts in words of four bytes.

    Returns:
        Bytes. None if there is no port, or a file cannot be read.
    """
    files = list(INFINIBAND.glob(f"*/ports/*/counters/{counter}"))
    if not files:
        return None
    try:
        return sum(4 * int(path.read_text()) for path in files)
    except (OSError, ValueError):  # for example of a port that is down
        return None


def prometheus(sample: dict[str, Any]) -> str:
    """Return a sample in the text format of Prometheus: a line for each number of the node and of each GPU.

    Args:
        sample: A result of `Sampler.sample`.
    """
    node = sample["node"].replace("\\", "\\\\").replace('"', '\\"')
    lines = _prometheus_lines("training", f'node="{node}"', sample)
    for index, gpu in enumerate(sample["gpus"]):
        lines += _prometheus_lines("training_gpu", f'node="{node}",gpu="{index}"', gpu)
    return "".join(lines)


def _prometheus_lines(prefix: str, labels: str, values: dict[str, Any]) -> list[str]:
    """Return lines in the text format of Prometheus for those values that are numbers.

    Args:
        prefix: Beginning of the names, before a "_".
        labels: Labels of all lines, as 'node="n1",gpu="0"'.
        values: Values by name. Texts, lists and None are left out.
    """
    lines = []
    for name, value in values.items():
        if isinstance(value, int | float):
            lines.append(f"{prefix}_{name}{{{labels}}} {value}\n")
    return lines


# ---- a trace of steps


class Tracer(Hook):
    """PROFILE=steps:a-b: records the steps `first` to `last`, counted from 1, until it is left at the latest.

    Rank 0 writes `<log without .txt>.trace.json`, in Chrome's trace format (chrome://tracing, Perfetto): for each step
    what it waited for input and what the executor took on the host. On a GPU Paddle's profiler, which needs CUDA, adds
    `<log without .txt>.kernels.trace.json` with operators and kernels; the two share no clock. A run that was traced is
    marked and may not be published; one that ends before the last of the steps leaves a trace of those that it did.
    """

    def __init__(self, first: int, last: int, log: Path, *, on_gpu: bool) -> None:
        self._first = first
        self._last = last
        self._path = log.with_suffix(".trace.json")
        self._kernels = log.with_suffix(".kernels.trace.json") if on_gpu else None
        self._events: list[dict[str, Any]] = []
        self._profiler: Any = None
        self._written = False

    def close(self) -> None:
        """Write the trace so far, with a warning, if the run ended before the last step to trace; else do nothing."""
        if not self._written:
            left = "the trace ends before it" if self._events else "there is no trace"
            text = f"PROFILE=steps:{self._first}-{self._last}: the run had no step {self._last}: {left}"
            print(f"warning: {text}", file=sys.stderr, flush=True)
            self._write()

    def step_begins(self, step: int) -> None:
        """Start Paddle's profiler once: at the first step that begins within PROFILE's range of steps, on a GPU.

        Usually that is the range's lower end. A run that goes on from a checkpoint may begin in the midst of the range.

        Args:
            step: Number of the step that begins, counted from 1 over the whole run.
        """
        traces_kernels = self._kernels is not None  # only on a GPU
        has_started = self._profiler is not None
        is_traced = self._first <= step <= self._last
        if not traces_kernels or has_started or not is_traced:
            return
        from paddle import profiler

        target = profiler.ProfilerTarget
        self._profiler = profiler.Profiler(
            targets=[target.CPU, target.GPU],
            on_trace_ready=self._export_kernels,  # when it is stopped
        )
        self._profiler.start()

    def _export_kernels(self, profiler: Any) -> None:
        """Write the trace of Paddle's profiler, which calls this when it stops."""
        profiler.export(str(self._kernels), "json")

    def step_ends(self, step: int, began_s: float, ready_s: float) -> None:
        """Record a step if it is to be traced, and write the trace after the last one.

        Args:
            step: Number of the step that has ended, counted from 1 over the whole run.
            began_s: When the step began, by time.perf_counter.
            ready_s: When its input was there.
        """
        if not self._first <= step <= self._last:
            return
        ended_s = time.perf_counter()
        self._record("input", step, began_s, ready_s)
        self._record("executor", step, ready_s, ended_s)
        if step == self._last:
            self._write()

    def _record(self, name: str, step: int, begin_s: float, end_s: float) -> None:
        """Add a complete event ("X") of Chrome's trace format, whose times are in microseconds.

        Args:
            name: What is timed: "input" or "executor".
            step: Number of the step.
            begin_s: When it began, in seconds by time.perf_counter.
            end_s: When it ended.
        """
        times = {"ts": begin_s * 1e6, "dur": (end_s - begin_s) * 1e6}
        self._events.append({"name": name, "ph": "X", "pid": 0, "tid": 0, **times, "args": {"step": step}})

    def _write(self) -> None:
        self._written = True
        if self._profiler:
            self._profiler.stop()
        if self._events:
            self._path.write_text(json.dumps({"traceEvents": self._events, "displayTimeUnit": "ms"}))


def of_rank(course: CourseSettings, cluster: ClusterSettings, ranks: Ranks, log: Path) -> list[Hook]:
    """Return the hooks by which this rank measures the run: a sampler of sensors, a tracer of steps, both or none.

    The first rank of each node samples. Only rank 0 traces.

    Args:
        course: Settings of the run: the seconds between two samples, and the steps to trace.
        cluster: Settings of the nodes and ranks.
        ranks: This process among the ranks of the job.
        log: The log of the run. The hooks write files next to it, with names that begin like the log's.
    """
    hooks: list[Hook] = []
    if course.telemetry_s and ranks.local_rank == 0:  # the first rank of each node
        node_number = ranks.rank // cluster.dgxngpu
        path = log.with_suffix(f".node{node_number}.telemetry.jsonl")
        job_gpus = cluster.dgxngpu if cluster.on_gpu else 0
        prometheus_file = course.telemetry_prometheus
        hooks.append(Sampler(path, every_s=course.telemetry_s, job_gpus=job_gpus, prometheus=prometheus_file))
    traced_steps = course.traced  # a range of steps, or none
    if traced_steps and ranks.is_first:
        first, last = traced_steps[0], traced_steps[-1]
        hooks.append(Tracer(first, last, log, on_gpu=cluster.on_gpu))
    return hooks
