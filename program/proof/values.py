"""Proof, read off a program, that each operator reads a value: one that was computed before it, or that was there."""

from paddle import static
from paddle.base.framework import Operator

from program.ops import EMPTY, LOSS_VALUE, is_aliasing, operands, prove


def check_values(main: static.Program) -> None:
    """Prove that every operator of a program reads what operators before it compute, what is fed or what is kept.

    A variable may have memory and yet no value. For example, an operator that writes into the memory of its input may
    have been lost. Who reads its output would then read the input, without an error.

    Args:
        main: Training or evaluation program.

    Raises:
        Refused: An operator reads a variable that has no value yet, or a training program computes no loss. The first
            one is named.
    """
    block = main.global_block()
    computed = set()  # variables that have a value
    for variable in block.vars.values():
        if variable.persistable or variable.is_data:  # kept from the step before, or fed
            computed.add(variable.name)
    computed.discard(LOSS_VALUE)  # it is kept, so that it can be read after the step, but each step must compute it
    for op in block.ops:
        for name in _read_by(op):
            prove(name in computed, f"{op.type} reads {name}, which no operator before it computes")
        computed.update(_computed_by(op))
    is_training = block.has_var(LOSS_VALUE)
    prove(not is_training or LOSS_VALUE in computed, f"no operator computes {LOSS_VALUE}")


def _read_by(op: Operator) -> list[str]:
    """Return the variables whose values an operator reads; none of one that only shares or lays out buffers."""
    if is_aliasing(op) or op.type == "coalesce_tensor":  # the latter measures its inputs
        return []
    return [name for name in op.input_arg_names if name != EMPTY]


def _computed_by(op: Operator) -> list[str]:
    """Return the variables to which an operator gives a value.

    A `coalesce_tensor` gives one to its buffer, for the all-reduce, and none to the gradients that will lie in it.
    """
    if is_aliasing(op):
        return []
    if op.type == "coalesce_tensor":
        return operands(op, "FusedOutput")
    return list(op.output_arg_names)
