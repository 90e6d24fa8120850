"""From gradients to updates: a fixed loss scale taken off, LARS by fewer operators, gradient merge."""

import math
from typing import Any

from paddle import static

from program import ops
from program.passes.edit import Step, insert, insert_all, remove, rewrite


def scale_loss(main: static.Program, scale: float) -> None:
    """Lets the gradients start at `scale` times their value, and the update take it off: attributes, no operator.

    Must run before updates are merged.
    """
    for op in main.global_block().ops:
        if op.attr("op_role") == ops.BACKWARD | ops.LOSS and op.type == "fill_constant":
            op.desc._set_float32_attr("value", scale)
        elif op.type in ops.ALL_UPDATES:
            op.desc._set_float32_attr("rescale_grad", 1.0 / scale)


MERGED_LARS = 59  # parameters of one operator: Paddle's kernel refuses 60
_LARS_INPUTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam")
_LARS_OUTPUTS = ("ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")


def merge_lars(main: static.Program) -> None:
    """Updates by LARS of one type as one operator for up to MERGED_LARS parameters.

    Paddle's kernel takes lists and computes each parameter by itself.
    """
    block = main.global_block()
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            key = (block.var(op.input("Param")[0]).dtype, *(op.attr(name) for name in _LARS_SHARED))
            groups.setdefault(key, []).append(op)
    merged: dict[Any, list[Step]] = {}  # operator -> what comes in its place
    for alike in groups.values():
        parts = math.ceil(len(alike) / MERGED_LARS)
        for together in (alike[part::parts] for part in range(parts)):
            if len(together) == 1:
                continue
            inputs, outputs = (
                {slot: [name for op in together for name in ops.operands(op, slot)] for slot in of}
                for of in (_LARS_INPUTS, _LARS_OUTPUTS)
            )
            attrs: dict[str, Any] = {name: together[0].attr(name) for name in _LARS_SHARED}
            attrs["lars_weight_decay"] = [decay for op in together for decay in op.attr("lars_weight_decay")]
            merged |= {op: [] for op in together} | {together[-1]: [("lars_momentum", inputs, outputs, attrs)]}
    rewrite(main, merged.get)


TRANSPORT = ("c_allreduce_sum", "c_sync_calc_stream", "c_sync_comm_stream")  # what fleet adds to carry gradients


def merge_gradients(main: static.Program, startup: static.Program, *, steps: int) -> static.Program:
    """Makes `main` the last of `steps` micro-steps of one update; returns the program of those before it.

    A micro-step adds each gradient to its accumulator, of the gradient's own type. The last one adds the accumulators
    to its own gradients before anything reads them, and clears them, so all-reduce, loss scaling and optimizer are as
    without it. The loss's gradient is divided by `steps`. Must run before the buckets are made.
    """
    block, begin = main.global_block(), startup.global_block()
    gradients = ops.parameters_by_gradient(block)
    start = next(i for i, op in enumerate(block.ops) if op.attr("op_role") == ops.BACKWARD | ops.LOSS)
    loss = block.ops[start].output("Out")
    insert(block, start + 1, "scale", {"X": loss}, {"Out": loss}, scale=1.0 / steps, op_role=ops.BACKWARD)
    made = {
        name: max(i for i in places if not ops.is_optimizer(block.ops[i]) and block.ops[i].type not in TRANSPORT)
        for name, places in ops.writers(block).items()
        if name in gradients
    }
    for name, at in sorted(made.items(), key=lambda entry: -entry[1]):
        shape, dtype = block.var(gradients[name]).shape, block.var(name).dtype
        total = f"{name}{ops.MERGED}"
        for owner in (block, begin):
            owner.create_var(name=total, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
        zero = {"shape": list(shape), "dtype": dtype, "value": 0.0}
        insert(begin, len(begin.ops), "fill_constant", {}, {"Out": [total]}, **zero)
        steps_of_one: list[Step] = [
            ("elementwise_add", {"X": [name], "Y": [total]}, {"Out": [name]}, {"axis": -1}),
            ("fill_constant", {}, {"Out": [total]}, zero),
        ]
        insert_all(block, at + 1, steps_of_one, op_role=ops.BACKWARD)
    begin._sync_with_cpp()
    block._sync_with_cpp()
    micro = main.clone()
    remove(micro, lambda op: ops.is_optimizer(op) or ops.is_clear(op) or op.type in TRANSPORT)
    for op in micro.global_block().ops:
        if ops.is_merge(op):
            op.desc.set_output("Out", op.input("Y"))
    micro.global_block()._sync_with_cpp()
    return micro
