"""Proof, read off a built training program, that each knob of the strategy did what it says."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import paddle
from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.ops import prove, type_in
from program.passes.resnet_unit import takes_convolution
from program.strategy import Strategy
from runlog.digits import six_digits


class _Fusion(NamedTuple):
    """A knob whose pass replaces operators by fewer ones, and how to see in a program whether the pass was applied."""

    knob: str
    made_noun: str  # what the pass makes, for messages
    left_noun: str  # what the pass replaces, for messages: a program still has it if the pass left it unchanged
    count_made: Callable[[Block], int]  # counts in a program what the pass made
    count_left: Callable[[Block], int]  # counts what the pass should have replaced; 0 if it did all its work


_SUMS = ("sum", "grad_add")  # operators that sum the gradients of a variable with several readers


def check_knobs(main: static.Program, decided: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
    """Prove on a built training program that the options of STRATEGY, its knobs, did what they say.

    The knobs `cuda_graph` and `gradient_merge` are proved elsewhere. With `auto` nothing is proved.

    Args:
        main: Training program as built for all devices; what is changed for CPUs alone comes later.
        decided: The knobs by which the program was built: those that the user set, and those that `resolve` decided
            because the user left them open.
        asked: The knobs as the user set them; a knob that the user left open has its default, which is mostly None.
        ranks: Number of data-parallel processes.

    Returns:
        Texts on what was proved, such as "fuse_bn_act_ops made 33 fused_batch_norm_act".

    Raises:
        Refused: A pass did not all its work or worked although its knob is off, the buckets or a flag of cuDNN are not
            as they were set, or a knob that the user set can have no effect in this program.
    """
    block = main.global_block()
    # `decided` says what the program must be like. Only what the user asked for is refused as useless.
    proved = _check_fusions(block, decided, asked=asked)
    if decided.enable_addto:
        proved += _sums_left_in_words(block)  # a count for the log
    _check_cudnn_flags(asked.flags)
    if asked.cudnn_batchnorm_spatial_persistent is not None:  # on or off; None: left open
        _check_has_norm_of_cudnn(block)
    if decided.perturb_input:
        proved.append(_check_input_is_moved(block))
    if ranks > 1:
        proved.append(_check_buckets(block, decided.fuse_grad_size_in_MB))
    else:
        _refuse_bucket_limit(asked)  # one rank sums nothing in buckets
    return proved


def _refuse_bucket_limit(asked: Strategy) -> None:
    """Raise Refused if the user set a limit for the groups in which gradients are all-reduced.

    Call this only for a job of one rank, which has no all-reduce.

    Args:
        asked: The knobs as the user set them.

    Raises:
        Refused: The limit, `fuse_grad_size_in_MB`, is not at its default.
    """
    is_default = asked.fuse_grad_size_in_MB == Strategy.fuse_grad_size_in_MB  # the class has the defaults
    prove(
        is_default,
        "STRATEGY: fuse_grad_size_in_MB: one rank has no all-reduce: leave it out, or set DGXNGPU or DGXNNODES above 1",
    )


def _check_input_is_moved(block: Block) -> str:
    """Prove that a program with the knob `perturb_input` has the operator that writes an input's moved values.

    Returns:
        The inputs in words, such as "perturb_input moved image by one rounding".
    """
    moved = []
    for op in block.ops:
        # The knob's last operator for the input `image` reads it and writes `image.moved`.
        if any(name.endswith(".moved") for name in op.output_arg_names):
            moved.append(op.input("X")[0])
    prove(bool(moved), "STRATEGY: perturb_input is on and no input is moved")
    return f"perturb_input moved {', '.join(moved)} by one rounding"


def _check_fusions(block: Block, decided: Strategy, *, asked: Strategy) -> list[str]:
    """Prove for each knob in _FUSIONS that its pass did all its work if the knob is on, and nothing if it is off.

    Args:
        block: Main block of a built training program.
        decided: The knobs by which the program was built.
        asked: The knobs as the user set them; None for one that the user left open.

    Returns:
        Texts on what the passes made, one for each knob that is on.

    Raises:
        Refused: A pass did too little or too much; the first such knob is named.
    """
    proved = []
    for fusion in _FUSIONS:
        knob = fusion.knob
        made = fusion.count_made(block)
        is_on = bool(getattr(decided, knob))
        if not is_on:
            prove(made == 0, f"STRATEGY: {knob} is off and the program has {made} {fusion.made_noun}")
            continue
        left = fusion.count_left(block)
        prove(left == 0, f"STRATEGY: {knob} is on and the program has {left} {fusion.left_noun}: set {knob}=0")
        # A knob that is on by default may find nothing to change; one that the user turned on may not.
        is_asked = bool(getattr(asked, knob))
        if is_asked:
            prove(made > 0, f"STRATEGY: {knob} is on and the program has no {fusion.made_noun}: leave it out")
        proved.append(_made_in_words(fusion, made))
    return proved


def _made_in_words(fusion: _Fusion, made_count: int) -> str:
    """Return how much the pass of a knob that is on made, such as "merged_lars found nothing to change".

    Args:
        fusion: The knob, an option of STRATEGY, and the noun for what its pass makes.
        made_count: How many of these the program has.
    """
    if made_count > 0:
        return f"{fusion.knob} made {made_count} {fusion.made_noun}"
    return f"{fusion.knob} found nothing to change"


def _sums_left_in_words(block: Block) -> list[str]:
    """Return a list of one text, which says how many operators of a program sum gradients.

    For example, the list is ["enable_addto left 4 sums of gradients that no convolution makes"].

    Only for a program with the knob `enable_addto` on. The caller has proved before that the knob removed each sum that
    a convolution could make itself, so the sums that are counted here are needed. Such sums are not a fault.

    Args:
        block: Main block of a built training program.

    Returns:
        A list of the one text; an empty list if there are no such operators.
    """
    sums = sum(1 for op in block.ops if op.type in _SUMS)  # "sum" or "grad_add"
    if sums == 0:
        return []
    return [f"enable_addto left {sums} sums of gradients that no convolution makes"]


# ---- what the pass of a knob made, and what it left


def _counting(kind: str) -> Callable[[Block], int]:
    """Return a function that counts the operators of one type in a block."""
    return lambda block: sum(1 for op in block.ops if op.type == kind)


def _count_added_to(block: Block) -> int:
    """Count the gradients to which a convolution's gradient operator adds its result (made by `enable_addto`)."""
    return len(_gradients_added_to(block))


