"""Recipes against the texts of their sources: schedules, first weights, updates and normalizations of the programs that
they build, crops and colours, and what the input pipeline subtracts. Differences that stay are in docs/recipes.md.

NVIDIA: NVIDIA/DeepLearningExamples, PaddlePaddle/Classification/RN50v1.5: utils/config.py at 0376731, lr_scheduler.py,
optimizer.py and dali.py at 76da854, models/resnet.py at 709e118, program.py at 38934f9.
PaddleClas: PaddlePaddle/PaddleClas, ppcls/configs/ImageNet/ResNet/ResNet50.yaml at 0c40d1e, optimizer/learning_rate.py
at 0776f1c, arch/backbone/legendary_models/resnet.py at 0009cb6, data/preprocess/ops/operators.py at 052349e.
MLPerf's reference: mlcommons/training, image_classification/tensorflow2: lars_optimizer.py and common.py at 615ad0a,
imagenet_preprocessing.py at 48c266b.
PaddleSeg: PaddlePaddle/PaddleSeg, configs/fcn/fcn_hrnetw18_cityscapes_1024x512_80k.yml at 118c7d8,
configs/_base_/cityscapes.yml at b2c6147, benchmark/hrnet.yml at 6087e53, paddleseg/models/losses/cross_entropy_loss.py
at 119a075, models/fcn.py and layers/layer_libs.py at 02b1ed1, models/backbones/hrnet.py at 2dc99b8,
transforms/transforms.py at 025d7cf.
"""

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle.optimizer import lr

from paddle_hrnet import config as hrnet
from paddle_hrnet import data as hrnet_data
from paddle_hrnet import model, train
from paddle_rn50 import config as rn50
from paddle_rn50 import data as rn50_data
from tests.program import programs

RANKS = 8
BATCH = {"mlperf_lars": 3264, "nvidia_cosine": 2048, "paddleclas_piecewise": 256}  # images; of the published runs
SOURCED = (*BATCH, "cityscapes_80k")


def recipe_of(name: str) -> Any:
    return (rn50 if name in BATCH else hrnet).recipe(name, global_batch=BATCH.get(name, 16))


@functools.cache
def built(name: str) -> programs.Built:
    """A small network's program of 8 GPUs with the recipe's optimizer, loss and first weights."""
    recipe = recipe_of(name)
    if name in BATCH:
        recipe = replace(recipe, image_size=programs.SIDE, classes=programs.CLASSES)
        return programs.build(device="gpu", ranks=RANKS, recipe=recipe)
    recipe, workload = replace(recipe, image_width=64, image_height=64), functools.partial(train.HRNet, ranks=RANKS)
    with mock.patch.multiple(model, MODULES=dict.fromkeys(model.MODULES, 1), BLOCKS=1):
        return programs.fresh(device="gpu", ranks=RANKS, batch=2, recipe=recipe, workload=workload)


COSINE = lr.CosineAnnealingDecay(2.048, T_max=85 * 625)
DECAYS = {
    # Cosine of lr_scheduler.py: T_max = (epochs - warmup_epochs) * steps; 0.256 a GPU of 256, from 0 in 5 epochs
    "nvidia_cosine": lr.LinearWarmup(COSINE, warmup_steps=5 * 625, start_lr=0.0, end_lr=2.048),
    # Piecewise of learning_rate.py: no warm-up, decay_epochs [30, 60, 90]; 0.1 for 4 GPUs of 64
    "paddleclas_piecewise": lr.PiecewiseDecay([n * 5004 for n in (30, 60, 90)], [0.1, 0.01, 0.001, 0.0001]),
    # PaddleSeg trains by this class from the configuration's `learning_rate` and `iters`
    "cityscapes_80k": lr.PolynomialDecay(0.01, decay_steps=80_000, end_lr=0.0, power=0.9),
    "cityscapes_benchmark": lr.PolynomialDecay(0.01, decay_steps=400, end_lr=0.0, power=0.9),
}


@pytest.mark.parametrize("name", DECAYS)
def test_the_rate_is_paddles_at_every_step(name: str) -> None:
    """And past the end, where the last rate holds; there Paddle's cosine, which goes from step to step, rises again."""
    recipe, peer, theirs = recipe_of(name), DECAYS[name], []
    ours = recipe.make_schedule(samples=recipe.train_samples, global_batch=BATCH.get(name, 16))
    more, off = (0, 1e-6) if name == "nvidia_cosine" else (3, 1e-12)
    for _ in range(ours.total_steps + more):
        theirs.append(peer())
        peer.step()
    np.testing.assert_allclose([ours(step) for step in range(len(theirs))], theirs, rtol=off, atol=off / 1000)


