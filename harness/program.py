"""The training program: built once by Paddle's fleet for every device, then fitted to its transport.

Fleet adds to the forward graph its gradients, the optimizer, and for N ranks the all-reduce of the gradients, each
scaled by 1/N. On GPUs the program runs as built. Where the ranks are CPU processes the operators that set up or
wait for NCCL are taken out and gloo carries the same all-reduce operators.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import paddle
from paddle import static
from paddle.distributed import fleet

from harness.optimizers import OptimizerConfig, is_decayed
from harness.ranks import Ranks
from harness.schedules import Schedule

# Operators that only NCCL needs: gloo's collectives are synchronous and use no communicator of the program.
NCCL_ONLY = ("c_gen_nccl_id", "c_comm_init", "c_broadcast", "c_sync_calc_stream", "c_sync_comm_stream")


class _StepSchedule(paddle.optimizer.lr.LRScheduler):
    """Our schedule in the form that Paddle's executor feeds from."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        super().__init__(learning_rate=schedule.base)

    def get_lr(self) -> float:
        return self._schedule(self.last_epoch)


def _optimizer(config: OptimizerConfig, schedule: Schedule, program: static.Program) -> Any:
    rate = _StepSchedule(schedule)
    if config.kind == "sgd":
        for parameter in program.all_parameters():
            if config.decay_bn_and_bias or is_decayed(parameter.name):
                parameter.regularizer = paddle.regularizer.L2Decay(config.weight_decay)
        return paddle.optimizer.Momentum(learning_rate=rate, momentum=config.momentum)
    # What Paddle's LARS leaves without decay it also leaves without the trust ratio.
    return paddle.incubate.optimizer.LarsMomentumOptimizer(
        learning_rate=rate,
        momentum=config.momentum,
        lars_coeff=config.lars_coefficient,
        lars_weight_decay=config.weight_decay,
        exclude_from_weight_decay=[
            p.name for p in program.all_parameters() if not config.decay_bn_and_bias and not is_decayed(p.name)
        ],
        epsilon=config.lars_epsilon,
    )


@contextlib.contextmanager
def _without_waiting() -> Iterator[None]:
    """Lets fleet build a program of N ranks without connecting to them."""
    with mock.patch("paddle.distributed.fleet.meta_optimizers.common.wait_server_ready", lambda endpoints: None):
        yield


def minimize(loss: static.Variable, optimizer: OptimizerConfig, schedule: Schedule, *, device: str) -> None:
    """Adds gradients, their all-reduce over fleet's ranks and the optimizer to the program of `loss`.

    The ranks are those that the PADDLE_TRAINER variables name (`harness.ranks.connect`).
    """
    main, startup = loss.block.program, static.default_startup_program()
    strategy = fleet.DistributedStrategy()
    strategy.without_graph_optimization = True  # the program after this call is the program that runs
    inner = _optimizer(optimizer, schedule, main)
    with (
        contextlib.redirect_stdout(sys.stderr),  # fleet prints what it found to the user's screen
        contextlib.nullcontext() if device == "gpu" else _without_waiting(),
    ):
        fleet.init(is_collective=True, strategy=strategy)
        fleet.distributed_optimizer(inner, strategy).minimize(loss, startup)
    if device == "cpu":
        for program in (startup, main):
            _remove(program, NCCL_ONLY)


def _remove(program: static.Program, types: tuple[str, ...]) -> None:
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in types:
            block._remove_op(index, sync=False)
    block._sync_with_cpp()


def step_schedule(main: static.Program) -> _StepSchedule:
    """The learning rate of `main`; `.step()` moves it to the next step."""
    return main.lr_scheduler


def state(main: static.Program) -> Iterator[tuple[str, Any]]:
    """Name and tensor of all that a run must keep: parameters, BN statistics, optimizer state, loss scale."""
    scope = static.global_scope()
    for name in sorted(v.name for v in main.list_vars() if v.persistable and v.type == _DENSE):
        variable = scope.find_var(name)
        tensor = variable.get_tensor() if variable is not None else None
        if tensor is not None and tensor._is_initialized():
            yield name, tensor


def own_state(main: static.Program) -> set[str]:
    """Names of the state that differs from rank to rank: the BN statistics, which no all-reduce touches."""
    return {
        name
        for op in main.global_block().ops
        if "MeanOut" in op.output_names and "VarianceOut" in op.output_names
        for name in (*op.input("Mean"), *op.input("Variance"))
    }


def broadcast_parameters(main: static.Program, ranks: Ranks) -> None:
    """Gives every rank rank 0's parameters, BN statistics and optimizer state (gloo's start-up broadcasts nothing)."""
    for _, tensor in state(main):
        value = np.ascontiguousarray(np.array(tensor))
        ranks.comm.Bcast(value)
        tensor.set(value, paddle.CPUPlace())


_DENSE = paddle.base.core.VarDesc.VarType.LOD_TENSOR


def summary(main: static.Program) -> dict[str, Any]:
    """Operators of a program by type, for the log's header."""
    counts = Counter(op.type for op in main.global_block().ops)
    return {"operators": dict(counts.most_common()), "all_reduces": counts.get("c_allreduce_sum", 0)}
