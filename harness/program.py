"""The training program: built once by Paddle's fleet for every device, then fitted to its transport.

Fleet adds to the forward graph its gradients, the optimizer, and for N ranks the all-reduce of the gradients, each
scaled by 1/N. On GPUs the program runs as built. Where the ranks are CPU processes the operators that set up or
wait for NCCL are taken out and gloo carries the same all-reduce operators.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import paddle
from paddle import static
from paddle.base.framework import Block
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_optimizers.common import CollectiveHelper

from harness import passes, sync_bn, verify
from harness import precision as precisions
from harness import strategy as strategies
from harness.env import Job
from harness.inspect import buckets
from harness.optimizers import OptimizerConfig, is_decayed
from harness.precision import Precision
from harness.ranks import Ranks, elsewhere
from harness.schedules import Schedule
from harness.strategy import Strategy

# Operators that only NCCL needs: gloo's collectives are synchronous and use no communicator of the program.
NCCL_ONLY = ("c_gen_nccl_id", "c_comm_init", "c_broadcast", "c_sync_calc_stream", "c_sync_comm_stream")


class _StepSchedule(paddle.optimizer.lr.LRScheduler):
    """Our schedule in the form that Paddle's executor feeds from."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        super().__init__(learning_rate=schedule.base)

    def get_lr(self) -> float:
        return self._schedule(self.last_epoch)


def _optimizer(config: OptimizerConfig, schedule: Schedule, program: static.Program, *, merged: bool) -> Any:
    rate = _StepSchedule(schedule)
    if config.kind == "sgd":
        for parameter in program.all_parameters():
            if config.decay_bn_and_bias or is_decayed(parameter.name):
                parameter.regularizer = paddle.regularizer.L2Decay(config.weight_decay)
        return paddle.optimizer.Momentum(learning_rate=rate, momentum=config.momentum, use_multi_tensor=merged)
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
def _inserting_plainly() -> Iterator[None]:
    """Lets fleet insert operators without comparing the whole program with C++'s each time, squared work."""
    with mock.patch.object(Block, "_insert_op", Block._insert_op_without_sync):
        yield


