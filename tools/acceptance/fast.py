"""The checks of an acceptance that compare a fast step with the plain one: both train from the same weights.

A tolerance is eight times what its control changes on a CPU, as those of `checks` are. The controls are in
tests/tools/fast_controls.py. No GPU has confirmed them: the first reports may.
"""

from dataclasses import replace

import paddle

from paddle_rn50 import config
from program.arrays import Array
from runlog.verdict import Verdict, judged
from tools.acceptance.checks import HALF, REPEATABLE, Tolerance, judge_losses, why_untrained
from tools.acceptance.machine import BATCH, SIDE, Machine

# Both programs store in FP16, but not the same values. In the first steps that is GPU_HALF's own change.
UNITS = Tolerance(2e-3, 1e-2, f"the units leave out roundings to FP16, which changes 1.0e-4, then 1.2e-3; {HALF}")
# The merged update sums the norms of LARS in another order. On a CPU, whose kernel goes from parameter to parameter,
# the losses of both updates have the same bits.
RATES = "moving each parameter's rate by 8 roundings of FP32 changes"
LARS_FP32 = Tolerance(6e-5, 2e-2, f"{RATES} 7.0e-6, then 2.3e-3")
LARS_ROUNDED = Tolerance(1.5e-2, 5e-2, f"{RATES} 1.9e-3, then 6.7e-3, where values are stored in FP16")


def units(machine: Machine) -> Verdict:
    """Compare losses by `resnet_unit`, Paddle's operator of a convolution, its batch norm and relu, with the plain."""
    plain = machine.of_earlier("losses")
    fused = machine.train(machine.plan(strategy="resnet_unit=1"))
    return _judge_fast_step("units", fused, plain, UNITS)


def lars(machine: Machine) -> Verdict:
    """Compare losses by LARS's merged update, one operator of up to 59 parameters, with those by one a parameter."""
    paddle.set_flags(REPEATABLE)  # so that nothing but the update differs
    recipe = lars_recipe()
    plan = machine.plan()
    plain = machine.train(plan, recipe)
    merged = machine.train(replace(plan, strategy=replace(plan.strategy, merged_lars=True)), recipe)
    computes_in_fp32 = machine.job.model.precision == "fp32"
    return _judge_fast_step("lars", merged, plain, LARS_FP32 if computes_in_fp32 else LARS_ROUNDED)


def lars_recipe() -> config.Recipe:
    """Return the recorded recipe with LARS, at the rate and momentum of the smallest MLPerf reference point."""
    recorded = config.recipe("recorded", global_batch=BATCH, image_size=SIDE)
    mlperf = config.mlperf_lars(min(config.MLPERF_POINTS))
    return replace(
        recorded,
        optimizer=mlperf.optimizer,
        base_learning_rate=mlperf.base_learning_rate,
        base_batch=None,  # the rate stays at this smaller batch, or 20 steps would train too little to compare
    )


def _judge_fast_step(check: str, fast: Array, plain: Array, tolerance: Tolerance) -> Verdict:
    """Judge the losses [ranks, steps] of a fast step by those of the plain one, which must have trained."""
    untrained = why_untrained(plain, "plain")
    if untrained:
        figures = {"losses": fast.tolist(), "wanted": plain[0].tolist()}
        return judged(check, False, untrained, "the plain step's losses change from step to step", figures=figures)
    return judge_losses(check, fast, plain[0], tolerance)
