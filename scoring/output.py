"""Files that a command writes: the checks that come before, and how one takes the place of another."""

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


def replace_whole_file(path: Path, text: str) -> None:
    """Replace a file by a new one. If the new one cannot be written whole, the old one stays as it was.

    Args:
        path: The file, which need not be there. If it is a link, the file that the link leads to is replaced.
        text: What the new file holds.

    Raises:
        OSError: The new file cannot be written, as on a full disk. The error names `path`.
    """
    replaced = path.resolve()
    unfinished = replaced.with_name(f".{replaced.name}.half")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="")
        unfinished.replace(replaced)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # that of a full disk names no file
    finally:
        unfinished.unlink(missing_ok=True)
