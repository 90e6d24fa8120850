"""Packs an image folder into MXNet's RecordIO, `train.rec` and `val.rec` with their indices, in the order of its lists.

A record holds the bytes of an image's file, so that training gives the same losses as from the folder. A pack that was
stopped goes on where it was: beside the growing file lies a journal, a line for each record. At the end each record is
read back from the disk as training reads it, and compared with what the file of the source held. The width and height
of the largest image, which a GPU's decoder is told, lie beside in `<part>.sizes.json`; `--sizes` only finds these.
"""

import argparse
import fcntl
import hashlib
import io
import json
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from rich import progress

from harness import records
from paddle_rn50 import data
from runlog.errors import RunError, one_line

PARTS = ("train", "val")
AT_ONCE, READERS = 64, 16  # samples read together, and by how many threads: a network disk answers each late


class Entry(NamedTuple):
    """A record that was written: a line of the journal."""

    offset: int
    crc32: int  # of the source's file
    width: int  # pixels
    height: int


def pack(source: Path, target: Path, part: str) -> str:
    """Packs the list of `part` (train or val), or goes on with it; what came out, for a person.

    Raises ValueError where the source is not whole, the target holds another data set, or its disk is full; RunError
    where the target's disk gave back something else than was written.
    """
    images = data.read_list(source, f"{part}_list.txt", records.MOST_CLASSES)
    listed = hashlib.sha256((source / f"{part}_list.txt").read_bytes()).hexdigest()
    packed, sizes = target / records.RECORDIO.format(part), target / data.SIZES.format(part)
    growing, journal = target / f"{packed.name}.partial", target / f"{packed.name}.journal"
    target.mkdir(parents=True, exist_ok=True)
    with growing.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{growing}: another tools.pack writes it: wait for its end") from error
        if packed.exists():
            growing.unlink(missing_ok=True)  # empty, or its holder has just given it its name
            if _known(sizes).get("list_sha256") != listed:
                raise ValueError(f"{packed}: is there, and not packed from this list: remove it or take another TARGET")
            return f"{packed}: is whole already"
        entries = _resumed(file, journal, listed)
        if entries:
            print(f"{growing}: goes on after {len(entries)} images", flush=True)
        with journal.open("a") as lines, ThreadPoolExecutor(READERS) as readers:
            for ids in _shown(f"pack {part}", len(images), done=len(entries)):
                for record, crc32, size in readers.map(lambda i: _record(images, i), ids):
                    entries.append(Entry(file.tell(), crc32, *size))
                    file.write(record)
                    print(*entries[-1], file=lines)
                file.flush()
                lines.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the check reads the disk
        index = packed.with_suffix(".idx")
        index.write_text("".join(f"{number}\t{entry.offset}\n" for number, entry in enumerate(entries)))
        _check(records.recordio(growing, index), entries, images.labels, part)
        _write_sizes(sizes, [(entry.width, entry.height) for entry in entries], {"list_sha256": listed})
        growing.rename(packed)
        journal.unlink()
    return f"{packed}: {len(entries)} images, {packed.stat().st_size / 2**30:.3f} GiB, each record checked"


def _known(sizes: Path) -> dict[str, Any]:
    """What a file of sizes says, if there is one."""
    try:
        return dict(json.loads(sizes.read_bytes())) if sizes.exists() else {}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{sizes}: is damaged: remove it, then tools.pack --sizes writes it") from error


def _resumed(growing: BinaryIO, journal: Path, listed: str) -> list[Entry]:
    """The records that an earlier pack of the same list has written; what is behind the last whole one is cut off."""
    text = journal.read_text(errors="replace") if journal.exists() else ""
    first, *lines = text[: text.rfind("\n") + 1].splitlines() or [listed]
    if first != listed:
        begun = f"{growing.name}: was begun from another list"
        raise ValueError(f"{begun}: remove it with {journal}, or take another TARGET")
    size = growing.seek(0, os.SEEK_END)
    try:
        entries = [Entry(*map(int, line.split())) for line in lines]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{journal}: is damaged: remove it with {growing.name}, and pack anew") from error
    found = [entry for entry in entries if entry.offset < size]
    end = found.pop().offset if found else 0  # the last one may be cut off, and is written again
    growing.truncate(end)
    growing.seek(end)
    with journal.open("w") as file:
        for line in ([listed], *found):
            print(*line, file=file)
    return found


