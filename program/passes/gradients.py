"""Gradients by fewer or cheaper operators than Paddle makes."""

import math

from paddle import static
from paddle.base.framework import Block, Operator

from program.ops import BACKWARD, EMPTY, operands, readers, writers
from program.passes.edit import Step, insert_all, rewrite

IMAGE_TO_CHANNELS = 1.5  # `convolve_gradients`: at 18 channels of 32 x 32 pixels it gains, at 72 of 8 x 8 it loses


def simplify_sums(main: static.Program) -> None:
    """Let gradients of sums of equal shape share one variable instead of a copy each.

    The gradient of an addition is that of its sum, so its operator goes. Paddle's fused add + relu also writes the sum
    before the relu, and its gradient reads an addend and writes the same tensor twice: `relu_grad` serves, and of 9
    tensors moved 6 are left. Must run after the gradients exist and before anything renames them.
    """
    block = main.global_block()
    _leave_out_sums(block)
    joined = _Joined(block)
    shared: dict[Operator, str] = {}  # operator: the one variable of all its gradients
    for index, op in enumerate(block.ops):
        gradients = operands(op, "X@GRAD", "Y@GRAD")
        if len(gradients) < 2 or EMPTY in gradients:
            continue
        if op.type == "elementwise_add_grad":
            shared[op] = joined.join(index, op.input("Out@GRAD") + gradients)
        elif op.type == "fused_elemwise_add_activation_grad" and op.attr("functor_list")[0] == "relu_grad":
            shared[op] = joined.join(index, gradients)

    def substitute(op: Operator) -> list[Step] | None:
        gradient = shared.get(op)
        if not gradient:
            return None
        if op.type == "elementwise_add_grad":
            return []
        inputs = {slot: operands(op, slot) for slot in ("Out", "Out@GRAD")}
        return [Step("relu_grad", inputs, {"X@GRAD": [gradient]}, {})]

    rewrite(main, substitute)
    joined.rename()
    block._sync_with_cpp()


def _leave_out_sums(block: Block) -> None:
    """Stop fused add + relu operators with addends of one shape from writing the sum before the relu."""
    for op in block.ops:
        if op.type == "fused_elemwise_add_activation" and op.attr("functor_list") == ["relu", "elementwise_add"]:
            x = block.var(op.input("X")[0])
            y = block.var(op.input("Y")[0])
            if x.shape == y.shape:
                op.desc._set_attr("save_intermediate_out", False)
                op.desc.set_output("IntermediateOut", [])


