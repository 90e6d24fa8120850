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


def tensors(main: static.Program) -> Iterator[tuple[str, Any]]:
    """Name and tensor of all that a run must keep: parameters, BN statistics, optimizer state, loss scale.

    The loss is none of it, nor are the accumulators of merged gradients, which are zero between two updates, nor what a
    captured step is given.
    """
    scope = static.global_scope()
    kept = {v.name for v in main.list_vars() if v.persistable and v.type == _DENSE and not v.is_data}
    kept -= {LOSS_VALUE, capture.RATES, capture.STEP}
    for name in sorted(name for name in kept if not name.endswith(MERGED)):
        variable = scope.find_var(name)
        tensor = variable.get_tensor() if variable is not None else None
        if tensor is not None and tensor._is_initialized():
            yield name, tensor


def is_loss_scale(name: str) -> bool:
    """Whether a variable is of FP16's loss scale: the scale itself, or a count by which a dynamic one moves.

    The names are Paddle's (python/paddle/static/amp/decorator.py).
    """
    return re.fullmatch(r"(loss_scaling|num_good_steps|num_bad_steps)_\d+", name) is not None


def has_dynamic_loss_scale(names: Iterable[str]) -> bool:
    """Whether a state of these names has a loss scale that moves; a fixed one, as of a captured step, has no counts."""
    return any(name.startswith("num_bad_steps_") for name in names)


def own_names(main: static.Program) -> set[str]:
    """Names of the state that differs from rank to rank: the BN statistics, which no all-reduce touches."""
    return {
        name
        for op in main.global_block().ops
        for slot in ("MeanOut", "VarianceOut", "RunningMeanX", "RunningVarX", "RunningMeanZ", "RunningVarZ")
        if slot in op.output_names
        for name in op.output(slot)
    }


def values(main: static.Program, *, own: bool) -> Iterator[tuple[str, Array]]:
    """Yield the names and values of `tensors` in the plain network's form, which a checkpoint holds.

    They are either the rank's own or those that all ranks share: reading a value copies it from the device.
    """
    names_of_rank = own_names(main)
    forms = stored.forms(main)
    for name, tensor in tensors(main):
        if (name in names_of_rank) != own:
            continue
        value = np.asarray(tensor)
        if name in forms:
            value = forms[name].to_plain(value)
        yield name, value


def assign(tensor: Any, value: Array) -> None:
    """Gives a tensor a value, on the device where it is."""
    place = tensor._place()
    tensor.set(value, paddle.CUDAPlace(place.gpu_device_id()) if place.is_gpu_place() else paddle.CPUPlace())


def padded(value: Array, shape: Any) -> Array:
    """Filters [O, I, H, W] with zeros for the input channels that `shape` has more."""
    return np.pad(value, [(0, 0), (0, shape[1] - value.shape[1]), (0, 0), (0, 0)]) if value.ndim == 4 else value


def set_weights(main: static.Program, weights: dict[str, Array]) -> None:
    """Give a training program these FP32 weights: each parameter in its own type, and its FP32 master."""
    unused = set(weights)
    forms = stored.forms(main)
    for name, tensor in tensors(main):
        parameter = re.sub(r"_fp32_master_\d+$", "", name)
        if parameter not in weights:
            continue
        value = weights[parameter]
        value = forms[name].from_plain(value) if name in forms else padded(value, tensor.shape())
        assign(tensor, value.astype(np.array(tensor).dtype))
        unused.discard(parameter)
    assert not unused, f"the program has no {sorted(unused)}"


def broadcast_parameters(main: static.Program, ranks: Ranks) -> None:
    """Gives every rank rank 0's parameters, BN statistics and optimizer state (gloo's start-up broadcasts nothing).

    Of the state that every rank has: Paddle's automatic mode gives each rank a part of it.
    """
    mine = dict(tensors(main))
    for name in sorted(set(mine).intersection(*ranks.comm.allgather(set(mine)))):
        tensor = mine[name]
        value = np.array(tensor)
        ranks.comm.Bcast(value.reshape(-1).view(np.uint8))  # as bytes: MPI knows no half precision
        assign(tensor, value)


def average_statistics(main: static.Program, ranks: Ranks) -> None:
    """Gives every rank the mean of the ranks' BN statistics, so that one model is evaluated and not one a rank."""
    own = own_names(main)  # asked once: of HRNet's thousand operators for a thousand tensors it took seconds
    mine = [tensor for name, tensor in tensors(main) if name in own]
    if ranks.size == 1 or not mine:
        return
    values = [np.array(tensor) for tensor in mine]
    total = ranks.comm.allreduce(np.concatenate([value.ravel() for value in values]).astype(np.float64))
    means = np.split(total / ranks.size, np.cumsum([value.size for value in values])[:-1])
    for tensor, value, mean in zip(mine, values, means, strict=True):
        assign(tensor, mean.reshape(value.shape).astype(value.dtype))
