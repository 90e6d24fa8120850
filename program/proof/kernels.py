"""Whether Paddle has a kernel for each operator of a program in the types of its data, and what a program is fed."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from paddle import static
from paddle.base import core
from paddle.base.framework import Block, Operator

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
_FLOATS = {"float16", "float32", "float64"}
# Paddle asks a kernel of the type of the first of these operands (GetExpectedKernelType in the operators' sources).
_SELECTORS = ("X", "Input", "Logits", "Param", "Out@GRAD", "Output@GRAD", "Y@GRAD", "Loss@GRAD")
# Of these the attribute says it: the type of what they write. What `coalesce_tensor` is given, it only measures.
_TYPED_BY_OUTPUT = {"fill_constant", "coalesce_tensor"}
# Of a tensor: "limited to 2 Giga-elements" (cuDNN's API reference, cudnnSetTensor4dDescriptor), whose sizes are int.
MOST_ELEMENTS = 2**31 - 1

SlotTypes = dict[str, dict[str, str]]  # slot: the tensors in it, each with the name of its type


def check_sizes(main: static.Program) -> None:
    """Prove that the images of each convolution are small enough for cuDNN: its input and its output.

    Raises Refused for the first image of more than MOST_ELEMENTS elements. The message tells the user to lower the
    batch size.
    """
    block = main.global_block()
    for op in block.ops:
        if op.type not in CONVOLUTIONS:
            continue
        for name in operands(op, "Input", "Output"):
            elements = math.prod(block.var(name).shape)
            prove(
                elements <= MOST_ELEMENTS,
                f"BATCHSIZE: {name} of {elements}: cuDNN takes tensors of {MOST_ELEMENTS} at most: lower it",
            )


def check(main: static.Program, device: str) -> None:
    """Prove that this Paddle can run each operator of a program on `device` (cpu or gpu) as it is declared.

    Paddle selects an operator's kernel by the type of one of its tensors. There must be a kernel of that type for the
    device, and every tensor must be declared in the type that this kernel reads or writes: else Paddle would cast it at
    each step, or stop in the middle of one. On a GPU no image may be too large for cuDNN. Operators that need no kernel
    (NO_KERNEL) are passed over.

    Raises Refused for the first operator of which this is not so.
    """
    block = main.global_block()
    if device == "gpu":
        check_sizes(main)
    registry = _Registry(device)
    for op in block.ops:
        if op.type in NO_KERNEL:
            continue
        declared = _declared_types(op, block)
        selected = _selected_type(op, declared)
        has_kernel = _has_kernel(registry.kernel_types(op.type), selected)
        prove(has_kernel, f"this Paddle has no {device} kernel of {op.type} for {selected or 'any type'}")
        _check_agreement(op, declared, selected)


class _Registry:
    """The kernels that this Paddle has for one device."""

    def __init__(self, device: str) -> None:
        self._registered = core._get_all_register_op_kernels("all")
        self._phi = core._get_registered_phi_kernels("all")  # the few that the first list leaves out, `cast` for one
        self._place = "Place(gpu:0)" if device == "gpu" else "Place(cpu)"
        self._phi_prefix = f"({device.upper()},"

    def kernel_types(self, kind: str) -> set[str]:
        """Return what C++ calls the types for which there is a kernel of this kind of operator."""
        types: set[str] = set()
        for kernel in self._registered.get(kind, []):
            if self._place in kernel:
                types.add(kernel.partition("[")[2].partition("]")[0])
        for kernel in self._phi.get(kind, []):
            if kernel.startswith(self._phi_prefix):
                types.add(_type_in_cpp(kernel.rpartition(", ")[2].rstrip(")")))
        return types


def _has_kernel(kernel_types: Collection[str], selected: str) -> bool:
    """Tell whether there is a kernel of the `selected` type, as `float16`, among kernels of these types.

    `kernel_types` are called as in C++. For an operator without tensors no type is selected (empty): a kernel of any
    type will do.
    """
    if not selected:
        return bool(kernel_types)
    return _type_in_cpp(selected) in kernel_types


def _declared_types(op: Operator, block: Block) -> SlotTypes:
    """Map each slot of an operator to its tensors and their declared types."""
    declared: SlotTypes = {}
    for slot in (*op.input_names, *op.output_names):
        if slot == "XShape":
            continue
        tensors = [name for name in operands(op, slot) if name != EMPTY and block.has_var(name)]
        declared[slot] = {name: type_in(block, name) for name in tensors}
    return declared


def _selected_type(op: Operator, declared: SlotTypes) -> str:
    """Return the type, as `float16`, whose kernel Paddle runs; empty for an operator without tensors."""
    if op.type in _TYPED_BY_OUTPUT:
        slots = list(op.output_names)
    else:
        selectors = [slot for slot in _SELECTORS if slot in op.input_names]
        slots = [*selectors, *declared]
    for slot in slots:
        for dtype in declared.get(slot, {}).values():
            return dtype
    return ""


def _type_in_cpp(dtype: str) -> str:
    """Return the name of a type in C++."""
    return _CALLED.get(dtype, f"{dtype}_t")


def _check_agreement(op: Operator, declared: SlotTypes, selected: str) -> None:
    """Prove that each operand is declared in the type in which its operator's kernel reads or writes it."""
    for slot, types in declared.items():
        for name, dtype in types.items():
            needed = _needed_type(op, slot, dtype, selected)
            prove(dtype == needed, f"{op.type} reads or writes {name} in {needed}, and it is declared {dtype}")


