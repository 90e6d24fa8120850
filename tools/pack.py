"""Packs an image folder into MXNet's RecordIO, `train.rec` and `val.rec` with their indices, in the order of its lists.

Each file is decoded once by training's decoder. A record holds its bytes, so that training gives the same losses as
from the folder. A pack that was stopped goes on where it was: next to the growing file lies a journal, a line for each
record. At the end each record is read back from the disk as training reads it, and compared with what the file of the
source held. The width and height of the largest image, which a GPU's decoder is told, lie next to it in
`<part>.sizes.json`; `--sizes` only finds these.
"""

import argparse
import fcntl
import hashlib
import io
import os
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from harness import passport
from harness.decoder import Decoder
from harness.encoded import fault as fault_of_file
from harness.encoded import is_cmyk_without_mark
from paddle_rn50 import data, folder, recordio, tfrecord
from paddle_rn50.records import Records
from program.arrays import Array
from runlog import named_files
from runlog.completion import complete
from runlog.digits import counted
from runlog.errors import INTERRUPTED_STATUS, RunError, one_line, print_to_reader
from runlog.options import Parser, refuse_empty_words
from runlog.schema import as_json
from tools.pack_lists import PARTS, print_warning, write_lists
from tools.pack_sizes import READERS, batches_with_progress, find_sizes, read_sizes, size_of, write_sizes

DESCRIPTION = "`python -m tools.pack SOURCE TARGET`: packs an image folder into train.rec and val.rec."


class Entry(NamedTuple):
    """A record that was written: a line of the journal."""

    offset: int
    crc32: int  # of the source's file
    width: int  # pixels
    height: int


@dataclass(frozen=True, kw_only=True)
class PackFiles:
    """The files of a packed part, train or val."""

    packed: Path  # the records, once all are written and checked
    index: Path  # where each record begins
    sizes: Path  # the largest image's size, and what the part was packed from
    growing: Path  # the records so far
    journal: Path  # an entry for each record in `growing`, by which a pack that was stopped is continued

    @classmethod
    def of_part(cls, target: Path, part: str) -> "PackFiles":
        """Return the files of one part of a packed data set; none of them need exist.

        Args:
            target: Folder of the packed data set.
            part: "train" or "val".
        """
        packed = target / recordio.FILE.format(part)
        return cls(
            packed=packed,
            index=packed.with_suffix(".idx"),
            sizes=target / data.SIZES.format(part),
            growing=target / f"{packed.name}.partial",
            journal=target / f"{packed.name}.journal",
        )


def pack(source: Path, target: Path, part: str) -> str:
    """Pack the images of one part of a data set into a RecordIO file. Return a line of text that says what was done.

    A pack that was stopped is continued, and a complete one is left as it is.

    Args:
        source: Folder of the image files, with a list or class folders.
        target: Folder for the packed files, such as train.rec. It is made if it is missing.
        part: "train" or "val".

    Raises:
        ValueError: The list, an image or the target is wrong, or another process packs this part.
        RunError: The disk returns other bytes than were written.
    """
    images = folder.find(source, part, recordio.MAX_CLASSES)
    print_warning(images.passed_over)  # a note on files that are not images of a class; empty, nothing is printed
    list_sha256 = _list_sha256(source, images)
    files = PackFiles.of_part(target, part)
    target.mkdir(parents=True, exist_ok=True)
    with files.growing.open("ab") as growing:  # makes an empty file if there is none
        _lock(growing)  # against another process that packs this part
        is_packed_already = files.packed.exists()
        if is_packed_already:
            # Removes the empty file. It is missing if another process has just given it the name `packed`.
            files.growing.unlink(missing_ok=True)
            _raise_unless_packed_from(images, list_sha256, files)
            return f"{files.packed}: is whole already"
        entries = _write_records(growing, files.journal, images, list_sha256)
        _write_index(files.index, entries)
        packed = recordio.find(files.growing, files.index)  # the records, found by the index
        _check_written(packed, entries, images.labels, images.part)
        # Looked at last, so that any change of a file up to now is found.
        source_files = images.contents(_show_nothing)  # names, sizes in bytes and labels
        sizes_in_pack = packed.contents(_show_nothing).sizes
        _raise_if_changed_since_packed(sizes_in_pack, source_files.sizes, images, files)
        _write_sizes_and_source(files.sizes, entries, list_sha256, source_files)
        files.growing.rename(files.packed)  # last, because a file of this name counts as whole
        files.journal.unlink()
    size_gib = files.packed.stat().st_size / 2**30
    return f"{files.packed}: {counted(len(entries), 'image')}, {size_gib:.3f} GiB, each record checked"


