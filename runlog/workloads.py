"""Workloads as publishing knows them: one row of `workloads.json` each, which both halves read.

What training knows of it stands in the folder `paddle_<name>`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class EmbeddedData(NamedTuple):
    """The small data set that this project makes for a workload, which a run without DATADIR reads."""

    name: str
    train_samples: int
    eval_samples: int
    train_sha256: str  # of the passport of its files, which a log has in its header's `dataset`
    eval_sha256: str


class Workload(NamedTuple):
    """One row of the file: the names under which a workload is logged and published, and its usual size."""

    name: str  # value of WORKLOAD; its folder is paddle_<name>
    benchmark: str  # of `submission_benchmark` in a log
    model: str  # of `run_summary` in a log, and in scoring/published/published.csv
    title: str  # for people
    family: str  # part of the model's name in other people's logs and tables
    metric: str  # what an evaluation measures
    unit: str  # of what throughput counts
    train_samples: int  # of its full data set
    eval_samples: int
    runs: int  # of one submission
    flop_height: int | None  # pixels of the image that `training_flop` is of
    flop_width: int | None
    training_flop: int | None  # of an image in a step, two a multiply-add, forward and backward; None: not counted
    # By a recipe's name, what it fixes: its target, how often it evaluates, its image size and, if fixed, its length.
    recipes: Mapping[str, Mapping[str, float]]
    embedded: EmbeddedData | None = None  # None: not known

    def flop_of(self, height: int, width: int) -> int | None:
        """Return the FLOPs of training on one image, forward and backward.

        Args:
            height: Height of the image in pixels.
            width: Width of the image in pixels.

        Returns:
            The number; None if it was not counted for this size.
        """
        if (height, width) != (self.flop_height, self.flop_width):
            return None
        return self.training_flop


def _read(path: Path) -> tuple[Workload, ...]:
    """Read the rows of the file in their order."""
    workloads = []
    for row in json.loads(path.read_text(encoding="utf-8")):
        embedded = row.pop("embedded", None)
        workloads.append(Workload(**row, embedded=EmbeddedData(**embedded) if embedded else None))
    return tuple(workloads)


WORKLOADS = _read(Path(__file__).with_name("workloads.json"))
NAMES = tuple(workload.name for workload in WORKLOADS)


def find(name: str) -> Workload | None:
    """Return one of the workloads (such as ResNet-50 on ImageNet) that this project trains, by its name.

    Args:
        name: Value of the setting WORKLOAD, such as "rn50".

    Returns:
        The workload; None if there is none of that name.
    """
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    return None


def named(name: str) -> Workload:
    """Return one of the workloads (such as ResNet-50 on ImageNet) that this project trains, by its name.

    Args:
        name: Value of the setting WORKLOAD, such as "rn50".

    Raises:
        KeyError: There is none of that name.
    """
    workload = find(name)
    if workload is None:
        raise KeyError(name)
    return workload


def of_model(model: str | None) -> Workload | None:
    """Return the workload that has a model.

    Args:
        model: Full name of the model, as in the event `run_summary` of a log; None if not known.

    Returns:
        The workload; None if no workload has that model.
    """
    for workload in WORKLOADS:
        if workload.model == model:
            return workload
    return None


def of_family(model: str | None) -> Workload | None:
    """Return the first workload whose model family is a part of a model's name.

    Args:
        model: Name of the model, as any log or table has it, in upper or lower case; None if not known.

    Returns:
        The workload; None if no family fits.
    """
    text = (model or "").lower()
    for workload in WORKLOADS:
        if workload.family in text:
            return workload
    return None
