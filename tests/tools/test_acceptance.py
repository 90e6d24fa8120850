"""An acceptance: each comparison passes on its control and fails on a fault; and the command on a CPU."""

import contextlib
import functools
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from nvidia.dali import fn
from paddle import static

from harness import state, workload
from harness.job import job_of
from harness.loader import ReaderConfig
from harness.ranks import Ranks
from paddle_rn50 import config, data
from program.passes import gradients
from runlog import schema
from runlog.errors import RunError
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, judged
from tests import jobs
from tests.null_gpu import door
from tools.acceptance import CHECKS
from tools.acceptance import __main__ as acceptance_command
from tools.acceptance import checks as acceptance
from tools.acceptance import speed as acceptance_speed
from tools.acceptance.machine import BATCH, SEED, Machine, NotPossible, VerdictWriter, as_fed, run_on_all_ranks
from tools.acceptance.machine import GOLDEN as GOLDEN_RECORD

GOLDEN = np.array(GOLDEN_RECORD["losses"]["1"])
judged_losses = functools.partial(acceptance.judge_losses, "losses")


@pytest.mark.parametrize("name", ["CPU", "GPU_FP32", "GPU_TF32", "GPU_HALF", "LAYOUT"])
def test_losses_pass_within_their_tolerance_and_fail_beyond_it(name: str) -> None:
    tolerance = getattr(acceptance, name)
    assert tolerance.why
    bound = tolerance.by_step(20)
    within, beyond = GOLDEN * (1 + 0.9 * bound), GOLDEN.copy()
    beyond[9] *= 1 + 1.1 * bound[9]
    assert judged_losses(np.array([GOLDEN, within]), GOLDEN, tolerance).status == "ok"
    verdict = judged_losses(np.array([GOLDEN, beyond]), GOLDEN, tolerance)
    assert verdict.status == "fatal"  # one rank is enough
    assert "at step 10 of 20" in verdict.found
    assert verdict.figures["losses"][1] == beyond.tolist()


def test_losses_that_are_no_numbers_or_never_move_fail_by_the_widest_tolerance() -> None:
    losses = GOLDEN[None, :4].copy()
    losses[0, 2] = np.nan
    verdict = judged_losses(losses, GOLDEN, acceptance.GPU_HALF)
    assert verdict.status == "fatal" and "nan of the loss off at step 3 of 4" in verdict.found
    assert judged_losses(np.full((1, 20), GOLDEN[0]), GOLDEN, acceptance.GPU_HALF).status == "fatal"


def on_cpu(image: data.ImageFormat) -> ReaderConfig:
    return ReaderConfig(batch=BATCH, image=image, device="cpu", device_id=None, threads=1, seed=SEED)


def test_images_of_another_decoder_pass_and_shifted_ones_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, recipe = acceptance.write_pictures(tmp_path), config.NVIDIA_COSINE
    reader = on_cpu(data.ImageFormat(size=recipe.image_size, layout="NHWC"))
    plain = acceptance.read_by_both_pipelines(images, recipe, reader, np.array)
    for name in ("image", "image_slice"):
        monkeypatch.setattr(fn.decoders, name, functools.partial(getattr(fn.decoders, name), use_fast_idct=True))
    for image, other in zip(plain, acceptance.read_by_both_pipelines(images, recipe, reader, np.array), strict=True):
        assert 0 < acceptance.mean_grey_levels(image, other) <= acceptance.MAX_GREY_LEVELS
        shifted, mirrored, of_four = np.roll(image, 1, 2), image[:, :, ::-1], np.append(image, image[..., :1], axis=3)
        for fault in (shifted, mirrored, image[..., ::-1], of_four):
            assert acceptance.mean_grey_levels(image, fault) > acceptance.MAX_GREY_LEVELS


