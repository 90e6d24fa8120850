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

    `ranks` is the number of ranks over which the statistics are computed. The program starts by filling the variables
    with the weights that `lerp`, one of the new operators, reads.
    """
    block = main.global_block()
    weight_by_variable = _lerp_weights(block)

    def substitute(op: Operator) -> list[Step] | None:
        if op.type == SYNC_NORM:
            return _CpuEquivalent(block, op, ranks).forward()
        if op.type == SYNC_NORM_GRADIENT:
            return _CpuEquivalent(block, op, ranks).backward()
        return None  # any other operator stays

    rewrite(main, substitute)
    for name, weight in weight_by_variable.items():
        block.create_var(name=name, shape=[1], dtype="float32")
        fill = {"shape": [1], "value": weight, "dtype": paddle.float32, "op_role": FORWARD}
        insert(block, 0, "fill_constant", {}, {"Out": [name]}, **fill)
    block._sync_with_cpp()


def _lerp_weights(block: Block) -> dict[str, float]:
    """Return the weight with which each `sync_batch_norm` moves its running statistics, by the variable to hold it."""
    return {_lerp_variable(op): _lerp_weight(op) for op in block.ops if op.type == SYNC_NORM}


def _lerp_weight(op: Operator) -> float:
    """Return by what part of the way a `sync_batch_norm` moves its running statistics to the batch's."""
    return float(1.0 - op.attr("momentum"))


def _lerp_variable(op: Operator) -> str:
    """Return the name of the variable that holds the weight of a `sync_batch_norm`; equal weights share one."""
    return f"sync_bn.share_{six_digits(_lerp_weight(op))}"


class _Saved(NamedTuple):
    """Names of the variables in which a `batch_norm` saves what its gradient could read."""

    mean: str  # of the batch
    inverse_deviation: str  # of the batch: 1 / sqrt(variance + epsilon)
    workspace: str


