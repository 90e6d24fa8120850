"""The view of a run: over logs that are growing, finished, aborted, and cut in the middle of a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rich.console import Console

from tests import jobs
from tools import watch

CONFIG = {
    "MODE": {"value": "train", "origin": "x"},
    "MAX_EPOCHS": {"value": 0, "origin": "x"},
    "RECIPE.epochs": {"value": 4, "origin": "x"},
    "RECIPE.target_top1": {"value": 0.9, "origin": "x"},
}
NODE = {"time_s": 1000.0, "node": "dgx1", "cpu_percent": 12.0, "memory_used_gib": 31.0}
GPU = {"utilization_percent": 98, "memory_mib": 15321.0, "power_w": 287.4, "sm_clock_mhz": 1455, "temperature_c": 61}


def event(key, value=None, kind="POINT_IN_TIME", **metadata):
    body = {"namespace": "", "time_ms": 1_000_000, "event_type": kind, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(body)}\n"


def window(step, images=160, time_s=4.0):
    value = {"steps": 5, "images": images, "time_s": time_s, "data_wait_s": 0.4, "loss": 1.5}
    return event("step_window", value, step=step, epoch_num=1, phase="train")


PREAMBLE = (
    f"# {json.dumps({'config': CONFIG})}\n"
    + event("init_start", kind="INTERVAL_START")
    + event("train_samples", 1437)
    + event("global_batch_size", 32)
    + event("run_start", kind="INTERVAL_START")
)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return jobs.run([sys.executable, "-m", "tools.watch", *arguments])


def text(view: watch.View, now_s: float) -> str:
    console = Console(width=140, highlight=False)
    with console.capture() as captured:
        console.print(watch.draw(view.state(), now_s))
    return captured.get()


def test_a_run_that_goes_on(tmp_path):
    log, node = tmp_path / "CPU" / "rn50" / "result_0.txt", tmp_path / "CPU" / "rn50" / "result_0.node1.telemetry.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(PREAMBLE)
    view = watch.View(tmp_path)
    assert view.look() and view.state()["phase"] == "training" and view.state()["total_steps"] == 4 * 44
    with log.open("a") as file:
        file.write(window(5) + window(10, time_s=6.0)[:-20])
    node.write_text(json.dumps(NODE | {"gpus": [GPU | {"throttle": ["power cap"]}]}) + '\n{"time_s": 10')
    view.look()
    assert view.state()["step"] == 5, "a line that is being written waits for its end"
    with log.open("a") as file:
        file.write(window(10, time_s=6.0)[-20:])
    view.look()
    state = view.state()
    assert state["step"] == 10 and state["images_per_s"] == 32.0 and state["data_wait_share"] == 0.08
    assert state["left_s"] == (176 - 10) * 1.0
    shown = text(view, 1001.0)
    for part in ("10 of 176, epoch 1, loss 1.5000", "32.0 images/s", "8.00 %", "166 s at most", "dgx1", "98 %"):
        assert part in shown
    assert "287 W" in shown and "power cap" in shown and "silent" not in shown
    assert "dgx1 (silent for 60 s)" in text(view, 1060.0) and "nothing new for 60 s" in text(view, 1060.0)


def test_the_end_of_a_run(tmp_path):
    log = tmp_path / "result_0.txt"
    end = event("run_stop", kind="INTERVAL_END", status="success")
    summary = {"peak_gpu_memory_mib": 15321.0, "joules_per_image": 0.734}
    log.write_text(PREAMBLE + window(5) + event("eval_accuracy", 0.93) + end + event("telemetry_summary", summary))
    done = command(str(tmp_path))
    assert done.returncode == 0, done.stderr
    for part in ("finished", "0.9300 (target 0.9000)", "15321 MiB", "0.734 J an image", "no telemetry"):
        assert part in done.stdout
    assert "time left" not in done.stdout
    log.write_text(
        PREAMBLE + event("abort_reason", "loss is nan") + event("run_stop", kind="INTERVAL_END", status="aborted")
    )
    assert "aborted: loss is nan" in command(str(log)).stdout
    state = json.loads(command(str(log), "--json").stdout)
    assert state["phase"] == "aborted" and state["reason"] == "loss is nan" and state["left_s"] is None


def test_throughput_mode_and_the_newest_log(tmp_path):
    config = {"MODE": {"value": "throughput"}, "WARMUP_STEPS": {"value": 10}, "MEASURED_STEPS": {"value": 50}}
    for number, mode in enumerate((CONFIG, config)):
        log = tmp_path / f"result_{number}.txt"
        log.write_text(f"# {json.dumps({'config': mode})}\n")
        os.utime(log, (1000 + number, 1000 + number))
    view = watch.View(tmp_path)
    view.look()
    assert view.state()["log"].endswith("result_1.txt") and view.state()["total_steps"] == 60


def test_a_log_that_lies(tmp_path):
    """Any bytes, values of other kinds, markup, and what a terminal would obey."""
    log = tmp_path / "result_0.txt"
    log.write_bytes(b"\x00\xff# {\n:::MLLOG {]\n:::MLLOG " + b"[" * 5000 + b"\n" + PREAMBLE.encode() + b"\x1b[31m")
    done = command(str(tmp_path), "--once")
    assert done.returncode == 0 and "training" in done.stdout, done.stderr
    config = {"MODE": {"value": 1}, "MAX_EPOCHS": {"value": "x"}, "RECIPE.target_top1": {"value": [1]}, "A": {}}
    log.write_text(
        f"# {json.dumps({'config': config})}\n"
        + event("train_samples", "many")
        + event("step_window", {"steps": "5", "images": None})
        + event("step_window", 3)
        + event("eval_accuracy", {"a": 1})
        + window("last")
        + event("telemetry_summary", "none")
        + event("abort_reason", "[red]\x1b]0;title\x07\x1b[2J[/red]")
    )
    done = command(str(tmp_path), "--once")
    assert done.returncode == 0, done.stderr
    assert r"[red]\x1b]0;title\x07\x1b[2J[/red]" in done.stdout and "\x1b" not in done.stdout
    assert "step        - of -" in done.stdout and "quality     - (target -)" in done.stdout


def test_wrong_use(tmp_path):
    done = command(str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    done = command(str(tmp_path))
    assert done.returncode == 1 and "holds no result_*.txt" in done.stderr and done.stderr.count("\n") == 1
    assert command().returncode == 2
