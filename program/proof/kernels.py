"""Whether Paddle has a kernel for each operator of a program in the types of its data, and what a program is fed."""

import math
from typing import Any

import numpy as np
from paddle.base import core

from program.ops import CONVOLUTIONS, EMPTY, dtype_of, operands, prove, type_in, type_name

# Operators that the executor runs without a kernel of their own, or whose one kernel looks at no data.
NO_KERNEL = {"depend", "c_gen_nccl_id", "c_comm_init", "c_sync_calc_stream", "c_sync_comm_stream"}
_CALLED = {
    "float16": "::paddle::platform::float16",
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "int32": "int",
}
# Slots that are FP32 whatever the kernel's own type is: of normalizations and units, of updates, of the loss scale.
# Their names may end in a unit's side, X or Z, in Out, or in @GRAD.
_FP32_SLOTS = {
    *("Scale", "Bias", "Mean", "Variance", "Var", "SavedMean", "SavedVariance", "SavedInvstd", "ReserveSpace"),
    *("RunningMean", "RunningVar", "Velocity", "MasterParam", "LearningRate", "PrevLossScaling", "LossScaling"),
}
# Paddle asks a kernel of the type of the first of these operands (GetExpectedKernelType in the operators' sources).
_SELECTORS = ("X", "Input", "Logits", "Param", "Out@GRAD", "Output@GRAD", "Y@GRAD", "Loss@GRAD")
# Of these the attribute says it: the type of what they write. What `coalesce_tensor` is given, it only measures.
_TYPED_BY_OUTPUT = {"fill_constant", "coalesce_tensor"}
# Of a tensor: "limited to 2 Giga-elements" (cuDNN's API reference, cudnnSetTensor4dDescriptor), whose sizes are int.
MOST_ELEMENTS = 2**31 - 1


def sizes(main: Any) -> None:
    """That cuDNN takes each convolution's images. Raises Refused where one has too many elements."""
    block = main.global_block()
    for name in (n for op in block.ops if op.type in CONVOLUTIONS for n in operands(op, "Input", "Output")):
        elements = math.prod(block.var(name).shape)
        said = f"BATCHSIZE: {name} of {elements}: cuDNN takes tensors of {MOST_ELEMENTS} at most: lower it"
        prove(elements <= MOST_ELEMENTS, said)


def check(main: Any, device: str) -> None:
    """That this Paddle has a kernel for each operator on `device`, in the types of all its data.

    Raises Refused where an image is too large for cuDNN; one has no kernel of the type that Paddle selects; or an
    operand is declared in another type than that kernel reads or writes: Paddle would cast it at each step, or stop
    there.
    """
    registered, bare = core._get_all_register_op_kernels("all"), core._get_registered_phi_kernels("all")
    place = "Place(gpu:0)" if device == "gpu" else "Place(cpu)"
    block = main.global_block()
    if device == "gpu":
        sizes(main)
    for op in block.ops:
        if op.type in NO_KERNEL:
            continue
        types = {t.partition("[")[2].partition("]")[0] for t in registered.get(op.type, []) if place in t}
        types |= {
            _called(t.rpartition(", ")[2].rstrip(")"))
            for t in bare.get(op.type, [])  # the few operators that the first list leaves out, `cast` for one
            if t.startswith(f"({device.upper()},")
        }
        declared = {  # of each slot: its tensors and their types
            slot: {n: type_in(block, n) for n in operands(op, slot) if n != EMPTY and block.has_var(n)}
            for slot in (*op.input_names, *op.output_names)
            if slot != "XShape"
        }
        slots = op.output_names
        if op.type not in _TYPED_BY_OUTPUT:
            slots = [*(slot for slot in _SELECTORS if slot in op.input_names), *declared]
        # Paddle runs the kernel of this type; an operator without tensors has none.
        selected = next((dtype for slot in slots for dtype in declared.get(slot, {}).values()), "")
        has_kernel = _called(selected) in types if selected else bool(types)
        prove(has_kernel, f"this Paddle has no {device} kernel of {op.type} for {selected or 'any type'}")
        _agree(op, declared, selected)


def _called(dtype: str) -> str:
    """What C++ calls a type."""
    return _CALLED.get(dtype, f"{dtype}_t")


def _agree(op: Any, declared: dict[str, dict[str, str]], selected: str) -> None:
    """Each operand has the type in which its operator's kernel reads or writes it."""
    for slot, types in declared.items():
        for name, dtype in types.items():
            wanted = selected
            if slot.removesuffix("@GRAD").removesuffix("Out").rstrip("XZ") in _FP32_SLOTS:
                wanted = "float32"
            elif op.type == "cast":
                wanted = type_name(core.VarDesc.VarType(op.attr("in_dtype" if slot == "X" else "out_dtype")))
            elif op.type == "fill_constant":
                wanted = type_name(core.VarDesc.VarType(op.attr("dtype")))
            elif not {dtype, wanted} <= {"float16", "float32", "float64"}:
                continue  # indices, masks and counts
            elif op.type == "coalesce_tensor" and slot == "Input":
                continue
            prove(dtype == wanted, f"{op.type} reads or writes {name} in {wanted}, and it is declared {dtype}")


def evaluation(main: Any, training: Any, device: str) -> None:
    """That an evaluation program has a kernel for each operator, and the training program's state.

    Raises Refused where it lacks a kernel, or shares a variable in another shape or type than the training program has.
    """
    theirs = training.global_block().vars
    for variable in main.list_vars():
        other = theirs.get(variable.name)
        if variable.persistable and other is not None and other.persistable:
            ours, its = ((v.shape, dtype_of(v)) for v in (variable, other))
            prove(ours == its, f"the evaluation has {variable.name} as {ours}, the training as {its}")
    check(main, device)


def feed(main: Any, given: dict[str, Any]) -> None:
    """What a batch holds is what a program takes: names, shapes and types. Paddle itself looks in the first kernel.

    Raises Refused where it is not.
    """
    takes = {v.name: (list(v.shape), dtype_of(v)) for v in main.list_vars() if v.is_data}
    gives = {name: _shape_and_type(value) for name, value in given.items()}
    wrong = sorted(name for name in takes.keys() | gives.keys() if takes.get(name) != gives.get(name))
    said = [f"{n} as {takes.get(n, 'nothing')} and is fed {gives.get(n, 'nothing')}" for n in wrong]
    prove(not wrong, f"the program takes {'; '.join(said)}")


def _shape_and_type(value: Any) -> tuple[list[int], str]:
    if isinstance(value, np.ndarray):
        return list(value.shape), str(value.dtype)
    return list(value.shape()), type_name(value._dtype())
