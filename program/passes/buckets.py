"""Buckets of the all-reduce: gradients that travel together, each bucket issued when its last gradient exists."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from paddle import static

from program.ops import BACKWARD, LOSS, MIB, element_bytes, is_optimizer, parameters_by_gradient, readers
from program.passes.edit import Step, insert, insert_all


@dataclass(frozen=True, kw_only=True)
class _Gradient:
    name: str
    parameter: str
    dtype: Any
    size_bytes: int
    made: int  # number of the operator after which it exists


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


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> int:
    """Replaces fleet's one all-reduce a gradient by one a bucket of at most `limit_mib`, each issued when it is full.

    The gradients of a bucket are slices of one buffer (`coalesce_tensor`, which copies nothing); `depend` tells the
    executor that a gradient's readers come after its bucket's all-reduce, as fleet's own fusion does. With
    `one_stream` they are summed on the stream that computes, hidden behind nothing. Returns how many there are.
    """
    block = main.global_block()
    parameters = parameters_by_gradient(block)
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
            if not is_optimizer(op):
                made[name] = index
    by_type: dict[Any, list[_Gradient]] = {}
    for name in sorted(found, key=lambda n: (made[n], n)):
        variable, parameter = block.var(name), block.var(parameters[name])
        bytes_ = math.prod(parameter.shape) * element_bytes(variable)
        gradient = _Gradient(
            name=name, parameter=parameters[name], dtype=variable.dtype, size_bytes=bytes_, made=made[name]
        )
        by_type.setdefault(variable.dtype, []).append(gradient)
    buckets = [bucket for gradients in by_type.values() for bucket in _pack(gradients, limit_mib)]
    buckets.sort(key=_ready)
    fused = [f"bucket_{number}.{bucket[0].name}" for number, bucket in enumerate(buckets)]
    for number in reversed(range(len(buckets))):
        _all_reduce(block, buckets[number], fused[number], one_stream=one_stream)
    start = next(i for i, op in enumerate(block.ops) if op.attr("op_role") == BACKWARD | LOSS)
    for number, bucket in enumerate(buckets):
        insert(
            block,
            start + number,
            "coalesce_tensor",
            {"Input": [g.parameter for g in bucket]},
            {"Output": [g.name for g in bucket], "FusedOutput": [fused[number]]},
            copy_data=False,
            use_align=True,
            dtype=bucket[0].dtype,
            op_role=BACKWARD,
        )
    block._sync_with_cpp()
    return len(buckets)


def _ready(bucket: list[_Gradient]) -> int:
    """Number of the operator after which the last of its gradients exists."""
    return max(g.made for g in bucket)


def thin_depends(main: static.Program) -> int:
    """Drops each `depend` whose gradient's readers all wait for the same bucket by another one; returns how many.

    One operator updates all parameters, so one `depend` a bucket does. The executor's memory grows by the square of
    the number of operators.
    """
    block, dropped = main.global_block(), 0
    read = readers(block)
    waiting: set[tuple[str, int]] = set()  # (bucket, operator)
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        if op.type != "depend":
            continue
        after = {(op.input("Dep")[0], reader) for reader in read[op.input("X")[0]] if reader > index}
        if after <= waiting:
            block._remove_op(index, sync=False)
            dropped += 1
        waiting |= after
    block._sync_with_cpp()
    return dropped


def _all_reduce(block: Any, bucket: list[_Gradient], fused: str, *, one_stream: bool) -> None:
    block.create_var(name=fused, dtype=bucket[0].dtype, persistable=False, stop_gradient=True)
    attrs = {"ring_id": 0, "use_calc_stream": one_stream}
    steps: list[Step] = [("c_allreduce_sum", {"X": [fused]}, {"Out": [fused]}, attrs)]
    steps += [("depend", {"X": [g.name], "Dep": [fused]}, {"Out": [g.name]}, {}) for g in bucket]
    insert_all(block, _ready(bucket) + 1, steps, op_role=BACKWARD)
