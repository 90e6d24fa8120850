"""Convolution, batch norm, addend and relu as Paddle's one operator `resnet_unit`, in FP16 and NHWC.

    y = relu(bn(x * FilterX) [+ z or + bn(z * FilterZ)])

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


class _SideSlots(NamedTuple):
    """The slots of a `resnet_unit` for one of its sides, a convolution and its batch norm.

    Each is given with the slot of the `conv2d` or the `batch_norm` whose variable it takes over.
    """

    inputs: dict[str, str]
    outputs: dict[str, str]


_SLOTS_OF_FIRST = _SideSlots(
    inputs={"X": "Input", "FilterX": "Filter", "ScaleX": "Scale", "BiasX": "Bias", "MeanX": "Mean", "VarX": "Variance"},
    outputs={
        "ConvX": "Output",
        "SavedMeanX": "SavedMean",
        "SavedInvstdX": "SavedVariance",  # 1 / sqrt(variance + epsilon) in both operators
        "RunningMeanX": "Mean",
        "RunningVarX": "Variance",
    },
)
_SLOTS_OF_SECOND = _SideSlots(
    inputs={"Z": "Input", "FilterZ": "Filter", "ScaleZ": "Scale", "BiasZ": "Bias", "MeanZ": "Mean", "VarZ": "Variance"},
    outputs={
        "ConvZ": "Output",
        "SavedMeanZ": "SavedMean",
        "SavedInvstdZ": "SavedVariance",
        "RunningMeanZ": "Mean",
        "RunningVarZ": "Variance",
    },
)
# Slots of the unit for weights and for values of channels. They lie otherwise in memory than in the plain network.
_WEIGHT_AND_CHANNEL_SLOTS = [
    *("FilterX", "ScaleX", "BiasX", "MeanX", "VarX"),
    *("FilterZ", "ScaleZ", "BiasZ", "MeanZ", "VarZ"),
]


class _Side(NamedTuple):
    """A convolution and the batch norm that is its only reader: one of the two terms that a `resnet_unit` adds."""

    convolution: Operator
    norm: Operator


class _Pattern(NamedTuple):
    """The operators that become one `resnet_unit`, which computes one of

    relu(first)                     `add` and `second` are None
    relu(first + another image)     `second` is None
    relu(first + second)
    """

    first: _Side
    second: _Side | None
    add: Operator | None
    relu: Operator

    @property
    def sides(self) -> list[_Side]:
        """The one or two convolutions with their batch norms."""
        if self.second is None:
            return [self.first]
        return [self.first, self.second]

    @property
    def operators(self) -> list[Operator]:
        """Every operator of the pattern."""
        operators = [self.relu]
        if self.add is not None:
            operators.append(self.add)
        for side in self.sides:
            operators += [side.convolution, side.norm]
        return operators


class UnitVariables(NamedTuple):
    """The variables of one convolution and its batch norm that a `resnet_unit` takes in a memory layout of its own."""

    weights: str  # [O, H, W, I]
    per_channel: list[str]  # scale, bias, mean and variance: [1, 1, 1, O]


def takes_convolution(op: Operator, block: Block) -> bool:
    """Tell whether an operator is a convolution that Paddle's fused operator `resnet_unit` can compute.

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
    """Replace groups of operators that compute one of the following by a single operator, a `resnet_unit`.

        relu(bn(conv(x)))    relu(bn(conv(x)) + image)    relu(bn(conv(x)) + bn(conv(z)))

    A group is replaced if a `resnet_unit` can compute its convolutions, and if only the next operator of the group
    reads the result of each convolution, batch norm and addition. Two convolutions must have the same padding;
    otherwise bn(conv(z)) stays, and is the image. Each bn(conv(...)) that is replaced is called a side of the group.
    The variables of a side get the shapes that `resnet_unit` takes.

    Args:
        main: Forward program without gradients, of a training or an evaluation; changed in place.

    Returns:
        For each side, the variables whose shapes changed: the weights of the convolution, and scale, bias, mean and
        variance of the batch norm. For a training, hand them to `initialize`, which fits the start-up program.
    """
    block = main.global_block()
    variables: list[UnitVariables] = []
    for pattern in _Matcher(block).patterns():  # all groups to replace, found before anything changes
        variables += [_variables_of(side) for side in pattern.sides]
        _insert_unit(block, pattern)  # before the group's relu; takes over the variables of the group
        for op in pattern.operators:
            block._remove_op(block.ops.index(op), sync=False)  # one sync, below, serves all removals
    for variables_of_side in variables:
        _declare_shapes(block, variables_of_side)
    block._sync_with_cpp()  # Paddle's step after changes: brings its lists in Python and in C++ in line
    _infer_output_shapes(block)  # from the shapes of the inputs, which are all declared now
    return variables