def _gradients_added_to(block: Block) -> list[str]:
    """Return the gradients to which a convolution's gradient operator adds its result."""
    names: list[str] = []
    for op in block.ops:
        names += ops.added_to(op)
    return names


def _count_shared_by_inplace(block: Block) -> int:
    """Count the operators `share_buffer` that the knob `enable_inplace` made.

    Such an operator lets an output use the buffer of an input. The knob `enable_addto` makes some too: those that touch
    a gradient to which a convolution adds its result. They do not count.

    Args:
        block: Main block of a built training program.
    """
    gradients_added_to = _gradients_added_to(block)
    count = 0
    for op in block.ops:
        if op.type == "share_buffer":
            shared = {*op.input("X"), *op.output("Out")}
            is_by_addto = not shared.isdisjoint(gradients_added_to)
            if not is_by_addto:
                count += 1
    return count


def _count_merged_lars(block: Block) -> int:
    """Count the LARS operators that update more than one parameter (made by `merged_lars`)."""
    return sum(1 for op in block.ops if op.type == "lars_momentum" and len(op.input("Param")) > 1)


def _count_norms_before_relu(block: Block) -> int:
    """Count the float16 NHWC batch norms that only a relu reads (left by `fuse_bn_act_ops`)."""
    return sum(1 for reader in _sole_readers_of_half_nhwc_norms(block) if _is_relu(reader))


def _count_norms_before_add_and_relu(block: Block) -> int:
    """Count the float16 NHWC batch norms that only an addition before a relu reads (left by `fuse_bn_add_act_ops`)."""
    reads = _Reads(block)
    return sum(1 for reader in _sole_readers_of_half_nhwc_norms(block) if reads.is_add_before_relu(reader))


