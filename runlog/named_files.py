"""Opening what a user names on a command line: it is looked at first, and a failure is said plainly."""

import argparse
import errno
import os
import stat
from pathlib import Path

# Streams of this process, such as a shell's `<(zcat LOG)`: a pipe there has somebody who writes into it.
OWN_STREAMS = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")

# {error number: what is wrong and what to do}, for what the system says in words that help nobody
EXPLAINED = {
    errno.ENOENT: "no such file or folder: check the path",
    errno.ENOTDIR: "a part of this path is no folder: check the path",
    errno.EISDIR: "is a folder: name a file",
    errno.ELOOP: "is a link that leads back to itself: name the file that is meant",
    errno.EACCES: "permission denied: ask its owner for access, or name another path",
    errno.ENAMETOOLONG: "this path is longer than the system allows: name a shorter one",
    errno.ENOSPC: "no space left on its disk: free some, or name another path",
    errno.EROFS: "its file system cannot be written: name another path",
}


class UnusableError(ValueError):
    """A path on a command line is nothing that can be read or written; the message is one line."""


def explain(error: OSError) -> str:
    """Return one line that says which path failed, why, and what to do."""
    reason = EXPLAINED.get(error.errno or 0) or f"{error.strerror or error}: check the path"
    return f"{error.filename}: {reason}" if error.filename else reason


def refuse_unusable(path: Path) -> None:
    """Refuse a path that is neither a file nor a folder; a path at which nothing is there is accepted.

    Raises UnusableError for a link to itself, and for a pipe, socket or device, on which a command would wait for ever
    or read without end. /dev/null and this process's own streams are accepted.
    """
    mode = _mode_of(path)
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnusableError(f"{path}: is a pipe, a socket or a device: name a file or a folder")


def refuse_no_file(path: Path) -> None:
    """Refuse a path at which something else than a file stands; a path at which nothing is there is accepted.

    Raises UnusableError for a folder, a link to itself, and for a pipe, socket or device, on which a command would wait
    for ever or read without end. /dev/null and this process's own streams are accepted.
    """
    mode = _mode_of(path)
    if mode is None or stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise UnusableError(f"{path}: {EXPLAINED[errno.EISDIR]}")
    raise UnusableError(f"{path}: is a pipe, a socket or a device: name a file")


def is_file(path: Path) -> bool:
    """Tell whether there is a file at a path; False where nothing is there.

    Raises UnusableError where something else than a file is there, as `refuse_no_file` does.
    """
    refuse_no_file(path)
    return path.is_file()


def refuse_no_folder(path: Path) -> None:
    """Refuse a path that is there and no folder, by UnusableError; one that is not there is accepted."""
    mode = _mode_of(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise UnusableError(f"{path}: is no folder: name a folder")


def _mode_of(path: Path) -> int | None:
    """Return the `st_mode` of what is at a path, from which `stat.S_ISREG` and its like read what it is.

    It is None where nothing is there or it cannot be looked at, and for /dev/null and this process's own streams, which
    any command may open. Raises UnusableError for a link to itself.
    """
    text = str(path)
    if text == os.devnull or text.startswith(OWN_STREAMS):
        return None
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnusableError(explain(error)) from None
        return None  # the command that opens it knows what it is for


def check_options(options: argparse.Namespace) -> None:
    """Refuse a command line that names a pipe, a socket, a device or a link to itself, by UnusableError.

    Words that are not declared as paths are looked at too, if something of that name is there: one of them may be a
    file's name.
    """
    for value in vars(options).values():
        values = value if isinstance(value, list) else [value]
        for item in values:
            if isinstance(item, Path) or (isinstance(item, str) and os.path.lexists(item)):
                refuse_unusable(Path(item))
