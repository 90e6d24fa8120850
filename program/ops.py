"""Vocabulary for reading a program's operators, shared by passes, proofs and counts. Importing it needs no Paddle."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from runlog import schema

if TYPE_CHECKING:
    from paddle.base.framework import Block, Operator, Variable

FORWARD = 0  # op_role of an operator of the forward pass; bits of any other: BACKWARD, OPTIMIZE, LOSS
BACKWARD, OPTIMIZE, LOSS = 1, 2, 256
CONVOLUTIONS = {"conv2d", "depthwise_conv2d"}
ADDING = {"conv2d_grad", "depthwise_conv2d_grad", "resnet_unit_grad"}  # gradients that can add to what is there
PRODUCTS = {"mul", "matmul", "matmul_v2"}
NORMALIZATIONS = {"batch_norm", "sync_batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"}
ALL_UPDATES = schema.UPDATES  # operators that update weights, by an optimizer of the recipes or another one
TRANSPORT = ("c_allreduce_sum", "c_sync_calc_stream", "c_sync_comm_stream")  # what fleet adds to carry gradients
EMPTY = "@EMPTY@"  # stands where an operator writes no gradient
LOSS_VALUE = "train.loss"  # name of the loss in every training program
MERGED = ".merged"  # ends the name of a gradient's accumulator
MIB = 2**20


class Factors(NamedTuple):
    """The slots of an operator's product: output = input * weights."""

    input: str
    weights: str
    output: str


FACTORS: dict[str, tuple[Factors, ...]] = {  # by type of operator
    "conv2d": (Factors("Input", "Filter", "Output"),),
    "depthwise_conv2d": (Factors("Input", "Filter", "Output"),),
    "mul": (Factors("X", "Y", "Out"),),
    "matmul": (Factors("X", "Y", "Out"),),
    "matmul_v2": (Factors("X", "Y", "Out"),),
    "resnet_unit": (Factors("X", "FilterX", "ConvX"), Factors("Z", "FilterZ", "ConvZ")),
}


class Refused(ValueError):
    """The program is not what was asked for."""


def prove(claim: bool, otherwise: str) -> None:
    """Raise Refused unless a claim holds.

    Args:
        claim: Whether it holds.
        otherwise: Message of the error.

    Raises:
        Refused: It does not hold.
    """
    if not claim:
        raise Refused(otherwise)


def is_close(value: float, expected: float) -> bool:
    """Return whether a value is the expected one up to the rounding of C's float.

    Args:
        value: Number to test.
        expected: Number that it should be. The difference may be 1e-6 times this number; so 0 must be 0 exactly.
    """
    return abs(value - expected) <= 1e-6 * abs(expected)


def type_name(dtype: object) -> str:
    """Return the name of a Paddle data type, such as `float16`."""
    return str(dtype).rpartition(".")[2]


def dtype_of(variable: Variable) -> str:
    """Return the name of a variable's data type, such as `float16`."""
    return type_name(variable.dtype)


def type_in(block: Block, name: str) -> str:
    """Return the name of the data type of the variable called `name`, such as `float16`."""
    return dtype_of(block.var(name))


def size_bytes(variable: Variable) -> int:
    """Return the bytes that a variable takes.

    Args:
        variable: Variable of a Paddle program. An extent that is unknown (-1) counts as 1.
    """
    elements: int = math.prod(max(1, extent) for extent in variable.shape)
    element_bytes: int = np.dtype(dtype_of(variable)).itemsize
    return elements * element_bytes


def writers(block: Block) -> dict[str, list[int]]:
    """Map each variable to the indices of the operators that write it, in order."""
    return _indices_by_name(op.output_arg_names for op in block.ops)


def readers(block: Block) -> dict[str, list[int]]:
    """Map each variable to the indices of the operators that read it, in order."""
    return _indices_by_name(op.input_arg_names for op in block.ops)


def completed_at(block: Block, gradients: Iterable[str]) -> dict[str, int]:
    """Map each gradient to the index of the last operator that computes it, as {"fc.w@GRAD": 120}.

    An all-reduce, which sums a gradient over the ranks, writes the gradient too, and so may the optimizer's operators.
    Both come later and do not count.

    Args:
        block: Block of a training program.
        gradients: Names of gradients, each of which an operator of the block computes.
    """
    writers_by_name = writers(block)
    indices: dict[str, int] = {}
    for name in gradients:
        # `_computes` is False for operators of an all-reduce and for the optimizer's, and True for all others.
        indices[name] = max(index for index in writers_by_name[name] if _computes(block.ops[index]))
    return indices


