"""A rank of test_strategy_losses.py: gradient merge against the large batch, on a network without batch norm.

`python two_ranks_merge.py` on two ranks; an assertion that fails ends the job.
"""

from __future__ import annotations

import numpy as np

from harness import env

job, _ = env.read()
env.export(env.runtime(job))

import paddle  # noqa: E402 - reads the environment when it is loaded
from paddle import static  # noqa: E402

from harness import loop, ranks, state  # noqa: E402
from program import build, strategy  # noqa: E402
from program.optimizers import OptimizerConfig  # noqa: E402
from program.schedules import Schedule  # noqa: E402

BATCH, STEPS, CLASSES = 8, 10, 16
SCHEDULE = Schedule(kind="piecewise", base=0.05, warmup_steps=0, total_steps=99)
SGD = OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4)


def network(batch: int) -> static.Variable:
    """A convolution, ten layers and a loss, with batch norm's place left empty."""
    x = static.data("x", [batch, 3, 8, 8], "float32")
    y = static.data("y", [batch, 1], "int64")
    x = static.nn.conv2d(x, 8, 3, param_attr=paddle.ParamAttr(name="c.w"), bias_attr=paddle.ParamAttr(name="c.b"))
    x = paddle.flatten(paddle.nn.functional.relu(x), 1)
    for i in range(10):
        names = {"weight_attr": paddle.ParamAttr(name=f"f{i}.w"), "bias_attr": paddle.ParamAttr(name=f"f{i}.b")}
        x = static.nn.fc(x, CLASSES, activation="relu", **names)
    return paddle.nn.functional.cross_entropy(x, y)


def losses(knobs: str) -> list[float]:
    """Mean loss over the ranks at each step, from rank 0's first weights."""
    plan = build.Plan(device="cpu", strategy=strategy.parse(knobs))
    main, startup = static.Program(), static.Program()
    startup.random_seed = 7
    with static.program_guard(main, startup), static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        loss = network(plan.micro_batch(BATCH))
        training = build.minimize(loss, SGD, SCHEDULE, plan=plan)
        executor = static.Executor(paddle.CPUPlace())
        executor.run(startup)
        state.broadcast_parameters(main, me)
        rng, found = np.random.default_rng(me.rank), []
        update = training.update
        for _ in range(STEPS):
            x = rng.standard_normal((BATCH, 3, 8, 8), dtype=np.float32)
            feeds = loop.parts({"x": x, "y": rng.integers(0, CLASSES, (BATCH, 1))}, len(update))
            training.schedule.send(executor.place)
            out = [
                executor.run(p, feed=feed, fetch_list=[training.loss.name])
                for p, feed in zip(update, feeds, strict=True)
            ]
            found.append(me.mean(float(np.mean(out))))
            training.schedule.step()
    return found


me = ranks.start(job)
ranks.connect(job, me)
paddle.enable_static()
whole = np.array(losses(""))
assert whole[-1] < whole[0] - 1e-3, "nothing is learnt"
for parts in (2, 4, 8):
    merged = np.array(losses(f"gradient_merge={parts}"))
    np.testing.assert_allclose(merged, whole, rtol=1e-5, atol=0, err_msg=f"gradient_merge={parts}")
print(f"rank {me.rank} agrees", flush=True)
