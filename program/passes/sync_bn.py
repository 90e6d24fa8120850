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
    """Return how many normalizations of a GPU's program compute their statistics over all ranks.

    Args:
        main: Training program.

    Raises:
        ValueError: There are such normalizations and FLAGS_dynamic_static_unified_comm is on in this process. Paddle
            would then skip the sums over the ranks without a word.
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

    A `sync_batch_norm` becomes, in this order:

        several operators    the mean and variance of all ranks' images, with one all-reduce
        batch_norm           the image, normalized by this mean and variance
        2 lerp               the running mean and variance, moved towards this mean and variance

    A `sync_batch_norm_grad` becomes, in this order:

        batch_norm_grad      the gradients of scale, bias and image, as if the mean and variance were constants
        several operators    the sums of the gradients of scale and bias over the ranks, with one all-reduce
        batch_norm           a correction of the image's gradient, because the mean and variance depend on the image
        elementwise_sub      the image's gradient: that of `batch_norm_grad` minus the correction

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
        # Of all ranks' images; `forward` writes them and `backward` reads them. In the slot SavedVariance Paddle's own
        # kernel stores 1 / sqrt(variance). Here it is the variance.
        self.batch = _Statistics(*operands(op, "SavedMean", "SavedVariance"))

    def forward(self) -> list[Step]:
        """Return the operators of a forward batch normalization over all ranks, in order.

        1. Compute the mean and the variance of this rank's images.
        2. Compute from them the mean and the variance of all ranks' images, into `self.batch`.
        3. Normalize the image by `self.batch`.
        4. Move the running statistics towards `self.batch`.
        """
        scale, bias, out = operands(self.op, "Scale", "Bias", "Y")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))
        of_rank = _Statistics(self._var("rank_mean", self.channels), self._var("rank_variance", self.channels))
        weight = _lerp_variable(self.op.attr("momentum"))
        return [
            *self._compute_of_rank(of_rank),
            *self._compute_of_all_ranks(of_rank),
            self._normalize(scale, bias, to=out),
            _lerp(running.mean, self.batch.mean, weight),  # running += weight * (batch - running)
            _lerp(running.variance, self.batch.variance, weight),
        ]

    def _compute_of_rank(self, of_rank: _Statistics) -> list[Step]:
        """Return the operators that compute the mean and the variance of this rank's images, for each channel.

            batch_norm    with an epsilon of 0: saves the mean and 1 / sqrt(variance)
            pow           (1 / sqrt(variance))^-2, which is the variance

        Paddle's `batch_norm` is the fastest way to mean and variance. It also normalizes the images, by the statistics
        of this rank alone. This result is of no use, and goes to "Y" of the `sync_batch_norm`, where `forward` later
        writes the right result.

        Args:
            of_rank: Names of the two FP32 variables, of shape [channels], that the operators write.
        """
        scale, bias, out, workspace = operands(self.op, "Scale", "Bias", "Y", "ReserveSpace")
        # `batch_norm` demands running statistics. They stay as they are: `_batch_norm` gives it a momentum of 1.
        running = _Statistics(*operands(self.op, "Mean", "Variance"))
        # Where `batch_norm` saves the mean, 1 / sqrt(variance) and a workspace of its own.
        saved = _Saved(of_rank.mean, self._var("rank_inverse_deviation", self.channels), workspace)
        return [
            self._batch_norm(scale, bias, running, by_given_statistics=False, epsilon=0.0, to=out, saved=saved),
            _step("pow", saved.inverse_deviation, to=of_rank.variance, factor=-2.0),
        ]

    def _compute_of_all_ranks(self, of_rank: _Statistics) -> list[Step]:
        """Return the operators that write the mean and the variance of all ranks' images to `self.batch`.

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
            _unstack(averages, to=(self.batch.mean, square)),
            _step("square", self.batch.mean, to=mean_squared),
            _step("elementwise_sub", square, mean_squared, to=self.batch.variance, axis=-1),
        ]

    def backward(self) -> list[Step]:
        """Return the operators that compute the gradients of a batch normalization over all ranks, in order.

        The gradient of the image x has two terms, because the mean and the variance depend on x (arXiv:1502.03167):

            d_x   = f d_y - (x_hat a + b)
            f     = gamma / sqrt(variance + epsilon)
            a     = f / m * sum_ranks(d_gamma)
            b     = f / m * sum_ranks(d_bias)
            x_hat = (x - mean) / sqrt(variance + epsilon)

        d_y is the gradient of the output, gamma the scale, and m the number of values of a channel over all ranks
        (`self.count`). The mean and the variance are those of all ranks' images. d_gamma and d_bias, the gradients of
        scale and bias, are written too, summed over this rank's images alone.

        Paddle has an operator for each term. The first, f d_y, is the gradient of a batch norm whose mean and
        variance are constants. The second, x_hat a + b, is a batch norm of x whose scale is a and whose bias is b.
        """
        d_gamma, d_bias, d_x = operands(self.op, "Scale@GRAD", "Bias@GRAD", "X@GRAD")
        shape = self.block.var(self.x).shape
        first_term = self._var("first_term", *shape)  # f d_y
        second_term = self._var("second_term", *shape)  # x_hat a + b
        a = self._var("a", self.channels)
        b = self._var("b", self.channels)
        return [
            # first_term = f d_y. The same operator writes d_gamma and d_bias.
            self._gradient_at_fixed_statistics(d_x=first_term, d_gamma=d_gamma, d_bias=d_bias),
            # a and b. Copies of d_gamma and d_bias are summed over the ranks. The originals stay this rank's: the
            # program sums the gradients of all parameters later.
            *self._compute_a_and_b(d_gamma, d_bias, to=(a, b)),
            # second_term = x_hat a + b
            self._normalize(a, b, to=second_term),
            # d_x = first_term - second_term
            _step("elementwise_sub", first_term, second_term, to=d_x, axis=-1),
        ]

    def _compute_a_and_b(self, d_gamma: str, d_bias: str, *, to: tuple[str, str]) -> list[Step]:
        """Return the operators that compute a and b, by which `backward` then computes the image's gradient d_x.

            a = f / m * sum_ranks(d_gamma)
            b = f / m * sum_ranks(d_bias)

        f is gamma / sqrt(variance + epsilon), where gamma is the scale, and m is the number of values of a channel over
        all ranks (`self.count`). With a and b, d_x is f d_y - (x_hat a + b), where x_hat is the normalized image.

        Args:
            d_gamma: Name of the gradient of the scale, summed over this rank's images.
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
            # Multiplies both rows by f / m.
            _step("elementwise_mul", sums, f_over_m, to=a_and_b, axis=-1),
            _unstack(a_and_b, to=to),
        ]

    def _compute_f_over_m(self, gamma: str, *, to: str) -> list[Step]:
        """Return the operators that compute f / m, by which `backward` multiplies the sums over the ranks.

            f     = gamma / sqrt(variance + epsilon)
            f / m = gamma / sqrt(m^2 variance + m^2 epsilon)

        m is the number of values of a channel over all ranks (`self.count`). In the second form the division by m needs
        no operator of its own: one `scale` computes m^2 variance + m^2 epsilon.

        Args:
            gamma: Name of the variable of the scale, of shape [channels].
            to: Name of the variable for the result.
        """
        m_squared = self.count**2
        offset = m_squared * self.op.attr("epsilon")
        radicand = self._var("radicand", self.channels)  # m^2 variance + m^2 epsilon
        inverse_root = self._var("inverse_root", self.channels)
        return [
            _step("scale", self.batch.variance, to=radicand, scale=m_squared, bias=offset),
            _step("rsqrt", radicand, to=inverse_root),
            _step("elementwise_mul", inverse_root, gamma, to=to, axis=-1),
        ]

    def _gradient_at_fixed_statistics(self, *, d_x: str, d_gamma: str, d_bias: str) -> Step:
        """Return Paddle's operator for the gradients of a batch norm whose mean and variance are held constant.

        The constants are the mean and the variance of all ranks' images (`self.batch`). In truth
        the mean and the variance depend on the image. So the image's gradient is what this operator computes minus a
        second term, which `backward` subtracts.

        Args:
            d_x: Name of the variable for the gradient of the image: scale / sqrt(variance + epsilon) * (gradient of the
                output).
            d_gamma: Name of the variable for the gradient of the scale, summed over this rank's images alone.
            d_bias: Name of the variable for the gradient of the bias, likewise.
        """
        op = self.op
        inputs = {slot: op.input(slot) for slot in ("X", "Y@GRAD", "Scale", "Bias")}
        constants = {"Mean": [self.batch.mean], "Variance": [self.batch.variance]}
        # Paddle demands these too, and does not look at their values.
        unused_inputs = {"SavedMean": [self.batch.mean], "SavedVariance": [self.batch.variance]}
        unused_attrs = {"momentum": op.attr("momentum"), "is_test": False, "trainable_statistics": False}
        outputs = {"X@GRAD": [d_x], "Scale@GRAD": [d_gamma], "Bias@GRAD": [d_bias]}
        attrs = {
            "use_global_stats": True,  # Mean and Variance are constants
            "epsilon": op.attr("epsilon"),
            "data_layout": op.attr("data_layout"),
        }
        # `|` joins dictionaries: the operator gets all inputs and all attributes from above.
        return Step("batch_norm_grad", inputs | constants | unused_inputs, outputs, attrs | unused_attrs)

    def _normalize(self, scale: str, bias: str, *, to: str) -> Step:
        """Return the operator that normalizes this rank's activations, `self.x`, by the statistics of all ranks.

            (x - mean) / sqrt(variance + epsilon) * scale + bias

        The mean and the variance are `self.batch`, which earlier operators compute over the images of all ranks.

        Args:
            scale: Name of the variable of the scale, of shape [channels].
            bias: Name of the variable of the bias, likewise.
            to: Name of the variable for the result.
        """
        # Paddle's `batch_norm` demands variables in which it can save the mean and deviation of `self.x` alone. Here it
        # is given other statistics, and nothing reads these variables.
        unused = _Saved(
            mean=self._var("unused_mean", self.channels),
            inverse_deviation=self._var("unused_variance", self.channels),
            workspace=self._var("unused_reserve", 1),
        )
        epsilon = self.op.attr("epsilon")
        return self._batch_norm(scale, bias, self.batch, by_given_statistics=True, epsilon=epsilon, to=to, saved=unused)

    def _batch_norm(
        self,
        scale: str,
        bias: str,
        statistics: _Statistics,
        *,
        by_given_statistics: bool,
        epsilon: float,
        to: str,
        saved: _Saved,
    ) -> Step:
        """Return Paddle's own `batch_norm` of the image `self.x`.

        Args:
            scale: Name of the variable of the scale, of shape [channels].
            bias: Name of the variable of the bias, likewise.
            statistics: Names of the variables of a mean and a variance, which the operator never changes.
            by_given_statistics: Whether the image is normalized by `statistics`, or else by its own mean and variance.
            epsilon: Number that is added to the variance.
            to: Name of the variable for the normalized image.
            saved: Names of the variables for the image's own mean and 1 / sqrt(variance + epsilon), and for a
                workspace. What they hold means something only if the image is normalized by its own statistics.
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
            "SavedMean": [saved.mean],
            "SavedVariance": [saved.inverse_deviation],
            "ReserveSpace": [saved.workspace],
        }
        attrs = {
            "is_test": by_given_statistics,
            "use_global_stats": by_given_statistics,
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
