"""Tells which bytes a data set holds, and what can be said of it before a run without decoding.

A passport is the number of files, the sum of their sizes, and a digest over the sorted (name, size, label) of all. It
says which bytes were read, not what they show: two sets of equal names and sizes have one passport.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from harness.hooks.watchdog import WATCHDOG
from program.arrays import Array
from runlog import schema
from runlog.digits import counted

READERS = 16  # threads: a network disk answers each question late
FILES_AT_ONCE = 4096
# From this many files on their sizes are stored in a file next to the data, as a question for each takes minutes on a
# network disk. The stored sizes serve if those of CHECKED files, chosen by chance, are what they were.
STORED_FROM = 100_000
CHECKED = 2_000
STORED_SIZE = np.dtype("<i8")  # of a size in that file: an integer of 8 bytes, little-endian on any machine
SHOWN_EVERY_S = 5.0
# Sizes in bytes tell files apart if there are at least so many different ones; those of bitmaps may all be equal.
TELLING_SIZES = 4

OnProgress = Callable[[int, int], None]  # called with how many of how many files were looked at


class Contents(NamedTuple):
    """The files of a part of a data set: names, sizes and labels."""

    names: Sequence[str]  # of files; or "0", "1", ..., numbers of records, by which the parts are not compared
    sizes: Array  # [samples] int64, bytes
    labels: Sequence[object] | Array | None  # None: not known without reading all
    is_exact: bool  # whether sizes are those of the encoded images, or of records with more in them


class Samples(Protocol):
    """A part of a data set, of any workload."""

    @property
    def form(self) -> str:
        """Name of the form that the samples are kept in, as the log's header has it."""

    @property
    def source(self) -> schema.Passport | None:
        """The passport of the files that the samples were packed from, where they were packed and it is known."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a user should read before a run."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def numbering(self) -> str:
        """Return a digest by which two ranks find whether they number the same samples alike, without reading them."""

    def contents(self, on_progress: OnProgress) -> Contents:
        """Return names, sizes and labels of the files.

        Args:
            on_progress: Called from time to time with how many of how many files were looked at.

        Raises:
            ValueError: A run would fail at a file.
            OSError: A file cannot be read.
        """


class Surveyed(NamedTuple):
    """The findings about a data set before a run."""

    train: schema.Passport
    evaluation: schema.Passport
    notes: list[str]  # what a user should know, a sentence each


def survey(train: Samples, evaluation: Samples, say: Callable[[str], None]) -> Surveyed:
    """Look at all files of a data set without decoding them, and return what they hold.

    Args:
        train: The training samples.
        evaluation: The evaluation samples.
        say: Called with a line about the progress from time to time, if this takes long.

    Returns:
        The passport of each part (number, sizes and a digest of its files), and notes for the user.

    Raises:
        ValueError: A run would fail at a file: it is absent, a folder or empty, a record in it is not whole, or a label
            is out of range.
        OSError: A file cannot be read.
    """
    train_contents = contents_of(train, "training files", say)
    eval_contents = contents_of(evaluation, "evaluation files", say)
    notes = notes_on(train_contents, eval_contents)
    return Surveyed(passport(train_contents), passport(eval_contents), notes)


def digest_in_order(names: Sequence[str], numbers: Array) -> str:
    """Return a SHA-256 over names of files and an array of numbers, 64 hexadecimal digits; the order of both matters.

    Args:
        names: Names of the files that hold the samples.
        numbers: Numbers that belong to the samples, such as their labels; may be empty.
    """
    digest = hashlib.sha256("\0".join(names).encode(errors="surrogateescape"))
    digest.update(numbers.tobytes())
    return digest.hexdigest()


def contents_of(samples: Samples, what: str, say: Callable[[str], None]) -> Contents:
    """Return the names, sizes and labels of all files of a part of a data set, without decoding them.

    Args:
        samples: The training or the evaluation samples.
        what: Name of the files in the lines about the progress, such as "training files".
        say: Called with a line about the progress from time to time, if this takes long.

    Raises:
        ValueError: A run would fail at a file.
        OSError: A file cannot be read.
    """
    return samples.contents(_progress_of(what, say))


def notes_on(train: Contents, evaluation: Contents) -> list[str]:
    """Return a sentence for each oddity of a data set that a user should know of before a run.

    Odd in a part alone:

        a file that it names more than once, or with several labels
        a label file of several images
        one class for all images

    Odd in training, or between the two parts:

        training labels that are 1 to N
        a class that is evaluated and not trained on
        a class folder with another label in each part
        a file that is in both parts or, if there is none, parts that seem to be copies of each other

    Records have numbers in place of file names, so no record is taken to be in both parts.

    Args:
        train: Names, sizes and labels of the training files.
        evaluation: Names, sizes and labels of the evaluation files.
    """
    notes = []
    # So that "a.jpg" and "./a.jpg" count as one file.
    train_names = _without_detours(train.names)
    eval_names = _without_detours(evaluation.names)
    for part, names, contents in (("training", train_names, train), ("evaluation", eval_names, evaluation)):
        repeated = _repeated(names)
        if repeated:
            files = counted(len(repeated), "file")
            notes.append(f"the {part} set names {files} more than once, the first is {repeated[0]}")
            notes += _note_on_contradictions(part, names, contents)
        notes += _note_on_shared_labels(part, names, contents)
        labels = contents.labels  # an array where they are class numbers
        if isinstance(labels, np.ndarray) and len(np.unique(labels)) == 1:
            notes.append(f"the {part} set has one class alone, {labels[0]}: there is nothing to tell apart")
    notes += _note_on_first_label(train)
    notes += _note_on_untrained_classes(train, evaluation)
    notes += _note_on_renumbered_folders(train, evaluation)
    in_both: list[str] = []
    if not _are_record_numbers(train.names):  # else both parts count their records from 0: equal names mean nothing
        in_both = sorted(set(train_names) & set(eval_names))
    if in_both:
        files = counted(len(in_both), "file")
        notes.append(f"training and evaluation have {files} in common, the first is {in_both[0]}")
    else:
        notes += _note_on_copies(train, evaluation)
    return notes


def _note_on_copies(train: Contents, evaluation: Contents) -> list[str]:
    """Return a list with a sentence if both parts seem to hold the same images, because their files have equal sizes.

    Args:
        train: The training files with their sizes in bytes.
        evaluation: The evaluation files with their sizes in bytes.
    """
    if len(train.sizes) != len(evaluation.sizes):  # first, as it saves sorting a million sizes of nearly every data set
        return []
    sizes = np.sort(train.sizes)
    if len(np.unique(sizes)) < TELLING_SIZES:  # as bitmaps have: equal sizes mean nothing then
        return []
    have_equal_sizes = np.array_equal(sizes, np.sort(evaluation.sizes))
    if not have_equal_sizes:
        return []
    return [
        f"the {len(sizes)} evaluation images have the sizes in bytes of the training images: they seem to be these "
        "again, on which accuracy means nothing: see that each part has its own"
    ]


def _note_on_contradictions(part: str, names: Sequence[str], contents: Contents) -> list[str]:
    """Return a list with one sentence about the files that are listed with more than one label.

    Args:
        part: Name of the part for the sentence, such as "training".
        names: Paths of its files, normalized, so that a file has the same path wherever it is listed.
        contents: The part's files, in the same order, with their labels.

    Returns:
        The sentence alone. An empty list if there is no such file, or the labels are not known.
    """
    if contents.labels is None:
        return []
    first_label_by_name: dict[str, object] = {}
    contradicted: dict[str, None] = {}  # the names that have another label later on, each once, in the list's order
    for name, label in zip(names, contents.labels, strict=True):
        if name not in first_label_by_name:
            first_label_by_name[name] = label
        elif label != first_label_by_name[name]:
            contradicted[name] = None
    if not contradicted:
        return []
    first = next(iter(contradicted))
    return [
        f"the {part} set gives {counted(len(contradicted), 'file')} more than one label, the first is {first}: correct "
        "its list, as only one can be right"
    ]


def _note_on_shared_labels(part: str, names: Sequence[str], contents: Contents) -> list[str]:
    """Return a list with a sentence if images of a part are listed with the label file of an earlier image.

    Args:
        part: Name of the part for the sentence, such as "training".
        names: Paths of its images, normalized, so that an image has the same path wherever it is listed.
        contents: The part's images, in the same order, with their label files.
    """
    if contents.labels is None or isinstance(contents.labels, np.ndarray):  # labels are not known, or are numbers
        return []
    label_files = contents.labels
    owner_of_label_file: dict[object, str] = {}  # the first image that is listed with it
    owner_by_image: dict[str, str] = {}  # only of images that are listed with another image's label file
    for label_file, image in zip(label_files, names, strict=True):
        if label_file not in owner_of_label_file:
            owner_of_label_file[label_file] = image
        elif image != owner_of_label_file[label_file]:
            owner_by_image[image] = owner_of_label_file[label_file]
    if not owner_by_image:
        return []
    images = counted(len(owner_by_image), "image")
    image, earlier_image = next(iter(owner_by_image.items()))
    return [
        f"the {part} set gives {images} the label file of another image, the first is {image}, "
        f"with that of {earlier_image}: see that its list names the right files"
    ]


def _note_on_first_label(train: Contents) -> list[str]:
    """Return a sentence if the training labels are 1 to N without a gap, for example of a list that counts from 1.

    Training works, but with every class one number too high. Pretrained weights and other people's lists of labels
    count from 0, so that the trained network fits none of them.

    Args:
        train: The training files with their labels.

    Returns:
        One sentence in a list. An empty list if there is a 0, a gap or one label alone, or labels are not numbers.
    """
    if not isinstance(train.labels, np.ndarray):
        return []
    labels = np.unique(train.labels)  # sorted, each once
    count = len(labels)
    counts_from_1 = labels[0] == 1 and labels[-1] == count
    if count == 1 or not counts_from_1:
        return []
    return [
        f"the training set has the labels 1 to {count} and no 0: labels count from 0 here: if its list counts from 1, "
        "take 1 from each label of both parts"
    ]


def _note_on_untrained_classes(train: Contents, evaluation: Contents) -> list[str]:
    """Return a sentence on the classes that are evaluated and not trained on.

    Such are found, for example, if labels count from 1 in one part of the data set and from 0 in the other.

    Args:
        train: The training files with their labels.
        evaluation: The evaluation files with their labels.

    Returns:
        One sentence in a list. An empty list if there is no such class, or labels are not numbers.
    """
    if not isinstance(train.labels, np.ndarray) or not isinstance(evaluation.labels, np.ndarray):
        return []
    untrained = np.setdiff1d(evaluation.labels, train.labels)  # sorted, each once
    if not len(untrained):
        return []
    sample = int(np.flatnonzero(evaluation.labels == untrained[0])[0])
    return [
        f"the training set has no image of {len(untrained)} of the evaluated classes, the first is "
        f"{untrained[0]} ({evaluation.names[sample]}): see that the labels of both count from the same number"
    ]


def _note_on_renumbered_folders(train: Contents, evaluation: Contents) -> list[str]:
    """Return a list with a sentence if class folders have another label in evaluation than in training.

    There are such folders if the lists of the two parts number the classes in different ways. Folders are compared by
    their own names, such as "n01440764".

    Args:
        train: The training files with their labels.
        evaluation: The evaluation files with their labels.

    Returns:
        One sentence in a list; an empty list if no folder has two labels or the folders do not stand for classes.
    """
    if not isinstance(train.labels, np.ndarray) or not isinstance(evaluation.labels, np.ndarray):
        return []
    trained = _labels_of_folders(train.names, train.labels)  # as {"n01440764": {0}}: the labels of its files
    evaluated = _labels_of_folders(evaluation.names, evaluation.labels)
    in_both = sorted(trained.keys() & evaluated.keys())
    hold_one_class = all(len(trained[name]) == len(evaluated[name]) == 1 for name in in_both)  # each, in either part
    stand_for_classes = len(in_both) >= 2 and hold_one_class
    if not stand_for_classes:
        return []
    renumbered = [name for name in in_both if trained[name] != evaluated[name]]
    if not renumbered:
        return []
    first = renumbered[0]
    return [
        f"the lists give {len(renumbered)} of {len(in_both)} class folders another label in the evaluation set than in "
        f"the training set, the first is {first}, trained as {min(trained[first])} and evaluated as "
        f"{min(evaluated[first])}: number the classes of both in one way"
    ]


def _labels_of_folders(names: Sequence[str], labels: Array) -> dict[str, set[int]]:
    """Return the labels of the files in each folder, by the folder's own name, such as "n01440764".

    Args:
        names: Paths of the files. Those without a folder are left out.
        labels: Their labels, in the same order.
    """
    labels_of_folders: dict[str, set[int]] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        folder, slash, _ = name.rpartition("/")
        if slash:
            _, _, own_name = folder.rpartition("/")
            labels_of_folders.setdefault(own_name, set()).add(label)
    return labels_of_folders


def _are_record_numbers(names: Sequence[str]) -> bool:
    """Return whether the names of samples are numbers of records, "0" and up, and not names of files.

    Args:
        names: Names of the samples in their order.
    """
    return bool(names) and names[0] == "0"


def _without_detours(names: Sequence[str]) -> list[str]:
    """Return paths without detours such as "./", "a/../" and double slashes, so that all paths of a file are equal.

    Args:
        names: Paths of files.
    """
    plain = []
    for name in names:
        has_detour = "./" in name or "//" in name
        plain.append(os.path.normpath(name) if has_detour else name)
    return plain


def _repeated(names: Sequence[str]) -> list[str]:
    """Return each name that occurs more than once, in the order of the second occurrences.

    Args:
        names: Names in any order.
    """
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for name in names:
        if name in seen:
            repeated[name] = None
        seen.add(name)
    return list(repeated)


def _progress_of(what: str, say: Callable[[str], None]) -> OnProgress:
    """Return a function `on_progress(done, total)` that shows how many of all files were looked at so far.

    Each call also tells the watchdog that the run does not hang.

    Args:
        what: Name of the files, such as "training files".
        say: Called every SHOWN_EVERY_S seconds at most, with a line such as "looked at 4096 of 50000 training files".
    """
    shown_at_s = time.monotonic()

    def on_progress(done: int, total: int) -> None:
        nonlocal shown_at_s
        WATCHDOG.beat(f"looking at the {what}")  # at each call, so that the run does not seem to hang
        if time.monotonic() - shown_at_s > SHOWN_EVERY_S:
            shown_at_s = time.monotonic()
            say(f"looked at {done} of {total} {what}")

    return on_progress


def passport(contents: Contents) -> schema.Passport:
    """Return the passport of a part of a data set, by which the data sets of two runs can be compared.

    It has the number of files, the sum of their sizes and a digest. For the digest each file has a line with its name,
    size and label, and the lines are sorted. So the order of the files does not matter.

    Args:
        contents: Names, sizes and labels of the files. If the labels are not known, each counts as empty.
    """
    labels = contents.labels
    if labels is None:
        labels = [""] * len(contents.names)
    lines = []
    for name, size, label in zip(contents.names, contents.sizes.tolist(), labels, strict=True):
        lines.append(b"%s\0%d\0%s\n" % (os.fsencode(name), size, os.fsencode(str(label))))
    lines.sort()
    return schema.Passport(
        files=len(contents.names),
        bytes=int(contents.sizes.sum()),
        sha256=hashlib.sha256(b"".join(lines)).hexdigest(),
        is_exact=contents.is_exact,
    )


# ---- sizes of files


def file_sizes(root: Path, paths: Sequence[str], store: Path, on_progress: OnProgress) -> Array:
    """Return the sizes in bytes of some files, as an int64 array in their order.

    To ask for the sizes of very many files may take minutes. So those of STORED_FROM files or more are stored, and a
    later run asks only for CHECKED of them, drawn by chance: if these are as stored, all others are taken to be.

    Args:
        root: Folder that the paths are relative to.
        paths: Paths of the files.
        store: File in which the sizes are stored. If it cannot be written, nothing is stored.
        on_progress: Called with (files asked for so far, files to ask for) from time to time.

    Raises:
        ValueError: A file that was asked for is absent, a folder or empty.
    """
    if len(paths) < STORED_FROM:
        return _sizes_on_disk(root, paths, on_progress)

    digest_of_paths = hashlib.sha256("\0".join(paths).encode(errors="surrogateescape")).digest()
    stored_sizes = _load_sizes(store, digest_of_paths, len(paths))
    if stored_sizes is not None:
        chosen = np.random.default_rng().choice(len(paths), CHECKED, replace=False)
        chosen_paths = [paths[number] for number in chosen]
        sizes_now = _sizes_on_disk(root, chosen_paths, on_progress)
        if np.array_equal(sizes_now, stored_sizes[chosen]):
            return stored_sizes

    sizes = _sizes_on_disk(root, paths, on_progress)
    _store_sizes(store, digest_of_paths, sizes)
    return sizes


def _sizes_on_disk(root: Path, paths: Sequence[str], on_progress: OnProgress) -> Array:
    """Ask the file system for the sizes in bytes of some files; return an int64 array in their order.

    READERS threads ask, each for a block of FILES_AT_ONCE files at a time.

    Args:
        root: Folder that the paths are relative to.
        paths: Paths of the files.
        on_progress: Called with (files asked for so far, number of paths) after each block.

    Raises:
        ValueError: A file is absent, a folder or empty.
    """
    top = os.fspath(root)

    def sizes_of_block(start: int) -> list[int]:
        return [_size(os.path.join(top, path)) for path in paths[start : start + FILES_AT_ONCE]]  # noqa: PTH118

    sizes: list[int] = []
    with ThreadPoolExecutor(READERS) as readers:
        for block in readers.map(sizes_of_block, range(0, len(paths), FILES_AT_ONCE)):
            sizes += block
            on_progress(len(sizes), len(paths))
    return np.array(sizes, dtype=np.int64)


def _size(path: str) -> int:
    """Return the size of a file in bytes.

    Args:
        path: Path of the file.

    Raises:
        ValueError: There is no file, it cannot be reached, it is empty, or the path is that of a folder, a pipe, a
            socket or a device.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of a million files costs seconds
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: restore the file or remove it from the list") from error
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path}: is a folder, not a file: remove it from the list")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: is a pipe, a socket or a device, not a file: remove it from the list")
    if status.st_size == 0:
        raise ValueError(f"{path}: is empty: replace the file or remove it from the list")
    return status.st_size


def _load_sizes(file: Path, digest: bytes, count: int) -> Array | None:
    """Return the sizes of files that an earlier run stored; None if they are not there.

    The file begins with a digest of the names of the files that it has the sizes of.

    Args:
        file: The file with the sizes.
        digest: Digest of the names that the sizes are wanted of.
        count: Number of these names.

    Returns:
        Sizes in bytes, in the order of the names. None if the file cannot be read, is of other names, or is cut off.
    """
    try:
        content = file.read_bytes()
    except OSError:
        return None
    is_of_these_names = content.startswith(digest)
    is_whole = len(content) == len(digest) + count * STORED_SIZE.itemsize
    if not (is_of_these_names and is_whole):
        return None
    return np.frombuffer(content, dtype=STORED_SIZE, offset=len(digest))


def _store_sizes(file: Path, digest: bytes, sizes: Array) -> None:
    """Store the sizes of files for later runs; do nothing if the file cannot be written.

    The file appears only when it is complete.

    Args:
        file: The file to write.
        digest: Digest of the files' names, which is written before the sizes.
        sizes: Sizes in bytes, in the order of the names.
    """
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(digest + sizes.astype(STORED_SIZE).tobytes())
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)
