"""Recipes against the figures of their sources."""

import json
from pathlib import Path
from typing import Any

import mlperf_logging
import pytest

from harness import env, workload
from paddle_rn50 import config

RCPS = Path(mlperf_logging.__file__).parent / "rcp_checker" / "training_4.0.0" / "rcps_resnet.json"
POINTS = {point["BS"]: point for point in json.loads(RCPS.read_text()).values()}
NAMES = ("base_learning_rate", "learning_rate_warmup_epochs", "weight_decay", "momentum", "learning_rate_decay_steps")


def test_mlperf_points_are_the_official_ones() -> None:
    official = {batch: tuple(p["Hyperparams"][f"opt_{name}"] for name in NAMES) for batch, p in POINTS.items()}
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
    steps = recipe.epochs * per_epoch
    base, warmup = config.MLPERF_POINTS[batch][:2]
    wanted = {"base": base, "warmup_steps": warmup * per_epoch, "train_steps": TRAINED[batch]}
    found, rates = [schedule(s) for s in range(steps)], [reference_rate(s, **wanted) for s in range(steps)]
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-12) and rates[0] == 0.0 and rates[-1] < 1.1e-4 + 1e-3 * base
    assert schedule.decay_steps == TRAINED[batch] - warmup * per_epoch + 1, "what the log says is what the update has"


def test_the_last_epoch_of_a_point_is_an_evaluations_and_later_than_its_slowest_run() -> None:
    for batch, point in POINTS.items():
        recipe = config.recipe("mlperf_lars", global_batch=batch)
        assert recipe.epochs > max(point["Epochs to converge"]), batch
        evaluated = [e for e in range(1, recipe.epochs + 1) if recipe.is_eval_epoch(e, last=1000)]
        assert evaluated == [*range(3, recipe.epochs, 4), recipe.epochs]
    assert recipe.is_eval_epoch(4, last=4)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"recipe": "mlperf_lars", "batchsize": 2048}, "no reference convergence point for global batch 2048"),
        ({"recipe": "adam"}, "RECIPE='adam': must be one of digits_small, mlperf_lars"),
        ({"workload": "hrnet", "recipe": "none"}, "RECIPE='none': must be one of scenes_small, cityscapes_80k"),
        ({"workload": "hrnet", "layout": "NHWC"}, "LAYOUT=NHWC: FCN-HRNetW18 is built in NCHW only"),
    ],
)
def test_what_a_workload_does_not_have_is_refused(job: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        workload.of_job(env.Job(**{"dgxngpu": 1, **job}))


def test_another_image_size_scales_the_evaluation_too() -> None:
    recipe = config.recipe("nvidia_cosine", global_batch=256, image_size=112)
    assert (recipe.image_size, recipe.eval_resize) == (112, 128)
