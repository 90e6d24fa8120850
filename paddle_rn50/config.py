"""Training recipes of ResNet-50 v1.5: one frozen value each, with its source.

A recipe owns hyperparameters; what a machine decides (batch of a device, ranks, precision) is the job's.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from harness import embedded
from harness.sampling import steps_per_epoch
from program.optimizers import OptimizerConfig, Schedule

IMAGENET_TRAIN, IMAGENET_CLASSES = 1_281_167, 1000


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Training crop and flip; shares are between 0 and 1."""

    area_min: float = 0.08  # area of the crop, as a share of the image's
    area_max: float = 1.0
    aspect_min: float = 3 / 4  # width over height of the crop
    aspect_max: float = 4 / 3
    flip: float = 0.5  # probability of a horizontal flip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyperparameters of one training run."""

    name: str
    source: str  # where the figures come from
    train_samples: int = IMAGENET_TRAIN  # images of the data set that it is made for
    classes: int = IMAGENET_CLASSES
    target_top1: float = 0.759  # share of the evaluation images; training ends when it is reached
    epochs: int  # length of the schedule; training ends here at the latest
    eval_every_epochs: int = 1
    eval_offset_epochs: int = 0  # the first evaluation is after this many epochs, or after eval_every_epochs if 0
    base_learning_rate: float  # after the warm-up; of the global batch below
    base_batch: int | None  # images; the rate is scaled by global batch / base_batch; None: never scaled
    schedule: Literal["piecewise", "cosine", "polynomial"]
    warmup_epochs: float
    optimizer: OptimizerConfig
    decay_ends: int | None = None  # polynomial: optimizer steps after which the end rate is reached; None: the epochs
    warmup_from_zero: bool = False  # the first step has a rate of 0
    boundaries_epochs: tuple[float, ...] = ()  # piecewise
    factors: tuple[float, ...] = ()  # piecewise: on the base rate, from each boundary on
    end_learning_rate: float = 0.0
    power: float = 2.0  # polynomial
    label_smoothing: float = 0.0  # share of the target spread evenly over the classes
    zero_gamma: bool = False  # residual blocks start as their shortcuts
    uniform_classifier: bool = False  # first weights of the last layer
    bn_momentum: float = 0.9  # share of the old running statistic kept at a step
    image_size: int = 224  # pixels, side of the crop in training and evaluation
    eval_resize: int = 256  # pixels, shorter side before the evaluation's centre crop
    augmentation: Augmentation = Augmentation()

    @property
    def target(self) -> float:
        """Quality of an evaluation that ends the training."""
        return self.target_top1

    def most_epochs(self, *, samples: int, global_batch: int) -> int:
        """Return the number of epochs after which training ends at the latest.

        Args:
            samples: Number of training images; of no effect on these recipes.
            global_batch: Images of a step over all ranks; likewise.
        """
        return self.epochs

    def make_schedule(self, *, samples: int, global_batch: int, epochs: int = 0) -> Schedule:
        """Return the learning rate by step of a training run.

        Args:
            samples: Number of training images.
            global_batch: Images of a step over all ranks. The rate grows in proportion to it, unless the recipe fixes
                the rate.
            epochs: Length of the schedule in epochs; 0 for the recipe's own. A recipe that states its decay in steps
                keeps that.

        Raises:
            ValueError: The batch is larger than the data set, or the warm-up is as long as the schedule or longer.
        """
        per_epoch = steps_per_epoch(samples, global_batch)
        base_rate = self.base_learning_rate
        if self.base_batch is not None:  # the rate is for this batch, and scaled in proportion for another
            base_rate *= global_batch / self.base_batch
        return Schedule(
            kind=self.schedule,
            base=base_rate,
            warmup_steps=round(self.warmup_epochs * per_epoch),
            total_steps=self._steps_until_end_rate(per_epoch, epochs),
            boundaries=tuple(round(boundary * per_epoch) for boundary in self.boundaries_epochs),
            factors=self.factors,
            end=self.end_learning_rate,
            power=self.power,
            from_zero=self.warmup_from_zero,
        )

    def _steps_until_end_rate(self, per_epoch: int, epochs: int) -> int:
        """Return after how many steps the learning rate has fallen to its end.

        A recipe may state the number, whatever the epochs are. Else it is the length of the schedule.

        Args:
            per_epoch: Steps of an epoch.
            epochs: Length of the schedule in epochs; 0 for the recipe's own.
        """
        if self.decay_ends is not None:
            return self.decay_ends
        if epochs != 0:
            return epochs * per_epoch
        return self.epochs * per_epoch

    def is_eval_epoch(self, epoch: int, last: int) -> bool:
        """Return whether an evaluation follows an epoch.

        Args:
            epoch: Number of the epoch; counts from 1.
            last: Number of the last epoch, which an evaluation always follows.
        """
        return epoch == last or (epoch - self.eval_offset_epochs) % self.eval_every_epochs == 0


