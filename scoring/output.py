"""Files that a command writes: the checks that come before."""

from pathlib import Path

from scoring.record import InputError


def refuse_missing_folder(file: Path) -> None:
    """Raise an error if the folder into which a file would be written does not exist.

    Args:
        file: The file. If it is a link, its folder is that of the file that the link leads to.

    Raises:
        InputError: The folder does not exist.
    """
    folder = file.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{file}: no folder {folder} to write into; make it first")
