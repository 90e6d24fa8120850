"""Updates of the parameters by fewer operators, or by ones that this Paddle has a kernel of."""

from __future__ import annotations

import math
from typing import Any

import paddle
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

    Paddle's kernel takes lists and computes each parameter by itself. Must run after `update_masters`.
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


# ---- update of bfloat16 parameters -----------------------------------------------------------------------------------


def update_masters(main: static.Program, *, merged: bool) -> int:
    """Updates by FP32 momentum what Paddle would by a bfloat16 kernel, which this wheel lacks; returns how many.

    The gradient is widened, the FP32 master updated as a parameter of its own, and the parameter rounded from it: the
    arithmetic of Paddle's mixed kernels. With `merged` one operator updates all parameters; LARS has no such operator.
    """
    block = main.global_block()
    updates = [op for op in block.ops if op.type in ("momentum", "lars_momentum")]
    if not updates:
        return 0
    merged = merged and updates[0].type == "momentum"
    lists: dict[str, list[str]] = {"Param": [], "Grad": [], "Velocity": [], "LearningRate": []}
    rounded, methods, coefficients = [], [], []
    shared = {name: updates[0].attr(name) for name in ("mu", "use_nesterov") if merged}
    for op in updates:
        names = {slot: op.input(slot)[0] for slot in lists}
        at = block.ops.index(op)
        if op.input("MasterParam"):
            (master,), gradient = op.input("MasterParam"), block.var(names["Grad"])
            wide = block.create_var(name=f"{gradient.name}.fp32", shape=gradient.shape, dtype="float32")
            types = {"in_dtype": gradient.dtype, "out_dtype": paddle.float32}
            insert(block, at, "cast", {"X": [gradient.name]}, {"Out": [wide.name]}, **types, op_role=OPTIMIZE)
            rounded.append((master, names["Param"]))
            names |= {"Param": master, "Grad": wide.name}
        for slot, name in names.items():
            lists[slot].append(name)
        if merged:
            methods.append(op.attr("regularization_method"))
            coefficients.append(op.attr("regularization_coeff"))
            block._remove_op(block.ops.index(op), sync=False)
            continue
        for slot in lists:
            op.desc.set_input(slot, [names[slot]])
        for slot in ("MasterParam", "MasterParamOut"):
            (op.desc.set_output if slot.endswith("Out") else op.desc.set_input)(slot, [])
        op.desc.set_output("ParamOut", [names["Param"]])
        op.desc._set_bool_attr("multi_precision", False)
    if merged:
        outputs = {"ParamOut": lists["Param"], "VelocityOut": lists["Velocity"], "MasterParamOut": []}
        insert(
            block,
            len(block.ops),
            "merged_momentum",
            lists | {"MasterParam": []},
            outputs,
            **shared,
            regularization_method=methods,
            regularization_coeff=coefficients,
            multi_precision=False,
            op_role=OPTIMIZE,
        )
    for master, parameter in rounded:
        types = {"in_dtype": paddle.float32, "out_dtype": block.var(parameter).dtype}
        insert(block, len(block.ops), "cast", {"X": [master]}, {"Out": [parameter]}, **types, op_role=OPTIMIZE)
    block._sync_with_cpp()
    return len(updates)
