"""Batch normalization over all ranks: statistics of the joined batch, forward and backward.

Fleet's `sync_batch_norm` strategy changes nothing in the program of this wheel, so the operators are exchanged here:
`span_ranks` before the gradients are added, and afterwards `replace_on_cpu` if the ranks are CPU processes, for which
Paddle has no kernel. There each operator becomes several with one all-reduce of 2 C numbers, C being the channels.

The formulas (Ioffe and Szegedy 2015, arXiv:1502.03167), for the image x and its output y:

    x_hat = (x - mean) / sqrt(variance + epsilon)       mean and variance of a channel, over the images of all ranks
    y     = gamma x_hat + bias
    d_gamma, d_bias = sum(d_y x_hat), sum(d_y)          of this rank's images; the program joins the ranks' sums later
    d_x   = f d_y - (x_hat a + b)                       d_y and d_x: gradients of the loss by y and x
    f     = gamma / sqrt(variance + epsilon)
    a     = f / m * sum_ranks(d_gamma)                  m: number of values of a channel over all ranks
    b     = f / m * sum_ranks(d_bias)

f d_y would be the gradient if mean and variance were constants. x_hat a + b is there because they depend on x.

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
    """Have batch normalizations of a forward program compute their statistics over the images of all ranks.

    Run this before gradients are added. Normalizations that compute no statistics, as those of an evaluation, stay as
    they are.

    Args:
        main: Forward program; changed in place.
    """
    for op in main.global_block().ops:
        if op.type != "batch_norm":
            continue
        uses_running_statistics = op.attr("is_test") or op.attr("use_global_stats")
        if not uses_running_statistics:
            op.desc.set_type(SYNC_NORM)


def check_on_gpu(main: static.Program) -> int:
    """Prove that Paddle will sum the statistics of a GPU's normalizations over the ranks; return how many it sums.

    Args:
        main: Training program.

    Raises:
        ValueError: There are such sums, and the flag UNIFIED is on in this process, with which Paddle skips them
            without a word.
    """
    count = sum(1 for op in main.global_block().ops if op.type == SYNC_NORM)
    skips_sums = paddle.get_flags(UNIFIED)[UNIFIED]
    if count > 0 and skips_sums:
        raise ValueError(
            f"{UNIFIED}=1: Paddle 2.6.2 would then normalize over each GPU's own images, in {count} places and without "
            "a word: set it to 0, or leave it unset"
        )
    return count


def replace_on_cpu(main: static.Program, ranks: int) -> None:
    """Replace each `sync_batch_norm` and its gradient operator, which have no CPU kernel, by operators that have one.

        before    sync_batch_norm
        after     operators for mean and variance of all ranks' images, batch_norm by these two, 2 lerp
        before    sync_batch_norm_grad
        after     batch_norm_grad, operators that sum d_gamma and d_bias over the ranks, batch_norm, elementwise_sub

    The methods `forward` and `backward` of `_CpuEquivalent` say what each operator computes. A `lerp` moves a running
    mean or variance towards the batch's.

    Args:
        main: Training program with its gradients; changed in place.
        ranks: Number of ranks over which the statistics are computed.
    """
    block = main.global_block()
    # Taken now, because `rewrite` removes the operators that have them.
    momentums = {op.attr("momentum") for op in block.ops if op.type == SYNC_NORM}

    def substitute(op: Operator) -> list[Step] | None:
        if op.type == SYNC_NORM:
            return _CpuEquivalent(block, op, ranks).forward()
        if op.type == SYNC_NORM_GRADIENT:
            return _CpuEquivalent(block, op, ranks).backward()
        return None  # any other operator stays

    rewrite(main, substitute)
    # A `lerp` reads its weight, 1 - momentum, from a variable, which is filled at the start of the program.
    for momentum in sorted(momentums):
        _fill_lerp_weight(block, momentum)
    block._sync_with_cpp()


def _fill_lerp_weight(block: Block, momentum: float) -> None:
    """Insert, at the start of a block, the operator that fills a variable with the weight of running statistics.

    Args:
        block: Block to change; gets the variable.
        momentum: Share of the old running statistic that a step keeps. The variable holds 1 - momentum.
    """
    name = _lerp_variable(momentum)
    block.create_var(name=name, shape=[1], dtype="float32")
    fill = {"shape": [1], "value": _lerp_weight(momentum), "dtype": paddle.float32, "op_role": FORWARD}
    insert(block, 0, "fill_constant", {}, {"Out": [name]}, **fill)


def _lerp_weight(momentum: float) -> float:
    """Return by what part of the way a batch norm moves its running statistics to the batch's: 1 - momentum.

    Args:
        momentum: Share of the old running statistic that a step keeps, such as 0.9.
    """
    return float(1.0 - momentum)


def _lerp_variable(momentum: float) -> str:
    """Return the name of the variable that holds the weight of `lerp` for all normalizations of this momentum."""
    return f"sync_bn.share_{six_digits(_lerp_weight(momentum))}"


class _OwnStatistics(NamedTuple):
    """Names of the variables in which a `batch_norm` saves the statistics of the image that it normalizes."""

    mean: str
    inverse_deviation: str  # 1 / sqrt(variance + epsilon)
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
        self.values_per_channel = ranks * math.prod(shape) // self.channels  # m: over all ranks
        assert self.values_per_channel > 0, "the batch must be static"
        # Of all ranks' images; `forward` writes them and `backward` reads them. In the slot SavedVariance Paddle's own
        # kernel stores 1 / sqrt(variance). Here it is the variance.
        self.of_all_ranks = _Statistics(*operands(op, "SavedMean", "SavedVariance"))

    def forward(self) -> list[Step]:
        """Return the operators of a forward batch normalization over all ranks, in order.

        1. Compute the mean and the variance of this rank's images.
        2. Compute from them the mean and the variance of all ranks' images, into `self.of_all_ranks`.
        3. Normalize the image by `self.of_all_ranks`.
        4. Move the running statistics towards `self.of_all_ranks`.
        """
        scale, bias, out = operands(self.op, "Scale", "Bias", "Y")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))
        of_rank = _Statistics(self._var("rank_mean", self.channels), self._var("rank_variance", self.channels))
        weight = _lerp_variable(self.op.attr("momentum"))
        return [
            *self._compute_of_rank(of_rank),
            *self._compute_of_all_ranks(of_rank),
            self._normalize(scale=scale, bias=bias, to=out),
            _lerp(running.mean, self.of_all_ranks.mean, weight),  # running += weight * (batch - running)
            _lerp(running.variance, self.of_all_ranks.variance, weight),
        ]

    def _compute_of_rank(self, of_rank: _Statistics) -> list[Step]:
        """Return the operators that compute the mean and the variance of this rank's images, for each channel.

            batch_norm(x) -> mean, inverse_deviation    inverse_deviation = 1 / sqrt(variance), with an epsilon of 0
            pow(inverse_deviation, -2) -> variance

        A `batch_norm` is Paddle's fastest way to mean and variance. The image that it normalizes by them is of no use.

        Args:
            of_rank: Names of the two FP32 variables, of shape [channels], that the operators write.
        """
        scale, bias, out, workspace = operands(self.op, "Scale", "Bias", "Y", "ReserveSpace")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))  # demanded, not changed
        inverse_deviation = self._var("rank_inverse_deviation", self.channels)
        own = _OwnStatistics(of_rank.mean, inverse_deviation, workspace)
        unused_image = out  # `forward` writes the right image there later
        return [
            self._batch_norm(scale, bias, running, by_given=False, epsilon=0.0, to=unused_image, own=own),
            _step("pow", inverse_deviation, to=of_rank.variance, factor=-2.0),
        ]

    def _compute_of_all_ranks(self, of_rank: _Statistics) -> list[Step]:
        """Return the operators that write the mean and the variance of all ranks' images to `self.of_all_ranks`.

            rank_square = rank_variance + rank_mean^2           this is E[x^2] of the rank's images
            mean, square = averages over the ranks of rank_mean and rank_square
            variance = square - mean^2

        Variances cannot be averaged, because the ranks' means differ.

        Args:
            of_rank: Names of the variables of this rank's mean and variance, of shape [channels].
        """
        channels = self.channels
        rank_mean_squared = self._var("rank_mean_squared", channels)
        rank_square = self._var("rank_square", channels)
        sums = self._var("sums", 2, channels)  # over the ranks, of rank_mean and rank_square
        averages = self._var("averages", 2, channels)
        square = self._var("square", channels)
        mean_squared = self._var("mean_squared", channels)
        return [
            _step("square", of_rank.mean, to=rank_mean_squared),
            _step("elementwise_add", of_rank.variance, rank_mean_squared, to=rank_square, axis=-1),
            *_sum_over_ranks(of_rank.mean, rank_square, to=sums),
            _step("scale", sums, to=averages, scale=1 / self.ranks),  # every rank has equally many images
            _unstack(averages, to=(self.of_all_ranks.mean, square)),
            _step("square", self.of_all_ranks.mean, to=mean_squared),
            _step("elementwise_sub", square, mean_squared, to=self.of_all_ranks.variance, axis=-1),
        ]

    def backward(self) -> list[Step]:
        """Return the operators that compute the gradients of a batch normalization over all ranks, in order.

        The image's gradient has two terms, d_x = f d_y - (x_hat a + b). Paddle has an operator for each:

            f d_y          the gradient of a `batch_norm` whose mean and variance are constants
            x_hat a + b    a `batch_norm` of x, with a as its scale and b as its bias

        x_hat is (x - mean) / sqrt(variance + epsilon), and f is gamma / sqrt(variance + epsilon). gamma is the scale;
        mean and variance are those of all ranks' images. a and b are sums over the ranks, times a factor, of d_gamma
        and d_bias, the gradients of scale and bias. These two are written summed over this rank's images alone.
        """
        d_gamma, d_bias, d_x = operands(self.op, "Scale@GRAD", "Bias@GRAD", "X@GRAD")
        shape = self.block.var(self.x).shape
        first_term = self._var("first_term", *shape)
        second_term = self._var("second_term", *shape)
        a = self._var("a", self.channels)
        b = self._var("b", self.channels)
        return [
            # first_term = f d_y. The same operator writes d_gamma and d_bias.
            self._gradient_at_constant_statistics(d_x=first_term, d_gamma=d_gamma, d_bias=d_bias),
            # a and b, from sums over the ranks of d_gamma and d_bias. These two stay this rank's own.
            *self._compute_a_and_b(d_gamma, d_bias, to=(a, b)),
            # second_term = x_hat a + b
            self._normalize(scale=a, bias=b, to=second_term),
            # d_x = first_term - second_term
            _step("elementwise_sub", first_term, second_term, to=d_x, axis=-1),
        ]

    def _compute_a_and_b(self, d_gamma: str, d_bias: str, *, to: tuple[str, str]) -> list[Step]:
        """Return the operators that sum d_gamma and d_bias over the ranks and scale the sums, which gives a and b.

            a = f / m * sum_ranks(d_gamma)      f = gamma / sqrt(variance + epsilon)
            b = f / m * sum_ranks(d_bias)       m: number of values of a channel over all ranks

        Both are computed as the rows of one [2, channels] variable, so that one all-reduce serves both.

        Args:
            d_gamma: Name of the gradient of the scale, summed over this rank's images; [channels].
            d_bias: Name of the gradient of the bias, likewise.
            to: Names of the variables for a and b.
        """
        (gamma,) = operands(self.op, "Scale")
        sums = self._var("gradient_sums", 2, self.channels)  # rows: sum_ranks(d_gamma) and sum_ranks(d_bias)
        f_over_m = self._var("f_over_m", self.channels)
        a_and_b = self._var("a_and_b", 2, self.channels)  # rows: a and b
        return [
            *_sum_over_ranks(d_gamma, d_bias, to=sums),
            *self._compute_f_over_m(gamma, to=f_over_m),
            _step("elementwise_mul", sums, f_over_m, to=a_and_b, axis=-1),  # multiplies each row by f / m
            _unstack(a_and_b, to=to),
        ]

    def _compute_f_over_m(self, gamma: str, *, to: str) -> list[Step]:
        """Return the operators that compute f / m, by which sums of gradients over the ranks are multiplied.

            f     = gamma / sqrt(variance + epsilon)              gamma: the scale; variance: of all ranks' images
            f / m = gamma / sqrt(m^2 variance + m^2 epsilon)      m: number of values of a channel over all ranks

        The second form needs no operator for the division by m.

        Args:
            gamma: Name of the variable of the scale, of shape [channels].
            to: Name of the variable for the result.
        """
        m_squared = self.values_per_channel**2
        variance = self.of_all_ranks.variance
        radicand = self._var("radicand", self.channels)
        inverse_root = self._var("inverse_root", self.channels)
        return [
            # radicand = m^2 variance + m^2 epsilon
            _step("scale", variance, to=radicand, scale=m_squared, bias=m_squared * self.op.attr("epsilon")),
            _step("rsqrt", radicand, to=inverse_root),  # 1 / sqrt(radicand)
            _step("elementwise_mul", inverse_root, gamma, to=to, axis=-1),
        ]

    def _gradient_at_constant_statistics(self, *, d_x: str, d_gamma: str, d_bias: str) -> Step:
        """Return a `batch_norm_grad` that takes mean and variance of all ranks' images for constants.

            d_x     = gamma / sqrt(variance + epsilon) * d_y      d_y: the gradient of the output
            d_gamma = sum(d_y x_hat)                              over this rank's images; x_hat: x normalized
            d_bias  = sum(d_y)                                    likewise

        Args:
            d_x: Name of the variable for the image's gradient, as far as mean and variance do not depend on the image.
            d_gamma: Name of the variable for the gradient of the scale.
            d_bias: Name of the variable for the gradient of the bias.
        """
        op = self.op
        mean, variance = [self.of_all_ranks.mean], [self.of_all_ranks.variance]
        inputs = {slot: op.input(slot) for slot in ("X", "Y@GRAD", "Scale", "Bias")}
        inputs |= {"Mean": mean, "Variance": variance}
        # The operator demands these two slots. With `use_global_stats` it reads those of the line above instead.
        inputs |= {"SavedMean": mean, "SavedVariance": variance}
        outputs = {"X@GRAD": [d_x], "Scale@GRAD": [d_gamma], "Bias@GRAD": [d_bias]}
        attrs = {
            "use_global_stats": True,  # Mean and Variance are constants
            "epsilon": op.attr("epsilon"),
            "data_layout": op.attr("data_layout"),
        }
        # The operator has these attributes too. With `use_global_stats` they change nothing.
        attrs |= {"momentum": op.attr("momentum"), "is_test": False, "trainable_statistics": False}
        return Step("batch_norm_grad", inputs, outputs, attrs)

    def _normalize(self, *, scale: str, bias: str, to: str) -> Step:
        """Return the operator that normalizes this rank's image x by the mean and the variance of all ranks' images.

            (x - mean) / sqrt(variance + epsilon) * scale + bias

        Args:
            scale: Name of the variable of the scale, of shape [channels].
            bias: Name of the variable of the bias, likewise.
            to: Name of the variable for the result.
        """
        # Paddle's `batch_norm` demands these outputs, and nothing reads them.
        unused = _OwnStatistics(
            mean=self._var("unused_mean", self.channels),
            inverse_deviation=self._var("unused_inverse_deviation", self.channels),
            workspace=self._var("unused_workspace", 1),
        )
        epsilon = self.op.attr("epsilon")
        return self._batch_norm(scale, bias, self.of_all_ranks, by_given=True, epsilon=epsilon, to=to, own=unused)

    def _batch_norm(
        self,
        scale: str,
        bias: str,
        statistics: _Statistics,
        *,
        by_given: bool,
        epsilon: float,
        to: str,
        own: _OwnStatistics,
    ) -> Step:
        """Return Paddle's own `batch_norm` of the image `self.x`.

        Args:
            scale: Name of the variable of the scale, of shape [channels].
            bias: Name of the variable of the bias, likewise.
            statistics: Names of the variables of a mean and a variance, which the operator never changes.
            by_given: Whether the image is normalized by `statistics`, or else by its own mean and variance.
            epsilon: Number that is added to the variance.
            to: Name of the variable for the normalized image.
            own: Names of the variables for the image's own statistics, which are right only if the image is normalized
                by them.
        """
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
            "SavedMean": [own.mean],
            "SavedVariance": [own.inverse_deviation],
            "ReserveSpace": [own.workspace],
        }
        attrs = {
            "is_test": by_given,
            "use_global_stats": by_given,
            "epsilon": epsilon,
            "momentum": 1.0,  # so that it does not move `statistics` towards those of the image
            "data_layout": self.op.attr("data_layout"),
        }
        return Step("batch_norm", inputs, outputs, attrs)

    def _var(self, name: str, *shape: int) -> str:
        """Create an FP32 variable of this operator's own, and return its name."""
        full_name = f"{self.x}.sync_bn.{name}"
        self.block.create_var(name=full_name, shape=list(shape), dtype="float32")
        return full_name


