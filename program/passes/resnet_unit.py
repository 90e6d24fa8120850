"""Convolution, batch norm, addend and relu as Paddle's one operator `resnet_unit`, in FP16 and NHWC.

    y = relu(bn(x * FilterX) [+ z or + bn(z * FilterZ)])

A convolution and the batch norm that is its only reader, bn(conv(x)), are called a `_ConvNorm` here. A unit has one or
two of them.

cuDNN's convolution sums up the statistics of what it writes, a second kernel normalizes. The operator takes filters as
[O, H, W, I] and values of channels as [1, 1, 1, C]. In the plain network, the one built without the operator, they are
[O, I, H, W] and [C]. `to_plain_layout` and `to_unit_layout` convert a value that leaves the program or enters it, and
the start-up program is changed to initialize the variables in the operator's layout.
"""

from typing import Any, NamedTuple

import numpy as np
from paddle import static
from paddle.base.framework import Block, Operator

from program.arrays import Array
from program.ops import ALL_UPDATES, FORWARD, operands, readers, writers
from program.passes.edit import Slots, insert

UNIT = "resnet_unit"
OUT_CHANNELS_MULTIPLE, IN_CHANNELS_MULTIPLE = 32, 8  # NormConvolutionArgs of Paddle's sources


class _ConvNormSlots(NamedTuple):
    """The slots of a `resnet_unit` for one of its convolutions and the batch norm after it.

    Each is mapped to the slot that it replaces: {"FilterX": "Filter"} says that the unit's slot FilterX holds the
    variable that was in the slot Filter of the `conv2d`.
    """

    conv_inputs: dict[str, str]
    conv_outputs: dict[str, str]
    norm_inputs: dict[str, str]
    norm_outputs: dict[str, str]

    @property
    def inputs(self) -> list[str]:
        """The input slots of the `resnet_unit`."""
        return [*self.conv_inputs, *self.norm_inputs]

    @property
    def outputs(self) -> list[str]:
        """The output slots of the `resnet_unit`."""
        return [*self.conv_outputs, *self.norm_outputs]


def _slots(letter: str) -> _ConvNormSlots:
    """Return the slots of a `resnet_unit` for one of its two convolutions, each mapped to the slot that it replaces.

    With both, a `resnet_unit` computes relu(bn(conv(X)) + bn(conv(Z))). In {"FilterX": "Filter"} the key is a slot of
    the unit, and the value the slot of the `conv2d` or the `batch_norm` that holds the same variable.

    Args:
        letter: "X" for the first convolution, "Z" for the second: the slot of its image, and the end of the names of
            all other slots.
    """
    return _ConvNormSlots(
        conv_inputs={letter: "Input", f"Filter{letter}": "Filter"},
        conv_outputs={f"Conv{letter}": "Output"},
        norm_inputs={
            f"Scale{letter}": "Scale",
            f"Bias{letter}": "Bias",
            f"Mean{letter}": "Mean",
            f"Var{letter}": "Variance",
        },
        norm_outputs={
            f"SavedMean{letter}": "SavedMean",
            f"SavedInvstd{letter}": "SavedVariance",  # 1 / sqrt(variance + epsilon) in both operators
            # Running statistics are changed in place, so these two write the variables that Mean and Var read.
            f"RunningMean{letter}": "Mean",
            f"RunningVar{letter}": "Variance",
        },
    )


_SLOTS_OF_FIRST = _slots("X")
_SLOTS_OF_SECOND = _slots("Z")
# Slots of the unit for weights and for values of channels. They lie otherwise in memory than in the plain network.
_WEIGHT_AND_CHANNEL_SLOTS = [
    *("FilterX", "ScaleX", "BiasX", "MeanX", "VarX"),
    *("FilterZ", "ScaleZ", "BiasZ", "MeanZ", "VarZ"),
]


class _ConvNorm(NamedTuple):
    """A convolution and the batch norm that is its only reader, which a `resnet_unit` can compute."""

    convolution: Operator
    norm: Operator