def on_a_gpu(job: dict[str, Any] | None = None, **more: Any) -> Any:
    """What the checks of a GPU read of their machine, without one."""
    gpu = schema.Gpu(name="NVIDIA A100-SXM4-40GB", memory_gib=40.0, driver="535")
    return SimpleNamespace(
        job=job_of(**{"device": "gpu", "precision": "amp_o2", "batchsize": 256} | (job or {})),
        me=SimpleNamespace(size=8, local_rank=0, comm=SimpleNamespace(allgather=lambda value: [value])),
        nodes=[SimpleNamespace(gpus=[gpu] * 8)],
        **more,
    )


def test_a_rate_of_unlike_gpus_is_held_to_no_published_one() -> None:
    machine = on_a_gpu(job={"recipe": "nvidia_cosine"})
    v100 = schema.Gpu(name="Tesla V100-SXM2-32GB", memory_gib=32.0, driver="535")
    machine.nodes.append(SimpleNamespace(gpus=[v100] * 8))
    timed = acceptance_speed.TimedTraining(60 * 15_000, 60.0, None)
    verdict = acceptance_speed.judge_rate(machine, timed, 24.3e9)
    assert (verdict.status, verdict.figures["flops_utilization"]) == ("unknown", None)


@pytest.mark.parametrize("precision", ["fp32", "amp_o2"])
def test_the_input_check_compares_both_pipelines_of_the_gpu_with_the_cpus(precision: str) -> None:
    paddle.enable_static()
    devices, formats = [], []

    def reader(image: data.ImageFormat, device: str) -> ReaderConfig:
        devices.append(device)
        formats.append((image.layout, image.channels, image.half))
        return on_cpu(image)

    machine = on_a_gpu(
        has_kernels=True,
        executor=static.Executor(paddle.CPUPlace()),
        plan=lambda: workload.plan_of(job_of(device="gpu", precision=precision)),
        reader=reader,
    )
    verdict = acceptance.input_pipeline(machine)
    assert (verdict.status, verdict.figures, devices) == ("ok", {"mean_grey_levels": 0.0}, ["gpu", "cpu"])
    assert formats == [("NHWC", 4, True) if precision == "amp_o2" else ("NHWC", 3, False)] * 2


@pytest.mark.parametrize("kernels", [True, False])
def test_a_batch_that_lies_on_the_device_is_read_by_a_program_where_there_are_kernels(kernels: bool) -> None:
    paddle.enable_static()
    machine: Any = SimpleNamespace(
        has_kernels=kernels, executor=static.Executor(paddle.CPUPlace()) if kernels else None
    )
    for kind in ("float32", "float16"):
        image = np.arange(24).reshape(2, 3, 4).astype(kind)
        tensor = paddle.base.core.LoDTensor()
        tensor.set(image, paddle.CPUPlace())
        for source in (image, tensor):
            assert np.array_equal(acceptance.read_by_program(machine, source), image.astype(np.float32))


@pytest.mark.parametrize(
    ("rate", "batch", "pixels", "device", "ranks", "status"),
    [
        (15_830, 256, 224, "gpu", 8, "ok"),
        (15_820, 256, 224, "gpu", 8, "fatal"),
        (15_830, 100, 224, "gpu", 8, "ok"),
        (11_860, 256, 224, "gpu", 6, "fatal"),
        (15_830, 256, 160, "gpu", 8, "unknown"),
        (15_830, 256, 224, "cpu", 8, "unknown"),
    ],
)
@pytest.mark.parametrize("joules", [120_000.0, None])
def test_a_rate_is_held_to_a_devices_share_of_the_nearest_published_one(
    rate: int, batch: int, pixels: int, device: str, ranks: int, joules: float | None, status: str
) -> None:
    """17,587.654 images/s of 8 in published.csv; utilization by hand."""
    machine = on_a_gpu(job={"device": device, "batchsize": batch, "recipe": "nvidia_cosine", "image_size": pixels})
    machine.me.size = ranks
    timed = acceptance_speed.TimedTraining(60 * rate, 60.0, joules)
    verdict = acceptance_speed.judge_rate(machine, timed, 24.3e9)
    found, on_gpu = verdict.figures, device == "gpu"
    assert verdict.status == status
    assert found["flops_utilization"] == (pytest.approx(24.3e9 * rate / (ranks * 312e12)) if on_gpu else None)
    assert found["images_per_joule"] == (None if joules is None else pytest.approx(rate / 2000))
    assert f"{rate:.1f} images/s over 60 s, batch {batch} x {ranks}" in verdict.found
    assert (", 15.4% of the card's peak" in verdict.found) == on_gpu
    figures = [figure["images_per_s"] for figure in found["published"]]
    assert figures == ([] if status == "unknown" else [17587.654])
    wanted = f"{17587.654 / 8 * 0.9 * ranks:.1f} images/s: 90% of the nearest published figure a device"
    assert status == "unknown" or verdict.wanted.startswith(wanted)


