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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from rich import progress

from harness import passport
from harness.decoder import Decoder
from harness.encoded import fault as fault_of_file
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
    """Pack the images of `part`, train or val, into `target`. Returns a line of text that says what was done.

    If an earlier pack was stopped, this one continues it from its journal. If the part is packed already, only its list
    is compared.

    Raises ValueError if the list, an image or the target is wrong, and RunError if the disk returns wrong bytes.
    """
    images = folder.find(source, part, recordio.MOST_CLASSES)
    _print_warning(images.passed_over)
    list_sha256 = _list_sha256(source, images)
    packed = target / recordio.FILE.format(part)
    sizes = target / data.SIZES.format(part)
    growing = target / f"{packed.name}.partial"
    journal = target / f"{packed.name}.journal"
    target.mkdir(parents=True, exist_ok=True)
    with growing.open("ab") as file:
        _lock(file)
        if packed.exists():
            # open() has just created `growing` as an empty file, which is removed. But there is no such file if another
            # pack has renamed `growing` to `packed` after this pack opened it.
            growing.unlink(missing_ok=True)
            if _read_sizes(sizes).get("list_sha256") != list_sha256:
                raise ValueError(f"{packed}: is there, and not packed from this list: remove it or take another TARGET")
            return f"{packed}: is whole already"
        entries = _resume(file, journal, list_sha256)
        if entries:
            print(f"{growing}: goes on after {len(entries)} images", flush=True)
        _append_records(file, journal, images, entries)
        index = packed.with_suffix(".idx")
        index.write_text("".join(f"{number}\t{entry.offset}\n" for number, entry in enumerate(entries)))
        _check_written(recordio.find(growing, index), entries, images.labels, part)
        _write_sizes_of_pack(sizes, images, entries, list_sha256)
        growing.rename(packed)
        journal.unlink()
    return f"{packed}: {len(entries)} images, {packed.stat().st_size / 2**30:.3f} GiB, each record checked"


def _lock(file: BinaryIO) -> None:
    """Lock a file of records until it is closed. Raises ValueError if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"{file.name}: another tools.pack writes it: wait for its end") from error


def _append_records(file: BinaryIO, journal: Path, images: folder.ImageList, entries: list[Entry]) -> None:
    """Append the records that are missing to the file, and their entries to the journal and to `entries`.

    `entries` has the records that the file holds already. Afterwards the file lies on the disk.
    """
    with journal.open("a") as lines, ThreadPoolExecutor(READERS) as readers:
        for ids in _batches_with_progress(f"pack {images.part}", len(images), done=len(entries)):
            for made in readers.map(lambda i: _checked_record(images, int(i)), ids):
                entries.append(Entry(file.tell(), made.crc32, *made.size))
                file.write(made.record)
                print(*entries[-1], file=lines)
            file.flush()
            lines.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the check reads the disk


def _write_sizes_of_pack(sizes: Path, images: folder.ImageList, entries: list[Entry], list_sha256: str) -> None:
    """Write the file of sizes of a part that was packed, with the list and the files that it was packed from."""
    source_passport = passport.passport(images.contents(lambda done, total: None))
    more = {"list_sha256": list_sha256, "source": as_json(source_passport)}
    _write_sizes(sizes, [(entry.width, entry.height) for entry in entries], more)


def _print_warning(note: str) -> None:
    """Print a warning about the data set on stderr; nothing if the note is empty."""
    if note:
        print(f"warning: {note}", file=sys.stderr, flush=True)


def _list_sha256(source: Path, images: folder.ImageList) -> str:
    """Return the SHA-256 of a part's list file; without a file that of the list that its class folders make."""
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
    """Recover the records of a pack that was stopped, and return the entries of the records that are kept.

    The last record that was begun may be incomplete, so it is dropped. All records before it are kept. The file of
    records, `growing`, is cut off after the kept ones and left at that position. The journal is written anew, with the
    kept entries only.

    Raises ValueError if the pack was begun from another list than `list_sha256`, or the journal is damaged.
    """
    entries = _journal_entries(growing, journal, list_sha256)
    size = growing.seek(0, os.SEEK_END)
    # The records that were begun: they begin in the file, but the last one may not end in it.
    kept = [entry for entry in entries if entry.offset < size]
    end_of_kept = 0
    if kept:
        last_begun = kept.pop()
        end_of_kept = last_begun.offset
    growing.truncate(end_of_kept)
    growing.seek(end_of_kept)
    with journal.open("w") as file:
        print(list_sha256, file=file)
        for entry in kept:
            print(*entry, file=file)
    return kept


