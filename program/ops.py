"""Reading a program's operators: the words that passes, proofs and counts share. No Paddle is needed to import it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

BACKWARD, OPTIMIZE, LOSS = 1, 2, 256  # bits of an operator's op_role
CONVOLUTIONS = {"conv2d", "depthwise_conv2d"}
ADDING = {"conv2d_grad", "depthwise_conv2d_grad", "resnet_unit_grad"}  # gradients that can add to what is there
PRODUCTS = {"mul", "matmul", "matmul_v2"}
NORMALIZATIONS = {"batch_norm", "sync_batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"}
ALL_UPDATES = {"momentum", "merged_momentum", "lars_momentum", "sgd", "adam", "adamw", "lamb", "dgc_momentum"}
EMPTY = "@EMPTY@"
LOSS_VALUE = "train.loss"  # name of the loss in every training program
MERGED = ".merged"  # ends the name of a gradient's accumulator
BYTES = {  # of an element
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
MIB = 2**20


class Refused(ValueError):
    """The program is not what was asked for."""


def dtype_of(variable: Any) -> str:
    """Name of a variable's type, as `float16`."""
    return str(variable.dtype).rpartition(".")[2]


def element_bytes(variable: Any) -> int:
    """Bytes of one element of a variable."""
    return BYTES[dtype_of(variable)]


def size_bytes(variable: Any) -> int:
    """Bytes of a variable; an unknown extent counts as 1."""
    return math.prod(max(1, extent) for extent in variable.shape) * element_bytes(variable)


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


def adds(op: Any) -> bool:
    """Whether it is a convolution's gradient that adds to what is there."""
    return bool(op.type in ADDING and op.has_attr("use_addto") and op.attr("use_addto"))


def input_gradient(op: Any) -> str:
    """The slot of a convolution's gradient by its input."""
    return "X@GRAD" if op.type == "resnet_unit_grad" else "Input@GRAD"


def is_optimizer(op: Any) -> bool:
    """Whether it belongs to the update of the parameters."""
    return bool(op.attr("op_role") & OPTIMIZE)


def parameters_by_gradient(block: Any) -> dict[str, str]:
    """{gradient: its parameter}, as the operators that make the gradients say."""
    found: dict[str, str] = {}
    for op in block.ops:
        if op.has_attr("op_role_var") and not is_optimizer(op):
            pairs = op.attr("op_role_var")
            found.update(zip(pairs[1::2], pairs[::2], strict=True))
    return found
