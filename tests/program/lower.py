"""Lowers a GPU training program to one that a CPU runs: the same wiring in FP32 by primitive operators.

FP16 variables become FP32; each fused operator becomes its primitives with the same inputs and attributes; gradients
that a convolution adds to become a sum; an update works on the FP32 master and copies it back into the parameter. The
all-reduce over N ranks becomes a multiplication by N, which is what it is when all ranks have the same data.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import static

from program.passes import insert

HALF = (paddle.float16, paddle.bfloat16)
BN_ATTRIBUTES = ("epsilon", "momentum")
BN_TRAINING = {"is_test": False, "use_global_stats": False, "trainable_statistics": False}


def lower(main: static.Program, startup: static.Program, *, ranks: int) -> None:
    """Rewrites both programs in place."""
    for program in (main, startup):
        _widen(program)
        _drop(program, ("c_gen_nccl_id", "c_comm_init", "c_broadcast", "c_sync_comm_stream", "c_sync_calc_stream"))
    _drop(startup, ("c_allreduce_sum",))  # fleet's first contact of the ranks
    _Lowering(main, ranks).run()


def _drop(program: static.Program, kinds: tuple[str, ...]) -> None:
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in kinds:
            block._remove_op(index, sync=False)
    block._sync_with_cpp()


def _widen(program: static.Program) -> None:
    block = program.global_block()
    for variable in block.vars.values():
        if variable.type == paddle.base.core.VarDesc.VarType.LOD_TENSOR and variable.dtype in HALF:
            variable.desc.set_dtype(paddle.float32)
    for op in block.ops:
        for name in ("dtype", "in_dtype", "out_dtype"):
            if op.has_attr(name) and op.attr(name) in [int(h) for h in HALF]:
                op.desc._set_attr(name, int(paddle.float32))


Variables = dict[str, list[str]]


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
            where = self.at
            if method(op) is False:
                self.at = where + 1
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

    def lower_merged_momentum(self, op: Any) -> Any:
        masters = op.input("MasterParam")
        if not masters:
            return False
        parameters = op.input("Param")
        attrs = {
            name: op.attr(name)
            for name in ("mu", "use_nesterov", "regularization_method", "regularization_coeff", "rescale_grad")
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