class ReferencePoint(NamedTuple):
    """Hyperparameters of LARS at a global batch for which MLPerf has reference convergence runs."""

    base_rate: float
    warmup_epochs: int
    weight_decay: float
    momentum: float
    decay_steps: int


MLPERF_POINTS = {  # by global batch
    1632: ReferencePoint(7.4, 2, 5e-5, 0.9, 27476),
    3264: ReferencePoint(10.5, 2, 5e-5, 0.9, 14523),
    4096: ReferencePoint(10.0, 5, 2e-4, 0.9, 13137),
    8192: ReferencePoint(17.0, 5, 2e-4, 0.9, 6095),
    13056: ReferencePoint(12.8, 9, 2.5e-5, 0.9, 4710),
    32768: ReferencePoint(21.2, 16, 2.5e-5, 0.94, 2267),
    49152: ReferencePoint(19.405, 24, 1e-4, 0.951807, 1846),
    58880: ReferencePoint(23.246, 29, 1e-4, 0.951807, 1785),
    65536: ReferencePoint(24.699, 31, 1e-4, 0.951807, 1133),
    67840: ReferencePoint(24.699, 31, 1e-4, 0.951807, 1133),
}
# By `lars_util.py` of the reference the decay steps follow the warm-up. At these points they are those of the whole
# training, as published logs at the same rates and warm-ups show, NVIDIA's and Baidu's among them: they train 37, 48,
# 58 and 70 epochs, and reach the target two or three before the last (docs/recipes.md).
WARMUP_COUNTED = (3264, 13056, 32768, 49152, 58880)
EVAL_EVERY, EVAL_OFFSET = 4, 3  # epochs


def _first_step_at_end_rate(point: ReferencePoint, global_batch: int, per_epoch: int) -> int:
    """Return the first step, counted from 0, at which the learning rate has its end value: warm-up and decay are over.

    The decay begins where the warm-up ends, so this step is warm-up steps + steps of the decay. A point's `decay_steps`
    are the steps of the decay, except at the batches of WARMUP_COUNTED, such as 3264. There they are the steps of the
    whole training, and the steps of the decay are derived from them.

    Args:
        point: Hyperparameters of a reference run of MLPerf.
        global_batch: Images of a step over all ranks.
        per_epoch: Steps of an epoch.
    """
    if global_batch in WARMUP_COUNTED:
        # By `lars_util.py` of the MLPerf reference, the decay then takes train_steps - warmup_steps + 1 steps. The
        # + 1 is the reference's. With the warm-up added, warmup_steps cancels out: train_steps + 1.
        train_steps = point.decay_steps
        return train_steps + 1
    warmup_steps = point.warmup_epochs * per_epoch
    return warmup_steps + point.decay_steps  # without + 1: `decay_steps` are given, and not derived


def _first_evaluated_epoch(from_epoch: int) -> int:
    """Return the first epoch from a given one on that an evaluation follows: 36 -> 39 and 39 -> 39.

    Evaluations follow the epochs 3, 7, 11, ... (EVAL_OFFSET, EVAL_OFFSET + EVAL_EVERY and so on).

    Args:
        from_epoch: The epoch from which to look, itself included.
    """
    epochs_to_go = (EVAL_OFFSET - from_epoch) % EVAL_EVERY  # 0 to 3
    return from_epoch + epochs_to_go


def mlperf_lars(global_batch: int) -> Recipe:
    """Return the training recipe for the closed division of MLPerf at a global batch.

    The hyperparameters of LARS are those of the reference runs of MLPerf at this batch. The last epoch is that of the
    first evaluation once the learning rate has fallen to its end value, at a step that is rounded to whole epochs.

    Args:
        global_batch: Images of a step over all ranks, such as 4096.

    Raises:
        ValueError: There are no reference runs for this batch (MLPERF_POINTS has all).
    """
    if global_batch not in MLPERF_POINTS:
        raise ValueError(
            f"mlperf_lars has no reference convergence point for global batch {global_batch}: choose BATCHSIZE so that "
            f"BATCHSIZE x ranks is one of {', '.join(map(str, MLPERF_POINTS))}"
        )
    point = MLPERF_POINTS[global_batch]
    # The last epoch, with the numbers of a global batch of 3264 as an example: step 14524 -> 37 epochs -> epoch 39.
    per_epoch = steps_per_epoch(IMAGENET_TRAIN, global_batch)  # in steps: 392
    step_of_end_rate = _first_step_at_end_rate(point, global_batch, per_epoch)  # the first step at the end rate: 14524
    epochs_until_end_rate = round(step_of_end_rate / per_epoch)  # in epochs: 14524 / 392 = 37.05, rounded to 37
    # The first epoch from 37 on that an evaluation follows: 39, because evaluations follow 3, 7, ..., 35, 39.
    last_epoch = _first_evaluated_epoch(epochs_until_end_rate)
    return Recipe(
        name="mlperf_lars",
        source="MLPerf training 4.0.0, reference convergence points of resnet",
        epochs=last_epoch,
        eval_every_epochs=EVAL_EVERY,
        eval_offset_epochs=EVAL_OFFSET,
        base_learning_rate=point.base_rate,
        base_batch=None,  # the point's rate is that of this global batch, and not scaled
        schedule="polynomial",
        warmup_epochs=point.warmup_epochs,
        decay_ends=step_of_end_rate,  # in steps, counted from the start of training; the warm-up is in epochs
        warmup_from_zero=True,
        end_learning_rate=1e-4,
        optimizer=OptimizerConfig(kind="lars", momentum=point.momentum, weight_decay=point.weight_decay),
        label_smoothing=0.1,
        augmentation=Augmentation(area_min=0.05, aspect_max=1.33),
    )


