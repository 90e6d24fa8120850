"""Proof, read off a built training program, that it is data-parallel SGD of what was asked for, by the knobs asked for.

The gradient of each parameter is followed from the loss to the optimizer as a value (times it was summed over the
ranks, factor on it): both must be (once, 1 / ranks) when the optimizer reads it, with the loss scale taken off again.
Every operator of the backward pass is linear in the gradient that it receives, so it hands the value on.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import paddle

from program import ops
from program.ops import Refused, prove, type_in
from program.optimizers import OptimizerConfig
from program.passes.resnet_unit import fits
from program.strategy import Strategy

UPDATES = {"sgd": {"momentum", "merged_momentum"}, "lars": {"lars_momentum"}}


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What happened to a gradient so far."""

    parts: int = 1  # of its update, which are added up in it
    sums: int = 0  # over the ranks
    factor: float = 1.0  # without a dynamic loss scale
    scaled: int = 0  # power of the dynamic loss scale on it


def _is(found: float, wanted: float, least: float = 0.0) -> bool:
    """Whether two values are one of C's floats; what is smaller than `least` is held to its size."""
    return abs(found - wanted) <= 1e-6 * max(abs(wanted), least)


def gradients(update: Sequence[Any], *, ranks: int, scale: float = 1.0) -> dict[str, Gradient]:
    """{parameter: its gradient as the update uses it}, the runs of these programs in this order being one update.

    `scale` is the fixed loss scale, at which the gradients start and which the update takes off by `rescale_grad`.

    Raises Refused where a gradient is summed, scaled or merged not exactly once, is written again after its sum, or is
    not used.
    """
    used, parts, sums = _Followed(update, ranks, scale).used, len(update), int(ranks > 1)
    unused = sorted({p.name for p in update[-1].all_parameters() if p.trainable} - used.keys())
    if unused:
        raise Refused(f"no optimizer updates {unused[0]} and {len(unused) - 1} more")
    for parameter, value in used.items():
        said, factor = f"the gradient of {parameter}", 1 / (ranks * parts)
        prove(value.parts == parts, f"{said} is merged of {value.parts} micro-steps, not {parts}")
        prove(value.sums == sums, f"{said} is summed over the ranks {value.sums} times, not {sums}")
        prove(_is(value.factor, factor), f"{said} is scaled by {value.factor:g}, not by 1/{ranks * parts}")
        prove(not value.scaled, f"{said} still has the loss scale on it ({value.scaled:+d})")
    return used


