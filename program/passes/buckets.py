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

    `sizes` maps each gradient to its bytes. Returns the names of the gradients in each bucket, none of them empty.

    - A gradient larger than the limit is a bucket by itself.
    - The first bucket takes no more gradients once it holds HEAD_MIB.
    - The last gradients, as many as fit into TAIL_MIB, are a bucket of their own. If the very last one alone is larger
      than that, there is no such bucket.
    """
    limit = limit_mib * ops.MIB
    # The user may set a limit that is smaller than the two special buckets.
    head_limit = min(HEAD_MIB * ops.MIB, limit)
    tail_limit = min(TAIL_MIB * ops.MIB, limit)
    tail_start = _tail_start(gradients, sizes, tail_limit)

    buckets: list[list[str]] = []
    bucket: list[str] = []  # the one that is being filled
    bucket_bytes = 0
    for name in gradients[:tail_start]:
        would_pass_limit = bucket_bytes + sizes[name] > limit
        is_first_bucket = not buckets
        is_full_head = is_first_bucket and bucket_bytes >= head_limit
        if bucket and (would_pass_limit or is_full_head):
            buckets.append(bucket)
            bucket = []
            bucket_bytes = 0
        bucket.append(name)
        bucket_bytes += sizes[name]

    tail = gradients[tail_start:]
    return [names for names in (*buckets, bucket, tail) if names]


def _tail_start(gradients: list[str], sizes: dict[str, int], limit: float) -> int:
    """Return the index of the first of the last gradients, which are as many as fit into `limit` bytes together.

    If the last gradient alone does not fit, that is the number of the gradients: none is left.
    """
    start = len(gradients)
    tail_bytes = 0
    for index in reversed(range(len(gradients))):
        tail_bytes += sizes[gradients[index]]
        if tail_bytes > limit:
            break
        start = index
    return start


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> None:
    """Replace the all-reduces of single gradients, which fleet made, by one for each bucket of gradients.

    A bucket holds gradients of one type, of at most `limit_mib` MiB together, or a single larger one. Before the
    backward pass begins, `coalesce_tensor` makes them slices of one buffer; nothing is copied. Of gradients a, b and c:

        before: compute a, all-reduce a, compute b, all-reduce b, compute c, all-reduce c
        after:  coalesce_tensor (a, b), coalesce_tensor (c),
                compute a, compute b, all-reduce (a, b), depend a, depend b, compute c, all-reduce (c), depend c

    A `depend` tells the executor that the gradient's readers come after the all-reduce of the buffer.

    With `one_stream` the buffers are summed on the stream that computes, so that nothing overlaps with them.
    """
    block = main.global_block()
    parameters = ops.parameters_by_gradient(block)

    def is_fleets_all_reduce(op: Operator) -> bool:
        sums_over_ranks = op.type == "c_allreduce_sum"
        return sums_over_ranks and op.input("X")[0] in parameters  # of a gradient, not of anything else

    gradients = [op.input("X")[0] for op in block.ops if is_fleets_all_reduce(op)]
    remove(main, is_fleets_all_reduce)
    # The indices of operators are asked for after the removal, which moved operators.
    completed_at = ops.completed_at(block, gradients)
    buckets = _group(block, gradients, completed_at, limit_mib)
    buffers = [f"bucket_{number}.{bucket[0]}" for number, bucket in enumerate(buckets)]

    # `_group` sorts buckets by the index at which they are complete. So insertions from the last bucket to the first
    # move no operator at an index that is still needed.
    for buffer, bucket in reversed(list(zip(buffers, buckets, strict=True))):
        dtype = block.var(bucket[0]).dtype
        block.create_var(name=buffer, dtype=dtype, persistable=False, stop_gradient=True)
        complete_at = completed_at[bucket[-1]]  # `_group` also sorts the gradients in a bucket: the last completes it
        insert_all(block, complete_at + 1, _all_reduce(buffer, bucket, one_stream), op_role=ops.BACKWARD)

    # These go before the backward pass and move all of its operators, so they are inserted last.
    joins = []
    for buffer, bucket in zip(buffers, buckets, strict=True):
        joins.append(_join(buffer, bucket, parameters, block.var(bucket[0]).dtype))
    start_of_backward = ops.loss_gradient_index(block)
    insert_all(block, start_of_backward, joins, op_role=ops.BACKWARD)
    block._sync_with_cpp()


def _all_reduce(buffer: str, gradients: list[str], one_stream: bool) -> list[Step]:
    """Return the all-reduce of a buffer, and for each gradient in it a `depend` that orders its readers after that."""
    attrs: dict[str, Any] = {"ring_id": 0, "use_calc_stream": one_stream}
    steps = [Step("c_allreduce_sum", {"X": [buffer]}, {"Out": [buffer]}, attrs)]
    for name in gradients:
        steps.append(Step("depend", {"X": [name], "Dep": [buffer]}, {"Out": [name]}, {}))
    return steps


def _join(buffer: str, gradients: list[str], parameters: dict[str, str], dtype: Any) -> Step:
    """Return the operator that makes gradients slices of one buffer.

    It reads the gradients' parameters, whose sizes the slices get: the gradients do not exist yet.
    """
    return Step(
        "coalesce_tensor",
        {"Input": [parameters[name] for name in gradients]},
        {"Output": gradients, "FusedOutput": [buffer]},
        {"copy_data": False, "use_align": True, "dtype": dtype},
    )


def _group(block: Block, gradients: list[str], completed_at: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Group gradients into buckets of one type each, by `_pack` and its limit; return the names in each bucket.

    `completed_at` has the index of the operator that completes each gradient. Gradients in a bucket are in the order in
    which they are completed, so the last one completes the bucket. Buckets are in the order in which they are complete.
    """
    by_type: dict[Any, list[str]] = {}
    for name in sorted(gradients, key=lambda name: (completed_at[name], name)):  # one operator may complete several
        by_type.setdefault(block.var(name).dtype, []).append(name)

    sizes = {name: ops.size_bytes(block.var(name)) for name in gradients}
    buckets: list[list[str]] = []
    for gradients_of_type in by_type.values():
        buckets += _pack(gradients_of_type, sizes, limit_mib)
    return sorted(buckets, key=lambda bucket: completed_at[bucket[-1]])


def thin_depends(main: static.Program) -> None:
    """Remove each `depend` operator without which the same operators would wait for the same all-reduces.

    A `depend` of a gradient makes every later operator that reads the gradient wait for the all-reduce of its bucket.
    An operator that updates all parameters reads all gradients of a bucket, and one of their `depend`s is enough to
    make it wait. The others are removed, and so is one of a gradient that nothing reads later: the executor's memory
    grows by the square of the number of operators.
    """
    block = main.global_block()
    readers = ops.readers(block)
    superfluous: set[Operator] = set()
    waiting: set[tuple[str, int]] = set()  # a bucket, and the index of an operator that waits for it
    # From the last operator to the first: of several that make the same operators wait, the last one stays, which
    # stands nearest to them.
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type != "depend":
            continue
        gradient = op.input("X")[0]
        bucket = op.input("Dep")[0]
        made_to_wait = {(bucket, reader) for reader in readers[gradient] if reader > index}
        if made_to_wait <= waiting:
            superfluous.add(op)
        waiting |= made_to_wait
    remove(main, lambda op: op in superfluous)
