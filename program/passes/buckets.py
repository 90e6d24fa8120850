"""Buckets of the all-reduce: gradients that travel together, each issued when its last gradient exists."""

from typing import Any

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Step, insert_all, remove

HEAD_MIB = 1.0  # the first bucket closes early, so that the link has work while the backward pass begins
TAIL_MIB = 1.0  # the last one is small: nothing is left to hide it behind


def _pack(gradients: list[str], sizes: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Cut gradients of one type, in the order in which they are computed, into buckets of at most `limit_mib` MiB.

    `sizes` maps each gradient to its bytes. Returns the names of the gradients in each bucket. No bucket is empty.

    - The last gradients that fit into TAIL_MIB together are a bucket of their own. There is no such bucket if the very
      last gradient is larger.
    - The first bucket is closed as soon as it holds at least HEAD_MIB.
    - Any other bucket is closed if the next gradient does not fit into it.
    - A gradient larger than the limit is a bucket by itself.
    """
    limit_bytes = limit_mib * ops.MIB
    # The user may set a limit below HEAD_MIB or TAIL_MIB.
    head_limit_bytes = min(HEAD_MIB * ops.MIB, limit_bytes)
    tail_limit_bytes = min(TAIL_MIB * ops.MIB, limit_bytes)
    tail_start = _tail_start(gradients, sizes, tail_limit_bytes)

    buckets: list[list[str]] = []  # those that are closed
    bucket: list[str] = []  # the one that is being filled
    bucket_bytes = 0
    for name in gradients[:tail_start]:
        would_pass_limit = bucket_bytes + sizes[name] > limit_bytes
        is_first_bucket = not buckets
        is_full_head = is_first_bucket and bucket_bytes >= head_limit_bytes
        if bucket and (would_pass_limit or is_full_head):
            buckets.append(bucket)
            bucket = []
            bucket_bytes = 0
        bucket.append(name)
        bucket_bytes += sizes[name]

    tail = gradients[tail_start:]
    return [names for names in (*buckets, bucket, tail) if names]


def _tail_start(gradients: list[str], sizes: dict[str, int], limit_bytes: float) -> int:
    """Return the index at which the longest tail of `gradients` starts that fits into `limit_bytes`.

    `sizes` maps each gradient to its bytes. If the last gradient alone does not fit, the tail is empty and the result
    is `len(gradients)`.
    """
    start = len(gradients)
    tail_bytes = 0
    for index in reversed(range(len(gradients))):
        tail_bytes += sizes[gradients[index]]
        if tail_bytes > limit_bytes:
            break
        start = index
    return start


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> None:
    """Replace the all-reduce of each gradient, which fleet made, by one all-reduce for each bucket of gradients.

    A bucket holds gradients of one type: several of at most `limit_mib` MiB together, or a single one of any size.
    Three gradients a, b and c in the buckets (a, b) and (c) give

        before: compute a, all-reduce a, compute b, all-reduce b, compute c, all-reduce c
        after:  coalesce_tensor (a, b), coalesce_tensor (c),
                compute a, compute b, all-reduce (a, b), depend a, depend b, compute c, all-reduce (c), depend c

    `coalesce_tensor` makes the gradients slices of one buffer; nothing is copied. `depend` makes later readers of a
    gradient wait for the all-reduce of its buffer.

    With `one_stream`, the all-reduces run on the stream that computes, so that nothing overlaps with them.
    """
    block = main.global_block()
    parameters_by_gradient = ops.parameters_by_gradient(block)

    def is_gradient_all_reduce(op: Operator) -> bool:
        is_all_reduce = op.type == "c_allreduce_sum"
        return is_all_reduce and op.input("X")[0] in parameters_by_gradient

    gradients = [op.input("X")[0] for op in block.ops if is_gradient_all_reduce(op)]
    remove(main, is_gradient_all_reduce)
    completed_at = ops.completed_at(block, gradients)  # indices of operators, valid after the removal
    buckets = _group(block, gradients, completed_at, limit_mib)
    buffers = [f"bucket_{number}.{bucket[0]}" for number, bucket in enumerate(buckets)]

    # Buckets are in the order in which they are complete. The last one is inserted first: this moves only operators
    # behind it, so the indices of the other buckets stay valid.
    for buffer, bucket in reversed(list(zip(buffers, buckets, strict=True))):
        dtype = block.var(bucket[0]).dtype
        block.create_var(name=buffer, dtype=dtype, persistable=False, stop_gradient=True)
        last_gradient = bucket[-1]  # the last one to be computed: `_group` sorts them
        bucket_completed_at = completed_at[last_gradient]
        insert_all(block, bucket_completed_at + 1, _all_reduce(buffer, bucket, one_stream), op_role=ops.BACKWARD)

    # Inserted last, because they go before the backward pass and so move all of its operators.
    coalesce_steps = []
    for buffer, bucket in zip(buffers, buckets, strict=True):
        parameters = [parameters_by_gradient[name] for name in bucket]
        coalesce_steps.append(_coalesce(buffer, bucket, parameters, block.var(bucket[0]).dtype))
    start_of_backward = ops.loss_gradient_index(block)
    insert_all(block, start_of_backward, coalesce_steps, op_role=ops.BACKWARD)
    block._sync_with_cpp()


def _all_reduce(buffer: str, gradients: list[str], one_stream: bool) -> list[Step]:
    """Return the all-reduce of a buffer, and for each gradient in it a `depend` that makes its readers wait for it."""
    attrs: dict[str, Any] = {"ring_id": 0, "use_calc_stream": one_stream}
    steps = [Step("c_allreduce_sum", {"X": [buffer]}, {"Out": [buffer]}, attrs)]
    for name in gradients:
        steps.append(Step("depend", {"X": [name], "Dep": [buffer]}, {"Out": [name]}, {}))
    return steps


def _coalesce(buffer: str, gradients: list[str], parameters: list[str], dtype: Any) -> Step:
    """Return the operator that makes gradients slices of one buffer.

    Its inputs are the parameters of the gradients, in the same order. They give the slices their sizes, because the
    gradients do not exist yet.
    """
    return Step(
        "coalesce_tensor",
        {"Input": parameters},
        {"Output": gradients, "FusedOutput": [buffer]},
        {"copy_data": False, "use_align": True, "dtype": dtype},
    )


def _group(block: Block, gradients: list[str], completed_at: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Group gradients into buckets of one type each (`_pack`) and return the names of the gradients in each bucket.

    `completed_at` maps each gradient to the index of the last operator that computes it. Gradients in a bucket are
    sorted by this index, so the last gradient completes the bucket. Buckets are sorted by the index of their last
    gradient.
    """
    by_type: dict[Any, list[str]] = {}
    # One operator may compute several gradients. These are sorted by name.
    for name in sorted(gradients, key=lambda name: (completed_at[name], name)):
        by_type.setdefault(block.var(name).dtype, []).append(name)

    sizes = {name: ops.size_bytes(block.var(name)) for name in gradients}
    buckets: list[list[str]] = []
    for gradients_of_type in by_type.values():
        buckets += _pack(gradients_of_type, sizes, limit_mib)
    return sorted(buckets, key=lambda bucket: completed_at[bucket[-1]])


def remove_redundant_depends(main: static.Program) -> None:
    """Remove redundant `depend` operators, because the executor's memory grows by the square of their number.

    A `depend` on a gradient makes all later readers of the gradient wait for the all-reduce of its bucket. It is
    redundant if

    - each of these readers also waits for the same bucket by a later `depend`, or
    - the gradient has no later readers.

    For example, one update operator reads all gradients of a bucket. Then only the last `depend` of the bucket stays.
    """
    block = main.global_block()
    readers = ops.readers(block)
    redundant: set[Operator] = set()
    waits: set[tuple[str, int]] = set()  # a bucket, and the index of an operator that waits for it
    # From the last operator to the first, so that `waits` has those of all later `depend`s.
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type != "depend":
            continue
        gradient = op.input("X")[0]
        bucket = op.input("Dep")[0]
        waits_of_readers = {(bucket, reader) for reader in readers[gradient] if reader > index}
        if waits_of_readers <= waits:  # also if the set is empty: nothing reads the gradient later
            redundant.add(op)
        waits |= waits_of_readers
    remove(main, lambda op: op in redundant)
