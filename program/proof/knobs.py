"""Proof, read off a built training program, that each knob of the strategy did what it says."""

from collections import Counter
from typing import NamedTuple

import paddle
from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.ops import Refused, prove, type_in
from program.passes.resnet_unit import takes_convolution
from program.strategy import Strategy
from runlog.digits import six_digits


class _Fusion(NamedTuple):
    """A knob, and two nouns for messages: what its pass makes, and what its pass replaces."""

    knob: str
    made_noun: str  # for most passes, the type of the operator that the pass makes
    left_noun: str  # what a program still has if the pass left it unchanged; empty if it is not counted


_FUSIONS = (
    _Fusion("fuse_bn_act_ops", "fused_batch_norm_act", "batch_norm before a relu"),
    _Fusion("fuse_bn_add_act_ops", "fused_bn_add_activation", "batch_norm before an add and a relu"),
    _Fusion("fuse_elewise_add_act_ops", "fused_elemwise_add_activation", "elementwise_add before a relu"),
    _Fusion("enable_addto", "gradient of a convolution that adds", "sum of the gradient of a convolution's input"),
    _Fusion("enable_inplace", "share_buffer", ""),
    _Fusion("merged_optimizer", "merged_momentum", "momentum"),
    _Fusion("resnet_unit", "resnet_unit", "convolution that a unit takes"),
    _Fusion("merged_lars", "lars_momentum of several parameters", "lars_momentum of one parameter"),
)


