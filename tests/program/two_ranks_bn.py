"""A rank of test_sync_bn.py: a network with batch normalization over two ranks, beside the joined batch on one.

`python two_ranks_bn.py` on two ranks; an assertion that fails ends the job.
"""

from __future__ import annotations

import numpy as np

from harness import env

job, _ = env.read()
env.export(env.runtime(job))

import paddle  # noqa: E402 - reads the environment when it is loaded
from paddle import static  # noqa: E402
from paddle.nn.initializer import Assign  # noqa: E402

from harness import ranks  # noqa: E402
from program import build  # noqa: E402
from program.optimizers import OptimizerConfig  # noqa: E402
from program.passes import sync_bn  # noqa: E402
from program.schedules import Schedule  # noqa: E402
from program.strategy import Strategy  # noqa: E402

JOINED, STEPS, RATE, MOMENTUM = 4, 3, 1e-3, 0.9
STATE = ("c.w", "d.w", "a.bn.w", "a.bn.b", "a.bn.mean", "a.bn.variance")


def network(batch: int) -> static.Variable:
    rng = np.random.default_rng(1)
    x = static.data("x", [batch, 3, 8, 8], "float32")
    for name, shape in (("c.w", (4, 3, 3, 3)), ("d.w", (2, 4, 3, 3))):
        weights = Assign(rng.standard_normal(shape).astype(np.float32))
        x = static.nn.conv2d(
            x, shape[0], 3, param_attr=paddle.ParamAttr(name=name, initializer=weights), bias_attr=False
        )
        if name == "c.w":
            x = static.nn.batch_norm(
                x,
                act="relu",
                momentum=MOMENTUM,
                param_attr=paddle.ParamAttr(name="a.bn.w"),
                bias_attr=paddle.ParamAttr(name="a.bn.b"),
                moving_mean_name="a.bn.mean",
                moving_variance_name="a.bn.variance",
            )
    return paddle.mean(x * x)


def trained(*, spans: bool) -> dict[str, np.ndarray]:
    """State after some steps, on this rank's half with `spans`, else on the joined batch by Paddle's own operators."""
    batch = JOINED // me.size if spans else JOINED
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        loss = network(batch)
        if spans:
            sync_bn.span_ranks(main)
            schedule = Schedule(kind="polynomial", base=RATE, end=RATE, warmup_steps=0, total_steps=9)
            build.minimize(
                loss,
                OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.0),
                schedule,
                plan=build.Plan(device="cpu", strategy=Strategy(fuse_elewise_add_act_ops=False)),
            )
        else:
            paddle.optimizer.Momentum(RATE, 0.9).minimize(loss)
    kinds = [op.type for op in main.global_block().ops]
    assert not any(kind.startswith("sync_batch_norm") for kind in kinds)
    joined = np.random.default_rng(0).standard_normal((JOINED, 3, 8, 8)).astype(np.float32) * 3 + 1
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        for _ in range(STEPS):
            first = me.rank * batch if spans else 0
            executor.run(main, feed={"x": joined[first : first + batch]})
        return {name: np.array(static.global_scope().find_var(name).get_tensor()) for name in STATE}


me = ranks.start(job)
ranks.connect(job, me)
paddle.enable_static()
over_ranks, of_joined = trained(spans=True), trained(spans=False)
for name in STATE:
    np.testing.assert_allclose(over_ranks[name], of_joined[name], rtol=1e-5, atol=1e-5, err_msg=name)
print(f"rank {me.rank} agrees", flush=True)
