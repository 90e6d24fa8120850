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
    """Yield name and tensor of all the state that a run must keep, such as parameters and momenta, sorted by name.

    Tensors without a value yet are left out, as are those that each step computes anew.
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
    """Tell whether a program's variable is state that a run must keep: it outlasts a step, and is not computed anew."""
    is_state = variable.persistable and variable.type == _DENSE and not variable.is_data
    is_sum_of_gradients = variable.name.endswith(MERGED)  # zero between two updates
    return is_state and variable.name not in _NOT_KEPT and not is_sum_of_gradients


def is_loss_scale(name: str) -> bool:
    """Whether a variable is of FP16's loss scale: the scale itself, or a count by which a dynamic one moves.

    The names are Paddle's (python/paddle/static/amp/decorator.py).
    """
    return re.fullmatch(r"(loss_scaling|num_good_steps|num_bad_steps)_\d+", name) is not None


def has_dynamic_loss_scale(names: Iterable[str]) -> bool:
    """Whether a state of these names has a loss scale that moves; a fixed one, as of a captured step, has no counts."""
    return any(name.startswith("num_bad_steps_") for name in names)


def statistics_names(main: static.Program) -> set[str]:
    """Return the names of the running means and variances of batch normalizations: they differ from rank to rank."""
    names: set[str] = set()
    for op in main.global_block().ops:
        for slot in _STATISTICS:
            if slot in op.output_names:
                names.update(op.output(slot))
    return names


def statistics(main: static.Program) -> Iterator[tuple[str, Array]]:
    """Yield name and value of each of the BN statistics, which differ from rank to rank, as a checkpoint holds them."""
    differing = statistics_names(main)
    chosen = [(name, tensor) for name, tensor in tensors(main) if name in differing]
    yield from _plain_values(main, chosen)


def shared_values(main: static.Program) -> Iterator[tuple[str, Array]]:
    """Yield name and value of each tensor of a run's state that is equal on all ranks, as a checkpoint holds them."""
    differing = statistics_names(main)
    chosen = [(name, tensor) for name, tensor in tensors(main) if name not in differing]
    yield from _plain_values(main, chosen)


def _plain_values(main: static.Program, chosen: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Array]]:
    """Yield name and value of the chosen tensors of a run's state, as a checkpoint holds them.

    A checkpoint has the network's plain memory layout, so that it does not depend on the passes over the program. A
    tensor that a pass stores in another layout is brought back to that.
    """
    other_layouts = stored.forms(main)  # by tensor, of those that a pass stores so
    for name, tensor in chosen:
        value = np.asarray(tensor)
        if name in other_layouts:
            value = other_layouts[name].to_plain(value)
        yield name, value


def assign(tensor: Any, value: Array) -> None:
    """Give a tensor a value, on the device where it is."""
    held_on = tensor._place()
    place = paddle.CPUPlace()
    if held_on.is_gpu_place():
        place = paddle.CUDAPlace(held_on.gpu_device_id())
    tensor.set(value, place)


def padded(value: Array, shape: Any) -> Array:
    """Return filters [O, I, H, W] with zeros for the input channels that `shape` has more; other values as they are."""
    if value.ndim != 4:
        return value
    more_channels = shape[1] - value.shape[1]
    return np.pad(value, [(0, 0), (0, more_channels), (0, 0), (0, 0)])


def set_weights(main: static.Program, weights: dict[str, Array]) -> None:
    """Set parameters of a training program to the FP32 values in `weights`: {name of a parameter: its value}.

    A parameter in half precision gets the rounded value. Its master, an FP32 copy that the optimizer keeps of it, gets
    the value itself. Every weight must be one of the program's parameters.
    """
    found = set()
    other_layouts = stored.forms(main)  # by tensor, of those that a pass stores in another memory layout
    for name, tensor in tensors(main):
        parameter = _parameter_of(name)
        if parameter not in weights:
            continue
        found.add(parameter)
        if name in other_layouts:
            value = other_layouts[name].from_plain(weights[parameter])
        else:  # the program's filters may have more input channels
            value = padded(weights[parameter], tensor.shape())
        dtype = np.array(tensor).dtype
        assign(tensor, value.astype(dtype))
    not_found = sorted(set(weights) - found)
    assert not not_found, f"the program has no {not_found}"


def _parameter_of(name: str) -> str:
    """Return the name of a master's parameter, as NAME for `NAME_fp32_master_0`; any other name as it is."""
    return re.sub(r"_fp32_master_\d+$", "", name)


def broadcast_parameters(main: static.Program, ranks: Ranks) -> None:
    """Give every rank the parameters, BN statistics and optimizer state of rank 0; every rank must call this.

    Paddle's automatic mode divides the state over the ranks. So only tensors that every rank has are sent, and all
    others stay as they are.
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
    """Give every rank the mean of the ranks' BN statistics, so that all evaluate the same model.

    Every rank must call this. All statistics are laid end to end in one array, so that one all-reduce adds them up.
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
    """Yield the parts of a flat array, each with the shape and the type of one of `arrays`, in their order."""
    begin = 0
    for array in arrays:
        end = begin + array.size
        yield end_to_end[begin:end].reshape(array.shape).astype(array.dtype)
        begin = end
