"""Files that a command writes: the checks that come before."""

from pathlib import Path

from scoring.record import InputError


def refuse_missing_folder(file: Path) -> None:
    """Raise InputError if the folder that `file` would be written into is not there.

    A link is followed: its folder is that of the file that it leads to.
    """
    folder = file.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{file}: no folder {folder} to write into; make it first")
