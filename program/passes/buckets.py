"""Buckets of the all-reduce: gradients that travel together, each issued when its last gradient exists."""

from typing import Any, NamedTuple

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.passes.edit import Step, insert_after, insert_before, remove

HEAD_MIB = 1.0  # the first bucket closes early, so that the link has work while the backward pass begins
TAIL_MIB = 1.0  # the last one is small: nothing is left to hide it behind


def _pack(gradients: list[str], sizes: dict[str, int], limit_mib: float) -> list[list[str]]:
    """Cut gradients into buckets, which are groups that are summed over the ranks by one all-reduce each.

    The first bucket closes once it holds 1 MiB, so that its all-reduce starts early. The last gradients that fit into 1
    MiB are the last bucket, because no computation is left to hide its all-reduce behind. A `limit_mib` below 1
    replaces the 1 MiB of the first and of the last bucket.

    Args:
        gradients: Names of gradients of one data type, in the order in which they are computed.
        sizes: Bytes of each gradient by its name.
        limit_mib: Most MiB in a bucket, such as 16.0. A gradient above the limit is a bucket by itself.

    Returns:
        The names in each bucket, in the same order. Empty if there are no gradients.
    """
    limit_bytes = limit_mib * ops.MIB
    # The user may set a limit below HEAD_MIB or TAIL_MIB.
    head_limit_bytes = min(HEAD_MIB * ops.MIB, limit_bytes)
    tail_limit_bytes = min(TAIL_MIB * ops.MIB, limit_bytes)
    tail_start = _tail_start(gradients, sizes, tail_limit_bytes)
    before_tail = gradients[:tail_start]
    tail = gradients[tail_start:]  # the last bucket
    buckets = _fill(before_tail, sizes, limit_bytes, head_limit_bytes)
    if tail:
        buckets.append(tail)
    return buckets


def _fill(gradients: list[str], sizes: dict[str, int], limit_bytes: float, head_limit_bytes: float) -> list[list[str]]:
    """Fill one bucket after the other with gradients, in their order, up to a limit.

    Args:
        gradients: Names of gradients, in the order in which they are computed.
        sizes: Bytes of each gradient by its name.
        limit_bytes: A bucket is closed if the next gradient does not fit into this many bytes.
        head_limit_bytes: The first bucket is also closed as soon as it holds this many bytes or more.

    Returns:
        The names in each bucket. A gradient above the limit is a bucket by itself.
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

    Args:
        gradients: Names of gradients, in the order in which they are computed.
        sizes: Bytes of each gradient by its name.
        limit_bytes: Most bytes of the tail together.

    Returns:
        The index; `len(gradients)`, an empty tail, if the last gradient alone does not fit.
    """
    start = len(gradients)
    tail_bytes = 0
    for index in reversed(range(len(gradients))):
        tail_bytes += sizes[gradients[index]]
        if tail_bytes > limit_bytes:
            break
        start = index
    return start


class _Bucket(NamedTuple):
    """Gradients of one type that are all-reduced together."""

    buffer: str  # the variable in which they lie side by side
    gradients: list[str]  # in the order in which they are computed
    completed_by: Operator  # computes the last gradient
    dtype: Any  # Paddle's


def bucket_all_reduces(main: static.Program, *, limit_mib: float, one_stream: bool = False) -> None:
    """Have gradients summed over the ranks in groups (buckets), by one all-reduce for each instead of each gradient.

        before: compute a, all-reduce a, compute b, all-reduce b
        after:  compute a, compute b, all-reduce (a, b)

    The gradients of a bucket become slices of one buffer, which is all-reduced as soon as the last of them is computed.

    Args:
        main: Training program with an all-reduce for each gradient; changed in place.
        limit_mib: Most MiB of gradients in one bucket. A single gradient above it gets a bucket of its own.
        one_stream: Run the all-reduces on the GPU stream that computes, as a CUDA graph needs it.
    """
    block = main.global_block()
    parameters_by_gradient = ops.parameters_by_gradient(block)
    gradients = _remove_all_reduces(main, parameters_by_gradient)
    buckets = _plan_buckets(block, gradients, limit_mib)

    # Before the gradients are computed, those of each bucket become slices of one buffer.
    start_of_backward = block.ops[ops.loss_gradient_index(block)]
    coalesce_steps = [_coalesce(bucket, parameters_by_gradient) for bucket in buckets]
    insert_before(block, start_of_backward, coalesce_steps, op_role=ops.BACKWARD)

    # Each buffer is all-reduced as soon as its last gradient is computed.
    for bucket in buckets:
        block.create_var(name=bucket.buffer, dtype=bucket.dtype, persistable=False, stop_gradient=True)
    for completing_op, steps in _all_reduces_by_completing_op(buckets, one_stream).items():
        insert_after(block, completing_op, steps, op_role=ops.BACKWARD)
    block._sync_with_cpp()