class _Joined:
    """Equal variables of a block that become one."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._written = writers(block)
        self._read = readers(block)
        self._substitutes: dict[str, str] = {}  # name of a variable: the one that takes its place

    def join(self, index: int, names: list[str]) -> str:
        """Join variables that are equal after operator `index`; return the one that stays, empty where none may.

        At most one of them may be written again later (a sum is accumulated in it). It stays, and the others must not
        be read from that write on.
        """
        names = [self._last(name) for name in names]
        kinds = {(self._block.var(name).shape, self._block.var(name).dtype) for name in names}
        if len(kinds) > 1:
            return ""

        changed = [name for name in names if self._written[name][-1] > index]
        if len(changed) > 1:
            return ""
        kept = changed[0] if changed else names[0]
        dropped = [name for name in names if name != kept]
        first_change = min((i for i in self._written[kept] if i > index), default=len(self._block.ops))
        for name in dropped:
            if any(reader >= first_change for reader in self._read.get(name, [])):
                return ""

        for name in dropped:
            self._substitutes[name] = kept
            self._written[kept] = sorted(self._written[kept] + self._written[name])
            self._read[kept] = self._read.get(kept, []) + self._read.get(name, [])
        return kept

    def rename(self) -> None:
        """Have every operator of the block use the variables that stay."""
        for op in self._block.ops:
            for name in self._substitutes.keys() & {*op.input_arg_names, *op.output_arg_names}:
                kept = self._last(name)
                op.desc._rename_input(name, kept)
                op.desc._rename_output(name, kept)

    def _last(self, name: str) -> str:
        while name in self._substitutes:
            name = self._substitutes[name]
        return name


def spread_mean(main: static.Program) -> int:
    """Compute the gradient of an average pooling over the whole image from the incoming gradient alone.

    Paddle's operator also reads the image and its mean, on which the gradient does not depend. Each place of it is
    the mean's gradient / (height x width): the average, padding counted, over a window of the image's size that holds
    that one value wherever it stands. Must run after the gradients exist. Returns how many operators it changed.
    """
    block = main.global_block()

    def substitute(op: Operator) -> list[Step] | None:
        if op.type != "pool2d_grad" or op.attr("pooling_type") != "avg":
            return None
        height = op.attr("data_format").index("H")  # position of the two sides in a shape
        image_sides = block.var(op.input("X")[0]).shape[height : height + 2]
        mean_sides = block.var(op.input("Out")[0]).shape[height : height + 2]
        if mean_sides != (1, 1):
            return None
        attrs = {name: op.attr(name) for name in ("pooling_type", "data_format", "use_cudnn")}
        attrs["ksize"] = list(image_sides)
        attrs["strides"] = [1, 1]
        attrs["paddings"] = [side - 1 for side in image_sides]
        attrs["exclusive"] = False
        return [Step("pool2d", {"X": op.input("Out@GRAD")}, {"Out": op.output("X@GRAD")}, attrs)]

    return rewrite(main, substitute)


def convolve_gradients(main: static.Program) -> None:
    """Compute input gradients of 3x3 convolutions as convolutions with the turned weights, on CPUs.

    Paddle's CPU kernel adds up the columns of its matrix product value by value, 12 % of HRNet's step. Only where the
    image is large against the weights, which are turned at each step.
    """
    block = main.global_block()
    for index, op in reversed(list(enumerate(block.ops))):
        if not _gains_by_turning(block, op):
            continue
        weights = block.var(op.input("Filter")[0])
        (gradient,) = op.output("Input@GRAD")
        out_channels, in_channels, *kernel = weights.shape
        turned_shape = [in_channels, out_channels, *kernel]
        turned = block.create_var(name=f"{gradient}.turned", shape=turned_shape, dtype=weights.dtype).name
        flipped = block.create_var(name=f"{gradient}.flipped", shape=turned_shape, dtype=weights.dtype).name
        shape = block.create_var(name=f"{gradient}.shape", dtype=weights.dtype).name

        attrs = {name: op.attr(name) for name in ("strides", "paddings", "padding_algorithm", "dilations", "groups")}
        attrs["data_format"] = "NCHW"
        convolved = {"Input": op.input("Output@GRAD"), "Filter": [flipped]}
        steps = [
            Step("transpose2", {"X": [weights.name]}, {"Out": [turned], "XShape": [shape]}, {"axis": [1, 0, 2, 3]}),
            Step("flip", {"X": [turned]}, {"Out": [flipped]}, {"axis": [2, 3]}),
            Step("conv2d", convolved, {"Output": [gradient]}, attrs),
        ]
        op.desc.set_output("Input@GRAD", [])
        insert_all(block, index, steps, op_role=BACKWARD)
    block._sync_with_cpp()


def _gains_by_turning(block: Block, op: Operator) -> bool:
    """Tell whether it is the gradient of a plain 3x3 convolution in NCHW whose image is large against its weights."""
    if op.type != "conv2d_grad" or not op.output("Input@GRAD") or op.attr("data_format") != "NCHW":
        return False
    keeps_size = op.attr("padding_algorithm") == "SAME" or list(op.attr("paddings")) == [1, 1]
    is_plain = [*op.attr("strides"), *op.attr("dilations"), op.attr("groups")] == [1] * 5
    if not keeps_size or not is_plain:
        return False
    out_channels, _, *kernel = block.var(op.input("Filter")[0]).shape
    image_sides = block.var(op.input("Input")[0]).shape[2:]
    has_large_image: bool = out_channels < IMAGE_TO_CHANNELS * math.sqrt(math.prod(image_sides))
    return kernel == [3, 3] and has_large_image
