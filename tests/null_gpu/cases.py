"""The matrix: every workload, recipe, precision, layout and mode that the README allows, on one rank and on two.

What a step must ask of a GPU is counted from the papers' networks and the recipes: nothing here looks at a program.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import paddle_hrnet.config
import paddle_rn50.config
from harness.job import PRECISIONS

CONFIGS = {"rn50": paddle_rn50.config, "hrnet": paddle_hrnet.config}
# `recorded` trains nothing, and its program is nvidia_cosine's.
RECIPES = {workload: [name for name in config.RECIPES if name != "recorded"] for workload, config in CONFIGS.items()}
LARS_BATCH = 1632  # images: the smallest global batch that mlperf_lars has a reference point for
SIDE = {"rn50": 32, "hrnet": 64}  # pixels of a training crop
CLOSED = "rn50-mlperf_lars-amp_o2-train-2"  # the README's command for the closed division
FULL = (CLOSED, "hrnet-cityscapes_80k_flip-amp_o1-throughput-2")  # have the networks of users, others fewer blocks
KNOBS = {"merged_lars=1": "mlperf_lars", "resnet_unit=1": "nvidia_cosine"}  # off by default; the recipe of its case
STEPS = 2  # of an epoch
EVALUATED = 3  # evaluation images: less than a batch, so that a part of it only fills up

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


def resnet50_layers(*, small: bool = False, classes: int = 1000, input_channels: int = 3) -> Network:
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job of the matrix."""

    workload: str
    recipe: str
    precision: str
    layout: str = ""  # the precision's own
    mode: str = "train"
    ranks: int = 2
    strategy: str = ""  # of the job; the matrix has one case of each knob in KNOBS

    def __str__(self) -> str:
        return "-".join(str(value) for value in asdict(self).values() if value)

    @property
    def batch(self) -> int:
        """Images of a rank."""
        return LARS_BATCH // self.ranks if self.recipe == "mlperf_lars" else {"rn50": 4, "hrnet": 2}[self.workload]

    @property
    def hyperparameters(self) -> Any:
        """The recipe."""
        return CONFIGS[self.workload].recipe(self.recipe, global_batch=self.batch * self.ranks)

    @property
    def fed(self) -> str:
        """Layout of the images in the program: without a word, NHWC where cuDNN is fastest with it."""
        is_fastest = self.workload == "rn50" and TYPES[self.precision] == "half"
        return self.layout or ("NHWC" if is_fastest else "NCHW")

    @property
    def between(self) -> tuple[str, str]:
        """Type and layout of the images between convolutions, as cuDNN is told: of an NHWC program Paddle transposes
        them but in FP16."""
        kind = TYPES[self.precision]
        return kind, self.fed if kind == "half" else "NCHW"

    @property
    def resnet50(self) -> Network:
        """Its layers where it trains ResNet-50; NHWC in FP16 has a fourth channel, of zeros."""
        channels = 4 if self.between == ("half", "NHWC") else 3
        return resnet50_layers(small=self.is_small, classes=self.hyperparameters.classes, input_channels=channels)

    @property
    def normalizations(self) -> int:
        """Batch normalizations of its network, each behind a convolution."""
        if self.workload == "rn50":
            return len(self.resnet50.normalized)
        return hrnet_w18_convolutions(small=self.is_small)

    @property
    def convolutions(self) -> int:
        """Of a forward pass; FCN-HRNetW18 has one more at its end."""
        return self.normalizations + (self.workload == "hrnet")

    @property
    def gradients(self) -> int:
        """Three of a convolution and its normalization, the last layer's weights, and biases."""
        with_weights = 3 * self.normalizations + 1
        if self.workload == "rn50":
            return with_weights + 1
        return with_weights + (2 if self.hyperparameters.head_bias else 0)  # of both convolutions of the head

    @property
    def spans_ranks(self) -> bool:
        """Whether batch normalizations take their statistics over all ranks."""
        return self.workload == "hrnet" and self.ranks > 1 and self.hyperparameters.sync_bn

    def evaluations(self, last: int) -> int:
        """Batches that a rank evaluates in the last so many epochs."""
        recipe, epochs = self.hyperparameters, range(self.epochs - last + 1, self.epochs + 1)
        at_once = self.ranks * (self.batch if self.workload == "rn50" else recipe.eval_batch)
        return sum(recipe.is_eval_epoch(e, self.epochs) for e in epochs) * math.ceil(EVALUATED / at_once)

    @property
    def is_small(self) -> bool:
        """Whether its network has one block where the real one has several, of the same operators."""
        return str(self) not in FULL

    @property
    def epochs(self) -> int:
        """Epochs of a training run: more than the recipe's warm-up; a checkpoint follows the last but one."""
        return 6 if self.recipe == "nvidia_cosine" else 3

    def variables(self, data: Path) -> dict[str, Any]:
        """The job's environment, on the data set of `write_data`."""
        settings = {
            "WORKLOAD": self.workload,
            "RECIPE": self.recipe,
            "PRECISION": self.precision,
            "LAYOUT": self.layout,
            "MODE": self.mode,
            "DGXNGPU": str(self.ranks),
            "BATCHSIZE": str(self.batch),
            "IMAGE_SIZE": str(SIDE[self.workload]),
            "STRATEGY": self.strategy,
            "NULLGPU_NETWORK": "small" if self.is_small else "",
        }
        if self.mode == "throughput":
            return {**settings, "DATA": "synthetic", "WARMUP_STEPS": str(STEPS), "MEASURED_STEPS": str(STEPS)}
        checkpoint = {"MAX_EPOCHS": str(self.epochs), "CHECKPOINT_EPOCHS": str(self.epochs - 1)}
        return {**settings, **checkpoint, "DATADIR": str(data)}

    def write_data(self, folder: Path) -> Path:
        """A data set of STEPS training batches, in the workload's layout; the labels contradict each other."""
        folder.mkdir()
        rng = np.random.default_rng(0)
        train = STEPS * self.batch * self.ranks
        if self.workload == "rn50":
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / "0.jpeg")
            for name, count in (("train_list.txt", train), ("val_list.txt", EVALUATED)):
                (folder / name).write_text("".join(f"0.jpeg {i % 2}\n" for i in range(count)))
            return folder
        Image.fromarray(rng.integers(0, 256, (64, 128, 3), dtype=np.uint8)).save(folder / "0.png")
        for label in range(2):
            Image.fromarray(np.full((64, 128), label, dtype=np.uint8)).save(folder / f"{label}.png.label.png")
        for name, count in (("train.txt", train), ("val.txt", EVALUATED)):
            (folder / name).write_text("".join(f"0.png {i % 2}.png.label.png\n" for i in range(count)))
        return folder


