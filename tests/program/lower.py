"""Lowers a GPU training program to one that a CPU runs: the same wiring in FP32 by primitive operators.

Half-precision variables become FP32, and can be rounded to their own type where they are written; each fused operator
becomes its primitives with the same inputs and attributes; gradients that a convolution adds to become a sum; an update
works on the FP32 master and copies it back into the parameter. The all-reduce over N ranks becomes a multiplication by
N, which is what it is when all ranks have the same data.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.static.nn.common import PyFuncRegistry

from program.build import NCCL_ONLY
from program.ops import BACKWARD, CONVOLUTIONS, LOSS, OPTIMIZE, PRODUCTS, added_to, operands
from program.passes import edit
from program.passes.edit import Slots, Step, insert

KEPT = ".kept"
BN_TRAINING = {"is_test": False, "use_global_stats": False, "trainable_statistics": False, "data_layout": "NHWC"}
Rounding = Callable[[np.ndarray], np.ndarray]


def lower(
    main: static.Program,
    startup: static.Program,
    *,
    ranks: int,
    rounded: str = "",
    tf32: bool = False,
    counts: Any = None,
) -> None:
    """Rewrites both programs.

    With `rounded` what lay in half precision is rounded to its type where it is written, FP16's subnormals included:
    the `gradients`, or all `values` with parameters and input too. With `tf32` products round what they read, likewise.
    `counts` gets how many of the gradients' values there were, and how many became 0.
    """
    block, of_gradients = main.global_block(), rounded == "gradients"
    half = {v.name for v in block.vars.values() if v.dtype == paddle.float16} if rounded else set()
    given = [v.name for v in main.list_vars() if v.name in half and (v.is_data or v.is_parameter)]
    for program in (main, startup):
        _widen(program)
    edit.remove(main, lambda op: op.type in NCCL_ONLY)
    edit.remove(startup, lambda op: op.type in (*NCCL_ONLY, "c_allreduce_sum"))  # fleet's first contact of the ranks
    _add_apart(block)
    edit.rewrite(main, _Lowering(block, ranks))
    _round(block, half, counts, of_gradients=of_gradients)
    for name in given if rounded == "values" else ():
        round_one(block, 0, name, to_half, 0)
    if rounded and tf32:
        round_products(block, functools.partial(to_bits, bits=11), of_gradients=of_gradients)
    block._sync_with_cpp()


def _widen(program: static.Program) -> None:
    block = program.global_block()
    for variable in block.vars.values():
        if variable.type == paddle.base.core.VarDesc.VarType.LOD_TENSOR and variable.dtype == paddle.float16:
            variable.desc.set_dtype(paddle.float32)
    for op in block.ops:
        for name in ("dtype", "in_dtype", "out_dtype"):
            if op.has_attr(name) and op.attr(name) == int(paddle.float16):
                op.desc._set_attr(name, int(paddle.float32))


# ---- rounding


def to_half(x: np.ndarray) -> np.ndarray:
    """`x` rounded to FP16, to nearest, its subnormals and infinities too."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def to_bits(x: np.ndarray, *, bits: int) -> np.ndarray:
    """`x` rounded to so many bits of mantissa, the hidden one included, to nearest, ties to even; TF32 has 11."""
    found, one, dropped = x.view(np.uint32), np.uint32(1), np.uint32(24 - bits)
    return (found + (one << dropped - one) - one + (found >> dropped & one) >> dropped << dropped).view(np.float32)


def _round(block: Any, half: set[str], counts: Any, *, of_gradients: bool) -> None:
    for index, op in reversed(list(enumerate(block.ops))):
        role = op.attr("op_role")
        if op.type == "coalesce_tensor" or (of_gradients and role not in (BACKWARD, BACKWARD | LOSS, OPTIMIZE)):
            continue
        slots = (slot for slot in op.output_names if slot not in ("ReserveSpace", "XShape"))
        for name in half & set(operands(op, *slots)):
            round_one(block, index + 1, name, to_half, role, counts=counts if role & BACKWARD else None)


