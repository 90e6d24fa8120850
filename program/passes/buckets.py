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

    - The first bucket is closed once it holds HEAD_MIB, so that its all-reduce starts early.
    - The last bucket holds at most TAIL_MIB, because no computation is left to hide its all-reduce behind. If the last
      gradient is larger than that, there is no such bucket.
    - A gradient larger than the limit is a bucket by itself.

    `sizes` maps each gradient to its bytes. Returns the names in each bucket.
    """
    limit_bytes = limit_mib * ops.MIB
    # The user may set a limit below HEAD_MIB or TAIL_MIB.
    head_limit_bytes = min(HEAD_MIB * ops.MIB, limit_bytes)
    tail_limit_bytes = min(TAIL_MIB * ops.MIB, limit_bytes)
    tail_start = _tail_start(gradients, sizes, tail_limit_bytes)
    before_tail = gradients[:tail_start]
    tail = gradients[tail_start:]
    buckets = _fill(before_tail, sizes, limit_bytes, head_limit_bytes)
    if tail:
        buckets.append(tail)
    return buckets


def _fill(gradients: list[str], sizes: dict[str, int], limit_bytes: float, head_limit_bytes: float) -> list[list[str]]:
    """Fill one bucket after the other with gradients, in their order, and return the names in each bucket.

    A bucket is closed if the next gradient does not fit into `limit_bytes`. The first bucket is also closed as soon as
    it holds `head_limit_bytes`.
    """
    buckets: list[list[str]] = []  # those that are closed
    bucket: list[str] = []  # the one that is being filled
    bucket_bytes = 0
    for name in gradients:
        would_pass_limit = bucket_bytes + sizes[name] > limit_bytes
        is_first_bucket = not buckets
        is_full_head = is_first_bucket and bucket_bytes >= head_limit_bytes
        if bucket and (would_pass_limit or is_full_head):
            buckets.append(bucket)
            bucket = []
            bucket_bytes = 0
        bucket.append(name)
        bucket_bytes += sizes[name]

    if bucket:  # empty if there are no gradients
        buckets.append(bucket)
    return buckets


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
    """Replace the all-reduce of each gradient, which fleet made, by one for each bucket of gradients, as (a, b):

        before: compute a, all-reduce a, compute b, all-reduce b
        after:  coalesce_tensor (a, b), compute a, compute b, all-reduce (a, b), depend a, depend b

    `coalesce_tensor` makes a and b slices of one buffer, the bucket. `depend a` makes the later readers of a wait for
    the all-reduce of the bucket.

    `limit_mib` is the most that several gradients in a bucket may have together. With `one_stream`, the all-reduces run
    on the stream that computes, so nothing overlaps with them.
    """
    block = main.global_block()
    parameters_by_gradient = ops.parameters_by_gradient(block)
    gradients = _remove_all_reduces(main, parameters_by_gradient)
    completed_at = ops.completed_at(block, gradients)  # indices of operators, valid after the removal
    buckets = _group(block, gradients, completed_at, limit_mib)
    gradients_by_buffer = {f"bucket_{number}.{bucket[0]}": bucket for number, bucket in enumerate(buckets)}
    _insert_all_reduces(block, gradients_by_buffer, completed_at, one_stream)
    # Inserted last, because they go before the backward pass and so move all of its operators.
    _insert_coalescing(block, gradients_by_buffer, parameters_by_gradient)
    block._sync_with_cpp()


def _remove_all_reduces(main: static.Program, parameters_by_gradient: dict[str, str]) -> list[str]:
    """Remove the all-reduce of each gradient, and return the names of these gradients."""

    def is_gradient_all_reduce(op: Operator) -> bool:
        is_all_reduce = op.type == "c_allreduce_sum"
        return is_all_reduce and op.input("X")[0] in parameters_by_gradient

    gradients = [op.input("X")[0] for op in main.global_block().ops if is_gradient_all_reduce(op)]
    remove(main, is_gradient_all_reduce)
    return gradients


def _insert_all_reduces(
    block: Block, gradients_by_buffer: dict[str, list[str]], completed_at: dict[str, int], one_stream: bool
) -> None:
    """Create the buffer of each bucket, and insert its all-reduce after the bucket's last gradient is computed.

    `gradients_by_buffer` has the buckets in the order in which they are complete. `completed_at` maps each gradient to
    the index of the last operator that computes it. With `one_stream`, nothing overlaps with the all-reduces.
    """
    # The last bucket is inserted first: this moves only operators behind it, so the other indices stay valid.
    for buffer, bucket in reversed(gradients_by_buffer.items()):
        dtype = block.var(bucket[0]).dtype
        block.create_var(name=buffer, dtype=dtype, persistable=False, stop_gradient=True)
        last_gradient = bucket[-1]  # the last one to be computed: `_group` sorts them
        bucket_completed_at = completed_at[last_gradient]
        insert_all(block, bucket_completed_at + 1, _all_reduce(buffer, bucket, one_stream), op_role=ops.BACKWARD)


def _insert_coalescing(
    block: Block, gradients_by_buffer: dict[str, list[str]], parameters_by_gradient: dict[str, str]
) -> None:
    """Insert before the backward pass, for each buffer, the operator that makes gradients slices of the buffer."""
    coalesce_steps = []
    for buffer, bucket in gradients_by_buffer.items():
        parameters = [parameters_by_gradient[name] for name in bucket]
        coalesce_steps.append(_coalesce(buffer, bucket, parameters, block.var(bucket[0]).dtype))
    start_of_backward = ops.loss_gradient_index(block)
    insert_all(block, start_of_backward, coalesce_steps, op_role=ops.BACKWARD)


def _all_reduce(buffer: str, gradients: list[str], one_stream: bool) -> list[Step]:
    """Return the all-reduce of a buffer, and for each gradient in it a `depend` that makes its readers wait for it.

    With `one_stream`, the all-reduce runs on the stream that computes.
    """
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
    # The executor's memory grows by the square of the number of `depend`s.
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