class _CpuEquivalent:
    """The operators that together compute what one `sync_batch_norm` or its gradient does.

    Methods return operators, in order. Their arguments are the names of the variables that the operators read or write.
    """

    def __init__(self, block: Block, op: Operator, ranks: int) -> None:
        self.block = block
        self.op = op
        self.ranks = ranks
        (self.x,) = op.input("X")
        shape = block.var(self.x).shape
        self.channels = shape[1] if op.attr("data_layout") == "NCHW" else shape[-1]
        self.count = ranks * math.prod(shape) // self.channels  # number of values of a channel over all ranks
        assert self.count > 0, "the batch must be static"
        # In the slot SavedVariance Paddle stores 1 / sqrt(variance). Here it is the variance, which `backward` reads.
        self.batch = _Statistics(*operands(op, "SavedMean", "SavedVariance"))

    def forward(self) -> list[Step]:
        """Return the operators of a forward batch normalization over all ranks.

        1. Each rank computes the mean and the variance of its own images, in the variables `self.batch`.
        2. They are replaced by the mean and the variance of all ranks' images.
        3. The image is normalized by them.
        4. The running statistics move towards them: running += weight * (batch - running). This is Paddle's `lerp`.
        """
        scale, bias, out = operands(self.op, "Scale", "Bias", "Y")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))
        weight = _lerp_variable(self.op)
        return [
            *self._statistics_of_rank(),
            *self._joined_statistics(),
            self._normalize(scale, bias, to=out),
            _lerp(running.mean, self.batch.mean, weight),
            _lerp(running.variance, self.batch.variance, weight),
        ]

    def _statistics_of_rank(self) -> list[Step]:
        """Return the operators that compute the mean and the variance of this rank's images, in `self.batch`.

        They are a by-product of Paddle's `batch_norm`, which is the fastest way to them. With an epsilon of 0 it saves
        1 / sqrt(variance), and the power of -2 makes this the variance. What it normalizes is not used: `forward`
        overwrites it.
        """
        scale, bias, out, workspace = operands(self.op, "Scale", "Bias", "Y", "ReserveSpace")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))
        saved = _Saved(mean=self.batch.mean, inverse_deviation=self.batch.variance, workspace=workspace)
        attrs = {"is_test": False, "use_global_stats": False, "epsilon": 0.0}
        return [
            self._batch_norm(scale, bias, running, to=out, saved=saved, **attrs),
            _step("pow", saved.inverse_deviation, to=self.batch.variance, factor=-2.0),
        ]

    def _joined_statistics(self) -> list[Step]:
        """Return the operators that turn mean and variance of each rank's images into those of all ranks' images.

        The ranks' variances cannot be averaged, but mean and E[x^2] = variance + mean^2 can. The variance of all images
        is then E[x^2] - mean^2. The variables of `self.batch` are overwritten. In between, that of the variance holds
        E[x^2].
        """
        mean, variance = self.batch
        mean_of_squares = variance
        squared_mean = self._var("square", self.channels)
        both = self._var("both", 2, self.channels)
        return [
            _step("square", mean, to=squared_mean),  # of this rank
            _step("elementwise_add", variance, squared_mean, to=mean_of_squares, axis=-1),
            *_sum_over_ranks(mean, mean_of_squares, to=both),
            _step("scale", both, to=both, scale=1 / self.ranks),
            _unstack(both, to=(mean, mean_of_squares)),
            _step("square", mean, to=squared_mean),  # of all ranks
            _step("elementwise_sub", mean_of_squares, squared_mean, to=variance, axis=-1),
        ]

    def backward(self) -> list[Step]:
        """Return the operators of the gradient of a batch normalization over all ranks.

            d_x = f d_y - (x_hat a + b)
            f = gamma / sqrt(variance + epsilon)
            a = f / m * sum_ranks(d_gamma)
            b = f / m * sum_ranks(d_bias)

        x_hat is the normalized image, gamma the scale, and m is `self.count`. The first term would be the whole
        gradient if mean and variance were constants. The second term has the form of a batch norm whose scale is a and
        whose bias is b, so it is computed by one.
        """
        d_gamma, d_bias, d_x, gamma = operands(self.op, "Scale@GRAD", "Bias@GRAD", "X@GRAD", "Scale")
        shape = self.block.var(self.x).shape
        first_term = self._var("straight", *shape)
        second_term = self._var("correction", *shape)
        factor = self._var("factor", self.channels)  # f / m
        sums = self._var("both", 2, self.channels)  # over the ranks, of d_gamma and d_bias
        a = self._var("sum_scale", self.channels)
        b = self._var("sum_bias", self.channels)
        a_and_b = sums  # the variable of the sums is overwritten
        return [
            self._gradient_at_fixed_statistics(d_x=first_term, d_gamma=d_gamma, d_bias=d_bias),
            *_sum_over_ranks(d_gamma, d_bias, to=sums),
            *self._factor_over_count(gamma, to=factor),
            _step("elementwise_mul", sums, factor, to=a_and_b, axis=-1),
            _unstack(a_and_b, to=(a, b)),
            self._normalize(a, b, to=second_term),
            _step("elementwise_sub", first_term, second_term, to=d_x, axis=-1),
        ]

    def _factor_over_count(self, gamma: str, *, to: str) -> list[Step]:
        """Return the operators of f / m = gamma / sqrt(m^2 variance + m^2 epsilon), with m = `self.count`.

        The variable `to` holds one part of the formula after the other, and f / m at the end.
        """
        m_squared = self.count**2
        offset = m_squared * self.op.attr("epsilon")
        return [
            _step("scale", self.batch.variance, to=to, scale=m_squared, bias=offset),  # m^2 variance + m^2 epsilon
            _step("rsqrt", to, to=to),  # 1 / sqrt(m^2 variance + m^2 epsilon)
            _step("elementwise_mul", to, gamma, to=to, axis=-1),
        ]

    def _gradient_at_fixed_statistics(self, *, d_x: str, d_gamma: str, d_bias: str) -> Step:
        """Return Paddle's batch norm gradient as if mean and variance of all ranks' images were constants.

        It writes the gradients by the image, the scale and the bias.
        """
        op = self.op
        inputs = {slot: op.input(slot) for slot in ("X", "Y@GRAD", "Scale", "Bias", "SavedMean", "SavedVariance")}
        inputs |= {"Mean": [self.batch.mean], "Variance": [self.batch.variance]}
        outputs = {"X@GRAD": [d_x], "Scale@GRAD": [d_gamma], "Bias@GRAD": [d_bias]}
        attrs = {name: op.attr(name) for name in ("epsilon", "momentum", "data_layout")}
        attrs |= {"is_test": False, "use_global_stats": True, "trainable_statistics": False}
        return Step("batch_norm_grad", inputs, outputs, attrs)

    def _normalize(self, scale: str, bias: str, *, to: str) -> Step:
        """Return the operator of (x - mean) / sqrt(variance + epsilon) * scale + bias, by statistics of all ranks."""
        saved = _Saved(
            mean=self._var("unused_mean", self.channels),
            inverse_deviation=self._var("unused_variance", self.channels),
            workspace=self._var("unused_reserve", 1),
        )
        attrs = {"is_test": True, "use_global_stats": True, "epsilon": self.op.attr("epsilon")}
        return self._batch_norm(scale, bias, self.batch, to=to, saved=saved, **attrs)

    def _batch_norm(
        self, scale: str, bias: str, statistics: _Statistics, *, to: str, saved: _Saved, **attrs: Any
    ) -> Step:
        """Return Paddle's own `batch_norm` of the image `self.x`.

        `attrs` are its `epsilon`, and whether it normalizes by `statistics` or by the batch's own statistics, which it
        then saves in `saved`. Paddle would move `statistics` towards the batch's. Here they stay as they are, because
        the momentum is 1: statistics = momentum * statistics + (1 - momentum) * batch.
        """
        attrs |= {"momentum": 1.0, "data_layout": self.op.attr("data_layout")}
        inputs = {
            "X": [self.x],
            "Scale": [scale],
            "Bias": [bias],
            "Mean": [statistics.mean],
            "Variance": [statistics.variance],
        }
        outputs = {
            "Y": [to],
            "MeanOut": [statistics.mean],  # Paddle demands the variables of the inputs here
            "VarianceOut": [statistics.variance],
            "SavedMean": [saved.mean],
            "SavedVariance": [saved.inverse_deviation],
            "ReserveSpace": [saved.workspace],
        }
        return Step("batch_norm", inputs, outputs, attrs)

    def _var(self, name: str, *shape: int) -> str:
        """Create an FP32 variable of this operator's own, and return its name."""
        full_name = f"{self.x}.sync_bn.{name}"
        self.block.create_var(name=full_name, shape=list(shape), dtype="float32")
        return full_name


def _step(kind: str, *inputs: str, to: str, **attrs: Any) -> Step:
    """Return an operator of one or two inputs, in the slots X and Y, and one output."""
    slots = {slot: [name] for slot, name in zip(("X", "Y"), inputs, strict=False)}
    return Step(kind, slots, {"Out": [to]}, attrs)


def _lerp(running: str, batch: str, weight: str) -> Step:
    """Return the operator of running += weight * (batch - running)."""
    return Step("lerp", {"X": [running], "Y": [batch], "Weight": [weight]}, {"Out": [running]}, {})


def _sum_over_ranks(first: str, second: str, *, to: str) -> list[Step]:
    """Return the operators that stack two [C] variables to one [2, C], `to`, and sum it over the ranks."""
    return [
        Step("stack", {"X": [first, second]}, {"Y": [to]}, {"axis": 0}),
        _step("c_allreduce_sum", to, to=to, ring_id=0, use_calc_stream=True),
    ]


def _unstack(both: str, *, to: tuple[str, str]) -> Step:
    """Return the operator that splits a [2, C] variable into two [C]."""
    return Step("unstack", {"X": [both]}, {"Y": list(to)}, {"axis": 0, "num": 2})