def _infer_output_shapes(block: Block) -> None:
    """Have Paddle compute the shapes of what the `resnet_unit` operators of a block write."""
    for op in block.ops:
        if op.type == UNIT:
            op.desc.infer_shape(block.desc)


def _variables_of(side: _Side) -> UnitVariables:
    """Return the variables of a convolution and its batch norm that a `resnet_unit` takes in its own memory layout.

    Args:
        side: A convolution and the batch norm that reads it.
    """
    (weights,) = side.convolution.input("Filter")
    return UnitVariables(weights, operands(side.norm, "Scale", "Bias", "Mean", "Variance"))


class _Matcher:
    """Finds the operators of a block that a `resnet_unit` can replace."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._readers = readers(block)
        self._writer: dict[str, Operator] = {}
        for op in block.ops:
            self._writer.update(dict.fromkeys(op.output_arg_names, op))

    def patterns(self) -> list[_Pattern]:
        """Return all groups of operators in the block that a `resnet_unit` can replace.

        A group ends with a relu, and has one or two convolutions, each with its batch norm, and perhaps an addition.
        Within a group each operator's result is read by the next operator alone, so no operator is in two groups.

        Returns:
            The groups, in the order of their relus.
        """
        patterns = []
        for op in self._block.ops:
            if op.type == "relu":
                pattern = self._match(op)
                if pattern is not None:
                    patterns.append(pattern)
        return patterns

    def _match(self, relu: Operator) -> _Pattern | None:
        """Return the group of operators that ends with this relu and that one `resnet_unit` can replace.

        The group computes one of these, where a side is a batch norm of a convolution that the unit can compute:

            relu(side + image)    relu(side + side)    relu(side)

        Args:
            relu: A relu of the block.

        Returns:
            The group; None if the relu ends none.
        """
        (relu_input,) = relu.input("X")
        # The addition that writes the relu's input; None if another operator writes it, or if others read it too.
        add = self._writer_for_one_reader(relu_input, "elementwise_add")
        if add is not None:
            return self._match_addition(add, relu)
        # The convolution and the batch norm; None if the relu's input is no side, such as a sum that others read too.
        first = self._side(relu_input)
        if first is None:
            return None
        return _Pattern(first=first, second=None, add=None, relu=relu)

    def _match_addition(self, add: Operator, relu: Operator) -> _Pattern | None:
        """Return the group of operators of relu(X + Y) that one `resnet_unit` can replace.

        X must be a side: the result of a convolution and a batch norm that the unit can compute and that nothing else
        reads. Y is either

            a side whose convolution has the same padding: it becomes part of the group, or
            any other image: the unit reads it and adds it.

        Args:
            add: The addition, with the inputs X and Y.
            relu: The only reader of its result.

        Returns:
            The group; None if X is no side.
        """
        first = self._side(add.input("X")[0])
        if first is None:
            return None  # Y is not tried in the place of X
        with_image = _Pattern(first=first, second=None, add=add, relu=relu)
        second = self._side(add.input("Y")[0])
        if second is None:
            return with_image
        # The unit has one attribute for the padding of both convolutions.
        if _padding(second) != _padding(first):
            return with_image
        return _Pattern(first=first, second=second, add=add, relu=relu)

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

    def _side(self, name: str) -> _Side | None:
        """Return the operators of a variable that is bn(conv(...)), if a `resnet_unit` can do their work.

        The two operators, a convolution and a batch norm, are called a side. A `resnet_unit` is an operator of Paddle
        that computes relu(side), relu(side + image) or relu(side + side).

        Args:
            name: Name of the variable.

        Returns:
            The convolution and the batch norm. None in each of these cases: no batch norm writes the variable, or
            several operators read it; no convolution writes the input of the batch norm, or several operators read this
            input; the `resnet_unit` cannot compute the convolution.
        """
        # Each call of `_writer_for_one_reader` returns None if several operators read the variable.
        norm = self._writer_for_one_reader(name, "batch_norm")
        if norm is None:
            return None
        convolution = self._writer_for_one_reader(norm.input("X")[0], "conv2d")
        # `takes_convolution`: whether a `resnet_unit` can compute a convolution of this kernel, stride and so on.
        if convolution is None or not takes_convolution(convolution, self._block):
            return None
        return _Side(convolution, norm)


def _padding(side: _Side) -> int:
    """Return the padding of a side's convolution in pixels, which is the same on all sides of the image."""
    return int(side.convolution.attr("paddings")[0])