def _raise_unless_packed_from(images: folder.ImageList, list_sha256: str, files: PackFiles) -> None:
    """Raise an error unless a packed part was made from the same list and of files that have not changed since.

    Args:
        images: The image files of the part as they are now.
        list_sha256: SHA-256 of the part's list as it is now.
        files: The files of the packed part. Its file of sizes notes what the part was packed from.

    Raises:
        ValueError: The part was packed from another list, the names, sizes or labels of the files have changed, or the
            file of sizes is damaged.
    """
    noted = read_sizes(files.sizes)
    remedy = "remove it or take another TARGET"
    if noted.get("list_sha256") != list_sha256:
        raise ValueError(f"{files.packed}: is there, and not packed from this list: {remedy}")
    if noted.get("source") != _passport_of(images):
        raise ValueError(f"{files.packed}: is there, but files of {images.root} were changed since: {remedy}")


def _write_records(growing: BinaryIO, journal: Path, images: folder.ImageList, list_sha256: str) -> list[Entry]:
    """Write the records of all images to a file, after those that a stopped pack left there.

    Args:
        growing: The unfinished file of records, open for appending and locked.
        journal: The file with an entry for each record.
        images: The image files of the part, with their labels.
        list_sha256: SHA-256 of the part's list. A stopped pack must have been begun from the same list.

    Returns:
        The entries of all records, in the order of the images.

    Raises:
        ValueError: An image cannot be packed, the pack was begun from another list, or the journal is damaged.
    """
    kept = _keep_whole_records(growing, journal, list_sha256)
    if kept:
        print_to_reader(f"{growing.name}: goes on after {counted(len(kept), 'image')}")
    return kept + _append_records(growing, journal, images, done=len(kept))


def _write_index(index: Path, entries: list[Entry]) -> None:
    """Write the index of a part: a line with number and offset in bytes for each record."""
    lines = [f"{number}\t{entry.offset}\n" for number, entry in enumerate(entries)]
    index.write_text("".join(lines))


def _write_sizes_and_source(
    file: Path, entries: list[Entry], list_sha256: str, source_files: passport.Contents
) -> None:
    """Write the file of sizes: width and height of the largest image, and what the part was packed from.

    Args:
        file: The file, `<part>.sizes.json`.
        entries: The entry of each record, with the width and height of its image.
        list_sha256: SHA-256 of the part's list.
        source_files: Names, sizes in bytes and labels of the image files. Their number, their bytes and a digest are
            written, by which a change is found later.
    """
    packed_from = {"list_sha256": list_sha256, "source": as_json(passport.passport(source_files))}
    write_sizes(file, [(entry.width, entry.height) for entry in entries], packed_from)


def _raise_if_changed_since_packed(
    sizes_in_pack: Array, sizes_now: Array, images: folder.ImageList, files: PackFiles
) -> None:
    """Raise an error if a file has another size than its record: it was changed after a stopped pack had packed it.

    Args:
        sizes_in_pack: Bytes of each image in its record, [samples].
        sizes_now: Bytes of each image file now, [samples].
        images: The image files, for the name of a changed one.
        files: The files of the part, for the message.

    Raises:
        ValueError: A size differs.
    """
    changed = np.flatnonzero(sizes_in_pack != sizes_now)
    if len(changed):
        name = images.name(int(changed[0]))
        raise ValueError(
            f"{name}: was changed since it was packed: remove {files.growing} and {files.journal}, and pack anew"
        )


def _show_nothing(done: int, total: int) -> None:
    """Take how many of all files were looked at, and show nothing."""