def _count_adds_before_relu(block: Block) -> int:
    """Count the additions that only a relu reads (left by `fuse_elewise_add_act_ops`)."""
    reads = _Reads(block)
    return sum(1 for op in block.ops if reads.is_unfused_add_before_relu(op))


def _count_sums_for_convolutions(block: Block) -> int:
    """Count the sums of gradients that a convolution could have made itself (left by `enable_addto`).

    In a sum a + b of gradients, a convolution's gradient operator writes a. It could add its result to b instead, which
    makes the sum needless.

    Args:
        block: Main block of a built training program.
    """
    last_writer: dict[str, Operator] = {}  # variable: the last operator so far that wrote it
    count = 0
    for op in block.ops:
        if op.type in _SUMS:
            # The sum reads the gradients as their last writers left them. One writer that could add is enough.
            written = [name for name in op.input_arg_names if name in last_writer]
            if any(_could_add(last_writer[name], name) for name in written):
                count += 1
        # After the test, so that no sum counts as the writer of a gradient that it reads.
        last_writer |= dict.fromkeys(op.output_arg_names, op)
    return count


def _could_add(writer: Operator, gradient: str) -> bool:
    """Return whether an operator is a convolution's gradient that could still add its result to a gradient.

    Args:
        writer: Operator that writes a gradient.
        gradient: The gradient. Only that of the image is added to, not that of weights which convolutions share.
    """
    # One that adds to a gradient already cannot add to another.
    is_of_image = gradient in ops.operands(writer, "Input@GRAD", "X@GRAD")
    return writer.type in ops.ADDING and is_of_image and not ops.added_to(writer)


def _is_relu(op: Operator | None) -> bool:
    """Return whether there is an operator, and it is a relu."""
    return op is not None and op.type == "relu"


class _Reads:
    """Who reads what in a block."""

    def __init__(self, block: Block) -> None:
        self._ops = block.ops
        self._readers = ops.readers(block)

    def sole_reader(self, op: Operator, slot: str) -> Operator | None:
        """Return the only operator that reads an output of an operator.

        A `share_buffer` does not count, because it reads no value.

        Args:
            op: The operator that writes the output.
            slot: Output slot, such as "Out", of which the first variable is meant.

        Returns:
            The reader; None if no operator or several read it.
        """
        readers = [self._ops[index] for index in self._readers.get(op.output(slot)[0], ())]
        readers = [reader for reader in readers if reader.type != "share_buffer"]
        return readers[0] if len(readers) == 1 else None

    def is_add_before_relu(self, op: Operator | None) -> bool:
        """Return whether there is an operator that is an addition before a relu, or Paddle's fusion of the two."""
        if op is None:
            return False
        if op.type == "fused_elemwise_add_activation":
            return bool(op.attr("functor_list") == ["relu", "elementwise_add"])
        return self.is_unfused_add_before_relu(op)

    def is_unfused_add_before_relu(self, op: Operator) -> bool:
        """Return whether an operator is an addition whose only reader is a relu."""
        return op.type == "elementwise_add" and _is_relu(self.sole_reader(op, "Out"))


def _sole_readers_of_half_nhwc_norms(block: Block) -> list[Operator | None]:
    """Return, for each float16 NHWC batch norm, the only operator that reads its result; None if there is no such one.

    cuDNN's fused kernels take batch norms in float16 and NHWC alone.
    """
    reads = _Reads(block)
    return [reads.sole_reader(op, "Y") for op in block.ops if _is_half_nhwc_norm(op, block)]


def _is_half_nhwc_norm(op: Operator, block: Block) -> bool:
    """Return whether an operator is a batch norm in float16 and NHWC, which is what cuDNN's fused kernels take."""
    return (
        op.type == "batch_norm" and op.attr("data_layout") == "NHWC" and type_in(block, op.input("X")[0]) == "float16"
    )


