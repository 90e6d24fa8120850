"""The one recipe: 512 made pictures of stripes, told apart in a few seconds."""

from dataclasses import dataclass, replace

from harness.sampling import steps_per_epoch
from program.optimizers import OptimizerConfig, Schedule

SGD = OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4)
TRAIN_PICTURES, EVAL_PICTURES = 512, 96


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyperparameters of one training run."""

    name: str = "stripes"
    source: str = "a test"
    train_samples: int = TRAIN_PICTURES
    classes: int = 2
    target: float = 0.9
    epochs: int = 6
    warmup_epochs: float = 0.25
    image_size: int = 12
    augmentation: None = None
    optimizer: OptimizerConfig = SGD

    def most_epochs(self, *, samples: int, global_batch: int) -> int:
        """Epochs after which training ends at the latest."""
        return self.epochs

    def make_schedule(self, *, samples: int, global_batch: int, epochs: int = 0) -> Schedule:
        """Learning rate by step."""
        steps = steps_per_epoch(samples, global_batch)
        warmup_steps = round(self.warmup_epochs * steps)
        total_steps = (epochs or self.epochs) * steps
        return Schedule(kind="cosine", base=0.01, warmup_steps=warmup_steps, total_steps=total_steps)

    def is_eval_epoch(self, epoch: int, last: int) -> bool:
        """Whether an evaluation follows an epoch: it follows each third one."""
        return epoch % 3 == 0 or epoch == last


def recipe(name: str, *, global_batch: int, image_size: int = 0) -> Recipe:
    """The recipe, at another side of the pictures where one is given. Raises ValueError for another name."""
    if name not in ("", "stripes"):
        raise ValueError(f"RECIPE={name!r}: must be stripes")
    return replace(Recipe(), image_size=image_size or Recipe.image_size)
