"""What the checks of an acceptance share on a rank: its device and ranks, and the recorded job."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import paddle

from harness import plan as plans
from harness import provenance, ranks, sampling, session
from harness.env import Job, Origins
from harness.loader import ReaderConfig
from paddle_rn50 import config, data, digits
from program import build
from program.schedules import Schedule
from runlog.errors import RunError
from tools.acceptance.images import reader
from tools.acceptance.lines import NotPossible
from tools.acceptance.reference import BATCH, SEED, SIDE, Images
from tools.doctor import gpu as doctor_gpu

# PaddleClas starts from it too. A dynamic scale finds its size by skipping steps, and the recorded job skips none.
LOSS_SCALE = 128
TF32_CAPABILITY = 80
STEPS, SHORT_STEPS = 20, 4  # of the recorded job
# Checks that need none of Paddle's kernels: DALI, NVML and NCCL have their own.
WITHOUT_KERNELS = ("sensors", "input", "all-reduce")


class Machine:
    """This rank's part of the machine, and what its checks share."""

    def __init__(self, job: Job, origins: Origins, me: ranks.Ranks, *, short: bool) -> None:
        self.job, self.origins, self.me, self.short = job, origins, me, short
        _, self.root = session.data_set(replace(job, datadir=""), me, digits)
        self.executor = session.executor(job, me)
        self.nodes = list({node.host: node for node in me.gather(provenance.node())}.values())
        self.steps = SHORT_STEPS if short else STEPS
        self.measured: dict[str, Any] = {}  # what a later check needs of an earlier one
        self.capability = 0  # of this rank's GPU, as 80
        if job.device == "gpu":
            major, minor = paddle.device.cuda.get_device_capability(me.local_rank)
            self.capability = 10 * major + minor
        self.kernels = job.device == "cpu" or bool(doctor_gpu.code_for(self.capability))

    def possible(self, check: str) -> None:
        """Whether this GPU can do a check. Raises NotPossible where it lacks what the check needs."""
        if check not in WITHOUT_KERNELS and not self.kernels:
            raise NotPossible(f"this Paddle has no kernels for compute capability {self.capability / 10}")
        if self.job.precision == "tf32" and self.capability < TF32_CAPABILITY:
            raise NotPossible("TF32 needs compute capability 8.0 or later")

    def of_earlier(self, check: str) -> Any:
        """What an earlier check measured. Raises RunError where it measured nothing."""
        if check not in self.measured:
            raise RunError(f"needs what the check of {check} measures, which failed")
        return self.measured[check]

    def plan(self, layout: str = "", *, strategy: str = "") -> build.Plan:
        """Of this job by a strategy, the default one if none is given, with a static loss scale."""
        return plans.of_job(replace(self.job, strategy=strategy, layout=layout, loss_scale=LOSS_SCALE))

    def recorded(self) -> tuple[config.Recipe, data.ImageList, Schedule]:
        """Recipe, images and schedule of the recorded job."""
        recipe = config.recipe("recorded", global_batch=BATCH, image_size=SIDE)
        images = data.read_list(self.root, "train_list.txt", recipe.classes)
        return recipe, images, recipe.make_schedule(samples=len(images), global_batch=BATCH)

    def batches(self, images: data.ImageList, recipe: config.Recipe, steps: int) -> Images:
        """What one rank reads in the recorded job, by the CPU's pipeline."""
        order = sampling.training_plan(len(images), batch=BATCH, rank=0, ranks=1, seed=SEED)
        source = data.Loader(images, order, self.reader, augment=recipe.augmentation)
        # Copies: the pipeline's buffers are good until the next batch only.
        read = [(np.array(batch.image), np.array(batch.label)) for batch in itertools.islice(source, steps)]
        source.close()
        return read

    @property
    def reader(self) -> ReaderConfig:
        """Of the CPU's pipeline for the recorded jobs."""
        return reader(data.ImageFormat(size=SIDE), threads=self.job.data_threads_per_rank)

    def images(self, part: str, recipe: config.Recipe) -> data.ImageList:
        """The embedded data set's."""
        return data.read_list(self.root, f"{part}_list.txt", recipe.classes)
