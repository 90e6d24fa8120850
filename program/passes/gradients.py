"""Gradients by fewer or cheaper operators than Paddle makes."""

import math
from collections.abc import Sequence

from paddle import static
from paddle.base.framework import Block, Operator

from program.ops import BACKWARD, EMPTY, operands, readers, writers
from program.passes.edit import Step, insert_all, rewrite

# `convolve_gradients` gains if a convolution has fewer output channels than this number times the side of its image in
# pixels. 18 channels of 32 x 32 pixels gain (18 < 1.5 * 32), 72 channels of 8 x 8 pixels lose (72 > 1.5 * 8).
MOST_CHANNELS_PER_SIDE_PIXEL = 1.5


def simplify_sums(main: static.Program) -> None:
    """Let the equal gradients of both addends of an addition share one variable.

        before                                                     after
        elementwise_add_grad(dz) -> dx, dy                         removed: dx and dy are dz itself
        fused_elemwise_add_activation_grad(z, dz, ...) -> dx, dy   relu_grad(z, dz) -> dx, which is also dy

    Run this after Paddle has put the gradient operators into the program, and before another pass renames gradients.
    """
    block = main.global_block()
    # Fused add + relu operators no longer write the sum before the relu. `relu_grad` (row 2) does not read it.
    _stop_writing_sums(block)
    # First decide for every gradient operator. Only then change the operators, because this changes their indices.
    joined = _JoinedVariables(block)
    gradient_by_operator = _join_addend_gradients(block, joined)

    def substitute(op: Operator) -> list[Step] | None:
        gradient = gradient_by_operator.get(op)
        if gradient is None:
            return None  # the operator stays
        if op.type == "elementwise_add_grad":
            return []  # the operator is removed (row 1)
        # The operator is replaced (row 2).
        inputs = {slot: operands(op, slot) for slot in ("Out", "Out@GRAD")}
        return [Step("relu_grad", inputs, {"X@GRAD": [gradient]}, {})]

    rewrite(main, substitute)
    joined.rename()  # carries out the decisions in the operators that are left
    block._sync_with_cpp()


def _join_addend_gradients(block: Block, joined: "_JoinedVariables") -> dict[Operator, str | None]:
    """Join, where this is allowed, the equal gradients of each addition into one variable.

    - gradient operator of a plain addition: dx, dy and dz, the gradient of the sum.
    - gradient operator of Paddle's fused addition and relu: dx and dy.

    `joined.join` decides and notes the decision. Returns, by operator, the variable that stays; None if the gradients
    cannot become one.
    """
    gradient_by_operator: dict[Operator, str | None] = {}
    for index, op in enumerate(block.ops):
        addend_gradients = operands(op, "X@GRAD", "Y@GRAD")
        has_both_gradients = len(addend_gradients) == 2 and EMPTY not in addend_gradients
        if not has_both_gradients:
            continue
        if op.type == "elementwise_add_grad":  # dx and dy equal dz, so all three are joined
            gradient_by_operator[op] = joined.join(index, op.input("Out@GRAD") + addend_gradients)
        elif _is_add_relu_gradient(op):  # dx and dy differ from dz, because the relu comes between
            gradient_by_operator[op] = joined.join(index, addend_gradients)
    return gradient_by_operator


def _is_add_relu_gradient(op: Operator) -> bool:
    """Tell whether an operator is the gradient of Paddle's fused addition and relu."""
    return bool(op.type == "fused_elemwise_add_activation_grad" and op.attr("functor_list")[0] == "relu_grad")


def _stop_writing_sums(block: Block) -> None:
    """Have fused add + relu operators, if their addends have one shape, no longer write the sum before the relu."""
    for op in block.ops:
        if op.type == "fused_elemwise_add_activation" and op.attr("functor_list") == ["relu", "elementwise_add"]:
            x = block.var(op.input("X")[0])
            y = block.var(op.input("Y")[0])
            if x.shape == y.shape:
                op.desc._set_attr("save_intermediate_out", False)
                op.desc.set_output("IntermediateOut", [])


