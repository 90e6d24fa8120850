"""Training recipes of FCN-HRNetW18: one frozen value each, with its source.

A recipe owns hyperparameters; what a machine decides (batch of a device, ranks, precision) is the job's.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from harness.sampling import steps_per_epoch
from program.optimizers import OptimizerConfig, Schedule

CITYSCAPES_TRAIN, CITYSCAPES_CLASSES = 2_975, 19
SCENES_TRAIN, SCENES_EVAL, SCENES_CLASSES = 718, 90, 11  # the embedded data set; the digits, and ground
IGNORED = 255  # label of a pixel that counts neither in the loss nor in the metric


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Training crop, flip and colours."""

    scale_min: float = 0.5  # of the image, before the crop
    scale_max: float = 2.0
    scale_step: float = 0.25
    flip: float = 0.5  # probability of a horizontal flip
    colour: float = 0.4  # brightness, contrast and saturation: within 1 +- this
    hue_degrees: float = 18 / 255 * 360  # within +- this; PaddleSeg's 18 of 255 steps
    colour_probability: float = 0.5  # of each of the four


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyperparameters of one training run."""

    name: str
    source: str  # where the figures come from
    train_samples: int = CITYSCAPES_TRAIN  # images of the data set that it is made for
    classes: int = CITYSCAPES_CLASSES
    target_miou: float  # training ends when it is reached
    eval_every_epochs: int
    base_learning_rate: float  # never scaled by the batch
    schedule: Literal["polynomial"] = "polynomial"
    power: float = 0.9
    optimizer: OptimizerConfig
    iterations: int | None = None  # length of the schedule in steps; training ends here at the latest
    epochs: int | None = None  # the same in epochs; one of the two is given
    warmup_epochs: float = 0.0
    end_learning_rate: float = 0.0
    bn_momentum: float = 0.9  # share of the old running statistic kept at a step
    sync_bn: bool = True  # BN statistics over all ranks
    head_bias: bool = True
    padding_same: bool = True  # of convolutions of stride 2, right and below only; else on all sides
    weight_std: float | None = 0.001  # of a convolution's first weights; None: Kaiming's
    zero_gamma: bool = False  # residual blocks start as their shortcuts
    image_width: int = 1024  # pixels of the training crop
    image_height: int = 512
    eval_batch: int = 1  # whole images that a device evaluates at a time
    eval_flip: bool = False  # also the mirrored image, logits averaged
    eval_scales: tuple[float, ...] = (1.0,)  # logits averaged over these sizes of the image
    augmentation: Augmentation = Augmentation()

    @property
    def target(self) -> float:
        """Quality of an evaluation that ends the training."""
        return self.target_miou

    def most_epochs(self, *, samples: int, global_batch: int) -> int:
        """Return the number of epochs after which training ends at the latest.

        A recipe has either `epochs` or `iterations`, which are steps. Iterations are rounded up to whole epochs: 80,000
        steps are 433 epochs of 185 steps. The steps beyond `iterations` have the learning rate `end_learning_rate`.

        Args:
            samples: Number of training images.
            global_batch: Images of a step over all ranks.

        Raises:
            ValueError: The recipe has `iterations`, and the batch is larger than the data set: an epoch has no step.
        """
        if self.epochs:
            return self.epochs
        iterations = self.iterations or 0  # never 0: a recipe without epochs has iterations
        return math.ceil(iterations / steps_per_epoch(samples, global_batch))

    def make_schedule(self, *, samples: int, global_batch: int, epochs: int = 0) -> Schedule:
        """Return the learning rate by step of a training run.

        Args:
            samples: Number of training images.
            global_batch: Images of a step over all ranks. It decides how many steps an epoch has, and so the lengths of
                the warm-up and of a schedule in epochs. The base learning rate is not scaled by it.
            epochs: Length of the schedule in epochs; 0 for the recipe's own epochs or, without those, its iterations.

        Raises:
            ValueError: The batch is larger than the data set, or the warm-up is as long as the schedule or longer.
        """
        per_epoch = steps_per_epoch(samples, global_batch)
        return Schedule(
            kind=self.schedule,
            base=self.base_learning_rate,
            warmup_steps=round(self.warmup_epochs * per_epoch),
            total_steps=self._schedule_steps(per_epoch, epochs),
            end=self.end_learning_rate,
            power=self.power,
        )

    def _schedule_steps(self, per_epoch: int, epochs: int) -> int:
        """Return the length of the learning rate's schedule in steps.

        Args:
            per_epoch: Steps of an epoch.
            epochs: Length in epochs; 0 for the recipe's own epochs or, without those, its iterations.
        """
        schedule_epochs = epochs or self.epochs
        if schedule_epochs:
            return schedule_epochs * per_epoch
        return self.iterations or 0

    @property
    def image_size(self) -> str:
        """Training crop, as a checkpoint remembers it."""
        return f"{self.image_width}x{self.image_height}"

    def is_eval_epoch(self, epoch: int, last: int) -> bool:
        """Return whether an evaluation follows an epoch.

        Args:
            epoch: Number of the epoch; counts from 1.
            last: Number of the last epoch, which an evaluation always follows.
        """
        return epoch == last or epoch % self.eval_every_epochs == 0


# PaddleSeg's fcn_hrnetw18_cityscapes_1024x512_80k from ImageNet weights: mIoU 0.7897 (flip 0.7949).
CITYSCAPES_80K = Recipe(
    name="cityscapes_80k",
    source="PaddleSeg, configs/fcn/fcn_hrnetw18_cityscapes_1024x512_80k.yml",
    target_miou=0.7897,
    eval_every_epochs=10,
    base_learning_rate=0.01,
    iterations=80_000,
    optimizer=OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=5e-4, decay_bn_and_bias=True),
)

# The same, evaluated with the mirrored image, and so at 0.75, 1 and 1.25 of its size.
FLIP = replace(CITYSCAPES_80K, name="cityscapes_80k_flip", target_miou=0.7949, eval_flip=True)
MULTISCALE = replace(FLIP, name="cityscapes_80k_multiscale", target_miou=0.8004, eval_scales=(0.75, 1.0, 1.25))

# PaddlePaddle/Perf's measurement: no pretrained weights, no biases in the head, 400 steps, printed every 15; batch 8 a
# GPU. `launch/campaign.sh perf_hrnet` runs it and scores it by --protocol perf-seg: the four windows that this drops
# are the run's own warm-up.
BENCHMARK = replace(
    CITYSCAPES_80K,
    name="cityscapes_benchmark",
    source="PaddlePaddle/Perf, HRNetW18",
    head_bias=False,
    padding_same=False,
    iterations=400,
    augmentation=Augmentation(colour=0.5),
)

# The default: the embedded scenes on two CPU cores, mIoU 0.70 in 2 or 3 of its 4 epochs (benchmarks/README.md). With
# seed 1 the loss at step 60 was 1.12 without `zero_gamma` and 0.65 with it.
SCENES_SMALL = Recipe(
    name="scenes_small",
    source="this project",
    train_samples=SCENES_TRAIN,
    classes=SCENES_CLASSES,
    target_miou=0.70,
    eval_every_epochs=1,
    base_learning_rate=0.1,
    epochs=4,
    warmup_epochs=0.5,
    optimizer=OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4),
    sync_bn=False,  # four scenes a rank are enough; on a CPU it adds over 600 small all-reduces to a step
    weight_std=None,
    zero_gamma=True,
    image_width=128,
    image_height=64,
    eval_batch=4,
    # A mirrored digit is another one or none; scales and colours are varied by the scenes themselves.
    augmentation=Augmentation(scale_min=1.0, scale_max=1.0, flip=0.0, colour=0.0, hue_degrees=0.0),
)

RECIPES = {recipe.name: recipe for recipe in (SCENES_SMALL, CITYSCAPES_80K, FLIP, MULTISCALE, BENCHMARK)}


def recipe(name: str, *, global_batch: int, image_size: int = 0) -> Recipe:
    """Return the hyperparameters of a training run by the name of their recipe.

    Args:
        name: One of RECIPES, such as "cityscapes_80k"; the default "scenes_small" if empty.
        global_batch: Images of a step over all ranks; of no effect on these recipes.
        image_size: Side in pixels of a square training crop; 0 for the recipe's own.

    Raises:
        ValueError: There is no such recipe.
    """
    name = name or SCENES_SMALL.name
    if name not in RECIPES:
        raise ValueError(f"RECIPE={name!r}: must be one of {', '.join(RECIPES)}")
    chosen = RECIPES[name]
    return replace(chosen, image_width=image_size, image_height=image_size) if image_size else chosen
