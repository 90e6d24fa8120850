"""Recipes against PaddleSeg's text, in the program that they build. Differences that stay are in docs/recipes.md.

PaddlePaddle/PaddleSeg: configs/fcn/fcn_hrnetw18_cityscapes_1024x512_80k.yml at 118c7d8, configs/_base_/cityscapes.yml
at b2c6147, benchmark/hrnet.yml at 6087e53, paddleseg/models/losses/cross_entropy_loss.py at 119a075, models/fcn.py and
layers/layer_libs.py at 02b1ed1, models/backbones/hrnet.py at 2dc99b8, transforms/transforms.py at 025d7cf.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
import pytest

from paddle_hrnet import config, data, model, train
from tests.program import programs


def built(name: str) -> programs.Built:
    """Of 2 GPUs, of small crops and a network of a block a branch: no attribute below depends on either."""
    recipe = replace(config.recipe(name, global_batch=4), image_width=64, image_height=64)
    workload = functools.partial(train.HRNet, ranks=2)
    with mock.patch.multiple(model, MODULES=dict.fromkeys(model.MODULES, 1), BLOCKS=1):
        return programs.fresh(device="gpu", ranks=2, batch=2, recipe=recipe, workload=workload)


@pytest.fixture(scope="module")
def program() -> programs.Built:
    return built("cityscapes_80k")


def test_every_parameter_is_updated_with_momentum_and_decay(program: programs.Built) -> None:
    """optimizer: SGD, momentum 0.9, weight_decay 0.0005: Paddle's Momentum, for every parameter."""
    found: dict[str, float] = {}
    for op in program.main.global_block().ops:
        if "Velocity" in op.input_names:
            assert op.attr("mu") == np.float32(0.9)
            coefficients = np.atleast_1d(op.attr("regularization_coeff")).tolist()
            found |= zip(op.input("Param"), coefficients, strict=True)
    assert len(found) == len([p for p in program.main.all_parameters() if p.trainable]) and {"head.cls.b"} < set(found)
    assert set(found.values()) == {np.float32(0.0005)}


def test_normalizations_span_the_ranks_with_paddles_defaults(program: programs.Built) -> None:
    """layer_libs.py: nn.SyncBatchNorm(channels) of more than one rank."""
    defaults = inspect.signature(paddle.nn.SyncBatchNorm.__init__).parameters
    assert (defaults["momentum"].default, defaults["epsilon"].default) == (0.9, 1e-5)
    norms = [op for op in program.main.global_block().ops if op.type in ("batch_norm", "sync_batch_norm")]
    assert {(op.type, op.attr("momentum"), op.attr("epsilon")) for op in norms} == {
        ("sync_batch_norm", np.float32(0.9), np.float32(1e-5))
    }


def test_the_loss_is_one_cross_entropy_that_ignores_255(program: programs.Built) -> None:
    """loss: CrossEntropyLoss, coef [1], ignore_index 255: one output, so no auxiliary head. Their mean over the pixels
    that count is ours; each rank's own, as theirs.
    """
    losses = [op for op in program.main.global_block().ops if op.type == "softmax_with_cross_entropy"]
    assert [(op.attr("ignore_index"), op.attr("soft_label")) for op in losses] == [(255, False)]


def test_first_weights_are_normal_with_a_deviation_of_a_thousandth(program: programs.Built) -> None:
    """init_weight of hrnet.py and fcn.py: normal_init(std=0.001) of each convolution, scales 1, shifts 0."""
    made = {op.output_arg_names[0]: op for op in reversed(program.startup.global_block().ops) if op.output_arg_names}
    filters = {n: made[n] for n in made if n.endswith(("conv.w", "cls.w"))}
    norms = {n: made[n].attr("value") for n in made if n.endswith((".bn.w", ".bn.b"))}
    drawn = {(op.type, op.attr("std")) for op in filters.values()}
    assert len(filters) == len(norms) // 2 + 1 and drawn == {("gaussian_random", np.float32(0.001))}
    assert {(n[-1], value) for n, value in norms.items()} == {("w", 1.0), ("b", 0.0)}


