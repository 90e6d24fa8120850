"""Batch normalization over all ranks: statistics of the joined batch, forward and backward.

Fleet's `sync_batch_norm` strategy changes nothing in the program of this wheel, so the operators are exchanged here:
`span_ranks` before the gradients are added, and `on_cpu` after it where the ranks are CPU processes, for which Paddle
has no kernel. There each operator becomes several with one all-reduce of 2 C numbers, C being the channels:

forward   mean and E[x^2] of the rank, all-reduced / ranks; y = (x - mean) / sqrt(variance + epsilon) * scale + bias
backward  d_scale = sum(dy x^), d_bias = sum(dy), both of the rank (the optimizer's all-reduce joins them later);
          dx = scale / sqrt(variance + epsilon) * (dy - sum_ranks(d_bias) / m - x^ sum_ranks(d_scale) / m)

with x^ the normalized x and m the values a channel has over all ranks (Ioffe and Szegedy 2015, arXiv:1502.03167).

On GPUs Paddle 2.6.2's kernel looks for a communicator in process group 0, which a static program has not, and in its
device context, where `c_comm_init` leaves one only with FLAGS_dynamic_static_unified_comm=0; finding none it skips the
sum without a word (github.com/PaddlePaddle/Paddle/pull/65935 mends it in a later Paddle).
"""

import math
from typing import Any, NamedTuple

import paddle
from paddle import static
from paddle.base.framework import Block, Operator

from program.ops import operands
from program.passes.edit import Step, insert, rewrite
from runlog.digits import six_digits

FORWARD, BACKWARD = "sync_batch_norm", "sync_batch_norm_grad"
UNIFIED = "FLAGS_dynamic_static_unified_comm"


class _Statistics(NamedTuple):
    """Names of the variables of a channel's mean and variance."""

    mean: str
    variance: str


def span_ranks(main: static.Program) -> None:
    """Make every training batch normalization of a forward program span the ranks."""
    for op in main.global_block().ops:
        if op.type == "batch_norm" and not op.attr("is_test") and not op.attr("use_global_stats"):
            op.desc.set_type(FORWARD)


def check_on_gpu(main: static.Program) -> int:
    """Return how many normalizations of a GPU's program span the ranks.

    Raises ValueError if there are any while the flag FLAGS_dynamic_static_unified_comm is on in this process: Paddle
    would then leave out their sums over the ranks without a word.
    """
    count = sum(1 for op in main.global_block().ops if op.type == FORWARD)
    if count and paddle.get_flags(UNIFIED)[UNIFIED]:
        raise ValueError(
            f"{UNIFIED}=1: Paddle 2.6.2 would then normalize over each GPU's own images, in {count} places and without "
            "a word: set it to 0, or leave it unset"
        )
    return count


def on_cpu(main: static.Program, ranks: int) -> None:
    """Replace each `sync_batch_norm` and its gradient, which have no CPU kernel, by operators that have one.

    At a step running statistics move towards the batch's by a share of 1 - momentum. The operator that moves them reads
    that share from a variable, so the program first fills a variable for each share that occurs.
    """
    block = main.global_block()
    share_variables: dict[str, float] = {}  # name of the variable: the share that it holds

    def substitute(op: Operator) -> list[Step] | None:
        if op.type == FORWARD:
            share = 1.0 - op.attr("momentum")
            name = f"sync_bn.share_{six_digits(share)}"
            share_variables[name] = share
            return _CpuEquivalent(block, op, ranks).forward(name)
        if op.type == BACKWARD:
            return _CpuEquivalent(block, op, ranks).backward()
        return None  # any other operator stays

    rewrite(main, substitute)
    for name, share in share_variables.items():
        block.create_var(name=name, shape=[1], dtype="float32")
        insert(block, 0, "fill_constant", {}, {"Out": [name]}, shape=[1], value=share, dtype=paddle.float32, op_role=0)
    block._sync_with_cpp()


