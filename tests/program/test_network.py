"""A program that computes another network than the one that was written is refused, whatever differs in it."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle import static
from paddle.nn import functional

from paddle_rn50 import train
from program import build
from program.ops import Refused
from program.proof.network import Network, check_network
from tests.program import programs

HALF: dict[str, Any] = {"name": "amp_o2", "device": "gpu", "ranks": 8}
FULL = HALF | {"name": "fp32"}
SIDE, CLASSES = 8, 10


# ---- networks of users


def named(name: str) -> paddle.ParamAttr:
    return paddle.ParamAttr(name=name)


def convolution(image: Any, name: str) -> Any:
    return static.nn.conv2d(image, 4, 3, padding=1, param_attr=named(f"{name}.w"), bias_attr=False)


def cross_entropy(features: Any, label: Any, name: str = "last") -> Any:
    weight, bias = named(f"{name}.w"), named(f"{name}.b")
    logits = static.nn.fc(paddle.flatten(features, 1), CLASSES, weight_attr=weight, bias_attr=bias)
    return functional.cross_entropy(logits, label)


class Small(train.ResNet50):
    """A network of a few layers, which `loss` makes."""

    def training_loss(self, batch: int) -> Any:
        image, label = static.data("image", [batch, 3, SIDE, SIDE]), static.data("label", [batch, 1], "int64")
        with static.amp.fp16_guard():
            return self.loss(image, label)

    def loss(self, image: Any, label: Any) -> Any:
        raise NotImplementedError


class WithAuxiliaryLoss(Small):
    """Of its weights one is the mean over two ranks, which is a factor, too."""

    def loss(self, image: Any, label: Any) -> Any:
        first = functional.relu(convolution(image, "first"))
        second = functional.relu(convolution(first, "second"))
        return 0.5 * cross_entropy(second, label) + 0.4 * cross_entropy(first, label, "auxiliary")


class Attention(Small):
    def loss(self, image: Any, label: Any) -> Any:
        pixels = paddle.transpose(paddle.flatten(convolution(image, "first"), 2), [0, 2, 1])
        scores = paddle.matmul(pixels * 0.5, pixels, transpose_y=True)
        shares = functional.dropout(functional.softmax(scores), 0.1)
        return cross_entropy(pixels + paddle.matmul(shares, pixels), label)


class AddsARelu(Small):
    """Paddle's fusion exchanges the gradients of what is added here."""

    def loss(self, image: Any, label: Any) -> Any:
        first = convolution(image, "first")
        return cross_entropy(first + functional.relu(convolution(first, "second")), label)


class AddsAReluOfWeights(Small):
    def loss(self, image: Any, label: Any) -> Any:
        floor = paddle.create_parameter([4, 1, 1], "float32", name="floor")
        return cross_entropy(convolution(image, "first") + functional.relu(floor), label)


class DropsChannels(Small):
    """It draws numbers of a shape that another operator tells."""

    def loss(self, image: Any, label: Any) -> Any:
        return cross_entropy(functional.dropout2d(convolution(image, "first"), 0.3), label)


class HasBiases(Small):
    """They are smaller than what they are added to, and the fusion takes them with what follows."""

    def loss(self, image: Any, label: Any) -> Any:
        first = functional.relu(static.nn.conv2d(image, 4, 3, param_attr=named("first.w"), bias_attr=named("first.b")))
        return cross_entropy(first, label) * 0.5


class ScalesASum(Small):
    def loss(self, image: Any, label: Any) -> Any:
        first, second = convolution(image, "first"), convolution(image, "second")
        return cross_entropy((first + second) * 0.7 + second * 0.3, label)


class SharesWeights(Small):
    def loss(self, image: Any, label: Any) -> Any:
        first = convolution(image, "first")
        twice = convolution(convolution(first, "second"), "second")
        return cross_entropy(first - twice, label)


class PoolsAPart(Small):
    """Averages 5 x 5 of 8 x 8 pixels, so the other pixels have no gradient."""

    def loss(self, image: Any, label: Any) -> Any:
        return cross_entropy(functional.avg_pool2d(convolution(image, "first"), 5, 5), label)


class Embeds(Small):
    def loss(self, image: Any, label: Any) -> Any:
        vectors = static.nn.embedding(label, [CLASSES, 4], param_attr=named("vectors.w"))
        pooled = paddle.mean(convolution(image, "first"), axis=[2, 3])
        return cross_entropy(pooled * paddle.squeeze(vectors, 1), label)


NETWORKS = (
    WithAuxiliaryLoss,
    Attention,
    AddsARelu,
    AddsAReluOfWeights,
    DropsChannels,
    HasBiases,
    ScalesASum,
    SharesWeights,
    PoolsAPart,
    Embeds,
)