def _lock(file: BinaryIO) -> None:
    """Lock a file of records until it is closed.

    Args:
        file: The open file.

    Raises:
        ValueError: Another process has locked it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"{file.name}: another tools.pack writes it: wait for its end") from error


class PackedImage(NamedTuple):
    """The record that is made of an image file, and what is known of the file."""

    record: bytes
    crc32: int  # of the file
    size: folder.Size


def _append_records(growing: BinaryIO, journal: Path, images: folder.ImageList, *, done: int) -> list[Entry]:
    """Append the records of the images that are not packed yet to a file, and return their entries.

    Each entry is also written as a line of the journal.

    Args:
        growing: The unfinished file of records, open at its end.
        journal: The file with an entry for each record.
        images: The image files of the part, with their labels.
        done: How many images, from the first one on, are packed already.

    Raises:
        ValueError: An image cannot be packed. The message names its file.
    """
    entries: list[Entry] = []
    with journal.open("a") as journal_lines, ThreadPoolExecutor(READERS) as readers:
        for batch in batches_with_progress(f"pack {images.part}", len(images), done=done):
            for made in readers.map(lambda number: _checked_record(images, int(number)), batch):
                entry = _append_record(growing, made)
                print(*entry, file=journal_lines)
                entries.append(entry)
            growing.flush()
            journal_lines.flush()
    _move_to_disk(growing)  # so that the check of the records reads what is on the disk, not the kernel's cache
    return entries


def _append_record(growing: BinaryIO, made: PackedImage) -> Entry:
    """Append the record of an image to a file, and return its entry for the journal.

    Args:
        growing: The unfinished file of records, open at its end.
        made: The record, with the checksum and the size of the image.

    Returns:
        Where the record begins in the file, and the checksum, width and height of the image.
    """
    width, height = made.size
    entry = Entry(offset=growing.tell(), crc32=made.crc32, width=width, height=height)
    growing.write(made.record)
    return entry


def _move_to_disk(file: BinaryIO) -> None:
    """Write a file's bytes to the disk, and drop them from the kernel's cache, so that reading them reads the disk.

    Args:
        file: The open file, whose buffered bytes have been flushed.
    """
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # drops only what fsync has written


def _passport_of(images: folder.ImageList) -> Any:
    """Return the passport of a part's files as JSON: their number, sizes and a digest of their names and labels.

    Args:
        images: The image files of the part.

    Raises:
        ValueError: A file is absent, a folder or empty.
    """
    return as_json(passport.passport(images.contents(_show_nothing)))


def _list_sha256(source: Path, images: folder.ImageList) -> str:
    """Return the SHA-256 of the list of a part's images, as hexadecimal digits.

    Args:
        source: Folder of the image files. If it has a list file for the part, that file is hashed.
        images: The image files of the part. Without a list file, the list that they make is hashed.

    Raises:
        ValueError: The name of an image file has a line break, so that no list can name it.
    """
    list_file = source / folder.LIST.format(images.part)
    if list_file.is_file():
        return hashlib.sha256(list_file.read_bytes()).hexdigest()
    return hashlib.sha256(folder.list_text(images)).hexdigest()


def _keep_whole_records(growing: BinaryIO, journal: Path, list_sha256: str) -> list[Entry]:
    """Cut the file of a stopped pack after the records that are surely whole, and return their entries.

    The journal is written anew with only these entries. Without a journal no record counts as whole, so the file is
    emptied.

    Args:
        growing: The unfinished file of records. It is left open at its new end.
        journal: The file with an entry for each record; it may be missing.
        list_sha256: SHA-256 of the list that the pack is made from.

    Raises:
        ValueError: The pack was begun from another list, or the journal is damaged.
    """
    entries = _journal_entries(growing, journal, list_sha256)
    file_size = growing.seek(0, os.SEEK_END)
    whole = _whole_records(entries, file_size)  # the process may have been stopped between journal and records
    growing.truncate(whole.end)
    growing.seek(whole.end)
    with journal.open("w") as file:
        print(list_sha256, file=file)
        for entry in whole.entries:
            print(*entry, file=file)
    return whole.entries


class WholeRecords(NamedTuple):
    """The records at the beginning of a file that are surely whole."""

    entries: list[Entry]
    end: int  # the offset of the first byte after them


def _whole_records(entries: list[Entry], file_size: int) -> WholeRecords:
    """Return the entries of the records that are surely whole in a file, and the offset where these records end.

    After a crash the journal may have more entries than the file has records. An entry says where its record begins
    (`offset`), but not where the record ends. So a record counts as whole only if the next record begins inside the
    file. For example, with records that begin at 0, 100, 250 and 400 and a `file_size` of 300 bytes:

        0, 100   whole, because the next records begin at 100 and 250: the result has these two entries, and `end` 250
        250      begins inside the file, but may be cut off, so the caller removes this record
        400      never reached the file

    Args:
        entries: The entries of the journal, in the order of the records.
        file_size: Size of the file of records in bytes.

    Returns:
        The entries, and the offset as `end`. If no record begins inside the file: no entries, and 0.
    """
    begun = [entry for entry in entries if entry.offset < file_size]
    if not begun:
        return WholeRecords([], end=0)
    *whole, perhaps_incomplete = begun  # all but the last, and the last
    return WholeRecords(whole, end=perhaps_incomplete.offset)


def _journal_entries(growing: BinaryIO, journal: Path, list_sha256: str) -> list[Entry]:
    """Return the entries of a pack's journal, one for each packed record; an empty list if there is no journal.

    Args:
        growing: The unfinished file of records, which is named in messages.
        journal: The journal. Its first line is the SHA-256 of the list that the pack was begun from.
        list_sha256: SHA-256 of the list that the pack is made from now.

    Raises:
        ValueError: The pack was begun from another list, or a line of the journal is damaged.
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
    """Return the lines of a file that end with a line feed; an empty list if there is no file.

    A last line without its line feed was cut off as its process was stopped, and is left out.

    Args:
        file: The file, a journal.
    """
    text = file.read_text(errors="replace") if file.exists() else ""
    end = text.rfind("\n") + 1
    return text[:end].splitlines()


