"""Whether Paddle has a kernel for each operator of a program in the types of its data, and what a program is fed."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from paddle import static
from paddle.base import core
from paddle.base.framework import Block, Operator

from program.ops import CONVOLUTIONS, EMPTY, Refused, dtype_of, operands, prove, type_in, type_name

# Operators that the executor runs without a kernel of their own, or whose one kernel looks at no data.
NO_KERNEL = {"depend", "c_gen_nccl_id", "c_comm_init", "c_sync_calc_stream", "c_sync_comm_stream"}
_CALLED = {
    "float16": "::paddle::platform::float16",
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "int32": "int",
}
# Slots that are FP32 whatever the kernel's own type is: of normalizations, updates and the loss scale. Each stands for
# all slots that differ from it only by an ending (`_without_endings`).
_FP32_SLOTS = {
    *("Scale", "Bias", "Mean", "Variance", "Var", "SavedMean", "SavedVariance", "SavedInvstd", "ReserveSpace"),
    *("RunningMean", "RunningVar", "Velocity", "MasterParam", "LearningRate", "PrevLossScaling", "LossScaling"),
    *("Moment1", "Moment2", "Beta1Pow", "Beta2Pow"),  # of Adam and its kin
}
_FLOATS = {"float16", "float32", "float64"}
# Paddle selects the kernel by the type of the first of these operands (GetExpectedKernelType in its sources).
_SELECTORS = ("X", "Input", "Logits", "Param", "W", "Out@GRAD", "Output@GRAD", "Y@GRAD", "Loss@GRAD")
# Operators whose kernel is selected by the type of what they write: their inputs are shapes, or are only measured.
_TYPED_BY_OUTPUT = {"fill_constant", "coalesce_tensor", "uniform_random", "gaussian_random"}
# Of a tensor: "limited to 2 Giga-elements" (cuDNN's API reference, cudnnSetTensor4dDescriptor), whose sizes are int.
MAX_ELEMENTS = 2**31 - 1

SlotTypes = dict[str, dict[str, str]]  # slot: the tensors in it, each with the name of its type


def check_sizes(main: static.Program) -> None:
    """Prove that the input and the output of each convolution are small enough for cuDNN.

    Args:
        main: Training or evaluation program.

    Raises:
        Refused: One of them has more than 2^31 - 1 elements (MAX_ELEMENTS). The message advises to lower the batch
            size.
    """
    block = main.global_block()
    for op in block.ops:
        if op.type not in CONVOLUTIONS:
            continue
        for name in operands(op, "Input", "Output"):
            elements = math.prod(block.var(name).shape)
            prove(
                elements <= MAX_ELEMENTS,
                f"BATCHSIZE: {name} of {elements}: cuDNN takes tensors of {MAX_ELEMENTS} at most: lower it",
            )


def check(main: static.Program, device: str) -> None:
    """Prove that Paddle has a kernel on a device for each operator of a program, in the types of its tensors.

    Args:
        main: Training or evaluation program. It is not run, and no device is needed.
        device: "cpu" or "gpu".

    Raises:
        Refused: There is no such kernel, a tensor is declared in another type than the kernel takes, or, on a GPU, a
            convolution is too large for cuDNN.
    """
    block = main.global_block()
    if device == "gpu":
        check_sizes(main)
    registry = _Registry(device)
    for op in block.ops:
        if op.type in NO_KERNEL:
            continue
        kernel_types = registry.kernel_types(op.type)  # {"float", ...}, in C++'s names
        declared_types = _declared_types(op, block)  # {"Input": {"image": "float16"}, ...}
        # Paddle selects the kernel by the type of one tensor: a conv2d of a float16 image needs a float16 kernel.
        selecting_type = _selecting_type(op, declared_types)
        if selecting_type is None:  # the operator has no tensors: a kernel of any type will do
            prove(bool(kernel_types), f"this Paddle has no {device} kernel of {op.type} for any type")
            continue
        has_kernel = _type_in_cpp(selecting_type) in kernel_types
        prove(has_kernel, f"this Paddle has no {device} kernel of {op.type} for {selecting_type}")
        _check_declared_types(op, declared_types, kernel_type=selecting_type)


class _Registry:
    """The kernels that this Paddle has for one device."""

    def __init__(self, device: str) -> None:
        self._registered = core._get_all_register_op_kernels("all")
        self._phi = core._get_registered_phi_kernels("all")  # the few that the first list leaves out, `cast` for one
        self._place = "Place(gpu:0)" if device == "gpu" else "Place(cpu)"
        self._phi_prefix = f"({device.upper()},"

    def kernel_types(self, kind: str) -> set[str]:
        """Return the data types for which Paddle has a kernel of an operator on this device.

        Paddle describes each kernel by a text. Most kernels are in the list `_registered`. The list `_phi` is read,
        too, for the few kernels that are missing in `_registered`. The texts of the two lists have different forms.

        Args:
            kind: Type of the operator, such as "conv2d".

        Returns:
            The types by their names in C++, such as {"float", "int64_t"}; empty if there is no kernel.
        """
        types: set[str] = set()
        for kernel in self._registered.get(kind, []):  # as "{data_type[float]; ... place[Place(gpu:0)]; ...}"
            if self._place in kernel:
                # What stands in the first brackets: "float".
                types.add(kernel.partition("[")[2].partition("]")[0])
        for kernel in self._phi.get(kind, []):  # as "(GPU, Undefined(AnyLayout), int64)"
            if kernel.startswith(self._phi_prefix):
                # The last word, "int64", as C++ names it: "int64_t".
                types.add(_type_in_cpp(kernel.rpartition(", ")[2].rstrip(")")))
        return types


def _declared_types(op: Operator, block: Block) -> SlotTypes:
    """Map each slot of an operator to its tensors, and each tensor to its declared type.

    Args:
        op: Any operator of the block.
        block: Block that declares the operator's variables.

    Returns:
        Types by slot and name, as {"X": {"image": "float16"}}. Left out are gradients that are not computed, variables
        that the block does not have, and the slot XShape, which holds no data.
    """
    declared: SlotTypes = {}
    for slot in (*op.input_names, *op.output_names):
        if slot == "XShape":
            continue  # it holds no data
        tensors = [name for name in operands(op, slot) if name != EMPTY and block.has_var(name)]
        declared[slot] = {name: type_in(block, name) for name in tensors}
    return declared


def _selecting_type(op: Operator, declared_types: SlotTypes) -> str | None:
    """Return the data type by which Paddle selects the kernel of an operator.

    It is the type of one tensor, such as the image in the slot "Input" of a conv2d.

    Args:
        op: Any operator of a program.
        declared_types: Its tensors and their types by slot, as `_declared_types` returns them.

    Returns:
        The type, such as "float16"; None if the operator has no tensors.
    """
    # Of `fill_constant` and its like: the first output.
    if op.type in _TYPED_BY_OUTPUT:
        return _first_type(declared_types, op.output_names)
    # Of most operators: the input in the slot "X", else in "Input", and so on through _SELECTORS.
    selecting_slots = [slot for slot in _SELECTORS if slot in op.input_names]
    selecting_type = _first_type(declared_types, selecting_slots)
    if selecting_type is not None:
        return selecting_type
    # Of the others: the first input, or the first output if there are no inputs.
    return _first_type(declared_types, (*op.input_names, *op.output_names))


def _first_type(declared_types: SlotTypes, slots: Iterable[str]) -> str | None:
    """Return the data type of the first tensor in some slots.

    Args:
        declared_types: Types of an operator's tensors by slot and name.
        slots: Names of the slots, in the order in which they are looked at.

    Returns:
        The type, such as "float16"; None if the slots hold no tensor.
    """
    for slot in slots:
        for dtype in declared_types.get(slot, {}).values():
            return dtype
    return None


def _type_in_cpp(dtype: str) -> str:
    """Return the name of a type in C++."""
    return _CALLED.get(dtype, f"{dtype}_t")


def _check_declared_types(op: Operator, declared_types: SlotTypes, *, kernel_type: str) -> None:
    """Prove that each tensor of an operator is declared in the type that the operator's kernel takes.

    Otherwise Paddle would cast the tensor at each step, or stop.

    Args:
        op: The operator.
        declared_types: Types of its tensors by slot and name.
        kernel_type: The type by which its kernel was selected, such as "float16".

    Raises:
        Refused: A tensor is declared in another type.
    """
    for slot, type_by_tensor in declared_types.items():
        for name, declared in type_by_tensor.items():
            needed = _needed_type(op, slot, declared=declared, kernel_type=kernel_type)
            if needed is None:
                continue  # the kernel takes any type
            prove(
                declared == needed,
                f"{op.type} reads or writes {name} in {needed}, and it is declared {declared} (where Paddle's kernel "
                f"keeps {slot} in FP32: add it to _FP32_SLOTS of program/proof/kernels.py)",
            )


def _needed_type(op: Operator, slot: str, *, declared: str, kernel_type: str) -> str | None:
    """Return the data type in which an operator's kernel reads or writes a tensor.

    Args:
        op: The operator.
        slot: Its input or output slot that holds the tensor, such as "X" or "Scale@GRAD".
        declared: The type of the tensor in the program, such as "float16".
        kernel_type: The type by which the kernel was selected.

    Returns:
        The type; None if the kernel takes the tensor in any type.
    """
    if _without_endings(slot) in _FP32_SLOTS:  # such as "Scale" of a batch norm; "Scale@GRAD" counts as "Scale"
        return "float32"
    if op.type == "cast":
        return _type_in_attribute(op, "in_dtype" if slot == "X" else "out_dtype")
    if op.type == "fill_constant":
        return _type_in_attribute(op, "dtype")
    reads_size_alone = op.type == "coalesce_tensor" and slot == "Input"
    if reads_size_alone:
        return None
    are_both_floats = kernel_type in _FLOATS and declared in _FLOATS
    if are_both_floats:
        return kernel_type
    return None  # such as the int64 labels of a float32 loss


def _without_endings(slot: str) -> str:
    """Return the name of an operator's slot without what Paddle puts behind it.

        Bias@GRAD -> Bias (a gradient)      VarianceOut -> Variance (an output)
        ScaleX -> Scale, VarZ@GRAD -> Var (of the first or second convolution of a `resnet_unit`)

    Args:
        slot: Name of the slot.
    """
    return slot.removesuffix("@GRAD").removesuffix("Out").removesuffix("X").removesuffix("Z")


def _type_in_attribute(op: Operator, attr: str) -> str:
    """Return the type, such as `float16`, that an operator's attribute says by its number."""
    return type_name(core.VarDesc.VarType(op.attr(attr)))


