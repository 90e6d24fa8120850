"""Proof, read off a built training program, that it is data-parallel SGD of what was asked for.

The gradient of each parameter is followed from the loss to the optimizer as a value (times it was summed over the
ranks, factor on it): both must be (once, 1 / ranks) when the optimizer reads it, with the loss scale taken off again.
Every operator of the backward pass is linear in the gradient that it receives, so it hands the value on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.optimizers import OptimizerConfig, is_decayed
from harness.strategy import Strategy

UPDATES = {"sgd": {"momentum", "merged_momentum"}, "lars": {"lars_momentum"}}
ALL_UPDATES = {"momentum", "merged_momentum", "lars_momentum", "sgd", "adam", "adamw", "lamb", "dgc_momentum"}
BACKWARD, OPTIMIZE, LOSS = 1, 2, 256  # bits of an operator's op_role
CONVOLUTIONS = {"conv2d", "depthwise_conv2d"}
PRODUCTS = {"mul", "matmul", "matmul_v2"}
NORMALIZATIONS = {"batch_norm", "sync_batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"}
EMPTY = "@EMPTY@"
MERGED = ".merged"  # ends the name of a gradient's accumulator


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What happened to a gradient so far."""

    sums: int = 0  # over the ranks
    factor: float = 1.0  # without the loss scale
    scaled: int = 0  # power of the loss scale on it


class Refused(ValueError):
    """The program is not what was asked for."""


def gradients(main: Any, *, ranks: int, parts: int = 1) -> dict[str, Gradient]:
    """{parameter: its gradient as the optimizer reads it}; the update is computed in `parts` micro-steps.

    Raises:
        Refused: a gradient is summed or scaled not exactly once, is written again after its sum, or is not used.
    """
    used = _follow(main, ranks=ranks, scales=_loss_scales(main)).used
    wanted = {p.name for p in main.all_parameters() if p.trainable}
    if wanted - used.keys():
        raise Refused(
            f"no optimizer updates {sorted(wanted - used.keys())[0]} and {len(wanted - used.keys()) - 1} more"
        )
    for parameter, value in used.items():
        _check(parameter, value, ranks=ranks, parts=parts)
    return used


def merged(micro: Any, main: Any, *, ranks: int, parts: int) -> int:
    """Number of gradients that `parts` - 1 runs of `micro` and one of `main` sum up, each part once.

    Raises:
        Refused: one is left out, joined with a value of another scale, or lives on into the next update.
    """
    first, last = (_follow(program, ranks=ranks, scales=_loss_scales(main)) for program in (micro, main))
    if first.used:
        raise Refused(f"a micro-step updates {sorted(first.used)[0]}")
    if first.merged != last.merged:
        raise Refused("the micro-steps and the update do not merge the same gradients at the same scale")
    if len(last.merged) != len(last.used):
        raise Refused(f"{len(last.merged)} gradients are merged, {len(last.used)} are used")
    cleared = {op.output("Out")[0]: i for i, op in enumerate(main.global_block().ops) if is_clear(op)}
    for program, into_total in ((micro, True), (main, False)):
        for index, op in enumerate(program.global_block().ops):
            if not is_merge(op):
                continue
            gradient, total = op.input("X")[0], op.input("Y")[0]
            if op.output("Out")[0] != (total if into_total else gradient):
                raise Refused(f"the merged {gradient} is written to {op.output('Out')[0]}")
            if not into_total and cleared.get(total, -1) < index:
                raise Refused(f"{total} is not cleared after the update")
    for gradient, value in last.merged.values():
        if value.sums or abs(value.factor * ranks * parts - 1.0) > 1e-6:
            raise Refused(f"{gradient} is merged after {value.sums} sums at the factor {value.factor:g}")
    return len(last.merged)


def is_merge(op: Any) -> bool:
    """Whether it adds a gradient and its accumulator."""
    return bool(op.type == "elementwise_add" and op.input("Y")[0].endswith(MERGED))


def is_clear(op: Any) -> bool:
    """Whether it clears an accumulator."""
    return bool(op.type == "fill_constant" and op.output("Out")[0].endswith(MERGED) and op.attr("value") == 0.0)


