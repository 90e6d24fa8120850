"""Buckets of the all-reduce: gradients that travel together, each bucket issued when its last gradient exists."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from paddle import static

from program.ops import BACKWARD, LOSS, MIB, element_bytes, is_optimizer, parameters_by_gradient, readers, writers
from program.passes.edit import Step, insert, insert_all, remove


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


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> None:
    """Replaces fleet's one all-reduce a gradient by one a bucket of at most `limit_mib`, each issued when it is full.

    The gradients of a bucket are slices of one buffer (`coalesce_tensor`, which copies nothing); `depend` tells the
    executor that a gradient's readers come after its bucket's all-reduce, as fleet's own fusion does. With
    `one_stream` they are summed on the stream that computes, hidden behind nothing.
    """
    block = main.global_block()
    parameters = parameters_by_gradient(block)

    def is_fleets(op: Any) -> bool:
        return op.type == "c_allreduce_sum" and op.input("X")[0] in parameters

    found = [op.input("X")[0] for op in block.ops if is_fleets(op)]
    remove(main, is_fleets)
    written = writers(block)
    made = {name: max(i for i in written[name] if not is_optimizer(block.ops[i])) for name in found}
    by_type: dict[Any, list[_Gradient]] = {}
    for name in sorted(found, key=lambda n: (made[n], n)):
        variable, parameter = block.var(name), parameters[name]
        size_bytes = math.prod(block.var(parameter).shape) * element_bytes(variable)
        gradient = _Gradient(
            name=name, parameter=parameter, dtype=variable.dtype, size_bytes=size_bytes, made=made[name]
        )
        by_type.setdefault(variable.dtype, []).append(gradient)
    buckets = [bucket for gradients in by_type.values() for bucket in _pack(gradients, limit_mib)]
    buckets.sort(key=lambda bucket: bucket[-1].made)
    fused = [f"bucket_{number}.{bucket[0].name}" for number, bucket in enumerate(buckets)]
    attrs = {"ring_id": 0, "use_calc_stream": one_stream}
    for buffer, bucket in reversed(list(zip(fused, buckets, strict=True))):
        block.create_var(name=buffer, dtype=bucket[0].dtype, persistable=False, stop_gradient=True)
        steps: list[Step] = [("c_allreduce_sum", {"X": [buffer]}, {"Out": [buffer]}, attrs)]
        steps += [("depend", {"X": [g.name], "Dep": [buffer]}, {"Out": [g.name]}, {}) for g in bucket]
        insert_all(block, bucket[-1].made + 1, steps, op_role=BACKWARD)
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


def thin_depends(main: static.Program) -> None:
    """Drops each `depend` whose gradient's readers all wait for the same bucket by another one.

    One operator updates all parameters, so one `depend` a bucket does. The executor's memory grows by the square of
    the number of operators.
    """
    block = main.global_block()
    read = readers(block)
    spare: set[Any] = set()
    waiting: set[tuple[str, int]] = set()  # (bucket, number of an operator that waits for it)
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type == "depend":
            after = {(op.input("Dep")[0], reader) for reader in read[op.input("X")[0]] if reader > index}
            if after <= waiting:
                spare.add(op)
            waiting |= after
    remove(main, spare.__contains__)