class _JoinedVariables:
    """Variables of a block that hold equal values and become one variable."""

    def __init__(self, block: Block) -> None:
        self._block = block
        # Both map a variable to the indices of operators, in order. A variable that stays has also the indices of the
        # variables that were joined to it.
        self._writers = writers(block)
        self._readers = readers(block)
        self._substitutes: dict[str, str] = {}  # name of a variable: the one that takes its place

    def join(self, index: int, names: list[str]) -> str | None:
        """Decide whether these variables can become one. Return the name that stays, or None if they cannot.

        The variables must be equal after the operator at `index` has run. The decision is only noted. `rename` carries
        it out. For `names` [dx, dy]:

        - their shapes or types differ: None.
        - both are written again after `index`: None, because one would overwrite the other.
        - only dx is written again after `index`, and dy is read at or after that write: None, because the reader of dy
          would get the new value.
        - only one is written again after `index`: it stays.
        - neither is written again after `index`: dx stays, the first one.
        """
        names = [self._current_name(name) for name in names]  # earlier joins may have replaced them
        shapes_and_types = {(self._block.var(name).shape, self._block.var(name).dtype) for name in names}
        if len(shapes_and_types) > 1:
            return None

        written_after_index = [name for name in names if max(self._writers[name]) > index]
        if len(written_after_index) > 1:
            return None  # one write would overwrite the other
        kept = written_after_index[0] if written_after_index else names[0]
        dropped = [name for name in names if name != kept]
        if written_after_index:
            # A later reader of a dropped variable would get the new value of the kept one.
            next_write = min(writer for writer in self._writers[kept] if writer > index)
            if any(self._is_read_from(next_write, name) for name in dropped):
                return None

        # Later calls must find under `kept` all writers and readers of the joined variables.
        for name in dropped:
            self._substitutes[name] = kept
            self._writers[kept] = self._writers[kept] + self._writers[name]
            self._readers[kept] = self._readers.get(kept, []) + self._readers.get(name, [])
        return kept

    def _is_read_from(self, index: int, name: str) -> bool:
        """Tell whether the operator at `index` or a later one reads a variable."""
        return any(reader >= index for reader in self._readers.get(name, []))

    def rename(self) -> None:
        """Replace, in every operator of the block, each joined variable by the one that stays."""
        for op in self._block.ops:
            for name in self._substitutes.keys() & {*op.input_arg_names, *op.output_arg_names}:
                kept = self._current_name(name)
                op.desc._rename_input(name, kept)
                op.desc._rename_output(name, kept)

    def _current_name(self, name: str) -> str:
        """Return the variable that stays for the one called `name`, after all joins so far."""
        while name in self._substitutes:
            name = self._substitutes[name]
        return name


def spread_mean_gradients(main: static.Program) -> int:
    """Replace the gradient of each global average pooling by an operator that does not read the image.

    The gradient of each pixel is the mean's gradient / (height x width). Run this after the gradients are added.
    Returns how many operators were replaced.
    """
    block = main.global_block()

    def substitute(op: Operator) -> list[Step] | None:
        if op.type != "pool2d_grad" or op.attr("pooling_type") != "avg":
            return None
        height_axis = op.attr("data_format").index("H")  # the width's axis is the next one
        image_sides = block.var(op.input("X")[0]).shape[height_axis : height_axis + 2]
        mean_sides = block.var(op.input("Out")[0]).shape[height_axis : height_axis + 2]
        is_global = mean_sides == (1, 1)
        if not is_global:
            return None
        return [_spreading_pooling(op, image_sides)]

    return rewrite(main, substitute)


def _spreading_pooling(op: Operator, image_sides: Sequence[int]) -> Step:
    """Return a forward average pooling that computes the same as `op`, the gradient of a global average pooling.

    The input of the forward pooling is the mean's gradient, an image of one pixel. `image_sides` are the height and the
    width of its output, in pixels. For 7 x 7 pixels the padding is 6. Each of the 49 windows covers the one pixel and
    48 zeros, so each average is the mean's gradient / 49.
    """
    attrs = {name: op.attr(name) for name in ("pooling_type", "data_format", "use_cudnn")}
    attrs["ksize"] = list(image_sides)
    attrs["strides"] = [1, 1]
    attrs["paddings"] = [side - 1 for side in image_sides]
    attrs["exclusive"] = False  # averages divide by the whole window, padding included
    return Step("pool2d", {"X": op.input("Out@GRAD")}, {"Out": op.output("X@GRAD")}, attrs)


