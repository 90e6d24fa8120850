"""Updates of the parameters: a fixed loss scale taken off, and LARS by fewer operators."""

from __future__ import annotations

import math
from typing import Any

from paddle import static

from program.ops import ALL_UPDATES, BACKWARD, LOSS, OPTIMIZE
from program.passes.edit import insert

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
_LARS_LISTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam", "ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")


def merge_lars(main: static.Program) -> int:
    """Updates by LARS of one type as one operator for up to MERGED_LARS parameters; returns how many it makes.

    Paddle's kernel takes lists and computes each parameter by itself.
    """
    block = main.global_block()
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            key = (block.var(op.input("Param")[0]).dtype, *(op.attr(name) for name in _LARS_SHARED))
            groups.setdefault(key, []).append(op)
    made = 0
    for alike in groups.values():
        parts = math.ceil(len(alike) / MERGED_LARS)
        for part in range(parts):
            first, *others = alike[part::parts]
            if not others:
                continue
            slots = {slot: [n for op in (first, *others) for n in _operands(op, slot)] for slot in _LARS_LISTS}
            attrs = {name: first.attr(name) for name in _LARS_SHARED}
            attrs["lars_weight_decay"] = [decay for op in (first, *others) for decay in op.attr("lars_weight_decay")]
            insert(
                block,
                block.ops.index(others[-1]) + 1,
                "lars_momentum",
                {slot: names for slot, names in slots.items() if not slot.endswith("Out")},
                {slot: names for slot, names in slots.items() if slot.endswith("Out")},
                **attrs,
                op_role=OPTIMIZE,
            )
            for op in (first, *others):
                block._remove_op(block.ops.index(op), sync=False)
            made += 1
    block._sync_with_cpp()
    return made


def _operands(op: Any, slot: str) -> list[str]:
    of, slots = (op.output, op.output_names) if slot.endswith("Out") else (op.input, op.input_names)
    return list(of(slot)) if slot in slots else []
