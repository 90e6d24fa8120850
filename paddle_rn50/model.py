"""ResNet-50 v1.5 as a static-graph program.

v1.5 puts the stride of 2 of a bottleneck into its 3x3 convolution (v1 has it in the first 1x1):
25,557,032 trainable parameters at 1000 classes, 4.1 GMAC forward at 224 x 224
(He et al. 2015, arXiv:1512.03385; v1.5 as torchvision and MLPerf train it).

Shapes: N batch, C channels, H, W image, K classes.
"""

import paddle
from paddle import static
from paddle.nn import functional
from paddle.nn.initializer import Constant, Initializer, Normal, Uniform

from paddle_rn50.config import Recipe
from program.layers import Layers

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # (width of the 3x3, number of bottlenecks)
BOTTLENECK = ("1", "2", "3", "shortcut")  # names of its layers


def resnet50(image: static.Variable, recipe: Recipe, *, layout: str = "NCHW", training: bool) -> static.Variable:
    """Append a ResNet-50 v1.5 network to Paddle's default program and return its logits.

    Args:
        image: Input images, [N, C, H, W], or [N, H, W, C] if `layout` is "NHWC".
        recipe: Hyperparameters, of which four are used: `classes` (K), `bn_momentum`, `zero_gamma` (the last batch
            normalization of each residual block starts with a scale of 0, not 1) and `uniform_classifier` (the weights
            of the last layer start uniform in +-1 / sqrt(2048), not normal with a standard deviation of 0.01).
        layout: Memory layout of all image tensors of the network, "NCHW" or "NHWC".
        training: Whether batch normalization uses the statistics of the batch and updates the running statistics. If
            False, it uses the running statistics and does not change them.

    Returns:
        Logits [N, K], such as [32, 1000].
    """
    layers = Layers(training=training, bn_momentum=recipe.bn_momentum, layout=layout, zero_gamma=recipe.zero_gamma)
    x = layers.conv_bn(image, "stem", 64, 7, stride=2)
    x = functional.max_pool2d(x, 3, stride=2, padding=1, data_format=layout)
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for block in range(blocks):
            # The first block of a stage halves height and width. Stage 1 does not, because the pooling before it does.
            halves_the_image = block == 0 and stage > 1
            stride = 2 if halves_the_image else 1
            x = layers.bottleneck(x, f"stage{stage}.{block}", width, stride=stride, parts=BOTTLENECK)
    pooled = functional.adaptive_avg_pool2d(x, 1, data_format=layout)  # the mean over the image
    features = paddle.flatten(pooled, 1)  # [N, 2048] in both layouts
    initial_weights: Initializer = Normal(0.0, 0.01)
    if recipe.uniform_classifier:
        bound = features.shape[1] ** -0.5  # 1 / sqrt(2048)
        initial_weights = Uniform(-bound, bound)
    return static.nn.fc(
        features,
        recipe.classes,
        weight_attr=paddle.ParamAttr(name="fc.w", initializer=initial_weights),
        bias_attr=paddle.ParamAttr(name="fc.b", initializer=Constant(0.0)),
    )