def convolve_gradients(main: static.Program) -> None:
    """Have the input gradients of 3x3 convolutions computed by forward convolutions, which are faster on CPUs.

    At stride 1 the gradient by the input is a convolution of the output's gradient. Its weights are the same, rotated
    by 180 degrees and with input and output channels exchanged.

    Each `conv2d_grad` that gains by this keeps only the gradient by its weights. New operators before it turn the
    weights and convolve. They replace a CPU kernel of Paddle's that adds up the columns of its matrix product value by
    value. This sum takes 12 % of HRNet's step.
    """
    # Paddle's CPU kernel adds up the columns of its matrix product value by value: 12 % of HRNet's step.
    block = main.global_block()
    # From the last operator to the first, so that an insertion does not move operators that are still to come.
    for index, op in reversed(list(enumerate(block.ops))):
        if _gains_by_convolving(block, op):
            steps = _input_gradient_steps(block, op)
            op.desc.set_output("Input@GRAD", [])  # `conv2d_grad` skips a gradient without a variable
            insert_all(block, index, steps, op_role=BACKWARD)
    block._sync_with_cpp()


def _gains_by_convolving(block: Block, op: Operator) -> bool:
    """Tell whether an operator is a convolution's gradient that `convolve_gradients` makes faster.

    - It must compute the input gradient of a 3x3 convolution in NCHW. The convolution must have stride 1, one group, no
      dilation, and padding that keeps the image's size.
    - The convolution must have fewer output channels than MOST_CHANNELS_PER_SIDE_PIXEL times the image's side in
      pixels. The weights are turned anew at each step. If they are many and the image is small, this costs more than it
      saves.
    """
    if op.type != "conv2d_grad" or not op.output("Input@GRAD") or op.attr("data_format") != "NCHW":
        return False
    out_channels, _, *kernel = block.var(op.input("Filter")[0]).shape
    is_padded_by_one = op.attr("padding_algorithm") == "SAME" or list(op.attr("paddings")) == [1, 1]
    has_stride = list(op.attr("strides")) != [1, 1]
    is_dilated = list(op.attr("dilations")) != [1, 1]
    is_grouped = op.attr("groups") != 1
    if kernel != [3, 3] or not is_padded_by_one or has_stride or is_dilated or is_grouped:
        return False
    image_sides = block.var(op.input("Input")[0]).shape[2:]
    side_pixels = math.sqrt(math.prod(image_sides))  # if it is not a square: the side of a square of equal area
    return bool(out_channels < MOST_CHANNELS_PER_SIDE_PIXEL * side_pixels)


def _input_gradient_steps(block: Block, op: Operator) -> list[Step]:
    """Return the operators that compute the input gradient of the `conv2d_grad` `op` by a forward convolution.

    `op` must be of a 3x3 convolution with stride 1 and padding 1 (`_gains_by_convolving`).

    1. The input and output channels of the weights are exchanged: [O, I, 3, 3] -> [I, O, 3, 3].
    2. Each kernel is rotated by 180 degrees: both of its axes are flipped.
    3. The output's gradient is convolved with the result.
    """
    weights = block.var(op.input("Filter")[0])
    (gradient,) = op.output("Input@GRAD")
    out_channels, in_channels, *kernel = weights.shape
    turned_shape = [in_channels, out_channels, *kernel]
    exchanged = block.create_var(name=f"{gradient}.turned", shape=turned_shape, dtype=weights.dtype).name
    rotated = block.create_var(name=f"{gradient}.flipped", shape=turned_shape, dtype=weights.dtype).name
    unused_shape = block.create_var(name=f"{gradient}.shape", dtype=weights.dtype).name  # transpose2 demands it

    exchange_outputs = {"Out": [exchanged], "XShape": [unused_shape]}
    convolution_inputs = {"Input": op.input("Output@GRAD"), "Filter": [rotated]}
    # Stride and padding stay: at stride 1 a 3x3 convolution with padding 1 keeps the image's size in both directions.
    attrs = {name: op.attr(name) for name in ("strides", "paddings", "padding_algorithm", "dilations", "groups")}
    attrs["data_format"] = "NCHW"
    return [
        # [O, I, 3, 3] -> [I, O, 3, 3]
        Step("transpose2", {"X": [weights.name]}, exchange_outputs, {"axis": [1, 0, 2, 3]}),
        # Both axes of each kernel are flipped: a rotation by 180 degrees.
        Step("flip", {"X": [exchanged]}, {"Out": [rotated]}, {"axis": [2, 3]}),
        Step("conv2d", convolution_inputs, {"Output": [gradient]}, attrs),
    ]
