"""Proof, read off a built training program, that each knob of the strategy did what it says."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import paddle

from program.ops import ADDING, MIB, NORMALIZATIONS, Refused, added_to, dtype_of, element_bytes, prove, readers, type_in
from program.passes.resnet_unit import fits
from program.strategy import Strategy

# Of each pass: what it makes, and what is there only where it did not run.
_FUSIONS = {
    "fuse_bn_act_ops": ("fused_batch_norm_act", "batch_norm before a relu"),
    "fuse_bn_add_act_ops": ("fused_bn_add_activation", "batch_norm before an add and a relu"),
    "fuse_elewise_add_act_ops": ("fused_elemwise_add_activation", "elementwise_add before a relu"),
    "enable_addto": ("gradient of a convolution that adds", "sum of the gradient of a convolution's input"),
    "enable_inplace": ("share_buffer", ""),
    "merged_optimizer": ("merged_momentum", "momentum"),
    "resnet_unit": ("resnet_unit", "convolution that a unit takes"),
    "merged_lars": ("lars_momentum of several parameters", "lars_momentum of one parameter"),
}


def check(main: Any, on: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
    """What each knob that is `on` changed, in words; `asked` are the user's own.

    Raises Refused where a knob that was asked for changed nothing, or not what it names; or a pass that is on did not
    run.
    """
    block = main.global_block()
    said = _fusions(block, on, asked=asked)
    _flags(block, asked)
    if on.perturb_input:
        moved = [op.input("X")[0] for op in block.ops if any(name.endswith(".moved") for name in op.output_arg_names)]
        prove(bool(moved), "STRATEGY: perturb_input is on and no input is moved")
        said.append(f"perturb_input moved {', '.join(moved)} by one rounding")
    if ranks > 1:
        return said + _buckets(block, on.fuse_grad_size_in_MB)
    if asked.fuse_grad_size_in_MB != Strategy.fuse_grad_size_in_MB:
        fix = "leave it out, or set DGXNGPU or DGXNNODES above 1"
        raise Refused(f"STRATEGY: fuse_grad_size_in_MB: one rank has no all-reduce: {fix}")
    return said


def _fusions(block: Any, on: Strategy, *, asked: Strategy) -> list[str]:
    said, left, kinds = [], _left(block), Counter(op.type for op in block.ops)
    added = [name for op in block.ops for name in added_to(op)]
    # Addto makes two around each gradient that is added to; the others are enable_inplace's.
    shares = [op for op in block.ops if op.type == "share_buffer"]
    made = {knob: kinds[result] for knob, (result, _) in _FUSIONS.items()} | {  # operators that only its pass makes
        "enable_addto": len(added),
        "enable_inplace": sum(not {*op.input("X"), *op.output("Out")}.intersection(added) for op in shares),
        "merged_lars": sum(op.type == "lars_momentum" and len(op.input("Param")) > 1 for op in block.ops),
    }
    for knob, (result, pattern) in _FUSIONS.items():
        if not getattr(on, knob):
            prove(not made[knob], f"STRATEGY: {knob} is off and the program has {made[knob]} {result}")
            continue
        prove(not left[knob], f"STRATEGY: {knob} is on and the program has {left[knob]} {pattern}: set {knob}=0")
        is_missed = getattr(asked, knob) and not made[knob]
        prove(not is_missed, f"STRATEGY: {knob} is on and the program has no {result}: leave it out")
        said.append(f"{knob} made {made[knob]} {result}" if made[knob] else f"{knob} found nothing to change")
    sums = kinds["sum"] + kinds["grad_add"]
    if on.enable_addto and sums:
        said.append(f"enable_addto left {sums} sums of gradients that no convolution makes")
    return said


def _left(block: Any) -> Counter[str]:
    """{knob: places that its pass would have changed}, by the patterns of Paddle's passes."""
    read = readers(block)

    def reader(op: Any, slot: str) -> Any:
        """The only operator that reads its output, if there is one only; share_buffer reads no value."""
        found = [block.ops[index] for index in read.get(op.output(slot)[0], ())]
        found = [op for op in found if op.type != "share_buffer"]
        return found[0] if len(found) == 1 else None

    def is_add_relu(op: Any) -> bool:
        if op.type == "fused_elemwise_add_activation":
            return bool(op.attr("functor_list") == ["relu", "elementwise_add"])
        return op.type == "elementwise_add" and getattr(reader(op, "Out"), "type", "") == "relu"

    by_lars = [op.input("Param") for op in block.ops if op.type == "lars_momentum"]
    alone = Counter(type_in(block, parameters[0]) for parameters in by_lars if len(parameters) == 1)
    found: Counter[str] = Counter(merged_lars=sum(n for n in alone.values() if n > 1))
    writer: dict[str, Any] = {}  # the last so far
    for op in block.ops:
        found["resnet_unit"] += fits(op, block)
        found["fuse_elewise_add_act_ops"] += op.type == "elementwise_add" and is_add_relu(op)
        found["merged_optimizer"] += op.type == "momentum"
        is_nhwc = op.type == "batch_norm" and op.attr("data_layout") == "NHWC"
        if is_nhwc and type_in(block, op.input("X")[0]) == "float16" and (after := reader(op, "Y")):
            found["fuse_bn_act_ops"] += after.type == "relu"
            found["fuse_bn_add_act_ops"] += is_add_relu(after)
        if op.type in ("sum", "grad_add"):
            makers = [writer[name] for name in op.input_arg_names if name in writer]
            found["enable_addto"] += any(maker.type in ADDING and not added_to(maker) for maker in makers)
        writer.update(dict.fromkeys(op.output_arg_names, op))
    return found


