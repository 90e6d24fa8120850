"""Looks at a data set before a run, for the doctor: all files without decoding, and a sample as training decodes it."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import encoded, lists
from harness.decoder import Decoder
from harness.job import Job
from harness.passport import Contents, contents_of, notes_on, passport
from harness.processes import STDERR
from harness.sampling import steps_per_epoch
from runlog import named_files
from runlog.errors import RunError
from runlog.schema import as_json

SAMPLED = 16  # samples of each part that are decoded
COMPARED = 32  # training images of one size in bytes that an evaluation image is compared with
PARTS = ("train", "val")
Facts = dict[str, Any]


class _Part(NamedTuple):
    """A part of a data set that a run can read."""

    samples: Any
    contents: Contents  # names, sizes and labels of its files


def describe_data_set(job: Job) -> dict[str, Facts]:
    """Return a description of each part, "train" and "val", of the job's data set, for tools.doctor.

    All files are looked at without decoding, and up to SAMPLED samples of each part are decoded.

    Args:
        job: The settings of the job; DATADIR must be set.

    Returns:
        {part: description} as `_describe_part` returns it, or {"error": "why"} for a part that a run could not read.
    """
    data_module = importlib.import_module(f"{job.model.package}.data")
    seed = max(job.course.seed, 0)  # a run draws its seed where SEED is -1; here that is taken as 0
    by_part: dict[str, Facts] = {}
    readable: dict[str, _Part] = {}
    for part in PARTS:
        try:
            readable[part] = _read_part(job, data_module, part)
        except OSError as error:
            by_part[part] = {"error": named_files.explain(error)}
        except ValueError as error:
            by_part[part] = {"error": str(error)}
        else:
            by_part[part] = _describe_part(part, data_module, readable[part], seed)
    are_both_readable = len(readable) == len(PARTS)
    if are_both_readable:  # the notes on both together stand with those of "train"
        by_part["train"]["notes"] += _notes_on_both(readable["train"], readable["val"], seed)
    return by_part


def _notes_on_both(train: _Part, evaluation: _Part, seed: int) -> list[str]:
    """Return what is odd in the files of either part of a data set, or in the two together, as an image in both.

    Args:
        train: The training part.
        evaluation: The evaluation part.
        seed: Decides which evaluation samples are compared with training samples by their bytes.
    """
    by_names_sizes_and_labels = notes_on(train.contents, evaluation.contents)
    compared_numbers = _choose_samples(len(evaluation.samples), seed)
    return [*by_names_sizes_and_labels, *_notes_on_copies(train, evaluation, compared_numbers)]


def _read_part(job: Job, data_module: Any, part: str) -> _Part:
    """Return the samples of a part of the job's data set, and the names, sizes and labels of the part's files.

    Args:
        job: The settings of the job; DATADIR must be set.
        data_module: The workload's module of its data, as paddle_rn50.data.
        part: "train" or "val".

    Raises:
        ValueError: A run could not read the part, or the training samples are too few for one step.
        OSError: The system refuses to read a file or folder.
    """
    root = Path(job.data.folder)
    lists.require_data_folder(root)
    samples = data_module.find(root, part, job.hyperparameters.classes)
    if part == "train":
        steps_per_epoch(len(samples), job.global_batch)  # raises ValueError if the samples are too few for one step
    return _Part(samples, contents_of(samples, f"files of {part}", _show_on_stderr))


def _describe_part(name: str, data_module: Any, part: _Part, seed: int) -> Facts:
    """Return a description of a part of a data set: its name, its size, a digest of its files, and its faults.

    Args:
        name: "train" or "val".
        data_module: The workload's module of its data, as paddle_rn50.data.
        part: The samples and files of the part.
        seed: Decides which samples are decoded.

    Returns:
        A dictionary with these keys:

            "name":         the part and the form of its samples, such as "train (files)"
            "samples":      the number of samples
            "passport":     the number, the bytes and a digest of the files
            "numbering":    a digest by which two nodes find whether they number the samples alike
            "decoded":      the number of samples that are chosen to be decoded, up to SAMPLED
            "undecodable":  the first file of the chosen samples that cannot be read or decoded, and why; or empty
            "label_fault":  what is wrong with the first wrong label file of the chosen samples; or empty
            "notes":        the samples' own notes, and a doubt about the labels
    """
    samples = part.samples
    chosen = _choose_samples(len(samples), seed)
    undecodable = _first_undecodable(samples, chosen)
    # Labels are looked at only if all chosen files can be decoded.
    label_fault = "" if undecodable else _first_label_fault(data_module, samples, chosen)
    notes = list(samples.notes)
    has_fault = bool(undecodable or label_fault)
    if not has_fault:
        notes += _doubts_about_labels(data_module, samples, chosen)
    return {
        "name": f"{name} ({samples.form})",
        "samples": len(samples),
        "passport": as_json(passport(part.contents)),
        "numbering": samples.numbering(),
        "decoded": len(chosen),
        "undecodable": undecodable,
        "label_fault": label_fault,
        "notes": notes,
    }


def _notes_on_copies(train: _Part, evaluation: _Part, chosen: list[int]) -> list[str]:
    """Return a list with one warning if some evaluation images are copies of training images; else an empty list.

    Args:
        train: The training part.
        evaluation: The evaluation part.
        chosen: Numbers of the evaluation samples to look at.
    """
    # Sizes of images (`is_exact`) cannot be compared with sizes of whole records, for example of a TFRecord.
    have_comparable_sizes = train.contents.is_exact == evaluation.contents.is_exact
    if not have_comparable_sizes:
        return []
    copies: list[_Copy] = []
    for number in chosen:
        copy = _find_training_image(train, evaluation, number)
        if copy is not None:
            copies.append(copy)
    if not copies:
        return []
    first = copies[0]
    return [
        f"{len(copies)} of the {len(chosen)} evaluation images that were looked at are training images, the first is "
        f"{first.name}, the same bytes as {first.trained_name}: accuracy on them means nothing: give each part its own "
        "images"
    ]


class _Copy(NamedTuple):
    """The names of an evaluation image and of the training image that has the same bytes."""

    name: str
    trained_name: str


def _find_training_image(train: _Part, evaluation: _Part, number: int) -> _Copy | None:
    """Return an evaluation image with a training image of the same bytes; None if none is found.

    Only COMPARED training images of the same size in bytes are read. An image that cannot be read is not a copy.

    Args:
        train: The training part.
        evaluation: The evaluation part.
        number: Which evaluation sample.
    """
    image = _image_of(evaluation.samples, number)
    if image is None:
        return None
    for candidate in _trained_of_equal_size(train.contents, evaluation.contents, number):
        trained = _image_of(train.samples, candidate)
        if trained is not None and image.content == trained.content:
            return _Copy(image.name, trained.name)
    return None


def _trained_of_equal_size(train: Contents, evaluation: Contents, number: int) -> list[int]:
    """Return the numbers of up to COMPARED training samples with the size in bytes of an evaluation sample.

    Those whose file has the same name, in any folder, come first.

    Args:
        train: Names and sizes of the training files.
        evaluation: Names and sizes of the evaluation files.
        number: Which evaluation sample.
    """
    _, _, name = evaluation.names[number].rpartition("/")
    candidates: list[int] = np.flatnonzero(train.sizes == evaluation.sizes[number]).tolist()
    candidates.sort(key=lambda candidate: train.names[candidate].rpartition("/")[2] != name)
    return candidates[:COMPARED]


class _File(NamedTuple):
    """A file of a sample."""

    name: str
    content: bytes


def _image_of(samples: Any, number: int) -> _File | None:
    """Return the name and the bytes of a sample's image, the first of its files; None if it cannot be read."""
    try:
        return _File(*samples.encoded(number)[0])
    except (OSError, RunError):
        return None


