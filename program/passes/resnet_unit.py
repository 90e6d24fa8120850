"""Convolution, batch norm, addend and relu as Paddle's one operator `resnet_unit`, in FP16 and NHWC.

    y = relu(bn(x * FilterX) [+ z or + bn(z * FilterZ)])

cuDNN's convolution sums up the statistics of what it writes, a second kernel normalizes. The operator takes filters as
[O, H, W, I] and what belongs to a channel as [1, 1, 1, C]. So these variables lie otherwise in memory than the plain
network's: `plain` and `stored` convert a value that leaves the program or enters it, and the start-up program turns
what the plain network's initializers draw.
"""

import itertools
from typing import NamedTuple

import numpy as np
from paddle import static
from paddle.base.framework import Block, Operator

from program.arrays import Array
from program.ops import ALL_UPDATES, operands, readers
from program.passes.edit import Slots, insert

UNIT = "resnet_unit"
# Slots of the unit without the letter of their side, X or Z: the slots of conv2d or batch_norm whose place they take.
_INPUTS = {"": "Input", "Filter": "Filter", "Scale": "Scale", "Bias": "Bias", "Mean": "Mean", "Var": "Variance"}
_OUTPUTS = {
    "Conv": "Output",
    "SavedMean": "SavedMean",
    "SavedInvstd": "SavedVariance",
    "RunningMean": "Mean",
    "RunningVar": "Variance",
}
# Slots of what lies otherwise in memory than in the plain network.
_STORED = [f"{slot}{side}" for slot, side in itertools.product(("Filter", "Scale", "Bias", "Mean", "Var"), "XZ")]


class _Side(NamedTuple):
    """A convolution and the batch norm that alone reads it."""

    convolution: Operator
    norm: Operator


class _Pattern(NamedTuple):
    """The operators that become one unit."""

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


