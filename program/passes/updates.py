"""Updates of the parameters: a fixed loss scale taken off, and LARS by fewer operators."""

from __future__ import annotations

import math
from typing import Any

from paddle import static

from program.ops import ALL_UPDATES, BACKWARD, LOSS, OPTIMIZE, operands
from program.passes.edit import insert, remove

# ---- a fixed loss scale ----------------------------------------------------------------------------------------------


def scale_loss(main: static.Program, scale: float) -> None:
    """Lets the gradients start at `scale` times their value, and the update take it off: attributes, no operator.

    Must run before updates are merged.
    """
    for op in main.global_block().ops:
        if op.attr("op_role") == BACKWARD | LOSS and op.type == "fill_constant":
            op.desc._set_float32_attr("value", scale)
        elif op.type in ALL_UPDATES:
            op.desc._set_float32_attr("rescale_grad", 1.0 / scale)


# ---- update by LARS -----------------------------------------------------------------------------------------------

MERGED_LARS = 59  # parameters of one operator: Paddle's kernel refuses 60
_LARS_INPUTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam")
_LARS_OUTPUTS = ("ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")


def merge_lars(main: static.Program) -> None:
    """Updates by LARS of one type as one operator for up to MERGED_LARS parameters.

    Paddle's kernel takes lists and computes each parameter by itself.
    """
    block = main.global_block()
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            key = (block.var(op.input("Param")[0]).dtype, *(op.attr(name) for name in _LARS_SHARED))
            groups.setdefault(key, []).append(op)
    joined: set[Any] = set()
    for alike in groups.values():
        parts = math.ceil(len(alike) / MERGED_LARS)
        for together in (alike[part::parts] for part in range(parts)):
            if len(together) == 1:
                continue
            insert(
                block,
                block.ops.index(together[-1]) + 1,
                "lars_momentum",
                *(
                    {s: [n for op in together for n in operands(op, s)] for s in of}
                    for of in (_LARS_INPUTS, _LARS_OUTPUTS)
                ),
                **{name: together[0].attr(name) for name in _LARS_SHARED},
                lars_weight_decay=[decay for op in together for decay in op.attr("lars_weight_decay")],
                op_role=OPTIMIZE,
            )
            joined.update(together)
    remove(main, joined.__contains__)