def _computes(op: Operator) -> bool:
    """Return whether an operator computes what it writes, and does not sum it over ranks or update by it."""
    return not is_optimizer(op) and op.type not in TRANSPORT


def _indices_by_name(names_by_operator: Iterable[list[str]]) -> dict[str, list[int]]:
    indices: dict[str, list[int]] = {}
    for index, names in enumerate(names_by_operator):
        for name in names:
            indices.setdefault(name, []).append(index)
    return indices


def operands(op: Operator, *slots: str) -> list[str]:
    """Return the variables in input or output slots of an operator.

    Args:
        op: The operator.
        *slots: Names of slots, such as "X" and "Out@GRAD". A slot that the operator does not have holds none.
    """
    names: list[str] = []
    for slot in slots:
        if slot in op.output_names:
            names += op.output(slot)
        elif slot in op.input_names:
            names += op.input(slot)
    return names


def is_optimizer(op: Operator) -> bool:
    """Return whether an operator belongs to the update of the parameters."""
    return bool(op.attr("op_role") & OPTIMIZE)


def is_accumulator(name: str) -> bool:
    """Tell by its name whether a variable adds up the gradients of several micro-steps (gradient merge)."""
    return name.endswith(MERGED)


def is_merge(op: Operator) -> bool:
    """Return whether an operator adds a gradient and its accumulator (gradient merge)."""
    return bool(op.type == "elementwise_add" and is_accumulator(op.input("Y")[0]))


def is_clear(op: Operator) -> bool:
    """Return whether an operator sets an accumulator back to zero (gradient merge)."""
    return bool(op.type == "fill_constant" and is_accumulator(op.output("Out")[0]) and op.attr("value") == 0.0)


def is_aliasing(op: Operator) -> bool:
    """Return whether an operator only lets its output use the buffer of its input, and computes nothing.

    A `share_buffer` with a second input computes: it takes the place of a sum whose second addend a convolution has
    added to the first (`enable_addto`).
    """
    return op.type == "share_buffer" and not operands(op, "Y")


def added_to(op: Operator) -> list[str]:
    """Return the gradient to which an operator adds its result; most operators overwrite, which gives an empty list.

    The knob `enable_addto` lets gradient operators of convolutions add, by their attribute `use_addto`. For example, if
    two convolutions read one tensor, the gradient operator of one writes the tensor's gradient, and that of the other
    adds to it. So no further operator has to sum the two.

    Args:
        op: Any operator of a training program.

    Returns:
        A list with the name of the gradient, as ["image@GRAD"]; empty if the operator overwrites.
    """
    # ADDING has the types that can add: the gradients of the two convolutions and of "resnet_unit".
    adds = op.type in ADDING and op.has_attr("use_addto") and op.attr("use_addto")
    if not adds:
        return []
    # The output slot for the gradient of the convolution's input: "resnet_unit" calls the input X, a convolution Input.
    slot = "X@GRAD" if op.type == "resnet_unit_grad" else "Input@GRAD"
    return operands(op, slot)  # the names in the slot, which holds one


def gradients_by_buffer(block: Block) -> dict[str, list[str]]:
    """Map each buffer that several gradients share, for their all-reduce, to the gradients that lie in it.

    Args:
        block: Main block of a training program.

    Returns:
        Names by name; empty if the gradients are not put into buffers.
    """
    return {op.output("FusedOutput")[0]: op.output("Output") for op in block.ops if op.type == "coalesce_tensor"}


def loss_gradient_index(block: Block) -> int:
    """Return the index of the operator that starts the backward pass, which sets the gradient of the loss.

    Args:
        block: Main block of a training program.

    Raises:
        AssertionError: The program has no backward pass.
    """
    for index, op in enumerate(block.ops):
        if op.attr("op_role") == BACKWARD | LOSS:
            return index
    raise AssertionError("a training program has a gradient of its loss")


def parameters_by_gradient(block: Block) -> dict[str, str]:
    """Map the name of each parameter's gradient to the name of the parameter, as {"fc.w@GRAD": "fc.w"}.

    Paddle notes these pairs in the attribute `op_role_var` of the operators that compute gradients.

    Args:
        block: A block of a Paddle program to which the backward pass was added.

    Returns:
        Parameter names by gradient name; empty if no operator has such pairs.
    """
    parameters: dict[str, str] = {}
    for op in block.ops:
        if is_optimizer(op) or not op.has_attr("op_role_var"):
            continue
        alternating = op.attr("op_role_var")  # parameter, gradient, parameter, gradient, ...
        parameter_names = alternating[::2]
        gradient_names = alternating[1::2]
        parameters.update(zip(gradient_names, parameter_names, strict=True))
    return parameters