@pytest.mark.parametrize(
    ("capability", "precision", "check", "lacks"),
    [
        (0, "fp32", "captured", "a CPU has no CUDA graphs: DEVICE=cpu"),
        (0, "fp32", "input", "no GPU: DEVICE=cpu"),
        (0, "fp32", "losses", ""),
        (70, "tf32", "losses", r"TF32 needs compute capability 8\.0 or later, not 7\.0 \(rank 1\)"),
        (80, "tf32", "losses", ""),
        (86, "amp_o2", "units", ""),
        (70, "amp_o2", "units", r"resnet_unit needs compute capability 8\.0 to 8\.9, not 7\.0"),
        (90, "fp32", "throughput", r"no kernels for compute capability 9\.0"),
        *((90, "fp32", check, "") for check in ("input", "all-reduce", "sensors")),
    ],
)
def test_a_check_runs_where_every_device_can_do_it(capability: int, precision: str, check: str, lacks: str) -> None:
    """An A100 leaves out what the V100 or the H100 of another node cannot do, or it would wait for that one."""
    job = job_of(device="gpu" if capability else "cpu", precision=precision)
    machine: Any = SimpleNamespace(job=job, capabilities=[80, capability] if capability else [0, 0])
    with pytest.raises(NotPossible, match=lacks) if lacks else contextlib.nullcontext():
        Machine.raise_if_not_possible(machine, check)


def test_memory_is_the_most_of_any_rank_against_the_card_and_needs_the_throughput() -> None:
    machine = on_a_gpu(kept_by_check={"throughput": [1024.0, 20480.0]})
    machine.kept_by = functools.partial(Machine.kept_by, machine)
    verdict = acceptance_speed.peak_memory(machine)
    assert (verdict.status, verdict.found) == ("ok", "20.0 of 40 GiB at batch 256")
    machine.nodes[0].gpus = [schema.Gpu(name="NVIDIA GB10", memory_gib=None, driver="580")]
    verdict = acceptance_speed.peak_memory(machine)
    assert verdict.found == "20.0 GiB at batch 256; the memory of the GPUs is unknown"
    assert verdict.figures["has_gib"] is None
    machine.kept_by_check.clear()
    with pytest.raises(RunError, match="needs what the check of throughput measures, which failed"):
        acceptance_speed.peak_memory(machine)


def test_images_and_filters_of_three_channels_reach_a_program_of_four() -> None:
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    fed = as_fed(image, data.ImageFormat(size=2, layout="NHWC", channels=4, half=True))
    assert (fed.shape, fed.dtype) == ((2, 2, 2, 4), np.float16)
    filters = state.padded(image, (2, 4, 2, 2))
    for found in (fed.transpose(0, 3, 1, 2), filters):
        assert np.array_equal(found[:, :3], image) and not found[:, 3].any()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_pooling_passes_and_a_wrong_window_fails(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paddle.enable_static()
    machine = on_a_gpu(
        executor=static.Executor(paddle.CPUPlace()), plan=lambda: workload.plan_of(job_of(device="gpu", layout=layout))
    )
    assert acceptance.pooling(machine).status == "ok"
    spread = gradients.spread_mean_gradients

    def with_another_window(main: static.Program) -> int:
        changed = spread(main)
        (op,) = [op for op in main.global_block().ops if op.type == "pool2d" and op.attr("paddings") == [6, 6]]
        op.desc._set_attr("exclusive", True)
        return changed

    monkeypatch.setattr(gradients, "spread_mean_gradients", with_another_window)
    assert acceptance.pooling(machine).status == "fatal"


# ---- a check that raises costs its own line, on all ranks together, and no rank is left waiting

RANK = str(Path(__file__).with_name("ranks_that_fail.py"))


@pytest.mark.xdist_group("ranks")
def test_each_check_fails_by_itself(tmp_path: Path) -> None:
    done = jobs.on_ranks(2, RANK, str(tmp_path / "fp32.txt"), "alike")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "fp32.lines").read_text().splitlines()]
    assert [(line["check"], line["status"], line["found"]) for line in lines] == [
        ("passes", "ok", "sum 2"),
        ("raises-on-1", "fatal", "rank 1: no kernel for it"),
        ("lacks", "unknown", "no GPU"),
        ("raises", "fatal", "the same"),
        ("passes", "ok", "sum 2"),
    ]
    assert "OSError: no kernel" in done.stderr  # with its stack, for whoever mends it
    assert re.search(r"^unknown +lacks +fp32 +no GPU$", done.stdout, re.M), done.stdout


