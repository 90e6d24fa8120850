"""Recipes against the figures of their sources."""

import json
from pathlib import Path

import mlperf_logging
import pytest

from harness.sampling import steps_per_epoch
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


def test_mlperf_recipe_takes_only_reference_batches() -> None:
    assert config.recipe("mlperf_lars", global_batch=3264).base_learning_rate == 10.5
    with pytest.raises(ValueError, match="no reference convergence point for global batch 2048"):
        config.recipe("mlperf_lars", global_batch=2048)


def test_mlperf_evaluates_every_four_epochs() -> None:
    recipe = config.recipe("mlperf_lars", global_batch=1632)
    assert [e for e in range(1, 36) if recipe.is_eval_epoch(e, 35)] == [3, 7, 11, 15, 19, 23, 27, 31, 35]


@pytest.mark.parametrize(
    ("name", "batch", "rates"),
    [
        # rate at the first step of these epochs (from 0), by hand from each recipe's text
        ("nvidia_cosine", 2048, {5: 2.048, 47.5: 1.024}),
        ("paddleclas_piecewise", 256, {0: 0.1, 30: 0.01, 60: 0.001, 90: 0.0001}),
        ("mlperf_lars", 1632, {2: 7.4}),
    ],
)
def test_rates_at_known_epochs(name: str, batch: int, rates: dict[float, float]) -> None:
    recipe = config.recipe(name, global_batch=batch)
    per_epoch = steps_per_epoch(config.IMAGENET_TRAIN, batch)
    schedule = recipe.make_schedule(samples=config.IMAGENET_TRAIN, global_batch=batch, epochs=recipe.epochs)
    for epoch, rate in rates.items():
        assert schedule(round(epoch * per_epoch)) == pytest.approx(rate, rel=2e-3)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"RECIPE='adam'.*digits_small, mlperf_lars"):
        config.recipe("adam", global_batch=32)


def test_another_image_size_scales_the_evaluation_too() -> None:
    recipe = config.recipe("nvidia_cosine", global_batch=256, image_size=112)
    assert (recipe.image_size, recipe.eval_resize) == (112, 128)
