"""`./run_and_time.sh --acceptance --short` on this machine, without a GPU: verdict, report, exit status."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runlog.verdict import FATAL, OK, UNKNOWN, judged
from tests import jobs
from tests.null_gpu import door
from tests.tools.called import called
from tools.acceptance import __main__ as acceptance_command
from tools.acceptance import lines as acceptance

ON_A_CPU = ("losses", "layout", "pooling", "all-reduce", "evaluation")


def written(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "acceptance").glob("*.json")
    return json.loads(path.read_text())


def statuses(report: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(line["check"], line["where"]): line["status"] for line in report["lines"]}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_all_that_a_cpu_can_run_passes_and_nothing_else_does(tmp_path: Path) -> None:
    done = jobs.run_and_time("--acceptance", "--short", LOGDIR=str(tmp_path), DGXNGPU=2)
    assert done.returncode == 0, done.stdout + done.stderr
    report = written(tmp_path)
    assert report["verdict"] == "5 ok, 0 fatal, 23 unknown, in the short form"
    assert f"verdict   {report['verdict']}" in done.stdout
    found = statuses(report)
    assert {key for key, status in found.items() if status == OK} == {(c, "fp32") for c in ON_A_CPU}
    (throughput,) = (line for line in report["lines"] if line["check"] == "throughput" and line["where"] == "fp32")
    assert throughput["found"].endswith("; none published for this card, precision and image size")
    reasons = {line["found"] for line in report["lines"] if line["status"] == UNKNOWN and line != throughput}
    assert reasons == {
        "no GPU: DEVICE=cpu",
        "a CPU has no CUDA graphs: DEVICE=cpu",
        *(
            f"PRECISION={name}: a CPU has no kernels for it: use fp32 or DEVICE=gpu"
            for name in ("tf32", "amp_o1", "amp_o2")
        ),
    }
    assert len(report["nodes"]) == 1
    assert report["source"]["lock_sha256"]
    # The figure of the minute stands in a log that the scorer reads.
    (log,) = (tmp_path / "acceptance").glob("*/fp32.txt")
    command = [sys.executable, "-m", "scoring", "score", str(log), "--protocol", "window", "--runs", "1", "--json"]
    score = jobs.run(command)
    assert json.loads(score.stdout)["value"] == pytest.approx(throughput["figures"]["images_per_s"], rel=0.2)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_each_job_of_a_gpu_has_its_throughput_whatever_fails_before_it(tmp_path: Path) -> None:
    """On a null GPU, which computes nothing, so that all losses are wrong."""
    job = {"DEVICE": "gpu", "DGXNGPU": 1, "BATCHSIZE": 4, "IMAGE_SIZE": 64, "RECIPE": "nvidia_cosine", "THREADS": 1}
    null_gpu = str(jobs.REPOSITORY / "tests" / "null_gpu" / "run.sh")
    command = [null_gpu, "./run_and_time.sh", "--acceptance", "--short"]
    done = jobs.run(command, timeout_s=900, NULLGPU_OUT=str(tmp_path), LOGDIR=str(tmp_path), **job)
    assert done.returncode == 1
    report = written(tmp_path)
    assert not [line for line in report["lines"] if line["found"].startswith("not run")]
    found = statuses(report)
    for precision in acceptance.CHECKS:
        assert found["losses", precision] == FATAL
        assert (found["throughput", precision], found["memory", precision]) == (UNKNOWN, OK)  # of 64 pixels
        assert found["captured", precision] == FATAL
    assert found["all-reduce", "fp32"] == UNKNOWN  # one rank


def planned(folder: Path, plan: str) -> Path:
    """A checkout with another plan of checks."""
    copy = jobs.checkout(folder / "copy")
    (copy / "tools").unlink()
    shutil.copytree(jobs.REPOSITORY / "tools", copy / "tools")
    lines = copy / "tools" / "acceptance" / "lines.py"
    text, found = re.subn(r"(?ms)^CHECKS = {.*?^}$", f"CHECKS = {plan}", lines.read_text())
    assert found == 1
    lines.write_text(text)
    return copy


@pytest.mark.null_gpu
@pytest.mark.xdist_group("ranks")
def test_a_captured_step_stands_beside_the_launched_one(tmp_path: Path) -> None:
    """On two null GPUs, which compute nothing: both have all of its steps, and what was not trained has not passed."""
    copy = planned(tmp_path, '{"amp_o2": ("captured",)}')
    settings = {"DGXNGPU": "2", "NULLGPU_OUT": str(tmp_path), "LOGDIR": str(tmp_path), "DATA_CACHE": str(tmp_path)}
    done = jobs.run([str(door.RUN), "./run_and_time.sh", "--acceptance"], cwd=copy, **(door.FEW | settings))
    assert done.returncode == 1, done.stderr
    (line,) = written(tmp_path)["lines"]
    assert line["found"] == "20 losses are alike, and none differs from the one before: nothing was trained"
    assert np.shape(line["figures"]["replayed"]) == (2, 20)
    for process in door.read(tmp_path):
        launched = [step for step in process.training if step.of("cudnn work")]
        assert (len(launched), len(process.replayed)) == (20, 20)
        assert all(step.counts["graph", "launch"] == 1 for step in process.replayed)
        everything = sum((step.counts for step in process.steps), start=Counter[tuple[str, str]]())
        assert not everything["graph", "refused"] and not everything["graph", "stale copy"]


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_what_is_not_as_recorded_fails_alone(tmp_path: Path) -> None:
    recorded = json.loads((jobs.REPOSITORY / "paddle_rn50" / "golden.json").read_text())
    recorded["losses"]["1"][2] *= 1.001
    recorded["evaluation"]["correct"] += 30
    copy = jobs.checkout(tmp_path / "copy", golden=json.dumps(recorded))
    folders = {"LOGDIR": str(tmp_path), "DATA_CACHE": str(tmp_path)}
    done = jobs.run_and_time("--acceptance", "--short", cwd=copy, DGXNGPU=1, **folders)
    assert done.returncode == 1, done.stdout + done.stderr
    report = written(tmp_path)
    assert report["verdict"] == "2 ok, 2 fatal, 24 unknown, in the short form"
    found = statuses(report)
    assert {key for key, status in found.items() if status == FATAL} == {("losses", "fp32"), ("evaluation", "fp32")}
    assert found["all-reduce", "fp32"] == UNKNOWN  # one rank


@pytest.mark.xdist_group("ranks")
def test_a_job_of_which_nothing_is_possible_here_has_not_failed(tmp_path: Path) -> None:
    """As that of TF32 on a V100; here a plan of the two checks that one rank of a CPU cannot do stands in for it."""
    copy = planned(tmp_path, '{"fp32": ("input", "all-reduce")}')
    done = jobs.run_and_time("--acceptance", cwd=copy, LOGDIR=str(tmp_path), DGXNGPU=1, DATA_CACHE=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert written(tmp_path)["verdict"] == "0 ok, 0 fatal, 2 unknown"
    assert {file.name for file in (tmp_path / "acceptance").glob("*/*")} == {"fp32.lines", "fp32.stderr"}


@pytest.mark.xdist_group("ranks")
def test_a_job_that_is_not_done_when_the_time_is_up_is_ended(tmp_path: Path) -> None:
    copy = jobs.checkout(tmp_path / "copy")
    times = copy / "launch" / "common.sh"
    text = times.read_text()
    assert "ACCEPTANCE_END_S=900\n" in text
    times.write_text(text.replace("ACCEPTANCE_END_S=900\n", "ACCEPTANCE_END_S=8\n"))
    done = jobs.run_and_time("--acceptance", cwd=copy, LOGDIR=str(tmp_path), DGXNGPU=1, DATA_CACHE=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("error: it was not done after the 8 s that an acceptance may take")
    lines = [line for line in written(tmp_path)["lines"] if line["where"] == "fp32"]
    assert lines[-1]["found"] == "not run: it was not done after the 8 s that an acceptance may take"


@pytest.mark.xdist_group("ranks")
def test_what_the_machine_lacks_of_what_was_asked_for_fails(tmp_path: Path) -> None:
    done = jobs.run_and_time("--acceptance", LOGDIR=str(tmp_path), DEVICE="gpu", DGXNGPU=1)
    assert done.returncode == 1, done.stderr
    report = written(tmp_path)
    assert report["verdict"] == "0 ok, 28 fatal, 0 unknown"
    for line in report["lines"]:
        assert line["found"].startswith("not run: DGXNGPU=1: ")
        assert " has 0 GPUs" in line["found"]


reported = functools.partial(called, acceptance_command.main)


def test_a_job_that_ended_early_fails_what_it_did_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "X-1"
    folder.mkdir()
    lines = acceptance.Lines(folder / "fp32.txt", "fp32")
    lines.note({"nodes": [{"host": "node"}]})
    lines.note(judged("losses", True, "0 off", "none off", where="fp32").as_dict())
    (folder / "fp32.failed").write_text("out of memory at BATCHSIZE=256\n")
    done = reported("--report", folder, DEVICE="gpu")
    assert done.returncode == 1
    report = json.loads((tmp_path / "X-1.json").read_text())
    assert report["verdict"] == "1 ok, 27 fatal, 0 unknown"
    found = {(line["check"], line["where"]): line["found"] for line in report["lines"]}
    assert found["losses", "fp32"] == "0 off"
    assert found["memory", "fp32"] == "not run: out of memory at BATCHSIZE=256"
    assert found["losses", "tf32"] == "not run: its job did not run it"
    assert report["nodes"] == [{"host": "node"}]
    (tmp_path / "X-2").mkdir()
    done = reported("--report", tmp_path / "X-2", DEVICE="cpu")
    assert done.returncode == 1 and "verdict   0 ok, 10 fatal, 18 unknown" in done.stdout  # nothing run, nothing passed


def test_wrong_use_is_refused() -> None:
    alone = jobs.run_and_time("--short")
    assert (alone.returncode, alone.stderr) == (
        2,
        "error: --short: give --check, or --fleet, or --acceptance, or --acceptance --short\n",
    )
    said = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
    for variables, error in (
        ({"WORKLOAD": "hrnet"}, "WORKLOAD=hrnet: the acceptance trains ResNet-50: set WORKLOAD=rn50"),
        ({"DEVICE": "gpu", "STRATEGY": "cuda_graph=1"}, f"STRATEGY: cuda_graph=1: {said}"),
    ):
        done = reported("--precisions", **variables)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {error}\n")


def test_the_precisions_of_a_machine_are_those_its_device_has() -> None:
    for device, precisions in (("cpu", "fp32\n"), ("gpu", "fp32\ntf32\namp_o1\namp_o2\n")):
        assert reported("--precisions", DEVICE=device).stdout == precisions