@pytest.mark.parametrize(("status", "found"), [(FATAL, "rank 1: no GPU"), (UNKNOWN, "no GPU")])
def test_a_failure_of_some_ranks_names_the_rank_but_what_the_machine_lacks_names_none(status: str, found: str) -> None:
    """This rank, rank 0, passes; what rank 1 has found stands in the place of MPI's."""
    comm = mock.create_autospec(MPI.Comm, instance=True)
    comm.allgather.side_effect = lambda mine: [mine, Verdict(check="any", status=status, found="no GPU")]
    me = Ranks(comm=comm, rank=0, size=2, local_rank=0, node="node0")
    verdict = run_on_all_ranks(me, "any", lambda: judged("any", True, "all is well"))
    assert (verdict.status, verdict.found) == (status, found)


@pytest.mark.xdist_group("ranks")
def test_a_rank_that_waits_for_one_that_failed_ends_with_the_job(tmp_path: Path) -> None:
    done = jobs.on_ranks(2, RANK, str(tmp_path / "fp32.txt"), "stuck")
    assert done.returncode != 0
    assert "error: rank 1: alone; another rank has not left this check 1 s later" in done.stderr
    assert not (tmp_path / "fp32.lines").exists()


# ---- `./run_and_time.sh --acceptance --short` on this machine, without a GPU: verdict, report, exit status

ON_A_CPU = ("losses", "layout", "pooling", "all-reduce", "evaluation", "lars")


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
    assert done.report["verdict"] == "6 ok, 0 fatal, 28 unknown, in the short form"
    assert f"verdict   {done.report['verdict']}" in done.stdout
    assert done.with_status(OK) == {(check, "fp32") for check in ON_A_CPU}
    (throughput,) = (line for line in done.lines if line["check"] == "throughput" and line["where"] == "fp32")
    assert throughput["found"].endswith("; none published for these devices, precision and image size")
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
    for precision in CHECKS:
        assert found["losses", precision] == FATAL
        assert (found["throughput", precision], found["memory", precision]) == (UNKNOWN, OK)  # of 64 pixels
        assert found["lars", precision] == found["captured", precision] == FATAL
        assert found.get(("units", precision), FATAL) == FATAL
    assert found["all-reduce", "fp32"] == UNKNOWN  # one rank


def planned(folder: Path, plan: str) -> Path:
    """A checkout with another plan of checks."""
    copy = jobs.checkout(folder / "copy")
    (copy / "tools").unlink()
    shutil.copytree(jobs.REPOSITORY / "tools", copy / "tools")
    lines = copy / "tools" / "acceptance" / "__init__.py"
    text, found = re.subn(r"(?ms)^CHECKS = {.*?^}$", f"CHECKS = {plan}", lines.read_text())
    assert found == 1
    lines.write_text(text)
    return copy


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_what_is_not_as_recorded_fails_alone(tmp_path: Path) -> None:
    recorded = json.loads((jobs.REPOSITORY / "paddle_rn50" / "golden.json").read_text())
    recorded["losses"]["1"][2] *= 1.001
    recorded["evaluation"]["correct"] += 30
    copy = jobs.checkout(tmp_path / "copy", golden=json.dumps(recorded))
    done = Accepted(1, tmp_path, *SHORT, cwd=copy)
    assert done.report["verdict"] == "3 ok, 2 fatal, 29 unknown, in the short form"
    assert done.with_status(FATAL) == {("losses", "fp32"), ("evaluation", "fp32")}
    assert done.found["all-reduce", "fp32"] == UNKNOWN  # one rank


