"""Convolution, batch norm, addend and relu as Paddle's one operator `resnet_unit`, in FP16 and NHWC.

    y = relu(bn(x * FilterX) [+ z or + bn(z * FilterZ)])

cuDNN's convolution sums up the statistics of what it writes, a second kernel normalizes. The operator takes filters as
[O, H, W, I] and what belongs to a channel as [1, 1, 1, C]. So these variables lie otherwise in memory than the plain
network's: `plain` and `stored` convert a value that leaves the program or enters it, and the start-up program turns
what the plain network's initializers draw.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from paddle import static
from paddle.base.framework import Block, Operator

from program.arrays import Array
from program.ops import ALL_UPDATES, operands, readers, writers
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
    """A convolution and the batch norm that alone reads it: one of the two terms that a unit adds."""

    convolution: Operator
    norm: Operator


class _Pattern(NamedTuple):
    """The operators that become one `resnet_unit`."""

    x: _Side
    z: _Side | None  # a shortcut with a convolution of its own
    add: Operator | None
    relu: Operator

    @property
    def sides(self) -> list[_Side]:
        """The convolutions with their batch norms."""
        return [self.x] if self.z is None else [self.x, self.z]

    @property
    def operators(self) -> list[Operator]:
        """Every operator of the pattern."""
        convolutions = [side.convolution for side in self.sides]
        norms = [side.norm for side in self.sides]
        adds = [] if self.add is None else [self.add]
        return [*convolutions, *norms, *adds, self.relu]


def takes_convolution(op: Operator, block: Block) -> bool:
    """Tell whether Paddle's fused operator `resnet_unit` can compute a convolution of this block.

    It takes 1x1 and 3x3 convolutions in NHWC, in one group, undilated, padded so that a stride of 1 keeps the image's
    size, with equal strides in both directions and with channels in the multiples that its kernel works in. These are
    the checks of NormConvolutionArgs in Paddle's sources. Returns False for any other operator.
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
    """Replace convolution, batch norm, add and relu by one `resnet_unit` operator wherever they match in a program.

    `main` is a forward program, before gradients are added: Paddle knows the gradient of a `resnet_unit`. That operator
    takes weights and statistics in another memory layout. So their variables get its shapes, and the `startup` program
    is changed to initialize them in it. An evaluation has no start-up program of its own: `startup` is None.
    """
    block = main.global_block()
    matcher = _Matcher(block)
    relus = [op for op in block.ops if op.type == "relu"]  # noted first, as operators come and go in the loop
    for relu in relus:
        pattern = matcher.match(relu)
        if pattern is None:
            continue
        _insert_unit(block, pattern)
        for side in pattern.sides:
            channels = operands(side.norm, "Scale", "Bias", "Mean", "Variance")
            weights = side.convolution.input("Filter")[0]
            _declare_shapes(block, weights, channels)
            if startup is not None:
                _initialize_in_unit_layout(startup.global_block(), weights, channels)
        matcher.forget(pattern)  # its operators are removed, and the next match must not find them
        for op in pattern.operators:
            block._remove_op(block.ops.index(op), sync=False)
    block._sync_with_cpp()

    for op in block.ops:
        if op.type == UNIT:  # its outputs' shapes follow from those of its inputs, which are all declared now
            op.desc.infer_shape(block.desc)


