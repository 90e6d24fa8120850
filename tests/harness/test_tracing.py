"""PROFILE traces steps to a Chrome trace and marks the run; telemetry of the same run says what it cost."""

from __future__ import annotations

import itertools
import json
from unittest import mock

import pytest
from paddle import profiler

from harness.hooks import tracing
from tests import jobs
from tests.harness import small


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
        with tracing.Tracer(5, 10, tmp_path / "result_0.txt", on_gpu=True) as tracer:
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
    assert "run-profiled" in {f["rule"] for f in checked["findings"]}

    (summary,) = jobs.values(log, "telemetry_summary")
    samples = [json.loads(line) for line in (tmp_path / "result_0.node0.telemetry.jsonl").read_text().splitlines()]
    assert summary["samples"] == len(samples) or summary["samples"] + 1 == len(samples)
    assert 0 < summary["sampler_cpu_share"] < 1 and summary["joules_per_image"] is None
