"""Packs an image folder into MXNet's RecordIO, `train.rec` and `val.rec` with their indices, in the order of its lists.

Each file is decoded once by training's decoder. A record holds its bytes, so that training gives the same losses as
from the folder. A pack that was stopped goes on where it was: beside the growing file lies a journal, a line for each
record. At the end each record is read back from the disk as training reads it, and compared with what the file of the
source held. The width and height of the largest image, which a GPU's decoder is told, lie beside in
`<part>.sizes.json`; `--sizes` only finds these.
"""

import argparse
import fcntl
import hashlib
import io
import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from rich import progress

from harness import encoded, passport
from harness.decoder import Decoder
from harness.lists import Folders
from harness.lists import lines as list_lines
from paddle_rn50 import data, folder, recordio, tfrecord
from paddle_rn50.records import Records
from program.arrays import Array
from runlog import named_files
from runlog.completion import complete
from runlog.errors import RunError, one_line
from runlog.json_types import JsonObject
from runlog.schema import as_json

DESCRIPTION = "`python -m tools.pack SOURCE TARGET`: packs an image folder into train.rec and val.rec."
PARTS = ("train", "val")
NEWLINE = b"\n"
AT_ONCE, READERS = 64, 16  # samples read together, and by how many threads: a network disk answers each late


class Entry(NamedTuple):
    """A record that was written: a line of the journal."""

    offset: int
    crc32: int  # of the source's file
    width: int  # pixels
    height: int


def pack(source: Path, target: Path, part: str) -> str:
    """Pack the images of `part`, train or val, or go on where an earlier pack was stopped; return what came of it.

    That is a line of text. A pack that is complete already, of the same list, is left as it is. Raises ValueError if
    the list is wrong, an image is damaged, another pack is at work, or the target holds another data set; RunError
    if the target's disk gave back something else than was written.
    """
    images = folder.find(source, part, recordio.MOST_CLASSES)
    _warn(images.passed_over)
    list_sha256 = _list_sha256(source, images)
    packed = target / recordio.FILE.format(part)
    sizes = target / data.SIZES.format(part)
    growing = target / f"{packed.name}.partial"
    journal = target / f"{packed.name}.journal"
    target.mkdir(parents=True, exist_ok=True)
    with growing.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{growing}: another tools.pack writes it: wait for its end") from error
        if packed.exists():
            # Opening it has made an empty file, or another pack held it until now, and has just renamed it to `packed`.
            growing.unlink(missing_ok=True)
            if _read_sizes(sizes).get("list_sha256") != list_sha256:
                raise ValueError(f"{packed}: is there, and not packed from this list: remove it or take another TARGET")
            return f"{packed}: is whole already"
        entries = _resume(file, journal, list_sha256)
        if entries:
            print(f"{growing}: goes on after {len(entries)} images", flush=True)
        with journal.open("a") as lines, ThreadPoolExecutor(READERS) as readers:
            for ids in _shown(f"pack {part}", len(images), done=len(entries)):
                for made in readers.map(lambda i: _record(images, int(i)), ids):
                    entries.append(Entry(file.tell(), made.crc32, *made.size))
                    file.write(made.record)
                    print(*entries[-1], file=lines)
                file.flush()
                lines.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the check reads the disk
        index = packed.with_suffix(".idx")
        index.write_text("".join(f"{number}\t{entry.offset}\n" for number, entry in enumerate(entries)))
        _check(recordio.find(growing, index), entries, images.labels, part)
        source_passport = passport.passport(images.contents(lambda done, total: None))
        more = {"list_sha256": list_sha256, "source": as_json(source_passport)}
        _write_sizes(sizes, [(entry.width, entry.height) for entry in entries], more)
        growing.rename(packed)
        journal.unlink()
    return f"{packed}: {len(entries)} images, {packed.stat().st_size / 2**30:.3f} GiB, each record checked"


def _warn(note: str) -> None:
    """Print a note on the data set, if there is one."""
    if note:
        print(f"warning: {note}", file=sys.stderr, flush=True)


def _list_sha256(source: Path, images: folder.ImageList) -> str:
    """Return the SHA-256 of a part's list, or if it has no list of the one that its class folders make."""
    list_file = source / folder.LIST.format(images.part)
    if list_file.is_file():
        return hashlib.sha256(list_file.read_bytes()).hexdigest()
    return hashlib.sha256(folder.list_text(images)).hexdigest()


