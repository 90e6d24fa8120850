"""Recipes against the figures of their sources."""

import json
import math
from dataclasses import fields
from pathlib import Path

import mlperf_logging
import pytest

from paddle_rn50 import config


def test_mlperf_points_are_the_official_ones() -> None:
    folder = Path(mlperf_logging.__file__).parent / "rcp_checker" / "training_4.0.0"
    points = json.loads((folder / "rcps_resnet.json").read_text()).values()
    official = {
        point["BS"]: (
            h["opt_base_learning_rate"],
            h["opt_learning_rate_warmup_epochs"],
            h["opt_weight_decay"],
            h["opt_momentum"],
            h["opt_learning_rate_decay_steps"],
        )
        for point in points
        for h in [point["Hyperparams"]]
    }
    assert official == config.MLPERF_POINTS


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
    """`PolynomialDecayWithWarmup` of lars_util.py, MLPerf's reference of v1.0 to v4.0, and Keras's PolynomialDecay."""
    decay_steps = train_steps - warmup_steps + 1
    if step <= warmup_steps:
        return base * step / warmup_steps
    return (base - 1e-4) * (1 - min(step - warmup_steps, decay_steps) / decay_steps) ** 2.0 + 1e-4


@pytest.mark.parametrize("batch", TRAINED)
def test_every_step_of_a_reference_point_has_the_references_rate(batch: int) -> None:
    recipe, per_epoch = config.recipe("mlperf_lars", global_batch=batch), config.IMAGENET_TRAIN // batch
    schedule = recipe.make_schedule(samples=config.IMAGENET_TRAIN, global_batch=batch, epochs=recipe.epochs)
    steps = math.ceil(recipe.epochs) * per_epoch
    base, warmup = config.MLPERF_POINTS[batch][:2]
    wanted = {"base": base, "warmup_steps": warmup * per_epoch, "train_steps": TRAINED[batch]}
    found, rates = [schedule(s) for s in range(steps)], [reference_rate(s, **wanted) for s in range(steps)]
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-12) and rates[0] == 0.0 and rates[-1] < 1.1e-4 + 1e-3 * base
    assert schedule.decay_steps == TRAINED[batch] - warmup * per_epoch + 1, "what the log says is what the update has"


def test_the_last_epoch_of_a_point_is_an_evaluations_and_later_than_its_slowest_run() -> None:
    folder = Path(mlperf_logging.__file__).parent / "rcp_checker" / "training_4.0.0"
    for point in json.loads((folder / "rcps_resnet.json").read_text()).values():
        recipe = config.recipe("mlperf_lars", global_batch=point["BS"])
        assert recipe.epochs > max(point["Epochs to converge"]), point["BS"]
        assert recipe.epochs % 4 == 3 and recipe.is_eval_epoch(int(recipe.epochs), 1000)


@pytest.mark.parametrize(
    ("name", "area_min", "aspects"),
    [
        ("mlperf_lars", 0.05, (0.75, 1.33)),  # imagenet_preprocessing.py and resnet_runnable.py of MLPerf's reference
        ("nvidia_cosine", 0.08, (3 / 4, 4 / 3)),  # utils/config.py and dali.py
        ("paddleclas_piecewise", 0.08, (3 / 4, 4 / 3)),  # ResNet50.yaml and RandCropImage
    ],
)
def test_crops_are_the_sources(name: str, area_min: float, aspects: tuple[float, float]) -> None:
    recipe = config.recipe(name, global_batch=3264)
    crop = recipe.augmentation
    assert (crop.area_min, crop.area_max, crop.aspect_min, crop.aspect_max) == (area_min, 1.0, *aspects)
    assert (recipe.image_size, recipe.eval_resize, crop.flip) == (224, 256, 0.5)


def test_the_recorded_losses_are_nvidias_from_other_first_weights() -> None:
    found, source = config.recipe("recorded", global_batch=32), config.recipe("nvidia_cosine", global_batch=32)
    changed = {f.name for f in fields(config.Recipe) if getattr(found, f.name) != getattr(source, f.name)}
    assert changed == {"name", "source", "zero_gamma", "uniform_classifier"}


def test_mlperf_evaluates_every_four_epochs() -> None:
    recipe = config.recipe("mlperf_lars", global_batch=1632)
    assert [e for e in range(1, 36) if recipe.is_eval_epoch(e, 35)] == [3, 7, 11, 15, 19, 23, 27, 31, 35]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mlperf_lars", "no reference convergence point for global batch 2048"),
        ("adam", "RECIPE='adam'.*digits_small, mlperf_lars"),
    ],
)
def test_what_there_is_no_recipe_for_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config.recipe(name, global_batch=2048)


def test_another_image_size_scales_the_evaluation_too() -> None:
    recipe = config.recipe("nvidia_cosine", global_batch=256, image_size=112)
    assert (recipe.image_size, recipe.eval_resize) == (112, 128)
