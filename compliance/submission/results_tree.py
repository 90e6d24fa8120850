"""A results repository, as a folder or a tar archive: which of its files an audit reads, and whose they are."""

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from compliance.official.rule_files import versions
from runlog.reader import HeldLog, has_old_events
from runlog.text import printable

LARGEST_LOG_BYTES = 1 << 28  # a log in an archive is held in memory while it is read
LOG = "result_*.txt"
SYSTEM = "systems/*.json"
SCALING = "scaling.json"  # the factor that the review committee set, which result_summarizer applies
_PATTERNS = (LOG, SYSTEM, SCALING)
_ROUND = re.compile(r"(?<![A-Za-z0-9])v(\d+\.\d+)(?!\d)")
_OLD_FORM_ROUNDS = ("0.5", "0.6")
_SCALINGS = ("strong", "weak")  # MLPerf HPC's layout is .../results/SYSTEM/SCALING/BENCHMARK


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """The reason why a file cannot be read."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """A file of the repository: its path in it, and the file itself, on disk or held in memory."""

    name: PurePosixPath
    content: Path | Unreadable


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The round, submitter, system and benchmark of a folder's logs; empty texts for what is not known."""

    round: str
    submitter: str
    system: str
    benchmark: str


def files_of(path: Path) -> Iterator[TreeFile]:
    """Yield the logs, system descriptions and scaling files of a results repository.

    Args:
        path: Folder of the repository, or a tar archive of it.

    Yields:
        The files by their paths in the repository. A file of an archive that cannot be read has the reason instead.

    Raises:
        ValueError: An archive is damaged, or a file is not an archive.
        OSError: `path` does not exist.
    """
    if path.is_dir():
        yield from _files_of_folder(path)
    else:
        yield from _files_of_archive(path)


def _files_of_folder(folder: Path) -> Iterator[TreeFile]:
    """Yield the files below a folder, sorted. One behind a link to a folder has the reason why it is not read."""
    content_by_path: dict[Path, Path | Unreadable] = {}
    for file in _matching_files(folder):
        content_by_path[file] = file
    for link in _links_to_folders(folder):
        for file in _matching_files(link):
            content_by_path[file] = Unreadable(reason=f"{link.relative_to(folder)} is a link: put the folder there")
    for file in sorted(content_by_path):
        yield TreeFile(name=PurePosixPath(file.relative_to(folder)), content=content_by_path[file])


def _matching_files(folder: Path) -> set[Path]:
    """Return the logs, system descriptions and scaling files below a folder, without those behind further links."""
    files: set[Path] = set()
    for pattern in _PATTERNS:
        files.update(folder.rglob(pattern))
    return files


def _links_to_folders(folder: Path) -> Iterator[Path]:
    """Yield the links below a folder that lead to another folder, but not those that lead back to one above them."""
    for parent, subfolders, _ in os.walk(folder):
        for name in subfolders:
            subfolder = Path(parent, name)
            if subfolder.is_symlink() and not subfolder.absolute().is_relative_to(subfolder.resolve()):
                yield subfolder


def _files_of_archive(path: Path) -> Iterator[TreeFile]:
    """Yield the logs, system descriptions and scaling files of a tar archive, in its order.

    Args:
        path: The archive, which may be compressed by gzip, bzip2 or xz.

    Yields:
        The files, held in memory. One that cannot be read has the reason instead.

    Raises:
        ValueError: The file is not an archive, or a damaged one, which may show only after all files were yielded.
        OSError: The file cannot be opened.
    """
    with path.open("rb") as stream:
        try:
            decompressed = _decompressed(stream)
            with tarfile.open(fileobj=decompressed, mode="r|", tarinfo=_Header) as members:
                for member in members:
                    name = PurePosixPath(member.name)
                    if any(name.match(pattern) for pattern in _PATTERNS):
                        yield TreeFile(name=name, content=_held_in_memory(member, members))
            # tarfile stops before the checksum of a compressed archive. Read on to the end, so that it is compared.
            while decompressed.read(1 << 20):
                pass
        except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:  # OSError: by gzip and bz2
            raise ValueError(f"{path}: neither a folder nor a whole tar archive: {printable(str(error))}") from None


