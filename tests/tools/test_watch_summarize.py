"""A run's log on the terminal: the view of one that grows, ends, aborts or is cut; the table at the end of a job."""

import errno
import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from scoring.record import Record, Window
from tests import jobs, make_log
from tests.scoring import samples
from tools import summarize, watch

LOG = make_log.run()  # three epochs of two windows
WINDOWS = [found.end() for found in re.finditer(r'.*"step_window".*\n', LOG)]
BEGUN = LOG[: WINDOWS[0]]
NOW_S = json.loads(BEGUN.splitlines()[-1].removeprefix(":::MLLOG "))["time_ms"] / 1000
GPU = {"utilization_percent": 98, "memory_mib": 15321.0, "power_w": 287.4, "sm_clock_mhz": 1455, "temperature_c": 61}


def event(key, value=None, kind="POINT_IN_TIME", **metadata):
    body = {"namespace": "", "time_ms": 1_000_000, "event_type": kind, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(body)}\n"


SAMPLE = {"time_s": NOW_S, "node": "dgx1", "cpu_percent": 12.0, "memory_used_gib": 31.0, "gpus": []}

command = functools.partial(jobs.called, watch.main)


def text(state, now_s, width=140):
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(watch.draw(state, now_s))
    return captured.get()


def test_a_run_that_goes_on(tmp_path):
    log, node = tmp_path / "CPU" / "rn50" / "result_0.txt", tmp_path / "CPU" / "rn50" / "result_0.node1.telemetry.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(LOG[: LOG.index('"run_start"')])
    view = watch.View(tmp_path)
    state = view.look()
    assert state["phase"] == "preparing" and state["total_steps"] == 3 * 44
    log.write_text(LOG[: WINDOWS[1] - 20])
    node.write_text(json.dumps(SAMPLE | {"gpus": [GPU | {"throttle": ["power cap"]}]}) + '\n{"time_s": 10')
    assert view.look()["step"] == 22, "a line that is being written waits for its end"
    log.write_text(LOG[: WINDOWS[1]])
    state, rate = view.look(), 44 * 32 / 36
    assert (state["phase"], state["step"], round(state["images_per_s"], 3)) == ("training", 44, round(rate, 3))
    assert state["left_s"] == round((132 - 44) * 32 / rate, 1)
    shown, later = text(state, NOW_S + 1), text(state, NOW_S + 60)
    for part in ("44 of 132, epoch 1, loss 1.", "39.1 images/s", "0.06 %", "72 s at most", "dgx1", "98 %"):
        assert part in shown
    assert "287 W" in shown and "power cap" in shown and "silent" not in shown
    assert "dgx1 (silent for 60 s)" in later and ", nothing new for " in later


@pytest.mark.parametrize("width", [30, 40, 60, 80, 140])
def test_a_narrow_terminal_loses_no_value(tmp_path, width):
    """At 40 columns a node's values were "1…", "G…" and the log's path lost its end."""
    (tmp_path / "result_0.txt").write_text(LOG[: WINDOWS[1]])
    gpus = [GPU | {"throttle": throttle} for throttle in (["power cap"], [])]
    (tmp_path / "result_0.node0.telemetry.jsonl").write_text(json.dumps(SAMPLE | {"gpus": gpus}) + "\n")
    lines = text(watch.View(tmp_path).look(), NOW_S, width).splitlines()
    assert max(len(line) for line in lines) <= width
    shown = " ".join(" ".join(lines).split())
    assert "…" not in shown and str(tmp_path / "result_0.txt") in shown.replace(" ", "")
    for value in ("12 %", "31.0 GiB", "98 %", "15321 MiB", "287 W", "1455 MHz", "61 C", "power cap"):
        assert value in shown, shown


