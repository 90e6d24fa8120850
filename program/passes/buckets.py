"""Buckets of the all-reduce: gradients that travel together, each issued when its last gradient exists."""

from typing import Any

from paddle import static

from program import ops
from program.passes.edit import Step, insert_all, remove

HEAD_MIB = 1.0  # the first bucket closes early, so that the link has work while the backward pass begins
TAIL_MIB = 1.0  # the last one is small: nothing is left to hide it behind


def _pack(gradients: list[str], sizes: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Cuts one type's gradients, in order, into buckets of at most `limit_mib` (a larger gradient stands alone)."""
    limit, rest = limit_mib * ops.MIB, list(gradients)
    tail: list[str] = []
    while rest and sum(sizes[name] for name in (rest[-1], *tail)) <= min(TAIL_MIB * ops.MIB, limit):
        tail.insert(0, rest.pop())
    buckets: list[list[str]] = [[]]
    for name in rest:
        filled = sum(sizes[other] for other in buckets[-1])
        head_done = len(buckets) == 1 and filled >= min(HEAD_MIB * ops.MIB, limit)
        if buckets[-1] and (head_done or filled + sizes[name] > limit):
            buckets.append([])
        buckets[-1].append(name)
    return [bucket for bucket in (*buckets, tail) if bucket]


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> None:
    """Replaces fleet's one all-reduce a gradient by one a bucket of at most `limit_mib`, each issued when it is full.

    The gradients of a bucket are slices of one buffer (`coalesce_tensor`, which copies nothing); `depend` tells the
    executor that a gradient's readers come after its bucket's all-reduce, as fleet's own fusion does. With
    `one_stream` they are summed on the stream that computes, hidden behind nothing.
    """
    block = main.global_block()
    parameters = ops.parameters_by_gradient(block)

    def is_fleets(op: Any) -> bool:
        return op.type == "c_allreduce_sum" and op.input("X")[0] in parameters

    found = [op.input("X")[0] for op in block.ops if is_fleets(op)]
    remove(main, is_fleets)
    written = ops.writers(block)
    # Numbers of the operators after which they exist.
    made = {name: max(i for i in written[name] if not ops.is_optimizer(block.ops[i])) for name in found}
    sizes = {name: ops.size_bytes(block.var(name)) for name in found}
    by_type: dict[Any, list[str]] = {}
    for name in sorted(found, key=lambda n: (made[n], n)):
        by_type.setdefault(block.var(name).dtype, []).append(name)
    buckets = [bucket for gradients in by_type.values() for bucket in _pack(gradients, sizes, limit_mib)]
    buckets.sort(key=lambda bucket: made[bucket[-1]])
    attrs = {"ring_id": 0, "use_calc_stream": one_stream}
    joins: list[Step] = []
    for number, bucket in reversed(list(enumerate(buckets))):
        buffer, dtype = f"bucket_{number}.{bucket[0]}", block.var(bucket[0]).dtype
        block.create_var(name=buffer, dtype=dtype, persistable=False, stop_gradient=True)
        steps: list[Step] = [("c_allreduce_sum", {"X": [buffer]}, {"Out": [buffer]}, attrs)]
        steps += [("depend", {"X": [name], "Dep": [buffer]}, {"Out": [name]}, {}) for name in bucket]
        insert_all(block, made[bucket[-1]] + 1, steps, op_role=ops.BACKWARD)
        inputs, outputs = {"Input": [parameters[n] for n in bucket]}, {"Output": bucket, "FusedOutput": [buffer]}
        joins.append(("coalesce_tensor", inputs, outputs, {"copy_data": False, "use_align": True, "dtype": dtype}))
    start = next(i for i, op in enumerate(block.ops) if op.attr("op_role") == ops.BACKWARD | ops.LOSS)
    insert_all(block, start, joins[::-1], op_role=ops.BACKWARD)
    block._sync_with_cpp()


def thin_depends(main: static.Program) -> None:
    """Drops each `depend` whose gradient's readers all wait for the same bucket by another one.

    One operator updates all parameters, so one `depend` a bucket does. The executor's memory grows by the square of
    the number of operators.
    """
    block = main.global_block()
    read = ops.readers(block)
    spare: set[Any] = set()
    waiting: set[tuple[str, int]] = set()  # (bucket, number of an operator that waits for it)
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type == "depend":
            after = {(op.input("Dep")[0], reader) for reader in read[op.input("X")[0]] if reader > index}
            if after <= waiting:
                spare.add(op)
            waiting |= after
    remove(main, spare.__contains__)
