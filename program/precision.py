"""Arithmetic of a training program: which operators run in half precision, its loss scaling, its image layout.

Levels are Paddle's: O1 keeps FP32 parameters and casts them before each convolution and matrix product; O2 holds
them in half precision with FP32 master copies in the optimizer. In both, batch statistics, the loss and everything
outside `static.amp.fp16_guard` are FP32.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import static
from paddle.base.framework import Block, Operator
from paddle.static.amp import fp16_utils

from program import replaced
from program.passes.edit import Step, insert, insert_all, remove

# A dynamic loss scale begins at FIRST_LOSS_SCALE. It doubles after 1000 finite steps, and is multiplied by 0.8 after
# two steps with a gradient that is not finite: Paddle's own defaults (paddle.static.amp.decorate).
FIRST_LOSS_SCALE = 32768.0
HOW_THE_SCALE_MOVES = {"incr_every_n_steps": 1000, "decr_every_n_nan_or_inf": 2, "incr_ratio": 2.0, "decr_ratio": 0.8}
# Operators that AMP runs in half precision wherever it can: O1 would else cast all branches of a `concat` to FP32 where
# one of them is.
WHITE_LIST = {"concat"}
# Operators that AMP never runs in half precision.
BLACK_LIST = {"one_hot_v2", "label_smooth", "softmax_with_cross_entropy", "reduce_mean", "reduce_sum"}
ROUNDING = {paddle.float32: 2.0**-23, paddle.float16: 2.0**-10}  # from 1.0 to the next larger value of the type


@dataclass(frozen=True, kw_only=True)
class Precision:
    """One value of PRECISION."""

    level: str = ""  # of Paddle's mixed precision: O1 or O2; empty where all is FP32
    dtype: str = "float32"  # of convolutions and matrix products, and what the input pipeline emits
    layout: str = "NCHW"  # of images, for which cuDNN has its fastest kernels

    @property
    def is_half(self) -> bool:
        """Whether convolutions run in half precision."""
        return bool(self.level)


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(),  # the same program: NVIDIA_TF32_OVERRIDE decides (harness/env.py)
    "amp_o1": Precision(level="O1", dtype="float16", layout="NHWC"),
    "amp_o2": Precision(level="O2", dtype="float16", layout="NHWC"),
}


def captured_loss_scale(global_batch: int) -> float:
    """Return the fixed loss scale of a captured step, which cannot look for infinities.

    It is the power of two, which rounds nothing, at or above the global batch: the logits' gradients are then 1 to 2
    times p - y. Baidu's runs of MLPerf v1.1 have p - y, as their loss is summed over batch and ranks.
    """
    return float(1 << (global_batch - 1).bit_length())


@contextlib.contextmanager
def fp32_statistics() -> Iterator[None]:
    """Have Paddle's AMP keep scale, bias and statistics of `sync_batch_norm` in FP32, as it does for `batch_norm`.

    Paddle's AMP decides by two functions whether an operator's input or output slot stays in FP32. They are replaced
    while the context lasts. Of a `sync_batch_norm` every slot stays in FP32 but the image's: input X and output Y. For
    any other operator Paddle's own functions are asked.
    """
    paddles_keeps_input = fp16_utils._keep_fp32_input
    paddles_keeps_output = fp16_utils._keep_fp32_output

    def keeps_input(op: Operator, slot: str) -> bool:
        if op.type == "sync_batch_norm":
            return slot != "X"
        return bool(paddles_keeps_input(op, slot))

    def keeps_output(op: Operator, slot: str) -> bool:
        if op.type == "sync_batch_norm":
            return slot != "Y"
        return bool(paddles_keeps_output(op, slot))

    with replaced(fp16_utils, "_keep_fp32_input", keeps_input), replaced(fp16_utils, "_keep_fp32_output", keeps_output):
        yield


def _operator_lists(precision: Precision) -> Any:
    """Return Paddle's lists of operators: AMP runs them in half precision always, never, or where their inputs are."""
    lists = static.amp.CustomOpLists(WHITE_LIST, BLACK_LIST, dtype=precision.dtype)
    lists.gray_list.add("sync_batch_norm")  # Paddle names batch_norm alone: O1 would run it in FP32
    return lists


def decorate(optimizer: Any, precision: Precision, *, dynamic: bool) -> Any:
    """Return Paddle's optimizer wrapped for mixed precision: its `minimize` also casts the program to float16.

    Parameters in float16 (level O2) get FP32 master copies, which is Paddle's default. With `dynamic` the loss is
    multiplied by a scale that changes from step to step. Without it the wrapper scales nothing: a fixed scale is put in
    later, by `updates.scale_loss`.

    In FP32 the optimizer is returned as it is.
    """
    if not precision.is_half:
        return optimizer
    first_loss_scale = FIRST_LOSS_SCALE if dynamic else 1.0
    return static.amp.decorate(
        optimizer,
        amp_lists=_operator_lists(precision),
        level=precision.level,
        dtype=precision.dtype,
        init_loss_scaling=first_loss_scale,
        use_dynamic_loss_scaling=dynamic,
        use_amp_guard=precision.level == "O2",  # casts only what `fp16_guard` holds; at O1 Paddle does not look at it
        **HOW_THE_SCALE_MOVES,  # not read without `dynamic`
    )