@contextlib.contextmanager
def _without_waiting() -> Iterator[None]:
    """Lets fleet build a program of N ranks without connecting to them."""
    with mock.patch("paddle.distributed.fleet.meta_optimizers.common.wait_server_ready", lambda endpoints: None):
        yield


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a training program is to be built."""

    device: str  # cpu | gpu
    precision: Precision = precisions.PRECISIONS["fp32"]
    strategy: Strategy = field(default_factory=Strategy)
    layout: str = "NCHW"
    loss_scale: float = 0.0  # 0: dynamic
    ranks_listen: bool = True  # False: only the program is wanted, the other ranks do not exist

    def micro_batch(self, batch: int) -> int:
        """Images that a device computes at once, of `batch` for one update."""
        return batch // self.strategy.gradient_merge


def _check_auto(job: Job) -> None:
    """What Paddle's automatic mode was found to do on this wheel, by the programs that it builds.

    Raises:
        ValueError: the job is not one that it can run as it says.
    """
    said = "STRATEGY=auto: Paddle's automatic mode"
    if job.device != "gpu" or job.world_size != strategies.AUTO_RANKS:
        raise ValueError(
            f"{said} divides the state over {strategies.AUTO_RANKS} GPUs: set DGXNNODES and DGXNGPU to so many"
        )
    if job.precision != "amp_o1":
        raise ValueError(f"{said} trains in mixed precision: set PRECISION=amp_o1")
    if job.mode == "train":
        raise ValueError(
            f"{said} trains by LARS, not by the recipe, and no rank has the whole state to evaluate or save: "
            "set MODE=throughput"
        )


def plan(job: Job) -> Plan:
    """The plan that a job's environment describes.

    Raises:
        ValueError: STRATEGY names what is unknown or refused, or what does not go with the rest of the job.
    """
    chosen, knobs = precisions.PRECISIONS[job.precision], strategies.parse(job.strategy)
    if job.batchsize % knobs.gradient_merge:
        raise ValueError(f"STRATEGY: gradient_merge={knobs.gradient_merge}: must divide BATCHSIZE={job.batchsize}")
    if knobs.auto:
        _check_auto(job)
    if knobs.perturb_input and job.mode == "train":
        raise ValueError("STRATEGY: perturb_input=1 is a control of harness.tune: set MODE=throughput")
    return Plan(
        device=job.device,
        precision=chosen,
        strategy=knobs,
        layout=job.layout or chosen.layout,
        loss_scale=float(job.loss_scale),
    )


def minimize(
    loss: static.Variable,
    optimizer: OptimizerConfig,
    schedule: Schedule,
    *,
    device: str = "cpu",
    plan: Plan | None = None,
) -> None:
    """Adds gradients, their all-reduce over fleet's ranks and the optimizer to the program of `loss`.

    The ranks are those that the PADDLE_TRAINER variables name (`harness.ranks.connect`).

    Raises:
        ValueError: the plan asks for what this Paddle cannot build, or the built program is not what was asked for.
    """
    plan = plan or Plan(device=device)
    main, startup = loss.block.program, static.default_startup_program()
    loss.persistable = True  # so that it can be read after a step
    main.loss = loss.name
    knobs = strategies.resolve(plan.strategy, dtype=plan.precision.dtype, layout=plan.layout, device=plan.device)
    # Read when gradients are added: without it enable_addto finds nothing to do.
    paddle.set_flags(knobs.flags | {"FLAGS_max_inplace_grad_add": 8 if knobs.enable_addto else 0})
    inner = _optimizer(optimizer, schedule, main, merged=bool(knobs.merged_optimizer))
    if not knobs.auto:
        inner = precisions.decorate(inner, plan.precision, loss_scale=plan.loss_scale)
    strategy = _fleet_strategy(knobs)
    with (
        precisions.fp32_statistics(),
        contextlib.redirect_stdout(sys.stderr),  # fleet prints what it found to the user's screen
        elsewhere(),  # its sharding writes its programs to files
        _inserting_plainly(),
        contextlib.nullcontext() if plan.device == "gpu" and plan.ranks_listen else _without_waiting(),
    ):
        fleet.init(is_collective=True, strategy=strategy, log_level="ERROR")
        fleet.distributed_optimizer(inner).minimize(loss, startup)
    precisions.feed_half(main, plan.precision)
    if knobs.perturb_input:
        passes.perturb_input(main)
    if knobs.fuse_elewise_add_act_ops:
        passes.simplify_sums(main)
    passes.spread_mean(main)
    programs = [main]  # of an update, each once
    if knobs.gradient_merge > 1:
        programs = [passes.merge_gradients(main, startup, steps=knobs.gradient_merge), main]
    if not knobs.auto and fleet.worker_num() > 1:
        _join_rings(startup, knobs.nccl_comm_num)
        passes.bucket_all_reduces(
            main, limit_mib=knobs.fuse_grad_size_in_MB, half=knobs.fp16_allreduce, rings=knobs.nccl_comm_num
        )
    precisions.cast_startup(main, startup)
    main.update = programs[:-1] * (knobs.gradient_merge - 1) + [main]
    main.verified = _verify(main, startup, optimizer, knobs, plan, ranks=fleet.worker_num())
    if plan.device == "cpu":
        for program in programs:
            passes.convolve_gradients(program)
            sync_bn.on_cpu(program, fleet.worker_num())
            passes.thin_depends(program)
            _remove(program, NCCL_ONLY)
        _remove(startup, NCCL_ONLY)
    for program in programs:
        verify.kernels(program, plan.device)


def _join_rings(startup: static.Program, rings: int) -> None:
    """Opens the communicators 1 to `rings` - 1 as fleet opens number 0."""
    helper = CollectiveHelper(fleet.fleet._role_maker, wait_port=False)
    endpoints = fleet.worker_endpoints()
    for ring in range(1, rings):
        helper._init_communicator(
            startup, endpoints[fleet.worker_index()], endpoints, fleet.worker_index(), ring, False, ring, True
        )


def _verify(
    main: static.Program,
    startup: static.Program,
    optimizer: OptimizerConfig,
    knobs: Strategy,
    plan: Plan,
    *,
    ranks: int,
) -> list[str]:
    """What was proved of the built program, in words.

    Raises:
        ValueError: it is not data-parallel training by the optimizer and the knobs asked for.
    """
    if knobs.auto:
        return _auto_chose(main, optimizer, ranks=ranks)
    parts = knobs.gradient_merge
    followed = verify.gradients(main, ranks=ranks, parts=parts)
    updates = verify.optimizer(main, optimizer)
    verify.arithmetic(main, plan.precision.dtype)
    summed = f"summed over {ranks} ranks once, " if ranks > 1 else ""
    said = [
        f"{len(followed)} gradients {summed}scaled by 1/{ranks * parts} once",
        f"{optimizer.kind} by {', '.join(f'{kind} of {n}' for kind, n in updates.items())}",
    ]
    if parts > 1:
        merged = verify.merged(main.update[0], main, ranks=ranks, parts=parts)
        said.append(f"{merged} gradients of {parts} micro-steps merged before their sum")
    if ranks > 1:
        verify.communicators(startup, ranks=ranks, rings=knobs.nccl_comm_num)
    return said + verify.knobs(main, knobs, asked=plan.strategy, ranks=ranks)


def _auto_chose(main: static.Program, optimizer: OptimizerConfig, *, ranks: int) -> list[str]:
    """What Paddle's automatic mode made of the program; it is said, not refused."""
    chosen = [*fleet.fleet._context["applied_meta_list"], *fleet.fleet._context["applied_graph_list"]]
    said = [f"STRATEGY=auto chose {', '.join(chosen)}"]
    for check in (
        lambda: verify.gradients(main, ranks=ranks),
        lambda: verify.optimizer(main, optimizer),
    ):
        try:
            check()
        except verify.Refused as reason:
            said.append(f"STRATEGY=auto is not the job asked for: {reason}")
    return said


