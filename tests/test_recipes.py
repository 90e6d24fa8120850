"""Recipes against the texts of their sources: schedules, first weights, updates and normalizations of the programs that
they build, crops and colours, and what the input pipeline subtracts; MLPerf reference points, and what others
published at them. Differences that stay are in docs/recipes.md.

NVIDIA: NVIDIA/DeepLearningExamples, PaddlePaddle/Classification/RN50v1.5: utils/config.py at 0376731, lr_scheduler.py,
optimizer.py and dali.py at 76da854, models/resnet.py at 709e118, program.py at 38934f9.
PaddleClas: PaddlePaddle/PaddleClas, ppcls/configs/ImageNet/ResNet/ResNet50.yaml at 0c40d1e, optimizer/learning_rate.py
at 0776f1c, arch/backbone/legendary_models/resnet.py at 0009cb6, data/preprocess/ops/operators.py at 052349e.
The MLPerf reference: mlcommons/training, image_classification/tensorflow2: lars_optimizer.py and common.py at 615ad0a,
imagenet_preprocessing.py at 48c266b.
PaddleSeg: PaddlePaddle/PaddleSeg, configs/fcn/fcn_hrnetw18_cityscapes_1024x512_80k.yml at 118c7d8,
configs/_base_/cityscapes.yml at b2c6147, benchmark/hrnet.yml at 6087e53, paddleseg/models/losses/cross_entropy_loss.py
at 119a075, models/fcn.py and layers/layer_libs.py at 02b1ed1, models/backbones/hrnet.py at 2dc99b8,
transforms/transforms.py at 025d7cf.
"""

import functools
import inspect
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import mlperf_logging
import numpy as np
import paddle
import pytest
from paddle.optimizer import lr

from harness import embedded, header, workload
from harness.job import job_of
from harness.sampling import steps_per_epoch
from paddle_hrnet import config as hrnet
from paddle_hrnet import data as hrnet_data
from paddle_hrnet import model, train
from paddle_hrnet import scenes as hrnet_scenes
from paddle_rn50 import config as rn50
from paddle_rn50 import data as rn50_data
from paddle_rn50 import digits as rn50_digits
from runlog.workloads import named
from runlog.writer import RunLog
from tests import jobs
from tests.program import programs

RANKS = 8
BATCH = {"mlperf_lars": 3264, "nvidia_cosine": 2048, "paddleclas_piecewise": 256}  # images; of the published runs
SOURCED = (*BATCH, "cityscapes_80k")


def test_what_publishing_knows_of_a_recipe_is_what_training_does() -> None:
    """The row of runlog/workloads.json has each recipe of a workload: a new one, or a changed one, is written there."""
    of_ours: dict[str, Any] = {
        "rn50": {**rn50.OF_ANY_BATCH, "mlperf_lars": rn50.mlperf_lars(BATCH["mlperf_lars"])},
        "hrnet": hrnet.RECIPES,
    }
    for name, recipes in of_ours.items():
        rows = named(name).recipes
        assert rows.keys() == recipes.keys()
        for recipe, fixed in rows.items():
            assert {field: getattr(recipes[recipe], field) for field in fixed} == fixed, recipe


def test_what_publishing_knows_of_the_embedded_data_sets_is_what_training_makes() -> None:
    """Names and numbers of samples; the tests of each workload's data hold the digests of the files."""
    digits = embedded.digits()
    made = {
        "rn50": (rn50_digits.NAME, len(digits.train), len(digits.evaluation)),
        "hrnet": (hrnet_scenes.NAME, hrnet.SCENES_TRAIN, hrnet.SCENES_EVAL),
    }
    for workload_name, expected in made.items():
        known = named(workload_name).embedded
        assert known and (known.name, known.train_samples, known.eval_samples) == expected


