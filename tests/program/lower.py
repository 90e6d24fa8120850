"""Lowers a GPU training program to one that a CPU runs: the same wiring in FP32 by primitive operators.

Half-precision variables become FP32, and can be rounded to their own type where they are written; each fused operator
becomes its primitives with the same inputs and attributes; gradients that a convolution adds to become a sum; an update
works on the FP32 master and copies it back into the parameter. The all-reduce over N ranks becomes a multiplication by
N, which is what it is when all ranks have the same data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.static.nn.common import PyFuncRegistry

from program.ops import BACKWARD, CONVOLUTIONS, LOSS, OPTIMIZE, PRODUCTS
from program.passes.edit import insert

BN_ATTRIBUTES = ("epsilon", "momentum")
KEPT = ".kept"
BN_TRAINING = {"is_test": False, "use_global_stats": False, "trainable_statistics": False}


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
    block = main.global_block()
    half = {v.name: v.dtype for v in block.vars.values() if v.dtype == paddle.float16} if rounded else {}
    given = [v.name for v in main.list_vars() if v.name in half and (v.is_data or v.is_parameter)]
    for program in (main, startup):
        _widen(program)
        _drop(program, ("c_gen_nccl_id", "c_comm_init", "c_broadcast", "c_sync_comm_stream", "c_sync_calc_stream"))
    _drop(startup, ("c_allreduce_sum",))  # fleet's first contact of the ranks
    _Lowering(main, ranks).run()
    _round(block, half, counts, gradients=rounded == "gradients")
    for name in given if rounded == "values" else ():
        _round_one(block, 0, name, half[name], 0)
    if rounded and tf32:
        _round_products(block, gradients=rounded == "gradients")
    block._sync_with_cpp()


def _drop(program: static.Program, kinds: tuple[str, ...]) -> None:
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in kinds:
            block._remove_op(index, sync=False)
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


def _round(block: Any, half: dict[str, Any], counts: Any, *, gradients: bool) -> None:
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        role = op.attr("op_role")
        if op.type == "coalesce_tensor" or (gradients and role not in (BACKWARD, BACKWARD | LOSS, OPTIMIZE)):
            continue
        slots = (slot for slot in op.output_names if slot not in ("ReserveSpace", "XShape"))
        for name in half.keys() & {name for slot in slots for name in op.output(slot)}:
            _round_one(block, index + 1, name, half[name], role, counts=counts if role & BACKWARD else None)


def nearest(x: np.ndarray, dtype: Any) -> np.ndarray:
    """`x` rounded to nearest, ties to even: to FP16 (subnormals and infinities too), or TF32 for FP32."""
    if dtype == paddle.float16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits, one, dropped = x.view(np.uint32), np.uint32(1), np.uint32(13)
    return (bits + (one << dropped - one) - one + (bits >> dropped & one) >> dropped << dropped).view(np.float32)


def _round_one(block: Any, index: int, name: str, dtype: Any, role: int, *, into: str = "", counts: Any = None) -> None:
    """Rounds a variable, in place unless `into` another, before the operator at `index`.

    `counts` gets how many values there were, and how many became 0.
    """

    def rounded(x: Any) -> np.ndarray:
        exact = np.array(x)
        found = nearest(exact, dtype)
        if counts is not None:
            there = np.count_nonzero(exact)
            counts[:] += exact.size, there - np.count_nonzero(found)
        return found

    near = into or block.create_var(name=f"{name}.{index}.near", shape=block.var(name).shape, dtype="float32").name
    if not into:  # where it lies: a gradient is a slice of its bucket
        insert(block, index, "assign", {"X": [near]}, {"Out": [name]}, op_role=role)
    callables = {"forward_callable_id": PyFuncRegistry(rounded).id, "backward_callable_id": -1}
    insert(block, index, "py_func", {"X": [name]}, {"Out": [near]}, **callables, op_role=role)


def _round_products(block: Any, *, gradients: bool) -> None:
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        kind = op.type.removesuffix("_grad")
        if kind not in CONVOLUTIONS | PRODUCTS or (gradients and kind == op.type):
            continue
        for slot in {"Input", "Filter", "Output@GRAD", "X", "Y", "Out@GRAD"}.intersection(op.input_names):
            (x,) = op.input(slot)
            near = block.create_var(name=f"{x}.{index}.tf32", shape=block.var(x).shape, dtype="float32").name
            op.desc.set_input(slot, [near])
            _round_one(block, index, x, paddle.float32, op.attr("op_role"), into=near)


def choices(main: static.Program, part: int, *, kept: bool) -> None:
    """Writes what says where gradients pass, a relu's output and what the largest was taken of, to `part`'s variables.

    Or reads it from there, where a run of the same program without rounding has `kept` it.
    """
    block = main.global_block()
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
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


class _Lowering:
    def __init__(self, main: static.Program, ranks: int) -> None:
        self.block, self.ranks, self.at, self.made = main.global_block(), ranks, 0, 0

    def run(self) -> None:
        while self.at < len(self.block.ops):
            op = self.block.ops[self.at]
            method = getattr(self, f"lower_{op.type}", None)
            if method is None:
                self.at += 1
                continue
            if method(op) is False:
                self.at = self.block.ops.index(op) + 1
                continue
            self.block._remove_op(self.at, sync=False)
        self.block._sync_with_cpp()

    def add(
        self, kind: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], role: int, **attrs: Any
    ) -> None:
        insert(self.block, self.at, kind, inputs, outputs, op_role=role, **attrs)
        self.at += 1

    def like(self, name: str) -> str:
        """A new variable of the shape of `name`."""
        self.made += 1
        shape = self.block.var(name).shape
        return self.block.create_var(name=f"{name}.lowered_{self.made}", shape=shape, dtype="float32").name

    # ---- batch normalization and activation

    def batch_norm(self, op: Any, x: str, y: str) -> None:
        inputs = {slot: op.input(slot) for slot in ("Scale", "Bias", "Mean", "Variance")} | {"X": [x]}
        outputs = {s: op.output(s) for s in ("MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace")}
        attrs = BN_TRAINING | {name: op.attr(name) for name in BN_ATTRIBUTES}
        self.add("batch_norm", inputs, outputs | {"Y": [y]}, op.attr("op_role"), data_layout=self.layout(op), **attrs)

    def batch_norm_grad(self, op: Any, dy: str) -> None:
        inputs = {s: op.input(s) for s in ("X", "Scale", "Bias", "SavedMean", "SavedVariance", "ReserveSpace")}
        outputs = {s: op.output(s) for s in ("X@GRAD", "Scale@GRAD", "Bias@GRAD")}
        attrs = BN_TRAINING | {name: op.attr(name) for name in BN_ATTRIBUTES}
        self.add(
            "batch_norm_grad",
            inputs | {"Y@GRAD": [dy]},
            outputs,
            op.attr("op_role"),
            data_layout=self.layout(op),
            **attrs,
        )

    def layout(self, op: Any) -> str:
        # The fused operators have no layout attribute or keep the one of batch_norm: they exist for NHWC alone.
        return op.attr("data_layout") if op.has_attr("data_layout") else "NHWC"

    def lower_fused_batch_norm_act(self, op: Any) -> None:
        assert op.attr("act_type") == "relu"
        y = self.like(op.output("Y")[0])
        self.batch_norm(op, op.input("X")[0], y)
        self.add("relu", {"X": [y]}, {"Out": op.output("Y")}, op.attr("op_role"))

    def lower_fused_batch_norm_act_grad(self, op: Any) -> None:
        dy = self.like(op.input("Y")[0])
        self.add("relu_grad", {"Out": op.input("Y"), "Out@GRAD": op.input("Y@GRAD")}, {"X@GRAD": [dy]}, 1)
        self.batch_norm_grad(op, dy)

    def lower_fused_bn_add_activation(self, op: Any) -> None:
        assert op.attr("act_type") == "relu"
        y, total = self.like(op.output("Y")[0]), self.like(op.output("Y")[0])
        self.batch_norm(op, op.input("X")[0], y)
        self.add("elementwise_add", {"X": [y], "Y": op.input("Z")}, {"Out": [total]}, op.attr("op_role"), axis=-1)
        self.add("relu", {"X": [total]}, {"Out": op.output("Y")}, op.attr("op_role"))

    def lower_fused_bn_add_activation_grad(self, op: Any) -> None:
        dz = op.output("Z@GRAD")
        self.add("relu_grad", {"Out": op.input("Y"), "Out@GRAD": op.input("Y@GRAD")}, {"X@GRAD": dz}, 1)
        self.batch_norm_grad(op, dz[0])

    def lower_sync_batch_norm(self, op: Any) -> None:
        self.batch_norm(op, op.input("X")[0], op.output("Y")[0])

    def lower_sync_batch_norm_grad(self, op: Any) -> None:
        self.batch_norm_grad(op, op.input("Y@GRAD")[0])

    # ---- units

    def reshaped(self, name: str, shape: list[int], role: int, into: str = "") -> str:
        out, unused = into or self.like(name), self.like(name)
        if not into:
            self.block.var(out).desc.set_shape(shape)
        self.add("reshape2", {"X": [name]}, {"Out": [out], "XShape": [unused]}, role, shape=shape)
        return out

    def turned(self, name: str, axes: list[int], role: int, into: str = "") -> str:
        out, unused = into or self.like(name), self.like(name)
        if not into:
            shape = self.block.var(name).shape
            self.block.var(out).desc.set_shape([shape[axis] for axis in axes])
        self.add("transpose2", {"X": [name]}, {"Out": [out], "XShape": [unused]}, role, axis=axes)
        return out

    def convolution_of(self, op: Any, side: str) -> dict[str, Any]:
        pads = [op.attr("padding")] * 2
        strides = [op.attr("stride" if side == "X" else "stride_z")] * 2
        more = {"groups": 1, "dilations": [1, 1], "padding_algorithm": "EXPLICIT", "data_format": "NHWC"}
        return {"strides": strides, "paddings": pads, **more}

    def lower_resnet_unit(self, op: Any) -> None:
        role, y = op.attr("op_role"), op.output("Y")[0]
        sums = []
        for side in "XZ" if op.attr("has_shortcut") else "X":
            weights = self.turned(op.input(f"Filter{side}")[0], [0, 3, 1, 2], role)
            conv = op.output(f"Conv{side}")
            image = {"Input": op.input(side), "Filter": [weights]}
            self.add("conv2d", image, {"Output": conv}, role, **self.convolution_of(op, side))
            count = self.block.var(conv[0]).shape[3]
            flat = {
                s: self.reshaped(op.input(f"{s}{side}")[0], [count], role) for s in ("Scale", "Bias", "Mean", "Var")
            }
            saved = [
                self.block.create_var(name=f"{n}.flat", shape=[count], dtype="float32").name
                for n in (*op.output(f"SavedMean{side}"), *op.output(f"SavedInvstd{side}"))
            ]
            sums.append(self.like(y))
            self.add(
                "batch_norm",
                {
                    "X": conv,
                    "Scale": [flat["Scale"]],
                    "Bias": [flat["Bias"]],
                    "Mean": [flat["Mean"]],
                    "Variance": [flat["Var"]],
                },
                {
                    "Y": [sums[-1]],
                    "MeanOut": [flat["Mean"]],
                    "VarianceOut": [flat["Var"]],
                    "SavedMean": [saved[0]],
                    "SavedVariance": [saved[1]],
                    "ReserveSpace": [self.like(flat["Mean"])],
                },
                role,
                data_layout="NHWC",
                **BN_TRAINING | {n: op.attr(n) for n in (*BN_ATTRIBUTES, "is_test", "use_global_stats")},
            )
            for slot in ("Mean", "Var"):
                self.reshaped(flat[slot], [1, 1, 1, count], role, into=op.output(f"Running{slot}{side}")[0])
        if op.attr("fuse_add") and not op.attr("has_shortcut"):
            sums.append(op.input("Z")[0])
        if len(sums) == 2:
            total = self.like(y)
            self.add("elementwise_add", {"X": sums[:1], "Y": sums[1:]}, {"Out": [total]}, role, axis=-1)
            sums = [total]
        self.add("relu", {"X": sums}, {"Out": [y]}, role)

    def lower_resnet_unit_grad(self, op: Any) -> None:
        identity = op.attr("fuse_add") and not op.attr("has_shortcut")
        dy = op.output("Z@GRAD")[0] if identity else self.like(op.input("Y")[0])
        self.add("relu_grad", {"Out": op.input("Y"), "Out@GRAD": op.input("Y@GRAD")}, {"X@GRAD": [dy]}, 1)
        for side in "XZ" if op.attr("has_shortcut") else "X":
            conv, (weights,) = op.input(f"Conv{side}")[0], op.input(f"Filter{side}")
            count = self.block.var(conv).shape[3]
            flat = {s: self.reshaped(op.input(f"{s}{side}")[0], [count], 1) for s in ("Scale", "Bias")}
            saved = [f"{op.input(f'{s}{side}')[0]}.flat" for s in ("SavedMean", "SavedInvstd")]
            d_conv, d_flat = self.like(conv), {s: self.like(flat[s]) for s in flat}
            self.add(
                "batch_norm_grad",
                {
                    "X": [conv],
                    "Scale": [flat["Scale"]],
                    "Bias": [flat["Bias"]],
                    "SavedMean": saved[:1],
                    "SavedVariance": saved[1:],
                    "Y@GRAD": [dy],
                },
                {"X@GRAD": [d_conv], **{f"{s}@GRAD": [d_flat[s]] for s in flat}},
                1,
                data_layout="NHWC",
                **BN_TRAINING | {n: op.attr(n) for n in BN_ATTRIBUTES},
            )
            for slot, name in d_flat.items():
                self.reshaped(name, [1, 1, 1, count], 1, into=op.output(f"{slot}{side}@GRAD")[0])
            straight = self.turned(weights, [0, 3, 1, 2], 1)
            d_weights, (target,) = self.like(straight), op.output(f"{side}@GRAD")
            adds = side == "X" and op.attr("use_addto")
            part = self.like(target) if adds else target
            self.add(
                "conv2d_grad",
                {"Input": op.input(side), "Filter": [straight], "Output@GRAD": [d_conv]},
                {"Input@GRAD": [part], "Filter@GRAD": [d_weights]},
                1,
                **self.convolution_of(op, side),
            )
            self.turned(d_weights, [0, 2, 3, 1], 1, into=op.output(f"Filter{side}@GRAD")[0])
            if adds:
                self.add("elementwise_add", {"X": [target], "Y": [part]}, {"Out": [target]}, 1, axis=-1)

    # ---- gradients that are added to

    def lower_share_buffer(self, op: Any) -> None:
        self.add("assign", {"X": op.input("X")}, {"Out": op.output("Out")}, op.attr("op_role"))

    def lower_conv2d_grad(self, op: Any) -> Any:
        if not (op.has_attr("use_addto") and op.attr("use_addto")):
            return False
        op.desc._set_attr("use_addto", False)
        target = op.output("Input@GRAD")[0]
        part = self.like(target)
        op.desc.set_output("Input@GRAD", [part])
        self.at += 1
        insert(
            self.block, self.at, "elementwise_add", {"X": [target], "Y": [part]}, {"Out": [target]}, axis=-1, op_role=1
        )
        return False

    # ---- transport and update

    def lower_c_allreduce_sum(self, op: Any) -> None:
        self.add("scale", {"X": op.input("X")}, {"Out": op.output("Out")}, op.attr("op_role"), scale=float(self.ranks))

    def rescale(self, op: Any) -> None:
        """By an operator: Paddle's kernels for CPUs leave the attribute out."""
        if op.attr("rescale_grad") == 1.0:
            return
        taken_off = [self.like(name) for name in op.input("Grad")]
        for name, into in zip(op.input("Grad"), taken_off, strict=True):
            self.add("scale", {"X": [name]}, {"Out": [into]}, op.attr("op_role"), scale=op.attr("rescale_grad"))
        op.desc.set_input("Grad", taken_off)
        op.desc._set_float32_attr("rescale_grad", 1.0)

    def lower_merged_momentum(self, op: Any) -> Any:
        self.rescale(op)
        masters = op.input("MasterParam")
        if not masters:
            return False
        parameters = op.input("Param")
        attrs = {
            name: op.attr(name) for name in ("mu", "use_nesterov", "regularization_method", "regularization_coeff")
        }
        self.add(
            "merged_momentum",
            {
                "Param": masters,
                "Grad": op.input("Grad"),
                "Velocity": op.input("Velocity"),
                "LearningRate": op.input("LearningRate"),
            },
            {"ParamOut": masters, "VelocityOut": op.output("VelocityOut")},
            op.attr("op_role"),
            multi_precision=False,
            **attrs,
        )
        for master, parameter in zip(masters, parameters, strict=True):
            self.add("assign", {"X": [master]}, {"Out": [parameter]}, op.attr("op_role"))
        return None

    def lower_momentum(self, op: Any) -> Any:
        self.rescale(op)
        masters = op.input("MasterParam")
        if not masters:
            return False
        parameters = op.input("Param")
        op.desc.set_input("Param", masters)
        op.desc.set_output("ParamOut", masters)
        op.desc.set_input("MasterParam", [])
        op.desc.set_output("MasterParamOut", [])
        op.desc._set_bool_attr("multi_precision", False)
        for master, parameter in zip(masters, parameters, strict=True):
            self.at += 1
            insert(self.block, self.at, "assign", {"X": [master]}, {"Out": [parameter]}, op_role=op.attr("op_role"))
        return False

    lower_lars_momentum = lower_momentum