@pytest.mark.parametrize(
    ("name", "momentum", "decay", "undecayed"),
    [
        # skip_list=['batch_normalization', 'bias', 'bn'] of common.py; the point of 3,264 images
        ("mlperf_lars", 0.9, 5e-5, {"bn", "bias"}),
        # utils/config.py: --momentum 0.875, --weight-decay 3.0517578125e-05, and L2Decay(0.0) of BatchNorm alone
        ("nvidia_cosine", 0.875, 3.0517578125e-05, {"bn"}),
        # Optimizer of ResNet50.yaml: its regularizer is the optimizer's, for every parameter
        ("paddleclas_piecewise", 0.9, 1e-4, set()),
        # optimizer: SGD, momentum 0.9, weight_decay 0.0005: Paddle's Momentum, for every parameter
        ("cityscapes_80k", 0.9, 5e-4, set()),
    ],
)
def test_momentum_and_decay_are_the_sources(name: str, momentum: float, decay: float, undecayed: set[str]) -> None:
    main, found = built(name).main, dict[str, float]()
    for op in main.global_block().ops:
        if "Velocity" in op.input_names:
            assert op.attr("mu") == np.float32(momentum)
            coefficients = op.attr("lars_weight_decay" if op.type == "lars_momentum" else "regularization_coeff")
            found |= zip(op.input("Param"), np.atleast_1d(coefficients).tolist(), strict=True)
    assert found.keys() == {p.name for p in main.all_parameters() if p.trainable}
    assert found.keys() & {"fc.b", "head.cls.b"}
    for parameter, coefficient in found.items():
        kind = "bn" if ".bn." in parameter else "bias" if parameter.endswith(".b") else "weights"
        assert coefficient == pytest.approx(0.0 if kind in undecayed else decay), parameter


@pytest.mark.parametrize("name", SOURCED)
def test_normalizations_and_the_loss_are_the_sources(name: str) -> None:
    """The Paddle sources take `paddle.nn.BatchNorm` as it is, PaddleSeg that over the ranks (layer_libs.py); the
    reference has 0.9 and 1e-5. PaddleSeg's CrossEntropyLoss: coef [1], ignore_index 255, so no auxiliary head; its mean
    over the pixels that count is ours, each rank's own.
    """
    spans_ranks = name not in BATCH
    layer = paddle.nn.SyncBatchNorm if spans_ranks else paddle.nn.BatchNorm
    defaults = inspect.signature(layer.__init__).parameters
    assert (defaults["momentum"].default, defaults["epsilon"].default) == (0.9, 1e-5)
    ops = built(name).main.global_block().ops
    norms = [op for op in ops if "batch_norm" in op.type and not op.type.endswith("_grad")]
    assert {(op.type, op.attr("momentum"), op.attr("epsilon")) for op in norms} == {
        ("sync_batch_norm" if spans_ranks else "batch_norm", np.float32(0.9), np.float32(1e-5))
    }
    smoothing = [0.1] if name in ("mlperf_lars", "nvidia_cosine") else []
    assert [op.attr("epsilon") for op in ops if op.type == "label_smooth"] == [np.float32(share) for share in smoothing]
    losses = [op for op in ops if op.type == "softmax_with_cross_entropy"]
    ignored = 255 if spans_ranks else -100  # Paddle's default, which is no class
    assert [(op.attr("ignore_index"), op.attr("soft_label")) for op in losses] == [(ignored, bool(smoothing))]


@pytest.mark.parametrize("name", SOURCED)
def test_first_weights_are_drawn_as_the_source_draws_them(name: str) -> None:
    """Every scale of a normalization is 1 and every shift 0. Filters: KaimingNormal(), which is Paddle's default too;
    PaddleSeg's init_weight (hrnet.py, fcn.py): normal_init(std=0.001). ResNet-50's last layer is normal with a
    deviation of 0.01 in the reference, and uniform in +-1 / sqrt(inputs) in both Paddle sources.
    """
    program = built(name)
    made = {op.output_arg_names[0]: op for op in reversed(program.startup.global_block().ops) if op.output_arg_names}
    shapes = {p.name: p.shape for p in program.main.all_parameters()}
    filters = [n for n in made if n in shapes and len(shapes[n]) == 4]
    norms = {n: made[n].attr("value") for n in made if n.endswith((".bn.w", ".bn.b"))}
    assert {(n[-1], value) for n, value in norms.items()} == {("w", 1.0), ("b", 0.0)}
    assert len(filters) == len(norms) // 2 + (name not in BATCH)
    for of in filters:
        deviation = (2 / np.prod(shapes[of][1:])) ** 0.5 if name in BATCH else 0.001
        assert (made[of].type, made[of].attr("std")) == ("gaussian_random", pytest.approx(deviation)), of
    if name == "mlperf_lars":
        assert (made["fc.w"].type, made["fc.w"].attr("mean")) == ("gaussian_random", 0.0)
        assert made["fc.w"].attr("std") == np.float32(0.01)
    elif name in BATCH:
        bound, last = np.float32(shapes["fc.w"][0] ** -0.5), made["fc.w"]
        assert (last.type, last.attr("min"), last.attr("max")) == ("uniform_random", -bound, bound)


