"""Recipes against PaddleSeg's and the report's."""

import paddle
import pytest

from paddle_hrnet import config
from paddle_hrnet.config import CITYSCAPES_TRAIN


@pytest.mark.parametrize("name", ["cityscapes_80k", "cityscapes_benchmark"])
def test_the_rate_is_paddles_polynomial_decay_at_every_step(name: str) -> None:
    """PaddleSeg trains by this class from the recipe's `learning_rate` and `iters`."""
    recipe = config.recipe(name, global_batch=8)
    iterations = {"cityscapes_80k": 80_000, "cityscapes_benchmark": 400}[name]
    schedule = recipe.make_schedule(samples=CITYSCAPES_TRAIN, global_batch=8)
    peer = paddle.optimizer.lr.PolynomialDecay(0.01, decay_steps=iterations, end_lr=0.0, power=0.9)
    for step in range(iterations + 3):  # past the end the last rate holds
        assert schedule(step) == pytest.approx(peer(), rel=1e-12)
        peer.step()
    assert schedule(iterations // 2) == pytest.approx(0.01 * 0.5**0.9)
    assert schedule(iterations) == 0
