"""Inserting and removing operators by their descriptors: Paddle's own way to insert one checks it against the Python
stack and refuses gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import paddle
from paddle import static
from paddle.base.framework import Block, Operator

Slots = dict[str, list[str]]  # of an operator: the variables in each


class Step(NamedTuple):
    """An operator that is to be inserted."""

    kind: str
    inputs: Slots
    outputs: Slots
    attrs: dict[str, Any]


def insert(block: Block, index: int, kind: str, inputs: Slots, outputs: Slots, **attrs: Any) -> Operator:
    """Insert an operator into a block of a Paddle program, and return it.

    Args:
        block: Block to change. Its list of operators is updated; `block._sync_with_cpp` is left to the caller.
        index: Position of the operator before which the new one goes; the number of operators to append it.
        kind: Paddle's type of the new operator, such as "relu_grad".
        inputs: Names of the variables in each input slot, as {"X": ["fc.w"]}.
        outputs: Names of the variables in each output slot, likewise.
        **attrs: Attributes such as `op_role` and their values. Those that are not named get Paddle's defaults.
    """
    desc = block.desc._insert_op(index)
    desc.set_type(kind)
    for slot, variables in inputs.items():
        desc.set_input(slot, variables)
    for slot, variables in outputs.items():
        desc.set_output(slot, variables)
    for name, value in attrs.items():
        _set_attribute(desc, name, value)
    desc.check_attrs()  # fills in the defaults

    op = Operator(block, desc)
    block.ops.insert(index, op)  # Paddle's Python list of the same operators
    return op


def _set_attribute(desc: paddle.base.core.OpDesc, name: str, value: Any) -> None:
    """Set an attribute of an operator in the type in which Paddle's C++ code reads it.

    Args:
        desc: Paddle's C++ description of the operator.
        name: Name of the attribute.
        value: A bool, a number, a text, a list, or a data type such as `paddle.float16`.
    """
    if isinstance(value, bool):
        desc._set_bool_attr(name, value)  # `_set_attr` would store an undeclared bool as a number
    elif isinstance(value, float):
        desc._set_float32_attr(name, value)  # `_set_attr` would store a double
    elif isinstance(value, paddle.base.core.VarDesc.VarType):
        desc._set_attr(name, int(value))  # a data type, such as `paddle.float16`
    else:
        desc._set_attr(name, value)  # an int, a text or a list: Paddle finds the type by itself


def insert_all(block: Block, index: int, steps: Sequence[Step], *, op_role: int) -> None:
    """Insert operators, in this order, before the one at `index`.

    Args:
        block: Block of a Paddle program; changed in place.
        index: Position of the operator before which they go; the number of operators to append them.
        steps: Operators to insert.
        op_role: Part of training to which all of them belong: FORWARD, or the bits BACKWARD, OPTIMIZE and LOSS of
            `program.ops`.
    """
    for step in reversed(steps):  # each goes to `index`, before those inserted so far
        insert(block, index, step.kind, step.inputs, step.outputs, **step.attrs, op_role=op_role)


def insert_before(block: Block, op: Operator, steps: Sequence[Step], *, op_role: int) -> None:
    """Insert operators, in this order, before an operator of a block.

    Args:
        block: Block of a Paddle program; changed in place.
        op: The operator before which they go.
        steps: Operators to insert.
        op_role: Part of training to which they belong, such as BACKWARD of `program.ops`.
    """
    insert_all(block, block.ops.index(op), steps, op_role=op_role)


def insert_after(block: Block, op: Operator, steps: Sequence[Step], *, op_role: int) -> None:
    """Insert operators, in this order, after an operator of a block.

    Args:
        block: Block of a Paddle program; changed in place.
        op: The operator after which they go.
        steps: Operators to insert.
        op_role: Part of training to which they belong, such as BACKWARD of `program.ops`.
    """
    insert_all(block, block.ops.index(op) + 1, steps, op_role=op_role)


def rewrite(program: static.Program, substitute: Callable[[Operator], Sequence[Step] | None]) -> int:
    """Replace or remove operators in the main block of a program.

    Args:
        program: Paddle program; changed in place.
        substitute: Called with each operator, from the last to the first. Returns the operators that take its place and
            get its `op_role`, an empty list to remove it, or None to keep it.

    Returns:
        How many operators were replaced or removed.
    """
    block = program.global_block()
    replaced = 0
    # From the last operator to the first, so that a change does not move operators that are still to come.
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        op_role = op.attr("op_role")
        steps = substitute(op)
        if steps is None:
            continue  # the operator stays
        block._remove_op(index, sync=False)
        insert_all(block, index, steps, op_role=op_role)
        replaced += 1
    block._sync_with_cpp()
    return replaced


def remove(program: static.Program, is_unwanted: Callable[[Operator], bool]) -> None:
    """Remove operators from the main block of a program.

    Args:
        program: Paddle program; changed in place.
        is_unwanted: Returns whether an operator is to be removed.
    """

    def substitute(op: Operator) -> list[Step] | None:
        return [] if is_unwanted(op) else None  # None: the operator stays

    rewrite(program, substitute)