# The default: the embedded digits to top-1 0.90 in minutes on two CPU cores.
DIGITS_SMALL = Recipe(
    name="digits_small",
    source="this project, benchmarks/README.md: five seeds",
    train_samples=embedded.TRAIN_DIGITS,
    classes=10,
    target_top1=0.90,
    epochs=4,
    base_learning_rate=0.1,
    base_batch=32,
    schedule="cosine",
    warmup_epochs=0.5,
    optimizer=OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4),
    zero_gamma=True,
    image_size=64,
    eval_resize=64,
    augmentation=Augmentation(area_min=0.7, flip=0.0),  # a mirrored digit is another one or none
)

# NVIDIA's ResNet-50 for Paddle, 90 epochs: top-1 0.7693 +- 0.0014.
NVIDIA_COSINE = Recipe(
    name="nvidia_cosine",
    source="NVIDIA DeepLearningExamples, PaddlePaddle/Classification/RN50v1.5",
    epochs=90,
    base_learning_rate=0.256,
    base_batch=256,
    schedule="cosine",
    warmup_epochs=5,
    warmup_from_zero=True,
    optimizer=OptimizerConfig(kind="sgd", momentum=0.875, weight_decay=1 / 32768, decay_bias=True),
    label_smoothing=0.1,
    uniform_classifier=True,
)

# PaddleClas's ResNet50.yaml, 120 epochs: top-1 0.7650.
PADDLECLAS_PIECEWISE = Recipe(
    name="paddleclas_piecewise",
    source="PaddleClas, ppcls/configs/ImageNet/ResNet/ResNet50.yaml",
    epochs=120,
    base_learning_rate=0.1,
    base_batch=256,
    schedule="piecewise",
    warmup_epochs=0,
    boundaries_epochs=(30, 60, 90),
    factors=(0.1, 0.01, 0.001),
    optimizer=OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4, decay_bn_and_bias=True),
    uniform_classifier=True,
)

# The job of the recorded losses (golden.json): NVIDIA's, of whose blocks the residual branches start at 0, which keeps
# one FP32 rounding of the images at 7e-8 of the losses over 14 steps at 32 px. From 1 on it becomes 7 %.
RECORDED = replace(
    NVIDIA_COSINE,
    name="recorded",
    source="this project, paddle_rn50/golden.json",
    zero_gamma=True,
    uniform_classifier=False,
)

OF_ANY_BATCH = {recipe.name: recipe for recipe in (DIGITS_SMALL, NVIDIA_COSINE, PADDLECLAS_PIECEWISE, RECORDED)}
RECIPES = sorted((*OF_ANY_BATCH, "mlperf_lars"))


def recipe(name: str, *, global_batch: int, image_size: int = 0) -> Recipe:
    """Return the hyperparameters of a training run by the name of their recipe.

    Args:
        name: One of RECIPES, such as "nvidia_cosine"; the default "digits_small" if empty.
        global_batch: Images of a step over all ranks. Only "mlperf_lars" has other hyperparameters for another batch.
        image_size: Side of the crop in pixels; 0 for the recipe's own. The size to which evaluation images are resized
            changes in proportion.

    Raises:
        ValueError: There is no such recipe, or "mlperf_lars" has no reference point for this global batch.
    """
    name = name or DIGITS_SMALL.name
    if name not in RECIPES:
        raise ValueError(f"RECIPE={name!r}: must be one of {', '.join(RECIPES)}")
    # OF_ANY_BATCH has all recipes by name, except "mlperf_lars".
    chosen = mlperf_lars(global_batch) if name == "mlperf_lars" else OF_ANY_BATCH[name]
    crop_size = image_size or chosen.image_size
    eval_resize = round(chosen.eval_resize * crop_size / chosen.image_size)
    return replace(chosen, image_size=crop_size, eval_resize=eval_resize)