def _read_sizes(sizes: Path) -> JsonObject:
    """Return the content of a file of sizes, `<part>.sizes.json`; an empty dict if there is no file.

    Raises ValueError if the file is damaged.
    """
    if not sizes.exists():
        return {}
    try:
        return dict(json.loads(sizes.read_bytes()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{sizes}: is damaged: remove it, then tools.pack --sizes writes it") from error


def _resume(growing: BinaryIO, journal: Path, list_sha256: str) -> list[Entry]:
    """Return the records of an earlier pack that can be kept, and cut off all behind them; none if nothing is kept.

    `growing` is the file of records, and is left at its end, so that the next record follows. The journal is written
    anew: in its first line the SHA-256 of the list that is packed, which must be `list_sha256`, and then a line for
    each kept record. The earlier pack may have been stopped within a line or a record. So a line that is cut off does
    not count, and neither does the last record that has begun in the file.

    Raises ValueError if the file was begun from another list, or the journal is damaged.
    """
    first_line, *lines = _ended_lines(journal) or [list_sha256]  # without a journal nothing can be kept
    if first_line != list_sha256:
        begun = f"{growing.name}: was begun from another list"
        raise ValueError(f"{begun}: remove it with {journal}, or take another TARGET")
    try:
        entries = [Entry(*map(int, line.split())) for line in lines]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{journal}: is damaged: remove it with {growing.name}, and pack anew") from error

    size = growing.seek(0, os.SEEK_END)
    kept = [entry for entry in entries if entry.offset < size]
    end_of_kept = 0
    if kept:
        last_begun = kept.pop()  # whose end may be missing
        end_of_kept = last_begun.offset
    growing.truncate(end_of_kept)
    growing.seek(end_of_kept)
    with journal.open("w") as file:
        print(list_sha256, file=file)
        for entry in kept:
            print(*entry, file=file)
    return kept


def _ended_lines(file: Path) -> list[str]:
    """Return the lines of a file that end with a newline; none if there is no file."""
    text = file.read_text(errors="replace") if file.exists() else ""
    end = text.rfind("\n") + 1
    return text[:end].splitlines()


class Made(NamedTuple):
    """A record that is made of a file."""

    record: bytes
    crc32: int  # of the file
    size: folder.Size


# A decoder for each thread: DALI's pipelines take one input at a time.
_DECODERS = threading.local()


def _record(images: folder.ImageList, number: int) -> Made:
    """Make the record of the sample `number` of a list, after training's decoder has decoded its file.

    Returns the record with the file's CRC-32 and the image's width and height. Raises ValueError if the file is cut
    off, cannot be decoded, or has a label that a record cannot hold.
    """
    ((name, content),) = images.encoded(number)  # a sample of a classification has one file
    if not hasattr(_DECODERS, "decoder"):
        _DECODERS.decoder = Decoder("cpu", None)
    fault = encoded.fault(content) or _DECODERS.decoder.fault(content)
    if fault:
        raise ValueError(f"{name}: cannot be decoded ({fault}): replace the file or remove it from the list")
    try:
        record = recordio.image_record(content, int(images.labels[number]), number)
    except ValueError as error:
        raise ValueError(f"{name}: {error}: remove it from the list") from error
    return Made(record, zlib.crc32(content), _size(name, content))


def _size(name: str, content: bytes) -> folder.Size:
    """Return width and height of an image in pixels, by its header. Raises ValueError if the file is no image."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            size: folder.Size = opened.size
            return size
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name}: is no image: replace the file or remove it from the list") from error


def _size_of_sample(images: folder.ImageList | Records, number: int) -> folder.Size:
    """Return width and height of a list's image in pixels. Raises ValueError if its file is no image."""
    ((name, content),) = images.encoded(number)
    return _size(name, content)


def _check(packed: Records, entries: list[Entry], labels: Array, part: str) -> None:
    """Read each record back from the disk. Raises RunError if one is not what was written."""
    for ids in _shown(f"check {part}", len(packed)):
        images, found = packed.read(ids)
        for i, image, label in zip(ids, images, found, strict=True):
            if zlib.crc32(image) != entries[i].crc32 or label != labels[i]:
                raise RunError(f"{packed.name(i)}: is not what was written: remove the file and pack again")


def _write_sizes(file: Path, sizes: list[tuple[int, int]], more: JsonObject) -> None:
    """Write a file of sizes: width and height of the image with the most pixels, the number of images, and `more`.

    If `more` has a width, height or number of images too, as an earlier file of sizes has, `sizes` decide.
    """
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    file.write_text(json.dumps(more | {"width": width, "height": height, "images": len(sizes)}) + "\n")


def find_sizes(source: Path, part: str) -> str:
    """Read the header of each image of a part, and write the largest one's size to `<part>.sizes.json` in `source`.

    An earlier file there is replaced. What else it said is kept, such as the list of which `pack` made the records.
    Returns the name of the file and its content as text. Raises ValueError if the earlier file is damaged, the
    part's images cannot be found, or one of them is no image.
    """
    file = source / data.SIZES.format(part)
    earlier_content = _read_sizes(file)  # first, as reading all images takes long
    images = data.find(source, part, recordio.MOST_CLASSES)
    sizes: list[tuple[int, int]] = []
    with ThreadPoolExecutor(READERS) as readers:
        for ids in _shown(f"sizes {part}", len(images)):
            sizes += readers.map(lambda number: _size_of_sample(images, int(number)), ids)
    _write_sizes(file, sizes, earlier_content)
    return f"{file}: {file.read_text().strip()}"


def _shown(what: str, total: int, *, done: int = 0) -> Iterator[Array]:
    """Yield the sample numbers from `done` on, AT_ONCE at a time, with a progress bar if there is a terminal."""
    for start in progress.track(range(done, total, AT_ONCE), what, disable=not sys.stdout.isatty()):
        yield np.arange(start, min(start + AT_ONCE, total))


def write_lists(source: Path, labels: Path | None) -> list[str]:
    """Write train_list.txt and val_list.txt of a folder whose images lie in class folders, as train/n01440764/x.JPEG.

    ImageNet's val/ holds its images without class folders: then `labels` is a file of lines `name label`. It is None
    if val/ has class folders too. Both lists are made before one is written, so a fault leaves none. Returns a line
    of text for each list: its file and the number of its images. Raises ValueError if a list is there already, if
    a folder that should have class folders has none, or if an image has no label.
    """
    contents: dict[str, bytes] = {}
    for part in PARTS:
        list_file = source / folder.LIST.format(part)
        if list_file.exists():
            raise ValueError(f"{list_file}: is there: remove it to write it anew from the class folders")
        if part == "val" and labels is not None:
            contents[part] = _flat_list(source / part, labels)
        else:
            images = folder.by_class_folders(source, part, recordio.MOST_CLASSES)
            _warn(images.passed_over)
            contents[part] = folder.list_text(images)

    written = []
    for part, text in contents.items():
        list_file = source / folder.LIST.format(part)
        list_file.write_bytes(text)
        written.append(f"{list_file}: {text.count(NEWLINE)} images")
    return written


def _flat_list(images: Path, labels: Path) -> bytes:
    """Return the text of a list of the images in one folder, by a file `labels` of lines `name label`.

    Of the folder val the line "x.JPEG 7" becomes "val/x.JPEG 7"; so does "anything/x.JPEG 7". Raises ValueError if
    the file is not there, or a line has no label or names no file of the folder.
    """
    if not labels.is_file():
        raise ValueError(f"{labels}: no such file: give lines 'name label' of the images in {images}")
    folders = Folders(images)
    lines = []
    for where, text in list_lines(labels):
        line = folder.LINE.fullmatch(text)
        if line is None:
            raise ValueError(f"{where}: {text!r} has no label: write 'name label', the label a number from 0")
        _, _, name = line["path"].rpartition("/")
        fault = folders.fault(name)
        if fault:
            raise ValueError(f"{where}: {images / name} {fault}: restore it or remove the line")
        lines.append(f"{images.name}/{name} {int(line['label'])}\n")
    return os.fsencode("".join(lines))


@one_line
def main() -> int:
    """Pack an image folder, or with --sizes or --lists do only that part of it; one of the three must be asked for.

    Returns the exit status: 0, or that of an interrupt by Ctrl-C, after which the same command goes on. Raises
    ValueError for a folder that cannot be packed, and RunError if the system refuses to read or write a file.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.pack", description=DESCRIPTION)
    parser.add_argument("source", type=Path, help="folder with train_list.txt and val_list.txt, or class folders")
    parser.add_argument("target", type=Path, nargs="?", help="folder for train.rec and val.rec")
    parser.add_argument("--sizes", action="store_true", help="only find the largest images of SOURCE, packed or not")
    parser.add_argument("--lists", action="store_true", help="only write the lists of SOURCE from its class folders")
    parser.add_argument("--labels", type=Path, help="with --lists: lines 'name label' of the images in a flat val/")
    complete(parser)
    args = parser.parse_args()
    named_files.check_options(args)
    asked_for = [args.target is not None, args.sizes, args.lists]
    if asked_for.count(True) != 1 or (args.labels and not args.lists):
        parser.error("give SOURCE and TARGET, or --sizes and SOURCE, or --lists and SOURCE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be UTF-8
    try:
        _run(args)
    except OSError as error:
        where = error.filename or args.target or args.source
        raise RunError(f"{where}: {error.strerror}: mend that and start the same command again") from error
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def _run(args: argparse.Namespace) -> None:
    """Do what the command line asks, and print what came out."""
    if args.lists:
        for line in write_lists(args.source, args.labels):
            print(line)
        return
    if args.target:  # what is absent is said before hours of packing the other part
        for part in PARTS:
            _require_files(args.source, part)
    for part in PARTS:
        print(find_sizes(args.source, part) if args.sizes else pack(args.source, args.target, part), flush=True)


def _require_files(source: Path, part: str) -> None:
    """Raise ValueError if a part has no image files, wrong lists, or is packed already."""
    has_files = (source / folder.LIST.format(part)).is_file() or (source / part).is_dir()
    packed = [source / recordio.FILE.format(part), *tfrecord.files_of(source, part)]
    if not has_files and packed[-1].is_file():
        raise ValueError(f"{packed[-1]}: {source} is packed already: DATADIR takes it as it is")
    folder.find(source, part, recordio.MOST_CLASSES)


if __name__ == "__main__":
    sys.exit(main())
