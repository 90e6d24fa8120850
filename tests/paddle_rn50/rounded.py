"""Rounds what the products of a program read to fewer bits of mantissa, as tensor cores do, in FP32 on a CPU."""

from __future__ import annotations

from typing import Any

from program.passes.edit import insert

MANTISSA = 24  # bits of FP32, the hidden one included
PRODUCTS = ("conv2d", "conv2d_grad", "matmul_v2", "matmul_v2_grad", "mul", "mul_grad")


def round_products(block: Any, *, bits: int) -> int:
    """Rounds each tensor that a convolution or matrix product reads; returns how many were.

    By Veltkamp's splitting: with p = (2^(24 - bits) + 1) x, p - (p - x) is x in `bits` bits.
    """
    done = 0
    for op in [op for op in block.ops if op.type in PRODUCTS]:
        role = op.attr("op_role")
        for slot in op.input_names:
            if slot in ("Output", "Out"):
                continue
            for name in op.input(slot):
                made = [f"{name}.rounded{done}.{step}" for step in range(3)]
                for new in made:
                    block.create_var(name=new, shape=block.var(name).shape, dtype="float32")
                at = block.ops.index(op)
                scale = float(2 ** (MANTISSA - bits) + 1)
                insert(block, at, "scale", {"X": [name]}, {"Out": [made[0]]}, scale=scale, op_role=role)
                for x, y, out in ((made[0], name, made[1]), (made[0], made[1], made[2])):
                    at += 1
                    insert(block, at, "elementwise_sub", {"X": [x], "Y": [y]}, {"Out": [out]}, op_role=role)
                op.desc.set_input(slot, [made[2]])
                done += 1
    block._sync_with_cpp()
    assert done, "no product in the program"
    return done


STORED = (
    *("conv2d", "conv2d_grad", "batch_norm", "batch_norm_grad", "relu", "relu_grad", "pool2d", "pool2d_grad"),
    *("elementwise_add", "elementwise_add_grad"),
    *("fused_elemwise_add_activation", "fused_elemwise_add_activation_grad"),
    *("matmul_v2", "matmul_v2_grad", "mul", "mul_grad"),
)
IN_HALF = ("Output", "Y", "Out", "X@GRAD", "Y@GRAD", "Input@GRAD", "Filter@GRAD")
BACKWARD, OPTIMIZE = 1, 2  # bits of an operator's role


def store_half(block: Any, *, loss_scale: float) -> int:
    """Rounds to FP16 what each operator of the half region leaves, and the weights that it reads; returns how many.

    Gradients are rounded at `loss_scale` times their value, so that those below FP16's range vanish as on a GPU. What a
    GPU keeps in FP32 stays: statistics, gradients of scale and bias, the loss, the master weights.
    """
    done = 0
    for op in [op for op in block.ops if op.type in STORED and not op.attr("op_role") & OPTIMIZE]:
        role = op.attr("op_role")
        for name in set(op.input_arg_names):
            if name.endswith(("conv.w", "fc.w")):  # FP32 here; there FP16 copies of the masters
                op.desc._rename_input(name, _half(block, block.ops.index(op), name, 1.0, role))
                done += 1
        for name in (name for slot in op.output_names if slot in IN_HALF for name in op.output(slot)):
            at = block.ops.index(op) + 1
            made = _half(block, at, name, loss_scale if role & BACKWARD else 1.0, role)
            insert(block, at + 4, "assign", {"X": [made]}, {"Out": [name]}, op_role=role)
            done += 1
    block._sync_with_cpp()
    assert done, "nothing is stored in half precision"
    return done


def _half(block: Any, at: int, name: str, scale: float, role: int) -> str:
    """Adds, from `at` on, a copy of a variable that went through FP16 at `scale` times its value; returns its name."""
    shape, made = block.var(name).shape, [f"{name}.half.{len(block.vars)}.{step}" for step in range(4)]
    for new, dtype in zip(made, ("float32", "float16", "float32", "float32"), strict=True):
        block.create_var(name=new, shape=shape, dtype=dtype)
    fp32, fp16 = int(block.var(made[0]).dtype), int(block.var(made[1]).dtype)
    insert(block, at, "scale", {"X": [name]}, {"Out": [made[0]]}, scale=scale, op_role=role)
    for number, (x, out, source, target) in enumerate(((0, 1, fp32, fp16), (1, 2, fp16, fp32)), start=1):
        types = {"in_dtype": source, "out_dtype": target}
        insert(block, at + number, "cast", {"X": [made[x]]}, {"Out": [made[out]]}, op_role=role, **types)
    insert(block, at + 3, "scale", {"X": [made[2]]}, {"Out": [made[3]]}, scale=1 / scale, op_role=role)
    return made[3]
