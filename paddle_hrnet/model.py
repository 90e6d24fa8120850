"""FCN with an HRNet-W18 backbone as a static-graph program.

HRNet keeps branches of 1/4, 1/8, 1/16 and 1/32 of the image's size side by side and exchanges them after each module
(Wang et al. 2019, arXiv:1908.07919); the head is a 1x1 convolution over the four, the classes, and a bilinear
enlargement (Sun et al. 2019, arXiv:1904.04514). As PaddleSeg builds it: convolutions pad "SAME", which at a stride of
2 pads on the right and below only; in its benchmark they pad on all sides.

At 19 classes and with the head's biases it has 9,641,119 trainable parameters, and 9,675,595 with BN statistics.

Shapes: N batch, C channels, H, W image, K classes; every tensor is NCHW. NHWC is not built: tensor cores take channels
in eights and cuDNN's fused normalizations in fours, but the two largest branches have 18 and 36 channels, and
normalizations over ranks have no fused form. The bytes that it would save and cost are in docs/lab-notes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle
from paddle import static
from paddle.nn import functional
from paddle.nn.initializer import Constant, Initializer, KaimingNormal, Normal

from program.weights import read_pdparams

WIDTHS = (18, 36, 72, 144)  # channels of the branches, from 1/4 to 1/32 of the image
STEM = 64
BOTTLENECKS, EXPANSION = 4, 4  # stage 1: bottlenecks, and output channels over their width
MODULES = {2: 1, 3: 4, 4: 3}  # stage: how often its branches are exchanged
BLOCKS = 4  # residual blocks of a branch in a module
BN_EPSILON = 1e-5
NAMED = 5  # layers that an error names before it only counts


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What decides the network's operators and its first weights."""

    classes: int
    head_bias: bool = True  # in both convolutions of the head
    padding_same: bool = True  # else a convolution of stride 2 too pads on all sides
    bn_momentum: float = 0.9  # share of the old running statistic kept at a step
    weight_std: float | None = 0.001  # of a convolution's first weights, as PaddleSeg has it; None: Kaiming's
    zero_gamma: bool = False  # the last normalization of a residual block starts at 0, the block as its shortcut


def _conv(
    x: static.Variable,
    name: str,
    config: ModelConfig,
    *,
    channels: int,
    kernel: int,
    stride: int = 1,
    bias: bool = False,
) -> static.Variable:
    initializer: Initializer = KaimingNormal() if config.weight_std is None else Normal(0.0, config.weight_std)
    return static.nn.conv2d(
        x,
        channels,
        kernel,
        stride=stride,
        padding="SAME" if config.padding_same else (kernel - 1) // 2,
        param_attr=paddle.ParamAttr(name=f"{name}.w", initializer=initializer),
        bias_attr=paddle.ParamAttr(name=f"{name}.b", initializer=Constant(0.0)) if bias else False,
    )


def _conv_bn(
    x: static.Variable,
    name: str,
    config: ModelConfig,
    *,
    channels: int,
    kernel: int,
    stride: int = 1,
    relu: bool = True,
    bias: bool = False,
    gamma: float = 1.0,
    training: bool,
) -> static.Variable:
    """Convolution, batch normalization of the first scale `gamma`, and ReLU where asked for."""
    x = _conv(x, f"{name}.conv", config, channels=channels, kernel=kernel, stride=stride, bias=bias)
    return static.nn.batch_norm(
        x,
        act="relu" if relu else None,
        is_test=not training,
        momentum=config.bn_momentum,
        epsilon=BN_EPSILON,
        param_attr=paddle.ParamAttr(name=f"{name}.bn.w", initializer=Constant(gamma)),
        bias_attr=paddle.ParamAttr(name=f"{name}.bn.b", initializer=Constant(0.0)),
        moving_mean_name=f"{name}.bn.mean",
        moving_variance_name=f"{name}.bn.variance",
    )


def _bottleneck(
    x: static.Variable, name: str, config: ModelConfig, *, project: bool, training: bool
) -> static.Variable:
    """1x1, 3x3, 1x1, added to the shortcut, ReLU."""
    y = _conv_bn(x, f"{name}.conv1", config, channels=STEM, kernel=1, training=training)
    y = _conv_bn(y, f"{name}.conv2", config, channels=STEM, kernel=3, training=training)
    wide = STEM * EXPANSION
    gamma = 0.0 if config.zero_gamma else 1.0
    y = _conv_bn(y, f"{name}.conv3", config, channels=wide, kernel=1, relu=False, gamma=gamma, training=training)
    if project:
        x = _conv_bn(x, f"{name}.conv_down", config, channels=wide, kernel=1, relu=False, training=training)
    return functional.relu(paddle.add(y, x))


def _block(x: static.Variable, name: str, config: ModelConfig, *, training: bool) -> static.Variable:
    """Two 3x3, added to their input, ReLU."""
    channels = x.shape[1]
    y = _conv_bn(x, f"{name}.conv1", config, channels=channels, kernel=3, training=training)
    gamma = 0.0 if config.zero_gamma else 1.0
    y = _conv_bn(y, f"{name}.conv2", config, channels=channels, kernel=3, relu=False, gamma=gamma, training=training)
    return functional.relu(paddle.add(y, x))


def _transition(
    branches: list[static.Variable], name: str, config: ModelConfig, *, count: int, training: bool
) -> list[static.Variable]:
    """`count` branches of the widths that the next stage has; a new one halves the last one's size."""
    result = []
    for i in range(count):
        if i < len(branches) and branches[i].shape[1] == WIDTHS[i]:
            result.append(branches[i])
            continue
        stride = 1 if i < len(branches) else 2
        x = branches[min(i, len(branches) - 1)]
        layer = f"{name}.transition_{name.rpartition('.')[2]}_layer_{i + 1}"
        result.append(_conv_bn(x, layer, config, channels=WIDTHS[i], kernel=3, stride=stride, training=training))
    return result


