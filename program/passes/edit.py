"""Inserting and removing operators by their descriptors: Paddle's own way to insert one checks it against the Python
stack and refuses gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle import static
from paddle.base.framework import Operator

Slots = dict[str, list[str]]  # of an operator: the variables in each
Step = tuple[str, Slots, Slots, dict[str, Any]]  # an operator's type, inputs, outputs and attributes


def insert(block: Any, index: int, kind: str, inputs: Slots, outputs: Slots, **attrs: Any) -> Any:
    """A new operator before the one at `index`."""
    desc = block.desc._insert_op(index)
    desc.set_type(kind)
    for name, variables in inputs.items():
        desc.set_input(name, variables)
    for name, variables in outputs.items():
        desc.set_output(name, variables)
    for name, value in attrs.items():
        if isinstance(value, bool):
            desc._set_bool_attr(name, value)  # else it becomes a number where the operator declares no attributes
        elif isinstance(value, float):
            desc._set_float32_attr(name, value)
        else:
            desc._set_attr(name, int(value) if isinstance(value, paddle.base.core.VarDesc.VarType) else value)
    desc.check_attrs()  # fills in the defaults
    op = Operator(block, desc)
    block.ops.insert(index, op)
    return op


def insert_all(block: Any, index: int, steps: Sequence[Step], *, op_role: int) -> None:
    """New operators, in this order, before the one at `index`."""
    for kind, inputs, outputs, attrs in reversed(steps):
        insert(block, index, kind, inputs, outputs, **attrs, op_role=op_role)


def rewrite(program: static.Program, instead: Callable[[Any], Sequence[Step] | None]) -> int:
    """Puts what `instead` makes of an operator in its place and role, the last one first; None keeps it.

    Returns how many operators it replaced.
    """
    block, replaced = program.global_block(), 0
    for index in reversed(range(len(block.ops))):
        op_role, steps = block.ops[index].attr("op_role"), instead(block.ops[index])
        if steps is not None:
            block._remove_op(index, sync=False)
            insert_all(block, index, steps, op_role=op_role)
            replaced += 1
    block._sync_with_cpp()
    return replaced


def remove(program: static.Program, unwanted: Callable[[Any], bool]) -> None:
    """Takes the operators out that are `unwanted`."""
    rewrite(program, lambda op: [] if unwanted(op) else None)
