"""The sampler: on this machine, on recorded GPUs, with a full disk; the tracer; and what a log says of both."""

import itertools
import json
import re
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pynvml
import pytest
from paddle import profiler

from harness import nvidia
from harness.hooks import telemetry
from harness.hooks.telemetry import Sampler
from harness.progress import Timing
from runlog.schema import TelemetrySummary
from tests import jobs
from tests.harness import small
from tests.harness.recorded import A100, NO_ECC, V100, recorded_nvml

GPU_FIELDS = {
    *("utilization_percent", "memory_mib", "power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz", "temperature_c"),
    *("throttle", "nvlink_tx_kib", "nvlink_rx_kib", "pcie_tx_kb_per_s", "pcie_rx_kb_per_s"),
}
THROTTLED = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_lines(path, count):
    jobs.until(lambda: path.exists() and len(path.read_text().splitlines()) >= count, every_s=0.01)


def test_samples_of_this_machine(tmp_path):
    path = tmp_path / "new" / "result_0.node0.telemetry.jsonl"
    with recorded_nvml(absent=True), Sampler(path, every_s=0.02, job_gpus=0) as sampler:
        sampler.run_begins()
        sampler.window_ends(None, Timing(images=64), step=1, epoch=1)
        wait_for_lines(path, 5)
    samples = lines(path)
    assert all(b["elapsed_s"] >= a["elapsed_s"] for a, b in itertools.pairwise(samples))  # in whole milliseconds
    last = samples[-1]
    assert last["gpus"] == [] and last["process"]["rss_mib"] > 10 and last["process"]["open_files"] > 2
    assert 0 <= last["cpu_percent"] <= 100 and last["memory_used_gib"] > 0.1
    assert abs(last["time_s"] - time.time()) < 60
    summary = telemetry.summarize([sampler.summary()])
    assert summary.samples == len(samples) and summary.sampler_cpu_share > 0
    assert summary.peak_gpu_memory_mib is summary.energy_j is summary.joules_per_image is None


def test_a_summary_is_of_all_nodes() -> None:
    first: dict[str, Any] = {"samples": 3, "images": 20, "energy_j": 10.0, "sampler_cpu_s": 0.5, "elapsed_s": 10.0}
    first |= {"peak_gpu_memory_mib": 5.0, "peak_gpu_temperature_c": None}
    second = {"samples": 4, "images": 20, "energy_j": 30.0, "sampler_cpu_s": 0.1, "elapsed_s": 10.0}
    second |= {"peak_gpu_memory_mib": 4.0, "peak_gpu_temperature_c": 60.0}
    assert telemetry.summarize([first, second]) == TelemetrySummary(
        peak_gpu_memory_mib=5.0,
        peak_gpu_temperature_c=60.0,
        energy_j=40.0,
        joules_per_image=2.0,
        samples=7,
        sampler_cpu_share=0.05,
    )
    without_energy = telemetry.summarize([first, second | {"energy_j": None}])
    assert without_energy.energy_j is without_energy.joules_per_image is None


@pytest.mark.parametrize(("gpu", "links"), [(V100, 6), (A100, 12), (NO_ECC, 0)])
def test_recorded_gpus(gpu, links):
    with recorded_nvml(gpu), nvidia.opened() as (handles, _):
        assert nvidia.nvlinks(handles[0]) == links
        sample = nvidia.sample(handles[0], nvlink=links > 0)
        slowed = nvidia.sample(gpu | {"throttle": THROTTLED})["throttle"]
    assert slowed == ["power cap", "thermal, by hardware"]
    assert set(sample) == GPU_FIELDS
    assert sample["power_w"] == gpu["power_mw"] / 1000 and sample["throttle"] == []
    assert sample["memory_mib"] == gpu["memory"][1] / 2**20
    assert sample["energy_j"] == (None if gpu["energy_mj"] is None else gpu["energy_mj"] / 1000)
    counters = (sample["nvlink_tx_kib"], sample["nvlink_rx_kib"])
    assert counters == ((links * 1138, links * 1139) if links else (None, None)), "of all links together"


RESERVED = {"memory": (40960 * 2**20, 37 * 2**20), "reserve": 875 * 2**20}


@pytest.mark.parametrize(
    ("driver", "second_call", "used_mib", "with_reserve_mib"),
    [
        ("450.80.02", True, 37, None),  # has the first call alone, which counts no reserve
        ("495.44", False, 37, None),
        ("510.47.03", True, 37, None),
        ("570.86.15", True, 37, None),
        ("510.47.03", False, None, 912),  # an old pynvml: what processes use is not known
        ("535.183.06", False, None, 912),
    ],
)
def test_the_drivers_own_reserve_is_no_memory_in_use(driver, second_call, used_mib, with_reserve_mib, monkeypatch):
    if not second_call:
        monkeypatch.delattr(pynvml, "nvmlMemory_v2")
    with recorded_nvml(A100 | RESERVED | {"driver": driver}), nvidia.opened() as (handles, _):
        gpu = nvidia.gpu_of(handles[0])
        assert nvidia.sample(handles[0])["memory_mib"] == used_mib
    assert (gpu.memory_used_mib, gpu.memory_used_or_reserved_mib) == (used_mib, with_reserve_mib)
    assert gpu.memory_gib == 40.0


