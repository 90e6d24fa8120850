"""Convolution, batch norm, addend and relu as Paddle's one operator `resnet_unit`, in FP16 and NHWC.

    y = relu(bn(x * FilterX) [+ z or + bn(z * FilterZ)])

cuDNN's convolution sums up the statistics of what it writes, a second kernel normalizes. The operator takes filters as
[O, H, W, I] and values of channels as [1, 1, 1, C]. In the plain network, the one built without the operator, they are
[O, I, H, W] and [C]. `to_plain_layout` and `to_unit_layout` convert a value that leaves the program or enters it, and
the start-up program is changed to initialize the variables in the operator's layout.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from paddle import static
from paddle.base.framework import Block, Operator

from program.arrays import Array
from program.ops import ALL_UPDATES, FORWARD, operands, readers, writers
from program.passes.edit import Slots, insert

UNIT = "resnet_unit"
OUT_CHANNELS_MULTIPLE, IN_CHANNELS_MULTIPLE = 32, 8  # NormConvolutionArgs of Paddle's sources
# Slots of the unit, without the letter X or Z of their side at the end, and the slots of conv2d or batch_norm whose
# variables they hold. The unit's plain `X` takes the image, hence the empty name.
_INPUTS = {"": "Input", "Filter": "Filter", "Scale": "Scale", "Bias": "Bias", "Mean": "Mean", "Var": "Variance"}
_OUTPUTS = {
    "Conv": "Output",
    "SavedMean": "SavedMean",
    "SavedInvstd": "SavedVariance",
    "RunningMean": "Mean",
    "RunningVar": "Variance",
}
# Slots of the unit whose variables have another memory layout than in the plain network.
_OTHER_LAYOUT = ("Filter", "Scale", "Bias", "Mean", "Var")
_SLOTS_OF_OTHER_LAYOUT = [f"{slot}{side}" for slot, side in itertools.product(_OTHER_LAYOUT, "XZ")]


class _Side(NamedTuple):
    """A convolution and the batch norm that is its only reader: one of the two terms that a `resnet_unit` adds."""

    convolution: Operator
    norm: Operator


class _Pattern(NamedTuple):
    """The operators that become one `resnet_unit`."""

    first: _Side
    second: _Side | None  # a shortcut with a convolution of its own
    add: Operator | None  # None: the relu reads the first batch norm
    relu: Operator

    @property
    def sides(self) -> list[_Side]:
        """The convolutions with their batch norms."""
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def operators(self) -> list[Operator]:
        """Every operator of the pattern."""
        convolutions = [side.convolution for side in self.sides]
        norms = [side.norm for side in self.sides]
        adds = [] if self.add is None else [self.add]
        return [*convolutions, *norms, *adds, self.relu]


def takes_convolution(op: Operator, block: Block) -> bool:
    """Tell whether Paddle's fused operator `resnet_unit` can compute a convolution of this block.

    The conditions are those of NormConvolutionArgs in Paddle's sources:

    - NHWC, one group, a 1x1 or 3x3 kernel;
    - padding with which a stride of 1 keeps the image's size, no dilation, equal strides in both directions;
    - output and input channels that are multiples of OUT_CHANNELS_MULTIPLE and IN_CHANNELS_MULTIPLE.

    Returns False for any other operator than a `conv2d`.
    """
    if op.type != "conv2d" or op.attr("data_format") != "NHWC" or op.attr("groups") != 1:
        return False
    out_channels, in_channels, *kernel = block.var(op.input("Filter")[0]).shape
    if kernel not in ([1, 1], [3, 3]):
        return False
    padding = (kernel[0] - 1) // 2  # pixels on each side
    keeps_size = list(op.attr("paddings")) == [padding, padding]
    is_undilated = list(op.attr("dilations")) == [1, 1]
    vertical_stride, horizontal_stride = op.attr("strides")
    are_multiples = out_channels % OUT_CHANNELS_MULTIPLE == 0 and in_channels % IN_CHANNELS_MULTIPLE == 0
    return bool(keeps_size and is_undilated and vertical_stride == horizontal_stride and are_multiples)


def fuse(main: static.Program, startup: static.Program | None = None) -> None:
    """Replace each matching group of convolution, batch norm, add and relu by one `resnet_unit` operator.

    `main` is a forward program without gradients; Paddle can add the gradient of a `resnet_unit` later. The operator
    needs weights and statistics in its own memory layout. Therefore the shapes of these variables change, and `startup`
    is changed to initialize them in this layout. Pass None for an evaluation, which initializes nothing.
    """
    block = main.global_block()
    matcher = _Matcher(block)
    relus = [op for op in block.ops if op.type == "relu"]  # listed first, because the loop changes `block.ops`
    for relu in relus:
        pattern = matcher.match(relu)
        if pattern is None:
            continue
        _insert_unit(block, pattern)
        for side in pattern.sides:  # the one or two convolutions, each with its batch norm
            weights = side.convolution.input("Filter")[0]
            per_channel_variables = operands(side.norm, "Scale", "Bias", "Mean", "Variance")
            _declare_shapes(block, weights, per_channel_variables)
            if startup is not None:
                _initialize_in_unit_layout(startup.global_block(), weights, per_channel_variables)
        matcher.forget(pattern)  # its operators are removed, and later matches must not find them
        for op in pattern.operators:
            block._remove_op(block.ops.index(op), sync=False)
    block._sync_with_cpp()

    for op in block.ops:
        if op.type == UNIT:
            op.desc.infer_shape(block.desc)  # of the outputs; needs the inputs' shapes, which are all declared now


class _Matcher:
    """Finds the operators of a block that a `resnet_unit` can replace."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._readers = readers(block)
        self._writer: dict[str, Operator] = {}
        for op in block.ops:
            self._writer.update(dict.fromkeys(op.output_arg_names, op))

    def match(self, relu: Operator) -> _Pattern | None:
        """Return the pattern that ends with this relu; None if there is none.

        - relu(bn(conv)): the pattern has no `add`.
        - relu(bn(conv) + bn(conv)): it has an `add`, and the `second` bn(conv).
        - relu(bn(conv) + shortcut): it has an `add`, and `second` is None. The shortcut is any other image, or a
          bn(conv) that `resnet_unit` cannot compute together with the first one.

        `resnet_unit` must be able to compute the first bn(conv), which in an addition is the input X. Else there is no
        pattern. X and Y are never exchanged.
        """
        # `_side` returns a bn(conv) that `resnet_unit` can compute; None for anything else.
        add = self._sole_writer(relu.input("X")[0], "elementwise_add")
        if add is None:  # relu(bn(conv))
            first = self._side(relu.input("X")[0])
            second = None
        else:
            first = self._side(add.input("X")[0])
            second = self._side(add.input("Y")[0])
        if first is None:
            return None
        if second is not None and _paddings(second) != _paddings(first):
            second = None  # the kernel of `resnet_unit` pads both images by the same number
        return _Pattern(first=first, second=second, add=add, relu=relu)

    def forget(self, pattern: _Pattern) -> None:
        """Leave the operators of a pattern out of later matches."""
        for op in pattern.operators:
            for name in op.output_arg_names:
                self._writer.pop(name, None)

    def _sole_writer(self, name: str, kind: str) -> Operator | None:
        """Return the operator that writes a variable if it is of this kind and the variable has one reader; else None.

        A variable with further readers must stay, so its writer cannot become part of a `resnet_unit`.
        """
        op = self._writer.get(name)
        if op is None or op.type != kind or len(self._readers[name]) != 1:
            return None
        return op

    def _side(self, name: str) -> _Side | None:
        """Return the convolution and the batch norm that write a variable; None unless `resnet_unit` takes them."""
        norm = self._sole_writer(name, "batch_norm")
        if norm is None:
            return None
        convolution = self._sole_writer(norm.input("X")[0], "conv2d")
        if convolution is None or not takes_convolution(convolution, self._block):
            return None
        return _Side(convolution, norm)


