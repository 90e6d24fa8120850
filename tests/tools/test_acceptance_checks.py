"""The comparisons of an acceptance: each passes on its control and fails on a fault."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from nvidia.dali import fn
from paddle import static

from harness import env, state, workload
from harness.loader import ReaderConfig
from paddle_rn50 import config, data, model
from program.passes import gradients
from runlog import schema
from runlog.errors import RunError
from tests import jobs
from tests.program import lower, programs
from tools.acceptance import checks as acceptance
from tools.acceptance import speed as acceptance_speed
from tools.acceptance.lines import CHECKS, NotPossible
from tools.acceptance.machine import first_weights
from tools.doctor import checks as doctor_checks

GOLDEN = np.array(acceptance.GOLDEN["losses"]["1"])
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


def with_one(change: float) -> np.ndarray:
    """The recorded losses of two ranks, one of which is off."""
    losses = np.array([GOLDEN, GOLDEN], np.float32)
    losses[1, 9] += np.float32(change)
    return losses


EXACT, STILL, NAN = with_one(0), *(np.full((2, 4), loss, np.float32) for loss in (2.5, np.nan))


@pytest.mark.parametrize(
    ("launched", "replayed", "status", "said"),
    [
        (EXACT, EXACT, "ok", "20 of 20 losses alike bit for bit"),
        (EXACT, with_one(np.spacing(EXACT[1, 9])), "fatal", "1 of 20 losses differ, first at step 10, by "),
        (EXACT, with_one(np.nan), "fatal", "1 of 20 losses differ, first at step 10, by nan"),
        (STILL, STILL, "fatal", "4 losses are alike, and none differs from the one before: nothing was trained"),
        (NAN, NAN, "fatal", "a launched step's loss is not finite"),
    ],
    ids=["alike", "one bit", "nan", "nothing trained", "not finite"],
)
def test_losses_of_a_captured_step_are_the_launched_ones_in_every_bit(
    launched: np.ndarray, replayed: np.ndarray, status: str, said: str
) -> None:
    verdict = acceptance.same_bits(launched, replayed)
    assert verdict.status == status and verdict.found.startswith(said)


def test_a_captured_step_is_the_last_check_of_its_job() -> None:
    assert all(checks[-1] == "captured" and "captured" not in checks[:-1] for checks in CHECKS.values())


def on_cpu(image: data.ImageFormat) -> ReaderConfig:
    return ReaderConfig(batch=acceptance.BATCH, image=image, device="cpu", device_id=0, threads=1, seed=acceptance.SEED)


def test_images_of_another_decoder_pass_and_shifted_ones_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, recipe = acceptance.pictures(tmp_path), config.NVIDIA_COSINE
    reader = on_cpu(data.ImageFormat(size=recipe.image_size, layout="NHWC"))
    plain = acceptance.one_batch_each(images, recipe, reader, np.array)
    for name in ("image", "image_slice"):
        monkeypatch.setattr(fn.decoders, name, functools.partial(getattr(fn.decoders, name), use_fast_idct=True))
    for image, other in zip(plain, acceptance.one_batch_each(images, recipe, reader, np.array), strict=True):
        assert 0 < acceptance.grey_levels(image, other) <= acceptance.GREY_LEVELS
        shifted, mirrored, of_four = np.roll(image, 1, 2), image[:, :, ::-1], np.append(image, image[..., :1], axis=3)
        for fault in (shifted, mirrored, image[..., ::-1], of_four):
            assert acceptance.grey_levels(image, fault) > acceptance.GREY_LEVELS


def on_a_gpu(**more: Any) -> Any:
    """What the checks of a GPU read of their machine, without one."""
    gpu = schema.Gpu(name="NVIDIA A100-SXM4-40GB", memory_gib=40.0, driver="535")
    return SimpleNamespace(
        job=SimpleNamespace(device="gpu", workload="rn50", precision="amp_o2", batchsize=256, data_threads=1),
        me=SimpleNamespace(size=8, local_rank=0, gather=lambda value: [value]),
        nodes=[SimpleNamespace(gpus=[gpu] * 8)],
        **more,
    )


@pytest.mark.parametrize("precision", ["fp32", "amp_o2"])
def test_the_input_check_compares_both_pipelines_of_the_gpu_with_the_cpus(precision: str) -> None:
    paddle.enable_static()
    devices, formats = [], []

    def reader(image: data.ImageFormat, device: str) -> ReaderConfig:
        devices.append(device)
        formats.append((image.layout, image.channels, image.half))
        return on_cpu(image)

    machine = on_a_gpu(
        kernels=True,
        executor=static.Executor(paddle.CPUPlace()),
        plan=lambda: workload.plan_of(env.Job(device="gpu", precision=precision)),
        reader=reader,
    )
    verdict = acceptance.input_pipeline(machine)
    assert (verdict.status, verdict.figures, devices) == ("ok", {"mean_grey_levels": 0.0}, ["gpu", "cpu"])
    assert formats == [("NHWC", 4, True) if precision == "amp_o2" else ("NHWC", 3, False)] * 2


@pytest.mark.parametrize("kernels", [True, False])
def test_a_batch_that_lies_on_the_device_is_read_by_a_program_where_there_are_kernels(kernels: bool) -> None:
    paddle.enable_static()
    machine: Any = SimpleNamespace(kernels=kernels, executor=static.Executor(paddle.CPUPlace()) if kernels else None)
    for kind in ("float32", "float16"):
        image = np.arange(24).reshape(2, 3, 4).astype(kind)
        tensor = paddle.base.core.LoDTensor()
        tensor.set(image, paddle.CPUPlace())
        for source in (image, tensor):
            assert np.array_equal(acceptance.copied(machine, source), image.astype(np.float32))


def test_memory_is_the_most_of_any_rank_against_the_card() -> None:
    machine = on_a_gpu(of_earlier=lambda check: {"throughput": [1024.0, 20480.0]}[check])
    verdict = acceptance_speed.peak_memory(machine)
    assert (verdict.status, verdict.found) == ("ok", "20.0 of 40 GiB at batch 256")


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
@pytest.mark.parametrize("joules", [120_000.0, math.nan])
def test_a_rate_is_held_to_a_devices_share_of_the_nearest_published_one(
    rate: int, batch: int, pixels: int, device: str, ranks: int, joules: float, status: str
) -> None:
    """17,587.654 images/s of 8 in published.csv; utilization by hand."""
    machine = on_a_gpu()
    machine.me.size, machine.job.batchsize, machine.job.device = ranks, batch, device
    machine.job.hyperparameters = SimpleNamespace(image_size=pixels)
    verdict = acceptance_speed.judge_rate(machine, 60 * rate, 60.0, joules, 24.3e9)
    found, on_gpu = verdict.figures, device == "gpu"
    assert verdict.status == status
    assert found["flops_utilization"] == (pytest.approx(24.3e9 * rate / (ranks * 312e12)) if on_gpu else None)
    assert found["images_per_joule"] == (None if math.isnan(joules) else pytest.approx(rate / 2000))
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
        (70, "tf32", "losses", r"TF32 needs compute capability 8\.0"),
        (80, "tf32", "losses", ""),
        (90, "fp32", "throughput", r"no kernels for compute capability 9\.0"),
        *((90, "fp32", check, "") for check in ("input", "all-reduce", "sensors")),
    ],
)
def test_a_check_runs_where_the_device_can_do_it(capability: int, precision: str, check: str, lacks: str) -> None:
    job = SimpleNamespace(device="gpu" if capability else "cpu", precision=precision)
    kernels = not capability or bool(doctor_checks.code_for(capability))
    machine: Any = SimpleNamespace(job=job, capability=capability, kernels=kernels)
    with pytest.raises(NotPossible, match=lacks) if lacks else contextlib.nullcontext():
        acceptance.Machine.possible(machine, check)


def test_what_needs_a_check_that_failed_fails_with_its_name() -> None:
    machine: Any = SimpleNamespace(measured={})
    with pytest.raises(RunError, match="needs what the check of throughput measures, which failed"):
        acceptance.Machine.of_earlier(machine, "throughput")


def first_losses(name: str, device: str, weights: dict[str, np.ndarray]) -> list[float]:
    """Losses of three steps from the weights and images of an acceptance; a GPU's program is lowered to the CPU."""
    built = programs.build(name=name, device=device)
    if device == "gpu":
        lower.lower(built.main, built.startup, ranks=1)
    fed = data.ImageFormat(size=32, **({"layout": "NHWC", "channels": 4} if device == "gpu" else {}))
    executor, losses = static.Executor(paddle.CPUPlace()), []
    with static.scope_guard(static.Scope()):
        executor.run(built.startup)
        state.set_weights(built.main, weights)
        for step in range(3):
            feed = programs.images(step, programs.build())
            feed["image"] = acceptance.as_fed(feed["image"], fed)
            built.schedule.send(executor.place)
            losses.append(float(executor.run(built.main, feed=feed, fetch_list=[built.loss])[0]))
            built.schedule.step()
    return losses


