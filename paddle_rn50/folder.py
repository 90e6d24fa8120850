"""ImageNet as files: by `train_list.txt` and `val_list.txt`, or by class folders `train/<class>/` and `val/<class>/`.

A line of a list is `path label`, the path absolute or relative to the data set, the label from 0. Of class folders the
sorted names are the classes, as torchvision's ImageFolder and PaddleClas' lists have them.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.lists import Folders, lines, require_no_table, unquoted
from harness.passport import Contents, OnProgress, digest_in_order, file_sizes
from paddle_rn50 import tfrecord
from program.arrays import Array
from runlog import named_files
from runlog.digits import counted

LIST = "{}_list.txt"
KEPT_SIZES = "{}.filesizes"  # of very many files, so that they are asked for once
# The label is what stands behind the last blank, or behind the comma or semicolon of a spreadsheet.
LINE = re.compile(r'(?P<path>.*[^\s,;])[\s,;]+"?(?P<label>[0-9]{1,18})"?')
MORE_LABELS = re.compile(r'(?P<path>.*?[^\s,;])([\s,;]+"?[0-9]{1,18}"?)+')  # before the last one of a line
IMAGE_ENDS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
CLASS_ARCHIVE = re.compile(r"(?P<name>n[0-9]{8})\.tar")  # of a class, within ImageNet's archive of the training images
NAMES_OF_VAL = ("validation", "valid")  # that other tools give the folder of the evaluation images
KAGGLES_FOLDERS = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # of ImageNet's images in Kaggle's archive
THUMBNAILS = "@eaDir"  # the folder that Synology's servers add to each folder of images
Size = tuple[int, int]  # width and height in pixels


@dataclass(frozen=True, kw_only=True)
class ImageList:
    """Image files with their labels, numbered from 0."""

    root: Path
    part: str  # train | val
    paths: tuple[str, ...]  # relative to root, or absolute where they lie elsewhere
    labels: Array  # [samples] int64
    largest: Size | None = None  # of the largest image, where known
    source: None = None  # image files were not packed from others
    form: str = "files"
    notes: tuple[str, ...] = ()  # what a user is to know of the set before it is trained on
    passed_over: str = ""  # of class folders: a note on the files that are not images of a class; empty: there are none

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, ids: Array) -> tuple[list[bytes], Array]:
        """Read the encoded images and the labels of some samples.

        Args:
            ids: Numbers of the samples, from 0, [N].

        Returns:
            The files' contents, and labels [N] int64, both in the order of `ids`.
        """
        root = os.fspath(self.root)
        images = []
        for i in ids:
            with open(os.path.join(root, self.paths[i]), "rb", buffering=0) as file:  # noqa: PTH118, PTH123
                images.append(file.read())
        return images, self.labels[ids]

    def numbering(self) -> str:
        """Return a digest of the paths and labels in the order of their numbers."""
        return digest_in_order(self.paths, self.labels)

    def name(self, number: int) -> str:
        """Name a sample's file, for a message."""
        return os.fspath(self.root / self.paths[number])

    def encoded(self, number: int) -> list[tuple[str, bytes]]:
        """Read the encoded image of a sample.

        Args:
            number: Which sample; counts from 0.

        Returns:
            A list of one pair: the file's path and its content.
        """
        return [(self.name(number), (self.root / self.paths[number]).read_bytes())]

    def contents(self, on_progress: OnProgress) -> Contents:
        """Return the names, sizes in bytes and labels of all files; the sizes are exact, as each file is one image.

        The sizes of very many files are stored in a file. A later call takes them from there, after it has looked at a
        sample of the files. If the size of one of the sample has changed, it looks at all files again.

        Args:
            on_progress: Called with the number of files looked at so far and the number of all.

        Raises:
            ValueError: A file that is looked at is absent, a folder or empty.
        """
        sizes = file_sizes(self.root, self.paths, self.root / KEPT_SIZES.format(self.part), on_progress)
        return Contents(names=self.paths, sizes=sizes, labels=self.labels, is_exact=True)


class ClassFolders(NamedTuple):
    """The image files below the class folders of a part, sorted by class and path."""

    names: list[str]  # of the classes
    paths: list[str]  # relative to the data set
    labels: list[int]
    others: list[str]  # files that are not images of a class, relative to the data set