def _journal_entries(growing: BinaryIO, journal: Path, list_sha256: str) -> list[Entry]:
    """Return the entries of a pack's journal; an empty list if there is no journal.

    The first line of the journal is the SHA-256 of the list of samples that is packed. Each further line is the entry
    of one packed record. A last line that is cut off does not count.

    `growing` is the unfinished file of records that the journal belongs to. Only messages use it. Raises ValueError if
    the journal's SHA-256 is not `list_sha256`, or if a line is damaged.
    """
    journal_lines = _complete_lines(journal)
    if not journal_lines:
        return []
    journal_sha256, *entry_lines = journal_lines
    if journal_sha256 != list_sha256:
        begun = f"{growing.name}: was begun from another list"
        raise ValueError(f"{begun}: remove it with {journal}, or take another TARGET")
    try:
        return [Entry(*map(int, line.split())) for line in entry_lines]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{journal}: is damaged: remove it with {growing.name}, and pack anew") from error


def _complete_lines(file: Path) -> list[str]:
    """Return the lines of a file that end with a newline; an empty list if there is no file."""
    text = file.read_text(errors="replace") if file.exists() else ""
    end = text.rfind("\n") + 1
    return text[:end].splitlines()


class PackedImage(NamedTuple):
    """The record that is made of an image file, and what is known of the file."""

    record: bytes
    crc32: int  # of the file
    size: folder.Size


# Each thread makes its own decoder on first use: DALI's pipelines take one input at a time.
_OF_THIS_THREAD = threading.local()


def _decoder_of_this_thread() -> Decoder:
    """Return this thread's decoder, the one that training uses. It is made at the thread's first call."""
    if not hasattr(_OF_THIS_THREAD, "decoder"):
        _OF_THIS_THREAD.decoder = Decoder("cpu", None)
    decoder: Decoder = _OF_THIS_THREAD.decoder
    return decoder


def _checked_record(images: folder.ImageList, number: int) -> PackedImage:
    """Return the record of the sample `number` of a list, with the CRC-32 and the image size of the sample's file.

    The file is checked first: it must be whole, and training's decoder must decode it.

    Raises ValueError, with the file's name, if the file fails a check or its label does not fit into a record.
    """
    [(name, content)] = images.encoded(number)  # a sample of a classification data set is one file
    fault = fault_of_file(content) or _decoder_of_this_thread().fault(content)  # empty: there is none
    if fault:
        raise ValueError(f"{name}: cannot be decoded ({fault}): replace the file or remove it from the list")
    try:
        record = recordio.image_record(content, int(images.labels[number]), number)
    except ValueError as error:
        raise ValueError(f"{name}: {error}: remove it from the list") from error
    return PackedImage(record, zlib.crc32(content), _size(name, content))


