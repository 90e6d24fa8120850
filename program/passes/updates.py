"""From gradients to updates: a fixed loss scale taken off, LARS by fewer operators, gradient merge."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Slots, Step, insert, insert_after, remove, rewrite


def scale_loss(main: static.Program, scale: float) -> None:
    """Multiply all gradients by a fixed loss scale, and have the optimizer's update divide them by it again.

    Only attributes of existing operators are changed: the value at which the loss's gradient starts, and `rescale_grad`
    of the update operators. Must run before updates are merged.
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

    Updates with equal attributes, of parameters of one data type, are split evenly among as few operators as possible:
    118 updates become 2 operators of 59 parameters. A single update is left alone.

    A merged operator stands at the place of the last update that it replaces, because only then all its gradients are
    computed. The values stay the same, because Paddle's kernel computes each parameter by itself.
    """
    substitutes: dict[Operator, list[Step]] = {}  # replaced operator: what takes its place
    for group in _mergeable_lars(main.global_block()):
        merged_count = math.ceil(len(group) / MOST_MERGED_LARS)
        for start in range(merged_count):
            updates = group[start::merged_count]  # dealt out like cards: sizes differ by 1 at most
            if len(updates) == 1:
                continue
            # The merged operator takes the place of the last update, because only there all its gradients are computed.
            for op in updates[:-1]:
                substitutes[op] = []  # removed
            substitutes[updates[-1]] = [_merged_lars(updates)]
    rewrite(main, substitutes.get)  # an operator without a substitute stays


def _mergeable_lars(block: Block) -> list[list[Operator]]:
    """Group the LARS updates by the data type of their parameters and by their attributes."""
    groups: dict[Hashable, list[Operator]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            shared = tuple(op.attr(name) for name in _LARS_SHARED)
            key = (block.var(op.input("Param")[0]).dtype, shared)
            groups.setdefault(key, []).append(op)
    return list(groups.values())


def _merged_lars(updates: list[Operator]) -> Step:
    """Return the LARS operator that does all these updates. They must be of one group of `_mergeable_lars`."""
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
    """Set up gradient accumulation: split an update into `steps` micro-steps, each on a part of the batch.

    Changes `main` into the last micro-step. Returns the program of the other micro-steps, to be run `steps` - 1 times
    before `main`.

        returned program:  compute gradients, accumulator += gradient
        main:              compute gradients, gradient += accumulator, accumulator = 0, all-reduce, update

    The gradient of the loss is divided by `steps` in both programs, so that the sum of the parts is a mean. `startup`
    is changed to create the accumulators as zeros. Run this before gradients are put into buckets.
    """
    block = main.global_block()
    _divide_loss_gradient(block, steps)
    _add_and_clear_accumulators(block)
    _create_accumulators(block, startup.global_block())
    block._sync_with_cpp()
    return _accumulating_copy(main)  # made last: it repeats what `main` computes, and leaves out what only `main` does


def _divide_loss_gradient(block: Block, steps: int) -> None:
    """Divide the gradient of the loss by `steps`, so that the sum of the parts is a mean."""
    start_of_backward = block.ops[ops.loss_gradient_index(block)]
    loss_gradient = start_of_backward.output("Out")
    divide = Step("scale", {"X": loss_gradient}, {"Out": loss_gradient}, {"scale": 1.0 / steps})
    insert_after(block, start_of_backward, [divide], op_role=ops.BACKWARD)


def _accumulator_of(gradient: str) -> str:
    """Return the name of the variable in which the gradients of earlier micro-steps are summed."""
    return f"{gradient}{ops.MERGED}"


def _add_and_clear_accumulators(block: Block) -> None:
    """Have a training program add to each gradient its accumulator, and set the accumulator to zero.

    Both operators follow the one that completes the gradient, so that the all-reduce and the update read the sum.
    """
    parameters = ops.parameters_by_gradient(block)
    last_writers = {name: block.ops[index] for name, index in ops.completed_at(block, parameters).items()}
    for gradient, last_writer in last_writers.items():
        accumulator = _accumulator_of(gradient)
        shape = block.var(parameters[gradient]).shape
        zeros = _zeros(shape, block.var(gradient).dtype)
        add = Step("elementwise_add", {"X": [gradient], "Y": [accumulator]}, {"Out": [gradient]}, {"axis": -1})
        clear = Step("fill_constant", {}, {"Out": [accumulator]}, zeros)
        insert_after(block, last_writer, [add, clear], op_role=ops.BACKWARD)


def _create_accumulators(block: Block, startup: Block) -> None:
    """Declare the accumulator of each gradient in the training and the start-up program, which fills it with zeros."""
    for gradient, parameter in ops.parameters_by_gradient(block).items():
        accumulator = _accumulator_of(gradient)
        shape = block.var(parameter).shape
        dtype = block.var(gradient).dtype
        for owner in (block, startup):
            owner.create_var(name=accumulator, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
        insert(startup, len(startup.ops), "fill_constant", {}, {"Out": [accumulator]}, **_zeros(shape, dtype))
    startup._sync_with_cpp()


def _zeros(shape: Sequence[int], dtype: Any) -> dict[str, Any]:
    """Return the attributes with which `fill_constant` makes a tensor of zeros. `dtype` is Paddle's."""
    return {"shape": list(shape), "dtype": dtype, "value": 0.0}


def _accumulating_copy(main: static.Program) -> static.Program:
    """Return the program of all micro-steps but the last, made from a copy of the last micro-step's program `main`.

    For each gradient `main` computes gradient += accumulator and accumulator = 0, and then all-reduces and updates. The
    copy only computes accumulator += gradient.
    """
    micro_step = main.clone()
    remove(micro_step, _is_only_in_last_micro_step)
    block = micro_step.global_block()
    for op in block.ops:
        if ops.is_merge(op):  # Out = X + Y, where X is the gradient and Y the accumulator
            accumulator = op.input("Y")
            op.desc.set_output("Out", accumulator)  # in `main`, Out is the gradient
    block._sync_with_cpp()
    return micro_step


def _is_only_in_last_micro_step(op: Operator) -> bool:
    """Tell whether an operator updates parameters, clears an accumulator, or carries gradients between ranks."""
    return ops.is_optimizer(op) or ops.is_clear(op) or op.type in ops.TRANSPORT
