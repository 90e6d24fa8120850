"""Batch normalization over all ranks: statistics of the joined batch, forward and backward.

Fleet's `sync_batch_norm` strategy changes nothing in the program of this wheel, so the operators are exchanged here:
`span_ranks` before the gradients are added, and afterwards `replace_on_cpu` if the ranks are CPU processes, for which
Paddle has no kernel. There each operator becomes several with one all-reduce of 2 C numbers, C being the channels:

forward   mean and E[x^2] of the rank, all-reduced / ranks; y = (x - mean) / sqrt(variance + epsilon) * scale + bias
backward  d_scale = sum(dy x^), d_bias = sum(dy), both of the rank (the optimizer's all-reduce joins them later);
          dx = scale / sqrt(variance + epsilon) * (dy - sum_ranks(d_bias) / m - x^ sum_ranks(d_scale) / m)

with x^ the normalized x and m the number of values of a channel over all ranks (Ioffe and Szegedy 2015,
arXiv:1502.03167).

On GPUs Paddle 2.6.2's kernel looks for a communicator in process group 0, which a static program has not, and in its
device context, where `c_comm_init` leaves one only with FLAGS_dynamic_static_unified_comm=0; finding none it skips the
sum without a word (github.com/PaddlePaddle/Paddle/pull/65935 mends it in a later Paddle).
"""

import math
from typing import Any, NamedTuple

import paddle
from paddle import static
from paddle.base.framework import Block, Operator

from program.ops import FORWARD, operands
from program.passes.edit import Step, insert, rewrite
from runlog.digits import six_digits

SYNC_NORM, SYNC_NORM_GRADIENT = "sync_batch_norm", "sync_batch_norm_grad"
UNIFIED = "FLAGS_dynamic_static_unified_comm"


class _Statistics(NamedTuple):
    """Names of the variables of a channel's mean and variance."""

    mean: str
    variance: str


def span_ranks(main: static.Program) -> None:
    """Have every batch normalization of a forward program that computes statistics compute them over all ranks.

    Run this before gradients are added. Normalizations of an evaluation stay as they are.
    """
    for op in main.global_block().ops:
        if op.type == "batch_norm" and not op.attr("is_test") and not op.attr("use_global_stats"):
            op.desc.set_type(SYNC_NORM)


def check_on_gpu(main: static.Program) -> int:
    """Return how many normalizations of a GPU's program compute their statistics over all ranks.

    Raises ValueError if there are any and FLAGS_dynamic_static_unified_comm is on in this process. With this flag
    Paddle would silently skip the sums over the ranks.
    """
    count = sum(1 for op in main.global_block().ops if op.type == SYNC_NORM)
    if count and paddle.get_flags(UNIFIED)[UNIFIED]:
        raise ValueError(
            f"{UNIFIED}=1: Paddle 2.6.2 would then normalize over each GPU's own images, in {count} places and without "
            "a word: set it to 0, or leave it unset"
        )
    return count


def replace_on_cpu(main: static.Program, ranks: int) -> None:
    """Replace each `sync_batch_norm` and its gradient, which have no CPU kernel, by operators that have one.

    `ranks` is the number of ranks over which the statistics are computed.

    The running statistics are updated by `lerp`: running += weight * (batch - running), with weight = 1 - momentum.
    `lerp` reads its weight from a variable. So the program starts by filling such a variable for each weight that
    occurs.
    """
    block = main.global_block()
    # `lerp` updates the running statistics: running += weight * (batch - running). It reads the weight from a variable.
    weights_by_name: dict[str, float] = {}  # name of such a variable: the weight that it holds

    def substitute(op: Operator) -> list[Step] | None:
        if op.type == SYNC_NORM:
            weight = 1.0 - op.attr("momentum")
            name = f"sync_bn.share_{six_digits(weight)}"
            weights_by_name[name] = weight
            return _CpuEquivalent(block, op, ranks).forward(weight_name=name)
        if op.type == SYNC_NORM_GRADIENT:
            return _CpuEquivalent(block, op, ranks).backward()
        return None  # any other operator stays

    rewrite(main, substitute)
    for name, weight in weights_by_name.items():
        block.create_var(name=name, shape=[1], dtype="float32")
        fill = {"shape": [1], "value": weight, "dtype": paddle.float32, "op_role": FORWARD}
        insert(block, 0, "fill_constant", {}, {"Out": [name]}, **fill)
    block._sync_with_cpp()