def _size(name: str, content: bytes) -> folder.Size:
    """Return the width and height of an image in pixels, by its header. Raises ValueError if it is not an image."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            size: folder.Size = opened.size
            return size
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name}: is no image: replace the file or remove it from the list") from error


def _size_of_sample(images: folder.ImageList | Records, number: int) -> folder.Size:
    """Return the width and height of the sample `number` in pixels. Raises ValueError if its file is not an image."""
    [(name, content)] = images.encoded(number)
    return _size(name, content)


def _check_written(packed: Records, entries: list[Entry], labels: Array, part: str) -> None:
    """Read each record back from the disk. Raises RunError if an image or a label is not what was to be written."""
    for ids in _batches_with_progress(f"check {part}", len(packed)):
        read_images, read_labels = packed.read(ids)
        for i, image, label in zip(ids, read_images, read_labels, strict=True):
            if zlib.crc32(image) != entries[i].crc32 or label != labels[i]:
                raise RunError(f"{packed.name(i)}: is not what was written: remove the file and pack again")


def _pixels(size: folder.Size) -> int:
    """Return the number of pixels of an image of this width and height."""
    width, height = size
    return width * height


def _write_sizes(file: Path, sizes: Sequence[folder.Size], more: JsonObject) -> None:
    """Write a file of sizes: `more`, the width and height of the largest image, and the number of images.

    `more` may be the content of an earlier file of sizes. Its own width, height and number of images are replaced.
    """
    width, height = max(sizes, key=_pixels)
    content = more | {"width": width, "height": height, "images": len(sizes)}
    file.write_text(json.dumps(content) + "\n")


def find_sizes(source: Path, part: str) -> str:
    """Find the image of a part with the most pixels, and write its size to `<part>.sizes.json` in `source`.

    Only the images' headers are decoded. If the file exists already, its other entries are kept, such as the SHA-256 of
    the list that `pack` wrote. Returns the file's name and content as text.

    Raises ValueError if the existing file is damaged, the images cannot be found, or one of them is not an image.
    """
    file = source / data.SIZES.format(part)
    earlier_content = _read_sizes(file)  # first, so that a damaged file is reported before all images are read
    images = data.find(source, part, recordio.MOST_CLASSES)  # any label that a record can hold is accepted
    sizes: list[folder.Size] = []
    with ThreadPoolExecutor(READERS) as readers:
        for ids in _batches_with_progress(f"sizes {part}", len(images)):
            sizes += readers.map(lambda number: _size_of_sample(images, int(number)), ids)
    _write_sizes(file, sizes, earlier_content)
    return f"{file}: {file.read_text().strip()}"


def _batches_with_progress(what: str, total: int, *, done: int = 0) -> Iterator[Array]:
    """Yield the sample numbers from `done` to total - 1 in batches of AT_ONCE. A terminal shows a progress bar."""
    for start in progress.track(range(done, total, AT_ONCE), what, disable=not sys.stdout.isatty()):
        yield np.arange(start, min(start + AT_ONCE, total))


def write_lists(source: Path, labels: Path | None) -> list[str]:
    """Write train_list.txt and val_list.txt of a folder whose images lie in class folders, as train/n01440764/x.JPEG.

    `labels` is for a val/ without class folders, as ImageNet's: a file of lines `name label`. None means that val/ has
    class folders, too. Returns a line of text for each list: its file and the number of its images.

    Raises ValueError if a list exists already, a folder has no class folders, or an image has no label. Then no list is
    written.
    """
    # Both lists are made before the first is written, so that an error leaves none behind.
    contents: dict[str, bytes] = {}
    for part in PARTS:
        list_file = source / folder.LIST.format(part)
        if list_file.exists():
            raise ValueError(f"{list_file}: is there: remove it to write it anew from the class folders")
        if part == "val" and labels is not None:
            contents[part] = _flat_list(source / part, labels)
        else:
            images = folder.by_class_folders(source, part, recordio.MOST_CLASSES)
            _print_warning(images.passed_over)
            contents[part] = folder.list_text(images)

    written = []
    for part, text in contents.items():
        list_file = source / folder.LIST.format(part)
        list_file.write_bytes(text)
        written.append(f"{list_file}: {text.count(NEWLINE)} images")
    return written


def _flat_list(image_folder: Path, labels: Path) -> bytes:
    """Return the text of a list of the images in one folder, from a file `labels` with lines `name label`.

    For the folder val: "x.JPEG 7" -> "val/x.JPEG 7", and "anything/x.JPEG 7" -> "val/x.JPEG 7".

    Raises ValueError if there is no file `labels`, a line has no label, or a line names no file of the folder.
    """
    if not labels.is_file():
        raise ValueError(f"{labels}: no such file: give lines 'name label' of the images in {image_folder}")
    existing_files = Folders(image_folder)
    lines = []
    for where, text in list_lines(labels):
        parts = folder.LINE.fullmatch(text)
        if parts is None:
            raise ValueError(f"{where}: {text!r} has no label: write 'name label', the label a number from 0")
        _, _, name = parts["path"].rpartition("/")
        fault = existing_files.fault(name)
        if fault:
            raise ValueError(f"{where}: {image_folder / name} {fault}: restore it or remove the line")
        lines.append(f"{image_folder.name}/{name} {int(parts['label'])}\n")
    return os.fsencode("".join(lines))


@one_line
def main() -> int:
    """Do one of three things with an image folder: pack it, find its largest images (--sizes), or list it (--lists).

    Exactly one of TARGET, --sizes and --lists must be given. Returns the exit status: 0, or 130 after Ctrl-C. The same
    command then goes on from there.

    Raises ValueError if the folder cannot be packed, and RunError if the system refuses to read or write a file.
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
    """Do for both parts, train and val, what the command line asks. Print a line of text for each part.

    - --lists: their lists are written.
    - --sizes: the sizes of their largest images are found.
    - TARGET: they are packed. `main` has checked that exactly one of the three is given.
    """
    if args.lists:
        for line in write_lists(args.source, args.labels):
            print(line)
    elif args.sizes:
        for part in PARTS:
            print(find_sizes(args.source, part), flush=True)
    else:
        for part in PARTS:  # before any packing, so that a fault of val is not found only after hours of packing train
            _require_files(args.source, part)
        for part in PARTS:
            print(pack(args.source, args.target, part), flush=True)


def _require_files(source: Path, part: str) -> None:
    """Raise ValueError if a part has no image files or a wrong list, or has only packed records."""
    has_files = (source / folder.LIST.format(part)).is_file() or (source / part).is_dir()
    record_files = tfrecord.files_of(source, part) or (source / recordio.FILE.format(part),)
    last_file = record_files[-1]
    if not has_files and last_file.is_file():
        raise ValueError(f"{last_file}: {source} is packed already: DATADIR takes it as it is")
    folder.find(source, part, recordio.MOST_CLASSES)


if __name__ == "__main__":
    sys.exit(main())
