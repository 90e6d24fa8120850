"""Files that a command writes: the checks that come before."""

from pathlib import Path

from scoring.record import InputError


def refuse_missing_folder(file: Path) -> None:
    """Raise InputError if the folder into which `file` would be written does not exist.

    If `file` is a link, this is the folder of the file that the link leads to.
    """
    folder = file.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{file}: no folder {folder} to write into; make it first")
