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

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import static

from program.passes.edit import insert

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
    for index in reversed(range(len(block.ops))):
        op = block.ops[index]
        if op.type not in (FORWARD, BACKWARD):
            continue
        writer = _Writer(block, index, op, ranks)
        if op.type == FORWARD:
            share = 1.0 - op.attr("momentum")
            name = f"sync_bn.share_{share:g}"
            shares[name] = share
            writer.forward(name)
        else:
            writer.backward()
        block._remove_op(writer.index, sync=False)
    for name, share in shares.items():
        block.create_var(name=name, shape=[1], dtype="float32")
        insert(block, 0, "fill_constant", {}, {"Out": [name]}, shape=[1], value=share, dtype=paddle.float32, op_role=0)
    block._sync_with_cpp()


class _Writer:
    """Writes the equivalent of one operator in front of it."""

    def __init__(self, block: Any, index: int, op: Any, ranks: int) -> None:
        self.block, self.index, self.op, self.ranks = block, index, op, ranks
        self.x = op.input("X")[0]
        shape = block.var(self.x).shape
        self.channels = shape[1] if op.attr("data_layout") == "NCHW" else shape[-1]
        self.count = ranks * math.prod(shape) // self.channels  # values of a channel over all ranks
        assert self.count > 0, "the batch must be static"
        self.mean = op.output("SavedMean")[0] if op.type == FORWARD else op.input("SavedMean")[0]
        # Holds the variance itself: only `backward`, which this class writes too, reads it.
        self.variance = op.output("SavedVariance")[0] if op.type == FORWARD else op.input("SavedVariance")[0]

    def _var(self, name: str, *shape: int) -> str:
        return self.block.create_var(name=f"{self.x}.sync_bn.{name}", shape=list(shape), dtype="float32").name

    def _add(self, kind: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], **attrs: Any) -> None:
        insert(self.block, self.index, kind, inputs, outputs, **attrs, op_role=self.op.attr("op_role"))
        self.index += 1

    def _batch_norm(
        self, running: tuple[str, str], saved: tuple[str, str, str], scale: str, bias: str, out: str, **attrs: Any
    ) -> None:
        """Paddle's own; `running` mean and variance stay as they are, `saved` are mean, 1 / sqrt(variance), reserve."""
        mean, variance = running
        self._add(
            "batch_norm",
            {"X": [self.x], "Scale": [scale], "Bias": [bias], "Mean": [mean], "Variance": [variance]},
            {
                "Y": [out],
                "MeanOut": [mean],
                "VarianceOut": [variance],
                **{slot: [name] for slot, name in zip(SAVED, saved, strict=True)},
            },
            **attrs,
            momentum=1.0,
            data_layout=self.op.attr("data_layout"),
        )

    def _normalize(self, scale: str, bias: str, out: str) -> None:
        """out = (x - mean) / sqrt(variance + epsilon) * scale + bias, in one pass."""
        unused = self._var("unused_mean", self.channels), self._var("unused_variance", self.channels)
        saved = (*unused, self._var("unused_reserve", 1))
        attrs = {"is_test": True, "use_global_stats": True, "epsilon": self.op.attr("epsilon")}
        self._batch_norm((self.mean, self.variance), saved, scale, bias, out, **attrs)

    def _sum_over_ranks(self, first: str, second: str) -> str:
        """Both [C] as one [2, C], summed over the ranks."""
        both = self._var("both", 2, self.channels)
        self._add("stack", {"X": [first, second]}, {"Y": [both]}, axis=0)
        self._add("c_allreduce_sum", {"X": [both]}, {"Out": [both]}, ring_id=0, use_calc_stream=True)
        return both

    def _take_apart(self, both: str, first: str, second: str) -> None:
        self._add("unstack", {"X": [both]}, {"Y": [first, second]}, axis=0, num=2)

    def _scale(self, x: str, out: str, factor: float, bias: float = 0.0) -> None:
        self._add("scale", {"X": [x]}, {"Out": [out]}, scale=factor, bias=bias, bias_after_scale=True)

    def _binary(self, kind: str, x: str, y: str, out: str) -> None:
        self._add(kind, {"X": [x], "Y": [y]}, {"Out": [out]}, axis=-1)

    def forward(self, share: str) -> None:
        op, mean, variance = self.op, self.mean, self.variance
        scale, bias, out = op.input("Scale")[0], op.input("Bias")[0], op.output("Y")[0]
        running = running_mean, running_variance = op.input("Mean")[0], op.input("Variance")[0]
        # Batch normalization itself is Paddle's fastest way to a channel's mean and 1 / sqrt(variance). With an epsilon
        # of 0 the square of what it saves is 1 / variance; its Y is written again below.
        saved = (mean, variance, op.output("ReserveSpace")[0])
        self._batch_norm(running, saved, scale, bias, out, is_test=False, use_global_stats=False, epsilon=0.0)
        square = self._var("square", self.channels)
        self._add("pow", {"X": [variance]}, {"Out": [variance]}, factor=-2.0)
        self._add("square", {"X": [mean]}, {"Out": [square]})
        self._binary("elementwise_add", variance, square, variance)
        both = self._sum_over_ranks(mean, variance)
        self._scale(both, both, 1 / self.ranks)
        self._take_apart(both, mean, variance)
        self._add("square", {"X": [mean]}, {"Out": [square]})
        self._binary("elementwise_sub", variance, square, variance)
        self._normalize(scale, bias, out)
        for batch, running in ((mean, running_mean), (variance, running_variance)):
            self._add("lerp", {"X": [running], "Y": [batch], "Weight": [share]}, {"Out": [running]})

    def backward(self) -> None:
        op = self.op
        d_scale, d_bias = op.output("Scale@GRAD")[0], op.output("Bias@GRAD")[0]
        d_x, scale = op.output("X@GRAD")[0], op.input("Scale")[0]
        straight, correction = (self._var(name, *self.block.var(self.x).shape) for name in ("straight", "correction"))
        self._add(
            "batch_norm_grad",
            {
                "X": [self.x],
                "Y@GRAD": op.input("Y@GRAD"),
                "Scale": [scale],
                "Bias": op.input("Bias"),
                "Mean": [self.mean],
                "Variance": [self.variance],
                "SavedMean": [self.mean],
                "SavedVariance": [self.variance],
            },
            {"X@GRAD": [straight], "Scale@GRAD": [d_scale], "Bias@GRAD": [d_bias]},
            is_test=False,
            use_global_stats=True,
            trainable_statistics=False,
            epsilon=op.attr("epsilon"),
            momentum=op.attr("momentum"),
            data_layout=op.attr("data_layout"),
        )
        both = self._sum_over_ranks(d_scale, d_bias)
        factor = self._var("factor", self.channels)  # scale / (m sqrt(variance + epsilon))
        self._scale(self.variance, factor, self.count**2, self.count**2 * op.attr("epsilon"))
        self._add("rsqrt", {"X": [factor]}, {"Out": [factor]})
        self._binary("elementwise_mul", factor, scale, factor)
        self._binary("elementwise_mul", both, factor, both)
        sum_scale, sum_bias = self._var("sum_scale", self.channels), self._var("sum_bias", self.channels)
        self._take_apart(both, sum_scale, sum_bias)
        self._normalize(sum_scale, sum_bias, correction)
        self._binary("elementwise_sub", straight, correction, d_x)
