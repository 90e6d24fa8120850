"""The training program: its losses are those of the plain program, and what is wrong in it is found."""

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
    with mock.patch.object(gradients, "convolve_gradients", lambda main: 0):
        return tuple(programs.losses(programs.fresh(knobs=PLAIN), STEPS))


@pytest.mark.parametrize("name", ["fp32", "amp_o1", "amp_o2"])
def test_the_gpu_program_lowered_to_a_cpu_trains_as_the_plain_program_does(name: str) -> None:
    built = programs.build(name=name, device="gpu", ranks=8, knobs="fuse_grad_size_in_MB=0.01")
    half = name != "fp32"
    assert built.kinds("fused_batch_norm_act", "fused_bn_add_activation") == ([9, 4] if half else [0, 0])
    assert built.main.global_block().var("image").dtype == (paddle.float16 if half else paddle.float32)
    assert built.kinds("share_buffer")[0] > 0 and built.kinds("c_allreduce_sum")[0] > 4
    lower.lower(built.main, built.startup, ranks=8)
    assert np.allclose(programs.losses(built, STEPS), plain_losses(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_fusions_and_input_gradients_by_convolution_change_no_loss(layout: str) -> None:
    built = programs.build(layout=layout)
    kinds = ("fused_elemwise_add_activation", "elementwise_add", "merged_momentum", "momentum")
    assert built.kinds(*kinds) == [4, 1, 1, 0] and (built.kinds("flip")[0] > 0) == (layout == "NCHW")
    assert np.allclose(programs.losses(built, STEPS), plain_losses(), rtol=1e-5, atol=0)


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
            executor.run(built.main, feed=programs.images(0, built), fetch_list=[])
    proved = [op.type for op in built.main.global_block().ops]
    assert ran[1] == proved and ("share_buffer" in proved) == bool(knobs)
    assert knobs or ran[3] != proved
