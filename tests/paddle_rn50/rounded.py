"""Rounds what the products of a program read to fewer bits of mantissa, as tensor cores do, in FP32 on a CPU."""

from __future__ import annotations

from typing import Any

from harness.passes import insert

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
