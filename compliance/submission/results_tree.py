"""A results repository, as a folder or a tar archive: which files of it an audit reads, and whose they are."""

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from compliance.official.rule_files import versions
from runlog.reader import HeldLog
from runlog.text import printable

LARGEST_LOG_BYTES = 1 << 28  # a log in an archive is held in memory while it is read
LOG = "result_*.txt"
SYSTEM = "systems/*.json"
SCALING = "scaling.json"  # the factor that the review committee set, which result_summarizer applies
_PATTERNS = (LOG, SYSTEM, SCALING)
_PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
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
    """The logs, system descriptions and scaling files below a folder or in a tar archive.

    Raises ValueError for an archive that is damaged or none.
    """
    if path.is_dir():
        found = {file for pattern in _PATTERNS for file in path.rglob(pattern)}
        for file in sorted(found):
            yield TreeFile(name=PurePosixPath(file.relative_to(path)), content=file)
        return
    with path.open("rb") as stream:
        try:
            start = stream.peek(6)
            # not unpacked by tarfile, which passes over a wrong checksum
            unpack = next((opened for magic, opened in _PACKED.items() if start.startswith(magic)), None)
            unpacked = unpack(stream) if unpack else stream
            with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as members:
                for member in members:
                    name = PurePosixPath(member.name)
                    if any(map(name.match, _PATTERNS)):
                        yield TreeFile(name=name, content=_held(member, members))
            while unpacked.read(1 << 20):
                pass  # the checksum comes last
        except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            raise ValueError(f"{path}: neither a folder nor a whole tar archive: {printable(str(error))}") from None


class _Header(tarfile.TarInfo):
    """A damaged header is an error: tarfile takes one that is not the first for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":  # Debian's 3.11.2 calls no frombuf
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise  # the regular end
            raise tarfile.ReadError(str(error)) from None


def _held(member: tarfile.TarInfo, members: tarfile.TarFile) -> Path | str:
    content = members.extractfile(member) if member.isfile() else None
    if content is None:
        return "no file but a link or folder in the archive"
    if member.size > LARGEST_LOG_BYTES:
        return f"over {LARGEST_LOG_BYTES >> 20} MiB"
    held = HeldLog(member.name)
    held.data = content.read()
    return held


def ruleset_named(root: Path, folder: PurePosixPath) -> str | None:
    """The ruleset of the round that the innermost folder (or archive) above SUBMITTER/results names.

    None where no folder names one round, or where the one that is named has no rules.
    """
    version = f"{_round_named(root, folder)}.0"
    return version if version in versions() else None


def has_another_form(root: Path, file: TreeFile) -> bool:
    """Whether a log without a readable event is of v0.5 or v0.6, whose form of events this project does not read."""
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
    """Read who the logs of `folder` belong to off the layout ROUND/SUBMITTER/results/SYSTEM/BENCHMARK.

    `root` may be any folder of that layout, so the names above it count, too. Where the audited tree begins below
    SUBMITTER, the `organisation` that the logs name is the submitter: the folder above may be anybody's.
    """
    above = root.resolve().parts if root.is_dir() else ()
    parts = (*above, *folder.parts)
    at = _last_index(parts, "results")
    if at is None or len(parts) - at != 3:
        return Owner(round="", submitter=organisation, system="", benchmark=parts[-1] if parts else "")
    submitter_at = at - 1
    inside = submitter_at >= len(above) - 1 and submitter_at >= 0
    submitter = parts[submitter_at] if inside else organisation
    round_parts = parts[len(above) : submitter_at]
    if not round_parts and _round_named(root, folder):
        round_parts = (f"v{_round_named(root, folder)}",)
    return Owner(round="/".join(round_parts), submitter=submitter, system=parts[at + 1], benchmark=parts[at + 2])


def _round_named(root: Path, folder: PurePosixPath) -> str:
    parts = (*root.resolve().parts, *folder.parts)
    at = _last_index(parts, "results")
    above = parts if at is None else parts[:at]
    for part in reversed(above):
        rounds = set(_ROUND.findall(part))
        if len(rounds) > 1:
            return ""
        if rounds:
            return str(rounds.pop())
    return ""


def _last_index(parts: tuple[str, ...], name: str) -> int | None:
    for index in range(len(parts) - 1, -1, -1):
        if parts[index] == name:
            return index
    return None
