"""The training program: its losses are those of the plain program, and what is wrong in it is found."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle import static
from paddle.base import executor as base_executor

from program import build
from program.passes import gradients
from tests.program import lower, programs

PLAIN = "fuse_elewise_add_act_ops=0,merged_optimizer=0"
STEPS = 10
LARGE = ((256, 1), (512, 1))  # stages of 19 MB of gradients


@cache
def plain_losses() -> tuple[float, ...]:
    """Losses of the program that fleet builds for one rank without any fusion, NCHW in FP32."""
    return tuple(programs.losses(programs.build(knobs=PLAIN), STEPS))


def lowered_losses(built: programs.Built, *, ranks: int = 8, half: bool = True, steps: int = STEPS) -> list[float]:
    lower.lower(built.main, built.startup, ranks=ranks)
    layout, channels = ("NHWC", 4) if half else ("NCHW", 3)
    return programs.losses(built, steps, layout=layout, channels=channels)


@pytest.mark.parametrize("name", ["fp32", "amp_o1", "amp_o2"])
def test_the_gpu_program_lowered_to_a_cpu_trains_as_the_plain_program_does(name: str) -> None:
    built = programs.build(name=name, device="gpu", ranks=8, knobs="fuse_grad_size_in_MB=0.01")
    half = name != "fp32"
    assert built.kinds("fused_batch_norm_act", "fused_bn_add_activation") == ([9, 4] if half else [0, 0])
    assert built.main.global_block().var("image").dtype == (paddle.float16 if half else paddle.float32)
    assert built.kinds("share_buffer")[0] > 0 and built.kinds("c_allreduce_sum")[0] > 4
    assert np.allclose(lowered_losses(built, half=half), plain_losses(), rtol=1e-5, atol=0)


def test_gradient_merge_of_the_gpu_program_trains_as_the_plain_one_does() -> None:
    merge, batch = "gradient_merge=2", 2 * programs.BATCH
    built = programs.build(
        name="amp_o2", device="gpu", ranks=8, knobs=f"{merge},fuse_grad_size_in_MB=0.01", batch=batch
    )
    kinds = [op.type for op in built.update[0].global_block().ops]
    assert not {"c_allreduce_sum", "merged_momentum", "check_finite_and_unscale"}.intersection(kinds)
    for part in built.update:
        lower.lower(part, built.startup, ranks=8)
    plain = programs.build(knobs=f"{PLAIN},{merge}", layout="NHWC", batch=batch)  # one layout: no value flips at a relu
    losses, expected = (
        programs.losses(
            one, STEPS, feed=lambda step, c=channels: programs.images(step, layout="NHWC", channels=c, batch=batch)
        )
        for one, channels in ((built, 4), (plain, 3))
    )
    assert np.allclose(losses, expected, rtol=1e-5, atol=0), (losses, expected)


def test_fusions_change_no_loss() -> None:
    built = programs.build()
    kinds = ("fused_elemwise_add_activation", "elementwise_add", "merged_momentum", "momentum")
    assert built.kinds(*kinds) == [4, 1, 1, 0]
    assert np.allclose(programs.losses(built, STEPS), plain_losses(), rtol=1e-5, atol=0)


def test_input_gradients_by_convolution_change_no_loss() -> None:
    built = programs.build()
    with mock.patch.object(gradients, "convolve_gradients", lambda main: 0):
        plain = programs.fresh()
    assert built.kinds("flip")[0] > 0 and plain.kinds("flip") == [0]
    assert np.allclose(programs.losses(built, STEPS), programs.losses(plain, STEPS), rtol=1e-5, atol=0)


def test_bucket_sizes_change_no_loss() -> None:
    small, large = (
        programs.build(ranks=2, device="gpu", knobs=f"fuse_grad_size_in_MB={mib}", stages=LARGE) for mib in (1, 16)
    )
    assert small.kinds("coalesce_tensor") > large.kinds("coalesce_tensor") >= [2]
    first, second = (lowered_losses(built, ranks=2, half=False) for built in (small, large))
    assert np.allclose(first, second, rtol=1e-5, atol=0)


@pytest.mark.parametrize("merged", [0, 1])
def test_an_update_on_a_cpu_waits_for_each_bucket_by_the_fewest_operators(merged: int) -> None:
    """One for all parameters needs one `depend` a bucket; one a parameter, all of them. No reader loses its wait."""
    knobs = f"merged_optimizer={merged},fuse_grad_size_in_MB=1"
    gpu, cpu = (programs.build(ranks=2, device=device, knobs=knobs, stages=LARGE) for device in ("gpu", "cpu"))
    ops = cpu.main.global_block().ops
    buckets = [set(op.output("Output")) for op in ops if op.type == "coalesce_tensor"]
    assert len(buckets) > 1
    updates = [(i, op) for i, op in enumerate(ops) if op.type in ("momentum", "merged_momentum")]
    for bucket in buckets:
        reading = {i for i, op in updates if bucket.intersection(op.input("Grad"))}
        depends = [(i, set(op.input("X"))) for i, op in enumerate(ops) if op.type == "depend"]
        waiting = {
            i for i, op in updates if any(at < i and names & bucket & set(op.input("Grad")) for at, names in depends)
        }
        assert reading and waiting == reading
    assert cpu.kinds("depend")[0] == (len(buckets) if merged else gpu.kinds("depend")[0])


def test_nhwc_and_nchw_differ_as_a_rounding_of_the_input_does() -> None:
    steps = 3

    def rounded(step: int) -> dict[str, np.ndarray]:
        feed = programs.images(step, layout="NCHW", channels=3)
        return feed | {"image": np.nextafter(feed["image"], np.float32(np.inf))}

    nchw = np.array(plain_losses()[:steps])
    control = np.abs(np.array(programs.losses(programs.build(knobs=PLAIN), steps, feed=rounded)) - nchw)
    nhwc = np.array(programs.losses(programs.build(layout="NHWC"), steps, layout="NHWC"))
    assert np.all(np.abs(nhwc - nchw) <= 10 * np.maximum.accumulate(control) + 1e-6 * nchw)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_gradient_of_a_mean_over_the_image_needs_no_image(layout: str) -> None:
    """dX = dOut / (height x width) everywhere; the last pooling, over less than the image, stays Paddle's."""
    paddle.enable_static()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 5, 7) if layout == "NCHW" else (2, 5, 7, 3)).astype(np.float32)
    upstream = rng.standard_normal((2, 3, 1, 1) if layout == "NCHW" else (2, 1, 1, 3)).astype(np.float32)
    main = static.Program()
    with static.program_guard(main):
        image, gradient = static.data("x", x.shape, "float32"), static.data("g", upstream.shape, "float32")
        image.stop_gradient = False
        mean = paddle.nn.functional.adaptive_avg_pool2d(image, 1, data_format=layout)
        parts = paddle.nn.functional.avg_pool2d(image, 3, data_format=layout)
        (dx,) = static.gradients(mean, image, gradient)
        static.gradients(parts, image)
    assert gradients.spread_mean(main) == 1
    assert [op.type for op in main.global_block().ops].count("pool2d_grad") == 1
    (found,) = static.Executor(paddle.CPUPlace()).run(main, feed={"x": x, "g": upstream}, fetch_list=[dx.name])
    np.testing.assert_allclose(found, np.broadcast_to(upstream / 35, x.shape), rtol=1e-6)


@pytest.mark.parametrize("knobs", ["", "enable_inplace=1"])
def test_the_program_that_runs_is_the_one_that_was_proved(knobs: str) -> None:
    """Paddle's executor would let buffers be shared in any program that it is given, as its own class here."""
    of_cache = base_executor._ExecutorCache._get_program_and_executor
    ran: list[list[str]] = []

    def recorded(cache: Any, data: Any) -> Any:
        found = of_cache(cache, data)
        ran.append([op.type for op in found[0].global_block().ops if op.type != "feed"])
        return found

    built = programs.build(knobs=knobs)
    with (
        mock.patch.object(base_executor._ExecutorCache, "_get_program_and_executor", recorded),
        static.scope_guard(static.Scope()),
    ):
        for kind in (build.Executor, static.Executor):
            executor = kind(paddle.CPUPlace())
            executor.run(built.startup)
            executor.run(built.main, feed=programs.images(0, layout="NCHW", channels=3), fetch_list=[])
    proved = [op.type for op in built.main.global_block().ops]
    assert ran[1] == proved and ("share_buffer" in proved) == bool(knobs)
    assert knobs or ran[3] != proved
