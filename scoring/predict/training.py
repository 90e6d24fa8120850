"""The epochs, evaluations and minutes that training to the target takes, and what is assumed about them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compliance.official import convergence
from runlog import workloads
from scoring.importers import FORMATS, MAX_NUMBER
from scoring.predict.measured import Point
from scoring.record import Record

EPOCHS_PER_EVAL = 4
EVALUATION_SPEEDUP = 3  # assumed: images/s of evaluation as a multiple of those of training


class DatasetSize(NamedTuple):
    """How many images a data set has to train on, and to evaluate."""

    train: int
    evaluation: int


IMAGENET = DatasetSize(1_281_167, 50_000)
CITYSCAPES = DatasetSize(2_975, 500)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The epochs and evaluations that training to the target takes."""

    epochs: float | None  # as the user gave them; None: by the reference convergence points, if these hold
    train_samples: int
    eval_samples: int
    eval_images_per_s_device: float
    is_resnet_on_imagenet: bool  # only then do the reference convergence points hold


class TimeToTrain(NamedTuple):
    """The predicted epochs and minutes to the target; None if they are not known."""

    epochs: float | None
    minutes: float | None
    why_unknown: str  # empty if they are known


def time_to_train(training: Training, *, global_batch: int, devices: int, step_s: float) -> TimeToTrain:
    """Return how many epochs and minutes training to the target takes, or why this is not known.

    Args:
        training: The size of the data set, the speed of evaluation, and the epochs if the user gave them.
        global_batch: Images of one step over all devices.
        devices: The number of devices on all nodes. They share the evaluation.
        step_s: Seconds of one training step.
    """
    epochs = epochs_to_target(training, global_batch)
    if epochs.number is None:
        return TimeToTrain(None, None, epochs.why_unknown)
    return TimeToTrain(epochs.number, _minutes_to_train(training, epochs.number, global_batch, devices, step_s), "")


def _minutes_to_train(training: Training, epochs: float, global_batch: int, devices: int, step_s: float) -> float:
    """Return the minutes that training takes, including an evaluation every 4 (EPOCHS_PER_EVAL) epochs.

    Args:
        training: The size of the data set, and the speed of evaluation.
        epochs: How many epochs the training takes; it may be a fraction.
        global_batch: Images of one step over all devices.
        devices: The number of devices on all nodes. They share the evaluation.
        step_s: Seconds of one training step.
    """
    steps = math.ceil(training.train_samples / global_batch) * epochs
    evaluations = math.ceil(epochs / EPOCHS_PER_EVAL)
    evaluated_images_per_device = evaluations * math.ceil(training.eval_samples / devices)
    training_s = steps * step_s
    evaluation_s = evaluated_images_per_device / training.eval_images_per_s_device
    return (training_s + evaluation_s) / 60


class Epochs(NamedTuple):
    """The number of epochs to the target; None if it is not known."""

    number: float | None
    why_unknown: str = ""  # empty if it is known


def epochs_to_target(training: Training, global_batch: int) -> Epochs:
    """Return how many epochs training takes to reach the target quality, or why this is not known.

    If the user gave none, it is known only for ResNet-50 on ImageNet, from the runs of the MLPerf reference: their mean
    at this batch, or interpolated between two batches. Below the smallest batch, it is the mean of that one.

    Args:
        training: The epochs that the user gave, if any, and whether the model is ResNet-50 on ImageNet.
        global_batch: Images of one step over all devices.

    Returns:
        The number. It is None, with the reason, for another model or data set, and for a batch above the largest of the
        reference.
    """
    if training.epochs is not None:
        return Epochs(training.epochs)
    if not training.is_resnet_on_imagenet:
        return Epochs(None, "epochs to the target are not known for this model and data set: give --epochs")
    reference = convergence.reference_set("resnet", "4.0.0")  # v4.0 is the last round of MLPerf with this benchmark
    at_batch = convergence.point_at(global_batch, reference.points, reference)
    if at_batch is None:
        reason = f"global batch {global_batch} is past the largest reference convergence point: give --epochs"
        return Epochs(None, reason)
    mean_epochs = at_batch.point.mean  # between two batches of the reference it is interpolated
    return Epochs(mean_epochs)


class Assumed(NamedTuple):
    """The inputs of the time to train, and a text for each that is assumed."""

    training: Training
    assumptions: list[str]


