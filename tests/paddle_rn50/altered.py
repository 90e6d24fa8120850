"""A rank of a job in which one thing is altered: `python altered.py CHANGE`, for the golden losses' controls and proof.

`rounding` moves every input pixel by one unit in the last place. `bits:N` rounds what each convolution and matrix
product reads, forward and backward, to N bits of mantissa: 11 are those of FP16 and TF32. `half` stores what each
operator leaves in FP16. The others are faults that the test must see.
"""

import functools
import sys
from typing import Any

import numpy as np

from harness import __main__ as rank
from harness import env

CHANGE = sys.argv[1]
job, _ = env.read()
env.export(env.runtime(job))

from harness import loader  # noqa: E402 - Paddle reads the environment when it is loaded
from program import build, optimizers  # noqa: E402
from program.ops import BACKWARD, OPTIMIZE, operands  # noqa: E402
from tests.program import lower  # noqa: E402

STORED = {
    *("conv2d", "batch_norm", "relu", "pool2d", "elementwise_add", "fused_elemwise_add_activation"),
    *("matmul_v2", "mul"),
}
IN_HALF = ("Output", "Y", "Out", "X@GRAD", "Y@GRAD", "Input@GRAD", "Filter@GRAD")


def store_half(block: Any, *, loss_scale: float) -> None:
    """Brings through FP16 what each operator of the half region leaves, and the weights that it reads.

    Gradients go at `loss_scale` times their value: those below FP16's range vanish as on a GPU. What a GPU keeps
    in FP32 stays: statistics, gradients of scale and bias, the loss, the master weights.
    """
    for index, op in reversed(list(enumerate(block.ops))):
        role = op.attr("op_role")
        if op.type.removesuffix("_grad") not in STORED or role & OPTIMIZE:
            continue
        scale = np.float32(loss_scale if role & BACKWARD else 1)
        for name in operands(op, *(slot for slot in op.output_names if slot in IN_HALF)):
            lower.round_one(block, index + 1, name, functools.partial(in_half, scale=scale), role)
        for name in set(op.input_arg_names):
            if name.endswith(("conv.w", "fc.w")):  # FP32 here; there FP16 copies of the masters
                near = block.create_var(name=f"{name}.{index}.half", shape=block.var(name).shape, dtype="float32").name
                op.desc._rename_input(name, near)
                lower.round_one(block, index, name, lower.to_half, role, into=near)


def in_half(x: np.ndarray, *, scale: np.float32) -> np.ndarray:
    """To nearest, as a GPU rounds; Paddle's own cast cuts off on a CPU."""
    return lower.to_half(x * scale) / scale


if CHANGE in ("rounding", "reader"):
    to_feed = loader.to_feed

    def changed(output: Any, device_id: int | None, into: Any = None) -> Any:
        fed = to_feed(output, device_id, into)
        if CHANGE == "rounding":
            return np.nextafter(fed, np.float32(np.inf)) if fed.ndim == 4 else fed
        if fed.dtype == np.int64:  # one label in each batch is wrong
            fed[0] = (fed[0] + 1) % 10
        return fed

    loader.to_feed = changed
elif CHANGE == "half" or CHANGE.startswith("bits:"):
    minimize = build.minimize

    def and_round(loss: Any, *args: Any, **kwargs: Any) -> build.TrainingProgram:
        built = minimize(loss, *args, **kwargs)
        if CHANGE == "half":
            store_half(loss.block, loss_scale=128.0)  # that of tools/acceptance/machine.py
        else:
            bits = int(CHANGE.removeprefix("bits:"))
            lower.round_products(loss.block, functools.partial(lower.to_bits, bits=bits))
        loss.block._sync_with_cpp()
        return built

    build.minimize = and_round
elif CHANGE == "gradient":  # the all-reduce is lost: every rank follows its own gradient
    build.NCCL_ONLY = (*build.NCCL_ONLY, "c_allreduce_sum")  # type: ignore[assignment]  # one more, on purpose
elif CHANGE == "schedule":  # the warm-up starts one step late
    rate = optimizers.Schedule.__call__

    def late(self: optimizers.Schedule, step: int) -> float:
        return rate(self, max(0, step - 1))

    optimizers.Schedule.__call__ = late  # type: ignore[method-assign]  # a fault, on purpose
else:
    raise SystemExit(f"no such change: {CHANGE}")

sys.exit(rank.main())
