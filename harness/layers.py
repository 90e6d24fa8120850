"""Layers of the networks. Variables are named after their layer: two programs of the same names share the weights."""

from __future__ import annotations

from dataclasses import dataclass

import paddle
from paddle import static
from paddle.nn.initializer import Constant, Initializer, KaimingNormal, Normal

BN_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What the convolutions and normalizations of a network have alike; they are appended to the default program."""

    training: bool  # normalizations use the batch's statistics and update the running ones
    bn_momentum: float  # share of the old running statistic kept at a step
    layout: str = "NCHW"  # of every image tensor; filters are OIHW in both layouts
    weight_std: float | None = None  # of a convolution's first weights; None: Kaiming's
    padding_same: bool = False  # at a stride of 2 padded on the right and below only; else on all sides

    def conv(
        self, x: static.Variable, name: str, channels: int, kernel: int, *, stride: int = 1, bias: bool = False
    ) -> static.Variable:
        """Convolution to so many channels."""
        first: Initializer = KaimingNormal() if self.weight_std is None else Normal(0.0, self.weight_std)
        return static.nn.conv2d(
            x,
            channels,
            kernel,
            stride=stride,
            padding="SAME" if self.padding_same else (kernel - 1) // 2,
            param_attr=paddle.ParamAttr(name=f"{name}.w", initializer=first),
            bias_attr=paddle.ParamAttr(name=f"{name}.b", initializer=Constant(0.0)) if bias else False,
            data_format=self.layout,
        )

    def conv_bn(
        self,
        x: static.Variable,
        name: str,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        relu: bool = True,
        bias: bool = False,
        gamma: float = 1.0,
    ) -> static.Variable:
        """Convolution, batch normalization of the first scale `gamma`, and ReLU where asked for."""
        return static.nn.batch_norm(
            self.conv(x, f"{name}.conv", channels, kernel, stride=stride, bias=bias),
            act="relu" if relu else None,
            is_test=not self.training,
            momentum=self.bn_momentum,
            epsilon=BN_EPSILON,
            param_attr=paddle.ParamAttr(name=f"{name}.bn.w", initializer=Constant(gamma)),
            bias_attr=paddle.ParamAttr(name=f"{name}.bn.b", initializer=Constant(0.0)),
            moving_mean_name=f"{name}.bn.mean",
            moving_variance_name=f"{name}.bn.variance",
            data_layout=self.layout,
        )