def _needed_type(op: Operator, slot: str, dtype: str, selected: str) -> str:
    """Return the type in which an operator's kernel reads or writes a slot, as `float16`.

    `selected` is the type of the kernel, `dtype` the one that the slot's tensor is declared in.

    - Parameters and statistics of normalizations, and an optimizer's state, are FP32 in a kernel of any type.
    - A `cast` and a `fill_constant` say it by an attribute.
    - Any other floating-point tensor has the kernel's own type.
    - A tensor of another kind, and one that is only measured, may have any type: `dtype` is returned.
    """
    # `ScaleX`, `VarianceOut` and `Bias@GRAD` become `Scale`, `Variance` and `Bias`.
    base_slot = slot.removesuffix("@GRAD").removesuffix("Out").rstrip("XZ")
    if base_slot in _FP32_SLOTS:
        return "float32"
    if op.type == "cast":
        return _attr_type(op, "in_dtype" if slot == "X" else "out_dtype")
    if op.type == "fill_constant":
        return _attr_type(op, "dtype")
    is_only_measured = op.type == "coalesce_tensor" and slot == "Input"
    are_floats = dtype in _FLOATS and selected in _FLOATS  # the others are indices, masks and counts
    if is_only_measured or not are_floats:
        return dtype
    return selected


def _attr_type(op: Operator, attr: str) -> str:
    """Return the type, as `float16`, that an operator's attribute says by its number."""
    return type_name(core.VarDesc.VarType(op.attr(attr)))


def evaluation(main: static.Program, training: static.Program, device: str) -> None:
    """Prove that an evaluation program can run on `device`, and on the state of the training program.

    Variables that keep their values from step to step (persistable ones) are shared by both programs if they have one
    name. Raises Refused where such a variable differs in shape or type, or Paddle has no kernel of an operator.
    """
    training_variables = training.global_block().vars
    for variable in main.list_vars():
        other = training_variables.get(variable.name)
        if other is None or not variable.persistable or not other.persistable:
            continue
        in_evaluation = (variable.shape, dtype_of(variable))
        in_training = (other.shape, dtype_of(other))
        prove(
            in_evaluation == in_training,
            f"the evaluation has {variable.name} as {in_evaluation}, the training as {in_training}",
        )
    check(main, device)


def feed(main: static.Program, given: dict[str, Any]) -> None:
    """Prove that the arrays of a batch have the names, shapes and types of the program's inputs.

    `given` maps each input's name to its NumPy array or Paddle tensor. Raises Refused with every input that differs, is
    missing, or is none of the program's. (Paddle would stop with a C++ error in the first operator that reads it.)
    """
    inputs = [variable for variable in main.list_vars() if variable.is_data]
    wanted = {variable.name: _in_words(variable.shape, dtype_of(variable)) for variable in inputs}
    fed = {name: _array_in_words(value) for name, value in given.items()}
    differences = []
    for name in sorted(wanted.keys() | fed.keys()):
        wanted_form = wanted.get(name, "nothing")
        fed_form = fed.get(name, "nothing")
        if wanted_form != fed_form:
            differences.append(f"{name} as {wanted_form} and is fed {fed_form}")
    prove(not differences, f"the program takes {'; '.join(differences)}")


def _array_in_words(value: Any) -> str:
    """Return the shape and type of a NumPy array or a Paddle tensor, as "([8, 1], 'int64')"."""
    if isinstance(value, np.ndarray):
        return _in_words(value.shape, str(value.dtype))
    return _in_words(value.shape(), type_name(value._dtype()))


def _in_words(shape: Sequence[int], dtype: str) -> str:
    """Return a shape and a type, as "([8, 1], 'int64')"."""
    return f"({list(shape)}, {dtype!r})"