class _CpuEquivalent:
    """The operators that together compute what one `sync_batch_norm` or its gradient does.

    Methods append operators to `steps`, in order. Their arguments are the names of the variables that the operators
    read or write.
    """

    def __init__(self, block: Block, op: Operator, ranks: int) -> None:
        self.block = block
        self.op = op
        self.ranks = ranks
        self.steps: list[Step] = []
        self.x = op.input("X")[0]
        shape = block.var(self.x).shape
        self.channels = shape[1] if op.attr("data_layout") == "NCHW" else shape[-1]
        self.count = ranks * math.prod(shape) // self.channels  # number of values of a channel over all ranks
        assert self.count > 0, "the batch must be static"
        # In the slot SavedVariance Paddle stores 1 / sqrt(variance). Here it is the variance, which `backward` reads.
        self.mean, self.variance = operands(op, "SavedMean", "SavedVariance")

    def forward(self, weight_name: str) -> list[Step]:
        """Return the steps of a forward batch normalization over all ranks.

        1. Each rank computes the mean and the variance of its own images, in `self.mean` and `self.variance`.
        2. They are replaced by the mean and the variance of all ranks' images.
        3. The image is normalized by them.
        4. The running statistics move towards them: running += weight * (batch - running). The variable called
           `weight_name` holds the weight.
        """
        scale, bias, out, reserve = operands(self.op, "Scale", "Bias", "Y", "ReserveSpace")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))

        # Paddle's batch norm is called only for this rank's mean and variance, because it is the fastest way to them.
        # Its slot SavedVariance gets 1 / sqrt(variance + epsilon), here with an epsilon of 0. Its output in `out` is
        # overwritten by `_normalize` below. The running statistics stay as they are.
        saved = {"SavedMean": self.mean, "SavedVariance": self.variance, "ReserveSpace": reserve}
        self._batch_norm(running, saved, scale, bias, out, is_test=False, use_global_stats=False, epsilon=0.0)
        self._append("pow", self.variance, to=self.variance, factor=-2.0)  # from 1 / sqrt(variance) to variance

        self._join_statistics()  # from here on mean and variance are those of all ranks' images
        self._normalize(scale, bias, out)
        self._append("lerp", running.mean, self.mean, weight_name, to=running.mean)
        self._append("lerp", running.variance, self.variance, weight_name, to=running.variance)
        return self.steps

    def _join_statistics(self) -> None:
        """Append operators that turn mean and variance of each rank's images into those of all ranks' images.

        The ranks' variances cannot be averaged, but mean and E[x^2] = variance + mean^2 can. The variance of all images
        is then E[x^2] - mean^2. The variables `self.mean` and `self.variance` are changed in place.
        """
        # The ranks' variances cannot be averaged, but mean and E[x^2] = variance + mean^2 can.
        squared_mean = self._var("square", self.channels)
        self._append("square", self.mean, to=squared_mean)  # of this rank
        self._append("elementwise_add", self.variance, squared_mean, to=self.variance, axis=-1)  # holds E[x^2] now

        both = self._sum_over_ranks(self.mean, self.variance)
        self._append("scale", both, to=both, scale=1 / self.ranks)
        self._unstack(both, self.mean, self.variance)

        # The variance of all images is E[x^2] - mean^2.
        self._append("square", self.mean, to=squared_mean)  # of all ranks
        self._append("elementwise_sub", self.variance, squared_mean, to=self.variance, axis=-1)

    def backward(self) -> list[Step]:
        """Return the steps of the gradient of a batch normalization over all ranks.

            d_x = f d_y - (f / m) (x_hat sum_ranks(d_gamma) + sum_ranks(d_bias))
            f = gamma / sqrt(variance + epsilon)

        x_hat is the normalized image, gamma the scale, and m is `self.count`.
        """
        d_gamma, d_bias, d_x, gamma = operands(self.op, "Scale@GRAD", "Bias@GRAD", "X@GRAD", "Scale")
        shape = self.block.var(self.x).shape
        first_term = self._var("straight", *shape)
        second_term = self._var("correction", *shape)
        # The first term would be the whole gradient if mean and variance were constants.
        self._gradient_at_fixed_statistics({"X@GRAD": [first_term], "Scale@GRAD": [d_gamma], "Bias@GRAD": [d_bias]})

        # The second term is x_hat * a + b, with numbers a and b for each channel: a batch norm with scale a and bias b.
        sums = self._sum_over_ranks(d_gamma, d_bias)  # [2, C]
        factor = self._factor_over_count(gamma)  # f / m
        a_and_b = sums  # the variable of the sums is overwritten
        self._append("elementwise_mul", sums, factor, to=a_and_b, axis=-1)  # a = f / m * sum_ranks(d_gamma), b likewise

        a = self._var("sum_scale", self.channels)
        b = self._var("sum_bias", self.channels)
        self._unstack(a_and_b, a, b)
        self._normalize(a, b, second_term)  # x_hat * a + b
        self._append("elementwise_sub", first_term, second_term, to=d_x, axis=-1)
        return self.steps

    def _factor_over_count(self, gamma: str) -> str:
        """Append f / m = gamma / sqrt(m^2 variance + m^2 epsilon), with m = `self.count`, and return its variable."""
        m_squared = self.count**2
        offset = m_squared * self.op.attr("epsilon")
        factor = self._var("factor", self.channels)  # holds one part after the other
        self._append("scale", self.variance, to=factor, scale=m_squared, bias=offset)  # m^2 variance + m^2 epsilon
        self._append("rsqrt", factor, to=factor)  # 1 / sqrt(m^2 variance + m^2 epsilon)
        self._append("elementwise_mul", factor, gamma, to=factor, axis=-1)
        return factor

    def _gradient_at_fixed_statistics(self, outputs: dict[str, list[str]]) -> None:
        """Append Paddle's batch norm gradient as if mean and variance of all ranks' images were constants.

        `outputs` names, by slot, the variables that it writes: the gradients by the image, the scale and the bias.
        """
        op = self.op
        inputs = {slot: op.input(slot) for slot in ("X", "Y@GRAD", "Scale", "Bias", "SavedMean", "SavedVariance")}
        inputs |= {"Mean": [self.mean], "Variance": [self.variance]}
        attrs = {name: op.attr(name) for name in ("epsilon", "momentum", "data_layout")}
        attrs |= {"is_test": False, "use_global_stats": True, "trainable_statistics": False}
        self.steps.append(Step("batch_norm_grad", inputs, outputs, attrs))

    def _var(self, name: str, *shape: int) -> str:
        """Create an FP32 variable of this operator's own, and return its name."""
        full_name = f"{self.x}.sync_bn.{name}"
        self.block.create_var(name=full_name, shape=list(shape), dtype="float32")
        return full_name

    def _append(self, kind: str, *inputs: str, to: str, **attrs: Any) -> None:
        """Append an operator of up to three inputs, in the slots X, Y and Weight, and one output."""
        slots = {slot: [name] for slot, name in zip(("X", "Y", "Weight"), inputs, strict=False)}
        self.steps.append(Step(kind, slots, {"Out": [to]}, attrs))

    def _sum_over_ranks(self, first: str, second: str) -> str:
        """Append a stack of two [C] variables to one [2, C] and its sum over the ranks, and return its name."""
        both = self._var("both", 2, self.channels)
        self.steps.append(Step("stack", {"X": [first, second]}, {"Y": [both]}, {"axis": 0}))
        self._append("c_allreduce_sum", both, to=both, ring_id=0, use_calc_stream=True)
        return both

    def _unstack(self, both: str, first: str, second: str) -> None:
        """Append the operator that splits a [2, C] variable into two [C]."""
        self.steps.append(Step("unstack", {"X": [both]}, {"Y": [first, second]}, {"axis": 0, "num": 2}))

    def _normalize(self, scale: str, bias: str, out: str) -> None:
        """Append out = (x - mean) / sqrt(variance + epsilon) * scale + bias, as one operator."""
        saved = {
            "SavedMean": self._var("unused_mean", self.channels),
            "SavedVariance": self._var("unused_variance", self.channels),
            "ReserveSpace": self._var("unused_reserve", 1),
        }
        attrs = {"is_test": True, "use_global_stats": True, "epsilon": self.op.attr("epsilon")}
        self._batch_norm(_Statistics(self.mean, self.variance), saved, scale, bias, out, **attrs)

    def _batch_norm(
        self, running: _Statistics, saved: dict[str, str], scale: str, bias: str, out: str, **attrs: Any
    ) -> None:
        """Append Paddle's own `batch_norm` of the image `self.x`, which does not change the running statistics.

        - `running`, `scale` and `bias` name the variables that it reads.
        - `out` names the variable for its result. `saved` names, by slot, those for the batch's mean, the batch's
          1 / sqrt(variance + epsilon) and its workspace.
        - `attrs` are attributes of the operator: `epsilon`, and whether it normalizes by the `running` statistics or by
          the batch's. The image's layout and the momentum are added to them.
        """
        # running = momentum * running + (1 - momentum) * batch, so a momentum of 1 leaves it as it is
        attrs |= {"momentum": 1.0, "data_layout": self.op.attr("data_layout")}
        inputs = {
            "X": [self.x],
            "Scale": [scale],
            "Bias": [bias],
            "Mean": [running.mean],
            "Variance": [running.variance],
        }
        outputs = {slot: [name] for slot, name in saved.items()}
        outputs |= {"Y": [out], "MeanOut": [running.mean], "VarianceOut": [running.variance]}
        self.steps.append(Step("batch_norm", inputs, outputs, attrs))