def test_energy_and_peak_memory_are_of_the_gpus_that_cuda_shows_the_job(tmp_path, monkeypatch):
    """The job has the third GPU and the second, 300 + 200 J for 100 images; others use the rest."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,0")
    gpus = [A100 | {"power_mw": 1000 * (number + 1)} for number in range(4)]
    gpus[0]["memory"] = gpus[3]["memory"] = (42949672960, 30 * 2**30)
    path = tmp_path / "result_0.node0.telemetry.jsonl"
    with recorded_nvml(*gpus), Sampler(path, every_s=0.01, job_gpus=2) as sampler:
        sampler.run_begins()
        sampler.window_ends(None, Timing(images=100), step=1, epoch=1)
        for number, gpu in enumerate(gpus):
            gpu["energy_mj"] += 100_000 * (number + 1)
        gpus[1]["memory"] = (42949672960, 12345 * 2**20)
        wait_for_lines(path, 1)
        wait_for_lines(path, len(lines(path)) + 2)
        gpus[1]["memory"] = (42949672960, 100 * 2**20)
        assert sampler.power_w == 3 + 2
        first = sampler.summary()
    assert [gpu["power_w"] for gpu in lines(path)[0]["gpus"]] == [3, 2, 1]
    second = first | {"images": 0, "energy_j": 500.0, "peak_gpu_memory_mib": 11.0}
    both = telemetry.summarize([first, second])
    assert telemetry.summarize([first]).joules_per_image == pytest.approx(5.0)
    assert both.joules_per_image == pytest.approx(10.0) and both.peak_gpu_memory_mib == 12345
    assert telemetry.summarize([first, second | {"energy_j": None}]).joules_per_image is None


def test_energy_that_one_gpu_does_not_say_is_not_measured(tmp_path):
    with recorded_nvml(V100, NO_ECC), Sampler(tmp_path / "a.jsonl", every_s=1, job_gpus=2) as sampler:
        sampler.run_begins()
        assert sampler.summary()["energy_j"] is None


@pytest.mark.parametrize("name", ["old.jsonl", "old.jsonl/new.jsonl"])
def test_a_file_that_cannot_be_written_ends_no_sampling(tmp_path, capfd, name):
    """The check had refused the log of an honest run whose LOGDIR had an older file: it lacked most samples."""
    old = tmp_path / "old.jsonl"
    old.write_text("a result\n")
    with recorded_nvml(absent=True), Sampler(tmp_path / name, every_s=0.01, job_gpus=0) as sampler:
        jobs.until(lambda: sampler.summary()["samples"] >= 3, every_s=0.01)
    assert capfd.readouterr().err.count("warning: the file of telemetry ends: [Errno 17] File exists") == 1
    assert old.read_text() == "a result\n", "nothing is overwritten"


def test_the_folder_of_the_file_for_prometheus_is_made(tmp_path):
    prometheus = tmp_path / "new" / "training.prom"
    with recorded_nvml(absent=True), Sampler(tmp_path / "a", every_s=0.01, job_gpus=0, prometheus=str(prometheus)):
        wait_for_lines(tmp_path / "a", 2)
    assert "training_cpu_percent" in prometheus.read_text()


def test_a_file_for_prometheus_that_cannot_be_written_ends_no_sampling(tmp_path, capfd):
    """The run had the first sample alone, and no energy: a folder's name was misspelt."""
    (tmp_path / "file").touch()
    prometheus = tmp_path / "file" / "training.prom"
    with recorded_nvml(absent=True), Sampler(tmp_path / "a", every_s=0.01, job_gpus=0, prometheus=str(prometheus)):
        wait_for_lines(tmp_path / "a", 5)
    said = capfd.readouterr().err
    assert said.count("warning: ") == 1, "once, not with each sample"
    assert f"TELEMETRY_PROMETHEUS={prometheus}: is not written any more (" in said


