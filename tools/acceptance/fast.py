"""The checks of an acceptance that compare a fast step with the plain one: both train from the same weights.

Each tolerance is eight times what a control changes on a CPU, as in `checks`. The controls are in
tests/tools/fast_controls.py. No GPU has confirmed the tolerances yet: the first reports may.
"""

from dataclasses import replace

from paddle_rn50 import config
from program.arrays import Array
from runlog.verdict import Verdict, judged
from tools.acceptance.checks import HALF, Tolerance, judge_losses, why_untrained
from tools.acceptance.machine import BATCH, SIDE, Machine, repeatable_algorithms

# Both programs store in FP16, but not the same values. In the first steps that is GPU_HALF's own change.
UNITS = Tolerance(2e-3, 1e-2, f"the units leave out roundings to FP16, which changes 1.0e-4, then 1.2e-3; {HALF}")
# The merged update sums the norms of LARS in another order. On a CPU, whose kernel goes from parameter to parameter,
# the losses of both updates have the same bits.
RATES = "moving each parameter's rate by 8 roundings of FP32 changes"
LARS_FP32 = Tolerance(6e-5, 2e-2, f"{RATES} 7.0e-6, then 2.3e-3")
# This control stores values in FP16; TF32 rounds factors alone, to as many bits.
LARS_ROUNDED = Tolerance(1.5e-2, 5e-2, f"{RATES} 1.9e-3, then 6.7e-3, where values have the 11 bits of FP16 and TF32")


def units(machine: Machine) -> Verdict:
    """Check that training with Paddle's fused operator `resnet_unit` gives the losses of plain operators.

    The operator has a convolution, its batch norm, an addend and a relu in one. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if each loss differs from the plain one by at most the tolerance UNITS. Fatal if not, or if the plain losses
        show no training to compare with.

    Raises:
        RunError: The check "losses" has kept no losses, as after a failure.
    """
    # The earlier check "losses" has trained the same steps with plain operators.
    plain_losses = machine.kept_by("losses")  # [ranks, steps]
    fused_losses = machine.train(machine.plan(strategy="resnet_unit=1"))  # [ranks, steps]
    return _judge_fast_step("units", fused_losses, plain_losses, UNITS)


def lars(machine: Machine) -> Verdict:
    """Train with plain LARS and with merged LARS, compare the losses of the two, and return the verdict.

    LARS scales the learning rate of each parameter by the norms of its weight and its gradient. Plain LARS runs one
    operator for each parameter, merged LARS one operator for many. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if the losses agree within a tolerance, else fatal. It is fatal, too, if the plain losses show no training.
    """
    recipe = lars_recipe()
    plan = machine.plan()
    merged_plan = replace(plan, strategy=replace(plan.strategy, merged_lars=True))
    with repeatable_algorithms():  # so that only the update differs
        plain = machine.train(plan, recipe)
        merged = machine.train(merged_plan, recipe)
    tolerance = LARS_FP32 if machine.job.model.precision == "fp32" else LARS_ROUNDED
    return _judge_fast_step("lars", merged, plain, tolerance)


def lars_recipe() -> config.Recipe:
    """Return the recipe of the recorded training, but with LARS as the smallest MLPerf reference sets it."""
    recorded = config.recipe("recorded", global_batch=BATCH, image_size=SIDE)
    mlperf = config.mlperf_lars(min(config.MLPERF_POINTS))
    return replace(
        recorded,
        optimizer=mlperf.optimizer,
        base_learning_rate=mlperf.base_learning_rate,
        # The rate is not scaled down to this smaller batch, or 20 steps would train too little to compare.
        base_batch=None,
    )


def _judge_fast_step(check: str, fast: Array, plain: Array, tolerance: Tolerance) -> Verdict:
    """Return the verdict on whether a fast training step gives the losses that the plain step gives.

    Args:
        check: The name of the check, for the verdict.
        fast: The losses of the fast step, shape [ranks, steps].
        plain: The losses of the plain step, shape [ranks, steps]. Those of the first rank are compared with `fast`.
        tolerance: How far a fast loss may be off, as a share of the plain loss.

    Returns:
        Ok if every fast loss is within the tolerance and the plain step trains; else fatal.
    """
    plain_losses = plain[0]  # of the first rank
    why_no_training = why_untrained(plain, "plain")  # such as "a plain step's loss is not finite"; empty if trained
    if why_no_training:  # so there is nothing to compare with
        wanted = "the plain step's losses change from step to step"
        figures = {"losses": fast.tolist(), "wanted": plain_losses.tolist()}
        return judged(check, good=False, found=why_no_training, wanted=wanted, figures=figures)
    return judge_losses(check, fast, plain_losses, tolerance)