def find(root: Path, part: str, classes: int) -> ImageList:
    """Return the images and labels of a part of a data set: those of its list, or else of its class folders.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        classes: Number of classes that the labels may have, such as 1000.

    Raises:
        ValueError: There is neither a list nor class folders, or the list or the class folders have a fault.
        OSError: A folder or the list cannot be read.
    """
    list_file = root / LIST.format(part)
    if named_files.is_file(list_file):
        return read_list(root, part, classes)
    is_folder = (root / part).is_dir()
    has_class_folders = is_folder and bool(folder_names(root / part))
    if has_class_folders:
        return by_class_folders(root, part, classes)
    # Tables, files of Parquet or Arrow, are not read.
    require_no_table(root, part, instead=f"save its images into class folders {part}/<class>/")
    if is_folder:
        return by_class_folders(root, part, classes)  # raises ValueError, as there are no class folders
    raise ValueError(
        f"{list_file}: no such file: DATADIR must hold {list_file.name}, lines 'path label', "
        f"or class folders {part}/<class>/, or packed images under a name of docs/data.md{_hint_at_near(root, part)}"
    )


def _hint_at_near(root: Path, part: str) -> str:
    """Return words for a message on what may be meant where a part is absent from a data set's folder.

    Args:
        root: The folder that DATADIR names.
        part: "train" or "val".

    Returns:
        The words, such as "; is /data/CLS-LOC meant, which has train/?"; empty if nothing is found.
    """
    # RecordIO files under another name, as im2rec names them.
    records = sorted(root.glob(f"*{part}*.rec"))
    if len(records) == 1:
        return f"; is {records[0]} meant? rename it {part}.rec, and its index {part}.idx"
    if records:
        return (
            f"; are {records[0]} and {len(records) - 1} more meant? make one {part}.rec of them, with its index "
            f"{part}.idx: im2rec without --chunks does"
        )
    hint_at_tfrecord = _hint_at_tfrecord(root, part)
    if hint_at_tfrecord:
        return hint_at_tfrecord
    # A folder of the evaluation images under another name, such as "validation".
    if part == "val":
        for name in NAMES_OF_VAL:
            if (root / name).is_dir():
                return f"; is {root / name}/ meant? rename it {part}/"
    # Another folder that has the part: the one above, if DATADIR names train/ or val/ itself, or one below.
    have_part = []
    if root.name in ("train", "val") and (root.parent / part).is_dir():
        have_part.append(root.parent)
    have_part += sorted(path.parent for path in root.glob(f"*/{part}") if path.is_dir())
    have_part += [root / below for below in KAGGLES_FOLDERS if (root / below / part).is_dir()]
    return f"; is {have_part[0]} meant, which has {part}/?" if have_part else ""


def _hint_at_tfrecord(root: Path, part: str) -> str:
    """Return the end of an error message that names a TFRecord file of another name; empty if there is no such file.

    The message is to rename it or, if its first record holds no image with a label, what the record holds.

    Callers have found no images of a part. TFRecord files may be there under a name that `tfrecord.files_of` does not
    look for. These patterns are looked for here, in this order, each with an example for the part "train":

        *train*.tfrecord*     imagenet2012-train.tfrecord-00000-of-01024
        *train*-[0-9]*-of-*   imagenet-train-00000-of-01024; of val also val-00000-of-00128
        train*/*.tfrecord*    train/0.tfrecord
        train*/*-of-*         train/part-00000-of-00128

    Args:
        root: The folder that DATADIR names.
        part: "train" or "val".

    Returns:
        Words, such as "; is /data/train/0.tfrecord meant? TFRecord files are read as /data/train*.tfrecord: rename
        them".
    """
    well_named = set(root.glob(f"{part}*.tfrecord"))
    for pattern in (f"*{part}*.tfrecord*", f"*{part}*-[0-9]*-of-*", f"{part}*/*.tfrecord*", f"{part}*/*-of-*"):
        files = [file for file in sorted(root.glob(pattern)) if file.suffix != ".idx" and file not in well_named]
        if files:  # the first file is named
            fault = tfrecord.first_record_fault(files[0]) if files[0].is_file() else ""
            if fault:  # to rename it would be of no help
                return f"; {files[0]} is there, but {fault}: {tfrecord.INSTEAD}"
            return f"; is {files[0]} meant? TFRecord files are read as {root}/{part}*.tfrecord: rename them"
    return ""


