"""Gradients of ResNet-50 at the size that users train: stored in FP16 they are those of FP32, at each scale taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paddle_rn50 import model
from program import precision
from program.optimizers import OptimizerConfig
from tests.program import lower, programs

SIDE, BATCH = 224, 2
RANKS = 3264 // BATCH  # each image has the share in the mean that it has at 408 a GPU on 8 GPUs
RECIPE = replace(
    programs.RECIPE,
    image_size=SIDE,
    classes=1000,
    optimizer=OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.0),
)


def images(step: int) -> dict[str, np.ndarray]:
    """Smooth, as photographs are: squares of 8 pixels; the fourth channel is zero."""
    rng = np.random.default_rng(step)
    image = rng.standard_normal((BATCH, SIDE // 8, SIDE // 8, 3)).astype(np.float32).repeat(8, 1).repeat(8, 2)
    return {"image": np.pad(image, ((0, 0), (0, 0), (0, 0), (0, 1))), "label": rng.integers(0, 1000, (BATCH, 1))}


def gradients(*, rounded: bool, **wanted: Any) -> dict[str, np.ndarray]:
    """The velocities after one step, by parameter: they begin at zero and nothing decays."""
    built = programs.build(
        name="amp_o2", device="gpu", ranks=RANKS, batch=BATCH, recipe=RECIPE, stages=model.STAGES, **wanted
    )
    lower.lower(built.main, built.startup, ranks=RANKS, rounded=rounded)
    updates = [op for op in built.main.global_block().ops if op.type == "merged_momentum"]
    names = [name for op in updates for name in op.input("Velocity")]
    _, found = programs.losses(built, 1, feed=images, fetch=names)
    return {name.partition("_fp32_master")[0].partition("_velocity")[0]: value for name, value in found.items()}


@pytest.fixture(scope="module")
def exact() -> dict[str, np.ndarray]:
    return gradients(rounded=False, loss_scale=precision.CAPTURED_LOSS_SCALE)


def cosines(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    """Of each filter's gradient with the exact one."""
    pairs = {name: (found[name].ravel(), exact[name].ravel()) for name in exact if name.endswith("conv.w")}
    return {n: float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-300)) for n, (a, b) in pairs.items()}


@pytest.mark.parametrize("scale", [precision.CAPTURED_LOSS_SCALE, pytest.param(102.0, marks=pytest.mark.slow)])
def test_gradients_stored_in_fp16_are_those_of_fp32(scale: float, exact: dict[str, np.ndarray]) -> None:
    """By a captured step's own scale, and by the least that LOSS_SCALE takes at this batch."""
    found = cosines(gradients(rounded=True, loss_scale=scale), exact)
    assert len(found) == 53 and min(found.values()) >= 0.999, min(found.items(), key=lambda item: item[1])


@pytest.mark.slow
def test_without_a_scale_they_are_noise(exact: dict[str, np.ndarray]) -> None:
    assert min(cosines(gradients(rounded=True, loss_scale=1.0), exact).values()) < 0.9