def test_weights_and_images_reach_the_half_precision_program_as_they_do_the_plain_one() -> None:
    paddle.enable_static()
    with mock.patch.object(model, "STAGES", programs.STAGES):
        weights = first_weights(programs.RECIPE)
    plain = first_losses("fp32", "cpu", weights)
    assert np.allclose(first_losses("amp_o2", "gpu", weights), plain, rtol=1e-5, atol=0)
    weights["stem.conv.w"] = weights["stem.conv.w"][:, ::-1]
    assert not np.allclose(first_losses("amp_o2", "gpu", weights), plain, rtol=1e-4, atol=0)


def test_a_half_precision_program_is_fed_half_of_four_channels() -> None:
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    fed = acceptance.as_fed(image, data.ImageFormat(size=2, layout="NHWC", channels=4, half=True))
    assert (fed.shape, fed.dtype) == ((2, 2, 2, 4), np.float16)
    assert not fed[..., 3].any()
    assert np.array_equal(fed[..., :3].transpose(0, 3, 1, 2), image)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_pooling_passes_and_a_wrong_window_fails(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paddle.enable_static()
    machine = on_a_gpu(
        executor=static.Executor(paddle.CPUPlace()), plan=lambda: workload.plan_of(env.Job(device="gpu", layout=layout))
    )
    assert acceptance.pooling(machine).status == "ok"
    spread = gradients.spread_mean

    def with_another_window(main: static.Program) -> int:
        changed = spread(main)
        for op in main.global_block().ops:
            if op.type == "pool2d" and op.attr("paddings") == [6, 6]:
                op.desc._set_attr("exclusive", True)
        return changed

    monkeypatch.setattr(gradients, "spread_mean", with_another_window)
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


@pytest.mark.xdist_group("ranks")
def test_a_rank_that_waits_for_one_that_failed_ends_with_the_job(tmp_path: Path) -> None:
    done = jobs.on_ranks(2, RANK, str(tmp_path / "fp32.txt"), "stuck")
    assert done.returncode != 0
    assert "error: rank 1: alone; another rank has not left this check 1 s later" in done.stderr
    assert not (tmp_path / "fp32.lines").exists()
