"""Arithmetic of a training program: which operators run in half precision, its loss scaling, its image layout.

Levels are Paddle's. O1 keeps FP32 parameters and casts them before each convolution and matrix product. In a training
program it ignores `static.amp.fp16_guard`: the types of operators alone decide what is half precision. O2 holds the
parameters of operators inside the guard in half precision, with FP32 master copies in the optimizer; all operators
outside are FP32. In both levels batch statistics and the loss are FP32.
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
from program.ops import FORWARD
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

    level: str = ""  # of Paddle's mixed precision: O1 or O2; empty if all is FP32
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
    """Return the fixed loss scale of a step that is captured as a CUDA graph, which cannot check for infinities.

    It is the smallest power of two that is at least the global batch: 3264 -> 4096. A power of two rounds nothing. The
    loss is a mean over the global batch, so the scaled gradients of the logits are 1 to 2 times p - y (probability
    minus label), where Baidu's runs of MLPerf v1.1 have p - y, because their loss is a sum.

    Args:
        global_batch: Images of one update over all ranks.
    """
    return float(1 << (global_batch - 1).bit_length())


@contextlib.contextmanager
def fp32_statistics() -> Iterator[None]:
    """Keep scale, bias and statistics of `sync_batch_norm` in FP32 under mixed precision, as those of `batch_norm`.

    Two functions of Paddle's mixed precision (AMP) decide which slots of an operator stay in FP32. While the context
    lasts, they are replaced by ones that keep every slot of a `sync_batch_norm` in FP32 except its image.
    """
    paddles_keep_input = fp16_utils._keep_fp32_input
    paddles_keep_output = fp16_utils._keep_fp32_output

    def keep_input(op: Operator, slot: str) -> bool:
        if op.type == "sync_batch_norm":
            return slot != "X"  # all but the image
        return bool(paddles_keep_input(op, slot))

    def keep_output(op: Operator, slot: str) -> bool:
        if op.type == "sync_batch_norm":
            return slot != "Y"  # all but the image
        return bool(paddles_keep_output(op, slot))

    with replaced(fp16_utils, "_keep_fp32_input", keep_input), replaced(fp16_utils, "_keep_fp32_output", keep_output):
        yield


def _operator_lists(precision: Precision) -> Any:
    """Return Paddle's lists of the operators that AMP runs in half precision always, never, or if their inputs are.

    Args:
        precision: Its data type is the half-precision type.
    """
    lists = static.amp.CustomOpLists(WHITE_LIST, BLACK_LIST, dtype=precision.dtype)
    lists.gray_list.add("sync_batch_norm")  # Paddle names batch_norm alone: O1 would run it in FP32
    return lists


def decorate(optimizer: Any, precision: Precision, *, dynamic: bool) -> Any:
    """Wrap Paddle's optimizer for mixed precision.

    The `minimize` of the wrapped optimizer also casts the program to half precision.

    Args:
        optimizer: Optimizer of Paddle.
        precision: Level (O1 or O2) and data type.
        dynamic: Whether the loss is multiplied by a scale that grows and shrinks in training (HOW_THE_SCALE_MOVES). If
            not, AMP's scale is 1.

    Returns:
        The wrapped optimizer; `optimizer` itself if `precision` is FP32.
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
        # At O2 all inside `fp16_guard` is cast. At O1, which casts the inputs of convolutions and matrix products,
        # Paddle's `minimize` ignores the guard (static/amp/decorator.py).
        use_amp_guard=precision.level == "O2",
        **HOW_THE_SCALE_MOVES,  # without effect on a scale that is not dynamic
    )


def cast_evaluation(main: static.Program, precision: Precision) -> None:
    """Change an evaluation program to the precision of its training program; in FP32 it stays as it is.

    In half precision (float16), operators inside `fp16_guard` are cast and the input `image` is fed in float16.

    Args:
        main: Evaluation program; changed in place.
        precision: The precision of the training.
    """
    if not precision.is_half:
        return
    with _several_writers_of_a_variable_allowed(), _parameters_listed_once(main):
        static.amp.cast_model_to_fp16(main, _operator_lists(precision), use_fp16_guard=True, level=precision.level)
    make_input_float16(main, precision)