def _record(images: data.ImageList, number: int) -> tuple[bytes, int, tuple[int, int]]:
    """The record of a sample, the CRC of its file, and its width and height."""
    ((name, path),) = images.named(np.array([number]))
    content = path.read_bytes()
    size = _size(name, io.BytesIO(content))
    try:
        return records.image_record(content, int(images.labels[number]), number), zlib.crc32(content), size
    except ValueError as error:
        raise ValueError(f"{name}: {error}: remove it from the list") from error


def _size(name: str, file: io.BytesIO | Path) -> tuple[int, int]:
    """Width and height in pixels, by the header alone."""
    try:
        with Image.open(file) as opened:
            return opened.size
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name}: is no image: replace the file or remove it from the list") from error


def _check(packed: records.Records, entries: list[Entry], labels: np.ndarray, part: str) -> None:
    """Raises RunError where a record is not what was written."""
    for ids in _shown(f"check {part}", len(packed)):
        images, found = packed.read(ids)
        for i, image, label in zip(ids, images, found, strict=True):
            if zlib.crc32(image.data) != entries[i].crc32 or label != labels[i]:
                raise RunError(f"{packed.name(i)}: is not what was written: remove the file and pack again")


def _write_sizes(file: Path, sizes: list[tuple[int, int]], more: dict[str, str]) -> None:
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    file.write_text(json.dumps({"width": width, "height": height, "images": len(sizes)} | more) + "\n")


def find_sizes(source: Path, part: str) -> str:
    """Reads the header of each image of `part` and writes the largest one's size beside them."""
    file = source / data.SIZES.format(part)
    known, images = _known(file), data.find(source, part, records.MOST_CLASSES)
    sizes: list[tuple[int, int]] = []
    with ThreadPoolExecutor(READERS) as readers:
        for ids in _shown(f"sizes {part}", len(images)):
            sizes += readers.map(lambda found: _size(*found), images.named(ids))
    _write_sizes(file, sizes, known)
    return f"{file}: {file.read_text().strip()}"


def _shown(what: str, total: int, *, done: int = 0) -> Iterator[np.ndarray]:
    """The sample numbers from `done`, some at once, with a bar where there is a terminal."""
    for start in progress.track(range(done, total, AT_ONCE), what, disable=not sys.stdout.isatty()):
        yield np.arange(start, min(start + AT_ONCE, total))


@one_line
def main() -> int:
    """`python -m tools.pack SOURCE TARGET`: packs an image folder with its lists into train.rec and val.rec."""
    parser = argparse.ArgumentParser(prog="python -m tools.pack", description=main.__doc__)
    parser.add_argument("source", type=Path, help="folder with train_list.txt and val_list.txt")
    parser.add_argument("target", type=Path, nargs="?", help="folder for train.rec and val.rec")
    parser.add_argument("--sizes", action="store_true", help="only find the largest images of SOURCE, packed or not")
    args = parser.parse_args()
    if (args.target is None) != args.sizes:
        parser.error("give SOURCE and TARGET, or --sizes and SOURCE")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a path need not be UTF-8
    try:
        absent = [part for part in PARTS if args.target and not (args.source / f"{part}_list.txt").is_file()]
        for part in absent or PARTS:  # what is absent is said before hours of packing the other
            print(find_sizes(args.source, part) if args.sizes else pack(args.source, args.target, part), flush=True)
    except OSError as error:
        where = error.filename or args.target or args.source
        raise RunError(f"{where}: {error.strerror}: mend that and start the same command again") from error
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