def _all_reduces_by_completing_op(buckets: list[_Bucket], one_stream: bool) -> dict[Operator, list[Step]]:
    """Return the all-reduces to insert after each operator that computes the last gradient of a bucket.

    Args:
        buckets: Groups of gradients that are all-reduced together.
        one_stream: Run the all-reduces on the GPU stream that computes.

    Returns:
        Operators to insert by the operator after which they go. It may complete several buckets.
    """
    all_reduces: dict[Operator, list[Step]] = {}
    for bucket in buckets:
        all_reduces.setdefault(bucket.completed_by, []).extend(_all_reduce(bucket, one_stream))
    return all_reduces


def _remove_all_reduces(main: static.Program, parameters_by_gradient: dict[str, str]) -> list[str]:
    """Remove the all-reduce of each gradient, and return the names of these gradients.

    Args:
        main: Training program with an all-reduce for each gradient; changed in place.
        parameters_by_gradient: Name of the parameter of each gradient. Other all-reduces stay.
    """

    def is_gradient_all_reduce(op: Operator) -> bool:
        is_all_reduce = op.type == "c_allreduce_sum"
        return is_all_reduce and op.input("X")[0] in parameters_by_gradient

    gradients = [op.input("X")[0] for op in main.global_block().ops if is_gradient_all_reduce(op)]
    remove(main, is_gradient_all_reduce)
    return gradients


def _all_reduce(bucket: _Bucket, one_stream: bool) -> list[Step]:
    """Return the operators that sum a bucket (gradients in one buffer) over all ranks, to be inserted by the caller.

    Args:
        bucket: Gradients that are slices of one buffer and are all-reduced together.
        one_stream: Whether the all-reduce runs on the GPU stream that computes. If False, it runs on the communication
            stream, where it can overlap with the backward pass.

    Returns:
        One all-reduce, which changes the buffer in place, and then an operator `depend` for each gradient. A `depend`
        computes nothing: it makes the later readers of the gradient wait for the all-reduce.
    """
    buffer = bucket.buffer
    attrs: dict[str, Any] = {"ring_id": 0, "use_calc_stream": one_stream}  # Ring 0 is the communicator of all ranks.
    steps = [Step("c_allreduce_sum", {"X": [buffer]}, {"Out": [buffer]}, attrs)]
    # The all-reduce names only the buffer. Without `depend`, Paddle's executor would not know that it changes the
    # gradients, and could run their readers before it.
    for gradient in bucket.gradients:
        steps.append(Step("depend", {"X": [gradient], "Dep": [buffer]}, {"Out": [gradient]}, {}))
    return steps


def _coalesce(bucket: _Bucket, parameters_by_gradient: dict[str, str]) -> Step:
    """Return the operator that gives the gradients of a bucket their places in one buffer.

    It copies nothing: what is later written to a gradient is written to its slice of the buffer.

    Args:
        bucket: Gradients that are all-reduced together, and the variable in which they are to lie side by side.
        parameters_by_gradient: Name of the parameter of each gradient. The parameters give the slices their sizes,
            because the gradients do not exist yet when the operator runs.
    """
    return Step(
        "coalesce_tensor",
        {"Input": [parameters_by_gradient[name] for name in bucket.gradients]},
        {"Output": bucket.gradients, "FusedOutput": [bucket.buffer]},
        {"copy_data": False, "use_align": True, "dtype": bucket.dtype},
    )