# Each thread makes its own decoder on first use: DALI's pipelines take one input at a time.
_OF_THIS_THREAD = threading.local()


def _decoder_of_this_thread() -> Decoder:
    """Return this thread's decoder, the one that training uses. It is made at the thread's first call."""
    if not hasattr(_OF_THIS_THREAD, "decoder"):
        _OF_THIS_THREAD.decoder = Decoder("cpu", None)
    decoder: Decoder = _OF_THIS_THREAD.decoder
    return decoder


def _checked_record(images: folder.ImageList, number: int) -> PackedImage:
    """Check that one image file can be decoded, and pack it with its label into a RecordIO record.

    Args:
        images: The image files of one part of the data set (training or validation), with their labels.
        number: The position of the sample in that list, from 0. It becomes the record's id.

    Returns:
        The record's bytes, with the CRC-32 and the width and height of the image file.

    Raises:
        ValueError: The file is damaged, cannot be decoded by training's decoder, is too large for a record, or has a
            header that Pillow cannot read. The message names the file.
    """
    [(name, content)] = images.encoded(number)  # a sample of a classification data set is one file
    fault = fault_of_file(content)  # in words; empty if there is none
    if not fault:
        fault = _decoder_of_this_thread().fault(content)
    if fault:
        raise ValueError(f"{name}: cannot be decoded ({fault}): replace the file or remove it from the list")
    if is_cmyk_without_mark(content):
        print_warning(
            f"{name}: is a CMYK JPEG without Adobe's marker: training sees it as TensorFlow does, and inverted to what "
            "Pillow and torchvision see"
        )
    try:
        record = recordio.image_record(content, int(images.labels[number]), number)
    except ValueError as error:
        raise ValueError(f"{name}: {error}: remove it from the list") from error
    return PackedImage(record, zlib.crc32(content), size_of(name, content))


def _check_written(packed: Records, entries: list[Entry], labels: Array, part: str) -> None:
    """Read each record back from the disk, and raise an error if an image or a label is not what was to be written.

    Args:
        packed: The written records.
        entries: The entry of each record, with the checksum of its image file.
        labels: The label of each image, [samples].
        part: "train" or "val", for the progress that is shown.

    Raises:
        RunError: A record differs.
    """
    for ids in batches_with_progress(f"check {part}", len(packed)):
        read_images, read_labels = packed.read(ids)
        for i, image, label in zip(ids, read_images, read_labels, strict=True):
            is_what_was_packed = zlib.crc32(image) == entries[i].crc32 and label == labels[i]
            if not is_what_was_packed:
                raise RunError(f"{packed.name(i)}: is not what was written: remove the file and pack again")


@one_line
def main() -> int:
    """Pack an image folder, or do what --sizes or --lists asks instead, and return the exit status.

    With --sizes the size of the largest image of each part is found, and with --lists the lists are written.

    Returns:
        0, or 130 after Ctrl-C.

    Raises:
        ValueError: The folder cannot be packed, or its sizes or lists cannot be made.
        RunError: The system refuses to read or write a file, or the disk returns other bytes than were written.
    """
    args = _parse()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be UTF-8
    try:
        _run(args)
    except OSError as error:
        where = error.filename or args.target or args.source
        raise RunError(f"{where}: {error.strerror}: mend that and start the same command again") from error
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED_STATUS
    return 0


