"""Gradients by fewer or cheaper operators than Paddle makes: of sums, of mean pooling and of convolutions.

dx stands for the gradient of the loss by x, and so on.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from paddle import static
from paddle.base.framework import Block, Operator

from program.ops import BACKWARD, EMPTY, operands, readers, writers
from program.passes.edit import Step, insert_before, rewrite

# `convolve_gradients` changes convolutions of fewer output channels than this number times the side of the image in
# pixels. Its turning of the weights takes longer the more channels there are. On CPUs 18 channels at 32 x 32 pixels
# gain (18 < 1.5 * 32), 72 channels at 8 x 8 pixels lose (72 > 1.5 * 8).
MAX_CHANNELS_PER_SIDE_PIXEL = 1.5


# ---- sums


def simplify_sums(main: static.Program) -> None:
    """Let the equal gradients of a sum share one variable, so that no operator has to copy them.

        z = x + y          before    elementwise_add_grad(dz) -> dx, dy
                           after     no operator: dx and dy are dz itself
        z = relu(x + y)    before    fused_elemwise_add_activation_grad(z, dz, ...) -> dx, dy
                           after     relu_grad(z, dz) -> dx, which is also dy

    Run this after Paddle has added the gradients, and before another pass renames them.

    Args:
        main: Training program with its gradients; changed in place. A gradient operator stays if its gradients cannot
            share a variable without changing a value that another operator reads.
    """
    block = main.global_block()
    sharing = _find_shared_gradients(block)  # changes nothing
    _replace_addition_gradients(main, sharing.gradient_by_operator)
    _rename(block, sharing.kept_by_dropped)
    _drop_unread_sums(block)  # last: of the gradient operators that stay, one may read a sum
    block._sync_with_cpp()


class _Sharing(NamedTuple):
    """Gradients of additions that are to share one variable."""

    gradient_by_operator: dict[Operator, str]  # gradient operator of an addition: the variable that its gradients share
    kept_by_dropped: dict[str, str]  # variable that is given up: the one that takes its place


def _find_shared_gradients(block: Block) -> _Sharing:
    """Find the gradients of additions that are equal and can share one variable; nothing is changed.

    For example, in z = x + y and w = z + v, where nothing else reads z, dw = dz = dv and dz = dx = dy. So all five
    gradients can become one variable.

    Args:
        block: Main block of a training program with its gradients.
    """
    groups = _Groups(block)  # of variables that are to become one; at first each variable is alone in its group
    merged_gradients: dict[Operator, list[str]] = {}
    for index, op in enumerate(block.ops):
        equal_gradients = _equal_gradients(op)  # as ["z@GRAD", "x@GRAD", "y@GRAD"]
        if not equal_gradients:
            continue  # not the gradient operator of an addition
        # Not merged are gradients of different shapes or types, and those that may differ while they are read.
        if groups.merge_if_safe(equal_gradients, index):
            merged_gradients[op] = equal_gradients

    # Only now, because each merge may change which variable the joined groups keep.
    gradient_by_operator = {op: groups.kept(gradients[0]) for op, gradients in merged_gradients.items()}
    return _Sharing(gradient_by_operator, groups.kept_by_dropped())


def _equal_gradients(op: Operator) -> list[str]:
    """Return the names of the gradients that are equal after the gradient operator of an addition has run.

        operator                              addition           gradients that are equal
        elementwise_add_grad                  z = x + y          dz, dx and dy
        fused_elemwise_add_activation_grad    z = relu(x + y)    dx and dy; the relu makes dz another value

    The gradients are equal only if x and y have one shape, which is not checked here. The operator reads dz in its slot
    Out@GRAD, and writes dx and dy to X@GRAD and Y@GRAD.

    Args:
        op: Any operator of a training program.

    Returns:
        The names; empty for any other operator, and if dx or dy is not computed.
    """
    addend_gradients = operands(op, "X@GRAD", "Y@GRAD")
    # EMPTY is the name that Paddle writes for a gradient that is not computed.
    if len(addend_gradients) != 2 or EMPTY in addend_gradients:
        return []
    if op.type == "elementwise_add_grad":
        return [*op.input("Out@GRAD"), *addend_gradients]  # dz, dx and dy
    if op.type != "fused_elemwise_add_activation_grad":
        return []
    # The operator is Paddle's for x + relu(y) as well, whose list of functions begins with the addition.
    is_of_relu_of_sum = op.attr("functor_list")[0] == "relu_grad"
    return addend_gradients if is_of_relu_of_sum else []  # dx and dy


class _Group(NamedTuple):
    """Variables that are to become one, and where these variables are used."""

    kept: str  # the variable that takes the place of all
    members: list[str]  # all of them, the kept one included
    written_at: list[int]  # indices of the operators that write one of them, in any order
    read_at: list[int]  # indices of the operators that read one of them, in any order

    def is_read_from(self, index: int) -> bool:
        """Return whether the operator at `index` or a later one reads a variable of the group."""
        return any(at >= index for at in self.read_at)

    def writes_after(self, index: int) -> list[int]:
        """Return the indices of the operators after the one at `index` that write a variable of the group."""
        return [at for at in self.written_at if at > index]


class _Groups:
    """The variables of a block, in groups that are to become one variable; at first each is alone in its group."""

    def __init__(self, block: Block) -> None:
        self._block = block
        written_at = writers(block)
        read_at = readers(block)
        self._group_of: dict[str, _Group] = {}
        for name in {*written_at, *read_at}:
            self._group_of[name] = _Group(name, [name], written_at.get(name, []), read_at.get(name, []))

    def kept(self, name: str) -> str:
        """Return the variable that takes the place of the variable `name`; `name` itself if nothing does."""
        return self._group_of[name].kept

    def kept_by_dropped(self) -> dict[str, str]:
        """Map each variable that is given up to the one that takes its place."""
        return {name: group.kept for name, group in self._group_of.items() if name != group.kept}

    def merge_if_safe(self, names: list[str], index: int) -> bool:
        """Merge the groups of equal variables, if one variable can replace all without a change in what operators read.

        For example, the operator y = x makes x and y equal. Then the groups {x} and {y} become {x, y}, and x is to
        replace y. But if x changes later and y is read after that, the groups stay. The program is not changed here.

        Args:
            names: Variables that hold equal values once the operator at `index` has run.
            index: Position of that operator in the block.

        Returns:
            Whether the groups were merged.
        """
        groups = [self._group_of[name] for name in names]
        kept = self._variable_for_all(groups, index)
        if kept is None:
            return False
        merged = _joined(groups, kept)
        for member in merged.members:
            self._group_of[member] = merged
        return True

    def _variable_for_all(self, groups: list[_Group], index: int) -> str | None:
        """Return the variable that can replace all variables of some groups without changing what operators read.

        For example, y = x stands at `index` 4 and x += 1 at 7. If y is read at 5 alone, x can replace y. If y is read
        at 8, nothing can: x has changed by then, and y has not.

        Args:
            groups: Groups that all hold the same value once the operator at `index` has run.
            index: Position of that operator in the block.

        Returns:
            The `kept` of one of the groups; None if no variable can replace all.
        """
        if not self._have_one_form(groups):
            return None
        changing_groups = [group for group in groups if group.writes_after(index)]
        if not changing_groups:
            return groups[0].kept  # all hold the value to the end, so any will do
        if len(changing_groups) > 1:
            return None  # they may differ later
        (changing,) = changing_groups
        # Its variable stays and replaces the others. They must not be read once it changes: their readers need the old
        # value.
        first_change = min(changing.writes_after(index))
        others = [group for group in groups if group is not changing]
        is_old_value_read = any(group.is_read_from(first_change) for group in others)
        return None if is_old_value_read else changing.kept

    def _have_one_form(self, groups: list[_Group]) -> bool:
        """Return whether the variables of these groups have the same shape and data type."""
        variables = [self._block.var(group.kept) for group in groups]
        return len({(variable.shape, variable.dtype) for variable in variables}) == 1


def _joined(groups: list[_Group], kept: str) -> _Group:
    """Return one group that has the variables of several groups, and the places where these are written and read.

    Args:
        groups: Groups to join.
        kept: The variable that takes the place of all; a member of one of the groups.
    """
    joined = _Group(kept, members=[], written_at=[], read_at=[])
    for group in groups:
        joined.members.extend(group.members)
        joined.written_at.extend(group.written_at)
        joined.read_at.extend(group.read_at)
    return joined


def _drop_unread_sums(block: Block) -> None:
    """Take the sum x + y from the outputs of operators that compute z = relu(x + y), if no operator reads the sum.

    Paddle gives the sum as an output even where the operator does not write it. `program.count` would count its bytes.

    Args:
        block: Block of a training program; changed in place.
    """
    read = readers(block)
    for op in block.ops:
        if op.type == "fused_elemwise_add_activation" and op.attr("functor_list") == ["relu", "elementwise_add"]:
            is_read = any(name in read for name in op.output("IntermediateOut"))
            if not is_read:
                # Without this attribute and its output, the operator computes z alone.
                op.desc._set_attr("save_intermediate_out", False)
                op.desc.set_output("IntermediateOut", [])


def _replace_addition_gradients(main: static.Program, gradient_by_operator: dict[Operator, str]) -> None:
    """Replace the gradient operators of additions whose gradients share one variable.

        z = x + y          elementwise_add_grad(dz) -> dx, dy                         becomes nothing
        z = relu(x + y)    fused_elemwise_add_activation_grad(z, dz, ...) -> dx, dy   becomes relu_grad(z, dz) -> shared

    Args:
        main: Training program; changed in place. Its other operators stay.
        gradient_by_operator: For each gradient operator to replace, the variable that its gradients share. The keys are
            operators of these two types alone.
    """

    def substitute(op: Operator) -> list[Step] | None:
        if op not in gradient_by_operator:
            return None  # it stays
        if op.type == "elementwise_add_grad":
            return []  # dz is among the gradients that share the variable, so an earlier operator computes it
        z_and_dz = {slot: operands(op, slot) for slot in ("Out", "Out@GRAD")}
        shared = gradient_by_operator[op]
        return [Step("relu_grad", z_and_dz, {"X@GRAD": [shared]}, {})]

    rewrite(main, substitute)


def _rename(block: Block, kept_by_dropped: dict[str, str]) -> None:
    """Replace, in every operator of the block, each dropped variable by the one that takes its place.

    Args:
        block: Block to change.
        kept_by_dropped: For the name of each dropped variable, the name that takes its place.
    """
    for op in block.ops:
        for name in kept_by_dropped.keys() & {*op.input_arg_names, *op.output_arg_names}:
            op.desc._rename_input(name, kept_by_dropped[name])
            op.desc._rename_output(name, kept_by_dropped[name])


# ---- relu


def mend_fused_relus(main: static.Program) -> int:
    """Replace the operator by which Paddle fuses the gradients of x + relu(y), which exchanges the two.

    Paddle 2.6.2 makes it where `fuse_elewise_add_act_ops` is on. It gives y the whole gradient, as if there were no
    relu, and x what a relu lets through.

        before    fused_elemwise_add_activation_grad(dz) -> dx, dy, wrong
        after     elementwise_add_grad(dz) -> dx, d relu(y)     relu_grad(d relu(y)) -> dy

    Args:
        main: Training program with its gradients; changed in place.

    Returns:
        How many operators were replaced.
    """
    block = main.global_block()

    def substitute(op: Operator) -> list[Step] | None:
        is_fused = op.type == "fused_elemwise_add_activation_grad"
        if not is_fused or op.attr("functor_list") != ["elementwise_add_grad", "relu_grad"]:
            return None  # the operator stays
        # In the slot Y the operator has x, and in X@GRAD it writes dy.
        (relu,) = op.input("IntermediateOut")
        declared = block.var(relu)
        by_relu = block.create_var(name=f"{relu}@GRAD", shape=declared.shape, dtype=declared.dtype).name
        read = {"X": op.input("Y"), "Y": [relu], "Out@GRAD": op.input("Out@GRAD")}
        written = {"X@GRAD": op.output("Y@GRAD"), "Y@GRAD": [by_relu]}
        of_relu = {"Out": [relu], "Out@GRAD": [by_relu]}
        # It says which gradient is that of a parameter: x or y may be one.
        parameters = {"op_role_var": op.attr("op_role_var")} if op.has_attr("op_role_var") else {}
        return [
            Step("elementwise_add_grad", read, written, {"axis": op.attr("axis")} | parameters),
            Step("relu_grad", of_relu, {"X@GRAD": op.output("X@GRAD")}, {}),
        ]

    return rewrite(main, substitute)


# ---- mean pooling


def spread_mean_gradients(main: static.Program) -> int:
    """Replace the gradient of each global average pooling by an operator that does not read the image.

    Each pixel has the same gradient, that of the mean divided by height x width, so the image's values are not needed.
    Run this after Paddle has added the gradients.

    Args:
        main: Training program; changed in place.

    Returns:
        How many operators were replaced.
    """
    block = main.global_block()

    def substitute(op: Operator) -> list[Step] | None:
        is_of_mean = op.type == "pool2d_grad" and op.attr("pooling_type") == "avg"
        if not is_of_mean:
            return None  # the operator stays
        height_axis = op.attr("data_format").index("H")  # the width's axis is the next one
        image_sides = block.var(op.input("X")[0]).shape[height_axis : height_axis + 2]
        mean_sides = block.var(op.input("Out")[0]).shape[height_axis : height_axis + 2]
        is_whole_image = op.attr("adaptive") or op.attr("global_pooling") or tuple(op.attr("ksize")) == image_sides
        is_global = mean_sides == (1, 1) and is_whole_image
        if not is_global:
            return None  # the operator stays
        return [_spreading_pooling(op, image_sides)]

    return rewrite(main, substitute)


def _spreading_pooling(op: Operator, image_sides: Sequence[int]) -> Step:
    """Return a forward average pooling that computes the gradient of a global average pooling.

    Every pixel gets d / (height x width), where d is the gradient of the mean. A `pool2d_grad` computes this too, but
    reads the image, which it does not need. The operator returned here reads d alone. Around d it puts height - 1 rows
    and width - 1 columns of zeros on each side, and moves a window of the image's size over the result by 1 pixel.
    Every window has d once, and otherwise zeros. For an image of 2 x 2 pixels:

        d with zeros    the four windows              their averages
        0  0  0         0  0    0  0    0  d    d  0
        0  d  0         0  d    d  0    0  0    0  0    d/4  d/4
        0  0  0                                         d/4  d/4

    Args:
        op: The `pool2d_grad` operator that the new operator is to replace.
        image_sides: Height and width of the pooled image in pixels.
    """
    height, width = image_sides
    attrs = {name: op.attr(name) for name in ("pooling_type", "data_format", "use_cudnn")}
    attrs["ksize"] = [height, width]
    attrs["strides"] = [1, 1]
    attrs["paddings"] = [height - 1, width - 1]
    attrs["exclusive"] = False  # divide by height x width; True would leave out the zeros and divide by 1
    mean_gradient = op.input("Out@GRAD")
    image_gradient = op.output("X@GRAD")
    return Step("pool2d", {"X": mean_gradient}, {"Out": image_gradient}, attrs)


# ---- convolutions


def convolve_gradients(main: static.Program) -> None:
    """Compute the input gradients of 3x3 convolutions by forward convolutions, which are faster on CPUs.

        before    conv2d_grad(x, w, dy) -> dx, dw
        after     turn(w) -> turned, conv2d(dy, turned) -> dx, conv2d_grad(x, w, dy) -> dw

    Paddle's own kernel adds up dx value by value, which takes 12 % of HRNet's step.

    Args:
        main: Training program that is to run on CPUs; changed in place. Convolutions that gain nothing stay.
    """
    block = main.global_block()
    gaining = [op for op in block.ops if _gains_by_convolving(block, op)]
    for op in gaining:
        insert_before(block, op, _input_gradient_steps(block, op), op_role=BACKWARD)
        op.desc.set_output("Input@GRAD", [])  # without a variable for it, `conv2d_grad` does not compute this gradient
    block._sync_with_cpp()  # Paddle's step after changes: brings its lists in Python and in C++ in line


def _gains_by_convolving(block: Block, op: Operator) -> bool:
    """Return whether a forward convolution would compute the input gradient of a convolution faster on a CPU.

    Args:
        block: Block that declares the operator's variables.
        op: Any operator of that block. The answer is yes only for the `conv2d_grad` of a 3x3 convolution that keeps the
            size of its image, and that has few output channels for this size.
    """
    if op.type != "conv2d_grad" or not op.output("Input@GRAD"):
        return False  # it computes no input gradient
    if not _is_plain_3x3(block, op):
        return False
    out_channels = block.var(op.input("Filter")[0]).shape[0]
    side = _side_in_pixels(block.var(op.input("Input")[0]).shape)
    return bool(out_channels < MAX_CHANNELS_PER_SIDE_PIXEL * side)


def _is_plain_3x3(block: Block, op: Operator) -> bool:
    """Return whether a convolution is 3x3 in NCHW, padded by 1, with stride 1, and without dilation and groups.

    Args:
        block: Block that declares the operator's variables.
        op: A `conv2d` or `conv2d_grad` of that block.
    """
    kernel = block.var(op.input("Filter")[0]).shape[2:]
    is_padded_by_one = op.attr("padding_algorithm") == "SAME" or list(op.attr("paddings")) == [1, 1]
    return bool(
        op.attr("data_format") == "NCHW"
        and list(kernel) == [3, 3]
        and is_padded_by_one
        and list(op.attr("strides")) == [1, 1]
        and list(op.attr("dilations")) == [1, 1]
        and op.attr("groups") == 1
    )


def _side_in_pixels(image_shape: Sequence[int]) -> float:
    """Return the side of a square image [N, C, H, W]; of any other, the side of a square with as many pixels."""
    return math.sqrt(math.prod(image_shape[2:]))


def _input_gradient_steps(block: Block, op: Operator) -> list[Step]:
    """Return the operators that compute the input gradient of a convolution by a forward convolution.

        dx = conv2d(dy, turned)    with turned[i, o] = w[o, i], each kernel turned by 180 degrees

    In one dimension, with a kernel (a, b, c) and stride 1:

        y[p]  = a x[p-1] + b x[p] + c x[p+1]
        dx[p] = c dy[p-1] + b dy[p] + a dy[p+1]    because y[p-1] has c x[p], and y[p+1] has a x[p]

    Args:
        block: Block of the operator; gets the variables in between.
        op: The `conv2d_grad` of a 3x3 convolution in NCHW with stride 1 and padding 1.

    Returns:
        Operators to insert, in order. The last one writes the variable that `op` has as its input gradient.
    """
    (w,) = op.input("Filter")
    (dx,) = op.output("Input@GRAD")
    turned = f"{dx}.flipped"
    # Stride and padding stay: at stride 1 a 3x3 convolution with padding 1 keeps the image's size in both directions.
    attrs = {name: op.attr(name) for name in ("strides", "paddings", "padding_algorithm", "dilations", "groups")}
    attrs["data_format"] = "NCHW"
    dy = op.input("Output@GRAD")
    convolve = Step("conv2d", {"Input": dy, "Filter": [turned]}, {"Output": [dx]}, attrs)
    return [*_turning_steps(block, w, prefix=dx, to=turned), convolve]


def _turning_steps(block: Block, weights: str, *, prefix: str, to: str) -> list[Step]:
    """Return the operators that exchange input and output channels of weights, and turn the kernels by 180 degrees.

    Args:
        block: Block of the weights; gets the variables that the operators write.
        weights: Name of the convolution's weights, [out channels, in channels, height, width].
        prefix: Beginning of the names of the variables in between, such as `PREFIX.turned`.
        to: Name of the variable for the result, [in channels, out channels, height, width].
    """
    dtype = block.var(weights).dtype
    out_channels, in_channels, *kernel = block.var(weights).shape
    exchanged_shape = [in_channels, out_channels, *kernel]
    exchanged = block.create_var(name=f"{prefix}.turned", shape=exchanged_shape, dtype=dtype).name
    block.create_var(name=to, shape=exchanged_shape, dtype=dtype)
    unused_shape = block.create_var(name=f"{prefix}.shape", dtype=dtype).name  # transpose2 demands it
    exchange_outputs = {"Out": [exchanged], "XShape": [unused_shape]}
    exchange_channels = Step("transpose2", {"X": [weights]}, exchange_outputs, {"axis": [1, 0, 2, 3]})
    turn_kernels = Step("flip", {"X": [exchanged]}, {"Out": [to]}, {"axis": [2, 3]})
    return [exchange_channels, turn_kernels]
