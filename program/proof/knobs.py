"""Proof, read off a built training program, that each knob of the strategy did what it says."""

import itertools
from collections import Counter
from typing import NamedTuple

import paddle
from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.ops import prove, type_in
from program.passes.resnet_unit import takes_convolution
from program.strategy import Strategy
from runlog.digits import six_digits


class _Fusion(NamedTuple):
    """A knob, and two nouns for messages: what its pass makes, and what its pass replaces."""

    knob: str
    made_noun: str
    left_noun: str  # what a program still has if the pass left it unchanged


_SUMS = ("sum", "grad_add")  # operators that sum the gradients of a variable with several readers
_FUSIONS = (
    _Fusion("fuse_bn_act_ops", "fused_batch_norm_act", "batch_norm before a relu"),
    _Fusion("fuse_bn_add_act_ops", "fused_bn_add_activation", "batch_norm before an add and a relu"),
    _Fusion("fuse_elewise_add_act_ops", "fused_elemwise_add_activation", "elementwise_add before a relu"),
    _Fusion("enable_addto", "gradient of a convolution that adds", "sum of the gradient of a convolution's input"),
    _Fusion("enable_inplace", "share_buffer", "buffer that is not shared"),
    _Fusion("merged_optimizer", "merged_momentum", "momentum"),
    _Fusion("resnet_unit", "resnet_unit", "convolution that a unit takes"),
    _Fusion("merged_lars", "lars_momentum of several parameters", "lars_momentum of one parameter"),
)


