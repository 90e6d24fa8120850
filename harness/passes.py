"""Our own passes over a training program, where Paddle's do nothing, do too little, or cannot be steered.

A pass returns how many places it changed. Operators are written by their descriptors: Paddle's own way to insert one
checks it against the Python stack and refuses gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import static
from paddle.base.framework import Operator

BACKWARD, LOSS = 1, 256  # bits of an operator's op_role
BYTES = {
    paddle.bool: 1,
    paddle.uint8: 1,
    paddle.int8: 1,
    paddle.int16: 2,
    paddle.int32: 4,
    paddle.int64: 8,
    paddle.float16: 2,
    paddle.bfloat16: 2,
    paddle.float32: 4,
    paddle.float64: 8,
}
MIB = 2**20


def size_bytes(variable: Any) -> int:
    """Bytes of a variable; an unknown extent counts as 1."""
    return math.prod(max(1, extent) for extent in variable.shape) * BYTES[variable.dtype]


def insert(
    block: Any, index: int, kind: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], **attrs: Any
) -> Any:
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
            desc._set_attr(name, _plain(value))
    desc.check_attrs()  # fills in the defaults
    op = Operator(block, desc)
    block.ops.insert(index, op)
    return op


def writers(block: Any, first: int = 0) -> dict[str, list[int]]:
    """Numbers of the operators that write each variable."""
    found: dict[str, list[int]] = {}
    for index in range(first, len(block.ops)):
        for name in block.ops[index].output_arg_names:
            found.setdefault(name, []).append(index)
    return found


# ---- gradients of add + relu -------------------------------------------------------------------------------------


def simplify_add_relu(main: static.Program) -> int:
    """Fused add + relu without what nobody needs: the sum is not kept, and its two equal gradients are one.

    Paddle's fused operator also writes the sum before the relu, and its gradient writes the same tensor twice. The
    gradient of relu from its output is the gradient of both addends (same shapes), so `relu_grad` serves: of 9
    tensors moved 6 are left. Must run after the gradients exist and before anything renames them.
    """
    block, changed = main.global_block(), 0
    renamed: dict[str, str] = {}
    for op in block.ops:
        if op.type == "fused_elemwise_add_activation" and op.attr("functor_list") == ["relu", "elementwise_add"]:
            x, y = block.var(op.input("X")[0]), block.var(op.input("Y")[0])
            if x.shape == y.shape:
                op.desc._set_attr("save_intermediate_out", False)
                op.desc.set_output("IntermediateOut", [])
    written = writers(block)
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        if op.type != "fused_elemwise_add_activation_grad" or op.attr("functor_list") != [
            "elementwise_add_grad",
            "relu_grad",
        ]:
            continue
        out, dout = op.input("Out"), op.input("Out@GRAD")
        dx, dy = op.output("X@GRAD")[0], op.output("Y@GRAD")[0]
        if block.var(op.input("X")[0]).shape != block.var(op.input("Y")[0]).shape:
            continue
        # The one written again later (an accumulation into it) must stay; the other one is replaced by it.
        keep, drop = (dy, dx) if len(written[dy]) > 1 else (dx, dy)
        assert len(written[drop]) == 1, f"{drop} is written twice"
        insert(block, index, "relu_grad", {"Out": out, "Out@GRAD": dout}, {"X@GRAD": [keep]}, op_role=BACKWARD)
        block._remove_op(index + 1, sync=False)
        renamed[drop] = keep
        changed += 1
    for op in block.ops:
        for old in set(op.input_arg_names) & renamed.keys():
            op.desc._rename_input(old, renamed[old])
    block._sync_with_cpp()
    return changed


# ---- buckets of the all-reduce -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that travel in one all-reduce, in the order in which the backward pass makes them."""

    gradients: tuple[str, ...]
    parameters: tuple[str, ...]
    dtype: Any
    size_bytes: int
    ready: int  # number of the operator after which the last one exists


@dataclass(frozen=True, kw_only=True)
class _Gradient:
    name: str
    parameter: str
    dtype: Any
    size_bytes: int
    made: int


HEAD_MIB = 1.0  # the first bucket closes early, so that the link has work while the backward pass begins
TAIL_MIB = 1.0  # the last one is small: nothing is left to hide it behind


def _pack(gradients: list[_Gradient], limit_mib: float) -> list[list[_Gradient]]:
    """Cuts one type's gradients, in order, into buckets of at most `limit_mib` (a larger gradient stands alone)."""
    limit = limit_mib * MIB
    tail: list[_Gradient] = []
    rest = list(gradients)
    tail_limit = min(TAIL_MIB * MIB, limit)
    while rest and sum(g.size_bytes for g in tail) + rest[-1].size_bytes <= tail_limit:
        tail.insert(0, rest.pop())
    buckets: list[list[_Gradient]] = []
    bucket: list[_Gradient] = []
    for gradient in rest:
        filled = sum(g.size_bytes for g in bucket)
        head_done = not buckets and filled >= min(HEAD_MIB * MIB, limit)
        if bucket and (head_done or filled + gradient.size_bytes > limit):
            buckets.append(bucket)
            bucket = []
        bucket.append(gradient)
    return [b for b in (*buckets, bucket, tail) if b]


