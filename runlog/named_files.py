"""Opening what a user names on a command line: it is looked at first, and a failure is said plainly."""

import argparse
import errno
import os
import stat
import tempfile
from pathlib import Path

# Streams of this process, such as a shell's `<(zcat LOG)`: a pipe there has somebody who writes into it.
OWN_STREAMS = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")

# {error number: what is wrong and what to do}, for what the system says in words that help nobody
EXPLAINED = {
    errno.ENOENT: "no such file or folder: check the path",
    errno.ENOTDIR: "a part of this path is not a folder: check the path",
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
    """Return one line that says which path failed, why, and what to do.

    Args:
        error: The error that the system raised for the path, such as FileNotFoundError.
    """
    reason = EXPLAINED.get(error.errno or 0) or f"{error.strerror or error}: check the path"
    return f"{error.filename}: {reason}" if error.filename else reason


def refuse_unusable(path: Path) -> None:
    """Raise UnusableError if a path leads to a pipe, a socket or a device, where a command could wait without end.

    Accepted are files and folders, /dev/null, the streams of this process such as /dev/stdin, and paths that cannot be
    looked up, for example if nothing is: the code that opens the path later creates the file or reports the error.

    Args:
        path: Path as the user gave it.

    Raises:
        UnusableError: The path leads to something that is not accepted, or is a link that leads back to itself.
    """
    mode = _mode_unless_exempt(path)  # raises for a link that leads back to itself
    if mode is None:  # /dev/null, a stream of this process, nothing there, or a path that cannot be looked up
        return
    is_file_or_folder = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    if not is_file_or_folder:
        raise UnusableError(f"{path}: is a pipe, a socket or a device: name a file or a folder")


def require_file_if_present(path: Path) -> None:
    """Raise UnusableError if a path leads to a folder, a pipe, a socket or a device; accept a file and an absent path.

    /dev/null and the streams of this process, such as /dev/stdin, are accepted too, even if a stream is a pipe. So is a
    path that cannot be looked up, as without permission: the code that opens the path later reports the error.

    Args:
        path: Path as the user gave it.

    Raises:
        UnusableError: The path leads to something that is not accepted, or is a link that leads back to itself.
    """
    mode = _mode_unless_exempt(path)  # raises for a link that leads back to itself
    if mode is None:  # /dev/null, a stream of this process, nothing there, or a path that cannot be looked up
        return
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise UnusableError(f"{path}: {EXPLAINED[errno.EISDIR]}")
    raise UnusableError(f"{path}: is a pipe, a socket or a device: name a file")


def is_file(path: Path) -> bool:
    """Return True if a path leads to a file, and False if nothing is there; raise UnusableError for anything else.

    Two things that are not files give False instead of the error: /dev/null, and a stream of this process, such as
    /dev/stdin from a pipe.

    Args:
        path: Path as the user gave it.

    Raises:
        UnusableError: The path leads to a folder, or to another pipe, socket or device, or is a link that leads back to
            itself or to something that is absent.
        OSError: The path cannot be looked up, as without permission.
    """
    # Raises for a folder, a pipe, a socket, a device and a link to itself. Accepts a file, an absent path, /dev/null
    # and the streams of this process.
    require_file_if_present(path)
    leads_to_nothing = path.is_symlink() and not path.exists()
    if leads_to_nothing:
        raise UnusableError(f"{path}: is a link to a file that is absent: restore the file or remove the link")
    return path.is_file()  # False for an absent path, /dev/null, and a stream that is not a file


def refusal_of_new_file(folder: Path) -> OSError | None:
    """Return the error with which the system refuses a new file in a folder; None if one can be made.

    To learn it, a file without a name is made and removed at once.

    Args:
        folder: The folder.

    Returns:
        The error, with the folder as its `filename`.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return OSError(error.errno, error.strerror, os.fspath(folder))
    return None


def require_folder_if_present(path: Path) -> None:
    """Raise UnusableError if a path leads to a file or anything else that is not a folder; accept an absent path.

    /dev/null and the streams of this process, such as /dev/stdin, are accepted too, as in the other checks of this
    module. So is a path that cannot be looked up: the code that uses the path later reports the error.

    Args:
        path: Path as the user gave it.

    Raises:
        UnusableError: The path leads to something that is not a folder, or is a link that leads back to itself.
    """
    mode = _mode_unless_exempt(path)  # raises for a link that leads back to itself
    if mode is None:  # /dev/null, a stream of this process, nothing there, or a path that cannot be looked up
        return
    if not stat.S_ISDIR(mode):
        raise UnusableError(f"{path}: is not a folder: name a folder")


def _mode_unless_exempt(path: Path) -> int | None:
    """Return the `st_mode` of what a path leads to, which tells a file, a folder, a pipe and a device apart.

    Args:
        path: Path as the user gave it. A link is followed.

    Returns:
        The mode; None in three cases, in which the callers accept the path without a look at its kind:

        - /dev/null or a stream of this process, such as /dev/stdin
        - nothing is there
        - the path cannot be looked up, as without permission

    Raises:
        UnusableError: The path is a link that leads back to itself.
    """
    if _is_null_or_own_stream(path):
        return None  # reading or writing it is meant, whatever its kind
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnusableError(explain(error)) from None
        return None  # accepted: the code that opens the path later creates the file, or reports the error


def _is_null_or_own_stream(path: Path) -> bool:
    """Return whether a path is /dev/null, or a stream of this process such as /dev/stdin."""
    text = str(path)
    return text == os.devnull or text.startswith(OWN_STREAMS)


def check_options(options: argparse.Namespace) -> None:
    """Raise an error if an option or argument of a command names a pipe, a socket, a device or a link to itself.

    Args:
        options: The parsed command line.

    Raises:
        UnusableError: A path is unusable. The message names it.
    """
    for value in vars(options).values():
        items = value if isinstance(value, list) else [value]
        for item in items:
            # A string need not be a path. It is taken for one if something of that name exists.
            is_name_of_something = isinstance(item, str) and os.path.lexists(item)
            if isinstance(item, Path) or is_name_of_something:
                refuse_unusable(Path(item))
