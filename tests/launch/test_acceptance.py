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
from tests.jobs import refused
from tests.null_gpu import door
from tests.tools.called import called
from tools.acceptance import __main__ as acceptance_command
from tools.acceptance import lines as acceptance

ON_A_CPU = ("losses", "layout", "pooling", "all-reduce", "evaluation")


class Accepted:
    """An acceptance that ended with `status`, its results below `folder`: what it printed, and its report."""

    def __init__(self, status: int, folder: Path, *command: str, **job: Any) -> None:
        command = command or ("./run_and_time.sh", "--acceptance")
        done = jobs.run(command, **{"LOGDIR": folder, "DGXNGPU": 1, "DATA_CACHE": folder, **job})
        assert done.returncode == status, done.stdout + done.stderr
        self.stdout, self.stderr = done.stdout, done.stderr
        (path,) = (folder / "acceptance").glob("*.json")
        self.report = json.loads(path.read_text())
        self.lines: list[dict[str, Any]] = self.report["lines"]
        self.found = {(line["check"], line["where"]): line["status"] for line in self.lines}

    def with_status(self, status: str) -> set[tuple[str, str]]:
        return {key for key, found in self.found.items() if found == status}


SHORT = ("./run_and_time.sh", "--acceptance", "--short")


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_all_that_a_cpu_can_run_passes_and_nothing_else_does(tmp_path: Path) -> None:
    done = Accepted(0, tmp_path, *SHORT, DGXNGPU=2)
    assert done.report["verdict"] == "5 ok, 0 fatal, 23 unknown, in the short form"
    assert f"verdict   {done.report['verdict']}" in done.stdout
    assert done.with_status(OK) == {(check, "fp32") for check in ON_A_CPU}
    (throughput,) = (line for line in done.lines if line["check"] == "throughput" and line["where"] == "fp32")
    assert throughput["found"].endswith("; none published for this card, precision and image size")
    reasons = {line["found"] for line in done.lines if line["status"] == UNKNOWN and line != throughput}
    assert reasons == {
        "no GPU: DEVICE=cpu",
        "a CPU has no CUDA graphs: DEVICE=cpu",
        *(
            f"PRECISION={name}: a CPU has no kernels for it: use fp32 or DEVICE=gpu"
            for name in ("tf32", "amp_o1", "amp_o2")
        ),
    }
    assert len(done.report["nodes"]) == 1
    assert done.report["source"]["lock_sha256"]
    # The figure of the minute stands in a log that the scorer reads.
    (log,) = (tmp_path / "acceptance").glob("*/fp32.txt")
    command = [sys.executable, "-m", "scoring", "score", str(log), "--protocol", "window", "--runs", "1", "--json"]
    score = jobs.run(command)
    assert json.loads(score.stdout)["value"] == pytest.approx(throughput["figures"]["images_per_s"], rel=0.2)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_each_job_of_a_gpu_has_its_throughput_whatever_fails_before_it(tmp_path: Path) -> None:
    """On a null GPU, which computes nothing, so that all losses are wrong."""
    job = {"DEVICE": "gpu", "BATCHSIZE": 4, "IMAGE_SIZE": 64, "RECIPE": "nvidia_cosine", "THREADS": 1}
    done = Accepted(1, tmp_path, str(door.RUN), *SHORT, timeout_s=900, NULLGPU_OUT=tmp_path, **job)
    assert not [line for line in done.lines if line["found"].startswith("not run")]
    found = done.found
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
    settings = {**door.FEW, "DGXNGPU": 2, "NULLGPU_OUT": tmp_path}
    (line,) = Accepted(1, tmp_path, str(door.RUN), "./run_and_time.sh", "--acceptance", cwd=copy, **settings).lines
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
    done = Accepted(1, tmp_path, *SHORT, cwd=copy)
    assert done.report["verdict"] == "2 ok, 2 fatal, 24 unknown, in the short form"
    assert done.with_status(FATAL) == {("losses", "fp32"), ("evaluation", "fp32")}
    assert done.found["all-reduce", "fp32"] == UNKNOWN  # one rank


@pytest.mark.xdist_group("ranks")
def test_a_job_of_which_nothing_is_possible_here_has_not_failed(tmp_path: Path) -> None:
    """As that of TF32 on a V100; here a plan of the two checks that one rank of a CPU cannot do stands in for it."""
    copy = planned(tmp_path, '{"fp32": ("input", "all-reduce")}')
    done = Accepted(0, tmp_path, cwd=copy)
    assert (done.report["verdict"], done.stderr) == ("0 ok, 0 fatal, 2 unknown", "")
    assert {file.name for file in (tmp_path / "acceptance").glob("*/*")} == {"fp32.lines", "fp32.stderr"}


@pytest.mark.xdist_group("ranks")
def test_a_job_that_is_not_done_when_the_time_is_up_is_ended(tmp_path: Path) -> None:
    copy = jobs.checkout(tmp_path / "copy")
    times = copy / "launch" / "common.sh"
    text = times.read_text()
    assert "ACCEPTANCE_END_S=900\n" in text
    times.write_text(text.replace("ACCEPTANCE_END_S=900\n", "ACCEPTANCE_END_S=8\n"))
    done = Accepted(1, tmp_path, cwd=copy)
    said = "it was not done after the 8 s that an acceptance may take"
    assert done.stderr.startswith(f"error: {said}")
    assert [line["found"] for line in done.lines if line["where"] == "fp32"][-1] == f"not run: {said}"


@pytest.mark.xdist_group("ranks")
def test_what_the_machine_lacks_of_what_was_asked_for_fails(tmp_path: Path) -> None:
    done = Accepted(1, tmp_path, DEVICE="gpu")
    assert done.report["verdict"] == "0 ok, 28 fatal, 0 unknown"
    for line in done.lines:
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
    refused(
        jobs.run_and_time("--short"), "error: --short: give --check, or --fleet, or --acceptance, or --acceptance -"
    )
    said = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
    for variables, error in (
        ({"WORKLOAD": "hrnet"}, "WORKLOAD=hrnet: the acceptance trains ResNet-50: set WORKLOAD=rn50"),
        ({"DEVICE": "gpu", "STRATEGY": "cuda_graph=1"}, f"STRATEGY: cuda_graph=1: {said}"),
    ):
        refused(reported("--precisions", **variables), f"error: {error}\n")
    for device, precisions in (("cpu", "fp32\n"), ("gpu", "fp32\ntf32\namp_o1\namp_o2\n")):
        assert reported("--precisions", DEVICE=device).stdout == precisions