def _several_writers_of_a_variable_allowed() -> contextlib.AbstractContextManager[None]:
    """Let Paddle's mixed precision cast programs in which several operators write one variable.

    Without this, Paddle raises ValueError, "There must be only one previous op that outputs ... variable", for a
    network that is evaluated at several image sizes: at each size, a batch normalization lists its running statistics
    as outputs. While the context lasts, Paddle takes the last writer before the reader instead.
    """
    return replaced(fp16_utils, "find_true_prev_op", _last_writer)


def _parameters_listed_once(main: static.Program) -> contextlib.AbstractContextManager[None]:
    """Make `all_parameters` of every block return the parameters that the program has now, without a search.

    Without this, Paddle searches the whole program for its parameters again for every operator that it casts, which is
    slow.

    Args:
        main: The program that is cast while the context lasts. It must get no new parameters meanwhile.
    """
    parameters = main.all_parameters()
    return replaced(Block, "all_parameters", lambda block: parameters)


def _last_writer(ops: Sequence[Operator], reader: Operator, name: str) -> Operator | None:
    """Return the last operator before a reader that writes a variable.

    Args:
        ops: Operators of a block, in order.
        reader: The operator before which the search ends.
        name: Name of the variable.

    Returns:
        The operator; None if there is none.
    """
    writer = None
    for op in ops:
        if op is reader:
            break
        if name in op.output_arg_names:
            writer = op
    return writer


def make_input_float16(main: static.Program, precision: Precision) -> None:
    """Make the input `image` of a half-precision program float16, so that the program is fed float16 images.

        before    image (float32), cast(image) -> image.cast_fp16
                  operators in float16 read image.cast_fp16, operators in float32 read image
        after     image (float16), cast(image) -> image.fp32
                  operators in float16 read image, operators in float32 read image.fp32

    Args:
        main: Program that Paddle's mixed precision (AMP) has cast; changed in place. Without an input `image` it stays
            as it is.
        precision: Its precision. In FP32 nothing changes.
    """
    image = "image"
    block = main.global_block()
    if not precision.is_half or not block.has_var(image):
        return

    # Found before anything is renamed: afterwards, readers of float16 read `image` too.
    casts_to_half = [op for op in block.ops if _casts_to_half(op, image)]  # AMP's
    readers_of_fp32 = [op for op in block.ops if image in op.input_arg_names and op not in casts_to_half]

    block.var(image).desc.set_dtype(paddle.float16)
    if readers_of_fp32:
        _read_from_fp32_copy(block, readers_of_fp32, image, "image.fp32")
    for cast in casts_to_half:
        (cast_copy,) = cast.output("Out")  # image.cast_fp16
        _replace_input(block.ops, cast_copy, image)
    remove(main, lambda op: op in casts_to_half)
    block._sync_with_cpp()


def _read_from_fp32_copy(block: Block, readers: Sequence[Operator], name: str, copy: str) -> None:
    """Have some operators read a float32 copy of a float16 input.

    A cast, the first operator of the block, writes the copy.

    Args:
        block: Block of the operators; changed in place.
        readers: Operators that need float32.
        name: Name of the input.
        copy: Name of the copy, which is created.
    """
    block.create_var(name=copy, shape=block.var(name).shape, dtype="float32", stop_gradient=True)
    _replace_input(readers, name, copy)
    types = {"in_dtype": paddle.float16, "out_dtype": paddle.float32}
    insert(block, 0, "cast", {"X": [name]}, {"Out": [copy]}, **types, op_role=FORWARD)


def _replace_input(readers: Sequence[Operator], name: str, new_name: str) -> None:
    """Have those of these operators that read the variable `name` read `new_name` instead."""
    for op in readers:
        op.desc._rename_input(name, new_name)