def _plan_buckets(block: Block, gradients: list[str], limit_mib: float) -> list[_Bucket]:
    """Plan which gradients are summed over the ranks by the same all-reduce, and when each all-reduce can start.

    Fewer, larger all-reduces cost less than one per gradient, and one that starts early overlaps with the backward
    pass. Each group of gradients, a bucket, is complete once its last gradient is computed.

    Args:
        block: The block of the Paddle training program whose operators compute the gradients.
        gradients: Names of the gradients to sum, such as "fc.w@GRAD", in any order.
        limit_mib: Most MiB in one bucket. A single gradient above the limit gets a bucket of its own.

    Returns:
        The buckets in the order in which they are completed. All gradients of a bucket have the same data type.
    """
    computed_at = ops.completed_at(block, gradients)  # the index of the operator that computes each gradient
    sizes = {name: ops.size_bytes(block.var(name)) for name in gradients}
    in_order = sorted(gradients, key=lambda name: (computed_at[name], name))
    # `_by_type` and `_pack` keep this order. So the last name of a bucket is the gradient that is computed last.
    contents: list[list[str]] = []  # the gradients of each bucket
    for gradients_of_type in _by_type(block, in_order):
        contents += _pack(gradients_of_type, sizes, limit_mib)
    contents.sort(key=lambda names: computed_at[names[-1]])

    buckets = []
    for number, names in enumerate(contents):
        first, last = names[0], names[-1]
        buffer = f"bucket_{number}.{first}"  # as "bucket_0.fc.w@GRAD"
        completed_by = block.ops[computed_at[last]]
        buckets.append(_Bucket(buffer, names, completed_by, dtype=block.var(first).dtype))
    return buckets


def _by_type(block: Block, gradients: list[str]) -> list[list[str]]:
    """Return one list of gradients for each data type; within a list their order stays as it was.

    Args:
        block: Block that declares the gradients.
        gradients: Their names.
    """
    by_type: dict[Any, list[str]] = {}
    for name in gradients:
        by_type.setdefault(block.var(name).dtype, []).append(name)
    return list(by_type.values())


def remove_redundant_depends(main: static.Program) -> None:
    """Remove each `depend` operator that has no effect, to save memory of Paddle's executor.

    A `depend` makes all later readers of a gradient wait for the all-reduce of the gradient's bucket:

        before    depend(gradient a, bucket 1), depend(gradient b, bucket 1), update(a, b)
        after     depend(gradient b, bucket 1), update(a, b)    `update` still waits for bucket 1, by b

    The executor's memory grows by the square of the number of operators.

    Args:
        main: Training program whose gradients are all-reduced in buckets; changed in place. Without `depend` operators
            it stays as it is.
    """
    redundant = _redundant_depends(main.global_block())
    remove(main, lambda op: op in redundant)


def _redundant_depends(block: Block) -> set[Operator]:
    """Return the `depend` operators that have no effect: later ones make the same operators wait for the same bucket.

    A `depend` makes the later readers of a gradient wait for the all-reduce of the gradient's bucket:

        depend(a, bucket 1)     redundant: `update` is its only reader, and waits for bucket 1 by b too
        depend(b, bucket 1)     stays
        update(a, b)

    Args:
        block: Main block of a training program.
    """
    readers_by_variable = ops.readers(block)  # their indices
    redundant: set[Operator] = set()
    # By bucket: the indices of the operators that wait for its all-reduce, by the `depend` operators that stay.
    waiting_by_bucket: dict[str, set[int]] = {}
    # From the last operator to the first, so that the last of several `depend` with the same readers stays.
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type != "depend":
            continue
        (gradient,) = op.input("X")
        (bucket,) = op.input("Dep")
        later_readers = {reader for reader in readers_by_variable[gradient] if reader > index}
        waiting_anyway = waiting_by_bucket.get(bucket, set())
        if later_readers.issubset(waiting_anyway):  # also if nothing reads the gradient later
            redundant.add(op)
        else:
            waiting_by_bucket[bucket] = waiting_anyway | later_readers
    return redundant