def test_every_recipe_of_a_source_is_compared_with_it() -> None:
    """Two recipes of SOURCED's only evaluate otherwise, and what the benchmark changes has cases of its own."""
    mlperf = rn50.mlperf_lars(BATCH["mlperf_lars"])
    recipes: list[Any] = [*rn50.OF_ANY_BATCH.values(), mlperf, *hrnet.RECIPES.values()]
    sourced = {recipe.name for recipe in recipes if not recipe.source.startswith("this project")}
    assert sourced == {*SOURCED, hrnet.FLIP.name, hrnet.MULTISCALE.name, hrnet.BENCHMARK.name}
    evaluation: dict[str, Any] = {"name": "", "target_miou": 0, "eval_flip": False, "eval_scales": ()}
    for recipe in (hrnet.FLIP, hrnet.MULTISCALE):
        assert replace(recipe, **evaluation) == replace(hrnet.CITYSCAPES_80K, **evaluation)


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


SCENES = lr.PolynomialDecay(0.1, decay_steps=4 * 44 - 22, end_lr=0.0, power=0.9)
COSINE = lr.CosineAnnealingDecay(2.048, T_max=85 * 625)
DECAYS = {
    # Cosine of lr_scheduler.py: T_max = (epochs - warmup_epochs) * steps; 0.256 a GPU of 256, from 0 in 5 epochs
    "nvidia_cosine": lr.LinearWarmup(COSINE, warmup_steps=5 * 625, start_lr=0.0, end_lr=2.048),
    # Piecewise of learning_rate.py: no warm-up, decay_epochs [30, 60, 90]; 0.1 for 4 GPUs of 64
    "paddleclas_piecewise": lr.PiecewiseDecay([n * 5004 for n in (30, 60, 90)], [0.1, 0.01, 0.001, 0.0001]),
    # PaddleSeg trains by this class from the configuration's `learning_rate` and `iters`
    "cityscapes_80k": lr.PolynomialDecay(0.01, decay_steps=80_000, end_lr=0.0, power=0.9),
    "cityscapes_benchmark": lr.PolynomialDecay(0.01, decay_steps=400, end_lr=0.0, power=0.9),
    # Our own: step k of a warm-up of 22 steps has (k + 1) / 22 of the base
    "scenes_small": lr.LinearWarmup(SCENES, warmup_steps=22, start_lr=0.1 / 22, end_lr=0.1 + 0.1 / 22),
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
    ignored = 255 if spans_ranks else -100  # Paddle's default, which is not a class
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


def test_the_last_epoch_of_a_schedule_in_iterations_is_completed() -> None:
    """PaddleSeg's 80,000 steps are 215.6 epochs of 371 steps, and 432.4 of 185."""
    for global_batch, epochs in ((8, 216), (16, 433)):
        assert hrnet.CITYSCAPES_80K.most_epochs(samples=hrnet.CITYSCAPES_TRAIN, global_batch=global_batch) == epochs


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


# ---- the reference points of MLPerf, and what is refused

RCPS = Path(mlperf_logging.__file__).parent / "rcp_checker" / "training_4.0.0" / "rcps_resnet.json"
POINTS = {point["BS"]: point for point in json.loads(RCPS.read_text()).values()}
NAMES = ("base_learning_rate", "learning_rate_warmup_epochs", "weight_decay", "momentum", "learning_rate_decay_steps")


def test_mlperf_points_are_the_official_ones() -> None:
    official = {batch: tuple(p["Hyperparams"][f"opt_{name}"] for name in NAMES) for batch, p in POINTS.items()}
    assert official == rn50.MLPERF_POINTS


# Steps that the reference trains at each point: by its own formula from the decay steps that it logs, or where the
# published logs of the same rates count the warm-up in them, the decay steps themselves.
TRAINED = {
    1632: 27476 + 2 * 785 - 1,
    3264: 14523,
    4096: 13137 + 5 * 312 - 1,
    8192: 6095 + 5 * 156 - 1,
    13056: 4710,
    32768: 2267,
    49152: 1846,
    58880: 1785,
    65536: 1133 + 31 * 19 - 1,
    67840: 1133 + 31 * 18 - 1,
}


def reference_rate(step: int, *, base: float, warmup_steps: int, train_steps: int) -> float:
    """`PolynomialDecayWithWarmup` of lars_util.py (MLPerf reference, v1.0 to v4.0) and Keras's PolynomialDecay."""
    decay_steps = train_steps - warmup_steps + 1
    if step <= warmup_steps:
        return base * step / warmup_steps
    return (base - 1e-4) * (1 - min(step - warmup_steps, decay_steps) / decay_steps) ** 2.0 + 1e-4


@pytest.mark.parametrize("batch", TRAINED)
def test_every_step_of_a_reference_point_has_the_references_rate(batch: int) -> None:
    recipe, per_epoch = rn50.recipe("mlperf_lars", global_batch=batch), rn50.IMAGENET_TRAIN // batch
    schedule = recipe.make_schedule(samples=rn50.IMAGENET_TRAIN, global_batch=batch, epochs=recipe.epochs)
    steps = recipe.epochs * per_epoch
    base, warmup = rn50.MLPERF_POINTS[batch][:2]
    wanted: dict[str, Any] = {"base": base, "warmup_steps": warmup * per_epoch, "train_steps": TRAINED[batch]}
    found, rates = [schedule(s) for s in range(steps)], [reference_rate(s, **wanted) for s in range(steps)]
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-12) and rates[0] == 0.0 and rates[-1] < 1.1e-4 + 1e-3 * base
    assert schedule.decay_steps == TRAINED[batch] - warmup * per_epoch + 1, "what the log says is what the update has"