def round_one(
    block: Any, index: int, name: str, rounding: Rounding, role: int, *, into: str = "", counts: Any = None
) -> None:
    """Rounds a variable, in place unless `into` another, before the operator at `index`.

    `counts` gets how many values there were, and how many became 0.
    """

    def rounded(x: Any) -> np.ndarray:
        exact = np.array(x)
        found = rounding(exact)
        if counts is not None:
            counts[:] += exact.size, np.count_nonzero(exact) - np.count_nonzero(found)
        return found

    near = into or block.create_var(name=f"{name}.{index}.near", shape=block.var(name).shape, dtype="float32").name
    if not into:  # where it lies: a gradient is a slice of its bucket
        insert(block, index, "assign", {"X": [near]}, {"Out": [name]}, op_role=role)
    callables = {"forward_callable_id": PyFuncRegistry(rounded).id, "backward_callable_id": -1}
    insert(block, index, "py_func", {"X": [name]}, {"Out": [near]}, **callables, op_role=role)


def round_products(block: Any, rounding: Rounding, *, of_gradients: bool = False) -> None:
    """Has each convolution and matrix product read rounded values, or the backward ones alone."""
    for index, op in reversed(list(enumerate(block.ops))):
        kind = op.type.removesuffix("_grad")
        if kind not in CONVOLUTIONS | PRODUCTS or (of_gradients and kind == op.type):
            continue
        for slot in {"Input", "Filter", "Output@GRAD", "X", "Y", "Out@GRAD"}.intersection(op.input_names):
            (x,) = op.input(slot)
            near = block.create_var(name=f"{x}.{index}.product", shape=block.var(x).shape, dtype="float32").name
            op.desc.set_input(slot, [near])
            round_one(block, index, x, rounding, op.attr("op_role"), into=near)


def choices(main: static.Program, part: int, *, kept: bool) -> None:
    """Writes what says where gradients pass, a relu's output and what the largest was taken of, to `part`'s variables.

    Or reads it from there, where a run of the same program without rounding has `kept` it.
    """
    block = main.global_block()
    for index, op in reversed(list(enumerate(block.ops))):
        slots = {"relu_grad": ("Out",), "pool2d_grad": ("X", "Out")}.get(op.type, ())
        if op.type == "pool2d_grad" and op.attr("pooling_type") != "max":
            continue
        for slot in slots:
            (name,) = op.input(slot)
            own = f"{name}{KEPT}{part}"
            if not block.has_var(own):
                block.create_var(name=own, shape=block.var(name).shape, dtype="float32", persistable=True)
            if kept:
                op.desc.set_input(slot, [own])
            else:
                insert(block, index, "assign", {"X": [name]}, {"Out": [own]}, op_role=op.attr("op_role"))
    block._sync_with_cpp()


# ---- operators


def _add_apart(block: Any) -> None:
    """Has each convolution's gradient that adds to another write its own, which an operator adds."""
    for index, op in reversed(list(enumerate(block.ops))):
        for target in added_to(op) if op.type == "conv2d_grad" else ():
            part = block.create_var(name=f"{target}.{index}.part", shape=block.var(target).shape, dtype="float32").name
            op.desc._set_attr("use_addto", False)
            op.desc.set_output("Input@GRAD", [part])
            both = {"X": [target], "Y": [part]}
            insert(block, index + 1, "elementwise_add", both, {"Out": [target]}, axis=-1, op_role=1)


