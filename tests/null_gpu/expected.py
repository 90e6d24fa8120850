"""What a step must ask of a GPU, counted from the papers' networks and the recipes; nothing here looks at a program."""

from collections import Counter
from dataclasses import dataclass

TYPES = {"fp32": "float", "tf32": "float", "amp_o1": "half", "amp_o2": "half"}  # cuDNN's words
WIDTHS = {"float": 4, "half": 2}  # bytes
ALIGNMENT = 256  # bytes: where each gradient of a joined all-reduce begins (Paddle's allocator on GPUs)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Layers of a network, each with a gradient of its input but the first."""

    filters: tuple[int, ...]  # elements of each convolution's filters
    normalized: tuple[int, ...]  # channels of each batch normalization
    relu: int  # normalizations with a rectifier right after
    add_relu: int  # ... with a sum and a rectifier after
    dense: tuple[int, ...] = ()  # elements of matrices and biases outside convolutions
    products: int = 0  # matrix products of a step


def resnet50(*, small: bool = False, classes: int = 1000, input_channels: int = 3) -> Network:
    """ResNet-50 v1.5 (He et al. 2015, table 1): stem, 16 bottlenecks of three, a projection a stage, dense layer.

    The small one has a bottleneck a stage.
    """
    stages = (1, 1, 1, 1) if small else (3, 4, 6, 3)
    convolutions = [(64, input_channels, 7)]
    channels = 64
    for blocks, width in zip(stages, (64, 128, 256, 512), strict=True):
        for block in range(blocks):
            convolutions += [(width, channels, 1), (width, width, 3), (4 * width, width, 1)]
            if block == 0:
                convolutions.append((4 * width, channels, 1))
            channels = 4 * width
    return Network(
        filters=tuple(out * into * side**2 for out, into, side in convolutions),
        normalized=tuple(out for out, _, _ in convolutions),
        relu=1 + sum(stages) * 2,
        add_relu=sum(stages),
        dense=(channels * classes, classes),
        products=3,  # forward, and the gradients of both operands
    )


def hrnet_w18_convolutions(*, small: bool = False) -> int:
    """Convolutions of HRNetV2-W18 with a normalization each (Sun et al. 2019): the head's first one included.

    Stages 2 to 4 have 1, 4 and 3 modules of 2, 3 and 4 branches: four blocks of two a branch, and in each fusion one
    from every lower resolution to a higher and d from one d steps higher. The small one has a module a stage of a block
    a branch.
    """
    modules, blocks = ((1, 1, 1), 1) if small else ((1, 4, 3), 4)

    def module(branches: int) -> int:
        ways = [(i, j) for i in range(branches) for j in range(branches) if i != j]
        return branches * blocks * 2 + sum(1 if j > i else i - j for i, j in ways)

    stem, bottlenecks, projection, head = 2, 4 * 3, 1, 1
    transitions = 2 + 1 + 1  # the first makes both branches, each later one a new branch
    stages = sum(count * module(branches) for branches, count in enumerate(modules, start=2))
    return stem + bottlenecks + projection + transitions + stages + head


def padded(elements: int, width: int) -> int:
    """Elements that a gradient takes of a joined all-reduce."""
    step = ALIGNMENT // width
    return -(-elements // step) * step


def summed(network: Network, precision: str) -> Counter[str]:
    """Elements of gradients that ranks sum in a step, by type: normalizations stay in FP32.

    Under O1 parameters are FP32, but Paddle has their gradients cross in the type before the last cast.
    """
    half = TYPES[precision]
    total: Counter[str] = Counter()
    for size in (*network.filters, *network.dense):
        total[half] += padded(size, WIDTHS[half])
    for channels in network.normalized:
        total["float"] += 2 * padded(channels, WIDTHS["float"])
    return total


def copies_to_device(precision: str) -> int:
    """Copies from the host in a step, beside a learning rate that changes: for FP16's loss scale the tables of Paddle's
    two kernels (where gradients lie, and how large they are), of FP32 and of FP16 gradients each.
    """
    types = {"amp_o1": 1, "amp_o2": 2}.get(precision, 0)
    return types * 2 * 2
