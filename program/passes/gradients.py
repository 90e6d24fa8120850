"""Gradients by fewer or cheaper operators than Paddle makes."""

import math

from paddle import static
from paddle.base.framework import Block, Operator

from program.ops import BACKWARD, EMPTY, operands, readers, writers
from program.passes.edit import Step, insert_all, rewrite

# From this many channels for a pixel of an image's side on `convolve_gradients` no longer gains: at 18 channels of
# 32 x 32 pixels it does, at 72 of 8 x 8 it loses.
MOST_CHANNELS_PER_SIDE_PIXEL = 1.5


def simplify_sums(main: static.Program) -> None:
    """Let the gradients of both addends of an addition share one variable instead of a copy each.

    The gradients dx and dy of z = x + y, and of z = relu(x + y), are equal where x and y have one shape. Paddle's
    operators write both all the same. Here dx and dy become one variable, called d:

        before                                                     after
        elementwise_add_grad(dz) -> dx, dy                         nothing: dz is d, too
        fused_elemwise_add_activation(x, y) -> z, x + y            fused_elemwise_add_activation(x, y) -> z
        fused_elemwise_add_activation_grad(z, dz, ...) -> dx, dy   relu_grad(z, dz) -> d

    A gradient operator stays as it is where its variables cannot become one: `_JoinedVariables.join` then returns an
    empty name. Run this after the gradients exist and before another pass renames them.
    """
    block = main.global_block()
    _leave_out_sums(block)  # the x + y above; first, as `joined` notes which operators write each variable
    joined = _JoinedVariables(block)
    # First d is chosen for every operator: `join` goes by the operators' indices, which `rewrite` changes.
    shared_gradients: dict[Operator, str] = {}  # by operator: the name of d; empty if it stays as it is
    for index, op in enumerate(block.ops):
        gradients = operands(op, "X@GRAD", "Y@GRAD")
        if len(gradients) < 2 or EMPTY in gradients:
            continue  # it writes a single gradient, so no copy
        if op.type == "elementwise_add_grad":
            shared_gradients[op] = joined.join(index, op.input("Out@GRAD") + gradients)
        elif _is_gradient_of_add_relu(op):
            shared_gradients[op] = joined.join(index, gradients)

    def substitute(op: Operator) -> list[Step] | None:
        gradient = shared_gradients.get(op)
        if not gradient:
            return None  # the operator stays
        if op.type == "elementwise_add_grad":
            return []  # the operator is removed
        inputs = {slot: operands(op, slot) for slot in ("Out", "Out@GRAD")}
        return [Step("relu_grad", inputs, {"X@GRAD": [gradient]}, {})]

    rewrite(main, substitute)
    joined.rename()  # dx, dy (and dz) to d, in all operators that are left
    block._sync_with_cpp()


def _is_gradient_of_add_relu(op: Operator) -> bool:
    """Tell whether an operator is the gradient of Paddle's fused addition and relu."""
    return bool(op.type == "fused_elemwise_add_activation_grad" and op.attr("functor_list")[0] == "relu_grad")


def _leave_out_sums(block: Block) -> None:
    """Stop fused add + relu operators with addends of one shape from writing the sum before the relu."""
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
        self._written = writers(block)
        self._read = readers(block)
        self._substitutes: dict[str, str] = {}  # name of a variable: the one that takes its place

    def join(self, index: int, names: list[str]) -> str:
        """Decide whether these variables, equal once operator `index` has run, become one; return the one that stays.

        If one of them is written again after `index`, as gradients are summed up in it, that one stays; else the first.
        The decision is only noted: `rename` carries it out.

        Where one variable could not take the place of all, nothing is noted and an empty name is returned:

        - Their shapes or types differ.
        - Two of them are written again after `index`: each would overwrite the other.
        - One is written again, and another one is read by that operator or a later one, which needs the old value.
        """
        names = [self._current_name(name) for name in names]  # earlier joins may have replaced them
        kinds = {(self._block.var(name).shape, self._block.var(name).dtype) for name in names}
        if len(kinds) > 1:
            return ""

        written_again = [name for name in names if self._written[name][-1] > index]
        if len(written_again) > 1:
            return ""
        kept = written_again[0] if written_again else names[0]
        dropped = [name for name in names if name != kept]
        if written_again:
            next_write = min(writer for writer in self._written[kept] if writer > index)
            if any(self._is_read_from(next_write, name) for name in dropped):
                return ""

        # From now on `kept` is written and read where each of them was, for the decisions on further operators.
        for name in dropped:
            self._substitutes[name] = kept
            self._written[kept] = sorted(self._written[kept] + self._written[name])
            self._read[kept] = self._read.get(kept, []) + self._read.get(name, [])
        return kept

    def _is_read_from(self, index: int, name: str) -> bool:
        """Tell whether the operator at `index` or a later one reads a variable."""
        return any(reader >= index for reader in self._read.get(name, []))

    def rename(self) -> None:
        """Have every operator of the block use the variables that stay, in place of those joined with them."""
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