def _paddings(side: _Side) -> list[int]:
    """Return the padding of a side's convolution in each direction, in pixels."""
    return list(side.convolution.attr("paddings"))


def _insert_unit(block: Block, pattern: _Pattern) -> None:
    """Insert, before the relu of a matched pattern, the `resnet_unit` operator that computes the same.

    - relu(bn(conv) + bn(conv)): `pattern.second` is the second convolution with its batch norm.
    - relu(bn(conv) + shortcut): `pattern.second` is None, and `pattern.add` adds the shortcut, its input Y.
    - relu(bn(conv)): `pattern.second` and `pattern.add` are None.

    The operator reads and writes the variables of the pattern's operators, which the caller removes. It also writes a
    new variable: a bit mask of the relu, which the operator's gradient reads.
    """
    relu = pattern.relu
    relu_output = relu.output("Out")
    mask = block.create_var(name=f"{relu_output[0]}.mask", dtype="int32", stop_gradient=True)
    inputs: Slots = {}
    outputs: Slots = {"Y": relu_output, "BitMask": [mask.name]}
    # Slot names end in X for the first convolution and in Z for the second, as `FilterX` and `FilterZ`.
    for slot_ending, side in (("X", pattern.first), ("Z", pattern.second)):
        # `slot` is of the `resnet_unit`, `replaced_slot` of the convolution or the batch norm.
        for slot, replaced_slot in _INPUTS.items():
            inputs[f"{slot}{slot_ending}"] = _side_operands(side, replaced_slot)  # empty if the side is None
        for slot, replaced_slot in _OUTPUTS.items():
            outputs[f"{slot}{slot_ending}"] = _side_operands(side, replaced_slot)
    if pattern.add is not None and pattern.second is None:  # relu(bn(conv) + shortcut)
        inputs["Z"] = pattern.add.input("Y")  # the shortcut: `match` takes X as the bn(conv)

    # AMP decides by the relu's name scope whether the operator runs in half precision.
    scope = {"op_namescope": relu.attr("op_namescope"), "op_role": relu.attr("op_role")}
    unit = insert(block, block.ops.index(relu), UNIT, inputs, outputs, **_attributes(pattern), **scope)
    for name in unit.output_arg_names:
        block.var(name).op = unit  # AMP looks up the writer of a variable here


