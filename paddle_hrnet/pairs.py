"""A segmentation set as files: images with their labels, by a list or in Cityscapes' folders."""

import itertools
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness import encoded, lists
from harness.passport import READERS, Contents, OnProgress, digest_in_order, file_sizes
from paddle_hrnet import pictures
from paddle_hrnet.pictures import Size
from program.arrays import Array
from runlog import named_files, schema
from runlog.digits import counted

IMAGE_END, LABEL_END, LABEL_IDS_END = "_leftImg8bit.png", "_gtFine_labelTrainIds.png", "_gtFine_labelIds.png"
ENDS_OF_LABEL_IDS = (LABEL_IDS_END, "_gtCoarse_labelIds.png")  # as Cityscapes names its files of label ids
LISTS = ("{}.txt", "{}.list", "{}_list.txt")  # names that PaddleSeg's tools and tutorials give them
SEPARATOR = re.compile(r"[,;\t]")  # of a spreadsheet's columns
KEPT_SIZES = "{}.filesizes"
PAIRS_AT_ONCE = 256
WHOLE_FILE = -1  # a count of bytes, as `read` takes it


class Listed(NamedTuple):
    """The paths of an image and its label, as a list or the folders name them."""

    where: str  # the list's line or the image's path, for a message
    image: str
    label: str


@dataclass(frozen=True, kw_only=True)
class PairList:
    """Images with their labels, numbered from 0."""

    root: Path
    part: str  # train | val
    pairs: tuple[tuple[str, str], ...]  # image and label, relative to root
    classes: int
    source: schema.Passport | None = None
    form: str = "files"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)

    def numbering(self) -> str:
        """Return a digest of the paths of images and labels in the order of the pairs' numbers."""
        paths = list(itertools.chain.from_iterable(self.pairs))
        return digest_in_order(paths, np.empty(0))

    def paths(self, number: int) -> tuple[Path, Path]:
        """Return the paths of an image and its label.

        Args:
            number: Which pair; counts from 0.
        """
        image, label = self.pairs[number]
        return self.root / image, self.root / label

    def has_label_ids(self, number: int) -> bool:
        """Tell by its name whether a label holds Cityscapes' label ids (0 to 33); if not, it holds classes.

        Args:
            number: Which pair; counts from 0.
        """
        _, label = self.pairs[number]
        return label.endswith(ENDS_OF_LABEL_IDS)

    def encoded(self, number: int) -> list[tuple[str, bytes]]:
        """Read the encoded image and label of a pair.

        Args:
            number: Which pair; counts from 0.

        Returns:
            The path and the content of the image, then those of the label.
        """
        return [(os.fspath(path), path.read_bytes()) for path in self.paths(number)]

    def contents(self, on_progress: OnProgress) -> Contents:
        """Return what identifies the data set in a log: the path and the size in bytes of each image and each label.

        The sizes in pixels are checked on the way.

        Args:
            on_progress: Called with the number of files looked at so far and of all; then, for the sizes in pixels,
                with numbers of pairs.

        Returns:
            Paths and bytes of the images, and for each label a text `PATH BYTES`.

        Raises:
            ValueError: A run would fail at a file; the first one is named.
        """
        images = [image for image, _ in self.pairs]
        labels = [label for _, label in self.pairs]
        # Sizes of very many files are kept in this file, so that they are asked for once.
        kept_sizes = self.root / KEPT_SIZES.format(self.part)
        bytes_of_all = file_sizes(self.root, images + labels, kept_sizes, on_progress)
        image_bytes = bytes_of_all[: len(images)]
        label_bytes = bytes_of_all[len(images) :]
        self._check_pixel_sizes(on_progress)
        label_texts = [f"{label} {size}" for label, size in zip(labels, label_bytes.tolist(), strict=True)]
        return Contents(names=images, sizes=image_bytes, labels=label_texts, is_exact=True)

    def _check_pixel_sizes(self, on_progress: OnProgress) -> None:
        """Check the sizes in pixels of all images and labels, which the first bytes of the files state.

        Args:
            on_progress: Called with the number of pairs checked so far and the number of all.

        Raises:
            ValueError: A file is of a kind that is not taken, a label has another size than its image, or an evaluation
                image another size than the first one.
        """
        first_image, _ = self.paths(0)
        first_size = image_head(first_image)
        starts = range(0, len(self), PAIRS_AT_ONCE)
        blocks = [range(start, min(start + PAIRS_AT_ONCE, len(self))) for start in starts]  # numbers of pairs
        check = partial(self._check_block, first_size=first_size)
        with ThreadPoolExecutor(READERS) as readers:
            # `map` queues all blocks. It raises the error of a thread here, and then drops what is still in the queue.
            for block, _ in zip(blocks, readers.map(check, blocks), strict=True):
                on_progress(block.stop, len(self))

    def _check_block(self, numbers: range, first_size: Size) -> None:
        """Check the sizes in pixels of some pairs, which the first bytes of the files state.

        Args:
            numbers: Which pairs; count from 0.
            first_size: Size of the first image, which all images of an evaluation must have.

        Raises:
            ValueError: A file is of a kind that is not taken, a label has another size than its image, or an evaluation
                image another size than the first one.
        """
        for number in numbers:
            image, label = self.paths(number)
            size = image_head(image)
            require_one_size(image, size, label, label_head(label))
            if self.part == "val":
                require_first_size(image, size, first_size)


