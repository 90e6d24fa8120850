"""The files of a commit of this repository: the code that a package hands in."""

import os
import re
import stat
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from runlog.text import printable

REPOSITORY = next((p for p in Path(__file__).resolve().parents[2:3] if (p / "systems").is_dir()), Path.cwd())  # a wheel
LARGEST_BYTES = 50 * 2**20  # of a file; repo_checker of mlperf-logging refuses a larger one
# By a user's own settings or attributes git would give other bytes than the commit has, such as lines that end in CRLF,
# or leave files out.
_BYTES_AS_COMMITTED = (
    *("-c", "core.autocrlf=false"),
    *("-c", "core.eol=lf"),
    *("-c", f"core.attributesFile={os.devnull}"),
)


class UnknownCommitError(ValueError):
    """The history of this checkout does not have the commit."""


class CodeFile(NamedTuple):
    """The content of a file of a commit, and whether it is executable."""

    content: bytes
    is_executable: bool


def code_of(commit: str) -> dict[str, CodeFile]:
    """Return the files of a commit of this repository, from git's history, by their paths in the repository.

    Hidden files and those with a blank in their path are left out, because MLCommons' repo_checker refuses them.

    Args:
        commit: Hash of the commit: 7 to 64 hexadecimal digits.

    Raises:
        UnknownCommitError: This checkout does not have the commit.
        ValueError: `commit` is no hash, git or the checkout is missing, git cannot read the checkout, or the commit has
            a link or a file over 50 MiB.
    """
    files = {}
    with tarfile.open(fileobj=BytesIO(_archive_of(commit))) as archive:
        for member in archive.getmembers():
            if member.isdir() or _has_refused_name(member):
                continue
            if not member.isfile() or member.size > LARGEST_BYTES:
                raise ValueError(f"{member.name}: a link or over 50 MB, which repo_checker refuses: leave it out")
            content = archive.extractfile(member)
            assert content is not None  # as for any regular file
            is_executable = bool(member.mode & stat.S_IXUSR)
            files[member.name] = CodeFile(content.read(), is_executable)
    return files


def committed_ms(commit: str) -> float:
    """Return when a commit of this repository was made, in milliseconds since 1970, as its committer's clock said.

    Args:
        commit: Hash of the commit: 7 to 64 hexadecimal digits.

    Raises:
        ValueError: `commit` is no hash, git is not installed, or it does not give the commit.
    """
    _refuse_other_than_hash(commit)
    done = _asked_of_git("log", "--max-count=1", "--no-show-signature", "--format=%ct", f"{commit}^{{commit}}", "--")
    if done.returncode != 0:
        raise ValueError(f"{REPOSITORY}: git gives no date of {printable(commit)}: {_error_of(done)}")
    return 1000.0 * int(done.stdout)


def _has_refused_name(member: tarfile.TarInfo) -> bool:
    """Return whether repo_checker refuses a file for its path: it is hidden, as `.github/ci.yaml`, or has a blank."""
    return re.search(r"(^|/)\.| ", member.name) is not None


def _archive_of(commit: str) -> bytes:
    """Return a tar archive of all files of a commit of this repository, as `git archive` makes it.

    The files in the archive have the bytes of the commit, whatever the user's git config says.

    Args:
        commit: Hash of the commit: 7 to 64 hexadecimal digits.

    Raises:
        ValueError: `commit` is no hash; git is not installed; or `git archive` fails, because the folder REPOSITORY is
            no checkout, but a copy of the code without its history, or because git cannot read the checkout, as where
            another user owns the folder.
        UnknownCommitError: `git archive` fails though git can read the checkout, which is taken to lack the commit.
    """
    _refuse_other_than_hash(commit)
    done = _asked_of_git(*_BYTES_AS_COMMITTED, "archive", "--format=tar", f"{commit}^{{commit}}")
    if done.returncode == 0:
        return done.stdout

    no_commit = f"{REPOSITORY}: git has no commit {commit} ({_error_of(done)}); take a checkout that has it"
    is_checkout = (REPOSITORY / ".git").exists()
    if not is_checkout:
        raise ValueError(no_commit)  # no UnknownCommitError: the commit may be right
    asked_for_folder = _asked_of_git("rev-parse", "--git-dir")  # which fails only if git cannot read the checkout
    if asked_for_folder.returncode != 0:
        raise ValueError(f"{REPOSITORY}: git does not read this checkout: {_error_of(asked_for_folder)}")
    raise UnknownCommitError(no_commit)


def _refuse_other_than_hash(commit: str) -> None:
    """Raise ValueError if a text is no hash of a commit, so that git takes it for nothing else."""
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise ValueError(f"{printable(commit)}: no commit")


def _asked_of_git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in this checkout, and return what it answered.

    Args:
        arguments: Words of the command after `git`, such as "rev-parse", "--git-dir".

    Raises:
        ValueError: Git is not installed.
    """
    try:
        return subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("git is not installed: package on a machine that has it, in a checkout of the code") from None


def _error_of(done: subprocess.CompletedProcess[bytes]) -> str:
    return printable(done.stderr.decode("utf-8", "replace").strip())