def _step(kind: str, *inputs: str, to: str, **attrs: Any) -> Step:
    """Return an operator of one or two inputs, in the slots X and Y, and one output, in the slot Out.

    Args:
        kind: Paddle's type of the operator, such as "scale".
        *inputs: Names of one or two variables.
        to: Name of the variable for the result.
        **attrs: Attributes of the operator.
    """
    slots = {slot: [name] for slot, name in zip(("X", "Y"), inputs, strict=False)}
    return Step(kind, slots, {"Out": [to]}, attrs)


def _lerp(running: str, batch: str, weight: str) -> Step:
    """Return the operator of running += weight * (batch - running)."""
    return Step("lerp", {"X": [running], "Y": [batch], "Weight": [weight]}, {"Out": [running]}, {})


def _sum_over_ranks(first: str, second: str, *, to: str) -> list[Step]:
    """Return the operators that stack two variables and sum them over the ranks in one all-reduce.

    Args:
        first: Name of a variable of shape [C].
        second: Name of another one.
        to: Name of the variable for the sums, of shape [2, C].
    """
    return [
        Step("stack", {"X": [first, second]}, {"Y": [to]}, {"axis": 0}),
        _step("c_allreduce_sum", to, to=to, ring_id=0, use_calc_stream=True),
    ]


def _unstack(both: str, *, to: tuple[str, str]) -> Step:
    """Return the operator that splits a [2, C] variable into two [C]."""
    return Step("unstack", {"X": [both]}, {"Y": list(to)}, {"axis": 0, "num": 2})