# ---- sizes


def image_head(path: Path) -> Size:
    """Return an image's size in pixels by the first bytes of its file.

    Args:
        path: File of the image.

    Raises:
        ValueError: The file cannot be read, or is neither a PNG of 8 bits of RGB nor an upright JPEG that states its
            size.
    """
    content = _head(path, pictures.PNG_HEAD_BYTES)
    # A JPEG, which begins with FF, may state its size far behind its start, as behind a thumbnail.
    if content.startswith(b"\xff"):
        content = _head(path, pictures.HEAD_BYTES)
        if encoded.jpeg_size(content) is None:  # as behind the raw data of a thermal camera
            content = _head(path, WHOLE_FILE)
    return pictures.image_size(os.fspath(path), content)


def label_head(path: Path) -> Size:
    """Return a label's size in pixels by the first bytes of its file.

    Args:
        path: File of the label.

    Raises:
        ValueError: The file cannot be read, or is neither a PNG of 8 bits of greyscale nor a PNG with a palette.
    """
    return pictures.label_size(os.fspath(path), _head(path, pictures.PNG_HEAD_BYTES))


def _head(path: Path, count: int) -> bytes:
    """Read the first `count` bytes of a file, or all with WHOLE_FILE. Raises ValueError if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(count)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: restore the file or remove it from the list") from error


def require_one_size(image_path: Path, image: Size, label_path: Path, label: Size) -> None:
    """Raise ValueError if a label has another size than its image."""
    if image != label:
        raise ValueError(
            f"{label_path}: is {label} pixels but its image {image}: replace one of them or remove the pair from the "
            f"list (image {image_path})"
        )


def require_first_size(path: Path, size: Size, first: Size) -> None:
    """Raise ValueError if an evaluation image has another size than the first one."""
    if size != first:
        raise ValueError(
            f"{path}: is {size} pixels but the first evaluation image {first}: evaluation takes images of one size: "
            "resize it with its label, or remove it from the list"
        )


# ---- which pairs there are


def find(root: Path, part: str, classes: int) -> PairList:
    """Return the pairs of image and label of a part of a segmentation data set.

    They are those of the part's list file, such as train.txt, or without one those in the folders of Cityscapes.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        classes: Number of classes that the labels may have, such as 19.

    Raises:
        ValueError: There are no pairs, the list is wrong, or a file is absent.
        OSError: The list or a folder cannot be read.
    """
    folders = lists.Folders(root)
    list_file = _find_list(root, part)
    notes: tuple[str, ...] = ()
    if list_file is not None:
        listed_pairs = _pairs_in_list(list_file, folders)
    else:
        images, others = _files_of_cities(root / "leftImg8bit" / part)
        listed_pairs = _pairs_in_folders(root, part, images, others)
        notes = _notes_on_others(root / "leftImg8bit" / part, others) + _notes_on_lone_labels(root, part, images)
    pairs = tuple(_existing_pair(listed, folders, root) for listed in listed_pairs)
    return PairList(root=root, part=part, pairs=pairs, classes=classes, notes=notes)


def _existing_pair(listed: Listed, folders: lists.Folders, root: Path) -> tuple[str, str]:
    """Return the paths of an image and its label, relative to the folder of the data set.

    The label is the one that is named, with one exception (by `_existing_label`). Where Cityscapes' file
    NAME_gtFine_labelTrainIds.png (LABEL_END) is named and absent, NAME_gtFine_labelIds.png (LABEL_IDS_END) is taken if
    it is there.

    Args:
        listed: Both paths as a list or the folders name them.
        folders: Tells which files are there.
        root: Folder of the data set, for messages.

    Raises:
        ValueError: The image or the label is absent or a folder.
        OSError: A folder cannot be listed.
    """
    image = folders.relative(listed.image)
    label = _existing_label(folders, folders.relative(listed.label))
    for path in (image, label):
        fault = folders.fault(path)
        if fault:
            fix = "restore it or remove it from the list"
            end = folders.end_that_is_there(path)
            if end:
                fault += f", {end} is there"
                fix = f"write the paths as they count from {root}"
            elif path.endswith(LABEL_END):
                fault += f" (its {LABEL_IDS_END} would do, too)"
            raise ValueError(f"{listed.where}: {root / path} {fault}: {fix}")
    return image, label


def _find_list(root: Path, part: str) -> Path | None:
    """Return the list file of a part of a data set.

    Args:
        root: Folder of the data set.
        part: "train" or "val". The list is PART.txt, PART.list or PART_list.txt, the first of these that there is.

    Returns:
        The file; None if there is none.

    Raises:
        ValueError: There is a pipe or a folder of such a name.
    """
    for name in LISTS:
        list_file = root / name.format(part)
        if named_files.is_file(list_file):
            return list_file
    return None


def _existing_label(folders: lists.Folders, label: str) -> str:
    """Return the path of the label file to read: the listed one, or Cityscapes' other file if only that is there.

    NAME_gtFine_labelTrainIds.png has classes; NAME_gtFine_labelIds.png has label ids, which are turned into classes as
    they are read.

    Args:
        folders: Tells which files are there.
        label: Path of the listed label, relative to the folder of the data set or absolute.
    """
    if not label.endswith(LABEL_END) or folders.has(label):
        return label
    of_label_ids = label.removesuffix(LABEL_END) + LABEL_IDS_END
    return of_label_ids if folders.has(of_label_ids) else label


def _pairs_in_list(list_file: Path, folders: lists.Folders) -> Iterator[Listed]:
    """Yield the pairs of image and label that a list file names.

    A line has two paths with blanks between them or, as in a spreadsheet, a comma, a semicolon or a tab.

    Args:
        list_file: The file, such as train.txt.
        folders: Tells which files are there.

    Yields:
        Both paths, with the file and the number of the line for messages.

    Raises:
        ValueError: A line has not two paths, or the list is empty or no text.
    """
    for where, text in lists.lines(list_file):
        paths = text.split()
        columns = [column.strip() for column in SEPARATOR.split(text)]
        if len(columns) == 2:  # of a spreadsheet: a path may have blanks then
            comma_is_in_a_name = len(paths) == 2 and folders.has(folders.relative(lists.unquoted(paths[0])))
            if not comma_is_in_a_name:
                paths = columns
        if len(paths) != 2:
            raise ValueError(f"{where}: {text!r} has not two paths: write 'image label', without blanks in them")
        yield Listed(where, lists.unquoted(paths[0]), lists.unquoted(paths[1]))


def _files_of_cities(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images CITY/NAME_leftImg8bit.png of a part's folder, and all else that lies there.

    Args:
        folder: Folder leftImg8bit/PART of a data set in Cityscapes' layout.

    Returns:
        Images and others, both sorted. Hidden files and folders are left out. Without the folder both are empty.

    Raises:
        OSError: A folder cannot be read.
    """
    images: list[Path] = []
    others: list[Path] = []
    if not folder.is_dir():
        return images, others
    for city in _not_hidden(folder):
        if not city.is_dir():  # such as a link to a folder that is absent
            others.append(city)
            continue
        for file in _not_hidden(city):
            if file.name.endswith(IMAGE_END):
                images.append(file)
            else:
                others.append(file)
    return sorted(images), sorted(others)