@pytest.mark.xdist_group("ranks")
def test_a_job_of_which_nothing_is_possible_here_has_not_failed(tmp_path: Path) -> None:
    """As that of TF32 on a V100; here a plan of the two checks that one rank of a CPU cannot do stands in for it."""
    copy = planned(tmp_path, '{"fp32": ("input", "all-reduce")}')
    done = Accepted(0, tmp_path, cwd=copy)
    assert (done.report["verdict"], done.stderr) == ("0 ok, 0 fatal, 2 unknown", "")
    assert {file.name for file in (tmp_path / "acceptance").glob("*/*")} == {"fp32.lines", "fp32.stderr"}


@pytest.mark.slow
@pytest.mark.ci
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
    assert done.report["verdict"] == "0 ok, 34 fatal, 0 unknown"
    for line in done.lines:
        assert line["found"].startswith("not run: DGXNGPU=1: ")
        assert " has 0 GPUs" in line["found"]


reported = functools.partial(jobs.called, acceptance_command.main)


def test_a_job_that_ended_early_fails_what_it_did_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "X-1"
    folder.mkdir()
    writer = VerdictWriter(folder / "fp32.txt", "fp32")
    writer.append_line({"nodes": [{"host": "node"}]})
    writer.append_line(judged("losses", True, "0 off", "none off", where="fp32").as_dict())
    (folder / "fp32.failed").write_text("out of memory at BATCHSIZE=256\n")
    assert reported("--report", folder, DEVICE="gpu").returncode == 1
    report = json.loads((tmp_path / "X-1.json").read_text())
    assert report["verdict"] == "1 ok, 33 fatal, 0 unknown"
    found = {(line["check"], line["where"]): line["found"] for line in report["lines"]}
    assert found["losses", "fp32"] == "0 off"
    assert found["memory", "fp32"] == "not run: out of memory at BATCHSIZE=256"
    assert found["losses", "tf32"] == "not run: its job did not run it"
    assert report["nodes"] == [{"host": "node"}]
    nothing_run = tmp_path / "X-2"
    nothing_run.mkdir()
    jobs.refused(reported("--report", nothing_run), f"{nothing_run}: no file of an acceptance in it")
    (nothing_run / "fp32.failed").write_text("no mpirun\n")
    done = reported("--report", nothing_run, DEVICE="cpu")
    assert done.returncode == 1 and "verdict   0 ok, 11 fatal, 23 unknown" in done.stdout  # nothing passed


def test_wrong_use_is_refused() -> None:
    jobs.refused(reported("--precisions", "--report", "."), "--report: not allowed with argument --precisions")
    jobs.refused(reported(), "start it by ./run_and_time.sh --acceptance")
    jobs.refused(jobs.run_and_time("--short"), "error: --short: give --check, or --fleet, or --acceptance, or ")
    said = "the acceptance launches its steps, and compares a captured one by itself: leave it out"
    for variables, error in (
        ({"WORKLOAD": "hrnet"}, "WORKLOAD=hrnet: the acceptance trains ResNet-50: set WORKLOAD=rn50"),
        ({"DEVICE": "gpu", "STRATEGY": "cuda_graph=1"}, f"STRATEGY: cuda_graph=1: {said}"),
    ):
        jobs.refused(reported("--precisions", **variables), f"error: {error}\n")
    for device, precisions in (("cpu", "fp32\n"), ("gpu", "fp32\ntf32\namp_o1\namp_o2\n")):
        assert reported("--precisions", DEVICE=device).stdout == precisions