class _Followed:
    """The gradients of an update, operator by operator."""

    def __init__(self, update: Sequence[Any], ranks: int, scale: float) -> None:
        self.used: dict[str, Gradient] = {}  # parameter -> its gradient as the optimizer reads it
        self._values: dict[str, Gradient] = {}
        self._slices: dict[str, list[str]] = {}  # buffer -> the gradients that lie in it
        self._summed: set[str] = set()
        self._ranks, self._scale = ranks, scale
        of_loss = [op for op in update[-1].global_block().ops if op.attr("op_role") == ops.LOSS]
        self._scales = {name for op in of_loss if op.type == "elementwise_mul" for name in op.input("Y")}
        for program in dict.fromkeys(update):
            self._runs = list(update).count(program)
            self._values = self._accumulators()
            for op in program.global_block().ops:
                self._follow(op)
        if left := sorted(self._accumulators()):
            raise Refused(f"{left[0]} is not cleared after the update")

    def _accumulators(self) -> dict[str, Gradient]:
        """What a run of a program leaves to the next one."""
        return {name: value for name, value in self._values.items() if name.endswith(ops.MERGED)}

    def _follow(self, op: Any) -> None:
        role, kind = op.attr("op_role"), op.type
        if kind == "coalesce_tensor":
            self._slices[op.output("FusedOutput")[0]] = op.output("Output")
        elif role == ops.BACKWARD | ops.LOSS:
            start = op.attr("value")
            prove(_is(start, self._scale), f"the gradients start at {start:g}, not at the loss scale {self._scale:g}")
            self._values[op.output_arg_names[0]] = Gradient(factor=start, parts=self._runs)
        elif ops.is_merge(op):
            self._merge(*ops.operands(op, "X", "Y", "Out"))
        elif ops.is_clear(op):
            self._values.pop(op.output("Out")[0], None)
        elif kind == "c_allreduce_sum":
            self._sum(op.input("X")[0])
        elif kind in ("c_reduce_sum", "c_broadcast") and role & ops.BACKWARD:
            raise Refused(f"{op.input('X')[0]} goes through {kind}: this is not an all-reduce")
        elif kind in ops.ALL_UPDATES:
            self._use(op)
        elif kind in ("check_finite_and_unscale", "update_loss_scaling"):
            for source, name in zip(op.input("X"), op.output("Out"), strict=True):
                self._values[name] = self._values[source] if kind == "update_loss_scaling" else self._unscaled(source)
        elif role & (ops.BACKWARD | ops.OPTIMIZE):
            self._pass_on(op)

    def _sum(self, name: str) -> None:
        """Of a buffer the gradients in it; of what is none the gradient itself, if it is one."""
        for member in self._slices.get(name, []):
            prove(member in self._values, f"{member} is summed over the ranks before it is computed")
        for member in self._slices.get(name, [name]):
            if value := self._values.get(member):
                self._values[member] = replace(value, sums=value.sums + 1)
                self._summed.add(member)

    def _unscaled(self, source: str) -> Gradient:
        prove(source in self._values, f"{source} is unscaled but no gradient reaches it")
        value = self._values[source]
        said = f"{source} is looked at for infinities before its sum over the ranks: they would differ"
        prove(self._ranks == 1 or value.sums == 1, said)
        return replace(value, scaled=value.scaled - 1)

    def _pass_on(self, op: Any) -> None:
        """Any operator that is linear in the gradients that it reads."""
        kind = op.type
        sources = [n for n in (op.input("X") if kind == "depend" else op.input_arg_names) if n in self._values]
        if not sources:
            return
        met = {self._values[name] for name in sources}
        prove(len(met) == 1, f"{kind} joins gradients of different sums or scales: {sorted(sources)[:2]}")
        value = met.pop()
        if kind == "scale":
            bias = op.attr("bias")
            is_constant = not bias and len(op.input_arg_names) == 1
            prove(is_constant, f"scale of {sources[0]} is more than a constant factor: bias {bias:g}")
            value = replace(value, factor=value.factor * op.attr("scale"))
        if kind == "elementwise_mul_grad" and self._scales.intersection(op.input_arg_names):
            value = replace(value, scaled=value.scaled + 1)
        may_follow = kind in ("depend", "scale") or ops.is_optimizer(op)
        for name in op.output_arg_names:
            prove(may_follow or name not in self._summed, f"{name} is written by {kind} after its sum over the ranks")
            if name != ops.EMPTY:
                self._values[name] = value

    def _merge(self, name: str, total: str, out: str) -> None:
        value = self._values.get(name)
        if value is None or value.sums:
            raise Refused(f"{name} is merged after its sum over the ranks, or before it is computed")
        held = self._values.get(total, replace(value, parts=0))
        prove(replace(held, parts=value.parts) == value, f"{name} is merged with an accumulator at another scale")
        self._values[out] = replace(value, parts=value.parts + held.parts)

    def _use(self, op: Any) -> None:
        rescaled = op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
        for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
            prove(gradient in self._values, f"the optimizer reads {gradient}, which no gradient of the loss reaches")
            prove(parameter not in self.used, f"{parameter} is updated twice")
            value = self._values[gradient]
            self.used[parameter] = replace(value, factor=value.factor * rescaled)


def optimizer(main: Any, config: OptimizerConfig) -> dict[str, int]:
    """{operator that updates parameters: parameters}, which is the asked optimizer with its momentum and decay.

    Raises Refused for another optimizer, momentum or decay, or a half-precision parameter without an FP32 master.
    """
    found: Counter[str] = Counter()
    for op in main.global_block().ops:
        if op.type not in ops.ALL_UPDATES:
            continue
        names = op.input("Param")
        found[op.type] += len(names)
        said = f"the recipe asks for {config.kind}, the program updates {names[0]} by {op.type}"
        prove(op.type in UPDATES[config.kind], said)
        wanted = {"mu": config.momentum}
        if op.type == "lars_momentum":
            wanted |= {"lars_coeff": config.lars_coefficient, "epsilon": config.lars_epsilon}
            _check_lists(op)
        for attr, value in wanted.items():
            said = f"{'momentum' if attr == 'mu' else attr} of {names[0]} is {op.attr(attr):g}, not {value:g}"
            prove(_is(op.attr(attr), value, least=1e-3), said)
        for number, name in enumerate(names):
            decay, value = _decay(op, number), config.weight_decay if config.decays(name) else 0.0
            prove(_is(decay, value, least=1e-3), f"weight decay of {name} is {decay:g}, not {value:g}")
        is_half = any(type_in(main.global_block(), name) == "float16" for name in names)
        has_masters = len(ops.operands(op, "MasterParam")) == len(names) and op.attr("multi_precision")
        prove(not is_half or has_masters, f"{names[0]} is in half precision and has no FP32 master")
    return dict(found)


