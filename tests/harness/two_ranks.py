"""A rank of test_distributed.py: trains a small network two steps and checks what the ranks hold after each.

`python two_ranks.py` on two ranks; an assertion that fails ends the job.
"""

from __future__ import annotations

import math

import numpy as np

from harness import env

job, _ = env.read()
env.export(env.runtime(job))

import paddle  # noqa: E402 - reads the environment when it is loaded
from paddle import static  # noqa: E402

from harness import ranks, state  # noqa: E402
from program import build  # noqa: E402
from program.optimizers import OptimizerConfig, Schedule  # noqa: E402

BATCH, RATE = 4, 0.5
SCHEDULE = Schedule(kind="piecewise", base=RATE, warmup_steps=0, total_steps=9)
PLAIN = OptimizerConfig(kind="sgd", momentum=0.0, weight_decay=0.0)


def network(batch: int) -> static.Variable:
    """A convolution, ten small layers and a loss; no BN, so that a gradient of two halves is that of the whole."""
    x = static.data("x", [batch, 3, 8, 8], "float32")
    y = static.data("y", [batch, 1], "int64")
    x = static.nn.conv2d(x, 8, 3, param_attr=paddle.ParamAttr(name="c.w"), bias_attr=paddle.ParamAttr(name="c.b"))
    x = paddle.flatten(paddle.nn.functional.relu(x), 1)
    for i in range(10):  # enough gradients that fleet's fusion makes several all-reduces
        x = static.nn.fc(
            x,
            16,
            activation="relu",
            weight_attr=paddle.ParamAttr(name=f"f{i}.w"),
            bias_attr=paddle.ParamAttr(name=f"f{i}.b"),
        )
    return paddle.nn.functional.cross_entropy(x, y)


def weights(main: static.Program) -> dict[str, np.ndarray]:
    scope = static.global_scope()
    return {p.name: np.array(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()}


me = ranks.start(job)
ranks.connect(job, me)
paddle.enable_static()
main, startup = static.Program(), static.Program()
startup.random_seed = 100 + me.rank
with static.program_guard(main, startup):
    loss = network(BATCH)
    training = build.minimize(loss, PLAIN, SCHEDULE, plan=build.Plan(device="cpu"))
executor = static.Executor(paddle.CPUPlace())
executor.run(startup)

# Initial weights differ by their seeds, and are equal because they are broadcast.
drawn = me.gather(weights(main))
assert any(not np.array_equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
state.broadcast_parameters(main, me)
for held in me.gather(weights(main)):
    assert all(np.array_equal(held[name], drawn[0][name]) for name in held)

# One process computes the gradient of both ranks' samples at the same weights.
joined, joined_startup = static.Program(), static.Program()
with static.program_guard(joined, joined_startup):
    joined_loss = network(BATCH * me.size)
    gradients = {p.name: g for p, g in static.append_backward(joined_loss)}

rng = np.random.default_rng(0)
for step in range(2):
    x = rng.standard_normal((me.size, BATCH, 3, 8, 8), dtype=np.float32)
    y = rng.integers(0, 16, (me.size, BATCH, 1))
    before = weights(main)
    both = {"x": x.reshape(-1, 3, 8, 8), "y": y.reshape(-1, 1)}
    expected = dict(zip(gradients, executor.run(joined, feed=both, fetch_list=list(gradients.values())), strict=True))
    executor.run(main, feed={"x": x[me.rank], "y": y[me.rank]}, fetch_list=[])
    after = weights(main)
    for held in me.gather(after):
        assert all(np.array_equal(held[name], after[name]) for name in after), f"ranks differ after step {step}"
    for name, gradient in expected.items():
        applied = (before[name] - after[name]) / RATE
        np.testing.assert_allclose(applied, gradient, rtol=1e-3, atol=3e-6, err_msg=f"{name} at step {step}")

# Each rank's BN statistics follow its own samples; before an evaluation all take their mean.
normalized, normalized_startup = static.Program(), static.Program()
with static.program_guard(normalized, normalized_startup):
    static.nn.batch_norm(static.data("x", [BATCH, 3, 8, 8], "float32"), momentum=0.5)
executor.run(normalized_startup)
executor.run(normalized, feed={"x": x[me.rank] * (1 + me.rank)}, fetch_list=[])
names = state.own_names(normalized)
assert len(names) == 2


def statistics() -> dict[str, np.ndarray]:
    return {name: np.array(tensor) for name, tensor in state.tensors(normalized) if name in names}


own = me.gather(statistics())
state.average_statistics(normalized, me)
for name, value in statistics().items():
    assert not np.allclose(own[0][name], own[1][name])
    np.testing.assert_allclose(value, (own[0][name] + own[1][name]) / 2, rtol=1e-6)
counts = build.summary(training)
assert counts["all_reduces"] >= 1
gradients = sum(math.prod(parameter.shape) for parameter in main.all_parameters() if parameter.trainable)
assert counts["all_reduce_mib"] == gradients * 4 / 2**20
print(f"rank {me.rank} agrees", flush=True)
