"""The state of a run in Paddle's scope: what a checkpoint keeps and what the ranks share."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import paddle
from paddle import static

from harness.ranks import Ranks
from program import capture, stored
from program.arrays import Array
from program.ops import LOSS_VALUE, MERGED

_DENSE = paddle.base.core.VarDesc.VarType.LOD_TENSOR


# Variables that a run computes anew: the loss, and the inputs of a captured step.
_NOT_KEPT = (LOSS_VALUE, capture.RATES, capture.STEP)
# Outputs of a normalization that no all-reduce touches; Z are those of a fused unit's second input.
_STATISTICS = ("MeanOut", "VarianceOut", "RunningMeanX", "RunningVarX", "RunningMeanZ", "RunningVarZ")


def tensors(main: static.Program) -> Iterator[tuple[str, Any]]:
    """Yield the name and the tensor of all state that a run must keep, such as parameters and momenta.

    Left out are tensors without a value yet, and what each step computes anew, as the loss.

    Args:
        main: The training program. Its tensors are looked up in Paddle's global scope.

    Yields:
        (name, Paddle tensor), sorted by name.
    """
    scope = static.global_scope()
    names = {variable.name for variable in main.list_vars() if _is_kept(variable)}
    for name in sorted(names):
        in_scope = scope.find_var(name)
        if in_scope is None:
            continue
        tensor = in_scope.get_tensor()
        has_value = tensor._is_initialized()
        if has_value:
            yield name, tensor


def _is_kept(variable: Any) -> bool:
    """Return whether a variable is state that a run must keep: it outlasts a step and is not computed anew."""
    is_state = variable.persistable and variable.type == _DENSE and not variable.is_data
    is_sum_of_gradients = variable.name.endswith(MERGED)  # zero between two updates
    return is_state and variable.name not in _NOT_KEPT and not is_sum_of_gradients


def is_loss_scale(name: str) -> bool:
    """Return whether a variable belongs to the loss scale of FP16: the scale itself, or a count of a dynamic one.

    Args:
        name: Name of a variable, such as "loss_scaling_0" or "num_bad_steps_0". The names are Paddle's
            (python/paddle/static/amp/decorator.py).
    """
    return re.fullmatch(r"(loss_scaling|num_good_steps|num_bad_steps)_\d+", name) is not None


def has_dynamic_loss_scale(names: Iterable[str]) -> bool:
    """Return whether a training state has a dynamic loss scale, which is adjusted during the training.

    Args:
        names: Names of all tensors of the state. A fixed scale, for example of a captured step, lacks Paddle's
            "num_bad_steps_...".
    """
    return any(name.startswith("num_bad_steps_") for name in names)


def statistics_names(main: static.Program) -> set[str]:
    """Return the names of the running means and variances of batch normalizations: they differ from rank to rank.

    Args:
        main: The training program.
    """
    names: set[str] = set()
    for op in main.global_block().ops:
        for slot in _STATISTICS:
            if slot in op.output_names:
                names.update(op.output(slot))
    return names


def statistics(main: static.Program) -> Iterator[tuple[str, Array]]:
    """Yield name and value of each of the BN statistics, which differ from rank to rank, as a checkpoint holds them.

    BN statistics are the running means and variances of batch normalizations.

    Args:
        main: The training program.
    """
    differing = statistics_names(main)
    chosen = [(name, tensor) for name, tensor in tensors(main) if name in differing]
    yield from _plain_values(main, chosen)


def shared_values(main: static.Program) -> Iterator[tuple[str, Array]]:
    """Yield name and value of each tensor of a run's state that is equal on all ranks, as a checkpoint holds them.

    Args:
        main: The training program.
    """
    differing = statistics_names(main)
    chosen = [(name, tensor) for name, tensor in tensors(main) if name not in differing]
    yield from _plain_values(main, chosen)


def _plain_values(main: static.Program, chosen: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Array]]:
    """Yield the name and the value of some tensors of a run's state, as a checkpoint holds them.

    A checkpoint has the network's plain memory layout. A tensor that an optimization pass stores in another layout is
    brought back to that, so a checkpoint does not depend on the passes of a program.

    Args:
        main: The training program, from which the layouts are known.
        chosen: (name, Paddle tensor) of each wanted tensor.

    Yields:
        (name, NumPy array), in the order of `chosen`.
    """
    other_layouts = stored.conversions(main)  # by name, of the tensors that the program stores in another layout
    for name, tensor in chosen:
        value = np.asarray(tensor)
        if name in other_layouts:
            value = other_layouts[name].to_plain(value)
        yield name, value


def assign(tensor: Any, value: Array) -> None:
    """Give a tensor a value, on the device where it is.

    Args:
        tensor: A Paddle tensor that has a value already.
        value: The new value.
    """
    held_on = tensor._place()
    place = paddle.CPUPlace()
    if held_on.is_gpu_place():
        place = paddle.CUDAPlace(held_on.gpu_device_id())
    tensor.set(value, place)


def padded(value: Array, shape: Any) -> Array:
    """Return filters with zeros for the input channels that a wanted shape has more; other values unchanged.

    Args:
        value: An array. One with four axes is taken for filters, [output channels, input channels, height, width].
        shape: The wanted shape. Only its second number, the input channels, is used; it must not be the smaller one.
    """
    if value.ndim != 4:
        return value
    more_channels = shape[1] - value.shape[1]
    return np.pad(value, [(0, 0), (0, more_channels), (0, 0), (0, 0)])


def set_weights(main: static.Program, weights: dict[str, Array]) -> None:
    """Set parameters of a training program to given values in FP32.

    A parameter in half precision gets the rounded value. Its master, the FP32 copy that the optimizer keeps of it, gets
    the value itself. A value is brought into the layout that the program stores.

    Args:
        main: The training program. Parameters without a given weight, and all momenta, stay as they are.
        weights: {name of a parameter: its value}, in the network's plain memory layout. Each name must be one of the
            program's. Filters may have fewer input channels than the program's filters, which then have zeros for the
            channels that are missing.
    """
    found = set()
    # {name of a tensor that the program stores in another layout: its conversion}, as of [O, I, H, W] to [O, H, W, I]
    other_layouts = stored.conversions(main)
    for name, tensor in tensors(main):  # parameters, their masters, momenta and others
        parameter = _parameter_of(name)  # also for its master: "conv.w" for "conv.w_fp32_master_0"
        if parameter not in weights:
            continue
        found.add(parameter)
        if name in other_layouts:
            value = other_layouts[name].from_plain(weights[parameter])
        else:  # only the first convolution can lack input channels, and its filters are never in another layout
            value = padded(weights[parameter], tensor.shape())  # zeros for missing input channels; else unchanged
        dtype = np.array(tensor).dtype  # of half precision, or of FP32 as a master has it
        assign(tensor, value.astype(dtype))
    not_found = sorted(set(weights) - found)
    assert not not_found, f"the program has no {not_found}"


def _parameter_of(name: str) -> str:
    """Return the name of a master's parameter, such as NAME for `NAME_fp32_master_0`; any other name as it is."""
    return re.sub(r"_fp32_master_\d+$", "", name)