def test_the_last_epoch_of_a_point_is_an_evaluations_and_later_than_its_slowest_run() -> None:
    for batch, point in POINTS.items():
        recipe = rn50.recipe("mlperf_lars", global_batch=batch)
        assert recipe.epochs > max(point["Epochs to converge"]), batch
        evaluated = [e for e in range(1, recipe.epochs + 1) if recipe.is_eval_epoch(e, last=1000)]
        assert evaluated == [*range(3, recipe.epochs, 4), recipe.epochs]
    assert recipe.is_eval_epoch(4, last=4)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"workload": "hrnet", "recipe": "none"}, "RECIPE='none': must be one of scenes_small, cityscapes_80k"),
        ({"workload": "hrnet", "layout": "NHWC"}, "LAYOUT=NHWC: FCN-HRNetW18 is built in NCHW only"),
    ],
)
def test_what_a_workload_does_not_have_is_refused(job: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        workload.of_job(job_of(**{"dgxngpu": 1, **job}))


def test_another_image_size_scales_the_evaluation_too() -> None:
    recipe = rn50.recipe("nvidia_cosine", global_batch=256, image_size=112)
    assert (recipe.image_size, recipe.eval_resize) == (112, 128)


# ---- published MLPerf ResNet logs beside what `mlperf_lars` logs at the same global batch

ARCHIVES = ("mlperf_v0.7_v1.0.tar.xz", "mlperf_v1.1_baidu.tar.xz", "mlperf_resnet.tar.xz")
DECAY_STEPS = "lars_opt_learning_rate_decay_steps"
WANTED = (b'"global_batch_size"', b'"opt_name"', b'"lars_')

# Logs at a batch of ours: how many there are, and how many log our values.
LOGS = {1632: (95, 30), 3264: (300, 250), 4096: (10, 0), 8192: (25, 10), 13056: (15, 0), 32768: (25, 0), 65536: (10, 5)}
# The values that the others chose, as the rules leave them to the submitter, and in how many logs. docs/recipes.md says
# what they amount to.
CHOSEN: dict[tuple[int, str], dict[Any, int]] = {
    (1632, "base_learning_rate"): {6.0: 10, 6.32: 15, 7.3: 10, 7.5: 25, 10.5: 5},
    (3264, "base_learning_rate"): {11.0: 30, 12.5: 15},
    (3264, "learning_rate_warmup_epochs"): {3: 5},
    (3264, "learning_rate_decay_steps"): {40: 5},
    (4096, "base_learning_rate"): {13.0: 5},
    (4096, "learning_rate_warmup_epochs"): {2: 5},
    (4096, "learning_rate_decay_steps"): {"pow2": 5, 12169: 5},
    (8192, "learning_rate_decay_steps"): {5772: 5, 6720: 10},
    (13056, "base_learning_rate"): {20.0: 10},
    (13056, "momentum"): {0.94: 5},
    (32768, "base_learning_rate"): {20.81: 5, 24.952061: 5, 25.0: 5, 26.379: 5, 29.0: 5},
    (32768, "learning_rate_warmup_epochs"): {7.6: 5, 8: 5, 11: 5, 18: 5},
    (32768, "learning_rate_decay_steps"): {639.5999999999999: 5, 1872: 5, 2028: 5, 2067: 5},
    (32768, "momentum"): {0.9202: 5, 0.929: 5, 0.933205: 5, 0.9395: 5, 0.95: 5},
    (32768, "weight_decay"): {0.0001: 25},
    (65536, "base_learning_rate"): {23.080977304670448: 5},
    (65536, "learning_rate_warmup_epochs"): {33: 5},
    (65536, "learning_rate_decay_steps"): {1166.25: 5},
    (65536, "momentum"): {0.9537213777059405: 5},
}


def published(folder: Path) -> Iterator[dict[str, Any]]:
    """First values of the keys that matter, of each log whose optimizer is LARS."""
    for archive in ARCHIVES:
        with tarfile.open(folder / archive, "r|xz") as members:
            for member in members:
                content = members.extractfile(member) if "/result_" in member.name and member.isfile() else None
                wanted = (line for line in content or () if b":::MLL" in line and any(key in line for key in WANTED))
                events = [json.loads(line[line.index(b"{") :]) for line in wanted]
                said = {event["key"]: event["value"] for event in reversed(events)}
                if said.get("opt_name") == "lars":
                    yield said


def logged(path: Path, batch: int) -> dict[str, Any]:
    """The events of the optimizer of `mlperf_lars`, as a log has them."""
    recipe, log = rn50.recipe("mlperf_lars", global_batch=batch), RunLog(path)
    schedule = recipe.make_schedule(samples=recipe.train_samples, global_batch=batch)
    for event, value in header.optimizer_events(schedule, recipe.optimizer, warmup_epochs=recipe.warmup_epochs):
        log.event(event, value)
    log.close()
    return {event["key"]: event["value"] for event in jobs.mllog(path)}


def is_of_training(steps: Any, *, per_epoch: int, train_steps: int, warmup_steps: int) -> bool:
    """Whether decay steps are those of this training: in steps or in epochs, of all or after the warm-up."""
    if isinstance(steps, str):
        return False
    in_steps = steps * per_epoch if steps < 100 else steps
    return any(abs(in_steps - wanted) <= per_epoch / 2 for wanted in (train_steps, train_steps - warmup_steps))


def test_published_logs_have_our_values_or_are_listed(published_corpus: Path, tmp_path: Path) -> None:
    logs, alike, chosen = Counter[int](), Counter[int](), dict[tuple[int, str], Counter[Any]]()
    ours = {batch: logged(tmp_path / f"{batch}.txt", batch) for batch in rn50.MLPERF_POINTS}
    for said in published(published_corpus):
        batch = int(said["global_batch_size"])
        if batch not in ours:
            continue
        per_epoch = steps_per_epoch(rn50.IMAGENET_TRAIN, batch)
        warmup_steps = ours[batch]["lars_opt_learning_rate_warmup_epochs"] * per_epoch
        decay = {"per_epoch": per_epoch, "train_steps": ours[batch][DECAY_STEPS] + warmup_steps}
        differ = {key for key, value in ours[batch].items() if said[key] != value}
        if is_of_training(said[DECAY_STEPS], warmup_steps=warmup_steps, **decay):
            differ.discard(DECAY_STEPS)
        logs[batch] += 1
        alike[batch] += not differ
        for key in differ:
            chosen.setdefault((batch, key.removeprefix("lars_opt_")), Counter())[said[key]] += 1
    assert {batch: (count, alike[batch]) for batch, count in logs.items()} == LOGS
    assert chosen == CHOSEN
