"""A training step that is captured as a CUDA graph: what its program needs for that, and the proof that it is safe.

A replay repeats what was launched with the values and addresses of then. So inputs, learning rate and state lie where
they were, the rate is looked up on the device, the ranks are summed on the stream that computes, and no operator may
read on the host or copy from it.
"""

from typing import Any

from program.ops import OPTIMIZE, prove
from program.passes.edit import insert

RATES, STEP = "captured.rates", "captured.step"  # a table of learning rates, and the number of the next one
RATES_AT_ONCE = 4096  # steps
# Of Paddle, before the first run of any program; they bind all programs of the process to a GPU.
FLAGS = {"FLAGS_new_executor_use_cuda_graph": True, "FLAGS_sync_nccl_allreduce": False}
# Operators of ResNet-50's programs. Captured on the null GPU, none waits, reads on the host or copies from it.
SAFE = {
    *("batch_norm", "cast", "conv2d", "elementwise_add", "elementwise_mul", "flatten_contiguous_range"),
    *("fused_batch_norm_act", "fused_bn_add_activation", "fused_elemwise_add_activation", "mul", "pool2d"),
    *("reduce_mean", "relu", "resnet_unit", "softmax_with_cross_entropy"),
}
SAFE |= {f"{kind}_grad" for kind in SAFE}
SAFE |= {"label_smooth", "one_hot_v2", "squeeze2", "scale", "sum", "grad_add", "assign"}
SAFE |= {"c_allreduce_sum", "coalesce_tensor", "depend", "fill_constant", "share_buffer", "gather", "increment"}
SAFE |= {"momentum", "merged_momentum", "lars_momentum", "sin"}  # sin is of perturb_input


def prepare(main: Any, rate: str) -> None:
    """Keeps what a step is fed where it is, and looks the learning rate, the variable `rate`, up on the device.

    The number of the step has no dimension, so that the rate keeps the shape that a checkpoint has it in.
    """
    block = main.global_block()
    for variable in main.list_vars():
        if variable.is_data:
            variable.persistable = True
    block.create_var(name=RATES, shape=[RATES_AT_ONCE], dtype="float32", persistable=True, stop_gradient=True)
    block.create_var(name=STEP, shape=[], dtype="int64", persistable=True, stop_gradient=True)
    insert(block, 0, "gather", {"X": [RATES], "Index": [STEP]}, {"Out": [rate]}, axis=0, op_role=OPTIMIZE)
    insert(block, 1, "increment", {"X": [STEP]}, {"Out": [STEP]}, step=1.0, op_role=OPTIMIZE)
    block._sync_with_cpp()


def check(main: Any) -> str:
    """That a step of this program may be captured, in words.

    Raises Refused where an operator reads or copies on the host, computes elsewhere, or its memory may move.
    """
    block = main.global_block()
    for op in block.ops:
        for is_unsafe, reason in (
            (op.type not in SAFE, "nothing is known of its reads and copies on the host: train ResNet-50"),
            (op.type == "c_allreduce_sum" and not op.attr("use_calc_stream"), "it sums on a stream of its own"),
            (op.has_attr("force_cpu") and op.attr("force_cpu"), "it computes on the host"),
        ):
            prove(not is_unsafe, f"STRATEGY: cuda_graph=1: {op.type}: {reason}, or leave cuda_graph out")
    for v in block.vars.values():
        prove(v.persistable or not v.is_data, f"STRATEGY: cuda_graph=1: {v.name} is fed, so a replay would not find it")
    return f"cuda_graph: {len(block.ops)} operators that a graph can hold"
