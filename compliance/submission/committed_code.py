"""The files of a commit of this repository: the code that a package hands in."""

import os
import re
import subprocess
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from runlog.text import printable

REPOSITORY = next((p for p in Path(__file__).resolve().parents[2:3] if (p / "systems").is_dir()), Path.cwd())  # a wheel
LARGEST_BYTES = 50 * 2**20  # of a file; repo_checker of mlperf-logging refuses a larger one
_LINK, _SUBMODULE, _EXECUTABLE = "120000", "160000", "100755"  # modes of git


class UnknownCommitError(ValueError):
    """The history of this checkout does not have the commit."""


class CodeFile(NamedTuple):
    """The content of a file of a commit, and whether it is executable."""

    content: bytes
    is_executable: bool


class _Entry(NamedTuple):
    """A row of git's list of a commit's files."""

    mode: str  # of git, such as _EXECUTABLE
    hash_of_content: str
    path: str


def code_of(commit: str) -> dict[str, CodeFile]:
    """Return the files of a commit of this repository, from git's history, by their paths in the repository.

    Hidden files and those with a blank in their path are left out, because MLCommons' repo_checker refuses them.

    Args:
        commit: Hash of the commit: 7 to 64 hexadecimal digits.

    Raises:
        UnknownCommitError: This checkout does not have the commit.
        ValueError: `commit` is not a hash, git or the checkout is missing, git cannot read the checkout, or the commit
            has a link or a file over 50 MiB.
    """
    entries = [entry for entry in _entries_of(commit) if _is_for_package(entry)]
    files = {}
    for entry, content in zip(entries, _contents_of(entries), strict=True):
        if entry.mode == _LINK or len(content) > LARGEST_BYTES:
            raise ValueError(f"{entry.path}: a link or over 50 MB, which repo_checker refuses: leave it out")
        files[entry.path] = CodeFile(content, is_executable=entry.mode == _EXECUTABLE)
    return files


def committed_ms(commit: str) -> float:
    """Return when a commit of this repository was made, in milliseconds since 1970, as its committer's clock said.

    Args:
        commit: Hash of the commit: 7 to 64 hexadecimal digits.

    Raises:
        ValueError: `commit` is not a hash, git is not installed, or it does not give the commit.
    """
    _refuse_other_than_hash(commit)
    done = _asked_of_git("log", "--max-count=1", "--no-show-signature", "--format=%ct", f"{commit}^{{commit}}", "--")
    if done.returncode != 0:
        raise ValueError(f"{REPOSITORY}: git gives no date of {printable(commit)}: {_error_of(done)}")
    return 1000.0 * int(done.stdout)


def _is_for_package(entry: _Entry) -> bool:
    """Return whether a package gets what a row lists: a file, not a submodule, with a path that repo_checker takes.

    It refuses hidden files and folders, such as `.github/ci.yaml`, and paths with a blank.
    """
    has_refused_path = re.search(r"(^|/)\.| ", entry.path) is not None
    return entry.mode != _SUBMODULE and not has_refused_path


def _entries_of(commit: str) -> list[_Entry]:
    """Return git's list of all files of a commit of this repository.

    If git gives no list, it is asked whether it can read the checkout at all. Only if it can is the commit unknown.

    Args:
        commit: Hash of the commit: 7 to 64 hexadecimal digits.

    Raises:
        ValueError: `commit` is not a hash, git is not installed, there is no checkout here, or git cannot read it.
        UnknownCommitError: Git reads the checkout, which does not have the commit, or lacks one of its folders.
    """
    _refuse_other_than_hash(commit)
    done = _asked_of_git("ls-tree", "-r", "-z", f"{commit}^{{commit}}")
    if done.returncode == 0:
        return [_entry(row) for row in done.stdout.split(b"\0") if row]

    # Git failed. The message serves two errors: no checkout, and a readable checkout without the commit.
    no_commit = f"{REPOSITORY}: git has no commit {commit} ({_error_of(done)}); take a checkout that has it"
    is_checkout = (REPOSITORY / ".git").exists()
    # Without it, this is a copy of the code without its history, and whether the commit exists is not known.
    if not is_checkout:
        raise ValueError(no_commit)
    # This command names no commit, so it fails only if git cannot read the checkout, for example if another user
    # owns it.
    asked_for_folder = _asked_of_git("rev-parse", "--git-dir")
    if asked_for_folder.returncode != 0:
        raise ValueError(f"{REPOSITORY}: git does not read this checkout: {_error_of(asked_for_folder)}")
    raise UnknownCommitError(no_commit)


def _entry(row: bytes) -> _Entry:
    """Return a row of git's list, such as `100644 blob 2b66fd261ee5c6cfc8de7fa466bab600bcfe4f69<TAB>NOTICE`."""
    columns, _, path = row.partition(b"\t")
    mode, _, hash_of_content = columns.decode("ascii").split()
    return _Entry(mode, hash_of_content, os.fsdecode(path))


def _contents_of(entries: Sequence[_Entry]) -> list[bytes]:
    """Return the content of each file, byte by byte as it was committed.

    `git archive` would give other bytes by a user's settings and attributes, such as lines that end in CRLF, or leave
    files out. `git cat-file` heeds none of them.

    Args:
        entries: The files.

    Raises:
        ValueError: Git lacks the content of a file or cannot read it, as in a damaged checkout.
    """
    hashes = "".join(f"{entry.hash_of_content}\n" for entry in entries)
    done = _asked_of_git("cat-file", "--batch", given=hashes.encode("ascii"))
    if done.returncode != 0:  # it ends so at a damaged content, of which it has answered a part
        raise ValueError(f"{REPOSITORY}: git cannot read the content of a file: {_error_of(done)}")
    answers = BytesIO(done.stdout)
    contents = []
    for entry in entries:
        head = answers.readline().split()  # hash, kind and size of the content that follows; or hash and "missing"
        if len(head) != 3:
            raise ValueError(f"{REPOSITORY}: git lacks the content of {printable(entry.path)}")
        contents.append(answers.read(int(head[2])))
        answers.readline()  # the end of the line that git writes after it
    return contents


def _refuse_other_than_hash(commit: str) -> None:
    """Raise ValueError if a text is not a hash of a commit, so that git takes it for nothing else."""
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise ValueError(f"{printable(commit)}: no commit")


def _asked_of_git(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in this checkout, and return what it answered.

    Args:
        arguments: Words of the command after `git`, such as "rev-parse", "--git-dir".
        given: Standard input of the command.

    Raises:
        ValueError: Git is not installed.
    """
    try:
        # Without the user's replacements, by which `git replace` shows other objects in place of those of the commit.
        words = ["git", "--no-replace-objects", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(words, input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("git is not installed: package on a machine that has it, in a checkout of the code") from None


def _error_of(done: subprocess.CompletedProcess[bytes]) -> str:
    return printable(done.stderr.decode("utf-8", "replace").strip())
