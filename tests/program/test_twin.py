"""Gradients of ResNet-50 at the size that users train, in the types in which a GPU stores them (twin.py)."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import static

from tests.program import lower, twin

CAPTURED = twin.Case(precision="amp_o2", knobs="cuda_graph=1")


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_values_are_rounded_to_nearest(name: str) -> None:
    """FP16 as NumPy does, subnormals and infinities too, but for one value in 300 that lies all but halfway."""
    paddle.enable_static()
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(50_000) * scale for scale in (1e-7, 1e-6, 6e-5, 1.0, 2e4)]
    x = np.concatenate([*parts, [0.0, 1e-8, 2.9e-8, -3.1e-8, 65519.0, -65520.0, 7e4]]).astype(np.float32)
    main = static.Program()
    with static.program_guard(main):
        y = paddle.assign(static.data("x", x.shape, "float32"))
    block = main.global_block()
    lower._round_one(block, len(block.ops), y.name, getattr(paddle, name), 0)
    block._sync_with_cpp()
    (found,) = static.Executor(paddle.CPUPlace()).run(main, feed={"x": x}, fetch_list=[y.name])
    if name == "float16":
        with np.errstate(over="ignore"):
            near = x.astype(np.float16)
            assert (found == near).mean() > 1 - 1 / 300
            assert (np.abs(found.astype(np.float16).view(np.int16) - near.view(np.int16)) <= 1).all()
    else:
        bits = x.view(np.uint32)
        assert np.array_equal(found.view(np.uint32), (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000)


def test_gradients_of_a_captured_step_are_those_of_fp32() -> None:
    found = twin.row(CAPTURED, batch=2)
    assert found.is_sound, found


@pytest.mark.slow
@pytest.mark.parametrize("case", twin.CASES, ids=lambda case: case.name)
def test_gradients_of_every_job_are_those_of_fp32(case: twin.Case) -> None:
    found = twin.row(case)
    assert found.is_sound, found
    assert f"| gradients | `{case.name}` |" in twin.PAGE.read_text()


@pytest.mark.slow
def test_without_a_scale_they_are_noise() -> None:
    """The door refuses LOSS_SCALE=1 (harness/env.py)."""
    assert twin.row(twin.Case(precision="amp_o2", loss_scale=1), batch=2).cosine < 0.9
