"""Proof, read off a built training program, that each knob of the strategy did what it says."""

from collections import Counter
from itertools import pairwise
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
    """A knob and what the pass that it turns on makes of a program, in words for a message."""

    knob: str
    result: str  # what it makes; for most passes, the type of the operator
    pattern: str  # what it replaces, which is left only where it did not run


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
    """Prove, off a built program, that these knobs of STRATEGY did to it what they say:

    - Those of fusions and merged updates changed it everywhere if they are on, and nowhere if they are off. One that is
      on by default may find nothing to change; one that the user asked for may not.
    - Paddle's flags of cuDNN have the values that the user gave them.
    - `perturb_input` moved an input if it is on.
    - The buckets of the all-reduce keep to `fuse_grad_size_in_MB` and use it. On one rank there are none, and the user
      may not have set it.

    `asked` holds the knobs as the user set them, `decided` as they are for this device: one that the user left open is
    on or off there. Returns what the knobs changed, in words, as "fuse_bn_act_ops made 33 fused_batch_norm_act". Raises
    Refused for the first of which this is not so.
    """
    block = main.global_block()
    proved = _check_fusions(block, decided, asked=asked)
    _check_flags(block, asked)
    if decided.perturb_input:
        moved = _moved_inputs(block)
        prove(bool(moved), "STRATEGY: perturb_input is on and no input is moved")
        proved.append(f"perturb_input moved {', '.join(moved)} by one rounding")
    if ranks > 1:
        proved.append(_check_buckets(block, decided.fuse_grad_size_in_MB))
    elif asked.fuse_grad_size_in_MB != Strategy.fuse_grad_size_in_MB:
        raise Refused(
            "STRATEGY: fuse_grad_size_in_MB: one rank has no all-reduce: leave it out, or set DGXNGPU or DGXNNODES "
            "above 1"
        )
    return proved


def _moved_inputs(block: Block) -> list[str]:
    """Return the names of the inputs that `perturb_input` changes: the pass calls what it makes of NAME NAME.moved."""
    moved = []
    for op in block.ops:
        if any(name.endswith(".moved") for name in op.output_arg_names):
            moved.append(op.input("X")[0])
    return moved


def _check_fusions(block: Block, decided: Strategy, *, asked: Strategy) -> list[str]:
    """Prove that the pass of each knob ran everywhere if the knob is on, and nowhere if it is off.

    A pass ran nowhere if the program has none of the operators that it makes, and everywhere if no place is left that
    it would have changed. Returns what each pass that is on made, in words, and how many sums of gradients there are to
    which `enable_addto` does not apply. Raises Refused for the first knob of which this is not so, or whose pass the
    user asked for and which made nothing.
    """
    made_by_knob = _count_made(block)
    left_by_knob = _count_left(block)
    proved = []
    for knob, result, pattern in _FUSIONS:
        made = made_by_knob[knob]
        if not getattr(decided, knob):
            prove(not made, f"STRATEGY: {knob} is off and the program has {made} {result}")
            continue
        left = left_by_knob[knob]
        prove(not left, f"STRATEGY: {knob} is on and the program has {left} {pattern}: set {knob}=0")
        is_asked_in_vain = getattr(asked, knob) and not made
        prove(not is_asked_in_vain, f"STRATEGY: {knob} is on and the program has no {result}: leave it out")
        if made:
            proved.append(f"{knob} made {made} {result}")
        else:
            proved.append(f"{knob} found nothing to change")

    sums = sum(op.type in ("sum", "grad_add") for op in block.ops)
    if decided.enable_addto and sums:
        proved.append(f"enable_addto left {sums} sums of gradients that no convolution makes")
    return proved


def _count_made(block: Block) -> dict[str, int]:
    """Return how much each pass made in a program, by the knob that turns on the pass.

    Most passes make a type of operator of their own, which is counted. Three do not:

    - `enable_addto` lets gradients of convolutions add to a gradient that is there: these gradients are counted.
    - `enable_inplace` makes `share_buffer` operators, and so does addto, around each gradient that is added to. Those
      are not counted.
    - `merged_lars` makes updates of the type of a plain one, with several parameters: these are counted.
    """
    kinds = Counter(op.type for op in block.ops)
    made = {fusion.knob: kinds[fusion.result] for fusion in _FUSIONS}

    added_to: list[str] = []  # gradients to which a convolution's gradient adds
    for op in block.ops:
        added_to += ops.added_to(op)
    made["enable_addto"] = len(added_to)

    made["enable_inplace"] = 0
    made["merged_lars"] = 0
    for op in block.ops:
        if op.type == "share_buffer":
            shared = {*op.input("X"), *op.output("Out")}
            if not shared.intersection(added_to):
                made["enable_inplace"] += 1
        elif op.type == "lars_momentum" and len(op.input("Param")) > 1:
            made["merged_lars"] += 1
    return made


def _count_left(block: Block) -> Counter[str]:
    """Return how many places a program still has that each pass would change, by the knob that turns on the pass.

    A place is an operator at which the pattern begins that the pass looks for, as a batch norm whose only reader is a
    relu. Each operator is looked at in order, and may be a place for several passes. For addto it is a sum of gradients
    one of which a convolution's gradient made: `last_writer` has the operator that last wrote each variable before it.
    """
    reads = _Reads(block)
    places: Counter[str] = Counter()
    last_writer: dict[str, Operator] = {}
    for op in block.ops:
        if takes_convolution(op, block):
            places["resnet_unit"] += 1
        if op.type == "elementwise_add" and reads.is_add_before_relu(op):
            places["fuse_elewise_add_act_ops"] += 1
        if op.type == "momentum":
            places["merged_optimizer"] += 1
        if _is_half_nhwc_norm(op, block):
            reader = reads.sole_reader(op, "Y")
            if reader is not None and reader.type == "relu":
                places["fuse_bn_act_ops"] += 1
            if reader is not None and reads.is_add_before_relu(reader):
                places["fuse_bn_add_act_ops"] += 1
        if _sums_convolutions_gradient(op, last_writer):
            places["enable_addto"] += 1
        for name in op.output_arg_names:
            last_writer[name] = op
    places["merged_lars"] = _unmerged_lars(block)
    return places


