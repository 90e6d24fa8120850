"""Layers of the networks. Variables are named after their layer: two programs of the same names share the weights."""

from dataclasses import dataclass

import paddle
from paddle import static
from paddle.nn import functional
from paddle.nn.initializer import Constant, Initializer, KaimingNormal, Normal

BN_EPSILON = 1e-5
EXPANSION = 4  # output channels of a bottleneck over its width


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Settings of a network's convolutions and normalizations, which are appended to the default program."""

    training: bool  # normalizations use the batch's statistics and update the running ones
    bn_momentum: float  # share of the old running statistic kept at a step
    layout: str = "NCHW"  # of every image tensor; filters are OIHW in both layouts
    weight_std: float | None = None  # of a convolution's first weights; None: Kaiming's
    zero_gamma: bool = False  # the last normalization of a residual block starts with a scale of 0, not 1
    padding_same: bool = False  # at a stride of 2 padded on the right and below only; else on all sides

    def conv(
        self, x: static.Variable, name: str, channels: int, kernel: int, *, stride: int = 1, bias: bool = False
    ) -> static.Variable:
        """Append a convolution to Paddle's default program and return its output.

        Args:
            x: Image, [N, C, H, W] or [N, H, W, C] as `self.layout` says.
            name: Name of the layer. Its parameters are called `name`.w and, with a bias, `name`.b.
            channels: Number of output channels.
            kernel: Side of the square kernel in pixels; must be odd. The image is padded so that a stride of 1 keeps
                its size.
            stride: Stride in both directions.
            bias: Whether a bias is added, which starts at 0.
        """
        initial_weights: Initializer = KaimingNormal()
        if self.weight_std is not None:
            initial_weights = Normal(0.0, self.weight_std)
        padding_pixels = (kernel - 1) // 2  # on each side
        bias_attr: paddle.ParamAttr | bool = False  # no bias
        if bias:
            bias_attr = paddle.ParamAttr(name=f"{name}.b", initializer=Constant(0.0))
        return static.nn.conv2d(
            x,
            channels,
            kernel,
            stride=stride,
            # At a stride of 2 the two differ: SAME pads on the right and below only.
            padding="SAME" if self.padding_same else padding_pixels,
            param_attr=paddle.ParamAttr(name=f"{name}.w", initializer=initial_weights),
            bias_attr=bias_attr,
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
        ends_block: bool = False,
    ) -> static.Variable:
        """Append a convolution and its batch normalization, then perhaps a ReLU, and return the output.

        Args:
            x: Image, [N, C, H, W] or [N, H, W, C] as `self.layout` says.
            name: Name of the layer. Its parameters are called `name`.conv.* and `name`.bn.*.
            channels: Number of output channels.
            kernel: Side of the square kernel in pixels; must be odd. The image is padded so that a stride of 1 keeps
                its size.
            stride: Stride in both directions.
            relu: Whether a ReLU follows.
            bias: Whether the convolution has a bias.
            ends_block: Whether this is the last normalization of a residual block. With `zero_gamma`, its scale starts
                at 0.
        """
        # With a scale of 0 (`zero_gamma`) a residual block starts as its shortcut alone.
        initial_scale = 0.0 if ends_block and self.zero_gamma else 1.0
        return static.nn.batch_norm(
            self.conv(x, f"{name}.conv", channels, kernel, stride=stride, bias=bias),
            act="relu" if relu else None,
            is_test=not self.training,
            momentum=self.bn_momentum,
            epsilon=BN_EPSILON,
            param_attr=paddle.ParamAttr(name=f"{name}.bn.w", initializer=Constant(initial_scale)),
            bias_attr=paddle.ParamAttr(name=f"{name}.bn.b", initializer=Constant(0.0)),
            moving_mean_name=f"{name}.bn.mean",
            moving_variance_name=f"{name}.bn.variance",
            data_layout=self.layout,
        )

    def bottleneck(
        self, x: static.Variable, name: str, width: int, *, stride: int = 1, parts: tuple[str, str, str, str]
    ) -> static.Variable:
        """Append a bottleneck residual block and return its output, which has 4 x `width` channels.

        It computes relu(branch(x) + shortcut(x)). The branch is a 1x1, a 3x3 and a 1x1 convolution. The shortcut is x
        itself if x has as many channels as the output, and otherwise a 1x1 convolution.

        Args:
            x: Image, [N, C, H, W] or [N, H, W, C] as `self.layout` says.
            name: Name of the block; a layer is called `name`.PART.
            width: Channels of the branch's first two convolutions.
            stride: Stride of the 3x3 convolution, and of the shortcut's convolution if there is one.
            parts: Names of the three convolutions of the branch and that of the shortcut.
        """
        out_channels = width * EXPANSION
        first_name, second_name, third_name, shortcut_name = [f"{name}.{part}" for part in parts]
        branch = self.conv_bn(x, first_name, width, kernel=1)
        branch = self.conv_bn(branch, second_name, width, kernel=3, stride=stride)
        branch = self.conv_bn(branch, third_name, out_channels, kernel=1, relu=False, ends_block=True)
        shortcut = x
        channel_axis = 1 if self.layout == "NCHW" else 3
        if x.shape[channel_axis] != out_channels:
            shortcut = self.conv_bn(x, shortcut_name, out_channels, kernel=1, stride=stride, relu=False)
        return functional.relu(paddle.add(branch, shortcut))
