"""SGD and LARS, as the training program runs them, against NumPy over twenty steps: of LARS the update of
`lars_optimizer.py`, MLPerf's reference. Learning rates at every step are in tests/test_recipes.py."""

from dataclasses import replace

import numpy as np
import paddle
import pytest
from paddle import static

from harness import ranks
from harness.env import Job
from paddle_rn50 import model
from program import build, strategy
from program.optimizers import OptimizerConfig, Schedule
from tests.program import programs

STEPS, ROWS, COLUMNS, CLASSES = 20, 8, 6, 4
SMOOTHING = 0.1
SCHEDULE = Schedule(kind="polynomial", base=0.5, warmup_steps=2, total_steps=20, end=1e-4)


def reference_step(weights: dict, velocity: dict, x: np.ndarray, y: np.ndarray, config: OptimizerConfig, rate: float):
    """One step of softmax regression x -> softmax(x * gamma @ w + b) with smoothed labels, in float64."""
    w, b, gamma = weights["fc.w"], weights["fc.b"], weights["scale.bn.w"]
    logits = (x * gamma) @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    target = np.eye(CLASSES)[y] * (1 - SMOOTHING) + SMOOTHING / CLASSES
    d = (p - target) / len(x)
    gradients = {"fc.w": (x * gamma).T @ d, "fc.b": d.sum(0), "scale.bn.w": ((d @ w.T) * x).sum(0)}
    for name, g in gradients.items():
        decays = name == "fc.w" or config.decay_bn_and_bias or (name == "fc.b" and config.decay_bias)
        decay = config.weight_decay if decays else 0.0
        value = weights[name]
        if config.kind == "lars":
            # You et al. 2017, algorithm 1, with the decay inside the trust ratio's norm
            norm = np.linalg.norm(value)
            trust = config.lars_coefficient * norm / (np.linalg.norm(g) + decay * norm + config.lars_epsilon)
            velocity[name] = config.momentum * velocity[name] + rate * (trust if decay else 1) * (g + decay * value)
            weights[name] = value - velocity[name]
        else:
            velocity[name] = config.momentum * velocity[name] + g + decay * value
            weights[name] = value - rate * velocity[name]
    return -(target * np.log(p)).sum(1).mean()


LARS = OptimizerConfig(kind="lars", momentum=0.9, weight_decay=0.02, lars_coefficient=0.1)


@pytest.mark.parametrize(
    ("config", "knobs"),
    [
        (OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.02), ""),
        (OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.02, decay_bn_and_bias=True), ""),
        (OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.02, decay_bias=True), ""),
        (LARS, ""),
        (LARS, "merged_lars=1"),
    ],
    ids=["sgd", "sgd-decays-all", "sgd-decays-bias", "lars", "merged-lars"],
)
def test_twenty_steps(config: OptimizerConfig, knobs: str) -> None:
    paddle.enable_static()
    job = Job(dgxngpu=1, hang_timeout_s=0)
    ranks.connect(job, ranks.start(job))
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [ROWS, COLUMNS], "float32")
        y = static.data("y", [ROWS, 1], "int64")
        gamma = static.create_parameter([COLUMNS], "float32", attr=paddle.ParamAttr(name="scale.bn.w"))
        logits = static.nn.fc(
            x * gamma, CLASSES, weight_attr=paddle.ParamAttr(name="fc.w"), bias_attr=paddle.ParamAttr(name="fc.b")
        )
        one_hot = paddle.nn.functional.one_hot(paddle.squeeze(y, 1), CLASSES)
        smooth = paddle.nn.functional.label_smooth(one_hot, epsilon=SMOOTHING)
        loss = paddle.nn.functional.cross_entropy(logits, smooth, soft_label=True)
        training = build.minimize(loss, config, SCHEDULE, plan=build.Plan(device="cpu", strategy=strategy.parse(knobs)))
    updates = [len(op.input("Param")) for op in main.global_block().ops if op.type == "lars_momentum"]
    assert updates == ([] if config.kind == "sgd" else [3] if knobs else [1, 1, 1])

    rng = np.random.default_rng(1)
    weights = {
        "fc.w": rng.normal(size=(COLUMNS, CLASSES)),
        "fc.b": rng.normal(size=CLASSES),
        "scale.bn.w": rng.uniform(0.5, 1.5, COLUMNS),
    }
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    run = programs.Run(training)
    for name, value in weights.items():
        run[name] = value.astype("float32")
    for step in range(STEPS):
        features, labels = rng.normal(size=(ROWS, COLUMNS)), rng.integers(0, CLASSES, ROWS)
        actual = run.step({"x": features.astype("float32"), "y": labels[:, None]})
        expected = reference_step(weights, velocity, features, labels, config, SCHEDULE(step))
        assert actual == pytest.approx(expected, rel=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(run[name], value, rtol=2e-5, atol=1e-6)


def test_lars_of_resnet50_takes_at_most_four_operators() -> None:
    recipe = replace(programs.RECIPE, optimizer=programs.LARS)
    job = {"name": "amp_o2", "device": "gpu", "ranks": 8, "knobs": "merged_lars=1"}
    built = programs.build(**job, recipe=recipe, stages=model.STAGES)
    updates = [op for op in built.main.global_block().ops if op.type == "lars_momentum"]
    assert sorted(len(op.input("Param")) for op in updates) == [53, 53, 55]  # their decays are proved as it is built


def test_a_warm_up_as_long_as_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="warm-up of 9 steps in a schedule of 9"):
        Schedule(kind="cosine", base=0.4, warmup_steps=9, total_steps=9)
