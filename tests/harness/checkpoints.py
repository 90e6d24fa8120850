"""Checkpoints for tests, a job that goes on from them, and the keeper that writes them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from harness import env
from harness.hooks import checkpoint, checkpoint_file, resume
from harness.hooks.checkpoint_file import Position
from harness.job import job_of, with_values
from harness.progress import Progress
from harness.ranks import Ranks
from runlog.writer import RunLog

ARRAYS: dict[str, np.ndarray] = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.array([1.5, -2.0], dtype=np.float16),
    "steps": np.array([7], dtype=np.int64),
    "scalar": np.array(2.5, dtype=np.float32),
    "flag": np.array([True, False]),
    "nothing": np.zeros((0, 3), dtype=np.float32),
}
RUN = {"workload": "rn50", "recipe": "digits_small"}
POSITION = Position(step=10, epoch=2, epoch_step=0, seed=7, global_batch=32, ranks=2)
METADATA = {"position": dataclasses.asdict(POSITION), "run": RUN}


def job(folder: Path, **changes: object) -> env.Job:
    return job_of(dgxngpu=1, batchsize=32, resume="auto", checkpoint_dir=str(folder), **changes)  # type: ignore[arg-type]


def save(folder: Path, step: int, *, run: dict[str, Any] = RUN, **changes: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:09d}.safetensors"
    position = dataclasses.replace(POSITION, step=step, **changes)
    checkpoint_file.write(path, ARRAYS, {"position": dataclasses.asdict(position), "run": run})
    return path


def keeper(
    one_rank, folder: Path, log: Path, start: resume.Start = resume.FROM_STEP_0, **changes: object
) -> checkpoint.Keeper:
    settings = {"resume": "no", "checkpoint_epochs": 1, **changes}
    return keeper_of(with_values(job(folder), **settings), one_rank, log, start)  # type: ignore[arg-type]


def keeper_of(
    settings: env.Job, one_rank: Ranks, log: Path, start: resume.Start = resume.FROM_STEP_0
) -> checkpoint.Keeper:
    shown = Progress("plain", 100)
    return checkpoint.Keeper(
        settings, one_rank, RunLog(log), shown, start=start, identity=RUN, seed=7, steps_per_epoch=10
    )
