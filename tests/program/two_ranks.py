"""A rank of test_ranks.py: `two_ranks.py statistics`, `two_ranks.py null_gpu` or `two_ranks.py merge`.

An assertion that fails ends the job.
"""

import sys

import numpy as np

from harness import env

job, _ = env.read()
env.export(env.runtime(job))

import paddle  # noqa: E402 - reads the environment when it is loaded
from paddle import static  # noqa: E402
from paddle.nn.initializer import Assign  # noqa: E402

from harness import ranks, state  # noqa: E402
from program import build, strategy  # noqa: E402
from program.optimizers import OptimizerConfig, Schedule  # noqa: E402
from program.passes import sync_bn  # noqa: E402
from tests.program import programs  # noqa: E402

JOINED, STEPS, RATE, CLASSES = 4, 3, 1e-3, 16
STATE = ("c.w", "d.w", "a.bn.w", "a.bn.b", "a.bn.mean", "a.bn.variance")


def minimize(loss: static.Variable, knobs: str, *, rate: float, decay: float = 0.0) -> build.TrainingProgram:
    """The training program of a loss, by a rate that stays."""
    optimizer = OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=decay)
    schedule = Schedule(kind="piecewise", base=rate, warmup_steps=0, total_steps=99)
    return build.minimize(
        loss, optimizer, schedule, plan=build.Plan(device=job.cluster.device, strategy=strategy.parse(knobs))
    )


def normalized(batch: int) -> static.Variable:
    """A loss of two convolutions with a normalization between them."""
    rng = np.random.default_rng(1)
    first, second = (
        {"param_attr": paddle.ParamAttr(name=name, initializer=Assign(weights.astype(np.float32))), "bias_attr": False}
        for name, weights in (("c.w", rng.standard_normal((4, 3, 3, 3))), ("d.w", rng.standard_normal((2, 4, 3, 3))))
    )
    x = static.nn.conv2d(static.data("x", [batch, 3, 8, 8], "float32"), 4, 3, **first)
    x = static.nn.batch_norm(
        x,
        act="relu",
        param_attr=paddle.ParamAttr(name="a.bn.w"),
        bias_attr=paddle.ParamAttr(name="a.bn.b"),
        moving_mean_name="a.bn.mean",
        moving_variance_name="a.bn.variance",
    )
    x = static.nn.conv2d(x, 2, 3, **second)
    return paddle.mean(x * x)


def trained(*, spans: bool) -> dict[str, np.ndarray]:
    """State after some steps, on this rank's half with `spans`, else on the joined batch by Paddle's own operators."""
    batch = JOINED // me.size if spans else JOINED
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        loss = normalized(batch)
        if spans:
            sync_bn.span_ranks(main)
            minimize(loss, "fuse_elewise_add_act_ops=0", rate=RATE)
        else:
            paddle.optimizer.Momentum(RATE, 0.9).minimize(loss)
    assert not any(op.type.startswith("sync_batch_norm") for op in main.global_block().ops)
    joined = np.random.default_rng(0).standard_normal((JOINED, 3, 8, 8)).astype(np.float32) * 3 + 1
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        for _ in range(STEPS):
            first = me.rank * batch if spans else 0
            executor.run(main, feed={"x": joined[first : first + batch]})
        return {name: np.array(static.global_scope().find_var(name).get_tensor()) for name in STATE}


def statistics() -> str:
    """Normalization over both ranks beside the joined batch on one."""
    over_ranks, of_joined = trained(spans=True), trained(spans=False)
    for name in STATE:
        np.testing.assert_allclose(over_ranks[name], of_joined[name], rtol=1e-5, atol=1e-5, err_msg=name)
    return f"rank {me.rank} agrees"


def null_gpu() -> str:
    """Some steps of normalizations over both ranks on null GPUs, under tests/null_gpu/run.sh."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3, 8, 8], "float32")
        for _ in range(4):
            x = static.nn.batch_norm(static.nn.conv2d(x, 4, 3, padding=1, bias_attr=False), act="relu")
        loss = paddle.mean(x * x)
        sync_bn.span_ranks(main)
        try:
            training = minimize(loss, "fuse_grad_size_in_MB=0.001", rate=0.1, decay=1e-4)
        except ValueError as refused:
            sys.exit(f"error: {refused}")
    executor = static.Executor(paddle.CUDAPlace(me.local_rank))
    executor.run(startup)
    for _ in range(STEPS):
        training.schedule.send(executor.place)
        executor.run(main, feed={"x": np.zeros([2, 3, 8, 8], np.float32)}, fetch_list=[])
        training.schedule.step()
    return "\n".join(training.verified)


def unnormalized(batch: int) -> static.Variable:
    """A loss of a convolution and ten layers, with batch norm's place left empty."""
    x = static.data("x", [batch, 3, 8, 8], "float32")
    y = static.data("y", [batch, 1], "int64")
    x = paddle.flatten(paddle.nn.functional.relu(static.nn.conv2d(x, 8, 3)), 1)
    for _ in range(10):
        x = static.nn.fc(x, CLASSES, activation="relu")
    return paddle.nn.functional.cross_entropy(x, y)


def losses(knobs: str, *, batch: int = 8) -> np.ndarray:
    """Mean loss over the ranks at each of ten steps, from rank 0's first weights."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = 7
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        training = minimize(unnormalized(batch // strategy.parse(knobs).gradient_merge), knobs, rate=0.05, decay=1e-4)
    run, rng, found = programs.Run(training), np.random.default_rng(me.rank), []
    with static.scope_guard(run.scope):
        state.broadcast_parameters(main, me)
    for _ in range(10):
        x = rng.standard_normal((batch, 3, 8, 8), dtype=np.float32)
        loss = run.step({"x": x, "y": rng.integers(0, CLASSES, (batch, 1))})
        found.append(me.comm.allreduce(float(loss)) / me.size)
    return np.array(found)


def merge() -> str:
    """Gradient merge against the large batch."""
    whole = losses("")
    assert whole[-1] < whole[0] - 1e-3, "nothing is learnt"
    for parts in (2, 4, 8):
        knobs = f"gradient_merge={parts}"
        np.testing.assert_allclose(losses(knobs), whole, rtol=1e-5, atol=0, err_msg=knobs)
    return f"rank {me.rank} agrees"


me = ranks.start(job.cluster)
ranks.connect(job.cluster, me)
paddle.enable_static()
print({"statistics": statistics, "null_gpu": null_gpu, "merge": merge}[sys.argv[1]](), flush=True)