def _casts_to_half(op: Operator, name: str) -> bool:
    """Return whether an operator casts the variable `name` to float16."""
    return op.type == "cast" and op.input("X") == [name] and bool(op.attr("out_dtype") == paddle.float16)


def cast_startup(main: static.Program, startup: static.Program) -> None:
    """Append to the start-up program a cast of each half-precision parameter to the type that it has in training.

    The start-up program draws a parameter in float32 and copies the values to the optimizer's float32 masters. The
    casts come last, so that the masters get the values before they are rounded. For a float16 parameter `fc.w` these
    operators are appended:

        assign    copies `fc.w`, in which the float32 values are, to `fc.w.fp32`
        cast      writes the values of `fc.w.fp32`, rounded to float16, to `fc.w`

    A cast alone would not do, because it cannot write the variable that it reads.

    Args:
        main: Training program, whose half-precision parameters are cast.
        startup: Its start-up program; changed in place.
    """
    block = startup.global_block()
    for parameter in main.all_parameters():
        if parameter.dtype == paddle.float32:
            continue  # no cast is needed
        fp32_copy = block.create_var(name=f"{parameter.name}.fp32", dtype="float32", shape=parameter.shape)
        types = {"in_dtype": fp32_copy.dtype, "out_dtype": parameter.dtype}
        end = len(block.ops)  # so the assign becomes the last operator, and then the cast
        insert(block, end, "assign", {"X": [parameter.name]}, {"Out": [fp32_copy.name]}, op_role=FORWARD)
        insert(block, end + 1, "cast", {"X": [fp32_copy.name]}, {"Out": [parameter.name]}, **types, op_role=FORWARD)


def perturb_input(main: static.Program) -> None:
    """Change a program so that it moves each value of its floating-point inputs by about one rounding error.

        before    operators read image
        after     the first operators write image.moved from image; all others read image.moved

    So the losses differ from those of the plain program by the noise of rounding; `tools.tune` trains such a program as
    a control.

    Args:
        main: Training program; changed in place.
    """
    block = main.global_block()
    inputs = [variable for variable in block.vars.values() if variable.is_data and variable.dtype in ROUNDING]
    for variable in inputs:
        moved = block.create_var(name=f"{variable.name}.moved", shape=variable.shape, dtype=variable.dtype).name
        readers = [op for op in block.ops if variable.name in op.input_arg_names]
        _replace_input(readers, variable.name, moved)
        # Only now, because these operators must go on reading the input itself.
        insert_all(block, 0, _moving_steps(block, variable, to=moved), op_role=FORWARD)
    block._sync_with_cpp()  # Paddle's step after changes: brings its lists in Python and in C++ in line


def _moving_steps(block: Block, variable: static.Variable, *, to: str) -> list[Step]:
    """Return the operators that move each value x of a variable by about one rounding error.

        moved = x + r x sin(1000 x)

    r is the relative rounding error of the variable's type. The sine makes the relative change differ from value to
    value.

    Args:
        block: Block of the variable; gets the variables in between.
        variable: A float32 or float16 variable of that block.
        to: Name of the variable for the moved values.
    """
    x = variable.name
    r = ROUNDING[variable.dtype]
    # The sine makes the relative change differ from value to value. One common factor would have no effect, because
    # the first batch norm divides it out again.
    wave = block.create_var(name=f"{x}.wave", shape=variable.shape, dtype=variable.dtype).name
    change = block.create_var(name=f"{x}.change", shape=variable.shape, dtype=variable.dtype).name
    return [
        Step("scale", {"X": [x]}, {"Out": [wave]}, {"scale": 1000.0}),
        Step("sin", {"X": [wave]}, {"Out": [wave]}, {}),
        Step("elementwise_mul", {"X": [x], "Y": [wave]}, {"Out": [change]}, {"axis": -1}),
        Step("scale", {"X": [change]}, {"Out": [change]}, {"scale": r}),
        Step("elementwise_add", {"X": [x], "Y": [change]}, {"Out": [to]}, {"axis": -1}),
    ]