def read_list(root: Path, part: str, classes: int) -> ImageList:
    """Return the images and labels that the list file of a part of a data set names.

    A line is `path label`, such as "val/1.jpeg 7", the path absolute or relative to `root`.

    Args:
        root: Folder of the data set, which holds the list PART_list.txt.
        part: "train" or "val".
        classes: Number of classes; a label must be below it.

    Raises:
        ValueError: The list is absent, empty or no text, a line has no label or one out of range, or a listed file is
            absent or a folder.
    """
    list_file = root / LIST.format(part)
    if not named_files.is_file(list_file):
        raise ValueError(f"{list_file}: no such file: DATADIR must hold {list_file.name}, lines 'path label'")
    paths = []
    labels = []
    folders = Folders(root)
    for where, text in lines(list_file):
        line = LINE.fullmatch(text)  # blanks, a comma or a semicolon stand between path and label
        if line is None:
            raise ValueError(without_label(where, text, "path label"))
        label = int(line["label"])
        if label >= classes:
            raise ValueError(
                f"{where}: label {label} is out of range: the recipe has {classes} classes, numbered from 0"
            )
        path = folders.relative(unquoted(line["path"]))
        _require_file(where, root, part, path, folders)
        paths.append(path)
        labels.append(label)
    return ImageList(root=root, part=part, paths=tuple(paths), labels=np.array(labels, dtype=np.int64))


def _require_file(where: str, root: Path, part: str, path: str, folders: Folders) -> None:
    """Raise ValueError if there is no file at the path of a list's line.

    Args:
        where: The line's place, such as "val_list.txt:7".
        root: Folder of the data set.
        part: "train" or "val".
        path: The path, relative to `root` or absolute.
        folders: Tells which files are there.

    Raises:
        ValueError: There is none. The message says what may be meant.
    """
    fault = folders.fault(path)  # as "is absent"; empty if there is a file
    if not fault:
        return
    fix = "restore it or remove the line"
    end = folders.end_that_is_there(path)
    if end:
        fault += f", {end} is there"
        fix = f"write the paths as they count from {root}"
    if folders.has(f"{part}/{path}"):  # as the paths in the lists of Caffe
        fault += f", {part}/{path} is there"
        fix = f"write {part}/ before the paths, which count from {root}"
    with_labels = MORE_LABELS.fullmatch(path)  # a line of several labels, all but the last taken for the path's end
    if with_labels is not None and folders.has(with_labels["path"]):
        fault += f", {with_labels['path']} is there"
        fix = "write one label behind each path"
    raise ValueError(f"{where}: {root / path} {fault}: {fix}")


def without_label(where: str, text: str, expected: str) -> str:
    """Return the message that a line of a list states no label.

    Args:
        where: The line's place, such as "val_list.txt:7".
        text: The line.
        expected: What a line has, such as "path label".
    """
    if text.isdecimal():  # as the lines of ILSVRC2012_validation_ground_truth.txt, by the order of the images
        return (
            f"{where}: {text!r} is only a number: write '{expected}'; ImageNet's devkit numbers the classes in another "
            "order than class folders are: take val.txt of Caffe's caffe_ilsvrc12.tar.gz"
        )
    return f"{where}: {text!r} has no label, a whole number from 0, at its end: write '{expected}'"


# ---- class folders


def by_class_folders(root: Path, part: str, classes: int, *, may_lack: Sequence[str] = ()) -> ImageList:
    """Return the images of a part of a data set in its class folders, labelled by the number of their folder.

    Folders PART/<class>/ are numbered from 0 in the order of their names. Labels of both parts must mean the same
    classes, so this part is compared with the other.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        classes: Most class folders that there may be.
        may_lack: Names of classes of which the part may have no image.

    Raises:
        ValueError: The class folders have a fault, as `class_folders` says, or are more than `classes`; val has other
            folders than train; or the other part's list gives a class another number, is empty or is not text.
        OSError: A folder or the list cannot be read.
    """
    listed = class_folders(root, part, may_lack=may_lack)
    count = len(listed.names)
    if count > classes:
        raise ValueError(
            f"{root / part}: has {count} class folders, the recipe {classes} classes: choose another RECIPE or write "
            f"{LIST.format(part)}"
        )
    if part != "train":
        _require_same_classes(root, part, listed.names)  # as the class folders of train, if there are such
    _require_same_numbers(root, part, listed.names)  # as the labels in the other part's list, if there is one
    on_fewer_folders = _note_on_fewer_folders(root / part, count, classes)
    on_nested = _note_on_nested_folders(root / part, listed)
    other_list = root / LIST.format("val" if part == "train" else "train")
    on_numbers = note_on_numbered_folders(root / part, listed.names, other_list)
    passed_over = _note_on_other_files(root, part, listed.others)
    return ImageList(
        root=root,
        part=part,
        paths=tuple(listed.paths),
        labels=np.array(listed.labels, dtype=np.int64),
        notes=tuple(note for note in (on_fewer_folders, on_nested, on_numbers, passed_over) if note),
        passed_over=passed_over,  # also a field of its own, because packing shows this one of the notes alone
    )