def _check_lists(op: Any) -> None:
    """Lists of an update by LARS belong together, entry by entry."""
    parameters = op.input("Param")
    for slot in ("Param", "Velocity", "MasterParam") if op.attr("multi_precision") else ("Param", "Velocity"):
        names = op.input(slot)
        prove(op.output(f"{slot}Out") == names, f"{op.type} of {parameters[0]} writes another {slot} than it reads")
        strangers = [p for p, n in zip(parameters, names, strict=True) if n != p and not n.startswith(f"{p}_")]
        if strangers:
            raise Refused(f"{op.type} updates {strangers[0]} by the {slot} of another parameter")


def _decay(op: Any, number: int) -> float:
    if op.type == "lars_momentum":
        return float(op.attr("lars_weight_decay")[number])
    method, coefficient = op.attr("regularization_method"), op.attr("regularization_coeff")
    if op.type == "merged_momentum":  # a list of each, which may be empty
        method, coefficient = method[number] if method else "", coefficient[number] if method else 0.0
    return float(coefficient) if method == "l2_decay" else 0.0


def arithmetic(main: Any, dtype: str) -> None:
    """Products run in `dtype` and the loss in FP32; of all other operands `kernels.check` proves the type.

    Raises Refused where one does not.
    """
    block = main.global_block()
    for op in block.ops:
        for weights in ops.operands(op, *(by for _, by, _ in ops.FACTORS.get(op.type.removesuffix("_grad"), ()))):
            prove(type_in(block, weights) == dtype, f"{op.type} of {weights} is not in {dtype}")
        if op.type == "softmax_with_cross_entropy":
            prove(type_in(block, op.input("Logits")[0]) == "float32", "the loss is not computed in float32")


def communicator(startup: Any, *, ranks: int) -> None:
    """The one communicator of the buckets joins all ranks. Raises Refused where it does not, or there is another."""
    sizes = [op.attr("nranks") for op in startup.global_block().ops if op.type == "c_comm_init"]
    prove(sizes == [ranks], f"the communicators join {sizes or 'no'} ranks, not one all {ranks}")


# ---- that each knob of the strategy did what it says

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


def knobs(main: Any, on: Strategy, *, asked: Strategy, ranks: int) -> list[str]:
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
    added = [name for op in block.ops for name in ops.added_to(op)]
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
    read = ops.readers(block)

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
            found["enable_addto"] += any(maker.type in ops.ADDING and not ops.added_to(maker) for maker in makers)
        writer.update(dict.fromkeys(op.output_arg_names, op))
    return found


def _flags(block: Any, asked: Strategy) -> None:
    """The flags that stand for a knob have its value, and the program has what they rule."""
    for name, value in asked.flags.items():
        found = paddle.get_flags(name)[name]
        prove(found == value, f"STRATEGY: {name.removeprefix('FLAGS_')}={value:d}: Paddle has {name}={found}")
    of_cudnn = ops.NORMALIZATIONS - {"sync_batch_norm"}
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
        sizes = [ops.size_bytes(block.var(name)) / ops.MIB for name in op.output("Output")]
        by_type.setdefault(type_in(block, op.output("Output")[0]), []).append(sizes)
        if len(sizes) > 1 and sum(sizes) > limit_mib:
            raise Refused(f"STRATEGY: a bucket has {sum(sizes):.2f} MiB, fuse_grad_size_in_MB is {limit_mib:g}")
    for buckets in by_type.values():
        for sizes, following in pairwise(buckets[1:-1]):  # the first closes early, the last is small
            if sum(sizes) + following[0] <= limit_mib:
                said = f"a bucket is closed at {sum(sizes):.2f} MiB, the next gradient has {following[0]:.2f}"
                raise Refused(f"STRATEGY: {said}, fuse_grad_size_in_MB is {limit_mib:g}")
    return [f"fuse_grad_size_in_MB={limit_mib:g}: buckets {len(sent)}"]