def _flags(block: Any, asked: Strategy) -> None:
    """The flags that stand for a knob have its value, and the program has what they rule."""
    found = paddle.get_flags(list(asked.flags)) if asked.flags else {}
    for name, value in asked.flags.items():
        if found[name] != value:
            raise Refused(f"STRATEGY: {name.removeprefix('FLAGS_')}={value:d}: Paddle has {name}={found[name]}")
    of_cudnn = NORMALIZATIONS - {"sync_batch_norm"}
    if asked.cudnn_batchnorm_spatial_persistent is not None and not any(op.type in of_cudnn for op in block.ops):
        raise Refused("STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization here is cuDNN's: leave it out")


def _buckets(block: Any, limit_mib: float) -> list[str]:
    """What fuse_grad_size_in_MB made of the all-reduces, in words.

    Buckets of more than one gradient keep to the limit, and one is closed only where the next would not fit.
    """
    coalesced = [op for op in block.ops if op.type == "coalesce_tensor"]
    sent = [op.input("X")[0] for op in block.ops if op.type == "c_allreduce_sum"]
    alone = sorted(set(sent).difference(*(op.output("FusedOutput") for op in coalesced)), key=sent.index)
    if alone:
        raise Refused(f"STRATEGY: fuse_grad_size_in_MB: {alone[0]} travels by itself, in no bucket")
    by_type: dict[str, list[list[float]]] = {}  # MiB of the gradients in each bucket
    for op in coalesced:
        gradient = block.var(op.output("Output")[0])
        sizes = [math.prod(block.var(p).shape) * element_bytes(gradient) / MIB for p in op.input("Input")]
        by_type.setdefault(dtype_of(gradient), []).append(sizes)
        if len(sizes) > 1 and sum(sizes) > limit_mib:
            raise Refused(f"STRATEGY: a bucket has {sum(sizes):.2f} MiB, fuse_grad_size_in_MB is {limit_mib:g}")
    for buckets in by_type.values():
        for sizes, following in pairwise(buckets[1:-1]):  # the first closes early, the last is small
            if sum(sizes) + following[0] <= limit_mib:
                said = f"a bucket is closed at {sum(sizes):.2f} MiB, the next gradient has {following[0]:.2f}"
                raise Refused(f"STRATEGY: {said}, fuse_grad_size_in_MB is {limit_mib:g}")
    return [f"fuse_grad_size_in_MB={limit_mib:g}: buckets {len(sent)}"]