def _exchange(
    branches: list[static.Variable], name: str, prefix: str, config: ModelConfig, *, training: bool
) -> list[static.Variable]:
    """Every branch becomes the ReLU of the sum of all, each brought to its size and width."""
    result = []
    for i, target in enumerate(branches):
        total = target
        for j, source in enumerate(branches):
            layer = f"{prefix}.residual_{name}_layer_{i + 1}_{j + 1}"
            y = source
            if j > i:
                y = _conv_bn(y, layer, config, channels=WIDTHS[i], kernel=1, relu=False, training=training)
                # Paddle's AMP O1 takes the type of the second: enlarged in FP32, summed in FP16.
                total = paddle.add(_enlarge(y, target.shape[2:]), total)
            elif j < i:
                for k in range(1, i - j + 1):
                    last = k == i - j
                    y = _conv_bn(
                        y,
                        f"{layer}_{k}",
                        config,
                        channels=WIDTHS[i] if last else WIDTHS[j],
                        kernel=3,
                        stride=2,
                        relu=not last,
                        training=training,
                    )
                total = paddle.add(total, y)
        result.append(functional.relu(total))
    return result


def _enlarge(x: static.Variable, size: tuple[int, int] | list[int]) -> static.Variable:
    return functional.interpolate(x, list(size), mode="bilinear", align_corners=False)


def hrnet_w18(image: static.Variable, config: ModelConfig, *, training: bool) -> static.Variable:
    """Features [N, 270, H/4, W/4] of `image` [N, 3, H, W]: the four branches, enlarged and side by side."""
    name = "backbone"
    x = _conv_bn(image, f"{name}.conv_layer1_1", config, channels=STEM, kernel=3, stride=2, training=training)
    x = _conv_bn(x, f"{name}.conv_layer1_2", config, channels=STEM, kernel=3, stride=2, training=training)
    for i in range(1, BOTTLENECKS + 1):
        x = _bottleneck(x, f"{name}.la1.bb_layer2_{i}", config, project=i == 1, training=training)
    branches = [x]
    for stage, modules in MODULES.items():
        branches = _transition(branches, f"{name}.tr{stage - 1}", config, count=stage, training=training)
        for module in range(1, modules + 1):
            short = f"st{stage}_{module}"
            prefix = f"{name}.st{stage}.stage_st{stage}_{module}"
            for i in range(stage):
                for block in range(1, BLOCKS + 1):
                    layer = f"{prefix}.branches_func.bb_{short}_branch_layer_{i + 1}_{block}"
                    branches[i] = _block(branches[i], layer, config, training=training)
            branches = _exchange(branches, short, f"{prefix}.fuse_func", config, training=training)
    size = branches[0].shape[2:]
    return paddle.concat([branches[0], *(_enlarge(x, size) for x in branches[1:])], axis=1)


def fcn_hrnet_w18(image: static.Variable, config: ModelConfig, *, training: bool) -> static.Variable:
    """Logits [N, K, H, W] of `image` [N, 3, H, W], appended to the default program.

    With `training` the batch normalizations use the batch's statistics and update the running ones.
    Building twice under the same names, in one program or in two, shares the weights.
    """
    x = hrnet_w18(image, config, training=training)
    x = _conv_bn(x, "head.conv_1", config, channels=sum(WIDTHS), kernel=1, bias=config.head_bias, training=training)
    x = _conv(x, "head.cls", config, channels=config.classes, kernel=1, bias=config.head_bias)
    return _enlarge(x, image.shape[2:])


# Endings of our variables' names and of PaddleSeg's, whose state dictionaries name the same layers.
PADDLESEG_ENDINGS = (
    (".conv.w", "._conv.weight"),
    (".conv.b", "._conv.bias"),
    (".bn.w", "._batch_norm.weight"),
    (".bn.b", "._batch_norm.bias"),
    (".bn.mean", "._batch_norm._mean"),
    (".bn.variance", "._batch_norm._variance"),
    (".cls.w", ".cls.weight"),
    (".cls.b", ".cls.bias"),
)


def paddleseg_name(name: str) -> str:
    """Name in PaddleSeg's state dictionary of one of our variables; empty if it is none of the model's."""
    for ours, theirs in PADDLESEG_ENDINGS:
        if name.endswith(ours):
            return name.removesuffix(ours) + theirs
    return ""


def pretrained_weights(path: Path, program: static.Program) -> dict[str, np.ndarray]:
    """Values of the program's variables from a file of PaddleSeg: of a backbone (ImageNet), or of a whole model.

    Raises ValueError where the file cannot be read, or layers of the model are absent from it or have another shape
    there.
    """
    loaded = read_pdparams(path)
    whole_model = any(name.startswith("backbone.") for name in loaded)
    values, wrong = {}, []
    for variable in program.list_vars():
        theirs = paddleseg_name(variable.name)
        if not theirs or not variable.persistable or not (whole_model or theirs.startswith("backbone.")):
            continue
        theirs = theirs if whole_model else theirs.removeprefix("backbone.")
        value = loaded.get(theirs)
        if value is None:
            wrong.append(f"{theirs} is absent")
        elif tuple(value.shape) != tuple(variable.shape):
            wrong.append(f"{theirs} is {list(value.shape)} there and {list(variable.shape)} here")
        else:
            values[variable.name] = value
    if wrong:
        more = f", and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise ValueError(
            f"{path}: {len(wrong)} layers do not fit: {'; '.join(sorted(wrong)[:NAMED])}{more}: "
            "set PRETRAINED to weights of HRNet-W18"
        )
    return values
