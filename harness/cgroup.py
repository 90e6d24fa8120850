"""Reads what this process may use by its cgroups, as docker --memory and --cpus, Kubernetes and Slurm limit them.

A process has the limits of its own cgroup and of all above it. Both versions of cgroups are read. A file that is not
there or cannot be read sets no limit that is known.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED_BYTES = 2**62  # from this limit on, version 1 means that there is none


class MemoryFiles(NamedTuple):
    """The names by which a version of cgroups tells of memory."""

    limit: str  # file: the most bytes
    used: str  # file: the bytes in use
    cached: tuple[str, ...]  # rows of the file memory.stat: the bytes of files in memory, which Linux takes back


MEMORY_FILES = (
    MemoryFiles("memory.max", "memory.current", ("active_file", "inactive_file")),
    MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def free_memory_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return how many bytes this process may still take by the limits of its cgroups; None if no limit is known.

    Memory of cached files counts as free. Of several limits the tightest counts.

    Args:
        root: The folder where the cgroups are mounted.
        membership: The file that names this process's cgroups.
    """
    free: list[int] = []
    for folder in _folders("memory", root, membership):
        for files in MEMORY_FILES:
            limit = _number(folder / files.limit)
            used = _number(folder / files.used)
            if limit is not None and used is not None and limit < UNLIMITED_BYTES:
                cached = _cached_bytes(folder, files.cached)  # are in use, but Linux takes them back
                free.append(max(0, limit - used + cached))
    return min(free, default=None)


def cpus(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Return how many CPUs' worth of time this process may use by its cgroups; None if no limit is known.

    1.5 means 1.5 s of CPU time a second, on whichever cores. If several cgroups have a limit, the lowest counts.

    Args:
        root: The folder where the cgroups are mounted.
        membership: The file that names this process's cgroups.
    """
    limits: list[float] = []
    for folder in _folders("cpu", root, membership):
        # Version 2 of cgroups has a quota and a period in one file, version 1 in two files. A folder has the files of
        # one version, so at least one of the two lists is empty.
        words_of_version_2 = _text(folder / "cpu.max").split()  # ["150000", "100000"]; no limit: ["max", "100000"]
        words_of_version_1 = _texts_of_version_1(folder)  # ["150000", "100000"]; no limit: ["-1", "100000"]
        words = [*words_of_version_2, *words_of_version_1]
        sets_a_limit = len(words) == 2 and all(_is_above_0(word) for word in words)
        if sets_a_limit:
            quota, period = words
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _is_above_0(word: str) -> bool:
    """Return whether a word of a cgroup's file is a whole number above 0; "max" and "-1" stand for no limit."""
    return word.isascii() and word.isdecimal() and int(word) > 0


def _texts_of_version_1(folder: Path) -> list[str]:
    """Return the texts of the two files by which version 1 of cgroups limits CPU time: quota and period.

    Args:
        folder: Folder of a cgroup. A file that is missing or empty is left out of the result.
    """
    texts = (_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
    return [text for text in texts if text]


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups that may limit this process: its own cgroup, and all cgroups above it.

    Args:
        controller: The limited resource, "memory" or "cpu".
        root: The folder where the cgroups are mounted (ROOT).
        membership: The file that names the cgroups of this process, /proc/self/cgroup. A line has three fields with
            colons between: a number, names of controllers (none in version 2), and the path of a cgroup.

    Yields:
        Paths, which need not exist, such as ROOT/docker/1f, ROOT/docker and ROOT.
    """
    for line in _text(membership).splitlines():  # no line if the file cannot be read
        # Not by split(":"), because the path, the last field, may have colons, too.
        _number_of_hierarchy, _, names_and_path = line.partition(":")  # "4" and "cpu,cpuacct:/docker/1f"
        names, _, path = names_and_path.partition(":")  # "cpu,cpuacct" and "/docker/1f"
        is_version_2 = names == ""  # as "0::/docker/1f": the cgroup is of all controllers
        if is_version_2:
            mount = root
        elif controller in names.split(","):  # version 1, such as "4:cpu,cpuacct:/docker/1f"
            mount = root / controller  # ROOT/cpu, which may be a link to ROOT/cpu,cpuacct
        else:
            continue  # version 1, and a cgroup of other controllers
        # The path "/" gives `mount` alone.
        yield from _folders_up(mount, PurePosixPath(path.lstrip("/")))


def _folders_up(mount: Path, path: PurePosixPath) -> Iterator[Path]:
    """Yield the folder of a cgroup, and the folders above it up to the one where the cgroups are mounted.

    For example, `mount` ROOT and `path` docker/1f give ROOT/docker/1f, ROOT/docker and ROOT. The folders need not
    exist: in a container, `path` may be a path on the host. ROOT is then the folder of the container's own cgroup.

    Args:
        mount: The folder where the cgroups are mounted.
        path: The path of the cgroup, relative to `mount`. If a part of the path is "..", only `mount` is yielded.
    """
    leads_out_of_mount = ".." in path.parts
    if leads_out_of_mount:
        yield mount
        return
    for up in (path, *path.parents):  # the last is ".", so that `mount` itself is yielded last
        yield mount / up


def _cached_bytes(folder: Path, rows: tuple[str, ...]) -> int:
    """Return the sum of some rows of a cgroup's file memory.stat, in bytes; 0 if the file cannot be read.

    Args:
        folder: Folder of the cgroup.
        rows: Names of the rows to add up, such as "inactive_file".
    """
    total = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in rows:
            total += int(value)
    return total


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it has another text, such as "max", or cannot be read."""
    text = _text(file)
    return int(text) if text.isascii() and text.isdecimal() else None


def _text(file: Path) -> str:
    """Return the text of a file without the spaces around it; empty if the file cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""