@dataclass(frozen=True, kw_only=True)
class _Followed:
    used: dict[str, Gradient]  # parameter -> its gradient as the optimizer reads it
    merged: dict[str, tuple[str, Gradient]]  # accumulator -> the gradient that joins it, and its value then


def _follow(main: Any, *, ranks: int, scales: set[str]) -> _Followed:
    block = main.global_block()
    values: dict[str, Gradient] = {}
    slices: dict[str, list[str]] = {}  # buffer -> the gradients that lie in it
    copies: dict[str, dict[str, Gradient]] = {}  # buffer in another type -> what was copied into it
    summed: set[str] = set()
    used: dict[str, Gradient] = {}
    merges: dict[str, tuple[str, Gradient]] = {}
    for op in block.ops:
        role, kind = op.attr("op_role"), op.type
        outputs = [n for n in op.output_arg_names if n != EMPTY]
        if kind == "coalesce_tensor":
            slices[op.output("FusedOutput")[0]] = op.output("Output")
        elif role == BACKWARD | LOSS:
            values[outputs[0]] = Gradient(factor=op.attr("value"))
        elif is_merge(op):
            name, total = op.input("X")[0], op.input("Y")[0]
            if total in merges or name not in values or name in summed:
                raise Refused(f"{name} is merged twice, after its sum over the ranks, or before it is computed")
            merges[total] = (name, values[name])
        elif kind == "c_allreduce_sum":
            name = op.input("X")[0]
            if name in copies:
                copies[name] = {member: _summed(value) for member, value in copies[name].items()}
                continue
            members = _computed(slices[name], values) if name in slices else [name]
            sums = {member: _summed(values[member]) for member in members if member in values}
            values.update(sums)
            summed.update(sums)
        elif kind in ("c_reduce_sum", "c_broadcast") and role & BACKWARD:
            raise Refused(f"{op.input('X')[0]} goes through {kind}: this is not an all-reduce")
        elif kind in ALL_UPDATES:
            _use(op, values, used)
        elif kind == "cast" and op.input("X")[0] in slices:
            members = _computed(slices[op.input("X")[0]], values)  # a bucket that travels in another type
            copies[outputs[0]] = {member: values[member] for member in members}
            summed.update(members)  # nothing may change them any more
        elif kind == "cast" and outputs[0] in slices:
            values.update(copies.get(op.input("X")[0], {}))  # and comes back
        elif kind == "check_finite_and_unscale":
            for source, name in zip(op.input("X"), op.output("Out"), strict=True):
                values[name] = _unscaled(source, values, ranks)
        elif kind == "update_loss_scaling":
            values.update({name: values[source] for source, name in zip(op.input("X"), op.output("Out"), strict=True)})
        elif role & (BACKWARD | OPTIMIZE):
            _pass_on(op, kind, outputs, values, scales, summed)
    return _Followed(used=used, merged=merges)


def _loss_scales(main: Any) -> set[str]:
    ops = main.global_block().ops
    return {n for op in ops if op.type == "elementwise_mul" and op.attr("op_role") == LOSS for n in op.input("Y")}


def _computed(names: list[str], values: dict[str, Gradient]) -> list[str]:
    for name in names:
        if name not in values:
            raise Refused(f"{name} is summed over the ranks before it is computed")
    return names


def _summed(value: Gradient) -> Gradient:
    return Gradient(sums=value.sums + 1, factor=value.factor, scaled=value.scaled)


def _unscaled(source: str, values: dict[str, Gradient], ranks: int) -> Gradient:
    if source not in values:
        raise Refused(f"{source} is unscaled but no gradient reaches it")
    value = values[source]
    if ranks > 1 and value.sums != 1:
        raise Refused(f"{source} is looked at for infinities before its sum over the ranks: they would differ")
    return Gradient(sums=value.sums, factor=value.factor, scaled=value.scaled - 1)


