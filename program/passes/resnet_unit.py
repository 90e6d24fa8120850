"""Convolution, batch norm, addend and relu as Paddle's one operator `resnet_unit`, in FP16 and NHWC.

    y = relu(bn(x * FilterX) [+ z or + bn(z * FilterZ)])

cuDNN's convolution sums up the statistics of what it writes, a second kernel normalizes. The operator takes filters as
[O, H, W, I] and what belongs to a channel as [1, 1, 1, C]. So these variables lie otherwise in memory than the plain
network's: `plain` and `stored` convert a value that leaves the program or enters it, and the start-up program turns
what the plain network's initializers draw.
"""

from typing import Any

import numpy as np
from paddle import static

from program.ops import ALL_UPDATES, operands, readers
from program.passes.edit import insert

UNIT = "resnet_unit"
# Of each side, X and Z: a slot of the unit, and whose place it takes, a slot of conv2d or batch_norm.
_INPUTS = {"": "Input", "Filter": "Filter", "Scale": "Scale", "Bias": "Bias", "Mean": "Mean", "Var": "Variance"}
_OUTPUTS = {"Conv": "Output", "SavedMean": "SavedMean", "SavedInvstd": "SavedVariance"}
_OUTPUTS |= {"RunningMean": "Mean", "RunningVar": "Variance"}


