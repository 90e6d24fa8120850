"""Writes the lists of an image folder from its class folders: `tools.pack --lists`."""

import os
import sys
from pathlib import Path

from harness.lists import Folders
from harness.lists import lines as list_lines
from paddle_rn50 import folder, recordio

PARTS = ("train", "val")
NEWLINE = b"\n"


def write_lists(source: Path, labels: Path | None) -> list[str]:
    """Write train_list.txt and val_list.txt of a folder whose images lie in class folders, as train/n01440764/x.JPEG.

    `labels` has lines `name label` for a val/ without class folders; else None. Returns a line of text for each list.
    Raises ValueError, and writes nothing, if a list exists or cannot be made.
    """
    # Both lists are made before the first is written, so that an error leaves none behind.
    contents: dict[str, bytes] = {}
    for part in PARTS:
        list_file = source / folder.LIST.format(part)
        if list_file.exists():
            raise ValueError(f"{list_file}: is there: remove it to write it anew from the class folders")
        if part == "val" and labels is not None:
            contents[part] = _flat_list(source / part, labels)
        else:
            images = folder.by_class_folders(source, part, recordio.MOST_CLASSES)
            print_warning(images.passed_over)
            contents[part] = folder.list_text(images)

    written = []
    for part, text in contents.items():
        list_file = source / folder.LIST.format(part)
        list_file.write_bytes(text)
        written.append(f"{list_file}: {text.count(NEWLINE)} images")
    return written


def _flat_list(image_folder: Path, labels: Path) -> bytes:
    """Return a list file of the images that lie in `image_folder` itself, labelled by the file `labels`, as bytes.

    Its line "anything/x.JPEG 7" becomes "val/x.JPEG 7" if the folder is val. Raises ValueError if the file is missing,
    or a line has no label or names no image.
    """
    if not labels.is_file():
        raise ValueError(f"{labels}: no such file: give lines 'name label' of the images in {image_folder}")
    existing_files = Folders(image_folder)
    lines = []
    for where, text in list_lines(labels):
        parts = folder.LINE.fullmatch(text)
        if parts is None:
            raise ValueError(f"{where}: {text!r} has no label: write 'name label', the label a number from 0")
        _, _, name = parts["path"].rpartition("/")
        fault = existing_files.fault(name)
        if fault:
            raise ValueError(f"{where}: {image_folder / name} {fault}: restore it or remove the line")
        lines.append(f"{image_folder.name}/{name} {int(parts['label'])}\n")
    return os.fsencode("".join(lines))


def print_warning(note: str) -> None:
    """Print a warning about the data set on stderr; nothing if the note is empty."""
    if note:
        print(f"warning: {note}", file=sys.stderr, flush=True)
