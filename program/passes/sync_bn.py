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
from typing import Any

import paddle
from paddle import static

from program.ops import operands
from program.passes.edit import Step, insert, rewrite

FORWARD, BACKWARD = "sync_batch_norm", "sync_batch_norm_grad"
SAVED = ("SavedMean", "SavedVariance", "ReserveSpace")  # what a batch norm keeps of a batch
UNIFIED = "FLAGS_dynamic_static_unified_comm"


def span_ranks(main: static.Program) -> None:
    """Makes every training batch normalization of a forward program span the ranks."""
    for op in main.global_block().ops:
        if op.type == "batch_norm" and not op.attr("is_test") and not op.attr("use_global_stats"):
            op.desc.set_type(FORWARD)


def check_on_gpu(main: static.Program) -> int:
    """Normalizations of a GPU's program that are summed over the ranks, each once forward and once backward.

    Raises ValueError where this process's flags would have Paddle skip those sums.
    """
    count = sum(op.type == FORWARD for op in main.global_block().ops)
    if count and paddle.get_flags(UNIFIED)[UNIFIED]:
        raise ValueError(
            f"{UNIFIED}=1: Paddle 2.6.2 would then normalize over each GPU's own images, in {count} places and without "
            "a word: set it to 0, or leave it unset"
        )
    return count


def on_cpu(main: static.Program, ranks: int) -> None:
    """Replaces the operators that have no CPU kernel by an equivalent of those that have one."""
    block = main.global_block()
    shares: dict[str, float] = {}  # of a batch in the running statistics

    def instead(op: Any) -> list[Step] | None:
        if op.type == FORWARD:
            share = 1.0 - op.attr("momentum")
            shares[f"sync_bn.share_{share:g}"] = share
            return _Writer(block, op, ranks).forward(f"sync_bn.share_{share:g}")
        return _Writer(block, op, ranks).backward() if op.type == BACKWARD else None

    rewrite(main, instead)
    for name, share in shares.items():
        block.create_var(name=name, shape=[1], dtype="float32")
        insert(block, 0, "fill_constant", {}, {"Out": [name]}, shape=[1], value=share, dtype=paddle.float32, op_role=0)
    block._sync_with_cpp()


