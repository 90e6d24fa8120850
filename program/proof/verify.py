"""Proof, read off a built training program, that it is data-parallel SGD of what was asked for.

The gradient of each parameter is followed from the loss to the optimizer as a value (times it was summed over the
ranks, factor on it): both must be (once, 1 / ranks) when the optimizer reads it, with the loss scale taken off again.
Every operator of the backward pass is linear in the gradient that it receives, so it hands the value on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from program.ops import (
    ALL_UPDATES,
    BACKWARD,
    CONVOLUTIONS,
    EMPTY,
    LOSS,
    OPTIMIZE,
    PRODUCTS,
    Refused,
    is_clear,
    is_merge,
    type_in,
)
from program.optimizers import OptimizerConfig

UPDATES = {"sgd": {"momentum", "merged_momentum"}, "lars": {"lars_momentum"}}


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What happened to a gradient so far."""

    sums: int = 0  # over the ranks
    factor: float = 1.0  # without a dynamic loss scale
    scaled: int = 0  # power of the dynamic loss scale on it


def gradients(main: Any, *, ranks: int, parts: int = 1, scale: float = 1.0) -> dict[str, Gradient]:
    """{parameter: its gradient as the update uses it}; the update is computed in `parts` micro-steps.

    `scale` is the fixed loss scale, at which the gradients start and which the update takes off by `rescale_grad`.

    Raises Refused where a gradient is summed or scaled not exactly once, is written again after its sum, or is not
    used.
    """
    starts = (op for op in main.global_block().ops if op.attr("op_role") == BACKWARD | LOSS and op.has_attr("value"))
    for value in (op.attr("value") for op in starts):
        if abs(value / scale - 1.0) > 1e-6:
            raise Refused(f"the gradients start at {value:g}, not at the loss scale {scale:g}")
    used = _follow(main, ranks=ranks, scales=_loss_scales(main)).used
    wanted = {p.name for p in main.all_parameters() if p.trainable}
    if wanted - used.keys():
        raise Refused(
            f"no optimizer updates {sorted(wanted - used.keys())[0]} and {len(wanted - used.keys()) - 1} more"
        )
    for parameter, value in used.items():
        _check(parameter, value, ranks=ranks, parts=parts)
    return used