def _attributes(pattern: _Pattern) -> dict[str, Any]:
    """Return the attributes of the `resnet_unit` that replaces a pattern, except its role and name scope."""
    first, second = pattern.first, pattern.second
    attrs = {name: first.norm.attr(name) for name in ("momentum", "epsilon", "is_test", "use_global_stats")}
    attrs["stride"] = first.convolution.attr("strides")[0]
    attrs["padding"] = _paddings(first)[0]
    if second is not None:
        attrs["stride_z"] = second.convolution.attr("strides")[0]
    attrs["fuse_add"] = pattern.add is not None
    attrs["has_shortcut"] = second is not None
    return attrs | {"data_format": "NHWC", "act_type": "relu"}


def _side_operands(side: _Side | None, slot: str) -> list[str]:
    """Return the variables in a slot of a side's convolution or batch norm; an empty list if `side` is None.

    A `resnet_unit` also needs the slots of an absent side, empty, because its gradient looks up each slot by name.
    """
    if side is None:
        return []
    return [*operands(side.convolution, slot), *operands(side.norm, slot)]


def _declare_shapes(block: Block, weights: str, per_channel_variables: list[str]) -> None:
    """Give variables the shapes that `resnet_unit` takes.

    - `weights`: from [O, I, H, W] to [O, H, W, I].
    - each of `per_channel_variables`: from [O] to [1, 1, 1, O].
    """
    out_channels, in_channels, height, width = block.var(weights).shape
    block.var(weights).desc.set_shape([out_channels, height, width, in_channels])
    for name in per_channel_variables:
        block.var(name).desc.set_shape([1, 1, 1, out_channels])