class _Matcher:
    """Finds the operators of a block that a unit can replace."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._readers = readers(block)
        self._writer: dict[str, Operator] = {}
        for op in block.ops:
            self._writer.update(dict.fromkeys(op.output_arg_names, op))

    def match(self, relu: Operator) -> _Pattern | None:
        """Return the pattern that ends with this relu; None where there is none."""
        add = self._sole_maker(relu.input("X")[0], "elementwise_add")
        last = relu if add is None else add
        x = self._side(last.input("X")[0])
        if x is None:
            return None
        z = None if add is None else self._side(add.input("Y")[0])
        if z is not None and list(z.convolution.attr("paddings")) != list(x.convolution.attr("paddings")):
            z = None  # the unit's kernel pads both sides by the same number
        return _Pattern(x, z, add, relu)

    def forget(self, pattern: _Pattern) -> None:
        """Leave the operators of a pattern, which a unit has replaced, out of later matches."""
        for op in pattern.operators:
            for name in op.output_arg_names:
                self._writer.pop(name, None)

    def _sole_maker(self, name: str, kind: str) -> Operator | None:
        """Return the operator of this kind that writes a variable for one reader alone."""
        op = self._writer.get(name)
        if op is None or op.type != kind or len(self._readers[name]) != 1:
            return None
        return op

    def _side(self, name: str) -> _Side | None:
        """Return the convolution and the batch norm that write a variable, if a unit takes them."""
        norm = self._sole_maker(name, "batch_norm")
        if norm is None:
            return None
        convolution = self._sole_maker(norm.input("X")[0], "conv2d")
        if convolution is None or not takes_convolution(convolution, self._block):
            return None
        return _Side(convolution, norm)


def _insert_unit(block: Block, pattern: _Pattern) -> None:
    """Insert, before the relu of a matched pattern, the `resnet_unit` operator that computes the same.

    It reads and writes the variables of the operators in the pattern, which the caller removes. It also writes a new
    variable, a bit mask of the relu, for its gradient.

    A unit is relu(bn(conv X) + bn(conv Z)), or has only the image Z as its second term, or no second term. Slots of
    the first term end in X, as `FilterX`, those of the second in Z.
    """
    add, relu = pattern.add, pattern.relu
    mask = block.create_var(name=f"{relu.output('Out')[0]}.mask", dtype="int32", stop_gradient=True)
    inputs: Slots = {}
    outputs: Slots = {"Y": relu.output("Out"), "BitMask": [mask.name]}
    for letter, side in (("X", pattern.x), ("Z", pattern.z)):
        for slot, replaced_slot in _INPUTS.items():
            inputs[f"{slot}{letter}"] = _side_operands(side, replaced_slot)
        for slot, replaced_slot in _OUTPUTS.items():
            outputs[f"{slot}{letter}"] = _side_operands(side, replaced_slot)
    if add is not None and pattern.z is None:
        inputs["Z"] = add.input("Y")  # the image as it is

    # The name scope of the relu says whether it runs in half precision.
    scope = {"op_namescope": relu.attr("op_namescope"), "op_role": relu.attr("op_role")}
    unit = insert(block, block.ops.index(relu), UNIT, inputs, outputs, **_attributes(pattern), **scope)
    for name in unit.output_arg_names:
        block.var(name).op = unit  # AMP asks variables for their operators


def _attributes(pattern: _Pattern) -> dict[str, Any]:
    """Return the attributes of the `resnet_unit` that replaces a pattern, but for its role and name scope."""
    x, z = pattern.x, pattern.z
    attrs = {name: x.norm.attr(name) for name in ("momentum", "epsilon", "is_test", "use_global_stats")}
    attrs["stride"] = x.convolution.attr("strides")[0]
    attrs["padding"] = x.convolution.attr("paddings")[0]
    if z is not None:
        attrs["stride_z"] = z.convolution.attr("strides")[0]
    attrs["fuse_add"] = pattern.add is not None
    attrs["has_shortcut"] = z is not None
    return attrs | {"data_format": "NHWC", "act_type": "relu"}


def _side_operands(side: _Side | None, slot: str) -> list[str]:
    """Return the variables in a slot of a side's convolution or batch norm; none where there is no such side.

    A unit has the slots of an absent side, too, with nothing in them: its gradient asks for each slot by name.
    """
    if side is None:
        return []
    return [*operands(side.convolution, slot), *operands(side.norm, slot)]


def _declare_shapes(block: Block, weights: str, channels: list[str]) -> None:
    """Give variables the shapes that a unit takes: `weights` [O, H, W, I], each variable of `channels` [1, 1, 1, C]."""
    out_channels, in_channels, height, width = block.var(weights).shape
    block.var(weights).desc.set_shape([out_channels, height, width, in_channels])
    for name in channels:
        block.var(name).desc.set_shape([1, 1, 1, out_channels])


def _initialize_in_unit_layout(startup: Block, weights: str, channels: list[str]) -> None:
    """Change a start-up program so that it leaves a unit's parameters in the unit's memory layout.

    The first values stay those of the network without units. `channels` names the scale, bias, mean and variance, which
    start as constants: they are filled as [1, 1, 1, C] at once. `weights` are drawn in [O, I, H, W] as before, but into
    another variable, from which an inserted transpose makes the weights in [O, H, W, I].
    """
    plain_shape = list(startup.var(weights).shape)
    out_channels = plain_shape[0]
    _declare_shapes(startup, weights, channels)
    for op in startup.ops:
        fills_channels = bool(set(op.output_arg_names) & set(channels))
        if fills_channels:
            op.desc._set_attr("shape", [1, 1, 1, out_channels])

    drawing_index = writers(startup)[weights][0]
    plain_weights = startup.create_var(name=f"{weights}.oihw", dtype="float32", shape=plain_shape)
    startup.ops[drawing_index].desc._rename_output(weights, plain_weights.name)
    unused_shape = startup.create_var(name=f"{weights}.shape", dtype="float32")  # transpose2 demands it
    outputs = {"Out": [weights], "XShape": [unused_shape.name]}
    to_ohwi = [0, 2, 3, 1]
    insert(startup, drawing_index + 1, "transpose2", {"X": [plain_weights.name]}, outputs, axis=to_ohwi, op_role=0)
    startup._sync_with_cpp()


# ---- values that leave the program or enter it


def stored_otherwise(main: static.Program) -> set[str]:
    """Return the names of the tensors whose memory layout differs from that of the network without units.

    These are the weights and statistics that `resnet_unit` operators read, and the optimizer's state for those weights.
    Where a unit reads a copy that a `cast` makes of its weights (AMP O1), the weights are named and not the copy.
    """
    block_ops = main.global_block().ops
    cast_from = {op.output("Out")[0]: op.input("X")[0] for op in block_ops if op.type == "cast"}
    names: set[str] = set()
    for op in block_ops:
        if op.type == UNIT:
            for name in operands(op, *_SLOTS_OF_OTHER_LAYOUT):
                names.add(cast_from.get(name, name))
    states: set[str] = set()
    for op in block_ops:
        if op.type in ALL_UPDATES:
            states |= _states_of(op, names)
    return names | states


def _states_of(update: Operator, parameters: set[str]) -> set[str]:
    """Return the names of the state that an update operator keeps for those of its parameters that are in `parameters`.

    A parameter has a velocity and, where it is in half precision, an FP32 master.
    """
    states: set[str] = set()
    for slot in ("Velocity", "MasterParam"):
        held = operands(update, slot)  # one for each parameter, or none at all: an update in FP32 has no masters
        for parameter, state in zip(update.input("Param"), held, strict=False):
            if parameter in parameters:
                states.add(state)
    return states


def plain(value: Array) -> Array:
    """Convert a unit's stored value to the plain network's layout: [O, I, H, W] or [C]."""
    if value.shape[:3] == (1, 1, 1):
        return value.reshape(-1)
    return np.ascontiguousarray(value.transpose(0, 3, 1, 2))


def stored(value: Array) -> Array:
    """Convert a value of the plain network to a unit's layout: [O, H, W, I] or [1, 1, 1, C]."""
    if value.ndim == 1:
        return value.reshape(1, 1, 1, -1)
    return np.ascontiguousarray(value.transpose(0, 2, 3, 1))