@pytest.mark.parametrize("workload", NETWORKS)
@pytest.mark.parametrize("of", [FULL, HALF, HALF | {"name": "amp_o1"}, {"ranks": 2, "knobs": "gradient_merge=2"}])
def test_a_network_of_a_user_is_proved(workload: Any, of: dict[str, Any]) -> None:
    built = programs.fresh(**{"layout": "NCHW"} | of, workload=workload)
    assert "gradients summed over" in built.verified[0]


@pytest.mark.parametrize("workload", [AddsARelu, PoolsAPart])
def test_passes_leave_the_gradients_as_they_are(workload: Any) -> None:
    """They are compared by what they do to the weights."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((programs.BATCH, 3, SIDE, SIDE)).astype(np.float32)
    feed = {"image": image, "label": rng.integers(0, CLASSES, (programs.BATCH, 1))}

    def losses(knobs: str) -> Any:
        return programs.losses(programs.fresh(workload=workload, knobs=knobs), 4, feed=lambda _: feed)

    fused = losses("")
    with mock.patch("program.passes.gradients.spread_mean_gradients"):
        plain = losses("fuse_elewise_add_act_ops=0,enable_inplace=0")
    assert fused == pytest.approx(plain, rel=1e-5)
    assert fused[0] > fused[-1]


# ---- what is broken in a program


def built_with_network(of: dict[str, Any]) -> tuple[programs.Built, Network]:
    """A program and the network that it was built of."""
    with mock.patch.object(build, "check_network", wraps=check_network) as check:
        built = programs.fresh(**of)
    return built, check.call_args.args[1]


def first(block: Any, kind: str) -> Any:
    return next(op for op in block.ops if op.type == kind)


def set_floats(kind: str, attribute: str, value: float) -> Callable[[Any], None]:
    return lambda block: first(block, kind).desc._set_float32_attr(attribute, value)


def set_values(kind: str, attribute: str, value: Any) -> Callable[[Any], None]:
    return lambda block: first(block, kind).desc._set_attr(attribute, value)


def lose(kind: str) -> Callable[[Any], None]:
    return lambda block: block._remove_op(block.ops.index(first(block, kind)))


def exchange(kind: str, slot: str) -> Callable[[Any], None]:
    """Has the first two operators of a type read each other's inputs."""

    def broken(block: Any) -> None:
        one, other = [op for op in block.ops if op.type == kind][:2]
        of_one, of_other = one.input(slot), other.input(slot)
        one.desc.set_input(slot, of_other)
        other.desc.set_input(slot, of_one)

    return broken


def overwrite(name: str) -> Callable[[Any], None]:
    """Lays a result into the buffer of a variable that is still needed."""
    return lambda block: first(block, "share_buffer").desc.set_input("X", [name])


BROKEN = [
    (HALF, "batch_norm", set_floats("batch_norm", "momentum", 0.5)),
    (HALF, "fused_batch_norm_act", set_floats("fused_batch_norm_act", "epsilon", 0.1)),
    (HALF, "batch_norm_grad", set_floats("batch_norm_grad", "epsilon", 0.1)),
    (HALF, "conv2d", set_values("conv2d", "dilations", [2, 2])),
    (HALF, "conv2d_grad", set_values("conv2d_grad", "paddings", [1, 1])),
    (HALF, "pool2d", set_values("pool2d", "pooling_type", "avg")),
    (HALF, "pool2d_grad", set_values("pool2d_grad", "ksize", [2, 2])),
    (HALF, "conv2d_grad", exchange("conv2d_grad", "Input")),
    (HALF, "fused_bn_add_activation", exchange("fused_bn_add_activation", "Scale")),
    (HALF, "fused_batch_norm_act_grad", exchange("fused_batch_norm_act_grad", "SavedMean")),
    (HALF, "batch_norm_grad", exchange("batch_norm_grad", "ReserveSpace")),
    (FULL, "pool2d", lose("relu")),
    (FULL, "relu_grad", exchange("relu_grad", "Out")),
    (FULL, "label_smooth", set_floats("label_smooth", "epsilon", 0.5)),
    (FULL, "softmax_with_cross_entropy_grad", set_values("softmax_with_cross_entropy_grad", "axis", 0)),
    (FULL, "conv2d", overwrite("stage1.0.1.conv.w")),
]


@pytest.mark.parametrize(("of", "kind", "broken"), BROKEN)
def test_what_computes_another_value_is_refused_and_named(
    of: dict[str, Any], kind: str, broken: Callable[[Any], None]
) -> None:
    built, network = built_with_network(of)
    check_network(built.update, network)
    broken(built.main.global_block())
    with pytest.raises(Refused, match=f"written.*; .*{kind}.*, which writes .*, is the first that differs"):
        check_network(built.update, network)