def _pass_on(
    op: Any,
    kind: str,
    outputs: list[str],
    values: dict[str, Gradient],
    scale_names: set[str],
    summed: set[str],
) -> None:
    """Any operator that is linear in the gradients that it reads."""
    sources = [n for n in op.input_arg_names if n in values]
    if kind == "depend":
        sources = op.input("X")
    met = {values[n] for n in sources if n in values}
    if not met:
        return
    if len(met) > 1:
        raise Refused(f"{kind} joins gradients of different sums or scales: {sorted(sources)[:2]}")
    value = met.pop()
    if kind == "scale":
        if op.attr("bias") or len(op.input_arg_names) > 1:
            raise Refused(f"scale of {sources[0]} is more than a constant factor: bias {op.attr('bias'):g}")
        value = Gradient(sums=value.sums, factor=value.factor * op.attr("scale"), scaled=value.scaled)
    if kind == "elementwise_mul_grad" and scale_names.intersection(op.input_arg_names):
        value = Gradient(sums=value.sums, factor=value.factor, scaled=value.scaled + 1)
    for name in outputs:
        if (
            name in summed
            and kind not in ("depend", "update_loss_scaling", "scale")
            and not op.attr("op_role") & OPTIMIZE
        ):
            raise Refused(f"{name} is written by {kind} after its sum over the ranks")
        values[name] = value


def _use(op: Any, values: dict[str, Gradient], used: dict[str, Gradient]) -> None:
    for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
        if gradient not in values:
            raise Refused(f"the optimizer reads {gradient}, which no gradient of the loss reaches")
        if parameter in used:
            raise Refused(f"{parameter} is updated twice")
        used[parameter] = values[gradient]


def _check(parameter: str, value: Gradient, *, ranks: int, parts: int) -> None:
    sums = 1 if ranks > 1 else 0
    if value.sums != sums:
        raise Refused(
            f"the gradient of {parameter} is summed over the ranks {value.sums} times, not {sums}: the ranks would "
            "train apart"
        )
    if abs(value.factor * ranks * parts - 1.0) > 1e-6:
        raise Refused(f"the gradient of {parameter} is scaled by {value.factor:g}, not by 1/{ranks * parts}")
    if value.scaled:
        raise Refused(f"the gradient of {parameter} still has the loss scale on it ({value.scaled:+d})")


def optimizer(main: Any, config: OptimizerConfig) -> dict[str, int]:
    """{operator that updates parameters: parameters}, which is the asked optimizer with its momentum and decay.

    Raises:
        Refused: another optimizer, momentum or decay; or a half-precision parameter without an FP32 master.
    """
    found: dict[str, int] = {}
    for op in main.global_block().ops:
        if op.type not in ALL_UPDATES:
            continue
        names = op.input("Param")
        found[op.type] = found.get(op.type, 0) + len(names)
        if op.type not in UPDATES[config.kind]:
            raise Refused(f"the recipe asks for {config.kind}, the program updates {names[0]} by {op.type}")
        if abs(op.attr("mu") - config.momentum) > 1e-6:
            raise Refused(f"momentum of {names[0]} is {op.attr('mu'):g}, not {config.momentum:g}")
        for number, name in enumerate(names):
            decay = _decay(op, number)
            wanted = config.weight_decay if config.decay_bn_and_bias or is_decayed(name) else 0.0
            if abs(decay - wanted) > 1e-6 * max(wanted, 1e-3):
                raise Refused(f"weight decay of {name} is {decay:g}, not {wanted:g}")
        if any(str(main.global_block().var(n).dtype).endswith("16") for n in names):
            masters = op.input("MasterParam")
            if len(masters) != len(names) or not op.attr("multi_precision"):
                raise Refused(f"{names[0]} is in half precision and has no FP32 master")
    return found


def _decay(op: Any, number: int) -> float:
    if op.type == "lars_momentum":
        return float(op.attr("lars_weight_decay")[number])
    if op.type == "merged_momentum":
        methods = op.attr("regularization_method")
        return float(op.attr("regularization_coeff")[number]) if methods and methods[number] == "l2_decay" else 0.0
    return float(op.attr("regularization_coeff")) if op.attr("regularization_method") == "l2_decay" else 0.0


def _type(block: Any, name: str) -> str:
    return str(block.var(name).dtype).rpartition(".")[2]