@pytest.mark.parametrize(
    ("name", "epochs", "area_min", "aspects"),
    [
        ("mlperf_lars", 39, 0.05, (0.75, 1.33)),  # imagenet_preprocessing.py and resnet_runnable.py of the reference
        ("nvidia_cosine", 90, 0.08, (3 / 4, 4 / 3)),  # utils/config.py and dali.py; --eval-interval 1
        ("paddleclas_piecewise", 120, 0.08, (3 / 4, 4 / 3)),  # ResNet50.yaml and RandCropImage; eval_interval: 1
    ],
)
def test_crops_of_resnet_are_the_sources(name: str, epochs: int, area_min: float, aspects: tuple[float, float]) -> None:
    """Images are normalized as in both Paddle sources: 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225 of 255."""
    recipe = recipe_of(name)
    crop = recipe.augmentation
    assert (crop.area_min, crop.area_max, crop.aspect_min, crop.aspect_max) == (area_min, 1.0, *aspects)
    assert (recipe.image_size, recipe.eval_resize, crop.flip) == (224, 256, 0.5)
    evaluated = (4, 3) if name == "mlperf_lars" else (1, 0)
    assert (recipe.epochs, recipe.eval_every_epochs, recipe.eval_offset_epochs) == (epochs, *evaluated)
    np.testing.assert_allclose(rn50_data.MEAN, 255 * np.array([0.485, 0.456, 0.406]), rtol=1e-6)
    np.testing.assert_allclose(rn50_data.STD, 255 * np.array([0.229, 0.224, 0.225]), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "iterations", "bias", "colour"),
    [
        ("cityscapes_80k", 80_000, True, 0.4),
        ("cityscapes_benchmark", 400, False, 0.5),  # RandomDistort's defaults in transforms.py
    ],
)
def test_crops_and_colours_of_hrnet_are_the_sources(name: str, iterations: int, bias: bool, colour: float) -> None:
    """train_dataset of cityscapes.yml: ResizeStepScaling 0.5 to 2.0 by 0.25, RandomPaddingCrop [1024, 512] (filled with
    127.5), RandomHorizontalFlip (0.5), RandomDistort 0.4 three times (each with 0.5; hue_range 18 with 0.5), Normalize
    (0.5 and 0.5 of 255).
    """
    recipe = recipe_of(name)
    crop = recipe.augmentation
    assert (crop.scale_min, crop.scale_max, crop.scale_step, crop.flip) == (0.5, 2.0, 0.25, 0.5)
    assert (crop.colour, crop.colour_probability, crop.hue_degrees) == (colour, 0.5, pytest.approx(18 / 255 * 360))
    assert (recipe.image_width, recipe.image_height, recipe.eval_batch, recipe.eval_flip) == (1024, 512, 1, False)
    assert (hrnet_data.MEAN, hrnet_data.STD) == (0.5 * 255, 0.5 * 255)
    assert (recipe.iterations, recipe.head_bias, recipe.target_miou) == (iterations, bias, 0.7897)
    assert (recipe.image_size, recipe.optimizer) == ("1024x512", hrnet.CITYSCAPES_80K.optimizer)


def test_the_benchmark_pads_on_all_sides_and_has_no_bias(published_logs: Path) -> None:
    """Perf's log of 2023 holds the configuration that it ran: padding_same and bias are false."""
    log = (published_logs / "paddleseg_v100_gpu1_fp32_bs8.log").read_text(errors="replace")
    assert "    padding_same: false\n    pretrained: null\n" in log and "\n  bias: false\n" in log
    assert "\niters: 400\n" in log and "  - type: RandomDistort\n  - type: Normalize\n" in log  # with its defaults
    for name, padding in (("cityscapes_80k", ("SAME", 0, 0)), ("cityscapes_benchmark", ("EXPLICIT", 1, 1))):
        ops = built(name).main.global_block().ops
        convolutions = [op for op in ops if op.type == "conv2d" and op.attr("strides") == [2, 2]]
        assert {(op.attr("padding_algorithm"), *op.attr("paddings")) for op in convolutions} == {padding}