def _note_on_fewer_folders(folder: Path, count: int, classes: int) -> str:
    """Return a note for the user if a part has fewer class folders than the recipe has classes.

    Args:
        folder: Folder of the part.
        count: Number of its class folders.
        classes: Number of the recipe's classes.

    Returns:
        The note; an empty text if there are enough folders.
    """
    if count >= classes:
        return ""
    return (
        f"{folder} has {counted(count, 'class folder')}, the recipe {classes} classes: they are numbered from 0 to "
        f"{count - 1} by name"
    )


def _note_on_nested_folders(folder: Path, listed: ClassFolders) -> str:
    """Return a note for the user if a part has one class folder alone, and only the folders in that have images.

    They may be the classes, as in train/images/cat/ and train/images/dog/.

    Args:
        folder: Folder of the part.
        listed: Its class folders and images.

    Returns:
        The note; an empty text if there are more class folders, or images directly in the one.
    """
    if len(listed.names) > 1:
        return ""
    folders_within: set[str] = set()
    for path in listed.paths:
        _, _, *below = path.split("/")  # without the part and the class: ["cat", "1.jpg"]
        if len(below) < 2:
            return ""
        folders_within.add(below[0])
    if len(folders_within) < 2:
        return ""
    return (
        f"{folder / listed.names[0]} is the only class folder, and has {len(folders_within)} folders with images: if "
        f"these are the classes, move them into {folder}"
    )


def note_on_numbered_folders(folder: Path, names: Sequence[str], list_of_other_part: Path) -> str:
    """Return a note on the first class folder that is named by a number and has another label.

    Class folders are labelled from 0 in the order of their names as text: "1", "10", "2". The list of the other part
    (val for train, train for val) most likely has the number itself as the label, so that training and evaluation would
    have different labels for the class.

    Args:
        folder: Folder of the part that is read by class folders.
        names: Names of the class folders, in the order of their labels from 0.
        list_of_other_part: The list that has the other part's labels; it need not exist.

    Returns:
        The note; empty if there is no such folder, the name of a folder is not a number, or there is no such list.
    """
    are_numbers = all(name.removeprefix("-").isdecimal() for name in names)  # "-1" may be the class of all else
    if not are_numbers or not named_files.is_file(list_of_other_part):
        return ""
    for label, name in enumerate(names):
        if int(name) != label:
            return (
                f"{folder / name} has the label {label}, as class folders are numbered by name: see that "
                f"{list_of_other_part.name} gives that class {label}, too, or write {LIST.format(folder.name)}"
            )
    return ""


def _note_on_other_files(root: Path, part: str, others: Sequence[str]) -> str:
    """Return a note for the user on the files of a part that are not images of a class folder.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        others: Paths of these files, relative to `root`.

    Returns:
        The note; an empty text if there are no such files.
    """
    if not others:
        return ""
    return (
        f"{root / part}: passed over {counted(len(others), 'file')} other than images of a class folder, the first is "
        f"{root / others[0]}"
    )


def class_folders(root: Path, part: str, *, may_lack: Sequence[str] = ()) -> ClassFolders:
    """Return the images below each class folder of a part with their labels, and a list of other files.

    An image's label is the number of its folder, from 0 in the order of names.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        may_lack: Names of classes whose folder may be absent or empty; it has a number nevertheless.

    Raises:
        ValueError: There is no class folder, one has no image that must have one, none has an image, one is a link that
            leads nowhere, a class of ImageNet is not unpacked, or a folder cannot be read.
    """
    names_of_part = folder_names(root / part)  # raises for a link that leads nowhere
    _require_unpacked(root / part, names_of_part)
    if not names_of_part:
        raise ValueError(_without_class_folders(root, part))
    names = sorted({*names_of_part, *may_lack})
    paths: list[str] = []
    labels: list[int] = []
    others = [f"{part}/{name}" for name in file_names(root / part)]
    for label, name in enumerate(names):
        if name not in names_of_part:
            continue
        images, other_files = _files_below(root, f"{part}/{name}")
        others += other_files
        if not images and name not in may_lack:
            held = f" but {counted(len(other_files), 'other file')}, as {root / other_files[0]}" if other_files else ""
            raise ValueError(f"{root / part / name}: this class folder has no image{held}: fill it or remove it")
        paths += images
        labels += [label] * len(images)
    if not paths:
        raise ValueError(f"{root / part}: none of its class folders has an image: fill them")
    return ClassFolders(names, paths, labels, others)


