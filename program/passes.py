"""Our own passes over a training program, where Paddle's do nothing, do too little, or cannot be steered.

A pass returns how many places it changed. Operators are written by their descriptors: Paddle's own way to insert one
checks it against the Python stack and refuses gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle import static
from paddle.base.framework import Operator, _apply_pass

from program.ops import (
    BACKWARD,
    EMPTY,
    LOSS,
    MERGED,
    OPTIMIZE,
    is_clear,
    is_merge,
    is_optimizer,
    parameters_by_gradient,
    readers,
    writers,
)

IMAGE_TO_CHANNELS = 1.5  # `convolve_gradients`: at 18 channels of 32 x 32 pixels it gains, at 72 of 8 x 8 it loses
TRANSPORT = ("c_allreduce_sum", "c_sync_calc_stream", "c_sync_comm_stream")  # what fleet adds to carry gradients


Slots = dict[str, list[str]]  # of an operator: the variables in each
Step = tuple[str, Slots, Slots, dict[str, Any]]  # an operator's type, inputs, outputs and attributes


def insert(block: Any, index: int, kind: str, inputs: Slots, outputs: Slots, **attrs: Any) -> Any:
    """A new operator before the one at `index`."""
    desc = block.desc._insert_op(index)
    desc.set_type(kind)
    for name, variables in inputs.items():
        desc.set_input(name, variables)
    for name, variables in outputs.items():
        desc.set_output(name, variables)
    for name, value in attrs.items():
        if isinstance(value, bool):
            desc._set_bool_attr(name, value)  # else it becomes a number where the operator declares no attributes
        elif isinstance(value, float):
            desc._set_float32_attr(name, value)
        else:
            desc._set_attr(name, _plain(value))
    desc.check_attrs()  # fills in the defaults
    op = Operator(block, desc)
    block.ops.insert(index, op)
    return op


def insert_all(block: Any, index: int, steps: Sequence[Step], *, op_role: int) -> None:
    """New operators, in this order, before the one at `index`."""
    for kind, inputs, outputs, attrs in reversed(steps):
        insert(block, index, kind, inputs, outputs, **attrs, op_role=op_role)


def remove(program: static.Program, unwanted: Callable[[Any], bool]) -> None:
    """Takes the operators out that are `unwanted`."""
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        if unwanted(block.ops[index]):
            block._remove_op(index, sync=False)
    block._sync_with_cpp()


# ---- gradients of sums ---------------------------------------------------------------------------------------------


def simplify_sums(main: static.Program) -> int:
    """Sums of tensors of one shape without what nobody needs: their gradients are one variable, not a copy each.

    The gradient of an addition is that of its sum, so its operator goes. Paddle's fused add + relu also writes the sum
    before the relu, and its gradient reads an addend and writes the same tensor twice: `relu_grad` serves, and of 9
    tensors moved 6 are left. Must run after the gradients exist and before anything renames them.
    """
    block = main.global_block()
    _leave_out_sums(block)
    written, read = writers(block), readers(block)
    joined: dict[str, str] = {}  # name of a variable -> that of the one in its place

    def joins(index: int, names: list[str]) -> str:
        """The one variable in the place of those that are equal after this operator; empty if there must be several."""
        names = [_last(joined, name) for name in names]
        if len({(block.var(name).shape, block.var(name).dtype) for name in names}) > 1:
            return ""
        changed = [name for name in names if written[name][-1] > index]  # an accumulation into it
        keep = changed[0] if changed else names[0]
        first_change = min((i for i in written[keep] if i > index), default=len(block.ops))
        dropped = [name for name in names if name != keep]
        if len(changed) > 1 or any(i >= first_change for name in dropped for i in read.get(name, [])):
            return ""
        for name in dropped:
            joined[name] = keep
            written[keep] = sorted(written[keep] + written[name])
            read[keep] = read.get(keep, []) + read.get(name, [])
        return keep

    done: dict[int, str] = {}  # operator -> its gradients' one variable
    for index, op in enumerate(block.ops):
        gradients = [name for slot in ("X@GRAD", "Y@GRAD") if slot in op.output_names for name in op.output(slot)]
        if len(gradients) < 2 or EMPTY in gradients:
            continue
        if op.type == "elementwise_add_grad":
            done[index] = joins(index, op.input("Out@GRAD") + gradients)
        elif op.type == "fused_elemwise_add_activation_grad" and op.attr("functor_list")[0] == "relu_grad":
            done[index] = joins(index, gradients)
    done = {index: name for index, name in done.items() if name}
    for index in sorted(done, reverse=True):
        op = block.ops[index]
        if op.type != "elementwise_add_grad":
            inputs = {slot: op.input(slot) for slot in ("Out", "Out@GRAD")}
            insert(block, index + 1, "relu_grad", inputs, {"X@GRAD": [done[index]]}, op_role=BACKWARD)
        block._remove_op(index, sync=False)
    for op in block.ops:
        for name in joined.keys() & {*op.input_arg_names, *op.output_arg_names}:
            op.desc._rename_input(name, _last(joined, name))
            op.desc._rename_output(name, _last(joined, name))
    block._sync_with_cpp()
    return len(done)


def _leave_out_sums(block: Any) -> None:
    """Has no fused add + relu of one shape write the sum before the relu."""
    for op in block.ops:
        if op.type == "fused_elemwise_add_activation" and op.attr("functor_list") == ["relu", "elementwise_add"]:
            x, y = block.var(op.input("X")[0]), block.var(op.input("Y")[0])
            if x.shape == y.shape:
                op.desc._set_attr("save_intermediate_out", False)
                op.desc.set_output("IntermediateOut", [])


def _last(joined: dict[str, str], name: str) -> str:
    while name in joined:
        name = joined[name]
    return name


# ---- gradient of a mean over the image ----------------------------------------------------------------------------


def spread_mean(main: static.Program) -> int:
    """The gradient of an average pooling over the whole image from the gradient alone.

    Paddle's operator also reads the image and its mean, of which the gradient does not depend. Each place of it is
    the mean's gradient / (height x width): the average, padding counted, over a window of the image's size that holds
    that one value wherever it stands. Must run after the gradients exist.
    """
    block, changed = main.global_block(), 0
    for index, op in enumerate(block.ops):
        if op.type != "pool2d_grad" or op.attr("pooling_type") != "avg":
            continue
        first = op.attr("data_format").index("H")
        sides = block.var(op.input("X")[0]).shape[first : first + 2]
        if block.var(op.input("Out")[0]).shape[first : first + 2] != (1, 1):
            continue
        insert(
            block,
            index,
            "pool2d",
            {"X": op.input("Out@GRAD")},
            {"Out": op.output("X@GRAD")},
            pooling_type="avg",
            ksize=list(sides),
            strides=[1, 1],
            paddings=[side - 1 for side in sides],
            exclusive=False,
            data_format=op.attr("data_format"),
            use_cudnn=op.attr("use_cudnn"),
            op_role=BACKWARD,
        )
        block._remove_op(index + 1, sync=False)
        changed += 1
    block._sync_with_cpp()
    return changed


# ---- convolutions of a CPU -------------------------------------------------------------------------------------------


def convolve_gradients(main: static.Program) -> int:
    """Gradients by the input of 3x3 convolutions as convolutions with the turned weights; returns how many.

    Paddle's CPU kernel adds up the columns of its matrix product value by value, 12 % of HRNet's step. Only where the
    image is large against the weights, which are turned at each step.
    """
    block, changed = main.global_block(), 0
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        if op.type != "conv2d_grad" or not op.output("Input@GRAD") or op.attr("data_format") != "NCHW":
            continue
        weights, gradient = block.var(op.input("Filter")[0]), block.var(op.output("Input@GRAD")[0])
        same = op.attr("padding_algorithm") == "SAME" or list(op.attr("paddings")) == [1, 1]
        plain = [*op.attr("strides"), *op.attr("dilations"), op.attr("groups")] == [1] * 5
        image = block.var(op.input("Input")[0])
        few_weights = weights.shape[0] < IMAGE_TO_CHANNELS * math.sqrt(math.prod(image.shape[2:]))
        if tuple(weights.shape[2:]) != (3, 3) or not (same and plain and few_weights):
            continue
        sizes = [weights.shape[1], weights.shape[0], 3, 3]
        turned, flipped = (
            block.create_var(name=f"{gradient.name}.{name}", shape=sizes, dtype=weights.dtype).name
            for name in ("turned", "flipped")
        )
        shape = block.create_var(name=f"{gradient.name}.shape", dtype=weights.dtype).name
        attrs = {name: op.attr(name) for name in ("strides", "paddings", "padding_algorithm", "dilations", "groups")}
        steps: list[Step] = [
            ("transpose2", {"X": [weights.name]}, {"Out": [turned], "XShape": [shape]}, {"axis": [1, 0, 2, 3]}),
            ("flip", {"X": [turned]}, {"Out": [flipped]}, {"axis": [2, 3]}),
            (
                "conv2d",
                {"Input": op.input("Output@GRAD"), "Filter": [flipped]},
                {"Output": [gradient.name]},
                attrs | {"data_format": "NCHW"},
            ),
        ]
        op.desc.set_output("Input@GRAD", [])
        insert_all(block, index, steps, op_role=BACKWARD)
        changed += 1
    block._sync_with_cpp()
    return changed


# ---- a control -------------------------------------------------------------------------------------------------------

ROUNDING = {paddle.float32: 2.0**-23, paddle.float16: 2.0**-10, paddle.bfloat16: 2.0**-7}  # of 1.0


def perturb_input(main: static.Program) -> int:
    """Moves each value x of the floating-point inputs by about one rounding of its type; returns how many inputs.

    By x sin(1000 x) rounding, so that the direction differs from value to value: a common factor would be taken out
    again by the first batch norm.
    """
    block = main.global_block()
    inputs = [v for v in block.vars.values() if v.is_data and v.dtype in ROUNDING]
    for variable in inputs:
        x = variable.name
        angle, part, moved = (
            block.create_var(name=f"{x}.{name}", shape=variable.shape, dtype=variable.dtype).name
            for name in ("angle", "part", "moved")
        )
        for op in block.ops:
            op.desc._rename_input(x, moved)
        steps: list[Step] = [
            ("scale", {"X": [x]}, {"Out": [angle]}, {"scale": 1000.0}),
            ("sin", {"X": [angle]}, {"Out": [angle]}, {}),
            ("elementwise_mul", {"X": [x], "Y": [angle]}, {"Out": [part]}, {"axis": -1}),
            ("scale", {"X": [part]}, {"Out": [part]}, {"scale": ROUNDING[variable.dtype]}),
            ("elementwise_add", {"X": [x], "Y": [part]}, {"Out": [moved]}, {"axis": -1}),
        ]
        insert_all(block, 0, steps, op_role=0)
    block._sync_with_cpp()
    return len(inputs)


# ---- gradient merge --------------------------------------------------------------------------------------------------


def merge_gradients(main: static.Program, startup: static.Program, *, steps: int) -> static.Program:
    """Makes `main` the last of `steps` micro-steps of one update; returns the program of those before it.

    A micro-step adds each gradient to its accumulator, of the gradient's own type. The last one adds the accumulators
    to its own gradients before anything reads them, and clears them, so all-reduce, loss scaling and optimizer are as
    without it. The loss's gradient is divided by `steps`. Must run before the buckets are made.
    """
    block = main.global_block()
    gradients = parameters_by_gradient(block)
    start = next(i for i, op in enumerate(block.ops) if op.attr("op_role") == BACKWARD | LOSS)
    loss = block.ops[start].output("Out")
    insert(block, start + 1, "scale", {"X": loss}, {"Out": loss}, scale=1.0 / steps, op_role=BACKWARD)
    made = {
        name: max(i for i in places if not is_optimizer(block.ops[i]) and block.ops[i].type not in TRANSPORT)
        for name, places in writers(block).items()
        if name in gradients
    }
    for name, at in sorted(made.items(), key=lambda entry: -entry[1]):
        shape, dtype = block.var(gradients[name]).shape, block.var(name).dtype
        total = f"{name}{MERGED}"
        for owner in (block, startup.global_block()):
            owner.create_var(name=total, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
        zero = {"shape": list(shape), "dtype": dtype, "value": 0.0}
        insert(startup.global_block(), len(startup.global_block().ops), "fill_constant", {}, {"Out": [total]}, **zero)
        insert(block, at + 1, "fill_constant", {}, {"Out": [total]}, **zero, op_role=BACKWARD)
        insert(
            block, at + 1, "elementwise_add", {"X": [name], "Y": [total]}, {"Out": [name]}, axis=-1, op_role=BACKWARD
        )
    startup.global_block()._sync_with_cpp()
    block._sync_with_cpp()
    micro = main.clone()
    block = micro.global_block()
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        if is_optimizer(op) or is_clear(op) or op.type in TRANSPORT:
            block._remove_op(index, sync=False)
        elif is_merge(op):
            op.desc.set_output("Out", op.input("Y"))
    block._sync_with_cpp()
    return micro


# ---- buffers ---------------------------------------------------------------------------------------------------------


def share_buffers(main: static.Program) -> int:
    """Lets outputs take the buffers of inputs that nothing reads later, by Paddle's pass; returns how many operators.

    Must run after all other passes: it decides by the last reader of each variable.
    """
    before = len(main.global_block().ops)
    fed = [v.name for v in main.list_vars() if v.is_data]  # a batch may be fed again
    attrs = {"use_cuda": True, "mem_opt_skip_vars": fed}
    types = {"use_cuda": "bool", "mem_opt_skip_vars": "list[str]"}
    _apply_pass(main, static.Program(), "buffer_shared_inplace_pass", attrs, types)
    return len(main.global_block().ops) - before


# ---- update by LARS -----------------------------------------------------------------------------------------------

MERGED_LARS = 59  # parameters of one operator: Paddle's kernel refuses 60
_LARS_LISTS = ("Param", "Grad", "Velocity", "LearningRate", "MasterParam", "ParamOut", "VelocityOut", "MasterParamOut")
_LARS_SHARED = ("mu", "lars_coeff", "epsilon", "rescale_grad", "multi_precision")


def merge_lars(main: static.Program) -> int:
    """Updates by LARS of one type as one operator for up to MERGED_LARS parameters; returns how many it makes.

    Paddle's kernel takes lists and computes each parameter by itself. Must run after `update_masters`.
    """
    block = main.global_block()
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for op in block.ops:
        if op.type == "lars_momentum":
            key = (block.var(op.input("Param")[0]).dtype, *(op.attr(name) for name in _LARS_SHARED))
            groups.setdefault(key, []).append(op)
    made = 0
    for alike in groups.values():
        parts = math.ceil(len(alike) / MERGED_LARS)
        for part in range(parts):
            first, *others = alike[part::parts]
            if not others:
                continue
            slots = {slot: [n for op in (first, *others) for n in _operands(op, slot)] for slot in _LARS_LISTS}
            attrs = {name: first.attr(name) for name in _LARS_SHARED}
            attrs["lars_weight_decay"] = [decay for op in (first, *others) for decay in op.attr("lars_weight_decay")]
            insert(
                block,
                block.ops.index(others[-1]) + 1,
                "lars_momentum",
                {slot: names for slot, names in slots.items() if not slot.endswith("Out")},
                {slot: names for slot, names in slots.items() if slot.endswith("Out")},
                **attrs,
                op_role=OPTIMIZE,
            )
            for op in (first, *others):
                block._remove_op(block.ops.index(op), sync=False)
            made += 1
    block._sync_with_cpp()
    return made


def _operands(op: Any, slot: str) -> list[str]:
    of, slots = (op.output, op.output_names) if slot.endswith("Out") else (op.input, op.input_names)
    return list(of(slot)) if slot in slots else []


# ---- update of bfloat16 parameters -----------------------------------------------------------------------------------


def update_masters(main: static.Program, *, merged: bool) -> int:
    """Updates by FP32 momentum what Paddle would by a bfloat16 kernel, which this wheel lacks; returns how many.

    The gradient is widened, the FP32 master updated as a parameter of its own, and the parameter rounded from it: the
    arithmetic of Paddle's mixed kernels. With `merged` one operator updates all parameters; LARS has no such operator.
    """
    block = main.global_block()
    updates = [op for op in block.ops if op.type in ("momentum", "lars_momentum")]
    if not updates:
        return 0
    merged = merged and updates[0].type == "momentum"
    lists: dict[str, list[str]] = {"Param": [], "Grad": [], "Velocity": [], "LearningRate": []}
    rounded, methods, coefficients = [], [], []
    shared = {name: updates[0].attr(name) for name in ("mu", "use_nesterov") if merged}
    for op in updates:
        names = {slot: op.input(slot)[0] for slot in lists}
        at = block.ops.index(op)
        if op.input("MasterParam"):
            (master,), gradient = op.input("MasterParam"), block.var(names["Grad"])
            wide = block.create_var(name=f"{gradient.name}.fp32", shape=gradient.shape, dtype="float32")
            types = {"in_dtype": gradient.dtype, "out_dtype": paddle.float32}
            insert(block, at, "cast", {"X": [gradient.name]}, {"Out": [wide.name]}, **types, op_role=OPTIMIZE)
            rounded.append((master, names["Param"]))
            names |= {"Param": master, "Grad": wide.name}
        for slot, name in names.items():
            lists[slot].append(name)
        if merged:
            methods.append(op.attr("regularization_method"))
            coefficients.append(op.attr("regularization_coeff"))
            block._remove_op(block.ops.index(op), sync=False)
            continue
        for slot in lists:
            op.desc.set_input(slot, [names[slot]])
        for slot in ("MasterParam", "MasterParamOut"):
            (op.desc.set_output if slot.endswith("Out") else op.desc.set_input)(slot, [])
        op.desc.set_output("ParamOut", [names["Param"]])
        op.desc._set_bool_attr("multi_precision", False)
    if merged:
        outputs = {"ParamOut": lists["Param"], "VelocityOut": lists["Velocity"], "MasterParamOut": []}
        insert(
            block,
            len(block.ops),
            "merged_momentum",
            lists | {"MasterParam": []},
            outputs,
            **shared,
            regularization_method=methods,
            regularization_coeff=coefficients,
            multi_precision=False,
            op_role=OPTIMIZE,
        )
    for master, parameter in rounded:
        types = {"in_dtype": paddle.float32, "out_dtype": block.var(parameter).dtype}
        insert(block, len(block.ops), "cast", {"X": [master]}, {"Out": [parameter]}, **types, op_role=OPTIMIZE)
    block._sync_with_cpp()
    return len(updates)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, paddle.base.core.VarDesc.VarType) else value