def _insert_unit(block: Block, pattern: _Pattern) -> None:
    """Insert, before the relu of a pattern, the `resnet_unit` operator that computes the same as the pattern.

    It reads and writes the variables of the pattern's operators, which the caller removes. It also writes a new bit
    mask of the relu, which its gradient reads.

    Args:
        block: Block of the pattern's operators; changed in place.
        pattern: Operators that compute relu(bn(conv(x))), with or without an image or a second bn(conv(z)) added before
            the relu.
    """
    relu = pattern.relu
    (image,) = relu.output("Out")
    mask = block.create_var(name=f"{image}.mask", dtype="int32", stop_gradient=True)
    outputs = {"Y": [image], "BitMask": [mask.name]} | _outputs_of_convolutions_and_norms(pattern)
    # AMP decides by the relu's name scope whether the operator runs in half precision.
    attrs = _attributes(pattern) | {"op_namescope": relu.attr("op_namescope"), "op_role": relu.attr("op_role")}
    unit = insert(block, block.ops.index(relu), UNIT, _unit_inputs(pattern), outputs, **attrs)
    for name in unit.output_arg_names:
        block.var(name).op = unit  # AMP looks up the writer of a variable here


def _unit_inputs(pattern: _Pattern) -> Slots:
    """Return the variables that the fused operator `resnet_unit` of a pattern reads, by its slots.

    Args:
        pattern: The operators that it replaces: convolution, batch norm, perhaps an addition, and relu.

    Returns:
        Names by slot, as {"X": ["image"], "FilterX": ["res2a.w"], "Z": ["shortcut"], "FilterZ": [], ...}. All slots are
        there, because the operator's gradient looks them up:

            X, FilterX, ...   the first convolution and its batch norm
            Z, FilterZ, ...   the second convolution and its batch norm; empty without one
            Z                 the image that is added, if there is no second convolution
    """
    inputs = _variables_by_slot(_SLOTS_OF_FIRST.inputs, pattern.first)
    inputs |= {slot: [] for slot in _SLOTS_OF_SECOND.inputs}
    if pattern.second is not None:
        inputs |= _variables_by_slot(_SLOTS_OF_SECOND.inputs, pattern.second)
    elif pattern.add is not None:  # an image is added without a second convolution
        inputs["Z"] = pattern.add.input("Y")
    return inputs