def check_evaluation(main: static.Program, training: static.Program, device: str) -> None:
    """Check that an evaluation program can run on a device and share the training program's weights and statistics.

    Persistable variables (weights, running statistics) of the same name are shared between the two programs, so they
    must agree in shape and data type.

    Args:
        main: The evaluation program, a Paddle static graph.
        training: The training program whose variables it shares.
        device: "cpu" or "gpu".

    Raises:
        Refused: A shared variable differs in shape or type, Paddle has no kernel on the device for one of the
            evaluation's operators, or a tensor is not of the type that its kernel needs or is too large for cuDNN.
    """
    training_variables = training.global_block().vars
    for variable in main.list_vars():
        other = training_variables.get(variable.name)
        is_shared = other is not None and variable.persistable and other.persistable
        if not is_shared:
            continue
        in_evaluation = (variable.shape, dtype_of(variable))
        in_training = (other.shape, dtype_of(other))
        prove(
            in_evaluation == in_training,
            f"the evaluation has {variable.name} as {in_evaluation}, the training as {in_training}",
        )
    check(main, device)


def check_feed(main: static.Program, feed: dict[str, Any]) -> None:
    """Prove that the arrays of a batch have the names, shapes and types of the program's inputs.

    Args:
        main: Program that is to be run on the batch.
        feed: NumPy array or Paddle tensor of each input by its name, such as "image".

    Raises:
        Refused: Inputs differ, are missing or are unknown to the program. The message lists all of them.
    """
    # Without this check Paddle would stop with a C++ error in an operator.
    inputs = [variable for variable in main.list_vars() if variable.is_data]
    wanted = {variable.name: _in_words(variable.shape, dtype_of(variable)) for variable in inputs}
    fed = {name: _array_in_words(value) for name, value in feed.items()}
    differences = []
    for name in sorted(wanted.keys() | fed.keys()):
        wanted_form = wanted.get(name, "nothing")
        fed_form = fed.get(name, "nothing")
        if wanted_form != fed_form:
            differences.append(f"{name} as {wanted_form} and is fed {fed_form}")
    if differences:
        raise Refused(f"the program takes {'; '.join(differences)}")


def _array_in_words(value: Any) -> str:
    """Return the shape and type of a NumPy array or a Paddle tensor, such as "([8, 1], 'int64')"."""
    if isinstance(value, np.ndarray):
        return _in_words(value.shape, str(value.dtype))
    return _in_words(value.shape(), type_name(value._dtype()))


def _in_words(shape: Sequence[int], dtype: str) -> str:
    """Return a shape and a type, such as "([8, 1], 'int64')"."""
    return f"({list(shape)}, {dtype!r})"
