"""From gradients to updates: a fixed loss scale taken off, LARS by fewer operators, gradient merge."""

import math
from collections.abc import Hashable
from typing import Any

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Slots, Step, insert, insert_all, remove, rewrite


def scale_loss(main: static.Program, scale: float) -> None:
    """Let the gradients start at `scale` times their value, and the update take it off: attributes, no operator.

    Must run before updates are merged.
    """
    for op in main.global_block().ops:
        if op.attr("op_role") == ops.BACKWARD | ops.LOSS and op.type == "fill_constant":
            op.desc._set_float32_attr("value", scale)
        elif op.type in ops.ALL_UPDATES:
            op.desc._set_float32_attr("rescale_grad", 1.0 / scale)


# ---- LARS by fewer operators

MERGED_LARS = 59  # parameters of one operator: Paddle's kernel refuses 60
_LARS_INPUTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam")
_LARS_OUTPUTS = ("ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")  # attributes of all parameters


def merge_lars(main: static.Program) -> None:
    """Replace the LARS update of each parameter by operators that update up to MERGED_LARS parameters each.

    Parameters of one type and of equal attributes are dealt out evenly to as few operators as they need. Paddle's
    kernel takes lists and computes each parameter by itself, so the values stay the same. A merged operator stands
    where the last one that it replaces stood: all its gradients are there by then.
    """
    substitutes: dict[Operator, list[Step]] = {}  # by operator: what takes its place
    for group in _mergeable_lars(main.global_block()):
        merged_count = math.ceil(len(group) / MERGED_LARS)
        for number in range(merged_count):
            updates = group[number::merged_count]  # every `merged_count`-th
            if len(updates) > 1:
                for op in updates:
                    substitutes[op] = []
                substitutes[updates[-1]] = [_merged_lars(updates)]
    rewrite(main, substitutes.get)


def _mergeable_lars(block: Block) -> list[list[Operator]]:
    """Group the updates by LARS whose parameters have one type and whose attributes agree."""
    groups: dict[Hashable, list[Operator]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            shared = tuple(op.attr(name) for name in _LARS_SHARED)
            key = (block.var(op.input("Param")[0]).dtype, shared)
            groups.setdefault(key, []).append(op)
    return list(groups.values())


def _merged_lars(updates: list[Operator]) -> Step:
    """Join updates by LARS into one operator."""
    attrs: dict[str, Any] = {name: updates[0].attr(name) for name in _LARS_SHARED}
    attrs["lars_weight_decay"] = []
    for op in updates:
        attrs["lars_weight_decay"] += op.attr("lars_weight_decay")
    return Step("lars_momentum", _joined(updates, _LARS_INPUTS), _joined(updates, _LARS_OUTPUTS), attrs)


def _joined(updates: list[Operator], slots: tuple[str, ...]) -> Slots:
    """Concatenate what the operators have in each slot."""
    joined: Slots = {}
    for slot in slots:
        joined[slot] = []
        for op in updates:
            joined[slot] += ops.operands(op, slot)
    return joined


# ---- gradient merge


def merge_gradients(main: static.Program, startup: static.Program, *, steps: int) -> static.Program:
    """Divide an update into `steps` micro-steps: change `main` into the last one, return the program of the others.

    A micro-step adds each gradient to an accumulator of the gradient's own type. The last one adds the accumulators to
    its own gradients before anything reads these, and clears them: all-reduce, loss scaling and optimizer work as
    without micro-steps. The gradient of the loss is divided by `steps`, so that the sum is a mean.

    Run this before gradients are put into buckets. The start-up program creates the accumulators as zeros.
    """
    block = main.global_block()
    start = ops.loss_gradient_index(block)
    loss_gradient = block.ops[start].output("Out")
    scaled = {"scale": 1.0 / steps, "op_role": ops.BACKWARD}
    insert(block, start + 1, "scale", {"X": loss_gradient}, {"Out": loss_gradient}, **scaled)

    _add_accumulators(block, startup.global_block())
    block._sync_with_cpp()
    return _micro_step(main)


def _add_accumulators(block: Block, startup: Block) -> None:
    """Have a training program add an accumulator to each parameter's gradient, and set it back to zero.

    Both operators are inserted behind the one that completes the gradient. The accumulator is called after its
    gradient, with `ops.MERGED` at the end. It is created in both programs, and filled with zeros by `startup`.
    """
    parameters = ops.parameters_by_gradient(block)
    completed_at = ops.completed_at(block, parameters)
    last_first = sorted(completed_at, key=lambda gradient: -completed_at[gradient])
    for gradient in last_first:  # an insertion leaves the indices before it as they are
        accumulator = f"{gradient}{ops.MERGED}"
        shape = block.var(parameters[gradient]).shape
        dtype = block.var(gradient).dtype
        for owner in (block, startup):
            owner.create_var(name=accumulator, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
        zero = {"shape": list(shape), "dtype": dtype, "value": 0.0}
        insert(startup, len(startup.ops), "fill_constant", {}, {"Out": [accumulator]}, **zero)
        add = Step("elementwise_add", {"X": [gradient], "Y": [accumulator]}, {"Out": [gradient]}, {"axis": -1})
        clear = Step("fill_constant", {}, {"Out": [accumulator]}, zero)
        insert_all(block, completed_at[gradient] + 1, [add, clear], op_role=ops.BACKWARD)
    startup._sync_with_cpp()


def _micro_step(main: static.Program) -> static.Program:
    """Copy `main` without update and transport; it adds each gradient to the accumulator, and does not clear it."""
    micro = main.clone()
    remove(micro, lambda op: ops.is_optimizer(op) or ops.is_clear(op) or op.type in ops.TRANSPORT)
    block = micro.global_block()
    for op in block.ops:
        if ops.is_merge(op):
            op.desc.set_output("Out", op.input("Y"))
    block._sync_with_cpp()
    return micro