def bucket_all_reduces(main: static.Program, *, limit_mib: float, half: bool = False, rings: int = 1) -> list[Bucket]:
    """Replaces fleet's one all-reduce a gradient by one a bucket of at most `limit_mib`, each issued when it is full.

    The gradients of a bucket are slices of one buffer (`coalesce_tensor`, which copies nothing); `depend` tells the
    executor that a gradient's readers come after its bucket's all-reduce, as fleet's own fusion does. With `half` an
    FP32 bucket travels as FP16. Buckets take the communicators 0 to `rings` - 1 in turn.
    """
    block = main.global_block()
    parameters = _parameters_by_gradient(block)
    found = []
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        if op.type == "c_allreduce_sum" and op.input("X")[0] in parameters:
            found.append(op.input("X")[0])
            block._remove_op(index, sync=False)
    wanted = set(found)
    made: dict[str, int] = {}
    for index, op in enumerate(block.ops):
        for name in wanted.intersection(op.output_arg_names):
            if not _is_optimizer(op):
                made[name] = index
    by_type: dict[Any, list[_Gradient]] = {}
    for name in sorted(found, key=lambda n: (made[n], n)):
        variable, parameter = block.var(name), block.var(parameters[name])
        bytes_ = math.prod(parameter.shape) * BYTES[variable.dtype]
        gradient = _Gradient(
            name=name, parameter=parameters[name], dtype=variable.dtype, size_bytes=bytes_, made=made[name]
        )
        by_type.setdefault(variable.dtype, []).append(gradient)
    buckets = [
        Bucket(
            gradients=tuple(g.name for g in group),
            parameters=tuple(g.parameter for g in group),
            dtype=dtype,
            size_bytes=sum(g.size_bytes for g in group),
            ready=max(g.made for g in group),
        )
        for dtype, gradients in by_type.items()
        for group in _pack(gradients, limit_mib)
    ]
    buckets.sort(key=lambda b: b.ready)
    fused = [f"bucket_{number}.{bucket.gradients[0]}" for number, bucket in enumerate(buckets)]
    for number in reversed(range(len(buckets))):
        _all_reduce(block, buckets[number], fused[number], half=half, ring=number % rings)
    start = next(i for i, op in enumerate(block.ops) if op.attr("op_role") == BACKWARD | LOSS)
    for number, bucket in enumerate(buckets):
        insert(
            block,
            start + number,
            "coalesce_tensor",
            {"Input": list(bucket.parameters)},
            {"Output": list(bucket.gradients), "FusedOutput": [fused[number]]},
            copy_data=False,
            use_align=True,
            dtype=bucket.dtype,
            op_role=BACKWARD,
        )
    block._sync_with_cpp()
    return buckets


def _all_reduce(block: Any, bucket: Bucket, fused: str, *, half: bool, ring: int) -> None:
    block.create_var(name=fused, dtype=bucket.dtype, persistable=False, stop_gradient=True)
    at, sent = bucket.ready + 1, fused
    casts = half and bucket.dtype == paddle.float32
    steps: list[tuple[str, dict[str, list[str]], dict[str, list[str]], dict[str, Any]]] = []
    if casts:
        sent = f"{fused}.fp16"
        block.create_var(name=sent, dtype="float16", persistable=False, stop_gradient=True)
        to = {"in_dtype": bucket.dtype, "out_dtype": paddle.float16}
        steps.append(("cast", {"X": [fused]}, {"Out": [sent]}, to))
    steps.append(("c_allreduce_sum", {"X": [sent]}, {"Out": [sent]}, {"ring_id": ring, "use_calc_stream": False}))
    if casts:
        back = {"in_dtype": paddle.float16, "out_dtype": bucket.dtype}
        steps.append(("cast", {"X": [sent]}, {"Out": [fused]}, back))
    steps += [("depend", {"X": [g], "Dep": [fused]}, {"Out": [g]}, {}) for g in bucket.gradients]
    for kind, inputs, outputs, attrs in reversed(steps):
        insert(block, at, kind, inputs, outputs, **attrs, op_role=BACKWARD)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, paddle.base.core.VarDesc.VarType) else value


def _is_optimizer(op: Any) -> bool:
    return bool(op.attr("op_role") & 2)


def _parameters_by_gradient(block: Any) -> dict[str, str]:
    """{gradient: its parameter}, as the operators that make the gradients say."""
    found: dict[str, str] = {}
    for op in block.ops:
        if op.has_attr("op_role_var") and not _is_optimizer(op):
            pairs = op.attr("op_role_var")
            found.update(zip(pairs[1::2], pairs[::2], strict=True))
    return found
