"""How a job's program is to be built: the one place where `program/` meets the environment."""

from __future__ import annotations

from harness.env import Job
from program import strategy
from program.build import Plan
from program.precision import PRECISIONS, captured_loss_scale


def _check_auto(job: Job) -> None:
    """Refuses a job that Paddle's automatic mode would not run as it says, by the programs that it builds."""
    said, ranks = "STRATEGY=auto: Paddle's automatic mode", strategy.AUTO_RANKS
    if job.device != "gpu" or job.world_size != ranks:
        raise ValueError(f"{said} divides the state over {ranks} GPUs: set DGXNNODES and DGXNGPU to so many")
    if job.loss_scale:
        raise ValueError(f"{said} scales its loss by itself: set LOSS_SCALE=0")
    if job.precision != "amp_o1":
        raise ValueError(f"{said} trains in mixed precision: set PRECISION=amp_o1")
    if job.mode == "train":
        raise ValueError(
            f"{said} trains by LARS, not by the recipe, and no rank has the whole state to evaluate or save: "
            "set MODE=throughput"
        )


MOST_PIXELS = 64 * 1024 * 512  # of a mean whose gradients FP16 was shown to hold (docs/program.md)


def _check_pixels(job: Job) -> None:
    """Refuses a batch at which FP16 loses the gradients of HRNet's loss, a mean over pixels too; only to train."""
    recipe = job.hyperparameters
    most = MOST_PIXELS // (recipe.image_width * recipe.image_height)
    if job.global_batch > most:
        raise ValueError(
            f"BATCHSIZE={job.batchsize}: at no loss scale does FP16 hold gradients of {job.global_batch} such crops: "
            f"train {most} at most over all ranks, or set PRECISION=fp32 or tf32"
        )


def of_job(job: Job) -> Plan:
    """The plan that a job's environment describes.

    Raises ValueError where STRATEGY names what is unknown or refused, or what does not go with the rest of the job.
    """
    chosen, knobs = PRECISIONS[job.precision], job.knobs
    if job.batchsize % knobs.gradient_merge:
        raise ValueError(f"STRATEGY: gradient_merge={knobs.gradient_merge}: must divide BATCHSIZE={job.batchsize}")
    if knobs.auto:
        _check_auto(job)
    if knobs.perturb_input and job.mode == "train":
        raise ValueError("STRATEGY: perturb_input=1 is a control of tools.tune: set MODE=throughput")
    if job.workload == "hrnet" and chosen.is_half and job.mode == "train":
        _check_pixels(job)
    by_capture = captured_loss_scale(job.global_batch) if knobs.cuda_graph else 0.0
    return Plan(
        device=job.device,
        precision=chosen,
        strategy=knobs,
        layout=job.layout or chosen.layout,
        loss_scale=job.loss_scale or by_capture,
    )