def check_knobs(main: static.Program, decided: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
    """Return texts on what the knobs did in a built training program; raise Refused if one of the checks fails.

    A knob is an option of STRATEGY, such as `fuse_bn_act_ops`. The checks, in the order of the code:

    1. Knobs that change operators (_FUSIONS): a knob that is on in `decided` has left nothing to change, and a knob
       that is off has changed nothing. A knob that is on in `asked`, too, has changed something.
    2. Knobs of cuDNN: each flag of Paddle that the user set has the value that the user asked for. If the user set
       `cudnn_batchnorm_spatial_persistent`, cuDNN computes a normalization of the program.
    3. `perturb_input`, if on: at least one input is moved.
    4. Several ranks: the gradients are summed in buckets. No bucket of several gradients is above the limit
       `fuse_grad_size_in_MB`, and a bucket is closed only when it is full; three buckets of each data type may be
       closed earlier (`_check_full`). A single rank sums nothing over ranks, so the user must not have changed this
       limit.

    Args:
        main: Training program, before it is fitted to CPUs, which replaces operators.
        decided: The knobs by which the program was built: those that the user set, and those that `resolve` decided
            because the user left them open.
        asked: The knobs as the user set them; a knob that the user left open has its default, which is mostly None.
        ranks: Number of data-parallel processes.

    Returns:
        The texts, such as "fuse_bn_act_ops made 33 fused_batch_norm_act".

    Raises:
        Refused: One of the checks fails.
    """
    block = main.global_block()
    proved = _check_fusions(block, decided, asked=asked)  # the knobs in _FUSIONS
    if decided.enable_addto:
        proved += _sums_left_in_words(block)  # checks nothing: a count for the log
    _check_cudnn_flags(block, asked)  # the knobs that set flags of Paddle for cuDNN
    if decided.perturb_input:
        moved = _moved_inputs(block)
        prove(bool(moved), "STRATEGY: perturb_input is on and no input is moved")
        proved.append(f"perturb_input moved {', '.join(moved)} by one rounding")
    if ranks > 1:
        proved.append(_check_buckets(block, decided.fuse_grad_size_in_MB))
    else:
        _refuse_bucket_limit(asked)  # raises Refused if the user set `fuse_grad_size_in_MB` to another value than 16
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


def _moved_inputs(block: Block) -> list[str]:
    """Return the names of the inputs that `perturb_input` moves; it writes the moved values of NAME to NAME.moved."""
    moved = []
    for op in block.ops:
        if any(name.endswith(".moved") for name in op.output_arg_names):
            moved.append(op.input("X")[0])
    return moved


def _check_fusions(block: Block, decided: Strategy, *, asked: Strategy) -> list[str]:
    """Prove for each fusion knob that its pass did all its work if the knob is on, and nothing if it is off.

    A knob is an option of STRATEGY, such as `fuse_bn_act_ops`, and its pass is what changes the program for it. If the
    user turned a knob on, its pass must have made something; one that is on by default may find nothing to change.

    Args:
        block: Main block of a built training program.
        decided: The knobs by which the program was built.
        asked: The knobs as the user set them; None for one that the user left open.

    Returns:
        Texts on what was made, one for each knob that is on.

    Raises:
        Refused: A knob fails; the first one is named.
    """
    made_by_knob = _count_made(block)  # operators that each knob's pass has made
    left_by_knob = _count_left(block)  # places that it should have changed, and did not
    proved = []
    for fusion in _FUSIONS:
        made_count = made_by_knob[fusion.knob]
        left_count = left_by_knob[fusion.knob]
        is_on = bool(getattr(decided, fusion.knob))
        is_asked = bool(getattr(asked, fusion.knob))
        if is_on:
            _check_nothing_is_left(fusion, left_count)
            if is_asked:
                _check_something_is_made(fusion, made_count)
            proved.append(_made_in_words(fusion, made_count))
        else:
            _check_nothing_is_made(fusion, made_count)
    return proved


def _check_nothing_is_left(fusion: _Fusion, left_count: int) -> None:
    prove(
        left_count == 0,
        f"STRATEGY: {fusion.knob} is on and the program has {left_count} {fusion.left_noun}: set {fusion.knob}=0",
    )


def _check_something_is_made(fusion: _Fusion, made_count: int) -> None:
    prove(made_count > 0, f"STRATEGY: {fusion.knob} is on and the program has no {fusion.made_noun}: leave it out")


def _check_nothing_is_made(fusion: _Fusion, made_count: int) -> None:
    prove(made_count == 0, f"STRATEGY: {fusion.knob} is off and the program has {made_count} {fusion.made_noun}")


def _made_in_words(fusion: _Fusion, made_count: int) -> str:
    """Say how much the pass of a knob that is on made, as "merged_lars found nothing to change".

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
    a convolution could make itself, so the sums that are counted here are needed. Such sums are no fault.

    Args:
        block: Main block of a built training program.

    Returns:
        A list of the one text; an empty list if there are no such operators.
    """
    sums = sum(1 for op in block.ops if op.type in _SUMS)  # "sum" or "grad_add"
    if sums == 0:
        return []
    return [f"enable_addto left {sums} sums of gradients that no convolution makes"]


def _count_made(block: Block) -> dict[str, int]:
    """Return how many times each fusion knob, an option of STRATEGY, changed a program: {"fuse_bn_act_ops": 33, ...}.

    Most knobs make operators of a type that nothing else makes, such as "fused_batch_norm_act". These operators are
    counted. Three knobs make no such type:

        enable_addto     lets convolutions add to gradients: counted are the gradients that are added to
        enable_inplace   makes `share_buffer` operators, as `enable_addto` does, too: counted are those that do not
                         touch a gradient that is added to
        merged_lars      merges `lars_momentum` operators: counted are those of more than one parameter

    Args:
        block: Main block of a built training program.
    """
    count_by_type = Counter(op.type for op in block.ops)
    gradients_added_to = _gradients_added_to(block)
    return {
        "fuse_bn_act_ops": count_by_type["fused_batch_norm_act"],
        "fuse_bn_add_act_ops": count_by_type["fused_bn_add_activation"],
        "fuse_elewise_add_act_ops": count_by_type["fused_elemwise_add_activation"],
        "enable_addto": len(gradients_added_to),
        "enable_inplace": _count_shared_by_inplace(block, gradients_added_to),
        "merged_optimizer": count_by_type["merged_momentum"],
        "resnet_unit": count_by_type["resnet_unit"],
        "merged_lars": len([op for op in block.ops if op.type == "lars_momentum" and len(op.input("Param")) > 1]),
    }


def _gradients_added_to(block: Block) -> list[str]:
    """Return the gradients to which a convolution's gradient operator adds its result (`enable_addto`)."""
    names: list[str] = []
    for op in block.ops:
        names += ops.added_to(op)
    return names


def _count_shared_by_inplace(block: Block, gradients_added_to: list[str]) -> int:
    """Count the operators `share_buffer` that the knob `enable_inplace` made.

    Such an operator lets an output use the buffer of an input. Two knobs make them: `enable_addto` those that touch
    `gradients_added_to`, `enable_inplace` all others.

    Args:
        block: Main block of a built training program.
        gradients_added_to: Gradients to which a convolution adds its result.
    """
    count = 0
    for op in block.ops:
        if op.type == "share_buffer":
            shared = {*op.input("X"), *op.output("Out")}
            is_by_addto = not shared.isdisjoint(gradients_added_to)
            if not is_by_addto:
                count += 1
    return count


def _count_left(block: Block) -> dict[str, int]:
    """Count what each fusion knob, an option of STRATEGY, left to be done in a program.

    Counted are the places that the knob's pass would still change. A place may count for several knobs. It is for

        fuse_bn_act_ops            a float16 NHWC batch norm that only a relu reads
        fuse_bn_add_act_ops        a float16 NHWC batch norm that only an addition before a relu reads
        fuse_elewise_add_act_ops   an addition that only a relu reads
        enable_addto               a sum of gradients that a convolution's gradient operator could compute
        enable_inplace             nothing (0), because not every output can take an input's buffer
        merged_optimizer           a momentum update of one parameter
        resnet_unit                a convolution that a `resnet_unit` takes
        merged_lars                a LARS update of one parameter that could be merged with another one

    Args:
        block: Main block of a built training program.

    Returns:
        Counts by knob, as {"fuse_bn_act_ops": 0, ...}; 0 if the pass did all its work.
    """
    reads = _Reads(block)
    fusible_norms = [op for op in block.ops if _is_half_nhwc_norm(op, block)]
    sole_readers_of_norms = [reads.sole_reader(op, "Y") for op in fusible_norms]
    return {
        "fuse_bn_act_ops": sum(1 for reader in sole_readers_of_norms if _is_relu(reader)),
        "fuse_bn_add_act_ops": sum(1 for reader in sole_readers_of_norms if reads.is_add_before_relu(reader)),
        "fuse_elewise_add_act_ops": sum(1 for op in block.ops if reads.is_unfused_add_before_relu(op)),
        "enable_addto": _count_sums_for_convolutions(block),
        "enable_inplace": 0,
        "merged_optimizer": sum(1 for op in block.ops if op.type == "momentum"),
        "resnet_unit": sum(1 for op in block.ops if takes_convolution(op, block)),
        "merged_lars": _count_mergeable_lars(block),
    }


def _count_sums_for_convolutions(block: Block) -> int:
    """Return how many operators of a program sum gradients although a convolution could have done so.

    The knob `enable_addto` should have removed these operators. For example, an operator sums gradient a, which a
    convolution's gradient operator writes, and gradient b. The convolution's operator could add its result to b itself,
    so the sum is not needed, and counts. A sum does not count if each convolution's operator that writes one of the
    sum's gradients adds to another gradient already, because an operator can add to a single gradient only.

    Args:
        block: Main block of a built training program.
    """
    last_writer: dict[str, Operator] = {}  # variable: the last operator so far that wrote it
    count = 0
    for op in block.ops:
        if op.type in _SUMS:
            # The sum reads the gradients as their last writers left them.
            writers = [last_writer[name] for name in op.input_arg_names if name in last_writer]
            # True for a convolution's gradient operator that adds to no gradient yet. One such writer is enough.
            if any(_could_add(writer) for writer in writers):
                count += 1
        # After the test, so that no sum counts as the writer of a gradient that it reads.
        last_writer |= dict.fromkeys(op.output_arg_names, op)
    return count


def _could_add(writer: Operator) -> bool:
    """Tell whether an operator is a convolution's gradient that could add its result to another gradient.

    Args:
        writer: Operator that writes a gradient. If it adds to a gradient already, it cannot add to another.
    """
    return writer.type in ops.ADDING and not ops.added_to(writer)


def _is_relu(op: Operator | None) -> bool:
    """Tell whether there is an operator, and it is a relu."""
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
        """Tell whether there is an operator that is an addition before a relu, or Paddle's fusion of the two."""
        if op is None:
            return False
        if op.type == "fused_elemwise_add_activation":
            return bool(op.attr("functor_list") == ["relu", "elementwise_add"])
        return self.is_unfused_add_before_relu(op)

    def is_unfused_add_before_relu(self, op: Operator) -> bool:
        """Tell whether an operator is an addition whose only reader is a relu."""
        return op.type == "elementwise_add" and _is_relu(self.sole_reader(op, "Out"))


def _is_half_nhwc_norm(op: Operator, block: Block) -> bool:
    """Tell whether an operator is a batch norm in float16 and NHWC, which is what cuDNN's fused kernels take."""
    return (
        op.type == "batch_norm" and op.attr("data_layout") == "NHWC" and type_in(block, op.input("X")[0]) == "float16"
    )


def _count_mergeable_lars(block: Block) -> int:
    """Count the LARS updates of one parameter that could be merged with another one for the same data type.

    Args:
        block: Main block of a built training program.
    """
    single_by_type: Counter[str] = Counter()
    for op in block.ops:
        if op.type == "lars_momentum" and len(op.input("Param")) == 1:
            single_by_type[type_in(block, op.input("Param")[0])] += 1
    return sum(count for count in single_by_type.values() if count > 1)  # one alone has no partner


def _check_cudnn_flags(block: Block, asked: Strategy) -> None:
    """Raise Refused if an option for cuDNN that the user set in STRATEGY is not in force, or can have no effect.

    Args:
        block: Main block of a built training program.
        asked: The options as the user set them; None for an option that the user left open, which is not checked.

    Raises:
        Refused: An option's flag in Paddle has another value than the user set. Also if the user set
            `cudnn_batchnorm_spatial_persistent`, to on or off, and cuDNN computes no normalization of this program: the
            option only selects kernels of cuDNN for such normalizations.
    """
    # `prove(claim, message)` raises Refused with the message if the claim is False.
    for flag, value in asked.flags.items():  # as {"FLAGS_cudnn_exhaustive_search": True}: only what the user set
        value_in_force = paddle.get_flags(flag)[flag]
        knob = flag.removeprefix("FLAGS_")
        prove(value_in_force == value, f"STRATEGY: {knob}={value:d}: Paddle has {flag}={value_in_force}")
    is_norm_knob_set = asked.cudnn_batchnorm_spatial_persistent is not None
    if is_norm_knob_set:  # also if set to off: without a normalization of cuDNN, neither value has an effect
        prove(
            any(_is_norm_of_cudnn(op) for op in block.ops),
            "STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization here is cuDNN's: leave it out",
        )


def _is_norm_of_cudnn(op: Operator) -> bool:
    """Tell whether an operator is a normalization that cuDNN computes. Paddle has a kernel of its own over ranks."""
    return op.type in ops.NORMALIZATIONS and op.type != "sync_batch_norm"


class _Bucket(NamedTuple):
    """Gradients of one data type that `coalesce_tensor` puts side by side in a buffer."""

    buffer: str
    dtype: str
    sizes_mib: list[float]  # of its gradients, in order


def _check_buckets(block: Block, limit_mib: float) -> str:
    """Prove that gradients are summed over the ranks in buckets that are within the limit and closed only when full.

    A bucket is a group of gradients that lie in one buffer and are summed by one all-reduce. It is full if the next
    gradient of its data type does not fit into it; `_check_full` excepts three buckets of each type.

    Args:
        block: Main block of a training program for several ranks.
        limit_mib: Most MiB of gradients in one bucket.

    Returns:
        The limit and the number of buckets in words, as "fuse_grad_size_in_MB=16: buckets 9".

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
    for dtype in dict.fromkeys(bucket.dtype for bucket in buckets):  # each type once
        _check_full([bucket for bucket in buckets if bucket.dtype == dtype], limit_mib)
    # Each all-reduce sums one bucket.
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
    without_first_and_last = buckets[1:-1]
    # With buckets 0 to 4 the pairs are (1, 2) and (2, 3): the last but one, 3, is not checked either.
    for bucket, next_bucket in itertools.pairwise(without_first_and_last):
        mib = sum(bucket.sizes_mib)
        next_mib = next_bucket.sizes_mib[0]
        prove(
            mib + next_mib > limit_mib,
            f"STRATEGY: a bucket is closed at {mib:.2f} MiB, the next gradient has {next_mib:.2f}, "
            f"fuse_grad_size_in_MB is {six_digits(limit_mib)}",
        )
