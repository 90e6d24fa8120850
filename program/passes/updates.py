"""From gradients to updates: a fixed loss scale taken off, LARS by fewer operators, gradient merge."""

import math
from collections.abc import Hashable
from typing import Any

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Slots, Step, insert, insert_all, remove, rewrite


def scale_loss(main: static.Program, scale: float) -> None:
    """Let the gradients start at `scale` times their value, and the optimizer's update divide them by it again.

    Attributes of existing operators are changed, and none is added. Must run before updates are merged.
    """
    for op in main.global_block().ops:
        if op.attr("op_role") == ops.BACKWARD | ops.LOSS and op.type == "fill_constant":
            op.desc._set_float32_attr("value", scale)
        elif op.type in ops.ALL_UPDATES:
            op.desc._set_float32_attr("rescale_grad", 1.0 / scale)


# ---- LARS by fewer operators

MOST_MERGED_LARS = 59  # parameters of one operator: Paddle's kernel refuses 60
_LARS_INPUTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam")
_LARS_OUTPUTS = ("ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")  # attributes of all parameters


def merge_lars(main: static.Program) -> None:
    """Replace LARS updates of one parameter each by operators that update up to MOST_MERGED_LARS parameters each.

    Updates of parameters of one type, with equal attributes, are dealt out evenly to as few operators as they need. An
    update that no other can join stays as it is. Paddle's kernel takes lists and computes each parameter by itself, so
    the values stay the same. A merged operator stands where the last one that it replaces stood: all its gradients are
    there by then.
    """
    substitutes: dict[Operator, list[Step]] = {}  # by replaced operator: what takes its place
    for group in _mergeable_lars(main.global_block()):
        merged_count = math.ceil(len(group) / MOST_MERGED_LARS)
        for first in range(merged_count):
            updates = group[first::merged_count]  # dealt out like cards
            if len(updates) == 1:
                continue
            for op in updates[:-1]:
                substitutes[op] = []  # removed
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

    Each micro-step computes the gradients of a part of the batch. All but the last add them to accumulators, one for
    each gradient. The last adds the accumulators to its own gradients, sets them back to zero, and then sums over the
    ranks and updates the parameters as without micro-steps. The gradient of the loss is divided by `steps`, so that the
    sum of the parts is a mean.

    The start-up program is changed to create the accumulators as zeros. Run this before gradients are put into buckets.
    """
    block = main.global_block()
    start = ops.loss_gradient_index(block)
    loss_gradient = block.ops[start].output("Out")
    divided = {"scale": 1.0 / steps, "op_role": ops.BACKWARD}
    insert(block, start + 1, "scale", {"X": loss_gradient}, {"Out": loss_gradient}, **divided)

    _add_accumulators(block, startup.global_block())
    block._sync_with_cpp()
    return _accumulating_copy(main)


def _add_accumulators(block: Block, startup: Block) -> None:
    """Have a training program add an accumulator to each parameter's gradient, and set the accumulator back to zero.

    Both operators are inserted behind the one that completes the gradient. The accumulator is called after its
    gradient, with `ops.MERGED` at the end, and has its type. It is declared in both programs, and `startup` fills it
    with zeros.
    """
    parameters = ops.parameters_by_gradient(block)
    completed_at = ops.completed_at(block, parameters)
    # The gradient that is completed last comes first: an insertion leaves the indices before it as they are.
    for gradient in sorted(completed_at, key=lambda name: -completed_at[name]):
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


def _accumulating_copy(main: static.Program) -> static.Program:
    """Return a copy of the last micro-step's program that only adds each gradient to its accumulator.

    It has neither the update nor the all-reduces, and does not clear the accumulators.
    """
    micro = main.clone()
    remove(micro, lambda op: ops.is_optimizer(op) or ops.is_clear(op) or op.type in ops.TRANSPORT)
    block = micro.global_block()
    for op in block.ops:
        if ops.is_merge(op):
            op.desc.set_output("Out", op.input("Y"))  # the sum goes to the accumulator, not to the gradient
    block._sync_with_cpp()
    return micro