def _sums_convolutions_gradient(op: Operator, last_writer: dict[str, Operator]) -> bool:
    """Tell whether an operator adds up gradients of which one is a convolution's, which could have added it itself."""
    if op.type not in ("sum", "grad_add"):
        return False
    for name in op.input_arg_names:
        maker = last_writer.get(name)
        if maker is not None and maker.type in ops.ADDING and not ops.added_to(maker):
            return True
    return False


class _Reads:
    """Who reads what in a block."""

    def __init__(self, block: Block) -> None:
        self._ops = block.ops
        self._readers = ops.readers(block)

    def sole_reader(self, op: Operator, slot: str) -> Operator | None:
        """Return the only operator that reads the output in a slot; None if there are none or several.

        A share_buffer is not counted, as it reads no value.
        """
        readers = [self._ops[index] for index in self._readers.get(op.output(slot)[0], ())]
        readers = [reader for reader in readers if reader.type != "share_buffer"]
        return readers[0] if len(readers) == 1 else None

    def is_add_before_relu(self, op: Operator) -> bool:
        """Tell whether an operator is an addition whose only reader is a relu, or both as Paddle's fused operator."""
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


def _unmerged_lars(block: Block) -> int:
    """Count the LARS updates of one parameter that could be merged, as there is another for a parameter of its type."""
    single_by_type: Counter[str] = Counter()
    for op in block.ops:
        if op.type == "lars_momentum" and len(op.input("Param")) == 1:
            single_by_type[type_in(block, op.input("Param")[0])] += 1
    return sum(count for count in single_by_type.values() if count > 1)


def _check_flags(block: Block, asked: Strategy) -> None:
    """Prove that Paddle has each flag of cuDNN at the value that the user's STRATEGY gives it.

    Raises Refused for the first flag that has another value, and where the user sets the knob for cuDNN's batch norm
    for a program in which cuDNN computes no normalization.
    """
    for flag, value in asked.flags.items():
        in_force = paddle.get_flags(flag)[flag]
        knob = flag.removeprefix("FLAGS_")
        prove(in_force == value, f"STRATEGY: {knob}={value:d}: Paddle has {flag}={in_force}")
    if asked.cudnn_batchnorm_spatial_persistent is None:
        return
    by_cudnn = ops.NORMALIZATIONS - {"sync_batch_norm"}  # which has a kernel of Paddle's
    prove(
        any(op.type in by_cudnn for op in block.ops),
        "STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization here is cuDNN's: leave it out",
    )


def _check_buckets(block: Block, limit_mib: float) -> str:
    """Prove that each all-reduce is of a bucket, and that the buckets keep to the limit and use it.

    A bucket is a buffer in which `coalesce_tensor` joins gradients. Several gradients may have `limit_mib` MiB together
    at most; a single gradient may have any size. And a bucket may be closed only where the next gradient would not have
    fitted into it, but for the two buckets that `_check_full` names. That no gradient is left out of the all-reduces is
    not proved here but by `verify.gradients`.

    Returns the number of all-reduces in words, as "fuse_grad_size_in_MB=16: buckets 7". Raises Refused for the first
    bucket of which this is not so.
    """
    joins = [op for op in block.ops if op.type == "coalesce_tensor"]
    buffers = {op.output("FusedOutput")[0] for op in joins}
    summed = [op.input("X")[0] for op in block.ops if op.type == "c_allreduce_sum"]
    for name in summed:
        prove(name in buffers, f"STRATEGY: fuse_grad_size_in_MB: {name} travels by itself, in no bucket")

    # For each bucket of a data type, the MiB of each of its gradients. Types are apart, as a buffer has one type: a
    # gradient of another type never fits into it.
    buckets_by_type: dict[str, list[list[float]]] = {}
    for op in joins:
        gradients = op.output("Output")
        sizes_mib = [ops.size_bytes(block.var(name)) / ops.MIB for name in gradients]
        is_within = len(sizes_mib) == 1 or sum(sizes_mib) <= limit_mib
        prove(is_within, f"STRATEGY: a bucket has {sum(sizes_mib):.2f} MiB, fuse_grad_size_in_MB is {limit_mib:g}")
        buckets_by_type.setdefault(type_in(block, gradients[0]), []).append(sizes_mib)
    for buckets in buckets_by_type.values():
        _check_full(buckets, limit_mib)
    return f"fuse_grad_size_in_MB={six_digits(limit_mib)}: buckets {len(summed)}"


def _check_full(buckets: list[list[float]], limit_mib: float) -> None:
    """Prove that no bucket was closed though the first gradient of the next one would have fitted into it.

    `buckets` are those of one type, in order, each with the MiB of its gradients. Two of them need not be full, as
    `passes/buckets.py` closes them early: the first, so that the network has work soon, and the last but one, as the
    last one is to be small. Raises Refused for the first other one that is not as full as `limit_mib` allows.
    """
    for sizes_mib, next_sizes_mib in pairwise(buckets[1:-1]):  # the last but one is never the first of a pair
        next_mib = next_sizes_mib[0]
        prove(
            sum(sizes_mib) + next_mib > limit_mib,
            f"STRATEGY: a bucket is closed at {sum(sizes_mib):.2f} MiB, the next gradient has {next_mib:.2f}, "
            f"fuse_grad_size_in_MB is {limit_mib:g}",
        )