def _count_mergeable_lars(block: Block) -> int:
    """Count the LARS updates of one parameter that could be merged with another one (left by `merged_lars`).

    Args:
        block: Main block of a built training program.
    """
    # Only updates of the same data type can be merged.
    single_by_type: Counter[str] = Counter()
    for op in block.ops:
        if op.type == "lars_momentum" and len(op.input("Param")) == 1:
            single_by_type[type_in(block, op.input("Param")[0])] += 1
    return sum(count for count in single_by_type.values() if count > 1)  # one alone has no partner


def _count_convolutions_for_units(block: Block) -> int:
    """Count the convolutions that a `resnet_unit` could compute (left by the knob `resnet_unit`)."""
    return sum(1 for op in block.ops if takes_convolution(op, block))


def _nothing_left(block: Block) -> int:
    """Return 0, for a pass that may leave anything: not every output can take an input's buffer."""
    return 0


_FUSIONS = (
    _Fusion(
        knob="fuse_bn_act_ops",
        made_noun="fused_batch_norm_act",
        left_noun="batch_norm before a relu",
        count_made=_counting("fused_batch_norm_act"),
        count_left=_count_norms_before_relu,
    ),
    _Fusion(
        knob="fuse_bn_add_act_ops",
        made_noun="fused_bn_add_activation",
        left_noun="batch_norm before an add and a relu",
        count_made=_counting("fused_bn_add_activation"),
        count_left=_count_norms_before_add_and_relu,
    ),
    _Fusion(
        knob="fuse_elewise_add_act_ops",
        made_noun="fused_elemwise_add_activation",
        left_noun="elementwise_add before a relu",
        count_made=_counting("fused_elemwise_add_activation"),
        count_left=_count_adds_before_relu,
    ),
    _Fusion(
        knob="enable_addto",
        made_noun="gradient of a convolution that adds",
        left_noun="sum of the gradient of a convolution's input",
        count_made=_count_added_to,
        count_left=_count_sums_for_convolutions,
    ),
    _Fusion(
        knob="enable_inplace",
        made_noun="share_buffer",
        left_noun="buffer that is not shared",
        count_made=_count_shared_by_inplace,
        count_left=_nothing_left,
    ),
    _Fusion(
        knob="merged_optimizer",
        made_noun="merged_momentum",
        left_noun="momentum",
        count_made=_counting("merged_momentum"),
        count_left=_counting("momentum"),
    ),
    _Fusion(
        knob="resnet_unit",
        made_noun="resnet_unit",
        left_noun="convolution that a unit takes",
        count_made=_counting("resnet_unit"),
        count_left=_count_convolutions_for_units,
    ),
    _Fusion(
        knob="merged_lars",
        made_noun="lars_momentum of several parameters",
        left_noun="lars_momentum of one parameter",
        count_made=_count_merged_lars,
        count_left=_count_mergeable_lars,
    ),
)


# ---- cuDNN's flags


def _check_cudnn_flags(flags: dict[str, Any]) -> None:
    """Prove that Paddle's flags for cuDNN have in this process the values that the user set in STRATEGY.

    Args:
        flags: The flags that the user set, with their values, as {"FLAGS_cudnn_exhaustive_search": True}.

    Raises:
        Refused: A flag has another value.
    """
    for flag, value in flags.items():
        value_in_force = paddle.get_flags(flag)[flag]
        knob = flag.removeprefix("FLAGS_")
        prove(value_in_force == value, f"STRATEGY: {knob}={value:d}: Paddle has {flag}={value_in_force}")


def _check_has_norm_of_cudnn(block: Block) -> None:
    """Prove that cuDNN computes a normalization of a program, so that the user's option for its kernels can matter.

    Args:
        block: Main block of a built training program.

    Raises:
        Refused: There is no such normalization.
    """
    prove(
        any(_is_norm_of_cudnn(op) for op in block.ops),
        "STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization here is cuDNN's: leave it out",
    )


def _is_norm_of_cudnn(op: Operator) -> bool:
    """Return whether an operator is a normalization that cuDNN computes. Paddle has a kernel of its own over ranks."""
    return op.type in ops.NORMALIZATIONS and op.type != "sync_batch_norm"


