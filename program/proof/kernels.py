"""Whether Paddle has a kernel for each operator of a program in the types of its data, and what a program is fed."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

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
    """Prove that cuDNN can take the input and the output of each convolution.

    Raises Refused for one of more than MOST_ELEMENTS elements, which a smaller batch would mend.
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

    Paddle selects an operator's kernel by the type of one of its tensors. There must be a kernel of that type, and
    every tensor must be declared in the type that this kernel reads or writes: else Paddle would cast it at each step,
    or stop in the middle of one. On a GPU cuDNN must take the images, too.

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
    """Say whether an operator with kernels of these types, as C++ calls them, has one of the selected type.

    For an operator without tensors no type is selected (empty): a kernel of any type will do.
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
    """Return the type whose kernel Paddle runs; empty of an operator without tensors."""
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

    `selected` is the type of the kernel, `dtype` the one that the slot's tensor is declared in: it is returned where
    the kernel takes any. A kernel reads floating-point tensors in its own type. Parameters and statistics of
    normalizations, and an optimizer's state, are FP32 in a kernel of any type; `ScaleX`, `VarianceOut` and
    `Bias@GRAD` are such slots, too.
    """
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
    return type_name(core.VarDesc.VarType(op.attr(attr)))


def evaluation(main: static.Program, training: static.Program, device: str) -> None:
    """Prove that an evaluation program can run on `device`, and on the state of the training program.

    The two share the variables that both keep from step to step, by their names. Raises Refused where one of these
    differs in shape or type, or Paddle has no kernel of an operator.
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


class _Fed(NamedTuple):
    """Shape and type of an array that is fed."""

    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"({self.shape}, {self.dtype!r})"


def feed(main: static.Program, given: dict[str, Any]) -> None:
    """Prove that the arrays of a batch have the names, shapes and types of the program's inputs.

    Paddle itself looks only in the first operator that reads an input, and fails there with a C++ error. `given` maps
    each input's name to its NumPy array or Paddle tensor. Raises Refused with every input that differs.
    """
    inputs = {variable.name: _Fed(list(variable.shape), dtype_of(variable)) for variable in _inputs(main)}
    arrays = {name: _fed(value) for name, value in given.items()}
    differences = []
    for name in sorted(inputs.keys() | arrays.keys()):
        wanted = inputs.get(name, "nothing")
        fed = arrays.get(name, "nothing")
        if wanted != fed:
            differences.append(f"{name} as {wanted} and is fed {fed}")
    prove(not differences, f"the program takes {'; '.join(differences)}")


def _inputs(main: static.Program) -> list[static.Variable]:
    return [variable for variable in main.list_vars() if variable.is_data]


def _fed(value: Any) -> _Fed:
    """Describe an array of NumPy or a tensor of Paddle."""
    if isinstance(value, np.ndarray):
        return _Fed(list(value.shape), str(value.dtype))
    return _Fed(list(value.shape()), type_name(value._dtype()))
