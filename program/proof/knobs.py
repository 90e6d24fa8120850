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


class _Fusion(NamedTuple):
    """A pass that a knob turns on."""

    knob: str
    result: str  # what it makes
    pattern: str  # what is there only where it did not run


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


def check_knobs(main: static.Program, on: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
    """Prove, off a built program, that each knob of STRATEGY that is on changed it, and that no other did.

    `on` holds the knobs as they were decided for this device, `asked` as the user set them. A knob that is on by
    default may find nothing to change; one that the user asked for may not.

    Returns what each knob changed, in words, as "fuse_bn_act_ops made 33 fused_batch_norm_act". Raises Refused where a
    pass did not run, ran without its knob, or changed nothing that the user asked for.
    """
    block = main.global_block()
    proved = _fusions(block, on, asked=asked)
    _check_flags(block, asked)
    if on.perturb_input:
        moved = _moved_inputs(block)
        prove(bool(moved), "STRATEGY: perturb_input is on and no input is moved")
        proved.append(f"perturb_input moved {', '.join(moved)} by one rounding")
    if ranks > 1:
        proved.append(_buckets(block, on.fuse_grad_size_in_MB))
    elif asked.fuse_grad_size_in_MB != Strategy.fuse_grad_size_in_MB:
        raise Refused(
            "STRATEGY: fuse_grad_size_in_MB: one rank has no all-reduce: leave it out, or set DGXNGPU or DGXNNODES "
            "above 1"
        )
    return proved


def _moved_inputs(block: Block) -> list[str]:
    moved = []
    for op in block.ops:
        if any(name.endswith(".moved") for name in op.output_arg_names):
            moved.append(op.input("X")[0])
    return moved


def _fusions(block: Block, on: Strategy, *, asked: Strategy) -> list[str]:
    """Prove that the pass of each knob ran everywhere if it is on, and nowhere if it is off; return what each made.

    A pass ran nowhere if the program has none of the operators that it makes, and everywhere if no place is left that
    it would have changed. Raises Refused where this is not so, or where the user asked for a pass that made nothing.
    """
    made_by_knob = _made(block)
    unfused_by_knob = _unfused(block)
    proved = []
    for knob, result, pattern in _FUSIONS:
        made = made_by_knob[knob]
        if not getattr(on, knob):
            prove(not made, f"STRATEGY: {knob} is off and the program has {made} {result}")
            continue
        unfused = unfused_by_knob[knob]
        prove(not unfused, f"STRATEGY: {knob} is on and the program has {unfused} {pattern}: set {knob}=0")
        is_asked_in_vain = getattr(asked, knob) and not made
        prove(not is_asked_in_vain, f"STRATEGY: {knob} is on and the program has no {result}: leave it out")
        if made:
            proved.append(f"{knob} made {made} {result}")
        else:
            proved.append(f"{knob} found nothing to change")

    sums = sum(op.type in ("sum", "grad_add") for op in block.ops)
    if on.enable_addto and sums:
        proved.append(f"enable_addto left {sums} sums of gradients that no convolution makes")
    return proved


def _made(block: Block) -> dict[str, int]:
    """Return, for each knob that turns on a pass, how many operators the program has that only this pass makes.

    Most passes make a type of operator of their own, which is counted. Addto makes no operator, it lets a
    convolution's gradient add; a merged LARS update has the type of a plain one, and several parameters.
    """
    kinds = Counter(op.type for op in block.ops)
    made = {fusion.knob: kinds[fusion.result] for fusion in _FUSIONS}

    added_to: list[str] = []  # gradients to which a convolution's gradient adds
    for op in block.ops:
        added_to += ops.added_to(op)
    made["enable_addto"] = len(added_to)

    # Addto also makes two share_buffer around each such gradient; the others are enable_inplace's.
    made["enable_inplace"] = 0
    made["merged_lars"] = 0
    for op in block.ops:
        if op.type == "share_buffer" and not {*op.input("X"), *op.output("Out")}.intersection(added_to):
            made["enable_inplace"] += 1
        if op.type == "lars_momentum" and len(op.input("Param")) > 1:
            made["merged_lars"] += 1
    return made


def _unfused(block: Block) -> Counter[str]:
    """Return, for each knob that turns on a pass, how many places the program still has that the pass would change.

    A place is an operator at which the pattern begins that the pass looks for, as a batch norm whose only reader is a
    relu. The operators are gone through once, with the last writer of each variable so far: a sum of gradients is a
    place for addto if one of its addends comes from a convolution's gradient.
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
        if _is_cudnn_norm(op, block):
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
    """Tell whether an operator adds up gradients of which one comes from a convolution, which could have added it."""
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
        """Return the only operator that reads an output; None if there are more. A share_buffer reads no value."""
        readers = [self._ops[index] for index in self._readers.get(op.output(slot)[0], ())]
        readers = [reader for reader in readers if reader.type != "share_buffer"]
        return readers[0] if len(readers) == 1 else None

    def is_add_before_relu(self, op: Operator) -> bool:
        """Tell whether it is an addition whose only reader is a relu, or both as Paddle's fused operator."""
        if op.type == "fused_elemwise_add_activation":
            return bool(op.attr("functor_list") == ["relu", "elementwise_add"])
        if op.type != "elementwise_add":
            return False
        reader = self.sole_reader(op, "Out")
        return reader is not None and reader.type == "relu"


def _is_cudnn_norm(op: Operator, block: Block) -> bool:
    """Tell whether it is a batch norm of the type and layout that cuDNN's fused kernels take."""
    return (
        op.type == "batch_norm" and op.attr("data_layout") == "NHWC" and type_in(block, op.input("X")[0]) == "float16"
    )


def _unmerged_lars(block: Block) -> int:
    """Count updates by LARS of one parameter whose type others have too."""
    alone: Counter[str] = Counter()
    for op in block.ops:
        if op.type == "lars_momentum" and len(op.input("Param")) == 1:
            alone[type_in(block, op.input("Param")[0])] += 1
    return sum(number for number in alone.values() if number > 1)


def _check_flags(block: Block, asked: Strategy) -> None:
    """Prove that Paddle has each flag of cuDNN at the value that the user's STRATEGY gives it.

    Raises Refused where a flag has another value, and where the knob for cuDNN's batch norm is set for a program
    without one.
    """
    for flag, value in asked.flags.items():
        in_force = paddle.get_flags(flag)[flag]
        knob = flag.removeprefix("FLAGS_")
        prove(in_force == value, f"STRATEGY: {knob}={value:d}: Paddle has {flag}={in_force}")
    if asked.cudnn_batchnorm_spatial_persistent is None:
        return
    by_cudnn = ops.NORMALIZATIONS - {"sync_batch_norm"}
    prove(
        any(op.type in by_cudnn for op in block.ops),
        "STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization here is cuDNN's: leave it out",
    )


def _buckets(block: Block, limit_mib: float) -> str:
    """Prove that every gradient is all-reduced in a bucket, and that the buckets are as full as the limit lets them be.

    A bucket of several gradients has at most `limit_mib` MiB, and the first gradient of the next bucket would not have
    fitted into it. Returns the number of buckets, in words. Raises Refused where this is not so.
    """
    joins = [op for op in block.ops if op.type == "coalesce_tensor"]
    buffers = {op.output("FusedOutput")[0] for op in joins}
    summed = [op.input("X")[0] for op in block.ops if op.type == "c_allreduce_sum"]
    for name in summed:
        prove(name in buffers, f"STRATEGY: fuse_grad_size_in_MB: {name} travels by itself, in no bucket")

    buckets_by_type: dict[str, list[list[float]]] = {}  # by type: for each bucket, the MiB of its gradients
    for op in joins:
        gradients = op.output("Output")
        sizes_mib = [ops.size_bytes(block.var(name)) / ops.MIB for name in gradients]
        is_within = len(sizes_mib) == 1 or sum(sizes_mib) <= limit_mib
        prove(is_within, f"STRATEGY: a bucket has {sum(sizes_mib):.2f} MiB, fuse_grad_size_in_MB is {limit_mib:g}")
        buckets_by_type.setdefault(type_in(block, gradients[0]), []).append(sizes_mib)
    for buckets in buckets_by_type.values():
        _check_full(buckets, limit_mib)
    return f"fuse_grad_size_in_MB={limit_mib:g}: buckets {len(summed)}"


def _check_full(buckets: list[list[float]], limit_mib: float) -> None:
    """Prove that no bucket was closed before the next gradient would have passed the limit.

    `buckets` are those of one type, in order, each with the MiB of its gradients. The first one may close early and the
    last one be small.
    """
    for sizes_mib, next_sizes_mib in pairwise(buckets[1:-1]):
        next_mib = next_sizes_mib[0]
        prove(
            sum(sizes_mib) + next_mib > limit_mib,
            f"STRATEGY: a bucket is closed at {sum(sizes_mib):.2f} MiB, the next gradient has {next_mib:.2f}, "
            f"fuse_grad_size_in_MB is {limit_mib:g}",
        )