def arithmetic(main: Any, dtype: str) -> None:
    """Products run in `dtype`; batch statistics, the loss and the updated weights are FP32.

    Raises:
        Refused: one does not.
    """
    block = main.global_block()
    for op in block.ops:
        kind = op.type.removesuffix("_grad")
        if kind in CONVOLUTIONS | PRODUCTS:
            weights = op.input("Filter" if kind in CONVOLUTIONS else "Y")[0]
            if _type(block, weights) != dtype:
                raise Refused(f"{op.type} of {weights} is not in {dtype}")
        if op.type in NORMALIZATIONS:
            for slot in ("Scale", "Bias", "Mean", "Variance"):
                if _type(block, op.input(slot)[0]) != "float32":
                    raise Refused(f"{op.input(slot)[0]} of {op.type} is not in float32")
        if op.type == "softmax_with_cross_entropy" and _type(block, op.input("Logits")[0]) != "float32":
            raise Refused("the loss is not computed in float32")
        if op.type in ALL_UPDATES:
            for name in (*op.input("Velocity"), *op.input("MasterParam")):
                if _type(block, name) != "float32":
                    raise Refused(f"{name} of {op.type} is not in float32")


# Operators that the executor runs without a kernel of their own.
NO_KERNEL = {"depend", "c_gen_nccl_id", "c_comm_init"}
_TYPE_NAMES = {
    "float16": "::paddle::platform::float16",
    "bfloat16": "::paddle::platform::bfloat16",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "int64_t",
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
}


def kernels(main: Any, device: str) -> int:
    """Number of operators, all of which this Paddle has a kernel for on `device` in the type of their data.

    Raises:
        Refused: one has none.
    """
    import paddle

    core = paddle.base.core
    registered, bare = core._get_all_register_op_kernels("all"), core._get_registered_phi_kernels("all")
    place = "Place(gpu:0)" if device == "gpu" else "Place(cpu)"
    block = main.global_block()
    for op in block.ops:
        if op.type in NO_KERNEL:
            continue
        types = {t.partition("[")[2].partition("]")[0] for t in registered.get(op.type, []) if place in t}
        types |= {
            _TYPE_NAMES.get(t.rpartition(", ")[2].rstrip(")"), "")
            for t in bare.get(op.type, [])  # the few operators that the first list leaves out, `cast` for one
            if t.startswith(f"({device.upper()},")
        }
        names = [n for slot in op.input_names for n in op.input(slot)] or list(op.output_arg_names)
        used = {_type(block, n) for n in names if n != EMPTY and block.has_var(n)}
        if not types or not any(_TYPE_NAMES[t] in types for t in used):
            raise Refused(f"this Paddle has no {device} kernel of {op.type} for {', '.join(sorted(used))}")
    return len(block.ops)


def communicators(startup: Any, *, ranks: int, rings: int) -> None:
    """Every ring that the buckets use joins all ranks.

    Raises:
        Refused: one does not.
    """
    sizes = {op.attr("ring_id"): op.attr("nranks") for op in startup.global_block().ops if op.type == "c_comm_init"}
    for ring in range(rings):
        if sizes.get(ring) != ranks:
            raise Refused(f"communicator {ring} joins {sizes.get(ring, 0)} ranks, not {ranks}")


# Of each pass: what it makes, and what is there only where it did not run.
_FUSIONS = {
    "fuse_bn_act_ops": ("fused_batch_norm_act", "batch_norm before a relu"),
    "fuse_bn_add_act_ops": ("fused_bn_add_activation", "batch_norm before an add and a relu"),
    "fuse_elewise_add_act_ops": ("fused_elemwise_add_activation", "elementwise_add before a relu"),
    "enable_addto": ("conv2d_grad that adds", "sum of the gradient of a convolution's input"),
    "enable_inplace": ("share_buffer", ""),
    "merged_optimizer": ("merged_momentum", "momentum"),
}
_OF_RANKS = ("fuse_grad_size_in_MB", "fp16_allreduce", "nccl_comm_num")


