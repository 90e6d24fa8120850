"""Buckets of the all-reduce: gradients that travel together, each issued when its last gradient exists."""

from typing import Any

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Step, insert_all, remove

HEAD_MIB = 1.0  # the first bucket closes early, so that the link has work while the backward pass begins
TAIL_MIB = 1.0  # the last one is small: nothing is left to hide it behind


def _pack(gradients: list[str], sizes: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Cut gradients of one type, in the order in which they are made, into buckets of at most `limit_mib` MiB.

    `sizes` maps each gradient to its bytes. A gradient over the limit is a bucket by itself. The first bucket takes
    no more gradients once it holds HEAD_MIB, and the last holds at most TAIL_MIB. Returns the names of the gradients in
    each bucket.
    """
    limit = limit_mib * ops.MIB
    head_limit = min(HEAD_MIB * ops.MIB, limit)
    tail_limit = min(TAIL_MIB * ops.MIB, limit)
    tail_start = _tail_start(gradients, sizes, tail_limit)

    buckets: list[list[str]] = []
    bucket: list[str] = []
    bucket_bytes = 0
    for name in gradients[:tail_start]:
        is_first_bucket = not buckets
        is_full = bucket_bytes + sizes[name] > limit or (is_first_bucket and bucket_bytes >= head_limit)
        if bucket and is_full:
            buckets.append(bucket)
            bucket = []
            bucket_bytes = 0
        bucket.append(name)
        bucket_bytes += sizes[name]

    tail = gradients[tail_start:]
    return [names for names in (*buckets, bucket, tail) if names]


def _tail_start(gradients: list[str], sizes: dict[str, int], limit: float) -> int:
    """Return the index of the first gradient of the last bucket: as many of the last ones as fit into `limit` bytes."""
    start = len(gradients)
    tail_bytes = 0
    for index in reversed(range(len(gradients))):
        tail_bytes += sizes[gradients[index]]
        if tail_bytes > limit:
            break
        start = index
    return start


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> None:
    """Replace fleet's all-reduce of each gradient by one of each bucket of gradients, of at most `limit_mib` MiB.

    The gradients of a bucket become slices of one buffer before the backward pass begins (`coalesce_tensor`, which
    copies nothing). After the operator that completes its last gradient stand the buffer's all-reduce and, for each
    gradient, a `depend`: it tells the executor that the gradient's readers come after the all-reduce.

    With `one_stream` the buffers are summed on the stream that computes, so that nothing overlaps with them.
    """
    block = main.global_block()
    parameters = ops.parameters_by_gradient(block)

    def is_fleets_all_reduce(op: Operator) -> bool:
        return op.type == "c_allreduce_sum" and op.input("X")[0] in parameters

    gradients = [op.input("X")[0] for op in block.ops if is_fleets_all_reduce(op)]
    remove(main, is_fleets_all_reduce)
    completed_at = ops.completed_at(block, gradients)
    buckets = _buckets(block, gradients, completed_at, limit_mib)

    # From the last bucket to the first, so that the indices of `completed_at` stay true.
    joins: list[Step] = []
    for number, bucket in reversed(list(enumerate(buckets))):
        buffer = f"bucket_{number}.{bucket[0]}"
        dtype = block.var(bucket[0]).dtype
        block.create_var(name=buffer, dtype=dtype, persistable=False, stop_gradient=True)
        insert_all(block, completed_at[bucket[-1]] + 1, _all_reduce(buffer, bucket, one_stream), op_role=ops.BACKWARD)
        joins.insert(0, _join(buffer, bucket, parameters, dtype))
    insert_all(block, ops.loss_gradient_index(block), joins, op_role=ops.BACKWARD)
    block._sync_with_cpp()


def _all_reduce(buffer: str, gradients: list[str], one_stream: bool) -> list[Step]:
    """Return the all-reduce of a buffer, and for each gradient in it a `depend` that orders its readers after that."""
    attrs: dict[str, Any] = {"ring_id": 0, "use_calc_stream": one_stream}
    steps = [Step("c_allreduce_sum", {"X": [buffer]}, {"Out": [buffer]}, attrs)]
    for name in gradients:
        steps.append(Step("depend", {"X": [name], "Dep": [buffer]}, {"Out": [name]}, {}))
    return steps


def _join(buffer: str, gradients: list[str], parameters: dict[str, str], dtype: Any) -> Step:
    """Return the operator that makes the gradients slices of one buffer, with the sizes of their `parameters`."""
    return Step(
        "coalesce_tensor",
        {"Input": [parameters[name] for name in gradients]},
        {"Output": gradients, "FusedOutput": [buffer]},
        {"copy_data": False, "use_align": True, "dtype": dtype},
    )


def _buckets(block: Block, gradients: list[str], completed_at: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Group gradients of one type in the order in which they are made; order the buckets by when they are full."""
    by_type: dict[Any, list[str]] = {}
    for name in sorted(gradients, key=lambda name: (completed_at[name], name)):
        by_type.setdefault(block.var(name).dtype, []).append(name)

    sizes = {name: ops.size_bytes(block.var(name)) for name in gradients}
    buckets: list[list[str]] = []
    for gradients_of_type in by_type.values():
        buckets += _pack(gradients_of_type, sizes, limit_mib)
    return sorted(buckets, key=lambda bucket: completed_at[bucket[-1]])


def thin_depends(main: static.Program) -> None:
    """Remove the `depend` operators that order nothing which another `depend` does not order already.

    A `depend` of a gradient makes the operators that read the gradient later wait for its bucket's all-reduce. Where
    one operator updates all parameters, it reads every gradient, and one `depend` of each bucket makes it wait. The
    others are removed, as the executor's memory grows by the square of the number of operators.
    """
    block = main.global_block()
    readers = ops.readers(block)
    superfluous: set[Operator] = set()
    ordered: set[tuple[str, int]] = set()  # a bucket, and the index of an operator that already waits for it
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type != "depend":
            continue
        gradient = op.input("X")[0]
        bucket = op.input("Dep")[0]
        orders = {(bucket, reader) for reader in readers[gradient] if reader > index}
        if orders <= ordered:
            superfluous.add(op)
        ordered |= orders
    remove(main, lambda op: op in superfluous)
