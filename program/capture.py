"""A training step that is captured as a CUDA graph: what its program needs for that, and the proof that it is safe.

A replay repeats what was launched with the values and addresses of then. So inputs, learning rate and state lie where
they were, the rate is looked up on the device, the ranks are summed on the stream that computes, and no operator may
read on the host or copy from it.

Evaluations are launched, not captured. By the roofline an operator of ResNet-50's (batch 256, amp_o2) takes 125 us on
an A100 80 GB, far longer than a launch. One of HRNet's (2048 x 1024 pixels) takes 21 us in FP32 and 5 us in amp_o2,
which launches may bound; but on 8 GPUs an evaluation is 63 forward steps after 1,850 of training.
"""

from paddle import static
from paddle.base.framework import Operator

from program.ops import OPTIMIZE, Refused
from program.passes.edit import Step, insert_all

RATES, STEP = "captured.rates", "captured.step"  # a table of learning rates, and the index of the next one
RATES_AT_ONCE = 4096  # steps
# Of Paddle, before the first run of any program; they bind all programs of the process to a GPU.
FLAGS = {"FLAGS_new_executor_use_cuda_graph": True, "FLAGS_sync_nccl_allreduce": False}
# Operators of ResNet-50's programs, and of HRNet's in FP32. Captured on the null GPU (a stand-in for CUDA's libraries,
# tests/null_gpu), none of them waits, reads on the host or copies from it.
WITH_GRADIENT = {
    *("batch_norm", "cast", "conv2d", "elementwise_add", "elementwise_mul", "flatten_contiguous_range"),
    *("fused_batch_norm_act", "fused_bn_add_activation", "fused_elemwise_add_activation", "mul", "pool2d"),
    *("reduce_mean", "relu", "resnet_unit", "softmax_with_cross_entropy"),
    *("sync_batch_norm", "bilinear_interp_v2", "concat", "reduce_sum", "elementwise_div"),  # HRNet's
}
SAFE = WITH_GRADIENT | {f"{kind}_grad" for kind in WITH_GRADIENT}
SAFE |= {"label_smooth", "one_hot_v2", "squeeze2", "scale", "sum", "grad_add", "assign"}
SAFE |= {"c_allreduce_sum", "coalesce_tensor", "depend", "fill_constant", "share_buffer", "gather", "increment"}
SAFE |= {"equal", "not_equal", "unsqueeze2"}  # of the loss of HRNet
SAFE |= {"momentum", "merged_momentum", "lars_momentum"}
SAFE |= {"sin"}  # of perturb_input


def prepare(main: static.Program, rate_name: str) -> None:
    """Change a training program so that its step can be captured once as a CUDA graph and replayed.

    A replay reads each value at the address that it had at the capture. So inputs keep their addresses, and the program
    looks up the learning rate by itself.

    Args:
        main: Training program; changed in place.
        rate_name: Name of the variable that holds the learning rate.
    """
    for variable in main.list_vars():
        if variable.is_data:
            variable.persistable = True  # so that the input stays at one address
    _look_up_rate(main, rate_name)


def _look_up_rate(main: static.Program, rate_name: str) -> None:
    """Have a program look up its learning rate at the start of each step: rate = rates[index], then index += 1.

    The variable RATES holds the rates of the next 4096 steps (RATES_AT_ONCE), the variable STEP the index. Before the
    first step, and when all rates are used, the training loop must set RATES anew, and STEP to 0.

    Args:
        main: Training program; changed in place.
        rate_name: Name of the variable that holds the learning rate.
    """
    block = main.global_block()
    block.create_var(name=RATES, shape=[RATES_AT_ONCE], dtype="float32", persistable=True, stop_gradient=True)
    # The shape [] of the index makes the rate that is looked up a scalar too, which the rate is in a checkpoint.
    block.create_var(name=STEP, shape=[], dtype="int64", persistable=True, stop_gradient=True)
    look_up = Step("gather", {"X": [RATES], "Index": [STEP]}, {"Out": [rate_name]}, {"axis": 0})
    increment = Step("increment", {"X": [STEP]}, {"Out": [STEP]}, {"step": 1.0})
    insert_all(block, 0, [look_up, increment], op_role=OPTIMIZE)
    block._sync_with_cpp()


def check(main: static.Program) -> str:
    """Prove that a step of this program can be captured as a CUDA graph and replayed.

    Args:
        main: Training program.

    Returns:
        The proof in words, such as "cuda_graph: 335 operators that a graph can hold".

    Raises:
        Refused: A graph cannot hold an operator or input; the first one is named.
    """
    block = main.global_block()
    for op in block.ops:
        reason = _why_not_captured(op)
        if reason:
            raise Refused(f"STRATEGY: cuda_graph=1: {op.type}: {reason}: leave cuda_graph out")
    for variable in block.vars.values():
        # A replay reads each tensor at the address that it had at the capture. Only persistable ones stay there.
        is_fed_anew = variable.is_data and not variable.persistable
        if is_fed_anew:
            raise Refused(f"STRATEGY: cuda_graph=1: {variable.name} is fed, so a replay would not find it")
    return f"cuda_graph: {len(block.ops)} operators that a graph can hold"


def _why_not_captured(op: Operator) -> str:
    """Return the reason why a CUDA graph cannot hold an operator, for a message.

    A graph can hold an operator that is known to run only on the GPU (SAFE lists these types), on the one stream that
    is captured.

    Args:
        op: Operator of a training program.

    Returns:
        The reason; an empty text if a graph can hold the operator.
    """
    if op.type not in SAFE:
        return "nothing is known of its reads and copies on the host"
    if op.type == "c_allreduce_sum" and not op.attr("use_calc_stream"):
        return "it sums on a stream of its own"
    if op.has_attr("force_cpu") and op.attr("force_cpu"):
        return "it computes on the host"
    return ""