class _Lowering:
    """What stands in an operator's place, by the method of its name; None where it stays."""

    def __init__(self, block: Any, ranks: int) -> None:
        self.block, self.ranks, self.made = block, ranks, 0
        self.steps: list[Step] = []

    def __call__(self, op: Any) -> list[Step] | None:
        method = getattr(self, op.type, None)
        if method is None:
            return None
        self.steps = []
        method(op)
        return self.steps

    def add(self, kind: str, inputs: Slots, outputs: Slots, **attrs: Any) -> None:
        self.steps.append(Step(kind, inputs, outputs, attrs))

    def like(self, name: str, shape: Any = None) -> str:
        """A new variable of the shape of `name`, or another one."""
        self.made += 1
        shape = self.block.var(name).shape if shape is None else shape
        return self.block.create_var(name=f"{name}.lowered_{self.made}", shape=shape, dtype="float32").name

    # ---- batch normalization and activation

    def norm(self, op: Any, of: Slots, x: str, y: str) -> None:
        attrs = BN_TRAINING | {name: op.attr(name) for name in ("epsilon", "momentum")}
        inputs = {slot: of[slot] for slot in ("Scale", "Bias", "Mean", "Variance")} | {"X": [x]}
        outputs = {slot: of[slot] for slot in ("SavedMean", "SavedVariance", "ReserveSpace")} | {"Y": [y]}
        self.add("batch_norm", inputs, outputs | {"MeanOut": of["Mean"], "VarianceOut": of["Variance"]}, **attrs)

    def norm_grad(self, op: Any, of: Slots, dy: str) -> None:
        attrs = BN_TRAINING | {name: op.attr(name) for name in ("epsilon", "momentum")}
        inputs = {slot: of[slot] for slot in ("X", "Scale", "Bias", "SavedMean", "SavedVariance")} | {"Y@GRAD": [dy]}
        self.add("batch_norm_grad", inputs, {s: of[s] for s in ("X@GRAD", "Scale@GRAD", "Bias@GRAD")}, **attrs)

    def fused_batch_norm_act(self, op: Any) -> None:
        assert op.attr("act_type") == "relu"
        y, of = self.like(op.output("Y")[0]), slots_of(op)
        (x,) = of["X"]
        self.norm(op, of, x, y)
        if "Z" in of:
            total = self.like(y)
            self.add("elementwise_add", {"X": [y], "Y": of["Z"]}, {"Out": [total]}, axis=-1)
            y = total
        self.add("relu", {"X": [y]}, {"Out": of["Y"]})

    def fused_batch_norm_act_grad(self, op: Any) -> None:
        of = slots_of(op)
        dy = of["Z@GRAD"][0] if "Z@GRAD" in of else self.like(of["Y"][0])
        self.add("relu_grad", {"Out": of["Y"], "Out@GRAD": of["Y@GRAD"]}, {"X@GRAD": [dy]})
        self.norm_grad(op, of, dy)

    fused_bn_add_activation = fused_batch_norm_act
    fused_bn_add_activation_grad = fused_batch_norm_act_grad

    # ---- units

    def reshaped(self, name: str, shape: list[int], into: str = "") -> str:
        out = into or self.like(name, shape)
        self.add("reshape2", {"X": [name]}, {"Out": [out], "XShape": [self.like(name)]}, shape=shape)
        return out

    def turned(self, name: str, axes: list[int], into: str = "") -> str:
        out = into or self.like(name, [self.block.var(name).shape[axis] for axis in axes])
        self.add("transpose2", {"X": [name]}, {"Out": [out], "XShape": [self.like(name)]}, axis=axes)
        return out

    def sides(self, op: Any) -> list[tuple[str, Slots, dict[str, Any], list[int]]]:
        """Of a unit's one or two convolutions: the letter, the batch norm's operands, the attributes, [channels]."""
        found = []
        for side in "XZ" if op.attr("has_shortcut") else "X":
            count = [self.block.var(operands(op, f"Conv{side}")[0]).shape[3]]
            saved = operands(op, f"SavedMean{side}", f"SavedInvstd{side}")
            mean, deviation = (
                [self.block.create_var(name=f"{name}.flat", shape=count, dtype="float32").name] for name in saved
            )
            of = {"X": operands(op, f"Conv{side}"), "SavedMean": mean, "SavedVariance": deviation}
            of |= {s: [self.reshaped(op.input(f"{s}{side}")[0], count)] for s in ("Scale", "Bias")}
            attrs = {
                "strides": [op.attr("stride" if side == "X" else "stride_z")] * 2,
                "paddings": [op.attr("padding")] * 2,
                **{"groups": 1, "dilations": [1, 1], "padding_algorithm": "EXPLICIT", "data_format": "NHWC"},
            }
            found.append((side, of, attrs, count))
        return found

    def resnet_unit(self, op: Any) -> None:
        (y,), sums = op.output("Y"), []
        for side, of, attrs, count in self.sides(op):
            image = {"Input": op.input(side), "Filter": [self.turned(op.input(f"Filter{side}")[0], [0, 3, 1, 2])]}
            self.add("conv2d", image, {"Output": of["X"]}, **attrs)
            mean, variance = (self.reshaped(op.input(f"{s}{side}")[0], count) for s in ("Mean", "Var"))
            of |= {"Mean": [mean], "Variance": [variance], "ReserveSpace": [self.like(mean)]}
            sums.append(self.like(y))
            self.norm(op, of, of["X"][0], sums[-1])
            for running, slot in ((mean, "Mean"), (variance, "Var")):
                self.reshaped(running, [1, 1, 1, *count], into=op.output(f"Running{slot}{side}")[0])
        if op.attr("fuse_add") and not op.attr("has_shortcut"):
            sums += op.input("Z")
        if len(sums) == 2:
            total = self.like(y)
            self.add("elementwise_add", {"X": sums[:1], "Y": sums[1:]}, {"Out": [total]}, axis=-1)
            sums = [total]
        self.add("relu", {"X": sums}, {"Out": [y]})

    def resnet_unit_grad(self, op: Any) -> None:
        identity = op.attr("fuse_add") and not op.attr("has_shortcut")
        dy = op.output("Z@GRAD")[0] if identity else self.like(op.input("Y")[0])
        self.add("relu_grad", {"Out": op.input("Y"), "Out@GRAD": op.input("Y@GRAD")}, {"X@GRAD": [dy]})
        for side, of, attrs, count in self.sides(op):
            (weights,), (target,) = op.input(f"Filter{side}"), op.output(f"{side}@GRAD")
            of |= {f"{slot}@GRAD": [self.like(of[slot][0])] for slot in ("X", "Scale", "Bias")}
            self.norm_grad(op, of, dy)
            for slot in ("Scale", "Bias"):
                flat = of[f"{slot}@GRAD"][0]
                self.reshaped(flat, [1, 1, 1, *count], into=op.output(f"{slot}{side}@GRAD")[0])
            straight = self.turned(weights, [0, 3, 1, 2])
            d_weights = self.like(straight)
            adds = side == "X" and op.attr("use_addto")
            part = self.like(target) if adds else target
            image = {"Input": op.input(side), "Filter": [straight], "Output@GRAD": of["X@GRAD"]}
            self.add("conv2d_grad", image, {"Input@GRAD": [part], "Filter@GRAD": [d_weights]}, **attrs)
            self.turned(d_weights, [0, 2, 3, 1], into=op.output(f"Filter{side}@GRAD")[0])
            if adds:
                self.add("elementwise_add", {"X": [target], "Y": [part]}, {"Out": [target]}, axis=-1)

    # ---- transport and update

    def share_buffer(self, op: Any) -> None:
        self.add("assign", {"X": op.input("X")}, {"Out": op.output("Out")})

    def c_allreduce_sum(self, op: Any) -> None:
        self.add("scale", {"X": op.input("X")}, {"Out": op.output("Out")}, scale=float(self.ranks))

    def momentum(self, op: Any) -> None:
        """On the masters; rescaled by operators: Paddle's kernels for CPUs leave the attribute out."""
        parameters, gradients, masters = (operands(op, slot) for slot in ("Param", "Grad", "MasterParam"))
        if op.attr("rescale_grad") != 1.0:
            straight, gradients = gradients, [self.like(name) for name in gradients]
            for name, into in zip(straight, gradients, strict=True):
                self.add("scale", {"X": [name]}, {"Out": [into]}, scale=op.attr("rescale_grad"))
        updated = masters or parameters
        names = {"mu", "use_nesterov", "regularization_method", "regularization_coeff"}
        names |= {"lars_coeff", "lars_weight_decay", "epsilon"}
        self.add(
            op.type,
            {"Param": updated, "Grad": gradients} | {s: op.input(s) for s in ("Velocity", "LearningRate")},
            {"ParamOut": updated, "VelocityOut": op.output("VelocityOut")},
            **{name: op.attr(name) for name in names if op.has_attr(name)},
            multi_precision=False,
        )
        for master, parameter in zip(masters, parameters, strict=False):  # none of FP32 parameters
            self.add("assign", {"X": [master]}, {"Out": [parameter]})

    merged_momentum = lars_momentum = momentum


def slots_of(op: Any) -> Slots:
    """The variables of each slot of an operator."""
    return {slot: operands(op, slot) for slot in (*op.input_names, *op.output_names)}