def _outputs_of_convolutions_and_norms(pattern: _Pattern) -> Slots:
    """Return the variables that a fused operator `resnet_unit` writes for its convolutions and batch norms.

    Args:
        pattern: The operators that it replaces: one or two convolutions (`first`, `second`), each with its batch norm,
            perhaps an addition, and relu.

    Returns:
        Names by slot. The slots of a second convolution are there even without one, and empty then.
    """
    outputs_of_first = _variables_by_slot(_SLOTS_OF_FIRST.outputs, pattern.first)
    if pattern.second is not None:
        return outputs_of_first | _variables_by_slot(_SLOTS_OF_SECOND.outputs, pattern.second)
    no_outputs: Slots = {slot: [] for slot in _SLOTS_OF_SECOND.outputs}
    return outputs_of_first | no_outputs


def _variables_by_slot(replaced_slots: dict[str, str], side: _Side) -> Slots:
    """Map slots of a `resnet_unit` to the variables of the convolution and the batch norm that it replaces.

    Args:
        replaced_slots: {"FilterX": "Filter", "ScaleX": "Scale"} means: FilterX of the `resnet_unit` takes the variable
            in Filter of the convolution, and ScaleX the one in Scale of the batch norm. Only one of the two has a
            variable in such a slot.
        side: The convolution and the batch norm.

    Returns:
        Names by slot of the `resnet_unit`, as {"FilterX": ["res2a.w"], "ScaleX": ["res2a.scale"]}.
    """
    variables: Slots = {}
    for slot, replaced_slot in replaced_slots.items():
        of_convolution = operands(side.convolution, replaced_slot)  # empty for a slot of the batch norm
        of_norm = operands(side.norm, replaced_slot)  # empty for a slot of the convolution
        variables[slot] = of_convolution + of_norm
    return variables


def _attributes(pattern: _Pattern) -> dict[str, Any]:
    """Return the attributes of the fused operator `resnet_unit` that replaces a pattern.

    Two are left out, `op_role` and `op_namescope`: `_insert_unit` takes them from the relu.

    Args:
        pattern: The operators that it replaces: convolution, batch norm, perhaps an addition, and relu. Momentum and
            epsilon are those of its first batch norm.

    Returns:
        Values by Paddle's names, such as "stride", "padding", "fuse_add" (something is added before the relu) and
        "has_shortcut" (what is added has a convolution of its own, whose stride is "stride_z").
    """
    first = pattern.first
    second = pattern.second
    attrs = {name: first.norm.attr(name) for name in ("momentum", "epsilon", "is_test", "use_global_stats")}
    attrs["stride"] = first.convolution.attr("strides")[0]
    attrs["padding"] = _padding(first)
    if second is not None:
        attrs["stride_z"] = second.convolution.attr("strides")[0]
    attrs["fuse_add"] = pattern.add is not None
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
    """Have a start-up program draw weights into a new variable, and write them transposed to `weights`.

    They are drawn as [O, I, H, W] and written as [O, H, W, I]. So the same random numbers give the same weights as in
    the network without `resnet_unit`. The caller declares `weights` as [O, H, W, I] after this call.

    Args:
        startup: Main block of the start-up program; changed in place.
        weights: Name of a convolution's weights, which one operator of the program draws.
    """
    (drawing_index,) = writers(startup)[weights]  # one operator draws them
    oihw_shape = startup.var(weights).shape  # not yet changed by the caller
    oihw_weights = startup.create_var(name=f"{weights}.oihw", dtype="float32", shape=oihw_shape)
    startup.ops[drawing_index].desc._rename_output(weights, oihw_weights.name)
    unused_shape = startup.create_var(name=f"{weights}.shape", dtype="float32")  # transpose2 demands it
    outputs = {"Out": [weights], "XShape": [unused_shape.name]}
    attrs = {"axis": [0, 2, 3, 1], "op_role": FORWARD}  # OIHW -> OHWI
    insert(startup, drawing_index + 1, "transpose2", {"X": [oihw_weights.name]}, outputs, **attrs)
    startup._sync_with_cpp()


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