def _without_class_folders(root: Path, part: str) -> str:
    """Return the message that the folder of a part has no class folders.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
    """
    return (
        f"{root / part}: has no class folders and no {LIST.format(part)} tells its labels: put the images into a "
        "folder for each class, or write the list: tools.pack --lists writes it, with --labels FILE for "
        "ImageNet's flat val/, where FILE is Kaggle's LOC_val_solution.csv, val.txt of Caffe's caffe_ilsvrc12.tar.gz "
        "or PaddleClas' val_list.txt"
        f"{_hint_at_tfrecord(root, part)}"
    )


def _require_unpacked(folder: Path, names: Sequence[str]) -> None:
    """Raise ValueError if a part has an archive of a class of ImageNet, as n01440764.tar, that was not unpacked.

    Labels are the numbers of the class folders, sorted by name. Without the folder n01440764 all classes that are
    sorted after it would have a number 1 too low.

    Args:
        folder: Folder of the part.
        names: Names of its class folders.

    Raises:
        ValueError: There is such an archive.
    """
    archives = [CLASS_ARCHIVE.fullmatch(name) for name in file_names(folder)]
    packed = [archive["name"] for archive in archives if archive and archive["name"] not in names]
    if packed:
        raise ValueError(
            f"{folder}: has {counted(len(packed), 'archive')} of classes without their folder, the first is "
            f"{packed[0]}.tar: unpack each into a folder of its name, as {packed[0]}/, or move it elsewhere"
        )


