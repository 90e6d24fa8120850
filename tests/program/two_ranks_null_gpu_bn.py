"""A rank of test_sync_bn.py on a null GPU: some steps of a network whose batch normalizations span the ranks.

`python two_ranks_null_gpu_bn.py` under tests/null_gpu/run.sh.
"""

from __future__ import annotations

import sys

import numpy as np

from harness import env

job, _ = env.read()
env.export(env.runtime(job))

import paddle  # noqa: E402 - reads the environment when it is loaded
from paddle import static  # noqa: E402

from harness import ranks  # noqa: E402
from program import build  # noqa: E402
from program.optimizers import OptimizerConfig  # noqa: E402
from program.passes import sync_bn  # noqa: E402
from program.schedules import Schedule  # noqa: E402
from program.strategy import Strategy  # noqa: E402

STEPS, NORMALIZATIONS = 3, 4


def network() -> static.Variable:
    x = static.data("x", [2, 3, 8, 8], "float32")
    for _ in range(NORMALIZATIONS):
        x = static.nn.batch_norm(static.nn.conv2d(x, 4, 3, padding=1, bias_attr=False), act="relu")
    return paddle.mean(x * x)


me = ranks.start(job)
ranks.connect(job, me)
paddle.enable_static()
main, startup = static.Program(), static.Program()
try:
    with static.program_guard(main, startup):
        loss = network()
        sync_bn.span_ranks(main)
        training = build.minimize(
            loss,
            OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4),
            Schedule(kind="polynomial", base=0.1, end=0.1, warmup_steps=0, total_steps=9),
            plan=build.Plan(device="gpu", strategy=Strategy(fuse_grad_size_in_MB=0.001)),
        )
except ValueError as refused:
    sys.exit(f"error: {refused}")
executor = static.Executor(paddle.CUDAPlace(me.local_rank))
executor.run(startup)
for _ in range(STEPS):
    training.schedule.send(executor.place)
    executor.run(main, feed={"x": np.zeros([2, 3, 8, 8], np.float32)}, fetch_list=[])
    training.schedule.step()
print("\n".join(training.verified))