def _show_on_stderr(line: str) -> None:
    """Show a line of progress on stderr, as stdout may be JSON."""
    print(line, file=sys.stderr, flush=True)


def _choose_samples(count: int, seed: int) -> list[int]:
    """Return the sorted numbers of up to SAMPLED samples: the first, the last and others drawn by chance.

    Args:
        count: Number of all samples.
        seed: Seed of the draw.
    """
    drawn = np.random.default_rng(seed).choice(count, min(count, SAMPLED), replace=False)
    chosen = dict.fromkeys([0, count - 1, *drawn.tolist()])  # each once
    return sorted(list(chosen)[:SAMPLED])


def _first_undecodable(samples: Any, chosen: list[int]) -> str:
    """Return which file of some samples is the first that cannot be read or decoded, and why; empty if all can be.

    An example is "data/val/7.jpeg: it is truncated: ...".

    Args:
        samples: The samples of a part of the data set.
        chosen: Numbers of the samples to look at.
    """
    decoder = Decoder("cpu", None)  # of DALI, as in training on a CPU
    with _quiet_stderr():
        for number in chosen:
            try:
                files = samples.encoded(number)  # (name, bytes) of the image and, if labels are files, of the label
            except OSError as error:
                return named_files.explain(error)  # as "data/val/7.jpeg: permission denied: ..."
            except RunError as error:  # a record of a packed data set is damaged, or its label is not a class
                return str(error)  # as "data/val.rec, record 7 at byte 4096: ..."
            for name, content in files:
                fault = encoded.fault(content)  # of harness/encoded.py: files that are cut off, damaged or unsupported
                if not fault:
                    fault = decoder.fault(content)  # why DALI cannot decode the file; empty if it can
                if fault:
                    return f"{name}: {fault}"
    return ""


def _first_label_fault(data_module: Any, samples: Any, chosen: list[int]) -> str:
    """Return what is wrong with the first wrong label file of some samples; an empty text if no label file is wrong.

    A label file, as segmentation has, is wrong if it cannot be read or holds a number that is not a class. If labels
    are numbers in place of files, the text is empty: a wrong number was refused when its list or its record was read.

    Args:
        data_module: The workload's module of its data. It has a function `label_fault` only if labels are files.
        samples: The samples of a part of the data set.
        chosen: Numbers of the samples to look at.
    """
    label_fault = getattr(data_module, "label_fault", None)  # says what is wrong with the label of a sample, or ""
    if label_fault is None:  # labels are numbers
        return ""
    for number in chosen:
        fault: str = label_fault(samples, number)
        if fault:
            return fault
    return ""


def _doubts_about_labels(data_module: Any, samples: Any, chosen: list[int]) -> list[str]:
    """Return a list with a message if the label files of some samples hold fewer than two classes; else an empty one.

    Such labels are not wrong, but a training has nothing to tell apart.

    Args:
        data_module: The workload's module of its data. It has a function `label_doubt` if labels are files.
        samples: The samples of a part of the data set.
        chosen: Numbers of the samples whose labels are looked at. `_first_label_fault` has found no fault in them.
    """
    label_doubt = getattr(data_module, "label_doubt", None)
    if label_doubt is None:  # labels are numbers
        return []
    doubt: str = label_doubt(samples, chosen)  # the message; an empty text for two classes or more
    return [doubt] if doubt else []


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Discard what this process writes to stderr while the context lasts, C++ libraries included.

    DALI prints a message of its own for a file that it cannot decode; the caller reports the fault itself.
    """
    sys.stderr.flush()
    stderr_copy = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    finally:
        os.dup2(stderr_copy, STDERR)
        os.close(stderr_copy)
        os.close(nowhere)