def matrix() -> list[Case]:
    """Every case on a GPU."""
    found: dict[Case, None] = {}
    for workload, recipes in RECIPES.items():
        jobs = itertools.product(recipes, PRECISIONS, ("train", "throughput"), (2, 1))
        for recipe, precision, mode, ranks in jobs:
            case = Case(workload=workload, recipe=recipe, precision=precision, mode=mode, ranks=ranks)
            found[case] = None
            if workload == "rn50":  # FCN-HRNetW18 has one layout
                found[replace(case, layout="NCHW" if case.fed == "NHWC" else "NHWC")] = None
    knobs = [Case(workload="rn50", recipe=r, precision="amp_o2", strategy=knob) for knob, r in KNOBS.items()]
    return [*found, *knobs]


def _pairs(case: Case) -> Iterator[tuple[object, ...]]:
    """Values that a case tries together; of FCN-HRNetW18, slow to build, each recipe and precision on two ranks.

    It is trained, evaluated and resumed in amp_o2, the GPU systems' own; test_feeds.py builds each evaluation program.
    """
    values = asdict(case)
    workload = values.pop("workload")
    if workload == "hrnet":
        if case.ranks == 2 and (case.mode == "train") == (case.precision == "amp_o2"):
            yield from ((workload, name, values[name]) for name in ("recipe", "precision"))
        return
    for one, other in itertools.combinations(values, 2):
        if (one, other) != ("recipe", "precision"):  # twice as many cases: each recipe trains the same network
            yield workload, one, values[one], other, values[other]


def _cost(case: Case) -> float:
    """Processes that build the network, one after the other; FCN-HRNetW18's takes 2.5 times as long.

    Evaluation at several scales, each image also flipped, runs the network six times: 450 s where others take 220.
    """
    views = 2 if case.mode == "train" and case.recipe == "cityscapes_80k_multiscale" else 1
    return case.ranks * (2 if case.mode == "train" else 1) * (2.5 if case.workload == "hrnet" else 1) * views


def pairwise(cases: list[Case]) -> list[Case]:
    """Cases among which every pair of values occurs that occurs at all; greedily, so cheap but not the cheapest.

    A case is the better the more pairs it brings, and the cheaper it is, by the root of its cost: costs alone would
    take many poor ones.
    """
    chosen = [case for case in cases if str(case) == CLOSED]
    left = {pair for case in cases for pair in _pairs(case)}.difference(*map(_pairs, chosen))
    while left:
        best = max(cases, key=lambda case: len(left.intersection(_pairs(case))) / math.sqrt(_cost(case)))
        chosen.append(best)
        left.difference_update(_pairs(best))
    return chosen
