"""Gradients by fewer or cheaper operators than Paddle makes."""

import math
from typing import Any

from paddle import static

from program.ops import BACKWARD, EMPTY, operands, readers, writers
from program.passes.edit import Step, insert_all, rewrite

IMAGE_TO_CHANNELS = 1.5  # `convolve_gradients`: at 18 channels of 32 x 32 pixels it gains, at 72 of 8 x 8 it loses


def simplify_sums(main: static.Program) -> None:
    """Sums of tensors of one shape without what nobody needs: their gradients are one variable, not a copy each.

    The gradient of an addition is that of its sum, so its operator goes. Paddle's fused add + relu also writes the sum
    before the relu, and its gradient reads an addend and writes the same tensor twice: `relu_grad` serves, and of 9
    tensors moved 6 are left. Must run after the gradients exist and before anything renames them.
    """
    block = main.global_block()
    _leave_out_sums(block)
    written, read = writers(block), readers(block)
    joined: dict[str, str] = {}  # name of a variable -> that of the one in its place

    def joins(index: int, names: list[str]) -> str:
        """The one variable in the place of those that are equal after this operator; empty if there must be several."""
        names = [_last(joined, name) for name in names]
        if len({(block.var(name).shape, block.var(name).dtype) for name in names}) > 1:
            return ""
        changed = [name for name in names if written[name][-1] > index]  # an accumulation into it
        keep = changed[0] if changed else names[0]
        first_change = min((i for i in written[keep] if i > index), default=len(block.ops))
        dropped = [name for name in names if name != keep]
        if len(changed) > 1 or any(i >= first_change for name in dropped for i in read.get(name, [])):
            return ""
        for name in dropped:
            joined[name] = keep
            written[keep] = sorted(written[keep] + written[name])
            read[keep] = read.get(keep, []) + read.get(name, [])
        return keep

    done: dict[Any, str] = {}  # operator -> its gradients' one variable
    for index, op in enumerate(block.ops):
        gradients = operands(op, "X@GRAD", "Y@GRAD")
        if len(gradients) < 2 or EMPTY in gradients:
            continue
        if op.type == "elementwise_add_grad":
            done[op] = joins(index, op.input("Out@GRAD") + gradients)
        elif op.type == "fused_elemwise_add_activation_grad" and op.attr("functor_list")[0] == "relu_grad":
            done[op] = joins(index, gradients)

    def instead(op: Any) -> list[Step] | None:
        if not done.get(op):
            return None
        inputs = {slot: operands(op, slot) for slot in ("Out", "Out@GRAD")}
        return [] if op.type == "elementwise_add_grad" else [("relu_grad", inputs, {"X@GRAD": [done[op]]}, {})]

    rewrite(main, instead)
    for op in block.ops:
        for name in joined.keys() & {*op.input_arg_names, *op.output_arg_names}:
            op.desc._rename_input(name, _last(joined, name))
            op.desc._rename_output(name, _last(joined, name))
    block._sync_with_cpp()


def _leave_out_sums(block: Any) -> None:
    """Has no fused add + relu of one shape write the sum before the relu."""
    for op in block.ops:
        if op.type == "fused_elemwise_add_activation" and op.attr("functor_list") == ["relu", "elementwise_add"]:
            x, y = block.var(op.input("X")[0]), block.var(op.input("Y")[0])
            if x.shape == y.shape:
                op.desc._set_attr("save_intermediate_out", False)
                op.desc.set_output("IntermediateOut", [])


def _last(joined: dict[str, str], name: str) -> str:
    while name in joined:
        name = joined[name]
    return name


def spread_mean(main: static.Program) -> int:
    """The gradient of an average pooling over the whole image from the gradient alone; returns how many it changed.

    Paddle's operator also reads the image and its mean, of which the gradient does not depend. Each place of it is
    the mean's gradient / (height x width): the average, padding counted, over a window of the image's size that holds
    that one value wherever it stands. Must run after the gradients exist.
    """
    block = main.global_block()

    def instead(op: Any) -> list[Step] | None:
        if op.type != "pool2d_grad" or op.attr("pooling_type") != "avg":
            return None
        first = op.attr("data_format").index("H")
        sides, mean = (block.var(op.input(slot)[0]).shape[first : first + 2] for slot in ("X", "Out"))
        attrs = {name: op.attr(name) for name in ("pooling_type", "data_format", "use_cudnn")}
        attrs |= {"ksize": list(sides), "strides": [1, 1], "paddings": [n - 1 for n in sides], "exclusive": False}
        spread: Step = ("pool2d", {"X": op.input("Out@GRAD")}, {"Out": op.output("X@GRAD")}, attrs)
        return [spread] if mean == (1, 1) else None

    return rewrite(main, instead)


def convolve_gradients(main: static.Program) -> None:
    """Gradients by the input of 3x3 convolutions as convolutions with the turned weights.

    Paddle's CPU kernel adds up the columns of its matrix product value by value, 12 % of HRNet's step. Only where the
    image is large against the weights, which are turned at each step.
    """
    block = main.global_block()
    for index, op in reversed(list(enumerate(block.ops))):
        if op.type != "conv2d_grad" or not op.output("Input@GRAD") or op.attr("data_format") != "NCHW":
            continue
        weights, gradient = block.var(op.input("Filter")[0]), block.var(op.output("Input@GRAD")[0])
        same = op.attr("padding_algorithm") == "SAME" or list(op.attr("paddings")) == [1, 1]
        plain = [*op.attr("strides"), *op.attr("dilations"), op.attr("groups")] == [1] * 5
        image = block.var(op.input("Input")[0])
        few_weights = weights.shape[0] < IMAGE_TO_CHANNELS * math.sqrt(math.prod(image.shape[2:]))
        if tuple(weights.shape[2:]) != (3, 3) or not (same and plain and few_weights):
            continue
        sizes = [weights.shape[1], weights.shape[0], 3, 3]
        turned, flipped = (
            block.create_var(name=f"{gradient.name}.{name}", shape=sizes, dtype=weights.dtype).name
            for name in ("turned", "flipped")
        )
        shape = block.create_var(name=f"{gradient.name}.shape", dtype=weights.dtype).name
        attrs = {name: op.attr(name) for name in ("strides", "paddings", "padding_algorithm", "dilations", "groups")}
        steps: list[Step] = [
            ("transpose2", {"X": [weights.name]}, {"Out": [turned], "XShape": [shape]}, {"axis": [1, 0, 2, 3]}),
            ("flip", {"X": [turned]}, {"Out": [flipped]}, {"axis": [2, 3]}),
            (
                "conv2d",
                {"Input": op.input("Output@GRAD"), "Filter": [flipped]},
                {"Output": [gradient.name]},
                attrs | {"data_format": "NCHW"},
            ),
        ]
        op.desc.set_output("Input@GRAD", [])
        insert_all(block, index, steps, op_role=BACKWARD)
    block._sync_with_cpp()