def knobs(main: Any, on: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
    """What each knob that is `on` changed, in words; `asked` are the user's own.

    Raises:
        Refused: a knob that was asked for changed nothing, or not what it names; or a pass that is on did not run.
    """
    block = main.global_block()
    said = _fusions(block, on, asked=asked)
    _flags(block, asked)
    if on.perturb_input:
        moved = [op.input("X")[0] for op in block.ops if any(name.endswith(".moved") for name in op.output_arg_names)]
        if not moved:
            raise Refused("STRATEGY: perturb_input is on and no input is moved")
        said.append(f"perturb_input moved {', '.join(moved)} by one rounding")
    if ranks > 1:
        return said + _buckets(block, on)
    for name in _OF_RANKS:
        if getattr(asked, name) != getattr(Strategy(), name):
            raise Refused(
                f"STRATEGY: {name}: one rank has no all-reduce: leave it out, or set DGXNGPU or DGXNNODES above 1"
            )
    return said


def _fusions(block: Any, on: Strategy, *, asked: Strategy) -> list[str]:
    said = []
    made, left = _made(block), _left(block)
    for knob, (result, pattern) in _FUSIONS.items():
        if not getattr(on, knob):
            if made[knob]:
                raise Refused(f"STRATEGY: {knob} is off and the program has {made[knob]} {result}")
        elif left[knob]:
            raise Refused(
                f"STRATEGY: {knob} is on and the program has {left[knob]} {pattern}: Paddle dropped the setting or "
                f"took a part: set {knob}=0 to train without it"
            )
        elif made[knob]:
            said.append(f"{knob} made {made[knob]} {result}")
        elif getattr(asked, knob):
            raise Refused(
                f"STRATEGY: {knob} is on and the program has no {result}: the pass found nothing to change: "
                "leave it out"
            )
        else:
            said.append(f"{knob} found nothing to change")
    sums = sum(op.type in ("sum", "grad_add") for op in block.ops)
    if on.enable_addto and sums:
        said.append(f"enable_addto left {sums} sums of gradients that no convolution makes")
    return said


def _adds(op: Any) -> bool:
    """Whether it is a convolution's gradient that adds to what is there."""
    kinds = {f"{kind}_grad" for kind in CONVOLUTIONS}
    return bool(op.type in kinds and op.has_attr("use_addto") and op.attr("use_addto"))


def _made(block: Any) -> dict[str, int]:
    """{knob: operators that only its pass makes}."""
    kinds = Counter(op.type for op in block.ops)
    added_to = [op.output("Input@GRAD")[0] for op in block.ops if _adds(op)]
    # Addto makes two around each gradient that is added to; the others are enable_inplace's.
    of_addto = sum(
        op.type == "share_buffer" and not {*op.input("X"), *op.output("Out")}.isdisjoint(added_to) for op in block.ops
    )
    return {knob: kinds[result] for knob, (result, _) in _FUSIONS.items()} | {
        "enable_addto": len(added_to),
        "enable_inplace": kinds["share_buffer"] - of_addto,
    }


def _left(block: Any) -> Counter[str]:
    """{knob: places that its pass would have changed}, by the patterns of Paddle's passes."""
    from harness.passes import readers

    read = readers(block)

    def reader(name: str) -> Any:
        """The only operator that reads it, if there is one only."""
        return block.ops[read[name][0]] if len(read.get(name, ())) == 1 else None

    def is_add_relu(op: Any) -> bool:
        if op.type == "fused_elemwise_add_activation":
            return bool(op.attr("functor_list") == ["relu", "elementwise_add"])
        return op.type == "elementwise_add" and getattr(reader(op.output("Out")[0]), "type", "") == "relu"

    found: Counter[str] = Counter()
    writer: dict[str, Any] = {}  # the last so far
    for op in block.ops:
        if op.type == "batch_norm" and op.attr("data_layout") == "NHWC" and _type(block, op.input("X")[0]) == "float16":
            after = reader(op.output("Y")[0])
            found["fuse_bn_act_ops"] += after is not None and after.type == "relu"
            found["fuse_bn_add_act_ops"] += after is not None and is_add_relu(after)
        found["fuse_elewise_add_act_ops"] += op.type == "elementwise_add" and is_add_relu(op)
        found["merged_optimizer"] += op.type == "momentum"
        if op.type in ("sum", "grad_add"):
            makers = [writer[name] for name in op.input_arg_names if name in writer]
            found["enable_addto"] += any(maker.type == "conv2d_grad" and not _adds(maker) for maker in makers)
        writer.update(dict.fromkeys(op.output_arg_names, op))
    return found


def _flags(block: Any, asked: Strategy) -> None:
    """The flags that stand for a knob have its value, and the program has what they rule."""
    import paddle

    found = paddle.get_flags(list(asked.flags)) if asked.flags else {}
    for name, value in asked.flags.items():
        if found[name] != value:
            raise Refused(f"STRATEGY: {name.removeprefix('FLAGS_')}={value:d}: Paddle has {name}={found[name]}")
    of_cudnn = NORMALIZATIONS - {"sync_batch_norm"}
    if asked.cudnn_batchnorm_spatial_persistent is not None and not any(op.type in of_cudnn for op in block.ops):
        raise Refused(
            "STRATEGY: cudnn_batchnorm_spatial_persistent: no normalization of this program is cuDNN's, "
            "sync_batch_norm has a kernel of its own: leave it out"
        )


def _buckets(block: Any, on: Strategy) -> list[str]:
    """What the knobs of the all-reduce made of it, in words."""
    buffers = {op.output("FusedOutput")[0]: op for op in block.ops if op.type == "coalesce_tensor"}
    source = {op.output("Out")[0]: op.input("X")[0] for op in block.ops if op.type == "cast"}
    reduces = [op for op in block.ops if op.type == "c_allreduce_sum"]
    halved = 0
    for op in reduces:
        sent = op.input("X")[0]
        buffer = sent if sent in buffers else source.get(sent)
        if buffer not in buffers:
            raise Refused(f"STRATEGY: fuse_grad_size_in_MB: {sent} travels by itself, in no bucket")
        own = _type(block, buffers[buffer].output("Output")[0])
        wanted = "float16" if on.fp16_allreduce and own == "float32" else own
        if _type(block, sent) != wanted:
            raise Refused(
                f"STRATEGY: fp16_allreduce={on.fp16_allreduce:d}: {buffer} travels in {_type(block, sent)}, "
                f"not in {wanted}"
            )
        halved += wanted != own
    if on.fp16_allreduce and not halved:
        raise Refused("STRATEGY: fp16_allreduce: no gradient is in FP32 here, so it changes nothing: leave it out")
    _check_sizes(block, list(buffers.values()), limit_mib=on.fuse_grad_size_in_MB)
    rings = {op.attr("ring_id") for op in reduces}
    if on.nccl_comm_num > len(reduces):
        raise Refused(
            f"STRATEGY: nccl_comm_num={on.nccl_comm_num}: buckets there are {len(reduces)}, some communicators would "
            f"carry none: set nccl_comm_num={len(reduces)} at most, or a smaller fuse_grad_size_in_MB"
        )
    if rings != set(range(on.nccl_comm_num)):
        raise Refused(f"STRATEGY: nccl_comm_num={on.nccl_comm_num}: the buckets take the communicators {sorted(rings)}")
    said = [f"fuse_grad_size_in_MB={on.fuse_grad_size_in_MB:g}: buckets {len(reduces)}"]
    if on.fp16_allreduce:
        said.append(f"fp16_allreduce: FP32 buckets sent as FP16 {halved}")
    if on.nccl_comm_num > 1:
        said.append(f"nccl_comm_num: communicators {len(rings)} in turn")
    return said


def _check_sizes(block: Any, coalesced: list[Any], *, limit_mib: float) -> None:
    """Buckets of more than one gradient keep to the limit, and one is closed only where the next would not fit."""
    by_type: dict[str, list[list[float]]] = {}  # sizes of the gradients in each bucket
    for op in coalesced:
        name = op.output("Output")[0]
        sizes = [_mib(block, parameter, name) for parameter in op.input("Input")]
        by_type.setdefault(_type(block, name), []).append(sizes)
        if len(sizes) > 1 and sum(sizes) > limit_mib:
            raise Refused(f"STRATEGY: a bucket has {sum(sizes):.2f} MiB, fuse_grad_size_in_MB is {limit_mib:g}")
    for buckets in by_type.values():
        for sizes, following in pairwise(buckets[1:-1]):  # the first closes early, the last is small
            if sum(sizes) + following[0] <= limit_mib:
                raise Refused(
                    f"STRATEGY: a bucket is closed at {sum(sizes):.2f} MiB, the next gradient has {following[0]:.2f}, "
                    f"fuse_grad_size_in_MB is {limit_mib:g}"
                )


def _mib(block: Any, parameter: str, gradient: str) -> float:
    from harness.passes import BYTES, MIB

    elements = 1
    for extent in block.var(parameter).shape:
        elements *= extent
    return float(elements * BYTES[block.var(gradient).dtype]) / MIB