def _not_hidden(folder: Path) -> list[Path]:
    """Return what lies in a folder, but for what is hidden, as the `._NAME` that macOS adds."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _notes_on_others(folder: Path, others: list[Path]) -> tuple[str, ...]:
    """Return a note for the user on the files and folders of a part that are passed over; an empty tuple without such.

    Args:
        folder: Folder leftImg8bit/PART of a data set.
        others: Paths that are not images in the folder of a city.
    """
    if not others:
        return ()
    return (
        f"{folder}: passed over {counted(len(others), 'path')} other than CITY/NAME{IMAGE_END}, the first is "
        f"{others[0]}",
    )


def _notes_on_lone_labels(root: Path, part: str, images: list[Path]) -> tuple[str, ...]:
    """Return a note for the user if labels of a part have no image, for example if images were not all unpacked.

    Args:
        root: Folder of a data set in Cityscapes' layout.
        part: "train" or "val".
        images: Image files of the part.

    Returns:
        One note; empty if each label has its image.
    """
    with_image = {f"{image.parent.name}/{image.name.removesuffix(IMAGE_END)}" for image in images}
    labels_folder = root / "gtFine" / part
    lone: set[str] = set()  # as CITY/NAME
    for end in (LABEL_END, LABEL_IDS_END):
        for label in labels_folder.glob(f"[!.]*/[!.]*{end}"):
            name = f"{label.parent.name}/{label.name.removesuffix(end)}"
            if name not in with_image:
                lone.add(name)
    if not lone:
        return ()
    return (
        f"{labels_folder} has the labels of {counted(len(lone), 'image')} that {root / 'leftImg8bit' / part} does not "
        f"have, the first is {min(lone)}{IMAGE_END}: see that all images were unpacked",
    )


def _hint_at_near(root: Path, part: str, others: list[Path]) -> str:
    """Return words for a message on what may be meant where a folder has no images in Cityscapes' layout.

    Args:
        root: The folder that DATADIR names.
        part: "train" or "val".
        others: What else lies in the folder of the images.

    Returns:
        The words, such as "; is /data/cityscapes meant, which has leftImg8bit/train/?"; empty if nothing is found.
    """
    if others:
        return f"; {others[0]} is there, which is no */*{IMAGE_END}"
    above = root.absolute().parents[:2]  # of leftImg8bit/, or of a part in it
    below = sorted(path.parents[1] for path in root.glob(f"*/leftImg8bit/{part}"))
    for folder in (*below, *above):
        if (folder / "leftImg8bit" / part).is_dir() and (folder / "gtFine" / part).is_dir():
            return f"; is {folder} meant, which has leftImg8bit/{part}/ and gtFine/{part}/?"
    # The archive of the images, and that of the labels, each unpacked into a folder of its own name.
    if below:
        return f"; is {below[0] / 'leftImg8bit'} meant? move it, and the folder gtFine/ of the labels, into {root}"
    return ""


def _pairs_in_folders(root: Path, part: str, images: list[Path], others: list[Path]) -> Iterator[Listed]:
    """Yield the pairs of a part of a data set in Cityscapes' folders.

    The label of leftImg8bit/PART/CITY/NAME_leftImg8bit.png is gtFine/PART/CITY/NAME_gtFine_labelTrainIds.png, whether
    there is such a file or not.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        images: Image files of the part, below `root`.
        others: What else lies in the folder of the images.

    Yields:
        Paths of image and label relative to `root`, with the image's path for messages.

    Raises:
        ValueError: There are no images, or no folder of their labels.
    """
    folder = root / "leftImg8bit" / part
    if not images:
        # Raises if there are tables, files of Parquet or Arrow as Hugging Face has them, which are not read.
        lists.require_no_table(root, part, instead=f"save its images and labels as files and list them in {part}.txt")
        raise ValueError(
            f"{root}: has neither {LISTS[0].format(part)} nor images {folder}/*/*{IMAGE_END}: "
            "set DATADIR to a folder in Cityscapes' layout, or write the list, lines 'image label'"
            f"{_hint_at_near(root, part, others)}"
        )
    folder_of_labels = root / "gtFine" / part
    if not folder_of_labels.is_dir():
        raise ValueError(f"{folder_of_labels}: no such folder: put the labels of the images in {folder} there")
    for image in images:
        label = f"gtFine/{part}/{image.parent.name}/{image.name.removesuffix(IMAGE_END)}{LABEL_END}"
        yield Listed(str(image), str(image.relative_to(root)), label)  # the first is for messages


def label_rows(pairs: PairList) -> Array:
    """Tell for each pair whether its label has Cityscapes' label ids: [pairs] bool."""
    return np.array([pairs.has_label_ids(number) for number in range(len(pairs))])