def fits(op: Any, block: Any) -> bool:
    """Whether it is a convolution that cuDNN's fused operations take (by NormConvolutionArgs of Paddle's sources)."""
    if op.type != "conv2d" or op.attr("data_format") != "NHWC" or op.attr("groups") != 1:
        return False
    out, into, *kernel = block.var(op.input("Filter")[0]).shape
    side = kernel[0]
    return (
        kernel in ([1, 1], [3, 3])
        and list(op.attr("paddings")) == [(side - 1) // 2] * 2
        and list(op.attr("dilations")) == [1, 1]
        and len({*op.attr("strides")}) == 1
        and out % 32 == 0
        and into % 8 == 0
    )


def fuse(main: static.Program, startup: static.Program | None = None) -> None:
    """Makes units of the blocks of a forward program. An evaluation has no start-up program."""
    block = main.global_block()
    read, writer = readers(block), {name: op for op in block.ops for name in op.output_arg_names}

    def maker(name: str, kind: str) -> Any:
        """The operator that writes it for one reader alone."""
        op = writer.get(name)
        return op if op is not None and op.type == kind and len(read[name]) == 1 else None

    def side(name: str) -> tuple[Any, ...]:
        """The convolution and the batch norm that write it."""
        norm = maker(name, "batch_norm")
        convolution = norm and maker(norm.input("X")[0], "conv2d")
        return (convolution, norm) if convolution and fits(convolution, block) else ()

    for relu in [op for op in block.ops if op.type == "relu"]:
        add = maker(relu.input("X")[0], "elementwise_add")
        x = side((add or relu).input("X")[0])
        if not x:
            continue
        z = side(add.input("Y")[0]) if add else ()
        if z and [*z[0].attr("paddings")] != [*x[0].attr("paddings")]:
            z = ()  # its kernel pads both alike
        _insert(block, x, z, add, relu)
        for convolution, norm in filter(None, (x, z)):
            channels = operands(norm, "Scale", "Bias", "Mean", "Variance")
            _store(block, startup, convolution.input("Filter")[0], channels)
        for op in filter(None, (*x, *z, add, relu)):
            for name in op.output_arg_names:
                writer.pop(name, None)
            block._remove_op(block.ops.index(op), sync=False)
    block._sync_with_cpp()
    for op in block.ops:
        if op.type == UNIT:
            op.desc.infer_shape(block.desc)


def _insert(block: Any, x: tuple[Any, ...], z: tuple[Any, ...], add: Any, relu: Any) -> None:
    mask = block.create_var(name=f"{relu.output('Out')[0]}.mask", dtype="int32", stop_gradient=True)
    inputs: dict[str, list[str]] = {}
    outputs = {"Y": relu.output("Out"), "BitMask": [mask.name]}
    for letter, side in (("X", x), ("Z", z)):  # without one the slots are empty: the gradient asks for each by name
        for slot, theirs in _INPUTS.items():
            inputs[f"{slot}{letter}"] = [name for op in side for name in operands(op, theirs)]
        for slot, theirs in _OUTPUTS.items():
            outputs[f"{slot}{letter}"] = [name for op in side for name in operands(op, theirs)]
    if add and not z:
        inputs["Z"] = add.input("Y")
    convolution, norm = x
    attrs = {name: norm.attr(name) for name in ("momentum", "epsilon", "is_test", "use_global_stats")}
    attrs |= {"stride": convolution.attr("strides")[0], "padding": convolution.attr("paddings")[0]}
    if z:
        attrs["stride_z"] = z[0].attr("strides")[0]
    attrs |= {"data_format": "NHWC", "fuse_add": bool(add), "has_shortcut": bool(z), "act_type": "relu"}
    scope = {"op_namescope": relu.attr("op_namescope"), "op_role": relu.attr("op_role")}  # says what runs in half
    unit = insert(block, block.ops.index(relu), UNIT, inputs, outputs, **attrs, **scope)
    for name in unit.output_arg_names:
        block.var(name).op = unit  # AMP asks variables for their operators


def _store(block: Any, startup: static.Program | None, weights: str, channels: list[str]) -> None:
    """Declares a convolution's variables as the operator takes them, and has them begin with the same values."""
    begin = startup.global_block() if startup else None
    for of in filter(None, (block, begin)):
        out, into, height, width = of.var(weights).shape
        of.var(weights).desc.set_shape([out, height, width, into])
        for name in channels:
            of.var(name).desc.set_shape([1, 1, 1, out])
    if begin is None:
        return
    for op in begin.ops:
        if set(op.output_arg_names) & set(channels):
            op.desc._set_attr("shape", [1, 1, 1, out])
    index, drawn = next((i, op) for i, op in enumerate(begin.ops) if weights in op.output_arg_names)
    straight = begin.create_var(name=f"{weights}.oihw", dtype="float32", shape=[out, into, height, width])
    drawn.desc._rename_output(weights, straight.name)
    shape = begin.create_var(name=f"{weights}.shape", dtype="float32")
    turned = {"Out": [weights], "XShape": [shape.name]}
    insert(begin, index + 1, "transpose2", {"X": [straight.name]}, turned, axis=[0, 2, 3, 1], op_role=0)
    begin._sync_with_cpp()


# ---- values that leave the program or enter it


def stored_otherwise(main: static.Program) -> set[str]:
    """Names of what lies otherwise in memory than in the plain network: weights, statistics, optimizer state."""
    found: set[str] = set()
    wide: dict[str, str] = {}  # a filter in half precision -> the parameter that it is rounded from
    for op in main.global_block().ops:
        if op.type == "cast":
            wide[op.output("Out")[0]] = op.input("X")[0]
        elif op.type == UNIT:
            names = operands(op, *(f"{slot}{side}" for slot in _INPUTS if slot for side in "XZ"))
            found.update(wide.get(name, name) for name in names)
        elif op.type in ALL_UPDATES:
            for slot in ("Velocity", "MasterParam"):
                pairs = zip(op.input("Param"), operands(op, slot), strict=False)  # no masters of FP32 parameters
                found.update(name for parameter, name in pairs if parameter in found)
    return found


def plain(value: np.ndarray) -> np.ndarray:
    """A value of theirs as the plain network has it: [O, I, H, W] or [C]."""
    if value.shape[:3] == (1, 1, 1):
        return value.reshape(-1)
    return np.ascontiguousarray(value.transpose(0, 3, 1, 2))


def stored(value: np.ndarray) -> np.ndarray:
    """A value of the plain network as the operator takes it: [O, H, W, I] or [1, 1, 1, C]."""
    return value.reshape(1, 1, 1, -1) if value.ndim == 1 else np.ascontiguousarray(value.transpose(0, 2, 3, 1))