def _initialize_in_unit_layout(startup: Block, weights: str, per_channel_variables: list[str]) -> None:
    """Change a start-up program to initialize variables in the memory layout of the fused operator `resnet_unit`.

    The values stay those of the network without `resnet_unit`.

    - `per_channel_variables`: the scale, bias, mean and variance of a batch norm. They are still filled with constants,
      but in the shape [1, 1, 1, O] instead of [O].
    - `weights`: they are still drawn at random as [O, I, H, W], but into a new variable. A new transpose then writes
      them to `weights` as [O, H, W, I].
    """
    oihw_shape = list(startup.var(weights).shape)  # read before `_declare_shapes` changes it
    out_channels = oihw_shape[0]
    _declare_shapes(startup, weights, per_channel_variables)
    for op in startup.ops:
        fills_per_channel_variable = bool(set(op.output_arg_names) & set(per_channel_variables))
        if fills_per_channel_variable:  # with a constant
            op.desc._set_attr("shape", [1, 1, 1, out_channels])

    # The weights are still drawn at random as [O, I, H, W], but into a new variable. A transpose then writes them.
    drawing_index = writers(startup)[weights][0]  # index of the one operator that writes the weights
    oihw_weights = startup.create_var(name=f"{weights}.oihw", dtype="float32", shape=oihw_shape)
    startup.ops[drawing_index].desc._rename_output(weights, oihw_weights.name)
    unused_shape = startup.create_var(name=f"{weights}.shape", dtype="float32")  # transpose2 demands it
    outputs = {"Out": [weights], "XShape": [unused_shape.name]}
    attrs = {"axis": [0, 2, 3, 1], "op_role": FORWARD}  # OIHW -> OHWI
    insert(startup, drawing_index + 1, "transpose2", {"X": [oihw_weights.name]}, outputs, **attrs)
    startup._sync_with_cpp()


# ---- values that leave the program or enter it


def names_in_unit_layout(main: static.Program) -> set[str]:
    """Return the names of the tensors whose memory layout differs from the same network built without `resnet_unit`.

    - Parameters and statistics that a `resnet_unit` operator reads. If it reads a cast copy of the weights (AMP O1),
      the weights are returned and not the copy.
    - The optimizer's state for these parameters.
    """
    block_ops = main.global_block().ops
    # With AMP O1 an operator reads a cast copy of the weights: the weights themselves are returned.
    source_of_cast = {op.output("Out")[0]: op.input("X")[0] for op in block_ops if op.type == "cast"}
    parameters_and_statistics: set[str] = set()
    for op in block_ops:
        if op.type == UNIT:
            for name in operands(op, *_SLOTS_OF_OTHER_LAYOUT):
                parameters_and_statistics.add(source_of_cast.get(name, name))

    optimizer_states: set[str] = set()
    for op in block_ops:
        if op.type in ALL_UPDATES:
            optimizer_states |= _states_of(op, parameters_and_statistics)
    return parameters_and_statistics | optimizer_states


def _states_of(update: Operator, parameters: set[str]) -> set[str]:
    """Return the names of the optimizer's state that an update operator keeps for the given parameters.

    The state of a parameter is its velocity and, if the parameter is in half precision, its FP32 master copy.
    Parameters that the operator does not update are ignored.
    """
    states: set[str] = set()
    for slot in ("Velocity", "MasterParam"):
        states_in_slot = operands(update, slot)  # one for each parameter, or none: an update in FP32 has no masters
        for parameter, state in zip(update.input("Param"), states_in_slot, strict=False):
            if parameter in parameters:
                states.add(state)
    return states


def to_plain_layout(value: Array) -> Array:
    """Convert a value from the layout of `resnet_unit` to the plain network's.

    [O, H, W, I] -> [O, I, H, W] for weights, [1, 1, 1, C] -> [C] for values of channels.
    """
    if value.shape[:3] == (1, 1, 1):
        return value.reshape(-1)
    return np.ascontiguousarray(value.transpose(0, 3, 1, 2))


def to_unit_layout(value: Array) -> Array:
    """Convert a value from the plain network's layout to that of `resnet_unit`.

    [O, I, H, W] -> [O, H, W, I] for weights, [C] -> [1, 1, 1, C] for values of channels.
    """
    if value.ndim == 1:
        return value.reshape(1, 1, 1, -1)
    return np.ascontiguousarray(value.transpose(0, 2, 3, 1))