def cast_evaluation(main: static.Program, precision: Precision) -> None:
    """Give an evaluation program the types of its training program: only what `fp16_guard` holds is cast."""
    if not precision.is_half:
        return
    parameters = main.all_parameters()  # listed once: Paddle lists them again at each operator, which takes long
    with (
        replaced(fp16_utils, "find_true_prev_op", _last_writer),
        replaced(Block, "all_parameters", lambda block: parameters),
    ):
        static.amp.cast_model_to_fp16(main, _operator_lists(precision), use_fp16_guard=True, level=precision.level)
    feed_half(main, precision)


def _last_writer(ops: Sequence[Operator], reader: Operator, name: str) -> Operator | None:
    """Return the last operator before `reader`, among `ops`, that writes the variable `name`; None if there is none.

    It replaces Paddle's function, which refuses a variable that several operators write. In a network that is evaluated
    at several sizes the running statistics are such variables: each normalization is run once a size, and names its
    statistics as outputs each time.
    """
    writer = None
    for op in ops:
        if op is reader:
            break
        if name in op.output_arg_names:
            writer = op
    return writer


def feed_half(main: static.Program, precision: Precision) -> None:
    """Change a program in half precision so that it is fed float16 images instead of casting float32 ones itself.

    The network is built on a float32 input `image`, as Paddle's layers give their parameters the type of their input.
    AMP then casts that input to float16 for the operators that compute in float16. Here the input becomes float16:

    - The casts are removed, and the operators that read what they wrote read `image` itself.
    - Operators that read the float32 input read `image.fp32`, which a cast at the program's start makes of `image`. An
      evaluation at several sizes has such operators, which resize the image.

    In FP32, or if the program has no variable `image`, nothing is changed.
    """
    image = "image"
    fp32_image = "image.fp32"
    block = main.global_block()
    if not precision.is_half or not block.has_var(image):
        return

    def casts_image_to_half(op: Operator) -> bool:
        return op.type == "cast" and op.input("X") == [image] and bool(op.attr("out_dtype") == paddle.float16)

    half_images: set[str] = set()  # names of the variables that those casts write
    for op in block.ops:
        if casts_image_to_half(op):
            half_images.update(op.output("Out"))
    remove(main, casts_image_to_half)

    is_read_in_fp32 = any(image in op.input_arg_names for op in block.ops)
    for op in block.ops:
        # In this order, so that what the second renaming calls `image` is not renamed by the first.
        op.desc._rename_input(image, fp32_image)
        for name in half_images.intersection(op.input_arg_names):
            op.desc._rename_input(name, image)
    block.var(image).desc.set_dtype(paddle.float16)
    if is_read_in_fp32:
        block.create_var(name=fp32_image, shape=block.var(image).shape, dtype="float32", stop_gradient=True)
        types = {"in_dtype": paddle.float16, "out_dtype": paddle.float32}
        insert(block, 0, "cast", {"X": [image]}, {"Out": [fp32_image]}, **types, op_role=0)
    block._sync_with_cpp()


def cast_startup(main: static.Program, startup: static.Program) -> None:
    """Append to the start-up program a cast of each parameter to the type that it has in the training program.

    The start-up program draws all parameters in float32 and copies the optimizer's float32 masters from them. The casts
    come last, so that the masters are copied from the exact values. A parameter that is float32 in training needs none.
    """
    block = startup.global_block()
    for parameter in main.all_parameters():
        if parameter.dtype == paddle.float32:
            continue
        # The parameter is copied first, as a cast cannot write the variable that it reads.
        fp32_copy = block.create_var(name=f"{parameter.name}.fp32", dtype="float32", shape=parameter.shape)
        types = {"in_dtype": fp32_copy.dtype, "out_dtype": parameter.dtype}
        insert(block, len(block.ops), "assign", {"X": [parameter.name]}, {"Out": [fp32_copy.name]}, op_role=0)
        insert(block, len(block.ops), "cast", {"X": [fp32_copy.name]}, {"Out": [parameter.name]}, **types, op_role=0)


def perturb_input(main: static.Program) -> None:
    """Change a program so that it computes with inputs that differ by about one rounding error from those it is fed.

    A tuning search compares the losses of such a program with those of the plain one: a difference no larger than
    theirs is no effect of a knob.

    A value x becomes x + x sin(1000 x) r, with r the relative rounding error of its type. The sine makes sign and size
    of the change differ from value to value, as the first batch norm would take a common factor out again. The changed
    values of an input NAME are in the variable NAME.moved, which every operator reads that read NAME.
    """
    block = main.global_block()
    inputs = [variable for variable in block.vars.values() if variable.is_data and variable.dtype in ROUNDING]
    for variable in inputs:
        x = variable.name
        like_x = {"shape": variable.shape, "dtype": variable.dtype}
        angle = block.create_var(name=f"{x}.angle", **like_x).name
        change = block.create_var(name=f"{x}.part", **like_x).name
        moved = block.create_var(name=f"{x}.moved", **like_x).name
        for op in block.ops:
            op.desc._rename_input(x, moved)
        steps = [
            Step("scale", {"X": [x]}, {"Out": [angle]}, {"scale": 1000.0}),
            Step("sin", {"X": [angle]}, {"Out": [angle]}, {}),
            Step("elementwise_mul", {"X": [x], "Y": [angle]}, {"Out": [change]}, {"axis": -1}),
            Step("scale", {"X": [change]}, {"Out": [change]}, {"scale": ROUNDING[variable.dtype]}),
            Step("elementwise_add", {"X": [x], "Y": [change]}, {"Out": [moved]}, {"axis": -1}),
        ]
        insert_all(block, 0, steps, op_role=0)
    block._sync_with_cpp()
