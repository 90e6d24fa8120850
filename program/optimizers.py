"""The optimizer and the learning rate that a recipe asks for. No Paddle here: tools that run anywhere read recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from runlog import schema

if TYPE_CHECKING:
    from paddle.base.framework import Operator


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """SGD with momentum, or LARS (You et al. 2017, arXiv:1708.03888)."""

    kind: str  # of KINDS
    momentum: float
    weight_decay: float  # L2, added to the gradient
    decay_bn_and_bias: bool = False
    decay_bias: bool = False  # biases decay even where normalizations do not
    lars_coefficient: float = 0.001  # factor of the trust ratio, as the MLPerf reference has it
    lars_epsilon: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"optimizer {self.kind!r}: must be one of {', '.join(KINDS)}")

    def decays(self, name: str) -> bool:
        """Return whether a parameter of this name decays; weights of convolutions and matrices always do."""
        if ".bn." in name:
            return self.decay_bn_and_bias
        is_bias = name.endswith(".b")
        return not is_bias or self.decay_bias or self.decay_bn_and_bias


# ---- how each kind is built, proved and logged


def _build_sgd(config: OptimizerConfig, rate: Any, program: Any, merged: bool) -> Any:
    """Return Paddle's momentum optimizer, and set an L2 penalty on each parameter of `program` that decays.

    Args:
        config: Momentum, weight decay, and which parameters decay.
        rate: Learning rate, a number or Paddle's scheduler.
        program: Paddle program with the parameters to be trained.
        merged: Whether one operator updates all parameters of one data type.
    """
    import paddle

    for parameter in program.all_parameters():
        if config.decays(parameter.name):
            parameter.regularizer = paddle.regularizer.L2Decay(config.weight_decay)
    return paddle.optimizer.Momentum(learning_rate=rate, momentum=config.momentum, use_multi_tensor=merged)


def _read_sgd_decay(op: Operator, index: int) -> float:
    """Return the L2 weight decay that an operator of SGD applies to one of its parameters; 0 for none.

    Args:
        op: Operator of type `momentum`, which updates one parameter, or `merged_momentum`, which updates several.
        index: Number of the parameter; counts from 0.
    """
    methods = op.attr("regularization_method")
    factors = op.attr("regularization_coeff")
    if op.type == "momentum":  # it has one of each; `merged_momentum` has lists, which are empty if none decays
        methods, factors = [methods], [factors]
    if not methods or methods[index] != "l2_decay":
        return 0.0
    return float(factors[index])


def _build_lars(config: OptimizerConfig, rate: Any, program: Any, merged: bool) -> Any:
    """Return Paddle's LARS optimizer.

    Parameters that do not decay by `config.decays` are also left out of LARS' trust ratio.

    Args:
        config: Momentum, weight decay, which parameters decay, and the coefficient and epsilon of LARS.
        rate: Learning rate, a number or Paddle's scheduler.
        program: Paddle program with the parameters to be trained.
        merged: Of no effect here: this optimizer makes one operator for each parameter, which `merge_lars` can merge
            later.
    """
    import paddle

    without_decay = [parameter.name for parameter in program.all_parameters() if not config.decays(parameter.name)]
    return paddle.incubate.optimizer.LarsMomentumOptimizer(
        learning_rate=rate,
        momentum=config.momentum,
        lars_coeff=config.lars_coefficient,
        lars_weight_decay=config.weight_decay,
        exclude_from_weight_decay=without_decay,  # names; LARS' trust ratio is not applied to these either
        epsilon=config.lars_epsilon,
    )


def _read_lars_decay(op: Operator, index: int) -> float:
    """Return the L2 weight decay that a `lars_momentum` operator applies to one of its parameters; 0 for none.

    Args:
        op: The operator, of one or several parameters.
        index: Number of the parameter; counts from 0.
    """
    return float(op.attr("lars_weight_decay")[index])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of optimizer."""

    build: Callable[[OptimizerConfig, Any, Any, bool], Any]  # of a config, Paddle's learning rate, a program, merged
    logged: schema.Optimizer  # types of the operators that update its parameters, and events of its hyperparameters
    read_decay: Callable[[Operator, int], float]  # weight decay of such an operator's parameter of that number, from 0
    attributes: Mapping[str, str]  # {attribute of these operators: field of OptimizerConfig whose value it must have}
    further_points: Mapping[str, schema.Point[float]]  # events of this kind alone, by their fields of OptimizerConfig


KINDS = {
    "sgd": Kind(
        build=_build_sgd,
        logged=schema.OPTIMIZERS["sgd"],
        read_decay=_read_sgd_decay,
        attributes={"mu": "momentum"},
        further_points={},
    ),
    "lars": Kind(
        build=_build_lars,
        logged=schema.OPTIMIZERS["lars"],
        read_decay=_read_lars_decay,
        attributes={"mu": "momentum", "lars_coeff": "lars_coefficient", "epsilon": "lars_epsilon"},
        further_points={"lars_epsilon": schema.LARS_EPSILON},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate of the global batch as a pure function of the step, counted from 0.

    Every schedule warms up linearly. Step k of a warm-up of w steps has the rate base * (k + 1) / w: the first step
    already learns, and the last step of the warm-up has the base. With `from_zero`, as in the MLPerf reference and
    NVIDIA's recipe, step k has base * k / w: the first step has a rate of 0.
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
        """The number of decay steps that a log states.

        The MLPerf reference's schedule, the polynomial one whose warm-up starts from zero, counts the steps after the
        warm-up. Other schedules count all steps.
        """
        is_mlperf_reference = self.from_zero and self.kind == "polynomial"
        if is_mlperf_reference:
            return self.total_steps - self.warmup_steps
        return self.total_steps

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step.

        The rate first rises linearly to `base`, for `warmup_steps` steps. Then it follows the schedule's `kind`: it is
        `base` times the factor of the last boundary that was reached (piecewise), or falls to `end` at `total_steps`
        and stays there (cosine, polynomial).

        Args:
            step: Number of the optimizer step; counts from 0.
        """
        if step < self.warmup_steps:
            warmup_steps_done = step if self.from_zero else step + 1
            return self.base * warmup_steps_done / self.warmup_steps
        if self.kind == "piecewise":
            return self.base * self._piecewise_factor(step)
        # How much of the way from the warm-up's end to `total_steps` is done, from 0 to 1.
        share_done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        remaining_factor: float  # from 1 at the warm-up's end to 0 at `total_steps`
        if self.kind == "cosine":
            remaining_factor = 0.5 * (1.0 + math.cos(math.pi * share_done))
        else:  # polynomial
            remaining_factor = (1.0 - share_done) ** self.power
        return self.end + (self.base - self.end) * remaining_factor

    def _piecewise_factor(self, step: int) -> float:
        """Return the factor of the last boundary that `step` has reached; 1 before the first boundary."""
        factor = 1.0
        for boundary, next_factor in zip(self.boundaries, self.factors, strict=True):
            if step >= boundary:
                factor = next_factor
        return factor