def broadcast_parameters(main: static.Program, ranks: Ranks) -> None:
    """Give every rank the parameters, statistics and optimizer state of rank 0; every rank must call this.

    Paddle's automatic mode (STRATEGY=auto) divides the state over the ranks. So only tensors that every rank has are
    sent, and all others stay as they are.

    Args:
        main: The training program of this rank.
        ranks: This process among the ranks of the job.
    """
    own_tensors = dict(tensors(main))
    own_names = set(own_tensors)
    names_of_each_rank = ranks.comm.allgather(own_names)
    on_every_rank = own_names.intersection(*names_of_each_rank)
    for name in sorted(on_every_rank):  # in one order on all ranks
        tensor = own_tensors[name]
        value = np.array(tensor)
        ranks.comm.Bcast(value.reshape(-1).view(np.uint8))  # into `value`, as bytes: MPI knows no half precision
        assign(tensor, value)


def average_statistics(main: static.Program, ranks: Ranks) -> None:
    """Give every rank the mean of the ranks' running means and variances of batch normalization (BN).

    Each rank has statistics of its own images. After this all ranks evaluate the same model. Every rank must call this.

    Args:
        main: The training program of this rank.
        ranks: This process among the ranks of the job. A single rank keeps its statistics.
    """
    names = statistics_names(main)  # before the loop, because it goes through thousands of operators
    own_tensors = [tensor for name, tensor in tensors(main) if name in names]
    if ranks.size == 1 or not own_tensors:
        return
    own_values = [np.array(tensor) for tensor in own_tensors]
    own_end_to_end = np.concatenate([value.ravel() for value in own_values]).astype(np.float64)
    means_end_to_end = ranks.comm.allreduce(own_end_to_end) / ranks.size
    for tensor, mean in zip(own_tensors, _divided_like(own_values, means_end_to_end), strict=True):
        assign(tensor, mean)


def _divided_like(arrays: list[Array], end_to_end: Array) -> Iterator[Array]:
    """Yield the parts of a flat array, each with the shape and the type of one of some given arrays.

    Args:
        arrays: The given arrays.
        end_to_end: The values of all parts, one part after the other, in the order of `arrays`.
    """
    begin = 0
    for array in arrays:
        end = begin + array.size
        yield end_to_end[begin:end].reshape(array.shape).astype(array.dtype)
        begin = end
