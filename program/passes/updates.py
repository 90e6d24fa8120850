"""From gradients to updates: a fixed loss scale taken off, LARS by fewer operators, gradient merge."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Slots, Step, insert, insert_after, remove, rewrite


def scale_loss(main: static.Program, scale: float) -> None:
    """Multiply all gradients by a fixed loss scale, and have the optimizer's update divide the gradients by the scale.

    Only two attributes of operators change: the value with which the gradient of the loss is filled becomes `scale`,
    and `rescale_grad` of each update, a factor on the gradients, becomes 1 / `scale`. Call this before `merge_lars`,
    which takes `rescale_grad` over into the operators that it makes.

    Args:
        main: Training program; changed in place.
        scale: The loss scale, such as 4096.0.

    Raises:
        Refused: The operator of an update has no factor for its gradients, as that of AdamW.
    """
    for op in main.global_block().ops:
        # Paddle marks the start of the backward pass with both bits. It is the `fill_constant` that sets the gradient
        # of the loss.
        has_role_of_start = op.attr("op_role") == (ops.BACKWARD | ops.LOSS)
        starts_gradient_of_loss = has_role_of_start and op.type == "fill_constant"
        if starts_gradient_of_loss:
            op.desc._set_float32_attr("value", scale)  # as C's float, the type of both attributes
        elif op.type in ops.ALL_UPDATES:  # such as "momentum" and "lars_momentum"
            has_factor = op.has_attr("rescale_grad")
            ops.prove(has_factor, f"{op.type} cannot take a fixed loss scale off its gradients: set PRECISION=fp32")
            op.desc._set_float32_attr("rescale_grad", 1.0 / scale)


# ---- LARS by fewer operators

MAX_MERGED_LARS = 59  # parameters of one operator: Paddle's kernel refuses 60
_LARS_INPUTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam")
_LARS_OUTPUTS = ("ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")  # attributes of all parameters


def merge_lars(main: static.Program) -> None:
    """Replace LARS updates of one parameter each by operators that update up to 59 parameters each.

    Only updates with equal data types and attributes are merged; their weight decays may differ. They are split evenly
    among as few operators as possible: 118 updates become 2 operators of 59 parameters (MAX_MERGED_LARS). A merged
    operator stands at the place of the last update that it replaces, where all gradients are computed.

    Args:
        main: Training program; changed in place. Without LARS it stays as it is.
    """
    substitutes: dict[Operator, list[Step]] = {}  # what takes an operator's place; an empty list removes the operator
    for group in _mergeable_lars(main.global_block()):
        for updates in _split_evenly(group):  # at most 59
            if len(updates) > 1:  # a single update stays as it is
                substitutes |= _substitutes_of_merged(updates)  # the last one -> [merged operator], each other -> []
    # `rewrite` calls `get` with each operator. For one that is not in `substitutes`, `get` returns None: it stays.
    rewrite(main, substitutes.get)


def _substitutes_of_merged(updates: list[Operator]) -> dict[Operator, list[Step]]:
    """Return what takes the place of each update: of the last one the operator that does all, of the others nothing.

    The merged operator comes last, because only there all gradients that it reads are computed.

    Args:
        updates: LARS operators of one parameter each, in the program's order, that can be merged.
    """
    substitutes: dict[Operator, list[Step]] = {op: [] for op in updates[:-1]}
    substitutes[updates[-1]] = [_merged_lars(updates)]
    return substitutes


def _split_evenly(group: list[Operator]) -> list[list[Operator]]:
    """Split operators into as few parts of at most 59 as possible, whose sizes differ by 1 at most.

    They are dealt out like cards: with 2 parts, the first one gets the operators 0, 2, 4, ... and the other the rest.
    MAX_MERGED_LARS says why 59.

    Args:
        group: Operators to split; at least one.
    """
    count = math.ceil(len(group) / MAX_MERGED_LARS)
    return [group[first::count] for first in range(count)]


def _mergeable_lars(block: Block) -> list[list[Operator]]:
    """Group the LARS updates of a program by the data type of their parameters and by their attributes.

    Args:
        block: Main block of a training program.

    Returns:
        The operators of each group, which can be merged; empty without LARS.
    """
    groups: dict[Hashable, list[Operator]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            shared = tuple(op.attr(name) for name in _LARS_SHARED)
            key = (block.var(op.input("Param")[0]).dtype, shared)
            groups.setdefault(key, []).append(op)
    return list(groups.values())


def _merged_lars(updates: list[Operator]) -> Step:
    """Return the LARS operator that does all these updates.

    Args:
        updates: LARS operators of parameters of one data type and with equal attributes, but for weight decays.
    """
    attrs: dict[str, Any] = {name: updates[0].attr(name) for name in _LARS_SHARED}
    attrs["lars_weight_decay"] = []
    for op in updates:
        attrs["lars_weight_decay"] += op.attr("lars_weight_decay")
    return Step("lars_momentum", _joined(updates, _LARS_INPUTS), _joined(updates, _LARS_OUTPUTS), attrs)


def _joined(updates: list[Operator], slots: tuple[str, ...]) -> Slots:
    """Return for each slot the names of the variables that all these update operators have there, in one list.

    For updates of fc.w and of fc.b and the slot "Param" it is {"Param": ["fc.w", "fc.b"]}.

    Args:
        updates: Operators that update one parameter each. Their order is that of the names.
        slots: Names of the slots, such as "Param".
    """
    joined: Slots = {}
    for slot in slots:
        joined[slot] = []
        for op in updates:
            joined[slot] += ops.operands(op, slot)
    return joined


# ---- gradient merge


def merge_gradients(main: static.Program, startup: static.Program, *, steps: int) -> static.Program:
    """Set up gradient accumulation: split an update into `steps` micro-steps, each on a part of the batch.

    An update then consists of `steps` - 1 runs of the program that is returned, and a run of `main`:

        returned program:  compute gradients, accumulator += gradient
        main:              compute gradients, gradient += accumulator, accumulator = 0, all-reduce, update

    Run this before gradients are put into buckets.

    Args:
        main: Training program; becomes the last micro-step.
        startup: Its start-up program; gets operators that fill the accumulators with zeros.
        steps: Micro-steps of an update, such as 4. The gradient of the loss is divided by `steps`, so that the sum of
            the gradients of all parts is a mean.

    Returns:
        A new program, for all micro-steps before the last.
    """
    block = main.global_block()
    # 1. What both programs need comes into `main` before `main` is copied.
    _divide_loss_gradient(block, steps)
    _create_accumulators(block, startup.global_block())  # one for each parameter's gradient
    block._sync_with_cpp()  # Paddle's step after insertions: brings its lists in Python and in C++ in line

    # 2. The copy loses the operators of update and all-reduces, and gets: accumulator += gradient.
    accumulating = main.clone()
    remove(accumulating, _updates_or_communicates)
    _add_gradients_to_accumulators(accumulating.global_block())

    # 3. `main` alone gets: gradient += accumulator, accumulator = 0. So this comes after the copy is made.
    _add_accumulators_to_gradients(block)
    return accumulating


def _divide_loss_gradient(block: Block, steps: int) -> None:
    """Divide the gradient of the loss by the number of micro-steps, so that the sum of their gradients is a mean.

    Args:
        block: Main block of a training program; changed in place.
        steps: Number of micro-steps (parts of the batch) of an update.
    """
    start_of_backward = block.ops[ops.loss_gradient_index(block)]
    loss_gradient = start_of_backward.output("Out")
    divide = Step("scale", {"X": loss_gradient}, {"Out": loss_gradient}, {"scale": 1.0 / steps})
    insert_after(block, start_of_backward, [divide], op_role=ops.BACKWARD)


def _accumulator_of(gradient: str) -> str:
    """Return the name of the variable in which the gradients of earlier micro-steps are summed."""
    return f"{gradient}{ops.MERGED}"


def _add_gradients_to_accumulators(block: Block) -> None:
    """Have a program add each gradient to its accumulator, as soon as the gradient is complete.

    Args:
        block: Main block of a program for an earlier micro-step (a part of the batch); changed in place.
    """
    for gradient, last_writer in _last_writers_of_gradients(block).items():
        accumulator = _accumulator_of(gradient)
        insert_after(block, last_writer, [_addition(gradient, accumulator, to=accumulator)], op_role=ops.BACKWARD)
    block._sync_with_cpp()


def _add_accumulators_to_gradients(block: Block) -> None:
    """Insert operators that add to each gradient its accumulator, and then set the accumulator to 0.

        gradient = gradient + accumulator    which holds the sum of the gradients of earlier micro-steps
        accumulator = 0                      for the next update

    They are inserted behind the last operator that computes the gradient, so that all-reduce and update read the sum.

    Args:
        block: Main block of the program for the last micro-step (part of the batch); changed in place.
    """
    for gradient, last_writer in _last_writers_of_gradients(block).items():
        accumulator = _accumulator_of(gradient)  # a name: "fc.w@GRAD" -> "fc.w@GRAD.merged"
        add = _addition(gradient, accumulator, to=gradient)
        clear = _zeroing(accumulator, block)  # a `fill_constant` with 0
        insert_after(block, last_writer, [add, clear], op_role=ops.BACKWARD)
    block._sync_with_cpp()  # Paddle's step after insertions: brings its lists in Python and in C++ in line


def _zeroing(name: str, block: Block) -> Step:
    """Return the operator that sets a variable of a block to zeros."""
    variable = block.var(name)
    return Step("fill_constant", {}, {"Out": [name]}, _zeros(variable.shape, variable.dtype))


def _last_writers_of_gradients(block: Block) -> dict[str, Operator]:
    """Map the gradient of each parameter to the operator that completes it."""
    completed_at = ops.completed_at(block, ops.parameters_by_gradient(block))
    return {gradient: block.ops[index] for gradient, index in completed_at.items()}


def _addition(gradient: str, accumulator: str, *, to: str) -> Step:
    """Return the operator that writes gradient + accumulator to one of the two."""
    return Step("elementwise_add", {"X": [gradient], "Y": [accumulator]}, {"Out": [to]}, {"axis": -1})


def _create_accumulators(block: Block, startup: Block) -> None:
    """Declare the accumulator of each gradient, which sums it over micro-steps, and have it filled with zeros.

    Args:
        block: Main block of the training program; gets the variables. Its `_sync_with_cpp` is left to the caller, who
            has inserted operators into it as well.
        startup: Main block of the start-up program; gets the variables, and operators that fill them.
    """
    for gradient, parameter in ops.parameters_by_gradient(block).items():
        accumulator = _accumulator_of(gradient)  # a name: "fc.w@GRAD" -> "fc.w@GRAD.merged"
        shape = block.var(parameter).shape
        dtype = block.var(gradient).dtype
        for owner in (block, startup):  # `persistable`: the value stays from one run of a program to the next
            owner.create_var(name=accumulator, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
        # Appended at the end: an operator without inputs ({}), with the attributes shape, dtype and a value of 0.
        insert(startup, len(startup.ops), "fill_constant", {}, {"Out": [accumulator]}, **_zeros(shape, dtype))
    startup._sync_with_cpp()  # Paddle's step after insertions: brings its lists in Python and in C++ in line


def _zeros(shape: Sequence[int], dtype: Any) -> dict[str, Any]:
    """Return the attributes with which `fill_constant` makes a tensor of zeros. `dtype` is Paddle's."""
    return {"shape": list(shape), "dtype": dtype, "value": 0.0}


def _updates_or_communicates(op: Operator) -> bool:
    """Return whether an operator belongs to the update of the parameters, or carries gradients between ranks."""
    return ops.is_optimizer(op) or op.type in ops.TRANSPORT