def spread_mean(main: static.Program) -> int:
    """Replace the gradient of each global average pooling by an operator that reads the incoming gradient alone.

    A global average pooling takes the mean over an image, so every pixel's gradient is the mean's gradient / (height x
    width). Paddle's `pool2d_grad` also reads the image and its mean, which that does not need. It is replaced by a
    forward average pooling of the mean's gradient, an image of one pixel. This is padded with zeros so far that each
    window, as large as the image, covers the one pixel and otherwise zeros.

    Run this after the gradients exist. Returns how many operators were replaced.
    """
    block = main.global_block()

    def substitute(op: Operator) -> list[Step] | None:
        if op.type != "pool2d_grad" or op.attr("pooling_type") != "avg":
            return None
        height_axis = op.attr("data_format").index("H")  # the width's axis is the next one
        image_sides = block.var(op.input("X")[0]).shape[height_axis : height_axis + 2]
        mean_sides = block.var(op.input("Out")[0]).shape[height_axis : height_axis + 2]
        if mean_sides != (1, 1):
            return None  # not a pooling over the whole image
        attrs = {name: op.attr(name) for name in ("pooling_type", "data_format", "use_cudnn")}
        attrs["ksize"] = list(image_sides)
        attrs["strides"] = [1, 1]
        attrs["paddings"] = [side - 1 for side in image_sides]
        attrs["exclusive"] = False  # the padding counts in the average
        return [Step("pool2d", {"X": op.input("Out@GRAD")}, {"Out": op.output("X@GRAD")}, attrs)]

    return rewrite(main, substitute)


def convolve_gradients(main: static.Program) -> None:
    """Have the input gradients of 3x3 convolutions computed by forward convolutions, which are faster on CPUs.

    The gradient by the input of a convolution at stride 1 is the output's gradient, convolved with the same weights
    rotated by 180 degrees and with their input and output channels exchanged. Each `conv2d_grad` that gains by this is
    left with the gradient by its weights alone, and the operators that turn the weights and convolve are inserted
    before it.

    Paddle's own CPU kernel adds up the columns of its matrix product value by value, which takes 12 % of HRNet's step.
    """
    block = main.global_block()
    # From the last operator to the first, so that an insertion moves no operator that is still to come.
    for index, op in reversed(list(enumerate(block.ops))):
        if _gains_by_convolving(block, op):
            steps = _input_gradient_steps(block, op)
            op.desc.set_output("Input@GRAD", [])
            insert_all(block, index, steps, op_role=BACKWARD)
    block._sync_with_cpp()


def _gains_by_convolving(block: Block, op: Operator) -> bool:
    """Tell whether an operator is a convolution's gradient that `convolve_gradients` makes faster.

    It must compute the input gradient of a 3x3 convolution in NCHW, of stride 1, undilated, in one group, and padded
    to keep the image's size. And the image must be large against the number of channels: the weights are turned anew
    at each step, which a small image does not repay.
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
    mean_side = math.sqrt(math.prod(image_sides))
    return bool(out_channels < MOST_CHANNELS_PER_SIDE_PIXEL * mean_side)


def _input_gradient_steps(block: Block, op: Operator) -> list[Step]:
    """Return the operators that compute the input gradient of the `conv2d_grad` `op` by a forward convolution.

    They exchange the channels of the weights, from [O, I, 3, 3] to [I, O, 3, 3], flip both sides of each kernel (a
    rotation by 180 degrees), and convolve the output's gradient with the result.
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
    attrs = {name: op.attr(name) for name in ("strides", "paddings", "padding_algorithm", "dilations", "groups")}
    attrs["data_format"] = "NCHW"
    return [
        Step("transpose2", {"X": [weights.name]}, exchange_outputs, {"axis": [1, 0, 2, 3]}),
        Step("flip", {"X": [exchanged]}, {"Out": [rotated]}, {"axis": [2, 3]}),
        Step("conv2d", convolution_inputs, {"Output": [gradient]}, attrs),
    ]