# Functions of pynvml that the harness asks.
SOURCE = Path(nvidia.__file__).read_text()
QUESTIONS = sorted(set(re.findall(r"(?:pynvml\.|\")(nvml[A-Z]\w+)", SOURCE)) - {"nvmlInit", "nvmlMemory_v2"})


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_older_driver_leaves_a_question_unanswered_and_the_run_alone(name, tmp_path, monkeypatch):
    """pynvml raises NVMLLibraryMismatchError, no NVMLError, where libnvidia-ml lacks a symbol."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    path = tmp_path / "a.jsonl"
    with recorded_nvml(A100 | {"pids": [4711]}, lacks=(name, name.removesuffix("_v2"))) as nvml:
        with nvidia.opened() as (handles, why):
            for handle in handles:
                nvidia.gpu_of(handle)
                nvidia.serial_of(handle)
            assert handles or name in why
        with Sampler(path, every_s=0.01, job_gpus=1) as sampler:
            sampler.run_begins()
            wait_for_lines(path, 2)
        assert getattr(nvml, name).called


def test_prometheus_text(tmp_path):
    text, path = tmp_path / "run.prom", tmp_path / "a.jsonl"
    with recorded_nvml(V100), Sampler(path, every_s=0.02, job_gpus=1, prometheus=str(text)):
        wait_for_lines(path, 3)
        found = text.read_text()
    assert re.search(r'^training_gpu_power_w\{node="[^"]+",gpu="0"\} 43\.125$', found, re.MULTILINE)
    assert re.search(r'^training_cpu_percent\{node="[^"]+"\} [\d.]+$', found, re.MULTILINE)
    # The exposition format: a name, labels, a number.
    assert all(
        re.fullmatch(r'[a-z_][a-z0-9_]*\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\} -?[\d.e+]+', s) for s in found.splitlines()
    )
    assert [p.name for p in tmp_path.glob(".*")] == []


# ---- a trace of steps


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (1, 12, ""),
        (1, 8, "the trace ends before it"),
        (1, 3, "there is no trace"),
        (9, 9, "the trace ends before it"),  # a run that went on from a checkpoint
    ],
)
def test_steps_are_traced_with_the_kernels_beside_them_until_the_last_or_the_runs_end(
    tmp_path, capfd, begin, end, said
):
    traced, target = [step for step in range(begin, end + 1) if 5 <= step <= 10], profiler.ProfilerTarget
    with mock.patch.object(profiler, "Profiler", autospec=True) as made:  # without a driver it does not start
        kernels = made.return_value
        with telemetry.Tracer(5, 10, tmp_path / "result_0.txt", on_gpu=True) as tracer:
            for step in range(begin, end + 1):
                tracer.step_begins(step)
                assert kernels.start.called == (step >= 5)
                tracer.step_ends(step, 0.0, 0.0)
                assert kernels.stop.called == (step >= 10)
        assert kernels.start.call_count == kernels.stop.call_count == bool(traced)
    warned = f"warning: PROFILE=steps:5-10: the run had no step 10: {said}\n" if said else ""
    assert capfd.readouterr().err == warned
    path = tmp_path / "result_0.trace.json"
    events = json.loads(path.read_text())["traceEvents"] if path.exists() else []
    assert [event["args"]["step"] for event in events[::2]] == traced
    if traced:
        assert made.call_args.kwargs["targets"] == [target.CPU, target.GPU]
        made.call_args.kwargs["on_trace_ready"](kernels)
        kernels.export.assert_called_once_with(str(tmp_path / "result_0.kernels.trace.json"), "json")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_a_traced_run(tmp_path):
    log, data = tmp_path / "result_0.txt", small.data_set(tmp_path / "data")
    throughput = {"MODE": "throughput", "WARMUP_STEPS": 1, "MEASURED_STEPS": 4, "PROFILE": "steps:2-3"}
    done = small.train(log, data, **throughput)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "result_0.trace.json").read_text())["traceEvents"]
    assert [(e["name"], e["args"]["step"]) for e in events] == [(n, s) for s in (2, 3) for n in ("input", "executor")]
    assert all(e["ph"] == "X" and e["dur"] > 0 for e in events)
    assert all(b["ts"] >= a["ts"] + a["dur"] - 1 for a, b in itertools.pairwise(events)), "one after the other"
    windows = jobs.values(log, "step_window")
    executor_s = sum(e["dur"] for e in events if e["name"] == "executor") / 1e6
    assert executor_s <= sum(w["time_s"] for w in windows[1:3])
    assert jobs.values(log, "run_summary")[0]["profiled"]
    _, checked = jobs.checked(log)
    assert "run-mode" in {f["rule"] for f in checked["findings"]}

    (summary,) = jobs.values(log, "telemetry_summary")
    samples = [json.loads(line) for line in (tmp_path / "result_0.node0.telemetry.jsonl").read_text().splitlines()]
    assert summary["samples"] == len(samples) or summary["samples"] + 1 == len(samples)
    assert 0 < summary["sampler_cpu_share"] < 1 and summary["joules_per_image"] is None