def assumed_training(records: Sequence[Record], measured: Point, epochs: float | None) -> Assumed:
    """Return what the time to train is computed from, and what is assumed for it in words.

    Args:
        records: The runs as read from their logs, at least one, all of one model.
        measured: The measured throughput of training.
        epochs: The epochs to the target quality, as the user gave them (--epochs); None if the user gave none.
    """
    dataset = _dataset_size(records)  # the numbers of images to train on and to evaluate
    is_imagenet = dataset.train == IMAGENET.train  # a data set with as many images is taken for ImageNet
    training = Training(
        epochs=epochs,
        train_samples=dataset.train,
        eval_samples=dataset.evaluation,
        # Assumed: evaluation is 3 times as fast as training.
        eval_images_per_s_device=EVALUATION_SPEEDUP * measured.images_per_s / measured.devices,
        is_resnet_on_imagenet=is_imagenet and _is_resnet(records),
    )
    return Assumed(training, _assumptions_in_words(training))


def _assumptions_in_words(training: Training) -> list[str]:
    """Return a text for each assumption of a predicted time to train: on the epochs, and on the speed of evaluation.

    Args:
        training: What the time to train is computed from.
    """
    assumptions = []
    takes_epochs_of_reference = training.epochs is None and training.is_resnet_on_imagenet  # see `epochs_to_target`
    if takes_epochs_of_reference:
        assumptions.append(
            "epochs to the target are MLPerf reference convergence points at the global batch (--epochs)"
        )
    rate = f"{training.eval_images_per_s_device:.0f}"
    assumptions.append(f"evaluation does {rate} images/s a device, {EVALUATION_SPEEDUP} x training")
    return assumptions


def _is_resnet(records: Sequence[Record]) -> bool:
    """Return whether runs of one model are of the MLPerf benchmark `resnet`, by the model that their logs name."""
    workload = _workload_of(records)
    return workload is not None and workload.benchmark == "resnet"


def _workload_of(records: Sequence[Record]) -> workloads.Workload | None:
    """Return the workload of the model that runs train, such as ResNet-50 on ImageNet.

    Args:
        records: The runs as read from their logs, all of one model, which some of the logs may not name.

    Returns:
        The workload by the first log that names a model. None if no log names one, or if no workload fits the name.
    """
    for record in records:
        if record.model:
            return workloads.of_family(record.model)
    return None


def _dataset_size(records: Sequence[Record]) -> DatasetSize:
    """Return how many images the runs train on and evaluate, by the first log that describes its data set.

    Args:
        records: The runs as read from their logs, at least one.

    Returns:
        The size as the log describes it. It is the size of the benchmark's data set in these cases:

        - No log describes a data set.
        - The described data set is synthetic, or the log does not say whether it is.
        - One of the two numbers is missing or impossible: then this number alone is the benchmark's.
    """
    benchmark_size = _benchmark_size(records)
    datasets = [record.header.get("dataset") for record in records]
    described = [dataset for dataset in datasets if isinstance(dataset, dict)]
    if not described:
        return benchmark_size
    dataset = described[0]
    is_synthetic = dataset.get("synthetic", True)  # if the log does not say which it is, the data may be synthetic
    if is_synthetic:  # its size says nothing of the real data set
        return benchmark_size
    return DatasetSize(
        train=_size_or(dataset.get("train_samples"), benchmark_size.train),
        evaluation=_size_or(dataset.get("eval_samples"), benchmark_size.evaluation),
    )


def _benchmark_size(records: Sequence[Record]) -> DatasetSize:
    """Return the size of the data set that the model's benchmark trains on.

    Args:
        records: The runs as read from their logs, all of one model. At least one.

    Returns:
        The size. If no benchmark of this project fits the model's name, it is the size of Cityscapes if a log is of
        segmentation, else the size of ImageNet.
    """
    workload = _workload_of(records)
    if workload is not None:
        return DatasetSize(workload.train_samples, workload.eval_samples)
    if any(FORMATS[record.format].segmentation for record in records):
        return CITYSCAPES
    return IMAGENET


def _size_or(size: object, fallback: int) -> int:
    """Return a size from a log, if it is a possible number of images.

    Args:
        size: The size as the log has it, of any type.
        fallback: What is returned for any other size.
    """
    if type(size) is int and 0 < size < MAX_NUMBER:
        return size
    return fallback