def test_nodes_without_a_gpu_have_no_columns_of_gpus(tmp_path):
    (tmp_path / "result_0.txt").write_text(LOG)
    (tmp_path / "result_0.node0.telemetry.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    shown = text(watch.View(tmp_path).look(), NOW_S)
    assert shown.splitlines()[-2].split() == ["node", "CPU", "memory"]
    assert shown.splitlines()[-1].split() == ["dgx1", "12", "%", "31.0", "GiB"]


@pytest.mark.parametrize(
    "line", ["1", "[1]", "{}", '{"time_s": 10', "\x00", '"gpus"', json.dumps(SAMPLE | {"node": 7})]
)
def test_a_damaged_sample_leaves_the_one_before_it(line: str, tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(LOG)
    node = tmp_path / "result_0.node0.telemetry.jsonl"
    node.write_text(json.dumps(SAMPLE) + "\n")
    view = watch.View(tmp_path)
    view.look()
    with node.open("a") as file:
        file.write(f"{line}\n")
    state = view.look()
    assert state["nodes"] == [SAMPLE] and "dgx1" in text(state, NOW_S)
    assert command(tmp_path, "--once").returncode == 0


UNKNOWN: tuple[dict[str, Any], ...] = (
    {},
    {"time_s": 1.0, "cpu_percent": None, "gpus": [{}]},
    {"memory_used_gib": 10**400, "gpus": [3, {"power_w": 287.0, "throttle": None}]},
    {"gpus": 3},
)


@pytest.mark.parametrize("known", UNKNOWN)
@pytest.mark.parametrize("width", [40, 140])
def test_a_node_shows_what_its_telemetry_has(known: dict[str, Any], width: int, tmp_path: Path) -> None:
    """Telemetry of a version that wrote other fields dropped the node from the view."""
    (tmp_path / "result_0.txt").write_text(LOG)
    (tmp_path / "result_0.node0.telemetry.jsonl").write_text(json.dumps({"node": "dgx1"} | known) + "\n")
    shown = text(watch.View(tmp_path).look(), NOW_S, width)
    row = re.search(r"dgx1:? +(?:CPU )?-[ ,]+(?:memory )?-(.*)", shown, re.DOTALL)
    assert row is not None, shown
    assert ("287 W" in row[1]) == ("287" in str(known))
    assert command(tmp_path, "--once").returncode == 0


def test_the_slowest_rank_of_a_step_that_is_done_again_after_a_resume_is_the_one_shown(tmp_path):
    """Not that of a later step, which was done before."""
    wait = {"data_wait_least_s": 0.1, "data_wait_median_s": 0.1, "data_wait_most_s": 0.2, "data_wait_host": "dgx1"}
    not_measured = dict.fromkeys(f"compute_{name}" for name in ("least_s", "median_s", "most_s", "rank", "host"))
    times = wait | not_measured
    ranks = [
        event("rank_times", times | {"data_wait_rank": rank}, step=step) for step, rank in ((22, 1), (44, 2), (22, 3))
    ]
    (tmp_path / "result_0.txt").write_text(BEGUN + "".join(ranks))
    shown = text(watch.View(tmp_path).look(), NOW_S)
    assert "data wait 0.200 s (rank 3 on dgx1; median 0.100 s)" in shown
    half_known = {"data_wait_rank": 4, "compute_most_s": 0.3, "compute_rank": 5, "compute_host": "dgx1"}
    ranks.append(event("rank_times", times | half_known, step=22))
    (tmp_path / "result_0.txt").write_text(BEGUN + "".join(ranks))
    assert "compute 0.300 s (rank 5 on dgx1; median -)" in text(watch.View(tmp_path).look(), NOW_S)


def test_the_end_of_a_run(tmp_path):
    log = tmp_path / "result_0.txt"
    summary = event("telemetry_summary", {"peak_gpu_memory_mib": 15321.0, "joules_per_image": 0.734})
    log.write_text(LOG + summary)
    done = jobs.run([sys.executable, "-m", "tools.watch", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    for part in ("finished", "0.9611 (target 0.9000)", "15321 MiB", "0.734 J an image", "no telemetry"):
        assert part in done.stdout
    assert "time left" not in done.stdout
    stop = event("run_stop", None, "INTERVAL_END", status="aborted")
    log.write_text(BEGUN + event("abort_reason", "loss is nan") + stop)
    assert "aborted: loss is nan" in command(log).stdout
    state = json.loads(command(log, "--json").stdout)
    assert state["phase"] == "aborted" and state["reason"] == "loss is nan" and state["left_s"] is None


def test_throughput_mode_and_the_newest_log(tmp_path):
    for number, mode in enumerate(("train", "throughput")):
        log = tmp_path / f"result_{number}.txt"
        log.write_text(make_log.run(summary={"mode": mode}))
        os.utime(log, (1000 + number, 1000 + number))
    state = watch.View(tmp_path).look()
    assert state["log"].endswith("result_1.txt") and state["total_steps"] == 60


def test_a_log_that_lies(tmp_path):
    """Any bytes, values of other kinds, markup, and what a terminal would obey."""
    log = tmp_path / "result_0.txt"
    log.write_bytes(b"\x00\xff# {\n:::MLLOG {]\n:::MLLOG " + b"[" * 5000 + b"\n" + BEGUN.encode() + b"\x1b[31m")
    done = command(tmp_path, "--once")
    assert done.returncode == 0 and "training" in done.stdout, done.stderr
    config = {"MODE": {"value": 1}, "MAX_EPOCHS": {"value": "x"}, "RECIPE.target_top1": {"value": [1]}, "A": {}}
    log.write_text(
        f"# {json.dumps({'config': config})}\n"
        + event("train_samples", "many")
        + event("step_window", {"steps": "5", "images": None})
        + event("step_window", 3)
        + event("eval_accuracy", {"a": 1})
        + event("step_window", {"steps": 5, "images": 1, "time_s": 4.0, "data_wait_s": 0.4, "loss": "x"}, step="last")
        + event("telemetry_summary", "none")
        + event("abort_reason", "[red]\x1b]0;title\x07\x1b[2J[/red]")
    )
    done = command(tmp_path, "--once")
    assert done.returncode == 0, done.stderr
    assert r"[red]\x1b]0;title\x07\x1b[2J[/red]" in done.stdout and "\x1b" not in done.stdout
    assert "step        - of -" in done.stdout and "quality     - (target -)" in done.stdout
    log.write_text(re.sub(r'"steps": \d+', '"steps": 0', BEGUN))
    assert json.loads(command(log, "--json").stdout)["left_s"] is None


def test_wrong_use(tmp_path):
    done = command(tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    done = command(tmp_path)
    jobs.refused(done, "holds no result_*.txt: give the LOGDIR of a job")
    (tmp_path / "result_0.txt").touch()
    done = command(tmp_path)
    assert done.returncode == 0 and re.search(r"^state +nothing is written yet *$", done.stdout, re.M)
    with mock.patch.object(Path, "exists", side_effect=PermissionError(errno.EACCES, "no", str(tmp_path))):
        jobs.refused(command(tmp_path), f"{tmp_path}: permission denied: ask its owner for access")


def test_a_log_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """Where it lies in the folder that is watched: to open it would wait for ever."""
    os.mkfifo(tmp_path / "result_0.txt")
    done = command(tmp_path, "--once")
    assert done.returncode == 2 and "result_0.txt: is a pipe, a socket or a device" in done.stderr


def test_a_log_that_the_disk_does_not_give_is_named(tmp_path: Path) -> None:
    """Linux fails a read of a process's memory at its first byte, also for root."""
    log = tmp_path / "result_0.txt"
    log.symlink_to("/proc/self/mem")
    jobs.refused(command(tmp_path, "--once"), f"{log}: Input/output error: check the path")


# ---- the table at the end of a job


def row(stdout: str, name: str) -> str:
    (found,) = re.findall(rf"^{name} {{2,}}(.*)$", stdout, re.M)
    return found


summarized = functools.partial(jobs.called, summarize.main)


def test_quality_has_the_name_of_the_models_measure(tmp_path: Path) -> None:
    logs = [tmp_path / f"result_{seed}.txt" for seed in (1, 2, 3)]
    for seed, log in enumerate(logs, 1):
        log.write_text(make_log.run(benchmark="hrnet", seed=seed, summary={"model": "fcn_hrnetw18"}))
    done = summarized(*logs)
    assert (done.returncode, done.stderr) == (0, "")
    assert row(done.stdout, "quality") == "0.9583 mIoU (median of 3; 0.9556 mIoU to 0.9611 mIoU)"


def test_a_log_without_an_evaluation_is_named(tmp_path: Path) -> None:
    whole, cut = tmp_path / "result_0.txt", tmp_path / "result_1.txt"
    whole.write_text(make_log.run())
    text = make_log.run(seed=2)
    cut.write_text(text[: text.index('"key": "eval_start"')].rpartition("\n")[0] + "\n")
    done = summarized(whole, cut)
    assert (done.returncode, done.stderr) == (1, "")
    assert row(done.stdout, "quality") == f"no evaluation in {cut}"
    assert row(done.stdout, "time to train") == f"no end in {cut}"
    assert row(done.stdout, "check").startswith("pass, fail")
    assert f"\nlog            {whole}\n               {cut}\n" in done.stdout  # whole, however long
    assert f"\n{cut}: run_stop.count: expected " in done.stdout  # what is absent has no line


def test_the_time_to_train_of_a_resumed_run_is_unknown(tmp_path: Path) -> None:
    """Its log has the time since the checkpoint alone."""
    log = tmp_path / "result_0.resumed_1.txt"
    log.write_text(make_log.run(summary={"resumed": True}))
    assert row(summarized(log).stdout, "time to train") == f"unknown: resumed from a checkpoint in {log}"


def test_of_a_throughput_without_an_interval_the_reason_is_said_once(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.mllog(make_log.run_of([0.5] * 40), mode="throughput"))
    said = row(summarized("--throughput", log).stdout, "throughput")
    assert re.fullmatch(r"[\d.]+ images/s, 95 % interval none: fewer than \d+ windows of one run", said), said


def test_a_warning_about_one_of_several_runs_names_its_log(tmp_path: Path) -> None:
    logs = [tmp_path / f"result_{number}.txt" for number in range(2)]
    for log, slow_s in zip(logs, (1.0, 1.2), strict=True):
        times = ([0.5] * 10 + [slow_s] * 10) * 10
        log.write_text(make_log.mllog(make_log.run_of(times), mode="throughput"))
    said = summarized("--throughput", *logs).stdout
    assert "warning: unsteady: result_0.txt: the slow windows take 2 times" in said
    assert "warning: unsteady: result_1.txt: the slow windows take 2.4 times" in said


COUNTED = """
import atexit, os, runpy, sys
log, opened, started = sys.argv.pop(1), [], []
def count(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and os.path.realpath(arguments[0]) == log:
        opened.append(arguments)
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        started.append(arguments)
sys.addaudithook(count)
atexit.register(lambda: print(len(opened), len(started), file=sys.stderr))
runpy.run_module("tools.summarize", run_name="__main__")
"""


@pytest.mark.parametrize("throughput", [False, True], ids=["train", "throughput"])
def test_check_score_and_report_read_the_log_once_in_one_process(tmp_path: Path, throughput: bool) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.run())
    options = ["--throughput"] if throughput else []
    done = jobs.run([sys.executable, "-c", COUNTED, str(log.resolve()), str(log), *options])
    assert (done.returncode, done.stderr) == (0, "1 0\n"), done.stderr
    assert row(done.stdout, "data wait") == "0.06 % of the step time"
    assert row(done.stdout, "report") == str(tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text()
    assert throughput or row(done.stdout, "quality") == "0.9611 top-1"
    assert (tmp_path / "findings.json").exists() != throughput
    assert bool(list(tmp_path.glob("*.checked"))) != throughput


def test_a_log_that_measured_nothing_is_named(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text("nothing\n")
    done = summarized(log)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {log}: ") and done.stderr.count("\n") == 1


def _short_run(tmp_path: Path) -> Path:
    """A run that reaches its target in 12 steps, within the warm-up of 20."""
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.run(samples=(64, 32), epochs=6, accuracies=(0.5, 0.5, 0.5, 0.5, 0.5, 1.0)))
    return log


def test_a_training_shorter_than_the_warm_up_is_checked_without_a_throughput(tmp_path: Path) -> None:
    done = summarized(_short_run(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert row(done.stdout, "quality") == "1.0000 top-1"
    assert row(done.stdout, "time to train") == "228.1 s"
    assert row(done.stdout, "throughput") == "not measured"
    assert row(done.stdout, "check") == "pass (ruleset 4.0.0)"
    assert "warning: nothing_measured: " in done.stdout and "warm-up is 20 steps and the run has 12" in done.stdout
    assert (tmp_path / "report.html").exists()


def test_a_throughput_shorter_than_the_warm_up_is_refused(tmp_path: Path) -> None:
    done = summarized("--throughput", _short_run(tmp_path))
    assert done.returncode == 1 and "nothing is left to measure" in done.stderr


def test_a_log_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    done = jobs.run([sys.executable, "-m", "tools.summarize", str(tmp_path / "absent.txt")])
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {tmp_path}/absent.txt: no such file or folder: check the path\n",
    )


@pytest.mark.parametrize("writer", ["keras", "oneflow"])  # with the times of steps, and with rates alone
def test_a_wait_for_data_that_a_log_does_not_state_is_not_0(tmp_path: Path, writer: str) -> None:
    log = tmp_path / "run.log"
    log.write_text(samples.WRITERS[writer](make_log.run_of([0.5] * 200)))
    assert row(summarized("--throughput", log).stdout, "data wait") == "not stated"


def test_the_wait_for_data_of_the_warm_up_does_not_count() -> None:
    """Only of the windows that a run marks so: 0.2 s of 4 s."""
    windows = []
    for phase, wait_s in (("warmup", 1.0), ("measured", 0.1), (None, 0.1)):
        windows.append(Window(line=1, steps=10, images=640, seconds=2.0, data_wait_s=wait_s, phase=phase))
    record = Record(file="a", sha256="a", lines=3, format="mllog", windows=tuple(windows))
    assert summarize._data_wait([record]) == "5.00 % of the step time"