def verified(main: static.Program) -> list[str]:
    """What `minimize` proved of the program, or what Paddle's automatic mode made of it."""
    return list(main.verified)


def of_update(main: static.Program) -> list[static.Program]:
    """The programs whose runs, in this order, make one update: `main` alone, or micro-steps and `main`."""
    return list(main.update)


def _fleet_strategy(knobs: Strategy) -> Any:
    strategy = fleet.DistributedStrategy()
    if knobs.auto:
        strategy.auto = True
        return strategy
    strategy.without_graph_optimization = True  # the program after this call is the program that runs
    strategy.fuse_all_reduce_ops = False  # our own pass cuts the buckets
    build = static.BuildStrategy()
    build.fuse_bn_act_ops = knobs.fuse_bn_act_ops
    build.fuse_bn_add_act_ops = knobs.fuse_bn_add_act_ops
    build.fuse_elewise_add_act_ops = knobs.fuse_elewise_add_act_ops
    build.enable_addto = knobs.enable_addto
    build.enable_inplace = knobs.enable_inplace
    strategy.build_strategy = build
    return strategy


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
    """Name and tensor of all that a run must keep: parameters, BN statistics, optimizer state, loss scale.

    The loss is none of it, nor are the accumulators of merged gradients, which are zero between two updates.
    """
    scope = static.global_scope()
    kept = {v.name for v in main.list_vars() if v.persistable and v.type == _DENSE} - {getattr(main, "loss", "")}
    for name in sorted(name for name in kept if not name.endswith(verify.MERGED)):
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


def assign(tensor: Any, value: np.ndarray) -> None:
    """Gives a tensor a value, on the device where it is."""
    place = tensor._place()
    tensor.set(value, paddle.CUDAPlace(place.gpu_device_id()) if place.is_gpu_place() else paddle.CPUPlace())


def padded(value: np.ndarray, shape: Any) -> np.ndarray:
    """Filters [O, I, H, W] with zeros for the input channels that `shape` has more."""
    return np.pad(value, [(0, 0), (0, shape[1] - value.shape[1]), (0, 0), (0, 0)]) if value.ndim == 4 else value


def _bfloat16(value: np.ndarray) -> np.ndarray:
    """FP32 rounded to bfloat16, whose bits Paddle takes as uint16: NumPy has no such type."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even


def set_weights(main: static.Program, weights: dict[str, np.ndarray]) -> None:
    """Gives a training program these FP32 weights, in the type of each parameter, and to its FP32 master alike."""
    left = set(weights)
    for name, tensor in state(main):
        of = re.sub(r"_fp32_master_\d+$", "", name)
        if of in weights:
            value = padded(weights[of], tensor.shape())
            assign(tensor, _bfloat16(value) if tensor._dtype() == _BF16 else value.astype(np.array(tensor).dtype))
            left.discard(of)
    assert not left, f"the program has no {sorted(left)}"


def broadcast_parameters(main: static.Program, ranks: Ranks) -> None:
    """Gives every rank rank 0's parameters, BN statistics and optimizer state (gloo's start-up broadcasts nothing).

    Of the state that every rank has: Paddle's automatic mode gives each rank a part of it.
    """
    mine = dict(state(main))
    for name in sorted(set(mine).intersection(*ranks.gather(set(mine)))):
        tensor = mine[name]
        value = np.array(tensor)
        ranks.comm.Bcast(value.reshape(-1).view(np.uint8))  # as bytes: MPI knows no half precision
        assign(tensor, value)


def average_statistics(main: static.Program, ranks: Ranks) -> None:
    """Gives every rank the mean of the ranks' BN statistics, so that one model is evaluated and not one a rank."""
    tensors = [tensor for name, tensor in state(main) if name in own_state(main)]
    if ranks.size == 1 or not tensors:
        return
    values = [np.array(tensor) for tensor in tensors]
    total = ranks.comm.allreduce(np.concatenate([value.ravel() for value in values]).astype(np.float64))
    means = np.split(total / ranks.size, np.cumsum([value.size for value in values])[:-1])
    for tensor, value, mean in zip(tensors, values, means, strict=True):
        assign(tensor, mean.reshape(value.shape).astype(value.dtype))


_DENSE = paddle.base.core.VarDesc.VarType.LOD_TENSOR
_BF16 = paddle.base.core.VarDesc.VarType.BF16


def summary(main: static.Program) -> dict[str, Any]:
    """Operators of a program by type, MiB that a step's all-reduces sum, what was proved of it: for the header."""
    counts = Counter(op.type for op in main.global_block().ops)
    return {
        "operators": dict(counts.most_common()),
        "all_reduces": counts.get("c_allreduce_sum", 0),
        "all_reduce_mib": sum(bucket["mib"] for bucket in buckets(main)),
        "fused": {kind: n for kind, n in counts.items() if kind.startswith(("fused_", "merged_"))},
        "verified": verified(main),
    }
