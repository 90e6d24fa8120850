"""Recipes against the texts of their sources: schedules, first weights, updates and normalizations of the programs that
they build, and what the input pipeline subtracts. Differences that stay are listed in docs/recipes.md.

NVIDIA: NVIDIA/DeepLearningExamples, PaddlePaddle/Classification/RN50v1.5: utils/config.py at 0376731, lr_scheduler.py,
optimizer.py and dali.py at 76da854, models/resnet.py at 709e118, program.py at 38934f9.
PaddleClas: PaddlePaddle/PaddleClas, ppcls/configs/ImageNet/ResNet/ResNet50.yaml at 0c40d1e, optimizer/learning_rate.py
at 0776f1c, arch/backbone/legendary_models/resnet.py at 0009cb6, data/preprocess/ops/operators.py at 052349e.
MLPerf's reference: mlcommons/training, image_classification/tensorflow2: lars_optimizer.py and common.py at 615ad0a,
imagenet_preprocessing.py at 48c266b.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import paddle
import pytest

from paddle_rn50 import config, data
from program import optimizers
from tests.program import programs

SOURCED = ("mlperf_lars", "nvidia_cosine", "paddleclas_piecewise")
BATCH = {"mlperf_lars": 3264, "nvidia_cosine": 2048, "paddleclas_piecewise": 256}  # images; of the published runs


def built(name: str) -> programs.Built:
    """A small network's program of 8 GPUs with the recipe's optimizer, loss and first weights."""
    recipe = config.recipe(name, global_batch=BATCH[name])
    return programs.build(
        device="gpu", ranks=8, recipe=replace(recipe, image_size=programs.SIDE, classes=programs.CLASSES)
    )


def schedule(name: str) -> optimizers.Schedule:
    recipe = config.recipe(name, global_batch=BATCH[name])
    return recipe.make_schedule(samples=config.IMAGENET_TRAIN, global_batch=BATCH[name])


def test_nvidias_rate_is_paddles_cosine_behind_its_warm_up_at_every_step() -> None:
    """Cosine of lr_scheduler.py: T_max = (epochs - warmup_epochs) * steps; 0.256 a GPU of 256, from 0 in 5 epochs."""
    steps, base = config.IMAGENET_TRAIN // 2048, 8 * 0.256
    decay = paddle.optimizer.lr.CosineAnnealingDecay(base, T_max=(90 - 5) * steps, eta_min=0.0)
    peer = paddle.optimizer.lr.LinearWarmup(decay, warmup_steps=5 * steps, start_lr=0.0, end_lr=base)
    ours, theirs = schedule("nvidia_cosine"), []
    for _ in range(90 * steps):
        theirs.append(peer())
        peer.step()
    np.testing.assert_allclose([ours(step) for step in range(90 * steps)], theirs, rtol=1e-6, atol=1e-9)
    assert theirs[0] == ours(0) == 0.0 and ours(5 * steps) == base
    recipe = config.recipe("nvidia_cosine", global_batch=2048)
    assert (recipe.epochs, recipe.eval_every_epochs, recipe.eval_offset_epochs) == (90, 1, 0)  # --eval-interval 1


def test_paddleclas_rate_is_paddles_piecewise_decay_around_every_boundary() -> None:
    """Piecewise of learning_rate.py: no warm-up, decay_epochs [30, 60, 90]; 0.1 for 4 GPUs of 64."""
    steps, ours = config.IMAGENET_TRAIN // 256, schedule("paddleclas_piecewise")
    values = [0.1, 0.01, 0.001, 0.0001]
    peer = paddle.optimizer.lr.PiecewiseDecay([epoch * steps for epoch in (30, 60, 90)], values)
    for step in (0, 1, *(epoch * steps + off for epoch in (30, 60, 90, 120) for off in (-1, 0, 1))):
        peer.step(step)
        assert ours(step) == pytest.approx(peer(), rel=1e-12)
    recipe = config.recipe("paddleclas_piecewise", global_batch=256)
    assert (recipe.epochs, recipe.eval_every_epochs, recipe.eval_offset_epochs) == (120, 1, 0)  # eval_interval: 1


@pytest.mark.parametrize(
    ("name", "momentum", "decay", "undecayed"),
    [
        # skip_list=['batch_normalization', 'bias', 'bn'] of common.py; the point of 3,264 images
        ("mlperf_lars", 0.9, 5e-5, {"bn", "bias"}),
        # utils/config.py: --momentum 0.875, --weight-decay 3.0517578125e-05, and L2Decay(0.0) of BatchNorm alone
        ("nvidia_cosine", 0.875, 3.0517578125e-05, {"bn"}),
        # Optimizer of ResNet50.yaml: its regularizer is the optimizer's, for every parameter
        ("paddleclas_piecewise", 0.9, 1e-4, set()),
    ],
)
def test_each_parameter_is_updated_with_the_sources_momentum_and_decay(
    name: str, momentum: float, decay: float, undecayed: set[str]
) -> None:
    found: dict[str, float] = {}
    for op in built(name).main.global_block().ops:
        if "Velocity" not in op.input_names:
            continue
        assert op.attr("mu") == np.float32(momentum)
        coefficients = op.attr("lars_weight_decay" if op.type == "lars_momentum" else "regularization_coeff")
        found |= zip(op.input("Param"), np.atleast_1d(coefficients).tolist(), strict=True)
    assert len(found) == 47
    for parameter, coefficient in found.items():
        kind = "bn" if ".bn." in parameter else "bias" if parameter == "fc.b" else "weights"
        assert coefficient == pytest.approx(0.0 if kind in undecayed else decay), parameter


@pytest.mark.parametrize("name", SOURCED)
def test_normalizations_and_smoothing_are_the_sources(name: str) -> None:
    """Both Paddle sources take `paddle.nn.BatchNorm` as it is; the reference has 0.9 and 1e-5."""
    defaults = inspect.signature(paddle.nn.BatchNorm.__init__).parameters
    assert (defaults["momentum"].default, defaults["epsilon"].default) == (0.9, 1e-5)
    ops = built(name).main.global_block().ops
    norms = [op for op in ops if "batch_norm" in op.type and not op.type.endswith("_grad")]
    assert {(op.attr("momentum"), op.attr("epsilon")) for op in norms} == {(np.float32(0.9), np.float32(1e-5))}
    smoothing = [op.attr("epsilon") for op in ops if op.type == "label_smooth"]
    assert smoothing == ([] if name == "paddleclas_piecewise" else [np.float32(0.1)])


@pytest.mark.parametrize("name", SOURCED)
def test_first_weights_are_drawn_as_the_source_draws_them(name: str) -> None:
    """Every scale of a normalization is 1. The last layer is normal with a deviation of 0.01 in the reference, and
    uniform in +-1 / sqrt(inputs) in both Paddle sources. Filters: KaimingNormal(), which is Paddle's default too.
    """
    program = built(name)
    made = {op.output_arg_names[0]: op for op in reversed(program.startup.global_block().ops) if op.output_arg_names}
    scales = {n: made[n].attr("value") for n in made if n.endswith(".bn.w")}
    assert len(scales) == 15 and set(scales.values()) == {1.0}
    last, inputs = made["fc.w"], program.main.global_block().var("fc.w").shape[0]
    if name == "mlperf_lars":
        assert (last.type, last.attr("mean"), last.attr("std")) == ("gaussian_random", 0.0, np.float32(0.01))
    else:
        bound = np.float32(inputs**-0.5)
        assert (last.type, last.attr("min"), last.attr("max")) == ("uniform_random", -bound, bound)
    filters = made["stem.conv.w"]
    assert (filters.type, filters.attr("std")) == ("gaussian_random", np.float32((2 / (3 * 7 * 7)) ** 0.5))


def test_images_are_normalized_by_the_sources_means_and_deviations() -> None:
    """Both Paddle sources: 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225 of 255."""
    np.testing.assert_allclose(data.MEAN, 255 * np.array([0.485, 0.456, 0.406]), rtol=1e-6)
    np.testing.assert_allclose(data.STD, 255 * np.array([0.229, 0.224, 0.225]), rtol=1e-6)