class _Group(NamedTuple):
    """The operators that become one `resnet_unit`, which computes one of

    relu(first)             `add` and `second` are None
    relu(first + image)     `second` is None
    relu(first + second)
    """

    first: _ConvNorm
    second: _ConvNorm | None
    add: Operator | None
    relu: Operator

    @property
    def conv_norms(self) -> list[_ConvNorm]:
        """The one or two convolutions with their batch norms."""
        if self.second is None:
            return [self.first]
        return [self.first, self.second]

    @property
    def operators(self) -> list[Operator]:
        """Every operator of the group."""
        operators = [self.relu]
        if self.add is not None:
            operators.append(self.add)
        for conv_norm in self.conv_norms:
            operators += [conv_norm.convolution, conv_norm.norm]
        return operators


class UnitVariables(NamedTuple):
    """The variables of one convolution and its batch norm that a `resnet_unit` takes in a memory layout of its own."""

    weights: str  # [O, H, W, I]
    per_channel: list[str]  # scale, bias, mean and variance: [1, 1, 1, O]


def takes_convolution(op: Operator, block: Block) -> bool:
    """Return whether an operator is a convolution that Paddle's fused operator `resnet_unit` can compute.

    The kernel must be 1x1 or 3x3, in NHWC, without groups and dilation, with one stride in both directions, and padded
    so that a stride of 1 keeps the image's size. Output channels must be a multiple of 32 and input channels one of 8
    (NormConvolutionArgs in Paddle's sources).

    Args:
        op: Any operator of a program.
        block: Block that declares the operator's variables.
    """
    if op.type != "conv2d" or op.attr("data_format") != "NHWC" or op.attr("groups") != 1:
        return False
    out_channels, in_channels, *kernel = block.var(op.input("Filter")[0]).shape
    if kernel not in ([1, 1], [3, 3]):
        return False
    size_keeping_padding = (kernel[0] - 1) // 2  # pixels on each side
    vertical_stride, horizontal_stride = op.attr("strides")
    return bool(
        list(op.attr("paddings")) == [size_keeping_padding, size_keeping_padding]
        and list(op.attr("dilations")) == [1, 1]
        and vertical_stride == horizontal_stride
        and out_channels % OUT_CHANNELS_MULTIPLE == 0
        and in_channels % IN_CHANNELS_MULTIPLE == 0
    )


def fuse(main: static.Program) -> list[UnitVariables]:
    """Replace each group of operators that one `resnet_unit` can compute by that operator.

        before    conv2d, batch_norm, relu                                           relu(bn(conv(x)))
                  conv2d, batch_norm, elementwise_add, relu                          relu(bn(conv(x)) + image)
                  conv2d, batch_norm, conv2d, batch_norm, elementwise_add, relu      relu(bn(conv(x)) + bn(conv(z)))
        after     resnet_unit

    Args:
        main: Forward program without gradients, of a training or an evaluation; changed in place. A group stays if a
            `resnet_unit` cannot compute it, or if other operators read a result inside the group.

    Returns:
        For each convolution that was replaced, the names of its weights and of its batch norm's scale, bias, mean and
        variance. These variables have other shapes now. For a training, hand them to `initialize`, which fits the
        start-up program.
    """
    block = main.global_block()
    groups = _Matcher(block).groups()  # found before anything changes
    variables: list[UnitVariables] = []
    for group in groups:
        for conv_norm in group.conv_norms:
            variables.append(_variables_of(conv_norm))
        _insert_unit(block, group)
        _remove_operators(block, group)
    for variables_of_convolution in variables:
        _declare_shapes(block, variables_of_convolution)
    block._sync_with_cpp()  # Paddle's step after changes: brings its lists in Python and in C++ in line
    _infer_output_shapes(block)  # after the shapes of the inputs are declared, from which they follow
    return variables


def _remove_operators(block: Block, group: _Group) -> None:
    """Remove the operators of a group from a block. The caller must call `_sync_with_cpp` after the last removal."""
    for op in group.operators:
        block._remove_op(block.ops.index(op), sync=False)


def _infer_output_shapes(block: Block) -> None:
    """Have Paddle compute the shapes of what the `resnet_unit` operators of a block write."""
    for op in block.ops:
        if op.type == UNIT:
            op.desc.infer_shape(block.desc)