class _Writer:
    """Writes the equivalent of one operator."""

    def __init__(self, block: Any, op: Any, ranks: int) -> None:
        self.block, self.op, self.ranks = block, op, ranks
        self.steps: list[Step] = []
        self.x = op.input("X")[0]
        shape = block.var(self.x).shape
        self.channels = shape[1] if op.attr("data_layout") == "NCHW" else shape[-1]
        self.count = ranks * math.prod(shape) // self.channels  # values of a channel over all ranks
        assert self.count > 0, "the batch must be static"
        # The second holds the variance itself: only `backward`, which this class writes too, reads it.
        self.mean, self.variance = operands(op, "SavedMean", "SavedVariance")

    def _var(self, name: str, *shape: int) -> str:
        return self.block.create_var(name=f"{self.x}.sync_bn.{name}", shape=list(shape), dtype="float32").name

    def _to(self, out: str, kind: str, *inputs: str, **attrs: Any) -> None:
        slots = {slot: [name] for slot, name in zip(("X", "Y", "Weight"), inputs, strict=False)}
        self.steps.append((kind, slots, {"Out": [out]}, attrs))

    def _batch_norm(self, running: list[str], saved: list[str], scale: str, bias: str, out: str, **attrs: Any) -> None:
        """Paddle's own; `running` mean and variance stay as they are, `saved` are mean, 1 / sqrt(variance), reserve."""
        mean, variance = running
        attrs |= {"momentum": 1.0, "data_layout": self.op.attr("data_layout")}
        inputs = {"X": [self.x], "Scale": [scale], "Bias": [bias], "Mean": [mean], "Variance": [variance]}
        outputs = {slot: [name] for slot, name in zip(SAVED, saved, strict=True)}
        outputs |= {"Y": [out], "MeanOut": [mean], "VarianceOut": [variance]}
        self.steps.append(("batch_norm", inputs, outputs, attrs))

    def _normalize(self, scale: str, bias: str, out: str) -> None:
        """out = (x - mean) / sqrt(variance + epsilon) * scale + bias, in one pass."""
        sizes = {"unused_mean": self.channels, "unused_variance": self.channels, "unused_reserve": 1}
        saved = [self._var(name, size) for name, size in sizes.items()]
        attrs = {"is_test": True, "use_global_stats": True, "epsilon": self.op.attr("epsilon")}
        self._batch_norm([self.mean, self.variance], saved, scale, bias, out, **attrs)

    def _sum_over_ranks(self, first: str, second: str) -> str:
        """Both [C] as one [2, C], summed over the ranks."""
        both = self._var("both", 2, self.channels)
        self.steps.append(("stack", {"X": [first, second]}, {"Y": [both]}, {"axis": 0}))
        self._to(both, "c_allreduce_sum", both, ring_id=0, use_calc_stream=True)
        return both

    def forward(self, share: str) -> list[Step]:
        op, mean, variance = self.op, self.mean, self.variance
        scale, bias, out, reserve = operands(op, "Scale", "Bias", "Y", "ReserveSpace")
        running = operands(op, "Mean", "Variance")
        # Batch normalization itself is Paddle's fastest way to a channel's mean and 1 / sqrt(variance). With an epsilon
        # of 0 the square of what it saves is 1 / variance; its Y is written again below.
        saved = [mean, variance, reserve]
        self._batch_norm(running, saved, scale, bias, out, is_test=False, use_global_stats=False, epsilon=0.0)
        square = self._var("square", self.channels)
        self._to(variance, "pow", variance, factor=-2.0)
        self._to(square, "square", mean)
        self._to(variance, "elementwise_add", variance, square, axis=-1)
        both = self._sum_over_ranks(mean, variance)
        self._to(both, "scale", both, scale=1 / self.ranks)
        self.steps.append(("unstack", {"X": [both]}, {"Y": [mean, variance]}, {"axis": 0, "num": 2}))
        self._to(square, "square", mean)
        self._to(variance, "elementwise_sub", variance, square, axis=-1)
        self._normalize(scale, bias, out)
        for of_batch, of_all in zip((mean, variance), running, strict=True):
            self._to(of_all, "lerp", of_all, of_batch, share)
        return self.steps

    def backward(self) -> list[Step]:
        op = self.op
        d_scale, d_bias, d_x, scale = operands(op, "Scale@GRAD", "Bias@GRAD", "X@GRAD", "Scale")
        straight, correction = (self._var(name, *self.block.var(self.x).shape) for name in ("straight", "correction"))
        inputs = {slot: op.input(slot) for slot in ("X", "Y@GRAD", "Scale", "Bias", "SavedMean", "SavedVariance")}
        inputs |= {"Mean": [self.mean], "Variance": [self.variance]}
        attrs = {name: op.attr(name) for name in ("epsilon", "momentum", "data_layout")}
        attrs |= {"is_test": False, "use_global_stats": True, "trainable_statistics": False}
        outputs = {"X@GRAD": [straight], "Scale@GRAD": [d_scale], "Bias@GRAD": [d_bias]}
        self.steps.append(("batch_norm_grad", inputs, outputs, attrs))
        both = self._sum_over_ranks(d_scale, d_bias)
        factor = self._var("factor", self.channels)  # scale / (m sqrt(variance + epsilon))
        self._to(factor, "scale", self.variance, scale=self.count**2, bias=self.count**2 * op.attr("epsilon"))
        self._to(factor, "rsqrt", factor)
        self._to(factor, "elementwise_mul", factor, scale, axis=-1)
        self._to(both, "elementwise_mul", both, factor, axis=-1)
        sum_scale, sum_bias = self._var("sum_scale", self.channels), self._var("sum_bias", self.channels)
        self.steps.append(("unstack", {"X": [both]}, {"Y": [sum_scale, sum_bias]}, {"axis": 0, "num": 2}))
        self._normalize(sum_scale, sum_bias, correction)
        self._to(d_x, "elementwise_sub", straight, correction, axis=-1)
        return self.steps
