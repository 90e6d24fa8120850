"""Reading a program's operators: the words that passes, proofs and counts share. No Paddle is needed to import it."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

BACKWARD, OPTIMIZE, LOSS = 1, 2, 256  # bits of an operator's op_role
CONVOLUTIONS = {"conv2d", "depthwise_conv2d"}
ADDING = {"conv2d_grad", "depthwise_conv2d_grad", "resnet_unit_grad"}  # gradients that can add to what is there
PRODUCTS = {"mul", "matmul", "matmul_v2"}
FACTORS = (  # of each operator that multiplies: slots of what comes in, of the weights, and of what comes out
    dict.fromkeys(CONVOLUTIONS, (("Input", "Filter", "Output"),))
    | dict.fromkeys(PRODUCTS, (("X", "Y", "Out"),))
    | {"resnet_unit": (("X", "FilterX", "ConvX"), ("Z", "FilterZ", "ConvZ"))}
)
NORMALIZATIONS = {"batch_norm", "sync_batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"}
ALL_UPDATES = {"momentum", "merged_momentum", "lars_momentum", "sgd", "adam", "adamw", "lamb", "dgc_momentum"}
EMPTY = "@EMPTY@"
LOSS_VALUE = "train.loss"  # name of the loss in every training program
MERGED = ".merged"  # ends the name of a gradient's accumulator
MIB = 2**20


class Refused(ValueError):
    """The program is not what was asked for."""


def prove(claim: bool, otherwise: str) -> None:
    """Raises Refused, with what is there `otherwise`, where the claim does not hold."""
    if not claim:
        raise Refused(otherwise)


def type_name(dtype: Any) -> str:
    """Name of a type of Paddle, as `float16`."""
    return str(dtype).rpartition(".")[2]


def dtype_of(variable: Any) -> str:
    """Name of a variable's type."""
    return type_name(variable.dtype)


def size_bytes(variable: Any) -> int:
    """Bytes of a variable; an unknown extent counts as 1."""
    return math.prod(max(1, extent) for extent in variable.shape) * np.dtype(dtype_of(variable)).itemsize


def writers(block: Any) -> dict[str, list[int]]:
    """Numbers of the operators that write each variable."""
    return _numbers(op.output_arg_names for op in block.ops)


def readers(block: Any) -> dict[str, list[int]]:
    """Numbers of the operators that read each variable."""
    return _numbers(op.input_arg_names for op in block.ops)


def _numbers(names_of_ops: Iterable[list[str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, names in enumerate(names_of_ops):
        for name in names:
            found.setdefault(name, []).append(index)
    return found


def is_merge(op: Any) -> bool:
    """Whether it adds a gradient and its accumulator."""
    return bool(op.type == "elementwise_add" and op.input("Y")[0].endswith(MERGED))


def is_clear(op: Any) -> bool:
    """Whether it clears an accumulator."""
    return bool(op.type == "fill_constant" and op.output("Out")[0].endswith(MERGED) and op.attr("value") == 0.0)


def type_in(block: Any, name: str) -> str:
    """Name of the type of a block's variable."""
    return dtype_of(block.var(name))


def operands(op: Any, *slots: str) -> list[str]:
    """The variables in these slots of an operator, inputs or outputs; none in a slot that it lacks."""
    of = dict.fromkeys(op.input_names, op.input) | dict.fromkeys(op.output_names, op.output)
    return [name for slot in slots if slot in of for name in of[slot](slot)]


def added_to(op: Any) -> list[str]:
    """The gradient by its input that a convolution's gradient adds to, if it does not write it anew."""
    adds = op.type in ADDING and op.has_attr("use_addto") and op.attr("use_addto")
    return operands(op, "Input@GRAD", "X@GRAD") if adds else []


def is_optimizer(op: Any) -> bool:
    """Whether it belongs to the update of the parameters."""
    return bool(op.attr("op_role") & OPTIMIZE)


def parameters_by_gradient(block: Any) -> dict[str, str]:
    """{gradient: its parameter}, as the operators that make the gradients say."""
    marked = [op.attr("op_role_var") for op in block.ops if op.has_attr("op_role_var") and not is_optimizer(op)]
    return {
        gradient: parameter for pairs in marked for parameter, gradient in zip(pairs[::2], pairs[1::2], strict=True)
    }
