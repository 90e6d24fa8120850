"""Which optimizer a recipe asks for (no Paddle here: recipes are read by tools that run anywhere)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """SGD with momentum, or LARS (You et al. 2017, arXiv:1708.03888)."""

    kind: str  # sgd | lars
    momentum: float
    weight_decay: float  # L2, added to the gradient
    decay_bn_and_bias: bool = False
    decay_bias: bool = False  # biases decay even where normalizations do not
    lars_coefficient: float = 0.001  # factor of the trust ratio, as MLPerf's reference has it
    lars_epsilon: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "lars"):
            raise ValueError(f"optimizer {self.kind!r}: must be sgd or lars")

    def decays(self, name: str) -> bool:
        """Whether a parameter of this name decays: weights of convolutions and matrices always do."""
        if ".bn." in name:
            return self.decay_bn_and_bias
        return not name.endswith(".b") or self.decay_bias or self.decay_bn_and_bias
