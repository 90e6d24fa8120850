"""Writes the lists of an image folder from its class folders: `tools.pack --lists`."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.lists import Folders
from harness.lists import lines as list_lines
from paddle_rn50 import folder, recordio
from runlog.digits import counted

PARTS = ("train", "val")
NEWLINE = b"\n"
HEADER_OF_KAGGLE = "ImageId,PredictionString"  # the first line of its LOC_val_solution.csv
IMAGENET_END = ".JPEG"  # of ImageNet's images, which that file leaves out
# The name of a class folder behind that of the image, and perhaps a box: "val_0.JPEG n01443537 0 32 44 62"
NAMED_CLASS = re.compile(r"(?P<path>[^\s,]+)[\s,]+(?P<class_name>[^\s,]+)([\s,].*)?")
FOLDER_OF_TINY_IMAGENET = "images"  # in its val/


def write_lists(source: Path, labels: Path | None) -> list[str]:
    """Write train_list.txt and val_list.txt of an image folder, and return a line of text about each list.

    The images lie in class folders, as train/n01440764/x.JPEG.

    Args:
        source: The image folder.
        labels: File with a line `name label` for each image of val/. It is given if val/ has no class folders; None
            otherwise.

    Raises:
        ValueError: One of the lists exists already or cannot be made. Nothing has been written then.
    """
    text_by_file: dict[Path, bytes] = {}
    for part in PARTS:
        list_file = source / folder.LIST.format(part)
        if list_file.exists():
            raise ValueError(f"{list_file}: is there: remove it to write it anew from the class folders")
        text_by_file[list_file] = _list_of_part(source, part, labels)

    written = []
    for list_file, text in text_by_file.items():
        list_file.write_bytes(text)
        written.append(f"{list_file}: {counted(text.count(NEWLINE), 'image')}")
    return written


def _list_of_part(source: Path, part: str, labels: Path | None) -> bytes:
    """Return the content of the list file of one part of a data set: a line with path and label for each image.

    For val with a file `labels`, this file says the labels. Otherwise the label of an image is the number of its class
    folder, from 0 in the order of names as text: of train/cat/ and train/dog/, all images in train/dog/ have the label
    1. Warnings are printed on stderr. With `labels`, one for train is on a class folder whose name is another number
    than its label, because `labels` may mean this folder by that number.

    Args:
        source: The image folder, which holds train/ and val/.
        part: "train" or "val".
        labels: File with a line `name label` for each image of val/; None if val/ has class folders.

    Returns:
        The lines as bytes, such as `train/n01440764/x.JPEG 0`, each ended by a line feed.

    Raises:
        ValueError: The list cannot be made, for example because the folder of the part is missing.
    """
    if not (source / part).is_dir():
        raise ValueError(f"{source / part}: no such folder: SOURCE must hold the class folders {part}/<class>/")
    if part == "val" and labels is not None:
        # The lines of the file with "val/" before each name. A warning is printed if images of val/ have no line.
        return _flat_list(source, labels)
    # From here on, `part` has class folders. `by_class_folders` gives the path and the label of each image in them.
    classes_in_train = folder.folder_names(source / "train")
    may_lack = classes_in_train if part == "val" else []
    images = folder.by_class_folders(source, part, recordio.MAX_CLASSES, may_lack=may_lack)
    print_warning(images.passed_over)  # on files that are not images of a class; an empty text is not printed
    print_warning(_note_on_absent_classes(images, classes_in_train))
    if labels is not None:  # `part` is "train" here, and its labels must mean the same classes as those in `labels`
        # Of folders "0", "1", "10" and "2" the folder "10" has the label 2, but in `labels` 2 may mean the folder "2".
        # A warning on the first folder whose name is another number than its label, such as "10". Empty if there is
        # none, if the name of any folder is not a number, or if the file `labels` is missing.
        note = folder.note_on_numbered_folders(source / part, classes_in_train, labels)
        print_warning(note)
    return folder.list_text(images)


def _note_on_absent_classes(images: folder.ImageList, classes: Sequence[str]) -> str:
    """Return a note on the classes of which a part has no image; an empty text if it has one of each.

    Args:
        images: The images of the part, whose labels are the numbers of the classes.
        classes: The names of all classes, in the order of their numbers from 0.
    """
    labels = set(images.labels.tolist())
    absent = [name for label, name in enumerate(classes) if label not in labels]
    if not absent:
        return ""
    return (
        f"{images.root / images.part}: has no image of {len(absent)} of the {len(classes)} classes in "
        f"{images.root / 'train'}, the first is {absent[0]}: none of them is evaluated"
    )


class _LabelledImage(NamedTuple):
    """The file name of an image, without folders, and the label that a line of the file of labels gives it."""

    file_name: str
    label: str  # digits, which may begin with zeros


def _flat_list(source: Path, labels: Path) -> bytes:
    """Turn a file of labels into the list of the images that lie directly in the folder val/, or in val/images/.

        x.JPEG 7                   ->  val/x.JPEG 7
        x,n01443537 85 1 499 272   ->  val/x.JPEG 1    where train/n01443537/ is the second class folder

    The second form is that of Kaggle's LOC_val_solution.csv. A warning is printed if images have no line.

    Args:
        source: The image folder, with val/ and the class folders of train/.
        labels: File with a line `name label` for each image, or with the name of a class folder in place of the label.
            The result has its order.

    Raises:
        ValueError: The file is missing, or a line has no label, a label that no class folder of train/ has, an image
            that val/ does not have, or one that an earlier line names.
    """
    image_folder = _flat_folder(source / "val")
    if not labels.is_file():
        raise ValueError(f"{labels}: no such file: give lines 'name label' of the images in {image_folder}")
    label_by_class = {name: label for label, name in enumerate(folder.folder_names(source / "train"))}
    existing_files = Folders(image_folder)
    images_without_line = {
        name for name in folder.file_names(image_folder) if name.lower().endswith(folder.IMAGE_ENDS)
    }  # all images at first; each line takes its image out
    lines = []
    places: dict[str, str] = {}  # by file name: the line that names it
    for where, text in list_lines(labels):  # `where` is the line's place, "labels.txt:7", for messages
        if text == HEADER_OF_KAGGLE:
            continue
        image = _labelled_image(where, text, label_by_class, existing_files)
        fault = existing_files.fault(image.file_name)  # why the file cannot be used, or ""
        if fault:
            raise ValueError(f"{where}: {image_folder / image.file_name} {fault}: restore it or remove the line")
        if int(image.label) >= len(label_by_class):
            raise ValueError(
                f"{where}: label {int(image.label)} is out of range: {source / 'train'} has {len(label_by_class)} "
                "class folders, which are numbered from 0"
            )
        place = places.setdefault(image.file_name, where)  # the earlier line's place, if one has named this image
        if place != where:
            raise ValueError(f"{where}: names {image.file_name} again, after {place}: remove the line that is wrong")
        images_without_line.discard(image.file_name)
        lines.append(f"{image_folder.relative_to(source)}/{image.file_name} {int(image.label)}\n")
    if images_without_line:
        print_warning(
            f"{labels}: does not name {counted(len(images_without_line), 'image')} of {image_folder}: left out of the "
            f"list, the first is {min(images_without_line)}"
        )
    return os.fsencode("".join(lines))


def _flat_folder(val: Path) -> Path:
    """Return the folder in which the evaluation images lie together: val/, or val/images/ as of tiny-imagenet-200.

    Args:
        val: The folder val/ of the data set.
    """
    has_images = any(name.lower().endswith(folder.IMAGE_ENDS) for name in folder.file_names(val))
    if not has_images and folder.folder_names(val) == [FOLDER_OF_TINY_IMAGENET]:
        return val / FOLDER_OF_TINY_IMAGENET
    return val


def _labelled_image(where: str, line: str, label_by_class: dict[str, int], existing_files: Folders) -> _LabelledImage:
    """Return the file name and the label that a line states: "anything/x.JPEG 7" gives "x.JPEG" and "7".

    Args:
        where: The line's place in the file of labels, "labels.txt:7", for the message.
        line: The line. It may have the name of a class folder in place of the label.
        label_by_class: Number of each class folder.
        existing_files: Tells which images there are.

    Raises:
        ValueError: The line has no label.
    """
    parts = folder.LINE.fullmatch(line)
    numbered = None
    if parts is not None:
        _, _, file_name = parts["path"].rpartition("/")
        numbered = _LabelledImage(file_name, parts["label"])
        if existing_files.has(file_name):
            return numbered
    # A number at the line's end may also be that of a box.
    named = NAMED_CLASS.fullmatch(line)
    if named is not None and named["class_name"] in label_by_class:
        label = str(label_by_class[named["class_name"]])
        _, _, file_name = named["path"].rpartition("/")
        for name in (file_name, file_name + IMAGENET_END):
            if existing_files.has(name):
                return _LabelledImage(name, label)
    if numbered is None:
        raise ValueError(folder.without_label(where, line, "name label"))
    return numbered


def print_warning(note: str) -> None:
    """Print a warning about the data set on stderr; nothing if the note is empty.

    Args:
        note: What to warn of, without "warning: " before it.
    """
    if note:
        print(f"warning: {note}", file=sys.stderr, flush=True)