# ---- buckets


class _Bucket(NamedTuple):
    """Gradients of one data type that `coalesce_tensor` puts side by side in a buffer."""

    buffer: str
    dtype: str
    sizes_mib: list[float]  # of its gradients, in order


def _check_buckets(block: Block, limit_mib: float) -> str:
    """Prove that gradients are summed over the ranks in buckets that are within the limit and closed only when full.

    A bucket is a group of gradients that lie in one buffer and are summed by one all-reduce.

    Args:
        block: Main block of a training program for several ranks.
        limit_mib: Most MiB of gradients in one bucket.

    Returns:
        The limit and the number of all-reduces, one for each bucket, in words: "fuse_grad_size_in_MB=16: buckets 9".

    Raises:
        Refused: A gradient travels in no bucket, or a bucket is too large or was closed too soon.
    """
    buckets = [_bucket_made_by(op, block) for op in block.ops if op.type == "coalesce_tensor"]
    buffers = {bucket.buffer for bucket in buckets}
    all_reduced = [op.input("X")[0] for op in block.ops if op.type == "c_allreduce_sum"]
    for name in all_reduced:
        prove(name in buffers, f"STRATEGY: fuse_grad_size_in_MB: {name} travels by itself, in no bucket")
    for bucket in buckets:
        _check_within_limit(bucket, limit_mib)
    dtypes = dict.fromkeys(bucket.dtype for bucket in buckets)  # each type once, in order
    for dtype in dtypes:  # a bucket has gradients of one type
        _check_full([bucket for bucket in buckets if bucket.dtype == dtype], limit_mib)
    return f"fuse_grad_size_in_MB={six_digits(limit_mib)}: buckets {len(all_reduced)}"


def _bucket_made_by(op: Operator, block: Block) -> _Bucket:
    """Return the bucket, a group of gradients that are all-reduced together, that an operator makes.

    Args:
        op: A `coalesce_tensor` operator.
        block: Block that declares its variables.
    """
    gradients = op.output("Output")
    return _Bucket(
        buffer=op.output("FusedOutput")[0],
        dtype=type_in(block, gradients[0]),
        sizes_mib=[ops.size_bytes(block.var(name)) / ops.MIB for name in gradients],
    )


def _check_within_limit(bucket: _Bucket, limit_mib: float) -> None:
    """Prove that the gradients of a bucket, which are all-reduced together, are no larger than the limit.

    Args:
        bucket: The gradients and their sizes. A single gradient may have any size.
        limit_mib: Most MiB of several gradients together.

    Raises:
        Refused: They are larger.
    """
    mib = sum(bucket.sizes_mib)
    is_single = len(bucket.sizes_mib) == 1
    prove(
        is_single or mib <= limit_mib,
        f"STRATEGY: a bucket has {mib:.2f} MiB, fuse_grad_size_in_MB is {six_digits(limit_mib)}",
    )


def _check_full(buckets: list[_Bucket], limit_mib: float) -> None:
    """Prove that each bucket has no room for the first gradient of the next one, so that none was closed too soon.

    Three buckets are not checked:

        the first          closed early on purpose, so that its all-reduce starts early
        the last but one   the last is kept small on purpose, so there may be room for it
        the last           has no next one

    Args:
        buckets: Groups of gradients of one data type, each summed by one all-reduce, in order.
        limit_mib: Most MiB of gradients in one bucket.

    Raises:
        Refused: A bucket had room for the next gradient.
    """
    # Of buckets 0 to 4, these are 1 and 2, and the ones after them are 2 and 3.
    checked = buckets[1:-2]
    after_checked = buckets[2:-1]
    for bucket, next_bucket in zip(checked, after_checked, strict=True):
        mib = sum(bucket.sizes_mib)
        next_mib = next_bucket.sizes_mib[0]
        prove(
            mib + next_mib > limit_mib,
            f"STRATEGY: a bucket is closed at {mib:.2f} MiB, the next gradient has {next_mib:.2f}, "
            f"fuse_grad_size_in_MB is {six_digits(limit_mib)}",
        )