class _CpuEquivalent:
    """The operators that together compute what one `sync_batch_norm` or its gradient does.

    Methods append them to `steps`, in order. A method that takes names of variables has the operators read or write
    these variables.
    """

    def __init__(self, block: Block, op: Operator, ranks: int) -> None:
        self.block = block
        self.op = op
        self.ranks = ranks
        self.steps: list[Step] = []
        self.x = op.input("X")[0]
        shape = block.var(self.x).shape
        self.channels = shape[1] if op.attr("data_layout") == "NCHW" else shape[-1]
        self.count = ranks * math.prod(shape) // self.channels  # values of a channel over all ranks
        assert self.count > 0, "the batch must be static"
        # SavedVariance holds the variance itself, not 1 / sqrt: only `backward`, which this class writes too, reads it.
        self.mean, self.variance = operands(op, "SavedMean", "SavedVariance")

    def forward(self, share: str) -> list[Step]:
        """Return the steps of a forward batch normalization over all ranks.

        1. Each rank computes the mean and the variance of its own images, in `self.mean` and `self.variance`.
        2. The ranks join them to those of the whole batch.
        3. The image is normalized by them.
        4. The running statistics move towards them, by the share that the variable called `share` holds.
        """
        scale, bias, out, reserve = operands(self.op, "Scale", "Bias", "Y", "ReserveSpace")
        running = _Statistics(*operands(self.op, "Mean", "Variance"))

        # Paddle's batch norm is the fastest way to a rank's mean and 1 / sqrt(variance + epsilon), here with an epsilon
        # of 0. The image that it also writes to `out` is of no use: `_normalize` overwrites it.
        saved = {"SavedMean": self.mean, "SavedVariance": self.variance, "ReserveSpace": reserve}
        self._batch_norm(running, saved, scale, bias, out, is_test=False, use_global_stats=False, epsilon=0.0)
        self._apply("pow", self.variance, to=self.variance, factor=-2.0)  # from 1 / sqrt(variance) to the variance

        self._join_statistics()
        self._normalize(scale, bias, out)
        self._apply("lerp", running.mean, self.mean, share, to=running.mean)
        self._apply("lerp", running.variance, self.variance, share, to=running.variance)
        return self.steps

    def _join_statistics(self) -> None:
        """Append the operators that turn mean and variance of each rank's images into those of all ranks' images.

        The variance of all images is not the average of the ranks' variances, but E[x^2] = variance + mean^2 can be
        averaged. So mean and E[x^2] are averaged over the ranks, and the variance of all is E[x^2] - mean^2. The
        variables `self.mean` and `self.variance` are changed in place.
        """
        square = self._var("square", self.channels)  # of the mean: first the rank's, then that of all
        self._apply("square", self.mean, to=square)
        self._apply("elementwise_add", self.variance, square, to=self.variance, axis=-1)  # E[x^2], for now

        both = self._sum_over_ranks(self.mean, self.variance)
        self._apply("scale", both, to=both, scale=1 / self.ranks)
        self._unstack(both, self.mean, self.variance)

        self._apply("square", self.mean, to=square)
        self._apply("elementwise_sub", self.variance, square, to=self.variance, axis=-1)

    def backward(self) -> list[Step]:
        """Return the steps of the gradient of a batch normalization over all ranks.

        With x^ the normalized image, m the values of a channel over all ranks and f = scale / sqrt(variance + epsilon):

            dx = f dy - (f / m) (x^ sum_ranks(d_scale) + sum_ranks(d_bias))

        The first term, d_scale and d_bias are what Paddle's gradient gives when mean and variance are constants. The
        second term is there because they depend on the batch. It has the form of a batch normalization, x^ times one
        number of each channel plus another one, and is computed as such.
        """
        d_scale, d_bias, d_x, scale = operands(self.op, "Scale@GRAD", "Bias@GRAD", "X@GRAD", "Scale")
        shape = self.block.var(self.x).shape
        first_term = self._var("straight", *shape)
        second_term = self._var("correction", *shape)
        self._gradient_at_fixed_statistics({"X@GRAD": [first_term], "Scale@GRAD": [d_scale], "Bias@GRAD": [d_bias]})

        # The two sums over the ranks, [2, C], times the factor f / m = scale / sqrt(m^2 variance + m^2 epsilon).
        both = self._sum_over_ranks(d_scale, d_bias)
        factor = self._var("factor", self.channels)
        epsilon = self.op.attr("epsilon")
        self._apply("scale", self.variance, to=factor, scale=self.count**2, bias=self.count**2 * epsilon)
        self._apply("rsqrt", factor, to=factor)
        self._apply("elementwise_mul", factor, scale, to=factor, axis=-1)
        self._apply("elementwise_mul", both, factor, to=both, axis=-1)

        # The second term: x^ times the first of these sums, plus the second one.
        scale_of_term = self._var("sum_scale", self.channels)
        bias_of_term = self._var("sum_bias", self.channels)
        self._unstack(both, scale_of_term, bias_of_term)
        self._normalize(scale_of_term, bias_of_term, second_term)
        self._apply("elementwise_sub", first_term, second_term, to=d_x, axis=-1)
        return self.steps

    def _gradient_at_fixed_statistics(self, outputs: dict[str, list[str]]) -> None:
        """Append Paddle's batch norm gradient as if the joined batch's mean and variance were constants.

        `outputs` are the variables that it writes, by slot: the gradients by the image, the scale and the bias.
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

    def _apply(self, kind: str, *inputs: str, to: str, **attrs: Any) -> None:
        """Append an operator of up to three inputs and one output."""
        slots = {slot: [name] for slot, name in zip(("X", "Y", "Weight"), inputs, strict=False)}
        self.steps.append(Step(kind, slots, {"Out": [to]}, attrs))

    def _sum_over_ranks(self, first: str, second: str) -> str:
        """Stack two [C] to one [2, C], sum it over the ranks, and return its name."""
        both = self._var("both", 2, self.channels)
        self.steps.append(Step("stack", {"X": [first, second]}, {"Y": [both]}, {"axis": 0}))
        self._apply("c_allreduce_sum", both, to=both, ring_id=0, use_calc_stream=True)
        return both

    def _unstack(self, both: str, first: str, second: str) -> None:
        """Take a [2, C] apart into two [C]."""
        self.steps.append(Step("unstack", {"X": [both]}, {"Y": [first, second]}, {"axis": 0, "num": 2}))

    def _normalize(self, scale: str, bias: str, out: str) -> None:
        """Append out = (x - mean) / sqrt(variance + epsilon) * scale + bias, in one pass."""
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
        """Append Paddle's own `batch_norm` of the image `self.x`, which writes its result to the variable `out`.

        `scale`, `bias` and `running` name the variables that it reads. `saved` names, by slot, those to which it writes
        the batch's mean, 1 / sqrt(variance + epsilon) and its workspace. Its attributes are `attrs`, which say what it
        normalizes by (the batch's statistics or the `running` ones), a momentum and the image's layout. The momentum is
        1, at which the running statistics stay as they are.
        """
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