def _parse() -> argparse.Namespace:
    """Return the options of the command line, which ask for one thing: to pack into TARGET, --sizes or --lists.

    Raises:
        SystemExit: Options do not go together, or are wrong. A message on how to use them is printed.
        UnusableError: An option names a pipe, a socket or a device.
    """
    parser = Parser(prog="python -m tools.pack", description=DESCRIPTION)
    parser.add_argument("source", type=Path, help="folder with train_list.txt and val_list.txt, or class folders")
    parser.add_argument("target", type=Path, nargs="?", help="folder for train.rec and val.rec")
    parser.add_argument("--sizes", action="store_true", help="only find the largest images of SOURCE, packed or not")
    parser.add_argument("--lists", action="store_true", help="only write the lists of SOURCE from its class folders")
    parser.add_argument("--labels", type=Path, help="with --lists: lines 'name label' or 'name class' of a flat val/")
    complete(parser)
    refuse_empty_words(parser, sys.argv[1:])
    args = parser.parse_args()
    named_files.check_options(args)
    asked_for = [args.target is not None, args.sizes, args.lists]
    if args.labels and not args.lists:
        parser.error("--labels goes with --lists alone: give --lists SOURCE --labels FILE")
    if asked_for.count(True) != 1:
        parser.error("give SOURCE and TARGET, or --sizes and SOURCE, or --lists and SOURCE")
    return args


def _run(args: argparse.Namespace) -> None:
    """Do for both parts of a data set, train and val, what the command line asks. Print a line for each part.

    Args:
        args: Options of the command line, as `_parse` returns them.

    Raises:
        ValueError: The folder cannot be packed, or its lists or sizes cannot be made.
        RunError: The disk returns other bytes than were written.
        OSError: A file cannot be read or written.
    """
    if not args.source.exists():
        raise ValueError(f"{args.source}: no such folder: give the folder of the data set as SOURCE")
    if args.lists:
        for line in write_lists(args.source, args.labels):
            print_to_reader(line)
    elif args.sizes:
        for part in PARTS:
            print_to_reader(find_sizes(args.source, part))
    else:
        _require_target_outside_parts(args.source, args.target)
        # Before any packing, so that a fault of val is not found only after hours of packing train.
        train_files = _files_of_part(args.source, "train")
        val_files = _files_of_part(args.source, "val")
        for note in passport.notes_on(train_files, val_files):  # training cannot say it of records, which have no names
            print_warning(note)
        for part in PARTS:
            print_to_reader(pack(args.source, args.target, part))


def _require_target_outside_parts(source: Path, target: Path) -> None:
    """Raise ValueError if the packed files would lie in the folder of a part, where they count as a class folder.

    Args:
        source: Folder of the data set.
        target: Folder for the packed files.

    Raises:
        ValueError: They would.
    """
    for part in PARTS:
        if target.resolve().is_relative_to((source / part).resolve()):
            raise ValueError(f"{target}: lies in {source / part}, whose folders are classes: take another TARGET")


def _files_of_part(source: Path, part: str) -> passport.Contents:
    """Return names, sizes and labels of the image files of one part of a data set; refuse a part of records alone.

    The part has image files by a list such as train_list.txt, or in class folders such as train/cat/. It may have
    packed records (RecordIO or TFRecord), too.

    Args:
        source: Folder of the data set.
        part: "train" or "val".

    Raises:
        ValueError: The part has no image files, or records alone.
        ValueError: The list is wrong, a file is absent or empty, or TFRecord files of a numbered set are absent.
    """
    tfrecord_files = tfrecord.files_of(source, part)
    record_file = tfrecord_files[-1] if tfrecord_files else source / recordio.FILE.format(part)  # may not exist
    has_list = (source / folder.LIST.format(part)).is_file()
    # TFRecord files may lie in train/ instead of `source`. Then train/ has records, not class folders.
    has_class_folders = (source / part).is_dir() and record_file.parent != source / part
    has_image_files = has_list or has_class_folders
    if record_file.is_file() and not has_image_files:
        raise ValueError(f"{record_file}: {source} is packed already: DATADIR takes it as it is")
    images = folder.find(source, part, recordio.MAX_CLASSES)
    return passport.contents_of(images, f"files of {part}", print_to_reader)


if __name__ == "__main__":
    sys.exit(main())