def fits(op: Operator, block: Block) -> bool:
    """Tell whether it is a convolution that a unit takes (NormConvolutionArgs of Paddle's sources)."""
    if op.type != "conv2d" or op.attr("data_format") != "NHWC" or op.attr("groups") != 1:
        return False
    out_channels, in_channels, *kernel = block.var(op.input("Filter")[0]).shape
    side = kernel[0]
    return (
        kernel in ([1, 1], [3, 3])
        and list(op.attr("paddings")) == [(side - 1) // 2] * 2
        and list(op.attr("dilations")) == [1, 1]
        and len({*op.attr("strides")}) == 1
        and out_channels % 32 == 0
        and in_channels % 8 == 0
    )


def fuse(main: static.Program, startup: static.Program | None = None) -> None:
    """Turn the blocks of a forward program into units. An evaluation has no start-up program."""
    block = main.global_block()
    matcher = _Matcher(block)
    for relu in [op for op in block.ops if op.type == "relu"]:
        pattern = matcher.match(relu)
        if pattern is None:
            continue
        _insert(block, pattern)
        for side in pattern.sides:
            channels = operands(side.norm, "Scale", "Bias", "Mean", "Variance")
            weights = side.convolution.input("Filter")[0]
            _declare(block, weights, channels)
            if startup is not None:
                _turn_first_values(startup.global_block(), weights, channels)
        matcher.forget(pattern)
        for op in pattern.operators:
            block._remove_op(block.ops.index(op), sync=False)
    block._sync_with_cpp()

    for op in block.ops:
        if op.type == UNIT:
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
        if convolution is None or not fits(convolution, self._block):
            return None
        return _Side(convolution, norm)


def _insert(block: Block, pattern: _Pattern) -> None:
    """Insert the unit before the relu of its pattern."""
    x, z, add, relu = pattern
    mask = block.create_var(name=f"{relu.output('Out')[0]}.mask", dtype="int32", stop_gradient=True)
    inputs: Slots = {}
    outputs: Slots = {"Y": relu.output("Out"), "BitMask": [mask.name]}
    for letter, side in (("X", x), ("Z", z)):
        for slot, replaced_slot in _INPUTS.items():
            inputs[f"{slot}{letter}"] = _side_operands(side, replaced_slot)
        for slot, replaced_slot in _OUTPUTS.items():
            outputs[f"{slot}{letter}"] = _side_operands(side, replaced_slot)
    if add is not None and z is None:
        inputs["Z"] = add.input("Y")

    attrs = {name: x.norm.attr(name) for name in ("momentum", "epsilon", "is_test", "use_global_stats")}
    attrs["stride"] = x.convolution.attr("strides")[0]
    attrs["padding"] = x.convolution.attr("paddings")[0]
    if z is not None:
        attrs["stride_z"] = z.convolution.attr("strides")[0]
    attrs |= {"data_format": "NHWC", "fuse_add": add is not None, "has_shortcut": z is not None, "act_type": "relu"}
    scope = {"op_namescope": relu.attr("op_namescope"), "op_role": relu.attr("op_role")}  # says what runs in half
    unit = insert(block, block.ops.index(relu), UNIT, inputs, outputs, **attrs, **scope)
    for name in unit.output_arg_names:
        block.var(name).op = unit  # AMP asks variables for their operators


def _side_operands(side: _Side | None, slot: str) -> list[str]:
    """Return what a slot of the convolution or the batch norm holds; a side that is not there has empty slots.

    The unit's gradient asks for each slot by name.
    """
    if side is None:
        return []
    return [*operands(side.convolution, slot), *operands(side.norm, slot)]


def _declare(block: Block, weights: str, channels: list[str]) -> None:
    """Declare the shapes that the operator takes: weights as [O, H, W, I], each of `channels` as [1, 1, 1, C]."""
    out_channels, in_channels, height, width = block.var(weights).shape
    block.var(weights).desc.set_shape([out_channels, height, width, in_channels])
    for name in channels:
        block.var(name).desc.set_shape([1, 1, 1, out_channels])


def _turn_first_values(startup: Block, weights: str, channels: list[str]) -> None:
    """Have the start-up program draw the plain network's first values, and turn them into the operator's layout."""
    plain_shape = list(startup.var(weights).shape)
    _declare(startup, weights, channels)
    for op in startup.ops:
        if set(op.output_arg_names) & set(channels):
            op.desc._set_attr("shape", [1, 1, 1, plain_shape[0]])

    initializers = [index for index, op in enumerate(startup.ops) if weights in op.output_arg_names]
    index = initializers[0]
    plain_weights = startup.create_var(name=f"{weights}.oihw", dtype="float32", shape=plain_shape)
    startup.ops[index].desc._rename_output(weights, plain_weights.name)
    shape = startup.create_var(name=f"{weights}.shape", dtype="float32")
    turned = {"Out": [weights], "XShape": [shape.name]}
    insert(startup, index + 1, "transpose2", {"X": [plain_weights.name]}, turned, axis=[0, 2, 3, 1], op_role=0)
    startup._sync_with_cpp()


# ---- values that leave the program or enter it


def stored_otherwise(main: static.Program) -> set[str]:
    """Return the names of tensors whose memory layout differs from the unfused network's.

    These are the weights and statistics of units, and their optimizer state.
    """
    names: set[str] = set()
    cast_from: dict[str, str] = {}  # a filter in half precision: the parameter that it is rounded from
    for op in main.global_block().ops:
        if op.type == "cast":
            cast_from[op.output("Out")[0]] = op.input("X")[0]
        elif op.type == UNIT:
            for name in operands(op, *_STORED):
                names.add(cast_from.get(name, name))
        elif op.type in ALL_UPDATES:
            for slot in ("Velocity", "MasterParam"):
                states = operands(op, slot)  # no masters of FP32 parameters
                for parameter, state in zip(op.input("Param"), states, strict=False):
                    if parameter in names:
                        names.add(state)
    return names


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
