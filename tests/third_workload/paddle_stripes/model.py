"""Two convolutions and a mean: no residual, no bottleneck."""

import paddle
from paddle import static
from paddle.nn import functional

from program.layers import Layers


def stripes_net(image: static.Variable, classes: int, *, training: bool) -> static.Variable:
    """Logits [N, classes] of `image` [N, 1, H, W], appended to the default program."""
    layers = Layers(training=training, bn_momentum=0.8)
    x = layers.conv_bn(image, "first", 8, 5)
    x = layers.conv_bn(x, "second", 8, 3, stride=2)
    x = paddle.flatten(functional.adaptive_avg_pool2d(x, 1), 1)
    weight, bias = paddle.ParamAttr(name="last.w"), paddle.ParamAttr(name="last.b")
    return static.nn.fc(x, classes, weight_attr=weight, bias_attr=bias)