def folder_names(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted as Python sorts text, but for hidden ones and thumbnails.

    Args:
        folder: Folder of a part, whose folders are the classes.

    Raises:
        ValueError: A link leads nowhere. Without the class that it stands for, later ones would have other numbers.
    """
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir():
                names.append(entry.name)
            elif entry.is_symlink() and not Path(entry.path).exists():
                raise ValueError(f"{entry.path}: is a link to a class folder that is absent: restore it or remove it")
    return sorted(names)


def _is_hidden(name: str) -> bool:
    """Tell by its name whether a file or folder is not part of a data set: it is hidden, or a folder of thumbnails."""
    return name.startswith(".") or name == THUMBNAILS


def file_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, sorted; hidden ones are left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.is_dir() and not entry.name.startswith("."))


def _files_below(root: Path, folder: str) -> tuple[list[str], list[str]]:
    """Return the images and the other files below a folder and its subfolders.

    Hidden files and folders, such as a notebook's `.ipynb_checkpoints` with its copies, are left out, and so are
    folders of thumbnails. Images are told by the endings of their names.

    Args:
        root: Folder of the data set.
        folder: Path of the folder to search, relative to `root`.

    Returns:
        Images and other files, each as sorted paths relative to `root`.

    Raises:
        ValueError: A folder cannot be read, or a link leads back to a folder that contains it.
    """
    images: list[str] = []
    others: list[str] = []
    folders_to_read = [folder]
    while folders_to_read:
        current = folders_to_read.pop()
        try:
            with os.scandir(root / current) as entries:
                for entry in entries:
                    path = f"{current}/{entry.name}"
                    if _is_hidden(entry.name):
                        continue
                    if entry.is_dir():  # or a link to one
                        _require_no_circle(root, current, entry)
                        folders_to_read.append(path)
                    elif entry.name.lower().endswith(IMAGE_ENDS) and not _is_pipe_or_device(entry):
                        images.append(path)
                    else:
                        others.append(path)
        except OSError as error:
            raise ValueError(named_files.explain(error)) from error
    return sorted(images), sorted(others)


def _require_no_circle(root: Path, current: str, entry: os.DirEntry[str]) -> None:
    """Raise ValueError if a link leads back to a folder that was passed on the way to it: it would be read for ever.

    Args:
        root: Folder of the data set.
        current: Path of the folder with the entry, relative to `root`.
        entry: Entry of that folder that is a folder or a link to one.

    Raises:
        ValueError: The entry is such a link. The message names it and where it leads.
    """
    if not entry.is_symlink():
        return
    target = Path(entry.path).resolve()
    folder = root / current
    passed = {path.resolve() for path in (folder, *folder.parents)}  # each, as a link may have been passed, too
    if target in passed:
        raise ValueError(f"{entry.path}: is a link back to {target}, in which it lies: remove the link")


def _is_pipe_or_device(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a folder is a pipe, a socket or a device, on which a reader may wait for ever.

    A link to what is absent is taken for a file, so that the message about it is that of an absent image.

    Args:
        entry: Entry that is not a folder.
    """
    if entry.is_file():
        return False
    return not entry.is_symlink() or Path(entry.path).exists()


def _require_same_classes(root: Path, part: str, names: list[str]) -> None:
    """Raise ValueError if the training part has other class folders, because labels would mean other classes.

    Nothing is checked if there are no class folders for training.

    Args:
        root: Folder of the data set.
        part: The part in question, "val".
        names: Its class folders, sorted.

    Raises:
        ValueError: Training has other class folders.
    """
    if not (root / "train").is_dir():
        return
    names_in_train = folder_names(root / "train")
    if names_in_train and names != names_in_train:
        in_one_only = sorted(set(names) ^ set(names_in_train))
        fix = f"complete them, or write {LIST.format(part)}"
        if len(names) == 1:
            fix += ": tools.pack --lists --labels FILE writes it by a file as tiny-imagenet's val_annotations.txt"
        elif set(names) < set(names_in_train):
            fix += ": tools.pack --lists writes it, and none of these classes is evaluated"
        raise ValueError(
            f"{root / part}: has other class folders than {root / 'train'} ({in_one_only[0]} is in one of them only): "
            f"{fix}"
        )


def _require_same_numbers(root: Path, part: str, names: list[str]) -> None:
    """Raise ValueError if the other part's list gives a class another number than the class folders of `part` give it.

    For example, with `part` "train" this raises an error:

        train/          has the class folders n01440764 (number 0) and n01443537 (number 1)
        val_list.txt    has the line "val/n01443537/7.jpeg 5", but n01443537 is number 1

    The label 5 would mean one class in training and another in evaluation. If the other part has no list, nothing is
    checked.

    Args:
        root: Folder of the data set.
        part: "train" or "val", the part that is read by class folders.
        names: Class folders of this part, in the order of their numbers from 0.

    Raises:
        ValueError: A line of the list has another number, and the message names the first such line; or the list is
            empty or no text; or a folder or a pipe has the name of the list.
        OSError: The list cannot be read.
    """
    other_part = "val" if part == "train" else "train"
    list_file = root / LIST.format(other_part)
    if not named_files.is_file(list_file):
        return
    number_of_class = {name: number for number, name in enumerate(names)}
    folders = Folders(root)
    for where, text in lines(list_file):
        line = LINE.fullmatch(text)
        if line is None:  # no label, which `read_list` refuses when the other part is read
            continue
        path = folders.relative(unquoted(line["path"])).removeprefix("./")
        path_parts = path.split("/", maxsplit=2)  # as ["val", "n01440764", "1.jpeg"]
        is_in_class_folder = len(path_parts) == 3 and path_parts[0] == other_part
        if not is_in_class_folder:  # as "val/7.jpeg"
            continue
        name = path_parts[1]
        label = int(line["label"])
        if name in number_of_class and number_of_class[name] != label:
            raise ValueError(
                f"{where}: gives {name} the label {label}, but {root / part / name} is number {number_of_class[name]} "
                f"of the class folders by name: write {LIST.format(part)}, too, or remove {list_file.name}"
            )


def list_text(images: ImageList) -> bytes:
    """Return the text of a list file of these images, with a line `path label` for each.

    Args:
        images: Image files and their labels.

    Raises:
        ValueError: The name of a file has a line break, so it would be two lines of the list.
    """
    for path in images.paths:
        if "\n" in path or "\r" in path:
            raise ValueError(f"{os.fspath(images.root / path)!r}: its name has a line break: rename the file")
    lines = [f"{path} {label}\n" for path, label in zip(images.paths, images.labels.tolist(), strict=True)]
    return os.fsencode("".join(lines))
