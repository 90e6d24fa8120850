"""The files of a package as they lie in a folder: which of them no package has, and how they differ from the wanted."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from compliance.submission.committed_code import LARGEST_BYTES
from compliance.submission.description import LARGEST_JSON_BYTES
from runlog.text import printable
from runlog.verdict import Verdict, judged

MAX_BYTES = 4 << 30  # of all files: more takes minutes to hash
_HASH_DIGITS = 64  # at the beginning of a line of sha256sum
_NAME_AT = 66  # where the name begins in it, after two blanks
_PATH = re.compile(r"(?!\.)[A-Za-z0-9_+.-]+(/(?!\.)[A-Za-z0-9_+.-]+)*")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder, with the folders above it that are missing. An error in the `with` block removes them again.

    Only folders that this call made are removed, the innermost first. A folder that is not empty by then stays, and so
    do those above it.

    Args:
        folder: The folder. It may exist already.
    """
    absent = [one for one in (folder, *folder.parents) if not one.exists()]  # the innermost first
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # it is not empty
            for made in absent:
                made.rmdir()
        raise


def strange_files(folder: Path) -> list[Verdict]:
    """Return a failed verdict for each file or folder that no package may have; empty if all files may be read.

    If there is one, the caller must read no file: a link may lead elsewhere, a pipe may never end, and a large file may
    fill the memory.

    Args:
        folder: Folder of the package, or a published folder of packages.

    Returns:
        The verdicts. Files that are too large together give one more.
    """
    verdicts = []
    total_bytes = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        reason = _why_not_allowed(path, name)
        if reason:
            verdicts.append(judged("files", good=False, found=f"{printable(name)} {reason}"))
        elif path.is_file():
            total_bytes += path.stat().st_size
    if total_bytes > MAX_BYTES:
        found = f"{total_bytes} bytes in all; {MAX_BYTES} are the most that is read"
        verdicts.append(judged("files", good=False, found=found))
    return verdicts


def _why_not_allowed(path: Path, relative_path: str) -> str:
    """Return why a package may not have a file or folder; an empty text if the package may have it.

    Args:
        path: The file or folder.
        relative_path: The path of the same file or folder below the package's folder, with slashes.
    """
    is_file_or_folder = path.is_file() or path.is_dir()
    if path.is_symlink() or not is_file_or_folder:  # such as a pipe
        return "is not a regular file"
    if path.is_dir() and not any(path.iterdir()):
        return "is an empty folder"
    if path.is_dir() and path.name == "__pycache__":
        return "is what Python wrote as the package's code ran: remove the folder, and run it by `python -B`"
    # Of letters, digits and _ + . - alone, and without a dot at the beginning.
    has_allowed_names = _PATH.fullmatch(relative_path) is not None
    if not has_allowed_names:
        return "is a name that no package holds"
    if path.is_file() and path.stat().st_size > LARGEST_BYTES:
        return f"is over {LARGEST_BYTES >> 20} MiB, which no file of a package is"
    return ""


def read_stated(file: Path) -> bytes:
    """Return the bytes of a file that states figures or hashes; empty if it is missing or over a MiB.

    Args:
        file: Path of the file.
    """
    if not file.is_file() or file.stat().st_size > LARGEST_JSON_BYTES:
        return b""
    return file.read_bytes()


class Problems(NamedTuple):
    """The words for the three ways in which the files of a package can differ from what is wanted."""

    unwanted: str
    missing: str
    altered: str


def hash_by_name(text: bytes) -> dict[str, str]:
    """Return the hashes in the output of the command `sha256sum`, by the names of the files.

    Args:
        text: The output: a line for each file, with its hash, two blanks and its name.
    """
    sums = {}
    for line in text.decode("utf-8", "replace").split("\n"):
        if line:
            sums[line[_NAME_AT:]] = line[:_HASH_DIGITS]
    return sums


def judge_differences(
    check: str, wanted: Mapping[str, str], present: Mapping[str, str], problems: Problems
) -> list[Verdict]:
    """Return a failed verdict for each file that is not wanted, is missing, or was altered; empty if there is none.

    Args:
        check: Name of the check that the verdicts are of, such as "code".
        wanted: Hash of each file that should be there, by the name of the file.
        present: Hash of each file that is there, by the name of the file.
        problems: Words for each of the three cases.
    """
    verdicts = []
    for name in sorted({*wanted, *present}):
        problem = _problem_of_file(wanted.get(name), present.get(name), problems)
        if problem:
            verdicts.append(judged(check, good=False, found=f"{printable(name)} {problem}"))
    return verdicts


def _problem_of_file(wanted_hash: str | None, present_hash: str | None, problems: Problems) -> str:
    """Return the words for what is wrong with a file that is wanted, present or both; empty if nothing is.

    Args:
        wanted_hash: Hash that the file should have; None if there should be no such file.
        present_hash: Hash that the file has; None if there is no such file.
        problems: Words for a file that is not wanted, is missing, or was altered.
    """
    if wanted_hash is None:
        return problems.unwanted
    if present_hash is None:
        return problems.missing
    if present_hash != wanted_hash:
        return problems.altered
    return ""
