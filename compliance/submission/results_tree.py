"""A results repository, as a folder or a tar archive: which of its files an audit reads, and whose they are."""

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from compliance.official.rule_files import versions
from runlog.reader import HeldLog
from runlog.text import printable

LARGEST_LOG_BYTES = 1 << 28  # a log in an archive is held in memory while it is read
LOG = "result_*.txt"
SYSTEM = "systems/*.json"
SCALING = "scaling.json"  # the factor that the review committee set, which result_summarizer applies
_PATTERNS = (LOG, SYSTEM, SCALING)
_ROUND = re.compile(r"(?<![A-Za-z0-9])v(\d+\.\d+)(?!\d)")
_OTHER_FORM_ROUNDS = ("0.5", "0.6")
_OTHER_FORM_LINE = re.compile(rb":::MLPv0\.|:::MLL ")  # v0.5 and v0.6 wrote their events so
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """A file of the repository: its name there, and its content or why it cannot be read."""

    name: PurePosixPath
    content: Path | str


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The round, submitter, system and benchmark of a folder's logs; empty where the tree does not say."""

    round: str
    submitter: str
    system: str
    benchmark: str


def files_of(path: Path) -> Iterator[TreeFile]:
    """Yield the logs, system descriptions and scaling files below a folder or in a tar archive.

    Raises ValueError for an archive that is damaged, or a file that is no archive.
    """
    if path.is_dir():
        yield from _files_of_folder(path)
    else:
        yield from _files_of_archive(path)


def _files_of_folder(folder: Path) -> Iterator[TreeFile]:
    """Yield the files below a folder, sorted."""
    files: set[Path] = set()
    for pattern in _PATTERNS:
        files.update(folder.rglob(pattern))
    for file in sorted(files):
        yield TreeFile(name=PurePosixPath(file.relative_to(folder)), content=file)


def _files_of_archive(path: Path) -> Iterator[TreeFile]:
    """Yield the files of a tar archive in its order. Raises ValueError for an archive that is damaged or none."""
    with path.open("rb") as stream:
        try:
            unpacked = _unpacked(stream)
            with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as members:
                for member in members:
                    name = PurePosixPath(member.name)
                    if any(name.match(pattern) for pattern in _PATTERNS):
                        yield TreeFile(name=name, content=_held(member, members))
            while unpacked.read(1 << 20):
                pass  # the checksum comes last
        except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            raise ValueError(f"{path}: neither a folder nor a whole tar archive: {printable(str(error))}") from None


def _unpacked(stream: io.BufferedReader) -> io.BufferedIOBase:
    """Return an archive's stream without its compression, by its first bytes.

    tarfile would unpack it too, but passes over a wrong checksum.
    """
    start = stream.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(stream)
    if start.startswith(b"BZh"):
        return bz2.open(stream)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.open(stream)
    return stream


class _Header(tarfile.TarInfo):
    """A member's header, which is an error where it is damaged.

    tarfile itself takes a damaged header that is not the first one for the end of the archive.
    """

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":  # Debian's 3.11.2 calls no frombuf
        """Read the next header. Raises ReadError where it is damaged."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise  # the regular end
            raise tarfile.ReadError(str(error)) from None


def _held(member: tarfile.TarInfo, members: tarfile.TarFile) -> Path | str:
    """Return a log of an archive, held in memory; or why it cannot be read."""
    content = members.extractfile(member) if member.isfile() else None
    if content is None:
        return "no file but a link or folder in the archive"
    if member.size > LARGEST_LOG_BYTES:
        return f"over {LARGEST_LOG_BYTES >> 20} MiB"
    held = HeldLog(member.name)
    held.data = content.read()
    return held


def ruleset_named(root: Path, folder: PurePosixPath) -> str | None:
    """Return the ruleset of the round that the innermost folder (or archive) above SUBMITTER/results names.

    None where no folder names a single round, or where there are no rules of that round.
    """
    version = f"{_round_named(root, folder)}.0"
    return version if version in versions() else None


def has_another_form(root: Path, file: TreeFile) -> bool:
    """Return whether a log is of round v0.5 or v0.6, whose events have a form that this checker does not read.

    The caller asks this of a log in which it found no event. The round is the one that the folders above the file name,
    else the beginning of the file shows it: False for a file that could not be read.
    """
    if _round_named(root, file.name.parent) in _OTHER_FORM_ROUNDS:
        return True
    if isinstance(file.content, HeldLog):
        head = (file.content.data or b"")[:_HEAD_BYTES]
    elif isinstance(file.content, Path):
        with file.content.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    else:
        return False
    return _OTHER_FORM_LINE.search(head) is not None


def owner_of(root: Path, folder: PurePosixPath, organisation: str) -> Owner:
    """Return whose logs lie in `folder` of the audited tree `root`, by the names of the folders above them.

    MLCommons lays out its repositories as ROUND/SUBMITTER/results/SYSTEM/BENCHMARK. The logs in
    `v1.1/Baidu/results/node_A100/resnet` are of round `v1.1`, submitter `Baidu`, system `node_A100` and benchmark
    `resnet`. `root` may be any folder of that layout, so the names above it are read, too. In another layout the
    last name is taken for the benchmark.

    Where the tree begins below SUBMITTER, the folder above it may have any name: the submitter is then the
    `organisation` that the logs state.
    """
    names_above_tree = root.resolve().parts if root.is_dir() else ()
    names = (*names_above_tree, *folder.parts)
    results_at = _last_index(names, "results")
    has_layout = results_at is not None and len(names) - results_at == 3  # results, SYSTEM and BENCHMARK end it
    if results_at is None or not has_layout:
        return Owner(round="", submitter=organisation, system="", benchmark=names[-1] if names else "")

    system, benchmark = names[results_at + 1 :]
    submitter_at = results_at - 1
    root_at = max(len(names_above_tree) - 1, 0)  # an archive has no names above it
    submitter = names[submitter_at] if submitter_at >= root_at else organisation
    round_name = "/".join(names[len(names_above_tree) : max(submitter_at, 0)])
    if not round_name:
        number = _round_named(root, folder)
        round_name = f"v{number}" if number else ""
    return Owner(round=round_name, submitter=submitter, system=system, benchmark=benchmark)


def _round_named(root: Path, folder: PurePosixPath) -> str:
    """Return the round, as `4.0`, that the innermost folder above `results` names; empty where it names several."""
    parts = (*root.resolve().parts, *folder.parts)
    results_at = _last_index(parts, "results")
    above = parts if results_at is None else parts[:results_at]
    for part in reversed(above):
        rounds = set(_ROUND.findall(part))
        if len(rounds) > 1:
            return ""
        if rounds:
            return str(rounds.pop())
    return ""


def _last_index(parts: tuple[str, ...], name: str) -> int | None:
    """Return where a name stands last among the parts of a path; None where it does not."""
    for index in range(len(parts) - 1, -1, -1):
        if parts[index] == name:
            return index
    return None