def _variables_of(conv_norm: _ConvNorm) -> UnitVariables:
    """Return the variables of a convolution and its batch norm that a `resnet_unit` takes in its own memory layout."""
    (weights,) = conv_norm.convolution.input("Filter")
    return UnitVariables(weights, operands(conv_norm.norm, "Scale", "Bias", "Mean", "Variance"))


class _Matcher:
    """Finds the operators of a block that a `resnet_unit` can replace."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._readers = readers(block)
        self._writer: dict[str, Operator] = {}
        for op in block.ops:
            self._writer.update(dict.fromkeys(op.output_arg_names, op))

    def groups(self) -> list[_Group]:
        """Return all groups of operators in the block that a `resnet_unit` can replace, in the order of their relus.

        Within a group each operator's result is read by the next operator alone, so no operator is in two groups.
        """
        groups = []
        for op in self._block.ops:
            if op.type == "relu":
                group = self._group_ending_in(op)
                if group is not None:
                    groups.append(group)
        return groups

    def _group_ending_in(self, relu: Operator) -> _Group | None:
        """Return the operators that end in a relu and that one `resnet_unit` can replace.

            relu(bn(conv(x)))        without an addition
            relu(bn(conv(x)) + y)    with one

        Args:
            relu: A relu of the block.

        Returns:
            The group; None if no unit can replace what ends in this relu.
        """
        (relu_input,) = relu.input("X")
        add = self._writer_for_one_reader(relu_input, "elementwise_add")
        if add is not None:
            return self._group_with_addition(add, relu)
        first = self._conv_norm(relu_input)
        if first is None:
            return None
        return _Group(first=first, second=None, add=None, relu=relu)

    def _group_with_addition(self, add: Operator, relu: Operator) -> _Group | None:
        """Return the operators of a relu(X + Y) that one `resnet_unit` can replace.

            relu(bn(conv(x)) + bn(conv(z)))    the unit computes both convolutions
            relu(bn(conv(x)) + Y)              the unit computes one, and adds Y, which stays as it is

        Args:
            add: The addition, with the inputs X and Y.
            relu: The only reader of its result.

        Returns:
            The group; in the second case its `second` is None. None if X is not a bn(conv(x)) that a unit can replace.
        """
        x, y = operands(add, "X", "Y")
        first = self._conv_norm(x)
        if first is None:
            return None  # the two inputs are not tried in exchange
        second = self._conv_norm(y)
        if second is not None and _padding(second) != _padding(first):
            second = None  # the unit has one attribute for the padding of both, so Y's convolution stays outside
        return _Group(first=first, second=second, add=add, relu=relu)

    def _writer_for_one_reader(self, name: str, kind: str) -> Operator | None:
        """Return the operator of type `kind` that writes a variable which only one operator reads.

        Args:
            name: Name of the variable, which at least one operator reads.
            kind: Type that the writer must have, such as "conv2d".

        Returns:
            The operator; None if no operator of this type writes the variable. None if several operators read the
            variable: it must stay in the program then, and a fused operator may not write it.
        """
        op = self._writer.get(name)
        has_one_reader = len(self._readers[name]) == 1
        if op is None or op.type != kind or not has_one_reader:
            return None
        return op

    def _conv_norm(self, name: str) -> _ConvNorm | None:
        """Return the convolution and the batch norm that compute a variable, bn(conv(...)), for a `resnet_unit`.

        Args:
            name: Name of the variable.

        Returns:
            The two operators; None if the variable is not a bn(conv(...)), if other operators read what is in between
            or the variable itself, or if the unit cannot compute the convolution.
        """
        norm = self._writer_for_one_reader(name, "batch_norm")
        if norm is None:
            return None
        convolution = self._writer_for_one_reader(norm.input("X")[0], "conv2d")
        if convolution is None or not takes_convolution(convolution, self._block):
            return None
        return _ConvNorm(convolution, norm)


def _padding(conv_norm: _ConvNorm) -> int:
    """Return the padding of a convolution in pixels, which is the same on all sides of the image."""
    return int(conv_norm.convolution.attr("paddings")[0])


def _insert_unit(block: Block, group: _Group) -> None:
    """Insert, before the relu of a group, the `resnet_unit` operator that computes what the group computes.

    It reads and writes the variables of the group's operators, which the caller removes.

    Args:
        block: Block of the group's operators; changed in place.
        group: The operators from a convolution to its relu.
    """
    relu = group.relu
    (image,) = relu.output("Out")
    mask = block.create_var(name=f"{image}.mask", dtype="int32", stop_gradient=True)  # one bit a value: is it above 0?
    outputs = {"Y": [image], "BitMask": [mask.name]} | _outputs_of_conv_norms(group)
    # Paddle's mixed precision (AMP) decides by `op_namescope` whether the operator runs in half precision.
    of_relu = {name: relu.attr(name) for name in ("op_namescope", "op_role")}
    unit = insert(block, block.ops.index(relu), UNIT, _unit_inputs(group), outputs, **_attributes(group), **of_relu)
    for name in unit.output_arg_names:
        block.var(name).op = unit  # AMP looks up the writer of a variable here


def _unit_inputs(group: _Group) -> Slots:
    """Return the variables that the `resnet_unit` of a group reads, by its slots.

        X, FilterX, ScaleX, ...    what the first convolution and its batch norm read
        Z, FilterZ, ScaleZ, ...    what the second ones read; without them, Z is the image that is added, if any

    Args:
        group: The operators that it replaces.

    Returns:
        Names by slot, as {"X": ["image"], "FilterX": ["res2a.w"], "Z": ["shortcut"], "FilterZ": [], ...}. All slots are
        there, because the operator's gradient looks them up.
    """
    first_inputs = _inputs_of(group.first, _SLOTS_OF_FIRST)
    if group.second is not None:
        return first_inputs | _inputs_of(group.second, _SLOTS_OF_SECOND)
    second_inputs: Slots = {slot: [] for slot in _SLOTS_OF_SECOND.inputs}
    if group.add is not None:
        second_inputs["Z"] = group.add.input("Y")  # the image that is added
    return first_inputs | second_inputs


def _outputs_of_conv_norms(group: _Group) -> Slots:
    """Return the variables that the `resnet_unit` of a group writes for its convolutions and batch norms, by its slots.

    Args:
        group: The operators that it replaces.

    Returns:
        Names by slot, as {"ConvX": ["res2a.conv"], ..., "ConvZ": [], ...}. The slots of a second convolution are there
        even without one, and empty then.
    """
    outputs = _outputs_of(group.first, _SLOTS_OF_FIRST)
    if group.second is not None:
        return outputs | _outputs_of(group.second, _SLOTS_OF_SECOND)
    return outputs | {slot: [] for slot in _SLOTS_OF_SECOND.outputs}


def _inputs_of(conv_norm: _ConvNorm, slots: _ConvNormSlots) -> Slots:
    """Return what a convolution and its batch norm read, by the slots of the `resnet_unit` that replaces them.

    Args:
        conv_norm: The convolution and the batch norm.
        slots: The unit's slots for them, each mapped to the slot that it replaces, as {"FilterX": "Filter"}.

    Returns:
        Names by slot of the unit, as {"X": ["image"], "FilterX": ["res2a.w"], "ScaleX": ["res2a.scale"], ...}.
    """
    inputs: Slots = {}
    for unit_slot, conv_slot in slots.conv_inputs.items():  # as "FilterX", "Filter"
        inputs[unit_slot] = conv_norm.convolution.input(conv_slot)
    for unit_slot, norm_slot in slots.norm_inputs.items():
        inputs[unit_slot] = conv_norm.norm.input(norm_slot)
    return inputs


def _outputs_of(conv_norm: _ConvNorm, slots: _ConvNormSlots) -> Slots:
    """Return what a convolution and its batch norm write, by the slots of the `resnet_unit` that replaces them.

    Args:
        conv_norm: The convolution and the batch norm.
        slots: The unit's slots for them, each mapped to the slot that it replaces, as {"FilterX": "Filter"}.

    Returns:
        Names by slot of the unit, as {"ConvX": ["res2a.conv"], "SavedMeanX": ["res2a.mean"], ...}.
    """
    outputs: Slots = {}
    for unit_slot, conv_slot in slots.conv_outputs.items():  # as "ConvX", "Output"
        outputs[unit_slot] = operands(conv_norm.convolution, conv_slot)
    for unit_slot, norm_slot in slots.norm_outputs.items():
        outputs[unit_slot] = operands(conv_norm.norm, norm_slot)
    return outputs


def _attributes(group: _Group) -> dict[str, Any]:
    """Return the attributes of a `resnet_unit` that say what it computes, read off the operators that it replaces.

    Args:
        group: These operators. What the unit has but once, such as momentum and epsilon, is that of the first
            convolution and its batch norm.

    Returns:
        Values by Paddle's names, such as "stride", "padding", "fuse_add" (something is added before the relu) and
        "has_shortcut" (what is added has a convolution of its own, whose stride is "stride_z").
    """
    first = group.first
    second = group.second
    attrs = {name: first.norm.attr(name) for name in ("momentum", "epsilon", "is_test", "use_global_stats")}
    attrs["stride"] = first.convolution.attr("strides")[0]
    attrs["padding"] = _padding(first)
    if second is not None:
        attrs["stride_z"] = second.convolution.attr("strides")[0]
    attrs["fuse_add"] = group.add is not None
    attrs["has_shortcut"] = second is not None
    return attrs | {"data_format": "NHWC", "act_type": "relu"}


def _declare_shapes(block: Block, variables: UnitVariables) -> None:
    """Give variables the shapes that `resnet_unit` takes.

    Weights change from [O, I, H, W] to [O, H, W, I], and values of channels from [O] to [1, 1, 1, O].

    Args:
        block: Block that declares the variables; changed in place.
        variables: Names of the weights of a convolution and of the values of its output channels.
    """
    out_channels, in_channels, height, width = block.var(variables.weights).shape
    block.var(variables.weights).desc.set_shape([out_channels, height, width, in_channels])
    for name in variables.per_channel:
        block.var(name).desc.set_shape([1, 1, 1, out_channels])


def initialize(startup: static.Program, variables: list[UnitVariables]) -> None:
    """Change a start-up program to initialize variables in the shapes that the operator `resnet_unit` takes.

        weights                                 [O, I, H, W] becomes [O, H, W, I]
        scale, bias, mean and variance          [O] becomes [1, 1, 1, O]

    The values are those of a network without `resnet_unit`: weights are drawn as [O, I, H, W], as there, and then
    transposed.

    Args:
        startup: Start-up program of the training program; changed in place.
        variables: What `fuse` returned for the training program: for each convolution its weights, and the scale, bias,
            mean and variance of its batch norm.
    """
    block = startup.global_block()
    for of_convolution in variables:
        # Has the weights drawn and then transposed. It reads the weights' old shape, so it comes first.
        _transpose_weights(block, of_convolution.weights)
        # Declares the new shapes of all five variables.
        _declare_shapes(block, of_convolution)
        # Fills scale, bias, mean and variance in the new shape, which is declared by now.
        _fill_in_declared_shape(block, of_convolution.per_channel)


def _transpose_weights(startup: Block, weights: str) -> None:
    """Have a start-up program draw weights as [O, I, H, W] and then write them transposed, as [O, H, W, I].

        before    draw -> weights
        after     draw -> weights.oihw, transpose2(weights.oihw) -> weights

    So the same random numbers give the same weights as in the network without `resnet_unit`.

    Args:
        startup: Main block of the start-up program; changed in place.
        weights: Name of a convolution's weights, which one operator of the program draws. They must still be declared
            as [O, I, H, W]; the caller changes this afterwards.
    """
    (drawing_index,) = writers(startup)[weights]
    oihw_shape = startup.var(weights).shape
    oihw = startup.create_var(name=f"{weights}.oihw", dtype="float32", shape=oihw_shape).name
    startup.ops[drawing_index].desc._rename_output(weights, oihw)  # the same operator now draws into `oihw`
    unused_shape = startup.create_var(name=f"{weights}.shape", dtype="float32").name  # transpose2 demands it
    outputs = {"Out": [weights], "XShape": [unused_shape]}
    oihw_to_ohwi = [0, 2, 3, 1]
    insert(startup, drawing_index + 1, "transpose2", {"X": [oihw]}, outputs, axis=oihw_to_ohwi, op_role=FORWARD)
    startup._sync_with_cpp()  # Paddle's step after changes: brings its lists in Python and in C++ in line


def _fill_in_declared_shape(startup: Block, names: list[str]) -> None:
    """Have a start-up program fill variables with their constants in the shapes in which they are declared.

    Args:
        startup: Main block of the start-up program; changed in place.
        names: Names of the variables, such as scales and biases of normalizations.
    """
    for op in startup.ops:
        for name in op.output_arg_names:
            if name in names:
                op.desc._set_attr("shape", list(startup.var(name).shape))


# ---- values that leave the program or enter it


def names_in_unit_layout(main: static.Program) -> set[str]:
    """Return the names of the tensors that a program keeps in the memory layout of the operator `resnet_unit`.

    They are the weights, scales, biases and running statistics that these operators read, and the optimizer's state of
    these parameters. Weights lie as [O, H, W, I] there instead of [O, I, H, W], so checkpoints convert them.

    Args:
        main: Training or evaluation program.

    Returns:
        The names; empty for a program without such operators.
    """
    parameters_and_statistics = _parameters_and_statistics_of_units(main)
    optimizer_states: set[str] = set()
    for op in main.global_block().ops:
        if op.type in ALL_UPDATES:
            optimizer_states |= _states_of(op, parameters_and_statistics)
    return parameters_and_statistics | optimizer_states


def _parameters_and_statistics_of_units(main: static.Program) -> set[str]:
    """Return the names of the weights, scales, biases and running statistics that `resnet_unit` operators read.

    Args:
        main: Training or evaluation program.

    Returns:
        The names. Where an operator reads a half-precision copy of its weights (Paddle's mixed precision level O1), the
        name is that of the original.
    """
    block_ops = main.global_block().ops
    source_by_cast_copy = {op.output("Out")[0]: op.input("X")[0] for op in block_ops if op.type == "cast"}
    names: set[str] = set()
    for op in block_ops:
        if op.type == UNIT:
            for name in operands(op, *_WEIGHT_AND_CHANNEL_SLOTS):
                names.add(source_by_cast_copy.get(name, name))
    return names


def _states_of(update: Operator, parameters: set[str]) -> set[str]:
    """Return the names of the optimizer's state that an update operator keeps for the given parameters.

    The state of a parameter is its velocity and, if the parameter is in half precision, its FP32 master copy.

    Args:
        update: Operator that updates one or more parameters, such as `momentum`.
        parameters: Names of the parameters asked for. Those that the operator does not update are ignored.
    """
    states: set[str] = set()
    for slot in ("Velocity", "MasterParam"):
        states_in_slot = operands(update, slot)  # one for each parameter, or none: an update in FP32 has no masters
        for parameter, state in zip(update.input("Param"), states_in_slot, strict=False):
            if parameter in parameters:
                states.add(state)
    return states


def to_plain_layout(value: Array) -> Array:
    """Convert a value from the memory layout of the operator `resnet_unit` to that of the network without it.

    Args:
        value: Weights [O, H, W, I], or values of channels [1, 1, 1, C].

    Returns:
        Weights [O, I, H, W], or values of channels [C].
    """
    if value.shape[:3] == (1, 1, 1):
        return value.reshape(-1)
    return np.ascontiguousarray(value.transpose(0, 3, 1, 2))


def to_unit_layout(value: Array) -> Array:
    """Convert a value from the layout of the network without `resnet_unit` to the layout of that operator.

    Args:
        value: Weights [O, I, H, W], or values of channels [C].

    Returns:
        Weights [O, H, W, I], or values of channels [1, 1, 1, C].
    """
    if value.ndim == 1:
        return value.reshape(1, 1, 1, -1)
    return np.ascontiguousarray(value.transpose(0, 2, 3, 1))
