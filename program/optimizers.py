"""The optimizer and the learning rate that a recipe asks for. No Paddle here: tools that run anywhere read recipes."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """SGD with momentum, or LARS (You et al. 2017, arXiv:1708.03888)."""

    kind: Literal["sgd", "lars"]
    momentum: float
    weight_decay: float  # L2, added to the gradient
    decay_bn_and_bias: bool = False
    decay_bias: bool = False  # biases decay even where normalizations do not
    lars_coefficient: float = 0.001  # factor of the trust ratio, as MLPerf's reference has it
    lars_epsilon: float = 0.0

    def decays(self, name: str) -> bool:
        """Tell whether a parameter of this name decays; weights of convolutions and matrices always do."""
        if ".bn." in name:
            return self.decay_bn_and_bias
        return not name.endswith(".b") or self.decay_bias or self.decay_bn_and_bias


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate of the global batch as a pure function of the step, from 0.

    Every schedule warms up linearly: step k of a warm-up of w steps has base * (k + 1) / w, so that the last step of
    the warm-up reaches the base and no step has a rate of 0. MLPerf's reference and NVIDIA's recipe (`from_zero`) have
    base * k / w, whose first step has a rate of 0.
    """

    kind: Literal["piecewise", "cosine", "polynomial"]
    base: float  # learning rate after the warm-up
    warmup_steps: int
    total_steps: int  # the decay ends here
    boundaries: tuple[int, ...] = ()  # piecewise: steps from which the next factor holds
    factors: tuple[float, ...] = ()  # piecewise: factor on the base from each boundary on
    end: float = 0.0  # cosine and polynomial: rate at total_steps
    power: float = 2.0  # polynomial
    from_zero: bool = False  # the warm-up's first step has a rate of 0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps < self.total_steps:
            raise ValueError(
                f"warm-up of {self.warmup_steps} steps in a schedule of {self.total_steps}: the warm-up must be "
                "shorter: train more epochs (MAX_EPOCHS, or 0 for the recipe's) or use a smaller batch"
            )
        assert len(self.boundaries) == len(self.factors)

    @property
    def decay_steps(self) -> int:
        """The steps that a log calls decay steps: those after the warm-up in MLPerf's reference, else all."""
        is_mlperfs = self.from_zero and self.kind == "polynomial"
        return self.total_steps - self.warmup_steps if is_mlperfs else self.total_steps

    def __call__(self, step: int) -> float:
        """Return the learning rate of `step`."""
        if step < self.warmup_steps:
            warmed_up = step if self.from_zero else step + 1
            return self.base * warmed_up / self.warmup_steps
        if self.kind == "piecewise":
            passed = sum(step >= boundary for boundary in self.boundaries)
            return self.base * (1.0, *self.factors)[passed]
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        if self.kind == "cosine":
            return self.end + (self.base - self.end) * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.end + (self.base - self.end) * (1.0 - done) ** self.power