def merged(micro: Any, main: Any, *, ranks: int, parts: int, scale: float = 1.0) -> int:
    """Number of gradients that `parts` - 1 runs of `micro` and one of `main` sum up, each part once.

    Raises Refused where one is left out, joined with a value of another scale, or lives on into the next update.
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
        if value.sums or abs(value.factor * ranks * parts / scale - 1.0) > 1e-6:
            raise Refused(f"{gradient} is merged after {value.sums} sums at the factor {value.factor:g}")
    return len(last.merged)


@dataclass(frozen=True, kw_only=True)
class _Followed:
    used: dict[str, Gradient]  # parameter -> its gradient as the optimizer reads it
    merged: dict[str, tuple[str, Gradient]]  # accumulator -> the gradient that joins it, and its value then


def _follow(main: Any, *, ranks: int, scales: set[str]) -> _Followed:
    block = main.global_block()
    values: dict[str, Gradient] = {}
    slices: dict[str, list[str]] = {}  # buffer -> the gradients that lie in it
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
            _merge(op, values, merges, summed)
        elif kind == "c_allreduce_sum":
            members = _members(op.input("X")[0], slices, values)
            values.update({name: replace(value, sums=value.sums + 1) for name, value in members.items()})
            summed.update(members)
        elif kind in ("c_reduce_sum", "c_broadcast") and role & BACKWARD:
            raise Refused(f"{op.input('X')[0]} goes through {kind}: this is not an all-reduce")
        elif kind in ALL_UPDATES:
            _use(op, values, used)
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


def _members(name: str, slices: dict[str, list[str]], values: dict[str, Gradient]) -> dict[str, Gradient]:
    """The gradients in a buffer; of what is none the gradient itself, if it is one."""
    for member in slices.get(name, []):
        if member not in values:
            raise Refused(f"{member} is summed over the ranks before it is computed")
    return {member: values[member] for member in slices.get(name, [name]) if member in values}


def _unscaled(source: str, values: dict[str, Gradient], ranks: int) -> Gradient:
    if source not in values:
        raise Refused(f"{source} is unscaled but no gradient reaches it")
    value = values[source]
    if ranks > 1 and value.sums != 1:
        raise Refused(f"{source} is looked at for infinities before its sum over the ranks: they would differ")
    return replace(value, scaled=value.scaled - 1)


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
        value = replace(value, factor=value.factor * op.attr("scale"))
    if kind == "elementwise_mul_grad" and scale_names.intersection(op.input_arg_names):
        value = replace(value, scaled=value.scaled + 1)
    for name in outputs:
        if (
            name in summed
            and kind not in ("depend", "update_loss_scaling", "scale")
            and not op.attr("op_role") & OPTIMIZE
        ):
            raise Refused(f"{name} is written by {kind} after its sum over the ranks")
        values[name] = value


def _merge(op: Any, values: dict[str, Gradient], merges: dict[str, tuple[str, Gradient]], summed: set[str]) -> None:
    name, total = op.input("X")[0], op.input("Y")[0]
    if total in merges or name not in values or name in summed:
        raise Refused(f"{name} is merged twice, after its sum over the ranks, or before it is computed")
    merges[total] = (name, values[name])


def _use(op: Any, values: dict[str, Gradient], used: dict[str, Gradient]) -> None:
    for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
        if gradient not in values:
            raise Refused(f"the optimizer reads {gradient}, which no gradient of the loss reaches")
        if parameter in used:
            raise Refused(f"{parameter} is updated twice")
        value, rescaled = values[gradient], op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
        used[parameter] = replace(value, factor=value.factor * rescaled)


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

    Raises Refused for another optimizer, momentum or decay, or a half-precision parameter without an FP32 master.
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
        if op.type == "lars_momentum":
            _check_lars(op, config)
        for number, name in enumerate(names):
            decay = _decay(op, number)
            wanted = config.weight_decay if config.decays(name) else 0.0
            if abs(decay - wanted) > 1e-6 * max(wanted, 1e-3):
                raise Refused(f"weight decay of {name} is {decay:g}, not {wanted:g}")
        if any(str(main.global_block().var(n).dtype).endswith("16") for n in names):
            masters = op.input("MasterParam")
            if len(masters) != len(names) or not op.attr("multi_precision"):
                raise Refused(f"{names[0]} is in half precision and has no FP32 master")
    return found


def _check_lars(op: Any, config: OptimizerConfig) -> None:
    """Its lists belong together, entry by entry, and what its parameters share is the recipe's."""
    lists = {"Param": op.input("Param"), "Velocity": op.input("Velocity")}
    if op.attr("multi_precision"):
        lists["MasterParam"] = op.input("MasterParam")
    parameters = lists["Param"]
    for slot, names in lists.items():
        if op.output(f"{slot}Out") != names:
            raise Refused(f"{op.type} of {parameters[0]} writes another {slot} than it reads")
        strangers = [p for p, n in zip(parameters, names, strict=True) if n != p and not n.startswith(f"{p}_")]
        if strangers:
            raise Refused(f"{op.type} updates {strangers[0]} by the {slot} of another parameter")
    for name, wanted in (("lars_coeff", config.lars_coefficient), ("epsilon", config.lars_epsilon)):
        if abs(op.attr(name) - wanted) > 1e-6 * max(abs(wanted), 1e-3):
            raise Refused(f"{name} of {parameters[0]} is {op.attr(name):g}, not {wanted:g}")


def _decay(op: Any, number: int) -> float:
    if op.type == "lars_momentum":
        return float(op.attr("lars_weight_decay")[number])
    if op.type == "merged_momentum":
        methods = op.attr("regularization_method")
        return float(op.attr("regularization_coeff")[number]) if methods and methods[number] == "l2_decay" else 0.0
    return float(op.attr("regularization_coeff")) if op.attr("regularization_method") == "l2_decay" else 0.0


def arithmetic(main: Any, dtype: str) -> None:
    """Products run in `dtype` and the loss in FP32; of all other operands `kernels.check` proves the type.

    Raises Refused where one does not.
    """
    block = main.global_block()
    for op in block.ops:
        kind = op.type.removesuffix("_grad")
        slots = ["Filter"] * (kind in CONVOLUTIONS) + ["Y"] * (kind in PRODUCTS)
        slots += ["FilterX", "FilterZ"] if kind == "resnet_unit" else []
        for weights in (name for slot in slots if slot in op.input_names for name in op.input(slot)):
            if type_in(block, weights) != dtype:
                raise Refused(f"{op.type} of {weights} is not in {dtype}")
        if op.type == "softmax_with_cross_entropy" and type_in(block, op.input("Logits")[0]) != "float32":
            raise Refused("the loss is not computed in float32")


def communicator(startup: Any, *, ranks: int) -> None:
    """The one communicator of the buckets joins all ranks. Raises Refused where it does not, or there is another."""
    sizes = [op.attr("nranks") for op in startup.global_block().ops if op.type == "c_comm_init"]
    if sizes != [ranks]:
        raise Refused(f"the communicators join {sizes or 'no'} ranks, not one all {ranks}")