def test_the_benchmark_pads_on_all_sides_and_has_no_bias(published_logs: Path, program: programs.Built) -> None:
    """Perf's log of 2023 holds the configuration that it ran: padding_same and bias are false."""
    log = (published_logs / "paddleseg_v100_gpu1_fp32_bs8.log").read_text(errors="replace")
    assert "    padding_same: false\n    pretrained: null\n" in log and "\n  bias: false\n" in log
    assert "\niters: 400\n" in log and "  - type: RandomDistort\n  - type: Normalize\n" in log  # with its defaults
    found = {}
    for name, main in (("80k", program.main), ("benchmark", built("cityscapes_benchmark").main)):
        convolutions = [op for op in main.global_block().ops if op.type == "conv2d" and op.attr("strides") == [2, 2]]
        found[name] = {(op.attr("padding_algorithm"), tuple(op.attr("paddings"))) for op in convolutions}
    assert {algorithm for algorithm, _ in found["80k"]} == {"SAME"} and found["benchmark"] == {("EXPLICIT", (1, 1))}


@pytest.mark.parametrize(
    ("name", "iterations", "bias", "colour"),
    [
        ("cityscapes_80k", 80_000, True, 0.4),
        ("cityscapes_benchmark", 400, False, 0.5),  # RandomDistort's defaults in transforms.py
    ],
)
def test_crops_scales_and_colours_are_the_configurations(name: str, iterations: int, bias: bool, colour: float) -> None:
    """train_dataset of cityscapes.yml: ResizeStepScaling 0.5 to 2.0 by 0.25, RandomPaddingCrop [1024, 512] (filled with
    127.5), RandomHorizontalFlip (0.5), RandomDistort 0.4 three times (each with 0.5; hue_range 18 with 0.5), Normalize
    (0.5 and 0.5 of 255).
    """
    recipe = config.recipe(name, global_batch=16)
    crop = recipe.augmentation
    assert (crop.scale_min, crop.scale_max, crop.scale_step, crop.flip) == (0.5, 2.0, 0.25, 0.5)
    assert (crop.colour, crop.colour_probability, crop.hue_degrees) == (colour, 0.5, pytest.approx(18 / 255 * 360))
    assert (recipe.image_width, recipe.image_height, recipe.eval_batch, recipe.eval_flip) == (1024, 512, 1, False)
    assert (data.MEAN, data.STD) == (0.5 * 255, 0.5 * 255)
    assert (recipe.iterations, recipe.head_bias, recipe.target_miou) == (iterations, bias, 0.7897)
    assert (recipe.image_size, recipe.optimizer) == ("1024x512", config.CITYSCAPES_80K.optimizer)
    assert (recipe.base_learning_rate, recipe.warmup_epochs, recipe.end_learning_rate) == (0.01, 0, 0)


@pytest.mark.parametrize("name", ["cityscapes_80k", "cityscapes_benchmark"])
def test_the_rate_is_paddles_polynomial_decay_at_every_step(name: str) -> None:
    """PaddleSeg trains by this class from the recipe's `learning_rate` and `iters`."""
    recipe = config.recipe(name, global_batch=8)
    iterations = {"cityscapes_80k": 80_000, "cityscapes_benchmark": 400}[name]
    schedule = recipe.make_schedule(samples=config.CITYSCAPES_TRAIN, global_batch=8)
    peer = paddle.optimizer.lr.PolynomialDecay(0.01, decay_steps=iterations, end_lr=0.0, power=0.9)
    for step in range(iterations + 3):  # past the end the last rate holds
        assert schedule(step) == pytest.approx(peer(), rel=1e-12)
        peer.step()
    assert schedule(iterations // 2) == pytest.approx(0.01 * 0.5**0.9)
    assert schedule(iterations) == 0
