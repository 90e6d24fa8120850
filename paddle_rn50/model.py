"""ResNet-50 v1.5 as a static-graph program.

v1.5 puts the stride of 2 of a bottleneck into its 3x3 convolution (v1 has it in the first 1x1):
25,557,032 trainable parameters at 1000 classes, 4.1 GMAC forward at 224 x 224
(He et al. 2015, arXiv:1512.03385; v1.5 as torchvision and MLPerf train it).

Shapes: N batch, C channels, H, W image, K classes. `layout` is "NCHW" or "NHWC" and holds for every
image tensor; filters stay OIHW, as Paddle's convolution takes them in both layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle
from paddle import static
from paddle.nn.initializer import Constant, KaimingNormal, Normal, Uniform

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # (width of the 3x3, number of bottlenecks)
EXPANSION = 4  # output channels of a bottleneck over its width
BN_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What decides the network's operators and its first weights."""

    classes: int
    layout: str = "NCHW"
    input_channels: int = 3  # 4 where the pipeline pads RGB, for NHWC tensor-core kernels
    bn_momentum: float = 0.9  # share of the old running statistic kept at a step
    zero_gamma: bool = True  # last BN of a block starts at 0 (Goyal et al. 2017, section 5.1)
    uniform_classifier: bool = False  # the last layer starts uniform within 1 / sqrt(its inputs), else normal

    def __post_init__(self) -> None:
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout {self.layout!r}: must be NCHW or NHWC")
        if self.input_channels not in (3, 4):
            raise ValueError(f"input_channels {self.input_channels}: must be 3 (RGB) or 4 (RGB and a zero)")


def _conv_bn(
    x: static.Variable,
    name: str,
    config: ModelConfig,
    *,
    channels: int,
    kernel: int,
    stride: int = 1,
    relu: bool = True,
    zero_gamma: bool = False,
    training: bool,
) -> static.Variable:
    """Convolution without bias, batch normalization, and ReLU where asked for."""
    x = static.nn.conv2d(
        x,
        channels,
        kernel,
        stride=stride,
        padding=(kernel - 1) // 2,
        param_attr=paddle.ParamAttr(name=f"{name}.conv.w", initializer=KaimingNormal()),
        bias_attr=False,
        data_format=config.layout,
    )
    return static.nn.batch_norm(
        x,
        act="relu" if relu else None,
        is_test=not training,
        momentum=config.bn_momentum,
        epsilon=BN_EPSILON,
        param_attr=paddle.ParamAttr(name=f"{name}.bn.w", initializer=Constant(0.0 if zero_gamma else 1.0)),
        bias_attr=paddle.ParamAttr(name=f"{name}.bn.b", initializer=Constant(0.0)),
        moving_mean_name=f"{name}.bn.mean",
        moving_variance_name=f"{name}.bn.variance",
        data_layout=config.layout,
    )


def _bottleneck(
    x: static.Variable,
    name: str,
    config: ModelConfig,
    *,
    width: int,
    stride: int,
    project: bool,
    training: bool,
) -> static.Variable:
    """1x1, 3x3 (with the stride), 1x1, added to the shortcut, ReLU."""
    y = _conv_bn(x, f"{name}.1", config, channels=width, kernel=1, training=training)
    y = _conv_bn(y, f"{name}.2", config, channels=width, kernel=3, stride=stride, training=training)
    y = _conv_bn(
        y,
        f"{name}.3",
        config,
        channels=width * EXPANSION,
        kernel=1,
        relu=False,
        zero_gamma=config.zero_gamma,
        training=training,
    )
    if project:
        x = _conv_bn(
            x,
            f"{name}.shortcut",
            config,
            channels=width * EXPANSION,
            kernel=1,
            stride=stride,
            relu=False,
            training=training,
        )
    return paddle.nn.functional.relu(paddle.add(y, x))


def resnet50(image: static.Variable, config: ModelConfig, *, training: bool) -> static.Variable:
    """Logits [N, K] of `image` [N, C, H, W] (or [N, H, W, C]), appended to the default program.

    With `training` the batch normalizations use the batch's statistics and update the running ones.
    Building twice in two programs under the same names shares the weights.
    """
    x = _conv_bn(image, "stem", config, channels=64, kernel=7, stride=2, training=training)
    x = paddle.nn.functional.max_pool2d(x, 3, stride=2, padding=1, data_format=config.layout)
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for block in range(blocks):
            x = _bottleneck(
                x,
                f"stage{stage}.{block}",
                config,
                width=width,
                stride=2 if block == 0 and stage > 1 else 1,
                project=block == 0,
                training=training,
            )
    x = paddle.nn.functional.adaptive_avg_pool2d(x, 1, data_format=config.layout)
    x = paddle.flatten(x, 1)
    bound = x.shape[1] ** -0.5
    first = Uniform(-bound, bound) if config.uniform_classifier else Normal(0.0, 0.01)
    return static.nn.fc(
        x,
        config.classes,
        weight_attr=paddle.ParamAttr(name="fc.w", initializer=first),
        bias_attr=paddle.ParamAttr(name="fc.b", initializer=Constant(0.0)),
    )