def _decompressed(stream: io.BufferedReader) -> io.BufferedIOBase:
    """Return a stream of the decompressed bytes of a file in gzip, bzip2 or xz; any other file as it is.

    tarfile could decompress the archive itself, but would not notice a wrong checksum.

    Args:
        stream: The open file, at its beginning.
    """
    start = stream.peek(6)  # does not move the position in the file
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(stream)
    if start.startswith(b"BZh"):
        return bz2.open(stream)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.open(stream)
    return stream


class _Header(tarfile.TarInfo):
    """A member's header. A damaged one is an error.

    tarfile itself takes a damaged header for the end of the archive, unless it is the first.
    """

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":  # Debian's 3.11.2 calls no frombuf
        """Read the next header. Raises ReadError if it is damaged."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise  # the regular end
            raise tarfile.ReadError(str(error)) from None


def _held_in_memory(member: tarfile.TarInfo, archive: tarfile.TarFile) -> Path | Unreadable:
    """Return a file of an archive, held in memory; if it cannot be read, the reason.

    Args:
        member: Header of the file.
        archive: The open archive.

    Returns:
        A path whose bytes are held in memory. The reason if the member is a link or a folder, or is larger than
        LARGEST_LOG_BYTES.
    """
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        return Unreadable(reason="no file but a link or folder in the archive")
    if member.size > LARGEST_LOG_BYTES:
        return Unreadable(reason=f"over {LARGEST_LOG_BYTES >> 20} MiB")
    held = HeldLog(member.name)
    held.data = content.read()
    return held


def ruleset_named(root: Path, folder: PurePosixPath) -> str | None:
    """Return the version of the rules of the MLPerf round that a folder's path names.

    `training_results_v4.0/Dell/results/system/resnet` gives `4.0.0`.

    Args:
        root: Folder or archive of the results repository, whose path may also name the round.
        folder: Path of the folder in it.

    Returns:
        The version; None if the path names no round that has rules.
    """
    number = round_named(root, folder)
    version = f"{number}.0"  # ".0" if no round is named: no such ruleset
    return version if version in versions() else None


def round_named(root: Path, folder: PurePosixPath) -> str:
    """Return the number of the MLPerf round in a name above `results`, such as `4.0`.

    `training_results_v4.0/Dell/results/system/resnet` gives `4.0`. The innermost name with a number decides.

    Args:
        root: Folder or archive of the tree, whose path is looked at, too.
        folder: Path of a folder in the tree.

    Returns:
        The number; empty if there is none, or if that name has several.
    """
    names = (*root.resolve().parts, *folder.parts)
    results_at = _last_index(names, "results")
    names_above_results = names if results_at is None else names[:results_at]
    for name in reversed(names_above_results):
        rounds = set(_ROUND.findall(name))
        if len(rounds) > 1:  # such as `from_v3.1_to_v4.0`
            return ""
        if rounds:
            return str(rounds.pop())
    return ""


def is_of_old_form(root: Path, file: TreeFile) -> bool:
    """Return whether a log without readable events is of MLPerf v0.5 or v0.6, whose events have another form.

    A folder's name such as `training_results_v0.6` shows it, or an event in this form near the log's beginning.

    Args:
        root: Folder or archive of the results repository.
        file: The log, by its path in the repository.
    """
    if round_named(root, file.name.parent) in _OLD_FORM_ROUNDS:
        return True
    if isinstance(file.content, Unreadable):
        return False
    try:
        return has_old_events(file.content)
    except (ValueError, OSError):  # for example of a pipe, or a link that leads nowhere: the report on the log says so
        return False


class _Layout(NamedTuple):
    """The names of a path .../results/SYSTEM/BENCHMARK: those above `results`, and the two below.

    Of MLPerf HPC the benchmark is, for instance, `strong/deepcam`.
    """

    names_above_results: tuple[str, ...]
    system: str
    benchmark: str


def owner_of(root: Path, folder: PurePosixPath, organisation: str) -> Owner:
    """Return the round, submitter, system and benchmark of a folder of logs, by its path in MLCommons' layout.

    The layout is ROUND/SUBMITTER/results/SYSTEM/BENCHMARK. The tree may begin at any folder of the layout, or above:

        root                           folder                           round    submitter
        /data                          v1.1/Dell/results/node/resnet    v1.1     Dell
        /data/training_results_v1.1    Dell/results/node/resnet         v1.1     Dell
        /data/Dell                     results/node/resnet              ""       Dell
        /data/Dell/results             node/resnet                      ""       `organisation`

    Args:
        root: Folder or archive of the tree.
        folder: Path of the folder of logs in the tree.
        organisation: The submitter if the tree does not name one, such as the organisation that the logs state.

    Returns:
        The four names; empty for those that are not known. In any other layout, only the submitter and the benchmark,
        which is the last name of the path, are taken to be known.
    """
    root_names = root.resolve().parts if root.is_dir() else ()  # an archive's own name does not count
    names = (*root_names, *folder.parts)
    layout = _layout_of(names)
    if layout is None:
        return Owner(round="", submitter=organisation, system="", benchmark=names[-1] if names else "")
    names_in_tree = layout.names_above_results[len(root_names) :]  # as ("v1.1", "Dell")
    folders_of_round = names_in_tree[:-1]  # ("v1.1",)
    if names_in_tree:
        submitter = names_in_tree[-1]
    elif root_names and len(layout.names_above_results) == len(root_names):
        submitter = root_names[-1]  # the tree is one submitter's folder, as /data/Dell
    else:  # the tree begins at `results` or below
        submitter = organisation
    return Owner(
        round="/".join(folders_of_round) or _numbered_round(root, folder),
        submitter=submitter,
        system=layout.system,
        benchmark=layout.benchmark,
    )


def _numbered_round(root: Path, folder: PurePosixPath) -> str:
    """Return the MLPerf round whose number a path names, such as `v1.1` of training_results_v1.1; empty if none.

    Args:
        root: Folder or archive of the tree, whose path is looked at, too.
        folder: Path of the folder in the tree.
    """
    number = round_named(root, folder)  # "1.1"
    return f"v{number}" if number else ""


def _layout_of(names: tuple[str, ...]) -> _Layout | None:
    """Return the parts of a path in MLCommons' layout, .../results/SYSTEM/BENCHMARK or .../SYSTEM/strong/BENCHMARK.

    Args:
        names: Names of the folders of the path, the outermost first.

    Returns:
        The parts; None if the path has another layout.
    """
    results_at = _last_index(names, "results")
    if results_at is None:
        return None
    names_below_results = names[results_at + 1 :]
    has_scaling = len(names_below_results) == 3 and names_below_results[1] in _SCALINGS
    if len(names_below_results) != 2 and not has_scaling:
        return None
    system, *benchmark = names_below_results
    return _Layout(names[:results_at], system, benchmark="/".join(benchmark))


def path_of_description(folder: PurePosixPath) -> PurePosixPath | None:
    """Return the path of the system description that belongs to a submission's folder.

    - `v1.1/Dell/results/node_A100/resnet` gives `v1.1/Dell/systems/node_A100.json`
    - `results/node_A100/resnet` (the tree begins at Dell) gives `systems/node_A100.json`
    - `results/node_A100/strong/deepcam` of MLPerf HPC, too
    - `node_A100/resnet` (the tree begins at results) gives None

    Args:
        folder: Path of the submission's folder in the tree.

    Returns:
        The path; None if it lies outside the tree.
    """
    above_benchmark = folder.parts[:-1]
    has_scaling = len(above_benchmark) >= 3 and above_benchmark[-1] in _SCALINGS
    if has_scaling:
        above_benchmark = above_benchmark[:-1]
    if len(above_benchmark) < 2:  # results and system
        return None
    *names_above_results, _results, system = above_benchmark
    return PurePosixPath(*names_above_results, "systems", f"{system}.json")


def _last_index(parts: tuple[str, ...], name: str) -> int | None:
    """Return the index at which a name stands last among the parts of a path; None if it is not among them.

    Args:
        parts: Parts of the path.
        name: The name to look for.
    """
    for index in range(len(parts) - 1, -1, -1):
        if parts[index] == name:
            return index
    return None