def check_knobs(main: static.Program, decided: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
    """Prove that the knobs of STRATEGY changed a built program as they should.

    `asked` has the knobs as the user set them. None means that the user left a knob to the program. `decided` has the
    same knobs, with on or off in place of None. Only cuDNN's knobs may still be None in it.

    - fusions and merged updates: see `_check_fusions`.
    - cuDNN's flags: Paddle has the values that the user gave.
    - `perturb_input`: if it is on, an input is moved.
    - `fuse_grad_size_in_MB`: no bucket of several gradients is larger than this limit, and buckets are filled up to it.
      With one rank there are no buckets, so any value except the default is refused.

    Returns what was proved in words, as "fuse_bn_act_ops made 33 fused_batch_norm_act". Raises Refused for the first
    rule that does not hold.
    """
    block = main.global_block()
    proved = _check_fusions(block, decided, asked=asked)
    _check_cudnn_flags(block, asked)
    if decided.perturb_input:
        moved = _moved_inputs(block)
        prove(bool(moved), "STRATEGY: perturb_input is on and no input is moved")
        proved.append(f"perturb_input moved {', '.join(moved)} by one rounding")
    if ranks > 1:
        proved.append(_check_buckets(block, decided.fuse_grad_size_in_MB))
    # One rank has no buckets.
    elif asked.fuse_grad_size_in_MB != Strategy.fuse_grad_size_in_MB:  # the class has the default
        raise Refused(
            "STRATEGY: fuse_grad_size_in_MB: one rank has no all-reduce: leave it out, or set DGXNGPU or DGXNNODES "
            "above 1"
        )
    return proved


def _moved_inputs(block: Block) -> list[str]:
    """Return the names of the inputs that `perturb_input` moves; it writes the moved values of NAME to NAME.moved."""
    moved = []
    for op in block.ops:
        if any(name.endswith(".moved") for name in op.output_arg_names):
            moved.append(op.input("X")[0])
    return moved


def _check_fusions(block: Block, decided: Strategy, *, asked: Strategy) -> list[str]:
    """Prove that the pass of each knob of `_FUSIONS` did all its work if the knob is on, and nothing if it is off.

    `asked` says which knobs the user turned on. Returns in words what each pass did that is on, and how many sums of
    gradients `enable_addto` left. Raises Refused for the first knob that fails.
    """
    made_by_knob = _count_made(block)  # how many operators, or gradients added to, each pass made
    left_by_knob = _count_left(block)  # how many operators each pass could still replace
    proved = []
    for fusion in _FUSIONS:
        knob = fusion.knob
        made_count = made_by_knob[knob]
        is_on = getattr(decided, knob)
        if is_on:
            is_asked = bool(getattr(asked, knob))
            proved.append(
                _check_fusion_that_is_on(fusion, made_count, left_count=left_by_knob[knob], is_asked=is_asked)
            )
        else:
            prove(made_count == 0, f"STRATEGY: {knob} is off and the program has {made_count} {fusion.made_noun}")

    # These sums are no failure: `enable_addto` can only remove sums of gradients that a convolution makes.
    sums = sum(op.type in ("sum", "grad_add") for op in block.ops)
    if decided.enable_addto and sums:
        proved.append(f"enable_addto left {sums} sums of gradients that no convolution makes")
    return proved


def _check_fusion_that_is_on(fusion: _Fusion, made_count: int, *, left_count: int, is_asked: bool) -> str:
    """Prove that a pass changed everything that it could: `left_count` is 0.

    If `is_asked`, the user set the knob, and the pass must also have made something: `made_count` is above 0. Otherwise
    the knob is on by default, and a program without anything to change is accepted.

    Returns in words what the pass made. Raises Refused if a proof fails.
    """
    knob, made_noun, left_noun = fusion
    prove(left_count == 0, f"STRATEGY: {knob} is on and the program has {left_count} {left_noun}: set {knob}=0")
    if is_asked:
        prove(made_count > 0, f"STRATEGY: {knob} is on and the program has no {made_noun}: leave it out")
    if made_count > 0:
        return f"{knob} made {made_count} {made_noun}"
    return f"{knob} found nothing to change"


def _count_made(block: Block) -> dict[str, int]:
    """Count what each pass made in a program, by the knob that turns on the pass.

    Most passes make operators of a type that nothing else makes. These operators are counted. There are three
    exceptions:

    - `enable_addto`: the gradients to which a convolution's gradient operator adds its result.
    - `enable_inplace`: the `share_buffer` operators, except those on a gradient that is added to. The pass of
      `enable_addto` makes such operators too.
    - `merged_lars`: the `lars_momentum` operators that update several parameters.
    """
    count_by_type = Counter(op.type for op in block.ops)
    made = {fusion.knob: count_by_type[fusion.made_noun] for fusion in _FUSIONS}

    gradients_added_to: list[str] = []  # those to which a convolution's gradient operator adds its result
    for op in block.ops:
        gradients_added_to += ops.added_to(op)
    made["enable_addto"] = len(gradients_added_to)

    made["enable_inplace"] = 0
    made["merged_lars"] = 0
    for op in block.ops:
        if op.type == "share_buffer":
            shared = {*op.input("X"), *op.output("Out")}
            # The pass of `enable_addto` makes such operators too, on the gradients that are added to.
            is_from_addto = bool(shared.intersection(gradients_added_to))
            if not is_from_addto:
                made["enable_inplace"] += 1
        elif op.type == "lars_momentum" and len(op.input("Param")) > 1:
            made["merged_lars"] += 1
    return made


def _count_left(block: Block) -> Counter[str]:
    """Count the places of a program that each pass would still change, by the knob that turns on the pass.

    A place is an operator that is part of the pattern that the pass replaces. One operator may be a place for several
    passes. The comments in the body name the patterns.
    """
    reads = _Reads(block)
    places: Counter[str] = Counter()
    last_writer: dict[str, Operator] = {}  # variable: the last operator so far that wrote it
    for op in block.ops:
        if takes_convolution(op, block):  # a convolution that `resnet_unit` can compute
            places["resnet_unit"] += 1
        if op.type == "elementwise_add" and reads.is_add_before_relu(op):  # add -> relu
            places["fuse_elewise_add_act_ops"] += 1
        if op.type == "momentum":  # an update of one parameter
            places["merged_optimizer"] += 1
        if _is_half_nhwc_norm(op, block):
            reader = reads.sole_reader(op, "Y")
            if reader is not None and reader.type == "relu":  # batch norm -> relu
                places["fuse_bn_act_ops"] += 1
            if reader is not None and reads.is_add_before_relu(reader):  # batch norm -> add -> relu
                places["fuse_bn_add_act_ops"] += 1
        if _could_be_added_by_convolution(op, last_writer):  # gradient of a convolution -> sum
            places["enable_addto"] += 1
        for name in op.output_arg_names:
            last_writer[name] = op
    places["merged_lars"] = _count_mergeable_lars(block)  # LARS updates of one parameter
    return places


def _could_be_added_by_convolution(op: Operator, last_writer: dict[str, Operator]) -> bool:
    """Tell whether `op` sums gradients that a convolution's gradient operator could have added itself.

    The last writer of one of the inputs of `op` must be a convolution's gradient operator. This writer must not add its
    result to another gradient already.

    `last_writer` maps each variable to the last operator before `op` that wrote it.
    """
    if op.type not in ("sum", "grad_add"):
        return False
    for name in op.input_arg_names:
        writer = last_writer.get(name)
        # A writer that adds its result to one gradient already cannot add it to another.
        if writer is not None and writer.type in ops.ADDING and not ops.added_to(writer):
            return True
    return False


class _Reads:
    """Who reads what in a block."""

    def __init__(self, block: Block) -> None:
        self._ops = block.ops
        self._readers = ops.readers(block)

    def sole_reader(self, op: Operator, slot: str) -> Operator | None:
        """Return the only operator that reads the output in a slot; None if no operator or several read it.

        `share_buffer` does not count, because it reads no value.
        """
        readers = [self._ops[index] for index in self._readers.get(op.output(slot)[0], ())]
        readers = [reader for reader in readers if reader.type != "share_buffer"]
        return readers[0] if len(readers) == 1 else None

    def is_add_before_relu(self, op: Operator) -> bool:
        """Tell whether an operator is an addition whose only reader is a relu, or Paddle's fusion of the two."""
        if op.type == "fused_elemwise_add_activation":
            return bool(op.attr("functor_list") == ["relu", "elementwise_add"])
        if op.type != "elementwise_add":
            return False
        reader = self.sole_reader(op, "Out")
        return reader is not None and reader.type == "relu"


def _is_half_nhwc_norm(op: Operator, block: Block) -> bool:
    """Tell whether an operator is a batch norm in float16 and NHWC, which is what cuDNN's fused kernels take."""
    return (
        op.type == "batch_norm" and op.attr("data_layout") == "NHWC" and type_in(block, op.input("X")[0]) == "float16"
    )


def _count_mergeable_lars(block: Block) -> int:
    """Count the LARS updates of one parameter that could be merged with another one for the same data type."""
    single_by_type: Counter[str] = Counter()
    for op in block.ops:
        if op.type == "lars_momentum" and len(op.input("Param")) == 1:
            single_by_type[type_in(block, op.input("Param")[0])] += 1
    return sum(count for count in single_by_type.values() if count > 1)  # one alone has no partner


def _check_cudnn_flags(block: Block, asked: Strategy) -> None:
    """Prove that the knobs of cuDNN that the user set are in force.

    Raises Refused if

    - Paddle has a flag of cuDNN at another value than the user's, or
    - the user set `cudnn_batchnorm_spatial_persistent` and the program has no normalization that cuDNN computes.
    """
    for flag, value in asked.flags.items():
        value_in_force = paddle.get_flags(flag)[flag]
        knob = flag.removeprefix("FLAGS_")
        prove(value_in_force == value, f"STRATEGY: {knob}={value:d}: Paddle has {flag}={value_in_force}")
    if asked.cudnn_batchnorm_spatial_persistent is None:
        return
    computed_by_cudnn = ops.NORMALIZATIONS - {"sync_batch_norm"}  # this one has a kernel of Paddle's own
    prove(
        any(op.type in computed_by_cudnn for op in block.ops),
        "STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization here is cuDNN's: leave it out",
    )


def _check_buckets(block: Block, limit_mib: float) -> str:
    """Prove that all-reduces sum buckets of gradients, and that the buckets are within `limit_mib` and full.

    A bucket is a buffer that `coalesce_tensor` makes of gradients. Returns the number of all-reduces in words. Raises
    Refused for the first bucket that fails.
    """
    coalescing = [op for op in block.ops if op.type == "coalesce_tensor"]
    buffers = {op.output("FusedOutput")[0] for op in coalescing}
    # `check_gradients` proves that every gradient is in an all-reduce.
    all_reduced = [op.input("X")[0] for op in block.ops if op.type == "c_allreduce_sum"]
    for name in all_reduced:
        prove(name in buffers, f"STRATEGY: fuse_grad_size_in_MB: {name} travels by itself, in no bucket")

    for buckets in _bucket_sizes_by_type(coalescing, block, limit_mib).values():
        _check_full(buckets, limit_mib)
    return f"fuse_grad_size_in_MB={six_digits(limit_mib)}: buckets {len(all_reduced)}"


def _bucket_sizes_by_type(coalescing: list[Operator], block: Block, limit_mib: float) -> dict[str, list[list[float]]]:
    """Map each data type to its buckets, each a list of the MiB of its gradients.

    `coalescing` has the `coalesce_tensor` operator of each bucket. Raises Refused if several gradients in a bucket have
    more than `limit_mib` together.
    """
    buckets_by_type: dict[str, list[list[float]]] = {}
    for op in coalescing:
        gradients = op.output("Output")
        sizes_mib = [ops.size_bytes(block.var(name)) / ops.MIB for name in gradients]
        # A bucket of one gradient may have any size.
        is_within_limit = len(sizes_mib) == 1 or sum(sizes_mib) <= limit_mib
        prove(
            is_within_limit,
            f"STRATEGY: a bucket has {sum(sizes_mib):.2f} MiB, fuse_grad_size_in_MB is {six_digits(limit_mib)}",
        )
        buckets_by_type.setdefault(type_in(block, gradients[0]), []).append(sizes_mib)
    return buckets_by_type


def _check_full(buckets: list[list[float]], limit_mib: float) -> None:
    """Prove that no bucket was closed although the first gradient of the next one would have fitted into it.

    `buckets` are those of one data type, in order. Each is a list of the MiB of its gradients. `limit_mib` is the most
    that a bucket may hold.

    Not checked are the first bucket, which `passes/buckets.py` closes early so that the network has work soon, and the
    last two: the last one is small on purpose, so the one before it may have room. Raises Refused for the first other
    bucket that is not full.
    """
    # `passes/buckets.py` closes the first bucket early, so that the network has work soon. The last one is small on
    # purpose, so the one before it may have room.
    must_be_full = range(1, len(buckets) - 2)
    for index in must_be_full:
        mib = sum(buckets[index])
        next_mib = buckets[index + 1][0]
        prove(
            mib + next_mib > limit_mib,
            f"STRATEGY: a bucket is closed at {mib:.2f} MiB, the next gradient has {next_mib:.2f}, "
            f"fuse_grad_size_in_MB is {six_digits(limit_mib)}",
        )
